//! How far a mean over a few seeds may lie from the truth: Student's t-interval of 95 %.

use report::{Number, mean, sample_deviation};

/// The 97.5 % quantile of Student's distribution for 1 to 30 degrees of freedom.
const QUANTILES: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// Beyond the table: the number of degrees of freedom from which on a quantile is used. Rounded to the safe side.
const BEYOND: [(u64, f64); 4] = [(120, 1.980), (60, 2.000), (40, 2.021), (30, 2.042)];

fn quantile(freedom: u64) -> f64 {
    match QUANTILES.get(freedom as usize - 1) {
        Some(quantile) => *quantile,
        None => BEYOND.iter().find(|(from, _)| freedom >= *from).expect("the table goes on from 30").1,
    }
}

/// The mean lies within so much of the truth, 19 times of 20; of fewer than two runs nothing can be said.
pub fn half_width(number: &Number) -> Option<f64> {
    half_width_of(number.deviation?, number.over)
}

fn half_width_of(deviation: f64, count: u64) -> Option<f64> {
    (count > 1).then(|| quantile(count - 1) * deviation / (count as f64).sqrt())
}

/// Whether differences seed by seed are more than chance: their interval excludes 0. Nothing if there are too few.
pub(crate) fn beyond_chance(differences: &[f64]) -> Option<bool> {
    let half = half_width_of(sample_deviation(differences)?, differences.len() as u64)?;
    Some(mean(differences)?.abs() > half)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_runs_have_an_interval_of_two_degrees_of_freedom() {
        let number = Number { name: "jct_mean_s", over: 3, mean: Some(10.0), deviation: Some(3.0f64.sqrt()) };
        assert!((half_width(&number).unwrap() - 4.303).abs() < 1e-9);
    }

    #[test]
    fn one_run_has_no_interval() {
        let number = Number { name: "jct_mean_s", over: 1, mean: Some(10.0), deviation: None };
        assert_eq!(half_width(&number), None);
        assert_eq!(beyond_chance(&[3.0]), None);
    }

    #[test]
    fn more_runs_never_have_a_larger_quantile() {
        let all: Vec<f64> = (1..500).map(quantile).collect();
        assert!(all.is_sorted_by(|a, b| a >= b), "{all:?}");
        assert_eq!((quantile(30), quantile(31), quantile(1000)), (2.042, 2.042, 1.980));
    }

    #[test]
    fn a_steady_difference_is_beyond_chance_and_a_wavering_one_is_not() {
        assert_eq!(beyond_chance(&[10.0, 11.0, 12.0]), Some(true));
        assert_eq!(beyond_chance(&[10.0, -9.0, 2.0]), Some(false));
    }
}
