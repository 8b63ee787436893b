//! Keeps one connection to the broker, for as long as anybody has a [`Broker`](super::Broker).
//!
//! It connects, tells everybody, waits for the end of the connection, and connects again: soon if the last connection
//! was a good one, after growing pauses otherwise. Pauses are random within their length, so that many processes do not
//! all come back at the same moment.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use lapin::Event;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    BrokerOptions,
    error::{soft, words},
    link::Link,
    options::Target,
    tls::Tls,
    wire::{self, Wire},
};

/// How long the broker may take to say goodbye.
const GOODBYE: Duration = Duration::from_secs(1);

/// What everybody knows of the connection.
#[derive(Clone)]
pub(super) enum Line {
    /// Nobody has needed it yet, or nobody does any more.
    Idle,
    /// There is none.
    Away { since: Instant, why: String },
    /// There is one.
    Up { since: Instant, link: Arc<Link> },
    /// There is one, and the broker reads nothing from it.
    Blocked { since: Instant, why: String },
}

/// Everything a keeper needs.
pub(super) struct Keeper {
    pub(super) target: Target,
    pub(super) tls: Option<Tls>,
    pub(super) options: BrokerOptions,
    pub(super) line: Arc<watch::Sender<Line>>,
    /// Cancelled when nobody needs the connection any more.
    pub(super) over: CancellationToken,
}

impl Keeper {
    /// Runs until it is over.
    pub(super) async fn run(self) {
        let over = self.over.clone();
        let mut link = None;
        tokio::select! {
            () = over.cancelled() => {}
            () = self.keep(&mut link) => {}
        }
        self.line.send_replace(Line::Idle);
        if let Some(link) = link {
            let _ = timeout(GOODBYE, link.connection().close(200, "not needed any more".into())).await;
            link.wire.cut.cancel();
        }
    }

    async fn keep(&self, current: &mut Option<Arc<Link>>) {
        let (mut away, mut pause, mut reported) = (Instant::now(), Duration::ZERO, None);
        loop {
            sleep(random_part_of(pause)).await;
            let why = match self.connect().await {
                Ok(link) => {
                    let link = current.insert(Arc::new(link));
                    let since = Instant::now();
                    tracing::info!(broker = %self.target, "connected to RabbitMQ");
                    self.line.send_replace(Line::Up { since, link: Arc::clone(link) });
                    let why = self.follow(link).await;
                    (*current, reported) = (None, None);
                    tracing::warn!(broker = %self.target, %why, "lost the connection to RabbitMQ");
                    away = Instant::now();
                    // One that did not last is as good as none: going on as if would only add to the trouble.
                    if since.elapsed() > self.options.longest_pause {
                        pause = Duration::ZERO;
                    }
                    why
                }
                Err(why) => {
                    // Said once, not at every attempt.
                    if reported.as_ref() != Some(&why) {
                        tracing::warn!(broker = %self.target, %why, "failed to connect to RabbitMQ");
                        reported = Some(why.clone());
                    }
                    why
                }
            };
            self.line.send_replace(Line::Away { since: away, why });
            pause = (pause * 2).clamp(self.options.first_pause, self.options.longest_pause);
        }
    }

    async fn connect(&self) -> Result<Link, String> {
        let wire = Wire::default();
        // Whatever ends this before there is a connection: the library would hold on to what there is.
        let cut = wire.cut.clone().drop_guard();
        let connecting = wire::connect(&self.target, self.tls.as_ref(), &self.options.connection_name, &wire);
        match timeout(self.options.connect_timeout, connecting).await {
            Ok(Ok(connection)) => {
                cut.disarm();
                Ok(Link::new(connection, wire, self.options.channels))
            }
            Ok(Err(error)) => Err(words(&error)),
            Err(_) => Err(format!("no connection within {:?}", self.options.connect_timeout)),
        }
    }

    /// Tells what becomes of a connection until it ends, and why it did.
    async fn follow(&self, link: &Arc<Link>) -> String {
        let mut events = link.connection().events_listener().boxed();
        let mut reason = None;
        loop {
            let event = tokio::select! {
                // Events first: the last one may say why it is gone.
                biased;
                Some(event) = events.next() => event,
                () = link.wire.gone.cancelled() => break,
            };
            let (since, link) = (Instant::now(), Arc::clone(link));
            match event {
                Event::ConnectionBlocked(why) => {
                    tracing::warn!(broker = %self.target, %why, "RabbitMQ takes no messages for now");
                    self.line.send_replace(Line::Blocked { since, why });
                }
                Event::ConnectionUnblocked => {
                    tracing::info!(broker = %self.target, "RabbitMQ takes messages again");
                    self.line.send_replace(Line::Up { since, link });
                }
                // Why a channel was closed is for whoever used it.
                Event::Error(error) if soft(&error).is_none() => {
                    reason = Some(words(&error));
                    if !link.is_open() {
                        break;
                    }
                }
                _ => {}
            }
        }
        reason.unwrap_or_else(|| "the broker closed the connection".to_owned())
    }
}

/// Between half of it and all of it.
fn random_part_of(pause: Duration) -> Duration {
    // Without randomness there is still a pause.
    let random = getrandom::u32().unwrap_or(u32::MAX);
    pause.mul_f64(0.5 + 0.5 * f64::from(random) / f64::from(u32::MAX))
}
