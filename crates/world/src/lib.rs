//! A cluster that exists only in memory: commands in, requests and reports out.
//!
//! Only the world knows how much work a job really is and how fast it really runs. It moves from one happening to the
//! next; time in which nothing happens costs nothing.

mod faults;
mod happenings;
mod runs;
mod script;

use std::sync::Arc;

use cluster::{ClaimId, Cluster, Devices, Invalid, NodeDraft, NodeId, Placement, Run, Slot, Span, Time};
use engine::{Command, Event, Input, Request};
pub use perf::Interference;
use perf::{TrueJob, Truth, Tuning};
use plan::{Allotment, Availability, FailureCause, beyond};

use crate::faults::FaultSource;
pub use crate::faults::Faults;
use crate::happenings::{Happening, Happenings, Stop};
pub use crate::runs::useful_share;
use crate::runs::{Runs, Stage};
pub use crate::script::{Occurrence, Script};

#[derive(Debug)]
pub struct World {
    cluster: Cluster,
    jobs: Vec<TrueJob>,
    /// How many of the jobs have been submitted.
    submitted: usize,
    runs: Runs,
    happenings: Happenings,
    faults: FaultSource,
    cloud: Option<Cloud>,
    /// Runs can change their workers in place.
    resizes: bool,
    nodes: Vec<Machine>,
    /// Reports that are due at once.
    outbox: Vec<Input>,
    now: Time,
}

/// What is really the case with a node.
#[derive(Debug, Clone, Copy)]
struct Machine {
    availability: Availability,
    broken: Devices,
}

/// What a world is made of besides its cluster and its jobs.
#[derive(Debug, Clone)]
pub struct Circumstances {
    pub seed: u64,
    pub faults: Faults,
    pub interference: Interference,
    pub script: Script,
    /// How long a run is given to change its workers in place; nothing where that is not possible.
    pub resize_within: Option<Span>,
    /// Where nodes can be rented.
    pub cloud: Option<Cloud>,
    /// How often a job that is tuned says how it is doing; aligned to time zero.
    pub report_every: Span,
    /// Epochs end on whole seconds, as in the simulators of Pollux and Sia.
    pub whole_seconds: bool,
    /// A job that moves to other GPUs in the same shape loses nothing, as in the simulator of Sia.
    pub free_moves: bool,
    /// The nodes of a job follow each other by their workers, most first, and not by their number: the order in which the
    /// policies that Pollux was compared with take them, and on which measured step times depend.
    pub most_workers_first: bool,
}

/// What can be rented: nodes like this one, each some time after it was asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Cloud {
    pub node: NodeDraft,
    pub delay: Span,
}

impl Default for Circumstances {
    fn default() -> Circumstances {
        Circumstances {
            seed: 0,
            faults: Faults::default(),
            interference: Interference::default(),
            script: Script::default(),
            resize_within: None,
            cloud: None,
            report_every: Span::from_secs(60),
            whole_seconds: false,
            free_moves: false,
            most_workers_first: false,
        }
    }
}

impl World {
    pub fn new(cluster: Cluster, jobs: Vec<TrueJob>, circumstances: &Circumstances) -> Result<World, Invalid> {
        circumstances.faults.check()?;
        circumstances.interference.check()?;
        assert!(jobs.is_sorted_by_key(|job| job.submitted), "jobs come in order of submission");
        let mut world = World {
            runs: Runs::new(jobs.len(), circumstances),
            nodes: vec![Machine { availability: Availability::Open, broken: Devices::NONE }; cluster.node_count()],
            faults: FaultSource::new(circumstances.faults, circumstances.seed),
            cloud: circumstances.cloud.clone(),
            resizes: circumstances.resize_within.is_some(),
            submitted: 0,
            happenings: Happenings::default(),
            outbox: Vec::new(),
            now: Time::ZERO,
            cluster,
            jobs,
        };
        for (id, node) in world.cluster.nodes() {
            world.faults.schedule_node(id, node.gpus, Time::ZERO, &mut world.happenings);
        }
        for (at, occurrence) in circumstances.script.occurrences() {
            world.happenings.add(at, Happening::Scripted(Box::new(occurrence)));
        }
        Ok(world)
    }

    /// The truth about each job, by claim; for oracles only.
    pub fn truths(&self) -> Vec<Arc<Truth>> {
        self.jobs.iter().map(|job| job.truth.clone()).collect()
    }

    pub fn all_submitted(&self) -> bool {
        self.submitted == self.jobs.len()
    }

