//! The runs that are under way, how far each job has really come, and how fast it moves.

use std::collections::BTreeSet;
use std::sync::Arc;

use cluster::{ClaimId, Cluster, Devices, GpuKind, JobSpec, NodeId, Placement, Run, Span, Time};
use perf::{Interference, Interruption, Neighbours, Piece, Situation, StepReport, TrueJob, Tuning};
use plan::Allotment;

use crate::Circumstances;
use crate::happenings::Stop;

#[derive(Debug)]
pub(crate) struct Runs {
    interference: Interference,
    report_every: Span,
    whole_seconds: bool,
    free_moves: bool,
    most_workers_first: bool,
    jobs: Vec<JobState>,
    /// Claims with a run on a node.
    on_node: Vec<Vec<ClaimId>>,
}

#[derive(Debug, Clone, Default)]
struct JobState {
    run: Option<ActiveRun>,
    /// The newest attempt ever launched.
    attempt: u32,
    /// Iterations that survive whatever happens.
    saved: f64,
    /// Where it was stopped last, for a move that costs nothing.
    left: Option<Left>,
}

#[derive(Debug, Clone)]
struct Left {
    at: Time,
    place: (Option<GpuKind>, Vec<u32>),
    /// What was still to come of its start.
    starting: Span,
}

#[derive(Debug, Clone)]
struct ActiveRun {
    allotment: Arc<Allotment>,
    tuning: Option<Tuning>,
    stage: Stage,
    /// When its first step comes, or came.
    begins: Time,
    /// The stretch of a measured course that it is in.
    piece: Option<Piece>,
    /// Iterations at the anchor; since then progress is the rate times the time that has passed.
    at_anchor: f64,
    anchor: Time,
    begun: Time,
    /// The change of its workers for which it pauses.
    pause: Option<Pause>,
    /// What it last measured of an interruption and has not said yet.
    interruption: Option<Interruption>,
    /// Iterations per second, neighbours and periodic checkpoints included.
    rate: f64,
    /// The rate without neighbours.
    undisturbed: f64,
    /// Counts changes of the rate: an end expected under an older one does not come.
    version: u32,
}

#[derive(Debug, Clone)]
struct Pause {
    to: Arc<Allotment>,
    tuning: Option<Tuning>,
    lasts: Span,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Starting,
    Running,
    Stopping,
}

impl Runs {
    pub(crate) fn new(jobs: usize, circumstances: &Circumstances) -> Runs {
        Runs {
            interference: circumstances.interference,
            report_every: circumstances.report_every,
            whole_seconds: circumstances.whole_seconds,
            free_moves: circumstances.free_moves,
            most_workers_first: circumstances.most_workers_first,
            jobs: vec![JobState::default(); jobs],
            on_node: Vec::new(),
        }
    }

    /// Whether this attempt, or a later one, was launched before.
    pub(crate) fn knows(&self, run: Run) -> bool {
        run.attempt <= self.job(run.claim).attempt
    }

    pub(crate) fn current(&self, claim: ClaimId) -> Option<Run> {
        let job = self.job(claim);
        job.run.as_ref().map(|_| Run { claim, attempt: job.attempt })
    }

    pub(crate) fn stage(&self, run: Run) -> Option<Stage> {
        let job = self.job(run.claim);
        job.run.as_ref().filter(|_| job.attempt == run.attempt).map(|active| active.stage)
    }

    pub(crate) fn is_at(&self, run: Run, version: u32) -> bool {
        let active = self.job(run.claim).run.as_ref();
        self.stage(run) == Some(Stage::Running) && active.is_some_and(|active| active.version == version)
    }

    /// Workers are being started. What was left of an earlier run, one that never came up in time, is gone by then.
    pub(crate) fn launch(&mut self, run: Run, allotment: Arc<Allotment>, tuning: Option<Tuning>, begins: Time) {
        if self.current(run.claim).is_some() {
            self.remove(run.claim);
        }
        self.appear(run.claim, allotment.placement.nodes());
        let job = &mut self.jobs[run.claim.0 as usize];
        job.attempt = run.attempt;
        job.run = Some(ActiveRun {
            allotment,
            tuning,
            begins,
            piece: None,
            stage: Stage::Starting,
            at_anchor: job.saved,
            anchor: Time::ZERO,
            begun: Time::ZERO,
            pause: None,
            interruption: None,
            rate: 0.0,
            undisturbed: 0.0,
            version: 0,
        });
    }

