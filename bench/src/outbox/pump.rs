//! What moves the rows of an outbox: the relay by polling, the relay by capture, or a capture of the table.
//!
//! Where processor time and memory count, it runs in a process of its own: this program again, with `--pump`. That process
//! says `ready`, reads a line, and says how long it took until all rows were through.

use std::{
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use relais_capture::{Capture, CaptureActivity, CaptureHandle, CaptureOptions, CapturedDatabase};
use relais_message::{Durability, PublishOutcome, RoutedMessage, Sink, Template};
#[cfg(feature = "kafka")]
use relais_messaging::kafka::{KafkaSink, KafkaSinkOptions};
use relais_messaging::{
    rabbitmq::{self, BrokerOptions, RabbitMqSink},
    redis::{RedisSink, RedisSinkOptions},
};
use relais_outbox::{Activity, Mode, Outbox, Relay, RelayHandle, RelayOptions};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    sync::watch,
    task::JoinHandle,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{EXCHANGE, PATIENCE, QUEUE, TABLE};
use crate::{cpu, show};

/// How rows are moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// The relay reads the table.
    Polling,
    /// The relay reads the log and marks rows.
    Capture,
    /// The table is captured as any other, without marks.
    Table,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Polling => "relay by polling",
            Self::Capture => "relay by capture, marks rows",
            Self::Table => "capture of the table, no marks",
        }
    }
}

/// Where messages go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Broker {
    /// To an exchange of RabbitMQ: the URL.
    RabbitMq(String),
    /// To a stream of Redis: the URL.
    Redis(String),
    /// To a topic of Kafka: the brokers.
    #[cfg(feature = "kafka")]
    Kafka(String),
}

impl Broker {
    fn destination(&self) -> &'static str {
        match self {
            Self::RabbitMq(_) => EXCHANGE,
            Self::Redis(_) => QUEUE,
            #[cfg(feature = "kafka")]
            Self::Kafka(_) => QUEUE,
        }
    }

    async fn sink(&self) -> Result<Arc<dyn Sink>> {
        Ok(match self {
            Self::RabbitMq(url) => {
                let broker = rabbitmq::Broker::new(url, BrokerOptions::default())?;
                broker.first_attempt().await;
                Arc::new(RabbitMqSink::new(broker))
            }
            Self::Redis(url) => {
                let sink = RedisSink::new(url, RedisSinkOptions::default())?;
                sink.ping().await?;
                Arc::new(sink)
            }
            #[cfg(feature = "kafka")]
            Self::Kafka(brokers) => Arc::new(KafkaSink::new(&KafkaSinkOptions::new(brokers))?),
        })
    }
}

/// What a process of its own is told.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    /// How rows are moved.
    pub kind: Kind,
    /// The database.
    pub url: String,
    /// The slot; made of other names if there is none.
    pub slot: Option<String>,
    /// Where messages go; they are only counted if there is none.
    pub broker: Option<Broker>,
    /// So many rows are expected.
    pub rows: u64,
    /// Whether it begins at once, with a sink that takes nothing before the word is given.
    pub held: bool,
}

/// What moves rows, before it begins.
pub enum Pump {
    Relay(Box<Relay>, Activity),
    Table(Box<Capture>),
}

impl Pump {
    pub async fn new(order: &Order, sink: Arc<dyn Sink>) -> Result<Self> {
        let mode = match order.kind {
            Kind::Table => {
                let mut options = CaptureOptions::new("bench", &[TABLE])?;
                options.initial_snapshot = false;
                options.publish_timeout = PATIENCE;
                options.slot = order.slot.clone().unwrap_or(options.slot);
                options.destination =
                    order.broker.as_ref().map(|broker| Template::parse(broker.destination())).transpose()?;
                let database = CapturedDatabase::connect(&order.url).await?;
                return Ok(Self::Table(Box::new(Capture::new(database, sink, options))));
            }
            Kind::Polling => Mode::Polling,
            Kind::Capture => Mode::Capture,
        };
        let mut options = RelayOptions { mode, ..RelayOptions::new("bench")? };
        if let Some(broker) = &order.broker {
            options.destination = Template::parse(broker.destination())?;
        }
        if order.held {
            // It waits for its sink while all rows are written.
            (options.lease, options.publish_timeout) = (PATIENCE, PATIENCE);
        }
        options.capture.slot.clone_from(&order.slot);
        options.capture.max_retained_wal = 1 << 40;
        let store = relais_outbox::open(&order.url, &Outbox::new(TABLE)?).await?;
        let activity = if order.kind == Kind::Polling { Activity::Polling } else { Activity::Capturing };
        Ok(Self::Relay(Box::new(Relay::new(store, sink, options).await?), activity))
    }

    pub fn start(self) -> Running {
        let stop = CancellationToken::new();
        match self {
            Self::Relay(relay, activity) => {
                let handle = Handle::Relay(relay.handle(), activity);
                Running { handle, task: tokio::spawn(relay.run(stop.clone())), stop }
            }
            Self::Table(capture) => {
                let handle = Handle::Table(capture.handle());
                Running { handle, task: tokio::spawn(capture.run(stop.clone())), stop }
            }
        }
    }
}

enum Handle {
    Relay(RelayHandle, Activity),
    Table(CaptureHandle),
}

/// What moves rows, once it has begun.
pub struct Running {
    handle: Handle,
    task: JoinHandle<()>,
    stop: CancellationToken,
}

impl Running {
    /// Waits until it does what it was started for.
    pub async fn until_active(&self) -> Result<()> {
        let active = async {
            match &self.handle {
                Handle::Relay(handle, activity) => handle.until(|stats| stats.activity == *activity).await,
                Handle::Table(handle) => {
                    handle.until(|stats| stats.activity == CaptureActivity::Streaming).await;
                }
            }
        };
        timeout(PATIENCE, active).await.context("nothing moves the rows")
    }

