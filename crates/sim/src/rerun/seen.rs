//! One job of a recorded history: where it ran, with which batch and how long. From that follows what it would do
//! elsewhere: by the model that was fitted to its own reports, or by the speed it was submitted with.

use std::collections::BTreeSet;
use std::sync::Arc;

use cluster::{Bytes, Cluster, JobDraft, JobSpec, Run, Shape, Span, Time};
use perf::{
    Course, Interruption, KindLimits, Learned, Rates, Situation, Speed, StepReport, StepTime, StepTimes, TrueJob,
    Truth, Tuning, spread_evenly,
};
use plan::Allotment;
use world::useful_share;

use super::KindSpeeds;

/// A job as far as it was seen.
pub(super) struct Seen {
    submitted: Time,
    spec: Arc<JobSpec>,
    speed: Arc<Speed>,
    /// What its reports have taught.
    pub(super) learned: Learned,
    pub(super) shapes: BTreeSet<Shape>,
    launch: Option<Launch>,
    running_since: Option<Time>,
    told_to_stop: Option<Time>,
    stretches: Vec<Stretch>,
    /// The stretches of the runs before the last one.
    before: usize,
    first_start: Option<Span>,
    restarts: Mean,
    stops: Mean,
    /// What the last stop and the start after it took, as far as both are known.
    last_stop: Option<Span>,
    last_start: Option<Span>,
    /// What its interruptions cost by its own account.
    measured_restarts: Vec<Span>,
    measured_resizes: Vec<Span>,
    /// From each order to change its workers until that was done.
    resizes: Mean,
    resizable: bool,
    /// What it has been told to go on with.
    resizing: Option<Told>,
    /// Iterations when it last stopped, and as it last reported.
    done: u64,
    reported: u64,
    last_report: Option<(Run, Time)>,
    pub(super) finished: bool,
    pub(super) cancelled: bool,
}

struct Launch {
    run: Run,
    at: Time,
    allotment: Arc<Allotment>,
    tuning: Option<Tuning>,
}

/// An order to go on with other workers.
struct Told {
    at: Time,
    to: Arc<Allotment>,
    tuning: Option<Tuning>,
}

/// It ran so long in one shape with one batch.
struct Stretch {
    shape: Shape,
    tuning: Option<Tuning>,
    seconds: f64,
    /// Iterations per second by the speed it was submitted with.
    rate: f64,
}

#[derive(Default)]
struct Mean {
    sum: f64,
    count: u32,
}

/// Work is counted in so fine parts of an iteration where iterations mean nothing: times are then kept to the millisecond.
const FINE: f64 = 1000.0;

impl Seen {
    pub(super) fn new(submitted: Time, spec: Arc<JobSpec>, speed: Arc<Speed>) -> Seen {
        Seen {
            submitted,
            spec,
            speed,
            learned: Learned::default(),
            shapes: BTreeSet::new(),
            launch: None,
            running_since: None,
            told_to_stop: None,
            stretches: Vec::new(),
            before: 0,
            first_start: None,
            restarts: Mean::default(),
            stops: Mean::default(),
            last_stop: None,
            last_start: None,
            measured_restarts: Vec::new(),
            measured_resizes: Vec::new(),
            resizes: Mean::default(),
            resizable: false,
            resizing: None,
            done: 0,
            reported: 0,
            last_report: None,
            finished: false,
            cancelled: false,
        }
    }

    /// Whether it did anything.
    pub(super) fn has_run(&self) -> bool {
        self.stretches.iter().any(|stretch| stretch.seconds > 0.0)
    }

    /// Whether its own reports tell what it does.
    pub(super) fn has_taught(&self) -> bool {
        self.speed.adaptation.is_some() && self.learned.fitted().next().is_some()
    }

    pub(super) fn launch(&mut self, at: Time, run: Run, allotment: Arc<Allotment>, tuning: Option<Tuning>) {
        self.launch = Some(Launch { run, at, allotment, tuning });
        self.resizing = None;
        self.before = self.stretches.len();
    }

