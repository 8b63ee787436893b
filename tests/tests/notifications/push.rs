//! Web Push: who has no page open gets a message through a push service, once, and can read it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Result, ensure};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use relais_core::{Wakeup, WakeupListener};
use relais_notify::PushOptions;
use relais_testkit::TestDatabase;
use relais_tests::{
    app::{Answer, Backend, Caller, TestApp, secret},
    chaos::Api,
    instance::Instance,
};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    push_service::{Arrived, Browser, PushService},
    stage::{NOTIFICATIONS, Stage, declaration, required, text, to, until},
};

on_each_store!(
    a_message_is_pushed_to_each_browser_once,
    a_push_that_fails_is_tried_again_and_a_browser_that_is_gone_is_forgotten,
    a_token_of_a_push_acknowledges_its_message_once,
);
on_one_store!(
    who_reads_a_message_in_time_gets_no_push,
    a_message_that_is_sent_again_is_pushed_again,
    what_was_pushed_and_is_withdrawn_is_told,
    a_message_that_is_too_large_is_pushed_by_its_id,
    who_has_left_the_audience_gets_no_push,
    subscriptions_of_others_can_not_be_seen_used_or_removed,
    what_is_no_subscription_is_refused,
    web_pages_of_other_origins_may_subscribe,
);

const KEY: &str = "/v1/notifications/push/key";
const SUBSCRIPTIONS: &str = "/v1/notifications/push/subscriptions";
const ACK: &str = "/v1/notifications/push/ack";
const CONTACT: &str = "mailto:ops@shop.example";

/// Pushes are due at once.
fn options() -> PushOptions {
    PushOptions {
        contact: CONTACT.to_owned(),
        delay: Duration::ZERO,
        first_pause: Duration::from_millis(10),
        ..PushOptions::default()
    }
}

/// The same, and nobody is waited for who might have a page open.
fn at_once() -> PushOptions {
    PushOptions { window: Duration::from_millis(1), ..options() }
}

async fn set(on: Backend, options: PushOptions) -> (Stage, PushService) {
    (Stage::start(TestApp::builder(on).notifications(|_| {}).push(options)).await, PushService::start().await)
}

/// Subscribes a browser for a user; answers the id.
async fn subscribe(user: &Caller, browser: &Browser) -> String {
    let answer = user.post(SUBSCRIPTIONS, &browser.subscription()).await;
    assert_eq!(answer.status, 201, "{}", answer.text);
    text(&answer.data()["id"])
}

async fn listed(user: &Caller) -> Vec<Value> {
    user.get(SUBSCRIPTIONS).await.data()["subscriptions"].as_array().cloned().unwrap_or_default()
}

/// The ids of the messages that pushes have brought.
fn ids(pushes: &[Value]) -> Vec<&str> {
    pushes.iter().filter_map(|push| push["message"]["metadata"]["id"].as_str()).collect()
}

/// A message with this type and priority.
fn of(kind: &str, priority: &str, mut draft: Value) -> Value {
    draft["metadata"] = json!({"type": kind, "priority": priority});
    draft
}