    /// The first step. False if the run was stopped or lost before it came.
    pub(crate) fn begin(&mut self, now: Time, run: Run, truth: &TrueJob, cluster: &Cluster) -> bool {
        if self.stage(run) != Some(Stage::Starting) {
            return false;
        }
        let most_workers_first = self.most_workers_first;
        let interference = self.factor(run.claim);
        let active = self.active_mut(run.claim);
        active.set_out(truth, cluster, most_workers_first);
        active.rate = active.undisturbed * interference;
        active.stage = Stage::Running;
        active.anchor = now;
        active.begun = now;
        if run.attempt > 1 && truth.truth.resize.is_some() {
            let recovery = truth.spec.recovery;
            active.interruption = Some(Interruption::Restart(recovery.checkpoint_cost + recovery.restart_cost));
        }
        true
    }

    /// Whether the run makes steps, and does not pause to change its workers.
    pub(crate) fn is_stepping(&self, run: Run) -> bool {
        let active = self.job(run.claim).run.as_ref();
        self.stage(run) == Some(Stage::Running) && active.is_some_and(|active| active.pause.is_none())
    }

    pub(crate) fn placement(&self, claim: ClaimId) -> &Placement {
        &self.job(claim).run.as_ref().expect("only what runs has a place").allotment.placement
    }

    /// The run stands still while its workers change: it has the old and the new ones. Returns the count of its changes.
    pub(crate) fn pause(
        &mut self,
        now: Time,
        claim: ClaimId,
        to: Arc<Allotment>,
        tuning: Option<Tuning>,
        until: Time,
    ) -> u32 {
        let done = self.done(now, claim);
        let here: Vec<NodeId> = self.placement(claim).nodes().collect();
        self.appear(claim, to.placement.nodes().filter(|node| !here.contains(node)));
        let active = self.active_mut(claim);
        (active.at_anchor, active.anchor) = (done, now);
        (active.rate, active.undisturbed) = (0.0, 0.0);
        active.pause = Some(Pause { to, tuning, lasts: until.since(now) });
        active.version += 1;
        active.version
    }

    /// The run goes on with its new workers, from where it was.
    pub(crate) fn resume(&mut self, now: Time, claim: ClaimId, truth: &TrueJob, cluster: &Cluster) {
        let active = self.active_mut(claim);
        let Pause { to, tuning, lasts } = active.pause.take().expect("only what pauses goes on");
        let old = std::mem::replace(&mut active.allotment, to.clone());
        active.tuning = tuning;
        active.anchor = now;
        active.interruption = Some(Interruption::Resize(lasts));
        let stays: Vec<NodeId> = to.placement.nodes().collect();
        self.disappear(claim, old.placement.nodes().filter(|node| !stays.contains(node)));
        self.go_on(claim, truth, cluster);
    }

    fn appear(&mut self, claim: ClaimId, nodes: impl Iterator<Item = NodeId>) {
        for node in nodes {
            let node = node.0 as usize;
            if self.on_node.len() <= node {
                self.on_node.resize_with(node + 1, Vec::new);
            }
            self.on_node[node].push(claim);
        }
    }

    fn disappear(&mut self, claim: ClaimId, nodes: impl Iterator<Item = NodeId>) {
        for node in nodes {
            self.on_node[node.0 as usize].retain(|&other| other != claim);
        }
    }

