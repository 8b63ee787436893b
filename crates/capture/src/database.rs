//! The captured database, and what is captured of it: what can be asked and done without capturing.

use std::{collections::BTreeSet, time::Duration};

use relais_message::Template;
use sqlx::{Connection as _, PgConnection, PgPool, postgres::PgPoolOptions};

use crate::{
    Address, CaptureError, CaptureProgress, ColumnRules, Lack, Publication, Slot, SlotState, Spool, Wanted, check,
    debezium::EnvelopeOptions, progress::ProgressStore,
};

type Result<T> = std::result::Result<T, CaptureError>;

/// Connections of a capture: one for progress, one to look after the slot.
const CONNECTIONS: u32 = 2;

/// The fields of the templates of destination and routing key.
pub const ROUTE_FIELDS: [&str; 3] = ["capture", "schema", "table"];

/// What is captured, and how it is published.
#[derive(Debug, Clone)]
pub struct CaptureOptions {
    /// Its name. It is the first part of topics.
    pub name: String,
    /// Schema and name of each table.
    pub tables: Vec<(String, String)>,
    /// The replication slot.
    pub slot: String,
    /// The publication.
    pub publication: String,
    /// Which columns are published, and how.
    pub columns: ColumnRules,
    /// How records look.
    pub envelope: EnvelopeOptions,
    /// Where records go, if not to `{capture}.{schema}.{table}`. It may have the fields of [`ROUTE_FIELDS`].
    pub destination: Option<Template>,
    /// Their routing key, if it is not `{capture}.{schema}.{table}`.
    pub routing_key: Option<Template>,
    /// Whether the rows that are there at the beginning are published too.
    pub initial_snapshot: bool,
    /// At most so many rows of a snapshot at once.
    pub chunk_rows: usize,
    /// At most so many changes at once.
    pub batch_rows: usize,
    /// About so many bytes at once.
    pub batch_bytes: usize,
    /// How long the sink may take for one batch.
    pub publish_timeout: Duration,
    /// A slot for which the server keeps more WAL than this is dropped: its disk comes first. There is a gap then, and tables are
    /// read anew.
    pub max_retained_wal: Option<u64>,
    /// Where large transactions wait for their commit. Without it the server keeps them.
    pub spool: Option<Spool>,
}

impl CaptureOptions {
    /// The defaults, for a capture of this name. `tables` are names or `schema.name`.
    pub fn new(name: impl Into<String>, tables: &[&str]) -> Result<Self> {
        let name = name.into();
        let simple = name.to_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "_");
        let slot = Slot::new(format!("relais_{simple}"))?.name().to_owned();
        let table = |table: &&str| {
            let (schema, name) = table.split_once('.').unwrap_or(("public", table));
            (schema.to_owned(), name.to_owned())
        };
        Ok(Self {
            envelope: EnvelopeOptions::new(&name),
            name,
            tables: tables.iter().map(table).collect(),
            publication: slot.clone(),
            slot,
            columns: ColumnRules::default(),
            destination: None,
            routing_key: None,
            initial_snapshot: true,
            chunk_rows: 1000,
            batch_rows: 1000,
            batch_bytes: 8 * 1024 * 1024,
            publish_timeout: Duration::from_secs(30),
            max_retained_wal: None,
            spool: None,
        })
    }

    /// Whose its publication is.
    pub(crate) fn owner(&self) -> String {
        format!("capture {}", self.name)
    }

    pub(crate) fn table_names(&self) -> Vec<String> {
        self.tables.iter().map(|(schema, name)| format!("{schema}.{name}")).collect()
    }
}

/// A database of which tables are captured: what can be asked and done without capturing.
#[derive(Debug, Clone)]
pub struct CapturedDatabase {
    pub(crate) pool: PgPool,
    pub(crate) address: Address,
    pub(crate) url: String,
}

