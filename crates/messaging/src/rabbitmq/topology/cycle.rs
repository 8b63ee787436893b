//! Dead letters that go round in a circle with no way out.
//!
//! A circle is how retries are built by hand: a queue dead-letters to one with a message TTL, which dead-letters back.
//! That works because somebody consumes the first one and decides, and because the second one waits. Without the one,
//! the broker drops what goes round by itself, in silence; without the other, a message that is always rejected goes
//! round as fast as the broker can. Only what is certain counts: where the message's own routing key or headers decide,
//! there is no circle.

use std::collections::{HashMap, HashSet};

use super::{BindingDestination, QueueDeclaration, Topology, TopologyFault, TopologyProblem, routing};

/// The circles that are wrong.
pub(super) fn problems(topology: &Topology) -> Vec<TopologyProblem> {
    let next: HashMap<&str, Vec<&QueueDeclaration>> =
        topology.queues.iter().map(|queue| (queue.name.as_str(), receivers(topology, queue))).collect();
    // A queue that waits, and one that does not, are both needed: so each kind alone must have no circle.
    let mut problems = Vec::new();
    for waits in [false, true] {
        let fault = if waits { TopologyFault::UnattendedCycle } else { TopologyFault::EndlessCycle };
        let mut done = HashSet::new();
        for (number, queue) in topology.queues.iter().enumerate() {
            let mut path = Vec::new();
            if let Some(circle) = find(queue, waits, &next, &mut path, &mut done) {
                problems.push(TopologyProblem { place: format!("queues[{number}]"), fault: fault(circle) });
            }
        }
    }
    problems
}

/// Follows dead letters through queues that all wait, or none of which does.
fn find<'a>(
    queue: &'a QueueDeclaration,
    waits: bool,
    next: &HashMap<&str, Vec<&'a QueueDeclaration>>,
    path: &mut Vec<&'a str>,
    done: &mut HashSet<&'a str>,
) -> Option<Vec<String>> {
    if queue.arguments.contains_key("x-message-ttl") != waits {
        return None;
    }
    if let Some(place) = path.iter().position(|name| *name == queue.name) {
        return Some(path[place..].iter().map(ToString::to_string).collect());
    }
    if !done.insert(&queue.name) {
        return None;
    }
    path.push(&queue.name);
    let found = next.get(queue.name.as_str())?.iter().find_map(|receiver| find(receiver, waits, next, path, done));
    path.pop();
    found
}

/// The queues that certainly get a queue's dead letters.
fn receivers<'a>(topology: &'a Topology, queue: &QueueDeclaration) -> Vec<&'a QueueDeclaration> {
    let Some((exchange, key)) = queue.dead_letter_target() else { return Vec::new() };
    if exchange.is_empty() {
        return key.and_then(|key| topology.find_queue(key)).into_iter().collect();
    }
    let (mut exchanges, mut seen, mut queues) = (vec![exchange], HashSet::new(), Vec::new());
    while let Some(exchange) = exchanges.pop() {
        if !seen.insert(exchange) {
            continue;
        }
        let Some(kind) = topology.exchange_type(exchange) else { continue };
        let bindings = topology.bindings.iter().filter(|binding| binding.exchange == exchange);
        for binding in bindings.filter(|binding| routing::takes(kind, binding, key) == Some(true)) {
            match &binding.destination {
                BindingDestination::Queue(queue) => queues.extend(topology.find_queue(queue)),
                BindingDestination::Exchange(exchange) => exchanges.push(exchange),
            }
        }
    }
    queues
}
