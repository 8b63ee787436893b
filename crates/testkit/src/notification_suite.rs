//! The conformance suite of the port `NotificationStore`: the log of notifications and the ledger.
//!
//! A driver's own test builds a [`NotificationHarness`] and passes it to [`notification_suite!`](crate::notification_suite),
//! which makes one test of each promise. What memberships mean is compared with the rule, `relais_notify::Memberships`.

use std::{any::Any, collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use relais_notify::{
    AckChoice, AckRefused, AckStatus, Acknowledged, Acknowledgement, AudienceKey, Backoff, ChangeRefused, Counts,
    Delivery, Emitted, EntryContent, EntryKind, FillIn, ListFilter, ListRequest, LogEntry, MembersChange,
    MembersChanged, MembersRefused, MembershipRefused, Memberships, NewNotification, NotificationDraft,
    NotificationFilter, NotificationLimits, NotificationStore, Retry, UserScope,
};
use uuid::Uuid;

use crate::Random;

/// A store on an empty database whose tables were made.
pub struct NotificationHarness {
    /// The port.
    pub store: Arc<dyn NotificationStore>,
    /// Whatever must live as long as the database.
    pub keep: Box<dyn Any + Send + Sync>,
}

impl std::fmt::Debug for NotificationHarness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NotificationHarness").finish_non_exhaustive()
    }
}

/// Makes one test of each promise. The argument is an async function without parameters that returns
/// `anyhow::Result<NotificationHarness>`.
#[macro_export]
macro_rules! notification_suite {
    ($harness:ident) => {
        $crate::notification_suite! { @tests $harness;
            a_message_is_stored_once_however_often_it_is_emitted,
            entries_become_visible_in_the_order_of_their_positions,
            a_user_reads_the_entries_of_their_audiences_only,
            memberships_are_those_of_the_rule,
            a_target_never_contains_itself,
            acknowledgements_are_kept_and_counted_exactly,
            nobody_acknowledges_what_they_do_not_see,
            the_last_acknowledgement_settles_a_message,
            a_message_is_settled_when_the_last_who_is_awaited_leaves,
            a_message_is_sent_again_once_whoever_has_a_timer,
            a_message_that_nobody_could_acknowledge_is_refused,
            what_failed_can_be_sent_again_and_be_acknowledged,
            what_was_withdrawn_or_replaced_is_not_listed,
            lists_have_pages,
            the_ledger_says_who_was_sent_what,
            what_is_old_is_purged_and_the_floor_tells_it,
            all_processes_have_the_same_ticket_key,
        }
    };
    (@tests $harness:ident; $($promise:ident),* $(,)?) => {
        $(#[tokio::test]
        async fn $promise() -> anyhow::Result<()> {
            $crate::notification_suite::$promise(&$harness().await?).await
        })*
    };
}

/// A message to users or other targets of one type.
fn message(kind: &str, targets: &[&str]) -> Result<NewNotification> {
    let json = serde_json::json!({"routing": {"audience": {"type": kind, "targets": targets}}, "payload": {"n": 1}});
    let draft: NotificationDraft = serde_json::from_value(json)?;
    let with = FillIn { now: jiff::Timestamp::now(), id: Uuid::now_v7(), emitter: "test" };
    let notification = draft.fill(&with, &NotificationLimits::default())?;
    Ok(NewNotification { notification, client: Some("shop".to_owned()), ack_timeout: Duration::from_secs(3600) })
}

/// The same, to be acknowledged.
fn required(kind: &str, targets: &[&str]) -> Result<NewNotification> {
    let mut new = message(kind, targets)?;
    new.notification.routing.retry = Retry { ack_required: true, ..Retry::default() };
    Ok(new)
}

/// The same, due at once and again and again, up to a limit.
fn impatient(kind: &str, targets: &[&str], limit: u32) -> Result<NewNotification> {
    let mut new = required(kind, targets)?;
    new.ack_timeout = Duration::ZERO;
    new.notification.routing.retry = Retry { limit, backoff: Backoff::Fixed, ..new.notification.routing.retry };
    Ok(new)
}

