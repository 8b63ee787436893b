//! Telling everybody who listens: a fan-out exchange, and a queue of one's own at it.

use std::sync::Arc;

use lapin::{
    Channel, ExchangeKind,
    options::{BasicConsumeOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable, ShortString},
};

use super::{Broker, ConsumeError, Consumer, consume::Acker, link::Link, queue::short};

/// So many messages wait for somebody who listens and is slow; the oldest are dropped.
const MOST_WAITING: i32 = 10_000;

impl Broker {
    /// Makes sure that there is a fan-out exchange, durable and plain. One that exists is left as it is.
    pub async fn declare_fanout(&self, exchange: &str) -> Result<(), ConsumeError> {
        let name = short(exchange)?;
        self.request(async |link: Arc<Link>| declare(&link, &name).await).await
    }

    /// Listens to an exchange, which is made if need be, by a queue that nobody else has and that goes when the
    /// consumer does. Nothing that it brings is to be acknowledged. What was said before is not heard.
    pub async fn listen(&self, exchange: &str, queue: &str) -> Result<Consumer, ConsumeError> {
        let (source, name) = (short(exchange)?, short(queue)?);
        self.request(async |link: Arc<Link>| {
            declare(&link, &source).await?;
            let refused = |error: lapin::Error| ConsumeError::answer(queue, &error);
            let channel = link.open().await.map_err(|error| ConsumeError::end(&error))?;
            let own = QueueDeclareOptions { exclusive: true, auto_delete: true, ..QueueDeclareOptions::default() };
            let mut arguments = FieldTable::default();
            // Whatever is usual in this virtual host: nothing else can be somebody's own.
            arguments.insert("x-queue-type".into(), AMQPValue::LongString("classic".into()));
            arguments.insert("x-max-length".into(), AMQPValue::LongInt(MOST_WAITING));
            channel.queue_declare(name.clone(), own, arguments).await.map_err(refused)?;
            let (options, none) = (QueueBindOptions::default(), FieldTable::default());
            channel.queue_bind(name.clone(), source, "".into(), options, none).await.map_err(refused)?;
            let options = BasicConsumeOptions { no_ack: true, exclusive: true, ..BasicConsumeOptions::default() };
            let consuming = channel.basic_consume(name, "".into(), options, FieldTable::default());
            let stream = consuming.await.map_err(refused)?;
            Ok(Consumer::new(stream, Acker::new(channel, link), queue, self))
        })
        .await
    }
}

/// Looks first: whoever may not make one may still use it.
async fn declare(link: &Arc<Link>, name: &ShortString) -> Result<(), ConsumeError> {
    let ask = async |passive| {
        let lent = link.lend().await.map_err(|error| ConsumeError::end(&error))?;
        let answer = ask(lent.channel(), name, passive).await;
        if answer.is_ok() {
            lent.give_back();
        }
        answer.map_err(|error| ConsumeError::answer(name.as_str(), &error))
    };
    match ask(true).await {
        Err(ConsumeError::NoQueue { .. }) => ask(false).await,
        found => found,
    }
}

async fn ask(channel: &Channel, name: &ShortString, passive: bool) -> lapin::Result<()> {
    let options = ExchangeDeclareOptions { passive, durable: true, ..ExchangeDeclareOptions::default() };
    channel.exchange_declare(name.clone(), ExchangeKind::Fanout, options, FieldTable::default()).await
}
