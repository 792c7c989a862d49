//! Experiments: the engine in a world that exists only in memory.

mod experiment;
mod rerun;
mod simulate;

pub use experiment::{Experiment, ExperimentError};
pub use rerun::{Extrapolation, Recording, RecordingError};
pub use simulate::{HORIZON, Setup, simulate};
