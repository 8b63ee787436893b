//! What is measured: a database of its own, a server process on it, a queue of a known length.

use std::{
    collections::BTreeMap,
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use relais_testkit::{PostgresServer, ServerProcess, free_port};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tempfile::TempDir;

use crate::{
    Plan,
    cpu::{self, Split},
    fill::{self, BODY, Queue},
    load,
};

/// The service whose queue is long.
pub const SERVICE: &str = "bench";
/// A service that checks what it is sent.
pub const CHECKED: &str = "checked";
const CLIENT: &str = "bench";
const SECRET: &str = "the secret of the benchmark";

/// How long a server may take to start, or to stop.
const PATIENCE: Duration = Duration::from_secs(60);

/// Which database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// A file.
    Sqlite,
    /// A private server, fsync and synchronous_commit on.
    Postgres,
}

impl Kind {
    /// As it is printed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "SQLite",
            Self::Postgres => "PostgreSQL",
        }
    }
}

enum Database {
    Sqlite,
    /// And the number of its first process.
    Postgres(Box<PostgresServer>, u32),
}

/// A database with a server on it. All is gone when dropped.
pub struct World {
    instances: Vec<Instance>,
    database: Database,
    folder: TempDir,
    queue: Queue,
    /// The settings of servers besides their database, by the names in their environment.
    settings: BTreeMap<&'static str, String>,
}

/// A server process.
pub struct Instance {
    process: ServerProcess,
    /// Where it listens.
    pub address: SocketAddr,
}

impl World {
    /// A server on a database with `pending` tasks in the queue of [`SERVICE`].
    pub async fn new(plan: &Plan, kind: Kind, pending: u64) -> Result<Self> {
        Self::with(plan, kind, pending, BTreeMap::new()).await
    }

    /// The same, with settings that are not the defaults.
    pub async fn with(plan: &Plan, kind: Kind, pending: u64, settings: BTreeMap<&'static str, String>) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let database = match kind {
            Kind::Sqlite => Database::Sqlite,
            Kind::Postgres => {
                let (server, first) = postgres(plan).await?;
                create_database(&server, "relais").await?;
                Database::Postgres(Box::new(server), first)
            }
        };
        let mut world = Self { instances: Vec::new(), database, folder, queue: Queue::of(pending), settings };
        world.start_another().await?;
        world.declare().await?;
        world.reset().await?;
        Ok(world)
    }

    /// Puts the queue back to its length, and makes the copy for bare statements anew.
    pub async fn reset(&mut self) -> Result<()> {
        let wanted = self.instances.len();
        self.stop().await?;
        match &self.database {
            Database::Sqlite => {
                fill::sqlite(&self.url(), self.queue, SERVICE, CLIENT).await?;
                for suffix in ["", "-wal", "-shm"] {
                    let _ = fs::remove_file(self.folder.path().join(format!("bare.db{suffix}")));
                }
                fs::copy(self.folder.path().join("relais.db"), self.folder.path().join("bare.db"))?;
            }
            Database::Postgres(server, _) => {
                fill::postgres(&self.url(), self.queue, SERVICE, CLIENT).await?;
                let mut connection = PgConnection::connect(&server.url("postgres")).await?;
                for statement in ["DROP DATABASE IF EXISTS bare", "CREATE DATABASE bare TEMPLATE relais", "CHECKPOINT"]
                {
                    sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut connection).await?;
                }
                connection.close().await?;
            }
        }
        for _ in 0..wanted {
            self.start_another().await?;
        }
        self.verify().await
    }

    /// The loaded queue has to be what Relais itself would have made: the next task gets the place after the last.
    async fn verify(&self) -> Result<()> {
        let expected = self.queue.pending() + 1;
        let taken = call(self.address(), &submit(SERVICE), 201).await?;
        ensure!(taken["data"]["taskPosition"] == expected, "a loaded queue is not in order: {taken}, not {expected}");
        for task in self.queue.pending_ids(10) {
            let seen = call(self.address(), &get(&task), 200).await?;
            ensure!(seen["data"]["status"] == "PENDING", "a loaded task is not pending: {seen}");
        }
        let last = taken["data"]["taskId"].as_str().context("no taskId")?;
        let seen = call(self.address(), &get(last), 200).await?;
        ensure!(seen["data"]["taskPosition"] == expected, "a loaded queue is not in order: {seen}, not {expected}");
        Ok(())
    }

    /// Stops all processes.
    pub async fn stop(&mut self) -> Result<()> {
        for mut instance in std::mem::take(&mut self.instances) {
            instance.process.terminate()?;
            instance.process.wait_exit(PATIENCE).await?;
        }
        Ok(())
    }

    /// The settings of processes that are started from now on.
    pub fn set(&mut self, name: &'static str, value: impl Into<String>) {
        self.settings.insert(name, value.into());
    }

    /// Starts one more process on the same database.
    pub async fn start_another(&mut self) -> Result<()> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let mut command = Command::new(program()?);
        command
            .arg("serve")
            // Where there is no relais.toml.
            .current_dir(self.folder.path())
            .env("RELAIS_DATABASE_URL", self.url())
            .env("RELAIS_SERVER_LISTEN", address.to_string())
            .envs(&self.settings);
        let mut process = ServerProcess::spawn_command(command)?;
        process.wait_for_http(&format!("http://{address}/readyz"), PATIENCE).await?;
        self.instances.push(Instance { process, address });
        Ok(())
    }

    async fn declare(&self) -> Result<()> {
        let schema = json!({
            "type": "object",
            "properties": {
                "sleep": { "type": "number", "minimum": 0 },
                "mustSucceed": { "type": "boolean" },
                "name": { "type": "string", "maxLength": 100 }
            },
            "required": ["sleep", "mustSucceed"],
            "additionalProperties": false
        });
        let authorization =
            |service: &str| json!({ "clientId": CLIENT, "serviceName": service, "roles": ["consume", "work"] });
        let declaration = json!({
            "services": [{ "serviceName": SERVICE, "lease": "10m" }, { "serviceName": CHECKED, "jsonSchema": schema }],
            "clients": [{
                "clientId": CLIENT, "clientSecret": SECRET,
                "notifications": { "emit": ["*"], "audience": ["*"], "ticket": ["*"] }
            }],
            "authorizations": [authorization(SERVICE), authorization(CHECKED)],
        });
        call(self.address(), &post("/admin/apply", &declaration.to_string()), 200).await?;
        Ok(())
    }

    /// The first server's address.
    pub fn address(&self) -> SocketAddr {
        self.instances[0].address
    }

    /// The last server's address.
    pub fn other_address(&self) -> SocketAddr {
        self.instances[self.instances.len() - 1].address
    }

    /// The first server's process.
    pub fn process(&self) -> &ServerProcess {
        &self.instances[0].process
    }

    /// All servers' processes.
    pub fn processes(&self) -> Vec<&ServerProcess> {
        self.instances.iter().map(|instance| &instance.process).collect()
    }

    /// The queue as it was loaded.
    pub fn queue(&self) -> Queue {
        self.queue
    }

    fn url(&self) -> String {
        self.database_url("relais")
    }

    /// A copy of the database that no server uses.
    pub fn bare_url(&self) -> String {
        self.database_url("bare")
    }

    /// The server's own database, if that is PostgreSQL.
    pub fn postgres_url(&self) -> Option<String> {
        matches!(self.database, Database::Postgres(..)).then(|| self.url())
    }

    /// An empty database beside the server's own, on PostgreSQL.
    pub async fn another_database(&self, name: &str) -> Result<String> {
        let Database::Postgres(server, _) = &self.database else { bail!("a file has no databases") };
        create_database(server, name).await
    }

    fn database_url(&self, name: &str) -> String {
        match &self.database {
            Database::Sqlite => format!("sqlite:{}", self.folder.path().join(format!("{name}.db")).display()),
            Database::Postgres(server, _) => server.url(name),
        }
    }

    /// Processor times so far.
    pub fn cpu(&self) -> Result<Split> {
        let mut split = Split { load: cpu::of_process(std::process::id())?, ..Split::default() };
        for instance in &self.instances {
            split.server += instance.process.cpu_time()?;
        }
        if let Database::Postgres(_, first) = &self.database {
            split.database = cpu::of_family(*first)?;
        }
        Ok(split)
    }
}

