//! The sum of all facts so far. It changes only in [`State::apply`], so that replaying a journal gives the same state to
//! the last bit.

use std::collections::BTreeSet;
use std::sync::Arc;

use cluster::{ClaimId, GpuKind, NodeId, Placement, Run, Span, Time};
use plan::{
    Allotment, Availability, Books, Claim, FailureCause, NodeStatus, Note, Outcome, Phase, Plan, Reason, Resizing,
    Room, Safeguards, beyond,
};
use serde::{Deserialize, Serialize};

use crate::Settings;
use crate::command::Command;
use crate::event::{Event, Record};
use crate::resize::{Outlook, Way};

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct State {
    now: Time,
    core: Option<Core>,
    policy: String,
    #[serde(default)]
    safeguards: Safeguards,
}

/// Everything there is once the cluster is defined.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Core {
    pub(crate) books: Books,
    /// What is free physically, whatever the latest plan says.
    pub(crate) held: Room,
    /// Since when the policy should be asked; nothing if it need not be.
    due_since: Option<Time>,
    /// When something last happened by which a claim could start that could not before, if no plan has come of it yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    opened_at: Option<Time>,
    /// When the policy asked to be woken.
    wake_at: Option<Time>,
    /// When the policy was last asked.
    planned_at: Option<Time>,
    /// How many nodes there should be, if a policy has said so.
    wanted_nodes: Option<u32>,
    /// Nodes that were asked for and have not come yet.
    ordered_nodes: u32,
    /// Claims that changed since the policy was last asked.
    changed: Vec<ClaimId>,
    /// Claims that do not hold what they are meant to hold, and for which nothing is under way yet.
    pub(crate) unsettled: BTreeSet<ClaimId>,
    start_deadlines: BTreeSet<(Time, ClaimId)>,
    /// When runs that were told to change their workers must have said what came of it.
    #[serde(default)]
    resize_deadlines: BTreeSet<(Time, ClaimId)>,
    /// When claims that hold devices will have done so for as long as they may.
    limits: BTreeSet<(Time, ClaimId)>,
    /// When claims that failed will have been left alone long enough.
    rests: BTreeSet<(Time, ClaimId)>,
    /// Claims that are to end without having finished.
    doomed: Vec<(ClaimId, Outcome)>,
    /// Claims whose model of a kind of GPU no longer fits what was seen.
    to_fit: Vec<(ClaimId, GpuKind)>,
}

/// How long it may take to hear whether the workers of a run changed, when they have had their time: those who leave are
/// seen off, and a gang that did not go on is killed.
const PATIENCE: Span = Span::from_secs(30);

