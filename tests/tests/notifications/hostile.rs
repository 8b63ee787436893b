//! Nobody reads, counts, acknowledges or infers what is another user's: by no route, with no cursor, id, link or token.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use relais_notify::{Identities, TokenKeys, TokenVerifier, VerifierOptions};
use relais_tests::app::{Answer, Backend, Caller, TestApp};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    link::{Event, Link},
    socket::Page,
    stage::{NOTIFICATIONS, Stage, members_of, required, to},
};

on_each_store!(who_is_no_member_learns_nothing);
on_one_store!(tokens_that_are_not_ours_are_refused_alike, clients_do_only_what_they_may);

/// What must not be seen.
const SECRET: &str = "only for ann";
const SIGNING: &[u8] = b"a secret of more than thirty-two bytes";
const UNKNOWN: &str = "0195c5a5-0000-7000-8000-000000000001";

/// Counts what was tried, and fails at the first that succeeds.
#[derive(Default)]
struct Tried(usize);

impl Tried {
    fn clean(&mut self, what: &str, answer: &Answer) {
        self.0 += 1;
        let leaks =
            answer.text.contains(SECRET) || answer.headers.values().any(|value| value.as_bytes() == SECRET.as_bytes());
        assert!(!leaks, "{what}: {}", answer.text);
    }

    fn refused(&mut self, what: &str, answer: &Answer, number: u64) {
        self.clean(what, answer);
        assert_eq!(answer.number(), number, "{what}: {}", answer.text);
    }
}

