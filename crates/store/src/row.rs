//! What the rows of both databases mean.
//!
//! A driver says how a column of its rows is read ([`Columns`]); what the columns add up to is the same for both and
//! written here. Nothing here knows SQL.

pub(crate) use crate::callbacks::rows::{
    attempt_of, callback_record, due_batch_callback, due_callback, floor_of, lane_head, settled,
};

use std::time::Duration;

use relais_core::{
    Attempt, AttemptOutcome, Authorization, Callback, CallbackStatus, Client, ClientId, ClientKey, Condition,
    DispatchName, DueDispatch, Failure, Json, Links, Priority, QueueDepth, QueueKind, QueueSettings, QueueShare,
    Retention, RetryPolicy, Roles, Room, Service, ServiceKey, ServiceLimits, ServiceName, SigningSecret, State, Status,
    StoreError, Tally, Task, TaskId, TaskTransport, Timestamp,
};

use crate::dependencies::statements::{batch_of, links, trace};
use crate::flow::statements::{FlowKind, client_flow, flow_kind, flow_limits};
use crate::history::statements::FreedKey;
use crate::session::{KnownKey, Locked, LockedPending, LockedQueue, LockedTask, PurgeCandidate, QueueFacts, Result};

/// The columns of one row, by name. `small`, `int` and `big` are numbers of 16, 32 and 64 bits.
pub(crate) trait Columns {
    fn small(&self, column: &str) -> Result<i16>;
    fn small_if_any(&self, column: &str) -> Result<Option<i16>>;
    fn int(&self, column: &str) -> Result<i32>;
    fn int_if_any(&self, column: &str) -> Result<Option<i32>>;
    fn big(&self, column: &str) -> Result<i64>;
    fn big_if_any(&self, column: &str) -> Result<Option<i64>>;
    fn real(&self, column: &str) -> Result<f64>;
    fn real_if_any(&self, column: &str) -> Result<Option<f64>>;
    fn flag(&self, column: &str) -> Result<bool>;
    fn flag_if_any(&self, column: &str) -> Result<Option<bool>>;
    fn text(&self, column: &str) -> Result<String>;
    fn text_if_any(&self, column: &str) -> Result<Option<String>>;
    fn bytes(&self, column: &str) -> Result<Vec<u8>>;
    fn moment(&self, column: &str) -> Result<Timestamp>;
    fn moment_if_any(&self, column: &str) -> Result<Option<Timestamp>>;
    fn task_id(&self, column: &str) -> Result<TaskId>;
    fn task_id_if_any(&self, column: &str) -> Result<Option<TaskId>>;
}

/// The methods of [`Columns`] that a driver's `get` answers as it is.
macro_rules! plain_columns {
    () => {
        $crate::row::plain_columns! {
            small: i16, small_if_any: Option<i16>, int: i32, int_if_any: Option<i32>, big: i64, big_if_any: Option<i64>,
            real: f64, real_if_any: Option<f64>, flag: bool,
            flag_if_any: Option<bool>, text: String, text_if_any: Option<String>, bytes: Vec<u8>,
        }
    };
    ($($method:ident: $type:ty,)*) => {
        $(fn $method(&self, column: &str) -> Result<$type> {
            get(self, column)
        })*
    };
}
pub(crate) use plain_columns;

pub(crate) fn state(row: &impl Columns) -> Result<State> {
    let status = status(row.small("status")?)?;
    let revision = unsigned(row.big("revision")?);
    if revision == 0 && matches!(status, Status::Pending | Status::Waiting) {
        // Nothing has happened to it: the rest need not be read.
        return Ok(State {
            status,
            due: row.moment_if_any("due")?,
            expires: row.moment_if_any("expires")?,
            timeout: row.big_if_any("timeout_ms")?.map(millis),
            ..State::pending()
        });
    }
    Ok(State {
        status,
        attempt: narrow(row.int("attempt")?),
        losses: narrow(row.int("losses")?),
        failures: narrow(row.int("failures")?),
        revision,
        progress: row.real("progress")?,
        worker_host: row.text_if_any("worker_host")?,
        started: row.moment_if_any("started")?,
        ended: row.moment_if_any("ended")?,
        lease_until: row.moment_if_any("lease_until")?,
        due: row.moment_if_any("due")?,
        expires: row.moment_if_any("expires")?,
        timeout: row.big_if_any("timeout_ms")?.map(millis),
        deadline: row.moment_if_any("deadline")?,
    })
}

