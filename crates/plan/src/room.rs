//! What is free, and where. Kept up to date as targets change; a policy clones it to try things out.

use std::collections::BTreeMap;

use cluster::{Bytes, Cluster, Devices, GpuKind, Grain, MigProfile, NodeId, Placement, Slice, Slot};
use serde::{Deserialize, Serialize};

use crate::books::NodeStatus;

/// Free devices, cores and memory of every node. Cloning it is a copy of a few flat arrays.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Room {
    nodes: Vec<NodeRoom>,
    kinds: Vec<KindRoom>,
    /// Devices of which a part is in use.
    #[serde(with = "cluster::pairs")]
    partial: BTreeMap<(NodeId, u8), Partial>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct NodeRoom {
    kind: Option<GpuKind>,
    /// Devices that work, on a node that takes jobs.
    usable: Devices,
    /// Devices in use, wholly or in part.
    taken: Devices,
    open: bool,
    millicores: u32,
    memory: Bytes,
}

/// The nodes of one kind by how many whole devices they have free.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
struct KindRoom {
    free: u32,
    by_free: Vec<NodeSet>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
struct NodeSet {
    words: Vec<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Partial {
    Mig { compute: u32, memory: u32 },
    Shares { thousandths: u32, memory: Bytes },
}

impl Room {
    /// An empty cluster.
    pub fn new(cluster: &Cluster, nodes: &[NodeStatus]) -> Room {
        let mut room = Room::default();
        for (id, node) in cluster.nodes() {
            room.add_node(cluster, id);
            let status = &nodes[id.0 as usize];
            room.set_node(id, Devices::first(u32::from(node.gpus)).without(status.broken), status.is_open());
        }
        room
    }

    /// A further node, closed until [`Room::set_node`] opens it.
    pub fn add_node(&mut self, cluster: &Cluster, id: NodeId) {
        assert_eq!(self.nodes.len(), id.0 as usize, "nodes are added in order");
        let node = cluster.node(id);
        self.nodes.push(NodeRoom {
            kind: node.kind,
            usable: Devices::NONE,
            taken: Devices::NONE,
            open: false,
            millicores: node.millicores,
            memory: node.memory,
        });
        let kinds = cluster.kinds().count();
        self.kinds.resize_with(kinds.max(self.kinds.len()), KindRoom::default);
        self.enter(id);
    }

    /// From now on these devices of the node work, and it takes jobs or does not.
    pub fn set_node(&mut self, id: NodeId, working: Devices, open: bool) {
        self.leave(id);
        let node = &mut self.nodes[id.0 as usize];
        node.open = open;
        node.usable = if open { working } else { Devices::NONE };
        self.enter(id);
    }

    pub fn take(&mut self, placement: &Placement) {
        placement.slots().iter().for_each(|slot| self.take_slot(slot));
    }

    pub fn take_slot(&mut self, slot: &Slot) {
        self.leave(slot.node);
        let node = &mut self.nodes[slot.node.0 as usize];
        node.millicores = node.millicores.checked_sub(slot.millicores).expect("cores are free before they are taken");
        node.memory -= slot.memory;
        let devices = slot.slices.devices;
        if slot.slices.grain == Grain::Whole {
            assert!(!node.taken.overlaps(devices), "devices {devices} of {} are taken twice", slot.node);
        } else {
            devices.iter().for_each(|device| take_part(&mut self.partial, (slot.node, device), slot.slices.grain));
        }
        node.taken = node.taken.union(devices);
        self.enter(slot.node);
    }

    pub fn give(&mut self, placement: &Placement) {
        placement.slots().iter().for_each(|slot| self.give_slot(slot));
    }

    fn give_slot(&mut self, slot: &Slot) {
        self.leave(slot.node);
        let node = &mut self.nodes[slot.node.0 as usize];
        node.millicores += slot.millicores;
        node.memory += slot.memory;
        for device in slot.slices.devices.iter() {
            if slot.slices.grain == Grain::Whole || give_part(&mut self.partial, (slot.node, device), slot.slices.grain)
            {
                node.taken = node.taken.without(Devices::one(device));
            }
        }
        self.enter(slot.node);
    }

