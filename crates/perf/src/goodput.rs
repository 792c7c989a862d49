//! Examples per second, discounted by how much they teach: the product of throughput and efficiency that Pollux (OSDI
//! 2021, section 3) and Sia (SOSP 2023) schedule by, and the batch size that makes the most of a number of GPUs.

use cluster::Invalid;
use serde::{Deserialize, Serialize};

use crate::efficiency::GradientNoise;
use crate::step_time::StepTime;

/// A later choice of batch size must promise this much more before a running job changes.
const WORTH_SWITCHING: f64 = 1.05;

/// What is forgiven when a quotient that should be whole is rounded up.
const FORGIVEN: f64 = 1e-8;

const RUNGS: usize = 50;

/// The batch sizes that a job may use, in examples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchLimits {
    /// M₀: the batch size the job was designed for.
    pub initial: u32,
    /// M_max: the largest total.
    pub max: u32,
    /// m_min: the least that is worth a GPU.
    pub local_min: u32,
    /// m_max: the most that fits into a GPU's memory.
    pub local_max: u32,
}

impl BatchLimits {
    pub fn check(&self) -> Result<(), Invalid> {
        let positive = [("batch.initial", self.initial), ("batch.local_min", self.local_min)];
        if let Some((field, found)) = positive.into_iter().find(|&(_, value)| value == 0) {
            return Err(Invalid::new(field, "at least 1 example", found));
        }
        if self.max < self.initial {
            return Err(Invalid::new("batch.max", format!("at least the initial {}", self.initial), self.max));
        }
        if self.local_max < self.local_min {
            let expected = format!("at least the local minimum {}", self.local_min);
            return Err(Invalid::new("batch.local_max", expected, self.local_max));
        }
        if self.local_min > self.max {
            return Err(Invalid::new("batch.local_min", format!("at most the total {}", self.max), self.local_min));
        }
        Ok(())
    }
}

/// How a total batch is spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tuning {
    /// m: examples per GPU and pass.
    pub local: u32,
    /// s: passes before the one that exchanges gradients.
    pub accumulations: u32,
}

impl Tuning {
    /// M: examples between two updates of the weights.
    pub fn total(self, replicas: u32) -> u64 {
        u64::from(replicas) * u64::from(self.local) * (u64::from(self.accumulations) + 1)
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tuned {
    pub goodput: f64,
    pub tuning: Tuning,
}

/// How exactly the candidate batch sizes are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ladder {
    Double,
    /// As Sia's policy does, in single precision. It shows only where the smallest and the largest total are the same:
    /// the totals in between can come out a little above, and need one example more per GPU.
    Single,
}

/// All that the goodput of a job on one kind of GPU depends on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Goodput {
    pub step: StepTime,
    pub noise: GradientNoise,
    pub limits: BatchLimits,
    /// If not, the total `limits.max` is the only one.
    pub tunable: bool,
    pub ladder: Ladder,
    /// Whether gradients may be accumulated over several passes.
    pub accumulate: bool,
}

impl Goodput {
    /// The best of fifty totals in geometric steps; the smallest of equals. `None` if no total suits the number of
    /// replicas.
    pub fn best(&self, nodes: u32, replicas: u32) -> Option<Tuned> {
        let network_secs = self.step.network_secs(nodes, replicas);
        let mut last = None;
        let mut best: Option<Tuned> = None;
        for local in self.locals(replicas) {
            let tuning = self.spread(local, replicas);
            if last.replace(tuning) == Some(tuning) || !self.suits(tuning) {
                continue;
            }
            let goodput = self.over(network_secs, replicas, tuning);
            if best.is_none_or(|best| goodput > best.goodput) {
                best = Some(Tuned { goodput, tuning });
            }
        }
        best
    }

    /// Examples per second, each worth as much as one in a batch of the initial size.
    pub fn at(&self, nodes: u32, replicas: u32, tuning: Tuning) -> f64 {
        self.over(self.step.network_secs(nodes, replicas), replicas, tuning)
    }

