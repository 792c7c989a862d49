//! What holds for every policy of the table, on random small histories.

use std::collections::BTreeMap;
use std::sync::Arc;

use cluster::{
    BatchRange, Bytes, ClaimId, ClusterDraft, Count, Grain, JobDraft, MigProfile, NodeId, Placement, QueueDraft,
    QueueId, Recovery, Role, Scaling, Slice, Slot, Span, Time, Weight, WorkerRange,
};
use engine::{Command, Engine, Event, Input, Record, Request, Settings, State, budgets};
use perf::{Interference, Rates, ScalingLaw, Speed, TrueJob, Truth};
use plan::{Books, Changed, Phase, Plan, Policy, Rhythm, Safeguards, Snapshot, Turns};
use policies::{POLICIES, PolicyConfig};
use proptest::prelude::*;
use report::Fold;
use sim::{Setup, simulate};
use world::{Circumstances, Faults, Occurrence, Script, World};

/// Every policy with its defaults, and the variants worth covering besides.
fn table() -> Vec<PolicyConfig> {
    let variants = [
        ("fifo", vec!["backfill=easy"]),
        ("fifo", vec!["backfill=conservative"]),
        ("fifo", vec!["backfill=easy", "estimates=oracle"]),
        ("srtf", vec!["knowledge=estimate"]),
        ("srsf", vec!["knowledge=estimate"]),
        ("tiresias", vec!["promote=2", "thresholds=60,600"]),
        ("gittins", vec!["discrete=false", "delta=600"]),
        ("pollux", vec!["p=1", "seed=7"]),
        ("pollux-tiresias", vec!["threshold=300"]),
        ("composed", vec!["order=deadline", "preempt=true", "place=scatter"]),
        ("composed", vec!["order=fair", "preempt=false", "backfill=easy", "place=spread"]),
        ("composed", vec!["order=attained", "preempt=true", "grant=grow", "round=1m"]),
    ];
    let defaults = POLICIES.iter().map(|entry| PolicyConfig::named(entry.name));
    let variants = variants.iter().map(|(name, pairs)| PolicyConfig::from_pairs(name, pairs).unwrap());
    defaults.chain(variants).collect()
}

/// A small generator of its own: what proptest draws is one number, so that a failing case is one number too.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.roll(100) < percent
    }
}

fn draft(dice: &mut Dice) -> ClusterDraft {
    let clusters = ["4x4 t4", "2x4 t4, 2x8 a100", "1x8 a100, 3x2 t4", "6x2 v100", "3x4 a100"];
    let mut draft = ClusterDraft::parse_short(clusters[dice.roll(5) as usize]).unwrap();
    for (index, group) in draft.nodes.iter_mut().enumerate() {
        group.rack = format!("rack{index}");
        group.network_gbps = 10.0;
    }
    draft.uplinks.rack_oversubscription = 2.0;
    if dice.chance(50) {
        let lends = dice.chance(70);
        draft.queues = vec![
            QueueDraft { guarantee: 4.0, lends, weight: 2.0, ..QueueDraft::named("a") },
            QueueDraft { limit: Some(8.0), ..QueueDraft::named("b") },
        ];
    }
    draft
}

