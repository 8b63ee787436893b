//! What clients are called, remembered: a client keeps its key and its name for ever, also when it is gone.
//!
//! To look a name up for each of a thousand tasks costs PostgreSQL as much as to find the tasks.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, PoisonError, RwLock},
};

use relais_core::{ClientId, ClientKey};
use sqlx::PgConnection;

use super::error;
use crate::{
    row::{Columns as _, client_name, corrupt},
    session::Result,
};

/// The names that are known. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Names(Arc<RwLock<HashMap<ClientKey, ClientId>>>);

impl Names {
    /// Makes sure that these are known.
    pub(crate) async fn learn(
        &self,
        clients: impl Iterator<Item = ClientKey>,
        connection: &mut PgConnection,
    ) -> Result<()> {
        let unknown: BTreeSet<ClientKey> = {
            let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
            clients.filter(|client| !known.contains_key(client)).collect()
        };
        if unknown.is_empty() {
            return Ok(());
        }
        let rows = sqlx::query("SELECT id, client_id AS client FROM relais.client WHERE id = ANY($1)")
            .bind(unknown.iter().map(|client| client.0).collect::<Vec<_>>())
            .fetch_all(connection)
            .await
            .map_err(error)?;
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        for row in &rows {
            known.insert(ClientKey(row.int("id")?), client_name(row)?);
        }
        Ok(())
    }

    /// The name of one that was learned.
    pub(crate) fn of(&self, client: ClientKey) -> Result<ClientId> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.get(&client).cloned().ok_or_else(|| corrupt(format!("a task of client {client:?}, which is not there")))
    }
}
