//! The fields of a cron expression: reading them, and finding the next local time that they match.

use jiff::civil::{Date, DateTime};

const MONTHS: [&str; 12] = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// The longest text that is read.
const LONGEST: usize = 200;

/// A kind of field.
struct Kind {
    what: &'static str,
    first: u8,
    last: u8,
    names: &'static [&'static str],
}

const SECOND: Kind = Kind { what: "second", first: 0, last: 59, names: &[] };
const MINUTE: Kind = Kind { what: "minute", first: 0, last: 59, names: &[] };
const HOUR: Kind = Kind { what: "hour", first: 0, last: 23, names: &[] };
const DAY: Kind = Kind { what: "day of the month", first: 1, last: 31, names: &[] };
const MONTH: Kind = Kind { what: "month", first: 1, last: 12, names: &MONTHS };
const WEEKDAY: Kind = Kind { what: "day of the week", first: 0, last: 7, names: &WEEKDAYS };

/// The numbers that one field matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Field {
    bits: u64,
    /// How many there could be.
    most: u32,
    /// Whether it begins with `*`.
    pub(super) any: bool,
    /// Whether it is `*`, or has a step.
    pub(super) periodic: bool,
}

impl Field {
    fn parse(text: &str, kind: &Kind) -> Result<Self, String> {
        let mut bits = 0;
        for part in text.split(',') {
            bits |= range(part, kind).map_err(|why| format!("the {} {text:?} {why}", kind.what))?;
        }
        let mut most = u32::from(kind.last - kind.first) + 1;
        if kind.last == 7 {
            // Sunday is 0 and 7.
            bits = (bits | bits >> 7) & 0b111_1111;
            most = 7;
        }
        Ok(Self { bits, most, any: text.starts_with('*'), periodic: text.contains(['*', '/']) })
    }

    pub(super) const fn has(self, number: i8) -> bool {
        self.bits >> number & 1 == 1
    }

    /// The lowest number from this one on.
    fn from(self, number: i8) -> Option<i8> {
        let rest = self.bits.checked_shr(number.unsigned_abs().into())? << number;
        (rest != 0).then(|| rest.trailing_zeros() as i8)
    }

    fn lowest(self) -> i8 {
        self.bits.trailing_zeros() as i8
    }

    /// Whether it matches everything.
    pub(super) const fn is_full(self) -> bool {
        self.bits.count_ones() == self.most
    }

    /// The numbers, in their order.
    pub(super) fn numbers(self) -> Vec<u8> {
        (0..60u8).filter(|number| self.bits >> number & 1 == 1).collect()
    }
}

/// One part of a list, as bits.
fn range(part: &str, kind: &Kind) -> Result<u64, String> {
    let (span, step) = match part.split_once('/') {
        Some((span, step)) => (span, Some(number(step, &[])?)),
        None => (part, None),
    };
    // A week is gone through once: its last day is Saturday, unless somebody says Sunday.
    let weekday = kind.last == 7;
    let end = if weekday { 6 } else { kind.last };
    let (first, last) = match span.split_once('-') {
        Some((first, last)) => (number(first, kind.names)?, number(last, kind.names)?),
        None if span == "*" => (kind.first, end),
        None => {
            let first = number(span, kind.names)?;
            (first, if step.is_some() { end.max(first) } else { first })
        }
    };
    let last = if weekday && last == 0 && first > 0 { 7 } else { last };
    for number in [first, last] {
        if !(kind.first..=kind.last).contains(&number) {
            return Err(format!("must be between {} and {}", kind.first, kind.last));
        }
    }
    if first > last {
        return Err(format!("has a range that goes down: {span}"));
    }
    let step = step.unwrap_or(1);
    if step == 0 || step > kind.last {
        return Err(format!("must have a step between 1 and {}", kind.last));
    }
    Ok((first..=last).step_by(step.into()).fold(0, |bits, number| bits | 1 << number))
}

