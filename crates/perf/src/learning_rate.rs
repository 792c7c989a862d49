//! By how much the learning rate grows with the batch size: the rules that trainers of adaptive jobs choose from. The
//! factor multiplies the user's rate for one optimiser step.

use serde::{Deserialize, Serialize};

use crate::efficiency::GradientNoise;
use crate::noise::LEAST_VARIANCE;

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum LearningRateRule {
    /// As much as a step gains (Johnson et al., ICML 2020); for plain stochastic gradient descent.
    AdaScale,
    /// Its square root; for Adam and its kin.
    AdamScale,
    /// As the batch (Goyal et al. 2017).
    Linear,
    /// As the square root of the batch (Krizhevsky 2014).
    SquareRoot,
    /// As the square root of the batch, after a warm-up that lasts the longer the larger the batch (You et al. 2019).
    Legw { warm_up_epochs: f64, examples: u64, loader_batch: u32 },
}

impl LearningRateRule {
    /// The factor at `scale` times the initial batch size, after `progress` iterations of that size.
    pub fn factor(self, noise: GradientNoise, scale: f64, progress: f64) -> f64 {
        match self {
            LearningRateRule::AdaScale => bounded(noise).gain(scale),
            LearningRateRule::AdamScale => bounded(noise).gain(scale).sqrt(),
            LearningRateRule::Linear => scale,
            LearningRateRule::SquareRoot => scale.sqrt(),
            LearningRateRule::Legw { warm_up_epochs, examples, loader_batch } => {
                let warm_up = warm_up_epochs * scale * examples as f64 / f64::from(loader_batch);
                let warmth = if progress < warm_up { progress / warm_up } else { 1.0 };
                scale.sqrt() * warmth
            }
        }
    }
}

/// An estimate may be below zero; a rate must not.
fn bounded(noise: GradientNoise) -> GradientNoise {
    GradientNoise { sqr: noise.sqr.max(0.0), var: noise.var.max(LEAST_VARIANCE) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOISE: GradientNoise = GradientNoise { sqr: 1.0, var: 3.0 };
    const LEGW: LearningRateRule = LearningRateRule::Legw { warm_up_epochs: 2.0, examples: 50_000, loader_batch: 100 };

    fn check(rule: LearningRateRule, scale: f64, progress: f64, expected: f64) {
        let found = rule.factor(NOISE, scale, progress);
        assert!((found - expected).abs() < 1e-12, "{rule:?} at {scale} gives {found}, not {expected}");
    }

    #[test]
    fn adascale_is_what_a_step_gains() {
        check(LearningRateRule::AdaScale, 1.0, 0.0, 1.0);
        check(LearningRateRule::AdaScale, 3.0, 0.0, 4.0 / 2.0);
        check(LearningRateRule::AdaScale, 1e15, 0.0, 4.0 - 1e-14);
    }

    #[test]
    fn adamscale_is_its_square_root() {
        check(LearningRateRule::AdamScale, 3.0, 0.0, 2f64.sqrt());
    }

    #[test]
    fn estimates_below_zero_count_as_nothing() {
        let noise = GradientNoise { sqr: -5.0, var: 2.0 };
        assert_eq!(LearningRateRule::AdaScale.factor(noise, 4.0, 0.0), 4.0);
    }

    #[test]
    fn linear_and_square_root_ask_only_for_the_batch() {
        check(LearningRateRule::Linear, 4.0, 0.0, 4.0);
        check(LearningRateRule::SquareRoot, 4.0, 0.0, 2.0);
    }

    #[test]
    fn legw_warms_up_over_as_many_more_epochs_as_the_batch_is_larger() {
        // Two epochs of 500 iterations, four times as long: 4,000 iterations.
        check(LEGW, 4.0, 0.0, 0.0);
        check(LEGW, 4.0, 1000.0, 0.5);
        check(LEGW, 4.0, 4000.0, 2.0);
        check(LEGW, 4.0, 9000.0, 2.0);
        check(LearningRateRule::Legw { warm_up_epochs: 0.0, examples: 1, loader_batch: 1 }, 4.0, 0.0, 2.0);
    }
}
