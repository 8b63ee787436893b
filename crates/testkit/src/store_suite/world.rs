//! Helpers of the store suite.

use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use relais_core::{
    Change, ClaimRequest, ClientFlow, ClientId, ClientKey, Event, Json, NewTask, Outcome, QueueSettings, Role,
    ServiceKey, ServiceLimits, ServiceName, Store, Submission, Submitted, Task, TaskEvent, TaskFilter, TaskId,
    TaskTransport, Terms, Timestamp,
};
use tokio::task::JoinSet;

use super::Harness;

/// The deadline after which a test fails.
pub(super) const DEADLINE: Duration = Duration::from_secs(30);

/// A lease that outlasts every test.
pub(super) const LONG: Duration = Duration::from_secs(3600);

pub(super) fn name(name: &str) -> Result<ServiceName> {
    Ok(ServiceName::new(name)?)
}

pub(super) fn limits(capacity: Option<u32>) -> ServiceLimits {
    ServiceLimits { capacity, ..ServiceLimits::default() }
}

pub(super) fn put_service(service: &str, limits: ServiceLimits) -> Result<Change> {
    Ok(Change::PutService {
        name: name(service)?,
        queue_name: service.to_owned(),
        transport: TaskTransport::Builtin,
        queue: QueueSettings::default(),
        json_schema: None,
        paused: None,
        limits,
    })
}

/// A broker service, else the same.
pub(super) fn put_brokered(service: &str, limits: ServiceLimits) -> Result<Change> {
    let Change::PutService { name, queue_name, queue, json_schema, paused, limits, .. } = put_service(service, limits)?
    else {
        bail!("a service is put");
    };
    Ok(Change::PutService { name, queue_name, transport: TaskTransport::RabbitMq, queue, json_schema, paused, limits })
}

pub(super) fn put_client(client: &str) -> Result<Change> {
    Ok(Change::PutClient {
        client_id: ClientId::new(client)?,
        secret_hash: Some("hash".to_owned()),
        destinations: None,
        notifications: None,
    })
}

pub(super) fn authorize(client: &str, service: &str, capacity: Option<u32>) -> Result<Change> {
    Ok(Change::PutAuthorization {
        client_id: ClientId::new(client)?,
        service: name(service)?,
        roles: vec![Role::Consume],
        capacity,
        flow: ClientFlow::default(),
    })
}

pub(super) async fn service(store: &dyn Store, service: &str, limits: ServiceLimits) -> Result<ServiceKey> {
    store.declare(vec![put_service(service, limits)?]).await?;
    service_key(store, service).await
}

pub(super) async fn service_key(store: &dyn Store, service: &str) -> Result<ServiceKey> {
    Ok(store.declared().await?.services.get(service).context("the service is declared")?.key)
}

pub(super) async fn client(store: &dyn Store, client: &str) -> Result<ClientKey> {
    store.declare(vec![put_client(client)?]).await?;
    Ok(store.declared().await?.clients.get(client).context("the client is declared")?.key)
}

/// A service without limits, and a client.
pub(super) async fn one_of_each(store: &dyn Store) -> Result<(ServiceKey, ClientKey)> {
    Ok((service(store, "resize", limits(None)).await?, client(store, "alice").await?))
}

pub(super) fn json(text: &str) -> Result<Json> {
    Ok(Json::parse(text.to_owned())?)
}

pub(super) fn new_task(service: ServiceKey, client: ClientKey) -> Result<NewTask> {
    Ok(NewTask {
        task_id: TaskId::generate(),
        service,
        client,
        request: json("{}")?,
        callback: None,
        correlation_id: None,
        idempotency: None,
        terms: Terms::default(),
        links: relais_core::NewLinks::default(),
        dispatch: None,
    })
}

pub(super) fn new_tasks(service: ServiceKey, client: ClientKey, number: usize) -> Result<Vec<NewTask>> {
    (0..number).map(|_| new_task(service, client)).collect()
}

/// Submits one task that must be accepted.
pub(super) async fn submit(store: &dyn Store, task: NewTask) -> Result<Submitted> {
    one(store.submit_many(vec![task]).await?)
}

