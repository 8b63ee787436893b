//! What a broker has of a topology, and what differs.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::{
    Arguments, BindingDeclaration, BindingDestination, Topology, TopologyError,
    look::{Found, Sight},
};
use crate::rabbitmq::{Broker, Management};

/// What a broker has of a topology, or what was made of it: one line for each object.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TopologyReport {
    /// Whether the management API was asked. Without it, it is only known which exchanges and queues exist.
    pub compared: bool,
    /// Exchanges, then queues, then bindings, in the order of the topology; then bindings that are not in it.
    pub objects: Vec<ObjectReport>,
}

/// One object of a topology, and how it is at the broker.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectReport {
    /// Which.
    #[serde(flatten)]
    pub object: TopologyObject,
    /// How it is.
    pub state: ObjectState,
    /// What differs, if it is known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<PropertyDifference>,
    /// What policies add to it, under the names that policies have for it.
    #[serde(skip_serializing_if = "Arguments::is_empty")]
    pub policy: Arguments,
    /// The broker's reason, if it refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The management API's name of a binding that is there.
    #[serde(skip)]
    pub(super) properties_key: Option<String>,
}

/// Something that a topology declares, or a binding beside it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum TopologyObject {
    /// An exchange, by its name.
    Exchange(String),
    /// A queue, by its name.
    Queue(String),
    /// A binding.
    Binding(BindingDeclaration),
}

impl fmt::Display for TopologyObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exchange(name) => write!(f, "exchange `{name}`"),
            Self::Queue(name) => write!(f, "queue `{name}`"),
            Self::Binding(BindingDeclaration { exchange, destination, routing_key, arguments }) => {
                write!(f, "binding of `{exchange}` to {destination}")?;
                if !routing_key.is_empty() {
                    write!(f, " with `{routing_key}`")?;
                }
                if arguments.is_empty() { Ok(()) } else { write!(f, " {}", Value::Object(arguments.clone())) }
            }
        }
    }
}

/// How an object is at the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ObjectState {
    /// It is there as declared.
    Same,
    /// It is there; nothing more is known without the management API.
    Exists,
    /// A binding of which nothing is known without the management API.
    Unknown,
    /// It is not there.
    Missing,
    /// It is there and otherwise than declared. It is left as it is: the broker refuses to change it.
    Different,
    /// A binding to a declared queue or exchange that is not in the topology.
    Extra,
    /// It was made.
    Created,
    /// It was deleted.
    Deleted,
    /// The broker refused to make it.
    Refused,
    /// A binding that was not made, because one of its ends could not be made or is an exchange of another type.
    Skipped,
}

impl ObjectState {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Exists => "exists",
            Self::Unknown => "unknown",
            Self::Missing => "missing",
            Self::Different => "different",
            Self::Extra => "extra",
            Self::Created => "created",
            Self::Deleted => "deleted",
            Self::Refused => "refused",
            Self::Skipped => "skipped",
        }
    }
}

/// A property that is not as declared.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PropertyDifference {
    /// Its name: `type`, `durable`, `autoDelete`, `internal`, or an argument's.
    pub property: String,
    /// As the topology has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub declared: Option<Value>,
    /// As the broker has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<Value>,
    /// As a policy has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Value>,
}

impl fmt::Display for PropertyDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |value: &Option<Value>| value.as_ref().map_or_else(|| "none".to_owned(), Value::to_string);
        write!(f, "{}: {} declared, {} found", self.property, shown(&self.declared), shown(&self.found))?;
        if let Some(policy) = &self.policy { write!(f, " ({policy} by policy)") } else { Ok(()) }
    }
}

impl TopologyReport {
    /// Whether something would be created, as far as is known.
    pub fn has_missing(&self) -> bool {
        self.has(|state| state == ObjectState::Missing)
    }

    /// Whether something is otherwise than declared and stays so.
    pub fn has_differences(&self) -> bool {
        self.has(|state| matches!(state, ObjectState::Different | ObjectState::Refused | ObjectState::Skipped))
    }

    /// Whether there are bindings that are not in the topology.
    pub fn has_extra_bindings(&self) -> bool {
        self.has(|state| state == ObjectState::Extra)
    }

    fn has(&self, wanted: impl Fn(ObjectState) -> bool) -> bool {
        self.objects.iter().any(|object| wanted(object.state))
    }
}

impl ObjectReport {
    fn new(object: TopologyObject, state: ObjectState) -> Self {
        let (differences, policy) = (Vec::new(), Arguments::new());
        Self { object, state, differences, policy, why: None, properties_key: None }
    }

