//! Queues while the service runs: what a new list of them would change, and whether it may. Everything is looked at before
//! anything is changed.

use api::{FieldFault, Problem, QueueChangeView};
use cluster::{ClaimId, Gpus, QueueChange, QueueChangeKind, QueueDraft, QueueTree};
use engine::{State, pinned_beyond_guarantee};
use plan::{Availability, Books, Claim, within_quotas};

use crate::ledger::Ledger;

/// What a list of queues would make of those there are.
#[derive(Debug)]
pub(crate) struct Review {
    pub(crate) queues: QueueTree,
    pub(crate) changes: Vec<QueueChange>,
}

/// So many jobs are named in a refusal.
const MOST_NAMED: usize = 20;

impl Review {
    /// Refuses what cannot be, and what would leave jobs waiting for ever.
    pub(crate) fn of(state: &State, ledger: &Ledger, drafts: &[QueueDraft]) -> Result<Review, Problem> {
        let books = state.books();
        let queues = books.queues.revised(drafts, devices(books)).map_err(|invalid| {
            FieldFault::new(invalid.field, format!("expected {}, found {}", invalid.expected, invalid.found))
        })?;
        let stuck = |claim: &Claim| {
            let was_stuck = never_runs(state, &books.queues, claim).is_some();
            never_runs(state, &queues, claim).filter(|_| !was_stuck).map(|why| (claim.id, why))
        };
        let (stuck, whys): (Vec<ClaimId>, Vec<String>) = books.claims().live().filter_map(stuck).unzip();
        if let Some(why) = whys.first() {
            let stuck = named(ledger, &stuck);
            let detail =
                format!("with these queues {stuck} could never run: {why}; cancel what shall not run, or allow more");
            return Err(Problem::conflict(detail));
        }
        let changes = books.queues.changes_to(&queues);
        Ok(Review { queues, changes })
    }

    pub(crate) fn views(&self, books: &Books, ledger: &Ledger) -> Vec<QueueChangeView> {
        let view = |change: &QueueChange| QueueChangeView {
            queue: change.name.to_string(),
            change: change.kind.as_str().into(),
            text: change.to_string(),
            jobs: match change.kind {
                QueueChangeKind::Closed => {
                    let here = books.claims().live().filter(|claim| claim.spec.queue == change.queue);
                    here.map(|claim| ledger.id(claim.id).to_string()).collect()
                }
                _ => Vec::new(),
            },
        };
        self.changes.iter().map(view).collect()
    }

    pub(crate) fn in_words(&self) -> Vec<String> {
        self.changes.iter().map(ToString::to_string).collect()
    }
}

/// Why a claim could never start with these queues. What runs goes on with what it has, and only its queue's limit is held
/// against it.
fn never_runs(state: &State, queues: &QueueTree, claim: &Claim) -> Option<String> {
    let beyond_quota = within_quotas(queues, &claim.spec).err().map(|why| why.to_string());
    let waits = claim.holds().is_none();
    let pinned = || pinned_beyond_guarantee(state, queues, &claim.spec).filter(|_| waits).map(|why| why.to_string());
    beyond_quota.or_else(pinned)
}

/// All GPUs that guarantees may be promised from: also those that are broken or of a node that takes no jobs now.
fn devices(books: &Books) -> Gpus {
    let is_there = |node| !matches!(books.node_status(node).availability, Availability::Lost | Availability::Removed);
    let nodes = books.cluster.nodes().filter(|(id, _)| is_there(*id));
    nodes.map(|(_, node)| Gpus::whole(u32::from(node.gpus))).sum()
}

fn named(ledger: &Ledger, claims: &[ClaimId]) -> String {
    let mut names: Vec<String> = claims.iter().take(MOST_NAMED).map(|&claim| ledger.id(claim).to_string()).collect();
    if claims.len() > MOST_NAMED {
        names.push(format!("{} more", claims.len() - MOST_NAMED));
    }
    format!("{} {}", if claims.len() == 1 { "job" } else { "jobs" }, names.join(", "))
}
