//! Who belongs to what.
//!
//! A script reads a part of the graph as it is at one moment. What that means is said by the rule, `relais_notify::Memberships`,
//! which is built of what was read; but for the scopes of users, which the suite compares with the rule.

use std::collections::{BTreeSet, HashMap};

use redis::Value;
use relais_core::StoreError;
use relais_notify::{
    Audience, AudienceKey, Belonging, LogPosition, Member, MembersChange, MembersChanged, MembersRefused,
    MembershipRefused, Memberships, NewNotification, USER, UserScope,
};
use serde::Serialize;
use serde_json::json;

use crate::{
    RedisNotifications,
    change::{TRIES, parsed},
    error::{changed_meanwhile, corrupt},
    keys::{decode, encode, encode_user},
    message::{MessageRow, encoded, keys_of, uuid},
    scripts,
};

/// A change of more members is not told to those who come back later.
const TOLD_MEMBERS: usize = 1000;

/// So many open messages are looked at together when members have left.
const SETTLED_AT_ONCE: usize = 100;

/// So many users are looked for in the acknowledgements of a message in one command.
const ASKED_AT_ONCE: usize = 1000;

/// That a target contains something, since a position.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Edge {
    whole: AudienceKey,
    part: AudienceKey,
    since: LogPosition,
}

/// A part of the graph.
#[derive(Debug, Default)]
pub(crate) struct Graph(Memberships);

impl Graph {
    fn new(mut edges: Vec<Edge>) -> Result<Self, StoreError> {
        edges.sort_by_key(|edge| edge.since);
        let mut memberships = Memberships::default();
        for Edge { whole, part, since } in &edges {
            memberships.join(whole, part, *since).map_err(corrupt)?;
        }
        Ok(Self(memberships))
    }

    /// Who must acknowledge a message that was emitted there.
    pub(crate) fn awaited(&self, audience: &Audience, emitted_at: LogPosition) -> BTreeSet<String> {
        self.0.awaited(&keys_of(audience), emitted_at)
    }

    /// How many would have to acknowledge a message that is emitted now.
    pub(crate) fn count(&self, new: &NewNotification) -> usize {
        let routing = &new.notification.routing;
        if routing.retry.ack_required { self.awaited(&routing.audience, LogPosition::MAX).len() } else { 0 }
    }
}

#[derive(Serialize)]
struct MembersPlan {
    members: String,
    key: String,
    joined: Vec<String>,
    left: Vec<String>,
    told: Vec<String>,
}

impl RedisNotifications {
    /// What belongs to targets (`parts`), or what they belong to (`wholes`); with the revision of all members.
    async fn read_edges(&self, direction: &str, from: BTreeSet<String>) -> Result<(String, Vec<Edge>), StoreError> {
        let arguments: Vec<String> = std::iter::once(direction.to_owned()).chain(from).collect();
        let answer: Vec<Value> = self.0.connections.run(&scripts::MEMBERSHIPS, &arguments).await?;
        let mut answer = answer.into_iter();
        let revision: String = parsed(answer.next().unwrap_or(Value::Nil))?;
        let mut edges = Vec::new();
        let key = |text: &str| decode(text).ok_or_else(|| corrupt(format!("`{text}` among members")));
        for linked in answer {
            let (from, others): (String, Vec<(String, LogPosition)>) = parsed(linked)?;
            let from = key(&from)?;
            for (other, since) in others {
                let other = key(&other)?;
                edges.push(match direction {
                    "parts" => Edge { whole: from.clone(), part: other, since },
                    _ => Edge { whole: other, part: from.clone(), since },
                });
            }
        }
        Ok((revision, edges))
    }

    /// What belongs to audiences. Users are their own members, and nothing is read for them.
    async fn read_graph(&self, audiences: impl Iterator<Item = &Audience>) -> Result<(String, Graph), StoreError> {
        let keys: BTreeSet<String> = audiences
            .filter(|audience| audience.kind != USER)
            .flat_map(|audience| encoded(&keys_of(audience)))
            .collect();
        if keys.is_empty() {
            return Ok((String::new(), Graph::default()));
        }
        let (revision, edges) = self.read_edges("parts", keys).await?;
        Ok((revision, Graph::new(edges)?))
    }

    /// Who belongs to the audiences of new messages that must be acknowledged.
    pub(crate) async fn read_members_of(&self, messages: &[NewNotification]) -> Result<(String, Graph), StoreError> {
        let routings = messages.iter().map(|new| &new.notification.routing);
        self.read_graph(routings.filter(|routing| routing.retry.ack_required).map(|routing| &routing.audience)).await
    }