fn id(new: &NewNotification) -> Uuid {
    new.notification.metadata.id
}

fn group(name: &str) -> AudienceKey {
    AudienceKey::new("GROUP", name)
}

fn users(names: &[&str]) -> Vec<AudienceKey> {
    names.iter().map(|name| AudienceKey::user(*name)).collect()
}

async fn emit(store: &dyn NotificationStore, new: &NewNotification) -> Result<Emitted> {
    let answers = store.emit_notifications(vec![new.clone()]).await?;
    answers.first().copied().context("an answer for each message")
}

async fn scope(store: &dyn NotificationStore, user: &str) -> Result<UserScope> {
    store.scopes_of(vec![user.to_owned()]).await?.remove(user).context("a scope for each user")
}

async fn acknowledge(store: &dyn NotificationStore, user: &str, choice: AckChoice) -> Result<Acknowledged> {
    let acknowledgement = Acknowledgement { scope: scope(store, user).await?, choice };
    store.acknowledge(vec![acknowledgement]).await?.pop().context("an answer for each")
}

async fn counts(store: &dyn NotificationStore, user: &str) -> Result<(u64, u64, u64)> {
    let Counts { unread, unacknowledged, all } = store.count_of_user(&scope(store, user).await?).await?;
    Ok((unread, unacknowledged, all))
}

async fn list(store: &dyn NotificationStore, user: &str, filter: ListFilter) -> Result<Vec<Uuid>> {
    let request = ListRequest { scope: scope(store, user).await?, filter, before: None, limit: 100 };
    let listed = store.list_of_user(request).await?;
    Ok(listed.iter().map(|listed| listed.stored.notification.metadata.id).collect())
}

async fn status(store: &dyn NotificationStore, of: Uuid) -> Result<AckStatus> {
    Ok(store.find_notification(of, 1).await?.context("the message")?.0.status)
}

/// What entries say of messages.
fn sendings(entries: &[LogEntry]) -> Vec<(EntryKind, Uuid)> {
    let of = |entry: &LogEntry| match &entry.content {
        EntryContent::Message(kind, stored) => Some((*kind, stored.notification.metadata.id)),
        EntryContent::Acknowledged { .. } | EntryContent::Members { .. } | EntryContent::Gone => None,
    };
    entries.iter().filter_map(of).collect()
}

/// Also within one call. What is emitted under a known id changes nothing.
pub async fn a_message_is_stored_once_however_often_it_is_emitted(harness: &NotificationHarness) -> Result<()> {
    let store = harness.store.as_ref();
    let (first, second) = (message("USER", &["ann"])?, message("USER", &["ann"])?);
    let mut other = message("USER", &["bob"])?;
    other.notification.metadata.id = id(&first);
    let before = store.log_head().await?.now;
    let answers = store.emit_notifications(vec![first.clone(), second.clone(), other.clone()]).await?;
    ensure!(answers == [Emitted::Stored, Emitted::Stored, Emitted::Known], "{answers:?}");
    let after = store.log_head().await?.now;
    ensure!(emit(store, &other).await? == Emitted::Known);
    let entries = store.read_log(0, 100).await?;
    ensure!(sendings(&entries) == [(EntryKind::Emitted, id(&first)), (EntryKind::Emitted, id(&second))]);
    ensure!(entries.iter().map(|entry| entry.position).collect::<Vec<_>>() == [1, 2]);
    let appended = entries.iter().map(|entry| entry.appended).collect::<Vec<_>>();
    ensure!(appended.iter().all(|at| (before..=after).contains(at)), "{before} to {after}: {appended:?}");
    ensure!(counts(store, "ann").await? == (2, 0, 2) && counts(store, "bob").await? == (0, 0, 0));
    let EntryContent::Message(_, stored) = &entries[0].content else { anyhow::bail!("a message") };
    ensure!(stored.notification.payload.get() == first.notification.payload.get(), "the payload is not touched");
    ensure!(stored.client.as_deref() == Some("shop") && stored.position == 1);
    Ok(())
}

