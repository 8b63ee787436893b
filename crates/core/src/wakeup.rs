//! Wake-ups: hints that something changed. A wake-up may be lost; the sweep finds what it missed.
//!
//! A wake-up has topics. Each topic is one line of [`topics!`]: a name, what it carries, and the letter under which it
//! travels between processes (`origin;w1,2;d;t1a,1b`). Numbers are written in base 36, tasks as differences, so that a
//! batch of hundreds fits where PostgreSQL allows 8,000 bytes. What does not fit becomes "perhaps any": a hint may
//! always be vaguer than the truth.

use std::fmt::Write;

use crate::{ServiceKey, Timestamp};

/// PostgreSQL takes payloads shorter than 8,000 bytes.
pub const MAX_TEXT: usize = 7_900;

/// What a topic carries.
trait Topic: PartialEq + Sized {
    /// Nothing to say.
    fn nothing() -> Self;

    /// What is said of it when anything may have happened.
    fn anything() -> Self;

    /// Says what another one says, too. May be vaguer than both.
    fn merge(&mut self, other: &Self);

    /// Writes it.
    fn write(&self, text: &mut String);

    /// Reads it; none if it is not understood.
    fn read(text: &str) -> Option<Self>;
}

macro_rules! topics {
    ($($(#[$doc:meta])* $topic:ident: $carries:ty = $letter:literal;)*) => {
        /// A hint that something changed.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Wakeup {
            $($(#[$doc])* pub $topic: $carries,)*
        }

        impl Default for Wakeup {
            /// Nothing to say.
            fn default() -> Self {
                Self { $($topic: Topic::nothing(),)* }
            }
        }

        impl Wakeup {
            /// Anything may have happened.
            pub fn anything() -> Self {
                Self { $($topic: Topic::anything(),)* }
            }

            /// Whether there is nothing to say.
            pub fn is_empty(&self) -> bool {
                *self == Self::default()
            }

            /// Says what another one says, too.
            pub fn merge(&mut self, other: &Self) {
                $(self.$topic.merge(&other.$topic);)*
            }

            /// Its topics, in their order.
            fn write(&self, text: &mut String) {
                $(if self.$topic != <$carries as Topic>::nothing() {
                    text.push(';');
                    text.push($letter);
                    self.$topic.write(text);
                })*
            }

            /// Reads one topic; none if it is not understood.
            fn read(&mut self, letter: char, text: &str) -> Option<()> {
                match letter {
                    $($letter => self.$topic = Topic::read(text)?,)*
                    _ => return None,
                }
                Some(())
            }
        }
    };
}

topics! {
    /// These services have tasks to be claimed.
    work: Vec<ServiceKey> = 'w';
    /// These services have tasks to be published that no process is publishing.
    dispatch: Vec<ServiceKey> = 'p';
    /// What is declared has changed.
    declared: bool = 'd';
    /// There are stored submissions to be collected.
    submissions: bool = 'i';
    /// Something happens to a task at this moment, by itself.
    timer: Option<Timestamp> = 's';
    /// These lanes have callbacks to be sent.
    callbacks: Vec<i64> = 'c';
    /// The log of notifications has grown, or a timer of one is due sooner than was known.
    notifications: bool = 'n';
    /// Somebody subscribed to pushes, or it is asked whose pages are open before they are sent.
    pushes: bool = 'u';
    /// These tasks changed.
    tasks: IdsChanged = 't';
}

/// Which tasks changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdsChanged {
    /// Those with these `id`s.
    These(Vec<i64>),
    /// Too many to name, or unknown because messages may have been missed.
    Perhaps,
}

/// Writes a wake-up as text; `origin` names the process, so that it can pass over its own.
pub fn encode(origin: &str, wakeup: &Wakeup) -> String {
    let mut text = String::from(origin);
    wakeup.write(&mut text);
    if text.len() > MAX_TEXT {
        text.truncate(origin.len());
        Wakeup { tasks: IdsChanged::Perhaps, ..wakeup.clone() }.write(&mut text);
    }
    if text.len() > MAX_TEXT {
        // Thousands of services at once: say only that anything may have happened.
        return format!("{origin};*");
    }
    text
}

/// Reads a wake-up; none if it is the process's own.
pub fn decode(origin: &str, payload: &str) -> Option<Wakeup> {
    let mut parts = payload.split(';');
    if parts.next() == Some(origin) {
        return None;
    }
    let mut wakeup = Wakeup::default();
    for part in parts {
        let mut text = part.chars();
        let letter = text.next().unwrap_or_default();
        if wakeup.read(letter, text.as_str()).is_none() {
            // Of a version that says more than we understand.
            return Some(Wakeup::anything());
        }
    }
    Some(wakeup)
}

impl Topic for bool {
    fn nothing() -> Self {
        false
    }

    fn anything() -> Self {
        true
    }

    fn merge(&mut self, other: &Self) {
        *self |= other;
    }

    fn write(&self, _: &mut String) {}

    fn read(_: &str) -> Option<Self> {
        Some(true)
    }
}

/// A process that missed something looks at everything: that any moment may count is understood.
impl Topic for Option<Timestamp> {
    fn nothing() -> Self {
        None
    }

    fn anything() -> Self {
        None
    }

    fn merge(&mut self, other: &Self) {
        *self = self.iter().chain(other).min().copied();
    }

    fn write(&self, text: &mut String) {
        if let Some(moment) = self {
            base36(text, moment.as_millis());
        }
    }

    fn read(text: &str) -> Option<Self> {
        Some(numbers(text).next().map(Timestamp::from_millis))
    }
}

impl Topic for Vec<ServiceKey> {
    fn nothing() -> Self {
        Self::new()
    }

    fn anything() -> Self {
        Self::new()
    }

    fn merge(&mut self, other: &Self) {
        union(self, other);
    }

    fn write(&self, text: &mut String) {
        for (i, service) in self.iter().enumerate() {
            text.push_str(if i == 0 { "" } else { "," });
            base36(text, i64::from(service.0));
        }
    }

    fn read(text: &str) -> Option<Self> {
        Some(numbers(text).filter_map(|key| i32::try_from(key).ok()).map(ServiceKey).collect())
    }
}

/// Lanes are spread over all 64 bits: sixteen digits each, whatever the base.
impl Topic for Vec<i64> {
    fn nothing() -> Self {
        Self::new()
    }

    fn anything() -> Self {
        Self::new()
    }

    fn merge(&mut self, other: &Self) {
        union(self, other);
    }

    fn write(&self, text: &mut String) {
        for (i, lane) in self.iter().enumerate() {
            let _ = write!(text, "{}{lane:x}", if i == 0 { "" } else { "," });
        }
    }

    fn read(text: &str) -> Option<Self> {
        let lanes = text.split(',').filter_map(|lane| u64::from_str_radix(lane, 16).ok());
        Some(lanes.map(u64::cast_signed).collect())
    }
}

impl Topic for IdsChanged {
    fn nothing() -> Self {
        Self::These(Vec::new())
    }

    fn anything() -> Self {
        Self::Perhaps
    }

    fn merge(&mut self, other: &Self) {
        match (&mut *self, other) {
            (Self::These(ids), Self::These(more)) => ids.extend(more),
            _ => *self = Self::Perhaps,
        }
    }

    fn write(&self, text: &mut String) {
        let Self::These(ids) = self else { return text.push('*') };
        let mut ids = ids.clone();
        ids.sort_unstable();
        let mut last = 0;
        for (i, id) in ids.iter().enumerate() {
            text.push_str(if i == 0 { "" } else { "," });
            base36(text, id - last);
            last = *id;
        }
    }

    fn read(text: &str) -> Option<Self> {
        if text == "*" {
            return Some(Self::Perhaps);
        }
        let mut last = 0;
        let ids = numbers(text).map(|step| {
            last += step;
            last
        });
        Some(Self::These(ids.collect()))
    }
}

fn union<T: Ord + Copy>(into: &mut Vec<T>, more: &[T]) {
    into.extend(more);
    into.sort_unstable();
    into.dedup();
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
            submissions: true,
            notifications: true,
            pushes: true,
        }
    }

    #[test]
    fn a_wakeup_is_received_by_other_processes_only() {
        for told in
            [wakeup(vec![1, 35, 36, 9_000_000_000]), wakeup(vec![]), Wakeup { declared: false, ..wakeup(vec![7]) }]
        {
            let payload = encode("a", &told);
            assert_eq!(decode("b", &payload), Some(told));
            assert_eq!(decode("a", &payload), None);
        }
    }

    #[test]
    fn a_wakeup_lists_hundreds_of_tasks_and_becomes_vague_beyond() {
        let near = encode("a", &wakeup((5_000_000..5_000_500).collect()));
        assert!(near.len() < 2_000, "{}", near.len());
        let far = encode("a", &wakeup((0..10_000).map(|i| i * 1_000_003).collect()));
        assert!(far.len() < MAX_TEXT);
        assert_eq!(decode("b", &far).unwrap().tasks, IdsChanged::Perhaps);
        let many = Wakeup { work: (0..9_000).map(ServiceKey).collect(), ..wakeup(vec![]) };
        assert_eq!(decode("b", &encode("a", &many)), Some(Wakeup::anything()));
    }

    #[test]
    fn an_unknown_wakeup_wakes_everybody() {
        assert_eq!(decode("b", "a;x12"), Some(Wakeup::anything()));
        assert_eq!(decode("b", "a;*"), Some(Wakeup::anything()));
    }
}
