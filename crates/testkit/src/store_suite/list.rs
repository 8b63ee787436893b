//! Listings.

use anyhow::{Result, ensure};
use relais_core::{ClientKey, Event, ServiceKey, Status, Store, Task, TaskFilter, TaskId};

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

/// With pages of any size, also while tasks arrive.
pub async fn pages_cover_all_exactly_once_newest_first(harness: &Harness) -> Result<()> {
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

/// Tasks of two services and two clients in all statuses, in the order of their arrival.
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

/// Every combination of services, clients and statuses, against leaving out by hand.
pub async fn filters_leave_out_the_rest(harness: &Harness) -> Result<()> {
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

/// From a moment on, up to before another one.
pub async fn dates_bound_the_list(harness: &Harness) -> Result<()> {
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
