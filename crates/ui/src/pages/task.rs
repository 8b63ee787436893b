//! One task: where it is in its life and why, what was tried, what was asked and answered, what was told.

use std::collections::HashSet;

use axum::{extract::Path, response::Response};
use maud::{Markup, html};
use relais_core::{BatchId, Condition, TaskId, Timestamp};
use relais_engine::{CallbackQuery, EngineError, OperatorRole, WaitReason};
use relais_protocol::{
    admin::{AdminTaskView, AttemptView},
    callback::CallbackView,
    consumer::TaskStatus,
};

use super::{clock, done, flash, links, tasks::first_line};
use crate::{
    error::{Answer, Explained as _, explain},
    form::Query,
    gate::{Sent, Visitor},
    json::{pretty, secrets},
    layout::{Page, Part},
    search::quoted,
    show::{
        ago, badge, between, button, careful, fill, number, plain_date, progress, search_address, search_link,
        service_link, short_span, span, status, status_class,
    },
    words::Words,
};

/// So many callbacks are shown.
const CALLBACKS: usize = 20;

/// The page of a task.
pub(crate) async fn page(visitor: Visitor, Path(name): Path<String>, Query(query): Query) -> Answer {
    let task_id = parse(&visitor, &name)?;
    let (words, engine, now) = (visitor.words(), visitor.operator.engine(), clock());
    let task = engine.admin_task(task_id).await.or_explain(&visitor)?;
    let reasons = engine.why_waiting(task_id).await.or_explain(&visitor)?;
    let asked = CallbackQuery { task: Some(task_id), limit: CALLBACKS, ..CallbackQuery::default() };
    let callbacks = engine.callbacks(asked).await.or_explain(&visitor)?.callbacks;
    let batch = match task.task.batch_id.as_deref().and_then(BatchId::parse) {
        Some(batch_id) => engine.admin_batch(batch_id).await.ok().map(|shown| shown.batch),
        None => None,
    };
    let schema = engine.service_state(&task.service).await.ok().and_then(|state| state.declaration.json_schema);
    let hidden = secrets(schema.as_ref());
    let view = &task.task;
    let class = status_class(view.status, is_later(&task));
    let title = fill(words.task_title, &[("id", &name)]);
    let main = html! {
        div.head {
            div {
                p.crumbs { a href="/ui/tasks" { (words.tasks) } " / " (search_link(&quoted(&format!("service:{}", task.service)), &task.service)) }
                h1.id { (view.task_id) }
            }
            div.headtools { (status(words, class)) (actions(&visitor, &task)) }
        }
        (flash(&visitor, &query))
        @if view.status == TaskStatus::InProgress { div.big { (progress(words, view.progress.unwrap_or(0.0))) } }
        (waiting(&visitor, &reasons, view.estimated_start_date.as_deref(), now))
        div.columns {
            section.card aria-labelledby="facts" { h2 #facts { (words.facts) } (facts(&visitor, &task, now)) }
            section.card aria-labelledby="timeline" { h2 #timeline { (words.timeline) } (timeline(&visitor, &task)) }
        }
        @if let Some(error) = &view.error_message {
            section.card.bad aria-labelledby="error" {
                h2 #error { (words.error) @if let Some(kind) = &view.error_kind { " " code { (kind) } } }
                pre.error tabindex="0" { (error) }
            }
        }
        (links::card(&visitor, &task, batch.as_ref()))
        (attempts(&visitor, task.attempts.as_deref().unwrap_or_default()))
        div.columns {
            (payload(words.request, "request", task.request.as_deref().map(|raw| raw.get()), &hidden, words.masked))
            (payload(words.response, "response", view.response.as_deref().map(|raw| raw.get()), &hidden, words.masked))
        }
        (told(&visitor, &callbacks, now))
    };
    let live = (!view.status.is_final() || !callbacks.is_empty()).then(|| format!("task:{task_id}"));
    let page = Page { live, ..Page::new(&title, Part::Tasks) };
    Ok(page.show(&visitor, Some(now), &main))
}

fn is_later(task: &AdminTaskView) -> bool {
    task.task.task_position.is_none() && task.task.status == TaskStatus::Pending
}

fn actions(visitor: &Visitor, task: &AdminTaskView) -> Markup {
    let words = visitor.words();
    let id = &task.task.task_id;
    let again = task.task.status.is_final() || is_later(task);
    html! {
        @if visitor.operator.may(OperatorRole::Operator) {
            @if again { (button(visitor, &format!("/ui/tasks/{id}/retry"), words.retry, "", &[])) }
            @if !task.task.status.is_final() {
                (careful(visitor, &format!("/ui/tasks/{id}/cancel"), words.cancel, words.cancel_question, &[]))
            }
        }
    }
}

fn waiting(visitor: &Visitor, reasons: &[WaitReason], estimate: Option<&str>, now: Timestamp) -> Markup {
    let words = visitor.words();
    html! {
        @if !reasons.is_empty() {
            section.card.why aria-labelledby="why" {
                h2 #why { (words.why_waiting) }
                ul { @for reason in reasons { li { (reason_words(visitor, reason, now)) } } }
                @if estimate.is_some() { p.muted { (words.may_start) " " (ago(visitor, estimate, now)) } }
            }
        }
    }
}

fn reason_words(visitor: &Visitor, reason: &WaitReason, now: Timestamp) -> String {
    let (words, language) = (visitor.words(), visitor.taste.language);
    let at = |moment: &Timestamp| {
        let until = if *moment > now { short_span(language, moment.since(now)) } else { "0 s".to_owned() };
        format!("{} ({})", plain_date(&moment.to_string()), fill(words.in_time, &[("t", &until)]))
    };
    let n = |n: u64| number(language, n);
    match reason {
        WaitReason::Scheduled(moment) => fill(words.why_scheduled, &[("date", &at(moment))]),
        WaitReason::Retry { at: moment, failures } => {
            fill(words.why_retry, &[("date", &at(moment)), ("n", &n(u64::from(*failures)))])
        }
        WaitReason::Others { left, when } => {
            let text = match when {
                Condition::AllSucceeded => words.why_all_succeeded,
                Condition::AllEnded => words.why_all_ended,
                Condition::AnyEnded => words.why_any_ended,
            };
            fill(text, &[("n", &n(*left))])
        }
        WaitReason::Paused => words.why_paused.to_owned(),
        WaitReason::ServiceBusy { running, most } => {
            fill(words.why_busy, &[("n", &n(*running)), ("of", &n(u64::from(*most)))])
        }
        WaitReason::ClientBusy { running, most } => {
            fill(words.why_client_busy, &[("n", &n(*running)), ("of", &n(u64::from(*most)))])
        }
        WaitReason::Rate { count, per } => {
            fill(words.why_rate, &[("n", &n(u64::from(*count))), ("t", &span(language, *per))])
        }
        WaitReason::Broker(why) => fill(words.why_broker, &[("why", why)]),
        WaitReason::NoWorker => words.why_no_worker.to_owned(),
        WaitReason::Behind { position } => fill(words.why_behind, &[("n", &n(*position))]),
        WaitReason::Next => words.why_next.to_owned(),
    }
}

fn facts(visitor: &Visitor, task: &AdminTaskView, now: Timestamp) -> Markup {
    let words = visitor.words();
    let view = &task.task;
    html! {
        dl.facts {
            div { dt { (words.service) } dd { (service_link(&task.service)) } }
            div { dt { (words.client) } dd { (search_link(&quoted(&format!("client:{}", task.client_id)), &task.client_id)) } }
            @if let Some(host) = &task.worker_host { div { dt { (words.worker) } dd { code { (host) } } } }
            div { dt { (words.attempt) } dd.num { (task.attempt) @if task.failures > 0 { span.muted { " · " (fill(words.n_failed, &[("n", &task.failures.to_string())])) } } @if task.losses > 0 { span.muted { " · " (fill(words.n_lost, &[("n", &task.losses.to_string())])) } } } }
            @if let Some(position) = view.task_position { div { dt { (words.position) } dd.num { (number(visitor.taste.language, position)) } } }
            @if let Some(priority) = view.priority { div { dt { (words.priority) } dd.num { (priority) } } }
            @if let Some(correlation) = &view.correlation_id {
                div { dt { (words.correlation) } dd { a href=(search_address(&quoted(&format!("correlation:{correlation}")))) { code { (correlation) } } " " span.muted { (words.chain_hint) } } }
            }
            @if let Some(lease) = &task.lease_expires { div { dt { (words.lease) } dd { (ago(visitor, Some(lease), now)) } } }
            @if let Some(deadline) = &task.deadline { div { dt { (words.deadline) } dd { (ago(visitor, Some(deadline), now)) } } }
            @if let Some(told) = &task.notification_status { div { dt { (words.callback) } dd { (notification(words, told)) } } }
        }
    }
}

/// What became of telling.
pub(super) fn notification(words: &Words, status: &str) -> Markup {
    match status {
        "SUCCESS" => badge("delivered", words.told_delivered),
        "FAILURE" => badge("failure", words.told_failed),
        _ => badge("pending", words.told_pending),
    }
}

fn timeline(visitor: &Visitor, task: &AdminTaskView) -> Markup {
    let (words, language) = (visitor.words(), visitor.taste.language);
    let view = &task.task;
    let step = |class: &str, name: &str, date: Option<&str>, since: Option<String>| {
        html! {
            li class=(class) {
                span.what { (name) }
                @if let Some(date) = date { time datetime=(date) { (plain_date(date)) } }
                @if let Some(since) = since { span.took { "+" (since) } }
            }
        }
    };
    let submitted = Some(view.submition_date.as_str());
    let (started, ended) = (view.start_date.as_deref(), view.end_date.as_deref());
    html! {
        ol.timeline {
            (step("done", words.submitted, submitted, None))
            @if let Some(scheduled) = &view.scheduled_date { (step("done", words.asked_for, Some(scheduled), None)) }
            @if let Some(retry) = &view.retry_date { (step("next", words.tried_again, Some(retry), None)) }
            @if started.is_some() {
                (step("done", words.started, started, between(language, submitted, started)))
            } @else if ended.is_none() {
                (step("next", words.not_started, None, None))
            }
            @if ended.is_some() {
                (step(status_class(view.status, false), words.ended, ended, between(language, started.or(submitted), ended)))
            } @else if started.is_some() {
                li.now { span.what { (words.still_running) } @if let Some(started) = started { time datetime=(started) data-since { "" } } }
            }
        }
    }
}

fn attempts(visitor: &Visitor, attempts: &[AttemptView]) -> Markup {
    let (words, language) = (visitor.words(), visitor.taste.language);
    html! {
        @if !attempts.is_empty() {
            section.card aria-labelledby="attempts" {
                h2 #attempts { (words.attempts) }
                div.scroll tabindex="0" {
                    table.dense {
                        thead { tr { th.right scope="col" { "#" } th scope="col" { (words.outcome) } th scope="col" { (words.started) } th.right scope="col" { (words.took) } th scope="col" { (words.worker) } th scope="col" { (words.error) } } }
                        tbody {
                            @for attempt in attempts.iter().rev() {
                                @let class = match attempt.outcome.as_str() { "lost" => "warning", "returned" => "cancelled", other => other };
                                tr {
                                    td.right.num { (attempt.number) }
                                    td { (badge(class, words.outcome_word(&attempt.outcome))) }
                                    td.num { (attempt.start_date.as_deref().map(plain_date).unwrap_or_default()) }
                                    td.right.num { (between(language, attempt.start_date.as_deref(), attempt.end_date.as_deref()).unwrap_or_else(|| "–".to_owned())) }
                                    td { @if let Some(host) = &attempt.worker_host { code { (host) } } }
                                    td { @if let Some(error) = &attempt.error_message {
                                        @if attempt.error_trace.is_some() || error.contains('\n') {
                                            details { summary { @if let Some(kind) = &attempt.error_kind { code { (kind) } " " } (first_line(error)) }
                                                pre.error tabindex="0" { (error) @if let Some(trace) = &attempt.error_trace { "\n\n" (trace) } } }
                                        } @else { @if let Some(kind) = &attempt.error_kind { code { (kind) } " " } span.error { (error) } }
                                    } }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn payload(title: &str, id: &str, json: Option<&str>, hidden: &HashSet<String>, masked: &str) -> Markup {
    html! {
        @if let Some(json) = json {
            section.card aria-labelledby=(id) {
                h2 id=(id) { (title) }
                pre.json tabindex="0" aria-labelledby=(id) { (pretty(json, hidden)) }
                @if !hidden.is_empty() { p.hint { (masked) } }
            }
        }
    }
}

fn told(visitor: &Visitor, callbacks: &[CallbackView], now: Timestamp) -> Markup {
    let words = visitor.words();
    html! {
        @if !callbacks.is_empty() {
            section.card aria-labelledby="told" {
                h2 #told { (words.callbacks) }
                div.scroll tabindex="0" { (super::callbacks::table(visitor, callbacks, false, now)) }
            }
        }
    }
}

fn parse(visitor: &Visitor, name: &str) -> Result<TaskId, Response> {
    TaskId::parse(name).ok_or_else(|| explain(visitor, EngineError::TaskNotFound))
}

/// Does it once more.
pub(crate) async fn retry(Path(name): Path<String>, Sent(visitor, fields): Sent) -> Answer {
    let task_id = parse(&visitor, &name)?;
    visitor.operator.retry_task(task_id).await.or_explain(&visitor)?;
    Ok(done(&fields, "retried", None))
}

/// Gives it up.
pub(crate) async fn cancel(Path(name): Path<String>, Sent(visitor, fields): Sent) -> Answer {
    let task_id = parse(&visitor, &name)?;
    visitor.operator.cancel_task(task_id).await.or_explain(&visitor)?;
    Ok(done(&fields, "cancelled", None))
}