impl State {
    pub fn replay<'a>(records: impl IntoIterator<Item = &'a Record>) -> State {
        let mut state = State::default();
        records.into_iter().for_each(|record| state.apply(record.at, &record.event));
        state
    }

    pub fn now(&self) -> Time {
        self.now
    }

    /// Whether the cluster is defined, without which nothing else can be the case.
    pub fn has_begun(&self) -> bool {
        self.core.is_some()
    }

    /// The name of the policy in force.
    pub fn policy(&self) -> &str {
        &self.policy
    }

    /// The rules that hold around it.
    pub fn safeguards(&self) -> Safeguards {
        self.safeguards
    }

    pub fn books(&self) -> &Books {
        &self.core().books
    }

    pub fn changed(&self) -> &[ClaimId] {
        &self.core().changed
    }

    /// From when on a policy should be asked.
    pub fn plan_due(&self) -> Option<Time> {
        [self.core().due_since, self.core().wake_at].into_iter().flatten().min()
    }

    /// Whether something has happened that a policy should be asked about.
    fn has_news(&self) -> bool {
        self.core().due_since.is_some()
    }

    /// Whether something has happened just now by which a claim could start that could not before. A look at all who wait
    /// costs more than taking on a job, and most of what is reported changes nothing for them.
    pub(crate) fn may_let_start(&self, now: Time) -> bool {
        self.has_news() && self.core().opened_at == Some(now)
    }

    /// When a policy was last asked.
    pub fn planned_at(&self) -> Option<Time> {
        self.core().planned_at
    }

    /// When something is to be done even if nothing happens: a start fails, a resize is not heard of, a limit is reached,
    /// a rest is over.
    pub fn next_deadline(&self) -> Option<Time> {
        let core = self.core();
        let firsts = [&core.start_deadlines, &core.resize_deadlines, &core.limits, &core.rests].map(BTreeSet::first);
        firsts.into_iter().flatten().map(|&(at, _)| at).min()
    }

    /// A claim that has held devices for as long as it may.
    pub(crate) fn overdue(&self, now: Time) -> Option<ClaimId> {
        self.core().limits.first().filter(|(at, _)| *at <= now).map(|&(_, claim)| claim)
    }

    /// A claim that has been left alone long enough.
    pub(crate) fn rested(&self, now: Time) -> Option<ClaimId> {
        self.core().rests.first().filter(|(at, _)| *at <= now).map(|&(_, claim)| claim)
    }

    /// A run that should have been up by now.
    pub(crate) fn late_start(&self, now: Time) -> Option<Run> {
        let &(until, claim) = self.core().start_deadlines.first()?;
        (until <= now).then(|| self.books().claim(claim).run())
    }

    /// A run of which nobody has said in time whether its workers changed.
    pub(crate) fn silent_resize(&self, now: Time) -> Option<Run> {
        let &(until, claim) = self.core().resize_deadlines.first()?;
        (until <= now).then(|| self.books().claim(claim).run())
    }

    pub(crate) fn next_doomed(&self) -> Option<(ClaimId, Outcome)> {
        self.core().doomed.first().copied()
    }

    /// A claim whose model of a kind of GPU is to be fitted anew.
    pub(crate) fn next_fit(&self) -> Option<(ClaimId, GpuKind)> {
        self.core().to_fit.first().copied()
    }

    /// Whether a report is news. What an old attempt, or one that is already over, still has to say is not.
    pub fn accepts(&self, event: &Event) -> bool {
        let current = |run: &Run| {
            let claim = self.books().claims().get(run.claim);
            claim.filter(|claim| claim.run() == *run).map(|claim| &claim.phase)
        };
        let resizing = |run: &Run| {
            let running = matches!(current(run), Some(Phase::Running { .. }));
            running && self.books().claim(run.claim).resizing.is_some()
        };
        match event {
            Event::RunStarted { run } => matches!(current(run), Some(Phase::Starting { .. })),
            // What it says while it is being stopped counts too.
            Event::RunProgressed { run, .. } => {
                matches!(current(run), Some(Phase::Running { .. } | Phase::Stopping { .. }))
            }
            Event::RunResized { run } | Event::RunNotResized { run } => resizing(run),
            // A run that has reached its limit stops without having been told to by us.
            Event::RunStopped { run, .. } => current(run).is_some_and(|phase| match phase {
                Phase::Stopping { .. } => true,
                Phase::Starting { .. } | Phase::Running { .. } => self.books().claim(run.claim).leaves_as.is_some(),
                Phase::Waiting | Phase::Ended { .. } => false,
            }),
            Event::RunFinished { run } | Event::RunFailed { run, .. } | Event::RunTimed { run, .. } => current(run)
                .is_some_and(|phase| {
                    matches!(phase, Phase::Starting { .. } | Phase::Running { .. } | Phase::Stopping { .. })
                }),
            Event::NodeChanged { node, .. } => (node.0 as usize) < self.books().cluster.node_count(),
            _ => true,
        }
    }

    /// The only way a state changes.
    pub fn apply(&mut self, now: Time, event: &Event) {
        assert!(now >= self.now, "time runs forward: {now} after {}", self.now);
        self.now = now;
        match event {
            Event::ClusterDefined { cluster, queues } => {
                let books = Books::new((**cluster).clone(), (**queues).clone());
                self.core = Some(Core::new(books));
            }
            Event::PolicyChosen { name } => {
                self.policy.clone_from(name);
                self.core_mut().due(now);
            }
            Event::SafeguardsChosen { safeguards } => {
                self.safeguards = *safeguards;
                self.core_mut().due(now);
            }
            event => self.core_mut().apply(now, event),
        }
        self.core_mut().mark_opening(now, event);
    }

    /// Adds up anew what is occupied.
    #[cfg(test)]
    pub(crate) fn assert_nothing_is_lost(&self) {
        let core = self.core();
        let cluster = &core.books.cluster;
        let mut free = Room::new(cluster, &vec![NodeStatus::default(); cluster.node_count()]);
        let occupied = core.books.claims().live().flat_map(Claim::occupies);
        occupied.for_each(|placement| free.take(&placement));
        for (id, node) in cluster.nodes() {
            let status = core.books.node_status(id);
            let exist = cluster::Devices::first(u32::from(node.gpus));
            free.set_node(id, exist.without(status.broken), status.is_open());
        }
        assert_eq!(free, core.held, "what is free is what nobody occupies");
    }

    fn core(&self) -> &Core {
        self.core.as_ref().expect("a history begins with the definition of its cluster")
    }

    fn core_mut(&mut self) -> &mut Core {
        self.core.as_mut().expect("a history begins with the definition of its cluster")
    }

    /// Plan minus state: what is to be done so that everyone comes to hold what is meant for them. Devices that someone
    /// must first let go of are promised; the launch follows by itself once they are free.
    pub(crate) fn commands(&self, now: Time, settings: Settings) -> Vec<Command> {
        let core = self.core();
        let outlook = Outlook::of(core, settings);
        let order = |&id: &ClaimId| core.next_step(core.books.claim(id), now, settings, &outlook);
        core.unsettled.iter().filter_map(order).chain(core.node_commands()).collect()
    }

    /// Whether what an order takes is still free now that the orders before it were given: several may fit one by one
    /// and not together, as where cores are short. What has to wait is ordered once someone has let go.
    pub(crate) fn has_room_for(&self, command: &Command) -> bool {
        let core = self.core();
        let fits = |placement: &Placement| core.held.fits(&core.books.cluster, placement);
        match command {
            Command::Launch { allotment, .. } => fits(&allotment.placement),
            Command::Resize { run, allotment, .. } => {
                let holds = core.books.claim(run.claim).holds().expect("a run that resizes holds something");
                fits(&beyond(&allotment.placement, &holds.placement))
            }
            Command::Stop { .. } | Command::Retune { .. } | Command::Provision { .. } | Command::Release { .. } => true,
        }
    }
}

