//! What is shown of jobs, queues and nodes: the replica in the words of the wire.

use std::cmp::Reverse;

use api::{
    ArrayView, EventView, InterruptionView, JobId, JobState, JobView, NodeView, ProgressView, QueueView, RestartKind,
    UsageView, WorkersView, rfc3339,
};
use cluster::{ClaimId, Gpus, NodeId, QueueId, Time};
use engine::{Command, Event, Reservation};
use executors::{Delivery, workers_of};
use plan::{Availability, Claim, Note, Obstacle, Outcome, Phase, Reason};
use policies::PolicyConfig;

use crate::fact::{Acceptance, Array, Caller, Fact};
use crate::failure;
use crate::ledger::{Job, What};
use crate::replica::{Line, Shown};

/// A moment by the wall clock as it was then.
pub(crate) fn moment(shown: &Shown, time: Time) -> String {
    rfc3339(shown.ledger.timeline().wall_ms(time))
}

/// A job, a task, or an array as one; nothing if there is no such job.
pub fn job(shown: &Shown, id: JobId, now: Time, with_spec: bool) -> Option<JobView> {
    let claims = shown.ledger.claims(id)?;
    let acceptance = shown.ledger.acceptance(ClaimId(claims.start))?;
    let mut view = claim(shown, ClaimId(claims.start), now);
    if let (None, Some(declared)) = (id.task, &acceptance.array) {
        view = array(shown, acceptance, declared, now, view);
    }
    view.id = id.to_string();
    view.spec = with_spec.then(|| acceptance.request.clone());
    Some(view)
}

/// What others see of a job: that it exists, whose it is, in which state, how large, and when. Nothing of what it does, how
/// it fares or where. Everything that is shown is written out, so that what a job may show some day is not shown to all.
pub(crate) fn summary(view: JobView) -> JobView {
    JobView {
        // Number, name, owner, queue, state.
        id: view.id,
        name: view.name,
        owner: view.owner,
        queue: view.queue,
        state: view.state,
        // Size; of an array also how many of its tasks are in which state.
        workers: view.workers,
        gpus: view.gpus,
        gpus_per_worker: view.gpus_per_worker,
        array: view.array.map(|array| ArrayView { at_once: None, ..array }),
        // Times.
        submitted_at: view.submitted_at,
        started_at: view.started_at,
        finished_at: view.finished_at,
        gpu_seconds: view.gpu_seconds,
        elapsed_seconds: view.elapsed_seconds,
        summary: true,
        // And nothing else.
        priority: 0,
        reason: None,
        message: None,
        failure: None,
        exit_code: None,
        signal: None,
        processes: 0,
        gpu_kind: None,
        nodes: Vec::new(),
        attempts: 0,
        failures: 0,
        preemptions: 0,
        resizes: 0,
        restart: None,
        resize: None,
        progress: None,
        usage: None,
        labels: Default::default(),
        depends_on: Vec::new(),
        deadline: None,
        notice: None,
        spec: None,
    }
}

/// What others see of an event: that a job came, started, stopped, ended; nothing in its own words.
pub(crate) fn event_summary(view: EventView) -> Option<EventView> {
    const PUBLIC: [&str; 12] = [
        "submitted",
        "refused",
        "cancelled",
        "held",
        "released",
        "started",
        "stopped",
        "finished",
        "failed",
        "ended",
        "launched",
        "told_to_stop",
    ];
    PUBLIC.contains(&view.what.as_str()).then(|| EventView { text: String::new(), ..view })
}

