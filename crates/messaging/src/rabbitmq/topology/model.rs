//! What a topology consists of, and how it is built in Rust.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::MAX_RETRIES;
use crate::rabbitmq::QueueKind;

/// Arguments of an exchange, a queue or a binding, under the names that AMQP gives them (`x-message-ttl`).
pub type Arguments = Map<String, Value>;

/// The exchanges, queues and bindings that an application needs.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Topology {
    /// Exchanges.
    pub exchanges: Vec<ExchangeDeclaration>,
    /// Queues.
    pub queues: Vec<QueueDeclaration>,
    /// What leads messages from exchanges to queues, or to other exchanges.
    pub bindings: Vec<BindingDeclaration>,
}

impl Topology {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an exchange.
    pub fn exchange(mut self, exchange: ExchangeDeclaration) -> Self {
        self.exchanges.push(exchange);
        self
    }

    /// Adds a queue.
    pub fn queue(mut self, queue: QueueDeclaration) -> Self {
        self.queues.push(queue);
        self
    }

    /// Adds a binding.
    pub fn binding(mut self, binding: BindingDeclaration) -> Self {
        self.bindings.push(binding);
        self
    }

    /// The queue of this name.
    pub fn find_queue(&self, name: &str) -> Option<&QueueDeclaration> {
        self.queues.iter().find(|queue| queue.name == name)
    }

    /// The exchange of this name.
    pub fn find_exchange(&self, name: &str) -> Option<&ExchangeDeclaration> {
        self.exchanges.iter().find(|exchange| exchange.name == name)
    }
}

/// How an exchange chooses among its bindings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExchangeType {
    /// Those whose routing key is the message's.
    Direct,
    /// All of them.
    Fanout,
    /// Those whose pattern matches the message's routing key: `*` is one word, `#` any number of them.
    Topic,
    /// Those whose arguments match the message's headers, as `x-match` says: `all` or `any`.
    Headers,
}

impl ExchangeType {
    /// As brokers call it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Fanout => "fanout",
            Self::Topic => "topic",
            Self::Headers => "headers",
        }
    }
}

/// An exchange that there should be.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "super::file::ExchangeEntry")]
pub struct ExchangeDeclaration {
    /// Its name.
    pub name: String,
    /// How it chooses.
    pub kind: ExchangeType,
    /// Whether it survives a restart of the broker.
    pub durable: bool,
    /// Whether it is deleted with its last binding.
    pub auto_delete: bool,
    /// Whether only other exchanges may publish to it.
    pub internal: bool,
    /// What else is said of it.
    pub arguments: Arguments,
}

impl ExchangeDeclaration {
    /// A durable exchange.
    pub fn new(name: impl Into<String>, kind: ExchangeType) -> Self {
        let (durable, auto_delete, internal) = (true, false, false);
        Self { name: name.into(), kind, durable, auto_delete, internal, arguments: Arguments::new() }
    }

    /// Where messages go that no binding takes.
    pub fn alternate_exchange(self, exchange: impl Into<String>) -> Self {
        self.argument("alternate-exchange", exchange.into())
    }

    /// Adds an argument.
    pub fn argument(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.arguments.insert(name.into(), value.into());
        self
    }
}

/// A queue that there should be.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "super::file::QueueEntry")]
pub struct QueueDeclaration {
    /// Its name.
    pub name: String,
    /// What it is made of.
    pub kind: QueueKind,
    /// Whether it survives a restart of the broker.
    pub durable: bool,
    /// Whether it is deleted with its last consumer.
    pub auto_delete: bool,
    /// What else is said of it, `x-queue-type` and `x-max-retries` aside.
    pub arguments: Arguments,
    /// After how many retries its consumers give up.
    pub max_retries: Option<u32>,
}

impl QueueDeclaration {
    /// A durable classic queue.
    pub fn classic(name: impl Into<String>) -> Self {
        Self::new(name.into(), QueueKind::Classic)
    }

    /// A quorum queue.
    pub fn quorum(name: impl Into<String>) -> Self {
        Self::new(name.into(), QueueKind::Quorum)
    }

