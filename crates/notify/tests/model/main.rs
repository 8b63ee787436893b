//! The promises about acknowledgement and replay, checked in every state that small worlds can reach, with the real rules.
//!
//! Members acknowledge, leave and join at any moment. Two instances have the same timer: each reads, decides and writes, and
//! anything may happen in between. An operator sends failed messages again, the emitter withdraws. A world with a deliberate
//! flaw must be found to be wrong, or the promises would be empty.

mod world;

use relais_explore::explore;
use world::{Flaw, World};

/// Members come and go, and nobody disturbs.
const MEMBERS: World =
    World { instances: 1, limit: 1, resends: 0, changes: 3, withdraws: false, expires: false, flaw: Flaw::None };

/// Instances get in each other's way.
const INSTANCES: World =
    World { instances: 2, limit: 1, resends: 1, changes: 1, withdraws: false, expires: false, flaw: Flaw::None };

/// Messages end before their time.
const ENDS: World =
    World { instances: 2, limit: 1, resends: 0, changes: 0, withdraws: true, expires: true, flaw: Flaw::None };

#[test]
fn a_replay_goes_to_exactly_those_who_have_not_acknowledged() {
    for (name, world, ends) in [
        ("members", MEMBERS, &["Acknowledged", "Failed"][..]),
        ("instances", INSTANCES, &["Acknowledged", "Failed"]),
        ("ends", ENDS, &["Acknowledged", "Failed", "Expired", "Withdrawn"]),
    ] {
        let explored = explore(world).unwrap_or_else(|broken| panic!("{name}: {broken}"));
        println!("{name}: {} states, {} steps, ends {:?}", explored.states, explored.steps, explored.ends);
        let reached: Vec<&str> = explored.ends.keys().map(String::as_str).collect();
        for end in ends {
            assert!(reached.contains(end), "{name} never ends {end}: {reached:?}");
        }
    }
}

#[test]
fn worlds_that_are_wrong_on_purpose_are_found_out() {
    for (flaw, promise) in [
        (Flaw::Unfenced, "an open message awaits somebody"),
        (Flaw::ReplaysToAll, "a replay goes to exactly those who have not acknowledged"),
        (Flaw::AwaitsWhoLeft, "an open message awaits somebody"),
        (Flaw::AwaitsWhoJoined, "an open message awaits somebody"),
        (Flaw::ForgetsAcknowledgements, "an acknowledgement is never forgotten"),
    ] {
        let world = World { flaw, ..if flaw == Flaw::Unfenced { INSTANCES } else { MEMBERS } };
        let broken = explore(world).err().unwrap_or_else(|| panic!("{flaw:?} was found to be right"));
        assert!(broken.promise.contains(promise), "{flaw:?}: {broken}");
    }
}
