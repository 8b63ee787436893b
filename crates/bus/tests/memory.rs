//! The bus in memory, held to the suite.

mod suite;

use futures::FutureExt;
use relais_bus::{Bus, Features};

async fn harness() -> suite::Harness {
    // All instances are the same bus: there is one process.
    let bus = Bus::in_memory();
    let make = move |_: &str| futures::future::ready(bus.clone()).boxed();
    suite::Harness { features: Features::MEMORY, make: Box::new(make) }
}

conformance!(harness());