    /// What happens next, and when; nothing but the passing of time if the engine wants to be woken first. `None` when
    /// nothing will ever happen again.
    pub fn next(&mut self, wakeup: Option<Time>) -> Option<(Time, Vec<Input>)> {
        loop {
            let arrival = self.jobs.get(self.submitted).map(|job| job.submitted);
            let at_once = (!self.outbox.is_empty()).then_some(self.now);
            let next = [at_once, arrival, self.happenings.next_time(), wakeup].into_iter().flatten().min()?;
            self.now = self.now.max(next);
            let mut batch = std::mem::take(&mut self.outbox);
            let known = self.happenings.added();
            while let Some(happening) = self.happenings.pop_until(self.now, known) {
                self.happen(happening, &mut batch);
            }
            while let Some(job) = self.jobs.get(self.submitted).filter(|job| job.submitted <= self.now) {
                let request = Request::Submit { spec: job.spec.clone(), speed: job.speed.clone(), held: false };
                batch.push(Input::Request(request));
                self.submitted += 1;
            }
            // Happenings that were overtaken leave nothing to say.
            if !batch.is_empty() || wakeup.is_some_and(|wakeup| wakeup <= self.now) {
                return Some((self.now, batch));
            }
        }
    }

    /// Does as told. The same command twice does no harm.
    pub fn carry_out(&mut self, now: Time, command: &Command) {
        match command {
            Command::Launch { run, allotment, tuning, .. } => {
                if self.runs.knows(*run) {
                    return;
                }
                let job = &self.jobs[run.claim.0 as usize];
                let moved = self.runs.moved(now, run.claim, &allotment.placement, &self.cluster);
                let restart = if run.attempt == 1 { job.truth.start_up } else { job.spec.recovery.restart_cost };
                let begins = now + moved.unwrap_or(restart);
                self.runs.launch(*run, allotment.clone(), *tuning, begins);
                if !self.is_usable(&allotment.placement) {
                    let (why, done) = (FailureCause::NodeLost, self.runs.lose(run.claim));
                    self.outbox.push(Input::Report(Event::RunFailed { run: *run, why, done }));
                } else if !self.faults.start_hangs(*run) {
                    self.happenings.add(begins, Happening::Begun(*run));
                }
            }
            Command::Provision { count } => {
                if let Some(cloud) = &self.cloud {
                    (0..*count).for_each(|_| self.happenings.add(now + cloud.delay, Happening::Rented));
                }
            }
            Command::Release { node } => self.nodes[node.0 as usize].availability = Availability::Removed,
            Command::Retune { run, tuning } => {
                let job = &self.jobs[run.claim.0 as usize];
                if self.runs.retune(now, *run, *tuning, job, &self.cluster) {
                    self.schedule_next(run.claim);
                }
            }
            Command::Resize { run, allotment, tuning, until } => {
                if let Some(resized) = self.resize(now, *run, allotment, *tuning, *until) {
                    let nodes = self.runs.shared_nodes(run.claim);
                    self.reschedule(now, &nodes);
                    self.happenings.add(resized.0, Happening::Resized(*run, resized.1));
                }
            }
            Command::Stop { run, grace } => {
                let job = &self.jobs[run.claim.0 as usize];
                let nodes = self.runs.shared_nodes(run.claim);
                if let Some((after, done)) = self.runs.stop(now, *run, job, *grace, &self.cluster) {
                    self.reschedule(now, &nodes);
                    self.happenings.add(now + after, Happening::Stopped(*run, done));
                }
            }
        }
    }

    /// Lets a run pause to change its workers. Returns when it goes on, and by which count of its changes it is recognised
    /// then; nothing if it was told before, is over, or cannot, which it then says.
    fn resize(
        &mut self,
        now: Time,
        run: Run,
        to: &Arc<Allotment>,
        tuning: Option<Tuning>,
        until: Time,
    ) -> Option<(Time, u32)> {
        if !self.runs.is_stepping(run) {
            return None;
        }
        if self.runs.placement(run.claim) == &to.placement {
            self.outbox.push(Input::Report(Event::RunResized { run }));
            return None;
        }
        let job = &self.jobs[run.claim.0 as usize];
        let goes_on = job.truth.resize.filter(|_| self.resizes).map(|pause| now + pause).filter(|at| *at <= until);
        let held = self.runs.placement(run.claim);
        let Some(goes_on) = goes_on.filter(|_| self.is_usable(&beyond(&to.placement, held))) else {
            self.outbox.push(Input::Report(Event::RunNotResized { run }));
            return None;
        };
        Some((goes_on, self.runs.pause(now, run.claim, to.clone(), tuning, goes_on)))
    }

    /// Whether new workers can be started there.
    fn is_usable(&self, placement: &Placement) -> bool {
        let usable = |slot: &Slot| {
            let machine = self.nodes[slot.node.0 as usize];
            machine.availability == Availability::Open && !machine.broken.overlaps(slot.slices.devices)
        };
        placement.slots().iter().all(usable)
    }

