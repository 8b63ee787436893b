//! What an answer means: its status, when the endpoint wants to be asked again, and a few words to keep.
//!
//! The status decides alone. The body is for people, and comes from strangers: it is cut, and cleaned of whatever could
//! play tricks on a terminal, a log or a database.

use std::time::{Duration, SystemTime};

use relais_core::{ReplyOutcome, Timestamp};
use reqwest::{
    StatusCode,
    header::{HeaderMap, LOCATION, RETRY_AFTER},
};

/// The longest time that an endpoint may ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// How much of a redirect's target is told.
const MAX_LOCATION: usize = 100;

/// What a status means, and why it is not a success.
pub(crate) fn outcome(status: StatusCode, headers: &HeaderMap, now: Timestamp) -> (ReplyOutcome, Option<String>) {
    let said = match status.canonical_reason() {
        Some(reason) => format!("answered {} {reason}", status.as_u16()),
        None => format!("answered {}", status.as_u16()),
    };
    let asks = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    let retry_after = if asks { retry_after(headers, now) } else { None };
    match status.as_u16() {
        200..=299 => (ReplyOutcome::Delivered, None),
        300..=399 => (ReplyOutcome::Refused { retry_after: None }, Some(redirect(&said, headers))),
        410 => (ReplyOutcome::Gone, Some(said)),
        400..=499 => (ReplyOutcome::Refused { retry_after }, Some(said)),
        _ => (ReplyOutcome::Unwell { retry_after }, Some(said)),
    }
}

fn redirect(said: &str, headers: &HeaderMap) -> String {
    match headers.get(LOCATION) {
        Some(location) => {
            format!(
                "{said}: redirects are not followed (to {})",
                excerpt(without_query(location.as_bytes()), MAX_LOCATION)
            )
        }
        None => format!("{said}: redirects are not followed"),
    }
}

/// How long the endpoint wants to be left alone: seconds, or a date.
fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        // Too many digits for a number are a long time too.
        text.parse().map_or(MAX_RETRY_AFTER, Duration::from_secs)
    } else {
        let date = httpdate::parse_http_date(text).ok()?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
        Timestamp::from_millis(i64::try_from(date.as_millis()).ok()?).since(now)
    };
    Some(wait.min(MAX_RETRY_AFTER)).filter(|wait| !wait.is_zero())
}

/// The first bytes of something, as text that does no harm: at most `limit` bytes, without control characters and
/// without those that change the direction of writing.
pub(crate) fn excerpt(bytes: &[u8], limit: usize) -> String {
    let mut text = String::new();
    for c in String::from_utf8_lossy(&bytes[..bytes.len().min(limit)]).chars() {
        let c = match c {
            '\0' => continue,
            '\t' | '\n' | '\r' | '\u{2028}' | '\u{2029}' => ' ',
            '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => char::REPLACEMENT_CHARACTER,
            c if c.is_control() => char::REPLACEMENT_CHARACTER,
            c => c,
        };
        if text.len() + c.len_utf8() > limit {
            break;
        }
        text.push(c);
    }
    text
}

/// What comes after the path may give something away, and is not needed to find the mistake.
fn without_query(location: &[u8]) -> &[u8] {
    location.split(|byte| matches!(byte, b'?' | b'#')).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(784_111_777_000); // Sun, 06 Nov 1994 08:49:37 GMT

    fn asks(text: &str) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, text.parse().unwrap());
        retry_after(&headers, NOW)
    }

    #[test]
    fn an_endpoint_asks_in_seconds_or_by_a_date() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(asks("120"), seconds(120));
        assert_eq!(asks(" 7 "), seconds(7));
        assert_eq!(asks("Sun, 06 Nov 1994 08:50:37 GMT"), seconds(60));
        assert_eq!(asks("Sunday, 06-Nov-94 08:50:37 GMT"), seconds(60));
        assert_eq!(asks("Sun Nov  6 08:50:37 1994"), seconds(60));
        assert_eq!(asks("86401"), seconds(86_400));
        assert_eq!(asks("99999999999999999999999999"), seconds(86_400));
        assert_eq!(asks("Fri, 31 Dec 2100 23:59:59 GMT"), seconds(86_400));
    }

    #[test]
    fn an_invalid_retry_after_is_ignored() {
        for text in
            ["0", "", "soon", "-5", "1.5", "+3", "Sun, 06 Nov 1994 08:49:37 GMT", "Sat, 05 Nov 1994 08:49:37 GMT"]
        {
            assert_eq!(asks(text), None, "{text}");
        }
    }

    #[test]
    fn the_status_decides() {
        let of = |status: u16| outcome(StatusCode::from_u16(status).unwrap(), &HeaderMap::new(), NOW);
        for status in [200, 201, 202, 204, 299] {
            assert_eq!(of(status), (ReplyOutcome::Delivered, None), "{status}");
        }
        for status in [300, 301, 302, 303, 304, 307, 308, 400, 401, 403, 404, 408, 413, 425, 429, 499] {
            assert!(matches!(of(status), (ReplyOutcome::Refused { retry_after: None }, Some(_))), "{status}");
        }
        for status in [101, 500, 501, 502, 503, 504, 599, 600, 999] {
            assert!(matches!(of(status), (ReplyOutcome::Unwell { retry_after: None }, Some(_))), "{status}");
        }
        assert_eq!(of(410), (ReplyOutcome::Gone, Some("answered 410 Gone".to_owned())));
        assert_eq!(of(599).1.unwrap(), "answered 599");
    }

    #[test]
    fn retry_after_is_obeyed_only_for_statuses_that_allow_it() {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, "9".parse().unwrap());
        let of = |status: u16| outcome(StatusCode::from_u16(status).unwrap(), &headers, NOW).0;
        let nine = Some(Duration::from_secs(9));
        assert_eq!(of(429), ReplyOutcome::Refused { retry_after: nine });
        assert_eq!(of(503), ReplyOutcome::Unwell { retry_after: nine });
        assert_eq!(of(404), ReplyOutcome::Refused { retry_after: None });
        assert_eq!(of(500), ReplyOutcome::Unwell { retry_after: None });
        assert_eq!(of(302), ReplyOutcome::Refused { retry_after: None });
    }

    #[test]
    fn excerpts_do_no_harm() {
        assert_eq!(excerpt(b"a\0b\r\nc\td", 99), "ab  c d");
        assert_eq!(excerpt("\u{1b}[2J\u{7f}\u{9b}\u{202e}x".as_bytes(), 99), "\u{fffd}[2J\u{fffd}\u{fffd}\u{fffd}x");
        assert_eq!(excerpt(b"abc", 2), "ab");
        assert_eq!(excerpt(&[0xff; 1024], 1024).len(), 1023, "broken bytes grow when they are replaced");
        assert_eq!(excerpt("é".repeat(10).as_bytes(), 6), "ééé");
        assert!(excerpt("é".repeat(10).as_bytes(), 5).len() <= 5);
        assert_eq!(excerpt(b"", 9), "");
    }
}
