//! All services, what is declared of them and how full they are.

use maud::html;
use relais_protocol::admin::TransportName;

use super::clock;
use crate::{
    error::{Answer, Explained as _},
    gate::Visitor,
    layout::{Page, Part},
    show::{against, ago, at_work, badge, empty, number, service_link},
};

/// The list.
pub(crate) async fn page(visitor: Visitor) -> Answer {
    let (words, language, now) = (visitor.words(), visitor.taste.language, clock());
    let services = visitor.operator.engine().service_states().await.or_explain(&visitor)?;
    let main = html! {
        h1 { (words.services) }
        @if services.is_empty() { (empty(words.no_services, words.no_services_hint)) } @else {
            div.scroll tabindex="0" { table.dense {
                caption.sr-only { (words.services) }
                thead { tr {
                    th scope="col" { (words.service) }
                    th scope="col" { (words.transport) }
                    th.right scope="col" { (words.waiting_tasks) }
                    th.right scope="col" { (words.later) }
                    th.right scope="col" { (words.oldest) }
                    th.right scope="col" { (words.running) }
                    th.right scope="col" { (words.success) }
                    th.right scope="col" { (words.failure) }
                    th.right scope="col" { (words.cancelled) }
                } }
                tbody { @for service in &services {
                    @let declared = &service.declaration;
                    tr {
                        th scope="row" { (service_link(&declared.service_name)) @if declared.paused == Some(true) { " " (badge("paused", words.paused)) } }
                        td { @if declared.transport == Some(TransportName::Rabbitmq) { "RabbitMQ" } @else { (words.builtin) } }
                        td.right { (against(language, service.pending, declared.capacity)) }
                        td.right.num { (number(language, service.waiting)) }
                        td.right { (ago(&visitor, service.oldest_pending_date.as_deref(), now)) }
                        td.right { (at_work(language, service.in_progress, declared.max_running)) }
                        td.right.num { (number(language, service.success)) }
                        td.right.num { (number(language, service.failure)) }
                        td.right.num { (number(language, service.cancelled)) }
                    }
                } }
            } }
        }
    };
    Ok(Page::new(words.services, Part::Services).live("tasks").show(&visitor, Some(now), &main))
}
