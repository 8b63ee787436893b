//! Keys that come from a JWKS, and go.

use relais_notify::{JwksKeys, KeysRefused, TokenKeys, TokenRefused};
use serde_json::json;

use crate::{
    NOW, at, claims,
    keys::{ED_PUBLIC, Signer, jwks},
    refused, secret, verifier,
};

#[test]
fn a_token_is_verified_by_the_key_that_it_names() {
    let (a, b) = (Signer::new_es256(), Signer::new_es256());
    let verifier = verifier(TokenKeys::Jwks(jwks(&[a.jwk("a"), b.jwk("b"), Signer::rs256().jwk("c")])));
    for (signer, kid) in [(&a, "a"), (&b, "b"), (&Signer::rs256(), "c")] {
        assert!(verifier.verify(&signer.token_by(kid, &claims(&json!({}))), NOW).is_ok());
        // Without an id, each key of the algorithm is tried.
        assert!(verifier.verify(&signer.token(&claims(&json!({}))), NOW).is_ok());
    }
    let verify = |signer: &Signer, kid: &str| verifier.verify(&signer.token_by(kid, &claims(&json!({}))), NOW);
    assert_eq!(verify(&a, "b"), Err(TokenRefused::BadSignature));
    assert_eq!(verify(&a, "c"), Err(TokenRefused::WrongAlgorithm));
    assert_eq!(verify(&a, "d"), Err(TokenRefused::UnknownKid { kid: "d".to_owned() }));
    assert_eq!(verify(&a, &"d".repeat(99)), Err(TokenRefused::UnknownKid { kid: "d".repeat(64) }));
    let stranger = Signer::new_es256().token(&claims(&json!({})));
    assert_eq!(verifier.verify(&stranger, NOW), Err(TokenRefused::BadSignature));
}

#[test]
fn keys_that_are_not_understood_are_skipped() {
    let (signer, other) = (Signer::es256(), Signer::new_es256());
    let with = |name: &str, value: serde_json::Value| {
        let mut jwk = other.jwk("other");
        jwk[name] = value;
        jwk
    };
    let others = [
        Signer::hs256().jwk("oct"),
        with("use", json!("enc")),
        with("key_ops", json!(["sign"])),
        with("alg", json!("ES384")),
        with("alg", json!("RS256")),
        with("crv", json!("P-384")),
        with("kty", json!("AKP")),
        with("x", json!("AQAB")),
        with("x", json!("not base64!")),
        with("y", json!(null)),
        with("kid", json!(7)),
        json!({"kty": "RSA", "kid": "small", "n": "AQAB", "e": "AQAB"}),
        json!({}),
        json!("key"),
        json!(null),
    ];
    let verifier = verifier(TokenKeys::JwksToCome);
    let found = verifier.replace_jwks(&jwks(&[&others[..], &[signer.jwk("a")]].concat()));
    assert_eq!(found, Ok(JwksKeys { usable: 1, skipped: others.len() }));
    assert!(verifier.verify(&signer.token_by("a", &claims(&json!({}))), NOW).is_ok());
    let unknown = verifier.verify(&other.token_by("other", &claims(&json!({}))), NOW);
    assert!(matches!(unknown, Err(TokenRefused::UnknownKid { .. })));

    assert_eq!(refused(TokenKeys::Jwks(jwks(&others))), Some(KeysRefused::NoUsableKey { skipped: others.len() }));
    assert_eq!(refused(TokenKeys::Jwks(jwks(&[]))), Some(KeysRefused::NoUsableKey { skipped: 0 }));
    for text in ["", "{}", "[]", "null", r#"{"keys": {}}"#, r#"{"keys": ["#, "<html>", r#"{"keys": "k"}"#] {
        assert_eq!(refused(TokenKeys::Jwks(text.to_owned())), Some(KeysRefused::NotJwks), "{text}");
    }
    let many = vec![signer.jwk("a"); 101];
    assert_eq!(refused(TokenKeys::Jwks(jwks(&many))), Some(KeysRefused::TooManyKeys { found: 101, limit: 100 }));
}

#[test]
fn keys_rotate() {
    let (old, new) = (Signer::new_es256(), Signer::new_es256());
    let token = |signer: &Signer, kid: &str| signer.token_by(kid, &claims(&json!({})));
    let verifier = verifier(TokenKeys::Jwks(jwks(&[old.jwk("old")])));
    assert!(!verifier.claim_jwks_refresh(NOW), "nothing is missing");
    assert!(verifier.verify(&token(&old, "old"), NOW).is_ok());

    assert!(verifier.verify(&token(&new, "new"), NOW).is_err());
    assert!(verifier.claim_jwks_refresh(NOW));
    assert!(!verifier.claim_jwks_refresh(NOW), "one fetches");
    // What is fetched is broken: the keys stay.
    assert_eq!(verifier.replace_jwks("<html>"), Err(KeysRefused::NotJwks));
    assert!(verifier.verify(&token(&old, "old"), NOW).is_ok());

    // However many ids are unknown, the next fetch is a minute later.
    for seconds in 0..60 {
        assert!(verifier.verify(&token(&new, "new"), at(seconds)).is_err());
        assert!(!verifier.claim_jwks_refresh(at(seconds)));
    }
    assert!(verifier.claim_jwks_refresh(at(60)));
    assert!(verifier.replace_jwks(&jwks(&[new.jwk("new"), old.jwk("old")])).is_ok());
    for (signer, kid) in [(&old, "old"), (&new, "new")] {
        assert!(verifier.verify(&token(signer, kid), at(60)).is_ok());
    }
    assert!(!verifier.claim_jwks_refresh(at(600)), "nothing is missing any more");
    assert!(verifier.replace_jwks(&jwks(&[new.jwk("new")])).is_ok());
    assert!(matches!(verifier.verify(&token(&old, "old"), at(60)), Err(TokenRefused::UnknownKid { .. })));
    // A clock that was set back does not put the next fetch off.
    assert!(verifier.claim_jwks_refresh(at(-3600)));
}

#[test]
fn until_the_first_keys_come_all_are_refused() {
    let (signer, verifier) = (Signer::es256(), verifier(TokenKeys::JwksToCome));
    let token = signer.token(&claims(&json!({})));
    assert_eq!(verifier.verify(&token, NOW), Err(TokenRefused::NoKeys));
    assert!(verifier.claim_jwks_refresh(NOW));
    assert!(verifier.replace_jwks(&jwks(&[signer.jwk("a")])).is_ok());
    assert!(verifier.verify(&token, NOW).is_ok());
}

#[test]
fn keys_that_were_given_once_and_for_all_stay() {
    for keys in [secret(), TokenKeys::PublicKeys(ED_PUBLIC.to_owned())] {
        let verifier = verifier(keys);
        assert_eq!(verifier.replace_jwks(&jwks(&[Signer::es256().jwk("a")])), Err(KeysRefused::NotFromJwks));
        assert!(verifier.verify(&Signer::rs256().token_by("x", &claims(&json!({}))), NOW).is_err());
        assert!(!verifier.claim_jwks_refresh(NOW));
    }
}
