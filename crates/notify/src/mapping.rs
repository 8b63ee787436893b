//! How what happens elsewhere becomes a notification: an audience, a payload, and what else is said of it, by templates.
//!
//! Everything that turns messages into notifications goes through here: sinks of outboxes and captures, events of the bus, and
//! records of Kafka. It is pure: the same message has the same notification, with the same id.

use std::collections::BTreeSet;

use relais_message::{RenderError, Template, TemplateError, TemplateField, TemplateFields};
use serde::{
    Deserialize,
    de::{DeserializeOwned, IgnoredAny},
};
use serde_json::{Map, Value, value::RawValue};
use uuid::Uuid;

use crate::{
    Audience, ChangeOperation, MetadataDraft, NotificationDraft, NotificationType, Priority, Retry, RoutingDraft,
};

/// How messages become notifications.
#[derive(Debug, Clone, Default)]
pub struct NotificationMapping {
    /// Only messages that meet all of these become notifications.
    pub when: Vec<Condition>,
    /// Who gets them; none if each message says it itself, as a whole notification.
    pub audience: Option<AudienceMapping>,
    /// The payload; none for that of the message.
    pub payload: Option<PayloadTemplate>,
    /// What they are for; none for `REALTIME`.
    pub kind: Option<Said<NotificationType>>,
    /// Who is served first; none for `NORMAL`.
    pub priority: Option<Said<Priority>>,
    /// What happened; none for what Debezium's envelope says, where the message is one.
    pub operation: Option<Said<ChangeOperation>>,
    /// Whether they must be acknowledged, and how they are sent again.
    pub retry: Retry,
}

/// A template must have one of these values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// What is looked at. A message that has no value for it does not meet the condition.
    pub value: Template,
    /// What it may be.
    pub is: Vec<String>,
}

/// The audience of a message.
#[derive(Debug, Clone)]
pub struct AudienceMapping {
    /// The type of audience.
    pub kind: String,
    /// Templates of targets. One whose value is missing names nobody; one whose value is a JSON array names several.
    pub targets: Vec<Template>,
}

/// A value that is always the same, or a template whose text names one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said<T> {
    /// Always this one.
    Always(T),
    /// What the message says; a message that has no value for it is treated as if nothing were said.
    From(Template),
}

/// A payload that is made of a message: JSON whose texts are templates. A text that is one value of the message's payload and
/// nothing else, such as `{payload.after}`, is that value, whatever it is; a text whose value is missing is null.
#[derive(Debug, Clone, PartialEq)]
pub enum PayloadTemplate {
    /// A value of the message's payload.
    Part(Vec<String>),
    /// A text.
    Text(Template),
    /// Something that is no text.
    Fixed(Value),
    /// A list.
    List(Vec<Self>),
    /// An object.
    Object(Vec<(String, Self)>),
}

/// What a mapping needs to know of a message, beside its fields.
#[derive(Debug)]
pub(crate) struct Mapped<'a, F> {
    /// Its fields.
    pub(crate) fields: &'a F,
    /// The id of its notification, unless it says one itself.
    pub(crate) id: Uuid,
    /// Who emits, unless it says so itself.
    pub(crate) emitter: &'a str,
    /// What it is about, unless Debezium's envelope says so.
    pub(crate) source: Option<String>,
    /// Where it came from.
    pub(crate) topic: Option<String>,
    /// What it says; none is a tombstone.
    pub(crate) payload: Option<&'a [u8]>,
}

/// Why a message can not become a notification.
#[derive(Debug, thiserror::Error)]
pub enum MappingError {
    /// There is no mapping to an audience, and it is not a notification either.
    #[error("the payload is not a notification: {0}")]
    NotNotification(#[source] serde_json::Error),
    /// Its payload can not be the payload of a notification.
    #[error("the payload is not JSON: {0}")]
    NotJson(#[source] serde_json::Error),
    /// A template names something that does not exist.
    #[error("`{field}` is {found:?}, which is not one of {known}")]
    Unknown {
        /// The key of the declaration.
        field: &'static str,
        /// What the template has made of the message.
        found: String,
        /// What there is.
        known: &'static str,
    },
}

/// What Debezium's envelope says of a row, where it is one.
#[derive(Deserialize)]
struct Envelope {
    op: Option<String>,
    source: Option<EnvelopeSource>,
}

#[derive(Deserialize)]
struct EnvelopeSource {
    table: Option<String>,
}

/// A value with its schema, as Kafka Connect writes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WithSchema<'a> {
    #[serde(rename = "schema")]
    _schema: IgnoredAny,
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
}

/// The payload of a value that carries its schema; the value itself if it does not. None if the payload is null: a tombstone.
pub(crate) fn without_schema(value: &[u8]) -> Option<&[u8]> {
    match serde_json::from_slice::<WithSchema<'_>>(value) {
        Ok(WithSchema { payload, .. }) => payload.map(|payload| payload.get().as_bytes()),
        Err(_) => Some(value),
    }
}

