//! The books: everything a snapshot shows, kept consistent in one place. Facts go in through a few verbs; sums that
//! policies and checks need (free room, use of queues, who is on which node) follow by themselves.

use std::collections::BTreeMap;
use std::sync::Arc;

use cluster::{ClaimId, Cluster, Devices, GpuKind, Gpus, JobSpec, NodeId, Queue, QueueId, QueueTree, Slot, Time};
use perf::{Speed, StepReport, StepTime, Tuning};
use serde::{Deserialize, Serialize};

use crate::claim::{Allotment, Claim, Claims, Outcome, Phase};
use crate::history::History;
use crate::memory::Memory;
use crate::note::{Note, Obstacle, Reason};
use crate::resizing::Resizing;
use crate::room::Room;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Books {
    pub cluster: Cluster,
    pub queues: QueueTree,
    nodes: Vec<NodeStatus>,
    claims: Claims,
    room: Room,
    /// Claims whose target touches a node.
    on_node: Vec<Vec<ClaimId>>,
    /// GPUs given to the claims of each queue and of those below it.
    used: Vec<Gpus>,
    /// GPUs that eligible claims of each queue, and of those below it, could use.
    demand: Vec<Gpus>,
    dependents: BTreeMap<ClaimId, Vec<ClaimId>>,
    history: History,
    memory: Memory,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct NodeStatus {
    pub availability: Availability,
    pub broken: Devices,
}

/// Whether a node takes jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Availability {
    #[default]
    Open,
    /// Takes no further jobs; those on it stay.
    Cordoned,
    /// Takes no jobs; those on it are moved away.
    Drained,
    /// Does not answer.
    Lost,
    /// Gone for good.
    Removed,
}

impl NodeStatus {
    pub fn is_open(&self) -> bool {
        self.availability == Availability::Open
    }
}

impl Books {
    pub fn new(cluster: Cluster, queues: QueueTree) -> Books {
        let nodes = vec![NodeStatus::default(); cluster.node_count()];
        Books {
            room: Room::new(&cluster, &nodes),
            on_node: vec![Vec::new(); nodes.len()],
            used: vec![Gpus::ZERO; queues.len()],
            demand: vec![Gpus::ZERO; queues.len()],
            nodes,
            claims: Claims::default(),
            dependents: BTreeMap::new(),
            history: History::default(),
            memory: Memory::default(),
            cluster,
            queues,
        }
    }

    pub fn claims(&self) -> &Claims {
        &self.claims
    }

    #[inline]
    pub fn claim(&self, id: ClaimId) -> &Claim {
        self.claims.claim(id)
    }

    pub fn room(&self) -> &Room {
        &self.room
    }

    pub fn history(&self) -> &History {
        &self.history
    }

    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    pub fn node_status(&self, node: NodeId) -> &NodeStatus {
        &self.nodes[node.0 as usize]
    }

    /// Claims whose target touches the node.
    pub fn claims_on(&self, node: NodeId) -> &[ClaimId] {
        &self.on_node[node.0 as usize]
    }

    pub fn used(&self, queue: QueueId) -> Gpus {
        self.used[usize::from(queue.0)]
    }

    pub fn demand(&self, queue: QueueId) -> Gpus {
        self.demand[usize::from(queue.0)]
    }

    /// GPUs that work, on nodes that take jobs.
    pub fn capacity(&self) -> Gpus {
        let working = self.cluster.nodes().filter(|(id, _)| self.node_status(*id).is_open());
        working.map(|(id, node)| Gpus::whole(self.working(id, node.gpus).count())).sum()
    }

    /// Other queues from now on, in which every number means the same queue as before.
    pub fn set_queues(&mut self, queues: QueueTree) {
        assert!(self.queues.keeps_numbers_in(&queues), "numbers of queues keep their meaning");
        let moves = |(id, queue): (QueueId, &Queue)| self.queues.get(id).is_some_and(|it| it.parent != queue.parent);
        let has_moved = queues.iter().any(moves);
        self.used.resize(queues.len(), Gpus::ZERO);
        self.demand.resize(queues.len(), Gpus::ZERO);
        let before = std::mem::replace(&mut self.queues, queues);
        if has_moved {
            self.used = added_up_anew(&self.used, &before, &self.queues);
            self.demand = added_up_anew(&self.demand, &before, &self.queues);
        }
    }

