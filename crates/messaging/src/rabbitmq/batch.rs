//! Publishing, many messages at a time: all are sent in one channel without waiting for each other, then all
//! confirmations are awaited, and each message gets its own answer.

use std::{
    collections::{HashSet, VecDeque},
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use lapin::{Confirmation, message::BasicReturnMessage};
use tokio::time::{Instant, timeout_at};

use super::{
    Broker, BrokerState, Publish, PublishError,
    error::{LOST, soft, words},
    link::LentChannel,
    publish::failure,
};

type Answer = Result<(), PublishError>;

/// A message and its place in what was asked.
type Numbered = (usize, Publish);

impl Broker {
    /// Publishes a message and waits until the broker has confirmed it.
    ///
    /// Any number may be called at once. A call that is dropped may or may not have sent its message.
    pub async fn publish(&self, message: Publish) -> Result<(), PublishError> {
        let answer = self.send(vec![message]).await.pop();
        answer.unwrap_or_else(|| Err(PublishError::Away { why: LOST.to_owned() }))
    }

    /// Publishes messages, all at once, and waits until the broker has confirmed them or said why not. There is an
    /// answer for each message, in their order, which is also their order in a queue.
    ///
    /// Each must have a [`message_id`](Publish::message_id) that no other one in `messages` has: it is how the broker
    /// says which one it could not route. Those that do not are refused.
    ///
    /// They share one channel. If one of them makes the broker close it (there is no such exchange, it is too large),
    /// those that were not confirmed by then are sent again, one at a time, and may arrive twice.
    pub async fn publish_all(&self, messages: Vec<Publish>) -> Vec<Result<(), PublishError>> {
        let mut names = HashSet::with_capacity(messages.len());
        let known = messages.iter().map(|message| message.message_id.as_deref().is_some_and(|id| names.insert(id)));
        let known: Vec<bool> = known.collect();
        if known.iter().all(|known| *known) {
            return self.send(messages).await;
        }
        let known_ones = messages.into_iter().zip(&known).filter(|(_, known)| **known);
        let mut answers = self.send(known_ones.map(|(message, _)| message).collect()).await.into_iter();
        let why = "it has no message id, or that of another message of its batch";
        let refused = || Err(PublishError::Refused { why: why.to_owned() });
        known.into_iter().map(|known| known.then(|| answers.next()).flatten().unwrap_or_else(refused)).collect()
    }

    async fn send(&self, messages: Vec<Publish>) -> Vec<Answer> {
        let deadline = Instant::now() + self.options().publish_timeout;
        let mut answers: Vec<Option<Answer>> = messages.iter().map(|_| None).collect();
        let mut batches = VecDeque::from([messages.into_iter().enumerate().collect::<Vec<_>>()]);
        let mut rest = PublishError::Away { why: LOST.to_owned() };
        while let Some(messages) = batches.pop_front() {
            if messages.is_empty() {
                continue;
            }
            match self.send_batch(messages, deadline, &mut answers).await {
                Ok(again) => batches.extend(again.into_iter().map(|message| vec![message])),
                Err(error) => rest = error,
            }
        }
        answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(rest.clone()))).collect()
    }

    /// Sends messages in one channel, and writes down what is known of them. Gives those that should be sent again by
    /// themselves, or what to say of those that got no answer.
    async fn send_batch(
        &self,
        messages: Vec<Numbered>,
        deadline: Instant,
        answers: &mut [Option<Answer>],
    ) -> Result<Vec<Numbered>, PublishError> {
        let lending = timeout_at(deadline, self.lend(messages, answers)).await;
        let (lent, messages) = lending.map_err(|_| self.late())??;
        let mut batch = Batch::send(lent, messages, answers);
        let confirmed = timeout_at(deadline, batch.confirmed()).await;
        batch.sweep();
        let again = batch.answer(answers);
        match confirmed {
            Err(_) => Err(self.late()),
            // Also if the connection was lost over it: what closed the channel would do so again.
            Ok(None) if again.is_empty() => Err(PublishError::Away { why: LOST.to_owned() }),
            Ok(_) => Ok(again),
        }
    }

    /// A channel for messages; and those of them that have an exchange, if there are several. The broker would close
    /// the channel over the others, to the disadvantage of all.
    async fn lend(
        &self,
        mut messages: Vec<Numbered>,
        answers: &mut [Option<Answer>],
    ) -> Result<(LentChannel, Vec<Numbered>), PublishError> {
        let link = self.link().await?;
        let lending = link.unless_gone(async {
            let mut missing = HashSet::new();
            if messages.len() > 1 {
                for (_, Publish { exchange, .. }) in &messages {
                    if !missing.contains(exchange) && !link.has_exchange(exchange).await? {
                        missing.insert(exchange.clone());
                    }
                }
            }
            Ok((link.lend().await?, missing))
        });
        let lost = || PublishError::Away { why: LOST.to_owned() };
        let lent: lapin::Result<_> = lending.await.ok_or_else(lost)?;
        let (lent, missing) = lent.map_err(|error| PublishError::Away { why: words(&error) })?;
        if !missing.is_empty() {
            messages.retain(|(number, Publish { exchange, .. })| {
                let exists = !missing.contains(exchange);
                if !exists {
                    answers[*number] = Some(Err(PublishError::NoExchange { exchange: exchange.clone() }));
                }
                exists
            });
        }
        Ok((lent, messages))
    }

    /// Why there is no answer in time.
    fn late(&self) -> PublishError {
        match self.state() {
            BrokerState::Blocked { why, .. } => PublishError::Blocked { why },
            BrokerState::Away { why, .. } => PublishError::Away { why },
            BrokerState::Idle | BrokerState::Connected { .. } => PublishError::Late(self.options().publish_timeout),
        }
    }
}

