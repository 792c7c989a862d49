//! The authors' experiments again: their workloads under our policies, beside what their papers print and what their
//! programs were measured to give.

mod pollux;
mod sia;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use cluster::{ClaimId, Cluster, GpuTime, NodeDraft, QueueTree, Shape, Span, Time};
use engine::{Command, Event};
use perf::TrueJob;
use policies::PolicyConfig;
use rayon::prelude::*;
use serde::Deserialize;
use world::{Circumstances, Cloud};

use crate::experiment::{ExperimentError, circumstances, settings};
use crate::simulate::{Setup, simulate};

/// What the papers tell about a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Completion times in seconds, ascending.
    pub completion_s: Vec<f64>,
    pub makespan_s: f64,
    pub gpu_hours_per_job: f64,
    /// Changes of the shape after the first start. A move to other GPUs in the same shape at the same moment is none.
    pub restarts_per_job: f64,
    /// Jobs that had come and not gone, averaged over time while there were any.
    pub contention: f64,
    /// Nodes there were, times hours, from the first submission to the last end.
    pub node_hours: f64,
}

/// One experiment: some workloads of the authors under one policy.
#[derive(Debug, Clone)]
pub struct Experiment {
    /// What it is called in the table.
    pub title: String,
    pub policy: PolicyConfig,
    pub cluster: &'static str,
    /// Nodes of four T4 that can be rented, and how long that takes.
    pub rents_after: Option<Span>,
    /// Only the first job whose name begins so, alone.
    pub only: Option<&'static str>,
    pub workloads: Vec<String>,
    /// As printed in the paper.
    pub paper: Option<Figures>,
    /// As measured of the authors' program on the same workloads.
    pub program: Option<Figures>,
}

/// One line of a table, in hours where it is a time. What is not known is left out.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Figures {
    pub mean_h: Option<f64>,
    pub p99_h: Option<f64>,
    pub makespan_h: Option<f64>,
    pub gpu_hours: Option<f64>,
    pub restarts: Option<f64>,
    pub node_hours: Option<f64>,
}

#[derive(Debug, thiserror::Error)]
pub enum ReproduceError {
    #[error("cannot read {file}: {why}")]
    Data { file: String, why: String },
    #[error("{0} has none of the workloads of this paper")]
    NoWorkloads(String),
    #[error(transparent)]
    Experiment(#[from] ExperimentError),
}

/// The papers whose experiments can be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paper {
    Sia,
    Pollux,
}

impl Paper {
    /// Its experiments, as far as the data for them is there.
    pub fn experiments(self, data: &Path) -> Result<Vec<Experiment>, ReproduceError> {
        match self {
            Paper::Sia => sia::experiments(data),
            Paper::Pollux => pollux::experiments(data),
        }
    }
}

/// Plays jobs under a policy and takes the papers' figures.
pub fn measure(
    cluster: &Cluster,
    queues: &QueueTree,
    jobs: Vec<TrueJob>,
    config: &PolicyConfig,
    cloud: Option<Cloud>,
) -> Result<Measured, ExperimentError> {
    let setup = Setup {
        circumstances: Circumstances { cloud, ..circumstances(config, &Circumstances::default()) },
        settings: settings(config),
        ..Setup::new(cluster.clone(), queues.clone(), jobs)
    };
    let mut ledger = Ledger::new(cluster);
    let state = simulate(&setup, &config.label(), config.build()?, |at, event| ledger.observe(at, event))?;
    let held: GpuTime = state.books().claims().iter().map(|claim| claim.attained(state.now())).sum();
    Ok(ledger.conclude(held))
}

/// Who came and went, and how often each was cut to another shape.
#[derive(Debug)]
struct Ledger {
    /// As it has grown.
    cluster: Cluster,
    nodes: u64,
    node_ms: u64,
    submitted: BTreeMap<ClaimId, Time>,
    finished: BTreeMap<ClaimId, Time>,
    /// The last shape of each job, and when it let go of it.
    shapes: BTreeMap<ClaimId, (Shape, Option<Time>)>,
    restarts: u64,
    present: u64,
    since: Time,
    busy_ms: u64,
    present_ms: u64,
}

