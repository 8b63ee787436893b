//! What is declared of a notification source: judged without asking anybody.

use relais_bus::Pattern;
use relais_core::{RelayKind, RelayName, RelayRecord};
use relais_engine::Problem;
use relais_message::Template;
use relais_notify::{
    AudienceMapping, Backoff, Condition, EVENT_FIELDS, NotificationMapping, PayloadTemplate, Retry, Said,
};
use relais_protocol::{
    notification_source::{BusSourceDeclaration, NotificationRetryDeclaration, NotificationSourceDeclaration},
    outbox::NotificationAudienceDeclaration,
};

use crate::{
    declaration::{from_record, keep_problem, to_record},
    secrets::Secrets,
};

/// Channels with this prefix are for the processes of Relais.
pub(super) const OWN: &str = "relais.";

const NO_KAFKA: &str = "this version has no Kafka consumers, so that no topic can be read; leave the source out until there \
                        are some. Meanwhile a consumer of your own can send what it reads with POST /v1/notifications";

/// A declared notification source that can be run.
#[derive(Debug, Clone)]
pub(crate) struct DeclaredSource {
    pub(crate) name: RelayName,
    /// As it may be shown.
    pub(crate) shown: NotificationSourceDeclaration,
    /// What is heard.
    pub(crate) channels: Vec<String>,
    pub(crate) mapping: NotificationMapping,
}

impl DeclaredSource {
    /// Judges a declaration. Problems are at places below it.
    pub(crate) fn new(shown: NotificationSourceDeclaration) -> Result<Self, Vec<Problem>> {
        let mut problems = Vec::new();
        let name = keep_problem(RelayName::new(shown.source_name.clone()), "sourceName", &mut problems);
        let channels = channels(&shown, &mut problems);
        let mapping = mapping(&shown, &mut problems);
        match name {
            Some(name) if problems.is_empty() => Ok(Self { name, shown, channels, mapping }),
            _ => Err(problems),
        }
    }

    /// From what is stored.
    pub(crate) fn stored(record: &RelayRecord) -> Result<Self, Vec<Problem>> {
        let (shown, _): (NotificationSourceDeclaration, Secrets) = from_record(record)?;
        Self::new(shown)
    }

    /// To be stored, without whether it is paused.
    pub(crate) fn record(&self) -> Result<RelayRecord, Vec<Problem>> {
        let shown = NotificationSourceDeclaration { paused: None, ..self.shown.clone() };
        to_record(RelayKind::NotificationSource, &self.name, &shown, &Secrets::new())
    }
}

fn channels(shown: &NotificationSourceDeclaration, problems: &mut Vec<Problem>) -> Vec<String> {
    if shown.kafka.is_some() {
        problems.push(Problem::at("kafka", NO_KAFKA));
        return Vec::new();
    }
    let Some(BusSourceDeclaration { channels }) = &shown.bus else {
        problems.push(Problem::at("bus", "must say which events of the bus are heard: `bus: {channels: […]}`"));
        return Vec::new();
    };
    if channels.is_empty() {
        problems.push(Problem::at("bus/channels", "must name at least one channel"));
    }
    for (number, channel) in channels.iter().enumerate() {
        let place = format!("bus/channels/{number}");
        keep_problem(Pattern::new(channel.as_str()), &place, problems);
        if channel.starts_with(OWN) {
            problems.push(Problem::at(place, format!("{channel:?} is for the processes of Relais")));
        }
    }
    channels.clone()
}

fn mapping(shown: &NotificationSourceDeclaration, problems: &mut Vec<Problem>) -> NotificationMapping {
    let Some(NotificationAudienceDeclaration { kind, targets }) = &shown.audience else {
        let given = [
            ("payload", shown.payload.is_some()),
            ("type", shown.kind.is_some()),
            ("priority", shown.priority.is_some()),
            ("operation", shown.operation.is_some()),
            ("retry", shown.retry.is_some()),
        ];
        for (place, _) in given.into_iter().filter(|(_, given)| *given) {
            let message = "needs an `audience`: without one, each event is a whole notification and says this itself";
            problems.push(Problem::at(place, message));
        }
        return NotificationMapping { when: conditions(shown, problems), ..NotificationMapping::default() };
    };
    if targets.is_empty() {
        problems.push(Problem::at("audience/targets", "must have at least one"));
    }
    let targets = targets.iter().enumerate();
    let targets: Vec<Template> =
        targets.filter_map(|(number, text)| template(text, &format!("audience/targets/{number}"), problems)).collect();
    NotificationMapping {
        when: conditions(shown, problems),
        audience: Some(AudienceMapping { kind: kind.clone(), targets }),
        payload: shown.payload.as_ref().and_then(|payload| match PayloadTemplate::parse(payload, &EVENT_FIELDS) {
            Ok(template) => Some(template),
            Err(wrong) => {
                let wrong = wrong.into_iter();
                problems.extend(wrong.map(|(place, error)| Problem::at(format!("payload{place}"), error.to_string())));
                None
            }
        }),
        kind: said(shown.kind.as_deref(), "type", "REALTIME, SYSTEM, NOTIFICATION", problems),
        priority: said(shown.priority.as_deref(), "priority", "LOW, NORMAL, HIGH", problems),
        operation: said(shown.operation.as_deref(), "operation", "create, update, delete", problems),
        retry: retry(shown.retry.as_ref(), problems),
    }
}

