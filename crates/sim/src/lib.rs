//! Experiments: the engine in a world that exists only in memory.

mod experiment;
mod simulate;

pub use experiment::{Experiment, ExperimentError};
pub use simulate::{HORIZON, Setup, simulate};
