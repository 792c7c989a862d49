//! What time it is, for the service. There are two times. *Engine time* is what the core goes by and what is charged: it
//! begins with the wall clock at the first start, never jumps, and stands still while the machine is off. *Wall time* is
//! what the machine's clock says, which may be set at any moment: people and deadlines go by it. How the one relates to
//! the other is on record as [`Fact::Clock`](crate::Fact::Clock), and kept in the [`Timeline`].

use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cluster::{Span, Time};
use serde::{Deserialize, Serialize};

/// Engine time from here on. It advances by the clock of this boot of the machine, which nobody sets and which goes on
/// while the machine sleeps.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    anchor: Time,
    /// What the clock of this boot said then.
    anchored_at: Span,
}

/// What the clocks of the machine say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// Milliseconds since 1970 by the wall clock.
    pub wall_ms: i64,
    /// Which boot of the machine this is; empty where the system does not say.
    pub boot: String,
    pub since_boot: Span,
}

/// The clocks of the machine were found not to be as was known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockFound {
    pub reading: Reading,
    /// By how much the wall clock is ahead of where it should be; less than nothing if it is behind.
    pub moved_ms: i64,
    /// The machine was restarted since the clocks were last looked at.
    pub booted: bool,
}

/// What the wall clock said at each moment of engine time.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Timeline {
    /// From when on the wall clock was so many milliseconds ahead of engine time, in order.
    offsets: Vec<(Time, i64)>,
    last: Option<(Time, Reading)>,
}

/// A clock that differs by less was corrected, or read a moment later; by more, it was set.
const TOLERANCE_MS: u64 = 1000;
/// A clock that is set again and again must not fill the memory: the oldest times are then shown as engine time.
const MOST_OFFSETS: usize = 1000;

impl Clock {
    /// Time goes on from here.
    pub fn after(last: Time) -> Clock {
        Clock { anchor: last, anchored_at: executors::since_boot() }
    }

    /// Continues a history whose last moment is known. In the same boot the time since then has passed; if the machine
    /// was off meanwhile nothing has, since no run lived through it. A history that says nothing of clocks is a new one,
    /// or was written when the wall clock was all there was.
    pub(crate) fn resume(last: Time, timeline: &Timeline, reading: &Reading) -> Clock {
        let anchor = match &timeline.last {
            None => last.max(Time::from_millis(u64::try_from(reading.wall_ms).unwrap_or(0))),
            Some((at, known)) if reading.is_of_boot(known) => {
                last.max(*at + reading.since_boot.saturating_sub(known.since_boot))
            }
            Some((at, _)) => last.max(*at),
        };
        Clock { anchor, anchored_at: reading.since_boot }
    }

    pub fn now(&self) -> Time {
        self.at(executors::since_boot())
    }

    fn at(&self, since_boot: Span) -> Time {
        self.anchor + since_boot.saturating_sub(self.anchored_at)
    }

    /// How long until then.
    pub fn until(&self, time: Time) -> Duration {
        Duration::from_millis(time.since(self.now()).as_millis())
    }
}

impl Reading {
    pub(crate) fn take() -> Reading {
        let wall_ms = match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
            Err(before) => i64::try_from(before.duration().as_millis()).map_or(i64::MIN, |ms| -ms),
        };
        // No process lives through a boot, and the clocks are looked at with every batch.
        static BOOT: OnceLock<String> = OnceLock::new();
        Reading { wall_ms, boot: BOOT.get_or_init(executors::boot_id).clone(), since_boot: executors::since_boot() }
    }

    fn is_of_boot(&self, known: &Reading) -> bool {
        !self.boot.is_empty() && self.boot == known.boot
    }

    /// By how much the wall clock is ahead of engine time.
    fn offset_ms(&self, now: Time) -> i64 {
        self.wall_ms.saturating_sub(millis(now))
    }
}

impl Timeline {
    /// A moment by the wall clock as it was then, in milliseconds since 1970. What is still to come is told by the wall
    /// clock as it is.
    pub fn wall_ms(&self, time: Time) -> i64 {
        let known = self.offsets.partition_point(|(from, _)| *from <= time);
        let offset = self.offsets[..known].last().map_or(0, |(_, offset)| *offset);
        millis(time).saturating_add(offset)
    }

