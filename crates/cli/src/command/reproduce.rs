//! `moira reproduce`: the experiments of a paper again, beside its figures.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, ValueEnum};
use indicatif::ProgressBar;
use sim::reproduce::Paper;

use crate::failure::Failure;
use crate::render;

#[derive(Debug, Args)]
pub(crate) struct Reproduce {
    #[arg(value_enum)]
    paper: Which,
    /// Where the authors' workloads, profiles and results lie
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Write the tables to this file instead of the screen
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Which {
    /// Jayaram Subramanya et al., SOSP 2023
    Sia,
}

impl Reproduce {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let paper = match self.paper {
            Which::Sia => Paper::Sia,
        };
        let experiments = paper.experiments(&self.data).map_err(Failure::new)?;
        let bar = ProgressBar::new(experiments.len() as u64);
        let mut text = String::new();
        for experiment in &experiments {
            text.push_str(&experiment.run().map_err(Failure::new)?.table());
            bar.inc(1);
        }
        bar.finish_and_clear();
        match self.out {
            None => render::line(text.trim_end()),
            Some(path) => {
                fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
                Ok(())
            }
        }
    }
}
