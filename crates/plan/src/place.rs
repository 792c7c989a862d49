//! Exactly where. One kind of GPU per job, the one on which it runs fastest and for which there is room; then the
//! nodes, by the style asked for. Looks only at a room; whoever calls decides what becomes of the answer.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::claim::{Allotment, Claim};
use crate::room::Room;
use crate::snapshot::Snapshot;
use cluster::{
    Bytes, Devices, GpuKind, Grain, JobSpec, Kind, MigProfile, NodeId, Placement, Role, Slice, SliceSet, Slot,
};

/// How tasks are laid out over nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// The tightest single node; else as few nodes as will do, near each other.
    Pack,
    /// The same, but only on as few nodes as an empty cluster would need.
    Consolidate,
    /// The fullest nodes first: fragments are used up and empty nodes stay empty.
    Scatter,
    /// One task per node and round, the emptiest nodes first.
    Spread,
    /// The emptiest nodes one after the other, as much as fits on each.
    Emptiest,
}

/// A place for so many workers of the claim and everything that goes with them; `None` if there is no room for it.
pub fn fit(room: &Room, snapshot: &Snapshot<'_>, claim: &Claim, workers: u32, style: Style) -> Option<Placement> {
    fit_on(room, snapshot, claim, workers, style, |_| true)
}

/// The same on some kinds of GPU only.
pub fn fit_on(
    room: &Room,
    snapshot: &Snapshot<'_>,
    claim: &Claim,
    workers: u32,
    style: Style,
    allowed: impl Fn(GpuKind) -> bool,
) -> Option<Placement> {
    if !claim.spec.uses_gpus() {
        return Search::new(room, snapshot, &claim.spec, style, None).place(workers);
    }
    let kinds: Vec<GpuKind> = kinds(room, snapshot, claim, workers).filter(|&kind| allowed(kind)).collect();
    let place = |kind| Search::new(room, snapshot, &claim.spec, style, Some(kind)).place(workers);
    if let [only] = kinds[..] {
        return snapshot.rate_on(claim, Some(only), workers).and_then(|_| place(only));
    }
    let mut rated: Vec<(f64, GpuKind)> =
        kinds.iter().filter_map(|&kind| Some((snapshot.rate_on(claim, Some(kind), workers)?, kind))).collect();
    rated.sort_by(|(fast, _), (slow, _)| slow.total_cmp(fast));
    let among_equals = |equals: &[(f64, GpuKind)]| {
        let placements = equals.iter().filter_map(|&(_, kind)| place(kind));
        placements.min_by_key(|placement| (placement.nodes().count(), leftover(room, placement)))
    };
    rated.chunk_by(|(one, _), (other, _)| one == other).find_map(among_equals)
}

/// Kinds the claim allows whose devices suffice and of which enough are free.
fn kinds(room: &Room, snapshot: &Snapshot<'_>, claim: &Claim, workers: u32) -> impl Iterator<Item = GpuKind> {
    let spec = &claim.spec;
    let whole = whole_devices(spec, workers);
    let kinds = snapshot
        .cluster()
        .kinds()
        .filter(move |(id, kind)| spec.allows_kind(*id) && room.free_of(*id) >= whole && suits(spec, kind));
    kinds.map(|(id, _)| id)
}

/// How many devices the claim takes for itself alone.
pub fn whole_devices(spec: &JobSpec, workers: u32) -> u32 {
    let whole =
        spec.roles.iter().filter_map(|role| Some((role, role.slice.filter(|slice| slice.grain == Grain::Whole)?)));
    whole.map(|(role, slice)| slice.count.saturating_mul(role.tasks(workers))).fold(0, u32::saturating_add)
}

/// Whether devices of the kind are enough for every slice of the job.
pub fn suits(spec: &JobSpec, kind: &Kind) -> bool {
    spec.roles.iter().all(|role| role.slice.is_none_or(|slice| suffices(kind, slice)))
}

