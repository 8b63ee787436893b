//! What is declared of audiences, as far as emitting and changing members need it: which types there are, and which targets
//! have declared members.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::ArcSwapOption;
use relais_core::{AudienceDeclarations, AudienceRecord, KNOWN_AUDIENCE_TYPES, StoreError};

use super::{Notifications, NotifyError, Result};
use crate::{AudienceKey, Identity, UnknownAudienceType};

/// What was read is believed for so long if nobody announces a change.
const BELIEVED: Duration = Duration::from_secs(60);

/// What is declared, as it was read; read again once something was declared.
#[derive(Debug, Default)]
pub(super) struct DeclaredCache {
    types: ArcSwapOption<DeclaredTypes>,
    /// How often something was declared.
    changes: AtomicU64,
}

#[derive(Debug)]
struct DeclaredTypes {
    types: BTreeSet<String>,
    read: Instant,
}

impl DeclaredCache {
    /// Something was declared.
    pub(super) fn forget(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.types.store(None);
    }

    fn fresh(&self) -> Option<Arc<DeclaredTypes>> {
        self.types.load_full().filter(|types| types.read.elapsed() < BELIEVED)
    }

    async fn read(&self, declared: &dyn AudienceDeclarations) -> std::result::Result<Arc<DeclaredTypes>, StoreError> {
        let changes = self.changes.load(Ordering::SeqCst);
        let types = Arc::new(DeclaredTypes::of(&declared.list_audiences().await?));
        self.types.store(Some(Arc::clone(&types)));
        if self.changes.load(Ordering::SeqCst) != changes {
            // What was read may be older than what was declared meanwhile.
            self.types.store(None);
        }
        Ok(types)
    }
}

impl DeclaredTypes {
    fn of(records: &[AudienceRecord]) -> Self {
        let declared = records.iter().filter(|record| !record.gone).map(|record| record.audience.kind.clone());
        Self { types: declared.collect(), read: Instant::now() }
    }

    fn judge(&self, kind: &str) -> std::result::Result<(), UnknownAudienceType> {
        if is_always_known(kind) || self.types.contains(kind) {
            return Ok(());
        }
        let others = self.types.iter().map(String::as_str).filter(|kind| !is_always_known(kind));
        let known: Vec<&str> = KNOWN_AUDIENCE_TYPES.into_iter().chain(others).collect();
        Err(UnknownAudienceType { kind: kind.chars().take(64).collect(), known: known.join(", ") })
    }
}

fn is_always_known(kind: &str) -> bool {
    KNOWN_AUDIENCE_TYPES.contains(&kind)
}

impl Notifications {
    /// From now on only declared types of audience are accepted, beside the five that are always there, and targets with declared
    /// members are changed by their declaration alone. Without it, every type is accepted. Takes effect once.
    pub fn follow_declared(&self, declared: Arc<dyn AudienceDeclarations>) {
        let _ = self.0.declared.set(declared);
    }

    /// Refuses a type that nobody has declared. Another process may have declared it just now, so that what is stored decides
    /// before it is refused.
    pub(super) async fn judge_type<E>(&self, kind: &str) -> Result<std::result::Result<(), E>>
    where
        E: From<UnknownAudienceType>,
    {
        let Some(declared) = self.0.declared.get() else { return Ok(Ok(())) };
        let knows = |types: Arc<DeclaredTypes>| types.judge(kind).is_ok();
        if is_always_known(kind) || self.0.declared_cache.fresh().is_some_and(knows) {
            return Ok(Ok(()));
        }
        Ok(self.0.declared_cache.read(declared.as_ref()).await?.judge(kind).map_err(E::from))
    }

    /// Refuses an identity with an audience of a type that nobody has declared.
    pub(super) async fn judge_claims<E>(&self, identity: &Identity) -> Result<std::result::Result<(), E>>
    where
        E: From<UnknownAudienceType>,
    {
        for AudienceKey { kind, .. } in &identity.audiences {
            let judged = self.judge_type(kind).await?;
            if judged.is_err() {
                return Ok(judged);
            }
        }
        Ok(Ok(()))
    }

    /// Refuses to change a target whose members are declared.
    pub(super) async fn judge_owner(&self, key: &AudienceKey) -> Result<()> {
        let Some(declared) = self.0.declared.get() else { return Ok(()) };
        let records = declared.list_audiences().await?;
        let is_declared = records
            .iter()
            .any(|record| record.audience.kind == key.kind && record.audience.target.as_ref() == Some(&key.target));
        if is_declared { Err(NotifyError::Declared(key.clone())) } else { Ok(()) }
    }
}
