//! Pages that change by themselves, and that cost nothing while nothing happens.

use anyhow::{Result, ensure};
use relais_tests::browser::Browser;
use serde_json::json;

use super::world::World;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_page_updates_live() -> Result<()> {
    let world = World::start(|_| {}).await;
    let browser = Browser::start().await?;
    browser.open(&world.url(&format!("/ui/tasks/{}", world.running))).await?;
    browser.until("document.documentElement.dataset.following === 'yes'").await?;
    ensure!(browser.text().await?.contains("42 %"));
    let worker = world.app.client("worker");
    worker.report("resize", &world.running, json!({"messageType": "progress", "progress": 77.0})).await;
    browser.until("document.body.innerText.includes('77 %')").await?;
    worker.report("resize", &world.running, json!({"messageType": "success", "response": {"seen": true}})).await;
    browser.until("document.body.innerText.includes('\"seen\"')").await?;
    browser.no_complaints("a task that goes")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_list_does_not_change_while_it_is_used() -> Result<()> {
    let world = World::start(|_| {}).await;
    let browser = Browser::start().await?;
    browser.open(&world.url("/ui/tasks?q=service:ocr")).await?;
    browser.until("document.documentElement.dataset.following === 'yes'").await?;
    let acme = world.app.client("acme");
    acme.submit("ocr", json!({})).await;
    browser.until("document.querySelectorAll('tbody tr').length === 6").await?;
    // With a box ticked, the list is left alone until one asks for it.
    browser.ask("document.querySelector('input[name=task]').click()").await?;
    acme.submit("ocr", json!({})).await;
    browser.until("document.querySelector('#more') !== null").await?;
    ensure!(browser.ask("document.querySelectorAll('tbody tr').length").await? == 6);
    browser.ask("document.querySelector('#more').click()").await?;
    browser.until("document.querySelectorAll('tbody tr').length === 7").await?;
    browser.no_complaints("a list that grows")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_page_sends_no_requests() -> Result<()> {
    let world = World::start(|_| {}).await;
    let (quiet, watching) = (Browser::start().await?, Browser::start().await?);
    // Clients do not change when tasks do.
    quiet.open(&world.url("/ui/clients")).await?;
    watching.open(&world.url("/ui/tasks?q=service:ocr")).await?;
    for browser in [&quiet, &watching] {
        browser.until("document.documentElement.dataset.following === 'yes'").await?;
    }
    quiet.ask("performance.clearResourceTimings()").await?;
    for rows in 6..9 {
        world.app.client("acme").submit("ocr", json!({})).await;
        watching.until(&format!("document.querySelectorAll('tbody tr').length === {rows}")).await?;
    }
    let asked = quiet.ask("performance.getEntriesByType('resource').length").await?;
    ensure!(asked == 0, "the page asked {asked} times");
    // It would have heard.
    world.app.apply(json!({"clients": [{"clientId": "newcomer", "clientSecret": "a secret that is long"}]})).await;
    quiet.until("document.body.innerText.includes('newcomer')").await?;
    ensure!(quiet.ask("performance.getEntriesByType('resource').length").await? == 1, "and asked once");
    quiet.no_complaints("a quiet page")
}
