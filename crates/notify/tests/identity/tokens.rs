//! Tokens that are accepted, and what they say.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as URL_SAFE};
use relais_notify::{AudienceKey, ClaimRules, Identities, TokenKeys, TokenRefused};
use serde_json::json;

use crate::{
    NOW, at, claims,
    keys::{EC_PUBLIC, ED_PUBLIC, RSA_PUBLIC, SECRET, Signer, encoded, jwks},
    secret, verifier, verifier_with,
};

#[test]
fn each_algorithm_goes_round() {
    let keys = |pem: &str| TokenKeys::PublicKeys(pem.to_owned());
    for (signer, keys) in [
        (Signer::hs256(), secret()),
        (Signer::rs256(), keys(RSA_PUBLIC)),
        (Signer::es256(), keys(EC_PUBLIC)),
        (Signer::eddsa(), keys(ED_PUBLIC)),
        // A text with several keys, with Windows' ends of lines, and with words in between.
        (Signer::es256(), keys(&format!("# old\n{RSA_PUBLIC}\n# new\n{EC_PUBLIC}\n").replace('\n', "\r\n"))),
        (Signer::rs256(), TokenKeys::Jwks(jwks(&[Signer::rs256().jwk("a")]))),
        (Signer::es256(), TokenKeys::Jwks(jwks(&[Signer::es256().jwk("a")]))),
        (Signer::eddsa(), TokenKeys::Jwks(jwks(&[Signer::eddsa().jwk("a")]))),
    ] {
        let verifier = verifier(keys);
        for token in [signer.token(&claims(&json!({}))), signer.token_by("a", &claims(&json!({})))] {
            let identity = verifier.verify(&token, NOW).unwrap();
            assert_eq!((identity.user.as_str(), identity.audiences), ("ann", vec![]), "{}", signer.alg());
            assert_eq!(identity.expires, Some(at(3660)), "an hour, and the leeway");
        }
    }
}

