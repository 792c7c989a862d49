//! The nodes of this machine and their devices: real ones as the driver shows them, or virtual ones, each a share of the
//! machine's processors, so that a machine without GPUs is a heterogeneous cluster too.

use std::collections::BTreeMap;
use std::fs;
use std::thread::available_parallelism;

use cluster::{ClusterDraft, Invalid, KindDraft, MAX_GPUS_PER_NODE, NodeDraft, NodeId};
use serde::{Deserialize, Serialize};

use crate::WorkerPlace;
use crate::nvidia;

/// The nodes of this machine, in the order of their numbers. A node has devices of one kind only, so a machine with two
/// kinds is two nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    kinds: Vec<KindDraft>,
    nodes: Vec<MachineNode>,
}

/// Virtual accelerators of one kind, as people write them down.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcceleratorDraft {
    pub kind: String,
    pub count: u32,
    /// Processor cores that make one device.
    #[serde(default = "one")]
    pub cores: f64,
    /// The part of the time they may be used.
    #[serde(default = "one")]
    pub duty: f64,
    #[serde(default = "sixteen")]
    pub memory_gb: f64,
    /// Where they are; by default a node with the name of the kind.
    #[serde(default)]
    pub node: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
struct MachineNode {
    name: String,
    kind: Option<String>,
    devices: Vec<Device>,
    cores: f64,
    memory_gb: f64,
}

#[derive(Debug, Clone, PartialEq)]
enum Device {
    /// So many cores of processor time.
    Virtual { cores: f64 },
    Nvidia {
        uuid: String,
        /// A MIG instance: a process can use one of them only.
        is_instance: bool,
    },
}

/// A machine without GPUs has at least so many devices.
const FEWEST_CORES: u32 = 4;

impl AcceleratorDraft {
    /// Devices of one whole core each.
    pub fn of(kind: &str, count: u32) -> AcceleratorDraft {
        AcceleratorDraft { kind: kind.into(), count, cores: 1.0, duty: 1.0, memory_gb: 16.0, node: None }
    }

    fn node_name(&self) -> &str {
        self.node.as_deref().unwrap_or(&self.kind)
    }

    fn validate(&self) -> Result<(), Invalid> {
        let most = MAX_GPUS_PER_NODE;
        if self.kind.is_empty() || self.kind.contains([',', ':']) || self.kind.contains(char::is_whitespace) {
            return Err(Invalid::new("kind", "a name without spaces, commas and colons", format!("`{}`", self.kind)));
        }
        if self.node_name().is_empty() {
            return Err(Invalid::new("node", "a name", "nothing"));
        }
        if !(1..=most).contains(&self.count) {
            return Err(Invalid::new("count", format!("a whole number from 1 to {most}"), self.count));
        }
        if !(self.cores > 0.0 && self.cores <= 1024.0) {
            return Err(Invalid::new("cores", "a number above 0 and up to 1024", self.cores));
        }
        if !(self.duty > 0.0 && self.duty <= 1.0) {
            return Err(Invalid::new("duty", "a part of 1, above 0", self.duty));
        }
        if !(self.memory_gb > 0.0 && self.memory_gb < 1e6) {
            return Err(Invalid::new("memory_gb", "a positive number of GiB", self.memory_gb));
        }
        Ok(())
    }
}

impl Machine {
    /// What the machine really has: NVIDIA GPUs if their driver is there, else its cores, each as a device of kind `cpu`.
    pub fn find() -> Machine {
        let gpus = nvidia::find();
        if gpus.is_empty() { Machine::of_cores() } else { Machine::of_gpus(gpus) }
    }

