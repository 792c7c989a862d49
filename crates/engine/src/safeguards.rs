//! The stage around the policy: what users count on whichever policy decides. A policy's plan goes in, and a plan that
//! keeps to the rules comes out; what a rule does not touch stays as the policy wants it.
//!
//! The rules go by guarantee, then priority, then who has devices already, then submission. They look at what claims have
//! now before anything else, so that a policy which wants the same thing again in the next round changes nothing.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use cluster::{ClaimId, Devices, Gpus, Grain, NodeId, QueueId, Role, Slice, Span, Time};
use plan::{Claim, ClassId, Note, Obstacle, Plan, Reason, Rhythm, Safeguards, Snapshot, Turns, place};

use crate::after::{After, Concession, Reservation, fewest, in_common, left_over, path, used_itself};

/// So often in one round those that wait are looked at again for what others have lost.
const MOST_PASSES: usize = 4;

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
        if guarantees {
            give_until_nobody_loses(&mut after);
        }
        let next = after.waiting().into_iter().filter(|claim| is_gang(claim));
        let next = next.map(|claim| claim.waits_since() + patience).filter(|&at| at > snapshot.now).min();
        wake_at = [wake_at, next].into_iter().flatten().min();
    }
    if minimum_first {
        minimum_comes_first(&mut after);
        if guarantees {
            give_until_nobody_loses(&mut after);
        }
    }
    after.into_plan(Plan { wake_at, ..plan })
}

