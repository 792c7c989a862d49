//! Optimus as Pollux was compared with it: GPUs one by one to whoever gains most time, with an oracle's knowledge.
//!
//! Paper: A. Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning", OSDI 2021, section
//! 5.1 (Optimus+Oracle+TunedJobs), after Y. Peng et al., "Optimus: An Efficient Dynamic Resource Scheduler for Deep
//! Learning Clusters", EuroSys 2018; the rules are those of the simulator that Pollux' authors published.
//!
//! The idea. The batch of a job is fixed, its workers are not; there are no parameter servers. Each round everyone gets
//! one GPU in order of submission while there are any. Then, again and again, whoever would save most time by one GPU
//! more gets it, until nobody gains. Whoever has as many as before stays where it is; the others are placed anew, the
//! smallest first, each filling the emptiest nodes. What a restart costs plays no part.
//!
//! | authors' simulator                 | here                                            |
//! |------------------------------------|-------------------------------------------------|
//! | remaining iterations, an oracle's  | `Course::iterations_after`, at least 1          |
//! | τ(R), seconds per iteration        | `Course::iteration_secs`, full nodes and a rest |
//! | gain (τ(R) − τ(R+1)) · rem         | [`Job::gain`]                                   |
//! | most workers ⌊B / m_min⌋           | the range the job declares                      |
//!
//! Deviations. A job's present epoch counts as done, as there. Jobs whose batch is tuned, and jobs without a measured
//! course, are judged by the progress per second they would really make. On several kinds of GPU a job stays on the kind
//! it is on, or starts on the one where it is fastest of those with room, and grows there. Jobs of several roles, parts
//! of GPUs, and gangs that cannot change get what they ask for at least. Queues with budgets are respected.

use std::collections::BTreeMap;

use cluster::{GpuKind, Scaling, Shape, Span};
use perf::{BatchRule, Situation, Truth};
use plan::{Claim, Knowledge, Note, Phase, Plan, Policy, Reason, Rhythm, Snapshot};

use crate::blocks::draft::Draft;
use crate::blocks::grant;
use crate::blocks::menu::{Fleet, is_plain};
use crate::blocks::place::{self, Style};
use crate::blocks::round;
use crate::config::{ConfigError, PolicyConfig};

pub(crate) fn build(config: &PolicyConfig) -> Result<Box<dyn Policy>, ConfigError> {
    config.switch("parity")?;
    Ok(Box::new(PolluxOptimus { round: config.round("round")? }))
}

#[derive(Debug)]
struct PolluxOptimus {
    round: Span,
}

/// A claim, and what it has been given so far.
#[derive(Debug)]
struct Job<'a> {
    claim: &'a Claim,
    /// Where it is meant to run; `None` if nothing was left there.
    kind: Option<GpuKind>,
    workers: u32,
    /// Seconds that one worker more would save.
    gain: f64,
}

impl Policy for PolluxOptimus {
    fn plan(&mut self, snapshot: &Snapshot<'_>) -> Plan {
        let mut draft = Draft::new(snapshot);
        let claims: Vec<&Claim> = snapshot.eligible().filter(|claim| claim.spec.uses_gpus()).collect();
        let held: Vec<u32> = claims.iter().map(|claim| workers_held(claim)).collect();
        round::release_all(&mut draft, &claims);
        let mut jobs = share_out(&draft, &claims);
        let (stay, mut change): (Vec<_>, Vec<_>) =
            jobs.drain(..).zip(held).partition(|(job, held)| *held > 0 && job.workers == *held);
        for (job, _) in stay {
            draft.give(job.claim, job.claim.target.clone().expect("who has workers holds something"));
        }
        change.sort_by_key(|(job, _)| job.workers);
        let mut obstacles = BTreeMap::new();
        for (job, _) in change.iter().filter(|(job, _)| job.workers > 0) {
            if let Err(note) = start(&mut draft, job) {
                obstacles.insert(job.claim.id, note);
            }
        }
        round::conclude(draft, self.round, &obstacles)
    }

    fn rhythm(&self) -> Rhythm {
        Rhythm::EveryRound(self.round)
    }

    fn is_stable(&self) -> bool {
        false
    }

    fn knows(&self) -> &'static [Knowledge] {
        &[Knowledge::RemainingIterations, Knowledge::StepTimes]
    }
}

