//! How often which value occurs, in bounded memory: the values themselves while they are few, narrow classes once they
//! are many.

/// So many values are kept one by one. With more, a value is known to within [`CLASS_WIDTH`] of itself.
pub(crate) const MOST_EXACT: usize = 1 << 20;
/// The width of a class, compared with the values in it.
pub(crate) const CLASS_WIDTH: f64 = 1.0 / 256.0;
/// Of the 52 bits of a fraction so many are not looked at: 256 classes from one power of two to the next.
const DROPPED_BITS: u32 = 44;
/// A thousandth, rounded down to a power of two: a millisecond, or a thousandth of a GPU. What is smaller counts as 0.
const LEAST: f64 = 1.0 / 1024.0;
/// What is larger, three hundred years in seconds and more, counts as that.
const MOST: f64 = (1_u64 << 40) as f64;
/// Values in classes are listed at so many even ranks.
const RANKS: u64 = 1 << 17;

/// Values of at least 0.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Distribution {
    values: Vec<f64>,
    /// Nothing while the values themselves are known.
    classes: Vec<Class>,
    count: u64,
    sum: f64,
    largest: f64,
    /// Mean and sum of squared deviations so far, updated as by Welford.
    mean: f64,
    squares: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Class {
    count: u64,
    /// The least value met in it stands for all, so that one that occurs often is exact.
    least: f64,
}

impl Distribution {
    pub fn add(&mut self, value: f64) {
        self.count += 1;
        self.sum += value;
        self.largest = self.largest.max(value);
        let before = value - self.mean;
        self.mean += before / self.count as f64;
        self.squares += before * (value - self.mean);
        if !self.is_exact() {
            classify(&mut self.classes, value);
            return;
        }
        self.values.push(value);
        if self.values.len() > MOST_EXACT {
            self.classes = vec![Class { count: 0, least: f64::INFINITY }; class_of(MOST) + 1];
            std::mem::take(&mut self.values).into_iter().for_each(|value| classify(&mut self.classes, value));
        }
    }

    /// Whether every value is known as it was added.
    pub fn is_exact(&self) -> bool {
        self.classes.is_empty()
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }

    /// Standard deviation over mean.
    pub fn variation(&self) -> Option<f64> {
        let mean = self.mean().filter(|&mean| mean > 0.0)?;
        Some((self.squares / self.count as f64).sqrt() / mean)
    }

    /// The values at these shares of the whole, by rank: of `n` values in order, that at position ⌊share · n⌋. There must
    /// be at least one value.
    pub fn at(&self, shares: &[f64]) -> Vec<f64> {
        assert!(self.count > 0, "there are values");
        let rank = |share: f64| ((share * self.count as f64) as u64).min(self.count - 1);
        let mut found = self.of_ranks(&shares.iter().map(|&share| rank(share)).collect::<Vec<_>>());
        for (value, &share) in found.iter_mut().zip(shares) {
            if share >= 1.0 {
                *value = self.largest;
            }
        }
        found
    }

    /// So many points of the distribution function, evenly by rank from the least value to the largest: values, and the
    /// share of all values up to there.
    pub fn curve(&self, points: u64) -> Vec<(f64, f64)> {
        let points = points.min(self.count);
        let rank = |point: u64| if points < 2 { 0 } else { point * (self.count - 1) / (points - 1) };
        let ranks: Vec<u64> = (0..points).map(rank).collect();
        let share = |rank: u64| (rank + 1) as f64 / self.count as f64;
        self.of_ranks(&ranks).into_iter().zip(ranks).map(|(value, rank)| (value, share(rank))).collect()
    }

    /// The values, in order; if they are only known by class, as many as stand for them.
    pub fn sorted(&self) -> Vec<f64> {
        if self.is_exact() {
            let mut values = self.values.clone();
            values.sort_unstable_by(f64::total_cmp);
            return values;
        }
        self.of_ranks(&(0..RANKS).map(|index| index * self.count / RANKS).collect::<Vec<_>>())
    }

    /// The values at ranks from 0 on.
    fn of_ranks(&self, ranks: &[u64]) -> Vec<f64> {
        if self.is_exact() {
            let values = self.sorted();
            return ranks.iter().map(|&rank| values[rank as usize]).collect();
        }
        let mut up_to = 0;
        let ends: Vec<u64> = self
            .classes
            .iter()
            .map(|class| {
                up_to += class.count;
                up_to
            })
            .collect();
        ranks.iter().map(|&rank| self.classes[ends.partition_point(|&end| end <= rank)].least).collect()
    }
}

fn classify(classes: &mut [Class], value: f64) {
    let class = &mut classes[class_of(value)];
    class.count += 1;
    class.least = class.least.min(value);
}

/// Positive numbers are in the order of their bits.
fn class_of(value: f64) -> usize {
    if value < LEAST {
        return 0;
    }
    let bits = |value: f64| (value.to_bits() >> DROPPED_BITS) as usize;
    bits(value.min(MOST)) - bits(LEAST) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: impl IntoIterator<Item = f64>) -> Distribution {
        let mut distribution = Distribution::default();
        values.into_iter().for_each(|value| distribution.add(value));
        distribution
    }

    #[test]
    fn few_values_are_known_exactly() {
        let distribution = of([3.0, 1.0, 2.0, 4.0]);
        assert_eq!(distribution.at(&[0.0, 0.5, 1.0]), [1.0, 3.0, 4.0]);
        assert_eq!((distribution.mean(), distribution.is_exact()), (Some(2.5), true));
        assert!((distribution.variation().unwrap() - 1.25_f64.sqrt() / 2.5).abs() < 1e-12);
        assert_eq!(distribution.curve(2), [(1.0, 0.25), (4.0, 1.0)]);
    }

    #[test]
    fn many_values_are_known_to_within_a_class() {
        // Every value from 1 on, in an order that is not theirs, and one value that is as frequent as all others.
        let count = MOST_EXACT as u64;
        let value = |index: u64| (index * 7919 % count) as f64 * 0.5 + 1.0;
        let distribution = of((0..count).map(value).chain((0..count).map(|_| 172_800.0)));
        assert!(!distribution.is_exact());
        assert_eq!(distribution.count(), 2 * count);
        for share in [0.01, 0.1, 0.15] {
            let (found, exact) = (distribution.at(&[share])[0], share * count as f64 + 1.0);
            assert!((found / exact - 1.0).abs() <= CLASS_WIDTH, "{found}, not {exact}");
        }
        assert_eq!(
            distribution.at(&[0.5, 1.0]),
            [172_800.0_f64.min(distribution.at(&[0.5])[0]), count as f64 * 0.5 + 0.5]
        );
        let half = distribution.at(&[0.5])[0];
        assert!((half / 172_800.0 - 1.0).abs() <= CLASS_WIDTH, "{half}");
        let sorted = distribution.sorted();
        assert!(sorted.is_sorted() && sorted.len() as u64 == RANKS);
    }

    #[test]
    fn nothing_is_too_small_or_too_large_for_a_class() {
        let mut distribution = of((0..=MOST_EXACT).map(|_| 1.0));
        [0.0, 1e-9, 1e300].into_iter().for_each(|value| distribution.add(value));
        assert_eq!(distribution.at(&[0.0, 1.0]), [0.0, 1e300]);
        assert_eq!(distribution.at(&[0.5]), [1.0]);
    }
}
