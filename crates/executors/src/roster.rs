//! Who belongs to a gang, and who would belong to the next one: a run that is resized in place keeps the workers whose
//! devices it keeps. This file compares lists; it starts and stops nobody.

use cluster::{NodeId, Span, Time};
use perf::Tuning;
use serde::{Deserialize, Serialize};

use crate::WorkerPlace;
use crate::assignment::{Assignment, WorkerAssignment};

/// The gang of a launch; each resize has the next number, whether it succeeds or not.
pub(crate) const FIRST_GANG: u32 = 1;

/// The members of one gang, in order of rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Roster {
    pub(crate) gang: u32,
    pub(crate) members: Vec<Member>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Member {
    /// The number of the process in the run, which it keeps while its rank changes.
    pub(crate) member: u32,
    pub(crate) place: WorkerPlace,
    pub(crate) assignment: WorkerAssignment,
}

/// The wish that a run should go on with other workers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Wish {
    /// By which an order is known that is said again.
    pub(crate) until: Time,
    pub(crate) within: Span,
    pub(crate) roster: Roster,
    /// Where the new gang meets.
    pub(crate) port: u16,
    pub(crate) tuning: Option<Tuning>,
    /// NVIDIA devices whose use is measured from then on.
    pub(crate) gpus: Vec<String>,
    /// The first number that no process of the run has had.
    pub(crate) next_member: u32,
}

/// What has become of a wish.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) gang: u32,
    /// Why the run goes on as it was; none if it was resized.
    pub(crate) withdrawn: Option<String>,
}

/// A place of the next gang, by its index in the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seat {
    pub(crate) place: usize,
    /// The rank in the present gang of who stays there; none if nobody is there yet.
    pub(crate) kept: Option<usize>,
}

impl Roster {
    /// The gang as it is launched.
    pub(crate) fn at_launch(assignment: &Assignment) -> Roster {
        let members = assignment.workers.iter().zip(&assignment.order.workers).enumerate();
        let member = |(rank, (worker, place)): (usize, (&WorkerAssignment, &WorkerPlace))| Member {
            member: rank as u32,
            place: place.clone(),
            assignment: worker.clone(),
        };
        Roster { gang: FIRST_GANG, members: members.map(member).collect() }
    }

    pub(crate) fn find(&self, member: u32) -> Option<&Member> {
        self.members.iter().find(|it| it.member == member)
    }

    pub(crate) fn has(&self, member: u32) -> bool {
        self.find(member).is_some()
    }

    pub(crate) fn rank_of(&self, member: u32) -> Option<u32> {
        self.members.iter().position(|it| it.member == member).map(|rank| rank as u32)
    }

    /// How many of its node come before it.
    pub(crate) fn local_rank(&self, rank: usize) -> usize {
        let node = self.members[rank].place.node;
        self.members[..rank].iter().filter(|it| it.place.node == node).count()
    }

    /// Who takes the places of an order, in order of the new ranks. Within a role those who stay come first and keep
    /// their order: the one that holds the state of the training is still the first.
    pub(crate) fn seats(&self, places: &[WorkerPlace]) -> Vec<Seat> {
        let mut present: Vec<Option<&Member>> = self.members.iter().map(Some).collect();
        let mut seats = Vec::new();
        for (index, place) in places.iter().enumerate() {
            let same = |member: &Option<&Member>| member.is_some_and(|it| what_stays(&it.place) == what_stays(place));
            let kept = present.iter().position(same);
            if let Some(rank) = kept {
                present[rank] = None;
            }
            seats.push(Seat { place: index, kept });
        }
        seats.sort_by_key(|seat| (places[seat.place].role, seat.kept.unwrap_or(usize::MAX)));
        seats
    }
}

/// What must be the same for a process to stay: it cannot be moved to another device.
fn what_stays(place: &WorkerPlace) -> (NodeId, u16, &[u8], u16) {
    (place.node, place.role, &place.devices, place.share_thousandths)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use cluster::Bytes;

    use super::*;

    fn place(node: u32, role: u16, device: u8) -> WorkerPlace {
        let devices = vec![device];
        WorkerPlace { node: NodeId(node), role, devices, share_thousandths: 1000, millicores: 0, memory: Bytes::ZERO }
    }

    fn roster(places: &[WorkerPlace]) -> Roster {
        let member = |(member, place): (usize, &WorkerPlace)| Member {
            member: member as u32,
            place: place.clone(),
            assignment: WorkerAssignment {
                role: place.role,
                cores: None,
                memory: Bytes::ZERO,
                environment: BTreeMap::new(),
            },
        };
        Roster { gang: 1, members: places.iter().enumerate().map(member).collect() }
    }

    /// Places in order of the new ranks, each with the present rank of who stays.
    fn kept(present: &Roster, places: &[WorkerPlace]) -> Vec<(usize, Option<usize>)> {
        present.seats(places).iter().map(|seat| (seat.place, seat.kept)).collect()
    }

    #[test]
    fn those_who_keep_their_devices_stay_and_come_first() {
        let present = roster(&[place(0, 0, 1), place(0, 0, 0), place(1, 0, 0)]);
        let seats = kept(&present, &[place(0, 0, 0), place(0, 0, 2), place(0, 0, 1)]);
        assert_eq!(seats, [(2, Some(0)), (0, Some(1)), (1, None)]);
    }

    #[test]
    fn roles_are_not_mixed() {
        let present = roster(&[place(0, 0, 0), place(1, 1, 0)]);
        let seats = kept(&present, &[place(0, 0, 0), place(0, 0, 1), place(1, 1, 0)]);
        assert_eq!(seats, [(0, Some(0)), (1, None), (2, Some(1))]);
    }

    #[test]
    fn of_workers_without_devices_as_many_stay_as_there_are_places() {
        let bare = WorkerPlace { devices: Vec::new(), ..place(0, 0, 0) };
        let present = roster(&[bare.clone(), bare.clone(), bare.clone()]);
        assert_eq!(kept(&present, std::slice::from_ref(&bare)), [(0, Some(0))]);
        assert_eq!(kept(&present, &vec![bare; 4]), [(0, Some(0)), (1, Some(1)), (2, Some(2)), (3, None)]);
    }

    #[test]
    fn local_ranks_count_within_the_node() {
        let present = roster(&[place(0, 0, 0), place(1, 0, 0), place(0, 0, 1)]);
        assert_eq!([0, 1, 2].map(|rank| present.local_rank(rank)), [0, 0, 1]);
    }
}
