//! Why a job did not succeed, in words, and what its user can do about it.

use api::{FailureView, JobId};
use cluster::{Bytes, ClaimId};
use executors::{Ending, Exit};
use plan::{Claim, Outcome, Phase};

use crate::fact::Acceptance;
use crate::replica::Shown;

/// How far a chain of dependencies is followed to what failed first.
const LONGEST_CHAIN: u32 = 8;

/// What went wrong: a stable word for programs, a text for people.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Cause {
    kind: &'static str,
    text: String,
}

impl Cause {
    fn new(kind: &'static str, text: impl Into<String>) -> Cause {
        Cause { kind, text: text.into() }
    }
}

/// Why a claim ended without success; nothing if it has not ended, ended well, or was cancelled.
pub(crate) fn message(shown: &Shown, claim: &Claim) -> Option<String> {
    cause(shown, claim, 0).map(|cause| cause.text)
}

/// How the latest run of a claim that goes on has failed, if it has.
pub(crate) fn last_run(shown: &Shown, claim: &Claim) -> Option<String> {
    let (_, ending) = shown.ledger.job(claim.id)?.ending.as_ref()?;
    let has_failed = ending.trouble.is_some() || (ending.failed_first.is_some() && !ending.told_to_stop);
    has_failed.then(|| of_ending(ending).text)
}

/// The same with what programs want to know, and what to do.
pub(crate) fn view(shown: &Shown, claim: &Claim) -> Option<FailureView> {
    let cause = cause(shown, claim, 0)?;
    let id = shown.ledger.id(claim.id);
    let ending = shown.ledger.job(claim.id).and_then(|job| job.ending.as_ref()).map(|(_, ending)| ending);
    let worker = ending.and_then(|ending| ending.failed_member.or(ending.failed_first));
    Some(FailureView {
        kind: cause.kind.into(),
        message: cause.text,
        worker,
        workers: ending.map_or(0, |ending| ending.exits.len() as u32),
        attempt: claim.progress.launches,
        task: id.task.map(|_| id.to_string()),
        next_steps: next_steps(shown, claim, cause.kind, id, worker.filter(|_| ending.is_some_and(is_gang))),
    })
}

/// The first task of an array that did not succeed stands for it. `others` is how many more there are.
pub(crate) fn of_array(shown: &Shown, acceptance: &Acceptance) -> Option<FailureView> {
    let first = acceptance.first.0;
    let claims = (first..first + acceptance.task_count()).map(|claim| shown.state.books().claim(ClaimId(claim)));
    let mut failed = claims.filter(|claim| has_failed(claim));
    let failure = view(shown, failed.next()?)?;
    let others = match failed.count() {
        0 => String::new(),
        1 => ", and 1 other task".into(),
        more => format!(", and {more} other tasks"),
    };
    let task = failure.task.clone().unwrap_or_default();
    let message = format!("task {task} failed: {}{others}", failure.message);
    Some(FailureView { message, ..failure })
}

fn cause(shown: &Shown, claim: &Claim, depth: u32) -> Option<Cause> {
    let Phase::Ended { outcome, .. } = &claim.phase else { return None };
    match outcome {
        Outcome::Finished | Outcome::Cancelled => None,
        Outcome::GivenUp => {
            let ending = shown.ledger.job(claim.id).and_then(|job| job.ending.as_ref());
            Some(ending.map_or_else(|| Cause::new("lost", "nobody saw how it ended"), |(_, ending)| of_ending(ending)))
        }
        Outcome::DependencyFailed => Some(Cause::new("dependency", of_dependency(shown, claim, depth))),
        Outcome::TimedOut => {
            let limit = claim.spec.limit.map_or(String::new(), |limit| format!(" of {limit}"));
            Some(Cause::new("time_limit", format!("it reached its time limit{limit}")))
        }
        Outcome::Refused => Some(Cause::new("refused", "it could never have run here")),
    }
}

