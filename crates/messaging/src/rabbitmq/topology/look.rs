//! What a broker has: from the management API, or else from passive declarations, which only say whether it exists.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Arguments, BindingDeclaration, BindingDestination, ExchangeDeclaration, QueueDeclaration};
use crate::rabbitmq::{
    Broker, ConsumeError, Management, ManagementError, QueueKind,
    link::Link,
    queue::{find, short},
};

/// What was seen of an exchange or a queue.
pub(super) enum Sight {
    /// It is not there.
    Missing,
    /// It is there.
    Exists,
    /// It is there, and like this.
    Found(Found),
}

/// How something is.
pub(super) struct Found {
    /// Everything that is compared, by name.
    pub(super) properties: Arguments,
    /// What policies add.
    pub(super) policy: Arguments,
}

impl ExchangeDeclaration {
    /// Everything that is compared, by name.
    pub(super) fn properties(&self) -> Arguments {
        let mut properties = self.arguments.clone();
        properties.insert("type".to_owned(), self.kind.as_str().into());
        properties.insert("durable".to_owned(), self.durable.into());
        properties.insert("autoDelete".to_owned(), self.auto_delete.into());
        properties.insert("internal".to_owned(), self.internal.into());
        properties
    }
}

impl QueueDeclaration {
    /// Everything that is compared, by name.
    pub(super) fn properties(&self) -> Arguments {
        let mut properties = self.sent_arguments();
        properties.remove("x-queue-type");
        let kind = if self.kind == QueueKind::Quorum { "quorum" } else { "classic" };
        properties.insert("type".to_owned(), kind.into());
        properties.insert("durable".to_owned(), self.durable.into());
        properties.insert("autoDelete".to_owned(), self.auto_delete.into());
        properties.insert("exclusive".to_owned(), false.into());
        properties
    }
}

impl Broker {
    pub(super) async fn look_at_exchange(
        &self,
        name: &str,
        management: Option<&Management>,
    ) -> Result<Sight, super::TopologyError> {
        let Some(management) = management else {
            let exists = self.request(async |link: Arc<Link>| match link.has_exchange_now(name).await {
                Ok(exists) => Ok(exists),
                Err(error) => Err(ConsumeError::answer(name, &error)),
            });
            return Ok(if exists.await? { Sight::Exists } else { Sight::Missing });
        };
        let Some(answer) = management.get("exchanges", &[name]).await? else { return Ok(Sight::Missing) };
        let policy = management.policy_of(&answer).await?;
        Ok(Sight::Found(Found { properties: properties(&answer, &["type", "durable", "internal"]), policy }))
    }

    pub(super) async fn look_at_queue(
        &self,
        name: &str,
        management: Option<&Management>,
    ) -> Result<Sight, super::TopologyError> {
        let Some(management) = management else {
            let name = short(name)?;
            let found = self.request(async |link: Arc<Link>| find(&link, &name).await);
            return Ok(if found.await?.is_some() { Sight::Exists } else { Sight::Missing });
        };
        let Some(answer) = management.get("queues", &[name]).await? else { return Ok(Sight::Missing) };
        let policy = management.policy_of(&answer).await?;
        let mut properties = properties(&answer, &["type", "durable", "exclusive"]);
        properties.remove("x-queue-type");
        Ok(Sight::Found(Found { properties, policy }))
    }
}

/// What the management API says, under our names.
fn properties(answer: &Value, fields: &[&str]) -> Arguments {
    let mut properties = answer["arguments"].as_object().cloned().unwrap_or_default();
    properties.extend(fields.iter().map(|field| ((*field).to_owned(), answer[*field].clone())));
    properties.insert("autoDelete".to_owned(), answer["auto_delete"].clone());
    properties
}

impl Management {
    /// What policies add to an exchange or a queue. Nodes collect this of queues every few seconds.
    async fn policy_of(&self, answer: &Value) -> Result<Arguments, ManagementError> {
        if let Value::Object(effective) = &answer["effective_policy_definition"] {
            return Ok(effective.clone());
        }
        let Some(name) = answer["policy"].as_str().filter(|name| !name.is_empty()) else {
            return Ok(Arguments::new());
        };
        let policy = self.get("policies", &[name]).await?.unwrap_or_default();
        Ok(policy["definition"].as_object().cloned().unwrap_or_default())
    }

    /// The bindings that lead to a queue or an exchange, each with the name that this API has for it.
    pub(super) async fn bindings_to(
        &self,
        destination: &BindingDestination,
    ) -> Result<Vec<(BindingDeclaration, String)>, ManagementError> {
        let answer = match destination {
            BindingDestination::Queue(name) => self.get("queues", &[name, "bindings"]).await?,
            BindingDestination::Exchange(name) => self.get("exchanges", &[name, "bindings", "destination"]).await?,
        };
        let answer = answer.unwrap_or(json!([]));
        let text = |binding: &Value, field: &str| binding[field].as_str().unwrap_or_default().to_owned();
        let read = |binding: &Value| {
            let declaration = BindingDeclaration {
                exchange: text(binding, "source"),
                destination: destination.clone(),
                routing_key: text(binding, "routing_key"),
                arguments: binding["arguments"].as_object().cloned().unwrap_or_default(),
            };
            (declaration, text(binding, "properties_key"))
        };
        let all = answer.as_array().into_iter().flatten().map(read);
        // Every queue is bound to the default exchange, for ever.
        Ok(all.filter(|(binding, _)| !binding.exchange.is_empty()).collect())
    }

    /// Deletes a binding, by the name that [`Self::bindings_to`] gave. One that is gone is not an error.
    pub(super) async fn delete_binding(&self, binding: &BindingDeclaration, key: &str) -> Result<(), ManagementError> {
        let (kind, name) = match &binding.destination {
            BindingDestination::Queue(name) => ("q", name),
            BindingDestination::Exchange(name) => ("e", name),
        };
        self.delete("bindings", &["e", &binding.exchange, kind, name, key]).await
    }
}
