//! The rules of claims and marks, as simple as they can be said, and a store beside them.

use std::{collections::HashMap, time::Duration};

use anyhow::{Result, bail, ensure};
use relais_dedup::{ClaimOutcome, ClaimToken, DedupKey, Hold};

use super::{DEADLINE, DedupHarness};
use crate::Random;

/// Time passes in such steps. Nothing ends within half a step of one, so the time that the test takes does not matter.
const STEP: Duration = Duration::from_secs(1000);
const CLAIM: Duration = Duration::from_secs(1500);
const WINDOW: Duration = Duration::from_secs(10_500);

const CALLS: usize = 300;

/// The rules: of each message, who has claimed it (nobody: it is marked), and until when.
#[derive(Default)]
struct Rules {
    now: Duration,
    entries: HashMap<usize, (Option<ClaimToken>, Duration)>,
}

impl Rules {
    fn live(&self, key: usize) -> Option<&(Option<ClaimToken>, Duration)> {
        self.entries.get(&key).filter(|(_, end)| *end > self.now)
    }

    fn claim(&mut self, key: usize, token: &ClaimToken) -> ClaimOutcome {
        match self.live(key) {
            Some((None, _)) => ClaimOutcome::AlreadyDone,
            Some((Some(_), end)) => ClaimOutcome::Busy { wait: *end - self.now },
            None => {
                self.entries.insert(key, (Some(token.clone()), self.now + CLAIM));
                ClaimOutcome::Claimed
            }
        }
    }

    /// Extends or marks.
    fn renew(&mut self, key: usize, token: &ClaimToken, after: Option<ClaimToken>, time: Duration) -> Hold {
        if self.live(key).is_some_and(|(owner, _)| owner.as_ref() != Some(token)) {
            return Hold::Lost;
        }
        self.entries.insert(key, (after, self.now + time));
        Hold::Held
    }

    fn release(&mut self, key: usize, token: &ClaimToken) {
        if self.live(key).is_some_and(|(owner, _)| owner.as_ref() == Some(token)) {
            self.entries.remove(&key);
        }
    }
}

/// Three owners call for a few messages, in any order, with any time between.
pub async fn answers_are_those_of_the_rules_whatever_is_asked(harness: &impl DedupHarness) -> Result<()> {
    let (store, mut rules, mut random) = (harness.store(), Rules::default(), Random::new());
    let names = [("billing", "7"), ("billing", "8"), ("shipping", "7"), ("", "7")];
    let keys: Vec<DedupKey> =
        names.into_iter().map(|(consumer, id)| DedupKey::new(consumer, id)).collect::<Result<_, _>>()?;
    let tokens: Vec<ClaimToken> = (0..3).map(|_| ClaimToken::generate()).collect::<Result<_, _>>()?;
    for call in 0..CALLS {
        let (number, token) = (random.below(keys.len()), random.pick(&tokens));
        let key = &keys[number];
        let said = match random.below(12) {
            0..4 => {
                let (expected, got) = (rules.claim(number, token), store.claim(key, token, CLAIM).await?);
                let same = match (expected, got) {
                    (ClaimOutcome::Busy { wait }, ClaimOutcome::Busy { wait: told }) => {
                        told <= wait && wait < told + DEADLINE
                    }
                    (expected, got) => expected == got,
                };
                ensure!(same, "call {call}: a claim of {key:?} is {got:?} instead of {expected:?}");
                continue;
            }
            4..6 => (rules.renew(number, token, Some(token.clone()), CLAIM), store.extend(key, token, CLAIM).await?),
            6 | 7 => (rules.renew(number, token, None, WINDOW), store.mark(key, token, WINDOW).await?),
            8 => {
                rules.release(number, token);
                store.release(key, token).await?;
                continue;
            }
            9 => {
                let marked = rules.live(number).is_some_and(|(owner, _)| owner.is_none());
                ensure!(store.is_marked(key).await? == marked, "call {call}: {key:?} is marked: {marked}");
                continue;
            }
            10 | 11 => {
                let time = STEP * *random.pick(&[1, 1, 2, 11]);
                rules.now += time;
                harness.advance(time).await?;
                continue;
            }
            other => bail!("there is no call {other}"),
        };
        ensure!(said.0 == said.1, "call {call}: {key:?} is {:?} instead of {:?}", said.1, said.0);
    }
    Ok(())
}