fn claim(shown: &Shown, id: ClaimId, now: Time) -> JobView {
    let books = shown.state.books();
    let claim = books.claim(id);
    let record = shown.ledger.job(id);
    let acceptance = shown.ledger.acceptance(id);
    let (state, ended) = state_of(claim);
    let holds = claim.holds();
    let ending = record.and_then(|job| job.ending.as_ref()).map(|(_, ending)| ending);
    let exit_code = ending.filter(|_| state.is_final()).and_then(executors::Ending::exit_code);
    let kind = holds.and_then(|holds| holds.placement.kind(&books.cluster));
    let now = ended.unwrap_or(now);
    JobView {
        id: shown.ledger.id(id).to_string(),
        name: claim.spec.name.to_string(),
        owner: claim.spec.user.to_string(),
        queue: books.queues.queue(claim.spec.queue).name.to_string(),
        priority: claim.priority,
        state,
        reason: reason(shown, claim),
        message: message(shown, claim),
        failure: failure::view(shown, claim),
        exit_code,
        signal: exit_code.and_then(signal_in),
        submitted_at: moment(shown, claim.submitted),
        started_at: record.and_then(|job| job.first_started).map(|at| moment(shown, at)),
        finished_at: ended.map(|at| moment(shown, at)),
        workers: WorkersView {
            have: holds.map_or(0, |holds| holds.placement.tasks_of(0)),
            min: claim.spec.scaling.min(),
            max: claim.spec.scaling.max(),
        },
        processes: holds.map_or_else(
            || ending.map_or(0, |ending| ending.exits.len() as u32),
            |holds| workers_of(&holds.placement, &books.cluster).len() as u32,
        ),
        gpus_per_worker: claim.spec.roles[0].gpus_per_task().as_f64(),
        gpus: holds.map_or(0.0, |holds| holds.placement.gpus().as_f64()),
        gpu_kind: kind.map(|kind| books.cluster.kind(kind).name.to_string()),
        nodes: holds.map_or(Vec::new(), |holds| {
            holds.placement.nodes().map(|node| books.cluster.node(node).name.to_string()).collect()
        }),
        attempts: claim.progress.launches,
        failures: claim.progress.crashes,
        preemptions: claim.progress.preemptions,
        resizes: claim.progress.resizes,
        restart: interruption(shown, record, RestartKind::Restart),
        resize: interruption(shown, record, RestartKind::Resize),
        gpu_seconds: claim.attained(now).as_gpu_secs(),
        elapsed_seconds: claim.progress.executed(now).as_secs_f64(),
        progress: progress(shown, claim),
        usage: shown.usage_of(id).map(|usage| UsageView {
            cpu_seconds: usage.cpu_seconds,
            memory_bytes: usage.memory_bytes,
            peak_memory_bytes: usage.memory_bytes,
            gpu_utilisation: usage.gpu_percent.map(|percent| percent / 100.0),
            gpu_memory_bytes: usage.gpu_memory_bytes,
        }),
        array: None,
        labels: acceptance.map_or_else(Default::default, |acceptance| acceptance.request.labels.clone()),
        depends_on: acceptance
            .map_or(Vec::new(), |acceptance| acceptance.request.depends_on.iter().map(ToString::to_string).collect()),
        deadline: acceptance
            .and_then(|acceptance| acceptance.request.limits.deadline.as_deref())
            .and_then(|deadline| api::unix_millis(deadline).ok())
            .map(rfc3339),
        notice: notice(shown, claim),
        spec: None,
        summary: false,
    }
}

fn interruption(shown: &Shown, record: Option<&Job>, kind: RestartKind) -> Option<InterruptionView> {
    let (at, report) = record?.interruption(kind)?;
    let reported_at = moment(shown, *at);
    Some(InterruptionView { seconds: report.phases.price_seconds(), phases: report.phases, reported_at })
}

/// The signal that an exit code stands for, as a shell writes it.
fn signal_in(exit_code: i32) -> Option<i32> {
    (129..=192).contains(&exit_code).then(|| exit_code - 128)
}

/// Where a claim is in its life, and when that ended.
pub(crate) fn state_of(claim: &Claim) -> (JobState, Option<Time>) {
    let state = match &claim.phase {
        Phase::Waiting if claim.held => JobState::Held,
        Phase::Waiting => JobState::Pending,
        Phase::Starting { .. } => JobState::Starting,
        Phase::Running { .. } => JobState::Running,
        Phase::Stopping { .. } => JobState::Stopping,
        Phase::Ended { at, outcome } => return (state_after(*outcome), Some(*at)),
    };
    (state, None)
}

fn state_after(outcome: Outcome) -> JobState {
    match outcome {
        Outcome::Finished => JobState::Succeeded,
        Outcome::Cancelled => JobState::Cancelled,
        Outcome::DependencyFailed | Outcome::GivenUp => JobState::Failed,
        Outcome::TimedOut => JobState::TimedOut,
        Outcome::Refused => JobState::Refused,
    }
}

fn reason(shown: &Shown, claim: &Claim) -> Option<String> {
    if shown.ledger.job(claim.id).is_some_and(|job| job.throttled) && claim.is_live() {
        return Some("ArrayLimit".into());
    }
    match &claim.phase {
        Phase::Ended { outcome: Outcome::Finished | Outcome::Cancelled, .. } => None,
        Phase::Ended { outcome, .. } => Some(format!("{outcome:?}")),
        _ => Some(claim.note.reason.to_string()),
    }
}

