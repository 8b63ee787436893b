//! Signing secrets, and the secrets of outboxes and captures, are encrypted in the database, where a key is given: a dump, a backup or
//! a copy of the file does not give them away. This is the one place that encrypts and decrypts; drivers see texts.
//!
//! What is stored is `enc:1:<key id>:<base64>`, the base64 of nonce, ciphertext and tag of AES-256-GCM. A secret in
//! clear begins with `whsec_`, so the two can not be mixed up. The key id is no secret: it says which of several keys
//! to use. The client's name is associated data, so that a ciphertext that is moved to another client can not be
//! decrypted.
//!
//! The nonce is not random. It is an HMAC of client and secret, under a key of its own, so that the same secret is
//! encrypted to the same text each time. The store depends on that: whether a client has a secret already is decided by
//! a comparison in SQL, and two processes that apply the same file must not make two secrets of one. AES-GCM must not
//! use a nonce for two different messages under one key, and an HMAC gives different messages different nonces. What it
//! costs: whoever can read the table sees that a client got a secret again that it had before. That is no use to
//! anybody.
//!
//! Keys do not encrypt with themselves: three values are derived from each, for the encryption, for nonces and for its
//! id.

use std::{collections::HashMap, fmt, str::FromStr};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use relais_core::{ClientId, RelayKind, RelayName, StoreError};
use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    hmac,
};

use crate::{
    row::corrupt,
    secrets::statements::{Rewrites, StoredSecret},
    session::Result,
};

/// What every encrypted text begins with, and those of this version.
pub(crate) const ENCRYPTED: &str = "enc:";
const VERSION: &str = "1:";

/// How many bytes a key has.
const KEY_BYTES: usize = 32;

/// A key that signing secrets are encrypted with in the database. Read from the base64 of 32 bytes.
///
/// ```
/// let key: relais_store::EncryptionKey = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=".parse().unwrap();
/// assert_eq!(format!("{key:?}"), "EncryptionKey(440015e4)", "only its id is shown");
/// assert!("MDEyMw==".parse::<relais_store::EncryptionKey>().is_err());
/// ```
#[derive(Clone)]
pub struct EncryptionKey {
    id: String,
    cipher: LessSafeKey,
    nonces: hmac::Key,
}

/// Why a text is no key. The text is in no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EncryptionKeyError {
    /// It is not base64.
    #[error("expected the base64 of 32 bytes, and this is not base64; `openssl rand -base64 32` makes a key")]
    Base64,
    /// It is too short, or too long.
    #[error("expected the base64 of 32 bytes, and these are {0}; `openssl rand -base64 32` makes a key")]
    Length(usize),
}

impl FromStr for EncryptionKey {
    type Err = EncryptionKeyError;

    fn from_str(text: &str) -> std::result::Result<Self, EncryptionKeyError> {
        let bytes = BASE64_STANDARD.decode(text.trim()).map_err(|_| EncryptionKeyError::Base64)?;
        if bytes.len() != KEY_BYTES {
            return Err(EncryptionKeyError::Length(bytes.len()));
        }
        let key = hmac::Key::new(hmac::HMAC_SHA256, &bytes);
        let derived = |purpose: &str| hmac::sign(&key, format!("relais signing secrets: {purpose}").as_bytes());
        let Ok(cipher) = UnboundKey::new(&AES_256_GCM, derived("encryption").as_ref()) else {
            unreachable!("HMAC-SHA256 gives as many bytes as AES-256 takes");
        };
        Ok(Self {
            id: derived("key id").as_ref().iter().take(4).map(|byte| format!("{byte:02x}")).collect(),
            cipher: LessSafeKey::new(cipher),
            nonces: hmac::Key::new(hmac::HMAC_SHA256, derived("nonce").as_ref()),
        })
    }
}

impl fmt::Debug for EncryptionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EncryptionKey({})", self.id)
    }
}

