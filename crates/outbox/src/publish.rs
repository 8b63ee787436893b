//! Publishes rows: makes messages of them, hands them to the sink, marks what was confirmed, and writes down what failed.

use std::collections::{HashMap, HashSet};

use relais_message::{PublishOutcome, RoutedMessage};
use tokio::time::timeout;

use crate::{FailedRow, OutboxError, OutboxRow, Relay, Retry};

/// How to find out whether the sink is back, and which message it was if it is: a few messages at a time, each of another key.
pub(crate) struct Probe {
    /// How many were tried so far, so that it is another one's turn each time.
    tried: usize,
    /// How many to try next.
    size: usize,
    /// Whether the sink confirmed the last ones.
    alive: bool,
}

/// What one round came to.
pub(crate) enum Round {
    /// There was something to do, so there may be more.
    Busy,
    /// There was nothing to do.
    Idle,
    /// The sink answers nothing.
    Away(String),
}

/// What became of rows.
#[derive(Default)]
pub(crate) struct Published {
    /// How many the sink confirmed.
    confirmed: usize,
    /// How many it refused.
    refused: usize,
    /// How many were handed to it.
    tried: usize,
    /// What it said nothing about, and why.
    unknown: Vec<(OutboxRow, String)>,
    /// What failed and is not written down yet, and why.
    failed: Vec<(OutboxRow, String)>,
    /// Rows behind others of their key that were not published.
    pub(crate) held_back: Vec<OutboxRow>,
}

impl Published {
    /// Whether the sink said neither yes nor no to anything.
    pub(crate) fn is_silent(&self) -> bool {
        self.confirmed == 0 && self.refused == 0 && !self.unknown.is_empty()
    }

    /// Whether something is to be written down, or was left behind.
    pub(crate) fn has_failures(&self) -> bool {
        !self.failed.is_empty() || !self.unknown.is_empty() || !self.held_back.is_empty()
    }

    /// Why it said nothing.
    pub(crate) fn why_silent(&self) -> Option<String> {
        self.unknown.first().map(|(_, why)| why.clone()).filter(|_| self.is_silent())
    }
}

impl Relay {
    /// Reads, publishes and marks one batch; of rows up to a place in their order, if one is given. `silence` is how many messages
    /// were confirmed when the sink said nothing for the last time.
    pub(crate) async fn round(
        &self,
        partitions: &[i32],
        up_to: Option<&str>,
        probe: &mut Option<Probe>,
        silence: &mut Option<u64>,
    ) -> Result<Round, OutboxError> {
        let mut request = self.request(partitions.to_vec(), self.options.batch_rows);
        request.up_to = up_to.map(str::to_owned);
        let mut rows = self.store.read_unpublished(&request).await?;
        if rows.is_empty() {
            *probe = None;
            return Ok(Round::Idle);
        }
        if let Some(Probe { tried, size, .. }) = probe {
            rows = heads_of_keys(rows, *tried, *size);
        }
        let (published, confirmed) = self.publish_rows(rows).await;
        self.mark(confirmed, Vec::new()).await?;
        // A sink that says neither yes nor no to anything is away. But if it was there a moment ago and does not survive this one
        // message, then it is the message's fault.
        let silent = published.is_silent();
        let confirmed = self.handle.stats().published;
        let confirmed_since = silence.is_some_and(|then| confirmed > then);
        let alive = confirmed_since || probe.as_ref().is_some_and(|probe| probe.alive);
        if silent {
            *silence = Some(confirmed);
        }
        let tried_several = published.tried > 1;
        let is_culprit = silent && !tried_several && alive;
        let away = published.why_silent().filter(|_| !is_culprit);
        self.record(published, away.is_none()).await?;
        *probe = match probe.take() {
            None if silent => Some(Probe { tried: 0, size: 1, alive: false }),
            None => None,
            // One of these: each by itself then.
            Some(Probe { tried, .. }) if silent && tried_several => Some(Probe { tried, size: 1, alive }),
            Some(Probe { tried, .. }) if silent => Some(Probe { tried: tried + 1, size: 1, alive: false }),
            Some(Probe { size, .. }) if size >= self.options.batch_rows => None,
            Some(Probe { tried, size, .. }) => Some(Probe { tried: tried + size, size: size * 2, alive: true }),
        };
        if !silent {
            self.handle.update(|stats| stats.trouble = None);
        }
        Ok(away.map_or(Round::Busy, Round::Away))
    }

