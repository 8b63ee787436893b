//! Declaring outboxes: by file, by API, by command line; and what is refused.

use std::fs;

use anyhow::{Context, Result, ensure};
use relais_tests::instance::{Instance, command};
use serde_json::{Value, json};

use crate::stage::{BROKER_PASSWORD, PASSWORD, Stage, call, done, redis, type_in, typed, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_of_an_outbox_that_a_file_declares_arrives_at_the_broker() -> Result<()> {
    let stage = Stage::new().await?;
    stage.init()?;
    let file = stage.folder.path().join("relais.yaml");
    let declare = |routing_key: &str, other: &str| {
        let text = format!(
            "outboxes:\n  - outboxName: orders\n    databaseUrl: {{env: ORDERS_DATABASE_URL}}\n    destination: shop\n\
             \x20   routingKey: \"{routing_key}\"\n    headers: {{x-source: orders}}\n    pollInterval: 50ms\n\
             \x20   sink:\n      rabbitmq: {{url: {{env: RABBITMQ_URL}}}}\n{other}"
        );
        fs::write(&file, text)
    };
    declare("orders.{event_type}", "")?;
    let mut server = stage.server(stage.own())?.arg("--declarations").arg(file.display().to_string()).start().await?;
    stage.insert("a", "placed", 0..1).await?;
    let mut found = Vec::new();
    until("the message is there", async || {
        found.extend(stage.broker.take("all", 1).await?);
        Ok(!found.is_empty())
    })
    .await?;
    let message = &found[0];
    ensure!(message.exchange == "shop" && message.routing_key == "orders.placed", "{message:?}");
    ensure!(serde_json::from_slice::<Value>(&message.body)? == json!({"number": 0}), "{message:?}");
    let headers = &message.properties["headers"];
    ensure!(headers["x-source"] == "orders" && headers["event-type"] == "placed", "{message:?}");
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    ensure!(headers["traceparent"] == traceparent, "it is passed on unchanged: {message:?}");

    // A change of the file restarts only what has changed.
    let second = "  - outboxName: second\n    databaseUrl: {env: ORDERS_DATABASE_URL}\n    paused: true\n    sink:\n      \
                  rabbitmq: {url: {env: RABBITMQ_URL}}\n";
    declare("orders.{event_type}", second)?;
    until("there are two", async || {
        Ok(done(&server, "GET", "outboxes", None).await?["outboxes"].as_array().is_some_and(|all| all.len() == 2))
    })
    .await?;
    let state = done(&server, "GET", "outboxes/orders", None).await?;
    ensure!(state["published"] == 1, "the relay was not restarted: {state}");
    declare("changed.{event_type}", second)?;
    until("the change is applied", async || {
        Ok(done(&server, "GET", "outboxes/orders", None).await?["routingKey"] == "changed.{event_type}")
    })
    .await?;
    stage.insert("a", "paid", 1..2).await?;
    until("the message is there", async || {
        found.extend(stage.broker.take("all", 1).await?);
        Ok(found.len() == 2)
    })
    .await?;
    ensure!(found[1].routing_key == "changed.paid", "{found:?}");
    let log = server.process().stderr()?;
    ensure!(!log.contains(PASSWORD) && !log.contains(BROKER_PASSWORD), "{log}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outbox_is_put_by_the_api_and_nobody_shows_its_passwords() -> Result<()> {
    let stage = Stage::new().await?;
    stage.init()?;
    let mut server = stage.server(stage.own())?.start().await?;
    let declaration = stage.declaration()?;
    let put = done(&server, "PUT", "outboxes/orders", Some(&declaration)).await?;
    ensure!(put["applied"][0] == json!({"kind": "outbox", "name": "orders", "action": "created"}), "{put}");
    let again = done(&server, "PUT", "outboxes/orders", Some(&declaration)).await?;
    ensure!(again["applied"][0]["action"] == "unchanged", "{again}");
    stage.insert("a", "placed", 0..3).await?;
    ensure!(stage.numbers(3).await? == [0, 1, 2]);

    until("it is captured", async || {
        Ok(done(&server, "GET", "outboxes/orders", None).await?["relays"][0]["activity"] == "capturing")
    })
    .await?;

    // What is exported can be applied again: the passwords stay.
    let exported = typed(&server, "export")?;
    let file = stage.folder.path().join("exported.yaml");
    fs::write(&file, &exported)?;
    let report = typed(&server, &format!("apply -f {}", file.display()))?;
    ensure!(report.contains("outbox") && report.contains("unchanged"), "{report}");
    let shown = [
        exported,
        done(&server, "GET", "outboxes", None).await?.to_string(),
        done(&server, "GET", "outboxes/orders", None).await?.to_string(),
        done(&server, "GET", "audit", None).await?.to_string(),
        typed(&server, "outbox list")?,
        typed(&server, "outbox show orders")?,
        reqwest::get(format!("{}/metrics", server.url())).await?.text().await?,
        reqwest::get(format!("{}/ui/outboxes", server.url())).await?.text().await?,
        reqwest::get(format!("{}/ui/outboxes/orders", server.url())).await?.text().await?,
        server.process().stderr()?,
    ];
    for text in &shown {
        ensure!(text.contains("orders"), "it should be about the outbox: {text}");
        ensure!(!text.contains(PASSWORD) && !text.contains(BROKER_PASSWORD), "{text}");
    }
    ensure!(shown[5].contains("RELAY") && shown[5].contains("capturing"), "{}", shown[5]);

    ensure!(typed(&server, "outbox delete orders --yes")?.contains("deleted"));
    let (status, gone) = call(&server, "GET", "outboxes/orders", None).await?;
    ensure!(status == 404 && gone["error"]["number"] == 404_011, "{status} {gone}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_not_work_is_refused_with_what_to_do() -> Result<()> {
    let stage = Stage::new().await?;
    let server = stage.server(stage.own())?.start().await?;
    stage
        .sql(
            "CREATE TABLE no_column (id uuid PRIMARY KEY, aggregate_id uuid, event_type text, payload jsonb);
             CREATE TABLE wrong_type (id uuid PRIMARY KEY, aggregate_id uuid, event_type text, payload integer,
                 created_at timestamptz, published_at timestamptz, retry_count int);
             CREATE TABLE plain (id uuid PRIMARY KEY, aggregate_id uuid NOT NULL, event_type text NOT NULL,
                 payload jsonb NOT NULL, created_at timestamptz NOT NULL, published_at timestamptz, retry_count int)",
        )
        .await?;
    let role = format!("poor_{}", stage.orders.name());
    stage.sql(&format!("CREATE ROLE {role} LOGIN; GRANT SELECT, UPDATE ON plain TO {role}")).await?;
    let mut poor = url::Url::parse(&stage.orders_url()?)?;
    poor.set_username(&role).map_err(|()| anyhow::anyhow!("the URL takes no user"))?;
    let nowhere = "postgres://u:s3cret-of-the-orders-database@127.0.0.1:1/db";
    for (change, place, said) in [
        (json!({"table": "nothing"}), "table", "`relais outbox init` makes it"),
        (json!({"table": "no_column"}), "table", "it has no column created_at, published_at, retry_count"),
        (json!({"table": "wrong_type"}), "table", "the column payload of wrong_type can not be integer"),
        (json!({"table": "plain", "databaseUrl": poor.as_str()}), "table", "may not DELETE plain; grant it"),
        (json!({"table": "plain", "key": "{aggregate_type}"}), "key", "the table has no column aggregate_type"),
        (json!({"table": "plain", "destination": "{event}"}), "destination", "there is no field `event`"),
        (json!({"table": "plain", "databaseUrl": nowhere}), "databaseUrl", "`--no-check`"),
        (
            json!({"table": "plain", "sink": {"rabbitmq": {"url": "amqp://u:restricted@127.0.0.1:1"}}}),
            "sink/rabbitmq/url",
            "the sink can not be reached",
        ),
        (
            json!({"table": "plain", "sink": {"redis": {"url": "redis://:restricted@127.0.0.1:1"}}}),
            "sink/redis/url",
            "the sink can not be reached",
        ),
        (json!({"table": "plain", "sink": {}}), "sink", "one of rabbitmq"),
    ] {
        let mut declaration = stage.declaration()?;
        declaration.as_object_mut().context("an object")?.extend(change.as_object().context("an object")?.clone());
        let (status, refusal) = call(&server, "PUT", "outboxes/orders", Some(&declaration)).await?;
        let details = refusal["error"]["details"].as_array().cloned().unwrap_or_default();
        let found = details.iter().any(|detail| {
            detail["path"] == format!("/outboxes/0/{place}")
                && detail["message"].as_str().unwrap_or_default().contains(said)
        });
        ensure!(status == 400 && found, "{change}: {status} {refusal}");
        let text = refusal.to_string();
        ensure!(!text.contains(PASSWORD) && !text.contains(BROKER_PASSWORD), "{text}");
    }
    // What is away may be declared all the same; the process is ready, and names it.
    let mut declaration = stage.declaration()?;
    declaration["databaseUrl"] = json!(nowhere);
    done(&server, "PUT", "outboxes/orders?check=false", Some(&declaration)).await?;
    until("it is named", async || {
        let ready = reqwest::get(format!("{}/readyz", server.url())).await?;
        ensure!(ready.status() == 200);
        Ok(ready.json::<Value>().await?["notes"][0].as_str().is_some_and(|note| note.starts_with("outbox orders: ")))
    })
    .await?;
    let state = done(&server, "GET", "outboxes/orders", None).await?;
    ensure!(state["trouble"].is_string() && !state.to_string().contains(PASSWORD), "{state}");
    stage.sql(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outbox_in_a_sqlite_file_goes_to_a_redis_stream() -> Result<()> {
    let (folder, redis) = (tempfile::tempdir()?, redis().await?);
    let database = format!("sqlite:{}", folder.path().join("orders.db").display());
    let printed = command()?.args(["outbox", "init", "--print", &database]).output()?;
    ensure!(String::from_utf8(printed.stdout)?.contains("CREATE TABLE IF NOT EXISTS"));
    ensure!(command()?.args(["outbox", "init", &database]).output()?.status.success());
    let again = command()?.args(["outbox", "init", &database]).output()?;
    ensure!(String::from_utf8(again.stderr)?.contains("was there and stays as it is"));
    let own = format!("sqlite:{}", folder.path().join("relais.db").display());
    let server = Instance::options(own).start().await?;
    let declaration = json!({
        "outboxes": [{"outboxName": "orders", "databaseUrl": database, "destination": "orders", "pollInterval": "50ms",
                      "sink": {"redis": {"url": redis.url(), "maxLength": 100}}, "envelope": "cloudevents"}],
    });
    let file = folder.path().join("outboxes.json");
    fs::write(&file, declaration.to_string())?;
    let report = type_in(&server, &format!("apply -f {}", file.display()))?;
    ensure!(String::from_utf8(report.stdout)?.contains("created"), "{}", String::from_utf8_lossy(&report.stderr));
    let pool = sqlx::SqlitePool::connect(&database).await?;
    sqlx::query("INSERT INTO outbox (aggregate_id, event_type, payload) VALUES ('a', 'placed', '{\"number\": 1}')")
        .execute(&pool)
        .await?;
    until("it is published", async || {
        let left: i64 =
            sqlx::query_scalar("SELECT count(*) FROM outbox WHERE published_at IS NULL").fetch_one(&pool).await?;
        Ok(left == 0)
    })
    .await?;
    Ok(())
}
