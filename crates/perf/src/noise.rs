//! Signal and noise of gradients, estimated while a job trains (McCandlish et al. 2018, appendix A; Pollux, OSDI 2021,
//! section 3.1). Only squared norms come in here: whoever holds the gradients computes them, after undoing loss scaling
//! and after the optimiser's preconditioner if it has one.
//!
//! A gradient averaged over more examples has less noise. So the difference between the mean square of the parts and the
//! square of their mean tells noise from signal; a lone replica without accumulation has no parts and compares
//! successive gradients instead, which takes movement of the true gradient for noise.

use serde::{Deserialize, Serialize};

use crate::efficiency::GradientNoise;

/// What an iteration of the initial batch size leaves of the past.
const KEPT: f64 = 0.999;

/// Some noise there always is.
pub(crate) const LEAST_VARIANCE: f64 = 1e-6;

/// Squared norms of the gradients of one optimiser step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum StepNorms {
    /// Two or more micro-batches, over replicas and accumulated passes together.
    Many { micro_batches: u32, mean_of_squares: f64, square_of_mean: f64 },
    /// A single micro-batch, beside the one of the step before.
    Lone { before: f64, now: f64, square_of_mean: f64 },
}

/// The running estimate for one group of parameters.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct NoiseEstimator {
    sqr: Average,
    var: Average,
    /// Whether the averages hold estimates from successive gradients.
    biased: bool,
}

impl Default for NoiseEstimator {
    fn default() -> NoiseEstimator {
        NoiseEstimator { sqr: Average::EMPTY, var: Average::EMPTY, biased: false }
    }
}

impl NoiseEstimator {
    /// Takes in an optimiser step whose total batch was `scale` times the initial one. Norms that are not finite, as
    /// mixed precision has them now and then, are passed over.
    pub fn observe(&mut self, norms: StepNorms, scale: f64) {
        let (parts, mean_of_squares, square_of_mean, scale, biased) = match norms {
            StepNorms::Many { micro_batches, mean_of_squares, square_of_mean } => {
                assert!(micro_batches > 1, "one micro-batch has nothing to be compared with");
                (f64::from(micro_batches), mean_of_squares, square_of_mean, scale, false)
            }
            StepNorms::Lone { before, now, square_of_mean } => {
                (2.0, (before + now) / 2.0, square_of_mean, 2.0 * scale, true)
            }
        };
        if !(mean_of_squares.is_finite() && square_of_mean.is_finite()) {
            return;
        }
        if self.biased && !biased {
            *self = NoiseEstimator::default();
        }
        self.biased = biased;
        let kept = KEPT.powf(scale);
        self.sqr.add((parts * square_of_mean - mean_of_squares) / (parts - 1.0), kept);
        self.var.add((mean_of_squares - square_of_mean) * scale / (parts - 1.0), kept);
    }

    /// The estimate at the initial batch size.
    pub fn noise(&self) -> GradientNoise {
        GradientNoise { sqr: self.sqr.value_or(1.0).max(0.0), var: self.var.value_or(0.0).max(LEAST_VARIANCE) }
    }
}

/// The noise of all groups of parameters together.
pub fn total_noise(groups: &[NoiseEstimator]) -> GradientNoise {
    let none = GradientNoise { sqr: 0.0, var: 0.0 };
    groups
        .iter()
        .map(NoiseEstimator::noise)
        .fold(none, |sum, group| GradientNoise { sqr: sum.sqr + group.sqr, var: sum.var + group.var })
}

/// An exponential average and the weight it has gathered, so that its beginning does not pull it to zero.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Average {
    sum: f64,
    weight: f64,
}

impl Average {
    const EMPTY: Average = Average { sum: 0.0, weight: 0.0 };

    fn add(&mut self, value: f64, kept: f64) {
        self.sum = kept * self.sum + (1.0 - kept) * value;
        self.weight = kept * self.weight + (1.0 - kept);
    }