/// Whoever follows the log by position misses nothing, whatever is written at the same time.
pub async fn entries_become_visible_in_the_order_of_their_positions(harness: &NotificationHarness) -> Result<()> {
    const WRITERS: usize = 8;
    const EACH: usize = 25;
    let writers = (0..WRITERS).map(|writer| {
        let store = Arc::clone(&harness.store);
        tokio::spawn(async move {
            for number in 0..EACH {
                let batch = (0..=number % 3).map(|_| message("USER", &["ann"])).collect::<Result<Vec<_>>>()?;
                store.emit_notifications(batch).await?;
                if number % 5 == 0 {
                    let change = MembersChange::Add(users(&[&format!("u{writer}-{number}")]));
                    store.change_members(group("g"), change).await.map_err(anyhow::Error::from)?;
                }
            }
            Ok::<_, anyhow::Error>(())
        })
    });
    let writers: Vec<_> = writers.collect();
    let (mut seen, mut position) = (Vec::new(), 0);
    loop {
        let done = writers.iter().all(tokio::task::JoinHandle::is_finished);
        let entries = harness.store.read_log(position, 7).await?;
        if entries.is_empty() && done {
            break;
        }
        position = entries.last().map_or(position, |entry| entry.position);
        seen.extend(entries.into_iter().map(|entry| entry.position));
    }
    for writer in writers {
        writer.await??;
    }
    let expected: Vec<u64> = (1..=harness.store.log_head().await?.position).collect();
    ensure!(seen == expected, "{} entries were seen of {}", seen.len(), expected.len());
    Ok(())
}

/// By their own name, and by all that contains them.
pub async fn a_user_reads_the_entries_of_their_audiences_only(harness: &NotificationHarness) -> Result<()> {
    let store = harness.store.as_ref();
    let school = AudienceKey::new("STRUCTURE", "school");
    store.change_members(school.clone(), MembersChange::Add(vec![group("1b")])).await?;
    store.change_members(group("1b"), MembersChange::Add(users(&["ann"]))).await?;
    let all = [
        message("USER", &["ann", "bob"])?,
        message("GROUP", &["1b"])?,
        message("STRUCTURE", &["school"])?,
        message("USER", &["bob"])?,
        message("GROUP", &["ann"])?,
    ];
    store.emit_notifications(all.to_vec()).await?;
    let up_to = store.log_head().await?.position;
    let read = async |user: &str, after, up_to, limit| -> Result<Vec<Uuid>> {
        let entries = store.read_log_of(&scope(store, user).await?, after, up_to, limit).await?;
        Ok(sendings(&entries).into_iter().map(|(_, id)| id).collect())
    };
    ensure!(read("ann", 0, up_to, 10).await? == [id(&all[0]), id(&all[1]), id(&all[2])]);
    ensure!(read("bob", 0, up_to, 10).await? == [id(&all[0]), id(&all[3])]);
    ensure!(read("cem", 0, up_to, 10).await?.is_empty());
    ensure!(read("ann", up_to - 4, up_to, 10).await? == [id(&all[1]), id(&all[2])], "after a position");
    ensure!(read("ann", 0, up_to - 3, 10).await? == [id(&all[0]), id(&all[1])], "up to a position");
    ensure!(read("ann", up_to - 5, up_to, 1).await? == [id(&all[0])], "no more than asked for");
    Ok(())
}