fn template(text: &str, place: &str, problems: &mut Vec<Problem>) -> Option<Template> {
    let parsed = Template::parse(text).and_then(|template| template.check(&EVENT_FIELDS).map(|()| template));
    keep_problem(parsed, place, problems)
}

fn conditions(shown: &NotificationSourceDeclaration, problems: &mut Vec<Problem>) -> Vec<Condition> {
    let conditions = shown.when.iter().filter_map(|(text, is)| {
        let place = format!("when/{text}");
        if is.values().is_empty() {
            problems.push(Problem::at(&place, "must have at least one value"));
        }
        let value = template(text, &place, problems)?;
        if value.fields().next().is_none() {
            problems.push(Problem::at(&place, "must be a template, such as `{payload.status}`"));
        }
        Some(Condition { value, is: is.values().to_vec() })
    });
    conditions.collect()
}

fn said<T: serde::de::DeserializeOwned + Copy>(
    text: Option<&str>,
    place: &str,
    values: &str,
    problems: &mut Vec<Problem>,
) -> Option<Said<T>> {
    keep_problem(Said::parse(text?, &EVENT_FIELDS, values), place, problems)
}

fn retry(declared: Option<&NotificationRetryDeclaration>, problems: &mut Vec<Problem>) -> Retry {
    let (default, declared) = (Retry::default(), declared.cloned().unwrap_or_default());
    Retry {
        ack_required: declared.ack_required.unwrap_or(default.ack_required),
        enabled: declared.enabled.unwrap_or(default.enabled),
        limit: declared.limit.unwrap_or(default.limit),
        backoff: match declared.backoff.as_deref() {
            None => default.backoff,
            Some("FIXED") => Backoff::Fixed,
            Some("LINEAR") => Backoff::Linear,
            Some("EXPONENTIAL") => Backoff::Exponential,
            Some(_) => {
                problems.push(Problem::at("retry/backoff", "must be FIXED, LINEAR or EXPONENTIAL"));
                default.backoff
            }
        },
        attempts: 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn declared(change: Value) -> Result<DeclaredSource, Vec<Problem>> {
        let mut whole = json!({
            "sourceName": "tasks", "bus": {"channels": ["task.*.success"]},
            "audience": {"type": "USER", "targets": ["{payload.clientId}"]},
        });
        whole.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        DeclaredSource::new(serde_json::from_value(whole).unwrap())
    }

    #[test]
    fn what_is_stored_comes_back() {
        let source = declared(json!({
            "when": {"{payload.status}": ["SUCCESS", "FAILURE"], "{channel}": "task.a.success"}, "type": "{payload.kind}",
            "priority": "HIGH", "operation": "update", "payload": {"title": "{payload.service}", "task": "{payload}"},
            "retry": {"ackRequired": true, "limit": 2, "backoff": "LINEAR"}, "paused": true,
        }));
        // `{payload}` names no field: a part of it must be named.
        let problems = source.map(|_| ()).unwrap_err();
        assert!(problems.iter().any(|problem| problem.path == "payload/task"), "{problems:?}");
        let source = declared(json!({"when": {"{payload.status}": "SUCCESS"}, "priority": "HIGH"})).unwrap();
        let record = source.record().unwrap();
        let again = DeclaredSource::stored(&record).unwrap();
        assert_eq!(again.record().unwrap(), record, "declared again, it is unchanged");
        assert_eq!(again.mapping.when.len(), 1);
    }

    #[test]
    fn what_can_not_be_run_is_refused_with_the_place() {
        for (change, place, said) in [
            (json!({"sourceName": "a b"}), "sourceName", "the name of"),
            (json!({"bus": null}), "bus", "must say which events"),
            (json!({"bus": {"channels": []}}), "bus/channels", "at least one"),
            (json!({"bus": {"channels": ["a..b"]}}), "bus/channels/0", "a..b"),
            (json!({"bus": {"channels": ["task.>", "relais.wakeups"]}}), "bus/channels/1", "is for the processes"),
            (json!({"bus": null, "kafka": {"brokers": "h:9092", "topics": ["t"]}}), "kafka", "has no Kafka consumers"),
            (json!({"when": {"{payload.a": "x"}}), "when/{payload.a", "is not closed"),
            (json!({"when": {"status": "x"}}), "when/status", "must be a template"),
            (json!({"when": {"{payload.a}": []}}), "when/{payload.a}", "at least one value"),
            (json!({"audience": {"type": "USER", "targets": []}}), "audience/targets", "at least one"),
            (json!({"audience": {"type": "USER", "targets": ["{tabel}"]}}), "audience/targets/0", "no field `tabel`"),
            (json!({"audience": null, "type": "SYSTEM"}), "type", "needs an `audience`"),
            (json!({"type": "URGENT"}), "type", "must be one of REALTIME"),
            (json!({"priority": "{chanel}"}), "priority", "no field `chanel`"),
            (json!({"operation": "c"}), "operation", "must be one of create"),
            (json!({"payload": {"a": ["{b"]}}), "payload/a/0", "is not closed"),
            (json!({"retry": {"backoff": "none"}}), "retry/backoff", "must be FIXED"),
        ] {
            let problems = declared(change.clone()).map(|_| ()).unwrap_err();
            let found = problems.iter().any(|problem| problem.path == place && problem.message.contains(said));
            assert!(found, "{change}: {problems:?}");
        }
    }
}
