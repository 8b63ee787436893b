//! The conformance suite of the port `PushStore`: subscriptions, and the queue of pushes.
//!
//! A driver's own test builds a [`PushHarness`] and passes it to [`push_suite!`](crate::push_suite), which makes one test of each
//! promise. Nothing waits: what is due at once has a delay of zero, and what is not has one of an hour.

use std::{any::Any, collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use relais_notify::{ClaimedPush, PlannedPush, PushCursor, PushEnd, PushStore, PushSubscription, Subscribed};
use uuid::Uuid;

/// A store on an empty database whose tables were made.
pub struct PushHarness {
    /// The port.
    pub store: Arc<dyn PushStore>,
    /// Whatever must live as long as the database.
    pub keep: Box<dyn Any + Send + Sync>,
}

impl std::fmt::Debug for PushHarness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PushHarness").finish_non_exhaustive()
    }
}

/// Makes one test of each promise. The argument is an async function without parameters that returns
/// `anyhow::Result<PushHarness>`.
#[macro_export]
macro_rules! push_suite {
    ($harness:ident) => {
        $crate::push_suite! { @tests $harness;
            all_processes_have_the_same_key_pair,
            an_endpoint_is_stored_once,
            a_user_has_a_bounded_number_of_subscriptions,
            nothing_is_looked_through_while_nobody_subscribes,
            a_stretch_of_the_log_is_planned_once,
            a_push_is_asked_about_and_then_claimed_once,
            a_user_whose_page_is_open_gets_no_push,
            a_push_whose_lease_has_ended_is_claimed_by_another,
            what_was_pushed_is_pushed_again_by_a_replay_only,
            a_push_that_is_retried_waits_for_its_pause,
            what_is_withdrawn_is_told_to_those_it_was_pushed_to,
            a_subscription_that_is_gone_takes_its_pushes_with_it,
            pushes_of_expired_messages_are_purged,
        }
    };
    (@tests $harness:ident; $($promise:ident),* $(,)?) => {
        $(#[tokio::test]
        async fn $promise() -> anyhow::Result<()> {
            $crate::push_suite::$promise(&$harness().await?).await
        })*
    };
}

const HOUR: Duration = Duration::from_secs(3600);
const NOW: Duration = Duration::ZERO;

/// Two public keys: those of RFC 8291, appendix A.
const KEYS: [&str; 2] = [
    "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4",
    "BP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A8",
];

fn browser(user: &str, name: &str, key: usize) -> Result<PushSubscription> {
    Ok(PushSubscription::new(user, format!("https://push.example/{name}"), KEYS[key], "BTBZMqHH6r4Tts7J_aSIgg")?)
}

fn at(position: u64) -> PushCursor {
    PushCursor { epoch: "log".to_owned(), position }
}

/// Subscribes a browser, which is new.
async fn subscribe(store: &dyn PushStore, user: &str, name: &str) -> Result<Uuid> {
    match store.subscribe(browser(user, name, 0)?, 100, at(0)).await? {
        Subscribed::New(id) => Ok(id),
        other => anyhow::bail!("{other:?}"),
    }
}

fn message(id: Uuid, users: &[&str]) -> PlannedPush {
    let tomorrow = jiff::SignedDuration::from_hours(24);
    let users = users.iter().map(|user| (*user).to_owned()).collect();
    let expiration = jiff::Timestamp::now().checked_add(tomorrow).unwrap_or(jiff::Timestamp::MAX);
    PlannedPush::Message { id, users, expiration }
}

/// Plans something after what was planned before.
async fn plan(store: &dyn PushStore, planned: Vec<PlannedPush>, delay: Duration) -> Result<u64> {
    let from = store.push_cursor().await?.context("somebody subscribes")?;
    store.plan_pushes(&from, &at(from.position + 1), planned, delay).await?.context("nobody else plans")
}

/// Asks and claims all that is due.
async fn claim(store: &dyn PushStore, lease: Duration) -> Result<Vec<ClaimedPush>> {
    store.ask_pushes(100, NOW).await?;
    Ok(store.claim_pushes(100, lease).await?)
}

async fn claim_one(store: &dyn PushStore, lease: Duration) -> Result<ClaimedPush> {
    let mut claimed = claim(store, lease).await?;
    ensure!(claimed.len() == 1, "{claimed:?}");
    claimed.pop().context("one")
}

fn whose(claimed: &[ClaimedPush]) -> BTreeSet<(Uuid, &str)> {
    claimed.iter().map(|push| (push.notification, push.subscription.user.as_str())).collect()
}

