//! What is declared of an outbox: judged without asking anybody, with the defaults filled in.

use std::time::Duration;

use relais_core::{Json, RelayKind, RelayName, RelayRecord, RelaySecrets};
use relais_engine::Problem;
use relais_message::{Envelope, Template};
use relais_outbox::{CaptureOptions, FIELDS, Mode, Outbox, OutboxError, RelayOptions, Retry};
use relais_protocol::{
    HumanDuration,
    admin::SecretDeclaration,
    outbox::{
        EnvelopeName, NotificationSinkDeclaration, OutboxDeclaration, OutboxMode, OutboxRetryDeclaration,
        SinkDeclaration,
    },
};

use serde::{Serialize, de::DeserializeOwned};

use crate::secrets::{self, Secrets};

/// What templates of a notification's targets may name.
const TARGET_FIELDS: [&str; 5] = ["id", "key", "event_type", "schema_version", "correlation_id"];

const DAY: Duration = Duration::from_secs(86_400);

/// The sinks, for whoever names none.
const SINKS: &str = "rabbitmq, redis, kafka, http, bus, task, notifications";

/// A declared outbox that can be run.
#[derive(Debug, Clone)]
pub(crate) struct Declared {
    pub(crate) name: RelayName,
    /// As it may be shown, with all defaults.
    pub(crate) shown: OutboxDeclaration,
    pub(crate) secrets: Secrets,
    pub(crate) table: Outbox,
    pub(crate) options: RelayOptions,
}

impl Declared {
    /// Judges a declaration. Problems are at places below it.
    pub(crate) fn new(declared: OutboxDeclaration) -> Result<Self, Vec<Problem>> {
        let mut problems = Vec::new();
        let name = keep_problem(RelayName::new(declared.outbox_name.clone()), "outboxName", &mut problems);
        let mut shown = declared;
        let secrets = match secrets::split(&mut shown.database_url, &mut shown.sink) {
            Ok(secrets) => secrets,
            Err(wrong) => {
                problems.extend(wrong);
                return Err(problems);
            }
        };
        fill_in(&mut shown);
        if !["postgres:", "postgresql:", "sqlite:"].iter().any(|scheme| database_url(&secrets).starts_with(scheme)) {
            problems.push(Problem::at("databaseUrl", OutboxError::Url.to_string()));
        }
        let table = Outbox::new(shown.table.as_deref().unwrap_or("outbox"));
        let table = keep_problem(table, "table", &mut problems);
        judge_sink(&shown.sink, &mut problems);
        let options = options(&shown, &mut problems);
        match (name, table, options) {
            (Some(name), Some(table), Some(options)) if problems.is_empty() => {
                Ok(Self { name, shown, secrets, table, options })
            }
            _ => Err(problems),
        }
    }

    /// From what is stored.
    pub(crate) fn stored(record: &RelayRecord) -> Result<Self, Vec<Problem>> {
        let (mut shown, secrets): (OutboxDeclaration, Secrets) = from_record(record)?;
        secrets::join(&mut shown.database_url, &mut shown.sink, &secrets);
        Self::new(shown)
    }

    /// To be stored, without whether it is paused.
    pub(crate) fn record(&self) -> Result<RelayRecord, Vec<Problem>> {
        let shown = OutboxDeclaration { paused: None, ..self.shown.clone() };
        to_record(RelayKind::Outbox, &self.name, &shown, &self.secrets)
    }

    /// Secrets that it does not repeat stay as they are stored; but none of one Kafka cluster is sent to another.
    pub(crate) fn keep_secrets(&mut self, stored: &Self) {
        secrets::keep(&self.shown.sink, &mut self.secrets, (&stored.shown.sink, &stored.secrets));
    }

    pub(crate) fn database_url(&self) -> &str {
        database_url(&self.secrets)
    }

    /// With secrets, for whoever connects.
    pub(crate) fn sink(&self) -> SinkDeclaration {
        let (mut database_url, mut sink) = (self.shown.database_url.clone(), self.shown.sink.clone());
        secrets::join(&mut database_url, &mut sink, &self.secrets);
        sink
    }
}

