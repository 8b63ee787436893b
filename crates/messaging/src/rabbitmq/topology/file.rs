//! How a topology is written in a file: keys in camelCase, and AMQP's own names under `arguments`.
//!
//! A property can be written either way; written both ways, it must say the same. Whether it makes sense is not decided
//! here, but by `check`, as for topologies built in Rust.

use std::fmt;

use serde::{Deserialize, Deserializer, de};
use serde_json::Value;

use super::{
    Arguments, BindingDeclaration, BindingDestination, ExchangeDeclaration, ExchangeType, MAX_RETRIES, QueueDeclaration,
};
use crate::rabbitmq::QueueKind;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ExchangeEntry {
    name: String,
    r#type: ExchangeType,
    durable: Option<bool>,
    #[serde(default)]
    auto_delete: bool,
    #[serde(default)]
    internal: bool,
    alternate_exchange: Option<String>,
    #[serde(default)]
    arguments: Arguments,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct QueueEntry {
    name: String,
    r#type: Option<QueueTypeName>,
    durable: Option<bool>,
    #[serde(default)]
    auto_delete: bool,
    dead_letter_exchange: Option<String>,
    dead_letter_routing_key: Option<String>,
    message_ttl: Option<Ttl>,
    max_length: Option<u64>,
    overflow: Option<String>,
    single_active_consumer: Option<bool>,
    max_retries: Option<u32>,
    #[serde(default)]
    arguments: Arguments,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct BindingEntry {
    exchange: String,
    queue: Option<String>,
    to_exchange: Option<String>,
    #[serde(default)]
    routing_key: String,
    #[serde(default)]
    arguments: Arguments,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum QueueTypeName {
    Classic,
    Quorum,
}

impl From<QueueTypeName> for QueueKind {
    fn from(name: QueueTypeName) -> Self {
        match name {
            QueueTypeName::Classic => Self::Classic,
            QueueTypeName::Quorum => Self::Quorum,
        }
    }
}

impl TryFrom<ExchangeEntry> for ExchangeDeclaration {
    type Error = String;

    fn try_from(entry: ExchangeEntry) -> Result<Self, String> {
        let ExchangeEntry { name, r#type: kind, durable, auto_delete, internal, alternate_exchange, mut arguments } =
            entry;
        write(&mut arguments, "alternateExchange", "alternate-exchange", alternate_exchange)?;
        Ok(Self { name, kind, durable: durable.unwrap_or(true), auto_delete, internal, arguments })
    }
}

impl TryFrom<QueueEntry> for QueueDeclaration {
    type Error = String;

    fn try_from(entry: QueueEntry) -> Result<Self, String> {
        let QueueEntry { name, r#type, durable, auto_delete, mut arguments, max_retries, .. } = entry;
        write(&mut arguments, "deadLetterExchange", "x-dead-letter-exchange", entry.dead_letter_exchange)?;
        write(&mut arguments, "deadLetterRoutingKey", "x-dead-letter-routing-key", entry.dead_letter_routing_key)?;
        write(&mut arguments, "messageTtl", "x-message-ttl", entry.message_ttl.map(|Ttl(millis)| millis))?;
        write(&mut arguments, "maxLength", "x-max-length", entry.max_length)?;
        write(&mut arguments, "overflow", "x-overflow", entry.overflow)?;
        write(&mut arguments, "singleActiveConsumer", "x-single-active-consumer", entry.single_active_consumer)?;
        write(&mut arguments, "maxRetries", MAX_RETRIES, max_retries)?;
        let max_retries = match arguments.remove(MAX_RETRIES) {
            None => None,
            Some(number) => {
                let number = number.as_u64().and_then(|number| u32::try_from(number).ok());
                Some(number.ok_or_else(|| format!("`{MAX_RETRIES}` is a whole number, not negative"))?)
            }
        };
        let said = match arguments.remove("x-queue-type") {
            None => None,
            Some(text) if text == "classic" => Some(QueueKind::Classic),
            Some(text) if text == "quorum" => Some(QueueKind::Quorum),
            Some(_) => return Err("`x-queue-type` is \"classic\" or \"quorum\"".to_owned()),
        };
        let kind = match (r#type.map(QueueKind::from), said) {
            (Some(kind), Some(other)) if kind != other => return Err(contradiction("type", "x-queue-type")),
            (kind, said) => kind.or(said).unwrap_or_default(),
        };
        Ok(Self { name, kind, durable: durable.unwrap_or(true), auto_delete, arguments, max_retries })
    }
}

impl TryFrom<BindingEntry> for BindingDeclaration {
    type Error = &'static str;

    fn try_from(entry: BindingEntry) -> Result<Self, &'static str> {
        let destination = match (entry.queue, entry.to_exchange) {
            (Some(queue), None) => BindingDestination::Queue(queue),
            (None, Some(exchange)) => BindingDestination::Exchange(exchange),
            _ => return Err("a binding has one of `queue` and `toExchange`"),
        };
        Ok(Self { exchange: entry.exchange, destination, routing_key: entry.routing_key, arguments: entry.arguments })
    }
}

/// Writes what a key says as the argument that it means.
fn write(arguments: &mut Arguments, key: &str, name: &str, value: Option<impl Into<Value>>) -> Result<(), String> {
    let Some(value) = value.map(Into::into) else { return Ok(()) };
    match arguments.insert(name.to_owned(), value.clone()) {
        Some(other) if other != value => Err(contradiction(key, name)),
        _ => Ok(()),
    }
}

fn contradiction(key: &str, name: &str) -> String {
    format!("`{key}` and the argument `{name}` say different things; one of them is enough")
}

/// A time in milliseconds, or written like `30s` or `1h30m`.
struct Ttl(u64);

const UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

impl Ttl {
    fn parse(text: &str) -> Option<u64> {
        let mut parts = Vec::new();
        let mut rest = text.trim();
        while !rest.is_empty() {
            let unit = rest.find(|c: char| !c.is_ascii_digit())?;
            let end = rest[unit..].find(|c: char| c.is_ascii_digit()).map_or(rest.len(), |length| unit + length);
            let (_, factor) = UNITS.iter().find(|(name, _)| *name == &rest[unit..end])?;
            parts.push(rest[..unit].parse::<u64>().ok()?.checked_mul(*factor)?);
            rest = &rest[end..];
        }
        parts.into_iter().reduce(|total, part| total.saturating_add(part))
    }
}

impl<'de> Deserialize<'de> for Ttl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = Ttl;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time like 30s, 5m or 1h30m, or a whole number of milliseconds")
            }

            fn visit_u64<E: de::Error>(self, millis: u64) -> Result<Ttl, E> {
                Ok(Ttl(millis))
            }

            fn visit_i64<E: de::Error>(self, millis: i64) -> Result<Ttl, E> {
                u64::try_from(millis).map(Ttl).map_err(|_| E::invalid_value(de::Unexpected::Signed(millis), &self))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Ttl, E> {
                Ttl::parse(text).map(Ttl).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}