/// Whoever asks first has made it.
pub async fn all_processes_have_the_same_key_pair(harness: &PushHarness) -> Result<()> {
    let asked = (0..4_u8).map(|n| {
        let store = Arc::clone(&harness.store);
        tokio::spawn(async move { store.push_key(vec![n; 4]).await })
    });
    let mut keys = BTreeSet::new();
    for asked in asked.collect::<Vec<_>>() {
        keys.insert(asked.await??);
    }
    ensure!(keys.len() == 1, "{keys:?}");
    Ok(())
}

/// The same again changes nothing; a browser may change its keys and its user, but not who has only the endpoint.
pub async fn an_endpoint_is_stored_once(harness: &PushHarness) -> Result<()> {
    let store = harness.store.as_ref();
    let id = subscribe(store, "ann", "a").await?;
    ensure!(store.subscribe(browser("ann", "a", 0)?, 100, at(0)).await? == Subscribed::Known(id));
    ensure!(store.subscribe(browser("eve", "a", 1)?, 100, at(0)).await? == Subscribed::Taken);
    ensure!(store.subscribe(browser("ann", "a", 1)?, 100, at(0)).await? == Subscribed::New(id), "other keys");
    plan(store, vec![message(Uuid::now_v7(), &["ann"])], NOW).await?;
    ensure!(store.subscribe(browser("bob", "a", 1)?, 100, at(0)).await? == Subscribed::New(id), "another user");
    let (of_ann, of_bob) = (store.subscriptions_of("ann").await?, store.subscriptions_of("bob").await?);
    ensure!(of_ann.is_empty() && of_bob.len() == 1, "{of_ann:?} {of_bob:?}");
    ensure!(of_bob[0].id == id && of_bob[0].subscription == browser("bob", "a", 1)? && of_bob[0].pushed.is_none());
    ensure!(claim(store, HOUR).await?.is_empty(), "what waited was for ann");
    ensure!(!store.unsubscribe(id, Some("ann")).await?, "it is not hers");
    ensure!(store.unsubscribe(id, Some("bob")).await? && !store.unsubscribe(id, Some("bob")).await?);
    Ok(())
}

/// However many ask at once; others have their own.
pub async fn a_user_has_a_bounded_number_of_subscriptions(harness: &PushHarness) -> Result<()> {
    let asked = (0..8).map(|n| {
        let store = Arc::clone(&harness.store);
        tokio::spawn(async move {
            Ok::<_, anyhow::Error>(store.subscribe(browser("ann", &n.to_string(), 0)?, 3, at(0)).await?)
        })
    });
    let mut refused = 0;
    for asked in asked.collect::<Vec<_>>() {
        refused += usize::from(asked.await?? == Subscribed::TooMany);
    }
    ensure!(refused == 5 && harness.store.subscriptions_of("ann").await?.len() == 3, "{refused} were refused");
    ensure!(matches!(harness.store.subscribe(browser("bob", "b", 0)?, 3, at(0)).await?, Subscribed::New(_)));
    Ok(())
}

/// The first who subscribes sets the cursor to the end of the log, and the last who leaves takes it away.
pub async fn nothing_is_looked_through_while_nobody_subscribes(harness: &PushHarness) -> Result<()> {
    let store = harness.store.as_ref();
    ensure!(store.push_cursor().await?.is_none() && store.next_push_due().await?.is_none());
    ensure!(store.plan_pushes(&at(0), &at(1), Vec::new(), NOW).await?.is_none());
    let mut ids = Vec::new();
    for (position, user) in [(7, "ann"), (9, "bob")] {
        let Subscribed::New(id) = store.subscribe(browser(user, user, 0)?, 3, at(position)).await? else {
            anyhow::bail!("it is new")
        };
        ids.push(id);
        ensure!(store.push_cursor().await? == Some(at(7)));
    }
    for (id, left) in ids.into_iter().zip([Some(at(7)), None]) {
        ensure!(store.unsubscribe(id, None).await? && store.push_cursor().await? == left);
    }
    Ok(())
}

/// By any number of processes: who comes second changes nothing.
pub async fn a_stretch_of_the_log_is_planned_once(harness: &PushHarness) -> Result<()> {
    subscribe(harness.store.as_ref(), "ann", "a").await?;
    subscribe(harness.store.as_ref(), "ann", "b").await?;
    let id = Uuid::now_v7();
    let planners = (0..6).map(|_| {
        let store = Arc::clone(&harness.store);
        tokio::spawn(async move { store.plan_pushes(&at(0), &at(5), vec![message(id, &["ann", "bob"])], NOW).await })
    });
    let mut planned = Vec::new();
    for planner in planners.collect::<Vec<_>>() {
        planned.extend(planner.await??);
    }
    ensure!(planned == [2], "a push for each browser of ann, once: {planned:?}");
    ensure!(harness.store.push_cursor().await? == Some(at(5)));
    Ok(())
}