    /// The moment of engine time at which the wall clock says this, as it is now.
    pub(crate) fn engine_time(&self, wall_ms: i64) -> Time {
        Time::from_millis(u64::try_from(wall_ms.saturating_sub(self.zero_unix_ms())).unwrap_or(0))
    }

    /// When engine time was zero, by the wall clock as it is.
    pub(crate) fn zero_unix_ms(&self) -> i64 {
        self.offsets.last().map_or(0, |(_, offset)| *offset)
    }

    /// What is new about the clocks, if anything is.
    pub(crate) fn compare(&self, now: Time, reading: Reading) -> Option<ClockFound> {
        let moved_ms = reading.offset_ms(now).saturating_sub(self.zero_unix_ms());
        let of_this_boot = self.last.as_ref().map(|(_, known)| reading.is_of_boot(known));
        match of_this_boot {
            Some(true) if moved_ms.unsigned_abs() <= TOLERANCE_MS => None,
            _ => Some(ClockFound { reading, moved_ms, booted: of_this_boot == Some(false) }),
        }
    }

    /// Takes note of what was found.
    pub fn apply(&mut self, at: Time, found: &ClockFound) {
        let offset = found.reading.offset_ms(at);
        if offset != self.zero_unix_ms() {
            self.offsets.push((at, offset));
        }
        if self.offsets.len() > MOST_OFFSETS {
            self.offsets.remove(0);
        }
        self.last = Some((at, found.reading.clone()));
    }
}

impl ClockFound {
    /// What happened to the clock, in words; nothing if it only was looked at for the first time.
    pub(crate) fn in_words(&self) -> Option<String> {
        // It was read a few milliseconds sooner or later.
        let by = Span::from_secs(self.moved_ms.unsigned_abs().saturating_add(500) / 1000);
        let counted = "no time limit, rest or charge is affected";
        match (self.booted, self.moved_ms) {
            (_, moved) if moved.unsigned_abs() <= TOLERANCE_MS && !self.booted => None,
            (true, moved) if moved >= 0 => Some(format!("the machine was restarted; {by} in between are not counted")),
            (false, moved) if moved > 0 => Some(format!("the machine's clock went forward by {by}: {counted}")),
            _ => Some(format!("the machine's clock went back by {by}: {counted}")),
        }
    }

    pub(crate) fn say(&self) {
        if let Some(words) = self.in_words() {
            tracing::warn!("{words}");
        }
    }

    /// Which of the two it was, as a word.
    pub(crate) fn kind(&self) -> &'static str {
        if self.booted { "machine_restarted" } else { "clock_set" }
    }
}

