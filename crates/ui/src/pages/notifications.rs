//! Notifications: who is connected, what was sent and how it stands, the error log, a test message.

use std::time::Duration;

use axum::{
    extract::State,
    response::{IntoResponse as _, Redirect, Response},
};
use maud::{Markup, html};
use relais_core::Timestamp;
use relais_engine::{EngineError, OperatorRole, Problem};
use relais_notify::{
    AckStatus, Audience, LedgerLine, LinkSummary, MetadataDraft, NotificationDraft, NotificationFilter,
    NotificationType, Notifications, NotifyError, Retry, RoutingDraft, StoredNotification, USER,
};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::{LINES, clock, flash, tasks::first_line};
use crate::{
    Ui,
    error::{Answer, Explained as _, explain},
    form::{Fields, Query},
    gate::{Sent, Visitor},
    layout::{Page, Part},
    show::{ago, badge, button, careful, count, empty, fill, number, pager, visible},
    words::Words,
};

/// Counts by status are of so many of the newest.
const COUNTED: usize = 200;

/// So many of those who have not acknowledged are named in a line of the error log.
const NAMED: usize = 5;

/// So many targets are named for a type of audience.
const TARGETS: usize = 5;

/// The overview tells of what is in the error log since then.
const LATELY: Duration = Duration::from_secs(7 * 86_400);

const STATUSES: [AckStatus; 5] =
    [AckStatus::Open, AckStatus::Acknowledged, AckStatus::Failed, AckStatus::Expired, AckStatus::Withdrawn];

/// A message of the list; with those who have not acknowledged it, if it is in the error log.
struct Listed {
    stored: StoredNotification,
    missing: Vec<LedgerLine>,
}

