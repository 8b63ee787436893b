//! The port.

use std::{collections::HashMap, time::Duration};

use async_trait::async_trait;
use relais_core::StoreError;
use relais_notify::{
    AckEvent, Acknowledged, Acknowledgement, AudienceKey, ChangeRefused, Counts, Delivery, Emitted, Fired, LedgerLine,
    ListRequest, ListedNotification, LogEntry, LogHead, LogPosition, Member, MembersChange, MembersChanged,
    MembersRefused, NewNotification, NotificationFilter, NotificationStore, NotificationsPurged, StoredNotification,
    UserScope,
};
use uuid::Uuid;

use crate::RedisNotifications;

#[async_trait]
impl NotificationStore for RedisNotifications {
    async fn log_head(&self) -> Result<LogHead, StoreError> {
        self.0.connections.read_head().await
    }

    async fn emit_notifications(&self, messages: Vec<NewNotification>) -> Result<Vec<Emitted>, StoreError> {
        self.emit(&messages).await
    }

    async fn check_notifications(&self, messages: &[NewNotification]) -> Result<Vec<Emitted>, StoreError> {
        self.check(messages).await
    }

    async fn read_log(&self, after: LogPosition, limit: usize) -> Result<Vec<LogEntry>, StoreError> {
        self.read_after(after, limit).await
    }

    async fn read_log_of(
        &self,
        scope: &UserScope,
        after: LogPosition,
        up_to: LogPosition,
        limit: usize,
    ) -> Result<Vec<LogEntry>, StoreError> {
        self.read_for(scope, after, up_to, limit).await
    }

    async fn scopes_of(&self, users: Vec<String>) -> Result<HashMap<String, UserScope>, StoreError> {
        self.read_scopes(users).await
    }

    async fn acknowledged_by(&self, id: Uuid, users: Vec<String>) -> Result<Vec<String>, StoreError> {
        self.who_acknowledged(id, users).await
    }

    async fn acknowledged_of(&self, user: &str, ids: Vec<Uuid>) -> Result<Vec<Uuid>, StoreError> {
        self.what_acknowledged(user, ids).await
    }

    async fn acknowledge(&self, acknowledgements: Vec<Acknowledgement>) -> Result<Vec<Acknowledged>, StoreError> {
        self.write_acknowledgements(&acknowledgements).await
    }

    async fn list_of_user(&self, request: ListRequest) -> Result<Vec<ListedNotification>, StoreError> {
        self.list(&request).await
    }

    async fn count_of_user(&self, scope: &UserScope) -> Result<Counts, StoreError> {
        self.count(scope).await
    }

    async fn fire_notification_timers(&self, limit: usize) -> Result<Fired, StoreError> {
        self.fire(limit).await
    }

    async fn withdraw(
        &self,
        id: Uuid,
        client: Option<String>,
        replacement: Option<NewNotification>,
    ) -> Result<(), ChangeRefused> {
        self.change_one(id, client.as_deref(), AckEvent::Withdraw, replacement.as_ref()).await
    }

    async fn resend(&self, id: Uuid, client: Option<String>) -> Result<(), ChangeRefused> {
        self.change_one(id, client.as_deref(), AckEvent::Resend, None).await
    }

    async fn change_members(&self, key: AudienceKey, change: MembersChange) -> Result<MembersChanged, MembersRefused> {
        self.change_parts(key, change).await
    }

    async fn list_members(
        &self,
        key: &AudienceKey,
        after: Option<AudienceKey>,
        limit: usize,
    ) -> Result<Vec<Member>, StoreError> {
        self.read_names(key, after.as_ref(), limit).await
    }

    async fn record_deliveries(&self, deliveries: Vec<Delivery>) -> Result<(), StoreError> {
        self.write_deliveries(deliveries).await
    }

    async fn list_notifications(&self, filter: NotificationFilter) -> Result<Vec<StoredNotification>, StoreError> {
        self.list_all(&filter).await
    }

    async fn find_notification(
        &self,
        id: Uuid,
        limit: usize,
    ) -> Result<Option<(StoredNotification, Vec<LedgerLine>)>, StoreError> {
        self.read_ledger(id, limit).await
    }

    async fn purge_notifications(
        &self,
        log_age: Duration,
        age: Duration,
        limit: usize,
    ) -> Result<NotificationsPurged, StoreError> {
        self.purge(log_age, age, limit).await
    }

    async fn ticket_key(&self) -> Result<[u8; 32], StoreError> {
        self.0.connections.ticket_key().await
    }
}
