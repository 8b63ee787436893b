//! Writing JSON by hand: strings, base64, hex.

use std::borrow::Cow;

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE},
};

const HEX: &[u8; 16] = b"0123456789abcdef";

/// Writes a JSON string. Bytes that are not UTF-8 are replaced: a database in SQL_ASCII may have them.
pub fn write_string(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    write_escaped(out, text);
    out.push(b'"');
}

/// Writes the inside of a JSON string.
pub fn write_escaped(out: &mut Vec<u8>, text: &[u8]) {
    let text: Cow<'_, [u8]> = match std::str::from_utf8(text) {
        Ok(_) => Cow::Borrowed(text),
        Err(_) => Cow::Owned(String::from_utf8_lossy(text).into_owned().into_bytes()),
    };
    let mut rest: &[u8] = &text;
    while let Some(at) = rest.iter().position(|byte| matches!(byte, 0..=0x1f | b'"' | b'\\')) {
        let (plain, special) = rest.split_at(at);
        out.extend_from_slice(plain);
        match special[0] {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            control => {
                out.extend_from_slice(b"\\u00");
                push_hex(out, control);
            }
        }
        rest = &special[1..];
    }
    out.extend_from_slice(rest);
}

/// A JSON string.
pub fn string(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 2);
    write_string(&mut out, text.as_bytes());
    out
}

/// Writes a JSON string with the bytes in base64.
pub fn write_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'"');
    extend_base64(out, bytes, false);
    out.push(b'"');
}

/// Writes base64, with the alphabet for URLs if asked to.
pub fn extend_base64(out: &mut Vec<u8>, bytes: &[u8], url_safe: bool) {
    let engine = if url_safe { &URL_SAFE } else { &STANDARD };
    let start = out.len();
    out.resize(start + bytes.len().div_ceil(3) * 4, 0);
    // The slice has just the length that is needed, so that this cannot fail.
    let written = engine.encode_slice(bytes, &mut out[start..]).unwrap_or(0);
    out.truncate(start + written);
}

/// Writes two hexadecimal digits.
pub fn push_hex(out: &mut Vec<u8>, byte: u8) {
    out.push(HEX[usize::from(byte >> 4)]);
    out.push(HEX[usize::from(byte & 15)]);
}

/// The bytes that hexadecimal digits stand for. None if there is anything else in them.
pub fn from_hex(digits: &[u8]) -> Option<Vec<u8>> {
    fn nibble(digit: u8) -> Option<u8> {
        match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            b'A'..=b'F' => Some(digit - b'A' + 10),
            _ => None,
        }
    }
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    digits.chunks_exact(2).map(|pair| Some(nibble(pair[0])? << 4 | nibble(pair[1])?)).collect()
}

/// Writes a number.
pub fn write_i64(out: &mut Vec<u8>, number: i64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = number.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn strings_and_numbers_are_read_back(text in "\\PC*|[\\x00-\\x7f]*", number: i64) {
            let mut out = Vec::new();
            write_string(&mut out, text.as_bytes());
            assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), text);
            out.clear();
            write_i64(&mut out, number);
            assert_eq!(out, number.to_string().into_bytes());
        }
    }

    #[test]
    fn what_is_not_utf8_is_replaced() {
        let mut out = Vec::new();
        write_string(&mut out, b"a\xff\"");
        assert_eq!(out, "\"a\u{fffd}\\\"\"".as_bytes());
    }

    #[test]
    fn only_hex_digits_are_bytes() {
        assert_eq!(from_hex(b"00Ff"), Some(vec![0, 255]));
        assert_eq!((from_hex(b"0"), from_hex(b"0g")), (None, None));
    }
}
