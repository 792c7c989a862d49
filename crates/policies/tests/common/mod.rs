//! A small world for tests: random jobs come, run for as long as they really take, and end; nodes go and come back. The
//! simulator proper stands above this crate and cannot be used here.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::collections::BTreeSet;
use std::sync::Arc;

use cluster::{
    BatchRange, Bytes, ClaimId, ClusterDraft, Count, Gpus, Grain, JobDraft, JobSpec, MigProfile, NodeId, QueueDraft,
    QueueId, Role, Scaling, Slice, Span, Time, Weight, WorkerRange,
};
use perf::{Rates, ScalingLaw, Situation, Speed, Truth};
use plan::{
    Availability, Books, Budgets, Changed, NodeStatus, Outcome, Phase, Plan, Policy, Rhythm, Snapshot,
    check_everything, feasible, text,
};
use policies::{PolicyConfig, build};

/// Every policy with its defaults, and the choices that lead through other code.
pub(crate) fn variants() -> Vec<PolicyConfig> {
    let variants: &[(&str, &[&str])] = &[
        ("fifo", &[]),
        ("fifo", &["backfill=easy"]),
        ("fifo", &["backfill=easy", "estimates=oracle"]),
        ("fifo", &["backfill=conservative", "depth=10"]),
        ("srtf", &[]),
        ("srtf", &["knowledge=estimate"]),
        ("srsf", &[]),
        ("las", &[]),
        ("tiresias", &[]),
        ("tiresias", &["thresholds=600,3000", "promote=2"]),
        ("gittins", &[]),
        ("gittins", &["discrete=false", "delta=900"]),
        ("pollux", &[]),
        ("pollux", &["p=1"]),
        ("pollux-tiresias", &[]),
        ("pollux-tiresias", &["threshold=900"]),
        ("pollux-optimus", &[]),
        ("sia", &[]),
        ("sia", &["parity=true"]),
        ("sia", &["p=1", "lambda=-1.1"]),
        ("composed", &[]),
        ("composed", &["order=fair", "preempt=true"]),
        ("composed", &["order=shortest", "backfill=easy", "place=scatter"]),
        ("composed", &["order=attained", "preempt=true", "grant=grow", "place=spread", "round=1m"]),
        ("composed", &["order=deadline", "preempt=true", "place=consolidate"]),
        ("composed", &["order=smallest", "grant=grow"]),
    ];
    variants.iter().map(|(name, pairs)| PolicyConfig::from_pairs(name, pairs).unwrap()).collect()
}

/// Numbers that look random: the same for the same seed, on every machine.
#[derive(Debug, Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1))
    }

    /// From 0 up to, not including, `sides`.
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    pub(crate) fn one_in(&mut self, sides: u64) -> bool {
        self.roll(sides) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.roll(of.len() as u64) as usize]
    }
}

/// A job that will be submitted: when, what is asked, what is thought of it, what is true.
type Coming = (Time, Arc<JobSpec>, Arc<Speed>, Arc<Truth>);

/// Jobs to come, and the world in which they do.
#[derive(Debug, Clone)]
pub(crate) struct Story {
    dice: Dice,
    now: Time,
    books: Books,
    budgets: Budgets,
    truths: Vec<Arc<Truth>>,
    to_come: Vec<Coming>,
    changed: BTreeSet<ClaimId>,
    ends: BTreeSet<(Time, ClaimId)>,
    end_of: Vec<Option<Time>>,
    first: bool,
    unrest: bool,
    calmed: bool,
    check: bool,
    pub(crate) decisions: u64,
}

impl Story {
    pub(crate) fn random(seed: u64) -> Story {
        let mut dice = Dice::new(seed);
        let clusters = ["4x4 t4", "3x8 a100", "2x4 t4, 2x4 a100", "2x2 t4, 3x4 v100, 1x0"];
        let mut draft = ClusterDraft::parse_short(dice.pick(&clusters)).unwrap();
        for (index, node) in draft.nodes.iter_mut().enumerate() {
            node.rack = format!("rack{index}");
        }
        if dice.one_in(2) {
            let red = QueueDraft { guarantee: 4.0, limit: Some(10.0), ..QueueDraft::named("red") };
            let child = QueueDraft { parent: Some("red".into()), ..QueueDraft::named("crimson") };
            draft.queues = vec![red, child, QueueDraft::named("blue")];
        }
        let mut story = Story::new(&draft, dice);
        story.add_jobs(40);
        story
    }

