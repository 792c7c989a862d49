//! How long what has ended is kept: jobs in memory, the directories of their runs, and the archives of the journal.
//! Forgetting a job is a fact, and the journal notes which archives it let go; removing a directory is on no record, since
//! nothing is decided by it. Checkpoints are never removed.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration as Wait, SystemTime};

use api::{Duration, Quantity};
use cluster::{ClaimId, Run, Span, Time};
use engine::State;
use executors::{ExecutorError, Input, Keeper, Settled, SettledRun};
use journal::StoredArchive;
use plan::{Claim, Phase};
use serde::{Deserialize, Serialize};

use crate::data_dir::journal_path;
use crate::error::ServerError;
use crate::ledger::Ledger;
use crate::opening::note_next_number;
use crate::replica::Replica;

/// The table `retention` of the configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Retention {
    /// Jobs that ended longer ago are forgotten.
    pub jobs_for: Duration,
    /// Of jobs that have ended so many are known, each task of an array counted; the oldest are forgotten.
    pub jobs: usize,
    /// So much room the descriptions of jobs that have ended may take; the oldest are forgotten.
    pub jobs_size: Quantity,
    /// Run directories in `done` that are older are removed.
    pub runs_for: Duration,
    /// So many run directories are kept in `done`.
    pub runs: usize,
    /// So much room run directories may take in `done`.
    pub runs_size: Quantity,
    /// Archives of the journal that are older are removed.
    pub archives_for: Duration,
    /// So many archives are kept.
    pub archives: usize,
    /// So much room archives may take.
    pub archives_size: Quantity,
    /// So many entries the journal may have after its snapshot before a new one is made; with more than 25,000 jobs,
    /// four for each of them.
    pub journal_entries: u64,
}

const DAY: u64 = 24 * 3600;

impl Default for Retention {
    fn default() -> Retention {
        Retention {
            jobs_for: Duration::from_secs(30 * DAY),
            jobs: 100_000,
            // A job may have 256 KiB of environment and 128 KiB of command, and both are kept twice.
            jobs_size: Quantity::new(1 << 30),
            runs_for: Duration::from_secs(30 * DAY),
            runs: 10_000,
            runs_size: Quantity::new(10 << 30),
            archives_for: Duration::from_secs(3650 * DAY),
            archives: 100_000,
            archives_size: Quantity::new(10 << 30),
            journal_entries: 100_000,
        }
    }
}

/// When to look for jobs to forget.
#[derive(Debug, Clone)]
pub struct Forgetting {
    limits: Retention,
    next: Time,
}

/// How often it is looked for something to forget or to remove.
const EVERY: Span = Span::from_secs(10);
/// So many claims are forgotten at once, so that nobody waits long for it.
const MOST_AT_ONCE: usize = 10_000;

impl Forgetting {
    pub fn new(limits: Retention) -> Forgetting {
        Forgetting { limits, next: Time::ZERO }
    }

    /// The claims that are to be forgotten now.
    pub(crate) fn due(&mut self, now: Time, state: &State, ledger: &Ledger) -> Vec<ClaimId> {
        if now < self.next {
            return Vec::new();
        }
        self.next = now + EVERY;
        forgettable(now, state, ledger, &self.limits, MOST_AT_ONCE)
    }
}

/// Jobs on which one depends that has not ended or that such a one runs again, and those of whose end no policy has heard
/// yet.
pub(crate) fn needed(state: &State, ledger: &Ledger) -> BTreeSet<ClaimId> {
    let live = || state.books().claims().live();
    let depended_on = live().flat_map(|claim| claim.spec.after.iter());
    let continued = live().flat_map(|claim| continued_by(ledger, claim.id));
    depended_on.chain(state.changed()).copied().chain(continued).collect()
}

/// The earlier jobs that this one runs again, the latest first. Their checkpoints go to it when it is launched, and stay
/// under their numbers until then.
pub(crate) fn continued_by(ledger: &Ledger, claim: ClaimId) -> impl Iterator<Item = ClaimId> {
    let earlier = |claim: &ClaimId| ledger.acceptance(*claim)?.continued_by(*claim);
    std::iter::successors(earlier(&claim), earlier)
}