/// To be stored: what may be shown, and what may not.
pub(crate) fn to_record(
    kind: RelayKind,
    name: &RelayName,
    shown: &impl Serialize,
    secrets: &Secrets,
) -> Result<RelayRecord, Vec<Problem>> {
    let unwritable = |error: String| vec![Problem::at("", format!("can not be written: {error}"))];
    let text = serde_json::to_string(shown).map_err(|error| unwritable(error.to_string()))?;
    let secrets = serde_json::to_string(secrets).map_err(|error| unwritable(error.to_string()))?;
    let declaration = Json::parse(text).map_err(|error| unwritable(error.to_string()))?;
    Ok(RelayRecord { kind, name: name.clone(), declaration, secrets: RelaySecrets::new(secrets), paused: false })
}

/// From what is stored: what may be shown, and what may not.
pub(crate) fn from_record<D: DeserializeOwned>(record: &RelayRecord) -> Result<(D, Secrets), Vec<Problem>> {
    let unreadable = |error: serde_json::Error| vec![Problem::at("", format!("is not understood: {error}"))];
    let shown = serde_json::from_str(record.declaration.get()).map_err(unreadable)?;
    let secrets = serde_json::from_str(record.secrets.expose()).map_err(unreadable)?;
    Ok((shown, secrets))
}

/// Problems in one line.
pub(crate) fn told(problems: &[Problem]) -> String {
    let told: Vec<String> = problems.iter().map(|problem| format!("{}: {}", problem.path, problem.message)).collect();
    told.join("; ")
}

/// Says what is wrong with a declared sink.
pub(crate) fn judge_sink(sink: &SinkDeclaration, problems: &mut Vec<Problem>) {
    match sink.kinds().as_slice() {
        [_] => {}
        [] => problems.push(Problem::at("sink", format!("must name where messages go: one of {SINKS}"))),
        several => {
            let message = format!("must be one sink, and these are {}", several.join(", "));
            problems.push(Problem::at("sink", message));
        }
    }
    if sink.redis.as_ref().is_some_and(|redis| redis.max_length == Some(0)) {
        problems.push(Problem::at("sink/redis/maxLength", "must be at least 1"));
    }
    if let Some(NotificationSinkDeclaration { audience, kind }) = &sink.notifications {
        if kind.as_ref().is_some_and(|kind| !["REALTIME", "SYSTEM", "NOTIFICATION"].contains(&kind.as_str())) {
            problems.push(Problem::at("sink/notifications/type", "must be REALTIME, SYSTEM or NOTIFICATION"));
        }
        let targets = audience.as_ref().map_or(&[][..], |audience| &audience.targets);
        if audience.is_some() && targets.is_empty() {
            problems.push(Problem::at("sink/notifications/audience/targets", "must have at least one"));
        }
        for (number, text) in targets.iter().enumerate() {
            let place = format!("sink/notifications/audience/targets/{number}");
            let parsed = keep_problem(Template::parse(text), &place, problems);
            if let Some(Err(error)) = parsed.map(|template| template.check(&TARGET_FIELDS)) {
                problems.push(Problem::at(place, error.to_string()));
            }
        }
    }
}

pub(crate) fn database_url(secrets: &Secrets) -> &str {
    secrets.get(secrets::DATABASE_URL).map(String::as_str).unwrap_or_default()
}

fn fill_in(declared: &mut OutboxDeclaration) {
    let Retry { limit, base, factor, cap } = Retry::default();
    let text = |text: &str| Some(text.to_owned());
    declared.table = declared.table.take().or_else(|| text("outbox"));
    declared.mode = declared.mode.or(Some(OutboxMode::Auto));
    declared.key = declared.key.take().or_else(|| text("{aggregate_id}"));
    declared.destination = declared.destination.take().or_else(|| text("outbox.event.{event_type}"));
    declared.routing_key = declared.routing_key.take().or_else(|| text("{event_type}"));
    declared.envelope = declared.envelope.or(Some(EnvelopeName::Payload));
    let retry = declared.retry.take().unwrap_or_default();
    declared.retry = Some(OutboxRetryDeclaration {
        limit: retry.limit.or(Some(limit)),
        base: retry.base.or(Some(HumanDuration(base))),
        factor: retry.factor.or(Some(factor)),
        cap: retry.cap.or(Some(HumanDuration(cap))),
    });
    declared.retention = declared.retention.or(Some(HumanDuration(7 * DAY)));
    declared.delete_published = declared.delete_published.or(Some(false));
    declared.poll_interval = declared.poll_interval.or(Some(HumanDuration(Duration::from_millis(500))));
    declared.batch_rows = declared.batch_rows.or(Some(500));
    declared.max_retained_wal = declared.max_retained_wal.or(Some(CaptureOptions::default().max_retained_wal));
    declared.lease = declared.lease.or(Some(HumanDuration(Duration::from_secs(15))));
}