    /// How many must acknowledge each of these messages, and have not.
    pub(crate) async fn count_awaited(&self, rows: &[MessageRow]) -> Result<Vec<usize>, StoreError> {
        let audience = |row: &MessageRow| row.stored.notification.routing.audience.clone();
        let audiences: Vec<Audience> = rows.iter().filter(|row| row.is_required()).map(audience).collect();
        let (_, graph) = self.read_graph(audiences.iter()).await?;
        let (mut pipeline, mut of) = (redis::pipe(), Vec::new());
        for (number, row) in rows.iter().enumerate().filter(|(_, row)| row.is_required()) {
            let users = graph.awaited(&row.stored.notification.routing.audience, row.stored.position);
            let users: Vec<String> = users.into_iter().collect();
            for some in users.chunks(ASKED_AT_ONCE) {
                pipeline.cmd("HMGET").arg(self.keys().acknowledged(&row.id())).arg(some);
                of.push(number);
            }
        }
        let mut counts = vec![0; rows.len()];
        if !of.is_empty() {
            let answers: Vec<Vec<Option<String>>> = self.ask(&pipeline).await?;
            for (number, found) in of.into_iter().zip(answers) {
                counts[number] += found.iter().filter(|acknowledged| acknowledged.is_none()).count();
            }
        }
        Ok(counts)
    }

    pub(crate) async fn read_awaited(&self, row: &MessageRow) -> Result<BTreeSet<String>, StoreError> {
        let audience = &row.stored.notification.routing.audience;
        let (_, graph) = self.read_graph(std::iter::once(audience)).await?;
        Ok(graph.awaited(audience, row.stored.position))
    }

    pub(crate) async fn read_scopes(&self, users: Vec<String>) -> Result<HashMap<String, UserScope>, StoreError> {
        let from: BTreeSet<String> = users.iter().map(|user| encode_user(user)).collect();
        let (_, edges) = self.read_edges("wholes", from).await?;
        let mut wholes: HashMap<&AudienceKey, Vec<&Edge>> = HashMap::new();
        for edge in &edges {
            wholes.entry(&edge.part).or_default().push(edge);
        }
        Ok(users.into_iter().map(|user| (user.clone(), scope_of(user, &wholes))).collect())
    }

    pub(crate) async fn change_parts(
        &self,
        key: AudienceKey,
        change: MembersChange,
    ) -> Result<MembersChanged, MembersRefused> {
        if key.kind == USER {
            return Err(MembershipRefused::UserHasMembers(key).into());
        }
        let turn = self.0.members_turn.lock().await;
        for _ in 0..TRIES {
            if let Some(changed) = self.try_to_change(&key, &change).await? {
                drop(turn);
                if changed.left > 0 {
                    // If this is lost, the timers of the messages find out.
                    self.settle_open(&key).await?;
                }
                return Ok(changed);
            }
        }
        Err(changed_meanwhile().into())
    }

    /// None if somebody else has changed members meanwhile.
    async fn try_to_change(
        &self,
        key: &AudienceKey,
        change: &MembersChange,
    ) -> Result<Option<MembersChanged>, MembersRefused> {
        // What contains the target is read before its members: if they are as they were, so is the rest.
        let (revision, above) = self.read_edges("wholes", BTreeSet::from([encode(key)])).await?;
        let mut pipeline = redis::pipe();
        pipeline.cmd("HKEYS").arg(self.keys().parts(key));
        let (before,): (Vec<String>,) = self.ask(&pipeline).await?;
        let before: BTreeSet<String> = before.into_iter().collect();
        let (joined, left) = difference(&before, change);
        if joined.is_empty() && left.is_empty() {
            return Ok(Some(MembersChanged::default()));
        }
        let mut graph = Graph::new(above)?;
        for part in joined.iter().filter(|part| part.kind != USER) {
            graph.0.join(key, part, LogPosition::MAX)?;
        }
        let all: Vec<&AudienceKey> = joined.iter().chain(&left).collect();
        let pair = |key: &AudienceKey| (key.kind.clone(), key.target.clone());
        let detail = json!([pair(key), all.iter().map(|key| pair(key)).collect::<Vec<_>>()]).to_string();
        let told = if all.len() > TOLD_MEMBERS { Vec::new() } else { all.into_iter().map(encode).collect() };
        let plan =
            MembersPlan { members: revision, key: encode(key), joined: encoded(&joined), left: encoded(&left), told };
        let known = self.0.connections.known();
        let plan = serde_json::to_string(&plan).map_err(corrupt)?;
        let answer: Vec<Value> = self.0.connections.run(&scripts::MEMBERS, &[plan, detail]).await?;
        if answer.len() < 2 {
            return Ok(None);
        }
        let (_, epoch, begin, position): (String, String, LogPosition, LogPosition) = parsed(Value::Array(answer))?;
        self.note_written(&known, &epoch, begin, position).await;
        Ok(Some(MembersChanged { joined: joined.len(), left: left.len() }))
    }

