//! A pool of threads for work that fills a processor: bcrypt, JSON Schemas.
//!
//! A few jobs run at once, off the async threads. Others wait and take turns: first by their address, then by their
//! client. So a caller with a thousand jobs does not delay a caller with one for long. Waiting jobs are bounded, in
//! total and for each address and client. A job whose caller has disconnected is dropped.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::sync::oneshot;

/// After this time without work a thread ends.
const IDLE: Duration = Duration::from_secs(10);

/// The settings of a [`Pool`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolOptions {
    /// What its threads are called.
    pub(crate) name: &'static str,
    /// How many jobs run at once.
    pub(crate) threads: usize,
    /// Whether its threads have a lower priority than others. Only on Linux.
    pub(crate) stands_back: bool,
    /// How many jobs may wait.
    pub(crate) waiting: usize,
    /// How many of those for one client from one address: a stranger who claims a client's id takes none of its places.
    pub(crate) waiting_per_client: usize,
    /// How many of those from one address.
    pub(crate) waiting_per_peer: usize,
}

/// The caller of a job.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Requester {
    /// The client's id, as it was given.
    pub(crate) client: Arc<str>,
    /// The address that the request came from, where that is known.
    pub(crate) peer: Option<IpAddr>,
}

/// Why a job failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PoolError {
    /// The queue is full.
    #[error("too many jobs are waiting")]
    Full,
    /// It timed out before it began.
    #[error("the job did not begin in time")]
    NotBegun,
    /// It timed out while it ran.
    #[error("the job did not end in time")]
    NotEnded,
    /// It panicked, or no thread could be started.
    #[error("the job could not be done")]
    Failed,
}

/// Says to a job whether its caller still waits.
pub(crate) struct JobCaller<'s>(&'s dyn Fn() -> bool);

impl JobCaller<'_> {
    /// Whether the caller has gone, so that the rest of the work is useless.
    pub(crate) fn is_gone(&self) -> bool {
        (self.0)()
    }
}

/// Runs jobs. Its threads exist while there is work.
pub(crate) struct Pool(Arc<Shared>);

struct Shared {
    options: PoolOptions,
    state: Mutex<State>,
    /// Notified when a job arrives, and when the pool is closed.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: Vec<Waiting>,
    /// Threads, and those of them that wait for a job.
    threads: usize,
    idle: usize,
    /// Counts the jobs that began; and when each client and address last had one. Forgotten when nobody waits for them.
    turn: u64,
    clients: HashMap<Arc<str>, u64>,
    peers: HashMap<Option<IpAddr>, u64>,
    closed: bool,
}

struct Waiting {
    requester: Requester,
    /// The turn when it came: whoever was never served does not go before those who wait for longer.
    since: u64,
    job: Box<dyn Job>,
}

trait Job: Send {
    fn is_abandoned(&self) -> bool;
    fn run(self: Box<Self>);
}

struct Work<T, F> {
    work: F,
    begun: Arc<AtomicBool>,
    answer: oneshot::Sender<T>,
}

impl<T: Send, F: FnOnce(&JobCaller<'_>) -> T + Send> Job for Work<T, F> {
    fn is_abandoned(&self) -> bool {
        self.answer.is_closed()
    }

    fn run(self: Box<Self>) {
        let Self { work, begun, answer } = *self;
        begun.store(true, Ordering::Relaxed);
        let gone = || answer.is_closed();
        // A panic drops the answer, and the caller is told that it failed. It says so in the log by itself.
        if let Ok(done) = catch_unwind(AssertUnwindSafe(|| work(&JobCaller(&gone)))) {
            let _ = answer.send(done);
        }
    }
}

impl Pool {
    pub(crate) fn new(options: PoolOptions) -> Self {
        Self(Arc::new(Shared { options, state: Mutex::default(), changed: Condvar::new() }))
    }