fn options(shown: &OutboxDeclaration, problems: &mut Vec<Problem>) -> Option<RelayOptions> {
    let mut template = |place: &str, text: &str| {
        let parsed = Template::parse(text).and_then(|template| template.check(&FIELDS).map(|()| template));
        keep_problem(parsed, place, problems)
    };
    let mut texts = [("key", &shown.key), ("destination", &shown.destination), ("routingKey", &shown.routing_key)]
        .map(|(place, text)| template(place, text.as_deref().unwrap_or_default()))
        .into_iter();
    let (key, destination, routing_key) = (texts.next()?, texts.next()?, texts.next()?);
    let headers: Vec<_> = shown
        .headers
        .iter()
        .map(|(name, text)| template(&format!("headers/{name}"), text).map(|text| (name.clone(), text)))
        .collect();
    let retry = shown.retry.clone().unwrap_or_default();
    let mut within = |place: &str, fits: bool, message: &str| {
        if !fits {
            problems.push(Problem::at(place, message));
        }
    };
    let millis = Duration::from_millis;
    let time = |time: Option<HumanDuration>| time.map_or(Duration::ZERO, |time| time.0);
    let (base, cap, poll) = (time(retry.base), time(retry.cap), time(shown.poll_interval));
    let (limit, factor) = (retry.limit.unwrap_or_default(), retry.factor.unwrap_or_default());
    let batch_rows = shown.batch_rows.unwrap_or_default();
    within("retry/limit", (1..=1000).contains(&limit), "must be between 1 and 1000");
    within("retry/base", (millis(1)..=DAY).contains(&base), "must be between 1ms and 1d");
    within("retry/factor", (1.0..=100.0).contains(&factor), "must be between 1 and 100");
    within("retry/cap", (millis(1)..=DAY).contains(&cap), "must be between 1ms and 1d");
    within("pollInterval", (millis(10)..=DAY / 24).contains(&poll), "must be between 10ms and 1h");
    within("batchRows", (1..=100_000).contains(&batch_rows), "must be between 1 and 100000");
    let (lease, second) = (time(shown.lease), Duration::from_secs(1));
    within("lease", (second..=600 * second).contains(&lease), "must be between 1s and 10m");
    let max_retained_wal = shown.max_retained_wal.unwrap_or_default();
    within("maxRetainedWal", max_retained_wal >= 1 << 20, "must be at least 1048576");
    let is_sqlite =
        |url: &SecretDeclaration| matches!(url, SecretDeclaration::Plain(url) if url.starts_with("sqlite:"));
    let can_capture = shown.mode != Some(OutboxMode::Capture) || !is_sqlite(&shown.database_url);
    within("mode", can_capture, &OutboxError::NoCapture.to_string());
    let options = RelayOptions::new(shown.outbox_name.clone());
    let options = keep_problem(options, "", problems)?;
    Some(RelayOptions {
        mode: match shown.mode.unwrap_or_default() {
            OutboxMode::Auto => Mode::Auto,
            OutboxMode::Polling => Mode::Polling,
            OutboxMode::Capture => Mode::Capture,
        },
        capture: CaptureOptions { max_retained_wal, ..CaptureOptions::default() },
        key: key?,
        destination: destination?,
        routing_key: routing_key?,
        headers: headers.into_iter().collect::<Option<_>>()?,
        envelope: match shown.envelope.unwrap_or_default() {
            EnvelopeName::Payload => Envelope::Bare,
            EnvelopeName::CloudEvents => Envelope::CloudEvents,
            EnvelopeName::CloudEventsBinary => Envelope::CloudEventsBinary,
        },
        header_prefix: header_prefix(&shown.sink).to_owned(),
        batch_rows: usize::try_from(batch_rows).unwrap_or(500),
        poll,
        retry: Retry { limit, base, factor, cap },
        delete_published: shown.delete_published.unwrap_or_default(),
        retention: time(shown.retention),
        lease,
        ..options
    })
}

