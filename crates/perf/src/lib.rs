//! How fast a job runs in a given situation: tables of speeds, simple scaling laws, curves of a metric, slow-down by
//! neighbours. The same laws serve as estimates for policies and as the truth of a simulated world; which of the two a
//! value is, its owner knows.

mod adaptation;
mod course;
mod curve;
mod efficiency;
mod fit;
mod fits;
mod goodput;
mod lbfgsb;
mod learned;
mod learning_rate;
mod noise;
mod pipeline;
mod sharing;
mod speed;
mod step_time;
mod truth;

pub use adaptation::{Adaptation, BatchRule, KindLimits, ShapeLimit};
pub use course::{Course, Piece, StepRow, StepTables, StepTimes, spread_evenly};
pub use curve::Curve;
pub use efficiency::{GradientNoise, progress_of_epochs};
pub use fit::{Observation, Search, fit, loss};
pub use fits::Fits;
pub use goodput::{BatchLimits, Goodput, Ladder, Tuned, Tuning, capped, should_switch, untuned};
pub use learned::{Interruption, KindModel, Learned, StepReport};
pub use learning_rate::LearningRateRule;
pub use noise::{NoiseEstimator, StepNorms, total_noise};
pub use pipeline::Pipeline;
pub use sharing::{Interference, Neighbours};
pub use speed::{Rates, ScalingLaw, Situation, Speed};
pub use step_time::{Line, StepTime};
pub use truth::{TrueJob, Truth};