fn millis(time: Time) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000;

    /// What the clocks say: seconds since 1970, the boot and how many seconds ago it was.
    fn reading(wall: i64, boot: &str, since_boot: u64) -> Reading {
        Reading { wall_ms: wall * 1000, boot: boot.into(), since_boot: Span::from_secs(since_boot) }
    }

    fn secs(time: u64) -> Time {
        Time::from_secs(time)
    }

    /// A service that is started at these readings, one after the other, and each time leaves at once.
    fn starts(readings: &[Reading]) -> (Timeline, Vec<Time>) {
        let mut timeline = Timeline::default();
        let mut last = Time::ZERO;
        let mut times = Vec::new();
        for reading in readings {
            last = Clock::resume(last, &timeline, reading).at(reading.since_boot);
            if let Some(found) = timeline.compare(last, reading.clone()) {
                timeline.apply(last, &found);
            }
            times.push(last);
        }
        (timeline, times)
    }

    #[test]
    fn a_history_begins_with_the_wall_clock_and_goes_on_by_the_clock_of_the_boot() {
        let first = reading(1_000_000, "a", 50);
        let clock = Clock::resume(Time::ZERO, &Timeline::default(), &first);
        assert_eq!(clock.at(Span::from_secs(50)), secs(1_000_000));
        assert_eq!(clock.at(Span::from_secs(80)), secs(1_000_030));
        assert_eq!(clock.at(Span::from_secs(40)), secs(1_000_000), "it never runs backwards");
    }

    #[test]
    fn a_service_that_was_away_finds_as_much_time_gone_by_as_the_clock_of_the_boot_says() {
        let (_, times) = starts(&[reading(1_000_000, "a", 50), reading(1_000_060, "a", 110)]);
        assert_eq!(times, [secs(1_000_000), secs(1_000_060)]);
    }

    #[test]
    fn a_wall_clock_that_was_set_meanwhile_changes_nothing_but_what_is_shown() {
        for hours in [-3, 3] {
            let away = reading(1_000_060 + hours * 3600, "a", 110);
            let (timeline, times) = starts(&[reading(1_000_000, "a", 50), away]);
            assert_eq!(times, [secs(1_000_000), secs(1_000_060)]);
            assert_eq!(timeline.wall_ms(secs(1_000_059)), 1_000_059_000, "as it was then");
            assert_eq!(timeline.wall_ms(secs(1_000_070)), 1_000_070_000 + hours * HOUR, "as it is now");
        }
    }

    #[test]
    fn no_time_passes_while_the_machine_is_off() {
        let (timeline, times) = starts(&[reading(1_000_000, "a", 50), reading(1_036_000, "b", 20)]);
        assert_eq!(times, [secs(1_000_000), secs(1_000_000)]);
        assert_eq!(timeline.wall_ms(secs(1_000_001)), 1_036_001_000);
    }

    #[test]
    fn a_journal_that_says_nothing_of_clocks_was_written_by_the_wall_clock() {
        let none = Timeline::default();
        assert_eq!(Clock::resume(secs(500), &none, &reading(900, "a", 50)).anchor, secs(900));
        assert_eq!(Clock::resume(secs(500), &none, &reading(100, "a", 50)).anchor, secs(500), "it does not go back");
        assert_eq!(none.wall_ms(secs(500)), 500_000);
    }

    #[test]
    fn only_a_clock_that_was_set_is_worth_a_word() {
        let (timeline, _) = starts(&[reading(1_000_000, "a", 50)]);
        let found = |wall: i64, boot: &str| {
            let found = timeline.compare(secs(1_000_010), reading(wall, boot, 60))?;
            Some((found.kind(), found.in_words()?))
        };
        assert_eq!(found(1_000_010, "a"), None);
        assert_eq!(found(1_000_011, "a"), None, "a second is a correction");
        let ahead = "the machine's clock went forward by 2h: no time limit, rest or charge is affected";
        assert_eq!(found(1_007_210, "a"), Some(("clock_set", ahead.into())));
        let late = Reading { wall_ms: 1_007_209_998, ..reading(0, "a", 60) };
        let late = timeline.compare(secs(1_000_010), late).and_then(|found| found.in_words());
        assert_eq!(late.as_deref(), Some(ahead), "two milliseconds are no second");
        let behind = "the machine's clock went back by 2h: no time limit, rest or charge is affected";
        assert_eq!(found(992_810, "a"), Some(("clock_set", behind.into())));
        let off = "the machine was restarted; 2h in between are not counted";
        assert_eq!(found(1_007_210, "b"), Some(("machine_restarted", off.into())));
    }

    #[test]
    fn a_clock_that_is_set_for_ever_does_not_fill_the_memory() {
        let mut timeline = Timeline::default();
        for step in 0..3000 {
            let found = timeline.compare(secs(step), reading(step as i64 * 100, "a", step));
            found.iter().for_each(|found| timeline.apply(secs(step), found));
        }
        assert_eq!(timeline.offsets.len(), MOST_OFFSETS);
        assert_eq!(timeline.wall_ms(secs(2999)), 299_900_000);
    }

    #[test]
    fn the_clocks_of_this_machine_can_be_read() {
        let clock = Clock::after(secs(7));
        assert!(clock.now() >= secs(7) && clock.until(secs(7)) == Duration::ZERO);
        let reading = Reading::take();
        assert!(!reading.boot.is_empty() && !reading.since_boot.is_zero() && reading.wall_ms > 0);
    }
}
