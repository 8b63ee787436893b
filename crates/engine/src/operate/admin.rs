//! Use cases of operators: declare, read, pause, cancel, purge. The same for a file, the admin API and the command
//! line.

pub(crate) mod clients;
pub(crate) mod declare;
mod flow;
mod instances;
mod limits;
mod notification_rights;
mod schedules;

pub(crate) use declare::deleted;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use relais_core::{
    Backlog, Change, Event, PurgeRule, QueueKind, QueueSettings, QueueShare, Role, Service, ServiceKey, Status, Task,
    TaskEvent, TaskFilter, TaskId, TaskLink, TaskTransport,
};
use relais_protocol::{
    HumanDuration,
    admin::{
        AdminTaskView, AuthorizationDeclaration, ClientDeclaration, ClientLoad, Declaration, LinkedTask, LinkedTasks,
        PurgeAnswer, PurgedService, QueueDeclaration, QueueTypeName, RetentionDeclaration, RoleName,
        ServiceDeclaration, ServiceState, TransportName,
    },
    consumer::ServiceView,
};

use crate::{
    Engine, EngineError, ListQuery,
    auth::hash_secret,
    follow::paged,
    follow::views::{admin_task_view, attempt_views, task_status, text},
    submit::terms,
};

/// The most related tasks that are shown with a task.
const LINKED: usize = 20;

/// How long tasks are kept, where their service does not say.
#[derive(Debug, Clone, Copy)]
pub struct PurgeDefaults {
    /// How often to purge.
    pub every: Duration,
    /// Finished tasks, after their end.
    pub finished: Duration,
    /// Any task, after its submission.
    pub any: Duration,
    /// The most tasks looked at in one transaction.
    pub batch: usize,
}

impl Default for PurgeDefaults {
    fn default() -> Self {
        const DAY: Duration = Duration::from_secs(86_400);
        Self { every: DAY, finished: DAY * 30, any: DAY * 90, batch: 500 }
    }
}

impl Engine {
    /// The services that a client may use, in the order of their names.
    pub fn services_of(&self, client: &relais_core::Client) -> Result<Vec<ServiceView>, EngineError> {
        let snapshot = self.snapshot()?;
        let declared = &snapshot.declared;
        let views = declared.services_by_name().into_iter().filter_map(|service| {
            let roles = declared.roles(client.key, service.key).to_vec();
            (!roles.is_empty()).then(|| ServiceView {
                service_name: service.name.to_string(),
                roles: roles.into_iter().map(|role| role.as_str().to_owned()).collect(),
                paused: service.paused,
                json_schema: service.json_schema.as_ref().map(|schema| schema.as_raw().to_owned()),
            })
        });
        Ok(views.collect())
    }

    /// Whether there is such a service.
    pub fn declared_service_name(&self, name: &str) -> Result<(), EngineError> {
        let snapshot = self.snapshot()?;
        if snapshot.declared.services.contains_key(name) { Ok(()) } else { Err(EngineError::ServiceNotFound) }
    }

    /// The names of all services and clients, in their order.
    pub fn declared_names(&self) -> Result<(Vec<String>, Vec<String>), EngineError> {
        let snapshot = self.snapshot()?;
        let services = snapshot.declared.services_by_name().into_iter().map(|service| service.name.to_string());
        let mut clients: Vec<String> =
            snapshot.declared.clients.values().map(|client| client.client_id.to_string()).collect();
        clients.sort_unstable();
        Ok((services.collect(), clients))
    }

    /// The services with their counters.
    pub async fn service_states(&self) -> Result<Vec<ServiceState>, EngineError> {
        self.refresh().await?;
        let (snapshot, backlog) = (self.snapshot()?, self.0.store.backlog().await?);
        Ok(snapshot.declared.services_by_name().into_iter().map(|service| service_state(service, &backlog)).collect())
    }

