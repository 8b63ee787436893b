//! What is promised about tasks, checked in every state that small worlds can reach, with the real
//! [`apply`](relais_core::apply) as what a task does.
//!
//! Four worlds: workers on the built-in queue ([`lease`]), workers behind a broker ([`broker`]), tasks that wait for others
//! ([`chain`]), and processes on the store itself ([`hand`]). In each, whatever may go wrong does, in every order. A world that
//! is wrong on purpose must be found out, or the promises would be empty.

#![expect(clippy::print_stdout, reason = "how much was looked at")]

mod broker;
mod chain;
mod explore;
mod hand;
mod kept;
mod lease;

use broker::Broker;
use chain::Chain;
use explore::{Explored, Model, explore};
use hand::Hand;
use lease::{Lease, Word};
use relais_core::Condition;

/// One task, and all that workers can say.
const ONE: Lease = Lease {
    tasks: 1,
    under_way: 2,
    delivery_limit: 2,
    returns: 1,
    retries: 0,
    words: &[Word::Started, Word::Progress, Word::Renewed],
    flaw: lease::Flaw::None,
};

/// Two tasks, so that a worker has one after the other.
const TWO: Lease = Lease { tasks: 2, under_way: 1, returns: 0, words: &[], ..ONE };

/// One task that is tried again when it has failed.
const AGAIN: Lease = Lease { retries: 2, words: &[Word::Started], ..ONE };

/// Publishers that get in each other's way, and a broker that forgets.
const PUBLISHERS: Broker = Broker {
    publishers: 2,
    workers: 1,
    queue_losses: 2,
    copies: 2,
    under_way: 1,
    words: &[],
    delivery_limit: 2,
    retries: 0,
    careful: false,
    flaw: broker::Flaw::None,
};

/// Workers that get in each other's way.
const WORKERS: Broker = Broker {
    publishers: 0,
    workers: 2,
    queue_losses: 0,
    under_way: 2,
    words: &[broker::Word::Started, broker::Word::Progress, broker::Word::GivenBack],
    ..PUBLISHERS
};

/// A task that is tried again when it has failed, and a broker that hands out what was said once more.
const FAILURES: Broker = Broker {
    publishers: 1,
    workers: 1,
    queue_losses: 0,
    copies: 1,
    under_way: 1,
    words: &[broker::Word::Started, broker::Word::Failure],
    retries: 1,
    ..PUBLISHERS
};

/// Workers that are cut off, are replaced, and tell of their failure all the same.
const SLOW: Broker =
    Broker { publishers: 0, workers: 2, copies: 2, retries: 0, careful: true, delivery_limit: 3, ..FAILURES };

/// Two tasks, one that waits for both, and one that waits for that one and for the first.
const DIAMOND: Chain =
    Chain { after: &[&[], &[], &[0, 1], &[0, 2]], when: Condition::AllSucceeded, flaw: chain::Flaw::None };

/// One task, two processes that may have it in hand, and outsiders.
const IN_HAND: Hand = Hand {
    tasks: 1,
    processes: 2,
    worker: false,
    written: false,
    fail: false,
    under_way: 1,
    delivery_limit: 2,
    retries: 0,
    troubles: 3,
    flaw: hand::Flaw::None,
};

/// A worker elsewhere beside a process.
const BESIDE: Hand = Hand { processes: 1, worker: true, retries: 1, ..IN_HAND };

/// Two tasks in one hand.
const HANDFUL: Hand = Hand { tasks: 2, processes: 1, troubles: 2, ..IN_HAND };

/// A service whose flow is limited, and processes that would rather have their tasks fail.
const LIMITED: Hand = Hand { written: true, fail: true, troubles: 2, ..IN_HAND };

fn holds(name: &str, model: impl Model) -> Explored {
    let explored = explore(model).unwrap_or_else(|broken| panic!("{name}: {broken}"));
    println!("{name}: {} states, {} steps, ends {:?}", explored.states, explored.steps, explored.ends);
    explored
}

fn fails(promise: &str, model: impl Model) {
    let broken = explore(model).expect_err("a world that is wrong on purpose was found to be right");
    println!("{broken}");
    assert!(broken.promise.contains(promise), "{promise:?} was to be broken first");
}

fn reaches(explored: &Explored, ends: &[&str]) {
    for end in ends {
        assert!(explored.ends.contains_key(*end), "{end} can not be reached: {:?}", explored.ends);
    }
}

#[test]
fn one_task_on_the_built_in_queue_keeps_every_promise() {
    reaches(&holds("one task under a lease", ONE), &["SUCCESS", "FAILURE", "CANCELLED"]);
}

#[test]
fn two_tasks_on_the_built_in_queue_keep_every_promise() {
    reaches(&holds("two tasks under a lease", TWO), &["SUCCESS and SUCCESS", "FAILURE and CANCELLED"]);
}

#[test]
fn a_retried_task_keeps_every_promise() {
    reaches(&holds("one task that is tried again", AGAIN), &["SUCCESS", "FAILURE", "CANCELLED"]);
}

#[test]
fn publishers_and_a_forgetful_broker_keep_every_promise() {
    reaches(&holds("two publishers", PUBLISHERS), &["SUCCESS", "CANCELLED"]);
}

