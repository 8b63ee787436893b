//! Promises of topologies at a real broker: what is compared, what is made, and what is left as it is.

use std::time::Duration;

use anyhow::Result;
use relais_messaging::rabbitmq::{
    Broker, BrokerOptions, Management, Publish,
    topology::{
        ApplyOptions, BindingDeclaration, ExchangeDeclaration, ExchangeType, ObjectState, QueueDeclaration, Topology,
        TopologyError, TopologyReport,
    },
};
use relais_testkit::TestVhost;
use serde_json::{Value, json};
use tokio::time::timeout;

/// Longer than anything here takes on a busy machine.
const SOON: Duration = Duration::from_secs(60);

struct Stage {
    vhost: TestVhost,
    broker: Broker,
    management: Management,
}

async fn stage() -> Result<Stage> {
    let vhost = TestVhost::create().await?;
    let options = BrokerOptions { publish_timeout: SOON, patience: SOON, ..BrokerOptions::default() };
    let broker = Broker::new(vhost.url(), options)?;
    let management = Management::new(&vhost.management_url(), vhost.name())?;
    Ok(Stage { vhost, broker, management })
}

impl Stage {
    async fn plan(&self, topology: &Topology) -> Result<TopologyReport> {
        Ok(self.broker.plan_topology(topology, Some(&self.management)).await?)
    }

    async fn apply(&self, topology: &Topology) -> Result<TopologyReport> {
        Ok(self.broker.apply_topology(topology, Some(&self.management), ApplyOptions::default()).await?)
    }
}

fn orders() -> Topology {
    Topology::new()
        .exchange(ExchangeDeclaration::new("orders", ExchangeType::Topic).alternate_exchange("orders.dead"))
        .exchange(ExchangeDeclaration::new("orders.dead", ExchangeType::Fanout))
        .exchange(ExchangeDeclaration::new("papers", ExchangeType::Headers))
        .queue(
            QueueDeclaration::quorum("invoices")
                .dead_letter_exchange("orders.dead")
                .message_ttl(Duration::from_secs(3600))
                .max_length(1000)
                .max_retries(3),
        )
        .queue(QueueDeclaration::classic("plain").max_retries(2))
        .queue(QueueDeclaration::classic("dead"))
        .binding(BindingDeclaration::to_queue("orders", "invoices").routing_key("order.placed"))
        .binding(BindingDeclaration::to_queue("orders", "plain").routing_key("order.*"))
        .binding(BindingDeclaration::to_queue("orders.dead", "dead"))
        .binding(BindingDeclaration::to_exchange("orders", "papers").routing_key("paper.#"))
        .binding(
            BindingDeclaration::to_queue("papers", "dead")
                .argument("x-match", "all")
                .argument("format", "pdf")
                .argument("signed", "yes"),
        )
}

fn states(report: &TopologyReport) -> Vec<(String, ObjectState)> {
    report.objects.iter().map(|object| (object.object.to_string(), object.state)).collect()
}

fn state(report: &TopologyReport, object: &str) -> ObjectState {
    let found = states(report).into_iter().find(|(name, _)| name == object);
    found.unwrap_or_else(|| panic!("{object} is not in {report:?}")).1
}

#[track_caller]
fn assert_all(report: &TopologyReport, wanted: ObjectState) {
    assert!(report.objects.iter().all(|object| object.state == wanted), "{:#?}", states(report));
}

#[tokio::test]
async fn what_is_missing_is_created_once_and_routes_messages() -> Result<()> {
    let stage = stage().await?;
    let topology = orders();
    let plan = stage.plan(&topology).await?;
    assert_all(&plan, ObjectState::Missing);
    assert!(plan.has_missing() && !plan.has_differences());
    assert_all(&stage.plan(&topology).await?, ObjectState::Missing);
    assert_all(&stage.apply(&topology).await?, ObjectState::Created);
    assert_all(&stage.plan(&topology).await?, ObjectState::Same);
    assert_all(&stage.apply(&topology).await?, ObjectState::Same);

    stage.broker.publish(Publish::new("orders", "order.placed", "1")).await?;
    stage.broker.publish(Publish::new("orders", "odd", "to the alternate exchange")).await?;
    let pdf = Publish::new("orders", "paper", "by its headers").header("format", "pdf");
    assert!(stage.broker.publish(pdf.clone()).await.unwrap_err().is_unroutable());
    stage.broker.publish(pdf.header("signed", "yes")).await?;
    assert_eq!(stage.vhost.take("invoices", 9).await?.len(), 1);
    assert_eq!(stage.vhost.take("plain", 9).await?.len(), 1);
    assert_eq!(stage.vhost.take("dead", 9).await?.len(), 2);

    // The consumer's limit is not the broker's business: others declare the queue as a plain one.
    stage.vhost.declare_queue("plain").await?;
    assert_eq!(stage.vhost.queue("plain").await?["arguments"], json!({}));
    let sent = json!({"x-queue-type": "quorum", "x-dead-letter-exchange": "orders.dead", "x-message-ttl": 3_600_000,
        "x-max-length": 1000});
    assert_eq!(stage.vhost.queue("invoices").await?["arguments"], sent);
    Ok(())
}