    /// Compares what is declared with what was found.
    fn compared(object: TopologyObject, declared: &Arguments, sight: Sight) -> Self {
        match sight {
            Sight::Missing => Self::new(object, ObjectState::Missing),
            Sight::Exists => Self::new(object, ObjectState::Exists),
            Sight::Found(Found { properties, policy }) => {
                let differences = differences(declared, &properties, &policy);
                let state = if differences.is_empty() { ObjectState::Same } else { ObjectState::Different };
                Self { differences, policy, ..Self::new(object, state) }
            }
        }
    }
}

impl Broker {
    /// Compares a topology with what the broker has. Changes nothing.
    ///
    /// The management API tells how things are; without it, it is only known which exchanges and queues exist.
    pub async fn plan_topology(
        &self,
        topology: &Topology,
        management: Option<&Management>,
    ) -> Result<TopologyReport, TopologyError> {
        let problems = topology.check();
        if !problems.is_empty() {
            return Err(TopologyError::Invalid(problems));
        }
        let mut objects = Vec::new();
        for exchange in &topology.exchanges {
            let sight = self.look_at_exchange(&exchange.name, management).await?;
            let object = TopologyObject::Exchange(exchange.name.clone());
            objects.push(ObjectReport::compared(object, &exchange.properties(), sight));
        }
        for queue in &topology.queues {
            let sight = self.look_at_queue(&queue.name, management).await?;
            let object = TopologyObject::Queue(queue.name.clone());
            objects.push(ObjectReport::compared(object, &queue.properties(), sight));
        }
        match management {
            Some(management) => objects.extend(compare_bindings(topology, management).await?),
            None => objects.extend(
                topology
                    .bindings
                    .iter()
                    .map(|binding| ObjectReport::new(TopologyObject::Binding(binding.clone()), ObjectState::Unknown)),
            ),
        }
        Ok(TopologyReport { compared: management.is_some(), objects })
    }
}

/// The bindings of a topology, and those that lead to its queues and exchanges without being in it.
async fn compare_bindings(topology: &Topology, management: &Management) -> Result<Vec<ObjectReport>, TopologyError> {
    let queues = topology.queues.iter().map(|queue| BindingDestination::Queue(queue.name.clone()));
    let exchanges = topology.exchanges.iter().map(|exchange| BindingDestination::Exchange(exchange.name.clone()));
    let mut destinations: Vec<BindingDestination> = queues.chain(exchanges).collect();
    let ours = destinations.len();
    for binding in &topology.bindings {
        // An exchange that every virtual host has.
        if !destinations.contains(&binding.destination) {
            destinations.push(binding.destination.clone());
        }
    }
    let (mut there, mut extra) = (Vec::new(), Vec::new());
    for (number, destination) in destinations.into_iter().enumerate() {
        for (binding, key) in management.bindings_to(&destination).await? {
            if topology.bindings.contains(&binding) {
                there.push(binding);
            } else if number < ours {
                let report = ObjectReport::new(TopologyObject::Binding(binding), ObjectState::Extra);
                extra.push(ObjectReport { properties_key: Some(key), ..report });
            }
        }
    }
    let declared = topology.bindings.iter().map(|binding| {
        let state = if there.contains(binding) { ObjectState::Same } else { ObjectState::Missing };
        ObjectReport::new(TopologyObject::Binding(binding.clone()), state)
    });
    Ok(declared.chain(extra).collect())
}

fn differences(declared: &Arguments, found: &Arguments, policy: &Arguments) -> Vec<PropertyDifference> {
    let mut names: Vec<&String> = declared.keys().chain(found.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let differ = |name: &&String| declared.get(*name) != found.get(*name);
    let difference = |name: &String| PropertyDifference {
        property: name.clone(),
        declared: declared.get(name).cloned(),
        found: found.get(name).cloned(),
        policy: policy.get(name.strip_prefix("x-").unwrap_or(name)).cloned(),
    };
    names.into_iter().filter(differ).map(difference).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn arguments(value: Value) -> Arguments {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn differences_name_the_property_both_values_and_the_policy() {
        let declared = arguments(json!({"durable": true, "x-message-ttl": 1000, "x-overflow": "drop-head"}));
        let found = arguments(json!({"durable": true, "x-max-length": 5, "x-overflow": "drop-head"}));
        let policy = arguments(json!({"message-ttl": 1000}));
        let shown: Vec<String> = differences(&declared, &found, &policy).iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            ["x-max-length: none declared, 5 found", "x-message-ttl: 1000 declared, none found (1000 by policy)"]
        );
        assert!(differences(&declared, &declared, &policy).is_empty());
    }
}
