//! A cron expression in plain French: what `words` says, in another language and another order.

use super::{
    fields::Fields,
    words::{TIMES, clock_times, joined, rows, step},
};

const MONTHS: [&str; 12] = [
    "janvier",
    "février",
    "mars",
    "avril",
    "mai",
    "juin",
    "juillet",
    "août",
    "septembre",
    "octobre",
    "novembre",
    "décembre",
];
const WEEKDAYS: [&str; 7] = ["dimanche", "lundi", "mardi", "mercredi", "jeudi", "vendredi", "samedi"];

/// The fields in words.
pub(super) fn describe(fields: &Fields) -> String {
    let (time, at_times) = times(fields);
    match days(fields) {
        Some(days) => format!("{time} {days}"),
        None if at_times => format!("{time} chaque jour"),
        None => time,
    }
}

/// The times of a day, and whether they are told one by one.
fn times(fields: &Fields) -> (String, bool) {
    let (seconds, minutes, hours) = (fields.second.numbers(), fields.minute.numbers(), fields.hour.numbers());
    let few = seconds.len() * minutes.len() * hours.len() <= TIMES;
    if few && !fields.runs_twice() {
        return (format!("à {}", list(clock_times(&hours, &minutes, &seconds))), true);
    }
    if seconds == [0] {
        return (minutes_of(fields, &minutes, &hours), false);
    }
    let said = match step(fields.second, 60) {
        Some(1) => "chaque seconde".to_owned(),
        Some(step) => format!("toutes les {step} secondes"),
        None => at("seconde", &seconds),
    };
    if fields.minute.is_full() && fields.every_hour() {
        return (if fields.second.periodic { said } else { format!("{said} de chaque minute") }, false);
    }
    (format!("{said}, {}", minutes_of(fields, &minutes, &hours)), false)
}

/// Minutes and hours.
fn minutes_of(fields: &Fields, minutes: &[u8], hours: &[u8]) -> String {
    let every = match step(fields.minute, 60) {
        Some(1) => Some("chaque minute".to_owned()),
        Some(step) => Some(format!("toutes les {step} minutes")),
        None => None,
    };
    if let Some(every) = every {
        return match hours {
            _ if fields.every_hour() => every,
            [first, .., last] if usize::from(last - first) + 1 == hours.len() => {
                format!("{every} de {first:02}:00 à {last:02}:59")
            }
            [hour] => format!("{every} de {hour:02}:00 à {hour:02}:59"),
            _ => format!("{every} aux heures {}", ranges(hours)),
        };
    }
    let minute = match minutes {
        [0] => String::new(),
        _ => format!(" {}", at("minute", minutes)),
    };
    match step(fields.hour, 24) {
        Some(1) => format!("chaque heure{minute}"),
        Some(step) => format!("toutes les {step} heures{minute}"),
        None => {
            let minute = if minute.is_empty() { at("minute", &[0]) } else { minute.trim_start().to_owned() };
            match hours {
                [hour] => format!("{minute} de l’heure {hour}"),
                _ => format!("{minute} des heures {}", ranges(hours)),
            }
        }
    }
}

/// Which days; none if all.
fn days(fields: &Fields) -> Option<String> {
    let (days, months, weekdays) = (fields.day.numbers(), fields.month.numbers(), fields.weekday.numbers());
    let in_months = || match rows(&months).as_slice() {
        [(first, last)] if first != last => {
            let first = month(*first);
            let of = if first.starts_with(['a', 'o']) { "d’" } else { "de " };
            format!("{of}{first} à {}", month(*last))
        }
        _ => format!("en {}", list(months.iter().map(|number| month(*number).to_owned()).collect())),
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
        let name = |number: u8| WEEKDAYS[usize::from(number) % 7];
        let said = rows(&weekdays).into_iter().map(|(first, last)| match first == last {
            true => format!("le {}", name(first)),
            false => format!("du {} au {}", name(first), name(last)),
        });
        list(said.collect())
    };
    let on_days = || {
        let said = match rows(&days).as_slice() {
            [(one, same)] if one == same => format!("le {}", ordinal(*one)),
            [(first, last)] => format!("du {} au {}", ordinal(*first), ordinal(*last)),
            rows if rows.iter().all(|(first, last)| first == last) => {
                format!("les {}", list(days.iter().map(|day| ordinal(*day)).collect()))
            }
            _ => format!("les jours {}", ranges(&days)),
        };
        match months.as_slice() {
            _ if fields.month.is_full() => format!("{said} de chaque mois"),
            [only] if days.len() == 1 => format!("{said} {}", month(*only)),
            _ => format!("{said} {}", in_months()),
        }
    };
    match (fields.day.is_full(), fields.weekday.is_full()) {
        (true, true) if fields.month.is_full() => None,
        (true, true) => Some(format!("chaque jour {}", in_months())),
        (true, false) if fields.month.is_full() => Some(on_weekdays()),
        (true, false) => Some(format!("{} {}", on_weekdays(), in_months())),
        (false, true) => Some(on_days()),
        (false, false) if fields.either_day() => Some(format!("{} et {}", on_days(), on_weekdays())),
        (false, false) => Some(format!("{}, si ce jour tombe {}", on_days(), on_weekdays())),
    }
}