/// The jobs that would start anew without the checkpoints there are: they were launched or run an earlier one again, and
/// have not ended.
pub(crate) fn keepers(state: &State, ledger: &Ledger) -> Vec<Keeper> {
    let keeper = |claim: &Claim| Keeper { job: claim.id, earlier: continued_by(ledger, claim.id).collect() };
    let live = state.books().claims().live().map(|claim| (claim.progress.launches > 0, keeper(claim)));
    live.filter(|(was_launched, keeper)| *was_launched || !keeper.earlier.is_empty())
        .map(|(_, keeper)| keeper)
        .collect()
}

/// A submission that has ended as a whole.
struct Ended {
    at: Time,
    tasks: Range<u32>,
    size: u64,
}

/// Claims of jobs that ended too long ago, or which are too many or too large together, the oldest first and about so many
/// at most. An array is forgotten as a whole, and a job that is needed stays.
pub(crate) fn forgettable(now: Time, state: &State, ledger: &Ledger, limits: &Retention, most: usize) -> Vec<ClaimId> {
    let (claims, needed) = (state.books().claims(), needed(state, ledger));
    // Of whom somebody is still to be told.
    let untold: BTreeSet<ClaimId> = ledger.notifications_due().map(|(_, due)| due.claim).collect();
    let mut ended: Vec<Ended> = Vec::new();
    for (acceptance, size) in ledger.submissions_and_sizes() {
        let tasks = acceptance.first.0..acceptance.first.0 + acceptance.task_count();
        let ends = tasks.clone().map(|task| claims.get(ClaimId(task)).and_then(ended_at));
        if let Some(ends) = ends.collect::<Option<Vec<Time>>>() {
            ended.push(Ended { at: ends.into_iter().max().unwrap_or(now), tasks, size });
        }
    }
    ended.sort_by_key(|it| (it.at, it.tasks.start));
    let known: usize = ended.iter().map(|it| it.tasks.len()).sum();
    let room: u64 = ended.iter().map(|it| it.size).sum();
    let mut too_many = known.saturating_sub(limits.jobs);
    let mut too_much = room.saturating_sub(limits.jobs_size.bytes().get());
    let mut forgotten = Vec::new();
    for Ended { at, tasks, size } in ended {
        let too_old = now.since(at) >= limits.jobs_for.span();
        if !too_old && too_many == 0 && too_much == 0 || forgotten.len() >= most {
            break;
        }
        if tasks.clone().any(|task| needed.contains(&ClaimId(task)) || untold.contains(&ClaimId(task))) {
            continue;
        }
        too_many = too_many.saturating_sub(tasks.len());
        too_much = too_much.saturating_sub(size);
        forgotten.extend(tasks.map(ClaimId));
    }
    forgotten
}

pub(crate) fn ended_at(claim: &Claim) -> Option<Time> {
    match claim.phase {
        Phase::Ended { at, .. } => Some(at),
        _ => None,
    }
}

/// Settled runs that are too old, too many or too large together, the oldest first. Runs of jobs that have not ended
/// stay.
pub(crate) fn removable(
    now: SystemTime,
    mut runs: Vec<SettledRun>,
    limits: &Retention,
    is_live: impl Fn(ClaimId) -> bool,
) -> Vec<SettledRun> {
    runs.sort_by_key(|run| (run.ended, run.run));
    let mut count = runs.len();
    let mut bytes: u64 = runs.iter().map(|run| run.bytes).sum();
    let oldest = now.checked_sub(Wait::from_millis(limits.runs_for.span().as_millis()));
    let mut removed = Vec::new();
    for run in runs {
        let too_old = oldest.is_some_and(|oldest| run.ended <= oldest);
        if !too_old && count <= limits.runs && bytes <= limits.runs_size.bytes().get() {
            break;
        }
        if is_live(run.run.claim) {
            continue;
        }
        count -= 1;
        bytes -= run.bytes;
        removed.push(run);
    }
    removed
}

