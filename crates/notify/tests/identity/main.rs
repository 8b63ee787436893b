//! Who gets in with a token or a ticket, and who does not.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod hostile;
mod jwks;
mod keys;
mod secrets;
mod tickets;
mod tokens;

use jiff::Timestamp;
use relais_notify::{ClaimRules, KeysRefused, TokenKeys, TokenVerifier, VerifierOptions};
use serde_json::{Value, json};

const NOW: Timestamp = Timestamp::constant(1_741_178_096, 0);

fn at(seconds: i64) -> Timestamp {
    NOW + jiff::SignedDuration::from_secs(seconds)
}

/// Claims of ann, valid for an hour, with others beside or instead of them.
fn claims(others: &Value) -> Value {
    let mut claims = json!({"sub": "ann", "exp": NOW.as_second() + 3600});
    for (name, value) in others.as_object().unwrap() {
        claims[name] = value.clone();
    }
    claims
}

fn verifier(keys: TokenKeys) -> TokenVerifier {
    verifier_with(keys, ClaimRules::default())
}

fn verifier_with(keys: TokenKeys, claims: ClaimRules) -> TokenVerifier {
    TokenVerifier::new(VerifierOptions { claims, ..VerifierOptions::new(keys) }).unwrap()
}

fn refused(keys: TokenKeys) -> Option<KeysRefused> {
    TokenVerifier::new(VerifierOptions::new(keys)).err()
}

fn secret() -> TokenKeys {
    TokenKeys::Secrets(vec![keys::SECRET.to_vec()])
}