    /// One service with its counters.
    pub async fn service_state(&self, name: &str) -> Result<ServiceState, EngineError> {
        self.refresh().await?;
        let (snapshot, backlog) = (self.snapshot()?, self.0.store.backlog().await?);
        let declared = &snapshot.declared;
        let service = declared.services.get(name).ok_or(EngineError::ServiceNotFound)?;
        let shares = self.0.store.queue_shares(service.key).await?;
        let load = |share: &QueueShare| {
            // Of a client that is gone nobody knows the name.
            let client = declared.client_by_key(share.client)?;
            let own = declared.authorizations.get(&(share.client, service.key)).and_then(|own| own.flow.max_running);
            Some(ClientLoad {
                client_id: client.client_id.to_string(),
                pending: share.pending,
                in_progress: share.in_progress,
                max_running: own.or(service.limits.flow.max_running_per_client),
            })
        };
        let mut clients: Vec<ClientLoad> = shares.iter().filter_map(load).collect();
        clients.sort_unstable_by(|a, b| a.client_id.cmp(&b.client_id));
        Ok(ServiceState { clients, ..service_state(service, &backlog) })
    }

    /// Pauses or resumes a service.
    pub async fn pause_service(&self, name: &str, paused: bool) -> Result<ServiceState, EngineError> {
        let service = self.declared_service(name).await?;
        self.declare(vec![Change::PauseService { name: service.name.clone(), paused }]).await?;
        self.service_state(name).await
    }

    /// Everything that is declared, as a file would say it. Secrets are known to nobody.
    pub async fn declaration(&self) -> Result<Declaration, EngineError> {
        self.refresh().await?;
        let snapshot = self.snapshot()?;
        let declared = &snapshot.declared;
        let by_name: BTreeMap<&str, _> = declared.clients.values().map(|c| (c.client_id.as_str(), c)).collect();
        let mut authorizations = Vec::new();
        for client in by_name.values() {
            for service in declared.services_by_name() {
                let Some(authorization) = declared.authorizations.get(&(client.key, service.key)) else { continue };
                authorizations.push(AuthorizationDeclaration {
                    client_id: client.client_id.to_string(),
                    service_name: service.name.to_string(),
                    roles: authorization.roles.to_vec().into_iter().map(role_name).collect(),
                    capacity: authorization.capacity,
                    max_running: authorization.flow.max_running,
                    share: (authorization.flow.share != 1).then_some(authorization.flow.share),
                });
            }
        }
        Ok(Declaration {
            services: declared.services_by_name().into_iter().map(|service| service_declaration(service)).collect(),
            clients: by_name
                .values()
                .map(|client| ClientDeclaration {
                    client_id: client.client_id.to_string(),
                    client_secret: None,
                    signing_secret: None,
                    destinations: (!client.destinations.is_empty())
                        .then(|| client.destinations.iter().map(clients::destination_declaration).collect()),
                    notifications: notification_rights::declaration(&client.notifications),
                })
                .collect(),
            authorizations,
            schedules: self.declared_schedules().await?,
            outboxes: match self.outboxes() {
                Some(outboxes) => outboxes.declarations().await?,
                None => Vec::new(),
            },
            captures: match self.captures() {
                Some(captures) => captures.declarations().await?,
                None => Vec::new(),
            },
            audiences: match self.audiences() {
                Some(audiences) => audiences.declarations().await?,
                None => Vec::new(),
            },
            notification_sources: match self.notification_sources() {
                Some(sources) => sources.declarations().await?,
                None => Vec::new(),
            },
        })
    }

    /// Any task.
    pub async fn admin_task(&self, task_id: TaskId) -> Result<AdminTaskView, EngineError> {
        let task = self.0.store.find_task(task_id).await?.ok_or(EngineError::TaskNotFound)?;
        let (view, attempts) = (self.view(&task), self.0.store.list_attempts(task.id).await?);
        Ok(AdminTaskView {
            task: view,
            attempts: Some(attempt_views(&task, attempts)),
            children: self.linked(TaskLink::Parent(task_id)).await?,
            waited_for_by: self.linked(TaskLink::After(task_id)).await?,
            ..admin_task_view(&task, true)
        })
    }

