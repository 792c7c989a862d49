//! How long a job still takes, as a property of the job: as it was asked for where it is fastest, wherever it happens
//! to be now. Ranking by the time left *here* would send a job that was moved to a slower GPU behind those it was
//! before, and back again.

use cluster::{Shape, Span};
use perf::Situation;
use plan::{Claim, Knowledge, Snapshot};

/// Where the figure comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// The truth, which only a simulator can tell.
    Oracle,
    /// What the job announced, what its user thinks, or what jobs like it took.
    Estimate,
}

impl Source {
    pub(crate) fn knows(self) -> &'static [Knowledge] {
        match self {
            Source::Oracle => &[Knowledge::RemainingTime],
            Source::Estimate => &[],
        }
    }

    /// Time left where the claim is now; `None` if nobody can say.
    pub(crate) fn here(self, snapshot: &Snapshot<'_>, claim: &Claim) -> Option<Span> {
        match self {
            Source::Oracle => Some(snapshot.true_remaining(claim)),
            Source::Estimate => snapshot.remaining(claim),
        }
    }

    /// Time left as it was asked for where the claim is fastest; `None` if nobody can say.
    pub(crate) fn at_best(self, snapshot: &Snapshot<'_>, claim: &Claim) -> Option<Span> {
        let here = self.here(snapshot, claim)?;
        let ratio = match self {
            Source::Oracle => {
                let truth = &snapshot.truths?[claim.id.0 as usize];
                let (adaptation, done) = (claim.speed.adaptation.as_deref(), claim.progress.done as f64);
                here_over_best(snapshot, claim, |situation| truth.rate(adaptation, situation, done))
            }
            Source::Estimate if claim.spec.iterations().is_some() => {
                here_over_best(snapshot, claim, |situation| claim.speed.rate(situation))
            }
            Source::Estimate => None,
        };
        let Some(ratio) = ratio else { return Some(here) };
        Some(if ratio == 1.0 { here } else { here.scale(ratio) })
    }

    /// Whether the figure may change while nothing happens to the claim: because it runs, or because others finish.
    pub(crate) fn moves(self, claim: &Claim) -> bool {
        let from_history = || claim.spec.iterations().is_none() && claim.spec.expected.is_none();
        claim.holds().is_some() || (self == Source::Estimate && from_history())
    }
}

/// The rate where the claim is over that where it would be fastest.
fn here_over_best(snapshot: &Snapshot<'_>, claim: &Claim, rate: impl Fn(&Situation) -> Option<f64>) -> Option<f64> {
    let held = claim.holds()?;
    let cluster = snapshot.cluster();
    let here = rate(&Situation::placed(&claim.spec, &held.placement, held.batch, cluster))?;
    let on = |kind| {
        let shape = Shape { kind, workers: claim.spec.asked_workers(), nodes: 1 };
        rate(&Situation::shaped(&claim.spec, shape, None, cluster))
    };
    let kinds = cluster.kinds().map(|(kind, _)| kind).filter(|&kind| claim.spec.allows_kind(kind));
    let best = match claim.spec.uses_gpus() {
        true => kinds.filter_map(|kind| on(Some(kind))).max_by(f64::total_cmp)?,
        false => on(None)?,
    };
    Some(here / best)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::text::Scenario;

    #[test]
    fn the_time_left_does_not_depend_on_where_a_job_is() {
        let line = "iterations 800 speed a100=8 t4=1";
        let scenario = Scenario::new("1x1 t4, 1x1 a100")
            .job(&format!("waits {line}"))
            .job(&format!("fast {line} runs b-0:0"))
            .job(&format!("slow {line} runs a-0:0"));
        let snapshot = scenario.snapshot(None);
        let left = |job| Source::Estimate.at_best(&snapshot, snapshot.claim(scenario.id(job)));
        let hundred = Some(Span::from_secs(100));
        assert_eq!((left("waits"), left("fast"), left("slow")), (hundred, hundred, hundred));
    }
}
