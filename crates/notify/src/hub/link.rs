//! A link: the stream of one page. It has no task and no channel of its own: whoever writes to the connection asks it for the
//! next frames.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
};

use relais_core::StoreError;
use uuid::Uuid;

use crate::{
    AudienceKey, Delivery, Identity, LogPosition, UserScope,
    frame::{Bye, Frame},
    hub::{Hub, tail::Outgoing},
};

/// A page of entries while a link catches up.
const PAGE: usize = 200;

/// What the hub knows of a link.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) id: Uuid,
    pub(crate) user: String,
    state: Mutex<LinkState>,
}

#[derive(Debug)]
struct LinkState {
    scope: Arc<UserScope>,
    /// What the user's token says, beside what is declared.
    claims: Arc<[AudienceKey]>,
    queue: VecDeque<Arc<Frame>>,
    bytes: usize,
    /// The last entry that was queued: an entry may be for several of the link's keys.
    last: LogPosition,
    bye: Option<Bye>,
    waker: Option<Waker>,
}

impl Link {
    pub(crate) fn new(user: String, claims: Vec<AudienceKey>, scope: UserScope) -> Self {
        let state = LinkState {
            scope: Arc::new(scope),
            claims: claims.into(),
            queue: VecDeque::new(),
            bytes: 0,
            last: 0,
            bye: None,
            waker: None,
        };
        Self { id: Uuid::now_v7(), user, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn scope(&self) -> Arc<UserScope> {
        Arc::clone(&self.state().scope)
    }

    pub(crate) fn set_scope(&self, scope: Arc<UserScope>) {
        self.state().scope = scope;
    }

    pub(crate) fn claims(&self) -> Arc<[AudienceKey]> {
        Arc::clone(&self.state().claims)
    }

    pub(crate) fn set_claims(&self, claims: &[AudienceKey]) {
        self.state().claims = claims.into();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.state().bye.is_some()
    }

    /// Queues a frame that has no place in the log.
    pub(crate) fn tell(&self, frame: Arc<Frame>) {
        let mut state = self.state();
        if state.bye.is_none() {
            state.queue.push_back(frame);
            state.wake();
        }
    }

    /// Queues a frame for the page; a link whose reader does not keep up ends. Whether it was queued.
    pub(crate) fn queue(&self, position: LogPosition, frame: &Arc<Frame>, most: usize, most_bytes: usize) -> bool {
        let mut state = self.state();
        if state.bye.is_some() || state.last >= position {
            return false;
        }
        if state.queue.len() >= most || (state.bytes > 0 && state.bytes + frame.data.len() > most_bytes) {
            // What is queued has not been sent: the page resumes before it.
            state.queue.clear();
            state.end(Bye::Slow);
            return false;
        }
        state.last = position;
        state.bytes += frame.data.len();
        state.queue.push_back(Arc::clone(frame));
        state.wake();
        true
    }

    pub(crate) fn end(&self, bye: Bye) {
        self.state().end(bye);
    }

    /// What is queued, or why it ends.
    fn poll_queue(&self, waker: &Waker) -> Poll<Result<Vec<Arc<Frame>>, Bye>> {
        let mut state = self.state();
        if !state.queue.is_empty() {
            state.bytes = 0;
            return Poll::Ready(Ok(std::mem::take(&mut state.queue).into()));
        }
        if let Some(bye) = state.bye {
            return Poll::Ready(Err(bye));
        }
        if !state.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            state.waker = Some(waker.clone());
        }
        Poll::Pending
    }
}

impl LinkState {
    fn end(&mut self, bye: Bye) {
        self.bye.get_or_insert(bye);
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// Where a link is.
#[derive(Debug)]
enum Place {
    /// It reads what was missed, after this position.
    CatchingUp(LogPosition),
    /// The hub queues what is new.
    Live,
    /// It has said why it ends.
    Ended,
}

/// An open link. Dropped, it is closed.
#[derive(Debug)]
pub struct OpenLink {
    hub: Arc<Hub>,
    link: Arc<Link>,
    place: Place,
    first: Vec<Arc<Frame>>,
    /// What was read of what was missed, and not given away yet.
    found: Option<Vec<Outgoing>>,
}

impl OpenLink {
    pub(crate) fn new(hub: Arc<Hub>, link: Arc<Link>, after: Option<LogPosition>, first: Vec<Arc<Frame>>) -> Self {
        let place = match after {
            Some(position) => Place::CatchingUp(position),
            None => Place::Live,
        };
        Self { hub, link, place, first, found: None }
    }

    /// The link's id.
    pub fn id(&self) -> Uuid {
        self.link.id
    }

    /// The link's user, as the last token says it.
    pub fn identity(&self) -> Identity {
        Identity { user: self.link.user.clone(), audiences: self.link.claims().to_vec(), expires: None }
    }

    /// The next frames, in their order; none when the link has ended. Nothing is lost, and nothing comes twice, if it is dropped
    /// while it waits.
    pub async fn next(&mut self) -> Option<Vec<Arc<Frame>>> {
        if !self.first.is_empty() {
            return Some(std::mem::take(&mut self.first));
        }
        if self.is_behind() {
            // A link catches up once and then waits for long: what it needs for the one is not kept for the other.
            let missed = Box::pin(self.missed()).await;
            if !missed.is_empty() {
                return Some(missed);
            }
        }
        if matches!(self.place, Place::Ended) {
            return None;
        }
        let link = &self.link;
        let queued = std::future::poll_fn(|context| link.poll_queue(context.waker())).await;
        Some(match queued {
            Ok(frames) => frames,
            Err(bye) => self.end(bye),
        })
    }

    /// The next frames that were missed; none when the link waits for what is new.
    pub(crate) async fn missed(&mut self) -> Vec<Arc<Frame>> {
        while self.is_behind() {
            match self.catch_up().await {
                Ok(frames) if frames.is_empty() => {}
                Ok(frames) => return frames,
                Err(error) => {
                    tracing::debug!(%error, "a link ends: the log could not be read");
                    return self.end(Bye::Stopping);
                }
            }
        }
        Vec::new()
    }

    fn is_behind(&self) -> bool {
        self.found.is_some() || matches!(self.place, Place::CatchingUp(_))
    }

    /// The next page of what was missed.
    async fn catch_up(&mut self) -> Result<Vec<Arc<Frame>>, StoreError> {
        if let (None, Place::CatchingUp(after)) = (&self.found, &self.place) {
            let page = self.hub.read_missed(&self.link, *after, PAGE).await?;
            // Both at once: the hub may have made the link live, so this page must not be read again.
            self.place = page.next.map_or(Place::Live, Place::CatchingUp);
            self.found = Some(page.entries);
        }
        let acknowledged = match &self.found {
            Some(entries) => self.hub.acknowledged_among(&self.link.user, entries).await?,
            None => Vec::new(),
        };
        let mut entries = self.found.take().unwrap_or_default();
        entries.retain(|entry| self.hub.is_still_sent(entry, &acknowledged));
        self.hub.note_sent(&self.link.user, &entries);
        Ok(entries.into_iter().map(|entry| entry.frame).collect())
    }

    fn end(&mut self, bye: Bye) -> Vec<Arc<Frame>> {
        self.place = Place::Ended;
        metrics::counter!("relais_notification_links_ended_total", "reason" => bye.as_str()).increment(1);
        self.found = None;
        vec![Frame::bye(bye)]
    }
}

impl Drop for OpenLink {
    fn drop(&mut self) {
        self.hub.close(&self.link);
    }
}

/// Entries that a link has missed.
#[derive(Debug)]
pub(crate) struct MissedPage {
    pub(crate) entries: Vec<Outgoing>,
    /// Where to go on; none if the link is live now.
    pub(crate) next: Option<LogPosition>,
}

impl Outgoing {
    /// That it was sent, for the ledger.
    pub(crate) fn delivery(&self, user: &str, all: bool) -> Option<Delivery> {
        let message = self.message.as_ref().filter(|message| all || message.ack_required)?;
        Some(Delivery { id: message.id, user: user.to_owned() })
    }
}
