//! A message to be published.

use lapin::{
    BasicProperties, Channel, Confirmation,
    options::BasicPublishOptions,
    protocol::AMQPSoftError,
    types::{AMQPValue, FieldTable, ShortString},
};

use super::{
    PublishError,
    error::{soft, words},
};

/// AMQP's number for a message that outlives the broker's restart.
const PERSISTENT: u8 = 2;

/// How much headers may say, names and values together. They must fit into one frame (128 KiB, as brokers come), with
/// all else that is said of a message.
const MAX_HEADERS: usize = 64 * 1024;

/// A message to be published. It is always persistent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publish {
    /// The exchange; the default one (empty) reaches queues by their names.
    pub exchange: String,
    /// The routing key, or the name of the queue.
    pub routing_key: String,
    /// What it says.
    pub body: Vec<u8>,
    /// What it is called: the same each time it is sent, so that receivers can drop doubles.
    pub message_id: Option<String>,
    /// What it belongs to.
    pub correlation_id: Option<String>,
    /// The body's media type.
    pub content_type: Option<String>,
    /// How the body is compressed.
    pub content_encoding: Option<String>,
    /// How urgent it is, for queues that were declared to care.
    pub priority: Option<u8>,
    /// Anything else, as text.
    pub headers: Vec<(String, String)>,
    /// Whether it is an error if no queue takes it. Without, such a message is confirmed and lost.
    pub mandatory: bool,
}

impl Publish {
    /// A message that some queue must take.
    pub fn new(exchange: impl Into<String>, routing_key: impl Into<String>, body: impl Into<Vec<u8>>) -> Self {
        Self {
            exchange: exchange.into(),
            routing_key: routing_key.into(),
            body: body.into(),
            message_id: None,
            correlation_id: None,
            content_type: None,
            content_encoding: None,
            priority: None,
            headers: Vec::new(),
            mandatory: true,
        }
    }

    /// What it is called: the same each time it is sent, so that receivers can drop doubles.
    pub fn message_id(mut self, id: impl Into<String>) -> Self {
        self.message_id = Some(id.into());
        self
    }

    /// What it belongs to.
    pub fn correlation_id(mut self, id: impl Into<String>) -> Self {
        self.correlation_id = Some(id.into());
        self
    }

    /// The body's media type.
    pub fn content_type(mut self, media_type: impl Into<String>) -> Self {
        self.content_type = Some(media_type.into());
        self
    }

    /// How the body is compressed.
    pub fn content_encoding(mut self, encoding: impl Into<String>) -> Self {
        self.content_encoding = Some(encoding.into());
        self
    }

    /// Adds a header.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Whether it is an error if no queue takes it.
    pub fn mandatory(mut self, mandatory: bool) -> Self {
        self.mandatory = mandatory;
        self
    }

    /// As AMQP wants it. What is too long would break the connection, for everybody.
    pub(super) fn prepare(&self) -> Result<Prepared, PublishError> {
        let mut properties = BasicProperties::default().with_delivery_mode(PERSISTENT);
        if let Some(id) = &self.message_id {
            properties = properties.with_message_id(short("message id", id)?);
        }
        if let Some(id) = &self.correlation_id {
            properties = properties.with_correlation_id(short("correlation id", id)?);
        }
        if let Some(media_type) = &self.content_type {
            properties = properties.with_content_type(short("content type", media_type)?);
        }
        if let Some(encoding) = &self.content_encoding {
            properties = properties.with_content_encoding(short("content encoding", encoding)?);
        }
        if let Some(priority) = self.priority {
            properties = properties.with_priority(priority);
        }
        if self.headers.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > MAX_HEADERS {
            return Err(PublishError::Refused { why: format!("the headers are longer than {MAX_HEADERS} bytes") });
        }
        if !self.headers.is_empty() {
            let mut headers = FieldTable::default();
            for (name, value) in &self.headers {
                headers.insert(short("name of a header", name)?, AMQPValue::LongString(value.as_str().into()));
            }
            properties = properties.with_headers(headers);
        }
        Ok(Prepared {
            exchange: short("exchange", &self.exchange)?,
            routing_key: short("routing key", &self.routing_key)?,
            mandatory: self.mandatory,
            properties,
        })
    }
}

/// A message as AMQP wants it, but for its body.
pub(super) struct Prepared {
    exchange: ShortString,
    routing_key: ShortString,
    mandatory: bool,
    properties: BasicProperties,
}

impl Prepared {
    /// Publishes and waits for the confirmation. It is handed to the connection when this is first polled, so whoever
    /// polls several publishes in a row sends them in that order.
    ///
    /// What the broker returned comes with whichever confirmation is next, not with the message's own.
    pub(super) async fn send(self, channel: &Channel, body: &[u8]) -> lapin::Result<Confirmation> {
        let Self { exchange, routing_key, mandatory, properties } = self;
        let options = BasicPublishOptions { mandatory, ..BasicPublishOptions::default() };
        channel.basic_publish(exchange, routing_key, options, body, properties).await?.await
    }
}

/// Why the channel or the connection was closed while `message` was alone in it.
pub(super) fn failure(message: &Publish, error: &lapin::Error) -> PublishError {
    match soft(error) {
        Some(AMQPSoftError::NOTFOUND) => PublishError::NoExchange { exchange: message.exchange.clone() },
        Some(AMQPSoftError::PRECONDITIONFAILED) => PublishError::Unacceptable { why: words(error) },
        Some(_) => PublishError::Refused { why: words(error) },
        None => PublishError::Away { why: words(error) },
    }
}

fn short(what: &str, text: &str) -> Result<ShortString, PublishError> {
    ShortString::try_new(text)
        .map_err(|_| PublishError::Refused { why: format!("the {what} is longer than 255 bytes") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_amqp_can_not_encode_is_refused_before_the_connection_breaks() {
        let long = "é".repeat(128);
        for message in [
            Publish::new(&long, "", ""),
            Publish::new("", &long, ""),
            Publish::new("", "", "").message_id(&long),
            Publish::new("", "", "").correlation_id(&long),
            Publish::new("", "", "").content_type(&long),
            Publish::new("", "", "").content_encoding(&long),
            Publish::new("", "", "").header(&long, ""),
            Publish::new("", "", "").header("x", long.repeat(300)),
        ] {
            let refused = message.prepare().map(drop);
            assert!(matches!(refused, Err(PublishError::Refused { .. })), "{refused:?}");
        }
        assert!(Publish::new("", "", "").header("x", &long).prepare().is_ok(), "a value may be long");
    }
}