    /// The first tasks that have this in common, if any have.
    async fn linked(&self, link: TaskLink) -> Result<Option<LinkedTasks>, EngineError> {
        let filter = TaskFilter { link: Some(link), limit: LINKED + 1, ..TaskFilter::default() };
        let found = self.0.store.list_tasks(filter).await?.tasks;
        let view = |task: &Task| LinkedTask {
            task_id: task.task_id.to_string(),
            service: task.service.to_string(),
            status: task_status(task.state.status),
        };
        let tasks = || found.iter().take(LINKED).map(view).collect();
        Ok((!found.is_empty()).then(|| LinkedTasks { tasks: tasks(), more: found.len() > LINKED }))
    }

    /// The tasks that match, the newest first, and the cursor of the next page.
    pub async fn admin_list(
        &self,
        service: Option<&str>,
        client_id: Option<&str>,
        query: ListQuery,
    ) -> Result<(Vec<AdminTaskView>, Option<String>), EngineError> {
        let filter = self.found(service, client_id, query)?;
        let (tasks, cursor) = paged(self.0.store.list_tasks(filter).await?);
        Ok((tasks.iter().map(|task| admin_task_view(task, false)).collect(), cursor))
    }

    /// The tasks of a selection, the newest first, and the cursor of the next page.
    pub async fn list_selected(
        &self,
        selection: &crate::Selection,
        limit: usize,
    ) -> Result<(Vec<AdminTaskView>, Option<String>), EngineError> {
        let (tasks, cursor) = paged(self.0.store.list_tasks(self.matching(selection, limit)?).await?);
        Ok((tasks.iter().map(|task| admin_task_view(task, false)).collect(), cursor))
    }

    /// Cancels any task.
    pub async fn admin_cancel(&self, task_id: TaskId) -> Result<AdminTaskView, EngineError> {
        let service = self.service_of(task_id).await?;
        self.cancel_by(TaskEvent { task_id, service, client: None, event: Event::Cancelled }).await?;
        self.admin_task(task_id).await
    }

    /// Removes what is too old, a batch at a time; or only counts it.
    pub async fn purge(&self, dry_run: bool) -> Result<PurgeAnswer, EngineError> {
        let answer = self.purge_tasks(dry_run).await?;
        if !dry_run {
            self.tidy().await?;
        }
        Ok(answer)
    }

    /// Forgets what is kept beside tasks and is not needed any more: how many idempotency keys that is.
    pub(crate) async fn tidy(&self) -> Result<u64, EngineError> {
        Ok(self.0.store.purge_keys(self.0.options.idempotency_age).await?)
    }

    /// Removes tasks and batches that are too old, or only counts them.
    pub(crate) async fn purge_tasks(&self, dry_run: bool) -> Result<PurgeAnswer, EngineError> {
        self.refresh().await?;
        let (snapshot, defaults) = (self.snapshot()?, self.0.options.purge);
        // Services that are gone still have tasks, and counters.
        let mut keys: Vec<ServiceKey> =
            self.0.store.backlog().await?.counters.iter().map(|tally| tally.service).collect();
        keys.sort_unstable();
        keys.dedup();
        let mut services = Vec::new();
        for key in keys {
            let service = snapshot.declared.service_by_key(key);
            let retention = service.map(|service| service.limits.retention).unwrap_or_default();
            let mut rule = PurgeRule {
                service: key,
                finished: retention.finished.unwrap_or(defaults.finished),
                any: retention.any.unwrap_or(defaults.any),
                dry_run,
                batch: defaults.batch.max(1),
                cursor: None,
            };
            let mut purged = 0;
            loop {
                let report = self.0.store.purge_tasks(rule).await?;
                purged += report.purged;
                rule.cursor = report.cursor;
                if rule.cursor.is_none() {
                    break;
                }
            }
            if !dry_run {
                metrics::counter!("relais_tasks_purged_total").increment(purged);
            }
            services.push(PurgedService {
                service: service.map_or_else(|| "(deleted)".to_owned(), |service| service.name.to_string()),
                purged,
                finished: HumanDuration(rule.finished),
                any: HumanDuration(rule.any),
            });
        }
        let limit = defaults.batch.max(1);
        while !dry_run && self.0.store.purge_batches(defaults.finished, defaults.any, limit).await? > 0 {}
        Ok(PurgeAnswer { dry_run, services })
    }