/// Not before it is due, not before all could say whose page is open, and by one process.
pub async fn a_push_is_asked_about_and_then_claimed_once(harness: &PushHarness) -> Result<()> {
    const USERS: usize = 20;
    let store = harness.store.as_ref();
    let users: Vec<String> = (0..USERS).map(|n| format!("u{n:02}")).collect();
    for user in &users {
        subscribe(store, user, user).await?;
    }
    let names: Vec<&str> = users.iter().map(String::as_str).collect();
    plan(store, vec![message(Uuid::now_v7(), &names[..1])], HOUR).await?;
    ensure!(store.ask_pushes(100, NOW).await? == 0, "it is not due");
    ensure!(store.next_push_due().await?.is_some_and(|due| due > HOUR / 2));
    let id = Uuid::now_v7();
    plan(store, vec![message(id, &names)], NOW).await?;
    ensure!(store.next_push_due().await? == Some(NOW) && store.claim_pushes(100, HOUR).await?.is_empty());
    ensure!(store.ask_pushes(5, HOUR).await? == 5 && store.claim_pushes(100, HOUR).await?.is_empty(), "not answered");
    ensure!(store.ask_pushes(100, NOW).await? == 15 && store.users_asked(100).await? == users);
    let claimers = (0..4).map(|_| {
        let store = Arc::clone(&harness.store);
        tokio::spawn(async move {
            let mut all = Vec::new();
            loop {
                let claimed = store.claim_pushes(3, HOUR).await?;
                if claimed.is_empty() {
                    return Ok::<_, anyhow::Error>(all);
                }
                all.extend(claimed);
            }
        })
    });
    let mut claimed = Vec::new();
    for claimer in claimers.collect::<Vec<_>>() {
        claimed.extend(claimer.await??);
    }
    ensure!(claimed.len() == 15 && whose(&claimed).len() == 15, "{} were claimed", claimed.len());
    ensure!(claimed.iter().all(|push| push.tries == 1 && !push.withdrawn && push.notification == id));
    Ok(())
}

/// Only of what was asked about, and of nobody else.
pub async fn a_user_whose_page_is_open_gets_no_push(harness: &PushHarness) -> Result<()> {
    let store = harness.store.as_ref();
    for (user, name) in [("ann", "a"), ("ann", "b"), ("bob", "c")] {
        subscribe(store, user, name).await?;
    }
    let (first, second) = (Uuid::now_v7(), Uuid::now_v7());
    plan(store, vec![message(first, &["ann", "bob"])], NOW).await?;
    ensure!(store.ask_pushes(100, NOW).await? == 3);
    plan(store, vec![message(second, &["ann"])], NOW).await?;
    ensure!(store.cancel_pushes(vec!["ann".to_owned(), "cem".to_owned()]).await? == 2);
    let claimed = claim(store, HOUR).await?;
    ensure!(whose(&claimed) == BTreeSet::from([(first, "bob"), (second, "ann")]), "{claimed:?}");
    Ok(())
}

/// What the one before says of it afterwards changes nothing.
pub async fn a_push_whose_lease_has_ended_is_claimed_by_another(harness: &PushHarness) -> Result<()> {
    let store = harness.store.as_ref();
    subscribe(store, "ann", "a").await?;
    plan(store, vec![message(Uuid::now_v7(), &["ann"])], NOW).await?;
    let first = claim_one(store, NOW).await?;
    let second = claim_one(store, HOUR).await?;
    ensure!((first.tries, second.tries) == (1, 2) && claim(store, HOUR).await?.is_empty());
    for end in [PushEnd::Pushed, PushEnd::Dropped, PushEnd::Retry(NOW)] {
        store.finish_push(first.clone(), end).await?;
        ensure!(claim(store, HOUR).await?.is_empty());
    }
    store.finish_push(second, PushEnd::Retry(NOW)).await?;
    ensure!(claim_one(store, HOUR).await?.tries == 3, "it was there still");
    Ok(())
}

/// A replay that comes while it is on its way is not lost.
pub async fn what_was_pushed_is_pushed_again_by_a_replay_only(harness: &PushHarness) -> Result<()> {
    let store = harness.store.as_ref();
    subscribe(store, "ann", "a").await?;
    let id = Uuid::now_v7();
    plan(store, vec![message(id, &["ann"])], NOW).await?;
    let push = claim_one(store, HOUR).await?;
    store.finish_push(push, PushEnd::Pushed).await?;
    ensure!(claim(store, HOUR).await?.is_empty() && store.next_push_due().await?.is_none());
    ensure!(store.subscriptions_of("ann").await?[0].pushed.is_some());
    plan(store, vec![message(id, &["ann"])], NOW).await?;
    let replayed = claim_one(store, HOUR).await?;
    ensure!(replayed.tries == 1);
    plan(store, vec![message(id, &["ann"])], NOW).await?;
    store.finish_push(replayed, PushEnd::Pushed).await?;
    let again = claim_one(store, HOUR).await?;
    store.finish_push(again, PushEnd::Dropped).await?;
    ensure!(claim(store, HOUR).await?.is_empty());
    Ok(())
}