    fn new(name: String, kind: QueueKind) -> Self {
        let (durable, auto_delete, arguments, max_retries) = (true, false, Arguments::new(), None);
        Self { name, kind, durable, auto_delete, arguments, max_retries }
    }

    /// Where messages go that are rejected, expire, or do not fit.
    pub fn dead_letter_exchange(self, exchange: impl Into<String>) -> Self {
        self.argument("x-dead-letter-exchange", exchange.into())
    }

    /// The routing key that they go there with; their own if absent.
    pub fn dead_letter_routing_key(self, key: impl Into<String>) -> Self {
        self.argument("x-dead-letter-routing-key", key.into())
    }

    /// How long a message may wait in it.
    pub fn message_ttl(self, ttl: Duration) -> Self {
        self.argument("x-message-ttl", u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX))
    }

    /// How many messages may wait in it.
    pub fn max_length(self, messages: u64) -> Self {
        self.argument("x-max-length", messages)
    }

    /// What happens to messages that do not fit: `drop-head`, `reject-publish` or `reject-publish-dlx`.
    pub fn overflow(self, behaviour: impl Into<String>) -> Self {
        self.argument("x-overflow", behaviour.into())
    }

    /// Whether one consumer at a time gets all messages.
    pub fn single_active_consumer(self, single: bool) -> Self {
        self.argument("x-single-active-consumer", single)
    }

    /// After how many retries its consumers give up.
    pub fn max_retries(self, retries: u32) -> Self {
        Self { max_retries: Some(retries), ..self }
    }

    /// Adds an argument. `x-max-retries` and `x-queue-type` are set elsewhere.
    pub fn argument(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.arguments.insert(name.into(), value.into());
        self
    }

    /// Where its dead letters go, if it says so: the exchange, and the routing key that replaces their own.
    pub fn dead_letter_target(&self) -> Option<(&str, Option<&str>)> {
        let text = |name: &str| self.arguments.get(name).and_then(Value::as_str);
        Some((text("x-dead-letter-exchange")?, text("x-dead-letter-routing-key")))
    }

    /// What the broker is told.
    pub(super) fn sent_arguments(&self) -> Arguments {
        let mut arguments = self.arguments.clone();
        arguments.remove(MAX_RETRIES);
        if self.kind == QueueKind::Quorum {
            arguments.insert("x-queue-type".to_owned(), "quorum".into());
        }
        arguments
    }
}

/// Where a binding leads.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum BindingDestination {
    /// To a queue.
    Queue(String),
    /// To another exchange.
    Exchange(String),
}

impl fmt::Display for BindingDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queue(name) => write!(f, "queue `{name}`"),
            Self::Exchange(name) => write!(f, "exchange `{name}`"),
        }
    }
}

/// What leads messages from an exchange to a queue, or to another exchange.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "super::file::BindingEntry", rename_all = "camelCase")]
pub struct BindingDeclaration {
    /// From where.
    pub exchange: String,
    /// To where.
    pub destination: BindingDestination,
    /// Which messages: a key for direct exchanges, a pattern for topic exchanges.
    pub routing_key: String,
    /// Which messages, for headers exchanges: `x-match`, and the headers.
    #[serde(skip_serializing_if = "Arguments::is_empty")]
    pub arguments: Arguments,
}

impl BindingDeclaration {
    /// Leads to a queue.
    pub fn to_queue(exchange: impl Into<String>, queue: impl Into<String>) -> Self {
        Self::new(exchange.into(), BindingDestination::Queue(queue.into()))
    }

    /// Leads to another exchange.
    pub fn to_exchange(exchange: impl Into<String>, other: impl Into<String>) -> Self {
        Self::new(exchange.into(), BindingDestination::Exchange(other.into()))
    }

    fn new(exchange: String, destination: BindingDestination) -> Self {
        Self { exchange, destination, routing_key: String::new(), arguments: Arguments::new() }
    }

    /// Which messages.
    pub fn routing_key(self, key: impl Into<String>) -> Self {
        Self { routing_key: key.into(), ..self }
    }

    /// Adds an argument, such as `x-match` or a header.
    pub fn argument(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.arguments.insert(name.into(), value.into());
        self
    }
}