fn message(shown: &Shown, claim: &Claim) -> Option<String> {
    match &claim.phase {
        Phase::Ended { .. } => failure::message(shown, claim),
        _ if shown.ledger.job(claim.id).is_some_and(|job| job.throttled) => {
            Some("enough tasks of its array are under way".into())
        }
        _ => {
            let last = failure::last_run(shown, claim).map_or(String::new(), |last| format!("; last: {last}"));
            sentence(shown, claim).map(|why| format!("{why}{last}"))
        }
    }
}

/// A note as a sentence, with names for numbers.
pub(crate) fn sentence(shown: &Shown, claim: &Claim) -> Option<String> {
    match claim.note.obstacle {
        Some(Obstacle::ReservedFor { claim: reserved, .. }) if reserved == claim.id => {
            Some(reserved_sentence(shown, claim))
        }
        _ => sentence_of(shown, claim, claim.note),
    }
}

/// The same for a note that was made earlier. It says what was the case then, whatever is the case now.
fn sentence_of(shown: &Shown, claim: &Claim, note: Note) -> Option<String> {
    let books = shown.state.books();
    let id = |claim: ClaimId| shown.ledger.id(claim).to_string();
    let why = match note.obstacle {
        Some(Obstacle::Capacity { needed, free }) => format!("needs {needed} GPUs, {free} free"),
        Some(Obstacle::Fragmentation { needed, free }) => {
            format!("needs {needed} GPUs in one place, {free} free but scattered")
        }
        Some(Obstacle::Quota { queue, used, budget }) => {
            format!("queue {} uses {used} of {budget} GPUs", books.queues.queue(queue).name)
        }
        Some(Obstacle::Outranked { by }) => format!("job {} comes first", id(by)),
        Some(Obstacle::ReservedFor { claim: reserved, .. }) if reserved == claim.id => {
            "it had waited long, and devices were kept for it from then on (rule reservations)".into()
        }
        Some(Obstacle::ReservedFor { claim, until }) => {
            format!("what is free is kept for job {} until {}", id(claim), moment(shown, until))
        }
        Some(Obstacle::Dependencies { left }) => format!("{left} jobs must finish first"),
        Some(Obstacle::Node { node }) => format!("node {} is not available", books.cluster.node(node).name),
        Some(Obstacle::Yielded { to }) => {
            format!("it gave up devices beyond its minimum, so that job {} can run (rule minimum-first)", id(to))
        }
        Some(Obstacle::Lent { lender, borrower }) => {
            let name = |queue: QueueId| &books.queues.queue(queue).name;
            let (lender, borrower) = (name(lender), name(borrower));
            match note.reason {
                Reason::Guaranteed => format!(
                    "queue {lender} is guaranteed these devices and got them back from queue {borrower}, which had \
                     borrowed them (rule guarantees)"
                ),
                _ => format!(
                    "queue {borrower} had borrowed devices that queue {lender} is guaranteed, and queue {lender} needs \
                     them (rule guarantees)"
                ),
            }
        }
        None => match note.reason {
            Reason::PendingEvaluation => "it has not been considered yet".into(),
            Reason::Held => "it is held until its user releases it".into(),
            Reason::Backoff => claim.rests_until.map_or("its last run failed".into(), |until| {
                format!("its last run failed: the next try is not before {}", moment(shown, until))
            }),
            Reason::Preempted => "it was stopped to make room".into(),
            Reason::WaitingForResources => "nothing suitable is free".into(),
            Reason::MinimumFirst => {
                "it has its minimum, which comes before what others have beyond theirs (rule minimum-first)".into()
            }
            Reason::Guaranteed => "it has what its queue is guaranteed (rule guarantees)".into(),
            Reason::Reserved => "devices were reserved for it after it had waited long (rule reservations)".into(),
            Reason::Admitted | Reason::Backfilled => return None,
            other => other.to_string(),
        },
    };
    Some(why)
}