    pub(super) fn start(&mut self, at: Time, run: Run) {
        let Some(launch) = self.launch.as_ref().filter(|launch| launch.run == run) else { return };
        let took = at.since(launch.at);
        match self.first_start {
            None => self.first_start = Some(took),
            Some(_) => self.restarts.add(took),
        }
        self.last_start = Some(took);
        self.running_since = Some(at);
    }

    /// Returns how long it had said nothing.
    pub(super) fn report(&mut self, at: Time, run: Run, report: &StepReport, cluster: &Cluster) -> Option<Span> {
        let last = self.last_report.replace((run, at)).filter(|(last, _)| *last == run);
        self.reported = report.done;
        self.resizable |= report.resizable;
        if let Some(interruption) = report.interruption {
            self.interrupted(at, run, interruption);
        }
        let kind = self.launch.as_ref().and_then(|launch| launch.allotment.placement.kind(cluster));
        if self.speed.adaptation.is_some() {
            self.learned.take(kind, report);
        }
        last.map(|(_, last)| at.since(last))
    }

    /// What it measured of an interruption is more than anyone else saw of it: the rest was no time of steps.
    fn interrupted(&mut self, at: Time, run: Run, interruption: Interruption) {
        match interruption {
            Interruption::Restart(span) => {
                self.measured_restarts.push(span);
                let seen = self.last_stop.unwrap_or(Span::ZERO) + self.last_start.unwrap_or(Span::ZERO);
                let present = self.launch.as_ref().is_some_and(|launch| launch.run == run);
                if let Some(since) = self.running_since.as_mut().filter(|_| present) {
                    *since = (*since + span.saturating_sub(seen)).min(at);
                }
            }
            Interruption::Resize(span) => {
                self.measured_resizes.push(span);
                if let Some(before) = self.stretches.last_mut() {
                    before.seconds = (before.seconds - span.as_secs_f64()).max(0.0);
                }
            }
        }
    }

    pub(super) fn resize(&mut self, at: Time, run: Run, to: Arc<Allotment>, tuning: Option<Tuning>) {
        if self.launch.as_ref().is_some_and(|launch| launch.run == run) {
            self.resizing = Some(Told { at, to, tuning });
        }
    }

    /// One stretch ends, and the next begins in another shape.
    pub(super) fn resized(&mut self, at: Time, run: Run, cluster: &Cluster) {
        let runs = self.running_since.is_some();
        self.pause(at, run, cluster);
        let launch = self.launch.as_mut().filter(|launch| launch.run == run);
        if let Some((launch, told)) = launch.zip(self.resizing.take()) {
            (launch.allotment, launch.tuning) = (told.to, told.tuning);
            self.resizes.add(at.since(told.at));
            self.running_since = runs.then_some(at);
        }
    }

    pub(super) fn not_resized(&mut self, run: Run) {
        if self.launch.as_ref().is_some_and(|launch| launch.run == run) {
            self.resizing = None;
        }
    }

    pub(super) fn retune(&mut self, at: Time, run: Run, tuning: Tuning, cluster: &Cluster) {
        let runs = self.running_since.is_some();
        self.pause(at, run, cluster);
        if let Some(launch) = self.launch.as_mut().filter(|launch| launch.run == run) {
            launch.tuning = Some(tuning);
            self.running_since = runs.then_some(at);
        }
    }

    pub(super) fn tell_to_stop(&mut self, at: Time, run: Run, cluster: &Cluster) {
        self.told_to_stop = self.running_since.is_some().then_some(at);
        self.pause(at, run, cluster);
    }

    pub(super) fn stopped(&mut self, at: Time, run: Run, cluster: &Cluster) {
        self.pause(at, run, cluster);
        if let Some(since) = self.told_to_stop.take() {
            self.stops.add(at.since(since));
            self.last_stop = Some(at.since(since));
        }
    }

