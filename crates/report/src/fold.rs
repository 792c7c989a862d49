//! The fold: sees every event of a history once, in order, and keeps about a hundred bytes for each job.

use std::collections::BTreeMap;
use std::sync::Arc;

use cluster::{ClaimId, GpuTime, JobSpec, Name, Placement, QueueId, QueueTree, Run, Span, Time};
use engine::{Command, Event, Refusal, Trouble};
use plan::{Allotment, Outcome, Table};

use crate::fairness::{FairShare, Isolated, Services};
use crate::hold::Hold;
use crate::job::JobRow;
use crate::run::{Deadlines, Failures, FinishTimeRatio, Identity, Jain, RunReport, Times};
use crate::series::{Level, Timeline};
use crate::usage::Usage;

/// Numbers about a history, as far as it was observed. They can be asked for at any time.
#[derive(Debug, Clone, Default)]
pub struct Fold {
    now: Time,
    fair: FairShare,
    /// Nothing before the cluster is defined.
    queues: Option<QueueTree>,
    usage: Usage,
    lives: Table<Life>,
    live: u64,
    holding: u64,
    /// Live jobs times milliseconds, up to now. Its growth over a job's life is the contention the job met.
    live_time: u64,
    /// Begins with the first submission that is not refused.
    timeline: Option<Timeline>,
    tally: Tally,
}

/// What is merely counted.
#[derive(Debug, Clone, Default)]
struct Tally {
    decisions: u64,
    plans_refused: u64,
    first_trouble: Option<String>,
    refusals: BTreeMap<String, u64>,
    failures: Failures,
}

#[derive(Debug, Clone)]
struct Life {
    spec: Arc<JobSpec>,
    submitted: Time,
    started: Option<Time>,
    ended: Option<(Time, Outcome)>,
    holding: Option<Box<Hold>>,
    /// Since when it has held that.
    since: Time,
    held: GpuTime,
    executed: Span,
    /// `Fold::live_time` at its submission; once it has ended, how much was added to it since.
    live_time: u64,
    launches: u32,
    preemptions: u32,
    stopping: bool,
    /// Nobody wants it any more; so it ends when it lets go.
    leaves_as: Option<Outcome>,
    /// Its user wants it to wait.
    held_back: bool,
}

impl Fold {
    /// Before the first event, which defines the cluster.
    pub fn new() -> Fold {
        Fold::default()
    }

    pub fn observe(&mut self, at: Time, event: &Event) {
        self.advance(at);
        match event {
            Event::ClusterDefined { cluster, queues } => {
                assert!(self.lives.is_empty(), "a cluster is defined before there are jobs");
                self.fair = FairShare::of(cluster);
                self.usage = Usage::new(cluster);
                self.queues = Some((**queues).clone());
            }
            Event::QueuesChanged { queues } => self.queues = Some((**queues).clone()),
            Event::PolicyChosen { .. } | Event::SafeguardsChosen { .. } | Event::StartedAtOnce(_) => {}
            Event::ClaimSubmitted { claim, spec, .. } => self.submitted(*claim, spec),
            Event::ClaimRefused { claim, spec, why, .. } => self.refused(*claim, spec, why),
            Event::ClaimCancelled { claim } => self.dismissed(*claim, Outcome::Cancelled),
            Event::LimitReached { claim } => self.dismissed(*claim, Outcome::TimedOut),
            Event::ClaimHeld { claim } => self.life_mut(*claim).held_back = true,
            Event::ClaimReleased { claim } => self.life_mut(*claim).held_back = false,
            Event::DeadlineMoved { claim, deadline } => {
                Arc::make_mut(&mut self.life_mut(*claim).spec).set_deadline(*deadline);
            }
            Event::ClaimReprioritised { .. } | Event::ClaimRests { .. } | Event::ClaimRested { .. } => {}
            // What the service forgets is part of its history all the same.
            Event::NumbersBegin { .. } | Event::Forgotten { .. } => {}
            Event::ClaimEnded { claim, outcome } => self.end(*claim, *outcome),
            Event::NodeJoined { node, .. } => self.usage.join(node),
            Event::NodeChanged { node, availability, broken } => self.usage.set(*node, *availability, *broken),
            Event::RunStarted { run } => {
                self.life_mut(run.claim).started.get_or_insert(at);
            }
            Event::RunProgressed { .. } | Event::Refitted { .. } | Event::Issued(Command::Retune { .. }) => {}
            Event::RunStopped { run, .. } => self.let_go(*run),
            Event::RunFinished { run } => {
                self.let_go(*run);
                if self.lives[run.claim].is_live() {
                    self.end(run.claim, Outcome::Finished);
                }
            }
            Event::RunFailed { run, why, .. } => {
                self.tally.failures.record(*why);
                self.let_go(*run);
            }
            Event::Planned(_) => self.tally.decisions += 1,
            Event::PlanRefused { why } => self.tally.plan_refused(why),
            Event::Issued(Command::Provision { .. }) => {}
            Event::Issued(Command::Release { node }) => {
                self.usage.set(*node, plan::Availability::Removed, cluster::Devices::NONE);
            }
            Event::Issued(Command::Launch { run, allotment, .. }) => self.launched(*run, allotment),
            Event::Issued(Command::Resize { run, allotment, .. }) => {
                let more = self.change_hold(*run, |hold| hold.resize(allotment));
                self.usage.take(&more);
            }
            // Reports are about the time in which devices were held, whoever is charged for it.
            Event::RunTimed { .. } => {}
            Event::RunResized { run } => {
                let less = self.change_hold(*run, Hold::resized);
                self.usage.give(&less);
            }
            Event::RunNotResized { run } => {
                let less = self.change_hold(*run, Hold::not_resized);
                self.usage.give(&less);
            }
            Event::Issued(Command::Stop { run, .. }) => self.told_to_stop(*run),
        }
    }