fn job(dice: &mut Dice, index: u64, queues: bool) -> (JobDraft, Truth) {
    let workers = [1, 1, 1, 2, 2, 4, 8][dice.roll(7) as usize];
    let range = WorkerRange { min: workers.min(2), max: 2 * workers };
    let mut draft = JobDraft::rigid(["bert", "resnet", "gpt"][dice.roll(3) as usize], workers);
    match dice.roll(10) {
        0 | 1 => draft.scaling = Scaling::Elastic(range),
        2 => draft.scaling = Scaling::Adaptive(range, BatchRange { initial: 64, max: 512 }),
        3 => {
            let memory = Bytes::gib(4);
            let grain = Grain::Share { thousandths: 300, memory };
            draft.scaling = Scaling::Rigid(1);
            draft.roles[0].slice = Some(Slice { grain, count: 1, memory });
        }
        4 => {
            draft.scaling = Scaling::Rigid(1);
            draft.roles[0].slice = Some(Slice { grain: Grain::Mig(MigProfile::G2), count: 1, memory: Bytes::ZERO });
        }
        5 => {
            let (count, slice) = (Count::OnePer(2), None);
            draft.roles.push(Role { name: "server".into(), count, slice, millicores: 2000, memory: Bytes::gib(1) });
        }
        _ => {}
    }
    draft.roles[0].millicores = 1000 * dice.roll(4) as u32;
    draft.user = ["ann", "bob", "eve"][dice.roll(3) as usize].into();
    draft.queue = QueueId(if queues { 1 + dice.roll(2) as u16 } else { 0 });
    draft.priority = dice.roll(3) as i32;
    draft.weight = Weight::from_thousandths(500 * (1 + dice.roll(3) as u32)).unwrap();
    draft.skew = dice.chance(50).then(|| 1000.min(dice.roll(1200) as u16));
    draft.expected = dice.chance(70).then(|| Span::from_secs(1 + dice.roll(2000)));
    draft.deadline = dice.chance(30).then(|| Time::from_secs(dice.roll(5000)));
    draft.recovery = Recovery {
        checkpoint_every: dice.chance(50).then(|| Span::from_secs(30)),
        checkpoint_cost: Span::from_secs(dice.roll(5)),
        restart_cost: Span::from_secs(dice.roll(20)),
        retries: 50,
    };
    draft.interruptible = dice.chance(85);
    if index > 0 && dice.chance(15) {
        draft.after = vec![ClaimId(dice.roll(index) as u32)];
    }
    let rates = Rates::Anywhere(0.5 + dice.roll(4) as f64);
    let scaling = ScalingLaw::Power(0.8);
    let speed =
        Speed { rates, scaling, gradients: Bytes::mib(dice.roll(200)), noise_scale: Some(300.0), adaptation: None };
    let truth = Truth {
        speed,
        iterations: 1 + dice.roll(1500),
        start_up: Span::from_secs(dice.roll(10)),
        course: None,
        resize: None,
    };
    (draft, truth)
}

fn setup(seed: u64, jobs: u64) -> Setup {
    let mut dice = Dice(seed ^ 0x9e37_79b9_7f4a_7c15);
    let draft = draft(&mut dice);
    let (cluster, queues) = draft.build().unwrap();
    let mut at = 0;
    let jobs = (0..jobs).map(|index| {
        at += if dice.chance(30) { 0 } else { dice.roll(200_000) };
        let (draft, truth) = job(&mut dice, index, queues.len() > 1);
        let speed = Arc::new(truth.speed.clone());
        let spec = Arc::new(draft.build().unwrap());
        TrueJob { submitted: Time::from_millis(at), spec, speed, truth: Arc::new(truth) }
    });
    let jobs: Vec<TrueJob> = jobs.collect();
    let mut circumstances = Circumstances { seed, ..Circumstances::default() };
    if dice.chance(50) {
        circumstances.faults = Faults {
            node_mtbf_s: Some(4000.0),
            node_repair_s: 300.0,
            gpu_mtbf_s: Some(20_000.0),
            gpu_repair_s: 200.0,
            crash_mtbf_s: Some(3000.0),
            start_hangs: 0.02,
        };
    }
    if dice.chance(30) {
        circumstances.interference = Interference { same_gpu: 0.3, same_node: 0.1 };
    }
    if dice.chance(30) {
        let script = Script::default().then(Time::from_secs(100), Occurrence::Drain(NodeId(0)));
        let script = script.then(Time::from_secs(900), Occurrence::Reopen(NodeId(0)));
        circumstances.script =
            script.then(Time::from_secs(150), Occurrence::Cancel(dice.roll(jobs.len() as u64) as u32));
    }
    let settings = Settings { whole_checks: true, ..Settings::default() };
    Setup { cluster, queues, jobs, circumstances, settings }
}