/// The starts that need not wait for the policy's round: jobs of fixed size, on devices that are free, in the policy's
/// order. Those before them in line that the policy will look at in its round keep what they could have.
pub(crate) fn starts(snapshot: &Snapshot<'_>, turns: impl FnOnce() -> Turns, rules: Rules) -> Plan {
    let mut after = After::new(snapshot, &Plan::default());
    let might_start = |claim: &Claim| {
        let workers = fewest(claim, snapshot).filter(|_| is_of_fixed_size(claim) && claim.target.is_none());
        workers.is_some_and(|workers| after.has_devices(claim, workers))
    };
    if !snapshot.eligible().any(might_start) {
        return Plan::default();
    }
    let turns = turns();
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
                if is_of_fixed_size(claim) {
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

fn is_of_fixed_size(claim: &Claim) -> bool {
    claim.spec.scaling.min() == claim.spec.scaling.max()
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
    let waiting = after.waiting();
    // Why it was stopped says more than that it waits.
    let reclaimed = waiting.iter().filter(|claim| claim.note.reason == Reason::Reclaimed);
    reclaimed.for_each(|claim| after.note(claim.id, None));
    give_until_nobody_loses(after);
}

/// What jobs of a queue lost, to this rule or to the others, leaves more of what the queue is promised to others of it:
/// they are looked at again. What is still left then is left to the next round.
fn give_until_nobody_loses(after: &mut After<'_>) {
    let queues_below_root = after.snapshot.books.queues.len() - 1;
    for _ in 0..queues_below_root.min(MOST_PASSES) {
        if !give_what_is_promised(after) {
            break;
        }
    }
}

/// Goes once through those that wait. Returns whether anybody lost something.
fn give_what_is_promised(after: &mut After<'_>) -> bool {
    let mut waiting = after.waiting();
    waiting.sort_by_key(|claim| turn(claim));
    let mut anybody_lost = false;
    let mut without: BTreeSet<ClassId> = BTreeSet::new();
    for claim in waiting {
        if without.contains(&claim.class) || !is_entitled(after, claim) {
            continue;
        }
        let others = creditors_of(after, claim);
        let mut concessions: Vec<_> = others.iter().map(|&(_, other)| (Concession::Shrink, other)).collect();
        for (index, alike) in others.chunk_by(|(one, _), (other, _)| one == other).enumerate() {
            let alike = alike.iter().map(|&(_, other)| other);
            let shrink = alike.clone().filter(|_| index > 0).map(|other| (Concession::Shrink, other));
            concessions.extend(shrink.chain(alike.map(|other| (Concession::Stop, other))));
        }
        let borrows = |after: &After<'_>, other: &Claim| is_on_loan(after, other, claim);
        let within_limits = |after: &After<'_>, claim: &Claim, gpus| after.is_within_limits(claim, gpus);
        let made = after.make_room(claim, &concessions, borrows, within_limits);
        let Some(lost) = made else {
            if claim.target.is_none() {
                without.insert(claim.class);
            }
            continue;
        };
        for other in &lost {
            let (lender, borrower) = parties(after, other, claim).expect("whoever concedes borrows");
            let obstacle = Obstacle::Lent { lender, borrower };
            let chosen = after.target(other.id).map(|target| target.placement.shape(after.snapshot.cluster()));
            let changes = after.target(other.id) != other.target.as_ref();
            after.note(
                other.id,
                changes.then_some(Note { reason: Reason::Reclaimed, chosen, obstacle: Some(obstacle) }),
            );
        }
        anybody_lost |= !lost.is_empty();
        let loan = lost.first().and_then(|other| parties(after, other, claim));
        let obstacle = loan.map(|(lender, borrower)| Obstacle::Lent { lender, borrower });
        settled(after, claim, Reason::Guaranteed, obstacle);
    }
    anybody_lost
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

/// Those that may have to give the claim what its queues are promised, in the order in which they are asked, and how many
/// queues each has in common with it. None, if nobody borrows at present.
fn creditors_of<'a>(after: &After<'a>, claim: &Claim) -> Vec<(usize, &'a Claim)> {
    let queues = &after.snapshot.books.queues;
    let mut others: Vec<&Claim> = after.holders();
    others.retain(|other| may_be_stopped(other));
    // By queues: there are far fewer of them than claims.
    let mut apart: BTreeMap<QueueId, Option<(usize, bool)>> = BTreeMap::new();
    let mut anybody_borrows = false;
    for other in &others {
        apart.entry(other.spec.queue).or_insert_with(|| {
            parties(after, other, claim)?;
            anybody_borrows |= is_on_loan(after, other, claim);
            let theirs = path(queues, other.spec.queue);
            let common = in_common(&theirs, &path(queues, claim.spec.queue));
            // Where only a queue above it has more than it is promised, others below that one are to give back first.
            Some((common, theirs[common..].iter().all(|&queue| after.used(queue) > after.promised(queue))))
        });
    }
    if !anybody_borrows {
        return Vec::new();
    }
    let mut asked: Vec<_> = others.into_iter().filter_map(|other| Some((apart[&other.spec.queue]?, other))).collect();
    // Queues that are near give back first: only then it may show that those above them are short as well.
    asked.sort_by_key(|&((common, borrows), other)| {
        (Reverse(common), !borrows, !after.starts(other), other.priority, Reverse((other.submitted, other.id)))
    });
    asked.into_iter().map(|((common, _), other)| (common, other)).collect()
}

/// Which queue would get back from which what it is promised, if the claim got something of what the other has: those
/// below the first queue that they have in common, or that queue itself if the other is of it.
fn parties(after: &After<'_>, borrower: &Claim, claim: &Claim) -> Option<(QueueId, QueueId)> {
    let queues = &after.snapshot.books.queues;
    let (theirs, ours) = (path(queues, borrower.spec.queue), path(queues, claim.spec.queue));
    let common = in_common(&theirs, &ours);
    let from = theirs.get(common).copied().unwrap_or(theirs[common - 1]);
    Some((*ours.get(common)?, from))
}

/// Whether of these two the one is short, and the other has more than it is promised.
fn is_on_loan(after: &After<'_>, borrower: &Claim, claim: &Claim) -> bool {
    let Some(((lender, from), needed)) = parties(after, borrower, claim).zip(needed(after, claim)) else {
        return false;
    };
    let short = after.used(lender).saturating_add(needed) <= after.promised(lender);
    let is_above = after.snapshot.books.queues.ancestry(lender).any(|queue| queue == from);
    short
        && match is_above {
            false => after.used(from) > after.promised(from),
            true => used_itself(after, from) > left_over(after, from),
        }
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
    waiting.retain(|claim| claim.holds().is_none() && has_waited_too_long(claim, now, patience));
    if waiting.is_empty() {
        return;
    }
    waiting.sort_by_key(|claim| place_in_line(claim));
    let short = somebody_is_short(after);
    let emptied = emptied(after);
    let mut outlook: Option<Outlook<'_>> = None;
    let mut without: BTreeSet<_> = BTreeSet::new();
    for claim in waiting {
        let alike = (claim.class, claim.priority, claim.spec.pinned, fewest(claim, &after.snapshot));
        let alike = (alike, after.end_if_started(claim));
        let is_new = claim.target.is_none();
        if is_new && without.contains(&alike) {
            continue;
        }
        // What is left when everybody has ended decides for most: devices that are reserved are nobody else's then either.
        if !Supply::of(&emptied, after, claim).may_do(&emptied, claim, short) {
            without.extend(is_new.then_some(alike));
            continue;
        }
        let outlook_now = outlook.get_or_insert_with(|| Outlook::of(after));
        let trial = outlook_now.trial_for(after, claim, patience);
        let supply = Supply::of(&trial, after, claim);
        if supply.may_do(&trial, claim, short) {
            let concessions = match others {
                Others::Concede => concessions_to(after, claim, patience),
                Others::StayAsTheyAre => Vec::new(),
            };
            let may_have = |after: &After<'_>, claim: &Claim, gpus| after.admits(claim, gpus, short);
            if let Some(lost) = after.make_room(claim, &concessions, |_, _| true, may_have) {
                outranked(after, &lost, claim, None);
                settled(after, claim, Reason::Reserved, None);
                outlook = None;
                continue;
            }
        }
        let is_late = is_late(claim, now, patience);
        let ends = if is_late { &outlook_now.by_age } else { &outlook_now.ends };
        let Some(reservation) = reservation(after, claim, trial, supply, ends, short) else {
            without.extend(is_new.then_some(alike));
            continue;
        };
        let reservation = Reservation { is_late, ..reservation };
        if keep_free(after, &reservation, patience) {
            outlook = None;
        }
        let until = reservation.at.unwrap_or(Time::MAX);
        let obstacle = Obstacle::ReservedFor { claim: claim.id, until };
        after.note(claim.id, Some(Note::waiting(Reason::Reserved, obstacle)));
        after.reserved.push(reservation);
    }
}

fn has_waited_too_long(claim: &Claim, now: Time, patience: Span) -> bool {
    is_gang(claim) && now >= claim.waits_since() + patience
}

/// Whether the claim still waits although devices were to be free for it by now, as was foreseen when some were first
/// reserved; where nobody could say, it waits as long again as until then. Jobs take longer than they say. From now on what
/// they say decides neither what is reserved nor who may start there: those that began first are waited for. So nobody
/// who begins later holds the claim up, and the last of those that had begun is the last to be waited for.
fn is_late(claim: &Claim, now: Time, patience: Span) -> bool {
    let Some(Obstacle::ReservedFor { claim: reserved_for, until }) = claim.note.obstacle else { return false };
    let foreseen = if until == Time::MAX { claim.waits_since() + patience * 2 } else { until };
    reserved_for == claim.id && now > foreseen
}

/// Who goes first among those who have waited too long.
fn place_in_line(claim: &Claim) -> impl Ord + use<> {
    (Reverse(claim.priority), claim.waits_since(), claim.id)
}

/// Whether one that this plan would start has waited too long as well, and longer than the claim.
fn goes_before(after: &After<'_>, other: &Claim, claim: &Claim, patience: Span) -> bool {
    has_waited_too_long(other, after.snapshot.now, patience) && place_in_line(other) < place_in_line(claim)
}

/// The same cluster when everybody has ended who has something.
fn emptied<'a>(after: &After<'a>) -> After<'a> {
    let mut emptied = after.clone();
    after.holders().iter().for_each(|claim| emptied.set(claim, None));
    emptied
}

