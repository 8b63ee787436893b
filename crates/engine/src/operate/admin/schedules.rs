//! Schedules: declaring them, reading them, running them manually.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use relais_core::{
    Change, Client, ClientId, ClientKey, Cron, CronError, Declared, Destination, Json, Missed, NotificationRights,
    Overlap, Priority, QueueSettings, Role, RunByHand, RunTerms, Schedule, ScheduleChange, ScheduleName,
    ScheduleRecord, Service, ServiceKey, ServiceLimits, ServiceName, TaskTransport,
};
use relais_protocol::{
    HumanDuration,
    admin::{AppliedAction, ApplyReport, Declaration, RoleName},
    consumer::SubmitRequest,
    schedule::{MissedPolicy, OverlapPolicy, ScheduleDeclaration, ScheduleRun, ScheduleRuns, ScheduleState},
};

use super::{
    declare::{Plan, deleted},
    notification_rights,
};
use crate::{
    Accepted, Access, Engine, EngineError, Problem,
    follow::views::text,
    registry::Snapshot,
    submit::schema::Schema,
    submit::terms,
    submit::{new_task, refused},
    timers::schedule::submission,
};

impl Engine {
    /// The schedules, in the order of their names.
    pub async fn schedule_states(&self) -> Result<Vec<ScheduleState>, EngineError> {
        Ok(self.0.store.list_schedules(Vec::new()).await?.iter().map(schedule_state).collect())
    }

    /// One schedule.
    pub async fn schedule_state(&self, name: &str) -> Result<ScheduleState, EngineError> {
        Ok(schedule_state(&self.declared_schedule(name).await?))
    }

    /// Pauses or resumes a schedule.
    pub async fn pause_schedule(&self, name: &str, paused: bool) -> Result<ScheduleState, EngineError> {
        let name = self.declared_schedule(name).await?.schedule.name;
        self.declare(vec![Change::Schedule(ScheduleChange::Pause { name: name.clone(), paused })]).await?;
        self.schedule_state(name.as_str()).await
    }

    /// Removes a schedule. Its tasks stay.
    pub async fn delete_schedule(&self, name: &str) -> Result<ApplyReport, EngineError> {
        let name = self.declared_schedule(name).await?.schedule.name;
        self.declare(vec![Change::Schedule(ScheduleChange::Delete(name.clone()))]).await?;
        Ok(deleted("schedule", name.to_string()))
    }

    /// Runs a schedule now, paused or not.
    pub async fn run_schedule(&self, name: &str) -> Result<Accepted, EngineError> {
        self.refresh().await?;
        let schedule = self.declared_schedule(name).await?.schedule;
        let now = self.0.store.ping().await?;
        let (access, task) = self.run_of(&*self.snapshot()?, &schedule, now)?;
        match self.0.store.run_schedule(schedule.name, task).await? {
            RunByHand::NotFound => Err(EngineError::ScheduleNotFound),
            RunByHand::Busy(task_id) => Err(EngineError::Conflict(format!(
                "task {task_id} of the run before is unfinished, and runs of this schedule do not overlap"
            ))),
            RunByHand::Answered(answer) => self.account(&access, refused(answer)),
        }
    }

    /// The next runs of a schedule, as if it were not paused.
    pub async fn next_runs(&self, name: &str, count: usize) -> Result<ScheduleRuns, EngineError> {
        let schedule = self.declared_schedule(name).await?.schedule;
        let cron = Cron::parse(&schedule.cron, &schedule.time_zone);
        let cron = cron.map_err(|error| EngineError::Conflict(error.to_string()))?;
        let runs = cron.upcoming(self.0.store.ping().await?).take(count);
        let runs = runs.map(|run| ScheduleRun { run_date: text(run), local_date: cron.local(run) });
        Ok(ScheduleRuns {
            schedule_name: schedule.name.to_string(),
            description: cron.describe(),
            paused: schedule.paused,
            runs: runs.collect(),
        })
    }

