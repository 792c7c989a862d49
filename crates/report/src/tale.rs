//! Small histories told by hand, for tests. Times are in seconds.

use std::sync::Arc;

use cluster::{
    Bytes, ClaimId, Cluster, ClusterDraft, Devices, Grain, JobDraft, NodeId, Placement, QueueTree, Run, SliceSet, Slot,
    Span, Time,
};
use engine::{Command, Event, Refusal};
use perf::Speed;
use plan::{Allotment, Availability, FailureCause};

use crate::fairness::Isolated;
use crate::fold::Fold;
use crate::job::JobRow;
use crate::run::{Identity, RunReport};

pub(crate) struct Tale {
    pub(crate) fold: Fold,
    /// How often each job was launched.
    attempts: Vec<u32>,
}

pub(crate) fn cluster(short: &str) -> Cluster {
    ClusterDraft::parse_short(short).unwrap().build().unwrap().0
}

/// Whole devices, given as a node and the bits of its devices.
pub(crate) fn placement(places: &[(u32, u64)]) -> Placement {
    let slot = |&(node, devices): &(u32, u64)| {
        let slices = SliceSet { devices: Devices(devices), grain: Grain::Whole };
        let tasks = slices.devices.count();
        Slot { node: NodeId(node), role: 0, tasks, slices, millicores: 0, memory: Bytes::ZERO }
    };
    Placement::new(places.iter().map(slot).collect())
}

impl Tale {
    pub(crate) fn on(short: &str) -> Tale {
        let cluster = cluster(short);
        let mut tale = Tale { fold: Fold::new(), attempts: Vec::new() };
        let queues = Box::new(QueueTree::single());
        tale.tell(0, Event::ClusterDefined { cluster: Box::new(cluster), queues });
        tale.tell(0, Event::PolicyChosen { name: "fifo".into() });
        tale
    }

    pub(crate) fn tell(&mut self, at: u64, event: Event) {
        self.fold.observe(Time::from_secs(at), &event);
    }

    pub(crate) fn submit(&mut self, at: u64, draft: JobDraft) -> ClaimId {
        let claim = self.next_claim();
        let (spec, speed) = (Arc::new(draft.build().unwrap()), Arc::new(Speed::constant(1.0)));
        self.tell(at, Event::ClaimSubmitted { claim, spec, speed });
        claim
    }

    pub(crate) fn refuse(&mut self, at: u64, draft: JobDraft, why: Refusal) {
        let claim = self.next_claim();
        let (spec, speed) = (Arc::new(draft.build().unwrap()), Arc::new(Speed::constant(1.0)));
        self.tell(at, Event::ClaimRefused { claim, spec, speed, why });
    }

    fn next_claim(&mut self) -> ClaimId {
        self.attempts.push(0);
        ClaimId(self.attempts.len() as u32 - 1)
    }

    fn run(&self, claim: ClaimId) -> Run {
        Run { claim, attempt: self.attempts[claim.0 as usize] }
    }

    pub(crate) fn launch(&mut self, at: u64, claim: ClaimId, places: &[(u32, u64)]) {
        self.attempts[claim.0 as usize] += 1;
        let allotment = Arc::new(Allotment { placement: placement(places), batch: None });
        let until = Time::from_secs(at + 600);
        self.tell(at, Event::Issued(Command::Launch { run: self.run(claim), allotment, tuning: None, until }));
    }

    pub(crate) fn started(&mut self, at: u64, claim: ClaimId) {
        self.tell(at, Event::RunStarted { run: self.run(claim) });
    }

    pub(crate) fn resize(&mut self, at: u64, claim: ClaimId, places: &[(u32, u64)]) {
        let allotment = Arc::new(Allotment { placement: placement(places), batch: None });
        let until = Time::from_secs(at + 60);
        self.tell(at, Event::Issued(Command::Resize { run: self.run(claim), allotment, tuning: None, until }));
    }

    pub(crate) fn resized(&mut self, at: u64, claim: ClaimId) {
        self.tell(at, Event::RunResized { run: self.run(claim) });
    }

    pub(crate) fn not_resized(&mut self, at: u64, claim: ClaimId) {
        self.tell(at, Event::RunNotResized { run: self.run(claim) });
    }

    pub(crate) fn stop(&mut self, at: u64, claim: ClaimId) {
        self.tell(at, Event::Issued(Command::Stop { run: self.run(claim), grace: Span::from_minutes(5) }));
    }

    pub(crate) fn stopped(&mut self, at: u64, claim: ClaimId) {
        self.tell(at, Event::RunStopped { run: self.run(claim), done: 0 });
    }

    pub(crate) fn finish(&mut self, at: u64, claim: ClaimId) {
        self.tell(at, Event::RunFinished { run: self.run(claim) });
    }

    pub(crate) fn fail(&mut self, at: u64, claim: ClaimId, why: FailureCause) {
        self.tell(at, Event::RunFailed { run: self.run(claim), why, done: 0 });
    }

    pub(crate) fn cancel(&mut self, at: u64, claim: ClaimId) {
        self.tell(at, Event::ClaimCancelled { claim });
    }

    pub(crate) fn node(&mut self, at: u64, node: NodeId, availability: Availability, broken: Devices) {
        self.tell(at, Event::NodeChanged { node, availability, broken });
    }

    pub(crate) fn job(&self, claim: ClaimId) -> JobRow {
        self.fold.jobs().nth(claim.0 as usize).expect("it was submitted")
    }

    pub(crate) fn report(&self) -> RunReport {
        self.report_with(&|_, _, _| None)
    }

    pub(crate) fn report_with(&self, isolated: &Isolated<'_>) -> RunReport {
        let identity = Identity { policy: "fifo".into(), workload: "tale".into(), seed: 7, knows: Vec::new() };
        self.fold.finish(identity, isolated)
    }
}
