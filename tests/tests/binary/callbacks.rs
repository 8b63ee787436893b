//! Callbacks to RabbitMQ from end to end, and the commands that look at callbacks and send them again.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result};
use relais_callback::signature;
use relais_core::Timestamp;
use relais_testkit::{RabbitMqServer, TakenMessage, TcpProxy, TestVhost};
use relais_tests::{chaos::Api, instance::Instance};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{sqlite, type_in, until};

const TASKS: &str = "/v1/services/resize/tasks";
const SIGNING: &str = "whsec_NWpEbLE3zv93+bOQoG97TlFRZnPp3v+l";

/// Twenty of these is the longest schedule there is: six seconds, and more while the broker is left alone.
const WAIT: Duration = Duration::from_millis(300);

struct World {
    _folder: TempDir,
    server: Instance,
    /// Consumes and works.
    shop: Api,
}

impl World {
    /// A server that knows this broker and waits so long before each new try.
    async fn start(broker: &str, retries: &[Duration]) -> Result<Self> {
        Self::start_with(broker, retries, "60s").await
    }

    /// The same, with a limit to each try.
    async fn start_with(broker: &str, retries: &[Duration], limit: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let retries: Vec<String> = retries.iter().map(|wait| format!("{}ms", wait.as_millis())).collect();
        let server = Instance::options(sqlite(folder.path()))
            .arg("--broker")
            .arg(broker)
            .env("RELAIS_CALLBACKS_RETRIES", retries.join(","))
            .env("RELAIS_CALLBACKS_TIMEOUT", limit)
            .env("RELAIS_CALLBACKS_PARK_FIRST", "100ms")
            .env("RELAIS_CALLBACKS_PARK_MOST", "500ms")
            .start()
            .await?;
        let destination = |name: &str, exchange: &str, key: &str| {
            let mut destination = json!({"name": name, "routingKey": key});
            if !exchange.is_empty() {
                destination["exchange"] = json!(exchange);
            }
            destination
        };
        let declaration = json!({
            "services": [{"serviceName": "resize"}],
            "clients": [
                {"clientId": "shop", "clientSecret": "hush", "signingSecret": SIGNING, "destinations": [
                    destination("inbox", "", "shop-inbox"),
                    destination("results", "events", "task.done"),
                    destination("nowhere", "", "no-such-queue"),
                    destination("lost", "no-such-exchange", "task.done"),
                    destination("deaf", "events", "task.undone"),
                ]},
                {"clientId": "other", "clientSecret": "hush"},
            ],
            "authorizations": [
                {"clientId": "shop", "serviceName": "resize", "roles": ["consume", "work"]},
                {"clientId": "other", "serviceName": "resize", "roles": ["consume", "work"]},
            ],
        });
        let admin = Api::admin(server.url())?;
        admin.post("/admin/apply", &declaration).await?.data()?;
        let shop = admin.with("shop", "hush");
        Ok(Self { _folder: folder, server, shop })
    }

    /// A task that has succeeded, with a callback to that destination.
    async fn ended(&self, destination: &str) -> Result<String> {
        let submission = json!({"body": {}, "callback": {"type": "amqp", "destination": destination}});
        let task = self.shop.post(TASKS, &submission).await?.data()?;
        let task = task["taskId"].as_str().context("a task without a name")?.to_owned();
        let data = json!({"messageType": "success", "response": {"resized": "cat.png", "big": 12_345_678}});
        let outcomes =
            self.shop.post("/v1/services/resize/messages", &json!({"taskId": task, "data": data})).await?.data()?;
        assert_eq!(outcomes["outcomes"][0]["outcome"], "accepted", "{outcomes}");
        Ok(task)
    }

    async fn callback(&self, task: &str) -> Result<Value> {
        Ok(self.shop.get(&format!("{TASKS}/{task}/callbacks")).await?.data()?["callbacks"][0].clone())
    }

    /// The task's callback, once it is as wanted.
    async fn callback_when(&self, task: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        let mut callback = Value::Null;
        let what = format!("the callback of {task} got there");
        let asked = until(&what, async || {
            callback = self.callback(task).await?;
            Ok(wanted(&callback))
        });
        asked.await.with_context(|| callback.to_string())?;
        Ok(callback)
    }

