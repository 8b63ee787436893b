//! Declared audiences: judged, compared with what is there, and kept as they are declared.
//!
//! What is declared and who belongs to a target are in two places, which may be two servers. So the members of a target are
//! not changed in the transaction of a declaration: after it, and every now and then, each declared target is given the
//! members that are declared, and one that is declared no more loses them. Whoever does that, and however often, it comes to the
//! same.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use relais_core::{
    AudienceChange, AudienceDeclarations, AudienceRecord, DeclaredAudience, DeclaredMember, KNOWN_AUDIENCE_TYPES,
    StoreError,
};
use relais_engine::{AudiencePlan, DeclaredAudiences, EngineError, Problem, chain};
use relais_notify::{AudienceKey, MembersChange, MembersRefused, NotificationStore, USER};
use relais_protocol::{
    admin::AppliedAction,
    audience::{AudienceDeclaration, AudienceState, MemberDeclaration},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How often members are compared although nothing was declared: what another store has lost comes back.
const COMPARE: Duration = Duration::from_secs(60);

/// How long to wait before a store that is away is asked again.
const RETRY: Duration = Duration::from_secs(1);

/// A target has at most so many declared members.
const MOST_MEMBERS: usize = 10_000;

/// So many members are read at once.
const PAGE: usize = 1000;

/// A name has at most so many bytes.
const LONGEST_NAME: usize = 200;

/// What targets contain, and are to contain.
type Members = BTreeMap<AudienceKey, BTreeSet<AudienceKey>>;

/// The application layer of declared audiences. Cheap to clone.
#[derive(Clone)]
pub struct Audiences(Arc<Inner>);

struct Inner {
    declared: Arc<dyn AudienceDeclarations>,
    members: Arc<dyn NotificationStore>,
    /// Why the members of a target are not those that are declared.
    troubles: Mutex<BTreeMap<AudienceKey, String>>,
    /// One at a time in a process: two would only do the same work twice.
    settling: tokio::sync::Mutex<()>,
}

impl fmt::Debug for Audiences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Audiences").finish_non_exhaustive()
    }
}

impl Audiences {
    /// What is declared in one store, with members in another, or in the same.
    pub fn new(declared: Arc<dyn AudienceDeclarations>, members: Arc<dyn NotificationStore>) -> Self {
        let (troubles, settling) = (Mutex::default(), tokio::sync::Mutex::default());
        Self(Arc::new(Inner { declared, members, troubles, settling }))
    }

