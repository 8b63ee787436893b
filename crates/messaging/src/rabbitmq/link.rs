//! A connection that is open, and its channels, lent to one user at a time.

use std::{
    collections::HashSet,
    future::Future,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use lapin::{
    Channel, Connection, ExchangeKind,
    options::{ConfirmSelectOptions, ExchangeDeclareOptions},
    protocol::AMQPSoftError,
    types::{FieldTable, ShortString},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{error::soft, wire::Wire};

/// How many numbers of channels may be found unusable before the connection is given up. A broker allows 2047 in all.
const MAX_STALE: usize = 256;

/// An open connection.
pub(super) struct Link {
    connection: Connection,
    pub(super) wire: Wire,
    /// Channels that nobody uses, the last used one last.
    idle: Mutex<Vec<Channel>>,
    turns: Arc<Semaphore>,
    /// Numbers of channels that were found unusable.
    stale: AtomicUsize,
    /// Exchanges that exist.
    exchanges: Mutex<HashSet<String>>,
}

impl Link {
    pub(super) fn new(connection: Connection, wire: Wire, channels: usize) -> Self {
        let turns = Arc::new(Semaphore::new(channels.max(1)));
        Self {
            connection,
            wire,
            idle: Mutex::default(),
            turns,
            stale: AtomicUsize::new(0),
            exchanges: Mutex::default(),
        }
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Whether it is of any use. The keeper may not have heard yet.
    pub(super) fn is_open(&self) -> bool {
        self.connection.status().connected() && !self.wire.gone.is_cancelled()
    }

    /// Waits for something, but no longer than the connection lives: the library does not always tell those who wait.
    /// What is there before the end counts.
    pub(super) async fn unless_gone<T>(&self, what: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = what => Some(done),
            () = self.wire.gone.cancelled() => None,
        }
    }

    /// Opens a channel, which is closed when it is dropped.
    pub(super) async fn open(&self) -> lapin::Result<Channel> {
        loop {
            match self.connection.create_channel().await {
                // The broker refuses no channel. The library remembers why it closed one, and holds that against the
                // next one with the same number; a connection that has used up its numbers is of no use any more.
                Err(error) if soft(&error).is_some() => {
                    if self.stale.fetch_add(1, Ordering::Relaxed) >= MAX_STALE {
                        self.wire.cut.cancel();
                        return Err(error);
                    }
                }
                opened => return opened,
            }
        }
    }

    /// Whether an exchange exists, as far as is known: one that did once is not asked for again.
    pub(super) async fn has_exchange(self: &Arc<Self>, exchange: &str) -> lapin::Result<bool> {
        let known = || self.exchanges.lock().unwrap_or_else(PoisonError::into_inner);
        if exchange.is_empty() || known().contains(exchange) {
            return Ok(true);
        }
        let exists = self.has_exchange_now(exchange).await?;
        if exists {
            known().insert(exchange.to_owned());
        }
        Ok(exists)
    }

    /// Whether an exchange exists. One that may not be asked for, or can not be called so, is taken for one that does:
    /// any other refusal is for whoever uses it.
    pub(super) async fn has_exchange_now(self: &Arc<Self>, exchange: &str) -> lapin::Result<bool> {
        let Ok(name) = ShortString::try_new(exchange) else { return Ok(true) };
        let lent = self.lend().await?;
        let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
        let declaring = lent.channel().exchange_declare(name, ExchangeKind::Direct, options, FieldTable::default());
        match declaring.await {
            Ok(()) => {
                lent.give_back();
                Ok(true)
            }
            Err(error) => soft(&error).map(|reason| *reason != AMQPSoftError::NOTFOUND).ok_or(error),
        }
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
