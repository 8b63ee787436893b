//! Group commit: concurrent callers share a transaction, and each is answered after its commit.
//!
//! While one batch is being written, the next one gathers; so batches grow with the load, and a lone caller waits for
//! nobody. The queue is bounded: a caller beyond the bound is refused at once.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::BoxFuture;
use relais_core::{Event, NewTask, StoreError, TaskEvent};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// How long a caller waits for its answer: a little longer than one call of the store may take. Without it, whoever has
/// to wait for a batch that hangs, and then hangs with the next one, would wait twice as long.
const PATIENCE: Duration = Duration::from_secs(17);

/// How much is written at once, and how much may wait.
#[derive(Debug, Clone, Copy)]
pub struct BatchOptions {
    /// The most items in one transaction.
    pub max_batch: usize,
    /// The most items that may wait.
    pub queue: usize,
    /// How many transactions may be under way at once.
    pub in_flight: usize,
}

impl Default for BatchOptions {
    fn default() -> Self {
        Self { max_batch: 500, queue: 10_000, in_flight: 1 }
    }
}

/// The error of the one who uses a [`Batcher`]. A whole batch may fail for one reason.
pub trait BatchError: Clone + From<StoreError> + Send + 'static {
    /// Too much waits already.
    fn overloaded() -> Self;

    /// Nothing is accepted any more.
    fn stopping() -> Self;
}

/// How much an item weighs in memory and on its way to the database, roughly.
pub trait Weigh {
    /// So many bytes.
    fn bytes(&self) -> usize;
}

impl Weigh for NewTask {
    fn bytes(&self) -> usize {
        self.request.get().len()
    }
}

impl Weigh for TaskEvent {
    fn bytes(&self) -> usize {
        match &self.event {
            Event::Succeeded { response, .. } => response.get().len(),
            Event::Failed { failure, .. } => failure.message.len() + failure.trace.as_ref().map_or(0, String::len),
            _ => 0,
        }
    }
}

/// A transaction is not made longer than this by large payloads of others.
const MAX_BYTES: usize = 8 << 20;

/// Writes a batch, and answers each item in its turn.
pub type Write<I, O> = Arc<dyn Fn(Vec<I>) -> BoxFuture<'static, Result<Vec<O>, StoreError>> + Send + Sync>;

struct Job<I, O, E> {
    items: Vec<I>,
    bytes: usize,
    /// Its items' share of what may wait. It stays with them when their caller goes away.
    room: OwnedSemaphorePermit,
    since: Instant,
    reply: oneshot::Sender<Result<Vec<O>, E>>,
}

impl<I, O, E> Job<I, O, E> {
    /// Whether its caller was told that it could not be done; then it is not done.
    fn is_given_up(&self) -> bool {
        self.since.elapsed() >= PATIENCE
    }
}

/// Takes items from many callers and writes them together. Cheap to clone.
pub struct Batcher<I, O, E> {
    jobs: mpsc::UnboundedSender<Job<I, O, E>>,
    /// One permit per item that may wait; this is what bounds the channel.
    room: Arc<Semaphore>,
    max_batch: usize,
}

impl<I, O, E> Clone for Batcher<I, O, E> {
    fn clone(&self) -> Self {
        Self { jobs: self.jobs.clone(), room: Arc::clone(&self.room), max_batch: self.max_batch }
    }
}

impl<I: Weigh + Send + 'static, O: Send + 'static, E: BatchError> Batcher<I, O, E> {
    /// Starts one on `tracker`. Once `closing` is cancelled it takes nothing more, writes what it has, and ends.
    pub fn start(
        name: &'static str,
        options: BatchOptions,
        tracker: &TaskTracker,
        closing: CancellationToken,
        write: Write<I, O>,
    ) -> Self {
        let (jobs, queue) = mpsc::unbounded_channel();
        tracker.spawn(run(name, options, queue, write, tracker.clone(), closing));
        Self { jobs, room: Arc::new(Semaphore::new(options.queue)), max_batch: options.max_batch }
    }

    /// Writes one item together with those of other callers.
    pub async fn put(&self, item: I) -> Result<O, E> {
        self.put_chunk(vec![item]).await?.pop().ok_or_else(E::stopping)
    }

    /// Writes many items, in transactions of bounded size, in their order.
    pub async fn put_all(&self, items: Vec<I>) -> Result<Vec<O>, E> {
        let mut outputs = Vec::with_capacity(items.len());
        let mut items = items.into_iter();
        loop {
            let chunk: Vec<I> = items.by_ref().take(self.max_batch).collect();
            if chunk.is_empty() {
                return Ok(outputs);
            }
            outputs.extend(self.put_chunk(chunk).await?);
        }
    }

