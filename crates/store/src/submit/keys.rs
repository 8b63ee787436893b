//! The idempotency keys and unique keys that one batch of submissions has to respect.

use std::collections::HashMap;

use relais_core::{ClientKey, NewTask, Refusal, ServiceKey, Submission, Submitted};

use crate::submit::statements::KnownKey;

/// The known keys of one kind: those in the store, and those of the batch so far.
pub(crate) struct Keys(HashMap<(ServiceKey, ClientKey, String), KnownKey>);

impl Keys {
    pub(crate) fn new(known: Vec<KnownKey>) -> Self {
        Self(known.into_iter().map(|known| ((known.service, known.client, known.key.clone()), known)).collect())
    }

    /// The answer to a task whose idempotency key is known: the first answer, or a refusal.
    pub(crate) fn answer(&self, task: &NewTask) -> Option<Submission> {
        let given = task.idempotency.as_ref()?;
        let known = self.0.get(&(task.service, task.client, given.key.clone()))?;
        Some(if known.fingerprint == given.fingerprint {
            Ok(Submitted { task_id: known.task_id, position: known.position, replayed: true, duplicate: false })
        } else {
            Err(Refusal::KeyReused)
        })
    }

    /// The answer to a task whose unique key is in use: the task that uses it.
    pub(crate) fn twin(&self, task: &NewTask) -> Option<Submitted> {
        let known = self.0.get(&(task.service, task.client, task.terms.unique.as_ref()?.key.clone()))?;
        Some(Submitted { task_id: known.task_id, position: known.position, replayed: false, duplicate: true })
    }

    pub(crate) fn remember(&mut self, task: &NewTask, position: u64) {
        if let Some(given) = &task.idempotency {
            self.insert(task, &given.key, &given.fingerprint, position);
        }
    }

    pub(crate) fn remember_unique(&mut self, task: &NewTask, position: u64) {
        if let Some(unique) = &task.terms.unique {
            self.insert(task, &unique.key, &[], position);
        }
    }

    fn insert(&mut self, task: &NewTask, key: &str, fingerprint: &[u8], position: u64) {
        let known = KnownKey {
            service: task.service,
            client: task.client,
            key: key.to_owned(),
            fingerprint: fingerprint.to_owned(),
            task_id: task.task_id,
            position,
        };
        self.0.insert((task.service, task.client, key.to_owned()), known);
    }
}
