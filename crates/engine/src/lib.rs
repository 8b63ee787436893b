//! The use cases of Relais, and its background services.
//!
//! [`Engine`] is the application layer: everything that reaches Relais (over HTTP, from a file, from the command line)
//! becomes a call of one of its methods, with the same rights and the same rules. It sees the store through its port
//! only and knows no HTTP.
//!
//! The folders are the use cases, as methods of [`Engine`]: `submit`, `claims` (workers), `local` (handlers in this
//! process), `dispatch` (brokers), `callbacks`, `timers` (and schedules), `follow` (reading and watching tasks),
//! `operate` (operators), `bus` (events), `auth`.
//!
//! Concurrent calls share transactions: submissions and messages go through a `relais_group_commit::Batcher`, claims
//! through the claim coordinator. An answer is given after its commit, never before.

mod auth;
mod bus;
mod callbacks;
mod claims;
mod dispatch;
mod engine;
mod error;
mod follow;
mod local;
mod measured;
mod operate;
mod pool;
mod readiness;
mod registry;
mod submit;
mod tasks;
mod timers;

pub use auth::{AuthOptions, ClientCredentials, generate_secret, hash_secret};
pub use bus::{BusOptions, StoreTransport};
pub use callbacks::{CallbackOptions, CallbackQuery, CallbackSenders, MAX_RETRIES};
pub use dispatch::{DispatchOptions, MOST_DEAD_LETTERS};
pub use engine::{Access, Engine, Options};
pub use error::{EngineError, Problem, chain};
pub use follow::{
    Following, ListQuery,
    live::{Live, LiveTopic},
    views::{admin_task_view, task_view},
};
pub use local::{After, Before, Handlers, Instance, InstanceOptions, InstanceReport};
pub use operate::{
    admin::{PurgeDefaults, clients::signing_secrets, declare::ApplyOptions},
    audiences::{AudiencePlan, DeclaredAudiences},
    captures::CaptureRelays,
    depth::QueueWatch,
    notification_sources::NotificationSources,
    operator::{Actor, Credentials, CredentialsError, Operator, OperatorRole, SessionKey},
    outboxes::{OutboxRelays, ParkedChoice, RelayCheck, RelayPlan},
    overview::{Overview, ServiceGlance, Severity, Trouble},
    select::{Selected, Selection},
    trend::Trend,
    waiting::WaitReason,
};
pub use readiness::{InTrouble, NotReady};
pub use relais_group_commit::BatchOptions;
pub use relais_handler::{Context, HandlerError, Verdict, trace};
pub use relais_protocol as protocol;
pub use submit::{
    Accepted, Idempotency,
    batches::{AcceptedBatch, BatchRequest},
    schema::check::ValidationOptions,
    sink::{TaskSink, TaskSinkError, TaskSinkOptions},
};
pub use tasks::{Enqueued, Ran, Tasks, TasksBuilder};
