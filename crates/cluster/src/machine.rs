//! What there is to hand out: kinds of accelerator, nodes, and where they stand in the network.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::job::{Invalid, Name};
use crate::queue::{QueueDraft, QueueTree};
use crate::units::{Bandwidth, Bytes, Gpus};

/// More accelerators than this in one node cannot be said.
pub const MAX_GPUS_PER_NODE: u32 = 64;

/// More than this in one cluster neither: they are counted in thousandths, by 32 bits.
const MAX_GPUS: u64 = 4_000_000;

/// An accelerator model, as an index into [`Cluster::kinds`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GpuKind(pub u16);

/// A node, as an index into [`Cluster::nodes`]. A node that leaves keeps its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub u32);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RackId(pub u16);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SwitchId(pub u16);

/// One accelerator model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kind {
    pub name: Name,
    /// Memory of one device.
    pub memory: Bytes,
    /// Whether a device can be cut into MIG instances.
    pub mig: bool,
}

/// One machine. All its accelerators are of one kind; a machine without any has none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    pub name: Name,
    pub rack: RackId,
    pub kind: Option<GpuKind>,
    pub gpus: u8,
    pub millicores: u32,
    pub memory: Bytes,
    pub network: Bandwidth,
}

/// Racks hang below switches, switches below one spine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rack {
    pub name: Name,
    pub switch: SwitchId,
}

/// How much narrower the network is above a rack and above a switch than at a node: 1 is as wide, 4 a quarter.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Uplinks {
    pub rack_oversubscription: f64,
    pub switch_oversubscription: f64,
}

/// The machines of one cluster, whether in service or not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cluster {
    kinds: Vec<Kind>,
    switches: Vec<Name>,
    racks: Vec<Rack>,
    nodes: Vec<Node>,
    uplinks: Uplinks,
}

/// A cluster as people write it down.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterDraft {
    #[serde(default)]
    pub kinds: Vec<KindDraft>,
    pub nodes: Vec<NodeDraft>,
    #[serde(default)]
    pub uplinks: Uplinks,
    #[serde(default)]
    pub queues: Vec<QueueDraft>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KindDraft {
    pub name: String,
    pub memory_gb: f64,
    #[serde(default)]
    pub mig: bool,
}

/// A group of like nodes; node `i` of several is called `name` followed by `i`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NodeDraft {
    pub name: String,
    pub count: i64,
    pub kind: Option<String>,
    pub gpus: i64,
    pub cores: f64,
    pub memory_gb: f64,
    pub network_gbps: f64,
    pub rack: String,
    pub switch: String,
}

impl Default for NodeDraft {
    fn default() -> NodeDraft {
        NodeDraft {
            name: "n".into(),
            count: 1,
            kind: None,
            gpus: 0,
            cores: 64.0,
            memory_gb: 512.0,
            network_gbps: 25.0,
            rack: "rack0".into(),
            switch: "switch0".into(),
        }
    }
}

impl Default for Uplinks {
    fn default() -> Uplinks {
        Uplinks { rack_oversubscription: 1.0, switch_oversubscription: 1.0 }
    }
}

impl Cluster {
    pub fn kinds(&self) -> impl Iterator<Item = (GpuKind, &Kind)> {
        self.kinds.iter().enumerate().map(|(index, kind)| (GpuKind(index as u16), kind))
    }

    pub fn kind(&self, kind: GpuKind) -> &Kind {
        &self.kinds[usize::from(kind.0)]
    }

