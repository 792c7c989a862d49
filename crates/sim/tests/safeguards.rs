//! What users count on whichever policy decides: a policy, a few jobs, and who holds how many devices when.

use std::sync::Arc;

use cluster::{
    ClaimId, ClusterDraft, Gpus, JobDraft, QueueDraft, QueueId, Recovery, Run, Scaling, Span, Time, WorkerRange,
};
use engine::{Command, Engine, Event, Input, Record, Request, Settings, State};
use perf::{ScalingLaw, Speed, TrueJob, Truth};
use plan::{Claim, Reason, Safeguards};
use policies::PolicyConfig;
use sim::{Setup, simulate};

/// What a service uses unless it is told otherwise.
const DEFAULT: &str = "sia:explore=1.3,others=tiresias,round=1s";
/// Policies with and without rounds, with and without preemption.
const POLICIES: [&str; 5] = [DEFAULT, "fifo", "las:round=10s", "tiresias", "composed:grant=grow"];

struct History {
    draft: ClusterDraft,
    jobs: Vec<TrueJob>,
    safeguards: Safeguards,
}

impl History {
    fn on(cluster: &str, safeguards: &str) -> History {
        let draft = ClusterDraft::parse_short(cluster).unwrap();
        History { draft, jobs: Vec::new(), safeguards: safeguards.parse().unwrap() }
    }

    /// Queues with so many GPUs guaranteed to each.
    fn queues(mut self, queues: &[(&str, f64)]) -> History {
        let queue = |&(name, guarantee): &(&str, f64)| QueueDraft { guarantee, ..QueueDraft::named(name) };
        self.draft.queues = queues.iter().map(queue).collect();
        self
    }

    /// A job that takes so long on one GPU, or as the gang it is.
    fn job(mut self, at: u64, draft: JobDraft, takes: u64) -> History {
        let truth = Truth::lasting(Span::from_secs(takes));
        let scaling = match draft.scaling {
            Scaling::Rigid(_) => truth.speed.scaling.clone(),
            Scaling::Elastic(_) | Scaling::Adaptive(..) => ScalingLaw::Power(0.9),
        };
        let speed = Speed { scaling, ..truth.speed.clone() };
        let truth = Truth { speed: speed.clone(), ..truth };
        let (spec, speed) = (Arc::new(draft.build().unwrap()), Arc::new(speed));
        self.jobs.push(TrueJob { submitted: Time::from_secs(at), spec, speed, truth: Arc::new(truth) });
        self
    }

    fn under(&self, policy: &str) -> Told {
        let (cluster, queues) = self.draft.build().unwrap();
        let settings = Settings { whole_checks: true, safeguards: self.safeguards, ..Settings::default() };
        let setup = Setup { settings, ..Setup::new(cluster, queues, self.jobs.clone()) };
        let config = PolicyConfig::from_text(policy).unwrap();
        let mut records = Vec::new();
        simulate(&setup, policy, config.build().unwrap(), |at, event| {
            assert!(!matches!(event, Event::PlanRefused { .. }), "{policy}: {event:?}");
            records.push(Record { at, event: event.clone() });
        })
        .unwrap();
        Told { records }
    }
}

/// What happened.
struct Told {
    records: Vec<Record>,
}

impl Told {
    fn at(&self, secs: u64) -> State {
        State::replay(self.records.iter().take_while(|record| record.at <= Time::from_secs(secs)))
    }

    /// The GPUs that each job is meant to hold after so many seconds.
    fn given(&self, secs: u64) -> Vec<u32> {
        let state = self.at(secs);
        let gpus = |target: &Arc<plan::Allotment>| target.placement.gpus().as_f64() as u32;
        state.books().claims().iter().map(|claim| claim.target.as_ref().map_or(0, gpus)).collect()
    }

    fn reason(&self, secs: u64, claim: u32) -> Reason {
        self.at(secs).books().claim(ClaimId(claim)).note.reason
    }

    fn commands_between(&self, from: u64, to: u64) -> Vec<&Command> {
        let window =
            self.records.iter().filter(|record| (Time::from_secs(from)..=Time::from_secs(to)).contains(&record.at));
        window
            .filter_map(|record| if let Event::Issued(command) = &record.event { Some(command) } else { None })
            .collect()
    }

    /// When a job was first told to start, in milliseconds.
    fn launched(&self, claim: u32) -> Option<u64> {
        self.records.iter().find_map(|record| match &record.event {
            Event::Issued(Command::Launch { run, .. }) if run.claim == ClaimId(claim) => Some(record.at.as_millis()),
            _ => None,
        })
    }
}

