//! Who may overtake whom without preemption: nobody, those who do not delay the first in line (EASY), or those who delay
//! nobody before them (conservative).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

use cluster::{ClaimId, GpuKind, Placement, QueueId, Span, Time};
use plan::{Allotment, Claim, Note, Obstacle, Reason, Room};

use crate::blocks::admit;
use crate::blocks::draft::Draft;
use crate::blocks::grant;
use crate::blocks::order::{Line, Order, Standing, Walk};
use crate::blocks::place::{self, Style};
use crate::blocks::remaining::Source;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backfill {
    None,
    Easy,
    Conservative,
}

/// How waiting claims are gone through.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) backfill: Backfill,
    /// How many waiting claims are looked at behind the first that does not fit.
    pub(crate) depth: usize,
    pub(crate) estimates: Source,
    pub(crate) style: Style,
    /// Whether elastic jobs give back what they have beyond their smallest size for those who wait.
    pub(crate) shrink: bool,
}

/// Starts claims in order of rank as the rules allow. Nobody is stopped, except where a queue is over its budget.
/// Returns whether nobody waits in the end.
pub(crate) fn in_order<O: Order>(draft: &mut Draft<'_>, line: &Line<O::Key>, order: &O, rules: Rules) -> bool {
    let lost = admit::over_budget(draft, line);
    loop {
        let mut walk = Walk::new(line);
        for claim in &lost {
            walk.join(order.rank(&draft.snapshot, claim, Standing::Waiting).key, claim.id);
        }
        let started = draft.granted().count();
        let first_left = match rules.backfill {
            Backfill::Conservative => conservative(draft, line, &mut walk, rules),
            Backfill::Easy => easy(draft, line, &mut walk, rules),
            Backfill::None => strictly(draft, line, &mut walk, rules),
        };
        // Whoever started may have left a better place to one who was refused.
        if rules.backfill != Backfill::None && draft.granted().count() > started {
            continue;
        }
        walk.explain_rest(draft, |draft, claim| match first_left {
            Some(by) => Note::waiting(Reason::Priority, Obstacle::Outranked { by }),
            None => draft.too_little(claim, claim.spec.asked_gpus()),
        });
        return first_left.is_none() && walk.nobody_ruled_out();
    }
}

/// Starts one after the other until one does not fit, which is returned. Those whose queue has no quota left hold up
/// only their own queue: a tenant's lack of quota is no reason for others to wait.
fn strictly<K: Copy + Ord + Debug>(
    draft: &mut Draft<'_>,
    line: &Line<K>,
    walk: &mut Walk<'_, K>,
    rules: Rules,
) -> Option<ClaimId> {
    let mut without_quota: BTreeMap<QueueId, ClaimId> = BTreeMap::new();
    while let Some((_, id)) = walk.next() {
        if draft.holds(id).is_some() {
            continue;
        }
        let claim = draft.snapshot.claim(id);
        if let Some(&by) = without_quota.get(&claim.spec.queue) {
            walk.rule_out(draft, id, Note::waiting(Reason::Priority, Obstacle::Outranked { by }));
            continue;
        }
        match find(draft, line, claim, rules) {
            Ok(found) => draft.admit(claim, found, Reason::Admitted),
            Err(note) if note.reason == Reason::WaitingForQuota => {
                without_quota.insert(claim.spec.queue, id);
                walk.rule_out(draft, id, note);
            }
            Err(note) => {
                walk.rule_out(draft, id, note);
                return Some(id);
            }
        }
    }
    None
}

/// A place in free room, or in what elastic jobs can do without.
fn find<K: Copy + Ord + Debug>(
    draft: &mut Draft<'_>,
    line: &Line<K>,
    claim: &Claim,
    rules: Rules,
) -> Result<Arc<Allotment>, Note> {
    let workers = grant::asked(claim);
    let found = draft.find(claim, workers, rules.style);
    if found.is_ok() || !rules.shrink {
        return found;
    }
    let shrunk = grant::shrink_all(draft, line);
    let in_their_place = draft.find(claim, workers, rules.style);
    match &in_their_place {
        Ok(place) => {
            // What was found must not be given back to those it was taken from.
            draft.give(claim, place.clone());
            grant::restore(draft, shrunk);
            draft.release(claim);
            in_their_place
        }
        Err(_) => {
            grant::restore(draft, shrunk);
            found
        }
    }
}

