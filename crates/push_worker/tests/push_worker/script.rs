//! A consumer that does as it is told: what a test says is received, and what is settled the test hears.

use std::{
    borrow::Cow,
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use relais_push_worker::{
    BoxError, Consumer, ConsumerFeatures, ConsumerMonitor, FailedMessage, Handler, Incoming, InitializeError, Order,
    PushWorker, RetriedBy, Revoked, Settled, SubscriberError, WorkerSettings, WorkerSubscription, handler,
};
use tokio::sync::{Notify, mpsc, oneshot};

/// A message: its name is its key, a dash and its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    pub name: String,
    pub retries: u32,
}

impl Note {
    pub fn key(&self) -> &str {
        self.name.split('-').next().unwrap()
    }
}

/// A note, and the partition that it came by.
pub struct Parcel {
    note: Arc<Note>,
    partition: u32,
}

type Step = Box<dyn FnOnce(&mut VecDeque<Parcel>) -> Incoming<Parcel> + Send>;

/// What the consumer and its test share.
struct Desk {
    steps: Mutex<VecDeque<Step>>,
    news: Notify,
    settled: mpsc::UnboundedSender<(String, Settled)>,
    waiting: AtomicUsize,
    stopped: AtomicBool,
    closed: AtomicBool,
    dropped: AtomicBool,
    rules: Mutex<Rules>,
}

/// How the consumer answers.
#[derive(Default)]
pub struct Rules {
    /// What a retry is answered with, if not by the worker.
    pub retry: Option<Result<RetriedBy, String>>,
    /// Whether dead letters are refused.
    pub refuses_dead_letters: bool,
    /// Whether it never says that it has stopped to receive.
    pub hangs: bool,
}

/// The test's side.
pub struct Feed {
    desk: Arc<Desk>,
    settled: mpsc::UnboundedReceiver<(String, Settled)>,
}

pub struct Script(Arc<Desk>);

/// Starts a worker on a script.
pub async fn start<F>(
    settings: WorkerSettings<Note>,
    handle: impl Fn(Arc<Note>) -> F + Send + Sync + 'static,
) -> (PushWorker<Note>, Feed)
where
    F: Future<Output = Result<(), SubscriberError>> + Send + 'static,
{
    let (sender, settled) = mpsc::unbounded_channel();
    let desk = Arc::new(Desk {
        steps: Mutex::default(),
        news: Notify::new(),
        settled: sender,
        waiting: AtomicUsize::new(0),
        stopped: AtomicBool::new(false),
        closed: AtomicBool::new(false),
        dropped: AtomicBool::new(false),
        rules: Mutex::default(),
    });
    let feed = Feed { desk: Arc::clone(&desk), settled };
    let handler: Handler<Note> = handler(handle);
    let worker = settings.start(async { Ok::<_, InitializeError>(Script(desk)) }, handler).await.unwrap();
    (worker, feed)
}

impl Feed {
    /// Delivers notes of one partition together.
    pub fn deliver(&self, partition: u32, names: &[&str]) {
        self.deliver_retried(partition, names, 0);
    }

    /// The same with notes that were retried before.
    pub fn deliver_retried(&self, partition: u32, names: &[&str], retries: u32) {
        let notes = names.iter().map(|name| Arc::new(Note { name: (*name).to_owned(), retries }));
        let parcels: Vec<Parcel> = notes.map(|note| Parcel { note, partition }).collect();
        self.desk.waiting.fetch_add(parcels.len(), Ordering::Relaxed);
        self.step(move |batch| {
            batch.extend(parcels);
            Incoming::Deliveries
        });
    }

    /// Wants a partition back. The answer comes when the worker is done with it.
    pub fn revoke(&self, partition: u32) -> oneshot::Receiver<()> {
        let (revoked, done) = Revoked::new(move |parcel: &Parcel| parcel.partition == partition);
        self.step(|_| Incoming::Revoked(revoked));
        done
    }

    /// Takes a partition away.
    pub fn lose(&self, partition: u32) {
        self.step(move |_| Incoming::Lost(Box::new(move |parcel| parcel.partition == partition)));
    }

    /// There will never be more.
    pub fn close(&self) {
        self.step(|_| Incoming::Closed);
    }

    /// Changes how the consumer answers.
    pub fn rule(&self, change: impl FnOnce(&mut Rules)) {
        change(&mut self.desk.rules.lock().unwrap());
    }

    /// The next that is settled.
    pub async fn settled(&mut self) -> (String, Settled) {
        tokio::time::timeout(Duration::from_secs(3600), self.settled.recv())
            .await
            .expect("something is settled")
            .unwrap()
    }

