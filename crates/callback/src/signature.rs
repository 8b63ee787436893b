//! Signatures of callbacks: [Standard Webhooks](https://www.standardwebhooks.com), symmetric.
//!
//! The signed text is `{id}.{timestamp}.{body}`, with the body before any compression. During a rotation both secrets
//! sign, and a receiver accepts either.

use std::time::Duration;

use base64::{Engine, prelude::BASE64_STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use relais_core::{SigningSecret, Timestamp};
use sha2::Sha256;

/// What a secret begins with.
const SECRET_PREFIX: &str = "whsec_";
/// What a symmetric signature begins with.
const SIGNATURE_PREFIX: &str = "v1,";
/// How many bytes a secret may have, and how many a new one has.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
const NEW_SECRET_BYTES: usize = 24;

/// Why a secret is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// It does not begin as it should.
    #[error("a signing secret begins with whsec_")]
    Prefix,
    /// What follows can not be read.
    #[error("a signing secret is whsec_ and base64")]
    Base64,
    /// It is too short, or too long.
    #[error("a signing secret has 24 to 64 bytes, not {0}")]
    Length(usize),
    /// There are secrets, but none of them is used any more.
    #[error("all signing secrets have expired")]
    Expired,
}

/// Why a signature does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// The secret is none.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The timestamp is not a number of seconds.
    #[error("the timestamp can not be read")]
    Timestamp,
    /// The timestamp is too old, or too far in the future.
    #[error("the timestamp is too far from now")]
    Stale,
    /// No signature is that of this secret.
    #[error("no signature matches")]
    Mismatch,
}

/// Makes a secret that nobody can guess.
pub fn generate_secret() -> Result<String, getrandom::Error> {
    let mut bytes = [0; NEW_SECRET_BYTES];
    getrandom::fill(&mut bytes)?;
    Ok(format!("{SECRET_PREFIX}{}", BASE64_STANDARD.encode(bytes)))
}

/// Checks that a secret is one: `whsec_` and the base64 of 24 to 64 bytes.
pub fn check_secret(secret: &str) -> Result<(), SecretError> {
    key(secret).map(|_| ())
}

/// Signs with one secret; `at` is what `webhook-timestamp` says, to the second.
pub fn sign(secret: &str, id: &str, at: Timestamp, body: &[u8]) -> Result<String, SecretError> {
    let tag = mac(secret, id, &seconds(at).to_string(), body)?.finalize().into_bytes();
    Ok(format!("{SIGNATURE_PREFIX}{}", BASE64_STANDARD.encode(tag)))
}

/// Signs with every secret that is in use at `now`: the value of `webhook-signature`. None if there are no secrets at
/// all.
///
/// A client that has secrets never gets something unsigned: secrets that can not be used are an error.
pub fn sign_all(
    secrets: &[SigningSecret],
    id: &str,
    now: Timestamp,
    body: &[u8],
) -> Result<Option<String>, SecretError> {
    if secrets.is_empty() {
        return Ok(None);
    }
    let in_use = secrets.iter().filter(|secret| secret.expires.is_none_or(|expires| expires > now));
    let signatures = in_use.map(|secret| sign(&secret.secret, id, now, body)).collect::<Result<Vec<_>, _>>()?;
    if signatures.is_empty() { Err(SecretError::Expired) } else { Ok(Some(signatures.join(" "))) }
}

/// Verifies what came with a callback, for receivers: `id`, `timestamp` and `header` are the values of `webhook-id`,
/// `webhook-timestamp` and `webhook-signature`, `body` is what they came with, decompressed.
///
/// One signature that matches is enough. The comparison takes the same time whatever is wrong.
pub fn verify(
    secret: &str,
    id: &str,
    timestamp: &str,
    body: &[u8],
    header: &str,
    tolerance: Duration,
    now: Timestamp,
) -> Result<(), VerifyError> {
    // Only digits: `+1` is a number too, but then two texts would say the same.
    let is_number = !timestamp.is_empty() && timestamp.bytes().all(|b| b.is_ascii_digit());
    let at = timestamp.parse::<i64>().ok().filter(|_| is_number).ok_or(VerifyError::Timestamp)?;
    if seconds(now).abs_diff(at) > tolerance.as_secs() {
        return Err(VerifyError::Stale);
    }
    let mac = mac(secret, id, timestamp, body)?;
    let matches = |signature: &str| {
        let tag = signature.strip_prefix(SIGNATURE_PREFIX).and_then(|text| BASE64_STANDARD.decode(text).ok());
        tag.is_some_and(|tag| mac.clone().verify_slice(&tag).is_ok())
    };
    if header.split(' ').any(matches) { Ok(()) } else { Err(VerifyError::Mismatch) }
}

/// What `webhook-timestamp` says.
pub(crate) fn seconds(at: Timestamp) -> i64 {
    at.as_millis().div_euclid(1000)
}

fn key(secret: &str) -> Result<Vec<u8>, SecretError> {
    let text = secret.strip_prefix(SECRET_PREFIX).ok_or(SecretError::Prefix)?;
    let key = BASE64_STANDARD.decode(text).map_err(|_| SecretError::Base64)?;
    if SECRET_BYTES.contains(&key.len()) { Ok(key) } else { Err(SecretError::Length(key.len())) }
}

