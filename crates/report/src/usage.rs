//! How many GPUs are in use, free, and free but stranded, kept up to date node by node: a change costs as much as the
//! nodes it touches, however large the cluster.

use cluster::{Cluster, Devices, Gpus, NodeDraft, NodeId, Placement};
use plan::Availability;

#[derive(Debug, Clone, Default)]
pub(crate) struct Usage {
    nodes: Vec<NodeUse>,
    sums: Sums,
}

/// In thousandths of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Sums {
    /// Devices that work, on nodes that take jobs.
    pub(crate) in_service: u64,
    /// Of these, what is held. What is still held on a node out of service does not count.
    pub(crate) busy: u64,
    /// Of these, what nobody holds.
    pub(crate) free: u64,
    /// Of what is free, what lies on nodes where something is held: no whole node can be made of it.
    pub(crate) stranded: u64,
}

#[derive(Debug, Clone, Copy)]
struct NodeUse {
    gpus: u32,
    in_service: u64,
    held: u64,
}

impl Usage {
    pub(crate) fn new(cluster: &Cluster) -> Usage {
        let mut usage = Usage { nodes: Vec::with_capacity(cluster.node_count()), sums: Sums::default() };
        cluster.nodes().for_each(|(_, node)| usage.add(u32::from(node.gpus)));
        usage
    }

    pub(crate) fn sums(&self) -> Sums {
        self.sums
    }

    pub(crate) fn join(&mut self, draft: &NodeDraft) {
        for _ in 0..draft.count {
            self.add(draft.gpus as u32);
        }
    }

    fn add(&mut self, gpus: u32) {
        let node = NodeUse { gpus, in_service: thousandths(Gpus::whole(gpus)), held: 0 };
        self.nodes.push(node);
        self.sums.add(node.sums());
    }

    pub(crate) fn set(&mut self, node: NodeId, availability: Availability, broken: Devices) {
        self.change(node, |node| {
            let working = Devices::first(node.gpus).without(broken).count();
            let open = availability == Availability::Open;
            node.in_service = if open { thousandths(Gpus::whole(working)) } else { 0 };
        });
    }

    pub(crate) fn take(&mut self, placement: &Placement) {
        for slot in placement.slots() {
            self.change(slot.node, |node| node.held += thousandths(slot.slices.gpus()));
        }
    }

    pub(crate) fn give(&mut self, placement: &Placement) {
        for slot in placement.slots() {
            self.change(slot.node, |node| node.held -= thousandths(slot.slices.gpus()));
        }
    }

    fn change(&mut self, id: NodeId, change: impl FnOnce(&mut NodeUse)) {
        let node = &mut self.nodes[id.0 as usize];
        self.sums.remove(node.sums());
        change(node);
        self.sums.add(node.sums());
    }
}

impl NodeUse {
    fn sums(self) -> Sums {
        // A run may hold a device for a moment after it broke.
        let busy = self.held.min(self.in_service);
        let free = self.in_service - busy;
        Sums { in_service: self.in_service, busy, free, stranded: if self.held > 0 { free } else { 0 } }
    }
}

impl Sums {
    fn add(&mut self, other: Sums) {
        self.in_service += other.in_service;
        self.busy += other.busy;
        self.free += other.free;
        self.stranded += other.stranded;
    }

    fn remove(&mut self, other: Sums) {
        self.in_service -= other.in_service;
        self.busy -= other.busy;
        self.free -= other.free;
        self.stranded -= other.stranded;
    }
}

fn thousandths(gpus: Gpus) -> u64 {
    u64::from(gpus.as_thousandths())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tale::{cluster, placement};

    /// GPUs in service, busy, free, stranded.
    fn gpus(usage: &Usage) -> [u64; 4] {
        let Sums { in_service, busy, free, stranded } = usage.sums();
        [in_service, busy, free, stranded].map(|thousandths| thousandths / 1000)
    }

    #[test]
    fn what_is_free_on_a_node_in_use_is_stranded() {
        let mut usage = Usage::new(&cluster("2x4 t4"));
        assert_eq!(gpus(&usage), [8, 0, 8, 0]);
        usage.take(&placement(&[(0, 0b0001)]));
        assert_eq!(gpus(&usage), [8, 1, 7, 3]);
        usage.take(&placement(&[(0, 0b1110)]));
        assert_eq!(gpus(&usage), [8, 4, 4, 0]);
        usage.give(&placement(&[(0, 0b0001)]));
        usage.give(&placement(&[(0, 0b1110)]));
        assert_eq!(gpus(&usage), [8, 0, 8, 0]);
    }

    #[test]
    fn a_drained_node_is_out_of_service_with_all_that_is_held_on_it() {
        let mut usage = Usage::new(&cluster("2x4 t4"));
        usage.take(&placement(&[(0, 0b0001), (1, 0b0011)]));
        usage.set(NodeId(0), Availability::Drained, Devices::NONE);
        assert_eq!(gpus(&usage), [4, 2, 2, 2]);
        usage.give(&placement(&[(0, 0b0001), (1, 0b0011)]));
        usage.set(NodeId(0), Availability::Open, Devices::one(3));
        assert_eq!(gpus(&usage), [7, 0, 7, 0]);
    }

    #[test]
    fn nodes_that_join_bring_their_gpus() {
        let mut usage = Usage::new(&cluster("1x4 t4"));
        usage.join(&NodeDraft { count: 2, gpus: 8, ..NodeDraft::default() });
        assert_eq!(gpus(&usage), [20, 0, 20, 0]);
    }
}
