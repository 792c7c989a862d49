//! A new journal of what is good in a damaged one. The damaged one is only read.

use std::fs;
use std::io;
use std::path::Path;

use crate::archive::{self, Archive, folder, make_folder};
use crate::chain::Link;
use crate::inspect::Inspection;
use crate::layout::{self, beside, directory, sync_directory};
use crate::queries::{self, Stop, walk};
use crate::retention::released_by_now;
use crate::verify::verify;
use crate::{Entry, Journal, JournalError, Lost};

/// Entries are taken over in batches of this many.
const BATCH: usize = 1000;

/// What [`salvage`] brought over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Salvaged {
    /// How many entries the new journal has after its snapshot.
    pub entries: u64,
    /// The last entry, or the last the snapshot stands for; 0 if nothing was good.
    pub last: u64,
    /// What the snapshot stands for, if it was good.
    pub snapshot: Option<u64>,
    /// Archives up to this entry had been let go; 0 if none.
    pub released: u64,
    /// What the head file of the damaged journal vouches for beyond that.
    pub lost: Option<Lost>,
}

/// Writes a new journal at `to` with the longest good beginning of the one at `path`. A good snapshot is kept, with its
/// archives; without it, the history starts from the archives. Like [`verify`](crate::verify()), it must not be used on
/// a journal that this process has open.
pub fn salvage(path: &Path, to: &Path) -> Result<Salvaged, JournalError> {
    for taken in [to.to_path_buf(), beside(to, ".head"), beside(to, "-wal")] {
        if taken.exists() {
            return Err(JournalError::Exists { path: taken });
        }
    }
    let inspection = Inspection::open(path)?;
    if let Ok(Some(layout)) = layout::version(&inspection.connection) {
        inspection.known(path, layout)?;
    }
    let partial = beside(to, ".partial");
    clear(&partial)?;
    let (mut new, _) = Journal::open(&partial)?;
    inherit(&inspection, &mut new)?;
    let snapshot = begin(&inspection, path, &mut new, to)?;
    carry_over(&inspection, path, &mut new)?;
    let salvaged = record(&inspection, &new, snapshot)?;
    drop(new);

    // The head goes first: a journal never stands without one.
    let moving = |from: &Path, to: &Path| fs::rename(from, to).map_err(JournalError::io("move into place", to));
    moving(&beside(&partial, ".head"), &beside(to, ".head"))?;
    moving(&partial, to)?;
    clear(&partial)?;
    sync_directory(to)?;
    Ok(salvaged)
}

/// The new journal is the damaged one, as far as others are concerned: run directories name it, and the mark of its head
/// says which numbers were given out.
fn inherit(inspection: &Inspection, new: &mut Journal) -> Result<(), JournalError> {
    let named = layout::identity(&inspection.connection).unwrap_or_default();
    let identity = named.or(inspection.said.and_then(|said| said.identity));
    // What cannot be read any more is as the first format had it.
    let facts = layout::facts(&inspection.connection).unwrap_or(1);
    let mark = inspection.said.and_then(|said| said.mark);
    new.become_heir(identity, facts, mark)
}

/// Writes a copy of the journal at `path` to `to`, with its archives: everything up to one moment. The journal may be in
/// use by another process meanwhile. Each entry is checked on the way; a damaged journal is not copied but an error.
pub fn backup(path: &Path, to: &Path) -> Result<Salvaged, JournalError> {
    let verified = verify(path)?;
    let last_good = verified.last_good.unwrap_or(0);
    if let Some(what) = verified.fault {
        return Err(JournalError::Damaged { path: path.to_path_buf(), last_good, what });
    }
    if let Some(Lost { from, to }) = verified.lost.last().filter(|lost| lost.from > last_good) {
        let what = format!("entries {from} to {to} were acknowledged and are not there");
        return Err(JournalError::Lost { path: path.to_path_buf(), what });
    }
    salvage(path, to)
}

