//! Dates, times and intervals: PostgreSQL's ISO text to numbers, and to ISO 8601.
//!
//! Years are proleptic Gregorian without limits of a library: PostgreSQL's go from 4713 BC to 294276.

use super::text::{write_escaped, write_i64};

const DAY: i64 = 86_400_000_000;

/// What Debezium writes for infinite timestamps, in microseconds: what the JDBC driver makes of them.
const INFINITE: (i64, i64) = (9_223_372_036_825_200_000, -9_223_372_036_832_400_000);

/// What Debezium writes for infinite dates, in days: an overflow, but no date that PostgreSQL has.
const INFINITE_DAYS: (i64, i64) = (-2_147_472_692, -2_147_472_691);

/// Days of a month in an interval: a twelfth of 365.25.
const MONTH: f64 = 30.4375;

/// Days since 1970 of a `date`.
pub fn date(text: &[u8]) -> Option<i64> {
    match text {
        b"infinity" => Some(INFINITE_DAYS.0),
        b"-infinity" => Some(INFINITE_DAYS.1),
        _ => {
            let (text, before_christ) = era(text);
            days(text, before_christ)
        }
    }
}

/// Microseconds since midnight of a `time`. 24:00:00 is a day.
pub fn time(text: &[u8]) -> Option<i64> {
    let mut parts = text.splitn(3, |byte| *byte == b':');
    let (hours, minutes) = (number(parts.next()?)?, number(parts.next()?)?);
    Some((hours * 60 + minutes) * 60_000_000 + seconds(parts.next().unwrap_or(b"0"))?)
}

/// A day and a time of it. PostgreSQL's go beyond the microseconds since 1970 that 64 bits can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Since 1970.
    days: i64,
    /// Since midnight.
    micros: i64,
}

impl Moment {
    fn new(days: i64, micros: i64) -> Self {
        Self { days: days.saturating_add(micros.div_euclid(DAY)), micros: micros.rem_euclid(DAY) }
    }

    /// Milliseconds since 1970.
    pub fn millis(self) -> i64 {
        self.days.saturating_mul(DAY / 1000).saturating_add(self.micros / 1000)
    }

    /// Microseconds since 1970. Beyond 64 bits it is the largest number, as in Debezium.
    pub fn micros(self) -> i64 {
        i64::try_from(i128::from(self.days) * i128::from(DAY) + i128::from(self.micros)).unwrap_or(i64::MAX)
    }

    /// Writes `2024-02-29T23:59:59.123Z`.
    pub fn write(self, out: &mut Vec<u8>, precision: Option<usize>) {
        write_date(out, self.days);
        out.push(b'T');
        write_time(out, self.micros, precision);
        out.push(b'Z');
    }
}

/// A `timestamp`, as if it were UTC.
pub fn timestamp(text: &[u8]) -> Option<Moment> {
    match text {
        b"infinity" => Some(Moment::new(0, INFINITE.0)),
        b"-infinity" => Some(Moment::new(0, INFINITE.1)),
        _ => {
            let (text, before_christ) = era(text);
            let space = text.iter().position(|byte| *byte == b' ')?;
            Some(Moment::new(days(&text[..space], before_christ)?, time(&text[space + 1..])?))
        }
    }
}

/// A `timestamptz` that is not infinite.
pub fn zoned_timestamp(text: &[u8]) -> Option<Moment> {
    let (text, before_christ) = era(text);
    let space = text.iter().position(|byte| *byte == b' ')?;
    let (local, offset) = zoned(&text[space + 1..])?;
    Some(Moment::new(days(&text[..space], before_christ)?, local - offset))
}

/// Microseconds since midnight in UTC of a `timetz`.
pub fn zoned_time(text: &[u8]) -> Option<i64> {
    let (local, offset) = zoned(text)?;
    Some((local - offset).rem_euclid(DAY))
}

/// A time with its offset, both in microseconds.
fn zoned(text: &[u8]) -> Option<(i64, i64)> {
    let sign = text.iter().rposition(|byte| matches!(byte, b'+' | b'-'))?;
    let mut offset = 0;
    for (part, unit) in text[sign + 1..].split(|byte| *byte == b':').zip([3600, 60, 1]) {
        offset += number(part)? * unit * 1_000_000;
    }
    Some((time(&text[..sign])?, if text[sign] == b'-' { -offset } else { offset }))
}

fn era(text: &[u8]) -> (&[u8], bool) {
    match text.strip_suffix(b" BC") {
        Some(text) => (text, true),
        None => (text, false),
    }
}

fn days(text: &[u8], before_christ: bool) -> Option<i64> {
    let mut parts = text.split(|byte| *byte == b'-').map(number);
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    Some(days_from_civil(if before_christ { 1 - year } else { year }, month, day))
}

