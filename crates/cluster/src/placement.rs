//! Exactly where a job runs: slices of devices, slots on nodes, placements; and shapes, which are what an estimate may
//! depend on.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::machine::{Cluster, GpuKind, NodeId};
use crate::units::{Bandwidth, Bytes, Gpus};

/// A set of devices of one node, by their index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Devices(pub u64);

/// How much of each of its devices a slot takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Grain {
    Whole,
    Mig(MigProfile),
    /// A share of compute, in thousandths, and the device memory that goes with it.
    Share {
        thousandths: u16,
        memory: Bytes,
    },
}

/// An instance size of NVIDIA's multi-instance GPUs: so many of seven compute and of eight memory slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum MigProfile {
    #[serde(rename = "1g")]
    G1,
    #[serde(rename = "2g")]
    G2,
    #[serde(rename = "3g")]
    G3,
    #[serde(rename = "4g")]
    G4,
    #[serde(rename = "7g")]
    G7,
}

/// One slice of the same grain on each of some devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SliceSet {
    pub devices: Devices,
    pub grain: Grain,
}

/// What one role of a job holds on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Slot {
    pub node: NodeId,
    /// Index into the roles of the job.
    pub role: u8,
    /// How many tasks of the role run here.
    pub tasks: u32,
    pub slices: SliceSet,
    pub millicores: u32,
    pub memory: Bytes,
}

/// Exactly where a job runs: slots in order of node and role.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Placement {
    slots: Vec<Slot>,
}

/// How far apart a placement lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Spread {
    Node,
    Rack,
    Switch,
    Cluster,
}

/// What an estimate depends on: the kind of GPU, the number of workers, the number of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Shape {
    pub kind: Option<GpuKind>,
    pub workers: u32,
    pub nodes: u32,
}

impl Devices {
    pub const NONE: Devices = Devices(0);

    pub fn first(count: u32) -> Devices {
        Devices(if count >= 64 { u64::MAX } else { (1 << count) - 1 })
    }

    pub fn one(index: u8) -> Devices {
        Devices(1 << index)
    }

    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn contains(self, other: Devices) -> bool {
        self.0 & other.0 == other.0
    }

    pub fn overlaps(self, other: Devices) -> bool {
        self.0 & other.0 != 0
    }

    pub fn union(self, other: Devices) -> Devices {
        Devices(self.0 | other.0)
    }

    pub fn without(self, other: Devices) -> Devices {
        Devices(self.0 & !other.0)
    }

    /// The `count` devices of lowest index.
    pub fn lowest(self, count: u32) -> Devices {
        assert!(count <= self.count(), "{count} devices asked of {}", self.count());
        let mut rest = self.0;
        for _ in 0..count {
            rest &= rest - 1;
        }
        Devices(self.0 & !rest)
    }

    pub fn iter(self) -> impl Iterator<Item = u8> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let index = (rest != 0).then(|| rest.trailing_zeros() as u8)?;
            rest &= rest - 1;
            Some(index)
        })
    }
}

impl MigProfile {
    pub const ALL: [MigProfile; 5] = [MigProfile::G1, MigProfile::G2, MigProfile::G3, MigProfile::G4, MigProfile::G7];
    pub const COMPUTE: u32 = 7;
    pub const MEMORY: u32 = 8;

    /// Of seven compute slices.
    pub fn compute(self) -> u32 {
        match self {
            MigProfile::G1 => 1,
            MigProfile::G2 => 2,
            MigProfile::G3 => 3,
            MigProfile::G4 => 4,
            MigProfile::G7 => 7,
        }
    }

    /// Of eight memory slices.
    pub fn memory(self) -> u32 {
        match self {
            MigProfile::G1 => 1,
            MigProfile::G2 => 2,
            MigProfile::G3 | MigProfile::G4 => 4,
            MigProfile::G7 => 8,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            MigProfile::G1 => "1g",
            MigProfile::G2 => "2g",
            MigProfile::G3 => "3g",
            MigProfile::G4 => "4g",
            MigProfile::G7 => "7g",
        }
    }
}

impl Grain {
    /// The part of a device's compute that one slice is.
    pub fn share(self) -> Gpus {
        match self {
            Grain::Whole => Gpus::whole(1),
            Grain::Mig(profile) => Gpus::from_thousandths(profile.compute() * 1000 / MigProfile::COMPUTE),
            Grain::Share { thousandths, .. } => Gpus::from_thousandths(u32::from(thousandths)),
        }
    }
}

impl SliceSet {
    pub const NONE: SliceSet = SliceSet { devices: Devices::NONE, grain: Grain::Whole };

