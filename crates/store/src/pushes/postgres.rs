//! Pushes, on PostgreSQL.

use std::time::Duration;

use relais_notify::{ClaimedPush, PushCursor, PushSubscription, StoredPushSubscription};
use uuid::Uuid;

use crate::{
    postgres::session::{PgSession, column},
    postgres::{Postgres, error, to_sql},
    pushes::statements::{PlannedRow, PushReader, PushRows, claimed, cursor, stored},
    row::{Columns, wide},
    session::Result,
};

/// The columns of a subscription.
macro_rules! subscription_columns {
    () => {
        "id::text AS id, user_id, endpoint, p256dh, auth, created, pushed"
    };
}

impl PushReader for Postgres {
    async fn read_push_cursor(&self) -> Result<Option<PushCursor>> {
        let mut lent = self.lend().await?;
        let row = sqlx::query("SELECT epoch, position FROM relais.push_head").fetch_one(&mut *lent).await;
        lent.keep();
        cursor(&row.map_err(error)?)
    }

    async fn subscriptions_of(&self, user: &str) -> Result<Vec<StoredPushSubscription>> {
        let mut lent = self.lend().await?;
        let rows = sqlx::query(concat!(
            "SELECT ",
            subscription_columns!(),
            " FROM relais.push_subscription WHERE user_id = $1 ORDER BY created, id"
        ))
        .bind(user)
        .fetch_all(&mut *lent)
        .await
        .map_err(error)?;
        lent.keep();
        rows.iter().map(stored).collect()
    }

    async fn users_asked(&self, limit: i64) -> Result<Vec<String>> {
        let mut lent = self.lend().await?;
        let rows = sqlx::query("SELECT DISTINCT user_id FROM relais.push WHERE state = 1 ORDER BY user_id LIMIT $1")
            .bind(limit)
            .fetch_all(&mut *lent)
            .await
            .map_err(error)?;
        lent.keep();
        rows.iter().map(|row| row.text("user_id")).collect()
    }

    async fn next_push_due(&self) -> Result<Option<Duration>> {
        let mut lent = self.lend().await?;
        let row = sqlx::query(
            "SELECT extract(epoch FROM min(due) - clock_timestamp())::float8 AS seconds FROM (
                 SELECT min(due) AS due FROM relais.push WHERE state = 0 AND due IS NOT NULL
                 UNION ALL SELECT min(due) FROM relais.push WHERE state = 1 AND due IS NOT NULL
                 UNION ALL SELECT min(due) FROM relais.push WHERE state = 2 AND due IS NOT NULL
             ) d",
        )
        .fetch_one(&mut *lent)
        .await
        .map_err(error)?;
        lent.keep();
        Ok(row.real_if_any("seconds")?.map(|seconds| Duration::from_secs_f64(seconds.max(0.0))))
    }
}

impl PushRows for PgSession {
    async fn lock_push_head(&mut self) -> Result<Option<PushCursor>> {
        let row = sqlx::query("SELECT epoch, position FROM relais.push_head FOR UPDATE")
            .fetch_one(&mut *self.tx)
            .await
            .map_err(error)?;
        cursor(&row)
    }

    async fn set_push_cursor(&mut self, cursor: Option<&PushCursor>) -> Result<()> {
        sqlx::query("UPDATE relais.push_head SET epoch = $1, position = $2")
            .bind(cursor.map(|cursor| cursor.epoch.as_str()))
            .bind(cursor.map(|cursor| wide(cursor.position)))
            .execute(&mut *self.tx)
            .await
            .map_err(error)?;
        Ok(())
    }

    async fn push_key(&mut self, new: &[u8]) -> Result<Vec<u8>> {
        let row = sqlx::query("UPDATE relais.push_head SET vapid_key = coalesce(vapid_key, $1) RETURNING vapid_key")
            .bind(new)
            .fetch_one(&mut *self.tx)
            .await
            .map_err(error)?;
        row.bytes("vapid_key")
    }

    async fn find_subscription(&mut self, id: Uuid) -> Result<Option<StoredPushSubscription>> {
        let row =
            sqlx::query(concat!("SELECT ", subscription_columns!(), " FROM relais.push_subscription WHERE id = $1"))
                .bind(id)
                .fetch_optional(&mut *self.tx)
                .await
                .map_err(error)?;
        row.as_ref().map(stored).transpose()
    }

    async fn count_subscriptions(&mut self, user: &str) -> Result<i64> {
        let row = sqlx::query("SELECT count(*) AS number FROM relais.push_subscription WHERE user_id = $1")
            .bind(user)
            .fetch_one(&mut *self.tx)
            .await
            .map_err(error)?;
        row.big("number")
    }

