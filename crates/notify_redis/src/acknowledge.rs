//! Acknowledgements. A script writes them, and tells which messages may be settled by them; those are judged at once.

use std::collections::HashMap;

use relais_core::StoreError;
use relais_notify::{AckChoice, Acknowledged, Acknowledgement, LogPosition};
use serde::Serialize;
use uuid::Uuid;

use crate::{
    RedisNotifications,
    error::corrupt,
    keys::encode_user,
    message::{MessageRow, uuid},
    scripts,
};

/// "All of a user's messages" are at most so many in one call.
const MOST_ACKNOWLEDGED: usize = 10_000;

/// A script writes so many before others have their turn.
const WRITTEN_AT_ONCE: usize = 1000;

#[derive(Debug, Serialize)]
struct AckPlan<'a> {
    user: &'a str,
    key: String,
    ids: &'a [Uuid],
    #[serde(skip)]
    number: usize,
}

impl RedisNotifications {
    pub(crate) async fn write_acknowledgements(
        &self,
        acknowledgements: &[Acknowledgement],
    ) -> Result<Vec<Acknowledged>, StoreError> {
        let chosen = self.choose(acknowledgements).await?;
        let mut plans = Vec::new();
        for (number, (Acknowledgement { scope, .. }, ids)) in acknowledgements.iter().zip(&chosen).enumerate() {
            let plan = |ids| AckPlan { user: &scope.user, key: encode_user(&scope.user), ids, number };
            plans.extend(ids.chunks(WRITTEN_AT_ONCE).map(plan));
        }
        let mut answers = vec![Acknowledged::default(); acknowledgements.len()];
        let mut perhaps_settled = Vec::new();
        let mut left = plans.as_slice();
        while !left.is_empty() {
            let mut count = 0;
            let fits = |plan: &&AckPlan<'_>| {
                count += plan.ids.len();
                count <= WRITTEN_AT_ONCE
            };
            let (some, others) = left.split_at(left.iter().take_while(fits).count().max(1));
            left = others;
            for (plan, new) in some.iter().zip(self.acknowledge_some(some, &mut perhaps_settled).await?) {
                answers[plan.number].new.extend(new);
            }
        }
        for (answer, ids) in answers.iter_mut().zip(chosen) {
            let new: std::collections::HashSet<&Uuid> = answer.new.iter().collect();
            answer.known = ids.into_iter().filter(|id| !new.contains(id)).collect();
        }
        if !perhaps_settled.is_empty() {
            self.settle(perhaps_settled).await?;
        }
        Ok(answers)
    }

    /// What each acknowledges that its user sees.
    async fn choose(&self, acknowledgements: &[Acknowledgement]) -> Result<Vec<Vec<Uuid>>, StoreError> {
        let named = |acknowledgement: &Acknowledgement| match &acknowledgement.choice {
            AckChoice::These(ids) => ids.clone(),
            AckChoice::All => Vec::new(),
        };
        let named: Vec<Uuid> = acknowledgements.iter().flat_map(named).collect();
        let rows: HashMap<Uuid, MessageRow> = self.read_messages(&named).await?;
        let mut chosen = Vec::with_capacity(acknowledgements.len());
        for Acknowledgement { scope, choice } in acknowledgements {
            chosen.push(match choice {
                AckChoice::These(ids) => {
                    let is_seen = |id: &Uuid| {
                        rows.get(id).is_some_and(|row| scope.sees(&row.stored.notification.routing.audience))
                    };
                    let mut seen: Vec<Uuid> = Vec::with_capacity(ids.len());
                    let mut once = std::collections::HashSet::new();
                    seen.extend(ids.iter().copied().filter(|id| is_seen(id) && once.insert(*id)));
                    seen
                }
                AckChoice::All => self.unread(scope, MOST_ACKNOWLEDGED).await?,
            });
        }
        Ok(chosen)
    }

    /// Writes some in one step; answers what each has acknowledged that it had not before.
    async fn acknowledge_some(
        &self,
        some: &[AckPlan<'_>],
        perhaps_settled: &mut Vec<Uuid>,
    ) -> Result<Vec<Vec<Uuid>>, StoreError> {
        type Written = (String, LogPosition, LogPosition, Vec<Vec<String>>, Vec<String>);
        let before = self.0.connections.known();
        let plan = serde_json::to_string(some).map_err(corrupt)?;
        let written: Written = self.0.connections.run(&scripts::ACKNOWLEDGE, &[plan]).await?;
        let (epoch, begin, position, fresh, settled) = written;
        self.note_written(&before, &epoch, begin, position).await;
        let ids = |texts: Vec<String>| texts.iter().map(|text| uuid(text)).collect::<Result<Vec<Uuid>, _>>();
        perhaps_settled.extend(ids(settled)?);
        fresh.into_iter().map(ids).collect()
    }
}
