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

/// The classics, from the simplest to those that know more.
const SHOWN: [&str; 8] = [
    "fifo",
    "fifo:backfill=easy",
    "las",
    "tiresias",
    "gittins",
    "srtf:knowledge=estimate",
    "srtf",
    "composed:order=attained,preempt=true,grant=grow",
];

impl Demo {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let scene = Scene {
            cluster: "demo".into(),
            workloads: vec!["demo".into()],
            skip_bad_rows: false,
            world: None,
            threads: None,
            output: self.output,
        };
        let policies = SHOWN.iter().map(|text| options::policy(text)).collect::<Result<Vec<_>, _>>()?;
        let seeds = options::seeds(&self.seeds).map_err(|error| Failure::usage(format!("--seeds: {error}")))?;
        let experiment = sim::experiment(&scene, "demo", &policies, &seeds)?;
        if self.output == Output::Table {
            render::line(&format!(
                "{} policies on a shared cluster of {} GPUs, {} seeds of a day of jobs each\n",
                experiment.policies.len(),
                experiment.cluster.gpus(),
                experiment.seeds.len(),
            ))?;
        }
        let command = render::command_line(["moira", "demo", "--seeds", self.seeds.as_str()]);
        sim::compare(std::slice::from_ref(&experiment), self.output, &self.files, &command)?;
        if self.output == Output::Table {
            render::line("\nNext: moira policy show tiresias · moira sim compare --help")?;
        }
        Ok(())
    }
}
