//! Writing one value: PostgreSQL's text to the JSON of its field.
//!
//! A text that is not of its type becomes null. PostgreSQL wrote it, so that does not happen.

use super::{
    array::{self, Element},
    field::{Field, Unit},
    number::{money, write_decimal, write_decimal_text, write_double, write_float, write_variable_decimal},
    options::{BinaryMode, UNAVAILABLE_VALUE},
    text::{extend_base64, from_hex, push_hex, string, write_base64, write_escaped, write_i64, write_string},
    time::{self, Interval, write_date, write_time},
};

const NULL: &[u8] = b"null";

/// What Debezium has in an array of UUIDs for an unchanged TOAST value: a UUID made of the default placeholder's MD5.
const UNAVAILABLE_UUID: &str = "b68a35a7-17ad-35b3-af2a-ae46edb4545a";

impl Field {
    /// Writes a value.
    pub fn write(&self, out: &mut Vec<u8>, text: &[u8]) {
        match self {
            Self::Boolean => out.extend_from_slice(if text == b"t" { b"true" } else { b"false" }),
            Self::Int16 | Self::Int32 | Self::Int64 => out.extend_from_slice(text),
            Self::Float | Self::Double => write_float(out, text),
            Self::Text(_) | Self::Enum(_) => write_string(out, text),
            Self::Decimal { scale, .. } => write_decimal(out, text, *scale),
            Self::VariableDecimal => write_variable_decimal(out, text),
            Self::DecimalText { .. } => write_decimal_text(out, text),
            Self::DecimalDouble => write_double(out, text),
            Self::Money(inner) => inner.write(out, &money(text)),
            Self::Bytes(mode) => write_bytes(out, text, *mode),
            Self::Date(_) => write_number(out, time::date(text)),
            Self::IsoDate => write_iso(out, time::date(text), |out, days| {
                write_date(out, days);
                out.push(b'Z');
            }),
            Self::Time(unit) => write_number(out, time::time(text).and_then(|micros| unit.of(micros))),
            Self::IsoTime => write_iso(out, time::time(text), zulu_time),
            // Debezium's numbers for infinite timestamps have no nanoseconds.
            Self::Timestamp(Unit::Nanoseconds) if text == b"infinity" => write_i64(out, i64::MAX),
            Self::Timestamp(Unit::Nanoseconds) if text == b"-infinity" => write_i64(out, i64::MIN),
            Self::Timestamp(unit) => write_number(out, time::timestamp(text).and_then(|moment| unit.of_moment(moment))),
            Self::IsoTimestamp => {
                write_iso(out, time::timestamp(text), |out, moment| moment.write(out, None));
            }
            Self::ZonedTime => write_iso(out, time::zoned_time(text), zulu_time),
            Self::ZonedTimestamp(_) if text.ends_with(b"infinity") => write_string(out, text),
            Self::ZonedTimestamp(precision) => {
                write_iso(out, time::zoned_timestamp(text), |out, moment| moment.write(out, Some(*precision)));
            }
            Self::Interval => write_number(out, Interval::parse(text).map(|interval| interval.micros())),
            Self::IsoInterval => write_iso(out, Interval::parse(text), |out, interval| interval.write(out)),
            Self::Bit => out.extend_from_slice(if text == b"1" { b"true" } else { b"false" }),
            Self::Bits { .. } => write_base64(out, &bits(text)),
            Self::Point => write_point(out, text),
            Self::Hstore => write_hstore(out, text),
            Self::Geometry(_) => write_geometry(out, text),
            // pgvector's own form is a JSON array.
            Self::Vector(_) => out.extend_from_slice(text),
            Self::Array(element) => write_array(out, text, element),
        }
    }

