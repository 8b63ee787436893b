//! Applying a declaration: check all of it, compare it with what is there, change what differs, all or none.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    time::Duration,
};

use relais_core::{
    Change, ClientId, DEFAULT_DELIVERY_LIMIT, DEFAULT_LEASE, DEFAULT_PRIORITY_STEP, Declared, Json, QueueKind,
    QueueSettings, RelayKind, Retention, RetryPolicy, Role, Roles, ServiceLimits, ServiceName, TaskTransport,
};
use relais_protocol::admin::{
    AppliedAction, AppliedEntry, ApplyReport, AuthorizationDeclaration, Declaration, QueueTypeName, RoleName,
    ServiceDeclaration, TransportName,
};
use relais_protocol::outbox::SinkDeclaration;

use super::flow;
use crate::operate::outboxes::{RelayCheck, RelayPlan};
use crate::{
    Engine, EngineError, MAX_RETRIES, Problem,
    submit::schema::Schema,
    submit::terms::{LONGEST_TIMEOUT, policy},
};

/// The longest backoff of a callback.
const LONGEST_WAIT: Duration = Duration::from_secs(7 * 86_400);

/// The largest head start of a level of priority.
const LONGEST_STEP: Duration = Duration::from_secs(7 * 86_400);

/// The longest time that a task may wait in a queue of the broker.
const LONGEST_TTL: Duration = Duration::from_secs(30 * 86_400);

/// How a declaration is applied.
#[derive(Debug, Clone, Copy, Default)]
pub struct ApplyOptions {
    /// Delete what it does not name.
    pub prune: bool,
    /// Only report.
    pub dry_run: bool,
    /// How far outboxes are checked.
    pub check: RelayCheck,
}

/// What is to be changed, and what will be said of it.
#[derive(Default)]
pub(super) struct Plan {
    pub(super) changes: Vec<Change>,
    report: ApplyReport,
}

impl Plan {
    pub(super) fn note(&mut self, kind: &str, name: String, action: AppliedAction, client_secret: Option<String>) {
        self.report.applied.push(AppliedEntry { kind: kind.to_owned(), name, action, client_secret });
    }

    /// Adds what is to be done with outboxes or captures.
    fn relays(&mut self, kind: RelayKind, planned: RelayPlan, problems: &mut Vec<Problem>) {
        problems.extend(planned.problems);
        for (name, action) in planned.entries {
            self.note(kind.as_str(), name.to_string(), action, None);
        }
        self.changes.extend(planned.changes.into_iter().map(Change::Relay));
    }
}

impl Engine {
    /// Applies a declaration. With `prune`, deletes what it does not name. With `dry_run`, only reports.
    pub async fn apply(
        &self,
        declaration: Declaration,
        prune: bool,
        dry_run: bool,
    ) -> Result<ApplyReport, EngineError> {
        self.apply_with(declaration, ApplyOptions { prune, dry_run, ..ApplyOptions::default() }).await
    }