impl Core {
    fn new(books: Books) -> Core {
        Core {
            held: books.room().clone(),
            books,
            due_since: None,
            opened_at: None,
            wake_at: None,
            planned_at: None,
            wanted_nodes: None,
            ordered_nodes: 0,
            changed: Vec::new(),
            unsettled: BTreeSet::new(),
            start_deadlines: BTreeSet::new(),
            resize_deadlines: BTreeSet::new(),
            limits: BTreeSet::new(),
            rests: BTreeSet::new(),
            doomed: Vec::new(),
            to_fit: Vec::new(),
        }
    }

    fn apply(&mut self, now: Time, event: &Event) {
        match event {
            Event::ClusterDefined { .. } | Event::PolicyChosen { .. } | Event::SafeguardsChosen { .. } => {
                unreachable!("taken by the state itself")
            }
            Event::ClaimSubmitted { claim, spec, speed } => {
                let id = self.books.submit(now, spec.clone(), speed.clone());
                assert_eq!(id, *claim, "claims are numbered in order of submission");
                self.touch(id);
                self.due(now);
            }
            Event::ClaimRefused { claim, spec, speed, .. } => {
                let id = self.books.submit(now, spec.clone(), speed.clone());
                assert_eq!(id, *claim, "claims are numbered in order of submission");
                self.end(now, id, Outcome::Refused);
            }
            Event::ClaimCancelled { claim } => self.dismiss(now, *claim, Outcome::Cancelled),
            Event::LimitReached { claim } => {
                self.limits.retain(|(_, limited)| limited != claim);
                self.dismiss(now, *claim, Outcome::TimedOut);
            }
            Event::ClaimHeld { claim } => {
                self.books.set_held(now, *claim, true);
                self.touch(*claim);
                self.due(now);
            }
            Event::ClaimReleased { claim } => {
                self.books.set_held(now, *claim, false);
                self.touch(*claim);
                self.due(now);
            }
            Event::ClaimReprioritised { claim, priority } => {
                self.books.set_priority(*claim, *priority);
                self.touch(*claim);
                self.due(now);
            }
            Event::DeadlineMoved { claim, deadline } => {
                self.books.set_deadline(*claim, *deadline);
                self.touch(*claim);
                self.due(now);
            }
            Event::ClaimRests { claim, until } => {
                self.books.set_rest(now, *claim, Some(*until));
                self.rests.insert((*until, *claim));
                self.touch(*claim);
            }
            Event::ClaimRested { claim } => {
                self.rests.retain(|(_, resting)| resting != claim);
                self.books.set_rest(now, *claim, None);
                self.touch(*claim);
                self.due(now);
            }
            Event::ClaimEnded { claim, outcome } => {
                self.doomed.retain(|(doomed, _)| doomed != claim);
                self.end(now, *claim, *outcome);
                self.due(now);
            }
            Event::NumbersBegin { at } => self.books.begin_numbers(*at),
            Event::Forgotten { claims } => {
                let untold = self.changed.iter().find(|changed| claims.contains(changed));
                assert_eq!(untold, None, "a claim is forgotten before the policy has heard of its end");
                claims.iter().for_each(|&claim| self.books.forget(claim));
            }
            Event::QueuesChanged { queues } => {
                self.books.set_queues((**queues).clone());
                // A policy sees claims by their queues.
                let live: Vec<ClaimId> = self.books.claims().live().map(|claim| claim.id).collect();
                live.into_iter().for_each(|claim| self.touch(claim));
                self.due(now);
            }
            Event::NodeJoined { node, kinds } => self.join(now, node, kinds),
            Event::NodeChanged { node, availability, broken } => {
                self.change_node(*node, NodeStatus { availability: *availability, broken: *broken });
                self.due(now);
            }
            Event::RunStarted { run } => self.started(now, *run),
            Event::RunProgressed { run, report } => {
                if let Some(kind) = self.books.progressed(now, run.claim, report) {
                    self.to_fit.push((run.claim, kind));
                }
                self.touch(run.claim);
            }
            Event::Refitted { claim, kind, step } => {
                self.to_fit.retain(|entry| entry != &(*claim, *kind));
                self.books.refitted(*claim, *kind, *step);
                self.touch(*claim);
            }
            Event::RunResized { run } => self.resized(now, *run),
            Event::RunNotResized { run } => self.not_resized(now, *run),
            Event::RunTimed { run, ran } => self.books.progress_mut(run.claim).charge_run(now, *ran),
            Event::RunStopped { run, done } => {
                let progress = self.books.progress_mut(run.claim);
                (progress.done, progress.reported) = (*done, now);
                progress.failed_in_a_row = 0;
                self.let_go(now, run.claim);
            }
            Event::RunFinished { run } => {
                self.let_go(now, run.claim);
                if self.books.claim(run.claim).is_live() {
                    self.end(now, run.claim, Outcome::Finished);
                }
                self.due(now);
            }
            Event::RunFailed { run, why, done } => self.failed(now, *run, *why, *done),
            Event::Planned(plan) => self.planned(now, plan),
            Event::StartedAtOnce(plan) => self.carry_out(plan),
            Event::PlanRefused { .. } => {
                self.changed.clear();
                self.due_since = None;
                self.wake_at = None;
                self.planned_at = Some(now);
            }
            Event::Issued(Command::Launch { run, allotment, tuning, until }) => {
                self.books.tune(run.claim, *tuning);
                self.launch(now, *run, allotment, *until);
            }
            Event::Issued(Command::Resize { run, allotment, tuning, until }) => {
                self.resize(now, *run, Resizing { to: allotment.clone(), tuning: *tuning, until: *until });
            }
            Event::Issued(Command::Provision { count }) => self.ordered_nodes += count,
            Event::Issued(Command::Release { node }) => {
                let broken = self.books.node_status(*node).broken;
                self.change_node(*node, NodeStatus { availability: Availability::Removed, broken });
                self.due(now);
            }
            Event::Issued(Command::Retune { run, tuning }) => {
                self.books.tune(run.claim, Some(*tuning));
            }
            Event::Issued(Command::Stop { run, .. }) => self.stop(*run),
        }
    }