fn month(number: u8) -> &'static str {
    MONTHS[usize::from(number) - 1]
}

/// The days of a month are cardinal numbers, but for the first.
fn ordinal(day: u8) -> String {
    if day == 1 { "1er".to_owned() } else { day.to_string() }
}

/// `à la minute 30`, `aux minutes 0 et 30`
fn at(unit: &str, numbers: &[u8]) -> String {
    match numbers {
        [number] => format!("à la {unit} {number}"),
        _ => format!("aux {unit}s {}", ranges(numbers)),
    }
}

fn ranges(numbers: &[u8]) -> String {
    let said = rows(numbers).into_iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first} à {last}"),
    });
    list(said.collect())
}

fn list(words: Vec<String>) -> String {
    joined(words, " et ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_read_as_people_say_them_in_french() {
        for (expression, said) in [
            ("30 2 * * MON-FRI", "à 02:30 du lundi au vendredi"),
            ("@daily", "à 00:00 chaque jour"),
            ("@hourly", "chaque heure"),
            ("@weekly", "à 00:00 le dimanche"),
            ("@monthly", "à 00:00 le 1er de chaque mois"),
            ("@yearly", "à 00:00 le 1er janvier"),
            ("* * * * *", "chaque minute"),
            ("* * * * * *", "chaque seconde"),
            ("*/10 * * * * *", "toutes les 10 secondes"),
            ("5,35 * * * * *", "aux secondes 5 et 35 de chaque minute"),
            ("*/15 * * * *", "toutes les 15 minutes"),
            ("*/7 * * * *", "chaque heure aux minutes 0, 7, 14, 21, 28, 35, 42, 49 et 56"),
            ("*/15 9-17 * * 1-5", "toutes les 15 minutes de 09:00 à 17:59 du lundi au vendredi"),
            ("*/15 2 * * *", "toutes les 15 minutes de 02:00 à 02:59"),
            ("* 2,4 * * *", "chaque minute aux heures 2 et 4"),
            ("30 * * * *", "chaque heure à la minute 30"),
            ("0 */2 * * *", "toutes les 2 heures"),
            ("15 */2 * * *", "toutes les 2 heures à la minute 15"),
            ("0 9,12,18 * * *", "à 09:00, 12:00 et 18:00 chaque jour"),
            ("15 30 2 * * SAT,SUN", "à 02:30:15 le samedi et le dimanche"),
            ("*/20 30 2 * * *", "toutes les 20 secondes, à la minute 30 de l’heure 2"),
            ("0 8 1,15 * *", "à 08:00 les 1er et 15 de chaque mois"),
            ("0 8 1,3,10-15 * *", "à 08:00 les jours 1, 3 et 10 à 15 de chaque mois"),
            ("0 8 * 6-8 *", "à 08:00 chaque jour de juin à août"),
            ("0 8 * 4-6 *", "à 08:00 chaque jour d’avril à juin"),
            ("0 8 * 6,8 *", "à 08:00 chaque jour en juin et août"),
            ("0 8 * JUN MON", "à 08:00 le lundi en juin"),
            ("0 8 13 * FRI", "à 08:00 le 13 de chaque mois et le vendredi"),
            ("0 8 1-7 * */7", "à 08:00 du 1er au 7 de chaque mois, si ce jour tombe le dimanche"),
            ("0 0-11 * * *", "à la minute 0 des heures 0 à 11"),
            ("0 8 * * 0-4", "à 08:00 du lundi au jeudi et le dimanche"),
        ] {
            assert_eq!(describe(&Fields::parse(expression).unwrap()), said, "{expression}");
        }
    }
}
