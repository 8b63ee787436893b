//! Pushes, on SQLite.

use std::time::Duration;

use relais_notify::{ClaimedPush, PushCursor, PushSubscription, StoredPushSubscription};
use uuid::Uuid;

use crate::{
    pushes::statements::{PlannedRow, PushReader, PushRows, claimed, cursor, stored},
    row::{Columns, in_millis, wide},
    session::Result,
    sqlite::session::SqliteSession,
    sqlite::values::array,
    sqlite::{Sqlite, error},
};

impl PushReader for Sqlite {
    async fn read_push_cursor(&self) -> Result<Option<PushCursor>> {
        let statement = sqlx::query("SELECT epoch, position FROM push_head");
        let row = statement.fetch_one(&self.read).await.map_err(error)?;
        cursor(&row)
    }

    async fn subscriptions_of(&self, user: &str) -> Result<Vec<StoredPushSubscription>> {
        let statement = sqlx::query(
            "SELECT id, user_id, endpoint, p256dh, auth, created, pushed FROM push_subscription
             WHERE user_id = ?1 ORDER BY created, id",
        );
        let rows = statement.bind(user).fetch_all(&self.read).await.map_err(error)?;
        rows.iter().map(stored).collect()
    }

    async fn users_asked(&self, limit: i64) -> Result<Vec<String>> {
        let statement = sqlx::query("SELECT DISTINCT user_id FROM push WHERE state = 1 ORDER BY user_id LIMIT ?1");
        let rows = statement.bind(limit).fetch_all(&self.read).await.map_err(error)?;
        rows.iter().map(|row| row.text("user_id")).collect()
    }

    async fn next_push_due(&self) -> Result<Option<Duration>> {
        let statement = sqlx::query(concat!(
            "SELECT min(due) - ",
            now!(),
            " AS millis FROM (
                 SELECT min(due) AS due FROM push WHERE state = 0 AND due IS NOT NULL
                 UNION ALL SELECT min(due) FROM push WHERE state = 1 AND due IS NOT NULL
                 UNION ALL SELECT min(due) FROM push WHERE state = 2 AND due IS NOT NULL
             )"
        ));
        let row = statement.fetch_one(&self.read).await.map_err(error)?;
        Ok(row.big_if_any("millis")?.map(|millis| Duration::from_millis(u64::try_from(millis).unwrap_or(0))))
    }
}

impl PushRows for SqliteSession {
    /// Who writes is alone.
    async fn lock_push_head(&mut self) -> Result<Option<PushCursor>> {
        let rows = self.rows(sqlx::query("SELECT epoch, position FROM push_head")).await?;
        rows.first().map_or(Ok(None), cursor)
    }

    async fn set_push_cursor(&mut self, cursor: Option<&PushCursor>) -> Result<()> {
        let statement = sqlx::query("UPDATE push_head SET epoch = ?1, position = ?2")
            .bind(cursor.map(|cursor| cursor.epoch.as_str()))
            .bind(cursor.map(|cursor| wide(cursor.position)));
        self.wrote = true;
        self.change(statement).await.map(drop)
    }

    async fn push_key(&mut self, new: &[u8]) -> Result<Vec<u8>> {
        self.wrote = true;
        let statement = sqlx::query("UPDATE push_head SET vapid_key = coalesce(vapid_key, ?1) RETURNING vapid_key");
        let rows = self.rows(statement.bind(new)).await?;
        rows.first().map_or(Ok(Vec::new()), |row| row.bytes("vapid_key"))
    }

    async fn find_subscription(&mut self, id: Uuid) -> Result<Option<StoredPushSubscription>> {
        let statement = sqlx::query(
            "SELECT id, user_id, endpoint, p256dh, auth, created, pushed FROM push_subscription WHERE id = ?1",
        );
        self.rows(statement.bind(id.to_string())).await?.first().map(stored).transpose()
    }

