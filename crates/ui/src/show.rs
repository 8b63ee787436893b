//! Small things that many pages show: numbers, times, statuses, lines, forms of one button.

use std::{borrow::Cow, time::Duration};

use maud::{Markup, PreEscaped, html};
use relais_core::Timestamp;
use relais_engine::Trend;
use relais_protocol::consumer::TaskStatus;

use crate::{
    form::{encoded, segment},
    gate::Visitor,
    words::{Language, Words},
};

/// Puts values in the place of `{names}`.
pub(crate) fn fill(text: &str, values: &[(&str, &str)]) -> String {
    values.iter().fold(text.to_owned(), |text, (name, value)| text.replace(&format!("{{{name}}}"), value))
}

/// A text of somebody else with what is not seen made visible: control characters, and marks that turn the order of what
/// stands beside them.
pub(crate) fn visible(text: &str) -> Cow<'_, str> {
    let hides = |c: char| {
        let turns =
            matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}');
        turns || c == '\u{feff}' || (c.is_control() && !matches!(c, '\n' | '\t'))
    };
    if !text.chars().any(hides) {
        return Cow::Borrowed(text);
    }
    let shown = text.chars().map(|c| if hides(c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() });
    Cow::Owned(shown.collect())
}

/// A number with its thousands apart.
pub(crate) fn number(language: Language, number: u64) -> String {
    let digits = number.to_string();
    let mut shown = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            shown.push_str(language.thousands());
        }
        shown.push(digit);
    }
    shown
}

/// A count, of which there may be more.
pub(crate) fn count(language: Language, (counted, more): (u64, bool)) -> String {
    format!("{}{}", number(language, counted), if more { "+" } else { "" })
}

/// A rate with one digit after the point where it is small.
pub(crate) fn rate(language: Language, per_minute: f64) -> String {
    if per_minute >= 100.0 {
        return number(language, per_minute.round() as u64);
    }
    let text = if per_minute == 0.0 { "0".to_owned() } else { format!("{per_minute:.1}") };
    if language == Language::French { text.replace('.', ",") } else { text }
}

/// A duration in its two largest units.
pub(crate) fn span(language: Language, span: Duration) -> String {
    let seconds = span.as_secs();
    let day = if language == Language::French { "j" } else { "d" };
    match seconds {
        0 if span.as_millis() < 1000 => format!("{} ms", span.as_millis()),
        0..10 => {
            let text = format!("{:.1} s", span.as_secs_f64());
            if language == Language::French { text.replace('.', ",") } else { text }
        }
        10..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} {day} {:02} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// How long ago something was, which the page goes on counting; the whole date when one points at it.
pub(crate) fn ago(visitor: &Visitor, date: Option<&str>, now: Timestamp) -> Markup {
    let Some((date, moment)) = date.and_then(|date| Some((date, Timestamp::parse(date)?))) else {
        return html! { span.muted { "–" } };
    };
    let language = visitor.taste.language;
    let words = visitor.words();
    html! {
        time datetime=(date) data-ago title=(plain_date(date)) {
            @if moment > now {
                (fill(words.in_time, &[("t", &short_span(language, moment.since(now)))]))
            } @else {
                (fill(words.ago, &[("t", &short_span(language, now.since(moment)))]))
            }
        }
    }
}

/// A duration in its largest unit.
pub(crate) fn short_span(language: Language, span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        _ => format!("{} {}", seconds / 86_400, if language == Language::French { "j" } else { "d" }),
    }
}

/// A date without what nobody reads.
pub(crate) fn plain_date(date: &str) -> String {
    date.replace('T', " ").replace('Z', " UTC")
}

/// The time from one date to another.
pub(crate) fn between(language: Language, from: Option<&str>, to: Option<&str>) -> Option<String> {
    let (from, to) = (Timestamp::parse(from?)?, Timestamp::parse(to?)?);
    Some(span(language, to.since(from)))
}

/// The class and the sign of a status. Told apart by shape too, not by colour alone.
pub(crate) fn status_class(status: TaskStatus, waiting: bool) -> &'static str {
    match status {
        TaskStatus::Pending if waiting => "waiting",
        TaskStatus::Pending => "pending",
        TaskStatus::InProgress => "running",
        TaskStatus::Success => "success",
        TaskStatus::Failure => "failure",
        TaskStatus::Cancelled => "cancelled",
    }
}

