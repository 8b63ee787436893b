//! Tokens that must not get anybody in.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use relais_notify::{InvalidIdentity, TokenKeys, TokenRefused, TokenVerifier, VerifierOptions};
use serde_json::{Value, json};

use crate::{
    NOW, claims,
    keys::{EC_PUBLIC, ED_PUBLIC, RSA_PUBLIC, Signer, encoded, jwks},
    secret, verifier,
};

fn hs256() -> String {
    Signer::hs256().token(&claims(&json!({})))
}

/// A token with a good signature, and this header.
fn with_header(header: &str) -> String {
    Signer::hs256().token_of(header, &claims(&json!({})).to_string())
}

/// A token with a good signature, and these claims.
fn with_claims(claims: &str) -> String {
    Signer::hs256().token_of(r#"{"alg":"HS256"}"#, claims)
}

fn refused(token: &str) -> TokenRefused {
    verifier(secret()).verify(token, NOW).unwrap_err()
}

#[test]
fn what_is_not_a_token_is_refused() {
    let token = hs256();
    let [header, claims, signature] = token.split('.').collect::<Vec<_>>()[..] else { panic!("three parts") };
    for (token, why) in [
        (String::new(), "three parts"),
        ("a".to_owned(), "three parts"),
        (format!("{header}.{claims}"), "three parts"),
        ("..".to_owned(), "header is not a JSON object"),
        (format!("*.{claims}.{signature}"), "header is not base64url"),
        (format!("{header}=.{claims}.{signature}"), "header is not base64url"),
        (format!(" {token}"), "header is not base64url"),
        (format!("{token}="), "signature is not base64url"),
        (format!("{token}\n"), "signature is not base64url"),
        (format!("{header}.{claims}.ä"), "signature is not base64url"),
        (format!("{}.{claims}.{signature}", encoded([0xff, 0xfe])), "header is not text"),
        (format!("{}.{claims}.{signature}", encoded("[]")), "header is not a JSON object"),
        (format!("{}.{claims}.{signature}", encoded("{\"alg\":")), "header is not a JSON object"),
        (with_header("{}"), "header has no algorithm"),
        (with_header(r#"{"alg":["HS256"]}"#), "header has no algorithm"),
        (with_header(r#"{"alg":"HS256","kid":7}"#), "id of the key is not text"),
        (with_claims(""), "claims are not a JSON object"),
        (with_claims("[]"), "claims are not a JSON object"),
        (with_claims(r#"{"sub":"ann"} {"#), "claims are not a JSON object"),
        (with_claims(&"[".repeat(3000)), "claims are not a JSON object"),
        (with_claims(&format!("{{\"a\":{}", "[".repeat(3000))), "claims are not a JSON object"),
    ] {
        let found = refused(&token);
        assert!(matches!(found, TokenRefused::Malformed(text) if text.contains(why)), "{token:?}: {found:?}");
    }
    // Five parts: an encrypted token, or one with parts that nobody has signed.
    for token in [format!("{token}.{claims}.{signature}"), format!("{header}.{claims}.{claims}.{signature}")] {
        assert!(matches!(refused(&token), TokenRefused::BadSignature | TokenRefused::Malformed(_)));
    }
}

#[test]
fn unsigned_and_unknown_algorithms_are_refused() {
    let body = encoded(claims(&json!({})).to_string());
    for alg in ["none", "None", "NONE", "nOnE", "", "hs256", "HS384", "HS512", "RS512", "PS256", "ES384", "dir"] {
        let header = json!({ "alg": alg }).to_string();
        let why = TokenRefused::UnsupportedAlgorithm { alg: alg.to_owned() };
        for token in [with_header(&header), format!("{}.{body}.", encoded(&header))] {
            assert_eq!(refused(&token), why);
        }
    }
    let long = with_header(&json!({"alg": "x".repeat(1000)}).to_string());
    assert_eq!(refused(&long), TokenRefused::UnsupportedAlgorithm { alg: "x".repeat(64) });
}

/// The classic: whoever knows a public key uses it as a secret.
#[test]
fn a_key_is_for_its_own_algorithm() {
    for (signer, pem) in [(Signer::rs256(), RSA_PUBLIC), (Signer::es256(), EC_PUBLIC), (Signer::eddsa(), ED_PUBLIC)] {
        let as_secret = [pem.trim().to_owned(), format!("{}\n", pem.trim()), pem.lines().collect()];
        let of_pem = verifier(TokenKeys::PublicKeys(pem.to_owned()));
        let of_jwks = verifier(TokenKeys::Jwks(jwks(&[signer.jwk("a")])));
        for secret in as_secret {
            let forger = Signer::Hs256(secret.into_bytes());
            assert_eq!(of_pem.verify(&forger.token(&claims(&json!({}))), NOW), Err(TokenRefused::WrongAlgorithm));
            let forged = forger.token_by("a", &claims(&json!({})));
            assert_eq!(of_jwks.verify(&forged, NOW), Err(TokenRefused::WrongAlgorithm));
        }
        // Nor does a header that names the right algorithm make another's signature a good one.
        let header = json!({ "alg": signer.alg() }).to_string();
        let forged = Signer::hs256().token_of(&header, &claims(&json!({})).to_string());
        assert_eq!(of_pem.verify(&forged, NOW), Err(TokenRefused::BadSignature));
        assert_eq!(refused(&signer.token(&claims(&json!({})))), TokenRefused::WrongAlgorithm);
    }
}

#[test]
fn no_single_flipped_bit_gets_in() {
    for (signer, keys) in [
        (Signer::hs256(), secret()),
        (Signer::rs256(), TokenKeys::PublicKeys(RSA_PUBLIC.to_owned())),
        (Signer::es256(), TokenKeys::PublicKeys(EC_PUBLIC.to_owned())),
        (Signer::eddsa(), TokenKeys::PublicKeys(ED_PUBLIC.to_owned())),
    ] {
        let (verifier, token) = (verifier(keys), signer.token(&claims(&json!({}))));
        assert!(verifier.verify(&token, NOW).is_ok());
        for (place, bit) in (0..token.len()).flat_map(|place| (0..7).map(move |bit| (place, bit))) {
            let mut bytes = token.clone().into_bytes();
            bytes[place] ^= 1 << bit;
            let flipped = String::from_utf8(bytes).unwrap();
            assert!(verifier.verify(&flipped, NOW).is_err(), "{} {place} {bit}", signer.alg());
        }
    }
}

#[test]
fn a_signature_of_nothing_is_wrong() {
    for (alg, keys, length) in [
        ("HS256", secret(), 32),
        ("RS256", TokenKeys::PublicKeys(RSA_PUBLIC.to_owned()), 256),
        ("ES256", TokenKeys::PublicKeys(EC_PUBLIC.to_owned()), 64),
        ("EdDSA", TokenKeys::PublicKeys(ED_PUBLIC.to_owned()), 64),
    ] {
        let verifier = verifier(keys);
        let signed =
            format!("{}.{}", encoded(json!({"alg": alg}).to_string()), encoded(claims(&json!({})).to_string()));
        for signature in [vec![], vec![0; length], vec![0xff; length], vec![0; length + 1]] {
            let token = format!("{signed}.{}", encoded(signature));
            assert_eq!(verifier.verify(&token, NOW), Err(TokenRefused::BadSignature), "{alg}");
        }
    }
    // A good signature of ES256 in the other encoding of it is not base64url of 64 bytes.
    let token = Signer::es256().token(&claims(&json!({})));
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let longer = [URL_SAFE_NO_PAD.decode(signature).unwrap(), vec![0]].concat();
    let keys = TokenKeys::PublicKeys(EC_PUBLIC.to_owned());
    assert_eq!(verifier(keys).verify(&format!("{signed}.{}", encoded(longer)), NOW), Err(TokenRefused::BadSignature));
}

#[test]
fn keys_and_addresses_inside_of_a_token_do_not_matter() {
    let forger = Signer::new_es256();
    let header = json!({
        "alg": "ES256", "jwk": forger.jwk("a"), "jku": "https://forger.example/keys", "x5u": "https://forger.example/x",
    });
    let forged = forger.token_of(&header.to_string(), &claims(&json!({})).to_string());
    for keys in [TokenKeys::PublicKeys(EC_PUBLIC.to_owned()), TokenKeys::Jwks(jwks(&[Signer::es256().jwk("a")]))] {
        assert_eq!(verifier(keys).verify(&forged, NOW), Err(TokenRefused::BadSignature));
    }
}

#[test]
fn critical_parameters_and_names_that_are_there_twice_are_refused() {
    for header in [r#"{"alg":"HS256","crit":["b64"],"b64":false}"#, r#"{"alg":"HS256","crit":null}"#] {
        assert_eq!(refused(&with_header(header)), TokenRefused::CriticalHeader);
    }
    assert_eq!(refused(&with_header(r#"{"alg":"none","alg":"HS256"}"#)), TokenRefused::Duplicate("header"));
    let exp = NOW.as_second() + 60;
    for claims in [
        format!(r#"{{"sub":"ann","exp":{exp},"sub":"bob"}}"#),
        format!(r#"{{"sub":"ann","exp":{exp},"s\u0075b":"bob"}}"#),
        format!(r#"{{"sub":"ann","exp":1,"exp":{exp}}}"#),
        format!(r#"{{"sub":"ann","exp":{exp},"audiences":{{"GROUP":["a"],"GROUP":["b"]}}}}"#),
    ] {
        assert_eq!(refused(&with_claims(&claims)), TokenRefused::Duplicate("claims"), "{claims}");
    }
}

#[test]
fn claims_of_the_wrong_type_are_refused_with_their_name() {
    for (name, value) in [
        ("sub", json!(7)),
        ("sub", json!(["ann"])),
        ("sub", json!({"name": "ann"})),
        ("exp", json!("1741178196")),
        ("exp", json!(true)),
        ("exp", json!([1])),
        ("nbf", json!("soon")),
        ("audiences", json!("GROUP")),
        ("audiences", json!(["GROUP:teachers"])),
        ("audiences", json!({"GROUP": "teachers"})),
        ("audiences", json!({"GROUP": [7]})),
        ("audiences", json!({"GROUP": {"teachers": true}})),
        ("audiences", json!({"GROUP": null})),
    ] {
        let found = refused(&Signer::hs256().token(&claims(&json!({ name: value }))));
        assert!(matches!(&found, TokenRefused::BadClaim { claim, .. } if claim == name), "{name} {value}: {found:?}");
    }
    let unbounded = with_claims(r#"{"sub":"ann","exp":1e400}"#);
    assert!(matches!(refused(&unbounded), TokenRefused::BadClaim { claim, .. } if claim == "exp"));
}

#[test]
fn names_that_messages_can_not_have_are_refused() {
    let with = |others: Value| refused(&Signer::hs256().token(&claims(&others)));
    for user in ["".to_owned(), "x".repeat(201), "ann\n".to_owned(), "a\u{0}".to_owned(), "a\u{85}b".to_owned()] {
        assert_eq!(with(json!({"sub": user})), TokenRefused::Identity(InvalidIdentity::BadUser));
        let bad = TokenRefused::Identity(InvalidIdentity::BadAudience);
        assert_eq!(with(json!({"audiences": {"GROUP": ["good", user]}})), bad);
        assert_eq!(with(json!({"audiences": {user: ["good"]}})), bad);
    }
    let longest = Signer::hs256().token(&claims(&json!({"sub": "x".repeat(200)})));
    assert!(verifier(secret()).verify(&longest, NOW).is_ok());
}

#[test]
fn a_user_is_only_themself() {
    for targets in [json!(["bob"]), json!(["ann"])] {
        let token = Signer::hs256().token(&claims(&json!({"audiences": {"USER": targets}})));
        assert_eq!(refused(&token), TokenRefused::Identity(InvalidIdentity::UserInAudiences));
    }
}

#[test]
fn too_much_is_refused() {
    let huge = "x".repeat(8 * 1024 + 1);
    assert_eq!(refused(&huge), TokenRefused::TooLong { found: huge.len(), limit: 8 * 1024 });
    let groups = |count: usize| (0..count).map(|number| format!("g{number}")).collect::<Vec<_>>();
    let token = |count| Signer::hs256().token(&claims(&json!({"audiences": {"GROUP": groups(count)}})));
    assert!(matches!(refused(&token(1000)), TokenRefused::TooLong { .. }));

    let options = VerifierOptions { longest_token: 64 * 1024, ..VerifierOptions::new(secret()) };
    let verifier = TokenVerifier::new(options).unwrap();
    assert_eq!(verifier.verify(&token(1000), NOW).unwrap().audiences.len(), 1000);
    let why = TokenRefused::Identity(InvalidIdentity::TooManyAudiences { found: 1001 });
    assert_eq!(verifier.verify(&token(1001), NOW), Err(why));
}
