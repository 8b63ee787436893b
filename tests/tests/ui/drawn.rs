//! The pictures of the README: pages as they are, written down as SVG, which is text.
//!
//! `cargo xtask pictures` puts them into `docs/images`; any other run draws them beside the screenshots, so that it is
//! known that they can be drawn. Names and dates are made the same each time, so that a run changes only what has
//! changed.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use relais_tests::{
    app::{Backend, TestApp, secret},
    browser::{Browser, Look},
};
use serde_json::{Value, json};

use super::world::pictures;

/// Where pictures go that are to be kept.
const KEPT: &str = "RELAIS_PICTURES";

/// No picture is larger than this: it is loaded by everybody who looks at the README.
const MOST_BYTES: usize = 80 * 1024;

const WIDTH: u32 = 1180;

/// A page, as one SVG of this height: its elements and its styles, without scripts, and without what nobody sees.
const DRAW: &str = include_str!("draw.js");

/// Services of a shop, at work for a quarter of an hour.
async fn shop() -> Result<(TestApp, String)> {
    let services = ["thumbnails", "invoices", "transcribe", "emails"];
    let client = |id: &str| json!({"clientId": id, "clientSecret": secret(id)});
    let may =
        |client: &str, service: &str, role: &str| json!({"clientId": client, "serviceName": service, "roles": [role]});
    let mut authorizations = Vec::new();
    for service in services {
        authorizations.extend([may("shop", service, "consume"), may("worker", service, "work")]);
    }
    let app = TestApp::builder(Backend::Sqlite)
        .declaring(json!({
            "services": [
                {"serviceName": "thumbnails", "capacity": 5000, "maxRunning": 16},
                {"serviceName": "invoices", "maxRunning": 8},
                {"serviceName": "transcribe", "capacity": 20, "maxRunning": 4},
                {"serviceName": "emails"},
            ],
            "clients": [client("shop"), client("worker")],
            "authorizations": authorizations,
            "schedules": [{"scheduleName": "monthly", "serviceName": "invoices", "clientId": "shop", "cron": "0 6 1 * *"}],
        }))
        .start()
        .await;
    let (shop, worker) = (app.client("shop"), app.client("worker"));
    let submit = async |service: &str, count: usize| {
        let tasks = vec![json!({"body": {}}); count];
        let answer = shop.post(&format!("/v1/services/{service}/tasks/batch"), &json!({"tasks": tasks})).await;
        ensure!(answer.status < 300, "{}", answer.text);
        Ok(())
    };
    let claim = async |service: &str, host: &str, count: usize| {
        let request = json!({"max": count, "hostName": host, "lease": "1h"});
        let taken = worker.post(&format!("/v1/services/{service}/claims"), &request).await.data();
        taken["tasks"].as_array().cloned().unwrap_or_default()
    };
    let tell = async |service: &str, tasks: &[Value], said: &dyn Fn(usize) -> Value| {
        let told = tasks
            .iter()
            .enumerate()
            .map(|(i, task)| json!({"taskId": task["taskId"], "attempt": task["attempt"], "data": said(i)}));
        let messages = json!({"messages": Value::Array(told.collect())});
        let answer = worker.post(&format!("/v1/services/{service}/messages"), &messages).await;
        ensure!(answer.status < 300, "{}", answer.text);
        Ok(())
    };
    // Ten seconds each: how much there is to do goes up and down, and one service has trouble at the end.
    let begun = Instant::now();
    for step in 0..90_u64 {
        for (number, service) in services.iter().enumerate() {
            let wave = (step as f64 / (7.0 + number as f64)).sin() + 1.0;
            let count = [9.0, 3.0, 0.6, 5.0][number] * wave + (step % 3) as f64 * 0.7;
            let count = count as usize;
            if count == 0 {
                continue;
            }
            submit(service, count).await?;
            let taken = claim(service, &format!("{service}-7c9f-{}", step % 3), count).await;
            let bad = *service == "emails" && step > 74;
            let said = |i: usize| match bad && i.is_multiple_of(2) {
                true => json!({"messageType": "failure", "errorMessage": "smtp: 421 try again later"}),
                false => json!({"messageType": "success"}),
            };
            tell(service, &taken, &said).await?;
        }
        app.engine.sample_at(begun + Duration::from_secs(10 * step)).await?;
    }
    // What is to be seen on a page of its own.
    let body = json!({"order": 81_730, "currency": "EUR", "lines": [{"sku": "A-113", "qty": 2, "price": 19.9}]});
    let asked = json!({"body": body, "correlationId": "order-81730"});
    let task = shop.post("/v1/services/invoices/tasks", &asked).await.data()["taskId"].clone();
    let task = task.as_str().context("no task")?.to_owned();
    let mail =
        json!({"body": {"to": "jo@example.org"}, "parentId": task, "after": {"tasks": [task], "when": "allEnded"}});
    ensure!(shop.post("/v1/services/emails/tasks", &mail).await.status < 300);
    let later = async |seconds: f64| app.store.advance(Duration::from_secs_f64(seconds)).await;
    later(2.4).await?;
    let first = claim("invoices", "invoices-7c9f-1", 1).await;
    later(12.4).await?;
    let failure =
        json!({"messageType": "failure", "errorKind": "http", "errorMessage": "tax service: 502 Bad Gateway"});
    tell("invoices", &first, &|_| failure.clone()).await?;
    ensure!(app.caller().post_nothing(&format!("/admin/tasks/{task}/retry")).await.status == 200);
    later(29.6).await?;
    let second = claim("invoices", "invoices-7c9f-2", 1).await;
    later(3.25).await?;
    let done = json!({"messageType": "success", "response": {"invoice": "2026-00417", "pages": 2, "total": 39.8}});
    tell("invoices", &second, &|_| done.clone()).await?;
    // What waits and what runs.
    submit("transcribe", 14).await?;
    let running = claim("transcribe", "transcribe-gpu-0", 4).await;
    tell("transcribe", &running, &|i| json!({"messageType": "progress", "progress": 20.0 * i as f64 + 11.0})).await?;
    submit("thumbnails", 37).await?;
    claim("thumbnails", "thumbnails-7c9f-0", 9).await;
    later(255.0).await?;
    Ok((app, task))
}

