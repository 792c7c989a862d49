//! Whether a plan may be carried out. Written from the rules alone: it shares no code with the policies, nor with the
//! room they search, and adds up for itself what would be held where.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use cluster::{Bytes, ClaimId, Devices, Gpus, Grain, MigProfile, NodeId, QueueId, Slot};
use serde::{Deserialize, Serialize};

use crate::books::{Availability, Books};
use crate::claim::{Allotment, Claim};
use crate::policy::Plan;
use crate::snapshot::Snapshot;

/// Something a plan must never do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    UnknownClaim(ClaimId),
    /// Ended, or waits for other jobs.
    NotEligible(ClaimId),
    NamedTwice(ClaimId),
    /// A number of workers the job does not allow.
    Workers {
        claim: ClaimId,
        workers: u32,
    },
    /// A role with more or fewer tasks than its workers need.
    Gang {
        claim: ClaimId,
        role: u8,
        needed: u32,
        found: u32,
    },
    /// A slot whose slices, cores or memory are not those of its tasks.
    Slot {
        claim: ClaimId,
        node: NodeId,
    },
    /// A GPU kind the job does not allow, or not with so many workers, or two kinds at once.
    Kind {
        claim: ClaimId,
        node: NodeId,
    },
    /// A device too small for what the job needs of it, or that cannot be cut.
    Device {
        claim: ClaimId,
        node: NodeId,
    },
    Batch {
        claim: ClaimId,
        batch: Option<u32>,
    },
    /// A node that does not exist or takes no jobs.
    Closed {
        claim: ClaimId,
        node: NodeId,
    },
    /// A device that does not exist or is broken.
    Broken {
        claim: ClaimId,
        node: NodeId,
    },
    /// More taken of a device than there is.
    Overcommitted {
        node: NodeId,
        device: u8,
    },
    Cores {
        node: NodeId,
    },
    Memory {
        node: NodeId,
    },
    /// A queue above its limit.
    Limit {
        queue: QueueId,
    },
}

/// Faults in what the plan changes, and in what it touches by that.
pub fn check(plan: &Plan, snapshot: &Snapshot<'_>) -> Vec<Fault> {
    let books = snapshot.books;
    let mut faults = Vec::new();
    let mut after: BTreeMap<ClaimId, Option<&Allotment>> = BTreeMap::new();
    for (id, allotment) in &plan.changes {
        let Some(claim) = books.claims().get(*id) else {
            faults.push(Fault::UnknownClaim(*id));
            continue;
        };
        if after.insert(*id, allotment.as_deref()).is_some() {
            faults.push(Fault::NamedTwice(*id));
        }
        if let Some(allotment) = allotment {
            if !claim.is_eligible() {
                faults.push(Fault::NotEligible(*id));
            }
            allotment_faults(books, claim, allotment, &mut faults);
        }
    }
    if !faults.is_empty() {
        return faults;
    }
    let touched: BTreeSet<NodeId> =
        after.values().flatten().flat_map(|allotment| allotment.placement.nodes()).collect();
    for node in touched {
        let staying = books.claims_on(node).iter().filter(|id| !after.contains_key(id));
        let staying = staying.filter_map(|&id| books.claim(id).target.as_deref());
        let holders = staying.chain(after.values().copied().flatten());
        node_faults(books, node, holders, &mut faults);
    }
    limit_faults(books, &after, &mut faults);
    faults
}