    /// The numbers so far. `isolated` says how long a job would run alone, see [`Isolated`]; who does not know answers
    /// nothing, and there are no finish-time ratios and no Jain index.
    pub fn finish(&self, identity: Identity, isolated: &Isolated<'_>) -> RunReport {
        let outcomes = |wanted| self.lives().filter(|life| life.outcome() == wanted).count() as u64;
        let finished = || self.lives().filter(|life| life.outcome() == Some(Outcome::Finished));
        let per_job = |sum: f64| finished().next().map(|_| sum / finished().count() as f64);
        let timeline = self.timeline.clone().unwrap_or_else(|| Timeline::new(self.now));
        let (finish_time_ratio, jain) = self.fairness(isolated);
        RunReport {
            policy: identity.policy,
            workload: identity.workload,
            seed: identity.seed,
            knows: identity.knows,
            jobs: self.lives.len() as u64,
            finished: outcomes(Some(Outcome::Finished)),
            refused: outcomes(Some(Outcome::Refused)),
            jct: Times::of(finished().map(|life| life.lived(self.now))),
            makespan_s: self.makespan().map(Span::as_secs_f64),
            gpu_hours_per_job: per_job(finished().map(|life| life.held).sum::<GpuTime>().as_gpu_hours()),
            restarts_per_job: per_job(finished().map(|life| f64::from(life.restarts())).sum()),
            finish_time_ratio,
            waiting: Times::of(finished().map(|life| life.waited(self.now))),
            utilisation: timeline.utilisation(),
            fragmentation: timeline.fragmentation(),
            queue_length: timeline.queue_length(),
            jain,
            deadlines: self.deadlines(),
            preemptions_per_job: per_job(finished().map(|life| f64::from(life.preemptions)).sum()),
            cancelled: outcomes(Some(Outcome::Cancelled)),
            given_up: outcomes(Some(Outcome::GivenUp)),
            timed_out: outcomes(Some(Outcome::TimedOut)),
            dependency_failed: outcomes(Some(Outcome::DependencyFailed)),
            unfinished: outcomes(None),
            failures: self.tally.failures,
            plans_refused: self.tally.plans_refused,
            first_trouble: self.tally.first_trouble.clone(),
            decisions: self.tally.decisions,
            refusals: self.tally.refusals.clone(),
        }
    }

