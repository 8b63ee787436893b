//! Submission: capacity, idempotency keys and payloads.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use relais_core::{
    Callback, CallbackEvent, CallbackType, Change, Event, IdempotencyKey, NewTask, Refusal, ServiceKey, Submission,
    TaskId,
};

use super::{
    Harness,
    world::{
        at_once, authorize, change, claim, client, find, json, limits, new_task, new_tasks, one_of_each, place,
        put_service, service, submit, submit_all,
    },
};

fn taken(answers: &[Submission]) -> usize {
    answers.iter().filter(|answer| answer.is_ok()).count()
}

/// A thousand concurrent submissions to a service with room for a hundred.
pub async fn a_full_service_accepts_exactly_its_capacity(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let service = service(store, "resize", limits(Some(100))).await?;
    let client = client(store, "alice").await?;
    let answers = at_once(harness, 100, |store, _| async move {
        let mut answers = Vec::new();
        for _ in 0..2 {
            answers.extend(store.submit_many(new_tasks(service, client, 5)?).await?);
        }
        Ok(answers)
    })
    .await?
    .concat();
    ensure!(answers.len() == 1000);
    ensure!(taken(&answers) == 100, "{} were taken", taken(&answers));
    let places: BTreeSet<u64> = answers.iter().flatten().map(|submitted| submitted.position).collect();
    ensure!(places == (1..=100).collect(), "each was told its own place");
    ensure!(answers.iter().all(|answer| !matches!(answer, Err(refusal) if *refusal != Refusal::ServiceFull)));

    for round in [1, 7, 20] {
        ensure!(claim(store, service, round).await?.len() == round);
        let again =
            at_once(
                harness,
                30,
                |store, _| async move { Ok(store.submit_many(new_tasks(service, client, 1)?).await?) },
            )
            .await?
            .concat();
        ensure!(taken(&again) == round, "{round} left the queue and {} came in", taken(&again));
    }
    Ok(())
}

/// A capacity is declared and removed during submissions. It holds from the moment it is declared.
pub async fn a_capacity_is_enforced_from_its_declaration_until_its_removal(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let service = service(store, "resize", limits(None)).await?;
    let alice = client(store, "alice").await?;
    ensure!(taken(&store.submit_many(new_tasks(service, alice, 10)?).await?) == 10);
    for round in 0..10 {
        // The capacity is zero: a submission that is accepted after the answer of the declaration is an error.
        let before = at_once(harness, 8, |store, worker| async move {
            if worker == 0 {
                store.declare(vec![put_service("resize", limits(Some(0)))?]).await?;
                let after = store.submit_many(new_tasks(service, alice, 3)?).await?;
                ensure!(taken(&after) == 0, "{} passed the capacity by", taken(&after));
                return Ok(0);
            }
            Ok(taken(&store.submit_many(new_tasks(service, alice, 3)?).await?))
        })
        .await?;
        ensure!(before.iter().all(|n| n % 3 == 0), "round {round}: a batch is judged as one: {before:?}");
        ensure!(taken(&store.submit_many(new_tasks(service, alice, 3)?).await?) == 0, "round {round}");
        store.declare(vec![put_service("resize", limits(None))?]).await?;
        ensure!(taken(&store.submit_many(new_tasks(service, alice, 3)?).await?) == 3, "round {round}");
    }
    store.declare(vec![authorize("alice", "resize", Some(1))?]).await?;
    ensure!(taken(&store.submit_many(new_tasks(service, alice, 3)?).await?) == 0, "the share counts too");
    store.declare(vec![authorize("alice", "resize", None)?]).await?;
    ensure!(taken(&store.submit_many(new_tasks(service, alice, 3)?).await?) == 3);
    Ok(())
}

/// One client has a capacity, the other has none, and the service has one too.
pub async fn a_full_client_is_accepted_exactly_up_to_its_capacity(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let service = service(store, "resize", limits(Some(40))).await?;
    let (alice, bob) = (client(store, "alice").await?, client(store, "bob").await?);
    store.declare(vec![authorize("alice", "resize", Some(15))?, authorize("bob", "resize", None)?]).await?;

    let alone =
        at_once(harness, 30, |store, _| async move { Ok(store.submit_many(new_tasks(service, alice, 2)?).await?) })
            .await?
            .concat();
    ensure!(taken(&alone) == 15, "alice has 15 places and got {}", taken(&alone));
    ensure!(alone.iter().all(|answer| !matches!(answer, Err(refusal) if *refusal != Refusal::ClientFull)));

    let both = at_once(harness, 40, |store, i| async move {
        let who = if i % 2 == 0 { alice } else { bob };
        Ok(store.submit_many(new_tasks(service, who, 3)?).await?)
    })
    .await?
    .concat();
    ensure!(taken(&both) == 25, "there were 25 places left and {} were taken, all by bob", taken(&both));

    // A task that ends makes room for its own client, and for the other.
    ensure!(claim(store, service, 15).await?.len() == 15, "the oldest are alice's");
    let more =
        at_once(harness, 40, |store, _| async move { Ok(store.submit_many(new_tasks(service, alice, 1)?).await?) })
            .await?
            .concat();
    ensure!(taken(&more) == 15, "alice's share is free again: {}", taken(&more));
    Ok(())
}

