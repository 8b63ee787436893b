//! Operators: their roles, their actions, and the audit log.
//!
//! An operator acts through [`Operator`], over the admin API and in the dashboard: the same rights
//! and the same entries for both. Looking at things needs no more than to have been let in, and is not written down;
//! what shows a secret is.
//!
//! A line is written before the act, and what came of it afterwards. So nothing is done of which there is no line: an
//! act may touch a broker or the bus, which share no transaction with the log. A process that dies over an act leaves a
//! line of which nobody knows what came of it.

mod acts;
mod credentials;

use std::{fmt, time::Duration};

use relais_core::{AuditEntry, AuditOutcome, SessionsOf};
use relais_protocol::audit::{AuditLine, AuditLog, AuditOutcomeName};

pub use self::credentials::{Credentials, CredentialsError, SessionKey};
use crate::{Engine, EngineError, Problem, error::chain, follow::base36, follow::views::text};

/// The role of an operator. Each role may do all that the one before may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OperatorRole {
    /// Look.
    ReadOnly,
    /// Act on what is declared: pause, resume, run, retry, cancel, send again, change limits.
    Operator,
    /// Declare, remove, purge, and see and change secrets.
    Admin,
}

impl OperatorRole {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::ReadOnly, Self::Operator, Self::Admin];

    /// Its name in a configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ReadOnly => "read-only",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }

    /// Reads its name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == text)
    }
}

impl fmt::Display for OperatorRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Somebody who acts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    /// Who.
    pub name: String,
    /// What they may do.
    pub role: OperatorRole,
    /// By which way they came: `api`, `dashboard`, `file`.
    pub via: &'static str,
}

impl Actor {
    /// Somebody.
    pub fn new(name: impl Into<String>, role: OperatorRole, via: &'static str) -> Self {
        Self { name: name.into(), role, via }
    }

    /// The caller on this machine, if there are no credentials.
    pub fn local(via: &'static str) -> Self {
        Self::new("local", OperatorRole::Admin, via)
    }
}

/// An operator at work. Cheap to make.
#[derive(Clone)]
pub struct Operator {
    engine: Engine,
    actor: Actor,
}

impl Engine {
    /// Somebody who acts as an operator.
    pub fn operator(&self, actor: Actor) -> Operator {
        Operator { engine: self.clone(), actor }
    }

    /// What operators did, the newest first.
    pub async fn list_audit(&self, cursor: Option<&str>, limit: usize) -> Result<AuditLog, EngineError> {
        let before = cursor.map(|cursor| i64::from_str_radix(cursor, 36)).transpose();
        let before =
            before.map_err(|_| EngineError::Invalid(vec![Problem::at("cursor", "is not one that was given out")]))?;
        let page = self.0.store.list_audit(before, limit).await?;
        let lines = page.records.into_iter().map(|record| AuditLine {
            date: text(record.at),
            actor: record.entry.actor,
            via: record.entry.via,
            action: record.entry.action,
            target: record.entry.target,
            outcome: match (&record.entry.error, record.open) {
                (_, true) => AuditOutcomeName::Unknown,
                (Some(_), _) => AuditOutcomeName::Failed,
                (None, _) => AuditOutcomeName::Done,
            },
            detail: record.entry.detail,
            error: record.entry.error,
        });
        Ok(AuditLog { entries: lines.collect(), next_cursor: page.next_before.map(base36) })
    }

    /// Forgets what operators did too long ago.
    pub(crate) async fn purge_audit(&self, age: Duration) -> Result<u64, EngineError> {
        Ok(self.0.store.purge_audit(age).await?)
    }

    /// An operator signs in: the session is open for so long, on all processes, unless it is ended.
    pub async fn open_session(&self, actor: &Actor, id: &str, lasts: Duration) -> Result<(), EngineError> {
        self.0.store.write_audit(vec![actor.entry("sign-in", "", None)]).await?;
        Ok(self.0.store.open_session(id.to_owned(), actor.name.clone(), lasts).await?)
    }

    /// Whether a session is open.
    pub async fn session_is_open(&self, id: &str) -> Result<bool, EngineError> {
        Ok(self.0.store.session_is_open(id.to_owned()).await?)
    }