    /// What stands for a missing value of a column that cannot be null: Debezium's choice for each type. It is needed in
    /// `before`, where the log has the key's columns only.
    pub fn fallback(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Boolean | Self::Bit => out.extend_from_slice(b"false"),
            Self::Int16 | Self::Int32 | Self::Int64 => out.push(b'0'),
            Self::Float | Self::Double | Self::DecimalDouble => out.extend_from_slice(b"0.0"),
            Self::DecimalText { scale } => {
                let zeros = usize::try_from(*scale).unwrap_or(0);
                let text = if zeros > 0 { format!("\"0.{}\"", "0".repeat(zeros)) } else { "\"0\"".to_owned() };
                out.extend_from_slice(text.as_bytes());
            }
            Self::Decimal { .. } | Self::VariableDecimal => self.write(&mut out, b"0"),
            Self::Money(inner) => return inner.fallback(),
            Self::Date(_) | Self::IsoDate => self.write(&mut out, b"1970-01-01"),
            Self::Time(_) | Self::IsoTime => self.write(&mut out, b"00:00:00"),
            Self::Timestamp(_) | Self::IsoTimestamp => self.write(&mut out, b"1970-01-01 00:00:00"),
            Self::ZonedTime => self.write(&mut out, b"00:00:00+00"),
            Self::ZonedTimestamp(_) => return string("1970-01-01T00:00:00Z"),
            Self::Interval | Self::IsoInterval => self.write(&mut out, b"00:00:00"),
            Self::Text(_) | Self::Enum(_) | Self::Bytes(_) | Self::Bits { .. } => return string(""),
            Self::Hstore => return string("{}"),
            Self::Point => write_point(&mut out, b"(0,0)"),
            Self::Geometry(_) => out.extend_from_slice(b"{\"wkb\":\"\",\"srid\":null}"),
            Self::Vector(_) | Self::Array(_) => out.extend_from_slice(b"[]"),
        }
        out
    }

    /// What stands for an unchanged TOAST value. Where the type leaves no room for a mark, it is null.
    pub fn unavailable(&self, placeholder: &str) -> Vec<u8> {
        let bytes = placeholder.as_bytes();
        let mut out = Vec::new();
        match self {
            Self::Hstore => {
                let name = String::from_utf8(string(placeholder)).unwrap_or_default();
                return string(&format!("{{{name}:{name}}}"));
            }
            field if field.is_string() => return string(placeholder),
            Self::Bytes(_) => write_base64(&mut out, bytes),
            Self::Array(element) => match &**element {
                Self::Int32 | Self::Int64 | Self::Date("io.debezium.time.Date") => {
                    let numbers: Vec<String> = bytes.iter().map(u8::to_string).collect();
                    return format!("[{}]", numbers.join(",")).into_bytes();
                }
                Self::Text(Some("io.debezium.data.Uuid")) if placeholder == UNAVAILABLE_VALUE => {
                    return format!("[\"{UNAVAILABLE_UUID}\"]").into_bytes();
                }
                element if element.is_string() || matches!(element, Self::Bytes(_)) => {
                    out.push(b'[');
                    out.extend_from_slice(&element.unavailable(placeholder));
                    out.push(b']');
                }
                _ => out.extend_from_slice(NULL),
            },
            _ => out.extend_from_slice(NULL),
        }
        out
    }
}

impl Unit {
    /// Whether a time of day needs 64 bits.
    pub fn is_wide(self) -> bool {
        !matches!(self, Self::Milliseconds | Self::Connect)
    }
}

fn write_number(out: &mut Vec<u8>, number: Option<i64>) {
    match number {
        Some(number) => write_i64(out, number),
        None => out.extend_from_slice(NULL),
    }
}

/// Writes ISO text in quotes.
fn write_iso<T>(out: &mut Vec<u8>, value: Option<T>, write: impl FnOnce(&mut Vec<u8>, T)) {
    match value {
        Some(value) => {
            out.push(b'"');
            write(out, value);
            out.push(b'"');
        }
        None => out.extend_from_slice(NULL),
    }
}

fn zulu_time(out: &mut Vec<u8>, micros: i64) {
    write_time(out, micros, None);
    out.push(b'Z');
}

/// PostgreSQL writes `\xdead`.
fn write_bytes(out: &mut Vec<u8>, text: &[u8], mode: BinaryMode) {
    let digits = text.strip_prefix(b"\\x").unwrap_or(text);
    if mode == BinaryMode::Hex {
        return write_string(out, digits);
    }
    match from_hex(digits) {
        Some(bytes) => {
            out.push(b'"');
            extend_base64(out, &bytes, mode == BinaryMode::Base64UrlSafe);
            out.push(b'"');
        }
        None => out.extend_from_slice(NULL),
    }
}

