//! `moira sim`: one run, or many compared.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};
use engine::Record;
use indicatif::{ProgressBar, ProgressStyle};
use sim::Experiment;

use crate::failure::Failure;
use crate::options::{self, Scene};
use crate::render;

#[derive(Debug, Subcommand)]
pub(crate) enum Sim {
    /// Simulate one workload under one policy
    Run(Run),
    /// Simulate the same workloads under several policies, over several seeds, and compare
    Compare(Compare),
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The policy: a name from `moira policy ls`, NAME:KEY=VALUE,…, or a TOML file
    #[arg(long, default_value = "tiresias", value_name = "NAME")]
    policy: String,
    /// A parameter of the policy; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    #[command(flatten)]
    scene: Scene,
    /// Decides everything that is drawn at random
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Write every fact of the history to this file, one JSON object a line
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Compare {
    /// A policy: a name, NAME:KEY=VALUE,…, or a TOML file; may be repeated [default: all with their defaults]
    #[arg(long = "policy", value_name = "NAME")]
    policies: Vec<String>,
    /// A parameter, for every policy that has it; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    #[command(flatten)]
    scene: Scene,
    /// A seed, or a range of seeds with both ends included
    #[arg(long, default_value = "1..3", value_name = "A..B")]
    seeds: String,
}

impl Sim {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self {
            Sim::Run(run) => run.run(),
            Sim::Compare(compare) => compare.run(),
        }
    }
}

impl Run {
    fn run(self) -> Result<(), Failure> {
        let mut policies = vec![options::policy(&self.policy)?];
        options::set_parameters(&mut policies, &self.settings)?;
        let experiment = experiment(&self.scene, policies, vec![self.seed])?;
        let report = match &self.journal {
            None => experiment.run(&|| {}).map_err(of_experiment)?,
            Some(path) => {
                let journal = || format!("cannot write the journal {}", path.display());
                let mut file = BufWriter::new(File::create(path).with_context(journal)?);
                let mut trouble = None;
                let report = experiment.run_first(|at, event| {
                    if trouble.is_none() {
                        let record = Record { at, event: event.clone() };
                        let line = serde_json::to_writer(&mut file, &record).map_err(anyhow::Error::from);
                        trouble = line.and_then(|()| Ok(writeln!(file)?)).err();
                    }
                });
                let flushed = trouble.map_or_else(|| file.flush().map_err(anyhow::Error::from), Err);
                flushed.with_context(journal)?;
                report.map_err(of_experiment)?
            }
        };
        render::print(&report, self.scene.output)
    }
}

impl Compare {
    fn run(self) -> Result<(), Failure> {
        let mut policies = match self.policies.is_empty() {
            true => policies::POLICIES.iter().map(|entry| options::policy(entry.name)).collect::<Result<_, _>>()?,
            false => self.policies.iter().map(|text| options::policy(text)).collect::<Result<Vec<_>, _>>()?,
        };
        options::set_parameters(&mut policies, &self.settings)?;
        let seeds = options::seeds(&self.seeds).map_err(|error| Failure::usage(format!("--seeds: {error}")))?;
        compare(&experiment(&self.scene, policies, seeds)?, &self.scene)
    }
}

/// Runs everything under a progress bar, then prints the comparison.
pub(crate) fn compare(experiment: &Experiment, scene: &Scene) -> Result<(), Failure> {
    let bar = ProgressBar::new(experiment.runs() as u64);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} runs, {eta} left").expect("the template is right");
    bar.set_style(style);
    let report = experiment.run(&|| bar.inc(1));
    bar.finish_and_clear();
    render::print(&report.map_err(of_experiment)?, scene.output)
}

pub(crate) fn experiment(
    scene: &Scene,
    policies: Vec<policies::PolicyConfig>,
    seeds: Vec<u64>,
) -> Result<Experiment, Failure> {
    scene.set_threads()?;
    let site = scene.site()?;
    let circumstances = scene.circumstances(&site)?;
    Ok(Experiment {
        cluster_name: site.name,
        cluster: site.cluster,
        queues: site.queues,
        policies,
        workload: scene.workload.clone(),
        seeds,
        circumstances,
    })
}

fn of_experiment(error: sim::ExperimentError) -> Failure {
    match error {
        sim::ExperimentError::Workload(error) => options::of_source(error),
        sim::ExperimentError::Policy(error) => Failure::usage(error),
        error => Failure::new(error),
    }
}
