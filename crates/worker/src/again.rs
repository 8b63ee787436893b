//! How long a task that asks for another time is kept before it is returned.
//!
//! If it were returned at once, it would be claimed at once, and a task that has to wait for something would keep the
//! worker, the server and the broker busy. The number of returns is known from its attempt where there is one, and
//! remembered otherwise.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use crate::slots::TaskKey;

const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(30);

/// How many tasks are remembered; others only wait less long than they should.
const REMEMBERED: usize = 10_000;

/// How often tasks were returned here.
#[derive(Debug, Default)]
pub(crate) struct Agains(Mutex<HashMap<Arc<str>, u32>>);

impl Agains {
    /// How long to keep a task before it is returned once more.
    pub fn pause(&self, key: &TaskKey) -> Duration {
        let mut times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if times.len() >= REMEMBERED && !times.contains_key(&key.task_id) {
            times.clear();
        }
        let here = times.entry(key.task_id.clone()).or_default();
        let before = (*here).max(key.attempt.unwrap_or(1).saturating_sub(1));
        *here += 1;
        FIRST.saturating_mul(2_u32.saturating_pow(before)).min(LONGEST)
    }

    /// A task has ended.
    pub fn forget(&self, key: &TaskKey) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&key.task_id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pauses(agains: &Agains, attempts: impl IntoIterator<Item = Option<u32>>) -> Vec<u64> {
        let millis = |attempt| {
            let key = TaskKey { task_id: "t".into(), attempt, delivery: 0 };
            u64::try_from(agains.pause(&key).as_millis()).unwrap()
        };
        attempts.into_iter().map(millis).collect()
    }

    #[test]
    fn the_redelivery_backoff_of_a_task_grows() {
        let agains = Agains::default();
        assert_eq!(pauses(&agains, [None; 8]), [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000]);
        agains.forget(&TaskKey { task_id: "t".into(), attempt: None, delivery: 9 });
        assert_eq!(pauses(&agains, [None]), [500]);
    }

    #[test]
    fn the_redelivery_backoff_counts_attempts_of_other_workers() {
        assert_eq!(pauses(&Agains::default(), [Some(1), Some(2), Some(7), Some(u32::MAX)]), [500, 1000, 30000, 30000]);
    }
}