    /// Publishes rows; also the ids of those that were confirmed. They are not marked yet, and what failed is not written down.
    pub(crate) async fn publish_rows(&self, rows: Vec<OutboxRow>) -> (Published, Vec<String>) {
        let (mut published, mut confirmed) = (Published::default(), Vec::new());
        let (mut sent, mut outgoing) = (Vec::new(), Vec::new());
        let (mut sent_keys, mut stopped) = (HashSet::new(), HashSet::new());
        for row in rows {
            if stopped.contains(&row.key) {
                published.held_back.push(row);
                continue;
            }
            match self.outgoing(&row) {
                Ok(message) => {
                    sent_keys.insert(row.key.clone());
                    outgoing.push(message);
                    sent.push(row);
                }
                Err(why) => {
                    stopped.insert(row.key.clone());
                    // Only the first of a key fails: what is behind others has its turn when they are published.
                    if sent_keys.contains(&row.key) {
                        published.held_back.push(row);
                    } else {
                        published.failed.push((row, why));
                    }
                }
            }
        }
        let outcomes = self.publish(outgoing).await;
        published.tried = outcomes.len();
        for (row, outcome) in sent.into_iter().zip(outcomes) {
            match outcome {
                PublishOutcome::Confirmed => confirmed.push(row.id),
                PublishOutcome::Refused(why) => {
                    published.refused += 1;
                    published.failed.push((row, why));
                }
                PublishOutcome::Unknown(why) => published.unknown.push((row, why)),
                PublishOutcome::NotSent => published.held_back.push(row),
            }
        }
        published.confirmed = confirmed.len();
        (published, confirmed)
    }

    /// Marks rows that the sink has confirmed. `transactions` are those of rows that come from the log, and may not be in the
    /// table yet for others to see.
    pub(crate) async fn mark(&self, ids: Vec<String>, transactions: Vec<u32>) -> Result<(), OutboxError> {
        if ids.is_empty() {
            return Ok(());
        }
        let delete = self.options.delete_published;
        let marked = self.store.mark_published(&self.options.outbox, &ids, delete).await?;
        if marked < ids.len() as u64
            && !transactions.is_empty()
            && let Some(source) = self.store.capture_source().await?
        {
            // A commit is in the log before others see its rows.
            source.until_visible(&transactions).await?;
            self.store.mark_published(&self.options.outbox, &ids, delete).await?;
        }
        self.handle.update(|stats| stats.published += ids.len() as u64);
        Ok(())
    }

    /// The message of a row and where it goes; or why it cannot be sent.
    fn outgoing(&self, row: &OutboxRow) -> Result<RoutedMessage, String> {
        let options = &self.options;
        if let Some(why) = &row.unreadable {
            return Err(why.clone());
        }
        if row.retry_count >= options.retry.limit {
            return Err("it was tried as often as the limit allows".to_owned());
        }
        let mut message = row.message();
        for (name, template) in &options.headers {
            message.headers.set(name.clone(), template.render(row).map_err(|error| error.to_string())?);
        }
        let destination = match &row.destination {
            Some(destination) => destination.clone(),
            None => options.destination.render(row).map_err(|error| error.to_string())?,
        };
        let routing_key = options.routing_key.render(row).map_err(|error| error.to_string())?;
        let source = format!("/outboxes/{}", options.outbox);
        let message = options.envelope.wrap(&message, &source, &options.header_prefix);
        Ok(RoutedMessage { destination, routing_key, message })
    }

