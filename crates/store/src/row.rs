//! What the rows of both databases mean.
//!
//! A driver says how a column of its rows is read ([`Columns`]); what the columns add up to is the same for both and
//! written here. Nothing here knows SQL.

use std::time::Duration;

use relais_core::{
    Authorization, Callback, Client, ClientId, ClientKey, Json, Retention, Roles, Service, ServiceKey, ServiceLimits,
    ServiceName, State, Status, StoreError, Tally, Task, TaskId, Timestamp,
};

use crate::session::{KnownKey, Locked, LockedPending, LockedQueue, LockedTask, PurgeCandidate, QueueFacts, Result};

/// The columns of one row, by name. `small`, `int` and `big` are numbers of 16, 32 and 64 bits.
pub(crate) trait Columns {
    fn small(&self, column: &str) -> Result<i16>;
    fn int(&self, column: &str) -> Result<i32>;
    fn int_if_any(&self, column: &str) -> Result<Option<i32>>;
    fn big(&self, column: &str) -> Result<i64>;
    fn big_if_any(&self, column: &str) -> Result<Option<i64>>;
    fn real(&self, column: &str) -> Result<f64>;
    fn flag(&self, column: &str) -> Result<bool>;
    fn flag_if_any(&self, column: &str) -> Result<Option<bool>>;
    fn text(&self, column: &str) -> Result<String>;
    fn text_if_any(&self, column: &str) -> Result<Option<String>>;
    fn bytes(&self, column: &str) -> Result<Vec<u8>>;
    fn moment(&self, column: &str) -> Result<Timestamp>;
    fn moment_if_any(&self, column: &str) -> Result<Option<Timestamp>>;
    fn task_id(&self, column: &str) -> Result<TaskId>;
}

/// The methods of [`Columns`] that a driver's `get` answers as it is.
macro_rules! plain_columns {
    () => {
        $crate::row::plain_columns! {
            small: i16, int: i32, int_if_any: Option<i32>, big: i64, big_if_any: Option<i64>, real: f64, flag: bool,
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
    let code = row.small("status")?;
    Ok(State {
        status: status(code)?,
        attempt: narrow(row.int("attempt")?),
        losses: narrow(row.int("losses")?),
        revision: unsigned(row.big("revision")?),
        progress: row.real("progress")?,
        worker_host: row.text_if_any("worker_host")?,
        started: row.moment_if_any("started")?,
        ended: row.moment_if_any("ended")?,
        lease_until: row.moment_if_any("lease_until")?,
    })
}

pub(crate) fn task(row: &impl Columns) -> Result<Task> {
    Ok(Task {
        id: row.big("id")?,
        task_id: row.task_id("task_id")?,
        client_id: ClientId::new(row.text("client")?).map_err(corrupt)?,
        service: ServiceName::new(row.text("service")?).map_err(corrupt)?,
        state: state(row)?,
        request: Json::parse(row.text("request")?).map_err(corrupt)?,
        response: json(row.text_if_any("response")?)?,
        error_message: row.text_if_any("error_message")?,
        callback: row
            .text_if_any("callback")?
            .map(|text| serde_json::from_str::<Callback>(&text))
            .transpose()
            .map_err(corrupt)?,
        correlation_id: row.text_if_any("correlation_id")?,
        submitted: row.moment("submitted")?,
        position: None,
    })
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
    })
}

pub(crate) fn locked_pending(row: &impl Columns) -> Result<LockedPending> {
    Ok(LockedPending { locked: locked_task(row)?, task: task(row)?, lease: millis(row.big("lease_ms")?) })
}

/// Rows that were locked; their column `now` is the database's time.
pub(crate) fn locked<R: Columns, T>(rows: &[R], read: impl Fn(&R) -> Result<T>) -> Result<Locked<T>> {
    // Without rows nobody asks what time it is.
    let now = rows.last().map_or(Ok(Timestamp::from_millis(0)), |row| row.moment("now"))?;
    Ok(Locked { now, rows: rows.iter().map(read).collect::<Result<_>>()? })
}

pub(crate) fn locked_queue(row: &impl Columns) -> Result<LockedQueue> {
    Ok(LockedQueue { service: service_key(row)?, arrived: row.big("n")? })
}

/// One row for each pair of service and client, of services that are there; the keys are found elsewhere.
pub(crate) fn queue_facts(rows: &[impl Columns], known: Vec<KnownKey>) -> Result<QueueFacts> {
    let mut facts = QueueFacts { known, ..QueueFacts::default() };
    for row in rows {
        let (service, client) = (service_key(row)?, client_key(row)?);
        facts.queues.push((service, row.big("departed")?, row.int_if_any("capacity")?.map(narrow)));
        facts.shares.push((service, client, row.big("pending")?, row.int_if_any("share")?.map(narrow)));
    }
    Ok(facts)
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

pub(crate) fn service(row: &impl Columns) -> Result<Service> {
    Ok(Service {
        key: ServiceKey(row.int("id")?),
        name: ServiceName::new(row.text("name")?).map_err(corrupt)?,
        queue_name: row.text("queue_name")?,
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
        },
    })
}

pub(crate) fn client(row: &impl Columns) -> Result<Client> {
    Ok(Client {
        key: ClientKey(row.int("id")?),
        client_id: ClientId::new(row.text("client_id")?).map_err(corrupt)?,
        secret_hash: row.text("secret_hash")?,
    })
}

pub(crate) fn authorization(row: &impl Columns) -> Result<Authorization> {
    Ok(Authorization {
        client: client_key(row)?,
        service: service_key(row)?,
        roles: Roles { consume: row.flag("consume")?, work: row.flag("work")? },
        capacity: row.int_if_any("capacity")?.map(narrow),
    })
}

pub(crate) fn service_key(row: &impl Columns) -> Result<ServiceKey> {
    Ok(ServiceKey(row.int("service_id")?))
}

fn client_key(row: &impl Columns) -> Result<ClientKey> {
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

fn status(code: i16) -> Result<Status> {
    Status::from_code(code).ok_or_else(|| corrupt(format!("status {code}")))
}

/// A number that is never negative, as it is read.
fn narrow(number: i32) -> u32 {
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

fn millis(number: i64) -> Duration {
    Duration::from_millis(unsigned(number))
}

/// A duration as it is written.
pub(crate) fn in_millis(duration: Duration) -> i64 {
    wide(duration.as_millis())
}