/// A private PostgreSQL, fsync and synchronous_commit on, and the number of its first process.
pub async fn postgres(plan: &Plan) -> Result<(PostgresServer, u32)> {
    let mut options = PostgresServer::options();
    if plan.profile {
        options = options.set("shared_preload_libraries", "pg_stat_statements").set("track_wal_io_timing", "on");
    }
    let server = options
        .fsync(true)
        .set("synchronous_commit", "on")
        // Checkpoints and a cache that does not hold the tables would hit the one or the other by chance.
        .set("shared_buffers", "1GB")
        .set("max_wal_size", "8GB")
        .set("checkpoint_timeout", "1h")
        .start()
        .await?;
    let mut connection = PgConnection::connect(&server.url("postgres")).await?;
    let backend: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut connection).await?;
    let first = cpu::parent_of(backend.cast_unsigned())?;
    connection.close().await?;
    Ok((server, first))
}

/// An empty database, in place of the one of that name if there is one. Its URL.
pub async fn create_database(server: &PostgresServer, name: &str) -> Result<String> {
    let mut connection = PgConnection::connect(&server.url("postgres")).await?;
    for statement in [format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"), format!("CREATE DATABASE {name}")] {
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut connection).await?;
    }
    connection.close().await?;
    Ok(server.url(name))
}

/// The server's program: what `cargo xtask bench` built, or what lies beside this one.
pub fn program() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("RELAIS_BIN") {
        return Ok(named.into());
    }
    let beside = std::env::current_exe()?.with_file_name("relais");
    ensure!(beside.exists(), "there is no {}: run `cargo xtask bench`, or set RELAIS_BIN", beside.display());
    Ok(beside)
}

/// A prepared submission of one task.
pub fn submit(service: &str) -> Vec<u8> {
    post(&format!("/v1/services/{service}/tasks"), &format!(r#"{{"body":{BODY}}}"#))
}

/// A prepared look at a task.
pub fn get(task: &str) -> Vec<u8> {
    request("GET", &format!("/v1/services/{SERVICE}/tasks/{task}"), "")
}

/// A prepared GET.
pub fn get_path(path: &str) -> Vec<u8> {
    request("GET", path, "")
}

/// A prepared POST.
pub fn post(path: &str, body: &str) -> Vec<u8> {
    request("POST", path, body)
}

fn request(method: &str, path: &str, body: &str) -> Vec<u8> {
    let credentials = BASE64_STANDARD.encode(format!("{CLIENT}:{SECRET}"));
    // The admin API goes by where a call comes from and does not look at these credentials.
    let content = match body.len() {
        0 => String::new(),
        length => format!("Content-Type: application/json\r\nContent-Length: {length}\r\n"),
    };
    format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {credentials}\r\n{content}\r\n{body}")
        .into_bytes()
}

/// One call, on a connection of its own.
pub async fn call(address: SocketAddr, request: &[u8], wanted: u16) -> Result<Value> {
    let mut connection = load::Connection::open(address).await?;
    Ok(serde_json::from_slice(connection.expect(request, wanted).await?)?)
}