    /// Looks whether open messages to a target, or to one that contains it, still lack an acknowledgement.
    async fn settle_open(&self, key: &AudienceKey) -> Result<(), StoreError> {
        let (_, above) = self.read_edges("wholes", BTreeSet::from([encode(key)])).await?;
        let keys: BTreeSet<AudienceKey> =
            above.into_iter().map(|edge| edge.whole).chain(std::iter::once(key.clone())).collect();
        for key in keys {
            let (key, mut after) = (self.keys().awaiting(&encode(&key)), "-inf".to_owned());
            loop {
                let mut pipeline = redis::pipe();
                pipeline.cmd("ZRANGEBYSCORE").arg(&key).arg(&after).arg("+inf").arg("WITHSCORES");
                pipeline.arg("LIMIT").arg(0).arg(SETTLED_AT_ONCE);
                let (found,): (Vec<(String, LogPosition)>,) = self.ask(&pipeline).await?;
                let Some((_, last)) = found.last() else { break };
                after = format!("({last}");
                self.settle(found.iter().map(|(id, _)| uuid(id)).collect::<Result<_, _>>()?).await?;
            }
        }
        Ok(())
    }

    pub(crate) async fn read_names(
        &self,
        key: &AudienceKey,
        after: Option<&AudienceKey>,
        limit: usize,
    ) -> Result<Vec<Member>, StoreError> {
        let first = after.map_or("-".to_owned(), |after| format!("({}", encode(after)));
        let mut pipeline = redis::pipe();
        pipeline.cmd("ZRANGEBYLEX").arg(self.keys().names(key)).arg(first).arg("+").arg("LIMIT").arg(0).arg(limit);
        let (names,): (Vec<String>,) = self.ask(&pipeline).await?;
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipeline = redis::pipe();
        pipeline.cmd("HMGET").arg(self.keys().parts(key)).arg(&names);
        let (positions,): (Vec<Option<LogPosition>>,) = self.ask(&pipeline).await?;
        // Who has left between the two reads is not there.
        let found = names.iter().zip(positions).filter_map(|(name, since)| Some((name, since?)));
        let member = |(name, since): (&String, LogPosition)| match decode(name) {
            Some(key) => Ok(Member { key, since }),
            None => Err(corrupt(format!("`{name}` among members"))),
        };
        found.map(member).collect()
    }
}

/// Who joins and who leaves.
fn difference(before: &BTreeSet<String>, change: &MembersChange) -> (Vec<AudienceKey>, Vec<AudienceKey>) {
    let is_there = |key: &&AudienceKey| before.contains(&encode(key));
    let distinct = |keys: &[AudienceKey]| keys.iter().cloned().collect::<BTreeSet<AudienceKey>>();
    match change {
        MembersChange::Set(members) => {
            let after = distinct(members);
            let left = before.iter().filter_map(|text| decode(text)).filter(|key| !after.contains(key)).collect();
            (after.iter().filter(|key| !is_there(key)).cloned().collect(), left)
        }
        MembersChange::Add(members) => {
            (distinct(members).iter().filter(|key| !is_there(key)).cloned().collect(), Vec::new())
        }
        MembersChange::Remove(members) => (Vec::new(), distinct(members).iter().filter(is_there).cloned().collect()),
    }
}

/// What a user belongs to, and since when: by the way that has held for the longest time.
fn scope_of(user: String, wholes: &HashMap<&AudienceKey, Vec<&Edge>>) -> UserScope {
    let own = AudienceKey::user(&user);
    let mut since: HashMap<&AudienceKey, LogPosition> = HashMap::from([(&own, 0)]);
    let mut left = vec![&own];
    while let Some(part) = left.pop() {
        let so_far = since.get(part).copied().unwrap_or_default();
        for edge in wholes.get(part).into_iter().flatten() {
            let by_this = so_far.max(edge.since);
            if since.get(&edge.whole).is_none_or(|known| by_this < *known) {
                since.insert(&edge.whole, by_this);
                left.push(&edge.whole);
            }
        }
    }
    let belongs = since.into_iter().map(|(key, since)| Belonging { key: key.clone(), since: Some(since) });
    UserScope { belongs: belongs.collect(), user }
}
