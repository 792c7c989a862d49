//! Wishes, which may be refused.

use std::fmt;
use std::sync::Arc;

use cluster::{ClaimId, Gpus, JobSpec, KindDraft, NodeDraft, NodeId, QueueId, QueueTree, Time};
use perf::Speed;
use plan::{Availability, Claim, Obstruction, Outcome, Phase, feasible};
use serde::{Deserialize, Serialize};

use crate::event::Event;
use crate::{Engine, State};

/// What comes in from outside: somebody's wish, or a world's report of a fact.
#[derive(Debug, Clone)]
pub enum Input {
    Request(Request),
    Report(Event),
}

#[derive(Debug, Clone)]
pub enum Request {
    Submit {
        spec: Arc<JobSpec>,
        speed: Arc<Speed>,
        /// It is to wait until its user releases it.
        held: bool,
    },
    Cancel(ClaimId),
    /// Let it wait; if it runs, it saves its state and stops.
    Hold(ClaimId),
    Release(ClaimId),
    Reprioritise(ClaimId, i32),
    /// Take no more jobs on this node; those on it stay.
    Cordon(NodeId),
    /// Take no more jobs on this node and move those on it away.
    Drain(NodeId),
    /// Take jobs on this node again.
    Reopen(NodeId),
    AddNode {
        node: Box<NodeDraft>,
        kinds: Vec<KindDraft>,
    },
    /// Forget this node; what still runs there is lost.
    RemoveNode(NodeId),
    /// Use these queues, in which every number means the same queue as before.
    ChangeQueues(Box<QueueTree>),
}

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    UnknownClaim(ClaimId),
    /// It has ended already.
    Ended(ClaimId),
    /// It waits for its user already.
    AlreadyHeld(ClaimId),
    NotHeld(ClaimId),
    UnknownQueue,
    UnknownKind,
    /// A job it is to run after is unknown, or has ended without finishing.
    DependencyNeverFinishes(ClaimId),
    /// It could not run even if it were alone.
    Impossible(Obstruction),
    /// It must never be stopped, and its queue could have it only by borrowing.
    PinnedBeyondGuarantee {
        queue: String,
        needed: Gpus,
        guaranteed: Gpus,
    },
    UnknownNode(NodeId),
    /// The node is gone for good.
    Removed(NodeId),
    /// The description of a node is wrong.
    BadNode(String),
    /// It takes no new jobs.
    QueueClosed(String),
    /// They were changed by somebody else since these were made from them.
    QueuesOutdated,
}

impl Engine {
    /// Turns a wish into a fact, or refuses it. A refused submission is on record too, under a number of its own.
    pub(crate) fn admit(
        &mut self,
        now: Time,
        request: Request,
        events: &mut Vec<Event>,
    ) -> Result<Option<ClaimId>, Refusal> {
        match request {
            Request::Submit { spec, speed, held } => {
                let claim = self.state.books().claims().next_id();
                match self.objection(&spec, &speed) {
                    None => {
                        self.record(now, Event::ClaimSubmitted { claim, spec, speed }, events);
                        if held {
                            self.record(now, Event::ClaimHeld { claim }, events);
                        }
                        Ok(Some(claim))
                    }
                    Some(why) => {
                        self.record(now, Event::ClaimRefused { claim, spec, speed, why: why.clone() }, events);
                        Err(why)
                    }
                }
            }
            Request::Cancel(claim) => {
                self.staying(claim)?;
                self.record(now, Event::ClaimCancelled { claim }, events);
                Ok(Some(claim))
            }
            Request::Hold(claim) => {
                if self.staying(claim)?.held {
                    return Err(Refusal::AlreadyHeld(claim));
                }
                self.record(now, Event::ClaimHeld { claim }, events);
                Ok(Some(claim))
            }
            Request::Release(claim) => {
                if !self.staying(claim)?.held {
                    return Err(Refusal::NotHeld(claim));
                }
                self.record(now, Event::ClaimReleased { claim }, events);
                Ok(Some(claim))
            }
            Request::Reprioritise(claim, priority) => {
                self.staying(claim)?;
                self.record(now, Event::ClaimReprioritised { claim, priority }, events);
                Ok(Some(claim))
            }
            Request::Cordon(node) => self.change(now, node, Availability::Cordoned, events),
            Request::Drain(node) => self.change(now, node, Availability::Drained, events),
            Request::Reopen(node) => self.change(now, node, Availability::Open, events),
            Request::RemoveNode(node) => self.change(now, node, Availability::Removed, events),
            Request::ChangeQueues(queues) => {
                if !self.state.books().queues.keeps_numbers_in(&queues) {
                    return Err(Refusal::QueuesOutdated);
                }
                self.record(now, Event::QueuesChanged { queues }, events);
                Ok(None)
            }
            Request::AddNode { node, kinds } => {
                let mut trial = self.state.books().cluster.clone();
                trial.add(&node, &kinds).map_err(|invalid| Refusal::BadNode(invalid.to_string()))?;
                self.record(now, Event::NodeJoined { node, kinds }, events);
                Ok(None)
            }
        }
    }

