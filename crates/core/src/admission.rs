//! Admission: the one place that decides whether a submission is accepted.
//!
//! A driver locks the queues that a batch of submissions is for, reads how full they are, and asks [`Admission`] for
//! each submission in turn. Because the queues stay locked until the commit, the answer is exact: never one too many,
//! and never a refusal while there was room.

use std::collections::HashMap;

use crate::{ClientKey, ServiceKey};

/// Why a submission was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The service has as many pending tasks as it may have.
    #[error("the service's capacity is reached")]
    ServiceFull,
    /// The client has as many pending tasks on the service as it may have.
    #[error("the client's capacity on the service is reached")]
    ClientFull,
    /// The idempotency key was used for another request.
    #[error("the idempotency key was used for another request")]
    KeyReused,
    /// The service was removed a moment ago.
    #[error("the service does not exist any more")]
    ServiceGone,
    /// A dependency does not exist: it was purged, belongs to another client, or was refused itself.
    #[error("there is no task to wait for")]
    PrerequisiteNotFound,
    /// The batch does not exist, or belongs to another client.
    #[error("there is no such batch")]
    BatchNotFound,
    /// The batch is closed.
    #[error("the batch is closed")]
    BatchClosed,
}

/// How full a queue is, and how full it may be.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// The pending tasks.
    pub pending: u64,
    /// Delayed and dependent tasks, which count against the capacity too.
    pub waiting: u64,
    /// The capacity; none means no limit.
    pub capacity: Option<u64>,
}

impl Room {
    fn is_full(self) -> bool {
        self.capacity.is_some_and(|capacity| self.pending + self.waiting >= capacity)
    }
}

/// The capacity that one batch of submissions shares.
#[derive(Debug, Default)]
pub struct Admission {
    services: HashMap<ServiceKey, Room>,
    clients: HashMap<(ServiceKey, ClientKey), Room>,
}

impl Admission {
    /// Adds a service's queue.
    pub fn set_service(&mut self, service: ServiceKey, room: Room) {
        self.services.insert(service, room);
    }

    /// Adds a client's part of a service's queue.
    pub fn set_client(&mut self, service: ServiceKey, client: ClientKey, room: Room) {
        self.clients.insert((service, client), room);
    }

    /// Takes a place for one task and returns its position in the queue, or refuses it. A `waiting` task gets the
    /// position that it would have.
    pub fn admit(&mut self, service: ServiceKey, client: ClientKey, waiting: bool) -> Result<u64, Refusal> {
        let room = self.services.get_mut(&service).ok_or(Refusal::ServiceGone)?;
        if room.is_full() {
            return Err(Refusal::ServiceFull);
        }
        let share = self.clients.entry((service, client)).or_insert(Room { pending: 0, waiting: 0, capacity: None });
        if share.is_full() {
            return Err(Refusal::ClientFull);
        }
        self.admit_anyway(service, client, waiting)
    }

    /// Takes a place even if the queue is full.
    pub fn admit_anyway(&mut self, service: ServiceKey, client: ClientKey, waiting: bool) -> Result<u64, Refusal> {
        let room = self.services.get_mut(&service).ok_or(Refusal::ServiceGone)?;
        let share = self.clients.entry((service, client)).or_insert(Room { pending: 0, waiting: 0, capacity: None });
        let position = room.pending + 1;
        for room in [share, room] {
            *(if waiting { &mut room.waiting } else { &mut room.pending }) += 1;
        }
        Ok(position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESIZE: ServiceKey = ServiceKey(1);
    const ALICE: ClientKey = ClientKey(1);
    const BOB: ClientKey = ClientKey(2);

    #[test]
    fn a_client_that_is_full_leaves_the_room_to_the_others() {
        let mut admission = Admission::default();
        admission.set_service(RESIZE, Room { pending: 6, waiting: 1, capacity: Some(10) });
        admission.set_client(RESIZE, ALICE, Room { pending: 4, waiting: 0, capacity: Some(5) });
        assert_eq!(admission.admit(RESIZE, ALICE, true), Ok(7));
        assert_eq!(admission.admit(RESIZE, ALICE, false), Err(Refusal::ClientFull));
        assert_eq!(admission.admit(RESIZE, BOB, false), Ok(7));
        assert_eq!(admission.admit(RESIZE, BOB, false), Ok(8));
        assert_eq!(admission.admit(RESIZE, BOB, false), Err(Refusal::ServiceFull));
    }

    #[test]
    fn without_a_capacity_there_is_always_room_and_with_zero_never() {
        let mut admission = Admission::default();
        admission.set_service(RESIZE, Room { waiting: 0, pending: u64::from(u32::MAX), capacity: None });
        assert!(admission.admit(RESIZE, ALICE, false).is_ok());
        admission.set_service(RESIZE, Room { pending: 0, waiting: 0, capacity: Some(0) });
        assert_eq!(admission.admit(RESIZE, ALICE, false), Err(Refusal::ServiceFull));
        assert_eq!(admission.admit(ServiceKey(9), ALICE, false), Err(Refusal::ServiceGone));
    }
}
