//! What the routes of notifications take and answer.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{
    AckStatus, AudienceKey, Counts, LedgerLine, LinkGlance, Notification, StoredNotification, StoredPushSubscription,
};

/// The id of a message that was emitted.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct EmittedId {
    /// The id.
    pub id: Uuid,
}

/// The ids of messages that were emitted, in their order.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct EmittedIds {
    /// The ids.
    pub ids: Vec<Uuid>,
}

/// The answer to an emission: `id` for one message, `ids` for a list.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum EmitAnswer {
    /// Of one message.
    One(EmittedId),
    /// Of a list.
    Many(EmittedIds),
}

/// A page of a user's messages, the newest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct UserNotifications {
    /// The messages.
    pub notifications: Vec<UserNotification>,
    /// How many there are.
    pub counts: CountsView,
    /// Where a stream goes on, so that nothing is missed in between: give it as `Last-Event-ID`.
    #[schema(example = "5f1c9a2e-1a3")]
    pub cursor: String,
    /// What to give as `before` for the next page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A message in a user's list.
#[derive(Debug, Serialize, ToSchema)]
pub struct UserNotification {
    /// The message.
    pub message: Notification,
    /// When the user acknowledged it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub acknowledged: Option<Timestamp>,
}

/// How many messages a user has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CountsView {
    /// The user has not acknowledged them.
    pub unread: u64,
    /// The user must acknowledge them, and has not.
    pub unacknowledged: u64,
    /// All that the user sees.
    pub all: u64,
}

impl From<Counts> for CountsView {
    fn from(Counts { unread, unacknowledged, all }: Counts) -> Self {
        Self { unread, unacknowledged, all }
    }
}

/// What a user acknowledges: `ids`, or `all`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AckRequest {
    /// These messages, at most 1,000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 1000)]
    pub ids: Vec<Uuid>,
    /// All that the user has not acknowledged, at most 10,000 of them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
}

/// For whom an operator acknowledges a message.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AckForRequest {
    /// The user.
    #[schema(min_length = 1, max_length = 200, example = "ann")]
    pub user: String,
}

/// The answer to an acknowledgement.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AckAnswer {
    /// How many messages the user had not acknowledged before.
    pub acknowledged: usize,
    /// How many messages the user has now.
    pub counts: CountsView,
}

/// What has come since a cursor.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct PollAnswer {
    /// The events, in their order.
    pub events: Vec<PolledEvent>,
    /// Where to go on.
    #[schema(example = "5f1c9a2e-1a3")]
    pub cursor: String,
}

/// An event, as it is on a stream.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct PolledEvent {
    /// `notification`, `withdrawn`, `acknowledged`, `audiences`, `gap` or `bye`.
    #[schema(pattern = "^(hello|notification|withdrawn|acknowledged|audiences|gap|bye)$", example = "notification")]
    pub event: String,
    /// The cursor behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Its data.
    #[schema(value_type = Object)]
    pub data: Box<serde_json::value::RawValue>,
}

/// A request for a ticket.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TicketRequest {
    /// Who gets it.
    #[schema(min_length = 1, max_length = 200, example = "ann")]
    pub user: String,
    /// What the user belongs to, beside what is declared: targets by type.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub audiences: BTreeMap<String, BTreeSet<String>>,
    /// How long it is valid, such as `1h`, which it is if this is absent; at most `24h`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "1h")]
    pub ttl: Option<String>,
}

/// A ticket.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TicketAnswer {
    /// The ticket: a bearer token, or `?ticket=`.
    pub ticket: String,
    /// Until when it is valid.
    #[schema(value_type = String, format = DateTime)]
    pub expires: Timestamp,
}

/// Members of a target.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MembersRequest {
    /// Users, and other targets with all their members; at most 10,000.
    #[schema(max_items = 10000)]
    pub members: Vec<TargetName>,
}

/// One target: a user, or another audience.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TargetName {
    /// `USER`, which it is if this is absent, or another type.
    #[serde(rename = "type", default = "user")]
    #[schema(example = "USER")]
    pub kind: String,
    /// The target.
    #[schema(example = "ann")]
    pub target: String,
}

fn user() -> String {
    crate::USER.to_owned()
}

impl From<AudienceKey> for TargetName {
    fn from(AudienceKey { kind, target }: AudienceKey) -> Self {
        Self { kind, target }
    }
}

impl From<TargetName> for AudienceKey {
    fn from(TargetName { kind, target }: TargetName) -> Self {
        Self { kind, target }
    }
}

/// What a change of members came to.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct MembersAnswer {
    /// How many joined.
    pub joined: usize,
    /// How many left.
    pub left: usize,
}