fn elastic(min: u32, max: u32) -> JobDraft {
    JobDraft { scaling: Scaling::Elastic(WorkerRange { min, max }), ..JobDraft::rigid("elastic", 1) }
}

fn rigid(workers: u32) -> JobDraft {
    JobDraft::rigid("rigid", workers)
}

fn in_queue(queue: u16, draft: JobDraft) -> JobDraft {
    JobDraft { queue: QueueId(queue), ..draft }
}

/// One that says nothing of how it goes on after a stop.
fn plain(draft: JobDraft) -> JobDraft {
    JobDraft { interruptible: false, recovery: Recovery { retries: 3, ..Recovery::default() }, ..draft }
}

#[test]
fn two_elastic_jobs_share_two_devices_and_stay_so() {
    let history = |safeguards| History::on("1x2", safeguards).job(0, elastic(1, 2), 3000).job(5, elastic(1, 2), 3000);
    let alone = history("none").under(DEFAULT);
    assert_eq!(alone.given(20), [2, 0], "as published, a second GPU for one is worth more than a first for another");
    for policy in POLICIES {
        let told = history("minimum-first").under(policy);
        assert_eq!(told.given(30), [1, 1], "{policy}");
        assert_eq!(told.given(900), [1, 1], "{policy}");
        assert!(told.commands_between(31, 900).is_empty(), "{policy}: nobody is moved or restarted after that");
    }
    let told = history("minimum-first").under(DEFAULT);
    assert_eq!(told.reason(20, 0), Reason::MinimumFirst);
    assert_eq!(told.reason(20, 1), Reason::MinimumFirst);
}

#[test]
fn after_every_round_nobody_has_more_than_its_minimum_while_another_waits() {
    for seed in 0..12_u64 {
        let mut history = History::on("2x4", "minimum-first");
        let mut at = 0;
        for index in 0..20 {
            let drawn = (seed * 31 + index * 17) % 97;
            at += drawn % 60;
            history = history.job(at, elastic(1, 1 + (drawn % 8) as u32), 60 + 11 * drawn);
        }
        for policy in [DEFAULT, "composed:grant=grow", "pollux:round=30s"] {
            let mut state = State::default();
            for record in history.under(policy).records {
                state.apply(record.at, &record.event);
                let claims = || state.books().claims().live();
                let beyond = claims().filter_map(|claim| claim.target.as_ref()).any(|it| it.placement.tasks_of(0) > 1);
                let waits = claims().find(|claim| claim.is_waiting());
                let found = waits.filter(|_| beyond && matches!(record.event, Event::Planned(_))).map(|claim| claim.id);
                assert_eq!(found, None, "{policy}, seed {seed}, at {}", record.at);
            }
        }
    }
}

/// Jobs of one to four GPUs at least in two queues; every other one may have more, every third says how long it takes.
fn drawn(seed: u64) -> History {
    let mut history = History::on("2x4", "minimum-first,guarantees,reservations=1m,at-once");
    history = history.queues(&[("a", 5.0), ("b", 3.0)]);
    let mut at = 0;
    for index in 0..24 {
        let drawn = (seed * 31 + index * 17) % 97;
        at += drawn % 70;
        let (min, takes) = (1 + (drawn % 4) as u32, 120 + 11 * drawn);
        let draft = if index % 2 == 0 { rigid(min) } else { elastic(min, min + (drawn % 5) as u32) };
        let expected = drawn.is_multiple_of(3).then(|| Span::from_secs(takes));
        let draft = JobDraft { expected, priority: (drawn % 7 / 5) as i32, ..draft };
        history = history.job(at, in_queue(1 + (drawn % 2) as u16, draft), takes);
    }
    history
}

/// A job that waits while others have more than their minimum, although it would fit if all of them shrank to it, beside
/// what may be reserved for other jobs and within the budgets of its queues.
fn waits_for_its_minimum(state: &State) -> Option<ClaimId> {
    let books = state.books();
    let budgets = engine::budgets(books);
    let held = |claim: &Claim| claim.target.as_ref().map_or(0, |target| target.placement.tasks_of(0));
    let minimum = |claim: &Claim| claim.spec.scaling.min();
    let least = |claim: &Claim| held(claim).min(minimum(claim));
    let live: Vec<&Claim> = books.claims().live().collect();
    let used = |queue: QueueId| -> u32 {
        let below = live.iter().filter(|other| books.queues.ancestry(other.spec.queue).any(|it| it == queue));
        below.map(|other| least(other)).sum()
    };
    let free = books.room().free() + live.iter().map(|claim| held(claim) - least(claim)).sum::<u32>();
    let fits = |claim: &&&Claim| {
        let others = live.iter().filter(|other| other.id != claim.id && other.is_waiting());
        let reserved = others.filter(|other| other.note.reason == Reason::Reserved).map(|other| minimum(other));
        let needed = minimum(claim);
        let mut queues = books.queues.ancestry(claim.spec.queue);
        let is_admitted =
            queues.all(|queue| budgets.of(queue).is_none_or(|budget| Gpus::whole(used(queue) + needed) <= budget));
        is_admitted && free >= needed + reserved.sum::<u32>()
    };
    let is_surplus = live.iter().any(|claim| held(claim) > least(claim));
    live.iter().filter(|claim| is_surplus && claim.is_waiting()).find(fits).map(|claim| claim.id)
}