/// The first of the jobs it was to run after that did not succeed, and why. Anyone may run after a job of anybody's, so of
/// one that belongs to another user this says no more than everyone sees of it.
fn of_dependency(shown: &Shown, claim: &Claim, depth: u32) -> String {
    let known = || {
        let acceptance = shown.ledger.acceptance(claim.id)?;
        acceptance.request.depends_on.iter().find_map(|id| {
            let mut claims = shown.ledger.claims(*id)?.map(|claim| shown.state.books().claim(ClaimId(claim)));
            claims.find_map(|dependency| failed_dependency(shown, claim, dependency, depth))
        })
    };
    // It may be forgotten by now.
    known().unwrap_or_else(|| "a job it was to run after did not finish".into())
}

fn failed_dependency(shown: &Shown, claim: &Claim, dependency: &Claim, depth: u32) -> Option<String> {
    let Phase::Ended { outcome, .. } = &dependency.phase else { return None };
    let id = shown.ledger.id(dependency.id);
    match outcome {
        Outcome::Finished => None,
        Outcome::Cancelled => Some(format!("dependency {id} was cancelled")),
        Outcome::TimedOut => Some(format!("dependency {id} reached its time limit")),
        _ if depth >= LONGEST_CHAIN || !have_one_owner(shown, claim, dependency) => {
            Some(format!("dependency {id} failed"))
        }
        _ => cause(shown, dependency, depth + 1).map(|cause| format!("dependency {id} failed: {}", cause.text)),
    }
}

fn have_one_owner(shown: &Shown, one: &Claim, other: &Claim) -> bool {
    let owner = |claim: &Claim| shown.ledger.acceptance(claim.id).map(|acceptance| acceptance.owner.uid);
    owner(one) == owner(other)
}

fn is_gang(ending: &Ending) -> bool {
    ending.exits.len() > 1
}

fn of_ending(ending: &Ending) -> Cause {
    if let Some(trouble) = &ending.trouble {
        let kind = if trouble.contains("no such program") { "no_such_program" } else { "trouble" };
        let alone = trouble.strip_prefix("cannot start worker 0: ").filter(|_| !is_gang(ending));
        return Cause::new(kind, alone.unwrap_or(trouble));
    }
    let Some(rank) = ending.failed_first else { return Cause::new("lost", "nobody saw how it ended") };
    let exit = ending.exits.get(rank as usize).copied().unwrap_or_default();
    let cause = match ending.out_of_memory {
        Some(limit) => Cause::new("out_of_memory", format!("out of memory (limit {})", size(limit))),
        None => of_exit(exit),
    };
    match is_gang(ending) {
        true => {
            let worker = ending.failed_member.unwrap_or(rank);
            Cause::new(cause.kind, format!("worker {worker} failed: {}", cause.text))
        }
        false => cause,
    }
}

fn of_exit(exit: Exit) -> Cause {
    match (exit.signal, exit.code) {
        (Some(signal), _) => Cause::new("signal", format!("killed by {}", signal_name(signal))),
        (None, Some(code)) => Cause::new("exit", format!("exit {code}")),
        (None, None) => Cause::new("lost", "nobody saw how it ended"),
    }
}

fn signal_name(signal: i32) -> String {
    const NAMES: [(i32, &str); 12] = [
        (1, "SIGHUP"),
        (2, "SIGINT"),
        (3, "SIGQUIT"),
        (4, "SIGILL"),
        (6, "SIGABRT"),
        (7, "SIGBUS"),
        (8, "SIGFPE"),
        (9, "SIGKILL"),
        (11, "SIGSEGV"),
        (13, "SIGPIPE"),
        (15, "SIGTERM"),
        (24, "SIGXCPU"),
    ];
    let name = NAMES.iter().find(|(number, _)| *number == signal);
    name.map_or_else(|| format!("signal {signal}"), |(_, name)| (*name).into())
}

/// As people write an amount of memory.
fn size(bytes: Bytes) -> String {
    let bytes = bytes.get();
    match bytes {
        _ if bytes >= 1 << 30 && bytes.is_multiple_of(1 << 30) => format!("{} GiB", bytes >> 30),
        _ if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
        _ => format!("{} KiB", bytes >> 10),
    }
}

