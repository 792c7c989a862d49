//! Every number about a history, as a fold over its events: the same for a simulation, a replayed journal and a
//! service that is still running.
//!
//! It reads facts only. How long a job would have run alone is not among them; who wants finish-time ratios says so in
//! a closure.

mod fairness;
mod figure;
mod fold;
mod hold;
mod job;
mod run;
mod series;
mod stats;
mod summary;
mod usage;

#[cfg(test)]
mod tale;

pub use fairness::{Isolated, jain};
pub use figure::{Figure, FigureFold, Holding, KindFigure};
pub use fold::Fold;
pub use job::JobRow;
pub use run::{Deadlines, Failures, FinishTimeRatio, Gauge, Identity, Jain, Report, RunReport, Schema, Series, Times};
pub use stats::{mean, percentile, sample_deviation};
pub use summary::{HEADLINES, Headline, Number, Summary, summarise};
