//! Refusals on the log, so that an administrator sees who tries what; and so few of them that nobody can fill a disk by
//! being refused.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const SPAN: Duration = Duration::from_secs(10);
const MOST_IN_A_SPAN: u32 = 20;

#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<Count>);

#[derive(Debug, Default)]
struct Count {
    since: Option<Instant>,
    told: u32,
    untold: u64,
}

impl Refusals {
    /// Whether this one is to be told, and how many were not told before it.
    pub(crate) fn next(&self, now: Instant) -> Option<u64> {
        let mut count = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if count.since.is_none_or(|since| now.duration_since(since) >= SPAN) {
            count.since = Some(now);
            count.told = 0;
        }
        if count.told == MOST_IN_A_SPAN {
            count.untold += 1;
            return None;
        }
        count.told += 1;
        Some(std::mem::take(&mut count.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_refusals_is_counted_and_not_told_one_by_one() {
        let refusals = Refusals::default();
        let now = Instant::now();
        let told = (0..1000).filter(|_| refusals.next(now).is_some()).count();
        assert_eq!(told, 20);
        assert_eq!(refusals.next(now + SPAN), Some(980));
        assert_eq!(refusals.next(now + SPAN), Some(0));
    }
}