    /// Waits until so many rows are published, and marked where they are marked.
    async fn until_moved(&self, rows: u64) -> Result<()> {
        let moved = async {
            match &self.handle {
                Handle::Relay(handle, _) => handle.until(|stats| stats.published >= rows).await,
                Handle::Table(handle) => handle.until(|stats| stats.changes >= rows).await,
            }
        };
        timeout(PATIENCE, moved).await.context("not all rows were published")?;
        // What one kind is measured for must not be done by another.
        if let Handle::Relay(handle, activity) = &self.handle {
            let stats = handle.stats();
            ensure!(stats.activity == *activity, "the relay does something else: {stats:?}");
        }
        Ok(())
    }

    pub async fn stop(self) -> Result<()> {
        self.stop.cancel();
        Ok(self.task.await?)
    }
}

/// A sink that only counts.
#[derive(Default)]
struct CountingSink(AtomicU64);

#[async_trait]
impl Sink for CountingSink {
    fn durability(&self) -> Durability {
        Durability::HandedOver
    }

    async fn publish(&self, batch: Vec<RoutedMessage>) -> Vec<PublishOutcome> {
        self.0.fetch_add(batch.len() as u64, Ordering::Relaxed);
        vec![PublishOutcome::Confirmed; batch.len()]
    }

    async fn close(&self) {}
}

/// Another sink, once it is open.
struct HeldSink {
    sink: Arc<dyn Sink>,
    open: watch::Receiver<bool>,
}

#[async_trait]
impl Sink for HeldSink {
    fn durability(&self) -> Durability {
        self.sink.durability()
    }

    async fn publish(&self, batch: Vec<RoutedMessage>) -> Vec<PublishOutcome> {
        if self.open.clone().wait_for(|open| *open).await.is_err() {
            return vec![PublishOutcome::Refused("it is over".to_owned()); batch.len()];
        }
        self.sink.publish(batch).await
    }

    async fn close(&self) {
        self.sink.close().await;
    }
}

/// The process of its own.
pub async fn run(order: &str) -> Result<()> {
    let order: Order = serde_json::from_str(order)?;
    let (open, opened) = watch::channel(false);
    let counting = Arc::<CountingSink>::default();
    let sink: Arc<dyn Sink> = match &order.broker {
        Some(broker) => broker.sink().await?,
        None => Arc::<CountingSink>::clone(&counting),
    };
    let pump = Pump::new(&order, Arc::new(HeldSink { sink, open: opened })).await?;
    let (begin, running) = if order.held {
        let running = pump.start();
        running.until_active().await?;
        show("ready");
        ensure!(heard().await? > 0, "nobody gave the word");
        (Instant::now(), running)
    } else {
        show("ready");
        ensure!(heard().await? > 0, "nobody gave the word");
        (Instant::now(), pump.start())
    };
    open.send_replace(true);
    if order.rows > 0 {
        running.until_moved(order.rows).await?;
        let time = begin.elapsed();
        let count = counting.0.load(Ordering::Relaxed);
        ensure!(order.broker.is_some() || count == order.rows, "{count} messages came of {} rows", order.rows);
        show(&time.as_secs_f64().to_string());
    }
    // Until nobody wants anything any more.
    heard().await?;
    running.stop().await
}

/// Waits for a line of the parent; how long it is.
async fn heard() -> Result<usize> {
    Ok(tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await??)
}

/// A process of its own, as its parent sees it; ended when dropped.
pub struct PumpProcess {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    order: Order,
}

/// What a process of its own came to.
#[derive(Debug, Clone, Copy)]
pub struct Moved {
    pub time: Duration,
    /// Its processor time.
    pub cpu: Duration,
    /// The most memory it had, in MB.
    pub peak: f64,
}

impl PumpProcess {
    /// Starts it, and waits until it is ready.
    pub async fn start(order: Order) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--pump", &serde_json::to_string(&order)?]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().context("start a process")?;
        let lines = BufReader::new(child.stdout.take().context("no output")?).lines();
        let mut process = Self { child, lines, order };
        ensure!(process.line().await? == "ready", "the process is not ready");
        Ok(process)
    }

    async fn line(&mut self) -> Result<String> {
        loop {
            let line = timeout(PATIENCE, self.lines.next_line()).await.context("the process says nothing")??;
            let line = line.with_context(|| format!("the process ended: {:?}", self.order))?;
            if !line.is_empty() {
                return Ok(line);
            }
        }
    }

    fn id(&self) -> Result<u32> {
        self.child.id().context("the process has ended")
    }

    /// Gives the word.
    pub async fn go(&mut self) -> Result<()> {
        let stdin = self.child.stdin.as_mut().context("no input")?;
        stdin.write_all(b"go\n").await?;
        Ok(stdin.flush().await?)
    }

    /// Gives the word, and waits until all rows are through.
    pub async fn move_all(&mut self) -> Result<Moved> {
        let before = cpu::of_process(self.id()?)?;
        self.go().await?;
        let time = Duration::from_secs_f64(self.line().await?.parse()?);
        let cpu = cpu::of_process(self.id()?)?.saturating_sub(before);
        Ok(Moved { time, cpu, peak: cpu::peak_megabytes(self.id()?)? })
    }

    pub async fn stop(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        let ended = timeout(PATIENCE, self.child.wait()).await.context("the process does not end")??;
        ensure!(ended.success(), "the process failed: {ended}");
        Ok(())
    }
}
