//! Signing secrets on their way into the database and out of it: encrypted there, in clear here.

pub(crate) mod encryption;
pub(crate) mod postgres;
pub(crate) mod sqlite;
pub(crate) mod statements;

use std::{sync::Arc, time::Duration};

use relais_core::{ClientId, Declared, RelayKind, StoreError};

use crate::{
    relays::statements::RelayRows as _,
    secrets::statements::Secrets as _,
    session::{Database, Session as _},
    verbs::Verbs,
};

impl<D: Database> Verbs<D> {
    /// Encrypts what lies in clear or under another key than the first; tells how many secrets that were.
    pub(crate) async fn encrypt_secrets(&self) -> Result<u64, StoreError> {
        let mut session = self.database.begin().await?;
        let rewrites = self.keys.rewrites(&session.lock_signing_secrets().await?)?;
        if !rewrites.is_empty() {
            session.rewrite_signing_secrets(&rewrites).await?;
        }
        // Nobody else declares anything meanwhile.
        let (mut relays, mut clear_text) = (0, rewrites.clear_text);
        for kind in RelayKind::ALL {
            for (name, stored) in session.list_relay_secrets(kind).await? {
                let plain = self.keys.open_relay(kind, &name, &stored)?;
                let sealed = self.keys.seal_relay(kind, &name, &plain)?;
                if !self.keys.is_empty() && sealed != stored {
                    clear_text |= stored == plain;
                    relays += 1;
                    session.rewrite_relay_secrets(kind, &name, &sealed).await?;
                }
            }
        }
        session.commit().await?;
        if !self.keys.is_empty() {
            self.database.wipe_overwritten(clear_text).await?;
        }
        Ok(rewrites.changed.len() as u64 + relays)
    }

    /// Gives a client a secret to sign with. Refused to a process without a key if others have encrypted theirs.
    pub(crate) async fn put_secret(
        &self,
        session: &mut D::Session,
        (client_id, secret): (&ClientId, &str),
        overlap: Duration,
        unless_any: bool,
    ) -> Result<(), StoreError> {
        if self.keys.is_empty()
            && let Some(encrypted) = session.encrypted_secret().await?
        {
            self.keys.open(&encrypted.client_id, &encrypted.stored)?;
        }
        let sealed = self.keys.seal(client_id, secret)?;
        session.put_signing_secret(client_id, &sealed, overlap, unless_any).await
    }

    /// Decrypts what was read. All of it or nothing: a client without its secret would get callbacks without a
    /// signature.
    pub(crate) fn decrypt(&self, declared: &mut Declared) -> Result<(), StoreError> {
        for client in declared.clients.values_mut() {
            let client = Arc::make_mut(client);
            for secret in &mut client.signing_secrets {
                secret.secret = self.keys.open(&client.client_id, &secret.secret)?;
            }
        }
        Ok(())
    }
}