/// Random joins and leaves of users and nested targets.
pub async fn memberships_are_those_of_the_rule(harness: &NotificationHarness) -> Result<()> {
    let (store, mut random) = (harness.store.as_ref(), Random::new());
    let people = ["ann", "bob", "cem", "dia"];
    let wholes = [group("a"), group("b"), group("c"), AudienceKey::new("ROLE", "a")];
    let mut rule = Memberships::default();
    for _ in 0..60 {
        let whole = &wholes[random.below(wholes.len())];
        let part = match random.below(3) {
            0 => wholes[random.below(wholes.len())].clone(),
            _ => AudienceKey::user(people[random.below(people.len())]),
        };
        let position = store.log_head().await?.position + 1;
        if random.below(3) > 0 {
            let expected = rule.join(whole, &part, position);
            match store.change_members(whole.clone(), MembersChange::Add(vec![part.clone()])).await {
                Ok(MembersChanged { joined, .. }) => ensure!(expected == Ok(joined == 1), "{whole} {part}"),
                Err(refused) => ensure!(expected.is_err(), "{whole} {part}: {refused}"),
            }
        } else {
            let left = rule.leave(whole, &part, position)?;
            let changed = store.change_members(whole.clone(), MembersChange::Remove(vec![part])).await?;
            ensure!(changed.left == usize::from(left));
        }
        let now = store.log_head().await?.position;
        for user in people {
            let scope = scope(store, user).await?;
            for whole in &wholes {
                let belongs = scope.keys().any(|key| key == whole);
                ensure!(belongs == rule.is_member_now([whole], user), "{user} in {whole} at {now}");
                for emitted_at in [1, now / 2, now] {
                    let since = scope.belongs.iter().find(|belonging| belonging.key == *whole);
                    let awaited = since.is_some_and(|found| found.since.is_some_and(|since| since <= emitted_at));
                    let expected = rule.awaited([whole], emitted_at).contains(user);
                    ensure!(awaited == expected, "{user} in {whole} since {emitted_at}, at {now}");
                }
            }
        }
    }
    Ok(())
}

/// Neither directly nor by others. Users have no members.
pub async fn a_target_never_contains_itself(harness: &NotificationHarness) -> Result<()> {
    let store = harness.store.as_ref();
    let add = async |whole: &AudienceKey, part: &AudienceKey| {
        store.change_members(whole.clone(), MembersChange::Add(vec![part.clone()])).await
    };
    let (a, b, c) = (group("a"), group("b"), group("c"));
    add(&a, &b).await?;
    add(&b, &c).await?;
    for (whole, part) in [(&c, &a), (&b, &a), (&a, &a)] {
        let answer = add(whole, part).await;
        ensure!(matches!(answer, Err(MembersRefused::Membership(MembershipRefused::Cycle(_)))), "{answer:?}");
    }
    let answer = add(&AudienceKey::user("ann"), &a).await;
    ensure!(matches!(answer, Err(MembersRefused::Membership(MembershipRefused::UserHasMembers(_)))), "{answer:?}");
    // What is taken away in the same change does not count.
    store.change_members(b.clone(), MembersChange::Set(users(&["ann"]))).await?;
    add(&c, &a).await?;
    let members = store.list_members(&b, None, 10).await?;
    ensure!(members.len() == 1 && members[0].key == AudienceKey::user("ann"));
    Ok(())
}

