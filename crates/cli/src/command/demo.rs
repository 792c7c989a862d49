//! `moira demo`: within a minute, what Moira does. Live, with real jobs on this machine made into a small cluster of two
//! kinds of accelerators; or simulated, how schedulers differ on a large one.

mod history;
mod live;
mod outcome;
mod screen;
mod simulated;
mod workload;

use clap::Args;

use crate::failure::Failure;
use crate::options::Output;
use crate::render::Files;

#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// Simulate a day on a large cluster under many policies, instead of running jobs here
    #[arg(long)]
    sim: bool,
    /// With --sim: a seed, or a range of seeds with both ends included
    #[arg(long, default_value = "1..3", value_name = "A..B", requires = "sim")]
    seeds: String,
    /// With --sim: how the comparison is printed
    #[arg(short, long, value_enum, default_value_t, requires = "sim")]
    output: Output,
    #[command(flatten)]
    files: Files,
    /// Only so many of the jobs
    #[arg(long, hide = true, default_value_t = workload::JOBS, conflicts_with = "sim")]
    jobs: usize,
    /// Jobs of so many times the usual length
    #[arg(long, hide = true, default_value_t = 1.0, conflicts_with = "sim")]
    scale: f64,
}

impl Demo {
    pub(crate) fn run(self) -> Result<(), Failure> {
        if self.sim {
            return simulated::run(&self.seeds, self.output, &self.files);
        }
        if !(self.scale > 0.0 && self.scale <= 1000.0) {
            return Err(Failure::usage("--scale: expected a number above 0 and up to 1000"));
        }
        live::run(&workload::drawn_up(self.jobs, self.scale), &self.files)
    }
}
