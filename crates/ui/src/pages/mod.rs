//! The pages, each with what can be done on it.

pub(crate) mod audiences;
pub(crate) mod audit;
pub(crate) mod batch;
pub(crate) mod bulk;
pub(crate) mod callbacks;
pub(crate) mod captures;
pub(crate) mod clients;
pub(crate) mod events;
pub(crate) mod letters;
mod links;
pub(crate) mod notification;
pub(crate) mod notification_sources;
pub(crate) mod notifications;
pub(crate) mod outboxes;
pub(crate) mod overview;
pub(crate) mod schedules;
pub(crate) mod service;
pub(crate) mod services;
pub(crate) mod task;
pub(crate) mod tasks;
pub(crate) mod workers;

use axum::response::{IntoResponse as _, Redirect, Response};
use maud::{Markup, html};
use relais_core::Timestamp;

use crate::{
    form::{Fields, encoded},
    gate::{Visitor, own_page},
    show::{fill, number, sign},
};

/// So many lines a page.
const LINES: usize = 50;

/// Back to the page where a form was, which then says that it was done.
fn done(fields: &Fields, said: &str, count: Option<u64>) -> Response {
    let mut back = own_page(fields.get("back"));
    // What was said before is said.
    if let Some((path, query)) = back.clone().split_once('?') {
        let kept: Vec<&str> =
            query.split('&').filter(|pair| !pair.starts_with("said=") && !pair.starts_with("n=")).collect();
        back = if kept.is_empty() { path.to_owned() } else { format!("{path}?{}", kept.join("&")) };
    }
    let joint = if back.contains('?') { '&' } else { '?' };
    let count = count.map(|count| format!("&n={count}")).unwrap_or_default();
    Redirect::to(&format!("{back}{joint}said={}{count}", encoded(said))).into_response()
}

/// What was done, where a form has led back here.
fn flash(visitor: &Visitor, query: &Fields) -> Markup {
    let words = visitor.words();
    let text = match query.get("said") {
        Some("retried") => words.said_retried,
        Some("cancelled") => words.said_cancelled,
        Some("paused") => words.said_paused,
        Some("resumed") => words.said_resumed,
        Some("limits") => words.said_limits,
        Some("ran") => words.said_ran,
        Some("resent") => words.said_resent,
        Some("replayed") => words.said_replayed,
        Some("discarded") => words.said_discarded,
        Some("resolved") => words.said_resolved,
        Some("closed") => words.said_closed,
        Some("batch-cancelled") => words.said_batch_cancelled,
        Some("snapshot-asked") => words.said_snapshot_asked,
        Some("events-retried") => words.said_events_retried,
        Some("events-skipped") => words.said_events_skipped,
        Some("notification-resent") => words.said_notification_resent,
        Some("withdrawn") => words.said_withdrawn,
        Some("sent") => words.said_sent,
        Some("published") => words.said_published,
        _ => return html! {},
    };
    let count = query.get("n").and_then(|n| n.parse().ok()).unwrap_or(1);
    let text = fill(text, &[("n", &number(visitor.taste.language, count))]);
    html! { p.flash.good role="status" { (sign("success")) (text) } }
}

/// The database's time, as well as it is known without asking.
fn clock() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
