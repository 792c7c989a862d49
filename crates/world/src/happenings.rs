//! What is going to happen, in order of time. Things at the same moment happen in the order in which they were caused.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use cluster::{NodeId, Run, Time};

use crate::script::Occurrence;

#[derive(Debug)]
pub(crate) enum Happening {
    /// All workers of the run are up.
    Begun(Run),
    /// The run reaches its end, unless its rate has changed since this was expected.
    Finished(Run, u32),
    Crashed(Run),
    /// The run has stopped, with so many iterations saved.
    Stopped(Run, u64),
    NodeFailed(NodeId),
    NodeRepaired(NodeId),
    GpuFailed(NodeId, u8),
    GpuRepaired(NodeId, u8),
    Scripted(Box<Occurrence>),
}

#[derive(Debug, Default)]
pub(crate) struct Happenings {
    heap: BinaryHeap<Entry>,
    added: u64,
}

#[derive(Debug)]
struct Entry {
    at: Time,
    number: u64,
    happening: Happening,
}

impl Happenings {
    pub(crate) fn add(&mut self, at: Time, happening: Happening) {
        self.heap.push(Entry { at, number: self.added, happening });
        self.added += 1;
    }

    pub(crate) fn next_time(&self) -> Option<Time> {
        self.heap.peek().map(|entry| entry.at)
    }

    pub(crate) fn pop_until(&mut self, now: Time) -> Option<Happening> {
        self.heap.peek().filter(|entry| entry.at <= now)?;
        self.heap.pop().map(|entry| entry.happening)
    }
}

/// The earliest is the greatest, because a heap gives its greatest first.
impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}
