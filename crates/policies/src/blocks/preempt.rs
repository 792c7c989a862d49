//! Who must stop so that someone better can run. Has the outcome of walking along all claims in order of rank and
//! running each gang that fits, without looking at those who neither come nor go.

use std::fmt::Debug;
use std::sync::Arc;

use cluster::{Bytes, ClaimId, GpuKind, Placement, Role};
use plan::{Allotment, Claim, Note, Obstacle, Reason};

use crate::blocks::admit;
use crate::blocks::draft::Draft;
use crate::blocks::grant;
use crate::blocks::order::{Line, Order, Standing, Walk};
use crate::blocks::place::{self, Style};

/// Runs claims in order of rank. Everyone keeps what they have until a better one needs it; a waiting claim that fits
/// into free room takes it, else it takes the place of the worst who run. Whoever is stopped is met again further down
/// the line and may fit elsewhere. Nobody is stopped for a claim that then does not fit.
///
/// With `shrink`, elastic jobs first give back what they have beyond their smallest size. Returns whether nobody waits
/// in the end.
///
/// Planning again at once changes nothing: a claim that failed did so with everyone worse out of the way, and whoever
/// was placed after it took no more than that.
pub(crate) fn in_order<O: Order>(
    draft: &mut Draft<'_>,
    line: &Line<O::Key>,
    order: &O,
    style: impl Fn(&Claim) -> Style,
    shrink: bool,
) -> bool {
    let mut stopped = admit::over_budget(draft, line);
    for pass in 1.. {
        let mut walk = Walk::new(line);
        for victim in stopped.iter().filter(|victim| draft.holds(victim.id).is_none()) {
            walk.join(order.rank(&draft.snapshot, victim, Standing::Waiting).key, victim.id);
        }
        let end = walk_once(draft, line, &mut walk, order, &style, shrink, &mut stopped);
        if end.started && walk.is_intricate() && pass < PASSES {
            continue;
        }
        walk.explain_rest(draft, |draft, claim| draft.too_little(claim, claim.spec.asked_gpus()));
        return end.reached && walk.nobody_ruled_out();
    }
    unreachable!("the last pass returns")
}

/// How often the line is gone along. The search for a place is exact for jobs of one role; for others it may fail in one
/// room and succeed in a smaller one, so they are given another chance when others have taken their places.
const PASSES: u32 = 4;

/// How a walk went.
struct End {
    /// Someone was started.
    started: bool,
    /// Nobody was left at the end of the line because nothing was free.
    reached: bool,
}

fn walk_once<'a, O: Order>(
    draft: &mut Draft<'a>,
    line: &Line<O::Key>,
    walk: &mut Walk<'_, O::Key>,
    order: &O,
    style: &impl Fn(&Claim) -> Style,
    shrink: bool,
    stopped: &mut Vec<&'a Claim>,
) -> End {
    let mut started = false;
    while let Some((key, id)) = walk.next() {
        if draft.holds(id).is_some() {
            continue;
        }
        let claim = draft.snapshot.claim(id);
        if !shrink && is_full(draft, walk) && line.worst_running() < Some((key, id)) {
            draft.note_waiting(id, draft.too_little(claim, claim.spec.asked_gpus()));
            return End { started, reached: false };
        }
        match start(draft, line, order, (key, id), claim, style(claim), shrink) {
            Ok(victims) => {
                started = true;
                for victim in &victims {
                    walk.join(order.rank(&draft.snapshot, victim, Standing::Waiting).key, victim.id);
                }
                stopped.extend(victims);
            }
            Err(note) => walk.rule_out(draft, id, note),
        }
    }
    End { started, reached: true }
}

/// Whether no waiting claim could be placed without taking something from another.
fn is_full<K: Copy + Ord + Debug>(draft: &Draft<'_>, walk: &Walk<'_, K>) -> bool {
    !walk.has_modest() && draft.room().free() == 0
}

/// Starts one claim, in free room or in that of others. Returns those who had to stop for it.
fn start<'a, O: Order>(
    draft: &mut Draft<'a>,
    line: &Line<O::Key>,
    order: &O,
    rank: (O::Key, ClaimId),
    claim: &'a Claim,
    style: Style,
    shrink: bool,
) -> Result<Vec<&'a Claim>, Note> {
    let workers = grant::asked(claim);
    let note = match draft.find(claim, workers, style) {
        Ok(found) => {
            draft.admit(claim, found, Reason::Admitted);
            return Ok(Vec::new());
        }
        Err(note) => note,
    };
    if !shrink {
        return make_room(draft, line, order, rank, claim, style).ok_or(note);
    }
    let shrunk = grant::shrink_all(draft, line);
    let started = match draft.find(claim, workers, style) {
        Ok(found) => {
            draft.admit(claim, found, Reason::Admitted);
            Some(Vec::new())
        }
        Err(_) => make_room(draft, line, order, rank, claim, style),
    };
    grant::restore(draft, shrunk);
    started.ok_or(note)
}

