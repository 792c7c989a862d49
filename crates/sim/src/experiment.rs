//! Policies × seeds on one workload, in parallel, with the same result for any number of threads.

use std::sync::Arc;

use cluster::{ClaimId, Cluster, GpuKind, Invalid, QueueTree, Time};
use engine::{Event, Settings};
use perf::TrueJob;
use policies::{ConfigError, PolicyConfig};
use rayon::prelude::*;
use report::{Fold, Identity, Report, RunReport};
use trace::Workload;
use world::{Circumstances, isolated};

use crate::simulate::{Setup, simulate};

#[derive(Debug, Clone)]
pub struct Experiment {
    pub cluster_name: String,
    pub cluster: Cluster,
    pub queues: QueueTree,
    pub policies: Vec<PolicyConfig>,
    /// A generator or a file, as `trace` understands it.
    pub workload: String,
    pub seeds: Vec<u64>,
    /// What befalls the cluster; its seed is that of the run.
    pub circumstances: Circumstances,
}

#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    #[error(transparent)]
    Workload(#[from] trace::Error),
    #[error(transparent)]
    Policy(#[from] ConfigError),
    #[error(transparent)]
    Circumstances(#[from] Invalid),
}

impl Experiment {
    /// How many simulations it takes.
    pub fn runs(&self) -> usize {
        self.policies.len() * self.seeds.len()
    }

    /// All runs, policy by policy and seed by seed. `progress` is called after each.
    pub fn run(&self, progress: &(dyn Fn() + Sync)) -> Result<Report, ExperimentError> {
        let workloads: Vec<Arc<Workload>> = self.workloads()?;
        let cells: Vec<(&PolicyConfig, usize)> =
            self.policies.iter().flat_map(|policy| (0..self.seeds.len()).map(move |seed| (policy, seed))).collect();
        let run = |&(policy, seed): &(&PolicyConfig, usize)| {
            let run = self.one(policy, self.seeds[seed], &workloads[seed], |_, _| {});
            progress();
            run
        };
        let runs: Result<Vec<RunReport>, ExperimentError> = cells.par_iter().map(run).collect();
        Ok(self.report(&workloads, runs?))
    }

    /// The first policy with the first seed alone; every fact is shown to `observe`.
    pub fn run_first(&self, observe: impl FnMut(Time, &Event)) -> Result<Report, ExperimentError> {
        let workload = Arc::new(self.load(self.seeds[0])?);
        let run = self.one(&self.policies[0], self.seeds[0], &workload, observe)?;
        Ok(self.report(&[workload], vec![run]))
    }

    fn load(&self, seed: u64) -> Result<Workload, ExperimentError> {
        Ok(trace::load_workload(&self.workload, &self.cluster, &self.queues, seed)?)
    }

    /// The workload of each seed; the same for all if it is read from a file.
    fn workloads(&self) -> Result<Vec<Arc<Workload>>, ExperimentError> {
        if trace::is_file(&self.workload) {
            let workload = Arc::new(self.load(0)?);
            return Ok(vec![workload; self.seeds.len()]);
        }
        self.seeds.par_iter().map(|&seed| self.load(seed).map(Arc::new)).collect()
    }

    fn one(
        &self,
        config: &PolicyConfig,
        seed: u64,
        workload: &Workload,
        mut observe: impl FnMut(Time, &Event),
    ) -> Result<RunReport, ExperimentError> {
        let policy = config.build()?;
        let knows = policy.knows().iter().map(ToString::to_string).collect();
        let setup = Setup {
            cluster: self.cluster.clone(),
            queues: self.queues.clone(),
            jobs: workload.jobs.clone(),
            circumstances: Circumstances { seed, ..self.circumstances.clone() },
            settings: Settings::default(),
        };
        let mut fold = Fold::new();
        simulate(&setup, &config.label(), policy, |at, event| {
            fold.observe(at, event);
            observe(at, event);
        })?;
        let alone = |claim: ClaimId, kind: Option<GpuKind>, workers: u32| {
            let job: &TrueJob = &workload.jobs[claim.0 as usize];
            isolated(job, kind, workers, &self.cluster)
        };
        let identity = Identity { policy: config.label(), workload: workload.name.clone(), seed, knows };
        Ok(fold.finish(identity, &alone))
    }

    fn report(&self, workloads: &[Arc<Workload>], runs: Vec<RunReport>) -> Report {
        let assumptions = workloads.first().map_or_else(Vec::new, |workload| workload.assumptions.clone());
        Report::new(self.cluster_name.clone(), assumptions, runs)
    }
}