/// One message on its way. Owns all that it needs, so that it can outlive whoever waits for it.
type UnderWay = Pin<Box<dyn Future<Output = (Publish, lapin::Result<Confirmation>)> + Send>>;

/// Messages that share a channel.
///
/// The broker returns a message before it confirms it. The library puts what was returned in a row, and hands out one
/// with each confirmation. So when every message is confirmed, all that was returned is known; before that, a
/// confirmation that came with nothing says that its message was not returned unknown to us, and one that came with
/// another's says nothing.
struct Batch {
    /// Here until the batch is over.
    lent: Option<LentChannel>,
    /// In the order in which they were sent.
    under_way: VecDeque<(usize, UnderWay)>,
    confirmed: Vec<Confirmed>,
    failed: Vec<(Numbered, lapin::Error)>,
    /// The names of those that no queue took.
    returned: HashSet<Option<String>>,
    /// How many were sent.
    sent: usize,
}

struct Confirmed {
    number: usize,
    message: Publish,
    acked: bool,
    /// It came with nothing.
    bare: bool,
}

impl Batch {
    /// Hands all messages to the connection, in their order. Those that can not be sent are answered at once.
    fn send(lent: LentChannel, messages: Vec<Numbered>, answers: &mut [Option<Answer>]) -> Self {
        let mut batch = Self {
            under_way: VecDeque::with_capacity(messages.len()),
            confirmed: Vec::with_capacity(messages.len()),
            failed: Vec::new(),
            returned: HashSet::new(),
            sent: 0,
            lent: None,
        };
        for (number, message) in messages {
            let prepared = match message.prepare() {
                Ok(prepared) => prepared,
                Err(error) => {
                    answers[number] = Some(Err(error));
                    continue;
                }
            };
            batch.sent += 1;
            let channel = lent.channel().clone();
            let mut sending: UnderWay = Box::pin(async move {
                let confirmation = prepared.send(&channel, &message.body).await;
                (message, confirmation)
            });
            match poll_once(&mut sending) {
                Poll::Pending => batch.under_way.push_back((number, sending)),
                Poll::Ready((message, outcome)) => batch.note(number, message, outcome),
            }
        }
        batch.lent = Some(lent);
        batch
    }

