//! A look at a journal from outside, that changes nothing in it: for `verify`, `export` and `salvage`, which must work on
//! journals that are damaged, on read-only file systems, or in use.

use std::fs;
use std::path::Path;

use rusqlite::{Connection, ErrorCode};
use tempfile::TempDir;

use crate::JournalError;
use crate::head::{self, Said};
use crate::layout::{self, Kind, beside};
use crate::reader::connect;

/// A journal opened for a look.
#[derive(Debug)]
pub(crate) struct Inspection {
    pub(crate) connection: Connection,
    /// What the head file said, read before the entries: a journal in use only moves ahead of it.
    pub(crate) said: Option<Said>,
    /// What is wrong with the header, if it had to be mended to look further.
    pub(crate) header: Option<&'static str>,
    /// Where the copy lies, if it had to be one. Dropped after the connection.
    _copy: Option<TempDir>,
}

impl Inspection {
    pub(crate) fn open(path: &Path) -> Result<Inspection, JournalError> {
        let head_path = beside(path, ".head");
        let said = head::peek(&head_path).map_err(JournalError::io("read", &head_path))?;
        let (connection, header, copy) = match layout::kind(path)? {
            Kind::Foreign => return Err(JournalError::NotAJournal { path: path.to_path_buf() }),
            Kind::Nothing if !path.exists() => return Err(JournalError::Absent { path: path.to_path_buf() }),
            Kind::Nothing => {
                let (connection, copy) = look_at_copy(path, false)?;
                (connection, Some("there is nothing in it"), Some(copy))
            }
            Kind::Broken(what) => {
                let (connection, copy) = look_at_copy(path, true)?;
                (connection, Some(what), Some(copy))
            }
            Kind::Journal => match look(path) {
                Ok(connection) => (connection, None, None),
                // SQLite keeps an index of its log beside the journal, which it may not be allowed to make.
                Err(error)
                    if matches!(error.sqlite_error_code(), Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly)) =>
                {
                    let (connection, copy) = look_at_copy(path, false)?;
                    (connection, None, Some(copy))
                }
                Err(error) => return Err(JournalError::store("read", path, 0)(error)),
            },
        };
        Ok(Inspection { connection, said, header, _copy: copy })
    }

    /// Fails if the journal has a layout that only a newer program knows.
    pub(crate) fn known(&self, path: &Path, layout: u32) -> Result<(), JournalError> {
        if layout > layout::VERSION {
            let known = layout::VERSION;
            return Err(JournalError::Newer { path: path.to_path_buf(), found: layout, known });
        }
        Ok(())
    }
}

/// Opens and begins to read, so that everything read later is of the same moment. That the contents make no sense is
/// for the caller to find.
fn look(path: &Path) -> rusqlite::Result<Connection> {
    let connection = connect(path)?;
    connection.execute_batch("BEGIN")?;
    match connection.query_row("SELECT count(*) FROM sqlite_master", [], |_| Ok(())) {
        Err(error) if crate::error::damage(&error).is_none() => Err(error),
        _ => Ok(connection),
    }
}

fn look_at_copy(path: &Path, mend: bool) -> Result<(Connection, TempDir), JournalError> {
    let copy = tempfile::tempdir().map_err(JournalError::io("make a directory for a copy of", path))?;
    let place = copy.path().join("journal.db");
    fs::copy(path, &place).map_err(JournalError::io("copy", path))?;
    let log = beside(path, "-wal");
    if log.exists() {
        fs::copy(&log, beside(&place, "-wal")).map_err(JournalError::io("copy", &log))?;
    }
    if mend {
        layout::mend(&place).map_err(JournalError::io("mend the copy of", path))?;
    }
    let connection = look(&place).map_err(JournalError::store("read a copy of", path, 0))?;
    Ok((connection, copy))
}