#[tokio::test]
async fn what_differs_is_reported_by_property_and_left_as_it_is() -> Result<()> {
    let stage = stage().await?;
    let arguments = json!({"x-dead-letter-exchange": "orders.dead", "x-max-length": 7});
    stage.vhost.declare_queue_with("invoices", arguments.clone()).await?;
    stage.vhost.declare_exchange("orders", "direct").await?;
    stage.management.put_policy("ttl", "^invoices$", "queues", json!({"message-ttl": 5000}), 0).await?;
    // Nodes collect every few seconds which policy a queue has.
    let known = async {
        while stage.vhost.queue("invoices").await?["effective_policy_definition"]["message-ttl"] != json!(5000) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(())
    };
    timeout(SOON, known).await??;

    for report in [stage.plan(&orders()).await?, stage.apply(&orders()).await?] {
        assert!(report.has_differences());
        let queue = report.objects.iter().find(|object| object.object.to_string() == "queue `invoices`").unwrap();
        let differences: Vec<String> = queue.differences.iter().map(ToString::to_string).collect();
        assert_eq!(
            differences,
            [
                "type: \"quorum\" declared, \"classic\" found",
                "x-max-length: 1000 declared, 7 found",
                "x-message-ttl: 3600000 declared, none found (5000 by policy)",
            ]
        );
        assert_eq!(Value::Object(queue.policy.clone()), json!({"message-ttl": 5000}));
        assert_eq!(state(&report, "exchange `orders`"), ObjectState::Different);
    }
    let report = stage.plan(&orders()).await?;
    assert_eq!(stage.vhost.queue("invoices").await?["arguments"], arguments);
    assert_eq!(state(&report, "binding of `orders.dead` to queue `dead`"), ObjectState::Same, "the rest was made");
    let binding = "binding of `orders` to queue `plain` with `order.*`";
    assert_eq!(state(&report, binding), ObjectState::Missing, "a direct exchange would take the pattern for a key");
    assert_eq!(state(&stage.apply(&orders()).await?, binding), ObjectState::Skipped);
    Ok(())
}

#[tokio::test]
async fn without_the_management_api_the_broker_says_what_differs() -> Result<()> {
    let stage = stage().await?;
    stage.vhost.declare_queue_with("invoices", json!({"x-max-length": 7})).await?;
    stage.vhost.declare_exchange("orders", "direct").await?;
    let plan = stage.broker.plan_topology(&orders(), None).await?;
    assert!(!plan.compared);
    assert_eq!(state(&plan, "queue `invoices`"), ObjectState::Exists);
    assert_eq!(state(&plan, "queue `plain`"), ObjectState::Missing);
    assert_eq!(state(&plan, "binding of `orders.dead` to queue `dead`"), ObjectState::Unknown);

    let options = ApplyOptions::default();
    let report = stage.broker.apply_topology(&orders(), None, options).await?;
    let queue = report.objects.iter().find(|object| object.object.to_string() == "queue `invoices`").unwrap();
    assert_eq!(queue.state, ObjectState::Different);
    assert!(
        queue.why.as_ref().is_some_and(|why| why.contains("PRECONDITION_FAILED") && why.contains("x-message-ttl")),
        "{queue:?}"
    );
    assert_eq!(state(&report, "queue `plain`"), ObjectState::Created);
    assert_eq!(state(&report, "binding of `orders.dead` to queue `dead`"), ObjectState::Same);
    assert_eq!(state(&report, "binding of `orders` to queue `plain` with `order.*`"), ObjectState::Skipped);
    assert!(stage.broker.state().is_connected());

    let delete = ApplyOptions { delete_extra_bindings: true };
    let refused = stage.broker.apply_topology(&orders(), None, delete).await.unwrap_err();
    assert!(matches!(refused, TopologyError::ExtraBindingsUnknown), "{refused}");
    Ok(())
}