/// Each message counts once, however many ways lead to it.
pub async fn acknowledgements_are_kept_and_counted_exactly(harness: &NotificationHarness) -> Result<()> {
    let store = harness.store.as_ref();
    store.change_members(group("g"), MembersChange::Add(users(&["ann", "bob"]))).await?;
    store.change_members(group("h"), MembersChange::Add(users(&["ann"]))).await?;
    let (plain, both, own) = (message("GROUP", &["g"])?, required("GROUP", &["g", "h"])?, required("USER", &["ann"])?);
    store.emit_notifications(vec![plain.clone(), both.clone(), own.clone()]).await?;
    ensure!(counts(store, "ann").await? == (3, 2, 3) && counts(store, "bob").await? == (2, 1, 2));
    store.change_members(group("g"), MembersChange::Add(users(&["late"]))).await?;
    ensure!(counts(store, "late").await? == (2, 0, 2), "who joins later sees it and is not awaited");
    let answer = acknowledge(store, "ann", AckChoice::These(vec![id(&plain), id(&both), Uuid::nil()])).await?;
    ensure!(answer.new.len() == 2 && answer.known.is_empty(), "{answer:?}");
    let again = acknowledge(store, "ann", AckChoice::These(vec![id(&plain)])).await?;
    ensure!(again == Acknowledged { new: vec![], known: vec![id(&plain)] }, "{again:?}");
    ensure!(counts(store, "ann").await? == (1, 1, 3) && counts(store, "bob").await? == (2, 1, 2));
    ensure!(list(store, "ann", ListFilter::Unread).await? == [id(&own)]);
    ensure!(list(store, "ann", ListFilter::All).await? == [id(&own), id(&both), id(&plain)]);
    ensure!(list(store, "bob", ListFilter::Unacknowledged).await? == [id(&both)]);
    let all = acknowledge(store, "ann", AckChoice::All).await?;
    ensure!(all.new == [id(&own)] && counts(store, "ann").await? == (0, 0, 3));
    ensure!(acknowledge(store, "ann", AckChoice::All).await? == Acknowledged::default());
    // The user's other links are told.
    let told: Vec<usize> = store
        .read_log(0, 100)
        .await?
        .iter()
        .filter_map(|entry| match &entry.content {
            EntryContent::Acknowledged { user, ids } if user == "ann" => Some(ids.len()),
            _ => None,
        })
        .collect();
    ensure!(told == [2, 1], "{told:?}");
    ensure!(store.acknowledged_by(id(&both), vec!["ann".into(), "bob".into()]).await? == ["ann"]);
    ensure!(store.acknowledged_of("bob", vec![id(&both)]).await?.is_empty());
    Ok(())
}

/// Other users' messages are as if they were not there.
pub async fn nobody_acknowledges_what_they_do_not_see(harness: &NotificationHarness) -> Result<()> {
    let store = harness.store.as_ref();
    let new = required("USER", &["ann"])?;
    emit(store, &new).await?;
    let answer = acknowledge(store, "eve", AckChoice::These(vec![id(&new)])).await?;
    ensure!(answer == Acknowledged::default(), "{answer:?}");
    ensure!(acknowledge(store, "eve", AckChoice::All).await? == Acknowledged::default());
    ensure!(status(store, id(&new)).await? == AckStatus::Open && counts(store, "ann").await? == (1, 1, 1));
    Ok(())
}

/// In one call or in many, and whoever else acknowledges.
pub async fn the_last_acknowledgement_settles_a_message(harness: &NotificationHarness) -> Result<()> {
    let store = harness.store.as_ref();
    store.change_members(group("g"), MembersChange::Add(users(&["ann", "bob"]))).await?;
    let new = required("GROUP", &["g"])?;
    emit(store, &new).await?;
    store.change_members(group("g"), MembersChange::Add(users(&["late"]))).await?;
    for (user, expected) in [
        ("late", AckStatus::Open),
        ("ann", AckStatus::Open),
        ("ann", AckStatus::Open),
        ("bob", AckStatus::Acknowledged),
    ] {
        acknowledge(store, user, AckChoice::These(vec![id(&new)])).await?;
        ensure!(status(store, id(&new)).await? == expected, "after {user}");
    }
    let many = required("USER", &["ann", "bob", "cem"])?;
    emit(store, &many).await?;
    let mut acknowledgements = Vec::new();
    for user in ["ann", "bob", "cem"] {
        let choice = AckChoice::These(vec![id(&many)]);
        acknowledgements.push(Acknowledgement { scope: scope(store, user).await?, choice });
    }
    let calls = acknowledgements.into_iter().map(|one| {
        let store = Arc::clone(&harness.store);
        tokio::spawn(async move { store.acknowledge(vec![one]).await })
    });
    for call in calls.collect::<Vec<_>>() {
        ensure!(call.await??[0].new.len() == 1);
    }
    ensure!(status(store, id(&many)).await? == AckStatus::Acknowledged);
    ensure!(store.fire_notification_timers(10).await?.replayed == 0);
    Ok(())
}

