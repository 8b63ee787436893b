//! Decimal numbers: PostgreSQL's text to Connect's unscaled bytes.

use super::text::{write_base64, write_i64, write_string};

/// A number in PostgreSQL's text form, taken apart.
struct Digits<'a> {
    negative: bool,
    whole: &'a [u8],
    fraction: &'a [u8],
}

/// None for NaN and infinities.
fn digits(text: &[u8]) -> Option<Digits<'_>> {
    let (negative, text) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let point = text.iter().position(|byte| *byte == b'.').unwrap_or(text.len());
    let (whole, fraction) = (&text[..point], text.get(point + 1..).unwrap_or_default());
    let all_digits = whole.iter().chain(fraction).all(u8::is_ascii_digit);
    (all_digits && !(whole.is_empty() && fraction.is_empty())).then_some(Digits { negative, whole, fraction })
}

/// Writes a number of a fixed scale: the unscaled value in base64. NaN and infinities are null, as in Debezium.
pub fn write_decimal(out: &mut Vec<u8>, text: &[u8], scale: i32) {
    let Some(digits) = digits(text) else {
        return out.extend_from_slice(b"null");
    };
    let mut unscaled = digits.whole.to_vec();
    match usize::try_from(scale) {
        Ok(scale) => {
            unscaled.extend(digits.fraction.iter().copied().chain(std::iter::repeat(b'0')).take(scale));
        }
        // A negative scale: the last digits of the whole part are zeros.
        Err(_) => unscaled.truncate(unscaled.len().saturating_sub(scale.unsigned_abs() as usize)),
    }
    write_base64(out, &twos_complement(digits.negative, &unscaled));
}

/// Writes a number with its own scale. Zeros at the end of the fraction are left out, as in Debezium.
pub fn write_variable_decimal(out: &mut Vec<u8>, text: &[u8]) {
    let Some(digits) = digits(text) else {
        return out.extend_from_slice(b"null");
    };
    let scale = digits.fraction.iter().rposition(|digit| *digit != b'0').map_or(0, |last| last + 1);
    let mut unscaled = digits.whole.to_vec();
    unscaled.extend_from_slice(&digits.fraction[..scale]);
    out.extend_from_slice(b"{\"scale\":");
    write_i64(out, scale as i64);
    out.extend_from_slice(b",\"value\":");
    write_base64(out, &twos_complement(digits.negative, &unscaled));
    out.push(b'}');
}

/// Writes the digits as text.
pub fn write_decimal_text(out: &mut Vec<u8>, text: &[u8]) {
    let text: &[u8] = match text {
        b"NaN" => b"NAN",
        b"Infinity" => b"POSITIVE_INFINITY",
        b"-Infinity" => b"NEGATIVE_INFINITY",
        other => other,
    };
    write_string(out, text);
}

/// Writes a JSON number, the nearest that a double can be.
pub fn write_double(out: &mut Vec<u8>, text: &[u8]) {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse::<f64>().ok());
    match number {
        None => out.extend_from_slice(b"null"),
        Some(number) if number.is_nan() => out.extend_from_slice(b"\"NaN\""),
        Some(number) if number.is_infinite() => {
            out.extend_from_slice(if number > 0.0 { b"\"Infinity\"" as &[u8] } else { b"\"-Infinity\"" });
        }
        // A number cannot fail to be written to memory.
        Some(number) => serde_json::to_writer(out, &number).unwrap_or_default(),
    }
}

/// Writes a `real` or `double precision`: PostgreSQL's digits, which are the shortest that are exact.
pub fn write_float(out: &mut Vec<u8>, text: &[u8]) {
    if text.iter().any(|byte| byte.is_ascii_alphabetic() && *byte != b'e') {
        return write_string(out, text);
    }
    out.extend_from_slice(text);
    // A whole number stays a fraction for readers that tell the two apart.
    if !text.iter().any(|byte| matches!(byte, b'.' | b'e')) {
        out.extend_from_slice(b".0");
    }
}