    /// Whether the placement could be taken as it stands.
    pub fn fits(&self, cluster: &Cluster, placement: &Placement) -> bool {
        let is_offered = |slot: &Slot| {
            let node = &self.nodes[slot.node.0 as usize];
            node.open && node.usable.contains(slot.slices.devices)
        };
        placement.slots().iter().all(is_offered) && self.is_untaken(cluster, placement)
    }

    /// Whether nobody has any of the placement, be it offered to anybody or not.
    pub fn is_untaken(&self, cluster: &Cluster, placement: &Placement) -> bool {
        let mut trial = Trial::default();
        placement.slots().iter().all(|slot| trial.add(self, cluster, slot))
    }

    pub fn is_open(&self, node: NodeId) -> bool {
        self.nodes[node.0 as usize].open
    }

    /// Devices of a node that are wholly free.
    pub fn free_devices(&self, node: NodeId) -> Devices {
        let node = &self.nodes[node.0 as usize];
        node.usable.without(node.taken)
    }

    pub fn millicores(&self, node: NodeId) -> u32 {
        self.nodes[node.0 as usize].millicores
    }

    pub fn memory(&self, node: NodeId) -> Bytes {
        self.nodes[node.0 as usize].memory
    }

    /// Whole devices free of a kind, over all nodes.
    pub fn free_of(&self, kind: GpuKind) -> u32 {
        self.kinds[usize::from(kind.0)].free
    }

    /// Whole devices free, of any kind.
    pub fn free(&self) -> u32 {
        self.kinds.iter().map(|kind| kind.free).sum()
    }

    /// Open nodes of a kind with exactly so many whole devices free, in order.
    pub fn nodes_with(&self, kind: GpuKind, free: u32) -> impl Iterator<Item = NodeId> {
        self.kinds[usize::from(kind.0)].by_free.get(free as usize).into_iter().flat_map(NodeSet::iter)
    }

    /// The most whole devices a node of the kind has free.
    pub fn most_free(&self, kind: GpuKind) -> u32 {
        let by_free = &self.kinds[usize::from(kind.0)].by_free;
        by_free.iter().rposition(|nodes| !nodes.is_empty()).unwrap_or(0) as u32
    }

    /// Open nodes of a kind, fullest first: those with the fewest whole devices free, at least `free`, come first.
    pub fn nodes_from(&self, kind: GpuKind, free: u32) -> impl Iterator<Item = NodeId> {
        (free..=self.most_free(kind)).flat_map(move |count| self.nodes_with(kind, count))
    }

    /// Open nodes of a kind, emptiest first, that have any whole device free.
    pub fn emptiest(&self, kind: GpuKind) -> impl Iterator<Item = NodeId> {
        (1..=self.most_free(kind)).rev().flat_map(move |count| self.nodes_with(kind, count))
    }

    /// All open nodes, in order.
    pub fn open_nodes(&self) -> impl Iterator<Item = NodeId> {
        let open = self.nodes.iter().enumerate().filter(|(_, node)| node.open);
        open.map(|(index, _)| NodeId(index as u32))
    }

    /// Devices in part use on open nodes of a kind on which one more slice fits, with what would be left of them (in
    /// thousandths of their compute).
    pub fn shared_devices(&self, cluster: &Cluster, kind: GpuKind, slice: Slice) -> Vec<(u32, NodeId, u8)> {
        let on_kind = self.partial.iter().filter(|((node, device), _)| {
            let room = &self.nodes[node.0 as usize];
            room.kind == Some(kind) && room.usable.contains(Devices::one(*device))
        });
        let memory = cluster.kind(kind).memory;
        on_kind.filter_map(|(&(node, device), part)| Some((part.left(slice.grain, memory)?, node, device))).collect()
    }

    /// The node's entry in the index, withdrawn while the node changes.
    fn leave(&mut self, id: NodeId) {
        let free = self.free_devices(id).count();
        let node = &self.nodes[id.0 as usize];
        if let (Some(kind), true) = (node.kind, node.open) {
            let kind = &mut self.kinds[usize::from(kind.0)];
            kind.free -= free;
            kind.by_free[free as usize].remove(id);
        }
    }