    async fn has_subscriptions(&mut self) -> Result<bool> {
        let row = sqlx::query("SELECT EXISTS (SELECT 1 FROM relais.push_subscription) AS there")
            .fetch_one(&mut *self.tx)
            .await
            .map_err(error)?;
        row.flag("there")
    }

    async fn put_subscription(&mut self, id: Uuid, subscription: &PushSubscription) -> Result<()> {
        sqlx::query(
            "INSERT INTO relais.push_subscription (id, user_id, endpoint, p256dh, auth, created)
             VALUES ($1, $2, $3, $4, $5, clock_timestamp())
             ON CONFLICT (id) DO UPDATE SET user_id = excluded.user_id, p256dh = excluded.p256dh, auth = excluded.auth,
                 created = excluded.created",
        )
        .bind(id)
        .bind(&subscription.user)
        .bind(&subscription.endpoint)
        .bind(subscription.p256dh().as_slice())
        .bind(subscription.auth().as_slice())
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn delete_subscription(&mut self, id: Uuid) -> Result<bool> {
        self.delete_pushes_of(id).await?;
        let done = sqlx::query("DELETE FROM relais.push_subscription WHERE id = $1")
            .bind(id)
            .execute(&mut *self.tx)
            .await
            .map_err(error)?;
        Ok(done.rows_affected() > 0)
    }

    async fn delete_pushes_of(&mut self, subscription: Uuid) -> Result<()> {
        sqlx::query(
            "DELETE FROM relais.push p USING (
                 SELECT notification, subscription FROM relais.push WHERE subscription = $1
                 ORDER BY notification, subscription FOR UPDATE
             ) l WHERE p.notification = l.notification AND p.subscription = l.subscription",
        )
        .bind(subscription)
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn plan_messages(&mut self, rows: &[PlannedRow<'_>], delay: Duration) -> Result<u64> {
        let mut planned = 0;
        for row in rows {
            let done = sqlx::query(
                "INSERT INTO relais.push AS p (notification, subscription, user_id, state, withdrawn, due, tries, claim,
                     expiration)
                 SELECT $1, s.id, s.user_id, 0, false, clock_timestamp() + make_interval(secs => $3), 0, 0, $4
                 FROM unnest($2::text[]) AS u (user_id)
                 JOIN relais.push_subscription s ON s.user_id = u.user_id COLLATE \"C\"
                 ORDER BY s.id
                 ON CONFLICT (notification, subscription) DO UPDATE SET state = 0, withdrawn = false, due = excluded.due,
                     tries = 0, claim = p.claim + 1",
            )
            .bind(row.id)
            .bind(row.users)
            .bind(delay.as_secs_f64())
            .bind(to_sql(row.expiration))
            .execute(&mut *self.tx)
            .await
            .map_err(error)?;
            planned += done.rows_affected();
        }
        Ok(planned)
    }

    async fn plan_withdrawals(&mut self, ids: &[Uuid], delay: Duration) -> Result<u64> {
        // One that is being sent may arrive.
        sqlx::query(
            "DELETE FROM relais.push p USING (
                 SELECT notification, subscription FROM relais.push
                 WHERE notification = ANY($1) AND state < 2 AND tries = 0
                 ORDER BY notification, subscription FOR UPDATE
             ) l WHERE p.notification = l.notification AND p.subscription = l.subscription",
        )
        .bind(ids)
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        let done = sqlx::query(
            "UPDATE relais.push p SET state = 0, withdrawn = true, tries = 0, claim = p.claim + 1,
                 due = clock_timestamp() + make_interval(secs => $2)
             FROM (
                 SELECT notification, subscription FROM relais.push WHERE notification = ANY($1)
                 ORDER BY notification, subscription FOR UPDATE
             ) l WHERE p.notification = l.notification AND p.subscription = l.subscription",
        )
        .bind(ids)
        .bind(delay.as_secs_f64())
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(done.rows_affected())
    }

    async fn ask_pushes(&mut self, limit: i64, window: Duration) -> Result<u64> {
        let done = sqlx::query(
            "UPDATE relais.push p SET state = 1, due = clock_timestamp() + make_interval(secs => $2)
             FROM (
                 SELECT notification, subscription FROM relais.push WHERE state = 0 AND due <= clock_timestamp()
                 ORDER BY due LIMIT $1 FOR UPDATE SKIP LOCKED
             ) l WHERE p.notification = l.notification AND p.subscription = l.subscription",
        )
        .bind(limit)
        .bind(window.as_secs_f64())
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(done.rows_affected())
    }