/// The list.
pub(crate) async fn page(visitor: Visitor, State(ui): State<Ui>, Query(query): Query) -> Answer {
    let (words, now) = (visitor.words(), clock());
    let Some(notifications) = &ui.options.notifications else { return Ok(none_here(&visitor)) };
    let status = query.get("status").and_then(AckStatus::parse);
    let cursor = query.get("cursor").and_then(|cursor| cursor.parse().ok());
    let newest = NotificationFilter { limit: COUNTED, ..NotificationFilter::default() };
    let newest = notifications.list_notifications(newest).await.or_explain(&visitor)?;
    let failed = count_failed(notifications, Timestamp::from_millis(0)).await.or_explain(&visitor)?;
    let filter = NotificationFilter { client: None, status, before: cursor, limit: LINES + 1 };
    let mut found = notifications.list_notifications(filter).await.or_explain(&visitor)?;
    let more = found.len() > LINES;
    found.truncate(LINES);
    let next = found.last().filter(|_| more).map(|last| last.position.to_string());
    let mut listed = Vec::with_capacity(found.len());
    for stored in found {
        let missing = match status {
            Some(AckStatus::Failed) => missing(notifications, &stored).await.or_explain(&visitor)?,
            _ => Vec::new(),
        };
        listed.push(Listed { stored, missing });
    }
    let links = notifications.count_links(TARGETS);
    let main = html! {
        div.head {
            h1 { (words.notifications) }
            div.headtools { a.button href="/ui/notification-sources" { (words.notification_sources) } a.button href="/ui/audiences" { (words.audiences) } }
        }
        (flash(&visitor, &query))
        (tiles(&visitor, &links, failed))
        (tabs(&visitor, status, &newest, failed))
        @if !listed.is_empty() {
            div.scroll tabindex="0" { (table(&visitor, &listed, status == Some(AckStatus::Failed), now)) }
        } @else if status == Some(AckStatus::Failed) {
            (empty(words.nothing_failed, words.nothing_failed_hint))
        } @else {
            (empty(words.no_notifications, words.no_notifications_hint))
        }
        (pager(words, &link(status), query.get("cursor"), next.as_deref()))
        div.columns {
            section.card aria-labelledby="links" { h2 #links { (words.open_links) } (links_table(&visitor, &links)) }
            @if visitor.operator.may(OperatorRole::Operator) {
                section.card aria-labelledby="send" { h2 #send { (words.send_test) } (form(&visitor)) }
            }
        }
    };
    let mut page = Page::new(words.notifications, Part::Notifications);
    if cursor.is_none() {
        page = page.live("notifications");
    }
    Ok(page.show(&visitor, Some(now), &main))
}

/// What is said by a process that has no notifications.
pub(super) fn none_here(visitor: &Visitor) -> Response {
    let words = visitor.words();
    let main = html! {
        h1 { (words.notifications) }
        (empty(words.no_notifications_here, words.no_notifications_here_hint))
    };
    Page::new(words.notifications, Part::Notifications).show(visitor, Some(clock()), &main)
}

/// How many messages of the last days are in the error log, for the overview.
pub(super) async fn failed_lately(notifications: Option<&Notifications>) -> (u64, bool) {
    let Some(notifications) = notifications else { return (0, false) };
    count_failed(notifications, clock().before(LATELY)).await.unwrap_or_else(|error| {
        tracing::debug!(%error, "the error log of notifications could not be read for the overview");
        (0, false)
    })
}

/// How many messages that were emitted since then are in the error log, of a page of it; and whether there are more.
async fn count_failed(notifications: &Notifications, since: Timestamp) -> Result<(u64, bool), NotifyError> {
    let filter =
        NotificationFilter { status: Some(AckStatus::Failed), limit: LINES + 1, ..NotificationFilter::default() };
    let found = notifications.list_notifications(filter).await?;
    let counted = found.iter().filter(|one| moment(one.notification.metadata.timestamp) >= since).count();
    Ok((counted.min(LINES) as u64, counted > LINES))
}

async fn missing(notifications: &Notifications, stored: &StoredNotification) -> Result<Vec<LedgerLine>, NotifyError> {
    match notifications.find_with_lines(stored.notification.metadata.id, NAMED + 1).await {
        Ok((_, lines)) => Ok(lines.into_iter().filter(is_missing).collect()),
        // Purged since the list was read.
        Err(NotifyError::NotFound) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Whether a user must acknowledge and has not.
pub(super) fn is_missing(line: &LedgerLine) -> bool {
    line.awaited && line.acknowledged.is_none()
}

fn link(status: Option<AckStatus>) -> String {
    status.map_or_else(
        || "/ui/notifications".to_owned(),
        |status| format!("/ui/notifications?status={}", status.as_str()),
    )
}

/// A status, with its sign.
pub(super) fn standing(words: &Words, status: AckStatus) -> Markup {
    match status {
        AckStatus::Open => badge("pending", words.notification_open),
        AckStatus::Acknowledged => badge("success", words.notification_acknowledged),
        AckStatus::Failed => badge("failure", words.notification_failed),
        AckStatus::Expired => badge("paused", words.notification_expired),
        AckStatus::Withdrawn => badge("cancelled", words.notification_withdrawn),
    }
}

fn tiles(visitor: &Visitor, links: &LinkSummary, failed: (u64, bool)) -> Markup {
    let (words, language) = (visitor.words(), visitor.taste.language);
    let users = links.types.iter().find(|one| one.kind == USER).map_or(0, |one| one.targets);
    html! {
        dl.tiles {
            div { dt { (words.open_links) } dd { a href="#links" { (number(language, links.links as u64)) } } }
            div { dt { (words.connected_users) } dd { (number(language, users as u64)) } }
            div { dt { (words.error_log) } dd { a href=(link(Some(AckStatus::Failed))) { span class=[(failed.0 > 0).then_some("failed")] { (count(language, failed)) } } } }
        }
    }
}

/// The statuses to choose from, each with how many of the newest messages have it.
fn tabs(visitor: &Visitor, chosen: Option<AckStatus>, newest: &[StoredNotification], failed: (u64, bool)) -> Markup {
    let (words, language) = (visitor.words(), visitor.taste.language);
    let counted = |status: AckStatus| match status {
        AckStatus::Failed => failed,
        status => (newest.iter().filter(|one| one.status == status).count() as u64, false),
    };
    let (of, most) = (number(language, COUNTED as u64), number(language, LINES as u64));
    html! {
        nav.tabs aria-label=(words.status) {
            a href="/ui/notifications" aria-current=[chosen.is_none().then_some("true")] { (words.any) }
            @for status in STATUSES {
                a href=(link(Some(status))) aria-current=[(chosen == Some(status)).then_some("true")] {
                    (standing(words, status)) " " small.num { (count(language, counted(status))) }
                }
            }
        }
        p.hint { (fill(words.counts_hint, &[("n", &of), ("most", &most)])) }
    }
}

fn table(visitor: &Visitor, listed: &[Listed], is_error_log: bool, now: Timestamp) -> Markup {
    let (words, language) = (visitor.words(), visitor.taste.language);
    html! {
        table.dense {
            caption.sr-only { (if is_error_log { words.error_log } else { words.notifications }) }
            thead { tr {
                @if !is_error_log { th scope="col" { (words.status) } }
                th scope="col" { (words.notification) }
                th scope="col" { (words.audience) }
                @if is_error_log { th scope="col" { (words.not_acknowledged) } }
                @if !is_error_log { th.right scope="col" { (words.sent_again) } }
                th.right scope="col" { (words.emitted) }
                th scope="col" { span.sr-only { (words.actions) } }
            } }
            tbody { @for Listed { stored, missing } in listed {
                @let metadata = &stored.notification.metadata;
                @let retry = &stored.notification.routing.retry;
                tr {
                    @if !is_error_log { td { (standing(words, stored.status)) } }
                    td.when { (id_link(metadata.id)) " " span.muted { (type_name(metadata.kind)) " · " (sender(stored)) }
                        br; code.clip.muted { (visible(&first_line(stored.notification.payload.get()))) } }
                    td.when { (audience(visitor, &stored.notification.routing.audience, TARGETS)) }
                    @if is_error_log { td.when { (names(visitor, missing)) } }
                    @if !is_error_log { td.right.num { @if retry.ack_required { (fill(words.n_of, &[("n", &number(language, stored.attempts.into())), ("of", &number(language, retry.limit.into()))])) } @else { span.muted { "–" } } } }
                    td.right { (when(visitor, metadata.timestamp, now)) }
                    td.buttons { (actions(visitor, stored)) }
                }
            } }
        }
    }
}

/// A message by its id.
pub(super) fn id_link(id: Uuid) -> Markup {
    let id = id.to_string();
    html! { a.id href=(format!("/ui/notifications/{id}")) title=(id) { (id.get(..13).unwrap_or(&id)) "…" (id.get(32..).unwrap_or("")) } }
}

pub(super) const fn type_name(kind: NotificationType) -> &'static str {
    match kind {
        NotificationType::Realtime => "REALTIME",
        NotificationType::System => "SYSTEM",
        NotificationType::Notification => "NOTIFICATION",
    }
}

/// Its type, and up to `most` of its targets.
pub(super) fn audience(visitor: &Visitor, audience: &Audience, most: usize) -> Markup {
    let language = visitor.taste.language;
    html! {
        ul.chips {
            li.muted { (visible(&audience.kind)) }
            @for target in audience.targets.iter().take(most) { li { code.name { (visible(target)) } } }
            @if let Some(more) = audience.targets.len().checked_sub(most).filter(|more| *more > 0) {
                li.muted { (fill(visitor.words().and_more, &[("n", &number(language, more as u64))])) }
            }
        }
    }
}

/// The client, and the emitter if it is called otherwise.
pub(super) fn sender(stored: &StoredNotification) -> Markup {
    let emitter = &stored.notification.metadata.emitter;
    html! {
        @match &stored.client {
            Some(client) if client == emitter => (visible(client)),
            Some(client) => { (visible(client)) " (" (visible(emitter)) ")" },
            None => (visible(emitter)),
        }
    }
}

fn names(visitor: &Visitor, missing: &[LedgerLine]) -> Markup {
    html! {
        @if missing.is_empty() { span.muted { "–" } } @else {
            ul.chips {
                @for line in missing.iter().take(NAMED) { li { code.name { (visible(&line.user)) } } }
                @if missing.len() > NAMED { li.muted { (visitor.words().and_others) } }
            }
        }
    }
}

/// The engine's form of a date.
pub(super) fn moment(date: jiff::Timestamp) -> Timestamp {
    Timestamp::from_millis(date.as_millisecond())
}

pub(super) fn when(visitor: &Visitor, date: jiff::Timestamp, now: Timestamp) -> Markup {
    ago(visitor, Some(&moment(date).to_string()), now)
}

/// What can be done with a message.
pub(super) fn actions(visitor: &Visitor, stored: &StoredNotification) -> Markup {
    let (words, base) = (visitor.words(), format!("/ui/notifications/{}", stored.notification.metadata.id));
    html! {
        @if visitor.operator.may(OperatorRole::Operator) {
            @if stored.status == AckStatus::Failed { (button(visitor, &format!("{base}/resend"), words.send_again, "", &[])) }
            @if !matches!(stored.status, AckStatus::Withdrawn | AckStatus::Expired) {
                (careful(visitor, &format!("{base}/withdraw"), words.withdraw, words.withdraw_question, &[]))
            }
        }
    }
}

fn links_table(visitor: &Visitor, summary: &LinkSummary) -> Markup {
    let (words, language) = (visitor.words(), visitor.taste.language);
    let n = |n: usize| number(language, n as u64);
    html! {
        @if summary.links == 0 { p.muted { (words.no_links) } } @else {
            div.scroll tabindex="0" { table.dense {
                caption.sr-only { (words.open_links) }
                thead { tr {
                    th scope="col" { (words.audience_type) } th.right scope="col" { (words.links) }
                    th.right scope="col" { (words.targets) } th scope="col" { (words.most_links) }
                } }
                tbody { @for one in &summary.types { tr {
                    th scope="row" { (visible(&one.kind)) }
                    td.right.num { (n(one.links)) }
                    td.right.num { (n(one.targets)) }
                    td.when { ul.chips { @for (target, links) in &one.largest { li { code.name { (visible(target)) } " " span.muted { (n(*links)) } } } } }
                } } }
            } }
            p.hint { (words.open_links_hint) }
        }
    }
}

fn form(visitor: &Visitor) -> Markup {
    let words = visitor.words();
    html! {
        form.stack method="post" action="/ui/notifications" {
            input type="hidden" name="csrf" value=(visitor.csrf);
            input type="hidden" name="back" value="/ui/notifications";
            div.field { label for="audience" { (words.audience_type) } input #audience name="audience" required value=(USER) spellcheck="false" autocomplete="off"; }
            div.field { label for="targets" { (words.targets) } input #targets name="targets" required placeholder="ann, ben" spellcheck="false" autocomplete="off" aria-describedby="targets-hint"; span.hint #targets-hint { (words.targets_hint) } }
            div.field { label for="payload" { (words.payload) } textarea #payload name="payload" rows="3" required spellcheck="false" { "{\"title\": \"Relais\"}" } }
            label.check { input type="checkbox" name="ackRequired" value="yes"; " " (words.must_acknowledge) }
            p.hint { (words.send_test_hint) }
            button type="submit" { (words.send) }
        }
    }
}

/// Sends a message.
pub(crate) async fn send(State(ui): State<Ui>, Sent(visitor, fields): Sent) -> Answer {
    let Some(notifications) = &ui.options.notifications else { return Ok(none_here(&visitor)) };
    let draft = draft(&fields).map_err(|problem| explain(&visitor, EngineError::Invalid(vec![problem])))?;
    let target = first_line(&draft.routing.audience.to_string());
    let sent = notifications.emit(vec![draft], None, None);
    let sent = visitor.operator.act_elsewhere("notification.send", &target, sent).await;
    let ids = sent.or_explain(&visitor)?.or_explain(&visitor)?;
    let address = ids.first().map_or_else(|| "/ui/notifications".to_owned(), |id| format!("/ui/notifications/{id}"));
    Ok(Redirect::to(&format!("{address}?said=sent")).into_response())
}

fn draft(fields: &Fields) -> Result<NotificationDraft, Problem> {
    let payload = fields.any("payload").unwrap_or_default().trim().to_owned();
    let payload = RawValue::from_string(payload).map_err(|error| Problem::at("payload", error.to_string()))?;
    let targets = fields.get("targets").unwrap_or_default().split(',').map(str::trim);
    let audience = Audience {
        kind: fields.get("audience").unwrap_or(USER).to_owned(),
        targets: targets.filter(|target| !target.is_empty()).map(str::to_owned).collect(),
    };
    let retry = Retry { ack_required: fields.get("ackRequired").is_some(), ..Retry::default() };
    let metadata = MetadataDraft { kind: Some(NotificationType::Notification), ..MetadataDraft::default() };
    Ok(NotificationDraft { metadata, payload: Some(payload), routing: RoutingDraft { audience, retry } })
}
