//! Keys that are refused, and secrets that are not told.

use relais_notify::{Identities, KeysRefused, Tickets, TokenKeys, VerifierOptions};

use crate::{
    keys::{EC_PUBLIC, ED_PUBLIC, Signer, jwks},
    refused, secret, verifier,
};

const RSA_1024: &str = "-----BEGIN PUBLIC KEY-----
MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQDaQtThiU3HpJ4JRzVCfR5W2WWi
QWNocyCGksoeU8SKKUBPSCfXCXDhSP6FrORk2MdsXMrj0g/1EejR1gOZllxBrQm4
AIWmRB5Z0tI6kA0LuyQKyoLm6b9qojYQ3BGE7eKCjnqEQVUI/pgHlo+tXrwt/DB+
zaKT+YwN/Ov2xHpPcQIDAQAB
-----END PUBLIC KEY-----";

const EC_P384: &str = "-----BEGIN PUBLIC KEY-----
MHYwEAYHKoZIzj0CAQYFK4EEACIDYgAED2r1SsmbKVXZX3U+lPzb0Aa50zi1D6x4
hQ/21oaUCT1SOTdAxOOCdye50sYPB0xX79FwG3GovelctejTVyS3BF0s2ZR3IGyp
3/bWVA1YWF99WQBb87YklIYRKm45Mwxb
-----END PUBLIC KEY-----";

#[test]
fn weak_secrets_are_refused_with_what_to_do() {
    let secrets =
        |secrets: &[&[u8]]| refused(TokenKeys::Secrets(secrets.iter().map(|secret| secret.to_vec()).collect()));
    assert_eq!(secrets(&[]), Some(KeysRefused::NoSecret));
    assert_eq!(secrets(&[b""]), Some(KeysRefused::WeakSecret { found: 0 }));
    assert_eq!(secrets(&[&[7; 32], &[7; 31]]), Some(KeysRefused::WeakSecret { found: 31 }));
    assert_eq!(secrets(&[&[7; 32]]), None);
    assert_eq!(secrets(&[format!("\n{EC_PUBLIC}").as_bytes()]), Some(KeysRefused::SecretIsPem));
    assert_eq!(
        KeysRefused::WeakSecret { found: 7 }.to_string(),
        "an HS256 secret must have at least 32 bytes, and this one has 7; make one with `openssl rand -base64 48`"
    );
}

#[test]
fn public_keys_of_other_kinds_are_refused() {
    let pem = |pem: &str| refused(TokenKeys::PublicKeys(pem.to_owned()));
    for (text, why) in [
        (String::new(), KeysRefused::NoPublicKey),
        ("a secret".to_owned(), KeysRefused::NoPublicKey),
        (EC_PUBLIC.replace("PUBLIC KEY", "CERTIFICATE"), KeysRefused::NoPublicKey),
        (EC_PUBLIC.replace("-----END PUBLIC KEY-----", ""), KeysRefused::NoPublicKey),
        (EC_PUBLIC.replace("PUBLIC KEY", "PRIVATE KEY"), KeysRefused::PrivateKey),
        (format!("{ED_PUBLIC}\n{}", EC_PUBLIC.replace("PUBLIC KEY", "EC PRIVATE KEY")), KeysRefused::PrivateKey),
        (RSA_1024.to_owned(), KeysRefused::UnsupportedPublicKey),
        (EC_P384.to_owned(), KeysRefused::UnsupportedPublicKey),
        (format!("{ED_PUBLIC}\n{EC_P384}"), KeysRefused::UnsupportedPublicKey),
    ] {
        assert_eq!(pem(&text), Some(why), "{text}");
    }
}

#[test]
fn nothing_tells_a_secret() {
    let text = "a secret that must not be told to anybody";
    let options = VerifierOptions::new(TokenKeys::Secrets(vec![text.as_bytes().to_vec()]));
    let tickets = Tickets::new(*b"the key of tickets, also secret.");
    let tokens = verifier(options.keys.clone());
    let said = format!("{options:?} {tokens:?} {tickets:?} {:?}", Identities::new(Some(verifier(secret())), None));
    let bytes = |secret: &str| format!("{:?}", secret.as_bytes()).trim_matches(['[', ']']).to_owned();
    for secret in [text, "the key of tickets, also secret."] {
        assert!(!said.contains(secret) && !said.contains(&bytes(secret)), "{said}");
    }
    // A set with a private or symmetric key in the wrong place is not quoted when it is refused.
    let quoted = refused(TokenKeys::Jwks(r#"{"keys": "a secret"}"#.to_owned())).unwrap();
    let skipped = refused(TokenKeys::Jwks(jwks(&[Signer::Hs256(text.into()).jwk("a")]))).unwrap();
    for why in [quoted, skipped] {
        assert!(!format!("{why} {why:?}").contains("a secret"));
    }
}
