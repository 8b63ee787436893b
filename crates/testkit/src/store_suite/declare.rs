//! Declarations of operators.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use relais_core::{
    AudienceTypes, Change, ClientFlow, ClientId, Event, FlowLimits, NotificationRights, QueueKind, QueueSettings,
    RateLimit, Refusal, Retention, RetryPolicy, Role, Roles, ServiceLimits, Status, Store, StoreError, TaskTransport,
};

use super::{
    Harness,
    world::{
        at_once, authorize, change, claim, client, filter, find, json, limits, list_all, name, new_task, new_tasks,
        one_of_each, place, put_client, put_service, service, service_key, submit, submit_all,
    },
};

async fn conflict(store: &dyn Store, changes: Vec<Change>) -> Result<()> {
    let said = format!("{changes:?}");
    let answer = store.declare(changes).await;
    ensure!(matches!(answer, Err(StoreError::Conflict(_))), "{said}: {answer:?}");
    Ok(())
}

/// A change that is refused rolls back those before it.
pub async fn a_declaration_is_applied_all_or_nothing(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let before = store.declared_version().await?;
    conflict(
        store,
        vec![
            put_service("resize", limits(None))?,
            put_client("alice")?,
            Change::PauseService { name: name("unknown")?, paused: true },
        ],
    )
    .await?;
    let declared = store.declared().await?;
    ensure!(declared.services.is_empty() && declared.clients.is_empty() && declared.version == before);
    store.declare(vec![put_service("resize", limits(None))?, put_client("alice")?]).await?;
    let declared = store.declared().await?;
    ensure!(declared.version > before && declared.version == store.declared_version().await?);
    ensure!(declared.services.len() == 1 && declared.clients.len() == 1);
    Ok(())
}

