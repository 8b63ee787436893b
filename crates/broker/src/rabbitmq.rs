//! RabbitMQ as a task broker.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use relais_core::{
    DeadLetter, Mailbox, OutgoingMessage, QueueSight, Rejected, Side, TaskBroker, TaskBrokerError, TaskBrokerState,
    TaskConsumer,
};
use relais_messaging::rabbitmq::{
    Broker, BrokerError, BrokerOptions, BrokerState, ConsumeOptions, Management, ManagementError, Publish,
    PublishError, Queue,
};

use crate::{
    dead_letters::{self, Disposition, kind},
    error::{consumed, published},
    follow, policy,
};

/// Which broker, and how.
#[derive(Debug, Clone, Default)]
pub struct RabbitMqOptions {
    /// How patiently it is talked to.
    pub broker: BrokerOptions,
    /// Its management API, where policies are to be set: `http://user:password@host:15672`.
    pub management_url: Option<String>,
}

/// Why a broker can not be used, whether it is there or not.
#[derive(Debug, thiserror::Error)]
pub enum RabbitMqError {
    /// Its URL, or its certificates.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The management API's URL.
    #[error(transparent)]
    Management(#[from] ManagementError),
}

/// A task broker on RabbitMQ.
///
/// It has two connections: while RabbitMQ lacks memory it reads nothing from a connection that publishes, and messages
/// of workers must still be acknowledged then.
#[derive(Clone)]
pub struct RabbitMq {
    publisher: Broker,
    reader: Broker,
    management: Option<Management>,
    /// The policies that were set, so that each is set once. What an operator changes by hand stays until the next
    /// start.
    policies: Arc<Mutex<HashMap<String, Mailbox>>>,
    /// The services whose control exchange was declared by this process.
    controls: Arc<Mutex<HashSet<String>>>,
    /// Whether witnesses may not be placed: then nothing follows from there being none.
    unwitnessed: Arc<AtomicBool>,
}

impl RabbitMq {
    /// A task broker at `amqp://user:password@host:port/vhost`. Does not connect yet.
    pub fn new(url: &str, options: RabbitMqOptions) -> Result<Self, RabbitMqError> {
        let named = |name: &str| BrokerOptions {
            connection_name: format!("{} {name}", options.broker.connection_name),
            ..options.broker.clone()
        };
        let publisher = Broker::new(url, named("dispatch"))?;
        let management =
            options.management_url.as_deref().map(|url| Management::new(url, publisher.vhost())).transpose()?;
        Ok(Self {
            reader: Broker::new(url, named("track"))?,
            publisher,
            management,
            policies: Arc::default(),
            controls: Arc::default(),
            unwitnessed: Arc::default(),
        })
    }

    /// Sets a service's policy, if it is not set. A failure stops nobody from working.
    async fn put_policy(&self, mailbox: &Mailbox) {
        let Some(management) = &self.management else { return };
        let known = self.policies.lock().unwrap_or_else(PoisonError::into_inner).get(&mailbox.name).cloned();
        if known.as_ref() == Some(mailbox) {
            return;
        }
        match policy::put(management, mailbox).await {
            Ok(()) => {
                let mut policies = self.policies.lock().unwrap_or_else(PoisonError::into_inner);
                policies.insert(mailbox.name.clone(), mailbox.clone());
            }
            Err(error) => tracing::warn!(queue = mailbox.tasks(), %error, "its policy could not be set"),
        }
    }

    /// Declares the control exchange of a service, if this process has not yet. A failure stops nobody from working.
    async fn make_control(&self, mailbox: &Mailbox) -> Result<(), TaskBrokerError> {
        let known = || self.controls.lock().unwrap_or_else(PoisonError::into_inner);
        if known().contains(&mailbox.name) {
            return Ok(());
        }
        match self.reader.declare_fanout(&mailbox.control()).await.map_err(consumed) {
            Ok(()) => {}
            Err(TaskBrokerError::Refused(why)) => {
                tracing::warn!(exchange = mailbox.control(), why, "workers hear of no cancel while they run a task");
            }
            Err(error) => return Err(error),
        }
        known().insert(mailbox.name.clone());
        Ok(())
    }

    /// Declares the witness of the queue of tasks. A failure stops nobody from working.
    async fn place_witness(&self, mailbox: &Mailbox) -> Result<(), TaskBrokerError> {
        if self.unwitnessed.load(Ordering::Relaxed) {
            return Ok(());
        }
        match self.reader.place_witness(&witness(mailbox), &mailbox.tasks()).await.map_err(consumed) {
            Err(TaskBrokerError::Refused(why)) => {
                self.unwitnessed.store(true, Ordering::Relaxed);
                tracing::warn!(queue = mailbox.tasks(), why, "if it is deleted and made again, that is not noticed");
                Ok(())
            }
            placed => placed,
        }
    }
}

/// The witness: an exchange that disappears with the queue of tasks, however soon that is recreated.
fn witness(mailbox: &Mailbox) -> String {
    format!("{}.witness", mailbox.tasks())
}

#[async_trait]
impl TaskBroker for RabbitMq {
    fn state(&self) -> TaskBrokerState {
        match self.publisher.state() {
            BrokerState::Connected { .. } => TaskBrokerState::Up,
            BrokerState::Blocked { why, .. } => TaskBrokerState::Blocked(why),
            BrokerState::Away { why, .. } => TaskBrokerState::Away(why),
            BrokerState::Idle => TaskBrokerState::Away("not connected yet".to_owned()),
        }
    }