/// What all who wait for devices look at. It holds until somebody gets or loses some.
struct Outlook<'a> {
    /// The cluster when everybody has conceded what can be asked of all.
    conceded: After<'a>,
    /// Those that this plan would start.
    starting: Vec<&'a Claim>,
    /// Those that have something, and when they are expected to have ended: those first that end first, and of those of
    /// which nothing is known those that began first.
    ends: Vec<(&'a Claim, Option<Time>)>,
    /// The same, those first that began first.
    by_age: Vec<(&'a Claim, Option<Time>)>,
}

impl<'a> Outlook<'a> {
    fn of(after: &After<'a>) -> Outlook<'a> {
        let mut conceded = after.clone();
        conceded.reserved.clear();
        to_minimum(after).iter().for_each(|(concession, other)| conceded.ask(*concession, other));
        let holders = after.holders();
        let starting = holders.iter().copied().filter(|other| after.starts(other) && other.holds().is_none());
        let starting = starting.collect();
        let end = |claim: &'a Claim| (claim, expected_end(&after.snapshot, claim));
        let mut ends: Vec<_> = holders.into_iter().map(end).collect();
        ends.sort_by_key(|(other, end)| (end.is_none(), *end, other.progress.last_launch, other.id));
        let began = |other: &Claim| other.progress.last_launch.filter(|_| other.holds().is_some());
        let mut by_age = ends.clone();
        by_age.sort_by_key(|(other, _)| (began(other).is_none(), began(other), other.id));
        Outlook { conceded, starting, ends, by_age }
    }

    /// The cluster when everybody has conceded what can be asked for the claim.
    fn trial_for(&self, after: &After<'a>, claim: &Claim, patience: Span) -> After<'a> {
        let mut trial = self.conceded.clone();
        trial.reserved = after.reserved.clone();
        let asked = self.starting.iter().filter(|other| may_be_asked(after, other, claim, patience));
        asked.for_each(|other| trial.ask(Concession::Stop, other));
        trial
    }
}

/// What others can be asked for: not to start or grow by this plan, and to have their minimum. Who goes before the claim,
/// who has what its queue is guaranteed and who has a reservation is not asked.
fn concessions_to<'a>(after: &After<'a>, claim: &Claim, patience: Span) -> Vec<(Concession, &'a Claim)> {
    let starting = after.holders().into_iter().filter(|other| after.starts(other) && other.holds().is_none());
    let starting = starting.filter(|other| may_be_asked(after, other, claim, patience));
    to_minimum(after).into_iter().chain(starting.map(|other| (Concession::Stop, other))).collect()
}

/// By which those that have more come to have their minimum.
fn to_minimum<'a>(after: &After<'a>) -> Vec<(Concession, &'a Claim)> {
    let surplus: Vec<&Claim> = surplus(after);
    let undo = surplus.iter().map(|&other| (Concession::Undo, other));
    let shrink = surplus.iter().map(|&other| (Concession::Shrink, other));
    undo.chain(shrink).collect()
}

/// Whether one that this plan would start can be asked not to, for the claim.
fn may_be_asked(after: &After<'_>, other: &Claim, claim: &Claim, patience: Span) -> bool {
    let guaranteed = || {
        let is_given = after.is_noted(other.id) && after.target(other.id) != other.target.as_ref();
        is_given || after.is_promised_before(other, claim.id)
    };
    other.priority <= claim.priority
        && !is_in_its_time(other, after.snapshot.now, patience)
        && !goes_before(after, other, claim, patience)
        && !guaranteed()
}

/// For how many tasks of a claim there are devices that are not reserved for others. It says without a search, and after
/// every change of a node, that there is no place for the claim.
struct Supply<'a> {
    /// Whole devices are counted for the role that takes most of them; nothing is known if none does.
    counted: Option<(&'a Role, Slice)>,
    needed: u32,
    kept: Vec<Devices>,
    /// Tasks on each node, and on all nodes of each kind.
    on: Vec<u32>,
    of: Vec<u32>,
}

impl<'a> Supply<'a> {
    /// In this room, with what is reserved by now.
    fn of(trial: &After<'_>, reserved: &After<'_>, claim: &'a Claim) -> Supply<'a> {
        let cluster = trial.snapshot.cluster();
        let workers = fewest(claim, &trial.snapshot).unwrap_or(0);
        let whole = |role: &'a Role| Some((role, role.slice.filter(|slice| slice.grain == Grain::Whole)?));
        let roles = claim.spec.roles.iter().filter_map(whole);
        let counted = roles.max_by_key(|(role, slice)| slice.count.saturating_mul(role.tasks(workers)));
        let needed = counted.map_or(0, |(role, _)| role.tasks(workers));
        let mut kept = vec![Devices::NONE; cluster.node_count()];
        for slot in reserved.kept_from(claim).flat_map(|reservation| reservation.placement.slots()) {
            let node = &mut kept[slot.node.0 as usize];
            *node = node.union(slot.slices.devices);
        }
        let (on, of) = (vec![0; cluster.node_count()], vec![0; cluster.kinds().count()]);
        let mut supply = Supply { counted, needed, kept, on, of };
        trial.room().open_nodes().for_each(|node| supply.count(trial, node));
        supply
    }

    /// Looks at a node again.
    fn count(&mut self, trial: &After<'_>, node: NodeId) {
        let Some((role, slice)) = self.counted else { return };
        let (place, room) = (node.0 as usize, trial.room());
        let Some(kind) = trial.snapshot.cluster().node(node).kind else { return };
        let devices = room.free_devices(node).without(self.kept[place]).count();
        let tasks = (devices / slice.count).min(place::tasks_by_cores(room, role, node));
        let of_kind = &mut self.of[usize::from(kind.0)];
        *of_kind = *of_kind - self.on[place] + tasks;
        self.on[place] = tasks;
    }

    /// Whether there may be a place for the claim.
    fn may_do(&self, trial: &After<'_>, claim: &Claim, short: bool) -> bool {
        if claim.target.is_some() || self.counted.is_none() {
            return true;
        }
        let mut kinds = trial.snapshot.cluster().kinds();
        let enough = kinds.any(|(id, kind)| {
            self.of[usize::from(id.0)] >= self.needed && claim.spec.allows_kind(id) && place::suits(&claim.spec, kind)
        });
        enough && needed(trial, claim).is_some_and(|gpus| trial.admits(claim, gpus, short))
    }
}

/// Which devices the claim gets, when those who have them will have ended, in this order.
fn reservation(
    after: &After<'_>,
    claim: &Claim,
    mut trial: After<'_>,
    mut supply: Supply<'_>,
    ends: &[(&Claim, Option<Time>)],
    short: bool,
) -> Option<Reservation> {
    let mut leaving: Vec<(&Claim, Option<Time>)> = Vec::new();
    for &(other, end) in ends {
        let Some(had) = trial.target(other.id).cloned() else { continue };
        leaving.push((other, end));
        trial.set(other, None);
        had.placement.nodes().for_each(|node| supply.count(&trial, node));
        if !supply.may_do(&trial, claim, short) {
            continue;
        }
        let Some(place) = trial.place_for(claim, |gpus| trial.admits(claim, gpus, short)) else { continue };
        // Those that hold nothing of it need not end.
        trial.set(claim, Some(place.clone()));
        leaving.retain(|(other, _)| {
            let target = after.target(other.id).expect("it is one of those that have something").clone();
            let stays = trial.room().is_untaken(after.snapshot.cluster(), &target.placement);
            if stays {
                trial.set(other, Some(target));
            }
            !stays
        });
        leaving.sort_by_key(|(other, _)| other.id);
        let at = leaving.iter().map(|(_, end)| *end).collect::<Option<Vec<Time>>>();
        let at = at.map(|ends| ends.into_iter().max().unwrap_or(after.snapshot.now));
        return Some(Reservation {
            claim: claim.id,
            priority: claim.priority,
            placement: place.placement.clone(),
            at,
            is_foreseen: leaving.iter().all(|(other, _)| after.snapshot.is_foreseen(other)),
            after: leaving.iter().map(|(other, _)| other.id).collect(),
            is_late: false,
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

/// Sends those elsewhere, or lets them wait, that this plan would start on what is now reserved. Returns whether there were
/// any.
fn keep_free(after: &mut After<'_>, reservation: &Reservation, patience: Span) -> bool {
    let reserved_for = after.snapshot.claim(reservation.claim);
    let mut changed = false;
    let starting: Vec<&Claim> = after.holders().into_iter().filter(|claim| after.starts(claim)).collect();
    for claim in starting {
        let target = after.target(claim.id).expect("it starts").clone();
        let taken = overlaps(&target.placement, &reservation.placement);
        let settled = after.is_noted(claim.id) || claim.holds().is_some();
        let settled = settled || goes_before(after, claim, reserved_for, patience);
        if !taken || settled || !after.is_kept_from(reservation, claim) {
            continue;
        }
        changed = true;
        after.reserved.push(reservation.clone());
        after.set(claim, None);
        let elsewhere = after.place_for(claim, |_| true);
        after.reserved.pop();
        match elsewhere {
            Some(place) => after.set(claim, Some(place)),
            None => outranked(after, &[claim], reserved_for, reservation.at),
        }
    }
    changed
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cluster::{Bytes, JobDraft, Scaling, WorkerRange};
    use plan::place::{Style, allotment, fit};
    use plan::{Budgets, Changed};

    use super::*;
    use crate::after::searches;
    use crate::bench::{Bench, whole};
    use crate::{Input, Request, State};

    const PATIENCE: Span = Span::from_minutes(10);

    fn all(drafts: impl IntoIterator<Item = JobDraft>) -> Vec<Input> {
        let submit = |draft: JobDraft| {
            let (spec, speed) = (Arc::new(draft.build().unwrap()), Arc::new(perf::Speed::constant(1.0)));
            Input::Request(Request::Submit { spec, speed, held: false })
        };
        drafts.into_iter().map(submit).collect()
    }

    fn an_hour_later<'a>(state: &'a State, budgets: &'a Budgets) -> Snapshot<'a> {
        Snapshot {
            now: Time::from_secs(3600),
            books: state.books(),
            changed: Changed::Everything,
            budgets,
            truths: None,
        }
    }

    #[test]
    fn a_thousand_gangs_do_not_each_try_every_job_that_runs() {
        let one_each = |snapshot: &Snapshot<'_>| {
            let small = snapshot.eligible().filter(|claim| claim.target.is_none() && !is_gang(claim));
            let place = |id: ClaimId| whole(id.0 / 4, 1 << (id.0 % 4));
            Plan { changes: small.map(|claim| (claim.id, Some(place(claim.id)))).collect(), ..Plan::default() }
        };
        let mut bench = Bench::new("75x4", one_each);
        let gangs = (0..1000).map(|_| JobDraft::rigid("gang", 2));
        bench.handle(0, all((0..300).map(|_| JobDraft::rigid("one", 1)).chain(gangs)));
        let budgets = Budgets::none();
        let snapshot = an_hour_later(bench.engine.state(), &budgets);
        let (reserved, tried) = searches::during(|| reservations(&snapshot, Safeguards::ALL, Rhythm::OnChange));
        assert_eq!(reserved.len(), 150, "two devices for each, until none is left");
        assert!(tried <= 150, "{tried} searches for a place");
        let turns = || panic!("where nothing is free nobody need be asked who goes first");
        let rules = Rules::new(Safeguards::ALL, Rhythm::EveryRound(Span::from_secs(60)));
        assert_eq!(starts(&snapshot, turns, rules).changes, []);
    }

    #[test]
    fn a_gang_that_starts_is_held_up_only_by_one_that_has_waited_longer() {
        for (small, large) in [(1, 2), (2, 1)] {
            let mut bench = Bench::new("1x4", |snapshot| {
                let first = snapshot.claim(ClaimId(0)).target.is_none();
                let changes = first.then(|| (ClaimId(0), Some(whole(0, 0b0011))));
                Plan { changes: changes.into_iter().collect(), ..Plan::default() }
            });
            let mut jobs = [JobDraft::rigid("two", 2), JobDraft::rigid("two", 2), JobDraft::rigid("two", 2)];
            jobs[large as usize] = JobDraft::rigid("four", 4);
            bench.handle(0, all(jobs));
            let budgets = Budgets::none();
            let snapshot = an_hour_later(bench.engine.state(), &budgets);
            let started = vec![(ClaimId(small), Some(whole(0, 0b1100)))];
            let mut after = After::new(&snapshot, &Plan { changes: started, ..Plan::default() });
            reserve(&mut after, PATIENCE, Others::Concede);
            assert_eq!(after.target(ClaimId(small)).is_some(), small < large);
            assert_eq!(after.reserved[0].claim, ClaimId(large));
        }
    }

    /// Numbers that look random and are always the same.
    struct Draw(u64);

    impl Draw {
        fn below(&mut self, end: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % end
        }

        fn job(&mut self) -> JobDraft {
            let min = 1 + self.below(4) as u32;
            let scaling = match self.below(3) {
                0 => Scaling::Elastic(WorkerRange { min, max: min + self.below(5) as u32 }),
                _ => Scaling::Rigid(min),
            };
            let mut draft = JobDraft { scaling, priority: self.below(3) as i32, ..JobDraft::rigid("job", min) };
            draft.expected = (self.below(2) == 0).then(|| Span::from_secs(600 + 600 * self.below(20)));
            draft.pinned = self.below(8) == 0;
            let role = &mut draft.roles[0];
            role.millicores = 4000 * self.below(4) as u32;
            role.memory = Bytes::ZERO;
            role.slice.as_mut().unwrap().count = 1 + self.below(5).saturating_sub(2) as u32;
            draft
        }
    }

    /// A place for some of those that wait, as long as there is one.
    fn drawn(snapshot: &Snapshot<'_>, draw: &mut Draw) -> Plan {
        let mut room = snapshot.room().clone();
        let mut changes = Vec::new();
        for claim in snapshot.eligible().filter(|claim| claim.is_waiting()) {
            let workers = claim.spec.scaling.min() + draw.below(3) as u32;
            let workers = workers.min(claim.spec.scaling.max());
            if let Some(placement) = fit(&room, snapshot, claim, workers, Style::Scatter).filter(|_| draw.below(3) > 0)
            {
                room.take(&placement);
                changes.push((claim.id, Some(allotment(claim, workers, placement))));
            }
        }
        Plan { changes, ..Plan::default() }
    }

    /// The rule as it reads: every gang asks all others, and tries for a place after each of them has ended.
    fn reserve_by_trying_everything(after: &mut After<'_>, others: Others) {
        let mut waiting = after.waiting();
        waiting.retain(|claim| is_gang(claim) && after.snapshot.now >= claim.waits_since() + PATIENCE);
        waiting.sort_by_key(|claim| (Reverse(claim.priority), claim.waits_since(), claim.id));
        let short = somebody_is_short(after);
        for claim in waiting {
            let concessions = concessions_to(after, claim, PATIENCE);
            let may_have = |after: &After<'_>, claim: &Claim, gpus| after.admits(claim, gpus, short);
            if let Some(lost) = after.make_room(claim, &concessions, |_, _| others == Others::Concede, may_have) {
                outranked(after, &lost, claim, None);
                settled(after, claim, Reason::Reserved, None);
                continue;
            }
            let mut trial = after.clone();
            concessions.iter().for_each(|(concession, other)| trial.ask(*concession, other));
            let mut running = trial.holders();
            let end = |other: &Claim| expected_end(&after.snapshot, other);
            running.sort_by_key(|other| (end(other).is_none(), end(other), other.progress.last_launch, other.id));
            let mut left = Vec::new();
            let place = running.into_iter().find_map(|other| {
                left.push(other);
                trial.set(other, None);
                trial.place_for(claim, |gpus| trial.admits(claim, gpus, short))
            });
            let Some(place) = place else { continue };
            trial.set(claim, Some(place.clone()));
            left.retain(|other| {
                let target = after.target(other.id).unwrap().clone();
                let stays = trial.room().is_untaken(after.snapshot.cluster(), &target.placement);
                trial.set(other, Some(target).filter(|_| stays));
                !stays
            });
            left.sort_by_key(|other| other.id);
            let ends: Option<Vec<Time>> = left.iter().map(|other| end(other)).collect();
            let reservation = Reservation {
                claim: claim.id,
                priority: claim.priority,
                placement: place.placement.clone(),
                at: ends.map(|ends| ends.into_iter().max().unwrap_or(after.snapshot.now)),
                is_foreseen: left.iter().all(|other| after.snapshot.is_foreseen(other)),
                after: left.iter().map(|other| other.id).collect(),
                is_late: false,
            };
            keep_free(after, &reservation, PATIENCE);
            let obstacle = Obstacle::ReservedFor { claim: claim.id, until: reservation.at.unwrap_or(Time::MAX) };
            after.note(claim.id, Some(Note::waiting(Reason::Reserved, obstacle)));
            after.reserved.push(reservation);
        }
    }

    #[test]
    fn what_is_not_tried_would_not_have_fitted() {
        let (mut reserved, mut given) = (0, 0);
        for seed in 0..60 {
            let mut draw = Draw(seed);
            let jobs: Vec<JobDraft> = (0..40).map(|_| draw.job()).collect();
            let mut first = Draw(1000 + seed);
            let mut bench = Bench::new("4x4 small, 3x8 large", move |snapshot| drawn(snapshot, &mut first));
            bench.handle(0, all(jobs));
            let budgets = Budgets::none();
            let snapshot = an_hour_later(bench.engine.state(), &budgets);
            for plan in [Plan::default(), drawn(&snapshot, &mut draw)] {
                for others in [Others::Concede, Others::StayAsTheyAre] {
                    let mut after = After::new(&snapshot, &plan);
                    let mut expected = after.clone();
                    reserve(&mut after, PATIENCE, others);
                    reserve_by_trying_everything(&mut expected, others);
                    assert_eq!(after.reserved, expected.reserved, "seed {seed}, {others:?}");
                    reserved += after.reserved.len();
                    let (found, expected) = (after.into_plan(plan.clone()), expected.into_plan(plan.clone()));
                    assert_eq!(found, expected, "seed {seed}, {others:?}");
                    given += found.changes.len().abs_diff(plan.changes.len());
                }
            }
        }
        assert!(reserved > 100 && given > 20, "{reserved} reservations, {given} changes");
    }
}
