//! How many workers. Jobs get what they ask for, which is their smallest size where they say nothing else; those that can
//! grow get more of what nobody wants.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;

use perf::Situation;
use plan::{Allotment, Claim, Reason};

pub(crate) use plan::place::{allotment, batch};

use crate::blocks::draft::Draft;
use crate::blocks::order::Line;
use crate::blocks::place::{self, Style, trimmed};

/// The workers the claim gets before it grows.
pub(crate) fn asked(claim: &Claim) -> u32 {
    claim.spec.asked_workers()
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
        draft.give(claim, allotment(claim, fewest, trimmed(&claim.spec, &held.placement, fewest, None)));
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