fn workers_held(claim: &Claim) -> u32 {
    claim.target.as_ref().map_or(0, |target| target.placement.tasks_of(0))
}

/// How many workers everyone gets. The draft gives nobody anything yet.
fn share_out<'a>(draft: &Draft<'a>, claims: &[&'a Claim]) -> Vec<Job<'a>> {
    let snapshot = &draft.snapshot;
    let fleet = Fleet::of(snapshot);
    let mut free: Vec<u32> = fleet.kinds.iter().map(|kind| kind.gpus).collect();
    let mut usage = draft.usage().clone();
    let mut jobs: Vec<Job<'a>> = Vec::with_capacity(claims.len());
    for &claim in claims {
        let least = claim.spec.scaling.min();
        let gpus = whole_gpus(claim, least);
        let admitted = usage.admits(claim, claim.spec.gpus(least)).is_ok();
        let kind = if admitted { kind_for(snapshot, claim, &free, gpus) } else { None };
        if let Some(kind) = kind {
            free[usize::from(kind.0)] -= gpus;
            usage.add(claim, claim.spec.gpus(least));
        }
        let mut job = Job { claim, kind, workers: kind.map_or(0, |_| least), gain: 0.0 };
        job.gain = job.gain(snapshot, &fleet);
        jobs.push(job);
    }
    loop {
        let one_more = |job: &Job<'_>| {
            let left = job.kind.is_some_and(|kind| free[usize::from(kind.0)] > 0);
            left && usage.admits(job.claim, job.claim.spec.gpus(1)).is_ok()
        };
        let mut best: Option<&mut Job<'a>> = None;
        for job in jobs.iter_mut().filter(|job| job.gain > 0.0 && one_more(job)) {
            if best.as_ref().is_none_or(|best| job.gain > best.gain) {
                best = Some(job);
            }
        }
        let Some(job) = best else { return jobs };
        job.workers += 1;
        job.gain = job.gain(snapshot, &fleet);
        free[usize::from(job.kind.expect("who grows has a kind").0)] -= 1;
        usage.add(job.claim, job.claim.spec.gpus(1));
    }
}

/// The kind it is on; else, of those with room for its least, the one where it is fastest, the first of equals.
fn kind_for(snapshot: &Snapshot<'_>, claim: &Claim, free: &[u32], gpus: u32) -> Option<GpuKind> {
    let has_room = |kind: &GpuKind| free[usize::from(kind.0)] >= gpus.max(1);
    let held = claim.target.as_ref().and_then(|target| target.placement.kind(snapshot.cluster()));
    if let Some(kind) = held.filter(has_room) {
        return Some(kind);
    }
    let least = claim.spec.scaling.min();
    let rated = snapshot.kinds_of(claim).filter(has_room);
    let rated = rated.filter_map(|kind| Some((snapshot.rate_on(claim, Some(kind), least)?, kind)));
    let fastest = |best: (f64, GpuKind), next: (f64, GpuKind)| if next.0 > best.0 { next } else { best };
    rated.reduce(fastest).map(|(_, kind)| kind)
}

fn whole_gpus(claim: &Claim, workers: u32) -> u32 {
    claim.spec.gpus(workers).as_thousandths().div_ceil(1000)
}

impl Job<'_> {
    /// Seconds saved by one worker more; none where the job may not have it.
    fn gain(&self, snapshot: &Snapshot<'_>, fleet: &Fleet) -> f64 {
        let can_grow = !matches!(self.claim.spec.scaling, Scaling::Rigid(_)) && is_plain(&self.claim.spec);
        let Some(kind) = self.kind.filter(|_| can_grow && self.workers < self.claim.spec.scaling.max()) else {
            return 0.0;
        };
        let per_node = fleet.of_kind(kind).node_gpus.max(1);
        let seconds = |workers: u32| remaining_secs(snapshot, self.claim, kind, workers, per_node);
        seconds(self.workers).zip(seconds(self.workers + 1)).map_or(0.0, |(now, then)| now - then)
    }
}

