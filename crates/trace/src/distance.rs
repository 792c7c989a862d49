//! How far two workloads are apart, one marginal at a time.

use serde::Serialize;

use crate::inspect::Observed;

/// Kolmogorov–Smirnov distances: the largest difference between two distribution functions, from 0 (alike) to 1. Where
/// there are too many jobs to know every value, of values known to within a class.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Distances {
    pub durations: f64,
    pub gpus: f64,
    /// Of the times between submissions in seconds, which only means something at the same rate of submissions.
    pub gaps: Option<f64>,
    /// Of the same over their median, which forgets the rate. Times known to the second are spread over it first, so
    /// that whole seconds do not stand out.
    pub gaps_over_median: Option<f64>,
    /// Of the submissions by hour of the day, both counted from their time zero.
    pub daily_profile_correlation: Option<f64>,
    /// The best correlation if the other's clock may be wrong, and by how much it then is. Job lists often count from their
    /// first submission instead of midnight.
    pub daily_profile_best: Option<Aligned>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Aligned {
    pub correlation: f64,
    /// So many minutes later on the other's clock, a multiple of 15.
    pub minutes: usize,
}

impl Distances {
    pub fn between(one: &Observed, other: &Observed) -> Distances {
        let (of_one, of_other) = (one.gaps_s.sorted(), other.gaps_s.sorted());
        let some = !of_one.is_empty() && !of_other.is_empty();
        let (mine, theirs) = (one.profile(), other.profile());
        Distances {
            durations: ks(one.durations_s.sorted(), other.durations_s.sorted()),
            gpus: ks(one.gpus.sorted(), other.gpus.sorted()),
            gaps_over_median: over_median(&of_one)
                .zip(over_median(&of_other))
                .map(|(of_one, of_other)| ks(of_one, of_other)),
            gaps: some.then(|| ks(of_one, of_other)),
            daily_profile_correlation: correlation(&mine, &theirs),
            daily_profile_best: aligned(&mine, other.minutes()),
        }
    }
}

/// The Kolmogorov–Smirnov distance of two samples, neither of them empty.
pub fn ks(mut one: Vec<f64>, mut other: Vec<f64>) -> f64 {
    assert!(!one.is_empty() && !other.is_empty(), "an empty sample has no distribution");
    one.sort_unstable_by(f64::total_cmp);
    other.sort_unstable_by(f64::total_cmp);
    let (mut at_one, mut at_other, mut most) = (0, 0, 0.0_f64);
    while at_one < one.len() && at_other < other.len() {
        let value = one[at_one].min(other[at_other]);
        at_one += one[at_one..].iter().take_while(|&&next| next <= value).count();
        at_other += other[at_other..].iter().take_while(|&&next| next <= value).count();
        let difference = at_one as f64 / one.len() as f64 - at_other as f64 / other.len() as f64;
        most = most.max(difference.abs());
    }
    most
}

/// Pearson's correlation; `None` if one side does not vary.
pub fn correlation(one: &[f64], other: &[f64]) -> Option<f64> {
    assert_eq!(one.len(), other.len(), "correlation is between pairs");
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (mean_one, mean_other) = (mean(one), mean(other));
    let (mut both, mut square_one, mut square_other) = (0.0, 0.0, 0.0);
    for (one, other) in one.iter().zip(other) {
        let (one, other) = (one - mean_one, other - mean_other);
        both += one * other;
        square_one += one * one;
        square_other += other * other;
    }
    (square_one > 0.0 && square_other > 0.0).then(|| both / (square_one * square_other).sqrt())
}

fn aligned(one: &[f64; 24], other: &[f64]) -> Option<Aligned> {
    let turned = |minutes: usize| {
        let mut other = other.to_vec();
        other.rotate_right(minutes);
        let hours: Vec<f64> = other.chunks(60).map(|hour| hour.iter().sum()).collect();
        correlation(one, &hours).map(|correlation| Aligned { correlation, minutes })
    };
    let best = |a: &Aligned, b: &Aligned| a.correlation.total_cmp(&b.correlation).then(b.minutes.cmp(&a.minutes));
    (0..1440).step_by(15).filter_map(turned).max_by(best)
}

/// `None` if more than half of them are zero, or there are none.
fn over_median(gaps: &[f64]) -> Option<Vec<f64>> {
    let mut spread = gaps.to_vec();
    spread.sort_unstable_by(f64::total_cmp);
    let mut first = 0;
    while first < spread.len() {
        let value = spread[first];
        let ties = spread[first..].iter().take_while(|&&next| next == value).count();
        if ties > 1 && value.fract() == 0.0 {
            let step = 1.0 / ties as f64;
            spread[first..first + ties].iter_mut().enumerate().for_each(|(i, gap)| *gap += (i as f64 + 0.5) * step);
        }
        first += ties;
    }
    // A value in between that is known more exactly may now stand out of order.
    spread.sort_unstable_by(f64::total_cmp);
    let median = *spread.get(spread.len() / 2).filter(|&&median| median >= 1e-3)?;
    spread.iter_mut().for_each(|gap| *gap /= median);
    Some(spread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_samples_have_no_distance_and_disjoint_ones_the_largest() {
        assert_eq!(ks(vec![1.0, 2.0, 2.0], vec![2.0, 1.0, 2.0]), 0.0);
        assert_eq!(ks(vec![1.0, 2.0], vec![3.0]), 1.0);
        assert_eq!(ks(vec![1.0, 2.0, 3.0, 4.0], vec![1.0, 2.0]), 0.5);
    }

    #[test]
    fn a_profile_on_another_clock_is_recognised() {
        let mut hours = [1.0; 24];
        (8..20).for_each(|hour| hours[hour] = 3.0 + hour as f64);
        let mut minutes: Vec<f64> = hours.iter().flat_map(|rate| [rate / 60.0; 60]).collect();
        minutes.rotate_left(4 * 60 + 15);
        let found = aligned(&hours, &minutes).unwrap();
        assert_eq!((found.minutes, (found.correlation * 1e6).round()), (255, 1e6));
        assert_eq!(correlation(&hours, &[1.0; 24]), None);
    }

    #[test]
    fn the_rate_does_not_matter_over_the_median() {
        let gaps: Vec<f64> = (0..1000).map(|i| f64::from(i % 50)).collect();
        let slower: Vec<f64> = gaps.iter().map(|gap| gap * 3.0).collect();
        let distance = ks(over_median(&gaps).unwrap(), over_median(&slower).unwrap());
        assert!(distance < 0.02, "{distance}");
    }
}
