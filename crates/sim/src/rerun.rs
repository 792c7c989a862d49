//! A recorded history under another policy: a journal is a workload.
//!
//! What was recorded of a job is how long it ran where, and what it reported of itself. Its work is taken to be what its
//! model says it did in that time, so in the shapes that were recorded it runs again as long; in others the model's word
//! is taken for it. The model is the one fitted to its reports, or the speed it was submitted with if it made none.

mod seen;

use std::collections::{BTreeMap, BTreeSet};
use std::io::BufRead;

use cluster::{ClaimId, Cluster, GpuKind, QueueTree, Run, Shape, Span, Time};
use engine::{Command, Event, Record};
use perf::TrueJob;
use plan::{Availability, Safeguards};
use policies::PolicyConfig;
use report::{Fold, Report};
use serde::Deserialize;
use trace::Workload;
use world::{Circumstances, Occurrence, Script};

use crate::experiment::{Experiment, ExperimentError};
use seen::{Seen, Usual, median};

/// What a journal tells about the jobs in it and about what befell the cluster.
#[derive(Debug)]
pub struct Recording {
    pub cluster: Cluster,
    pub queues: QueueTree,
    /// The policy in force.
    pub policy: String,
    /// The rules that held around it at last.
    pub safeguards: Safeguards,
    pub jobs: Vec<TrueJob>,
    pub circumstances: Circumstances,
    pub assumptions: Vec<String>,
    /// The cluster with the nodes that joined later.
    grown: Cluster,
    /// The shapes each job was seen to run in, by claim.
    shapes: Vec<BTreeSet<Shape>>,
}

#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    #[error("line {line}: {what}")]
    Line { line: usize, what: String },
    #[error("line {line}: cannot read")]
    Read { line: usize, source: std::io::Error },
    #[error(
        "the record begins with entry {entry}, since older archives of the journal were removed by retention: a history \
         can be re-run only from its beginning"
    )]
    Cut { entry: u64 },
    #[error("expected a journal that begins with the definition of its cluster, found {found}")]
    NoBeginning { found: &'static str },
}

/// How much of a re-run history is the model's word rather than the record's.
#[derive(Debug, Default)]
pub struct Extrapolation {
    running: BTreeMap<ClaimId, (Time, bool)>,
    /// The shape that a run is about to have.
    launched: BTreeMap<Run, Shape>,
    seen_ms: u64,
    unseen_ms: u64,
}

const MINUTE_MILLIS: u64 = 60_000;

/// A line longer than this is no line of a journal.
const LONGEST_LINE: u64 = 64 << 20;

/// What says how long the work of a job takes again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Where it was recorded it takes as long as it did: best for asking what another policy would have done.
    Recorded,
    /// The steps it reported take what the model fitted to them says, and how long it ran is not looked at: the test of
    /// whether models and simulator foretell what happened.
    Modelled,
}

/// How fast kinds of GPU are beside each other, for those who know it better than the record.
pub type KindSpeeds = BTreeMap<GpuKind, f64>;

impl Recording {
    /// The recording of a history that is at hand.
    pub fn of(records: &[Record], kinds: &KindSpeeds) -> Result<Recording, RecordingError> {
        Recording::at_pace(records, kinds, Pace::Recorded)
    }

    /// The same, where the work of jobs takes as long as this says.
    pub fn at_pace(records: &[Record], kinds: &KindSpeeds, pace: Pace) -> Result<Recording, RecordingError> {
        let (first, rest) = records.split_first().ok_or(RecordingError::NoBeginning { found: "nothing" })?;
        let Event::ClusterDefined { cluster, queues } = &first.event else {
            return Err(RecordingError::NoBeginning { found: "another fact" });
        };
        let mut reading = Reading::new(first.at, (**cluster).clone(), (**queues).clone());
        for (index, record) in rest.iter().enumerate() {
            let fault = |what: String| RecordingError::Line { line: index + 2, what };
            reading.add(record.at, record.event.clone()).map_err(fault)?;
        }
        Ok(reading.conclude(kinds, pace))
    }

