//! Cron expressions beside a clock that is watched minute by minute, or second by second, and judged by the rules
//! alone.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use jiff::{
    SignedDuration, Timestamp as Moment,
    civil::DateTime,
    tz::{AmbiguousOffset, TimeZone},
};
use proptest::prelude::*;
use relais_core::{Cron, CronError, Timestamp};

const ZONES: [&str; 9] = [
    "Europe/Paris",
    "America/New_York",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "Africa/Casablanca",
    "Asia/Beirut",
    "America/St_Johns",
    "Pacific/Chatham",
    "UTC",
];

/// One field as it is written, and what it means.
#[derive(Debug, Clone)]
struct Written {
    text: String,
    numbers: Vec<i8>,
}

impl Written {
    fn has(&self, number: i8) -> bool {
        self.numbers.contains(&number)
    }

    fn any(&self) -> bool {
        self.text.starts_with('*')
    }

    fn periodic(&self) -> bool {
        self.text.contains(['*', '/'])
    }
}

fn field(first: i8, last: i8) -> impl Strategy<Value = Written> {
    let numbers = move |list: Vec<i8>| {
        let text = list.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        Written { text, numbers: list }
    };
    prop_oneof![
        3 => Just(Written { text: "*".to_owned(), numbers: (first..=last).collect() }),
        2 => (1..=last).prop_map(move |step| Written {
            text: format!("*/{step}"),
            numbers: (first..=last).step_by(step as usize).collect(),
        }),
        4 => prop::collection::vec(first..=last, 1..4).prop_map(numbers),
        2 => (first..=last, first..=last).prop_map(move |(a, b)| Written {
            text: format!("{}-{}", a.min(b), a.max(b)),
            numbers: (a.min(b)..=a.max(b)).collect(),
        }),
        1 => (first..=last, 1..=last).prop_map(move |(from, step)| Written {
            text: format!("{from}/{step}"),
            numbers: (from..=last).step_by(step as usize).collect(),
        }),
    ]
}

/// An hour near those at which clocks change, more often than not.
fn hour() -> impl Strategy<Value = Written> {
    prop_oneof![
        2 => field(0, 23),
        3 => prop::collection::vec(0i8..5, 1..3).prop_map(|numbers| Written {
            text: numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
            numbers,
        }),
    ]
}

/// Days and months are mostly any: what matters here happens on one day.
fn day(last: i8, first: i8) -> impl Strategy<Value = Written> {
    let any = Written { text: "*".to_owned(), numbers: (first..=last).collect() };
    // No list of days is of the 30th and 31st alone, which may never come.
    let some = field(first, last).prop_filter("comes", |field| field.numbers[0] < 29);
    prop_oneof![5 => Just(any), 1 => some]
}

#[derive(Debug, Clone)]
struct Expression([Written; 6]);

impl Expression {
    fn text(&self, seconds: bool) -> String {
        let texts: Vec<&str> = self.0.iter().map(|field| field.text.as_str()).collect();
        texts[usize::from(!seconds)..].join(" ")
    }

    fn matches(&self, local: DateTime) -> bool {
        let [second, minute, hour, day, month, weekday] = &self.0;
        let days = (day.has(local.day()), weekday.has(local.weekday().to_sunday_zero_offset()));
        second.has(local.second())
            && minute.has(local.minute())
            && hour.has(local.hour())
            && month.has(local.month())
            && if day.any() || weekday.any() { days.0 && days.1 } else { days.0 || days.1 }
    }

    fn every_hour(&self) -> bool {
        (0..24).all(|hour| self.0[2].has(hour))
    }

    fn twice(&self) -> bool {
        self.every_hour() || self.0[1].periodic() || self.0[0].periodic()
    }

    /// The runs, by looking at every step of the clock.
    fn watched(&self, clock: &Clock) -> Vec<Moment> {
        let mut runs = Vec::new();
        for step in clock.steps.windows(2) {
            let ((_, before), (at, local)) = (step[0], step[1]);
            let mut runs_now = self.matches(local) && (self.twice() || clock.shows_first(at, local));
            let mut skipped = before;
            while local.duration_since(skipped) > clock.step && !self.every_hour() {
                skipped += clock.step;
                runs_now |= self.matches(skipped);
            }
            if runs_now {
                runs.push(at);
            }
        }
        runs
    }
}

/// What the clocks of a zone show, step by step.
struct Clock {
    zone: TimeZone,
    step: SignedDuration,
    steps: Vec<(Moment, DateTime)>,
}