    /// Every job ever submitted, in order of submission.
    pub fn jobs(&self) -> impl Iterator<Item = JobRow> {
        self.lives.iter().map(|(id, life)| JobRow {
            id,
            name: life.spec.name.clone(),
            user: life.spec.user.clone(),
            queue: self.queue(life.spec.queue),
            submitted: life.submitted,
            started: life.started,
            ended: life.ended.map(|(at, _)| at),
            outcome: life.outcome(),
            gpus: life.spec.asked_gpus(),
            jct: life.ended.map(|(at, _)| at - life.submitted),
            waiting: life.waited(self.now),
            held: life.held_by(self.now),
            launches: life.launches,
            restarts: life.restarts(),
            preemptions: life.preemptions,
            deadline_met: life.deadline_met(),
        })
    }

    /// How many jobs have been submitted and have not ended.
    pub fn live(&self) -> u64 {
        self.live
    }

    /// T_fair of each job in seconds, in order of submission; nothing of those that did not finish or have no share.
    pub fn fair_times(&self, isolated: &Isolated<'_>) -> Vec<Option<f64>> {
        let fair_time =
            |(id, life): (ClaimId, &Life)| self.fair.fair_time(id, &life.spec, life.contention()?, isolated);
        self.lives.iter().map(fair_time).collect()
    }

    /// Everything was as it is from the last event until now.
    fn advance(&mut self, to: Time) {
        let passed = to - self.now;
        if passed.is_zero() {
            return;
        }
        let level = Level { gpus: self.usage.sums(), queued: self.live - self.holding };
        if let Some(timeline) = &mut self.timeline {
            timeline.extend(self.now, to, level);
        }
        self.live_time += self.live * passed.as_millis();
        self.now = to;
    }

    fn submitted(&mut self, id: ClaimId, spec: &Arc<JobSpec>) {
        self.admit(id, spec);
        self.live += 1;
        self.timeline.get_or_insert_with(|| Timeline::new(self.now)).wake();
    }

    fn refused(&mut self, id: ClaimId, spec: &Arc<JobSpec>, why: &Refusal) {
        self.admit(id, spec);
        self.life_mut(id).ended = Some((self.now, Outcome::Refused));
        *self.tally.refusals.entry(why.to_string()).or_default() += 1;
    }

    fn admit(&mut self, id: ClaimId, spec: &Arc<JobSpec>) {
        let life = Life {
            spec: spec.clone(),
            submitted: self.now,
            started: None,
            ended: None,
            holding: None,
            since: self.now,
            held: GpuTime::ZERO,
            executed: Span::ZERO,
            live_time: self.live_time,
            launches: 0,
            preemptions: 0,
            stopping: false,
            leaves_as: None,
            held_back: false,
        };
        assert!(self.lives.insert(id, life).is_none(), "a number is given out once");
    }

    /// It lives on until it has let go of what it holds.
    fn dismissed(&mut self, id: ClaimId, outcome: Outcome) {
        let life = self.life_mut(id);
        life.leaves_as = Some(outcome);
        if life.holding.is_none() {
            self.end(id, outcome);
        }
    }

    fn launched(&mut self, run: Run, allotment: &Arc<Allotment>) {
        let now = self.now;
        let life = self.life_mut(run.claim);
        assert!(life.holding.is_none(), "a run begins when the one before is over");
        life.holding = Some(Box::new(Hold::new(allotment)));
        life.since = now;
        life.stopping = false;
        life.launches += 1;
        self.holding += 1;
        self.usage.take(&allotment.placement);
    }

    /// From now on a run has more, or less. Returns the difference.
    fn change_hold(&mut self, run: Run, change: impl FnOnce(&mut Hold) -> Placement) -> Placement {
        let now = self.now;
        let life = self.life_mut(run.claim);
        (life.held, life.executed) = (life.held_by(now), life.executed_by(now));
        life.since = now;
        change(life.holding.as_mut().expect("a run holds something until it ends"))
    }

    /// An order that comes after the run's end only clears away what is left of it.
    fn told_to_stop(&mut self, run: Run) {
        let life = self.life_mut(run.claim);
        if life.holding.is_none() || life.stopping || life.launches != run.attempt {
            return;
        }
        life.stopping = true;
        if life.leaves_as.is_none() && !life.held_back {
            life.preemptions += 1;
        }
    }

