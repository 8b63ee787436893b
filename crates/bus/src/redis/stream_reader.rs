//! Reads a stream for one instance, acknowledges what is done, and takes over events of dead instances.
//!
//! It waits in Redis for the next event and not in a loop of its own. Three times in `claim_after` it wakes to send a
//! heartbeat for its events, to take over those of a dead instance, and to remove what every group has acknowledged.

use std::{collections::HashSet, time::Duration};

use redis::{
    AsyncConnectionConfig, RedisError,
    aio::{ConnectionManager, MultiplexedConnection},
    streams::{StreamAutoClaimReply, StreamId, StreamInfoGroupsReply, StreamReadReply},
};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until, timeout},
};

use super::{PATIENCE, Server, log_garbage, streams::RedisStreams};
use crate::{BusError, DeliveryOutcome, Event, Inbox, backoff::Backoff};

/// How many events are read at once.
const COUNT: usize = 256;

/// An entry that all subscribers are done with, and whether some went away with it.
type Completed = (String, DeliveryOutcome);

pub(super) struct Reader {
    server: Server,
    stream: String,
    group: String,
    consumer: String,
    claim_after: Duration,
    inbox: Inbox,
    /// Entries that our subscribers work on.
    outstanding: HashSet<String>,
    completed: mpsc::UnboundedSender<Completed>,
    completions: mpsc::UnboundedReceiver<Completed>,
    /// To be acknowledged.
    done: Vec<String>,
    /// The group was there when this instance last looked.
    known: bool,
    /// It was gone after an outage, and what the stream held with it.
    lost_stream: bool,
    next_care: Instant,
    next_heartbeat: Instant,
    /// Something was acknowledged since the stream was last trimmed.
    dirty: bool,
}

type Answer<T> = Result<T, RedisError>;

impl Reader {
    pub(super) fn new(transport: &RedisStreams, inbox: Inbox) -> Self {
        let (completed, completions) = mpsc::unbounded_channel();
        Self {
            server: transport.server.clone(),
            stream: transport.stream(),
            group: transport.group.clone(),
            consumer: transport.consumer.clone(),
            claim_after: transport.claim_after,
            inbox,
            outstanding: HashSet::new(),
            completed,
            completions,
            done: Vec::new(),
            known: false,
            lost_stream: false,
            next_care: Instant::now(),
            next_heartbeat: Instant::now() + transport.claim_after / 3,
            dirty: false,
        }
    }

    /// A connection that may wait for events, with the group in place.
    pub(super) async fn connect(&mut self) -> Result<MultiplexedConnection, BusError> {
        let failed = |error| BusError::transport("connect", error);
        let config = AsyncConnectionConfig::new().set_connection_timeout(Some(PATIENCE)).set_response_timeout(None);
        let connection =
            self.server.client.get_multiplexed_async_connection_with_config(&config).await.map_err(failed)?;
        let made = self.make_group().await?;
        self.lost_stream = made && self.known;
        self.known = true;
        Ok(connection)
    }

    /// Makes the group if need be; whether it had to.
    async fn make_group(&self) -> Result<bool, BusError> {
        let mut commands = self.server.commands().await?;
        // A group that is gone after an outage reads from the beginning: what was published since belongs to it.
        let from = if self.known { "0" } else { "$" };
        let mut make = redis::cmd("XGROUP");
        make.arg("CREATE").arg(&self.stream).arg(&self.group).arg(from).arg("MKSTREAM");
        match make.query_async::<()>(&mut commands).await {
            Ok(()) => Ok(true),
            Err(error) if error.code() == Some("BUSYGROUP") => Ok(false),
            Err(error) => Err(BusError::transport("make the consumer group", error)),
        }
    }

    pub(super) async fn run(mut self, mut connection: MultiplexedConnection, mut stop: watch::Receiver<bool>) {
        let mut stopping = stop.clone();
        let mut stopped = Box::pin(async move { drop(stopping.wait_for(|stop| *stop).await) });
        loop {
            let result = tokio::select! {
                result = self.read(&mut connection) => result,
                () = &mut stopped => break,
            };
            let Err(error) = result else { continue };
            self.inbox.disconnected(&BusError::transport("read", error)).await;
            let mut backoff = Backoff::default();
            connection = loop {
                tokio::select! {
                    () = backoff.wait() => {}
                    // The same stop, which the loop above then sees.
                    _ = stop.wait_for(|stop| *stop) => return,
                }
                if let Ok(connection) = self.connect().await {
                    break connection;
                }
            };
            self.inbox.connected(self.lost_stream).await;
        }
        self.leave().await;
    }

