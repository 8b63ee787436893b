//! The conformance suite of the `Store` port: tests that every driver must pass.
//!
//! A driver's own test builds a [`Harness`] and passes it to [`store_suite!`](crate::store_suite), which makes one test
//! of each promise below. Each test has its own name, its own empty database and its own verdict. Nothing here knows a
//! driver, SQL or a file.

pub mod attempt;
pub mod audit;
pub mod batch;
pub mod callback;
pub mod claim;
pub mod declare;
pub mod dependency;
pub mod dispatch;
pub mod flow;
pub mod instance_leases;
pub mod lease;
pub mod list;
pub mod model;
pub mod position;
pub mod publish;
pub mod purge;
pub mod record;
pub mod schedule;
pub mod serve;
pub mod submit;
pub mod wakeup;
pub mod window;

mod world;

use std::{any::Any, sync::Arc};

use relais_core::Store;

use crate::random;

/// What a driver can do.
#[derive(Debug, Clone, Copy)]
pub struct StoreFeatures {
    /// Whether many processes may open the same database.
    pub many_processes: bool,
}

/// A store on an empty database whose tables were made.
pub struct Harness {
    /// What the driver can do.
    pub features: StoreFeatures,
    /// Handles on the same database, one for each process that plays a part.
    pub handles: Vec<Arc<dyn Store>>,
    /// Whatever must live as long as the database; dropped after the handles.
    pub keep: Box<dyn Any + Send>,
}

impl Harness {
    /// The handle that most promises are tried on.
    pub fn store(&self) -> &dyn Store {
        &*self.handles[0]
    }
}

impl std::fmt::Debug for Harness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Harness").field("features", &self.features).finish_non_exhaustive()
    }
}