impl NotificationMapping {
    /// The notification of a message: none if it is for nobody, or is not meant.
    pub(crate) fn draft<F: TemplateFields>(
        &self,
        mapped: Mapped<'_, F>,
    ) -> Result<Option<NotificationDraft>, MappingError> {
        // A tombstone says nothing to a page.
        let Some(payload) = mapped.payload else { return Ok(None) };
        if !self.when.iter().all(|condition| condition.is_met(mapped.fields)) {
            return Ok(None);
        }
        let Some(audience) = &self.audience else {
            let mut draft: NotificationDraft =
                serde_json::from_slice(payload).map_err(MappingError::NotNotification)?;
            draft.metadata.id.get_or_insert(mapped.id);
            draft.metadata.emitter.get_or_insert_with(|| mapped.emitter.to_owned());
            // Who sends a message on has not sent it again to anybody.
            draft.routing.retry.attempts = 0;
            return Ok(Some(draft));
        };
        let Some(audience) = audience.audience(mapped.fields) else { return Ok(None) };
        let raw: Box<RawValue> = serde_json::from_slice(payload).map_err(MappingError::NotJson)?;
        let envelope: Option<Envelope> = serde_json::from_str(raw.get()).ok();
        let operation = match &self.operation {
            Some(said) => said.value(mapped.fields, "operation", "create, update, delete")?,
            None => envelope.as_ref().and_then(Envelope::operation),
        };
        let table = envelope.and_then(|envelope| envelope.source).and_then(|source| source.table);
        let kind = self.kind.as_ref().map(|said| said.value(mapped.fields, "type", "REALTIME, SYSTEM, NOTIFICATION"));
        let priority = self.priority.as_ref().map(|said| said.value(mapped.fields, "priority", "LOW, NORMAL, HIGH"));
        let metadata = MetadataDraft {
            id: Some(mapped.id),
            kind: Some(kind.transpose()?.flatten().unwrap_or(NotificationType::Realtime)),
            priority: priority.transpose()?.flatten().unwrap_or_default(),
            emitter: Some(mapped.emitter.to_owned()),
            source: table.or(mapped.source),
            topic: mapped.topic,
            operation,
            ..MetadataDraft::default()
        };
        let payload = match &self.payload {
            Some(template) => template.render(mapped.fields, raw.get())?,
            None => raw,
        };
        let routing = RoutingDraft { audience, retry: self.retry };
        Ok(Some(NotificationDraft { metadata, payload: Some(payload), routing }))
    }
}

impl Envelope {
    fn operation(&self) -> Option<ChangeOperation> {
        match self.op.as_deref() {
            Some("c" | "r") => Some(ChangeOperation::Create),
            Some("u") => Some(ChangeOperation::Update),
            Some("d") => Some(ChangeOperation::Delete),
            _ => None,
        }
    }
}

impl Condition {
    fn is_met(&self, fields: &impl TemplateFields) -> bool {
        self.value.render(fields).is_ok_and(|value| self.is.contains(&value))
    }
}

impl AudienceMapping {
    /// The audience of one message: none if it names nobody.
    fn audience(&self, fields: &impl TemplateFields) -> Option<Audience> {
        let rendered = self.targets.iter().filter_map(|template| template.render(fields).ok());
        let targets: BTreeSet<String> = rendered.flat_map(several).filter(|target| !target.is_empty()).collect();
        (!targets.is_empty()).then(|| Audience { kind: self.kind.clone(), targets })
    }
}

impl<T: DeserializeOwned + Copy> Said<T> {
    /// What a declaration says: a template with fields, or the name of a value.
    pub fn parse(text: &str, known: &[&str], values: &str) -> Result<Self, String> {
        let template = Template::parse(text).map_err(|error| error.to_string())?;
        template.check(known).map_err(|error| error.to_string())?;
        let has_fields = template.fields().next().is_some();
        match has_fields {
            true => Ok(Self::From(template)),
            false => named(text).map(Self::Always).ok_or_else(|| format!("must be one of {values}, or a template")),
        }
    }

    fn value(
        &self,
        fields: &impl TemplateFields,
        field: &'static str,
        known: &'static str,
    ) -> Result<Option<T>, MappingError> {
        let template = match self {
            Self::Always(value) => return Ok(Some(*value)),
            Self::From(template) => template,
        };
        let Ok(found) = template.render(fields) else { return Ok(None) };
        match named(&found) {
            Some(value) => Ok(Some(value)),
            None => Err(MappingError::Unknown { field, found, known }),
        }
    }
}

