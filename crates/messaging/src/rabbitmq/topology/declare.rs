//! Making exchanges, queues and bindings, exactly as declared.

use std::sync::Arc;

use lapin::{
    ExchangeKind,
    options::{ExchangeBindOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions},
    protocol::AMQPSoftError,
    types::{AMQPValue, FieldArray, FieldTable, LongString},
};
use serde_json::Value;

use super::{Arguments, BindingDeclaration, BindingDestination, ExchangeDeclaration, ExchangeType, QueueDeclaration};
use crate::rabbitmq::{
    Broker, ConsumeError,
    error::{soft, words},
    link::{LentChannel, Link},
    queue::short,
};

/// What the broker said to a declaration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::rabbitmq) enum Declared {
    /// It is there, as declared.
    Done,
    /// It is there, and otherwise. The broker's words say what differs.
    Different(String),
    /// The broker does not do that.
    Refused(String),
}

impl Broker {
    /// Makes an exchange.
    pub(in crate::rabbitmq) async fn declare_exchange(
        &self,
        exchange: &ExchangeDeclaration,
    ) -> Result<Declared, ConsumeError> {
        let (name, arguments) = (short(&exchange.name)?, to_table(&exchange.arguments)?);
        let options = ExchangeDeclareOptions {
            durable: exchange.durable,
            auto_delete: exchange.auto_delete,
            internal: exchange.internal,
            ..ExchangeDeclareOptions::default()
        };
        let kind = match exchange.kind {
            ExchangeType::Direct => ExchangeKind::Direct,
            ExchangeType::Fanout => ExchangeKind::Fanout,
            ExchangeType::Topic => ExchangeKind::Topic,
            ExchangeType::Headers => ExchangeKind::Headers,
        };
        self.declare_with(async |lent| lent.channel().exchange_declare(name, kind, options, arguments).await).await
    }

    /// Makes a queue.
    pub(in crate::rabbitmq) async fn declare_queue(&self, queue: &QueueDeclaration) -> Result<Declared, ConsumeError> {
        let (name, arguments) = (short(&queue.name)?, to_table(&queue.sent_arguments())?);
        let options = QueueDeclareOptions {
            durable: queue.durable,
            auto_delete: queue.auto_delete,
            ..QueueDeclareOptions::default()
        };
        self.declare_with(async |lent| lent.channel().queue_declare(name, options, arguments).await.map(drop)).await
    }

    /// Makes a binding.
    pub(in crate::rabbitmq) async fn declare_binding(
        &self,
        binding: &BindingDeclaration,
    ) -> Result<Declared, ConsumeError> {
        let (source, key) = (short(&binding.exchange)?, short(&binding.routing_key)?);
        let arguments = to_table(&binding.arguments)?;
        match &binding.destination {
            BindingDestination::Queue(queue) => {
                let (queue, options) = (short(queue)?, QueueBindOptions::default());
                let bind =
                    async |lent: &LentChannel| lent.channel().queue_bind(queue, source, key, options, arguments).await;
                self.declare_with(bind).await
            }
            BindingDestination::Exchange(exchange) => {
                let (exchange, options) = (short(exchange)?, ExchangeBindOptions::default());
                let bind = async |lent: &LentChannel| {
                    lent.channel().exchange_bind(exchange, source, key, options, arguments).await
                };
                self.declare_with(bind).await
            }
        }
    }

    /// Declares in a channel that may be closed for it.
    async fn declare_with<F>(&self, declare: F) -> Result<Declared, ConsumeError>
    where
        F: AsyncFnOnce(&LentChannel) -> lapin::Result<()>,
    {
        self.request(async |link: Arc<Link>| {
            let lent = link.lend().await.map_err(|error| ConsumeError::end(&error))?;
            match declare(&lent).await {
                Ok(()) => {
                    lent.give_back();
                    Ok(Declared::Done)
                }
                Err(error) => match soft(&error) {
                    Some(AMQPSoftError::PRECONDITIONFAILED | AMQPSoftError::RESOURCELOCKED) => {
                        Ok(Declared::Different(words(&error)))
                    }
                    Some(_) => Ok(Declared::Refused(words(&error))),
                    None => Err(ConsumeError::end(&error)),
                },
            }
        })
        .await
    }
}

/// Arguments as AMQP has them.
fn to_table(arguments: &Arguments) -> Result<FieldTable, ConsumeError> {
    let mut table = FieldTable::default();
    for (name, value) in arguments {
        table.insert(short(name)?, to_amqp(value)?);
    }
    Ok(table)
}

fn to_amqp(value: &Value) -> Result<AMQPValue, ConsumeError> {
    Ok(match value {
        Value::Null => AMQPValue::Void,
        Value::Bool(flag) => AMQPValue::Boolean(*flag),
        Value::String(text) => AMQPValue::LongString(LongString::from(text.as_str())),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            // As narrow as it fits, like other clients: a binding is found again by its arguments, types included.
            (Some(number), _) => i32::try_from(number).map_or(AMQPValue::LongLongInt(number), AMQPValue::LongInt),
            (None, Some(number)) => AMQPValue::Double(number),
            (None, None) => return Err(ConsumeError::Refused { why: format!("{number} is too large a number") }),
        },
        Value::Array(values) => {
            AMQPValue::FieldArray(FieldArray::from(values.iter().map(to_amqp).collect::<Result<Vec<_>, _>>()?))
        }
        Value::Object(table) => AMQPValue::FieldTable(to_table(table)?),
    })
}