    fn happen(&mut self, happening: Happening, batch: &mut Vec<Input>) {
        match happening {
            Happening::Begun(run) => {
                let job = &self.jobs[run.claim.0 as usize];
                if self.runs.begin(self.now, run, job, &self.cluster) {
                    batch.push(Input::Report(Event::RunStarted { run }));
                    if let Some(crash) = self.faults.crash_after(run) {
                        self.happenings.add(self.now + crash, Happening::Crashed(run));
                    }
                    self.schedule_next(run.claim);
                    self.reschedule(self.now, &self.runs.shared_nodes(run.claim));
                }
            }
            Happening::Reached(run, version, stop) => {
                if self.runs.is_at(run, version) {
                    self.reach(run, stop, batch);
                }
            }
            Happening::Crashed(run) => {
                if self.runs.stage(run) == Some(Stage::Running) {
                    self.fail(run.claim, FailureCause::Crash, batch);
                }
            }
            Happening::Resized(run, version) => {
                if self.runs.is_at(run, version) {
                    let left = self.runs.shared_nodes(run.claim);
                    let job = &self.jobs[run.claim.0 as usize];
                    self.runs.resume(self.now, run.claim, job, &self.cluster);
                    batch.push(Input::Report(Event::RunResized { run }));
                    self.schedule_next(run.claim);
                    self.reschedule(self.now, &left);
                }
            }
            Happening::Stopped(run, done) => {
                if self.runs.stage(run) == Some(Stage::Stopping) {
                    self.runs.remove(run.claim);
                    batch.push(Input::Report(Event::RunStopped { run, done }));
                }
            }
            Happening::Rented => {
                let cloud = self.cloud.clone().expect("only a cloud rents");
                let name = format!("{}{}", cloud.node.name, self.nodes.len());
                let node = Box::new(NodeDraft { name, count: 1, ..cloud.node });
                self.occur(Occurrence::Add { node, kinds: Vec::new() }, batch);
            }
            Happening::NodeFailed(node) => {
                if self.nodes[node.0 as usize].availability == Availability::Open {
                    self.set_availability(node, Availability::Lost, batch);
                }
                self.faults.schedule_repair(node, self.now, &mut self.happenings);
            }
            Happening::NodeRepaired(node) => {
                if self.nodes[node.0 as usize].availability == Availability::Lost {
                    self.set_availability(node, Availability::Open, batch);
                }
                self.faults.schedule_failure(node, self.now, &mut self.happenings);
            }
            Happening::GpuFailed(node, gpu) => {
                let machine = &mut self.nodes[node.0 as usize];
                machine.broken = machine.broken.union(Devices::one(gpu));
                self.report_node(node, batch);
                let hit = self.runs.on_device(node, gpu);
                hit.into_iter().for_each(|claim| self.fail(claim, FailureCause::GpuFailed, batch));
                self.faults.schedule_gpu_repair(node, gpu, self.now, &mut self.happenings);
            }
            Happening::GpuRepaired(node, gpu) => {
                let machine = &mut self.nodes[node.0 as usize];
                machine.broken = machine.broken.without(Devices::one(gpu));
                self.report_node(node, batch);
                self.faults.schedule_gpu_failure(node, gpu, self.now, &mut self.happenings);
            }
            Happening::Scripted(occurrence) => self.occur(*occurrence, batch),
        }
    }

    fn reach(&mut self, run: Run, stop: Stop, batch: &mut Vec<Input>) {
        let job = &self.jobs[run.claim.0 as usize];
        if stop != Stop::End {
            let report = self.runs.advance(self.now, run.claim, stop, job, &self.cluster);
            batch.push(Input::Report(Event::RunProgressed { run, report }));
            self.schedule_next(run.claim);
            return;
        }
        let nodes = self.runs.shared_nodes(run.claim);
        self.runs.remove(run.claim);
        self.reschedule(self.now, &nodes);
        batch.push(Input::Report(Event::RunFinished { run }));
    }

