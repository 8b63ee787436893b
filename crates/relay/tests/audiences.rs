//! Declared audiences over the real stores: whoever changes what, in the end the members are those that are declared.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use relais_core::Change;
use relais_engine::DeclaredAudiences as _;
use relais_notify::{AudienceKey, MembersChange};
use relais_protocol::audience::{AudienceDeclaration, MemberDeclaration};
use relais_relay::Audiences;
use relais_store::{Options, Ports};
use relais_testkit::{Random, TestDatabase};
use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;

const DEADLINE: Duration = Duration::from_secs(60);

/// The members of each target.
type Members = BTreeMap<AudienceKey, BTreeSet<AudienceKey>>;

async fn open(url: &str) -> Result<Ports> {
    let ports = relais_store::open_ports(url, &Options::default()).await?;
    ports.store.migrate().await?;
    Ok(ports)
}

async fn sqlite() -> Result<(Ports, tempfile::TempDir)> {
    let folder = tempfile::tempdir()?;
    let ports = open(&format!("sqlite:{}", folder.path().join("relais.db").display())).await?;
    Ok((ports, folder))
}

fn group(number: usize) -> AudienceKey {
    AudienceKey::new("GROUP", format!("g{number}"))
}

fn declaration(key: &AudienceKey, members: &BTreeSet<AudienceKey>) -> AudienceDeclaration {
    let member = |key: &AudienceKey| MemberDeclaration { kind: key.kind.clone(), target: key.target.clone() };
    AudienceDeclaration {
        kind: key.kind.clone(),
        target: Some(key.target.clone()),
        members: members.iter().map(member).collect(),
    }
}

/// Plans and declares, as the engine does. None if it is refused.
async fn declare(ports: &Ports, audiences: &Audiences, wanted: &Members) -> Result<Option<()>> {
    let file: Vec<AudienceDeclaration> = wanted.iter().map(|(key, members)| declaration(key, members)).collect();
    let plan = audiences.plan(&file, true).await?;
    if !plan.problems.is_empty() {
        return Ok(None);
    }
    ports.store.declare(plan.changes.into_iter().map(Change::Audience).collect()).await?;
    Ok(Some(()))
}

async fn members(ports: &Ports, groups: usize) -> Result<Members> {
    let mut found = Members::new();
    for number in 0..groups {
        let listed = ports.notifications.list_members(&group(number), None, 1000).await?;
        if !listed.is_empty() {
            found.insert(group(number), listed.into_iter().map(|member| member.key).collect());
        }
    }
    Ok(found)
}

/// A world of a few targets, some of which contain others.
fn world(random: &mut Random, groups: usize) -> Members {
    let mut world = Members::new();
    for number in 0..groups {
        if random.once_in(4) {
            continue;
        }
        let users = (0..random.below(4)).map(|user| AudienceKey::user(format!("u{user}")));
        let mut members: BTreeSet<AudienceKey> = users.collect();
        // Any other one: worlds with a circle are refused.
        if random.once_in(2) {
            members.insert(group(random.below(groups)));
        }
        world.insert(group(number), members);
    }
    world
}