/// How long the rest of the job would really take on full nodes and one with what is over.
fn remaining_secs(snapshot: &Snapshot<'_>, claim: &Claim, kind: GpuKind, workers: u32, per_node: u32) -> Option<f64> {
    let truths = snapshot.truths.expect("an oracle is told the truth");
    let truth: &Truth = &truths[claim.id.0 as usize];
    let shape = Shape { kind: Some(kind), workers, nodes: workers.div_ceil(per_node) };
    match (&truth.course, &claim.speed.adaptation) {
        (Some(course), Some(adaptation)) => {
            let BatchRule::Fixed(batch) = adaptation.rule else {
                let done = claim.progress.done as f64;
                let rate = course.best_rate(adaptation, shape, done)?;
                return Some((course.length() - done).max(1.0) / rate);
            };
            let tuning = claim.learned.tuning(adaptation, shape)?;
            let mut places = vec![per_node; (workers / per_node) as usize];
            places.extend(Some(workers % per_node).filter(|&rest| rest > 0));
            let remaining = course.iterations_after(claim.progress.epoch, f64::from(batch)).max(1.0);
            Some(remaining * course.iteration_secs(kind, &places, tuning)?)
        }
        _ => {
            let batch = grant::batch(claim, workers);
            let rate = truth.speed.rate(&Situation::shaped(&claim.spec, shape, batch, snapshot.cluster()))?;
            Some((truth.iterations as f64 - done(snapshot, claim, truth)).max(1.0) / rate)
        }
    }
}

/// Iterations that a job which does not report has made.
fn done(snapshot: &Snapshot<'_>, claim: &Claim, truth: &Truth) -> f64 {
    let reported = claim.progress.done as f64;
    let Phase::Running { holds, since } = &claim.phase else { return reported };
    let situation = Situation::placed(&claim.spec, &holds.placement, holds.batch, snapshot.cluster());
    let rate = truth.speed.rate(&situation).unwrap_or(0.0);
    reported + rate * snapshot.now.since(*since.max(&claim.progress.reported)).as_secs_f64()
}