    fn mark_opening(&mut self, now: Time, event: &Event) {
        match event {
            Event::Planned(_) | Event::StartedAtOnce(_) | Event::PlanRefused { .. } => self.opened_at = None,
            Event::ClaimSubmitted { claim, .. } if !self.books.claim(*claim).is_waiting() => {}
            Event::ClaimRefused { .. }
            | Event::RunProgressed { .. }
            | Event::RunTimed { .. }
            | Event::Refitted { .. }
            | Event::RunStarted { .. }
            | Event::Forgotten { .. }
            | Event::Issued(_) => {}
            _ => self.opened_at = Some(now),
        }
    }

    fn due(&mut self, now: Time) {
        self.due_since.get_or_insert(now);
    }

    /// The policy is to look at this claim again, and the difference between plan and state may be another.
    fn touch(&mut self, id: ClaimId) {
        self.changed.push(id);
        let claim = self.books.claim(id);
        let unsettled = match (&claim.phase, &claim.target) {
            (Phase::Waiting, target) => target.is_some(),
            (Phase::Starting { holds, .. } | Phase::Running { holds, .. }, target) => {
                target.as_ref() != Some(claim.resizes_to().unwrap_or(holds))
            }
            (Phase::Stopping { .. } | Phase::Ended { .. }, _) => false,
        };
        if unsettled {
            self.unsettled.insert(id);
        } else {
            self.unsettled.remove(&id);
        }
    }

