//! The pages of notifications: who is connected, the error log and the ledger, and what operators do about them.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use relais_engine::{Credentials, OperatorRole};
use relais_tests::{
    app::DEADLINE,
    browser::{Browser, Look},
};
use reqwest::redirect::Policy;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::world::{HOSTILE, World, accessible, pictures};

const DESKTOP: Look = Look { language: "en", theme: "light", width: 1380 };
const PHONE: Look = Look { language: "fr", theme: "dark", width: 390 };

/// A mark that turns the order of what follows.
const TURNED: &str = "ann\u{202e}nna";

/// Emits messages as the client `acme`; answers their ids.
async fn emit(world: &World, messages: Value) -> Result<Vec<String>> {
    let answer = world.app.client("acme").post("/v1/notifications", &messages).await;
    ensure!(answer.status == 201, "{}", answer.text);
    let ids = answer.data()["ids"].as_array().context("no ids")?.clone();
    Ok(ids.iter().filter_map(Value::as_str).map(str::to_owned).collect())
}

fn message(targets: &[&str], ack_required: bool) -> Value {
    json!({
        "payload": {"title": HOSTILE, "by": TURNED, "big": 1},
        "routing": {
            "audience": {"type": "USER", "targets": targets},
            "retry": {"ack_required": ack_required, "limit": 0},
        },
    })
}