/// The same, but some jobs can change their workers in place, some of them slowly, and most worlds let them.
fn resizable_setup(seed: u64, jobs: u64) -> Setup {
    let mut dice = Dice(seed ^ 0x5851_f42d_4c95_7f2d);
    let mut setup = setup(seed, jobs);
    for job in &mut setup.jobs {
        if dice.chance(75) {
            let resize = Some(Span::from_millis(dice.roll(12_000)));
            let iterations = 5 * job.truth.iterations;
            job.truth = Arc::new(Truth { resize, iterations, ..(*job.truth).clone() });
        }
        if dice.chance(70) && job.spec.roles.len() == 1 {
            let scaling = Scaling::Elastic(WorkerRange { min: 1, max: 8 });
            job.spec = Arc::new(JobDraft { scaling, ..(**job.spec).clone() }.build().unwrap());
        }
    }
    let within = Some(Span::from_secs(10));
    setup.circumstances.resize_within = within.filter(|_| dice.chance(85));
    setup.circumstances.report_every = Span::from_secs(10);
    setup.settings.resize_within = within;
    setup
}

/// The same with all safeguards around the policy, and little patience.
fn guarded(setup: Setup) -> Setup {
    let safeguards = Safeguards { reserve_after: Some(Span::from_minutes(2)), ..Safeguards::ALL };
    Setup { settings: Settings { safeguards, ..setup.settings }, ..setup }
}

/// Follows a history and makes sure that nobody has a device that is another's: added up from orders and reports alone.
#[derive(Default)]
struct Devices {
    held: BTreeMap<ClaimId, (Placement, Option<Placement>)>,
    resized: u64,
    refused: u64,
}

impl Devices {
    fn observe(&mut self, event: &Event) {
        match event {
            Event::Issued(Command::Launch { run, allotment, .. }) => {
                self.assert_free(run.claim, &allotment.placement);
                self.held.insert(run.claim, (allotment.placement.clone(), None));
            }
            Event::Issued(Command::Resize { run, allotment, .. }) => {
                self.assert_free(run.claim, &allotment.placement);
                let (_, to) = self.held.get_mut(&run.claim).expect("who resizes holds something");
                assert_eq!(to.replace(allotment.placement.clone()), None, "one change after the other");
            }
            Event::RunResized { run } => {
                let (held, to) = self.held.get_mut(&run.claim).unwrap();
                *held = to.take().unwrap();
                self.resized += 1;
            }
            Event::RunNotResized { run } => {
                self.held.get_mut(&run.claim).unwrap().1 = None;
                self.refused += 1;
            }
            Event::RunStopped { run, .. } | Event::RunFinished { run } | Event::RunFailed { run, .. } => {
                self.held.remove(&run.claim);
            }
            _ => {}
        }
    }

    fn assert_free(&self, claim: ClaimId, placement: &Placement) {
        let others = self.held.iter().filter(|(other, _)| **other != claim);
        let others = others.flat_map(|(_, (held, to))| held.slots().iter().chain(to.iter().flat_map(Placement::slots)));
        for taken in others {
            let overlaps = |slot: &&Slot| slot.node == taken.node && slot.slices.devices.overlaps(taken.slices.devices);
            let whole = |slot: &&Slot| slot.slices.grain == Grain::Whole || taken.slices.grain == Grain::Whole;
            let twice = placement.slots().iter().filter(overlaps).find(whole);
            assert_eq!(twice, None, "job {claim} is given what is another's");
        }
    }
}

/// The final state and the journal, after making sure that no plan was refused.
fn play(setup: &Setup, config: &PolicyConfig) -> (State, Vec<Record>) {
    play_with(setup, config, config.build().unwrap())
}

fn play_with(setup: &Setup, config: &PolicyConfig, policy: Box<dyn Policy>) -> (State, Vec<Record>) {
    let mut journal = Vec::new();
    let state = simulate(setup, &config.label(), policy, |at, event| {
        assert!(journal.len() < 200_000, "{} at {at}: the history does not end", config.label());
        journal.push(Record { at, event: event.clone() });
    });
    for record in &journal {
        if let Event::PlanRefused { why } = &record.event {
            panic!("{} at {}: {why}", config.label(), record.at);
        }
    }
    (state.unwrap(), journal)
}

