//! Removes U+0000 from texts, so that every database stores the same.

use relais_core::{Event, NewTask};

/// PostgreSQL cannot store U+0000 in a text, and one such text would fail the whole batch it came with.
pub(crate) fn without_nul(text: &mut String) {
    if text.contains('\0') {
        *text = text.replace('\0', "\u{fffd}");
    }
}

/// The texts of a submission; its request is JSON, where U+0000 is written as an escape.
pub(crate) fn submission(task: &mut NewTask) {
    task.correlation_id.iter_mut().for_each(without_nul);
    task.idempotency.iter_mut().for_each(|given| without_nul(&mut given.key));
    task.terms.unique.iter_mut().for_each(|unique| without_nul(&mut unique.key));
}

/// The texts of an event.
pub(crate) fn event(event: &mut Event) {
    match event {
        Event::Claimed { worker_host, .. }
        | Event::Taken { worker_host }
        | Event::Started { worker_host, .. }
        | Event::Delivered { worker_host, .. }
        | Event::GivenBack { worker_host } => {
            worker_host.iter_mut().for_each(without_nul);
        }
        Event::Failed { failure, worker_host, .. } => {
            without_nul(&mut failure.message);
            failure.kind.iter_mut().chain(&mut failure.trace).chain(worker_host).for_each(without_nul);
        }
        _ => {}
    }
}
