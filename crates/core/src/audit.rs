//! Who did what: a line for each thing that an operator did, or tried; and who is signed in.

use crate::Timestamp;

/// Longer texts are cut: they are for people.
const LONGEST: usize = 1000;

/// What somebody did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// Who.
    pub actor: String,
    /// By which way: `api`, `dashboard`, `file`.
    pub via: String,
    /// What, as a word for programs: `service.pause`.
    pub action: String,
    /// To what: a name.
    pub target: String,
    /// What else is worth knowing. Never a secret.
    pub detail: Option<String>,
    /// Why it could not be done; none if it was.
    pub error: Option<String>,
}

impl AuditEntry {
    /// The same, as a database takes it: nothing endless, and no U+0000.
    pub fn tidied(mut self) -> Self {
        let texts = [&mut self.actor, &mut self.via, &mut self.action, &mut self.target];
        texts.into_iter().chain(&mut self.detail).chain(&mut self.error).for_each(tidy);
        self
    }
}

/// What came of something that was written down before it was done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditOutcome {
    /// To what, where that was not known before.
    pub target: Option<String>,
    /// What else is worth knowing.
    pub detail: Option<String>,
    /// Why it could not be done; none if it was.
    pub error: Option<String>,
}

impl AuditOutcome {
    /// The same, as a database takes it.
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

/// A line of the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRecord {
    /// The order in which they were written.
    pub id: i64,
    /// When.
    pub at: Timestamp,
    /// What.
    pub entry: AuditEntry,
    /// Whether it is not known what came of it: it is being done, or whoever did it died over it.
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

/// Which sessions of operators are meant.
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
