//! One job of a recorded history: where it ran, with which batch and how long. From that follows what it would do
//! elsewhere: by the model that was fitted to its own reports, or by the speed it was submitted with.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cluster::{Bytes, Cluster, GpuKind, JobDraft, JobSpec, Run, Shape, Span, Time};
use perf::{
    Course, Interruption, KindLimits, Learned, Observation, Rates, Search, Situation, Speed, StepReport, StepTime,
    StepTimes, TrueJob, Truth, Tuning, fit, spread_evenly,
};
use plan::Allotment;
use world::useful_share;

use super::{KindSpeeds, Pace};

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
    starts: Vec<Start>,
    stops: Mean,
    /// What the last stop took.
    last_stop: Option<Span>,
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
    /// Every report of its steps, by kind of GPU, nodes, replicas and local batch.
    steps: BTreeMap<Configuration, Vec<Observation>>,
    /// From its last report until it was gone, if it finished.
    exit: Option<Span>,
    pub(super) finished: bool,
    pub(super) cancelled: bool,
}

struct Launch {
    run: Run,
    at: Time,
    allotment: Arc<Allotment>,
    tuning: Option<Tuning>,
}

/// One launch: how long until it was up.
struct Start {
    took: Span,
    /// It said when it was ready for its first step, so that is how long it took; else its processes were there.
    ready: bool,
}

/// What other jobs of the recording cost, for those of which it was not seen.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usual {
    pub(super) resize: Option<Span>,
    /// From the last report of a job until it is gone.
    pub(super) exit: Span,
}

