//! Why a job has what it has: the notes of the decision core, the options that were open, and what its user can do.

use api::{Explanation, HistoryLine, JobId, JobState, OptionView};
use cluster::{ClaimId, GpuKind, QueueId, Shape, Time};
use perf::Situation;
use plan::{Books, Claim, Obstacle, Reason};

use crate::core::no_job;
use crate::replica::Shown;
use crate::views::{self, moment};

/// For somebody who may give jobs no priority above the ceiling. Of an array the first task that failed is explained, or
/// else the first that has not ended.
pub fn explain(shown: &Shown, id: JobId, now: Time, ceiling: Option<i32>) -> Result<Explanation, api::Problem> {
    let mut view = views::job(shown, id, now, false).ok_or_else(|| no_job(&shown.ledger, id))?;
    let claims = shown.ledger.claims(id).ok_or_else(|| no_job(&shown.ledger, id))?;
    let is_array = claims.len() > 1;
    let claim = shown.state.books().claim(spokesman(shown, claims));
    let job = shown.ledger.job(claim.id);
    let task = if is_array { format!("task {}: ", shown.ledger.id(claim.id)) } else { String::new() };
    if is_array
        && view.failure.is_none()
        && let Some(own) = views::job(shown, shown.ledger.id(claim.id), now, false)
    {
        view.reason = own.reason;
        view.message = own.message.map(|message| format!("{task}{message}"));
    }
    let history = job.map_or(&[][..], |job| job.history.as_slice());
    let lines = history.iter().filter_map(|happening| {
        Some(HistoryLine {
            at: moment(shown, happening.at),
            text: format!("{task}{}", views::happening(shown, claim, &happening.what)?),
            decision: (happening.decision > 0).then_some(happening.decision),
        })
    });
    let open = claim.is_live() && !is_array;
    Ok(Explanation {
        job: id.to_string(),
        state: view.state,
        reason: view.reason,
        message: view.message,
        options: if open { options(shown.state.books(), claim) } else { Vec::new() },
        history: lines.collect(),
        next_steps: match view.failure {
            Some(failure) => failure.next_steps,
            None => next_steps(shown, claim, ceiling),
        },
        decision: job.map(|job| job.decision).filter(|&decision| decision > 0),
    })
}

/// The task of an array that there is most to say of.
fn spokesman(shown: &Shown, claims: std::ops::Range<u32>) -> ClaimId {
    let first = ClaimId(claims.start);
    let books = shown.state.books();
    let state = |claim: &ClaimId| views::state_of(books.claim(*claim)).0;
    let is_failed = |claim: &ClaimId| matches!(state(claim), JobState::Failed | JobState::TimedOut | JobState::Refused);
    let failed = claims.clone().map(ClaimId).find(is_failed);
    failed.or_else(|| claims.map(ClaimId).find(|claim| !state(claim).is_final())).unwrap_or(first)
}

/// The shapes the job could have, what each is worth by what is known of it, and what is in the way now.
fn options(books: &Books, claim: &Claim) -> Vec<OptionView> {
    let spec = &claim.spec;
    let given = claim.target.as_ref().map(|target| target.placement.shape(&books.cluster));
    let sizes = || {
        let doubling = std::iter::successors(Some(1_u32), |size| size.checked_mul(2));
        let ladder =
            doubling.skip_while(|&size| size < spec.scaling.min()).take_while(|&size| size <= spec.scaling.max());
        let ends = [spec.scaling.min(), spec.scaling.max()];
        let mut sizes: Vec<u32> = ladder.chain(ends).chain(given.map(|shape| shape.workers)).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    };
    if !spec.uses_gpus() {
        let chosen = given.is_some();
        return vec![OptionView {
            gpu_kind: None,
            workers: spec.scaling.min(),
            nodes: 1,
            goodput: None,
            chosen,
            obstacle: None,
        }];
    }
    let kinds = books.cluster.kinds().filter(|(kind, _)| spec.allows_kind(*kind));
    let mut options = Vec::new();
    for (kind, described) in kinds {
        for workers in sizes() {
            if !claim.speed.allows(Some(kind), workers)
                || spec.gpus(workers).as_f64() > f64::from(books.cluster.gpus_of(kind))
            {
                continue;
            }
            let chosen = given.is_some_and(|shape| shape.kind == Some(kind) && shape.workers == workers);
            let nodes = if chosen { given.map_or(1, |shape| shape.nodes) } else { nodes_for(books, kind, workers) };
            options.push(OptionView {
                gpu_kind: Some(described.name.to_string()),
                workers,
                nodes,
                goodput: worth(books, claim, Shape { kind: Some(kind), workers, nodes }),
                chosen,
                obstacle: if chosen { None } else { obstacle(books, claim, kind, workers) },
            });
        }
    }
    options
}

