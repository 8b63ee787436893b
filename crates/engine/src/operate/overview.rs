//! The overview for operators, with problems first.

use std::time::Duration;

use relais_core::{Backlog, ServiceKey, Timestamp};
use relais_protocol::{
    admin::ServiceState,
    broker::BrokerView,
    schedule::ScheduleState,
    worker_state::{WorkerActivity, WorkerStateView},
};

use crate::{Engine, EngineError, Trend, operate::admin::service_state};

/// A queue whose oldest task has waited for so long is slow.
const SLOW: Duration = Duration::from_secs(5 * 60);

/// A worker that was not heard of for so long is not there.
const LATELY: Duration = Duration::from_secs(60);

/// A schedule whose run is due for so long is late.
const LATE: Duration = Duration::from_secs(30);

/// A service of whose tasks more than this part failed lately is failing, if it were more than a few.
const FAILING: f64 = 0.1;
const FEW: u64 = 5;

/// A queue that is so full is nearly full.
const NEARLY: f64 = 0.9;

/// The most lanes of callbacks that are looked at.
const LANES: usize = 1000;

/// How bad something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Somebody should act.
    Bad,
    /// Somebody should look.
    Warning,
    /// Worth knowing.
    Notice,
}

/// Something that is wrong, or may be.
#[derive(Debug, Clone, PartialEq)]
pub enum Trouble {
    /// The broker is away or takes nothing: why.
    Broker(String),
    /// The broker's queue is empty, but tasks wait that were published to it.
    Lost {
        /// The service.
        service: String,
    },
    /// The event bus does not work: why.
    Bus(String),
    /// Another part of the server does not work.
    Part {
        /// Which.
        part: &'static str,
        /// Why.
        why: String,
    },
    /// Tasks wait, and no worker has been heard of.
    NoWorker {
        /// The service.
        service: String,
        /// How many wait.
        pending: u64,
    },
    /// Tasks have waited for long.
    Slow {
        /// The service.
        service: String,
        /// For so long.
        oldest: Duration,
    },
    /// Many tasks have failed lately.
    Failing {
        /// The service.
        service: String,
        /// How many failed.
        failed: u64,
        /// How many ended.
        ended: u64,
    },
    /// No more tasks are taken, or nearly.
    Full {
        /// The service.
        service: String,
        /// How many wait.
        pending: u64,
        /// The capacity.
        capacity: u32,
    },
    /// A service is paused while tasks wait.
    Paused {
        /// The service.
        service: String,
        /// How many wait.
        pending: u64,
    },
    /// A worker is late to say that it is alive.
    Silent {
        /// The worker.
        worker: String,
        /// Its service.
        service: String,
        /// How many tasks it has.
        running: usize,
    },
    /// A schedule has not run when it should have.
    Overdue {
        /// The schedule.
        schedule: String,
        /// For so long.
        since: Duration,
    },
    /// The last run of a schedule was refused.
    Refused {
        /// The schedule.
        schedule: String,
        /// Why.
        error: String,
    },
    /// A process has fallen silent, or has died and an operator has to decide about its tasks.
    Instance {
        /// The process.
        name: String,
        /// Whether somebody has to decide.
        undecided: bool,
        /// About how many tasks it had leased.
        in_hand: u64,
    },
    /// Endpoints of callbacks do not answer.
    Callbacks {
        /// How many lanes are parked.
        parked: usize,
    },
    /// There are dead letters.
    DeadLetters {
        /// The service.
        service: String,
        /// How many since this process began.
        count: u64,
    },
}

impl Trouble {
    /// How bad it is.
    pub fn severity(&self) -> Severity {
        match self {
            Self::Broker(_) | Self::Lost { .. } | Self::NoWorker { .. } | Self::Overdue { .. } | Self::Part { .. } => {
                Severity::Bad
            }
            Self::Instance { undecided: true, .. } => Severity::Bad,
            Self::Failing { failed, ended, .. } if failed * 2 > *ended => Severity::Bad,
            Self::Full { pending, capacity, .. } if *pending >= u64::from(*capacity) => Severity::Bad,
            Self::Paused { .. } => Severity::Notice,
            _ => Severity::Warning,
        }
    }
}

/// A service at a glance.
#[derive(Debug, Clone)]
pub struct ServiceGlance {
    /// The service with its counters.
    pub state: ServiceState,
    /// How long its oldest pending task has waited.
    pub oldest: Option<Duration>,
    /// How it has been doing.
    pub trend: Trend,
    /// Its workers that are known of.
    pub workers: usize,
}

/// Everything at a glance.
#[derive(Debug, Clone)]
pub struct Overview {
    /// The database's time.
    pub now: Timestamp,
    /// The services, in the order of their names.
    pub services: Vec<ServiceGlance>,
    /// What is wrong, the worst first.
    pub troubles: Vec<Trouble>,
    /// The broker.
    pub broker: BrokerView,
    /// How many schedules there are.
    pub schedules: usize,
    /// The workers that are known of.
    pub workers: Vec<WorkerStateView>,
    /// Endpoints that callbacks wait for.
    pub lanes: usize,
}

