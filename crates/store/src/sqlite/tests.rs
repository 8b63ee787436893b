//! What only this driver promises: who may open the file, what a full disk does, and that no read goes through a table.

use relais_core::{
    Change, DeclarationStore as _, MaintenanceStore as _, ServiceName, Status, StoreError, TaskFilter, TaskStore,
};
use sqlx::{AssertSqlSafe, Row};
use tempfile::TempDir;

use super::{Sqlite, private};
use crate::{
    Options,
    callbacks::sqlite as callback_queue,
    claims::sqlite as claims,
    counters::sqlite as counters,
    dependencies::sqlite as dependency,
    dispatch::sqlite as dispatch,
    flow::sqlite as flow,
    operators::sqlite as audit,
    purge::sqlite as purge,
    schedules::sqlite as schedule,
    secrets::encryption::Keys,
    secrets::statements::{SecretFiles as _, Secrets as _},
    session::{Database, Session as _},
    tasks::{sqlite as tasks, statements::TaskReader as _},
    verbs::Verbs,
};

fn url(folder: &TempDir) -> String {
    format!("sqlite:{}", folder.path().join("relais.db").display())
}

async fn open(folder: &TempDir) -> Sqlite {
    let database = Sqlite::open(&url(folder), &Options::default()).await.unwrap();
    database.migrate().await.unwrap();
    database
}

fn put_service(name: &str, schema: Option<String>) -> Vec<Change> {
    vec![Change::PutService {
        name: ServiceName::new(name).unwrap(),
        queue_name: name.to_owned(),
        transport: relais_core::TaskTransport::Builtin,
        queue: relais_core::QueueSettings::default(),
        json_schema: schema.map(|text| relais_core::Json::parse(text).unwrap()),
        paused: None,
        limits: relais_core::ServiceLimits::default(),
    }]
}

#[tokio::test]
async fn a_second_process_is_refused_until_the_first_has_closed() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(&folder).await;
    let second = Sqlite::open(&url(&folder), &Options::default()).await.err().unwrap();
    assert!(matches!(&second, StoreError::Schema(why) if why.contains("use PostgreSQL")), "{second}");

    let link = folder.path().join("link.db");
    std::os::unix::fs::symlink(folder.path().join("relais.db"), &link).unwrap();
    let linked = Sqlite::open(&format!("sqlite:{}", link.display()), &Options::default()).await;
    assert!(linked.is_err(), "by another name it is the same file");

    first.close().await;
    assert!(Sqlite::open(&url(&folder), &Options::default()).await.is_ok());
}

#[tokio::test]
async fn a_database_that_others_can_read_is_left_so_with_a_warning_that_has_the_command() {
    use std::os::unix::fs::PermissionsExt as _;

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("relais.db");
    let database = open(&folder).await;
    assert_eq!(private::warning(&file), None, "a new one is for its owner alone");
    database.close().await;
    for (mode, warned) in [(0o644, true), (0o640, true), (0o604, true), (0o600, false)] {
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        let database = open(&folder).await;
        let warning = private::warning(&file);
        assert_eq!(warning.is_some(), warned, "{mode:o}: {warning:?}");
        // Those beside it have got its mode.
        let command = format!("chmod 600 {0} {0}-wal {0}-shm", file.display());
        assert!(warning.is_none_or(|warning| warning.ends_with(&command)), "{mode:o}");
        assert_eq!(
            std::fs::metadata(&file).unwrap().permissions().mode() & 0o777,
            mode,
            "nobody changes it in silence"
        );
        database.close().await;
    }
}

#[tokio::test]
async fn a_signing_secret_that_is_encrypted_leaves_no_clear_text_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let has_clear_text = || {
        let bytes = std::fs::read(folder.path().join("relais.db")).unwrap();
        bytes.windows(6).any(|bytes| bytes == b"whsec_")
    };
    let database = open(&folder).await;
    for statement in [
        "INSERT INTO client (id, client_id, secret_hash) VALUES (1, 'shop', '')",
        "WITH RECURSIVE n (i) AS (SELECT 10 UNION ALL SELECT i + 1 FROM n WHERE i < 40)
         INSERT INTO signing_secret (client_id, secret, created) SELECT 1, 'whsec_MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMj' || i, 1 FROM n",
    ] {
        sqlx::query(statement).execute(&database.write).await.unwrap();
    }
    database.wipe_overwritten(false).await.unwrap();
    assert!(has_clear_text(), "the test would see it");
    let keys = Keys::new(&["MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=".parse().unwrap()]);
    let mut session = database.begin().await.unwrap();
    let rewrites = keys.rewrites(&session.lock_signing_secrets().await.unwrap()).unwrap();
    session.rewrite_signing_secrets(&rewrites).await.unwrap();
    session.commit().await.unwrap();
    // The log is cut off; the file is not written anew.
    database.wipe_overwritten(false).await.unwrap();
    assert!(!has_clear_text());
}