    fn over(&self, network_secs: f64, replicas: u32, tuning: Tuning) -> f64 {
        let total = tuning.total(replicas) as f64;
        let iteration_secs = self.step.iteration_secs_over(network_secs, tuning);
        total / iteration_secs * self.noise.efficiency(total / f64::from(self.limits.initial))
    }

    /// Examples per replica for totals from the least to the most in geometric steps. Where the least that occupies all
    /// replicas is above the most, the ladder descends, and rungs that round up to the local minimum still count.
    fn locals(&self, replicas: u32) -> impl Iterator<Item = f64> {
        let count = f64::from(replicas);
        let high = f64::from(self.limits.max);
        let low = match self.tunable {
            true => f64::from(self.limits.initial).max(f64::from(self.limits.local_min) * count),
            false => high,
        };
        let flat = low == high;
        let (first, ratio) = match (flat, self.ladder) {
            (true, Ladder::Single) => (f64::from(through_logarithm(high as f32) / replicas as f32), 1.0),
            (true, Ladder::Double) => (high / count, 1.0),
            (false, _) => {
                let ratio = (high / low).powf(1.0 / (RUNGS - 1) as f64);
                (low / count * ratio, ratio)
            }
        };
        let inner = std::iter::successors(Some(first), move |local| Some(local * ratio));
        let inner = inner.take(if flat { 1 } else { RUNGS - 2 });
        std::iter::once(low / count).chain(inner).chain(std::iter::once(high / count))
    }

    /// The passes and the batch per GPU, rounded up.
    fn spread(&self, local: f64, replicas: u32) -> Tuning {
        let passes = match self.accumulate {
            true => {
                let needed = (local / f64::from(self.limits.local_max) - FORGIVEN).ceil().max(1.0);
                let lone_and_enlarged = replicas == 1 && local > f64::from(self.limits.initial) + FORGIVEN;
                // The noise of a single replica's gradient shows only between two passes.
                if lone_and_enlarged { needed.max(2.0) } else { needed }
            }
            false => 1.0,
        };
        Tuning { local: (local / passes - FORGIVEN).ceil() as u32, accumulations: passes as u32 - 1 }
    }

    fn suits(&self, tuning: Tuning) -> bool {
        (self.limits.local_min..=self.limits.local_max).contains(&tuning.local)
    }
}

/// A number as it comes back from its decimal logarithm in single precision.
fn through_logarithm(number: f32) -> f32 {
    10f32.powf(number.log10())
}

/// How a job spreads a given total that it does not tune: as few passes as the memory of a GPU allows, but two for a
/// single replica whose batch was enlarged.
pub fn untuned(total: u32, replicas: u32, limits: BatchLimits) -> Tuning {
    let local = total.div_ceil(replicas);
    let least = if replicas == 1 && total > limits.initial { 2 } else { 1 };
    let passes = local.div_ceil(limits.local_max).max(least);
    Tuning { local: local.div_ceil(passes), accumulations: passes - 1 }
}

/// The same passes with less per GPU, so that rounding up does not lift the total above the most; at least one example.
pub fn capped(tuning: Tuning, replicas: u32, limits: BatchLimits) -> Tuning {
    let most = u64::from(limits.max) / (u64::from(replicas) * (u64::from(tuning.accumulations) + 1));
    Tuning { local: u64::from(tuning.local).min(most).max(1) as u32, ..tuning }
}