impl Clock {
    fn watch(zone: &str, from: Moment, to: Moment, seconds: bool) -> Self {
        let (zone, step) = (TimeZone::get(zone).unwrap(), SignedDuration::from_secs(if seconds { 1 } else { 60 }));
        let moments = std::iter::successors(Some(from), |at| Some(*at + step)).take_while(|at| *at <= to);
        let steps = moments.map(|at| (at, zone.to_datetime(at))).collect();
        Self { zone, step, steps }
    }

    /// Whether a local time is shown for the first time.
    fn shows_first(&self, at: Moment, local: DateTime) -> bool {
        match self.zone.to_ambiguous_timestamp(local).offset() {
            AmbiguousOffset::Fold { before, .. } => self.zone.to_offset(at) == before,
            _ => true,
        }
    }
}

fn expression(seconds: bool) -> impl Strategy<Value = Expression> {
    let second = match seconds {
        true => field(0, 59).boxed(),
        false => Just(Written { text: "0".to_owned(), numbers: vec![0] }).boxed(),
    };
    (second, field(0, 59), hour(), day(31, 1), day(12, 1), day(6, 0)).prop_map(|fields| {
        let (second, minute, hour, day, month, weekday) = fields;
        Expression([second, minute, hour, day, month, weekday])
    })
}

/// A zone, and a moment at which its clocks change, if they do.
fn change() -> impl Strategy<Value = (&'static str, Moment)> {
    (prop::sample::select(ZONES.to_vec()), 2000i16..2036, 0usize..4).prop_map(|(name, year, which)| {
        let begin = jiff::civil::date(year, 1, 1).at(0, 0, 0, 0).to_zoned(TimeZone::UTC).unwrap().timestamp();
        let zone = TimeZone::get(name).unwrap();
        let changes: Vec<Moment> = zone
            .following(begin)
            .take(4)
            .map(|change| change.timestamp())
            .filter(|at| at.as_second() < 2_100_000_000)
            .collect();
        (name, changes.get(which).copied().unwrap_or(begin))
    })
}

fn found(cron: &Cron, from: Moment, to: Moment) -> Vec<Moment> {
    cron.upcoming(Timestamp::from_millis(from.as_millisecond()))
        .map(|run| Moment::from_millisecond(run.as_millis()).unwrap())
        .take_while(|run| *run <= to)
        .collect()
}

fn agree(expression: &Expression, zone: &str, clock: &Clock, seconds: bool) {
    let cron = Cron::parse(&expression.text(seconds), zone).unwrap();
    let (from, to) = (clock.steps[0].0, clock.steps[clock.steps.len() - 1].0);
    let (found, watched) = (found(&cron, from, to), expression.watched(clock));
    let differ = found.iter().zip(&watched).position(|(one, other)| one != other);
    let at = differ.unwrap_or(found.len().min(watched.len()));
    let text = expression.text(seconds);
    assert_eq!(found.get(at), watched.get(at), "{text} in {zone} from {from}: run {at} is another");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn minutes_agree_with_a_watched_clock_around_its_changes(expression in expression(false), (zone, at) in change()) {
        let days = SignedDuration::from_hours(30);
        agree(&expression, zone, &Clock::watch(zone, at - days, at + days, false), false);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn seconds_agree_with_a_watched_clock_around_its_changes(expression in expression(true), (zone, at) in change()) {
        let hours = SignedDuration::from_mins(70);
        agree(&expression, zone, &Clock::watch(zone, at - hours, at + hours, true), true);
    }

    #[test]
    fn a_run_is_found_from_any_moment_before_it(expression in expression(true), (zone, at) in change(), back in 1i64..90_000_000) {
        let cron = Cron::parse(&expression.text(true), zone).unwrap();
        let from = Timestamp::from_millis(at.as_millisecond() - back);
        if let Some(next) = cron.next_after(from) {
            prop_assert!(next > from);
            let between = Timestamp::from_millis(from.as_millis() + (next.as_millis() - from.as_millis()) / 2);
            prop_assert_eq!(cron.next_after(between), Some(next));
            prop_assert_eq!(cron.next_after(Timestamp::from_millis(next.as_millis() - 1)), Some(next));
        }
    }
}

/// Whole years, minute by minute.
#[test]
fn years_agree_with_a_watched_clock() {
    let written = |text: &str, first: i8, last: i8| {
        let numbers = match text {
            "*" => (first..=last).collect(),
            text if text.starts_with("*/") => (first..=last).step_by(text[2..].parse().unwrap()).collect(),
            text => text.split(',').map(|number| number.parse().unwrap()).collect(),
        };
        Written { text: text.to_owned(), numbers }
    };
    let expressions = ["30 2 * * *", "15 1,2 * * 0", "0 0 1 * *", "45 * * * *", "*/20 2 * * *", "0 */3 29 2,10 1"];
    let begin: Moment = "2027-12-31T12:00:00Z".parse().unwrap();
    let end = begin + SignedDuration::from_hours(24 * 367);
    for zone in ["Europe/Paris", "Australia/Lord_Howe", "Africa/Casablanca"] {
        let clock = Clock::watch(zone, begin, end, false);
        for text in expressions {
            let fields: Vec<&str> = text.split(' ').collect();
            let expression = Expression([
                written("0", 0, 59),
                written(fields[0], 0, 59),
                written(fields[1], 0, 23),
                written(fields[2], 1, 31),
                written(fields[3], 1, 12),
                written(fields[4], 0, 6),
            ]);
            agree(&expression, zone, &clock, false);
        }
    }
}

/// The next runs after a moment, as the clocks on the wall show them.
fn next(expression: &str, zone: &str, after: &str, count: usize) -> Vec<String> {
    let cron = Cron::parse(expression, zone).unwrap();
    cron.upcoming(Timestamp::parse(after).unwrap()).take(count).map(|run| cron.local(run)).collect()
}

#[test]
fn a_run_in_a_clock_gap_happens_once_at_its_end() {
    let spring = "2026-03-28T12:00:00Z";
    assert_eq!(
        next("30 2 * * *", "Europe/Paris", spring, 2),
        ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]
    );
    // All of them, and the one that is due then anyway, are one.
    for expression in ["0,15,30 2 * * *", "0,30 2,3 * * *", "*/10 2 * * *", "0 2-3 * * *"] {
        assert_eq!(next(expression, "Europe/Paris", "2026-03-29T00:00:00Z", 1), ["2026-03-29T03:00:00+02:00"]);
    }
    assert_eq!(next("0 */2 * * *", "Europe/Paris", "2026-03-28T23:00:00Z", 2)[0], "2026-03-29T03:00:00+02:00");
    // Half an hour, a midnight, a whole day.
    assert_eq!(next("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00:00Z", 1), ["2026-10-04T02:30:00+11:00"]);
    assert_eq!(next("0 0 29 3 *", "Asia/Beirut", "2026-03-27T12:00:00Z", 1), ["2026-03-29T01:00:00+03:00"]);
    assert_eq!(
        next("0 12 * * *", "Pacific/Apia", "2011-12-30T00:00:00Z", 2),
        ["2011-12-31T00:00:00+14:00", "2011-12-31T12:00:00+14:00"]
    );
}

