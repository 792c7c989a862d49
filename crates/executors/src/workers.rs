//! From a placement, which speaks of slots, to the workers that fill them, in order of rank.

use cluster::{Bytes, Cluster, Placement, Slot};

use crate::WorkerPlace;

/// One worker for each task: those of role 0 first, then the other roles. Ranks follow the network, so that neighbours
/// in a ring are neighbours in the rack. The devices of a slot are dealt evenly to its tasks.
pub fn workers_of(placement: &Placement, cluster: &Cluster) -> Vec<WorkerPlace> {
    let mut slots: Vec<&Slot> = placement.slots().iter().collect();
    slots.sort_by_key(|slot| (slot.role, cluster.switch_of(slot.node), cluster.node(slot.node).rack, slot.node));
    slots.into_iter().flat_map(tasks_of).collect()
}

fn tasks_of(slot: &Slot) -> impl Iterator<Item = WorkerPlace> {
    let devices: Vec<u8> = slot.slices.devices.iter().collect();
    let tasks = slot.tasks as usize;
    (0..tasks).map(move |task| WorkerPlace {
        node: slot.node,
        role: u16::from(slot.role),
        devices: dealt(&devices, task, tasks),
        share_thousandths: slot.slices.grain.share().as_thousandths().min(1000) as u16,
        millicores: slot.millicores / slot.tasks,
        memory: Bytes::new(slot.memory.get() / u64::from(slot.tasks)),
    })
}

/// Tasks that are more than the devices share them, as evenly as it goes.
fn dealt(devices: &[u8], task: usize, tasks: usize) -> Vec<u8> {
    if devices.is_empty() {
        return Vec::new();
    }
    let first = task * devices.len() / tasks;
    let end = (task + 1) * devices.len() / tasks;
    devices[first..end.max(first + 1)].to_vec()
}

#[cfg(test)]
mod tests {
    use cluster::{ClusterDraft, Devices, Grain, NodeId, SliceSet};

    use super::*;

    fn slot(node: u32, role: u8, tasks: u32, devices: u64) -> Slot {
        let slices = SliceSet { devices: Devices(devices), grain: Grain::Whole };
        Slot { node: NodeId(node), role, tasks, slices, millicores: 4000, memory: Bytes::gib(8) }
    }

    fn dealt_out(slots: Vec<Slot>) -> Vec<String> {
        let (cluster, _) = ClusterDraft::parse_short("2x4 t4").unwrap().build().unwrap();
        let line = |place: &WorkerPlace| format!("role {} {} {:?}", place.role, place.node, place.devices);
        workers_of(&Placement::new(slots), &cluster).iter().map(line).collect()
    }

    #[test]
    fn devices_are_dealt_evenly_and_workers_come_before_other_roles() {
        let workers = dealt_out(vec![slot(0, 1, 1, 0), slot(0, 0, 2, 0b1111), slot(1, 0, 1, 0b0100)]);
        assert_eq!(workers, ["role 0 node 0 [0, 1]", "role 0 node 0 [2, 3]", "role 0 node 1 [2]", "role 1 node 0 []"]);
    }

    #[test]
    fn tasks_that_are_more_than_devices_share_them() {
        let workers = dealt_out(vec![slot(0, 0, 4, 0b11)]);
        assert_eq!(workers.iter().filter(|line| line.ends_with("[0]")).count(), 2);
        assert_eq!(workers.iter().filter(|line| line.ends_with("[1]")).count(), 2);
    }

    #[test]
    fn cores_and_memory_of_a_slot_are_split_among_its_tasks() {
        let (cluster, _) = ClusterDraft::parse_short("1x4 t4").unwrap().build().unwrap();
        let workers = workers_of(&Placement::new(vec![slot(0, 0, 4, 0b1111)]), &cluster);
        assert_eq!((workers[3].millicores, workers[3].memory), (1000, Bytes::gib(2)));
    }
}
