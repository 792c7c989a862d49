//! Whether a journal is what was written: its tables, its snapshot, its chain, and SQLite's own pages. Reads only.

use rusqlite::Connection;

use crate::chain::Link;
use crate::error::damage;
use crate::layout;
use crate::queries::{self, walk};

/// What was found. `start` is where the snapshot stands, `end` the last place in the chain that is good.
#[derive(Debug)]
pub(crate) struct Examined {
    pub(crate) layout: u32,
    pub(crate) start: Link,
    pub(crate) end: Link,
    pub(crate) fault: Option<String>,
}

/// Fails only if the file could not be examined; what is wrong in it is the finding. The first fault is told, but the
/// chain is followed in any case, to know how far it is good.
pub(crate) fn examine(connection: &Connection) -> rusqlite::Result<Examined> {
    let (layout, tables) = told(tables(connection))?.unwrap_or_else(|what| (layout::VERSION, Some(what)));
    if layout > layout::VERSION {
        return Ok(Examined { layout, start: Link::START, end: Link::START, fault: None });
    }
    let (start, seal) = told(start(connection))?.unwrap_or_else(|what| (Link::START, Some(what)));
    let walk = walk(connection, start, |_| Ok::<_, rusqlite::Error>(()))?;
    let pages = told(pages(connection))?.unwrap_or_else(Some);
    let fault = tables.or(seal).or(walk.fault).or(pages);
    Ok(Examined { layout, start, end: walk.end, fault })
}

/// Tells damage from a failure to look.
fn told<T>(result: rusqlite::Result<T>) -> rusqlite::Result<Result<T, String>> {
    match result {
        Ok(found) => Ok(Ok(found)),
        Err(error) => damage(&error).map(Err).ok_or(error),
    }
}

fn tables(connection: &Connection) -> rusqlite::Result<(u32, Option<String>)> {
    match layout::version(connection)? {
        None => Ok((layout::VERSION, Some("it does not say which layout it has".into()))),
        Some(version) if version > layout::VERSION => Ok((version, None)),
        Some(version) => Ok((version, layout::flaw(connection, version)?.or(nameless(connection, version)?))),
    }
}

fn nameless(connection: &Connection, version: u32) -> rusqlite::Result<Option<String>> {
    let named = version < layout::FIRST_WITH_IDENTITY || layout::identity(connection)?.is_some();
    Ok((!named).then(|| "it does not say which journal it is".into()))
}

fn start(connection: &Connection) -> rusqlite::Result<(Link, Option<String>)> {
    Ok(match queries::snapshot(connection)? {
        None => (Link::START, None),
        Some((_, link, true)) => (link, None),
        Some((_, _, false)) => (Link::START, Some("the snapshot does not fit its seal".into())),
    })
}

/// SQLite's own look at its pages: the chain says nothing of free ones, and an append would use them.
fn pages(connection: &Connection) -> rusqlite::Result<Option<String>> {
    let answer: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    Ok((answer != "ok").then_some(answer))
}
