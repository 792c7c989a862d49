//! How fast each of many may go: a bucket for each that fills at the allowed rate.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// More buckets than this are not kept; then all start anew.
const MOST_KEPT: usize = 10_000;

#[derive(Debug)]
pub(crate) struct Rate<K> {
    /// A burst may take what was saved up in this many seconds, and at least one.
    saved_seconds: f64,
    buckets: Mutex<HashMap<K, Bucket>>,
}

#[derive(Debug)]
struct Bucket {
    at: Instant,
    left: f64,
}

impl<K: Eq + Hash> Rate<K> {
    pub(crate) fn saving(saved_seconds: f64) -> Rate<K> {
        Rate { saved_seconds, buckets: Mutex::default() }
    }

    /// Whether one of them may have so much more now. What costs more than can be saved up costs all of that.
    pub(crate) fn admits(&self, who: K, cost: f64, per_second: Option<f64>, now: Instant) -> bool {
        let Some(rate) = per_second else { return true };
        let most = (rate * self.saved_seconds).max(1.0);
        let cost = cost.min(most);
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= MOST_KEPT {
            buckets.clear();
        }
        let bucket = buckets.entry(who).or_insert(Bucket { at: now, left: most });
        bucket.left = (bucket.left + now.duration_since(bucket.at).as_secs_f64() * rate).min(most);
        bucket.at = now;
        let admitted = bucket.left >= cost;
        if admitted {
            bucket.left -= cost;
        }
        admitted
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_burst_is_let_in_and_then_as_many_as_the_rate_allows() {
        let (rate, now) = (Rate::saving(2.0), Instant::now());
        let admitted = |count: usize, now| (0..count).filter(|_| rate.admits(7, 1.0, Some(10.0), now)).count();
        assert_eq!(admitted(100, now), 20);
        assert_eq!(admitted(100, now + Duration::from_secs(1)), 10);
        assert!(rate.admits(8, 1.0, Some(10.0), now), "another user has a bucket of its own");
        assert!((0..100).all(|_| rate.admits(7, 1.0, None, now)));
    }

    #[test]
    fn a_rate_below_one_lets_one_in_at_a_time() {
        let (rate, now) = (Rate::saving(2.0), Instant::now());
        assert!(rate.admits(7, 1.0, Some(0.1), now) && !rate.admits(7, 1.0, Some(0.1), now));
        assert!(rate.admits(7, 1.0, Some(0.1), now + Duration::from_secs(10)));
    }

    #[test]
    fn what_costs_more_than_can_be_saved_up_takes_all_of_it_and_is_let_in_then() {
        let (rate, now) = (Rate::saving(10.0), Instant::now());
        assert!(rate.admits(7, 60.0, Some(10.0), now) && !rate.admits(7, 60.0, Some(10.0), now));
        assert!(rate.admits(7, 1e6, Some(10.0), now + Duration::from_secs(10)));
        assert!(!rate.admits(7, 1.0, Some(10.0), now + Duration::from_secs(10)));
    }
}
