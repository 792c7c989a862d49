//! The stage around the policy: what users count on whichever policy decides. A policy's plan goes in, and a plan that
//! keeps to the rules comes out; what a rule does not touch stays as the policy wants it.
//!
//! The rules go by guarantee, then priority, then who has devices already, then submission. They look at what claims have
//! now before anything else, so that a policy which wants the same thing again in the next round changes nothing.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use cluster::{ClaimId, Gpus, QueueId, Span, Time};
use plan::{Claim, ClassId, Note, Obstacle, Plan, Reason, Rhythm, Safeguards, Snapshot, Turns};

use crate::after::{After, Concession, Reservation, fewest, left_over};

/// What the rules need to know beside the snapshot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) safeguards: Safeguards,
    /// How often the policy is asked; zero if whenever something changes.
    pub(crate) round: Span,
}

/// The plan as the rules allow it.
pub(crate) fn amend(snapshot: &Snapshot<'_>, plan: Plan, rules: Rules) -> Plan {
    let Safeguards { minimum_first, guarantees, reserve_after, .. } = rules.safeguards;
    if !minimum_first && !guarantees && reserve_after.is_none() {
        return plan;
    }
    let mut after = After::new(snapshot, &plan);
    if guarantees {
        keep_guarantees(&mut after);
    }
    let mut wake_at = plan.wake_at;
    if let Some(patience) = rules.patience() {
        keep_reserved_starts(&mut after, patience);
        reserve(&mut after, patience, Others::Concede);
        let next = after.waiting().into_iter().filter(|claim| is_gang(claim));
        let next = next.map(|claim| claim.waits_since() + patience).filter(|&at| at > snapshot.now).min();
        wake_at = [wake_at, next].into_iter().flatten().min();
    }
    if minimum_first {
        minimum_comes_first(&mut after);
    }
    after.into_plan(Plan { wake_at, ..plan })
}

/// The starts that need not wait for the policy's round: jobs of fixed size, on devices that are free, in the policy's
/// order. Those before them in line that the policy will look at in its round keep what they could have.
pub(crate) fn starts(snapshot: &Snapshot<'_>, turns: &Turns, rules: Rules) -> Plan {
    let mut after = After::new(snapshot, &Plan::default());
    if let Some(patience) = rules.patience() {
        reserve(&mut after, patience, Others::StayAsTheyAre);
    }
    let short = rules.safeguards.guarantees && somebody_is_short(&after);
    let mut starts = BTreeSet::new();
    let mut without: BTreeSet<ClassId> = BTreeSet::new();
    let (first, then): (Vec<ClaimId>, Vec<ClaimId>) =
        turns.order.iter().partition(|&&id| short && is_entitled(&after, snapshot.claim(id)));
    for id in first.into_iter().chain(then) {
        let claim = snapshot.claim(id);
        if without.contains(&claim.class) || !claim.is_waiting() || after.target(id).is_some() {
            continue;
        }
        let entitled = short && is_entitled(&after, claim);
        let may_have = |gpus| match entitled {
            true => after.is_within_limits(claim, gpus),
            false => after.admits(claim, gpus, short),
        };
        match after.place_for(claim, may_have) {
            Some(place) => {
                if claim.spec.scaling.min() == claim.spec.scaling.max() {
                    let shape = place.placement.shape(snapshot.cluster());
                    after.note(id, Some(Note::admitted(shape)));
                    starts.insert(id);
                }
                after.set(claim, Some(place));
            }
            None if turns.strict && !entitled => break,
            None => _ = without.insert(claim.class),
        }
    }
    let plan = after.into_plan(Plan::default());
    let changes = plan.changes.into_iter().filter(|(id, _)| starts.contains(id)).collect();
    let notes = plan.notes.into_iter().filter(|(id, _)| starts.contains(id)).collect();
    Plan { changes, notes, ..Plan::default() }
}

/// What is reserved at present under these rules, around a policy that is asked so often.
pub fn reservations(snapshot: &Snapshot<'_>, safeguards: Safeguards, rhythm: Rhythm) -> Vec<Reservation> {
    let Some(patience) = Rules::new(safeguards, rhythm).patience() else { return Vec::new() };
    let mut after = After::new(snapshot, &Plan::default());
    reserve(&mut after, patience, Others::Concede);
    after.reserved
}

impl Rules {
    pub(crate) fn new(safeguards: Safeguards, rhythm: Rhythm) -> Rules {
        let round = match rhythm {
            Rhythm::OnChange => Span::ZERO,
            Rhythm::EveryRound(round) => round,
        };
        Rules { safeguards, round }
    }

