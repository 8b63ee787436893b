//! What a task has to do with others: its parent and its parts, its batch, what it waits for, and what waits for it.

use maud::{Markup, html};
use relais_protocol::{
    admin::{AdminTaskView, LinkedTasks},
    batch::BatchView,
    consumer::AfterWhen,
};

use crate::{
    gate::Visitor,
    show::{fill, number, search_link, service_link, status, status_class, task_link},
};

/// The card; nothing where there is nothing to tell.
pub(super) fn card(visitor: &Visitor, task: &AdminTaskView, batch: Option<&BatchView>) -> Markup {
    let (words, view) = (visitor.words(), &task.task);
    let alone = LinkedTasks::default();
    let children = task.children.as_ref().unwrap_or(&alone);
    let dependents = task.waited_for_by.as_ref().unwrap_or(&alone);
    if view.parent_id.is_none()
        && view.batch_id.is_none()
        && view.after.is_none()
        && children.tasks.is_empty()
        && dependents.tasks.is_empty()
    {
        return html! {};
    }
    html! {
        section.card aria-labelledby="links" {
            h2 #links { (words.linked) }
            dl.facts.links {
                @if let Some(parent) = &view.parent_id { div { dt { (words.parent) } dd { (task_link(parent)) } } }
                @if let Some(batch_id) = &view.batch_id {
                    div { dt { (words.batch) } dd { @match batch {
                        Some(batch) => { a.id href=(format!("/ui/batches/{batch_id}")) { (batch_id) } " " span.muted { (so_far(visitor, batch)) } }
                        None => code { (batch_id) },
                    } } }
                }
                @if let Some(after) = &view.after {
                    div { dt { (words.waits_for) " " span.muted { (condition(visitor, after.when)) } } dd { ul.plain {
                        @for one in &after.tasks { li {
                            (task_link(&one.task_id)) " "
                            @match one.status {
                                Some(ended) => (status(words, status_class(ended, false))),
                                None => span.muted { (words.not_ended) },
                            }
                        } }
                    } } }
                }
                (list(visitor, words.waited_for_by, dependents, "after", &view.task_id))
                (list(visitor, words.children, children, "parent", &view.task_id))
            }
        }
    }
}

fn list(visitor: &Visitor, title: &str, linked: &LinkedTasks, word: &str, task_id: &str) -> Markup {
    let words = visitor.words();
    html! {
        @if !linked.tasks.is_empty() {
            div { dt { (title) } dd {
                ul.plain { @for one in &linked.tasks { li {
                    (task_link(&one.task_id)) " " (service_link(&one.service)) " " (status(words, status_class(one.status, false)))
                } } }
                @if linked.tasks.len() > 1 || linked.more {
                    p { (search_link(&format!("{word}:{task_id}"), if linked.more { words.more_of_them } else { words.as_a_list })) }
                }
            } }
        }
    }
}

/// How far a batch has come.
pub(super) fn so_far(visitor: &Visitor, batch: &BatchView) -> String {
    let n = |n: u64| number(visitor.taste.language, n);
    let ended = batch.success + batch.failure + batch.cancelled;
    fill(visitor.words().n_of_ended, &[("n", &n(ended)), ("of", &n(batch.total))])
}

pub(super) fn condition(visitor: &Visitor, when: AfterWhen) -> &'static str {
    let words = visitor.words();
    match when {
        AfterWhen::AllSucceeded => words.when_all_succeeded,
        AfterWhen::AllEnded => words.when_all_ended,
        AfterWhen::AnyEnded => words.when_any_ended,
    }
}