    /// It makes no more progress, for now or for good.
    fn pause(&mut self, at: Time, run: Run, cluster: &Cluster) {
        let Some(launch) = self.launch.as_ref().filter(|launch| launch.run == run) else { return };
        let Some(since) = self.running_since.take() else { return };
        let placement = &launch.allotment.placement;
        let situation = Situation::placed(&self.spec, placement, launch.allotment.batch, cluster);
        let rate = self.speed.rate(&situation).unwrap_or(0.0) * useful_share(&self.spec);
        let shape = placement.shape(cluster);
        self.shapes.insert(shape);
        self.stretches.push(Stretch { shape, tuning: launch.tuning, seconds: at.since(since).as_secs_f64(), rate });
    }

    /// So many iterations are safe.
    pub(super) fn keep(&mut self, done: u64) {
        (self.done, self.reported) = (done, done);
    }

    /// The last run was lost but for what it had saved: that must not be counted as work.
    pub(super) fn lose(&mut self, done: u64) {
        let saved = done.saturating_sub(self.done) as f64;
        let last = &mut self.stretches[self.before..];
        let made = match self.speed.adaptation {
            Some(_) => self.reported.saturating_sub(self.done) as f64,
            None => last.iter().map(|stretch| stretch.rate * stretch.seconds).sum(),
        };
        let kept = if made > saved { saved / made } else { 1.0 };
        last.iter_mut().for_each(|stretch| stretch.seconds *= kept);
        self.keep(done);
    }

    /// The same job for the simulator, with what was measured of it.
    pub(super) fn job(mut self, origin: Time, kinds: &KindSpeeds) -> TrueJob {
        let stop = self.stops.span().unwrap_or(self.spec.recovery.checkpoint_cost);
        // Its own account is of the whole interruption, of which the stop is a part.
        let restart = median(&mut self.measured_restarts).map(|whole| whole.saturating_sub(stop));
        let resize = median(&mut self.measured_resizes).or_else(|| self.resizes.span()).filter(|_| self.resizable);
        let truth = self.course(kinds).map_or_else(|| self.as_submitted(kinds), |course| self.as_learnt(course));
        let mut draft: JobDraft = (**self.spec).clone();
        draft.deadline = draft.deadline.map(|deadline| Time::ZERO + deadline.since(origin));
        let restart = restart.or_else(|| self.restarts.span());
        draft.recovery.restart_cost = restart.unwrap_or(draft.recovery.restart_cost);
        draft.recovery.checkpoint_cost = stop;
        let spec = draft.build().expect("what was recorded was sound, and times of day do not change that");
        TrueJob {
            submitted: Time::ZERO + self.submitted.since(origin),
            spec: Arc::new(spec),
            speed: self.speed,
            truth: Arc::new(Truth { resize, ..truth }),
        }
    }

    fn as_learnt(&self, course: Course) -> Truth {
        Truth {
            speed: (*self.speed).clone(),
            iterations: (course.length() as u64).max(1),
            start_up: self.first_start.unwrap_or(Span::ZERO),
            course: Some(Arc::new(course)),
            resize: None,
        }
    }

    /// How the training went: its steps as its fitted models have them, slowed down so that what was recorded takes as
    /// long as it did. Nothing for a job that did not say enough.
    fn course(&self, kinds: &KindSpeeds) -> Option<Course> {
        let adaptation = self.speed.adaptation.as_ref()?;
        if adaptation.kinds.iter().any(|limits| limits.stages > 1) {
            return None;
        }
        let steps = adaptation.kinds.iter().map(|limits| Some((limits.kind, self.step_times(limits, kinds)?)));
        let course = Course {
            initial: adaptation.initial,
            steps: steps.collect::<Option<_>>()?,
            epochs: vec![1.0],
            noise: vec![(adaptation.initial, vec![self.learned.noise])],
            iterations: Vec::new(),
            slowdown: 1.0,
        };
        let worth = |stretch: &Stretch| {
            let workers = spread_evenly(stretch.shape.workers, stretch.shape.nodes);
            Some(course.piece(stretch.shape.kind?, &workers, stretch.tuning?, 0.0)?.rate * stretch.seconds)
        };
        let expected: f64 = self.stretches.iter().filter_map(worth).sum();
        let declared = self.spec.iterations().filter(|_| self.finished).map(|iterations| iterations as f64);
        let total = declared.unwrap_or(expected);
        let course = Course { epochs: vec![total], slowdown: expected / total, ..course };
        course.check().is_ok().then_some(course)
    }

