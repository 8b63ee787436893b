//! Marks of published rows that are written while the next rows are published.
//!
//! Rows are published batch after batch, and marked batch after batch, but the marks of one batch do not hold up the messages
//! of the next. At most one batch waits for its marks. It does not publish, and does not confirm anything to the slot itself.

use tokio_util::sync::ReusableBoxFuture;

use crate::OutboxError;

/// The marks that are being written, and how far the slot may be told.
#[derive(Default)]
pub(crate) struct Marking<'a> {
    running: Option<ReusableBoxFuture<'a, Result<(), OutboxError>>>,
    /// All of the log up to here is marked once the marks are written.
    delivered: Option<u64>,
    /// All of the log up to here is marked.
    marked: Option<u64>,
}

impl<'a> Marking<'a> {
    /// Begins to write marks, after those before ([`Self::settle`]). They are written only while somebody waits for them.
    pub(crate) fn begin(&mut self, marks: impl Future<Output = Result<(), OutboxError>> + Send + 'a) {
        debug_assert!(self.running.is_none(), "marks are written one batch after the other");
        self.running = Some(ReusableBoxFuture::new(marks));
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Waits until the marks are written. Nothing is lost if it is dropped before.
    pub(crate) async fn settle(&mut self) -> Result<(), OutboxError> {
        let Some(running) = &mut self.running else { return Ok(()) };
        let written = running.get_pin().await;
        self.running = None;
        // What is not marked must be sent again: the slot is not told of it, nor of what is behind it.
        let delivered = self.delivered.take();
        written?;
        self.marked = delivered.or(self.marked);
        Ok(())
    }

    /// All of the log up to here was published, or is safe in the table; its marks may be on their way.
    pub(crate) fn delivered(&mut self, lsn: Option<u64>) {
        let until = if self.is_running() { &mut self.delivered } else { &mut self.marked };
        *until = lsn.or(*until);
    }

    /// How far the slot may be told, if that is more than before.
    pub(crate) fn take_marked(&mut self) -> Option<u64> {
        self.marked.take()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn the_slot_is_told_only_of_what_is_marked() {
        let (marks, written) = tokio::sync::oneshot::channel();
        let mut marking = Marking::default();
        marking.delivered(Some(10));
        assert_eq!(marking.take_marked(), Some(10));
        marking.begin(written.map(|_| Ok(())));
        marking.delivered(Some(20));
        marking.delivered(None);
        assert!(marking.settle().now_or_never().is_none());
        assert_eq!(marking.take_marked(), None);
        assert!(marks.send(()).is_ok());
        assert!(matches!(marking.settle().now_or_never(), Some(Ok(()))));
        assert_eq!(marking.take_marked(), Some(20));
    }

    #[test]
    fn the_slot_is_not_told_of_marks_that_failed() {
        let mut marking = Marking::default();
        marking.begin(std::future::ready(Err(OutboxError::SlotGone)));
        marking.delivered(Some(20));
        assert!(matches!(marking.settle().now_or_never(), Some(Err(OutboxError::SlotGone))));
        assert_eq!(marking.take_marked(), None);
        assert!(!marking.is_running());
    }
}
