//! A database for one test, on a server that the tests share.
//!
//! Creating a database takes a twentieth of a second, starting a server ten times that; a test
//! that does not kill its server shares one. Does not create tables: migrations belong to the
//! store, and whoever tests them runs them.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    net::{SocketAddr, ToSocketAddrs},
    time::Duration,
};

use anyhow::{Context, Result};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::{sync::OnceCell, time::timeout};
use url::Url;

use crate::PostgresServer;

/// Names a running server, with a superuser, for all tests: `postgres://postgres@127.0.0.1:5432`.
/// `cargo xtask test` sets it. Without it, every test process starts a server of its own.
pub const POSTGRES_VARIABLE: &str = "RELAIS_TEST_POSTGRES";

/// How long to wait for the shared server, which may be busy with other tests.
const PATIENCE: Duration = Duration::from_secs(30);

/// An empty database with a name of its own, dropped at the end.
#[derive(Debug)]
pub struct TestDatabase {
    name: String,
    url: Url,
    administration: Url,
    /// Dropped already, by [`drop_now`](Self::drop_now).
    gone: bool,
}

impl TestDatabase {
    /// Creates a database on the shared server, which is started if need be.
    pub async fn create() -> Result<Self> {
        let server = shared_server().await?;
        let random = RandomState::new().build_hasher().finish();
        let name = format!("relais_test_{}_{random:016x}", std::process::id());
        let database = Self {
            url: with_database(&server, &name),
            administration: with_database(&server, "postgres"),
            name,
            gone: false,
        };
        let statement = format!("CREATE DATABASE {}", database.name);
        execute(&database.administration, statement).await.context("create a test database")?;
        Ok(database)
    }

    /// How to connect to it, as its superuser.
    pub fn url(&self) -> &str {
        self.url.as_str()
    }

    /// The database's name on its server.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The server's address: what to put a [`TcpProxy`](crate::TcpProxy) in front of.
    pub fn server_addr(&self) -> Result<SocketAddr> {
        let host = self.url.host_str().context("the server's URL names no host")?;
        (host.trim_matches(['[', ']']), self.url.port().unwrap_or(5432))
            .to_socket_addrs()?
            .next()
            .with_context(|| format!("{host} has no address"))
    }

    /// How to connect to it through another address, such as a proxy's.
    pub fn url_via(&self, address: SocketAddr) -> Result<String> {
        let mut url = self.url.clone();
        url.set_ip_host(address.ip())
            .and_then(|()| url.set_port(Some(address.port())))
            .map_err(|()| anyhow::anyhow!("{url} cannot be led through {address}"))?;
        Ok(url.into())
    }

    /// Drops the database, whoever is still connected to it, and reports what goes wrong; going
    /// out of scope does the same and keeps silent.
    pub async fn drop_now(mut self) -> Result<()> {
        self.gone = true;
        drop_database(&self.administration, &self.name).await
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        if self.gone {
            return;
        }
        let (administration, name) = (self.administration.clone(), self.name.clone());
        // The test's runtime may be shutting down, so this brings its own, in a thread of its own.
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(drop_database(&administration, &name))
        });
        // What remains goes away with the server; a test is not failed for it.
        let _ = dropping.join();
    }
}

async fn drop_database(administration: &Url, name: &str) -> Result<()> {
    // A database with a replication slot can not be dropped.
    let slots = format!(
        "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots
         WHERE database = '{name}' AND active_pid IS NOT NULL;
         SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = '{name}' AND NOT active"
    );
    execute(administration, slots).await.context("drop the replication slots of a test database")?;
    let statement = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
    execute(administration, statement).await.context("drop a test database")
}

/// One statement on a connection of its own. `statement` is made of names that this module makes.
async fn execute(server: &Url, statement: String) -> Result<()> {
    let work = async {
        let mut connection = PgConnection::connect(server.as_str()).await?;
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut connection).await?;
        connection.close().await
    };
    timeout(PATIENCE, work)
        .await
        .with_context(|| format!("PostgreSQL does not answer within {PATIENCE:?}"))?
        .context("PostgreSQL refused")
}

/// The server that the environment names, or this process's own, started by the first test. It is
/// never dropped, being static: its guardian ends it with the process.
async fn shared_server() -> Result<Url> {
    static OWN: OnceCell<PostgresServer> = OnceCell::const_new();
    let url = match std::env::var(POSTGRES_VARIABLE) {
        Ok(url) => url,
        Err(_) => OWN.get_or_try_init(PostgresServer::start).await?.url("postgres"),
    };
    Url::parse(&url).with_context(|| format!("{POSTGRES_VARIABLE} is not a URL: {url}"))
}

/// Keeps credentials and parameters.
fn with_database(server: &Url, name: &str) -> Url {
    let mut url = server.clone();
    url.set_path(name);
    url
}
