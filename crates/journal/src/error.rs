//! What can go wrong with a journal, and which of SQLite's errors mean which of it.

use std::io;
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

use crate::Identity;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    #[error("cannot {doing} {}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot {doing} journal {}", path.display())]
    Store { doing: &'static str, path: PathBuf, source: rusqlite::Error },
    #[error("cannot {doing} {}: the disk is full", path.display())]
    Full { doing: &'static str, path: PathBuf },
    #[error("cannot {doing} journal {}: it or its directory is read-only", path.display())]
    ReadOnly { doing: &'static str, path: PathBuf },
    #[error("journal {} is in use by {}", path.display(), owner(*pid))]
    InUse { path: PathBuf, pid: Option<u32> },
    #[error("there is no journal {}", path.display())]
    Absent { path: PathBuf },
    #[error("{} is a database, but not a journal", path.display())]
    NotAJournal { path: PathBuf },
    #[error("journal {} has layout {found}, this program knows layouts up to {known}: use a newer one", path.display())]
    Newer { path: PathBuf, found: u32, known: u32 },
    #[error(
        "journal {} is damaged: {what}; the last good entry is {last_good}; \
         `moira journal verify` tells more, `moira journal salvage` writes a new journal of what is good",
        path.display()
    )]
    Damaged { path: PathBuf, last_good: u64, what: String },
    /// Something was acknowledged and is not there any more, or nobody can tell whether all of it is.
    #[error("journal {} is not all that it was: {what}", path.display())]
    Lost { path: PathBuf, what: String },
    #[error("{} is of another journal: it belongs to {found}, the journal is {own}", path.display())]
    Foreign { path: PathBuf, found: Identity, own: Identity },
    #[error("archive {} is damaged: {what}", path.display())]
    ArchiveDamaged { path: PathBuf, what: String },
    /// Whether the last batch is there, whole or not at all, shows when the journal is opened again.
    #[error("journal {} must be reopened: an earlier append failed on the way to the disk", path.display())]
    MustReopen { path: PathBuf },
    /// The batch was on its way to the disk when the disk failed.
    #[error("it is not known whether journal {} holds the last batch", path.display())]
    InDoubt { path: PathBuf, source: Box<JournalError> },
    #[error("cannot read entries after {after}: those up to {upto} are archived, and a snapshot stands for them")]
    Archived { after: u64, upto: u64 },
    #[error("cannot compact up to entry {upto}: the snapshot is at {snapshot}, the last entry is {last}")]
    CannotCompact { upto: u64, snapshot: u64, last: u64 },
    #[error("cannot append with time {at}: it is beyond what a journal can hold")]
    TimeOutOfRange { at: u64 },
    #[error("cannot write {}: it exists already", path.display())]
    Exists { path: PathBuf },
    #[error("cannot export entry {seq}: it is not JSON")]
    NotJson { seq: u64, source: serde_json::Error },
    #[error("cannot write the export")]
    Export { source: io::Error },
}

impl JournalError {
    /// For use in `map_err`: an error of the file system while doing something with `path`.
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> JournalError {
        let path = path.to_path_buf();
        move |source| match source.kind() {
            io::ErrorKind::StorageFull => JournalError::Full { doing, path },
            _ => JournalError::Io { doing, path, source },
        }
    }

    /// For use in `map_err`: an error of SQLite while doing something with the journal at `path`. Nothing beyond
    /// `last_good` is known to be right.
    pub(crate) fn store(
        doing: &'static str,
        path: &Path,
        last_good: u64,
    ) -> impl FnOnce(rusqlite::Error) -> JournalError {
        let path = path.to_path_buf();
        move |source| {
            if let Some(what) = damage(&source) {
                return JournalError::Damaged { path, last_good, what };
            }
            match source.sqlite_error_code() {
                Some(ErrorCode::DiskFull) => JournalError::Full { doing, path },
                Some(ErrorCode::ReadOnly) => JournalError::ReadOnly { doing, path },
                _ => JournalError::Store { doing, path, source },
            }
        }
    }
}

/// What is broken in the file, if it is the file that an error of SQLite speaks of. All statements are constants that
/// fit a whole journal: one that does not compile, or a value of another type, is damage too.
pub(crate) fn damage(error: &rusqlite::Error) -> Option<String> {
    use rusqlite::Error as Sqlite;
    use rusqlite::ffi;
    let broken = match error {
        Sqlite::SqliteFailure(failure, _) | Sqlite::SqlInputError { error: failure, .. } => {
            matches!(failure.code, ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
                || matches!(failure.extended_code, ffi::SQLITE_ERROR | ffi::SQLITE_IOERR_SHORT_READ)
        }
        Sqlite::FromSqlConversionFailure(..)
        | Sqlite::IntegralValueOutOfRange(..)
        | Sqlite::InvalidColumnType(..)
        | Sqlite::QueryReturnedNoRows
        | Sqlite::Utf8Error(..) => true,
        _ => false,
    };
    broken.then(|| error.to_string())
}

fn owner(pid: Option<u32>) -> String {
    match pid {
        Some(pid) => format!("process {pid}"),
        None => "another process".into(),
    }
}
