//! Processor time limited without any right but to signal one's own processes: whoever has used up its allowance is
//! stopped until it has earned more. What counts is measured use, so threads and idle times need no guess.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::process::{Identity, Process, below};

/// How often use is looked at.
pub(crate) const TICK: Duration = Duration::from_millis(10);
/// How much can be saved up, as a span at the full allowance.
const PERIOD_SECONDS: f64 = 0.1;
/// How often it is looked at who belongs to the worker.
const CENSUS: Duration = Duration::from_millis(100);

/// The allowance of one worker and of all processes below it, which those beside it may share.
#[derive(Debug)]
pub(crate) struct Allowance {
    /// None once it has ended.
    leader: Option<Identity>,
    guests: Vec<Identity>,
    cores: f64,
    ticks_per_second: f64,
    members: Vec<Identity>,
    counted_at: Option<Instant>,
    looked_at: Instant,
    used_seconds: f64,
    balance_seconds: f64,
    is_stopped: bool,
}

impl Allowance {
    pub(crate) fn new(leader: Identity, cores: f64, now: Instant) -> Allowance {
        Allowance {
            leader: Some(leader),
            guests: Vec::new(),
            cores,
            ticks_per_second: rustix::param::clock_ticks_per_second() as f64,
            members: Vec::new(),
            counted_at: None,
            looked_at: now,
            used_seconds: 0.0,
            balance_seconds: cores * PERIOD_SECONDS,
            is_stopped: false,
        }
    }

    /// Looks at what was used since the last time, and stops or continues the worker.
    pub(crate) fn tick(&mut self, now: Instant) {
        if self.counted_at.is_none_or(|at| now - at >= CENSUS) {
            self.take_census(now);
        }
        let ticks: u64 = self.living().map(|process| process.ticks()).sum();
        let used = ticks as f64 / self.ticks_per_second;
        let earned = self.cores * (now - self.looked_at).as_secs_f64();
        // What a process used that is gone without a trace is forgiven.
        let spent = (used - self.used_seconds).max(0.0);
        self.balance_seconds = (self.balance_seconds + earned - spent).min(self.cores * PERIOD_SECONDS);
        self.used_seconds = used;
        self.looked_at = now;
        if !self.is_stopped && self.balance_seconds < 0.0 {
            self.signal(Signal::STOP);
            self.is_stopped = true;
        } else if self.is_stopped && self.balance_seconds > self.cores * PERIOD_SECONDS / 4.0 {
            self.lift();
        }
    }

    pub(crate) fn set_cores(&mut self, cores: f64) {
        self.cores = cores;
    }

    /// From now on these and all below them share it, and no others.
    pub(crate) fn share_with(&mut self, guests: Vec<Identity>) {
        if self.guests == guests {
            return;
        }
        // Nobody would let those go on who are left of one that has gone.
        self.lift();
        self.guests = guests;
        self.counted_at = None;
    }

    pub(crate) fn leader_has_ended(&mut self) {
        self.leader = None;
        self.counted_at = None;
    }

    /// Lets the worker go on, whatever it has used.
    pub(crate) fn lift(&mut self) {
        if std::mem::take(&mut self.is_stopped) {
            // Parents last: a shell at a terminal would find that its command was stopped, and take the terminal back.
            self.members.iter().rev().for_each(|&member| signal(member, Signal::CONT));
        }
    }

    fn take_census(&mut self, now: Instant) {
        let family = |leader: Identity| below(leader.pid).into_iter().map(|process| process.identity);
        let newcomers: Vec<Identity> =
            self.leader.iter().chain(&self.guests).flat_map(|&it| std::iter::once(it).chain(family(it))).collect();
        if self.is_stopped {
            for process in newcomers.iter().filter(|process| !self.members.contains(process)) {
                signal(*process, Signal::STOP);
            }
        }
        self.members = newcomers;
        self.counted_at = Some(now);
    }

    fn living(&self) -> impl Iterator<Item = Process> {
        self.members.iter().filter_map(|&member| Process::read(member.pid).filter(|it| it.identity == member))
    }

    fn signal(&self, what: Signal) {
        self.members.iter().for_each(|&member| signal(member, what));
    }
}

/// A member that cannot be signalled, such as one of another user, goes without a limit rather than ending the run.
fn signal(process: Identity, what: Signal) {
    if let Err(error) = process.signal(what) {
        tracing::debug!(pid = process.pid, %error, "cannot duty-cycle a process");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn sleeper() -> (Child, Identity) {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let identity = Identity::of(child.id() as i32).unwrap();
        (child, identity)
    }

    /// A signal is on its way for a moment.
    fn until_stopped(process: Identity, is_stopped: bool) {
        while Process::read(process.pid).unwrap().is_stopped != is_stopped {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn whoever_shares_an_allowance_is_stopped_with_the_worker_and_goes_on_with_it() {
        let ((mut worker, leader), (mut shell, guest)) = (sleeper(), sleeper());
        let now = Instant::now();
        let mut allowance = Allowance::new(leader, 1.0, now);
        allowance.share_with(vec![guest]);
        allowance.balance_seconds = -1.0;
        allowance.tick(now);
        until_stopped(leader, true);
        until_stopped(guest, true);
        allowance.share_with(Vec::new());
        until_stopped(guest, false);
        allowance.tick(now);
        until_stopped(leader, true);
        assert!(!Process::read(guest.pid).unwrap().is_stopped, "it shares nothing any more");
        for child in [&mut worker, &mut shell] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