/// Where a picture goes.
fn place(name: &str) -> Result<PathBuf> {
    let folder = match std::env::var_os(KEPT) {
        Some(folder) => PathBuf::from(folder),
        None => pictures()?,
    };
    std::fs::create_dir_all(&folder)?;
    Ok(folder.join(format!("{name}.svg")))
}

fn sound(name: &str, svg: &str) -> Result<()> {
    ensure!(svg.len() < MOST_BYTES, "{name} has {} bytes", svg.len());
    for never in ["<script", "javascript:", "<image", "url(", "onload"] {
        ensure!(!svg.contains(never), "{name} has {never}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pictures_of_the_readme_can_be_drawn() -> Result<()> {
    let (app, task) = shop().await?;
    let browser = Browser::start().await?;
    browser.look(Look { language: "en", theme: "light", width: WIDTH }).await?;
    for (name, path, height) in [("overview", "/ui".to_owned(), 620), ("task", format!("/ui/tasks/{task}"), 900)] {
        browser.open(&format!("http://{}{path}", app.address())).await?;
        // The page that changes by itself says so.
        let settled =
            "!document.querySelector('#main').dataset.live || document.documentElement.dataset.following === 'yes'";
        browser.until(settled).await?;
        let svg = browser.ask(&format!("({DRAW})({WIDTH}, {height})")).await?;
        let svg = svg.as_str().context("nothing was drawn")?;
        sound(name, svg)?;
        std::fs::write(place(name)?, svg)?;
        // It is one: a browser shows it, as a picture, in light and in dark.
        let data = base64::engine::general_purpose::STANDARD.encode(svg);
        for theme in ["light", "dark"] {
            let shown = Browser::start().await?;
            shown.look(Look { language: "en", theme, width: WIDTH }).await?;
            shown.open("about:blank").await?;
            let width = shown
                .ask(&format!(
                    "(async () => {{ const picture = new Image(); picture.src = 'data:image/svg+xml;base64,{data}';
                         document.body.style.margin = 0; document.body.append(picture); await picture.decode(); return picture.naturalWidth; }})()"
                ))
                .await?;
            ensure!(width == WIDTH, "{name}: {width}");
            shown.picture(&pictures()?.join(format!("drawn-{name}-{theme}.png"))).await?;
        }
    }
    Ok(())
}

#[test]
fn the_pictures_of_the_readme_are_there() -> Result<()> {
    for name in ["overview", "task"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../docs/images/{name}.svg"));
        sound(
            name,
            &std::fs::read_to_string(&path).with_context(|| format!("{}: cargo xtask pictures", path.display()))?,
        )?;
    }
    Ok(())
}