    /// Its own model of the kind, or that of another kind, faster or slower as the two are.
    fn step_times(&self, limits: &KindLimits, kinds: &KindSpeeds) -> Option<StepTimes> {
        if let Some(step) = self.learned.step_time(limits.kind) {
            return Some(StepTimes::Fitted(*step));
        }
        let (other, step) = self.learned.fitted().next()?;
        let alone = |kind| self.speed.adaptation.as_ref()?.on(kind)?.alone;
        let known = kinds.get(&other).zip(kinds.get(&limits.kind)).map(|(other, here)| other / here);
        let profiled = || alone(other).zip(limits.alone).map(|(other, here)| other / here);
        let ratio = known.or_else(profiled).unwrap_or(1.0);
        Some(StepTimes::Fitted(slower(step, ratio)))
    }

    /// By the speed it was submitted with: its work is what that speed says it did in the time it ran.
    fn as_submitted(&self, kinds: &KindSpeeds) -> Truth {
        let factor = |shape: Shape| shape.kind.and_then(|kind| kinds.get(&kind).copied()).unwrap_or(1.0);
        let mut speed = (*self.speed).clone();
        let anywhere = matches!(speed.rates, Rates::Anywhere(_)) && !kinds.is_empty() && self.spec.uses_gpus();
        let factor = |shape| if anywhere { factor(shape) } else { 1.0 };
        let iterations: f64 =
            self.stretches.iter().map(|stretch| stretch.rate * factor(stretch.shape) * stretch.seconds).sum();
        if let (true, &Rates::Anywhere(rate)) = (anywhere, &speed.rates) {
            speed.rates = Rates::ByKind(kinds.iter().map(|(&kind, &factor)| (kind, rate * factor)).collect());
        }
        let fine = self.spec.iterations().is_none() && speed.gradients == Bytes::ZERO && speed.adaptation.is_none();
        let parts = if fine { FINE } else { 1.0 };
        match &mut speed.rates {
            Rates::Anywhere(rate) => *rate *= parts,
            Rates::ByKind(table) => table.iter_mut().for_each(|(_, rate)| *rate *= parts),
        }
        let iterations = ((iterations * parts).round() as u64).max(1);
        Truth { speed, iterations, start_up: self.first_start.unwrap_or(Span::ZERO), course: None, resize: None }
    }
}

impl Mean {
    fn add(&mut self, span: Span) {
        self.sum += span.as_secs_f64();
        self.count += 1;
    }

    /// Nothing of nothing.
    fn span(&self) -> Option<Span> {
        (self.count > 0).then(|| Span::from_secs_f64(self.sum / f64::from(self.count)))
    }
}

/// The one in the middle, of an even number the lower; nothing of nothing.
pub(super) fn median(spans: &mut [Span]) -> Option<Span> {
    spans.sort_unstable();
    spans.get(spans.len().saturating_sub(1) / 2).copied()
}

/// The same steps on a kind of which one takes so many times as long.
fn slower(step: &StepTime, ratio: f64) -> StepTime {
    let scaled = |line: perf::Line| perf::Line { fixed: line.fixed * ratio, slope: line.slope * ratio };
    StepTime {
        compute: scaled(step.compute),
        between_nodes: scaled(step.between_nodes),
        within_node: scaled(step.within_node),
        overlap: step.overlap,
    }
}