/// Looks at the state after every round under every live policy, and at the reasons that were noted in it.
fn after_each_round(history: &History, mut look: impl FnMut(&State, &[Reason], &str)) {
    for (policy, _) in live_policies() {
        let mut state = State::default();
        for record in history.under(policy).records {
            state.apply(record.at, &record.event);
            let Event::Planned(plan) = &record.event else { continue };
            let noted: Vec<Reason> = plan.notes.iter().map(|(_, note)| note.reason).collect();
            look(&state, &noted, &format!("{policy}, at {}", record.at));
        }
    }
}

#[test]
fn with_all_safeguards_nobody_waits_for_its_minimum_but_for_devices_that_are_reserved() {
    let (mut rounds, mut reserved) = (0, 0);
    for seed in 0..30_u64 {
        let history = drawn(seed);
        after_each_round(&history, |state, noted, case| {
            rounds += 1;
            reserved += noted.iter().filter(|reason| **reason == Reason::Reserved).count();
            assert_eq!(waits_for_its_minimum(state), None, "seed {seed}, {case}");
        });
    }
    assert!(rounds > 5000 && reserved > 500, "{rounds} rounds, {reserved} times something was reserved");
}

/// A job that waits although it would fit into what one of its queues is guaranteed. All GPUs of the machine are guaranteed
/// to somebody, at each level, any worker fits on any of them, and no queue is limited. So other queues have what is
/// missing beyond their guarantees, and as it was not started for good it can be taken back; but what may never be
/// stopped has to fit into the guarantees of all its queues beside others that may not. And where queues do not set jobs
/// apart, who has waited too long for several devices comes first.
fn waits_for_its_guarantee(state: &State) -> Option<ClaimId> {
    let books = state.books();
    let has = |claim: &Claim| claim.target.as_ref().map_or(0, |target| target.placement.tasks_of(0));
    let below = |claim: &Claim, queue: QueueId| books.queues.ancestry(claim.spec.queue).any(|it| it == queue);
    let used = |queue: QueueId, counts: &dyn Fn(&Claim) -> bool| -> u32 {
        books.claims().live().filter(|claim| below(claim, queue) && counts(claim)).map(has).sum()
    };
    let fits = |claim: &Claim, queue: QueueId, counts: &dyn Fn(&Claim) -> bool| {
        Gpus::whole(used(queue, counts) + claim.spec.scaling.min()) <= books.queues.queue(queue).guarantee
    };
    let is_entitled = |claim: &&Claim| {
        let queues = || books.queues.ancestry(claim.spec.queue).filter(|&queue| queue != QueueId::ROOT);
        let pins_fit = queues().all(|queue| fits(claim, queue, &|other| other.spec.pinned));
        (pins_fit || !claim.spec.pinned) && queues().any(|queue| fits(claim, queue, &|_| true))
    };
    // Whether the queue below those of the other is guaranteed what the one needs.
    let is_apart = |claim: &Claim, other: &Claim| {
        let queues = books.queues.ancestry(claim.spec.queue);
        let apart = queues.take_while(|&queue| !below(other, queue)).last();
        apart.is_some_and(|queue| fits(claim, queue, &|_| true))
    };
    let waiting = || books.claims().live().filter(|claim| claim.is_waiting());
    let gives_way = |claim: &Claim| {
        let mut gangs = waiting().filter(|gang| gang.id != claim.id && gang.note.reason == Reason::Reserved);
        gangs.any(|gang| !is_apart(claim, gang) || is_apart(gang, claim))
    };
    let mut waiting = waiting().filter(|claim| !gives_way(claim));
    waiting.find(is_entitled).map(|claim| claim.id)
}

