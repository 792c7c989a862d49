//! The cluster and the jobs of the live demonstration. How much work a job is depends on how fast a core of this machine
//! is, so that the whole takes about a minute everywhere.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use api::{BatchRequest, CheckpointRequest, JobRequest, WorkersRequest};
use executors::AcceleratorDraft;

use crate::command::trainer::Trainer;
use crate::failure::Failure;

/// So many there are.
pub(super) const JOBS: usize = SCRIPT.len();

/// One job, and when it comes.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) arrives: Duration,
    name: &'static str,
    steps: u64,
    hidden: u32,
    sort: Sort,
    seed: usize,
    deadline: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sort {
    /// From one worker to so many, with the batch that is best.
    Adaptive(u32),
    /// Exactly so many workers, and not a word to the scheduler.
    Rigid(u32),
}

/// Name, seconds until it comes, seconds of a whole core it takes, sort.
const SCRIPT: [(&str, f64, f64, Sort); 12] = [
    ("resnet", 0.0, 7.5, Sort::Adaptive(4)),
    ("cifar", 0.5, 3.5, Sort::Adaptive(4)),
    ("export", 1.5, 1.0, Sort::Rigid(1)),
    ("bert", 3.0, 6.0, Sort::Adaptive(4)),
    ("speech", 5.0, 2.5, Sort::Adaptive(2)),
    ("probe", 7.0, 1.2, Sort::Adaptive(4)),
    ("legacy", 8.5, 1.0, Sort::Rigid(2)),
    ("ranker", 10.0, 3.5, Sort::Adaptive(4)),
    ("paper", 12.0, 1.8, Sort::Adaptive(4)),
    ("clip", 14.0, 3.5, Sort::Adaptive(2)),
    ("lint", 16.0, 0.6, Sort::Rigid(1)),
    ("gan", 18.0, 2.5, Sort::Adaptive(4)),
];

/// Who has to be done by then, in seconds after it comes.
const DEADLINE: (&str, f64) = ("paper", 25.0);

/// The batch the trainings are designed for, how far it may grow, and what one worker takes.
const BATCH: BatchRequest = BatchRequest { initial: 64, max: 512, per_gpu: Some([8, 128]) };

/// Processor time of one example.
const EXAMPLE_SECONDS: f64 = 0.0002;

/// Two that are fast and four that are slow; together less than two cores.
pub(super) fn accelerators() -> Vec<AcceleratorDraft> {
    vec![
        AcceleratorDraft { duty: 0.5, ..AcceleratorDraft::of("fast", 2) },
        AcceleratorDraft { duty: 0.12, ..AcceleratorDraft::of("slow", 4) },
    ]
}

/// The first so many jobs, of so many times their usual length on the machine as it is.
pub(super) fn drawn_up(jobs: usize, scale: f64) -> Vec<Part> {
    let units = units_for_an_example();
    let steps = |core_seconds: f64| scale * core_seconds / (EXAMPLE_SECONDS * f64::from(BATCH.initial));
    let part = |(seed, &(name, arrives, core_seconds, sort)): (usize, &(&'static str, f64, f64, Sort))| Part {
        arrives: Duration::from_secs_f64(arrives * scale.min(1.0)),
        name,
        steps: steps(core_seconds).max(1.0) as u64,
        hidden: units,
        sort,
        seed,
        deadline: (name == DEADLINE.0).then(|| Duration::from_secs_f64(DEADLINE.1 * scale.max(1.0))),
    };
    SCRIPT.iter().enumerate().map(part).take(jobs).collect()
}

impl Part {
    /// The job as it is submitted at this moment, in milliseconds since 1970.
    pub(super) fn request(&self, folder: &Path, now_ms: u64) -> Result<JobRequest, Failure> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let words = [
            program.to_string_lossy().into_owned(),
            "trainer".into(),
            format!("--steps={}", self.steps),
            format!("--batch={}", BATCH.initial),
            format!("--hidden={}", self.hidden),
            format!("--seed={}", self.seed),
        ];
        let silent = matches!(self.sort, Sort::Rigid(_)).then(|| "--no-reports".to_string());
        let mut job = JobRequest::new(words.into_iter().chain(silent));
        job.name = Some(self.name.into());
        job.workdir = Some(folder.to_string_lossy().into_owned());
        job.checkpoint = CheckpointRequest {
            grace: Some(api::Duration::from_secs(15)),
            restart_cost: Some(api::Duration::from_secs(1)),
            ..CheckpointRequest::default()
        };
        match self.sort {
            Sort::Adaptive(max) => {
                job.workers = WorkersRequest { min: 1, max, preferred: None };
                job.batch = Some(BATCH);
                job.steps = Some(self.steps);
            }
            Sort::Rigid(workers) => job.workers = WorkersRequest { min: workers, max: workers, preferred: None },
        }
        let by = |after: Duration| i64::try_from(now_ms + after.as_millis() as u64).unwrap_or(i64::MAX);
        job.limits.deadline = self.deadline.map(|after| api::rfc3339(by(after)));
        Ok(job)
    }
}

/// How large a network has to be for an example to take its time on this machine.
fn units_for_an_example() -> u32 {
    const TRIED: usize = 64;
    let seconds = 1.0 / Trainer::examples_per_core_second(TRIED, Duration::from_millis(100));
    (TRIED as f64 * EXAMPLE_SECONDS / seconds).clamp(4.0, 4096.0) as u32
}
