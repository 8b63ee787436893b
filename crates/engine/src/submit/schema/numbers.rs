//! How long a number may be before a schema judges it.
//!
//! A validator that is exact writes numbers out: the six bytes of `1e9000` become nine thousand digits, and arithmetic
//! on those takes a time that grows with their square. So a body whose numbers are too long is refused before it is
//! decoded. What no schema judges is carried as it is, and may have any number.

/// The most digits of one number, written out without an exponent.
pub(crate) const MAX_DIGITS: u64 = 1_000;

/// The most zeros that the exponents of all numbers of one body may stand for.
const MAX_ZEROS: u64 = 1_000_000;

/// How much of a number is quoted.
const QUOTED: usize = 24;

/// Says what is wrong with the numbers of a JSON text; nothing if they can all be judged. One pass, whatever the text.
pub(crate) fn too_long(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let (mut at, mut zeros) = (0, 0u64);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => at = after_string(bytes, at),
            b'-' | b'0'..=b'9' => {
                let end =
                    bytes[at..].iter().position(|byte| !in_number(*byte)).map_or(bytes.len(), |length| at + length);
                let (digits, shifted) = lengths(&bytes[at..end]);
                zeros = zeros.saturating_add(shifted);
                if digits.saturating_add(shifted) > MAX_DIGITS {
                    let quoted = String::from_utf8_lossy(&bytes[at..end.min(at + QUOTED)]);
                    let more = if end - at > QUOTED { "…" } else { "" };
                    return Some(format!("{quoted}{more} has more than {MAX_DIGITS} digits, written out"));
                }
                if zeros > MAX_ZEROS {
                    return Some(format!("all exponents together stand for more than {MAX_ZEROS} zeros"));
                }
                at = end;
            }
            _ => at += 1,
        }
    }
    None
}

/// Where a string that begins at a quotation mark ends.
fn after_string(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

const fn in_number(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E')
}

/// How many digits a number has as it is written, and how many zeros its exponent adds to them.
fn lengths(number: &[u8]) -> (u64, u64) {
    let exponent = number.iter().position(|byte| matches!(byte, b'e' | b'E'));
    let (mantissa, exponent) = number.split_at(exponent.unwrap_or(number.len()));
    let digits = mantissa.iter().filter(|byte| byte.is_ascii_digit()).count() as u64;
    let shifted = exponent
        .iter()
        .filter(|byte| byte.is_ascii_digit())
        .fold(0u64, |number, digit| number.saturating_mul(10).saturating_add(u64::from(digit - b'0')));
    (digits, shifted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_up_to_a_thousand_digits_are_judged_and_longer_ones_are_not() {
        for fine in ["0", "-1.5", "1e400", "1E-400", "9223372036854775808", "[1e990, -2e+990]", r#"{"a": 1e+0}"#] {
            assert_eq!(too_long(fine), None, "{fine}");
        }
        let long = "9".repeat(1_001);
        for wrong in ["1e1000", "-1E-1000", "[1, 1e9000]", "1e99999999999999999999999", long.as_str()] {
            assert!(too_long(wrong).is_some(), "{wrong}");
        }
        assert!(too_long(&long).is_some_and(|message| message.len() < 100), "a long number is not quoted whole");
    }

    #[test]
    fn numbers_in_strings_are_not_limited() {
        assert_eq!(too_long(r#"{"1e9000": "\"1e9000", "\\": "1e9000\\"}"#), None);
        assert!(too_long(r#"{"\\": 1e9000}"#).is_some());
    }

    #[test]
    fn many_short_numbers_with_long_exponents_are_too_long_together() {
        let many = |count: usize| format!("[{}]", vec!["1e900"; count].join(","));
        assert_eq!(too_long(&many(1_000)), None);
        assert!(too_long(&many(1_200)).is_some());
    }
}
