//! Notifications, on PostgreSQL: what reads share with what writes. Reads are in `read.rs`, writes in `write.rs`.

use relais_notify::{AudienceKey, UserScope};
use sqlx::postgres::PgRow;

use crate::{
    row::{Columns, wide},
    session::Result,
};

/// The columns of a message, of `relais.notification n`.
macro_rules! notification_columns {
    () => {
        "n.message, n.position AS emitted_at, n.client, n.status, n.attempts, n.replaced_by::text AS replaced_by"
    };
}

/// And what its rules need.
macro_rules! state_columns {
    () => {
        ", n.ack_timeout_ms, n.expiration, n.resent_at, n.due, n.revision, n.outstanding"
    };
}

/// What keys contain, themselves too, as it is since a position: of `$1` types and `$2` targets, up to `$3`.
macro_rules! reach {
    () => {
        "WITH RECURSIVE reach (type, target) AS (
             SELECT k.type COLLATE \"C\", k.target COLLATE \"C\" FROM unnest($1::text[], $2::text[]) AS k (type, target)
             UNION
             SELECT m.member_type, m.member FROM reach r
             JOIN relais.membership m ON m.type = r.type AND m.target = r.target WHERE m.since <= $3
         ) "
    };
}

/// What contains a key, itself too: of type `$1` and target `$2`.
macro_rules! containing {
    () => {
        "WITH RECURSIVE up (type, target) AS (
             SELECT $1::text COLLATE \"C\", $2::text COLLATE \"C\"
             UNION
             SELECT m.type, m.target FROM up JOIN relais.membership m ON m.member_type = up.type AND m.member = up.target
         ) "
    };
}

/// A user's messages that are not over, with whether the user is awaited: of `$1` types, `$2` targets and `$3` positions since
/// when, `$4` user.
macro_rules! of_user {
    () => {
        "FROM (
             SELECT k.notification, coalesce(bool_or(k.position >= w.since), false) AS awaited
             FROM unnest($1::text[], $2::text[], $3::bigint[]) AS w (type, target, since)
             JOIN relais.notification_key k ON k.type = w.type AND k.target = w.target AND k.kind = 0
             GROUP BY k.notification
         ) v JOIN relais.notification n ON n.id = v.notification
         LEFT JOIN relais.notification_recipient r ON r.notification = n.id AND r.user_id = $4
         WHERE n.status NOT IN (3, 4) AND n.expiration > clock_timestamp()"
    };
}

mod read;
mod write;

pub(super) fn kinds<'a>(keys: impl IntoIterator<Item = &'a AudienceKey>) -> Vec<&'a str> {
    keys.into_iter().map(|key| key.kind.as_str()).collect()
}

pub(super) fn targets<'a>(keys: impl IntoIterator<Item = &'a AudienceKey>) -> Vec<&'a str> {
    keys.into_iter().map(|key| key.target.as_str()).collect()
}

pub(super) fn sinces(scope: &UserScope) -> Vec<Option<i64>> {
    scope.belongs.iter().map(|belonging| belonging.since.map(wide)).collect()
}

pub(super) fn texts(rows: &[PgRow], column: &str) -> Result<Vec<String>> {
    rows.iter().map(|row| row.text(column)).collect()
}
