//! The frame of every page: what is left, on top and around.

use axum::{
    http::StatusCode,
    response::{Html, IntoResponse as _, Response},
};
use maud::{DOCTYPE, Markup, html};
use relais_core::Timestamp;

use crate::{
    assets,
    form::encoded,
    gate::{Taste, Theme, Visitor},
    show::sign,
    words::{Language, Words},
};

/// Which part of the dashboard a page belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Overview,
    Tasks,
    Services,
    Workers,
    Schedules,
    Outboxes,
    Captures,
    Notifications,
    Callbacks,
    Letters,
    Clients,
    Events,
    Audit,
}

impl Part {
    const ALL: [Self; 13] = [
        Self::Overview,
        Self::Tasks,
        Self::Services,
        Self::Workers,
        Self::Schedules,
        Self::Outboxes,
        Self::Captures,
        Self::Notifications,
        Self::Callbacks,
        Self::Letters,
        Self::Clients,
        Self::Events,
        Self::Audit,
    ];

    const fn address(self) -> &'static str {
        match self {
            Self::Overview => "/ui",
            Self::Tasks => "/ui/tasks",
            Self::Services => "/ui/services",
            Self::Workers => "/ui/workers",
            Self::Schedules => "/ui/schedules",
            Self::Outboxes => "/ui/outboxes",
            Self::Captures => "/ui/captures",
            Self::Notifications => "/ui/notifications",
            Self::Callbacks => "/ui/callbacks",
            Self::Letters => "/ui/dead-letters",
            Self::Clients => "/ui/clients",
            Self::Events => "/ui/events",
            Self::Audit => "/ui/audit",
        }
    }

    /// The key that follows `g`.
    const fn key(self) -> &'static str {
        match self {
            Self::Overview => "o",
            Self::Tasks => "t",
            Self::Services => "s",
            Self::Workers => "w",
            Self::Schedules => "h",
            Self::Outboxes => "b",
            Self::Captures => "p",
            Self::Notifications => "n",
            Self::Callbacks => "c",
            Self::Letters => "d",
            Self::Clients => "l",
            Self::Events => "e",
            Self::Audit => "a",
        }
    }

    const fn name(self, words: &Words) -> &'static str {
        match self {
            Self::Overview => words.overview,
            Self::Tasks => words.tasks,
            Self::Services => words.services,
            Self::Workers => words.workers,
            Self::Schedules => words.schedules,
            Self::Outboxes => words.outboxes,
            Self::Captures => words.captures,
            Self::Notifications => words.notifications,
            Self::Callbacks => words.callbacks,
            Self::Letters => words.dead_letters,
            Self::Clients => words.clients,
            Self::Events => words.event_bus,
            Self::Audit => words.audit_log,
        }
    }
}

/// A page.
pub(crate) struct Page<'p> {
    pub(crate) title: &'p str,
    pub(crate) part: Part,
    /// What it is to be told about, if it changes by itself.
    pub(crate) live: Option<String>,
    /// What is in the search field.
    pub(crate) search: &'p str,
}

impl<'p> Page<'p> {
    pub(crate) fn new(title: &'p str, part: Part) -> Self {
        Self { title, part, live: None, search: "" }
    }

    pub(crate) fn live(self, topic: impl Into<String>) -> Self {
        Self { live: Some(topic.into()), ..self }
    }

    /// Puts what it shows into its frame.
    pub(crate) fn show(self, visitor: &Visitor, now: Option<Timestamp>, main: &Markup) -> Response {
        let words = visitor.words();
        let topic = self.live.as_deref();
        let content = html! {
            a.skip href="#main" { (words.skip) }
            (header(visitor, self.search))
            (navigation(words, self.part))
            main #main tabindex="-1" data-live=[topic] data-now=[now.map(|now| now.as_millis().to_string())]
                data-ago=(words.ago) data-in=(words.in_time) { (main) }
            (help(words))
            div #announce .sr-only role="status" aria-live="polite" data-text=(words.updated) {}
        };
        Html(document(&visitor.taste, self.title, &content).into_string()).into_response()
    }
}

fn header(visitor: &Visitor, search: &str) -> Markup {
    let words = visitor.words();
    let actor = visitor.operator.actor();
    html! {
        header.top {
            a.brand href="/ui" { (logo()) span { "Relais" } }
            form.search role="search" action="/ui/tasks" method="get" {
                label.sr-only for="search" { (words.search) }
                input #search type="search" name="q" value=(search) placeholder=(words.search_hint) autocomplete="off"
                    spellcheck="false" data-complete="/ui/complete" aria-describedby="search-keys";
                kbd #search-keys aria-hidden="true" { "/" }
            }
            div.tools {
                span #live .live hidden title=(words.live) { span.dot {} span.sr-only { (words.live) } }
                (switches(&visitor.taste))
                button #help-button type="button" .quiet.needs-script hidden aria-label=(words.keys) title=(words.keys) { "?" }
                span.who title=(words.role(actor.role)) { (actor.name) span.muted.role { " · " (words.role(actor.role)) } }
                @if visitor.session.is_some() {
                    form.inline method="post" action="/ui/sign-out" {
                        input type="hidden" name="csrf" value=(visitor.csrf);
                        button.quiet type="submit" { (words.sign_out) }
                        button.quiet type="submit" name="everywhere" value="yes" title=(words.everywhere_hint) { (words.everywhere) }
                    }
                }
            }
        }
    }
}