    /// How long a claim waits before devices are reserved for it.
    pub(crate) fn patience(&self) -> Option<Span> {
        self.safeguards.reserve_after.map(|after| after.max(self.round * 10))
    }
}

/// Who goes first among those who wait.
fn turn(claim: &Claim) -> impl Ord + use<> {
    (Reverse(claim.priority), claim.target.is_none(), claim.submitted, claim.id)
}

/// A job whose smallest size takes several devices.
fn is_gang(claim: &Claim) -> bool {
    claim.spec.min_gpus() > Gpus::whole(1)
}

// Guarantees are kept.

/// Queues that are short of what they are promised get it back from those that have more than that.
fn keep_guarantees(after: &mut After<'_>) {
    if after.snapshot.books.queues.len() == 1 {
        return;
    }
    refuse_pins_beyond_promises(after);
    let mut waiting = after.waiting();
    // Why it was stopped says more than that it waits.
    let reclaimed = waiting.iter().filter(|claim| claim.note.reason == Reason::Reclaimed);
    reclaimed.for_each(|claim| after.note(claim.id, None));
    waiting.sort_by_key(|claim| turn(claim));
    let mut without: BTreeSet<ClassId> = BTreeSet::new();
    for claim in waiting {
        if without.contains(&claim.class) || !is_entitled(after, claim) {
            continue;
        }
        let mut borrowers: Vec<&Claim> = after.holders();
        borrowers.retain(|other| may_be_stopped(other) && loan(after, other, claim).is_some());
        borrowers.sort_by_key(|other| (!after.starts(other), other.priority, Reverse((other.submitted, other.id))));
        let shrink = borrowers.iter().map(|&other| (Concession::Shrink, other));
        let stop = borrowers.iter().map(|&other| (Concession::Stop, other));
        let concessions: Vec<_> = shrink.chain(stop).collect();
        let loans: Vec<_> = borrowers.iter().map(|other| (other.id, loan(after, other, claim))).collect();
        let borrows = |after: &After<'_>, other: &Claim| loan(after, other, claim).is_some();
        let within_limits = |after: &After<'_>, claim: &Claim, gpus| after.is_within_limits(claim, gpus);
        let made = after.make_room(claim, &concessions, borrows, within_limits);
        let Some(lost) = made else {
            if claim.target.is_none() {
                without.insert(claim.class);
            }
            continue;
        };
        let of = |id: ClaimId| loans.iter().find(|(other, _)| *other == id).and_then(|(_, loan)| *loan);
        for other in &lost {
            let (lender, borrower) = of(other.id).expect("whoever concedes borrows");
            let obstacle = Obstacle::Lent { lender, borrower };
            let chosen = after.target(other.id).map(|target| target.placement.shape(after.snapshot.cluster()));
            let changes = after.target(other.id) != other.target.as_ref();
            after.note(
                other.id,
                changes.then_some(Note { reason: Reason::Reclaimed, chosen, obstacle: Some(obstacle) }),
            );
        }
        let loan = lost.first().and_then(|other| of(other.id));
        let obstacle = loan.map(|(lender, borrower)| Obstacle::Lent { lender, borrower });
        settled(after, claim, Reason::Guaranteed, obstacle);
    }
}

/// A claim that nobody may ever stop starts only within what its queues are promised.
fn refuse_pins_beyond_promises(after: &mut After<'_>) {
    let mut starting = after.holders();
    starting.retain(|claim| claim.spec.pinned && claim.holds().is_none());
    starting.sort_by_key(|claim| turn(claim));
    let targets: Vec<_> = starting.iter().map(|claim| after.target(claim.id).cloned()).collect();
    starting.iter().for_each(|claim| after.set(claim, None));
    for (claim, target) in starting.into_iter().zip(targets) {
        let gpus = target.as_ref().map_or(Gpus::ZERO, |target| target.placement.gpus());
        match after.pin_obstacle(claim, gpus) {
            None => after.set(claim, target),
            Some(queue) => {
                let smaller = after.place_for(claim, |gpus| after.is_within_limits(claim, gpus));
                after.set(claim, smaller);
                let obstacle = Obstacle::Quota { queue, used: after.used(queue), budget: after.promised(queue) };
                let waits = after.target(claim.id).is_none();
                after.note(claim.id, waits.then_some(Note::waiting(Reason::WaitingForQuota, obstacle)));
            }
        }
    }
}