    /// Writes many items; an item that cannot be written does not fail the rest: each has its own answer.
    pub async fn put_each(&self, items: Vec<I>) -> Vec<Result<O, E>> {
        let mut outputs = Vec::with_capacity(items.len());
        let mut items = items.into_iter();
        loop {
            let chunk: Vec<I> = items.by_ref().take(self.max_batch).collect();
            if chunk.is_empty() {
                return outputs;
            }
            let size = chunk.len();
            match self.put_chunk(chunk).await {
                Ok(written) => outputs.extend(written.into_iter().map(Ok)),
                Err(error) => outputs.extend(std::iter::repeat_n(error, size).map(Err)),
            }
        }
    }

    /// Writes many items in one transaction, however many they are.
    pub async fn put_together(&self, items: Vec<I>) -> Vec<Result<O, E>> {
        let size = items.len();
        match self.put_chunk(items).await {
            Ok(written) => written.into_iter().map(Ok).collect(),
            Err(error) => std::iter::repeat_n(error, size).map(Err).collect(),
        }
    }

    async fn put_chunk(&self, items: Vec<I>) -> Result<Vec<O>, E> {
        let permits = u32::try_from(items.len()).map_err(|_| E::overloaded())?;
        let room = Arc::clone(&self.room).try_acquire_many_owned(permits).map_err(|_| E::overloaded())?;
        let bytes = items.iter().map(Weigh::bytes).sum();
        let (reply, answer) = oneshot::channel();
        self.jobs.send(Job { items, bytes, room, since: Instant::now(), reply }).map_err(|_| E::stopping())?;
        match tokio::time::timeout(PATIENCE, answer).await {
            Ok(answer) => answer.map_err(|_| E::stopping())?,
            Err(late) => Err(StoreError::Unavailable(late.into()).into()),
        }
    }
}

async fn run<I: Send + 'static, O: Send + 'static, E: BatchError>(
    name: &'static str,
    options: BatchOptions,
    mut queue: mpsc::UnboundedReceiver<Job<I, O, E>>,
    write: Write<I, O>,
    tracker: TaskTracker,
    closing: CancellationToken,
) {
    let in_flight = Arc::new(Semaphore::new(options.in_flight.max(1)));
    let mut left_over: Option<Job<I, O, E>> = None;
    loop {
        // First the right to write, then the items: what arrives in the meantime joins the batch.
        let Ok(permit) = Arc::clone(&in_flight).acquire_owned().await else { return };
        let first = match left_over.take() {
            Some(job) => job,
            None => match next(&mut queue, &closing).await {
                Some(job) => job,
                None => return,
            },
        };
        if first.is_given_up() {
            continue;
        }
        let (mut size, mut bytes) = (first.items.len(), first.bytes);
        let mut batch = vec![first];
        while let Ok(job) = queue.try_recv() {
            if job.is_given_up() {
                continue;
            }
            if size + job.items.len() > options.max_batch || bytes + job.bytes > MAX_BYTES {
                left_over = Some(job);
                break;
            }
            size += job.items.len();
            bytes += job.bytes;
            batch.push(job);
        }
        metrics::histogram!("relais_batch_size", "batch" => name).record(size as f64);
        let writing = Arc::clone(&write);
        tracker.spawn(async move {
            flush(batch, size, &writing).await;
            drop(permit);
        });
    }
}

/// The next job; none when there will be no more.
async fn next<J>(queue: &mut mpsc::UnboundedReceiver<J>, closing: &CancellationToken) -> Option<J> {
    tokio::select! {
        job = queue.recv() => job,
        () = closing.cancelled() => {
            queue.close();
            queue.recv().await
        }
    }
}

