//! Removes run directories that are no longer to be kept. The service does the same by itself; this is for a look, and
//! for when no service runs.

use std::path::PathBuf;

use clap::Args;
use server::Config;

use crate::command::serve::DataDir;
use crate::failure::Failure;
use crate::render;

#[derive(Debug, Args)]
pub(crate) struct Gc {
    #[command(flatten)]
    data_dir: DataDir,
    /// A TOML file; `moira.toml` in the data directory if there is one
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Only say what would be removed
    #[arg(long)]
    dry_run: bool,
}

impl Gc {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let data_dir = self.data_dir.path()?;
        let beside = data_dir.join("moira.toml");
        let file = self.config.or_else(|| beside.exists().then_some(beside));
        let config = file.map_or_else(|| Ok(Config::default()), |file| Config::read(&file)).map_err(Failure::new)?;
        let runs = server::removable_runs(&data_dir, &config.retention).map_err(Failure::new)?;
        for run in &runs {
            let (claim, attempt, bytes) = (run.run.claim, run.run.attempt, run.bytes);
            if !self.dry_run {
                run.remove(&data_dir).map_err(Failure::new)?;
            }
            let done = if self.dry_run { "would go" } else { "is removed" };
            render::line(&format!("done/{claim}.{attempt} {done}: {bytes} bytes"))?;
        }
        let bytes: u64 = runs.iter().map(|run| run.bytes).sum();
        render::line(&format!("{} runs, {bytes} bytes; checkpoints and archives stay", runs.len()))
    }
}
