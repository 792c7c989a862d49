//! A recorded history under another policy: a journal is a workload.
//!
//! What was recorded of a job is how long it ran where. Its work is taken to be what its model says it did in that time,
//! so in the shapes that were recorded it runs again exactly as long; in others the model's word is taken for it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::BufRead;
use std::sync::Arc;

use cluster::{ClaimId, Cluster, JobSpec, QueueTree, Run, Shape, Span, Time};
use engine::{Command, Event, Record};
use perf::{Situation, Speed, TrueJob, Truth};
use plan::{Allotment, Availability};
use policies::PolicyConfig;
use report::{Fold, Report};
use trace::Workload;
use world::{Circumstances, Occurrence, Script, useful_share};

use crate::experiment::{Experiment, ExperimentError};

/// What a journal tells about the jobs in it and about what befell the cluster.
#[derive(Debug)]
pub struct Recording {
    pub cluster: Cluster,
    pub queues: QueueTree,
    /// The policy in force.
    pub policy: String,
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
    #[error("expected a journal that begins with the definition of its cluster, found {found}")]
    NoBeginning { found: &'static str },
}

/// How much of a re-run history is the model's word rather than the record's.
#[derive(Debug, Default)]
pub struct Extrapolation {
    running: BTreeMap<ClaimId, (Time, bool)>,
    launched: BTreeMap<Run, Shape>,
    seen_ms: u64,
    unseen_ms: u64,
}

/// A line longer than this is no line of a journal.
const LONGEST_LINE: u64 = 64 << 20;

impl Recording {
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
            let record: Record = serde_json::from_slice(&text)
                .map_err(|error| fault(format!("expected a fact of a journal: {error}")))?;
            match (&mut reading, record.event) {
                (None, Event::ClusterDefined { cluster, queues }) => reading = Some(Reading::new(*cluster, *queues)),
                (None, _) => return Err(RecordingError::NoBeginning { found: "another fact" }),
                (Some(reading), event) => reading.add(record.at, event).map_err(fault)?,
            }
        }
        reading.map(Reading::conclude).ok_or(RecordingError::NoBeginning { found: "nothing" })
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

/// A journal half read.
struct Reading {
    cluster: Cluster,
    grown: Cluster,
    queues: QueueTree,
    policy: String,
    claims: Vec<Seen>,
    script: Script,
    now: Time,
    crashes: u64,
}

/// One job, as far as it was seen.
struct Seen {
    submitted: Time,
    spec: Arc<JobSpec>,
    speed: Arc<Speed>,
    shapes: BTreeSet<Shape>,
    launch: Option<(Run, Time, Arc<Allotment>)>,
    running_since: Option<Time>,
    start_up: Option<Span>,
    /// Iterations the model says it did, over all runs and in the last one.
    iterations: f64,
    last: f64,
    /// Iterations it reported when it last stopped.
    done: u64,
    finished: bool,
    cancelled: bool,
}

impl Reading {
    fn new(cluster: Cluster, queues: QueueTree) -> Reading {
        let (policy, claims, script) = (String::new(), Vec::new(), Script::default());
        let grown = cluster.clone();
        Reading { cluster, grown, queues, policy, claims, script, now: Time::ZERO, crashes: 0 }
    }

    fn add(&mut self, at: Time, event: Event) -> Result<(), String> {
        if at < self.now {
            return Err(format!("expected facts in order of time, found {at} after {}", self.now));
        }
        self.now = at;
        match event {
            Event::ClusterDefined { .. } => return Err("the cluster is defined a second time".into()),
            Event::PolicyChosen { name } => self.policy = name,
            Event::ClaimSubmitted { claim, spec, speed } | Event::ClaimRefused { claim, spec, speed, .. } => {
                if claim.0 as usize != self.claims.len() {
                    return Err(format!("expected job {}, found job {claim}", self.claims.len()));
                }
                self.claims.push(Seen::new(at, spec, speed));
            }
            Event::ClaimCancelled { claim } => {
                self.seen(claim)?.cancelled = true;
                self.happens(at, Occurrence::Cancel(claim.0));
            }
            Event::ClaimHeld { claim } => self.happens(at, Occurrence::Hold(claim.0)),
            Event::ClaimReleased { claim } => self.happens(at, Occurrence::Release(claim.0)),
            Event::ClaimReprioritised { claim, priority } => {
                self.happens(at, Occurrence::Reprioritise(claim.0, priority));
            }
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
            Event::Issued(Command::Launch { run, allotment, .. }) => {
                self.seen(run.claim)?.launch = Some((run, at, allotment));
            }
            Event::RunStarted { run } => self.seen(run.claim)?.start(at, run),
            Event::RunStopped { run, done } => {
                self.stop(at, run)?;
                self.seen(run.claim)?.done = done;
            }
            Event::RunFailed { run, done, .. } => {
                self.crashes += 1;
                self.stop(at, run)?;
                self.seen(run.claim)?.lose(done);
            }
            Event::RunFinished { run } => {
                self.stop(at, run)?;
                self.seen(run.claim)?.finished = true;
            }
            Event::Issued(Command::Stop { run, .. }) => self.stop(at, run)?,
            Event::RunProgressed { .. } | Event::Refitted { .. } | Event::Issued(Command::Retune { .. }) => {}
            // What was rented came as a node that joined; what was given back goes as one that is removed.
            Event::Issued(Command::Provision { .. }) => {}
            Event::Issued(Command::Release { node }) => {
                self.happens(at, Occurrence::Remove(node));
            }
            // What follows from limits and failures follows again.
            Event::LimitReached { .. } | Event::ClaimRests { .. } | Event::ClaimRested { .. } => {}
            Event::ClaimEnded { .. } | Event::Planned(_) | Event::PlanRefused { .. } => {}
        }
        Ok(())
    }