    /// Reads a journal, one JSON object a line.
    pub fn read(mut from: impl BufRead) -> Result<Recording, RecordingError> {
        let mut reading: Option<Reading> = None;
        let mut text = Vec::new();
        for line in 1.. {
            text.clear();
            let mut limited = std::io::Read::take(&mut from, LONGEST_LINE);
            let length =
                limited.read_until(b'\n', &mut text).map_err(|source| RecordingError::Read { line, source })?;
            if length == 0 {
                break;
            }
            let fault = |what: String| RecordingError::Line { line, what };
            if let Some(Cut { begins_with_entry: entry }) = (line == 1).then(|| cut(&text)).flatten() {
                return Err(RecordingError::Cut { entry });
            }
            let record: Record = serde_json::from_slice(&text)
                .map_err(|error| fault(format!("expected a fact of a journal: {error}")))?;
            match (&mut reading, record.event) {
                (None, Event::ClusterDefined { cluster, queues }) => {
                    reading = Some(Reading::new(record.at, *cluster, *queues));
                }
                (None, _) => return Err(RecordingError::NoBeginning { found: "another fact" }),
                (Some(reading), event) => reading.add(record.at, event).map_err(fault)?,
            }
        }
        let reading = reading.map(|reading| reading.conclude(&KindSpeeds::new(), Pace::Recorded));
        reading.ok_or(RecordingError::NoBeginning { found: "nothing" })
    }

    /// The same jobs on the same cluster under other policies. What was extrapolated is among the assumptions.
    pub fn rerun(&self, name: &str, policies: Vec<PolicyConfig>) -> Result<Report, ExperimentError> {
        let experiment = Experiment {
            cluster_name: "the recorded cluster".into(),
            cluster: self.cluster.clone(),
            queues: self.queues.clone(),
            policies,
            workload: name.into(),
            seeds: vec![0],
            circumstances: self.circumstances.clone(),
            safeguards: self.safeguards,
        };
        let workload = Workload { name: name.into(), jobs: self.jobs.clone(), assumptions: self.assumptions.clone() };
        let mut assumptions = self.assumptions.clone();
        let mut runs = Vec::new();
        for policy in &experiment.policies {
            let mut extrapolation = Extrapolation::default();
            let observe = |at: Time, event: &Event, _: &Fold| extrapolation.observe(at, event, self);
            runs.push(experiment.one(policy, 0, &workload, observe)?.0);
            assumptions.push(format!(
                "{}: {:.1} % of the running time is extrapolated, in shapes that were never recorded (under {})",
                policy.label(),
                100.0 * extrapolation.share(),
                self.policy
            ));
        }
        Ok(Report::new(experiment.cluster_name, assumptions, runs))
    }

    /// Whether the job was recorded in this shape.
    pub fn has_seen(&self, claim: ClaimId, shape: Shape) -> bool {
        self.shapes.get(claim.0 as usize).is_some_and(|shapes| shapes.contains(&shape))
    }
}

/// What an export says first of a history whose oldest part is not kept any more.
#[derive(Deserialize)]
struct Cut {
    begins_with_entry: u64,
}

fn cut(line: &[u8]) -> Option<Cut> {
    serde_json::from_slice(line).ok()
}

/// A journal half read.
struct Reading {
    /// The last full minute before it begins, which becomes zero: rounds of a policy that divide a minute come when they
    /// came.
    origin: Time,
    cluster: Cluster,
    grown: Cluster,
    queues: QueueTree,
    policy: String,
    safeguards: Safeguards,
    claims: Vec<Seen>,
    script: Script,
    now: Time,
    crashes: u64,
    /// The longest that a run was given to change its workers in place.
    resize_within: Option<Span>,
    /// From each report of a job to its next.
    between_reports: Vec<Span>,
}

impl Reading {
    fn new(begins: Time, cluster: Cluster, queues: QueueTree) -> Reading {
        let origin = Time::from_millis(begins.as_millis() / MINUTE_MILLIS * MINUTE_MILLIS);
        let (policy, claims, script) = (String::new(), Vec::new(), Script::default());
        let grown = cluster.clone();
        Reading {
            origin,
            cluster,
            grown,
            queues,
            policy,
            safeguards: Safeguards::NONE,
            claims,
            script,
            now: begins,
            crashes: 0,
            resize_within: None,
            between_reports: Vec::new(),
        }
    }

