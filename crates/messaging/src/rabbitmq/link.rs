//! A connection that is open, and its channels, lent to one user at a time.

use std::{
    future::Future,
    sync::{Arc, Mutex, PoisonError},
};

use lapin::{Channel, Connection, options::ConfirmSelectOptions};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::wire::Wire;

/// An open connection.
pub(super) struct Link {
    connection: Connection,
    pub(super) wire: Wire,
    /// Channels that nobody uses, the last used one last.
    idle: Mutex<Vec<Channel>>,
    turns: Arc<Semaphore>,
}

impl Link {
    pub(super) fn new(connection: Connection, wire: Wire, channels: usize) -> Self {
        let turns = Arc::new(Semaphore::new(channels.max(1)));
        Self { connection, wire, idle: Mutex::default(), turns }
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Whether it is of any use. The keeper may not have heard yet.
    pub(super) fn is_open(&self) -> bool {
        self.connection.status().connected() && !self.wire.gone.is_cancelled()
    }

    /// Waits for something, but no longer than the connection lives: the library does not always tell those who wait. What
    /// is there before the end counts.
    pub(super) async fn unless_gone<T>(&self, what: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = what => Some(done),
            () = self.wire.gone.cancelled() => None,
        }
    }

    /// Opens a channel, which is closed when it is dropped.
    pub(super) async fn open(&self) -> lapin::Result<Channel> {
        self.connection.create_channel().await
    }

    /// Lends a channel with confirmations on, once it is one's turn.
    pub(super) async fn lend(self: &Arc<Self>) -> lapin::Result<LentChannel> {
        // Never closed, so there is always a turn.
        let turn = Arc::clone(&self.turns).acquire_owned().await.ok();
        let idle = self.take_idle();
        let channel = match idle {
            Some(channel) => channel,
            None => {
                let channel = self.open().await?;
                channel.confirm_select(ConfirmSelectOptions::default()).await?;
                channel
            }
        };
        Ok(LentChannel { channel, link: Arc::clone(self), _turn: turn })
    }

    fn take_idle(&self) -> Option<Channel> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(channel) = idle.pop() {
            if channel.status().connected() {
                return Some(channel);
            }
        }
        None
    }
}

/// A channel that nobody else uses. Closed unless it is [given back](Self::give_back): whoever gives up half-way, or is
/// dropped, leaves a channel in which something may still be under way.
pub(super) struct LentChannel {
    channel: Channel,
    link: Arc<Link>,
    _turn: Option<OwnedSemaphorePermit>,
}

impl LentChannel {
    pub(super) fn channel(&self) -> &Channel {
        &self.channel
    }

    pub(super) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Nothing is under way in it.
    pub(super) fn give_back(self) {
        self.link.idle.lock().unwrap_or_else(PoisonError::into_inner).push(self.channel);
    }
}
