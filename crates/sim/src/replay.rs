//! The conformance test of Sia: the authors' recorded choices are imposed round by round, and everything else (progress,
//! batches, epochs, restarts, completion) has to come out as recorded; at every call the policy also says what it would
//! have chosen, whose cost has to be the recorded optimum. What ties are broken how plays no part in it.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex};

use cluster::{ClaimId, Cluster, Shape, Time};
use engine::{Command, Engine, Event};
use perf::Tuning;
use plan::{Claim, Phase, Plan, Policy, Rhythm, Snapshot};
use policies::PolicyConfig;
use policies::sia::{Sia, Weighed};
use serde::Deserialize;
use trace::Workload;
use world::{Circumstances, World};

use crate::experiment::settings;

/// A run as the authors' program recorded it.
#[derive(Debug, Clone, Default)]
pub struct RecordedRun {
    rounds: BTreeMap<Time, BTreeMap<String, RecordedJob>>,
    objectives: BTreeMap<Time, f64>,
}

/// One line of the record: a job after a round.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct RecordedJob {
    sim_time_s: u64,
    name: String,
    gpu: Option<String>,
    nodes: u32,
    gpus: u32,
    local_bsz: Option<u32>,
    accum_steps: Option<u32>,
    epoch: u32,
    progress: f64,
    restarts: Option<u32>,
}

#[derive(Debug, Deserialize)]
struct RecordedCall {
    sim_time_s: u64,
    objective: Option<f64>,
}

/// How far a replay agrees with the record.
#[derive(Debug, Clone, Default)]
pub struct Conformance {
    /// Lines of the record, and how many agree in each respect.
    pub job_rounds: u64,
    pub same_batch: u64,
    pub same_epoch: u64,
    pub same_restarts: u64,
    /// Calls of the policy; in how many the recorded choice costs what was recorded, and in how many our own optimum does.
    pub calls: u64,
    pub same_cost: u64,
    pub same_optimum: u64,
    /// Completion by name of the job.
    pub completed: BTreeMap<String, Time>,
    /// The first few things that differ.
    pub differences: Vec<String>,
}

const DIFFERENCES: usize = 20;

impl RecordedRun {
    /// Reads the two tables of a record.
    pub fn read(state: &Path, objective: &Path) -> Result<RecordedRun, csv::Error> {
        let mut recorded = RecordedRun::default();
        for line in csv::Reader::from_reader(File::open(state)?).deserialize() {
            let job: RecordedJob = line?;
            let round = recorded.rounds.entry(Time::from_secs(job.sim_time_s)).or_default();
            round.insert(job.name.clone(), job);
        }
        for line in csv::Reader::from_reader(File::open(objective)?).deserialize() {
            let call: RecordedCall = line?;
            if let Some(objective) = call.objective {
                recorded.objectives.insert(Time::from_secs(call.sim_time_s), objective);
            }
        }
        Ok(recorded)
    }
}

/// Plays the workload with the recorded choices. `kinds` says how the record calls the kinds of GPU of the cluster.
pub fn replay(
    cluster: &Cluster,
    workload: &Workload,
    recorded: &RecordedRun,
    kinds: &[(&str, &str)],
) -> Result<Conformance, policies::ConfigError> {
    let config = PolicyConfig::from_pairs("sia", &["parity=true"])?;
    let log = Arc::new(Mutex::new(Log::default()));
    let recorded = Arc::new(recorded.clone());
    let kinds = kinds.iter().map(|(ours, theirs)| (theirs.to_string(), ours.to_string())).collect();
    let imposed = Imposed { sia: Sia::new(&config)?, recorded: recorded.clone(), kinds, log: log.clone() };
    let circumstances = Circumstances { whole_seconds: true, free_moves: true, ..Circumstances::default() };
    let mut world = World::new(cluster.clone(), workload.jobs.clone(), &circumstances)
        .expect("a world without faults is a possible one");
    let queues = cluster::QueueTree::single();
    let (mut engine, _) = Engine::new(cluster.clone(), queues, "sia", Box::new(imposed), settings(&config));
    let mut result = Conformance::default();
    let mut round = None;
    // The batch each job goes on with after a round, before anything else happens to it.
    let mut batches: BTreeMap<ClaimId, Option<Tuning>> = BTreeMap::new();
    while let Some((now, batch)) = world.next(engine.next_wakeup()) {
        if let Some(last) = round.filter(|&last| now > last) {
            compare(&engine, last, &recorded, &batches, &mut result);
            round = None;
        }
        let answer = engine.handle(now, batch);
        for event in &answer.events {
            match event {
                Event::Planned(_) => {
                    round = Some(now);
                    batches = engine.state().books().claims().live().map(|claim| (claim.id, claim.tuning)).collect();
                }
                Event::PlanRefused { why } => note(&mut result, format!("{now}: {why}")),
                Event::RunFinished { run } => {
                    let name = engine.state().books().claim(run.claim).spec.name.to_string();
                    result.completed.insert(name, now);
                }
                Event::Issued(command) => {
                    if let Command::Launch { run, tuning, .. } = command {
                        batches.insert(run.claim, *tuning);
                    }
                    world.carry_out(now, command);
                }
                _ => {}
            }
        }
        if world.all_submitted() && engine.state().books().claims().live_count() == 0 {
            break;
        }
    }
    let log = std::mem::take(&mut *log.lock().expect("nobody panics with the log"));
    (result.calls, result.same_cost, result.same_optimum) = (log.calls, log.same_cost, log.same_optimum);
    (result.same_epoch, result.differences) = (log.same_epoch, [log.differences, result.differences].concat());
    Ok(result)
}