    async fn told(&self, task: &str, status: &str) -> Result<Value> {
        self.callback_when(task, |callback| callback["notificationStatus"] == status).await
    }

    /// The message has the content of a poll and the id of the callback, and is signed.
    async fn is_about(&self, message: &TakenMessage, task: &str) -> Result<()> {
        let polled = self.shop.get(&format!("{TASKS}/{task}")).await?.data()?;
        assert_eq!(serde_json::from_slice::<Value>(&message.body)?, polled);
        let properties = &message.properties;
        let header =
            |name: &str| properties["headers"][name].as_str().with_context(|| format!("{name} of {message:?}"));
        let (id, timestamp) = (header("webhook-id")?, header("webhook-timestamp")?);
        assert!(id.starts_with(task), "{id}");
        assert_eq!(properties["message_id"], id);
        assert_eq!(
            (&properties["content_type"], &properties["delivery_mode"]),
            (&json!("application/json"), &json!(2))
        );
        let now = Timestamp::from_millis(jiff::Timestamp::now().as_millisecond());
        let verify = |secret: &str, body: &[u8]| {
            let signed = properties["headers"]["webhook-signature"].as_str().unwrap_or_default();
            signature::verify(secret, id, timestamp, body, signed, Duration::from_secs(300), now)
        };
        verify(SIGNING, &message.body).with_context(|| format!("the signature of {message:?}"))?;
        assert!(verify(SIGNING, b"{}").is_err());
        assert!(verify("whsec_wdkevEHMpgQXUsFlvpX8QyOUeypEIOGO", &message.body).is_err());
        Ok(())
    }
}