    /// The next so many, in the order of their names.
    pub async fn settled_many(&mut self, count: usize) -> Vec<(String, Settled)> {
        let mut all = Vec::new();
        while all.len() < count {
            all.push(self.settled().await);
        }
        all.sort_by(|one, two| one.0.cmp(&two.0));
        all
    }

    /// Whether nothing was settled that was not asked for.
    pub fn is_quiet(&mut self) -> bool {
        self.settled.try_recv().is_err()
    }

    /// Whether the worker has closed the consumer, and let go of it.
    pub fn is_closed(&self) -> (bool, bool) {
        (self.desk.closed.load(Ordering::Relaxed), self.desk.dropped.load(Ordering::Relaxed))
    }

    fn step(&self, step: impl FnOnce(&mut VecDeque<Parcel>) -> Incoming<Parcel> + Send + 'static) {
        self.desk.steps.lock().unwrap().push_back(Box::new(step));
        self.desk.news.notify_one();
    }
}

pub fn done(name: &str) -> (String, Settled) {
    (name.to_owned(), Settled::Done)
}

pub fn left(name: &str) -> (String, Settled) {
    (name.to_owned(), Settled::Left)
}

impl Drop for Script {
    fn drop(&mut self) {
        self.0.dropped.store(true, Ordering::Relaxed);
    }
}

impl Consumer for Script {
    type Message = Note;
    type Delivery = Parcel;

    fn features(&self) -> ConsumerFeatures {
        ConsumerFeatures { redelivers: true, has_partitions: true, keeps_order: true, ..ConsumerFeatures::default() }
    }

    fn monitor(&self) -> Arc<dyn ConsumerMonitor> {
        Arc::new(Monitor(Arc::clone(&self.0)))
    }

    async fn receive(&self, batch: &mut VecDeque<Parcel>) -> Incoming<Parcel> {
        loop {
            let step = self.0.steps.lock().unwrap().pop_front();
            match step {
                Some(step) => return step(batch),
                None if self.0.stopped.load(Ordering::Relaxed) => return Incoming::Closed,
                None => self.0.news.notified().await,
            }
        }
    }

    fn message(&self, parcel: &Parcel) -> Arc<Note> {
        Arc::clone(&parcel.note)
    }

    fn id<'a>(&self, note: &'a Note) -> Cow<'a, str> {
        note.name.as_str().into()
    }

    fn channel<'a>(&self, _: &'a Note) -> &'a str {
        "notes"
    }

    fn lane(&self, parcel: &Parcel, order: Order) -> Option<Arc<str>> {
        match order {
            Order::None => None,
            Order::Channel => Some("notes".into()),
            Order::Key => Some(parcel.note.key().into()),
        }
    }

    fn retries(&self, parcel: &Parcel) -> u32 {
        parcel.note.retries
    }

    fn leave_queue(&self, _: &Parcel) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    fn rejoin_queue(&self, parcel: &mut Parcel, retries: u32) {
        self.0.waiting.fetch_add(1, Ordering::Relaxed);
        parcel.note = Arc::new(Note { name: parcel.note.name.clone(), retries });
    }

    fn settle(&self, parcel: Parcel, settled: Settled) {
        // A test that has seen enough does not listen any more.
        let _ = self.0.settled.send((parcel.note.name.clone(), settled));
    }

    async fn retry(&self, _: &FailedMessage<'_, Note>, _: Duration) -> Result<RetriedBy, BoxError> {
        let rule = self.0.rules.lock().unwrap().retry.clone();
        rule.unwrap_or(Ok(RetriedBy::Worker)).map_err(Into::into)
    }

    async fn dead_letter(&self, _: &FailedMessage<'_, Note>) -> Result<bool, BoxError> {
        if self.0.rules.lock().unwrap().refuses_dead_letters { Err("the disk is full".into()) } else { Ok(true) }
    }

    async fn stop_receiving(&self) {
        self.0.stopped.store(true, Ordering::Relaxed);
        let hangs = self.0.rules.lock().unwrap().hangs;
        if hangs {
            std::future::pending::<()>().await;
        }
    }

    async fn close(&self) {
        self.0.closed.store(true, Ordering::Relaxed);
    }
}

struct Monitor(Arc<Desk>);

impl ConsumerMonitor for Monitor {
    fn channels(&self) -> Vec<String> {
        vec!["notes".to_owned()]
    }

    fn queue_size(&self) -> usize {
        self.0.waiting.load(Ordering::Relaxed)
    }

    fn queue_capacity(&self) -> usize {
        1000
    }

    fn subscriptions(&self) -> Vec<WorkerSubscription> {
        vec![WorkerSubscription { id: "1".to_owned(), channel: "notes".to_owned(), pending: self.queue_size() }]
    }
}