impl Ledger {
    fn new(cluster: &Cluster) -> Ledger {
        Ledger {
            cluster: cluster.clone(),
            nodes: cluster.node_count() as u64,
            node_ms: 0,
            submitted: BTreeMap::new(),
            finished: BTreeMap::new(),
            shapes: BTreeMap::new(),
            restarts: 0,
            present: 0,
            since: Time::ZERO,
            busy_ms: 0,
            present_ms: 0,
        }
    }

    fn observe(&mut self, at: Time, event: &Event) {
        match event {
            Event::NodeJoined { node, kinds } => {
                self.pass(at);
                let added = self.cluster.add(node, kinds).expect("what joined was examined");
                self.nodes += added.len() as u64;
            }
            Event::Issued(Command::Release { .. }) => {
                self.pass(at);
                self.nodes -= 1;
            }
            Event::ClaimSubmitted { claim, .. } => {
                self.pass(at);
                self.present += 1;
                self.submitted.insert(*claim, at);
            }
            Event::RunFinished { run } => {
                self.pass(at);
                self.present -= 1;
                self.finished.insert(run.claim, at);
            }
            Event::RunStopped { run, .. } | Event::RunFailed { run, .. } => {
                if let Some((_, left)) = self.shapes.get_mut(&run.claim) {
                    *left = Some(at);
                }
            }
            Event::Issued(Command::Launch { run, allotment, .. }) => {
                let shape = allotment.placement.shape(&self.cluster);
                if let Some((last, left)) = self.shapes.insert(run.claim, (shape, None)) {
                    self.restarts += u64::from(last != shape || left != Some(at));
                }
            }
            _ => {}
        }
    }

    fn pass(&mut self, at: Time) {
        let passed = at.since(self.since).as_millis();
        self.busy_ms += if self.present > 0 { passed } else { 0 };
        self.present_ms += self.present * passed;
        self.node_ms += if self.submitted.is_empty() { 0 } else { self.nodes * passed };
        self.since = at;
    }

    fn conclude(self, held: GpuTime) -> Measured {
        let lived = |(claim, end): (&ClaimId, &Time)| end.since(self.submitted[claim]).as_secs_f64();
        let mut completion_s: Vec<f64> = self.finished.iter().map(lived).collect();
        completion_s.sort_by(f64::total_cmp);
        let jobs = completion_s.len().max(1) as f64;
        let first = self.submitted.values().min().copied().unwrap_or(Time::ZERO);
        let last = self.finished.values().max().copied().unwrap_or(first);
        Measured {
            completion_s,
            makespan_s: last.since(first).as_secs_f64(),
            gpu_hours_per_job: held.as_gpu_hours() / jobs,
            restarts_per_job: self.restarts as f64 / jobs,
            contention: self.present_ms as f64 / self.busy_ms.max(1) as f64,
            node_hours: self.node_ms as f64 / 3.6e6,
        }
    }
}

impl Measured {
    pub fn mean_s(&self) -> f64 {
        self.completion_s.iter().sum::<f64>() / self.completion_s.len().max(1) as f64
    }
}

impl Figures {
    /// Means over several runs; the 99th percentile over all their jobs together.
    pub fn of(runs: &[Measured]) -> Figures {
        let count = runs.len().max(1) as f64;
        let mean = |of: &dyn Fn(&Measured) -> f64| Some(runs.iter().map(of).sum::<f64>() / count);
        let mut all: Vec<f64> = runs.iter().flat_map(|run| run.completion_s.iter().copied()).collect();
        all.sort_by(f64::total_cmp);
        let p99 = all.get((0.99 * all.len() as f64) as usize).copied();
        Figures {
            mean_h: mean(&|run| run.mean_s() / 3600.0),
            p99_h: p99.map(|seconds| seconds / 3600.0),
            makespan_h: mean(&|run| run.makespan_s / 3600.0),
            gpu_hours: mean(&|run| run.gpu_hours_per_job),
            restarts: mean(&|run| run.restarts_per_job),
            node_hours: mean(&|run| run.node_hours),
        }
    }

    fn cells(&self) -> [Option<f64>; 6] {
        [self.mean_h, self.p99_h, self.makespan_h, self.gpu_hours, self.restarts, self.node_hours]
    }
}

