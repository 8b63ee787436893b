//! Debezium's own engine, in a process of Java, and the settings that it and a capture get.

use std::{env, path::PathBuf, process::Stdio, sync::Arc};

use anyhow::{Context as _, Result, bail};
use relais_capture::{
    CaptureOptions, Mask,
    debezium::{BinaryMode, DecimalMode, EnvelopeOptions, IntervalMode, TimeMode},
};
use sqlx::postgres::PgConnectOptions;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
};

use super::{NAME, journal::Journal};

/// Names the folder of Debezium's libraries.
const LIBRARIES: &str = "RELAIS_TEST_DEBEZIUM";

/// A connector's settings, one `name=value` a line, as in `tests/debezium/*.settings`.
#[derive(Debug, Clone)]
pub struct Settings(Vec<(String, String)>);

impl Settings {
    pub fn parse(text: &str) -> Result<Self> {
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        let pair = |line: &str| -> Result<(String, String)> {
            let (name, value) = line.split_once('=').with_context(|| format!("not a setting: {line}"))?;
            Ok((name.to_owned(), value.to_owned()))
        };
        Ok(Self(lines.map(pair).collect::<Result<_>>()?))
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The tables that are named, without their schema.
    pub fn tables(&self) -> Option<Vec<String>> {
        let name = |table: &str| table.strip_prefix("public.").unwrap_or(table).to_owned();
        Some(self.get("table.include.list")?.split(',').map(name).filter(|table| table != "zz_end").collect())
    }

    /// The same for a capture.
    pub fn capture(&self, tables: &[String]) -> Result<CaptureOptions> {
        let names: Vec<&str> = tables.iter().map(String::as_str).collect();
        let mut options = CaptureOptions::new(NAME, &names)?;
        options.envelope = self.envelope()?;
        for (name, value) in &self.0 {
            let mask = match name.split('.').collect::<Vec<_>>()[..] {
                ["column", "mask", "hash", .., "salt", salt] => Mask::Hash { salt: salt.to_owned() },
                ["column", "mask", "with", length, "chars"] => Mask::Text("*".repeat(length.parse()?)),
                _ => continue,
            };
            options.columns.masks.insert(value.clone(), mask);
        }
        Ok(options)
    }

    fn envelope(&self) -> Result<EnvelopeOptions> {
        let mut options = EnvelopeOptions::new(NAME);
        for (name, value) in &self.0 {
            match (name.as_str(), value.as_str()) {
                ("converter.schemas.enable", value) => options.schemas = value == "true",
                ("tombstones.on.delete", value) => options.tombstones = value == "true",
                ("unavailable.value.placeholder", value) => options.unavailable_value = value.to_owned(),
                ("decimal.handling.mode", "string") => options.decimal = DecimalMode::String,
                ("decimal.handling.mode", "double") => options.decimal = DecimalMode::Double,
                ("time.precision.mode", "connect") => options.time = TimeMode::Connect,
                ("time.precision.mode", "isostring") => options.time = TimeMode::IsoString,
                ("time.precision.mode", "microseconds") => options.time = TimeMode::Microseconds,
                ("time.precision.mode", "nanoseconds") => options.time = TimeMode::Nanoseconds,
                ("time.precision.mode", "adaptive_time_microseconds") => {
                    options.time = TimeMode::AdaptiveTimeMicroseconds;
                }
                ("binary.handling.mode", "base64") => options.binary = BinaryMode::Base64,
                ("binary.handling.mode", "base64-url-safe") => options.binary = BinaryMode::Base64UrlSafe,
                ("binary.handling.mode", "hex") => options.binary = BinaryMode::Hex,
                ("interval.handling.mode", "string") => options.interval = IntervalMode::String,
                ("message.key.columns", tables) => {
                    for table in tables.split(';') {
                        let (table, columns) = table.split_once(':').context("a key without a table")?;
                        let columns = columns.split(',').map(str::to_owned).collect();
                        options.key_columns.insert(table.to_owned(), columns);
                    }
                }
                (name, _) if name.starts_with("column.mask.") || name.starts_with("transforms") => {}
                ("skipped.operations" | "snapshot.mode" | "table.include.list", _) => {}
                (name, value) => bail!("a capture has nothing like {name}={value}"),
            }
        }
        Ok(options)
    }
}

/// A running engine, killed when dropped.
pub struct Engine {
    child: Child,
    folder: TempDir,
}

impl Engine {
    /// Starts it on these tables of a database. Its slot is called like the database.
    pub fn start(url: &str, tables: &[String], settings: &Settings, journal: Arc<Journal>) -> Result<Self> {
        let libraries = env::var_os(LIBRARIES).map(PathBuf::from).with_context(|| {
            format!("{LIBRARIES} does not name Debezium's libraries; `cargo xtask debezium` installs them and sets it")
        })?;
        let url: PgConnectOptions = url.parse()?;
        let (port, database) = (url.get_port(), url.get_database().context("no database in the URL")?);
        // They are patterns. A name may have spaces, which a property keeps within its value.
        let tables: Vec<String> = tables.iter().map(|table| format!("public.{table}")).collect();
        let mut lines = vec![
            format!("name={NAME}\ntopic.prefix={NAME}"),
            "connector.class=io.debezium.connector.postgresql.PostgresConnector".to_owned(),
            "offset.storage=org.apache.kafka.connect.storage.MemoryOffsetBackingStore".to_owned(),
            format!("database.hostname={}\ndatabase.port={port}\ndatabase.dbname={database}", url.get_host()),
            "database.user=postgres\ndatabase.password=x".to_owned(),
            format!("plugin.name=pgoutput\nslot.name={database}\npublication.name={database}"),
            "publication.autocreate.mode=filtered\npoll.interval.ms=20".to_owned(),
            format!("table.include.list={}", tables.join(",")),
        ];
        let own = settings.0.iter().filter(|(name, _)| name != "table.include.list");
        lines.extend(own.map(|(name, value)| format!("{name}={value}")));
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("settings");
        std::fs::write(&file, lines.join("\n"))?;
        let log = std::fs::File::create(folder.path().join("log"))?;
        let mut command = Command::new("java");
        command.args(["-Xmx512m", "-XX:+UseSerialGC", "-Dfile.encoding=UTF-8", "-cp"]).arg(libraries.join("*"));
        command.arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn");
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/debezium/Record.java")).arg(file);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).kill_on_drop(true);
        let mut child = command.spawn().context("cannot start java")?;
        let mut lines = BufReader::new(child.stdout.take().context("no output")?).lines();
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                // Logs, if there are any, do not begin like this.
                if let Ok(record) = serde_json::from_str(&line) {
                    journal.push([record]);
                }
            }
        });
        Ok(Self { child, folder })
    }

    /// The end of its log.
    pub fn log(&self) -> String {
        let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }

    pub async fn stop(mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }
}