    /// A claim that neither has ended nor is about to.
    fn staying(&self, claim: ClaimId) -> Result<&Claim, Refusal> {
        let known = self.state.books().claims().get(claim).ok_or(Refusal::UnknownClaim(claim))?;
        if known.is_live() && known.leaves_as.is_none() { Ok(known) } else { Err(Refusal::Ended(claim)) }
    }

    fn change(
        &mut self,
        now: Time,
        node: NodeId,
        availability: Availability,
        events: &mut Vec<Event>,
    ) -> Result<Option<ClaimId>, Refusal> {
        let books = self.state.books();
        if node.0 as usize >= books.cluster.node_count() {
            return Err(Refusal::UnknownNode(node));
        }
        let status = *books.node_status(node);
        if status.availability == Availability::Removed {
            return Err(Refusal::Removed(node));
        }
        self.record(now, Event::NodeChanged { node, availability, broken: status.broken }, events);
        Ok(None)
    }

    /// Why this job could never run.
    fn objection(&self, spec: &JobSpec, speed: &Speed) -> Option<Refusal> {
        let books = self.state.books();
        match books.queues.get(spec.queue) {
            None => return Some(Refusal::UnknownQueue),
            Some(queue) if queue.closed => return Some(Refusal::QueueClosed(queue.name.to_string())),
            Some(_) => {}
        }
        let kinds = books.cluster.kinds().count();
        if spec.kinds.iter().any(|kind| usize::from(kind.0) >= kinds) {
            return Some(Refusal::UnknownKind);
        }
        let hopeless = |&&after: &&ClaimId| match books.claims().get(after).map(|claim| &claim.phase) {
            None => true,
            Some(Phase::Ended { outcome, .. }) => *outcome != Outcome::Finished,
            Some(_) => false,
        };
        if let Some(&after) = spec.after.iter().find(hopeless) {
            return Some(Refusal::DependencyNeverFinishes(after));
        }
        let pinned = || pinned_beyond_guarantee(&self.state, &books.queues, spec);
        feasible(books, spec, speed).err().map(Refusal::Impossible).or_else(pinned)
    }
}

/// What may never be stopped may not borrow: why such a job could never start with these queues. The root has what those
/// below it are not guaranteed; all of it, if there are none.
pub fn pinned_beyond_guarantee(state: &State, queues: &QueueTree, spec: &JobSpec) -> Option<Refusal> {
    if !state.safeguards().guarantees || !spec.pinned || queues.len() == 1 {
        return None;
    }
    let needed = spec.min_gpus();
    queues.ancestry(spec.queue).find_map(|id| {
        let queue = queues.queue(id);
        let has = if id == QueueId::ROOT { Gpus::whole(state.books().cluster.gpus()) } else { queue.guarantee };
        let below: Gpus = queues.children(id).map(|(_, child)| child.guarantee).sum();
        let guaranteed = if id == spec.queue { has.saturating_sub(below) } else { has };
        let queue = queue.name.to_string();
        (needed > guaranteed).then_some(Refusal::PinnedBeyondGuarantee { queue, needed, guaranteed })
    })
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::UnknownClaim(claim) => write!(f, "there is no job {claim}"),
            Refusal::Ended(claim) => write!(f, "job {claim} has already ended or been cancelled"),
            Refusal::AlreadyHeld(claim) => write!(f, "job {claim} is held already"),
            Refusal::NotHeld(claim) => write!(f, "job {claim} is not held"),
            Refusal::UnknownQueue => f.write_str("there is no such queue"),
            Refusal::UnknownKind => f.write_str("there is no such kind of GPU"),
            Refusal::DependencyNeverFinishes(_) => {
                f.write_str("a job that must finish first is unknown or has ended without finishing")
            }
            Refusal::Impossible(obstruction) => obstruction.fmt(f),
            Refusal::PinnedBeyondGuarantee { queue, needed, guaranteed } => write!(
                f,
                "it may not be interrupted and needs {needed} GPUs, and queue {queue} is guaranteed {guaranteed}: what it \
                 borrows it may have to give back"
            ),
            Refusal::UnknownNode(node) => write!(f, "there is no {node}"),
            Refusal::Removed(node) => write!(f, "{node} was removed"),
            Refusal::BadNode(what) => f.write_str(what),
            Refusal::QueueClosed(queue) => write!(f, "queue {queue} is closed and takes no new jobs"),
            Refusal::QueuesOutdated => f.write_str("the queues were changed by somebody else meanwhile: try again"),
        }
    }
}

impl std::error::Error for Refusal {}
