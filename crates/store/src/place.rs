//! The place of a pending task, said in SQL.
//!
//! [`relais_core::position`] explains the tree. Both databases add it up in the statement that finds the task, so a poll
//! is one round trip; each level is a sum of its own, a short range of the primary key, whatever the planner guesses.

/// The column `position` of a statement that finds a task `t`: none unless it is pending. `$departure` is the table of the
/// tree, `$neighbours` the numbers (`seq`) of up to 16 pending tasks of the service that came before `t`, the last first.
macro_rules! place_column {
    ($departure:literal, $neighbours:literal) => {
        concat!(
            "CASE WHEN t.status = 0 THEN CAST(((t.seq >> 4) << 4) + 1",
            $crate::place::place_column!(@level $departure, "0", "(t.seq >> 8) << 4", "t.seq >> 4"),
            $crate::place::place_column!(@level $departure, "1", "(t.seq >> 12) << 4", "t.seq >> 8"),
            $crate::place::place_column!(@level $departure, "2", "(t.seq >> 16) << 4", "t.seq >> 12"),
            $crate::place::place_column!(@level $departure, "3", "(t.seq >> 20) << 4", "t.seq >> 16"),
            $crate::place::place_column!(@level $departure, "4", "(t.seq >> 24) << 4", "t.seq >> 20"),
            $crate::place::place_column!(@level $departure, "5", "0", "t.seq >> 24"),
            " + (SELECT count(*) FROM (", $neighbours, ") p WHERE p.seq >= (t.seq >> 4) << 4) AS bigint) END AS position"
        )
    };
    (@level $departure:literal, $level:literal, $first:literal, $past:literal) => {
        concat!(
            " - (SELECT coalesce(sum(d.n), 0) FROM ", $departure, " d WHERE d.service_id = t.service_id AND d.level = ",
            $level, " AND d.slot >= ", $first, " AND d.slot < ", $past, ")"
        )
    };
}
pub(crate) use place_column;
