//! Sends reports to the server: results in one lane, starts and progress in another.
//!
//! Two lanes, so that a result never waits for a call that only carries progress. Each lane has one call at a time, and
//! what is queued meanwhile goes together in the next. Results are sent until the server has them, or the process ends;
//! they are not kept on disk, because a task without a result runs again anyway.

use std::{sync::Arc, time::Duration};

use relais_handler::{Failure, Verdict};
use relais_protocol::worker::{OutcomeKind, TaskOutcome};

use tokio::time::Instant;

use crate::{
    backoff::{Backoff, Call},
    heartbeat::heed,
    report_queue::QueuedReport,
    run::Shared,
    slots::TaskKey,
    transport::News,
};

/// At most ten calls per second that only carry progress.
const PROGRESS_PAUSE: Duration = Duration::from_millis(100);

/// Sends results, until the report queue is closed and empty.
pub(crate) async fn tell_results(shared: Arc<Shared>) {
    let mut backoff = Backoff::default();
    // How many of the next results go alone, because one of them made the server refuse the whole call.
    let mut alone = 0_usize;
    while let Some(mut batch) = shared.report_queue.take_results(if alone > 0 { 1 } else { usize::MAX }).await {
        alone = alone.saturating_sub(batch.len());
        let news: Vec<_> = batch.iter().flat_map(told).collect();
        match shared.transport.report(&news).await {
            Ok(outcomes) => {
                shared.outage.worked(Call::Results);
                backoff.reset();
                let of_results =
                    news.iter().zip(&outcomes).filter(|((_, news), _)| matches!(news, News::Verdict { .. }));
                let outcomes: Vec<_> = of_results.map(|(_, outcome)| outcome).collect();
                for (report, outcome) in batch.into_iter().zip(outcomes) {
                    complete(&shared, report, outcome);
                }
            }
            Err(error) if error.is_about_the_content() => {
                if batch.len() > 1 {
                    alone = batch.len();
                    shared.report_queue.put_back_results(batch);
                } else {
                    batch.into_iter().for_each(|report| unwanted(&shared, report, &error.to_string()));
                }
            }
            Err(error) => {
                shared.outage.failed(Call::Results, &error);
                batch.iter_mut().for_each(|report| report.sent_before = true);
                shared.report_queue.put_back_results(batch);
                pause(&shared, &mut backoff).await;
            }
        }
    }
}

/// The messages of an ended task: its last progress, if it is unsent, then its result.
fn told(report: &QueuedReport) -> impl Iterator<Item = (&TaskKey, News<'_>)> {
    let result = News::Verdict { verdict: &report.verdict, untold: report.untold };
    report.progress.map(News::Progress).into_iter().chain([result]).map(|news| (&report.key, news))
}

/// Sends starts and progress, until it is dropped.
pub(crate) async fn tell_notes(shared: Arc<Shared>) {
    let mut backoff = Backoff::default();
    let mut progress_from = Instant::now();
    loop {
        let batch = shared.report_queue.take_notes(progress_from).await;
        let starts = batch.iter().filter(|(_, note)| note.started).map(|(key, _)| (key, News::Started));
        let progress = batch.iter().filter_map(|(key, note)| Some((key, News::Progress(note.progress?))));
        let news: Vec<_> = starts.chain(progress).collect();
        match shared.transport.report(&news).await {
            Ok(outcomes) => {
                backoff.reset();
                shared.report_queue.told_notes(&batch);
                heed(&shared, news.iter().map(|(key, _)| *key), &outcomes);
                progress_from = Instant::now() + PROGRESS_PAUSE;
            }
            Err(error) => {
                tracing::debug!(error = error.chain(), "progress could not be sent");
                // What the server refuses now, it will refuse later; newer progress will come.
                if error.is_about_the_content() {
                    shared.report_queue.told_notes(&batch);
                } else {
                    shared.report_queue.put_back_notes(batch, |key| shared.slots.is_running(key));
                }
                tokio::time::sleep(backoff.next()).await;
            }
        }
    }
}

fn complete(shared: &Shared, report: QueuedReport, outcome: &TaskOutcome) {
    match outcome.outcome {
        OutcomeKind::Accepted | OutcomeKind::Unchanged => count(shared, &report),
        // Ended by this very message: the first call arrived, only its answer did not.
        OutcomeKind::Ended if report.sent_before => count(shared, &report),
        OutcomeKind::Cancelled | OutcomeKind::Ended | OutcomeKind::Lost | OutcomeKind::NotFound => {
            tracing::info!(task_id = %report.key.task_id, outcome = ?outcome.outcome, "the result came too late");
            shared.counts(|counts| counts.lost += 1);
        }
        OutcomeKind::Rejected => {
            return unwanted(shared, report, outcome.reason.as_deref().unwrap_or("it was not understood"));
        }
    }
    shared.slots.release(&report.key);
}

fn count(shared: &Shared, report: &QueuedReport) {
    shared.counts(|counts| match report.verdict {
        Verdict::Success(_) => counts.done += 1,
        Verdict::Failure(_) => counts.failed += 1,
    });
}

/// A result that the server will never accept, e.g. because of its size, becomes a failure that says so: without an end
/// the task would run again, and end here again.
fn unwanted(shared: &Shared, mut report: QueuedReport, reason: &str) {
    if report.substitute {
        tracing::error!(task_id = %report.key.task_id, reason, "the server takes neither the result nor its failure");
        shared.counts(|counts| counts.unsent += 1);
        shared.slots.release(&report.key);
        return;
    }
    tracing::warn!(task_id = %report.key.task_id, reason, "the server does not take the result");
    let message = format!("the server did not take the worker's result: {reason}");
    report.verdict = Verdict::Failure(Failure { kind: Some("result".to_owned()), ..Failure::new(message) });
    report.substitute = true;
    shared.report_queue.put_back_results(vec![report]);
}

/// Waits before the next try. When the worker stops, the next try is at once, because time is short.
async fn pause(shared: &Shared, backoff: &mut Backoff) {
    let wait = tokio::time::sleep(backoff.next());
    let closing = shared.report_queue.closing();
    if closing.is_cancelled() {
        return wait.await;
    }
    tokio::select! {
        () = wait => {}
        () = closing.cancelled() => backoff.reset(),
    }
}
