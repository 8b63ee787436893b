//! Notifies a page that what it shows may have changed, at most once a second, and never while nothing happens.

use std::time::Duration;

use relais_core::TaskId;
use tokio::{sync::watch, time::Instant};

use crate::{
    Engine, EngineError,
    follow::hub::{Pulse, Watch},
};

/// Faster changes are notified as one.
const PACE: Duration = Duration::from_secs(1);

/// What a page shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LiveTopic {
    /// Anything.
    Anything,
    /// Any task.
    Tasks,
    /// This task, and its callbacks.
    Task(TaskId),
    /// Declarations.
    Declared,
}

impl Engine {
    /// Starts to watch for changes.
    pub async fn live(&self, topic: LiveTopic) -> Result<Live, EngineError> {
        let pulse = self.0.hub.pulse.subscribe();
        let task = match topic {
            LiveTopic::Task(task_id) => {
                let task = self.0.store.find_task(task_id).await?.ok_or(EngineError::TaskNotFound)?;
                Some(self.0.hub.watch(task.id))
            }
            _ => None,
        };
        Ok(Live { engine: self.clone(), topic, pulse, task, last: Instant::now() - PACE })
    }
}

/// Watches until it is dropped.
pub struct Live {
    engine: Engine,
    topic: LiveTopic,
    pulse: watch::Receiver<Pulse>,
    task: Option<Watch>,
    last: Instant,
}

impl Live {
    /// Returns when what is shown may have changed since the last call; false when the engine stops.
    pub async fn changed(&mut self) -> bool {
        loop {
            let before = *self.pulse.borrow_and_update();
            let own = async {
                match &mut self.task {
                    Some(watch) => watch.changed().await,
                    None => std::future::pending().await,
                }
            };
            let certain = tokio::select! {
                () = own => true,
                heard = self.pulse.changed() => match heard {
                    Ok(()) => false,
                    Err(_) => return false,
                },
                () = self.engine.0.stopping.cancelled() => return false,
            };
            let now = *self.pulse.borrow();
            let ours = match self.topic {
                LiveTopic::Anything => true,
                LiveTopic::Tasks => now.tasks != before.tasks || now.declared != before.declared,
                LiveTopic::Task(_) => now.callbacks != before.callbacks || now.swept != before.swept,
                LiveTopic::Declared => now.declared != before.declared || now.swept != before.swept,
            };
            if !certain && !ours {
                continue;
            }
            tokio::select! {
                () = tokio::time::sleep_until(self.last + PACE) => {}
                () = self.engine.0.stopping.cancelled() => return false,
            }
            self.last = Instant::now();
            return true;
        }
    }
}