    fn let_go(&mut self, run: Run) {
        let now = self.now;
        let life = self.life_mut(run.claim);
        let (held, executed) = (life.held_by(now), life.executed_by(now));
        let holding = life.holding.take().expect("a run holds something until it ends");
        (life.held, life.executed) = (held, executed);
        let leaves_as = life.leaves_as;
        self.holding -= 1;
        holding.placements().for_each(|placement| self.usage.give(&placement));
        if let Some(outcome) = leaves_as {
            self.end(run.claim, outcome);
        }
    }

    fn end(&mut self, id: ClaimId, outcome: Outcome) {
        let (now, live_time) = (self.now, self.live_time);
        let life = self.life_mut(id);
        assert!(life.is_live() && life.holding.is_none(), "a job ends once, when it holds nothing any more");
        life.ended = Some((now, outcome));
        life.live_time = live_time - life.live_time;
        self.live -= 1;
        if self.live == 0 {
            self.timeline.as_mut().expect("it was submitted").fall_quiet();
        }
    }

    fn lives(&self) -> impl Iterator<Item = &Life> {
        self.lives.iter().map(|(_, life)| life)
    }

    fn life_mut(&mut self, id: ClaimId) -> &mut Life {
        &mut self.lives[id]
    }

    fn queue(&self, id: QueueId) -> Option<Name> {
        self.queues.as_ref()?.get(id).map(|queue| queue.name.clone())
    }

    fn makespan(&self) -> Option<Span> {
        let accepted = self.lives().filter(|life| life.outcome() != Some(Outcome::Refused));
        let first = accepted.map(|life| life.submitted).next()?;
        let ends = self.lives().filter_map(|life| life.ended);
        let last = ends.filter(|(_, outcome)| *outcome == Outcome::Finished).map(|(at, _)| at).max()?;
        Some(last - first)
    }

    fn deadlines(&self) -> Deadlines {
        let mut deadlines = Deadlines::default();
        for met in self.lives().filter_map(Life::deadline_met) {
            deadlines.with += 1;
            deadlines.met += u64::from(met);
        }
        deadlines
    }

    fn fairness(&self, isolated: &Isolated<'_>) -> (FinishTimeRatio, Jain) {
        let mut ratios = Vec::new();
        let mut services = Services::default();
        for (life, fair_time) in self.lives().zip(self.fair_times(isolated)) {
            if let Some(fair_time) = fair_time {
                let completion_time = life.lived(self.now).as_secs_f64();
                ratios.push(completion_time / fair_time);
                services.record(&life.spec, fair_time, completion_time);
            }
        }
        let jain = Jain { users: services.jain_of_users(), queues: services.jain_of_queues() };
        (FinishTimeRatio::of(&ratios), jain)
    }
}

impl Life {
    fn is_live(&self) -> bool {
        self.ended.is_none()
    }

    fn outcome(&self) -> Option<Outcome> {
        self.ended.map(|(_, outcome)| outcome)
    }

    /// From submission to its end, or until now.
    fn lived(&self, now: Time) -> Span {
        self.ended.map_or(now, |(at, _)| at) - self.submitted
    }

    fn held_by(&self, now: Time) -> GpuTime {
        let gpus = self.holding.as_ref().map(|hold| hold.gpus());
        self.held + gpus.map_or(GpuTime::ZERO, |gpus| gpus * (now - self.since))
    }

    fn executed_by(&self, now: Time) -> Span {
        self.executed + self.holding.as_ref().map_or(Span::ZERO, |_| now - self.since)
    }

    fn waited(&self, now: Time) -> Span {
        self.lived(now) - self.executed_by(now)
    }

    fn restarts(&self) -> u32 {
        self.launches.saturating_sub(1)
    }

    /// n̄, the mean number of live jobs while it lived; of a finished job that took any time at all.
    fn contention(&self) -> Option<f64> {
        let (at, _) = self.ended.filter(|(_, outcome)| *outcome == Outcome::Finished)?;
        let lived = (at - self.submitted).as_millis();
        (lived > 0).then(|| self.live_time as f64 / lived as f64)
    }

