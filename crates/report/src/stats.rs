//! Means, percentiles, deviations. Of no values there is none of these.

/// The value at sorted position ⌊percent/100 · n⌋, counted from 0; the last one where that lies beyond the end.
///
/// This is the rule of the Pollux and Sia artifacts, so that tables can be laid side by side. `sorted` ascends.
pub fn percentile(sorted: &[f64], percent: u32) -> Option<f64> {
    let position = sorted.len() as u64 * u64::from(percent) / 100;
    let last = sorted.len().checked_sub(1)?;
    Some(sorted[last.min(position as usize)])
}

pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// With n − 1 below the line; of fewer than two values there is none.
pub fn sample_deviation(values: &[f64]) -> Option<f64> {
    let mean = mean(values).filter(|_| values.len() > 1)?;
    let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
    Some((squares / (values.len() - 1) as f64).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_value_at_the_floor_of_its_position() {
        let values: Vec<f64> = (0..160).map(f64::from).collect();
        assert_eq!(percentile(&values, 50), Some(80.0));
        assert_eq!(percentile(&values, 99), Some(158.0));
        assert_eq!(percentile(&values, 100), Some(159.0));
        assert_eq!(percentile(&[3.0, 4.0, 9.0], 50), Some(4.0));
    }

    #[test]
    fn of_no_values_there_is_no_mean_and_no_percentile() {
        assert_eq!(mean(&[]), None);
        assert_eq!(percentile(&[], 50), None);
    }

    #[test]
    fn a_deviation_needs_two_values() {
        assert_eq!(sample_deviation(&[5.0]), None);
        assert_eq!(sample_deviation(&[2.0, 4.0]), Some(2.0f64.sqrt()));
    }
}