/// That a job may be stopped because its queue borrows with it, for its owner to know beforehand: with what those that go
/// before it need at least, it needs more than its queue is promised. Who goes last is stopped first.
fn notice(shown: &Shown, claim: &Claim) -> Option<String> {
    let books = shown.state.books();
    let queues = &books.queues;
    let kept = shown.state.safeguards().guarantees && queues.len() > 1;
    let own = claim.spec.min_gpus();
    if !kept || !claim.is_live() || claim.spec.pinned || own.is_zero() {
        return None;
    }
    let promised = engine::guarantees(books);
    let promised = |queue: QueueId| promised[usize::from(queue.0)];
    let turn = |claim: &Claim| (Reverse(claim.priority), claim.submitted, claim.id);
    let before = |other: &&Claim| can_have_devices(other) && turn(other) < turn(claim);
    let exceeds = |has: Gpus, counts: &dyn Fn(&Claim) -> bool| {
        let mut needed = own;
        let mut others = books.claims().live().filter(before).filter(|other| counts(other));
        own > has
            || others.any(|other| {
                needed = needed.saturating_add(other.spec.min_gpus());
                needed > has
            })
    };
    // Jobs that were submitted directly to a queue that has child queues have only what none of those is promised.
    let at = claim.spec.queue;
    let below: Gpus = queues.children(at).map(|(child, _)| promised(child)).sum();
    let left_over = promised(at).saturating_sub(below);
    let name = |queue: QueueId| &queues.queue(queue).name;
    let borrower = if !below.is_zero() && exceeds(left_over, &|other| other.spec.queue == at) {
        format!("queue {} has {left_over} GPUs that are guaranteed to no queue below it", name(at))
    } else {
        let is_below = |other: &Claim, queue| queues.ancestry(other.spec.queue).any(|above| above == queue);
        let mut above = queues.ancestry(at).filter(|&queue| queue != QueueId::ROOT);
        let queue = above.find(|&queue| exceeds(promised(queue), &|other| is_below(other, queue)))?;
        format!("queue {} is guaranteed {} GPUs", name(queue), promised(queue))
    };
    Some(format!(
        "{borrower} and borrows what this job needs beyond that: the job may be stopped when the lenders need it, and \
         starts again later"
    ))
}

/// Whether a claim has devices, or could have some as soon as there are any.
fn can_have_devices(claim: &Claim) -> bool {
    claim.is_eligible() || claim.holds().is_some()
}

/// What the owner of an array is to know of the task that goes last.
fn notice_of_array(shown: &Shown, acceptance: &Acceptance) -> Option<String> {
    let tasks = (0..acceptance.task_count()).map(|place| ClaimId(acceptance.first.0 + place));
    let tasks = tasks.map(|task| shown.state.books().claim(task));
    notice(shown, tasks.rev().find(|task| can_have_devices(task))?)
}

/// What is reserved now. It is found out once for each state, however many jobs are shown of it.
pub(crate) fn reservations(shown: &Shown) -> &[Reservation] {
    shown.reservations.get_or_init(|| {
        let state = &shown.state;
        let budgets = engine::budgets(state.books());
        let snapshot = plan::Snapshot {
            now: state.now(),
            books: state.books(),
            changed: plan::Changed::Everything,
            budgets: &budgets,
            truths: None,
        };
        // How often the policy is asked decides for whom else devices are reserved.
        let policy = PolicyConfig::from_text(state.policy()).and_then(|config| config.build());
        policy.map_or(Vec::new(), |policy| engine::reservations(&snapshot, state.safeguards(), policy.rhythm()))
    })
}

/// When a claim for which devices are reserved will start.
fn reserved_sentence(shown: &Shown, claim: &Claim) -> String {
    let own = reservations(shown).iter().find(|reservation| reservation.claim == claim.id);
    let Some(reservation) = own else {
        return "devices are reserved for it (rule reservations)".into();
    };
    let jobs: Vec<String> = reservation.after.iter().map(|&claim| shown.ledger.id(claim).to_string()).collect();
    let (jobs, end) = match jobs.split_last() {
        None => return "it starts next (rule reservations)".into(),
        Some((last, [])) => (last.clone(), "ends"),
        Some((last, others)) => (format!("{} and {last}", others.join(", ")), "end"),
    };
    // A guess from jobs that have nothing to do with these is good enough to plan by, and none to tell a user.
    let at = reservation.at.filter(|_| reservation.is_foreseen);
    let about = at.map_or(String::new(), |at| format!(", about {}", moment(shown, at)));
    format!("starts at the latest when {jobs} {end}{about} (rule reservations)")
}

fn progress(shown: &Shown, claim: &Claim) -> Option<ProgressView> {
    let (at, report) = shown.ledger.job(claim.id)?.report.as_ref()?;
    let books = shown.state.books();
    let replicas = claim.holds().map(|holds| holds.placement.shape(&books.cluster).workers);
    let total = claim.spec.iterations();
    let steps = report.steps.map(|_| claim.progress.done);
    Some(ProgressView {
        steps,
        total_steps: total,
        fraction: steps.zip(total).map(|(steps, total)| (steps as f64 / total as f64).min(1.0)),
        epoch: report.epoch,
        loss: report.loss,
        step_seconds: report.step_seconds,
        batch_size: claim
            .tuning
            .zip(replicas)
            .and_then(|(tuning, replicas)| u32::try_from(tuning.total(replicas)).ok()),
        accumulation: claim.tuning.map(|tuning| tuning.accumulations),
        reported_at: moment(shown, *at),
    })
}

