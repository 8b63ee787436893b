//! The process's own limits.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Takes all the open files that the system allows: every connection is one, and the usual default of 1,024 is far
/// fewer than `server.max_connections` promises.
pub fn raise() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if limit.current != limit.maximum
        && let Err(error) = setrlimit(Resource::Nofile, wanted)
    {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}
