//! `moira sim rerun`: a recorded history under other policies.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use sim::Recording;

use crate::command::sim::of_experiment;
use crate::failure::Failure;
use crate::options::{self, Output};
use crate::render;

#[derive(Debug, Args)]
pub(crate) struct Rerun {
    /// A journal as `moira sim run --journal` writes it
    #[arg(value_name = "JOURNAL")]
    journal: PathBuf,
    /// A policy: a name, NAME:KEY=VALUE,…, or a TOML file; may be repeated
    #[arg(long = "policy", value_name = "NAME", required = true)]
    policies: Vec<String>,
    /// A parameter, for every policy that has it; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

impl Rerun {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let mut policies = self.policies.iter().map(|text| options::policy(text)).collect::<Result<Vec<_>, _>>()?;
        options::set_parameters(&mut policies, &self.settings)?;
        let name = self.journal.display().to_string();
        let file = File::open(&self.journal).with_context(|| format!("cannot read {name}"))?;
        let recording = Recording::read(BufReader::new(file)).with_context(|| name.clone())?;
        render::print(&recording.rerun(&name, policies).map_err(of_experiment)?, self.output)
    }
}