/// What comes before CloudEvents' names in headers, as its bindings say.
fn header_prefix(sink: &SinkDeclaration) -> &'static str {
    match sink.kinds().first() {
        Some(&"rabbitmq") => "cloudEvents_",
        Some(&"kafka") => "ce_",
        _ => "ce-",
    }
}

pub(crate) fn keep_problem<T, E: std::fmt::Display>(
    result: Result<T, E>,
    place: &str,
    problems: &mut Vec<Problem>,
) -> Option<T> {
    result.map_err(|error| problems.push(Problem::at(place, error.to_string()))).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn declared(change: Value) -> Result<Declared, Vec<Problem>> {
        let mut whole = json!({
            "outboxName": "orders", "databaseUrl": "postgres://u:hidden@h/db", "sink": {"rabbitmq": {"url": "amqp://h"}},
        });
        whole.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        Declared::new(serde_json::from_value(whole).unwrap())
    }

    #[test]
    fn defaults_are_filled_in_and_what_is_stored_comes_back() {
        let outbox = declared(json!({"headers": {"x-source": "{aggregate_type}"}})).unwrap();
        assert_eq!(outbox.shown.destination.as_deref(), Some("outbox.event.{event_type}"));
        assert_eq!(outbox.options.header_prefix, "cloudEvents_");
        let record = outbox.record().unwrap();
        assert!(!record.declaration.get().contains("hidden") && record.secrets.expose().contains("hidden"));
        let again = Declared::stored(&record).unwrap();
        assert_eq!((again.shown.clone(), again.secrets.clone()), (outbox.shown, outbox.secrets));
        assert_eq!(again.record().unwrap(), record, "declared again, it is unchanged");
    }

    #[test]
    fn the_secrets_of_a_kafka_cluster_are_not_sent_to_another() {
        let kafka = |brokers: &str, settings: Value| {
            declared(json!({"sink": {"kafka": {"brokers": brokers, "settings": settings}}})).unwrap()
        };
        let stored = kafka("one:9092", json!({"sasl.password": "hidden"}));
        for (brokers, kept) in [("one:9092", true), ("other:9092", false)] {
            let mut again = kafka(brokers, json!({}));
            again.keep_secrets(&stored);
            assert_eq!(again.secrets.values().any(|secret| secret == "hidden"), kept, "{brokers}");
        }
    }

    #[test]
    fn each_problem_names_its_key() {
        for (change, place, said) in [
            (json!({"outboxName": "a b"}), "outboxName", "the name of an outbox or capture must be"),
            (json!({"databaseUrl": "mysql://h/db"}), "databaseUrl", "postgres: or sqlite:"),
            (json!({"table": "a.b.c"}), "table", "is not the name of a table"),
            (json!({"destination": "orders.{even_type}"}), "destination", "there is no field `even_type`"),
            (json!({"key": "{aggregate_id"}), "key", "is not closed"),
            (json!({"headers": {"x": "{nothing}"}}), "headers/x", "there is no field `nothing`"),
            (json!({"sink": {}}), "sink", "one of rabbitmq, redis"),
            (
                json!({"sink": {"bus": {}, "rabbitmq": {"url": "amqp://h"}}}),
                "sink",
                "must be one sink, and these are rabbitmq, bus",
            ),
            (json!({"retry": {"limit": 0}}), "retry/limit", "between 1 and 1000"),
            (json!({"pollInterval": "1ms"}), "pollInterval", "between 10ms and 1h"),
            (json!({"batchRows": 0}), "batchRows", "between 1 and 100000"),
        ] {
            let problems = declared(change.clone()).map(|_| ()).unwrap_err();
            let found = problems.iter().any(|problem| problem.path == place && problem.message.contains(said));
            assert!(found, "{change}: {problems:?}");
        }
    }
}
