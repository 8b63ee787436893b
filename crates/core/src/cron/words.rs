//! A cron expression in plain English.

use super::fields::{Field, Fields};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// The most times of the day that are listed one by one.
pub(super) const TIMES: usize = 6;

/// The fields in words.
pub(super) fn describe(fields: &Fields) -> String {
    let (time, at_times) = times(fields);
    match days(fields) {
        Some(days) => format!("{time} {days}"),
        None if at_times => format!("{time} every day"),
        None => time,
    }
}

/// The times of a day, and whether they are told one by one.
fn times(fields: &Fields) -> (String, bool) {
    let (seconds, minutes, hours) = (fields.second.numbers(), fields.minute.numbers(), fields.hour.numbers());
    let few = seconds.len() * minutes.len() * hours.len() <= TIMES;
    if few && !fields.runs_twice() {
        return (format!("at {}", list(clock_times(&hours, &minutes, &seconds))), true);
    }
    if seconds == [0] {
        return (minutes_of(fields, &minutes, &hours), false);
    }
    let said = match step(fields.second, 60) {
        Some(1) => "every second".to_owned(),
        Some(step) => format!("every {step} seconds"),
        None => format!("at {} {}", plural("second", &seconds), ranges(&seconds)),
    };
    if fields.minute.is_full() && fields.every_hour() {
        return (if fields.second.periodic { said } else { format!("{said} of every minute") }, false);
    }
    (format!("{said}, {}", minutes_of(fields, &minutes, &hours)), false)
}

/// The times of a day, one by one.
pub(super) fn clock_times(hours: &[u8], minutes: &[u8], seconds: &[u8]) -> Vec<String> {
    let clock = |hour: u8, minute: u8, second: u8| match second {
        0 => format!("{hour:02}:{minute:02}"),
        second => format!("{hour:02}:{minute:02}:{second:02}"),
    };
    let times = hours.iter().flat_map(|hour| {
        minutes.iter().flat_map(move |minute| seconds.iter().map(move |second| clock(*hour, *minute, *second)))
    });
    times.collect()
}

/// Minutes and hours.
fn minutes_of(fields: &Fields, minutes: &[u8], hours: &[u8]) -> String {
    let every = match step(fields.minute, 60) {
        Some(1) => Some("every minute".to_owned()),
        Some(step) => Some(format!("every {step} minutes")),
        None => None,
    };
    if let Some(every) = every {
        return match hours {
            _ if fields.every_hour() => every,
            [first, .., last] if usize::from(last - first) + 1 == hours.len() => {
                format!("{every} from {first:02}:00 to {last:02}:59")
            }
            [hour] => format!("{every} from {hour:02}:00 to {hour:02}:59"),
            _ => format!("{every} in the hours {}", ranges(hours)),
        };
    }
    let minute = match minutes {
        [0] => String::new(),
        _ => format!(" at {} {}", plural("minute", minutes), ranges(minutes)),
    };
    match step(fields.hour, 24) {
        Some(1) => format!("every hour{minute}"),
        Some(step) => format!("every {step} hours{minute}"),
        None => {
            let minute = if minute.is_empty() { " at minute 0".to_owned() } else { minute };
            format!("{} of {} {}", minute.trim_start(), plural("hour", hours), ranges(hours))
        }
    }
}

/// Which days; none if all.
fn days(fields: &Fields) -> Option<String> {
    let (days, months, weekdays) = (fields.day.numbers(), fields.month.numbers(), fields.weekday.numbers());
    let month = |number: &u8| MONTHS[usize::from(*number) - 1].to_owned();
    let of_months = || match fields.month.is_full() {
        true => "every month".to_owned(),
        false => named(&months, |number| month(&number)),
    };
    let on_weekdays = || {
        // The week begins with Monday.
        let mut weekdays = weekdays.clone();
        if weekdays.first() == Some(&0) && weekdays.len() > 1 {
            weekdays.rotate_left(1);
            if let Some(sunday) = weekdays.last_mut() {
                *sunday = 7;
            }
        }
        named(&weekdays, |number| WEEKDAYS[usize::from(number) % 7].to_owned())
    };
    let on_days = || match (days.as_slice(), months.as_slice()) {
        ([day], [number]) => format!("on {day} {}", month(number)),
        _ => format!("on {} {} of {}", plural("day", &days), ranges(&days), of_months()),
    };
    match (fields.day.is_full(), fields.weekday.is_full()) {
        (true, true) if fields.month.is_full() => None,
        (true, true) => Some(format!("every day of {}", of_months())),
        (true, false) if fields.month.is_full() => Some(format!("every {}", on_weekdays())),
        (true, false) => Some(format!("every {} of {}", on_weekdays(), of_months())),
        (false, true) => Some(on_days()),
        (false, false) if fields.either_day() => Some(format!("{} and every {}", on_days(), on_weekdays())),
        (false, false) => Some(format!("{} if it is a {}", on_days(), on_weekdays())),
    }
}

