//! One batch: how far its tasks are, by the counters that it keeps.

use axum::{extract::Path, response::Response};
use maud::html;
use relais_core::BatchId;
use relais_engine::{EngineError, OperatorRole};
use relais_protocol::batch::BatchStatusName;

use super::{clock, done, flash, links::so_far, task::notification};
use crate::{
    error::{Answer, Explained as _, explain},
    form::Query,
    gate::{Sent, Visitor},
    layout::{Page, Part},
    search::quoted,
    show::{ago, badge, careful, fill, number, search_address, search_link, status},
};

/// The page of a batch.
pub(crate) async fn page(visitor: Visitor, Path(name): Path<String>, Query(query): Query) -> Answer {
    let batch_id = parse(&visitor, &name)?;
    let (words, language, now) = (visitor.words(), visitor.taste.language, clock());
    let shown = visitor.operator.engine().admin_batch(batch_id).await.or_explain(&visitor)?;
    let batch = &shown.batch;
    let (class, state) = match batch.status {
        BatchStatusName::Open => ("pending", words.batch_open),
        BatchStatusName::InProgress => ("running", words.running),
        BatchStatusName::Ended if batch.failure + batch.cancelled > 0 => ("warning", words.ended),
        BatchStatusName::Ended => ("success", words.ended),
    };
    let counts = [
        ("pending", "pending", batch.pending),
        ("running", "running", batch.in_progress),
        ("success", "success", batch.success),
        ("failure", "failure", batch.failure),
        ("cancelled", "cancelled", batch.cancelled),
    ];
    let act = |what: &str| format!("/ui/batches/{batch_id}/{what}");
    let main = html! {
        div.head {
            div { p.crumbs { a href="/ui/tasks" { (words.tasks) } } h1.id { (batch.batch_id) } }
            div.headtools {
                (badge(class, state))
                @if visitor.operator.may(OperatorRole::Operator) {
                    @if batch.status == BatchStatusName::Open { (careful(&visitor, &act("close"), words.close, words.close_batch_question, &[])) }
                    @if batch.status != BatchStatusName::Ended { (careful(&visitor, &act("cancel"), words.cancel, words.cancel_batch_question, &[])) }
                }
            }
        }
        (flash(&visitor, &query))
        p.lead { (so_far(&visitor, batch)) }
        div.columns {
            section.card aria-labelledby="counts" {
                h2 #counts { (words.tasks) }
                dl.facts { @for (class, word, count) in counts {
                    div { dt { (status(words, class)) } dd.num { a href=(search_address(&format!("batch:{batch_id} status:{word}"))) { (number(language, count)) } } }
                } }
                p { (search_link(&format!("batch:{batch_id}"), words.as_a_list)) }
            }
            section.card aria-labelledby="facts" {
                h2 #facts { (words.facts) }
                dl.facts {
                    div { dt { (words.client) } dd { (search_link(&quoted(&format!("client:{}", shown.client_id)), &shown.client_id)) } }
                    div { dt { (words.submitted) } dd { (ago(&visitor, Some(&batch.submition_date), now)) } }
                    @if let Some(closed) = &batch.close_date { div { dt { (words.closed) } dd { (ago(&visitor, Some(closed), now)) } } }
                    @if let Some(ended) = &batch.end_date { div { dt { (words.ended) } dd { (ago(&visitor, Some(ended), now)) } } }
                    @if let Some(correlation) = &batch.correlation_id {
                        div { dt { (words.correlation) } dd { a href=(search_address(&quoted(&format!("correlation:{correlation}")))) { code { (correlation) } } } }
                    }
                    @if let Some(told) = &shown.notification_status { div { dt { (words.callback) } dd { (notification(words, told)) } } }
                }
            }
        }
    };
    let title = fill(words.batch_title, &[("id", &name)]);
    let page = Page::new(&title, Part::Tasks);
    let page = if batch.status == BatchStatusName::Ended { page } else { page.live("tasks") };
    Ok(page.show(&visitor, Some(now), &main))
}

fn parse(visitor: &Visitor, name: &str) -> Result<BatchId, Response> {
    BatchId::parse(name).ok_or_else(|| explain(visitor, EngineError::BatchNotFound))
}

/// Takes no more tasks into it.
pub(crate) async fn close(Path(name): Path<String>, Sent(visitor, fields): Sent) -> Answer {
    let batch_id = parse(&visitor, &name)?;
    visitor.operator.close_batch(batch_id).await.or_explain(&visitor)?;
    Ok(done(&fields, "closed", None))
}

/// Gives up all of its tasks that have not ended.
pub(crate) async fn cancel(Path(name): Path<String>, Sent(visitor, fields): Sent) -> Answer {
    let batch_id = parse(&visitor, &name)?;
    visitor.operator.cancel_batch(batch_id).await.or_explain(&visitor)?;
    Ok(done(&fields, "batch-cancelled", None))
}