/// Makes one test of each promise of the suite. The argument is an async function without parameters that returns
/// `anyhow::Result<Harness>`.
#[macro_export]
macro_rules! store_suite {
    ($harness:ident) => {
        $crate::store_suite! { @tests $harness;
            submit {
                a_full_service_accepts_exactly_its_capacity,
                a_full_client_is_accepted_exactly_up_to_its_capacity,
                a_capacity_is_enforced_from_its_declaration_until_its_removal,
                a_repeated_idempotency_key_gets_the_first_answer,
                concurrent_submissions_with_one_idempotency_key_create_one_task,
                a_refused_submission_does_not_use_up_its_idempotency_key,
                payloads_are_carried_byte_for_byte,
                a_text_that_a_database_cannot_keep_does_not_fail_its_batch,
                a_submission_to_a_deleted_service_does_not_fail_the_others,
                a_batch_of_large_submissions_is_accepted,
            }
            claim {
                concurrent_claims_never_get_the_same_task,
                claims_get_the_oldest_tasks_first_in_queue_order,
                a_task_that_an_event_did_not_change_can_be_claimed_at_once,
                a_paused_service_gives_no_task_to_claims_until_it_is_resumed,
                the_lease_of_a_claim_comes_from_the_request_or_else_the_service,
                a_submission_for_a_waiting_worker_is_claimed_in_the_same_transaction,
                concurrent_submissions_for_waiting_workers_go_to_one_worker_each,
            }
            record {
                a_task_has_at_most_one_result,
                fencing_ignores_messages_of_a_replaced_worker,
                events_of_one_call_are_applied_in_order,
                events_for_tasks_of_another_service_or_client_are_refused,
                concurrent_results_of_one_task_leave_exactly_one,
                a_heartbeat_extends_the_lease_and_wakes_nobody,
            }
            lease {
                an_expired_lease_returns_the_task_until_its_delivery_limit_then_it_fails,
                leases_that_have_not_expired_are_kept,
                expired_leases_are_reclaimed_oldest_first_up_to_the_limit,
            }
            attempt {
                a_failed_task_is_retried_until_its_retry_policy_ends,
                the_retry_policy_comes_from_the_task_or_else_the_service,
                a_service_that_forbids_retries_overrides_the_policy_of_a_task,
                attempts_that_were_returned_or_lost_are_recorded,
                an_ended_task_can_be_retried_by_an_operator,
                a_delayed_task_enters_its_queue_when_it_is_due,
                concurrent_processes_fire_each_timer_once,
                a_task_that_expires_before_it_starts_fails,
                the_worker_of_an_attempt_past_its_timeout_gets_overdue,
                tasks_with_higher_priority_go_first_and_do_not_starve_others,
                a_delayed_task_does_not_overtake_tasks_submitted_before_its_due_time,
                a_unique_key_allows_one_unfinished_task_at_a_time,
                a_retry_is_refused_while_another_task_holds_the_unique_key,
                a_retry_by_an_operator_starts_the_retry_policy_from_the_beginning,
                delayed_and_retried_broker_tasks_are_dispatched_when_they_are_due,
                a_purge_removes_attempts_and_unique_keys_with_their_task,
            }
            instance_leases {
                a_task_leased_by_an_instance_is_recorded_as_one_attempt,
                a_task_leased_by_an_instance_is_given_to_nobody_else,
                an_instance_with_many_leased_tasks_still_gets_urgent_and_returned_ones,
                a_cancellation_of_a_leased_task_by_another_process_wins,
                a_leased_task_that_is_returned_can_be_claimed_by_any_worker,
                tasks_of_a_crashed_instance_run_again_and_its_late_results_are_ignored,
                an_instance_that_registers_again_replaces_its_predecessor_at_once,
                crash_policy_fail_fails_the_tasks_of_a_crashed_instance,
                crash_policy_refuse_keeps_the_tasks_of_a_crashed_instance_until_resolved,
                deregistering_an_instance_returns_its_leased_tasks,
                flow_limits_count_tasks_leased_by_an_instance,
                client_limits_skip_tasks_leased_by_an_instance,
                a_retried_task_can_be_claimed_by_any_worker,
                a_task_leased_by_an_instance_times_out_like_any_other,
                callbacks_of_a_task_leased_by_an_instance_are_sent_in_order,
                a_submission_for_a_waiting_instance_is_leased_in_the_same_transaction,
                limits_hold_for_submissions_to_a_waiting_instance,
                concurrent_submissions_to_waiting_instances_lease_each_task_once,
            }
            dependency {
                a_task_waits_until_the_condition_of_its_dependency_is_met,
                a_dependency_on_an_ended_task_is_resolved_at_submission,
                a_failure_fails_all_dependents_down_the_chain,
                many_dependents_of_one_task_are_released_in_portions,
                tasks_of_one_submission_can_depend_on_each_other,
                a_dependency_on_a_missing_or_foreign_task_is_refused,
                concurrent_ends_and_submissions_leave_no_dependent_waiting,
                concurrent_ends_of_dependencies_do_not_deadlock,
                a_dependent_task_keeps_its_due_time_and_its_expiry,
                a_retry_by_an_operator_ignores_dependencies,
                a_task_with_unfinished_dependents_is_not_purged,
                the_sweep_finds_an_end_whose_dependents_were_not_released,
                a_dependency_on_a_task_leased_by_an_instance_is_released,
                a_dependent_broker_task_is_dispatched_when_it_is_released,
                tasks_of_a_chain_share_correlation_and_trace_and_are_listed_together,
            }
            batch {
                a_batch_ends_with_its_last_task_and_its_callback_is_sent_once,
                concurrent_ends_end_a_batch_once,
                a_batch_is_accepted_whole_or_not_at_all,
                a_batch_repeated_with_its_idempotency_key_is_the_same_batch,
                an_open_batch_accepts_tasks_until_it_is_closed,
                concurrent_close_and_submission_to_a_batch_lose_no_task,
                a_batch_ends_with_the_dependents_that_fail_in_a_chain,
                old_batches_are_purged_and_purged_tasks_count_as_cancelled,
            }
            flow {
                concurrent_claims_start_exactly_max_running_tasks,
                max_running_per_client_holds_and_other_clients_use_the_room,
                max_running_frees_its_room_however_a_task_ends,
                a_rate_limit_follows_the_clock_of_the_store,
                fair_share_gives_clients_turns_whatever_their_backlog,
                fair_share_gives_an_absent_client_no_credit,
                fair_share_starts_more_tasks_of_a_client_with_a_larger_share,
                flow_limits_spare_unlimited_services_and_a_pause_stops_all_claims,
                flow_limits_can_change_while_tasks_run,
                priority_order_holds_under_flow_limits,
                a_worker_that_waits_for_flow_room_is_woken,
            }
            window {
                a_dispatch_window_bounds_published_tasks_and_loses_none,
                a_dispatch_window_holds_when_many_older_tasks_come_back,
                tasks_that_wait_for_a_dispatch_window_are_published_in_rank_order,
                a_new_dispatch_window_counts_tasks_already_published,
            }
            publish {
                concurrent_publishers_hold_every_flow_limit_and_finish_all_tasks,
                flow_room_of_a_published_task_is_freed_however_it_ends,
                a_rate_limit_bounds_published_tasks,
                fair_share_orders_published_tasks,
                flow_limits_can_change_while_tasks_are_published,
            }
            dispatch {
                a_dispatch_is_taken_by_one_publisher_until_it_is_acknowledged,
                a_dispatch_is_reserved_for_its_submitter_until_a_lease_expires,
                the_oldest_published_task_of_a_service_is_known,
                an_ended_task_is_not_dispatched,
                broker_tasks_are_never_claimed_and_other_tasks_never_dispatched,
                every_way_of_submission_writes_a_dispatch_row,
                a_returned_task_is_dispatched_again_unless_the_broker_has_it,
                tasks_lost_by_the_broker_are_dispatched_again_in_batches,
                an_acknowledgement_from_before_a_lost_queue_keeps_the_new_dispatch,
                a_duplicate_acknowledgement_does_not_remove_a_later_dispatch,
                a_service_can_change_its_transport_to_a_broker_and_back,
                tasks_in_a_renamed_queue_are_dispatched_again,
                a_broker_task_fails_at_its_delivery_limit_of_lost_workers,
                a_late_failure_of_a_lost_worker_does_not_fail_the_next_attempt,
            }
            position {
                the_position_is_exact_after_claims_cancellations_and_returns,
                the_position_is_exact_among_twenty_thousand_tasks,
            }
            list {
                pages_list_every_task_exactly_once_newest_first,
                list_filters_select_by_service_client_and_status,
                list_filters_select_by_submission_date,
                counts_agree_with_the_list_and_stop_at_their_limit,
                tasks_of_a_chain_are_listed_by_correlation_id,
            }
            audit {
                the_audit_log_is_read_newest_first,
                old_audit_records_are_purged,
                the_audit_record_is_written_before_the_action,
                a_session_is_open_until_it_ends_or_expires,
                processes_share_their_worker_registries,
            }
            purge {
                a_purge_removes_only_tasks_past_their_retention,
                a_purge_selects_by_age_to_the_millisecond,
                a_dry_run_purge_counts_the_same_and_removes_nothing,
                purging_pending_tasks_keeps_positions_and_capacity_exact,
                a_purge_in_small_batches_removes_everything,
                compacting_the_position_tree_keeps_positions_exact,
                only_old_idempotency_keys_are_purged,
            }
            callback {
                every_end_queues_one_callback_only_where_one_was_requested,
                concurrent_senders_never_take_the_same_callback,
                a_callback_whose_lease_expires_is_taken_by_another_sender,
                every_callback_try_is_recorded_and_decides_the_next_retry,
                a_parked_lane_sends_no_callbacks_while_other_lanes_do,
                callback_lanes_are_listed_page_by_page,
                callbacks_of_one_task_are_sent_in_order,
                progress_callbacks_are_delayed_and_carry_the_latest_progress,
                callbacks_are_listed_and_sent_again_by_filter,
                a_callback_that_is_overdue_for_too_long_fails,
                a_task_with_an_unsent_callback_is_not_purged,
                a_callback_keeps_the_result_it_was_queued_with_when_the_task_is_retried,
                at_most_two_signing_secrets_are_valid,
            }
            declare {
                a_declaration_is_applied_all_or_nothing,
                every_declared_field_is_read_back,
                a_service_with_unfinished_tasks_is_not_deleted,
                a_service_declared_again_keeps_its_tasks_and_positions,
                deleting_a_client_deletes_its_authorizations,
                an_authorization_needs_an_existing_client_and_service,
                a_new_client_needs_a_secret,
                rights_for_notifications_are_kept_until_they_are_replaced,
                deleting_a_service_during_submissions_strands_no_task,
            }
            schedule {
                concurrent_processes_make_each_schedule_run_once,
                a_declared_schedule_is_read_back_and_keeps_its_progress,
                a_paused_schedule_has_no_runs_and_misses_none,
                a_refused_run_is_recorded_and_the_schedule_continues,
                schedule_runs_do_not_overlap_unless_allowed,
                a_process_with_an_old_declaration_fires_no_schedule,
                a_manual_run_happens_now_and_keeps_the_next_run,
                schedule_runs_of_a_broker_service_are_dispatched,
            }
            wakeup {
                wakeups_for_work_changes_and_declarations_come_after_the_commit,
                an_event_that_changes_nothing_sends_no_wakeup,
                wakeups_reach_other_processes,
                every_committed_change_is_published_in_order_to_those_who_follow,
                a_worker_with_a_cancelled_task_gets_a_revocation,
                broadcast_texts_reach_every_process,
            }
            serve {
                a_second_migration_does_nothing,
                the_database_clock_is_utc_and_never_goes_back,
                a_chore_is_taken_once_per_period_by_one_process,
                a_closed_store_is_unavailable,
            }
            model {
                random_operations_agree_with_a_model,
                late_duplicate_and_reordered_messages_agree_with_a_model,
            }
        }
    };
    (@tests $harness:ident; $($topic:ident { $($promise:ident,)* })*) => {
        $(mod $topic {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $promise() {
                let harness = super::$harness().await.expect("a store on an empty database");
                if let Err(error) = $crate::store_suite::$topic::$promise(&harness).await {
                    panic!("{error:?}");
                }
            })*
        })*
    };
}