/// Faults in everything that would be held after the plan, whether the plan touches it or not.
pub fn check_everything(plan: &Plan, snapshot: &Snapshot<'_>) -> Vec<Fault> {
    let mut faults = check(plan, snapshot);
    if !faults.is_empty() {
        return faults;
    }
    let books = snapshot.books;
    let mut after: BTreeMap<ClaimId, &Allotment> =
        books.claims().iter().filter_map(|claim| Some((claim.id, claim.target.as_deref()?))).collect();
    for (id, allotment) in &plan.changes {
        match allotment {
            Some(allotment) => after.insert(*id, allotment),
            None => after.remove(id),
        };
    }
    for (&id, allotment) in &after {
        allotment_faults(books, books.claim(id), allotment, &mut faults);
    }
    for (node, _) in books.cluster.nodes() {
        node_faults(books, node, after.values().copied(), &mut faults);
    }
    for (id, queue) in books.queues.iter() {
        let below = after
            .iter()
            .filter(|(claim, _)| books.queues.ancestry(books.claim(**claim).spec.queue).any(|ancestor| ancestor == id));
        let used: Gpus = below.map(|(_, allotment)| allotment.placement.gpus()).sum();
        if queue.limit.is_some_and(|limit| used > limit) {
            faults.push(Fault::Limit { queue: id });
        }
    }
    faults
}

/// Whether a claim may be given something on a node: it is open, or the claim is there already and may stay.
fn may_be_on(books: &Books, claim: ClaimId, node: NodeId) -> bool {
    match books.node_status(node).availability {
        Availability::Open => true,
        Availability::Cordoned => books.claims_on(node).contains(&claim),
        Availability::Drained | Availability::Lost | Availability::Removed => false,
    }
}

/// What is wrong with an allotment whatever else there is.
fn allotment_faults(books: &Books, claim: &Claim, allotment: &Allotment, faults: &mut Vec<Fault>) {
    let (spec, speed) = (&claim.spec, &claim.speed);
    let claim = claim.id;
    let slots = allotment.placement.slots();
    let tasks_of = |role: usize| -> u32 {
        slots.iter().filter(|slot| usize::from(slot.role) == role).map(|slot| slot.tasks).sum()
    };
    let workers = tasks_of(0);
    if !spec.scaling.allows(workers) {
        faults.push(Fault::Workers { claim, workers });
    }
    for (index, role) in spec.roles.iter().enumerate() {
        let (needed, found) = (role.tasks(workers), tasks_of(index));
        if needed != found {
            faults.push(Fault::Gang { claim, role: index as u8, needed, found });
        }
    }
    match (spec.scaling.batch(), allotment.batch) {
        (None, None) | (Some(_), None) => {}
        (Some(range), Some(batch)) if (range.initial..=range.max).contains(&batch) => {}
        (_, batch) => faults.push(Fault::Batch { claim, batch }),
    }
    let mut kind = None;
    for slot in slots {
        let node = slot.node;
        if node.0 as usize >= books.cluster.node_count() || !may_be_on(books, claim, node) {
            faults.push(Fault::Closed { claim, node });
            continue;
        }
        if !slot_is_well_formed(claim, books, slot) {
            faults.push(Fault::Slot { claim, node });
        }
        if slot.slices.devices.is_empty() {
            continue;
        }
        let exist = Devices::first(u32::from(books.cluster.node(node).gpus));
        if !exist.without(books.node_status(node).broken).contains(slot.slices.devices) {
            faults.push(Fault::Broken { claim, node });
            continue;
        }
        let here = books.cluster.node(node).kind.expect("a node with devices has a kind");
        let allowed = spec.allows_kind(here) && speed.allows(Some(here), workers);
        if !allowed || *kind.get_or_insert(here) != here {
            faults.push(Fault::Kind { claim, node });
        }
        if !device_suffices(books, claim, slot) {
            faults.push(Fault::Device { claim, node });
        }
    }
}

fn slot_is_well_formed(claim: ClaimId, books: &Books, slot: &Slot) -> bool {
    let Some(role) = books.claim(claim).spec.roles.get(usize::from(slot.role)) else { return false };
    let slices = match role.slice {
        None => slot.slices.devices.is_empty(),
        Some(slice) => {
            slot.slices.grain == slice.grain && slot.slices.devices.count() == slot.tasks.saturating_mul(slice.count)
        }
    };
    let cores = u64::from(role.millicores) * u64::from(slot.tasks) == u64::from(slot.millicores);
    slot.tasks > 0 && slices && cores && role.memory * slot.tasks == slot.memory
}

