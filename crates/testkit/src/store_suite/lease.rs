//! Leases of workers that fall silent.

use std::time::Duration;

use anyhow::{Result, ensure};
use relais_core::{Event, ServiceLimits, Status};

use super::{
    Harness,
    world::{change, claim, claim_for, client, find, limits, new_tasks, one_of_each, service, submit_all},
};

/// The task returns to its position until it has lost as many workers as its delivery limit.
pub async fn an_expired_lease_returns_the_task_until_its_delivery_limit_then_it_fails(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let service = service(store, "resize", ServiceLimits { delivery_limit: 3, ..limits(None) }).await?;
    let client = client(store, "alice").await?;
    let names = submit_all(store, new_tasks(service, client, 2)?).await?;
    for losses in 1..=3 {
        let claimed = claim_for(store, service, 1, Duration::ZERO).await?;
        ensure!(claimed[0].task_id == names[0], "it is the oldest again");
        ensure!(store.fire_timers(10).await?.lost == 1);
        let found = find(store, names[0]).await?;
        ensure!(found.state.losses == losses && found.state.lease_until.is_none());
        if losses < 3 {
            ensure!(
                found.state.status == Status::Pending && found.position == Some(1) && found.error_message.is_none()
            );
        } else {
            ensure!(found.state.status == Status::Failure && found.state.ended.is_some());
            ensure!(found.error_message.is_some_and(|message| message.contains('3')), "it says why");
        }
        ensure!(store.fire_timers(10).await?.lost == 0);
    }
    Ok(())
}

/// Leases that have not expired and tasks that have ended are left alone.
pub async fn leases_that_have_not_expired_are_kept(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let names = submit_all(store, new_tasks(service, client, 3)?).await?;
    claim(store, service, 1).await?;
    claim_for(store, service, 1, Duration::ZERO).await?;
    change(store, names[1], service, Event::failed(Some(1), "no")).await?;
    // A worker of a broker service has no lease.
    change(store, names[2], service, Event::Started { attempt: None, worker_host: None, lease: None }).await?;
    ensure!(store.fire_timers(10).await?.lost == 0);
    ensure!(find(store, names[0]).await?.state.status == Status::InProgress);
    Ok(())
}

/// The oldest expired lease comes first, and the rest follows with the next calls.
pub async fn expired_leases_are_reclaimed_oldest_first_up_to_the_limit(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    submit_all(store, new_tasks(service, client, 7)?).await?;
    ensure!(claim_for(store, service, 7, Duration::ZERO).await?.len() == 7);
    for expected in [3, 3, 1, 0] {
        let taken = store.fire_timers(3).await?.lost;
        ensure!(taken == expected, "{taken} instead of {expected}");
    }
    ensure!(claim(store, service, 10).await?.len() == 7);
    Ok(())
}