#[expect(clippy::print_stdout, reason = "the figures of a test")]
async fn who_is_no_member_learns_nothing(on: Backend) {
    let stage = Stage::with(on, |options| options.hub.tail_entries = 2).await;
    let mut tried = Tried::default();
    stage.join("club", &["ann"]).await;
    let (ann, eve, nobody) = (stage.user("ann").await, stage.user("eve").await, stage.app.caller());
    let mut of_ann = Link::open(&ann, None).await;
    let begun = of_ann.cursor.clone();
    let mut ids = Vec::new();
    for n in 0..3 {
        ids.push(stage.emit(&required("GROUP", &["club"], json!(SECRET))).await);
        ids.push(stage.emit(&to("USER", &["ann"], json!({"n": n, "text": SECRET}))).await);
        of_ann.expect("notification").await;
        of_ann.expect("notification").await;
    }
    let gone = stage.emit(&to("USER", &["ann"], json!(SECRET))).await;
    of_ann.expect("notification").await;
    stage.shop.delete(&format!("{NOTIFICATIONS}/{gone}")).await.data();
    of_ann.expect("withdrawn").await;
    let before = ann.get(NOTIFICATIONS).await.text;

    // Eve has a ticket, and belongs to nothing. She has ann's cursors too.
    let epoch = begun.split('-').next().unwrap_or_default();
    let cursors = [
        begun.clone(),
        of_ann.cursor.clone(),
        format!("{epoch}-0"),
        format!("{epoch}-1"),
        format!("{epoch}-ffffffffffffffff"),
        "0-0".to_owned(),
        "f00d-1".to_owned(),
        "%00".to_owned(),
        "'%20OR%201=1".to_owned(),
        "x".repeat(4000),
    ];
    for cursor in &cursors {
        let polled = eve.get(&format!("/v1/notifications/poll?after={cursor}")).await;
        tried.clean(cursor, &polled);
        let events = polled.data()["events"].clone();
        let is_nothing = events.as_array().is_some_and(|events| events.iter().all(|event| event["event"] == "gap"));
        assert!(is_nothing, "{cursor}: {events}");
        tried.refused(cursor, &nobody.get(&format!("/v1/notifications/poll?after={cursor}")).await, 401_001);
        tried.refused(cursor, &nobody.get(&format!("/v1/notifications/stream?lastEventId={cursor}")).await, 401_001);
        let stranger = nobody.clone().with("last-event-id", &begun);
        tried.refused(cursor, &stranger.get("/v1/notifications/stream").await, 401_001);
    }
    for filter in ["all", "unread", "unacknowledged"] {
        for page in ["", "&before=1", "&before=3", "&before=99999", "&limit=200"] {
            let path = format!("{NOTIFICATIONS}?filter={filter}{page}");
            let listed = eve.get(&path).await;
            tried.clean(&path, &listed);
            let data = listed.data();
            assert_eq!((&data["notifications"], &data["next"]), (&json!([]), &Value::Null), "{path}");
            assert_eq!(data["counts"], json!({"unread": 0, "unacknowledged": 0, "all": 0}));
            tried.refused(&path, &nobody.get(&path).await, 401_001);
        }
    }
    // On a stream and a WebSocket, only what is eve's comes.
    for (n, cursor) in cursors.iter().enumerate() {
        let path = format!("/v1/notifications/stream?lastEventId={cursor}");
        let mut links = vec![Link::begin(eve.open(&path).await).await];
        if !cursor.contains('%') {
            links.push(Link::open(&eve, Some(cursor)).await);
        }
        let mut page = Page::open(&stage, "eve", Some(cursor)).await;
        let marker = json!({"marker": n});
        stage.emit(&to("USER", &["eve"], marker.clone())).await;
        let is_last = |event: Event| {
            assert!(!event.data.to_string().contains(SECRET) && event.name != "withdrawn", "{event:?}");
            event.data["payload"] == marker
        };
        for link in &mut links {
            tried.0 += 1;
            while !is_last(link.next().await.expect("the link ended")) {}
        }
        tried.0 += 1;
        while !is_last(page.next().await.expect("the link ended")) {}
    }
    // Her answers about ann's messages are those about messages that there are not, byte for byte.
    let ack = async |user: &Caller, id: &str| user.post_nothing(&format!("{NOTIFICATIONS}/{id}/ack")).await;
    let unknown = ack(&eve, UNKNOWN).await;
    assert_eq!(unknown.number(), 404_013);
    for id in ids.iter().chain([&gone]).map(String::as_str).chain(["x", "%00", &"f".repeat(300)]) {
        let answer = ack(&eve, id).await;
        tried.refused(id, &answer, 404_013);
        assert_eq!(answer.text, unknown.text, "{id}");
        tried.refused(id, &ack(&nobody, id).await, 401_001);
    }
    let many = |ids: &[String]| json!({"ids": ids});
    let answer = eve.post("/v1/notifications/ack", &many(&ids)).await;
    tried.clean("ack", &answer);
    assert_eq!(answer.text, eve.post("/v1/notifications/ack", &many(&[UNKNOWN.to_owned()])).await.text);
    assert_eq!(answer.data()["acknowledged"], 0);
    tried.clean("ack all", &eve.post("/v1/notifications/ack", &json!({"all": true})).await);
    let mut page = Page::open(&stage, "eve", None).await;
    page.say(&many(&ids).to_string().replace("ids", "ack")).await;
    tried.0 += 1;

    // Ann's link is not hers to renew.
    let path = |id: &str| format!("/v1/notifications/links/{id}/token");
    let answer = eve.post_nothing(&path(&of_ann.id)).await;
    tried.refused("renew", &answer, 404_014);
    assert_eq!(answer.text, eve.post_nothing(&path(UNKNOWN)).await.text);
    tried.refused("renew", &nobody.post_nothing(&path(&of_ann.id)).await, 401_001);
    page.say(&json!({"token": stage.ticket("ann").await}).to_string()).await;
    // It begins where the instance has read the log: what eve has acknowledged just before may come first.
    let mut said = page.next().await.expect("the link ended");
    while said.name == "acknowledged" {
        assert!(!ids.iter().any(|id| said.data.to_string().contains(id)), "{said:?}");
        said = page.next().await.expect("the link ended");
    }
    assert_eq!((said.name.as_str(), &said.data["reason"]), ("error", &json!("token")));
    tried.0 += 1;

    // Routes of clients are not hers.
    for (method, path) in [
        (Method::POST, NOTIFICATIONS.to_owned()),
        (Method::DELETE, format!("{NOTIFICATIONS}/{}", ids[0])),
        (Method::PUT, format!("{NOTIFICATIONS}/{}", ids[0])),
        (Method::GET, format!("{NOTIFICATIONS}/errors")),
        (Method::POST, format!("{NOTIFICATIONS}/tickets")),
        (Method::GET, members_of("club")),
        (Method::PUT, members_of("club")),
        (Method::POST, members_of("club")),
        (Method::DELETE, format!("{}/USER/ann", members_of("club"))),
    ] {
        let body = json!({"user": "ann", "members": [{"target": "eve"}]}).to_string();
        for caller in [&eve, &nobody] {
            let answer = caller.call_text(method.clone(), &path, "application/json", &body).await;
            tried.refused(&format!("{method} {path}"), &answer, 403_001);
        }
    }
    for path in ["/admin/notifications", "/admin/notification-links", "/admin/audiences/GROUP/club/members"] {
        let afar = eve.clone().with("x-forwarded-for", "192.0.2.7");
        tried.refused(path, &afar.get(path).await, 403_002);
    }
    // It is as if she had not been there.
    assert_eq!(
        ann.get(NOTIFICATIONS).await.data()["counts"],
        serde_json::from_str::<Value>(&before).expect("it is there")["data"]["counts"]
    );
    let ledger = stage.app.caller().get(&format!("/admin/notifications/{}", ids[0])).await.data();
    assert!(!ledger["ledger"].to_string().contains("eve"), "{ledger}");
    stage.emit(&to("USER", &["ann"], json!("marker"))).await;
    of_ann.expect_payload(&json!("marker")).await;
    println!("hostile: {} tries, 0 succeeded", tried.0);
}