impl EncryptionKey {
    fn encrypt(&self, owner: &str, secret: &str) -> Result<String> {
        let mut nonce = [0; NONCE_LEN];
        // A name has no NUL in it, so no other owner and secret give the same text.
        let mac = hmac::sign(&self.nonces, format!("{owner}\0{secret}").as_bytes());
        nonce.copy_from_slice(&mac.as_ref()[..NONCE_LEN]);
        let mut text = secret.as_bytes().to_vec();
        self.cipher
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(owner), &mut text)
            .map_err(|_| corrupt("a secret is too long to be encrypted"))?;
        let bytes = [nonce.as_slice(), &text].concat();
        Ok(format!("{ENCRYPTED}{VERSION}{}:{}", self.id, BASE64_STANDARD.encode(bytes)))
    }

    fn decrypt(&self, owner: &str, base64: &str) -> Option<String> {
        let bytes = BASE64_STANDARD.decode(base64).ok()?;
        let (nonce, text) = bytes.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut text = text.to_vec();
        let secret = self.cipher.open_in_place(nonce, Aad::from(owner), &mut text).ok()?;
        String::from_utf8(secret.to_vec()).ok()
    }
}

/// The keys of a store: the first encrypts, each of them decrypts. Without any, secrets are stored in clear.
#[derive(Debug, Clone, Default)]
pub(crate) struct Keys(Vec<EncryptionKey>);

/// A signing secret on its way into the database.
pub(crate) struct SealedSecret {
    /// As it is to be stored.
    pub(crate) stored: String,
    /// As it may lie there already, `stored` among them: another process may have another first key, or none.
    pub(crate) forms: Vec<String>,
}

impl Keys {
    pub(crate) fn new(keys: &[EncryptionKey]) -> Self {
        Self(keys.to_vec())
    }

    /// Whether secrets are stored in clear.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn seal(&self, client: &ClientId, secret: &str) -> Result<SealedSecret> {
        let mut forms = self.0.iter().map(|key| key.encrypt(client.as_str(), secret)).collect::<Result<Vec<_>>>()?;
        forms.push(secret.to_owned());
        Ok(SealedSecret { stored: forms[0].clone(), forms })
    }

    /// A secret, from what is stored.
    pub(crate) fn open(&self, client: &ClientId, stored: &str) -> Result<String> {
        self.open_text(client.as_str(), &format!("the signing secret of client {client}"), stored)
    }

    /// The secrets of an outbox, a capture or a notification source, as they are to be stored.
    pub(crate) fn seal_relay(&self, kind: RelayKind, name: &RelayName, secrets: &str) -> Result<String> {
        self.0.first().map_or_else(|| Ok(secrets.to_owned()), |key| key.encrypt(&relay_owner(kind, name), secrets))
    }

    /// The same, from what is stored.
    pub(crate) fn open_relay(&self, kind: RelayKind, name: &RelayName, stored: &str) -> Result<String> {
        self.open_text(&relay_owner(kind, name), &format!("what {kind} {name} keeps secret"), stored)
    }

    fn open_text(&self, owner: &str, what: &str, stored: &str) -> Result<String> {
        let Some(text) = stored.strip_prefix(ENCRYPTED) else { return Ok(stored.to_owned()) };
        let Some((id, base64)) = text.strip_prefix(VERSION).and_then(|text| text.split_once(':')) else {
            return Err(StoreError::Encrypted(format!(
                "{what} was encrypted by a newer version of Relais; run that version"
            )));
        };
        let mut fitting = self.0.iter().filter(|key| key.id == id).peekable();
        if fitting.peek().is_none() {
            return Err(StoreError::Encrypted(self.lacks(id)));
        }
        fitting.find_map(|key| key.decrypt(owner, base64)).ok_or_else(|| {
            StoreError::Encrypted(format!(
                "{what} can not be decrypted with the key {id}: it was changed in the database, or moved there from \
                 another client, outbox or capture; declare it anew"
            ))
        })
    }

    fn lacks(&self, id: &str) -> String {
        let known: Vec<&str> = self.0.iter().map(|key| key.id.as_str()).collect();
        match known.is_empty() {
            true => format!(
                "the signing secrets in the database are encrypted with the key {id}, and this process has no key: set \
                 `database.encryption_keys` or `database.encryption_keys_file`, as the other processes have it"
            ),
            false => format!(
                "the signing secrets in the database are encrypted with the key {id}, and this process has other keys \
                 ({}): add that key to `database.encryption_keys` or to the file of `database.encryption_keys_file`",
                known.join(", ")
            ),
        }
    }

    /// What has to be done so that all secrets are encrypted with the first key. Nothing, without a key; an error if
    /// one can not be decrypted.
    pub(crate) fn rewrites(&self, secrets: &[StoredSecret]) -> Result<Rewrites> {
        let mut kept: HashMap<String, &StoredSecret> = HashMap::new();
        let mut rewrites = Rewrites::default();
        for secret in secrets {
            let plain = self.open(&secret.client_id, &secret.stored)?;
            if self.is_empty() {
                continue;
            }
            rewrites.clear_text |= secret.stored == plain;
            let kept = kept.entry(self.seal(&secret.client_id, &plain)?.stored).or_insert(secret);
            if !std::ptr::eq(*kept, secret) {
                // Processes with different keys have both stored it. The one that is used longer stays.
                let gone = if kept.outlives(secret) { secret } else { std::mem::replace(kept, secret) };
                rewrites.gone.push((gone.client, gone.stored.clone()));
            }
        }
        let changed = kept.into_iter().filter(|(sealed, secret)| secret.stored != *sealed);
        rewrites.changed = changed.map(|(sealed, secret)| (secret.client, secret.stored.clone(), sealed)).collect();
        Ok(rewrites)
    }
}