pub(crate) fn task(row: &impl Columns) -> Result<Task> {
    Ok(Task {
        id: row.big("id")?,
        task_id: row.task_id("task_id")?,
        client_id: client_name(row)?,
        service: service_name(row)?,
        state: state(row)?,
        request: request(row)?,
        response: json(row.text_if_any("response")?)?,
        error_message: row.text_if_any("error_message")?,
        error_kind: row.text_if_any("error_kind")?,
        error_trace: row.text_if_any("error_trace")?,
        priority: priority(row.small_if_any("priority")?),
        callback: callback(row)?,
        notification: row.small_if_any("notification")?.map(notification).transpose()?,
        correlation_id: row.text_if_any("correlation_id")?,
        submitted: row.moment("submitted")?,
        scheduled: row.moment_if_any("scheduled")?,
        position: None,
        links: links(row)?,
    })
}

fn request(row: &impl Columns) -> Result<Json> {
    Json::parse(row.text("request")?).map_err(corrupt)
}

/// What the service of a task is called.
pub(crate) fn service_name(row: &impl Columns) -> Result<ServiceName> {
    ServiceName::new(row.text("service")?).map_err(corrupt)
}

/// What the client of a task is called.
pub(crate) fn client_name(row: &impl Columns) -> Result<ClientId> {
    ClientId::new(row.text("client")?).map_err(corrupt)
}

/// A task, with its place.
pub(crate) fn found_task(row: &impl Columns) -> Result<Task> {
    Ok(Task { position: row.big_if_any("position")?.map(unsigned), ..task(row)? })
}

pub(crate) fn locked_task(row: &impl Columns) -> Result<LockedTask> {
    Ok(LockedTask {
        id: row.big("id")?,
        task_id: row.task_id("task_id")?,
        service: service_key(row)?,
        client: client_key(row)?,
        seq: row.big("seq")?,
        delivery_limit: narrow(row.int("delivery_limit")?),
        state: state(row)?,
        callback: callback(row)?,
        submitted: row.moment("submitted")?,
        scheduled: row.moment_if_any("scheduled")?,
        correlation_id: row.text_if_any("correlation_id")?,
        retry: row.text_if_any("retry")?,
        unique_key: row.text_if_any("unique_key")?,
        handed: row.flag("handed")?,
        batch: batch_of(row)?,
        followed: row.flag("followed")?,
        when: row.small_if_any("after_when")?.and_then(Condition::from_code),
    })
}

/// An attempt that is over.
pub(crate) fn attempt(row: &impl Columns) -> Result<Attempt> {
    let code = row.small("outcome")?;
    let failure = row.text_if_any("error_message")?.map(|message| {
        Ok::<_, StoreError>(Failure {
            message,
            kind: row.text_if_any("error_kind")?,
            trace: row.text_if_any("error_trace")?,
            ..Failure::default()
        })
    });
    Ok(Attempt {
        number: narrow(row.int("number")?),
        started: row.moment_if_any("started")?,
        ended: row.moment_if_any("ended")?,
        outcome: AttemptOutcome::from_code(code).ok_or_else(|| corrupt(format!("outcome {code}")))?,
        worker_host: row.text_if_any("worker_host")?,
        failure: failure.transpose()?,
        response: json(row.text_if_any("response")?)?,
    })
}

/// What is written of an attempt's failure: the message, the kind and the trace.
pub(crate) fn failure_of(attempt: &Attempt) -> (Option<String>, (Option<String>, Option<String>)) {
    match attempt.failure.clone() {
        Some(failure) => (Some(failure.message), (failure.kind, failure.trace)),
        None => (None, (None, None)),
    }
}

pub(crate) fn locked_pending(row: &impl Columns) -> Result<LockedPending> {
    let client = client_name(row)?;
    named_pending(row, service_name(row)?, |_| Ok(client))
}

