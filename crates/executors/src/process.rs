//! Processes as `/proc` shows them. A process number alone names nobody, since numbers are used again: a process is
//! known by its number and its start time.

use std::collections::BTreeSet;
use std::fs;
use std::io;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// Who a process is, within one boot of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) pid: i32,
    /// Clock ticks since boot.
    pub(crate) start: u64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Process {
    pub(crate) identity: Identity,
    pub(crate) parent: i32,
    pub(crate) session: i32,
    pub(crate) is_dead: bool,
    /// By a signal or by who traces it, until it is continued.
    pub(crate) is_stopped: bool,
    /// Clock ticks on a processor: its own and those of children it has waited for.
    pub(crate) own_ticks: u64,
    pub(crate) waited_ticks: u64,
    pub(crate) resident_pages: u64,
}

impl Identity {
    pub(crate) fn of(pid: i32) -> Option<Identity> {
        Process::read(pid).map(|process| process.identity)
    }

    /// Whether it still runs; a zombie does not.
    pub(crate) fn lives(self) -> bool {
        Process::read(self.pid).is_some_and(|process| process.identity == self && !process.is_dead)
    }

    /// Sends a signal to this very process; false if it is gone. The descriptor is opened before the start time is
    /// looked at: whoever has the number then is whom the signal goes to.
    pub(crate) fn signal(self, signal: Signal) -> io::Result<bool> {
        let Some(pid) = Pid::from_raw(self.pid) else { return Ok(false) };
        let descriptor = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(descriptor) => descriptor,
            Err(rustix::io::Errno::SRCH) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        if Identity::of(self.pid) != Some(self) {
            return Ok(false);
        }
        match pidfd_send_signal(descriptor, signal) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::SRCH) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl Process {
    pub(crate) fn read(pid: i32) -> Option<Process> {
        parse(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Every process of the machine.
    pub(crate) fn all() -> Vec<Process> {
        let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
        entries.flatten().filter_map(|entry| Process::read(entry.file_name().to_str()?.parse().ok()?)).collect()
    }

    /// Whether it was started with this line in its environment.
    pub(crate) fn carries(&self, line: &str) -> bool {
        fs::read(format!("/proc/{}/environ", self.identity.pid))
            .is_ok_and(|environment| environment.split(|&byte| byte == 0).any(|entry| entry == line.as_bytes()))
    }

    /// The user who started it. A program that is run with another's rights has its own user here all the same.
    pub(crate) fn user(&self) -> Option<u32> {
        self.status("Uid:")?.split_whitespace().next()?.parse().ok()
    }

    fn status(&self, name: &str) -> Option<String> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.identity.pid)).ok()?;
        status.lines().find_map(|line| line.strip_prefix(name)).map(str::to_string)
    }

    /// Whether it has a handler of its own for the signal.
    pub(crate) fn catches(&self, signal: Signal) -> bool {
        let caught = self.status("SigCgt:");
        let mask = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
        mask >> (signal.as_raw() - 1) & 1 == 1
    }

    /// Whether it is a shell. One that has a handler runs it only when the command it waits for has ended.
    pub(crate) fn is_shell(&self) -> bool {
        const SHELLS: [&str; 8] = ["sh", "ash", "bash", "busybox", "dash", "ksh", "mksh", "zsh"];
        let program = fs::read_link(format!("/proc/{}/exe", self.identity.pid)).unwrap_or_default();
        program.file_name().is_some_and(|name| SHELLS.iter().any(|shell| name == *shell))
    }

    pub(crate) fn ticks(&self) -> u64 {
        self.own_ticks + self.waited_ticks
    }
}

/// The living processes below `root`, found without looking at any other: parents before their children. One that forks
/// just now may be missed, so this is for measuring, not for killing.
pub(crate) fn below(root: i32) -> Vec<Process> {
    let mut found: Vec<Process> = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for child in children(parent) {
            if let Some(process) = Process::read(child).filter(|process| !process.is_dead) {
                found.push(process);
                parents.push(child);
            }
        }
    }
    found
}

/// Which of `all` descend from one of `roots`, the roots themselves not counted.
pub(crate) fn descendants(all: &[Process], roots: &BTreeSet<i32>) -> BTreeSet<i32> {
    let mut family = roots.clone();
    loop {
        let before = family.len();
        family.extend(
            all.iter().filter(|process| family.contains(&process.parent)).map(|it| it.identity.pid).collect::<Vec<_>>(),
        );
        if family.len() == before {
            return family.difference(roots).copied().collect();
        }
    }
}

/// Differs after every boot of the machine.
pub fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_string()
}

fn children(pid: i32) -> Vec<i32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let of_thread = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("children")).unwrap_or_default();
    threads
        .flatten()
        .map(of_thread)
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>())
        .collect()
}

/// The name of the program, in brackets, may itself hold brackets and spaces: what counts begins after the last one.
fn parse(pid: i32, stat: &str) -> Option<Process> {
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(Process {
        identity: Identity { pid, start: number(19)? },
        parent: fields.get(1)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        is_dead: matches!(*fields.first()?, "Z" | "X"),
        is_stopped: matches!(*fields.first()?, "T" | "t"),
        own_ticks: number(11)? + number(12)?,
        waited_ticks: number(13)? + number(14)?,
        resident_pages: number(21)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_name_with_brackets_confuses_nobody() {
        let stat = "7 (a) R 1) S 1 7 6 0 -1 4194560 1 0 0 0 10 20 3 4 20 0 1 0 555 1000 42 18446744073709551615 1";
        let process = parse(7, stat).unwrap();
        assert_eq!((process.parent, process.session, process.identity.start), (1, 6, 555));
        assert_eq!((process.own_ticks, process.waited_ticks, process.resident_pages), (30, 7, 42));
    }

    #[test]
    fn a_signal_does_not_reach_another_process_of_the_same_number() {
        let own = Identity::of(std::process::id() as i32).unwrap();
        let earlier = Identity { start: own.start - 1, ..own };
        assert!(own.lives() && !earlier.lives());
        assert!(!earlier.signal(Signal::KILL).unwrap());
    }
}