/// A virtual host with what is declared above, as far as it is there.
async fn prepared(vhost: TestVhost) -> Result<TestVhost> {
    vhost.declare_queue("shop-inbox").await?;
    vhost.declare_queue("shop-results").await?;
    vhost.declare_exchange("events", "topic").await?;
    vhost.bind("events", "shop-results", "task.done").await?;
    Ok(vhost)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Each try was made when it was due and not before: its wait, a fifth less, had passed. What was taken and given back
/// without being sent has counted among the attempts, and is no try.
fn keeps_its_schedule(callback: &Value, wait: Duration) -> Result<()> {
    let tries = list(&callback["tries"]);
    let numbers: Vec<u64> = tries.iter().filter_map(|one| one["number"].as_u64()).collect();
    assert!(numbers.len() == tries.len() && numbers.is_sorted_by(|a, b| a < b), "{callback}");
    assert_eq!(callback["attempts"], json!(numbers.last()), "{callback}");
    let dates = tries.iter().map(|one| Ok(one["date"].as_str().context("no date")?.parse::<jiff::Timestamp>()?));
    let dates = dates.collect::<Result<Vec<_>>>()?;
    for pair in dates.windows(2) {
        let waited = pair[1].duration_since(pair[0]).as_secs_f64();
        assert!(waited >= wait.as_secs_f64() * 0.79, "again after {waited} s: {callback}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_callback_over_amqp_has_the_content_of_a_poll_and_is_signed() -> Result<()> {
    let vhost = prepared(TestVhost::create().await?).await?;
    let world = World::start(vhost.url(), &[WAIT]).await?;
    for (destination, queue, exchange, key) in
        [("inbox", "shop-inbox", "", "shop-inbox"), ("results", "shop-results", "events", "task.done")]
    {
        let task = world.ended(destination).await?;
        let callback = world.told(&task, "SUCCESS").await?;
        assert_eq!((&callback["type"], &callback["target"]), (&json!("amqp"), &json!(destination)), "{callback}");
        assert_eq!((&callback["attempts"], list(&callback["tries"]).len()), (&json!(1), 1), "{callback}");
        // What was confirmed is there, and there is no more of it.
        let messages = vhost.take(queue, 10).await?;
        let [message] = &messages[..] else { anyhow::bail!("one message was expected in {queue}: {messages:?}") };
        assert_eq!((message.exchange.as_str(), message.routing_key.as_str()), (exchange, key));
        assert_eq!(message.properties["message_id"], callback["callbackId"]);
        world.is_about(message, &task).await?;
    }

    // Nobody reaches what was not declared for it, and nothing is made of it.
    let admin = Api::admin(world.server.url())?;
    for (client, destination) in [("shop", "elsewhere"), ("shop", "shop-inbox"), ("other", "inbox")] {
        let submission = json!({"body": {}, "callback": {"type": "amqp", "destination": destination}});
        let refusal = admin.with(client, "hush").post(TASKS, &submission).await?;
        assert_eq!((refusal.status, refusal.number()), (400, 400_005), "{}", refusal.body);
        let why = refusal.body["error"]["details"][0]["message"].as_str().unwrap_or_default();
        assert_eq!(why, format!("no destination {destination:?} is declared for this client"));
    }
    assert_eq!(admin.get("/admin/services/resize").await?.data()?["pending"], 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_callback_to_a_missing_destination_is_retried_and_records_why() -> Result<()> {
    let vhost = prepared(TestVhost::create().await?).await?;
    let world = World::start(vhost.url(), &[WAIT, WAIT]).await?;
    for (destination, why) in [
        ("nowhere", r#"no queue takes messages from the exchange "" with the routing key "no-such-queue""#),
        ("lost", r#"there is no exchange "no-such-exchange""#),
        ("deaf", r#"no queue takes messages from the exchange "events" with the routing key "task.undone""#),
    ] {
        let task = world.ended(destination).await?;
        let callback = world.told(&task, "FAILURE").await?;
        let errors: Vec<&Value> = list(&callback["tries"]).iter().map(|one| &one["error"]).collect();
        assert_eq!(errors, [why; 3], "the first try and two more");
        keeps_its_schedule(&callback, WAIT)?;
    }
    // It is nobody's trouble but theirs.
    let task = world.ended("inbox").await?;
    world.told(&task, "SUCCESS").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callbacks_wait_while_the_broker_is_away_and_are_sent_when_it_is_back() -> Result<()> {
    const TOLD: usize = 20;
    let vhost = prepared(TestVhost::create().await?).await?;
    let proxy = TcpProxy::start(vhost.server_addr()?).await?;
    let world = World::start_with(&vhost.url_via(proxy.addr())?, &[WAIT; 20], "2s").await?;
    let mut tasks = vec![world.ended("inbox").await?];
    world.told(&tasks[0], "SUCCESS").await?;

    proxy.cut().await?;
    for _ in 0..TOLD {
        tasks.push(world.ended("inbox").await?);
    }
    // It is left alone by now: one at a time is tried.
    let tried = |callback: &Value| list(&callback["tries"]).len() >= 2;
    until("one was tried twice", async || {
        for task in &tasks[1..] {
            if tried(&world.callback(task).await?) {
                return Ok(true);
            }
        }
        Ok(false)
    })
    .await?;
    proxy.restore().await?;
    let mut most = 0;
    for task in &tasks[1..] {
        let callback = world.told(task, "SUCCESS").await?;
        let (last, failed) = list(&callback["tries"]).split_last().context("it was never tried")?;
        assert!(last.get("error").is_none(), "{callback}");
        for one in failed {
            // One that was on its way when the broker was cut off may have had to wait for its word in vain.
            let away = |why: &str| why.starts_with("the broker is away") || why.contains("did not confirm");
            assert!(one["error"].as_str().is_some_and(away), "{callback}");
        }
        keeps_its_schedule(&callback, WAIT)?;
        most = most.max(failed.len());
    }
    // Some may be there twice, if the broker's word was lost; always under the same name.
    let messages = vhost.take("shop-inbox", 1000).await?;
    let names: BTreeSet<String> = messages.iter().map(|one| one.properties["message_id"].to_string()).collect();
    assert_eq!(names.len(), tasks.len());
    println!(
        "broker cut off: {} tasks told in {} messages; tries spent in vain: {most} at most",
        tasks.len(),
        messages.len()
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confirmed_callbacks_survive_a_broker_crash_and_the_rest_follow() -> Result<()> {
    let mut node = RabbitMqServer::start().await?;
    let vhost = prepared(node.vhost().await?).await?;
    // Longer than a node takes to come back on a busy machine: what waits for it must not run out of tries.
    let world = World::start_with(vhost.url(), &[Duration::from_secs(3); 20], "2s").await?;
    let before = world.ended("inbox").await?;
    world.told(&before, "SUCCESS").await?;

    node.write_down().await?;
    node.kill9()?;
    let after = world.ended("inbox").await?;
    let away = world.callback_when(&after, |callback| !list(&callback["tries"]).is_empty()).await?;
    assert!(away["tries"][0]["error"].as_str().is_some_and(|why| why.starts_with("the broker is away")), "{away}");
    node.restart().await?;
    let callback = world.told(&after, "SUCCESS").await?;
    keeps_its_schedule(&callback, Duration::from_secs(3))?;

    let messages = vhost.take("shop-inbox", 10).await?;
    world.is_about(messages.first().context("what was confirmed is gone")?, &before).await?;
    for message in &messages[1..] {
        world.is_about(message, &after).await?;
    }
    assert!(messages.len() >= 2, "{messages:?}");
    println!("broker killed: told after {} tries, {} messages", callback["attempts"], messages.len());
    Ok(())
}

/// The words of a line, where one space or more is between them.
fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callbacks_are_listed_shown_and_sent_again_by_command() -> Result<()> {
    let vhost = prepared(TestVhost::create().await?).await?;
    let world = World::start(vhost.url(), &[WAIT]).await?;
    let say = |line: &str| type_in(&world.server, line);
    let json = |line: &str| -> Result<Value> { Ok(serde_json::from_str(&type_in(&world.server, line)?.data()?)?) };
    assert_eq!(say("callback list")?.data()?, "There are no such callbacks.\n");
    assert_eq!(json("callback list --json")?, json!({"callbacks": []}));
    let task = world.ended("nowhere").await?;
    let failed = world.told(&task, "FAILURE").await?;
    let id = failed["callbackId"].as_str().context("no name")?;

    let table = say("callback list --status failure")?.data()?;
    let lines: Vec<&str> = table.lines().collect();
    let [head, row] = lines[..] else { anyhow::bail!("two lines were expected: {table}") };
    let columns = ["CALLBACK", "SERVICE", "CLIENT", "EVENT", "STATUS", "ATTEMPTS", "TARGET", "NEXT", "ATTEMPT"];
    assert_eq!(words(head), columns);
    assert_eq!(words(row), [id, "resize", "shop", "success", "FAILURE", "2", "nowhere", "-"]);
    let listed = json("callback list --status failure --service resize --client shop --since 2h --json")?;
    assert_eq!(listed["callbacks"][0]["callbackId"], id, "{listed}");
    assert_eq!(listed["callbacks"].as_array().map(Vec::len), Some(1), "{listed}");
    assert_eq!(json("callback list --status success --json")?, json!({"callbacks": []}));

    let card = say(&format!("callback show {id}"))?.data()?;
    let lines: Vec<Vec<&str>> = card.lines().map(words).collect();
    for line in [
        ["Callback:", id],
        ["Task:", task.as_str()],
        ["Service:", "resize"],
        ["Client:", "shop"],
        ["Event:", "success"],
        ["Status:", "FAILURE"],
        ["Type:", "amqp"],
        ["Target:", "nowhere"],
    ] {
        assert!(lines.iter().any(|words| words[..] == line), "{line:?} in {card}");
    }
    assert!(lines.contains(&vec!["TRY", "BEGAN", "MS", "ANSWER", "WHAT", "WAS", "WRONG"]), "{card}");
    let why = r#"-       no queue takes messages from the exchange "" with the routing key "no-such-queue""#;
    assert_eq!(card.lines().filter(|line| line.ends_with(why)).count(), 2, "{card}");
    assert_eq!(json(&format!("callback show {id} --json"))?, failed, "what the consumer sees");

    // Whoever is missing is made, and then it is sent again.
    vhost.declare_queue("no-such-queue").await?;
    let again = say(&format!("callback redeliver {id}"))?.data()?;
    let lines: Vec<Vec<&str>> = again.lines().map(words).collect();
    assert!(lines.contains(&vec!["Callback:", id]), "{again}");
    let told = world.told(&task, "SUCCESS").await?;
    assert_eq!((&told["attempts"], list(&told["tries"]).len()), (&json!(3), 3), "{told}");
    let card = say(&format!("callback show {id}"))?.data()?;
    let last: Vec<&str> = card.lines().last().map(words).unwrap_or_default();
    assert_eq!((last.first(), &last[last.len() - 2..]), (Some(&"3"), &["-", "-"][..]), "{card}");
    let messages = vhost.take("no-such-queue", 10).await?;
    assert_eq!(messages.len(), 1);
    world.is_about(&messages[0], &task).await?;

    // What was taken can be sent once more, under the same name.
    assert_eq!(json(&format!("callback redeliver {id} --json"))?["callbackId"], id);
    world.callback_when(&task, |callback| list(&callback["tries"]).len() == 4).await?;
    assert_eq!(vhost.take("no-such-queue", 10).await?[0].properties["message_id"], id);

    let lost = world.ended("lost").await?;
    world.told(&lost, "FAILURE").await?;
    assert_eq!(say("callback redeliver --failed-since 2h --client other")?.data()?, "0 to be sent again\n");
    assert_eq!(say("callback redeliver --failed-since 2h --service resize")?.data()?, "1 to be sent again\n");
    world.callback_when(&lost, |callback| list(&callback["tries"]).len() == 4).await?;
    assert_eq!(json("callback redeliver --failed-since 2h --json")?, json!({"redelivered": 1}));

    let refusal = say("callback show 01890a5d-ac96-774b-bcce-b302099a8057-3")?.refusal()?;
    assert!(refusal.contains("404006"), "{refusal}");
    assert_eq!(say("callback redeliver")?.code, 2, "which one?");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signing_secrets_are_shown_and_replaced_by_command() -> Result<()> {
    let vhost = prepared(TestVhost::create().await?).await?;
    let world = World::start(vhost.url(), &[]).await?;
    let table = |line: &str| -> Result<Vec<Vec<String>>> {
        let said = type_in(&world.server, line)?.data()?;
        Ok(said.lines().map(|line| words(line).into_iter().map(str::to_owned).collect()).collect())
    };
    let shown = table("client signing-secret shop")?;
    let [head, row] = &shown[..] else { anyhow::bail!("two lines were expected: {shown:?}") };
    assert_eq!(head, &["SECRET", "SINCE", "UNTIL"]);
    assert_eq!((row[0].as_str(), row[2].as_str()), (SIGNING, "-"));
    let said = type_in(&world.server, "client signing-secret shop --json")?.data()?;
    let said: Value = serde_json::from_str(&said)?;
    assert_eq!(said, world.shop.get("/v1/signing-secrets").await?.data()?, "what the client sees");
    assert_eq!((&said["clientId"], &said["secrets"][0]["secret"]), (&json!("shop"), &json!(SIGNING)));

    let rotated = table("client signing-secret shop --rotate --overlap 24h")?;
    let [_, new, old] = &rotated[..] else { anyhow::bail!("three lines were expected: {rotated:?}") };
    assert!(new[0].starts_with("whsec_") && new[0] != SIGNING, "{rotated:?}");
    assert_eq!((new[2].as_str(), old[0].as_str()), ("-", SIGNING));
    assert!(old[2].parse::<jiff::Timestamp>()? > jiff::Timestamp::now(), "{rotated:?}");
    // While there are two, either of them checks.
    let task = world.ended("inbox").await?;
    world.told(&task, "SUCCESS").await?;
    world.is_about(&vhost.take("shop-inbox", 1).await?[0], &task).await?;

    let rotated = type_in(&world.server, "client signing-secret shop --rotate --overlap 0s --json")?.data()?;
    let rotated: Value = serde_json::from_str(&rotated)?;
    assert_eq!(list(&rotated["secrets"]).len(), 1, "a secret that leaked is gone at once: {rotated}");
    assert!(rotated["secrets"][0].get("expiresDate").is_none(), "{rotated}");
    let refusal = type_in(&world.server, "client signing-secret nobody")?.refusal()?;
    assert!(refusal.contains("404"), "{refusal}");
    Ok(())
}