/// The value of this name.
fn named<T: DeserializeOwned>(name: &str) -> Option<T> {
    serde_json::from_value(Value::String(name.to_owned())).ok()
}

impl PayloadTemplate {
    /// Reads JSON whose texts are templates. Problems are at places below it.
    pub fn parse(value: &Value, known: &[&str]) -> Result<Self, Vec<(String, TemplateError)>> {
        let mut problems = Vec::new();
        let template = Self::read(value, known, "", &mut problems);
        if problems.is_empty() { Ok(template) } else { Err(problems) }
    }

    fn read(value: &Value, known: &[&str], place: &str, problems: &mut Vec<(String, TemplateError)>) -> Self {
        match value {
            Value::String(text) => {
                match Template::parse(text).and_then(|template| template.check(known).map(|()| template)) {
                    Ok(template) => Self::of(template),
                    Err(error) => {
                        problems.push((place.to_owned(), error));
                        Self::Fixed(Value::Null)
                    }
                }
            }
            Value::Array(items) => {
                let items = items.iter().enumerate();
                Self::List(
                    items
                        .map(|(number, item)| Self::read(item, known, &format!("{place}/{number}"), problems))
                        .collect(),
                )
            }
            Value::Object(members) => {
                let mut member = |(name, value): (&String, &Value)| {
                    (name.clone(), Self::read(value, known, &format!("{place}/{name}"), problems))
                };
                Self::Object(members.iter().map(&mut member).collect())
            }
            other => Self::Fixed(other.clone()),
        }
    }

    fn of(template: Template) -> Self {
        let part = {
            let mut parts = template.parts();
            match (parts.next(), parts.next()) {
                (Some(Ok(TemplateField::Payload(path))), None) => Some(path.clone()),
                _ => None,
            }
        };
        part.map_or(Self::Text(template), Self::Part)
    }

    fn render(&self, fields: &impl TemplateFields, payload: &str) -> Result<Box<RawValue>, MappingError> {
        let payload: Value = serde_json::from_str(payload).map_err(MappingError::NotJson)?;
        serde_json::value::to_raw_value(&self.fill(fields, &payload)).map_err(MappingError::NotJson)
    }

    fn fill(&self, fields: &impl TemplateFields, payload: &Value) -> Value {
        match self {
            Self::Part(path) => part(payload, path).cloned().unwrap_or(Value::Null),
            Self::Text(template) => match template.render(fields) {
                Ok(text) => Value::String(text),
                Err(RenderError(_)) => Value::Null,
            },
            Self::Fixed(value) => value.clone(),
            Self::List(items) => Value::Array(items.iter().map(|item| item.fill(fields, payload)).collect()),
            Self::Object(members) => {
                let members = members.iter().map(|(name, member)| (name.clone(), member.fill(fields, payload)));
                Value::Object(members.collect::<Map<_, _>>())
            }
        }
    }
}

/// A value inside JSON: names of members, or numbers of items.
pub(crate) fn part<'a>(value: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, step| match value {
        Value::Object(members) => members.get(step),
        Value::Array(items) => items.get(step.parse::<usize>().ok()?),
        _ => None,
    })
}

