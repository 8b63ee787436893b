//! The bounded queue between those who publish and one subscriber.
//!
//! Made for one consumer that takes everything there is at once, so that a busy queue is locked once for many events
//! and not once for each. What the consumer has taken still counts as waiting until it says so ([`Queue::release`]):
//! the bound is exact, wherever the events are.
//!
//! Knows no clock and no policy: how long to wait for room is the caller's business. Part of the core that
//! `tests/shuttle.rs` runs under every interleaving, so it uses `crate::sync` and nothing of tokio.

use std::{
    collections::{BTreeMap, VecDeque},
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use crate::sync::{AtomicUsize, Mutex, MutexGuard, Ordering, PoisonError};

/// A batch larger than this gives its memory back once it is read.
const KEEP: usize = 1024;

/// First in, first out, at most `capacity`.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
    /// Everything that waits: here, or taken and not yet released. Grows under the lock, shrinks without it.
    len: AtomicUsize,
    /// How many wait for room. Changed under the lock; read without it, after `len` has shrunk.
    queueing: AtomicUsize,
    capacity: usize,
}

#[derive(Debug)]
struct State<T> {
    items: VecDeque<T>,
    closed: bool,
    consumer: Option<Waker>,
    /// Those who wait for room, in the order they came.
    queueing: BTreeMap<u64, Waker>,
    next_ticket: u64,
}

/// Why something was not taken; it comes back.
#[derive(Debug)]
pub(crate) enum Refused<T> {
    /// There is no room.
    Full(T),
    /// There is no consumer any more.
    Closed(T),
}

impl<T> Queue<T> {
    pub(crate) fn new(capacity: usize) -> Self {
        let state =
            State { items: VecDeque::new(), closed: false, consumer: None, queueing: BTreeMap::new(), next_ticket: 0 };
        let (len, queueing) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { state: Mutex::new(state), len, queueing, capacity: capacity.max(1) }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Puts `item` at the end if there is room, and says how many wait now.
    pub(crate) fn try_push(&self, item: T) -> Result<usize, Refused<T>> {
        let state = self.lock();
        if state.closed {
            return Err(Refused::Closed(item));
        }
        if self.len.load(Ordering::SeqCst) >= self.capacity {
            return Err(Refused::Full(item));
        }
        Ok(self.put(state, item))
    }

    /// Puts `item` at the end as soon as there is room; gives it back if the queue closes first.
    pub(crate) fn push(&self, item: T) -> Push<'_, T> {
        Push { queue: self, item: Some(item), ticket: None }
    }

    fn put(&self, mut state: MutexGuard<'_, State<T>>, item: T) -> usize {
        state.items.push_back(item);
        let len = self.len.fetch_add(1, Ordering::SeqCst) + 1;
        let consumer = state.consumer.take();
        // Woken outside the lock: it is the first thing the consumer wants.
        drop(state);
        if let Some(consumer) = consumer {
            consumer.wake();
        }
        len
    }

    /// Moves everything there is into `batch`, which must be empty. `false` says that there will never be more.
    pub(crate) fn poll_take(&self, batch: &mut VecDeque<T>, context: &mut Context<'_>) -> Poll<bool> {
        let mut state = self.lock();
        if take(&mut state, batch) {
            return Poll::Ready(true);
        }
        if state.closed {
            return Poll::Ready(false);
        }
        match &mut state.consumer {
            Some(known) => known.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    /// Like [`poll_take`](Self::poll_take), without waiting.
    pub(crate) fn take_now(&self, batch: &mut VecDeque<T>) -> bool {
        take(&mut self.lock(), batch)
    }

    /// Says that `count` of what was taken wait no longer: there is room for others.
    pub(crate) fn release(&self, count: usize) {
        self.len.fetch_sub(count, Ordering::SeqCst);
        if self.queueing.load(Ordering::SeqCst) > 0 {
            let mut state = self.lock();
            let mut woken = Vec::new();
            while woken.len() < count
                && let Some((_, waker)) = state.queueing.pop_first()
            {
                woken.push(waker);
            }
            self.queueing.store(state.queueing.len(), Ordering::SeqCst);
            drop(state);
            woken.into_iter().for_each(Waker::wake);
        }
    }

    /// Says that something that was released waits again. It was here before, so it is not refused.
    pub(crate) fn readmit(&self) {
        self.len.fetch_add(1, Ordering::SeqCst);
    }

    /// Takes nothing more. What is there can still be taken.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let consumer = state.consumer.take();
        let queueing = mem::take(&mut state.queueing);
        self.queueing.store(0, Ordering::SeqCst);
        drop(state);
        consumer.into_iter().chain(queueing.into_values()).for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Nothing in here panics half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn take<T>(state: &mut State<T>, batch: &mut VecDeque<T>) -> bool {
    debug_assert!(batch.is_empty(), "what was taken before would come after what is taken now");
    if state.items.is_empty() {
        return false;
    }
    if batch.capacity() > KEEP {
        *batch = VecDeque::new();
    }
    mem::swap(&mut state.items, batch);
    true
}

/// Waits for room. Dropped before that, it leaves the line, and whoever is next does not notice.
#[derive(Debug)]
pub(crate) struct Push<'a, T> {
    queue: &'a Queue<T>,
    item: Option<T>,
    ticket: Option<u64>,
}

impl<T> Push<'_, T> {
    /// What was to be pushed, if it was not.
    pub(crate) fn take_back(&mut self) -> Option<T> {
        self.item.take()
    }
}

// Nothing in it is borrowed by itself.
impl<T> Unpin for Push<'_, T> {}

impl<T> Future for Push<'_, T> {
    type Output = Result<usize, T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let queue = this.queue;
        let Some(item) = this.item.take() else { return Poll::Pending };
        let mut state = queue.lock();
        if state.closed {
            this.ticket = None;
            return Poll::Ready(Err(item));
        }
        // First in line, then another look: the consumer makes room first, then looks at the line. One sees the other.
        let ticket = *this.ticket.get_or_insert_with(|| {
            state.next_ticket += 1;
            state.next_ticket
        });
        state.queueing.insert(ticket, context.waker().clone());
        queue.queueing.store(state.queueing.len(), Ordering::SeqCst);
        if queue.len.load(Ordering::SeqCst) >= queue.capacity {
            this.item = Some(item);
            return Poll::Pending;
        }
        state.queueing.remove(&ticket);
        queue.queueing.store(state.queueing.len(), Ordering::SeqCst);
        this.ticket = None;
        Poll::Ready(Ok(queue.put(state, item)))
    }
}

impl<T> Drop for Push<'_, T> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut state = self.queue.lock();
        if state.queueing.remove(&ticket).is_some() {
            self.queue.queueing.store(state.queueing.len(), Ordering::SeqCst);
            return;
        }
        // It was woken for room that it does not use: the next one is.
        if self.queue.len.load(Ordering::SeqCst) < self.queue.capacity
            && let Some((_, next)) = state.queueing.pop_first()
        {
            self.queue.queueing.store(state.queueing.len(), Ordering::SeqCst);
            drop(state);
            next.wake();
        }
    }
}
