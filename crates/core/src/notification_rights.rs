//! What a client may do with notifications: `emit`, `audience` and `ticket`, each limited to types of audience.
//!
//! A right that is not given is not there: the default is none of them.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// Types of audience, such as `USER` and `GROUP`. On the wire and in the store a list, `["*"]` for all of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "BTreeSet<String>", into = "BTreeSet<String>")]
pub enum AudienceTypes {
    /// All that there are, and all that there will be.
    All,
    /// These, each as it is written.
    Only(BTreeSet<String>),
}

impl AudienceTypes {
    /// What stands for all types, alone in its list.
    pub const ALL: &str = "*";

    /// None at all.
    pub const NONE: Self = Self::Only(BTreeSet::new());

    /// Whether a type is among them.
    pub fn contains(&self, kind: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(kinds) => kinds.contains(kind),
        }
    }

    /// Whether no type is among them.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Only(kinds) if kinds.is_empty())
    }

    /// The types as a list, in the order of their names.
    pub fn to_vec(&self) -> Vec<String> {
        match self {
            Self::All => vec![Self::ALL.to_owned()],
            Self::Only(kinds) => kinds.iter().cloned().collect(),
        }
    }
}

impl Default for AudienceTypes {
    fn default() -> Self {
        Self::NONE
    }
}

impl From<BTreeSet<String>> for AudienceTypes {
    fn from(kinds: BTreeSet<String>) -> Self {
        if kinds.contains(Self::ALL) { Self::All } else { Self::Only(kinds) }
    }
}

impl From<AudienceTypes> for BTreeSet<String> {
    fn from(types: AudienceTypes) -> Self {
        types.to_vec().into_iter().collect()
    }
}

/// What a client may do with notifications.
///
/// ```
/// use relais_core::{AudienceTypes, NotificationRights};
///
/// let only = |kind: &str| AudienceTypes::Only([kind.to_owned()].into());
/// let rights = NotificationRights { emit: AudienceTypes::All, audience: only("GROUP"), ticket: Some(AudienceTypes::NONE) };
/// assert!(rights.may_emit("FORMATION"));
/// assert!(rights.may_change_audience("GROUP") && !rights.may_change_audience("ROLE"));
/// assert!(rights.may_issue_tickets() && !rights.may_name_in_ticket("GROUP"), "tickets that name the user only");
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NotificationRights {
    /// The types of audience that it may emit notifications to.
    pub emit: AudienceTypes,
    /// The types whose targets' members it may change.
    pub audience: AudienceTypes,
    /// The types that its tickets may name beside the user, whom each ticket names; none if it may not ask for tickets.
    pub ticket: Option<AudienceTypes>,
}

impl NotificationRights {
    /// Whether it may emit notifications to audiences of this type.
    pub fn may_emit(&self, kind: &str) -> bool {
        self.emit.contains(kind)
    }

    /// Whether it may change the members of targets of this type.
    pub fn may_change_audience(&self, kind: &str) -> bool {
        self.audience.contains(kind)
    }

    /// Whether it may ask for tickets on behalf of users.
    pub const fn may_issue_tickets(&self) -> bool {
        self.ticket.is_some()
    }

    /// Whether its tickets may name targets of this type beside the user.
    pub fn may_name_in_ticket(&self, kind: &str) -> bool {
        self.ticket.as_ref().is_some_and(|kinds| kinds.contains(kind))
    }

    /// Whether it has none of the rights.
    pub fn is_empty(&self) -> bool {
        self.emit.is_empty() && self.audience.is_empty() && self.ticket.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(kinds: &[&str]) -> AudienceTypes {
        AudienceTypes::Only(kinds.iter().map(|&kind| kind.to_owned()).collect())
    }

    #[test]
    fn nothing_is_allowed_unless_it_is_said() {
        let none = NotificationRights::default();
        assert!(none.is_empty() && !none.may_issue_tickets());
        assert!(!none.may_emit("USER") && !none.may_change_audience("USER") && !none.may_name_in_ticket("USER"));
        assert!(!none.may_emit("*") && !none.may_emit(""));
        assert_eq!(serde_json::from_str::<NotificationRights>("{}").unwrap(), none);
    }

    #[test]
    fn each_right_has_its_own_types() {
        let rights = NotificationRights {
            emit: only(&["USER", "GROUP"]),
            audience: only(&["GROUP"]),
            ticket: Some(only(&["ROLE"])),
        };
        assert!(rights.may_emit("USER") && !rights.may_emit("user") && !rights.may_emit("ROLE"));
        assert!(rights.may_change_audience("GROUP") && !rights.may_change_audience("USER"));
        assert!(rights.may_issue_tickets() && rights.may_name_in_ticket("ROLE") && !rights.may_name_in_ticket("GROUP"));
        let all = NotificationRights { ticket: Some(AudienceTypes::All), ..NotificationRights::default() };
        assert!(all.may_name_in_ticket("ANYTHING") && !all.may_emit("ANYTHING") && !all.is_empty());
    }

    #[test]
    fn rights_are_read_as_they_were_written() {
        for rights in [
            NotificationRights::default(),
            NotificationRights { ticket: Some(AudienceTypes::NONE), ..NotificationRights::default() },
            NotificationRights {
                emit: AudienceTypes::All,
                audience: only(&["GROUP"]),
                ticket: Some(only(&["A", "é b"])),
            },
        ] {
            let text = serde_json::to_string(&rights).unwrap();
            assert_eq!(serde_json::from_str::<NotificationRights>(&text).unwrap(), rights, "{text}");
        }
        let text =
            serde_json::to_string(&NotificationRights { emit: AudienceTypes::All, ..Default::default() }).unwrap();
        assert_eq!(text, r#"{"emit":["*"],"audience":[],"ticket":null}"#);
    }
}
