//! Tokens of operators, and the key that their sessions are signed with.
//!
//! Only digests are kept. The key follows from them: every process with the same configuration takes the same sessions,
//! and a token that changes ends the sessions that it opened.
//!
//! A session carries a name, and a request carries a token. Each must lead to one operator, or somebody who may only
//! look would be taken for one who may act. So no two operators have the same name or the same token.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::{Actor, OperatorRole};
use crate::EngineError;

#[derive(Clone)]
struct Badge {
    name: String,
    role: OperatorRole,
    token: [u8; 32],
}

/// The operators and their tokens. Without any, only callers on this machine may act.
#[derive(Clone, Default)]
pub struct Credentials(Vec<Badge>);

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|badge| (&badge.name, badge.role))).finish()
    }
}

/// Why somebody can not be one more operator. No message has a token in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CredentialsError {
    /// Two operators have one name, or names that differ only in upper and lower case.
    #[error("the operators {first} and {second} have the same name (upper and lower case do not count): rename one")]
    SameName {
        /// The one that came first.
        first: String,
        /// The other.
        second: String,
    },
    /// Two operators have one token.
    #[error("the operators {first} and {second} have the same token: give each a token of its own")]
    SameToken {
        /// The one that came first.
        first: String,
        /// The other.
        second: String,
    },
}

impl Credentials {
    /// With one more. Refused if another operator has the name or the token.
    pub fn with(mut self, name: impl Into<String>, role: OperatorRole, token: &str) -> Result<Self, CredentialsError> {
        let (second, token) = (name.into(), digest(token));
        let folded = second.to_lowercase();
        let same_name = |badge: &&Badge| badge.name.to_lowercase() == folded;
        if let Some(first) = self.0.iter().find(same_name).map(|badge| badge.name.clone()) {
            return Err(CredentialsError::SameName { first, second });
        }
        let same_token = |badge: &&Badge| badge.token.ct_eq(&token).into();
        if let Some(first) = self.0.iter().find(same_token).map(|badge| badge.name.clone()) {
            return Err(CredentialsError::SameToken { first, second });
        }
        self.0.push(Badge { name: second, role, token });
        Ok(self)
    }

    /// Whether nobody has a token.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whose token this is.
    pub fn recognise(&self, token: &str, via: &'static str) -> Option<Actor> {
        // Digests, all of them, so that neither the length nor the place of the first difference can be told from the
        // time.
        let given = digest(token);
        let found =
            self.0.iter().fold(None, |found, badge| if badge.token.ct_eq(&given).into() { Some(badge) } else { found });
        found.map(|badge| Actor::new(badge.name.clone(), badge.role, via))
    }

    /// Somebody who was recognised before, if they are still somebody.
    pub fn by_name(&self, name: &str, via: &'static str) -> Option<Actor> {
        let badge = self.0.iter().find(|badge| badge.name == name)?;
        Some(Actor::new(badge.name.clone(), badge.role, via))
    }

    /// The key that sessions of one of them are signed with: another one once the token is another.
    pub fn session_key(&self) -> Result<SessionKey, EngineError> {
        let mut hasher = Sha256::new();
        hasher.update(b"relais sessions");
        if self.is_empty() {
            // Nobody else is to take sessions that need no token.
            let mut random = [0; 32];
            getrandom::fill(&mut random).map_err(|_| EngineError::Overloaded)?;
            hasher.update(random);
        }
        for badge in &self.0 {
            hasher.update(badge.name.as_bytes());
            hasher.update([0]);
            hasher.update(badge.role.as_str().as_bytes());
            hasher.update(badge.token);
        }
        Ok(SessionKey(hasher.finalize().into()))
    }
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// Signs what a browser is to bring back.
#[derive(Clone)]
pub struct SessionKey([u8; 32]);

impl std::fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SessionKey")
    }
}

impl SessionKey {
    /// A signature of a text, for one purpose.
    pub fn sign(&self, purpose: &str, text: &str) -> String {
        use base64::Engine as _;
        base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(self.mac(purpose, text))
    }

    /// Whether a signature is of this text, for this purpose.
    pub fn is_signed(&self, purpose: &str, text: &str, signature: &str) -> bool {
        self.sign(purpose, text).as_bytes().ct_eq(signature.as_bytes()).into()
    }

    fn mac(&self, purpose: &str, text: &str) -> Vec<u8> {
        match Hmac::<Sha256>::new_from_slice(&self.0) {
            Ok(mut mac) => {
                mac.update(purpose.as_bytes());
                mac.update(&[0]);
                mac.update(text.as_bytes());
                mac.finalize().into_bytes().to_vec()
            }
            Err(_) => unreachable!("a key may have any length"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Credentials {
        let ada = Credentials::default().with("ada", OperatorRole::Admin, "one").unwrap();
        ada.with("bob", OperatorRole::ReadOnly, "two").unwrap()
    }

    #[test]
    fn two_operators_never_have_the_same_name_or_the_same_token() {
        let all = || two().with("rita", OperatorRole::ReadOnly, "0123456789abcdef").unwrap();
        for (name, token, said) in [
            ("rita", "fedcba9876543210", "rita and rita have the same name"),
            ("Rita", "fedcba9876543210", "rita and Rita have the same name"),
            ("eve", "0123456789abcdef", "rita and eve have the same token"),
        ] {
            let refused = all().with(name, OperatorRole::Admin, token).unwrap_err();
            let told = format!("{refused} {refused:?}");
            assert!(told.contains(said), "{told}");
            assert!(!told.contains("0123456789") && !told.contains("fedcba9876"), "{told}");
        }
    }

    #[test]
    fn a_token_signs_in_with_its_own_role_only() {
        assert_eq!(two().recognise("one", "api"), Some(Actor::new("ada", OperatorRole::Admin, "api")));
        assert_eq!(two().recognise("two", "api").unwrap().role, OperatorRole::ReadOnly);
        for wrong in ["", "on", "one ", "One"] {
            assert_eq!(two().recognise(wrong, "api"), None);
        }
        assert_eq!(Credentials::default().recognise("", "api"), None);
        assert!(!format!("{:?}", two()).contains("one\""));
    }

    #[test]
    fn sessions_are_accepted_only_with_the_same_configuration() {
        let signed = two().session_key().unwrap().sign("session", "ada");
        assert!(two().session_key().unwrap().is_signed("session", "ada", &signed));
        assert!(!two().session_key().unwrap().is_signed("session", "bob", &signed));
        assert!(!two().session_key().unwrap().is_signed("csrf", "ada", &signed));
        let other = two().with("eve", OperatorRole::ReadOnly, "three").unwrap().session_key().unwrap();
        assert!(!other.is_signed("session", "ada", &signed));
        let nobody = Credentials::default();
        let signed = nobody.session_key().unwrap().sign("session", "local");
        assert!(!nobody.session_key().unwrap().is_signed("session", "local", &signed), "random");
    }
}
