//! How fast a job runs in a given situation: tables of speeds, simple scaling laws, curves of a metric, slow-down by
//! neighbours. The same laws serve as estimates for policies and as the truth of a simulated world; which of the two a
//! value is, its owner knows.

mod curve;
mod sharing;
mod speed;
mod truth;

pub use curve::Curve;
pub use sharing::{Interference, Neighbours};
pub use speed::{Rates, ScalingLaw, Situation, Speed};
pub use truth::{TrueJob, Truth};