/// Whether a queue above the claim is promised so much that it may have the claim too.
fn is_entitled(after: &After<'_>, claim: &Claim) -> bool {
    let queues = &after.snapshot.books.queues;
    let Some(gpus) = needed(after, claim) else { return false };
    let mut above = queues.ancestry(claim.spec.queue).filter(|&queue| queue != QueueId::ROOT);
    !gpus.is_zero() && above.any(|queue| after.used(queue).saturating_add(gpus) <= after.promised(queue))
}

/// Whether a claim waits that its queue's guarantee would cover.
fn somebody_is_short(after: &After<'_>) -> bool {
    let queues = after.snapshot.books.queues.len() > 1;
    queues && after.waiting().into_iter().any(|claim| is_entitled(after, claim))
}

/// GPUs that the claim needs at least.
fn needed(after: &After<'_>, claim: &Claim) -> Option<Gpus> {
    Some(claim.spec.gpus(fewest(claim, &after.snapshot)?))
}

/// Which queue would get back from which what it is promised, if the claim got something of what the other has: below the
/// first queue that they have in common, the one is short, and the other has more than it is promised.
fn loan(after: &After<'_>, borrower: &Claim, claim: &Claim) -> Option<(QueueId, QueueId)> {
    let queues = &after.snapshot.books.queues;
    let path = |claim: &Claim| {
        let mut path: Vec<QueueId> = queues.ancestry(claim.spec.queue).collect();
        path.reverse();
        path
    };
    let (theirs, ours) = (path(borrower), path(claim));
    let common = theirs.iter().zip(&ours).take_while(|(one, other)| one == other).count();
    let &lender = ours.get(common)?;
    let short = after.used(lender).saturating_add(needed(after, claim)?) <= after.promised(lender);
    let has_too_much = match theirs.get(common) {
        Some(&queue) => after.used(queue) > after.promised(queue),
        None => {
            let parent = theirs[common - 1];
            let below: Gpus = queues.children(parent).map(|(child, _)| after.used(child)).sum();
            after.used(parent).saturating_sub(below) > left_over(after, parent)
        }
    };
    let from = theirs.get(common).copied().unwrap_or(theirs[common - 1]);
    (short && has_too_much).then_some((lender, from))
}

/// Whether the claim may be stopped because its queue borrows.
fn may_be_stopped(claim: &Claim) -> bool {
    !(claim.spec.pinned && claim.holds().is_some())
}

// The minimum comes first.

/// Gives those who wait their minimum of what others have beyond theirs.
fn minimum_comes_first(after: &mut After<'_>) {
    let mut waiting = after.waiting();
    if waiting.is_empty() || surplus(after).is_empty() {
        return;
    }
    let short = somebody_is_short(after);
    waiting.sort_by_key(|claim| turn(claim));
    let mut without: BTreeSet<ClassId> = BTreeSet::new();
    for claim in waiting {
        if without.contains(&claim.class) {
            continue;
        }
        let surplus = surplus(after);
        if surplus.is_empty() {
            return;
        }
        let undo = surplus.iter().map(|&other| (Concession::Undo, other));
        let shrink = surplus.iter().map(|&other| (Concession::Shrink, other));
        let concessions: Vec<_> = undo.chain(shrink).collect();
        let may_have = |after: &After<'_>, claim: &Claim, gpus| after.admits(claim, gpus, short);
        match after.make_room(claim, &concessions, |_, _| true, may_have) {
            Some(lost) => {
                yielded(after, &lost, claim);
                settled(after, claim, Reason::MinimumFirst, None);
            }
            None if claim.target.is_none() => _ = without.insert(claim.class),
            None => {}
        }
    }
}

/// Claims that have more than their minimum and may have less, those first for which that costs least: who has not got it
/// yet, then who counts less, then who has most of it.
fn surplus<'a>(after: &After<'a>) -> Vec<&'a Claim> {
    let mut surplus: Vec<(u32, &Claim)> = after
        .holders()
        .into_iter()
        .filter(|claim| claim.spec.scaling.max() > claim.spec.scaling.min() && !claim.must_go_on())
        .filter_map(|claim| Some((after.workers(claim.id).checked_sub(fewest(claim, &after.snapshot)?)?, claim)))
        .filter(|(beyond, _)| *beyond > 0)
        .collect();
    surplus.sort_by_key(|(beyond, claim)| {
        let has_it = after.target(claim.id) == claim.target.as_ref();
        (has_it, claim.priority, Reverse(*beyond), Reverse((claim.submitted, claim.id)))
    });
    surplus.into_iter().map(|(_, claim)| claim).collect()
}

