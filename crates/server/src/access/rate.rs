//! How fast each user submits: a bucket for each that fills at the allowed rate.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// A burst may take what was saved up in this many seconds, and at least one.
const SAVED_SECONDS: f64 = 2.0;
/// More buckets than this are not kept; then all start anew.
const MOST_KEPT: usize = 10_000;

#[derive(Debug, Default)]
pub(crate) struct Rate(Mutex<HashMap<u32, Bucket>>);

#[derive(Debug)]
struct Bucket {
    at: Instant,
    left: f64,
}

impl Rate {
    /// Whether the user may submit once more now.
    pub(crate) fn admits(&self, uid: u32, per_second: Option<f64>, now: Instant) -> bool {
        let Some(rate) = per_second else { return true };
        let most = (rate * SAVED_SECONDS).max(1.0);
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= MOST_KEPT {
            buckets.clear();
        }
        let bucket = buckets.entry(uid).or_insert(Bucket { at: now, left: most });
        bucket.left = (bucket.left + now.duration_since(bucket.at).as_secs_f64() * rate).min(most);
        bucket.at = now;
        let admitted = bucket.left >= 1.0;
        if admitted {
            bucket.left -= 1.0;
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
        let (rate, now) = (Rate::default(), Instant::now());
        let admitted = |count: usize, now| (0..count).filter(|_| rate.admits(7, Some(10.0), now)).count();
        assert_eq!(admitted(100, now), 20);
        assert_eq!(admitted(100, now + Duration::from_secs(1)), 10);
        assert!(rate.admits(8, Some(10.0), now), "another user has a bucket of its own");
        assert!((0..100).all(|_| rate.admits(7, None, now)));
    }

    #[test]
    fn a_rate_below_one_lets_one_in_at_a_time() {
        let (rate, now) = (Rate::default(), Instant::now());
        assert!(rate.admits(7, Some(0.1), now) && !rate.admits(7, Some(0.1), now));
        assert!(rate.admits(7, Some(0.1), now + Duration::from_secs(10)));
    }
}
