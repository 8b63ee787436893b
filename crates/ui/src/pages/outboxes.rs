//! Outboxes: what flows where, how late it is, what is wrong, and what is parked.

use std::time::Duration;

use axum::extract::Path;
use maud::{Markup, html};
use relais_engine::{OperatorRole, ParkedChoice};
use relais_protocol::{
    admin::SecretDeclaration,
    outbox::{OutboxDeclaration, OutboxState, ParkedEvent},
};

use super::{clock, done, flash};
use crate::{
    error::{Answer, Explained as _},
    form::{Query, segment},
    gate::{Sent, Visitor},
    json::pretty,
    layout::{Page, Part},
    show::{badge, button, careful, count, empty, number, span},
};

/// So many parked events are shown.
const PARKED: usize = 100;

/// The list.
pub(crate) async fn page(visitor: Visitor, Query(query): Query) -> Answer {
    let (words, language, now) = (visitor.words(), visitor.taste.language, clock());
    let outboxes = visitor.operator.engine().outbox_states().await.or_explain(&visitor)?;
    let main = html! {
        h1 { (words.outboxes) }
        (flash(&visitor, &query))
        @if outboxes.is_empty() { (empty(words.no_outboxes, words.no_outboxes_hint)) } @else {
            div.scroll tabindex="0" { table.dense {
                caption.sr-only { (words.outboxes) }
                thead { tr {
                    th scope="col" { (words.outbox) }
                    th scope="col" { (words.flow) }
                    th.right scope="col" { (words.unpublished) }
                    th.right scope="col" { (words.oldest) }
                    th.right scope="col" { (words.parked) }
                    th.right scope="col" { (words.published) }
                    th.right scope="col" { (words.relays) }
                    th scope="col" { span.sr-only { (words.actions) } }
                } }
                tbody { @for outbox in &outboxes {
                    @let declared = &outbox.declaration;
                    tr {
                        th scope="row" { a href=(format!("/ui/outboxes/{}", segment(&declared.outbox_name))) { (declared.outbox_name) } " " (condition(&visitor, outbox)) }
                        td.when { (flow(declared)) @if let Some(trouble) = &outbox.trouble { br; span.error title=(trouble) { (super::tasks::first_line(trouble)) } } }
                        td.right.num { (unpublished(&visitor, outbox)) }
                        td.right { (oldest(&visitor, outbox)) }
                        td.right.num { (parked_count(&visitor, outbox)) }
                        td.right.num { (number(language, outbox.published)) }
                        td.right.num { (number(language, outbox.relays.len() as u64)) }
                        td.buttons { (actions(&visitor, outbox)) }
                    }
                } }
            } }
        }
    };
    Ok(Page::new(words.outboxes, Part::Outboxes).live("anything").show(&visitor, Some(now), &main))
}

