//! Policies × seeds on one workload, in parallel, with the same result for any number of threads.

use std::sync::Arc;

use cluster::{ClaimId, Cluster, GpuKind, Invalid, QueueTree, Span, Time};
use engine::{Event, Settings};
use perf::{Search, TrueJob};
use plan::Safeguards;
use policies::{ConfigError, PolicyConfig};
use rayon::prelude::*;
use report::{Figure, FigureFold, Fold, Identity, Report, RunReport};
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
    /// The rules that hold around every policy; none, to see policies as they were published.
    pub safeguards: Safeguards,
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

/// How the engine runs under a policy.
pub(crate) fn settings(config: &PolicyConfig) -> Settings {
    let usual = Settings::default();
    // The jobs of Pollux' and Sia's simulators always take the best batch they know of, by models fitted loosely.
    if config.parity() { Settings { worth_retuning: 0.0, search: Search::AsPublished, ..usual } } else { usual }
}

/// The world in which a policy runs: as given, but for what the simulator of its authors does otherwise.
pub(crate) fn circumstances(config: &PolicyConfig, given: &Circumstances) -> Circumstances {
    Circumstances {
        whole_seconds: config.parity(),
        free_moves: config.moves_are_free(),
        most_workers_first: config.takes_emptiest_nodes(),
        ..given.clone()
    }
}

impl Experiment {
    /// How many simulations it takes.
    pub fn runs(&self) -> usize {
        self.policies.len() * self.seeds.len()
    }

    /// All runs, policy by policy and seed by seed. `progress` is called after each.
    pub fn run(&self, progress: &(dyn Fn() + Sync)) -> Result<Report, ExperimentError> {
        let workloads = self.workloads()?;
        let runs = self.each(|policy, seed| {
            let (run, _) = self.one(policy, self.seeds[seed], &workloads[seed], |_, _, _| {})?;
            progress();
            Ok(run)
        })?;
        Ok(self.report(&workloads, runs))
    }

    /// The same, and what `keep` makes of the figure of each run.
    pub fn run_with_figures<T: Send>(
        &self,
        progress: &(dyn Fn() + Sync),
        keep: &(dyn Fn(&RunReport, &Figure) -> T + Sync),
    ) -> Result<(Report, Vec<T>), ExperimentError> {
        let workloads = self.workloads()?;
        let runs = self.each(|policy, seed| {
            let (workload, mut figure) = (&workloads[seed], FigureFold::new());
            let observe = |at: Time, event: &Event, fold: &Fold| figure.observe(at, event, fold);
            let (run, fold) = self.one(policy, self.seeds[seed], workload, observe)?;
            let kept = keep(&run, &figure.finish(&fold, &self.alone(workload)));
            progress();
            Ok((run, kept))
        })?;
        let (runs, kept) = runs.into_iter().unzip();
        Ok((self.report(&workloads, runs), kept))
    }

    /// The first policy with the first seed alone; every fact is shown to `observe`.
    pub fn run_first(&self, mut observe: impl FnMut(Time, &Event)) -> Result<Report, ExperimentError> {
        let workload = Arc::new(self.load(self.seeds[0])?);
        let observe = |at: Time, event: &Event, _: &Fold| observe(at, event);
        let (run, _) = self.one(&self.policies[0], self.seeds[0], &workload, observe)?;
        Ok(self.report(&[workload], vec![run]))
    }

    /// Policy by policy and, by their position, seed by seed.
    fn each<T: Send>(
        &self,
        run: impl Fn(&PolicyConfig, usize) -> Result<T, ExperimentError> + Sync,
    ) -> Result<Vec<T>, ExperimentError> {
        let cells: Vec<(&PolicyConfig, usize)> =
            self.policies.iter().flat_map(|policy| (0..self.seeds.len()).map(move |seed| (policy, seed))).collect();
        cells.par_iter().map(|&(policy, seed)| run(policy, seed)).collect()
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

    /// Every fact is shown to `observe`, with the fold that has seen it too.
    pub(crate) fn one(
        &self,
        config: &PolicyConfig,
        seed: u64,
        workload: &Workload,
        mut observe: impl FnMut(Time, &Event, &Fold),
    ) -> Result<(RunReport, Fold), ExperimentError> {
        let policy = config.build()?;
        let knows = policy.knows().iter().map(ToString::to_string).collect();
        let setup = Setup {
            cluster: self.cluster.clone(),
            queues: self.queues.clone(),
            jobs: workload.jobs.clone(),
            circumstances: Circumstances { seed, ..circumstances(config, &self.circumstances) },
            settings: Settings {
                resize_within: self.circumstances.resize_within,
                safeguards: self.safeguards,
                ..settings(config)
            },
        };
        let mut fold = Fold::new();
        simulate(&setup, &config.label(), policy, |at, event| {
            fold.observe(at, event);
            observe(at, event, &fold);
        })?;
        let identity = Identity { policy: config.label(), workload: workload.name.clone(), seed, knows };
        Ok((fold.finish(identity, &self.alone(workload)), fold))
    }

    /// How long a job of the workload takes alone.
    fn alone(&self, workload: &Workload) -> impl Fn(ClaimId, Option<GpuKind>, u32) -> Option<Span> {
        |claim, kind, workers| {
            let job: &TrueJob = &workload.jobs[claim.0 as usize];
            isolated(job, kind, workers, &self.cluster)
        }
    }

    fn report(&self, workloads: &[Arc<Workload>], runs: Vec<RunReport>) -> Report {
        let assumptions = workloads.first().map_or_else(Vec::new, |workload| workload.assumptions.clone());
        Report::new(self.cluster_name.clone(), assumptions, runs)
    }
}