fn next_steps(shown: &Shown, claim: &Claim, kind: &str, id: JobId, worker: Option<u32>) -> Vec<String> {
    let mut steps = Vec::new();
    if claim.progress.launches > 0 {
        let worker = worker.map_or(String::new(), |worker| format!(" --worker {worker}"));
        steps.push(format!("read what it wrote: moira logs {id}{worker}"));
    }
    let retries = shown.ledger.acceptance(claim.id).map_or(0, |acceptance| acceptance.request.retry.max_failures);
    match kind {
        "no_such_program" => {
            steps.push("check the name of the program, and whether the job's PATH leads to it: --env PATH".into());
        }
        "out_of_memory" => steps.push("submit it with more --memory".into()),
        "time_limit" => steps.push("submit it with a longer --max-runtime".into()),
        "dependency" => steps.push("see the job that failed, and submit both again".into()),
        "exit" | "signal" | "lost" | "trouble" if retries == 0 => {
            steps.push("let such failures be tried again by themselves: submit with --retries N".into());
        }
        _ => {}
    }
    if !matches!(kind, "refused" | "dependency") {
        steps.push(format!("run it once more, from its last checkpoint if it has one: moira requeue {id}"));
    }
    steps
}

/// Whether a claim has ended without success, and nobody wanted that.
pub(crate) fn has_failed(claim: &Claim) -> bool {
    matches!(&claim.phase, Phase::Ended { outcome, .. } if !matches!(outcome, Outcome::Finished | Outcome::Cancelled))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILLED: Exit = Exit { code: None, signal: Some(9) };
    const STOPPED: Exit = Exit { code: None, signal: Some(15) };

    fn said(ending: &Ending) -> String {
        of_ending(ending).text
    }

    #[test]
    fn one_program_is_told_by_its_exit_and_a_gang_by_the_worker_too() {
        let three = Exit { code: Some(3), signal: None };
        let alone = Ending { exits: vec![three], failed_first: Some(0), ..Ending::default() };
        assert_eq!(said(&alone), "exit 3");
        let gang = Ending { exits: vec![STOPPED, three], failed_first: Some(1), ..Ending::default() };
        assert_eq!(said(&gang), "worker 1 failed: exit 3");
        let joined_later = Ending { failed_member: Some(4), ..gang };
        assert_eq!(said(&joined_later), "worker 4 failed: exit 3", "by the number of its log");
        assert_eq!(
            said(&Ending { exits: vec![KILLED], failed_first: Some(0), ..Ending::default() }),
            "killed by SIGKILL"
        );
    }

    #[test]
    fn a_worker_without_memory_is_told_what_it_was_allowed() {
        let limit = Some(Bytes::mib(100));
        let ending = Ending { exits: vec![KILLED], failed_first: Some(0), out_of_memory: limit, ..Ending::default() };
        assert_eq!(said(&ending), "out of memory (limit 100 MiB)");
        let gang = Ending { exits: vec![STOPPED, KILLED], failed_first: Some(1), ..ending };
        assert_eq!(said(&gang), "worker 1 failed: out of memory (limit 100 MiB)");
    }

    #[test]
    fn a_program_that_is_not_there_is_named_without_ado() {
        let trouble = Some("cannot start worker 0: no such program: `pyton`".into());
        let nowhere = Exit { code: Some(127), signal: None };
        let ending = Ending { exits: vec![nowhere], trouble, ..Ending::default() };
        assert_eq!(of_ending(&ending), Cause::new("no_such_program", "no such program: `pyton`"));
        let gang = Ending { exits: vec![nowhere; 2], ..ending };
        assert_eq!(said(&gang), "cannot start worker 0: no such program: `pyton`");
    }

    #[test]
    fn memory_is_said_in_the_unit_people_write() {
        assert_eq!([Bytes::mib(100), Bytes::gib(2), Bytes::mib(1536)].map(size), ["100 MiB", "2 GiB", "1536 MiB"]);
    }
}