    pub(crate) fn of_gpus(gpus: Vec<nvidia::Gpu>) -> Machine {
        let mut by_kind: BTreeMap<String, Vec<nvidia::Gpu>> = BTreeMap::new();
        for gpu in gpus {
            by_kind.entry(gpu.kind.clone()).or_default().push(gpu);
        }
        let parts = by_kind.len() as f64;
        let kinds = by_kind
            .iter()
            .map(|(kind, gpus)| KindDraft { memory_gb: gpus[0].memory_gb, ..KindDraft::well_known(kind) });
        let nodes = by_kind.iter().map(|(kind, gpus)| MachineNode {
            // A GPU that is cut up, or otherwise than before, makes other nodes: no node changes its kind.
            name: if by_kind.len() == 1 && !gpus[0].is_instance { "local".into() } else { format!("local-{kind}") },
            kind: Some(kind.clone()),
            devices: gpus.iter().map(device_of).collect(),
            cores: cores() / parts,
            memory_gb: memory_gb() / parts,
        });
        Machine { kinds: kinds.collect(), nodes: nodes.collect() }
    }

    /// A machine of virtual devices.
    pub fn of(drafts: &[AcceleratorDraft]) -> Result<Machine, Invalid> {
        if drafts.is_empty() {
            return Err(Invalid::new("accelerators", "at least one", "none"));
        }
        let mut machine = Machine { kinds: Vec::new(), nodes: Vec::new() };
        for (index, draft) in drafts.iter().enumerate() {
            let added = draft.validate().and_then(|()| machine.add(draft));
            added.map_err(|invalid| invalid.within("accelerators", index))?;
        }
        let parts = machine.nodes.len() as f64;
        for node in &mut machine.nodes {
            node.memory_gb = memory_gb() / parts;
        }
        Ok(machine)
    }

    /// The machine in the words of the engine. Nodes are numbered in this order.
    pub fn cluster_draft(&self) -> ClusterDraft {
        let node = |node: &MachineNode| NodeDraft {
            name: node.name.clone(),
            kind: node.kind.clone(),
            gpus: node.devices.len() as i64,
            cores: node.cores,
            memory_gb: node.memory_gb,
            ..NodeDraft::default()
        };
        let nodes = self.nodes.iter().map(node).collect();
        ClusterDraft { kinds: self.kinds.clone(), nodes, ..ClusterDraft::default() }
    }

    pub(crate) fn has(&self, node: NodeId, device: u8) -> bool {
        self.device(node, device).is_some()
    }

    pub(crate) fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// How the driver calls a device; virtual ones it does not know.
    pub(crate) fn uuid(&self, node: NodeId, device: u8) -> Option<&str> {
        match self.device(node, device)? {
            Device::Nvidia { uuid, .. } => Some(uuid),
            Device::Virtual { .. } => None,
        }
    }

    /// Whether it is a MIG instance.
    pub(crate) fn is_instance(&self, node: NodeId, device: u8) -> bool {
        matches!(self.device(node, device), Some(Device::Nvidia { is_instance: true, .. }))
    }

    /// What the driver calls its devices, all of them.
    pub(crate) fn uuids(&self) -> Vec<&str> {
        let devices = self.nodes.iter().flat_map(|node| &node.devices);
        devices
            .filter_map(|device| match device {
                Device::Nvidia { uuid, .. } => Some(uuid.as_str()),
                Device::Virtual { .. } => None,
            })
            .collect()
    }

    /// Kind and index, such as `a100:1`.
    pub(crate) fn device_name(&self, node: NodeId, device: u8) -> Option<String> {
        self.device(node, device)?;
        let kind = self.nodes[node.0 as usize].kind.as_deref()?;
        Some(format!("{kind}:{device}"))
    }

    /// The processor time that the worker's virtual devices are; none if it has none.
    pub(crate) fn cores_of(&self, place: &WorkerPlace) -> Option<f64> {
        let share = f64::from(place.share_thousandths) / 1000.0;
        let cores = place.devices.iter().filter_map(|&device| match self.device(place.node, device)? {
            Device::Virtual { cores } => Some(cores * share),
            Device::Nvidia { .. } => None,
        });
        cores.reduce(|sum, cores| sum + cores)
    }

    fn device(&self, node: NodeId, device: u8) -> Option<&Device> {
        self.nodes.get(node.0 as usize)?.devices.get(usize::from(device))
    }

