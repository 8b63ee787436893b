//! Real-time notifications: messages to audiences, over links to web pages, with acknowledgement and replay.
//!
//! The rules are pure. A [`Notification`] goes to an audience. [`Memberships`] say which users that is, at any position of the
//! log of messages. [`apply`] decides what becomes of a message that must be acknowledged: when it is sent again, to whom, and
//! when it goes to the error log. [`EntryKind::reaches`] decides who gets an entry of the log. `tests/model` checks these rules
//! in every state that a small world can reach. [`Identities`] say who the user of a web page is, by a token or a ticket.
//!
//! [`NotificationStore`] is the port to the log and the ledger. [`Notifications`] has the use cases and the links of one
//! process. It knows neither HTTP nor SQL. [`WebPush`] sends messages to browsers whose pages are closed.

mod acknowledgement;
mod audience;
mod callback;
mod cursor;
mod delivery;
mod frame;
mod hub;
mod identity;
mod kafka;
mod mapping;
mod message;
mod port;
mod push;
mod service;
mod sink;
mod source;
pub mod wire;

pub use acknowledgement::{AckEffect, AckEvent, AckPolicy, AckRefused, AckState, AckStatus, LONGEST_PAUSE, apply};
pub use audience::{AudienceKey, LogPosition, MembershipRefused, Memberships, USER, UnknownAudienceType};
pub use callback::NotificationCallbackSender;
pub use cursor::{Cursor, Gap};
pub use delivery::{EntryKind, Recipient};
pub use frame::{Bye, Frame, FrameEvent};
pub use hub::{
    HubOptions, LinkGlance, TooManyLinks,
    link::OpenLink,
    summary::{LinkSummary, LinksOfType},
};
pub use identity::{
    ClaimRules, DEFAULT_TICKET_TTL, Identities, Identity, InvalidIdentity, JwksKeys, KeysRefused, LEAST_SECRET_BYTES,
    LONGEST_TICKET_TTL, LONGEST_TOKEN, MOST_AUDIENCES, TICKET_PREFIX, TicketRefused, Tickets, TokenKeys, TokenRefused,
    TokenVerifier, VerifierOptions,
};
pub use kafka::{KAFKA_FIELDS, KafkaRecord};
pub use mapping::{AudienceMapping, Condition, MappingError, NotificationMapping, PayloadTemplate, Said};
pub use message::{
    Audience, Backoff, ChangeOperation, EXPIRES_AFTER, FillIn, InvalidNotification, Metadata, MetadataDraft,
    Notification, NotificationDraft, NotificationLimits, NotificationType, Priority, Retry, Routing, RoutingDraft,
};
pub use port::{
    AckChoice, Acknowledged, Acknowledgement, Belonging, ChangeRefused, Counts, Delivery, Emitted, EntryContent, Fired,
    LedgerLine, ListFilter, ListRequest, ListedNotification, LogEntry, LogHead, Member, MembersChange, MembersChanged,
    MembersRefused, NewNotification, NotificationFilter, NotificationStore, NotificationsPurged, StoredNotification,
    UserScope,
};
pub use push::{
    AckTokenRefused, AckTokens, ClaimedPush, InvalidSubscription, MOST_PLAINTEXT, PlannedPush, PushCursor, PushEnd,
    PushError, PushOptions, PushStore, PushSubscription, StoredPushSubscription, Subscribed, VapidKey, VapidKeyRefused,
    WebPush, encrypt,
};
pub use service::{NotificationOptions, Notifications, NotifyError, UserPage};
pub use sink::{NotificationSink, NotificationSinkOptions};
pub use source::{EVENT_FIELDS, NotificationSource, SourceError, SourceEvent, SourceOutcome};
