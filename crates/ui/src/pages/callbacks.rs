//! Callbacks: what became of them, each try, and sending them again.

use std::time::Duration;

use axum::{extract::Path, response::Response};
use maud::{Markup, html};
use relais_core::{CallbackId, CallbackStatus, Timestamp};
use relais_engine::{CallbackQuery, EngineError, OperatorRole};
use relais_protocol::{HumanDuration, callback::CallbackView};

use super::{LINES, clock, done, flash, task::notification};
use crate::{
    error::{Answer, Explained as _, explain},
    form::{Query, encoded},
    gate::{Sent, Visitor},
    layout::{Page, Part},
    show::{ago, badge, button, empty, number, pager, plain_date, service_link, span, task_link},
};

/// The list.
pub(crate) async fn page(visitor: Visitor, Query(query): Query) -> Answer {
    let (words, now) = (visitor.words(), clock());
    let status = query.get("status").and_then(CallbackStatus::parse);
    let service = query.get("service").map(str::to_owned);
    let cursor = query.get("cursor").map(str::to_owned);
    let asked = CallbackQuery {
        service: service.clone(),
        status,
        cursor: cursor.clone(),
        limit: LINES,
        ..CallbackQuery::default()
    };
    let page = visitor.operator.engine().callbacks(asked).await.or_explain(&visitor)?;
    let chosen = status.map(|status| status.as_str());
    let link = |status: Option<&str>| {
        let service = service.as_ref().map(|service| format!("service={}", encoded(service)));
        let status = status.map(|status| format!("status={status}"));
        let pairs: Vec<String> = service.into_iter().chain(status).collect();
        format!("/ui/callbacks?{}", pairs.join("&"))
    };
    let main = html! {
        h1 { (words.callbacks) @if let Some(service) = &service { " · " (service) } }
        (flash(&visitor, &query))
        nav.tabs aria-label=(words.status) {
            a href=(link(None)) aria-current=[chosen.is_none().then_some("true")] { (words.any) }
            @for status in ["PENDING", "SUCCESS", "FAILURE"] {
                a href=(link(Some(status))) aria-current=[(chosen == Some(status)).then_some("true")] { (notification(words, status)) }
            }
        }
        @if page.callbacks.is_empty() { (empty(words.no_callbacks, words.no_callbacks_hint)) } @else {
            div.scroll tabindex="0" { (table(&visitor, &page.callbacks, true, now)) }
        }
        (pager(words, &link(chosen), cursor.as_deref(), page.next_cursor.as_deref()))
        @if visitor.operator.may(OperatorRole::Operator) {
            section.card aria-labelledby="resend" {
                h2 #resend { (words.resend_failed) }
                form.row method="post" action="/ui/callbacks/redeliver" {
                    input type="hidden" name="csrf" value=(visitor.csrf);
                    input type="hidden" name="back" value=(visitor.taste.here);
                    @if let Some(service) = &service { input type="hidden" name="service" value=(service); }
                    label for="since" { (words.failed_since) }
                    select #since name="since" { @for since in ["15m", "1h", "6h", "1d", "7d"] { option value=(since) selected[since == "1h"] { (since) } } }
                    button type="submit" { (words.send_again) }
                }
            }
        }
    };
    let mut shown = Page::new(words.callbacks, Part::Callbacks);
    if cursor.is_none() {
        shown = shown.live("anything");
    }
    Ok(shown.show(&visitor, Some(now), &main))
}

/// Callbacks, line by line.
pub(super) fn table(visitor: &Visitor, callbacks: &[CallbackView], with_task: bool, now: Timestamp) -> Markup {
    let words = visitor.words();
    let may = visitor.operator.may(OperatorRole::Operator);
    html! {
        table.dense {
            caption.sr-only { (words.callbacks) }
            thead { tr {
                th scope="col" { (words.status) }
                th scope="col" { (words.event) }
                @if with_task { th scope="col" { (words.task) } th scope="col" { (words.service) } }
                th scope="col" { (words.target) }
                th.right scope="col" { (words.tries) }
                th.right scope="col" { (words.created) }
                th.right scope="col" { (words.next_try) }
                th scope="col" { span.sr-only { (words.actions) } }
            } }
            tbody { @for callback in callbacks { tr {
                td { a.plain href=(format!("/ui/callbacks/{}", callback.callback_id)) { (notification(words, &callback.notification_status)) } }
                td { (callback.event) }
                @if with_task { td { (task_link(&callback.task_id)) } td { (service_link(&callback.service)) } }
                td.target { span.muted { (callback.kind) " " } (callback.target) }
                td.right.num { (callback.attempts) }
                td.right { (ago(visitor, Some(&callback.created_date), now)) }
                td.right { (ago(visitor, callback.next_attempt_date.as_deref(), now)) }
                td.buttons { @if may { (button(visitor, &format!("/ui/callbacks/{}/redeliver", callback.callback_id), words.send_again, "", &[])) } }
            } } }
        }
    }
}

