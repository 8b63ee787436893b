//! What a file says is what Rust says, and what is wrong is found without a broker.

use std::time::Duration;

use serde_json::json;

use super::*;

fn read(text: &str) -> Result<Topology, String> {
    serde_saphyr::from_str(text).map_err(|error| error.to_string())
}

fn problems(text: &str) -> Vec<String> {
    read(text).unwrap().check().iter().map(ToString::to_string).collect()
}

#[test]
fn a_file_and_rust_make_the_same_topology() {
    let file = "
exchanges:
  - {name: orders, type: topic, alternateExchange: unrouted}
  - {name: unrouted, type: fanout, durable: false, autoDelete: true, internal: true}
  - {name: papers, type: headers}
queues:
  - name: invoices
    type: quorum
    deadLetterExchange: unrouted
    deadLetterRoutingKey: invoices
    messageTtl: 1h30m
    maxLength: 1000
    overflow: reject-publish
    singleActiveConsumer: true
    maxRetries: 3
  - {name: spare, durable: false, autoDelete: true, messageTtl: 250, arguments: {x-max-retries: 5, x-max-priority: 9}}
bindings:
  - {exchange: orders, queue: invoices, routingKey: order.*}
  - {exchange: papers, queue: spare, arguments: {x-match: all, format: pdf, pages: 3}}
  - {exchange: orders, toExchange: papers, routingKey: '#'}
";
    let mut unrouted = ExchangeDeclaration::new("unrouted", ExchangeType::Fanout);
    (unrouted.durable, unrouted.auto_delete, unrouted.internal) = (false, true, true);
    let mut spare = QueueDeclaration::classic("spare").message_ttl(Duration::from_millis(250)).max_retries(5);
    (spare.durable, spare.auto_delete) = (false, true);
    let invoices = QueueDeclaration::quorum("invoices")
        .dead_letter_exchange("unrouted")
        .dead_letter_routing_key("invoices")
        .message_ttl(Duration::from_secs(5400))
        .max_length(1000)
        .overflow("reject-publish")
        .single_active_consumer(true)
        .max_retries(3);
    let topology = Topology::new()
        .exchange(ExchangeDeclaration::new("orders", ExchangeType::Topic).alternate_exchange("unrouted"))
        .exchange(unrouted)
        .exchange(ExchangeDeclaration::new("papers", ExchangeType::Headers))
        .queue(invoices)
        .queue(spare.argument("x-max-priority", 9))
        .binding(BindingDeclaration::to_queue("orders", "invoices").routing_key("order.*"))
        .binding(
            BindingDeclaration::to_queue("papers", "spare")
                .argument("x-match", "all")
                .argument("format", "pdf")
                .argument("pages", 3),
        )
        .binding(BindingDeclaration::to_exchange("orders", "papers").routing_key("#"));
    assert_eq!(read(file), Ok(topology.clone()));
    assert_eq!(topology.check(), []);
}

#[test]
fn arguments_copied_from_other_clients_say_the_same_as_keys() {
    let arguments = "queues: [{name: q, arguments: {x-queue-type: quorum, x-message-ttl: 5000, x-max-retries: 2}}]";
    let keys = "queues: [{name: q, type: quorum, messageTtl: 5s, maxRetries: 2}]";
    assert_eq!(read(arguments), read(keys));
    let queue = read(keys).unwrap().queues.remove(0);
    let sent = json!({"x-queue-type": "quorum", "x-message-ttl": 5000});
    assert_eq!(serde_json::Value::Object(queue.sent_arguments()), sent, "x-max-retries is for consumers");
}

#[test]
fn a_file_that_contradicts_itself_is_refused() {
    for (text, words) in [
        ("queues: [{name: q, messageTtl: 5s, arguments: {x-message-ttl: 6000}}]", "`x-message-ttl` say different"),
        ("queues: [{name: q, type: classic, arguments: {x-queue-type: quorum}}]", "`x-queue-type` say different"),
        ("queues: [{name: q, arguments: {x-queue-type: stream}}]", "\"classic\" or \"quorum\""),
        ("queues: [{name: q, arguments: {x-max-retries: '3'}}]", "whole number"),
        ("queues: [{name: q, messageTtl: soon}]", "a time like 30s"),
        ("queues: [{name: q, messageTtl: -1}]", "a time like 30s"),
        ("queues: [{name: q, messageTtl: 1.5s}]", "a time like 30s"),
        ("queues: [{name: q, messageTTL: 5s}]", "messageTTL"),
        ("queues: [{durable: true}]", "name"),
        ("exchanges: [{name: e}]", "type"),
        ("exchanges: [{name: e, type: x-delayed-message}]", "x-delayed-message"),
        ("bindings: [{exchange: e}]", "one of `queue` and `toExchange`"),
        ("bindings: [{exchange: e, queue: q, toExchange: f}]", "one of `queue` and `toExchange`"),
        ("exchange: []", "exchange"),
    ] {
        let refused = read(text).unwrap_err();
        assert!(refused.contains(words), "{text}: {refused}");
    }
}