    fn add(&mut self, at: Time, event: Event) -> Result<(), String> {
        if at < self.now {
            return Err(format!("expected facts in order of time, found {at} after {}", self.now));
        }
        self.now = at;
        match event {
            Event::ClusterDefined { .. } => return Err("the cluster is defined a second time".into()),
            Event::PolicyChosen { name } => self.policy = name,
            Event::SafeguardsChosen { safeguards } => self.safeguards = safeguards,
            Event::ClaimSubmitted { claim, spec, speed } | Event::ClaimRefused { claim, spec, speed, .. } => {
                if claim.0 as usize != self.claims.len() {
                    return Err(format!("expected job {}, found job {claim}", self.claims.len()));
                }
                self.claims.push(Seen::new(at, spec, speed));
            }
            Event::ClaimCancelled { claim } => {
                self.seen(claim)?.0.cancelled = true;
                self.happens(at, Occurrence::Cancel(claim.0));
            }
            Event::ClaimHeld { claim } => self.happens(at, Occurrence::Hold(claim.0)),
            Event::ClaimReleased { claim } => self.happens(at, Occurrence::Release(claim.0)),
            Event::ClaimReprioritised { claim, priority } => {
                self.happens(at, Occurrence::Reprioritise(claim.0, priority));
            }
            Event::QueuesChanged { queues } => self.happens(at, Occurrence::ChangeQueues(queues)),
            Event::NodeJoined { node, kinds } => {
                self.grown.add(&node, &kinds).map_err(|invalid| invalid.to_string())?;
                self.happens(at, Occurrence::Add { node, kinds });
            }
            Event::NodeChanged { node, availability, broken } => {
                let occurrence = match availability {
                    Availability::Cordoned => Occurrence::Cordon(node),
                    Availability::Drained => Occurrence::Drain(node),
                    Availability::Removed => Occurrence::Remove(node),
                    Availability::Open | Availability::Lost => Occurrence::Change { node, availability, broken },
                };
                self.happens(at, occurrence);
            }
            Event::Issued(Command::Launch { run, allotment, tuning, .. }) => {
                self.seen(run.claim)?.0.launch(at, run, allotment, tuning);
            }
            Event::RunStarted { run } => self.seen(run.claim)?.0.start(at, run),
            Event::RunProgressed { run, report } => {
                let (seen, cluster) = self.seen(run.claim)?;
                let gap = seen.report(at, run, &report, cluster).filter(|gap| !gap.is_zero());
                self.between_reports.extend(gap);
            }
            Event::Refitted { claim, kind, step } => {
                let (seen, _) = self.seen(claim)?;
                if seen.learned.on(kind).is_none() {
                    return Err(format!("job {claim} has a model of a kind of GPU from which it never reported"));
                }
                seen.learned.adopt(kind, step);
            }
            Event::Issued(Command::Retune { run, tuning }) => {
                let (seen, cluster) = self.seen(run.claim)?;
                seen.retune(at, run, tuning, cluster);
            }
            Event::Issued(Command::Resize { run, allotment, tuning, until }) => {
                self.resize_within = self.resize_within.max(Some(until.since(at)));
                self.seen(run.claim)?.0.resize(at, run, allotment, tuning);
            }
            Event::RunResized { run } => {
                let (seen, cluster) = self.seen(run.claim)?;
                seen.resized(at, run, cluster);
            }
            Event::RunNotResized { run } => self.seen(run.claim)?.0.not_resized(run),
            Event::RunStopped { run, done } => {
                let (seen, cluster) = self.seen(run.claim)?;
                seen.stopped(at, run, cluster);
                seen.keep(done);
            }
            Event::RunFailed { run, done, .. } => {
                self.crashes += 1;
                let (seen, cluster) = self.seen(run.claim)?;
                seen.stopped(at, run, cluster);
                seen.lose(done);
            }
            Event::RunFinished { run } => {
                let (seen, cluster) = self.seen(run.claim)?;
                seen.finish(at, run, cluster);
            }
            Event::Issued(Command::Stop { run, .. }) => {
                let (seen, cluster) = self.seen(run.claim)?;
                seen.tell_to_stop(at, run, cluster);
            }
            // What was rented came as a node that joined; what was given back goes as one that is removed.
            Event::Issued(Command::Provision { .. }) => {}
            Event::Issued(Command::Release { node }) => {
                self.happens(at, Occurrence::Remove(node));
            }
            Event::NumbersBegin { at: number } => {
                return Err(format!(
                    "numbers up to {number} were passed over after a loss: only a whole history can be run again"
                ));
            }
            // What was forgotten is in the recording all the same.
            Event::Forgotten { .. } => {}
            // What it is charged for is measured again, and no clock is set meanwhile.
            Event::RunTimed { .. } | Event::DeadlineMoved { .. } => {}
            // What follows from limits and failures follows again.
            Event::LimitReached { .. } | Event::ClaimRests { .. } | Event::ClaimRested { .. } => {}
            Event::ClaimEnded { .. } | Event::Planned(_) | Event::StartedAtOnce(_) | Event::PlanRefused { .. } => {}
        }
        Ok(())
    }

