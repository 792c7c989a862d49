//! A training's state on disk: one file, replaced whole, so that a reader finds the old state or the new one.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use perf::NoiseEstimator;
use serde::{Deserialize, Serialize};

use super::model::Model;

/// How far a training has come; the same for any number of workers.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Position {
    /// Steps of the designed batch that all steps so far were worth.
    pub(super) progress: f64,
    /// Steps that were made.
    pub(super) steps: u64,
    /// Examples that were seen.
    pub(super) examples: u64,
    pub(super) noise: NoiseEstimator,
}

#[derive(Debug)]
pub(super) struct Checkpoint {
    path: PathBuf,
}

impl Checkpoint {
    pub(super) fn in_folder(folder: &Path) -> Checkpoint {
        Checkpoint { path: folder.join("trainer.state") }
    }

    /// Nothing if none was ever saved. One that cannot be read is an error: starting anew would lose it.
    pub(super) fn load(&self, hidden: usize) -> anyhow::Result<Option<(Position, Model)>> {
        let reading = || format!("cannot read the checkpoint {}", self.path.display());
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(reading),
        };
        let mut file = BufReader::new(file);
        let mut header = String::new();
        file.read_line(&mut header).with_context(reading)?;
        let position: Position = serde_json::from_str(&header).with_context(reading)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).with_context(reading)?;
        let expected = 4 * Model::weights_of(hidden);
        ensure!(bytes.len() == expected, "{}: expected {expected} bytes, found {}", reading(), bytes.len());
        let weights = bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().expect("they are four")));
        Ok(Some((position, Model { weights: weights.collect() })))
    }

    /// Returns when it is safe.
    pub(super) fn save(&self, position: &Position, model: &Model) -> anyhow::Result<()> {
        let writing = || format!("cannot write the checkpoint {}", self.path.display());
        let fresh = self.path.with_extension("new");
        let mut bytes = serde_json::to_vec(position).with_context(writing)?;
        bytes.push(b'\n');
        bytes.extend(model.weights.iter().flat_map(|weight| weight.to_le_bytes()));
        let written = File::create(&fresh).and_then(|mut file| {
            file.write_all(&bytes)?;
            file.sync_all()?;
            fs::rename(&fresh, &self.path)?;
            File::open(self.path.parent().unwrap_or(Path::new(".")))?.sync_all()
        });
        written.with_context(writing)
    }
}
