//! What of a data directory is not to be kept, as an administrator sees and removes it: with the service or without. What
//! the service removes by itself is found in the same way.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use cluster::{ClaimId, Span, Time};
use engine::Event;
use executors::{Checkpoints, OldCheckpoints, Settled, SettledRun};
use journal::{Journal, JournalError, Reader, StoredArchive};
use plan::Claim;

use crate::clock::{Clock, Reading};
use crate::data_dir::journal_path;
use crate::error::ServerError;
use crate::fact::{Caller, Deed, FORMAT, Fact};
use crate::ledger::Unknown;
use crate::live::text_of;
use crate::opening::Past;
use crate::retention::{
    Retention, ended_at, forgettable, needed, removable, removable_archives, remove_archives, remove_each,
};

/// Everything that these limits leave no room for.
#[derive(Debug)]
pub struct Clearing {
    data_dir: PathBuf,
    next_number: u32,
    /// Claims that would be forgotten, each task of an array for itself.
    pub jobs: Vec<ClaimId>,
    pub runs: Vec<SettledRun>,
    pub archives: Vec<StoredArchive>,
    /// Nothing unless it was asked for.
    pub checkpoints: Vec<OldCheckpoints>,
}

impl Clearing {
    /// Looks what would go. Of jobs that ended this long ago, if that is said, the checkpoints go too; never those of a
    /// job that has not ended, on which such a job waits or that it runs again.
    pub fn look(data_dir: &Path, limits: &Retention, checkpoints_after: Option<Span>) -> Result<Clearing, ServerError> {
        let path = journal_path(data_dir);
        let past = if path.exists() { Some(known(&path)?) } else { None };
        let is_live = |job| past.as_ref().is_some_and(|past| past.claim(job).is_some_and(Claim::is_live));
        let now = SystemTime::now();
        let settled = if data_dir.join("done").exists() { Settled::default().look(data_dir)? } else { Vec::new() };
        let runs = removable(now, settled, limits, is_live);
        let Some(past) = &past else {
            let (jobs, archives, checkpoints) = (Vec::new(), Vec::new(), Vec::new());
            return Ok(Clearing { data_dir: data_dir.into(), next_number: 0, jobs, runs, archives, checkpoints });
        };
        let archives = removable_archives(now, journal::stored_archives(&path)?, limits);
        let jobs = past.forgettable(limits);
        let checkpoints = match checkpoints_after {
            None => Vec::new(),
            Some(after) => past.old_checkpoints(&Checkpoints::last_used(data_dir)?, after)?,
        };
        let next_number = past.ledger.next_number();
        Ok(Clearing { data_dir: data_dir.into(), next_number, jobs, runs, archives, checkpoints })
    }

    /// Removes all of it; false if jobs are left to the service that has the journal open, which forgets them by itself.
    /// An error if something could not be removed; everything else is gone then.
    pub fn remove(&self, limits: &Retention) -> Result<bool, ServerError> {
        let forgotten = self.jobs.is_empty() || forget(&journal_path(&self.data_dir), limits)?;
        let runs = remove_each(&self.runs, |run| run.remove(&self.data_dir));
        remove_archives(&self.data_dir, &self.archives, self.next_number)?;
        let checkpoints = remove_each(&self.checkpoints, OldCheckpoints::remove);
        let mut failures =
            runs.into_iter().map(|(_, error)| error).chain(checkpoints.into_iter().map(|(_, error)| error));
        match failures.next() {
            None => Ok(forgotten),
            Some(source) => Err(ServerError::NotRemoved { count: 1 + failures.count(), source }),
        }
    }
}

impl Past {
    fn claim(&self, job: ClaimId) -> Option<&Claim> {
        self.state.books().claims().get(job)
    }

    fn now(&self) -> Time {
        Clock::resume(self.state.now(), self.ledger.timeline(), &Reading::take()).now()
    }

    fn forgettable(&self, limits: &Retention) -> Vec<ClaimId> {
        forgettable(self.now(), &self.state, &self.ledger, limits, usize::MAX)
    }

    fn old_checkpoints(&self, folder: &Path, after: Span) -> Result<Vec<OldCheckpoints>, ServerError> {
        let Some(identity) = self.ledger.identity() else { return Ok(Vec::new()) };
        let (now, needed) = (self.now(), needed(&self.state, &self.ledger));
        let has_ended = |job: ClaimId, submitted: Time| match self.claim(job) {
            Some(claim) => claim.submitted == submitted && ended_at(claim).is_some_and(|at| now.since(at) >= after),
            // It ended before it was forgotten.
            None => self.ledger.unknown(job.0) == Unknown::Forgotten,
        };
        let found = OldCheckpoints::in_folder(folder, &identity.to_string(), |owner| {
            !needed.contains(&owner.job) && has_ended(owner.job, owner.submitted)
        });
        Ok(found?)
    }
}

/// What the journal says, be it in use or not.
fn known(path: &Path) -> Result<Past, ServerError> {
    let reader = Reader::open(path)?;
    match Past::read(&reader) {
        // It was compacted after its snapshot was read.
        Err(ServerError::Journal(JournalError::Archived { .. })) => Past::read(&reader),
        past => past,
    }
}

/// Puts on record that jobs are forgotten. False if a service has the journal.
fn forget(path: &Path, limits: &Retention) -> Result<bool, ServerError> {
    let mut journal = match Journal::open(path) {
        Err(JournalError::InUse { .. }) => return Ok(false),
        opened => opened?.0,
    };
    let facts = journal.facts()?;
    if facts > FORMAT {
        return Err(ServerError::NewerFacts { path: path.to_path_buf(), found: facts, known: FORMAT });
    }
    // A service may have come and gone since the look.
    let past = Past::read(&journal.reader()?)?;
    let claims = past.forgettable(limits);
    if !claims.is_empty() {
        let deed = Deed::ForgetJobs(claims.len() as u32);
        let facts = [Fact::Core(Event::Forgotten { claims }), Fact::Did { by: Caller::of_this_process(), deed }];
        journal.set_mark(u64::from(past.ledger.next_number()));
        journal.append(past.now().as_millis(), &facts.each_ref().map(text_of))?;
    }
    Ok(true)
}