    fn happens(&mut self, at: Time, occurrence: Occurrence) {
        let since_the_beginning = Time::ZERO + at.since(self.origin);
        self.script = std::mem::take(&mut self.script).then(since_the_beginning, occurrence);
    }

    /// A job, and the cluster as it is by now.
    fn seen(&mut self, claim: ClaimId) -> Result<(&mut Seen, &Cluster), String> {
        let known = self.claims.len();
        let seen = self.claims.get_mut(claim.0 as usize);
        let seen = seen.ok_or(format!("there is no job {claim}, only {known} were submitted"))?;
        Ok((seen, &self.grown))
    }

    /// What is the case in the middle of all jobs that tell it.
    fn usual(&self) -> Usual {
        let middle =
            |cost: fn(&Seen) -> Option<Span>| median(&mut self.claims.iter().filter_map(cost).collect::<Vec<_>>());
        Usual { resize: middle(Seen::resize_cost), exit: middle(Seen::exit).unwrap_or(Span::ZERO) }
    }

    fn conclude(mut self, kinds: &KindSpeeds, pace: Pace) -> Recording {
        let usual = Circumstances::default();
        let report_every = median(&mut self.between_reports).unwrap_or(usual.report_every);
        let unfinished = self.claims.iter().filter(|seen| !seen.finished && !seen.cancelled && seen.has_run());
        let unfinished = unfinished.count();
        let mut assumptions = vec![assumption(pace)];
        if self.claims.iter().any(Seen::has_taught) {
            let elsewhere = match kinds.is_empty() {
                true => "as a short profile of one worker says, or else as where it ran",
                false => "as much longer or shorter as the kinds differ",
            };
            let slowed = match pace {
                Pace::Recorded => ", slowed down so that what was recorded takes as long as it did",
                Pace::Modelled => "",
            };
            assumptions.push(format!(
                "the model of a job that reported its steps is the one fitted to them{slowed}; on kinds of GPU where it \
                 never ran, its steps take {elsewhere}"
            ));
        }
        if unfinished > 0 {
            assumptions.push(format!("{unfinished} jobs had not finished: they end where the record does"));
        }
        if self.crashes > 0 {
            assumptions
                .push(format!("{} failed runs are not repeated, except where a node is lost again", self.crashes));
        }
        let usual_costs = self.usual();
        let shapes = self.claims.iter().map(|seen| seen.shapes.clone()).collect();
        Recording {
            jobs: self.claims.into_iter().map(|seen| seen.job(self.origin, kinds, pace, usual_costs)).collect(),
            circumstances: Circumstances {
                script: self.script,
                resize_within: self.resize_within,
                report_every,
                ..usual
            },
            cluster: self.cluster,
            grown: self.grown,
            queues: self.queues,
            policy: self.policy,
            safeguards: self.safeguards,
            assumptions,
            shapes,
        }
    }
}

fn assumption(pace: Pace) -> String {
    match pace {
        Pace::Recorded => "a job's work is what its model says it did in the time it was recorded to run".into(),
        Pace::Modelled => {
            "a job's work is what it reported at its end, and takes what its model says; of a job that reported no steps \
             it is the time it was recorded to run"
                .into()
        }
    }
}

