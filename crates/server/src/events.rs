//! The event bus as the configuration wants it: the one place that knows which transports there are.

use std::sync::Arc;

use anyhow::Context as _;
use relais_bus::{Bus, redis::RedisPubSub};
use relais_core::Store;
use relais_engine::{BusOptions, StoreTransport};

use crate::{
    cli::install_tls_provider,
    config::{Config, EventsMode, EventsPublish},
};

/// Builds the bus, which the engine starts. Metrics must be installed before.
pub fn bus_options(config: &Config, store: &Arc<dyn Store>) -> anyhow::Result<BusOptions> {
    let events = &config.events;
    let mode = mode(config)?;
    let builder = Bus::builder()
        .queue_capacity(events.queue_capacity)
        .offer_timeout(events.offer_timeout.0)
        .metrics_prefix(&events.metrics_prefix);
    let bus = match mode {
        _ if !events.enabled => builder.build(),
        EventsMode::Redis => {
            install_tls_provider();
            let url = config.redis.address().map_err(anyhow::Error::msg)?;
            let transport = RedisPubSub::new(url.expose()).with_context(|| format!("Redis {url} can not be used"))?;
            tracing::info!(redis = %url, "events and wake-ups go over Redis");
            builder.transport(transport).build()
        }
        EventsMode::Postgres => builder.transport(StoreTransport::new(Arc::clone(store))).build(),
        EventsMode::Auto | EventsMode::InMemory => builder.build(),
    };
    Ok(BusOptions {
        bus,
        enabled: events.enabled,
        shared: matches!(mode, EventsMode::Redis | EventsMode::Postgres),
        wakeups: wakeups_on_bus(config)?,
        always: events.publish == EventsPublish::Always,
        queue: events.queue_capacity,
    })
}

/// Whether processes wake each other over the bus. Else they do through the store.
pub fn wakeups_on_bus(config: &Config) -> anyhow::Result<bool> {
    Ok(config.events.enabled && mode(config)? == EventsMode::Redis)
}

fn mode(config: &Config) -> anyhow::Result<EventsMode> {
    config.events_mode().map_err(anyhow::Error::msg)
}