    /// An operator signs out: of one browser, or of all.
    pub async fn end_session(&self, actor: &Actor, id: &str, everywhere: bool) -> Result<u64, EngineError> {
        let detail = everywhere.then(|| "everywhere".to_owned());
        self.0.store.write_audit(vec![actor.entry("sign-out", "", detail)]).await?;
        let which = match everywhere {
            true => SessionsOf::Operator(actor.name.clone()),
            false => SessionsOf::Browser(id.to_owned()),
        };
        Ok(self.0.store.end_sessions(which).await?)
    }
}

impl Actor {
    fn entry(&self, action: &str, target: &str, detail: Option<String>) -> AuditEntry {
        AuditEntry {
            actor: self.name.clone(),
            via: self.via.to_owned(),
            action: action.to_owned(),
            target: target.to_owned(),
            detail,
            error: None,
        }
    }
}

impl Operator {
    /// The operator.
    pub fn actor(&self) -> &Actor {
        &self.actor
    }

    /// What they act on.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Whether they may do what needs this role.
    pub fn may(&self, role: OperatorRole) -> bool {
        self.actor.role >= role
    }

    /// Does something, if they may, and writes it down either way.
    async fn act<T>(
        &self,
        needs: OperatorRole,
        action: &str,
        target: &str,
        detail: Option<String>,
        act: impl Future<Output = Result<T, EngineError>>,
    ) -> Result<T, EngineError> {
        self.act_with_outcome(needs, action, target, detail, act, |_| Some(AuditOutcome::default())).await
    }

    /// An act of another part of Relais, such as notifications: with the role of an operator, and a line in the audit log. The
    /// outer error is that the operator may not, or that nothing can be written down.
    pub async fn act_elsewhere<T, E: std::fmt::Display>(
        &self,
        action: &str,
        target: &str,
        act: impl Future<Output = Result<T, E>>,
    ) -> Result<Result<T, E>, EngineError> {
        let mut done = None;
        let noted = self
            .act(OperatorRole::Operator, action, target, None, async {
                let told = act.await;
                let failed = told.as_ref().err().map(ToString::to_string);
                done = Some(told);
                failed.map_or(Ok(()), |why| Err(EngineError::Conflict(why)))
            })
            .await;
        match (done, noted) {
            (Some(done), _) => Ok(done),
            (None, refused) => Err(refused.err().unwrap_or(EngineError::Stopping)),
        }
    }

    /// The same, with what is only known afterwards; where nothing came of it, the line is taken back.
    async fn act_with_outcome<T>(
        &self,
        needs: OperatorRole,
        action: &str,
        target: &str,
        detail: Option<String>,
        act: impl Future<Output = Result<T, EngineError>>,
        told: impl FnOnce(&T) -> Option<AuditOutcome>,
    ) -> Result<T, EngineError> {
        let entry = self.actor.entry(action, target, detail);
        let store = &self.engine.0.store;
        if !self.may(needs) {
            let refused = EngineError::NotAllowed(needs);
            tracing::info!(actor = self.actor.name, via = self.actor.via, action, target, error = %refused, "an operator was refused");
            let entry = AuditEntry { error: Some(refused.to_string()), ..entry };
            if let Err(failure) = store.write_audit(vec![entry]).await {
                tracing::error!(actor = self.actor.name, action, target, error = %chain(&failure), "could not be written into the audit log");
            }
            return Err(refused);
        }
        let line = store.begin_audit(entry).await?;
        let done = act.await;
        let error = done.as_ref().err().map(ToString::to_string);
        tracing::info!(actor = self.actor.name, via = self.actor.via, action, target, error, "an operator acted");
        let outcome = match &done {
            Ok(done) => told(done),
            Err(_) => Some(AuditOutcome { error, ..AuditOutcome::default() }),
        };
        if let Err(failure) = store.complete_audit(line, outcome).await {
            tracing::error!(
                actor = self.actor.name, action, target, line, error = %chain(&failure),
                "what came of it could not be written into the audit log"
            );
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_role_may_do_what_the_one_before_may() {
        assert!(OperatorRole::Admin > OperatorRole::Operator && OperatorRole::Operator > OperatorRole::ReadOnly);
        for role in OperatorRole::ALL {
            assert_eq!(OperatorRole::parse(role.as_str()), Some(role));
        }
        assert_eq!(OperatorRole::parse("Admin"), None);
    }
}
