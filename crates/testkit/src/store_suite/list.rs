//! Lists of tasks.

use anyhow::{Result, ensure};
use relais_core::{ClientKey, Event, ServiceKey, Status, Store, Task, TaskFilter, TaskId, TaskLink};

use super::{
    Harness,
    world::{
        a_moment, change, claim, client, filter, find, json, limits, list_all, new_task, new_tasks, one_of_each,
        service, submit, submit_all,
    },
};

fn names(tasks: &[Task]) -> Vec<TaskId> {
    tasks.iter().map(|task| task.task_id).collect()
}

/// Covers pages of any size, also while tasks are submitted.
pub async fn pages_list_every_task_exactly_once_newest_first(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let everything = world(store).await?.0;
    let all: Vec<TaskId> = everything.iter().rev().copied().collect();
    for limit in [1, 2, 7, 29, 30, 31, 1000] {
        let listed = list_all(store, filter(limit)).await?;
        ensure!(names(&listed) == all, "in pages of {limit}");
        ensure!(listed.is_sorted_by(|a, b| a.id > b.id));
    }
    let page = store.list_tasks(filter(10)).await?;
    let (service, client) = (super::world::service_key(store, "resize").await?, ClientKey(1));
    submit(store, new_task(service, client)?).await?;
    let next = store.list_tasks(TaskFilter { before_id: page.next_before_id, ..filter(10) }).await?;
    ensure!(names(&next.tasks) == all[10..20], "a cursor does not move when tasks arrive");
    ensure!(page.tasks.iter().all(|task| task.position.is_none() && task.response.is_none()), "a list is light");
    Ok(())
}

/// Creates tasks of two services and two clients in all statuses, in order of submission.
async fn world(store: &dyn Store) -> Result<(Vec<TaskId>, [ServiceKey; 2], [ClientKey; 2])> {
    let (resize, alice) = one_of_each(store).await?;
    let (rotate, bob) = (service(store, "rotate", limits(None)).await?, client(store, "bob").await?);
    let (services, clients) = ([resize, rotate], [alice, bob]);
    let mut all = Vec::new();
    for i in 0..30 {
        all.push(submit(store, new_task(services[i % 2], clients[i / 2 % 2])?).await?.task_id);
    }
    for service in services {
        for (i, task) in claim(store, service, 12).await?.into_iter().enumerate() {
            let event = match i % 4 {
                0 => Event::Succeeded { attempt: None, response: json("1")? },
                1 => Event::failed(None, "no"),
                2 => Event::Cancelled,
                _ => continue,
            };
            change(store, task.task_id, service, event).await?;
        }
    }
    Ok((all, services, clients))
}

/// Every combination of services, clients and statuses is compared with a filter in memory.
pub async fn list_filters_select_by_service_client_and_status(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (all, services, clients) = world(store).await?;
    let mut tasks = Vec::new();
    for (i, &id) in all.iter().enumerate().rev() {
        tasks.push((services[i % 2], clients[i / 2 % 2], find(store, id).await?));
    }
    let statuses: [&[Status]; 4] =
        [&[], &[Status::Pending], &[Status::Success, Status::Failure, Status::Cancelled], &[Status::InProgress]];
    for of in [vec![], vec![services[0]], vec![services[1]], services.to_vec(), vec![ServiceKey(99)]] {
        for client in [None, Some(clients[0]), Some(clients[1]), Some(ClientKey(99))] {
            for statuses in statuses {
                let expected: Vec<TaskId> = tasks
                    .iter()
                    .filter(|(service, by, task)| {
                        (of.is_empty() || of.contains(service))
                            && client.is_none_or(|client| client == *by)
                            && (statuses.is_empty() || statuses.contains(&task.state.status))
                    })
                    .map(|(_, _, task)| task.task_id)
                    .collect();
                let filter = TaskFilter { services: of.clone(), client, statuses: statuses.to_vec(), ..filter(4) };
                let listed = list_all(store, filter).await?;
                ensure!(names(&listed) == expected, "{of:?} {client:?} {statuses:?}");
            }
        }
    }
    Ok(())
}