/// Whose secrets they are. No client has such a name.
fn relay_owner(kind: RelayKind, name: &RelayName) -> String {
    format!("{kind}:{name}")
}

#[cfg(test)]
mod tests {
    use relais_core::{ClientKey, Timestamp};

    use super::*;

    const SECRET: &str = "whsec_NWpEbLE3zv93+bOQoG97TlFRZnPp3v+l";

    fn key(byte: u8) -> EncryptionKey {
        BASE64_STANDARD.encode([byte; KEY_BYTES]).parse().unwrap()
    }

    fn keys(bytes: &[u8]) -> Keys {
        Keys(bytes.iter().copied().map(key).collect())
    }

    fn client(name: &str) -> ClientId {
        ClientId::new(name).unwrap()
    }

    fn stored(keys: &Keys, name: &str) -> String {
        keys.seal(&client(name), SECRET).unwrap().stored
    }

    fn refusal(keys: &Keys, name: &str, stored: &str) -> String {
        let refused = keys.open(&client(name), stored).unwrap_err();
        assert!(matches!(refused, StoreError::Encrypted(_)), "{refused:?}");
        assert!(!refused.to_string().contains("whsec_"), "{refused}");
        refused.to_string()
    }

    #[test]
    fn a_key_is_the_base64_of_32_bytes_and_no_error_shows_it() {
        for (text, said) in [
            ("hidden, not base64", "this is not base64"),
            ("aGlkZGVuaGlkZGVu", "these are 12"),
            ("", "these are 0"),
            ("aGlkZGVuaGlkZGVuaGlkZGVuaGlkZGVuaGlkZGVuaGlkZGVu", "these are 36"),
        ] {
            let refused = text.parse::<EncryptionKey>().unwrap_err().to_string();
            assert!(refused.contains(said) && refused.contains("the base64 of 32 bytes"), "{refused}");
            assert!(text.is_empty() || !refused.contains(text), "{refused}");
        }
        let shown = format!("{:?}", keys(&[1]));
        assert!(!shown.contains("AQEB") && !shown.contains("[1, 1"), "{shown}");
    }

    #[test]
    fn what_this_version_encrypted_every_later_one_decrypts() {
        let written =
            "enc:1:06260c77:wvqvQi5M082vOuzpBLrOMTvo1pvzXECgAC2I/oimFovQPFp/3hAwqWw+DfZnaAPdaRfducD8nUaRhnNCmOEEpnYZ";
        assert_eq!(stored(&keys(&[7]), "shop"), written);
        assert_eq!(keys(&[7]).open(&client("shop"), written).unwrap(), SECRET);
    }

