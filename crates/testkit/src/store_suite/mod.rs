//! The conformance suite of the `Store` port: what every driver must hold to, tried hard.
//!
//! A driver's own test builds a [`Harness`] and names it to [`store_suite!`](crate::store_suite), which makes one test of
//! each promise below, so that each has its own name, its own empty database and its own verdict. Nothing here knows a
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
pub mod hand;
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

mod random;
mod world;

use std::{any::Any, sync::Arc};

use relais_core::Store;

/// What a driver can do.
#[derive(Debug, Clone, Copy)]
pub struct Features {
    /// Whether many processes may open the same database.
    pub many_processes: bool,
}

/// A store on an empty database whose tables were made.
pub struct Harness {
    /// What the driver can do.
    pub features: Features,
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
                a_service_never_takes_more_than_its_capacity_nor_less,
                a_client_never_takes_more_than_its_share_nor_less,
                a_capacity_counts_from_its_declaration_to_its_removal,
                a_key_gets_its_first_answer_again,
                the_same_key_at_once_makes_one_task,
                a_refused_submission_does_not_use_up_its_key,
                payloads_are_carried_byte_for_byte,
                a_text_that_a_database_cannot_keep_does_not_fail_its_batch,
                a_service_that_is_gone_takes_nothing_and_the_others_do,
                a_batch_of_large_requests_is_taken,
            }
            claim {
                claimers_at_once_never_share_a_task,
                the_oldest_are_handed_out_first_whoever_asks,
                what_was_left_as_it_was_can_be_claimed_at_once,
                a_paused_service_hands_out_nothing_until_it_goes_on,
                the_lease_is_the_requests_or_else_the_services,
                what_is_submitted_for_a_worker_is_claimed,
                what_is_submitted_for_workers_goes_to_one_each,
            }
            record {
                a_task_has_at_most_one_result,
                a_replaced_worker_changes_nothing,
                events_of_one_batch_apply_in_their_order,
                nobody_touches_the_tasks_of_others,
                results_at_once_leave_one,
                a_renewal_lengthens_the_lease_and_wakes_nobody,
            }
            lease {
                a_silent_worker_loses_its_task_and_a_task_its_last_chance,
                leases_that_run_are_left_alone,
                at_most_so_many_are_taken_away_at_once,
            }
            attempt {
                a_task_that_failed_is_tried_again_until_its_policy_ends,
                the_policy_is_the_tasks_or_else_the_services,
                what_a_service_forbids_to_try_again_is_not,
                attempts_that_were_given_back_or_lost_are_kept,
                a_task_that_has_ended_can_be_done_once_more,
                a_scheduled_task_comes_into_its_queue_in_its_time,
                what_is_due_comes_once_whoever_looks,
                what_nobody_started_in_time_fails,
                an_attempt_that_takes_too_long_is_told_so,
                urgent_tasks_go_first_and_the_others_do_move,
                a_scheduled_task_goes_before_nothing_that_came_before_its_time,
                a_unique_key_has_one_task_at_a_time,
                a_task_is_not_done_once_more_while_another_has_its_key,
                a_task_that_is_done_once_more_is_tried_again_for_as_long_as_a_new_one,
                tasks_of_a_broker_are_dispatched_when_they_are_due,
                attempts_go_with_their_task,
            }
            hand {
                what_is_done_in_hand_is_one_attempt,
                nobody_shares_what_is_in_hand,
                who_has_many_in_hand_still_gets_what_comes_before_them,
                what_others_do_to_a_task_in_hand_counts,
                what_goes_back_is_anybodys,
                a_dead_process_is_replaced_and_can_do_no_harm,
                a_name_is_taken_over_at_once,
                a_process_may_have_its_tasks_fail,
                a_strict_process_waits_for_a_decision,
                leaving_gives_back,
                limits_hold_for_what_is_in_hand,
                limits_by_client_pass_over_what_is_in_hand,
                what_is_done_once_more_is_anybodys,
                time_passes_for_what_is_in_hand,
                what_is_done_in_hand_is_told,
                what_is_submitted_for_a_process_is_in_its_hand,
                what_limits_a_service_holds_for_those_who_wait,
                nobody_shares_what_is_submitted_into_a_hand,
            }
            dependency {
                a_task_waits_until_its_condition_is_met,
                one_that_comes_late_does_not_wait,
                a_failure_goes_down_the_chain,
                many_wait_for_one,
                tasks_of_one_call_wait_for_each_other,
                nobody_waits_for_the_tasks_of_others,
                ends_and_submissions_at_once_leave_nobody_waiting,
                ends_at_once_do_not_wait_in_a_circle,
                a_task_that_waits_for_others_keeps_its_dates,
                a_retry_by_hand_waits_for_nothing,
                what_others_wait_for_is_not_purged,
                an_end_that_nobody_told_of_is_found,
                what_is_in_hand_can_be_waited_for,
                a_task_of_a_broker_is_dispatched_when_it_may_go_on,
                what_belongs_together_is_found_together,
            }
            batch {
                a_batch_ends_with_its_last_task_and_is_told_once,
                ends_at_once_end_a_batch_once,
                a_batch_is_taken_whole_or_not_at_all,
                a_batch_that_is_made_again_under_its_key_is_the_same,
                an_open_batch_takes_tasks_until_it_is_closed,
                closing_and_adding_at_once_lose_nothing,
                a_chain_in_a_batch_ends_it,
                old_batches_go_and_purged_tasks_count_as_given_up,
            }
            flow {
                claimers_at_once_never_run_more_than_the_limit_and_never_less,
                no_client_runs_more_than_its_limit_and_the_others_use_the_room,
                whatever_becomes_of_tasks_no_room_is_lost,
                a_rate_is_kept_by_the_stores_clock,
                clients_take_turns_whatever_they_have_waiting,
                one_that_was_away_is_next_and_earns_nothing,
                a_client_that_weighs_more_starts_more,
                a_paused_service_hands_out_nothing_and_services_without_limits_are_free,
                limits_change_while_tasks_run,
                urgent_tasks_go_first_where_limits_hold,
                whoever_waits_for_room_is_woken,
            }
            window {
                a_window_bounds_what_is_at_the_broker_and_loses_nothing,
                a_window_holds_when_many_older_tasks_come_back,
                what_waits_for_a_window_is_published_by_its_rank,
                a_new_window_counts_what_is_at_the_broker_already,
            }
            publish {
                publishers_at_once_hold_every_limit_and_finish_all,
                whatever_becomes_of_what_was_published_no_room_is_lost,
                a_rate_limits_what_is_published,
                clients_take_turns_in_what_is_published,
                limits_change_while_tasks_are_published,
            }
            dispatch {
                what_is_to_be_dispatched_is_found_by_one_and_only_until_it_is_settled,
                what_its_caller_dispatches_is_left_to_it_for_a_while,
                the_oldest_task_at_the_broker_is_known,
                a_task_that_has_ended_is_not_dispatched,
                tasks_of_a_broker_are_not_claimed_and_those_of_others_not_dispatched,
                every_way_of_submitting_writes_what_is_to_be_dispatched,
                a_task_that_comes_back_is_dispatched_again_unless_the_broker_has_it,
                what_the_broker_has_lost_is_dispatched_again_in_batches,
                what_was_published_before_the_broker_lost_it_is_not_done,
                what_is_noted_twice_means_no_row_that_came_later,
                a_service_may_change_to_a_broker_and_back,
                what_waits_in_a_queue_of_another_name_is_dispatched_again,
                a_task_that_loses_worker_after_worker_fails,
                a_slow_worker_does_not_fail_the_task_of_its_successor,
            }
            position {
                the_place_is_exact_after_claims_cancels_and_returns,
                the_place_is_exact_among_twenty_thousand,
            }
            list {
                pages_cover_all_exactly_once_newest_first,
                filters_leave_out_the_rest,
                dates_bound_the_list,
                counts_are_those_of_the_list_and_stop_at_their_limit,
                a_chain_is_found_by_its_correlation,
            }
            audit {
                what_was_done_is_read_back_newest_first,
                what_was_done_long_ago_is_forgotten,
                what_is_about_to_be_done_is_there_before_it_is_done,
                a_session_is_open_until_it_is_ended,
                processes_tell_each_other_of_workers,
            }
            purge {
                only_what_is_too_old_is_removed,
                age_is_told_apart_to_the_moment,
                a_dry_run_counts_the_same_and_removes_nothing,
                pending_tasks_that_are_purged_leave_the_places_right,
                small_batches_get_to_the_end,
                tidying_keeps_the_places_right,
                old_keys_are_forgotten_and_only_those,
            }
            callback {
                every_end_is_told_once_and_only_where_it_was_asked_for,
                senders_at_once_never_share_a_callback,
                what_a_sender_does_not_settle_is_handed_out_again,
                every_try_is_kept_and_decides_what_follows,
                a_parked_lane_rests_and_the_others_do_not,
                lanes_are_gone_through_page_by_page,
                a_chain_is_told_in_its_order,
                progress_is_told_after_a_while_with_what_is_known_by_then,
                lists_and_resends_find_what_they_are_asked_for,
                what_has_been_due_for_too_long_is_given_up,
                a_task_whose_end_is_still_to_be_told_is_not_purged,
                an_end_is_told_as_it_was_when_the_task_is_done_once_more,
                at_most_two_signing_secrets_are_valid,
            }
            declare {
                changes_are_made_all_or_none,
                what_is_declared_is_read_back,
                a_service_with_unfinished_tasks_stays,
                a_service_that_comes_back_goes_on_counting,
                a_client_takes_its_authorizations_along,
                an_authorization_needs_both_its_ends,
                a_new_client_needs_a_secret,
                deleting_a_service_under_submissions_strands_no_task,
            }
            schedule {
                a_run_happens_once_whoever_makes_it,
                what_is_declared_of_a_schedule_is_read_back_and_its_progress_kept,
                a_paused_schedule_rests_and_goes_on_from_now,
                a_run_that_is_refused_is_noted_and_over,
                runs_do_not_overlap_where_they_must_not,
                nothing_is_fired_by_who_does_not_know_what_is_declared,
                a_run_by_hand_happens_now_and_leaves_the_others,
                runs_of_a_service_with_a_broker_are_to_be_dispatched,
            }
            wakeup {
                listeners_hear_of_work_changes_and_declarations_after_the_commit,
                nothing_changed_wakes_nobody,
                other_processes_hear_too,
                every_change_is_told_to_those_who_want_it,
                who_may_have_a_task_that_is_given_up_is_told,
                texts_reach_every_process,
            }
            serve {
                a_second_migration_does_nothing,
                the_clock_goes_on_and_answers,
                a_turn_is_taken_once_per_period_by_one_of_many,
                a_closed_store_is_unavailable,
            }
            model {
                random_operations_agree_with_a_model,
                late_repeated_and_reordered_messages_agree_with_a_model,
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