/// The batch and the restarts of every job after the decisions of a round.
fn compare(
    engine: &Engine,
    at: Time,
    recorded: &RecordedRun,
    batches: &BTreeMap<ClaimId, Option<Tuning>>,
    result: &mut Conformance,
) {
    let Some(round) = recorded.rounds.get(&at) else { return };
    let books = engine.state().books();
    for claim in books.claims().iter() {
        let Some(job) = round.get(&*claim.spec.name) else { continue };
        result.job_rounds += 1;
        let batch = batches.get(&claim.id).copied().flatten().map(|tuning| (tuning.local, tuning.accumulations));
        let same = job.gpus == 0 || batch == job.local_bsz.zip(job.accum_steps);
        result.same_batch += u64::from(same);
        if !same {
            let expected = job.local_bsz.zip(job.accum_steps);
            note(result, format!("{at} {}: batch {batch:?}, recorded {expected:?}", job.name));
        }
        let moves = books.memory().of(claim.id).map_or(0, |memory| memory[0]) as u32;
        let restarts = claim.progress.launches.checked_sub(1).map(|launches| launches - moves);
        let same = restarts.unwrap_or(0) == job.restarts.unwrap_or(0);
        result.same_restarts += u64::from(same);
        if !same {
            note(result, format!("{at} {}: {restarts:?} restarts, recorded {:?}", job.name, job.restarts));
        }
    }
}

fn note(result: &mut Conformance, what: String) {
    if result.differences.len() < DIFFERENCES {
        result.differences.push(what);
    }
}

#[derive(Debug, Default)]
struct Log {
    calls: u64,
    same_cost: u64,
    same_optimum: u64,
    same_epoch: u64,
    differences: Vec<String>,
}

/// Sia, which is asked, and the record, which is followed.
struct Imposed {
    sia: Sia,
    recorded: Arc<RecordedRun>,
    /// Our names of kinds by theirs.
    kinds: BTreeMap<String, String>,
    log: Arc<Mutex<Log>>,
}

impl Policy for Imposed {
    fn plan(&mut self, snapshot: &Snapshot<'_>) -> Plan {
        let weighed = self.sia.weigh(snapshot);
        let chosen: Vec<Option<Shape>> =
            weighed.claims.iter().map(|&id| self.recorded_shape(snapshot, snapshot.claim(id))).collect();
        self.record(snapshot, &weighed, &chosen);
        self.sia.arrange(snapshot, &Weighed { chosen, ..weighed })
    }

    fn rhythm(&self) -> Rhythm {
        self.sia.rhythm()
    }
}

impl Imposed {
    fn recorded_job(&self, now: Time, claim: &Claim) -> Option<&RecordedJob> {
        self.recorded.rounds.get(&now)?.get(&*claim.spec.name)
    }

    fn recorded_shape(&self, snapshot: &Snapshot<'_>, claim: &Claim) -> Option<Shape> {
        let job = self.recorded_job(snapshot.now, claim).filter(|job| job.gpus > 0)?;
        let kind = snapshot.cluster().kind_named(self.kinds.get(job.gpu.as_ref()?)?)?;
        Some(Shape { kind: Some(kind), workers: job.gpus, nodes: job.nodes })
    }

    fn record(&self, snapshot: &Snapshot<'_>, weighed: &Weighed, chosen: &[Option<Shape>]) {
        let mut log = self.log.lock().expect("nobody panics with the log");
        let now = snapshot.now;
        if weighed.claims.is_empty() {
            return;
        }
        log.calls += 1;
        let Some(&objective) = self.recorded.objectives.get(&now) else {
            log.differences.push(format!("{now}: a call that was not recorded"));
            return;
        };
        let near = |cost: f64| (cost - objective).abs() < 0.005;
        let cost_of = |(costs, shape): (&Vec<(Shape, f64)>, &Option<Shape>)| match shape {
            None => Some(1.1),
            Some(shape) => costs.iter().find(|(open, _)| open == shape).map(|(_, cost)| *cost),
        };
        let cost: Option<f64> = weighed.costs.iter().zip(chosen).map(cost_of).sum();
        log.same_cost += u64::from(cost.is_some_and(near));
        log.same_optimum += u64::from(near(weighed.objective));
        if !(cost.is_some_and(near) && near(weighed.objective)) && log.differences.len() < DIFFERENCES {
            let own = weighed.objective;
            log.differences.push(format!("{now}: recorded {objective:.2}, that choice {cost:?}, our optimum {own:.2}"));
        }
        for &id in &weighed.claims {
            let claim = snapshot.claim(id);
            let Some(job) = self.recorded_job(now, claim) else { continue };
            // Progress is reported in whole iterations, and not while a job starts.
            let same = (claim.progress.epoch, claim.progress.done) == (job.epoch, job.progress as u64)
                || (job.progress - claim.progress.done as f64).abs() < 1.001 && claim.progress.epoch == job.epoch;
            log.same_epoch += u64::from(same);
            if !same && log.differences.len() < DIFFERENCES {
                let (epoch, done) = (claim.progress.epoch, claim.progress.done);
                let pinned = matches!(claim.phase, Phase::Starting { .. });
                let expected = (job.epoch, job.progress);
                log.differences.push(format!("{now} {}: {epoch}, {done} ({pinned}), recorded {expected:?}", job.name));
            }
        }
    }
}