#[test]
fn after_every_round_nobody_waits_for_what_its_queues_are_guaranteed() {
    let (mut rounds, mut reclaimed) = (0, 0);
    for seed in 0..40_u64 {
        let mut history = drawn(seed);
        if seed % 4 < 2 {
            history.safeguards.reserve_after = None;
        }
        if seed % 2 == 0 {
            history = history.queues(&[("lab", 5.0), ("firm", 3.0), ("x", 3.0), ("y", 2.0)]);
            history.draft.queues[2..].iter_mut().for_each(|queue| queue.parent = Some("lab".into()));
        }
        for (index, job) in history.jobs.iter_mut().enumerate() {
            let mut draft = (**job.spec).clone();
            if seed % 2 == 0 {
                draft.queue = QueueId(2 + (index * 7 % 3) as u16);
            }
            if index % 7 == 3 {
                draft = JobDraft { pinned: true, ..plain(draft) };
            }
            job.spec = Arc::new(draft.build().unwrap());
        }
        after_each_round(&history, |state, noted, case| {
            rounds += 1;
            reclaimed += noted.iter().filter(|reason| **reason == Reason::Reclaimed).count();
            assert_eq!(waits_for_its_guarantee(state), None, "seed {seed}, {case}");
        });
    }
    assert!(rounds > 5000 && reclaimed > 100, "{rounds} rounds, {reclaimed} times something was reclaimed");
}

#[test]
fn a_history_is_run_again_with_the_safeguards_that_it_had() {
    let safeguards = "minimum-first,guarantees,reservations=90s";
    let history = |safeguards| History::on("1x2", safeguards).job(0, elastic(1, 2), 60).job(5, elastic(1, 2), 60);
    let recording = |told: Told| sim::Recording::of(&told.records, &Default::default()).unwrap().safeguards.to_string();
    assert_eq!(recording(history(safeguards).under(DEFAULT)), safeguards);
    assert_eq!(recording(history("none").under(DEFAULT)), "none", "as in journals of before there were any");
}

#[test]
fn a_job_gives_up_no_more_than_the_others_need() {
    let history = History::on("1x4", "minimum-first").job(0, elastic(1, 4), 3000).job(5, rigid(1), 2000);
    let told = history.under(DEFAULT);
    assert_eq!(told.given(20), [3, 1], "one of four");
    let history = History::on("1x4", "minimum-first").job(0, elastic(2, 4), 3000).job(5, rigid(3), 2000);
    assert_eq!(
        history.under("composed:grant=grow").given(20),
        [4, 0],
        "with two left there is no room for three: nobody is shrunk"
    );
}

#[test]
fn a_job_that_must_not_be_interrupted_keeps_what_it_has() {
    let pinned = JobDraft { interruptible: false, ..elastic(1, 2) };
    let told = History::on("1x2", "minimum-first").job(0, pinned, 3000).job(5, elastic(1, 2), 3000).under(DEFAULT);
    assert_eq!(told.given(60), [2, 0]);
}

#[test]
fn who_counts_more_gets_its_minimum_first() {
    let history = History::on("1x2", "minimum-first").job(0, elastic(1, 2), 3000).job(5, rigid(1), 3000).job(
        5,
        JobDraft { priority: 5, ..rigid(1) },
        3000,
    );
    assert_eq!(history.under(DEFAULT).given(8), [1, 0, 1]);
}

/// Four devices, two for each of two queues; a job of four workers in the first, then one of one in the second.
fn lent(safeguards: &str, borrower: JobDraft) -> History {
    History::on("1x4", safeguards).queues(&[("a", 2.0), ("b", 2.0)]).job(0, in_queue(1, borrower), 3000).job(
        30,
        in_queue(2, rigid(1)),
        1000,
    )
}

fn with_checkpoints(workers: u32) -> JobDraft {
    let recovery = Recovery { checkpoint_every: Some(Span::from_secs(60)), retries: 3, ..Recovery::default() };
    JobDraft { recovery, ..rigid(workers) }
}

#[test]
fn a_queue_gets_its_guarantee_back_from_one_that_borrows() {
    for policy in ["fifo", "sia", DEFAULT] {
        let before = lent("none", with_checkpoints(4)).under(policy);
        assert_eq!(before.given(120), [4, 0], "{policy}: what was wrong");
    }
    for policy in POLICIES {
        let told = lent("guarantees", with_checkpoints(4)).under(policy);
        assert_eq!(told.given(29), [4], "{policy}: what nobody asks for is lent");
        assert_eq!(told.given(50), [0, 1], "{policy}");
        if ["fifo", DEFAULT].contains(&policy) {
            assert_eq!(told.reason(50, 0), Reason::Reclaimed, "{policy}");
            assert_eq!(told.reason(50, 1), Reason::Guaranteed, "{policy}");
        }
        assert_eq!(told.given(900), [0, 1], "{policy}: and it is not taken away again");
        assert_eq!(told.given(1500), [4, 0], "{policy}: lent again when it is free");
    }
}