    fn next_step(&self, claim: &Claim, now: Time, settings: Settings, outlook: &Outlook) -> Option<Command> {
        let tuning = |target: &Allotment| claim.tuning_in(&target.placement, &self.books.cluster);
        match (&claim.phase, &claim.target) {
            (Phase::Waiting, Some(target)) => {
                let run = Run { claim: claim.id, attempt: claim.progress.launches + 1 };
                let until = now + settings.start_deadline;
                let free = outlook.room(self).fits(&self.books.cluster, &target.placement);
                free.then(|| Command::Launch { run, allotment: target.clone(), tuning: tuning(target), until })
            }
            (Phase::Running { .. }, Some(target)) if outlook.way(claim.id) == Some(Way::Resize) => {
                let until = now + settings.resize_within.expect("nobody resizes in a world where none can");
                let (run, allotment) = (claim.run(), target.clone());
                Some(Command::Resize { run, allotment, tuning: tuning(target), until })
            }
            (Phase::Running { .. }, Some(_)) if outlook.way(claim.id) == Some(Way::Wait) => None,
            (Phase::Starting { .. } | Phase::Running { .. }, _) => {
                Some(Command::Stop { run: claim.run(), grace: settings.grace })
            }
            (Phase::Waiting, None) | (Phase::Stopping { .. } | Phase::Ended { .. }, _) => None,
        }
    }

    fn dismiss(&mut self, now: Time, id: ClaimId, outcome: Outcome) {
        self.books.dismiss(now, id, outcome);
        if self.books.claim(id).holds().is_none() {
            self.end(now, id, outcome);
        } else {
            self.touch(id);
        }
        self.due(now);
    }

    fn join(&mut self, now: Time, node: &cluster::NodeDraft, kinds: &[cluster::KindDraft]) {
        let mut cluster = self.books.cluster.clone();
        let added = cluster.add(node, kinds).expect("a node is examined before it joins");
        for id in added {
            self.books.add_node(cluster.clone());
            self.held.add_node(&cluster, id);
            let exist = cluster::Devices::first(u32::from(cluster.node(id).gpus));
            self.held.set_node(id, exist, true);
            self.ordered_nodes = self.ordered_nodes.saturating_sub(1);
        }
        self.due(now);
    }

    fn change_node(&mut self, node: NodeId, status: NodeStatus) {
        for displaced in self.books.set_status(node, status) {
            self.touch(displaced);
        }
        let exist = cluster::Devices::first(u32::from(self.books.cluster.node(node).gpus));
        self.held.set_node(node, exist.without(status.broken), status.is_open());
    }

