//! When jobs of a `like-…` workload are submitted. Gaps are drawn on a clock that runs as fast as submissions come: fast
//! by day, slow at night and at weekends, and differently from day to day. Read on a wall clock they have the rhythm of
//! the list and, all together, its times between submissions.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

use super::figures::Figures;
use super::{Aspect, quantile, stream};
use crate::synthetic::normal_rank;

const HOUR_S: f64 = 3600.0;

/// Seconds since Monday, midnight, in whole seconds: the first at zero, the last at the end of the span.
pub(crate) fn submissions(figures: &Figures, jobs: usize, span_s: f64, seed: u64) -> Vec<f64> {
    let clock = Clock::new(figures, span_s, seed);
    let mut gaps = Gaps::new(figures, seed);
    let mut counts = Vec::with_capacity(jobs);
    // Every day gets its share of the jobs, and the gaps drawn are stretched to fill it: so they were counted. They begin
    // anywhere in the day and go on at its start, so that no hour is favoured by long gaps.
    for (from, to) in clock.days() {
        let share = |count: f64| (jobs as f64 * count / clock.end).round() as usize;
        let of_day: Vec<f64> = gaps.by_ref().take(share(to) - share(from)).collect();
        let total = of_day.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        let mut passed = gaps.random.random::<f64>();
        let first = counts.len();
        for gap in of_day {
            passed = (passed + gap / total).fract();
            counts.push(from + (to - from) * passed);
        }
        counts[first..].sort_unstable_by(f64::total_cmp);
    }
    let mut times: Vec<f64> = clock.times(counts.into_iter()).map(f64::round).collect();
    times[jobs - 1] = span_s.round();
    times[0] = 0.0;
    times
}

/// Times between submissions over their mean, hours and days evened out; in bursts.
struct Gaps<'a> {
    figures: &'a Figures,
    random: ChaCha8Rng,
    /// What a gap shares with those around it, as a normal score.
    common: f64,
    memory: f64,
}

impl<'a> Gaps<'a> {
    fn new(figures: &'a Figures, seed: u64) -> Gaps<'a> {
        let mut random: ChaCha8Rng = stream(seed, Aspect::Gaps);
        let common = StandardNormal.sample(&mut random);
        Gaps { figures, random, common, memory: (-1.0 / figures.burst_jobs).exp() }
    }
}

impl Iterator for Gaps<'_> {
    type Item = f64;

    fn next(&mut self) -> Option<f64> {
        let Figures { same_moment, burst_share, gaps, .. } = self.figures;
        let (slow, fast): (f64, f64) =
            (StandardNormal.sample(&mut self.random), StandardNormal.sample(&mut self.random));
        self.common = remembered(self.common, self.memory, slow);
        let rank = normal_rank(remembered(self.common, burst_share.sqrt(), fast));
        let above = (rank - same_moment) / (1.0 - same_moment);
        Some(if above < 0.0 { 0.0 } else { quantile(gaps, above) })
    }
}

/// A standard normal score that correlates with the one before.
pub(crate) fn remembered(before: f64, correlation: f64, draw: f64) -> f64 {
    correlation * before + (1.0 - correlation * correlation).sqrt() * draw
}

/// How fast submissions come, hour by hour, from Monday, midnight.
struct Clock {
    /// Expected submissions up to every full hour, in any unit.
    passed: Vec<f64>,
    /// The end, as such a number.
    end: f64,
}

impl Clock {
    fn new(figures: &Figures, span_s: f64, seed: u64) -> Clock {
        let mut random = stream(seed, Aspect::Days);
        let deviation = figures.day_deviation;
        let mut score: f64 = StandardNormal.sample(&mut random);
        let mut day_factor = 1.0;
        let hours = (span_s / HOUR_S).floor() as usize + 1;
        let mut passed = Vec::with_capacity(hours + 1);
        passed.push(0.0);
        for hour in 0..hours {
            let (day, of_day) = (hour / 24, hour % 24);
            if of_day == 0 {
                score = remembered(score, figures.day_memory, StandardNormal.sample(&mut random));
                day_factor = (deviation * score - deviation * deviation / 2.0).exp();
            }
            passed.push(passed[hour] + figures.hours[of_day] * figures.weekdays[day % 7] * day_factor);
        }
        let part = span_s / HOUR_S - (hours - 1) as f64;
        let end = passed[hours - 1] + (passed[hours] - passed[hours - 1]) * part;
        Clock { passed, end }
    }

    /// Where every day starts and ends, as such numbers.
    fn days(&self) -> impl Iterator<Item = (f64, f64)> {
        let at = |hour: usize| self.passed.get(hour).map_or(self.end, |passed| passed.min(self.end));
        (0..self.passed.len() - 1).step_by(24).map(move |hour| (at(hour), at(hour + 24)))
    }

    /// The wall-clock times, in seconds, of ascending counts of expected submissions.
    fn times(&self, counts: impl Iterator<Item = f64>) -> impl Iterator<Item = f64> {
        let mut hour = 0;
        counts.map(move |count| {
            while hour + 2 < self.passed.len() && self.passed[hour + 1] <= count {
                hour += 1;
            }
            let within = (count - self.passed[hour]) / (self.passed[hour + 1] - self.passed[hour]);
            (hour as f64 + within.clamp(0.0, 1.0)) * HOUR_S
        })
    }
}