#[test]
fn a_borrower_without_checkpoints_is_stopped_too_unless_it_is_pinned() {
    for policy in POLICIES {
        let told = lent("guarantees", plain(rigid(4))).under(policy);
        assert_eq!(told.given(50), [0, 1], "{policy}");
        let within = lent("guarantees", plain(rigid(2))).job(40, in_queue(2, rigid(1)), 1000).under(policy);
        assert_eq!(within.given(60), [2, 1, 1], "{policy}: who has what it is promised is left alone");
        assert!(within.commands_between(0, 60).iter().all(|it| !matches!(it, Command::Stop { .. })), "{policy}");
    }
}

#[test]
fn an_elastic_borrower_shrinks_instead_of_being_stopped() {
    let told = lent("guarantees", elastic(1, 4)).under(DEFAULT);
    assert_eq!(told.given(29), [4]);
    assert_eq!(told.given(50)[1], 1);
    assert!(told.given(50)[0] >= 2, "{:?}", told.given(50));
}

#[test]
fn a_pinned_job_starts_only_within_what_its_queue_is_promised() {
    let pinned = |workers| JobDraft { pinned: true, ..plain(rigid(workers)) };
    for policy in POLICIES {
        let told = History::on("1x4", "guarantees")
            .queues(&[("a", 2.0), ("b", 2.0)])
            .job(0, in_queue(1, pinned(2)), 500)
            .job(0, in_queue(1, pinned(1)), 500)
            .job(20, in_queue(2, rigid(2)), 500)
            .under(policy);
        assert_eq!(told.given(10), [2, 0], "{policy}: nobody could take it back");
        assert_eq!(told.given(60), [2, 0, 2], "{policy}");
    }
}

/// A lab with two groups in it, and a firm beside it.
fn lab_and_firm() -> History {
    let queues = [("lab", 5.0), ("firm", 3.0), ("x", 3.0), ("y", 2.0)];
    let mut history = History::on("2x4", "guarantees").queues(&queues);
    history.draft.queues[2..].iter_mut().for_each(|queue| queue.parent = Some("lab".into()));
    history
}

#[test]
fn a_queue_gets_back_what_its_sibling_and_what_another_of_its_parent_borrow_together() {
    for policy in POLICIES {
        let (firm, x, y) = (2, 3, 4);
        let mut history = lab_and_firm();
        for _ in 0..5 {
            history = history.job(0, in_queue(firm, with_checkpoints(1)), 9000);
        }
        for _ in 0..3 {
            history = history.job(0, in_queue(y, with_checkpoints(1)), 9000);
        }
        let told = history.job(60, in_queue(x, rigid(3)), 9000).under(policy);
        let state = told.at(90);
        let used = [firm, x, y].map(|queue| state.books().used(QueueId(queue)));
        assert_eq!(used, [3, 3, 2].map(Gpus::whole), "{policy}: one of the three from the sibling, two from the firm");
    }
}

#[test]
fn a_job_within_its_guarantee_is_not_held_up_by_a_reservation_of_one_that_would_borrow() {
    for policy in POLICIES {
        let (a, b) = (1, 2);
        let told = History::on("1x4", "reservations=1m,guarantees,at-once")
            .queues(&[("a", 2.0), ("b", 2.0)])
            .job(0, in_queue(a, plain(rigid(2))), 2000)
            .job(1, in_queue(a, rigid(4)), 100)
            .job(100, in_queue(b, plain(rigid(1))), 5000)
            .job(102, in_queue(a, plain(rigid(1))), 5000)
            .under(policy);
        assert_eq!(
            told.given(130),
            [2, 0, 1, 0],
            "{policy}: devices are kept only from those that would borrow as well"
        );
        if policy == DEFAULT {
            assert_eq!(told.launched(2), Some(100_000), "at once");
        }
    }
}

#[test]
fn children_of_one_queue_do_not_take_from_each_other_what_neither_is_promised() {
    let mut history = History::on("1x4", "guarantees").queues(&[("lab", 4.0), ("x", 0.0), ("y", 0.0)]);
    for queue in &mut history.draft.queues[1..] {
        queue.parent = Some("lab".into());
    }
    let history = history.job(0, in_queue(2, with_checkpoints(4)), 500).job(20, in_queue(3, rigid(1)), 100);
    assert_eq!(history.under("fifo").given(100), [4, 0]);
}