/// Stops claims that rank worse, from the worst upward, until this one fits; lets those go on who turn out not to be in
/// the way. If nothing helps, nothing changes.
fn make_room<'a, O: Order>(
    draft: &mut Draft<'a>,
    line: &Line<O::Key>,
    order: &O,
    rank: (O::Key, ClaimId),
    claim: &'a Claim,
    style: Style,
) -> Option<Vec<&'a Claim>> {
    let workers = grant::asked(claim);
    let mut missing = Missing::new(draft, claim, workers);
    let snapshot = draft.snapshot;
    let worse = || {
        worse(line, rank).filter(|&id| {
            let claim = snapshot.claim(id);
            !claim.must_go_on() && !order.spares(&snapshot, claim)
        })
    };
    if !missing.could_be_freed(draft, worse()) {
        return None;
    }
    let mut released = Vec::new();
    for id in worse() {
        if !draft.holds(id).is_some_and(|held| missing.concerns(draft, &held.placement)) {
            continue;
        }
        let victim = draft.snapshot.claim(id);
        let allotment = draft.release(victim);
        missing.free(draft, &allotment.placement);
        released.push((victim, allotment));
        if !missing.is_enough() {
            continue;
        }
        if draft.find(claim, workers, style).is_ok() {
            return Some(settle(draft, claim, workers, style, released));
        }
    }
    for (victim, allotment) in released {
        draft.give(victim, allotment);
    }
    None
}

/// Starts the claim in the room of those released, of whom all go on that can, the best first. Returns the others.
fn settle<'a>(
    draft: &mut Draft<'a>,
    claim: &'a Claim,
    workers: u32,
    style: Style,
    released: Vec<(&'a Claim, Arc<Allotment>)>,
) -> Vec<&'a Claim> {
    let mut victims = Vec::new();
    for (victim, allotment) in released.into_iter().rev() {
        draft.give(victim, allotment);
        if draft.find(claim, workers, style).is_err() {
            draft.release(victim);
            draft.note(victim.id, Note::waiting(Reason::Preempted, Obstacle::Outranked { by: claim.id }));
            victims.push(victim);
        }
    }
    let found = draft.find(claim, workers, style).expect("whoever is in the way was released");
    draft.admit(claim, found, Reason::Admitted);
    victims
}

fn worse<K: Copy + Ord + Debug>(line: &Line<K>, rank: (K, ClaimId)) -> impl Iterator<Item = ClaimId> {
    line.running_from_worst().take_while(move |other| *other > rank).map(|(_, id)| id)
}

/// A rough count of what a claim lacks, so that hopeless attempts end before anything is moved.
struct Missing<'a> {
    claim: &'a Claim,
    workers: u32,
    /// Whole devices needed of one kind.
    devices: u32,
    /// Whole devices free of each kind the claim allows; `None` for others.
    free: Vec<Option<u32>>,
    by_quota: bool,
}

impl<'a> Missing<'a> {
    fn new(draft: &Draft<'_>, claim: &'a Claim, workers: u32) -> Missing<'a> {
        let kinds = draft.snapshot.cluster().kinds();
        let free = kinds.map(|(kind, _)| claim.spec.allows_kind(kind).then(|| draft.room().free_of(kind))).collect();
        let by_quota = draft.usage().admits(claim, claim.spec.gpus(workers)).is_err();
        Missing { claim, workers, devices: place::whole_devices(&claim.spec, workers), free, by_quota }
    }

    /// Whether enough devices and quota would be free if all these stopped.
    fn could_be_freed(&self, draft: &Draft<'_>, worse: impl Iterator<Item = ClaimId>) -> bool {
        let mut free = self.free.clone();
        let mut usage = self.by_quota.then(|| draft.usage().clone());
        let gpus = self.claim.spec.gpus(self.workers);
        let mut anyone = false;
        for id in worse {
            let Some(held) = draft.holds(id) else { continue };
            anyone = true;
            add(&mut free, draft, &held.placement);
            if let Some(usage) = &mut usage {
                usage.remove(draft.snapshot.claim(id), held.placement.gpus());
            }
            let admitted = usage.as_ref().is_none_or(|usage| usage.admits(self.claim, gpus).is_ok());
            if admitted && self.suffices(&free) {
                return true;
            }
        }
        // Someone without whole devices may be held up by cores or parts of devices, which are not counted.
        anyone && self.devices == 0 && !self.by_quota
    }

    /// Whether what is held there may be of use to the claim. Other kinds of GPU are not, unless cores, memory or quota
    /// come with them.
    fn concerns(&self, draft: &Draft<'_>, placement: &Placement) -> bool {
        let allowed = |kind: GpuKind| self.free[usize::from(kind.0)].is_some();
        let needs_more = |role: &Role| role.millicores > 0 || role.memory > Bytes::ZERO;
        self.by_quota
            || self.claim.spec.roles.iter().any(needs_more)
            || placement.kind(draft.snapshot.cluster()).is_none_or(allowed)
    }

    fn free(&mut self, draft: &Draft<'_>, placement: &Placement) {
        add(&mut self.free, draft, placement);
    }

    fn is_enough(&self) -> bool {
        self.suffices(&self.free)
    }

    fn suffices(&self, free: &[Option<u32>]) -> bool {
        self.devices == 0 || free.iter().flatten().any(|&free| free >= self.devices)
    }
}