fn jwt(header: Value, claims: Value, signature: impl Fn(&[u8]) -> Vec<u8>) -> String {
    let signed =
        format!("{}.{}", URL_SAFE_NO_PAD.encode(header.to_string()), URL_SAFE_NO_PAD.encode(claims.to_string()));
    let signature = URL_SAFE_NO_PAD.encode(signature(signed.as_bytes()));
    format!("{signed}.{signature}")
}

fn hmac(secret: &[u8]) -> impl Fn(&[u8]) -> Vec<u8> {
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret);
    move |signed| ring::hmac::sign(&key, signed).as_ref().to_vec()
}

#[expect(clippy::print_stdout, reason = "the figures of a test")]
async fn tokens_that_are_not_ours_are_refused_alike(on: Backend) {
    let verifier =
        TokenVerifier::new(VerifierOptions::new(TokenKeys::Secrets(vec![SIGNING.to_vec()]))).expect("it is there");
    let stage =
        Stage::start(TestApp::builder(on).notifications_for(Identities::new(Some(verifier), None), |_| {})).await;
    let claims = json!({"sub": "ann", "exp": 4_000_000_000_u64, "audiences": {"ROLE": ["admin"]}});
    let hs256 = json!({"alg": "HS256", "typ": "JWT"});
    let good = jwt(hs256.clone(), claims.clone(), hmac(SIGNING));
    assert_eq!(stage.bearing(&good).get("/v1/notifications/counts").await.status, 200);
    let ticket = stage.ticket("ann").await;
    let none = |_: &[u8]| Vec::new();
    let expired = json!({"sub": "ann", "exp": 1_000_000_000});
    let mut bad = vec![
        String::new(),
        "x".to_owned(),
        "rt_".to_owned(),
        "..".to_owned(),
        "null".to_owned(),
        jwt(json!({"alg": "none"}), claims.clone(), none),
        jwt(json!({"alg": "None"}), claims.clone(), none),
        jwt(json!({"alg": "none"}), claims.clone(), hmac(SIGNING)),
        jwt(hs256.clone(), claims.clone(), none),
        jwt(hs256.clone(), claims.clone(), hmac(b"another secret of more than 32 bytes")),
        jwt(hs256.clone(), claims.clone(), hmac(b"")),
        jwt(json!({"alg": "HS512"}), claims.clone(), hmac(SIGNING)),
        jwt(json!({"alg": "RS256"}), claims.clone(), hmac(SIGNING)),
        jwt(json!({"alg": "HS256", "crit": ["b64"], "b64": false}), claims.clone(), hmac(SIGNING)),
        jwt(hs256.clone(), expired, hmac(SIGNING)),
        jwt(hs256.clone(), json!({"exp": 4_000_000_000_u64}), hmac(SIGNING)),
        jwt(hs256.clone(), json!({"sub": "", "exp": 4_000_000_000_u64}), hmac(SIGNING)),
        jwt(
            hs256.clone(),
            json!({"sub": "eve", "exp": 4_000_000_000_u64, "audiences": {"USER": ["ann"]}}),
            hmac(SIGNING),
        ),
        format!("{good}x"),
        format!(" {}", &good[..good.len() - 2]),
        "x".repeat(10_000),
    ];
    // Every byte of a ticket counts.
    for at in 3..ticket.len() {
        let mut tampered = ticket.clone().into_bytes();
        tampered[at] = if tampered[at] == b'A' { b'B' } else { b'A' };
        bad.push(String::from_utf8(tampered).expect("it is there"));
    }
    bad.extend([ticket[..ticket.len() - 1].to_owned(), format!("{ticket}A"), ticket.replace("rt_", "rt-")]);
    let mut tried = Tried::default();
    let refusal = stage.app.caller().get("/v1/notifications/counts").await;
    assert_eq!(refusal.number(), 401_001);
    for token in &bad {
        for (what, answer) in [
            ("bearer", stage.bearing(token).get("/v1/notifications/counts").await),
            ("ticket", stage.app.caller().get(&format!("/v1/notifications/counts?ticket={}", token.trim())).await),
        ] {
            tried.refused(what, &answer, 401_001);
            assert_eq!(answer.text, refusal.text, "why is nobody's business");
        }
    }
    assert_eq!(Page::connect(&stage, &format!("ticket={}", bad[5]), None).await.err(), Some(401));
    let basic = stage.app.client("shop").get("/v1/notifications/counts").await;
    tried.refused("a client's secret", &basic, 401_001);
    println!("hostile: {} tokens, 0 accepted", tried.0);
}