    async fn until_up(&self) {
        self.publisher.until(BrokerState::is_connected).await;
    }

    async fn until_down(&self) {
        self.publisher.until(|state| !state.is_connected()).await;
    }

    async fn look(&self, mailbox: &Mailbox) -> Result<QueueSight, TaskBrokerError> {
        let Some(found) = self.reader.find(&mailbox.tasks()).await.map_err(consumed)? else {
            return Ok(QueueSight::Missing);
        };
        // A worker that declares its queues may have recreated it before anybody looked.
        let witnessed = !self.unwitnessed.load(Ordering::Relaxed);
        if witnessed && !self.reader.has_witness(&witness(mailbox)).await.map_err(consumed)? {
            return Ok(QueueSight::Missing);
        }
        let handed_out = match &self.management {
            Some(management) if found.messages == 0 => {
                management.queue(&mailbox.tasks()).await.ok().flatten().map(|facts| facts.unacknowledged)
            }
            _ => None,
        };
        Ok(QueueSight::There { waiting: found.messages.into(), handed_out, workers: found.consumers.into() })
    }

    async fn prepare(&self, mailbox: &Mailbox, missing: bool) -> Result<(), TaskBrokerError> {
        let mut queues = vec![mailbox.reports()];
        if missing {
            queues.push(mailbox.tasks());
        }
        if self.management.is_some() {
            queues.push(mailbox.refused_tasks());
        }
        for name in queues {
            self.reader.declare(&Queue { name, kind: kind(mailbox) }).await.map_err(consumed)?;
        }
        self.put_policy(mailbox).await;
        self.make_control(mailbox).await?;
        if missing { self.place_witness(mailbox).await } else { Ok(()) }
    }

    async fn send(&self, messages: Vec<OutgoingMessage>) -> Vec<Result<(), TaskBrokerError>> {
        let message = |outgoing: OutgoingMessage| {
            let mut message = Publish::new("", outgoing.queue, outgoing.body)
                .message_id(outgoing.task_id.to_string())
                .content_type("application/json");
            if let Some(trace) = &outgoing.trace {
                message = message.header("traceparent", trace.traceparent());
                if let Some(state) = trace.tracestate() {
                    message = message.header("tracestate", state);
                }
            }
            // AMQP has room for a short one; the message has it in any case.
            let correlation_id = outgoing.correlation_id.filter(|id| id.len() <= 255);
            Publish { correlation_id, priority: Some(outgoing.priority.level()), ..message }
        };
        let answers = self.publisher.publish_all(messages.into_iter().map(message).collect()).await;
        answers.into_iter().map(|answer| answer.map_err(published)).collect()
    }

    async fn announce(&self, mailbox: &Mailbox, body: Vec<u8>) -> Result<(), TaskBrokerError> {
        let message = Publish::new(mailbox.control(), "", body).content_type("application/json").mandatory(false);
        match self.publisher.publish(message).await {
            Err(PublishError::NoExchange { .. }) => {
                // Nobody listens. Whoever comes next shall find it.
                self.controls.lock().unwrap_or_else(PoisonError::into_inner).remove(&mailbox.name);
                self.make_control(mailbox).await
            }
            told => told.map_err(published),
        }
    }

    async fn follow(
        &self,
        mailbox: &Mailbox,
        side: Side,
        ahead: u16,
    ) -> Result<Option<Box<dyn TaskConsumer>>, TaskBrokerError> {
        let queue = match side {
            Side::Reports => mailbox.reports(),
            // Nothing goes there without a policy.
            Side::RefusedTasks if self.management.is_none() => return Ok(None),
            Side::RefusedTasks => mailbox.refused_tasks(),
        };
        self.reader.declare(&Queue { name: queue.clone(), kind: kind(mailbox) }).await.map_err(consumed)?;
        let options = ConsumeOptions { prefetch: ahead, ..ConsumeOptions::default() };
        let consumer = self.reader.consume(&queue, options).await.map_err(consumed)?;
        Ok(Some(Box::new(follow::QueueConsumer(consumer))))
    }

    async fn set_aside(&self, mailbox: &Mailbox, rejected: Vec<Rejected>) -> Result<(), TaskBrokerError> {
        dead_letters::set_aside(&self.publisher, mailbox, rejected).await
    }

    async fn dead_letters(&self, mailbox: &Mailbox, limit: usize) -> Result<Vec<DeadLetter>, TaskBrokerError> {
        dead_letters::list(&self.reader, mailbox, limit).await
    }

    async fn replay(&self, mailbox: &Mailbox, ids: Option<Vec<String>>) -> Result<u64, TaskBrokerError> {
        dead_letters::take_out((&self.reader, &self.publisher), mailbox, ids, Disposition::Replayed).await
    }

    async fn discard(&self, mailbox: &Mailbox, ids: Option<Vec<String>>) -> Result<u64, TaskBrokerError> {
        dead_letters::take_out((&self.reader, &self.publisher), mailbox, ids, Disposition::Discarded).await
    }
}
