//! The cluster as it would be after a plan, in which the safeguards try things out. It knows what would be free and what
//! queues would hold; it knows no rule by which somebody should have something.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cluster::{ClaimId, Gpus, Grain, JobSpec, Placement, QueueId, QueueTree, SliceSet, Slot, Time};
use plan::place::{self, Style};
use plan::{Allotment, Claim, Note, Plan, Room, Snapshot};

use crate::tenants::guarantees;

#[derive(Debug, Clone)]
pub(crate) struct After<'a> {
    pub(crate) snapshot: Snapshot<'a>,
    room: Room,
    /// GPUs that the claims of each queue, and of those below it, would have.
    used: Vec<Gpus>,
    /// Those of them that nobody may take back.
    pinned: Vec<Gpus>,
    /// What each queue is promised.
    pub(crate) promised: Vec<Gpus>,
    /// What differs from what is meant for claims now.
    changes: BTreeMap<ClaimId, Option<Arc<Allotment>>>,
    /// Claims that would have something.
    holders: BTreeSet<ClaimId>,
    /// Claims that the safeguards have looked after, and why they have what they have.
    notes: BTreeMap<ClaimId, Option<Note>>,
    pub(crate) reserved: Vec<Reservation>,
}

/// Devices that are kept for a claim until all of them are free.
#[derive(Debug, Clone, PartialEq)]
pub struct Reservation {
    pub claim: ClaimId,
    pub priority: i32,
    pub placement: Placement,
    /// When those that hold something of it are expected to have ended; nothing if one of them cannot say.
    pub at: Option<Time>,
    /// Whether that is foreseen of each of them, and not merely guessed from other jobs.
    pub is_foreseen: bool,
    /// Those that must end first.
    pub after: Vec<ClaimId>,
    /// Whether they should have ended by now: nobody starts there any more because it is expected to end in time.
    pub is_late: bool,
}

/// What a claim can be asked to give up for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Concession {
    /// It does not grow by this plan.
    Undo,
    /// It goes on with the fewest workers it can have.
    Shrink,
    /// It has nothing.
    Stop,
}

impl<'a> After<'a> {
    pub(crate) fn new(snapshot: &Snapshot<'a>, plan: &Plan) -> After<'a> {
        let books = snapshot.books;
        let mut pinned = vec![Gpus::ZERO; books.queues.len()];
        let targets = || books.claims().live().filter_map(|claim| Some((claim, claim.target.as_ref()?)));
        for (claim, target) in targets().filter(|(claim, _)| claim.spec.pinned) {
            let queues = books.queues.ancestry(claim.spec.queue);
            queues.for_each(|queue| pinned[usize::from(queue.0)] += target.placement.gpus());
        }
        let mut after = After {
            snapshot: *snapshot,
            room: books.room().clone(),
            used: books.queues.iter().map(|(queue, _)| books.used(queue)).collect(),
            pinned,
            promised: guarantees(books),
            changes: BTreeMap::new(),
            holders: targets().map(|(claim, _)| claim.id).collect(),
            notes: BTreeMap::new(),
            reserved: Vec::new(),
        };
        for (id, _) in &plan.changes {
            after.set(snapshot.claim(*id), None);
        }
        for (id, target) in &plan.changes {
            after.set(snapshot.claim(*id), target.clone());
        }
        after
    }

    pub(crate) fn room(&self) -> &Room {
        &self.room
    }

    pub(crate) fn used(&self, queue: QueueId) -> Gpus {
        self.used[usize::from(queue.0)]
    }

    pub(crate) fn promised(&self, queue: QueueId) -> Gpus {
        self.promised[usize::from(queue.0)]
    }

    /// What the claim would have.
    pub(crate) fn target(&self, id: ClaimId) -> Option<&Arc<Allotment>> {
        match self.changes.get(&id) {
            Some(change) => change.as_ref(),
            None => self.snapshot.claim(id).target.as_ref(),
        }
    }

    pub(crate) fn workers(&self, id: ClaimId) -> u32 {
        self.target(id).map_or(0, |target| target.placement.tasks_of(0))
    }

    /// Whether the claim has nothing now and would have something.
    pub(crate) fn starts(&self, claim: &Claim) -> bool {
        claim.target.is_none() && self.target(claim.id).is_some()
    }

    /// Claims that would have something, in order of submission.
    pub(crate) fn holders(&self) -> Vec<&'a Claim> {
        self.holders.iter().map(|&id| self.snapshot.claim(id)).collect()
    }

