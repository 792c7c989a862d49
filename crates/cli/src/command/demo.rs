//! `moira demo`: within a minute, how schedulers differ on a shared cluster.

use clap::Args;

use crate::command::sim;
use crate::failure::Failure;
use crate::options::{self, Output, Scene};
use crate::render::{self, Files};

#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// A seed, or a range of seeds with both ends included
    #[arg(long, default_value = "1..3", value_name = "A..B")]
    seeds: String,
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    files: Files,
}

/// The classics, from the simplest to those that know more, and one that chooses how many GPUs a job gets.
const SHOWN: [&str; 9] = [
    "fifo",
    "fifo:backfill=easy",
    "las",
    "tiresias",
    // Turns as long as those of `las`: a minute is less than the four that ResNet-50 takes to start again.
    "gittins:round=5m",
    "srtf:knowledge=estimate",
    "srtf",
    "composed:order=attained,preempt=true,grant=grow",
    "sia",
];

/// Trainings of the catalogue, so that policies which choose sizes and batches have something to choose.
const WORKLOAD: &str = "training";

impl Demo {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let scene = Scene {
            cluster: "demo".into(),
            workloads: vec![WORKLOAD.into()],
            profiles: None,
            skip_bad_rows: false,
            world: None,
            threads: None,
            output: self.output,
        };
        let policies = SHOWN.iter().map(|text| options::policy(text)).collect::<Result<Vec<_>, _>>()?;
        let seeds = options::seeds(&self.seeds).map_err(|error| Failure::usage(format!("--seeds: {error}")))?;
        let experiment = sim::experiment(&scene, WORKLOAD, &policies, &seeds)?;
        if self.output == Output::Table {
            render::line(&format!(
                "{} policies on a shared cluster of {} GPUs, {} seeds of a day of real trainings each\n",
                experiment.policies.len(),
                experiment.cluster.gpus(),
                experiment.seeds.len(),
            ))?;
        }
        let command = render::command_line(["moira", "demo", "--seeds", self.seeds.as_str()]);
        sim::compare(std::slice::from_ref(&experiment), self.output, &self.files, &command)?;
        if self.output == Output::Table {
            render::line("\nNext: moira policy show sia · moira sim compare --help")?;
        }
        Ok(())
    }
}
