//! The jobs of a live history as jobs for the simulator. What really happens to them there is what was measured here:
//! the step times and gradient noise a job reported, its speed overall, and how long starting and stopping took.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::anyhow;
use cluster::{Cluster, Ends, GpuKind, JobDraft, Span, Time};
use executors::AcceleratorDraft;
use perf::{Course, Line, Rates, Speed, StepTime, StepTimes, TrueJob, Truth, spread_evenly};
use plan::Claim;

use super::history::History;
use super::seen::{Seen, Stretch};
use crate::failure::Failure;

/// What the simulated figures rest on, for those who read them.
pub(super) const ASSUMPTIONS: [&str; 4] = [
    "simulated: a job's step times and gradient noise are those it reported when live, slowed down so that over the \
     places it was in it takes as long as it did",
    "simulated: where a job never ran, its steps take as much longer or shorter as the accelerators' shares of a core \
     differ; numbers of workers it never had are its fitted model's word",
    "simulated: a job that reported nothing does as much work as its time on each kind of accelerator was worth",
    "simulated: every start and every stop takes as long as they did on average when live",
];

/// Iterations per second of a whole core for a job of which nothing but its time is known.
const FINE: f64 = 1000.0;

/// The same jobs, the first moment of the history being zero.
pub(super) fn of(history: &History, accelerators: &[AcceleratorDraft]) -> Result<Vec<TrueJob>, Failure> {
    let state = history.end();
    let seen = Seen::of(history, &state.books().cluster);
    let twin = Twin { seen: &seen, origin: history.origin(), shares: shares(&state.books().cluster, accelerators) };
    let mut claims: Vec<&Claim> = state.books().claims().iter().collect();
    claims.sort_by_key(|claim| claim.id);
    claims.into_iter().map(|claim| twin.job(claim)).collect()
}

/// The part of a core that an accelerator of each kind is.
fn shares(cluster: &Cluster, accelerators: &[AcceleratorDraft]) -> BTreeMap<GpuKind, f64> {
    let share = |draft: &AcceleratorDraft| Some((cluster.kind_named(&draft.kind)?, draft.cores * draft.duty));
    accelerators.iter().filter_map(share).collect()
}

struct Twin<'a> {
    seen: &'a Seen,
    origin: Time,
    shares: BTreeMap<GpuKind, f64>,
}

impl Twin<'_> {
    fn job(&self, claim: &Claim) -> Result<TrueJob, Failure> {
        let shifted = |time: Time| Time::ZERO + time.since(self.origin);
        let mut draft: JobDraft = (**claim.spec).clone();
        draft.deadline = draft.deadline.map(shifted);
        draft.recovery.restart_cost = self.seen.start();
        draft.recovery.checkpoint_cost = self.seen.stop();
        draft.recovery.checkpoint_every = None;
        let spec = draft.build().map_err(|invalid| Failure::new(anyhow!("cannot simulate a job: {invalid}")))?;
        let start_up = self.seen.start();
        let truth = match self.course(claim) {
            Some(course) => {
                let iterations = course.length() as u64;
                Truth { speed: (*claim.speed).clone(), iterations, start_up, course: Some(Arc::new(course)) }
            }
            None => self.plain(claim, start_up),
        };
        Ok(TrueJob {
            submitted: shifted(claim.submitted),
            spec: Arc::new(spec),
            speed: claim.speed.clone(),
            truth: Arc::new(truth),
        })
    }

    /// How the training went; nothing for a job that did not say enough.
    fn course(&self, claim: &Claim) -> Option<Course> {
        let adaptation = claim.speed.adaptation.as_ref()?;
        let Ends::Iterations(iterations) = claim.spec.ends else { return None };
        let steps = adaptation.kinds.iter().map(|limits| Some((limits.kind, self.step_times(claim, limits.kind)?)));
        let course = Course {
            initial: adaptation.initial,
            steps: steps.collect::<Option<_>>()?,
            epochs: vec![iterations as f64],
            noise: vec![(adaptation.initial, vec![claim.learned.noise])],
            iterations: Vec::new(),
            slowdown: 1.0,
        };
        let worth = |stretch: &Stretch| {
            let workers = spread_evenly(stretch.shape.workers, stretch.shape.nodes);
            let piece = course.piece(stretch.shape.kind?, &workers, stretch.tuning?, 0.0)?;
            Some(piece.rate * stretch.seconds)
        };
        let expected: f64 = self.seen.of_job(claim.id).iter().filter_map(worth).sum();
        let course = Course { slowdown: expected / iterations as f64, ..course };
        course.check().is_ok().then_some(course)
    }

    /// Its own model of the kind, or that of another kind, faster or slower as the two are.
    fn step_times(&self, claim: &Claim, kind: GpuKind) -> Option<StepTimes> {
        if let Some(step) = claim.learned.step_time(kind) {
            return Some(StepTimes::Fitted(*step));
        }
        let (other, step) = claim.learned.fitted().next()?;
        let ratio = self.shares.get(&other)? / self.shares.get(&kind)?;
        Some(StepTimes::Fitted(slower(step, ratio)))
    }

    fn plain(&self, claim: &Claim, start_up: Span) -> Truth {
        let rates = self.shares.iter().map(|(&kind, &share)| (kind, FINE * share)).collect();
        let share = |stretch: &Stretch| stretch.shape.kind.and_then(|kind| self.shares.get(&kind));
        let work: f64 = self.seen.of_job(claim.id).iter().filter_map(|it| Some(FINE * share(it)? * it.seconds)).sum();
        let speed = Speed { rates: Rates::ByKind(rates), adaptation: None, ..(*claim.speed).clone() };
        Truth { speed, iterations: (work as u64).max(1), start_up, course: None }
    }
}

