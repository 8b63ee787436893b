//! Records of Kafka as notifications, with envelopes as Debezium wrote them.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use relais_message::Template;
use relais_notify::{
    AudienceMapping, ChangeOperation, Condition, KAFKA_FIELDS, KafkaRecord, NotificationDraft, NotificationMapping,
    PayloadTemplate,
};
use serde_json::{Value, json};
use uuid::Uuid;

const ENVELOPES: &str = include_str!("../../capture/tests/debezium/envelopes.jsonl");
const WITH_SCHEMAS: &str = include_str!("../../capture/tests/debezium/envelopes-schemas.jsonl");
const ROUTED: &str = include_str!("../../capture/tests/debezium/envelopes-outbox-smt.jsonl");

/// A record as it was recorded. A schema that was there before was left out; here it is made up. What is a JSON text was written as it is by its converter.
struct Recorded {
    topic: String,
    key: Option<Vec<u8>>,
    headers: Vec<(String, Vec<u8>)>,
    value: Option<Vec<u8>>,
}

fn bytes(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone().into_bytes()),
        Value::Object(members) if members.len() == 1 && members.contains_key("payload") => {
            Some(json!({"schema": {"type": "struct"}, "payload": members["payload"]}).to_string().into_bytes())
        }
        other => Some(other.to_string().into_bytes()),
    }
}

fn recorded(lines: &str) -> Result<Vec<Recorded>> {
    let read = |line: &str| {
        let line: Value = serde_json::from_str(line)?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let headers = line["headers"].as_array().into_iter().flatten();
        Ok(Recorded {
            topic: text(&line["topic"]),
            key: bytes(&line["key"]),
            headers: headers.map(|pair| (text(&pair[0]), text(&pair[1]).into_bytes())).collect(),
            value: bytes(&line["value"]),
        })
    };
    lines.lines().map(read).collect()
}

/// What becomes of a file, record by record. The records of a topic are one partition.
fn read_all(lines: &str, mapping: &NotificationMapping) -> Result<Vec<(String, Option<NotificationDraft>)>> {
    let mut offsets: BTreeMap<String, i64> = BTreeMap::new();
    let mut found = Vec::new();
    for record in recorded(lines)? {
        let offset = offsets.entry(record.topic.clone()).or_default();
        let headers: Vec<(&str, &[u8])> =
            record.headers.iter().map(|(name, value)| (name.as_str(), value.as_slice())).collect();
        let read = KafkaRecord {
            topic: &record.topic,
            partition: 0,
            offset: *offset,
            key: record.key.as_deref(),
            headers: &headers,
            value: record.value.as_deref(),
        };
        *offset += 1;
        found.push((record.topic.clone(), read.notification("rows", mapping)?));
    }
    Ok(found)
}

fn template(text: &str) -> Result<Template> {
    let template = Template::parse(text)?;
    template.check(&KAFKA_FIELDS)?;
    Ok(template)
}

fn to_users(targets: &[&str]) -> Result<NotificationMapping> {
    let targets = targets.iter().map(|text| template(text)).collect::<Result<_>>()?;
    let audience = AudienceMapping { kind: "USER".to_owned(), targets };
    Ok(NotificationMapping { audience: Some(audience), ..NotificationMapping::default() })
}

fn ids(found: &[(String, Option<NotificationDraft>)]) -> Vec<Uuid> {
    found.iter().filter_map(|(_, draft)| draft.as_ref()?.metadata.id).collect()
}

#[test]
fn rows_that_change_become_notifications_with_what_the_envelope_says() -> Result<()> {
    let found = read_all(ENVELOPES, &to_users(&["{payload.after.id}", "{payload.before.id}"])?)?;
    let mut operations: BTreeMap<Option<&'static str>, usize> = BTreeMap::new();
    for (topic, draft) in &found {
        let Some(draft) = draft else { continue };
        let metadata = &draft.metadata;
        ensure!(metadata.topic.as_ref() == Some(topic) && metadata.emitter.as_deref() == Some("rows"));
        let table = topic.rsplit('.').next();
        ensure!(metadata.source.as_deref() == table, "{:?} of {topic}", metadata.source);
        let payload: Value = serde_json::from_str(draft.payload.as_ref().context("no payload")?.get())?;
        let row = [&payload["after"], &payload["before"]].into_iter().find(|row| row.is_object()).context("no row")?;
        let id = row["id"].as_str().map_or_else(|| row["id"].to_string(), str::to_owned);
        ensure!(draft.routing.audience.targets.contains(&id), "{payload}");
        let operation = metadata.operation.map(|operation| match operation {
            ChangeOperation::Create => "create",
            ChangeOperation::Update => "update",
            ChangeOperation::Delete => "delete",
        });
        *operations.entry(operation).or_default() += 1;
    }
    ensure!(!operations.contains_key(&None), "{operations:?}");
    ensure!(operations.len() == 3, "{operations:?}");
    // Tombstones, truncates and messages of nobody's row are for nobody.
    let nobody = found.iter().filter(|(_, draft)| draft.is_none()).count();
    ensure!(nobody > 0 && nobody + operations.values().sum::<usize>() == found.len());
    Ok(())
}

