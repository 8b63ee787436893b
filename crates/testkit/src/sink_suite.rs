//! The conformance suite of the [`Sink`] port: what every sink must hold to.
//!
//! A driver's own test implements [`SinkHarness`], which plays whoever receives, and names it to
//! [`sink_suite!`](crate::sink_suite). Nothing here knows a broker.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use async_trait::async_trait;
use relais_message::{Durability, Message, PublishOutcome, RoutedMessage, Sink};
use tokio::time::timeout;

/// For whatever should happen soon, on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// A message as its receiver sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// The message's id.
    pub id: String,
    /// Its key, where the sink carries one.
    pub key: Option<String>,
    /// Its headers.
    pub headers: HashMap<String, String>,
    /// Its payload.
    pub payload: Vec<u8>,
}

/// A sink with nothing in it, and those who receive behind it.
#[async_trait(?Send)]
pub trait SinkHarness {
    /// The sink under test. It reaches its server through something that can be cut.
    fn sink(&self) -> Arc<dyn Sink>;

    /// A destination that takes messages; always the same.
    fn destination(&self) -> String;

    /// Whether receivers see a message's key.
    fn carries_keys(&self) -> bool;

    /// Whether receivers see a header of this name.
    fn carries_header(&self, _name: &str) -> bool {
        true
    }

    /// All messages that arrived there, in the order of their arrival.
    async fn received(&self) -> Result<Vec<Received>>;

    /// A destination that does not exist; none where every destination does.
    fn missing(&self) -> Option<String>;

    /// A destination to which this sink may not write; none where there is no such thing.
    fn forbidden(&self) -> Option<String>;

    /// Makes a message too large for the sink; false where nothing is.
    fn enlarge(&self, message: &mut Message) -> bool;

    /// Cuts the connection between sink and server, now and for new connections.
    async fn cut(&self) -> Result<()>;

    /// Lets the server hang: connections stay, and nothing is answered.
    async fn stall(&self) -> Result<()>;

    /// Ends a cut or a stall.
    async fn restore(&self) -> Result<()>;

    /// Kills the server and starts it again on the same data; false where it cannot be.
    async fn crash(&self) -> Result<bool>;

    /// How long a call may take while the server hangs.
    fn patience(&self) -> Duration;
}

/// Makes one test of each promise. The argument is an async function without parameters that returns
/// `anyhow::Result<impl SinkHarness>`. With `crash`, another such function is for the one promise about a crash, so that all
/// others can share a server.
#[macro_export]
macro_rules! sink_suite {
    ($harness:ident) => {
        $crate::sink_suite!($harness, crash: $harness);
    };
    ($harness:ident, crash: $crash:ident) => {
        $crate::sink_suite! { @tests $harness;
            a_message_arrives_with_its_id_key_headers_and_payload,
            messages_of_a_key_arrive_in_order,
            an_empty_batch_is_answered,
            a_message_to_a_missing_destination_is_refused_alone,
            a_message_without_permission_is_refused_alone,
            a_message_that_is_too_large_is_refused_alone,
            nothing_of_a_key_is_sent_after_a_refusal,
            a_connection_lost_in_the_middle_loses_nothing_that_was_confirmed,
            a_server_that_hangs_does_not_hold_up_the_caller,
            a_closed_sink_refuses_everything,
        }
        $crate::sink_suite! { @tests $crash;
            a_confirmed_message_survives_a_crash_as_declared,
        }
    };
    (@tests $harness:ident; $($promise:ident),* $(,)?) => {
        $(#[tokio::test]
        async fn $promise() -> anyhow::Result<()> {
            $crate::sink_suite::$promise(&$harness().await?).await
        })*
    };
}