    fn deadline_met(&self) -> Option<bool> {
        let deadline = self.spec.deadline?;
        Some(matches!(self.ended, Some((at, Outcome::Finished)) if at <= deadline))
    }
}

impl Tally {
    fn plan_refused(&mut self, why: &Trouble) {
        self.plans_refused += 1;
        self.first_trouble.get_or_insert_with(|| why.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tale::Tale;
    use cluster::{Devices, JobDraft, NodeId};
    use plan::{Availability, FailureCause};

    #[test]
    fn a_job_that_waits_runs_and_ends_is_measured_from_its_submission() {
        let mut tale = Tale::on("1x4 t4");
        let job = tale.submit(100, JobDraft::rigid("a", 2));
        tale.launch(130, job, &[(0, 0b11)]);
        tale.started(140, job);
        tale.finish(230, job);
        let row = tale.job(job);
        assert_eq!((row.jct, row.waiting), (Some(Span::from_secs(130)), Span::from_secs(30)));
        assert_eq!((row.started, row.ended), (Some(Time::from_secs(140)), Some(Time::from_secs(230))));
        assert_eq!(row.held, GpuTime::from_gpu_secs(200));
        assert_eq!((row.launches, row.restarts, row.preemptions), (1, 0, 0));
        let report = tale.report();
        assert_eq!(report.makespan_s, Some(130.0));
        assert_eq!(report.gpu_hours_per_job, Some(200.0 / 3600.0));
    }

    #[test]
    fn a_preempted_job_holds_its_devices_until_it_has_stopped() {
        let mut tale = Tale::on("1x4 t4");
        let job = tale.submit(0, JobDraft::rigid("a", 1));
        tale.launch(0, job, &[(0, 0b1)]);
        tale.stop(50, job);
        tale.stopped(60, job);
        tale.launch(90, job, &[(0, 0b10)]);
        tale.finish(100, job);
        let row = tale.job(job);
        assert_eq!((row.waiting, row.held), (Span::from_secs(30), GpuTime::from_gpu_secs(70)));
        assert_eq!((row.launches, row.restarts, row.preemptions), (2, 1, 1));
    }

    #[test]
    fn a_job_that_resizes_in_place_is_charged_for_both_until_it_is_done() {
        let mut tale = Tale::on("1x4 t4");
        let job = tale.submit(0, JobDraft::rigid("a", 1));
        tale.launch(0, job, &[(0, 0b1)]);
        tale.resize(10, job, &[(0, 0b1110), (0, 0b1)]);
        tale.resized(20, job);
        tale.resize(50, job, &[(0, 0b1)]);
        tale.not_resized(60, job);
        tale.resize(60, job, &[(0, 0b1000)]);
        tale.resized(70, job);
        tale.finish(100, job);
        let row = tale.job(job);
        let charged = [(10, 1), (10, 4), (30, 4), (10, 4), (10, 4), (30, 1)].map(|(secs, gpus)| secs * gpus);
        assert_eq!(row.held, GpuTime::from_gpu_secs(charged.iter().sum()));
        assert_eq!((row.waiting, row.launches, row.restarts, row.preemptions), (Span::ZERO, 1, 0, 0));
        assert_eq!(tale.report().utilisation.series.values, [Some(210.0 / 240.0), Some(70.0 / 160.0)]);
    }

    #[test]
    fn a_job_that_ends_while_it_resizes_lets_go_of_everything() {
        let mut tale = Tale::on("1x4 t4");
        let (a, b) = (tale.submit(0, JobDraft::rigid("a", 1)), tale.submit(0, JobDraft::rigid("b", 4)));
        tale.launch(0, a, &[(0, 0b1)]);
        tale.resize(60, a, &[(0, 0b11)]);
        tale.finish(120, a);
        tale.launch(180, b, &[(0, 0b1111)]);
        tale.finish(240, b);
        assert_eq!(tale.report().utilisation.series.values, [Some(0.25), Some(0.5), Some(0.0), Some(1.0)]);
    }

    #[test]
    fn a_stop_after_a_failure_or_a_cancellation_is_no_preemption() {
        let mut tale = Tale::on("1x4 t4");
        let (a, b) = (tale.submit(0, JobDraft::rigid("a", 1)), tale.submit(0, JobDraft::rigid("b", 1)));
        tale.launch(0, a, &[(0, 0b1)]);
        tale.fail(10, a, FailureCause::StartTimeout);
        tale.stop(10, a);
        tale.launch(20, b, &[(0, 0b1)]);
        tale.cancel(30, b);
        assert_eq!(tale.job(b).outcome, None);
        tale.stop(30, b);
        tale.stopped(35, b);
        assert_eq!((tale.job(a).preemptions, tale.job(b).preemptions), (0, 0));
        assert_eq!(tale.job(b).outcome, Some(Outcome::Cancelled));
        let report = tale.report();
        assert_eq!((report.failures.start_timeout, report.failures.total()), (1, 1));
        assert_eq!((report.jobs, report.cancelled, report.unfinished), (2, 1, 1));
    }

    #[test]
    fn two_of_four_gpus_held_half_the_time_are_a_quarter() {
        let mut tale = Tale::on("1x4 t4");
        let job = tale.submit(1000, JobDraft::rigid("a", 2));
        tale.launch(1060, job, &[(0, 0b11)]);
        tale.finish(1120, job);
        tale.node(5000, NodeId(0), Availability::Drained, Devices::NONE);
        let report = tale.report();
        assert_eq!(report.utilisation.mean, Some(0.25));
        assert_eq!(report.utilisation.series.values, [Some(0.0), Some(0.5)]);
        assert_eq!(report.queue_length.series.values, [Some(1.0), Some(0.0)]);
        assert_eq!(report.queue_length.mean, Some(0.5));
    }

    #[test]
    fn gpus_out_of_service_are_not_unused() {
        let mut tale = Tale::on("2x4 t4");
        let job = tale.submit(0, JobDraft::rigid("a", 2));
        tale.launch(0, job, &[(0, 0b11)]);
        tale.node(60, NodeId(1), Availability::Lost, Devices::NONE);
        tale.finish(120, job);
        let report = tale.report();
        assert_eq!(report.utilisation.series.values, [Some(0.25), Some(0.5)]);
        assert_eq!(report.utilisation.mean, Some(4.0 / 12.0));
    }

    #[test]
    fn free_gpus_beside_held_ones_are_fragments() {
        let mut tale = Tale::on("2x4 t4");
        let job = tale.submit(0, JobDraft::rigid("a", 2));
        tale.launch(0, job, &[(0, 0b11)]);
        tale.stop(60, job);
        tale.stopped(60, job);
        tale.launch(60, job, &[(0, 0b1), (1, 0b1)]);
        tale.finish(120, job);
        let report = tale.report();
        assert_eq!(report.fragmentation.series.values, [Some(2.0 / 6.0), Some(1.0)]);
        assert_eq!(report.fragmentation.mean, Some(8.0 / 12.0));
    }

    #[test]
    fn a_full_cluster_is_not_fragmented() {
        let mut tale = Tale::on("1x2 t4");
        let job = tale.submit(0, JobDraft::rigid("a", 2));
        tale.launch(0, job, &[(0, 0b11)]);
        tale.finish(60, job);
        assert_eq!(tale.report().fragmentation.mean, Some(0.0));
    }

    /// Two jobs of 4 GPUs and 100 s, one after the other on the same 4 GPUs.
    fn one_after_the_other() -> Tale {
        let mut tale = Tale::on("1x4 t4");
        let a = tale.submit(0, JobDraft { user: "ann".into(), ..JobDraft::rigid("a", 4) });
        let b = tale.submit(0, JobDraft { user: "bob".into(), ..JobDraft::rigid("b", 4) });
        tale.launch(0, a, &[(0, 0b1111)]);
        tale.finish(100, a);
        tale.launch(100, b, &[(0, 0b1111)]);
        tale.finish(200, b);
        tale
    }

    #[test]
    fn contention_is_the_mean_number_of_jobs_alive() {
        let tale = one_after_the_other();
        let contentions: Vec<Option<f64>> = tale.fold.lives().map(Life::contention).collect();
        assert_eq!(contentions, [Some(2.0), Some(1.5)]);
    }

    #[test]
    fn who_goes_first_finishes_early_and_who_goes_second_late() {
        // a met two jobs: a share of 2 GPUs, 200 s. b met one and a half: a share of 2⅔ GPUs, 150 s.
        let report = one_after_the_other().report_with(&|_, _, _| Some(Span::from_secs(100)));
        let ratio = report.finish_time_ratio;
        assert_eq!((ratio.worst, ratio.share_above_1), (Some(200.0 / 150.0), Some(0.5)));
        assert_eq!(ratio.mean, Some((0.5 + 200.0 / 150.0) / 2.0));
    }

    #[test]
    fn users_served_unequally_have_a_lower_index() {
        let report = one_after_the_other().report_with(&|_, _, _| Some(Span::from_secs(100)));
        // ann was served at 200/100 of her due, bob at 150/200.
        assert_eq!(report.jain.users, Some(2.75 * 2.75 / (2.0 * (4.0 + 0.5625))));
        assert_eq!(report.jain.queues, Some(1.0));
    }

    #[test]
    fn without_isolated_times_there_is_no_word_about_fairness() {
        let report = one_after_the_other().report();
        assert_eq!(report.finish_time_ratio, FinishTimeRatio::default());
        assert_eq!(report.jain, Jain::default());
    }

    #[test]
    fn completion_times_are_those_of_finished_jobs() {
        let mut tale = one_after_the_other();
        let late = tale.submit(200, JobDraft::rigid("late", 1));
        tale.cancel(9000, late);
        let report = tale.report();
        let expected = Times { mean_s: Some(150.0), p50_s: Some(200.0), p90_s: Some(200.0), p99_s: Some(200.0) };
        assert_eq!(report.jct, expected);
        assert_eq!(report.makespan_s, Some(200.0));
        assert_eq!((report.jobs, report.finished, report.cancelled), (3, 2, 1));
    }

    #[test]
    fn a_deadline_is_met_by_finishing_until_then() {
        let mut tale = Tale::on("1x4 t4");
        let by = |secs| JobDraft { deadline: Some(Time::from_secs(secs)), ..JobDraft::rigid("a", 1) };
        let (kept, missed) = (tale.submit(0, by(60)), tale.submit(0, by(59)));
        tale.submit(0, by(1000));
        tale.submit(0, JobDraft::rigid("free", 1));
        for job in [kept, missed] {
            tale.launch(0, job, &[(0, 1 << job.0)]);
        }
        for job in [kept, missed] {
            tale.finish(60, job);
        }
        let deadlines = tale.report().deadlines;
        assert_eq!(deadlines, Deadlines { with: 3, met: 1 });
        assert_eq!(deadlines.share(), Some(1.0 / 3.0));
    }

    #[test]
    fn refused_jobs_are_counted_by_reason_and_do_not_begin_the_history() {
        let mut tale = Tale::on("1x4 t4");
        tale.refuse(0, JobDraft::rigid("a", 99), Refusal::UnknownQueue);
        tale.refuse(5, JobDraft::rigid("b", 99), Refusal::UnknownQueue);
        let job = tale.submit(60, JobDraft::rigid("c", 4));
        tale.launch(60, job, &[(0, 0b1111)]);
        tale.finish(120, job);
        let report = tale.report();
        assert_eq!((report.jobs, report.refused, report.finished), (3, 2, 1));
        assert_eq!(report.refusals, BTreeMap::from([("there is no such queue".to_string(), 2)]));
        assert_eq!((report.makespan_s, report.utilisation.mean), (Some(60.0), Some(1.0)));
    }

    #[test]
    fn of_refused_plans_the_first_trouble_is_told() {
        let mut tale = Tale::on("1x4 t4");
        for message in ["index out of bounds", "division by zero"] {
            tale.tell(0, Event::PlanRefused { why: Trouble::Panicked(message.into()) });
        }
        tale.tell(0, Event::Planned(Box::default()));
        let report = tale.report();
        assert_eq!((report.plans_refused, report.decisions), (2, 1));
        assert_eq!(report.first_trouble.as_deref(), Some("the policy panicked: index out of bounds"));
    }

    #[test]
    fn a_life_takes_little_room() {
        assert!(size_of::<Life>() <= 112, "{} bytes", size_of::<Life>());
    }
}