#[tokio::test]
async fn a_database_that_forgets_is_refused() {
    for url in ["sqlite::memory:", "sqlite://:memory:", "sqlite:x.db?mode=memory", "sqlite:", "sqlite://"] {
        let refused = Sqlite::open(url, &Options::default()).await.err();
        assert!(matches!(&refused, Some(StoreError::Schema(_))), "{url}: {refused:?}");
    }
}

#[tokio::test]
async fn a_database_of_a_newer_version_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let database = open(&folder).await;
    sqlx::query("UPDATE relais_migration SET version = 9999 WHERE version = 1").execute(&database.write).await.unwrap();
    let refused = database.migrate().await.err();
    assert!(matches!(&refused, Some(StoreError::Schema(why)) if why.contains("newer version")), "{refused:?}");
}

#[tokio::test]
async fn when_the_disk_was_full_the_store_goes_on_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let database = open(&folder).await;
    let (write, proof) = (database.write.clone(), std::sync::Arc::clone(&database.proof));
    let store = Verbs::new(database, Keys::default());
    store.declare(put_service("before", None)).await.unwrap();
    for round in 1..4 {
        // A limit of the connection's own, which the next connection does not have.
        sqlx::query("PRAGMA max_page_count = 1").execute(&write).await.unwrap();
        let large = format!("\"{}\"", "x".repeat(round * 1_000_000));
        let refused = store.declare(put_service("large", Some(large.clone()))).await;
        assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
        assert!(!proof.is_fresh(), "a ping has to write now");
        assert!(store.declared().await.is_ok(), "reads go on");

        sqlx::query("PRAGMA max_page_count = 1073741823").execute(&write).await.unwrap();
        store.ping().await.unwrap();
        store.declare(put_service("large", Some(large))).await.unwrap();
    }
    assert_eq!(store.declared().await.unwrap().services.len(), 2);
}

#[tokio::test]
async fn nodes_that_no_place_depends_on_are_forgotten_however_many_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let database = open(&folder).await;
    for statement in [
        "INSERT INTO counter (service_id, client_id, status, departed, n) VALUES (1, 0, 0, false, 160000)",
        "WITH RECURSIVE slots (slot) AS (SELECT 0 UNION ALL SELECT slot + 1 FROM slots WHERE slot < 9999)
         INSERT INTO position_tree (service_id, level, slot, n) SELECT 1, 0, slot, 16 FROM slots WHERE slot % 7 > 0 OR slot > 5000",
        "INSERT INTO position_tree (service_id, level, slot, n) VALUES (1, 5, 0, 160000)",
    ] {
        sqlx::query(statement).execute(&database.write).await.unwrap();
    }
    let (read, store) = (database.read.clone(), Verbs::new(database, Keys::default()));
    TaskStore::purge_keys(&store, std::time::Duration::ZERO).await.unwrap();
    let left: Vec<(i64, i64)> =
        sqlx::query_as("SELECT level, slot FROM position_tree ORDER BY level, slot").fetch_all(&read).await.unwrap();
    assert_eq!(left, [(5, 0)], "all have left but what the next place is counted from");
}

#[tokio::test]
async fn a_ping_writes_when_nothing_else_has_shown_that_it_can() {
    let folder = tempfile::tempdir().unwrap();
    let database = open(&folder).await;
    assert!(!database.proof.is_fresh());
    database.ping().await.unwrap();
    assert!(database.proof.is_fresh());
    database.write.close().await;
    database.proof.note(false);
    assert!(matches!(database.ping().await, Err(StoreError::Unavailable(_))));
}

