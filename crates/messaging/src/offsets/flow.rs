//! When a partition has enough in flight.

use super::Watermark;

/// How much of a partition may be in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FlowLimits {
    /// Records that are neither done nor parked.
    pub(crate) unfinished: usize,
    /// Records from the watermark on, those that are done among them: what a crash repeats at most.
    pub(crate) ahead: usize,
}

/// Whether a partition is read. It is paused when it reaches a limit, and goes on when it is at half of both: a fetch that is
/// paused begins anew, so it must not happen for each record.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    paused: bool,
    /// Something else holds it: its parked records are being loaded.
    held: bool,
}

/// What is to be done about the fetching of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlowChange {
    Pause,
    Resume,
}

impl Flow {
    /// One that is held at the beginning.
    pub(crate) fn held() -> Self {
        Self { paused: false, held: true }
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }

    pub(crate) fn is_held(&self) -> bool {
        self.held
    }

    /// Nothing holds it any more.
    pub(crate) fn release(&mut self) -> Option<FlowChange> {
        let was = std::mem::replace(&mut self.held, false);
        (was && !self.paused).then_some(FlowChange::Resume)
    }

    /// Looks at what is in flight.
    pub(crate) fn look(&mut self, watermark: &Watermark, limits: FlowLimits) -> Option<FlowChange> {
        let (unfinished, ahead) = (watermark.unfinished(), watermark.ahead());
        let paused = if self.paused {
            unfinished > limits.unfinished / 2 || ahead > limits.ahead / 2
        } else {
            unfinished >= limits.unfinished || ahead >= limits.ahead
        };
        let changed = paused != self.paused;
        self.paused = paused;
        (changed && !self.held).then_some(if paused { FlowChange::Pause } else { FlowChange::Resume })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: FlowLimits = FlowLimits { unfinished: 4, ahead: 10 };

    #[test]
    fn a_partition_is_paused_at_its_limit_and_goes_on_at_half_of_it() {
        let (mut flow, mut watermark) = (Flow::default(), Watermark::default());
        let mut changes = Vec::new();
        for offset in 0..4 {
            watermark.deliver(offset);
            changes.extend(flow.look(&watermark, LIMITS));
        }
        assert_eq!(changes, [FlowChange::Pause]);
        watermark.done(0);
        assert_eq!(flow.look(&watermark, LIMITS), None);
        watermark.done(1);
        assert_eq!(flow.look(&watermark, LIMITS), Some(FlowChange::Resume));
    }

    #[test]
    fn one_slow_record_bounds_what_a_crash_repeats() {
        let (mut flow, mut watermark) = (Flow::default(), Watermark::default());
        watermark.deliver(0);
        let mut offset = 0;
        while flow.look(&watermark, LIMITS).is_none() {
            offset += 1;
            watermark.deliver(offset);
            watermark.done(offset);
        }
        assert_eq!((watermark.ahead(), watermark.unfinished()), (10, 1));
        watermark.done(0);
        assert_eq!(flow.look(&watermark, LIMITS), Some(FlowChange::Resume));
    }

    #[test]
    fn a_partition_that_is_held_is_resumed_once() {
        let (mut flow, watermark) = (Flow::held(), Watermark::default());
        assert_eq!(flow.look(&watermark, LIMITS), None);
        assert_eq!(flow.release(), Some(FlowChange::Resume));
        assert_eq!(flow.release(), None);
    }
}