/// Asks a policy, and beside it a fresh one: losing what it keeps to itself must not change the plan. For stable
/// policies, asking again once the plan is in the books must change nothing.
struct Examined {
    policy: Box<dyn Policy>,
    config: PolicyConfig,
}

impl Policy for Examined {
    fn plan(&mut self, snapshot: &Snapshot<'_>) -> Plan {
        let plan = self.policy.plan(snapshot);
        let anew = Snapshot { changed: Changed::Everything, ..*snapshot };
        let label = self.config.label();
        let fresh = self.config.build().unwrap().plan(&anew);
        assert_eq!(plan.changes, fresh.changes, "{label} at {}: a fresh policy plans the same", snapshot.now);
        assert_eq!(plan.wake_at, fresh.wake_at, "{label} at {}: a fresh policy wakes at the same time", snapshot.now);
        let mut books: Books = snapshot.books.clone();
        apply(&mut books, &plan);
        let budgets = budgets(&books);
        let after = Snapshot { books: &books, budgets: &budgets, ..anew };
        let again = self.config.build().unwrap().plan(&after);
        if self.policy.is_stable() {
            assert_eq!(again.changes, [], "{label} at {}: planning again changes nothing", snapshot.now);
        }
        plan
    }

    fn turns(&mut self, snapshot: &Snapshot<'_>) -> Turns {
        let turns = self.policy.turns(snapshot);
        let anew = Snapshot { changed: Changed::Everything, ..*snapshot };
        let fresh = self.config.build().unwrap().turns(&anew);
        assert_eq!(turns, fresh, "{} at {}: a fresh policy has the same order", self.config.label(), snapshot.now);
        turns
    }

    fn rhythm(&self) -> Rhythm {
        self.policy.rhythm()
    }

    fn is_stable(&self) -> bool {
        self.policy.is_stable()
    }

    fn knows(&self) -> &'static [plan::Knowledge] {
        self.policy.knows()
    }
}

fn apply(books: &mut Books, plan: &Plan) {
    plan.changes.iter().for_each(|(id, _)| books.allot(*id, None));
    plan.changes.iter().for_each(|(id, target)| books.allot(*id, target.clone()));
    plan.notes.iter().for_each(|(id, note)| books.note(*id, *note));
    plan.memory.iter().for_each(|(id, numbers)| books.remember(*id, numbers.clone()));
}

/// When and how each claim ended.
fn ends(state: &State) -> Vec<Phase> {
    state.books().claims().iter().map(|claim| claim.phase.clone()).collect()
}

/// The same history, but the engine dies after `cut` facts were journaled and a new one takes over.
fn play_with_death(setup: &Setup, config: &PolicyConfig, cut: usize) -> (State, usize) {
    let mut world = World::new(setup.cluster.clone(), setup.jobs.clone(), &setup.circumstances).unwrap();
    let policy = config.build().unwrap();
    let oracle = !policy.knows().is_empty();
    let (cluster, queues) = (setup.cluster.clone(), setup.queues.clone());
    let (mut engine, beginning) = Engine::new(cluster, queues, &config.label(), policy, setup.settings);
    let mut journal: Vec<Record> = beginning.into_iter().map(|event| Record { at: Time::ZERO, event }).collect();
    let reveal = |engine: &mut Engine, world: &World| {
        if oracle {
            engine.reveal(world.truths());
        }
    };
    reveal(&mut engine, &world);
    let mut dead = false;
    while let Some((now, mut batch)) = world.next(engine.next_wakeup()) {
        let mut events = engine.handle(now, batch.clone()).events;
        if !dead && journal.len() + events.len() > cut {
            dead = true;
            // What was journaled is a fact, and what was issued in it may or may not have been done: it is done now.
            let survives = cut.saturating_sub(journal.len());
            for event in &events[..survives] {
                journal.push(Record { at: now, event: event.clone() });
                if let Event::Issued(command) = event {
                    world.carry_out(now, command);
                }
            }
            let submitted = |event: &&Event| matches!(event, Event::ClaimSubmitted { .. } | Event::ClaimRefused { .. });
            let mut known = events[..survives].iter().filter(submitted).count();
            batch.retain(|input| match input {
                Input::Request(Request::Submit { .. }) if known > 0 => {
                    known -= 1;
                    false
                }
                _ => true,
            });
            engine = Engine::resume(State::replay(&journal), config.build().unwrap(), setup.settings);
            reveal(&mut engine, &world);
            events = engine.handle(now, batch).events;
        }
        for event in &events {
            journal.push(Record { at: now, event: event.clone() });
            if let Event::Issued(command) = event {
                world.carry_out(now, command);
            }
        }
        if world.all_submitted() && engine.state().books().claims().live_count() == 0 {
            break;
        }
    }
    (engine.into_state(), journal.len())
}

