//! The declaration and its limits, which the judge checks against.

use std::time::Duration;

use serde_json::{Value, json};

use super::stage::Cast;

/// A service without a limit, and one that is soon full, unless a broker has them.
pub const SERVICES: [&str; 2] = ["resize", "ocr"];

/// Services whose tasks the processes do themselves: without a limit, with one on what runs, and with a rate.
pub const OWN_SERVICES: [&str; 3] = [FREE, FEW, SLOW];

/// Nothing is limited.
pub const FREE: &str = "frame";

/// So many run, and so many of one client.
pub const FEW: &str = "print";
pub const MOST_RUNNING: usize = 3;
pub const MOST_OF_ONE: usize = 2;

/// So many start at once, and then one each time that so much time has passed.
pub const SLOW: &str = "mail";
pub const BURST: usize = 4;
pub const INTERVAL: Duration = Duration::from_millis(25);

/// After so many losses a task fails.
pub const DELIVERY_LIMIT: u32 = 6;

/// With a broker: so many tasks of the second service are out at once.
pub const WINDOW: usize = 6;

/// So many failures are tried again, each after so long, but for those of one kind.
pub const RETRIES: u32 = 2;
pub const RETRY_AFTER: Duration = Duration::from_millis(20);
pub const PERMANENT_KIND: &str = "paper";

/// An endpoint that is gone: its callbacks fail.
pub const NOBODY: &str = "https://nobody";

/// Runs every second: whatever was missed is made up for.
pub const EVERY: &str = "tick";

/// The same, unless the task of the run before is unfinished; one run stands for all that were missed.
pub const ONE_AT_A_TIME: &str = "tock";

/// Runs only by hand, in our time.
pub const BY_HAND: &str = "by-hand";

/// The services of a cast.
pub const fn services(cast: Cast) -> &'static [&'static str] {
    match cast {
        Cast::Remote | Cast::Brokered => &SERVICES,
        Cast::InProcess => &OWN_SERVICES,
    }
}

/// All that is declared.
pub fn of(cast: Cast) -> Value {
    let may = |client: &str, role: &str| {
        let one = move |service: &&str| json!({"clientId": client, "serviceName": service, "roles": [role]});
        services(cast).iter().map(one).collect::<Vec<_>>()
    };
    let client = |name: &str| json!({"clientId": name, "clientSecret": format!("{name}'s")});
    let authorizations = [may("alice", "consume"), may("bob", "consume"), may("worker", "work")].concat();
    let (services, schedules) = match cast {
        Cast::Remote | Cast::Brokered => (shared_services(cast), Vec::new()),
        Cast::InProcess => (own_services(), schedules()),
    };
    json!({
        "services": services,
        "clients": [client("alice"), client("bob"), client("worker")],
        "authorizations": authorizations,
        "schedules": schedules,
    })
}

fn shared_services(cast: Cast) -> Vec<Value> {
    let transport = if cast == Cast::Brokered { "rabbitmq" } else { "builtin" };
    let limited = |service: &str| json!({"serviceName": service, "transport": transport, "lease": "1s", "deliveryLimit": DELIVERY_LIMIT});
    let mut services = SERVICES.map(limited);
    // Behind a broker, what nobody knows to be taken waits for so long that a full queue would be all there is.
    match cast {
        Cast::Brokered => services[1]["dispatchWindow"] = json!(WINDOW),
        _ => services[1]["capacity"] = json!(8),
    }
    services.into()
}

fn own_services() -> Vec<Value> {
    let retry = json!({
        "limit": RETRIES,
        "base": format!("{}ms", RETRY_AFTER.as_millis()),
        "factor": 1.0,
        "exceptKinds": [PERMANENT_KIND],
    });
    let own = |name: &str| json!({"serviceName": name, "transport": "builtin", "lease": "1s", "deliveryLimit": DELIVERY_LIMIT, "retry": retry});
    let mut services = OWN_SERVICES.map(own);
    services[1]["maxRunning"] = json!(MOST_RUNNING);
    services[1]["maxRunningPerClient"] = json!(MOST_OF_ONE);
    services[1]["fairShare"] = json!(true);
    let (count, per) = (1, format!("{}ms", INTERVAL.as_millis()));
    services[2]["rateLimit"] = json!({"count": count, "per": per, "burst": BURST});
    services.into()
}

fn schedules() -> Vec<Value> {
    let schedule = |name: &str, service: &str, client: &str, cron: &str| json!({"scheduleName": name, "serviceName": service, "clientId": client, "cron": cron});
    let mut schedules = [
        schedule(EVERY, FREE, "alice", "* * * * * *"),
        schedule(ONE_AT_A_TIME, FEW, "bob", "* * * * * *"),
        schedule(BY_HAND, SLOW, "alice", "0 0 29 2 *"),
    ];
    schedules[0]["missed"] = json!("all");
    schedules[1]["missed"] = json!("once");
    schedules[1]["overlap"] = json!("skip");
    schedules.into()
}

/// What the store is to be asked for while its calls fail: all that is written, but for what only tests and operators
/// with a shell do.
pub fn verbs(cast: Cast) -> impl Iterator<Item = &'static str> {
    let lists: &[&[&str]] = match cast {
        Cast::Remote => &[REMOTE],
        Cast::Brokered => &[BROKERED],
        Cast::InProcess => &[REMOTE, IN_PROCESS],
    };
    lists.iter().flat_map(|list| list.iter().copied())
}

/// What workers who claim, and their consumers, have the store write.
const REMOTE: &[&str] = &[
    "reap_instances",
    "claim_tasks",
    "claim_callbacks",
    "close_batch",
    "declare",
    "create_batch",
    "fire_timers",
    "record_events",
    "complete_callbacks",
    "resolve_dependencies",
    "submit_many",
    "take_turn",
];

/// What is written where a broker hands tasks out.
const BROKERED: &[&str] = &[
    "begin_audit",
    "claim_dispatches",
    "redispatch_service",
    "record_events",
    "refill_dispatches",
    "complete_audit",
    "complete_dispatches",
    "submit_many",
];

/// What is written besides where processes do tasks themselves, with schedules, an inbox and operators.
const IN_PROCESS: &[&str] = &[
    "heartbeat_instance",
    "begin_audit",
    "claim_tasks_by_instance",
    "resolve_instance",
    "end_sessions",
    "fire_schedules",
    "purge_audit",
    "expire_callbacks",
    "register_instance",
    "lease_orphans",
    "deregister_instance",
    "open_session",
    "purge_tasks",
    "purge_batches",
    "recheck_dependencies",
    "resend_callbacks",
    "run_schedule",
    "complete_audit",
    "collect_submissions",
    "broadcast",
    "publish_workers",
    "purge_keys",
    "write_audit",
];
