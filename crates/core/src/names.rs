//! Names and keys: what people call a service, a client, a task, and the small integers the store uses instead.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Why a name was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} must be 1 to {max} characters among letters, digits, '.', '_' and '-', starting with a letter or a digit"
)]
pub struct NameError {
    what: &'static str,
    max: usize,
}

const MAX_NAME: usize = 100;

fn check(what: &'static str, name: &str) -> Result<(), NameError> {
    let fine = name.len() <= MAX_NAME
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'));
    if fine { Ok(()) } else { Err(NameError { what, max: MAX_NAME }) }
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks the name; the rules are those of a queue's name and of a URL segment that needs no escaping.
            pub fn new(name: impl Into<String>) -> Result<Self, NameError> {
                let name = name.into();
                check($what, &name)?;
                Ok(Self(name.into()))
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;

            fn try_from(name: String) -> Result<Self, NameError> {
                Self::new(name)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.as_str().to_owned()
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

name!(
    /// A service's name, as it stands in URLs.
    ServiceName,
    "a service's name"
);
name!(
    /// A client's name: the user part of its Basic credentials.
    ClientId,
    "a client's id"
);
name!(
    /// A schedule's name, as it stands in URLs.
    ScheduleName,
    "a schedule's name"
);

name!(
    /// The name of an outbox or a capture, as it stands in URLs.
    RelayName,
    "the name of an outbox or capture"
);

macro_rules! key {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub i32);
    };
}

key!(
    /// A service's row in the store. It never reaches a wire.
    ServiceKey
);
key!(
    /// A client's row in the store. It never reaches a wire.
    ClientKey
);

/// A task's public name: a UUID, version 7, so that neighbours in time are neighbours in an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TaskId(pub Uuid);

impl TaskId {
    /// A new one, never given before.
    pub fn generate() -> Self {
        Self(Uuid::now_v7())
    }

    /// Reads the usual hyphenated form, in either case; no other form is a task's name.
    pub fn parse(text: &str) -> Option<Self> {
        (text.len() == 36).then(|| Uuid::try_parse(text).ok().map(Self)).flatten()
    }

    /// A number from 0 to 1 that nobody chose, the same each time it is asked for.
    pub fn chance(self, number: u32) -> f64 {
        // The finaliser of splitmix64, over the part of the name that is random.
        let mut bits = (self.0.as_u128() as u64).wrapping_add(u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        (bits >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A batch's public name: a UUID like a task's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BatchId(pub Uuid);

impl BatchId {
    /// A new one, never given before.
    pub fn generate() -> Self {
        Self(Uuid::now_v7())
    }

    /// Reads the usual hyphenated form, as [`TaskId::parse`] does.
    pub fn parse(text: &str) -> Option<Self> {
        TaskId::parse(text).map(|TaskId(id)| Self(id))
    }
}

impl fmt::Display for BatchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_are_uniform() {
        let mut tenths = [0; 10];
        for number in 0..1_000 {
            let chance = TaskId::generate().chance(number);
            assert!((0.0..1.0).contains(&chance));
            tenths[(chance * 10.0) as usize] += 1;
        }
        assert!(tenths.iter().all(|&n| n > 40), "{tenths:?}");
    }

    #[test]
    fn names_that_would_need_escaping_are_refused() {
        for bad in ["", "a b", "a/b", ".hidden", "-x", "é", "a\0", &"x".repeat(101)] {
            assert!(ServiceName::new(bad).is_err(), "{bad:?} was accepted");
        }
        for good in ["a", "resize", "Image.resize-v2_0", &"x".repeat(100)] {
            assert!(ServiceName::new(good).is_ok(), "{good:?} was refused");
        }
    }

    #[test]
    fn only_the_hyphenated_form_is_a_task_id() {
        let id = TaskId::generate();
        assert_eq!(TaskId::parse(&id.to_string()), Some(id));
        assert_eq!(TaskId::parse(&id.0.simple().to_string()), None);
        assert_eq!(TaskId::parse(&format!("{{{id}}}")), None);
    }
}