    /// Keeps members what is declared until it is told to stop. `changes` says when what is declared may have changed.
    pub async fn run(self, mut changes: watch::Receiver<i64>, stop: CancellationToken) {
        let mut away = false;
        while !stop.is_cancelled() {
            changes.mark_unchanged();
            let pause = match self.settle_all().await {
                Ok(()) => {
                    away = false;
                    COMPARE
                }
                Err(error) => {
                    if !std::mem::replace(&mut away, true) {
                        tracing::warn!(error = %chain(&error), "the members of declared audiences can not be compared");
                    }
                    RETRY
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                changed = changes.changed() => if changed.is_err() { return },
                () = stop.cancelled() => {}
            }
        }
    }

    /// Gives each target what is declared. A declaration that changes meanwhile is looked at again.
    async fn settle_all(&self) -> Result<(), StoreError> {
        let _turn = self.0.settling.lock().await;
        let mut records = self.0.declared.list_audiences().await?;
        loop {
            self.settle_records(&records).await?;
            let now = self.0.declared.list_audiences().await?;
            if now.iter().all(|record| records.contains(record)) {
                return Ok(());
            }
            records = now;
        }
    }

    async fn settle_records(&self, records: &[AudienceRecord]) -> Result<(), StoreError> {
        let wanted: Vec<(&AudienceRecord, AudienceKey, BTreeSet<AudienceKey>)> = records
            .iter()
            .filter_map(|record| Some((record, key(&record.audience)?, record.members.iter().map(member).collect())))
            .collect();
        let mut troubles = BTreeMap::new();
        let mut missing = Vec::new();
        // Who leaves first: a target may move from one to another that contained it, or was contained in it.
        for (_, key, wanted) in &wanted {
            let present = self.members_of(key).await?;
            let surplus: Vec<AudienceKey> = present.difference(wanted).cloned().collect();
            if !surplus.is_empty() {
                self.change(key, MembersChange::Remove(surplus), &mut troubles).await?;
            }
            let absent: Vec<AudienceKey> = wanted.difference(&present).cloned().collect();
            if !absent.is_empty() {
                missing.push((key, absent));
            }
        }
        for (key, absent) in missing {
            self.change(key, MembersChange::Add(absent), &mut troubles).await?;
        }
        for (record, key, _) in wanted.iter().filter(|(record, ..)| record.gone) {
            if !troubles.contains_key(key) {
                self.0.declared.forget_audience(&record.audience).await?;
            }
        }
        *self.0.troubles.lock().unwrap_or_else(PoisonError::into_inner) = troubles;
        Ok(())
    }

    /// Changes the members of one target. A refusal is noted, and holds up no other target.
    async fn change(
        &self,
        key: &AudienceKey,
        change: MembersChange,
        troubles: &mut BTreeMap<AudienceKey, String>,
    ) -> Result<(), StoreError> {
        match self.0.members.change_members(key.clone(), change).await {
            Ok(changed) => {
                let (joined, left) = (changed.joined, changed.left);
                tracing::info!(audience = %key, joined, left, "the members of an audience are those that are declared");
                Ok(())
            }
            Err(MembersRefused::Store(error)) => Err(error),
            Err(MembersRefused::Membership(refused)) => {
                tracing::warn!(audience = %key, error = %refused, "an audience can not have its declared members");
                troubles.insert(key.clone(), refused.to_string());
                Ok(())
            }
        }
    }

    async fn members_of(&self, key: &AudienceKey) -> Result<BTreeSet<AudienceKey>, StoreError> {
        let mut found = BTreeSet::new();
        let mut after = None;
        loop {
            let page = self.0.members.list_members(key, after, PAGE).await?;
            let is_last = page.len() < PAGE;
            after = page.last().map(|member| member.key.clone());
            found.extend(page.into_iter().map(|member| member.key));
            if is_last {
                return Ok(found);
            }
        }
    }

    /// A way from a target to itself: through what is to be declared, and for all other targets through the members that they
    /// have.
    async fn way(
        &self,
        from: &AudienceKey,
        to: &AudienceKey,
        declared: &Members,
        others: &mut Members,
    ) -> Result<Option<Vec<AudienceKey>>, StoreError> {
        let mut came_from: BTreeMap<AudienceKey, Option<AudienceKey>> = BTreeMap::from([(from.clone(), None)]);
        let mut left = VecDeque::from([from.clone()]);
        while let Some(here) = left.pop_front() {
            if here == *to {
                let mut way = vec![here];
                while let Some(Some(before)) = way.last().and_then(|last| came_from.get(last)) {
                    way.push(before.clone());
                }
                way.reverse();
                return Ok(Some(way));
            }
            if here.kind == USER {
                continue;
            }
            if !declared.contains_key(&here) && !others.contains_key(&here) {
                let members = self.members_of(&here).await?;
                others.insert(here.clone(), members);
            }
            let parts = declared.get(&here).or_else(|| others.get(&here));
            for part in parts.into_iter().flatten().filter(|part| part.kind != USER) {
                if !came_from.contains_key(part) {
                    came_from.insert(part.clone(), Some(here.clone()));
                    left.push_back(part.clone());
                }
            }
        }
        Ok(None)
    }

    async fn judge_circles(
        &self,
        declared: &[AudienceDeclaration],
        after: &Members,
        problems: &mut Vec<Problem>,
    ) -> Result<(), StoreError> {
        let mut others = Members::new();
        for (i, declaration) in declared.iter().enumerate() {
            let Some(target) = &declaration.target else { continue };
            let whole = AudienceKey::new(declaration.kind.clone(), target.clone());
            for (j, declared_member) in declaration.members.iter().enumerate() {
                let part = AudienceKey::new(declared_member.kind.clone(), declared_member.target.clone());
                if part.kind == USER {
                    continue;
                }
                if let Some(way) = self.way(&part, &whole, after, &mut others).await? {
                    let way: Vec<String> = std::iter::once(&whole).chain(&way).map(ToString::to_string).collect();
                    let message = format!("{whole} would contain itself: {}", way.join(" > "));
                    problems.push(Problem::at(format!("/audiences/{i}/members/{j}"), message));
                }
            }
        }
        Ok(())
    }
}

fn key(audience: &DeclaredAudience) -> Option<AudienceKey> {
    Some(AudienceKey::new(audience.kind.clone(), audience.target.clone()?))
}

fn member(member: &DeclaredMember) -> AudienceKey {
    AudienceKey::new(member.kind.clone(), member.target.clone())
}

fn name(audience: &DeclaredAudience) -> String {
    key(audience).map_or_else(|| audience.kind.clone(), |key| key.to_string())
}

fn is_name(name: &str) -> bool {
    (1..=LONGEST_NAME).contains(&name.len()) && !name.chars().any(char::is_control)
}

/// What is declared once this is applied, those that stay included.
fn types(declared: &[AudienceDeclaration], records: &[AudienceRecord], prune: bool) -> BTreeSet<String> {
    let stays = records.iter().filter(|record| !prune && !record.gone).map(|record| &record.audience.kind);
    let declared = declared.iter().map(|declaration| &declaration.kind);
    KNOWN_AUDIENCE_TYPES.iter().map(|kind| (*kind).to_owned()).chain(stays.chain(declared).cloned()).collect()
}

/// Judges one declaration by itself. Problems are at places below it.
fn judge(declaration: &AudienceDeclaration, types: &BTreeSet<String>) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut wrong = |place: &str, message: String| problems.push(Problem::at(place.to_owned(), message));
    let bad_name = || format!("must have 1 to {LONGEST_NAME} bytes and no control characters");
    let AudienceDeclaration { kind, target, members } = declaration;
    match kind.as_str() {
        USER => wrong("type", "USER is always there, and each user is their own and only member".to_owned()),
        kind if !is_name(kind) => wrong("type", bad_name()),
        _ => {}
    }
    match target {
        Some(target) if !is_name(target) => wrong("target", bad_name()),
        None if !members.is_empty() => wrong("members", "needs a `target` that has them".to_owned()),
        _ => {}
    }
    if members.len() > MOST_MEMBERS {
        wrong("members", format!("must be at most {MOST_MEMBERS}"));
    }
    let mut seen = BTreeSet::new();
    for (j, member) in members.iter().enumerate() {
        let MemberDeclaration { kind, target } = member;
        if !is_name(target) {
            wrong(&format!("members/{j}/target"), bad_name());
        }
        if !types.contains(kind) {
            let known = types.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            let message = format!("there is no type of audience {kind:?}; declare it too: there are {known}");
            wrong(&format!("members/{j}/type"), message);
        }
        if !seen.insert(member) {
            wrong(&format!("members/{j}"), format!("{kind}:{target} is there twice"));
        }
    }
    problems
}