/// And is asked about again: a page may have been opened meanwhile.
pub async fn a_push_that_is_retried_waits_for_its_pause(harness: &PushHarness) -> Result<()> {
    let store = harness.store.as_ref();
    subscribe(store, "ann", "a").await?;
    plan(store, vec![message(Uuid::now_v7(), &["ann"])], NOW).await?;
    let push = claim_one(store, HOUR).await?;
    store.finish_push(push, PushEnd::Retry(NOW)).await?;
    ensure!(store.claim_pushes(100, HOUR).await?.is_empty(), "nobody was asked");
    let push = claim_one(store, HOUR).await?;
    ensure!(push.tries == 2);
    store.finish_push(push, PushEnd::Retry(2 * HOUR)).await?;
    ensure!(claim(store, HOUR).await?.is_empty());
    ensure!(store.next_push_due().await?.is_some_and(|due| due > HOUR));
    Ok(())
}

/// What was not pushed yet never is.
pub async fn what_is_withdrawn_is_told_to_those_it_was_pushed_to(harness: &PushHarness) -> Result<()> {
    let store = harness.store.as_ref();
    subscribe(store, "ann", "a").await?;
    subscribe(store, "bob", "b").await?;
    let (pushed, waiting) = (Uuid::now_v7(), Uuid::now_v7());
    plan(store, vec![message(pushed, &["ann"])], NOW).await?;
    let push = claim_one(store, HOUR).await?;
    store.finish_push(push, PushEnd::Pushed).await?;
    plan(store, vec![message(pushed, &["bob"]), message(waiting, &["ann", "bob"])], HOUR).await?;
    plan(store, vec![PlannedPush::Withdrawal { id: pushed }, PlannedPush::Withdrawal { id: waiting }], NOW).await?;
    ensure!(store.ask_pushes(100, NOW).await? == 1);
    ensure!(store.cancel_pushes(vec!["ann".to_owned()]).await? == 0, "it is to close what another device shows");
    let told = claim_one(store, HOUR).await?;
    ensure!(told.withdrawn && told.notification == pushed && told.subscription.user == "ann", "{told:?}");
    store.finish_push(told, PushEnd::Pushed).await?;
    plan(store, vec![PlannedPush::Withdrawal { id: pushed }], NOW).await?;
    ensure!(claim(store, HOUR).await?.is_empty() && store.next_push_due().await?.is_none());
    Ok(())
}

/// Those of others stay.
pub async fn a_subscription_that_is_gone_takes_its_pushes_with_it(harness: &PushHarness) -> Result<()> {
    let store = harness.store.as_ref();
    let gone = subscribe(store, "ann", "a").await?;
    subscribe(store, "bob", "b").await?;
    let id = Uuid::now_v7();
    plan(store, vec![message(id, &["ann", "bob"])], NOW).await?;
    let claimed = claim(store, NOW).await?;
    ensure!(claimed.len() == 2 && store.unsubscribe(gone, None).await?);
    for push in claimed {
        store.finish_push(push, PushEnd::Retry(NOW)).await?;
    }
    ensure!(whose(&claim(store, HOUR).await?) == BTreeSet::from([(id, "bob")]));
    Ok(())
}

/// At most so many at once.
pub async fn pushes_of_expired_messages_are_purged(harness: &PushHarness) -> Result<()> {
    let store = harness.store.as_ref();
    for user in ["ann", "bob", "cem"] {
        subscribe(store, user, user).await?;
    }
    let (old, new) = (Uuid::now_v7(), Uuid::now_v7());
    let users = ["ann", "bob", "cem"].map(str::to_owned).to_vec();
    let expired = PlannedPush::Message { id: old, users, expiration: jiff::Timestamp::UNIX_EPOCH };
    plan(store, vec![expired, message(new, &["ann"])], NOW).await?;
    ensure!(
        store.purge_pushes(2).await? == 2 && store.purge_pushes(2).await? == 1 && store.purge_pushes(2).await? == 0
    );
    ensure!(whose(&claim(store, HOUR).await?) == BTreeSet::from([(new, "ann")]));
    Ok(())
}
