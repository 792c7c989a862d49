//! A cluster full of jobs that have learnt something about themselves, no two alike: what a policy is measured on.

use std::sync::Arc;

use cluster::{BatchRange, ClaimId, Cluster, ClusterDraft, GpuKind, JobDraft, Scaling, Span, Time, WorkerRange};
use perf::{
    Adaptation, BatchRule, GradientNoise, KindLimits, Line, Observation, Rates, ScalingLaw, Speed, StepReport, StepTime,
};
use plan::{Books, Budgets, Changed, Phase, Plan, Snapshot};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Books between two rounds.
#[derive(Debug)]
pub struct Crowd {
    books: Books,
    now: Time,
    budgets: Budgets,
    changed: Vec<ClaimId>,
    asked: bool,
    dice: ChaCha8Rng,
}

const ROUND: Span = Span::from_secs(60);

impl Crowd {
    /// So many jobs on so many GPUs of some kinds, in nodes of eight. Every job has run on one or two of the kinds.
    pub fn new(gpus: u32, jobs: u32, kinds: u16, seed: u64) -> Crowd {
        let each = gpus / u32::from(kinds) / 8;
        let groups: Vec<String> = (0..kinds).map(|kind| format!("{}x8 kind{kind}", each.max(1))).collect();
        let draft = ClusterDraft::parse_short(&groups.join(", ")).expect("nodes of eight");
        let (cluster, queues) = draft.build().expect("nodes of eight");
        let mut crowd = Crowd {
            books: Books::new(cluster, queues),
            now: Time::from_secs(36_000),
            budgets: Budgets::none(),
            changed: Vec::new(),
            asked: false,
            dice: ChaCha8Rng::seed_from_u64(seed),
        };
        for _ in 0..jobs {
            crowd.submit(kinds);
        }
        crowd
    }

    pub fn snapshot(&self) -> Snapshot<'_> {
        let changed = if self.asked { Changed::Only(&self.changed) } else { Changed::Everything };
        Snapshot { now: self.now, books: &self.books, changed, budgets: &self.budgets, truths: None }
    }

    /// Everybody holds what the plan gives and runs; then a round passes in which this share of the jobs learns something.
    pub fn follow(&mut self, plan: &Plan, learning: f64) {
        for (id, _) in &plan.changes {
            self.books.allot(*id, None);
        }
        for (id, target) in &plan.changes {
            self.books.allot(*id, target.clone());
            let phase = match target {
                None => Phase::Waiting,
                Some(holds) => {
                    self.books.progress_mut(*id).launches += 1;
                    Phase::Running { holds: holds.clone(), since: self.now }
                }
            };
            self.books.set_phase(*id, phase);
        }
        for (id, numbers) in &plan.memory {
            self.books.remember(*id, numbers.clone());
        }
        self.now = self.now + ROUND;
        self.asked = true;
        self.changed = plan.changes.iter().map(|(id, _)| *id).collect();
        let jobs = self.books.claims().len() as u32;
        for id in (0..jobs).map(ClaimId) {
            if self.dice.random_bool(learning) {
                let kind = GpuKind(0);
                let step = step_time(&mut self.dice);
                self.teach(id, kind, step);
                self.changed.push(id);
            }
        }
    }

    fn submit(&mut self, kinds: u16) {
        let dice = &mut self.dice;
        let initial = 1 << dice.random_range(3..8);
        let alone: Vec<f64> = (0..kinds).map(|_| dice.random_range(0.5..8.0) * f64::from(initial)).collect();
        let limits = |(kind, alone): (u16, &f64)| KindLimits {
            kind: GpuKind(kind),
            local_min: (initial / 4).max(1),
            local_max: initial * 8,
            shapes: Vec::new(),
            alone: Some(*alone),
            stages: 1,
            workers_max: None,
        };
        let adaptation = Adaptation {
            initial,
            max: initial * 32,
            rule: BatchRule::Tuned { asked: None },
            kinds: (0..kinds).zip(&alone).map(limits).collect(),
            restart: Span::from_secs(30),
        };
        let speed = Speed {
            rates: Rates::ByKind(alone.iter().zip(0..).map(|(rate, kind)| (GpuKind(kind), *rate)).collect()),
            scaling: ScalingLaw::Linear,
            adaptation: Some(Arc::new(adaptation)),
            ..Speed::constant(1.0)
        };
        let draft = JobDraft {
            scaling: Scaling::Adaptive(WorkerRange { min: 1, max: 64 }, BatchRange { initial, max: initial * 32 }),
            ..JobDraft::rigid("job", 1)
        };
        let age = Span::from_secs(dice.random_range(60..36_000));
        let submitted = Time::from_millis(self.now.as_millis() - age.as_millis());
        let id = self.books.submit(submitted, Arc::new(draft.build().expect("a small job")), Arc::new(speed));
        for _ in 0..=self.dice.random_range(0..2_u8) {
            let kind = GpuKind(self.dice.random_range(0..kinds));
            let step = step_time(&mut self.dice);
            self.teach(id, kind, step);
        }
    }

    /// The job has run with some workers on a kind, and this is the model fitted to it.
    fn teach(&mut self, id: ClaimId, kind: GpuKind, step: StepTime) {
        let dice = &mut self.dice;
        let steps = Observation {
            nodes: 1,
            replicas: 1 << dice.random_range(0..6),
            local_batch: dice.random_range(1..64),
            accumulation_secs: dice.random_range(0.1..0.4),
            step_secs: dice.random_range(0.4..0.9),
        };
        let noise = GradientNoise { sqr: 1.0, var: dice.random_range(0.5..50.0) };
        let report = StepReport { steps: Some(steps), noise: Some(noise), ..StepReport::default() };
        self.books.learnt(id, kind, &report, step);
    }

    pub fn cluster(&self) -> &Cluster {
        &self.books.cluster
    }
}

fn step_time(dice: &mut impl Rng) -> StepTime {
    let mut line = |fixed: f64, slope: f64| Line {
        fixed: fixed * dice.random_range(0.5..2.0),
        slope: slope * dice.random_range(0.5..2.0),
    };
    let (compute, between_nodes, within_node) = (line(0.05, 0.01), line(0.1, 0.02), line(0.03, 0.005));
    StepTime { compute, between_nodes, within_node, overlap: dice.random_range(1.0..2.5) }
}