    /// Applies a declaration.
    pub async fn apply_with(
        &self,
        declaration: Declaration,
        options: ApplyOptions,
    ) -> Result<ApplyReport, EngineError> {
        let ApplyOptions { prune, dry_run, check } = options;
        self.refresh().await?;
        let snapshot = self.snapshot()?;
        let mut plan = Plan::default();
        let mut problems = Vec::new();
        let mut services = HashSet::new();
        let mut clients = HashSet::new();
        let mut authorizations = HashSet::new();
        for (i, service) in declaration.services.iter().enumerate() {
            let path = format!("/services/{i}");
            if !services.insert(service.service_name.clone()) {
                problems.push(Problem::at(path, format!("service {} is declared twice", service.service_name)));
                continue;
            }
            if let Some(change) = service_change(service, self.default_transport(), &path, &mut problems) {
                plan_service(&snapshot.declared, change, &mut plan);
            }
        }
        for (i, client) in declaration.clients.iter().enumerate() {
            let path = format!("/clients/{i}");
            if !clients.insert(client.client_id.clone()) {
                problems.push(Problem::at(path, format!("client {} is declared twice", client.client_id)));
                continue;
            }
            self.plan_client(&snapshot.declared, client, &path, dry_run, &mut problems, &mut plan).await?;
        }
        for (i, authorization) in declaration.authorizations.iter().enumerate() {
            let (client, service) = (&authorization.client_id, &authorization.service_name);
            let path = format!("/authorizations/{i}");
            if !authorizations.insert((client.clone(), service.clone())) {
                problems
                    .push(Problem::at(path, format!("the authorization of {client} on {service} is declared twice")));
                continue;
            }
            if !clients.contains(client) && !snapshot.declared.clients.contains_key(client.as_str()) {
                problems.push(Problem::at(format!("{path}/clientId"), format!("there is no client {client}")));
            }
            if !services.contains(service) && !snapshot.declared.services.contains_key(service.as_str()) {
                problems.push(Problem::at(format!("{path}/serviceName"), format!("there is no service {service}")));
            }
            plan_authorization(&snapshot.declared, authorization, &path, &mut problems, &mut plan);
        }
        shared_queues(&snapshot.declared, &plan.changes, &mut problems);
        let stays =
            |client: &str, service: &str| !prune || authorizations.contains(&(client.to_owned(), service.to_owned()));
        flow::without_a_window(&snapshot.declared, &plan.changes, stays, &mut problems);
        self.plan_schedules(&snapshot, &declaration, prune, &mut problems, &mut plan).await?;
        self.plan_outboxes(&declaration, prune, check, &mut problems, &mut plan).await?;
        self.plan_captures(&declaration, prune, check, &mut problems, &mut plan).await?;
        self.plan_audiences(&declaration, prune, &mut problems, &mut plan).await?;
        self.plan_notification_sources(&declaration, prune, check, &mut problems, &mut plan).await?;
        if !problems.is_empty() {
            return Err(EngineError::InvalidDeclaration(problems));
        }
        if prune {
            plan_pruning(&snapshot.declared, &services, &clients, &authorizations, &mut plan);
        }
        if !dry_run {
            let deleted = self.deleted_relays(&plan.changes).await?;
            let audiences = plan.changes.iter().any(|change| matches!(change, Change::Audience(_)));
            self.declare(plan.changes).await?;
            self.release_relays(deleted);
            if audiences {
                self.settle_audiences().await;
            }
        }
        Ok(plan.report)
    }

    async fn plan_outboxes(
        &self,
        declaration: &Declaration,
        prune: bool,
        check: RelayCheck,
        problems: &mut Vec<Problem>,
        plan: &mut Plan,
    ) -> Result<(), EngineError> {
        let declared = &declaration.outboxes;
        match self.outboxes() {
            _ if declared.is_empty() && !prune => {}
            Some(outboxes) => {
                plan.relays(RelayKind::Outbox, outboxes.plan(declared, prune, check).await?, problems);
            }
            None if declared.is_empty() => {}
            None => problems.push(Problem::at("/outboxes", "this process publishes no outboxes; `relais serve` does")),
        }
        Ok(())
    }

    async fn plan_captures(
        &self,
        declaration: &Declaration,
        prune: bool,
        check: RelayCheck,
        problems: &mut Vec<Problem>,
        plan: &mut Plan,
    ) -> Result<(), EngineError> {
        let declared = &declaration.captures;
        match self.captures() {
            _ if declared.is_empty() && !prune => {}
            Some(captures) => {
                plan.relays(RelayKind::Capture, captures.plan(declared, prune, check).await?, problems);
            }
            None if declared.is_empty() => {}
            None => problems.push(Problem::at("/captures", "this process captures no tables; `relais serve` does")),
        }
        Ok(())
    }

    async fn plan_audiences(
        &self,
        declaration: &Declaration,
        prune: bool,
        problems: &mut Vec<Problem>,
        plan: &mut Plan,
    ) -> Result<(), EngineError> {
        let declared = &declaration.audiences;
        let Some(audiences) = self.audiences() else {
            if !declared.is_empty() {
                problems.push(Problem::at("/audiences", "this process knows no audiences; `relais serve` does"));
            }
            return Ok(());
        };
        if !declared.is_empty() || prune {
            let planned = audiences.plan(declared, prune).await?;
            problems.extend(planned.problems);
            for (name, action) in planned.entries {
                plan.note("audience", name, action, None);
            }
            plan.changes.extend(planned.changes.into_iter().map(Change::Audience));
        }
        let known = audiences.types_after(declared, prune).await?;
        unknown_types(declaration, &known, problems);
        Ok(())
    }

