//! What is typed into the search field: `service:resize status:failure client:acme since:1h correlation:order-7`.

use std::time::Duration;

use relais_core::{BatchId, Status, TaskId, TaskLink, Timestamp};
use relais_engine::Selection;
use relais_protocol::HumanDuration;

/// The words that are understood, for completion.
pub(crate) const WORDS: [&str; 9] =
    ["service:", "status:", "client:", "since:", "until:", "correlation:", "parent:", "batch:", "after:"];

/// The statuses, as they are typed.
pub(crate) const STATUSES: [(&str, Status); 5] = [
    ("pending", Status::Pending),
    ("running", Status::InProgress),
    ("success", Status::Success),
    ("failure", Status::Failure),
    ("cancelled", Status::Cancelled),
];

/// What was asked for.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Search {
    /// As it was typed.
    pub(crate) text: String,
    /// What it means.
    pub(crate) selection: Selection,
    /// A task that is named by itself.
    pub(crate) task: Option<TaskId>,
    /// Words that mean nothing.
    pub(crate) unknown: Vec<String>,
}

impl Search {
    /// Reads it; `now` is what `since` counts from.
    pub(crate) fn parse(text: &str, now: Timestamp) -> Self {
        let mut search = Self { text: text.trim().to_owned(), ..Self::default() };
        for word in words(text) {
            if let Some(task_id) = TaskId::parse(word.trim_start_matches("task:")) {
                search.task = Some(task_id);
                continue;
            }
            if search.take(&word, now).is_none() {
                search.unknown.push(word);
            }
        }
        search
    }

    fn take(&mut self, word: &str, now: Timestamp) -> Option<()> {
        let (name, value) = word.split_once(':')?;
        if value.is_empty() {
            return None;
        }
        let selection = &mut self.selection;
        let owned = || Some(value.to_owned());
        match name {
            "service" => selection.service = owned(),
            "client" => selection.client_id = owned(),
            // Tasks are found by one thing that they have in common.
            "correlation" | "parent" | "batch" | "after" if selection.link.is_some() => return None,
            "correlation" => selection.link = owned().map(TaskLink::Correlation),
            "parent" => selection.link = Some(TaskLink::Parent(TaskId::parse(value)?)),
            "batch" => selection.link = Some(TaskLink::Batch(BatchId::parse(value)?)),
            "after" => selection.link = Some(TaskLink::After(TaskId::parse(value)?)),
            "status" => {
                for one in value.split(',') {
                    selection.statuses.push(status(one)?);
                }
            }
            "since" => selection.from = Some(moment(value, now)?),
            "until" => selection.before = Some(moment(value, now)?),
            _ => return None,
        }
        Some(())
    }

    /// The same search with a word in place of any other of its kind.
    pub(crate) fn with(&self, name: &str, value: Option<&str>) -> String {
        let prefix = format!("{name}:");
        let mut kept: Vec<String> =
            words(&self.text).into_iter().filter(|word| !word.starts_with(&prefix)).map(|word| quoted(&word)).collect();
        kept.extend(value.map(|value| quoted(&format!("{prefix}{value}"))));
        kept.join(" ")
    }
}

/// A word as it has to be typed.
pub(crate) fn quoted(word: &str) -> String {
    match word.split_once(':') {
        Some((name, value)) if value.contains(char::is_whitespace) => format!("{name}:\"{value}\""),
        _ => word.to_owned(),
    }
}

/// A status, by the name on the page or on the wire.
pub(crate) fn status(text: &str) -> Option<Status> {
    let known = STATUSES.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|(_, status)| *status);
    known.or_else(|| Status::parse(&text.to_ascii_uppercase()))
}

/// Words are apart by blanks; a value in quotes may have some.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut word, mut in_quotes) = (Vec::new(), String::new(), false);
    for c in text.chars() {
        match c {
            '"' => in_quotes = !in_quotes,
            c if c.is_whitespace() && !in_quotes => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            c => word.push(c),
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

/// `1h`, or a date: the whole of it, or its day.
fn moment(text: &str, now: Timestamp) -> Option<Timestamp> {
    if let Ok(HumanDuration(age)) = text.parse() {
        return Some(now.before(age.min(Duration::from_secs(100 * 366 * 86_400))));
    }
    Timestamp::parse(text).or_else(|| Timestamp::parse(&format!("{text}T00:00:00Z")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_understood_and_the_others_are_named() {
        let now = Timestamp::parse("2026-01-31T08:30:00Z").unwrap();
        let text =
            "service:resize status:failure,running client:acme since:1h until:2026-01-31 correlation:\"order 7\" x y:";
        let search = Search::parse(text, now);
        let selection = &search.selection;
        assert_eq!(selection.service.as_deref(), Some("resize"));
        assert_eq!(selection.statuses, [Status::Failure, Status::InProgress]);
        assert_eq!(selection.client_id.as_deref(), Some("acme"));
        assert_eq!(selection.from.unwrap().to_string(), "2026-01-31T07:30:00.000Z");
        assert_eq!(selection.before.unwrap().to_string(), "2026-01-31T00:00:00.000Z");
        assert_eq!(selection.link, Some(TaskLink::Correlation("order 7".to_owned())));
        let name = "01890a5d-ac96-774b-bcce-b302099a8057";
        let linked = Search::parse(&format!("parent:{name} after:{name}"), now);
        assert_eq!(linked.selection.link, TaskId::parse(name).map(TaskLink::Parent));
        assert_eq!(linked.unknown, [format!("after:{name}")], "one thing in common at a time");
        assert_eq!(Search::parse("batch:nonsense", now).unknown, ["batch:nonsense"]);
        assert_eq!(search.unknown, ["x", "y:"]);
        assert_eq!(Search::parse("status:nonsense", now).unknown, ["status:nonsense"]);
        assert_eq!(Search::parse("status:IN_PROGRESS", now).selection.statuses, [Status::InProgress]);
    }

    #[test]
    fn a_task_by_its_name_and_a_word_in_place_of_another() {
        let now = Timestamp::from_millis(0);
        assert!(Search::parse(" 01890a5d-ac96-774b-bcce-b302099a8057 ", now).task.is_some());
        let search = Search::parse("status:failure service:a correlation:\"b c\"", now);
        assert_eq!(search.with("status", Some("success")), "service:a correlation:\"b c\" status:success");
        assert_eq!(search.with("status", None), "service:a correlation:\"b c\"");
    }
}