fn declared_members(declaration: &AudienceDeclaration) -> Vec<DeclaredMember> {
    let members = declaration
        .members
        .iter()
        .map(|MemberDeclaration { kind, target }| DeclaredMember { kind: kind.clone(), target: target.clone() });
    members.collect::<BTreeSet<_>>().into_iter().collect()
}

#[async_trait]
impl DeclaredAudiences for Audiences {
    async fn plan(&self, declared: &[AudienceDeclaration], prune: bool) -> Result<AudiencePlan, EngineError> {
        let records = self.0.declared.list_audiences().await?;
        let types = types(declared, &records, prune);
        let (mut plan, mut after) = (AudiencePlan::default(), Members::new());
        let known: BTreeMap<&DeclaredAudience, &AudienceRecord> =
            records.iter().map(|record| (&record.audience, record)).collect();
        let mut named = BTreeSet::new();
        for (i, declaration) in declared.iter().enumerate() {
            let audience = DeclaredAudience { kind: declaration.kind.clone(), target: declaration.target.clone() };
            if !named.insert(audience.clone()) {
                let message = format!("audience {} is declared twice", name(&audience));
                plan.problems.push(Problem::at(format!("/audiences/{i}"), message));
                continue;
            }
            let problems = judge(declaration, &types);
            let below = |problem: Problem| Problem::at(format!("/audiences/{i}/{}", problem.path), problem.message);
            plan.problems.extend(problems.into_iter().map(below));
            let members = declared_members(declaration);
            if let Some(key) = key(&audience) {
                after.insert(key, members.iter().map(member).collect());
            }
            let action = match known.get(&audience) {
                Some(record) if !record.gone && record.members == members => AppliedAction::Unchanged,
                Some(record) if !record.gone => AppliedAction::Updated,
                _ => AppliedAction::Created,
            };
            plan.entries.push((name(&audience), action));
            if action != AppliedAction::Unchanged {
                plan.changes.push(AudienceChange::Put { audience, members });
            }
        }
        for record in records.iter().filter(|record| !named.contains(&record.audience)) {
            let goes = record.gone || prune;
            if let Some(key) = key(&record.audience) {
                let members = record.members.iter().filter(|_| !goes).map(member);
                after.insert(key, members.collect());
            }
            if prune && !record.gone {
                plan.entries.push((name(&record.audience), AppliedAction::Deleted));
                plan.changes.push(AudienceChange::Delete(record.audience.clone()));
            }
        }
        self.judge_circles(declared, &after, &mut plan.problems).await?;
        Ok(plan)
    }