#[tokio::test]
async fn no_statement_goes_through_all_tasks() {
    let folder = tempfile::tempdir().unwrap();
    let database = open(&folder).await;
    let statements = [
        ("LIST_BY_SERVICE", tasks::LIST_BY_SERVICE.to_owned()),
        ("LIST_BY_CLIENT", tasks::LIST_BY_CLIENT.to_owned()),
        ("LIST_NEWEST", tasks::LIST_NEWEST.to_owned()),
        ("COUNT_NEWEST", tasks::COUNT_NEWEST.to_owned()),
        ("COUNT_BY_SERVICE", tasks::COUNT_BY_SERVICE.to_owned()),
        ("COUNT_BY_CLIENT", tasks::COUNT_BY_CLIENT.to_owned()),
        ("AUDIT_LOG", audit::LOG.to_owned()),
        ("AUDIT_FORGET", audit::FORGET.to_owned()),
        ("FORGET_SESSIONS", audit::FORGET_SESSIONS.to_owned()),
        ("SESSION_IS_OPEN", audit::SESSION_IS_OPEN.to_owned()),
        ("PUBLISHED_WORKERS", audit::PUBLISHED_WORKERS.to_owned()),
        ("PURGE_PUBLISHED_WORKERS", audit::PURGE_PUBLISHED_WORKERS.to_owned()),
        ("FIND_TASK", tasks::FIND_TASK.to_owned()),
        ("HELD", callback_queue::HELD.to_owned()),
        ("TAKE", callback_queue::TAKE.to_owned()),
        ("LANES", callback_queue::LANES.to_owned()),
        ("HELD_OF_BATCHES", callback_queue::HELD_OF_BATCHES.to_owned()),
        ("OF_TASK", callback_queue::OF_TASK.to_owned()),
        ("OF_BATCH", callback_queue::OF_BATCH.to_owned()),
        ("LOCK_ROWS", dependency::LOCK_ROWS.to_owned()),
        ("OPEN_EDGES", dependency::OPEN_EDGES.to_owned()),
        ("OPEN_PREREQUISITES", dependency::OPEN_PREREQUISITES.to_owned()),
        ("LIST_BY_PARENT", dependency::BY_PARENT.to_owned()),
        ("LIST_BY_BATCH", dependency::BY_BATCH.to_owned()),
        ("LIST_BY_CORRELATION", dependency::BY_CORRELATION.to_owned()),
        ("LIST_AFTER", dependency::AFTER.to_owned()),
        ("FAILED", callback_queue::FAILED.to_owned()),
        ("ANY", callback_queue::ANY.to_owned()),
        ("OLDEST_PENDING", counters::OLDEST_PENDING.to_owned()),
        ("LOCK_PENDING", claims::LOCK_PENDING.to_owned()),
        ("LEAVE", dispatch::LEAVE.to_owned()),
        ("PLACED", dispatch::PLACED.to_owned()),
        ("PUBLISHED", dispatch::PUBLISHED.to_owned()),
        ("NEXT", dispatch::NEXT.to_owned()),
        ("FORGET", dispatch::FORGET.to_owned()),
        ("CANDIDATES", dispatch::CANDIDATES.to_owned()),
        ("SORTED_THESE", dispatch::THESE.to_owned()),
        ("SORTED_CLIENTS", dispatch::CLIENTS.to_owned()),
        ("CLIENTS", flow::CLIENTS.to_owned()),
        ("PLACES", flow::PLACES.to_owned()),
        ("LOCK_SHARE", flow::LOCK_SHARE.to_owned()),
        ("LOCK_TASKS", tasks::LOCK_TASKS.to_owned()),
        ("LOCK_OVERDUE", tasks::LOCK_OVERDUE.to_owned()),
        ("SCAN_FOR_PURGE", purge::SCAN_FOR_PURGE.to_owned()),
        ("LOCK_DUE", schedule::LOCK_DUE.to_owned()),
        ("NEXT_RUN", schedule::NEXT_RUN.to_owned()),
        ("QUEUE_FLOORS", purge::QUEUE_FLOORS.to_owned()),
        ("WRITE_TASKS", tasks::WRITE_TASKS.text(64)),
    ];
    for (name, statement) in statements {
        let rows = sqlx::query(AssertSqlSafe(format!("EXPLAIN QUERY PLAN {statement}")))
            .fetch_all(&database.write)
            .await
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let plan: Vec<String> = rows.iter().map(|row| row.get("detail")).collect();
        let scans = |step: &&String| {
            [
                "SCAN t",
                "SCAN task",
                "SCAN position_tree",
                "SCAN callback",
                "SCAN dependency",
                "SCAN batch",
                "SCAN audit",
                "SCAN session",
                "SCAN worker_registry",
            ]
            .iter()
            .any(|scan| step.strip_prefix(scan).is_some_and(|rest| rest.is_empty() || rest.starts_with(' ')))
        };
        assert!(!plan.iter().any(|step| scans(&step)), "{name}: {plan:#?}");
        if name != "SCAN_FOR_PURGE" && !name.starts_with("LIST") && !name.starts_with("SORTED") {
            assert!(!plan.iter().any(|step| step.contains("TEMP B-TREE")), "{name} sorts: {plan:#?}");
        }
        assert!(!plan.iter().any(|step| step.contains("AUTOMATIC")), "{name} makes an index: {plan:#?}");
    }
}

#[tokio::test]
async fn readers_cannot_write_and_writers_sync() {
    let folder = tempfile::tempdir().unwrap();
    let database = open(&folder).await;
    assert!(sqlx::query("DELETE FROM task").execute(&database.read).await.is_err());
    let pragma = async |name: &str| -> String {
        let row = sqlx::query(AssertSqlSafe(format!("PRAGMA {name}"))).fetch_one(&database.write).await.unwrap();
        row.try_get::<String, _>(0).unwrap_or_else(|_| row.get::<i64, _>(0).to_string())
    };
    assert_eq!(pragma("journal_mode").await, "wal");
    assert_eq!(pragma("synchronous").await, "2");
    assert_eq!(pragma("foreign_keys").await, "1");
    assert_eq!(pragma("busy_timeout").await, "5000");
    let filter = TaskFilter { statuses: vec![Status::Pending], limit: 10, ..TaskFilter::default() };
    assert!(database.list_tasks(&filter, 0).await.unwrap().tasks.is_empty());
}
