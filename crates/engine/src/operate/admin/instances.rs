//! Instances: lists them, and resolves those that died.

use relais_core::{Decision, InstanceRecord};
use relais_protocol::instance::{DecisionName, InstanceView, Instances, ResolveAnswer};

use crate::{Engine, EngineError, follow::views::text};

impl Engine {
    /// The processes on the store, in the order of their names.
    pub async fn instances(&self) -> Result<Instances, EngineError> {
        Ok(Instances { instances: self.0.store.list_instances().await?.into_iter().map(view).collect() })
    }

    /// Resolves a dead instance: decides what happens to its tasks.
    pub async fn resolve_instance(&self, name: &str, decision: DecisionName) -> Result<ResolveAnswer, EngineError> {
        let decision = match decision {
            DecisionName::Restart => Decision::Restart,
            DecisionName::Fail => Decision::Fail,
        };
        if let Some(tasks) = self.0.store.resolve_instance(name.to_owned(), decision).await? {
            tracing::info!(instance = name, tasks, ?decision, "it was decided what becomes of its tasks");
            return Ok(ResolveAnswer { tasks });
        }
        let known = self.0.store.list_instances().await?;
        match known.into_iter().find(|instance| instance.name == name) {
            Some(instance) => Err(EngineError::Conflict(format!(
                "there is nothing to decide: the instance is {}",
                instance.status.as_str()
            ))),
            None => Err(EngineError::InstanceNotFound),
        }
    }
}

fn view(instance: InstanceRecord) -> InstanceView {
    InstanceView {
        name: instance.name,
        status: instance.status.as_str().to_owned(),
        host_name: instance.host,
        version: instance.version,
        crash_policy: instance.policy.as_str().to_owned(),
        in_hand: instance.leased,
        start_date: text(instance.started),
        last_seen_date: text(instance.seen),
    }
}
