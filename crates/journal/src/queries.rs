//! What is asked of the tables, on any connection.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::archive::Archive;
use crate::chain::{Check, Link};
use crate::error::damage;
use crate::{Entry, JournalError, Lost, Snapshot};

/// Where a walk along the chain ended, and why if not at the end.
#[derive(Debug)]
pub(crate) struct Walk {
    pub(crate) end: Link,
    pub(crate) fault: Option<String>,
}

/// Why a run over entries ended early: whoever looked at them had enough, or the store failed.
pub(crate) enum Stop<E> {
    Caller(E),
    Store(rusqlite::Error),
}

impl<E> From<rusqlite::Error> for Stop<E> {
    fn from(error: rusqlite::Error) -> Self {
        Stop::Store(error)
    }
}

impl<E: From<JournalError>> Stop<E> {
    /// As an error of the caller's kind.
    pub(crate) fn told(self, doing: &'static str, path: &Path, last_good: u64) -> E {
        match self {
            Stop::Caller(error) => error,
            Stop::Store(error) => JournalError::store(doing, path, last_good)(error).into(),
        }
    }
}

/// Follows the chain of all entries in the table, from `start`, and shows each good one to `each`. An entry that cannot
/// be read, is out of turn or does not fit the chain ends the walk; so does `each` by an error.
pub(crate) fn walk<E: From<rusqlite::Error>>(
    connection: &Connection,
    start: Link,
    mut each: impl FnMut(Entry) -> Result<(), E>,
) -> Result<Walk, E> {
    let mut end = start;
    let ended = |end: Link, error: rusqlite::Error| match damage(&error) {
        Some(what) => Ok(Walk { end, fault: Some(format!("entry {} cannot be read: {what}", end.seq + 1)) }),
        None => Err(E::from(error)),
    };
    let mut statement = match connection.prepare("SELECT seq, at, text, link FROM entries ORDER BY seq") {
        Ok(statement) => statement,
        Err(error) => return ended(end, error),
    };
    let mut rows = statement.query([])?;
    loop {
        let row = match rows.next() {
            Ok(Some(row)) => row,
            Ok(None) => return Ok(Walk { end, fault: None }),
            Err(error) => return ended(end, error),
        };
        let (entry, check) = match entry(row).and_then(|entry| Ok((entry, check(row, 3)?))) {
            Ok(read) => read,
            Err(error) => return ended(end, error),
        };
        if entry.seq != end.seq + 1 {
            let fault = format!("entry {} is where entry {} should be", entry.seq, end.seq + 1);
            return Ok(Walk { end, fault: Some(fault) });
        }
        let next = end.then(entry.at, &entry.text);
        if next.check != check {
            let fault = format!("entry {} does not fit the chain", entry.seq);
            return Ok(Walk { end, fault: Some(fault) });
        }
        end = next;
        each(entry)?;
    }
}

/// The snapshot with its place in the chain, and whether its seal is right.
pub(crate) fn snapshot(connection: &Connection) -> rusqlite::Result<Option<(Snapshot, Link, bool)>> {
    let mut statement = connection.prepare_cached("SELECT upto, text, link, seal FROM snapshot WHERE one = 1")?;
    statement
        .query_row([], |row| {
            let snapshot = Snapshot { upto: number(row, 0)?, text: row.get(1)? };
            let link = Link { seq: snapshot.upto, check: check(row, 2)? };
            let whole = link.seal(&snapshot.text) == check(row, 3)?;
            Ok((snapshot, link, whole))
        })
        .optional()
}

/// The number of the last entry that the snapshot stands for, 0 if there is no snapshot.
pub(crate) fn upto(connection: &Connection) -> rusqlite::Result<u64> {
    let mut statement = connection.prepare_cached("SELECT upto FROM snapshot WHERE one = 1")?;
    Ok(statement.query_row([], |row| number(row, 0)).optional()?.unwrap_or(0))
}

/// The number of the last entry, or of the last one the snapshot stands for.
pub(crate) fn last(connection: &Connection) -> rusqlite::Result<u64> {
    let mut statement = connection.prepare_cached("SELECT seq FROM entries ORDER BY seq DESC LIMIT 1")?;
    match statement.query_row([], |row| number(row, 0)).optional()? {
        Some(seq) => Ok(seq),
        None => upto(connection),
    }
}