#[test]
fn a_job_of_fixed_size_starts_on_free_devices_before_the_next_round() {
    for policy in ["sia:round=60s", "las:round=60s", "gittins", "composed:round=60s", "pollux", DEFAULT] {
        let history = |safeguards| {
            History::on("1x2", safeguards).job(61, rigid(1), 10).job(62, rigid(1), 10).job(63, rigid(1), 10)
        };
        let told = history("at-once").under(policy);
        assert_eq!(told.launched(0), Some(61_000), "{policy}");
        assert_eq!(told.launched(1), Some(62_000), "{policy}");
        let third = told.launched(2).unwrap();
        assert!((71_000..=73_000).contains(&third), "{policy}: as soon as a device is free, not at {third}");
        if policy != DEFAULT {
            assert!(history("none").under(policy).launched(0) >= Some(90_000), "{policy}: what was wrong");
        }
    }
}

#[test]
fn between_rounds_who_counts_more_starts_first_and_budgets_hold() {
    let told = History::on("1x2", "at-once")
        .job(1, rigid(2), 100)
        .job(62, rigid(1), 1000)
        .job(63, JobDraft { priority: 3, ..rigid(2) }, 1000)
        .under("sia:round=60s");
    let (low, high) = (told.launched(1).unwrap(), told.launched(2).unwrap());
    assert!(high < low, "{high} and {low}");
}

#[test]
fn an_elastic_job_that_came_first_is_not_overtaken_between_rounds() {
    let told = History::on("1x1", "at-once").job(61, elastic(1, 2), 100).job(62, rigid(1), 100).under("sia:round=60s");
    assert_eq!(told.launched(0), Some(120_000), "its size is chosen in the round");
    assert!(told.launched(1).unwrap() > 120_000);
}

/// Which jobs are told to start in the second in which a request comes in, after these jobs came at those seconds. They
/// run until they are stopped.
fn started_by(cluster: &str, policy: &str, jobs: &[(u64, JobDraft)], at: u64, request: Request) -> Vec<u32> {
    let (cluster, queues) = ClusterDraft::parse_short(cluster).unwrap().build().unwrap();
    let settings =
        Settings { whole_checks: true, safeguards: "reservations=1m,at-once".parse().unwrap(), ..Settings::default() };
    let built = PolicyConfig::from_text(policy).unwrap().build().unwrap();
    let (mut engine, _) = Engine::new(cluster, queues, policy, built, settings);
    let mut started = Vec::new();
    let mut request = Some(request);
    for second in 0..=at {
        let now = Time::from_secs(second);
        let mut batch: Vec<Input> = Vec::new();
        for (_, draft) in jobs.iter().filter(|(came, _)| *came == second) {
            let (spec, speed) = (Arc::new(draft.clone().build().unwrap()), Arc::new(Speed::constant(1.0)));
            batch.push(Input::Request(Request::Submit { spec, speed, held: false }));
        }
        batch.extend(request.take_if(|_| second == at).map(Input::Request));
        let events = engine.handle(now, batch).events;
        let launches = events.iter().filter_map(|event| match event {
            Event::Issued(Command::Launch { run, .. }) => Some(*run),
            _ => None,
        });
        let launches: Vec<Run> = launches.collect();
        let reports = launches.iter().map(|&run| Input::Report(Event::RunStarted { run })).collect();
        engine.handle(now, reports);
        started = launches.iter().map(|run| run.claim.0).collect();
    }
    started
}

#[test]
fn a_job_that_is_held_lets_those_behind_it_start_between_rounds() {
    let (sia, strict) = ("sia:round=60s", "composed:order=arrival,preempt=false,round=60s");
    let cases = [
        ("an elastic job that came first", sia, "1x1", vec![(61, elastic(1, 2)), (62, rigid(1))], 63),
        ("a gang with a reservation", sia, "1x2", vec![(0, plain(rigid(1))), (1, rigid(2)), (661, rigid(1))], 662),
        ("the first in line", strict, "1x2", vec![(0, plain(rigid(1))), (61, rigid(2)), (62, rigid(1))], 63),
    ];
    for (what, policy, cluster, jobs, at) in cases {
        let first = ClaimId(jobs.len() as u32 - 2);
        let second = vec![jobs.len() as u32 - 1];
        let by = |request| started_by(cluster, policy, &jobs, at, request);
        assert_eq!(by(Request::Hold(first)), second, "{what} is held");
        assert_eq!(by(Request::Cancel(first)), second, "{what} is cancelled");
        assert_eq!(by(Request::Hold(ClaimId(first.0 + 1))), [] as [u32; 0], "{what} goes first");
    }
}

