//! The metrics of the process: where they are recorded, and what each of them means.

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

/// Metrics are the process's, not a server's.
pub(crate) fn install() -> anyhow::Result<PrometheusHandle> {
    const SECONDS: [f64; 14] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 300.0];
    const SIZES: [f64; 9] = [1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0];
    let handle = PrometheusBuilder::new()
        .set_buckets(&SECONDS)?
        .set_buckets_for_metric(Matcher::Full("relais_batch_size".to_owned()), &SIZES)?
        .install_recorder()?;
    describe();
    Ok(handle)
}

fn describe() {
    use ::metrics::{describe_counter as counter, describe_gauge as gauge, describe_histogram as histogram};
    counter!("relais_tasks_submitted_total", "Tasks taken in, by service.");
    counter!("relais_tasks_replayed_total", "Submissions answered again under their idempotency key.");
    counter!("relais_tasks_refused_total", "Submissions refused, by service and reason.");
    counter!("relais_tasks_claimed_total", "Tasks handed to workers.");
    counter!("relais_tasks_dispatched_total", "Tasks published to the broker, by service.");
    counter!("relais_dispatch_failures_total", "Tasks that the broker did not take, by reason.");
    counter!(
        "relais_stops_told_total",
        "Tasks that workers were told to leave alone by way of the broker, by service."
    );
    counter!("relais_dead_letters_total", "Messages of workers that were set aside, by service.");
    gauge!("relais_broker_up", "Whether the broker takes messages.");
    counter!("relais_tasks_finished_total", "Tasks that ended, by service and status.");
    counter!("relais_tasks_purged_total", "Tasks removed because they were too old.");
    counter!("relais_leases_expired_total", "Tasks taken away from silent workers.");
    counter!("relais_worker_messages_total", "Messages, heartbeats and returns of workers, by outcome.");
    counter!("relais_http_refusals_total", "Answers that refuse, by error number.");
    counter!("relais_store_errors_total", "Calls of the store that failed, by verb and kind.");
    gauge!("relais_tasks_pending", "Tasks that wait, by service.");
    gauge!("relais_tasks_running", "Tasks that a worker has, by service.");
    gauge!("relais_queue_age_seconds", "Age of the oldest pending task, by service.");
    gauge!("relais_tasks_watched", "Tasks that somebody waits for in this process.");
    counter!("relais_callbacks_total", "Tries to send a callback, by outcome and type.");
    counter!("relais_callback_parks_total", "Endpoints left alone because they did not answer.");
    gauge!("relais_callbacks_under_way", "Callbacks that are being sent by this process.");
    gauge!("relais_callback_lanes", "Endpoints, by client, that callbacks wait for.");
    gauge!("relais_callback_lanes_parked", "Those of them that are left alone.");
    gauge!("relais_callback_overdue_seconds", "How long the callback that is most overdue has been due.");
    counter!(
        "relais_events_unpublished_total",
        "Events of tasks that could not be published: the bus was away or slow."
    );
    counter!("relais_schedule_runs_total", "Runs of schedules, by schedule and outcome.");
    counter!("relais_outbox_published_total", "Messages of outboxes that this process published, by outbox.");
    counter!("relais_outbox_failures_total", "Tries of this process to publish a message that failed, by outbox.");
    gauge!("relais_outbox_unpublished", "Rows that are not published, counted up to 10,000, by outbox.");
    gauge!("relais_outbox_oldest_seconds", "Age of the oldest row that is not published, by outbox.");
    gauge!("relais_outbox_parked", "Rows that are parked until an operator decides, by outbox.");
    gauge!("relais_outbox_trouble", "Whether an outbox can not be published: its database or its sink is away.");
    gauge!("relais_outbox_relays", "Relays that share an outbox, by outbox.");
    gauge!("relais_outbox_mode", "How rows are found at present, by outbox and mode.");
    gauge!("relais_outbox_retained_wal_bytes", "WAL that the database keeps for an outbox's slot, by outbox.");
    counter!("relais_capture_changes_total", "Changes of captured tables that this process published, by capture.");
    counter!("relais_capture_snapshot_rows_total", "Rows of snapshots that this process published, by capture.");
    gauge!(
        "relais_capture_trouble",
        "Whether a capture can not go on: its database or its sink is away, or lacks something."
    );
    gauge!("relais_capture_reading", "Whether this process reads the capture's slot. The others stand by.");
    gauge!(
        "relais_capture_lag_seconds",
        "How long the last change took from its commit until it was published, by capture."
    );
    gauge!("relais_capture_retained_wal_bytes", "WAL that the database keeps for a capture's slot, by capture.");
    gauge!("relais_capture_unconfirmed_wal_bytes", "WAL of a capture's slot that is not confirmed yet, by capture.");
    gauge!("relais_outbox_unconfirmed_wal_bytes", "WAL of an outbox's slot that is not confirmed yet, by outbox.");
    gauge!("relais_notification_links", "Links of web pages that are open.");
    counter!(
        "relais_notification_links_ended_total",
        "Links that the server ended, by reason: expired (its token), slow (its reader does not keep up), stopping."
    );
    histogram!(
        "relais_notification_delivery_seconds",
        "From when a notification was appended to the log, by the database's clock, until this process had queued it for its open links: once for each sending that reached a link."
    );
    gauge!(
        "relais_notification_log_up",
        "Whether this process can read the log of notifications, in the database or in Redis."
    );
    gauge!("relais_notification_log_behind", "Entries of the log that this process has not passed on to links yet.");
    counter!("relais_notification_emitted_total", "Notifications that were emitted by way of this process.");
    counter!("relais_notification_sent_total", "Notifications that were sent over links, each time.");
    counter!("relais_notification_acknowledged_total", "Acknowledgements of users.");
    counter!(
        "relais_notification_replayed_total",
        "Notifications that were sent again to those who had not acknowledged."
    );
    counter!("relais_notification_failed_total", "Notifications that went to the error log.");
    counter!("relais_notification_expired_total", "Notifications that have expired.");
    counter!(
        "relais_notification_source_events_total",
        "Events that this process heard for notification sources, by source and outcome: emitted, known (another process was faster), passed_over (for nobody, or not meant), failed."
    );
    gauge!(
        "relais_notification_source_trouble",
        "Whether a notification source of this process can not go on, by source."
    );
    counter!("relais_notification_unrecorded_total", "Deliveries that the ledger lacks because too many waited.");
    counter!("relais_notification_pushed_total", "Notifications that push services of browsers have taken.");
    counter!("relais_notification_push_failures_total", "Pushes that were given up.");
    counter!(
        "relais_notification_push_subscriptions_gone_total",
        "Push subscriptions that were forgotten because their push service said so."
    );
    histogram!("relais_schedule_lateness_seconds", "From when a scheduled task was due to when it was submitted.");
    histogram!("relais_callback_seconds", "Tries to send a callback, by type.");
    histogram!("relais_task_wait_seconds", "From submission to start.");
    histogram!("relais_task_run_seconds", "From start to end, by service and status.");
    histogram!("relais_store_seconds", "Calls of the store, by verb.");
    histogram!("relais_batch_size", "Items that shared one transaction.");
    gauge!("relais_http_connections", "Connections that are served.");
    counter!(
        "relais_http_connections_closed_total",
        "Connections that the server closed, by reason: timeout (the other side kept it waiting), no_room (and its place was needed), peer_limit (its address had too many)."
    );
    histogram!("relais_http_request_seconds", "HTTP requests, by route, method and status.");
    histogram!("relais_ui_request_seconds", "Pages of the dashboard.");
}
