//! The configuration file of the service: looked at without starting anything.

use std::path::PathBuf;

use anyhow::Context;
use clap::Subcommand;
use server::{Config, DEFAULT_POLICY, journal_path, rehearse};

use crate::failure::Failure;
use crate::render;

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Say whether the service would start with a configuration file on this machine, and if not, what is wrong where
    Check {
        file: PathBuf,
        /// Also with what this data directory holds; without it, with the one that the file lies in, if it does
        #[arg(long, env = "MOIRA_DATA_DIR", value_name = "DIR")]
        data_dir: Option<PathBuf>,
    },
    /// Print the configuration with all defaults
    Show {
        /// The file; without it, the defaults alone
        file: Option<PathBuf>,
    },
}

impl ConfigCommand {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self {
            ConfigCommand::Check { file, data_dir } => {
                let config = Config::read(&file).map_err(Failure::new)?;
                let folder = file.parent().filter(|folder| journal_path(folder).exists()).map(PathBuf::from);
                let data_dir = data_dir.or(folder);
                let remarks = rehearse(config, &file, data_dir.as_deref()).map_err(Failure::new)?;
                remarks.iter().try_for_each(|remark| render::line(remark))?;
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