    pub fn kind_named(&self, name: &str) -> Option<GpuKind> {
        self.kinds().find(|(_, kind)| &*kind.name == name).map(|(id, _)| id)
    }

    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter().enumerate().map(|(index, node)| (NodeId(index as u32), node))
    }

    pub fn node(&self, node: NodeId) -> &Node {
        &self.nodes[node.0 as usize]
    }

    pub fn node_named(&self, name: &str) -> Option<NodeId> {
        self.nodes().find(|(_, node)| &*node.name == name).map(|(id, _)| id)
    }

    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    pub fn rack(&self, rack: RackId) -> &Rack {
        &self.racks[usize::from(rack.0)]
    }

    pub fn rack_count(&self) -> usize {
        self.racks.len()
    }

    pub fn switch_of(&self, node: NodeId) -> SwitchId {
        self.rack(self.node(node).rack).switch
    }

    pub fn switch_count(&self) -> usize {
        self.switches.len()
    }

    pub fn uplinks(&self) -> Uplinks {
        self.uplinks
    }

    pub fn gpus_of(&self, kind: GpuKind) -> u32 {
        self.nodes.iter().filter(|node| node.kind == Some(kind)).map(|node| u32::from(node.gpus)).sum()
    }

    pub fn gpus(&self) -> u32 {
        self.nodes.iter().map(|node| u32::from(node.gpus)).sum()
    }

    /// A further node, of a kind, rack and switch that may be new. Its number is the next one.
    pub fn add(&mut self, draft: &NodeDraft, kinds: &[KindDraft]) -> Result<Vec<NodeId>, Invalid> {
        let mut grown = self.clone();
        grown.add_kinds(kinds)?;
        let first = grown.nodes.len();
        grown.add_nodes(draft)?;
        *self = grown;
        Ok((first..self.nodes.len()).map(|index| NodeId(index as u32)).collect())
    }

    fn add_kinds(&mut self, drafts: &[KindDraft]) -> Result<(), Invalid> {
        for draft in drafts {
            if draft.name.is_empty() {
                return Err(Invalid::new("kinds.name", "a name", "nothing"));
            }
            if self.kind_named(&draft.name).is_some() {
                return Err(Invalid::new("kinds.name", "each kind once", format!("`{}` twice", draft.name)));
            }
            if !(draft.memory_gb > 0.0 && draft.memory_gb < 1e6) {
                return Err(Invalid::new("kinds.memory_gb", "a positive number of GiB", draft.memory_gb));
            }
            Cluster::numbered("kinds", self.kinds.len())?;
            let memory = gib(draft.memory_gb);
            self.kinds.push(Kind { name: draft.name.as_str().into(), memory, mig: draft.mig });
        }
        Ok(())
    }

    fn add_nodes(&mut self, draft: &NodeDraft) -> Result<(), Invalid> {
        let counted = |field, value: i64, most: i64| match value {
            value if (0..=most).contains(&value) => Ok(value as u32),
            value => Err(Invalid::new(field, format!("a whole number from 0 to {most}"), value)),
        };
        let measured = |field, value: f64| match value {
            value if (0.0..1e9).contains(&value) => Ok(value),
            value => Err(Invalid::new(field, "a number of at least 0", value)),
        };
        let count = counted("nodes.count", draft.count, 1_000_000)?;
        let gpus = counted("nodes.gpus", draft.gpus, i64::from(MAX_GPUS_PER_NODE))? as u8;
        let kind = match (&draft.kind, gpus) {
            (None, 0) => None,
            (None, _) => return Err(Invalid::new("nodes.kind", "the kind of the node's GPUs", "none")),
            (Some(name), 0) => return Err(Invalid::new("nodes.gpus", format!("GPUs of kind `{name}`"), 0)),
            (Some(name), _) => Some(self.kind_named(name).ok_or_else(|| self.unknown_kind("nodes.kind", name))?),
        };
        let millicores = (measured("nodes.cores", draft.cores)? * 1000.0).min(f64::from(u32::MAX)) as u32;
        let memory = gib(measured("nodes.memory_gb", draft.memory_gb)?);
        let network = measured("nodes.network_gbps", draft.network_gbps)? * 1000.0;
        if network < 1.0 {
            return Err(Invalid::new("nodes.network_gbps", "at least 0.001", draft.network_gbps));
        }
        let network = Bandwidth::mbps(network.min(f64::from(u32::MAX)) as u32);
        let all = u64::from(self.gpus()) + u64::from(count) * u64::from(gpus);
        if all > MAX_GPUS {
            return Err(Invalid::new("nodes.count", format!("at most {MAX_GPUS} GPUs in all"), all));
        }
        let rack = self.rack_for(&draft.rack, &draft.switch)?;
        let taken: BTreeSet<Name> = self.nodes.iter().map(|node| node.name.clone()).collect();
        for index in 0..count {
            let name: Name =
                if count == 1 { draft.name.as_str().into() } else { format!("{}{index}", draft.name).into() };
            if taken.contains(&name) {
                return Err(Invalid::new("nodes.name", "each node name once", format!("`{name}` twice")));
            }
            self.nodes.push(Node { name, rack, kind, gpus, millicores, memory, network });
        }
        Ok(())
    }

    /// Racks, switches and kinds are numbered by 16 bits.
    fn numbered(field: &str, count: usize) -> Result<u16, Invalid> {
        u16::try_from(count).map_err(|_| Invalid::new(field, format!("at most {} of them", u16::MAX), count + 1))
    }

    fn rack_for(&mut self, rack: &str, switch: &str) -> Result<RackId, Invalid> {
        let switch_id = match self.switches.iter().position(|name| &**name == switch) {
            Some(index) => SwitchId(index as u16),
            None => {
                let id = Cluster::numbered("nodes.switch", self.switches.len())?;
                self.switches.push(switch.into());
                SwitchId(id)
            }
        };
        match self.racks.iter().position(|known| &*known.name == rack) {
            Some(index) if self.racks[index].switch == switch_id => Ok(RackId(index as u16)),
            Some(index) => {
                let other = &self.switches[usize::from(self.racks[index].switch.0)];
                Err(Invalid::new("nodes.switch", format!("`{other}`, where rack `{rack}` already hangs"), switch))
            }
            None => {
                let id = Cluster::numbered("nodes.rack", self.racks.len())?;
                self.racks.push(Rack { name: rack.into(), switch: switch_id });
                Ok(RackId(id))
            }
        }
    }

    pub fn unknown_kind(&self, field: &str, found: &str) -> Invalid {
        let known: Vec<&str> = self.kinds.iter().map(|kind| &*kind.name).collect();
        if known.is_empty() {
            return Invalid::new(field, "a kind of GPU that is listed under `kinds`, where there is none", found);
        }
        Invalid::new(field, format!("one of the cluster's GPU kinds ({})", known.join(", ")), found)
    }
}

