//! The decision core, shared by simulator and service: facts and wishes in, facts and orders out.
//!
//! It knows what a policy is, but not one policy. It reads no clock and does no IO; whoever calls it says what time it is,
//! keeps the journal and carries out the commands.

mod after;
#[cfg(test)]
mod bench;
mod command;
mod decide;
mod event;
mod request;
mod resize;
mod safeguards;
mod state;
mod tenants;

use std::sync::Arc;

use cluster::{ClaimId, Cluster, QueueTree, Span, Time};
use perf::{Fits, Search, Truth};
use plan::{FailureCause, Outcome, Policy, Safeguards};

pub use after::Reservation;
pub use command::Command;
pub use event::{Event, Record, Trouble};
pub use request::{Input, Refusal, Request, pinned_beyond_guarantee};
pub use safeguards::reservations;
pub use state::State;
pub use tenants::{budgets, guarantees};

/// Takes everything pending, decides once, says what is to be done.
#[allow(missing_debug_implementations, reason = "a policy need not be printable")]
pub struct Engine {
    state: State,
    policy: Box<dyn Policy>,
    settings: Settings,
    fits: Fits,
    /// Whether the policy has seen the present state before, so that only changes need be shown.
    acquainted: bool,
    /// Since when the policy is to be asked in its next round, although a fault between rounds is on record since.
    owed: Option<Time>,
    truths: Vec<Arc<Truth>>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// A gang that is not up after this long has failed.
    pub start_deadline: Span,
    /// How long a job has to save its state when told to stop.
    pub grace: Span,
    /// How long a job is left alone after a failure; twice as long after each further one in a row, up to 64 times.
    pub rest: Span,
    /// A running job changes its batch if that promises so many times its present goodput; 0 is always the best batch.
    pub worth_retuning: f64,
    /// How models of step times are searched for.
    pub search: Search,
    /// How long a run has to change its workers in place; nothing in a world where none can, and none is told to.
    pub resize_within: Option<Span>,
    /// The rules that hold around the policy from the beginning of a new history on.
    pub safeguards: Safeguards,
    /// Check everything held after every plan, not only what the plan touches.
    pub whole_checks: bool,
}

/// What came of a batch.
#[derive(Debug, Default)]
pub struct Answer {
    /// Everything that is now a fact, in order: to be journaled before the `Issued` ones among them are carried out.
    pub events: Vec<Event>,
    /// One for each request of the batch, in order.
    pub replies: Vec<Result<Option<ClaimId>, Refusal>>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            start_deadline: Span::from_minutes(10),
            grace: Span::from_minutes(5),
            rest: Span::ZERO,
            worth_retuning: 1.05,
            search: Search::Thorough,
            resize_within: None,
            safeguards: Safeguards::NONE,
            whole_checks: false,
        }
    }
}

impl Engine {
    /// A new history. The returned events are its beginning and belong into the journal.
    pub fn new(
        cluster: Cluster,
        queues: QueueTree,
        policy_name: &str,
        policy: Box<dyn Policy>,
        settings: Settings,
    ) -> (Engine, Vec<Event>) {
        let defined = Event::ClusterDefined { cluster: Box::new(cluster), queues: Box::new(queues) };
        let chosen = Event::PolicyChosen { name: policy_name.into() };
        let safeguards = settings.safeguards;
        let kept = (!safeguards.is_none()).then_some(Event::SafeguardsChosen { safeguards });
        let beginning: Vec<Event> = [defined, chosen].into_iter().chain(kept).collect();
        let mut state = State::default();
        beginning.iter().for_each(|event| state.apply(Time::ZERO, event));
        (Engine::resume(state, policy, settings), beginning)
    }

    /// Continues a history whose journal was replayed into `state`.
    pub fn resume(state: State, policy: Box<dyn Policy>, settings: Settings) -> Engine {
        Engine {
            state,
            policy,
            settings,
            fits: Fits::new(settings.search),
            acquainted: false,
            owed: None,
            truths: Vec::new(),
        }
    }