    async fn plan_notification_sources(
        &self,
        declaration: &Declaration,
        prune: bool,
        check: RelayCheck,
        problems: &mut Vec<Problem>,
        plan: &mut Plan,
    ) -> Result<(), EngineError> {
        let declared = &declaration.notification_sources;
        match self.notification_sources() {
            _ if declared.is_empty() && !prune => {}
            Some(sources) => {
                plan.relays(RelayKind::NotificationSource, sources.plan(declared, prune, check).await?, problems);
            }
            None if declared.is_empty() => {}
            None => {
                let message = "this process has no notifications; `relais serve` has";
                problems.push(Problem::at("/notificationSources", message));
            }
        }
        Ok(())
    }

    /// Removes a service, with its authorizations. Refused while it has tasks that are not finished.
    pub async fn delete_service(&self, name: &str) -> Result<ApplyReport, EngineError> {
        let service = self.declared_service(name).await?;
        self.declare(vec![Change::DeleteService(service.name.clone())]).await?;
        Ok(deleted("service", name.to_owned()))
    }

    /// Removes a client, with its authorizations.
    pub async fn delete_client(&self, client_id: &str) -> Result<ApplyReport, EngineError> {
        self.refresh().await?;
        let snapshot = self.snapshot()?;
        let client = snapshot.declared.clients.get(client_id).ok_or(EngineError::ClientNotFound)?;
        self.declare(vec![Change::DeleteClient(client.client_id.clone())]).await?;
        Ok(deleted("client", client_id.to_owned()))
    }

    /// Deletes the authorization of a client on a service.
    pub async fn delete_authorization(&self, client_id: &str, service: &str) -> Result<ApplyReport, EngineError> {
        self.refresh().await?;
        let snapshot = self.snapshot()?;
        let declared = &snapshot.declared;
        let found = declared
            .clients
            .get(client_id)
            .zip(declared.services.get(service))
            .filter(|(client, service)| declared.authorizations.contains_key(&(client.key, service.key)));
        let (client, service) = found.ok_or(EngineError::AuthorizationNotFound)?;
        let change = Change::DeleteAuthorization { client_id: client.client_id.clone(), service: service.name.clone() };
        self.declare(vec![change]).await?;
        Ok(deleted("authorization", format!("{} on {}", client.client_id, service.name)))
    }
}

/// What sends to audiences names only types that there are.
fn unknown_types(declaration: &Declaration, known: &BTreeSet<String>, problems: &mut Vec<Problem>) {
    let audience = |sink: &SinkDeclaration| sink.notifications.as_ref()?.audience.as_ref().map(|it| it.kind.clone());
    let outboxes =
        declaration.outboxes.iter().enumerate().filter_map(|(i, one)| {
            Some((format!("/outboxes/{i}/sink/notifications/audience/type"), audience(&one.sink)?))
        });
    let captures =
        declaration.captures.iter().enumerate().filter_map(|(i, one)| {
            Some((format!("/captures/{i}/sink/notifications/audience/type"), audience(&one.sink)?))
        });
    let sources = declaration.notification_sources.iter().enumerate().filter_map(|(i, one)| {
        Some((format!("/notificationSources/{i}/audience/type"), one.audience.as_ref()?.kind.clone()))
    });
    for (place, kind) in outboxes.chain(captures).chain(sources).filter(|(_, kind)| !known.contains(kind)) {
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        let message = format!(
            "there is no type of audience {kind:?}; declare it under `audiences`: there are {}",
            known.join(", ")
        );
        problems.push(Problem::at(place, message));
    }
}

pub(crate) fn deleted(kind: &str, name: String) -> ApplyReport {
    let mut plan = Plan::default();
    plan.note(kind, name, AppliedAction::Deleted, None);
    plan.report
}

