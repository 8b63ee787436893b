//! A message that the broker handed out.

use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};

/// A message that the broker handed out, to be acknowledged under its [`tag`](Self::tag).
#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    /// Under what to acknowledge it. Means something only to the consumer or browser that it came from.
    pub tag: u64,
    /// What it says.
    pub body: Vec<u8>,
    /// Whether it was handed out before, to whomever, and not acknowledged.
    pub redelivered: bool,
    /// The exchange that it came through.
    pub exchange: String,
    /// The routing key that it came with.
    pub routing_key: String,
    /// What it is called: the same for each copy that was sent.
    pub message_id: Option<String>,
    /// What it belongs to.
    pub correlation_id: Option<String>,
    /// The body's media type.
    pub content_type: Option<String>,
    /// How the body is compressed.
    pub content_encoding: Option<String>,
    /// Everything else, by name.
    pub headers: Vec<(String, HeaderValue)>,
}

/// What a header says.
#[derive(Debug, Clone, PartialEq)]
pub enum HeaderValue {
    /// Nothing.
    Nothing,
    /// Yes or no.
    Flag(bool),
    /// A whole number, or a time in seconds since 1970.
    Number(i64),
    /// A number with a fraction.
    Fraction(f64),
    /// Text.
    Text(String),
    /// Bytes that are not text.
    Bytes(Vec<u8>),
    /// Values in a row.
    List(Vec<HeaderValue>),
    /// Values with names.
    Table(Vec<(String, HeaderValue)>),
}

impl Delivery {
    /// A header.
    pub fn header(&self, name: &str) -> Option<&HeaderValue> {
        find(&self.headers, name)
    }

    /// How often it was handed out before. Quorum queues count; of classic ones it is only known whether (1) or not
    /// (0).
    pub fn delivery_count(&self) -> u64 {
        let counted = self.header("x-delivery-count").and_then(HeaderValue::as_number);
        counted.and_then(|count| u64::try_from(count).ok()).unwrap_or(u64::from(self.redelivered))
    }

    pub(super) fn new(delivery: lapin::message::Delivery) -> Self {
        let lapin::message::Delivery { delivery_tag, exchange, routing_key, redelivered, properties, data, .. } =
            delivery;
        let text = |text: &Option<ShortString>| text.as_ref().map(|text| text.as_str().to_owned());
        Self {
            tag: delivery_tag,
            body: data,
            redelivered,
            exchange: exchange.into(),
            routing_key: routing_key.into(),
            message_id: text(properties.message_id()),
            correlation_id: text(properties.correlation_id()),
            content_type: text(properties.content_type()),
            content_encoding: text(properties.content_encoding()),
            headers: properties.headers().as_ref().map(table).unwrap_or_default(),
        }
    }
}

impl HeaderValue {
    /// The text, if it is one.
    pub fn as_text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// The number, if it is a whole one.
    pub fn as_number(&self) -> Option<i64> {
        if let Self::Number(number) = self { Some(*number) } else { None }
    }

    /// The values of a list; none if it is something else.
    pub fn items(&self) -> &[HeaderValue] {
        if let Self::List(items) = self { items } else { &[] }
    }

    /// A value of a table.
    pub fn get(&self, name: &str) -> Option<&HeaderValue> {
        if let Self::Table(table) = self { find(table, name) } else { None }
    }
}

fn find<'a>(table: &'a [(String, HeaderValue)], name: &str) -> Option<&'a HeaderValue> {
    table.iter().find(|(found, _)| found == name).map(|(_, value)| value)
}

fn table(table: &FieldTable) -> Vec<(String, HeaderValue)> {
    table.into_iter().map(|(name, value)| (name.as_str().to_owned(), HeaderValue::from(value))).collect()
}

impl From<&AMQPValue> for HeaderValue {
    fn from(value: &AMQPValue) -> Self {
        match value {
            AMQPValue::Void => Self::Nothing,
            AMQPValue::Boolean(flag) => Self::Flag(*flag),
            AMQPValue::ShortShortInt(number) => Self::Number((*number).into()),
            AMQPValue::ShortShortUInt(number) => Self::Number((*number).into()),
            AMQPValue::ShortInt(number) => Self::Number((*number).into()),
            AMQPValue::ShortUInt(number) => Self::Number((*number).into()),
            AMQPValue::LongInt(number) => Self::Number((*number).into()),
            AMQPValue::LongUInt(number) => Self::Number((*number).into()),
            AMQPValue::LongLongInt(number) => Self::Number(*number),
            AMQPValue::Timestamp(time) => Self::Number(i64::try_from(*time).unwrap_or(i64::MAX)),
            AMQPValue::Float(number) => Self::Fraction((*number).into()),
            AMQPValue::Double(number) => Self::Fraction(*number),
            AMQPValue::DecimalValue(number) => {
                Self::Fraction(f64::from(number.value) / 10_f64.powi(number.scale.into()))
            }
            AMQPValue::ShortString(text) => Self::Text(text.as_str().to_owned()),
            AMQPValue::LongString(text) => text_or_bytes(text),
            AMQPValue::ByteArray(bytes) => Self::Bytes(bytes.as_slice().to_vec()),
            AMQPValue::FieldArray(list) => Self::List(list.as_slice().iter().map(Self::from).collect()),
            AMQPValue::FieldTable(values) => Self::Table(table(values)),
        }
    }
}

/// What AMQP calls a string is any bytes.
fn text_or_bytes(text: &LongString) -> HeaderValue {
    match std::str::from_utf8(text.as_bytes()) {
        Ok(text) => HeaderValue::Text(text.to_owned()),
        Err(_) => HeaderValue::Bytes(text.as_bytes().to_vec()),
    }
}
