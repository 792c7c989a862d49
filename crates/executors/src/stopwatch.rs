//! Time by the clock of this boot of the machine, which no one sets. It goes on while the machine sleeps: a run that is
//! suspended with its machine still holds its devices.

use cluster::Span;
use rustix::time::{ClockId, clock_gettime};

/// How long ago the machine was booted, sleep included.
pub fn since_boot() -> Span {
    let time = clock_gettime(ClockId::Boottime);
    Span::from_millis(time.tv_sec.unsigned_abs() * 1000 + time.tv_nsec.unsigned_abs() / 1_000_000)
}

/// How long something has lasted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stopwatch {
    begun: Span,
}

impl Stopwatch {
    pub(crate) fn start() -> Stopwatch {
        Stopwatch { begun: since_boot() }
    }

    pub(crate) fn elapsed(self) -> Span {
        since_boot().saturating_sub(self.begun)
    }
}