impl CapturedDatabase {
    /// Connects.
    pub async fn connect(url: &str) -> Result<Self> {
        let address = Address::parse(url)?;
        // A pool tries until its time is over, and does not say why.
        PgConnection::connect(url).await?.close().await?;
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS).test_before_acquire(false).connect(url).await?;
        Ok(Self { pool, address, url: url.to_owned() })
    }

    /// What the database lacks; nothing is changed.
    pub async fn check(&self, options: &CaptureOptions) -> Result<Vec<Lack>> {
        let wanted = Wanted {
            tables: options.tables.clone(),
            changes: true,
            slot: options.slot.clone(),
            publication: options.publication.clone(),
            owner: options.owner(),
        };
        let mut lacks = check(&self.pool, &wanted).await?;
        if let Some(other) = self.store(options).other_of_slot().await? {
            lacks.push(Lack::new(
                format!("the slot {} is that of the capture {other}", options.slot),
                "name another slot, or drop the other capture",
            ));
        }
        Ok(lacks)
    }

    /// Columns that the options name and that no table has, as `schema.table.column`.
    pub async fn unknown_columns(&self, options: &CaptureOptions) -> Result<Vec<String>> {
        let ColumnRules { exclude, include, masks } = &options.columns;
        let keys = options.envelope.key_columns.iter();
        let keys = keys.flat_map(|(table, columns)| columns.iter().map(move |column| format!("{table}.{column}")));
        let named: BTreeSet<String> = exclude.iter().chain(include).chain(masks.keys()).cloned().chain(keys).collect();
        let unknown = sqlx::query_scalar(
            "SELECT named FROM unnest($1::text[]) AS named WHERE NOT EXISTS (
                 SELECT 1 FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
                 JOIN pg_namespace n ON n.oid = c.relnamespace
                 WHERE a.attnum > 0 AND NOT a.attisdropped
                   AND concat_ws('.', n.nspname, c.relname, a.attname) = named)",
        )
        .bind(named.into_iter().collect::<Vec<_>>())
        .fetch_all(&self.pool)
        .await?;
        Ok(unknown)
    }

    /// How the slot is; none if there is none.
    pub async fn slot(&self, options: &CaptureOptions) -> Result<Option<SlotState>> {
        Slot::new(&options.slot)?.state(&self.pool).await
    }

    /// How far the capture is; none if it never began.
    pub async fn progress(&self, options: &CaptureOptions) -> Result<Option<CaptureProgress>> {
        self.store(options).read().await
    }

    /// Asks for tables to be read again beside the stream, all of them if none is named; whether the capture ever ran.
    pub async fn request_snapshot(&self, options: &CaptureOptions, tables: &[String]) -> Result<bool> {
        let all = options.table_names();
        if let Some(unknown) = tables.iter().find(|table| !all.contains(table)) {
            return Err(CaptureError::Name(format!("{unknown} is not captured; there are {}", all.join(", "))));
        }
        self.store(options).request_snapshot(if tables.is_empty() { &all } else { tables }).await
    }

    /// Drops slot and publication and forgets how far the capture is. A publication that belongs to somebody else stays.
    pub async fn drop(&self, options: &CaptureOptions) -> Result<()> {
        match self.drop_slot(options).await {
            // This one never ran.
            Err(CaptureError::SlotTaken(_)) => return Ok(()),
            dropped => dropped?,
        }
        self.store(options).forget().await?;
        match Publication::drop(&options.publication, &options.owner(), &self.pool).await {
            Err(error) if error.code() == Some("42501") => {
                tracing::warn!(publication = options.publication, "the publication is somebody else's, and stays");
                Ok(())
            }
            dropped => dropped,
        }
    }

    /// Drops the slot if the server keeps more WAL for it than it may, whether somebody reads it or not. A capture that had
    /// begun finds a gap then.
    pub async fn protect(&self, options: &CaptureOptions) -> Result<()> {
        let Some(limit) = options.max_retained_wal else { return Ok(()) };
        match self.slot(options).await? {
            Some(state) if state.retained > limit => {
                self.drop_slot(options).await?;
                Err(CaptureError::SlotTooLarge { retained: state.retained, limit })
            }
            _ => Ok(()),
        }
    }

    /// Drops the slot only, unless it is another capture's.
    pub async fn drop_slot(&self, options: &CaptureOptions) -> Result<()> {
        if self.store(options).other_of_slot().await?.is_some() {
            return Err(CaptureError::SlotTaken(options.slot.clone()));
        }
        Slot::new(&options.slot)?.drop(&self.pool).await
    }

    pub(crate) fn store(&self, options: &CaptureOptions) -> ProgressStore {
        ProgressStore { pool: self.pool.clone(), capture: options.name.clone(), slot: options.slot.clone() }
    }
}
