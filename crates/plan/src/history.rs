//! What finished jobs tell about those to come: how long jobs like this one ran, and how GPU time is distributed.

use std::collections::BTreeMap;

use cluster::{GpuTime, Name, Span};
use serde::{Deserialize, Serialize};

/// Facts about finished jobs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct History {
    #[serde(with = "cluster::pairs")]
    by_name: BTreeMap<(Name, Name), Mean>,
    by_user: BTreeMap<Name, Mean>,
    all: Mean,
    sizes: Sizes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Mean {
    count: u64,
    total_ms: u64,
}

/// The distribution of GPU time over finished jobs, in logarithmic buckets of which each keeps its exact sum.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Sizes {
    buckets: BTreeMap<u32, Bucket>,
    count: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Bucket {
    count: u64,
    total: u128,
}

impl History {
    pub fn record(&mut self, user: &Name, name: &Name, executed: Span, attained: GpuTime) {
        self.by_name.entry((user.clone(), name.clone())).or_default().add(executed);
        self.by_user.entry(user.clone()).or_default().add(executed);
        self.all.add(executed);
        self.sizes.add(attained);
    }

    /// The mean run time of finished jobs of the same user and name, else of the same user, else of all.
    pub fn expected(&self, user: &Name, name: &Name) -> Option<Span> {
        self.expected_of_name(user, name).or_else(|| self.by_user.get(user).unwrap_or(&self.all).mean())
    }

    /// The mean run time of finished jobs of the same user and name: of such jobs it can be foretold, of others only
    /// guessed.
    pub fn expected_of_name(&self, user: &Name, name: &Name) -> Option<Span> {
        self.by_name.get(&(user.clone(), name.clone()))?.mean()
    }

    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }
}

impl Mean {
    fn add(&mut self, span: Span) {
        self.count += 1;
        self.total_ms = self.total_ms.saturating_add(span.as_millis());
    }

    fn mean(&self) -> Option<Span> {
        self.total_ms.checked_div(self.count).map(Span::from_millis)
    }
}

impl Sizes {
    /// Buckets per doubling of the size.
    const RESOLUTION: u32 = 16;

    pub fn add(&mut self, size: GpuTime) {
        let bucket = self.buckets.entry(Sizes::bucket(size)).or_default();
        bucket.count += 1;
        bucket.total += u128::from(size.as_raw());
        self.count += 1;
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    /// Each bucket as so many jobs of its mean size, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, GpuTime)> {
        self.buckets
            .values()
            .map(|bucket| (bucket.count, GpuTime::from_raw((bucket.total / u128::from(bucket.count)) as u64)))
    }

    /// Which bucket a size falls into: the position of its highest bit, and the four bits after it.
    fn bucket(size: GpuTime) -> u32 {
        let raw = size.as_raw().max(1);
        let doublings = raw.ilog2();
        let fraction = if doublings >= 4 { (raw >> (doublings - 4)) & 15 } else { (raw << (4 - doublings)) & 15 };
        doublings * Sizes::RESOLUTION + fraction as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_likeness_is_used() {
        let mut history = History::default();
        let (ann, bob): (Name, Name) = ("ann".into(), "bob".into());
        assert_eq!(history.expected(&ann, &"bert".into()), None);
        history.record(&ann, &"bert".into(), Span::from_secs(100), GpuTime::ZERO);
        history.record(&ann, &"bert".into(), Span::from_secs(300), GpuTime::ZERO);
        history.record(&bob, &"gpt".into(), Span::from_secs(1000), GpuTime::ZERO);
        assert_eq!(history.expected(&ann, &"bert".into()), Some(Span::from_secs(200)));
        assert_eq!(history.expected(&bob, &"bert".into()), Some(Span::from_secs(1000)), "the same user");
        assert_eq!(history.expected(&"eve".into(), &"x".into()), Some(Span::from_millis(466_666)), "everyone");
        assert_eq!(history.expected_of_name(&ann, &"bert".into()), Some(Span::from_secs(200)));
        assert_eq!(history.expected_of_name(&bob, &"bert".into()), None, "that is another's");
    }

    #[test]
    fn sizes_far_apart_are_kept_exactly() {
        let mut sizes = Sizes::default();
        for secs in [10, 1000, 3600] {
            sizes.add(GpuTime::from_gpu_secs(secs));
        }
        let kept: Vec<_> = sizes.iter().map(|(count, size)| (count, size.as_gpu_secs())).collect();
        assert_eq!(kept, [(1, 10.0), (1, 1000.0), (1, 3600.0)]);
    }

    #[test]
    fn buckets_ascend_with_size() {
        let buckets: Vec<u32> = (1..5000).map(|raw| Sizes::bucket(GpuTime::from_raw(raw))).collect();
        assert!(buckets.windows(2).all(|pair| pair[0] <= pair[1]));
    }
}