#[test]
fn the_same_record_has_the_same_id_and_no_other_has_it() -> Result<()> {
    let mapping = to_users(&["{payload.after.id}", "{payload.before.id}"])?;
    let (once, again) = (ids(&read_all(ENVELOPES, &mapping)?), ids(&read_all(ENVELOPES, &mapping)?));
    ensure!(once == again && once.len() == once.iter().collect::<BTreeSet<_>>().len());
    let record = KafkaRecord { topic: "t", partition: 1, offset: 12, key: None, headers: &[], value: None };
    let others = [
        KafkaRecord { topic: "t2", ..record },
        KafkaRecord { partition: 11, offset: 2, ..record },
        KafkaRecord { offset: 13, ..record },
    ];
    for other in others {
        ensure!(other.notification_id() != record.notification_id(), "{other:?}");
    }
    // Known for good: a notification that was made of a record before an update must not be made again.
    ensure!(
        record.notification_id().to_string() == "73095aa5-b190-832e-ac1a-b9a0725e06f6",
        "{}",
        record.notification_id()
    );
    Ok(())
}

#[test]
fn a_message_that_was_published_twice_is_one_notification() -> Result<()> {
    let uuid = "01957000-0000-7000-8000-000000000000";
    for id in [uuid, "order-7"] {
        let headers: [(&str, &[u8]); 2] = [("id", b"another"), ("id", id.as_bytes())];
        let first = KafkaRecord { topic: "t", partition: 0, offset: 1, key: None, headers: &headers, value: None };
        let again = KafkaRecord { partition: 3, offset: 7, ..first };
        ensure!(first.notification_id() == again.notification_id());
        ensure!((first.notification_id().to_string() == uuid) == (id == uuid));
    }
    Ok(())
}

#[test]
fn an_envelope_with_its_schema_says_the_same_as_without() -> Result<()> {
    let mapping = to_users(&["{payload.after.id}", "{payload.before.id}"])?;
    let of_rows = |lines: &str| -> Result<Vec<String>> {
        let found = read_all(lines, &mapping)?.into_iter();
        let found = found.filter_map(|(topic, draft)| Some((topic, draft?)));
        Ok(found
            .map(|(topic, draft)| format!("{topic} {:?} {}", draft.metadata.operation, draft.routing.audience))
            .collect())
    };
    let (with, without) = (of_rows(WITH_SCHEMAS)?, of_rows(ENVELOPES)?);
    ensure!(!with.is_empty() && with == without, "{with:#?}\n{without:#?}");
    Ok(())
}

#[test]
fn a_routed_event_is_mapped_by_its_headers_and_its_payload() -> Result<()> {
    let mut mapping = to_users(&["{key}"])?;
    mapping.when = vec![Condition { value: template("{headers.event_type}")?, is: vec!["order.created".to_owned()] }];
    let payload = json!({"order": "{payload.order}", "amount": "{payload.amount}", "from": "{topic}"});
    mapping.payload =
        Some(PayloadTemplate::parse(&payload, &KAFKA_FIELDS).map_err(|wrong| anyhow::anyhow!("{wrong:?}"))?);
    let found: Vec<NotificationDraft> =
        read_all(ROUTED, &mapping)?.into_iter().filter_map(|(_, draft)| draft).collect();
    let [draft] = found.as_slice() else { anyhow::bail!("{} notifications", found.len()) };
    ensure!(draft.metadata.id == Some("00000000-0000-0000-0000-0000000000aa".parse()?), "the event's own id");
    ensure!(draft.routing.audience.targets.contains("00000000-0000-0000-0000-0000000000bb"));
    let said = draft.payload.as_ref().context("no payload")?.get();
    ensure!(said == r#"{"amount":12.50,"from":"outbox.event.order.created","order":1}"#, "{said}");
    Ok(())
}

#[test]
fn a_whole_notification_keeps_what_it_says() -> Result<()> {
    let mapping = NotificationMapping::default();
    let value = br#"{"metadata": {"type": "SYSTEM", "emitter": "DEBEZIUM"}, "payload": {"a": 1.50},
                     "routing": {"audience": {"type": "GROUP", "targets": ["g"]}, "retry": {"attempts": 2}}}"#;
    let record = KafkaRecord { topic: "t", partition: 0, offset: 1, key: None, headers: &[], value: Some(value) };
    let draft = record.notification("rows", &mapping)?.context("nothing")?;
    ensure!(draft.metadata.id == Some(record.notification_id()));
    ensure!(draft.metadata.emitter.as_deref() == Some("DEBEZIUM") && draft.routing.retry.attempts == 0);
    ensure!(draft.payload.context("no payload")?.get() == r#"{"a": 1.50}"#);
    let refused = KafkaRecord { value: Some(b"hello"), ..record }.notification("rows", &mapping);
    ensure!(refused.is_err_and(|error| error.to_string().contains("is not a notification")));
    ensure!(KafkaRecord { value: None, ..record }.notification("rows", &mapping)?.is_none(), "a tombstone");
    Ok(())
}