    fn happens(&mut self, at: Time, occurrence: Occurrence) {
        self.script = std::mem::take(&mut self.script).then(at, occurrence);
    }

    fn seen(&mut self, claim: ClaimId) -> Result<&mut Seen, String> {
        let known = self.claims.len();
        self.claims.get_mut(claim.0 as usize).ok_or(format!("there is no job {claim}, only {known} were submitted"))
    }

    /// The run makes no more progress.
    fn stop(&mut self, at: Time, run: Run) -> Result<(), String> {
        self.seen(run.claim)?;
        self.claims[run.claim.0 as usize].stop(at, run, &self.grown);
        Ok(())
    }

    fn conclude(self) -> Recording {
        let unfinished = self.claims.iter().filter(|seen| !seen.finished && !seen.cancelled && seen.iterations > 0.0);
        let unfinished = unfinished.count();
        let mut assumptions =
            vec!["a job's work is what its model says it did in the time it was recorded to run".to_string()];
        if unfinished > 0 {
            assumptions.push(format!("{unfinished} jobs had not finished: they end where the record does"));
        }
        if self.crashes > 0 {
            assumptions
                .push(format!("{} failed runs are not repeated, except where a node is lost again", self.crashes));
        }
        let shapes = self.claims.iter().map(|seen| seen.shapes.clone()).collect();
        Recording {
            jobs: self.claims.into_iter().map(Seen::job).collect(),
            circumstances: Circumstances { script: self.script, ..Circumstances::default() },
            cluster: self.cluster,
            grown: self.grown,
            queues: self.queues,
            policy: self.policy,
            assumptions,
            shapes,
        }
    }
}

impl Seen {
    fn new(submitted: Time, spec: Arc<JobSpec>, speed: Arc<Speed>) -> Seen {
        Seen {
            submitted,
            spec,
            speed,
            shapes: BTreeSet::new(),
            launch: None,
            running_since: None,
            start_up: None,
            iterations: 0.0,
            last: 0.0,
            done: 0,
            finished: false,
            cancelled: false,
        }
    }

    fn start(&mut self, at: Time, run: Run) {
        if let Some((launched, since, _)) = &self.launch
            && *launched == run
        {
            self.start_up.get_or_insert(at.since(*since));
            self.running_since = Some(at);
        }
    }

    fn stop(&mut self, at: Time, run: Run, cluster: &Cluster) {
        let Some((launched, _, allotment)) = &self.launch else { return };
        if let Some(since) = self.running_since.take_if(|_| *launched == run) {
            let situation = Situation::placed(&self.spec, &allotment.placement, allotment.batch, cluster);
            let rate = self.speed.rate(&situation).unwrap_or(0.0) * useful_share(&self.spec);
            self.last = rate * at.since(since).as_millis() as f64 / 1000.0;
            self.iterations += self.last;
            self.shapes.insert(allotment.placement.shape(cluster));
        }
    }

    /// The last run was lost but for what it had saved: that must not be counted as work.
    fn lose(&mut self, done: u64) {
        let saved = done.saturating_sub(self.done) as f64;
        self.iterations -= (self.last - saved).max(0.0);
        (self.last, self.done) = (0.0, done);
    }

    fn job(self) -> TrueJob {
        let truth = Truth {
            speed: (*self.speed).clone(),
            iterations: (self.iterations.round() as u64).max(1),
            start_up: self.start_up.unwrap_or(Span::ZERO),
            course: None,
        };
        TrueJob { submitted: self.submitted, spec: self.spec, speed: self.speed, truth: Arc::new(truth) }
    }
}

impl Extrapolation {
    /// Follows a re-run history, fact by fact.
    pub fn observe(&mut self, at: Time, event: &Event, recording: &Recording) {
        match event {
            Event::Issued(Command::Launch { run, allotment, .. }) => {
                self.launched.insert(*run, allotment.placement.shape(&recording.grown));
            }
            Event::RunStarted { run } => {
                let shape = self.launched.remove(run);
                let seen = shape.is_some_and(|shape| recording.has_seen(run.claim, shape));
                self.running.insert(run.claim, (at, seen));
            }
            Event::RunStopped { run, .. } | Event::RunFinished { run } | Event::RunFailed { run, .. } => {
                if let Some((since, seen)) = self.running.remove(&run.claim) {
                    let sum = if seen { &mut self.seen_ms } else { &mut self.unseen_ms };
                    *sum += at.since(since).as_millis();
                }
            }
            _ => {}
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
    use cluster::{ClusterDraft, JobDraft, Scaling, WorkerRange};
    use engine::State;
    use perf::{Rates, ScalingLaw};
    use plan::Phase;

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