/// Where a job is in its life. An array is where its liveliest task is; one that has ended, ended as the worst of them.
pub(crate) fn state(shown: &Shown, acceptance: &Acceptance) -> JobState {
    let first = acceptance.first.0;
    let of_claim = |claim| state_of(shown.state.books().claim(ClaimId(claim))).0;
    let states = (first..first + acceptance.task_count()).map(of_claim);
    states.min_by_key(|state| LIVELIEST_FIRST.iter().position(|other| other == state)).unwrap_or(of_claim(first))
}

const LIVELIEST_FIRST: [JobState; 10] = [
    JobState::Running,
    JobState::Starting,
    JobState::Stopping,
    JobState::Pending,
    JobState::Held,
    JobState::Failed,
    JobState::TimedOut,
    JobState::Refused,
    JobState::Cancelled,
    JobState::Succeeded,
];

/// An array as one job; `first` is its first task.
fn array(shown: &Shown, acceptance: &Acceptance, declared: &Array, now: Time, first: JobView) -> JobView {
    let state = state(shown, acceptance);
    let mut sum = Sum::default();
    for place in 0..acceptance.task_count() {
        sum.add(shown, ClaimId(acceptance.first.0 + place), now);
    }
    let ended = state.is_final();
    let failure = failure::of_array(shown, acceptance);
    let exit_code = sum.worst_exit_code.filter(|_| ended);
    JobView {
        state,
        exit_code,
        signal: exit_code.and_then(signal_in),
        reason: first.reason.filter(|_| !ended),
        message: failure.as_ref().map(|failure| failure.message.clone()),
        failure,
        started_at: sum.started.map(|at| moment(shown, at)),
        finished_at: sum.finished.filter(|_| ended).map(|at| moment(shown, at)),
        gpus: sum.gpus,
        attempts: sum.attempts,
        failures: sum.failures,
        preemptions: sum.preemptions,
        gpu_seconds: sum.gpu_seconds,
        elapsed_seconds: sum.elapsed_seconds,
        progress: None,
        usage: None,
        notice: notice_of_array(shown, acceptance),
        array: Some(ArrayView { first: declared.indices[0], at_once: declared.at_once, ..sum.tasks }),
        ..first
    }
}

/// What the tasks of an array make together.
#[derive(Default)]
struct Sum {
    tasks: ArrayView,
    worst_exit_code: Option<i32>,
    started: Option<Time>,
    finished: Option<Time>,
    gpus: f64,
    attempts: u32,
    failures: u32,
    preemptions: u32,
    gpu_seconds: f64,
    elapsed_seconds: f64,
}

impl Sum {
    fn add(&mut self, shown: &Shown, id: ClaimId, now: Time) {
        let claim = shown.state.books().claim(id);
        let record = shown.ledger.job(id);
        let (state, ended) = state_of(claim);
        let started = record.and_then(|job| job.first_started);
        self.tasks.count += 1;
        match state {
            JobState::Pending | JobState::Held => self.tasks.pending += 1,
            JobState::Starting | JobState::Running | JobState::Stopping => self.tasks.running += 1,
            JobState::Succeeded => self.tasks.succeeded += 1,
            JobState::Failed | JobState::TimedOut | JobState::Refused | JobState::Cancelled => self.tasks.failed += 1,
        }
        if ended.is_some() {
            let code = record.and_then(|job| job.ending.as_ref()).and_then(|(_, ending)| ending.exit_code());
            self.worst_exit_code = self.worst_exit_code.max(code);
        }
        self.started = self.started.into_iter().chain(started).min();
        self.finished = self.finished.max(ended);
        self.gpus += claim.holds().map_or(0.0, |holds| holds.placement.gpus().as_f64());
        self.attempts += claim.progress.launches;
        self.failures += claim.progress.crashes;
        self.preemptions += claim.progress.preemptions;
        let now = ended.unwrap_or(now);
        self.gpu_seconds += claim.attained(now).as_gpu_secs();
        self.elapsed_seconds += claim.progress.executed(now).as_secs_f64();
    }
}

