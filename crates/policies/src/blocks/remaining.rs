//! How long a job still takes, as a property of the job: as it was asked for where it is fastest, wherever it happens
//! to be now. Ranking by the time left *here* would send a job that was moved to a slower GPU behind those it was
//! before, and back again.

use cluster::{Shape, Span};
use perf::{Situation, Speed};
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
        let speed = match self {
            Source::Oracle => &snapshot.truths?[claim.id.0 as usize].speed,
            Source::Estimate if claim.spec.iterations().is_some() => &*claim.speed,
            Source::Estimate => return Some(here),
        };
        let Some(ratio) = speed_here_over_best(snapshot, claim, speed) else { return Some(here) };
        Some(if ratio == 1.0 { here } else { here.scale(ratio) })
    }

    /// Whether the figure may change while nothing happens to the claim: because it runs, or because others finish.
    pub(crate) fn moves(self, claim: &Claim) -> bool {
        let from_history = || claim.spec.iterations().is_none() && claim.spec.expected.is_none();
        claim.holds().is_some() || (self == Source::Estimate && from_history())
    }
}

fn speed_here_over_best(snapshot: &Snapshot<'_>, claim: &Claim, speed: &Speed) -> Option<f64> {
    let held = claim.holds()?;
    let cluster = snapshot.cluster();
    let here = speed.rate(&Situation::placed(&claim.spec, &held.placement, held.batch, cluster))?;
    let on = |kind| {
        let shape = Shape { kind, workers: claim.spec.asked_workers(), nodes: 1 };
        speed.rate(&Situation::shaped(&claim.spec, shape, None, cluster))
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
