//! The journal with room set aside for it on the disk. When the disk is full, what must be recorded still is: a cancel, a
//! hold, the end of a run. What would use up the room, above all new jobs, is refused until there is room again.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cluster::Time;
use journal::JournalError;

use crate::error::ServerError;
use crate::live::Store;
use crate::replica::Replica;
use crate::store::JournalStore;

/// The directory of the room that was set aside, in the data directory.
const NAME: &str = "reserve";
/// It is given back in parts: whatever else fills the disk takes what is free, and each part lets something through first.
const PARTS: usize = 16;
/// The largest part.
const LARGEST: u64 = 512 << 10;
/// All parts together take at most this part of the file system.
const OF_THE_DISK: u64 = 20;

/// A [`Store`] that goes on for a while when the disk is full.
#[derive(Debug)]
pub(crate) struct Reserved {
    journal: JournalStore,
    place: PathBuf,
    part: usize,
    is_short: bool,
}

impl Reserved {
    /// Sets the room aside. A disk that is full already is no reason not to start.
    pub(crate) fn new(journal: JournalStore, data_dir: &Path) -> Result<Reserved, ServerError> {
        let place = data_dir.join(NAME);
        executors::make_dir(&place, executors::PRIVATE_DIR)
            .map_err(ServerError::file("cannot set room aside in", &place))?;
        let disk = nix::sys::statvfs::statvfs(data_dir)
            .map_err(|error| ServerError::file("cannot find out the size of the disk of", data_dir)(error.into()))?;
        let size = disk.blocks() as u64 * disk.fragment_size() as u64;
        let part = (size / OF_THE_DISK / PARTS as u64).min(LARGEST) as usize;
        let mut reserved = Reserved { journal, place, part, is_short: true };
        if let Some(shortage) = reserved.shortage() {
            tracing::error!("{shortage}");
        }
        Ok(reserved)
    }

    fn give_back(&mut self) -> bool {
        self.is_short = true;
        disk::give_back(&self.place).unwrap_or_else(|error| {
            tracing::error!(%error, "cannot give back room that was set aside");
            false
        })
    }
}

impl Store for Reserved {
    fn append(&mut self, at: Time, texts: &[String]) -> Result<u64, JournalError> {
        loop {
            match self.journal.append(at, texts) {
                Err(JournalError::Full { .. }) if self.give_back() => {}
                // Something before this batch failed, so it is certain that nothing of it is there.
                Err(JournalError::MustReopen { .. }) => drop(self.journal.reopen()?),
                appended => return appended,
            }
        }
    }

    fn reopen(&mut self) -> Result<u64, JournalError> {
        self.journal.reopen()
    }

    fn shortage(&mut self) -> Option<String> {
        if self.is_short {
            match disk::set_aside(&self.place, PARTS, self.part) {
                Ok(()) => self.is_short = false,
                Err(error) => return Some(format!("the disk is full: no new jobs are taken on ({error})")),
            }
        }
        None
    }

    fn is_short(&self) -> bool {
        self.is_short
    }

    fn mark(&mut self, next: u32) {
        self.journal.mark(next);
    }

    fn compact(&mut self, replica: &Arc<Replica>, leaving: bool) -> Result<(), JournalError> {
        self.journal.compact(replica, leaving)
    }

    fn is_compacting(&self) -> bool {
        self.journal.is_compacting()
    }
}