pub fn queues(shown: &Shown) -> Vec<QueueView> {
    let books = shown.state.books();
    let views = books.queues.iter().map(|(id, queue)| {
        let mine = || books.claims().live().filter(|claim| claim.spec.queue == id);
        let waiting = || mine().filter(|claim| claim.holds().is_none());
        QueueView {
            name: queue.name.to_string(),
            parent: queue.parent.map(|parent| books.queues.queue(parent).name.to_string()),
            guarantee: queue.guarantee.as_f64(),
            limit: queue.limit.map(cluster::Gpus::as_f64),
            weight: queue.weight.as_f64(),
            lends: queue.lends,
            borrows: queue.borrows,
            gpus: mine().flat_map(Claim::occupies).map(|placement| placement.gpus()).sum::<cluster::Gpus>().as_f64(),
            pending_gpus: waiting().map(|claim| claim.spec.min_gpus()).sum::<cluster::Gpus>().as_f64(),
            running: mine().filter(|claim| claim.holds().is_some()).count() as u32,
            pending: waiting().count() as u32,
            closed: queue.closed,
        }
    });
    views.collect()
}

/// The nodes, and who is on them as far as the jobs of their owners are shown.
pub fn nodes(shown: &Shown, shows: impl Fn(&Caller) -> bool) -> Vec<NodeView> {
    let books = shown.state.books();
    books.cluster.nodes().map(|(id, _)| node(shown, id, &shows)).collect()
}

fn node(shown: &Shown, id: NodeId, shows: impl Fn(&Caller) -> bool) -> NodeView {
    let books = shown.state.books();
    let node = books.cluster.node(id);
    let status = books.node_status(id);
    let here = || {
        books
            .claims()
            .live()
            .filter(move |claim| claim.occupies().any(|placement| placement.nodes().any(|node| node == id)))
    };
    let held: f64 = here()
        .flat_map(Claim::occupies)
        .flat_map(|placement| placement.slots().to_vec())
        .filter(|slot| slot.node == id)
        .map(|slot| slot.slices.gpus().as_f64())
        .sum();
    NodeView {
        name: node.name.to_string(),
        kind: node.kind.map(|kind| books.cluster.kind(kind).name.to_string()),
        gpus: u32::from(node.gpus),
        free: (f64::from(node.gpus) - f64::from(status.broken.count()) - held).max(0.0),
        state: match status.availability {
            Availability::Open => "ready",
            Availability::Cordoned => "cordoned",
            Availability::Drained => "draining",
            Availability::Lost => "lost",
            Availability::Removed => "removed",
        }
        .into(),
        // Where a job runs is not among what others see of it.
        jobs: here()
            .filter(|claim| shown.ledger.acceptance(claim.id).is_some_and(|acceptance| shows(&acceptance.owner)))
            .map(|claim| shown.ledger.id(claim.id).to_string())
            .collect(),
    }
}