    pub(crate) fn new(draft: &ClusterDraft, dice: Dice) -> Story {
        let (cluster, queues) = draft.build().unwrap();
        Story {
            dice,
            now: Time::ZERO,
            books: Books::new(cluster, queues),
            budgets: Budgets::none(),
            truths: Vec::new(),
            to_come: Vec::new(),
            changed: BTreeSet::new(),
            ends: BTreeSet::new(),
            end_of: Vec::new(),
            first: true,
            unrest: true,
            calmed: false,
            check: true,
            decisions: 0,
        }
    }

    fn add_jobs(&mut self, count: u64) {
        let mut time = Time::ZERO;
        for _ in 0..count {
            time = time + Span::from_secs(self.dice.roll(600));
            let (spec, speed) = self.random_job();
            if feasible(&self.books, &spec, &speed).is_ok() {
                let truth = Truth {
                    speed: speed.clone(),
                    iterations: 60 + self.dice.roll(7200),
                    start_up: Span::ZERO,
                    course: None,
                    resize: None,
                };
                self.to_come.push((time, Arc::new(spec), Arc::new(speed), Arc::new(truth)));
            }
        }
        self.to_come.reverse();
    }

    /// Plain jobs of one-GPU workers, each with a known time to run: for measuring speed.
    pub(crate) fn plain(draft: &ClusterDraft, jobs: &[(Time, u32, Span)]) -> Story {
        let mut story = Story::new(draft, Dice::new(1));
        for &(time, gpus, lasts) in jobs {
            let spec = JobDraft { expected: Some(lasts), ..JobDraft::rigid("job", gpus) }.build().unwrap();
            let truth = Truth::lasting(lasts);
            story.to_come.push((time, Arc::new(spec), Arc::new(truth.speed.clone()), Arc::new(truth)));
        }
        story.to_come.reverse();
        story.unrest = false;
        story.check = false;
        story
    }

    fn random_job(&mut self) -> (JobSpec, Speed) {
        let dice = &mut self.dice;
        let workers = dice.pick(&[1, 1, 1, 2, 2, 4, 6, 8]);
        let range = WorkerRange { min: workers, max: workers + dice.roll(5) as u32 };
        let scaling = match dice.roll(4) {
            0 => Scaling::Elastic(range),
            1 => Scaling::Adaptive(range, BatchRange { initial: 32, max: 128 }),
            _ => Scaling::Rigid(workers),
        };
        let grain = match dice.roll(8) {
            0 => Grain::Share { thousandths: dice.pick(&[300, 500]), memory: Bytes::gib(5) },
            1 => Grain::Mig(dice.pick(&MigProfile::ALL)),
            _ => Grain::Whole,
        };
        let memory = if let Grain::Share { memory, .. } = grain { memory } else { Bytes::ZERO };
        let count = if grain == Grain::Whole && dice.one_in(8) { 2 } else { 1 };
        let slice = (!dice.one_in(12)).then_some(Slice { grain, count, memory });
        let millicores = dice.pick(&[0, 0, 4000, 16000]);
        let millicores = if slice.is_none() { millicores.max(1000) } else { millicores };
        let mut roles = vec![Role { slice, millicores, ..Role::worker() }];
        if dice.one_in(6) {
            let count = dice.pick(&[Count::Fixed(2), Count::OnePer(3)]);
            roles.push(Role { name: "server".into(), count, slice: None, millicores: 8000, memory: Bytes::gib(64) });
        }
        let queues = self.books.queues.len() as u64;
        let kinds: Vec<_> = self.books.cluster.kinds().map(|(kind, _)| kind).collect();
        let scaling_law = dice.pick(&[1.0, 0.9, 0.5]);
        let rates = match dice.roll(3) {
            0 => Rates::Anywhere(1.0),
            _ => Rates::ByKind(kinds.iter().map(|&kind| (kind, 1.0 + dice.roll(4) as f64)).collect()),
        };
        let rates = if slice.is_none() { Rates::Anywhere(1.0) } else { rates };
        let speed = Speed { rates, scaling: ScalingLaw::Power(scaling_law), ..Speed::constant(1.0) };
        let draft = JobDraft {
            user: dice.pick(&["ann", "bob", "eve"]).into(),
            queue: QueueId(dice.roll(queues) as u16),
            priority: dice.roll(3) as i32,
            weight: Weight::from_f64(dice.pick(&[1.0, 1.0, 2.5])).unwrap(),
            scaling,
            roles,
            kinds: if dice.one_in(4) { vec![dice.pick(&kinds)] } else { Vec::new() },
            deadline: dice.one_in(2).then(|| Time::from_secs(dice.roll(20_000))),
            expected: dice.one_in(2).then(|| Span::from_secs(1 + dice.roll(7200))),
            skew: dice.one_in(2).then(|| dice.roll(1001) as u16),
            ..JobDraft::rigid("job", 1)
        };
        (draft.build().unwrap(), speed)
    }