    async fn publish(&self, batch: Vec<RoutedMessage>) -> Vec<PublishOutcome> {
        if batch.is_empty() {
            return Vec::new();
        }
        let mut outcomes = vec![PublishOutcome::NotSent; batch.len()];
        let mut stopped: HashSet<String> = HashSet::new();
        for group in groups(batch) {
            let (mut places, mut sent) = (Vec::with_capacity(group.len()), Vec::with_capacity(group.len()));
            for (place, outgoing) in group {
                if outgoing.message.key.as_ref().is_none_or(|key| !stopped.contains(key)) {
                    places.push((place, outgoing.message.key.clone()));
                    sent.push(outgoing);
                }
            }
            let answers = self.publish_group(sent).await;
            for ((place, key), outcome) in places.into_iter().zip(answers) {
                if !outcome.is_confirmed() {
                    stopped.extend(key);
                }
                outcomes[place] = outcome;
            }
        }
        outcomes
    }

    async fn publish_group(&self, batch: Vec<RoutedMessage>) -> Vec<PublishOutcome> {
        if batch.is_empty() {
            return Vec::new();
        }
        let (number, limit) = (batch.len(), self.options.publish_timeout);
        match timeout(limit, self.sink.publish(batch)).await {
            Ok(outcomes) => outcomes,
            Err(_) => vec![PublishOutcome::Unknown(format!("the sink did not answer within {limit:?}")); number],
        }
    }

    /// Writes down what failed: a message is retried, or parked at the limit. What the sink said nothing about counts too,
    /// unless it is away: then it is no message's fault, and none is touched.
    pub(crate) async fn record(&self, published: Published, with_unknown: bool) -> Result<Vec<FailedRow>, OutboxError> {
        let unknown = published.unknown.into_iter().filter(|_| with_unknown);
        let failed: Vec<(OutboxRow, String)> = published.failed.into_iter().chain(unknown).collect();
        if failed.is_empty() {
            return Ok(Vec::new());
        }
        let Retry { limit, .. } = self.options.retry;
        let failed = failed.into_iter().map(|(row, error)| {
            let retry_count = row.retry_count.saturating_add(1).min(limit);
            let again = (retry_count < limit).then(|| self.options.retry.pause(retry_count));
            FailedRow { id: row.id, key: row.key, retry_count, error, again }
        });
        let failed: Vec<FailedRow> = failed.collect();
        self.store.record_failures(&self.options.outbox, &failed).await?;
        let parked = failed.iter().filter(|failed| failed.again.is_none());
        for FailedRow { id, key, error, .. } in parked.clone() {
            tracing::warn!(outbox = self.options.outbox, id, key, error, "parked a message");
        }
        self.handle.update(|stats| {
            stats.failed += failed.len() as u64;
            stats.parked += parked.count() as u64;
        });
        Ok(failed)
    }
}

/// Divides a batch into groups in which all messages of a key go to one destination. A sink keeps order per key and destination;
/// a key's message to another destination must wait until the ones before are confirmed.
fn groups(batch: Vec<RoutedMessage>) -> Vec<Vec<(usize, RoutedMessage)>> {
    let mut last: HashMap<String, (String, usize)> = HashMap::new();
    let mut groups: Vec<Vec<(usize, RoutedMessage)>> = vec![Vec::new()];
    for (place, outgoing) in batch.into_iter().enumerate() {
        let group = match &outgoing.message.key {
            None => 0,
            Some(key) => match last.get_mut(key) {
                Some((destination, group)) if *destination == outgoing.destination => *group,
                Some((destination, group)) => {
                    outgoing.destination.clone_into(destination);
                    *group += 1;
                    *group
                }
                None => {
                    last.insert(key.clone(), (outgoing.destination.clone(), 0));
                    0
                }
            },
        };
        if groups.len() <= group {
            groups.resize_with(group + 1, Vec::new);
        }
        groups[group].push((place, outgoing));
    }
    groups
}

/// Of the first rows of all keys, so many, from this number on, counted round and round.
fn heads_of_keys(rows: Vec<OutboxRow>, number: usize, count: usize) -> Vec<OutboxRow> {
    let mut keys = HashSet::new();
    let mut heads: Vec<OutboxRow> = rows.into_iter().filter(|row| keys.insert(row.key.clone())).collect();
    let turned = number % heads.len().max(1);
    heads.rotate_left(turned);
    heads.truncate(count);
    heads
}