/// Also if it leaves a target that is nested in that of the message.
pub async fn a_message_is_settled_when_the_last_who_is_awaited_leaves(harness: &NotificationHarness) -> Result<()> {
    let store = harness.store.as_ref();
    store.change_members(group("outer"), MembersChange::Add(vec![group("inner")])).await?;
    store.change_members(group("inner"), MembersChange::Add(users(&["ann", "bob"]))).await?;
    let new = required("GROUP", &["outer"])?;
    emit(store, &new).await?;
    acknowledge(store, "ann", AckChoice::All).await?;
    ensure!(status(store, id(&new)).await? == AckStatus::Open);
    store.change_members(group("inner"), MembersChange::Remove(users(&["bob"]))).await?;
    ensure!(status(store, id(&new)).await? == AckStatus::Acknowledged);
    ensure!(counts(store, "bob").await? == (0, 0, 0), "who has left sees it no more");
    Ok(())
}

/// Many call at the same time, as processes do.
pub async fn a_message_is_sent_again_once_whoever_has_a_timer(harness: &NotificationHarness) -> Result<()> {
    const LIMIT: u32 = 3;
    let store = harness.store.as_ref();
    let new = impatient("USER", &["ann", "bob"], LIMIT)?;
    emit(store, &new).await?;
    acknowledge(store, "bob", AckChoice::All).await?;
    for _ in 0..=LIMIT {
        let calls = (0..4).map(|_| {
            let store = Arc::clone(&harness.store);
            tokio::spawn(async move { store.fire_notification_timers(10).await })
        });
        for call in calls.collect::<Vec<_>>() {
            call.await??;
        }
    }
    let expected: Vec<(EntryKind, Uuid)> = std::iter::once(EntryKind::Emitted)
        .chain((1..=LIMIT).map(|attempts| EntryKind::Replayed { attempts }))
        .map(|kind| (kind, id(&new)))
        .collect();
    ensure!(sendings(&store.read_log(0, 100).await?) == expected);
    ensure!(status(store, id(&new)).await? == AckStatus::Failed);
    let fired = store.fire_notification_timers(10).await?;
    ensure!(fired.again.is_none() && !fired.more, "{fired:?}");
    let failed = NotificationFilter { status: Some(AckStatus::Failed), limit: 10, ..NotificationFilter::default() };
    ensure!(store.list_notifications(failed.clone()).await?.len() == 1);
    for (client, number) in [("shop", 1), ("other", 0)] {
        let filter = NotificationFilter { client: Some(client.to_owned()), ..failed.clone() };
        ensure!(store.list_notifications(filter).await?.len() == number);
    }
    Ok(())
}

/// Only targets with declared members, and users, can acknowledge.
pub async fn a_message_that_nobody_could_acknowledge_is_refused(harness: &NotificationHarness) -> Result<()> {
    let store = harness.store.as_ref();
    ensure!(emit(store, &required("ROLE", &["admin"])?).await? == Emitted::NoMembers);
    ensure!(emit(store, &message("ROLE", &["admin"])?).await? == Emitted::Stored, "others go to whoever has a token");
    store.change_members(AudienceKey::new("ROLE", "admin"), MembersChange::Set(vec![group("empty")])).await?;
    ensure!(emit(store, &required("ROLE", &["admin"])?).await? == Emitted::NoMembers);
    store.change_members(group("empty"), MembersChange::Set(users(&["ann"]))).await?;
    ensure!(emit(store, &required("ROLE", &["admin"])?).await? == Emitted::Stored);
    Ok(())
}