    pub fn submit(&mut self, now: Time, spec: Arc<JobSpec>, speed: Arc<Speed>) -> ClaimId {
        let id = self.claims.submit(now, spec, speed);
        let claim = self.claims.claim(id);
        if claim.blocked_by == 0 {
            self.count_demand(id, true);
        } else {
            for after in claim.spec.after.clone() {
                self.dependents.entry(after).or_default().push(id);
            }
        }
        id
    }

    /// The next claim has this number.
    pub fn begin_numbers(&mut self, at: ClaimId) {
        self.claims.begin_at(at);
    }

    /// Nothing is known any more of a claim that has ended.
    pub fn forget(&mut self, id: ClaimId) {
        self.claims.forget(id);
    }

    /// From now on the claim is meant to hold this, or nothing.
    pub fn allot(&mut self, id: ClaimId, target: Option<Arc<Allotment>>) {
        if let Some(old) = self.claims.claim_mut(id).target.take() {
            self.room.give(&old.placement);
            old.placement.nodes().for_each(|node| self.on_node[node.0 as usize].retain(|&other| other != id));
            self.count_use(id, old.placement.gpus(), false);
        }
        if let Some(new) = &target {
            self.room.take(&new.placement);
            new.placement.nodes().for_each(|node| self.on_node[node.0 as usize].push(id));
            self.count_use(id, new.placement.gpus(), true);
        }
        self.claims.claim_mut(id).target = target;
    }

    pub fn set_phase(&mut self, id: ClaimId, phase: Phase) {
        assert!(!matches!(phase, Phase::Ended { .. }), "claims end by `end`");
        self.claims.set_phase(id, phase);
    }

    /// Nobody wants it any more: it is to hold nothing, and to end so.
    pub fn dismiss(&mut self, now: Time, id: ClaimId, outcome: Outcome) {
        self.keep_waiting(now, id, |claim| claim.leaves_as = Some(outcome));
    }

    /// Its user wants it to wait, or no longer.
    pub fn set_held(&mut self, now: Time, id: ClaimId, held: bool) {
        self.keep_waiting(now, id, |claim| {
            claim.held = held;
            claim.note = if held { Note::plain(Reason::Held) } else { claim.waiting_note() };
        });
    }

    /// It is left alone until then, or no longer.
    pub fn set_rest(&mut self, now: Time, id: ClaimId, until: Option<Time>) {
        self.keep_waiting(now, id, |claim| {
            claim.rests_until = until;
            claim.note = if until.is_some() { Note::plain(Reason::Backoff) } else { claim.waiting_note() };
        });
    }

    pub fn set_priority(&mut self, id: ClaimId, priority: i32) {
        self.claims.claim_mut(id).priority = priority;
    }

    /// The same moment of the wall clock lies elsewhere in our time.
    pub fn set_deadline(&mut self, id: ClaimId, deadline: Time) {
        Arc::make_mut(&mut self.claims.claim_mut(id).spec).set_deadline(deadline);
    }

    /// A change that may decide whether the claim is eligible. One that is not is to hold nothing, and nobody counts
    /// on it.
    fn keep_waiting(&mut self, now: Time, id: ClaimId, change: impl FnOnce(&mut Claim)) {
        let before = self.claim(id).is_eligible();
        change(self.claims.claim_mut(id));
        match (before, self.claim(id).is_eligible()) {
            (true, false) => {
                self.allot(id, None);
                self.count_demand(id, false);
            }
            (false, true) => self.becomes_eligible(now, id),
            (true, true) | (false, false) => {}
        }
    }

    /// Charges time up to now; from now on the claim physically holds `gpus`, or nothing.
    pub fn charge(&mut self, now: Time, id: ClaimId, gpus: Option<Gpus>) {
        self.claims.claim_mut(id).progress.hold(now, gpus);
    }

    #[inline]
    pub fn progress_mut(&mut self, id: ClaimId) -> &mut crate::claim::Progress {
        &mut self.claims.claim_mut(id).progress
    }

    /// A change of its workers in place is under way, or no longer.
    pub fn set_resizing(&mut self, id: ClaimId, resizing: Option<Resizing>) {
        self.claims.claim_mut(id).resizing = resizing;
    }

