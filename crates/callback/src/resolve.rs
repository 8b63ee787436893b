//! From a name to the addresses that are connected to, judged on the way.
//!
//! The HTTP client asks here and nowhere else, and connects to what it is told: between the check and the connection there
//! is no second look at DNS that could answer otherwise.

use std::{
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    sync::Arc,
};

use async_trait::async_trait;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::sync::Semaphore;

use crate::guard::Guard;

/// How many names are looked up at once. Each takes a thread until DNS answers, in a pool that others need too.
const MAX_LOOKUPS: usize = 64;

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
}

impl Default for SystemResolver {
    fn default() -> Self {
        Self { room: Arc::new(Semaphore::new(MAX_LOOKUPS)) }
    }
}

#[async_trait]
impl Resolver for SystemResolver {
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let place = Arc::clone(&self.room).acquire_owned().await.map_err(io::Error::other)?;
        let name = name.to_owned();
        let lookup = tokio::task::spawn_blocking(move || {
            // Kept until DNS has answered, not until the caller loses patience: the thread is taken that long.
            let _place = place;
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