    /// Runs a job, with a timeout.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        requester: Requester,
        within: Duration,
        work: impl FnOnce(&JobCaller<'_>) -> T + Send + 'static,
    ) -> Result<T, PoolError> {
        let begun = Arc::new(AtomicBool::new(false));
        let (answer, answered) = oneshot::channel();
        let job = Box::new(Work { work, begun: Arc::clone(&begun), answer });
        self.put(requester, job)?;
        match tokio::time::timeout(within, answered).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(_)) => Err(PoolError::Failed),
            Err(_) if begun.load(Ordering::Relaxed) => Err(PoolError::NotEnded),
            Err(_) => Err(PoolError::NotBegun),
        }
    }

    fn put(&self, requester: Requester, job: Box<dyn Job>) -> Result<(), PoolError> {
        let shared = &self.0;
        let mut state = shared.state();
        if state.is_full(&shared.options, &requester) {
            state.waiting.retain(|waiting| !waiting.job.is_abandoned());
            if state.is_full(&shared.options, &requester) {
                return Err(PoolError::Full);
            }
        }
        let since = state.turn;
        state.waiting.push(Waiting { requester, since, job });
        if state.waiting.len() > state.idle && state.threads < shared.options.threads.max(1) {
            let thread = Arc::clone(shared);
            let spawned = thread::Builder::new().name(shared.options.name.to_owned()).spawn(move || thread.work());
            match spawned {
                Ok(_) => state.threads += 1,
                // Those that are there take care of it.
                Err(_) if state.threads > 0 => {}
                Err(_) => {
                    state.waiting.pop();
                    return Err(PoolError::Failed);
                }
            }
        }
        drop(state);
        shared.changed.notify_one();
        Ok(())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.0.state().closed = true;
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a thread does: one job after the other, until there has been none for a while.
    fn work(&self) {
        if self.options.stands_back {
            stand_back();
        }
        while let Some(job) = self.next() {
            job.run();
        }
    }

    fn next(&self) -> Option<Box<dyn Job>> {
        let mut state = self.state();
        loop {
            if let Some(job) = state.take() {
                return Some(job);
            }
            if state.closed {
                state.threads -= 1;
                return None;
            }
            state.idle += 1;
            let (woken, waited) =
                self.changed.wait_timeout(state, IDLE).unwrap_or_else(|poisoned| poisoned.into_inner());
            state = woken;
            state.idle -= 1;
            if waited.timed_out() && state.waiting.is_empty() {
                state.threads -= 1;
                return None;
            }
        }
    }
}

impl State {
    fn is_full(&self, options: &PoolOptions, requester: &Requester) -> bool {
        let of = |same: &dyn Fn(&Requester) -> bool| self.waiting.iter().filter(|one| same(&one.requester)).count();
        self.waiting.len() >= options.waiting
            || of(&|other| other == requester) >= options.waiting_per_client
            || requester.peer.is_some() && of(&|other| other.peer == requester.peer) >= options.waiting_per_peer
    }

    /// The next job: of the address, and then of the client, that has not had one for longest.
    fn take(&mut self) -> Option<Box<dyn Job>> {
        self.waiting.retain(|waiting| !waiting.job.is_abandoned());
        let last = |waiting: &Waiting| {
            let Requester { client, peer } = &waiting.requester;
            let (peer, client) = (self.peers.get(peer).copied(), self.clients.get(client).copied());
            (peer.unwrap_or_default().max(waiting.since), client.unwrap_or_default().max(waiting.since))
        };
        let next = self.waiting.iter().enumerate().min_by_key(|(_, waiting)| last(waiting)).map(|(place, _)| place);
        let Waiting { requester, job, .. } = self.waiting.remove(next?);
        self.turn += 1;
        self.clients.insert(requester.client, self.turn);
        self.peers.insert(requester.peer, self.turn);
        if self.waiting.is_empty() {
            self.clients.clear();
            self.peers.clear();
        } else if self.clients.len().max(self.peers.len()) > 2 * self.waiting.len() + 16 {
            let (clients, peers): (HashSet<_>, HashSet<_>) =
                self.waiting.iter().map(|one| (Arc::clone(&one.requester.client), one.requester.peer)).unzip();
            self.clients.retain(|client, _| clients.contains(client));
            self.peers.retain(|peer, _| peers.contains(peer));
        }
        Some(job)
    }
}

/// Lets other threads of the process have the processors first.
#[cfg(target_os = "linux")]
fn stand_back() {
    // Of no process in particular, which to Linux is the calling thread.
    if let Err(error) = rustix::process::setpriority_process(None, 10) {
        tracing::debug!(%error, "a thread keeps its priority");
    }
}

