//! Many tasks at once: first what would be done, then, when it is confirmed, doing it.

use maud::{Markup, html};
use relais_core::Status;
use relais_engine::{EngineError, OperatorRole, Selected, Selection};
use relais_protocol::admin::AdminTaskView;

use super::{clock, done, tasks::MOST_COUNTED};
use crate::{
    error::{Answer, Explained as _, explain},
    gate::{Sent, Visitor, own_page},
    layout::{Page, Part},
    search::Search,
    show::{ago, count, fill, number, service_link, status, status_class, task_link},
};

/// So many are shown of those that would be meant.
const SHOWN: usize = 10;

/// So many batches are done in one request; then one is asked again.
const BATCHES: usize = 20;

/// Previews, or does.
pub(crate) async fn act(Sent(visitor, fields): Sent) -> Answer {
    let retry = fields.get("do") == Some("retry");
    if !visitor.operator.may(OperatorRole::Operator) {
        return Err(explain(&visitor, EngineError::NotAllowed(OperatorRole::Operator)));
    }
    let text = fields.any("q").unwrap_or_default();
    let all = fields.get("which") == Some("all");
    let mut selection = match all {
        true => Search::parse(text, clock()).selection,
        false => Selection { tasks: fields.all("task"), ..Selection::default() },
    };
    if all {
        // What was submitted after the preview was not meant.
        if let Some(before) = fields.get("before").and_then(relais_core::Timestamp::parse) {
            selection.before = Some(selection.before.map_or(before, |bound| bound.min(before)));
        }
        selection.statuses = meant(&selection.statuses, retry);
        selection.cursor = fields.get("cursor").map(str::to_owned);
    }
    if fields.get("confirmed").is_none() {
        return preview(&visitor, &selection, all, retry, text, own_page(fields.get("back")).as_str()).await;
    }
    let mut total = Selected::default();
    for _ in 0..BATCHES {
        let some = match retry {
            true => visitor.operator.retry_tasks(selection.clone(), false).await,
            false => visitor.operator.cancel_tasks(selection.clone(), false).await,
        };
        let some = some.or_explain(&visitor)?;
        total.changed += some.changed;
        total.passed_over += some.passed_over;
        total.next_cursor.clone_from(&some.next_cursor);
        selection.cursor = some.next_cursor;
        if selection.cursor.is_none() {
            break;
        }
    }
    if total.next_cursor.is_some() {
        return Ok(more(&visitor, &selection, retry, text, &total, &own_page(fields.get("back"))));
    }
    Ok(done(&fields, if retry { "retried" } else { "cancelled" }, Some(total.changed)))
}

/// Those of the statuses that make sense; all that do if none was named.
fn meant(statuses: &[Status], retry: bool) -> Vec<Status> {
    let fits = |status: &Status| status.is_final() == retry;
    let named: Vec<Status> = statuses.iter().copied().filter(fits).collect();
    match (named.is_empty(), retry) {
        (false, _) => named,
        (true, true) => vec![Status::Failure],
        (true, false) => vec![Status::Pending, Status::InProgress],
    }
}

async fn preview(visitor: &Visitor, selection: &Selection, all: bool, retry: bool, text: &str, back: &str) -> Answer {
    let (words, language, engine, now) = (visitor.words(), visitor.taste.language, visitor.operator.engine(), clock());
    if !all && selection.tasks.is_empty() {
        return Ok(crate::layout::problem(visitor, axum::http::StatusCode::BAD_REQUEST, words.nothing_chosen));
    }
    let (counted, tasks): (String, Vec<AdminTaskView>) = if all {
        let counted = engine.count_selected(selection, MOST_COUNTED).await.or_explain(visitor)?;
        let (tasks, _) = engine.list_selected(selection, SHOWN).await.or_explain(visitor)?;
        (count(language, counted), tasks)
    } else {
        let would = match retry {
            true => visitor.operator.retry_tasks(selection.clone(), true).await,
            false => visitor.operator.cancel_tasks(selection.clone(), true).await,
        };
        let mut tasks = Vec::new();
        for name in selection.tasks.iter().take(SHOWN) {
            if let Some(task_id) = relais_core::TaskId::parse(name)
                && let Ok(task) = engine.admin_task(task_id).await
            {
                tasks.push(task);
            }
        }
        (number(language, would.or_explain(visitor)?.changed), tasks)
    };
    let title = if retry { words.retry_title } else { words.cancel_title };
    let main = html! {
        h1 { (fill(title, &[("n", &counted)])) }
        p { (if retry { words.retry_means } else { words.cancel_means }) }
        @if all { p.muted { code { (selection.to_string()) } } }
        table.dense {
            caption.sr-only { (words.tasks) }
            thead { tr { th scope="col" { (words.status) } th scope="col" { (words.task) } th scope="col" { (words.service) } th scope="col" { (words.client) } th.right scope="col" { (words.submitted) } } }
            tbody {
                @for task in &tasks {
                    tr {
                        td { (status(words, status_class(task.task.status, task.task.retry_date.is_some()))) }
                        td { (task_link(&task.task.task_id)) }
                        td { (service_link(&task.service)) }
                        td { (task.client_id) }
                        td.right { (ago(visitor, Some(&task.task.submition_date), now)) }
                    }
                }
            }
        }
        @if all { p.muted { (words.first_of_them) } }
        (confirm(visitor, selection, all, retry, text, back, Some(&now.to_string())))
    };
    Ok(Page::new(words.tasks, Part::Tasks).show(visitor, Some(now), &main))
}

fn more(
    visitor: &Visitor,
    selection: &Selection,
    retry: bool,
    text: &str,
    total: &Selected,
    back: &str,
) -> axum::response::Response {
    let (words, language) = (visitor.words(), visitor.taste.language);
    let before = selection.before.map(|before| before.to_string());
    let main = html! {
        h1 { (fill(words.so_far, &[("n", &number(language, total.changed))])) }
        p { (words.so_far_hint) }
        (confirm(visitor, selection, true, retry, text, back, before.as_deref()))
    };
    Page::new(words.tasks, Part::Tasks).show(visitor, None, &main)
}

fn confirm(
    visitor: &Visitor,
    selection: &Selection,
    all: bool,
    retry: bool,
    text: &str,
    back: &str,
    before: Option<&str>,
) -> Markup {
    let words = visitor.words();
    html! {
        form.confirm method="post" action="/ui/tasks/act" {
            input type="hidden" name="csrf" value=(visitor.csrf);
            input type="hidden" name="back" value=(back);
            input type="hidden" name="do" value=(if retry { "retry" } else { "cancel" });
            input type="hidden" name="confirmed" value="yes";
            @if all {
                input type="hidden" name="which" value="all";
                input type="hidden" name="q" value=(text);
                @if let Some(before) = before { input type="hidden" name="before" value=(before); }
                @if let Some(cursor) = &selection.cursor { input type="hidden" name="cursor" value=(cursor); }
            } @else {
                @for task in &selection.tasks { input type="hidden" name="task" value=(task); }
            }
            button type="submit" class=(if retry { "primary" } else { "danger" }) { (if retry { words.retry } else { words.cancel_tasks }) }
            " " a.button href=(back) { (words.leave) }
        }
    }
}
