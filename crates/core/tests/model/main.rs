//! The promises about tasks, checked in every state that small worlds can reach, with the real
//! [`apply`](relais_core::apply).
//!
//! Four worlds: workers on the built-in queue ([`lease`]), workers behind a broker ([`broker`]), dependencies
//! ([`chain`]), and instances ([`instance_leases`]). In each, everything that can go wrong does, in every order. A
//! world with a deliberate flaw must be found to be wrong, or the promises would be empty.

#![expect(clippy::print_stdout, reason = "how much was looked at")]

mod broker;
mod chain;
mod instance_leases;
mod kept;
mod lease;

use broker::Broker;
use chain::Chain;
use instance_leases::InstanceLeases;
use lease::{Lease, Word};
use relais_core::Condition;
use relais_explore::{Explored, Model, explore};

/// One task, and all messages that workers can send.
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

/// One task that is retried when it has failed.
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

/// A task that is retried when it has failed, and a broker that redelivers messages.
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

/// Workers that are cut off, are replaced, and report their failure all the same.
const SLOW: Broker =
    Broker { publishers: 0, workers: 2, copies: 2, retries: 0, careful: true, delivery_limit: 3, ..FAILURES };

/// Two tasks, one that depends on both, and one that depends on that one and on the first.
const DIAMOND: Chain =
    Chain { after: &[&[], &[], &[0, 1], &[0, 2]], when: Condition::AllSucceeded, flaw: chain::Flaw::None };

/// One task, two instances that may lease it, and other processes.
const LEASED: InstanceLeases = InstanceLeases {
    tasks: 1,
    processes: 2,
    worker: false,
    written: false,
    fail: false,
    under_way: 1,
    delivery_limit: 2,
    retries: 0,
    troubles: 3,
    flaw: instance_leases::Flaw::None,
};

/// A worker over HTTP beside an instance.
const BESIDE: InstanceLeases = InstanceLeases { processes: 1, worker: true, retries: 1, ..LEASED };

/// Two tasks in one lease.
const TWO_LEASED: InstanceLeases = InstanceLeases { tasks: 2, processes: 1, troubles: 2, ..LEASED };

/// A service with flow limits, and instances with the crash policy `fail`.
const LIMITED: InstanceLeases = InstanceLeases { written: true, fail: true, troubles: 2, ..LEASED };

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
    reaches(&holds("one task leased by an instance", LEASED), &["SUCCESS", "FAILURE", "CANCELLED"]);
}

#[test]
fn an_instance_beside_a_worker_keeps_every_promise() {
    reaches(&holds("one task leased by an instance or a worker", BESIDE), &["SUCCESS", "FAILURE", "CANCELLED"]);
}

#[test]
fn an_instance_lease_of_two_tasks_keeps_every_promise() {
    reaches(&holds("two tasks leased by an instance", TWO_LEASED), &["SUCCESS and SUCCESS", "FAILURE and CANCELLED"]);
}

#[test]
fn an_instance_lease_under_flow_limits_keeps_every_promise() {
    reaches(&holds("one task leased by an instance, written at once", LIMITED), &["SUCCESS", "FAILURE", "CANCELLED"]);
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
    fails(lost, wrong(broker::Flaw::AcknowledgedFirst));
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
    let wrong = |flaw| InstanceLeases { flaw, ..LEASED };
    fails("no task is leased twice", wrong(instance_leases::Flaw::Shared));
    fails("a final state never changes", wrong(instance_leases::Flaw::Unguarded));
    fails("a task of another is not changed", wrong(instance_leases::Flaw::Unseen));
    fails("nobody keeps a task from others that it does not have", wrong(instance_leases::Flaw::Kept));
    fails(
        "from every state an end can be reached",
        InstanceLeases { flaw: instance_leases::Flaw::NoRecovery, ..LIMITED },
    );
    fails("nobody keeps a task from others that it does not have", wrong(instance_leases::Flaw::Immortal));
    fails("never two at the same attempt", wrong(instance_leases::Flaw::Uncounted));
    fails("never two at the same attempt", wrong(instance_leases::Flaw::Unbegun));
    fails(
        "nobody keeps a task from others that it does not have",
        InstanceLeases { flaw: instance_leases::Flaw::Listed, ..TWO_LEASED },
    );
}
