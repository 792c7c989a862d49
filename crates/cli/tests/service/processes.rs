//! The process table, as /proc shows it.

use std::fs;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

/// A process that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    parent: i32,
    /// With the pid this is never used twice.
    pub(crate) start: u64,
    pub(crate) command: String,
    environment: String,
}

/// Everything that belongs to a service's data directory: by what it was called with, or by its environment.
pub(crate) fn of(data_dir: &Path) -> Vec<Process> {
    let mark = data_dir.display().to_string();
    let mine = std::process::id() as i32;
    let is_ours = |process: &Process| process.command.contains(&mark) || process.environment.contains(&mark);
    all().filter(|process| process.pid != mine && is_ours(process)).collect()
}

/// The supervisors of runs. What a supervisor has just forked looks like it for a moment, and is its child.
pub(crate) fn supervisors(data_dir: &Path) -> Vec<Process> {
    let of_run = |process: &Process| process.command.contains(" supervise ") && !process.command.contains("--worker");
    let found: Vec<Process> = of(data_dir).into_iter().filter(of_run).collect();
    let is_child = |process: &Process| found.iter().any(|other| other.pid == process.parent);
    found.iter().filter(|process| !is_child(process)).cloned().collect()
}

pub(crate) fn kill(pid: i32, signal: Signal) {
    // One that has ended meanwhile is as good as killed.
    if let Some(pid) = Pid::from_raw(pid) {
        kill_process(pid, signal).ok();
    }
}

impl Process {
    pub(crate) fn read(pid: i32) -> Option<Process> {
        let text = |name: &str| fs::read(format!("/proc/{pid}/{name}")).ok().map(|bytes| words(&bytes));
        let stat = text("stat")?;
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        if matches!(*fields.first()?, "Z" | "X") {
            return None;
        }
        let (parent, start) = (fields.get(1)?.parse().ok()?, fields.get(19)?.parse().ok()?);
        Some(Process {
            pid,
            parent,
            start,
            command: text("cmdline")?,
            environment: text("environ").unwrap_or_default(),
        })
    }

    pub(crate) fn lives(&self) -> bool {
        Process::read(self.pid).is_some_and(|other| other.start == self.start)
    }

    /// A variable of its environment.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        let mut variables = self.environment.split(' ');
        variables.find_map(|variable| variable.strip_prefix(name)?.strip_prefix('='))
    }
}

fn all() -> impl Iterator<Item = Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Process::read(entry.file_name().to_str()?.parse().ok()?))
}

fn words(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace('\0', " ").trim_end().to_string()
}
