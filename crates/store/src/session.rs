//! What a driver is: a [`Database`], and a [`Session`] on it, which is one transaction.
//!
//! Both are sums. Each feature's `statements.rs` says what that feature needs of a database; what is left here belongs
//! to no feature. A method is one statement or two, batch first. Rows are locked in the order of their keys, so that
//! two sessions never wait for each other in a circle.

use std::{future::Future, time::Duration};

use relais_core::{StoreError, Timestamp, Wakeup};

use crate::{
    audiences::statements::{AudienceReader, AudienceRows},
    batches::statements::{BatchList, Batches},
    callbacks::statements::{CallbackQueue, CallbackReader},
    claims::statements::{ClaimRows, UnlockedClaims},
    clock::statements::{Clock, ClockReader},
    counters::statements::{CounterReader, CounterRows},
    declarations::statements::{DeclarationReader, DeclarationRows},
    dependencies::statements::{Dependencies, Linked},
    dispatch::statements::{Dispatch, Dispatches},
    flow::statements::Flows,
    history::statements::{History, HistoryReader},
    instances::statements::{InstanceReader, InstanceRows},
    notifications::statements::{NotificationReader, NotificationRows},
    operators::statements::{OperatorReader, OperatorRows},
    purge::statements::PurgeRows,
    pushes::statements::{PushReader, PushRows},
    relays::statements::{RelayReader, RelayRows},
    schedules::statements::{Schedules, Timetable},
    secrets::statements::{SecretFiles, Secrets},
    submissions::statements::SubmissionRows,
    submit::statements::{SubmitRows, UnlimitedSubmit},
    tasks::statements::{TaskReader, TaskRows},
};

/// What a driver answers.
pub(crate) type Result<T> = std::result::Result<T, StoreError>;

/// What is heard from other processes.
#[derive(Debug)]
pub(crate) enum Heard<'a> {
    /// Something changed.
    Wakeup(&'a Wakeup),
    /// What somebody told.
    Text(&'a str),
    /// From now on something is heard.
    Listening,
    /// Nothing is heard any more.
    Lost(&'a str),
}

/// A database: how to begin a transaction, and what needs none.
pub(crate) trait Database:
    AudienceReader
    + TaskReader
    + UnlimitedSubmit
    + UnlockedClaims
    + CounterReader
    + DeclarationReader
    + HistoryReader
    + InstanceReader
    + CallbackReader
    + Timetable
    + Linked
    + BatchList
    + NotificationReader
    + OperatorReader
    + PushReader
    + RelayReader
    + Dispatches
    + ClockReader
    + SecretFiles
    + 'static
{
    /// The transactions of this database.
    type Session: Session;

    /// Whether one session at a time writes, so that the order in which it locks things does not matter.
    const ONE_WRITER: bool;

    /// Begins a transaction that may write.
    fn begin(&self) -> impl Future<Output = Result<Self::Session>> + Send;

    /// Reads the clock, and makes sure that a write would be taken.
    fn ping(&self) -> impl Future<Output = Result<Timestamp>> + Send;

    /// Moves all times that are written back by so much.
    fn advance(&self, by: Duration) -> impl Future<Output = Result<()>> + Send;

    /// Makes the tables, or brings them up to date; tells how many migrations were applied.
    fn migrate(&self) -> impl Future<Output = Result<usize>> + Send;

    /// Hears what other processes tell, for ever; `heard` gets each message.
    fn hear(&self, heard: &(dyn Fn(Heard<'_>) + Send + Sync)) -> impl Future<Output = ()> + Send;

    /// Says something to all processes that hear; to nobody where there is one process only.
    fn broadcast(&self, _texts: &[String]) -> impl Future<Output = Result<()>> + Send {
        std::future::ready(Ok(()))
    }

    /// Closes all connections.
    fn close(&self) -> impl Future<Output = ()> + Send;
}

/// One transaction. Dropped without [`Session::commit`], it never was.
pub(crate) trait Session:
    AudienceRows
    + TaskRows
    + SubmitRows
    + ClaimRows
    + CounterRows
    + PurgeRows
    + DeclarationRows
    + CallbackQueue
    + Dispatch
    + Flows
    + InstanceRows
    + History
    + SubmissionRows
    + NotificationRows
    + OperatorRows
    + PushRows
    + RelayRows
    + Schedules
    + Secrets
    + Dependencies
    + Batches
    + Clock
{
    /// Takes a turn at a chore, if the last one began longer than `period` ago.
    fn take_turn(&mut self, chore: &str, period: Duration) -> impl Future<Output = Result<bool>> + Send;

    /// Commits.
    fn commit(self) -> impl Future<Output = Result<()>> + Send;
}