/// The same, where the names of the service and of clients are known. What has not ended has no result, and what is read of the task is
/// read once.
pub(crate) fn named_pending(
    row: &impl Columns,
    service: ServiceName,
    client_name: impl FnOnce(ClientKey) -> Result<ClientId>,
) -> Result<LockedPending> {
    let (lease, rank) = (millis(row.big("lease_ms")?), row.big("rank")?);
    let locked = locked_task(row)?;
    let task = Task {
        id: locked.id,
        task_id: locked.task_id,
        client_id: client_name(locked.client)?,
        service,
        state: locked.state.clone(),
        request: request(row)?,
        response: None,
        error_message: None,
        error_kind: None,
        error_trace: None,
        priority: priority(row.small_if_any("priority")?),
        callback: locked.callback.clone(),
        notification: None,
        correlation_id: locked.correlation_id.clone(),
        submitted: locked.submitted,
        scheduled: locked.scheduled,
        position: None,
        links: Links {
            parent: row.task_id_if_any("parent_id")?,
            batch: locked.batch,
            trace: trace(row)?,
            when: locked.when,
            after: Vec::new(),
        },
    };
    Ok(LockedPending { locked, task, lease, rank })
}

/// Rows that were locked; their column `now` is the database's time.
pub(crate) fn locked<R: Columns, T>(rows: &[R], read: impl Fn(&R) -> Result<T>) -> Result<Locked<T>> {
    // Without rows nobody asks what time it is.
    let now = rows.last().map_or(Ok(Timestamp::from_millis(0)), |row| row.moment("now"))?;
    let mut found = Vec::with_capacity(rows.len());
    for row in rows {
        found.push(read(row)?);
    }
    Ok(Locked { now, rows: found })
}

/// The same, of a service that tells how its flow is limited, in a row of its own if there are no tasks: none if it is, and
/// nobody has looked at that.
pub(crate) fn locked_unless_limited(rows: &[impl Columns], counted: bool) -> Result<Option<Locked<LockedPending>>> {
    match rows {
        [row, ..] if !counted && flow_kind(row)? != FlowKind::Free => Ok(None),
        [row] if row.big_if_any("id")?.is_none() => {
            Ok(Some(Locked { now: Timestamp::from_millis(0), rows: Vec::new() }))
        }
        rows => locked(rows, locked_pending).map(Some),
    }
}

pub(crate) fn locked_queue(row: &impl Columns) -> Result<LockedQueue> {
    Ok(LockedQueue {
        service: service_key(row)?,
        arrived: row.big("n")?,
        brokered: row.flag("brokered")?,
        now: row.moment("now")?,
    })
}

/// One row for each pair of service and client, of services that are there; the keys are found elsewhere.
pub(crate) fn queue_facts(rows: &[impl Columns], known: Vec<KnownKey>) -> Result<QueueFacts> {
    let mut facts = QueueFacts { known, ..QueueFacts::default() };
    for row in rows {
        let (service, client) = (service_key(row)?, client_key(row)?);
        let room = |waiting, capacity| {
            Ok::<_, StoreError>(Room {
                pending: 0,
                waiting: unsigned(row.big(waiting)?),
                capacity: row.int_if_any(capacity)?.map(|capacity| narrow(capacity).into()),
            })
        };
        facts.queues.push((service, row.big("departed")?, room("waiting", "capacity")?));
        let share = Room { pending: unsigned(row.big("pending")?), ..room("share_waiting", "share")? };
        facts.shares.push((service, client, share));
    }
    Ok(facts)
}

/// The unique keys of tasks that are gone.
pub(crate) fn freed_keys(rows: &[impl Columns]) -> Result<Vec<FreedKey>> {
    let mut freed = Vec::new();
    for row in rows {
        if let Some(key) = row.text_if_any("unique_key")? {
            let (service, client, task_id) = (service_key(row)?, client_key(row)?, row.task_id("task_id")?);
            freed.push(FreedKey { service, client, key, task_id });
        }
    }
    Ok(freed)
}

/// Those of the tasks that are gone which waited for others.
pub(crate) fn waited_for_others(rows: &[impl Columns]) -> Result<Vec<i64>> {
    let mut waited = Vec::new();
    for row in rows {
        if row.small_if_any("after_when")?.is_some() {
            waited.push(row.big("id")?);
        }
    }
    Ok(waited)
}

/// The key of which there is one task at a time.
pub(crate) fn unique_key(row: &impl Columns) -> Result<KnownKey> {
    Ok(KnownKey {
        service: service_key(row)?,
        client: client_key(row)?,
        key: row.text("key")?,
        fingerprint: Vec::new(),
        task_id: row.task_id("task_id")?,
        position: unsigned(row.big("position")?),
    })
}

pub(crate) fn known_key(row: &impl Columns) -> Result<KnownKey> {
    Ok(KnownKey {
        service: service_key(row)?,
        client: client_key(row)?,
        key: row.text("key")?,
        fingerprint: row.bytes("fingerprint")?,
        task_id: row.task_id("task_id")?,
        position: unsigned(row.big("position")?),
    })
}