    #[test]
    fn the_same_secret_is_encrypted_to_the_same_text_and_to_another_one_for_each_client_and_key() {
        let first = stored(&keys(&[1]), "shop");
        assert!(first.starts_with("enc:1:") && !first.contains("whsec_"), "{first}");
        assert_eq!(first, stored(&keys(&[1, 2]), "shop"));
        assert_ne!(first, stored(&keys(&[1]), "shop2"));
        assert_ne!(first, stored(&keys(&[2]), "shop"));
        assert_eq!(stored(&keys(&[]), "shop"), SECRET, "without a key it is stored as it is");
    }

    #[test]
    fn a_text_that_was_changed_or_moved_to_another_client_is_not_decrypted() {
        let text = stored(&keys(&[1]), "shop");
        assert!(refusal(&keys(&[1]), "bakery", &text).contains("moved there from another client"));
        let (start, base64) = text.rsplit_once(':').unwrap();
        let bytes = BASE64_STANDARD.decode(base64).unwrap();
        for place in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[place] ^= 1;
            let changed = format!("{start}:{}", BASE64_STANDARD.encode(bytes));
            assert!(refusal(&keys(&[1]), "shop", &changed).contains("it was changed"), "byte {place}");
        }
        for short in ["", "AAAA", "not base64"] {
            refusal(&keys(&[1]), "shop", &format!("{start}:{short}"));
        }
        assert!(refusal(&keys(&[1]), "shop", "enc:2:00000000:AAAA").contains("newer version"));
    }

    #[test]
    fn the_first_key_encrypts_and_each_of_them_decrypts() {
        let (old, new) = (stored(&keys(&[1]), "shop"), stored(&keys(&[2]), "shop"));
        let both = keys(&[2, 1]);
        assert_eq!(stored(&both, "shop"), new);
        for text in [&old, &new, SECRET] {
            assert_eq!(both.open(&client("shop"), text).unwrap(), SECRET);
        }
        let forms = both.seal(&client("shop"), SECRET).unwrap().forms;
        assert_eq!(forms, [new, old, SECRET.to_owned()], "in whatever form it lies there, it is recognised");
    }

    #[test]
    fn without_the_right_key_the_error_names_the_setting() {
        let text = stored(&keys(&[1]), "shop");
        let without = refusal(&keys(&[]), "shop", &text);
        assert!(without.contains("has no key") && without.contains("`database.encryption_keys`"), "{without}");
        let wrong = refusal(&keys(&[2, 3]), "shop", &text);
        assert!(wrong.contains("has other keys") && wrong.contains(&key(1).id), "{wrong}");
    }

    #[test]
    fn a_secret_that_is_there_twice_under_two_keys_stays_once() {
        let row = |stored: String, expires: Option<i64>| StoredSecret {
            client: ClientKey(1),
            client_id: client("shop"),
            stored,
            expires: expires.map(Timestamp::from_millis),
        };
        let (old, new) = (stored(&keys(&[1]), "shop"), stored(&keys(&[2]), "shop"));
        let both = keys(&[2, 1]);
        let alone = both.rewrites(&[row(new.clone(), None)]).unwrap();
        assert!(alone.is_empty() && !alone.clear_text, "nothing is to be done");
        for (rows, gone, changed) in [
            (vec![row(old.clone(), None), row(new.clone(), Some(5))], &new, Some(&old)),
            (vec![row(new.clone(), Some(5)), row(old.clone(), None)], &new, Some(&old)),
            (vec![row(old.clone(), Some(5)), row(new.clone(), None)], &old, None),
            (vec![row(new.clone(), Some(5)), row(old.clone(), Some(5))], &old, None),
        ] {
            let rewrites = both.rewrites(&rows).unwrap();
            assert_eq!(rewrites.gone, [(ClientKey(1), gone.clone())], "{rows:?}");
            let expected = changed.map(|stored| (ClientKey(1), stored.clone(), new.clone()));
            assert_eq!(rewrites.changed, Vec::from_iter(expected), "{rows:?}");
        }
        assert!(both.rewrites(&[row(SECRET.to_owned(), None)]).unwrap().clear_text);
        assert!(keys(&[]).rewrites(&[row(SECRET.to_owned(), None)]).unwrap().is_empty());
        assert!(keys(&[]).rewrites(&[row(old, None)]).is_err(), "who has no key learns that one is missing");
    }
}