fn slower(step: &StepTime, ratio: f64) -> StepTime {
    let scaled = |line: Line| Line { fixed: line.fixed * ratio, slope: line.slope * ratio };
    StepTime {
        compute: scaled(step.compute),
        between_nodes: scaled(step.between_nodes),
        within_node: scaled(step.within_node),
        overlap: step.overlap,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::{BatchRange, ClusterDraft, QueueTree, Scaling, WorkerRange};
    use perf::{Adaptation, BatchRule, GradientNoise, KindLimits};
    use policies::PolicyConfig;
    use sim::{Setup, simulate};
    use world::Circumstances;

    const STEPS: u64 = 900;

    fn scene() -> (Cluster, QueueTree) {
        ClusterDraft::parse_short("1x2 fast, 1x4 slow").unwrap().build().unwrap()
    }

    /// A training whose passes take ten times as long on the slow kind, submitted a while after the beginning.
    fn training() -> TrueJob {
        let limits = |kind| KindLimits {
            kind: GpuKind(kind),
            local_min: 8,
            local_max: 128,
            shapes: Vec::new(),
            alone: None,
            stages: 1,
            workers_max: None,
        };
        let rule = BatchRule::Tuned { asked: None };
        let restart = Span::from_secs(1);
        let adaptation = Adaptation { initial: 64, max: 512, rule, kinds: vec![limits(0), limits(1)], restart };
        let line = |fixed, slope| Line { fixed, slope };
        let fast = StepTime {
            compute: line(0.002, 0.0004),
            between_nodes: line(0.05, 0.01),
            within_node: line(0.005, 0.001),
            overlap: 1.0,
        };
        let course = Course {
            initial: 64,
            steps: vec![(GpuKind(0), StepTimes::Fitted(fast)), (GpuKind(1), StepTimes::Fitted(slower(&fast, 10.0)))],
            epochs: vec![STEPS as f64],
            noise: vec![(64, vec![GradientNoise { sqr: 1.0, var: 4.0 }])],
            iterations: Vec::new(),
            slowdown: 1.3,
        };
        let range = WorkerRange { min: 1, max: 4 };
        let draft = JobDraft {
            scaling: Scaling::Adaptive(range, BatchRange { initial: 64, max: 512 }),
            ends: Ends::Iterations(STEPS),
            ..JobDraft::rigid("training", 1)
        };
        let speed = Speed { adaptation: Some(Arc::new(adaptation)), ..Speed::constant(1.0) };
        let truth = Truth {
            speed: speed.clone(),
            iterations: STEPS,
            start_up: Span::from_millis(400),
            course: Some(Arc::new(course)),
        };
        TrueJob {
            submitted: Time::from_secs(5),
            spec: Arc::new(draft.build().unwrap()),
            speed: Arc::new(speed),
            truth: Arc::new(truth),
        }
    }

    fn history(jobs: Vec<TrueJob>) -> History {
        let (cluster, queues) = scene();
        let circumstances = Circumstances { report_every: Span::from_secs(1), ..Circumstances::default() };
        let setup = Setup { circumstances, ..Setup::new(cluster, queues, jobs) };
        let policy = PolicyConfig::from_text(server::DEFAULT_POLICY).unwrap().build().unwrap();
        let mut history = History::default();
        simulate(&setup, server::DEFAULT_POLICY, policy, |at, event| history.push(at, event.clone())).unwrap();
        history
    }

    fn completion(history: &History) -> f64 {
        let told = history.told(report::Identity::default(), &|_, _, _| None);
        assert_eq!(told.run.finished, told.run.jobs);
        told.run.jct.mean_s.unwrap()
    }

    #[test]
    fn a_history_whose_truth_is_known_comes_out_again() {
        let original = history(vec![training(), training()]);
        let accelerators =
            [AcceleratorDraft::of("fast", 2), AcceleratorDraft { duty: 0.1, ..AcceleratorDraft::of("slow", 4) }];
        let again = history(of(&original, &accelerators).unwrap());
        let (original, again) = (completion(&original), completion(&again));
        assert!((again / original - 1.0).abs() < 0.1, "at first {original} s, then {again} s");
    }

    #[test]
    fn a_job_of_which_only_its_time_is_known_takes_that_time() {
        let plain = JobDraft::rigid("plain", 1).build().unwrap();
        let job = TrueJob {
            submitted: Time::from_secs(3),
            spec: Arc::new(plain),
            speed: Arc::new(Speed::constant(1.0)),
            truth: Arc::new(Truth::lasting(Span::from_secs(20))),
        };
        let original = history(vec![job]);
        let again =
            history(of(&original, &[AcceleratorDraft::of("fast", 2), AcceleratorDraft::of("slow", 4)]).unwrap());
        assert!((completion(&original) - completion(&again)).abs() < 0.1);
    }
}