/// A fact as it is streamed; nothing for what is only of interest to the core.
pub fn event(shown: &Shown, line: &Line) -> Option<EventView> {
    let id = |claim: ClaimId| Some(shown.ledger.id(claim).to_string());
    let (job, what, text) = match &line.fact {
        Fact::Numbered(_)
        | Fact::Identified { .. }
        | Fact::Reported { .. }
        | Fact::Did { .. }
        | Fact::TokenMade { .. }
        | Fact::TokenRevoked { .. }
        // Of which job it was told stands in the history of the job.
        | Fact::Notified { .. } => return None,
        Fact::NotificationDue(due) => (id(due.claim), "notification_due", due.event.to_string()),
        Fact::NotResized { run, why } => (id(run.claim), "not_resized", why.clone()),
        Fact::Ended { run, ending } => {
            let code = ending.exit_code().map_or("no exit code".into(), |code| format!("exit code {code}"));
            (id(run.claim), "processes_ended", ending.trouble.clone().unwrap_or(code))
        }
        Fact::Clock(found) => (None, found.kind(), found.in_words()?),
        Fact::Core(event) => match event {
            Event::ClaimSubmitted { claim, .. } => (id(*claim), "submitted", "submitted".into()),
            Event::ClaimRefused { claim, why, .. } => (id(*claim), "refused", why.to_string()),
            Event::ClaimCancelled { claim } => (id(*claim), "cancelled", "cancelled by its user".into()),
            Event::ClaimHeld { claim } => (id(*claim), "held", "held".into()),
            Event::ClaimReleased { claim } => (id(*claim), "released", "released".into()),
            Event::ClaimReprioritised { claim, priority } => {
                (id(*claim), "reprioritised", format!("priority {priority}"))
            }
            Event::ClaimRests { claim, until } => (id(*claim), "rests", format!("until {}", moment(shown, *until))),
            Event::LimitReached { claim } => (id(*claim), "limit_reached", "it reached its time limit".into()),
            Event::ClaimEnded { claim, outcome } => (id(*claim), "ended", format!("{outcome:?}")),
            Event::RunStarted { run } => (id(run.claim), "started", format!("attempt {}", run.attempt)),
            Event::RunProgressed { run, report } => {
                (id(run.claim), "progressed", format!("{} iterations", report.done))
            }
            Event::RunStopped { run, .. } => (id(run.claim), "stopped", format!("attempt {}", run.attempt)),
            Event::RunFinished { run } => (id(run.claim), "finished", format!("attempt {}", run.attempt)),
            Event::RunFailed { run, why, .. } => (id(run.claim), "failed", format!("attempt {}: {why:?}", run.attempt)),
            Event::Issued(Command::Launch { run, allotment, .. }) => {
                let shape = allotment.placement.shape(&shown.state.books().cluster);
                (id(run.claim), "launched", format!("attempt {} with {} workers", run.attempt, shape.workers))
            }
            Event::Issued(Command::Resize { run, allotment, .. }) => {
                let shape = allotment.placement.shape(&shown.state.books().cluster);
                (id(run.claim), "told_to_resize", format!("attempt {} to {} workers", run.attempt, shape.workers))
            }
            Event::RunResized { run } => (id(run.claim), "resized", format!("attempt {}", run.attempt)),
            Event::Issued(Command::Stop { run, .. }) => {
                (id(run.claim), "told_to_stop", format!("attempt {}", run.attempt))
            }
            Event::Issued(Command::Retune { run, tuning }) => (
                id(run.claim),
                "retuned",
                format!("{} examples a worker, {} accumulations", tuning.local, tuning.accumulations),
            ),
            Event::NodeJoined { node, .. } => (None, "node_joined", node.name.clone()),
            Event::NodeChanged { node, availability, .. } => {
                let name = &shown.state.books().cluster.node(*node).name;
                (None, "node_changed", format!("{name}: {availability:?}"))
            }
            Event::PolicyChosen { name } => (None, "policy_chosen", name.clone()),
            Event::QueuesChanged { .. } => (None, "queues_changed", "see the queues for what they are now".into()),
            Event::SafeguardsChosen { safeguards } => (None, "safeguards_chosen", safeguards.to_string()),
            Event::PlanRefused { why } => (None, "plan_refused", why.to_string()),
            Event::NumbersBegin { at } => (None, "numbers_begin", format!("jobs are numbered from {at} on")),
            Event::Forgotten { claims } => (None, "forgotten", format!("{} jobs that had ended", claims.len())),
            Event::ClusterDefined { .. }
            | Event::ClaimRested { .. }
            | Event::Refitted { .. }
            | Event::RunTimed { .. }
            // A deadline is shown by the wall clock, where it stays.
            | Event::DeadlineMoved { .. }
            // Why is a fact of its own.
            | Event::RunNotResized { .. }
            | Event::Planned(_)
            | Event::StartedAtOnce(_)
            | Event::Issued(Command::Provision { .. } | Command::Release { .. }) => return None,
        },
    };
    let decision = (line.decision > 0).then_some(line.decision);
    Some(EventView { seq: line.seq, at: moment(shown, line.at), decision, job, what: what.into(), text })
}

/// Something that became of a job, as a line of its history.
pub(crate) fn happening(shown: &Shown, claim: &Claim, what: &What) -> Option<String> {
    let books = shown.state.books();
    Some(match what {
        What::Submitted => "submitted".into(),
        What::Refused => "refused: it could never have run".into(),
        What::Held => "held by its user".into(),
        What::Released => "released".into(),
        What::Reprioritised(priority) => format!("priority set to {priority}"),
        What::Launched { attempt, shape } => {
            let kind = shape.kind.map_or(String::new(), |kind| format!(" on {}", books.cluster.kind(kind).name));
            format!("attempt {attempt}: launched with {}{kind}", workers(shape.workers))
        }
        What::ToldToResize { shape } => format!("told to go on with {}", workers(shape.workers)),
        What::Resized => "goes on with them, without a restart".into(),
        What::NotResized(why) => format!("goes on as it was: {why}"),
        What::Started => "running".into(),
        What::ToldToStop => "told to save its state and stop".into(),
        What::Stopped => "stopped as told".into(),
        What::Finished => "finished".into(),
        What::Failed(why, code) => {
            let code = code.map_or(String::new(), |code| format!(", exit code {code}"));
            format!("failed: {}{code}", cause(*why))
        }
        What::Rests(until) => format!("left alone until {}", moment(shown, *until)),
        What::Cancelled => "cancelled by its user".into(),
        What::LimitReached => "reached its time limit".into(),
        What::Ended(outcome) => format!("ended: {outcome:?}"),
        What::Noted(note) if note.obstacle.is_none() && note.chosen.is_some() => return None,
        What::Noted(note) if note.obstacle.is_some() => {
            format!("{}: {}", note.reason, sentence_of(shown, claim, *note)?)
        }
        What::Noted(note) => note.to_string(),
        What::Notified(event, Delivery::Delivered) => format!("notification of its {event} delivered"),
        What::Notified(event, Delivery::Failed(why)) => format!("notification of its {event} failed: {why}"),
        What::Notified(event, Delivery::Dropped) => {
            format!("notification of its {event} dropped: too many of its user's were waiting")
        }
    })
}