/// Two processes declare and settle at the same time, in any order; clients meddle with targets that are not declared.
async fn members_become_what_was_declared_last(ports: &Ports, rounds: usize) -> Result<()> {
    const GROUPS: usize = 5;
    let mut random = Random::new();
    let processes = [0, 1].map(|_| Audiences::new(Arc::clone(&ports.audiences), Arc::clone(&ports.notifications)));
    let (mut declared, mut refused) = (Members::new(), 0);
    for round in 0..rounds {
        let wanted = world(&mut random, GROUPS);
        match declare(ports, random.pick(&processes[..]), &wanted).await? {
            Some(()) => declared = wanted,
            None => refused += 1,
        }
        if random.once_in(2) {
            let meddled = MembersChange::Add(vec![AudienceKey::user("meddler")]);
            ports.notifications.change_members(group(random.below(GROUPS)), meddled).await?;
        }
        if random.once_in(2) {
            tokio::join!(processes[0].settle(), processes[1].settle());
        }
        if random.once_in(3) || round + 1 == rounds {
            random.pick(&processes[..]).settle().await;
            let found = members(ports, GROUPS).await?;
            for (key, members) in &declared {
                ensure!(
                    found.get(key).cloned().unwrap_or_default() == *members,
                    "{key} after {round}: {found:?}, not {declared:?}"
                );
            }
            let gone = ports.audiences.list_audiences().await?.iter().any(|record| record.gone);
            ensure!(!gone, "something is still to be removed");
        }
    }
    ensure!(refused > 0 && refused < rounds, "{refused} of {rounds} had a circle");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_become_what_was_declared_last_on_sqlite() -> Result<()> {
    let (ports, _folder) = sqlite().await?;
    members_become_what_was_declared_last(&ports, 100).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_become_what_was_declared_last_on_postgres() -> Result<()> {
    let database = TestDatabase::create().await?;
    members_become_what_was_declared_last(&open(database.url()).await?, 60).await
}

/// What another store has lost comes back; who was a member before stays one without a gap.
#[tokio::test]
async fn a_process_that_runs_keeps_members_and_does_not_touch_those_that_stay() -> Result<()> {
    let (ports, _folder) = sqlite().await?;
    let audiences = Audiences::new(Arc::clone(&ports.audiences), Arc::clone(&ports.notifications));
    let wanted = Members::from([(group(0), BTreeSet::from([AudienceKey::user("ann"), AudienceKey::user("bob")]))]);
    declare(&ports, &audiences, &wanted).await?.context("refused")?;
    let (changes, stop) = (watch::channel(0).0, CancellationToken::new());
    let running = tokio::spawn(audiences.clone().run(changes.subscribe(), stop.clone()));
    let back = async |wanted: &Members| -> Result<()> {
        while members(&ports, 1).await? != *wanted {
            tokio::task::yield_now().await;
        }
        Ok(())
    };
    timeout(DEADLINE, back(&wanted)).await??;
    let since = async || -> Result<BTreeMap<String, u64>> {
        let listed = ports.notifications.list_members(&group(0), None, 10).await?;
        Ok(listed.into_iter().map(|member| (member.key.target, member.since)).collect())
    };
    let before = since().await?;
    let lost = MembersChange::Remove(vec![AudienceKey::user("bob")]);
    ports.notifications.change_members(group(0), lost).await?;
    changes.send_replace(1);
    timeout(DEADLINE, back(&wanted)).await??;
    let after = since().await?;
    ensure!(after["ann"] == before["ann"] && after["bob"] > before["bob"], "{before:?} {after:?}");
    stop.cancel();
    timeout(DEADLINE, running).await??;
    Ok(())
}

/// The store of members refuses what only it can know; other targets get their members.
#[tokio::test]
async fn a_target_that_can_not_have_its_members_is_in_trouble_alone() -> Result<()> {
    let (ports, _folder) = sqlite().await?;
    let audiences = Audiences::new(Arc::clone(&ports.audiences), Arc::clone(&ports.notifications));
    let wanted =
        Members::from([(group(0), BTreeSet::from([group(1)])), (group(2), BTreeSet::from([AudienceKey::user("ann")]))]);
    declare(&ports, &audiences, &wanted).await?.context("refused")?;
    // Between the check and the change, a client makes a circle of it.
    let nested = MembersChange::Add(vec![group(0)]);
    ports.notifications.change_members(group(1), nested).await?;
    audiences.settle().await;
    let states = audiences.states().await?;
    let troubles: Vec<&str> = states.iter().filter_map(|state| state.trouble.as_deref()).collect();
    ensure!(troubles.len() == 1 && troubles[0].contains("would contain itself"), "{troubles:?}");
    ensure!(members(&ports, 3).await?.contains_key(&group(2)), "the other one has its members");
    ports.notifications.change_members(group(1), MembersChange::Set(Vec::new())).await?;
    audiences.settle().await;
    ensure!(audiences.states().await?.iter().all(|state| state.trouble.is_none()));
    ensure!(members(&ports, 3).await?.get(&group(0)) == wanted.get(&group(0)));
    Ok(())
}
