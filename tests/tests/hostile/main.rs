//! What an honest client still gets while somebody tries to stop the server.
//!
//! The real binary with its defaults, on loopback. Each attack is bounded in number, and stops with its test. A test
//! prints the 99th percentile of `/healthz` and of a known client's submissions, without the attack and during it. The
//! bar is five times as long as without. A busy machine adds its own pauses, so a test fails only above [`NOISE`] too:
//! what these attacks did before they were met took seconds and minutes.

mod connections;
mod methods;
mod numbers;
mod secrets;

use std::{
    io::Write as _,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use relais_tests::{
    chaos::Api,
    instance::{Instance, InstanceOptions},
};
use serde_json::{Value, json};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// The bar: so many times as long as without the attack.
const TIMES: u32 = 5;
/// What a machine with other work may add to anything.
const NOISE: Duration = Duration::from_millis(500);
/// So often is each of the two asked for.
const ASKED: usize = 300;
/// How long an attacker pauses between two tries.
const PAUSE: Duration = Duration::from_millis(20);
/// The address that attacks come from. The honest client has another.
const ATTACKER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// A server, and an honest client of it.
struct Scene {
    server: Instance,
    http: reqwest::Client,
    _folder: tempfile::TempDir,
}

/// How long answers took, sorted.
struct Figures {
    healthz: Vec<Duration>,
    submit: Vec<Duration>,
}

impl Scene {
    async fn set(options: impl FnOnce(InstanceOptions) -> InstanceOptions) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let database = format!("sqlite:{}", folder.path().join("relais.db").display());
        // Secrets are as hard to check as they are by default.
        let instance = Instance::options(database).env("RELAIS_AUTH_BCRYPT_COST", "10");
        let server = options(instance).start().await?;
        let admin = Api::admin(server.url())?;
        admin.post("/admin/apply", &world()).await?.data()?;
        Ok(Self { server, http: client(None, false)?, _folder: folder })
    }

    fn address(&self) -> Result<SocketAddr> {
        self.server.url().trim_start_matches("http://").parse().context("the server's address")
    }

    /// The honest client's requests, one after the other.
    async fn ask(&self) -> Result<Figures> {
        let (mut healthz, mut submit) = (Vec::new(), Vec::new());
        for _ in 0..ASKED {
            let begun = Instant::now();
            let answer = self.http.get(format!("{}/healthz", self.server.url())).send().await?;
            ensure!(answer.status() == 200, "/healthz answered {}", answer.status());
            healthz.push(begun.elapsed());
            let begun = Instant::now();
            let answer = self.submit("alice", "strict", &json!({"sleep": 1})).await?;
            ensure!(answer.status() == 201, "a submission was answered {}", answer.status());
            submit.push(begun.elapsed());
        }
        healthz.sort_unstable();
        submit.sort_unstable();
        Ok(Figures { healthz, submit })
    }

    async fn submit(&self, client_id: &str, service: &str, body: &Value) -> Result<reqwest::Response> {
        let url = format!("{}/v1/services/{service}/tasks", self.server.url());
        let request = self.http.post(url).basic_auth(client_id, Some(secret(client_id)));
        Ok(request.json(&json!({"body": body})).send().await?)
    }

    /// Compares what the honest client gets without an attack and during one. The attack begins with the first call of
    /// what `attack` returns, and ends when its token is cancelled.
    async fn compare(&self, what: &str, attack: impl FnOnce(&TaskTracker, &CancellationToken)) -> Result<()> {
        self.ask().await?;
        let idle = self.ask().await?;
        let (attackers, stop) = (TaskTracker::new(), CancellationToken::new());
        attack(&attackers, &stop);
        let attacked = self.ask().await;
        stop.cancel();
        attackers.close();
        tokio::time::timeout(Duration::from_secs(60), attackers.wait()).await.context("the attack does not stop")?;
        let attacked = attacked?;
        for (asked, idle, attacked) in
            [("/healthz", &idle.healthz, &attacked.healthz), ("submit", &idle.submit, &attacked.submit)]
        {
            let (before, during) = (percentile(idle, 99), percentile(attacked, 99));
            say(&format!(
                "{what}: {asked} p50 {:?} and p99 {before:?} without, p50 {:?} and p99 {during:?} during it: {:.1} times",
                percentile(idle, 50),
                percentile(attacked, 50),
                during.as_secs_f64() / before.as_secs_f64(),
            ));
            ensure!(during <= (before * TIMES).max(NOISE), "{what}: p99 of {asked} went from {before:?} to {during:?}");
        }
        Ok(())
    }
}

/// Tells what was measured, also where the test passes: what is printed would be shown only where it fails.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

fn secret(client_id: &str) -> String {
    format!("the secret of {client_id}")
}

/// `alice` and `bob` are honest, `mallory` has credentials and attacks.
fn world() -> Value {
    let clients = ["alice", "bob", "mallory"];
    let may = |client: &str, service: &str| json!({"clientId": client, "serviceName": service, "roles": ["consume"]});
    json!({
        "services": [
            {"serviceName": "strict", "jsonSchema": {"required": ["sleep"], "properties": {"sleep": {"type": "number"}}}},
            {"serviceName": "unique", "jsonSchema": {"properties": {
                "items": {"uniqueItems": true},
                "steps": {"items": {"minimum": 0.5, "multipleOf": 0.01}},
            }}},
        ],
        "clients": clients.map(|id| json!({"clientId": id, "clientSecret": secret(id)})),
        "authorizations": [
            may("alice", "strict"), may("bob", "strict"), may("mallory", "unique"),
        ],
    })
}

/// An HTTP client, from this address, that connects anew each time or keeps its connections.
fn client(from: Option<IpAddr>, anew: bool) -> Result<reqwest::Client> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = reqwest::Client::builder().tls_certs_only([]).no_proxy().local_address(from);
    let builder = if anew { builder.pool_max_idle_per_host(0) } else { builder };
    Ok(builder.timeout(Duration::from_secs(120)).build()?)
}

/// Does something again and again until it is to stop, at most so often, and with a pause in between: what is measured
/// is the server, not who gets more of the machine's two processors.
async fn again(stop: CancellationToken, most: usize, mut act: impl AsyncFnMut(usize)) {
    for turn in 0..most {
        let paced = async {
            act(turn).await;
            tokio::time::sleep(PAUSE).await;
        };
        tokio::select! {
            () = paced => {}
            () = stop.cancelled() => return,
        }
    }
}