    pub(crate) fn now(&self) -> Time {
        self.now
    }

    pub(crate) fn live(&self) -> usize {
        self.books.claims().live_count()
    }

    /// Plays the story to its end under a policy, which is asked as the engine would ask it. `look` sees every moment, the
    /// policy, and its plan for the moment.
    pub(crate) fn play(mut self, config: &PolicyConfig, mut look: impl FnMut(&Story, &dyn Policy, &Plan)) -> Story {
        let mut policy = build(config).unwrap();
        let mut wake_at: Option<Time> = None;
        let mut due: Option<Time> = None;
        loop {
            let coming = self.to_come.last().map(|(time, ..)| *time);
            let ending = self.ends.first().map(|(time, _)| *time);
            let next = [coming, ending, due, wake_at].into_iter().flatten().min();
            let Some(next) = next.or_else(|| self.calm_down()) else { break };
            self.now = next.max(self.now);
            let mut news = self.let_jobs_come() | self.let_jobs_end() | std::mem::take(&mut self.calmed);
            if wake_at.is_some_and(|time| time <= self.now) {
                news = true;
                wake_at = None;
            }
            if news {
                let round = match policy.rhythm() {
                    Rhythm::OnChange => self.now,
                    Rhythm::EveryRound(round) => self.now.round_up(round),
                };
                due = Some(due.map_or(round, |due| due.min(round)));
            }
            if due.is_none_or(|due| due > self.now) {
                continue;
            }
            due = None;
            self.disturb();
            let plan = self.ask(&mut *policy);
            look(&self, &*policy, &plan);
            wake_at = plan.wake_at;
            assert!(wake_at.is_none_or(|time| time > self.now), "{config:?} wants to be woken at once");
            self.apply(&plan, true);
            self.decisions += 1;
            assert!(self.decisions < 1_000_000, "{config:?} never comes to an end");
        }
        let left: Vec<ClaimId> = self.books.claims().live().map(|claim| claim.id).collect();
        assert!(left.is_empty(), "{config:?} leaves {left:?} waiting at {}", self.now);
        self
    }

    fn let_jobs_come(&mut self) -> bool {
        let mut any = false;
        while self.to_come.last().is_some_and(|(time, ..)| *time <= self.now) {
            let (_, spec, speed, truth) = self.to_come.pop().unwrap();
            let id = self.books.submit(self.now, spec, speed);
            self.truths.push(truth);
            self.end_of.push(None);
            self.changed.insert(id);
            any = true;
        }
        any
    }

    fn let_jobs_end(&mut self) -> bool {
        let mut any = false;
        while self.ends.first().is_some_and(|(time, _)| *time <= self.now) {
            let (_, id) = self.ends.pop_first().unwrap();
            self.books.end(self.now, id, Outcome::Finished);
            self.changed.insert(id);
            any = true;
        }
        any
    }

    /// Now and then budgets change, a node goes, or comes back.
    fn disturb(&mut self) {
        if !self.unrest {
            return;
        }
        if self.books.queues.len() > 1 && self.dice.one_in(4) {
            let capacity = self.books.capacity();
            let share = |queue| if queue == 0 { capacity } else { Gpus::whole(self.dice.roll(12) as u32) };
            self.budgets = Budgets { of: (0..self.books.queues.len()).map(share).collect() };
        }
        if self.dice.one_in(12) {
            let node = NodeId(self.dice.roll(self.books.cluster.node_count() as u64) as u32);
            let open = self.books.node_status(node).is_open();
            self.set_node(node, if open { Availability::Drained } else { Availability::Open });
        }
    }

    /// When nothing more would happen, nodes come back and budgets no longer bind: now everyone must get through.
    fn calm_down(&mut self) -> Option<Time> {
        if !std::mem::take(&mut self.unrest) {
            return None;
        }
        self.budgets = Budgets::none();
        let nodes: Vec<NodeId> = self.books.cluster.nodes().map(|(id, _)| id).collect();
        nodes.into_iter().for_each(|node| self.set_node(node, Availability::Open));
        self.calmed = true;
        Some(self.now + Span::from_secs(1))
    }

    fn set_node(&mut self, node: NodeId, availability: Availability) {
        for id in self.books.set_status(node, NodeStatus { availability, ..NodeStatus::default() }) {
            self.stop(id);
        }
    }