/// The fewest nodes on which so many workers find place.
fn nodes_for(books: &Books, kind: GpuKind, workers: u32) -> u32 {
    let most = books.cluster.nodes().filter(|(_, node)| node.kind == Some(kind)).map(|(_, node)| u32::from(node.gpus));
    workers.div_ceil(most.max().unwrap_or(1).max(1))
}

fn worth(books: &Books, claim: &Claim, shape: Shape) -> Option<f64> {
    match &claim.speed.adaptation {
        Some(adaptation) => {
            let tuning = claim.learned.tuning(adaptation, shape)?;
            claim.learned.goodput(adaptation, shape, tuning)
        }
        None => claim.speed.rate(&Situation::shaped(&claim.spec, shape, None, &books.cluster)),
    }
}

/// What keeps the job from this shape at the moment.
fn obstacle(books: &Books, claim: &Claim, kind: GpuKind, workers: u32) -> Option<String> {
    let open = books.cluster.nodes().filter(|(id, node)| node.kind == Some(kind) && books.room().is_open(*id));
    let free: u32 = open.map(|(id, _)| books.room().free_devices(id).count()).sum();
    let own = claim.target.as_ref().filter(|target| target.placement.kind(&books.cluster) == Some(kind));
    let own = own.map_or(0.0, |target| target.placement.gpus().as_f64());
    let needed = claim.spec.gpus(workers).as_f64();
    let name = &books.cluster.kind(kind).name;
    if f64::from(free) + own < needed {
        return Some(format!("needs {needed} {name}, {} free", f64::from(free) + own));
    }
    claim.target.is_some().then(|| "not worth a restart, or worth more to others".into())
}

/// No job has a higher one.
const HIGHEST_PRIORITY: i32 = 1000;

/// The lowest priority by which the claim would come before all others that wait; none if it does already.
fn priority_above_others(books: &Books, claim: &Claim) -> Option<i32> {
    let others = books.claims().live().filter(|other| other.id != claim.id && other.is_waiting() && !other.held);
    let highest = others.map(|other| other.priority).max()?;
    (highest >= claim.priority).then_some(highest + 1).filter(|&priority| priority <= HIGHEST_PRIORITY)
}

/// What the user can do about it.
fn next_steps(shown: &Shown, claim: &Claim, ceiling: Option<i32>) -> Vec<String> {
    let id = shown.ledger.id(claim.id);
    let state = views::state_of(claim).0;
    let mut steps = Vec::new();
    let reason = match claim.note.obstacle {
        // The whole cluster is in use: another queue has no more to give.
        Some(Obstacle::Quota { queue: QueueId::ROOT, .. }) => Reason::WaitingForResources,
        _ => claim.note.reason,
    };
    match (state, reason) {
        (JobState::Pending, _) if claim.note.obstacle.is_none() && claim.note.reason == Reason::PendingEvaluation => {
            steps.push("wait for the next decision, or see `moira policy current` for how often there is one".into());
        }
        (JobState::Pending, Reason::WaitingForResources | Reason::Priority | Reason::Reservation) => {
            steps.push("see who holds what with `moira ls` and `moira node ls`".into());
            if claim.spec.scaling.min() > 1 {
                steps.push("let it start smaller: a range of workers like --workers 1..N".into());
            }
            if !claim.spec.kinds.is_empty() {
                steps.push("let it use other kinds of GPU: leave out --gpu-kind".into());
            }
            let higher = priority_above_others(shown.state.books(), claim);
            if let Some(priority) = higher.filter(|&priority| priority <= ceiling.unwrap_or(HIGHEST_PRIORITY)) {
                steps.push(format!("let it go before others: moira priority {id} {priority}"));
            }
        }
        (JobState::Pending, Reason::WaitingForQuota) => {
            steps.push("see the limits with `moira queue ls`, or submit to another queue with --queue".into());
        }
        (JobState::Pending, Reason::Dependency) => {
            steps.push("see the jobs it waits for with `moira show`; if one fails, this one ends too".into());
        }
        (JobState::Held, _) => steps.push(format!("moira release {id}")),
        (JobState::Running, _)
            if claim.speed.adaptation.is_none() && claim.spec.scaling.max() > claim.spec.scaling.min() =>
        {
            steps.push(
                "let it report its steps, so that its size can be chosen by its speed: docs/guides/progress.md".into(),
            );
        }
        _ => {}
    }
    steps
}