    /// Reads until the connection is lost. May be dropped at any point: what was read and not delivered is still
    /// pending in Redis.
    async fn read(&mut self, connection: &mut MultiplexedConnection) -> Answer<()> {
        self.take_up(connection).await?;
        loop {
            self.acknowledge().await?;
            self.care().await?;
            let ask = self.read_command(">");
            let mut waiting = std::pin::pin!(ask.query_async::<StreamReadReply>(connection));
            let answer = loop {
                tokio::select! {
                    answer = &mut waiting => break answer?,
                    Some(completed) = self.completions.recv() => {
                        self.note(completed);
                        self.acknowledge().await?;
                    }
                }
            };
            self.deliver_all(answer.keys.into_iter().flat_map(|key| key.ids).collect()).await;
        }
    }

    /// Entries that we work on already are not delivered a second time.
    async fn deliver_all(&mut self, mut entries: Vec<StreamId>) {
        entries.retain(|entry| !self.done.contains(&entry.id) && self.outstanding.insert(entry.id.clone()));
        for entry in entries {
            self.deliver(entry).await;
        }
    }

    /// What this instance had when it was cut off, or in its life before.
    async fn take_up(&mut self, connection: &mut MultiplexedConnection) -> Answer<()> {
        let mut from = "0".to_owned();
        loop {
            let answer: StreamReadReply = self.read_command(&from).query_async(connection).await?;
            let entries: Vec<StreamId> = answer.keys.into_iter().flat_map(|key| key.ids).collect();
            let Some(last) = entries.last() else { return Ok(()) };
            from.clone_from(&last.id);
            self.deliver_all(entries).await;
        }
    }