/// Counts the devices of a placement as free. A part of a device counts as a whole one: it may be the last part.
fn add(free: &mut [Option<u32>], draft: &Draft<'_>, placement: &Placement) {
    let Some(kind) = placement.kind(draft.snapshot.cluster()) else { return };
    if let Some(free) = &mut free[usize::from(kind.0)] {
        *free += placement.slots().iter().map(|slot| slot.slices.devices.count()).sum::<u32>();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::order::Rank;
    use plan::text::Scenario;
    use plan::{Plan, Policy, Snapshot};

    /// The higher the priority the better.
    struct ByPriority;

    impl Order for ByPriority {
        type Key = (i32, Standing);

        fn rank(&self, _: &Snapshot<'_>, claim: &Claim, standing: Standing) -> Rank<(i32, Standing)> {
            Rank::fixed((-claim.priority, standing))
        }
    }

    struct Greedy;

    impl Policy for Greedy {
        fn plan(&mut self, snapshot: &Snapshot<'_>) -> Plan {
            let mut line = Line::new();
            line.update(snapshot, &ByPriority);
            let mut draft = Draft::new(snapshot);
            in_order(&mut draft, &line, &ByPriority, |_| Style::Pack, false);
            draft.plan(None)
        }
    }

    #[test]
    fn the_worst_is_stopped_first() {
        let scenario = Scenario::new("1x2")
            .job("low 1 gpu priority 1 runs n0:0")
            .job("mid 1 gpu priority 2 runs n0:1")
            .job("new 1 gpu priority 3");
        scenario.check(&mut Greedy, "mid: n0:1\nnew: n0:0");
    }

    #[test]
    fn nobody_is_stopped_for_one_who_then_does_not_fit() {
        let scenario = Scenario::new("1x4")
            .job("low 2 gpus priority 1 runs n0:0-1")
            .job("high 2 gpus priority 9 runs n0:2-3")
            .job("new 4 gpus priority 3");
        scenario.check(&mut Greedy, "low: n0:0-1\nhigh: n0:2-3");
        let reason = scenario.reason(&mut Greedy, "new");
        assert_eq!(reason.unwrap(), "WaitingForResources: needs 4 GPUs, 0 free");
    }

    #[test]
    fn those_who_are_not_in_the_way_go_on() {
        // The worst holds one GPU, which does not help; the second worst holds two, which suffice alone.
        let scenario = Scenario::new("1x3")
            .job("small 1 gpu priority 1 runs n0:0")
            .job("large 2 gpus priority 2 runs n0:1-2")
            .job("new 2 gpus priority 3");
        scenario.check(&mut Greedy, "small: n0:0\nnew: n0:1-2");
    }

    #[test]
    fn one_who_was_stopped_may_go_on_elsewhere() {
        let scenario = Scenario::new("1x2 t4, 1x2 a100")
            .job("old 1 gpu priority 1 runs b-0:0")
            .job("new 2 gpus on a100 priority 2");
        scenario.check(&mut Greedy, "old: a-0:0\nnew: b-0:0-1");
    }

    #[test]
    fn equals_do_not_stop_each_other() {
        let scenario = Scenario::new("1x1").job("first 1 gpu").job("second 1 gpu runs n0:0");
        scenario.check(&mut Greedy, "second: n0:0");
    }

    #[test]
    fn one_who_was_stopped_is_told_for_whom() {
        let scenario = Scenario::new("1x1").job("old priority 1 runs n0:0").job("new priority 2");
        assert_eq!(scenario.reason(&mut Greedy, "old").unwrap(), "Preempted: job 1 comes first");
        assert_eq!(scenario.reason(&mut Greedy, "new").unwrap(), "Admitted: 1 workers on 1 nodes");
    }

    #[test]
    fn within_a_full_queue_the_better_takes_the_place_of_the_worse() {
        let scenario = Scenario::with_queues("1x4", &[cluster::QueueDraft::named("red")])
            .budgets(&[4, 2])
            .job("low 2 gpus queue red priority 1 runs n0:0-1")
            .job("new 2 gpus queue red priority 2");
        scenario.check(&mut Greedy, "new: n0:0-1");
    }
}
