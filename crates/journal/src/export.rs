//! The whole history as text: one JSON object a line, oldest first, from the archives and the journal.

use std::io::{self, Write};
use std::path::Path;

use serde::de::IgnoredAny;

use crate::archive;
use crate::chain::Link;
use crate::inspect::Inspection;
use crate::layout;
use crate::queries::{self, Stop, walk};
use crate::reader;
use crate::{Entry, JournalError, Snapshot};

/// What [`export`] wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exported {
    pub entries: u64,
    /// Entries up to this one were let go and are not part of it; 0 if it is the whole history.
    pub released: u64,
    /// The number of the last entry, 0 if there is none.
    pub last: u64,
}

/// The snapshot in the journal at `path`. Like [`export`], it must not be used on a journal that this process has open.
pub fn snapshot(path: &Path) -> Result<Option<Snapshot>, JournalError> {
    let inspection = Inspection::open(path)?;
    reader::snapshot(&inspection.connection, path)
}

/// Writes every entry of the journal at `path` as `{"seq":…,"at":…,"fact":…}`, where `fact` is its text. The chain is
/// followed from the first entry whose archive was not let go: a gap is an error, not a shorter export. Like [`verify`](crate::verify()), it
/// must not be used on a journal that this process has open.
pub fn export(path: &Path, to: &mut impl Write) -> Result<Exported, JournalError> {
    let inspection = Inspection::open(path)?;
    let connection = &inspection.connection;
    let reading = || JournalError::store("read", path, 0);
    let damaged = |last_good, what: String| JournalError::Damaged { path: path.to_path_buf(), last_good, what };
    if let Some(what) = inspection.header {
        return Err(damaged(0, what.into()));
    }
    inspection.known(path, layout::version(connection).map_err(reading())?.unwrap_or(0))?;

    let released = queries::released(connection).map_err(reading())?;
    let mut end = Link::START;
    for archive in queries::archives(connection).map_err(reading())? {
        if archive.end.seq <= released {
            end = archive.end;
            continue;
        }
        let file = archive.path(path);
        let found = archive::read(&file, end, |entry| write(to, &entry))?;
        if found != archive.end {
            let what = format!("it does not lead to entry {} as the journal has it", archive.end.seq);
            return Err(JournalError::ArchiveDamaged { path: file, what });
        }
        end = found;
    }
    let start = queries::snapshot(connection).map_err(reading())?.map_or(Link::START, |(_, link, _)| link);
    if start != end {
        return Err(damaged(0, format!("its archives end at entry {}, its snapshot at {}", end.seq, start.seq)));
    }
    let walk = walk(connection, start, |entry| write(to, &entry).map_err(Stop::Caller))
        .map_err(|stop| stop.told("read", path, start.seq))?;
    match walk.fault {
        Some(what) => Err(damaged(walk.end.seq, what)),
        None => {
            to.flush().map_err(|source| JournalError::Export { source })?;
            Ok(Exported { entries: walk.end.seq - released, released, last: walk.end.seq })
        }
    }
}

fn write(to: &mut impl Write, entry: &Entry) -> Result<(), JournalError> {
    let Entry { seq, at, text } = entry;
    serde_json::from_str::<IgnoredAny>(text).map_err(|source| JournalError::NotJson { seq: *seq, source })?;
    // In JSON a line can break only between tokens, where a space means the same.
    let line = text.replace(['\n', '\r'], " ");
    let written: io::Result<()> = writeln!(to, r#"{{"seq":{seq},"at":{at},"fact":{line}}}"#);
    written.map_err(|source| JournalError::Export { source })
}