/// Submits tasks that must be accepted, and returns their ids in order.
pub(super) async fn submit_all(store: &dyn Store, tasks: Vec<NewTask>) -> Result<Vec<TaskId>> {
    let mut names = Vec::with_capacity(tasks.len());
    for answer in store.submit_many(tasks).await? {
        names.push(answer?.task_id);
    }
    Ok(names)
}

fn one(answers: Vec<Submission>) -> Result<Submitted> {
    ensure!(answers.len() == 1, "one submission has one answer");
    Ok(answers[0]?)
}

pub(super) fn request(service: ServiceKey, max: usize, lease: Option<Duration>) -> ClaimRequest {
    ClaimRequest { service, max, lease, worker_host: Some("host".to_owned()), instance: None }
}

/// Claims at most this many tasks with a long lease.
pub(super) async fn claim(store: &dyn Store, service: ServiceKey, max: usize) -> Result<Vec<Task>> {
    claim_for(store, service, max, LONG).await
}

pub(super) async fn claim_for(
    store: &dyn Store,
    service: ServiceKey,
    max: usize,
    lease: Duration,
) -> Result<Vec<Task>> {
    store.claim_tasks(vec![request(service, max, Some(lease))]).await?.tasks.pop().context("one request has one answer")
}

pub(super) fn says(task_id: TaskId, service: ServiceKey, event: Event) -> TaskEvent {
    TaskEvent { task_id, service, client: None, event }
}

pub(super) async fn record(store: &dyn Store, task_id: TaskId, service: ServiceKey, event: Event) -> Result<Outcome> {
    store.record_events(vec![says(task_id, service, event)]).await?.pop().context("one event has one outcome")
}

/// Records an event that must change the task.
pub(super) async fn change(store: &dyn Store, task_id: TaskId, service: ServiceKey, event: Event) -> Result<()> {
    match record(store, task_id, service, event).await? {
        Outcome::Applied(_) => Ok(()),
        other => bail!("the event should have changed the task: {other:?}"),
    }
}

pub(super) async fn find(store: &dyn Store, task_id: TaskId) -> Result<Task> {
    store.find_task(task_id).await?.context("the task is there")
}

pub(super) async fn place(store: &dyn Store, task_id: TaskId) -> Result<Option<u64>> {
    Ok(find(store, task_id).await?.position)
}

pub(super) fn filter(limit: usize) -> TaskFilter {
    TaskFilter { limit, ..TaskFilter::default() }
}

/// Lists all pages.
pub(super) async fn list_all(store: &dyn Store, mut filter: TaskFilter) -> Result<Vec<Task>> {
    let mut tasks = Vec::new();
    loop {
        let page = store.list_tasks(filter.clone()).await?;
        ensure!(page.tasks.len() <= filter.limit, "a page is no longer than it was asked to be");
        tasks.extend(page.tasks);
        match page.next_before_id {
            Some(next) => filter.before_id = Some(next),
            None => return Ok(tasks),
        }
    }
}

/// Waits until the store's clock has passed this time.
pub(super) async fn until_after(store: &dyn Store, moment: Timestamp) -> Result<Timestamp> {
    let start = Instant::now();
    loop {
        let now = store.ping().await?;
        if now > moment {
            return Ok(now);
        }
        ensure!(start.elapsed() < DEADLINE, "the store's clock stands still");
        tokio::task::yield_now().await;
    }
}

/// Waits until everything that was done so far is in the past.
pub(super) async fn a_moment(store: &dyn Store) -> Result<()> {
    let now = store.ping().await?;
    until_after(store, now).await.map(drop)
}

/// Runs `work` many times concurrently, spread over the handles, and collects the answers.
pub(super) async fn at_once<T, F>(
    harness: &Harness,
    times: usize,
    work: impl Fn(Arc<dyn Store>, usize) -> F,
) -> Result<Vec<T>>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let mut running = JoinSet::new();
    for i in 0..times {
        running.spawn(work(Arc::clone(&harness.handles[i % harness.handles.len()]), i));
    }
    let mut answers = Vec::with_capacity(times);
    tokio::time::timeout(DEADLINE, async {
        while let Some(answer) = running.join_next().await {
            answers.push(answer??);
        }
        Ok(answers)
    })
    .await
    .context("it takes too long")?
}