/// Two devices, one job after the other of which one always runs, and a job that needs both.
fn stream(safeguards: &str, priority: i32) -> History {
    let mut history = History::on("1x2", safeguards);
    history = history.job(10, JobDraft { priority, ..rigid(2) }, 300);
    for index in 0..60 {
        let short = JobDraft { expected: Some(Span::from_secs(100)), ..plain(rigid(1)) };
        history = history.job(50 * index, short, 100);
    }
    history.jobs.sort_by_key(|job| job.submitted);
    history
}

#[test]
fn a_gang_gets_devices_reserved_after_it_has_waited() {
    for policy in [DEFAULT, "composed:order=attained,round=10s", "las:round=10s", "tiresias"] {
        let told = stream("reservations=5m,at-once,minimum-first,guarantees", 0).under(policy);
        let start = told.launched(1).unwrap_or(u64::MAX);
        assert!(start <= 10_000 + 300_000 + 110_000, "{policy}: started after {start} ms");
    }
    let starved = stream("none", 0).under(DEFAULT).launched(1).unwrap_or(u64::MAX);
    assert!(starved > 2_900_000, "what was wrong: it started when no short job came any more, {starved}");
}

#[test]
fn with_long_rounds_a_reservation_takes_ten_of_them() {
    let history = History::on("1x2", "reservations=1m").job(0, plain(rigid(1)), 5000).job(1, rigid(2), 100).job(
        300,
        plain(rigid(1)),
        100,
    );
    let history = history.job(730, plain(rigid(1)), 100);
    let told = history.under("las:round=60s");
    assert_eq!(told.given(370), [1, 0, 1], "a minute of waiting is over, ten rounds are not");
    assert_eq!(told.given(800), [1, 0, 0, 0], "now they are");
}

/// Every policy that decides without knowing what only a simulator does, as it is by default, and its round.
fn live_policies() -> impl Iterator<Item = (&'static str, u64)> {
    let policies =
        policies::POLICIES.iter().map(|entry| (entry.name, PolicyConfig::named(entry.name).build().unwrap()));
    policies.filter(|(_, policy)| policy.knows().is_empty()).map(|(name, policy)| match policy.rhythm() {
        plan::Rhythm::OnChange => (name, 0),
        plan::Rhythm::EveryRound(round) => (name, round.as_millis() / 1000),
    })
}

#[test]
fn under_every_live_policy_a_waiting_job_gets_its_minimum_within_a_round() {
    for (policy, round) in live_policies() {
        let history =
            History::on("1x2", "minimum-first").job(0, elastic(1, 2), 9000).job(2 * round + 5, elastic(1, 2), 9000);
        assert_eq!(history.under(policy).given(3 * round + 60), [1, 1], "{policy}");
    }
}

#[test]
fn under_every_live_policy_a_queue_gets_its_guarantee_back_within_a_round() {
    for (policy, round) in live_policies() {
        let told = History::on("1x4", "guarantees")
            .queues(&[("a", 2.0), ("b", 2.0)])
            .job(0, in_queue(1, with_checkpoints(4)), 9000)
            .job(2 * round + 5, in_queue(2, rigid(1)), 9000)
            .under(policy);
        assert_eq!(told.given(2 * round + 4), [4], "{policy}");
        assert_eq!(told.given(3 * round + 60), [0, 1], "{policy}");
    }
}

#[test]
fn under_every_live_policy_a_gang_starts_after_a_bounded_wait() {
    for (policy, round) in live_policies() {
        let patience = (10 * round).max(300);
        let mut history = History::on("1x2", "reservations=5m,at-once").job(10, rigid(2), 300);
        for index in 0..patience / 50 + 40 {
            history = history.job(50 * index, plain(rigid(1)), 100);
        }
        history.jobs.sort_by_key(|job| job.submitted);
        let start = history.under(policy).launched(1).unwrap_or(u64::MAX);
        let latest = 10 + patience + 100 + round + 30;
        assert!(start <= latest * 1000, "{policy}: started after {start} ms, not {latest} s");
    }
}

#[test]
fn under_every_live_policy_a_job_of_fixed_size_starts_at_once() {
    for (policy, round) in live_policies() {
        let at = 2 * round + 7;
        let told = History::on("1x2", "at-once").job(at, rigid(1), 100).under(policy);
        assert_eq!(told.launched(0), Some(at * 1000), "{policy}");
    }
}

