//! Is anything wrong? Problems first, then every service in a line.

use axum::extract::State;
use maud::{Markup, html};
use relais_engine::{Overview, ServiceGlance, Severity, Trouble};
use relais_protocol::worker_state::WorkerActivity;

use super::notifications;
use crate::{
    Ui,
    error::{Answer, Explained as _},
    form::segment,
    gate::Visitor,
    layout::{Page, Part},
    show::{
        against, at_work, badge, count, empty, fill, number, rate, search_address, service_link, sign, span, sparkline,
    },
};

/// The first page.
pub(crate) async fn page(visitor: Visitor, State(ui): State<Ui>) -> Answer {
    let overview = visitor.operator.engine().overview().await.or_explain(&visitor)?;
    let failed = notifications::failed_lately(ui.options.notifications.as_ref()).await;
    let words = visitor.words();
    let main = html! {
        h1 { (words.overview) }
        (troubles(&visitor, &overview, failed))
        (totals(&visitor, &overview))
        section aria-labelledby="services-title" {
            h2 #services-title { (words.services) }
            @if overview.services.is_empty() {
                (empty(words.no_services, words.no_services_hint))
            } @else {
                (services(&visitor, &overview.services))
            }
        }
    };
    Ok(Page::new(words.overview, Part::Overview).live("anything").show(&visitor, Some(overview.now), &main))
}

/// `failed`: how many notifications went to the error log, and whether there may be more.
fn troubles(visitor: &Visitor, overview: &Overview, failed: (u64, bool)) -> Markup {
    let words = visitor.words();
    html! {
        section.troubles aria-labelledby="troubles-title" {
            h2.sr-only #troubles-title { (words.problems) }
            @if overview.troubles.is_empty() && failed.0 == 0 {
                p.calm { (sign("success")) (words.all_well) }
            } @else {
                ul {
                    @for trouble in &overview.troubles {
                        @let class = match trouble.severity() {
                            Severity::Bad => "bad",
                            Severity::Warning => "warning",
                            Severity::Notice => "paused",
                        };
                        @let (text, address) = told(visitor, trouble);
                        (line(class, &text, &address))
                    }
                    @if failed.0 > 0 {
                        @let n = count(visitor.taste.language, failed);
                        (line("warning", &fill(words.trouble_notifications, &[("n", &n)]), "/ui/notifications?status=FAILED"))
                    }
                }
            }
        }
    }
}

fn line(class: &str, text: &str, address: &str) -> Markup {
    html! { li class=(class) { a href=(address) { (sign(class)) span { (text) } span.go aria-hidden="true" { "→" } } } }
}

/// A problem in words, and where to look.
fn told(visitor: &Visitor, trouble: &Trouble) -> (String, String) {
    let (words, language) = (visitor.words(), visitor.taste.language);
    let n = |n: u64| number(language, n);
    let service_page = |service: &str| format!("/ui/services/{}", segment(service));
    match trouble {
        Trouble::Broker(why) => (fill(words.trouble_broker, &[("why", why)]), "/ui/services".to_owned()),
        Trouble::Bus(why) => (fill(words.trouble_bus, &[("why", why)]), "/ui/events".to_owned()),
        Trouble::Part { part, why } => {
            (fill(words.trouble_part, &[("part", part), ("why", why)]), format!("/ui/{part}"))
        }
        Trouble::NoWorker { service, pending } => {
            (fill(words.trouble_no_worker, &[("service", service), ("n", &n(*pending))]), service_page(service))
        }
        Trouble::Slow { service, oldest } => {
            (fill(words.trouble_slow, &[("service", service), ("t", &span(language, *oldest))]), service_page(service))
        }
        Trouble::Failing { service, failed, ended } => (
            fill(words.trouble_failing, &[("service", service), ("n", &n(*failed)), ("of", &n(*ended))]),
            search_address(&format!("service:{service} status:failure since:15m")),
        ),
        Trouble::Full { service, pending, capacity } => (
            fill(words.trouble_full, &[("service", service), ("n", &n(*pending)), ("of", &n(u64::from(*capacity)))]),
            service_page(service),
        ),
        Trouble::Lost { service } => (fill(words.trouble_lost, &[("service", service)]), service_page(service)),
        Trouble::Paused { service, pending } => {
            (fill(words.trouble_paused, &[("service", service), ("n", &n(*pending))]), service_page(service))
        }
        Trouble::Silent { worker, service, running } => {
            let name = if worker.is_empty() { words.nameless } else { worker };
            let values = [("worker", name), ("service", service.as_str()), ("n", &n(*running as u64))];
            (fill(words.trouble_silent, &values), "/ui/workers".to_owned())
        }
        Trouble::Instance { name, undecided, in_hand } => {
            let text = if *undecided { words.trouble_undecided } else { words.trouble_instance };
            (fill(text, &[("name", name), ("n", &n(*in_hand))]), "/ui/workers".to_owned())
        }
        Trouble::Overdue { schedule, since } => (
            fill(words.trouble_overdue, &[("schedule", schedule), ("t", &span(language, *since))]),
            format!("/ui/schedules/{}", segment(schedule)),
        ),
        Trouble::Refused { schedule, error } => (
            fill(words.trouble_refused, &[("schedule", schedule), ("why", error)]),
            format!("/ui/schedules/{}", segment(schedule)),
        ),
        Trouble::Callbacks { parked } => {
            (fill(words.trouble_callbacks, &[("n", &n(*parked as u64))]), "/ui/callbacks?status=PENDING".to_owned())
        }
        Trouble::DeadLetters { service, count } => {
            (fill(words.trouble_letters, &[("service", service), ("n", &n(*count))]), "/ui/dead-letters".to_owned())
        }
    }
}

