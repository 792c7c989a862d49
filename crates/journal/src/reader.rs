//! A second, read-only connection for other threads. It sees whole appends only, and never makes the writer wait.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use crate::layout;
use crate::queries::{self, Stop};
use crate::{Entry, JournalError, Snapshot};

/// Reads a journal that may be in use.
#[derive(Debug)]
pub struct Reader {
    connection: Connection,
    path: PathBuf,
}

impl Reader {
    /// Nothing is checked: a journal that nobody has opened as its owner may be damaged.
    pub fn open(path: &Path) -> Result<Reader, JournalError> {
        let connection = connect(path).map_err(JournalError::store("open for reading", path, 0))?;
        Ok(Reader { connection, path: path.to_path_buf() })
    }

    /// The number of the last entry, 0 if there is none.
    pub fn last(&self) -> Result<u64, JournalError> {
        queries::last(&self.connection).map_err(self.reading())
    }

    /// The entries after `after`, oldest first, at most `limit`. Asking for archived ones is an error, not a gap.
    pub fn read(&self, after: u64, limit: usize) -> Result<Vec<Entry>, JournalError> {
        let mut read = Vec::new();
        self.show(after, limit, |entry| {
            read.push(entry);
            Ok(())
        })?;
        Ok(read)
    }

    /// Shows every entry after `after`, one at a time, until `f` fails.
    pub fn for_each<E: From<JournalError>>(&self, after: u64, f: impl FnMut(Entry) -> Result<(), E>) -> Result<(), E> {
        self.show(after, usize::MAX, f)
    }

    pub fn snapshot(&self) -> Result<Option<Snapshot>, JournalError> {
        snapshot(&self.connection, &self.path)
    }

    fn show<E: From<JournalError>>(
        &self,
        after: u64,
        limit: usize,
        f: impl FnMut(Entry) -> Result<(), E>,
    ) -> Result<(), E> {
        // One transaction, so that a compaction cannot come between the look at the snapshot and the entries.
        let transaction = self.connection.unchecked_transaction().map_err(self.reading())?;
        show(&transaction, &self.path, after, limit, f)
    }

    fn reading(&self) -> impl FnOnce(rusqlite::Error) -> JournalError {
        JournalError::store("read", &self.path, 0)
    }
}

/// A connection that cannot write, and leaves the log as it is when it closes.
pub(crate) fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(Duration::from_secs(5))?;
    layout::cautious(&connection)?;
    Ok(connection)
}

pub(crate) fn snapshot(connection: &Connection, path: &Path) -> Result<Option<Snapshot>, JournalError> {
    let found = queries::snapshot(connection).map_err(JournalError::store("read the snapshot of", path, 0))?;
    match found {
        Some((snapshot, _, true)) => Ok(Some(snapshot)),
        Some((_, _, false)) => Err(JournalError::Damaged {
            path: path.to_path_buf(),
            last_good: 0,
            what: "the snapshot does not fit its seal".into(),
        }),
        None => Ok(None),
    }
}

pub(crate) fn show<E: From<JournalError>>(
    connection: &Connection,
    path: &Path,
    after: u64,
    limit: usize,
    mut f: impl FnMut(Entry) -> Result<(), E>,
) -> Result<(), E> {
    let upto = queries::upto(connection).map_err(JournalError::store("read", path, 0))?;
    if after < upto {
        return Err(JournalError::Archived { after, upto }.into());
    }
    queries::entries(connection, after, limit, |entry| f(entry).map_err(Stop::Caller))
        .map_err(|stop| stop.told("read", path, after))
}
