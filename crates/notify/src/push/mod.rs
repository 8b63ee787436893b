//! Web Push (RFC 8030, 8291, 8292): messages for users whose page is closed.
//!
//! A browser subscribes: its push service gives it an endpoint, and it gives that to Relais with two keys. [`WebPush`] looks
//! through the log for messages to be pushed, asks all processes whether a page of the user is open, and sends what is left,
//! encrypted for the browser, through a [`relais_core::PushSender`]. [`PushStore`] is the port to subscriptions and to the queue
//! of pushes.
//!
//! `subscription`, `vapid`, `encryption`, `payload` and `token` are pure: no store, no clock, no network.
//!
//! What is deliberately not here: other services than those of browsers (RFC 8030 only), and audiences that only a token
//! names. Whether a user still belongs to those is not known once the page is closed.

mod encryption;
mod outcome;
mod payload;
mod planner;
mod port;
mod pusher;
mod service;
mod subscription;
mod token;
mod vapid;

pub use encryption::{MOST_PLAINTEXT, encrypt};
pub use port::{ClaimedPush, PlannedPush, PushCursor, PushEnd, PushStore, StoredPushSubscription, Subscribed};
pub use service::{PushError, PushOptions, WebPush};
pub use subscription::{InvalidSubscription, PushSubscription};
pub use token::{AckTokenRefused, AckTokens};
pub use vapid::{VapidKey, VapidKeyRefused};