fn workers(count: u32) -> String {
    if count == 1 { "1 worker".into() } else { format!("{count} workers") }
}

fn cause(why: plan::FailureCause) -> &'static str {
    match why {
        plan::FailureCause::Crash => "its program failed",
        plan::FailureCause::Final => "its program failed in a way not worth another try",
        plan::FailureCause::Mishap => "it could not be launched or nobody saw its end; this does not count against it",
        plan::FailureCause::NodeLost => "its node was lost",
        plan::FailureCause::GpuFailed => "a GPU failed",
        plan::FailureCause::StartTimeout => "not every worker was up in time",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    /// The list of the guide, field by field.
    #[test]
    fn others_see_of_a_job_what_is_listed_and_nothing_else() {
        let phases = json!({"start": 1.0});
        let interruption = json!({"seconds": 1.0, "phases": phases, "reported_at": "secret"});
        let full = json!({
            "id": "7", "name": "n", "owner": "ann", "queue": "q", "priority": 9, "state": "running",
            "reason": "secret", "message": "secret",
            "failure": {"kind": "secret", "message": "secret", "worker": 1, "workers": 2, "attempt": 3, "task": "secret",
                "next_steps": ["secret"]},
            "exit_code": 9, "signal": 9, "submitted_at": "s", "started_at": "t", "finished_at": "f",
            "workers": {"have": 1, "min": 2, "max": 3}, "processes": 9, "gpus": 1.5, "gpus_per_worker": 0.5,
            "gpu_kind": "secret", "nodes": ["secret"], "attempts": 9, "failures": 9, "preemptions": 9, "resizes": 9,
            "restart": interruption, "resize": interruption, "gpu_seconds": 2.5, "elapsed_seconds": 3.5,
            "progress": {"steps": 9, "total_steps": 9, "fraction": 0.9, "epoch": 9.0, "loss": 9.0, "step_seconds": 9.0,
                "batch_size": 9, "accumulation": 9, "reported_at": "secret"},
            "usage": {"cpu_seconds": 9.0, "memory_bytes": 9, "peak_memory_bytes": 9, "gpu_utilisation": 0.9,
                "gpu_memory_bytes": 9},
            "array": {"first": 7, "count": 10, "at_once": 9, "pending": 1, "running": 2, "succeeded": 3, "failed": 4},
            "labels": {"secret": "secret"}, "depends_on": ["secret"], "deadline": "secret", "notice": "secret",
            "spec": {"command": ["secret"]}, "summary": true,
        });
        let view: JobView = serde_json::from_value(full.clone()).unwrap();
        let whole = serde_json::to_value(&view).unwrap();
        let named = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
        assert_eq!(named(&whole), named(&full), "every field has a value here");
        let expected = json!({
            "id": "7", "name": "n", "owner": "ann", "queue": "q", "state": "running",
            "workers": {"have": 1, "min": 2, "max": 3}, "gpus": 1.5, "gpus_per_worker": 0.5,
            "array": {"first": 7, "count": 10, "at_once": null, "pending": 1, "running": 2, "succeeded": 3, "failed": 4},
            "submitted_at": "s", "started_at": "t", "finished_at": "f", "gpu_seconds": 2.5, "elapsed_seconds": 3.5,
            "summary": true,
            "priority": 0, "reason": null, "message": null, "exit_code": null, "signal": null, "processes": 0,
            "gpu_kind": null, "nodes": [], "attempts": 0, "failures": 0, "preemptions": 0, "resizes": 0,
            "progress": null, "usage": null, "labels": {}, "depends_on": [], "deadline": null,
        });
        assert_eq!(serde_json::to_value(summary(view)).unwrap(), expected);
    }
}