/// RFC 7515, appendices A.1 to A.3, and RFC 8037, appendix A.4.
#[test]
fn the_examples_of_the_standards_are_verified() {
    const CLAIMS: &str =
        "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";
    let rules = ClaimRules { user_claim: "iss".to_owned(), ..ClaimRules::default() };
    let before = "2011-03-22T18:00:00Z".parse().unwrap();

    let key = URL_SAFE.decode("AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow");
    let token =
        format!("eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.{CLAIMS}.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk");
    let joe = verifier_with(TokenKeys::Secrets(vec![key.unwrap()]), rules.clone()).verify(&token, before).unwrap();
    assert_eq!(joe.user, "joe");

    let n = "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4Ql\
             L-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUs\
             LA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoud\
             F8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ";
    let set = jwks(&[
        json!({"kty": "RSA", "n": n, "e": "AQAB"}),
        json!({
            "kty": "EC", "crv": "P-256",
            "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU", "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"
        }),
        json!({"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}),
    ]);
    let verifier = verifier_with(TokenKeys::Jwks(set), rules);
    let rs256 = "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujG\
             bds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K\
             0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6\
             LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw";
    let es256 = "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q";
    for (header, signature) in [("eyJhbGciOiJSUzI1NiJ9", rs256), ("eyJhbGciOiJFUzI1NiJ9", es256)] {
        let joe = verifier.verify(&format!("{header}.{CLAIMS}.{signature}"), before).unwrap();
        assert_eq!(joe.user, "joe");
    }
    // The example for Ed25519 signs no claims: the signature is good, and what it signs is not.
    let eddsa = "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc.\
                 hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg";
    let not_claims = Err(TokenRefused::Malformed("the claims are not a JSON object"));
    assert_eq!(verifier.verify(eddsa, before), not_claims);
}

#[test]
fn audiences_come_from_the_claim_each_once_and_in_order() {
    let keys = |kind: &str, targets: &[&str]| -> Vec<AudienceKey> {
        targets.iter().map(|target| AudienceKey::new(kind, *target)).collect()
    };
    let said = claims(&json!({
        "audiences": {"ROLE": [], "GROUP": ["teachers", "1b", "1b"]},
        "realm_access": {"groups": {"ROLE": ["admin"]}},
        "https://example.com/groups": {"FORMATION": ["f1"]},
    }));
    for (name, expected) in [
        (Some("audiences"), keys("GROUP", &["1b", "teachers"])),
        (Some("realm_access.groups"), keys("ROLE", &["admin"])),
        (Some("https://example.com/groups"), keys("FORMATION", &["f1"])),
        (Some("realm_access.none"), vec![]),
        (Some("none.groups"), vec![]),
        (None, vec![]),
    ] {
        let rules = ClaimRules { audiences_claim: name.map(str::to_owned), ..ClaimRules::default() };
        let identity = verifier_with(secret(), rules).verify(&Signer::hs256().token(&said), NOW).unwrap();
        assert_eq!(identity.audiences, expected, "{name:?}");
    }
}

#[test]
fn the_user_may_be_a_nested_claim() {
    let rules = ClaimRules { user_claim: "account.login".to_owned(), ..ClaimRules::default() };
    let verifier = verifier_with(secret(), rules);
    let token = |account: serde_json::Value| Signer::hs256().token(&claims(&json!({"account": account})));
    assert_eq!(verifier.verify(&token(json!({"login": "bob"})), NOW).unwrap().user, "bob");
    let missing = Err(TokenRefused::MissingClaim("account.login".to_owned()));
    for other in [json!({}), json!({"login": null}), json!(null)] {
        assert_eq!(verifier.verify(&token(other), NOW), missing);
    }
    let bad = TokenRefused::BadClaim { claim: "account".to_owned(), expected: "an object" };
    assert_eq!(verifier.verify(&token(json!("bob")), NOW), Err(bad));
}

#[test]
fn a_token_is_valid_from_nbf_to_exp_and_a_leeway_beyond_both() {
    let token = |claims: serde_json::Value| Signer::hs256().token(&claims);
    let (from, to) = (NOW.as_second(), NOW.as_second() + 100);
    let verify = |leeway: u64, seconds: i64| {
        let rules = ClaimRules { leeway: Duration::from_secs(leeway), ..ClaimRules::default() };
        let said = json!({"sub": "ann", "nbf": from, "exp": f64::from(u32::try_from(to).unwrap()) + 0.5});
        verifier_with(secret(), rules).verify(&token(said), at(seconds)).map(|identity| identity.expires)
    };
    for leeway in [0, 60] {
        let beyond = i64::try_from(leeway).unwrap();
        assert_eq!(verify(leeway, -beyond - 1), Err(TokenRefused::NotYetValid));
        assert_eq!(verify(leeway, -beyond), Ok(Some(at(100 + beyond))));
        assert_eq!(verify(leeway, 99 + beyond), Ok(Some(at(100 + beyond))));
        assert_eq!(verify(leeway, 100 + beyond), Err(TokenRefused::Expired));
    }
    let verifier = verifier(secret());
    let missing = Err(TokenRefused::MissingClaim("exp".to_owned()));
    for forever in [json!({"sub": "ann"}), json!({"sub": "ann", "exp": null})] {
        assert_eq!(verifier.verify(&token(forever.clone()), NOW), missing);
        let rules = ClaimRules { exp_required: false, ..ClaimRules::default() };
        assert_eq!(verifier_with(secret(), rules).verify(&token(forever), NOW).unwrap().expires, None);
    }
    let end = verifier.verify(&token(json!({"sub": "ann", "exp": 1e300})), NOW).unwrap().expires;
    assert!(end.is_some_and(|end| end > at(100 * 365 * 86_400)));
}

#[test]
fn issuer_and_audience_are_checked_if_they_are_configured() {
    let rules = ClaimRules {
        iss: vec!["https://id.example.com".to_owned(), "https://old.example.com".to_owned()],
        aud: vec!["relais".to_owned()],
        ..ClaimRules::default()
    };
    let verifier = verifier_with(secret(), rules);
    let verify = |iss: serde_json::Value, aud: serde_json::Value| {
        let token = Signer::hs256().token(&claims(&json!({"iss": iss, "aud": aud})));
        verifier.verify(&token, NOW).map(|identity| identity.user)
    };
    let good = "https://id.example.com";
    for aud in [json!("relais"), json!(["other", "relais"])] {
        assert_eq!(verify(json!(good), aud), Ok("ann".to_owned()));
    }
    for iss in [json!("https://id.example.com/"), json!(null)] {
        assert_eq!(verify(iss, json!("relais")), Err(TokenRefused::WrongIssuer));
    }
    for aud in [json!("relais2"), json!([]), json!(["other"]), json!(null)] {
        assert_eq!(verify(json!(good), aud), Err(TokenRefused::WrongAudience));
    }
    let bad_claim = |verified: Result<String, TokenRefused>| match verified {
        Err(TokenRefused::BadClaim { claim, .. }) => claim,
        other => format!("{other:?}"),
    };
    assert_eq!(bad_claim(verify(json!([good]), json!("relais"))), "iss");
    assert_eq!(bad_claim(verify(json!(good), json!({"relais": true}))), "aud");
}

#[test]
fn a_secret_is_changed_while_both_are_accepted() {
    let next = b"another secret of at least 32 bytes".to_vec();
    let both = verifier(TokenKeys::Secrets(vec![next.clone(), SECRET.to_vec()]));
    for signer in [Signer::hs256(), Signer::Hs256(next.clone())] {
        assert!(both.verify(&signer.token(&claims(&json!({}))), NOW).is_ok());
    }
    let old = Signer::hs256().token(&claims(&json!({})));
    let after = verifier(TokenKeys::Secrets(vec![next]));
    assert_eq!(after.verify(&old, NOW), Err(TokenRefused::BadSignature));
}

#[test]
fn the_second_name_of_eddsa_is_understood() {
    let token = Signer::eddsa().token_of(r#"{"alg":"Ed25519"}"#, &claims(&json!({})).to_string());
    assert!(verifier(TokenKeys::PublicKeys(ED_PUBLIC.to_owned())).verify(&token, NOW).is_ok());
}

#[test]
fn what_there_is_no_verifier_for_is_refused() {
    let token = Signer::hs256().token(&claims(&json!({})));
    let tokens_only = Identities::new(Some(verifier(secret())), None);
    assert!(tokens_only.verify(&token, NOW).is_ok());
    assert_eq!(tokens_only.verify("rt_AQ", NOW), Err(TokenRefused::NoTickets));
    let nothing = Identities::new(None, None);
    for token in [token.as_str(), "", &encoded("x")] {
        assert_eq!(nothing.verify(token, NOW), Err(TokenRefused::NoTokens));
    }
}
