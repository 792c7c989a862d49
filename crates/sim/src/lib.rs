//! Experiments: the engine in a world that exists only in memory.

mod crowd;
mod experiment;
pub mod pollux;
mod replay;
pub mod reproduce;
mod rerun;
mod simulate;

pub use crowd::Crowd;
pub use experiment::{Experiment, ExperimentError};
pub use replay::{Conformance, RecordedRun, replay};
pub use rerun::{Extrapolation, KindSpeeds, Pace, Recording, RecordingError};
pub use simulate::{HORIZON, Setup, simulate};
