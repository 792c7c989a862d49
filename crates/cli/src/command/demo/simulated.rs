//! `moira demo --sim`: within a minute, how schedulers differ on a shared cluster.

use crate::command::sim;
use crate::failure::Failure;
use crate::options::{self, Output, Scene};
use crate::render::{self, Files};

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

pub(super) fn run(seeds: &str, output: Output, files: &Files) -> Result<(), Failure> {
    let scene = Scene {
        cluster: "demo".into(),
        workloads: vec![WORKLOAD.into()],
        profiles: None,
        skip_bad_rows: false,
        world: None,
        safeguards: plan::Safeguards::NONE,
        threads: None,
        output,
    };
    let policies = SHOWN.iter().map(|text| options::policy(text)).collect::<Result<Vec<_>, _>>()?;
    let command = render::command_line(["moira", "demo", "--sim", "--seeds", seeds]);
    let seeds = options::seeds(seeds).map_err(|error| Failure::usage(format!("--seeds: {error}")))?;
    let experiment = sim::experiment(&scene, WORKLOAD, &policies, &seeds)?;
    if output == Output::Table {
        render::line(&format!(
            "{} policies on a shared cluster of {} GPUs, {} seeds of a day of real trainings each\n",
            experiment.policies.len(),
            experiment.cluster.gpus(),
            experiment.seeds.len(),
        ))?;
    }
    sim::compare(std::slice::from_ref(&experiment), output, files, &command)?;
    if output == Output::Table {
        render::line("\nNext: moira policy show sia · moira sim compare --help")?;
    }
    Ok(())
}