/// Kind of GPU, nodes, replicas and the batch of one of them.
type Configuration = (Option<GpuKind>, u32, u32, u32);

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
    /// It was ready for its first step.
    ready: bool,
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
            starts: Vec::new(),
            stops: Mean::default(),
            last_stop: None,
            measured_restarts: Vec::new(),
            measured_resizes: Vec::new(),
            resizes: Mean::default(),
            resizable: false,
            resizing: None,
            done: 0,
            reported: 0,
            last_report: None,
            steps: BTreeMap::new(),
            exit: None,
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
        self.starts.push(Start { took: at.since(launch.at), ready: false });
        self.running_since = Some(at);
    }

    /// Returns how long it had said nothing.
    pub(super) fn report(&mut self, at: Time, run: Run, report: &StepReport, cluster: &Cluster) -> Option<Span> {
        let last = self.last_report.replace((run, at)).filter(|(last, _)| *last == run);
        if last.is_none() && report.steps.is_none() && report.done == self.done {
            self.ready(at, run);
        }
        self.reported = report.done;
        self.resizable |= report.resizable;
        if let Some(interruption) = report.interruption {
            self.interrupted(at, run, interruption);
        }
        let kind = self.launch.as_ref().and_then(|launch| launch.allotment.placement.kind(cluster));
        if self.speed.adaptation.is_some() {
            self.learned.take(kind, report);
        }
        if let Some(steps) = report.steps {
            let configuration = (kind, steps.nodes, steps.replicas, steps.local_batch);
            self.steps.entry(configuration).or_default().push(steps);
        }
        last.map(|(_, last)| at.since(last))
    }

    /// A run that has done nothing yet says so when it is about to begin: until now it was still starting.
    fn ready(&mut self, at: Time, run: Run) {
        let launch = self.launch.as_ref().filter(|launch| launch.run == run);
        if let (Some(launch), Some(since), Some(start)) = (launch, &mut self.running_since, self.starts.last_mut()) {
            *start = Start { took: at.since(launch.at), ready: true };
            *since = at;
        }
    }

    /// What it measured of an interruption is more than anyone else saw of it: the rest was no time of steps.
    fn interrupted(&mut self, at: Time, run: Run, interruption: Interruption) {
        match interruption {
            Interruption::Restart(span) => {
                self.measured_restarts.push(span);
                let start = self.starts.last().map_or(Span::ZERO, |start| start.took);
                let seen = self.last_stop.unwrap_or(Span::ZERO) + start;
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
        let (tuning, seconds) = (launch.tuning, at.since(since).as_secs_f64());
        let ready = self.starts.last().is_some_and(|start| start.ready);
        self.stretches.push(Stretch { shape, tuning, seconds, ready, rate });
    }

    pub(super) fn finish(&mut self, at: Time, run: Run, cluster: &Cluster) {
        self.stopped(at, run, cluster);
        self.exit = self.last_report.filter(|(last, _)| *last == run).map(|(_, last)| at.since(last));
        self.finished = true;
    }

    /// What it took to end after the last report, of a job that says when it begins.
    pub(super) fn exit(&self) -> Option<Span> {
        self.exit.filter(|_| self.says_when_ready())
    }

    /// What changing its workers in place cost, as far as that was measured.
    pub(super) fn resize_cost(&self) -> Option<Span> {
        let measured = median(&mut self.measured_resizes.clone());
        measured.or_else(|| self.resizes.span()).filter(|_| self.resizable)
    }

    fn says_when_ready(&self) -> bool {
        self.starts.iter().any(|start| start.ready)
    }

    /// From launch to the first step, the first time and later. A start that it did not live to see the end of says
    /// nothing, and one that was never repeated would take as long again.
    fn start_costs(&self) -> (Option<Span>, Option<Span>) {
        let says = self.says_when_ready();
        let mut starts = self.starts.iter().filter(|start| start.ready || !says).map(|start| start.took);
        let first = starts.next();
        let mut later = Mean::default();
        starts.for_each(|took| later.add(took));
        (first, later.span().or(first.filter(|_| says)))
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
    pub(super) fn job(mut self, origin: Time, kinds: &KindSpeeds, pace: Pace, usual: Usual) -> TrueJob {
        if self.says_when_ready() {
            self.stretches.retain(|stretch| stretch.ready);
        }
        let stop = self.stops.span().unwrap_or(self.spec.recovery.checkpoint_cost);
        let (start_up, started_again) = self.start_costs();
        // Its own account is of the whole interruption, of which the stop is a part.
        let measured = median(&mut self.measured_restarts).map(|whole| whole.saturating_sub(stop));
        let measured = measured.filter(|_| !self.says_when_ready());
        let restart = measured.or(started_again).unwrap_or(self.spec.recovery.restart_cost);
        let resize = self.resize_cost().or(usual.resize.filter(|_| self.resizable));
        let mut truth = match self.course(kinds, pace) {
            Some(course) => self.as_learnt(course),
            None => self.as_submitted(kinds, pace),
        };
        truth.start_up = start_up.unwrap_or(Span::ZERO);
        if pace == Pace::Modelled && self.says_when_ready() {
            // The simulator knows nothing of what comes after the last step.
            truth.start_up += usual.exit;
        }
        let mut draft: JobDraft = (**self.spec).clone();
        draft.deadline = draft.deadline.map(|deadline| Time::ZERO + deadline.since(origin));
        draft.recovery.restart_cost = restart;
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
            start_up: Span::ZERO,
            course: Some(Arc::new(course)),
            resize: None,
        }
    }

    /// How the training went: its steps as its fitted models have them, slowed down so that what was recorded takes as
    /// long as it did, if that is the pace. Nothing for a job that did not say enough.
    fn course(&self, kinds: &KindSpeeds, pace: Pace) -> Option<Course> {
        let adaptation = self.speed.adaptation.as_ref()?;
        if adaptation.kinds.iter().any(|limits| limits.stages > 1) {
            return None;
        }
        let steps = adaptation.kinds.iter().map(|limits| Some((limits.kind, self.step_times(limits, kinds, pace)?)));
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
        let course = match pace {
            Pace::Recorded => {
                let total = declared.unwrap_or(expected);
                Course { epochs: vec![total], slowdown: expected / total, ..course }
            }
            Pace::Modelled => Course { epochs: vec![declared.unwrap_or(self.reported as f64)], ..course },
        };
        course.check().is_ok().then_some(course)
    }

    /// Its own model of the kind, or that of another kind, faster or slower as the two are.
    fn step_times(&self, limits: &KindLimits, kinds: &KindSpeeds, pace: Pace) -> Option<StepTimes> {
        let seen = self.means_on(limits.kind);
        if pace == Pace::Modelled && !seen.is_empty() {
            return Some(StepTimes::Fitted(fit(&seen, Search::Thorough)));
        }
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

    /// What it reported of each configuration on a kind, over all reports.
    fn means_on(&self, kind: GpuKind) -> Vec<Observation> {
        let here = self.steps.iter().filter(|(configuration, _)| configuration.0 == Some(kind));
        here.map(|(_, reports)| mean_of(reports)).collect()
    }

    /// The time its steps took by its own account; nothing if it gave none.
    fn seconds_of_steps(&self) -> Option<f64> {
        let reports: Vec<Observation> = self.steps.values().flatten().copied().collect();
        (!reports.is_empty()).then(|| self.reported as f64 * mean_of(&reports).step_secs)
    }

    /// By the speed it was submitted with: its work is what that speed says it did in the time it ran, or in the time its
    /// steps took, if that is the pace and it told it.
    fn as_submitted(&self, kinds: &KindSpeeds, pace: Pace) -> Truth {
        let factor = |shape: Shape| shape.kind.and_then(|kind| kinds.get(&kind).copied()).unwrap_or(1.0);
        let mut speed = (*self.speed).clone();
        let anywhere = matches!(speed.rates, Rates::Anywhere(_)) && !kinds.is_empty() && self.spec.uses_gpus();
        let factor = |shape| if anywhere { factor(shape) } else { 1.0 };
        let recorded: f64 = self.stretches.iter().map(|stretch| stretch.seconds).sum();
        let told = self.seconds_of_steps().filter(|_| pace == Pace::Modelled && recorded > 0.0);
        let stretched = told.map_or(1.0, |told| told / recorded);
        let worth = |stretch: &Stretch| stretch.rate * factor(stretch.shape) * stretch.seconds * stretched;
        let iterations: f64 = self.stretches.iter().map(worth).sum();
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
        Truth { speed, iterations, start_up: Span::ZERO, course: None, resize: None }
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

/// The mean over all steps of reports that each cover about the same time: the shorter the steps, the more there were.
fn mean_of(reports: &[Observation]) -> Observation {
    let mean = |secs: fn(&Observation) -> f64| {
        reports.len() as f64 / reports.iter().map(|report| 1.0 / secs(report)).sum::<f64>()
    };
    Observation {
        accumulation_secs: mean(|report| report.accumulation_secs),
        step_secs: mean(|report| report.step_secs),
        ..reports[0]
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