/// The error is settled once all have acknowledged.
pub async fn what_failed_can_be_sent_again_and_be_acknowledged(harness: &NotificationHarness) -> Result<()> {
    let store = harness.store.as_ref();
    let new = impatient("USER", &["ann"], 0)?;
    emit(store, &new).await?;
    ensure!(matches!(store.resend(id(&new), None).await, Err(ChangeRefused::State(_))), "it has not failed");
    ensure!(store.fire_notification_timers(10).await?.failed == 1);
    ensure!(matches!(store.resend(id(&new), Some("other".into())).await, Err(ChangeRefused::NotFound)));
    ensure!(matches!(store.resend(Uuid::nil(), None).await, Err(ChangeRefused::NotFound)));
    store.resend(id(&new), Some("shop".into())).await?;
    ensure!(sendings(&store.read_log(1, 10).await?) == [(EntryKind::Replayed { attempts: 1 }, id(&new))]);
    store.fire_notification_timers(10).await?;
    ensure!(status(store, id(&new)).await? == AckStatus::Failed, "its limit starts anew");
    acknowledge(store, "ann", AckChoice::All).await?;
    ensure!(status(store, id(&new)).await? == AckStatus::Acknowledged);
    Ok(())
}

/// The one that takes its place comes right behind.
pub async fn what_was_withdrawn_or_replaced_is_not_listed(harness: &NotificationHarness) -> Result<()> {
    let store = harness.store.as_ref();
    let (first, second, new) = (message("USER", &["ann"])?, required("USER", &["ann"])?, message("USER", &["ann"])?);
    store.emit_notifications(vec![first.clone(), second.clone()]).await?;
    ensure!(matches!(store.withdraw(id(&first), Some("other".into()), None).await, Err(ChangeRefused::NotFound)));
    let taken = store.withdraw(id(&first), None, Some(second.clone())).await;
    ensure!(matches!(taken, Err(ChangeRefused::IdTaken)), "{taken:?}");
    let nobody = store.withdraw(id(&first), None, Some(required("GROUP", &["nobody"])?)).await;
    ensure!(matches!(nobody, Err(ChangeRefused::NoMembers)), "{nobody:?}");
    ensure!(counts(store, "ann").await? == (2, 1, 2), "what is refused changes nothing");
    store.withdraw(id(&first), Some("shop".into()), Some(new.clone())).await?;
    let again = store.withdraw(id(&first), None, Some(message("USER", &["ann"])?)).await;
    ensure!(matches!(again, Err(ChangeRefused::State(AckRefused::Withdrawn))), "its place is taken: {again:?}");
    store.withdraw(id(&second), None, None).await?;
    ensure!(list(store, "ann", ListFilter::All).await? == [id(&new)] && counts(store, "ann").await? == (1, 0, 1));
    let entries = store.read_log(2, 10).await?;
    let expected =
        [(EntryKind::Withdrawn, id(&first)), (EntryKind::Emitted, id(&new)), (EntryKind::Withdrawn, id(&second))];
    ensure!(sendings(&entries) == expected);
    let EntryContent::Message(_, stored) = &entries[0].content else { anyhow::bail!("a message") };
    ensure!(stored.replaced_by == Some(id(&new)));
    ensure!(store.fire_notification_timers(10).await?.replayed == 0, "it is not awaited any more");
    Ok(())
}

/// The newest first.
pub async fn lists_have_pages(harness: &NotificationHarness) -> Result<()> {
    let store = harness.store.as_ref();
    let all = (0..5).map(|_| message("USER", &["ann"])).collect::<Result<Vec<_>>>()?;
    store.emit_notifications(all.clone()).await?;
    let (mut seen, mut before) = (Vec::new(), None);
    loop {
        let request = ListRequest { scope: scope(store, "ann").await?, filter: ListFilter::All, before, limit: 2 };
        let page = store.list_of_user(request).await?;
        let Some(last) = page.last() else { break };
        before = Some(last.stored.position);
        seen.extend(page.iter().map(|listed| listed.stored.notification.metadata.id));
    }
    ensure!(seen == all.iter().rev().map(id).collect::<Vec<_>>());
    let names: Vec<String> = (0..5).map(|number| format!("u{number}")).collect();
    let members: Vec<AudienceKey> = names.iter().map(AudienceKey::user).chain([group("z")]).collect();
    store.change_members(group("g"), MembersChange::Set(members.clone())).await?;
    let (mut found, mut after) = (BTreeSet::new(), None);
    loop {
        let page = store.list_members(&group("g"), after, 4).await?;
        let Some(last) = page.last() else { break };
        after = Some(last.key.clone());
        found.extend(page.into_iter().map(|member| member.key));
    }
    ensure!(found == members.into_iter().collect());
    Ok(())
}