fn totals(visitor: &Visitor, overview: &Overview) -> Markup {
    let (words, language) = (visitor.words(), visitor.taste.language);
    let sum = |of: fn(&ServiceGlance) -> u64| overview.services.iter().map(of).sum::<u64>();
    let rates = |of: fn(&ServiceGlance) -> f64| overview.services.iter().map(of).sum::<f64>();
    let busy = overview.workers.iter().filter(|worker| worker.activity == WorkerActivity::Busy).count();
    html! {
        dl.tiles {
            div { dt { (words.pending) } dd { a href=(search_address("status:pending")) { (number(language, sum(|s| s.state.pending + s.state.waiting))) } } }
            div { dt { (words.running) } dd { a href=(search_address("status:running")) { (number(language, sum(|s| s.state.in_progress))) } } }
            div { dt { (words.done_per_minute) } dd { (rate(language, rates(|s| s.trend.per_minute(&s.trend.succeeded)))) } }
            div { dt { (words.failed_per_minute) } dd { (rate(language, rates(|s| s.trend.per_minute(&s.trend.failed)))) } }
            div { dt { (words.workers) } dd { a href="/ui/workers" { (number(language, overview.workers.len() as u64)) } small { (fill(words.n_busy, &[("n", &number(language, busy as u64))])) } } }
            div { dt { (words.schedules) } dd { a href="/ui/schedules" { (number(language, overview.schedules as u64)) } } }
            @if overview.broker.state != "none" {
                div { dt { (words.broker) } dd { (badge(if overview.broker.state == "up" { "up" } else { "away" }, &overview.broker.state)) } }
            }
        }
    }
}

fn services(visitor: &Visitor, services: &[ServiceGlance]) -> Markup {
    let (words, language) = (visitor.words(), visitor.taste.language);
    html! {
        div.scroll role="region" aria-labelledby="services-title" tabindex="0" {
            table.dense {
                thead { tr {
                    th scope="col" { (words.service) }
                    th.right scope="col" { (words.waiting_tasks) }
                    th.right scope="col" { (words.oldest) }
                    th.right scope="col" { (words.running) }
                    th scope="col" { (words.last_quarter) }
                    th.right scope="col" { (words.done_per_minute) }
                    th.right scope="col" { (words.failed_per_minute) }
                    th.right scope="col" { (words.workers) }
                } }
                tbody {
                    @for glance in services {
                        @let declared = &glance.state.declaration;
                        @let name = declared.service_name.as_str();
                        tr {
                            th scope="row" {
                                (service_link(name))
                                @if declared.paused == Some(true) { " " (badge("paused", words.paused)) }
                            }
                            td.right { a.plain href=(search_address(&format!("service:{name} status:pending"))) { (against(language, glance.state.pending, declared.capacity)) }
                                @if glance.state.waiting > 0 { small.muted { " " (fill(words.and_later, &[("n", &number(language, glance.state.waiting))])) } } }
                            td.right.num { @match glance.oldest { Some(age) => (span(language, age)), None => span.muted { "–" } } }
                            td.right { a.plain href=(search_address(&format!("service:{name} status:running"))) { (at_work(language, glance.state.in_progress, declared.max_running)) } }
                            td { (sparkline(words, &glance.trend)) }
                            td.right.num { (rate(language, glance.trend.per_minute(&glance.trend.succeeded))) }
                            td.right.num { a.plain href=(search_address(&format!("service:{name} status:failure since:15m"))) {
                                @let failed = glance.trend.per_minute(&glance.trend.failed);
                                span class=[(failed > 0.0).then_some("failed")] { (rate(language, failed)) }
                            } }
                            td.right.num { (number(language, glance.workers as u64)) }
                        }
                    }
                }
            }
        }
    }
}
