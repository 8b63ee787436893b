//! The state of a connection: whether the client waits for the server, or the server for the client. Shared by the
//! socket, the request under way, and [`crate::connections`], which looks for a connection to close.

use std::{
    fmt,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    net::TcpStream,
    sync::{Notify, OwnedSemaphorePermit},
    time::Instant,
};

use crate::handover::Driver;

/// What a connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Between two requests.
    Idle,
    /// The head of a request is arriving.
    Head,
    /// The body of a request is arriving.
    Body,
    /// The request is being answered: the other side waits for us.
    Answering,
}

impl Phase {
    const ALL: [Self; 4] = [Self::Idle, Self::Head, Self::Body, Self::Answering];
}

/// The state of one connection.
#[derive(Debug)]
pub(crate) struct State {
    begun: Instant,
    phase: AtomicU8,
    /// Since when it is so, in milliseconds since it began.
    since: AtomicU64,
    /// Since when what we write is not taken, plus one; zero while it is.
    blocked: AtomicU64,
    /// Told when the connection is to be closed.
    pub(crate) close: Notify,
    /// Told when the head of an answer that takes the socket has left.
    pub(crate) head_sent: Notify,
    /// Whether an answer takes the socket.
    is_handed_over: AtomicBool,
    handed: Mutex<Handed>,
    /// Whether it still has the place of those that open.
    is_opening: AtomicBool,
    opening: Mutex<Option<OwnedSemaphorePermit>>,
}

/// What passes from a connection to whoever goes on with its socket.
#[derive(Default)]
struct Handed {
    driver: Option<Driver>,
    stream: Option<TcpStream>,
}

impl fmt::Debug for Handed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handed").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl State {
    pub(crate) fn new() -> Self {
        let phase = AtomicU8::new(Phase::Head as u8);
        let (since, blocked) = (AtomicU64::new(0), AtomicU64::new(0));
        Self {
            begun: Instant::now(),
            phase,
            since,
            blocked,
            close: Notify::new(),
            head_sent: Notify::new(),
            is_handed_over: AtomicBool::new(false),
            handed: Mutex::default(),
            is_opening: AtomicBool::new(false),
            opening: Mutex::default(),
        }
    }

    /// It opens, and has this place until then.
    pub(crate) fn opens(&self, place: OwnedSemaphorePermit) {
        *self.opening.lock().unwrap_or_else(PoisonError::into_inner) = Some(place);
        self.is_opening.store(true, Ordering::Release);
    }

    pub(crate) fn is_opening(&self) -> bool {
        self.is_opening.load(Ordering::Acquire)
    }

    /// It has its first answer, or waits for its client: another one may open.
    pub(crate) fn opened(&self) {
        if self.is_opening() && self.is_opening.swap(false, Ordering::AcqRel) {
            drop(self.opening.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
    }

    fn handed(&self) -> MutexGuard<'_, Handed> {
        self.handed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer that is under way takes the socket once its head has left.
    pub(crate) fn hand_over(&self, driver: Driver) {
        self.handed().driver = Some(driver);
        self.is_handed_over.store(true, Ordering::Release);
    }

    pub(crate) fn is_handed_over(&self) -> bool {
        self.is_handed_over.load(Ordering::Acquire)
    }

    /// Keeps the socket of a connection that is over.
    pub(crate) fn keep(&self, stream: TcpStream) {
        self.handed().stream = Some(stream);
    }

    /// What goes on with the socket, and the socket.
    pub(crate) fn take_over(&self) -> Option<(Driver, TcpStream)> {
        let mut handed = self.handed();
        Some((handed.driver.take()?, handed.stream.take()?))
    }

    pub(crate) fn phase(&self) -> Phase {
        Phase::ALL[usize::from(self.phase.load(Ordering::Relaxed)) % Phase::ALL.len()]
    }

    /// Notes what it does from now on.
    pub(crate) fn enter(&self, phase: Phase) {
        if self.phase() != phase {
            self.since.store(self.age(), Ordering::Relaxed);
            self.phase.store(phase as u8, Ordering::Relaxed);
        }
        if phase == Phase::Idle {
            self.opened();
        }
    }

    /// Since when the present phase lasts.
    pub(crate) fn since(&self) -> Instant {
        self.begun + Duration::from_millis(self.since.load(Ordering::Relaxed))
    }

    /// Notes that what we write is not taken, and says since when.
    pub(crate) fn block(&self) -> Instant {
        let now = self.age() + 1;
        let since = self.blocked.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed).err().unwrap_or(now);
        self.begun + Duration::from_millis(since - 1)
    }

    /// Notes that something was taken. A connection is idle only since the last of an answer has left.
    pub(crate) fn unblock(&self) {
        if self.phase() == Phase::Idle {
            self.since.store(self.age(), Ordering::Relaxed);
        }
        self.blocked.store(0, Ordering::Relaxed);
    }

    /// Whether what we write is not taken at the moment.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked.load(Ordering::Relaxed) > 0
    }

    /// How long the other side has kept us waiting; nothing while it waits for us.
    pub(crate) fn kept_waiting(&self) -> Option<Duration> {
        let blocked = self.blocked.load(Ordering::Relaxed);
        let since = match self.phase() {
            _ if blocked > 0 => blocked - 1,
            Phase::Answering => return None,
            Phase::Idle | Phase::Head | Phase::Body => self.since.load(Ordering::Relaxed),
        };
        Some(Duration::from_millis(self.age().saturating_sub(since)))
    }

    fn age(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_waits_for_an_answer_is_not_slow_unless_it_does_not_read_it() {
        let state = State::new();
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(state.kept_waiting(), Some(Duration::from_secs(3)), "the first head");
        state.enter(Phase::Answering);
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(state.kept_waiting(), None, "a long-poll");
        let since = state.block();
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!((state.block(), state.kept_waiting()), (since, Some(Duration::from_secs(2))));
        state.unblock();
        assert_eq!(state.kept_waiting(), None);
        state.enter(Phase::Idle);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(state.kept_waiting(), Some(Duration::from_secs(1)));
    }
}