/// The archives that these limits leave no room for, the oldest first. None goes before an older one.
pub(crate) fn removable_archives(
    now: SystemTime,
    mut archives: Vec<StoredArchive>,
    limits: &Retention,
) -> Vec<StoredArchive> {
    let mut bytes: u64 = archives.iter().map(|archive| archive.bytes).sum();
    let mut count = archives.len();
    let oldest = now.checked_sub(Wait::from_millis(limits.archives_for.span().as_millis()));
    let mut goes = |archive: &StoredArchive| {
        let too_old = oldest.is_some_and(|oldest| archive.written <= oldest);
        let goes = too_old || count > limits.archives || bytes > limits.archives_size.bytes().get();
        count -= 1;
        bytes -= archive.bytes;
        goes
    };
    let stays = archives.iter().position(|archive| !goes(archive)).unwrap_or(archives.len());
    archives.truncate(stays);
    archives
}

/// Lets go of archives, after it is noted which numbers they told of: without a journal nothing else might.
pub(crate) fn remove_archives(data_dir: &Path, archives: &[StoredArchive], next: u32) -> Result<(), ServerError> {
    let Some(newest) = archives.last() else { return Ok(()) };
    note_next_number(data_dir, next)?;
    Ok(journal::release_archives(&journal_path(data_dir), newest.last)?)
}

/// Removes run directories and archives until told to leave, on a thread of its own.
pub(crate) fn keep_tidy(data_dir: &Path, limits: &Retention, replica: &Arc<Replica>, leave: &Receiver<()>) {
    let every = Wait::from_millis(EVERY.as_millis());
    let (mut settled, mut stubborn) = (Settled::default(), BTreeSet::new());
    while let Err(RecvTimeoutError::Timeout) = leave.recv_timeout(every) {
        if let Err(error) = tidy(data_dir, limits, replica, &mut settled, &mut stubborn) {
            tracing::warn!(%error, "old run directories could not be listed");
        }
        if let Err(error) = tidy_inputs(data_dir, replica) {
            tracing::warn!(%error, "the input of jobs that have ended could not be removed");
        }
        if let Err(error) = tidy_archives(data_dir, limits, replica) {
            tracing::warn!(%error, "old archives of the journal could not be removed");
        }
    }
}

fn tidy(
    data_dir: &Path,
    limits: &Retention,
    replica: &Arc<Replica>,
    settled: &mut Settled,
    stubborn: &mut BTreeSet<Run>,
) -> Result<(), ExecutorError> {
    let runs = settled.look(data_dir)?;
    let is_live = |claim| replica.read().state.books().claims().get(claim).is_some_and(Claim::is_live);
    let removed = removable(SystemTime::now(), runs, limits, is_live);
    let failures = remove_each(&removed, |run| run.remove(data_dir));
    if removed.len() > failures.len() {
        tracing::info!(runs = removed.len() - failures.len(), "old run directories were removed");
    }
    // Each is tried again in every round, and told once.
    for (run, error) in failures {
        if stubborn.insert(run.run) {
            tracing::warn!(%error, "an old run directory could not be removed");
        }
    }
    Ok(())
}

/// Removes each, whatever becomes of the others, and returns those that could not be removed.
pub(crate) fn remove_each<T>(all: &[T], remove: impl Fn(&T) -> Result<(), ExecutorError>) -> Vec<(&T, ExecutorError)> {
    all.iter().filter_map(|one| remove(one).err().map(|error| (one, error))).collect()
}

/// What was sent to jobs is kept as long as they may run again.
fn tidy_inputs(data_dir: &Path, replica: &Arc<Replica>) -> Result<(), ExecutorError> {
    // Listed first: what is made meanwhile belongs to a job that lives.
    let names = Input::names_in(data_dir)?;
    if names.is_empty() {
        return Ok(());
    }
    let needed: BTreeSet<String> = {
        let shown = replica.read();
        let live = shown.state.books().claims().live();
        live.filter_map(|claim| shown.ledger.acceptance(claim.id)?.program.input.clone()).collect()
    };
    let ended: Vec<&String> = names.iter().filter(|name| !needed.contains(*name)).collect();
    let failures = remove_each(&ended, |name| Input::of(data_dir, name).remove());
    failures.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
}

