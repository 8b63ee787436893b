//! A claim that is kept: extended in the background until it is marked, released or dropped.

use std::{fmt, pin::Pin, sync::Arc, time::Duration};

use tokio::{
    runtime::Handle,
    sync::{oneshot, watch},
    task::JoinHandle,
    time::{Instant, sleep, sleep_until, timeout_at},
};

use crate::{ClaimOutcome, ClaimToken, DedupError, DedupKey, DedupStore, Hold};

/// The first pause before a mark is tried again. It doubles each time.
const PAUSE: Duration = Duration::from_millis(50);

/// How a claim was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// It had expired, and somebody else has claimed or marked the message.
    Taken,
    /// It ran out because the store could not be reached. Somebody else may claim the message.
    Expired,
}

/// A claim as the store knows it.
pub(crate) struct Held {
    pub(crate) store: Arc<dyn DedupStore>,
    pub(crate) key: DedupKey,
    pub(crate) token: ClaimToken,
    pub(crate) claim: Duration,
}

impl Held {
    /// Marks the message; while the store does not answer, for as long as the claim lasts.
    async fn mark(&self, window: Duration, lost: &mut watch::Receiver<Option<Loss>>) -> Result<Hold, DedupError> {
        let (end, mut pause) = (Instant::now() + self.claim, PAUSE);
        loop {
            let error = match self.store.mark(&self.key, &self.token, window).await {
                Ok(hold) => return Ok(hold),
                Err(error) => error,
            };
            tokio::select! {
                _ = lost.wait() => return Err(error),
                () = sleep(pause) => pause *= 2,
            }
            if Instant::now() >= end {
                return Err(error);
            }
        }
    }

    /// Releases the claim of somebody who is not there any more.
    async fn release(&self) {
        if let Err(error) = self.store.release(&self.key, &self.token).await {
            let (consumer, id) = (self.key.consumer(), self.key.id());
            tracing::debug!(consumer, id, %error, "a claim is left to expire");
        }
    }
}

type Answer = Pin<Box<dyn Future<Output = Result<ClaimOutcome, DedupError>> + Send>>;

/// Asking for a claim. Whoever stops waiting for the answer gives the claim up, once it is known that there is one.
pub(crate) struct Asking {
    answer: Option<Answer>,
    held: Arc<Held>,
    runtime: Handle,
}

impl Asking {
    pub(crate) fn begin(held: Held) -> Self {
        let held = Arc::new(held);
        let asked = Arc::clone(&held);
        let answer = async move { asked.store.claim(&asked.key, &asked.token, asked.claim).await };
        Self { answer: Some(Box::pin(answer)), held, runtime: Handle::current() }
    }

    pub(crate) async fn answer(&mut self) -> Result<ClaimOutcome, DedupError> {
        let Some(answer) = &mut self.answer else { return std::future::pending().await };
        let outcome = answer.await;
        self.answer = None;
        outcome
    }

    /// The claim that was got, to be kept.
    pub(crate) fn keep(self, window: Duration, asked: Instant) -> Claim {
        Claim::keep(Arc::clone(&self.held), window, asked, self.runtime.clone())
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let Some(answer) = self.answer.take() else { return };
        let held = Arc::clone(&self.held);
        self.runtime.spawn(async move {
            if let Ok(ClaimOutcome::Claimed) = answer.await {
                held.release().await;
            }
        });
    }
}

/// A message that is the caller's to process.
///
/// It is extended in the background, also while its handler computes. If it is dropped, it is released in the background.
#[must_use = "a claim that is dropped is given up"]
pub struct Claim {
    held: Arc<Held>,
    window: Duration,
    lost: watch::Receiver<Option<Loss>>,
    /// Gone once the claim is settled.
    keeper: Option<Keeper>,
    /// The message is processed, and is being marked.
    is_done: bool,
    runtime: Handle,
}