/// Says of claims what became of what they had beyond their minimum.
fn yielded(after: &mut After<'_>, lost: &[&Claim], to: &Claim) {
    for other in lost {
        let chosen = after.target(other.id).map(|target| target.placement.shape(after.snapshot.cluster()));
        let changes = after.target(other.id) != other.target.as_ref();
        let obstacle = Some(Obstacle::Yielded { to: to.id });
        after.note(other.id, changes.then_some(Note { reason: Reason::MinimumFirst, chosen, obstacle }));
    }
}

/// Says why a claim has devices, unless it had the same before.
fn settled(after: &mut After<'_>, claim: &Claim, reason: Reason, obstacle: Option<Obstacle>) {
    let chosen = after.target(claim.id).map(|target| target.placement.shape(after.snapshot.cluster()));
    let changes = after.target(claim.id) != claim.target.as_ref();
    after.note(claim.id, changes.then_some(Note { reason, chosen, obstacle }));
}

// Gangs do not starve.

/// Who got its devices by a reservation keeps them for as long as it had to wait for the reservation.
fn keep_reserved_starts(after: &mut After<'_>, patience: Span) {
    let now = after.snapshot.now;
    let kept: Vec<&Claim> = after.waiting().into_iter().filter(|claim| is_in_its_time(claim, now, patience)).collect();
    for claim in kept {
        let concessions: Vec<_> = concessions_to(after, claim, patience);
        let may_have = |after: &After<'_>, claim: &Claim, gpus| after.is_within_limits(claim, gpus);
        if let Some(lost) = after.make_room(claim, &concessions, |_, _| true, may_have) {
            outranked(after, &lost, claim, None);
            after.note(claim.id, None);
        }
    }
}

fn is_in_its_time(claim: &Claim, now: Time, patience: Span) -> bool {
    let began = claim.progress.last_launch.filter(|_| claim.holds().is_some());
    claim.note.reason == Reason::Reserved && claim.target.is_some() && began.is_none_or(|began| now < began + patience)
}

/// Whether others shrink at once for a claim that has waited too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Others {
    Concede,
    /// They do so in the next round: until then what they would give is reserved as well, and nobody else may have it.
    StayAsTheyAre,
}

/// Gives devices to those who have waited too long for several of them, or reserves some.
fn reserve(after: &mut After<'_>, patience: Span, others: Others) {
    let now = after.snapshot.now;
    let mut waiting = after.waiting();
    waiting.retain(|claim| is_gang(claim) && claim.holds().is_none() && now >= claim.waits_since() + patience);
    waiting.sort_by_key(|claim| (Reverse(claim.priority), claim.waits_since(), claim.id));
    let short = somebody_is_short(after);
    for claim in waiting {
        let concessions = concessions_to(after, claim, patience);
        let may_have = |after: &After<'_>, claim: &Claim, gpus| after.admits(claim, gpus, short);
        if let Some(lost) = after.make_room(claim, &concessions, |_, _| others == Others::Concede, may_have) {
            outranked(after, &lost, claim, None);
            settled(after, claim, Reason::Reserved, None);
            continue;
        }
        let Some(reservation) = reservation(after, claim, &concessions, short) else { continue };
        keep_free(after, &reservation);
        let until = reservation.at.unwrap_or(Time::MAX);
        let obstacle = Obstacle::ReservedFor { claim: claim.id, until };
        after.note(claim.id, Some(Note::waiting(Reason::Reserved, obstacle)));
        after.reserved.push(reservation);
    }
}

/// What others can be asked for: not to start or grow by this plan, and to have their minimum. Who goes before the claim,
/// who has what its queue is guaranteed and who has a reservation is not asked.
fn concessions_to<'a>(after: &After<'a>, claim: &Claim, patience: Span) -> Vec<(Concession, &'a Claim)> {
    let now = after.snapshot.now;
    let may_ask = |other: &&Claim| {
        let guaranteed = after.is_noted(other.id) && after.target(other.id) != other.target.as_ref();
        other.priority <= claim.priority && !guaranteed && !is_in_its_time(other, now, patience)
    };
    let starting = after.holders().into_iter().filter(|other| after.starts(other) && other.holds().is_none());
    let starting = starting.filter(may_ask).map(|other| (Concession::Stop, other));
    let surplus: Vec<&Claim> = surplus(after);
    let undo = surplus.iter().map(|&other| (Concession::Undo, other));
    let shrink = surplus.iter().map(|&other| (Concession::Shrink, other));
    undo.chain(shrink).chain(starting).collect()
}