    async fn cancel_pushes(&mut self, users: &[String]) -> Result<u64> {
        let done = sqlx::query(
            "DELETE FROM relais.push p USING (
                 SELECT notification, subscription FROM relais.push
                 WHERE state = 1 AND NOT withdrawn AND user_id = ANY($1)
                 ORDER BY notification, subscription FOR UPDATE SKIP LOCKED
             ) l WHERE p.notification = l.notification AND p.subscription = l.subscription",
        )
        .bind(users)
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(done.rows_affected())
    }

    async fn claim_pushes(&mut self, limit: i64, lease: Duration) -> Result<Vec<ClaimedPush>> {
        let rows = sqlx::query(
            "WITH found AS (
                 SELECT notification, subscription FROM relais.push
                 WHERE state IN (1, 2) AND due <= clock_timestamp() ORDER BY due LIMIT $1 FOR UPDATE SKIP LOCKED
             ), taken AS (
                 UPDATE relais.push p SET state = 2, tries = p.tries + 1, claim = p.claim + 1,
                     due = clock_timestamp() + make_interval(secs => $2)
                 FROM found f WHERE p.notification = f.notification AND p.subscription = f.subscription
                 RETURNING p.notification, p.subscription, p.withdrawn, p.tries, p.claim
             )
             SELECT t.notification::text AS notification, t.withdrawn, t.tries, t.claim, s.id::text AS id, s.user_id,
                 s.endpoint, s.p256dh, s.auth
             FROM taken t JOIN relais.push_subscription s ON s.id = t.subscription",
        )
        .bind(limit)
        .bind(lease.as_secs_f64())
        .fetch_all(&mut *self.tx)
        .await
        .map_err(error)?;
        rows.iter().map(claimed).collect()
    }

    async fn end_pushes(&mut self, sent: &[ClaimedPush]) -> Result<()> {
        let (withdrawn, sent): (Vec<&ClaimedPush>, Vec<&ClaimedPush>) = sent.iter().partition(|push| push.withdrawn);
        sqlx::query(
            "UPDATE relais.push p SET state = 3, due = NULL
             FROM unnest($1::uuid[], $2::uuid[], $3::bigint[]) AS w (notification, subscription, claim)
             WHERE p.notification = w.notification AND p.subscription = w.subscription AND p.claim = w.claim",
        )
        .bind(column(&sent, |push| push.notification))
        .bind(column(&sent, |push| push.subscription_id))
        .bind(column(&sent, |push| wide(push.claim)))
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        self.delete_claimed(&withdrawn).await?;
        sqlx::query("UPDATE relais.push_subscription SET pushed = clock_timestamp() WHERE id = ANY($1)")
            .bind(column(&sent, |push| push.subscription_id))
            .execute(&mut *self.tx)
            .await
            .map_err(error)?;
        Ok(())
    }

    async fn drop_pushes(&mut self, dropped: &[ClaimedPush]) -> Result<()> {
        self.delete_claimed(&dropped.iter().collect::<Vec<_>>()).await
    }

    async fn retry_push(&mut self, push: &ClaimedPush, pause: Duration) -> Result<()> {
        sqlx::query(
            "UPDATE relais.push SET state = 0, due = clock_timestamp() + make_interval(secs => $4)
             WHERE notification = $1 AND subscription = $2 AND claim = $3",
        )
        .bind(push.notification)
        .bind(push.subscription_id)
        .bind(wide(push.claim))
        .bind(pause.as_secs_f64())
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }

    async fn purge_pushes(&mut self, limit: i64) -> Result<u64> {
        let done = sqlx::query(
            "DELETE FROM relais.push p USING (
                 SELECT notification, subscription FROM relais.push WHERE expiration < clock_timestamp()
                 ORDER BY expiration LIMIT $1 FOR UPDATE SKIP LOCKED
             ) l WHERE p.notification = l.notification AND p.subscription = l.subscription",
        )
        .bind(limit)
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(done.rows_affected())
    }
}

impl PgSession {
    /// Removes pushes that nobody has claimed anew.
    async fn delete_claimed(&mut self, pushes: &[&ClaimedPush]) -> Result<()> {
        sqlx::query(
            "DELETE FROM relais.push p
             USING unnest($1::uuid[], $2::uuid[], $3::bigint[]) AS w (notification, subscription, claim)
             WHERE p.notification = w.notification AND p.subscription = w.subscription AND p.claim = w.claim",
        )
        .bind(column(pushes, |push| push.notification))
        .bind(column(pushes, |push| push.subscription_id))
        .bind(column(pushes, |push| wide(push.claim)))
        .execute(&mut *self.tx)
        .await
        .map_err(error)?;
        Ok(())
    }
}
