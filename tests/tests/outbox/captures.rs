//! Captures in the server: declared by file, API and command line, published to a real broker, shared and dropped.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use relais_testkit::TestDatabase;
use relais_tests::instance::Instance;
use serde_json::{Value, json};

use crate::stage::{PASSWORD, PATIENCE, Stage, call, done, type_in, typed, until};

const TABLES: &str = "CREATE TABLE customer (id int PRIMARY KEY, name text, card text, secret text);
    INSERT INTO customer SELECT n, 'name ' || n, 'card-no ' || n, 'hidden' FROM generate_series(1, 3) AS n";

/// Slots are of the whole server, which other tests use too.
fn slot(stage: &Stage) -> String {
    format!("relais_{}", stage.orders.name())
}

fn declaration(stage: &Stage) -> Result<Value> {
    Ok(json!({
        "captureName": "shop",
        "slot": slot(stage),
        "databaseUrl": stage.orders_url()?,
        "tables": ["customer"],
        "excludeColumns": ["public.customer.secret"],
        "maskColumns": {"public.customer.card": {"hash": "pepper"}, "public.customer.name": "***"},
        "destination": "shop",
        "sink": {"rabbitmq": {"url": stage.broker_url}},
    }))
}

async fn activities(server: &Instance) -> Result<Vec<Value>> {
    let state = done(server, "GET", "captures/shop", None).await?;
    let processes = state["processes"].as_array().cloned().unwrap_or_default();
    Ok(processes.into_iter().map(|process| process["activity"].clone()).collect())
}

/// Operation and key of the next records, once there are so many.
async fn records(stage: &Stage, count: usize) -> Result<Vec<(String, i64)>> {
    let (mut records, begun) = (Vec::new(), Instant::now());
    while records.len() < count {
        ensure!(begun.elapsed() < PATIENCE, "after {PATIENCE:?} there are {records:?}");
        for message in stage.broker.take("all", count).await? {
            // A tombstone has no value.
            let Ok(value) = serde_json::from_slice::<Value>(&message.body) else { continue };
            let row = if value["after"].is_null() { &value["before"] } else { &value["after"] };
            let text = value.to_string();
            ensure!(!text.contains("hidden") && !text.contains("card-no") && !text.contains("name "), "{text}");
            records.push((value["op"].as_str().context("op")?.to_owned(), row["id"].as_i64().context("id")?));
        }
    }
    Ok(records)
}

