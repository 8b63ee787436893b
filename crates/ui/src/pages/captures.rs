//! Captures: what flows where, how late it is, and what is wrong.

use std::time::Duration;

use axum::extract::Path;
use maud::{Markup, html};
use relais_engine::OperatorRole;
use relais_protocol::{
    admin::SecretDeclaration,
    capture::{CaptureActivityName, CaptureDeclaration, CaptureState},
};

use super::{clock, done, flash};
use crate::{
    error::{Answer, Explained as _},
    form::{Query, segment},
    gate::{Sent, Visitor},
    json::pretty,
    layout::{Page, Part},
    show::{badge, button, careful, empty, number, span},
};

/// The list.
pub(crate) async fn page(visitor: Visitor, Query(query): Query) -> Answer {
    let (words, language, now) = (visitor.words(), visitor.taste.language, clock());
    let captures = visitor.operator.engine().capture_states().await.or_explain(&visitor)?;
    let main = html! {
        h1 { (words.captures) }
        (flash(&visitor, &query))
        @if captures.is_empty() { (empty(words.no_captures, words.no_captures_hint)) } @else {
            div.scroll tabindex="0" { table.dense {
                caption.sr-only { (words.captures) }
                thead { tr {
                    th scope="col" { (words.capture) }
                    th scope="col" { (words.flow) }
                    th.right scope="col" { (words.changes) }
                    th.right scope="col" { (words.snapshot_rows) }
                    th.right scope="col" { (words.lag) }
                    th.right scope="col" { (words.retained_wal) }
                    th scope="col" { span.sr-only { (words.actions) } }
                } }
                tbody { @for capture in &captures {
                    @let declared = &capture.declaration;
                    tr {
                        th scope="row" { a href=(address(declared)) { (declared.capture_name) } " " (condition(&visitor, capture)) }
                        td.when { (flow(declared)) @if let Some(trouble) = &capture.trouble { br; span.error title=(trouble) { (super::tasks::first_line(trouble)) } } }
                        td.right.num { (number(language, capture.changes)) }
                        td.right.num { (number(language, capture.snapshot_rows)) }
                        td.right { (lag(&visitor, capture)) }
                        td.right.num { (bytes(capture.retained_wal)) }
                        td.buttons { (actions(&visitor, capture)) }
                    }
                } }
            } }
        }
    };
    Ok(Page::new(words.captures, Part::Captures).live("anything").show(&visitor, Some(now), &main))
}

/// The page of a capture.
pub(crate) async fn one(visitor: Visitor, Path(name): Path<String>, Query(query): Query) -> Answer {
    let (words, language, now, engine) = (visitor.words(), visitor.taste.language, clock(), visitor.operator.engine());
    let capture = engine.capture_state(&name).await.or_explain(&visitor)?;
    let declared = &capture.declaration;
    let position = capture.position.as_ref();
    let main = html! {
        div.head {
            div { p.crumbs { a href="/ui/captures" { (words.captures) } } h1 { (name) " " (condition(&visitor, &capture)) } }
            div.headtools { (actions(&visitor, &capture)) }
        }
        (flash(&visitor, &query))
        p.lead { (flow(declared)) }
        @if let Some(trouble) = &capture.trouble { section.card.bad { h2 { (words.in_trouble) } pre.error tabindex="0" { (trouble) } } }
        dl.tiles {
            div { dt { (words.changes) } dd { (number(language, capture.changes)) } }
            div { dt { (words.snapshot_rows) } dd { (number(language, capture.snapshot_rows)) } }
            div { dt { (words.lag) } dd { (lag(&visitor, &capture)) } }
            div { dt { (words.retained_wal) } dd { (bytes(capture.retained_wal)) } }
            div { dt { (words.confirmed_up_to) } dd { (position.map_or("–", |position| position.commit_lsn.as_str())) } }
        }
        @if let Some(position) = position.filter(|position| !position.snapshot.is_empty()) {
            p { (words.tables_to_read) ": " @for table in &position.snapshot { code { (table) } " " } }
        }
        div.columns {
            section.card aria-labelledby="processes" { h2 #processes { (words.process) } (processes(&visitor, &capture)) }
            section.card aria-labelledby="declared" { h2 #declared { (words.declared) }
                pre.json tabindex="0" { (pretty(&serde_json::to_string(declared).unwrap_or_default(), &Default::default())) } }
        }
    };
    Ok(Page::new(&name, Part::Captures).live("anything").show(&visitor, Some(now), &main))
}

fn address(declared: &CaptureDeclaration) -> String {
    format!("/ui/captures/{}", segment(&declared.capture_name))
}

fn condition(visitor: &Visitor, capture: &CaptureState) -> Markup {
    let words = visitor.words();
    html! {
        @if capture.declaration.paused == Some(true) { (badge("paused", words.paused)) }
        @else if capture.trouble.is_some() { (badge("away", words.in_trouble)) }
        @else if let Some(reads) = capture.processes.iter().find(|one| one.activity != CaptureActivityName::Standby) { span.muted { (reads.activity.as_str()) } }
    }
}

/// From which tables, to where. What is declared has no passwords in it.
fn flow(declared: &CaptureDeclaration) -> Markup {
    let database = match &declared.database_url {
        SecretDeclaration::Plain(text) => text,
        SecretDeclaration::Env { env } => env,
    };
    html! {
        @for table in declared.tables.iter().take(5) { code { (table) } " " }
        @if declared.tables.len() > 5 { "… " }
        span.muted { (database) }
        " → " (declared.sink.kinds().join(", ")) " " code { (declared.destination.as_deref().unwrap_or_default()) }
    }
}

fn lag(visitor: &Visitor, capture: &CaptureState) -> String {
    let seconds = capture.processes.iter().find_map(|process| process.lag_seconds);
    let lag = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).ok());
    lag.map_or_else(|| "–".to_owned(), |lag| span(visitor.taste.language, lag))
}

