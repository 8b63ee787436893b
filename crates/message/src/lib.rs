//! What a message is, and where messages go.
//!
//! A [`Message`] is a fact that one service tells others: "order placed". It is the same whatever carries it. A [`Sink`] is
//! where messages go: a RabbitMQ exchange, a Redis stream, a Kafka topic, an HTTP endpoint. A [`Template`] makes a
//! destination of a message's fields, and an [`Envelope`] says how the payload is wrapped.
//!
//! Nothing here opens a connection. The drivers are in `relais-messaging`; the conformance suite of [`Sink`] is in
//! `relais-testkit` (`sink_suite`).
//!
//! ```
//! use relais_message::{Envelope, Message, Template};
//!
//! let message = Message::new("7d9c", "order.placed", br#"{"order":7,"customer":"c-1"}"#.to_vec()).with_key("order-7");
//!
//! let topic = Template::parse("orders.{event_type}")?;
//! assert_eq!(topic.render(&message)?, "orders.order.placed");
//! let key = Template::parse("{payload.customer}")?;
//! assert_eq!(key.render(&message)?, "c-1");
//!
//! let wrapped = Envelope::CloudEvents.wrap(&message, "/outboxes/orders", "ce-");
//! assert_eq!(wrapped.content_type, "application/cloudevents+json");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod envelope;
mod message;
mod order;
mod sink;
mod template;

pub use envelope::Envelope;
pub use message::{Headers, Message, header};
pub use order::in_waves;
pub use sink::{Durability, PublishOutcome, RoutedMessage, Sink};
pub use template::{RenderError, Template, TemplateError, TemplateField, TemplateFields};
