//! What a policy is.

use std::cmp::Reverse;
use std::fmt;
use std::sync::Arc;

use cluster::{ClaimId, Span, Time};
use serde::{Deserialize, Serialize};

use crate::claim::Allotment;
use crate::note::Note;
use crate::snapshot::Snapshot;

/// Decides who should hold which devices from now on.
pub trait Policy: Send {
    /// What should change from now on. Never fails: a policy that cannot do better changes nothing and says why in a
    /// note. What it keeps to itself between calls is a warm start; losing it must not change the plan.
    fn plan(&mut self, snapshot: &Snapshot<'_>) -> Plan;

    fn rhythm(&self) -> Rhythm {
        Rhythm::OnChange
    }

    /// In which order those who wait would start: asked between rounds, where jobs may start before the next.
    fn turns(&mut self, snapshot: &Snapshot<'_>) -> Turns {
        let mut waiting: Vec<_> = snapshot.eligible().filter(|claim| claim.target.is_none()).collect();
        waiting.sort_by_key(|claim| (Reverse(claim.priority), claim.submitted, claim.id));
        Turns { order: waiting.into_iter().map(|claim| claim.id).collect(), strict: false }
    }

    /// Whether planning again at once, with the plan in the books, changes nothing.
    fn is_stable(&self) -> bool {
        true
    }

    /// What the policy is told beyond what a real scheduler could know.
    fn knows(&self) -> &'static [Knowledge] {
        &[]
    }
}

/// When a policy is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rhythm {
    /// At once when a claim comes or goes or a node changes, and when the last plan asked to be woken.
    OnChange,
    /// The same, but not before the next round. Rounds are aligned to time zero.
    EveryRound(Span),
}

/// The order in which claims that wait would start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Turns {
    pub order: Vec<ClaimId>,
    /// Who finds no place holds up those behind it.
    pub strict: bool,
}

/// A truth that only a simulator can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Knowledge {
    #[serde(rename = "true remaining time")]
    RemainingTime,
    #[serde(rename = "true remaining iterations")]
    RemainingIterations,
    #[serde(rename = "true step times")]
    StepTimes,
}

/// Who should hold what from now on. A claim that is not named keeps what it has.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Plan {
    pub changes: Vec<(ClaimId, Option<Arc<Allotment>>)>,
    /// Ask again then, even if nothing has changed.
    pub wake_at: Option<Time>,
    /// Why, for claims whose reason is a new one.
    pub notes: Vec<(ClaimId, Note)>,
    /// What must not be forgotten about claims; an empty list forgets.
    pub memory: Vec<(ClaimId, Vec<i64>)>,
    /// How many nodes there should be, where nodes can be rented and given back; nothing to leave it as it is.
    pub nodes: Option<u32>,
}

impl Plan {
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.notes.is_empty() && self.memory.is_empty() && self.nodes.is_none()
    }
}

impl fmt::Display for Knowledge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Knowledge::RemainingTime => f.write_str("true remaining time"),
            Knowledge::RemainingIterations => f.write_str("true remaining iterations"),
            Knowledge::StepTimes => f.write_str("true step times"),
        }
    }
}
