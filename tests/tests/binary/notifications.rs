//! The commands for notifications and audiences.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use relais_testkit::{RedisServer, free_port};
use relais_tests::{
    chaos::Api,
    instance::{Instance, command},
};
use serde_json::{Value, json};

use crate::{Said, relais, sqlite, type_in, until};

/// A server with a client that may emit everything.
async fn start(folder: &Path) -> Result<(Instance, Api)> {
    start_with(folder, "30s").await
}

/// The same, whose users have so much time to acknowledge.
async fn start_with(folder: &Path, ack_timeout: &str) -> Result<(Instance, Api)> {
    let options = Instance::options(sqlite(folder)).env("RELAIS_NOTIFICATIONS_ACK_TIMEOUT", ack_timeout);
    let server = options.start().await?;
    let put = ["client", "put", "shop", "--secret-env", "SHOP", "--emit", "*", "--ticket"];
    Said::of(&relais(&server)?.args(put).env("SHOP", "hush").output()?).data()?;
    let client = Api::admin(server.url())?.with("shop", "hush");
    Ok((server, client))
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// Sends a message, and gives its id.
fn send(server: &Instance, line: &str) -> Result<String> {
    Ok(type_in(server, &format!("notification send {line}"))?.data()?.trim().to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notification_is_sent_listed_shown_acknowledged_and_withdrawn() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (server, _) = start(folder.path()).await?;
    assert!(type_in(&server, "notification list")?.data()?.contains("There are no notifications."));
    type_in(&server, "audience set GROUP 1b ann bob")?.data()?;
    let id = send(&server, "--to GROUP:1b --title Hello --type system --ack-required")?;

    let table = type_in(&server, "notification list --status open")?.data()?;
    let line = words(table.lines().nth(1).context("no line")?);
    assert_eq!(line[..4], [id.as_str(), "OPEN", "SYSTEM", "GROUP:1b"], "{table}");
    let card = type_in(&server, &format!("notification show {id}"))?.data()?;
    assert!(card.contains(r#"{"title":"Hello"}"#), "{card}");
    let ledger: Vec<Vec<&str>> = card.lines().rev().take(2).map(words).collect();
    assert_eq!(ledger, [["bob", "yes", "0", "-", "-"], ["ann", "yes", "0", "-", "-"]]);

    let said = type_in(&server, &format!("notification ack {id} --user ann"))?.data()?;
    assert_eq!(said, "acknowledged for ann; 0 left to acknowledge\n");
    let again = type_in(&server, &format!("notification ack {id} --user ann"))?.data()?;
    assert!(again.contains("already"), "{again}");
    let stranger = type_in(&server, &format!("notification ack {id} --user eve"))?.refusal()?;
    assert!(stranger.contains("404013") && stranger.contains("hint: "), "{stranger}");
    let shown: Value = serde_json::from_str(&type_in(&server, &format!("notification show {id} --json"))?.data()?)?;
    let lines = shown["ledger"].as_array().context("no ledger")?;
    assert!(lines.iter().any(|line| line["user"] == "ann" && line["acknowledged"].is_string()), "{shown}");

    let other = send(&server, "--to USER:ann --to USER:bob")?;
    let withdrawn = type_in(&server, &format!("notification withdraw {id} {other}"))?.data()?;
    assert_eq!(withdrawn, format!("{id} is withdrawn\n{other} is withdrawn\n"));
    assert_eq!(type_in(&server, "notification list --status withdrawn")?.data()?.lines().count(), 3);
    let unknown = "01890a5d-ac96-774b-bcce-b302099a8057";
    let some = type_in(&server, &format!("notification withdraw {unknown} {other}"))?;
    assert!(some.stdout.contains(&other), "the others are withdrawn: {some:?}");
    let refusal = some.refusal()?;
    assert!(refusal.contains(unknown) && refusal.contains("1 of 2 were refused"), "{refusal}");

    let audit = type_in(&server, "audit")?.data()?;
    for action in ["notification.emit", "notification.ack", "notification.withdraw", "audience.members"] {
        assert!(audit.contains(action), "{action} is not in\n{audit}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_not_acknowledged_is_counted_and_is_sent_it_again() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (server, client) = start_with(folder.path(), "100ms").await?;
    assert!(type_in(&server, "notification errors")?.data()?.contains("The error log is empty."));
    let draft = json!({"payload": "read this", "routing": {
        "audience": {"type": "USER", "targets": ["ann", "bob"]}, "retry": {"ack_required": true, "limit": 0},
    }});
    let sent = client.post("/v1/notifications", &draft).await?.data()?;
    let id = sent["id"].as_str().context("no id")?;
    let errors = || type_in(&server, "notification errors --client shop")?.data();
    until("it is in the error log", async || Ok(errors()?.contains(id))).await?;
    let table = errors()?;
    let line = words(table.lines().nth(1).context("no line")?);
    assert_eq!((line[..4].to_vec(), line[5]), (vec![id, "2", "USER:ann,bob", "0/0"], "shop"), "{table}");
    assert!(type_in(&server, "notification errors --client nobody")?.data()?.contains("is empty"));

    let resent = type_in(&server, &format!("notification resend {id}"))?.data()?;
    assert_eq!(resent, format!("{id} is sent again\n"));
    type_in(&server, &format!("notification ack {id} --user ann"))?.data()?;
    type_in(&server, &format!("notification ack {id} --user bob"))?.data()?;
    assert!(type_in(&server, "notification list --status acknowledged")?.data()?.contains(id));
    let refusal = type_in(&server, &format!("notification resend {id}"))?.refusal()?;
    assert!(refusal.contains("409"), "{refusal}");

    for _ in 0..3 {
        send(&server, "--to USER:ann")?;
    }
    let page = type_in(&server, "notification list --limit 2")?;
    let hint = page.stderr.trim().rsplit(' ').next().context("no hint")?;
    let rest = type_in(&server, &format!("notification list --before {hint}"))?.data()?;
    assert_eq!((page.stdout.lines().count(), rest.lines().count()), (3, 3), "{page:?}\n{rest}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_are_set_added_removed_and_listed() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (server, _) = start(folder.path()).await?;
    assert!(type_in(&server, "audience members GROUP 1b")?.data()?.contains("It has no members."));
    assert_eq!(type_in(&server, "audience set GROUP 1b ann USER:urn:bob")?.data()?, "2 joined, 0 left\n");
    assert_eq!(type_in(&server, "audience add GROUP 1b ann GROUP:1a")?.data()?, "1 joined, 0 left\n");
    let table = type_in(&server, "audience members GROUP 1b")?.data()?;
    assert_eq!(table, "TYPE   TARGET\nGROUP  1a\nUSER   ann\nUSER   urn:bob\n");
    let removed = type_in(&server, "audience remove GROUP 1b ann GROUP:1a --json")?.data()?;
    assert_eq!(removed, "{\"joined\":0,\"left\":1}\n{\"joined\":0,\"left\":1}\n");
    let page = type_in(&server, "audience members GROUP 1b --limit 1")?;
    let after = page.stderr.split('\'').nth(1).with_context(|| format!("no hint: {page:?}"))?;
    assert_eq!(after, r#"["USER","urn:bob"]"#);
    let rest = type_in(&server, &format!("audience members GROUP 1b --after {after}"))?.data()?;
    assert!(rest.contains("no members"), "{rest}");
    assert_eq!(type_in(&server, "audience set GROUP 1b --none")?.data()?, "0 joined, 1 left\n");

    let cycle = type_in(&server, "audience add GROUP 1b GROUP:1b")?.refusal()?;
    assert!(cycle.contains("400017") && cycle.contains("would contain itself"), "{cycle}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_not_be_sent_is_refused_with_what_to_do() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (server, _) = start(folder.path()).await?;
    let mixed = type_in(&server, "notification send --to USER:ann --to GROUP:1b")?.refusal()?;
    assert!(mixed.contains("targets of one type") && mixed.contains("GROUP and USER"), "{mixed}");
    let nobody = type_in(&server, "notification send --to GROUP:1b --ack-required")?.refusal()?;
    assert!(nobody.contains("400016") && nobody.contains("  /routing/audience: "), "{nobody}");
    assert!(nobody.contains("hint: `relais audience add`"), "{nobody}");
    assert!(type_in(&server, "notification list")?.data()?.contains("There are no notifications."));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_links_are_listed() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (server, client) = start(folder.path()).await?;
    assert!(type_in(&server, "notification links")?.data()?.contains("There are no open links"));
    type_in(&server, "audience set GROUP 1b ann")?.data()?;
    let ticket = client.post("/v1/notifications/tickets", &json!({"user": "ann"})).await?.data()?;
    let ticket = ticket["ticket"].as_str().context("no ticket")?;
    let url = format!("{}/v1/notifications/stream?ticket={ticket}", server.url());
    let _link = reqwest::Client::builder().no_proxy().build()?.get(url).send().await?.error_for_status()?;
    until("the link is listed", async || {
        let table = type_in(&server, "notification links")?.data()?;
        Ok(table.lines().nth(1).is_some_and(|line| words(line)[1] == "ann" && line.contains("GROUP:1b")))
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_message_says_can_not_steer_the_terminal() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (server, client) = start(folder.path()).await?;
    let draft = json!({"payload": "\u{1b}[2J\u{9b}2J\u{202e}evil", "metadata": {"emitter": "\u{202e}x"},
        "routing": {"audience": {"type": "USER", "targets": ["\u{2066}ann"]}}});
    let sent = client.post("/v1/notifications", &draft).await?.data()?;
    let id = sent["id"].as_str().context("no id")?;
    for line in ["notification list", &format!("notification show {id}"), &format!("notification show {id} --json")] {
        let said = type_in(&server, line)?.data()?;
        let steers = |c: char| (c.is_control() && c != '\n') || ['\u{202e}', '\u{2066}'].contains(&c);
        assert!(said.contains("evil") && !said.contains(steers), "{said:?}");
    }
    Ok(())
}

/// The settings of notifications in this Redis.
fn in_redis(folder: &Path, url: &str) -> relais_tests::instance::InstanceOptions {
    let options = Instance::options(sqlite(folder)).env("RELAIS_NOTIFICATIONS_STORE", "redis");
    options.env("RELAIS_NOTIFICATIONS_REDIS_URL", url)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_away_is_named_and_everything_else_works() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut redis = RedisServer::start().await?;
    redis.kill9()?;
    let mut server = in_redis(folder.path(), &redis.url()).start().await?;
    let api = Api::admin(server.url())?;
    let ready = async || anyhow::Ok(api.get("/readyz").await?.body);
    let is_named = |body: &Value| body["notes"][0].as_str().is_some_and(|note| note.starts_with("notifications: "));
    until("it is named", async || Ok(is_named(&ready().await?))).await?;
    let metrics = reqwest::get(format!("{}/metrics", server.url())).await?.text().await?;
    assert!(metrics.contains("relais_notification_log_up 0"), "{metrics}");
    let refusal = type_in(&server, "notification send --to USER:ann")?.refusal()?;
    assert!(refusal.contains("503001"), "{refusal}");
    type_in(&server, "service list")?.data()?;

    redis.restart().await?;
    until("it is well", async || Ok(ready().await? == json!({"status": "ok"}))).await?;
    send(&server, "--to USER:ann --title Hello")?;
    assert!(type_in(&server, "notification list")?.data()?.contains("USER:ann"));
    let log = server.process().stderr()?;
    assert!(log.contains("answered with 503 until Redis is there") && log.contains("is read again"), "{log}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_refuses_ends_the_start_and_one_that_forgets_gives_a_warning() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let redis =
        RedisServer::start_with(&["--appendonly", "no", "--save", "", "--maxmemory-policy", "allkeys-lru"]).await?;
    let mut server = in_redis(folder.path(), &redis.url()).start().await?;
    let log = server.process().stderr()?;
    assert!(log.contains("set appendonly to yes and appendfsync to always"), "{log}");
    assert!(log.contains("set maxmemory-policy to noeviction"), "{log}");
    drop(server);
    redis.tell("CONFIG SET requirepass hush").await?;
    for (name, value, expected) in [
        ("RELAIS_NOTIFICATIONS_REDIS_URL", redis.url(), "can not be kept on the Redis"),
        (
            "RELAIS_NOTIFICATIONS_REDIS_URL",
            redis.url().replace("//", "//:wrong@"),
            "can not be kept on the Redis redis://:***@",
        ),
        ("RELAIS_NOTIFICATIONS_REDIS_URL", "http://u:hush@there".to_owned(), "expected `redis://"),
        ("RELAIS_NOTIFICATIONS_REDIS_PREFIX", "a{b}".to_owned(), "the prefix of the keys must not be empty"),
        ("RELAIS_NOTIFICATIONS_STORE", "kafka".to_owned(), "expected `database` or `redis`"),
    ] {
        let listen = format!("127.0.0.1:{}", free_port()?);
        let mut serve = command()?;
        serve.args(["serve", "--listen", &listen]).env("RELAIS_DATABASE_URL", sqlite(folder.path()));
        serve.env("RELAIS_NOTIFICATIONS_STORE", "redis").env("RELAIS_NOTIFICATIONS_REDIS_URL", redis.url());
        let refusal = Said::of(&serve.env(name, value).current_dir(folder.path()).output()?).refusal()?;
        assert!(refusal.contains(expected) && !refusal.contains("hush"), "{refusal}");
    }
    Ok(())
}

/// What a file declares of audiences and sources: the members of a group, and the audience of a source's events.
fn file(members: &str, target: &str) -> String {
    format!(
        "audiences:\n  - type: COURSE\n  - {{type: GROUP, target: 1b, members: [{members}]}}\n\
         notificationSources:\n  - sourceName: orders\n    bus: {{channels: [orders.*]}}\n    \
         audience: {{type: COURSE, targets: [\"{target}\"]}}\n"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn declared_audiences_and_sources_follow_their_file_and_wrong_files_are_refused_with_the_place() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let watched = folder.path().join("services.yaml");
    fs::write(&watched, file("{target: ann}", "maths"))?;
    let options = Instance::options(sqlite(folder.path()));
    let options = options.arg("--declarations").arg(watched.display().to_string());
    let server = options.env("RELAIS_DECLARATIONS_INTERVAL", "50ms").start().await?;
    let members = || -> Result<Vec<String>> {
        let listed = type_in(&server, "audience members GROUP 1b")?.data()?;
        // Below the names of the columns.
        Ok(listed.lines().skip(1).map(|line| words(line).join(":")).collect())
    };
    until("the file is applied", async || Ok(members()? == ["USER:ann"])).await?;
    let listed = type_in(&server, "audience list")?.data()?;
    let lines: Vec<Vec<&str>> = listed.lines().map(words).collect();
    assert_eq!(lines[1..], [vec!["COURSE", "-", "-", "-"], vec!["GROUP", "1b", "1", "-"]], "{listed}");
    let shown = type_in(&server, "audience show GROUP 1b")?.data()?;
    assert!(shown.contains("USER") && shown.contains("ann"), "{shown}");
    let refused = type_in(&server, "audience add GROUP 1b eve")?.refusal()?;
    assert!(refused.contains("409003") && refused.contains("GROUP:1b is declared"), "{refused}");

    fs::write(&watched, file("{target: ann}, {target: bob}", "{payload.course}"))?;
    until("the edit is applied", async || Ok(members()? == ["USER:ann", "USER:bob"])).await?;
    let source = async || type_in(&server, "notification source show orders")?.data();
    until("the source listens", async || {
        let shown = source().await?;
        Ok(shown.contains("COURSE:{payload.course}")
            && shown.lines().last().is_some_and(|line| words(line)[1] == "yes"))
    })
    .await?;
    let listed = type_in(&server, "notification source list")?.data()?;
    assert_eq!(words(listed.lines().nth(1).context("no line")?)[..3], ["orders", "listening", "orders.*"], "{listed}");
    assert!(type_in(&server, "notification source pause orders")?.data()?.contains("paused"));
    assert!(!type_in(&server, "notification source resume orders")?.data()?.contains("paused"));

    let wrong = folder.path().join("wrong.yaml");
    for (text, said) in [
        ("audiences:\n  - {type: GROUP, target: a, membrs: []}\n", ["wrong.yaml:2:30", "did you mean `members`"]),
        (
            "audiences:\n  - {type: GROUP, target: a, members: [{type: GROUP, target: a}]}\n",
            ["/audiences/0/members/0", "GROUP:a would contain itself: GROUP:a > GROUP:a"],
        ),
        (
            "notificationSources:\n  - {sourceName: s, kafka: {brokers: h, topics: [t]}}\n",
            ["/notificationSources/0/kafka", "has no Kafka consumers"],
        ),
        (
            "notificationSources:\n  - {sourceName: s, bus: {channels: [a]}, audience: {type: CLASS, targets: [x]}}\n",
            ["/notificationSources/0/audience/type", "no type of audience \"CLASS\""],
        ),
    ] {
        fs::write(&wrong, text)?;
        let refused = Said::of(&relais(&server)?.args(["apply", "--dry-run", "-f"]).arg(&wrong).output()?).refusal()?;
        for part in said {
            assert!(refused.contains(part), "{text} was refused with {refused}");
        }
    }
    let exported = type_in(&server, "export")?.data()?;
    fs::write(&wrong, &exported)?;
    let again = Said::of(&relais(&server)?.args(["apply", "-f"]).arg(&wrong).output()?).data()?;
    assert!(!again.contains("updated") && !again.contains("created"), "an export changes nothing: {again}");
    let deleted = type_in(&server, "notification source delete orders --yes")?.data()?;
    assert!(deleted.contains("deleted"), "{deleted}");
    Ok(())
}
