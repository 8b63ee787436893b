//! Making what a topology lacks at a broker.

use super::{
    BindingDestination, ObjectReport, ObjectState, Topology, TopologyError, TopologyObject, TopologyReport,
    declare::Declared,
};
use crate::rabbitmq::{Broker, Management};

/// How a topology is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ApplyOptions {
    /// Whether bindings to declared queues and exchanges that are not in the topology are deleted. Needs the management
    /// API, which tells them.
    pub delete_extra_bindings: bool,
}

impl Broker {
    /// Makes what is missing of a topology, and says what became of each object.
    ///
    /// What exists is left as it is: an object that is otherwise than declared is reported, and all others are made. It
    /// can be applied any number of times, also by several at once.
    pub async fn apply_topology(
        &self,
        topology: &Topology,
        management: Option<&Management>,
        options: ApplyOptions,
    ) -> Result<TopologyReport, TopologyError> {
        if options.delete_extra_bindings && management.is_none() {
            return Err(TopologyError::ExtraBindingsUnknown);
        }
        let mut report = self.plan_topology(topology, management).await?;
        for number in 0..report.objects.len() {
            let (done, rest) = report.objects.split_at_mut(number);
            let Some(object) = rest.first_mut() else { break };
            match (object.state, management) {
                (ObjectState::Missing | ObjectState::Exists | ObjectState::Unknown, _) => {
                    self.make(topology, object, done).await?;
                }
                (ObjectState::Extra, Some(management)) if options.delete_extra_bindings => {
                    if let (TopologyObject::Binding(binding), Some(key)) = (&object.object, &object.properties_key) {
                        management.delete_binding(binding, key).await?;
                        object.state = ObjectState::Deleted;
                    }
                }
                _ => {}
            }
        }
        Ok(report)
    }

    /// Makes one object. Those before it in the order are `done`.
    async fn make(
        &self,
        topology: &Topology,
        object: &mut ObjectReport,
        done: &[ObjectReport],
    ) -> Result<(), TopologyError> {
        let declared = match &object.object {
            TopologyObject::Exchange(name) => match topology.find_exchange(name) {
                Some(exchange) => self.declare_exchange(exchange).await?,
                None => return Ok(()),
            },
            TopologyObject::Queue(name) => match topology.find_queue(name) {
                Some(queue) => self.declare_queue(queue).await?,
                None => return Ok(()),
            },
            TopologyObject::Binding(binding) => {
                let source = TopologyObject::Exchange(binding.exchange.clone());
                let end = match &binding.destination {
                    BindingDestination::Queue(name) => TopologyObject::Queue(name.clone()),
                    BindingDestination::Exchange(name) => TopologyObject::Exchange(name.clone()),
                };
                let refused = |other: &ObjectReport| other.object == end && other.state == ObjectState::Refused;
                if done.iter().any(|other| refused(other) || (other.object == source && cannot_lead(other))) {
                    object.state = ObjectState::Skipped;
                    return Ok(());
                }
                self.declare_binding(binding).await?
            }
        };
        match declared {
            Declared::Done if object.state == ObjectState::Missing => object.state = ObjectState::Created,
            Declared::Done => object.state = ObjectState::Same,
            Declared::Different(why) => (object.state, object.why) = (ObjectState::Different, Some(why)),
            Declared::Refused(why) => (object.state, object.why) = (ObjectState::Refused, Some(why)),
        }
        Ok(())
    }
}

/// Whether an exchange is not there, or chooses among its bindings in another way than they were written for.
fn cannot_lead(exchange: &ObjectReport) -> bool {
    match exchange.state {
        ObjectState::Refused => true,
        ObjectState::Different => {
            exchange.differences.iter().any(|difference| difference.property == "type")
                || exchange.why.as_ref().is_some_and(|why| why.contains("'type'"))
        }
        _ => false,
    }
}
