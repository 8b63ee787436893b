//! Workers: who waits, who works, who is late to say so.

use std::time::Duration;

use axum::extract::Path;
use maud::{Markup, html};
use relais_core::Timestamp;
use relais_engine::OperatorRole;
use relais_protocol::{
    instance::{DecisionName, InstanceView},
    worker_state::WorkerActivity,
};

use super::{clock, done, flash};
use crate::{
    error::{Answer, Explained as _},
    form::{Query, segment},
    gate::{Sent, Visitor},
    layout::{Page, Part},
    show::{ago, badge, careful, empty, fill, number, progress, service_link, short_span, task_link},
};

/// The list.
pub(crate) async fn page(visitor: Visitor, Query(query): Query) -> Answer {
    let (words, language, now) = (visitor.words(), visitor.taste.language, clock());
    let workers = visitor.operator.engine().workers().await.or_explain(&visitor)?;
    let instances = visitor.operator.engine().instances().await.or_explain(&visitor)?.instances;
    let main = html! {
        h1 { (words.workers) }
        (flash(&visitor, &query))
        @if workers.is_empty() { (empty(words.no_workers, words.no_workers_hint)) } @else {
            div.scroll tabindex="0" { table.dense {
                caption.sr-only { (words.workers) }
                thead { tr {
                    th scope="col" { (words.worker) }
                    th scope="col" { (words.state) }
                    th scope="col" { (words.service) }
                    th.right scope="col" { (words.running) }
                    th.right scope="col" { (words.free_slots) }
                    th.right scope="col" { (words.heard) }
                    th scope="col" { (words.version) }
                    th scope="col" { (words.tasks) }
                } }
                tbody { @for worker in &workers {
                    @let (class, name) = match worker.activity {
                        WorkerActivity::Waiting => ("up", words.worker_waiting),
                        WorkerActivity::Busy => ("busy", words.worker_busy),
                        WorkerActivity::Silent => ("silent", words.worker_silent),
                        WorkerActivity::Quiet => ("later", words.worker_quiet),
                    };
                    tr {
                        th scope="row" { @match &worker.host_name { Some(host) => code { (host) }, None => span.muted { (words.nameless) } } }
                        td { (badge(class, name)) }
                        td { (service_link(&worker.service)) span.muted { " · " (if worker.transport == "rabbitmq" { "RabbitMQ" } else { "HTTP" }) } }
                        td.right.num { (number(language, worker.running as u64)) }
                        td.right.num { @if worker.asks_for > 0 { (number(language, worker.asks_for as u64)) } @else { span.muted { "–" } } }
                        td.right.num { @match worker.seen_seconds_ago {
                            Some(seconds) => (fill(words.ago, &[("t", &short_span(language, Duration::from_secs_f64(seconds.max(0.0))))])),
                            None => span.muted title=(words.heard_elsewhere) { "–" },
                        } }
                        td { @if let Some(version) = &worker.version { code { (version) } } }
                        td { ul.plain { @for task in &worker.tasks { li { (task_link(&task.task_id)) " " (progress(words, task.progress)) " " (ago(&visitor, task.start_date.as_deref(), now)) } }
                            @if worker.running > worker.tasks.len() { li.muted { (fill(words.and_more, &[("n", &number(language, (worker.running - worker.tasks.len()) as u64))])) } } } }
                    }
                } }
            } }
        }
        p.hint { (words.workers_hint) }
        (processes(&visitor, &instances, now))
    };
    Ok(Page::new(words.workers, Part::Workers).live("anything").show(&visitor, Some(now), &main))
}

/// The processes on the store: servers, and programs that do tasks themselves.
fn processes(visitor: &Visitor, instances: &[InstanceView], now: Timestamp) -> Markup {
    let (words, language) = (visitor.words(), visitor.taste.language);
    html! {
        @if !instances.is_empty() {
            section aria-labelledby="processes" {
                h2 #processes { (words.processes) }
                div.scroll tabindex="0" { table.dense {
                    thead { tr {
                        th scope="col" { (words.name) }
                        th scope="col" { (words.state) }
                        th scope="col" { (words.host) }
                        th scope="col" { (words.version) }
                        th scope="col" { (words.crash_policy) }
                        th.right scope="col" { (words.leased) }
                        th.right scope="col" { (words.started) }
                        th.right scope="col" { (words.heard) }
                        th scope="col" { span.sr-only { (words.actions) } }
                    } }
                    tbody { @for instance in instances {
                        @let (class, state) = match instance.status.as_str() {
                            "alive" => ("up", words.process_alive),
                            "undecided" => ("bad", words.process_undecided),
                            _ => ("silent", words.worker_silent),
                        };
                        tr {
                            th scope="row" { code { (instance.name) } }
                            td { (badge(class, state)) }
                            td { @if let Some(host) = &instance.host_name { code { (host) } } }
                            td { (instance.version) }
                            td { (instance.crash_policy) }
                            td.right.num { (number(language, instance.in_hand)) }
                            td.right { (ago(visitor, Some(&instance.start_date), now)) }
                            td.right { (ago(visitor, Some(&instance.last_seen_date), now)) }
                            td.buttons { @if instance.status == "undecided" && visitor.operator.may(OperatorRole::Operator) {
                                @let action = format!("/ui/instances/{}", segment(&instance.name));
                                (careful(visitor, &action, words.do_again, words.do_again_question, &[("decision", "restart")]))
                                (careful(visitor, &action, words.let_fail, words.let_fail_question, &[("decision", "fail")]))
                            } }
                        }
                    } }
                } }
            }
        }
    }
}

/// Decides what becomes of the tasks of a process that died.
pub(crate) async fn resolve(Path(name): Path<String>, Sent(visitor, fields): Sent) -> Answer {
    let decision = match fields.get("decision") {
        Some("fail") => DecisionName::Fail,
        _ => DecisionName::Restart,
    };
    let done_with = visitor.operator.resolve_instance(&name, decision).await.or_explain(&visitor)?;
    Ok(done(&fields, "resolved", Some(done_with.tasks as u64)))
}
