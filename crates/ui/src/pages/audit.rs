//! Who did what.

use maud::html;
use relais_protocol::audit::AuditOutcomeName;

use super::{LINES, clock};
use crate::{
    error::{Answer, Explained as _},
    form::Query,
    gate::Visitor,
    layout::{Page, Part},
    show::{ago, badge, empty, pager, task_link},
};

/// The log.
pub(crate) async fn page(visitor: Visitor, Query(query): Query) -> Answer {
    let (words, now) = (visitor.words(), clock());
    let cursor = query.get("cursor");
    let log = visitor.operator.engine().list_audit(cursor, LINES).await.or_explain(&visitor)?;
    let main = html! {
        h1 { (words.audit_log) }
        @if log.entries.is_empty() { (empty(words.no_audit, words.no_audit_hint)) } @else {
            div.scroll tabindex="0" { table.dense {
                caption.sr-only { (words.audit_log) }
                thead { tr { th.right scope="col" { (words.date) } th scope="col" { (words.who) } th scope="col" { (words.via) } th scope="col" { (words.action) } th scope="col" { (words.target) } th scope="col" { (words.outcome) } th scope="col" { (words.about) } } }
                tbody { @for entry in &log.entries { tr {
                    td.right { (ago(&visitor, Some(&entry.date), now)) }
                    td { (entry.actor) }
                    td { (entry.via) }
                    td { code { (entry.action) } }
                    td { @if relais_core::TaskId::parse(&entry.target).is_some() { (task_link(&entry.target)) } @else { (entry.target) } }
                    td { @match entry.outcome {
                        AuditOutcomeName::Done => (badge("success", words.done)),
                        AuditOutcomeName::Failed => (badge("failure", words.not_done)),
                        AuditOutcomeName::Unknown => span title=(words.outcome_unknown_hint) { (badge("warning", words.outcome_unknown)) },
                    } }
                    td { @if let Some(error) = &entry.error { span.error { (error) } } @else if let Some(detail) = &entry.detail { span.muted { (detail) } } }
                } } }
            } }
        }
        (pager(words, "/ui/audit", cursor, log.next_cursor.as_deref()))
    };
    Ok(Page::new(words.audit_log, Part::Audit).show(&visitor, Some(now), &main))
}
