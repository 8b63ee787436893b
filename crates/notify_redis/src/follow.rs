//! Waiting for entries: a connection of its own on which the server answers when there is one.

use std::{sync::Arc, time::Duration};

use redis::{AsyncConnectionConfig, RedisError, Value, aio::MultiplexedConnection};
use relais_core::{StoreError, Wakeup, WakeupListener};
use relais_notify::LogPosition;

use crate::{RedisNotifications, error::store_error};

/// The server answers at the latest after so long, so that a lost log is noticed although nobody writes to it.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Waits between tries to connect: from, and up to.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

impl RedisNotifications {
    /// Wakes a listener whenever the log has grown, by whomever, or has a new name. Connects again by itself; ends never, and
    /// may be dropped at any point.
    pub async fn follow(self, listener: Arc<dyn WakeupListener>) {
        let mut pause = FIRST_PAUSE;
        loop {
            let error = match self.connect_to_wait().await {
                Ok(mut connection) => {
                    pause = FIRST_PAUSE;
                    self.wait_for_entries(&mut connection, listener.as_ref()).await
                }
                Err(error) => error,
            };
            // Whoever reads the log learns now, and not at the next sweep, that the server is away.
            listener.wake(&grown());
            tracing::debug!(%error, "nobody waits for entries of the log of notifications");
            let chance = f64::from(getrandom::u32().unwrap_or_default()) / f64::from(u32::MAX);
            tokio::time::sleep(pause.mul_f64(1.0 - chance / 2.0)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn connect_to_wait(&self) -> Result<MultiplexedConnection, StoreError> {
        let live = self.0.connections.live().await?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.0.connections.timeout()))
            .set_response_timeout(Some(LONGEST_WAIT + self.0.connections.timeout()));
        live.client.get_multiplexed_async_connection_with_config(&config).await.map_err(store_error)
    }

    /// Until the connection is lost.
    async fn wait_for_entries(
        &self,
        connection: &mut MultiplexedConnection,
        listener: &dyn WakeupListener,
    ) -> StoreError {
        let mut renewed = "0-0".to_owned();
        loop {
            let (position, name) = match self.read_ends().await {
                Ok(ends) => ends,
                Err(error) => return error,
            };
            // After the end was read: what comes later wakes once more.
            renewed = name.unwrap_or(renewed);
            listener.wake(&grown());
            let mut wait = redis::cmd("XREAD");
            wait.arg("COUNT").arg(1).arg("BLOCK").arg(LONGEST_WAIT.as_millis() as u64).arg("STREAMS");
            wait.arg(&[self.keys().log(), self.keys().only("renewed")]).arg(&[position.to_string(), renewed.clone()]);
            let answer: Result<Value, RedisError> = wait.query_async(connection).await;
            if let Err(error) = answer {
                return store_error(error);
            }
        }
    }

    /// Where the log ends, and since when it has its name.
    async fn read_ends(&self) -> Result<(LogPosition, Option<String>), StoreError> {
        type Names = Vec<(String, Vec<String>)>;
        let mut pipeline = redis::pipe();
        pipeline.cmd("HGET").arg(self.keys().head()).arg("position");
        pipeline.cmd("XREVRANGE").arg(self.keys().only("renewed")).arg("+").arg("-").arg("COUNT").arg(1);
        let (position, names): (Option<LogPosition>, Names) = self.ask(&pipeline).await?;
        Ok((position.unwrap_or_default(), names.into_iter().next().map(|(id, _)| id)))
    }
}

fn grown() -> Wakeup {
    Wakeup { notifications: true, ..Wakeup::default() }
}
