//! The limit of concurrent requests of one client: long-polls and streams last, and one client must not take all
//! connections.
//!
//! Only an authenticated client takes a place, so that a stranger cannot use up the places of a client.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use axum::{extract::Request, middleware::Next, response::Response};
use relais_core::ClientKey;
use relais_http::carrying;
use relais_protocol::ErrorNumber;

use crate::error::ApiError;

/// The places of all clients.
#[derive(Clone)]
pub(crate) struct Places {
    most: usize,
    taken: Arc<Mutex<HashMap<ClientKey, usize>>>,
}

impl Places {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, taken: Arc::default() }
    }

    fn take(&self, client: ClientKey) -> Option<Place> {
        let mut taken = self.taken();
        let count = taken.entry(client).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        drop(taken);
        Some(Place { client, places: self.clone() })
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<ClientKey, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One client's place, until it is dropped.
struct Place {
    client: ClientKey,
    places: Places,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        if let Some(count) = taken.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.client);
            }
        }
    }
}

/// Where a request keeps the place of its client, once that is known. In the request's extensions.
#[derive(Clone, Default)]
pub(crate) struct Slot(Arc<OnceLock<Place>>);

impl Slot {
    /// Takes a place, unless the request has one.
    pub(crate) fn take(&self, places: &Places, client: ClientKey) -> Result<(), ApiError> {
        if self.0.get().is_none() {
            let place = places.take(client);
            let place = place.ok_or_else(|| ApiError::new(ErrorNumber::TooManyRequests).retry_after(1))?;
            let _ = self.0.set(place);
        }
        Ok(())
    }
}

/// Keeps a request's place until its answer has left.
pub(crate) async fn hold(mut request: Request, next: Next) -> Response {
    let slot = Slot::default();
    request.extensions_mut().insert(slot.clone());
    let response = next.run(request).await;
    match slot.0.get() {
        Some(_) => carrying(response, slot),
        None => response,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concurrent_requests_of_a_client_are_limited() {
        let places = Places::new(2);
        let (first, second, third, other) = (Slot::default(), Slot::default(), Slot::default(), Slot::default());
        first.take(&places, ClientKey(1)).unwrap();
        first.take(&places, ClientKey(1)).unwrap();
        second.take(&places, ClientKey(1)).unwrap();
        assert_eq!(third.take(&places, ClientKey(1)).unwrap_err().number, ErrorNumber::TooManyRequests);
        other.take(&places, ClientKey(2)).unwrap();
        drop(first);
        third.take(&places, ClientKey(1)).unwrap();
        drop((second, third, other));
        assert!(places.taken().is_empty());
    }
}