fn device_suffices(books: &Books, claim: ClaimId, slot: &Slot) -> bool {
    let kind = books.cluster.kind(books.cluster.node(slot.node).kind.expect("a node with devices has a kind"));
    let needed = books.claim(claim).spec.roles.get(usize::from(slot.role)).and_then(|role| role.slice);
    let needed = needed.map_or(Bytes::ZERO, |slice| slice.memory).get();
    match slot.slices.grain {
        Grain::Whole | Grain::Share { .. } => needed <= kind.memory.get(),
        Grain::Mig(profile) => kind.mig && needed * 8 <= kind.memory.get() * u64::from(profile.memory()),
    }
}

/// What is wrong on one node if these allotments are held. Slots on other nodes are passed over.
fn node_faults<'a>(books: &Books, node: NodeId, holders: impl Iterator<Item = &'a Allotment>, faults: &mut Vec<Fault>) {
    let (mut millicores, mut memory) = (0_u64, 0_u64);
    let mut devices: BTreeMap<u8, DeviceUse> = BTreeMap::new();
    let slots = holders.flat_map(|allotment| allotment.placement.slots()).filter(|slot| slot.node == node);
    for slot in slots {
        millicores += u64::from(slot.millicores);
        memory += slot.memory.get();
        for device in slot.slices.devices.iter() {
            devices.entry(device).or_default().add(slot.slices.grain);
        }
    }
    let machine = books.cluster.node(node);
    if millicores > u64::from(machine.millicores) {
        faults.push(Fault::Cores { node });
    }
    if memory > machine.memory.get() {
        faults.push(Fault::Memory { node });
    }
    let device_memory = machine.kind.map_or(0, |kind| books.cluster.kind(kind).memory.get());
    for (device, used) in devices {
        if !used.is_within(device_memory) {
            faults.push(Fault::Overcommitted { node, device });
        }
    }
}

#[derive(Debug, Default)]
struct DeviceUse {
    whole: u32,
    mig_compute: u32,
    mig_memory: u32,
    thousandths: u32,
    memory: u64,
}

impl DeviceUse {
    fn add(&mut self, grain: Grain) {
        match grain {
            Grain::Whole => self.whole += 1,
            Grain::Mig(profile) => {
                self.mig_compute += profile.compute();
                self.mig_memory += profile.memory();
            }
            Grain::Share { thousandths, memory } => {
                self.thousandths += u32::from(thousandths);
                self.memory += memory.get();
            }
        }
    }

    /// A device is used in one way only: by one job, cut, or shared.
    fn is_within(&self, device_memory: u64) -> bool {
        let ways = u32::from(self.whole > 0) + u32::from(self.mig_compute > 0) + u32::from(self.thousandths > 0);
        ways == 1
            && self.whole <= 1
            && self.mig_compute <= MigProfile::COMPUTE
            && self.mig_memory <= MigProfile::MEMORY
            && self.thousandths <= 1000
            && self.memory <= device_memory
    }
}

