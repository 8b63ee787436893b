//! What Relais knows: tasks, services, clients, the rules they obey, and the ports through which the rest of the
//! world is reached.
//!
//! Nothing here does I/O, knows a database, a broker or HTTP, or reads a clock: time is handed in. A rule that two
//! drivers must apply alike (may this task be taken? what does this message change? how far is it from the head of its
//! queue?) is a function of this crate, so that there is one answer.
//!
//! ```
//! use relais_core::{Event, State, Status, Timestamp, apply};
//!
//! let pending = State::pending();
//! let now = Timestamp::from_millis(1_000);
//! let event = Event::failed(None, "no such file");
//! let failed = apply(&pending, &event, now).expect("a first result is accepted");
//! assert_eq!(failed.status, Status::Failure);
//! assert!(apply(&failed, &event, now).is_err(), "the second one changes nothing");
//! ```

mod admission;
mod attempt;
mod audience;
mod audit;
mod backlog;
mod batch;
mod broker;
mod callback;
mod change;
mod cron;
mod declared;
mod dependency;
mod dispatch;
mod effects;
mod flow;
mod instance;
mod json;
mod listing;
mod names;
mod notification_rights;
pub mod position;
mod priority;
mod push;
mod relay;
mod retry;
mod schedule;
mod store;
mod stored_submission;
mod submission;
mod task;
mod time;
mod trace;
mod transition;
pub mod wakeup;

pub use admission::{Admission, Refusal, Room};
pub use attempt::{Attempt, AttemptOutcome};
pub use audience::{
    AudienceChange, AudienceDeclarations, AudienceRecord, DeclaredAudience, DeclaredMember, KNOWN_AUDIENCE_TYPES,
};
pub use audit::{AuditEntry, AuditOutcome, AuditPage, AuditRecord, SessionsOf};
pub use backlog::{Backlog, QueueDepth, QueueShare, StatusCounter};
pub use batch::{Batch, BatchCounts, BatchCreated, BatchStatus, NewBatch};
pub use broker::{
    DeadLetter, Incoming, Mailbox, OutgoingMessage, QueueSight, Rejected, Side, TaskBroker, TaskBrokerError,
    TaskBrokerState, TaskConsumer,
};
pub use callback::{
    About, Callback, CallbackAttempt, CallbackDelivery, CallbackEvent, CallbackFilter, CallbackId, CallbackLanePage,
    CallbackOutcome, CallbackPage, CallbackRecord, CallbackSender, CallbackStatus, CallbackType, CallbackVerdict,
    DueCallback, LaneChange, LaneHead, NotAllowed, Reply, ReplyOutcome, Resend, Resent, lane,
};
pub use change::{Milestone, Revocation, TaskChange};
pub use cron::{Cron, CronError};
pub use declared::{
    Authorization, Client, DEFAULT_DELIVERY_LIMIT, DEFAULT_LEASE, Declared, Destination, QueueKind, QueueSettings,
    Retention, Role, Roles, Service, ServiceLimits, SigningSecret, TaskTransport,
};
pub use dependency::{
    After, Condition, DependenciesResolved, Gate, MOST_PREREQUISITES, Prerequisite, TaskLink, barred,
};
pub use dispatch::{ClaimedDispatches, DispatchName, Dispatched, DueDispatch, PublishedTask};
pub use effects::{Effects, KeyEffect, Subject};
pub use flow::{ClientFlow, Flow, FlowClient, FlowFacts, FlowLimits, FlowState, MAX_SHARE, Pick, RateLimit, Standing};
pub use instance::{
    CrashPolicy, Decision, InstanceKey, InstanceRecord, InstanceStatus, NewInstance, ReapedInstances, Registration,
};
pub use json::{Json, JsonError, MAX_DEPTH};
pub use listing::{Page, TaskFilter};
pub use names::{BatchId, ClientId, ClientKey, NameError, RelayName, ScheduleName, ServiceKey, ServiceName, TaskId};
pub use notification_rights::{AudienceTypes, NotificationRights};
pub use priority::{DEFAULT_PRIORITY_STEP, Priority};
pub use push::{PushRequest, PushSender};
pub use relay::{RelayChange, RelayDeclarations, RelayKind, RelayRecord, RelayReport, RelaySecrets};
pub use retry::{Failure, LONGEST_RETRY, MOST_RETRIES, RetryPolicy};
pub use schedule::{
    Due, FiredSchedule, FiredSchedules, MOST_MISSED, Missed, Overlap, PATIENCE, Progress, RunByHand, RunOutcome,
    RunTerms, Schedule, ScheduleChange, ScheduleRecord, ScheduleValidator, run_id,
};
pub use store::{
    BatchStore, CallbackStore, Change, ClaimRequest, ClaimStore, Claimed, DeclarationStore, DispatchStore,
    InstanceStore, MaintenanceStore, OperatorStore, Outcome, PurgeReport, PurgeRule, ScheduleStore, Store, StoreError,
    TaskEvent, TaskStore, TimersFired, WakeupListener,
};
pub use stored_submission::{CollectedSubmissions, StoredSubmission, SubmissionValidator};
pub use submission::{IdempotencyKey, NewLinks, NewTask, Publisher, Submission, Submitted, Terms, UniqueKey, When};
pub use task::{Links, Status, Task};
pub use time::Timestamp;
pub use trace::TraceContext;
pub use transition::{Event, GRACE, Ignored, State, apply};
pub use wakeup::{IdsChanged, Wakeup};
