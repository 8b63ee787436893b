//! The worker protocol without a wire: an engine in the same process.
//!
//! The same use cases that the HTTP routes call, with the same rights. Who may work on which service is asked each time, as
//! there: services and authorizations can be declared anew while a worker runs.

use std::{fmt, time::Duration};

use async_trait::async_trait;
use relais_core::Role;
use relais_engine::{Access, Engine};
use relais_protocol::{
    HumanDuration,
    worker::{ClaimRequest, TaskOutcome, WireMessage},
};

use super::{Delivery, Keeping, News, Transport, held, http::delivery, matched, wire};
use crate::{CallError, slots::TaskKey};

/// A service of an engine in this process.
pub(crate) struct Embedded {
    engine: Engine,
    client_id: String,
    service: String,
    lease: Duration,
    host_name: Option<String>,
}

impl fmt::Debug for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of this process as {}", self.service, self.client_id)
    }
}

impl Embedded {
    pub fn new(engine: Engine, client_id: String, service: String, lease: Duration, host_name: Option<String>) -> Self {
        Self { engine, client_id, service, lease, host_name }
    }

    fn access(&self) -> Result<Access, CallError> {
        self.engine.insider(&self.client_id, &self.service, Role::Work).map_err(CallError::Engine)
    }
}

#[async_trait]
impl Transport for Embedded {
    async fn claim(&self, max: usize, wait: Duration) -> Result<Vec<Delivery>, CallError> {
        let request = ClaimRequest {
            max: Some(max),
            wait: Some(HumanDuration(wait)),
            lease: Some(HumanDuration(self.lease)),
            host_name: self.host_name.clone(),
        };
        let tasks = self.engine.claim(&self.access()?, request, wait).await.map_err(CallError::Engine)?;
        Ok(tasks.into_iter().map(delivery).collect())
    }

    async fn report(&self, news: &[(&TaskKey, News<'_>)]) -> Result<Vec<TaskOutcome>, CallError> {
        let messages = news.iter().map(|(key, news)| wire(key, news, None).map(WireMessage::understand));
        let messages = messages.collect::<Result<_, _>>()?;
        let outcomes = self.engine.messages(&self.access()?, messages).await.map_err(CallError::Engine)?;
        matched(outcomes, news.len())
    }

    async fn give_back(&self, keys: &[TaskKey]) -> Result<Vec<TaskOutcome>, CallError> {
        let outcomes = self.engine.give_back(&self.access()?, held(keys)).await.map_err(CallError::Engine)?;
        matched(outcomes, keys.len())
    }

    fn keeping(&self) -> Keeping {
        Keeping::of(self.lease)
    }

    async fn renew(&self, keys: &[TaskKey]) -> Result<Vec<TaskOutcome>, CallError> {
        let lease = Some(HumanDuration(self.lease));
        let outcomes = self.engine.heartbeat(&self.access()?, held(keys), lease).await.map_err(CallError::Engine)?;
        matched(outcomes, keys.len())
    }

    fn tells_start(&self) -> bool {
        false
    }
}