/// The step of a field that is gone through evenly, from 0 on and over its end.
pub(super) fn step(field: Field, most: usize) -> Option<usize> {
    let numbers = field.numbers();
    let step = match numbers.as_slice() {
        [0, second, ..] => usize::from(*second),
        _ => return None,
    };
    (most.is_multiple_of(step) && (0..most).step_by(step).eq(numbers.into_iter().map(usize::from))).then_some(step)
}

fn plural(word: &str, numbers: &[u8]) -> String {
    if numbers.len() == 1 { word.to_owned() } else { format!("{word}s") }
}

fn ranges(numbers: &[u8]) -> String {
    named(numbers, |number| number.to_string())
}

/// Numbers as words; three and more in a row as a range.
fn named(numbers: &[u8], name: impl Fn(u8) -> String) -> String {
    let said = rows(numbers).into_iter().map(|(first, last)| match first == last {
        true => name(first),
        false => format!("{} to {}", name(first), name(last)),
    });
    list(said.collect())
}

/// Three and more numbers in a row by their first and their last; any other by itself.
pub(super) fn rows(numbers: &[u8]) -> Vec<(u8, u8)> {
    let mut found = Vec::new();
    let mut rest = numbers;
    while let [first, ..] = rest {
        let row = rest.iter().zip(*first..).take_while(|(number, next)| *number == next).count();
        let (now, later) = rest.split_at(row);
        match now {
            [first, _, .., last] => found.push((*first, *last)),
            few => found.extend(few.iter().map(|number| (*number, *number))),
        }
        rest = later;
    }
    found
}

/// `a, b and c`
fn list(words: Vec<String>) -> String {
    joined(words, " and ")
}

/// Words one after the other, with another joint before the last.
pub(super) fn joined(mut words: Vec<String>, joint: &str) -> String {
    match words.pop() {
        Some(last) if words.is_empty() => last,
        Some(last) => format!("{}{joint}{last}", words.join(", ")),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_read_as_people_say_them() {
        for (expression, said) in [
            ("30 2 * * MON-FRI", "at 02:30 every Monday to Friday"),
            ("@daily", "at 00:00 every day"),
            ("@hourly", "every hour"),
            ("@weekly", "at 00:00 every Sunday"),
            ("@monthly", "at 00:00 on day 1 of every month"),
            ("@yearly", "at 00:00 on 1 January"),
            ("* * * * *", "every minute"),
            ("* * * * * *", "every second"),
            ("*/10 * * * * *", "every 10 seconds"),
            ("5,35 * * * * *", "at seconds 5 and 35 of every minute"),
            ("*/15 * * * *", "every 15 minutes"),
            ("*/7 * * * *", "every hour at minutes 0, 7, 14, 21, 28, 35, 42, 49 and 56"),
            ("*/15 9-17 * * 1-5", "every 15 minutes from 09:00 to 17:59 every Monday to Friday"),
            ("*/15 2 * * *", "every 15 minutes from 02:00 to 02:59"),
            ("* 2,4 * * *", "every minute in the hours 2 and 4"),
            ("30 * * * *", "every hour at minute 30"),
            ("0 */2 * * *", "every 2 hours"),
            ("15 */2 * * *", "every 2 hours at minute 15"),
            ("0 9,12,18 * * *", "at 09:00, 12:00 and 18:00 every day"),
            ("15 30 2 * * SAT,SUN", "at 02:30:15 every Saturday and Sunday"),
            ("*/20 30 2 * * *", "every 20 seconds, at minute 30 of hour 2"),
            ("0 8 1,15 * *", "at 08:00 on days 1 and 15 of every month"),
            ("0 8 * 6-8 *", "at 08:00 every day of June to August"),
            ("0 8 * JUN MON", "at 08:00 every Monday of June"),
            ("0 8 13 * FRI", "at 08:00 on day 13 of every month and every Friday"),
            ("0 8 1-7 * */7", "at 08:00 on days 1 to 7 of every month if it is a Sunday"),
            ("0 0-11 * * *", "at minute 0 of hours 0 to 11"),
            ("0 8 * * 0-4", "at 08:00 every Monday to Thursday and Sunday"),
        ] {
            assert_eq!(describe(&Fields::parse(expression).unwrap()), said, "{expression}");
        }
    }
}