impl Extrapolation {
    /// Follows a re-run history, fact by fact.
    pub fn observe(&mut self, at: Time, event: &Event, recording: &Recording) {
        match event {
            Event::Issued(Command::Launch { run, allotment, .. } | Command::Resize { run, allotment, .. }) => {
                self.launched.insert(*run, allotment.placement.shape(&recording.grown));
            }
            Event::RunNotResized { run } => drop(self.launched.remove(run)),
            Event::RunStarted { run } | Event::RunResized { run } => {
                self.pause(at, run.claim);
                let shape = self.launched.remove(run);
                let seen = shape.is_some_and(|shape| recording.has_seen(run.claim, shape));
                self.running.insert(run.claim, (at, seen));
            }
            Event::RunStopped { run, .. } | Event::RunFinished { run } | Event::RunFailed { run, .. } => {
                self.pause(at, run.claim);
            }
            _ => {}
        }
    }

    fn pause(&mut self, at: Time, claim: ClaimId) {
        if let Some((since, seen)) = self.running.remove(&claim) {
            let sum = if seen { &mut self.seen_ms } else { &mut self.unseen_ms };
            *sum += at.since(since).as_millis();
        }
    }

    /// The share of running time in shapes that the record does not have.
    pub fn share(&self) -> f64 {
        self.unseen_ms as f64 / ((self.seen_ms + self.unseen_ms) as f64).max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::{Setup, simulate};
    use cluster::{BatchRange, ClusterDraft, Ends, JobDraft, Scaling, WorkerRange};
    use engine::{Settings, State};
    use perf::{
        Adaptation, BatchRule, Course, GradientNoise, KindLimits, Line, Rates, ScalingLaw, Speed, StepTime, StepTimes,
        Truth,
    };
    use plan::Phase;
    use std::sync::Arc;

    fn setup() -> Setup {
        let (cluster, queues) = ClusterDraft::parse_short("2x4 t4, 1x4 a100").unwrap().build().unwrap();
        let kind = |name| cluster.kind_named(name).unwrap();
        let rates = Rates::ByKind(vec![(kind("t4"), 1.0), (kind("a100"), 3.0)]);
        let speed = Arc::new(Speed { rates, scaling: ScalingLaw::Power(0.9), ..Speed::constant(1.0) });
        let job = |index: u64| {
            let scaling = Scaling::Elastic(WorkerRange { min: 1 + (index % 4) as u32, max: 8 });
            let spec = Arc::new(JobDraft { scaling, ..JobDraft::rigid("job", 1) }.build().unwrap());
            let truth = Truth {
                speed: (*speed).clone(),
                iterations: 500 + 137 * (index % 11),
                start_up: Span::from_secs(3),
                course: None,
                resize: None,
            };
            TrueJob { submitted: Time::from_secs(60 * index), spec, speed: speed.clone(), truth: Arc::new(truth) }
        };
        Setup::new(cluster.clone(), queues, (0..40).map(job).collect())
    }

    fn play(setup: &Setup, policy: &PolicyConfig, mut observe: impl FnMut(Time, &Event)) -> State {
        simulate(setup, &policy.label(), policy.build().unwrap(), |at, event| observe(at, event)).unwrap()
    }

    fn record(setup: &Setup, policy: &PolicyConfig) -> (State, String) {
        let mut journal = String::new();
        let state = play(setup, policy, |at, event| {
            journal += &serde_json::to_string(&Record { at, event: event.clone() }).unwrap();
            journal.push('\n');
        });
        (state, journal)
    }

    fn rerun(journal: &str, policy: &PolicyConfig) -> (State, f64) {
        let recording = Recording::read(journal.as_bytes()).unwrap();
        let setup = Setup {
            circumstances: recording.circumstances.clone(),
            ..Setup::new(recording.cluster.clone(), recording.queues.clone(), recording.jobs.clone())
        };
        let mut extrapolation = Extrapolation::default();
        let state = play(&setup, policy, |at, event| extrapolation.observe(at, event, &recording));
        (state, extrapolation.share())
    }

    fn ends(state: &State) -> Vec<f64> {
        let end = |phase: &Phase| if let Phase::Ended { at, .. } = phase { at.as_secs_f64() } else { f64::NAN };
        state.books().claims().iter().map(|claim| end(&claim.phase)).collect()
    }

    #[test]
    fn under_the_recorded_policy_the_history_repeats_itself() {
        let policy = PolicyConfig::named("fifo");
        let (state, journal) = record(&setup(), &policy);
        let (again, extrapolated) = rerun(&journal, &policy);
        for (recorded, repeated) in ends(&state).into_iter().zip(ends(&again)) {
            assert!((recorded - repeated).abs() < 1.5, "{recorded} and {repeated}: within an iteration");
        }
        assert_eq!(extrapolated, 0.0);
    }

    #[test]
    fn shapes_that_were_never_run_are_counted_as_extrapolated() {
        let (_, journal) = record(&setup(), &PolicyConfig::named("fifo"));
        let grow = PolicyConfig::from_pairs("composed", &["grant=grow"]).unwrap();
        let (state, extrapolated) = rerun(&journal, &grow);
        assert!(ends(&state).iter().all(|end| end.is_finite()));
        assert!(extrapolated > 0.05, "{extrapolated}");
    }

    const TWO_KINDS: &str = "1x2 fast, 1x4 slow";

    /// Two kinds of GPU, the second of which takes ten times as long for everything.
    fn two_kinds() -> (Cluster, QueueTree, KindSpeeds) {
        let (cluster, queues) = ClusterDraft::parse_short(TWO_KINDS).unwrap().build().unwrap();
        (cluster, queues, KindSpeeds::from([(GpuKind(0), 1.0), (GpuKind(1), 0.1)]))
    }

    /// A training that says nothing of its speed beforehand and is slower than its steps.
    fn training(finishes_after: u64) -> TrueJob {
        let limits = |kind| KindLimits {
            kind: GpuKind(kind),
            local_min: 8,
            local_max: 128,
            shapes: Vec::new(),
            alone: None,
            stages: 1,
            workers_max: None,
        };
        let (rule, restart) = (BatchRule::Tuned { asked: None }, Span::from_secs(1));
        let adaptation = Adaptation { initial: 64, max: 512, rule, kinds: vec![limits(0), limits(1)], restart };
        let steps = |times: f64| {
            let line = |fixed: f64, slope: f64| Line { fixed: times * fixed, slope: times * slope };
            StepTimes::Fitted(StepTime {
                compute: line(0.002, 0.0004),
                between_nodes: line(0.05, 0.01),
                within_node: line(0.005, 0.001),
                overlap: 1.0,
            })
        };
        let course = Course {
            initial: 64,
            steps: vec![(GpuKind(0), steps(1.0)), (GpuKind(1), steps(10.0))],
            epochs: vec![finishes_after as f64],
            noise: vec![(64, vec![GradientNoise { sqr: 1.0, var: 4.0 }])],
            iterations: Vec::new(),
            slowdown: 1.3,
        };
        let (workers, batch) = (WorkerRange { min: 1, max: 4 }, BatchRange { initial: 64, max: 512 });
        let draft = JobDraft {
            scaling: Scaling::Adaptive(workers, batch),
            ends: Ends::Iterations(finishes_after),
            ..JobDraft::rigid("training", 1)
        };
        let speed = Speed { adaptation: Some(Arc::new(adaptation)), ..Speed::constant(1.0) };
        let (iterations, start_up) = (finishes_after, Span::from_millis(400));
        let truth = Truth { speed: speed.clone(), iterations, start_up, course: Some(Arc::new(course)), resize: None };
        let (spec, speed) = (Arc::new(draft.build().unwrap()), Arc::new(speed));
        TrueJob { submitted: Time::from_secs(5), spec, speed, truth: Arc::new(truth) }
    }

    /// The ends of jobs and the facts about them, if reports come every second, on two kinds of GPU.
    fn live(jobs: Vec<TrueJob>) -> (Vec<f64>, Vec<Record>) {
        live_on(TWO_KINDS, None, jobs)
    }

    fn live_on(cluster: &str, resize_within: Option<Span>, jobs: Vec<TrueJob>) -> (Vec<f64>, Vec<Record>) {
        let (cluster, queues) = ClusterDraft::parse_short(cluster).unwrap().build().unwrap();
        let report_every = Span::from_secs(1);
        let circumstances = Circumstances { report_every, resize_within, ..Circumstances::default() };
        let settings = Settings { resize_within, ..Settings::default() };
        let setup = Setup { circumstances, settings, ..Setup::new(cluster, queues, jobs) };
        let mut records = Vec::new();
        let policy = PolicyConfig::from_text("sia:round=1s").unwrap();
        let state = play(&setup, &policy, |at, event| records.push(Record { at, event: event.clone() }));
        (ends(&state), records)
    }

    #[test]
    fn trainings_that_reported_their_steps_take_as_long_again_by_their_fitted_models() {
        let (_, _, kinds) = two_kinds();
        let (recorded, records) = live(vec![training(900), training(900), training(2000)]);
        let recording = Recording::of(&records, &kinds).unwrap();
        assert!(recording.assumptions.iter().any(|line| line.contains("fitted to them")));
        assert!(recording.jobs.iter().all(|job| job.truth.course.is_some()));
        let (again, _) = live(recording.jobs);
        for (recorded, again) in recorded.into_iter().zip(again) {
            assert!((again / recorded - 1.0).abs() < 0.15, "at first {recorded} s, then {again} s");
        }
    }

    #[test]
    fn trainings_that_were_resized_in_place_are_again_and_pay_what_they_measured() {
        let (_, _, kinds) = two_kinds();
        let pauses = [300, 500, 700].map(Span::from_millis);
        let resizable = |(index, pause): (u64, Span)| {
            let job = training(1500 + 700 * index);
            let truth = Truth { resize: Some(pause), ..(*job.truth).clone() };
            TrueJob { submitted: Time::from_secs(5 + 20 * index), truth: Arc::new(truth), ..job }
        };
        let jobs: Vec<TrueJob> = (0..).zip(pauses).map(resizable).collect();
        let within = Some(Span::from_secs(30));
        let (recorded, records) = live_on("1x4 fast", within, jobs);
        let done = |run: &Run| records.iter().any(|record| record.event == Event::RunResized { run: *run });
        let first = Run { claim: ClaimId(0), attempt: 1 };
        assert!(done(&first), "the first makes room for the second");
        let recording = Recording::of(&records, &kinds).unwrap();
        assert_eq!(recording.circumstances.resize_within, within);
        assert_eq!(recording.circumstances.report_every, Span::from_secs(1), "as often as was recorded");
        assert_eq!(recording.jobs[0].truth.resize, Some(pauses[0]), "the median of what it measured");
        assert!(recording.shapes[0].len() > 1, "each shape it had was seen: {:?}", recording.shapes[0]);
        let (again, _) = live_on("1x4 fast", within, recording.jobs);
        for (recorded, again) in recorded.into_iter().zip(again) {
            assert!((again / recorded - 1.0).abs() < 0.15, "at first {recorded} s, then {again} s");
        }
    }

    /// The facts about a job that says when it is ready, in seconds of their own; `last` reports and ends it.
    fn told_by_itself(batch: bool, ready: u64, last: u64) -> Vec<Record> {
        let (cluster, queues, _) = two_kinds();
        let job = training(300);
        let speed = if batch { job.speed.clone() } else { Arc::new(Speed::constant(1.0)) };
        let spec = if batch {
            Arc::new(JobDraft { ends: Ends::Itself, ..(**job.spec).clone() }.build().unwrap())
        } else {
            Arc::new(JobDraft::rigid("plain", 1).build().unwrap())
        };
        let job = TrueJob { submitted: Time::ZERO, spec, speed, truth: Arc::new(Truth::lasting(Span::from_secs(60))) };
        let mut records = Vec::new();
        let setup = Setup::new(cluster, queues, vec![job]);
        play(&setup, &PolicyConfig::from_text("sia:round=1s").unwrap(), |at, event| {
            let own = matches!(event, Event::RunProgressed { .. } | Event::Refitted { .. } | Event::RunFinished { .. });
            let retuned = matches!(event, Event::Issued(Command::Retune { .. } | Command::Stop { .. }));
            let later = at > Time::from_secs(1);
            if !own && !retuned && !later {
                records.push(Record { at, event: event.clone() });
            }
        });
        let run = Run { claim: ClaimId(0), attempt: 1 };
        let steps = |step_secs: f64| {
            let (nodes, replicas, local_batch) = (1, 1, 64);
            perf::Observation { nodes, replicas, local_batch, accumulation_secs: step_secs, step_secs }
        };
        let report = |done, steps| perf::StepReport { done, steps, ..perf::StepReport::default() };
        let mut say = |secs, event| records.push(Record { at: Time::from_secs(secs), event });
        say(ready, Event::RunProgressed { run, report: report(0, None) });
        say(ready + 1, Event::RunProgressed { run, report: report(10, Some(steps(0.1))) });
        say(last, Event::RunProgressed { run, report: report(200, Some(steps(0.1))) });
        say(last + 2, Event::RunFinished { run });
        records
    }

    fn seconds_alone(job: &TrueJob) -> f64 {
        let (cluster, _, _) = two_kinds();
        world::isolated(job, Some(GpuKind(0)), 1, &cluster).unwrap().as_secs_f64()
    }

    #[test]
    fn a_job_that_says_when_it_is_ready_was_starting_until_then() {
        let recording = Recording::of(&told_by_itself(false, 8, 38), &KindSpeeds::new()).unwrap();
        let job = &recording.jobs[0];
        assert!((7_000..=8_000).contains(&job.truth.start_up.as_millis()), "{:?}", job.truth.start_up);
        assert_eq!(job.spec.recovery.restart_cost, job.truth.start_up, "nothing else is known of a restart");
        assert!((seconds_alone(job) - 32.0).abs() < 0.5, "it ran from then to its end");
    }

    #[test]
    fn by_its_model_a_job_takes_what_its_steps_take_however_long_it_ran() {
        for batch in [false, true] {
            for last in [38, 90] {
                let records = told_by_itself(batch, 8, last);
                let recording = Recording::at_pace(&records, &KindSpeeds::new(), Pace::Modelled).unwrap();
                let alone = seconds_alone(&recording.jobs[0]);
                assert!((alone - 20.0).abs() < 0.5, "200 steps of a tenth of a second: {alone} s");
                let start_up = recording.jobs[0].truth.start_up.as_millis();
                assert!((9_000..=10_000).contains(&start_up), "with the two seconds after the last step: {start_up}");
            }
        }
    }

    #[test]
    fn where_only_the_time_of_a_job_is_known_its_kind_of_gpu_says_what_it_was_worth() {
        let (_, _, kinds) = two_kinds();
        let plain = |kind: u16| TrueJob {
            submitted: Time::ZERO,
            spec: Arc::new(JobDraft { kinds: vec![GpuKind(kind)], ..JobDraft::rigid("plain", 1) }.build().unwrap()),
            speed: Arc::new(Speed::constant(1.0)),
            truth: Arc::new(Truth::lasting(Span::from_secs(20))),
        };
        let (recorded, records) = live(vec![plain(0), plain(1)]);
        let recording = Recording::of(&records, &kinds).unwrap();
        let (again, _) = live(recording.jobs.clone());
        assert_eq!(recorded, again, "where it ran it takes as long");
        let work = |job: &TrueJob| job.truth.iterations;
        assert_eq!(work(&recording.jobs[0]), 10 * work(&recording.jobs[1]), "a tenth of the work on the slow kind");
    }

    #[test]
    fn a_history_that_began_at_some_moment_begins_again_in_the_first_minute() {
        let (_, records) = live(vec![training(300)]);
        let later = Span::from_hours(500_000);
        let moved: Vec<Record> =
            records.iter().map(|record| Record { at: record.at + later, event: record.event.clone() }).collect();
        let submitted = |records: &[Record]| Recording::of(records, &KindSpeeds::new()).unwrap().jobs[0].submitted;
        assert_eq!(submitted(&records), submitted(&moved));
        let by_seconds: Vec<Record> =
            moved.into_iter().map(|r| Record { at: r.at + Span::from_secs(67), ..r }).collect();
        assert_eq!(submitted(&by_seconds), submitted(&records) + Span::from_secs(7), "rounds come when they came");
    }

    #[test]
    fn a_journal_that_is_none_says_where() {
        let error = |text: &str| Recording::read(text.as_bytes()).unwrap_err().to_string();
        assert!(error("").contains("found nothing"));
        assert!(error("{\"at\":0}\n").starts_with("line 1: expected a fact of a journal"));
        let (_, journal) = record(&setup(), &PolicyConfig::named("fifo"));
        let cut = &journal[..journal.len() - 20];
        let last = journal.lines().count();
        assert!(error(cut).starts_with(&format!("line {last}: ")), "{}", error(cut));
        let without_beginning: String = journal.lines().skip(1).map(|line| format!("{line}\n")).collect();
        assert!(error(&without_beginning).contains("found another fact"));
    }
}
