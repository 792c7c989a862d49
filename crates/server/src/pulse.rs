//! Whether the loop comes to an end of its turns: what waits for it is counted, and since when it has waited in vain.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A loop that has not ended a turn for so long, while something waits for it, is stuck.
pub(crate) const STUCK_AFTER: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(crate) struct Pulse(Mutex<Count>);

#[derive(Debug, Default)]
struct Count {
    posted: u64,
    done: u64,
    /// When something began to wait, or when the last turn ended if that was later.
    since: Option<Instant>,
}

impl Pulse {
    /// Something waits for the loop.
    pub(crate) fn posted(&self, now: Instant) {
        let mut count = self.count();
        if count.posted == count.done {
            count.since = Some(now);
        }
        count.posted += 1;
    }

    /// A turn has ended that took up so many of what waited.
    pub(crate) fn turned(&self, taken: u64, now: Instant) {
        let mut count = self.count();
        count.done += taken;
        count.since = Some(now);
    }

    /// Whether something waits and no turn has ended for too long.
    pub(crate) fn is_stuck(&self, now: Instant) -> bool {
        let count = self.count();
        let waited = count.since.map(|since| now.saturating_duration_since(since));
        count.posted > count.done && waited.is_some_and(|waited| waited >= STUCK_AFTER)
    }

    fn count(&self) -> MutexGuard<'_, Count> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_is_stuck_when_something_waits_and_no_turn_has_ended_for_five_seconds() {
        let (pulse, start) = (Pulse::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        assert!(!pulse.is_stuck(after(3600)), "nothing waits");
        pulse.posted(after(3600));
        pulse.posted(after(3603));
        assert!(!pulse.is_stuck(after(3604)));
        assert!(pulse.is_stuck(after(3605)), "the first has waited for five seconds");
        pulse.turned(1, after(3606));
        assert!(!pulse.is_stuck(after(3610)), "a turn has ended since");
        assert!(pulse.is_stuck(after(3611)), "the second still waits");
        pulse.turned(1, after(3612));
        assert!(!pulse.is_stuck(after(9999)), "nothing waits");
    }

    #[test]
    fn a_loop_that_was_idle_for_long_has_five_seconds_for_what_comes() {
        let (pulse, start) = (Pulse::default(), Instant::now());
        pulse.turned(0, start);
        let later = start + Duration::from_secs(100);
        pulse.posted(later);
        assert!(!pulse.is_stuck(later + Duration::from_secs(4)));
        assert!(pulse.is_stuck(later + STUCK_AFTER));
    }
}
