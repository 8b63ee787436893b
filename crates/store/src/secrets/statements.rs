//! What a driver says in SQL about signing secrets. It stores texts; what they are in clear,
//! [`crate::secrets::encryption`] knows.

use std::{future::Future, time::Duration};

use relais_core::{ClientId, ClientKey, Timestamp};

use crate::{
    row::{Columns, client_key, client_name},
    secrets::encryption::SealedSecret,
    session::Result,
};

/// A signing secret as it lies in the database.
#[derive(Debug, Clone)]
pub(crate) struct StoredSecret {
    pub(crate) client: ClientKey,
    pub(crate) client_id: ClientId,
    pub(crate) stored: String,
    pub(crate) expires: Option<Timestamp>,
}

impl StoredSecret {
    /// Whether it is used at least as long as another.
    pub(crate) fn outlives(&self, other: &Self) -> bool {
        match (self.expires, other.expires) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(mine), Some(others)) => mine >= others,
        }
    }
}

/// What becomes of signing secrets that are encrypted, or encrypted with another key.
#[derive(Debug, Default)]
pub(crate) struct Rewrites {
    /// Those that go: another row has the same secret.
    pub(crate) gone: Vec<(ClientKey, String)>,
    /// What is stored, and what is to be stored instead.
    pub(crate) changed: Vec<(ClientKey, String, String)>,
    /// Whether one of them lay there in clear.
    pub(crate) clear_text: bool,
}

impl Rewrites {
    /// Whether there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.gone.is_empty() && self.changed.is_empty()
    }
}

/// The files of a database, in which signing secrets lie.
pub(crate) trait SecretFiles: Send + Sync {
    /// Removes from the files what was overwritten by [`Secrets::rewrite_signing_secrets`], as far as a driver can;
    /// `clear_text` is whether signing secrets lay there in clear.
    fn wipe_overwritten(&self, _clear_text: bool) -> impl Future<Output = Result<()>> + Send {
        std::future::ready(Ok(()))
    }
}

/// Signing secrets within a transaction.
pub(crate) trait Secrets: Send {
    /// Gives a client a secret, if it is not the one that it has, and with `unless_any` only if it has none. The one
    /// before is used as well for as long as `overlap` says. At most two are valid at once: one that was on its way out
    /// goes.
    fn put_signing_secret(
        &mut self,
        client_id: &ClientId,
        secret: &SealedSecret,
        overlap: Duration,
        unless_any: bool,
    ) -> impl Future<Output = Result<()>> + Send;

    /// One that is encrypted, if there is any.
    fn encrypted_secret(&mut self) -> impl Future<Output = Result<Option<StoredSecret>>> + Send;

    /// Deletes those that have expired, and reads the others. Until the transaction ends, nobody else declares
    /// anything.
    fn lock_signing_secrets(&mut self) -> impl Future<Output = Result<Vec<StoredSecret>>> + Send;

    /// Writes some of them anew.
    fn rewrite_signing_secrets(&mut self, rewrites: &Rewrites) -> impl Future<Output = Result<()>> + Send;
}

/// The columns that this reads: those of `signing_secret`, with the client's name as `client`.
pub(crate) fn stored_secret(row: &impl Columns) -> Result<StoredSecret> {
    Ok(StoredSecret {
        client: client_key(row)?,
        client_id: client_name(row)?,
        stored: row.text("secret")?,
        expires: row.moment_if_any("expires")?,
    })
}