/// The task that extends a claim.
struct Keeper {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Keeper {
    /// Lets it finish what it has begun: an extension that arrives after a release would bring the claim back.
    async fn stop(self) {
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim").field("key", &self.held.key).finish_non_exhaustive()
    }
}

impl Claim {
    fn keep(held: Arc<Held>, window: Duration, asked: Instant, runtime: Handle) -> Self {
        let (lose, lost) = watch::channel(None);
        let (stop, stopped) = oneshot::channel();
        let task = runtime.spawn(extend(Arc::clone(&held), asked, stopped, lose));
        Self { held, window, lost, keeper: Some(Keeper { stop, task }), is_done: false, runtime }
    }

    /// Whose message it is.
    pub fn key(&self) -> &DedupKey {
        &self.held.key
    }

    /// Returns once the claim is lost: then stop what it was for. Never returns if it is not.
    pub async fn lost(&mut self) -> Loss {
        self.lost.wait().await
    }

    /// Says that the message is processed. While the store does not answer, this is tried for as long as a claim lasts; also if
    /// nobody waits for it any more.
    ///
    /// # Errors
    ///
    /// If the store fails. The claim then stays until it expires.
    pub async fn mark(mut self) -> Result<Hold, DedupError> {
        self.is_done = true;
        let marked = self.held.mark(self.window, &mut self.lost).await;
        // An extension that comes late finds the mark, or somebody else's claim, and changes nothing.
        self.keeper = None;
        marked
    }

    /// Gives the claim up: the message was not processed, and others may have it at once.
    ///
    /// # Errors
    ///
    /// If the store fails. The claim then stays until it expires.
    pub async fn release(mut self) -> Result<(), DedupError> {
        if let Some(keeper) = self.keeper.take() {
            keeper.stop().await;
        }
        self.held.store.release(&self.held.key, &self.held.token).await
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let Some(keeper) = self.keeper.take() else { return };
        let (held, window, mut lost, is_done) = (Arc::clone(&self.held), self.window, self.lost.clone(), self.is_done);
        self.runtime.spawn(async move {
            if is_done && let Err(error) = held.mark(window, &mut lost).await {
                tracing::error!(consumer = held.key.consumer(), id = held.key.id(), %error, "a processed message is not marked");
            }
            keeper.stop().await;
            if !is_done {
                held.release().await;
            }
        });
    }
}

/// Waiting for a loss.
trait Lost {
    async fn wait(&mut self) -> Loss;
}

impl Lost for watch::Receiver<Option<Loss>> {
    async fn wait(&mut self) -> Loss {
        match self.wait_for(Option::is_some).await.map(|loss| *loss) {
            Ok(Some(loss)) => loss,
            // Nobody extends it any more: it is settled, or the runtime ends.
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }
}

/// Extends a claim each time a third of it has passed. It ends, by this process's clock, a claim's duration after the last
/// extension that succeeded was asked for: never later than by the store's clock.
async fn extend(
    held: Arc<Held>,
    asked: Instant,
    mut stopped: oneshot::Receiver<()>,
    lose: watch::Sender<Option<Loss>>,
) {
    let Held { store, key, token, claim } = &*held;
    let (mut end, mut next) = (asked + *claim, asked + *claim / 3);
    loop {
        tokio::select! {
            biased;
            _ = &mut stopped => return,
            () = sleep_until(next.min(end)) => {}
        }
        let asked = Instant::now();
        let why = match timeout_at(end, store.extend(key, token, *claim)).await {
            Ok(Ok(Hold::Held)) => {
                (end, next) = (asked + *claim, asked + *claim / 3);
                continue;
            }
            Ok(Ok(Hold::Lost)) => {
                lose.send_replace(Some(Loss::Taken));
                return;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the store does not answer".to_owned(),
        };
        tracing::debug!(consumer = key.consumer(), id = key.id(), why, "a claim could not be extended");
        next = Instant::now() + *claim / 10;
        if Instant::now() >= end {
            lose.send_replace(Some(Loss::Expired));
            return;
        }
    }
}