    /// The schedules, as a file would say it.
    pub(super) async fn declared_schedules(&self) -> Result<Vec<ScheduleDeclaration>, EngineError> {
        let records = self.0.store.list_schedules(Vec::new()).await?;
        Ok(records.iter().map(|record| schedule_declaration(&record.schedule)).collect())
    }

    async fn declared_schedule(&self, name: &str) -> Result<ScheduleRecord, EngineError> {
        let name = ScheduleName::new(name).map_err(|_| EngineError::ScheduleNotFound)?;
        self.0.store.list_schedules(vec![name]).await?.pop().ok_or(EngineError::ScheduleNotFound)
    }

    /// Checks the schedules of a declaration, and compares them with what is there.
    pub(super) async fn plan_schedules(
        &self,
        snapshot: &Snapshot,
        declaration: &Declaration,
        prune: bool,
        problems: &mut Vec<Problem>,
        plan: &mut Plan,
    ) -> Result<(), EngineError> {
        if declaration.schedules.is_empty() && !prune {
            return Ok(());
        }
        let known = self.0.store.list_schedules(Vec::new()).await?.into_iter();
        let known: HashMap<String, Schedule> =
            known.map(|record| (record.schedule.name.to_string(), record.schedule)).collect();
        let outlook = Outlook { snapshot, declaration, prune };
        let mut named = HashSet::new();
        for (i, declared) in declaration.schedules.iter().enumerate() {
            let path = format!("/schedules/{i}");
            if !named.insert(declared.schedule_name.as_str()) {
                problems.push(Problem::at(path, format!("schedule {} is declared twice", declared.schedule_name)));
                continue;
            }
            let Some(schedule) = self.schedule_of(declared, &outlook, &path, problems) else { continue };
            let action = match known.get(schedule.name.as_str()) {
                None => AppliedAction::Created,
                Some(known)
                    if *known == (Schedule { paused: declared.paused.unwrap_or(known.paused), ..schedule.clone() }) =>
                {
                    AppliedAction::Unchanged
                }
                Some(_) => AppliedAction::Updated,
            };
            plan.note("schedule", schedule.name.to_string(), action, None);
            if action != AppliedAction::Unchanged {
                plan.changes.push(Change::Schedule(ScheduleChange::Put {
                    schedule: Box::new(schedule),
                    paused: declared.paused,
                }));
            }
        }
        let mut gone: Vec<&Schedule> =
            known.values().filter(|known| prune && !named.contains(known.name.as_str())).collect();
        gone.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        for schedule in gone {
            plan.note("schedule", schedule.name.to_string(), AppliedAction::Deleted, None);
            plan.changes.push(Change::Schedule(ScheduleChange::Delete(schedule.name.clone())));
        }
        Ok(())
    }

