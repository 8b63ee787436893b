//! Who reads: each user has a link, comes back with the last cursor whenever it breaks, and acknowledges what must be.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use futures::StreamExt as _;
use relais_testkit::Random;
use reqwest::Method;

use super::{
    emit::tag_of,
    world::{PATIENCE, Servers},
};
use crate::link::{Event, parse};

/// The tag of the last message.
pub const END: &str = "end";

/// What a user has seen.
#[derive(Debug, Default)]
pub struct Seen {
    /// The ids of messages by their tags.
    pub ids: BTreeMap<String, String>,
    /// What the user has acknowledged: ids.
    pub acknowledged: BTreeSet<String>,
    pub deliveries: usize,
    pub links: usize,
    pub gaps: usize,
    /// Events whose position was there before, and first sendings of a message that was sent before.
    pub doubled: usize,
    /// Events whose position is lower than the one before, or first sendings that overtook one of the same emitter.
    pub out_of_order: usize,
    last_position: u64,
    last_of_emitter: BTreeMap<String, usize>,
}

impl Seen {
    /// Takes an event; whether it is a message that is new to the user.
    fn take(&mut self, event: &Event) -> Result<bool> {
        let position = position(event)?;
        self.doubled += usize::from(position == self.last_position);
        self.out_of_order += usize::from(position < self.last_position);
        self.last_position = position;
        self.gaps += usize::from(event.name == "gap");
        if event.name != "notification" {
            return Ok(false);
        }
        self.deliveries += 1;
        let (tag, is_first) = (tag_of(&event.data), event.data["routing"]["retry"]["attempts"] == 0);
        let is_new = self.ids.insert(tag.clone(), event.message()).is_none();
        if is_first {
            self.doubled += usize::from(!is_new);
            // Rows of different keys have no order.
            if let Some((emitter, number)) = tag.rsplit_once('-').filter(|(emitter, _)| !emitter.starts_with("table")) {
                let number = number.parse()?;
                let before = self.last_of_emitter.insert(emitter.to_owned(), number);
                self.out_of_order += usize::from(before.is_some_and(|before| before > number));
            }
        }
        Ok(is_new)
    }
}

/// The position of the log that a cursor names. It is opaque to pages; a test may look.
fn position(event: &Event) -> Result<u64> {
    let cursor = event.id.as_deref().with_context(|| format!("an event without a cursor: {event:?}"))?;
    let (_, position) = cursor.split_once('-').context("a cursor without a position")?;
    Ok(u64::from_str_radix(position, 16)?)
}

impl Servers {
    /// Reads until the last message.
    pub async fn read(self, (ticket, mut cursor): (String, String), mut random: Random) -> Result<Seen> {
        let mut seen = Seen::default();
        loop {
            let path = format!("/v1/notifications/stream?ticket={ticket}&lastEventId={cursor}");
            let Some(response) = self.stream(&mut random, &path).await else { continue };
            seen.links += 1;
            let (mut bytes, mut buffer) = (response.bytes_stream(), Vec::new());
            while let Some(Ok(chunk)) =
                tokio::time::timeout(PATIENCE, bytes.next()).await.context("a link is silent")?
            {
                buffer.extend_from_slice(&chunk);
                while let Some(end) = buffer.windows(2).position(|pair| pair == b"\n\n") {
                    let block: Vec<u8> = buffer.drain(..end + 2).collect();
                    let Some(event) = parse(std::str::from_utf8(&block)?) else { continue };
                    cursor = event.id.clone().unwrap_or(cursor);
                    if matches!(event.name.as_str(), "hello" | "bye") {
                        continue;
                    }
                    let is_new = seen.take(&event)?;
                    if event.data["routing"]["retry"]["ack_required"] == true
                        && seen.acknowledged.insert(event.message())
                    {
                        let path = format!("/v1/notifications/{}/ack?ticket={ticket}", event.message());
                        self.insist(&mut random, 200, |api| api.request(Method::POST, &path)).await?;
                    }
                    if tag_of(&event.data) == END {
                        return Ok(seen);
                    }
                    if is_new {
                        self.delivered.send_modify(|delivered| *delivered += 1);
                    }
                }
            }
        }
    }
}
