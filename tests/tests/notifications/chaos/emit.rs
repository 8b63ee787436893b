//! Who emits: over the API, by rows of an outbox, and by rows of a table that is captured. Each repeats what it has no answer
//! to, and writes down what it was promised.

use std::{collections::BTreeMap, time::Instant};

use anyhow::{Context as _, Result, ensure};
use relais_testkit::Random;
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};

use super::world::{PATIENCE, Servers, To, user};
use crate::stage::{required, to};

/// A message that was accepted.
#[derive(Debug, Clone, Copy)]
pub struct Sent {
    pub to: To,
    pub must_be_acknowledged: bool,
}

/// What was accepted, by the tag in each payload: the emitter, and its count of messages.
pub type Accepted = BTreeMap<String, Sent>;

pub fn tag(emitter: &str, number: usize) -> String {
    format!("{emitter}-{number}")
}

/// The tag of a message as it arrives: in its payload, or in the row of which it is an image.
pub fn tag_of(message: &Value) -> String {
    let payload = &message["payload"];
    payload["tag"].as_str().or(payload["after"]["tag"].as_str()).unwrap_or_default().to_owned()
}

fn uuid(random: &mut Random) -> String {
    format!("{:016x}{:016x}", random.bits(), random.bits())
}

fn draft(sent: Sent, tag: &str) -> Value {
    let (kind, target) = sent.to.audience();
    let make = if sent.must_be_acknowledged { required } else { to };
    make(kind, &[&target], json!({"tag": tag}))
}

impl Servers {
    fn next(&self, random: &mut Random) -> Sent {
        let to = To::random(random, self.length);
        // What many must acknowledge takes long.
        let times = if matches!(to, To::User(_)) { 4 } else { 20 };
        Sent { to, must_be_acknowledged: random.once_in(times) }
    }

    /// Emits over the API until the end.
    pub async fn emit_by_api(self, emitter: String, mut random: Random) -> Result<Accepted> {
        let (mut accepted, mut count) = (Accepted::new(), 0);
        while !self.is_over() {
            let mut batch = Vec::new();
            for _ in 0..=random.below(5) {
                count += 1;
                batch.push((tag(&emitter, count), self.next(&mut random)));
            }
            let body: Vec<Value> = batch.iter().map(|(tag, sent)| draft(*sent, tag)).collect();
            let key = tag(&emitter, count);
            self.insist(&mut random, 201, |api| {
                api.request(Method::POST, "/v1/notifications").header("idempotency-key", &key).json(&body)
            })
            .await?;
            for (tag, sent) in batch {
                accepted.insert(tag, sent);
                self.pace(sent.to).await;
            }
        }
        Ok(accepted)
    }

    /// Writes whole notifications to an outbox until the end, as events of one aggregate.
    pub async fn emit_by_outbox(self, emitter: String, mut random: Random) -> Result<Accepted> {
        let (mut accepted, mut table) = (Accepted::new(), Table::new(&self));
        let aggregate = uuid(&mut random);
        let sql =
            "INSERT INTO outbox (id, aggregate_id, event_type, payload) VALUES ($1::uuid, $2::uuid, 'news', $3::jsonb)
                   ON CONFLICT DO NOTHING";
        for count in 1.. {
            if self.is_over() {
                break;
            }
            let (tag, sent) = (tag(&emitter, count), self.next(&mut random));
            let row = [uuid(&mut random), aggregate.clone(), draft(sent, &tag).to_string()];
            table.insert(sql, &row).await?;
            accepted.insert(tag, sent);
            self.pace(sent.to).await;
        }
        Ok(accepted)
    }

    /// Writes rows to a table that is captured, until the end.
    pub async fn emit_by_table(self, emitter: String, mut random: Random) -> Result<Accepted> {
        let (mut accepted, mut table) = (Accepted::new(), Table::new(&self));
        let sql = "INSERT INTO assignment (tag, person) VALUES ($1, $2) ON CONFLICT DO NOTHING";
        for count in 1.. {
            if self.is_over() {
                break;
            }
            let (tag, number) = (tag(&emitter, count), random.below(self.length.users));
            let sent = Sent { to: To::User(number), must_be_acknowledged: false };
            table.insert(sql, &[tag.clone(), user(number)]).await?;
            accepted.insert(tag, sent);
            self.pace(sent.to).await;
        }
        Ok(accepted)
    }
}

/// A connection to the emitters' database, made anew whenever that was killed.
struct Table {
    url: String,
    connection: Option<PgConnection>,
}

impl Table {
    fn new(servers: &Servers) -> Self {
        Self { url: servers.shop.clone(), connection: None }
    }

    async fn insert(&mut self, sql: &'static str, values: &[String]) -> Result<()> {
        let begun = Instant::now();
        loop {
            match self.attempt(sql, values).await {
                Ok(()) => return Ok(()),
                Err(error) => {
                    ensure!(begun.elapsed() < PATIENCE, "no row within {PATIENCE:?}: {error:#}");
                    self.connection = None;
                }
            }
            tokio::task::yield_now().await;
        }
    }

    async fn attempt(&mut self, sql: &'static str, values: &[String]) -> Result<()> {
        if self.connection.is_none() {
            self.connection = Some(PgConnection::connect(&self.url).await?);
        }
        let connection = self.connection.as_mut().context("a connection")?;
        values.iter().fold(sqlx::query(sql), |query, value| query.bind(value)).execute(connection).await?;
        Ok(())
    }
}
