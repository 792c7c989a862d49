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
        /// The data directory of the service; without it, the one that the file lies in, or else that of `moira serve`
        #[arg(long, env = "MOIRA_DATA_DIR", value_name = "DIR")]
        data_dir: Option<PathBuf>,
    },
    /// Print the configuration with all defaults
    Show {
        /// The file; without it, the defaults alone
        file: Option<PathBuf>,
    },
}

/// Where `moira serve` would keep everything if nothing is said, which is said here.
fn usual_data_dir() -> Result<PathBuf, Failure> {
    let nowhere = "there is no home directory: say with --data-dir where the service would be";
    let data_dir = api::default_data_dir().ok_or_else(|| Failure::usage(nowhere))?;
    render::line(&format!("as `moira serve` would start in {}; --data-dir names another", data_dir.display()))?;
    Ok(data_dir)
}

impl ConfigCommand {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self {
            ConfigCommand::Check { file, data_dir } => {
                let config = Config::read(&file).map_err(Failure::new)?;
                let folder = file.parent().filter(|folder| journal_path(folder).exists()).map(PathBuf::from);
                let data_dir = match data_dir.or(folder) {
                    Some(data_dir) => data_dir,
                    None => usual_data_dir()?,
                };
                let data_dir = std::path::absolute(&data_dir).with_context(|| data_dir.display().to_string())?;
                let remarks = rehearse(config, &file, &data_dir).map_err(Failure::new)?;
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
