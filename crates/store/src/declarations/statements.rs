//! What declarations need of a database, and how the rows are read.

use std::{future::Future, time::Duration};

use relais_core::{
    Authorization, Change, Client, ClientId, ClientKey, Declared, NotificationRights, QueueKind, QueueSettings,
    Retention, Roles, Service, ServiceKey, ServiceLimits, ServiceName, SigningSecret, StoreError, TaskTransport,
};

use crate::{
    flow::statements::{client_flow, flow_limits},
    row::{Columns, client_key, corrupt, in_millis, json, millis, narrow, retry_policy, service_key},
    session::Result,
};

/// Reads of what is declared, which need no transaction.
pub(crate) trait DeclarationReader: Send + Sync {
    /// All that is declared, as of one moment.
    fn declared(&self) -> impl Future<Output = Result<Declared>> + Send;

    /// The version of what is declared.
    fn declared_version(&self) -> impl Future<Output = Result<i64>> + Send;
}

/// What is declared, within a transaction.
pub(crate) trait DeclarationRows: Send {
    /// Makes one change to what is declared, except those that belong to other features.
    fn declare(&mut self, change: &Change) -> impl Future<Output = Result<()>> + Send;

    /// Notes on each queue whether it has a capacity, after all changes were made. A database whose submissions always
    /// check the capacity has nothing to do.
    fn note_limits(&mut self) -> impl Future<Output = Result<()>> + Send {
        std::future::ready(Ok(()))
    }

    /// Increments the version of what is declared.
    fn bump_declared(&mut self) -> impl Future<Output = Result<()>> + Send;
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
        notifications: row
            .text_if_any("notification_rights")?
            .map(|text| serde_json::from_str(&text))
            .transpose()
            .map_err(corrupt)?
            .unwrap_or_default(),
    })
}

/// The clients with their signing secrets, the newest first.
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

pub(crate) fn authorization(row: &impl Columns) -> Result<Authorization> {
    Ok(Authorization {
        client: client_key(row)?,
        service: service_key(row)?,
        roles: Roles { consume: row.flag("consume")?, work: row.flag("work")? },
        capacity: row.int_if_any("capacity")?.map(narrow),
        flow: client_flow(row)?,
    })
}

/// The rights of a client for notifications, as they are stored.
pub(crate) fn rights_text(rights: &NotificationRights) -> Result<String> {
    serde_json::to_string(rights).map_err(corrupt)
}

/// The waits between the tries of a callback, as they are stored.
pub(crate) fn waits(waits: Option<&[Duration]>) -> Option<String> {
    waits.map(|waits| serde_json::json!(waits.iter().copied().map(in_millis).collect::<Vec<_>>()).to_string())
}

/// Refuses a change to something that does not exist.
pub(crate) fn found(rows: u64, otherwise: impl Fn() -> String) -> Result<()> {
    if rows == 0 { Err(StoreError::Conflict(otherwise())) } else { Ok(()) }
}

/// The refusal to delete a service that has unfinished tasks.
pub(crate) fn unfinished(service: &ServiceName) -> StoreError {
    StoreError::Conflict(format!(
        "service {service} has tasks that are not finished: cancel them, or wait for them, first"
    ))
}

/// The refusal to change a client that does not exist without giving it a secret.
pub(crate) fn no_client(client_id: &ClientId) -> String {
    format!("there is no client {client_id}: a new one needs a secret")
}
