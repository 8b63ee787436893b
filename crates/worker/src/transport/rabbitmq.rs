//! The worker protocol over RabbitMQ: submissions from `<queueName>-in`, messages to `<queueName>-out`.
//!
//! There are no leases: a task is this worker's for as long as the connection that brought it lives, and is
//! acknowledged when the broker has confirmed its result. Two connections, because a broker that is short of memory
//! stops reading from those that publish, and acknowledgements must get through all the same.
//!
//! When the connection is lost, the broker redelivers its tasks to others, so their handlers are stopped. A result that
//! is ready by then is still sent: the server accepts the first one. Cancellations arrive beside (`control`).

mod control;
mod intake;
mod submission;

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use relais_messaging::rabbitmq::{Broker, BrokerOptions, Publish, PublishError, Queue, QueueKind};
use relais_protocol::worker::{OutcomeKind, TaskOutcome};
use tokio::time::timeout;

use self::{control::Control, intake::Intake};
use super::{Delivery, Keeping, News, Transport, accepted, wire};
use crate::{CallError, WorkerError, slots::TaskKey};

/// What RabbitMQ 4 takes by default; older ones take more.
const MAX_MESSAGE: usize = 16 * 1024 * 1024;

/// How long the broker may take to stop handing out.
const STOP_LIMIT: Duration = Duration::from_secs(2);

/// The queues of a service on a broker, as its worker uses them.
#[derive(Debug)]
pub(crate) struct OverRabbitMq {
    publisher: Broker,
    intake: Arc<Intake>,
    out: Queue,
    host_name: Option<String>,
    /// Locked while starts are sent: a return must not overtake them.
    telling: tokio::sync::Mutex<()>,
}

impl OverRabbitMq {
    /// Does not connect yet. At most `prefetch` tasks are handed out and not done.
    pub fn new(
        url: &str,
        root_certificates: Option<PathBuf>,
        queue_name: &str,
        prefetch: usize,
        host_name: Option<String>,
    ) -> Result<Self, WorkerError> {
        let broker = |purpose: &str| {
            let connection_name = match &host_name {
                Some(host) => format!("relais-worker {queue_name} on {host}, {purpose}"),
                None => format!("relais-worker {queue_name}, {purpose}"),
            };
            let root_certificates = root_certificates.clone();
            Broker::new(url, BrokerOptions { connection_name, root_certificates, ..BrokerOptions::default() })
        };
        let queue = |end: &str| Queue { name: format!("{queue_name}-{end}"), kind: QueueKind::Classic };
        let prefetch = u16::try_from(prefetch).unwrap_or(u16::MAX);
        let taker = broker("takes")?;
        let control = Control::new(taker.clone(), format!("{queue_name}-control"));
        let intake = Intake::new(taker, [queue("in"), queue("out")], control, prefetch);
        Ok(Self {
            publisher: broker("tells")?,
            intake: Arc::new(intake),
            out: queue("out"),
            host_name,
            telling: tokio::sync::Mutex::default(),
        })
    }

    /// One message to the queue, and the confirmation that it has it.
    async fn publish(&self, news: &[(&TaskKey, News<'_>)]) -> Result<(), CallError> {
        let body = self.written(news)?;
        let bytes = body.len();
        if bytes > MAX_MESSAGE {
            return Err(CallError::TooLarge { bytes, most: MAX_MESSAGE });
        }
        let message = Publish::new("", self.out.name.as_str(), body)
            .message_id(message_id())
            .content_type("application/json")
            .mandatory(true);
        let published = self.publisher.publish(message).await;
        if let Err(PublishError::Unroutable { .. }) = published {
            // Somebody deleted it. Whoever comes next will find it.
            if let Err(error) = self.publisher.declare(&self.out).await {
                tracing::debug!(%error, queue = self.out.name, "failed to declare the queue");
            }
        }
        published.map_err(CallError::Broker)
    }

    /// One message as it is, several as an array.
    fn written(&self, news: &[(&TaskKey, News<'_>)]) -> Result<Vec<u8>, CallError> {
        let messages = news.iter().map(|(key, news)| wire(key, news, self.host_name.as_deref()));
        let messages = messages.collect::<Result<Vec<_>, _>>()?;
        match messages.as_slice() {
            [one] => serde_json::to_vec(one),
            many => serde_json::to_vec(many),
        }
        .map_err(CallError::Unwritable)
    }
}

#[async_trait]
impl Transport for OverRabbitMq {
    async fn claim(&self, max: usize, wait: Duration) -> Result<Vec<Delivery>, CallError> {
        self.intake.start();
        timeout(wait, self.intake.take(max)).await.unwrap_or_else(|_| Ok(Vec::new()))
    }

    async fn stop_claiming(&self) {
        if timeout(STOP_LIMIT, self.intake.stop()).await.is_err() {
            tracing::warn!("the broker does not answer; what it hands out now will be handed out again");
        }
    }

    async fn close(&self) {
        if timeout(STOP_LIMIT, self.intake.close()).await.is_err() {
            tracing::warn!("the broker does not answer; what was done last may be done again");
        }
    }

    async fn report(&self, news: &[(&TaskKey, News<'_>)]) -> Result<Vec<TaskOutcome>, CallError> {
        let starts = || news.iter().filter(|(_, news)| matches!(news, News::Started));
        let _telling = match starts().next() {
            Some(_) => Some(self.telling.lock().await),
            None => None,
        };
        starts().for_each(|(key, _)| self.intake.mark_start_reported(key));
        self.publish(news).await?;
        let ended = news.iter().filter(|(_, news)| matches!(news, News::Verdict { .. }));
        self.intake.ack(ended.map(|(key, _)| *key));
        Ok(accepted(news.iter().map(|(key, _)| *key)))
    }

    /// Reported starts are taken back first, so that the server counts no loss.
    async fn give_back(&self, keys: &[TaskKey]) -> Result<Vec<TaskOutcome>, CallError> {
        let _telling = self.telling.lock().await;
        let told: Vec<_> =
            keys.iter().filter(|key| self.intake.start_was_reported(key)).map(|key| (key, News::Returned)).collect();
        if !told.is_empty() {
            self.publish(&told).await?;
        }
        let mut outcomes = accepted(keys);
        for (key, outcome) in keys.iter().zip(&mut outcomes) {
            if !self.intake.give_back(key) {
                outcome.outcome = OutcomeKind::Lost;
            }
        }
        Ok(outcomes)
    }

    fn keeping(&self) -> Keeping {
        Keeping::Connection
    }

    async fn renew(&self, keys: &[TaskKey]) -> Result<Vec<TaskOutcome>, CallError> {
        Ok(accepted(keys))
    }

    async fn revoked(&self) -> Vec<(TaskKey, OutcomeKind)> {
        self.intake.revoked().await
    }

    fn is_wanted(&self, key: &TaskKey) -> bool {
        self.intake.is_wanted(key)
    }

    fn let_go(&self, keys: &[TaskKey]) {
        self.intake.ack(keys.iter());
    }

    fn tells_start(&self) -> bool {
        true
    }

    fn is_connected(&self) -> bool {
        let publisher = self.publisher.state();
        self.intake.is_consuming() && !publisher.is_away() && !publisher.is_blocked()
    }
}

/// A name that no other message has.
fn message_id() -> String {
    let high = getrandom::u64().unwrap_or_default();
    let low = getrandom::u64().unwrap_or_default();
    format!("{high:016x}{low:016x}")
}
