//! The bus's metrics, through the `metrics` facade. Those of push workers are in `relais-push-worker`.
//!
//! Handles are made once: for the bus when it is built, for a channel at its first event. Install the recorder first.

use metrics::{Counter, Gauge, counter, gauge};

/// The label of channels that are too many to have one each.
pub(crate) const OTHER: &str = "other";

/// What the whole bus reports.
#[derive(Debug)]
pub(crate) struct Telemetry {
    prefix: String,
    pub(crate) subscriptions: Gauge,
    pub(crate) queue_size: Gauge,
    pub(crate) queue_capacity: Gauge,
}

/// What is reported for each channel.
#[derive(Clone)]
pub(crate) struct ChannelMetrics {
    pub(crate) published: Counter,
    pub(crate) delivered: Counter,
    pub(crate) failed: Counter,
    pub(crate) dropped: Counter,
}

impl Telemetry {
    pub(crate) fn new(prefix: &str) -> Self {
        describe(prefix);
        Self {
            prefix: prefix.to_owned(),
            subscriptions: gauge!(format!("{prefix}eventbus_subscriptions_active")),
            queue_size: gauge!(format!("{prefix}eventbus_queue_size")),
            queue_capacity: gauge!(format!("{prefix}eventbus_queue_capacity")),
        }
    }

    pub(crate) fn channel(&self, channel: &str) -> ChannelMetrics {
        let prefix = &self.prefix;
        let counter = |name: &str| counter!(format!("{prefix}eventbus_{name}_total"), "channel" => channel.to_owned());
        ChannelMetrics {
            published: counter("published"),
            delivered: counter("delivered"),
            failed: counter("failed"),
            dropped: counter("dropped"),
        }
    }
}

fn describe(prefix: &str) {
    for (name, text) in [
        ("eventbus_published_total", "Events published, by channel."),
        ("eventbus_delivered_total", "Events put into subscribers' queues, by channel."),
        ("eventbus_failed_total", "Events that a handler or worker failed on for good, by channel."),
        ("eventbus_dropped_total", "Events lost to a subscriber whose queue was full, by channel."),
    ] {
        metrics::describe_counter!(format!("{prefix}{name}"), text);
    }
    for (name, text) in [
        ("eventbus_subscriptions_active", "Subscriptions."),
        ("eventbus_queue_size", "Events that wait in subscribers' queues."),
        ("eventbus_queue_capacity", "Events that can wait in subscribers' queues."),
    ] {
        metrics::describe_gauge!(format!("{prefix}{name}"), text);
    }
}