/// The same history, but what has ended is forgotten as soon as may be: the policy has heard of it, and nobody depends
/// on it who comes later.
fn play_forgetting(setup: &Setup, config: &PolicyConfig) -> (Vec<Record>, u64) {
    let mut world = World::new(setup.cluster.clone(), setup.jobs.clone(), &setup.circumstances).unwrap();
    let policy = config.build().unwrap();
    let oracle = !policy.knows().is_empty();
    let (cluster, queues) = (setup.cluster.clone(), setup.queues.clone());
    let (mut engine, beginning) = Engine::new(cluster, queues, &config.label(), policy, setup.settings);
    let mut journal: Vec<Record> = beginning.into_iter().map(|event| Record { at: Time::ZERO, event }).collect();
    if oracle {
        engine.reveal(world.truths());
    }
    let needed: Vec<ClaimId> = setup.jobs.iter().flat_map(|job| job.spec.after.iter().copied()).collect();
    let mut forgotten = 0;
    while let Some((now, batch)) = world.next(engine.next_wakeup()) {
        for event in engine.handle(now, batch).events {
            if let Event::Issued(command) = &event {
                world.carry_out(now, command);
            }
            journal.push(Record { at: now, event });
        }
        let state = engine.state();
        let may_go = |id: &ClaimId| !needed.contains(id) && !state.changed().contains(id);
        let ended = state.books().claims().iter().filter(|claim| !claim.is_live()).map(|claim| claim.id);
        let ended: Vec<ClaimId> = ended.filter(may_go).collect();
        if !ended.is_empty() {
            forgotten += ended.len() as u64;
            engine.forget(now, ended);
        }
        if world.all_submitted() && engine.state().books().claims().live_count() == 0 {
            break;
        }
    }
    (journal, forgotten)
}

fn forgetting_changes_nothing(seed: u64, jobs: u64) {
    let setup = resizable_setup(seed, jobs);
    for config in table() {
        let (_, journal) = play(&setup, &config);
        let (again, forgotten) = play_forgetting(&setup, &config);
        assert!(forgotten > 0, "{}: there was something to forget", config.label());
        assert_eq!(again, journal, "{} decides the same", config.label());
    }
}

fn safeguards_hold(seed: u64, jobs: u64) {
    for setup in [guarded(setup(seed, jobs)), guarded(resizable_setup(seed, jobs))] {
        for config in table() {
            let examined = Examined { policy: config.build().unwrap(), config: config.clone() };
            let (state, journal) = play_with(&setup, &config, Box::new(examined));
            let mut devices = Devices::default();
            journal.iter().for_each(|record| devices.observe(&record.event));
            assert_eq!(state.books().claims().live_count(), 0, "{}: every job ends", config.label());
            assert_eq!(State::replay(&journal), state, "{}: a replay gives the same state", config.label());
        }
    }
}

fn a_kill_changes_no_guarded_end(seed: u64, jobs: u64, cut: u16) {
    let setup = guarded(resizable_setup(seed, jobs));
    for config in table() {
        let (state, journal) = play(&setup, &config);
        let cut = 3 + usize::from(cut) % (journal.len() - 3);
        let (survived, _) = play_with_death(&setup, &config, cut);
        assert_eq!(ends(&survived), ends(&state), "{} killed after {} facts", config.label(), cut);
    }
}