/// In the unit that suits it.
fn bytes(bytes: Option<u64>) -> String {
    match bytes {
        None => "–".to_owned(),
        Some(bytes) if bytes < 1 << 20 => format!("{} KiB", bytes.div_ceil(1 << 10)),
        Some(bytes) => format!("{} MiB", bytes >> 20),
    }
}

fn actions(visitor: &Visitor, capture: &CaptureState) -> Markup {
    let (words, base) = (visitor.words(), address(&capture.declaration));
    html! {
        @if visitor.operator.may(OperatorRole::Operator) {
            @if capture.declaration.paused == Some(true) {
                (button(visitor, &format!("{base}/resume"), words.resume, "", &[]))
            } @else {
                (careful(visitor, &format!("{base}/pause"), words.pause, words.pause_capture_question, &[]))
            }
            (careful(visitor, &format!("{base}/snapshot"), words.take_snapshot, words.snapshot_question, &[]))
        }
    }
}

fn processes(visitor: &Visitor, capture: &CaptureState) -> Markup {
    let (words, language) = (visitor.words(), visitor.taste.language);
    html! {
        @if capture.processes.is_empty() { p.muted { (words.no_processes) } } @else {
            div.scroll tabindex="0" { table.dense {
                thead { tr {
                    th scope="col" { (words.process) } th scope="col" { (words.activity) }
                    th.right scope="col" { (words.changes) } th.right scope="col" { (words.snapshot_rows) }
                } }
                tbody { @for process in &capture.processes { tr {
                    th scope="row" { (process.process) }
                    td { (process.activity.as_str()) @if let Some(trouble) = &process.trouble { br; span.error { (trouble) } } }
                    td.right.num { (number(language, process.changes)) }
                    td.right.num { (number(language, process.snapshot_rows)) }
                } } }
            } }
        }
    }
}

/// Pauses it.
pub(crate) async fn pause(Path(name): Path<String>, Sent(visitor, fields): Sent) -> Answer {
    visitor.operator.pause_capture(&name, true).await.or_explain(&visitor)?;
    Ok(done(&fields, "paused", None))
}

/// Lets it go on.
pub(crate) async fn resume(Path(name): Path<String>, Sent(visitor, fields): Sent) -> Answer {
    visitor.operator.pause_capture(&name, false).await.or_explain(&visitor)?;
    Ok(done(&fields, "resumed", None))
}

/// Asks for a snapshot of all its tables.
pub(crate) async fn snapshot(Path(name): Path<String>, Sent(visitor, fields): Sent) -> Answer {
    visitor.operator.request_snapshot(&name, &[]).await.or_explain(&visitor)?;
    Ok(done(&fields, "snapshot-asked", None))
}