    /// What is to be done so that there are as many nodes as wanted: more are ordered, idle ones are given back.
    fn node_commands(&self) -> Vec<Command> {
        let Some(wanted) = self.wanted_nodes else { return Vec::new() };
        let open: Vec<NodeId> = self.held.open_nodes().collect();
        let have = open.len() as u32 + self.ordered_nodes;
        if wanted > have {
            return vec![Command::Provision { count: wanted - have }];
        }
        let surplus = (open.len() as u32).saturating_sub(wanted);
        let idle = open.into_iter().rev().filter(|&node| self.is_idle(node));
        idle.take(surplus as usize).map(|node| Command::Release { node }).collect()
    }

    fn is_idle(&self, node: NodeId) -> bool {
        let working = self.books.cluster.node(node).gpus as u32 - self.books.node_status(node).broken.count();
        self.books.claims_on(node).is_empty() && self.held.free_devices(node).count() == working
    }

    fn launch(&mut self, now: Time, run: Run, allotment: &Arc<Allotment>, until: Time) {
        self.held.take(&allotment.placement);
        let progress = self.books.progress_mut(run.claim);
        progress.launches += 1;
        assert_eq!(progress.launches, run.attempt, "attempts are numbered in order");
        progress.last_launch = Some(now);
        progress.hold(now, Some(allotment.placement.gpus()));
        let executed = progress.executed(now);
        if let Some(limit) = self.books.claim(run.claim).spec.limit {
            self.limits.insert((now + limit.saturating_sub(executed), run.claim));
        }
        self.books.forget_resizable(run.claim);
        self.books.set_phase(run.claim, Phase::Starting { holds: allotment.clone(), until });
        self.start_deadlines.insert((until, run.claim));
        self.touch(run.claim);
    }

    /// From now on the run has what it held and what it is to hold.
    fn resize(&mut self, now: Time, run: Run, resizing: Resizing) {
        // They have as long to switch as they have to agree on it.
        let heard_by = resizing.until + resizing.until.since(now) + PATIENCE;
        self.resize_deadlines.insert((heard_by, run.claim));
        self.books.set_resizing(run.claim, Some(resizing));
        let claim = self.books.claim(run.claim);
        let extra = claim.extra().expect("a run that resizes holds something");
        let gpus = claim.occupies().map(|placement| placement.gpus()).sum();
        self.held.take(&extra);
        self.books.charge(now, run.claim, Some(gpus));
        self.touch(run.claim);
    }

    fn resized(&mut self, now: Time, run: Run) {
        self.forget_deadline(run.claim);
        let claim = self.books.claim(run.claim);
        let (Phase::Running { holds, since }, Some(Resizing { to, tuning, .. })) = (&claim.phase, &claim.resizing)
        else {
            panic!("only a run that is resizing resizes")
        };
        let surplus = beyond(&holds.placement, &to.placement);
        let (to, tuning, since) = (to.clone(), *tuning, *since);
        self.held.give(&surplus);
        self.books.tune(run.claim, tuning);
        self.books.progress_mut(run.claim).resizes += 1;
        self.settle(now, run.claim, to, since);
        self.due(now);
    }

    fn not_resized(&mut self, now: Time, run: Run) {
        self.forget_deadline(run.claim);
        let claim = self.books.claim(run.claim);
        let Phase::Running { holds, since } = &claim.phase else { panic!("only a run that is resizing fails to") };
        let (holds, since) = (holds.clone(), *since);
        self.held.give(&claim.extra().expect("only a run that is resizing fails to"));
        self.books.set_not_resizable(run.claim);
        self.settle(now, run.claim, holds, since);
    }

    /// The change of its workers is over, and the run holds this.
    fn settle(&mut self, now: Time, id: ClaimId, holds: Arc<Allotment>, since: Time) {
        self.books.set_resizing(id, None);
        self.books.charge(now, id, Some(holds.placement.gpus()));
        self.books.set_phase(id, Phase::Running { holds, since });
        self.touch(id);
    }

    /// A stop that comes after the run's end only clears away what is left of it.
    fn stop(&mut self, run: Run) {
        let claim = self.books.claim(run.claim);
        let (Phase::Starting { holds, .. } | Phase::Running { holds, .. }) = &claim.phase else { return };
        let holds = holds.clone();
        if claim.run() != run {
            return;
        }
        if claim.leaves_as.is_none() && !claim.held {
            self.books.progress_mut(run.claim).preemptions += 1;
        }
        self.forget_deadline(run.claim);
        self.books.set_phase(run.claim, Phase::Stopping { holds });
        self.touch(run.claim);
    }

