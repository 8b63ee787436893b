//! Settings that are each fine, and together probably not what was meant.
//!
//! A warning never stops the server: whoever set it so may have a reason.

use relais_protocol::HumanDuration;

use super::{Config, EventsMode, NotificationsStore, Origin, Role, values::RedisUrl};

/// What is risky about the configuration, one sentence each, for the log.
pub fn warnings(config: &Config) -> Vec<String> {
    let mut found = Vec::new();
    reachability(config, &mut found);
    store(config, &mut found);
    keeping(config, &mut found);
    load(config, &mut found);
    spooling(config, &mut found);
    scaling(config, &mut found);
    found
}

fn reachability(config: &Config, found: &mut Vec<String>) {
    let Config { server, admin, auth, .. } = config;
    let open = !server.listen.ip().is_loopback();
    if open && server.has(Role::Api) && admin.is_without_token() {
        found.push(format!(
            "server.listen is {} and admin.token is empty: the admin API answers to this machine only; set \
             RELAIS_ADMIN_TOKEN to use it from elsewhere",
            server.listen
        ));
    }
    if !admin.token.is_empty() && admin.token.expose().chars().count() < 16 {
        found.push(
            "admin.token has fewer than 16 characters and can be guessed; `openssl rand -hex 32` makes a good one"
                .to_owned(),
        );
    }
    if auth.bcrypt_cost < 8 {
        found.push(format!(
            "auth.bcrypt_cost is {}: secrets are cheap to guess for whoever gets hold of the store",
            auth.bcrypt_cost
        ));
    }
    if let Some(path) = readable_by_others(config) {
        found.push(format!("{path} has a secret in it and everybody on this machine can read it; chmod 600 {path}"));
    }
}

fn store(config: &Config, found: &mut Vec<String>) {
    let Config { server, database, declarations, .. } = config;
    let missing: Vec<&str> = Role::ALL.into_iter().filter(|role| !server.has(*role)).map(Role::name).collect();
    if server.roles.contains(&Role::Notify) {
        found.push("server.roles has notify, the old name of the role callbacks: write callbacks".to_owned());
    }
    if database.url.is_sqlite() && !missing.is_empty() {
        found.push(format!(
            "server.roles leaves out {}, and no other process can take it on: SQLite is for one process; use \
             PostgreSQL to share the roles out",
            missing.join(", ")
        ));
    }
    if !database.url.is_sqlite() && config.events.enabled && config.events.mode == EventsMode::InMemory {
        found.push("events.mode is in_memory: what other processes do is not seen on this one's event bus".to_owned());
    }
    if config.notifications.store == NotificationsStore::Database && !config.notifications.redis_url.is_empty() {
        found
            .push("notifications.redis_url is set without notifications.store = \"redis\" and does nothing".to_owned());
    }
    if declarations.prune && declarations.file.is_empty() {
        found.push("declarations.prune is set without declarations.file and does nothing".to_owned());
    }
}

fn keeping(config: &Config, found: &mut Vec<String>) {
    let Config { purge, tasks, .. } = config;
    let longer = |what: &str, one: HumanDuration, other_name: &str, other: HumanDuration, so: &str| {
        (one > other).then(|| format!("{what} is {one}, longer than {other_name}, {other}: {so}"))
    };
    found.extend(longer(
        "purge.finished",
        purge.finished,
        "purge.any",
        purge.any,
        "tasks are removed by the latter, however short ago they ended",
    ));
    found.extend(longer(
        "tasks.idempotency_age",
        tasks.idempotency_age,
        "purge.finished",
        purge.finished,
        "the answer to a repeated request may name a task that is gone",
    ));
    if purge.every > purge.finished.min(purge.any) {
        found.push(format!(
            "purge.every is {}: tasks are kept up to that much longer than purge.finished and purge.any say",
            purge.every
        ));
    }
}

fn load(config: &Config, found: &mut Vec<String>) {
    let Config { database, batching, auth, .. } = config;
    if batching.queue < batching.max_batch {
        found.push(format!(
            "batching.queue is {}, less than batching.max_batch, {}: a batch can never be full",
            batching.queue, batching.max_batch
        ));
    }
    // Submissions and messages have their own transactions in flight.
    if !database.url.is_sqlite() && (database.max_connections as usize) <= 2 * batching.in_flight {
        found.push(format!(
            "database.max_connections is {}: with batching.in_flight at {} nothing is left for other requests",
            database.max_connections, batching.in_flight
        ));
    }
    if std::thread::available_parallelism().is_ok_and(|cores| auth.bcrypt_parallel > cores.get()) {
        found.push(format!(
            "auth.bcrypt_parallel is {}, more than this machine has cores: a wave of wrong secrets can stop the server",
            auth.bcrypt_parallel
        ));
    }
}

