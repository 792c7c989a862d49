//! Why a claim has what it has. Notes are data; whoever prints them chooses the words.

use std::fmt;

use cluster::{ClaimId, Gpus, NodeId, QueueId, Shape, Time};
use serde::{Deserialize, Serialize};

/// The reason for the present state of a claim, what it was given, and what stood in the way of more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    pub reason: Reason,
    pub chosen: Option<Shape>,
    pub obstacle: Option<Obstacle>,
}

/// One word for it, in Kueue's vocabulary where it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Reason {
    PendingEvaluation,
    Admitted,
    /// Started ahead of its turn, in a gap.
    Backfilled,
    WaitingForResources,
    WaitingForQuota,
    /// Others come first.
    Priority,
    /// What would fit is kept for someone else.
    Reservation,
    Dependency,
    /// Stopped to make room.
    Preempted,
    /// Its node was drained or lost.
    Displaced,
    /// Its last run failed.
    Backoff,
    /// Its user wants it to wait.
    Held,
    /// Every job has its minimum before others have more: it has its minimum by that, or gave up what it had beyond.
    MinimumFirst,
    /// It started on what its queue is guaranteed.
    Guaranteed,
    /// Its queue borrowed, and the lender needs what it lent.
    Reclaimed,
    /// Devices were reserved for it after it had waited long.
    Reserved,
}

/// What stood in the way, with the evidence at the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Obstacle {
    /// Too little is free.
    Capacity {
        needed: Gpus,
        free: Gpus,
    },
    /// Enough is free, but not where the job needs it.
    Fragmentation {
        needed: Gpus,
        free: Gpus,
    },
    Quota {
        queue: QueueId,
        used: Gpus,
        budget: Gpus,
    },
    Outranked {
        by: ClaimId,
    },
    ReservedFor {
        claim: ClaimId,
        until: Time,
    },
    Dependencies {
        left: u32,
    },
    Node {
        node: NodeId,
    },
    /// What it had beyond its minimum went to a job that would else wait.
    Yielded {
        to: ClaimId,
    },
    /// What one queue is guaranteed was lent to the other, and is taken back.
    Lent {
        lender: QueueId,
        borrower: QueueId,
    },
}

impl Note {
    pub fn pending() -> Note {
        Note::plain(Reason::PendingEvaluation)
    }

    /// A reason that needs no evidence.
    pub fn plain(reason: Reason) -> Note {
        Note { reason, chosen: None, obstacle: None }
    }

    pub fn dependency(left: u32) -> Note {
        Note::waiting(Reason::Dependency, Obstacle::Dependencies { left })
    }

    pub fn admitted(chosen: Shape) -> Note {
        Note { reason: Reason::Admitted, chosen: Some(chosen), obstacle: None }
    }

    pub fn waiting(reason: Reason, obstacle: Obstacle) -> Note {
        Note { reason, chosen: None, obstacle: Some(obstacle) }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.reason)?;
        if let Some(shape) = self.chosen {
            write!(f, ": {} workers on {} nodes", shape.workers, shape.nodes)?;
        }
        match self.obstacle {
            None => Ok(()),
            Some(Obstacle::Capacity { needed, free }) => write!(f, ": needs {needed} GPUs, {free} free"),
            Some(Obstacle::Fragmentation { needed, free }) => {
                write!(f, ": needs {needed} GPUs in one place, {free} free but scattered")
            }
            Some(Obstacle::Quota { queue, used, budget }) => {
                write!(f, ": queue {} uses {used} of {budget} GPUs", queue.0)
            }
            Some(Obstacle::Outranked { by }) => write!(f, ": job {by} comes first"),
            Some(Obstacle::ReservedFor { claim, until }) => write!(f, ": kept for job {claim} until {until}"),
            Some(Obstacle::Dependencies { left }) => write!(f, ": {left} jobs to finish first"),
            Some(Obstacle::Node { node }) => write!(f, ": {node}"),
            Some(Obstacle::Yielded { to }) => write!(f, ": made room for job {to}"),
            Some(Obstacle::Lent { lender, borrower }) => {
                write!(f, ": queue {} is guaranteed what queue {} borrowed", lender.0, borrower.0)
            }
        }
    }
}
