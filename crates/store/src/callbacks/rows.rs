//! What the rows of callbacks mean.

use std::time::Duration;

use relais_core::{
    About, CallbackAttempt, CallbackEvent, CallbackId, CallbackRecord, CallbackStatus, CallbackVerdict, DueCallback,
    LaneHead, Status,
};

use crate::{
    batches::statements::batch,
    callbacks::statements::Floor,
    row::{Columns, callback, client_key, corrupt, millis, narrow, notification, service_key, unsigned},
    session::Result,
    tasks::statements::task,
};

pub(crate) fn callback_record(row: &impl Columns) -> Result<CallbackRecord> {
    let event = row.small("cb_event")?;
    Ok(CallbackRecord {
        row: row.big("cb_id")?,
        id: CallbackId { task_id: row.task_id("task_id")?, revision: unsigned(row.big("cb_revision")?) },
        service: service_key(row)?,
        client: client_key(row)?,
        event: CallbackEvent::from_code(event).ok_or_else(|| corrupt(format!("callback event {event}")))?,
        status: notification(row.small("cb_status")?)?,
        attempts: narrow(row.int("cb_attempts")?),
        created: row.moment("cb_created")?,
        due: row.moment_if_any("cb_due")?,
        ended: row.moment_if_any("cb_ended")?,
        callback: callback(row)?.ok_or_else(|| corrupt("a callback of a task that asked for none"))?,
    })
}

/// A callback that was taken, with its task as it was when it came to be.
pub(crate) fn due_callback(row: &impl Columns) -> Result<DueCallback> {
    let record = callback_record(row)?;
    let mut task = task(row)?;
    if !record.event.is_end() {
        task.state.status = Status::InProgress;
        task.state.started = row.moment_if_any("cb_started")?;
        task.state.progress = row.real_if_any("cb_progress")?.unwrap_or(0.0);
        task.state.ended = None;
        (task.error_message, task.error_kind, task.error_trace) = (None, None, None);
    } else if let Some(attempt) = row.int_if_any("past_attempt")? {
        // It was done once more since: what is told is what happened.
        task.state.status = match record.event {
            CallbackEvent::Success => Status::Success,
            CallbackEvent::Failure => Status::Failure,
            _ => Status::Cancelled,
        };
        task.state.attempt = narrow(attempt);
        task.state.started = row.moment_if_any("cb_started")?;
        task.state.progress = row.real_if_any("cb_progress")?.unwrap_or(0.0);
        task.state.ended = row.moment_if_any("past_ended")?;
        task.state.worker_host = row.text_if_any("past_host")?;
        task.error_message = row.text_if_any("past_message")?;
        task.error_kind = row.text_if_any("past_kind")?;
        task.error_trace = row.text_if_any("past_trace")?;
    }
    held_callback(row, record, About::Task(Box::new(task)))
}

/// A callback that was taken, and tells of a batch.
pub(crate) fn due_batch_callback(row: &impl Columns) -> Result<DueCallback> {
    held_callback(row, callback_record(row)?, About::Batch(Box::new(batch(row)?)))
}

fn held_callback(row: &impl Columns, record: CallbackRecord, about: About) -> Result<DueCallback> {
    Ok(DueCallback { tries: narrow(row.int("cb_tries")?).saturating_sub(1), now: row.moment("now")?, record, about })
}

pub(crate) fn lane_head(row: &impl Columns) -> Result<LaneHead> {
    Ok(LaneHead { lane: row.big("lane")?, due: row.moment("due")?, parked_until: row.moment_if_any("parked_until")? })
}

pub(crate) fn floor_of(row: &impl Columns) -> Result<Floor> {
    Ok(Floor { row: row.big("id")?, created: row.moment("created")?, looked: unsigned(row.big("looked")?) })
}

/// A try, and the callback it belongs to.
pub(crate) fn attempt_of(row: &impl Columns) -> Result<(i64, CallbackAttempt)> {
    let attempt = CallbackAttempt {
        number: narrow(row.int("number")?),
        at: row.moment("at")?,
        duration: millis(row.big("duration_ms")?),
        status: row.int_if_any("http_status")?.and_then(|status| u16::try_from(status).ok()),
        error: row.text_if_any("error")?,
        answer: row.text_if_any("answer")?,
    };
    Ok((row.big("callback")?, attempt))
}

/// What a verdict makes of a callback's row.
pub(crate) struct Settled {
    pub status: CallbackStatus,
    /// How long until it is due again, if it is still to be told.
    pub wait: Duration,
}

pub(crate) fn settled(verdict: CallbackVerdict) -> Settled {
    let (status, wait) = match verdict {
        CallbackVerdict::Delivered => (CallbackStatus::Success, Duration::ZERO),
        CallbackVerdict::GivenUp | CallbackVerdict::Gone => (CallbackStatus::Failure, Duration::ZERO),
        CallbackVerdict::Again(wait) => (CallbackStatus::Pending, wait),
        CallbackVerdict::Returned => (CallbackStatus::Pending, Duration::ZERO),
    };
    Settled { status, wait }
}