async fn a_message_is_pushed_to_each_browser_once(on: Backend) {
    let (stage, service) = set(on, at_once()).await;
    let (ann, bob) = (stage.user("ann").await, stage.user("bob").await);
    let (phone, laptop, other) = (service.browser("phone"), service.browser("laptop"), service.browser("other"));
    stage.emit(&to("USER", &["ann"], json!("before anybody subscribed"))).await;
    let id = subscribe(&ann, &phone).await;
    assert_eq!(subscribe(&ann, &phone).await, id, "the same again");
    subscribe(&ann, &laptop).await;
    subscribe(&bob, &other).await;
    stage.join("club", &["ann"]).await;
    let first = stage.emit(&of("NOTIFICATION", "HIGH", to("GROUP", &["club"], json!({"title": "Grüße"})))).await;
    stage.emit(&of("REALTIME", "HIGH", to("USER", &["ann"], json!("not pushed")))).await;
    stage.emit(&of("SYSTEM", "HIGH", to("USER", &["ann"], json!("not pushed")))).await;
    service.wait_for(2).await;
    let last = stage.emit(&of("NOTIFICATION", "LOW", to("USER", &["ann", "bob"], json!(2)))).await;
    let arrived = service.wait_for(5).await;
    for (browser, expected) in [(&phone, vec![&first, &last]), (&laptop, vec![&first, &last]), (&other, vec![&last])] {
        assert_eq!(ids(&browser.read(&arrived)), expected);
    }
    // It is the message as a link would have brought it.
    let mine = phone.mine(&arrived);
    let push = phone.decrypt(mine[0]);
    assert_eq!(push["message"]["payload"], json!({"title": "Grüße"}));
    assert_eq!(push["message"]["routing"]["audience"], json!({"type": "GROUP", "targets": ["club"]}));
    let urgencies: Vec<&str> = mine.iter().map(|push| push.header("urgency")).collect();
    assert_eq!(urgencies, ["high", "low"]);
    let ttl: u64 = mine[0].header("ttl").parse().expect("a number");
    assert!((10 * 86_400 - 120..=10 * 86_400).contains(&ttl), "{ttl}");
    let topic = |push: &Arrived| URL_SAFE_NO_PAD.decode(push.header("topic")).expect("base64url").len();
    assert!(mine.iter().all(|push| topic(push) == 16) && mine[0].header("topic") != mine[1].header("topic"));
    let key = text(&stage.app.caller().get(KEY).await.data()["key"]);
    assert_eq!(phone.verify(mine[0], &key)["sub"], CONTACT);
    until("the list says when it was pushed", async || listed(&ann).await.iter().all(|one| one["pushed"].is_string()))
        .await;
}

async fn who_reads_a_message_in_time_gets_no_push(on: Backend) {
    let (stage, service) = set(on, options()).await;
    let (ann, bob) = (stage.user("ann").await, stage.user("bob").await);
    let (of_ann, of_bob) = (service.browser("ann"), service.browser("bob"));
    subscribe(&ann, &of_ann).await;
    subscribe(&bob, &of_bob).await;
    // Bob reads it on a device that has no page open any more when the push would be sent.
    let read = stage.emit(&to("USER", &["bob"], json!("read at once"))).await;
    bob.post(&format!("{NOTIFICATIONS}/ack"), &json!({"ids": [read]})).await.data();
    let mut link = stage.link("ann").await;
    let shown = stage.emit(&to("USER", &["ann", "bob"], json!("on the page"))).await;
    assert_eq!(link.expect("notification").await.message(), shown);
    let arrived = service.wait_for(1).await;
    assert_eq!(ids(&of_bob.read(&arrived)), [&shown]);
    drop(link);
    until("the page is closed", async || !stage.app.notifications().has_link_of("ann")).await;
    let after = stage.emit(&to("USER", &["ann"], json!("after the page was closed"))).await;
    let arrived = service.wait_for(2).await;
    assert_eq!((ids(&of_ann.read(&arrived)), arrived.len()), (vec![after.as_str()], 2));
}

/// Whether a wake-up for pushes has come from another process.
#[derive(Default)]
struct Heard(AtomicBool);

