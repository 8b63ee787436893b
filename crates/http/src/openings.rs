//! How many connections are opening at once.
//!
//! When all pages of a server come back together, thousands of connections are accepted in a moment. Each needs its most
//! memory while its first request is answered, and little after that. So the next one is accepted when one of those that
//! are opening has its first answer, or waits for its client. What takes longer, such as a long-poll, counts for
//! [`LONGEST`] only: nobody can hold up the others by being slow.

use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout_at},
};

use crate::state::State;

/// So many connections are opening at once.
const MOST: usize = 256;

/// A connection counts as opening for so long at most.
const LONGEST: Duration = Duration::from_millis(100);

/// The connections that are opening. Belongs to whoever accepts.
pub(crate) struct Openings {
    places: Arc<Semaphore>,
    /// In the order in which they were accepted. Some have opened since.
    opening: VecDeque<(Instant, Weak<State>)>,
}

impl Openings {
    pub(crate) fn new() -> Self {
        Self { places: Arc::new(Semaphore::new(MOST)), opening: VecDeque::new() }
    }

    /// Waits until one more may open.
    pub(crate) async fn wait(&mut self) -> Option<OwnedSemaphorePermit> {
        loop {
            while let Some((accepted, state)) = self.opening.front() {
                let state = state.upgrade();
                let Some(opening) = state.filter(|state| state.is_opening()) else {
                    self.opening.pop_front();
                    continue;
                };
                if accepted.elapsed() < LONGEST {
                    break;
                }
                opening.opened();
                self.opening.pop_front();
            }
            let until = self.opening.front().map_or_else(Instant::now, |(accepted, _)| *accepted) + LONGEST;
            if let Ok(place) = timeout_at(until, Arc::clone(&self.places).acquire_owned()).await {
                // It is never closed.
                return place.ok();
            }
        }
    }

    /// A connection opens, and has the place that was waited for.
    pub(crate) fn open(&mut self, state: &Arc<State>, place: Option<OwnedSemaphorePermit>) {
        if let Some(place) = place {
            state.opens(place);
            self.opening.push_back((Instant::now(), Arc::downgrade(state)));
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    async fn open(openings: &mut Openings, count: usize) -> Vec<Arc<State>> {
        let mut opened = Vec::new();
        for _ in 0..count {
            let (place, state) = (openings.wait().await, Arc::new(State::new()));
            openings.open(&state, place);
            opened.push(state);
        }
        opened
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_connection_waits_until_one_has_opened_or_is_gone() {
        let mut openings = Openings::new();
        let mut opening = open(&mut openings, MOST).await;
        for has_opened in [true, false] {
            let soon = LONGEST / 4;
            assert!(timeout(soon, openings.wait()).await.is_err(), "all places are taken");
            if has_opened {
                opening[MOST / 2].opened();
            } else {
                opening.pop();
            }
            let next = timeout(Duration::ZERO, open(&mut openings, 1)).await.expect("there is a place");
            opening.extend(next);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn connections_that_take_long_hold_up_nobody() {
        let mut openings = Openings::new();
        let begun = Instant::now();
        let slow = open(&mut openings, MOST * 20).await;
        assert!(begun.elapsed() <= LONGEST * 20, "{:?} for {} connections", begun.elapsed(), slow.len());
        assert!(openings.opening.len() <= MOST);
    }
}