    fn started(&mut self, now: Time, run: Run) {
        let Phase::Starting { holds, .. } = &self.books.claim(run.claim).phase else {
            panic!("only a run that is starting starts")
        };
        let holds = holds.clone();
        self.forget_deadline(run.claim);
        self.books.set_phase(run.claim, Phase::Running { holds, since: now });
        self.touch(run.claim);
    }

    /// Devices are free again. A claim that nobody wants ends by that.
    fn let_go(&mut self, now: Time, id: ClaimId) {
        assert!(self.books.claim(id).holds().is_some(), "a run holds something until it ends");
        let occupied: Vec<Placement> = self.books.claim(id).occupies().collect();
        occupied.iter().for_each(|placement| self.held.give(placement));
        self.forget_deadline(id);
        self.books.set_resizing(id, None);
        self.books.forget_resizable(id);
        self.books.charge(now, id, None);
        self.books.set_phase(id, Phase::Waiting);
        if self.books.claim(id).spec.limit.is_some() {
            self.limits.retain(|(_, limited)| *limited != id);
        }
        if let Some(outcome) = self.books.claim(id).leaves_as {
            self.end(now, id, outcome);
        } else {
            self.touch(id);
        }
    }

    /// It loses its place too: whoever decides next says where it goes on.
    fn failed(&mut self, now: Time, run: Run, why: FailureCause, done: u64) {
        let progress = self.books.progress_mut(run.claim);
        (progress.done, progress.reported) = (done, now);
        progress.failed_in_a_row += 1;
        if matches!(why, FailureCause::Crash | FailureCause::Final | FailureCause::StartTimeout) {
            progress.crashes += 1;
        }
        if why == FailureCause::Crash && self.books.claim(run.claim).resizing.is_some() {
            self.books.failed_of_resizing(run.claim);
        }
        self.books.allot(run.claim, None);
        self.let_go(now, run.claim);
        let claim = self.books.claim(run.claim);
        if claim.is_live() {
            if why == FailureCause::Final || claim.progress.crashes > claim.spec.recovery.retries {
                self.doomed.push((run.claim, Outcome::GivenUp));
            }
            self.books.note(run.claim, Note::plain(Reason::Backoff));
        }
        self.due(now);
    }

    fn planned(&mut self, now: Time, plan: &Plan) {
        self.changed.clear();
        self.due_since = None;
        self.planned_at = Some(now);
        self.wanted_nodes = plan.nodes.or(self.wanted_nodes);
        // A policy cannot ask to be woken in the past, or time would stand still.
        self.wake_at = plan.wake_at.map(|at| at.max(now + Span::from_millis(1)));
        self.carry_out(plan);
        for (id, numbers) in &plan.memory {
            self.books.remember(*id, numbers.clone());
        }
    }

    /// From now on everybody is meant to hold what the plan says.
    fn carry_out(&mut self, plan: &Plan) {
        for (id, _) in &plan.changes {
            self.books.allot(*id, None);
        }
        for (id, target) in &plan.changes {
            self.books.allot(*id, target.clone());
            self.touch(*id);
        }
        for (id, note) in &plan.notes {
            self.books.note(*id, *note);
        }
    }

    fn end(&mut self, now: Time, id: ClaimId, outcome: Outcome) {
        if self.books.claim(id).rests_until.is_some() {
            self.rests.retain(|(_, resting)| *resting != id);
        }
        for dependent in self.books.end(now, id, outcome) {
            let claim = self.books.claim(dependent);
            if outcome != Outcome::Finished && claim.is_live() {
                let entry = (dependent, Outcome::DependencyFailed);
                if !self.doomed.contains(&entry) {
                    self.doomed.push(entry);
                }
            } else if claim.is_eligible() {
                self.touch(dependent);
            }
        }
        self.touch(id);
    }

    fn forget_deadline(&mut self, id: ClaimId) {
        if let Phase::Starting { until, .. } = self.books.claim(id).phase {
            self.start_deadlines.remove(&(until, id));
        }
        if self.books.claim(id).resizing.is_some() {
            self.resize_deadlines.retain(|(_, resizing)| *resizing != id);
        }
    }
}