    fn truths_for(&self, policy: &dyn Policy) -> Option<&[Arc<Truth>]> {
        (!policy.knows().is_empty()).then_some(self.truths.as_slice())
    }

    fn ask(&mut self, policy: &mut dyn Policy) -> Plan {
        let only: Vec<ClaimId> = std::mem::take(&mut self.changed).into_iter().collect();
        let changed = if std::mem::take(&mut self.first) { Changed::Everything } else { Changed::Only(&only) };
        let snapshot = Snapshot {
            now: self.now,
            books: &self.books,
            changed,
            budgets: &self.budgets,
            truths: self.truths_for(policy),
        };
        let plan = policy.plan(&snapshot);
        if self.check {
            let faults = check_everything(&plan, &snapshot);
            assert!(faults.is_empty(), "{faults:?} in {plan:#?}");
        }
        plan
    }

    /// What a policy that knows nothing of the past would plan.
    pub(crate) fn ask_fresh(&self, config: &PolicyConfig) -> Plan {
        let mut policy = build(config).unwrap();
        let snapshot = Snapshot {
            now: self.now,
            books: &self.books,
            changed: Changed::Everything,
            budgets: &self.budgets,
            truths: self.truths_for(&*policy),
        };
        policy.plan(&snapshot)
    }

    /// The same moment after a plan was agreed on, before anything was carried out.
    pub(crate) fn after(&self, plan: &Plan) -> Story {
        let mut story = self.clone();
        story.apply(plan, false);
        story
    }

    /// The changes of a plan, one line each.
    pub(crate) fn describe(&self, plan: &Plan) -> String {
        let line = |(id, allotment): &(ClaimId, Option<Arc<plan::Allotment>>)| {
            let place = |allotment: &Arc<plan::Allotment>| text::placement(&self.books.cluster, &allotment.placement);
            let target = self.books.claim(*id).target.as_ref().map_or("nothing".into(), place);
            format!("job {id}: {target} -> {}\n", allotment.as_ref().map_or("nothing".into(), place))
        };
        plan.changes.iter().map(line).collect()
    }

    fn apply(&mut self, plan: &Plan, carry_out: bool) {
        for (id, note) in &plan.notes {
            assert_ne!(self.books.claim(*id).note.reason, note.reason, "a note that is no news");
            self.books.note(*id, *note);
        }
        for (id, numbers) in &plan.memory {
            self.books.remember(*id, numbers.clone());
        }
        for (id, _) in &plan.changes {
            self.books.allot(*id, None);
        }
        for (id, allotment) in &plan.changes {
            self.books.allot(*id, allotment.clone());
        }
        for (id, _) in plan.changes.iter().filter(|_| carry_out) {
            self.stop(*id);
        }
        for (id, _) in plan.changes.iter().filter(|_| carry_out) {
            self.start(*id);
        }
    }

    fn stop(&mut self, id: ClaimId) {
        self.changed.insert(id);
        let claim = self.books.claim(id);
        let Phase::Running { holds, since } = &claim.phase else { return };
        let spent = self.now.since(*since).as_secs_f64();
        let rate = self.rate(id, holds);
        let done = claim.progress.done + (spent * rate) as u64;
        let end = self.end_of[id.0 as usize].take().expect("whoever runs has an end");
        self.ends.remove(&(end, id));
        self.books.progress_mut(id).done = done.min(self.truths[id.0 as usize].iterations - 1);
        self.books.charge(self.now, id, None);
        self.books.set_phase(id, Phase::Waiting);
    }

    fn start(&mut self, id: ClaimId) {
        let Some(target) = self.books.claim(id).target.clone() else { return };
        let left = self.truths[id.0 as usize].iterations - self.books.claim(id).progress.done;
        let lasts = Span::from_secs_f64(left as f64 / self.rate(id, &target)) + Span::from_millis(1);
        self.ends.insert((self.now + lasts, id));
        self.end_of[id.0 as usize] = Some(self.now + lasts);
        self.books.charge(self.now, id, Some(target.placement.gpus()));
        let progress = self.books.progress_mut(id);
        progress.launches += 1;
        progress.last_launch = Some(self.now);
        self.books.set_phase(id, Phase::Running { holds: target, since: self.now });
    }

    fn rate(&self, id: ClaimId, held: &plan::Allotment) -> f64 {
        let claim = self.books.claim(id);
        let situation = Situation::placed(&claim.spec, &held.placement, held.batch, &self.books.cluster);
        self.truths[id.0 as usize].speed.rate(&situation).expect("nobody is placed where it cannot run")
    }
}
