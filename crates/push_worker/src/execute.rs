//! One execution: the handler is called once, and what follows from its error is seen to.
//!
//! Runs in a task of its own and never holds the delivery: a task that is cut off must not take it along.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt;
use relais_dedup::{Dedup, DedupError, Outcome};
use tokio::time::{Instant, timeout};

use crate::{
    Consumer, ErrorDecision, FailedMessage, Handler, RetriedBy, SubscriberError, WorkerSettings,
    error::{TimedOut, chain, panic_text},
    stats::WorkerProgress,
    telemetry::WorkerMetrics,
};

/// What handlers' tasks need.
pub(crate) struct Context<C: Consumer> {
    pub(crate) consumer: C,
    pub(crate) handler: Handler<C::Message>,
    pub(crate) settings: WorkerSettings<C::Message>,
    pub(crate) progress: Arc<WorkerProgress>,
    pub(crate) metrics: WorkerMetrics,
}

/// How an execution ended.
pub(crate) enum Ended {
    Well,
    /// To be handled again after a pause. Whether that counts as a retry.
    Again {
        pause: Duration,
        counts: bool,
    },
    /// The broker brings it again.
    RetriedByBroker,
    DeadLettered,
    Dropped,
    /// It failed for good, and could not even be kept as a dead letter.
    Failed,
}

/// Runs the handler once and sees to its failure.
pub(crate) async fn execute<C: Consumer>(context: Arc<Context<C>>, message: Arc<C::Message>, retries: u32) -> Ended {
    let Context { progress, metrics, settings, .. } = &*context;
    let begin = Instant::now();
    let result = match &settings.dedup {
        None => call(&context, &message).await,
        Some(dedup) => match call_once(dedup, &context, &message).await {
            Ok(Handled::Now) => Ok(()),
            Ok(Handled::Before) => return Ended::Well,
            Err(error) => Err(error),
        },
    };
    if let Err(error) = &result
        && error.is_busy()
    {
        let id = context.consumer.id(&message);
        tracing::debug!(worker = settings.name, %id, %error, "a message is busy; again later");
        return Ended::Again { pause: settings.busy_pause, counts: false };
    }
    let took = begin.elapsed();
    progress.executed(took, result.is_ok());
    metrics.duration.record(took);
    match result {
        Ok(()) => {
            metrics.processed.increment(1);
            Ended::Well
        }
        Err(error) => {
            metrics.errors.increment(1);
            failed(&context, &message, &error, retries).await
        }
    }
}

/// When a message was handled.
enum Handled {
    Now,
    Before,
}

/// Calls the handler unless the message was handled before.
async fn call_once<C: Consumer>(
    dedup: &Dedup,
    context: &Context<C>,
    message: &Arc<C::Message>,
) -> Result<Handled, SubscriberError> {
    let (id, worker) = (context.consumer.id(message), context.settings.name.as_str());
    match dedup.once(&id, || call(context, message)).await {
        Ok(Outcome::Done(())) => Ok(Handled::Now),
        Ok(Outcome::AlreadyDone) => {
            tracing::debug!(worker, %id, "a message was handled before");
            Ok(Handled::Before)
        }
        Ok(Outcome::Busy { .. }) => Err(SubscriberError::busy("it is being handled elsewhere")),
        Ok(Outcome::Failed(error)) => Err(error),
        // It will never have another one.
        Err(error @ DedupError::Id { .. }) => Err(SubscriberError::fatal(error)),
        // Nobody knows whether it was handled. That is not the message's fault: it waits, for as long as that takes.
        Err(error) => {
            tracing::warn!(worker, %id, error = chain(&error), "a message waits: nobody knows whether it was handled before");
            Err(SubscriberError::busy(error))
        }
    }
}

/// The one place in which a message meets its handler.
async fn call<C: Consumer>(context: &Context<C>, message: &Arc<C::Message>) -> Result<(), SubscriberError> {
    // Calling it may panic as well as awaiting it.
    let handled = AssertUnwindSafe(async { (context.handler)(Arc::clone(message)).await }).catch_unwind();
    let caught = match context.settings.handler_timeout {
        None => handled.await,
        Some(limit) => match timeout(limit, handled).await {
            Ok(caught) => caught,
            Err(_) => return Err(SubscriberError::retryable(TimedOut(limit))),
        },
    };
    caught.unwrap_or_else(|panic| Err(SubscriberError::panicked(&*panic)))
}

async fn failed<C: Consumer>(
    context: &Context<C>,
    message: &Arc<C::Message>,
    error: &SubscriberError,
    retries: u32,
) -> Ended {
    let Context { consumer, settings, .. } = context;
    let worker = settings.name.as_str();
    let retry = (error.is_retryable() && retries < settings.retries).then_some(retries + 1);
    let failed = FailedMessage { message, error, worker, retries, retry };
    let (id, channel) = (consumer.id(message), consumer.channel(message));
    match decide(settings, &failed).await {
        ErrorDecision::Retry => {
            tracing::debug!(worker, %id, channel, %error, retries, "a handler failed; again later");
            let pause = settings.retry_pause(retries + 1);
            match consumer.retry(&failed, pause).await {
                Ok(RetriedBy::Broker) => return Ended::RetriedByBroker,
                Ok(RetriedBy::Worker) => {}
                Err(refusal) => {
                    let refusal = chain(&*refusal);
                    tracing::warn!(worker, %id, channel, refusal, "the broker does not take a message for its retry; it waits here");
                }
            }
            Ended::Again { pause, counts: true }
        }
        ErrorDecision::Drop => {
            tracing::warn!(worker, %id, channel, %error, retries, "a handler failed, and the error hook drops its message");
            context.progress.dropped();
            Ended::Dropped
        }
        ErrorDecision::DeadLetter | ErrorDecision::BySettings => {
            tracing::warn!(worker, %id, channel, %error, retries, "a handler failed for good");
            match consumer.dead_letter(&failed).await {
                Ok(new) => {
                    if new {
                        context.progress.dead_lettered();
                    }
                    Ended::DeadLettered
                }
                Err(error) => {
                    let error = chain(&*error);
                    tracing::error!(worker, %id, channel, error, "a message could not be kept as dead letter");
                    Ended::Failed
                }
            }
        }
    }
}

/// What the error hook wants, with the settings where it leaves it to them.
async fn decide<M: Send + Sync + 'static>(
    settings: &WorkerSettings<M>,
    failed: &FailedMessage<'_, M>,
) -> ErrorDecision {
    let asked = AssertUnwindSafe(settings.hooks.error(failed)).catch_unwind().await;
    let decision = asked.unwrap_or_else(|panic| {
        tracing::error!(
            worker = failed.worker,
            panic = panic_text(&*panic),
            "an error hook panicked; the settings decide"
        );
        ErrorDecision::BySettings
    });
    match (decision, failed.retry) {
        (ErrorDecision::BySettings, Some(_)) => ErrorDecision::Retry,
        (ErrorDecision::BySettings, None) => ErrorDecision::DeadLetter,
        (decision, _) => decision,
    }
}