/// Starts those behind the head who will be gone, or out of its way, when its turn comes. Returns the head.
fn easy<K: Copy + Ord + Debug>(
    draft: &mut Draft<'_>,
    line: &Line<K>,
    walk: &mut Walk<'_, K>,
    rules: Rules,
) -> Option<ClaimId> {
    let head = strictly(draft, line, walk, rules)?;
    let mut reservation: Option<Reservation> = None;
    let mut refused = 0;
    while let Some((_, id)) = walk.next().filter(|_| refused < rules.depth) {
        if draft.holds(id).is_some() {
            continue;
        }
        let claim = draft.snapshot.claim(id);
        let found = match draft.find(claim, grant::asked(claim), rules.style) {
            Ok(found) => found,
            Err(note) => {
                walk.rule_out(draft, id, note);
                refused += 1;
                continue;
            }
        };
        let reservation = reservation.get_or_insert_with(|| Reservation::for_head(draft, line, head, rules));
        let gone = ends(draft, claim, rules.estimates).is_some_and(|ends| ends <= reservation.until());
        if gone || reservation.takes(draft, &found.placement, rules) {
            draft.admit(claim, found, Reason::Backfilled);
        } else {
            let until = reservation.until();
            draft.note_waiting(id, Note::waiting(Reason::Reservation, Obstacle::ReservedFor { claim: head, until }));
            refused += 1;
        }
    }
    Some(head)
}

/// When the claim would be over if it ran from now on.
fn ends(draft: &Draft<'_>, claim: &Claim, estimates: Source) -> Option<Time> {
    estimates.here(&draft.snapshot, claim).map(|left| draft.snapshot.now + left)
}

/// The promise to the first in line: when it will fit, and what is free then.
struct Reservation {
    head: ClaimId,
    /// The shadow time; `None` if nobody can say.
    at: Option<Time>,
    free_then: Room,
}

impl Reservation {
    /// Lets those who run end one after the other until the head fits. Claims of which nobody knows when they end never
    /// do.
    fn for_head<K: Copy + Ord + Debug>(draft: &Draft<'_>, line: &Line<K>, head: ClaimId, rules: Rules) -> Reservation {
        let ends = |id| Some((ends(draft, draft.snapshot.claim(id), rules.estimates)?, id));
        let mut by_end: Vec<(Time, ClaimId)> = holders(draft, line).into_iter().filter_map(ends).collect();
        by_end.sort_unstable();
        let mut reservation = Reservation { head, at: None, free_then: draft.room().clone() };
        for (at, id) in by_end {
            reservation.free_then.give(&draft.holds(id).expect("a holder holds something").placement);
            if reservation.head_fits(draft, rules) {
                return Reservation { at: Some(at), ..reservation };
            }
        }
        reservation
    }

    fn head_fits(&self, draft: &Draft<'_>, rules: Rules) -> bool {
        let head = draft.snapshot.claim(self.head);
        place::fit(&self.free_then, &draft.snapshot, head, grant::asked(head), rules.style).is_some()
    }

    /// If nobody can say when, everyone who ends at all ends before.
    fn until(&self) -> Time {
        self.at.unwrap_or(Time::MAX)
    }

    /// Whether the head will fit though the placement stays; if so, it is counted.
    fn takes(&mut self, draft: &Draft<'_>, placement: &Placement, rules: Rules) -> bool {
        if self.at.is_none() {
            return false;
        }
        self.free_then.take(placement);
        let fits = self.head_fits(draft, rules);
        if !fits {
            self.free_then.give(placement);
        }
        fits
    }
}

/// Everyone who holds devices as the draft stands.
fn holders<K: Copy + Ord + Debug>(draft: &Draft<'_>, line: &Line<K>) -> BTreeSet<ClaimId> {
    let running = line.running_from_best().map(|(_, id)| id).filter(|&id| draft.holds(id).is_some());
    running.chain(draft.granted().map(|(claim, _)| claim.id)).collect()
}

/// Gives everyone in line, as far as `depth`, a reservation at the earliest time at which nobody before them is delayed.
/// Those whose time is now start. Returns the first who does not.
fn conservative<K: Copy + Ord + Debug>(
    draft: &mut Draft<'_>,
    line: &Line<K>,
    walk: &mut Walk<'_, K>,
    rules: Rules,
) -> Option<ClaimId> {
    let head = strictly(draft, line, walk, rules)?;
    let mut profile = Profile::new(draft, line, rules.estimates);
    profile.reserve(draft, draft.snapshot.claim(head), rules);
    let mut refused = 0;
    while let Some((_, id)) = walk.next().filter(|_| refused < rules.depth) {
        if draft.holds(id).is_some() {
            continue;
        }
        let claim = draft.snapshot.claim(id);
        if let Err(quota) = draft.usage().admits(claim, claim.spec.asked_gpus()) {
            walk.rule_out(draft, id, Note::waiting(Reason::WaitingForQuota, quota));
        } else if let Err(note) = take_turn(draft, &mut profile, claim, head, rules) {
            draft.note_waiting(id, note);
        } else {
            continue;
        }
        refused += 1;
    }
    Some(head)
}