/// The candidates up to the first that is too young to matter: tasks are numbered in the order of their submission, so
/// those behind it are too young as well.
pub(crate) fn purge_candidates(rows: &[impl Columns]) -> Result<Vec<PurgeCandidate>> {
    let mut candidates = Vec::with_capacity(rows.len());
    for row in rows {
        if !row.flag("matters")? {
            break;
        }
        candidates.push(PurgeCandidate {
            id: row.big("id")?,
            client: client_key(row)?,
            seq: row.big("seq")?,
            too_old: row.flag_if_any("too_old")?.unwrap_or(false),
            batch: batch_of(row)?,
        });
    }
    Ok(candidates)
}

pub(crate) fn tally(row: &impl Columns) -> Result<Tally> {
    let code = row.small("status")?;
    Ok(Tally {
        service: service_key(row)?,
        status: status(code)?,
        arrived: unsigned(row.big("arrived")?),
        departed: unsigned(row.big("departed")?),
    })
}

pub(crate) fn queue_depth(row: &impl Columns) -> Result<QueueDepth> {
    let now = row.moment("now")?;
    Ok(QueueDepth {
        service: service_key(row)?,
        pending: unsigned(row.big("pending")?),
        in_progress: unsigned(row.big("in_progress")?),
        oldest_pending: row.moment_if_any("submitted")?.map(|submitted| now.since(submitted)),
    })
}

pub(crate) fn queue_share(row: &impl Columns) -> Result<QueueShare> {
    Ok(QueueShare {
        client: client_key(row)?,
        pending: unsigned(row.big("pending")?),
        in_progress: unsigned(row.big("running")?),
    })
}

pub(crate) fn service(row: &impl Columns) -> Result<Service> {
    Ok(Service {
        key: ServiceKey(row.int("id")?),
        name: ServiceName::new(row.text("name")?).map_err(corrupt)?,
        queue_name: row.text("queue_name")?,
        transport: TaskTransport::from_code(row.small("transport")?).ok_or_else(|| corrupt("an unknown transport"))?,
        queue: QueueSettings {
            kind: QueueKind::from_code(row.small("queue_kind")?).ok_or_else(|| corrupt("an unknown kind of queue"))?,
            message_ttl: row.big_if_any("message_ttl_ms")?.map(millis),
            max_length: row.int_if_any("max_length")?.map(narrow),
        },
        json_schema: json(row.text_if_any("schema_text")?)?,
        paused: row.flag("paused")?,
        limits: ServiceLimits {
            capacity: row.int_if_any("capacity")?.map(narrow),
            lease: millis(row.big("lease_ms")?),
            delivery_limit: narrow(row.int("delivery_limit")?),
            retention: Retention {
                finished: row.big_if_any("keep_finished_ms")?.map(millis),
                any: row.big_if_any("keep_any_ms")?.map(millis),
            },
            callback_retries: row
                .text_if_any("callback_retries")?
                .map(|text| serde_json::from_str::<Vec<i64>>(&text))
                .transpose()
                .map_err(corrupt)?
                .map(|waits| waits.into_iter().map(millis).collect()),
            retry: retry_policy(row.text_if_any("retry")?.as_deref())?,
            timeout: row.big_if_any("timeout_ms")?.map(millis),
            priority_step: millis(row.big("priority_step_ms")?),
            flow: flow_limits(row)?,
        },
    })
}

/// How often to try again, as it is read.
pub(crate) fn retry_policy(text: Option<&str>) -> Result<RetryPolicy> {
    text.map_or(Ok(RetryPolicy::none()), |text| serde_json::from_str(text).map_err(corrupt))
}

/// How often to try again, as it is written.
pub(crate) fn retry_text(policy: &RetryPolicy) -> Result<String> {
    serde_json::to_string(policy).map_err(corrupt)
}

/// A task to be dispatched. Its own columns are empty if it is gone.
pub(crate) fn due_dispatch(row: &impl Columns) -> Result<DueDispatch> {
    Ok(DueDispatch {
        name: DispatchName {
            service: service_key(row)?,
            queue: row.text("queue_name")?.into(),
            round: row.int("round")?,
            task_id: row.task_id("task_id")?,
        },
        request: json(row.text_if_any("request")?)?,
        correlation_id: row.text_if_any("correlation_id")?,
        trace: trace(row)?,
        priority: priority(row.small_if_any("priority")?),
        timeout: row.big_if_any("timeout_ms")?.map(millis),
        revision: row.big_if_any("revision")?.map_or(0, unsigned),
    })
}