/// A `money` as a number: PostgreSQL writes `-$1,234.50`.
pub fn money(text: &[u8]) -> Vec<u8> {
    text.iter().copied().filter(|byte| byte.is_ascii_digit() || matches!(byte, b'-' | b'.')).collect()
}

/// A whole number, given by its decimal digits, as Java's `BigInteger` writes it: big-endian, as short as possible.
fn twos_complement(negative: bool, digits: &[u8]) -> Vec<u8> {
    let start = digits.iter().position(|digit| *digit != b'0').unwrap_or(digits.len());
    let digits = &digits[start..];
    let bytes = if digits.len() <= 38 {
        let magnitude = digits.iter().fold(0i128, |sum, digit| sum * 10 + i128::from(digit - b'0'));
        if negative { -magnitude } else { magnitude }.to_be_bytes().to_vec()
    } else {
        large(negative, digits)
    };
    // Leading bytes that only repeat the sign are not written.
    let repeats = bytes
        .windows(2)
        .take_while(|pair| (pair[0] == 0 && pair[1] < 0x80) || (pair[0] == 0xff && pair[1] >= 0x80))
        .count();
    bytes[repeats..].to_vec()
}

fn large(negative: bool, digits: &[u8]) -> Vec<u8> {
    // Limbs of 32 bits, the least significant first; nine digits at a time.
    let mut limbs: Vec<u32> = Vec::with_capacity(digits.len() / 9 + 2);
    for chunk in digits.chunks(9) {
        let mut carry = chunk.iter().fold(0u64, |sum, digit| sum * 10 + u64::from(digit - b'0'));
        let factor = 10u64.pow(chunk.len() as u32);
        for limb in &mut limbs {
            let product = u64::from(*limb) * factor + carry;
            *limb = product as u32;
            carry = product >> 32;
        }
        if carry > 0 {
            limbs.push(carry as u32);
        }
    }
    limbs.push(0);
    if negative {
        let mut carry = true;
        for limb in &mut limbs {
            (*limb, carry) = (!*limb).overflowing_add(u32::from(carry));
        }
    }
    limbs.iter().rev().flat_map(|limb| limb.to_be_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl Fn(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn decimals_are_as_javas_big_integer_writes_them() {
        for (text, scale, expected) in [
            ("12.34", 2, "\"BNI=\""),
            ("-0.01", 2, "\"/w==\""),
            ("0", 0, "\"AA==\""),
            ("128", 0, "\"AIA=\""),
            ("-128", 0, "\"gA==\""),
            ("-129", 0, "\"/38=\""),
            ("123500", -2, "\"BNM=\""),
            ("NaN", 2, "null"),
        ] {
            assert_eq!(written(|out| write_decimal(out, text.as_bytes(), scale)), expected, "{text}");
        }
        assert_eq!(
            written(|out| write_variable_decimal(out, b"12345678901234567890.1234567890")),
            "{\"scale\":9,\"value\":\"J+QbMka+ybFuOYEV\"}"
        );
        assert_eq!(written(|out| write_variable_decimal(out, b"0.00")), "{\"scale\":0,\"value\":\"AA==\"}");
    }

    #[test]
    fn both_ways_to_convert_agree() {
        for digits in ["0", "1", "255", "256", "99999999999999999999999999999999999999", "18446744073709551616"] {
            for negative in [false, true] {
                let short = twos_complement(negative, digits.as_bytes());
                let long = large(negative, digits.as_bytes());
                assert!(long.ends_with(&short), "{digits}");
                let sign = if negative && digits != "0" { 0xff } else { 0 };
                assert!(long[..long.len() - short.len()].iter().all(|byte| *byte == sign), "{digits}");
            }
        }
    }

    #[test]
    fn floats_stay_fractions() {
        for (text, expected) in [("3", "3.0"), ("-0", "-0.0"), ("1e+20", "1e+20"), ("0.1", "0.1"), ("NaN", "\"NaN\"")] {
            assert_eq!(written(|out| write_float(out, text.as_bytes())), expected);
        }
    }
}