    /// Tells a policy that declares itself an oracle what is really the case, by claim. Others never see it.
    pub fn reveal(&mut self, truths: Vec<Arc<Truth>>) {
        self.truths = truths;
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub fn into_state(self) -> State {
        self.state
    }

    /// From now on another policy decides. The returned fact belongs into the journal.
    pub fn use_policy(&mut self, now: Time, name: &str, policy: Box<dyn Policy>) -> Event {
        self.policy = policy;
        self.acquainted = false;
        let chosen = Event::PolicyChosen { name: name.into() };
        self.state.apply(now, &chosen);
        chosen
    }

    /// From now on these rules hold around the policy. The returned fact belongs into the journal.
    pub fn use_safeguards(&mut self, now: Time, safeguards: Safeguards) -> Event {
        let chosen = Event::SafeguardsChosen { safeguards };
        self.state.apply(now, &chosen);
        chosen
    }

    /// From now on claims are numbered from here. The returned fact belongs into the journal.
    pub fn begin_numbers(&mut self, now: Time, at: ClaimId) -> Event {
        let begun = Event::NumbersBegin { at };
        self.state.apply(now, &begun);
        begun
    }

    /// Nothing is known any more of these claims, which have ended. The returned fact belongs into the journal.
    pub fn forget(&mut self, now: Time, claims: Vec<ClaimId>) -> Event {
        let forgotten = Event::Forgotten { claims };
        self.state.apply(now, &forgotten);
        forgotten
    }

    /// Applies the batch, asks the policy if it is due, and issues what follows from its plan.
    pub fn handle(&mut self, now: Time, batch: Vec<Input>) -> Answer {
        let mut answer = Answer::default();
        let mut reported = Vec::new();
        let mut failed = Vec::new();
        for input in batch {
            match input {
                Input::Request(request) => {
                    let reply = self.admit(now, request, &mut answer.events);
                    answer.replies.push(reply);
                }
                Input::Report(event) => {
                    if self.state.accepts(&event) {
                        match &event {
                            Event::RunProgressed { run, .. } => reported.push(run.claim),
                            Event::RunFailed { run, .. } => failed.push(run.claim),
                            _ => {}
                        }
                        self.record(now, event, &mut answer.events);
                    }
                }
            }
        }
        self.learn(now, &reported, &mut answer.events);
        failed.extend(self.fail_late_starts(now, &mut answer.events));
        self.stop_silent_resizes(now, &mut answer.events);
        self.end_overdue(now, &mut answer.events);
        self.end_doomed(now, &mut answer.events);
        self.let_rest(now, &failed, &mut answer.events);
        self.end_rests(now, &mut answer.events);
        if self.is_due(now) {
            self.decide(now, &mut answer.events);
        } else if self.state.safeguards().at_once && self.state.may_let_start(now) && !self.only_holds(&answer.events) {
            self.start_at_once(now, &mut answer.events);
        }
        self.issue(now, &mut answer.events);
        answer
    }

    /// Whether all that happened is that jobs came which nobody may start yet. A crowd of them costs no look at all others.
    /// One that was there before and is held now makes room for those behind it.
    fn only_holds(&self, events: &[Event]) -> bool {
        // Claims are numbered in order of submission: from this one on all came just now.
        let first = events.iter().find_map(|event| match event {
            Event::ClaimSubmitted { claim, .. } => Some(*claim),
            _ => None,
        });
        let is_held = |event: &Event| match event {
            Event::ClaimSubmitted { claim, .. } => !self.state.books().claim(*claim).is_waiting(),
            Event::ClaimHeld { claim } => first.is_some_and(|first| *claim >= first),
            _ => false,
        };
        !events.is_empty() && events.iter().all(is_held)
    }

    /// When to call again even if nothing happens until then.
    pub fn next_wakeup(&self) -> Option<Time> {
        let planning = self.plan_due().map(|due| self.round_up(due));
        [planning, self.state.next_deadline()].into_iter().flatten().min()
    }

    fn is_due(&self, now: Time) -> bool {
        self.plan_due().is_some_and(|due| self.round_up(due) <= now)
    }

    fn plan_due(&self) -> Option<Time> {
        [self.state.plan_due(), self.owed].into_iter().flatten().min()
    }

    /// When the policy is asked if something calls for it at a time: with rounds, once a round.
    fn round_up(&self, time: Time) -> Time {
        match self.policy.rhythm() {
            plan::Rhythm::OnChange => time,
            plan::Rhythm::EveryRound(round) => {
                let after_last = self.state.planned_at().map_or(Time::ZERO, |last| last + Span::from_millis(1));
                time.max(after_last).round_up(round)
            }
        }
    }

    /// Fits models to what was reported, and lets the jobs that reported go on with the batch that is best by them.
    fn learn(&mut self, now: Time, reported: &[ClaimId], events: &mut Vec<Event>) {
        while let Some((claim, kind)) = self.state.next_fit() {
            let learned = &self.state.books().claim(claim).learned;
            let step = self.fits.refit(learned, kind).expect("what was reported was seen");
            self.record(now, Event::Refitted { claim, kind, step }, events);
        }
        for &id in reported {
            if let Some(command) = self.retuning(id) {
                self.record(now, Event::Issued(command), events);
            }
        }
    }

    fn retuning(&self, id: ClaimId) -> Option<Command> {
        let books = self.state.books();
        let claim = books.claim(id);
        let adaptation = claim.speed.adaptation.as_ref()?;
        let plan::Phase::Running { holds, .. } = &claim.phase else { return None };
        if claim.resizing.is_some() {
            return None;
        }
        let shape = holds.placement.shape(&books.cluster);
        let best = claim.learned.tuning(adaptation, shape).filter(|&best| Some(best) != claim.tuning)?;
        let goodput = |tuning| claim.learned.goodput(adaptation, shape, tuning).unwrap_or(0.0);
        let gains = claim.tuning.is_none_or(|now| goodput(best) > self.settings.worth_retuning * goodput(now));
        gains.then(|| Command::Retune { run: claim.run(), tuning: best })
    }

    /// Makes something a fact. Deciding and recording are one step, so that what follows already sees it.
    fn record(&mut self, now: Time, event: Event, events: &mut Vec<Event>) {
        self.state.apply(now, &event);
        events.push(event);
    }

    fn fail_late_starts(&mut self, now: Time, events: &mut Vec<Event>) -> Vec<ClaimId> {
        let mut failed = Vec::new();
        while let Some(run) = self.state.late_start(now) {
            failed.push(run.claim);
            let done = self.state.books().claim(run.claim).progress.done;
            self.record(now, Event::RunFailed { run, why: FailureCause::StartTimeout, done }, events);
            self.record(now, Event::Issued(Command::Stop { run, grace: Span::ZERO }), events);
        }
        failed
    }

    /// A run that never said whether its workers changed may have any of them: it is stopped, and what it had and was to
    /// have stays its own until then.
    fn stop_silent_resizes(&mut self, now: Time, events: &mut Vec<Event>) {
        while let Some(run) = self.state.silent_resize(now) {
            self.record(now, Event::Issued(Command::Stop { run, grace: self.settings.grace }), events);
        }
    }

    /// Claims that have held devices for as long as they may.
    fn end_overdue(&mut self, now: Time, events: &mut Vec<Event>) {
        while let Some(claim) = self.state.overdue(now) {
            self.record(now, Event::LimitReached { claim }, events);
        }
    }

    /// What failed is left alone for a while, longer each time, so that a machine is not kept busy with failing.
    fn let_rest(&mut self, now: Time, failed: &[ClaimId], events: &mut Vec<Event>) {
        for &id in failed {
            let claim = self.state.books().claim(id);
            if self.settings.rest.is_zero() || !claim.is_live() {
                continue;
            }
            let doublings = claim.progress.failed_in_a_row.saturating_sub(1).min(6);
            let until = now + self.settings.rest * (1 << doublings);
            self.record(now, Event::ClaimRests { claim: id, until }, events);
        }
    }

    fn end_rests(&mut self, now: Time, events: &mut Vec<Event>) {
        while let Some(claim) = self.state.rested(now) {
            self.record(now, Event::ClaimRested { claim }, events);
        }
    }

    /// Claims that crashed too often, and claims whose dependencies will never finish.
    fn end_doomed(&mut self, now: Time, events: &mut Vec<Event>) {
        while let Some((claim, outcome)) = self.state.next_doomed() {
            assert!(matches!(outcome, Outcome::GivenUp | Outcome::DependencyFailed), "nothing else is doomed");
            self.record(now, Event::ClaimEnded { claim, outcome }, events);
        }
    }

    /// Plan minus state, as orders. What must first be let go is stopped; what is free is launched.
    fn issue(&mut self, now: Time, events: &mut Vec<Event>) {
        for command in self.state.commands(now, self.settings) {
            if self.state.has_room_for(&command) {
                self.record(now, Event::Issued(command), events);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{Bench, issued, run, whole};
    use cluster::{Devices, JobDraft, NodeId};
    use plan::{Availability, Phase, Plan, Snapshot};

    /// Gives the newest eligible claim all four devices of node 0 and takes them from everyone else.
    fn newest_takes_all(snapshot: &Snapshot<'_>) -> Plan {
        let newest = snapshot.eligible().last().map(|claim| claim.id);
        let changes = snapshot.eligible().filter_map(|claim| {
            let target = (Some(claim.id) == newest).then(|| whole(0, 0b1111));
            (claim.target != target).then_some((claim.id, target))
        });
        Plan { changes: changes.collect(), ..Plan::default() }
    }

    /// Gives whoever waits four devices of the node.
    fn all_on(snapshot: &Snapshot<'_>, node: u32) -> Plan {
        let waiting = snapshot.eligible().filter(|claim| claim.is_waiting());
        Plan { changes: waiting.map(|claim| (claim.id, Some(whole(node, 0b1111)))).collect(), ..Plan::default() }
    }

    /// Everybody gets the device of its number, and the cores it asks for.
    fn on_devices_of_their_own(snapshot: &Snapshot<'_>) -> Plan {
        let newcomers = snapshot.eligible().filter(|claim| claim.target.is_none());
        let target = |claim: &plan::Claim| {
            let mut slot = whole(0, 1 << claim.id.0).placement.slots()[0];
            slot.millicores = claim.spec.roles[0].millicores;
            Arc::new(plan::Allotment { placement: cluster::Placement::new(vec![slot]), batch: None })
        };
        let changes = newcomers.map(|claim| (claim.id, Some(target(claim)))).collect();
        Plan { changes, ..Plan::default() }
    }

    fn first_open_node(snapshot: &Snapshot<'_>) -> Plan {
        all_on(snapshot, if snapshot.room().is_open(NodeId(0)) { 0 } else { 1 })
    }

    fn job(name: &str) -> JobDraft {
        JobDraft::rigid(name, 4)
    }

    #[test]
    fn a_launch_waits_until_the_devices_it_was_promised_are_free() {
        let mut bench = Bench::new("1x4", newest_takes_all);
        assert!(matches!(issued(&bench.submit(0, job("a")))[..], [Command::Launch { .. }]));
        bench.report(1, Event::RunStarted { run: run(0, 1) });
        let orders = bench.submit(10, job("b"));
        assert!(matches!(issued(&orders)[..], [Command::Stop { run: stopped, .. }] if *stopped == run(0, 1)));
        let orders = bench.report(12, Event::RunStopped { run: run(0, 1), done: 9 });
        assert!(matches!(issued(&orders)[..], [Command::Launch { run: started, .. }] if *started == run(1, 1)));
        assert_eq!(bench.engine.state.books().claim(ClaimId(0)).progress.done, 9);
    }

    #[test]
    fn launches_that_fit_one_by_one_and_not_together_follow_each_other() {
        let mut bench = Bench::new("1x4", on_devices_of_their_own);
        let cores = |millicores: u32| {
            let draft = JobDraft::rigid("job", 1);
            JobDraft { roles: vec![cluster::Role { millicores, ..draft.roles[0].clone() }], ..draft }
        };
        for (claim, millicores) in [(0, 30_000), (1, 30_000)] {
            bench.submit(0, cores(millicores));
            bench.report(0, Event::RunStarted { run: run(claim, 1) });
        }
        bench.handle(1, vec![Input::Request(Request::Cancel(ClaimId(0)))]);
        let orders = bench.submit(2, cores(20_000));
        assert!(issued(&orders).is_empty(), "the cores of the one that is leaving are not free yet");
        let orders = bench.submit(3, cores(20_000));
        assert!(issued(&orders).is_empty());
        let orders = bench.report(4, Event::RunFinished { run: run(1, 1) });
        assert!(matches!(issued(&orders)[..], [Command::Launch { run: first, .. }] if *first == run(2, 1)));
        let orders = bench.report(5, Event::RunStopped { run: run(0, 1), done: 0 });
        assert!(matches!(issued(&orders)[..], [Command::Launch { run: second, .. }] if *second == run(3, 1)));
    }

    #[test]
    fn a_policy_that_panics_changes_nothing_and_is_on_record() {
        let mut bench = Bench::new("1x4", |_| panic!("lost my mind"));
        let events = bench.submit(0, job("a"));
        let trouble = Trouble::Panicked("lost my mind".into());
        assert_eq!(events.last(), Some(&Event::PlanRefused { why: trouble }));
        assert_eq!(bench.phase(0), &Phase::Waiting);
    }

    #[test]
    fn a_faulty_plan_changes_nothing_and_is_on_record() {
        let two_on_the_same_devices = |snapshot: &Snapshot<'_>| Plan {
            changes: snapshot.eligible().map(|claim| (claim.id, Some(whole(0, 0b1111)))).collect(),
            ..Plan::default()
        };
        let mut bench = Bench::new("1x4", two_on_the_same_devices);
        bench.submit(0, job("a"));
        let events = bench.submit(1, job("b"));
        let Some(Event::PlanRefused { why: Trouble::Faulty(faults) }) = events.last() else { panic!("{events:?}") };
        assert_eq!(faults[0].to_string(), "node 0: GPU 0 is given away more than once");
        assert!(bench.engine.state.books().claim(ClaimId(1)).target.is_none());
        assert!(matches!(bench.phase(0), Phase::Starting { .. }), "what was there stays");
    }

    #[test]
    fn a_gang_that_is_not_up_in_time_fails_whole() {
        let mut bench = Bench::new("1x4", newest_takes_all);
        bench.submit(0, JobDraft { recovery: cluster::Recovery::default(), ..job("a") });
        assert_eq!(bench.engine.next_wakeup(), Some(Time::from_secs(600)));
        let events = bench.handle(600, Vec::new());
        let why = FailureCause::StartTimeout;
        assert!(events.contains(&Event::RunFailed { run: run(0, 1), why, done: 0 }));
        assert!(issued(&events).iter().any(|command| matches!(command, Command::Stop { grace: Span::ZERO, .. })));
        let outcome = Outcome::GivenUp;
        assert_eq!(bench.phase(0), &Phase::Ended { at: Time::from_secs(600), outcome }, "it may not crash even once");
        assert_eq!(bench.engine.state.books().room().free(), 4);
    }

    #[test]
    fn reports_of_an_old_attempt_are_dropped() {
        let mut bench = Bench::new("1x4", newest_takes_all);
        bench.submit(0, job("a"));
        bench.report(1, Event::RunStarted { run: run(0, 1) });
        bench.report(2, Event::RunFailed { run: run(0, 1), why: FailureCause::Crash, done: 0 });
        assert!(matches!(bench.phase(0), Phase::Starting { .. }), "launched again");
        assert_eq!(bench.report(3, Event::RunFinished { run: run(0, 1) }), []);
        assert!(matches!(bench.phase(0), Phase::Starting { .. }));
    }

    #[test]
    fn a_drained_node_sends_its_jobs_away() {
        let mut bench = Bench::new("2x4", first_open_node);
        bench.submit(0, job("a"));
        bench.report(1, Event::RunStarted { run: run(0, 1) });
        let orders = bench.handle(5, vec![Input::Request(Request::Drain(NodeId(0)))]);
        assert!(matches!(issued(&orders)[..], [Command::Stop { .. }]));
        let orders = bench.report(6, Event::RunStopped { run: run(0, 1), done: 4 });
        assert!(matches!(issued(&orders)[..], [Command::Launch { .. }]));
        assert_eq!(bench.engine.state.books().claims_on(NodeId(1)), [ClaimId(0)]);
    }

    #[test]
    fn a_run_on_a_lost_node_is_launched_elsewhere_without_counting_as_a_crash() {
        let mut bench = Bench::new("2x4", first_open_node);
        bench.submit(0, job("a"));
        bench.report(1, Event::RunStarted { run: run(0, 1) });
        let lost = Event::NodeChanged { node: NodeId(0), availability: Availability::Lost, broken: Devices::NONE };
        let failed = Event::RunFailed { run: run(0, 1), why: FailureCause::NodeLost, done: 2 };
        let orders = bench.handle(5, vec![Input::Report(lost), Input::Report(failed)]);
        assert!(matches!(issued(&orders)[..], [Command::Launch { run: again, .. }] if *again == run(0, 2)));
        assert_eq!(bench.engine.state.books().claim(ClaimId(0)).progress.crashes, 0);
    }

    #[test]
    fn a_cancelled_job_lets_go_of_its_devices_and_ends() {
        let mut bench = Bench::new("1x4", newest_takes_all);
        bench.submit(0, job("a"));
        bench.report(1, Event::RunStarted { run: run(0, 1) });
        let orders = bench.handle(5, vec![Input::Request(Request::Cancel(ClaimId(0)))]);
        assert!(matches!(issued(&orders)[..], [Command::Stop { .. }]));
        bench.report(6, Event::RunStopped { run: run(0, 1), done: 4 });
        assert_eq!(bench.phase(0), &Phase::Ended { at: Time::from_secs(6), outcome: Outcome::Cancelled });
    }

    fn limited(secs: u64) -> JobDraft {
        JobDraft { limit: Some(Span::from_secs(secs)), ..job("a") }
    }

    #[test]
    fn a_run_is_charged_for_what_was_measured_and_not_until_its_end_was_heard_of() {
        let mut bench = Bench::new("1x4", newest_takes_all);
        bench.submit(0, limited(100));
        bench.report(1, Event::RunStarted { run: run(0, 1) });
        let timed = Event::RunTimed { run: run(0, 1), ran: Span::from_secs(30) };
        let failed = Event::RunFailed { run: run(0, 1), why: FailureCause::Mishap, done: 0 };
        bench.handle(90, vec![Input::Report(timed), Input::Report(failed)]);
        assert_eq!(bench.claim(0).attained(Time::from_secs(90)), cluster::GpuTime::from_gpu_secs(120));
        assert!(matches!(bench.phase(0), Phase::Starting { .. }), "launched again");
        assert_eq!(bench.engine.next_wakeup(), Some(Time::from_secs(90 + 70)), "what is left of its limit");
    }

    #[test]
    fn a_run_that_stopped_at_its_limit_before_we_noticed_has_timed_out() {
        let mut bench = Bench::new("1x4", newest_takes_all);
        bench.submit(0, limited(100));
        bench.report(1, Event::RunStarted { run: run(0, 1) });
        let stopped = Event::RunStopped { run: run(0, 1), done: 7 };
        assert_eq!(bench.report(98, stopped.clone()), [], "nobody told it to stop");
        let limit = Event::LimitReached { claim: ClaimId(0) };
        bench.handle(99, vec![Input::Report(limit), Input::Report(stopped)]);
        assert_eq!(bench.phase(0), &Phase::Ended { at: Time::from_secs(99), outcome: Outcome::TimedOut });
        assert_eq!(bench.claim(0).progress.crashes, 0);
    }

    #[test]
    fn a_job_whose_dependency_fails_never_starts() {
        let mut bench = Bench::new("1x4", newest_takes_all);
        bench.submit(0, JobDraft { recovery: cluster::Recovery::default(), ..job("a") });
        bench.submit(0, JobDraft { after: vec![ClaimId(0)], ..job("b") });
        bench.submit(0, JobDraft { after: vec![ClaimId(1)], ..job("c") });
        bench.report(1, Event::RunStarted { run: run(0, 1) });
        bench.report(2, Event::RunFailed { run: run(0, 1), why: FailureCause::Crash, done: 0 });
        let ended = |outcome| Phase::Ended { at: Time::from_secs(2), outcome };
        assert_eq!(bench.phase(0), &ended(Outcome::GivenUp));
        assert_eq!(bench.phase(1), &ended(Outcome::DependencyFailed));
        assert_eq!(bench.phase(2), &ended(Outcome::DependencyFailed));
    }

    #[test]
    fn a_job_starts_when_the_last_of_its_dependencies_has_finished() {
        let mut bench = Bench::new("1x4", newest_takes_all);
        bench.submit(0, job("a"));
        bench.submit(0, JobDraft { after: vec![ClaimId(0)], ..job("b") });
        assert_eq!(bench.phase(1), &Phase::Waiting);
        bench.report(1, Event::RunStarted { run: run(0, 1) });
        let orders = bench.report(2, Event::RunFinished { run: run(0, 1) });
        assert!(matches!(issued(&orders)[..], [Command::Launch { run: next, .. }] if *next == run(1, 1)));
    }

    #[test]
    fn a_job_larger_than_the_cluster_is_refused_on_record_while_the_rest_runs() {
        let mut bench = Bench::new("1x4", newest_takes_all);
        let events = bench.submit(0, JobDraft::rigid("huge", 5));
        let Some(Event::ClaimRefused { why, .. }) = events.first() else { panic!("{events:?}") };
        let expected = "needs 5 tasks of role worker, and 4 would fit into the empty cluster";
        assert_eq!(why.to_string(), expected);
        assert!(matches!(issued(&bench.submit(1, job("small")))[..], [Command::Launch { .. }]));
    }

    #[test]
    fn a_node_that_joins_is_used() {
        let newest_node = |snapshot: &Snapshot<'_>| all_on(snapshot, snapshot.cluster().node_count() as u32 - 1);
        let mut bench = Bench::new("1x4", newest_node);
        let node = Box::new(cluster::NodeDraft {
            name: "new".into(),
            kind: Some("gpu".into()),
            gpus: 4,
            ..Default::default()
        });
        bench.handle(0, vec![Input::Request(Request::AddNode { node, kinds: Vec::new() })]);
        bench.submit(1, job("a"));
        assert_eq!(bench.engine.state.books().claims_on(NodeId(1)), [ClaimId(0)]);
    }
}