#[test]
fn names_and_references_that_lead_nowhere_are_found() {
    let found = problems(
        "
exchanges:
  - {name: amq.mine, type: topic}
  - {name: '', type: topic}
  - {name: e, type: topic, alternateExchange: nowhere}
  - {name: e, type: fanout}
queues:
  - {name: q, deadLetterExchange: amq.fanout}
  - {name: q, deadLetterExchange: gone}
  - {name: r, deadLetterExchange: '', deadLetterRoutingKey: nobody}
bindings:
  - {exchange: e, queue: p}
  - {exchange: f, queue: q}
  - {exchange: '', queue: q}
  - {exchange: amq.topic, queue: q, routingKey: a}
  - {exchange: amq.topic, queue: q, routingKey: a}
  - {exchange: amq.topic, toExchange: g}
",
    );
    assert_eq!(
        found,
        [
            "exchanges[0]: `amq.mine` begins with `amq.`, which brokers keep for themselves",
            "exchanges[1]: it has no name",
            "exchanges[2]: there is no exchange `nowhere` in the topology",
            "exchanges[3]: exchange `e` is declared twice",
            "queues[1]: there is no exchange `gone` in the topology",
            "queues[1]: queue `q` is declared twice",
            "queues[2]: there is no queue `nobody` in the topology",
            "bindings[0]: there is no queue `p` in the topology",
            "bindings[1]: there is no exchange `f` in the topology",
            "bindings[2]: the default exchange takes no bindings: every queue can be reached there by its name",
            "bindings[4]: the binding of `amq.topic` to queue `q` with `a` {} is declared twice",
            "bindings[5]: there is no exchange `g` in the topology",
        ]
    );
    let long = Topology::new().queue(QueueDeclaration::classic("q".repeat(256)));
    assert!(matches!(&long.check()[..], [TopologyProblem { fault: TopologyFault::TooLong(_), .. }]));
}

#[test]
fn arguments_that_a_broker_refuses_are_found() {
    let found = problems(
        "
queues:
  - {name: a, arguments: {x-message-ttl: '60000', x-max-length: 1.5, x-expires: 0, x-max-priority: 300}}
  - {name: b, overflow: drop-tail, deadLetterRoutingKey: k, arguments: {x-single-active-consumer: 'yes'}}
  - {name: c, type: quorum, durable: false, autoDelete: true, overflow: reject-publish-dlx}
  - {name: d, type: quorum, arguments: {x-max-priority: 3, x-dead-letter-exchange: 7}}
bindings:
  - {exchange: amq.headers, queue: a, arguments: {x-match: some}}
",
    );
    assert_eq!(
        found,
        [
            "queues[0]: `x-message-ttl` is a whole number, not negative",
            "queues[0]: `x-max-length` is a whole number, not negative",
            "queues[0]: `x-expires` is more than 0",
            "queues[0]: `x-max-priority` is at most 255",
            "queues[1]: `x-dead-letter-routing-key` needs a dead-letter exchange",
            "queues[1]: `x-single-active-consumer` is true or false",
            "queues[1]: `x-overflow` is drop-head, reject-publish or reject-publish-dlx",
            "queues[2]: a quorum queue is always durable",
            "queues[2]: a quorum queue is not deleted with its last consumer",
            "queues[2]: a quorum queue has no overflow reject-publish-dlx",
            "queues[3]: `x-dead-letter-exchange` is a text",
            "queues[3]: a quorum queue has no priorities of this kind",
            "bindings[0]: `x-match` is all, any, all-with-x or any-with-x",
        ]
    );
}

#[test]
fn dead_letters_that_go_round_with_no_way_out_are_found() {
    // Retries by hand: one queue is consumed, the other one waits.
    let by_hand = "
exchanges: [{name: again, type: direct}]
queues:
  - {name: work, deadLetterExchange: again, deadLetterRoutingKey: later}
  - {name: later, deadLetterExchange: '', deadLetterRoutingKey: work, messageTtl: 5s}
bindings: [{exchange: again, queue: later, routingKey: later}]
";
    assert_eq!(problems(by_hand), [""; 0]);
    let itself = "queues: [{name: q, deadLetterExchange: '', deadLetterRoutingKey: q}]";
    assert_eq!(
        problems(itself),
        ["queues[0]: dead letters go round for ever: `q` to `q`; no queue in the circle has a message TTL"]
    );
    let unattended = by_hand.replace("{name: work,", "{name: work, messageTtl: 1h,");
    assert_eq!(
        problems(&unattended),
        ["queues[0]: messages go round by themselves until the broker drops them: `work` to `later` to `work`; every \
          queue in the circle has a message TTL"]
    );
    // Over three exchanges, and beside a circle that is none: whom a message's own key reaches is not certain.
    let far = "
exchanges: [{name: a, type: fanout}, {name: b, type: topic}, {name: c, type: topic}]
queues:
  - {name: p, deadLetterExchange: a, deadLetterRoutingKey: x.y}
  - {name: q, deadLetterExchange: b, deadLetterRoutingKey: x}
  - {name: r, deadLetterExchange: c}
bindings:
  - {exchange: a, toExchange: b}
  - {exchange: b, queue: q, routingKey: x.#}
  - {exchange: c, queue: r, routingKey: x}
  - {exchange: b, queue: p, routingKey: x}
";
    assert_eq!(
        problems(far),
        ["queues[0]: dead letters go round for ever: `q` to `q`; no queue in the circle has a message TTL"]
    );
}