/// Where the chain of the table ends, as stored.
pub(crate) fn end(connection: &Connection) -> rusqlite::Result<Link> {
    let mut statement = connection.prepare_cached("SELECT seq, link FROM entries ORDER BY seq DESC LIMIT 1")?;
    let end = statement.query_row([], |row| Ok(Link { seq: number(row, 0)?, check: check(row, 1)? })).optional()?;
    Ok(match end {
        Some(end) => end,
        None => snapshot(connection)?.map_or(Link::START, |(_, link, _)| link),
    })
}

/// What vouches for the entry `seq`.
pub(crate) fn check_of(connection: &Connection, seq: u64) -> rusqlite::Result<Option<Check>> {
    let mut statement = connection.prepare_cached("SELECT link FROM entries WHERE seq = ?1")?;
    statement.query_row([signed(seq)], |row| check(row, 0)).optional()
}

/// Shows the entries after `after`, at most `limit`, without looking at the chain.
pub(crate) fn entries<E: From<rusqlite::Error>>(
    connection: &Connection,
    after: u64,
    limit: usize,
    mut each: impl FnMut(Entry) -> Result<(), E>,
) -> Result<(), E> {
    let mut statement =
        connection.prepare_cached("SELECT seq, at, text FROM entries WHERE seq > ?1 ORDER BY seq LIMIT ?2")?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut rows = statement.query(params![signed(after), limit])?;
    while let Some(row) = rows.next()? {
        each(entry(row)?)?;
    }
    Ok(())
}

pub(crate) fn archives(connection: &Connection) -> rusqlite::Result<Vec<Archive>> {
    let mut statement = connection.prepare("SELECT first, last, link FROM archives ORDER BY first")?;
    let rows = statement.query_map([], |row| {
        let end = Link { seq: number(row, 1)?, check: check(row, 2)? };
        Ok(Archive { first: number(row, 0)?, end })
    })?;
    rows.collect()
}

/// The last entry of the archives that were let go, 0 if none were. A note that names no archive's end is damaged, and
/// counts for nothing.
pub(crate) fn released(connection: &Connection) -> rusqlite::Result<u64> {
    let noted = "SELECT last FROM archives WHERE last = (SELECT value FROM meta WHERE key = 'released')";
    Ok(connection.query_row(noted, [], |row| number(row, 0)).optional()?.unwrap_or(0))
}

pub(crate) fn set_released(connection: &Connection, upto: u64) -> rusqlite::Result<()> {
    let statement = "INSERT OR REPLACE INTO meta (key, value) VALUES ('released', ?1)";
    connection.execute(statement, [signed(upto)]).map(drop)
}

pub(crate) fn losses(connection: &Connection) -> rusqlite::Result<Vec<Lost>> {
    let mut statement = connection.prepare("SELECT first, last FROM losses ORDER BY rowid")?;
    let rows = statement.query_map([], |row| Ok(Lost { from: number(row, 0)?, to: number(row, 1)? }))?;
    rows.collect()
}

/// Records a loss. One that was recorded before and never reached the head is the same loss.
pub(crate) fn record_loss(connection: &Connection, lost: Lost) -> rusqlite::Result<()> {
    connection
        .execute(
            "INSERT INTO losses (first, last) SELECT ?1, ?2 \
             WHERE NOT EXISTS (SELECT 1 FROM losses WHERE first = ?1 AND last = ?2)",
            [signed(lost.from), signed(lost.to)],
        )
        .map(drop)
}

/// SQLite counts with a sign. No journal has that many entries, and none can be asked for beyond.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn number(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    let number: i64 = row.get(column)?;
    u64::try_from(number).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(column, number))
}

fn check(row: &Row<'_>, column: usize) -> rusqlite::Result<Check> {
    row.get(column).map(Check)
}

fn entry(row: &Row<'_>) -> rusqlite::Result<Entry> {
    Ok(Entry { seq: number(row, 0)?, at: number(row, 1)?, text: row.get(2)? })
}
