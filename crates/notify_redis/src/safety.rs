//! What a server says about how safe its data is.

use std::{collections::HashMap, fmt};

/// When writes are on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fsync {
    /// Before they are answered.
    Always,
    /// Later. A crash loses what was answered since.
    Later,
    /// Never, but for a snapshot every now and then.
    Never,
    /// The server does not say.
    Unknown,
}

/// What is known about a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisSafety {
    /// Its name and version.
    pub version: String,
    /// When writes are on disk.
    pub fsync: Fsync,
    /// Whether it removes keys when memory is full, whatever they are.
    pub evicts: bool,
    /// Names this run of the server; empty if it does not say.
    pub(crate) run: String,
    /// Whether it is a replica, which takes no writes.
    pub(crate) is_replica: bool,
    /// Whether it was promoted: it may lack what its predecessor had answered.
    pub(crate) was_promoted: bool,
}

impl RedisSafety {
    /// From the answers to `INFO` and to `CONFIG GET appendfsync`, as far as they were given.
    pub(crate) fn read(info: &str, appendfsync: Option<&str>) -> Self {
        let fields: HashMap<&str, &str> = info.lines().filter_map(|line| line.trim_end().split_once(':')).collect();
        let field = |name: &str| fields.get(name).copied().unwrap_or_default();
        let fsync = match (field("aof_enabled"), appendfsync) {
            ("0", _) => Fsync::Never,
            ("1", Some("always")) => Fsync::Always,
            ("1", Some(_)) => Fsync::Later,
            _ => Fsync::Unknown,
        };
        let version = match field("valkey_version") {
            "" => format!("Redis {}", field("redis_version")),
            version => format!("Valkey {version}"),
        };
        Self {
            version,
            fsync,
            evicts: field("maxmemory_policy").starts_with("allkeys"),
            run: field("run_id").to_owned(),
            is_replica: field("role") == "slave",
            was_promoted: field("master_replid2").bytes().any(|byte| byte != b'0'),
        }
    }

    /// Whether another run of the server has all that was answered before.
    pub(crate) fn is_lossless(&self) -> bool {
        self.fsync == Fsync::Always && !self.was_promoted
    }

    /// What an operator should know, in a sentence each.
    pub fn warnings(&self) -> Vec<String> {
        let mut found = Vec::new();
        found.extend(match self.fsync {
            Fsync::Always | Fsync::Unknown => None,
            Fsync::Later => Some(
                "Redis writes to disk later than it answers: notifications that were accepted may be lost if it \
                 crashes; set appendfsync to always"
                    .to_owned(),
            ),
            Fsync::Never => Some(
                "Redis does not write each change to disk: notifications and audiences are lost if it stops; set \
                 appendonly to yes and appendfsync to always"
                    .to_owned(),
            ),
        });
        if self.evicts {
            found.push(
                "Redis removes any keys when its memory is full, notifications too; set maxmemory-policy to noeviction"
                    .to_owned(),
            );
        }
        found
    }
}

impl fmt::Display for RedisSafety {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fsync = match self.fsync {
            Fsync::Always => "on disk before it is answered",
            Fsync::Later => "on disk later than it is answered",
            Fsync::Never => "not on disk",
            Fsync::Unknown => "perhaps on disk",
        };
        write!(f, "{}, where a change is {fsync}", self.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: &str = "redis_version:7.0.15\r\nrun_id:ab12\r\nrole:master\r\naof_enabled:1\r\n\
                       master_replid2:0000000000000000000000000000000000000000\r\nmaxmemory_policy:noeviction\r\n";

    #[test]
    fn a_server_that_says_all_is_understood() {
        let safe = RedisSafety::read(NEW, Some("always"));
        assert_eq!((safe.version.as_str(), safe.fsync, safe.run.as_str()), ("Redis 7.0.15", Fsync::Always, "ab12"));
        assert!(safe.is_lossless() && !safe.is_replica && safe.warnings().is_empty());
        let promoted = RedisSafety::read(&NEW.replace("replid2:0", "replid2:c"), Some("always"));
        assert!(!promoted.is_lossless());
    }

    #[test]
    fn what_is_not_safe_is_said_and_what_is_unknown_is_not() {
        let later = RedisSafety::read(NEW, Some("everysec"));
        assert_eq!((later.fsync, later.warnings().len(), later.is_lossless()), (Fsync::Later, 1, false));
        let never = RedisSafety::read(&NEW.replace("enabled:1", "enabled:0"), Some("always"));
        assert_eq!((never.fsync, never.warnings().len()), (Fsync::Never, 1));
        let evicting = RedisSafety::read(&NEW.replace("noeviction", "allkeys-lru"), Some("always"));
        assert_eq!(evicting.warnings().len(), 1);
        for (info, appendfsync) in [(NEW, None), ("", Some("always")), ("", None)] {
            let silent = RedisSafety::read(info, appendfsync);
            assert_eq!((silent.fsync, silent.warnings().len(), silent.is_lossless()), (Fsync::Unknown, 0, false));
        }
    }
}