/// Whether one device of the kind is enough for a slice.
fn suffices(kind: &Kind, slice: Slice) -> bool {
    let (needed, memory) = (u128::from(slice.memory.get()), u128::from(kind.memory.get()));
    match slice.grain {
        Grain::Whole | Grain::Share { .. } => needed <= memory,
        Grain::Mig(profile) => {
            kind.mig && needed * u128::from(MigProfile::MEMORY) <= memory * u128::from(profile.memory())
        }
    }
}

/// Whole devices that would stay free on the nodes a placement touches.
fn leftover(room: &Room, placement: &Placement) -> u32 {
    let free: u32 = placement.nodes().map(|node| room.free_devices(node).count()).sum();
    let whole = placement.slots().iter().filter(|slot| slot.slices.grain == Grain::Whole);
    free - whole.map(|slot| slot.slices.devices.count()).sum::<u32>()
}

/// The search for a place on one kind of GPU, or on none.
struct Search<'s> {
    room: &'s Room,
    snapshot: &'s Snapshot<'s>,
    spec: &'s JobSpec,
    style: Style,
    kind: Option<GpuKind>,
    slots: Vec<Slot>,
}

impl<'s> Search<'s> {
    fn new(
        room: &'s Room,
        snapshot: &'s Snapshot<'_>,
        spec: &'s JobSpec,
        style: Style,
        kind: Option<GpuKind>,
    ) -> Search<'s> {
        Search { room, snapshot, spec, style, kind, slots: Vec::new() }
    }

    /// Roles with GPUs first, because theirs are the harder wishes; the others follow them to their nodes.
    fn place(mut self, workers: u32) -> Option<Placement> {
        let roles = self.spec.roles.iter().enumerate();
        let (with, without): (Vec<_>, Vec<_>) = roles.partition(|(_, role)| role.slice.is_some());
        for (index, role) in with {
            self.place_gpu_role(index as u8, role, role.tasks(workers))?;
        }
        for (index, role) in without {
            self.place_cpu_role(index as u8, role, role.tasks(workers))?;
        }
        Some(Placement::new(self.slots))
    }

    fn place_gpu_role(&mut self, index: u8, role: &Role, tasks: u32) -> Option<()> {
        let slice = role.slice.expect("a role with GPUs has a slice");
        if self.slots.is_empty() {
            let slots = self.gpu_slots(self.room, index, role, slice, tasks)?;
            self.slots.extend(slots);
            return Some(());
        }
        let mut rest = self.room.clone();
        self.slots.iter().for_each(|slot| rest.take_slot(slot));
        let slots = self.gpu_slots(&rest, index, role, slice, tasks)?;
        self.slots.extend(slots);
        Some(())
    }

    fn gpu_slots(&self, room: &Room, index: u8, role: &Role, slice: Slice, tasks: u32) -> Option<Vec<Slot>> {
        let kind = self.kind.expect("GPUs are searched on a kind");
        if slice.grain != Grain::Whole {
            return self.shared_slots(room, kind, index, role, slice, tasks);
        }
        if slice.count.saturating_mul(tasks) > room.free_of(kind) {
            return None;
        }
        let nodes = Nodes { room, snapshot: self.snapshot, kind, role, gpus: slice.count };
        let chosen = match self.style {
            Style::Pack => nodes.pack(tasks)?,
            Style::Consolidate => nodes.pack(tasks).filter(|chosen| nodes.is_fewest(tasks, chosen.len()))?,
            Style::Scatter => nodes.fill(room.nodes_from(kind, slice.count), tasks)?,
            Style::Spread => nodes.spread(tasks)?,
            Style::Emptiest => nodes.fill(nodes.by_tasks(), tasks)?,
        };
        let slot = |(node, tasks): (NodeId, u32)| {
            let devices = room.free_devices(node).lowest(slice.count * tasks);
            slot(role, index, node, tasks, SliceSet { devices, grain: Grain::Whole })
        };
        Some(chosen.into_iter().map(slot).collect())
    }

    /// Parts of devices, one slot for each task.
    fn shared_slots(
        &self,
        room: &Room,
        kind: GpuKind,
        index: u8,
        role: &Role,
        slice: Slice,
        tasks: u32,
    ) -> Option<Vec<Slot>> {
        let mut slots = Vec::new();
        let mut rest: Option<Room> = None;
        for task in 0..tasks {
            let here = rest.as_ref().unwrap_or(room);
            let (node, devices) = self.shared_devices(here, kind, role, slice)?;
            let taken = slot(role, index, node, 1, SliceSet { devices, grain: slice.grain });
            if task + 1 < tasks {
                rest.get_or_insert_with(|| room.clone()).take_slot(&taken);
            }
            slots.push(taken);
        }
        Some(slots)
    }

    /// Devices for one task: those already in part use that have the least left over, then free ones on the fullest node.
    fn shared_devices(&self, room: &Room, kind: GpuKind, role: &Role, slice: Slice) -> Option<(NodeId, Devices)> {
        let mut in_use = room.shared_devices(self.snapshot.cluster(), kind, slice);
        in_use.sort_unstable();
        let mut by_node: BTreeMap<NodeId, Devices> = BTreeMap::new();
        for (_, node, device) in in_use {
            let devices = by_node.entry(node).or_default();
            if devices.count() < slice.count {
                *devices = devices.union(Devices::one(device));
            }
            if devices.count() == slice.count && tasks_by_cores(room, role, node) > 0 {
                return Some((node, *devices));
            }
        }
        room.nodes_from(kind, 0).find_map(|node| {
            let used = by_node.get(&node).copied().unwrap_or(Devices::NONE);
            let free = room.free_devices(node);
            let more = slice.count - used.count();
            let enough = free.count() >= more && tasks_by_cores(room, role, node) > 0;
            enough.then(|| (node, used.union(free.lowest(more))))
        })
    }

    /// Tasks without GPUs: on nodes the job already has, then on one node that holds them all, then wherever there is
    /// room; on nodes without GPUs before others, whose cores GPU jobs will want.
    fn place_cpu_role(&mut self, index: u8, role: &Role, tasks: u32) -> Option<()> {
        let mut left = tasks;
        let mut chosen: Vec<(NodeId, u32)> = Vec::new();
        let mut own: Vec<NodeId> = self.slots.iter().map(|slot| slot.node).collect();
        own.sort_unstable();
        own.dedup();
        for node in own {
            self.take_tasks(role, node, &mut left, &mut chosen);
        }
        if left > 0 {
            let others = self.other_nodes();
            let whole = others.iter().copied().find(|&node| self.tasks_beside(role, node) >= left);
            for node in whole.into_iter().chain(others.iter().copied()) {
                if left == 0 {
                    break;
                }
                self.take_tasks(role, node, &mut left, &mut chosen);
            }
        }
        let slots = chosen.into_iter().map(|(node, tasks)| slot(role, index, node, tasks, SliceSet::NONE));
        self.slots.extend(slots);
        (left == 0).then_some(())
    }

    fn other_nodes(&self) -> Vec<NodeId> {
        let cluster = self.snapshot.cluster();
        let open = self.room.open_nodes().filter(|&node| self.slots.iter().all(|slot| slot.node != node));
        let (bare, with_gpus): (Vec<_>, Vec<_>) = open.partition(|&node| cluster.node(node).kind.is_none());
        bare.into_iter().chain(with_gpus).collect()
    }

    fn take_tasks(&self, role: &Role, node: NodeId, left: &mut u32, chosen: &mut Vec<(NodeId, u32)>) {
        let tasks = self.tasks_beside(role, node).min(*left);
        if tasks > 0 {
            chosen.push((node, tasks));
            *left -= tasks;
        }
    }

    /// How many tasks of a role without GPUs fit on a node beside what the job already puts there.
    fn tasks_beside(&self, role: &Role, node: NodeId) -> u32 {
        let own = self.slots.iter().filter(|slot| slot.node == node);
        let (cores, memory) =
            own.fold((0, Bytes::ZERO), |(cores, memory), slot| (cores + slot.millicores, memory + slot.memory));
        let cores = self.room.millicores(node).saturating_sub(cores);
        tasks_within(role, cores, self.room.memory(node).saturating_sub(memory))
    }
}

