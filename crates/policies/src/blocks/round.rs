//! What policies that decide everything afresh each round do besides: jobs without GPUs, and why someone has nothing.

use std::collections::BTreeMap;

use cluster::{ClaimId, Span};
use plan::{Claim, Note, Obstacle, Plan, Reason};

use crate::blocks::draft::Draft;
use crate::blocks::order::next_round;
use crate::blocks::place::Style;

/// The plan of a round: jobs without GPUs start where there is room, and whoever has nothing is told why. What stood in
/// the way is known of some; the others lack room.
pub(crate) fn conclude(mut draft: Draft<'_>, round: Span, obstacles: &BTreeMap<ClaimId, Note>) -> Plan {
    let snapshot = draft.snapshot;
    for claim in snapshot.eligible() {
        if draft.holds(claim.id).is_some() {
            continue;
        }
        if !claim.spec.uses_gpus() {
            match draft.find(claim, claim.spec.scaling.min(), Style::Pack) {
                Ok(allotment) => draft.admit(claim, allotment, Reason::Admitted),
                Err(note) => draft.note_waiting(claim.id, note),
            }
            continue;
        }
        let known = obstacles.get(&claim.id).copied();
        let note = known.unwrap_or_else(|| draft.too_little(claim, claim.spec.min_gpus()));
        let reason = match (claim.target.is_some(), note.obstacle) {
            (true, _) => Reason::Preempted,
            (false, Some(Obstacle::Quota { .. })) => Reason::WaitingForQuota,
            (false, _) => Reason::WaitingForResources,
        };
        draft.note_waiting(claim.id, Note { reason, ..note });
    }
    // Time alone changes what is best while somebody runs or has just come; else only news do.
    let stirs = |claim: &Claim| draft.holds(claim.id).is_some() || snapshot.now.since(claim.submitted) < round;
    let wakes = snapshot.eligible().any(stirs);
    draft.plan(wakes.then(|| next_round(snapshot.now, round)))
}

/// Takes everything from everyone who competes for GPUs in this round.
pub(crate) fn release_all<'a>(draft: &mut Draft<'a>, claims: &[&'a Claim]) {
    for claim in claims.iter().filter(|claim| claim.target.is_some()) {
        draft.release(claim);
    }
}