    fn value_or(&self, initial: f64) -> f64 {
        if self.weight > 0.0 { self.sum / self.weight } else { initial }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COORDINATES: usize = 40;
    const SEED: u64 = 20210714;

    /// Gradients of known signal and noise: the signal has squared norm 2, and a batch of the initial size variance 6.
    struct Gradients(u64);

    impl Gradients {
        const TRUTH: GradientNoise = GradientNoise { sqr: 2.0, var: 6.0 };

        fn uniform(&mut self) -> f64 {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((self.0 >> 11) as f64 + 0.5) / (1u64 << 53) as f64
        }

        fn normal(&mut self) -> f64 {
            (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
        }

        /// Of a batch of `scale` times the initial size.
        fn draw(&mut self, scale: f64) -> [f64; COORDINATES] {
            let each = |total: f64| (total / COORDINATES as f64).sqrt();
            let (signal, noise) = (each(Gradients::TRUTH.sqr), each(Gradients::TRUTH.var / scale));
            std::array::from_fn(|_| signal + noise * self.normal())
        }

        fn many(&mut self, micro_batches: u32, scale: f64) -> StepNorms {
            let drawn: Vec<_> = (0..micro_batches).map(|_| self.draw(scale / f64::from(micro_batches))).collect();
            let mean_of_squares = drawn.iter().map(norm).sum::<f64>() / f64::from(micro_batches);
            let mean = |i: usize| drawn.iter().map(|gradient| gradient[i]).sum::<f64>() / f64::from(micro_batches);
            StepNorms::Many { micro_batches, mean_of_squares, square_of_mean: norm(&std::array::from_fn(mean)) }
        }
    }

    fn norm(gradient: &[f64; COORDINATES]) -> f64 {
        gradient.iter().map(|part| part * part).sum()
    }

    fn check(found: GradientNoise, expected: GradientNoise, tolerance: f64) {
        let near = |found: f64, expected: f64| (found / expected - 1.0).abs() <= tolerance;
        assert!(
            near(found.sqr, expected.sqr) && near(found.var, expected.var),
            "{found:?} is not near {expected:?} (seed {SEED})"
        );
    }

    #[test]
    fn many_micro_batches_tell_signal_from_noise_at_any_batch_size() {
        for (micro_batches, scale) in [(2, 0.5), (4, 1.0), (16, 8.0)] {
            let mut gradients = Gradients(SEED);
            let mut estimator = NoiseEstimator::default();
            for _ in 0..(6000.0 / scale) as u32 {
                estimator.observe(gradients.many(micro_batches, scale), scale);
            }
            check(estimator.noise(), Gradients::TRUTH, 0.1);
        }
    }

    #[test]
    fn successive_gradients_of_a_lone_replica_do_too_while_the_signal_stands_still() {
        let mut gradients = Gradients(SEED);
        let mut estimator = NoiseEstimator::default();
        let mut before = gradients.draw(1.0);
        for _ in 0..6000 {
            let now = gradients.draw(1.0);
            let square_of_mean = norm(&std::array::from_fn(|i| (before[i] + now[i]) / 2.0));
            estimator.observe(StepNorms::Lone { before: norm(&before), now: norm(&now), square_of_mean }, 1.0);
            before = now;
        }
        check(estimator.noise(), Gradients::TRUTH, 0.15);
    }

    #[test]
    fn estimates_of_a_lone_replica_are_dropped_once_there_are_several() {
        let mut estimator = NoiseEstimator::default();
        for _ in 0..50 {
            estimator.observe(StepNorms::Lone { before: 100.0, now: 100.0, square_of_mean: 60.0 }, 1.0);
        }
        estimator.observe(StepNorms::Many { micro_batches: 2, mean_of_squares: 8.0, square_of_mean: 5.0 }, 2.0);
        check(estimator.noise(), GradientNoise { sqr: 2.0, var: 6.0 }, 1e-12);
    }

    #[test]
    fn the_past_fades_with_examples_not_with_steps() {
        let after = |scale: f64, steps: u32| {
            let mut estimator = NoiseEstimator::default();
            let step = |sqr: f64| StepNorms::Many { micro_batches: 2, mean_of_squares: sqr, square_of_mean: sqr };
            for _ in 0..steps {
                estimator.observe(step(1.0), scale);
            }
            for _ in 0..steps {
                estimator.observe(step(3.0), scale);
            }
            estimator.noise().sqr
        };
        let expected = after(1.0, 600);
        assert!(expected > 2.1 && expected < 2.9, "neither old nor new alone: {expected}");
        assert!((after(10.0, 60) - expected).abs() < 1e-9);
        assert!((after(0.5, 1200) - expected).abs() < 1e-9);
    }

    #[test]
    fn the_first_estimate_counts_in_full() {
        let mut estimator = NoiseEstimator::default();
        estimator.observe(StepNorms::Many { micro_batches: 2, mean_of_squares: 8.0, square_of_mean: 5.0 }, 2.0);
        check(estimator.noise(), GradientNoise { sqr: 2.0, var: 6.0 }, 1e-12);
    }

    #[test]
    fn an_overflown_gradient_is_passed_over() {
        let mut estimator = NoiseEstimator::default();
        let overflown = StepNorms::Many { micro_batches: 2, mean_of_squares: f64::INFINITY, square_of_mean: 5.0 };
        estimator.observe(overflown, 1.0);
        assert_eq!(estimator, NoiseEstimator::default());
    }

    #[test]
    fn groups_add_up_and_none_is_below_nothing() {
        let mut noisy = NoiseEstimator::default();
        noisy.observe(StepNorms::Many { micro_batches: 2, mean_of_squares: 8.0, square_of_mean: 1.0 }, 1.0);
        let mut clear = NoiseEstimator::default();
        clear.observe(StepNorms::Many { micro_batches: 2, mean_of_squares: 4.0, square_of_mean: 4.0 }, 1.0);
        // The estimate of the noisy group's signal is 2 - 8, hence nothing.
        assert_eq!(total_noise(&[noisy, clear]), GradientNoise { sqr: 4.0, var: 7.0 + LEAST_VARIANCE });
    }
}
