//! `moira sim`: one run, or many compared.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};
use engine::Record;
use indicatif::{ProgressBar, ProgressStyle};
use policies::PolicyConfig;
use report::{Figure, Report, RunReport};
use sim::Experiment;

use crate::failure::Failure;
use crate::options::{self, Output, Scene};
use crate::render::{self, Files, Kept};

#[derive(Debug, Subcommand)]
pub(crate) enum Sim {
    /// Simulate one workload under one policy
    Run(Run),
    /// Simulate the same workloads under several policies, over several seeds, and compare
    Compare(Compare),
    /// Play a recorded history under another policy
    Rerun(crate::command::rerun::Rerun),
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
    #[command(flatten)]
    files: Files,
}

impl Sim {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self {
            Sim::Run(run) => run.run(),
            Sim::Compare(compare) => compare.run(),
            Sim::Rerun(rerun) => rerun.run(),
        }
    }
}

impl Run {
    fn run(self) -> Result<(), Failure> {
        self.scene.set_threads()?;
        let mut policies = vec![options::policy(&self.policy)?];
        options::set_parameters(&mut policies, &self.settings)?;
        let workloads: Vec<String> = self.scene.workloads().collect();
        let [workload] = &workloads[..] else {
            return Err(Failure::usage("`sim run` takes one --workload; `sim compare` takes several"));
        };
        let experiment = experiment(&self.scene, workload, &policies, &[self.seed])?;
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
        self.scene.set_threads()?;
        let mut policies = match self.policies.is_empty() {
            true => policies::POLICIES.iter().map(|entry| options::policy(entry.name)).collect::<Result<_, _>>()?,
            false => self.policies.iter().map(|text| options::policy(text)).collect::<Result<Vec<_>, _>>()?,
        };
        options::set_parameters(&mut policies, &self.settings)?;
        let seeds = options::seeds(&self.seeds).map_err(|error| Failure::usage(format!("--seeds: {error}")))?;
        let command = self.command(&policies);
        let experiments = self.scene.workloads().map(|workload| experiment(&self.scene, &workload, &policies, &seeds));
        compare(&experiments.collect::<Result<Vec<_>, _>>()?, self.scene.output, &self.files, &command)
    }

    /// What leads to the same runs, every default spelled out: defaults may change.
    fn command(&self, policies: &[PolicyConfig]) -> String {
        let mut words: Vec<String> = ["moira", "sim", "compare"].map(String::from).into();
        let mut option = |name: &str, value: &str| words.extend([format!("--{name}"), value.to_string()]);
        match self.policies.is_empty() {
            true => policies.iter().for_each(|policy| option("policy", &policy.name)),
            false => self.policies.iter().for_each(|policy| option("policy", policy)),
        }
        self.settings.iter().for_each(|setting| option("set", setting));
        option("cluster", &self.scene.cluster);
        self.scene.workloads().for_each(|workload| option("workload", &workload));
        if let Some(world) = &self.scene.world {
            option("world", &world.display().to_string());
        }
        if !self.scene.safeguards.is_none() {
            option("safeguards", &self.scene.safeguards.to_string());
        }
        option("seeds", &self.seeds);
        render::command_line(words)
    }
}

/// Runs everything under a progress bar, then prints the comparison and writes the files that were asked for.
pub(crate) fn compare(experiments: &[Experiment], output: Output, files: &Files, command: &str) -> Result<(), Failure> {
    if experiments.len() > 1 && files.wanted() {
        return Err(Failure::usage("--html and --csv show one workload; leave all but one --workload out"));
    }
    let bar = ProgressBar::new(experiments.iter().map(|experiment| experiment.runs() as u64).sum());
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} runs, {eta} left").expect("the template is right");
    bar.set_style(style);
    let run = |experiment: &Experiment| match files.wanted() {
        false => experiment.run(&|| bar.inc(1)).map(|report| (report, Vec::new())),
        true => {
            let keep = |run: &RunReport, figure: &Figure| files.keep(run, figure, experiment.seeds[0]);
            experiment.run_with_figures(&|| bar.inc(1), &keep)
        }
    };
    let outcomes: Result<Vec<_>, _> = experiments.iter().map(run).collect();
    bar.finish_and_clear();
    let (reports, kept): (Vec<Report>, Vec<Vec<Kept>>) = outcomes.map_err(of_experiment)?.into_iter().unzip();
    let report = Report::joined(reports);
    files.write(&report, kept.into_iter().flatten().collect(), command)?;
    render::print(&report, output)
}

pub(crate) fn experiment(
    scene: &Scene,
    workload: &str,
    policies: &[PolicyConfig],
    seeds: &[u64],
) -> Result<Experiment, Failure> {
    let site = scene.site()?;
    let circumstances = scene.circumstances(&site)?;
    Ok(Experiment {
        cluster_name: site.name,
        cluster: site.cluster,
        queues: site.queues,
        policies: policies.to_vec(),
        workload: workload.into(),
        seeds: seeds.to_vec(),
        circumstances,
        safeguards: scene.safeguards,
    })
}

pub(crate) fn of_experiment(error: sim::ExperimentError) -> Failure {
    match error {
        sim::ExperimentError::Workload(error) => options::of_source(error),
        sim::ExperimentError::Policy(error) => Failure::usage(error),
        error => Failure::new(error),
    }
}