    pub(crate) async fn declare(&self, changes: Vec<Change>) -> Result<(), EngineError> {
        if !changes.is_empty() {
            self.0.store.declare(changes).await?;
        }
        self.refresh().await
    }

    pub(crate) async fn declared_service(&self, name: &str) -> Result<Arc<Service>, EngineError> {
        self.refresh().await?;
        self.snapshot()?.declared.services.get(name).map(Arc::clone).ok_or(EngineError::ServiceNotFound)
    }

    pub(crate) async fn hash(&self, secret: String) -> Result<String, EngineError> {
        let cost = self.0.options.auth.bcrypt_cost;
        tokio::task::spawn_blocking(move || hash_secret(&secret, cost)).await.map_err(|_| EngineError::Stopping)?
    }
}

fn role_name(role: Role) -> RoleName {
    match role {
        Role::Consume => RoleName::Consume,
        Role::Work => RoleName::Work,
    }
}

fn service_declaration(service: &Service) -> ServiceDeclaration {
    let limits = &service.limits;
    let retention = RetentionDeclaration {
        finished: limits.retention.finished.map(HumanDuration),
        any: limits.retention.any.map(HumanDuration),
    };
    ServiceDeclaration {
        service_name: service.name.to_string(),
        queue_name: Some(service.queue_name.clone()),
        transport: Some(match service.transport {
            TaskTransport::Builtin => TransportName::Builtin,
            TaskTransport::RabbitMq => TransportName::Rabbitmq,
        }),
        queue: (service.queue != QueueSettings::default()).then(|| QueueDeclaration {
            kind: match service.queue.kind {
                QueueKind::Classic => QueueTypeName::Classic,
                QueueKind::Quorum => QueueTypeName::Quorum,
            },
            message_ttl: service.queue.message_ttl.map(HumanDuration),
            max_length: service.queue.max_length,
        }),
        capacity: limits.capacity,
        json_schema: service.json_schema.as_ref().and_then(|schema| schema.to_value().ok()),
        paused: Some(service.paused),
        lease: Some(HumanDuration(limits.lease)),
        delivery_limit: Some(limits.delivery_limit),
        retention: (retention != RetentionDeclaration::default()).then_some(retention),
        callback_retries: limits
            .callback_retries
            .as_ref()
            .map(|waits| waits.iter().copied().map(HumanDuration).collect()),
        retry: Some(terms::declared(&limits.retry)),
        timeout: limits.timeout.map(HumanDuration),
        priority_step: Some(HumanDuration(limits.priority_step)),
        max_running: limits.flow.max_running,
        max_running_per_client: limits.flow.max_running_per_client,
        rate_limit: limits.flow.rate.map(flow::rate_declaration),
        fair_share: limits.flow.fair_share.then_some(true),
        dispatch_window: limits.flow.dispatch_window,
    }
}

pub(crate) fn service_state(service: &Service, backlog: &Backlog) -> ServiceState {
    let tally = |status: Status| {
        backlog.counters.iter().find(|tally| tally.service == service.key && tally.status == status).copied()
    };
    let current = |status| tally(status).map_or(0, |tally| tally.current());
    let ever = |status| tally(status).map_or(0, |tally| tally.arrived);
    ServiceState {
        declaration: service_declaration(service),
        pending: current(Status::Pending),
        waiting: current(Status::Waiting),
        in_progress: current(Status::InProgress),
        success: ever(Status::Success),
        failure: ever(Status::Failure),
        cancelled: ever(Status::Cancelled),
        oldest_pending_date: backlog
            .oldest_pending
            .iter()
            .find(|(key, _)| *key == service.key)
            .map(|(_, submitted)| text(*submitted)),
        clients: Vec::new(),
    }
}