fn mac(secret: &str, id: &str, timestamp: &str, body: &[u8]) -> Result<Hmac<Sha256>, SecretError> {
    let key = key(secret)?;
    // HMAC takes keys of any length: this can not happen, and is not worth a panic.
    let mac = Hmac::<Sha256>::new_from_slice(&key).map_err(|_| SecretError::Length(key.len()))?;
    Ok(mac.chain_update(id).chain_update(".").chain_update(timestamp).chain_update(".").chain_update(body))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    const AT: Timestamp = Timestamp::from_millis(1_614_265_330_000);
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const SIGNATURE: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
    const TOLERANCE: Duration = Duration::from_secs(300);

    fn check(timestamp: &str, body: &[u8], header: &str, now: Timestamp) -> Result<(), VerifyError> {
        verify(SECRET, ID, timestamp, body, header, TOLERANCE, now)
    }

    #[test]
    fn the_published_example_is_signed_and_verified() {
        assert_eq!(sign(SECRET, ID, AT, BODY).unwrap(), SIGNATURE);
        assert_eq!(check("1614265330", BODY, SIGNATURE, AT), Ok(()));
        assert_eq!(check("1614265330", BODY, SIGNATURE, AT.after(Duration::from_millis(999))), Ok(()));
    }

    #[test]
    fn one_valid_signature_among_several_is_accepted() {
        let other = generate_secret().unwrap();
        let others = sign(&other, ID, AT, BODY).unwrap();
        for header in [format!("{others} {SIGNATURE}"), format!("v1a,xyz {SIGNATURE}"), format!("{SIGNATURE} {others}")]
        {
            assert_eq!(check("1614265330", BODY, &header, AT), Ok(()), "{header}");
        }
        assert_eq!(check("1614265330", BODY, &others, AT), Err(VerifyError::Mismatch));
    }

    #[test]
    fn a_changed_id_timestamp_or_body_invalidates_the_signature() {
        let bare = SIGNATURE.trim_start_matches("v1,");
        for header in ["", " ", "v1,", bare, &format!("v2,{bare}"), &format!("v1,{}", &bare[4..]), "v1,????"] {
            assert_eq!(check("1614265330", BODY, header, AT), Err(VerifyError::Mismatch), "{header}");
        }
        assert_eq!(check("1614265330", br#"{"test": 2432232315}"#, SIGNATURE, AT), Err(VerifyError::Mismatch));
        assert_eq!(check("1614265331", BODY, SIGNATURE, AT), Err(VerifyError::Mismatch));
        let renamed = verify(SECRET, "msg_other", "1614265330", BODY, SIGNATURE, TOLERANCE, AT);
        assert_eq!(renamed, Err(VerifyError::Mismatch));
    }

    #[test]
    fn a_signature_with_an_old_or_future_timestamp_is_refused() {
        let far = Duration::from_secs(301);
        assert_eq!(check("1614265330", BODY, SIGNATURE, AT.after(TOLERANCE)), Ok(()));
        assert_eq!(check("1614265330", BODY, SIGNATURE, AT.after(far)), Err(VerifyError::Stale));
        assert_eq!(check("1614265330", BODY, SIGNATURE, AT.before(far)), Err(VerifyError::Stale));
        for timestamp in ["", "now", "+1614265330", "-1", " 1614265330", "1614265330.0", "99999999999999999999"] {
            assert_eq!(check(timestamp, BODY, SIGNATURE, AT), Err(VerifyError::Timestamp), "{timestamp}");
        }
    }

    #[test]
    fn secrets_are_checked() {
        let secret = generate_secret().unwrap();
        assert_eq!(check_secret(&secret), Ok(()));
        assert_ne!(secret, generate_secret().unwrap());
        let of = |bytes: usize| format!("whsec_{}", BASE64_STANDARD.encode(vec![7; bytes]));
        assert_eq!(check_secret(&of(24)), Ok(()));
        assert_eq!(check_secret(&of(64)), Ok(()));
        assert_eq!(check_secret(&of(23)), Err(SecretError::Length(23)));
        assert_eq!(check_secret(&of(65)), Err(SecretError::Length(65)));
        assert_eq!(check_secret("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), Err(SecretError::Prefix));
        assert_eq!(check_secret("whsec_not base64"), Err(SecretError::Base64));
        assert_eq!(check_secret("whsec_"), Err(SecretError::Length(0)));
    }

    #[test]
    fn all_secrets_in_use_sign_and_no_other() {
        let secret = |secret: &str, expires| SigningSecret { secret: secret.to_owned(), created: AT, expires };
        let (new, old) = (generate_secret().unwrap(), generate_secret().unwrap());
        let later = AT.after(Duration::from_millis(1));
        let both = sign_all(&[secret(&new, None), secret(&old, Some(later))], ID, AT, BODY).unwrap().unwrap();
        assert_eq!(both, format!("{} {}", sign(&new, ID, AT, BODY).unwrap(), sign(&old, ID, AT, BODY).unwrap()));
        let one = sign_all(&[secret(&new, None), secret(&old, Some(AT))], ID, AT, BODY).unwrap().unwrap();
        assert_eq!(one, sign(&new, ID, AT, BODY).unwrap());

        assert_eq!(sign_all(&[], ID, AT, BODY), Ok(None));
        assert_eq!(sign_all(&[secret(&old, Some(AT))], ID, AT, BODY), Err(SecretError::Expired));
        assert_eq!(sign_all(&[secret("hush", None)], ID, AT, BODY), Err(SecretError::Prefix));
    }
}
