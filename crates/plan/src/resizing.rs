//! Changing the workers of a run in place: some stay, some come, some go, and the run goes on. What that needs of two
//! placements, and what one takes beyond the other.

use std::collections::BTreeMap;
use std::sync::Arc;

use cluster::{Bytes, Cluster, Grain, NodeId, Placement, SliceSet, Slot, Time};
use perf::Tuning;
use serde::{Deserialize, Serialize};

use crate::claim::Allotment;

/// A change of workers that is under way. Until it is done or has failed, the run has both what it held and what it is
/// to hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resizing {
    pub to: Arc<Allotment>,
    /// The batch with which it then goes on, where that is tuned.
    pub tuning: Option<Tuning>,
    /// By then it has happened, or everything is as it was.
    pub until: Time,
}

/// Whether a run can get from one placement to the other without a restart: on whole GPUs of the same kind, one to a
/// worker, with the same roles, and with at least one worker that stays where it is. Of workers with several GPUs each
/// one stays only if it keeps all of them, and how they are dealt out depends on all that there are: such a run may keep
/// GPUs and none of its workers.
pub fn can_resize(cluster: &Cluster, from: &Placement, to: &Placement) -> bool {
    let alike = roles(from).is_some_and(|held| roles(to) == Some(held));
    from != to && from.kind(cluster) == to.kind(cluster) && alike && shares_a_device(from, to)
}

/// What `placement` takes beyond `held`, node by node and role by role, of whole devices. Taken together with `held` it is
/// what both need; what `held` takes beyond `placement` is then what can be given back.
pub fn beyond(placement: &Placement, held: &Placement) -> Placement {
    let held = merged(held);
    let more = merged(placement).into_iter().filter_map(|(place, slot)| extra(slot, held.get(&place)));
    Placement::new(more.collect())
}

/// The roles there are, and whether they have devices. Nothing if the device of a worker is not its own: if some have
/// parts of devices, or another number of them than one.
fn roles(placement: &Placement) -> Option<BTreeMap<u8, bool>> {
    let role = |slot: &Slot| {
        let devices = slot.slices.devices;
        let one_each = devices.is_empty() || devices.count() == slot.tasks;
        (slot.slices.grain == Grain::Whole && one_each).then_some((slot.role, devices.is_empty()))
    };
    placement.slots().iter().map(role).collect()
}

fn shares_a_device(one: &Placement, other: &Placement) -> bool {
    let other = merged(other);
    let stays = |slot: &Slot| {
        let same = other.get(&(slot.node, slot.role));
        same.is_some_and(|same| same.slices.devices.overlaps(slot.slices.devices))
    };
    one.slots().iter().any(stays)
}

/// One slot for each role on each node.
fn merged(placement: &Placement) -> BTreeMap<(NodeId, u8), Slot> {
    let mut slots: BTreeMap<(NodeId, u8), Slot> = BTreeMap::new();
    for slot in placement.slots() {
        let add = |known: &mut Slot| {
            known.tasks += slot.tasks;
            known.slices.devices = known.slices.devices.union(slot.slices.devices);
            known.millicores += slot.millicores;
            known.memory += slot.memory;
        };
        slots.entry((slot.node, slot.role)).and_modify(add).or_insert(*slot);
    }
    slots
}