fn switches(taste: &Taste) -> Markup {
    let words = taste.words();
    let back = encoded(&taste.here);
    let other = taste.language.other();
    let next = match taste.theme {
        Theme::Auto => Theme::Dark,
        Theme::Dark => Theme::Light,
        Theme::Light => Theme::Auto,
    };
    html! {
        a.switch href=(format!("/ui/theme/{}?back={back}", next.as_str())) title=(words.theme(taste.theme))
            aria-label=(words.theme(taste.theme)) {
            @match taste.theme { Theme::Auto => "◐", Theme::Dark => "☾", Theme::Light => "☀" }
        }
        a.switch href=(format!("/ui/language/{}?back={back}", other.code())) lang=(other.code()) hreflang=(other.code())
            title=(other.name()) aria-label=(other.name()) { (other.code().to_uppercase()) }
    }
}

fn navigation(words: &Words, current: Part) -> Markup {
    html! {
        nav.side aria-label=(words.navigation) {
            ul {
                @for part in Part::ALL {
                    li {
                        a href=(part.address()) aria-current=[(part == current).then_some("page")] data-key=(part.key()) {
                            (icon(part)) span { (part.name(words)) }
                        }
                    }
                }
            }
        }
    }
}

fn help(words: &Words) -> Markup {
    html! {
        dialog #help aria-labelledby="help-title" {
            h2 #help-title { (words.keys) }
            dl.keys {
                div { dt { kbd { "/" } } dd { (words.key_search) } }
                @for part in Part::ALL {
                    div { dt { kbd { "g" } " " kbd { (part.key()) } } dd { (part.name(words)) } }
                }
                div { dt { kbd { "j" } " " kbd { "k" } } dd { (words.key_rows) } }
                div { dt { kbd { "x" } } dd { (words.key_select) } }
                div { dt { kbd { "↵" } } dd { (words.key_open) } }
                div { dt { kbd { "?" } } dd { (words.key_help) } }
            }
            form method="dialog" { button type="submit" { (words.close) } }
        }
    }
}

/// A page without navigation, for those who were not let in yet.
pub(crate) fn bare(taste: &Taste, title: &str, main: &Markup) -> Html<String> {
    let content = html! {
        header.top.bare {
            a.brand href="/ui" { (logo()) span { "Relais" } }
            div.tools { (switches(taste)) }
        }
        main #main tabindex="-1" .alone { (main) }
    };
    Html(document(taste, title, &content).into_string())
}

/// Says why somebody was not let in.
pub(crate) fn refused(taste: &Taste, status: StatusCode, why: &str) -> Response {
    let words = taste.words();
    let main = html! { div.signin { h1 { (words.refused) } p { (why) } p { a href="/ui" { (words.overview) } } } };
    (status, bare(taste, words.refused, &main)).into_response()
}

/// Says to somebody what went wrong.
pub(crate) fn problem(visitor: &Visitor, status: StatusCode, why: &str) -> Response {
    let words = visitor.words();
    let main = html! {
        h1 { (words.not_done) }
        p.flash.bad role="alert" { (sign("bad")) (why) }
        p { a.button href="/ui" { (words.overview) } }
    };
    (status, Page::new(words.not_done, Part::Overview).show(visitor, None, &main)).into_response()
}

fn document(taste: &Taste, title: &str, content: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang=(taste.language.code()) data-theme=(taste.theme.as_str()) {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · Relais" }
                link rel="icon" href=(assets::address("relais.svg")) type="image/svg+xml";
                link rel="stylesheet" href=(assets::address("relais.css"));
                script src=(assets::address("relais.js")) defer {}
            }
            body { (content) }
        }
    }
}

fn logo() -> Markup {
    html! {
        svg.logo viewBox="0 0 32 32" aria-hidden="true" {
            rect width="32" height="32" rx="8" {}
            path d="M8 22V10h7.5a4.5 4.5 0 0 1 0 9H8m7.5 0l8 5" {}
            circle cx="24" cy="9.5" r="2.5" {}
        }
    }
}

fn icon(part: Part) -> Markup {
    let path = match part {
        Part::Overview => "M3 13h5V3H3zm9 4h5V3h-5zM3 17h5v-1H3z",
        Part::Tasks => "M3 5h2M3 10h2M3 15h2M8 5h9M8 10h9M8 15h9",
        Part::Services => "M4 4h12v4H4zM4 12h12v4H4zM7 6h.01M7 14h.01",
        Part::Workers => "M10 3v3M10 14v3M3 10h3M14 10h3M10 7a3 3 0 1 0 0 6 3 3 0 0 0 0-6",
        Part::Schedules => "M4 5h12v12H4zM4 8h12M7 3v3M13 3v3",
        Part::Outboxes => "M3 11v6h14v-6M10 3v9M6.500 6.500 10 3l3.500 3.500",
        Part::Captures => "M4 6c0-3 12-3 12 0v8c0 3-12 3-12 0zM4 6c0 3 12 3 12 0M4 10c0 3 12 3 12 0",
        Part::Notifications => "M5 14V9a5 5 0 0 1 10 0v5l1.500 1.500h-13zM8.500 17.500h3",
        Part::Callbacks => "M4 10h11M11 6l4 4-4 4M4 5v10",
        Part::Letters => "M3 6h14v10H3zM3 7l7 5 7-5",
        Part::Clients => "M10 10a3 3 0 1 0 0-6 3 3 0 0 0 0 6M4 17c.6-3 3-4.5 6-4.5s5.4 1.500 6 4.500",
        Part::Events => "M3 10h3l2-6 4 12 2-6h3",
        Part::Audit => "M5 3h10v14H5zM8 7h4M8 10h4M8 13h2",
    };
    html! { svg.icon viewBox="0 0 20 20" aria-hidden="true" focusable="false" { path d=(path) {} } }
}

impl Language {
    /// The language that is not this one.
    pub(crate) const fn other(self) -> Self {
        match self {
            Self::English => Self::French,
            Self::French => Self::English,
        }
    }
}
