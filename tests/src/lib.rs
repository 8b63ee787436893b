//! What the tests that look at Relais from the outside share.
//!
//! Nothing here knows how Relais works inside: an [`app::TestApp`] is the real store, the real engine and the real
//! routes behind a real TCP port, and a test talks to it as a stranger would.

pub mod amqp;
pub mod app;
pub mod browser;
pub mod chaos;
pub mod instance;
pub mod prepared;
pub mod receiver;
pub mod tail;