    async fn types_after(
        &self,
        declared: &[AudienceDeclaration],
        prune: bool,
    ) -> Result<BTreeSet<String>, EngineError> {
        Ok(types(declared, &self.0.declared.list_audiences().await?, prune))
    }

    async fn declarations(&self) -> Result<Vec<AudienceDeclaration>, EngineError> {
        let records = self.0.declared.list_audiences().await?;
        Ok(records.into_iter().filter(|record| !record.gone).map(declaration).collect())
    }

    async fn states(&self) -> Result<Vec<AudienceState>, EngineError> {
        let records = self.0.declared.list_audiences().await?;
        let without_members = |record| {
            let mut state = self.state_of(record);
            state.declaration.members.clear();
            state
        };
        Ok(records.into_iter().map(without_members).collect())
    }

    async fn state(&self, audience: &DeclaredAudience) -> Result<AudienceState, EngineError> {
        let records = self.0.declared.list_audiences().await?;
        let found = records.into_iter().find(|record| record.audience == *audience && !record.gone);
        found.map(|record| self.state_of(record)).ok_or(EngineError::AudienceNotFound)
    }

    async fn settle(&self) {
        if let Err(error) = self.settle_all().await {
            // Whoever runs it tries again.
            tracing::warn!(error = %chain(&error), "the members of declared audiences can not be changed yet");
        }
    }
}

impl Audiences {
    fn state_of(&self, record: AudienceRecord) -> AudienceState {
        let troubles = self.0.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        let trouble = key(&record.audience).and_then(|key| troubles.get(&key).cloned());
        let (removing, declared_members) = (record.gone, record.members.len());
        AudienceState { declaration: declaration(record), declared_members, removing, trouble }
    }
}

fn declaration(record: AudienceRecord) -> AudienceDeclaration {
    let AudienceRecord { audience: DeclaredAudience { kind, target }, members, .. } = record;
    let member = |DeclaredMember { kind, target }| MemberDeclaration { kind, target };
    AudienceDeclaration { kind, target, members: members.into_iter().map(member).collect() }
}
