//! The stream of changes on a real PostgreSQL.

mod changes;
mod spool;
mod versions;

use std::time::Duration;

use anyhow::{Context as _, Result};
use relais_capture::{Address, Change, ChangeStream, Operation, Publication, Slot, StreamEvent, StreamOptions, Value};
use relais_testkit::TestDatabase;
use sqlx::{AssertSqlSafe, PgPool};
use tokio::time::timeout;

/// For whatever should happen soon, on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

const SHOP: &str = "CREATE TABLE orders (id integer PRIMARY KEY, state text, note text);
                    CREATE TABLE other (id integer)";

struct World {
    database: TestDatabase,
    pool: PgPool,
    slot: Slot,
}

impl World {
    async fn new() -> Result<Self> {
        let database = TestDatabase::create().await?;
        let pool = PgPool::connect(database.url()).await?;
        let world = Self { slot: Slot::new(slot_name(&pool).await?)?, database, pool };
        world.execute(SHOP).await?;
        publication().ensure(&world.pool).await?;
        Ok(world)
    }

    async fn with_slot() -> Result<Self> {
        let world = Self::new().await?;
        world.slot.create(&world.address()?).await?;
        Ok(world)
    }

    fn address(&self) -> Result<Address> {
        Ok(Address::parse(self.database.url())?)
    }

    fn options(&self) -> StreamOptions {
        StreamOptions::new(self.slot.name(), "shop")
    }

    async fn stream(&self, options: StreamOptions) -> Result<ChangeStream> {
        Ok(ChangeStream::start(&self.address()?, options).await?)
    }

    async fn execute(&self, statements: &str) -> Result<()> {
        sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(&self.pool).await?;
        Ok(())
    }

    /// Large transactions come while they are open, once a stream has a spool.
    async fn with_little_memory() -> Result<Self> {
        let world = Self::new().await?;
        let name = world.database.name().to_owned();
        world.execute(&format!("ALTER DATABASE \"{name}\" SET logical_decoding_work_mem = '64kB'")).await?;
        world.slot.create(&world.address()?).await?;
        Ok(world)
    }

    /// How many transactions the server has sent while they were open, and how many it has spilled to its disk.
    async fn streamed_and_spilled(&self) -> Result<(i64, i64)> {
        let sql = "SELECT stream_txns, spill_txns FROM pg_stat_replication_slots WHERE slot_name = $1";
        Ok(sqlx::query_as(sql).bind(self.slot.name()).fetch_optional(&self.pool).await?.unwrap_or_default())
    }

    async fn end(self) -> Result<()> {
        self.slot.drop(&self.pool).await?;
        self.pool.close().await;
        Ok(())
    }
}

/// Slots are of the whole server: the database's name tells them apart.
async fn slot_name(pool: &PgPool) -> Result<String> {
    let name: String = sqlx::query_scalar("SELECT current_database()::text").fetch_one(pool).await?;
    Ok(format!("slot_{}", name.to_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "_")))
}

fn publication() -> Publication {
    Publication {
        name: "shop".to_owned(),
        tables: vec![("public".to_owned(), "orders".to_owned())],
        operations: "insert, update, delete, truncate".to_owned(),
        owner: "test".to_owned(),
    }
}

/// The next so many changes, and the last that may be confirmed.
async fn changes(stream: &mut ChangeStream, number: usize) -> Result<(Vec<Change>, Option<u64>)> {
    let (mut found, mut confirm) = (Vec::new(), None);
    while found.len() < number {
        let batch = timeout(DEADLINE, stream.next()).await.context("changes come")??;
        confirm = confirm.max(batch.confirm);
        found.extend(batch.events.into_iter().filter_map(|event| match event {
            StreamEvent::Change(change) => Some(change),
            StreamEvent::Message(_) => None,
        }));
    }
    Ok((found, confirm))
}

fn text(value: &Value) -> &str {
    match value {
        Value::Null => "NULL",
        Value::Unchanged => "UNCHANGED",
        Value::Text(bytes) => std::str::from_utf8(bytes).expect("UTF-8"),
    }
}

fn show(change: &Change) -> String {
    let row = |row: &[Value]| row.iter().map(text).collect::<Vec<_>>().join(",");
    match &change.operation {
        Operation::Insert { after } => format!("c {}", row(after)),
        Operation::Update { before: None, after, .. } => format!("u {}", row(after)),
        Operation::Update { before: Some(before), after, .. } => format!("u {} -> {}", row(before), row(after)),
        Operation::Delete { before, .. } => format!("d {}", row(before)),
        Operation::Truncate => "t".to_owned(),
        Operation::Read { after } => format!("r {}", row(after)),
    }
}

async fn until_nobody_reads(world: &World) -> Result<()> {
    let waiting = async {
        while world.slot.state(&world.pool).await?.context("the slot")?.active {
            tokio::task::yield_now().await;
        }
        anyhow::Ok(())
    };
    timeout(DEADLINE, waiting).await.context("the slot is free")?
}