#[expect(clippy::print_stdout, reason = "the figures of a test")]
async fn clients_do_only_what_they_may(on: Backend) {
    let stage = Stage::set(on).await;
    let (mute, news) = (stage.app.client("mute"), stage.app.client("news"));
    let mut tried = Tried::default();
    let mine = stage.emit(&to("USER", &["ann"], json!(SECRET))).await;
    let ticket = |user: &str, kind: &str| json!({"user": user, "audiences": {kind: ["x"]}});
    let members = json!({"members": [{"target": "eve"}]});
    for client in [&mute, &news] {
        tried.refused("ticket", &client.post("/v1/notifications/tickets", &json!({"user": "ann"})).await, 403_001);
        tried.refused("members", &client.put(&members_of("club"), &members).await, 403_001);
        tried.refused("members", &client.post(&members_of("club"), &members).await, 403_001);
        tried.refused("members", &client.get(&members_of("club")).await, 403_001);
        tried.refused("members", &client.delete(&format!("{}/USER/ann", members_of("club"))).await, 403_001);
        tried.refused("withdraw", &client.delete(&format!("{NOTIFICATIONS}/{mine}")).await, 404_013);
        let errors = client.get("/v1/notifications/errors").await;
        tried.clean("errors", &errors);
        assert_eq!(errors.data()["notifications"], json!([]));
    }
    let group = to("GROUP", &["x"], json!(1));
    tried.refused("replace", &mute.put(&format!("{NOTIFICATIONS}/{mine}"), &group).await, 403_001);
    let (foreign, unknown) = (
        news.put(&format!("{NOTIFICATIONS}/{mine}"), &group).await,
        news.put(&format!("{NOTIFICATIONS}/{UNKNOWN}"), &group).await,
    );
    tried.refused("replace", &foreign, 404_013);
    assert_eq!(foreign.text, unknown.text);
    let shop = &stage.shop;
    for (body, number) in [
        (ticket("ann", "GROUP"), 403_001),
        (ticket("ann", "USER"), 403_001),
        (ticket("", "ROLE"), 400_003),
        (json!({"user": "ann", "ttl": "25h"}), 400_003),
        (json!({"user": "ann", "ttl": "0s"}), 400_003),
        (json!({"user": "ann", "admin": true}), 400_003),
    ] {
        tried.refused("ticket", &shop.post("/v1/notifications/tickets", &body).await, number);
    }
    tried.refused("members", &shop.put("/v1/audiences/ROLE/admin/members", &members).await, 403_001);
    tried.refused("members", &shop.put("/v1/audiences/USER/ann/members", &members).await, 403_001);
    for bad in [json!({"members": [{"target": ""}]}), json!({"members": [{"type": "A\u{1}", "target": "x"}]})] {
        tried.refused("members", &shop.put(&members_of("club"), &bad).await, 400_017);
    }
    let wrong = shop.clone().basic("shop", "wrong");
    tried.refused("secret", &wrong.post(NOTIFICATIONS, &group).await, 403_001);
    // A ticket without audiences of its own names the user only.
    let eve = stage.user("eve").await;
    assert_eq!(eve.get("/v1/notifications/counts").await.data()["all"], 0);
    println!("hostile clients: {} tries, 0 succeeded", tried.0);
}