fn tidy_archives(data_dir: &Path, limits: &Retention, replica: &Arc<Replica>) -> Result<(), ServerError> {
    let archives = journal::stored_archives(&journal_path(data_dir))?;
    let removed = removable_archives(SystemTime::now(), archives, limits);
    remove_archives(data_dir, &removed, replica.read().ledger.next_number())?;
    if let Some(newest) = removed.last() {
        let (archives, upto) = (removed.len(), newest.last);
        tracing::info!(archives, upto, "old archives were removed: the record begins after this entry");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn run(claim: u32, secs: u64, bytes: u64) -> SettledRun {
        let ended = SystemTime::UNIX_EPOCH + Wait::from_secs(secs);
        SettledRun { run: Run { claim: ClaimId(claim), attempt: 1 }, ended, bytes }
    }

    fn removed(limits: Retention) -> Vec<u32> {
        let runs = vec![run(3, 300, 10), run(1, 100, 10), run(2, 200, 30), run(4, 400, 10)];
        let now = SystemTime::UNIX_EPOCH + Wait::from_secs(1000);
        let removed = removable(now, runs, &limits, |claim| claim == ClaimId(1));
        removed.iter().map(|run| run.run.claim.0).collect()
    }

    #[test]
    fn settled_runs_go_by_age_number_and_size_the_oldest_first_and_never_those_of_a_live_job() {
        assert_eq!(removed(Retention::default()), [] as [u32; 0]);
        assert_eq!(removed(Retention { runs_for: Duration::from_secs(750), ..Retention::default() }), [2]);
        assert_eq!(removed(Retention { runs: 2, ..Retention::default() }), [2, 3]);
        assert_eq!(removed(Retention { runs_size: Quantity::new(30), ..Retention::default() }), [2]);
    }

    #[test]
    fn what_cannot_be_removed_keeps_nothing_else() {
        let tried = RefCell::new(Vec::new());
        let failures = remove_each(&[1, 2, 3, 4], |number| {
            tried.borrow_mut().push(*number);
            let broken =
                || ExecutorError::File { doing: "remove", path: "run".into(), source: std::io::Error::other("broken") };
            if number % 2 == 1 { Err(broken()) } else { Ok(()) }
        });
        assert_eq!(failures.into_iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(tried.into_inner(), [1, 2, 3, 4]);
    }

    fn removed_archives(limits: Retention) -> Vec<u64> {
        let archive = |last: u64, secs: u64, bytes: u64| {
            let written = SystemTime::UNIX_EPOCH + Wait::from_secs(secs);
            StoredArchive { first: last - 9, last, path: "archive".into(), bytes, written }
        };
        // The second one was copied back from a backup, and looks younger than it is.
        let archives = vec![archive(10, 100, 30), archive(20, 900, 10), archive(30, 300, 10)];
        let now = SystemTime::UNIX_EPOCH + Wait::from_secs(1000);
        removable_archives(now, archives, &limits).iter().map(|archive| archive.last).collect()
    }

    #[test]
    fn archives_go_by_age_number_and_size_and_none_before_an_older_one() {
        assert_eq!(removed_archives(Retention::default()), [] as [u64; 0]);
        let old = Retention { archives_for: Duration::from_secs(600), ..Retention::default() };
        assert_eq!(removed_archives(old), [10], "the third one is old, but the one before it is not");
        assert_eq!(removed_archives(Retention { archives: 1, ..Retention::default() }), [10, 20]);
        assert_eq!(removed_archives(Retention { archives: 0, ..Retention::default() }), [10, 20, 30]);
        assert_eq!(removed_archives(Retention { archives_size: Quantity::new(20), ..Retention::default() }), [10]);
    }
}