    /// A machine without GPUs can run jobs as well: every core is a device. A small one has more devices than cores, so
    /// that gangs can be tried on it; they then share its cores.
    fn of_cores() -> Machine {
        let count = (cores() as u32).clamp(FEWEST_CORES, MAX_GPUS_PER_NODE);
        let memory_gb = (memory_gb() / f64::from(count)).max(1.0);
        let cores = AcceleratorDraft { node: Some("local".into()), memory_gb, ..AcceleratorDraft::of("cpu", count) };
        Machine::of(&[cores]).expect("a core is a sound device")
    }

    fn add(&mut self, draft: &AcceleratorDraft) -> Result<(), Invalid> {
        match self.kinds.iter().find(|kind| kind.name == draft.kind) {
            Some(kind) if kind.memory_gb != draft.memory_gb => {
                let expected = format!("{}, as of the other `{}`", kind.memory_gb, kind.name);
                return Err(Invalid::new("memory_gb", expected, draft.memory_gb));
            }
            Some(_) => {}
            None => {
                let kind = KindDraft { name: draft.kind.clone(), memory_gb: draft.memory_gb, mig: false };
                self.kinds.push(kind);
            }
        }
        let index = match self.nodes.iter().position(|node| node.name == draft.node_name()) {
            Some(index) => index,
            None => {
                self.nodes.push(MachineNode {
                    name: draft.node_name().into(),
                    kind: Some(draft.kind.clone()),
                    devices: Vec::new(),
                    cores: 0.0,
                    memory_gb: 0.0,
                });
                self.nodes.len() - 1
            }
        };
        let node = &mut self.nodes[index];
        if node.kind.as_deref() != Some(&draft.kind) {
            let other = node.kind.as_deref().unwrap_or_default();
            let expected = format!("a node without `{other}`: a node has one kind of device");
            return Err(Invalid::new("node", expected, format!("`{}`", node.name)));
        }
        let device = Device::Virtual { cores: draft.cores * draft.duty };
        node.devices.extend(std::iter::repeat_n(device, draft.count as usize));
        node.cores += draft.cores * f64::from(draft.count);
        if node.devices.len() > MAX_GPUS_PER_NODE as usize {
            let expected = format!("at most {MAX_GPUS_PER_NODE} devices on node `{}`", node.name);
            return Err(Invalid::new("count", expected, node.devices.len()));
        }
        Ok(())
    }
}

fn device_of(gpu: &nvidia::Gpu) -> Device {
    Device::Nvidia { uuid: gpu.uuid.clone(), is_instance: gpu.is_instance }
}

fn one() -> f64 {
    1.0
}

fn sixteen() -> f64 {
    16.0
}

fn cores() -> f64 {
    available_parallelism().map_or(1.0, |count| count.get() as f64)
}

