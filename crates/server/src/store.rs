//! The journal as the loop's store. It is compacted while facts go on being appended: a copy of what is shown is written
//! down by a thread of its own, and only the exchange of entries for the snapshot takes the loop's time.

use std::sync::Arc;
use std::thread::JoinHandle;

use cluster::Time;
use journal::{Journal, JournalError, Preparation};

use crate::image::Image;
use crate::live::Store;
use crate::replica::Replica;

/// A snapshot costs in proportion to the jobs in it. If there are many, it waits for this many entries for each of them:
/// then it is a fraction of the cost of the entries whose place it takes, however many jobs there are.
const ENTRIES_PER_JOB: u64 = 4;
const MANY_JOBS: u64 = 25_000;

/// An open journal, and how many entries it may have after its snapshot.
#[derive(Debug)]
pub(crate) struct JournalStore {
    journal: Journal,
    compact_after: u64,
    /// The snapshot that is being written.
    compacting: Option<JoinHandle<Result<Written, JournalError>>>,
    /// After a failure it is not tried again before the journal has this many entries more than its snapshot.
    not_before: u64,
}

/// An archive that is on the disk, and the snapshot that takes the place of its entries.
#[derive(Debug)]
struct Written {
    preparation: Preparation,
    snapshot: String,
}

impl JournalStore {
    pub(crate) fn new(journal: Journal, compact_after: u64) -> JournalStore {
        JournalStore { journal, compact_after, compacting: None, not_before: 0 }
    }

    fn begin(&mut self, replica: &Arc<Replica>) -> Result<(), JournalError> {
        let (upto, jobs) = {
            let shown = replica.read();
            (shown.seq, if shown.state.has_begun() { shown.state.books().claims().len() as u64 } else { 0 })
        };
        let entries = upto.saturating_sub(self.journal.compacted());
        if entries <= most_entries(self.compact_after, jobs).max(self.not_before) {
            return Ok(());
        }
        self.not_before = entries + self.compact_after / 10 + 1;
        // The loop is the only one to change what is shown, so it is still at this entry.
        let preparation = self.journal.prepare_compaction(upto)?;
        let shown = replica.read();
        let (state, ledger) = (shown.state.clone(), shown.ledger.clone());
        drop(shown);
        let write = move || {
            preparation.write_archive()?;
            Ok(Written { preparation, snapshot: Image::text_of(&state, &ledger) })
        };
        match std::thread::Builder::new().name("compact".into()).spawn(write) {
            Ok(thread) => self.compacting = Some(thread),
            Err(error) => tracing::warn!(%error, "cannot start the thread that compacts the journal"),
        }
        Ok(())
    }

    fn finish(&mut self, thread: JoinHandle<Result<Written, JournalError>>) -> Result<(), JournalError> {
        let Ok(written) = thread.join() else {
            tracing::error!("the thread that compacts the journal panicked: it is tried again");
            return Ok(());
        };
        let Written { preparation, snapshot } = written?;
        let done = self.journal.finish_compaction(&preparation, &snapshot)?;
        self.not_before = 0;
        tracing::info!(entries = done.entries, left = self.journal.last() - self.journal.compacted(), "compacted");
        Ok(())
    }
}

/// So many entries there may be after a snapshot if so many jobs are known.
fn most_entries(compact_after: u64, jobs: u64) -> u64 {
    let for_jobs = if jobs > MANY_JOBS { ENTRIES_PER_JOB.saturating_mul(jobs) } else { 0 };
    compact_after.max(for_jobs)
}

impl Store for JournalStore {
    fn append(&mut self, at: Time, texts: &[String]) -> Result<u64, JournalError> {
        self.journal.append(at.as_millis(), texts)
    }

    fn reopen(&mut self) -> Result<u64, JournalError> {
        self.journal.reopen()
    }

    fn mark(&mut self, next: u32) {
        self.journal.set_mark(u64::from(next));
    }

    fn compact(&mut self, replica: &Arc<Replica>, leaving: bool) -> Result<(), JournalError> {
        match self.compacting.take() {
            Some(thread) if leaving || thread.is_finished() => self.finish(thread)?,
            Some(thread) => self.compacting = Some(thread),
            None => self.begin(replica)?,
        }
        match self.compacting.take() {
            Some(thread) if leaving => self.finish(thread),
            thread => {
                self.compacting = thread;
                Ok(())
            }
        }
    }

    fn is_compacting(&self) -> bool {
        self.compacting.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_jobs_a_snapshot_holds_the_rarer_it_is() {
        assert_eq!(most_entries(100_000, 0), 100_000);
        assert_eq!(most_entries(100_000, 25_000), 100_000);
        assert_eq!(most_entries(100_000, 100_000), 400_000);
        assert_eq!(most_entries(5, 100), 5, "a few are written down as often as is wished");
        assert_eq!(most_entries(5, u64::MAX), u64::MAX);
    }

    /// While jobs only come, three entries each, writing them down again and again would cost more than taking them on.
    #[test]
    fn jobs_that_only_come_are_written_down_a_bounded_number_of_times() {
        let (mut written, mut snapshot) = (0, 0);
        for jobs in 1..=1_000_000_u64 {
            let entries = 3 * jobs - snapshot;
            if entries > most_entries(100_000, jobs) {
                (written, snapshot) = (written + jobs, 3 * jobs);
            }
        }
        assert!(written <= 1_000_000, "{written} jobs were written for a million that came");
    }
}