/// Nodes of one kind as seen by one role whose tasks take whole devices.
struct Nodes<'s> {
    room: &'s Room,
    snapshot: &'s Snapshot<'s>,
    kind: GpuKind,
    role: &'s Role,
    gpus: u32,
}

impl Nodes<'_> {
    /// How many tasks fit on a node.
    fn tasks(&self, node: NodeId) -> u32 {
        let by_gpus = self.room.free_devices(node).count() / self.gpus;
        by_gpus.min(tasks_by_cores(self.room, self.role, node))
    }

    fn pack(&self, tasks: u32) -> Option<Vec<(NodeId, u32)>> {
        let needed = tasks.saturating_mul(self.gpus);
        if let Some(node) = self.room.nodes_from(self.kind, needed).find(|&node| self.tasks(node) >= tasks) {
            return Some(vec![(node, tasks)]);
        }
        let cluster = self.snapshot.cluster();
        let anywhere = self.emptiest_first(tasks)?;
        if cluster.rack_count() == 1 {
            return Some(anywhere);
        }
        let in_rack = |node| u32::from(cluster.node(node).rack.0);
        let below_switch = |node| u32::from(cluster.switch_of(node).0);
        let nearby = self.within_one(tasks, anywhere.len(), in_rack);
        Some(nearby.or_else(|| self.within_one(tasks, anywhere.len(), below_switch)).unwrap_or(anywhere))
    }

    /// The emptiest nodes one after the other, and for the remainder the node it fits best.
    fn emptiest_first(&self, tasks: u32) -> Option<Vec<(NodeId, u32)>> {
        let mut chosen = self.fill(self.by_tasks(), tasks)?;
        let (last, remainder) = chosen.pop()?;
        let taken = |node| chosen.iter().any(|&(other, _)| other == node);
        let mut fitting = self.room.nodes_from(self.kind, remainder * self.gpus);
        let best = fitting.find(|&node| self.tasks(node) >= remainder && !taken(node)).unwrap_or(last);
        chosen.push((best, remainder));
        Some(chosen)
    }

    /// Nodes by how many tasks they take, most first. That is the room's own order unless cores or memory count too.
    fn by_tasks(&self) -> Box<dyn Iterator<Item = NodeId> + '_> {
        if self.role.millicores == 0 && self.role.memory == Bytes::ZERO {
            return Box::new(self.room.emptiest(self.kind));
        }
        let mut nodes: Vec<NodeId> = self.room.emptiest(self.kind).collect();
        nodes.sort_by_key(|&node| Reverse(self.tasks(node)));
        Box::new(nodes.into_iter())
    }

    /// The same number of nodes within one rack, or below one switch, if one of those has the room. Of several the one
    /// with the least room.
    fn within_one(&self, tasks: u32, fewest: usize, place: impl Fn(NodeId) -> u32) -> Option<Vec<(NodeId, u32)>> {
        let mut places: BTreeMap<u32, Vec<(u32, NodeId)>> = BTreeMap::new();
        for node in self.by_tasks() {
            let here = self.tasks(node);
            if here > 0 {
                places.entry(place(node)).or_default().push((here, node));
            }
        }
        let largest = |nodes: &Vec<(u32, NodeId)>| nodes.iter().take(fewest).map(|(tasks, _)| tasks).sum::<u32>();
        let with_room = places.values().filter(|nodes| largest(nodes) >= tasks);
        let tightest = with_room.min_by_key(|nodes| nodes.iter().map(|(tasks, _)| tasks).sum::<u32>())?;
        let mut chosen = Vec::new();
        let mut left = tasks;
        for &(here, node) in tightest {
            if here >= left {
                break;
            }
            chosen.push((node, here));
            left -= here;
        }
        let taken = chosen.len();
        let (_, last) = tightest[taken..].iter().rev().find(|(here, _)| *here >= left)?;
        chosen.push((*last, left));
        Some(chosen)
    }

    /// As much as fits on each node in turn.
    fn fill(&self, nodes: impl Iterator<Item = NodeId>, tasks: u32) -> Option<Vec<(NodeId, u32)>> {
        let mut chosen = Vec::new();
        let mut left = tasks;
        for node in nodes {
            let here = self.tasks(node).min(left);
            if here > 0 {
                chosen.push((node, here));
                left -= here;
            }
            if left == 0 {
                return Some(chosen);
            }
        }
        None
    }

    fn spread(&self, tasks: u32) -> Option<Vec<(NodeId, u32)>> {
        let open: Vec<(NodeId, u32)> = self.by_tasks().map(|node| (node, self.tasks(node))).collect();
        if open.iter().map(|(_, most)| u64::from(*most)).sum::<u64>() < u64::from(tasks) {
            return None;
        }
        let mut given = vec![0_u32; open.len()];
        let mut left = tasks;
        while left > 0 {
            for ((_, most), given) in open.iter().zip(&mut given) {
                let more = u32::from(*given < *most && left > 0);
                *given += more;
                left -= more;
            }
        }
        let chosen = open.iter().zip(given).map(|((node, _), given)| (*node, given));
        Some(chosen.filter(|(_, given)| *given > 0).collect())
    }

    /// Whether the open nodes, were they empty, would not do with fewer of them.
    fn is_fewest(&self, tasks: u32, nodes: usize) -> bool {
        if nodes <= 1 {
            return true;
        }
        let books = self.snapshot.books;
        let of_kind = books.cluster.nodes().filter(|(id, node)| node.kind == Some(self.kind) && self.room.is_open(*id));
        let mut most: Vec<u32> = of_kind
            .map(|(id, node)| {
                let devices = u32::from(node.gpus) - books.node_status(id).broken.count();
                (devices / self.gpus).min(tasks_within(self.role, node.millicores, node.memory))
            })
            .collect();
        most.sort_unstable_by_key(|&tasks| Reverse(tasks));
        most.iter().take(nodes - 1).map(|&tasks| u64::from(tasks)).sum::<u64>() < u64::from(tasks)
    }
}

