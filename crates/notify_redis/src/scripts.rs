//! The scripts: each is one step that nobody else comes between.

use std::sync::LazyLock;

use redis::Script;

macro_rules! scripts {
    ($($(#[$doc:meta])* $name:ident = $file:literal;)*) => {
        $($(#[$doc])* pub(crate) static $name: LazyLock<Script> = LazyLock::new(|| {
            Script::new(concat!(include_str!("scripts/prelude.lua"), include_str!(concat!("scripts/", $file))))
        });)*
    };
}

scripts! {
    /// Makes the log, or names it anew.
    OPEN = "open.lua";
    /// Writes states and new messages, with their entries.
    CHANGE = "change.lua";
    /// Writes acknowledgements.
    ACKNOWLEDGE = "acknowledge.lua";
    /// Changes the members of a target.
    MEMBERS = "members.lua";
    /// Reads what targets contain, or what contains them.
    MEMBERSHIPS = "memberships.lua";
    /// Adds to the ledger.
    DELIVER = "deliver.lua";
    /// Reads what is due or has expired.
    DUE = "due.lua";
    /// Removes old entries.
    PURGE_LOG = "purge_log.lua";
    /// Removes indexes that are empty.
    PURGE_KEYS = "purge_keys.lua";
    /// Removes messages.
    FORGET = "forget.lua";
}
