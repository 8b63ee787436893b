//! A database that Debezium's engine and a capture follow at the same time, each with its own slot and publication.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use relais_capture::{Capture, CaptureActivity, CapturedDatabase};
use relais_testkit::PostgresServer;
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use tokio::{task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{
    engine::{Engine, Settings},
    journal::{DEADLINE, Journal, JournalSink},
};

/// Rows of this table tell how far both are.
const MARKS: &str = "zz_marks";

/// A capture refuses a table without a replica identity, since its updates would fail once it is published.
const IDENTITIES: &str = "DO $$ DECLARE found regclass; BEGIN
    FOR found IN SELECT oid FROM pg_class c WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
        AND relreplident = 'd' AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)
    LOOP EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', found); END LOOP; END $$";

/// What both published.
pub struct Published {
    pub debezium: Vec<Value>,
    pub relais: Vec<Value>,
}

pub struct Stage {
    pub url: String,
    connection: PgConnection,
    debezium: Arc<Journal>,
    relais: Arc<Journal>,
    engine: Engine,
    stop: CancellationToken,
    capture: JoinHandle<()>,
    marks: i32,
}

impl Stage {
    /// Runs these statements, and starts both.
    pub async fn open(server: &PostgresServer, name: &str, before: &[String], settings: &Settings) -> Result<Self> {
        let database = name.replace('-', "_");
        let (url, mut connection) = create_database(server, &database).await?;
        for statement in before {
            connection.execute(AssertSqlSafe(statement.clone())).await.with_context(|| statement.clone())?;
        }
        connection.execute(IDENTITIES).await?;
        connection.execute(AssertSqlSafe(format!("CREATE TABLE {MARKS} (id int PRIMARY KEY)"))).await?;
        let mut tables = match settings.tables() {
            Some(tables) => tables,
            None => all_tables(&mut connection).await?,
        };
        tables.retain(|table| table != MARKS);
        tables.push(MARKS.to_owned());
        let (debezium, relais) = (Arc::<Journal>::default(), Arc::<Journal>::default());
        let engine = Engine::start(&url, &tables, settings, Arc::clone(&debezium))?;
        let captured = CapturedDatabase::connect(&url).await?;
        let mut options = settings.capture(&tables)?;
        // Slots are of the whole server.
        options.slot = format!("relais_{database}");
        let capture = Capture::new(captured, Arc::new(JournalSink(Arc::clone(&relais))), options);
        let (stop, handle) = (CancellationToken::new(), capture.handle());
        let capture = tokio::spawn(capture.run(stop.clone()));
        let mut stage = Self { url, connection, debezium, relais, engine, stop, capture, marks: 0 };
        let streaming = handle.until(|stats| stats.activity == CaptureActivity::Streaming);
        timeout(DEADLINE, streaming).await.with_context(|| format!("no capture: {:?}", handle.stats()))?;
        until_read(&mut stage.connection, &database, &stage.engine).await?;
        stage.together().await?;
        Ok(stage)
    }

    pub async fn execute(&mut self, sql: &str) -> Result<()> {
        self.connection.execute(AssertSqlSafe(sql.to_owned())).await.with_context(|| sql.to_owned())?;
        Ok(())
    }

    /// Waits until both have published everything that was written up to now.
    pub async fn together(&mut self) -> Result<()> {
        self.marks += 1;
        let mark = self.marks;
        self.execute(&format!("INSERT INTO {MARKS} VALUES ({mark})")).await?;
        let is_mark = |record: &Value| {
            let is_ours = record["topic"].as_str().is_some_and(|topic| topic.ends_with(MARKS));
            is_ours && payload(record)["after"]["id"] == mark
        };
        self.relais.until("the capture", is_mark).await?;
        let waited = self.debezium.until("Debezium's engine", is_mark).await;
        waited.with_context(|| self.engine.log())
    }

    /// Ends both.
    pub async fn close(mut self) -> Result<Published> {
        self.together().await?;
        self.stop.cancel();
        timeout(DEADLINE, self.capture).await??;
        self.engine.stop().await?;
        let (debezium, relais) = (self.debezium.records().clone(), self.relais.records().clone());
        Ok(Published { debezium, relais })
    }
}

/// Waits until Debezium reads its slot: everything that is written from now on is streamed.
pub async fn until_read(connection: &mut PgConnection, slot: &str, engine: &Engine) -> Result<()> {
    let begin = Instant::now();
    let active = "SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1 AND active)";
    while !sqlx::query_scalar::<_, bool>(active).bind(slot).fetch_one(&mut *connection).await? {
        ensure!(begin.elapsed() < DEADLINE, "Debezium does not read its slot:\n{}", engine.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// What a record says, with or without its schema.
pub fn payload(record: &Value) -> &Value {
    record["value"].get("payload").unwrap_or(&record["value"])
}

pub async fn create_database(server: &PostgresServer, name: &str) -> Result<(String, PgConnection)> {
    let mut connection = PgConnection::connect(&server.url("postgres")).await?;
    connection.execute(AssertSqlSafe(format!("CREATE DATABASE {name}"))).await?;
    connection.close().await?;
    let url = server.url(name);
    Ok((url.clone(), PgConnection::connect(&url).await?))
}

async fn all_tables(connection: &mut PgConnection) -> Result<Vec<String>> {
    let tables = "SELECT relname::text FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace \
                  ORDER BY relname COLLATE \"C\"";
    Ok(sqlx::query_scalar(tables).fetch_all(connection).await?)
}