/// Checks a service's declaration, and fills in the defaults.
fn service_change(
    service: &ServiceDeclaration,
    default: TaskTransport,
    path: &str,
    problems: &mut Vec<Problem>,
) -> Option<Change> {
    let before = problems.len();
    let mut wrong = |field: &str, message: String| problems.push(Problem::at(format!("{path}/{field}"), message));
    let name = ServiceName::new(service.service_name.clone());
    if let Err(error) = &name {
        wrong("serviceName", error.to_string());
    }
    let queue_name = service.queue_name.clone().unwrap_or_else(|| service.service_name.clone());
    if ServiceName::new(queue_name.clone()).is_err() {
        wrong("queueName", "must follow the same rules as a service's name".to_owned());
    }
    let json_schema = service.json_schema.as_ref().and_then(|schema| match Json::parse(schema.to_string()) {
        Ok(json) => {
            if let Err(error) = Schema::check_declared(&json) {
                wrong("jsonSchema", error);
            }
            Some(json)
        }
        Err(error) => {
            wrong("jsonSchema", error.to_string());
            None
        }
    });
    let lease = service.lease.map_or(DEFAULT_LEASE, |lease| lease.0);
    if !(Duration::from_secs(1)..=Duration::from_secs(86_400)).contains(&lease) {
        wrong("lease", "must be between 1s and 1d".to_owned());
    }
    let delivery_limit = service.delivery_limit.unwrap_or(DEFAULT_DELIVERY_LIMIT);
    if delivery_limit == 0 {
        wrong("deliveryLimit", "must be at least 1".to_owned());
    }
    if service.capacity.is_some_and(|capacity| i32::try_from(capacity).is_err()) {
        wrong("capacity", format!("must be at most {}", i32::MAX));
    }
    let transport = match service.transport {
        Some(TransportName::Builtin) => TaskTransport::Builtin,
        Some(TransportName::Rabbitmq) => TaskTransport::RabbitMq,
        None => default,
    };
    let retention = service.retention.unwrap_or_default();
    let limits = ServiceLimits {
        capacity: service.capacity,
        lease,
        delivery_limit,
        retention: Retention {
            finished: retention.finished.map(|finished| finished.0),
            any: retention.any.map(|any| any.0),
        },
        callback_retries: service.callback_retries.as_ref().map(|waits| waits.iter().map(|wait| wait.0).collect()),
        retry: RetryPolicy::none(),
        timeout: service.timeout.map(|timeout| timeout.0),
        priority_step: service.priority_step.map_or(DEFAULT_PRIORITY_STEP, |step| step.0),
        flow: flow::limits(service, transport, &mut wrong),
    };
    if limits.timeout.is_some_and(|timeout| timeout < Duration::from_secs(1) || timeout > LONGEST_TIMEOUT) {
        wrong("timeout", "must be between 1s and 30d".to_owned());
    }
    if limits.priority_step > LONGEST_STEP {
        wrong("priorityStep", "must be at most 7d".to_owned());
    }
    if let Some(waits) = &limits.callback_retries
        && (waits.len() > MAX_RETRIES || waits.iter().any(|wait| *wait > LONGEST_WAIT))
    {
        wrong("callbackRetries", format!("must be at most {MAX_RETRIES} times, of at most 7d each"));
    }
    let queue = service.queue.unwrap_or_default();
    if queue.message_ttl.is_some_and(|ttl| ttl.0.is_zero() || ttl.0 > LONGEST_TTL) {
        wrong("queue/messageTtl", "must be more than 0s, and at most 30d".to_owned());
    }
    if queue.max_length.is_some_and(|length| length == 0 || i32::try_from(length).is_err()) {
        wrong("queue/maxLength", format!("must be between 1 and {}", i32::MAX));
    }
    let retry = service.retry.as_ref().map(|retry| policy(retry, &format!("{path}/retry"), problems));
    let limits = ServiceLimits { retry: retry.unwrap_or_else(RetryPolicy::none), ..limits };
    let change = Change::PutService {
        name: name.ok()?,
        queue_name,
        transport,
        queue: QueueSettings {
            kind: match queue.kind {
                QueueTypeName::Classic => QueueKind::Classic,
                QueueTypeName::Quorum => QueueKind::Quorum,
            },
            message_ttl: queue.message_ttl.map(|ttl| ttl.0),
            max_length: queue.max_length,
        },
        json_schema,
        paused: service.paused,
        limits,
    };
    (problems.len() == before).then_some(change)
}

/// Two services that consume one queue would make dead letters of each other's messages.
fn shared_queues(declared: &Declared, changes: &[Change], problems: &mut Vec<Problem>) {
    let mut queues: HashMap<&str, &ServiceName> = HashMap::new();
    let mut put = HashSet::new();
    for change in changes {
        let Change::PutService { name, queue_name, transport, .. } = change else { continue };
        put.insert(name);
        if transport.is_brokered()
            && let Some(other) = queues.insert(queue_name, name)
        {
            problems.push(shared(name, other, queue_name));
        }
    }
    for service in declared.services.values().filter(|service| !put.contains(&service.name)) {
        if service.transport.is_brokered()
            && let Some(name) = queues.get(service.queue_name.as_str())
        {
            problems.push(shared(name, &service.name, &service.queue_name));
        }
    }
}

