//! The audit log: what operators did, or tried to do; and their sessions.

use crate::Timestamp;

/// Longer texts are cut.
const LONGEST: usize = 1000;

/// An audit record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// The operator.
    pub actor: String,
    /// The interface: `api`, `dashboard`, `file`.
    pub via: String,
    /// The action, as a word for programs: `service.pause`.
    pub action: String,
    /// The target: a name.
    pub target: String,
    /// Details. Never a secret.
    pub detail: Option<String>,
    /// Why it failed; none if it succeeded.
    pub error: Option<String>,
}

impl AuditEntry {
    /// Sanitizes it for a database: texts are bounded, and have no U+0000.
    pub fn tidied(mut self) -> Self {
        let texts = [&mut self.actor, &mut self.via, &mut self.action, &mut self.target];
        texts.into_iter().chain(&mut self.detail).chain(&mut self.error).for_each(tidy);
        self
    }
}

/// The outcome of an action whose record was written before it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditOutcome {
    /// The target, if it was not known before.
    pub target: Option<String>,
    /// Details.
    pub detail: Option<String>,
    /// Why it failed; none if it succeeded.
    pub error: Option<String>,
}

impl AuditOutcome {
    /// Sanitizes it for a database.
    pub fn tidied(mut self) -> Self {
        [&mut self.target, &mut self.detail, &mut self.error].into_iter().flatten().for_each(tidy);
        self
    }
}

fn tidy(text: &mut String) {
    if text.contains('\0') {
        *text = text.replace('\0', "\u{fffd}");
    }
    if let Some((end, _)) = text.char_indices().nth(LONGEST) {
        text.truncate(end);
    }
}

/// A stored audit record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRecord {
    /// Its number in the log.
    pub id: i64,
    /// When.
    pub at: Timestamp,
    /// The record.
    pub entry: AuditEntry,
    /// Whether the outcome is unknown: the action is running, or its process died.
    pub open: bool,
}

/// A page of the audit log, the newest first.
#[derive(Debug, Clone, Default)]
pub struct AuditPage {
    /// The lines.
    pub records: Vec<AuditRecord>,
    /// Where the next page begins, if there may be one.
    pub next_before: Option<i64>,
}

/// Which sessions to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionsOf {
    /// This one.
    Browser(String),
    /// All of this operator's.
    Operator(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn audit_texts_are_sanitized_for_the_database() {
        let entry = AuditEntry {
            actor: "a\0b".to_owned(),
            via: "api".to_owned(),
            action: "x".to_owned(),
            target: "é".repeat(LONGEST + 1),
            detail: Some("\0".to_owned()),
            error: None,
        };
        let tidied = entry.tidied();
        assert_eq!(tidied.actor, "a\u{fffd}b");
        assert_eq!(tidied.target.chars().count(), LONGEST);
        assert_eq!(tidied.detail.as_deref(), Some("\u{fffd}"));
    }
}
