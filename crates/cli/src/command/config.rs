//! The configuration file of the service: looked at without starting anything.

use std::path::PathBuf;

use anyhow::Context;
use clap::Subcommand;
use server::{Config, DEFAULT_POLICY};

use crate::failure::Failure;
use crate::render;

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Say whether a configuration file is right, and if not, what is wrong where
    Check { file: PathBuf },
    /// Print the configuration with all defaults
    Show {
        /// The file; without it, the defaults alone
        file: Option<PathBuf>,
    },
}

impl ConfigCommand {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self {
            ConfigCommand::Check { file } => {
                let config = Config::read(&file).map_err(Failure::new)?;
                config.check().map_err(|message| Failure::new(anyhow::anyhow!("{}: {message}", file.display())))?;
                render::line(&format!("{} is right", file.display()))?;
            }
            ConfigCommand::Show { file } => {
                let mut config =
                    file.map_or_else(|| Ok(Config::default()), |file| Config::read(&file).map_err(Failure::new))?;
                config.policy.get_or_insert_with(|| DEFAULT_POLICY.into());
                let text = toml::to_string(&config).context("cannot write the configuration")?;
                render::line(text.trim_end())?;
            }
        }
        Ok(())
    }
}
