//! What is typical of a job's steps where it is: one report never decides. A disk that was busy for a moment or a page that
//! had to be fetched makes single reports wrong by any factor, and a model that follows them makes jobs change their size
//! to and fro. So the median of several reports counts, and an estimate that is in use stays until reports have
//! contradicted it for a while and by a margin, which grows with every change: where two sizes are almost equally good, a
//! job keeps the one it has. What is remembered here is a warm start: after a restart of the service it fills again, and
//! the estimates in use are in the journal.

use std::collections::{BTreeMap, VecDeque};

use cluster::{ClaimId, Span, Time};
use perf::Observation;

/// So many of the latest reports say what is typical. A lasting change counts once it is in most of them, and has been for
/// as many reports.
const LATEST: usize = 5;
/// With so many reports of one batch a median is worth having: one of them that is off does not decide.
const ENOUGH: usize = 3;
/// An estimate in use is replaced by one that differs by more than this; by twice as much with each replacement within the
/// last hour; by a factor of two always.
const MARGIN: f64 = 0.25;
const MOST_MARGIN: f64 = 1.0;
const REMEMBERED: Span = Span::from_minutes(60);
/// More replacements than this need not be remembered: the margin is at its most.
const REPLACEMENTS: usize = 2;

#[derive(Debug, Default)]
pub(crate) struct Typical {
    jobs: BTreeMap<ClaimId, Job>,
    /// The first report counts wherever a job is, since reports carry no noise.
    pub(crate) trusts_all: bool,
}

/// What the model of a job knows where the job is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Known {
    Estimate(Observation),
    /// Nothing of this batch, or nothing at all.
    Nothing,
    /// Nothing of as many workers. What is said of them decides whether they stay.
    OtherWorkers,
}

#[derive(Debug, Default)]
struct Job {
    /// With as many workers and the same batch.
    latest: VecDeque<Observation>,
    in_use: Option<Observation>,
    /// Reports since its workers are as they are.
    heard: usize,
    /// Of them the latest, as long as nothing could be said of what is typical.
    unjudged: usize,
    /// The estimate in use was made of the latest reports alone, and more of them make it better.
    is_fresh: bool,
    /// For so many reports the estimate in use has been wrong.
    wrong_for: usize,
    /// When estimates in use were replaced.
    replaced: VecDeque<Time>,
}

impl Typical {
    /// Takes in what a job saw and returns what is typical of it; nothing if that cannot be said yet.
    pub(crate) fn of(&mut self, now: Time, claim: ClaimId, seen: Observation, known: Known) -> Option<Observation> {
        let trusts_all = self.trusts_all;
        let job = self.jobs.entry(claim).or_default();
        if job.latest.back().is_none_or(|last| situation(last) != situation(&seen)) {
            job.enter(&seen, known);
        }
        job.heard += 1;
        job.unjudged += 1;
        if job.latest.len() == LATEST {
            job.latest.pop_front();
        }
        job.latest.push_back(seen);
        let typical = job.median(seen);
        match job.in_use {
            Some(in_use) if !job.is_fresh => job.weigh(now, in_use, typical),
            None if !trusts_all && !job.has_said_enough(known) => {}
            _ => job.in_use = Some(typical),
        }
        job.is_fresh &= job.latest.len() < LATEST;
        if job.in_use.is_some() {
            job.unjudged = 0;
        }
        job.in_use
    }

    /// A run has ended; the next one is judged by its own reports.
    pub(crate) fn run_ended(&mut self, claim: ClaimId) {
        if let Some(job) = self.jobs.get_mut(&claim) {
            job.latest.clear();
        }
    }

    /// Nothing more will be heard of a job.
    pub(crate) fn forget(&mut self, claim: ClaimId) {
        self.jobs.remove(&claim);
    }
}

impl Job {
    /// Its workers or its batch are others now.
    fn enter(&mut self, seen: &Observation, known: Known) {
        let workers = |seen: &Observation| (seen.nodes, seen.replicas);
        if self.latest.back().is_none_or(|last| workers(last) != workers(seen)) {
            (self.heard, self.unjudged) = (0, 0);
        }
        self.latest.clear();
        self.wrong_for = 0;
        (self.in_use, self.is_fresh) = match known {
            Known::Estimate(known) => (Some(known), false),
            Known::Nothing | Known::OtherWorkers => (None, true),
        };
    }

    /// Whether there are reports enough to say what is typical. A batch that is new to workers that are known needs some of
    /// its own; one that changes with every report is judged all the same.
    fn has_said_enough(&self, known: Known) -> bool {
        match known {
            Known::OtherWorkers => self.heard >= LATEST,
            Known::Nothing | Known::Estimate(_) => self.latest.len() >= ENOUGH || self.unjudged >= LATEST,
        }
    }

