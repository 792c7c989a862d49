//! How far apart live and simulated are: errors, medians and shares.

use super::Conditions;
use super::untried::Prediction;

/// One run of the whole mix, and its replay.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Repetition {
    pub(super) conditions: Conditions,
    pub(super) jobs: Vec<Apart>,
    pub(super) untried: Vec<Prediction>,
}

/// One job.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Apart {
    pub(super) name: String,
    pub(super) live: Side,
    pub(super) simulated: Side,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Side {
    /// From submission to end.
    pub(super) completion_secs: f64,
    /// The part of it without any device.
    pub(super) waiting_secs: f64,
    pub(super) restarts: u32,
}

impl Apart {
    /// By which part the simulated completion time is too long.
    pub(super) fn error(&self) -> f64 {
        self.simulated.completion_secs / self.live.completion_secs - 1.0
    }
}

impl Repetition {
    /// By which part the simulated average completion time is too long.
    pub(super) fn error_of_mean(&self) -> f64 {
        self.error_of(|side| side.completion_secs)
    }

    /// The same of the time with devices, in which no long wait hides an error.
    pub(super) fn error_with_devices(&self) -> f64 {
        self.error_of(|side| side.completion_secs - side.waiting_secs)
    }

    fn error_of(&self, secs: fn(Side) -> f64) -> f64 {
        let sum = |side: fn(&Apart) -> Side| self.jobs.iter().map(|job| secs(side(job))).sum::<f64>();
        sum(|job| job.simulated) / sum(|job| job.live) - 1.0
    }

    /// The part of its jobs whose completion time is off by at most this much.
    pub(super) fn share_within(&self, tolerance: f64) -> f64 {
        share_within(self.jobs.iter().map(Apart::error), tolerance)
    }
}

/// The part of the errors that are at most this large, whatever their sign; all of none.
pub(super) fn share_within(errors: impl Iterator<Item = f64>, tolerance: f64) -> f64 {
    let errors: Vec<f64> = errors.collect();
    let within = errors.iter().filter(|error| error.abs() <= tolerance).count();
    if errors.is_empty() { 1.0 } else { within as f64 / errors.len() as f64 }
}

/// The one in the middle, or between the two there; there is at least one.
pub(super) fn median(numbers: impl IntoIterator<Item = f64>) -> f64 {
    let mut numbers: Vec<f64> = numbers.into_iter().collect();
    assert!(!numbers.is_empty(), "there is no middle of nothing");
    numbers.sort_by(f64::total_cmp);
    let middle = numbers.len() / 2;
    match numbers.len() % 2 {
        1 => numbers[middle],
        _ => (numbers[middle - 1] + numbers[middle]) / 2.0,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn side(completion_secs: f64) -> Side {
        Side { completion_secs, waiting_secs: 2.0, restarts: 0 }
    }

    pub(in super::super) fn apart(name: &str, live: f64, simulated: f64) -> Apart {
        Apart { name: name.into(), live: side(live), simulated: side(simulated) }
    }

    pub(in super::super) fn repetition(jobs: Vec<Apart>) -> Repetition {
        let conditions = Conditions {
            jobs: jobs.len() as u32,
            seed: 1,
            policy: "fifo".into(),
            cores: 2,
            load_before: [0.5, 0.6, 0.7],
            load_after: [2.5, 2.0, 1.0],
            speed_before: 800.0,
            speed_after: 790.0,
        };
        Repetition { conditions, jobs, untried: Vec::new() }
    }

    #[test]
    fn an_error_has_the_sign_of_what_is_too_long() {
        assert!((apart("a", 10.0, 12.0).error() - 0.2).abs() < 1e-12);
        assert!((apart("a", 10.0, 8.0).error() + 0.2).abs() < 1e-12);
    }

    #[test]
    fn the_error_of_the_mean_may_be_small_where_those_of_jobs_are_large() {
        let found = repetition(vec![apart("a", 10.0, 15.0), apart("b", 20.0, 15.0), apart("c", 20.0, 21.0)]);
        assert!((found.error_of_mean() - 0.02).abs() < 1e-12);
        assert!((found.share_within(0.2) - 1.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn a_long_wait_does_not_hide_an_error_of_the_time_with_devices() {
        let mut waited = apart("a", 102.0, 103.0);
        (waited.live.waiting_secs, waited.simulated.waiting_secs) = (92.0, 92.0);
        let found = repetition(vec![waited]);
        assert!(found.error_of_mean() < 0.01 && (found.error_with_devices() - 0.1).abs() < 1e-12);
    }

    #[test]
    fn a_median_is_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn a_share_counts_errors_of_either_sign() {
        assert_eq!(share_within([0.1, -0.1, 0.3, -0.3].into_iter(), 0.15), 0.5);
    }
}
