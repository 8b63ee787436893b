//! Wake-ups as a short text, for whatever carries them between processes: `origin;w1,2;t1a,1b;d`.
//!
//! Numbers are written in base 36, tasks as differences, so that a batch of hundreds fits where PostgreSQL allows 8,000
//! bytes. What does not fit becomes "perhaps any": a hint may always be vaguer than the truth.

use std::fmt::Write;

use crate::{IdsChanged, ServiceKey, Timestamp, Wakeup};

/// PostgreSQL takes payloads shorter than 8,000 bytes.
pub const MAX_TEXT: usize = 7_900;

/// Writes a wake-up as text; `origin` names the process, so that it can pass over its own.
pub fn encode(origin: &str, wakeup: &Wakeup) -> String {
    let mut head = String::from(origin);
    for (kind, services) in [(";w", &wakeup.work), (";p", &wakeup.dispatch)] {
        if !services.is_empty() {
            head.push_str(kind);
            for (i, service) in services.iter().enumerate() {
                head.push_str(if i == 0 { "" } else { "," });
                base36(&mut head, i64::from(service.0));
            }
        }
    }
    if wakeup.declared {
        head.push_str(";d");
    }
    if wakeup.inbox {
        head.push_str(";i");
    }
    if let Some(timer) = wakeup.timer {
        head.push_str(";s");
        base36(&mut head, timer.as_millis());
    }
    if !wakeup.callbacks.is_empty() {
        // Lanes are spread over all 64 bits: sixteen digits each, whatever the base.
        head.push_str(";c");
        for (i, lane) in wakeup.callbacks.iter().enumerate() {
            let _ = write!(head, "{}{lane:x}", if i == 0 { "" } else { "," });
        }
    }
    let mut tasks = String::new();
    match &wakeup.tasks {
        IdsChanged::Perhaps => tasks.push_str(";t*"),
        IdsChanged::These(ids) if !ids.is_empty() => {
            let mut ids = ids.clone();
            ids.sort_unstable();
            tasks.push_str(";t");
            let mut last = 0;
            for (i, id) in ids.iter().enumerate() {
                tasks.push_str(if i == 0 { "" } else { "," });
                base36(&mut tasks, id - last);
                last = *id;
            }
        }
        IdsChanged::These(_) => {}
    }
    if head.len() + tasks.len() > MAX_TEXT {
        tasks = ";t*".to_owned();
    }
    if head.len() + tasks.len() > MAX_TEXT {
        // Thousands of services at once: say only that anything may have happened.
        return format!("{origin};*");
    }
    head + &tasks
}

/// Reads a wake-up; none if it is the process's own.
pub fn decode(origin: &str, payload: &str) -> Option<Wakeup> {
    let mut parts = payload.split(';');
    if parts.next() == Some(origin) {
        return None;
    }
    let mut wakeup = Wakeup::default();
    for part in parts {
        let (kind, list) = part.split_at(usize::from(!part.is_empty()));
        match (kind, list) {
            ("d", _) => wakeup.declared = true,
            ("i", _) => wakeup.inbox = true,
            ("t", "*") => wakeup.tasks = IdsChanged::Perhaps,
            ("t", list) => {
                let mut last = 0;
                wakeup.tasks = IdsChanged::These(
                    numbers(list)
                        .map(|step| {
                            last += step;
                            last
                        })
                        .collect(),
                );
            }
            ("s", moment) => wakeup.timer = numbers(moment).next().map(Timestamp::from_millis),
            ("w", list) => wakeup.work = services(list),
            ("p", list) => wakeup.dispatch = services(list),
            ("c", list) => {
                let lanes = list.split(',').filter_map(|lane| u64::from_str_radix(lane, 16).ok());
                wakeup.callbacks = lanes.map(u64::cast_signed).collect();
            }
            // Of a version that says more than we understand.
            _ => return Some(Wakeup::anything()),
        }
    }
    Some(wakeup)
}

fn services(list: &str) -> Vec<ServiceKey> {
    numbers(list).filter_map(|key| i32::try_from(key).ok()).map(ServiceKey).collect()
}

fn numbers(list: &str) -> impl Iterator<Item = i64> {
    list.split(',').filter_map(|digits| i64::from_str_radix(digits, 36).ok())
}

fn base36(text: &mut String, number: i64) {
    let mut digits = [0u8; 13];
    let mut at = digits.len();
    let mut rest = number.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b"0123456789abcdefghijklmnopqrstuvwxyz"[(rest % 36) as usize];
        rest /= 36;
        if rest == 0 {
            break;
        }
    }
    for digit in &digits[at..] {
        // Writing to a String does not fail.
        let _ = text.write_char(char::from(*digit));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wakeup(ids: Vec<i64>) -> Wakeup {
        Wakeup {
            work: vec![ServiceKey(1), ServiceKey(400)],
            tasks: IdsChanged::These(ids),
            declared: true,
            callbacks: vec![1, -1, i64::MIN, i64::MAX],
            dispatch: vec![ServiceKey(2)],
            timer: Some(Timestamp::from_millis(1_769_848_200_125)),
            inbox: true,
        }
    }

    #[test]
    fn what_was_told_is_heard_by_the_others_only() {
        for told in
            [wakeup(vec![1, 35, 36, 9_000_000_000]), wakeup(vec![]), Wakeup { declared: false, ..wakeup(vec![7]) }]
        {
            let payload = encode("a", &told);
            assert_eq!(decode("b", &payload), Some(told));
            assert_eq!(decode("a", &payload), None);
        }
    }

    #[test]
    fn a_batch_of_hundreds_fits_and_one_of_thousands_becomes_vague() {
        let near = encode("a", &wakeup((5_000_000..5_000_500).collect()));
        assert!(near.len() < 2_000, "{}", near.len());
        let far = encode("a", &wakeup((0..10_000).map(|i| i * 1_000_003).collect()));
        assert!(far.len() < MAX_TEXT);
        assert_eq!(decode("b", &far).unwrap().tasks, IdsChanged::Perhaps);
        let many = Wakeup { work: (0..9_000).map(ServiceKey).collect(), ..wakeup(vec![]) };
        assert_eq!(decode("b", &encode("a", &many)), Some(Wakeup::anything()));
    }

    #[test]
    fn what_is_not_understood_means_anything() {
        assert_eq!(decode("b", "a;x12"), Some(Wakeup::anything()));
        assert_eq!(decode("b", "a;*"), Some(Wakeup::anything()));
    }
}