#[cfg(not(target_os = "linux"))]
fn stand_back() {}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn options() -> PoolOptions {
        PoolOptions {
            name: "test",
            threads: 1,
            stands_back: true,
            waiting: 100,
            waiting_per_client: 50,
            waiting_per_peer: 60,
        }
    }

    fn from(client: &str, peer: u8) -> Requester {
        Requester { client: client.into(), peer: Some(IpAddr::from([127, 0, 0, peer])) }
    }

    /// Holds the pool's thread until it is let go.
    async fn held(pool: &Arc<Pool>) -> mpsc::Sender<()> {
        let (go, wait) = mpsc::channel::<()>();
        let (begun, has_begun) = oneshot::channel();
        let pool = Arc::clone(pool);
        tokio::spawn(async move {
            pool.run(from("first", 1), LONG, move |_| {
                let _ = begun.send(());
                let _ = wait.recv();
            })
            .await
        });
        has_begun.await.unwrap();
        go
    }

    /// Waits in the pool, and says its name when its turn comes.
    fn queued(pool: &Arc<Pool>, requester: Requester, said: &Arc<Mutex<Vec<String>>>) -> impl Future<Output = ()> {
        let (said, name) = (Arc::clone(said), requester.client.to_string());
        let mut job = Box::pin({
            let pool = Arc::clone(pool);
            async move { pool.run(requester, LONG, move |_| said.lock().unwrap().push(name)).await.unwrap() }
        });
        // In the queue before this returns.
        let waker = std::task::Waker::noop();
        assert!(job.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_pending());
        job
    }

    #[tokio::test]
    async fn addresses_take_turns_and_so_do_clients_of_one_address() {
        let pool = Arc::new(Pool::new(options()));
        let go = held(&pool).await;
        let said = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = Vec::new();
        for (client, peer) in [("flood", 2), ("flood", 2), ("flood", 2), ("beside", 2), ("honest", 3)] {
            waiting.push(queued(&pool, from(client, peer), &said));
        }
        drop(go);
        futures::future::join_all(waiting).await;
        let said = said.lock().unwrap().clone();
        assert_eq!(said, ["flood", "honest", "beside", "flood", "flood"]);
    }

    #[tokio::test]
    async fn a_new_caller_does_not_overtake_those_who_wait_longer() {
        let pool = Arc::new(Pool::new(options()));
        let go = held(&pool).await;
        let said = Arc::new(Mutex::new(Vec::new()));
        // Served once already, as the honest have been.
        pool.0.state().peers.insert(from("honest", 3).peer, 5);
        pool.0.state().turn = 10;
        let mut waiting = vec![queued(&pool, from("honest", 3), &said)];
        pool.0.state().turn = 11;
        waiting.extend((10..30).map(|peer| queued(&pool, from("stranger", peer), &said)));
        drop(go);
        futures::future::join_all(waiting).await;
        assert_eq!(said.lock().unwrap()[0], "honest");
        assert!(pool.0.state().peers.is_empty(), "nobody is remembered who does not wait");
    }

    #[tokio::test]
    async fn waiting_jobs_are_bounded_per_client_per_address_and_in_total() {
        let pool = Arc::new(Pool::new(options()));
        let _go = held(&pool).await;
        let said = Arc::new(Mutex::new(Vec::new()));
        let refused = async |requester: Requester| pool.run(requester, Duration::ZERO, |_| ()).await;
        let mut waiting: Vec<_> = (0..50).map(|_| queued(&pool, from("flood", 2), &said)).collect();
        assert_eq!(refused(from("flood", 2)).await, Err(PoolError::Full), "one client's from one address");
        assert_eq!(refused(from("flood", 3)).await, Err(PoolError::NotBegun), "the same client's from another");
        waiting.extend((0..10).map(|n| queued(&pool, from(&format!("client {n}"), 2), &said)));
        assert_eq!(refused(from("another", 2)).await, Err(PoolError::Full), "one address's for any client");
        assert_eq!(refused(from("another", 3)).await, Err(PoolError::NotBegun), "anybody else has room");
        drop(waiting.pop());
        assert_eq!(refused(from("another", 2)).await, Err(PoolError::NotBegun), "whoever hung up has left its place");
    }

    #[tokio::test]
    async fn a_job_that_panics_fails_alone() {
        let pool = Pool::new(options());
        let panicked = pool.run(from("a", 1), LONG, |_| panic!("on purpose")).await;
        assert_eq!(panicked, Err::<(), _>(PoolError::Failed));
        assert_eq!(pool.run(from("a", 1), LONG, |_| 7).await, Ok(7));
    }

    #[tokio::test]
    async fn a_cancelled_caller_is_answered_and_its_job_is_cancelled() {
        let pool = Pool::new(PoolOptions { stands_back: false, ..options() });
        let (told, was_told) = oneshot::channel();
        let job = pool.run(from("a", 1), Duration::from_secs(2), move |waiter: &JobCaller<'_>| {
            while !waiter.is_gone() {
                thread::yield_now();
            }
            let _ = told.send(());
        });
        assert_eq!(job.await, Err(PoolError::NotEnded));
        was_told.await.unwrap();
    }
}