/// The same as a template's text: none if it is null.
pub(crate) fn part_as_text(value: &Value, path: &[String]) -> Option<String> {
    match part(value, path)? {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

/// A JSON array of texts or numbers, or one text.
fn several(text: String) -> Vec<String> {
    match serde_json::from_str::<Vec<Value>>(&text) {
        Ok(values) => values
            .into_iter()
            .filter_map(|value| match value {
                Value::String(text) => Some(text),
                Value::Number(number) => Some(number.to_string()),
                _ => None,
            })
            .collect(),
        Err(_) => vec![text],
    }
}

#[cfg(test)]
mod tests {
    use relais_message::Message;
    use serde_json::json;

    use super::*;

    const KNOWN: [&str; 2] = ["id", "event_type"];

    fn template(text: &str) -> Template {
        Template::parse(text).unwrap()
    }

    fn mapping() -> NotificationMapping {
        let audience = AudienceMapping { kind: "USER".to_owned(), targets: vec![template("{payload.user}")] };
        NotificationMapping { audience: Some(audience), ..NotificationMapping::default() }
    }

    fn draft(mapping: &NotificationMapping, payload: &str) -> Result<Option<NotificationDraft>, String> {
        let message = Message::new("m-1", "order.placed", payload.to_owned());
        let mapped = Mapped {
            fields: &message,
            id: Uuid::nil(),
            emitter: "rule",
            source: None,
            topic: Some("orders".to_owned()),
            payload: message.payload.as_deref(),
        };
        mapping.draft(mapped).map_err(|error| error.to_string())
    }

    fn drafted(mapping: &NotificationMapping, payload: &str) -> NotificationDraft {
        draft(mapping, payload).unwrap().expect("it is for somebody")
    }

    #[test]
    fn a_message_that_does_not_meet_a_condition_is_passed_over() {
        let when = |value: &str, is: &[&str]| Condition {
            value: template(value),
            is: is.iter().map(|&one| one.to_owned()).collect(),
        };
        for (conditions, is_meant) in [
            (vec![], true),
            (vec![when("{payload.status}", &["SUCCESS", "FAILURE"])], true),
            (vec![when("{payload.status}", &["CANCELLED"])], false),
            (vec![when("{payload.number}", &["7"]), when("{event_type}", &["order.placed"])], true),
            (vec![when("{payload.number}", &["7"]), when("{event_type}", &["order.sent"])], false),
            (vec![when("{payload.nothing}", &[""])], false),
        ] {
            let mapping = NotificationMapping { when: conditions, ..mapping() };
            let found = draft(&mapping, r#"{"user": "ann", "status": "SUCCESS", "number": 7}"#).unwrap();
            assert_eq!(found.is_some(), is_meant, "{:?}", mapping.when);
        }
    }

    #[test]
    fn a_payload_is_made_of_the_values_of_the_message() {
        let payload = json!({
            "title": "{event_type}: {payload.what}", "whole": "{payload.order}", "big": "{payload.big}", "list": ["{id}", 1, null],
            "missing": "{payload.nothing}", "half": "x {payload.nothing}", "braces": "{{}}",
        });
        let payload = PayloadTemplate::parse(&payload, &KNOWN).unwrap();
        let mapping = NotificationMapping { payload: Some(payload), ..mapping() };
        let said = r#"{"user": "ann", "what": "é", "order": {"lines": [1, 2]}, "big": 123456789012345678901234567890}"#;
        let found = drafted(&mapping, said).payload.unwrap();
        let found: Value = serde_json::from_str(found.get()).unwrap();
        let big: Value = serde_json::from_str("123456789012345678901234567890").unwrap();
        assert_eq!(
            found,
            json!({
                "title": "order.placed: é", "whole": {"lines": [1, 2]}, "big": big, "list": ["m-1", 1, null],
                "missing": null, "half": null, "braces": "{}",
            })
        );
        let wrong = PayloadTemplate::parse(&json!({"a": [{"b": "{evnt_type}"}, "{"]}), &KNOWN).unwrap_err();
        let places: Vec<&str> = wrong.iter().map(|(place, _)| place.as_str()).collect();
        assert_eq!(places, ["/a/0/b", "/a/1"]);
    }

    #[test]
    fn type_priority_and_operation_come_from_the_message_or_are_always_the_same() {
        let mapping = NotificationMapping {
            kind: Some(Said::parse("{payload.kind}", &KNOWN, "").unwrap()),
            priority: Some(Said::parse("HIGH", &KNOWN, "").unwrap()),
            operation: Some(Said::parse("{payload.op}", &KNOWN, "").unwrap()),
            ..mapping()
        };
        let metadata = drafted(&mapping, r#"{"user": "ann", "kind": "SYSTEM", "op": "delete"}"#).metadata;
        assert_eq!(
            (metadata.kind, metadata.priority, metadata.operation),
            (Some(NotificationType::System), Priority::High, Some(ChangeOperation::Delete))
        );
        let metadata = drafted(&mapping, r#"{"user": "ann"}"#).metadata;
        assert_eq!((metadata.kind, metadata.operation), (Some(NotificationType::Realtime), None));
        let wrong = draft(&mapping, r#"{"user": "ann", "kind": "URGENT"}"#).unwrap_err();
        assert_eq!(wrong, r#"`type` is "URGENT", which is not one of REALTIME, SYSTEM, NOTIFICATION"#);
        let refused = Said::<Priority>::parse("URGENT", &KNOWN, "LOW, NORMAL, HIGH").unwrap_err();
        assert_eq!(refused, "must be one of LOW, NORMAL, HIGH, or a template");
    }

    #[test]
    fn a_schema_around_a_value_is_taken_off() {
        for (value, without) in [
            (r#"{"schema": {"type": "struct"}, "payload": {"op": "c"}}"#, Some(r#"{"op": "c"}"#)),
            (r#"{"schema": null, "payload": null}"#, None),
            (r#"{"op": "c"}"#, Some(r#"{"op": "c"}"#)),
            (r#"{"schema": 1, "payload": 2, "more": 3}"#, Some(r#"{"schema": 1, "payload": 2, "more": 3}"#)),
            ("no JSON", Some("no JSON")),
        ] {
            assert_eq!(without_schema(value.as_bytes()), without.map(str::as_bytes), "{value}");
        }
    }
}