#[test]
fn workers_behind_a_broker_keep_every_promise() {
    reaches(&holds("two workers behind a broker", WORKERS), &["SUCCESS", "FAILURE", "CANCELLED"]);
}

#[test]
fn failures_behind_a_broker_keep_every_promise() {
    reaches(&holds("a failure behind a broker", FAILURES), &["SUCCESS", "FAILURE", "CANCELLED"]);
}

#[test]
fn slow_workers_behind_a_broker_keep_every_promise() {
    reaches(&holds("slow workers behind a broker", SLOW), &["SUCCESS", "FAILURE", "CANCELLED"]);
}

#[test]
fn tasks_that_wait_for_others_keep_every_promise() {
    let chain = |when| Chain { after: &[&[], &[], &[0, 1]], when, ..DIAMOND };
    let all = holds("a chain, if all succeed", DIAMOND);
    reaches(&all, &["SUCCESS and SUCCESS and SUCCESS and SUCCESS", "SUCCESS and FAILURE and FAILURE and FAILURE"]);
    let ended = holds("a chain, when all have ended", chain(Condition::AllEnded));
    reaches(&ended, &["FAILURE and CANCELLED and SUCCESS"]);
    let any = holds("a chain, when any has ended", chain(Condition::AnyEnded));
    reaches(&any, &["FAILURE and FAILURE and SUCCESS"]);
}

#[test]
fn the_model_finds_flaws_in_dependencies() {
    let wrong = |flaw| Chain { flaw, ..DIAMOND };
    let stuck = "from every state an end can be reached";
    fails(stuck, wrong(chain::Flaw::Unlocked));
    fails(stuck, wrong(chain::Flaw::NotNoted));
    fails(stuck, wrong(chain::Flaw::Forgetful));
    fails(stuck, wrong(chain::Flaw::Ruthless));
    fails("nobody goes on before", wrong(chain::Flaw::Eager));
}

#[test]
fn instance_leases_keep_every_promise() {
    reaches(&holds("one task in hand", IN_HAND), &["SUCCESS", "FAILURE", "CANCELLED"]);
}

#[test]
fn an_instance_beside_a_worker_keeps_every_promise() {
    reaches(&holds("one task in hand or under a lease", BESIDE), &["SUCCESS", "FAILURE", "CANCELLED"]);
}

#[test]
fn an_instance_lease_of_two_tasks_keeps_every_promise() {
    reaches(&holds("two tasks in hand", HANDFUL), &["SUCCESS and SUCCESS", "FAILURE and CANCELLED"]);
}

#[test]
fn an_instance_lease_under_flow_limits_keeps_every_promise() {
    reaches(&holds("one task in hand, written at once", LIMITED), &["SUCCESS", "FAILURE", "CANCELLED"]);
}

#[test]
fn the_model_finds_flaws_in_leases() {
    let wrong = |flaw| Lease { flaw, ..ONE };
    fails("a message of an older attempt changes nothing", wrong(lease::Flaw::Unfenced));
    fails("never two workers that both hold the current attempt", wrong(lease::Flaw::SameAttempt));
    fails("a final state never changes", wrong(lease::Flaw::Undead));
    fails("from every state an end can be reached", wrong(lease::Flaw::NoRescue));
    fails("a lease that runs is left alone", wrong(lease::Flaw::Impatient));
    fails("an attempt fails at most once", Lease { flaw: lease::Flaw::Unheld, ..AGAIN });
}

#[test]
fn the_model_finds_flaws_in_dispatch() {
    let wrong = |flaw| Broker { flaw, ..PUBLISHERS };
    let lost = "an unfinished task is in the store's rows, in the broker, or with a worker";
    fails(lost, wrong(broker::Flaw::SettledFirst));
    fails(lost, wrong(broker::Flaw::NoRounds));
    fails(lost, wrong(broker::Flaw::OldRounds));
    fails(lost, wrong(broker::Flaw::NotNoted));
    fails("from every state an end can be reached", wrong(broker::Flaw::NoSweep));
    let wrong = |flaw| Broker { flaw, ..FAILURES };
    fails("a failure that was counted is not counted again", wrong(broker::Flaw::NoDoubt));
    fails(lost, wrong(broker::Flaw::Deaf));
    let wrong = |flaw| Broker { flaw, ..SLOW };
    fails("a slow worker does not fail the task of its successor", wrong(broker::Flaw::Usurped));
    fails(lost, wrong(broker::Flaw::Strict));
}

#[test]
fn the_model_finds_flaws_in_instance_leases() {
    let wrong = |flaw| Hand { flaw, ..IN_HAND };
    fails("nothing is in two hands", wrong(hand::Flaw::Shared));
    fails("a final state never changes", wrong(hand::Flaw::Unguarded));
    fails("what somebody else has is not changed", wrong(hand::Flaw::Unseen));
    fails("nobody keeps a task from others that it does not have", wrong(hand::Flaw::Kept));
    fails("from every state an end can be reached", Hand { flaw: hand::Flaw::NoStrays, ..LIMITED });
    fails("nobody keeps a task from others that it does not have", wrong(hand::Flaw::Immortal));
    fails("never two at the same attempt", wrong(hand::Flaw::Uncounted));
    fails("never two at the same attempt", wrong(hand::Flaw::Unbegun));
    fails("nobody keeps a task from others that it does not have", Hand { flaw: hand::Flaw::Listed, ..HANDFUL });
}