pub(crate) fn client(row: &impl Columns) -> Result<Client> {
    Ok(Client {
        key: ClientKey(row.int("id")?),
        client_id: ClientId::new(row.text("client_id")?).map_err(corrupt)?,
        secret_hash: row.text("secret_hash")?,
        signing_secrets: Vec::new(),
        destinations: row
            .text_if_any("destinations")?
            .map(|text| serde_json::from_str(&text))
            .transpose()
            .map_err(corrupt)?
            .unwrap_or_default(),
    })
}

/// The clients, each with what its callbacks are signed with; the secrets come the newest first.
pub(crate) fn clients<R: Columns>(clients: &[R], secrets: &[R]) -> Result<Vec<Client>> {
    let mut found: Vec<Client> = clients.iter().map(client).collect::<Result<_>>()?;
    for row in secrets {
        let owner = client_key(row)?;
        if let Some(client) = found.iter_mut().find(|client| client.key == owner) {
            client.signing_secrets.push(SigningSecret {
                secret: row.text("secret")?,
                created: row.moment("created")?,
                expires: row.moment_if_any("expires")?,
            });
        }
    }
    Ok(found)
}

pub(crate) fn callback(row: &impl Columns) -> Result<Option<Callback>> {
    row.text_if_any("callback")?.map(|text| serde_json::from_str(&text)).transpose().map_err(corrupt)
}

pub(crate) fn notification(code: i16) -> Result<CallbackStatus> {
    CallbackStatus::from_code(code).ok_or_else(|| corrupt(format!("notification status {code}")))
}

/// How long to wait before each new try of a callback, as it is written.
pub(crate) fn waits(waits: Option<&[Duration]>) -> Option<String> {
    waits.map(|waits| serde_json::json!(waits.iter().copied().map(in_millis).collect::<Vec<_>>()).to_string())
}

pub(crate) fn authorization(row: &impl Columns) -> Result<Authorization> {
    Ok(Authorization {
        client: client_key(row)?,
        service: service_key(row)?,
        roles: Roles { consume: row.flag("consume")?, work: row.flag("work")? },
        capacity: row.int_if_any("capacity")?.map(narrow),
        flow: client_flow(row)?,
    })
}

pub(crate) fn service_key(row: &impl Columns) -> Result<ServiceKey> {
    Ok(ServiceKey(row.int("service_id")?))
}

pub(crate) fn client_key(row: &impl Columns) -> Result<ClientKey> {
    Ok(ClientKey(row.int("client_id")?))
}

/// Something in the database that Relais did not put there.
pub(crate) fn corrupt(what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StoreError {
    StoreError::Failed(what.into())
}

/// A change that asks for something that is not there.
pub(crate) fn found(rows: u64, otherwise: impl Fn() -> String) -> Result<()> {
    if rows == 0 { Err(StoreError::Conflict(otherwise())) } else { Ok(()) }
}

/// A service that cannot go yet.
pub(crate) fn unfinished(service: &ServiceName) -> StoreError {
    StoreError::Conflict(format!(
        "service {service} has tasks that are not finished: cancel them, or wait for them, first"
    ))
}

/// A client that was to be kept as it is, and is not there.
pub(crate) fn no_client(client_id: &ClientId) -> String {
    format!("there is no client {client_id}: a new one needs a secret")
}

fn json(text: Option<String>) -> Result<Option<Json>> {
    text.map(Json::parse).transpose().map_err(corrupt)
}

pub(crate) fn priority(level: Option<i16>) -> Priority {
    level.and_then(|level| u8::try_from(level).ok()).and_then(Priority::new).unwrap_or_default()
}

pub(crate) fn status(code: i16) -> Result<Status> {
    Status::from_code(code).ok_or_else(|| corrupt(format!("status {code}")))
}

/// A number that is never negative, as it is read.
pub(crate) fn narrow(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

/// A number that is never negative, as it is read.
pub(crate) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// A number as it is written: 2 billion stand for all that is more.
pub(crate) fn signed(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// A number as it is written.
pub(crate) fn wide(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

pub(crate) fn millis(number: i64) -> Duration {
    Duration::from_millis(unsigned(number))
}

/// A duration as it is written.
pub(crate) fn in_millis(duration: Duration) -> i64 {
    wide(duration.as_millis())
}