/// A bit string as Java's `BitSet` writes it: the last bit is the lowest of the first byte, zeros at the end are left out.
fn bits(text: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; text.len().div_ceil(8)];
    for (place, _) in text.iter().rev().enumerate().filter(|(_, bit)| **bit == b'1') {
        bytes[place / 8] |= 1 << (place % 8);
    }
    let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    bytes.truncate(used);
    bytes
}

/// PostgreSQL writes `(1.5,-2)`. The bytes are well-known binary, little-endian.
fn write_point(out: &mut Vec<u8>, text: &[u8]) {
    let inside = text.strip_prefix(b"(").and_then(|text| text.strip_suffix(b")")).unwrap_or_default();
    let mut parts = inside.splitn(2, |byte| *byte == b',');
    let (Some(x), Some(y)) = (parts.next(), parts.next()) else {
        return out.extend_from_slice(NULL);
    };
    let mut wkb = vec![1, 1, 0, 0, 0];
    for part in [x, y] {
        let number: f64 = std::str::from_utf8(part).ok().and_then(|part| part.parse().ok()).unwrap_or(f64::NAN);
        wkb.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(b"{\"x\":");
    write_float(out, x);
    out.extend_from_slice(b",\"y\":");
    write_float(out, y);
    out.extend_from_slice(b",\"wkb\":");
    write_base64(out, &wkb);
    out.extend_from_slice(b",\"srid\":null}");
}

/// PostGIS writes its extended well-known binary in hex. The reference system is in it, if a bit of the type says so.
fn write_geometry(out: &mut Vec<u8>, text: &[u8]) {
    let Some(bytes) = from_hex(text) else {
        return out.extend_from_slice(NULL);
    };
    let word = |at: usize| -> Option<u32> {
        let four: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
        Some(if bytes[0] == 1 { u32::from_le_bytes(four) } else { u32::from_be_bytes(four) })
    };
    let srid = word(1).filter(|kind| kind & 0x2000_0000 != 0).and_then(|_| word(5));
    out.extend_from_slice(b"{\"wkb\":");
    write_base64(out, &bytes);
    out.extend_from_slice(b",\"srid\":");
    write_number(out, srid.map(i64::from));
    out.push(b'}');
}

/// PostgreSQL writes `"a"=>"1", "b"=>NULL`. It becomes JSON in a string.
fn write_hstore(out: &mut Vec<u8>, text: &[u8]) {
    let mut object = vec![b'{'];
    let mut rest = text;
    while let Some(after) = rest.strip_prefix(b"\"") {
        let pair = array::quoted(after).and_then(|(name, after)| Some((name, after.strip_prefix(b"=>")?)));
        let Some((Element::Text(name), after)) = pair else { break };
        write_string(&mut object, &name);
        object.push(b':');
        let value = after.strip_prefix(b"\"").and_then(array::quoted);
        rest = match (value, after.strip_prefix(b"NULL")) {
            (Some((Element::Text(value), after)), _) => {
                write_string(&mut object, &value);
                after
            }
            (_, Some(after)) => {
                object.extend_from_slice(NULL);
                after
            }
            _ => break,
        };
        rest = rest.strip_prefix(b", ").unwrap_or(rest);
        if !rest.is_empty() {
            object.push(b',');
        }
    }
    object.push(b'}');
    out.push(b'"');
    write_escaped(out, &object);
    out.push(b'"');
}

fn write_array(out: &mut Vec<u8>, text: &[u8], element: &Field) {
    let Some(elements) = array::elements(text) else {
        return out.extend_from_slice(NULL);
    };
    out.push(b'[');
    for (index, value) in elements.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        match value {
            Element::Text(text) => element.write(out, text),
            // The schema has one dimension. Debezium writes a null for each array inside.
            Element::Null | Element::Array => out.extend_from_slice(NULL),
        }
    }
    out.push(b']');
}