/// A status, with its sign.
pub(crate) fn status(words: &Words, class: &str) -> Markup {
    let name = match class {
        "pending" => words.pending,
        "waiting" => words.later,
        "running" => words.running,
        "success" => words.success,
        "failure" => words.failure,
        "cancelled" => words.cancelled,
        other => other,
    };
    badge(class, name)
}

/// A word with a sign in front.
pub(crate) fn badge(class: &str, name: &str) -> Markup {
    html! { span class=(format!("badge {class}")) { (sign(class)) (name) } }
}

/// The sign of a class of things.
pub(crate) fn sign(class: &str) -> Markup {
    let drawn = match class {
        "success" | "delivered" | "up" => {
            r#"<circle cx="8" cy="8" r="7" class="f"/><path d="M4.8 8.3l2.2 2.2 4.2-4.6" class="i"/>"#
        }
        "failure" | "bad" | "away" => {
            r#"<circle cx="8" cy="8" r="7" class="f"/><path d="M5.4 5.4l5.2 5.2M10.6 5.4l-5.2 5.2" class="i"/>"#
        }
        "running" | "busy" => r#"<circle cx="8" cy="8" r="6" class="o"/><path d="M8 2a6 6 0 0 1 0 12z" class="f"/>"#,
        "waiting" | "later" => r#"<circle cx="8" cy="8" r="6" class="o"/><path d="M8 4.5V8l2.4 1.6" class="o"/>"#,
        "cancelled" => r#"<circle cx="8" cy="8" r="6" class="o"/><path d="M4 12l8-8" class="o"/>"#,
        "warning" | "silent" => r#"<path d="M8 1.8L15 14H1z" class="f"/><path d="M8 6v4M8 11.6v.8" class="i"/>"#,
        "paused" => r#"<circle cx="8" cy="8" r="7" class="f"/><path d="M6.2 5.4v5.2M9.8 5.4v5.2" class="i"/>"#,
        _ => r#"<circle cx="8" cy="8" r="6" class="o"/>"#,
    };
    html! { svg.sign viewBox="0 0 16 16" aria-hidden="true" focusable="false" { (PreEscaped(drawn)) } }
}

/// How far something is, from 0 to 100.
pub(crate) fn progress(words: &Words, percent: f64) -> Markup {
    let shown = format!("{percent:.0} %");
    html! {
        span.progress {
            progress max="100" value=(format!("{percent:.1}")) aria-label=(words.progress) { (shown) }
            span.num { (shown) }
        }
    }
}

/// How many run of those that may: to be full is no fault.
pub(crate) fn at_work(language: Language, used: u64, limit: Option<u32>) -> Markup {
    gauge(language, used, limit, false)
}

/// How much of a limit is used, which it is better not to reach.
pub(crate) fn against(language: Language, used: u64, limit: Option<u32>) -> Markup {
    gauge(language, used, limit, true)
}

/// The number, the limit, a bar.
fn gauge(language: Language, used: u64, limit: Option<u32>, alarming: bool) -> Markup {
    let Some(limit) = limit.filter(|limit| *limit > 0) else {
        return html! { span.num { (number(language, used)) } };
    };
    let part = (used as f64 / f64::from(limit)).min(1.0);
    let class = match part {
        _ if !alarming => "gauge",
        1.0.. => "gauge full",
        0.8.. => "gauge high",
        _ => "gauge",
    };
    html! {
        span.num { (number(language, used)) span.muted { " / " (number(language, u64::from(limit))) } }
        svg class=(class) viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true" {
            rect.back width="100" height="4" {}
            rect.fore width=(format!("{:.1}", part * 100.0)) height="4" {}
        }
    }
}

