//! The course of a metric that falls while a job learns.

use cluster::{Invalid, Name};
use serde::{Deserialize, Serialize};

/// `floor + scale / (1 + pace * iterations)`: the family that Optimus (EuroSys 2018, section 3.1) fits to losses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    pub metric: Name,
    pub floor: f64,
    pub scale: f64,
    pub pace: f64,
}

impl Curve {
    pub fn value(&self, iterations: u64) -> f64 {
        self.floor + self.scale / (1.0 + self.pace * iterations as f64)
    }

    /// The first iteration at which the metric is at most `value`; `None` if it never is.
    pub fn reaches(&self, value: f64) -> Option<u64> {
        (value > self.floor).then(|| first_iteration(|iterations| self.value(iterations) <= value))
    }

    /// The first iteration at which the metric fell by less than `decline` of itself over the last `window` iterations.
    pub fn settles(&self, decline: f64, window: u64) -> u64 {
        let fell_little = |end: u64| {
            let before = self.value(end.saturating_sub(window));
            end >= window && (before - self.value(end)) / before.abs() < decline
        };
        first_iteration(fell_little)
    }

    pub fn check(&self) -> Result<(), Invalid> {
        let figures = [("curve.floor", self.floor), ("curve.scale", self.scale), ("curve.pace", self.pace)];
        for (field, value) in figures {
            if !(value.is_finite() && value >= 0.0) {
                return Err(Invalid::new(field, "a finite number of at least 0", value));
            }
        }
        match self.scale > 0.0 && self.pace > 0.0 {
            true => Ok(()),
            false => Err(Invalid::new("curve", "a scale and a pace above 0, so that the metric falls", "a flat curve")),
        }
    }
}

/// The least number for which a condition holds that stays true once it is.
fn first_iteration(holds: impl Fn(u64) -> bool) -> u64 {
    let mut high = 1;
    while !holds(high) && high < 1 << 52 {
        high *= 2;
    }
    let mut low = 0;
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loss() -> Curve {
        Curve { metric: "loss".into(), floor: 0.5, scale: 2.0, pace: 0.01 }
    }

    #[test]
    fn a_target_is_reached_when_the_curve_crosses_it() {
        assert_eq!(loss().reaches(1.5), Some(100));
        assert_eq!(loss().reaches(0.5), None, "the floor is never reached");
    }

    #[test]
    fn a_curve_settles_later_when_less_decline_is_asked_for() {
        let coarse = loss().settles(0.10, 50);
        let fine = loss().settles(0.01, 50);
        assert!(50 < coarse && coarse < fine, "{coarse} before {fine}");
        let fell = (loss().value(fine - 50) - loss().value(fine)) / loss().value(fine - 50);
        assert!(fell < 0.01);
    }
}