fn keyed(service: ServiceKey, client: relais_core::ClientKey, key: &str, fingerprint: &[u8]) -> Result<NewTask> {
    let idempotency = Some(IdempotencyKey { key: key.to_owned(), fingerprint: fingerprint.to_vec() });
    Ok(NewTask { idempotency, ..new_task(service, client)? })
}

/// Covers one batch, a later batch, and a task that has ended.
pub async fn a_repeated_idempotency_key_gets_the_first_answer(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (resize, alice) = one_of_each(store).await?;
    let (rotate, bob) = (service(store, "rotate", limits(None)).await?, client(store, "bob").await?);
    submit(store, new_task(resize, alice)?).await?;
    let first = submit(store, keyed(resize, alice, "k", b"one")?).await?;
    ensure!(first.position == 2 && !first.replayed);

    let answers = store
        .submit_many(vec![
            keyed(resize, alice, "k", b"one")?,
            keyed(resize, alice, "k", b"other")?,
            keyed(resize, bob, "k", b"other")?,
            keyed(rotate, alice, "k", b"other")?,
            keyed(resize, alice, "l", b"one")?,
            keyed(resize, alice, "l", b"one")?,
            keyed(resize, alice, "l", b"two")?,
        ])
        .await?;
    let same = answers[0]?;
    ensure!(same.replayed && same.task_id == first.task_id && same.position == 2, "{same:?}");
    ensure!(answers[1] == Err(Refusal::KeyReused));
    ensure!(!answers[2]?.replayed && !answers[3]?.replayed, "a key is of one client on one service");
    let (new, again) = (answers[4]?, answers[5]?);
    ensure!(!new.replayed && again.replayed && new.task_id == again.task_id, "within one batch too");
    ensure!(answers[6] == Err(Refusal::KeyReused));

    change(store, first.task_id, resize, Event::Cancelled).await?;
    let late = submit(store, keyed(resize, alice, "k", b"one")?).await?;
    ensure!(late.replayed && late.task_id == first.task_id && late.position == 2, "whatever became of it");
    Ok(())
}

/// From many callers, and from two processes.
pub async fn concurrent_submissions_with_one_idempotency_key_create_one_task(harness: &Harness) -> Result<()> {
    let (service, client) = one_of_each(harness.store()).await?;
    let answers = at_once(harness, 40, |store, i| async move {
        submit(&*store, keyed(service, client, &format!("k{}", i / 20), b"same")?).await
    })
    .await?;
    let tasks: BTreeSet<TaskId> = answers.iter().map(|submitted| submitted.task_id).collect();
    ensure!(tasks.len() == 2, "two keys made {} tasks", tasks.len());
    ensure!(answers.iter().filter(|submitted| !submitted.replayed).count() == 2);
    ensure!(claim(harness.store(), service, 10).await?.len() == 2);
    Ok(())
}

/// The same key can be used again when there is room.
pub async fn a_refused_submission_does_not_use_up_its_idempotency_key(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let service = service(store, "resize", limits(Some(1))).await?;
    let client = client(store, "alice").await?;
    let kept = submit(store, keyed(service, client, "first", b"1")?).await?;
    let refused = store.submit_many(vec![keyed(service, client, "k", b"1")?]).await?;
    ensure!(refused[0] == Err(Refusal::ServiceFull));
    let replayed = submit(store, keyed(service, client, "first", b"1")?).await?;
    ensure!(replayed.task_id == kept.task_id, "a full queue still answers for what it took");
    claim(store, service, 1).await?;
    ensure!(!submit(store, keyed(service, client, "k", b"2")?).await?.replayed);
    Ok(())
}