    /// Claims that could have something and would not.
    pub(crate) fn waiting(&self) -> Vec<&'a Claim> {
        self.snapshot.eligible().filter(|claim| self.target(claim.id).is_none()).collect()
    }

    /// From now on the claim would have this.
    pub(crate) fn set(&mut self, claim: &Claim, target: Option<Arc<Allotment>>) {
        if let Some(old) = self.target(claim.id).cloned() {
            self.room.give(&old.placement);
            self.count(claim, |sum| *sum = sum.saturating_sub(old.placement.gpus()));
            self.holders.remove(&claim.id);
        }
        if let Some(new) = &target {
            self.room.take(&new.placement);
            self.count(claim, |sum| *sum += new.placement.gpus());
            self.holders.insert(claim.id);
        }
        if claim.target == target {
            self.changes.remove(&claim.id);
        } else {
            self.changes.insert(claim.id, target);
        }
    }

    fn count(&mut self, claim: &Claim, change: impl Fn(&mut Gpus)) {
        for queue in self.snapshot.books.queues.ancestry(claim.spec.queue) {
            change(&mut self.used[usize::from(queue.0)]);
            if claim.spec.pinned {
                change(&mut self.pinned[usize::from(queue.0)]);
            }
        }
    }

    /// Why the claim has what it has; nothing if that is as it was.
    pub(crate) fn note(&mut self, id: ClaimId, note: Option<Note>) {
        self.notes.insert(id, note);
    }

    /// Whether no queue above the claim would exceed its limit by so many GPUs more, and what must never be taken back
    /// stays within what its queues are promised.
    pub(crate) fn is_within_limits(&self, claim: &Claim, gpus: Gpus) -> bool {
        let queues = &self.snapshot.books.queues;
        queues.ancestry(claim.spec.queue).all(|queue| {
            let limit = queues.queue(queue).limit;
            limit.is_none_or(|limit| self.used(queue).saturating_add(gpus) <= limit)
        }) && self.pin_obstacle(claim, gpus).is_none()
    }

    /// The queue that would have to give what it is not promised, and could never be asked to give it back.
    pub(crate) fn pin_obstacle(&self, claim: &Claim, gpus: Gpus) -> Option<QueueId> {
        if !claim.spec.pinned || claim.holds().is_some() {
            return None;
        }
        let mut queues = self.snapshot.books.queues.ancestry(claim.spec.queue);
        queues.find(|&queue| self.pinned[usize::from(queue.0)].saturating_add(gpus) > own_promise(self, claim, queue))
    }

    /// Whether the claim may have so many GPUs more: within the limits and the budgets of its queues. While no other queue
    /// is short, a queue that has nothing may have one claim whatever its budget.
    pub(crate) fn admits(&self, claim: &Claim, gpus: Gpus, somebody_is_short: bool) -> bool {
        let mut queues = self.snapshot.books.queues.ancestry(claim.spec.queue);
        let within_budgets = queues.all(|queue| {
            let used = self.used(queue);
            let budget = self.snapshot.budgets.of(queue).filter(|_| somebody_is_short || !used.is_zero());
            budget.is_none_or(|budget| used.saturating_add(gpus) <= budget)
        });
        gpus.is_zero() || within_budgets && self.is_within_limits(claim, gpus)
    }

    /// A place for the claim beside everybody who has one: what it has now, else a place for the fewest workers it can have.
    pub(crate) fn place_for(&self, claim: &Claim, may_have: impl Fn(Gpus) -> bool) -> Option<Arc<Allotment>> {
        let workers = fewest(claim, &self.snapshot);
        let may_fit = |workers| may_have(claim.spec.gpus(workers)) && self.has_devices(claim, workers);
        if claim.target.is_none() && !workers.is_some_and(may_fit) {
            return None;
        }
        #[cfg(test)]
        searches::count();
        let room = self.room_for(claim);
        let cluster = self.snapshot.cluster();
        if let Some(had) = &claim.target
            && room.is_untaken(cluster, &had.placement)
            && may_have(had.placement.gpus())
        {
            return Some(had.clone());
        }
        let workers = workers.filter(|&workers| may_have(claim.spec.gpus(workers)))?;
        let placement = place::fit(&room, &self.snapshot, claim, workers, Style::Pack)?;
        Some(place::allotment(claim, workers, placement))
    }

    /// Whether so many devices of a kind are free as the claim takes for itself alone, be they reserved or not.
    pub(crate) fn has_devices(&self, claim: &Claim, workers: u32) -> bool {
        let whole = place::whole_devices(&claim.spec, workers);
        let mut kinds = self.snapshot.cluster().kinds().map(|(kind, _)| kind);
        !claim.spec.uses_gpus() || kinds.any(|kind| claim.spec.allows_kind(kind) && self.room.free_of(kind) >= whole)
    }

    /// What is free for the claim: not what is reserved for others, unless it goes before them or ends before they begin.
    fn room_for(&self, claim: &Claim) -> Room {
        let mut room = self.room.clone();
        for reservation in self.kept_from(claim) {
            for slot in reservation.placement.slots() {
                let devices = slot.slices.devices;
                let free = devices.without(devices.without(room.free_devices(slot.node)));
                if !free.is_empty() {
                    let mut kept = Slot { tasks: 1, millicores: 0, memory: cluster::Bytes::ZERO, ..*slot };
                    (kept.slices.devices, kept.slices.grain) = (free, Grain::Whole);
                    room.take_slot(&kept);
                }
            }
        }
        room
    }

    /// What is reserved for others.
    pub(crate) fn kept_from(&self, claim: &Claim) -> impl Iterator<Item = &Reservation> {
        let end = if self.reserved.is_empty() { None } else { self.end_if_started(claim) };
        self.reserved.iter().filter(move |reservation| self.keeps_off(reservation, claim, end))
    }

    /// Whether what is reserved is not for this claim.
    pub(crate) fn is_kept_from(&self, reservation: &Reservation, claim: &Claim) -> bool {
        self.keeps_off(reservation, claim, self.end_if_started(claim))
    }

    fn keeps_off(&self, reservation: &Reservation, claim: &Claim, end: Option<Time>) -> bool {
        is_kept_from(reservation, claim, end) && !self.is_promised_before(claim, reservation.claim)
    }

    /// Whether the claim's queue is promised what it needs, and that of the other would borrow: among queues that lie apart
    /// a promise comes first.
    pub(crate) fn is_promised_before(&self, claim: &Claim, other: ClaimId) -> bool {
        let queues = &self.snapshot.books.queues;
        let other = self.snapshot.claim(other);
        if queues.len() == 1 || claim.spec.queue == other.spec.queue {
            return false;
        }
        let (ours, theirs) = (path(queues, claim.spec.queue), path(queues, other.spec.queue));
        let common = in_common(&ours, &theirs);
        let Some(&ours) = ours.get(common) else { return false };
        let would_have = |claim: &Claim, has: Gpus| {
            let has = has.saturating_sub(self.target(claim.id).map_or(Gpus::ZERO, |target| target.placement.gpus()));
            let least = fewest(claim, &self.snapshot).unwrap_or_else(|| claim.spec.scaling.min());
            has.saturating_add(claim.spec.gpus(least))
        };
        let borrows = match theirs.get(common) {
            Some(&queue) => would_have(other, self.used(queue)) > self.promised(queue),
            None => would_have(other, used_itself(self, theirs[common - 1])) > left_over(self, theirs[common - 1]),
        };
        borrows && would_have(claim, self.used(ours)) <= self.promised(ours)
    }

    /// When the claim would end if it had devices from now on, as far as anybody can say.
    pub(crate) fn end_if_started(&self, claim: &Claim) -> Option<Time> {
        self.snapshot.remaining(claim).map(|remaining| self.snapshot.now + remaining)
    }

    /// Gives the claim a place for which others concede what they were asked for, in this order and no more than is
    /// needed. Returns those that conceded something; nothing if there is no place even so, and then all is as it was.
    pub(crate) fn make_room(
        &mut self,
        claim: &'a Claim,
        concessions: &[(Concession, &'a Claim)],
        may_ask: impl Fn(&After<'_>, &Claim) -> bool,
        may_have: impl Fn(&After<'_>, &Claim, Gpus) -> bool,
    ) -> Option<Vec<&'a Claim>> {
        if let Some(place) = self.place_for(claim, |gpus| may_have(self, claim, gpus)) {
            self.set(claim, Some(place));
            return Some(Vec::new());
        }
        if !concessions.iter().any(|(_, other)| may_ask(self, other)) {
            return None;
        }
        let mut all = self.clone();
        for (concession, other) in concessions {
            if may_ask(&all, other) {
                all.ask(*concession, other);
            }
        }
        all.place_for(claim, |gpus| may_have(&all, claim, gpus))?;
        let mut trial = self.clone();
        let mut conceded: Vec<(&Claim, Arc<Allotment>)> = Vec::new();
        for &(concession, other) in concessions {
            if !may_ask(&trial, other) {
                continue;
            }
            let Some(had) = trial.concede(concession, other) else { continue };
            if conceded.iter().all(|(known, _)| known.id != other.id) {
                conceded.push((other, had));
            }
            if let Some(place) = trial.place_for(claim, |gpus| may_have(&trial, claim, gpus)) {
                trial.set(claim, Some(place));
                let lost = trial.give_back(conceded, may_have);
                *self = trial;
                return Some(lost);
            }
        }
        None
    }

    /// The same, whatever comes of it.
    pub(crate) fn ask(&mut self, concession: Concession, claim: &Claim) {
        _ = self.concede(concession, claim);
    }

    /// Takes something from a claim. Returns what it had, or nothing if it has nothing of the kind to give.
    fn concede(&mut self, concession: Concession, claim: &Claim) -> Option<Arc<Allotment>> {
        let had = self.target(claim.id)?.clone();
        let least = fewest(claim, &self.snapshot)?;
        let workers = had.placement.tasks_of(0);
        let less = match concession {
            Concession::Stop => None,
            Concession::Undo => {
                let smaller = |now: &&Arc<Allotment>| (least..workers).contains(&now.placement.tasks_of(0));
                let now = claim.target.as_ref().filter(smaller)?.clone();
                self.set(claim, None);
                let free = self.room.is_untaken(self.snapshot.cluster(), &now.placement);
                self.set(claim, Some(had.clone()));
                Some(free.then_some(now)?)
            }
            Concession::Shrink if workers > least => Some(self.part(claim, &had, least)?),
            Concession::Shrink => return None,
        };
        self.set(claim, less);
        Some(had)
    }

    /// A part of what a claim has, with so many workers; nothing if it cannot run with so many there.
    fn part(&self, claim: &Claim, had: &Allotment, workers: u32) -> Option<Arc<Allotment>> {
        let keep = claim.target.as_ref().map(|target| &target.placement);
        let kind = had.placement.kind(self.snapshot.cluster());
        let allowed = !claim.spec.uses_gpus() || claim.speed.allows(kind, workers);
        let part = || place::trimmed(&claim.spec, &had.placement, workers, keep);
        allowed.then(|| place::allotment(claim, workers, part()))
    }

    /// Gives back what was not needed after all, to the last that was asked first. Returns those that do without
    /// something.
    fn give_back(
        &mut self,
        conceded: Vec<(&'a Claim, Arc<Allotment>)>,
        may_have: impl Fn(&After<'_>, &Claim, Gpus) -> bool,
    ) -> Vec<&'a Claim> {
        let mut lost = Vec::new();
        for (claim, had) in conceded.into_iter().rev() {
            let has = self.target(claim.id).cloned();
            let workers = self.workers(claim.id);
            self.set(claim, None);
            let fits = |trial: &After<'_>, back: &Allotment| {
                let free = trial.room.is_untaken(trial.snapshot.cluster(), &back.placement);
                free && may_have(trial, claim, back.placement.gpus())
            };
            if fits(self, &had) {
                self.set(claim, Some(had));
                continue;
            }
            let rest = Allotment { placement: self.untaken_part(&had.placement), batch: None };
            let sizes =
                (workers + 1..=rest.placement.tasks_of(0)).rev().filter(|&size| claim.spec.scaling.allows(size));
            let sizes = sizes.filter(|_| workers > 0);
            let between = sizes.filter_map(|size| self.part(claim, &rest, size)).find(|part| fits(self, part));
            self.set(claim, between.or(has));
            lost.push(claim);
        }
        lost
    }

    /// What nobody has of whole devices in a placement, as tasks that could run there.
    fn untaken_part(&self, placement: &Placement) -> Placement {
        let untaken = |slot: &Slot| {
            let each = slot.slices.devices.count() / slot.tasks;
            if each == 0 || slot.slices.grain != Grain::Whole {
                return *slot;
            }
            let taken = slot.slices.devices.without(self.room.free_devices(slot.node));
            let tasks = slot.slices.devices.without(taken).count() / each;
            let devices = slot.slices.devices.without(taken).lowest(tasks * each);
            let per_task = (slot.millicores / slot.tasks, slot.memory.get() / u64::from(slot.tasks));
            let (millicores, memory) = (per_task.0 * tasks, cluster::Bytes::new(per_task.1) * tasks);
            Slot { tasks, slices: SliceSet { devices, ..slot.slices }, millicores, memory, ..*slot }
        };
        Placement::new(placement.slots().iter().map(untaken).filter(|slot| slot.tasks > 0).collect())
    }

    /// The plan that makes it so: the policy's, but for what the safeguards changed.
    pub(crate) fn into_plan(self, plan: Plan) -> Plan {
        let mut notes: Vec<_> = plan.notes.into_iter().filter(|(id, _)| !self.notes.contains_key(id)).collect();
        let news = |(id, note): (&ClaimId, &Option<Note>)| {
            let note = (*note)?;
            // When something is expected to happen changes all the time, and is no news.
            let is_new = self.snapshot.claim(*id).note.reason != note.reason || self.changes.contains_key(id);
            is_new.then_some((*id, note))
        };
        notes.extend(self.notes.iter().filter_map(news));
        notes.sort_by_key(|(id, _)| *id);
        Plan { changes: self.changes.into_iter().collect(), notes, ..plan }
    }

    /// Whether the safeguards have had a say in what the claim has.
    pub(crate) fn is_noted(&self, id: ClaimId) -> bool {
        self.notes.contains_key(&id)
    }
}

fn is_kept_from(reservation: &Reservation, claim: &Claim, end: Option<Time>) -> bool {
    let is_for_others = reservation.claim != claim.id && claim.priority <= reservation.priority;
    let ends_in_time = reservation.at.zip(end).is_some_and(|(at, end)| end <= at);
    is_for_others && (reservation.is_late || !ends_in_time)
}

/// What a queue is promised for claims of this one's queue: the root shares out the rest of what it has among its own jobs.
fn own_promise(after: &After<'_>, claim: &Claim, queue: QueueId) -> Gpus {
    if queue == claim.spec.queue { left_over(after, queue) } else { after.promised(queue) }
}

/// The queues above a claim of this one, and it, from the root down.
pub(crate) fn path(queues: &QueueTree, queue: QueueId) -> Vec<QueueId> {
    let mut path: Vec<QueueId> = queues.ancestry(queue).collect();
    path.reverse();
    path
}

/// How many queues from the root down two paths have in common.
pub(crate) fn in_common(one: &[QueueId], other: &[QueueId]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

/// What the jobs of a queue itself would have.
pub(crate) fn used_itself(after: &After<'_>, queue: QueueId) -> Gpus {
    let below: Gpus = after.snapshot.books.queues.children(queue).map(|(child, _)| after.used(child)).sum();
    after.used(queue).saturating_sub(below)
}

/// What a queue is promised beyond what those below it are.
pub(crate) fn left_over(after: &After<'_>, queue: QueueId) -> Gpus {
    let below: Gpus = after.snapshot.books.queues.children(queue).map(|(child, _)| after.promised(child)).sum();
    after.promised(queue).saturating_sub(below)
}

/// The fewest workers that the claim allows and that can run on one of its kinds of GPU.
pub(crate) fn fewest(claim: &Claim, snapshot: &Snapshot<'_>) -> Option<u32> {
    let spec: &JobSpec = &claim.spec;
    if !spec.uses_gpus() || claim.speed.adaptation.is_none() {
        return Some(spec.scaling.min());
    }
    let mut sizes = spec.scaling.min()..=spec.scaling.max();
    sizes.find(|&workers| {
        let mut kinds = snapshot.cluster().kinds().map(|(kind, _)| kind).filter(|&kind| spec.allows_kind(kind));
        kinds.any(|kind| claim.speed.allows(Some(kind), workers))
    })
}

/// How often a place was searched for in this thread, for tests of how much work a rule makes.
#[cfg(test)]
pub(crate) mod searches {
    use std::cell::Cell;

    thread_local! {
        static SEARCHES: Cell<u64> = const { Cell::new(0) };
    }

    pub(crate) fn count() {
        SEARCHES.set(SEARCHES.get() + 1);
    }

    pub(crate) fn during<T>(work: impl FnOnce() -> T) -> (T, u64) {
        let before = SEARCHES.get();
        let done = work();
        (done, SEARCHES.get() - before)
    }
}