    /// The median of its latest reports, the lower one of two.
    fn median(&self, seen: Observation) -> Observation {
        let median = |of: fn(&Observation) -> f64| {
            let mut all: Vec<f64> = self.latest.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            all[(all.len() - 1) / 2]
        };
        let accumulation_secs = median(|seen| seen.accumulation_secs);
        Observation { accumulation_secs, step_secs: median(|seen| seen.step_secs).max(accumulation_secs), ..seen }
    }

    /// Replaces the estimate in use if it has been wrong for long enough.
    fn weigh(&mut self, now: Time, in_use: Observation, typical: Observation) {
        let is_wrong = differs(&in_use, &typical, self.margin(now));
        self.wrong_for = if is_wrong { self.wrong_for + 1 } else { 0 };
        if self.wrong_for < LATEST {
            return;
        }
        (self.in_use, self.wrong_for) = (Some(typical), 0);
        if self.replaced.len() == REPLACEMENTS {
            self.replaced.pop_front();
        }
        self.replaced.push_back(now);
    }

    fn margin(&self, now: Time) -> f64 {
        let recent = self.replaced.iter().filter(|&&at| now.since(at) < REMEMBERED).count();
        (0..recent).fold(MARGIN, |margin, _| margin * 2.0).min(MOST_MARGIN)
    }
}

fn situation(seen: &Observation) -> (u32, u32, u32) {
    (seen.nodes, seen.replicas, seen.local_batch)
}