    fn enter(&mut self, id: NodeId) {
        let free = self.free_devices(id).count();
        let node = &self.nodes[id.0 as usize];
        if let (Some(kind), true) = (node.kind, node.open) {
            let kind = &mut self.kinds[usize::from(kind.0)];
            kind.free += free;
            if kind.by_free.len() <= free as usize {
                kind.by_free.resize_with(free as usize + 1, NodeSet::default);
            }
            kind.by_free[free as usize].insert(id);
        }
    }
}

impl Partial {
    /// What would be left after one more slice of this grain, if it fits.
    fn left(self, grain: Grain, device_memory: Bytes) -> Option<u32> {
        match (self, grain) {
            (Partial::Mig { compute, memory }, Grain::Mig(profile)) => {
                let compute = MigProfile::COMPUTE.checked_sub(compute + profile.compute())?;
                MigProfile::MEMORY.checked_sub(memory + profile.memory())?;
                Some(compute * 1000 / MigProfile::COMPUTE)
            }
            (Partial::Shares { thousandths, memory }, Grain::Share { thousandths: more, memory: needed }) => {
                let left = 1000_u32.checked_sub(thousandths + u32::from(more))?;
                (memory + needed <= device_memory).then_some(left)
            }
            _ => None,
        }
    }
}

fn take_part(partial: &mut BTreeMap<(NodeId, u8), Partial>, device: (NodeId, u8), grain: Grain) {
    match grain {
        Grain::Whole => unreachable!("a whole device is no part"),
        Grain::Mig(profile) => {
            let part = partial.entry(device).or_insert(Partial::Mig { compute: 0, memory: 0 });
            let Partial::Mig { compute, memory } = part else { panic!("a device is either cut or shared") };
            *compute += profile.compute();
            *memory += profile.memory();
        }
        Grain::Share { thousandths: more, memory: needed } => {
            let part = partial.entry(device).or_insert(Partial::Shares { thousandths: 0, memory: Bytes::ZERO });
            let Partial::Shares { thousandths, memory } = part else { panic!("a device is either cut or shared") };
            *thousandths += u32::from(more);
            *memory += needed;
        }
    }
}

/// Gives one slice back; true if nothing of the device is in use any more.
fn give_part(partial: &mut BTreeMap<(NodeId, u8), Partial>, device: (NodeId, u8), grain: Grain) -> bool {
    let part = partial.get_mut(&device).expect("what is given back was taken");
    let empty = match (part, grain) {
        (Partial::Mig { compute, memory }, Grain::Mig(profile)) => {
            *compute -= profile.compute();
            *memory -= profile.memory();
            *compute == 0
        }
        (Partial::Shares { thousandths, memory }, Grain::Share { thousandths: less, memory: freed }) => {
            *thousandths -= u32::from(less);
            *memory -= freed;
            *thousandths == 0
        }
        _ => panic!("what is given back is of the grain that was taken"),
    };
    if empty {
        partial.remove(&device);
    }
    empty
}

/// Slots tried one after another without changing the room.
#[derive(Debug, Default)]
struct Trial {
    nodes: BTreeMap<NodeId, (u32, Bytes, Devices)>,
    parts: BTreeMap<(NodeId, u8), Partial>,
}

impl Trial {
    fn add(&mut self, room: &Room, cluster: &Cluster, slot: &Slot) -> bool {
        let node = &room.nodes[slot.node.0 as usize];
        let (millicores, memory, taken) = self.nodes.entry(slot.node).or_default();
        *millicores += slot.millicores;
        *memory += slot.memory;
        if *millicores > node.millicores || *memory > node.memory {
            return false;
        }
        let devices = slot.slices.devices;
        if slot.slices.grain == Grain::Whole {
            let free = !node.taken.union(*taken).overlaps(devices);
            *taken = taken.union(devices);
            return free;
        }
        let device_memory = node.kind.map_or(Bytes::ZERO, |kind| cluster.kind(kind).memory);
        for device in devices.iter() {
            let key = (slot.node, device);
            match room.partial.get(&key) {
                _ if self.parts.contains_key(&key) => {}
                Some(&part) => drop(self.parts.insert(key, part)),
                None if node.taken.union(*taken).contains(Devices::one(device)) => return false,
                None => {}
            }
            if self.parts.get(&key).is_some_and(|part| part.left(slot.slices.grain, device_memory).is_none()) {
                return false;
            }
            take_part(&mut self.parts, key, slot.slices.grain);
            *taken = taken.union(Devices::one(device));
        }
        true
    }
}

impl NodeSet {
    fn insert(&mut self, node: NodeId) {
        let word = node.0 as usize / 64;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (node.0 % 64);
    }

