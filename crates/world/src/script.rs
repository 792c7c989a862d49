//! Things that happen from outside at a given time: nodes that come and go, jobs that are cancelled.

use cluster::{Devices, KindDraft, NodeDraft, NodeId, QueueTree, Time};
use plan::Availability;

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Script {
    occurrences: Vec<(Time, Occurrence)>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Occurrence {
    /// The user of this job, by its order in the workload, no longer wants it.
    Cancel(u32),
    /// Its user wants it to wait.
    Hold(u32),
    Release(u32),
    Reprioritise(u32, i32),
    Cordon(NodeId),
    Drain(NodeId),
    Reopen(NodeId),
    Remove(NodeId),
    Add {
        node: Box<NodeDraft>,
        kinds: Vec<KindDraft>,
    },
    /// Other queues from now on.
    ChangeQueues(Box<QueueTree>),
    /// The node fails or answers again, devices break or are repaired.
    Change {
        node: NodeId,
        availability: Availability,
        broken: Devices,
    },
}

impl Script {
    pub fn then(mut self, at: Time, occurrence: Occurrence) -> Script {
        self.occurrences.push((at, occurrence));
        self
    }

    pub(crate) fn occurrences(&self) -> impl Iterator<Item = (Time, Occurrence)> {
        self.occurrences.iter().cloned()
    }
}
