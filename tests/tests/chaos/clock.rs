//! Clock steps: leases, deadlines and waits are durations, and do not change when somebody sets the clock.
//!
//! On PostgreSQL it is the database's clock, on SQLite that of the machine; both are the real programs under
//! libfaketime.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use relais_testkit::{FakedClock, PostgresServer};
use relais_tests::{chaos::Api, instance::Instance};
use serde_json::{Value, json};

const HOUR: i64 = 3600;
const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_step_expires_no_lease_and_loses_no_task_on_postgresql() -> Result<()> {
    let clock = FakedClock::create()?;
    let database = PostgresServer::options().environment(clock.environment()).start().await?;
    let server = Instance::start(database.url("postgres")).await?;
    takes_nothing_away(&server, &clock).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_step_expires_no_lease_and_loses_no_task_on_sqlite() -> Result<()> {
    let (clock, folder) = (FakedClock::create()?, tempfile::tempdir()?);
    let mut options = Instance::options(format!("sqlite:{}", folder.path().join("relais.db").display()));
    for (name, value) in clock.environment() {
        options = options.env(&name, value);
    }
    takes_nothing_away(&options.start().await?, &clock).await
}

async fn takes_nothing_away(server: &Instance, clock: &FakedClock) -> Result<()> {
    let world = World::new(server).await?;
    let held = world.submit("steady", json!({})).await?;
    world.claim("steady", &held, 1).await?;
    let failed = world.submit("patient", json!({})).await?;
    world.claim("patient", &failed, 1).await?;
    world.say("patient", &failed, 1, json!({"messageType": "failure", "errorMessage": "not yet"})).await?;
    let appointed = world.submit("brief", json!({"delay": "2h"})).await?;
    let before = world.task(&held).await?["submitionDate"].clone();

    clock.set(3 * HOUR)?;
    // What comes into its queue by the time says that somebody looked at the clock since; so does what had its date.
    world.claim("brief", &appointed, 1).await?;
    let late = world.submit("brief", json!({"delay": "100ms"})).await?;
    world.claim("brief", &late, 1).await?;
    let after = world.task(&late).await?["submitionDate"].clone();
    ensure!(before.as_str().map(|date| &date[..13]) != after.as_str().map(|date| &date[..13]), "{before}, {after}");
    ensure!(world.task(&failed).await?["status"] == "PENDING", "an hour until the next attempt is an hour");
    let running = world.task(&held).await?;
    ensure!(running["status"] == "IN_PROGRESS", "its worker is well: {running}");
    let told = world.say("steady", &held, 1, json!({"messageType": "success", "response": 1})).await?;
    ensure!(told == "accepted", "{told}");

    clock.set(0)?;
    // A lease of two seconds that began three hours from now is over in two seconds.
    world.claim("brief", &late, 2).await?;
    ensure!(world.task(&failed).await?["status"] == "PENDING");
    Ok(())
}

struct World {
    admin: Api,
    client: Api,
}

impl World {
    async fn new(server: &Instance) -> Result<Self> {
        let admin = Api::admin(server.url())?;
        let services = [("steady", "30s"), ("brief", "2s"), ("patient", "30s")];
        let authorized =
            services.map(|(name, _)| json!({"clientId": "client", "serviceName": name, "roles": ["consume", "work"]}));
        let services = services.map(|(name, lease)| {
            let retry = if name == "patient" { json!({"limit": 3, "base": "1h"}) } else { Value::Null };
            json!({"serviceName": name, "lease": lease, "retry": retry})
        });
        let declaration = json!({
            "services": services, "authorizations": authorized,
            "clients": [{"clientId": "client", "clientSecret": "hush"}],
        });
        admin.post("/admin/apply", &declaration).await?.data()?;
        let client = admin.with("client", "hush");
        Ok(Self { admin, client })
    }

    async fn submit(&self, service: &str, mut request: Value) -> Result<String> {
        request["body"] = json!({});
        let taken = self.client.post(&format!("/v1/services/{service}/tasks"), &request).await?.data()?;
        Ok(taken["taskId"].as_str().context("a task without a name")?.to_owned())
    }

    async fn task(&self, id: &str) -> Result<Value> {
        Ok(self.admin.get(&format!("/admin/tasks/{id}")).await?.data()?["task"].take())
    }

    /// Gets this task, at this attempt, and says nothing of any other.
    async fn claim(&self, service: &str, id: &str, attempt: u64) -> Result<()> {
        let begun = Instant::now();
        loop {
            let request = json!({"max": 1, "wait": "2s"});
            let claimed = self.client.post(&format!("/v1/services/{service}/claims"), &request).await?.data()?;
            let task = &claimed["tasks"][0];
            if task["taskId"] == id {
                ensure!(task["attempt"] == attempt, "{task}");
                return Ok(());
            }
            ensure!(begun.elapsed() < PATIENCE, "nobody handed it out, but {claimed}");
        }
    }

    async fn say(&self, service: &str, id: &str, attempt: u64, data: Value) -> Result<String> {
        let message = json!({"taskId": id, "attempt": attempt, "data": data});
        let told = self.client.post(&format!("/v1/services/{service}/messages"), &message).await?.data()?;
        Ok(told["outcomes"][0]["outcome"].as_str().unwrap_or_default().to_owned())
    }
}
