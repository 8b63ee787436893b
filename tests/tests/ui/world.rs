//! A Relais with something of everything to look at.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use relais_tests::{
    app::{Backend, TestApp, secret},
    browser::Browser,
};
use serde_json::{Value, json};

/// What is declared: a service with all that a service can have, one that nobody works for, schedules.
fn declaration() -> Value {
    let client = |id: &str| json!({"clientId": id, "clientSecret": secret(id)});
    let may =
        |client: &str, service: &str, role: &str| json!({"clientId": client, "serviceName": service, "roles": [role]});
    json!({
        "services": [
            {"serviceName": "resize", "capacity": 1000, "maxRunning": 4, "jsonSchema": {
                "type": "object",
                "properties": {"width": {"type": "integer", "minimum": 1}, "apiKey": {"type": "string", "writeOnly": true}},
            }},
            {"serviceName": "ocr"},
            {"serviceName": "report-all"},
            {"serviceName": "assemble"},
        ],
        "clients": [
            {"clientId": "acme", "clientSecret": secret("acme"),
             "notifications": {"emit": ["GROUP", "USER", "<b>any</b>"], "audience": ["*"], "ticket": ["FORMATION"]}},
            client("globex"),
            {"clientId": "worker", "clientSecret": secret("worker"), "notifications": {"ticket": true}},
        ],
        "authorizations": [
            may("acme", "resize", "consume"), may("globex", "resize", "consume"), may("acme", "ocr", "consume"),
            may("acme", "report-all", "consume"), may("acme", "assemble", "consume"), may("worker", "resize", "work"), may("worker", "ocr", "work"),
        ],
        "schedules": [
            {"scheduleName": "nightly", "serviceName": "report-all", "clientId": "acme", "cron": "30 2 * * 1-5", "timeZone": "Europe/Paris"},
            {"scheduleName": "rare", "serviceName": "resize", "clientId": "acme", "cron": "0 0 1 1 *", "body": {"width": 7}},
        ],
    })
}

/// A world, and the names of some tasks in it.
pub struct World {
    pub app: TestApp,
    /// Failed, with a trace.
    pub failed: String,
    /// Ended well, with a callback that nobody takes.
    pub done: String,
    /// Has a worker.
    pub running: String,
    /// Waits.
    pub pending: String,
    /// A part of the one that is done, in a batch.
    pub part: String,
    /// Another part, which waits for the first.
    pub next_part: String,
    /// Their batch.
    pub batch: String,
}

pub const HOSTILE: &str = "</pre><script>window.hacked = 1</script><img src=x onerror=\"window.hacked = 2\">";

impl World {
    pub async fn start(change: impl FnOnce(&mut relais_api::ApiOptions)) -> World {
        let app = TestApp::builder(Backend::Sqlite).declaring(declaration()).api(change).start().await;
        let (acme, worker) = (app.client("acme"), app.client("worker"));
        let body = json!({"width": 100, "apiKey": "sk-very-secret", "note": HOSTILE, "big": "BIG"});
        let body = body.to_string().replace("\"BIG\"", "12345678901234567890123");
        let submit = async |rest: &str| {
            let text = format!("{{\"body\": {body}{rest}}}");
            let answer = acme.post_text("/v1/services/resize/tasks", text).await;
            answer.data()["taskId"].as_str().unwrap_or_default().to_owned()
        };
        let claim = json!({"max": 1, "hostName": "worker-1", "lease": "1h"});
        let done = submit(
            r#", "correlationId": "order-7", "callback": {"type": "https", "url": "https://relais.invalid/told"}"#,
        )
        .await;
        worker.claim("resize", claim.clone()).await;
        worker.report("resize", &done, json!({"messageType": "success", "response": {"url": "x", "big": 1}})).await;
        let failed = submit(r#", "correlationId": "order-7""#).await;
        worker.claim("resize", claim.clone()).await;
        let failure =
            json!({"messageType": "failure", "errorMessage": HOSTILE, "errorKind": "io", "errorTrace": "at line 1"});
        worker.report("resize", &failed, failure).await;
        let running = submit("").await;
        worker.claim("resize", claim).await;
        worker.report("resize", &running, json!({"messageType": "progress", "progress": 42.0})).await;
        let pending = submit("").await;
        for i in 0..5 {
            acme.submit("ocr", json!({"page": i})).await;
        }
        let parts = json!({"tasks": [
            {"service": "assemble", "body": {"part": 1}, "ref": "first", "parentId": done},
            {"service": "assemble", "body": {"part": 2}, "after": {"refs": ["first"]}, "parentId": done},
        ]});
        let made = acme.post("/v1/batches", &parts).await.data();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (part, next_part) = (text(&made["tasks"][0]["taskId"]), text(&made["tasks"][1]["taskId"]));
        World { app, failed, done, running, pending, part, next_part, batch: text(&made["batchId"]) }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.app.address())
    }

    /// The name of the callback of the task that is done.
    pub async fn callback(&self) -> String {
        let page = self.app.caller().get(&format!("/admin/callbacks?taskId={}", self.done)).await.data();
        page["callbacks"][0]["callbackId"].as_str().unwrap_or_default().to_owned()
    }

    /// What operators did, as words.
    pub async fn audit(&self) -> Vec<String> {
        let log = self.app.engine.list_audit(None, 200).await;
        let entries = log.map(|log| log.entries).unwrap_or_default();
        entries.into_iter().map(|entry| format!("{} {} {}", entry.actor, entry.action, entry.target)).collect()
    }
}

/// Where pictures are kept.
pub fn pictures() -> Result<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("ui");
    std::fs::create_dir_all(&folder).context("make a folder for the pictures")?;
    Ok(folder)
}

/// Looks for what keeps people out: what axe finds to be serious or critical.
pub async fn accessible(browser: &Browser, what: &str) -> Result<()> {
    let path = match std::env::var_os("RELAIS_TEST_AXE") {
        Some(path) => PathBuf::from(path),
        None => {
            let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
            let target = target.parent().context("no target folder")?;
            target.join("axe/node_modules/axe-core/axe.min.js")
        }
    };
    let axe = std::fs::read_to_string(&path).with_context(|| {
        format!(
            "{} is not there: `cargo xtask test` fetches it, or `npm install --prefix target/axe axe-core`",
            path.display()
        )
    })?;
    browser.ask(&format!("{axe}; true")).await?;
    let found = browser
        .ask(
            "axe.run(document, {resultTypes: ['violations']}).then((found) => found.violations
                .filter((one) => ['serious', 'critical'].includes(one.impact))
                .map((one) => `${one.id}: ${one.nodes.slice(0, 3).map((node) => node.html + ' ' + (node.any[0]?.message ?? '')).join(' | ')}`))",
        )
        .await?;
    ensure!(found.as_array().is_some_and(Vec::is_empty), "{what}: {found:#}");
    Ok(())
}