    /// Checks a schedule's declaration, down to what it would submit, and fills in the defaults.
    fn schedule_of(
        &self,
        declared: &ScheduleDeclaration,
        outlook: &Outlook<'_>,
        path: &str,
        problems: &mut Vec<Problem>,
    ) -> Option<Schedule> {
        let before = problems.len();
        let mut wrong = |field: &str, message: String| problems.push(Problem::at(format!("{path}/{field}"), message));
        let name = ScheduleName::new(declared.schedule_name.clone());
        if let Err(error) = &name {
            wrong("scheduleName", error.to_string());
        }
        let time_zone = declared.time_zone.clone().unwrap_or_else(|| "UTC".to_owned());
        match Cron::parse(&declared.cron, &time_zone) {
            Ok(_) => {}
            Err(error @ CronError::Expression(_)) => wrong("cron", error.to_string()),
            Err(error @ CronError::TimeZone(_)) => wrong("timeZone", error.to_string()),
        }
        let body = declared.body.as_ref().map_or_else(|| "{}".to_owned(), ToString::to_string);
        let body = Json::parse(body).map_err(|error| wrong("body", error.to_string())).ok();
        let callback = declared.callback.as_ref().and_then(|callback| serde_json::to_string(callback).ok());
        let (service, client) = (outlook.service(&declared.service_name), outlook.client(&declared.client_id));
        let both = service.is_some() && client.is_some();
        if both && !outlook.may_consume(&declared.client_id, &declared.service_name) {
            let message = format!("{} has no role consume on {}", declared.client_id, declared.service_name);
            wrong("clientId", message);
        }
        if service.is_none() {
            wrong("serviceName", format!("there is no service {}", declared.service_name));
        }
        if client.is_none() {
            wrong("clientId", format!("there is no client {}", declared.client_id));
        }
        let ((service, schema), client) = (service?, client?);
        let schedule = Schedule {
            name: name.ok()?,
            service: service.name.clone(),
            client: client.client_id.clone(),
            cron: declared.cron.trim().to_owned(),
            time_zone,
            body: body?,
            callback: callback.and_then(|text| Json::parse(text).ok()),
            correlation_id: declared.correlation_id.clone(),
            terms: RunTerms {
                priority: declared.priority.and_then(Priority::new),
                // What is wrong with it is told with the rest of what would be submitted.
                retry: declared.retry.as_ref().map(|retry| terms::policy(retry, "", &mut Vec::new())),
                timeout: declared.timeout.map(|timeout| timeout.0),
                expires: declared.expires_after.map(|expires| expires.0),
            },
            missed: match declared.missed.unwrap_or_default() {
                MissedPolicy::Skip => Missed::Skip,
                MissedPolicy::Once => Missed::Once,
                MissedPolicy::All => Missed::All,
            },
            overlap: match declared.overlap.unwrap_or_default() {
                OverlapPolicy::Allow => Overlap::Allow,
                OverlapPolicy::Skip => Overlap::Skip,
            },
            paused: false,
        };
        // As if it were submitted now, to the service as it will be.
        let alone = Snapshot {
            declared: Declared::default(),
            schemas: schema.map(|schema| (service.key, schema)).into_iter().collect(),
        };
        let judged = submission(&schedule, None)
            .map(|request| SubmitRequest { priority: declared.priority, ..request })
            .and_then(|request| {
                new_task(&alone, &self.0.options.callback_senders, &Access { client, service }, request)
            });
        if let Err(error) = judged {
            problems.extend(problems_of(&error, path));
        }
        (problems.len() == before).then_some(schedule)
    }
}

/// What is wrong with what a schedule would submit, by its place in the declaration.
fn problems_of(error: &EngineError, path: &str) -> Vec<Problem> {
    match error {
        EngineError::SchemaMismatch(problems) => problems
            .iter()
            .map(|problem| Problem::at(format!("{path}/body{}", problem.path), problem.message.clone()))
            .collect(),
        EngineError::Invalid(problems) => problems
            .iter()
            .map(|problem| Problem::at(format!("{path}{}", problem.path), problem.message.clone()))
            .collect(),
        EngineError::TooDeep | EngineError::NumberTooLong(_) => {
            vec![Problem::at(format!("{path}/body"), error.to_string())]
        }
        EngineError::UnknownCallbackType(kind) => {
            vec![Problem::at(format!("{path}/callback/type"), format!("{kind:?} is not a type that this server knows"))]
        }
        other => vec![Problem::at(format!("{path}/callback"), other.to_string())],
    }
}

/// What will be declared once a declaration is applied.
struct Outlook<'d> {
    snapshot: &'d Snapshot,
    declaration: &'d Declaration,
    prune: bool,
}