    async fn count_subscriptions(&mut self, user: &str) -> Result<i64> {
        let statement = sqlx::query("SELECT count(*) AS number FROM push_subscription WHERE user_id = ?1");
        self.rows(statement.bind(user)).await?.first().map_or(Ok(0), |row| row.big("number"))
    }

    async fn has_subscriptions(&mut self) -> Result<bool> {
        Ok(!self.rows(sqlx::query("SELECT 1 FROM push_subscription LIMIT 1")).await?.is_empty())
    }

    async fn put_subscription(&mut self, id: Uuid, subscription: &PushSubscription) -> Result<()> {
        let statement = sqlx::query(concat!(
            "INSERT INTO push_subscription (id, user_id, endpoint, p256dh, auth, created)
             VALUES (?1, ?2, ?3, ?4, ?5, ",
            now!(),
            ") ON CONFLICT (id) DO UPDATE SET user_id = excluded.user_id, p256dh = excluded.p256dh,
                 auth = excluded.auth, created = excluded.created"
        ));
        let statement = statement
            .bind(id.to_string())
            .bind(&subscription.user)
            .bind(&subscription.endpoint)
            .bind(subscription.p256dh().as_slice())
            .bind(subscription.auth().as_slice());
        self.wrote = true;
        self.change(statement).await.map(drop)
    }

    async fn delete_subscription(&mut self, id: Uuid) -> Result<bool> {
        self.wrote = true;
        self.delete_pushes_of(id).await?;
        let statement = sqlx::query("DELETE FROM push_subscription WHERE id = ?1");
        Ok(self.change(statement.bind(id.to_string())).await? > 0)
    }

    async fn delete_pushes_of(&mut self, subscription: Uuid) -> Result<()> {
        self.wrote = true;
        let statement = sqlx::query("DELETE FROM push WHERE subscription = ?1");
        self.change(statement.bind(subscription.to_string())).await.map(drop)
    }

    async fn plan_messages(&mut self, rows: &[PlannedRow<'_>], delay: Duration) -> Result<u64> {
        self.wrote = true;
        let mut planned = 0;
        for row in rows {
            let statement = sqlx::query(concat!(
                "INSERT INTO push (notification, subscription, user_id, state, withdrawn, due, tries, claim, expiration)
                 SELECT ?1, s.id, s.user_id, 0, 0, ",
                now!(),
                " + ?3, 0, 0, ?4
                 FROM json_each(?2) AS u CROSS JOIN push_subscription s ON s.user_id = u.value WHERE true
                 ON CONFLICT (notification, subscription) DO UPDATE SET state = 0, withdrawn = 0, due = excluded.due,
                     tries = 0, claim = claim + 1"
            ));
            let statement = statement
                .bind(row.id.to_string())
                .bind(array(row.users)?)
                .bind(in_millis(delay))
                .bind(row.expiration.as_millis());
            planned += self.change(statement).await?;
        }
        Ok(planned)
    }

    async fn plan_withdrawals(&mut self, ids: &[Uuid], delay: Duration) -> Result<u64> {
        self.wrote = true;
        // One that is being sent may arrive.
        self.execute(
            "DELETE FROM push WHERE state < 2 AND tries = 0 AND notification IN (SELECT value FROM json_each(?1))",
            ids,
        )
        .await?;
        let statement = sqlx::query(concat!(
            "UPDATE push SET state = 0, withdrawn = 1, due = ",
            now!(),
            " + ?2, tries = 0, claim = claim + 1 WHERE notification IN (SELECT value FROM json_each(?1))"
        ));
        self.change(statement.bind(array(ids)?).bind(in_millis(delay))).await
    }

    async fn ask_pushes(&mut self, limit: i64, window: Duration) -> Result<u64> {
        let statement = sqlx::query(concat!(
            "UPDATE push SET state = 1, due = ",
            now!(),
            " + ?2 WHERE (notification, subscription) IN (
                 SELECT notification, subscription FROM push WHERE state = 0 AND due <= ",
            now!(),
            " ORDER BY due LIMIT ?1)"
        ));
        let asked = self.change(statement.bind(limit).bind(in_millis(window))).await?;
        self.wrote |= asked > 0;
        Ok(asked)
    }

    async fn cancel_pushes(&mut self, users: &[String]) -> Result<u64> {
        self.wrote = true;
        let statement = sqlx::query(
            "DELETE FROM push WHERE state = 1 AND NOT withdrawn AND user_id IN (SELECT value FROM json_each(?1))",
        );
        self.change(statement.bind(array(users)?)).await
    }

    async fn claim_pushes(&mut self, limit: i64, lease: Duration) -> Result<Vec<ClaimedPush>> {
        let statement = sqlx::query(concat!(
            "UPDATE push SET state = 2, due = ",
            now!(),
            " + ?2, tries = tries + 1, claim = claim + 1
             WHERE (notification, subscription) IN (
                 SELECT notification, subscription FROM push WHERE state IN (1, 2) AND due <= ",
            now!(),
            " ORDER BY due LIMIT ?1)
             RETURNING notification, subscription AS id, withdrawn, tries, claim,
                 (SELECT s.user_id FROM push_subscription s WHERE s.id = subscription) AS user_id,
                 (SELECT s.endpoint FROM push_subscription s WHERE s.id = subscription) AS endpoint,
                 (SELECT s.p256dh FROM push_subscription s WHERE s.id = subscription) AS p256dh,
                 (SELECT s.auth FROM push_subscription s WHERE s.id = subscription) AS auth"
        ));
        let rows = self.rows(statement.bind(limit).bind(in_millis(lease))).await?;
        self.wrote |= !rows.is_empty();
        rows.iter().map(claimed).collect()
    }

    async fn end_pushes(&mut self, sent: &[ClaimedPush]) -> Result<()> {
        self.wrote = true;
        for push in sent {
            let end = match push.withdrawn {
                true => "DELETE FROM push WHERE notification = ?1 AND subscription = ?2 AND claim = ?3",
                false => {
                    "UPDATE push SET state = 3, due = NULL
                     WHERE notification = ?1 AND subscription = ?2 AND claim = ?3"
                }
            };
            self.change(of(end, push)).await?;
            let statement = sqlx::query(concat!("UPDATE push_subscription SET pushed = ", now!(), " WHERE id = ?1"));
            self.change(statement.bind(push.subscription_id.to_string())).await?;
        }
        Ok(())
    }

    async fn drop_pushes(&mut self, dropped: &[ClaimedPush]) -> Result<()> {
        self.wrote = true;
        for push in dropped {
            let statement = "DELETE FROM push WHERE notification = ?1 AND subscription = ?2 AND claim = ?3";
            self.change(of(statement, push)).await?;
        }
        Ok(())
    }

    async fn retry_push(&mut self, push: &ClaimedPush, pause: Duration) -> Result<()> {
        self.wrote = true;
        let statement = of(
            concat!(
                "UPDATE push SET state = 0, due = ",
                now!(),
                " + ?4 WHERE notification = ?1 AND subscription = ?2 AND claim = ?3"
            ),
            push,
        );
        self.change(statement.bind(in_millis(pause))).await.map(drop)
    }

    async fn purge_pushes(&mut self, limit: i64) -> Result<u64> {
        let statement = sqlx::query(concat!(
            "DELETE FROM push WHERE (notification, subscription) IN (
                 SELECT notification, subscription FROM push WHERE expiration < ",
            now!(),
            " ORDER BY expiration LIMIT ?1)"
        ));
        let purged = self.change(statement.bind(limit)).await?;
        self.wrote |= purged > 0;
        Ok(purged)
    }
}

/// A statement about a push, as long as it was not claimed anew.
fn of<'q>(statement: &'static str, push: &ClaimedPush) -> crate::sqlite::values::Statement<'q> {
    sqlx::query(statement)
        .bind(push.notification.to_string())
        .bind(push.subscription_id.to_string())
        .bind(wide(push.claim))
}