fn number(digits: &[u8]) -> Option<i64> {
    if digits.is_empty() || digits.len() > 18 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(digits.iter().fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0')))
}

/// Microseconds of `SS.ffffff`.
fn seconds(text: &[u8]) -> Option<i64> {
    let point = text.iter().position(|byte| *byte == b'.').unwrap_or(text.len());
    let fraction = text.get(point + 1..).unwrap_or_default();
    let mut micros = 0;
    for place in 0..6 {
        micros = micros * 10 + fraction.get(place).map_or(0, |digit| i64::from(digit.wrapping_sub(b'0')));
    }
    Some(number(&text[..point])? * 1_000_000 + micros)
}

/// Days since 1970. Years are counted from March, so that the leap day is the last of its year.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + day_of_year - 719_468
}

fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day_of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day_of_year - (153 * shifted + 2) / 5 + 1)
}

/// Writes `2024-02-29`.
pub fn write_date(out: &mut Vec<u8>, days: i64) {
    let (year, month, day) = civil_from_days(days);
    if year > 9999 {
        out.push(b'+');
    } else if year < 0 {
        out.push(b'-');
    }
    let year = year.abs();
    if year < 1000 {
        out.extend_from_slice(&b"000"[..3 - usize::from(year >= 10) - usize::from(year >= 100)]);
    }
    write_i64(out, year);
    out.push(b'-');
    write_two(out, month);
    out.push(b'-');
    write_two(out, day);
}

/// Writes `23:59:59.123`: all digits of the precision, or as many as are needed.
pub fn write_time(out: &mut Vec<u8>, micros: i64, precision: Option<usize>) {
    let micros = micros.rem_euclid(DAY);
    let seconds = micros / 1_000_000;
    write_two(out, seconds / 3600);
    out.push(b':');
    write_two(out, seconds / 60 % 60);
    out.push(b':');
    write_two(out, seconds % 60);
    write_fraction(out, micros % 1_000_000, precision);
}

/// Writes a fraction of a second with its point, or nothing.
fn write_fraction(out: &mut Vec<u8>, micros: i64, precision: Option<usize>) {
    let mut digits = [b'0'; 6];
    let mut rest = micros;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let shown = match precision {
        Some(precision) => precision.min(6),
        None => digits.iter().rposition(|digit| *digit != b'0').map_or(0, |last| last + 1),
    };
    if shown > 0 {
        out.push(b'.');
        out.extend_from_slice(&digits[..shown]);
    }
}

fn write_two(out: &mut Vec<u8>, number: i64) {
    out.push(b'0' + (number / 10 % 10) as u8);
    out.push(b'0' + (number % 10) as u8);
}

/// An `interval`, as PostgreSQL writes it: its parts have signs of their own.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Interval {
    years: i64,
    months: i64,
    days: i64,
    micros: i64,
}

