//! Schedules: when they run, in plain words, and running them now.

use axum::extract::Path;
use maud::{Markup, html};
use relais_core::Cron;
use relais_engine::OperatorRole;
use relais_protocol::schedule::ScheduleState;

use super::{clock, done, flash};
use crate::{
    error::{Answer, Explained as _},
    form::{Query, segment},
    gate::{Sent, Visitor},
    json::pretty,
    layout::{Page, Part},
    show::{ago, badge, button, careful, empty, number, plain_date, service_link, task_link},
    words::Language,
};

/// So many runs to come are shown.
const RUNS: usize = 10;

/// The list.
pub(crate) async fn page(visitor: Visitor, Query(query): Query) -> Answer {
    let (words, language, now) = (visitor.words(), visitor.taste.language, clock());
    let schedules = visitor.operator.engine().schedule_states().await.or_explain(&visitor)?;
    let main = html! {
        h1 { (words.schedules) }
        (flash(&visitor, &query))
        @if schedules.is_empty() { (empty(words.no_schedules, words.no_schedules_hint)) } @else {
            div.scroll tabindex="0" { table.dense {
                caption.sr-only { (words.schedules) }
                thead { tr {
                    th scope="col" { (words.schedule) }
                    th scope="col" { (words.when) }
                    th scope="col" { (words.service) }
                    th.right scope="col" { (words.next_run) }
                    th.right scope="col" { (words.last_run) }
                    th.right scope="col" { (words.runs) }
                    th scope="col" { span.sr-only { (words.actions) } }
                } }
                tbody { @for schedule in &schedules {
                    @let declared = &schedule.declaration;
                    tr {
                        th scope="row" { a href=(format!("/ui/schedules/{}", segment(&declared.schedule_name))) { (declared.schedule_name) } @if declared.paused == Some(true) { " " (badge("paused", words.paused)) } }
                        td.when { (when(&visitor, schedule)) br; code.muted { (declared.cron) }
                            @if let Some(error) = &schedule.last_error { br; span.error title=(error) { (super::tasks::first_line(error)) } } }
                        td { (service_link(&declared.service_name)) }
                        td.right { (ago(&visitor, schedule.next_run_date.as_deref(), now)) }
                        td.right { (ago(&visitor, schedule.last_run_date.as_deref(), now)) @if let Some(task) = &schedule.last_task_id { br; (task_link(task)) } }
                        td.right.num { (number(language, schedule.runs)) }
                        td.buttons { (actions(&visitor, schedule)) }
                    }
                } }
            } }
        }
    };
    Ok(Page::new(words.schedules, Part::Schedules).live("anything").show(&visitor, Some(now), &main))
}

/// When it runs, in the visitor's words.
fn when(visitor: &Visitor, schedule: &ScheduleState) -> String {
    let declared = &schedule.declaration;
    match visitor.taste.language {
        Language::English => schedule.description.clone(),
        Language::French => Cron::parse(&declared.cron, declared.time_zone.as_deref().unwrap_or("UTC"))
            .map_or_else(|_| schedule.description.clone(), |cron| cron.describe_in_french()),
    }
}

fn actions(visitor: &Visitor, schedule: &ScheduleState) -> Markup {
    let words = visitor.words();
    let base = format!("/ui/schedules/{}", segment(&schedule.declaration.schedule_name));
    html! {
        @if visitor.operator.may(OperatorRole::Operator) {
            (careful(visitor, &format!("{base}/run"), words.run_now, words.run_question, &[]))
            @if schedule.declaration.paused == Some(true) {
                (button(visitor, &format!("{base}/resume"), words.resume, "", &[]))
            } @else {
                (button(visitor, &format!("{base}/pause"), words.pause, "", &[]))
            }
        }
    }
}

/// The page of a schedule.
pub(crate) async fn one(visitor: Visitor, Path(name): Path<String>, Query(query): Query) -> Answer {
    let (words, language, now, engine) = (visitor.words(), visitor.taste.language, clock(), visitor.operator.engine());
    let schedule = engine.schedule_state(&name).await.or_explain(&visitor)?;
    let runs = engine.next_runs(&name, RUNS).await.or_explain(&visitor)?;
    let declared = &schedule.declaration;
    let body = declared.body.as_ref().map(ToString::to_string).unwrap_or_default();
    let main = html! {
        div.head {
            div { p.crumbs { a href="/ui/schedules" { (words.schedules) } } h1 { (name) @if runs.paused { " " (badge("paused", words.paused)) } } }
            div.headtools { (actions(&visitor, &schedule)) }
        }
        (flash(&visitor, &query))
        p.lead { (when(&visitor, &schedule)) " " code.muted { (declared.cron) } }
        @if let Some(error) = &schedule.last_error { section.card.bad { h2 { (words.last_error) " " (ago(&visitor, schedule.last_error_date.as_deref(), now)) } pre.error tabindex="0" { (error) } } }
        div.columns {
            section.card aria-labelledby="runs" { h2 #runs { (words.next_runs) }
                ol.runs { @for run in &runs.runs { li { span.num { (plain_date(&run.local_date)) } " " span.muted { (ago(&visitor, Some(&run.run_date), now)) } } } } }
            section.card aria-labelledby="facts" { h2 #facts { (words.facts) } dl.facts {
                div { dt { (words.service) } dd { (service_link(&declared.service_name)) } }
                div { dt { (words.client) } dd { (declared.client_id) } }
                div { dt { (words.last_run) } dd { (ago(&visitor, schedule.last_run_date.as_deref(), now)) @if let Some(task) = &schedule.last_task_id { " " (task_link(task)) } } }
                div { dt { (words.runs) } dd.num { (number(language, schedule.runs)) } }
                div { dt { (words.runs_skipped) } dd.num { (number(language, schedule.skipped_runs)) } }
                div { dt { (words.runs_refused) } dd.num { (number(language, schedule.refused_runs)) } }
                div { dt { (words.runs_missed) } dd.num { (number(language, schedule.missed_runs)) } }
            } }
        }
        section.card aria-labelledby="body" { h2 #body { (words.request) } pre.json tabindex="0" { (pretty(&body, &Default::default())) } }
    };
    Ok(Page::new(&name, Part::Schedules).live("anything").show(&visitor, Some(now), &main))
}

/// Runs it now.
pub(crate) async fn run(Path(name): Path<String>, Sent(visitor, fields): Sent) -> Answer {
    visitor.operator.run_schedule(&name).await.or_explain(&visitor)?;
    Ok(done(&fields, "ran", None))
}

/// Pauses it.
pub(crate) async fn pause(Path(name): Path<String>, Sent(visitor, fields): Sent) -> Answer {
    visitor.operator.pause_schedule(&name, true).await.or_explain(&visitor)?;
    Ok(done(&fields, "paused", None))
}

/// Lets it go on.
pub(crate) async fn resume(Path(name): Path<String>, Sent(visitor, fields): Sent) -> Answer {
    visitor.operator.pause_schedule(&name, false).await.or_explain(&visitor)?;
    Ok(done(&fields, "resumed", None))
}
