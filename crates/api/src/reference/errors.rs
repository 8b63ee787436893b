//! `docs/guides/errors.md`: every error number, when it happens and what to do about it.

use std::fmt::Write as _;

use axum::http::StatusCode;
use relais_protocol::ErrorNumber;

use super::markdown::paragraph;

const OPENING: &str = r#"# Error numbers

<!-- `relais reference errors` prints this page. Change crates/protocol/src/numbers.rs, then run `cargo xtask gen`. -->

Every refusal has a number. Programs compare the number; people read the description and the details:

```json
{
  "status": "error",
  "error": {
    "number": 400001,
    "description": "Error validating the body with the target service's json-schema.",
    "details": [{ "path": "/width", "message": "\"wide\" is not of type \"integer\"" }]
  }
}
```

The first three digits are the HTTP status. A number never changes its meaning. `details` says what exactly is wrong,
where that helps; `path` is a JSON pointer into the request.

A request that was answered with 408, 429 or 503 can be repeated; `Retry-After`, where there is one, says after how many
seconds. Submissions that are repeated after a 500 or 503 need an `Idempotency-Key`, or the task may exist twice. Most
other refusals come again until the request or the server changes.

The metric `relais_http_refusals_total{number}` counts refusals.
"#;

/// The page, by number.
pub fn errors() -> String {
    let mut numbers = ErrorNumber::ALL.to_vec();
    numbers.sort_unstable_by_key(|number| number.number());
    let mut text = OPENING.to_owned();
    let mut status = 0;
    for number in numbers {
        if number.status() != status {
            status = number.status();
            let name = StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
            let _ = write!(text, "\n## {status} {}\n", name.unwrap_or_default());
        }
        let _ = write!(text, "\n### {}\n\n**{}**\n\n", number.number(), number.description());
        text += &paragraph(number.cause());
        text.push('\n');
        text += &paragraph(&format!("*Remedy:* {}", number.remedy()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_a_section() {
        let page = errors();
        for number in ErrorNumber::ALL {
            let heading = format!("\n### {}\n\n**{}**\n", number.number(), number.description());
            assert_eq!(page.matches(&heading).count(), 1, "{heading}");
        }
        assert!(page.contains("\n## 429 Too Many Requests\n"), "{page}");
        assert!(page.lines().all(|line| line.chars().count() <= 120), "{page}");
    }
}