/// How many tasks of a role the free cores and memory of a node are enough for.
pub fn tasks_by_cores(room: &Room, role: &Role, node: NodeId) -> u32 {
    tasks_within(role, room.millicores(node), room.memory(node))
}

fn tasks_within(role: &Role, millicores: u32, memory: Bytes) -> u32 {
    let by_cores = millicores.checked_div(role.millicores).unwrap_or(u32::MAX);
    let by_memory = memory.get().checked_div(role.memory.get()).unwrap_or(u64::MAX);
    by_cores.min(u32::try_from(by_memory).unwrap_or(u32::MAX))
}

fn slot(role: &Role, index: u8, node: NodeId, tasks: u32, slices: SliceSet) -> Slot {
    Slot { node, role: index, tasks, slices, millicores: role.millicores * tasks, memory: role.memory * tasks }
}

/// A placement with the batch size that goes with it.
pub fn allotment(claim: &Claim, workers: u32, placement: Placement) -> Arc<Allotment> {
    Arc::new(Allotment { placement, batch: batch(claim, workers) })
}

/// The batch of an adaptive job grows with its workers, so that each worker keeps its part (weak scaling), within the
/// range the job allows. Jobs that are tuned while they run are left to that.
pub fn batch(claim: &Claim, workers: u32) -> Option<u32> {
    let scaling = claim.spec.scaling;
    let range = scaling.batch().filter(|_| claim.speed.adaptation.is_none())?;
    let grown = u64::from(range.initial) * u64::from(workers) / u64::from(scaling.min());
    Some(grown.clamp(u64::from(range.initial), u64::from(range.max)) as u32)
}