fn cases() -> u32 {
    let asked = std::env::var("MOIRA_PROPERTY_CASES").ok();
    asked.map_or(12, |cases| cases.parse().expect("MOIRA_PROPERTY_CASES is a number"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn histories_are_deterministic_and_every_job_ends(seed in any::<u64>(), jobs in 5_u64..40) {
        let setup = setup(seed, jobs);
        for config in table() {
            let (state, journal) = play(&setup, &config);
            let again = play(&setup, &config);
            prop_assert_eq!(&journal, &again.1, "{} is deterministic", config.label());
            prop_assert_eq!(state.books().claims().live_count(), 0, "{}: every job ends", config.label());
            prop_assert_eq!(State::replay(&journal), state, "{}: a replay gives the same state", config.label());
        }
    }

    #[test]
    fn a_fresh_policy_plans_the_same_and_stable_ones_change_nothing_when_asked_again(
        seed in any::<u64>(),
        jobs in 5_u64..30,
    ) {
        let setup = setup(seed, jobs);
        for config in table() {
            let examined = Examined { policy: config.build().unwrap(), config: config.clone() };
            play_with(&setup, &config, Box::new(examined));
        }
    }

    #[test]
    fn jobs_that_resize_in_place_end_and_never_have_what_is_anothers(seed in any::<u64>(), jobs in 5_u64..40) {
        let setup = resizable_setup(seed, jobs);
        for config in table() {
            let (state, journal) = play(&setup, &config);
            let mut devices = Devices::default();
            journal.iter().for_each(|record| devices.observe(&record.event));
            prop_assert_eq!(state.books().claims().live_count(), 0, "{}: every job ends", config.label());
            prop_assert_eq!(&State::replay(&journal), &state, "{}: a replay gives the same state", config.label());
            let mut fold = Fold::new();
            journal.iter().for_each(|record| fold.observe(record.at, &record.event));
            let attained = state.books().claims().iter().map(|claim| claim.attained(state.now()));
            let told: Vec<_> = fold.jobs().map(|job| job.held).collect();
            prop_assert_eq!(told, attained.collect::<Vec<_>>(), "{}: both charge the same", config.label());
        }
    }

    #[test]
    fn an_engine_killed_while_jobs_resize_continues_to_the_same_end(seed in any::<u64>(), jobs in 5_u64..20, cut in any::<u16>()) {
        let setup = resizable_setup(seed, jobs);
        for config in table() {
            let (state, journal) = play(&setup, &config);
            let cut = 2 + usize::from(cut) % (journal.len() - 2);
            let (survived, _) = play_with_death(&setup, &config, cut);
            prop_assert_eq!(ends(&survived), ends(&state), "{} killed after {} facts", config.label(), cut);
        }
    }

    #[test]
    fn forgetting_what_has_ended_changes_no_decision(seed in any::<u64>(), jobs in 5_u64..30) {
        forgetting_changes_nothing(seed, jobs);
    }

    #[test]
    fn with_safeguards_jobs_end_and_never_have_what_is_anothers(seed in any::<u64>(), jobs in 5_u64..40) {
        safeguards_hold(seed, jobs);
    }

    #[test]
    fn with_safeguards_an_engine_killed_at_any_fact_continues_to_the_same_end(seed in any::<u64>(), jobs in 5_u64..20, cut in any::<u16>()) {
        a_kill_changes_no_guarded_end(seed, jobs, cut);
    }

    #[test]
    fn a_bigger_cluster_never_breaks_a_plan(seed in any::<u64>(), jobs in 5_u64..30, more in 1_u64..20) {
        let mut setup = setup(seed, jobs);
        let kind = setup.cluster.kinds().next().unwrap().1.name.to_string();
        let extra = cluster::NodeDraft { name: "more".into(), count: more as i64 + 1, kind: Some(kind), gpus: 8, ..Default::default() };
        setup.cluster.add(&extra, &[]).unwrap();
        for config in table() {
            play(&setup, &config);
        }
    }

    #[test]
    fn an_engine_killed_at_any_fact_continues_to_the_same_end(seed in any::<u64>(), jobs in 5_u64..25, cuts in any::<[u16; 3]>()) {
        let setup = setup(seed, jobs);
        for config in table() {
            let (state, journal) = play(&setup, &config);
            for cut in cuts {
                let cut = 2 + usize::from(cut) % (journal.len() - 2);
                let (survived, _) = play_with_death(&setup, &config, cut);
                prop_assert_eq!(ends(&survived), ends(&state), "{} killed after {} facts", config.label(), cut);
            }
        }
    }
}

#[test]
fn a_journal_survives_the_way_through_json() {
    let setup = setup(7, 20);
    let (state, journal) = play(&setup, &PolicyConfig::named("tiresias"));
    let lines: Vec<String> = journal.iter().map(|record| serde_json::to_string(record).unwrap()).collect();
    let read: Vec<Record> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(State::replay(&read), state);
    let image = serde_json::to_string(&state).unwrap();
    assert_eq!(serde_json::from_str::<State>(&image).unwrap(), state, "so does what was the case at its end");
}

#[test]
fn in_the_histories_of_these_tests_jobs_do_resize_and_some_are_refused() {
    let mut seen = Devices::default();
    for (seed, policy) in (0..4).flat_map(|seed| ["sia", "pollux", "pollux-optimus"].map(|policy| (seed, policy))) {
        let (_, journal) = play(&resizable_setup(seed, 25), &PolicyConfig::named(policy));
        let mut devices = Devices { held: BTreeMap::new(), ..seen };
        journal.iter().for_each(|record| devices.observe(&record.event));
        seen = devices;
    }
    assert!(seen.resized > 100 && seen.refused > 5, "{} resized, {} refused", seen.resized, seen.refused);
}

#[test]
fn facts_written_before_runs_could_be_resized_are_still_read() {
    let report = r#"{"at":0,"event":{"RunProgressed":{"run":{"claim":0,"attempt":1},
        "report":{"done":7,"epoch":1,"steps":null,"noise":null}}}}"#;
    let Event::RunProgressed { report, .. } = serde_json::from_str::<Record>(report).unwrap().event else { panic!() };
    assert_eq!((report.done, report.resizable, report.interruption), (7, false, None));
    let (state, _) = play(&setup(7, 20), &PolicyConfig::named("tiresias"));
    let mut image = serde_json::to_value(&state).unwrap();
    let fields = ["resizable", "resize_failed", "stays_whole", "resizing", "resizes", "resize_deadlines"];
    for field in fields.into_iter().chain(["restart", "resize"]) {
        assert!(remove(&mut image, field) > 0, "{field} is in an image of today");
    }
    assert_eq!(serde_json::from_value::<State>(image).unwrap(), state);
}

/// Takes a field out of everything. How often it was there.
fn remove(value: &mut serde_json::Value, field: &str) -> usize {
    match value {
        serde_json::Value::Object(fields) => {
            usize::from(fields.remove(field).is_some())
                + fields.values_mut().map(|value| remove(value, field)).sum::<usize>()
        }
        serde_json::Value::Array(values) => values.iter_mut().map(|value| remove(value, field)).sum(),
        _ => 0,
    }
}

/// Found by the long hunts: a job is cancelled while it waits for another, and forgotten before the other ends.
#[test]
fn a_job_that_was_forgotten_is_not_missed_when_what_it_waited_for_ends() {
    forgetting_changes_nothing(14_104_640_523_262_512_111, 11);
}

/// Found by the long hunts: what an elastic job gives to a gang in the next round is not free before.
#[test]
fn nobody_starts_at_once_on_what_a_job_has_yet_to_give() {
    safeguards_hold(2_358_652_555_553_963_394, 28);
}

/// Found by the long hunts: a job was submitted, and the kill came before it could start at once.
#[test]
fn a_job_that_was_to_start_at_once_does_so_after_a_kill() {
    a_kill_changes_no_guarded_end(11_302_532_034_648_150_594, 19, 57_801);
}
