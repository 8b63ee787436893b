//! What is declared of audiences. Who belongs to a target is in `notifications/`.

pub(crate) mod postgres;
pub(crate) mod sqlite;
pub(crate) mod statements;

use async_trait::async_trait;
use relais_core::{AudienceDeclarations, AudienceRecord, DeclaredAudience, StoreError};

use crate::{
    audiences::statements::AudienceRows as _,
    session::{Database, Session as _},
    verbs::Verbs,
};

#[async_trait]
impl<D: Database> AudienceDeclarations for Verbs<D> {
    async fn list_audiences(&self) -> Result<Vec<AudienceRecord>, StoreError> {
        self.database.list_audiences().await
    }

    async fn forget_audience(&self, audience: &DeclaredAudience) -> Result<(), StoreError> {
        let mut session = self.database.begin().await?;
        session.forget_audience(audience).await?;
        session.commit().await
    }
}
