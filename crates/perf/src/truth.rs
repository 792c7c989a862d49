//! What is really the case about a job: known to a simulated world, and to a policy only if it declares an oracle.

use std::sync::Arc;

use cluster::{Ends, Invalid, JobSpec, Shape, Span, Time};
use serde::{Deserialize, Serialize};

use crate::adaptation::Adaptation;
use crate::course::Course;
use crate::curve::Curve;
use crate::speed::{Situation, Speed};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Truth {
    pub speed: Speed,
    /// Iterations of the designed batch size after which the job ends.
    pub iterations: u64,
    /// From launch to the first step of the very first launch.
    pub start_up: Span,
    /// How the training really goes, where that was measured; else it goes by its speed.
    pub course: Option<Arc<Course>>,
    /// How long its steps pause when its workers change in place; nothing if it must be restarted for that.
    #[serde(default)]
    pub resize: Option<Span>,
}

/// A job of a workload: what its user says, what is thought of its speed, and what is really the case.
///
/// In a workload jobs stand in order of submission, and `spec.after` names them by that order.
#[derive(Debug, Clone, PartialEq)]
pub struct TrueJob {
    pub submitted: Time,
    pub spec: Arc<JobSpec>,
    pub speed: Arc<Speed>,
    pub truth: Arc<Truth>,
}

impl Truth {
    /// A job that runs so long with the gang it asks for, whatever the place, and that starts at once.
    pub fn lasting(span: Span) -> Truth {
        Truth {
            speed: Speed::constant(1000.0),
            iterations: span.as_millis().max(1),
            start_up: Span::ZERO,
            course: None,
            resize: None,
        }
    }

    /// Progress at which the job ends, in iterations of the designed batch size.
    pub fn length(&self) -> f64 {
        self.course.as_ref().map_or(self.iterations as f64, |course| course.length())
    }

    /// Iterations of the designed batch size per second in a situation, after so many of them; `None` where the job
    /// cannot run.
    pub fn rate(&self, adaptation: Option<&Adaptation>, situation: &Situation, done: f64) -> Option<f64> {
        match (&self.course, adaptation) {
            (Some(course), Some(adaptation)) => {
                let shape = Shape { kind: situation.kind, workers: situation.workers, nodes: situation.nodes };
                course.best_rate(adaptation, shape, done)
            }
            _ => self.speed.rate(situation),
        }
    }

    /// The iterations after which a job with these curves really ends. One that ends by itself does so after `itself`.
    pub fn iterations_of(ends: &Ends, itself: u64, curves: &[Curve]) -> Result<u64, Invalid> {
        let curve = |metric: &str| {
            let known = curves.iter().find(|curve| &*curve.metric == metric);
            known.ok_or_else(|| Invalid::new("ends.metric", "a metric whose course is known", metric))
        };
        Ok(match ends {
            Ends::Itself => itself,
            Ends::Iterations(iterations) => *iterations,
            Ends::Epochs { epochs, iterations_each } => epochs.saturating_mul(*iterations_each),
            Ends::Target { metric, value, at_most } => {
                curve(metric)?.reaches(*value).map_or(*at_most, |end| end.min(*at_most))
            }
            Ends::Converged { metric, decline, window, at_most } => {
                curve(metric)?.settles(*decline, *window).min(*at_most)
            }
        }
        .max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curves() -> Vec<Curve> {
        vec![Curve { metric: "loss".into(), floor: 0.5, scale: 2.0, pace: 0.01 }]
    }

    #[test]
    fn a_target_ends_the_job_before_its_limit_and_the_limit_ends_it_otherwise() {
        let target = |value| Ends::Target { metric: "loss".into(), value, at_most: 500 };
        assert_eq!(Truth::iterations_of(&target(1.5), 0, &curves()), Ok(100));
        assert_eq!(Truth::iterations_of(&target(0.1), 0, &curves()), Ok(500));
    }

    #[test]
    fn a_metric_nobody_knows_is_refused() {
        let ends = Ends::Target { metric: "accuracy".into(), value: 0.9, at_most: 500 };
        let error = Truth::iterations_of(&ends, 0, &curves()).unwrap_err().to_string();
        assert_eq!(error, "ends.metric: expected a metric whose course is known, found accuracy");
    }
}
