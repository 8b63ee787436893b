//! Workers: who waits, who works, who is late to say so.

use std::time::Duration;

use maud::html;
use relais_protocol::worker_state::WorkerActivity;

use super::clock;
use crate::{
    error::{Answer, Explained as _},
    gate::Visitor,
    layout::{Page, Part},
    show::{ago, badge, empty, fill, number, progress, service_link, short_span, task_link},
};

/// The list.
pub(crate) async fn page(visitor: Visitor) -> Answer {
    let (words, language, now) = (visitor.words(), visitor.taste.language, clock());
    let workers = visitor.operator.engine().workers().await.or_explain(&visitor)?;
    let main = html! {
        h1 { (words.workers) }
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
    };
    Ok(Page::new(words.workers, Part::Workers).live("anything").show(&visitor, Some(now), &main))
}
