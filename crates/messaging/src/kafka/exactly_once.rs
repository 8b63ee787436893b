//! Read, process, write: each batch of records becomes other records in one transaction, together with its offsets.
//!
//! What a batch makes is seen once, whatever is killed, by consumers with `isolation.level=read_committed`. That holds for
//! records alone: what a handler does elsewhere happens each time that it is called.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::future::{BoxFuture, FutureExt as _};
use tokio::{sync::watch, task::JoinHandle};

use super::{
    CommitPolicy, KafkaConsumer, KafkaConsumerOptions, KafkaDelivery, KafkaEvent, KafkaRecord, KafkaSettingsError,
    NewRecord, TransactionError, TransactionOptions, TransactionalProducer,
    client::{chain, lock},
};

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Process = Arc<dyn Fn(Vec<Arc<KafkaRecord>>) -> BoxFuture<'static, Result<Vec<NewRecord>, BoxError>> + Send + Sync>;

/// The longest pause before a batch is tried again.
const LONGEST: Duration = Duration::from_secs(30);

/// How records are read, and how what becomes of them is written.
#[derive(Debug, Clone)]
pub struct ExactlyOnceOptions {
    /// The group and its topics. Its commits go with the transactions, and nothing is parked.
    pub consumer: KafkaConsumerOptions,
    /// The producer. Each process needs a name of its own, and keeps it when it starts again.
    pub transactions: TransactionOptions,
    /// How many records a transaction takes at most. 500 unless set.
    pub batch: usize,
}

impl ExactlyOnceOptions {
    /// 500 records a transaction.
    pub fn new(consumer: KafkaConsumerOptions, transactions: TransactionOptions) -> Self {
        Self { consumer, transactions, batch: 500 }
    }
}