/// The page of an outbox.
pub(crate) async fn one(visitor: Visitor, Path(name): Path<String>, Query(query): Query) -> Answer {
    let (words, language, now, engine) = (visitor.words(), visitor.taste.language, clock(), visitor.operator.engine());
    let outbox = engine.outbox_state(&name).await.or_explain(&visitor)?;
    // Where the database is away there is a page all the same.
    let parked = engine.list_parked(&name, PARKED).await;
    let declared = &outbox.declaration;
    let main = html! {
        div.head {
            div { p.crumbs { a href="/ui/outboxes" { (words.outboxes) } } h1 { (name) " " (condition(&visitor, &outbox)) } }
            div.headtools { (actions(&visitor, &outbox)) }
        }
        (flash(&visitor, &query))
        p.lead { (flow(declared)) }
        @if let Some(trouble) = &outbox.trouble { section.card.bad { h2 { (words.in_trouble) } pre.error tabindex="0" { (trouble) } } }
        dl.tiles {
            div { dt { (words.unpublished) } dd { (unpublished(&visitor, &outbox)) } }
            div { dt { (words.oldest) } dd { (oldest(&visitor, &outbox)) } }
            div { dt { (words.parked) } dd { (parked_count(&visitor, &outbox)) } }
            div { dt { (words.published) } dd { (number(language, outbox.published)) } }
            div { dt { (words.failed_tries) } dd { (number(language, outbox.failed)) } }
        }
        section.card aria-labelledby="parked" {
            div.head {
                h2 #parked { (words.parked_events) }
                @if parked.as_ref().is_ok_and(|parked| !parked.is_empty()) { div.headtools { (for_all(&visitor, &name)) } }
            }
            @match &parked {
                Err(error) => p.muted { (error.to_string()) },
                Ok(parked) if parked.is_empty() => p.muted { (words.nothing_parked) },
                Ok(parked) => (parked_table(&visitor, &name, parked)),
            }
        }
        div.columns {
            section.card aria-labelledby="relays" { h2 #relays { (words.relays) } (relays(&visitor, &outbox)) }
            section.card aria-labelledby="declared" { h2 #declared { (words.declared) }
                pre.json tabindex="0" { (pretty(&serde_json::to_string(declared).unwrap_or_default(), &Default::default())) } }
        }
    };
    Ok(Page::new(&name, Part::Outboxes).live("anything").show(&visitor, Some(now), &main))
}

fn condition(visitor: &Visitor, outbox: &OutboxState) -> Markup {
    let words = visitor.words();
    html! {
        @if outbox.declaration.paused == Some(true) { (badge("paused", words.paused)) }
        @else if outbox.trouble.is_some() { (badge("away", words.in_trouble)) }
    }
}

/// From which table, to where. What is declared has no passwords in it.
fn flow(declared: &OutboxDeclaration) -> Markup {
    let shown = |secret: &SecretDeclaration| match secret {
        SecretDeclaration::Plain(text) => text.clone(),
        SecretDeclaration::Env { env } => env.clone(),
    };
    html! {
        code { (declared.table.as_deref().unwrap_or("outbox")) } " " span.muted { (shown(&declared.database_url)) }
        " → " (declared.sink.kinds().join(", ")) " " code { (declared.destination.as_deref().unwrap_or_default()) }
        @if declared.sink.rabbitmq.is_some() { " " code { (declared.routing_key.as_deref().unwrap_or_default()) } }
    }
}

fn unpublished(visitor: &Visitor, outbox: &OutboxState) -> String {
    let language = visitor.taste.language;
    outbox.unpublished.map_or_else(|| "–".to_owned(), |rows| count(language, (rows, outbox.more_unpublished)))
}

fn oldest(visitor: &Visitor, outbox: &OutboxState) -> String {
    let age = outbox.oldest_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).ok());
    age.map_or_else(|| "–".to_owned(), |age| span(visitor.taste.language, age))
}

fn parked_count(visitor: &Visitor, outbox: &OutboxState) -> Markup {
    let language = visitor.taste.language;
    html! {
        @match outbox.parked {
            None => "–",
            Some(0) => "0",
            Some(parked) => (badge("warning", &number(language, parked))),
        }
    }
}

fn actions(visitor: &Visitor, outbox: &OutboxState) -> Markup {
    let words = visitor.words();
    let base = format!("/ui/outboxes/{}", segment(&outbox.declaration.outbox_name));
    html! {
        @if visitor.operator.may(OperatorRole::Operator) {
            @if outbox.declaration.paused == Some(true) {
                (button(visitor, &format!("{base}/resume"), words.resume, "", &[]))
            } @else {
                (careful(visitor, &format!("{base}/pause"), words.pause, words.pause_outbox_question, &[]))
            }
        }
    }
}

/// What can be done with all parked events.
fn for_all(visitor: &Visitor, name: &str) -> Markup {
    let words = visitor.words();
    let base = format!("/ui/outboxes/{}", segment(name));
    html! {
        @if visitor.operator.may(OperatorRole::Operator) {
            (button(visitor, &format!("{base}/retry"), words.retry_all, "", &[("all", "yes")]))
            (careful(visitor, &format!("{base}/skip"), words.skip_all, words.skip_question, &[("all", "yes")]))
        }
    }
}