impl Engine {
    /// Everything at a glance. The cost is that of what is declared and what runs, not of what is stored.
    pub async fn overview(&self) -> Result<Overview, EngineError> {
        self.refresh().await?;
        let snapshot = self.snapshot()?;
        let backlog = self.0.store.backlog().await?;
        let workers = self.workers().await?;
        let lanes = self.0.store.list_callback_lanes(None, LANES).await?;
        let schedules = self.schedule_states().await?;
        let now = match backlog.now {
            Some(now) => now,
            None => self.0.store.ping().await?,
        };
        self.0.trends.sample(&backlog, std::time::Instant::now());
        let mut troubles = Vec::new();
        let broker = self.broker()?;
        if matches!(broker.state.as_str(), "away" | "blocked") && !broker.services.is_empty() {
            troubles.push(Trouble::Broker(broker.reason.clone().unwrap_or_default()));
        }
        troubles.extend(broker.lost.iter().map(|service| Trouble::Lost { service: service.clone() }));
        let bus = self.event_bus_stats();
        if let Some(error) = bus.error.filter(|_| !bus.healthy) {
            troubles.push(Trouble::Bus(error));
        }
        troubles.extend(self.0.readiness.in_trouble().into_iter().map(|(part, why)| Trouble::Part { part, why }));
        let mut services = Vec::new();
        for service in snapshot.declared.services_by_name() {
            let state = service_state(service, &backlog);
            let name = state.declaration.service_name.as_str();
            let known = workers.iter().filter(|worker| worker.service == name).count();
            let heard = workers.iter().any(|worker| {
                let lately = worker.seen_seconds_ago.is_some_and(|seconds| seconds < LATELY.as_secs_f64());
                worker.service == name && (lately || worker.activity != WorkerActivity::Quiet)
            });
            let glance = ServiceGlance {
                oldest: oldest(&backlog, service.key, now),
                trend: self.0.trends.of(service.key),
                workers: known,
                state,
            };
            troubles.extend(troubles_of(&glance, heard));
            services.push(glance);
        }
        for worker in workers.iter().filter(|worker| worker.activity == WorkerActivity::Silent) {
            troubles.push(Trouble::Silent {
                worker: worker.host_name.clone().unwrap_or_default(),
                service: worker.service.clone(),
                running: worker.running,
            });
        }
        for instance in self.instances().await?.instances {
            // A server that is gone has leased nothing, and another one does its work.
            let undecided = instance.status == "undecided";
            if undecided || (instance.status == "silent" && instance.in_hand > 0) {
                troubles.push(Trouble::Instance { name: instance.name, undecided, in_hand: instance.in_hand });
            }
        }
        troubles.extend(schedules.iter().filter_map(|schedule| trouble_of_schedule(schedule, now)));
        let parked = lanes.heads.iter().filter(|lane| lane.parked_until.is_some_and(|until| until > now)).count();
        if parked > 0 {
            troubles.push(Trouble::Callbacks { parked });
        }
        for (service, count) in self.0.dispatcher.dead_letters() {
            let Some(service) = snapshot.declared.service_by_key(service) else { continue };
            troubles.push(Trouble::DeadLetters { service: service.name.to_string(), count });
        }
        troubles.sort_by_key(Trouble::severity);
        let (schedules, lanes) = (schedules.len(), lanes.heads.len());
        Ok(Overview { now, services, troubles, broker, schedules, workers, lanes })
    }
}

fn oldest(backlog: &Backlog, service: ServiceKey, now: Timestamp) -> Option<Duration> {
    let (_, submitted) = backlog.oldest_pending.iter().find(|(key, _)| *key == service)?;
    Some(now.since(*submitted))
}

fn troubles_of(glance: &ServiceGlance, heard: bool) -> Vec<Trouble> {
    let (state, declared) = (&glance.state, &glance.state.declaration);
    let service = || declared.service_name.clone();
    let mut troubles = Vec::new();
    let paused = declared.paused == Some(true);
    if paused && state.pending > 0 {
        troubles.push(Trouble::Paused { service: service(), pending: state.pending });
    }
    let oldest = glance.oldest.unwrap_or_default();
    if !paused && state.pending > 0 && state.in_progress == 0 && !heard && oldest > LATELY / 6 {
        troubles.push(Trouble::NoWorker { service: service(), pending: state.pending });
    } else if !paused && oldest > SLOW {
        troubles.push(Trouble::Slow { service: service(), oldest });
    }
    let failed: u64 = glance.trend.failed.iter().sum();
    let ended = failed + glance.trend.succeeded.iter().sum::<u64>();
    if failed >= FEW && failed as f64 > ended as f64 * FAILING {
        troubles.push(Trouble::Failing { service: service(), failed, ended });
    }
    if let Some(capacity) = declared.capacity
        && state.pending as f64 >= f64::from(capacity) * NEARLY
        && state.pending > 0
    {
        troubles.push(Trouble::Full { service: service(), pending: state.pending, capacity });
    }
    troubles
}

fn trouble_of_schedule(schedule: &ScheduleState, now: Timestamp) -> Option<Trouble> {
    let name = || schedule.declaration.schedule_name.clone();
    let next = schedule.next_run_date.as_deref().and_then(Timestamp::parse);
    if let Some(next) = next.filter(|next| next.after(LATE) < now) {
        return Some(Trouble::Overdue { schedule: name(), since: now.since(next) });
    }
    let error = schedule.last_error.clone()?;
    // A run that went well since has made up for it.
    let refused = schedule.last_error_date.as_deref().and_then(Timestamp::parse)?;
    let ran = schedule.last_run_date.as_deref().and_then(Timestamp::parse);
    ran.is_none_or(|ran| ran < refused).then(|| Trouble::Refused { schedule: name(), error })
}