const NAMES: [&str; 6] =
    ["mean completion [h]", "p99 [h]", "makespan [h]", "GPU hours per job", "restarts per job", "node hours"];

/// What came of an experiment.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub experiment: Experiment,
    pub runs: Vec<Measured>,
}

impl Experiment {
    /// Plays all its workloads.
    pub fn run(&self) -> Result<Outcome, ReproduceError> {
        let (cluster, queues, _) = trace::load_cluster(self.cluster).map_err(ExperimentError::from)?;
        let play = |workload: &String| {
            let mut jobs = trace::load_workload(workload, &cluster, &queues, 1)?.jobs;
            if let Some(only) = self.only {
                jobs.retain(|job| job.spec.name.starts_with(only));
                jobs.truncate(1);
            }
            measure(&cluster, &queues, jobs, &self.policy, self.rents_after.map(cloud))
        };
        let runs = self.workloads.par_iter().map(play).collect::<Result<Vec<_>, _>>()?;
        Ok(Outcome { experiment: self.clone(), runs })
    }
}

/// Nodes as Amazon's g4dn.12xlarge, on which the profiles of Pollux were measured.
fn cloud(delay: Span) -> Cloud {
    let node = NodeDraft { name: "rented".into(), kind: Some("t4".into()), gpus: 4, ..NodeDraft::default() };
    Cloud { node, delay }
}

impl Outcome {
    pub fn ours(&self) -> Figures {
        Figures::of(&self.runs)
    }

    /// The experiment as a table: a line for each figure, and for each what the paper prints, what the authors' program
    /// gives, and what ours does.
    pub fn table(&self) -> String {
        let experiment = &self.experiment;
        let mut text = format!("### {}\n\n", experiment.title);
        let names: Vec<&str> = experiment.workloads.iter().map(|workload| file_name(workload)).collect();
        let _ = writeln!(
            text,
            "Policy `{}` on `{}`; {}.\n",
            experiment.policy.label(),
            experiment.cluster,
            names.join(", ")
        );
        text.push_str("| figure | paper | authors' program | ours | deviation |\n|---|---|---|---|---|\n");
        let (paper, program) = (experiment.paper.unwrap_or_default(), experiment.program.unwrap_or_default());
        let cells = paper.cells().into_iter().zip(program.cells()).zip(self.ours().cells());
        for (name, ((paper, program), ours)) in NAMES.iter().zip(cells) {
            let show = |value: Option<f64>| value.map_or("–".to_string(), |value| format!("{value:.3}"));
            let deviation =
                program.or(paper).zip(ours).map(|(theirs, ours)| format!("{:+.1} %", (ours / theirs - 1.0) * 100.0));
            let deviation = deviation.unwrap_or("–".into());
            let _ = writeln!(text, "| {name} | {} | {} | {} | {deviation} |", show(paper), show(program), show(ours));
        }
        text.push('\n');
        text
    }
}

fn file_name(workload: &str) -> &str {
    let path = workload.split('?').next().unwrap_or(workload);
    path.rsplit('/').next().unwrap_or(path)
}

/// The mean completion time in a summary of the authors' program.
pub fn mean_completion_s(summary: &Path) -> Result<f64, ReproduceError> {
    #[derive(Deserialize)]
    struct Summary {
        avg_jct_s: f64,
    }
    Ok(parse::<Summary>(summary)?.avg_jct_s)
}

/// Workloads of a folder that are there, by number.
pub(crate) fn workloads(folder: &Path, numbers: std::ops::RangeInclusive<u32>) -> Vec<PathBuf> {
    let path = |number| folder.join(format!("workload-{number}.csv"));
    numbers.map(path).filter(|path| path.exists()).collect()
}

pub(crate) fn read(path: &Path) -> Result<String, ReproduceError> {
    fs::read_to_string(path)
        .map_err(|error| ReproduceError::Data { file: path.display().to_string(), why: error.to_string() })
}

pub(crate) fn parse<T: for<'d> Deserialize<'d>>(path: &Path) -> Result<T, ReproduceError> {
    serde_json::from_str(&read(path)?)
        .map_err(|error| ReproduceError::Data { file: path.display().to_string(), why: error.to_string() })
}