impl Interval {
    /// Reads `1 year 2 mons -3 days +04:05:06.789`.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let mut interval = Self::default();
        let mut words = text.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
        while let Some(word) = words.next() {
            let (negative, digits) = match word {
                [b'-', digits @ ..] => (true, digits),
                [b'+', digits @ ..] => (false, digits),
                digits => (false, digits),
            };
            let signed = |number: i64| if negative { -number } else { number };
            if digits.contains(&b':') {
                interval.micros = signed(time(digits)?);
                continue;
            }
            let number = signed(number(digits)?);
            match words.next()? {
                b"year" | b"years" => interval.years = number,
                b"mon" | b"mons" => interval.months = number,
                b"day" | b"days" => interval.days = number,
                _ => return None,
            }
        }
        Some(interval)
    }

    /// Its length, with months of 30.4375 days: in doubles and in this order, so that rounding is Debezium's too.
    pub fn micros(&self) -> i64 {
        let seconds = self.micros / 1_000_000;
        let (hours, minutes) = ((seconds / 3600) as f64, (seconds / 60 % 60) as f64);
        let days = self.years.saturating_mul(12).saturating_add(self.months) as f64 * MONTH + self.days as f64;
        ((((days * 24.0 + hours) * 60.0 + minutes) * 60.0 + self.seconds()) * 1e6) as i64
    }

    /// The seconds of a minute, as the JDBC driver adds them.
    fn seconds(&self) -> f64 {
        (self.micros / 1_000_000 % 60) as f64 + (self.micros % 1_000_000) as f64 / 1e6
    }

    /// Writes `P1Y2M3DT4H5M6.789S`: each part, with its sign.
    pub fn write(&self, out: &mut Vec<u8>) {
        let seconds = self.micros / 1_000_000;
        for (before, number, after) in [
            ("P", self.years, "Y"),
            ("", self.months, "M"),
            ("", self.days, "DT"),
            ("", seconds / 3600, "H"),
            ("", seconds / 60 % 60, "M"),
        ] {
            write_escaped(out, before.as_bytes());
            write_i64(out, number);
            write_escaped(out, after.as_bytes());
        }
        let rest = self.seconds().to_string();
        let rest = match rest.find('.') {
            // Nine digits, as in Debezium: of a sum in doubles they may be others than PostgreSQL's six.
            Some(point) => rest[..rest.len().min(point + 10)].trim_end_matches('0').trim_end_matches('.'),
            None => &rest,
        };
        out.extend_from_slice(rest.as_bytes());
        out.push(b'S');
    }
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
    fn dates_of_every_era_are_read_and_written() {
        for (text, days, iso) in [
            ("1970-01-01", 0, "1970-01-01"),
            ("2024-02-29", 19_782, "2024-02-29"),
            ("0044-03-15 BC", -735_160, "-0043-03-15"),
            ("0001-01-01", -719_162, "0001-01-01"),
            ("0001-12-31 BC", -719_163, "0000-12-31"),
            ("12024-01-02", 3_672_149, "+12024-01-02"),
            ("4714-11-24 BC", -2_440_588, "-4713-11-24"),
            ("infinity", -2_147_472_692, "-5877611-06-21"),
        ] {
            assert_eq!(date(text.as_bytes()), Some(days), "{text}");
            assert_eq!(written(|out| write_date(out, days)), iso, "{text}");
        }
    }

    #[test]
    fn zones_are_converted_to_utc() {
        assert_eq!(zoned_time(b"10:11:12.12-03:30"), Some(49_272_120_000));
        assert_eq!(zoned_time(b"24:00:00+00"), Some(0));
        assert_eq!(zoned_time(b"00:00:00+14:00:01"), Some(DAY - 50_401_000_000));
        assert_eq!(zoned_timestamp(b"1970-01-01 02:00:00.5+02").map(Moment::micros), Some(500_000));
        assert_eq!(zoned_timestamp(b"1970-01-01 01:00:00+02").map(Moment::micros), Some(-3_600_000_000));
    }

    #[test]
    fn the_last_timestamps_are_beyond_64_bits_of_microseconds() {
        let last = timestamp(b"294276-12-31 23:59:59.999999").unwrap();
        assert_eq!((last.millis(), last.micros()), (9_224_318_015_999_999, i64::MAX));
        assert_eq!(written(|out| last.write(out, None)), "+294276-12-31T23:59:59.999999Z");
        let first = timestamp(b"4714-11-24 00:00:00 BC").unwrap();
        assert_eq!((first.millis(), first.micros()), (-210_866_803_200_000, -210_866_803_200_000_000));
        assert_eq!(timestamp(b"infinity").map(Moment::micros), Some(INFINITE.0));
        assert_eq!(timestamp(b"-infinity").map(Moment::micros), Some(INFINITE.1));
    }

    #[test]
    fn intervals_keep_the_sign_of_each_part() {
        for (text, micros, iso) in [
            ("1 year 2 mons 3 days 04:05:06.789", 37_091_106_789_000, "P1Y2M3DT4H5M6.789S"),
            ("-1 days -00:00:01", -86_401_000_000, "P0Y0M-1DT0H0M-1S"),
            ("-1 mons -2 days +00:00:00.000001", -2_802_599_999_999, "P0Y-1M-2DT0H0M0.000001S"),
            ("-00:00:00.5", -500_000, "P0Y0M0DT0H0M-0.5S"),
            ("00:00:00", 0, "P0Y0M0DT0H0M0S"),
            // Sums in doubles, whose last digits are cut off.
            ("00:00:10.888782", 10_888_782, "P0Y0M0DT0H0M10.888781999S"),
            ("141 years 10 mons 3 days 04:05:06.100014", 4_476_193_506_100_013, "P141Y10M3DT4H5M6.100014S"),
        ] {
            let interval = Interval::parse(text.as_bytes()).unwrap();
            assert_eq!(interval.micros(), micros, "{text}");
            assert_eq!(written(|out| interval.write(out)), iso, "{text}");
        }
        assert_eq!(Interval::parse(b"1 fortnight"), None);
    }

    proptest::proptest! {
        #[test]
        fn any_day_is_read_back(days in -3_000_000_i64..100_000_000) {
            let (year, month, day) = civil_from_days(days);
            assert_eq!(days_from_civil(year, month, day), days);
        }

        #[test]
        fn nothing_panics(text in "[-+0-9: .a-z]{0,30}") {
            let text = text.as_bytes();
            let _ = (date(text), time(text), timestamp(text), zoned_timestamp(text), zoned_time(text));
            let _ = Interval::parse(text).map(|interval| interval.micros());
        }
    }
}