    fn read_command(&self, from: &str) -> redis::Cmd {
        let mut ask = redis::cmd("XREADGROUP");
        ask.arg("GROUP").arg(&self.group).arg(&self.consumer).arg("COUNT").arg(COUNT);
        if from == ">" {
            let left = self.next_care.saturating_duration_since(Instant::now());
            // 0 would be for ever.
            ask.arg("BLOCK").arg(u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1));
        }
        ask.arg("STREAMS").arg(&self.stream).arg(from);
        ask
    }

    async fn deliver(&mut self, entry: StreamId) {
        let text: Option<String> = entry.get("event");
        let event = match Event::from_json(text.as_deref().unwrap_or_default()) {
            Ok(event) => event,
            Err(error) => {
                // It would come again for ever.
                log_garbage(&error);
                self.outstanding.remove(&entry.id);
                self.done.push(entry.id);
                return;
            }
        };
        let completed = self.completed.clone();
        let tell = move |outcome| {
            // Without a reader there is nobody to acknowledge, and the event comes again.
            let _ = completed.send((entry.id, outcome));
        };
        let inbox = self.inbox.clone();
        let mut delivering = std::pin::pin!(inbox.deliver_followed(event, tell));
        loop {
            // It may have to wait for room, for long. Meanwhile the others must not think that we are dead. What fails
            // here is noticed by the next read.
            tokio::select! {
                biased;
                () = &mut delivering => return,
                Some(completed) = self.completions.recv() => {
                    self.note(completed);
                    let _ = self.acknowledge().await;
                }
                () = sleep_until(self.next_heartbeat) => drop(self.heartbeat().await),
            }
        }
    }

    fn note(&mut self, (id, outcome): Completed) {
        self.outstanding.remove(&id);
        // Abandoned, it stays pending, and is taken over when it has been so for long enough.
        if outcome.abandoned == 0 {
            self.done.push(id);
        }
    }

    async fn acknowledge(&mut self) -> Answer<()> {
        while let Ok(completed) = self.completions.try_recv() {
            self.note(completed);
        }
        if self.done.is_empty() {
            return Ok(());
        }
        let mut commands = commands(&self.server).await?;
        let mut ack = redis::cmd("XACK");
        ack.arg(&self.stream).arg(&self.group).arg(&self.done);
        ack.query_async::<()>(&mut commands).await?;
        // Only now: what could not be acknowledged is tried again.
        self.done.clear();
        self.dirty = true;
        Ok(())
    }

    /// What is done three times in `claim_after`.
    async fn care(&mut self) -> Answer<()> {
        if Instant::now() < self.next_care {
            return Ok(());
        }
        self.next_care = Instant::now() + self.claim_after / 3;
        self.heartbeat().await?;
        self.take_over().await?;
        if std::mem::take(&mut self.dirty) {
            self.trim().await?;
        }
        Ok(())
    }

    /// Sends a heartbeat: says of all our events that we still work on them.
    async fn heartbeat(&mut self) -> Answer<()> {
        self.next_heartbeat = Instant::now() + self.claim_after / 3;
        let mut commands = commands(&self.server).await?;
        let alive: Vec<&String> = self.outstanding.iter().collect();
        for some in alive.chunks(1000) {
            let mut claim = redis::cmd("XCLAIM");
            claim.arg(&self.stream).arg(&self.group).arg(&self.consumer).arg(0).arg(some).arg("JUSTID");
            claim.query_async::<redis::Value>(&mut commands).await?;
        }
        Ok(())
    }

    /// Takes over events without a heartbeat for too long.
    async fn take_over(&mut self) -> Answer<()> {
        let mut commands = commands(&self.server).await?;
        let mut from = "0-0".to_owned();
        loop {
            let mut claim = redis::cmd("XAUTOCLAIM");
            let idle = u64::try_from(self.claim_after.as_millis()).unwrap_or(u64::MAX);
            claim.arg(&self.stream).arg(&self.group).arg(&self.consumer).arg(idle).arg(&from).arg("COUNT").arg(COUNT);
            let answer: StreamAutoClaimReply = claim.query_async(&mut commands).await?;
            if !answer.claimed.is_empty() {
                tracing::info!(
                    count = answer.claimed.len(),
                    group = self.group,
                    "took over events that nobody worked on"
                );
            }
            self.deliver_all(answer.claimed).await;
            if answer.next_stream_id == "0-0" {
                return Ok(());
            }
            from = answer.next_stream_id;
        }
    }

    /// Removes what every group has acknowledged: everything before the first entry that some group has not.
    async fn trim(&self) -> Answer<()> {
        let commands = &mut commands(&self.server).await?;
        let mut ask = redis::cmd("XINFO");
        ask.arg("GROUPS").arg(&self.stream);
        let groups: StreamInfoGroupsReply = ask.query_async(commands).await?;
        let mut first: Option<(u64, u64)> = None;
        for group in groups.groups {
            let mut wanted = group.last_delivered_id;
            if group.pending > 0 {
                let mut ask = redis::cmd("XPENDING");
                ask.arg(&self.stream).arg(&group.name);
                // How many, the first, the last, by whom.
                let (_, oldest, _, _): (u64, Option<String>, redis::Value, redis::Value) =
                    ask.query_async(commands).await?;
                wanted = oldest.unwrap_or(wanted);
            }
            let Some(wanted) = entry_id(&wanted) else { return Ok(()) };
            first = Some(first.map_or(wanted, |first| first.min(wanted)));
        }
        let Some((time, number)) = first else { return Ok(()) };
        let mut trim = redis::cmd("XTRIM");
        trim.arg(&self.stream).arg("MINID").arg("~").arg(format!("{time}-{number}"));
        trim.query_async(commands).await
    }

    /// Acknowledges what is done, and takes its name out of the group if nothing is left under it.
    async fn leave(&mut self) {
        let leaving = async {
            self.acknowledge().await?;
            let mut commands = commands(&self.server).await?;
            let mut ask = redis::cmd("XPENDING");
            ask.arg(&self.stream).arg(&self.group).arg("-").arg("+").arg(1).arg(&self.consumer);
            let pending: Vec<redis::Value> = ask.query_async(&mut commands).await?;
            if pending.is_empty() {
                let mut remove = redis::cmd("XGROUP");
                remove.arg("DELCONSUMER").arg(&self.stream).arg(&self.group).arg(&self.consumer);
                remove.query_async::<()>(&mut commands).await?;
            }
            Answer::Ok(())
        };
        match timeout(PATIENCE, leaving).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "left the stream without the last acknowledgements; they come again")
            }
            Err(_) => tracing::warn!("left the stream without the last acknowledgements; they come again"),
        }
    }
}

async fn commands(server: &Server) -> Answer<ConnectionManager> {
    server.commands().await.map_err(|error| RedisError::from(std::io::Error::other(error)))
}

/// `time-number`, as a pair that sorts.
fn entry_id(text: &str) -> Option<(u64, u64)> {
    let (time, number) = text.split_once('-')?;
    Some((time.parse().ok()?, number.parse().ok()?))
}
