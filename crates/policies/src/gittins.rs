//! Gittins: whoever is most likely to be done soon, judging by how much jobs like it took before.
//!
//! Paper: Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019, section 3.2
//! (2D-Gittins); after J. Gittins, "Bandit processes and dynamic allocation indices", J. R. Statist. Soc. B 41, 1979.
//!
//! The idea. The sizes of finished jobs, in GPU time, tell how much a job that has had `a` will still want. Its index
//! is the chance that it ends within the next Δ of service, over the service it is expected to take of that Δ:
//! G(a) = P(S - a <= Δ | S > a) / E[min(S - a, Δ) | S > a]. The highest index runs first. Discretized, jobs are first
//! sorted into queues by attained service as in `tiresias`, and by index within a queue.
//!
//! | paper      | here                                                      |
//! |------------|-----------------------------------------------------------|
//! | S          | `History::sizes`, the GPU time of finished jobs           |
//! | a          | `claim.attained(now)`                                     |
//! | Δ          | `delta`                                                   |
//! | G(a)       | `Sizes::index`                                            |
//!
//! Deviations. Δ is one number and not the distance to the next threshold. The released code takes the expected service
//! from absolute sizes; here it is S - a, as in the paper. Where no finished job was as large (at first: everywhere) the
//! index is 0 and the least attained goes first. The index changes with every GPU second and every finished job;
//! comparing in rounds of a minute keeps jobs from being stopped over nothing and bounds what ranking costs: as much as
//! there are running jobs, and as there are jobs at all after one has finished. Besides the queues, what damps it is that
//! nobody is stopped before it has run for as long as a restart takes.

use std::cmp::Reverse;

use cluster::{GpuTime, Span, Time};
use plan::{Claim, Plan, Policy, Rhythm, Snapshot, Turns};

use crate::blocks::draft::Draft;
use crate::blocks::order::{self, Line, Order, Rank, Standing};
use crate::blocks::place::Style;
use crate::blocks::preempt;
use crate::config::{ConfigError, PolicyConfig};

pub(crate) fn build(config: &PolicyConfig) -> Result<Box<dyn Policy>, ConfigError> {
    let thresholds = config.thresholds("thresholds")?;
    let thresholds = if config.switch("discrete")? { thresholds } else { Vec::new() };
    let delta = config.gpu_time("delta")?;
    let rule = HighestIndex { thresholds, sizes: Sizes::new(delta) };
    Ok(Box::new(Gittins { rule, round: config.round("round")?, line: Line::new() }))
}

#[derive(Debug)]
struct Gittins {
    rule: HighestIndex,
    round: Span,
    line: Line<Key>,
}

/// Queue; index, highest first; attained service; who runs before who waits; who came first.
type Key = (usize, Reverse<u64>, u64, Standing, Time);

#[derive(Debug)]
struct HighestIndex {
    thresholds: Vec<GpuTime>,
    sizes: Sizes,
}

/// The distribution of sizes, summed up from the smallest so that an index is two look-ups.
#[derive(Debug)]
struct Sizes {
    delta: u64,
    /// Size; how many are at most as large; what they are together.
    sums: Vec<(u64, u64, u128)>,
    count: u64,
}

impl Policy for Gittins {
    fn plan(&mut self, snapshot: &Snapshot<'_>) -> Plan {
        self.update(snapshot);
        let mut draft = Draft::new(snapshot);
        let nobody_waits = preempt::in_order(&mut draft, &self.line, &self.rule, |_| Style::Pack, false);
        draft.plan((!nobody_waits).then(|| order::next_round(snapshot.now, self.round)))
    }

    fn turns(&mut self, snapshot: &Snapshot<'_>) -> Turns {
        self.update(snapshot);
        self.line.turns(false)
    }

    fn rhythm(&self) -> Rhythm {
        Rhythm::EveryRound(self.round)
    }
}

impl Gittins {
    /// Files claims by what is known of sizes now.
    fn update(&mut self, snapshot: &Snapshot<'_>) {
        let sizes = snapshot.books.history().sizes();
        if sizes.count() == self.rule.sizes.count {
            self.line.update(snapshot, &self.rule);
        } else {
            self.rule.sizes.learn(sizes);
            self.line.rebuild(snapshot, &self.rule);
        }
    }
}

impl Order for HighestIndex {
    type Key = Key;

