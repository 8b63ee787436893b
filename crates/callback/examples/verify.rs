//! Checks a callback: `verify ID TIMESTAMP SIGNATURE`, the values of its headers, and its body on stdin. Exits 0 if it
//! is genuine. See docs/guides/callbacks.md.

use std::{
    error::Error,
    io::Read,
    time::{Duration, SystemTime},
};

use relais_callback::signature::{VerifyError, verify};
use relais_core::Timestamp;

/// Checks that this was sent by Relais within five minutes. The body is decompressed, and not parsed.
pub fn check(secret: &str, id: &str, timestamp: &str, signatures: &str, body: &[u8]) -> Result<(), VerifyError> {
    let since_1970 = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let now = Timestamp::from_millis(i64::try_from(since_1970.as_millis()).unwrap_or(i64::MAX));
    verify(secret, id, timestamp, body, signatures, Duration::from_secs(300), now)
}

fn main() -> Result<(), Box<dyn Error>> {
    let secret = std::env::var("RELAIS_SIGNING_SECRET")?;
    let mut arguments = std::env::args().skip(1);
    let mut argument = || arguments.next().ok_or("ID, TIMESTAMP and SIGNATURE are wanted");
    let (id, timestamp, signatures) = (argument()?, argument()?, argument()?);
    let mut body = Vec::new();
    std::io::stdin().read_to_end(&mut body)?;
    Ok(check(&secret, &id, &timestamp, &signatures, &body)?)
}
