//! What is typical of a job's steps where it is: one report never decides. A disk that was busy for a moment or a page that
//! had to be fetched makes single reports wrong by any factor, and a model that follows them makes jobs change their size
//! to and fro. It is a warm start: after a restart of the service it fills again.

use std::collections::{BTreeMap, VecDeque};

use cluster::ClaimId;
use perf::Observation;

/// So many of the latest reports say what is typical. A lasting change counts once it is in most of them.
const LATEST: usize = 5;

#[derive(Debug, Default)]
pub(crate) struct Typical {
    latest: BTreeMap<ClaimId, VecDeque<Observation>>,
}

impl Typical {
    /// Takes in what a job saw and returns what is typical: the median of its latest reports with as many workers and the
    /// same batch, the lower one of two.
    pub(crate) fn of(&mut self, claim: ClaimId, seen: Observation) -> Observation {
        let situation = |seen: &Observation| (seen.nodes, seen.replicas, seen.local_batch);
        let latest = self.latest.entry(claim).or_default();
        if latest.back().is_some_and(|last| situation(last) != situation(&seen)) {
            latest.clear();
        }
        if latest.len() == LATEST {
            latest.pop_front();
        }
        latest.push_back(seen);
        let median = |of: fn(&Observation) -> f64| {
            let mut all: Vec<f64> = latest.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            all[(all.len() - 1) / 2]
        };
        let accumulation_secs = median(|seen| seen.accumulation_secs);
        Observation { accumulation_secs, step_secs: median(|seen| seen.step_secs).max(accumulation_secs), ..seen }
    }

    /// Nothing more will be heard of a job.
    pub(crate) fn forget(&mut self, claim: ClaimId) {
        self.latest.remove(&claim);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: ClaimId = ClaimId(7);

    fn steps(replicas: u32, step_secs: f64) -> Observation {
        Observation { nodes: 1, replicas, local_batch: 32, accumulation_secs: step_secs / 2.0, step_secs }
    }

    fn told(typical: &mut Typical, replicas: u32, seconds: &[f64]) -> Vec<f64> {
        seconds.iter().map(|&seconds| typical.of(JOB, steps(replicas, seconds)).step_secs).collect()
    }

    #[test]
    fn one_report_that_is_off_changes_nothing() {
        let mut typical = Typical::default();
        assert_eq!(told(&mut typical, 2, &[1.0, 1.0, 1.0, 90.0, 1.0, 0.001, 1.0]), [1.0; 7]);
    }

    #[test]
    fn a_lasting_change_counts_when_most_reports_tell_of_it() {
        let mut typical = Typical::default();
        let seconds = [1.0, 1.0, 1.0, 1.0, 1.0, 3.0, 3.0, 3.0, 3.0];
        assert_eq!(told(&mut typical, 2, &seconds), [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 3.0, 3.0]);
    }

    #[test]
    fn other_workers_are_judged_by_their_own_reports() {
        let mut typical = Typical::default();
        told(&mut typical, 1, &[4.0; 5]);
        assert_eq!(told(&mut typical, 2, &[2.5]), [2.5]);
        assert_eq!(told(&mut typical, 1, &[3.0]), [3.0]);
    }

    #[test]
    fn a_pass_without_an_exchange_never_takes_longer_than_one_with_it() {
        let mut typical = Typical::default();
        for (accumulation_secs, step_secs) in [(0.9, 1.0), (0.1, 0.2), (0.8, 0.9), (0.2, 2.0), (0.9, 0.95)] {
            let seen = Observation { accumulation_secs, ..steps(2, step_secs) };
            let found = typical.of(JOB, seen);
            assert!(found.accumulation_secs <= found.step_secs, "{found:?}");
        }
    }
}