/// Members of a target, in the order of their names.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct MembersPage {
    /// The members.
    pub members: Vec<TargetName>,
    /// What to give as `after` for the next page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// How a message stands, for those who emit and operate.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NotificationView {
    /// The message, with the attempts so far.
    pub message: Notification,
    /// `OPEN`, `ACKNOWLEDGED`, `FAILED`, `EXPIRED` or `WITHDRAWN`.
    #[schema(pattern = "^(OPEN|ACKNOWLEDGED|FAILED|EXPIRED|WITHDRAWN)$", example = "OPEN")]
    pub status: String,
    /// The client that emitted it; none if Relais did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// The message that took its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced_by: Option<Uuid>,
    /// Who has seen it, if that was asked for: first those who must acknowledge it and have not. At most 1,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<LedgerLineView>>)]
    pub ledger: Option<Vec<LedgerLine>>,
}

/// A user in the ledger of a message.
#[derive(Debug, ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "only described: a `LedgerLine` is written")]
pub struct LedgerLineView {
    /// The user.
    user: String,
    /// Whether the user must acknowledge it.
    awaited: bool,
    /// How often it was sent to the user.
    deliveries: u32,
    /// When it was sent to the user for the last time.
    #[schema(format = DateTime)]
    delivered: Option<String>,
    /// When the user acknowledged it.
    #[schema(format = DateTime)]
    acknowledged: Option<String>,
}

/// Messages, the newest first.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct NotificationViews {
    /// The messages.
    pub notifications: Vec<NotificationView>,
    /// What to give as `before` for the next page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// The links of this process.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct LinkViews {
    /// The links.
    pub links: Vec<LinkView>,
}

/// A link of a page.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct LinkView {
    /// Its id.
    pub link: Uuid,
    /// Its user.
    pub user: String,
    /// What the user belongs to.
    pub audiences: Vec<TargetName>,
}

impl From<LinkGlance> for LinkView {
    fn from(LinkGlance { id, user, audiences }: LinkGlance) -> Self {
        Self { link: id, user, audiences: audiences.into_iter().map(TargetName::from).collect() }
    }
}

impl AckStatus {
    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "OPEN",
            Self::Acknowledged => "ACKNOWLEDGED",
            Self::Failed => "FAILED",
            Self::Expired => "EXPIRED",
            Self::Withdrawn => "WITHDRAWN",
        }
    }

    /// The status of this name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Open, Self::Acknowledged, Self::Failed, Self::Expired, Self::Withdrawn]
            .into_iter()
            .find(|status| status.as_str() == name)
    }
}

impl NotificationView {
    /// A message, perhaps with its ledger.
    pub fn new(stored: StoredNotification, ledger: Option<Vec<LedgerLine>>) -> Self {
        let kind = crate::EntryKind::Replayed { attempts: stored.attempts };
        Self {
            message: stored.as_sent(kind),
            status: stored.status.as_str().to_owned(),
            client_id: stored.client,
            replaced_by: stored.replaced_by,
            ledger,
        }
    }
}

/// The key that browsers subscribe with.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PushKeyView {
    /// A public key of P-256, in base64url.
    #[schema(example = "BP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A8")]
    pub key: String,
}

/// A browser's subscription, as `PushSubscription.toJSON()` gives it.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PushSubscriptionRequest {
    /// The URL that the browser's push service has given to it.
    #[schema(example = "https://push.example.net/push/JzLQ3raZJfFBR0aqvOMsLrt54w4rJUsV")]
    pub endpoint: String,
    /// The keys of the browser.
    pub keys: PushSubscriptionKeys,
    /// Browsers say it, and it is not used: who is gone is forgotten when the push service says so.
    #[serde(default)]
    #[schema(value_type = Option<f64>)]
    pub expiration_time: Option<serde_json::Number>,
}

/// The keys of a browser, in base64url.
#[derive(Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PushSubscriptionKeys {
    /// Its public key of P-256.
    pub p256dh: String,
    /// Its secret.
    pub auth: String,
}

impl std::fmt::Debug for PushSubscriptionKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PushSubscriptionKeys").finish_non_exhaustive()
    }
}

/// The id of a subscription.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PushSubscribed {
    /// The id: the same for the same endpoint.
    pub id: Uuid,
}

/// A user's subscriptions.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PushSubscriptionViews {
    /// The subscriptions, the oldest first.
    pub subscriptions: Vec<PushSubscriptionView>,
}

/// A subscription, as its user sees it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PushSubscriptionView {
    /// Its id.
    pub id: Uuid,
    /// Where pushes go.
    pub endpoint: String,
    /// Since when.
    #[schema(value_type = String, format = DateTime)]
    pub created: Timestamp,
    /// When the push service took a push for the last time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub pushed: Option<Timestamp>,
}

impl From<StoredPushSubscription> for PushSubscriptionView {
    fn from(StoredPushSubscription { id, subscription, created, pushed }: StoredPushSubscription) -> Self {
        Self { id, endpoint: subscription.endpoint, created, pushed }
    }
}

/// The token of a push.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PushAckRequest {
    /// What the push said as `ack`.
    pub token: String,
}

/// The message that was acknowledged by the token of a push.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PushAckAnswer {
    /// Its id.
    pub id: Uuid,
}