#[test]
fn the_time_in_which_a_gang_waited_for_other_jobs_does_not_count() {
    let gang = JobDraft { after: vec![ClaimId(1)], ..rigid(2) };
    let history = History::on("1x2", "reservations=1m")
        .job(0, plain(rigid(1)), 2000)
        .job(0, plain(rigid(1)), 120)
        .job(1, gang, 100)
        .job(140, plain(rigid(1)), 100)
        .job(270, plain(rigid(1)), 100);
    // Ten rounds are over within the minute.
    for policy in [DEFAULT, "tiresias", "las:round=5s"] {
        let told = history.under(policy);
        assert_eq!(told.given(150), [1, 0, 0, 1], "{policy}: it has not waited for a minute for devices");
        assert_eq!(told.given(280), [1, 0, 0, 0, 0], "{policy}: now it has");
    }
}

#[test]
fn a_reservation_does_not_hold_up_who_counts_more() {
    let history = |priority| {
        let high = JobDraft { priority, ..plain(rigid(1)) };
        History::on("1x2", "reservations=1m").job(0, plain(rigid(1)), 2000).job(1, rigid(2), 100).job(100, high, 5000)
    };
    // Ten rounds are over within the minute.
    for policy in [DEFAULT, "tiresias", "las:round=5s"] {
        assert_eq!(history(5).under(policy).given(130), [1, 0, 1], "{policy}");
        assert_eq!(history(0).under(policy).given(130), [1, 0, 0], "{policy}: kept for the second");
    }
}

#[test]
fn short_jobs_use_what_is_reserved_if_they_end_in_time() {
    let expected = |secs| JobDraft { expected: Some(Span::from_secs(secs)), ..plain(rigid(1)) };
    let told = History::on("1x2", "reservations=1m")
        .job(0, expected(1000), 1000)
        .job(1, rigid(2), 100)
        .job(100, expected(300), 300)
        .job(101, expected(3000), 3000)
        .under(DEFAULT);
    assert_eq!(told.given(130), [1, 0, 1, 0]);
    let start = told.launched(1).unwrap();
    assert!((1_000_000..1_010_000).contains(&start), "{start}");
}

#[test]
fn an_elastic_job_uses_what_is_reserved_and_gives_it_back_when_the_gang_can_start() {
    for policy in [DEFAULT, "pollux:round=5s"] {
        let told = History::on("1x4", "reservations=1m,at-once")
            .job(0, plain(rigid(2)), 500)
            .job(0, plain(rigid(1)), 200)
            .job(1, elastic(1, 4), 9000)
            .job(2, rigid(3), 1000)
            .under(policy);
        assert_eq!(told.given(190), [2, 1, 1, 0], "{policy}");
        assert_eq!(told.reason(190, 3), Reason::Reserved, "{policy}");
        assert_eq!(told.given(490), [2, 0, 2, 0], "{policy}: it grows onto what is kept");
        assert_eq!(told.given(530), [0, 0, 1, 3], "{policy}: and gives it back");
        let start = told.launched(3).unwrap();
        assert!((500_000..=520_000).contains(&start), "{policy}: started after {start} ms");
    }
}

#[test]
fn a_gang_starts_though_jobs_say_that_they_end_earlier_than_they_do() {
    // Those of one node at a time, and those that may be spread.
    let on_one_node = |gpus| {
        let mut draft = rigid(1);
        draft.roles[0].slice.as_mut().unwrap().count = gpus;
        draft
    };
    for (gang, says) in [(on_one_node(4), 1), (on_one_node(3), 20), (rigid(4), 1), (rigid(6), 20), (rigid(8), 5)] {
        for policy in [DEFAULT, "las:round=5s", "tiresias", "composed:order=arrival,round=5s"] {
            let mut history = History::on("2x4", "reservations=1m,at-once").job(200, gang.clone(), 300);
            for index in 0..600 {
                let says = JobDraft { expected: Some(Span::from_secs(says)), ..plain(rigid(1)) };
                history = history.job(5 * index, says, 60 + 7 * (index % 13));
            }
            history.jobs.sort_by_key(|job| job.submitted);
            let told = history.under(policy);
            let gangs = told.at(u64::MAX / 1000);
            let gang = gangs.books().claims().iter().find(|claim| claim.spec.min_gpus() > Gpus::whole(1)).unwrap().id;
            let start = told.launched(gang.0).unwrap_or(u64::MAX);
            // It waits for a minute, for what was foreseen then, and for the longest of those that had begun by then.
            let latest = 200 + 60 + 60 + 144;
            assert!(start <= latest * 1000, "{policy}, {says} s are said: started after {start} ms, not {latest} s");
        }
    }
}
