//! One notification: what it says, to whom, and its ledger.

use axum::{
    extract::{Path, State},
    response::Response,
};
use maud::{Markup, html};
use relais_core::Timestamp;
use relais_notify::{AckStatus, Backoff, ChangeOperation, LedgerLine, NotifyError, Priority, StoredNotification};
use uuid::Uuid;

use super::{
    clock, done, flash,
    notifications::{actions, audience, id_link, is_missing, none_here, sender, standing, type_name, when},
};
use crate::{
    Ui,
    error::{Answer, Explained as _, explain_notify},
    form::Query,
    gate::{Sent, Visitor},
    json::pretty,
    layout::{Page, Part},
    show::{badge, fill, number, visible},
};

/// So many targets are named.
const TARGETS: usize = 100;

/// The page.
pub(crate) async fn page(
    visitor: Visitor,
    State(ui): State<Ui>,
    Path(name): Path<String>,
    Query(query): Query,
) -> Answer {
    let (words, now) = (visitor.words(), clock());
    let Some(notifications) = &ui.options.notifications else { return Ok(none_here(&visitor)) };
    let (stored, ledger) = notifications.find_notification(parse(&visitor, &name)?).await.or_explain(&visitor)?;
    let awaited = ledger.iter().filter(|line| is_missing(line)).count();
    let main = html! {
        div.head {
            div { p.crumbs { a href="/ui/notifications" { (words.notifications) } } h1.id { (stored.notification.metadata.id) } }
            div.headtools { (standing(words, stored.status)) (actions(&visitor, &stored)) }
        }
        (flash(&visitor, &query))
        div.columns {
            section.card aria-labelledby="facts" { h2 #facts { (words.facts) } (facts(&visitor, &stored, now)) }
            section.card aria-labelledby="payload" { h2 #payload { (words.payload) }
                pre.json tabindex="0" aria-labelledby="payload" { (pretty(stored.notification.payload.get(), &Default::default())) } }
        }
        section.card aria-labelledby="ledger" {
            h2 #ledger { (words.ledger)
                @if awaited > 0 && matches!(stored.status, AckStatus::Open | AckStatus::Failed) {
                    (badge(if stored.status == AckStatus::Failed { "failure" } else { "waiting" }, &fill(words.n_awaited, &[("n", &number(visitor.taste.language, awaited as u64))])))
                } }
            @if ledger.is_empty() { p.muted { (words.ledger_empty) } } @else { (lines(&visitor, &ledger, now)) p.hint { (words.ledger_hint) } }
        }
    };
    Ok(Page::new(&name, Part::Notifications).live("notifications").show(&visitor, Some(now), &main))
}

fn facts(visitor: &Visitor, stored: &StoredNotification, now: Timestamp) -> Markup {
    let (words, language) = (visitor.words(), visitor.taste.language);
    let (metadata, routing) = (&stored.notification.metadata, &stored.notification.routing);
    let retry = &routing.retry;
    let priority = match metadata.priority {
        Priority::Low => "LOW",
        Priority::Normal => "NORMAL",
        Priority::High => "HIGH",
    };
    let operation = metadata.operation.map(|operation| match operation {
        ChangeOperation::Create => "create",
        ChangeOperation::Update => "update",
        ChangeOperation::Delete => "delete",
    });
    let backoff = match retry.backoff {
        Backoff::Fixed => "FIXED",
        Backoff::Linear => "LINEAR",
        Backoff::Exponential => "EXPONENTIAL",
    };
    html! {
        dl.facts {
            div { dt { (words.audience) } dd { (audience(visitor, &routing.audience, TARGETS)) } }
            div { dt { (words.kind) } dd { (type_name(metadata.kind)) } }
            div { dt { (words.priority) } dd { (priority) } }
            div { dt { (words.sender) } dd { (sender(stored)) } }
            @if let Some(source) = &metadata.source { div { dt { (words.source) } dd { code.wrap { (visible(source)) } } } }
            @if let Some(topic) = &metadata.topic { div { dt { (words.topic) } dd { code.wrap { (visible(topic)) } } } }
            @if let Some(operation) = operation { div { dt { (words.operation) } dd { (operation) } } }
            div { dt { (words.emitted) } dd { (when(visitor, metadata.timestamp, now)) } }
            div { dt { (words.expires) } dd { (when(visitor, metadata.expiration, now)) } }
            div { dt { (words.must_acknowledge) } dd { (if retry.ack_required { words.yes } else { words.no }) } }
            @if retry.ack_required {
                div { dt { (words.sent_again) } dd { (fill(words.n_of, &[("n", &number(language, stored.attempts.into())), ("of", &number(language, retry.limit.into()))])) } }
                @if retry.enabled { div { dt { (words.backoff) } dd { (backoff) } } }
            }
            @if let Some(other) = stored.replaced_by { div { dt { (words.replaced_by) } dd { (id_link(other)) } } }
        }
    }
}

fn lines(visitor: &Visitor, ledger: &[LedgerLine], now: Timestamp) -> Markup {
    let (words, language) = (visitor.words(), visitor.taste.language);
    let date = |date: Option<jiff::Timestamp>| {
        html! {
            @match date { Some(date) => (when(visitor, date, now)), None => span.muted { "–" } }
        }
    };
    html! {
        div.scroll tabindex="0" { table.dense {
            caption.sr-only { (words.ledger) }
            thead { tr {
                th scope="col" { (words.user) } th scope="col" { (words.awaited) }
                th.right scope="col" { (words.deliveries) } th.right scope="col" { (words.last_delivery) }
                th.right scope="col" { (words.notification_acknowledged) }
            } }
            tbody { @for line in ledger { tr {
                th scope="row" { (visible(&line.user)) }
                td { @if is_missing(line) { (badge("waiting", words.yes)) } @else if line.awaited { (words.yes) } @else { span.muted { (words.no) } } }
                td.right.num { (number(language, line.deliveries.into())) }
                td.right { (date(line.delivered)) }
                td.right { (date(line.acknowledged)) }
            } } }
        } }
    }
}

fn parse(visitor: &Visitor, name: &str) -> Result<Uuid, Response> {
    name.parse().map_err(|_| explain_notify(visitor, &NotifyError::NotFound))
}

/// Sends a message of the error log again.
pub(crate) async fn resend(Path(name): Path<String>, State(ui): State<Ui>, Sent(visitor, fields): Sent) -> Answer {
    let Some(notifications) = &ui.options.notifications else { return Ok(none_here(&visitor)) };
    let id = parse(&visitor, &name)?;
    let resent = notifications.resend(id, None);
    let resent = visitor.operator.act_elsewhere("notification.resend", &id.to_string(), resent).await;
    resent.or_explain(&visitor)?.or_explain(&visitor)?;
    Ok(done(&fields, "notification-resent", None))
}

/// Withdraws a message.
pub(crate) async fn withdraw(Path(name): Path<String>, State(ui): State<Ui>, Sent(visitor, fields): Sent) -> Answer {
    let Some(notifications) = &ui.options.notifications else { return Ok(none_here(&visitor)) };
    let id = parse(&visitor, &name)?;
    let withdrawn = notifications.withdraw(id, None);
    let withdrawn = visitor.operator.act_elsewhere("notification.withdraw", &id.to_string(), withdrawn).await;
    withdrawn.or_explain(&visitor)?.or_explain(&visitor)?;
    Ok(done(&fields, "withdrawn", None))
}
