//! Messages of workers that could not be understood, by the reason why.

use std::collections::BTreeMap;

use axum::extract::Path;
use maud::{Markup, html};
use relais_engine::OperatorRole;
use relais_protocol::broker::DeadLetterView;

use super::{clock, done, flash};
use crate::{
    error::{Answer, Explained as _},
    form::{Query, segment},
    gate::{Sent, Visitor},
    layout::{Page, Part},
    show::{ago, badge, button, careful, empty, fill, number, service_link},
};

/// So many are looked at.
const LOOK: usize = 500;

/// So many of a group are shown.
const SHOWN: usize = 5;

/// A group and a letter of it each take a form of their own, so it names no more than this.
const NAMED: usize = 1000;

/// The list.
pub(crate) async fn page(visitor: Visitor, Query(query): Query) -> Answer {
    let (words, language, now, engine) = (visitor.words(), visitor.taste.language, clock(), visitor.operator.engine());
    let broker = engine.broker().or_explain(&visitor)?;
    let none = broker.state == "none" || broker.services.is_empty();
    let letters = if none { Ok(Vec::new()) } else { engine.dead_letters(None, LOOK).await };
    let main = html! {
        h1 { (words.dead_letters) }
        (flash(&visitor, &query))
        @match &letters {
            Err(error) => p.flash.bad role="alert" { (error.to_string()) },
            Ok(_) if none => (empty(words.no_broker, words.no_broker_hint)),
            Ok(letters) if letters.is_empty() => (empty(words.no_letters, words.no_letters_hint)),
            Ok(letters) => {
                p.muted { (fill(words.n_letters, &[("n", &number(language, letters.len() as u64))])) @if letters.len() == LOOK { "+" } }
                @for ((service, reason), group) in grouped(letters) { (shown(&visitor, service, &reason, &group, now)) }
            },
        }
    };
    Ok(Page::new(words.dead_letters, Part::Letters).show(&visitor, Some(now), &main))
}

/// By service and by what is wrong with them; what differs from one to the next of a kind is left out.
fn grouped(letters: &[DeadLetterView]) -> Vec<((&str, String), Vec<&DeadLetterView>)> {
    let mut groups: BTreeMap<(&str, String), Vec<&DeadLetterView>> = BTreeMap::new();
    for letter in letters {
        groups.entry((&letter.service, kind(&letter.reason))).or_default().push(letter);
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, group)| std::cmp::Reverse(group.len()));
    groups
}

/// A reason without its numbers and names.
fn kind(reason: &str) -> String {
    let words = reason.split_whitespace().map(|word| {
        let digits = word.chars().filter(char::is_ascii_digit).count();
        if digits * 2 > word.len() || (word.len() >= 32 && digits > 4) { "…" } else { word }
    });
    words.collect::<Vec<_>>().join(" ")
}

fn shown(
    visitor: &Visitor,
    service: &str,
    reason: &str,
    group: &[&DeadLetterView],
    now: relais_core::Timestamp,
) -> Markup {
    let (words, language) = (visitor.words(), visitor.taste.language);
    let action = format!("/ui/dead-letters/{}", segment(service));
    let ids: Vec<(&str, &str)> = group.iter().take(NAMED).map(|letter| ("id", letter.id.as_str())).collect();
    let with = |what: &'static str| -> Vec<(&str, &str)> { [("do", what)].into_iter().chain(ids.clone()).collect() };
    html! {
        section.card.letters {
            div.head {
                h2 { (badge("warning", &number(language, group.len() as u64))) " " (service_link(service)) " " span.error { (reason) } }
                div.headtools {
                    @if visitor.operator.may(OperatorRole::Operator) { (button(visitor, &action, words.replay, "", &with("replay"))) }
                    @if visitor.operator.may(OperatorRole::Admin) { (careful(visitor, &action, words.discard, words.discard_question, &with("discard"))) }
                }
            }
            ul.plain { @for letter in group.iter().take(SHOWN) { li {
                span.muted { (ago(visitor, letter.date.as_deref(), now)) " · " (number(language, letter.bytes as u64)) " B " }
                code.wrap { (letter.message) }
            } } }
            @if group.len() > SHOWN { p.muted { (fill(words.and_more, &[("n", &number(language, (group.len() - SHOWN) as u64))])) } }
        }
    }
}

/// Puts messages back, or forgets them.
pub(crate) async fn act(Path(service): Path<String>, Sent(visitor, fields): Sent) -> Answer {
    let ids = fields.all("id");
    let (said, count) = if fields.get("do") == Some("discard") {
        ("discarded", visitor.operator.discard_dead_letters(&service, Some(ids)).await)
    } else {
        ("replayed", visitor.operator.replay_dead_letters(&service, Some(ids)).await)
    };
    Ok(done(&fields, said, Some(count.or_explain(&visitor)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_letters_that_differ_in_a_number_are_grouped() {
        assert_eq!(
            kind("not a message: expected value at line 1 column 17"),
            kind("not a message: expected value at line 2 column 4")
        );
        assert_eq!(
            kind("no task 01890a5d-ac96-774b-bcce-b302099a8057 here"),
            kind("no task 01890a5d-ac96-774b-bcce-b302099a9999 here")
        );
        assert_ne!(kind("not a message"), kind("unknown type"));
    }
}