    /// What a running job comes to next at its present rate, and after how long; `None` if it will never come to
    /// anything.
    pub(crate) fn next_stop(&self, claim: ClaimId, truth: &TrueJob) -> Option<(Run, u32, Stop, Span)> {
        let active = self.job(claim).run.as_ref().filter(|active| active.rate > 0.0)?;
        let run = Run { claim, attempt: self.job(claim).attempt };
        let next_report = (active.anchor + Span::from_millis(1)).round_up(self.report_every);
        let to_report = next_report.since(active.anchor);
        let Some(piece) = &active.piece else {
            let left = truth.truth.iterations as f64 - active.at_anchor;
            let left = span_of((left / active.rate).max(0.0));
            // Of a job without a measured course nobody asks more than that it can be resized.
            let reports = truth.truth.resize.is_some() && to_report < left;
            let (stop, after) = if reports { (Stop::Report, to_report) } else { (Stop::End, left) };
            return Some((run, active.version, stop, after));
        };
        if active.at_anchor + active.rate * to_report.as_secs_f64() < piece.until {
            return Some((run, active.version, Stop::Report, to_report));
        }
        let left = (piece.until - active.at_anchor) / active.rate;
        let left = if self.whole_seconds { Span::from_secs(left.round_ties_even() as u64) } else { span_of(left) };
        let last = piece.until >= truth.truth.length();
        Some((run, active.version, if last { Stop::End } else { Stop::Epoch }, left))
    }

    /// A run came to the end of an epoch or to its next report: what it says there.
    pub(crate) fn advance(
        &mut self,
        now: Time,
        claim: ClaimId,
        stop: Stop,
        truth: &TrueJob,
        cluster: &Cluster,
    ) -> StepReport {
        let done = self.done(now, claim);
        let active = self.active_mut(claim);
        let piece = active.piece;
        let until = piece.filter(|_| stop == Stop::Epoch).map(|piece| piece.until);
        active.at_anchor = until.unwrap_or(done);
        active.anchor = now;
        let report = StepReport {
            done: active.at_anchor as u64,
            epoch: piece.map_or(0, |piece| piece.epoch + u32::from(stop == Stop::Epoch)),
            steps: piece.map(|piece| piece.steps),
            noise: piece.map(|piece| piece.noise),
            resizable: truth.truth.resize.is_some(),
            interruption: active.interruption.take(),
        };
        self.go_on(claim, truth, cluster);
        report
    }

    /// From now on the run uses another batch. False if it is not running.
    pub(crate) fn retune(&mut self, now: Time, run: Run, tuning: Tuning, truth: &TrueJob, cluster: &Cluster) -> bool {
        if !self.is_stepping(run) {
            return false;
        }
        let done = self.done(now, run.claim);
        let active = self.active_mut(run.claim);
        (active.at_anchor, active.anchor, active.tuning) = (done, now, Some(tuning));
        self.go_on(run.claim, truth, cluster);
        true
    }

    fn go_on(&mut self, claim: ClaimId, truth: &TrueJob, cluster: &Cluster) {
        let most_workers_first = self.most_workers_first;
        let interference = self.factor(claim);
        let active = self.active_mut(claim);
        active.set_out(truth, cluster, most_workers_first);
        active.rate = active.undisturbed * interference;
        active.version += 1;
    }

    /// What is left of the start of a job that was just stopped and goes on elsewhere in the same shape, if such moves
    /// cost nothing.
    pub(crate) fn moved(&self, now: Time, claim: ClaimId, to: &Placement, cluster: &Cluster) -> Option<Span> {
        let left = self.job(claim).left.as_ref().filter(|left| self.free_moves && left.at == now)?;
        (left.place == place_of(to, cluster)).then_some(left.starting)
    }

    /// Tells a run to stop: how long that takes, and how many iterations will be saved. `None` if there is nothing to
    /// stop.
    pub(crate) fn stop(
        &mut self,
        now: Time,
        run: Run,
        truth: &TrueJob,
        grace: Span,
        cluster: &Cluster,
    ) -> Option<(Span, u64)> {
        let stage = self.stage(run).filter(|&stage| stage != Stage::Stopping)?;
        let cost = truth.spec.recovery.checkpoint_cost;
        let (after, saved) = match stage {
            Stage::Running if cost <= grace => (cost, self.done(now, run.claim)),
            Stage::Running => (grace, self.last_saved(now, run.claim, truth)),
            Stage::Starting | Stage::Stopping => (Span::ZERO, self.job(run.claim).saved),
        };
        let job = &mut self.jobs[run.claim.0 as usize];
        job.saved = saved.min(truth.truth.length());
        let active = job.run.as_mut().expect("a stage belongs to a run");
        active.stage = Stage::Stopping;
        let starting = if active.begins > now { active.begins.since(now) } else { Span::ZERO };
        job.left = Some(Left { at: now, place: place_of(&active.allotment.placement, cluster), starting });
        Some((after, job.saved as u64))
    }