#[test]
fn a_run_in_a_repeated_hour_happens_once_unless_it_is_frequent() {
    let autumn = "2026-10-24T23:30:00Z";
    assert_eq!(
        next("30 2 * * *", "Europe/Paris", autumn, 2),
        ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]
    );
    assert_eq!(
        next("0 */2 * * *", "Europe/Paris", autumn, 2),
        ["2026-10-25T02:00:00+02:00", "2026-10-25T04:00:00+01:00"]
    );
    assert_eq!(
        next("30 * * * *", "Europe/Paris", autumn, 3),
        ["2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00", "2026-10-25T03:30:00+01:00"]
    );
    assert_eq!(
        next("*/30 2 * * *", "Europe/Paris", autumn, 4)[2..],
        ["2026-10-25T02:00:00+01:00", "2026-10-25T02:30:00+01:00"]
    );
    assert_eq!(next("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12:00:00Z", 2)[1], "2026-04-06T01:45:00+10:30");
}

#[test]
fn rare_days_are_found_and_those_that_never_come_are_refused() {
    assert_eq!(next("0 0 29 2 *", "UTC", "2096-03-01T00:00:00Z", 1), ["2104-02-29T00:00:00+00:00"]);
    // A Sunday: this one is forty years after the one before.
    assert_eq!(next("0 0 29 2 */7", "UTC", "2088-03-01T00:00:00Z", 1), ["2128-02-29T00:00:00+00:00"]);
    assert!(matches!(Cron::parse("0 0 30 2 *", "UTC"), Err(CronError::Expression(_))));
    for zone in ["", "Mars/Olympus", "CEST+2", "Europe/Pariss", "../../etc/passwd", "unknown", "local"] {
        assert!(matches!(Cron::parse("@daily", zone), Err(CronError::TimeZone(_))), "{zone:?} was accepted");
    }
}

#[test]
fn an_expression_is_described_in_words_with_its_time_zone() {
    let cron = Cron::parse("30 2 * * MON-FRI", "Europe/Paris").unwrap();
    assert_eq!(cron.describe(), "at 02:30 every Monday to Friday, Europe/Paris");
    assert_eq!(Cron::parse("@hourly", "UTC").unwrap().describe(), "every hour, UTC");
}