impl WakeupListener for Heard {
    fn wake(&self, wakeup: &Wakeup) {
        // When it begins to listen, anything may have happened.
        self.0.fetch_or(wakeup.pushes && *wakeup != Wakeup::anything(), Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_another_process_serves_counts_as_open() {
    let (here, service) = set(Backend::Postgres, options()).await;
    let there = here.app.beside().notifications(|_| {}).push(PushOptions { sends: false, ..options() });
    let there = Stage::start(there).await;
    let (of_ann, of_bob) = (service.browser("ann"), service.browser("bob"));
    subscribe(&here.user("ann").await, &of_ann).await;
    subscribe(&there.user("bob").await, &of_bob).await;
    // Not before they hear each other.
    let heard = Arc::new(Heard::default());
    there.app.store.listen(Arc::clone(&heard) as _);
    let (cem, number) = (here.user("cem").await, AtomicUsize::new(0));
    until("they hear each other", async || {
        let name = number.fetch_add(1, Ordering::Relaxed).to_string();
        let id = subscribe(&cem, &service.browser(&name)).await;
        cem.delete(&format!("{SUBSCRIPTIONS}/{id}")).await.data();
        heard.0.load(Ordering::Relaxed)
    })
    .await;
    let mut link = there.link("ann").await;
    let mut all = Vec::new();
    for n in 1..=3 {
        all.push(here.emit(&to("USER", &["ann", "bob"], json!(n))).await);
        link.expect("notification").await;
        let arrived = service.wait_for(n).await;
        assert_eq!(
            (ids(&of_bob.read(&arrived)), of_ann.mine(&arrived).len()),
            (all.iter().map(String::as_str).collect(), 0)
        );
    }
    drop(link);
    until("the page is closed", async || !there.app.notifications().has_link_of("ann")).await;
    let after = there.emit(&to("USER", &["ann"], json!(4))).await;
    assert_eq!(ids(&of_ann.read(&service.wait_for(4).await)), [&after]);
}

async fn a_push_that_fails_is_tried_again_and_a_browser_that_is_gone_is_forgotten(on: Backend) {
    let (stage, service) = set(on, at_once()).await;
    let ann = stage.user("ann").await;
    let browser = service.browser("phone");
    subscribe(&ann, &browser).await;
    service.will([(503, None), (429, Some(1)), (500, None)]);
    let first = stage.emit(&to("USER", &["ann"], json!(1))).await;
    let arrived = service.wait_for(4).await;
    assert_eq!(ids(&browser.read(&arrived)), [&first; 4]);
    let topics: std::collections::BTreeSet<&str> = arrived.iter().map(|push| push.header("topic")).collect();
    assert_eq!(topics.len(), 1);
    // What the push service does not want is not sent again.
    service.will([(400, None)]);
    stage.emit(&to("USER", &["ann"], json!(2))).await;
    service.wait_for(5).await;
    service.will([(410, None)]);
    let gone = stage.emit(&to("USER", &["ann"], json!(3))).await;
    assert_eq!(ids(&browser.read(&service.wait_for(6).await)).last(), Some(&gone.as_str()));
    until("it is forgotten", async || listed(&ann).await.is_empty()).await;
    subscribe(&ann, &browser).await;
    let back = stage.emit(&to("USER", &["ann"], json!(4))).await;
    let arrived = service.wait_for(7).await;
    assert_eq!((ids(&browser.read(&arrived)).last(), arrived.len()), (Some(&back.as_str()), 7));
}

async fn a_message_that_is_sent_again_is_pushed_again(on: Backend) {
    let builder = TestApp::builder(on).notifications(|options| options.ack_timeout = Duration::from_millis(100));
    let (stage, service) = (Stage::start(builder.push(at_once())).await, PushService::start().await);
    let browser = service.browser("phone");
    subscribe(&stage.user("ann").await, &browser).await;
    let id = stage.emit(&required("USER", &["ann"], json!(1))).await;
    let arrived = service.wait_for(2).await;
    let pushes = browser.read(&arrived);
    assert_eq!(ids(&pushes), [&id, &id]);
    assert_eq!(arrived[0].header("topic"), arrived[1].header("topic"), "the browser's push service replaces it");
    assert!(pushes[1]["message"]["routing"]["retry"]["attempts"].as_u64() > Some(0), "{}", pushes[1]);
    let ledger = async || stage.app.caller().get(&format!("/admin/notifications/{id}")).await.data()["ledger"].clone();
    until("the ledger knows", async || ledger().await[0]["deliveries"].as_u64() >= Some(2)).await;
}

async fn what_was_pushed_and_is_withdrawn_is_told(on: Backend) {
    let (stage, service) = set(on, at_once()).await;
    let (ann, browser) = (stage.user("ann").await, service.browser("phone"));
    subscribe(&ann, &browser).await;
    let (gone, old) =
        (stage.emit(&to("USER", &["ann"], json!(1))).await, stage.emit(&to("USER", &["ann"], json!(2))).await);
    service.wait_for(2).await;
    until("both are noted", async || listed(&ann).await[0]["pushed"].is_string()).await;
    stage.shop.delete(&format!("{NOTIFICATIONS}/{gone}")).await.data();
    let arrived = service.wait_for(3).await;
    assert_eq!(browser.decrypt(&arrived[2]), json!({"withdrawn": gone}));
    assert!(arrived[..2].iter().any(|push| push.header("topic") == arrived[2].header("topic")));
    let new = stage.shop.put(&format!("{NOTIFICATIONS}/{old}"), &to("USER", &["ann"], json!(3))).await.data();
    let pushes = browser.read(&service.wait_for(5).await);
    assert!(pushes[3..].contains(&json!({"withdrawn": old, "replacedBy": new["id"]})), "{pushes:?}");
    assert_eq!(ids(&pushes[3..]), [&text(&new["id"])]);
}

async fn a_message_that_is_too_large_is_pushed_by_its_id(on: Backend) {
    let (stage, service) = set(on, at_once()).await;
    let browser = service.browser("phone");
    subscribe(&stage.user("ann").await, &browser).await;
    let id = stage.emit(&to("USER", &["ann"], json!("x".repeat(5000)))).await;
    let push = browser.read(&service.wait_for(1).await).remove(0);
    assert_eq!((&push["id"], &push["message"]), (&json!(id), &Value::Null));
    stage.app.caller().post(ACK, &json!({"token": push["ack"]})).await.data();
    let large = stage.emit(&to("USER", &["ann"], json!("x".repeat(3000)))).await;
    assert_eq!(ids(&browser.read(&service.wait_for(2).await)), [&large], "and what fits is whole");
}

async fn who_has_left_the_audience_gets_no_push(on: Backend) {
    let (stage, service) = set(on, PushOptions { first_pause: Duration::from_secs(1), ..at_once() }).await;
    let (of_ann, of_bob) = (service.browser("ann"), service.browser("bob"));
    subscribe(&stage.user("ann").await, &of_ann).await;
    subscribe(&stage.user("bob").await, &of_bob).await;
    stage.join("club", &["ann"]).await;
    service.will([(503, None)]);
    stage.emit(&to("GROUP", &["club"], json!("once"))).await;
    service.wait_for(1).await;
    stage.leave("club", "ann").await;
    stage.join("club", &["bob"]).await;
    service.will([(503, None)]);
    let second = stage.emit(&to("GROUP", &["club"], json!("twice"))).await;
    // The second try of what bob gets comes after the second one of what ann would get.
    let arrived = service.wait_for(3).await;
    assert_eq!((of_ann.mine(&arrived).len(), ids(&of_bob.read(&arrived))), (1, vec![second.as_str(); 2]));
}

async fn a_token_of_a_push_acknowledges_its_message_once(on: Backend) {
    let (stage, service) = set(on, at_once()).await;
    let (ann, bob, nobody) = (stage.user("ann").await, stage.user("bob").await, stage.app.caller());
    let (of_ann, of_bob) = (service.browser("ann"), service.browser("bob"));
    subscribe(&ann, &of_ann).await;
    subscribe(&bob, &of_bob).await;
    let (first, second) = (
        stage.emit(&required("USER", &["ann", "bob"], json!(1))).await,
        stage.emit(&required("USER", &["ann", "bob"], json!(2))).await,
    );
    let arrived = service.wait_for(4).await;
    let tokens: Vec<(String, String)> = of_ann
        .read(&arrived)
        .iter()
        .map(|push| (text(&push["message"]["metadata"]["id"]), text(&push["ack"])))
        .collect();
    let token = tokens.iter().find(|(id, _)| *id == first).map(|(_, token)| token.clone()).expect("the first push");
    let used = |answer: &Answer, number: u64| assert_eq!(answer.number(), number, "{}", answer.text);
    assert_eq!(nobody.post(ACK, &json!({"token": token})).await.data(), json!({"id": first}));
    let unread = async |user: &Caller| user.get("/v1/notifications/counts").await.data()["unread"].clone();
    assert_eq!((unread(&ann).await, unread(&bob).await), (json!(1), json!(2)), "of one user, one message");
    used(&nobody.post(ACK, &json!({"token": token})).await, 409_007);
    // What was acknowledged otherwise has spent its token as well.
    ann.post_nothing(&format!("{NOTIFICATIONS}/{second}/ack")).await.data();
    for (_, token) in &tokens {
        used(&nobody.post(ACK, &json!({"token": token})).await, 409_007);
    }
    let mut forged = vec![String::new(), "rp_".to_owned(), stage.ticket("ann").await, "x".repeat(5000)];
    forged.extend((3..token.len()).step_by(7).map(|at| {
        let other = if token.as_bytes()[at] == b'A' { "B" } else { "A" };
        format!("{}{other}{}", &token[..at], &token[at + 1..])
    }));
    for token in &forged {
        used(&nobody.post(ACK, &json!({"token": token})).await, 401_001);
    }
    // It proves nothing else: neither who somebody is, nor may it be used for more.
    let bearing = stage.bearing(&token);
    used(&bearing.get(NOTIFICATIONS).await, 401_001);
    used(&bearing.get(SUBSCRIPTIONS).await, 401_001);
    used(&nobody.post(ACK, &json!({"token": token, "all": true})).await, 400_003);
    assert_eq!(unread(&bob).await, json!(2));
    // A message that is void has no token any more.
    let of_bob = of_bob.read(&arrived);
    stage.shop.delete(&format!("{NOTIFICATIONS}/{}", text(&of_bob[0]["message"]["metadata"]["id"]))).await.data();
    assert_eq!(nobody.post(ACK, &json!({"token": of_bob[1]["ack"]})).await.status, 200);
}

async fn subscriptions_of_others_can_not_be_seen_used_or_removed(on: Backend) {
    let (stage, service) = set(on, PushOptions { per_user: 2, ..at_once() }).await;
    let (ann, eve, nobody) = (stage.user("ann").await, stage.user("eve").await, stage.app.caller());
    let browser = service.browser("phone");
    let id = subscribe(&ann, &browser).await;
    let number = |answer: &Answer, expected: u64| assert_eq!(answer.number(), expected, "{}", answer.text);
    // Eve knows the endpoint and the id.
    assert!(listed(&eve).await.is_empty());
    number(&eve.delete(&format!("{SUBSCRIPTIONS}/{id}")).await, 404_016);
    let mut stolen = service.browser("phone").subscription();
    number(&eve.post(SUBSCRIPTIONS, &stolen).await, 409_008);
    stolen["keys"]["auth"] = browser.subscription()["keys"]["auth"].clone();
    number(&eve.post(SUBSCRIPTIONS, &stolen).await, 409_008);
    for path in [SUBSCRIPTIONS.to_owned(), format!("{SUBSCRIPTIONS}/{id}")] {
        for method in [Method::GET, Method::POST, Method::DELETE] {
            let answer = nobody.call_text(method, &path, "application/json", &browser.subscription().to_string()).await;
            assert!([401, 405].contains(&answer.status), "{}", answer.text);
        }
    }
    number(&ann.delete(&format!("{SUBSCRIPTIONS}/not-an-id")).await, 404_016);
    let message = stage.emit(&to("USER", &["ann"], json!(1))).await;
    assert_eq!(ids(&browser.read(&service.wait_for(1).await)), [&message]);
    // Who signs in with the same browser takes it over, and nothing for ann comes there any more.
    assert_eq!(subscribe(&eve, &browser).await, id);
    assert!(listed(&ann).await.is_empty() && listed(&eve).await.len() == 1);
    stage.emit(&to("USER", &["ann"], json!(2))).await;
    let message = stage.emit(&to("USER", &["eve"], json!(3))).await;
    let arrived = service.wait_for(2).await;
    assert_eq!(ids(&browser.read(&arrived)[1..]), [&message]);
    // A user has so many, and removing one makes room.
    subscribe(&eve, &service.browser("second")).await;
    number(&eve.post(SUBSCRIPTIONS, &service.browser("third").subscription()).await, 429_006);
    assert_eq!(subscribe(&eve, &browser).await, id, "what is there may be sent again");
    eve.delete(&format!("{SUBSCRIPTIONS}/{id}")).await.data();
    subscribe(&eve, &service.browser("third")).await;
}

async fn what_is_no_subscription_is_refused(on: Backend) {
    let (stage, service) = set(on, at_once()).await;
    let ann = stage.user("ann").await;
    let good = service.browser("phone").subscription();
    let with = |path: &str, value: Value| {
        let mut bad = good.clone();
        *bad.pointer_mut(path).expect("a field") = value;
        bad
    };
    for (path, value) in [
        ("/endpoint", json!("http://10.0.0.7:8080/push")),
        ("/endpoint", json!("https://169.254.169.254/latest")),
        ("/endpoint", json!("http://localhost:9000/push")),
        ("/endpoint", json!("file:///etc/passwd")),
        ("/endpoint", json!("https://ann:secret@push.example/1")),
        ("/endpoint", json!("")),
        ("/endpoint", json!(format!("https://push.example/{}", "x".repeat(3000)))),
        ("/keys/p256dh", json!("")),
        ("/keys/p256dh", json!("A".repeat(87))),
        ("/keys/p256dh", json!("BCVxsr7N")),
        ("/keys/auth", json!("AAAA")),
        ("/keys/auth", json!("A".repeat(44))),
    ] {
        let answer = ann.post(SUBSCRIPTIONS, &with(path, value.clone())).await;
        assert_eq!(answer.number(), 400_018, "{value}: {}", answer.text);
        assert_eq!(answer.json()["error"]["details"][0]["path"], path, "{}", answer.text);
    }
    for bad in [with("/keys", json!({})), with("/endpoint", json!(7)), json!({}), with("/keys/auth", Value::Null)] {
        assert_eq!(ann.post(SUBSCRIPTIONS, &bad).await.number(), 400_003);
    }
    assert!(listed(&ann).await.is_empty());
    // Without the setting, there is none of it.
    let off = Stage::set(on).await;
    let ann = off.user("ann").await;
    for answer in [ann.get(KEY).await, ann.get(SUBSCRIPTIONS).await, ann.post(SUBSCRIPTIONS, &good).await] {
        assert_eq!(answer.number(), 404_015, "{}", answer.text);
    }
    assert_eq!(ann.post(ACK, &json!({"token": "rp_x"})).await.number(), 404_015);
}

async fn web_pages_of_other_origins_may_subscribe(on: Backend) {
    let (stage, _service) = set(on, at_once()).await;
    for (path, method) in [(KEY, "GET"), (SUBSCRIPTIONS, "POST"), (SUBSCRIPTIONS, "DELETE"), (ACK, "POST")] {
        for (origin, is_allowed) in [(relais_tests::app::ORIGIN, true), ("https://evil.example", false)] {
            let asked = stage.app.caller().with("origin", origin).with("access-control-request-method", method);
            let answer = asked.call(Method::OPTIONS, path).await;
            let allowed = answer.headers.get("access-control-allow-origin").is_some_and(|value| value == origin);
            assert_eq!(allowed, is_allowed, "{path} for {origin}");
            let methods = answer.headers.get("access-control-allow-methods").and_then(|value| value.to_str().ok());
            assert!(methods.is_some_and(|methods| methods.contains(method)), "{methods:?}");
        }
    }
}

/// At least once: whoever was killed before it had sent a push, another process or the next start sends it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_push_survives_the_death_of_all_processes() -> Result<()> {
    let (database, service) = (TestDatabase::create().await?, PushService::start().await);
    let start = || {
        let ports = format!("[{}]", service.port);
        Instance::options(database.url())
            .env("RELAIS_NOTIFICATIONS_PUSH_CONTACT", CONTACT)
            .env("RELAIS_NOTIFICATIONS_PUSH_DELAY", "500ms")
            .env("RELAIS_CALLBACKS_ALLOW_HTTP", "true")
            .env("RELAIS_CALLBACKS_ALLOW_NETWORKS", "127.0.0.1")
            .env("RELAIS_CALLBACKS_PORTS", ports.trim_matches(['[', ']']))
            .start()
    };
    let mut instances = [start().await?, start().await?];
    let admin = Api::admin(instances[0].url())?;
    admin.post("/admin/apply", &declaration()).await?.data()?;
    let shop = admin.with("shop", &secret("shop"));
    let ticket = shop.post("/v1/notifications/tickets", &json!({"user": "ann"})).await?.data()?;
    let subscriptions = format!("{SUBSCRIPTIONS}?ticket={}", text(&ticket["ticket"]));
    let browser = service.browser("phone");
    shop.post(&subscriptions, &browser.subscription()).await?.data()?;
    let mut emitted = Vec::new();
    for victims in [&[0][..], &[1], &[0, 1]] {
        let api = Api::admin(instances[victims[0]].url())?.with("shop", &secret("shop"));
        let message = api.post("/v1/notifications", &to("USER", &["ann"], json!(emitted.len()))).await?.data()?;
        emitted.push(text(&message["id"]));
        for victim in victims {
            instances[*victim].kill9()?;
        }
        for victim in victims {
            instances[*victim].restart().await?;
        }
        // One that was killed while it noted an end pushes once more.
        let mut count = emitted.len();
        while !emitted.iter().all(|id| ids(&browser.read(&service.arrived())).contains(&id.as_str())) {
            service.wait_for(count).await;
            count = service.arrived().len() + 1;
        }
    }
    ensure!(service.arrived().len() < emitted.len() + 3, "{:?}", browser.read(&service.arrived()));
    Ok(())
}