impl ClusterDraft {
    /// The cluster and the queues meant by this draft.
    pub fn build(&self) -> Result<(Cluster, QueueTree), Invalid> {
        let mut cluster = Cluster {
            kinds: Vec::new(),
            switches: Vec::new(),
            racks: Vec::new(),
            nodes: Vec::new(),
            uplinks: self.uplinks,
        };
        let uplinks = [
            ("uplinks.rack_oversubscription", self.uplinks.rack_oversubscription),
            ("uplinks.switch_oversubscription", self.uplinks.switch_oversubscription),
        ];
        for (field, factor) in uplinks {
            if !(1.0..=1e6).contains(&factor) {
                return Err(Invalid::new(field, "a factor of at least 1", factor));
            }
        }
        cluster.add_kinds(&self.kinds)?;
        for (index, draft) in self.nodes.iter().enumerate() {
            cluster.add_nodes(draft).map_err(|invalid| invalid.within("nodes", index))?;
        }
        if cluster.nodes.is_empty() {
            return Err(Invalid::new("nodes", "at least one node", "none"));
        }
        let queues = QueueTree::build(&self.queues, Gpus::whole(cluster.gpus()))?;
        Ok((cluster, queues))
    }

    /// A cluster in short: `"6x4 t4, 3x8 a100"` is six nodes of four T4 and three of eight A100; `"7x0"` has no GPUs.
    /// Memory sizes of well-known kinds are those of the product; others get 16 GiB.
    pub fn parse_short(text: &str) -> Result<ClusterDraft, Invalid> {
        let mut draft = ClusterDraft::default();
        let mut seen: BTreeMap<String, ()> = BTreeMap::new();
        for (index, group) in text.split(',').enumerate() {
            let bad = || Invalid::new("cluster", "groups of nodes like `3x8 a100`, separated by commas", group.trim());
            let (size, kind) = match group.trim().split_once(char::is_whitespace) {
                Some((size, kind)) => (size, kind.trim()),
                None => (group.trim(), "gpu"),
            };
            let (count, gpus) = size.split_once('x').ok_or_else(bad)?;
            let count: u32 = count.parse().map_err(|_| bad())?;
            let gpus: u32 = gpus.parse().map_err(|_| bad())?;
            if count == 0 || kind.contains(char::is_whitespace) {
                return Err(bad());
            }
            if gpus > 0 && seen.insert(kind.to_string(), ()).is_none() {
                draft.kinds.push(KindDraft::well_known(kind));
            }
            draft.nodes.push(NodeDraft {
                name: if text.contains(',') { format!("{}-", (b'a' + (index % 26) as u8) as char) } else { "n".into() },
                count: i64::from(count),
                kind: (gpus > 0).then(|| kind.to_string()),
                gpus: i64::from(gpus),
                ..NodeDraft::default()
            });
        }
        for group in &mut draft.nodes {
            if group.count == 1 {
                group.name.push('0');
            }
        }
        Ok(draft)
    }
}