/// Why such a worker ended before it was stopped.
#[derive(Debug, thiserror::Error)]
pub enum ExactlyOnceError {
    /// A setting is wrong.
    #[error(transparent)]
    Settings(#[from] KafkaSettingsError),
    /// Another process has its name: this one must not go on.
    #[error("the worker was fenced")]
    Fenced(#[source] TransactionError),
    /// The worker's task was cut off.
    #[error("the worker was cut off")]
    CutOff,
}

/// A worker that reads, processes and writes. Dropped, it ends at once; what it had not committed is aborted.
///
/// ```no_run
/// use relais_messaging::kafka::{
///     ExactlyOnceOptions, ExactlyOnceWorker, KafkaConsumerOptions, NewRecord, TransactionOptions,
/// };
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let options = ExactlyOnceOptions::new(
///     KafkaConsumerOptions::new("localhost:9092", "invoices", ["orders"]),
///     TransactionOptions::new("localhost:9092", "invoices-1"),
/// );
/// let worker = ExactlyOnceWorker::start(options, |records| async move {
///     let invoices = records.iter().map(|order| NewRecord { key: order.key.clone(), ..NewRecord::new("invoices", "{}") });
///     Ok(invoices.collect())
/// })?;
/// worker.stop().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ExactlyOnceWorker {
    stop: watch::Sender<bool>,
    task: Option<JoinHandle<Result<(), ExactlyOnceError>>>,
}

impl ExactlyOnceWorker {
    /// Starts it. `process` gets the records of one transaction, in order per partition, and returns what is to be written. An
    /// error aborts the transaction, and the same records are processed again, after growing pauses up to 30 s: a record that
    /// can never be processed is for `process` to write elsewhere.
    ///
    /// # Errors
    ///
    /// If a setting is wrong.
    pub fn start<F>(
        mut options: ExactlyOnceOptions,
        process: impl Fn(Vec<Arc<KafkaRecord>>) -> F + Send + Sync + 'static,
    ) -> Result<Self, ExactlyOnceError>
    where
        F: Future<Output = Result<Vec<NewRecord>, BoxError>> + Send + 'static,
    {
        options.consumer.commit = CommitPolicy::ByTransaction;
        options.consumer.max_parked = 0;
        options.transactions.check()?;
        options.consumer.check()?;
        let (stop, stopping) = watch::channel(false);
        let running = Running {
            options,
            process: Arc::new(move |records| process(records).boxed()),
            stopping,
            waiting: Mutex::default(),
        };
        Ok(Self { stop, task: Some(tokio::spawn(running.run())) })
    }

    /// Whether it still runs. It ends by itself only when it is fenced.
    pub fn is_running(&self) -> bool {
        self.task.as_ref().is_some_and(|task| !task.is_finished())
    }

    /// Ends the transaction that is open, commits it, and leaves the group.
    ///
    /// # Errors
    ///
    /// If it had ended before.
    pub async fn stop(mut self) -> Result<(), ExactlyOnceError> {
        self.stop.send_replace(true);
        match self.task.take() {
            Some(task) => task.await.unwrap_or(Err(ExactlyOnceError::CutOff)),
            None => Ok(()),
        }
    }
}

impl Drop for ExactlyOnceWorker {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

struct Running {
    options: ExactlyOnceOptions,
    process: Process,
    stopping: watch::Receiver<bool>,
    /// Received and not yet in a transaction.
    waiting: Mutex<VecDeque<KafkaDelivery>>,
}

/// How a run with one consumer and one producer ended.
enum End {
    Stopped,
    Fenced(TransactionError),
    /// Nobody knows what was committed: the group does.
    Again(TransactionError),
}

impl Running {
    async fn run(self) -> Result<(), ExactlyOnceError> {
        let mut pause = Duration::from_millis(100);
        loop {
            let error = match self.run_once().await? {
                End::Stopped => return Ok(()),
                End::Fenced(error) => return Err(ExactlyOnceError::Fenced(error)),
                End::Again(error) => error,
            };
            let (group, error) = (&*self.options.consumer.group, chain(&error));
            tracing::warn!(group, error, "a worker begins anew where its group has committed");
            if self.paused(pause).await {
                return Ok(());
            }
            pause = (pause * 2).min(LONGEST);
        }
    }

    /// Waits; true if it is to stop.
    async fn paused(&self, pause: Duration) -> bool {
        let mut stopping = self.stopping.clone();
        tokio::time::timeout(pause, stopping.wait_for(|stop| *stop)).await.is_ok()
    }

    /// First the producer, which ends what one of the same name has left open; then the consumer, which begins with what is
    /// committed.
    async fn run_once(&self) -> Result<End, ExactlyOnceError> {
        let mut stopping = self.stopping.clone();
        let made = tokio::select! {
            made = TransactionalProducer::new(&self.options.transactions) => made,
            _ = stopping.wait_for(|stop| *stop) => return Ok(End::Stopped),
        };
        let mut producer = match made {
            Ok(producer) => producer,
            Err(error) => return Ok(End::Again(error)),
        };
        let consumer = KafkaConsumer::new(self.options.consumer.clone())?;
        let end = self.transactions(&consumer, &mut producer).await;
        lock(&self.waiting).clear();
        producer.close().await;
        consumer.close().await;
        Ok(end)
    }

    async fn transactions(&self, consumer: &KafkaConsumer, producer: &mut TransactionalProducer) -> End {
        let mut stopping = self.stopping.clone();
        loop {
            let batch = tokio::select! {
                batch = self.batch(consumer) => batch,
                _ = stopping.wait_for(|stop| *stop) => return End::Stopped,
            };
            let Some(batch) = batch else {
                return End::Again(TransactionError::Away(rdkafka::error::KafkaError::Canceled));
            };
            let mut pause = Duration::from_millis(100);
            // A partition that was taken away takes its records along.
            while consumer.consumed(&batch).is_some() {
                match self.transaction(consumer, producer, &batch).await {
                    Ok(()) => {
                        batch.iter().for_each(|delivery| consumer.settle(delivery, true));
                        break;
                    }
                    Err(error @ TransactionError::Fenced { .. }) => return End::Fenced(error),
                    Err(error @ TransactionError::Aborted(_)) => {
                        let (group, error) = (&*self.options.consumer.group, chain(&error));
                        tracing::warn!(group, error, "a transaction was aborted; its records are processed again");
                    }
                    Err(error) => return End::Again(error),
                }
                if self.paused(pause).await {
                    return End::Stopped;
                }
                pause = (pause * 2).min(LONGEST);
            }
            if consumer.consumed(&batch).is_none() {
                // Those of other partitions were received in order, and must be processed in order.
                return End::Again(TransactionError::Aborted("partitions were taken away".into()));
            }
        }
    }

    /// The next records, in their order. None if the consumer has ended.
    async fn batch(&self, consumer: &KafkaConsumer) -> Option<Vec<KafkaDelivery>> {
        loop {
            {
                let mut waiting = lock(&self.waiting);
                let count = waiting.len().min(self.options.batch.max(1));
                if count > 0 {
                    return Some(waiting.drain(..count).collect());
                }
            }
            let mut received = VecDeque::new();
            let event = consumer.receive(&mut received).await;
            let mut waiting = lock(&self.waiting);
            waiting.append(&mut received);
            match event {
                KafkaEvent::Records => {}
                KafkaEvent::Revoked(partitions, done) => {
                    waiting.retain(|delivery| !partitions.cover(delivery));
                    // No transaction is open now. Who waited may have lost patience.
                    let _ = done.send(());
                }
                KafkaEvent::Lost(partitions) => waiting.retain(|delivery| !partitions.cover(delivery)),
                KafkaEvent::Closed => return None,
            }
        }
    }

    async fn transaction(
        &self,
        consumer: &KafkaConsumer,
        producer: &mut TransactionalProducer,
        batch: &[KafkaDelivery],
    ) -> Result<(), TransactionError> {
        let mut transaction = producer.begin().await?;
        let records = batch.iter().map(|delivery| Arc::clone(delivery.record())).collect();
        let failed: BoxError = match (self.process)(records).await {
            Ok(records) => match transaction.send_all(records).await {
                Ok(()) => {
                    // A partition that is lost and comes back at once begins with what this commits, or does not.
                    let _turn = consumer.hold_assignments().await;
                    match consumer.consumed(batch) {
                        Some(consumed) => {
                            transaction.send_offsets(consumed).await?;
                            return transaction.commit().await;
                        }
                        None => "partitions were taken away".into(),
                    }
                }
                Err(error) => error.into(),
            },
            Err(error) => error,
        };
        transaction.abort().await?;
        Err(TransactionError::Aborted(failed))
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").field("options", &self.options).finish_non_exhaustive()
    }
}