fn shared(service: &ServiceName, other: &ServiceName, queue: &str) -> Problem {
    Problem::at("/services", format!("{service} and {other} can not share the queues {queue}-in and {queue}-out"))
}

fn plan_service(declared: &Declared, change: Change, plan: &mut Plan) {
    let Change::PutService { name, queue_name, transport, queue, json_schema, paused, limits } = &change else {
        return;
    };
    let action = match declared.services.get(name) {
        None => AppliedAction::Created,
        Some(known)
            if known.queue_name == *queue_name
                && known.transport == *transport
                && known.queue == *queue
                && known.json_schema == *json_schema
                && paused.is_none_or(|paused| paused == known.paused)
                && known.limits == *limits =>
        {
            AppliedAction::Unchanged
        }
        Some(_) => AppliedAction::Updated,
    };
    plan.note("service", name.to_string(), action, None);
    if action != AppliedAction::Unchanged {
        plan.changes.push(change);
    }
}

fn plan_authorization(
    declared: &Declared,
    authorization: &AuthorizationDeclaration,
    path: &str,
    problems: &mut Vec<Problem>,
    plan: &mut Plan,
) {
    let (Ok(client_id), Ok(service)) =
        (ClientId::new(authorization.client_id.clone()), ServiceName::new(authorization.service_name.clone()))
    else {
        return;
    };
    if authorization.roles.is_empty() {
        problems.push(Problem::at(format!("{path}/roles"), "must name at least one of consume, work"));
    }
    if authorization.capacity.is_some_and(|capacity| i32::try_from(capacity).is_err()) {
        problems.push(Problem::at(format!("{path}/capacity"), format!("must be at most {}", i32::MAX)));
    }
    let flow = flow::client_flow(authorization, path, problems);
    let roles: Vec<Role> = authorization
        .roles
        .iter()
        .map(|role| match role {
            RoleName::Consume => Role::Consume,
            RoleName::Work => Role::Work,
        })
        .collect();
    let known = declared
        .clients
        .get(&client_id)
        .zip(declared.services.get(&service))
        .and_then(|(client, service)| declared.authorizations.get(&(client.key, service.key)));
    let action = match known {
        None => AppliedAction::Created,
        Some(known)
            if known.roles == Roles::of(&roles) && known.capacity == authorization.capacity && known.flow == flow =>
        {
            AppliedAction::Unchanged
        }
        Some(_) => AppliedAction::Updated,
    };
    plan.note("authorization", format!("{client_id} on {service}"), action, None);
    if action != AppliedAction::Unchanged {
        let capacity = authorization.capacity;
        plan.changes.push(Change::PutAuthorization { client_id, service, roles, capacity, flow });
    }
}

/// Deletes what was not named: authorizations first, because they refer to the others.
fn plan_pruning(
    declared: &Declared,
    services: &HashSet<String>,
    clients: &HashSet<String>,
    authorizations: &HashSet<(String, String)>,
    plan: &mut Plan,
) {
    for (client_key, service_key) in declared.authorizations.keys() {
        let (Some(client), Some(service)) =
            (declared.client_by_key(*client_key), declared.service_by_key(*service_key))
        else {
            continue;
        };
        if !authorizations.contains(&(client.client_id.to_string(), service.name.to_string())) {
            plan.note(
                "authorization",
                format!("{} on {}", client.client_id, service.name),
                AppliedAction::Deleted,
                None,
            );
            plan.changes.push(Change::DeleteAuthorization {
                client_id: client.client_id.clone(),
                service: service.name.clone(),
            });
        }
    }
    for client in declared.clients.values().filter(|client| !clients.contains(client.client_id.as_str())) {
        plan.note("client", client.client_id.to_string(), AppliedAction::Deleted, None);
        plan.changes.push(Change::DeleteClient(client.client_id.clone()));
    }
    for service in declared.services.values().filter(|service| !services.contains(service.name.as_str())) {
        plan.note("service", service.name.to_string(), AppliedAction::Deleted, None);
        plan.changes.push(Change::DeleteService(service.name.clone()));
    }
}
