//! What a worker finds in its environment: torchrun's variables and Moira's. Without any it is alone.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::SystemTime;

use anyhow::{Context, anyhow, ensure};
use serde::Deserialize;

#[derive(Debug)]
pub(super) struct Surroundings {
    pub(super) rank: u32,
    pub(super) workers: u32,
    /// Where rank 0 listens.
    pub(super) master: String,
    pub(super) attempt: Option<String>,
    pub(super) progress_file: Option<PathBuf>,
    pub(super) checkpoint_dir: Option<PathBuf>,
    tuning_file: Option<PathBuf>,
    /// What was read of it last, and when it was written.
    read: Option<SystemTime>,
}

/// How a step is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(super) struct Tuning {
    /// Examples one worker takes at a time.
    #[serde(rename = "local_batch")]
    pub(super) local: u32,
    /// Passes before the last one of a step.
    #[serde(rename = "accumulation")]
    pub(super) accumulations: u32,
}

impl Surroundings {
    pub(super) fn find() -> anyhow::Result<Surroundings> {
        let rank = variable("RANK")?.unwrap_or(0);
        let workers = variable("WORLD_SIZE")?.unwrap_or(1);
        ensure!(rank < workers, "expected a RANK below WORLD_SIZE, found {rank} of {workers}");
        let address: String = variable("MASTER_ADDR")?.unwrap_or_else(|| "127.0.0.1".into());
        let port: u16 = variable("MASTER_PORT")?.unwrap_or(0);
        ensure!(workers == 1 || port != 0, "expected a MASTER_PORT by which {workers} workers find each other");
        Ok(Surroundings {
            rank,
            workers,
            master: format!("{address}:{port}"),
            attempt: variable("MOIRA_ATTEMPT")?,
            progress_file: variable("MOIRA_PROGRESS_FILE")?,
            checkpoint_dir: variable("MOIRA_CHECKPOINT_DIR")?,
            tuning_file: variable("MOIRA_TUNING_FILE")?,
            read: None,
        })
    }

    /// What the scheduler said at launch; else the designed batch, spread over the workers.
    pub(super) fn first_tuning(&self, designed: u32) -> anyhow::Result<Tuning> {
        let local = variable("MOIRA_LOCAL_BATCH")?.unwrap_or_else(|| designed.div_ceil(self.workers));
        let tuning = Tuning { local, accumulations: variable("MOIRA_ACCUMULATION")?.unwrap_or(0) };
        tuning.checked()
    }

    /// What the scheduler has said since it was last asked; nothing if that is nothing.
    pub(super) fn next_tuning(&mut self) -> anyhow::Result<Option<Tuning>> {
        let Some(path) = &self.tuning_file else { return Ok(None) };
        // The file appears with the first word of the scheduler and is replaced whole.
        let Ok(written) = std::fs::metadata(path).and_then(|data| data.modified()) else { return Ok(None) };
        if self.read == Some(written) {
            return Ok(None);
        }
        let reading = || format!("cannot read the tuning {}", path.display());
        let text = std::fs::read_to_string(path).with_context(reading)?;
        let tuning: Tuning = serde_json::from_str(&text).with_context(reading)?;
        self.read = Some(written);
        tuning.checked().with_context(reading).map(Some)
    }
}

impl Tuning {
    pub(super) fn passes(self) -> u32 {
        self.accumulations + 1
    }

    /// Examples in a step of so many workers.
    pub(super) fn total(self, workers: u32) -> u64 {
        u64::from(self.local) * u64::from(self.passes()) * u64::from(workers)
    }

    fn checked(self) -> anyhow::Result<Tuning> {
        ensure!((1..=1 << 20).contains(&self.local), "expected a batch from 1 to {}, found {}", 1 << 20, self.local);
        ensure!(self.accumulations < 1 << 20, "expected fewer accumulations than {}", self.accumulations);
        Ok(self)
    }
}

fn variable<T: FromStr>(name: &str) -> anyhow::Result<Option<T>> {
    let Some(text) = std::env::var_os(name).filter(|text| !text.is_empty()) else { return Ok(None) };
    let value = text.to_str().and_then(|text| text.parse().ok());
    value.map(Some).ok_or_else(|| anyhow!("cannot use the variable {name}: found `{}`", text.display()))
}