/// The page of a callback.
pub(crate) async fn one(visitor: Visitor, Path(name): Path<String>, Query(query): Query) -> Answer {
    let (words, language, now) = (visitor.words(), visitor.taste.language, clock());
    let callback = visitor.operator.engine().callback(parse(&visitor, &name)?).await.or_explain(&visitor)?;
    let main = html! {
        div.head {
            div { p.crumbs { a href="/ui/callbacks" { (words.callbacks) } } h1.id { (name) } }
            div.headtools { (notification(words, &callback.notification_status))
                @if visitor.operator.may(OperatorRole::Operator) { (button(&visitor, &format!("/ui/callbacks/{name}/redeliver"), words.send_again, "", &[])) } }
        }
        (flash(&visitor, &query))
        section.card { dl.facts {
            div { dt { (words.task) } dd { (task_link(&callback.task_id)) } }
            div { dt { (words.service) } dd { (service_link(&callback.service)) } }
            div { dt { (words.client) } dd { (callback.client_id) } }
            div { dt { (words.event) } dd { (callback.event) } }
            div { dt { (words.target) } dd { code { (callback.target) } } }
            div { dt { (words.created) } dd { (ago(&visitor, Some(&callback.created_date), now)) } }
            div { dt { (words.next_try) } dd { (ago(&visitor, callback.next_attempt_date.as_deref(), now)) } }
        } }
        section.card aria-labelledby="tries" { h2 #tries { (words.tries) }
            div.scroll tabindex="0" { table.dense {
                thead { tr { th.right scope="col" { "#" } th scope="col" { (words.date) } th.right scope="col" { (words.took) } th scope="col" { (words.answer) } th scope="col" { (words.error) } } }
                tbody { @for attempt in callback.tries.as_deref().unwrap_or_default().iter().rev() { tr {
                    td.right.num { (number(language, u64::from(attempt.number))) }
                    td.num { (plain_date(&attempt.date)) }
                    td.right.num { (span(language, Duration::from_millis(attempt.duration_ms))) }
                    td { @if let Some(status) = attempt.status { (badge(if (200..300).contains(&status) { "delivered" } else { "failure" }, &status.to_string())) " " } @if let Some(answer) = &attempt.answer { code { (super::tasks::first_line(answer)) } } }
                    td { @if let Some(error) = &attempt.error { span.error { (error) } } }
                } } }
            } } }
    };
    Ok(Page::new(&name, Part::Callbacks).live(format!("task:{}", callback.task_id)).show(&visitor, Some(now), &main))
}

fn parse(visitor: &Visitor, name: &str) -> Result<CallbackId, Response> {
    CallbackId::parse(name).ok_or_else(|| explain(visitor, EngineError::CallbackNotFound))
}

/// Sends one again.
pub(crate) async fn redeliver(Path(name): Path<String>, Sent(visitor, fields): Sent) -> Answer {
    let id = parse(&visitor, &name)?;
    visitor.operator.redeliver(id).await.or_explain(&visitor)?;
    Ok(done(&fields, "resent", Some(1)))
}

/// Sends all again that failed lately.
pub(crate) async fn redeliver_failed(Sent(visitor, fields): Sent) -> Answer {
    let since: HumanDuration =
        fields.get("since").and_then(|text| text.parse().ok()).unwrap_or(HumanDuration(Duration::from_secs(3600)));
    let resent = visitor.operator.redeliver_failed(clock().before(since.0), fields.get("service"), None).await;
    Ok(done(&fields, "resent", Some(resent.or_explain(&visitor)?)))
}
