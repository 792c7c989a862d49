//! What the service puts on record: the facts of the decision core, and those only a service knows — who submitted what,
//! how processes ended, what jobs said of themselves.

use std::sync::Arc;

use api::{JobId, JobRequest, ProgressReport, Role};
use cluster::{ClaimId, Run};
use engine::Event;
use executors::{Delivery, Ending, Program};
use journal::Identity;
use nix::unistd::{User, geteuid};
use serde::{Deserialize, Serialize};

use crate::access::Token;
use crate::clock::ClockFound;
use crate::notification::Notification;

/// The number of the format of facts and snapshots. Format 1 had no number, no identity and no gaps between jobs; format 2
/// said nothing of clocks and of how long runs lasted; format 3 knew no safeguards; format 4 knew neither notifications nor
/// that somebody asked for a shell, accepted a loss or a copy, or forgot jobs by hand.
pub(crate) const FORMAT: u32 = 5;

/// One entry of the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Fact {
    Core(Event),
    /// Which data directory this is the history of. It stands before anything that is launched, and again where the
    /// directory was copied: from there on it is the copy's history.
    Identified {
        identity: Identity,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        copy_of: Option<Identity>,
    },
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
    /// Somebody changed something. Submissions are not repeated here: [`Fact::Numbered`] names their owner.
    Did {
        by: Caller,
        deed: Deed,
    },
    TokenMade {
        by: Caller,
        token: Arc<Token>,
    },
    TokenRevoked {
        by: Caller,
        id: u32,
        unix_ms: u64,
    },
    /// The wall clock is not where it was, or the machine was restarted. Entries themselves carry engine time.
    Clock(ClockFound),
    /// Somebody is to be told of a job, because of what stands before this in the same batch.
    NotificationDue(Notification),
    /// What came of that.
    Notified {
        number: u64,
        delivery: Delivery,
    },
}

/// A change that somebody asked for and that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Deed {
    Cancel(JobId),
    /// Ended without time to save its state.
    Kill(JobId),
    Hold(JobId),
    Release(JobId),
    Reprioritise(JobId, i32),
    Cordon(String),
    Drain(String),
    Uncordon(String),
    UsePolicy(String),
    /// What it changed, in words.
    ChangeQueues(Vec<String>),
    /// Beside a running job, as its user.
    OpenShell(JobId),
    /// To go on without what was lost, which is said in words.
    AcceptLoss(String),
    /// To go on in a copy of another data directory.
    AcceptCopy,
    /// So many claims of jobs that had ended, by hand and not by the service.
    ForgetJobs(u32),
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
    /// The claims that ended and are run again by this: one for each task, or none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub continues: Vec<ClaimId>,
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
    #[serde(default)]
    pub role: Role,
    /// The token it came with; none over the socket, where the kernel says who it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u32>,
}

impl Acceptance {
    /// The claim that ended and that this one runs again.
    pub fn continued_by(&self, claim: ClaimId) -> Option<ClaimId> {
        self.continues.get((claim.0 - self.first.0) as usize).copied()
    }

    pub fn task_count(&self) -> u32 {
        self.array.as_ref().map_or(1, |array| array.indices.len() as u32)
    }
}

impl Caller {
    /// Whoever started this process, for what is done at its start and not asked for over HTTP.
    pub(crate) fn of_this_process() -> Caller {
        let uid = geteuid();
        let name = User::from_uid(uid).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name);
        Caller::new(uid.as_raw(), name, Role::Admin)
    }

    /// Somebody on the socket.
    pub fn new(uid: u32, name: impl Into<String>, role: Role) -> Caller {
        Caller { uid, name: name.into(), role, token: None }
    }

    pub fn may_change_jobs_of(&self, owner: &Caller) -> bool {
        self.role >= Role::Operator || self.uid == owner.uid
    }
}