fn spooling(config: &Config, found: &mut Vec<String>) {
    /// PostgreSQL's default of logical_decoding_work_mem.
    const LEAST: u64 = 64 * 1024 * 1024;
    let Config { server, relay, .. } = config;
    if relay.spool_dir.is_empty() {
        return;
    }
    if !server.has(Role::Relay) {
        found.push("relay.spool_dir is set without the role relay and does nothing".to_owned());
    } else if relay.spool_max_bytes < LEAST {
        found.push(format!(
            "relay.spool_max_bytes is {}: PostgreSQL sends only larger transactions before their commit, unless its \
             logical_decoding_work_mem is set lower, so that there is never room for one",
            relay.spool_max_bytes
        ));
    }
}

fn scaling(config: &Config, found: &mut Vec<String>) {
    let scaler = &config.scaler;
    if scaler.listen.is_empty() && !(scaler.certificate.is_empty() && scaler.key.is_empty()) {
        found.push("scaler.certificate and scaler.key are set without scaler.listen and do nothing".to_owned());
    }
}

/// The configuration file, if a secret stands in it and others can read it.
#[cfg(unix)]
fn readable_by_others(config: &Config) -> Option<String> {
    use std::os::unix::fs::PermissionsExt as _;

    let from_file = |key: &str| matches!(config.origins.of(key), Some(Origin::File(_)));
    let token = from_file("admin.token") && !config.admin.token.is_empty()
        || from_file("admin.operators") && !config.admin.operators.is_empty()
        || from_file("database.encryption_keys") && !config.database.encryption_keys.is_empty();
    let has_password = |url: &RedisUrl| url.to_string() != url.expose();
    let redis = from_file("redis.password") && !config.redis.password.is_empty()
        || from_file("redis.url") && has_password(&config.redis.url)
        || from_file("notifications.redis_url") && has_password(&config.notifications.redis_url);
    let password = from_file("database.url") && config.database.url.to_string() != config.database.url.expose();
    let path = config.origins.file.as_ref().filter(|_| token || password || redis)?;
    let mode = std::fs::metadata(path).ok()?.permissions().mode();
    (mode & 0o004 != 0).then(|| path.display().to_string())
}

#[cfg(not(unix))]
fn readable_by_others(_: &Config) -> Option<String> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load;

    fn warned(variables: &[(&str, &str)]) -> Vec<String> {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        warnings(&load(None, variables, &[]).unwrap())
    }

    #[test]
    fn the_default_gives_no_warning() {
        assert_eq!(warned(&[]), [""; 0]);
    }

    #[test]
    fn risky_combinations_are_named() {
        for (variables, said) in [
            (&[("RELAIS_SERVER_LISTEN", "0.0.0.0:80")][..], "this machine only"),
            (&[("RELAIS_ADMIN_TOKEN", "short")], "can be guessed"),
            (&[("RELAIS_SERVER_ROLES", "api,purge")], "leaves out rescue"),
            (
                &[("RELAIS_SERVER_ROLES", "api,rescue,purge,notify,dispatch,track,schedule,relay,notifications")],
                "write callbacks",
            ),
            (&[("RELAIS_PURGE_ANY", "7d")], "purge.finished is 30d, longer than purge.any, 7d"),
            (&[("RELAIS_PURGE_EVERY", "40d")], "up to that much longer"),
            (&[("RELAIS_TASKS_IDEMPOTENCY_AGE", "60d")], "a task that is gone"),
            (&[("RELAIS_BATCHING_QUEUE", "10")], "never be full"),
            (&[("RELAIS_DATABASE_URL", "postgres://h/d"), ("RELAIS_DATABASE_MAX_CONNECTIONS", "2")], "nothing is left"),
            (&[("RELAIS_AUTH_BCRYPT_PARALLEL", "100000")], "more than this machine has cores"),
            (&[("RELAIS_AUTH_BCRYPT_COST", "4")], "cheap to guess"),
            (&[("RELAIS_DECLARATIONS_PRUNE", "true")], "does nothing"),
            (&[("RELAIS_NOTIFICATIONS_REDIS_URL", "redis://h/")], "does nothing"),
            (&[("RELAIS_DATABASE_URL", "postgres://h/d"), ("EVENTBUS_MODE", "in_memory")], "is not seen"),
            (&[("RELAIS_RELAY_SPOOL_DIR", "/s"), ("RELAIS_RELAY_SPOOL_MAX_BYTES", "1048576")], "never room for one"),
            (&[("RELAIS_SCALER_KEY", "tls.key")], "do nothing"),
        ] {
            let found = warned(variables);
            assert!(found.len() == 1 && found[0].contains(said), "{variables:?} gave {found:?}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_secret_in_a_file_that_everybody_can_read_is_named() {
        use std::{fs, os::unix::fs::PermissionsExt as _};

        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("relais.toml");
        for text in [
            "[admin]\ntoken = '0123456789abcdef'\n",
            "[admin]\noperators = ['rita:read-only:0123456789abcdef']\n",
            "[database]\nencryption_keys = ['AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=']\n",
        ] {
            fs::write(&path, text).unwrap();
            for (mode, expected) in [(0o644, 1), (0o640, 0)] {
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
                assert_eq!(warnings(&load(Some(&path), [], &[]).unwrap()).len(), expected, "{mode:o} {text}");
            }
        }
    }
}