impl KindDraft {
    /// Device memory and MIG ability as in the makers' data sheets.
    pub fn well_known(name: &str) -> KindDraft {
        let (memory_gb, mig) = match name {
            "k80" | "p100-12gb" => (12.0, false),
            "rtx2080ti" => (11.0, false),
            "p40" | "m40" | "rtx6000" | "a10" | "l4" => (24.0, false),
            "v100-32gb" => (32.0, false),
            "a100" => (40.0, true),
            "a100-80gb" | "h100" => (80.0, true),
            "h200" => (141.0, true),
            _ => (16.0, false),
        };
        KindDraft { name: name.into(), memory_gb, mig }
    }
}

fn gib(gib: f64) -> Bytes {
    Bytes::new((gib * f64::from(1 << 30)) as u64)
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(draft: &ClusterDraft) -> String {
        draft.build().expect_err("the draft is faulty").to_string()
    }

    #[test]
    fn a_short_cluster_is_read_group_by_group() {
        let (cluster, _) = ClusterDraft::parse_short("6x4 t4, 2x8 a100").unwrap().build().unwrap();
        assert_eq!(cluster.gpus(), 40);
        assert_eq!(cluster.gpus_of(cluster.kind_named("a100").unwrap()), 16);
        assert_eq!(&*cluster.node(NodeId(0)).name, "a-0");
    }

    #[test]
    fn a_short_cluster_with_nonsense_says_which_group() {
        let error = ClusterDraft::parse_short("6x4 t4, many").unwrap_err().to_string();
        assert_eq!(error, "cluster: expected groups of nodes like `3x8 a100`, separated by commas, found many");
    }

    #[test]
    fn a_node_of_an_unknown_kind_names_the_known_ones() {
        let mut draft = ClusterDraft::parse_short("1x4 t4").unwrap();
        draft.nodes[0].kind = Some("t5".into());
        assert_eq!(fault(&draft), "nodes[0].kind: expected one of the cluster's GPU kinds (t4), found t5");
    }

    #[test]
    fn negative_counts_and_narrow_uplinks_are_refused() {
        let mut draft = ClusterDraft::parse_short("1x4 t4").unwrap();
        draft.nodes[0].gpus = -4;
        assert_eq!(fault(&draft), "nodes[0].gpus: expected a whole number from 0 to 64, found -4");
        let mut draft = ClusterDraft::parse_short("1x4 t4").unwrap();
        draft.uplinks.rack_oversubscription = 0.5;
        assert_eq!(fault(&draft), "uplinks.rack_oversubscription: expected a factor of at least 1, found 0.5");
    }

    #[test]
    fn a_rack_hangs_below_one_switch() {
        let mut draft = ClusterDraft::parse_short("1x4 t4, 1x4 t4").unwrap();
        draft.nodes[1].switch = "other".into();
        assert_eq!(fault(&draft), "nodes[1].switch: expected `switch0`, where rack `rack0` already hangs, found other");
    }
}