    pub fn gpus(self) -> Gpus {
        self.grain.share() * self.devices.count()
    }
}

impl Placement {
    /// The slots in order; two slots of one role on one node are not allowed unless their devices differ.
    pub fn new(mut slots: Vec<Slot>) -> Placement {
        slots.sort_unstable();
        Placement { slots }
    }

    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    pub fn gpus(&self) -> Gpus {
        self.slots.iter().map(|slot| slot.slices.gpus()).sum()
    }

    pub fn tasks_of(&self, role: u8) -> u32 {
        self.slots.iter().filter(|slot| slot.role == role).map(|slot| slot.tasks).sum()
    }

    /// The nodes it touches, each once, in order.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        let mut last = None;
        self.slots.iter().map(|slot| slot.node).filter(move |&node| last.replace(node) != Some(node))
    }

    /// The kind of its accelerators, if it has any.
    pub fn kind(&self, cluster: &Cluster) -> Option<GpuKind> {
        self.slots.iter().find(|slot| !slot.slices.devices.is_empty()).and_then(|slot| cluster.node(slot.node).kind)
    }

    pub fn shape(&self, cluster: &Cluster) -> Shape {
        Shape { kind: self.kind(cluster), workers: self.tasks_of(0), nodes: self.nodes().count() as u32 }
    }

    pub fn spread(&self, cluster: &Cluster) -> Spread {
        let first = self.slots[0].node;
        let rack = cluster.node(first).rack;
        let switch = cluster.switch_of(first);
        let far = |node: NodeId| match node {
            node if node == first => Spread::Node,
            node if cluster.node(node).rack == rack => Spread::Rack,
            node if cluster.switch_of(node) == switch => Spread::Switch,
            _ => Spread::Cluster,
        };
        self.nodes().map(far).max().unwrap_or(Spread::Node)
    }

    /// The narrowest link its tasks talk over; none if all are on one node.
    pub fn bottleneck(&self, cluster: &Cluster) -> Option<Bandwidth> {
        let uplinks = cluster.uplinks();
        let factor = match self.spread(cluster) {
            Spread::Node => return None,
            Spread::Rack => 1.0,
            Spread::Switch => uplinks.rack_oversubscription,
            Spread::Cluster => uplinks.rack_oversubscription * uplinks.switch_oversubscription,
        };
        self.nodes().map(|node| cluster.node(node).network).min().map(|narrowest| narrowest.shared_by(factor))
    }
}

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        let mut first = true;
        while rest != 0 {
            let start = rest.trailing_zeros();
            let run = (rest >> start).trailing_ones();
            if !first {
                f.write_str(",")?;
            }
            first = false;
            if run == 1 {
                write!(f, "{start}")?;
            } else {
                write!(f, "{start}-{}", start + run - 1)?;
            }
            rest = if start + run == 64 { 0 } else { rest >> (start + run) << (start + run) };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::ClusterDraft;

    fn slot(node: u32, devices: u64) -> Slot {
        let slices = SliceSet { devices: Devices(devices), grain: Grain::Whole };
        Slot { node: NodeId(node), role: 0, tasks: slices.devices.count(), slices, millicores: 0, memory: Bytes::ZERO }
    }

    #[test]
    fn devices_print_as_ranges() {
        assert_eq!(Devices(0b1011_0111).to_string(), "0-2,4-5,7");
        assert_eq!(Devices(u64::MAX).to_string(), "0-63");
    }

    #[test]
    fn the_lowest_devices_are_taken_first() {
        assert_eq!(Devices(0b1110).lowest(2), Devices(0b0110));
    }

    #[test]
    fn a_placement_across_racks_talks_over_the_narrow_uplink() {
        let mut draft = ClusterDraft::parse_short("1x4 t4, 1x4 t4").unwrap();
        draft.nodes[1].rack = "rack1".into();
        draft.uplinks.rack_oversubscription = 5.0;
        let (cluster, _) = draft.build().unwrap();
        let placement = Placement::new(vec![slot(1, 1), slot(0, 1)]);
        assert_eq!(placement.spread(&cluster), Spread::Switch);
        assert_eq!(placement.bottleneck(&cluster), Some(Bandwidth::gbps(5)));
        assert_eq!(Placement::new(vec![slot(0, 3)]).bottleneck(&cluster), None);
    }

    #[test]
    fn two_halves_of_a_gpu_are_one_gpu() {
        let half = Grain::Share { thousandths: 500, memory: Bytes::gib(8) };
        let slices = SliceSet { devices: Devices(0b11), grain: half };
        assert_eq!(slices.gpus(), Gpus::whole(1));
    }
}
