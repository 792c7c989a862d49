//! What is going to happen, in order of time. Things at the same moment happen in the order in which they were caused.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use cluster::{NodeId, Run, Time};

use crate::script::Occurrence;

#[derive(Debug)]
pub(crate) enum Happening {
    /// All workers of the run are up.
    Begun(Run),
    /// The run reaches its end, the end of an epoch, or the time of its next report, unless its rate has changed since
    /// this was expected.
    Reached(Run, u32, Stop),
    Crashed(Run),
    /// The run goes on with the workers it was told to have, unless something else has happened to it since.
    Resized(Run, u32),
    /// The run has stopped, with so many iterations saved.
    Stopped(Run, u64),
    /// A node that was ordered is there.
    Rented,
    NodeFailed(NodeId),
    NodeRepaired(NodeId),
    GpuFailed(NodeId, u8),
    GpuRepaired(NodeId, u8),
    Scripted(Box<Occurrence>),
}

/// Up to where a run goes on unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    End,
    Epoch,
    Report,
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

    /// How many were ever added.
    pub(crate) fn added(&self) -> u64 {
        self.added
    }

    /// The next by `now`, if it is one of the first `known` that were added: what happens at this moment because of
    /// something else at this moment comes after everybody has heard of that.
    pub(crate) fn pop_until(&mut self, now: Time, known: u64) -> Option<Happening> {
        self.heap.peek().filter(|entry| entry.at <= now && entry.number < known)?;
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