async fn flush<I, O, E: BatchError>(batch: Vec<Job<I, O, E>>, size: usize, write: &Write<I, O>) {
    let mut items = Vec::with_capacity(size);
    let mut callers = Vec::with_capacity(batch.len());
    for job in batch {
        // Its place among those who wait is free again when it is answered.
        callers.push((job.items.len(), job.reply, job.room));
        items.extend(job.items);
    }
    // A caller that went away does not matter: the receiving end of its answer is gone, and that is all.
    match write(items).await {
        Ok(outputs) => {
            let mut outputs = outputs.into_iter();
            for (count, reply, _room) in callers {
                let _ = reply.send(Ok(outputs.by_ref().take(count).collect()));
            }
        }
        Err(error) => {
            let error = E::from(error);
            for (_, reply, _room) in callers {
                let _ = reply.send(Err(error.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Debug, Clone)]
    enum Refused {
        Overloaded,
        Stopping,
        Store,
    }

    impl From<StoreError> for Refused {
        fn from(_: StoreError) -> Self {
            Self::Store
        }
    }

    impl BatchError for Refused {
        fn overloaded() -> Self {
            Self::Overloaded
        }

        fn stopping() -> Self {
            Self::Stopping
        }
    }

    type Batcher = super::Batcher<u32, u32, Refused>;

    impl Weigh for u32 {
        fn bytes(&self) -> usize {
            // One that weighs as much as a transaction may.
            if *self == 77 { MAX_BYTES } else { 0 }
        }
    }

    fn doubling(seen: Arc<Mutex<Vec<usize>>>, gate: Arc<Semaphore>) -> Write<u32, u32> {
        Arc::new(move |items: Vec<u32>| {
            let (seen, gate) = (Arc::clone(&seen), Arc::clone(&gate));
            Box::pin(async move {
                gate.acquire().await.unwrap().forget();
                seen.lock().unwrap().push(items.len());
                if items.contains(&13) {
                    return Err(StoreError::Unavailable("unlucky".into()));
                }
                Ok(items.into_iter().map(|item| item * 2).collect())
            })
        })
    }

    #[tokio::test]
    async fn group_commit_batches_what_arrives_during_a_write() {
        let (seen, gate) = (Arc::default(), Arc::new(Semaphore::new(0)));
        let tracker = TaskTracker::new();
        let options = BatchOptions { max_batch: 8, queue: 100, in_flight: 1 };
        let batcher = Batcher::start(
            "test",
            options,
            &tracker,
            CancellationToken::new(),
            doubling(Arc::clone(&seen), Arc::clone(&gate)),
        );
        let calls: Vec<_> = (0..20u32)
            .map(|n| {
                let batcher = batcher.clone();
                tokio::spawn(async move { batcher.put(n * 100).await })
            })
            .collect();
        tokio::task::yield_now().await;
        gate.add_permits(20);
        for (n, call) in calls.into_iter().enumerate() {
            assert_eq!(call.await.unwrap().unwrap(), n as u32 * 200, "each caller gets its own answer");
        }
        let seen = seen.lock().unwrap().clone();
        assert!(seen.len() < 20 && seen.iter().all(|&size| size <= 8), "{seen:?}");
        assert_eq!(seen.iter().sum::<usize>(), 20);
    }

    #[tokio::test]
    async fn a_full_batcher_refuses_at_once_and_accepts_again_later() {
        let (seen, gate) = (Arc::default(), Arc::new(Semaphore::new(0)));
        let tracker = TaskTracker::new();
        let options = BatchOptions { max_batch: 2, queue: 3, in_flight: 1 };
        let batcher =
            Batcher::start("test", options, &tracker, CancellationToken::new(), doubling(seen, Arc::clone(&gate)));
        let waiting: Vec<_> = (0..3)
            .map(|n| {
                let batcher = batcher.clone();
                tokio::spawn(async move { batcher.put(n).await })
            })
            .collect();
        tokio::task::yield_now().await;
        assert!(matches!(batcher.put(9).await, Err(Refused::Overloaded)));
        gate.add_permits(10);
        for call in waiting {
            call.await.unwrap().unwrap();
        }
        assert_eq!(batcher.put(9).await.unwrap(), 18);
        assert_eq!(
            batcher.put_all((0..3).collect()).await.unwrap(),
            [0, 2, 4],
            "more than a batch is written in parts"
        );
        assert!(matches!(batcher.put(13).await, Err(Refused::Store)));
        assert_eq!(batcher.put(77).await.unwrap(), 154, "what is too heavy for company is written alone");
        let each = batcher.put_each(vec![1, 2, 13, 4, 5]).await;
        let fine: Vec<bool> = each.iter().map(Result::is_ok).collect();
        assert_eq!(fine, [true, true, false, false, true], "what was written is not taken back with what was not");
    }

    #[tokio::test]
    async fn a_closing_batcher_writes_what_it_accepted_and_refuses_more() {
        let (seen, gate) = (Arc::default(), Arc::new(Semaphore::new(0)));
        let (tracker, closing) = (TaskTracker::new(), CancellationToken::new());
        let options = BatchOptions { max_batch: 2, queue: 100, in_flight: 1 };
        let write = doubling(seen, Arc::clone(&gate));
        let batcher = Batcher::start("test", options, &tracker, closing.clone(), write);
        let calls: Vec<_> = (0..9)
            .map(|n| {
                let batcher = batcher.clone();
                tokio::spawn(async move { batcher.put(n).await })
            })
            .collect();
        tokio::task::yield_now().await;
        closing.cancel();
        gate.add_permits(100);
        for call in calls {
            call.await.unwrap().unwrap();
        }
        tracker.close();
        tracker.wait().await;
        assert!(matches!(batcher.put(1).await, Err(Refused::Stopping)));
    }
}
