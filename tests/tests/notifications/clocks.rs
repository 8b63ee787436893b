//! Processes whose clocks differ: the database's clock decides what is due, what has expired and who is let in.

use anyhow::{Context as _, Result, ensure};
use relais_testkit::{FakedClock, TestDatabase};
use relais_tests::{app::secret, chaos::Api, instance::Instance};
use serde_json::{Value, json};

use crate::stage::{declaration, text, to};

/// More than a message is valid.
const DAYS: i64 = 20 * 86_400;

/// What a user's poll shows: payloads.
async fn payloads(api: &Api, ticket: &str, cursor: &str) -> Result<Vec<Value>> {
    let path = format!("/v1/notifications/poll?ticket={ticket}&after={cursor}&wait=30s");
    let answer = api.get(&path).await?.data()?;
    let events = answer["events"].as_array().context("events")?.clone();
    Ok(events.into_iter().map(|event| event["data"]["payload"].clone()).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_whose_clock_is_wrong_neither_drops_nor_delays_nor_locks_out() -> Result<()> {
    let (database, clock) = (TestDatabase::create().await?, FakedClock::create()?);
    let right = Instance::start(database.url()).await?;
    Api::admin(right.url())?.post("/admin/apply", &declaration()).await?.data()?;
    for skew in [DAYS, -DAYS] {
        clock.set(skew)?;
        let mut options = Instance::options(database.url());
        for (name, value) in clock.environment() {
            options = options.env(&name, value);
        }
        let wrong = options.start().await?;
        let shops = [&right, &wrong].map(|instance| Api::admin(instance.url()));
        let shops =
            shops.into_iter().map(|admin| Ok(admin?.with("shop", &secret("shop")))).collect::<Result<Vec<_>>>()?;
        for (emitter, reader) in [(0, 1), (1, 0)] {
            let user = format!("ann{skew}{emitter}");
            let asked = json!({"user": user, "ttl": "10m"});
            // Made by the one, used at the other.
            let ticket = shops[emitter].post("/v1/notifications/tickets", &asked).await?.data()?;
            let ticket = text(&ticket["ticket"]);
            let begun = shops[reader].get(&format!("/v1/notifications/poll?ticket={ticket}")).await?.data()?;
            let draft = to("USER", &[&user], json!({"skew": skew, "emitter": emitter}));
            let emitted = shops[emitter].post("/v1/notifications", &draft).await?.data()?;
            let found = payloads(&shops[reader], &ticket, &text(&begun["cursor"])).await?;
            ensure!(found == [draft["payload"].clone()], "{skew}: {found:?}");
            let shown = Api::admin(right.url())?.get(&format!("/admin/notifications/{}", text(&emitted["id"]))).await?;
            ensure!(shown.data()?["status"] == "OPEN", "{skew}: it has not expired");
        }
    }
    Ok(())
}
