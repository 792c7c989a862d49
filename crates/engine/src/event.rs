//! Facts, in the past tense. A journal is a list of them, and a state is their sum.

use std::fmt;
use std::sync::Arc;

use cluster::{ClaimId, Cluster, Devices, GpuKind, JobSpec, KindDraft, NodeDraft, NodeId, QueueTree, Run, Span, Time};
use perf::{Speed, StepReport, StepTime};
use plan::{Availability, FailureCause, Fault, Outcome, Plan, Safeguards};
use serde::{Deserialize, Serialize};

use crate::command::Command;
use crate::request::Refusal;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// The first fact of every history.
    ClusterDefined {
        cluster: Box<Cluster>,
        queues: Box<QueueTree>,
    },
    PolicyChosen {
        name: String,
    },
    /// From now on these rules hold around the policy. A history that does not say so has none.
    SafeguardsChosen {
        safeguards: Safeguards,
    },
    ClaimSubmitted {
        claim: ClaimId,
        spec: Arc<JobSpec>,
        speed: Arc<Speed>,
    },
    /// It was submitted and could never have run.
    ClaimRefused {
        claim: ClaimId,
        spec: Arc<JobSpec>,
        speed: Arc<Speed>,
        why: Refusal,
    },
    ClaimCancelled {
        claim: ClaimId,
    },
    /// Its user wants it to wait; what it holds it gives back.
    ClaimHeld {
        claim: ClaimId,
    },
    ClaimReleased {
        claim: ClaimId,
    },
    ClaimReprioritised {
        claim: ClaimId,
        priority: i32,
    },
    /// Its deadline is a moment of the wall clock, which was found to lie elsewhere in our time.
    DeadlineMoved {
        claim: ClaimId,
        deadline: Time,
    },
    /// It has failed, and is left alone for a while.
    ClaimRests {
        claim: ClaimId,
        until: Time,
    },
    ClaimRested {
        claim: ClaimId,
    },
    /// It has held devices for as long as it may.
    LimitReached {
        claim: ClaimId,
    },
    /// It ended without having finished, and without anyone asking for it.
    ClaimEnded {
        claim: ClaimId,
        outcome: Outcome,
    },
    /// The next claim has this number: those before it that were not given out never will be. Who keeps the journal
    /// knows that they were given out in a history that was lost.
    NumbersBegin {
        at: ClaimId,
    },
    /// Nothing is known any more of these claims, which had ended.
    Forgotten {
        claims: Vec<ClaimId>,
    },
    /// Other queues from now on. A queue keeps its number; one that is left out is closed.
    QueuesChanged {
        queues: Box<QueueTree>,
    },
    NodeJoined {
        node: Box<NodeDraft>,
        kinds: Vec<KindDraft>,
    },
    NodeChanged {
        node: NodeId,
        availability: Availability,
        broken: Devices,
    },
    RunStarted {
        run: Run,
    },
    /// It has come so far, and this is how fast.
    RunProgressed {
        run: Run,
        report: StepReport,
    },
    /// What it reported changes the model of its steps on a kind of GPU.
    Refitted {
        claim: ClaimId,
        kind: GpuKind,
        step: StepTime,
    },
    /// It goes on with the workers it was told to have, and without the others.
    RunResized {
        run: Run,
    },
    /// It was told to change its workers, and everything is as it was.
    RunNotResized {
        run: Run,
    },
    /// It has ended, and lasted this long by the clock of whoever watched over it: it is charged for that. What the end
    /// means follows.
    RunTimed {
        run: Run,
        ran: Span,
    },
    /// It stopped as it was told, with its state saved after so many iterations.
    RunStopped {
        run: Run,
        done: u64,
    },
    RunFinished {
        run: Run,
    },
    /// What is left are the iterations of its last saved state.
    RunFailed {
        run: Run,
        why: FailureCause,
        done: u64,
    },
    Planned(Box<Plan>),
    /// Jobs that start on free devices before the policy is asked again.
    StartedAtOnce(Box<Plan>),
    /// The policy's plan was not carried out; everything stays as it was.
    PlanRefused {
        why: Trouble,
    },
    Issued(Command),
}

/// Why a plan was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Trouble {
    Panicked(String),
    Faulty(Vec<Fault>),
}

/// An event and when it happened: one line of a journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub at: Time,
    pub event: Event,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Panicked(message) => write!(f, "the policy panicked: {message}"),
            Trouble::Faulty(faults) => {
                let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
                write!(f, "the plan is faulty: {}", faults.join("; "))
            }
        }
    }
}