    /// The run is gone, and with it what was not saved.
    pub(crate) fn crash(&mut self, now: Time, claim: ClaimId, truth: &TrueJob) -> u64 {
        let running = self.job(claim).run.as_ref().is_some_and(|active| active.stage == Stage::Running);
        if running {
            let saved = self.last_saved(now, claim, truth);
            self.jobs[claim.0 as usize].saved = saved;
        }
        self.lose(claim)
    }

    /// The run is gone; what is saved stays.
    pub(crate) fn lose(&mut self, claim: ClaimId) -> u64 {
        self.remove(claim);
        self.job(claim).saved as u64
    }

    pub(crate) fn remove(&mut self, claim: ClaimId) {
        let active = self.jobs[claim.0 as usize].run.take().expect("what is removed was there");
        active.placements().for_each(|placement| self.disappear(claim, placement.nodes()));
    }

    pub(crate) fn on_node(&self, node: NodeId) -> Vec<ClaimId> {
        self.on_node.get(node.0 as usize).cloned().unwrap_or_default()
    }

    pub(crate) fn on_device(&self, node: NodeId, gpu: u8) -> Vec<ClaimId> {
        let uses = |claim: &ClaimId| self.devices_on(*claim, node).contains(Devices::one(gpu));
        self.on_node(node).into_iter().filter(uses).collect()
    }

    /// The nodes on which others feel the claim; none if nobody feels anybody.
    pub(crate) fn shared_nodes(&self, claim: ClaimId) -> Vec<NodeId> {
        let active = self.job(claim).run.as_ref().filter(|_| !self.interference.is_none());
        let nodes: Option<BTreeSet<NodeId>> =
            active.map(|active| active.placements().flat_map(Placement::nodes).collect());
        nodes.unwrap_or_default().into_iter().collect()
    }

    /// Rates of the runs on these nodes, after someone came or went there. Returns whose rate has changed.
    pub(crate) fn update_rates(&mut self, now: Time, nodes: &[NodeId]) -> Vec<ClaimId> {
        let on_nodes = nodes.iter().flat_map(|node| &self.on_node[node.0 as usize]);
        let mut running: Vec<ClaimId> = on_nodes.copied().filter(|&claim| self.is_computing(claim)).collect();
        running.sort_unstable();
        running.dedup();
        running.retain(|&claim| {
            let factor = self.factor(claim);
            let done = self.done(now, claim);
            let active = self.active_mut(claim);
            let rate = active.undisturbed * factor;
            let changes = rate != active.rate;
            if changes {
                active.at_anchor = done;
                active.anchor = now;
                active.rate = rate;
                active.version += 1;
            }
            changes
        });
        running
    }

    /// What neighbours leave of the undisturbed rate.
    fn factor(&self, claim: ClaimId) -> f64 {
        if self.interference.is_none() {
            return 1.0;
        }
        let allotment = &self.job(claim).run.as_ref().expect("only what runs has neighbours").allotment;
        let mut neighbours = Neighbours::default();
        let mut seen = vec![claim];
        for node in allotment.placement.nodes() {
            let mine = self.devices_on(claim, node);
            for &other in &self.on_node[node.0 as usize] {
                if self.is_computing(other) && !seen.contains(&other) {
                    seen.push(other);
                    match self.devices_on(other, node).overlaps(mine) {
                        true => neighbours.same_gpu += 1,
                        false => neighbours.same_node += 1,
                    }
                }
            }
        }
        self.interference.factor(neighbours)
    }

    fn is_computing(&self, claim: ClaimId) -> bool {
        let computes = |active: &ActiveRun| active.stage == Stage::Running && active.pause.is_none();
        self.job(claim).run.as_ref().is_some_and(computes)
    }