/// Lets the new journal begin as the old one does: with its snapshot, or else with its archives.
fn begin(inspection: &Inspection, path: &Path, new: &mut Journal, to: &Path) -> Result<Option<u64>, JournalError> {
    if let Ok(Some((snapshot, link, true))) = queries::snapshot(&inspection.connection) {
        // Archives that cannot be told any more stay where they are; the snapshot does not need them.
        let archives = queries::archives(&inspection.connection).unwrap_or_default();
        copy_archives(&archives, path, to)?;
        new.adopt(&snapshot, link, &archives)?;
        // Asked for after the files were copied: whichever was let go meanwhile is known by then.
        let by_now = queries::released(&inspection.connection).unwrap_or(0).max(released_by_now(path));
        if let Some(released) = archives.iter().map(|archive| archive.end.seq).rfind(|end| *end <= by_now) {
            let noting = JournalError::store("write", &new.path, link.seq);
            queries::set_released(&new.connection, released).map_err(noting)?;
        }
        return Ok(Some(snapshot.upto));
    }
    let mut archives = archive::lying_about(path)?;
    // Of two that begin at the same entry the longer one is tried first.
    archives.sort_by_key(|(first, last, _)| (*first, std::cmp::Reverse(*last)));
    for (first, last, file) in archives {
        if first != new.end.seq + 1 {
            continue;
        }
        let mut entries = Vec::new();
        let read = archive::read(&file, new.end, |entry| {
            entries.push(entry);
            Ok(())
        });
        if read.is_ok_and(|end| end.seq == last) {
            for batch in entries.chunks(BATCH) {
                append(new, batch)?;
            }
        }
    }
    Ok(None)
}

fn carry_over(inspection: &Inspection, path: &Path, new: &mut Journal) -> Result<Link, JournalError> {
    let mut batch = Vec::new();
    let start = new.end;
    let walk = walk(&inspection.connection, start, |entry| {
        batch.push(entry);
        if batch.len() == BATCH {
            append(new, &batch).map_err(Stop::Caller)?;
            batch.clear();
        }
        Ok(())
    })
    .map_err(|stop: Stop<JournalError>| stop.told("read", path, start.seq))?;
    append(new, &batch)?;
    Ok(walk.end)
}

/// Writes down in the new journal what is known to be missing from it.
fn record(inspection: &Inspection, new: &Journal, snapshot: Option<u64>) -> Result<Salvaged, JournalError> {
    let last = new.end.seq;
    let lost = inspection
        .said
        .map(|said| said.link)
        .filter(|said| said.seq > last)
        .map(|said| Lost { from: last + 1, to: said.seq });
    let earlier = queries::losses(&inspection.connection).unwrap_or_default();
    for loss in earlier.into_iter().chain(lost) {
        let recording = JournalError::store("record a loss in", &new.path, last);
        queries::record_loss(&new.connection, loss).map_err(recording)?;
    }
    let released = queries::released(&new.connection).map_err(JournalError::store("read", &new.path, last))?;
    Ok(Salvaged { entries: last - snapshot.unwrap_or(0), last, snapshot, released, lost })
}

fn append(new: &mut Journal, entries: &[Entry]) -> Result<(), JournalError> {
    new.append_each(entries.iter().map(|entry| (entry.at, entry.text.as_str()))).map(drop)
}

fn copy_archives(archives: &[Archive], path: &Path, to: &Path) -> Result<(), JournalError> {
    let shared = fs::canonicalize(directory(path)).ok() == fs::canonicalize(directory(to)).ok();
    if shared || archives.is_empty() {
        return Ok(());
    }
    let folder = folder(to);
    make_folder(&folder)?;
    for archive in archives {
        let (from, to) = (archive.path(path), archive.path(to));
        if to.exists() {
            return Err(JournalError::Exists { path: to });
        }
        match fs::copy(&from, &to) {
            // It was missing before; verify says so of the new journal too.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            copied => drop(copied.map_err(JournalError::io("copy the archive", &from))?),
        }
    }
    Ok(())
}

/// Removes what an earlier attempt, or this one, left under the name of a journal in the making.
fn clear(partial: &Path) -> Result<(), JournalError> {
    for suffix in ["", ".head", ".lock", "-wal", "-shm"] {
        let file = beside(partial, suffix);
        match fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(JournalError::io("remove", &file)(error));
            }
            _ => {}
        }
    }
    Ok(())
}