/// Every field is read back as it was declared, also when it is declared again.
pub async fn every_declared_field_is_read_back(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let schema = json(r#"{"type": "object", "maximum": 1e400, "é": "\u0000"}"#)?;
    let full = ServiceLimits {
        capacity: Some(12),
        lease: Duration::from_millis(1_500),
        delivery_limit: 7,
        retention: Retention { finished: Some(Duration::from_secs(60)), any: Some(Duration::from_secs(86_400)) },
        callback_retries: Some(vec![Duration::from_secs(5), Duration::from_secs(172_800)]),
        retry: RetryPolicy {
            cap: Some(Duration::from_secs(9)),
            jitter: 0.5,
            within: Some(Duration::from_secs(86_400)),
            except_kinds: vec!["paper".to_owned()],
            never: false,
            ..RetryPolicy::classic()
        },
        timeout: Some(Duration::from_secs(600)),
        priority_step: Duration::from_secs(7),
        flow: FlowLimits {
            max_running: Some(9),
            max_running_per_client: Some(4),
            rate: Some(RateLimit { count: 100, per: Duration::from_millis(1_500), burst: 7 }),
            fair_share: true,
            dispatch_window: Some(11),
        },
    };
    let queues = QueueSettings {
        kind: QueueKind::Quorum,
        message_ttl: Some(Duration::from_secs(3_600)),
        max_length: Some(100_000),
    };
    let put = |queue: &str, transport, schema, paused, limits| -> Result<Change> {
        Ok(Change::PutService {
            name: name("resize")?,
            queue_name: queue.to_owned(),
            transport,
            queue: if transport == TaskTransport::RabbitMq { queues } else { QueueSettings::default() },
            json_schema: schema,
            paused,
            limits,
        })
    };
    store
        .declare(vec![
            put("images", TaskTransport::RabbitMq, Some(schema.clone()), Some(true), full.clone())?,
            put_client("alice")?,
        ])
        .await?;
    let first = store.declared().await?.services["resize"].clone();
    ensure!(first.queue_name == "images" && first.json_schema == Some(schema) && first.paused && first.limits == full);
    ensure!(first.transport == TaskTransport::RabbitMq && first.queue == queues);

    store.declare(vec![put("pictures", TaskTransport::Builtin, None, None, limits(None))?]).await?;
    let second = store.declared().await?.services["resize"].clone();
    ensure!(second.key == first.key && second.queue_name == "pictures" && second.json_schema.is_none());
    ensure!(second.paused, "what was not said stays");
    ensure!(second.limits == ServiceLimits::default());
    ensure!(second.transport == TaskTransport::Builtin && second.queue == QueueSettings::default());

    let alice = ClientId::new("alice")?;
    let roles = vec![Role::Work, Role::Consume];
    let flow = ClientFlow { max_running: Some(2), share: 5 };
    let put =
        Change::PutAuthorization { client_id: alice.clone(), service: name("resize")?, roles, capacity: Some(3), flow };
    store.declare(vec![put]).await?;
    let declared = store.declared().await?;
    let key = (declared.clients["alice"].key, first.key);
    ensure!(declared.authorizations[&key].capacity == Some(3) && declared.authorizations[&key].flow == flow);
    ensure!(declared.roles(key.0, key.1) == Roles { consume: true, work: true });
    store.declare(vec![authorize("alice", "resize", None)?]).await?;
    let declared = store.declared().await?;
    ensure!(declared.authorizations[&key].capacity.is_none() && !declared.roles(key.0, key.1).work);
    ensure!(declared.authorizations[&key].flow == ClientFlow::default());
    store.declare(vec![Change::DeleteAuthorization { client_id: alice, service: name("resize")? }]).await?;
    ensure!(store.declared().await?.authorizations.is_empty());
    Ok(())
}

/// Both pending and running tasks keep the service.
pub async fn a_service_with_unfinished_tasks_is_not_deleted(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    let delete = || -> Result<Vec<Change>> { Ok(vec![Change::DeleteService(name("resize")?)]) };
    let id = submit(store, new_task(service, client)?).await?.task_id;
    conflict(store, delete()?).await?;
    claim(store, service, 1).await?;
    conflict(store, delete()?).await?;
    change(store, id, service, Event::Cancelled).await?;
    store.declare(delete()?).await?;
    ensure!(store.declared().await?.services.is_empty());
    ensure!(find(store, id).await?.service.as_str() == "resize", "its tasks can still be seen");
    ensure!(claim(store, service, 1).await?.is_empty());
    Ok(())
}

/// With the same name and key, the service keeps its old tasks, and its new tasks get the right positions.
pub async fn a_service_declared_again_keeps_its_tasks_and_positions(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (key, client) = one_of_each(store).await?;
    store.declare(vec![Change::PauseService { name: name("resize")?, paused: true }]).await?;
    for id in submit_all(store, new_tasks(key, client, 100)?).await? {
        change(store, id, key, Event::Cancelled).await?;
    }
    store.declare(vec![Change::DeleteService(name("resize")?)]).await?;
    let again = service(store, "resize", limits(Some(70))).await?;
    ensure!(again == key && !store.declared().await?.services["resize"].paused, "it comes back as new");
    let names = submit_all(store, new_tasks(key, client, 70)?).await?;
    ensure!(place(store, names[69]).await? == Some(70));
    ensure!(store.submit_many(new_tasks(key, client, 1)?).await?[0] == Err(Refusal::ServiceFull));
    Ok(())
}

/// A client that is declared again does not get its old authorizations back.
pub async fn deleting_a_client_deletes_its_authorizations(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let (service, client) = one_of_each(store).await?;
    store.declare(vec![authorize("alice", "resize", None)?]).await?;
    let id = submit(store, new_task(service, client)?).await?.task_id;
    store.declare(vec![Change::DeleteClient(ClientId::new("alice")?)]).await?;
    let declared = store.declared().await?;
    ensure!(declared.clients.is_empty() && declared.authorizations.is_empty());
    ensure!(find(store, id).await?.client_id.as_str() == "alice", "its tasks stay");
    store.declare(vec![put_client("alice")?]).await?;
    let declared = store.declared().await?;
    ensure!(declared.clients["alice"].key == client && declared.authorizations.is_empty());
    Ok(())
}

/// The client and the service must exist.
pub async fn an_authorization_needs_an_existing_client_and_service(harness: &Harness) -> Result<()> {
    let store = harness.store();
    one_of_each(store).await?;
    for (client, service) in [("bob", "resize"), ("alice", "rotate"), ("bob", "rotate")] {
        conflict(store, vec![authorize(client, service, None)?]).await?;
    }
    store.declare(vec![authorize("alice", "resize", None)?, Change::DeleteService(name("resize")?)]).await?;
    conflict(store, vec![authorize("alice", "resize", None)?]).await?;
    ensure!(store.declared().await?.authorizations.is_empty());
    Ok(())
}

/// Without a secret, an existing client stays as it is, and a new client is refused.
pub async fn a_new_client_needs_a_secret(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let put = |secret_hash: Option<&str>| -> Result<Vec<Change>> {
        let secret_hash = secret_hash.map(str::to_owned);
        Ok(vec![Change::PutClient {
            client_id: ClientId::new("alice")?,
            secret_hash,
            destinations: None,
            notifications: None,
        }])
    };
    conflict(store, put(None)?).await?;
    for (given, expected) in [(Some("one"), "one"), (None, "one"), (Some("two"), "two")] {
        store.declare(put(given)?).await?;
        let declared = store.declared().await?;
        let client = declared.clients.get("alice").context("alice is there")?;
        ensure!(client.secret_hash == expected, "{}", client.secret_hash);
    }
    store.declare(vec![Change::DeleteClient(ClientId::new("alice")?)]).await?;
    conflict(store, put(None)?).await
}

/// A deleted client that is declared again has none, whatever it had.
pub async fn rights_for_notifications_are_kept_until_they_are_replaced(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let only = |kinds: &[&str]| AudienceTypes::Only(kinds.iter().map(|&kind| kind.to_owned()).collect());
    let wide = NotificationRights {
        emit: only(&["USER", "GROUP", "é \" b"]),
        audience: AudienceTypes::All,
        ticket: Some(AudienceTypes::NONE),
    };
    let narrow = NotificationRights { ticket: Some(only(&["GROUP"])), ..NotificationRights::default() };
    let put = |secret_hash: Option<&str>, notifications: Option<&NotificationRights>| -> Result<Vec<Change>> {
        Ok(vec![Change::PutClient {
            client_id: ClientId::new("alice")?,
            secret_hash: secret_hash.map(str::to_owned),
            destinations: None,
            notifications: notifications.cloned(),
        }])
    };
    let none = NotificationRights::default();
    let new = Some("hash");
    for (changes, expected) in [
        (put(new, None)?, &none),
        (put(None, Some(&wide))?, &wide),
        (put(Some("another"), None)?, &wide),
        (put(None, None)?, &wide),
        (put(None, Some(&narrow))?, &narrow),
        (put(None, Some(&none))?, &none),
        (put(None, Some(&wide))?, &wide),
        (vec![Change::DeleteClient(ClientId::new("alice")?), put_client("alice")?], &none),
        (put(new, Some(&narrow))?, &narrow),
        (vec![Change::DeleteClient(ClientId::new("alice")?), put(new, Some(&wide))?.remove(0)], &wide),
    ] {
        let said = format!("{changes:?}");
        store.declare(changes).await?;
        let declared = store.declared().await?;
        let alice = declared.clients.get("alice").context("alice is there")?;
        ensure!(alice.notifications == *expected, "{said}: {:?}", alice.notifications);
    }
    store.declare(vec![put_client("bob")?]).await?;
    ensure!(store.declared().await?.clients["bob"].notifications == none, "they are alice's alone");
    store.declare(vec![Change::DeleteClient(ClientId::new("alice")?)]).await?;
    conflict(store, put(None, Some(&narrow))?).await?;
    store.declare(vec![put_client("alice")?]).await?;
    ensure!(store.declared().await?.clients["alice"].notifications == none, "what was refused changed nothing");
    Ok(())
}

/// Either the service stays or the submission is refused, so no task exists that nobody can claim.
pub async fn deleting_a_service_during_submissions_strands_no_task(harness: &Harness) -> Result<()> {
    let store = harness.store();
    let client = client(store, "alice").await?;
    for round in 0..12 {
        let service_name = format!("service-{round}");
        let service = service(store, &service_name, limits(None)).await?;
        let name = name(&service_name)?;
        let answers = at_once(harness, 16, |store: Arc<dyn Store>, i| {
            let name = name.clone();
            async move {
                if i % 4 == 3 {
                    match store.declare(vec![Change::DeleteService(name)]).await {
                        Ok(()) | Err(StoreError::Conflict(_)) => Ok(0),
                        Err(error) => Err(error.into()),
                    }
                } else {
                    let answers = store.submit_many(vec![new_task(service, client)?]).await?;
                    Ok(answers.iter().filter(|answer| answer.is_ok()).count())
                }
            }
        })
        .await?;
        let taken: usize = answers.into_iter().sum();
        let gone = service_key(store, &service_name).await.is_err();
        let filter =
            relais_core::TaskFilter { services: vec![service], statuses: vec![Status::Pending], ..filter(100) };
        ensure!(list_all(store, filter).await?.len() == taken);
        ensure!(!gone || taken == 0, "the service is gone and left {taken} tasks behind");
    }
    Ok(())
}
