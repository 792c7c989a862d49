//! How long jobs run: a lognormal body and a bounded Pareto tail, from four published figures; longer for larger jobs
//! without moving those figures.

/// Run times by their percentiles, in seconds. The body is lognormal through the median and the 90th percentile, the
/// tail beyond it Pareto through the 99th, cut off at the longest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Durations {
    pub median_s: f64,
    pub p90_s: f64,
    pub p99_s: f64,
    pub longest_s: f64,
    /// How far a job of eight or more GPUs moves up among all run times, in standard deviations; one of two or four
    /// moves a third or two thirds as far.
    pub size_effect: f64,
}

/// Where the tail begins.
const BODY: f64 = 0.9;
const Z90: f64 = 1.281_551_565_545;
const CELLS: usize = 2048;
const SHORTEST_S: f64 = 1.0;

/// The same, ready to be drawn from, for jobs of given sizes.
pub(crate) struct Law {
    durations: Durations,
    /// Logarithms of the run times at `BODY * i / CELLS`.
    body: Vec<f64>,
    tail_exponent: f64,
    /// For every size its share of the jobs and its shift.
    sizes: Vec<(f64, f64)>,
}

impl Durations {
    /// Whether the figures ascend, so that there is such a law.
    pub(crate) fn is_sound(&self) -> bool {
        let ascends = self.median_s >= SHORTEST_S && self.median_s < self.p90_s && self.p90_s < self.p99_s;
        // A tail flatter than a log-uniform one would need a job longer than the longest.
        let flattest = self.p90_s * (self.longest_s / self.p90_s).powf(BODY);
        ascends && self.p99_s < flattest && self.longest_s <= crate::csv::LONGEST_S && self.size_effect.is_finite()
    }
}

impl Law {
    pub(crate) fn new(durations: Durations, sizes: &[(u32, f64)]) -> Law {
        assert!(durations.is_sound(), "run times must ascend: {durations:?}");
        let deviation = (durations.p90_s / durations.median_s).ln() / Z90;
        let at = |cell: usize| {
            let rank = (BODY * cell as f64 / CELLS as f64).max(1e-5);
            durations.median_s.ln() + deviation * normal_quantile(rank)
        };
        let total: f64 = sizes.iter().map(|(_, share)| share).sum();
        let shift = |gpus: u32| durations.size_effect * f64::from(gpus).log2().min(3.0) / 3.0;
        Law {
            durations,
            body: (0..=CELLS).map(at).collect(),
            tail_exponent: tail_exponent(&durations),
            sizes: sizes.iter().map(|&(gpus, share)| (share / total, shift(gpus))).collect(),
        }
    }

    /// The run time of a job of the size with this index, from a standard normal draw.
    pub(crate) fn duration(&self, size: usize, draw: f64) -> f64 {
        let score = self.sizes[size].1 + draw;
        // The rank among the scores of all sizes together is uniform, whatever the shifts.
        let rank: f64 = self.sizes.iter().map(|&(share, shift)| share * normal_rank(score - shift)).sum();
        self.quantile(rank.clamp(0.0, 1.0)).max(SHORTEST_S)
    }

    fn quantile(&self, rank: f64) -> f64 {
        if rank >= BODY {
            return bounded_pareto(&self.durations, self.tail_exponent, (1.0 - rank) / (1.0 - BODY));
        }
        let place = rank / BODY * CELLS as f64;
        let (cell, part) = (place as usize, place.fract());
        (self.body[cell] + (self.body[cell + 1] - self.body[cell]) * part).exp()
    }
}

/// The run time that a share `above` of the tail exceeds.
fn bounded_pareto(durations: &Durations, exponent: f64, above: f64) -> f64 {
    let cut = (durations.p90_s / durations.longest_s).powf(exponent);
    durations.p90_s * (above * (1.0 - cut) + cut).powf(-1.0 / exponent)
}

/// The exponent with which a tenth of the tail lies above the 99th percentile.
fn tail_exponent(durations: &Durations) -> f64 {
    bisect(1e-3, 50.0, |exponent| bounded_pareto(durations, exponent, 0.1) < durations.p99_s)
}

fn normal_quantile(rank: f64) -> f64 {
    bisect(-8.0, 8.0, |score| normal_rank(score) > rank)
}

/// The share of a standard normal variable below a score; formula 7.1.26 of Abramowitz and Stegun, good to 1e-7.
pub(crate) fn normal_rank(score: f64) -> f64 {
    let x = score.abs() / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    let terms = [0.254_829_592, -0.284_496_736, 1.421_413_741, -1.453_152_027, 1.061_405_429];
    let polynomial = terms.iter().rev().fold(0.0, |sum, term| (sum + term) * t);
    let above = polynomial * (-x * x).exp() / 2.0;
    if score < 0.0 { above } else { 1.0 - above }
}

/// Where a condition that holds from some number on begins to hold.
fn bisect(mut low: f64, mut high: f64, holds: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if holds(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_law_goes_through_its_figures() {
        let durations =
            Durations { median_s: 1321.0, p90_s: 33_474.0, p99_s: 755_541.0, longest_s: 2_592_000.0, size_effect: 0.9 };
        let law = Law::new(durations, &[(1, 1.0)]);
        for (rank, expected) in [(0.5, 1321.0), (0.9, 33_474.0), (0.99, 755_541.0), (1.0, 2_592_000.0)] {
            let found = law.quantile(rank);
            assert!((found / expected - 1.0).abs() < 1e-3, "at {rank}: {found}, not {expected}");
        }
    }
}
