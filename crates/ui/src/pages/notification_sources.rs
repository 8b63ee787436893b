//! Notification sources: what becomes notifications, how often it did, and what is wrong.

use axum::extract::Path;
use maud::{Markup, html};
use relais_engine::OperatorRole;
use relais_protocol::notification_source::{NotificationSourceDeclaration, NotificationSourceState};

use super::{clock, done, flash};
use crate::{
    error::{Answer, Explained as _},
    form::{Query, segment},
    gate::{Sent, Visitor},
    json::pretty,
    layout::{Page, Part},
    show::{badge, button, careful, empty, number},
};

/// The list.
pub(crate) async fn page(visitor: Visitor, Query(query): Query) -> Answer {
    let (words, language, now) = (visitor.words(), visitor.taste.language, clock());
    let sources = visitor.operator.engine().notification_source_states().await.or_explain(&visitor)?;
    let main = html! {
        div.head { div { p.crumbs { a href="/ui/notifications" { (words.notifications) } } h1 { (words.notification_sources) } } }
        (flash(&visitor, &query))
        @if sources.is_empty() { (empty(words.no_sources, words.no_sources_hint)) } @else {
            div.scroll tabindex="0" { table.dense {
                caption.sr-only { (words.notification_sources) }
                thead { tr {
                    th scope="col" { (words.notification_source) }
                    th scope="col" { (words.flow) }
                    th.right scope="col" { (words.emitted_count) }
                    th.right scope="col" { (words.failed_count) }
                    th scope="col" { span.sr-only { (words.actions) } }
                } }
                tbody { @for source in &sources {
                    @let declared = &source.declaration;
                    tr {
                        th scope="row" { a href=(address(declared)) { (declared.source_name) } " " (condition(&visitor, source)) }
                        td.when { (flow(declared)) @if let Some(trouble) = &source.trouble { br; span.error title=(trouble) { (super::tasks::first_line(trouble)) } } }
                        td.right.num { (number(language, source.emitted)) }
                        td.right.num { (number(language, source.failed)) }
                        td.buttons { (actions(&visitor, source)) }
                    }
                } }
            } }
        }
    };
    Ok(Page::new(words.notification_sources, Part::Notifications).live("anything").show(&visitor, Some(now), &main))
}

/// The page of a source.
pub(crate) async fn one(visitor: Visitor, Path(name): Path<String>, Query(query): Query) -> Answer {
    let (words, language, now, engine) = (visitor.words(), visitor.taste.language, clock(), visitor.operator.engine());
    let source = engine.notification_source_state(&name).await.or_explain(&visitor)?;
    let declared = &source.declaration;
    let main = html! {
        div.head {
            div { p.crumbs { a href="/ui/notification-sources" { (words.notification_sources) } } h1 { (name) " " (condition(&visitor, &source)) } }
            div.headtools { (actions(&visitor, &source)) }
        }
        (flash(&visitor, &query))
        p.lead { (flow(declared)) }
        @if let Some(trouble) = &source.trouble { section.card.bad { h2 { (words.in_trouble) } pre.error tabindex="0" { (trouble) } } }
        dl.tiles {
            div { dt { (words.emitted_count) } dd { (number(language, source.emitted)) } }
            div { dt { (words.failed_count) } dd { (number(language, source.failed)) } }
        }
        div.columns {
            section.card aria-labelledby="processes" { h2 #processes { (words.process) } (processes(&visitor, &source)) }
            section.card aria-labelledby="declared" { h2 #declared { (words.declared) }
                pre.json tabindex="0" { (pretty(&serde_json::to_string(declared).unwrap_or_default(), &Default::default())) } }
        }
    };
    Ok(Page::new(&name, Part::Notifications).live("anything").show(&visitor, Some(now), &main))
}

fn address(declared: &NotificationSourceDeclaration) -> String {
    format!("/ui/notification-sources/{}", segment(&declared.source_name))
}

fn condition(visitor: &Visitor, source: &NotificationSourceState) -> Markup {
    let words = visitor.words();
    html! {
        @if source.declaration.paused == Some(true) { (badge("paused", words.paused)) }
        @else if source.trouble.is_some() { (badge("away", words.in_trouble)) }
    }
}

/// From which channels, to whom.
fn flow(declared: &NotificationSourceDeclaration) -> Markup {
    let channels = declared.bus.as_ref().map_or(&[][..], |bus| &bus.channels);
    html! {
        @for channel in channels.iter().take(5) { code { (channel) } " " }
        @if channels.len() > 5 { "… " }
        @if let Some(audience) = &declared.audience {
            "→ " span.muted { (audience.kind) } " "
            @for target in audience.targets.iter().take(5) { code { (target) } " " }
        }
    }
}

fn actions(visitor: &Visitor, source: &NotificationSourceState) -> Markup {
    let (words, base) = (visitor.words(), address(&source.declaration));
    html! {
        @if visitor.operator.may(OperatorRole::Operator) {
            @if source.declaration.paused == Some(true) {
                (button(visitor, &format!("{base}/resume"), words.resume, "", &[]))
            } @else {
                (careful(visitor, &format!("{base}/pause"), words.pause, words.pause_source_question, &[]))
            }
        }
    }
}

fn processes(visitor: &Visitor, source: &NotificationSourceState) -> Markup {
    let (words, language) = (visitor.words(), visitor.taste.language);
    html! {
        @if source.processes.is_empty() { p.muted { (words.nobody_hears) } } @else {
            div.scroll tabindex="0" { table.dense {
                thead { tr {
                    th scope="col" { (words.process) }
                    th.right scope="col" { (words.emitted_count) } th.right scope="col" { (words.known_count) }
                    th.right scope="col" { (words.passed_over) } th.right scope="col" { (words.failed_count) }
                } }
                tbody { @for process in &source.processes { tr {
                    th scope="row" { (process.process) @if let Some(trouble) = &process.trouble { br; span.error { (trouble) } } }
                    td.right.num { (number(language, process.emitted)) }
                    td.right.num { (number(language, process.known)) }
                    td.right.num { (number(language, process.passed_over)) }
                    td.right.num { (number(language, process.failed)) }
                } } }
            } }
        }
    }
}

/// Pauses it.
pub(crate) async fn pause(Path(name): Path<String>, Sent(visitor, fields): Sent) -> Answer {
    visitor.operator.pause_notification_source(&name, true).await.or_explain(&visitor)?;
    Ok(done(&fields, "paused", None))
}

/// Lets it go on.
pub(crate) async fn resume(Path(name): Path<String>, Sent(visitor, fields): Sent) -> Answer {
    visitor.operator.pause_notification_source(&name, false).await.or_explain(&visitor)?;
    Ok(done(&fields, "resumed", None))
}