/// Whether one of two estimates is larger than the other by more than a margin.
fn differs(one: &Observation, other: &Observation, margin: f64) -> bool {
    let apart = |one: f64, other: f64| one.max(other) > one.min(other) * (1.0 + margin);
    apart(one.step_secs, other.step_secs) || apart(one.accumulation_secs, other.accumulation_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: ClaimId = ClaimId(7);

    fn steps(replicas: u32, step_secs: f64) -> Observation {
        Observation { nodes: 1, replicas, local_batch: 32, accumulation_secs: step_secs / 2.0, step_secs }
    }

    /// What counts after each of these reports, a second apart; zero if nothing does.
    fn told(typical: &mut Typical, replicas: u32, known: Known, seconds: &[f64]) -> Vec<f64> {
        told_at(typical, Time::ZERO, replicas, known, seconds)
    }

    fn told_at(typical: &mut Typical, began: Time, replicas: u32, known: Known, seconds: &[f64]) -> Vec<f64> {
        let mut tell = |(second, &seconds): (u64, &f64)| {
            let now = began + Span::from_secs(second);
            typical.of(now, JOB, steps(replicas, seconds), known).map_or(0.0, |found| found.step_secs)
        };
        (0..).zip(seconds).map(&mut tell).collect()
    }

    #[test]
    fn one_report_that_is_off_changes_nothing() {
        let mut typical = Typical::default();
        let seconds = [1.0, 1.0, 1.0, 90.0, 1.0, 0.001, 1.0];
        assert_eq!(told(&mut typical, 2, Known::Nothing, &seconds), [0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
    }

    #[test]
    fn the_first_report_in_a_job_s_life_does_not_decide() {
        let mut typical = Typical::default();
        assert_eq!(told(&mut typical, 2, Known::Nothing, &[90.0, 1.0, 1.0, 1.0]), [0.0, 0.0, 1.0, 1.0]);
    }

    #[test]
    fn the_first_report_of_a_batch_that_is_new_does_not_decide() {
        let mut typical = Typical::default();
        told(&mut typical, 2, Known::Nothing, &[1.0; 50]);
        let mut tell = |step_secs| {
            let seen = Observation { local_batch: 48, ..steps(2, step_secs) };
            typical.of(Time::ZERO, JOB, seen, Known::Nothing).map_or(0.0, |found| found.step_secs)
        };
        assert_eq!([90.0, 1.5, 1.5].map(&mut tell), [0.0, 0.0, 1.5]);
    }

    #[test]
    fn a_lasting_change_counts_when_most_reports_have_told_of_it_for_a_while() {
        let mut typical = Typical::default();
        told(&mut typical, 2, Known::Nothing, &[1.0; 5]);
        let found = told(&mut typical, 2, Known::Nothing, &[3.0; 8]);
        assert_eq!(found, [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 3.0, 3.0]);
    }

    #[test]
    fn a_drift_within_the_margin_changes_nothing() {
        let mut typical = Typical::default();
        told(&mut typical, 2, Known::Nothing, &[1.0; 5]);
        assert_eq!(told(&mut typical, 2, Known::Nothing, &[1.2; 50]), [1.0; 50]);
        assert_eq!(told(&mut typical, 2, Known::Nothing, &[0.85; 50]), [1.0; 50]);
    }

    #[test]
    fn each_change_within_an_hour_needs_twice_the_margin_of_the_one_before_and_a_factor_of_two_always_counts() {
        let mut typical = Typical::default();
        told(&mut typical, 2, Known::Nothing, &[1.0; 5]);
        let mut settle = |secs: u64, seconds: f64| {
            *told_at(&mut typical, Time::from_secs(secs), 2, Known::Nothing, &[seconds; 20]).last().unwrap()
        };
        assert_eq!(settle(100, 1.3), 1.3, "more than a quarter");
        assert_eq!(settle(200, 1.0), 1.3, "less than a half");
        assert_eq!(settle(300, 0.8), 0.8, "more than a half");
        assert_eq!(settle(400, 1.2), 0.8, "less than a factor of two");
        for (round, seconds) in [4.0, 1.0, 4.0, 1.0, 4.0].into_iter().enumerate() {
            assert_eq!(settle(500 + 100 * round as u64, seconds), seconds);
        }
        assert_eq!(settle(2 * 3600, 3.0), 3.0, "all of it was long ago");
    }

    #[test]
    fn other_workers_are_judged_by_their_own_reports_once_there_are_five() {
        let mut typical = Typical::default();
        told(&mut typical, 1, Known::Nothing, &[4.0; 5]);
        let found = told(&mut typical, 2, Known::OtherWorkers, &[90.0, 2.5, 2.5, 90.0, 2.6, 2.6, 2.6]);
        assert_eq!(found, [0.0, 0.0, 0.0, 0.0, 2.6, 2.6, 2.6]);
    }

    #[test]
    fn workers_whose_batch_changes_with_every_report_are_judged_too() {
        for (known, sixth) in [(Known::OtherWorkers, true), (Known::Nothing, false)] {
            let mut typical = Typical::default();
            let mut tell = |local_batch| {
                let seen = Observation { local_batch, ..steps(2, 2.5) };
                typical.of(Time::ZERO, JOB, seen, known).is_some()
            };
            let found = [30, 31, 32, 33, 34, 35].map(&mut tell);
            assert_eq!(found, [false, false, false, false, true, sixth], "{known:?}");
        }
    }

    #[test]
    fn where_reports_carry_no_noise_the_first_one_counts() {
        let mut typical = Typical { trusts_all: true, ..Typical::default() };
        assert_eq!(told(&mut typical, 1, Known::Nothing, &[2.5; 3]), [2.5; 3]);
        assert_eq!(told(&mut typical, 2, Known::OtherWorkers, &[2.5; 3]), [2.5; 3]);
    }

    #[test]
    fn where_a_job_was_before_what_was_known_then_counts_until_it_is_contradicted() {
        let known = Known::Estimate(steps(1, 4.0));
        let mut typical = Typical::default();
        told(&mut typical, 2, Known::Nothing, &[2.5; 5]);
        assert_eq!(told(&mut typical, 1, known, &[9.0, 4.2, 4.0]), [4.0; 3]);
        assert_eq!(told(&mut typical, 1, known, &[8.0; 7]), [4.0, 4.0, 4.0, 4.0, 4.0, 8.0, 8.0]);
    }

    #[test]
    fn a_restart_of_the_job_does_not_bring_the_margin_back() {
        let mut typical = Typical::default();
        told(&mut typical, 2, Known::Nothing, &[1.0; 5]);
        assert_eq!(told(&mut typical, 2, Known::Nothing, &[1.3; 7])[6], 1.3);
        typical.run_ended(JOB);
        let known = Known::Estimate(steps(2, 1.3));
        assert_eq!(told(&mut typical, 2, known, &[1.0; 20]), [1.3; 20]);
    }

    #[test]
    fn a_pass_without_an_exchange_never_takes_longer_than_one_with_it() {
        let mut typical = Typical { trusts_all: true, ..Typical::default() };
        for (accumulation_secs, step_secs) in [(0.9, 1.0), (0.1, 0.2), (0.8, 0.9), (0.2, 2.0), (0.9, 0.95)] {
            let seen = Observation { accumulation_secs, ..steps(2, step_secs) };
            let found = typical.of(Time::ZERO, JOB, seen, Known::Nothing).unwrap();
            assert!(found.accumulation_secs <= found.step_secs, "{found:?}");
        }
    }
}