fn memory_gb() -> f64 {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = info
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse::<f64>().ok());
    total.unwrap_or(0.0) / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use cluster::Bytes;

    use super::*;
    use crate::device_locks::DeviceLocks;
    use crate::local::probe_devices;

    fn fault(drafts: &[AcceleratorDraft]) -> String {
        Machine::of(drafts).expect_err("the drafts are faulty").to_string()
    }

    fn gpu(kind: &str, memory_gb: f64, is_instance: bool) -> nvidia::Gpu {
        nvidia::Gpu { kind: kind.into(), uuid: kind.into(), memory_gb, is_instance }
    }

    #[test]
    fn whether_gpus_could_be_had_is_found_without_keeping_them() {
        let (ours, theirs) = (Path::new("/data/ours"), Path::new("/data/theirs"));
        // What is in use is in use for all services of the machine that this runs on.
        let uuid = format!("GPU-of-the-test-{}", std::process::id());
        let machine = Machine::of_gpus(vec![nvidia::Gpu { uuid: uuid.clone(), ..gpu("a100", 40.0, false) }]);
        let held = DeviceLocks::take(&[&uuid], theirs).unwrap();
        let refused = probe_devices(&machine, ours).unwrap_err().to_string();
        assert!(refused.contains(&uuid) && refused.contains("/data/theirs"), "{refused}");
        drop(held);
        probe_devices(&machine, ours).unwrap();
        DeviceLocks::take(&[&uuid], theirs).expect("whoever only looks keeps nothing");
    }

    #[test]
    fn mig_instances_are_nodes_of_their_own_kinds_with_their_own_memory() {
        let shown = |gpus| {
            let draft = Machine::of_gpus(gpus).cluster_draft();
            let memory = |name: &str| draft.kinds.iter().find(|kind| kind.name == name).unwrap().memory_gb;
            let line = |node: &NodeDraft| {
                let kind = node.kind.clone().unwrap();
                format!("{} {} x {} GiB", node.name, node.gpus, memory(&kind))
            };
            draft.nodes.iter().map(line).collect::<Vec<_>>()
        };
        let part = || gpu("a100-mig-1g-5gb", 4.75, true);
        assert_eq!(shown(vec![gpu("a100", 40.0, false)]), ["local 1 x 40 GiB"]);
        assert_eq!(shown(vec![part(), part()]), ["local-a100-mig-1g-5gb 2 x 4.75 GiB"]);
        assert_eq!(
            shown(vec![part(), gpu("a100", 40.0, false), gpu("a100-mig-3g-20gb", 19.5, true)]),
            ["local-a100 1 x 40 GiB", "local-a100-mig-1g-5gb 1 x 4.75 GiB", "local-a100-mig-3g-20gb 1 x 19.5 GiB"]
        );
    }

    #[test]
    fn every_kind_is_a_node_and_nodes_keep_their_order() {
        let machine = Machine::of(&[AcceleratorDraft::of("t4", 4), AcceleratorDraft::of("a100", 2)]).unwrap();
        let (cluster, _) = machine.cluster_draft().build().unwrap();
        let nodes: Vec<String> =
            cluster.nodes().map(|(id, node)| format!("{id} {} {}", node.name, node.gpus)).collect();
        assert_eq!(nodes, ["node 0 t4 4", "node 1 a100 2"]);
        assert_eq!(machine.device_name(NodeId(1), 1).as_deref(), Some("a100:1"));
    }

    #[test]
    fn a_machine_without_gpus_has_its_cores() {
        let (cluster, _) = Machine::of_cores().cluster_draft().build().unwrap();
        assert!(cluster.gpus() >= FEWEST_CORES && cluster.gpus() >= (cores() as u32).min(MAX_GPUS_PER_NODE));
        assert!(cluster.kind_named("cpu").is_some() && cluster.node_named("local").is_some());
    }

    #[test]
    fn two_cores_at_sixty_percent_are_a_core_and_a_fifth() {
        let draft = AcceleratorDraft { cores: 2.0, duty: 0.6, ..AcceleratorDraft::of("a100", 2) };
        let machine = Machine::of(&[draft]).unwrap();
        let mut place = WorkerPlace {
            node: NodeId(0),
            role: 0,
            devices: vec![1],
            share_thousandths: 1000,
            millicores: 0,
            memory: Bytes::ZERO,
        };
        assert_eq!(machine.cores_of(&place), Some(1.2));
        place.share_thousandths = 500;
        assert_eq!(machine.cores_of(&place), Some(0.6));
        place.devices.clear();
        assert_eq!(machine.cores_of(&place), None);
    }

    #[test]
    fn faulty_drafts_are_named() {
        let duty = AcceleratorDraft { duty: 1.5, ..AcceleratorDraft::of("t4", 1) };
        assert_eq!(fault(&[duty]), "accelerators[0].duty: expected a part of 1, above 0, found 1.5");
        assert_eq!(
            fault(&[AcceleratorDraft::of("t4", 65)]),
            "accelerators[0].count: expected a whole number from 1 to 64, found 65"
        );
        let on = |kind: &str| AcceleratorDraft { node: Some("x".into()), ..AcceleratorDraft::of(kind, 1) };
        assert_eq!(
            fault(&[on("t4"), on("a100")]),
            "accelerators[1].node: expected a node without `t4`: a node has one kind of device, found `x`"
        );
    }
}
