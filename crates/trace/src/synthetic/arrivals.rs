//! When jobs are submitted: by day more than by night, on weekdays more than at weekends, and several at a time.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Exp1};

/// The rhythm of submissions. Time zero is Monday, midnight.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Arrivals {
    /// How strongly submissions follow the hour: their rate is proportional to `exp(daily * cos)` of the time since
    /// 15:00. At 0.75 the busiest hour has 1.85 times the mean, the quietest 0.41 times.
    pub daily: f64,
    /// The rate at weekends, relative to weekdays.
    pub weekend: f64,
    /// How many jobs a user submits in one go, on average.
    pub burst: f64,
    /// The mean time between jobs of one go, relative to the mean time between jobs.
    pub burst_gap: f64,
}

const DAY_S: f64 = 86_400.0;
const PEAK_S: f64 = 15.0 * 3600.0;

impl Arrivals {
    /// No rhythm and no bursts: a Poisson process.
    pub const STEADY: Arrivals = Arrivals { daily: 0.0, weekend: 1.0, burst: 1.0, burst_gap: 0.1 };

    pub(crate) fn is_sound(&self) -> bool {
        (0.0..=5.0).contains(&self.daily)
            && (0.001..=1.0).contains(&self.weekend)
            && (1.0..=1e6).contains(&self.burst)
            && (0.0..=1.0).contains(&self.burst_gap)
    }

    /// The number of jobs of one go.
    pub(crate) fn burst_length(&self, random: &mut ChaCha8Rng) -> usize {
        // Geometric, by its inverse.
        let draw: f64 = 1.0 - random.random::<f64>();
        if self.burst > 1.0 { 1 + (draw.ln() / (1.0 - 1.0 / self.burst).ln()) as usize } else { 1 }
    }

    /// When a go begins, in seconds.
    pub(crate) fn start(&self, span: f64, random: &mut ChaCha8Rng) -> f64 {
        loop {
            let (time, draw): (f64, f64) = (random.random::<f64>() * span, random.random());
            if draw < self.intensity(time) {
                return time;
            }
        }
    }

    /// The time to the next job of the same go, given the mean time between all jobs.
    pub(crate) fn gap(&self, mean: f64, random: &mut ChaCha8Rng) -> f64 {
        let draw: f64 = Exp1.sample(random);
        draw * self.burst_gap * mean
    }

    /// Relative to the busiest moment.
    fn intensity(&self, time: f64) -> f64 {
        let angle = (time - PEAK_S) / DAY_S * std::f64::consts::TAU;
        let week = if (time / DAY_S) as u64 % 7 >= 5 { self.weekend } else { 1.0 };
        (self.daily * (angle.cos() - 1.0)).exp() * week
    }
}