impl Outlook<'_> {
    /// A service as far as it is known yet, and its schema.
    fn service(&self, name: &str) -> Option<(Arc<Service>, Option<Arc<Schema>>)> {
        let known = self.snapshot.declared.services.get(name);
        let Some(wanted) = self.declaration.services.iter().find(|service| service.service_name == name) else {
            let known = known.filter(|_| !self.prune)?;
            return Some((Arc::clone(known), self.snapshot.schemas.get(&known.key).cloned()));
        };
        let schema = wanted.json_schema.as_ref().and_then(|schema| Json::parse(schema.to_string()).ok());
        let schema = schema.and_then(|schema| Schema::compile(&schema).ok()).map(Arc::new);
        let service = match known {
            Some(known) => Arc::clone(known),
            None => Arc::new(Service {
                key: ServiceKey(0),
                name: ServiceName::new(name).ok()?,
                queue_name: name.to_owned(),
                transport: TaskTransport::default(),
                queue: QueueSettings::default(),
                json_schema: None,
                paused: false,
                limits: ServiceLimits::default(),
            }),
        };
        Some((service, schema))
    }

    /// A client as far as it is known yet.
    fn client(&self, name: &str) -> Option<Arc<Client>> {
        let known = self.snapshot.declared.clients.get(name);
        let Some(wanted) = self.declaration.clients.iter().find(|client| client.client_id == name) else {
            return known.filter(|_| !self.prune).cloned();
        };
        let mut client = match known {
            Some(known) => Client::clone(known),
            None => Client {
                key: ClientKey(0),
                client_id: ClientId::new(name).ok()?,
                secret_hash: String::new(),
                signing_secrets: Vec::new(),
                destinations: Vec::new(),
                notifications: NotificationRights::default(),
            },
        };
        if let Some(wanted) = &wanted.destinations {
            client.destinations = wanted
                .iter()
                .map(|one| Destination {
                    name: one.name.clone(),
                    exchange: one.exchange.clone().unwrap_or_default(),
                    routing_key: one.routing_key.clone(),
                })
                .collect();
        }
        if let Some(wanted) = &wanted.notifications {
            client.notifications = notification_rights::rights(wanted);
        }
        Some(Arc::new(client))
    }

    fn may_consume(&self, client: &str, service: &str) -> bool {
        let wanted = |one: &&relais_protocol::admin::AuthorizationDeclaration| {
            one.client_id == client && one.service_name == service
        };
        if let Some(wanted) = self.declaration.authorizations.iter().find(wanted) {
            return wanted.roles.contains(&RoleName::Consume);
        }
        let keys = self.snapshot.declared.clients.get(client).zip(self.snapshot.declared.services.get(service));
        !self.prune
            && keys.is_some_and(|(client, service)| {
                self.snapshot.declared.roles(client.key, service.key).has(Role::Consume)
            })
    }
}

fn schedule_declaration(schedule: &Schedule) -> ScheduleDeclaration {
    ScheduleDeclaration {
        schedule_name: schedule.name.to_string(),
        service_name: schedule.service.to_string(),
        client_id: schedule.client.to_string(),
        cron: schedule.cron.clone(),
        time_zone: Some(schedule.time_zone.clone()),
        body: schedule.body.to_value().ok(),
        correlation_id: schedule.correlation_id.clone(),
        callback: schedule.callback.as_ref().and_then(|callback| serde_json::from_str(callback.get()).ok()),
        priority: schedule.terms.priority.map(Priority::level),
        expires_after: schedule.terms.expires.map(HumanDuration),
        timeout: schedule.terms.timeout.map(HumanDuration),
        retry: schedule.terms.retry.as_ref().map(terms::declared),
        missed: Some(match schedule.missed {
            Missed::Skip => MissedPolicy::Skip,
            Missed::Once => MissedPolicy::Once,
            Missed::All => MissedPolicy::All,
        }),
        overlap: Some(match schedule.overlap {
            Overlap::Allow => OverlapPolicy::Allow,
            Overlap::Skip => OverlapPolicy::Skip,
        }),
        paused: Some(schedule.paused),
    }
}

fn schedule_state(record: &ScheduleRecord) -> ScheduleState {
    let ScheduleRecord { schedule, progress } = record;
    ScheduleState {
        declaration: schedule_declaration(schedule),
        description: Cron::parse(&schedule.cron, &schedule.time_zone)
            .map_or_else(|error| error.to_string(), |cron| cron.describe()),
        next_run_date: progress.next.map(text),
        last_run_date: progress.last_run.map(text),
        last_task_id: progress.last_task.map(|task_id| task_id.to_string()),
        last_error: progress.last_error.clone(),
        last_error_date: progress.last_error_at.map(text),
        runs: progress.runs,
        skipped_runs: progress.skipped,
        refused_runs: progress.refused,
        missed_runs: progress.missed,
    }
}
