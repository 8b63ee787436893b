//! From a name to the addresses that are connected to, judged on the way.
//!
//! The HTTP client asks here and nowhere else, and connects to what it is told: between the check and the connection
//! there is no second look at DNS that could answer otherwise.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::sync::Semaphore;

use crate::guard::Guard;

/// How many lookups run at once. Each takes a thread until DNS answers, in a pool that others need too.
const MAX_LOOKUPS: usize = 128;

/// How many of those for one name: one whose DNS does not answer must not take all places.
const MAX_PER_NAME: usize = 2;

/// Knows the addresses of names. What it answers is judged by whoever asks.
#[async_trait]
pub trait Resolver: Send + Sync + 'static {
    /// All addresses of a name, the best first.
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>>;
}

/// The system's resolver.
#[derive(Debug, Clone)]
pub struct SystemResolver {
    room: Arc<Semaphore>,
    /// The names that are looked up at the moment.
    names: Arc<Mutex<HashMap<String, Arc<Semaphore>>>>,
}

impl SystemResolver {
    fn places_of(&self, name: &str) -> Arc<Semaphore> {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.retain(|_, places| Arc::strong_count(places) > 1);
        let places = names.entry(name.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(MAX_PER_NAME)));
        Arc::clone(places)
    }
}

impl Default for SystemResolver {
    fn default() -> Self {
        Self { room: Arc::new(Semaphore::new(MAX_LOOKUPS)), names: Arc::default() }
    }
}

#[async_trait]
impl Resolver for SystemResolver {
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        // The name's own place first: whoever waits for a slow name takes nothing from others.
        let own = self.places_of(name).acquire_owned().await.map_err(io::Error::other)?;
        let place = Arc::clone(&self.room).acquire_owned().await.map_err(io::Error::other)?;
        let name = name.to_owned();
        let lookup = tokio::task::spawn_blocking(move || {
            // Kept until DNS has answered, not until the caller loses patience: the thread is taken that long.
            let _places = (own, place);
            (name.as_str(), 0).to_socket_addrs().map(|found| found.map(|address| address.ip()).collect())
        });
        lookup.await.map_err(io::Error::other)?
    }
}

/// The name has no address, or DNS does not answer.
#[derive(Debug, thiserror::Error)]
#[error("the name {0} does not resolve")]
pub(crate) struct Unresolved(String);

/// Yields only addresses that may be connected to.
pub(crate) struct JudgingResolver {
    pub guard: Arc<Guard>,
    pub resolver: Arc<dyn Resolver>,
}

impl Resolve for JudgingResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (guard, resolver) = (Arc::clone(&self.guard), Arc::clone(&self.resolver));
        Box::pin(async move {
            let name = name.as_str();
            let addresses = resolver.resolve(name).await.unwrap_or_default();
            if addresses.is_empty() {
                return Err(Unresolved(name.to_owned()).into());
            }
            guard.judge_answer(name, &addresses)?;
            // Port 0 stands for that of the URL.
            let addresses: Addrs = Box::new(addresses.into_iter().map(|address| SocketAddr::new(address, 0)));
            Ok(addresses)
        })
    }
}
