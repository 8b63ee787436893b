//! What is wrong with a topology, without asking a broker.
//!
//! Everything that a broker refuses in any case is here, so that a topology is mended before the first object is made;
//! and what it accepts although it can not work, such as dead letters that go round in a circle.

use std::{collections::HashSet, fmt};

use serde_json::Value;

use super::{
    Arguments, BindingDeclaration, BindingDestination, ExchangeDeclaration, ExchangeType, QueueDeclaration, Topology,
    cycle,
};
use crate::rabbitmq::QueueKind;

/// Exchanges that every virtual host has.
const BUILT_IN: [(&str, ExchangeType); 5] = [
    ("amq.direct", ExchangeType::Direct),
    ("amq.fanout", ExchangeType::Fanout),
    ("amq.topic", ExchangeType::Topic),
    ("amq.headers", ExchangeType::Headers),
    ("amq.match", ExchangeType::Headers),
];

/// The most bytes of a name or a routing key.
const LONGEST: usize = 255;

/// Something that is wrong with a topology.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopologyProblem {
    /// Where, such as `queues[0]`.
    pub place: String,
    /// What.
    pub fault: TopologyFault,
}

impl fmt::Display for TopologyProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.fault)
    }
}

/// What can be wrong with a topology.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopologyFault {
    /// There is no name.
    #[error("it has no name")]
    Nameless,
    /// A name or a routing key is too long.
    #[error("`{0}` is longer than 255 bytes")]
    TooLong(String),
    /// The name is the broker's own.
    #[error("`{0}` begins with `amq.`, which brokers keep for themselves")]
    Reserved(String),
    /// The same is declared before.
    #[error("{0} is declared twice")]
    Twice(String),
    /// An exchange is neither declared nor built in.
    #[error("there is no exchange `{0}` in the topology")]
    UnknownExchange(String),
    /// A queue is not declared.
    #[error("there is no queue `{0}` in the topology")]
    UnknownQueue(String),
    /// The default exchange leads to every queue by its name, and has no other bindings.
    #[error("the default exchange takes no bindings: every queue can be reached there by its name")]
    DefaultExchange,
    /// An argument has a value of the wrong type, or one that has no meaning.
    #[error("`{name}` {why}")]
    Argument {
        /// The argument.
        name: String,
        /// What it should be.
        why: &'static str,
    },
    /// Quorum queues can not be like this.
    #[error("a quorum queue {0}")]
    NotForQuorum(&'static str),
    /// Dead letters go round in a circle, and nothing in it waits.
    #[error("dead letters go round for ever: {}; no queue in the circle has a message TTL", circle(.0))]
    EndlessCycle(Vec<String>),
    /// Dead letters go round in a circle by themselves, until the broker drops them.
    #[error(
        "messages go round by themselves until the broker drops them: {}; every queue in the circle has a message TTL",
        circle(.0)
    )]
    UnattendedCycle(Vec<String>),
}

fn circle(queues: &[String]) -> String {
    queues.iter().chain(queues.first()).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" to ")
}

impl Topology {
    /// What is wrong with it, if anything.
    pub fn check(&self) -> Vec<TopologyProblem> {
        let mut judge = Judge { topology: self, place: String::new(), problems: Vec::new() };
        let mut seen = HashSet::new();
        for (number, exchange) in self.exchanges.iter().enumerate() {
            judge.place = format!("exchanges[{number}]");
            judge.exchange(exchange);
            judge.once(&mut seen, format!("exchange `{}`", exchange.name));
        }
        for (number, queue) in self.queues.iter().enumerate() {
            judge.place = format!("queues[{number}]");
            judge.queue(queue);
            judge.once(&mut seen, format!("queue `{}`", queue.name));
        }
        for (number, binding) in self.bindings.iter().enumerate() {
            judge.place = format!("bindings[{number}]");
            judge.binding(binding);
            let BindingDeclaration { exchange, destination, routing_key, arguments } = binding;
            let said = Value::Object(arguments.clone());
            judge.once(&mut seen, format!("the binding of `{exchange}` to {destination} with `{routing_key}` {said}"));
        }
        if judge.problems.is_empty() {
            judge.problems = cycle::problems(self);
        }
        judge.problems
    }

    /// What kind of exchange this is, if it is declared or built in.
    pub(super) fn exchange_type(&self, name: &str) -> Option<ExchangeType> {
        let built_in = BUILT_IN.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind);
        built_in.or_else(|| self.find_exchange(name).map(|exchange| exchange.kind))
    }
}

/// Collects what is wrong with one thing after the other.
struct Judge<'a> {
    topology: &'a Topology,
    place: String,
    problems: Vec<TopologyProblem>,
}