/// A message that Ann has acknowledged and Ben has not, in the error log.
async fn failed(world: &World) -> Result<String> {
    let id = emit(world, json!([message(&["ann", "ben"], true)])).await?.remove(0);
    let ticket = world.app.client("acme").post("/v1/notifications/tickets", &json!({"user": "ann"})).await;
    ensure!(ticket.status == 201, "{}", ticket.text);
    let ticket = ticket.data()["ticket"].as_str().context("no ticket")?.to_owned();
    let url = world.url(&format!("/v1/notifications/{id}/ack?ticket={ticket}"));
    let acknowledged = reqwest::Client::builder().no_proxy().build()?.post(url).send().await?;
    ensure!(acknowledged.status().is_success(), "{}", acknowledged.text().await?);
    world.app.store.advance(Duration::from_secs(3600)).await?;
    // The timer is told that time has passed by whatever is emitted next.
    emit(world, json!([message(&["carl"], false)])).await?;
    let begun = Instant::now();
    loop {
        let seen = world.app.caller().get(&format!("/admin/notifications/{id}")).await.data();
        if seen["status"] == "FAILED" {
            return Ok(id);
        }
        ensure!(begun.elapsed() < DEADLINE, "it has not failed: {seen}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_error_log_says_who_is_missing_and_a_message_is_sent_again_and_withdrawn() -> Result<()> {
    let (world, browser) = (World::start(|_| {}).await, Browser::start().await?);
    let id = failed(&world).await?;
    browser.look(DESKTOP).await?;
    browser.open(&world.url("/ui")).await?;
    ensure!(browser.text().await?.contains("1 notifications of the last 7 days are in the error log"));
    browser.go("document.querySelector('.troubles a[href=\"/ui/notifications?status=FAILED\"]').click()").await?;
    let text = browser.text().await?;
    ensure!(text.contains("Not acknowledged by") && text.contains("ben") && !text.contains("ann "), "{text}");
    ensure!(browser.ask("document.querySelectorAll('tbody tr').length").await? == 1, "only what has failed");
    for look in [PHONE, DESKTOP] {
        browser.look(look).await?;
        for (name, path) in [
            ("notifications", "/ui/notifications".to_owned()),
            ("error-log", "/ui/notifications?status=FAILED".to_owned()),
            ("notification", format!("/ui/notifications/{id}")),
        ] {
            browser.open(&world.url(&path)).await?;
            let what = format!("{name}-{}-{}-{}", look.language, look.theme, look.width);
            browser.picture(&pictures()?.join(format!("{what}.png"))).await?;
            let wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth";
            ensure!(browser.ask(wide).await? == 0, "{what} is wider than its window");
            ensure!(browser.ask("window.hacked ?? null").await?.is_null(), "{what}: a payload became a script");
            browser.no_complaints(&what)?;
            accessible(&browser, &what).await?;
            browser.complaints();
        }
    }
    let text = browser.text().await?;
    ensure!(text.contains("Ledger") && text.contains("1 awaited"), "{text}");
    ensure!(
        text.contains(r"ann\u202enna") && !text.contains('\u{202e}'),
        "what turns the order is made visible: {text}"
    );
    browser.go("[...document.querySelectorAll('.headtools button')].find((one) => one.textContent === 'Send again').click()").await?;
    ensure!(browser.text().await?.contains("It is sent again to those who have not acknowledged it."));
    browser.ask("document.querySelector('.headtools details.careful > summary').click()").await?;
    browser.go("document.querySelector('.headtools details.careful button.danger').click()").await?;
    let text = browser.text().await?;
    ensure!(text.contains("It is withdrawn.") && text.contains("Withdrawn"), "{text}");
    let audit = world.audit().await;
    ensure!(audit[0] == format!("local notification.withdraw {id}"), "{audit:?}");
    ensure!(audit[1] == format!("local notification.resend {id}"), "{audit:?}");
    browser.no_complaints("send again and withdraw")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_test_message_reaches_an_open_link_and_the_page_follows() -> Result<()> {
    let (world, browser) = (World::start(|_| {}).await, Browser::start().await?);
    let ticket = world.app.client("acme").post("/v1/notifications/tickets", &json!({"user": "dora"})).await.data();
    let ticket = ticket["ticket"].as_str().context("no ticket")?;
    browser.open(&world.url("/ui/notifications")).await?;
    browser.until("document.documentElement.dataset.following === 'yes'").await?;
    ensure!(browser.text().await?.contains("No web page has a link to this process."));
    let url = world.url(&format!("/v1/notifications/stream?ticket={ticket}"));
    let mut link = reqwest::Client::builder().no_proxy().build()?.get(url).send().await?;
    let mut heard = String::new();
    while !heard.contains("event: hello") && !heard.contains("event:hello") {
        heard += std::str::from_utf8(&link.chunk().await?.context("the stream has ended")?)?;
    }
    emit(&world, json!([message(&["carl"], false)])).await?;
    browser.until("document.querySelector('#links').parentElement.innerText.includes('dora')").await?;
    browser
        .go("document.querySelector('#targets').value = 'dora, emil';
             document.querySelector('#payload').value = '{\"title\": \"hello from the dashboard\"}';
             document.querySelector('form.stack button').click()")
        .await?;
    let text = browser.text().await?;
    ensure!(text.contains("It is sent.") && text.contains("hello from the dashboard"), "{text}");
    while !heard.contains("hello from the dashboard") {
        heard += std::str::from_utf8(&link.chunk().await?.context("the stream has ended")?)?;
    }
    let audit = world.audit().await;
    ensure!(audit[0] == "local notification.send USER:dora,emil", "{audit:?}");
    browser.no_complaints("a test message")?;
    // What can not be sent is said.
    browser.open(&world.url("/ui/notifications")).await?;
    browser
        .go("document.querySelector('#audience').value = 'GROUP'; document.querySelector('#targets').value = 'nobody';
             document.querySelector('input[name=ackRequired]').click(); document.querySelector('form.stack button').click()")
        .await?;
    ensure!(browser.text().await?.contains("no members of its audience are declared"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_are_filtered_and_paged() -> Result<()> {
    let (world, browser) = (World::start(|_| {}).await, Browser::start().await?);
    let ids = emit(&world, Value::Array(vec![message(&["ann"], false); 60])).await?;
    world.app.client("acme").delete(&format!("/v1/notifications/{}", ids[0])).await;
    browser.look(DESKTOP).await?;
    browser.open(&world.url("/ui/notifications")).await?;
    ensure!(browser.ask("document.querySelectorAll('main > .scroll tbody tr').length").await? == 50);
    browser.go("document.querySelector('.pager a[rel=next]').click()").await?;
    ensure!(browser.ask("document.querySelectorAll('main > .scroll tbody tr').length").await? == 10);
    ensure!(browser.ask("document.querySelector('.pager a[rel=next]')").await?.is_null());
    browser
        .go("[...document.querySelectorAll('.tabs a')].find((one) => one.textContent.startsWith('Withdrawn')).click()")
        .await?;
    ensure!(browser.ask("document.querySelectorAll('main > .scroll tbody tr').length").await? == 1);
    browser.open(&world.url("/ui/notifications?status=FAILED")).await?;
    ensure!(browser.text().await?.contains("The error log is empty"));
    browser.no_complaints("lists")?;
    browser.open(&world.url("/ui/notifications/not-an-id")).await?;
    ensure!(browser.text().await?.contains("There is nothing here"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_only_read_sees_notifications_and_can_not_act() -> Result<()> {
    let operators = Credentials::default().with("olga", OperatorRole::Operator, "the token of olga")?.with(
        "rita",
        OperatorRole::ReadOnly,
        "the token of rita",
    )?;
    let world = World::start(|api| api.operators = operators).await;
    let id = emit(&world, json!([message(&["ann"], true)])).await?.remove(0);
    let http = reqwest::Client::builder().no_proxy().redirect(Policy::none()).build()?;
    for (token, may) in [("the token of rita", false), ("the token of olga", true)] {
        let form = format!("token={}", token.replace(' ', "+"));
        let typed = "application/x-www-form-urlencoded";
        let signed = http.post(world.url("/ui/sign-in")).header("content-type", typed).body(form).send().await?;
        let cookie = signed.headers()["set-cookie"].to_str()?.split(';').next().unwrap_or_default().to_owned();
        let get = async |path: &str| -> Result<String> {
            Ok(http.get(world.url(path)).header("cookie", &cookie).send().await?.text().await?)
        };
        let list = get("/ui/notifications").await?;
        ensure!(list.contains(&id), "{token} sees the list: {list}");
        ensure!(list.contains("action=\"/ui/notifications\"") == may, "{token}: the form");
        let one = get(&format!("/ui/notifications/{id}")).await?;
        ensure!(one.contains(">ann<") && one.contains(&format!("{id}/withdraw")) == may, "{token}: {one}");
        let (_, csrf) = one.split_once("name=\"csrf\" value=\"").context("no form on the page")?;
        let csrf = csrf.split('"').next().unwrap_or_default();
        for (path, body, answer) in [
            ("/ui/notifications".to_owned(), "&audience=USER&targets=ann&payload=1", 303),
            (format!("/ui/notifications/{id}/resend"), "", 409),
            (format!("/ui/notifications/{id}/withdraw"), "", 303),
        ] {
            let request = http.post(world.url(&path)).header("cookie", &cookie).header("content-type", typed);
            let status = request.body(format!("csrf={csrf}{body}")).send().await?.status();
            ensure!(status == if may { answer } else { 403 }, "{token} {path}: {status}");
        }
        let seen = world.app.engine.list_audit(None, 50).await?.entries;
        let acts = seen.iter().filter(|entry| entry.action.starts_with("notification.")).count();
        ensure!(acts >= 3, "all tries are in the log: {seen:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_without_notifications_says_so() -> Result<()> {
    let world = World::start(|_| {}).await;
    let router = relais_ui::router(world.app.engine.clone(), relais_ui::UiOptions::default())?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(relais_http::serve(listener, router, Default::default(), CancellationToken::new()));
    let http = reqwest::Client::builder().no_proxy().build()?;
    for path in ["/ui/notifications", "/ui/notifications/0195a000-0000-7000-8000-000000000000"] {
        let page = http.get(format!("http://{address}{path}")).send().await?.text().await?;
        ensure!(
            page.contains("This process has no notifications") && !page.contains("<form class=\"stack\""),
            "{page}"
        );
    }
    ensure!(http.get(format!("http://{address}/ui")).send().await?.status() == 200, "the overview does without");
    Ok(())
}
