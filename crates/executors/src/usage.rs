//! What a run uses, measured once a second by its supervisor.

use std::time::{Duration, Instant};

use crate::Usage;
use crate::nvidia::Meter;
use crate::process::{Process, below};

pub(crate) const EVERY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Sampler {
    supervisor: i32,
    ticks_per_second: f64,
    page_size: u64,
    gpus: Option<Meter>,
    usage: Usage,
    due: Instant,
}

impl Sampler {
    pub(crate) fn new(supervisor: i32, gpus: &[String], now: Instant) -> Sampler {
        Sampler {
            supervisor,
            ticks_per_second: rustix::param::clock_ticks_per_second() as f64,
            page_size: rustix::param::page_size() as u64,
            gpus: Meter::of(gpus),
            usage: Usage::default(),
            // The first look comes early, so that short runs are seen at all.
            due: now + EVERY / 10,
        }
    }

    pub(crate) fn due(&self) -> Instant {
        self.due
    }

    /// From now on the run has these devices.
    pub(crate) fn turn_to(&mut self, gpus: &[String]) {
        match &mut self.gpus {
            Some(meter) => meter.turn_to(gpus),
            None => self.gpus = Meter::of(gpus),
        }
    }

    /// The time of processes that are gone is with whoever waited for them, in the end with the supervisor: nothing is
    /// missed between two samples. Memory that came and went in between is.
    pub(crate) fn sample(&mut self, now: Instant) -> Usage {
        let living = below(self.supervisor);
        let waited = Process::read(self.supervisor).map_or(0, |supervisor| supervisor.waited_ticks);
        let ticks = waited + living.iter().map(Process::ticks).sum::<u64>();
        let resident = living.iter().map(|process| process.resident_pages).sum::<u64>() * self.page_size;
        self.usage.cpu_seconds = self.usage.cpu_seconds.max(ticks as f64 / self.ticks_per_second);
        self.usage.memory_bytes = self.usage.memory_bytes.max(resident);
        if let Some((percent, memory)) = self.gpus.as_mut().and_then(Meter::sample) {
            self.usage.gpu_percent = Some(percent);
            self.usage.gpu_memory_bytes = Some(memory);
        }
        self.due = now + EVERY;
        self.usage
    }
}
