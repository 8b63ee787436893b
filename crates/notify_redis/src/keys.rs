//! The names of keys, and how audience keys are written in them.
//!
//! | key | what it is |
//! |---|---|
//! | `head` | hash: `epoch`, `position`, `floor`, `members` (grows with each change of members), `run` (of the server), `tickets` |
//! | `log` | stream: the entries; the id is the position |
//! | `renewed` | stream: the last epoch, to wake those who wait |
//! | `message:ID` | hash: a message, how it stands, and what its rules need |
//! | `acknowledged:ID` | hash: users who have acknowledged it, and when |
//! | `sent:ID` | hash: users who were sent it, how often, and when last |
//! | `read:USER` | sorted set: what a user has acknowledged, by position |
//! | `entries:KEY` | sorted set: positions of entries for an audience key |
//! | `live:KEY` | sorted set: its messages that are not over, by position |
//! | `awaiting:KEY` | sorted set: those that are not acknowledged by all, by position |
//! | `keys` | sorted set: audience keys by their last entry |
//! | `parts:KEY`, `wholes:KEY` | hash: what belongs to a target, or it to what, since which position |
//! | `names:KEY` | sorted set: the members of a target, by name |
//! | `timers`, `expirations` | sorted set: messages by when they are due or expire |
//! | `list:STATUS:CLIENT` | sorted set: messages for operators and emitters, by position |

use relais_notify::{AudienceKey, USER};
use uuid::Uuid;

/// The names of all keys of one log.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    prefix: String,
}

impl Keys {
    /// None if the prefix can not be within a hash tag.
    pub(crate) fn new(prefix: &str) -> Option<Self> {
        let is_good = |c: char| !matches!(c, '{' | '}' | ' ') && !c.is_control();
        (!prefix.is_empty() && prefix.chars().all(is_good)).then(|| Self { prefix: format!("{{{prefix}}}:") })
    }

    fn name(&self, what: &str, of: &str) -> String {
        format!("{}{what}:{of}", self.prefix)
    }

    /// A key of which there is one.
    pub(crate) fn only(&self, what: &str) -> String {
        format!("{}{what}", self.prefix)
    }

    pub(crate) fn head(&self) -> String {
        self.only("head")
    }

    pub(crate) fn log(&self) -> String {
        self.only("log")
    }

    pub(crate) fn message(&self, id: &Uuid) -> String {
        self.name("message", &id.to_string())
    }

    pub(crate) fn acknowledged(&self, id: &Uuid) -> String {
        self.name("acknowledged", &id.to_string())
    }

    pub(crate) fn sent(&self, id: &Uuid) -> String {
        self.name("sent", &id.to_string())
    }

    pub(crate) fn read(&self, user: &str) -> String {
        self.name("read", user)
    }

    pub(crate) fn entries(&self, key: &AudienceKey) -> String {
        self.name("entries", &encode(key))
    }

    pub(crate) fn live(&self, key: &AudienceKey) -> String {
        self.name("live", &encode(key))
    }

    pub(crate) fn awaiting(&self, key: &str) -> String {
        self.name("awaiting", key)
    }

    pub(crate) fn parts(&self, key: &AudienceKey) -> String {
        self.name("parts", &encode(key))
    }

    pub(crate) fn names(&self, key: &AudienceKey) -> String {
        self.name("names", &encode(key))
    }

    /// The list of a status, or of all; of a client, or of all.
    pub(crate) fn list(&self, status: &str, client: &str) -> String {
        format!("{}list:{status}:{client}", self.prefix)
    }
}

/// `GROUP teachers`. A blank comes before all that is allowed in a type, so that texts have the order of their keys.
pub(crate) fn encode(key: &AudienceKey) -> String {
    let mut text = String::with_capacity(key.kind.len() + 1 + key.target.len());
    for c in key.kind.chars() {
        match c {
            '\0'..=' ' | '%' => text.push_str(&format!("%{:02x}", u32::from(c))),
            c => text.push(c),
        }
    }
    text.push(' ');
    text.push_str(&key.target);
    text
}

/// Reads it back; none if it is not one.
pub(crate) fn decode(text: &str) -> Option<AudienceKey> {
    let (kind, target) = text.split_once(' ')?;
    let mut parts = kind.split('%');
    let mut decoded = parts.next()?.to_owned();
    for part in parts {
        let (code, rest) = part.split_at_checked(2)?;
        decoded.push(char::from(u8::from_str_radix(code, 16).ok()?));
        decoded.push_str(rest);
    }
    Some(AudienceKey::new(decoded, target))
}

/// The key of a user.
pub(crate) fn encode_user(user: &str) -> String {
    format!("{USER} {user}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn audience_keys_are_read_back_and_keep_their_order() {
        let mut keys: Vec<AudienceKey> = [
            ("GROUP", "1b"),
            ("GROUP", ""),
            ("GROUP-A", "x"),
            ("GROUPS", "a b"),
            ("A", "% 20"),
            ("A:B", "c"),
            ("Ä", "ö ü"),
            ("USER", "ann"),
        ]
        .map(|(kind, target)| AudienceKey::new(kind, target))
        .into();
        keys.sort();
        let texts: Vec<String> = keys.iter().map(encode).collect();
        assert!(texts.is_sorted(), "{texts:?}");
        assert_eq!(texts.iter().map(|text| decode(text)).collect::<Option<Vec<_>>>(), Some(keys));
        for (kind, text) in [("A B", "A%20B c"), ("%", "%25 c"), ("\u{1}%20", "%01%2520 c")] {
            let key = AudienceKey::new(kind, "c");
            assert_eq!((encode(&key).as_str(), decode(text)), (text, Some(key)));
        }
        assert_eq!(encode_user("ann"), encode(&AudienceKey::user("ann")));
        for wrong in ["", "GROUP", "%zz c", "%2 c", "%é c"] {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn prefixes_are_hash_tags() {
        assert_eq!(Keys::new("a:b").map(|keys| keys.head()), Some("{a:b}:head".to_owned()));
        for wrong in ["", "a{b", "a}b", "a b", "a\n"] {
            assert!(Keys::new(wrong).is_none(), "{wrong:?}");
        }
    }
}
