//! Finding tasks: words, counts that are honest, and a list from which some or all can be acted on.

use axum::{
    http::header,
    response::{IntoResponse as _, Redirect, Response},
};
use maud::{Markup, html};
use relais_core::Timestamp;
use relais_engine::OperatorRole;
use relais_protocol::admin::AdminTaskView;

use super::{LINES, clock, flash};
use crate::{
    error::{Answer, Explained as _},
    form::{Query, encoded},
    gate::Visitor,
    layout::{Page, Part},
    search::{STATUSES, Search, WORDS},
    show::{ago, between, count, empty, fill, pager, progress, service_link, status, status_class, task_link},
};

/// More than this is "so many or more".
pub(crate) const MOST_COUNTED: usize = 10_000;

/// The list.
pub(crate) async fn page(visitor: Visitor, Query(query): Query) -> Answer {
    let (words, now) = (visitor.words(), clock());
    let text = query.any("q").unwrap_or_default();
    let mut search = Search::parse(text, now);
    if let Some(task_id) = search.task {
        return Ok(Redirect::to(&format!("/ui/tasks/{task_id}")).into_response());
    }
    let cursor = query.get("cursor").map(str::to_owned);
    search.selection.cursor.clone_from(&cursor);
    let engine = visitor.operator.engine();
    // A name that nobody has is a search without a result, not a mistake.
    let listed = engine.list_selected(&search.selection, LINES).await;
    let (tasks, next) = match listed {
        Err(relais_engine::EngineError::ServiceNotFound | relais_engine::EngineError::ClientNotFound) => {
            Default::default()
        }
        listed => listed.or_explain(&visitor)?,
    };
    let counted = match tasks.is_empty() && cursor.is_none() {
        true => (0, false),
        false => engine.count_selected(&search.selection, MOST_COUNTED).await.or_explain(&visitor)?,
    };
    let base = format!("/ui/tasks?q={}", encoded(&search.text));
    let main = html! {
        div.head {
            h1 { (words.tasks) }
            p.count { strong.num { (count(visitor.taste.language, counted)) } " " (words.tasks_match) }
        }
        (flash(&visitor, &query))
        (filters(&visitor, &search))
        @if !search.unknown.is_empty() {
            p.flash.bad role="alert" { (fill(words.unknown_words, &[("words", &search.unknown.join(" ")), ("known", &WORDS.join(" "))])) }
        }
        @if tasks.is_empty() {
            (empty(words.no_tasks, words.no_tasks_hint))
        } @else {
            (list(&visitor, &search, &tasks, counted, now))
        }
        (pager(words, &base, cursor.as_deref(), next.as_deref()))
    };
    let mut page = Page { search: &search.text, ..Page::new(words.tasks, Part::Tasks) };
    if cursor.is_none() {
        page = page.live("tasks");
    }
    Ok(page.show(&visitor, Some(now), &main))
}

fn filters(visitor: &Visitor, search: &Search) -> Markup {
    let words = visitor.words();
    let chosen = |name: &str| {
        let status = crate::search::status(name);
        search.selection.statuses.len() == 1 && search.selection.statuses.first().copied() == status
    };
    let link = |query: &str| format!("/ui/tasks?q={}", encoded(query));
    html! {
        nav.tabs aria-label=(words.status) {
            a href=(link(&search.with("status", None))) aria-current=[search.selection.statuses.is_empty().then_some("true")] { (words.any) }
            @for (name, _) in STATUSES {
                a href=(link(&search.with("status", Some(name)))) aria-current=[chosen(name).then_some("true")] { (status(words, name)) }
            }
        }
        nav.tabs.small aria-label=(words.submitted) {
            @for since in ["15m", "1h", "24h", "7d"] {
                a href=(link(&search.with("since", Some(since)))) aria-current=[search.text.contains(&format!("since:{since}")).then_some("true")] { (fill(words.last_time, &[("t", since)])) }
            }
            @if search.selection.from.is_some() { a href=(link(&search.with("since", None))) { (words.any_time) } }
        }
    }
}