    fn rank(&self, snapshot: &Snapshot<'_>, claim: &Claim, standing: Standing) -> Rank<Key> {
        let attained = claim.attained(snapshot.now);
        let level = self.thresholds.partition_point(|&threshold| threshold <= attained);
        // The bits of floating-point numbers that are not negative are ordered like the numbers.
        let index = self.sizes.index(attained.as_raw()).to_bits();
        let moves = !claim.progress.holding().is_zero();
        Rank::moving_if(moves, (level, Reverse(index), attained.as_raw(), standing, claim.submitted))
    }

    fn spares(&self, snapshot: &Snapshot<'_>, claim: &Claim) -> bool {
        order::is_settling(snapshot, claim)
    }
}

impl Sizes {
    fn new(delta: GpuTime) -> Sizes {
        Sizes { delta: delta.as_raw(), sums: Vec::new(), count: 0 }
    }

    fn learn(&mut self, sizes: &plan::Sizes) {
        self.sums.clear();
        let (mut count, mut total) = (0, 0);
        for (jobs, size) in sizes.iter() {
            count += jobs;
            total += u128::from(jobs) * u128::from(size.as_raw());
            self.sums.push((size.as_raw(), count, total));
        }
        self.count = sizes.count();
    }

    /// G(a), per unit of service; 0 where nothing is known.
    fn index(&self, attained: u64) -> f64 {
        let (ended, ended_total) = self.up_to(attained);
        let (ending, ending_total) = self.up_to(attained.saturating_add(self.delta));
        let (soon, later) = (ending - ended, self.count - ending);
        if soon + later == 0 {
            return 0.0;
        }
        let until_end = ending_total - ended_total - u128::from(soon) * u128::from(attained);
        let expected = until_end + u128::from(later) * u128::from(self.delta);
        soon as f64 / expected as f64
    }

    /// How many sizes are at most so large, and what they are together.
    fn up_to(&self, size: u64) -> (u64, u128) {
        let above = self.sums.partition_point(|&(other, _, _)| other <= size);
        above.checked_sub(1).map_or((0, 0), |last| (self.sums[last].1, self.sums[last].2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::text::Scenario;

    fn gittins(pairs: &[&str]) -> Box<dyn Policy> {
        build(&PolicyConfig::from_pairs("gittins", pairs).unwrap()).unwrap()
    }

    // The examples here are our own, small enough to be worked out by hand.

    /// Three of four jobs take 100 GPU seconds, one takes 1000.
    fn learned() -> Sizes {
        let mut history = plan::Sizes::default();
        for secs in [100, 100, 100, 1000] {
            history.add(GpuTime::from_gpu_secs(secs));
        }
        let mut sizes = Sizes::new(GpuTime::from_gpu_secs(200));
        sizes.learn(&history);
        sizes
    }

    #[test]
    fn the_index_is_chance_over_expected_service() {
        let index = |secs: u64| learned().index(secs * 1_000_000) * 1e6;
        // Fresh: three of four end after 100 s, the fourth takes all 200 s: (3/4) / (500/4 s).
        assert!((index(0) - 3.0 / 500.0).abs() < 1e-12);
        // After 60 s: 40 s to go for three of four: 3 / (3 * 40 + 200).
        assert!((index(60) - 3.0 / 320.0).abs() < 1e-12);
        // After 100 s only the large one is left, and it does not end within 200 s.
        assert_eq!(index(100), 0.0);
        // After 900 s it surely ends within 100 s.
        assert!((index(900) - 1.0 / 100.0).abs() < 1e-12);
        // Nobody was ever as large.
        assert_eq!(index(1000), 0.0);
    }

    fn with_history() -> Scenario {
        Scenario::new("1x1")
            .finished("u", "a", "100s", 1)
            .finished("u", "b", "100s", 1)
            .finished("u", "c", "100s", 1)
            .finished("u", "d", "1000s", 1)
            .at("1h")
    }

    #[test]
    fn who_is_about_to_end_goes_before_who_has_had_less() {
        let scenario = with_history().job("fresh").job("nearly attained 60").job("stuck attained 300");
        scenario.check(&mut *gittins(&["delta=200"]), "nearly: n0:0");
    }

    #[test]
    fn queues_come_before_the_index_when_discrete() {
        let scenario = with_history().job("fresh").job("ending attained 900");
        scenario.check(&mut *gittins(&["delta=200", "thresholds=500,800"]), "fresh: n0:0");
        scenario.check(&mut *gittins(&["delta=200", "discrete=false"]), "ending: n0:0");
    }

    #[test]
    fn without_history_the_least_attained_goes_first() {
        let scenario = Scenario::new("1x1").at("1h").job("much attained 600 runs n0:0").job("little attained 60");
        scenario.check(&mut *gittins(&[]), "little: n0:0");
    }
}
