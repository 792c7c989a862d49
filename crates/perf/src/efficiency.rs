//! How much an iteration with a larger batch teaches, by the noise in the gradients (McCandlish et al. 2018; AdaScale,
//! Johnson et al. 2020; Pollux, OSDI 2021, section 3.1). Progress is counted in iterations of the initial batch size,
//! so that it does not depend on the batch sizes a job went through. How the noise is measured is in `noise`.

use serde::{Deserialize, Serialize};

/// Mean and variance of the gradient of one iteration at the initial batch size, as squared norms.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct GradientNoise {
    /// Squared norm of the true gradient.
    pub sqr: f64,
    /// Variance of its estimate, summed over the coordinates.
    pub var: f64,
}

impl GradientNoise {
    /// Nothing measured yet: as if all were noise, so that any batch size is as good as another.
    pub const UNKNOWN: GradientNoise = GradientNoise { sqr: 0.0, var: 1.0 };

    /// r: iterations of the initial batch size that one iteration of `scale` times that size is worth. This is the
    /// progress of one optimiser step.
    pub fn gain(self, scale: f64) -> f64 {
        let remaining = self.var / scale + self.sqr;
        match remaining > 0.0 {
            true => (self.var + self.sqr) / remaining,
            false => 1.0,
        }
    }

    /// What an example teaches, relative to one in a batch of the initial size.
    pub fn efficiency(self, scale: f64) -> f64 {
        self.gain(scale) / scale
    }

    /// φ: the batch size at which signal and noise of a gradient are equal; efficiency is (φ + M₀) / (φ + M).
    pub fn noise_scale(self, initial: f64) -> f64 {
        initial * self.var / self.sqr
    }
}

/// Progress at which a job with batches of changing size has seen its `examples` this many times over.
pub fn progress_of_epochs(examples: u64, epochs: u32, initial: u32) -> f64 {
    examples as f64 * f64::from(epochs) / f64::from(initial)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pure_noise_gains_in_proportion_to_the_batch() {
        assert_eq!(GradientNoise::UNKNOWN.gain(8.0), 8.0);
        assert_eq!(GradientNoise::UNKNOWN.efficiency(8.0), 1.0);
    }

    #[test]
    fn pure_signal_gains_nothing_from_a_larger_batch() {
        let signal = GradientNoise { sqr: 2.0, var: 0.0 };
        assert_eq!(signal.gain(8.0), 1.0);
        assert_eq!(signal.efficiency(8.0), 0.125);
    }

    #[test]
    fn without_signal_and_noise_an_iteration_is_an_iteration() {
        assert_eq!(GradientNoise { sqr: 0.0, var: 0.0 }.gain(8.0), 1.0);
    }

    #[test]
    fn efficiency_is_that_of_the_noise_scale() {
        let (noise, initial) = (GradientNoise { sqr: 0.5, var: 3.0 }, 128.0);
        let scale = noise.noise_scale(initial);
        assert_eq!(scale, 768.0);
        for batch in [128.0, 512.0, 4096.0] {
            let expected = (scale + initial) / (scale + batch);
            assert!((noise.efficiency(batch / initial) - expected).abs() < 1e-12);
        }
    }

    #[test]
    fn an_epoch_is_as_much_progress_at_any_batch_size() {
        assert_eq!(progress_of_epochs(50_000, 2, 100), 1000.0);
    }
}