/// Whether a running job should leave its batch size for a better one (the 5 % rule of Pollux's trainer).
pub fn should_switch(current_goodput: f64, best_goodput: f64) -> bool {
    best_goodput > WORTH_SWITCHING * current_goodput
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step_time::Line;

    /// Half a second per exchange and a tenth per example and pass.
    fn goodput(limits: BatchLimits) -> Goodput {
        let network = Line { fixed: 0.5, slope: 0.0 };
        Goodput {
            step: StepTime {
                compute: Line { fixed: 0.0, slope: 0.1 },
                between_nodes: network,
                within_node: network,
                overlap: 1.0,
            },
            noise: GradientNoise::UNKNOWN,
            limits,
            tunable: true,
            ladder: Ladder::Double,
            accumulate: true,
        }
    }

    fn limits(initial: u32, max: u32, local_min: u32, local_max: u32) -> BatchLimits {
        BatchLimits { initial, max, local_min, local_max }
    }

    /// The best choice as `local x passes`.
    fn check(goodput: &Goodput, replicas: u32, expected: &str) {
        let found = goodput.best(1, replicas).map_or("none".into(), |best| {
            assert_eq!(best.goodput, goodput.at(1, replicas, best.tuning));
            format!("{} x {}", best.tuning.local, best.tuning.accumulations + 1)
        });
        assert_eq!(found, expected, "{goodput:?} with {replicas} replicas");
    }

    #[test]
    fn goodput_is_throughput_times_efficiency() {
        let job = Goodput { noise: GradientNoise { sqr: 1.0, var: 1.0 }, ..goodput(limits(8, 64, 1, 64)) };
        let tuning = Tuning { local: 8, accumulations: 1 };
        // 32 examples in 2 * 0.8 + 0.5 seconds; four times the batch is worth 2 / (1/4 + 1) iterations.
        assert!((job.at(1, 2, tuning) - 32.0 / 2.1 * (1.6 / 4.0)).abs() < 1e-9);
    }

    #[test]
    fn without_loss_of_efficiency_the_largest_batch_is_best() {
        check(&goodput(limits(8, 64, 1, 64)), 2, "32 x 1");
    }

    #[test]
    fn without_noise_the_initial_batch_is_best() {
        let job = Goodput { noise: GradientNoise { sqr: 1.0, var: 0.0 }, ..goodput(limits(8, 64, 1, 64)) };
        check(&job, 2, "4 x 1");
    }

    #[test]
    fn between_the_two_the_best_of_all_totals_on_the_ladder_wins() {
        let job = Goodput { noise: GradientNoise { sqr: 1.0, var: 30.0 }, ..goodput(limits(8, 512, 1, 512)) };
        let best = job.best(1, 4).expect("all totals suit");
        for local in 2..=128 {
            let other = job.at(1, 4, Tuning { local, accumulations: 0 });
            assert!(other <= best.goodput * 1.01, "{local} gives {other}, the best {best:?}");
        }
        assert!((3..127).contains(&best.tuning.local), "{best:?} lies at an end");
    }

    #[test]
    fn what_does_not_fit_into_memory_is_accumulated() {
        check(&goodput(limits(8, 64, 1, 10)), 2, "8 x 4");
        check(&Goodput { accumulate: false, ..goodput(limits(8, 64, 1, 10)) }, 2, "10 x 1");
    }

    #[test]
    fn a_lone_replica_needs_two_passes_for_an_enlarged_batch() {
        let compute = Line { fixed: 1.0, slope: 0.0 };
        let mut job = goodput(limits(8, 64, 1, 64));
        job.step.compute = compute;
        check(&job, 1, "32 x 2");
        check(&Goodput { limits: limits(64, 64, 1, 64), ..job }, 1, "64 x 1");
    }

    #[test]
    fn a_job_that_does_not_tune_has_one_total() {
        let fixed = Goodput { tunable: false, ..goodput(limits(8, 60, 1, 64)) };
        check(&fixed, 4, "15 x 1");
        check(&fixed, 8, "8 x 1");
    }

    #[test]
    fn a_ladder_that_descends_ends_at_the_local_minimum() {
        check(&goodput(limits(8, 64, 10, 32)), 8, "10 x 1");
    }

    #[test]
    fn a_fixed_total_too_small_for_the_replicas_suits_none() {
        let fixed = Goodput { tunable: false, ..goodput(limits(8, 64, 10, 32)) };
        check(&fixed, 8, "none");
        check(&fixed, 4, "16 x 1");
    }

    #[test]
    fn in_single_precision_a_flat_ladder_can_need_one_example_more() {
        // YOLOv3 with a total of 64 on 16 GPUs: Sia's policy values it at a total of 80.
        let job = goodput(limits(8, 64, 4, 16));
        check(&job, 16, "4 x 1");
        check(&Goodput { ladder: Ladder::Single, ..job }, 16, "5 x 1");
    }

    #[test]
    fn single_precision_lifts_the_totals_that_sia_lifts() {
        let lifted = [16, 20, 48, 64, 256, 320, 384, 400, 512, 640, 3200, 4096, 6400, 12800];
        let kept = [8, 12, 24, 32, 40, 80, 96, 128, 160, 192, 200, 800, 1024, 1600, 2048];
        let above = |total: &u32| through_logarithm(*total as f32) > *total as f32;
        let all = lifted.iter().chain(&kept);
        assert_eq!(all.copied().filter(above).collect::<Vec<_>>(), lifted);
    }

    #[test]
    fn rungs_found_by_multiplying_need_the_same_batches_as_those_found_by_logarithms() {
        let models = [
            limits(12, 384, 4, 12),
            limits(128, 4096, 32, 1024),
            limits(20, 640, 10, 57),
            limits(200, 12800, 20, 200),
            limits(256, 32768, 32, 32768),
            limits(8, 512, 4, 16),
        ];
        for (limits, replicas) in models.into_iter().flat_map(|limits| (1..=64).map(move |replicas| (limits, replicas)))
        {
            let job = goodput(limits);
            let low = limits.initial.max(limits.local_min * replicas);
            if low == limits.max {
                continue;
            }
            let (low, high) = (f64::from(low).log10(), f64::from(limits.max).log10());
            let inner = |rung: usize| 10f64.powf(low + rung as f64 * (high - low) / 49.0) / f64::from(replicas);
            for (rung, local) in job.locals(replicas).enumerate().skip(1).take(RUNGS - 2) {
                assert_eq!(job.spread(local, replicas), job.spread(inner(rung), replicas), "{limits:?}, {replicas}");
            }
        }
    }

    #[test]
    fn untuned_totals_are_spread_as_the_pollux_artifact_spreads_them() {
        let cifar10 = limits(128, 4096, 32, 1024);
        let spread = |total, replicas, limits| {
            let tuning = capped(untuned(total, replicas, limits), replicas, limits);
            (tuning.local, tuning.accumulations, tuning.total(replicas))
        };
        assert_eq!(spread(2048, 6, cifar10), (342, 0, 2052));
        assert_eq!(spread(4096, 12, cifar10), (341, 0, 4092));
        assert_eq!(spread(2048, 1, cifar10), (1024, 1, 2048));
        assert_eq!(spread(640, 12, limits(20, 640, 10, 80)), (53, 0, 636));
        assert_eq!(spread(32768, 1, limits(256, 32768, 32, 32768)), (16384, 1, 32768));
        assert_eq!(spread(128, 1, cifar10), (128, 0, 128));
    }

    #[test]
    fn batch_sizes_change_only_for_a_twentieth_more() {
        assert!(!should_switch(100.0, 105.0));
        assert!(should_switch(100.0, 105.1));
    }

    #[test]
    fn contradictory_limits_are_refused() {
        let refusal = |limits: BatchLimits| limits.check().err().map(|fault| fault.to_string());
        assert_eq!(refusal(limits(8, 64, 4, 16)), None);
        for (limits, expected) in [
            (limits(0, 64, 4, 16), "batch.initial: expected at least 1 example, found 0"),
            (limits(8, 64, 0, 16), "batch.local_min: expected at least 1 example, found 0"),
            (limits(8, 4, 4, 16), "batch.max: expected at least the initial 8, found 4"),
            (limits(8, 64, 4, 3), "batch.local_max: expected at least the local minimum 4, found 3"),
            (limits(8, 64, 65, 70), "batch.local_min: expected at most the total 64, found 65"),
        ] {
            assert_eq!(refusal(limits).as_deref(), Some(expected));
        }
    }
}
