//! How many workers. Jobs get what they ask for, which is their smallest size where they say nothing else; those that can
//! grow get more of what nobody wants.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;

use cluster::{JobSpec, Placement, Role, Slot};
use perf::Situation;
use plan::{Allotment, Claim, Reason};

use crate::blocks::draft::Draft;
use crate::blocks::order::Line;
use crate::blocks::place::{self, Style};

/// The workers the claim gets before it grows.
pub(crate) fn asked(claim: &Claim) -> u32 {
    claim.spec.asked_workers()
}

/// A placement with the batch size that goes with it.
pub(crate) fn allotment(claim: &Claim, workers: u32, placement: Placement) -> Arc<Allotment> {
    Arc::new(Allotment { placement, batch: batch(claim, workers) })
}

/// The batch of an adaptive job grows with its workers, so that each worker keeps its part (weak scaling), within the
/// range the job allows. Jobs that are tuned while they run are left to that.
pub(crate) fn batch(claim: &Claim, workers: u32) -> Option<u32> {
    let scaling = claim.spec.scaling;
    let range = scaling.batch().filter(|_| claim.speed.adaptation.is_none())?;
    let grown = u64::from(range.initial) * u64::from(workers) / u64::from(scaling.min());
    Some(grown.clamp(u64::from(range.initial), u64::from(range.max)) as u32)
}

/// Lets elastic jobs take what is left over, in order of rank, as long as one of them gains.
///
/// A job that starts by this plan takes what makes it faster. One that runs would have to be restarted, so it grows only
/// if its rate grows by `worth_a_restart`. To be called when nobody waits: what is given here would have to be taken
/// back for the next who comes.
pub(crate) fn grow<K: Copy + Ord + Debug>(draft: &mut Draft<'_>, line: &Line<K>, worth_a_restart: f64, style: Style) {
    let starting: BTreeSet<_> = draft.granted().map(|(claim, _)| claim.id).collect();
    let running = line.running_from_best().map(|(_, id)| id).filter(|id| !starting.contains(id));
    let candidates: Vec<_> = running.chain(starting.iter().copied()).collect();
    let mut grew = true;
    while grew {
        grew = false;
        for &id in &candidates {
            let gain = if starting.contains(&id) { 1.0 + 1e-9 } else { worth_a_restart };
            grew |= grow_one(draft, draft.snapshot.claim(id), gain, style);
        }
    }
}

fn grow_one(draft: &mut Draft<'_>, claim: &Claim, gain: f64, style: Style) -> bool {
    let Some(held) = draft.holds(claim.id).cloned() else { return false };
    let workers = held.placement.tasks_of(0);
    if workers >= claim.spec.scaling.max() || draft.room().free() == 0 {
        return false;
    }
    let before = rate(draft, claim, &held);
    draft.release(claim);
    let larger = larger(draft, claim, workers, style)
        .filter(|larger| before.zip(rate(draft, claim, larger)).is_some_and(|(before, after)| after >= before * gain));
    let grew = larger.is_some();
    match larger {
        Some(larger) => draft.admit(claim, larger, Reason::Admitted),
        None => draft.give(claim, held),
    }
    grew
}

/// The largest allotment of more than so many workers that has a place.
fn larger(draft: &Draft<'_>, claim: &Claim, workers: u32, style: Style) -> Option<Arc<Allotment>> {
    let free = draft.room().free();
    let most = claim.spec.scaling.max().min(workers.saturating_add(free));
    (workers + 1..=most).rev().find_map(|more| {
        draft.usage().admits(claim, claim.spec.gpus(more)).ok()?;
        let placement = place::fit(draft.room(), &draft.snapshot, claim, more, style)?;
        Some(allotment(claim, more, placement))
    })
}

fn rate(draft: &Draft<'_>, claim: &Claim, allotment: &Allotment) -> Option<f64> {
    let cluster = draft.snapshot.cluster();
    claim.speed.rate(&Situation::placed(&claim.spec, &allotment.placement, allotment.batch, cluster))
}

/// Takes from elastic jobs whatever they have beyond what they ask for, the worst ranked first. Returns what they had.
pub(crate) fn shrink_all<'a, K: Copy + Ord + Debug>(
    draft: &mut Draft<'a>,
    line: &Line<K>,
) -> Vec<(&'a Claim, Arc<Allotment>)> {
    let mut shrunk = Vec::new();
    for (_, id) in line.running_from_worst() {
        let claim = draft.snapshot.claim(id);
        let fewest = asked(claim);
        let Some(held) = draft.holds(id).filter(|held| held.placement.tasks_of(0) > fewest).cloned() else { continue };
        draft.release(claim);
        draft.give(claim, allotment(claim, fewest, trimmed(&claim.spec, &held.placement, fewest)));
        shrunk.push((claim, held));
    }
    shrunk
}

/// Gives back what [`shrink_all`] took, to the best ranked first, where it is not needed after all.
pub(crate) fn restore<'a>(draft: &mut Draft<'a>, shrunk: Vec<(&'a Claim, Arc<Allotment>)>) {
    for (claim, had) in shrunk.into_iter().rev() {
        if draft.holds(claim.id).is_none() {
            continue;
        }
        let small = draft.release(claim);
        let admitted = draft.usage().admits(claim, had.placement.gpus()).is_ok();
        let fits = admitted && draft.room().fits(draft.snapshot.cluster(), &had.placement);
        draft.give(claim, if fits { had } else { small });
    }
}

/// A part of the placement with fewer workers, on as few of its nodes as will do.
fn trimmed(spec: &JobSpec, placement: &Placement, workers: u32) -> Placement {
    let mut slots = Vec::new();
    for (index, role) in spec.roles.iter().enumerate() {
        let mut of_role: Vec<Slot> =
            placement.slots().iter().filter(|slot| usize::from(slot.role) == index).copied().collect();
        of_role.sort_by_key(|slot| std::cmp::Reverse(slot.tasks));
        let mut left = role.tasks(workers);
        for slot in of_role {
            let tasks = slot.tasks.min(left);
            if tasks > 0 {
                slots.push(with_tasks(role, slot, tasks));
            }
            left -= tasks;
        }
    }
    Placement::new(slots)
}

fn with_tasks(role: &Role, mut slot: Slot, tasks: u32) -> Slot {
    let devices = role.slice.map_or(0, |slice| slice.count * tasks);
    slot.tasks = tasks;
    slot.slices.devices = slot.slices.devices.lowest(devices);
    slot.millicores = role.millicores * tasks;
    slot.memory = role.memory * tasks;
    slot
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::text::{self, Scenario};

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
        let small = trimmed(&claim.spec, &claim.target.as_ref().unwrap().placement, 2);
        assert_eq!(text::placement(snapshot.cluster(), &small), "n1:0-1");
    }
}