    fn remove(&mut self, node: NodeId) {
        self.words[node.0 as usize / 64] &= !(1 << (node.0 % 64));
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }

    fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    fn iter(&self) -> impl Iterator<Item = NodeId> {
        self.words
            .iter()
            .enumerate()
            .flat_map(|(index, &word)| Devices(word).iter().map(move |bit| NodeId(index as u32 * 64 + u32::from(bit))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::{ClusterDraft, SliceSet};

    fn empty(text: &str) -> (Cluster, Room) {
        let (cluster, _) = ClusterDraft::parse_short(text).unwrap().build().unwrap();
        let nodes = vec![NodeStatus::default(); cluster.node_count()];
        let room = Room::new(&cluster, &nodes);
        (cluster, room)
    }

    fn slot(node: u32, devices: u64, grain: Grain) -> Slot {
        let slices = SliceSet { devices: Devices(devices), grain };
        Slot { node: NodeId(node), role: 0, tasks: 1, slices, millicores: 1000, memory: Bytes::gib(1) }
    }

    #[test]
    fn what_was_taken_and_given_back_leaves_no_trace() {
        let (_, fresh) = empty("2x4 a100");
        let half = Grain::Share { thousandths: 500, memory: Bytes::gib(10) };
        let placements = [
            Placement::new(vec![slot(0, 0b11, Grain::Whole)]),
            Placement::new(vec![slot(0, 0b100, half), slot(1, 0b1, half)]),
            Placement::new(vec![slot(1, 0b1000, Grain::Mig(MigProfile::G3))]),
        ];
        let mut room = fresh.clone();
        placements.iter().for_each(|placement| room.take(placement));
        assert_eq!(room.free(), 3);
        placements.iter().for_each(|placement| room.give(placement));
        assert_eq!(room, fresh);
    }

    #[test]
    fn a_device_cut_by_mig_takes_no_shares_and_no_more_than_seven_slices() {
        let (cluster, mut room) = empty("1x1 a100");
        room.take(&Placement::new(vec![slot(0, 1, Grain::Mig(MigProfile::G4))]));
        let fits = |grain| room.fits(&cluster, &Placement::new(vec![slot(0, 1, grain)]));
        assert!(fits(Grain::Mig(MigProfile::G3)));
        assert!(!fits(Grain::Mig(MigProfile::G4)));
        assert!(!fits(Grain::Share { thousandths: 100, memory: Bytes::ZERO }));
        assert!(!fits(Grain::Whole));
    }

    #[test]
    fn shares_are_limited_by_device_memory() {
        let (cluster, mut room) = empty("1x1 t4");
        let share = |thousandths, gib| Grain::Share { thousandths, memory: Bytes::gib(gib) };
        room.take(&Placement::new(vec![slot(0, 1, share(300, 10))]));
        let fits = |grain| room.fits(&cluster, &Placement::new(vec![slot(0, 1, grain)]));
        assert!(fits(share(300, 6)));
        assert!(!fits(share(300, 7)), "16 GiB on the device");
        assert!(!fits(share(800, 1)), "more than the whole device");
    }

    #[test]
    fn two_slots_of_one_placement_count_together() {
        let (cluster, room) = empty("1x1 t4");
        let half = Grain::Share { thousandths: 500, memory: Bytes::ZERO };
        assert!(room.fits(&cluster, &Placement::new(vec![slot(0, 1, half), slot(0, 1, half)])));
        assert!(!room.fits(&cluster, &Placement::new(vec![slot(0, 1, half); 3])));
    }

    #[test]
    fn a_closed_node_has_nothing_free() {
        let (cluster, mut room) = empty("2x4 t4");
        room.set_node(NodeId(0), Devices::first(4), false);
        let kind = cluster.kind_named("t4").unwrap();
        assert_eq!((room.free_of(kind), room.most_free(kind)), (4, 4));
        assert_eq!(room.nodes_from(kind, 1).collect::<Vec<_>>(), [NodeId(1)]);
    }
}