/// A place on the kind that was meant, or on any.
fn start(draft: &mut Draft<'_>, job: &Job<'_>) -> Result<(), Note> {
    let (claim, workers) = (job.claim, job.workers);
    let meant = |kind: GpuKind| Some(kind) == job.kind;
    let there = match draft.usage().admits(claim, claim.spec.gpus(workers)) {
        Ok(()) => place::fit_on(draft.room(), &draft.snapshot, claim, workers, Style::Emptiest, meant),
        Err(_) => None,
    };
    let found = match there {
        Some(placement) => grant::allotment(claim, workers, placement),
        None => draft.find(claim, workers, Style::Emptiest)?,
    };
    draft.admit(claim, found, Reason::Admitted);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use cluster::{ClusterDraft, JobDraft, Time, WorkerRange};
    use perf::{
        Adaptation, Course, GradientNoise, KindLimits, Rates, ScalingLaw, Speed, StepReport, StepRow, StepTables,
        StepTimes,
    };
    use plan::{Books, Budgets, Changed, text};

    fn policy() -> Box<dyn Policy> {
        build(&PolicyConfig::named("pollux-optimus")).unwrap()
    }

    const KIND: GpuKind = GpuKind(0);

    /// The worked example: two nodes of four GPUs. An iteration of a takes so long on one to five GPUs, and it has 13998
    /// after its first epoch; b and d are alike and have 3066; c may have one GPU only.
    const A: [f64; 5] = [2.59176, 1.32984, 1.12392, 0.88289, 1.79456];
    const B: [f64; 5] = [1.40364, 0.83797, 0.54609, 0.39446, 0.34666];
    const C: [f64; 5] = [0.0296; 5];

    struct Moment {
        books: Books,
        truths: Vec<Arc<Truth>>,
    }

    impl Moment {
        fn new() -> Moment {
            let (cluster, queues) = ClusterDraft::parse_short("2x4 t4").unwrap().build().unwrap();
            Moment { books: Books::new(cluster, queues), truths: Vec::new() }
        }

        /// A job in its first epoch whose later epochs have so many iterations.
        fn job(mut self, name: &str, secs: [f64; 5], later: f64, most: u32) -> Moment {
            let row = |step_secs: f64| vec![StepRow { local: 1, step_secs, sync_secs: step_secs }];
            let places = [vec![1], vec![1, 4], vec![2], vec![3], vec![4]].into_iter().zip([0, 4, 1, 2, 3]);
            let tables = StepTables {
                places: places.map(|(place, index)| (place, row(secs[index]))).collect(),
                ..StepTables::default()
            };
            let course = Course {
                initial: 8,
                steps: vec![(KIND, StepTimes::Measured(tables))],
                epochs: vec![100.0, 200.0],
                noise: vec![(8, vec![GradientNoise { sqr: 1.0, var: 1.0 }; 2])],
                iterations: vec![(64, vec![100.0, 100.0 + later])],
                slowdown: 1.0,
            };
            let limits = KindLimits {
                kind: KIND,
                local_min: 1,
                local_max: 64,
                shapes: Vec::new(),
                alone: None,
                stages: 1,
                workers_max: None,
            };
            let (rule, restart) = (BatchRule::Fixed(64), Span::from_secs(30));
            let adaptation = Adaptation { initial: 8, max: 64, rule, kinds: vec![limits], restart };
            let speed = Speed {
                rates: Rates::ByKind(vec![(KIND, 1.0)]),
                scaling: ScalingLaw::Linear,
                adaptation: Some(Arc::new(adaptation)),
                ..Speed::constant(1.0)
            };
            let scaling = Scaling::Elastic(WorkerRange { min: 1, max: most });
            let spec = JobDraft { scaling, ..JobDraft::rigid(name, 1) }.build().unwrap();
            let course = Some(Arc::new(course));
            self.truths.push(Arc::new(Truth {
                speed: speed.clone(),
                iterations: 200,
                start_up: restart,
                course,
                resize: None,
            }));
            self.books.submit(Time::ZERO, Arc::new(spec), Arc::new(speed));
            self
        }

        /// The job is in its second and last epoch.
        fn in_last_epoch(mut self, job: u32) -> Moment {
            let report = StepReport { done: 100, epoch: 1, ..StepReport::default() };
            self.books.progressed(Time::ZERO, cluster::ClaimId(job), &report);
            self
        }

        /// Plans and holds everyone to it; one line for each who then has something.
        #[track_caller]
        fn check(mut self, expected: &str) -> Moment {
            let budgets = Budgets::none();
            let snapshot = Snapshot {
                now: Time::from_secs(60),
                books: &self.books,
                changed: Changed::Everything,
                budgets: &budgets,
                truths: Some(&self.truths),
            };
            let plan = policy().plan(&snapshot);
            assert!(plan::check_everything(&plan, &snapshot).is_empty(), "a faultless plan");
            plan.changes.iter().for_each(|(id, _)| self.books.allot(*id, None));
            plan.changes.iter().for_each(|(id, target)| self.books.allot(*id, target.clone()));
            let place = |claim: &Claim| {
                let placement = &claim.target.as_ref()?.placement;
                Some(format!("{}: {}", claim.spec.name, text::placement(&self.books.cluster, placement)))
            };
            let found: Vec<String> = self.books.claims().iter().filter_map(place).collect();
            assert_eq!(found.join("\n"), expected);
            self
        }
    }

    #[test]
    fn a_job_stops_growing_where_the_next_gpu_would_be_on_another_node() {
        Moment::new().job("a", A, 13998.0, 16).check("a: n0:0-3");
    }

    #[test]
    fn the_worked_example_up_to_the_third_call() {
        let moment = Moment::new().job("a", A, 13998.0, 16).check("a: n0:0-3");
        let moment = moment.job("b", B, 3066.0, 64).check("a: n0:0-3\nb: n1:0-3");
        let moment = moment.job("c", C, 100.0, 1).job("d", B, 3066.0, 64);
        // Four GPUs after everyone has one: three to a, and of the equal gains of b and d that of b.
        moment.check("a: n0:0-3\nb: n1:2-3\nc: n1:0\nd: n1:1");
    }

    #[test]
    fn in_its_last_epoch_a_job_has_one_iteration_left_and_gives_way() {
        let moment = Moment::new().job("b", B, 3066.0, 4).job("d", B, 3066.0, 8).check("b: n0:0-3\nd: n1:0-3");
        let moment = moment.in_last_epoch(0);
        moment.job("e", B, 3066.0, 4).check("b: n0:0\nd: n1:0-3\ne: n0:1-3");
    }

    #[test]
    fn it_says_what_it_knows() {
        let knows: Vec<String> = policy().knows().iter().map(ToString::to_string).collect();
        assert_eq!(knows, ["true remaining iterations", "true step times"]);
    }
}