    fn occur(&mut self, occurrence: Occurrence, batch: &mut Vec<Input>) {
        let request = match occurrence {
            Occurrence::Change { node, availability, broken } => {
                self.nodes[node.0 as usize].broken = broken;
                self.set_availability(node, availability, batch);
                for gpu in broken.iter() {
                    let hit = self.runs.on_device(node, gpu);
                    hit.into_iter().for_each(|claim| self.fail(claim, FailureCause::GpuFailed, batch));
                }
                return;
            }
            Occurrence::ChangeQueues(queues) => Request::ChangeQueues(queues),
            Occurrence::Cancel(job) => Request::Cancel(ClaimId(job)),
            Occurrence::Hold(job) => Request::Hold(ClaimId(job)),
            Occurrence::Release(job) => Request::Release(ClaimId(job)),
            Occurrence::Reprioritise(job, priority) => Request::Reprioritise(ClaimId(job), priority),
            Occurrence::Cordon(node) => {
                self.nodes[node.0 as usize].availability = Availability::Cordoned;
                Request::Cordon(node)
            }
            Occurrence::Drain(node) => {
                self.nodes[node.0 as usize].availability = Availability::Drained;
                Request::Drain(node)
            }
            Occurrence::Reopen(node) => {
                self.nodes[node.0 as usize].availability = Availability::Open;
                Request::Reopen(node)
            }
            Occurrence::Remove(node) => {
                self.nodes[node.0 as usize].availability = Availability::Removed;
                batch.push(Input::Request(Request::RemoveNode(node)));
                let hit = self.runs.on_node(node);
                hit.into_iter().for_each(|claim| self.fail(claim, FailureCause::NodeLost, batch));
                return;
            }
            Occurrence::Add { node, kinds } => {
                let added = self.cluster.add(&node, &kinds).expect("a script is examined before it is played");
                for id in added {
                    self.nodes.push(Machine { availability: Availability::Open, broken: Devices::NONE });
                    let gpus = self.cluster.node(id).gpus;
                    self.faults.schedule_node(id, gpus, self.now, &mut self.happenings);
                }
                Request::AddNode { node, kinds }
            }
        };
        batch.push(Input::Request(request));
    }

    /// The node first, then what was lost with it: whoever hears of a failed run already knows its node is away.
    fn set_availability(&mut self, node: NodeId, availability: Availability, batch: &mut Vec<Input>) {
        self.nodes[node.0 as usize].availability = availability;
        self.report_node(node, batch);
        if availability == Availability::Lost {
            let hit = self.runs.on_node(node);
            hit.into_iter().for_each(|claim| self.fail(claim, FailureCause::NodeLost, batch));
        }
    }

    fn report_node(&self, node: NodeId, batch: &mut Vec<Input>) {
        let Machine { availability, broken } = self.nodes[node.0 as usize];
        batch.push(Input::Report(Event::NodeChanged { node, availability, broken }));
    }

    fn fail(&mut self, claim: ClaimId, why: FailureCause, batch: &mut Vec<Input>) {
        let run = self.runs.current(claim).expect("only what runs can fail");
        let nodes = self.runs.shared_nodes(claim);
        let done = self.runs.crash(self.now, claim, &self.jobs[claim.0 as usize]);
        batch.push(Input::Report(Event::RunFailed { run, why, done }));
        self.reschedule(self.now, &nodes);
    }

    fn schedule_next(&mut self, claim: ClaimId) {
        let job = &self.jobs[claim.0 as usize];
        if let Some((run, version, stop, after)) = self.runs.next_stop(claim, job) {
            self.happenings.add(self.now + after, Happening::Reached(run, version, stop));
        }
    }

    /// Someone came or went on these nodes: the others there now run at another rate.
    fn reschedule(&mut self, now: Time, nodes: &[NodeId]) {
        for neighbour in self.runs.update_rates(now, nodes) {
            self.schedule_next(neighbour);
        }
    }
}

/// How long a job takes alone with so many workers on one node of this kind, from its first step to its last.
pub fn isolated(job: &TrueJob, kind: Option<cluster::GpuKind>, workers: u32, cluster: &Cluster) -> Option<Span> {
    let useful = useful_share(&job.spec);
    if let (Some(course), Some(adaptation)) = (&job.truth.course, &job.speed.adaptation) {
        let size = |(_, node): (NodeId, &cluster::Node)| (node.kind == kind).then_some(u32::from(node.gpus));
        let largest = cluster.nodes().filter_map(size).max().filter(|&gpus| gpus > 0)?;
        let workers = adaptation.on(kind?)?.usable(workers);
        let shape = cluster::Shape { kind, workers, nodes: workers.div_ceil(largest) };
        let starts = std::iter::once(&0.0).chain(&course.epochs);
        let epochs = starts.zip(&course.epochs).map(|(&start, &end)| {
            let rate = course.best_rate(adaptation, shape, start)?;
            Some((end - start) / (rate * useful))
        });
        return Some(runs::span_of(epochs.sum::<Option<f64>>()?));
    }
    let shape = cluster::Shape { kind, workers, nodes: 1 };
    let rate = job.truth.speed.rate(&perf::Situation::shaped(&job.spec, shape, None, cluster))?;
    Some(runs::span_of(job.truth.iterations as f64 / (rate * useful)))
}
