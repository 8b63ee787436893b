//! Order per key, for sinks whose servers do not keep it when one of several messages fails.

use std::{
    collections::HashMap,
    future::Future,
    time::{Duration, Instant},
};

use crate::{PublishOutcome, RoutedMessage};

/// Publishes a batch in waves. A wave has at most one message of each key and destination, and the next wave begins when all of
/// this one are answered. So a message is never sent while one before it could still end up behind it. Messages without a key
/// are all in the first wave.
///
/// `publish` sends one wave, in any order, and answers each message. After `limit` no further wave begins, and what is left
/// is not sent: a batch whose messages are all of one key would take a round trip each.
pub async fn in_waves<F>(
    batch: Vec<RoutedMessage>,
    limit: Duration,
    mut publish: impl FnMut(Vec<RoutedMessage>) -> F,
) -> Vec<PublishOutcome>
where
    F: Future<Output = Vec<PublishOutcome>>,
{
    let mut outcomes = vec![PublishOutcome::NotSent; batch.len()];
    let mut lines: HashMap<(String, String), usize> = HashMap::new();
    let mut waves: Vec<Vec<(usize, Option<usize>, RoutedMessage)>> = Vec::new();
    let mut depth = Vec::new();
    for (place, outgoing) in batch.into_iter().enumerate() {
        let line = outgoing.message.key.as_ref().map(|key| {
            let known = lines.len();
            *lines.entry((key.clone(), outgoing.destination.clone())).or_insert(known)
        });
        let wave = match line {
            Some(line) => {
                depth.resize(depth.len().max(line + 1), 0);
                depth[line] += 1;
                depth[line] - 1
            }
            None => 0,
        };
        if waves.len() <= wave {
            waves.resize_with(wave + 1, Vec::new);
        }
        waves[wave].push((place, line, outgoing));
    }
    let mut stopped = vec![false; lines.len()];
    let begun = Instant::now();
    for (number, wave) in waves.into_iter().enumerate() {
        if number > 0 && begun.elapsed() >= limit {
            break;
        }
        let (mut places, mut sent) = (Vec::with_capacity(wave.len()), Vec::with_capacity(wave.len()));
        for (place, line, outgoing) in wave {
            if line.is_none_or(|line| !stopped[line]) {
                places.push((place, line));
                sent.push(outgoing);
            }
        }
        if sent.is_empty() {
            break;
        }
        let mut answers = publish(sent).await.into_iter();
        for (place, line) in places {
            // A driver that answers too few has not said what became of the rest.
            let outcome =
                answers.next().unwrap_or_else(|| PublishOutcome::Unknown("the sink did not answer".to_owned()));
            if let Some(line) = line.filter(|_| !outcome.is_confirmed()) {
                stopped[line] = true;
            }
            outcomes[place] = outcome;
        }
    }
    outcomes
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::Message;

    fn outgoing(key: Option<&str>, id: &str) -> RoutedMessage {
        let message = Message::new(id, "t", "{}");
        let message = key.map_or(message.clone(), |key| message.with_key(key));
        RoutedMessage { destination: "d".to_owned(), routing_key: String::new(), message }
    }

    /// Publishes; what each wave was, and the outcomes. Messages whose ids begin with `!` are refused.
    async fn publish(batch: Vec<RoutedMessage>, limit: Duration) -> (Vec<Vec<String>>, Vec<PublishOutcome>) {
        let waves = Mutex::new(Vec::new());
        let outcomes = in_waves(batch, limit, |wave| {
            let ids: Vec<String> = wave.iter().map(|outgoing| outgoing.message.id.clone()).collect();
            waves.lock().unwrap().push(ids.clone());
            std::future::ready(
                ids.iter()
                    .map(|id| {
                        if id.starts_with('!') {
                            PublishOutcome::Refused("no".to_owned())
                        } else {
                            PublishOutcome::Confirmed
                        }
                    })
                    .collect(),
            )
        })
        .await;
        (waves.into_inner().unwrap(), outcomes)
    }

    #[tokio::test]
    async fn a_key_has_one_message_in_a_wave_and_no_key_waits_for_nobody() {
        let batch = vec![
            outgoing(Some("a"), "a1"),
            outgoing(Some("b"), "b1"),
            outgoing(Some("a"), "a2"),
            outgoing(None, "n1"),
            outgoing(None, "n2"),
            outgoing(Some("a"), "a3"),
        ];
        let (waves, outcomes) = publish(batch, Duration::MAX).await;
        assert_eq!(waves, [vec!["a1", "b1", "n1", "n2"], vec!["a2"], vec!["a3"]]);
        assert!(outcomes.iter().all(PublishOutcome::is_confirmed));
    }

    #[tokio::test]
    async fn nothing_of_a_key_is_sent_after_one_that_was_not_confirmed() {
        let batch = vec![
            outgoing(Some("a"), "!a1"),
            outgoing(Some("b"), "b1"),
            outgoing(Some("a"), "a2"),
            outgoing(Some("b"), "b2"),
            outgoing(Some("a"), "a3"),
        ];
        let (waves, outcomes) = publish(batch, Duration::MAX).await;
        assert_eq!(waves, [vec!["!a1", "b1"], vec!["b2"]]);
        assert_eq!(
            outcomes,
            [
                PublishOutcome::Refused("no".to_owned()),
                PublishOutcome::Confirmed,
                PublishOutcome::NotSent,
                PublishOutcome::Confirmed,
                PublishOutcome::NotSent
            ]
        );
    }

    #[tokio::test]
    async fn no_further_wave_begins_after_the_limit() {
        let batch = vec![outgoing(Some("a"), "a1"), outgoing(Some("a"), "a2"), outgoing(Some("b"), "b1")];
        let (waves, outcomes) = publish(batch, Duration::ZERO).await;
        assert_eq!(waves, [vec!["a1", "b1"]]);
        assert_eq!(outcomes[1], PublishOutcome::NotSent);
    }

    #[tokio::test]
    async fn a_message_that_a_driver_does_not_answer_is_unknown() {
        let outcomes = in_waves(vec![outgoing(Some("a"), "1"), outgoing(Some("b"), "2")], Duration::MAX, |_| {
            std::future::ready(vec![PublishOutcome::Confirmed])
        });
        assert!(matches!(&outcomes.await[..], [PublishOutcome::Confirmed, PublishOutcome::Unknown(_)]));
    }
}