#[tokio::test]
async fn extra_bindings_are_deleted_only_if_asked() -> Result<()> {
    let stage = stage().await?;
    let topology = orders();
    stage.apply(&topology).await?;
    let extra = BindingDeclaration::to_queue("amq.topic", "plain").routing_key("a / %2F.#");
    let more = topology
        .clone()
        .binding(extra.clone())
        .binding(BindingDeclaration::to_exchange("orders.dead", "papers"))
        .binding(BindingDeclaration::to_queue("papers", "dead").argument("x-match", "any").argument("pages", 3));
    stage.apply(&more).await?;
    // Somebody else's queue at our exchange is theirs.
    stage.vhost.declare_queue("theirs").await?;
    stage.vhost.bind("orders", "theirs", "order.placed").await?;

    let report = stage.apply(&topology).await?;
    let left: Vec<_> = states(&report).into_iter().filter(|(_, state)| *state == ObjectState::Extra).collect();
    assert_eq!(left.len(), 3, "{left:?}");
    assert!(left.iter().any(|(name, _)| *name == "binding of `amq.topic` to queue `plain` with `a / %2F.#`"));
    assert!(report.has_extra_bindings() && !report.has_differences());

    let delete = ApplyOptions { delete_extra_bindings: true };
    let report = stage.broker.apply_topology(&topology, Some(&stage.management), delete).await?;
    assert_eq!(states(&report).iter().filter(|(_, state)| *state == ObjectState::Deleted).count(), 3);
    assert_all(&stage.plan(&topology).await?, ObjectState::Same);
    stage.broker.publish(Publish::new("orders", "order.placed", "")).await?;
    assert_eq!(stage.vhost.take("theirs", 9).await?.len(), 1);
    Ok(())
}

#[tokio::test]
async fn several_may_apply_the_same_topology_at_once() -> Result<()> {
    let stage = stage().await?;
    let topology = orders();
    let reports = futures::future::try_join_all((0..4).map(|_| stage.apply(&topology))).await?;
    for report in reports {
        assert!(!report.has_differences() && !report.has_missing(), "{:#?}", states(&report));
    }
    assert_all(&stage.plan(&topology).await?, ObjectState::Same);
    Ok(())
}

#[tokio::test]
async fn what_the_broker_does_not_allow_holds_up_nothing_else() -> Result<()> {
    let stage = stage().await?;
    let url = stage.vhost.url_restricted_to("^(orders|amq\\.|plain|dead|papers)").await?;
    let broker = Broker::new(&url, BrokerOptions { publish_timeout: SOON, patience: SOON, ..Default::default() })?;
    let topology = Topology::new()
        .exchange(ExchangeDeclaration::new("orders", ExchangeType::Topic))
        .queue(QueueDeclaration::classic("forbidden"))
        .queue(QueueDeclaration::classic("plain"))
        .binding(BindingDeclaration::to_queue("orders", "forbidden").routing_key("a"))
        .binding(BindingDeclaration::to_queue("orders", "plain").routing_key("a"));
    let report = broker.apply_topology(&topology, None, ApplyOptions::default()).await?;
    let states: Vec<_> = states(&report).into_iter().map(|(_, state)| state).collect();
    use ObjectState::{Created, Refused, Same, Skipped};
    assert_eq!(states, [Created, Refused, Created, Skipped, Same]);
    Ok(())
}

#[tokio::test]
async fn a_topology_with_problems_does_not_reach_the_broker() -> Result<()> {
    let broker = Broker::new("amqp://127.0.0.1:1", BrokerOptions::default())?;
    let topology = Topology::new().binding(BindingDeclaration::to_queue("a", "b"));
    let refused = broker.apply_topology(&topology, None, ApplyOptions::default()).await.unwrap_err();
    assert!(matches!(&refused, TopologyError::Invalid(problems) if problems.len() == 2), "{refused}");
    Ok(())
}