fn number(text: &str, names: &[&str]) -> Result<u8, String> {
    if let Some(index) = names.iter().position(|name| name.eq_ignore_ascii_case(text)) {
        // Months count from 1, days of the week from 0.
        return Ok((index + usize::from(names.len() == 12)) as u8);
    }
    let digits = !text.is_empty() && text.len() <= 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(number) if digits => Ok(number),
        _ if text.is_empty() => Err("lacks a number".to_owned()),
        _ if names.is_empty() => Err(format!("has {text:?} where a number is expected")),
        _ => Err(format!("has {text:?} where a number or a name such as {} is expected", names[1])),
    }
}

/// All fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fields {
    pub(super) second: Field,
    pub(super) minute: Field,
    pub(super) hour: Field,
    pub(super) day: Field,
    pub(super) month: Field,
    pub(super) weekday: Field,
}

impl Fields {
    pub(super) fn parse(expression: &str) -> Result<Self, String> {
        let expression = expression.trim();
        if expression.len() > LONGEST {
            return Err(format!("must have at most {LONGEST} characters"));
        }
        let expression = match expression.to_ascii_lowercase().as_str() {
            "@hourly" => "0 * * * *",
            "@daily" | "@midnight" => "0 0 * * *",
            "@weekly" => "0 0 * * 0",
            "@monthly" => "0 0 1 * *",
            "@yearly" | "@annually" => "0 0 1 1 *",
            name if name.starts_with('@') => {
                return Err("must be one of @hourly, @daily, @weekly, @monthly and @yearly, or have fields".to_owned());
            }
            _ => expression,
        };
        let mut texts: Vec<&str> = expression.split_ascii_whitespace().collect();
        match texts.len() {
            5 => texts.insert(0, "0"),
            6 => {}
            other => {
                return Err(format!(
                    "must have 5 fields (minute, hour, day, month, day of the week), or 6 with seconds first; it has {other}"
                ));
            }
        }
        let fields = Self {
            second: Field::parse(texts[0], &SECOND)?,
            minute: Field::parse(texts[1], &MINUTE)?,
            hour: Field::parse(texts[2], &HOUR)?,
            day: Field::parse(texts[3], &DAY)?,
            month: Field::parse(texts[4], &MONTH)?,
            weekday: Field::parse(texts[5], &WEEKDAY)?,
        };
        let longest = |month: u8| match month {
            2 => 29,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        // Any day of the week comes on any day of the year, sooner or later.
        let possible = fields.month.numbers().into_iter().any(|month| fields.day.lowest() <= longest(month));
        if !possible && !fields.either_day() {
            return Err(format!("names a day that never comes: day {} of such a month", fields.day.lowest()));
        }
        Ok(fields)
    }

    /// Whether it runs in every hour of its days.
    pub(super) const fn every_hour(&self) -> bool {
        self.hour.is_full()
    }

    /// Whether it runs the second time too, when clocks go back.
    pub(super) const fn runs_twice(&self) -> bool {
        self.every_hour() || self.minute.periodic || self.second.periodic
    }

    /// Whether the day of the month or the day of the week is enough.
    pub(super) const fn either_day(&self) -> bool {
        !self.day.any && !self.weekday.any
    }

    /// The first local time that matches, from this one on, within so many years.
    pub(super) fn next_from(&self, from: DateTime, years: i16) -> Option<DateTime> {
        let last_year = from.year().saturating_add(years);
        let (mut date, mut time) = (from.date(), (from.hour(), from.minute(), from.second()));
        while date.year() <= last_year {
            if !self.month.has(date.month()) {
                (date, time) = (first_of_next_month(date)?, (0, 0, 0));
                continue;
            }
            if self.matches_day(date)
                && let Some((hour, minute, second)) = self.time_from(time)
            {
                return Some(date.at(hour, minute, second, 0));
            }
            (date, time) = (date.tomorrow().ok()?, (0, 0, 0));
        }
        None
    }

    fn matches_day(&self, date: Date) -> bool {
        let day = self.day.has(date.day());
        let weekday = self.weekday.has(date.weekday().to_sunday_zero_offset());
        if self.either_day() { day || weekday } else { day && weekday }
    }

    /// The first time of a day that matches, from this one on.
    fn time_from(&self, (hour, minute, second): (i8, i8, i8)) -> Option<(i8, i8, i8)> {
        if self.hour.has(hour) {
            if self.minute.has(minute)
                && let Some(second) = self.second.from(second)
            {
                return Some((hour, minute, second));
            }
            if let Some(minute) = self.minute.from(minute + 1) {
                return Some((hour, minute, self.second.lowest()));
            }
        }
        Some((self.hour.from(hour + 1)?, self.minute.lowest(), self.second.lowest()))
    }
}

fn first_of_next_month(date: Date) -> Option<Date> {
    date.last_of_month().tomorrow().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_cron_expression_is_refused_with_the_reason() {
        for (expression, said) in [
            ("", "it has 0"),
            ("* * * *", "it has 4"),
            ("* * * * * * *", "it has 7"),
            ("60 * * * *", "minute \"60\" must be between 0 and 59"),
            ("60 * * * * *", "second \"60\" must be between"),
            ("* 24 * * *", "hour \"24\" must be between 0 and 23"),
            ("* * 0 * *", "day of the month \"0\" must be between 1 and 31"),
            ("* * 32 * *", "between 1 and 31"),
            ("* * * 13 *", "month \"13\" must be between 1 and 12"),
            ("* * * * 8", "day of the week \"8\" must be between 0 and 7"),
            ("5-1 * * * *", "goes down: 5-1"),
            ("* * * * FRI-MON", "goes down"),
            ("*/0 * * * *", "step between 1 and 59"),
            ("*/60 * * * *", "step between 1 and 59"),
            ("1,,2 * * * *", "lacks a number"),
            ("- * * * *", "lacks a number"),
            ("+1 * * * *", "\"+1\" where a number is expected"),
            ("001 * * * *", "where a number is expected"),
            ("* * * FOO *", "a name such as FEB"),
            ("* * L * *", "\"L\" where a number is expected"),
            ("**/2 * * * *", "where a number is expected"),
            ("* * * * MON#1", "a name such as MON"),
            ("@reboot", "must be one of @hourly"),
            ("0 0 30 2 *", "day 30 of such a month"),
            ("0 0 31 2,4,6,9,11 *", "never comes"),
            ("0 0 30 2 */2", "never comes"),
            (&"1,".repeat(200), "at most 200 characters"),
        ] {
            let refused = Fields::parse(expression).expect_err(expression);
            assert!(refused.contains(said), "{expression:?} was refused with {refused:?}");
        }
    }

    #[test]
    fn equivalent_cron_expressions_are_equal() {
        for (one, other) in [
            ("* * * * *", "0 * * * * *"),
            ("@HOURLY", "0 * * * *"),
            ("@midnight", "0 0 * * *"),
            ("0 0 * jan,Dec sun", "0 0 * 1,12 7"),
            ("0 0 * * FRI-SUN", "0 0 * * 0,5,6"),
            ("0 0 * * 0-7", "0 0 * * 0-6"),
            (" 1-5/2   3  * * * ", "1,3,5 3 * * *"),
        ] {
            let (one, other) = (Fields::parse(one).unwrap(), Fields::parse(other).unwrap());
            let numbers = |fields: &Fields| {
                let Fields { second, minute, hour, day, month, weekday } = *fields;
                [second, minute, hour, day, month, weekday].map(Field::numbers)
            };
            assert_eq!(numbers(&one), numbers(&other));
        }
        assert_eq!(Fields::parse("7/20 * * * *").unwrap().minute.numbers(), [7, 27, 47]);
        assert_eq!(Fields::parse("0 0 * * 4/2").unwrap().weekday.numbers(), [4, 6]);
        assert!(Fields::parse("0 0 30 2 MON").is_ok(), "every Monday of February");
    }
}
