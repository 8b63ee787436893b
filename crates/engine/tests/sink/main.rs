//! The Sink conformance suite on a Relais service, on both stores, and what only this sink promises.

#![expect(clippy::unwrap_used, reason = "tests")]

mod harness;

use relais_engine::{Engine, TaskSink, TaskSinkOptions, protocol::consumer::SubmitRequest};
use relais_message::{Message, PublishOutcome, RoutedMessage, Sink};
use serde_json::value::to_raw_value;

use self::harness::{CLIENT, FULL, OnStore, PRIVATE, SERVICE, STRICT};

mod on_postgres {
    use super::harness::{own_postgres, postgres};
    relais_testkit::sink_suite!(postgres, crash: own_postgres);
}

mod on_sqlite {
    use super::harness::sqlite;
    relais_testkit::sink_suite!(sqlite);
}

/// Makes a test of a promise on each store.
macro_rules! on_both {
    ($($name:ident)*) => {
        mod tasks_on_postgres {
            $(#[tokio::test] async fn $name() { super::$name(super::harness::postgres().await.unwrap()).await })*
        }
        mod tasks_on_sqlite {
            $(#[tokio::test] async fn $name() { super::$name(super::harness::sqlite().await.unwrap()).await })*
        }
    };
}

on_both! {
    a_message_that_is_published_twice_makes_one_task
    messages_of_two_sources_and_keys_of_clients_do_not_clash
    the_trace_and_the_correlation_id_continue_in_the_task
    what_a_service_does_not_take_is_refused_with_the_reason
}

fn to(service: &str, message: Message) -> RoutedMessage {
    RoutedMessage { destination: service.to_owned(), routing_key: String::new(), message }
}

fn sink(engine: &Engine, source: &str) -> TaskSink {
    TaskSink::new(engine.clone(), TaskSinkOptions::new(CLIENT, source)).unwrap()
}

async fn publish(sink: &TaskSink, service: &str, message: Message) -> PublishOutcome {
    sink.publish(vec![to(service, message)]).await.remove(0)
}

async fn a_message_that_is_published_twice_makes_one_task(stage: OnStore) {
    // Two programs, each with many calls at once.
    let other = stage.another_engine().await.unwrap();
    let batch: Vec<_> =
        (0..20).map(|n| to(SERVICE, Message::new(format!("m-{n}"), "t", format!(r#"{{"n":{n}}}"#)))).collect();
    let calls = (0..8).map(|call| {
        let sink = sink(if call % 2 == 0 { &stage.engine } else { &other }, "orders");
        let batch = batch.clone();
        tokio::spawn(async move { sink.publish(batch).await })
    });
    for call in futures::future::join_all(calls).await {
        let outcomes = call.unwrap();
        assert!(outcomes.iter().all(PublishOutcome::is_confirmed), "{outcomes:?}");
    }
    // And again, with another envelope around the same fact.
    let again = publish(&sink(&other, "orders"), SERVICE, Message::new("m-7", "t", r#"{"data":{"n":7}}"#)).await;
    assert_eq!(again, PublishOutcome::Confirmed);
    assert_eq!(stage.tasks().await.unwrap().len(), 20);
}

async fn messages_of_two_sources_and_keys_of_clients_do_not_clash(stage: OnStore) {
    let message = Message::new("m-1", "t", "{}");
    for source in ["orders", "payments"] {
        assert!(publish(&sink(&stage.engine, source), SERVICE, message.clone()).await.is_confirmed());
    }
    // A client that uses the very key of a message, before it comes.
    let access = stage.engine.insider(CLIENT, SERVICE, relais_core::Role::Consume).unwrap();
    let key = relais_engine::Idempotency { key: "message:orders:m-2".to_owned(), fingerprint: vec![1] };
    let request = SubmitRequest::new(to_raw_value(&serde_json::json!({})).unwrap());
    stage.engine.submit(&access, request, Some(key)).await.unwrap();
    let outcome = publish(&sink(&stage.engine, "orders"), SERVICE, Message::new("m-2", "t", "{}")).await;
    assert!(matches!(&outcome, PublishOutcome::Refused(why) if why.contains("idempotency key")), "{outcome:?}");
    assert_eq!(stage.tasks().await.unwrap().len(), 3);
    for source in ["", "a:b", "a\nb", &"x".repeat(101)] {
        let refused = TaskSink::new(stage.engine.clone(), TaskSinkOptions::new(CLIENT, source));
        assert!(refused.is_err(), "{source:?}");
    }
}

async fn the_trace_and_the_correlation_id_continue_in_the_task(stage: OnStore) {
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let message = Message::new("m-1", "t", r#"{"a":1}"#)
        .with_header("traceparent", parent)
        .with_header("tracestate", "vendor=x")
        .with_header("correlation-id", "c-1");
    assert!(publish(&sink(&stage.engine, "orders"), SERVICE, message).await.is_confirmed());
    let tasks = stage.tasks().await.unwrap();
    let task = stage.store.find_task(tasks[0].task_id).await.unwrap().unwrap();
    let trace = task.links.trace.unwrap();
    assert_eq!((trace.traceparent(), trace.tracestate()), (parent, Some("vendor=x")));
    assert_eq!((task.correlation_id.as_deref(), task.request.get()), (Some("c-1"), r#"{"a":1}"#));
}

async fn what_a_service_does_not_take_is_refused_with_the_reason(stage: OnStore) {
    let sink = sink(&stage.engine, "orders");
    let json = |text: &'static str| Message::new("m", "t", text);
    let tombstone = Message { payload: None, ..json("") };
    for (service, message, reason) in [
        ("nowhere", json("{}"), "service not found"),
        (PRIVATE, json("{}"), "forbidden"),
        (SERVICE, json("7"), "must be a JSON object"),
        (SERVICE, json("{"), "is not JSON"),
        (SERVICE, tombstone, "tombstone"),
        (STRICT, json(r#"{"n":"seven"}"#), "does not conform"),
        (FULL, json("{}"), "the service's capacity is reached"),
    ] {
        let outcome = publish(&sink, service, message).await;
        assert!(matches!(&outcome, PublishOutcome::Refused(why) if why.contains(reason)), "{reason}: {outcome:?}");
    }
    let stranger = TaskSink::new(stage.engine.clone(), TaskSinkOptions::new("nobody", "orders")).unwrap();
    assert!(matches!(publish(&stranger, SERVICE, json("{}")).await, PublishOutcome::Refused(_)));
    assert!(publish(&sink, STRICT, json(r#"{"n":7}"#)).await.is_confirmed());
    assert_eq!(stage.tasks().await.unwrap().len(), 1);
}