/// Tasks with devices are told apart by these, those without by their number.
fn extra(slot: Slot, held: Option<&Slot>) -> Option<Slot> {
    let Some(held) = held else { return Some(slot) };
    let devices = slot.slices.devices.without(held.slices.devices);
    let tasks = match slot.slices.devices.is_empty() {
        true => slot.tasks.saturating_sub(held.tasks),
        false => devices.count().div_ceil(slot.slices.devices.count() / slot.tasks),
    };
    (tasks > 0).then(|| Slot {
        tasks,
        slices: SliceSet { devices, ..slot.slices },
        millicores: slot.millicores / slot.tasks * tasks,
        memory: Bytes::new(slot.memory.get() / u64::from(slot.tasks)) * tasks,
        ..slot
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::{ClusterDraft, Devices};

    /// Workers with so many GPUs each, and with a core and a GiB.
    fn slot(node: u32, devices: u64, each: u32) -> Slot {
        let slices = SliceSet { devices: Devices(devices), grain: Grain::Whole };
        let tasks = slices.devices.count() / each;
        let (millicores, memory) = (1000 * tasks, Bytes::gib(1) * tasks);
        Slot { node: NodeId(node), role: 0, tasks, slices, millicores, memory }
    }

    fn servers(node: u32, tasks: u32) -> Slot {
        let (millicores, memory) = (500 * tasks, Bytes::ZERO);
        Slot { node: NodeId(node), role: 1, tasks, slices: SliceSet::NONE, millicores, memory }
    }

    /// Cores, memory in GiB and devices, node by node.
    fn sums(placements: &[&Placement]) -> BTreeMap<NodeId, (i64, i64, Devices)> {
        let mut sums: BTreeMap<NodeId, (i64, i64, Devices)> = BTreeMap::new();
        for slot in placements.iter().flat_map(|placement| placement.slots()) {
            let (millicores, memory, devices) = sums.entry(slot.node).or_default();
            *millicores += i64::from(slot.millicores);
            *memory += slot.memory.as_gib() as i64;
            assert!(!devices.overlaps(slot.slices.devices), "nothing is counted twice");
            *devices = devices.union(slot.slices.devices);
        }
        sums
    }

    #[test]
    fn what_is_taken_beyond_the_old_and_given_back_beyond_the_new_leaves_the_new() {
        let changes = [
            (vec![slot(0, 0b0001, 1)], vec![slot(0, 0b1111, 1)]),
            (vec![slot(0, 0b0011, 1)], vec![slot(0, 0b0110, 1), slot(1, 0b1, 1)]),
            (vec![slot(0, 0b1111, 2), servers(2, 1)], vec![slot(0, 0b0110, 2), servers(2, 2), servers(3, 1)]),
            (vec![slot(0, 0b0011, 1), slot(0, 0b1100, 1)], vec![slot(0, 0b0111, 1)]),
            (vec![slot(0, 0b0011, 1), servers(0, 3)], vec![slot(0, 0b0011, 1), servers(0, 1)]),
        ];
        for (old, new) in changes {
            let (old, new) = (Placement::new(old), Placement::new(new));
            let both = sums(&[&old, &beyond(&new, &old)]);
            assert_eq!(both, sums(&[&new, &beyond(&old, &new)]), "{old:?} and {new:?}");
        }
    }

    #[test]
    fn three_workers_of_which_one_stays_are_counted_as_three() {
        let (old, new) = (Placement::new(vec![slot(0, 0b0011, 1)]), Placement::new(vec![slot(0, 0b0110, 1)]));
        assert_eq!(beyond(&new, &old).slots(), [slot(0, 0b0100, 1)]);
        assert_eq!(sums(&[&old, &beyond(&new, &old)])[&NodeId(0)], (3000, 3, Devices(0b0111)));
    }

    #[test]
    fn a_change_in_place_keeps_the_kind_the_roles_and_a_worker() {
        let (cluster, _) = ClusterDraft::parse_short("1x4 t4, 1x4 a100").unwrap().build().unwrap();
        let can = |from: Vec<Slot>, to: Vec<Slot>| can_resize(&cluster, &Placement::new(from), &Placement::new(to));
        assert!(can(vec![slot(0, 0b0011, 1)], vec![slot(0, 0b0110, 1)]));
        assert!(!can(vec![slot(0, 0b0011, 1)], vec![slot(0, 0b1100, 1)]), "nobody stays");
        assert!(!can(vec![slot(0, 0b0011, 1)], vec![slot(1, 0b0011, 1)]), "another kind");
        assert!(!can(vec![slot(0, 0b0011, 1)], vec![slot(0, 0b0011, 1)]), "nothing changes");
        let part = |devices: u64| {
            let grain = Grain::Share { thousandths: 500, memory: Bytes::ZERO };
            Slot { slices: SliceSet { devices: Devices(devices), grain }, ..slot(0, devices, 1) }
        };
        assert!(!can(vec![part(0b0001)], vec![part(0b0011)]), "parts of GPUs");
        assert!(!can(vec![slot(0, 0b0011, 1)], vec![slot(0, 0b0001, 1), servers(0, 1)]), "another role");
        assert!(!can(vec![slot(0, 0b0110, 2)], vec![slot(0, 0b1111, 2)]), "1 and 2 become 0 and 1, 2 and 3");
        let shared = Slot { tasks: 2, ..slot(0, 0b0001, 1) };
        assert!(!can(vec![shared], vec![slot(0, 0b0011, 1)]), "several workers on one GPU");
    }
}
