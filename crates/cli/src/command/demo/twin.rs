//! The jobs of a live history as jobs for the simulator. What really happens to them there is what was measured here:
//! the step times and gradient noise a job reported, its speed overall, and how long starting and stopping took.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::anyhow;
use cluster::{ClaimId, Cluster, Ends, GpuKind, JobDraft, Shape, Span, Time};
use engine::{Command, Event, State};
use executors::AcceleratorDraft;
use perf::{Course, Line, Rates, Speed, StepTime, StepTimes, TrueJob, Truth, Tuning, spread_evenly};
use plan::Claim;

use super::history::History;
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
    let seen = Seen::of(history, &state);
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

/// A stretch of time in which a job ran in one place with one batch.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    shape: Shape,
    tuning: Option<Tuning>,
    since: Time,
    seconds: f64,
}

/// What was seen of all jobs.
#[derive(Debug, Default)]
struct Seen {
    stretches: BTreeMap<ClaimId, Vec<Stretch>>,
    starts: Mean,
    stops: Mean,
}

/// A mean of spans.
#[derive(Debug, Default)]
struct Mean {
    sum: f64,
    count: u32,
}

impl Mean {
    fn add(&mut self, span: Span) {
        self.sum += span.as_secs_f64();
        self.count += 1;
    }

    fn span(&self) -> Span {
        Span::from_secs_f64(self.sum / f64::from(self.count.max(1)))
    }
}

impl Seen {
    fn of(history: &History, state: &State) -> Seen {
        let cluster = &state.books().cluster;
        let mut seen = Seen::default();
        // By claim: what was ordered last, and since when it runs so.
        let mut ordered: BTreeMap<ClaimId, (Time, Shape, Option<Tuning>)> = BTreeMap::new();
        let mut running: BTreeMap<ClaimId, Stretch> = BTreeMap::new();
        let mut stopping: BTreeMap<ClaimId, Time> = BTreeMap::new();
        for (at, event) in history.iter() {
            match event {
                Event::Issued(Command::Launch { run, allotment, tuning, .. }) => {
                    ordered.insert(run.claim, (at, allotment.placement.shape(cluster), *tuning));
                }
                Event::RunStarted { run } => {
                    if let Some(&(launched, shape, tuning)) = ordered.get(&run.claim) {
                        seen.starts.add(at.since(launched));
                        running.insert(run.claim, Stretch { shape, tuning, since: at, seconds: 0.0 });
                    }
                }
                Event::Issued(Command::Retune { run, tuning }) => {
                    if let Some(before) = running.remove(&run.claim) {
                        seen.over(run.claim, before, at);
                        running.insert(run.claim, Stretch { tuning: Some(*tuning), since: at, ..before });
                    }
                }
                Event::Issued(Command::Stop { run, .. }) => {
                    stopping.insert(run.claim, at);
                    running.remove(&run.claim).map(|before| seen.over(run.claim, before, at));
                }
                Event::RunStopped { run, .. } | Event::RunFinished { run } | Event::RunFailed { run, .. } => {
                    running.remove(&run.claim).map(|before| seen.over(run.claim, before, at));
                    stopping.remove(&run.claim).map(|since| seen.stops.add(at.since(since)));
                }
                _ => {}
            }
        }
        seen
    }

    fn over(&mut self, claim: ClaimId, stretch: Stretch, at: Time) {
        let seconds = at.since(stretch.since).as_secs_f64();
        self.stretches.entry(claim).or_default().push(Stretch { seconds, ..stretch });
    }

    fn of_job(&self, claim: ClaimId) -> &[Stretch] {
        self.stretches.get(&claim).map_or(&[], Vec::as_slice)
    }
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
        draft.recovery.restart_cost = self.seen.starts.span();
        draft.recovery.checkpoint_cost = self.seen.stops.span();
        draft.recovery.checkpoint_every = None;
        let spec = draft.build().map_err(|invalid| Failure::new(anyhow!("cannot simulate a job: {invalid}")))?;
        let start_up = self.seen.starts.span();
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
        let work: f64 =
            self.seen.of_job(claim.id).iter().filter_map(|it| Some(FINE * share(it)? * it.seconds)).sum();
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