/// Starts the claim if its turn is now; reserves its turn in any case.
fn take_turn(
    draft: &mut Draft<'_>,
    profile: &mut Profile,
    claim: &Claim,
    head: ClaimId,
    rules: Rules,
) -> Result<(), Note> {
    let workers = grant::asked(claim);
    match profile.reserve(draft, claim, rules) {
        Turn::Now(kind) => {
            let on_kind = |other| kind.is_none_or(|kind| kind == other);
            let placement = place::fit_on(draft.room(), &draft.snapshot, claim, workers, rules.style, on_kind);
            let placement = placement.ok_or_else(|| draft.too_little(claim, claim.spec.asked_gpus()))?;
            draft.admit(claim, grant::allotment(claim, workers, placement), Reason::Backfilled);
            Ok(())
        }
        Turn::Later(until) => match draft.find(claim, workers, rules.style) {
            Ok(_) => Err(Note::waiting(Reason::Reservation, Obstacle::ReservedFor { claim: head, until })),
            Err(note) => Err(note),
        },
    }
}

enum Turn {
    /// On GPUs of this kind; a job without GPUs needs none.
    Now(Option<GpuKind>),
    Later(Time),
}

/// How many whole devices of each kind are thought to be free from when on.
struct Profile {
    kinds: Vec<Vec<(Time, i64)>>,
}

impl Profile {
    fn new<K: Copy + Ord + Debug>(draft: &Draft<'_>, line: &Line<K>, estimates: Source) -> Profile {
        let snapshot = &draft.snapshot;
        let kinds = snapshot.cluster().kinds();
        let free = kinds.map(|(kind, _)| vec![(snapshot.now, i64::from(draft.room().free_of(kind)))]).collect();
        let mut profile = Profile { kinds: free };
        for id in holders(draft, line) {
            let held = draft.holds(id).expect("a holder holds something");
            let kind = held.placement.kind(snapshot.cluster());
            if let (Some(kind), Some(at)) = (kind, ends(draft, snapshot.claim(id), estimates)) {
                let devices: u32 = held.placement.slots().iter().map(|slot| slot.slices.devices.count()).sum();
                profile.add(kind, at, None, i64::from(devices));
            }
        }
        profile
    }

    /// The earliest turn of the claim, on the kind where that is, the fastest of several; taken out of the profile.
    fn reserve(&mut self, draft: &Draft<'_>, claim: &Claim, rules: Rules) -> Turn {
        let snapshot = &draft.snapshot;
        let workers = grant::asked(claim);
        if !claim.spec.uses_gpus() {
            return Turn::Now(None);
        }
        let devices = i64::from(place::whole_devices(&claim.spec, workers)).max(1);
        let lasts = rules.estimates.here(snapshot, claim);
        let mut best: Option<(Time, f64, GpuKind)> = None;
        for kind in snapshot.cluster().kinds().map(|(kind, _)| kind).filter(|&kind| claim.spec.allows_kind(kind)) {
            let Some(rate) = snapshot.rate_on(claim, Some(kind), workers) else { continue };
            let Some(at) = self.earliest(kind, devices, lasts.map(Span::as_millis)) else { continue };
            if best.is_none_or(|(time, fastest, _)| at < time || (at == time && rate > fastest)) {
                best = Some((at, rate, kind));
            }
        }
        let Some((at, _, kind)) = best else { return Turn::Later(Time::MAX) };
        self.add(kind, at, lasts.map(|lasts| at + lasts), -devices);
        if at == snapshot.now { Turn::Now(Some(kind)) } else { Turn::Later(at) }
    }

    /// The first time from which so many devices stay free for so long.
    fn earliest(&self, kind: GpuKind, devices: i64, lasts_ms: Option<u64>) -> Option<Time> {
        let steps = &self.kinds[usize::from(kind.0)];
        let mut start: Option<Time> = None;
        for &(time, free) in steps {
            let long_enough = |start: Time| lasts_ms.is_some_and(|lasts| time.since(start).as_millis() >= lasts);
            if start.is_some_and(long_enough) {
                return start;
            }
            start = if free >= devices { start.or(Some(time)) } else { None };
        }
        start
    }

    fn add(&mut self, kind: GpuKind, from: Time, until: Option<Time>, devices: i64) {
        let steps = &mut self.kinds[usize::from(kind.0)];
        for time in [Some(from), until].into_iter().flatten() {
            if let Err(index) = steps.binary_search_by_key(&time, |step| step.0) {
                let before = if index == 0 { 0 } else { steps[index - 1].1 };
                steps.insert(index, (time, before));
            }
        }
        for step in steps.iter_mut().filter(|step| step.0 >= from && until.is_none_or(|until| step.0 < until)) {
            step.1 += devices;
        }
    }
}
