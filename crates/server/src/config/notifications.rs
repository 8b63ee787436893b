//! The settings of notifications.

use std::time::Duration;

use relais_notify::NotificationType;
use relais_protocol::HumanDuration;
use serde::{Deserialize, Serialize};

use super::{
    Config,
    values::{RedisUrl, Secret},
};

/// A push is asked for at a moment when a message still matters.
const LONGEST_DELAY: Duration = Duration::from_secs(60 * 60);

/// How notifications are kept and served, and who their users are.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NotificationsConfig {
    /// Where they are kept.
    pub store: NotificationsStore,
    /// The Redis that keeps them; empty: that of `[redis]`.
    pub redis_url: RedisUrl,
    /// What its keys begin with.
    pub redis_prefix: String,
    /// How long a user has to acknowledge before a message is sent again.
    pub ack_timeout: HumanDuration,
    /// How long the log is kept.
    pub log_age: HumanDuration,
    /// How long messages are kept after they have expired.
    pub age: HumanDuration,
    /// The largest payload.
    pub max_payload_bytes: usize,
    /// The most targets of a message.
    pub max_targets: usize,
    /// Web pages of these origins may use the routes of users.
    pub origins: Vec<String>,
    /// The most links of a user.
    pub links_per_user: usize,
    /// The most links of an address.
    pub links_per_address: usize,
    /// Whether the ledger says of all messages who was sent them.
    pub record_all_deliveries: bool,
    /// The secret of tokens that are signed with HS256.
    pub token_secret: Secret,
    /// A file of public keys of tokens, PEM.
    pub token_keys_file: String,
    /// A JWKS: a file, or a URL.
    pub token_jwks: String,
    /// Who may have issued tokens.
    pub token_issuers: Vec<String>,
    /// Whom tokens may be for.
    pub token_audiences: Vec<String>,
    /// The claim that names the user.
    pub token_user_claim: String,
    /// The claim that names the user's audiences.
    pub token_audiences_claim: String,
    /// Whom the operators of push services may write to; empty: there is no Web Push.
    pub push_contact: String,
    /// The types of messages that are pushed.
    pub push_types: Vec<NotificationType>,
    /// How long a push waits at first.
    pub push_delay: HumanDuration,
    /// The most browsers that take pushes for a user.
    pub push_subscriptions_per_user: usize,
    /// The public key of pushes; empty: the one in the database.
    pub push_public_key: String,
    /// The private key of pushes.
    pub push_private_key: Secret,
}

/// Where notifications are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NotificationsStore {
    /// In the database.
    Database,
    /// In Redis.
    Redis,
}

impl Config {
    /// The Redis of notifications; on this machine if none is given.
    pub fn notifications_redis(&self) -> Result<RedisUrl, String> {
        match self.notifications.redis_url.is_empty() {
            true => self.redis.address(),
            false => Ok(self.notifications.redis_url.clone()),
        }
    }
}

impl NotificationsConfig {
    /// What a type can not say.
    pub(super) fn check(&self) -> Result<(), String> {
        if [self.log_age, self.age].iter().any(|age| age.0.is_zero()) {
            return Err("expected a duration above zero".to_owned());
        }
        let numbers = [self.max_payload_bytes, self.max_targets, self.links_per_user, self.links_per_address];
        if numbers.contains(&0) || self.push_subscriptions_per_user == 0 {
            return Err("expected at least 1".to_owned());
        }
        let contact = self.push_contact.as_str();
        if !contact.is_empty() && !contact.starts_with("mailto:") && !contact.starts_with("https://") {
            return Err("expected mailto: and an address, or https:// and a page".to_owned());
        }
        if self.push_types.is_empty() {
            return Err("expected at least one of REALTIME, SYSTEM and NOTIFICATION".to_owned());
        }
        if self.push_delay.0 > LONGEST_DELAY {
            return Err("expected at most 1h".to_owned());
        }
        let is_origin = |origin: &String| {
            origin == "*"
                || origin.split_once("://").is_some_and(|(scheme, host)| {
                    ["http", "https"].contains(&scheme) && !host.is_empty() && !host.contains('/')
                })
        };
        match self.origins.iter().all(is_origin) {
            true => Ok(()),
            false => Err("expected origins like https://shop.example, or *".to_owned()),
        }
    }
}