fn list(visitor: &Visitor, search: &Search, tasks: &[AdminTaskView], counted: (u64, bool), now: Timestamp) -> Markup {
    let words = visitor.words();
    let may = visitor.operator.may(OperatorRole::Operator);
    let selection = &search.selection;
    let narrow = selection.service.is_some() || selection.client_id.is_some() || selection.link.is_some();
    html! {
        form.list method="post" action="/ui/tasks/act" {
            input type="hidden" name="csrf" value=(visitor.csrf);
            input type="hidden" name="back" value=(visitor.taste.here);
            input type="hidden" name="q" value=(search.text);
            div.scroll tabindex="0" {
                table.dense.rows {
                    caption.sr-only { (words.tasks) }
                    thead { tr {
                        @if may { th.check scope="col" { label.sr-only for="all-rows" { (words.select_page) } input #all-rows type="checkbox" .needs-script hidden; } }
                        th scope="col" { (words.status) }
                        th scope="col" { (words.task) }
                        th scope="col" { (words.service) }
                        th scope="col" { (words.client) }
                        th.right scope="col" { (words.submitted) }
                        th.right scope="col" { (words.took) }
                        th.right scope="col" { (words.attempt) }
                        th scope="col" { (words.about) }
                    } }
                    tbody {
                        @for task in tasks {
                            (row(visitor, task, may, now))
                        }
                    }
                }
            }
            @if may {
                div.actions {
                    fieldset {
                        legend.sr-only { (words.which) }
                        label { input type="radio" name="which" value="chosen" checked; " " (words.chosen) span.chosen-count {} }
                        @if narrow {
                            label { input type="radio" name="which" value="all"; " " (fill(words.all_matching, &[("n", &count(visitor.taste.language, counted))])) }
                        } @else {
                            span.hint { (words.narrow_first) }
                        }
                    }
                    button type="submit" name="do" value="retry" { (words.retry) "…" }
                    button type="submit" name="do" value="cancel" { (words.cancel) "…" }
                }
            }
        }
    }
}

fn row(visitor: &Visitor, task: &AdminTaskView, may: bool, now: Timestamp) -> Markup {
    let (words, language) = (visitor.words(), visitor.taste.language);
    let view = &task.task;
    let waiting = view.retry_date.is_some() || view.scheduled_date.is_some();
    let class = status_class(view.status, waiting);
    let id = view.task_id.as_str();
    html! {
        tr {
            @if may { td.check { label.sr-only for=(format!("t-{id}")) { (words.select) } input id=(format!("t-{id}")) type="checkbox" name="task" value=(id); } }
            td { (status(words, class)) }
            td { (task_link(id)) }
            td { (service_link(&task.service)) }
            td { (task.client_id) }
            td.right { (ago(visitor, Some(&view.submition_date), now)) }
            td.right.num.took { @match between(language, view.start_date.as_deref(), view.end_date.as_deref()) { Some(took) => (took), None => span.muted { "–" } } }
            td.right.num.tries { (task.attempt) @if task.failures > 0 { span.failed title=(words.failed_attempts) { " ✕" (task.failures) } } }
            td.about {
                @if class == "running" { (progress(words, view.progress.unwrap_or(0.0))) }
                @else if let Some(error) = &view.error_message { span.error title=(error) { (first_line(error)) } }
                @else if let Some(correlation) = &view.correlation_id { span.muted title=(words.correlation) { (correlation) } }
            }
        }
    }
}

pub(crate) fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    match line.char_indices().nth(120) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line.to_owned(),
    }
}

/// What may stand in the search field: its words, and the names that go with them.
pub(crate) async fn complete(visitor: Visitor) -> Response {
    let (services, clients) = visitor.operator.engine().declared_names().unwrap_or_default();
    let statuses: Vec<&str> = STATUSES.iter().map(|(name, _)| *name).collect();
    let body = serde_json::json!({
        "words": WORDS,
        "values": {
            "service": services, "client": clients, "status": statuses,
            "since": ["5m", "15m", "1h", "6h", "24h", "7d", "30d"],
            "until": ["5m", "15m", "1h", "6h", "24h", "7d", "30d"],
        },
    });
    ([(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}
