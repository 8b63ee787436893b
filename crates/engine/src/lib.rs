//! The use cases of Relais, and the services that run in its background.
//!
//! [`Engine`] is the application layer: whatever reaches Relais (over HTTP, from a file, from the command line) becomes a
//! call of one of its methods, with the same rights and the same rules. It sees the store through its port only, knows no
//! HTTP, and writes nothing that was not asked for.
//!
//! Concurrent calls share transactions: submissions and messages go through a [`batch::Batcher`], claims through the
//! [`claims`] desk. An answer is given after its commit, never before.

mod admin;
mod auth;
pub mod background;
mod batch;
mod batches;
mod bus;
mod callbacks;
mod claims;
mod depth;
mod dispatch;
mod engine;
mod error;
mod follow;
mod hub;
mod links;
mod live;
mod local;
mod measured;
mod operator;
mod overview;
mod pace;
mod pool;
mod readiness;
mod registry;
mod retry;
mod schedule;
mod schema;
mod select;
mod stored_submissions;
mod submit;
mod tasks;
mod terms;
mod trend;
mod views;
mod waiting;
mod work;
mod worker_registry;

pub use admin::{PurgeDefaults, clients::signing_secrets};
pub use auth::{AuthOptions, ClientCredentials, generate_secret, hash_secret};
pub use batch::BatchOptions;
pub use batches::{AcceptedBatch, BatchRequest};
pub use bus::{BusOptions, StoreTransport};
pub use callbacks::{CallbackOptions, CallbackQuery, CallbackSenders, MAX_RETRIES};
pub use depth::QueueWatch;
pub use dispatch::{DispatchOptions, MOST_LETTERS};
pub use engine::{Access, Engine, Options};
pub use error::{EngineError, Problem};
pub use follow::{Following, ListQuery};
pub use live::{Live, LiveTopic};
pub use local::{After, Before, Handlers, Instance, InstanceOptions, InstanceReport};
pub use operator::{Actor, Credentials, CredentialsError, Operator, OperatorRole, SessionKey};
pub use overview::{Overview, ServiceGlance, Severity, Trouble};
pub use readiness::NotReady;
pub use relais_handler::{Context, HandlerError, Verdict, trace};
pub use relais_protocol as protocol;
pub use schema::check::ValidationOptions;
pub use select::{Selected, Selection};
pub use submit::{Accepted, Idempotency};
pub use tasks::{Enqueued, Ran, Tasks, TasksBuilder};
pub use trend::Trend;
pub use views::{admin_task_view, task_view};
pub use waiting::WaitReason;
