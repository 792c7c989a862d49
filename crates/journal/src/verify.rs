//! Whether a journal and its archives are whole, and how far it is good if not.

use std::io;
use std::path::{Path, PathBuf};

use crate::archive::{self, Archive};
use crate::chain::Link;
use crate::examine::examine;
use crate::inspect::Inspection;
use crate::layout;
use crate::queries;
use crate::retention::released_by_now;
use crate::store::{Tail, tail};
use crate::{Identity, JournalError, Lost};

/// What [`verify`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// How many entries after the snapshot are good, and the numbers of the first and the last of them; 0 if none.
    pub entries: u64,
    pub first: u64,
    pub last: u64,
    /// The last entry up to which everything is good, be it in the journal or behind a good snapshot.
    pub last_good: Option<u64>,
    /// What is wrong with the journal, and keeps it from being opened.
    pub fault: Option<String>,
    /// Every tail that was ever lost, oldest first; also one that only the next opening will record.
    pub lost: Vec<Lost>,
    /// What the snapshot stands for.
    pub snapshot: Option<u64>,
    /// The archives up to this entry were let go, so the record begins with the one after it; 0 if all are kept.
    pub released: u64,
    /// The head file is absent or unreadable: a missing tail would go unnoticed.
    pub head_missing: bool,
    /// Which journal it is, none in a layout that does not say it.
    pub identity: Option<Identity>,
    /// Which journal the head file speaks of, if that is another one.
    pub head_of: Option<Identity>,
    pub archives: Vec<ArchiveVerified>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveVerified {
    pub first: u64,
    pub last: u64,
    pub path: PathBuf,
    pub state: ArchiveState,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArchiveState {
    Whole,
    /// It is not there, e.g. because it was moved to other storage. The service does not need it; an export does.
    Missing,
    Damaged(String),
}

impl Verified {
    /// Whether everything that was ever acknowledged is there.
    pub fn is_whole(&self) -> bool {
        self.fault.is_none()
            && self.lost.is_empty()
            && !self.head_missing
            && self.head_of.is_none()
            && self.archives.iter().all(|archive| archive.state == ArchiveState::Whole)
    }
}

/// Examines the journal at `path` and its archives, and changes neither. It may be in use by another process, but not
/// by this one: closing the file here would drop the locks that SQLite holds on it there.
pub fn verify(path: &Path) -> Result<Verified, JournalError> {
    let inspection = Inspection::open(path)?;
    let connection = &inspection.connection;
    let reading = || JournalError::store("read", path, 0);
    let found = examine(connection).map_err(reading())?;
    inspection.known(path, found.layout)?;

    let mut fault = inspection.header.map(String::from).or(found.fault.clone());
    let mut last_good = (found.end.seq > 0).then_some(found.end.seq);
    // What is broken was found above. Here only what can still be read is told.
    let mut lost = if found.layout > 0 { queries::losses(connection).unwrap_or_default() } else { Vec::new() };
    let identity = layout::identity(connection).unwrap_or_default();
    let said = inspection.said.and_then(|said| said.identity);
    let head_of = said.filter(|said| identity.is_some_and(|own| own != *said));
    match tail(connection, &found, inspection.said.map(|said| said.link)) {
        Ok(Tail::Lost(tail)) if !lost.contains(&tail) => lost.push(tail),
        Ok(Tail::Other(what)) if fault.is_none() => {
            fault = Some(what);
            last_good = None;
        }
        Ok(_) => {}
        Err(error) if fault.is_none() => return Err(reading()(error)),
        Err(_) => {}
    }
    let on_record = queries::archives(connection).and_then(|found| Ok((found, queries::released(connection)?)));
    let (archives, released) = match on_record {
        Ok((archives, released)) => verify_archives(path, &archives, released),
        Err(error) if fault.is_none() => return Err(reading()(error)),
        Err(_) => (Vec::new(), 0),
    };
    let entries = found.end.seq - found.start.seq;
    Ok(Verified {
        entries,
        first: if entries > 0 { found.start.seq + 1 } else { 0 },
        last: if entries > 0 { found.end.seq } else { 0 },
        last_good,
        fault,
        lost,
        snapshot: (found.start.seq > 0).then_some(found.start.seq),
        released,
        head_missing: inspection.said.is_none(),
        identity,
        head_of,
        archives,
    })
}

/// The state of each archive that was not let go, and up to which entry they were.
fn verify_archives(journal: &Path, archives: &[Archive], mut released: u64) -> (Vec<ArchiveVerified>, u64) {
    let mut start = Link::START;
    let mut verified = Vec::new();
    for archive in archives {
        let path = archive.path(journal);
        let checked = if archive.end.seq <= released { Ok(()) } else { archive::check(&path, start, archive.end) };
        let state = match checked {
            Ok(()) if archive.end.seq <= released => None,
            Ok(()) => Some(ArchiveState::Whole),
            Err(JournalError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                // It may have been let go since the journal was opened.
                let let_go = archive.end.seq <= released_by_now(journal) && verified.is_empty();
                released = if let_go { archive.end.seq } else { released };
                (!let_go).then_some(ArchiveState::Missing)
            }
            Err(JournalError::ArchiveDamaged { what, .. }) => Some(ArchiveState::Damaged(what)),
            Err(error) => Some(ArchiveState::Damaged(error.to_string())),
        };
        let (first, last) = (archive.first, archive.end.seq);
        verified.extend(state.map(|state| ArchiveVerified { first, last, path, state }));
        start = archive.end;
    }
    (verified, released)
}
