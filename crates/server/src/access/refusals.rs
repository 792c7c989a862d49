//! Refusals on the log, so that an administrator sees who tries what; and so few of them that nobody can fill a disk by
//! being refused.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::seldom::cut;

const SPAN: Duration = Duration::from_secs(10);
const MOST_IN_A_SPAN: u32 = 20;
/// So much is told of what somebody asked for.
const LONGEST: usize = 100;

/// Copies tell together.
#[derive(Debug, Clone, Default)]
pub(crate) struct Refusals(Arc<Mutex<Count>>);

#[derive(Debug, Default)]
struct Count {
    since: Option<Instant>,
    told: u32,
    untold: u64,
}

/// A request that was refused, as it is told.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    method: String,
    path: String,
    /// How many were not told before it.
    untold: u64,
}

impl Refusals {
    /// Tells of a request that was refused, unless there were too many lately.
    pub(crate) fn tell(&self, who: Option<&str>, method: &str, path: &str, status: u16) {
        if let Some(Told { method, path, untold }) = self.to_tell(method, path, Instant::now()) {
            tracing::warn!(who, method, path, status, untold, "refused");
        }
    }

    /// Whoever is refused chose the words.
    fn to_tell(&self, method: &str, path: &str, now: Instant) -> Option<Told> {
        let untold = self.next(now)?;
        Some(Told { method: cut(method, LONGEST), path: cut(path, LONGEST), untold })
    }

    /// Whether this one is to be told, and how many were not told before it.
    fn next(&self, now: Instant) -> Option<u64> {
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
    fn little_is_told_of_long_requests() {
        let refusals = Refusals::default();
        let long = "x".repeat(60_000);
        let told = refusals.to_tell(&long, &format!("/{long}"), Instant::now()).unwrap();
        let cut = "x".repeat(LONGEST);
        assert_eq!(told, Told { method: format!("{cut}…"), path: format!("/{}…", &cut[1..]), untold: 0 });
    }

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
