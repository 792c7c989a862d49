//! Compaction: a snapshot takes the place of the entries it stands for, and these go to an archive.
//!
//! First the archive is made durable and read back, then one transaction records it, replaces the snapshot and deletes
//! the entries. A crash before the transaction leaves a file that nobody has on record; after it, all is done.

use std::fs;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, TransactionBehavior, params};

use crate::archive::{self, Archive, Writing};
use crate::chain::Link;
use crate::layout::beside;
use crate::queries::{self, signed};
use crate::reader;
use crate::{Journal, JournalError, Snapshot};

/// What a compaction did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compaction {
    /// How many entries were moved to the archive.
    pub entries: u64,
    /// The archive, none if there was nothing to move.
    pub archive: Option<PathBuf>,
}

/// A compaction that has begun: which entries go, and where to. It can be prepared on another thread.
#[derive(Debug)]
pub struct Preparation {
    journal: PathBuf,
    start: Link,
    end: Link,
}

impl Preparation {
    /// Writes the archive, with a connection of its own: the journal can be appended to meanwhile.
    pub fn write_archive(&self) -> Result<(), JournalError> {
        let Some(archive) = self.archive() else { return Ok(()) };
        let opening = JournalError::store("open for reading", &self.journal, self.start.seq);
        let connection = reader::connect(&self.journal).map_err(opening)?;
        write_archive(&connection, &self.journal, &archive, self.start)
    }

    /// None if there is nothing to move.
    fn archive(&self) -> Option<Archive> {
        (self.start != self.end).then_some(Archive { first: self.start.seq + 1, end: self.end })
    }
}

impl Journal {
    /// Lets `snapshot` stand for all entries up to `upto`, which are moved to an archive. `upto` may be where the present
    /// snapshot stands: then only its text is replaced.
    pub fn compact(&mut self, upto: u64, snapshot: &str) -> Result<Compaction, JournalError> {
        let preparation = self.prepare_compaction(upto)?;
        preparation.write_archive()?;
        self.finish_compaction(&preparation, snapshot)
    }

    /// Begins to compact, without changing anything yet.
    pub fn prepare_compaction(&self, upto: u64) -> Result<Preparation, JournalError> {
        self.usable()?;
        if upto < self.upto || upto > self.end.seq {
            return Err(JournalError::CannotCompact { upto, snapshot: self.upto, last: self.end.seq });
        }
        Ok(Preparation { journal: self.path.clone(), start: self.link_at(self.upto)?, end: self.link_at(upto)? })
    }

    /// Ends a compaction whose archive is written, in one transaction. Entries that were appended meanwhile stay.
    pub fn finish_compaction(&mut self, preparation: &Preparation, snapshot: &str) -> Result<Compaction, JournalError> {
        self.usable()?;
        let Preparation { start, end, .. } = preparation;
        if start.seq != self.upto {
            return Err(JournalError::CannotCompact { upto: end.seq, snapshot: self.upto, last: self.end.seq });
        }
        let archive = preparation.archive();
        if let Err(error) = replace(&mut self.connection, archive.as_slice(), snapshot, *end) {
            return Err(self.failed("compact", error));
        }
        self.upto = end.seq;
        self.checkpoint();
        Ok(Compaction { entries: end.seq - start.seq, archive: archive.map(|archive| archive.path(&self.path)) })
    }

    /// Takes over a snapshot and archives from another journal, before any entry is appended.
    pub(crate) fn adopt(&mut self, snapshot: &Snapshot, end: Link, archives: &[Archive]) -> Result<(), JournalError> {
        if let Err(error) = replace(&mut self.connection, archives, &snapshot.text, end) {
            return Err(self.failed("compact", error));
        }
        self.upto = end.seq;
        self.end = end;
        Ok(())
    }

    fn link_at(&self, seq: u64) -> Result<Link, JournalError> {
        let reading = || JournalError::store("compact", &self.path, self.upto);
        if seq == self.end.seq {
            return Ok(self.end);
        }
        if seq == self.upto {
            return Ok(queries::snapshot(&self.connection)
                .map_err(reading())?
                .map_or(Link::START, |(_, link, _)| link));
        }
        let check = queries::check_of(&self.connection, seq).map_err(reading())?;
        check.map(|check| Link { seq, check }).ok_or_else(|| reading()(rusqlite::Error::QueryReturnedNoRows))
    }
}

fn write_archive(connection: &Connection, journal: &Path, archive: &Archive, start: Link) -> Result<(), JournalError> {
    let path = archive.path(journal);
    if path.exists() {
        if archive::check(&path, start, archive.end).is_ok() {
            // An earlier attempt came this far.
            return Ok(());
        }
        put_aside(&path)?;
    }
    let mut writing = Writing::start(path)?;
    let count = usize::try_from(archive.end.seq - start.seq).unwrap_or(usize::MAX);
    let shown = reader::show(connection, journal, start.seq, count, |entry| writing.push(entry));
    match shown {
        Ok(()) => writing.finish(start, archive.end),
        Err(error) => {
            writing.abandon();
            Err(error)
        }
    }
}

/// A file of the same name from another history, e.g. of entries that were lost here since, is kept under another name.
pub(crate) fn put_aside(path: &Path) -> Result<(), JournalError> {
    let mut count = 1;
    let mut aside = beside(path, ".stray1");
    while aside.exists() {
        count += 1;
        aside = beside(path, &format!(".stray{count}"));
    }
    fs::rename(path, &aside).map_err(JournalError::io("put aside the stray file", path))
}

/// The snapshot may be large, so it is not copied on the way.
fn replace(connection: &mut Connection, archives: &[Archive], snapshot: &str, end: Link) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for archive in archives {
        transaction.execute(
            "INSERT INTO archives (first, last, link) VALUES (?1, ?2, ?3)",
            params![signed(archive.first), signed(archive.end.seq), archive.end.check.0],
        )?;
    }
    transaction.execute(
        "INSERT OR REPLACE INTO snapshot (one, upto, text, link, seal) VALUES (1, ?1, ?2, ?3, ?4)",
        params![signed(end.seq), snapshot, end.check.0, end.seal(snapshot).0],
    )?;
    transaction.execute("DELETE FROM entries WHERE seq <= ?1", [signed(end.seq)])?;
    transaction.commit()
}
