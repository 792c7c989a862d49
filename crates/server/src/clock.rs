//! What time it is, for the service: milliseconds since 1970 that never run backwards and never jump while it lives,
//! whatever is done to the machine's clock.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cluster::{Span, Time};

/// Anchored once to the machine's clock; from then on the time that has really passed is added.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    anchor: Time,
    since: Instant,
}

impl Clock {
    /// Continues a history: time goes on from its last moment if the machine's clock is behind that.
    pub fn after(last: Time) -> Clock {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let wall = Time::from_millis(u64::try_from(wall.as_millis()).unwrap_or(u64::MAX));
        if wall < last {
            let behind = last.since(wall).as_secs_f64();
            tracing::warn!(
                behind_seconds = behind,
                "the clock of this machine is behind the journal: time goes on from there"
            );
        }
        Clock { anchor: wall.max(last), since: Instant::now() }
    }

    pub fn now(&self) -> Time {
        self.anchor + Span::from_millis(self.since.elapsed().as_millis() as u64)
    }

    /// How long until then.
    pub fn until(&self, time: Time) -> Duration {
        Duration::from_millis(time.since(self.now()).as_millis())
    }
}