fn limit_faults(books: &Books, after: &BTreeMap<ClaimId, Option<&Allotment>>, faults: &mut Vec<Fault>) {
    let mut change: BTreeMap<QueueId, i64> = BTreeMap::new();
    let thousandths = |allotment: &Allotment| i64::from(allotment.placement.gpus().as_thousandths());
    for (&id, allotment) in after {
        let claim = books.claim(id);
        let more = allotment.map_or(0, thousandths) - claim.target.as_deref().map_or(0, thousandths);
        books.queues.ancestry(claim.spec.queue).for_each(|queue| *change.entry(queue).or_default() += more);
    }
    for (queue, more) in change {
        let used = i64::from(books.used(queue).as_thousandths()) + more;
        let limit = books.queues.queue(queue).limit.map(|limit| i64::from(limit.as_thousandths()));
        if more > 0 && limit.is_some_and(|limit| used > limit) {
            faults.push(Fault::Limit { queue });
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::UnknownClaim(claim) => write!(f, "there is no job {claim}"),
            Fault::NotEligible(claim) => write!(f, "job {claim} has ended or waits for other jobs"),
            Fault::NamedTwice(claim) => write!(f, "job {claim} is named twice"),
            Fault::Workers { claim, workers } => write!(f, "job {claim} does not allow {workers} workers"),
            Fault::Gang { claim, role, needed, found } => {
                write!(f, "job {claim} needs {needed} tasks of role {role}, the plan has {found}")
            }
            Fault::Slot { claim, node } => write!(f, "job {claim} on {node}: not what its tasks take"),
            Fault::Kind { claim, node } => write!(f, "job {claim} on {node}: a kind of GPU it may not have there"),
            Fault::Device { claim, node } => write!(f, "job {claim} on {node}: the GPU is too small or cannot be cut"),
            Fault::Batch { claim, batch } => write!(f, "job {claim} does not allow batch size {batch:?}"),
            Fault::Closed { claim, node } => write!(f, "job {claim} on {node}, which takes no jobs"),
            Fault::Broken { claim, node } => write!(f, "job {claim} on {node}: a GPU that is broken or not there"),
            Fault::Overcommitted { node, device } => write!(f, "{node}: GPU {device} is given away more than once"),
            Fault::Cores { node } => write!(f, "{node}: more cores given away than there are"),
            Fault::Memory { node } => write!(f, "{node}: more memory given away than there is"),
            Fault::Limit { queue } => write!(f, "queue {} above its limit", queue.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Scenario;
    use cluster::{ClusterDraft, Placement, QueueDraft, SliceSet};
    use std::sync::Arc;

    fn slot(node: u32, devices: u64, grain: Grain) -> Slot {
        let slices = SliceSet { devices: Devices(devices), grain };
        Slot { node: NodeId(node), role: 0, tasks: slices.devices.count(), slices, millicores: 0, memory: Bytes::ZERO }
    }

    fn allotment(slots: Vec<Slot>) -> Allotment {
        Allotment { placement: Placement::new(slots), batch: None }
    }

    /// What is wrong if the named jobs are given these slots; both checks must agree.
    fn faults(scenario: &Scenario, given: Vec<(&str, Allotment)>) -> Vec<String> {
        let changes = given.into_iter().map(|(job, allotment)| (scenario.id(job), Some(Arc::new(allotment)))).collect();
        let plan = Plan { changes, ..Plan::default() };
        let found = check(&plan, &scenario.snapshot(None));
        assert_eq!(found.is_empty(), check_everything(&plan, &scenario.snapshot(None)).is_empty());
        found.iter().map(ToString::to_string).collect()
    }

    fn whole(node: u32, devices: u64) -> Allotment {
        allotment(vec![slot(node, devices, Grain::Whole)])
    }

    #[test]
    fn a_sound_plan_has_no_faults() {
        let scenario = Scenario::new("1x4").job("a 2 gpus").job("b 2 gpus runs n0:2-3");
        assert_eq!(faults(&scenario, vec![("a", whole(0, 0b11))]), [] as [&str; 0]);
    }

    #[test]
    fn devices_that_someone_keeps_cannot_be_given_again() {
        let scenario = Scenario::new("1x4").job("a 2 gpus").job("b 2 gpus runs n0:2-3");
        assert_eq!(faults(&scenario, vec![("a", whole(0, 0b110))]), ["node 0: GPU 2 is given away more than once"]);
    }

    #[test]
    fn a_gang_is_given_whole() {
        let scenario = Scenario::new("1x4").job("a 3 gpus").job("b 2 workers servers 1 cores 1");
        assert_eq!(faults(&scenario, vec![("a", whole(0, 0b11))]), ["job 0 does not allow 2 workers"]);
        let without_server = faults(&scenario, vec![("b", whole(0, 0b11))]);
        assert_eq!(without_server, ["job 1 needs 1 tasks of role 1, the plan has 0"]);
    }

    #[test]
    fn kinds_are_not_mixed_and_only_those_allowed_are_used() {
        let scenario = Scenario::new("1x2 t4, 1x2 a100").job("a 2 gpus").job("b 1 gpus on a100");
        let mixed = allotment(vec![slot(0, 1, Grain::Whole), slot(1, 1, Grain::Whole)]);
        assert_eq!(faults(&scenario, vec![("a", mixed)]), ["job 0 on node 1: a kind of GPU it may not have there"]);
        assert_eq!(
            faults(&scenario, vec![("b", whole(0, 1))]),
            ["job 1 on node 0: a kind of GPU it may not have there"]
        );
    }

    #[test]
    fn device_memory_and_mig_are_checked_not_assumed() {
        let scenario = Scenario::new("1x2 t4").job("a device-memory 20g").job("b mig 1g");
        assert_eq!(
            faults(&scenario, vec![("a", whole(0, 1))]),
            ["job 0 on node 0: the GPU is too small or cannot be cut"]
        );
        let cut = allotment(vec![slot(0, 1, Grain::Mig(MigProfile::G1))]);
        assert_eq!(faults(&scenario, vec![("b", cut)]), ["job 1 on node 0: the GPU is too small or cannot be cut"]);
    }

    #[test]
    fn cores_and_memory_of_a_node_are_not_given_twice() {
        let mut draft = ClusterDraft::parse_short("1x4").unwrap();
        draft.nodes[0].cores = 6.0;
        let scenario = Scenario::from_draft(&draft).job("a cores 4").job("b cores 4");
        let with_cores = |devices| allotment(vec![Slot { millicores: 4000, ..slot(0, devices, Grain::Whole) }]);
        let given = vec![("a", with_cores(1)), ("b", with_cores(2))];
        assert_eq!(faults(&scenario, given), ["node 0: more cores given away than there are"]);
        assert_eq!(faults(&scenario, vec![("a", whole(0, 1))]), ["job 0 on node 0: not what its tasks take"]);
    }

    #[test]
    fn a_queue_never_exceeds_its_limit() {
        let queues = [QueueDraft { limit: Some(2.0), ..QueueDraft::named("lab") }];
        let scenario = Scenario::with_queues("1x4", &queues).job("a 2 gpus queue lab runs n0:0-1").job("b queue lab");
        assert_eq!(faults(&scenario, vec![("b", whole(0, 0b100))]), ["queue 1 above its limit"]);
    }

    #[test]
    fn a_job_that_waits_for_others_gets_nothing() {
        let scenario = Scenario::new("1x4").job("a").job("b after a");
        assert_eq!(faults(&scenario, vec![("b", whole(0, 1))]), ["job 1 has ended or waits for other jobs"]);
    }

    #[test]
    fn devices_that_do_not_exist_are_not_given() {
        let scenario = Scenario::new("1x2").job("a 2 gpus");
        assert_eq!(
            faults(&scenario, vec![("a", whole(0, 0b110))]),
            ["job 0 on node 0: a GPU that is broken or not there"]
        );
        assert_eq!(faults(&scenario, vec![("a", whole(7, 0b11))]), ["job 0 on node 7, which takes no jobs"]);
    }

    #[test]
    fn the_batch_size_stays_in_its_range() {
        let scenario = Scenario::new("1x2").job("a adaptive 1..2 batch 32..64").job("b");
        let batch = |batch| Allotment { batch: Some(batch), ..whole(0, 1) };
        assert_eq!(faults(&scenario, vec![("a", batch(64))]), [] as [&str; 0]);
        assert_eq!(faults(&scenario, vec![("a", batch(65))]), ["job 0 does not allow batch size Some(65)"]);
        assert_eq!(faults(&scenario, vec![("b", batch(32))]), ["job 1 does not allow batch size Some(32)"]);
    }
}