    /// What its present run can do with its workers is not known yet.
    pub fn forget_resizable(&mut self, id: ClaimId) {
        let claim = self.claims.claim_mut(id);
        (claim.resizable, claim.resize_failed) = (false, claim.stays_whole == Some(claim.progress.launches));
    }

    /// Its present run failed of a change of its workers: the next one is not asked to.
    pub fn failed_of_resizing(&mut self, id: ClaimId) {
        let claim = self.claims.claim_mut(id);
        claim.stays_whole = Some(claim.progress.launches + 1);
    }

    /// Its present run was told to change its workers in place and did not: it is not asked again.
    pub fn set_not_resizable(&mut self, id: ClaimId) {
        let claim = self.claims.claim_mut(id);
        (claim.resizable, claim.resize_failed) = (false, true);
    }

    /// The claim has come so far and says how fast it is. Returns the kind of GPU whose model should be fitted anew.
    pub fn progressed(&mut self, now: Time, id: ClaimId, report: &StepReport) -> Option<GpuKind> {
        let claim = self.claims.claim_mut(id);
        claim.progress.done = report.done;
        claim.progress.epoch = report.epoch;
        claim.progress.reported = now;
        claim.resizable = report.resizable && !claim.resize_failed;
        if let Some(interruption) = report.interruption {
            Arc::make_mut(&mut claim.learned).interrupted(interruption);
        }
        let kind = claim.holds().and_then(|holds| holds.placement.kind(&self.cluster));
        let news = claim.speed.adaptation.is_some() && Arc::make_mut(&mut claim.learned).take(kind, report);
        kind.filter(|_| news)
    }

    /// From now on this is the model of the claim's steps on a kind of GPU.
    pub fn refitted(&mut self, id: ClaimId, kind: GpuKind, step: StepTime) {
        Arc::make_mut(&mut self.claims.claim_mut(id).learned).adopt(kind, step);
    }

    /// The claim has once run on this kind of GPU, and this is its model; for scenarios that begin in the middle of a
    /// history.
    pub fn learnt(&mut self, id: ClaimId, kind: GpuKind, report: &StepReport, step: StepTime) {
        let learned = Arc::make_mut(&mut self.claims.claim_mut(id).learned);
        learned.take(Some(kind), report);
        learned.adopt(kind, step);
    }

    pub fn tune(&mut self, id: ClaimId, tuning: Option<Tuning>) {
        self.claims.claim_mut(id).tuning = tuning;
    }

    pub fn note(&mut self, id: ClaimId, note: Note) {
        self.claims.claim_mut(id).note = note;
    }

    pub fn remember(&mut self, id: ClaimId, numbers: Vec<i64>) {
        if self.claims.claim(id).is_live() {
            self.memory.remember(id, numbers);
        }
    }

    /// The claim is over. Returns those that still wait for it: now eligible if it finished and was the last, or never.
    pub fn end(&mut self, now: Time, id: ClaimId, outcome: Outcome) -> Vec<ClaimId> {
        self.allot(id, None);
        self.charge(now, id, None);
        if self.claims.claim(id).is_eligible() {
            self.count_demand(id, false);
        }
        self.claims.end(now, id, outcome);
        self.memory.forget(id);
        let claim = self.claims.claim(id);
        if outcome == Outcome::Finished {
            let (executed, attained) = (claim.progress.executed(now), claim.progress.attained(now));
            self.history.record(&claim.spec.user, &claim.spec.name, executed, attained);
        }
        let mut dependents = self.dependents.remove(&id).unwrap_or_default();
        // Who was cancelled meanwhile may be forgotten already.
        dependents.retain(|&dependent| self.claims.get(dependent).is_some_and(Claim::is_live));
        if outcome == Outcome::Finished {
            for &dependent in &dependents {
                self.unblock(now, dependent);
            }
        }
        dependents
    }

    fn unblock(&mut self, now: Time, id: ClaimId) {
        let claim = self.claims.claim_mut(id);
        claim.blocked_by -= 1;
        claim.note = claim.waiting_note();
        if claim.is_eligible() {
            self.becomes_eligible(now, id);
        }
    }

    fn becomes_eligible(&mut self, now: Time, id: ClaimId) {
        self.claims.claim_mut(id).eligible_since = Some(now);
        self.count_demand(id, true);
    }

