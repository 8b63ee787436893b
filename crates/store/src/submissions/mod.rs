//! Taking in what programs put into the stored submissions.

pub(crate) mod postgres;
pub(crate) mod sqlite;
pub(crate) mod statements;

use relais_core::{CollectedSubmissions, StoreError, SubmissionValidator, TaskId};

use crate::{
    schedules::clipped,
    schedules::statements::Schedules as _,
    session::{Database, Session as _},
    submissions::statements::SubmissionRows as _,
    submit::Taken,
    text,
    verbs::Verbs,
};

impl<D: Database> Verbs<D> {
    /// Makes tasks of entries, in one transaction with their removal.
    pub(crate) async fn collect_submissions(
        &self,
        limit: usize,
        validator: &dyn SubmissionValidator,
    ) -> Result<CollectedSubmissions, StoreError> {
        let mut session = self.database.begin().await?;
        let entries = session.lock_submissions(limit).await?;
        if entries.is_empty() {
            session.commit().await?;
            return Ok(CollectedSubmissions::default());
        }
        if session.hold_declared().await? != validator.version() {
            session.commit().await?;
            return Ok(CollectedSubmissions { stale: true, ..CollectedSubmissions::default() });
        }
        let mut report = CollectedSubmissions { more: entries.len() == limit, ..CollectedSubmissions::default() };
        let names: Vec<TaskId> =
            entries.iter().filter_map(|(_, entry)| entry.as_ref().ok()).map(|entry| entry.task_id).collect();
        let known = session.known_tasks(&names).await?;
        let (mut gone, mut taken, mut refused, mut tasks) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (id, entry) in entries {
            let entry = match entry {
                // Put there again by somebody who did not hear of the commit.
                Ok(entry) if known.contains(&entry.task_id) => {
                    gone.push(id);
                    continue;
                }
                Ok(entry) => entry,
                Err(why) => {
                    refused.push((id, None, clipped(why)));
                    continue;
                }
            };
            match validator.judge(&entry) {
                Ok(mut task) => {
                    // Whoever committed it was promised that it would be done.
                    task.terms.promised = true;
                    text::submission(&mut task);
                    taken.push((id, entry.task_id));
                    tasks.push(task);
                }
                Err(why) => refused.push((id, Some(entry.task_id), clipped(why))),
            }
        }
        let made = if tasks.is_empty() { Taken::default() } else { Self::take_in(&mut session, tasks).await? };
        for ((id, task_id), answer) in taken.into_iter().zip(&made.answers) {
            match answer {
                Ok(_) => gone.push(id),
                Err(refusal) => refused.push((id, Some(task_id), refusal.to_string())),
            }
        }
        report.taken = gone.len();
        session.delete_submissions(&gone).await?;
        let reasons: Vec<(i64, String)> = refused.iter().map(|(id, _, why)| (*id, why.clone())).collect();
        if !reasons.is_empty() {
            session.refuse_submissions(&reasons).await?;
        }
        report.refused = refused.into_iter().map(|(_, task_id, why)| (task_id, why)).collect();
        self.finish_taken(session, made).await?;
        Ok(report)
    }
}