/// And how often, and who is awaited still.
pub async fn the_ledger_says_who_was_sent_what(harness: &NotificationHarness) -> Result<()> {
    let store = harness.store.as_ref();
    store.change_members(group("g"), MembersChange::Set(users(&["ann", "bob"]))).await?;
    let new = required("GROUP", &["g"])?;
    emit(store, &new).await?;
    let sent = |user: &str| Delivery { id: id(&new), user: user.to_owned() };
    let unknown = Delivery { id: Uuid::nil(), user: "ann".to_owned() };
    store.record_deliveries(vec![sent("ann"), sent("eve"), sent("ann"), unknown]).await?;
    store.record_deliveries(vec![sent("ann")]).await?;
    acknowledge(store, "ann", AckChoice::All).await?;
    let (_, ledger) = store.find_notification(id(&new), 10).await?.context("the message")?;
    let told: Vec<_> = ledger
        .iter()
        .map(|line| (line.user.as_str(), line.awaited, line.deliveries, line.acknowledged.is_some()))
        .collect();
    ensure!(told == [("bob", true, 0, false), ("ann", true, 3, true), ("eve", false, 1, false)], "{told:?}");
    ensure!(ledger[1].delivered.is_some() && ledger[0].delivered.is_none());
    Ok(())
}

/// Messages and entries have ages of their own.
pub async fn what_is_old_is_purged_and_the_floor_tells_it(harness: &NotificationHarness) -> Result<()> {
    let (store, never) = (harness.store.as_ref(), Duration::from_secs(86_400));
    let mut expired = message("USER", &["ann"])?;
    expired.notification.metadata.expiration = jiff::Timestamp::UNIX_EPOCH;
    let fresh = message("USER", &["ann"])?;
    store.emit_notifications(vec![expired.clone(), fresh.clone()]).await?;
    ensure!(list(store, "ann", ListFilter::All).await? == [id(&fresh)], "what has expired is not listed");
    ensure!(store.fire_notification_timers(10).await?.expired == 1);
    acknowledge(store, "ann", AckChoice::All).await?;
    let purged = store.purge_notifications(never, never, 10).await?;
    ensure!((purged.entries, purged.notifications) == (0, 1), "{purged:?}");
    ensure!(store.find_notification(id(&expired), 1).await?.is_none());
    ensure!(sendings(&store.read_log(0, 10).await?) == [(EntryKind::Emitted, id(&fresh))]);
    // Older than no time at all: everything.
    let mut entries = 0;
    loop {
        let purged = store.purge_notifications(Duration::ZERO, never, 2).await?;
        entries += purged.entries;
        ensure!(purged.notifications == 0);
        if store.log_head().await?.floor == store.log_head().await?.position {
            break;
        }
    }
    ensure!(entries == 3 && store.read_log(0, 10).await?.is_empty());
    ensure!(list(store, "ann", ListFilter::All).await? == [id(&fresh)], "it has not expired");
    Ok(())
}

/// Whoever asks first makes it.
pub async fn all_processes_have_the_same_ticket_key(harness: &NotificationHarness) -> Result<()> {
    let first = harness.store.ticket_key().await?;
    ensure!(first == harness.store.ticket_key().await? && first != [0; 32]);
    Ok(())
}