impl Judge<'_> {
    fn fault(&mut self, fault: TopologyFault) {
        self.problems.push(TopologyProblem { place: self.place.clone(), fault });
    }

    fn once(&mut self, seen: &mut HashSet<String>, what: String) {
        if !seen.insert(what.clone()) {
            self.fault(TopologyFault::Twice(what));
        }
    }

    fn short(&mut self, text: &str) {
        if text.len() > LONGEST {
            self.fault(TopologyFault::TooLong(text.to_owned()));
        }
    }

    fn name(&mut self, name: &str) {
        if name.is_empty() {
            self.fault(TopologyFault::Nameless);
        }
        if name.starts_with("amq.") {
            self.fault(TopologyFault::Reserved(name.to_owned()));
        }
        self.short(name);
    }

    fn exchange(&mut self, exchange: &ExchangeDeclaration) {
        self.name(&exchange.name);
        let alternate = self.text(&exchange.arguments, "alternate-exchange");
        self.known_exchange(alternate);
    }

    fn queue(&mut self, queue: &QueueDeclaration) {
        self.name(&queue.name);
        let arguments = &queue.arguments;
        let target = self.text(arguments, "x-dead-letter-exchange");
        self.known_exchange(target.filter(|name| !name.is_empty()));
        if let Some(key) = self.text(arguments, "x-dead-letter-routing-key") {
            self.short(key);
            match target {
                None => self.argument("x-dead-letter-routing-key", "needs a dead-letter exchange"),
                Some("") => self.known_queue(key),
                Some(_) => {}
            }
        }
        for (name, least) in [
            ("x-message-ttl", 0),
            ("x-max-length", 0),
            ("x-max-length-bytes", 0),
            ("x-expires", 1),
            ("x-max-priority", 1),
            ("x-delivery-limit", 0),
        ] {
            self.number(arguments, name, least);
        }
        if arguments.get("x-max-priority").and_then(Value::as_u64).is_some_and(|most| most > 255) {
            self.argument("x-max-priority", "is at most 255");
        }
        if arguments.get("x-single-active-consumer").is_some_and(|value| !value.is_boolean()) {
            self.argument("x-single-active-consumer", "is true or false");
        }
        let overflow = self.text(arguments, "x-overflow");
        if overflow.is_some_and(|how| !matches!(how, "drop-head" | "reject-publish" | "reject-publish-dlx")) {
            self.argument("x-overflow", "is drop-head, reject-publish or reject-publish-dlx");
        }
        if queue.kind == QueueKind::Quorum {
            for (wrong, why) in [
                (!queue.durable, "is always durable"),
                (queue.auto_delete, "is not deleted with its last consumer"),
                (arguments.contains_key("x-max-priority"), "has no priorities of this kind"),
                (overflow == Some("reject-publish-dlx"), "has no overflow reject-publish-dlx"),
            ] {
                if wrong {
                    self.fault(TopologyFault::NotForQuorum(why));
                }
            }
        }
    }

    fn binding(&mut self, binding: &BindingDeclaration) {
        self.short(&binding.routing_key);
        if binding.exchange.is_empty() {
            self.fault(TopologyFault::DefaultExchange);
        } else {
            self.known_exchange(Some(&binding.exchange));
        }
        match &binding.destination {
            BindingDestination::Queue(queue) => self.known_queue(queue),
            BindingDestination::Exchange(exchange) if exchange.is_empty() => {
                self.fault(TopologyFault::DefaultExchange);
            }
            BindingDestination::Exchange(exchange) => self.known_exchange(Some(exchange)),
        }
        let known = ["all", "any", "all-with-x", "any-with-x"];
        if binding.arguments.get("x-match").is_some_and(|how| !how.as_str().is_some_and(|how| known.contains(&how))) {
            self.argument("x-match", "is all, any, all-with-x or any-with-x");
        }
    }

    fn known_exchange(&mut self, name: Option<&str>) {
        if let Some(name) = name
            && self.topology.exchange_type(name).is_none()
        {
            self.fault(TopologyFault::UnknownExchange(name.to_owned()));
        }
    }

    fn known_queue(&mut self, name: &str) {
        if self.topology.find_queue(name).is_none() {
            self.fault(TopologyFault::UnknownQueue(name.to_owned()));
        }
    }

    fn argument(&mut self, name: &str, why: &'static str) {
        self.fault(TopologyFault::Argument { name: name.to_owned(), why });
    }

    fn text<'v>(&mut self, arguments: &'v Arguments, name: &str) -> Option<&'v str> {
        let value = arguments.get(name)?;
        if value.as_str().is_none() {
            self.argument(name, "is a text");
        }
        value.as_str()
    }

    fn number(&mut self, arguments: &Arguments, name: &str, least: u64) {
        match arguments.get(name) {
            Some(value) if value.as_u64().is_none_or(|number| i64::try_from(number).is_err()) => {
                self.argument(name, "is a whole number, not negative");
            }
            Some(value) if value.as_u64() < Some(least) => self.argument(name, "is more than 0"),
            _ => {}
        }
    }
}