/// Writes bytes in hexadecimal digits, as a JSON string.
pub fn write_hex(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'"');
    bytes.iter().for_each(|byte| push_hex(out, *byte));
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        debezium::{EnvelopeOptions, TimeMode},
        model::TypeKind,
    };

    fn written(field: &Field, text: &str) -> String {
        let mut out = Vec::new();
        field.write(&mut out, text.as_bytes());
        String::from_utf8(out).unwrap()
    }

    /// What could not be recorded: the extensions are not at hand.
    #[test]
    fn what_was_not_recorded_follows_the_documentation() {
        let point = "0101000020E6100000000000000000F03F0000000000000040";
        let expected = r#"{"wkb":"AQEAACDmEAAAAAAAAAAA8D8AAAAAAAAAQA==","srid":4326}"#;
        assert_eq!(written(&Field::Geometry("io.debezium.data.geometry.Geometry"), point), expected);
        let without_system = "0101000000000000000000F03F0000000000000040";
        assert!(written(&Field::Geometry("io.debezium.data.geometry.Geometry"), without_system).ends_with("null}"));
        assert_eq!(written(&Field::Vector("io.debezium.data.DoubleVector"), "[1,2.5]"), "[1,2.5]");
    }

    #[test]
    fn times_are_counted_as_the_mode_and_the_precision_say() {
        for (mode, precision, time, timestamp) in [
            (TimeMode::Adaptive, 3, Unit::Milliseconds, Unit::Milliseconds),
            (TimeMode::Adaptive, 4, Unit::Microseconds, Unit::Microseconds),
            (TimeMode::Adaptive, -1, Unit::Microseconds, Unit::Microseconds),
            (TimeMode::AdaptiveTimeMicroseconds, 3, Unit::Microseconds, Unit::Milliseconds),
            (TimeMode::AdaptiveTimeMicroseconds, -1, Unit::Microseconds, Unit::Microseconds),
            (TimeMode::Connect, -1, Unit::Connect, Unit::Connect),
            (TimeMode::Microseconds, 0, Unit::Microseconds, Unit::Microseconds),
            (TimeMode::Nanoseconds, 0, Unit::Nanoseconds, Unit::Nanoseconds),
        ] {
            let options = EnvelopeOptions { time: mode, ..EnvelopeOptions::new("shop") };
            let of = |oid| Field::of(&TypeKind::Base, oid, precision, &options);
            assert_eq!(of(1083), Some(Field::Time(time)), "{mode:?} {precision}");
            assert_eq!(of(1114), Some(Field::Timestamp(timestamp)), "{mode:?} {precision}");
        }
    }

    #[test]
    fn a_domain_over_an_enum_is_the_enum() {
        let labels = vec!["sad".to_owned(), "ok".to_owned()];
        let base = Box::new(TypeKind::Enum(labels.clone()));
        let domain = TypeKind::Domain { base, base_oid: 16_400, base_modifier: -1 };
        assert_eq!(Field::of(&domain, 16_401, -1, &EnvelopeOptions::new("shop")), Some(Field::Enum(labels)));
    }

    proptest::proptest! {
        #[test]
        fn text_that_is_not_of_its_type_never_panics(text in "[-+0-9:.,(){}\\[\\]\"\\\\=>x a-z]{0,20}") {
            for field in [
                Field::VariableDecimal, Field::Decimal { precision: None, scale: -3 }, Field::Bytes(BinaryMode::Bytes),
                Field::Point, Field::Hstore, Field::Geometry(""), Field::ZonedTime, Field::ZonedTimestamp(3), Field::IsoDate,
                Field::IsoInterval, Field::Bits { length: 3 }, Field::Array(Box::new(Field::Hstore)), Field::DecimalDouble,
            ] {
                let written = written(&field, &text);
                // A point's numbers are copied as PostgreSQL wrote them.
                if field != Field::Point {
                    serde_json::from_str::<serde_json::Value>(&written).unwrap_or_else(|_| panic!("{field:?} {text}: {written}"));
                }
            }
        }
    }
}