    fn devices_on(&self, claim: ClaimId, node: NodeId) -> Devices {
        let Some(active) = &self.job(claim).run else { return Devices::NONE };
        let here = active.placements().flat_map(Placement::slots).filter(|slot| slot.node == node);
        here.fold(Devices::NONE, |devices, slot| devices.union(slot.slices.devices))
    }

    /// Iterations done by now.
    fn done(&self, now: Time, claim: ClaimId) -> f64 {
        let active = self.job(claim).run.as_ref().expect("only what runs makes progress");
        active.at_anchor + active.rate * now.since(active.anchor).as_millis() as f64 / 1000.0
    }

    /// Iterations in the newest whole checkpoint: of this run, or what it started from.
    fn last_saved(&self, now: Time, claim: ClaimId, truth: &TrueJob) -> f64 {
        let job = self.job(claim);
        let Some(every) = truth.spec.recovery.checkpoint_every.filter(|every| !every.is_zero()) else {
            return job.saved;
        };
        let active = job.run.as_ref().expect("only what runs saves");
        let period = every + truth.spec.recovery.checkpoint_cost;
        let running = now.since(active.begun).as_millis();
        let whole = running / period.as_millis() * period.as_millis();
        if whole == 0 {
            return job.saved;
        }
        // Progress at the time of the save, as if the present rate had held since then.
        let since_save = (running - whole) as f64 / 1000.0;
        (self.done(now, claim) - active.rate * since_save).max(job.saved)
    }

    fn job(&self, claim: ClaimId) -> &JobState {
        &self.jobs[claim.0 as usize]
    }

    fn active_mut(&mut self, claim: ClaimId) -> &mut ActiveRun {
        self.jobs[claim.0 as usize].run.as_mut().expect("the claim has a run")
    }
}

impl ActiveRun {
    /// Where it is, and where it will be when its workers have changed.
    fn placements(&self) -> impl Iterator<Item = &Placement> {
        let to = self.pause.as_ref().map(|pause| &pause.to.placement);
        std::iter::once(&self.allotment.placement).chain(to)
    }

    /// How fast it goes from the anchor on, without neighbours.
    fn set_out(&mut self, job: &TrueJob, cluster: &Cluster, most_workers_first: bool) {
        let placement = &self.allotment.placement;
        let rate = match (&job.truth.course, self.tuning) {
            (Some(course), Some(tuning)) => {
                let (kind, mut workers) = place_of(placement, cluster);
                if most_workers_first {
                    workers.sort_by_key(|&workers| std::cmp::Reverse(workers));
                }
                self.piece = kind.and_then(|kind| course.piece(kind, &workers, tuning, self.at_anchor));
                self.piece.map(|piece| piece.rate)
            }
            _ => job.truth.speed.rate(&Situation::placed(&job.spec, placement, self.allotment.batch, cluster)),
        };
        self.undisturbed = rate.unwrap_or(0.0) * useful_share(&job.spec);
    }
}

/// The kind of GPU, and how many workers are on each node.
fn place_of(placement: &Placement, cluster: &Cluster) -> (Option<GpuKind>, Vec<u32>) {
    let workers = placement.nodes().map(|node| {
        let here = placement.slots().iter().filter(|slot| slot.node == node && slot.role == 0);
        here.map(|slot| slot.tasks).sum()
    });
    (placement.kind(cluster), workers.filter(|&workers| workers > 0).collect())
}

/// The share of a run's time that is not spent on periodic checkpoints.
pub fn useful_share(spec: &JobSpec) -> f64 {
    let recovery = spec.recovery;
    recovery
        .checkpoint_every
        .filter(|every| !every.is_zero())
        .map_or(1.0, |every| every.as_secs_f64() / (every + recovery.checkpoint_cost).as_secs_f64())
}

/// Whole milliseconds, rounded up, except for what is only rounding error.
pub(crate) fn span_of(secs: f64) -> Span {
    let millis = secs * 1000.0;
    let whole = millis.round();
    Span::from_millis(if (millis - whole).abs() < 1e-6 { whole as u64 } else { millis.ceil() as u64 })
}
