//! A bus transport between processes that share only a store, on the connection of its wake-ups.
//!
//! Texts of a store are small and may be lost, like a notification. Every process receives every event; a process that
//! did not listen for a while gets a notice that it may have missed some.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use relais_bus::{BusError, Event, Features, Inbox, Transport};
use relais_core::{Store, Wakeup, WakeupListener, wakeup};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

/// The timeout of the store to listen, and to broadcast.
const PATIENCE: Duration = Duration::from_secs(5);

/// The prefix of a text that is no event: a bus begins to listen.
const MARK: &str = "begin:";

/// How many texts may wait to be delivered in this process.
const WAITING: usize = 10_000;

/// Sends events by [`MaintenanceStore::broadcast`](relais_core::MaintenanceStore::broadcast).
pub struct StoreTransport {
    store: Arc<dyn Store>,
    listener: Arc<BroadcastListener>,
    running: Mutex<Option<JoinHandle<()>>>,
}

enum Notification {
    Text(String),
    Listening,
    Lost(String),
}

/// The listener of the store.
struct BroadcastListener {
    /// Receives the texts; none while the bus is stopped.
    out: Mutex<Option<mpsc::Sender<Notification>>>,
    /// Whether wake-ups of other processes arrive.
    hears: watch::Sender<bool>,
    /// Whether texts were dropped because this process did not keep up.
    overrun: AtomicBool,
}

impl BroadcastListener {
    fn pass_on(&self, heard: Notification) {
        let out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(out) = &*out
            && let Err(mpsc::error::TrySendError::Full(_)) = out.try_send(heard)
        {
            self.overrun.store(true, Ordering::Release);
        }
    }
}

impl WakeupListener for BroadcastListener {
    fn wake(&self, _: &Wakeup) {}

    fn told(&self, text: &str) {
        self.pass_on(Notification::Text(text.to_owned()));
    }

    fn hears(&self, hears: Result<(), &str>) {
        self.hears.send_replace(hears.is_ok());
        self.pass_on(match hears {
            Ok(()) => Notification::Listening,
            Err(why) => Notification::Lost(why.to_owned()),
        });
    }
}

impl StoreTransport {
    /// Over a store whose wake-ups are relayed, which the engine does while it runs.
    pub fn new(store: Arc<dyn Store>) -> Self {
        let listener = Arc::new(BroadcastListener {
            out: Mutex::default(),
            hears: watch::channel(false).0,
            overrun: AtomicBool::new(false),
        });
        store.listen(Arc::clone(&listener) as _);
        Self { store, listener, running: Mutex::default() }
    }

    async fn tell(&self, texts: Vec<String>) -> Result<(), BusError> {
        if let Some(text) = texts.iter().find(|text| text.len() > wakeup::MAX_TEXT) {
            return Err(BusError::TooLarge { size: text.len(), limit: wakeup::MAX_TEXT });
        }
        match tokio::time::timeout(PATIENCE, self.store.broadcast(texts)).await {
            Ok(told) => told.map_err(|error| BusError::transport("publish", error)),
            Err(late) => Err(BusError::transport("publish", late)),
        }
    }
}

#[async_trait]
impl Transport for StoreTransport {
    fn name(&self) -> &'static str {
        "postgresql notify"
    }

    fn features(&self) -> Features {
        Features {
            at_least_once: false,
            shares_work: false,
            counts_receivers: false,
            in_process_payloads: false,
            keeps_dead_letters: false,
            catches_up: false,
            max_event_bytes: Some(wakeup::MAX_TEXT),
        }
    }

    async fn start(&self, inbox: Inbox) -> Result<(), BusError> {
        let (out, mut heard) = mpsc::channel(WAITING);
        *self.listener.out.lock().unwrap_or_else(PoisonError::into_inner) = Some(out);
        let mut hears = self.listener.hears.subscribe();
        if tokio::time::timeout(PATIENCE, hears.wait_for(|hears| *hears)).await.is_err() {
            return Err(BusError::transport("listen", "the store does not hear other processes yet"));
        }
        // Texts from before the start may still be on their way. All of them have arrived when our own text comes back.
        let mark = format!("{MARK}{}", uuid::Uuid::now_v7());
        self.tell(vec![mark.clone()]).await?;
        let until_mark = async {
            while let Some(next) = heard.recv().await {
                match next {
                    Notification::Text(text) if text == mark => return Ok(()),
                    Notification::Text(_) | Notification::Listening => {}
                    Notification::Lost(why) => return Err(BusError::transport("listen", why)),
                }
            }
            Err(BusError::NotRunning)
        };
        match tokio::time::timeout(PATIENCE, until_mark).await {
            Ok(heard) => heard?,
            Err(late) => return Err(BusError::transport("listen", late)),
        }
        let delivering = tokio::spawn(deliver(heard, inbox, Arc::clone(&self.listener)));
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(delivering);
        Ok(())
    }

    async fn stop(&self) {
        self.listener.out.lock().unwrap_or_else(PoisonError::into_inner).take();
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(running) = running {
            running.abort();
            // Nothing is delivered after that.
            let _ = running.await;
        }
    }

    async fn publish(&self, event: &Event) -> Result<usize, BusError> {
        self.tell(vec![event.to_json()?]).await?;
        Ok(1)
    }

    async fn publish_all(&self, events: &[Event]) -> Result<(), BusError> {
        self.tell(events.iter().map(Event::to_json).collect::<Result<_, _>>()?).await
    }
}

/// Delivers received texts until the bus stops.
async fn deliver(mut heard: mpsc::Receiver<Notification>, inbox: Inbox, listener: Arc<BroadcastListener>) {
    while let Some(heard) = heard.recv().await {
        if listener.overrun.swap(false, Ordering::AcqRel) {
            inbox.disconnected(&BusError::transport("keep up", "this process was told more than it could take")).await;
            inbox.connected(true).await;
        }
        match heard {
            Notification::Text(text) if text.starts_with(MARK) => {}
            Notification::Text(text) => match Event::from_json(&text) {
                Ok(event) => inbox.deliver(event).await,
                Err(error) => tracing::warn!(error = %error, "something that is no event was told; ignored"),
            },
            Notification::Listening => inbox.connected(true).await,
            Notification::Lost(why) => inbox.disconnected(&BusError::transport("listen", why)).await,
        }
    }
}

impl fmt::Debug for StoreTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreTransport")
    }
}