fn parked_table(visitor: &Visitor, name: &str, parked: &[ParkedEvent]) -> Markup {
    let (words, language) = (visitor.words(), visitor.taste.language);
    let base = format!("/ui/outboxes/{}", segment(name));
    let may = visitor.operator.may(OperatorRole::Operator);
    html! {
        p.muted { (words.parked_hint) }
        div.scroll tabindex="0" { table.dense {
            caption.sr-only { (words.parked_events) }
            thead { tr {
                th scope="col" { (words.event) } th scope="col" { (words.key) } th.right scope="col" { (words.tries) }
                th scope="col" { (words.reason) } th scope="col" { span.sr-only { (words.actions) } }
            } }
            tbody { @for event in parked { tr {
                th scope="row" { (event.event_type) br; code.muted { (event.id) } }
                td { code { (event.key) } }
                td.right.num { (number(language, u64::from(event.retry_count))) }
                td { span.error { (event.error.as_deref().unwrap_or("–")) } }
                td.buttons { @if may {
                    (button(visitor, &format!("{base}/retry"), words.retry, "", &[("id", &event.id)]))
                    (careful(visitor, &format!("{base}/skip"), words.skip_event, words.skip_question, &[("id", &event.id)]))
                } }
            } } }
        } }
    }
}

fn relays(visitor: &Visitor, outbox: &OutboxState) -> Markup {
    let (words, language) = (visitor.words(), visitor.taste.language);
    html! {
        @if outbox.relays.is_empty() { p.muted { (words.no_relays) } } @else {
            div.scroll tabindex="0" { table.dense {
                thead { tr {
                    th scope="col" { (words.process) } th scope="col" { (words.mode) } th.right scope="col" { (words.partitions) }
                    th.right scope="col" { (words.published) } th.right scope="col" { (words.failed_tries) }
                } }
                tbody { @for relay in &outbox.relays { tr {
                    th scope="row" { (relay.process) }
                    td {
                            (relay.activity.as_str())
                            @if let Some(why) = &relay.why_not_capture { br; span.dim { (why) } }
                            @if let Some(trouble) = &relay.trouble { br; span.error { (trouble) } }
                        }
                    td.right.num { (number(language, relay.partitions)) }
                    td.right.num { (number(language, relay.published)) }
                    td.right.num { (number(language, relay.failed)) }
                } } }
            } }
        }
    }
}

/// Pauses it.
pub(crate) async fn pause(Path(name): Path<String>, Sent(visitor, fields): Sent) -> Answer {
    visitor.operator.pause_outbox(&name, true).await.or_explain(&visitor)?;
    Ok(done(&fields, "paused", None))
}

/// Lets it go on.
pub(crate) async fn resume(Path(name): Path<String>, Sent(visitor, fields): Sent) -> Answer {
    visitor.operator.pause_outbox(&name, false).await.or_explain(&visitor)?;
    Ok(done(&fields, "resumed", None))
}

/// Retries parked events.
pub(crate) async fn retry(Path(name): Path<String>, Sent(visitor, fields): Sent) -> Answer {
    let retried = visitor.operator.retry_parked(&name, chosen(&fields)).await.or_explain(&visitor)?;
    Ok(done(&fields, "events-retried", Some(retried)))
}

/// Skips parked events.
pub(crate) async fn skip(Path(name): Path<String>, Sent(visitor, fields): Sent) -> Answer {
    let skipped = visitor.operator.skip_parked(&name, chosen(&fields)).await.or_explain(&visitor)?;
    Ok(done(&fields, "events-skipped", Some(skipped)))
}

fn chosen(fields: &crate::form::Fields) -> ParkedChoice {
    match fields.get("all") {
        Some(_) => ParkedChoice::All,
        None => ParkedChoice::These(fields.all("id")),
    }
}