    /// A further node, open; its number is the next one.
    pub fn add_node(&mut self, cluster: Cluster) {
        let id = NodeId(self.nodes.len() as u32);
        self.cluster = cluster;
        self.nodes.push(NodeStatus::default());
        self.on_node.push(Vec::new());
        self.room.add_node(&self.cluster, id);
        self.set_status(id, NodeStatus::default());
    }

    /// The node becomes available or not, devices break or are repaired. Claims whose target is no longer there lose it;
    /// they are returned. Those who run and may stay where they are go on there.
    pub fn set_status(&mut self, node: NodeId, status: NodeStatus) -> Vec<ClaimId> {
        self.nodes[node.0 as usize] = status;
        let displaced: Vec<ClaimId> =
            self.claims_on(node).iter().copied().filter(|&id| self.is_displaced(id, node, status)).collect();
        displaced.iter().for_each(|&id| self.allot(id, None));
        for &id in &displaced {
            match self.what_stays(id) {
                Some(stays) => self.allot(id, Some(stays)),
                None => self.note(id, Note::waiting(Reason::Displaced, Obstacle::Node { node })),
            }
        }
        let working = self.working(node, self.cluster.node(node).gpus);
        self.room.set_node(node, working, status.is_open());
        displaced
    }

    fn is_displaced(&self, id: ClaimId, node: NodeId, status: NodeStatus) -> bool {
        let claim = self.claim(id);
        let target = claim.target.as_ref().expect("claims on a node have a target");
        let here = target.placement.slots().iter().filter(|slot| slot.node == node);
        let moved_away = match status.availability {
            Availability::Open => false,
            Availability::Cordoned => claim.holds() != Some(target) && claim.resizes_to() != Some(target),
            Availability::Drained | Availability::Lost | Availability::Removed => true,
        };
        moved_away || here.into_iter().any(|slot| slot.slices.devices.overlaps(status.broken))
    }

    /// With what a run goes on that was to have something else: what it holds, or will once the change of its workers is
    /// done. Nothing if that has to be left too, or was promised to others.
    fn what_stays(&self, id: ClaimId) -> Option<Arc<Allotment>> {
        let claim = self.claim(id);
        let (Phase::Starting { holds, .. } | Phase::Running { holds, .. }) = &claim.phase else { return None };
        let stays = claim.resizes_to().unwrap_or(holds);
        let may_stay = |slot: &Slot| {
            let NodeStatus { availability, broken } = self.node_status(slot.node);
            let is_left = !matches!(availability, Availability::Open | Availability::Cordoned);
            !is_left && !slot.slices.devices.overlaps(*broken)
        };
        let all_may = stays.placement.slots().iter().all(may_stay);
        (all_may && self.room.is_untaken(&self.cluster, &stays.placement)).then(|| stays.clone())
    }

    fn working(&self, node: NodeId, gpus: u8) -> Devices {
        Devices::first(u32::from(gpus)).without(self.node_status(node).broken)
    }

    fn count_use(&mut self, id: ClaimId, gpus: Gpus, more: bool) {
        count(&mut self.used, &self.queues, self.claims.claim(id).spec.queue, gpus, more);
    }

    fn count_demand(&mut self, id: ClaimId, more: bool) {
        let spec = &self.claims.claim(id).spec;
        let gpus = spec.gpus(spec.scaling.max());
        count(&mut self.demand, &self.queues, spec.queue, gpus, more);
    }
}

/// Sums over each queue and those below it, now that some queues lie below others than before.
fn added_up_anew(sums: &[Gpus], before: &QueueTree, after: &QueueTree) -> Vec<Gpus> {
    let mut anew = vec![Gpus::ZERO; sums.len()];
    for (id, _) in after.iter() {
        // What is a queue's own and not of those below it.
        let below: Gpus = match before.get(id) {
            Some(_) => before.children(id).map(|(child, _)| sums[usize::from(child.0)]).sum(),
            None => Gpus::ZERO,
        };
        count(&mut anew, after, id, sums[usize::from(id.0)] - below, true);
    }
    anew
}

fn count(sums: &mut [Gpus], queues: &QueueTree, queue: QueueId, gpus: Gpus, more: bool) {
    for ancestor in queues.ancestry(queue) {
        let sum = &mut sums[usize::from(ancestor.0)];
        *sum = if more { *sum + gpus } else { *sum - gpus };
    }
}