/// The last quarter of an hour as columns: what went well, and what failed on top.
pub(crate) fn sparkline(words: &Words, trend: &Trend) -> Markup {
    const COLUMNS: usize = 45;
    let fold = |row: &[u64]| -> Vec<u64> {
        let mut columns: Vec<u64> = row.rchunks(2).map(|pair| pair.iter().sum()).take(COLUMNS).collect();
        columns.reverse();
        columns
    };
    let (done, failed) = (fold(&trend.succeeded), fold(&trend.failed));
    let most = done.iter().zip(&failed).map(|(a, b)| a + b).max().unwrap_or(0).max(1) as f64;
    let (good, bad): (u64, u64) = (done.iter().sum(), failed.iter().sum());
    let label = fill(words.spark_label, &[("good", &good.to_string()), ("bad", &bad.to_string())]);
    let from = COLUMNS.saturating_sub(done.len());
    html! {
        svg.spark viewBox="0 0 135 28" role="img" aria-label=(label) preserveAspectRatio="none" {
            title { (label) }
            rect.floor x="0" y="27" width="135" height="1" {}
            @for (i, (good, bad)) in done.iter().zip(&failed).enumerate() {
                @let x = (from + i) * 3;
                @let high = *good as f64 / most * 26.0;
                @let top = *bad as f64 / most * 26.0;
                @if *good > 0 {
                    rect.ok x=(x) y=(format!("{:.1}", 27.0 - high.max(1.0))) width="2" height=(format!("{:.1}", high.max(1.0))) {}
                }
                @if *bad > 0 {
                    rect.no x=(x) y=(format!("{:.1}", 27.0 - high - top.max(1.5))) width="2" height=(format!("{:.1}", top.max(1.5))) {}
                }
            }
        }
    }
}

/// A form of one button.
pub(crate) fn button(visitor: &Visitor, action: &str, label: &str, class: &str, fields: &[(&str, &str)]) -> Markup {
    html! {
        form.inline method="post" action=(action) {
            input type="hidden" name="csrf" value=(visitor.csrf);
            input type="hidden" name="back" value=(visitor.taste.here);
            @for (name, value) in fields { input type="hidden" name=(name) value=(value); }
            button type="submit" class=(class) { (label) }
        }
    }
}

/// A button that asks once more, without a script.
pub(crate) fn careful(visitor: &Visitor, action: &str, label: &str, question: &str, fields: &[(&str, &str)]) -> Markup {
    html! {
        details.careful {
            summary.button { (label) "…" }
            div.sheet {
                p { (question) }
                (button(visitor, action, label, "danger", fields))
            }
        }
    }
}

/// A link to a task, by the part of its name that tells it apart.
pub(crate) fn task_link(task_id: &str) -> Markup {
    html! { a.id href=(format!("/ui/tasks/{task_id}")) title=(task_id) { (task_id.get(..13).unwrap_or(task_id)) "…" (task_id.get(32..).unwrap_or("")) } }
}

/// A link to a service.
pub(crate) fn service_link(service: &str) -> Markup {
    html! { a href=(format!("/ui/services/{}", segment(service))) { (service) } }
}

/// A link to a search.
pub(crate) fn search_link(query: &str, label: &str) -> Markup {
    html! { a href=(search_address(query)) { (label) } }
}

pub(crate) fn search_address(query: &str) -> String {
    format!("/ui/tasks?q={}", encoded(query))
}

/// Links to the first page and the next.
pub(crate) fn pager(words: &Words, base: &str, cursor: Option<&str>, next: Option<&str>) -> Markup {
    let joint = if base.contains('?') { '&' } else { '?' };
    html! {
        @if cursor.is_some() || next.is_some() {
            nav.pager aria-label=(words.pages) {
                @if cursor.is_some() { a.button href=(base) { (words.newest) } }
                @if let Some(next) = next {
                    a.button rel="next" href=(format!("{base}{joint}cursor={}", encoded(next))) { (words.older) }
                }
            }
        }
    }
}

/// What is said where there is nothing to show.
pub(crate) fn empty(title: &str, hint: &str) -> Markup {
    html! { div.empty { p.title { (title) } p.muted { (hint) } } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_seen_is_made_visible() {
        assert_eq!(visible("plain é 漢 \n"), "plain é 漢 \n");
        assert_eq!(visible("a\u{202e}b\u{7}\u{2066}"), r"a\u202eb\u0007\u2066");
    }

    #[test]
    fn numbers_and_durations_are_readable() {
        assert_eq!(number(Language::English, 1_234_567), "1,234,567");
        assert_eq!(number(Language::French, 1_234), "1\u{202f}234");
        assert_eq!(count(Language::English, (10_000, true)), "10,000+");
        assert_eq!(span(Language::English, Duration::from_millis(340)), "340 ms");
        assert_eq!(span(Language::French, Duration::from_millis(2_340)), "2,3 s");
        assert_eq!(span(Language::English, Duration::from_secs(3_725)), "1 h 02 min");
        assert_eq!(span(Language::French, Duration::from_secs(90_000)), "1 j 01 h");
        assert_eq!(rate(Language::French, 2.25), "2,2");
        assert_eq!(fill("{a} of {b}", &[("a", "1"), ("b", "2")]), "1 of 2");
    }
}