    /// Waits for all confirmations. `None` if the connection is gone before they are there.
    async fn confirmed(&mut self) -> Option<()> {
        let link = Arc::clone(self.lent.as_ref()?.link());
        link.unless_gone(async {
            while let Some((number, sending)) = self.under_way.front_mut() {
                let (number, (message, outcome)) = (*number, sending.await);
                self.under_way.pop_front();
                self.note(number, message, outcome);
            }
        })
        .await
    }

    /// Takes what is there already, without waiting.
    fn sweep(&mut self) {
        for (number, mut sending) in std::mem::take(&mut self.under_way) {
            match poll_once(&mut sending) {
                Poll::Pending => self.under_way.push_back((number, sending)),
                Poll::Ready((message, outcome)) => self.note(number, message, outcome),
            }
        }
        // A confirmation that was there in the first round may belong to a message that was returned with one that was
        // not there yet when it was that one's turn. It is now.
        for (number, mut sending) in std::mem::take(&mut self.under_way) {
            match poll_once(&mut sending) {
                Poll::Pending => self.under_way.push_back((number, sending)),
                // Too late for itself: the same could be said of it.
                Poll::Ready((_, Ok(confirmation))) => self.note_returned(confirmation.take_message()),
                Poll::Ready((_, Err(_))) => {}
            }
        }
    }

    fn note(&mut self, number: usize, message: Publish, outcome: lapin::Result<Confirmation>) {
        match outcome {
            Ok(confirmation) => {
                let acked = confirmation.is_ack();
                let returned = confirmation.take_message();
                self.confirmed.push(Confirmed { number, message, acked, bare: returned.is_none() });
                self.note_returned(returned);
            }
            Err(error) => self.failed.push(((number, message), error)),
        }
    }

    fn note_returned(&mut self, message: Option<BasicReturnMessage>) {
        if let Some(message) = message {
            self.returned.insert(message.properties.message_id().as_ref().map(ToString::to_string));
        }
    }

    /// Writes down what is known for sure. If the broker closed the channel over one of them, gives those of which
    /// nothing is known: each should be sent by itself.
    fn answer(mut self, answers: &mut [Option<Answer>]) -> Vec<Numbered> {
        let complete = self.confirmed.len() == self.sent;
        let closed = self.failed.iter().any(|(_, error)| soft(error).is_some());
        let mut again = Vec::new();
        for Confirmed { number, message, acked, bare } in std::mem::take(&mut self.confirmed) {
            answers[number] = if self.returned.contains(&message.message_id) {
                let Publish { exchange, routing_key, .. } = message;
                Some(Err(PublishError::Unroutable { exchange, routing_key }))
            } else if !acked {
                Some(Err(PublishError::Refused { why: "a queue is full, or could not store it".to_owned() }))
            } else if complete || bare || !message.mandatory {
                Some(Ok(()))
            } else {
                again.push((number, message));
                None
            };
        }
        for ((number, message), error) in std::mem::take(&mut self.failed) {
            if self.sent == 1 {
                answers[number] = Some(Err(failure(&message, &error)));
            } else if closed {
                again.push((number, message));
            } else {
                answers[number] = Some(Err(PublishError::Away { why: words(&error) }));
            }
        }
        if !closed {
            again.clear();
        }
        again.sort_unstable_by_key(|(number, _)| *number);
        again
    }
}

impl Drop for Batch {
    /// A channel in which something is still to be sent must stay open until it is: its end would overtake the rest,
    /// and the broker would close the whole connection over messages in a channel that does not exist.
    fn drop(&mut self) {
        let Some(lent) = self.lent.take() else { return };
        let under_way = std::mem::take(&mut self.under_way);
        if under_way.is_empty() {
            if self.failed.is_empty() {
                lent.give_back();
            }
        } else if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let link = Arc::clone(lent.link());
                link.unless_gone(async {
                    for (_, sending) in under_way {
                        let _ = sending.await;
                    }
                })
                .await;
            });
        }
    }
}

fn poll_once<T>(sending: &mut Pin<Box<dyn Future<Output = T> + Send>>) -> Poll<T> {
    sending.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}