/// Which devices the claim gets, when those who have them will have ended: those that are expected to end first, and of
/// those of which nothing is known those that began first.
fn reservation(
    after: &After<'_>,
    claim: &Claim,
    concessions: &[(Concession, &Claim)],
    short: bool,
) -> Option<Reservation> {
    let mut trial = after.clone();
    concessions.iter().for_each(|(concession, other)| trial.ask(*concession, other));
    let end = |claim: &Claim| expected_end(&after.snapshot, claim);
    let mut running = trial.holders();
    running.sort_by_key(|other| {
        let end = end(other);
        (end.is_none(), end, other.progress.last_launch, other.id)
    });
    let mut leaving: Vec<&Claim> = Vec::new();
    for other in running {
        leaving.push(other);
        trial.set(other, None);
        let Some(place) = trial.place_for(claim, |gpus| trial.admits(claim, gpus, short)) else { continue };
        // Those that hold nothing of it need not end.
        trial.set(claim, Some(place.clone()));
        leaving.retain(|other| {
            let target = after.target(other.id).expect("it is one of those that have something").clone();
            let stays = trial.room().is_untaken(after.snapshot.cluster(), &target.placement);
            if stays {
                trial.set(other, Some(target));
            }
            !stays
        });
        leaving.sort_by_key(|other| other.id);
        let at = leaving.iter().map(|other| end(other)).collect::<Option<Vec<Time>>>();
        let at = at.map(|ends| ends.into_iter().max().unwrap_or(after.snapshot.now));
        return Some(Reservation {
            claim: claim.id,
            priority: claim.priority,
            placement: place.placement.clone(),
            at,
            is_foreseen: leaving.iter().all(|other| after.snapshot.is_foreseen(other)),
            after: leaving.iter().map(|other| other.id).collect(),
        });
    }
    None
}

/// When a claim will have ended at the latest, as far as anybody can say.
fn expected_end(snapshot: &Snapshot<'_>, claim: &Claim) -> Option<Time> {
    let limit = claim.spec.limit.map(|limit| limit.saturating_sub(claim.progress.executed(snapshot.now)));
    let left = [snapshot.remaining(claim), limit].into_iter().flatten().min()?;
    Some(snapshot.now + left)
}

/// Sends those elsewhere, or lets them wait, that this plan would start on what is now reserved.
fn keep_free(after: &mut After<'_>, reservation: &Reservation) {
    let reserved_for = after.snapshot.claim(reservation.claim);
    let starting: Vec<&Claim> = after.holders().into_iter().filter(|claim| after.starts(claim)).collect();
    for claim in starting {
        let target = after.target(claim.id).expect("it starts").clone();
        let taken = overlaps(&target.placement, &reservation.placement);
        let settled = after.is_noted(claim.id) || claim.holds().is_some();
        if !taken || settled || !after.is_kept_from(reservation, claim) {
            continue;
        }
        after.reserved.push(reservation.clone());
        after.set(claim, None);
        let elsewhere = after.place_for(claim, |_| true);
        after.reserved.pop();
        match elsewhere {
            Some(place) => after.set(claim, Some(place)),
            None => outranked(after, &[claim], reserved_for, reservation.at),
        }
    }
}

/// Says of claims that wait for whom they do.
fn outranked(after: &mut After<'_>, lost: &[&Claim], by: &Claim, until: Option<Time>) {
    let (waits, yields): (Vec<&Claim>, Vec<&Claim>) =
        lost.iter().copied().partition(|other| after.target(other.id).is_none());
    yielded(after, &yields, by);
    for other in waits {
        let obstacle = match until {
            Some(until) => Obstacle::ReservedFor { claim: by.id, until },
            None => Obstacle::Outranked { by: by.id },
        };
        after.note(other.id, Some(Note::waiting(Reason::Reservation, obstacle)));
    }
}

fn overlaps(one: &cluster::Placement, other: &cluster::Placement) -> bool {
    one.slots().iter().any(|slot| {
        let here = other.slots().iter().filter(|other| other.node == slot.node);
        here.into_iter().any(|other| other.slices.devices.overlaps(slot.slices.devices))
    })
}
