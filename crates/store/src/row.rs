//! How columns of rows are read, the same for both databases.
//!
//! A driver says how a column of its rows is read ([`Columns`]). What the rows of a feature mean is in its
//! `statements.rs`. Nothing here knows SQL.

use std::time::Duration;

use relais_core::{
    Callback, CallbackStatus, ClientId, ClientKey, Json, Priority, RetryPolicy, ServiceKey, ServiceName, Status,
    StoreError, TaskId, Timestamp,
};

use crate::session::Result;

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

pub(crate) fn request(row: &impl Columns) -> Result<Json> {
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

/// How often to try again, as it is read.
pub(crate) fn retry_policy(text: Option<&str>) -> Result<RetryPolicy> {
    text.map_or(Ok(RetryPolicy::none()), |text| serde_json::from_str(text).map_err(corrupt))
}

/// How often to try again, as it is written.
pub(crate) fn retry_text(policy: &RetryPolicy) -> Result<String> {
    serde_json::to_string(policy).map_err(corrupt)
}

pub(crate) fn callback(row: &impl Columns) -> Result<Option<Callback>> {
    row.text_if_any("callback")?.map(|text| serde_json::from_str(&text)).transpose().map_err(corrupt)
}

pub(crate) fn notification(code: i16) -> Result<CallbackStatus> {
    CallbackStatus::from_code(code).ok_or_else(|| corrupt(format!("notification status {code}")))
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

pub(crate) fn json(text: Option<String>) -> Result<Option<Json>> {
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