async fn server_objects(stage: &Stage) -> Result<i64> {
    let sql = "SELECT (SELECT count(*) FROM pg_replication_slots WHERE database = current_database())
                    + (SELECT count(*) FROM pg_publication)";
    Ok(sqlx::query_scalar(sql).fetch_one(&stage.pool().await?).await?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_capture_is_declared_published_operated_and_dropped() -> Result<()> {
    let stage = Stage::new().await?;
    stage.sql(TABLES).await?;
    let server = stage.server(stage.own())?.start().await?;
    done(&server, "PUT", "captures/shop", Some(&declaration(&stage)?)).await?;
    let expected = |op: &str, ids: &[i64]| ids.iter().map(|id| (op.to_owned(), *id)).collect::<Vec<_>>();
    ensure!(records(&stage, 3).await? == expected("r", &[1, 2, 3]), "the rows that were there");
    stage.sql("INSERT INTO customer VALUES (4, 'name 4', 'card-no 4', 'hidden')").await?;
    stage.sql("UPDATE customer SET card = 'card-no 5' WHERE id = 4; DELETE FROM customer WHERE id = 4").await?;
    let changes = records(&stage, 3).await?;
    ensure!(changes == [("c".to_owned(), 4), ("u".to_owned(), 4), ("d".to_owned(), 4)], "{changes:?}");

    // Nothing that is shown has a secret in it, and what was shown can be declared again.
    until("the snapshot is over", async || Ok(activities(&server).await? == ["streaming"])).await?;
    let state = done(&server, "GET", "captures/shop", None).await?;
    ensure!(!state.to_string().contains(PASSWORD) && !state.to_string().contains("pepper"), "{state}");
    ensure!(state["position"]["snapshot"] == json!([]) && state["snapshotRows"] == 3, "{state}");
    let exported = done(&server, "GET", "declaration", None).await?;
    let applied = done(&server, "PUT", "captures/shop", Some(&exported["captures"][0])).await?;
    ensure!(applied["applied"][0]["action"] == "unchanged", "{applied}");

    // A snapshot on request; while it is paused nothing is published, and nothing is lost.
    ensure!(typed(&server, "capture snapshot shop customer")?.contains("public.customer"));
    ensure!(records(&stage, 3).await? == expected("r", &[1, 2, 3]), "once more");
    ensure!(typed(&server, "capture pause shop")?.contains("paused"));
    until("nobody reads", async || Ok(activities(&server).await?.is_empty())).await?;
    stage.sql("INSERT INTO customer VALUES (5, 'name 5', 'card-no 5', 'hidden')").await?;
    ensure!(typed(&server, "capture list")?.contains("paused"));
    typed(&server, "capture resume shop")?;
    ensure!(records(&stage, 1).await? == expected("c", &[5]), "what was committed meanwhile");

    // The metrics name it.
    until("it is counted", async || {
        let metrics = reqwest::get(format!("{}/metrics", server.url())).await?.text().await?;
        Ok(metrics.contains("relais_capture_changes_total{capture=\"shop\"} 4"))
    })
    .await?;

    ensure!(server_objects(&stage).await? == 2);
    ensure!(typed(&server, "capture drop shop --yes")?.contains("deleted"));
    until("slot and publication are gone", async || Ok(server_objects(&stage).await? == 0)).await?;
    ensure!(call(&server, "GET", "captures/shop", None).await?.1["error"]["number"] == 404_012);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_large_transaction_waits_in_the_spool_of_the_server_and_leaves_nothing_there() -> Result<()> {
    let stage = Stage::new().await?;
    stage.sql(TABLES).await?;
    let name = stage.orders.name();
    stage.sql(&format!("ALTER DATABASE \"{name}\" SET logical_decoding_work_mem = '64kB'")).await?;
    let spool = stage.folder.path().join("spool");
    let server = stage.server(stage.own())?.env("RELAIS_RELAY_SPOOL_DIR", spool.display().to_string()).start().await?;
    done(&server, "PUT", "captures/shop", Some(&declaration(&stage)?)).await?;
    records(&stage, 3).await?;
    let pool = stage.pool().await?;
    let mut large = pool.begin().await?;
    let rows = "INSERT INTO customer SELECT n, repeat('n', 100), 'c', 's' FROM generate_series(101, 2100) n";
    sqlx::query(rows).execute(&mut *large).await?;
    let files = || -> Result<usize> {
        let mut number = 0;
        for folder in std::fs::read_dir(&spool)?.flatten().filter(|entry| entry.path().is_dir()) {
            let files = std::fs::read_dir(folder.path())?.flatten();
            number += files.filter(|file| file.path().extension().is_some()).count();
        }
        Ok(number)
    };
    until("it is in the spool", async || Ok(files()? == 1)).await?;
    large.commit().await?;
    let found = records(&stage, 2000).await?;
    ensure!(found.iter().map(|(_, id)| *id).eq(101..=2100), "in order");
    until("the spool is empty", async || Ok(files()? == 0)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_can_not_be_captured_is_refused_with_what_to_do() -> Result<()> {
    let stage = Stage::new().await?;
    stage.sql(TABLES).await?;
    let server = stage.server(stage.own())?.start().await?;
    for (change, path, said) in [
        (json!({"tables": ["customer", "nothing"]}), "databaseUrl", "nothing"),
        (json!({"excludeColumns": ["public.customer.secrt"]}), "databaseUrl", "no column public.customer.secrt"),
        (json!({"tables": ["customer", "a.b.c"]}), "tables/1", "schema.name"),
        (json!({"destination": "{topic}"}), "destination", "there is no field `topic`"),
        (json!({"databaseUrl": "postgres://u@127.0.0.1:1/db?sslcrl=x"}), "databaseUrl", "does not know sslcrl"),
        (json!({"databaseUrl": "postgres://u@127.0.0.1:1/db"}), "databaseUrl", "can not be reached"),
        (json!({"sink": {"rabbitmq": {"url": "amqp://127.0.0.1:1"}}}), "sink/rabbitmq/url", "can not be reached"),
    ] {
        let mut wrong = declaration(&stage)?;
        wrong.as_object_mut().context("an object")?.extend(change.as_object().cloned().unwrap_or_default());
        let (status, answer) = call(&server, "PUT", "captures/shop", Some(&wrong)).await?;
        let details = answer["error"]["details"].to_string();
        ensure!(status == 400 && details.contains(path) && details.contains(said), "{change}: {answer}");
        ensure!(!details.contains(PASSWORD), "{details}");
    }
    ensure!(server_objects(&stage).await? == 0, "nothing was changed");
    done(&server, "PUT", "captures/shop", Some(&declaration(&stage)?)).await?;
    until("it runs", async || Ok(activities(&server).await? == ["streaming"])).await?;
    let refused = type_in(&server, "capture snapshot shop other")?;
    ensure!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("is not captured"));
    ensure!(!type_in(&server, "capture show nothing")?.status.success());

    // What the sink refuses holds everything up, and says so, until the declaration is right.
    records(&stage, 3).await?;
    let mut elsewhere = declaration(&stage)?;
    elsewhere["destination"] = "nowhere".into();
    done(&server, "PUT", "captures/shop", Some(&elsewhere)).await?;
    stage.sql("INSERT INTO customer VALUES (6, 'name 6', 'card-no 6', 'hidden')").await?;
    until("the operator is told", async || {
        let state = done(&server, "GET", "captures/shop", None).await?;
        Ok(state["trouble"].as_str().is_some_and(|trouble| trouble.contains("nowhere")))
    })
    .await?;
    done(&server, "PUT", "captures/shop", Some(&declaration(&stage)?)).await?;
    ensure!(records(&stage, 1).await? == [("c".to_owned(), 6)], "nothing was lost");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_file_declares_captures_and_a_killed_reader_is_replaced() -> Result<()> {
    let (stage, own) = tokio::try_join!(Stage::new(), TestDatabase::create())?;
    stage.sql(TABLES).await?;
    let file = stage.folder.path().join("captures.yaml");
    let yaml = "captures:\n  - captureName: shop\n    slot: SLOT\n    databaseUrl: {env: ORDERS_DATABASE_URL}\n    tables: [customer]\n    \
                excludeColumns: [public.customer.secret]\n    maskColumns: {public.customer.card: \"*\", public.customer.name: \"*\"}\n    \
                destination: shop\n    sink: {rabbitmq: {url: {env: RABBITMQ_URL}}}\n";
    let yaml = yaml.replace("SLOT", &slot(&stage));
    std::fs::write(&file, &yaml)?;
    let with_file =
        || Ok::<_, anyhow::Error>(stage.server(own.url())?.arg("--declarations").arg(file.display().to_string()));
    let mut one = with_file()?.start().await?;
    ensure!(records(&stage, 3).await?.len() == 3);
    until("it reads", async || Ok(activities(&one).await? == ["streaming"])).await?;
    let two = with_file()?.start().await?;
    until("the other stands by", async || Ok(activities(&two).await?.contains(&json!("standby")))).await?;
    let killed = Instant::now();
    one.kill9()?;
    stage.sql("INSERT INTO customer SELECT n, 'x', 'x', 'x' FROM generate_series(10, 12) AS n").await?;
    let rest = records(&stage, 3).await?;
    println!("kill -9 of the process that reads the slot: the other went on after {:?}", killed.elapsed());
    ensure!(rest == [("c".to_owned(), 10), ("c".to_owned(), 11), ("c".to_owned(), 12)], "{rest:?}");
    // A changed entry is taken up while it runs.
    std::fs::write(&file, yaml.replace("\"*\"", "\"-\""))?;
    until("the change is taken up", async || {
        let state = done(&two, "GET", "captures/shop", None).await?;
        Ok(state["maskColumns"]["public.customer.card"] == "-" && state["processes"].to_string().contains("streaming"))
    })
    .await?;
    // Pruned while it is paused, so that nobody runs it, it leaves nothing behind.
    typed(&two, "capture pause shop")?;
    until("nobody reads", async || Ok(activities(&two).await?.iter().all(|does| does == "standby"))).await?;
    let empty = stage.folder.path().join("empty.yaml");
    std::fs::write(&empty, "captures: []\n")?;
    typed(&two, &format!("apply -f {} --prune", empty.display()))?;
    until("slot and publication are gone", async || Ok(server_objects(&stage).await? == 0)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn slots_and_publications_of_others_are_left_alone() -> Result<()> {
    let stage = Stage::new().await?;
    stage.sql(TABLES).await?;
    stage.sql("CREATE TABLE invoice (id int PRIMARY KEY); CREATE PUBLICATION by_hand FOR TABLE invoice").await?;
    let server = stage.server(stage.own())?.start().await?;
    let refused = async |declaration: &Value, said: &str| {
        let path = format!("captures/{}", declaration["captureName"].as_str().context("a name")?);
        let (status, answer) = call(&server, "PUT", &path, Some(declaration)).await?;
        ensure!(status == 400 && answer["error"]["details"].to_string().contains(said), "{said}: {answer}");
        anyhow::Ok(())
    };
    let with = |changes: Value| {
        let mut declaration = declaration(&stage)?;
        declaration.as_object_mut().context("an object")?.extend(changes.as_object().cloned().unwrap_or_default());
        anyhow::Ok(declaration)
    };

    // A publication that somebody made is used as it is, or not at all.
    refused(&with(json!({"publication": "by_hand"}))?, "ADD TABLE").await?;
    stage
        .sql("ALTER PUBLICATION by_hand ADD TABLE customer; ALTER PUBLICATION by_hand SET (publish = 'insert')")
        .await?;
    refused(&with(json!({"publication": "by_hand"}))?, "SET (publish").await?;
    stage.sql("ALTER PUBLICATION by_hand SET (publish = 'insert, update, delete, truncate')").await?;
    done(&server, "PUT", "captures/shop", Some(&with(json!({"publication": "by_hand"}))?)).await?;
    ensure!(records(&stage, 3).await?.len() == 3);
    stage.sql("INSERT INTO invoice VALUES (1); INSERT INTO customer VALUES (4, '', '', '')").await?;
    ensure!(records(&stage, 1).await? == [("c".to_owned(), 4)], "of its own table only");

    // A slot has one capture and one publication.
    refused(&with(json!({"publication": "another"}))?, "was made for the publication by_hand").await?;
    refused(&with(json!({"captureName": "second"}))?, "is that of the capture shop").await?;
    let both = ["one", "two"].map(|name| with(json!({"captureName": name, "slot": format!("{}_both", slot(&stage))})));
    let [one, two] = both;
    let (status, answer) = call(&server, "POST", "apply", Some(&json!({"captures": [one?, two?]}))).await?;
    ensure!(status == 400 && answer.to_string().contains("is that of the capture one"), "{status} {answer}");

    typed(&server, "capture drop shop --yes")?;
    until("the slot is gone, and the publication is not", async || Ok(server_objects(&stage).await? == 1)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_paused_capture_does_not_fill_the_disk_of_its_database() -> Result<()> {
    let stage = Stage::new().await?;
    stage.sql(TABLES).await?;
    let server = stage.server(stage.own())?.start().await?;
    let mut declaration = declaration(&stage)?;
    declaration["maxRetainedWal"] = (4 << 20).into();
    done(&server, "PUT", "captures/shop", Some(&declaration)).await?;
    ensure!(records(&stage, 3).await?.len() == 3);
    typed(&server, "capture pause shop")?;
    stage.sql("CREATE TABLE noise AS SELECT repeat(md5(n::text), 30) FROM generate_series(1, 10000) AS n").await?;
    until("the slot is dropped", async || Ok(server_objects(&stage).await? == 1)).await?;
    until("the operator is told", async || {
        let ready: Value = reqwest::get(format!("{}/readyz", server.url())).await?.json().await?;
        Ok(ready["notes"].to_string().contains("the slot was dropped"))
    })
    .await?;
    // It begins anew with what the tables have then.
    stage.sql("DELETE FROM customer WHERE id = 1").await?;
    typed(&server, "capture resume shop")?;
    ensure!(records(&stage, 2).await? == [("r".to_owned(), 2), ("r".to_owned(), 3)], "the tables are read anew");
    Ok(())
}
