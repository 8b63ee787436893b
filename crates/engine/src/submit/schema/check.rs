//! Validation of bodies: in a bounded pool, clients in turn, with a timeout.
//!
//! Bodies of schedules and of submissions in a caller's own transaction are judged where they are read: they are an
//! operator's or a program's, and nobody waits for the answer.

use std::{sync::Arc, time::Duration};

use relais_core::{Client, Json, ServiceKey};

use crate::{
    Engine, EngineError,
    pool::{Pool, PoolError, PoolOptions, Requester},
    registry::Snapshot,
};

/// How bodies are judged by their services' schemas.
#[derive(Debug, Clone, Copy)]
pub struct ValidationOptions {
    /// How many requests at once.
    pub parallel: usize,
    /// How long one may take, the wait for its turn included.
    pub timeout: Duration,
    /// How many may wait.
    pub waiting: usize,
    /// How many of those of one client.
    pub waiting_per_client: usize,
}

impl Default for ValidationOptions {
    fn default() -> Self {
        Self { parallel: 1, timeout: Duration::from_secs(5), waiting: 1_000, waiting_per_client: 250 }
    }
}

/// Judges bodies.
pub(crate) struct Validation {
    pool: Pool,
    timeout: Duration,
}

impl Validation {
    pub(crate) fn new(options: ValidationOptions) -> Self {
        let pool = Pool::new(PoolOptions {
            name: "relais-schema",
            threads: options.parallel,
            stands_back: false,
            waiting: options.waiting,
            waiting_per_client: options.waiting_per_client,
            waiting_per_peer: usize::MAX,
        });
        Self { pool, timeout: options.timeout }
    }
}

/// The result of each body.
pub(crate) type Judged = Vec<Result<(), EngineError>>;

impl Engine {
    /// Judges the bodies of one request, each by the schema of its service where that has one; none is always fine. If
    /// the request as a whole could not be judged, that is the error.
    pub(crate) async fn judge(
        &self,
        snapshot: &Snapshot,
        client: &Client,
        bodies: Vec<Option<(ServiceKey, Json)>>,
    ) -> Result<Judged, EngineError> {
        let with_schema = |body: Option<(ServiceKey, Json)>| {
            let (service, body) = body?;
            Some((Arc::clone(snapshot.schemas.get(&service)?), body))
        };
        let bodies: Vec<_> = bodies.into_iter().map(with_schema).collect();
        if bodies.iter().all(Option::is_none) {
            return Ok(vec![Ok(()); bodies.len()]);
        }
        let is_quick = |(schema, body): &(Arc<super::Schema>, Json)| schema.is_quick(body);
        if let [Some(body)] = &bodies[..]
            && is_quick(body)
        {
            // Handing it to another thread would take longer.
            return Ok(vec![body.0.check(&body.1)]);
        }
        let Validation { pool, timeout } = &self.0.validation;
        let requester = Requester { client: client.client_id.as_str().into(), peer: None };
        let judged = pool.run(requester, *timeout, |waiter| {
            let judge = |body: Option<(Arc<super::Schema>, Json)>| match body {
                Some(_) if waiter.is_gone() => Err(EngineError::ValidationTimeout),
                Some((schema, body)) => schema.check(&body),
                None => Ok(()),
            };
            bodies.into_iter().map(judge).collect()
        });
        judged.await.map_err(|error| match error {
            PoolError::Full | PoolError::NotBegun => EngineError::ValidationBusy,
            PoolError::NotEnded => EngineError::ValidationTimeout,
            PoolError::Failed => EngineError::Stopping,
        })
    }

    /// Validates a request of one body.
    pub(crate) async fn judge_one(
        &self,
        snapshot: &Snapshot,
        client: &Client,
        service: ServiceKey,
        body: &Json,
    ) -> Result<(), EngineError> {
        let judged = self.judge(snapshot, client, vec![Some((service, body.clone()))]).await?;
        judged.into_iter().next().unwrap_or(Ok(()))
    }
}
