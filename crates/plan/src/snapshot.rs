//! The picture of one moment that a policy decides on. It borrows; nothing is copied to ask.

use std::sync::Arc;

use cluster::{ClaimId, Cluster, GpuKind, Gpus, QueueId, Shape, Span, Time};
use perf::{Situation, Truth};

use crate::books::Books;
use crate::claim::{Claim, Phase};
use crate::room::Room;

#[derive(Debug, Clone, Copy)]
pub struct Snapshot<'a> {
    pub now: Time,
    pub books: &'a Books,
    /// What is new since the policy was last asked.
    pub changed: Changed<'a>,
    pub budgets: &'a Budgets,
    /// The truth about each claim, by id; only for policies that declare they need it.
    pub truths: Option<&'a [Arc<Truth>]>,
}

/// Claims that are not as the policy last saw them: submitted, ended, given or deprived of devices, started, stopped.
#[derive(Debug, Clone, Copy)]
pub enum Changed<'a> {
    /// The policy is asked for the first time.
    Everything,
    /// Only these; a claim may be named more than once.
    Only(&'a [ClaimId]),
}

/// How many GPUs each queue may hold in this round. Without queues there are no budgets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Budgets {
    pub of: Vec<Gpus>,
}

impl Budgets {
    pub fn none() -> Budgets {
        Budgets::default()
    }

    pub fn of(&self, queue: QueueId) -> Option<Gpus> {
        self.of.get(usize::from(queue.0)).copied()
    }
}

impl<'a> Snapshot<'a> {
    pub fn cluster(&self) -> &'a Cluster {
        &self.books.cluster
    }

    pub fn room(&self) -> &'a Room {
        self.books.room()
    }

    #[inline]
    pub fn claim(&self, id: ClaimId) -> &'a Claim {
        self.books.claim(id)
    }

    /// Claims that may be given devices, in order of submission.
    pub fn eligible(&self) -> impl Iterator<Item = &'a Claim> {
        self.books.claims().live().filter(|claim| claim.is_eligible())
    }

    /// Claims to look at again: all live ones, or those that changed (ended ones among them).
    pub fn changed_claims(&self) -> impl Iterator<Item = &'a Claim> + use<'a> {
        let books = self.books;
        let (everything, only): (bool, &'a [ClaimId]) = match self.changed {
            Changed::Everything => (true, &[]),
            Changed::Only(only) => (false, only),
        };
        let live = everything.then(|| books.claims().live()).into_iter().flatten();
        live.chain(only.iter().map(move |&id| books.claim(id)))
    }

    /// How long the claim will still hold devices, as far as anyone but an oracle can say: from the iterations it
    /// announced, else from the user's estimate, else from finished jobs like it. A job that has outrun its estimate is
    /// expected to take a tenth of what it has run, once more.
    pub fn remaining(&self, claim: &Claim) -> Option<Span> {
        if let Some(total) = claim.spec.iterations() {
            let rate = self.rate(claim, |situation| claim.speed.rate(situation))?;
            let running = self.running_for(claim).as_secs_f64();
            let left = (total - claim.progress.done.min(total)) as f64 - running * rate;
            return Some(Span::from_secs_f64((left / rate).max(0.0)));
        }
        let history = || self.books.history().expected(&claim.spec.user, &claim.spec.name);
        let total = claim.spec.expected.or_else(history)?;
        let executed = claim.progress.executed(self.now);
        let left = total.saturating_sub(executed);
        Some(if left.is_zero() { Span::from_millis((executed.as_millis() / 10).max(1)) } else { left })
    }

    /// Whether how long the claim will still hold devices is known from itself or from jobs of its name, not merely
    /// guessed from other jobs.
    pub fn is_foreseen(&self, claim: &Claim) -> bool {
        let spec = &claim.spec;
        let is_said = spec.iterations().is_some() || spec.expected.is_some();
        is_said || self.books.history().expected_of_name(&spec.user, &spec.name).is_some()
    }

    /// How long the claim will really still run where it is, or as it was asked for where it is fastest. Only oracles
    /// may ask.
    pub fn true_remaining(&self, claim: &Claim) -> Span {
        let truths = self.truths.expect("a policy that asks for the truth declares that it is an oracle");
        let truth = &truths[claim.id.0 as usize];
        let adaptation = claim.speed.adaptation.as_deref();
        let reported = claim.progress.done as f64;
        let rate = self.rate(claim, |situation| truth.rate(adaptation, situation, reported));
        let Some(rate) = rate else { return Span::MAX };
        let done = reported + self.running_for(claim).as_secs_f64() * rate;
        Span::from_secs_f64(((truth.iterations as f64 - done) / rate).max(0.0))
    }

    /// Time since the first step of the present run, or since its last report.
    fn running_for(&self, claim: &Claim) -> Span {
        match claim.phase {
            Phase::Running { since, .. } => self.now.since(since.max(claim.progress.reported)),
            _ => Span::ZERO,
        }
    }

    /// Iterations per second where the claim is, or as it was asked for on one node where it is fastest.
    fn rate(&self, claim: &Claim, speed: impl Fn(&Situation) -> Option<f64>) -> Option<f64> {
        if let Some(held) = claim.holds() {
            return speed(&Situation::placed(&claim.spec, &held.placement, held.batch, self.cluster()));
        }
        let shape = |kind| Shape { kind, workers: claim.spec.asked_workers(), nodes: 1 };
        let rate = |kind| speed(&Situation::shaped(&claim.spec, shape(kind), None, self.cluster()));
        if !claim.spec.uses_gpus() {
            return rate(None);
        }
        self.kinds_of(claim).filter_map(|kind| rate(Some(kind))).max_by(f64::total_cmp)
    }

    /// Estimated iterations per second of so many workers on one node with this kind.
    pub fn rate_on(&self, claim: &Claim, kind: Option<GpuKind>, workers: u32) -> Option<f64> {
        let shape = Shape { kind, workers, nodes: 1 };
        claim.speed.rate(&Situation::shaped(&claim.spec, shape, None, self.cluster()))
    }

    /// The kinds of GPU the claim allows.
    pub fn kinds_of(&self, claim: &'a Claim) -> impl Iterator<Item = GpuKind> + use<'a> {
        self.cluster().kinds().map(|(kind, _)| kind).filter(|&kind| claim.spec.allows_kind(kind))
    }
}
