//! Why a job has what it has: the notes of the decision core, the options that were open, and what its user can do.

use api::{Explanation, HistoryLine, JobId, JobState, OptionView};
use cluster::{ClaimId, GpuKind, Shape, Time};
use perf::Situation;
use plan::{Books, Claim, Reason};

use crate::core::no_job;
use crate::replica::Shown;
use crate::views::{self, moment};

pub fn explain(shown: &Shown, id: JobId, now: Time) -> Result<Explanation, api::Problem> {
    let view = views::job(shown, id, now, false).ok_or_else(|| no_job(&shown.ledger, id))?;
    let claims = shown.ledger.claims(id).ok_or_else(|| no_job(&shown.ledger, id))?;
    let claim = shown.state.books().claim(ClaimId(claims.start));
    let job = shown.ledger.job(claim.id);
    let history = job.map_or(&[][..], |job| job.history.as_slice());
    let lines = history.iter().filter_map(|happening| {
        Some(HistoryLine {
            at: moment(shown, happening.at),
            text: views::happening(shown, &happening.what)?,
            decision: (happening.decision > 0).then_some(happening.decision),
        })
    });
    let open = claim.is_live() && claims.len() == 1;
    Ok(Explanation {
        job: id.to_string(),
        state: view.state,
        reason: view.reason,
        message: view.message,
        options: if open { options(shown.state.books(), claim) } else { Vec::new() },
        history: lines.collect(),
        next_steps: next_steps(shown, claim, view.state),
        decision: job.map(|job| job.decision).filter(|&decision| decision > 0),
    })
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

/// What the user can do about it.
fn next_steps(shown: &Shown, claim: &Claim, state: JobState) -> Vec<String> {
    let id = shown.ledger.id(claim.id);
    let mut steps = Vec::new();
    match (state, claim.note.reason) {
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
            steps.push(format!("let it go before others: moira priority {id} {}", claim.priority + 1));
        }
        (JobState::Pending, Reason::WaitingForQuota) => {
            steps.push("see the limits with `moira queue ls`, or submit to another queue with --queue".into());
        }
        (JobState::Pending, Reason::Dependency) => {
            steps.push("see the jobs it waits for with `moira show`; if one fails, this one ends too".into());
        }
        (JobState::Held, _) => steps.push(format!("moira release {id}")),
        (JobState::Failed | JobState::TimedOut, _) => {
            steps.push(format!("read what it said: moira logs {id}"));
            if state == JobState::TimedOut {
                steps.push("submit it again with a longer --max-runtime".into());
            }
        }
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