/// Any valid JSON is read back byte for byte.
pub async fn payloads_are_carried_byte_for_byte(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
    let payloads = [
        r#"{"z":1,"a":2,"z":3}"#,
        r#"{"big":9223372036854775808,"huge":1e400,"tiny":-0.0,"long":3.14159265358979323846264338327950288}"#,
        r#"{"nul":"\u0000","lone":"\ud800","pair":"\ud83d\ude00","slash":"\/","quote":"\"\\"}"#,
        "{ \"spaces\" :\t[ 1 ,\r\n 2 ] }",
        r#"{"é":"日本語 😀 \u00e9","'":"it's ''; DROP TABLE task; --"}"#,
        r#"["$1","?1",":a","@b"]"#,
        "null",
        "\"text\"",
        "\"\"",
        "1e400",
        "-0",
        "18446744073709551616",
        "true",
        &deep,
    ];
    let mut tasks = Vec::new();
    for (i, payload) in payloads.iter().enumerate() {
        tasks.push(NewTask {
            request: json(payload)?,
            callback: Some(Callback {
                kind: CallbackType::Https,
                target: format!("https://example.org/é?i={i}&\"'"),
                events: CallbackEvent::ENDS.to_vec(),
                gzip: i % 2 == 0,
                lane: i64::MIN + i as i64,
            }),
            correlation_id: Some(format!("chain \u{1} 'é' \"{i}\" \\ 😀")),
            ..new_task(service, client)?
        });
    }
    let given = tasks.clone();
    let names = submit_all(store, tasks).await?;
    let claimed = claim(store, service, 100).await?;
    ensure!(claimed.len() == payloads.len());
    for (i, payload) in payloads.iter().enumerate() {
        ensure!(claimed[i].request.get() == *payload, "{payload} became {}", claimed[i].request.get());
        let response = json(payload)?;
        change(store, names[i], service, Event::Succeeded { attempt: Some(1), response }).await?;
        let found = find(store, names[i]).await?;
        ensure!(found.request.get() == *payload, "{payload} became {}", found.request.get());
        ensure!(found.response.is_some_and(|response| response.get() == *payload), "{payload} as a response");
        ensure!(found.callback == given[i].callback && found.correlation_id == given[i].correlation_id);
        ensure!(found.client_id.as_str() == "alice" && found.service.as_str() == "resize");
    }
    Ok(())
}

/// U+0000 in a text (not in JSON, where it is an escape) is replaced, not refused.
pub async fn a_text_that_a_database_cannot_keep_does_not_fail_its_batch(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let odd = NewTask { correlation_id: Some("a\0b".to_owned()), ..keyed(service, client, "k\0", b"\0")? };
    let names = submit_all(store, vec![odd, new_task(service, client)?]).await?;
    ensure!(submit(store, keyed(service, client, "k\0", b"\0")?).await?.replayed);
    let events = vec![
        super::world::says(
            names[0],
            service,
            Event::Started { attempt: None, worker_host: Some("\0".to_owned()), lease: None },
        ),
        super::world::says(names[0], service, Event::failed(None, "no\0\u{1}\u{7f}")),
        super::world::says(names[1], service, Event::Cancelled),
    ];
    store.record_events(events).await?;
    let found = find(store, names[0]).await?;
    ensure!(found.correlation_id.as_deref() == Some("a\u{fffd}b"), "{:?}", found.correlation_id);
    ensure!(found.error_message.as_deref() == Some("no\u{fffd}\u{1}\u{7f}"), "{:?}", found.error_message);
    ensure!(find(store, names[1]).await?.state.status == relais_core::Status::Cancelled);
    Ok(())
}

/// One refused submission does not fail the others of its batch.
pub async fn a_submission_to_a_deleted_service_does_not_fail_the_others(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (resize, alice) = one_of_each(store).await?;
    let gone = service(store, "gone", limits(None)).await?;
    store.declare(vec![Change::DeleteService(super::world::name("gone")?)]).await?;
    let answers = store
        .submit_many(vec![new_task(gone, alice)?, new_task(resize, alice)?, new_task(ServiceKey(4711), alice)?])
        .await?;
    ensure!(answers[0] == Err(Refusal::ServiceGone) && answers[2] == Err(Refusal::ServiceGone));
    ensure!(place(store, answers[1]?.task_id).await? == Some(1));
    ensure!(store.submit_many(Vec::new()).await?.is_empty());

    store.declare(vec![put_service("resize", limits(Some(0)))?]).await?;
    ensure!(store.submit_many(new_tasks(resize, alice, 1)?).await?[0] == Err(Refusal::ServiceFull), "room for none");
    Ok(())
}

/// A hundred requests of a hundred kilobytes, and one of some megabytes.
pub async fn a_batch_of_large_submissions_is_accepted(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let mut tasks = new_tasks(service, client, 101)?;
    for (i, task) in tasks.iter_mut().enumerate() {
        let size = if i == 50 { 4_000_000 } else { 100_000 };
        task.request = json(&format!("\"{}\"", "\\\"é".repeat(size / 4)))?;
    }
    let (last, large) = (tasks[100].request.clone(), tasks[50].request.clone());
    let names = submit_all(store, tasks).await?;
    ensure!(find(store, names[50]).await?.request == large);
    ensure!(find(store, names[100]).await?.request == last);
    change(store, names[50], service, Event::Succeeded { attempt: None, response: large.clone() }).await?;
    ensure!(find(store, names[50]).await?.response == Some(large));
    Ok(())
}