fn outgoing(harness: &impl SinkHarness, key: &str, number: usize) -> RoutedMessage {
    let payload = format!(r#"{{"key":"{key}","n":{number}}}"#);
    let message = Message::new(format!("{key}-{number}"), "order.placed", payload).with_key(key);
    RoutedMessage { destination: harness.destination(), routing_key: "order.placed".to_owned(), message }
}

async fn publish(harness: &impl SinkHarness, batch: Vec<RoutedMessage>) -> Result<Vec<PublishOutcome>> {
    let number = batch.len();
    let outcomes = timeout(DEADLINE, harness.sink().publish(batch)).await.context("the sink answers")?;
    ensure!(outcomes.len() == number, "each message has an answer: {outcomes:?}");
    Ok(outcomes)
}

/// Checks that the first arrivals of each key are in order, without a gap; how many messages arrived twice.
fn check_order(received: &[Received]) -> Result<usize> {
    let (mut next, mut seen, mut repeats) = (HashMap::<String, usize>::new(), HashSet::new(), 0);
    for message in received {
        if !seen.insert(message.id.clone()) {
            repeats += 1;
            continue;
        }
        let (key, number) = message.id.rsplit_once('-').context("an id of this suite")?;
        let expected = next.entry(key.to_owned()).or_default();
        ensure!(number.parse() == Ok(*expected), "{} arrived where {key}-{expected} was expected", message.id);
        *expected += 1;
    }
    Ok(repeats)
}

/// What is sent arrives as it was.
pub async fn a_message_arrives_with_its_id_key_headers_and_payload(harness: &impl SinkHarness) -> Result<()> {
    let mut sent = outgoing(harness, "o-é", 0);
    sent.message.headers.set("correlation-id", "c-1");
    sent.message.headers.set("event-type", "order.placed");
    let outcomes = publish(harness, vec![sent.clone()]).await?;
    ensure!(outcomes == [PublishOutcome::Confirmed], "{outcomes:?}");
    let received = harness.received().await?;
    let [message] = &received[..] else { anyhow::bail!("one message arrives: {received:?}") };
    ensure!(message.id == sent.message.id, "the id travels: {message:?}");
    ensure!(Some(&message.payload[..]) == sent.message.payload.as_deref(), "the payload travels: {message:?}");
    for (name, value) in sent.message.headers.iter().filter(|(name, _)| harness.carries_header(name)) {
        ensure!(message.headers.get(name).map(String::as_str) == Some(value), "{name} travels: {message:?}");
    }
    ensure!(!harness.carries_keys() || message.key == sent.message.key, "the key travels: {message:?}");
    Ok(())
}

/// Whatever is between them.
pub async fn messages_of_a_key_arrive_in_order(harness: &impl SinkHarness) -> Result<()> {
    let keys: Vec<String> = (0..7).map(|key| format!("k{key}")).collect();
    for batch in 0..3 {
        let messages = (batch * 20..(batch + 1) * 20).flat_map(|n| keys.iter().map(move |key| (key, n)));
        let batch = messages.map(|(key, number)| outgoing(harness, key, number)).collect();
        ensure!(publish(harness, batch).await?.iter().all(PublishOutcome::is_confirmed), "all are confirmed");
    }
    let received = harness.received().await?;
    ensure!(received.len() == 7 * 60, "all arrive: {}", received.len());
    ensure!(check_order(&received)? == 0, "once");
    Ok(())
}

/// With no answers.
pub async fn an_empty_batch_is_answered(harness: &impl SinkHarness) -> Result<()> {
    publish(harness, Vec::new()).await.map(drop)
}

/// Sends one bad message among good ones.
async fn refused_alone(harness: &impl SinkHarness, bad: RoutedMessage) -> Result<()> {
    let batch = vec![outgoing(harness, "a", 0), bad, outgoing(harness, "b", 0), outgoing(harness, "a", 1)];
    let outcomes = publish(harness, batch).await?;
    ensure!(matches!(outcomes[1], PublishOutcome::Refused(_)), "it is refused: {outcomes:?}");
    ensure!(
        [0, 2, 3].into_iter().all(|place: usize| outcomes[place].is_confirmed()),
        "the others are not: {outcomes:?}"
    );
    let received = harness.received().await?;
    let ids: HashSet<&str> = received.iter().map(|message| message.id.as_str()).collect();
    ensure!(ids == HashSet::from(["a-0", "a-1", "b-0"]), "and arrive: {ids:?}");
    check_order(&received)?;
    Ok(())
}

/// The others arrive.
pub async fn a_message_to_a_missing_destination_is_refused_alone(harness: &impl SinkHarness) -> Result<()> {
    let Some(destination) = harness.missing() else { return Ok(()) };
    refused_alone(harness, RoutedMessage { destination, ..outgoing(harness, "bad", 0) }).await
}

/// The others arrive.
pub async fn a_message_without_permission_is_refused_alone(harness: &impl SinkHarness) -> Result<()> {
    let Some(destination) = harness.forbidden() else { return Ok(()) };
    refused_alone(harness, RoutedMessage { destination, ..outgoing(harness, "bad", 0) }).await
}

/// The others arrive.
pub async fn a_message_that_is_too_large_is_refused_alone(harness: &impl SinkHarness) -> Result<()> {
    let mut bad = outgoing(harness, "bad", 0);
    if !harness.enlarge(&mut bad.message) {
        return Ok(());
    }
    refused_alone(harness, bad).await
}

/// It would be before the refused one, for ever.
pub async fn nothing_of_a_key_is_sent_after_a_refusal(harness: &impl SinkHarness) -> Result<()> {
    let mut bad = outgoing(harness, "a", 1);
    if !harness.enlarge(&mut bad.message) {
        return Ok(());
    }
    let batch = vec![outgoing(harness, "a", 0), bad, outgoing(harness, "a", 2), outgoing(harness, "b", 0)];
    let outcomes = publish(harness, batch).await?;
    ensure!(matches!(outcomes[1], PublishOutcome::Refused(_)), "{outcomes:?}");
    ensure!(outcomes[2] == PublishOutcome::NotSent, "the next of its key is not sent: {outcomes:?}");
    ensure!(outcomes[0].is_confirmed() && outcomes[3].is_confirmed(), "{outcomes:?}");
    check_order(&harness.received().await?)?;
    Ok(())
}

/// What was not confirmed is sent again, and may arrive twice.
#[expect(clippy::print_stdout, reason = "the figures of a fault test")]
pub async fn a_connection_lost_in_the_middle_loses_nothing_that_was_confirmed(
    harness: &impl SinkHarness,
) -> Result<()> {
    const KEYS: usize = 40;
    const EACH: usize = 25;
    let (mut left, mut cuts) = (vec![0; KEYS], 0);
    while left.iter().any(|next| *next < EACH) {
        let batch: Vec<(usize, usize)> =
            left.iter().enumerate().flat_map(|(key, next)| (*next..EACH).take(5).map(move |n| (key, n))).collect();
        let messages = batch.iter().map(|(key, n)| outgoing(harness, &format!("k{key}"), *n)).collect();
        let publishing = publish(harness, messages);
        let cutting = async {
            if cuts < 5 {
                harness.cut().await?;
                harness.restore().await?;
                cuts += 1;
            }
            anyhow::Ok(())
        };
        let (outcomes, cut) = tokio::join!(publishing, cutting);
        cut?;
        for ((key, _), outcome) in batch.iter().zip(outcomes?) {
            match outcome {
                PublishOutcome::Confirmed => left[*key] += 1,
                PublishOutcome::Unknown(_) | PublishOutcome::NotSent => {}
                PublishOutcome::Refused(why) => anyhow::bail!("a lost connection is no refusal: {why}"),
            }
        }
    }
    let received = harness.received().await?;
    let ids: HashSet<&str> = received.iter().map(|message| message.id.as_str()).collect();
    let repeats = check_order(&received)?;
    println!("messages {}, cuts {cuts}, lost {}, repeated {repeats}", KEYS * EACH, KEYS * EACH - ids.len());
    ensure!(ids.len() == KEYS * EACH, "all arrive");
    Ok(())
}

/// It gets an answer within the sink's own deadline.
pub async fn a_server_that_hangs_does_not_hold_up_the_caller(harness: &impl SinkHarness) -> Result<()> {
    ensure!(publish(harness, vec![outgoing(harness, "a", 0)]).await?[0].is_confirmed(), "it works");
    harness.stall().await?;
    let answered = timeout(harness.patience(), harness.sink().publish(vec![outgoing(harness, "a", 1)])).await;
    harness.restore().await?;
    let outcomes = answered.context("the sink has a deadline")?;
    ensure!(matches!(&outcomes[..], [PublishOutcome::Unknown(_)]), "nobody knows: {outcomes:?}");
    Ok(())
}

/// A sink that declares less may lose it.
pub async fn a_confirmed_message_survives_a_crash_as_declared(harness: &impl SinkHarness) -> Result<()> {
    let batch: Vec<RoutedMessage> = (0..50).map(|n| outgoing(harness, "a", n)).collect();
    ensure!(publish(harness, batch).await?.iter().all(PublishOutcome::is_confirmed), "all are confirmed");
    if harness.sink().durability() < Durability::Disk || !harness.crash().await? {
        return Ok(());
    }
    let received = harness.received().await?;
    ensure!(received.len() == 50, "all are there after the crash: {}", received.len());
    check_order(&received)?;
    Ok(())
}

/// So that whoever still holds it knows.
pub async fn a_closed_sink_refuses_everything(harness: &impl SinkHarness) -> Result<()> {
    harness.sink().close().await;
    let outcomes = publish(harness, vec![outgoing(harness, "a", 0)]).await?;
    ensure!(matches!(&outcomes[..], [PublishOutcome::Refused(_)]), "{outcomes:?}");
    ensure!(harness.received().await?.is_empty(), "nothing arrives");
    Ok(())
}