/// The list starts at one date and ends before another.
pub async fn list_filters_select_by_submission_date(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let mut groups = Vec::new();
    let mut moments = Vec::new();
    for size in [3, 4, 5] {
        a_moment(store).await?;
        moments.push(store.ping().await?);
        groups.push(submit_all(store, new_tasks(service, client, size)?).await?);
    }
    a_moment(store).await?;
    moments.push(store.ping().await?);
    for from in 0..4 {
        for before in from..4 {
            let bounds = TaskFilter {
                submitted_from: Some(moments[from]),
                submitted_before: Some(moments[before]),
                ..filter(2)
            };
            let mut expected = groups[from..before].concat();
            expected.reverse();
            ensure!(names(&list_all(store, bounds).await?) == expected, "from {from} to before {before}");
        }
    }
    let first = find(store, groups[0][0]).await?.submitted;
    let from = TaskFilter { submitted_from: Some(first), ..filter(100) };
    ensure!(list_all(store, from).await?.len() == 12, "the bound itself is in");
    let before = TaskFilter { submitted_before: Some(first), ..filter(100) };
    ensure!(list_all(store, before).await?.is_empty(), "the bound itself is out");
    Ok(())
}

/// A count agrees with every filter, and stops at its limit.
pub async fn counts_agree_with_the_list_and_stop_at_their_limit(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (_, services, clients) = world(store).await?;
    for of in [vec![], vec![services[0]], services.to_vec()] {
        for client in [None, Some(clients[0])] {
            for statuses in [vec![], vec![Status::Pending], vec![Status::Success, Status::Failure]] {
                let wanted = TaskFilter { services: of.clone(), client, statuses, ..filter(1000) };
                let listed = list_all(store, wanted.clone()).await?.len() as u64;
                ensure!(store.count_tasks(wanted.clone()).await? == listed, "{wanted:?}");
                let few = TaskFilter { limit: 3, ..wanted };
                ensure!(store.count_tasks(few.clone()).await? == listed.min(3), "{few:?}");
            }
        }
    }
    let all = list_all(store, filter(100)).await?;
    let after_half = TaskFilter { submitted_from: Some(all[14].submitted), ..filter(1000) };
    ensure!(store.count_tasks(after_half.clone()).await? == list_all(store, after_half).await?.len() as u64);
    Ok(())
}

/// Covers several services, other filters and pages.
pub async fn tasks_of_a_chain_are_listed_by_correlation_id(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (resize, alice) = one_of_each(store).await?;
    let rotate = service(store, "rotate", limits(None)).await?;
    let mut chain = Vec::new();
    for i in 0..20 {
        let mut task = new_task(if i % 2 == 0 { resize } else { rotate }, alice)?;
        task.correlation_id = match i % 4 {
            0 | 1 => Some("order-7".to_owned()),
            2 => Some("order-8".to_owned()),
            _ => None,
        };
        let ours = i % 4 < 2;
        let task_id = submit(store, task).await?.task_id;
        if ours {
            chain.push(task_id);
        }
    }
    chain.reverse();
    let wanted = TaskFilter { link: Some(TaskLink::Correlation("order-7".to_owned())), ..filter(3) };
    ensure!(names(&list_all(store, wanted.clone()).await?) == chain, "in pages");
    ensure!(store.count_tasks(TaskFilter { limit: 100, ..wanted.clone() }).await? == chain.len() as u64);
    let of_one = TaskFilter { services: vec![rotate], client: Some(alice), ..wanted.clone() };
    ensure!(list_all(store, of_one).await?.len() == chain.len() / 2);
    let ended = TaskFilter { statuses: vec![Status::Success], ..wanted.clone() };
    ensure!(list_all(store, ended).await?.is_empty());
    let of_none = TaskFilter { link: Some(TaskLink::Correlation("order-9".to_owned())), ..wanted };
    ensure!(list_all(store, of_none).await?.is_empty());
    Ok(())
}