/// A part of the placement with fewer workers, on as few of its nodes as will do. What is in `keep` stays first.
pub fn trimmed(spec: &JobSpec, placement: &Placement, workers: u32, keep: Option<&Placement>) -> Placement {
    let kept = |slot: &Slot| {
        let same = keep.into_iter().flat_map(Placement::slots);
        let same = same.filter(|kept| kept.node == slot.node && kept.role == slot.role);
        let kept = same.fold(Devices::NONE, |devices, kept| devices.union(kept.slices.devices));
        kept.without(kept.without(slot.slices.devices))
    };
    let mut slots = Vec::new();
    for (index, role) in spec.roles.iter().enumerate() {
        let mut of_role: Vec<Slot> =
            placement.slots().iter().filter(|slot| usize::from(slot.role) == index).copied().collect();
        of_role.sort_by_key(|slot| (Reverse(kept(slot).count()), Reverse(slot.tasks)));
        let mut left = role.tasks(workers);
        for slot in of_role {
            let tasks = slot.tasks.min(left);
            if tasks > 0 {
                slots.push(with_tasks(role, slot, tasks, kept(&slot)));
            }
            left -= tasks;
        }
    }
    Placement::new(slots)
}

fn with_tasks(role: &Role, mut slot: Slot, tasks: u32, keep: Devices) -> Slot {
    let devices = role.slice.map_or(0, |slice| slice.count * tasks);
    let keep = keep.lowest(devices.min(keep.count()));
    slot.tasks = tasks;
    slot.slices.devices = keep.union(slot.slices.devices.without(keep).lowest(devices - keep.count()));
    slot.millicores = role.millicores * tasks;
    slot.memory = role.memory * tasks;
    slot
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{self, Scenario};
    use cluster::{ClusterDraft, NodeDraft};

    /// Where the last job of the scenario would be placed.
    #[track_caller]
    fn check(scenario: Scenario, job: &str, style: Style, expected: &str) {
        let scenario = scenario.job(&format!("new {job}"));
        let snapshot = scenario.snapshot(None);
        let claim = snapshot.claim(scenario.id("new"));
        let placement = fit(snapshot.room(), &snapshot, claim, claim.spec.scaling.min(), style);
        let found = placement.map_or("nowhere".into(), |placement| text::placement(snapshot.cluster(), &placement));
        assert_eq!(found, expected);
    }

    fn holes() -> Scenario {
        Scenario::new("4x4").job("a 1 gpu runs n0:0").job("b 2 gpus runs n1:0-1").job("c 3 gpus runs n2:0-2")
    }

    #[test]
    fn packing_takes_the_tightest_node() {
        check(holes(), "1 gpu", Style::Pack, "n2:3");
        check(holes(), "2 gpus", Style::Pack, "n1:2-3");
        check(holes(), "4 gpus", Style::Pack, "n3:0-3");
    }

    #[test]
    fn packing_over_several_nodes_takes_few_and_ends_on_the_tightest() {
        check(holes(), "5 gpus", Style::Pack, "n2:3 n3:0-3");
        check(holes(), "9 gpus", Style::Pack, "n0:1-3 n1:2-3 n3:0-3");
        check(holes(), "11 gpus", Style::Pack, "nowhere");
    }

    #[test]
    fn consolidation_rather_waits_than_spreads() {
        check(holes(), "3 gpus", Style::Consolidate, "n0:1-3");
        check(holes(), "7 gpus", Style::Consolidate, "n0:1-3 n3:0-3");
        let full = holes().job("d 4 gpus runs n3:0-3");
        check(full, "4 gpus", Style::Consolidate, "nowhere");
    }

    #[test]
    fn scattering_uses_up_fragments_and_leaves_empty_nodes_alone() {
        check(holes(), "4 gpus", Style::Scatter, "n0:1 n1:2-3 n2:3");
    }

    #[test]
    fn the_emptiest_nodes_are_filled_even_where_another_would_fit_exactly() {
        check(holes(), "2 gpus", Style::Emptiest, "n3:0-1");
        check(holes(), "8 gpus", Style::Emptiest, "n0:1-3 n1:2 n3:0-3");
    }

    #[test]
    fn spreading_goes_round_the_emptiest_nodes() {
        check(holes(), "5 gpus", Style::Spread, "n0:1 n1:2 n2:3 n3:0-1");
    }

    #[test]
    fn the_fastest_kind_with_room_is_taken() {
        let cluster = || Scenario::new("1x2 t4, 1x2 a100");
        check(cluster(), "2 gpus speed t4=1 a100=5", Style::Pack, "b-0:0-1");
        check(cluster().job("a 1 gpu runs b-0:0"), "2 gpus speed t4=1 a100=5", Style::Pack, "a-0:0-1");
        check(cluster(), "2 gpus on t4 speed t4=1 a100=5", Style::Pack, "a-0:0-1");
    }

    #[test]
    fn a_kind_on_which_the_job_does_not_run_is_not_taken() {
        let cluster = Scenario::new("1x2 t4, 1x2 a100").job("a 2 gpus runs b-0:0-1");
        check(cluster, "1 gpu speed a100=5", Style::Pack, "nowhere");
    }

    #[test]
    fn of_equal_kinds_the_one_with_fewer_nodes_and_less_left_over_is_taken() {
        check(Scenario::new("2x2 t4, 1x4 a100"), "4 gpus", Style::Pack, "b-0:0-3");
        check(Scenario::new("1x8 t4, 1x4 a100"), "4 gpus", Style::Pack, "b-0:0-3");
    }

    #[test]
    fn a_device_that_is_too_small_is_not_taken() {
        check(Scenario::new("1x1 t4, 1x1 a100"), "1 gpu device-memory 20g", Style::Pack, "b-0:0");
        check(Scenario::new("1x1 t4"), "1 gpu device-memory 20g", Style::Pack, "nowhere");
    }

    #[test]
    fn cores_and_memory_limit_the_tasks_on_a_node() {
        // A node has 64 cores and 512 GiB.
        check(Scenario::new("2x4"), "4 gpus cores 32", Style::Pack, "n0:0-1 n1:0-1");
        check(Scenario::new("2x4"), "3 gpus memory 256g", Style::Pack, "n0:0-1 n1:0");
        check(Scenario::new("2x4"), "4 gpus cores 33", Style::Pack, "nowhere");
    }

    #[test]
    fn parameter_servers_join_the_workers_and_overflow_to_bare_nodes() {
        check(Scenario::new("1x2, 1x0"), "2 gpus cores 8 servers 2 cores 8", Style::Pack, "a-0:0-1 a-0/1*2");
        check(Scenario::new("1x2, 1x0"), "2 gpus cores 24 servers 2 cores 16", Style::Pack, "a-0:0-1 a-0/1*1 b-0/1*1");
    }

    #[test]
    fn a_job_without_gpus_leaves_gpu_nodes_alone() {
        check(Scenario::new("1x2, 2x0"), "3 workers cpu cores 32", Style::Pack, "b-0*2 b-1*1");
    }

    #[test]
    fn shares_go_where_the_least_is_left_over() {
        let cluster = Scenario::new("1x3 t4").job("a share 0.3 2g runs n0:0").job("b share 0.5 2g runs n0:1");
        check(cluster, "share 0.5 4g", Style::Pack, "n0:1~0.5");
    }

    #[test]
    fn shares_open_a_free_device_when_no_other_has_room() {
        let cluster = || Scenario::new("1x2 t4").job("a share 0.6 2g runs n0:0");
        check(cluster(), "share 0.5 4g", Style::Pack, "n0:1~0.5");
        check(cluster(), "3 workers share 0.5 4g", Style::Pack, "nowhere");
    }

    #[test]
    fn several_workers_may_share_a_device() {
        check(Scenario::new("1x2 t4"), "3 workers share 0.5 4g", Style::Pack, "n0:0~0.5 n0:0~0.5 n0:1~0.5");
    }

    #[test]
    fn mig_needs_a_kind_that_can_be_cut() {
        check(Scenario::new("1x1 t4, 1x1 a100"), "mig 3g", Style::Pack, "b-0:0~3g");
        check(Scenario::new("1x1 t4"), "mig 3g", Style::Pack, "nowhere");
    }

    #[test]
    fn mig_instances_fill_a_cut_device_first() {
        let cluster = || Scenario::new("1x2 a100").job("a mig 4g runs n0:1");
        check(cluster(), "mig 3g", Style::Pack, "n0:1~3g");
        check(cluster(), "mig 4g", Style::Pack, "n0:0~4g");
    }

    #[test]
    fn a_mig_instance_must_have_the_memory_asked_for() {
        check(Scenario::new("1x1 a100"), "mig 2g device-memory 10g", Style::Pack, "n0:0~2g");
        check(Scenario::new("1x1 a100"), "mig 2g device-memory 11g", Style::Pack, "nowhere");
    }

    fn racks() -> Scenario {
        let mut draft = ClusterDraft::parse_short("1x4 t4").unwrap();
        let node = |name: &str, rack: &str, switch: &str| NodeDraft {
            name: name.into(),
            kind: Some("t4".into()),
            gpus: 4,
            rack: rack.into(),
            switch: switch.into(),
            ..NodeDraft::default()
        };
        draft.nodes = vec![
            node("a", "r0", "s0"),
            node("b", "r1", "s0"),
            node("c", "r2", "s1"),
            node("d", "r3", "s2"),
            node("e", "r3", "s2"),
        ];
        Scenario::from_draft(&draft)
    }

    #[test]
    fn several_nodes_are_taken_in_one_rack() {
        check(racks(), "8 gpus", Style::Pack, "d:0-3 e:0-3");
    }

    #[test]
    fn without_room_in_one_rack_they_are_taken_below_one_switch() {
        check(racks().job("x 1 gpu runs d:0"), "8 gpus", Style::Pack, "a:0-3 b:0-3");
    }

    #[test]
    fn fewer_nodes_count_more_than_one_rack() {
        let scenario = racks().job("x 1 gpu runs d:0").job("y 1 gpu runs a:0");
        check(scenario, "8 gpus", Style::Pack, "b:0-3 c:0-3");
    }

    #[test]
    fn the_batch_grows_with_the_workers_within_its_range() {
        let scenario = Scenario::new("1x8").job("a adaptive 2..8 batch 32..100");
        let snapshot = scenario.snapshot(None);
        let claim = snapshot.claim(scenario.id("a"));
        let batch = |workers| allotment(claim, workers, Placement::new(Vec::new())).batch;
        assert_eq!((batch(2), batch(4), batch(8)), (Some(32), Some(64), Some(100)));
    }

    #[test]
    fn a_shrunk_job_stays_where_most_of_it_is() {
        let scenario = Scenario::new("2x4").job("a elastic 2..6 runs n0:0-1 runs n1:0-2");
        let snapshot = scenario.snapshot(None);
        let claim = snapshot.claim(scenario.id("a"));
        let small = trimmed(&claim.spec, &claim.target.as_ref().unwrap().placement, 2, None);
        assert_eq!(text::placement(snapshot.cluster(), &small), "n1:0-1");
    }

    #[test]
    fn a_shrunk_job_keeps_the_devices_it_is_to_keep() {
        let scenario = Scenario::new("2x4").job("a elastic 1..6 runs n0:0-1 runs n1:0-2");
        let snapshot = scenario.snapshot(None);
        let claim = snapshot.claim(scenario.id("a"));
        let placement = &claim.target.as_ref().unwrap().placement;
        let part = trimmed(&claim.spec, placement, 1, Some(&trimmed(&claim.spec, placement, 5, None)));
        assert_eq!(text::placement(snapshot.cluster(), &part), "n1:0");
        let second = Slot { slices: SliceSet { devices: Devices(0b10), grain: Grain::Whole }, ..placement.slots()[0] };
        let keep = Placement::new(vec![Slot { tasks: 1, ..second }]);
        let part = trimmed(&claim.spec, placement, 1, Some(&keep));
        assert_eq!(text::placement(snapshot.cluster(), &part), "n0:1");
    }
}
