//! What the service puts on record: the facts of the decision core, and those only a service knows — who submitted what,
//! how processes ended, what jobs said of themselves.

use std::sync::Arc;

use api::{JobRequest, ProgressReport};
use cluster::{ClaimId, Run};
use engine::Event;
use executors::{Ending, Program};
use serde::{Deserialize, Serialize};

/// One entry of the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Fact {
    Core(Event),
    /// A job was numbered: its claims begin with `first`, one for each task. It stands before what the core says of
    /// them.
    Numbered(Arc<Acceptance>),
    Reported {
        run: Run,
        report: ProgressReport,
    },
    /// A run was to change its workers in place, and why it goes on as it was. What that means for the claim follows as
    /// a fact of the core.
    NotResized {
        run: Run,
        why: String,
    },
    /// The processes of a run are gone. What that means for the claim follows as a fact of the core.
    Ended {
        run: Run,
        ending: Ending,
    },
}

/// What was submitted, by whom, and what is to be run for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Acceptance {
    pub first: ClaimId,
    pub owner: Caller,
    pub request: JobRequest,
    pub program: Arc<Program>,
    /// The caller's own name for the submission: a second one of that name is this one.
    pub key: Option<String>,
    pub array: Option<Array>,
}

/// The tasks of an array: their numbers, and how many may be under way at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Array {
    pub indices: Vec<u32>,
    pub at_once: Option<u32>,
}

/// Who speaks to the service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caller {
    pub uid: u32,
    pub name: String,
    /// May change what belongs to others, nodes and the policy.
    #[serde(default)]
    pub is_admin: bool,
}

impl Acceptance {
    pub fn task_count(&self) -> u32 {
        self.array.as_ref().map_or(1, |array| array.indices.len() as u32)
    }
}

impl Caller {
    pub fn may_change_jobs_of(&self, owner: &Caller) -> bool {
        self.is_admin || self.uid == owner.uid
    }
}
