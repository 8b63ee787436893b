//! A database of a store that can be taken away from it: cut off, hanging, killed.

use anyhow::Result;
use sqlx::Connection as _;
use tokio::sync::Mutex;

use crate::{PostgresServer, TcpProxy, TestDatabase};

/// A database, and how a store reaches it.
pub enum OutageDatabase {
    /// On the shared server, behind a proxy.
    Postgres {
        /// Where the store goes.
        proxy: TcpProxy,
        /// The database itself.
        database: TestDatabase,
    },
    /// On a server of its own, which can be killed.
    OwnPostgres(Mutex<PostgresServer>),
    /// A file.
    Sqlite {
        /// Its URL.
        url: String,
        /// Somebody else who writes, while it hangs.
        lock: Mutex<Option<sqlx::SqliteConnection>>,
        /// Its folder.
        folder: tempfile::TempDir,
    },
}

impl std::fmt::Debug for OutageDatabase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OutageDatabase").finish_non_exhaustive()
    }
}

impl OutageDatabase {
    /// On the shared server, behind a proxy.
    pub async fn postgres() -> Result<Self> {
        let database = TestDatabase::create().await?;
        let proxy = TcpProxy::start(database.server_addr()?).await?;
        Ok(Self::Postgres { proxy, database })
    }

    /// On a server that can be killed.
    pub async fn own_postgres() -> Result<Self> {
        Ok(Self::OwnPostgres(Mutex::new(PostgresServer::start().await?)))
    }

    /// A file.
    pub fn sqlite() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let url = format!("sqlite:{}", folder.path().join("relais.db").display());
        Ok(Self::Sqlite { url, lock: Mutex::default(), folder })
    }

    /// How the store reaches it.
    pub async fn url_through(&self) -> Result<String> {
        match self {
            Self::Postgres { proxy, database } => database.url_via(proxy.addr()),
            Self::OwnPostgres(_) | Self::Sqlite { .. } => Ok(self.url().await),
        }
    }

    /// How others reach it, whatever happens in between.
    pub async fn url(&self) -> String {
        match self {
            Self::Postgres { database, .. } => database.url().to_owned(),
            Self::OwnPostgres(server) => server.lock().await.url("postgres"),
            Self::Sqlite { url, .. } => url.clone(),
        }
    }

    /// Cuts connections, now and new ones.
    pub async fn cut(&self) -> Result<()> {
        if let Self::Postgres { proxy, .. } = self {
            proxy.cut().await?;
        }
        Ok(())
    }

    /// Lets it hang: nothing is answered.
    pub async fn stall(&self) -> Result<()> {
        match self {
            Self::OwnPostgres(_) => {}
            Self::Postgres { proxy, .. } => proxy.stall().await?,
            Self::Sqlite { url, lock, .. } => {
                // Somebody else writes, and takes their time.
                let mut connection = sqlx::SqliteConnection::connect(url).await?;
                sqlx::query("BEGIN IMMEDIATE").execute(&mut connection).await?;
                *lock.lock().await = Some(connection);
            }
        }
        Ok(())
    }

    /// Ends a cut or a stall.
    pub async fn restore(&self) -> Result<()> {
        match self {
            Self::OwnPostgres(_) => {}
            Self::Postgres { proxy, .. } => proxy.restore().await?,
            Self::Sqlite { lock, .. } => {
                if let Some(connection) = lock.lock().await.take() {
                    connection.close().await?;
                }
            }
        }
        Ok(())
    }

    /// Kills the server and starts it again; false where it can not be. SQLite is a part of this process.
    pub async fn crash(&self) -> Result<bool> {
        let Self::OwnPostgres(server) = self else { return Ok(false) };
        let mut server = server.lock().await;
        server.kill9()?;
        server.restart().await?;
        Ok(true)
    }
}
