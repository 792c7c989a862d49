//! The layout of the file: its tables, their version, and the way from older versions to the present one.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension, Transaction};

use crate::{Identity, JournalError};

/// Entries hold what jobs were given, secrets among it: all files of a journal are its owner's alone.
pub(crate) const PRIVATE_FILE: u32 = 0o600;
pub(crate) const PRIVATE_DIR: u32 = 0o700;

/// The present layout.
pub(crate) const VERSION: u32 = 2;

/// From this one on a journal says which one it is.
pub(crate) const FIRST_WITH_IDENTITY: u32 = 2;

/// What brings a file to a version from the one before it.
type Migration = fn(&Transaction<'_>) -> rusqlite::Result<()>;

/// Every version but 0, oldest first.
const MIGRATIONS: &[(u32, Migration)] = &[(1, remember_losses), (2, have_identity)];

/// Version 0, from which all others grew. Later versions add to it in [`MIGRATIONS`]. `STRICT` makes SQLite refuse
/// values of another type, which after damage is one more chance to notice.
const FIRST: [&str; 4] = [
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value ANY NOT NULL) STRICT",
    "CREATE TABLE entries (seq INTEGER PRIMARY KEY, at INTEGER NOT NULL, text TEXT NOT NULL, link BLOB NOT NULL) STRICT",
    "CREATE TABLE snapshot (one INTEGER PRIMARY KEY, upto INTEGER NOT NULL, text TEXT NOT NULL, link BLOB NOT NULL, \
     seal BLOB NOT NULL) STRICT",
    "CREATE TABLE archives (first INTEGER PRIMARY KEY, last INTEGER NOT NULL, link BLOB NOT NULL) STRICT",
];

const LOSSES: &str = "CREATE TABLE losses (first INTEGER NOT NULL, last INTEGER NOT NULL) STRICT";

/// Marks the file as a journal for `file` and for us: the letters `Moir`.
const APPLICATION: u32 = 0x4d6f_6972;

/// `PATH` and something after it, e.g. `PATH.head`.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// What the first bytes of a file say of it.
pub(crate) enum Kind {
    /// There is no file, or nothing in it.
    Nothing,
    /// A database, but not one of ours.
    Foreign,
    /// Not what any whole journal starts with.
    Broken(&'static str),
    Journal,
}

/// Whether there is a journal at `path`, whole or damaged, and not somebody else's database.
pub fn is_journal(path: &Path) -> Result<bool, JournalError> {
    Ok(matches!(kind(path)?, Kind::Journal | Kind::Broken(_)))
}

/// Looks at the header before SQLite does, which takes some damage there for a wish (e.g. to be read-only).
pub(crate) fn kind(path: &Path) -> Result<Kind, JournalError> {
    let mut header = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(100).read_to_end(&mut header).map_err(JournalError::io("read", path))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Kind::Nothing),
        Err(error) => return Err(JournalError::io("open", path)(error)),
    };
    if header.is_empty() {
        return Ok(Kind::Nothing);
    }
    let Some(header) = header.first_chunk::<100>() else {
        return Ok(Kind::Broken("the file ends within its header"));
    };
    let ours = constant_bytes().iter().all(|(from, bytes)| header[*from..].starts_with(bytes));
    Ok(match header {
        _ if ours => Kind::Journal,
        _ if header.starts_with(b"SQLite format 3\0") && header[68..72] == [0; 4] => Kind::Foreign,
        _ => Kind::Broken("the header of the file is not a journal's"),
    })
}

/// Puts right what every header has, in a copy of a journal whose header is broken.
pub(crate) fn mend(copy: &Path) -> io::Result<()> {
    let file = File::options().write(true).open(copy)?;
    constant_bytes().iter().try_for_each(|(from, bytes)| file.write_all_at(bytes, *from as u64))
}

/// What is the same at the same place in the header of every journal: the format's name; page size, format versions (2
/// is WAL) and fractions; schema format and encoding; whose file it is.
fn constant_bytes() -> [(usize, Vec<u8>); 5] {
    [
        (0, b"SQLite format 3\0".to_vec()),
        (16, vec![0x10, 0x00, 2, 2, 0, 64, 32, 32]),
        (44, vec![0, 0, 0, 4]),
        (56, vec![0, 0, 0, 1]),
        (68, APPLICATION.to_be_bytes().to_vec()),
    ]
}

/// How this crate wants to be served by SQLite, on a connection that writes.
pub(crate) fn configure(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get::<_, String>(0))?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    // The journal decides itself when to checkpoint, so that its log never holds what the file holds too.
    connection.pragma_update_and_check(None, "wal_autocheckpoint", 0, |_| Ok(()))?;
    cautious(connection)
}

/// On every connection: find damage early, and trust nothing that the file says of itself.
pub(crate) fn cautious(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.pragma_update(None, "trusted_schema", false)
}

/// Makes an empty journal at `path`, all at once: it is made under another name, and moved when it is durable, so that
/// a process that is killed meanwhile leaves nothing half made.
pub(crate) fn create(path: &Path) -> Result<(), JournalError> {
    let new = beside(path, ".new");
    for leftover in [new.clone(), beside(&new, "-wal"), beside(&new, "-shm"), beside(&new, "-journal")] {
        match fs::remove_file(&leftover) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(JournalError::io("remove", &leftover)(error));
            }
            _ => {}
        }
    }
    create_version(&new, VERSION).map_err(JournalError::store("make", path, 0))?;
    // SQLite has closed the new file, and with it moved everything out of its log.
    File::open(&new).and_then(|file| file.sync_all()).map_err(JournalError::io("sync", &new))?;
    fs::rename(&new, path).map_err(JournalError::io("move into place", path))?;
    sync_directory(path)
}

/// Makes it durable that a file of this name exists.
pub(crate) fn sync_directory(of: &Path) -> Result<(), JournalError> {
    let directory = directory(of);
    File::open(directory).and_then(|file| file.sync_all()).map_err(JournalError::io("sync", directory))
}

pub(crate) fn directory(of: &Path) -> &Path {
    match of.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// Makes a file of any version known.
pub(crate) fn create_version(path: &Path, version: u32) -> rusqlite::Result<()> {
    // SQLite takes an empty file as it is, and gives its log the same mode. If this fails, SQLite says why.
    let _ = File::options().create(true).append(true).mode(PRIVATE_FILE).open(path);
    let mut connection = Connection::open(path)?;
    connection.pragma_update(None, "page_size", 4096)?;
    connection.pragma_update(None, "application_id", APPLICATION)?;
    configure(&connection)?;
    let transaction = connection.transaction()?;
    create_at(&transaction, version)?;
    transaction.commit()?;
    connection.close().map_err(|(_, error)| error)
}

pub(crate) fn version(connection: &Connection) -> rusqlite::Result<Option<u32>> {
    connection.query_row("SELECT value FROM meta WHERE key = 'layout'", [], |row| row.get(0)).optional()
}

/// Brings the file to the present version, in one transaction. The caller has seen that it is
/// not newer.
pub(crate) fn migrate(connection: &mut Connection, from: u32) -> rusqlite::Result<()> {
    if from == VERSION {
        return Ok(());
    }
    let transaction = connection.transaction()?;
    for (_, migration) in MIGRATIONS.iter().filter(|(to, _)| *to > from) {
        migration(&transaction)?;
    }
    set_version(&transaction, VERSION)?;
    transaction.commit()
}

/// What is wrong with the tables of a file of `version`, if anything.
pub(crate) fn flaw(connection: &Connection, version: u32) -> rusqlite::Result<Option<String>> {
    let found = statements(connection)?;
    let scratch = &mut Connection::open_in_memory()?;
    let transaction = scratch.transaction()?;
    create_at(&transaction, version)?;
    let expected = statements(&transaction)?;
    Ok((found != expected).then(|| format!("its tables are not those of layout {version}")))
}

fn create_at(transaction: &Transaction<'_>, version: u32) -> rusqlite::Result<()> {
    for statement in FIRST {
        transaction.execute(statement, [])?;
    }
    for (_, migration) in MIGRATIONS.iter().filter(|(to, _)| *to <= version) {
        migration(transaction)?;
    }
    set_version(transaction, version)
}

fn set_version(transaction: &Transaction<'_>, version: u32) -> rusqlite::Result<()> {
    transaction.execute("INSERT OR REPLACE INTO meta (key, value) VALUES ('layout', ?1)", [version]).map(drop)
}

/// Version 1 remembers which tails were lost.
fn remember_losses(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    transaction.execute(LOSSES, []).map(drop)
}

/// Version 2 has an identity, 128 random bits as hexadecimal digits, and a number for the format of its facts. Facts
/// that were written before there was a number have format 1.
fn have_identity(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    transaction.execute("INSERT INTO meta (key, value) VALUES ('identity', lower(hex(randomblob(16))))", [])?;
    transaction.execute("INSERT INTO meta (key, value) VALUES ('facts', 1)", []).map(drop)
}

/// What the file says it is, none in a layout that has no identity.
pub(crate) fn identity(connection: &Connection) -> rusqlite::Result<Option<Identity>> {
    let text =
        connection.query_row("SELECT value FROM meta WHERE key = 'identity'", [], |row| row.get(0)).optional()?;
    let parse = |text: String| text.parse().map_err(|_| rusqlite::Error::QueryReturnedNoRows);
    text.map(parse).transpose()
}

/// An identity that no journal has.
pub(crate) fn draw_identity(connection: &Connection) -> rusqlite::Result<Identity> {
    let text: String = connection.query_row("SELECT lower(hex(randomblob(16)))", [], |row| row.get(0))?;
    text.parse().map_err(|_| rusqlite::Error::QueryReturnedNoRows)
}

pub(crate) fn set_identity(connection: &Connection, identity: Identity) -> rusqlite::Result<()> {
    let statement = "INSERT OR REPLACE INTO meta (key, value) VALUES ('identity', ?1)";
    connection.execute(statement, [identity.to_string()]).map(drop)
}

/// The format of the facts, 1 in a layout that has no number for it.
pub(crate) fn facts(connection: &Connection) -> rusqlite::Result<u32> {
    let facts = connection.query_row("SELECT value FROM meta WHERE key = 'facts'", [], |row| row.get(0)).optional()?;
    Ok(facts.unwrap_or(1))
}

pub(crate) fn set_facts(connection: &Connection, facts: u32) -> rusqlite::Result<()> {
    connection.execute("INSERT OR REPLACE INTO meta (key, value) VALUES ('facts', ?1)", [facts]).map(drop)
}

fn statements(connection: &Connection) -> rusqlite::Result<Vec<Option<String>>> {
    let mut statement = connection.prepare("SELECT sql FROM sqlite_master ORDER BY name")?;
    statement.query_map([], |row| row.get(0))?.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Journal, verify};

    #[test]
    fn sqlite_is_built_without_what_a_journal_does_not_use() {
        let connection = Connection::open_in_memory().unwrap();
        let mut statement = connection.prepare("PRAGMA compile_options").unwrap();
        let options: Vec<String> = statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        let switched_on: Vec<&String> = options.iter().filter(|option| option.starts_with("ENABLE_")).collect();
        let hint = "the flags for SQLite stand in .cargo/config.toml, which cargo reads where it is started";
        assert_eq!(switched_on, ["ENABLE_API_ARMOR"], "{hint}");
        for left_out in ["OMIT_JSON", "OMIT_LOAD_EXTENSION"] {
            assert!(options.iter().any(|option| option == left_out), "{left_out}: {hint}");
        }
        for unknown in ["json('{}')", "soundex('a')", "rtreecheck('a')", "load_extension('a')"] {
            let error = connection.prepare(&format!("SELECT {unknown}")).unwrap_err().to_string();
            assert!(error.contains("no such function"), "{unknown}: {error}");
        }
        for unknown in ["fts3", "fts4", "fts5", "rtree", "geopoly", "dbstat"] {
            let error =
                connection.execute_batch(&format!("CREATE VIRTUAL TABLE temp.t USING {unknown}(a)")).unwrap_err();
            assert!(error.to_string().contains("no such module"), "{unknown}: {error}");
        }
    }

    #[test]
    fn a_journal_of_version_0_is_brought_to_the_present_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.db");
        create_version(&path, 0).unwrap();
        {
            let connection = Connection::open(&path).unwrap();
            assert!(connection.prepare("SELECT * FROM losses").is_err(), "version 0 knows of no losses");
            let first = crate::chain::Link::START.then(7, "{}");
            connection
                .execute("INSERT INTO entries (seq, at, text, link) VALUES (1, 7, '{}', ?1)", [first.check.0])
                .unwrap();
        }
        assert_eq!(verify(&path).unwrap().fault, None, "an old journal is verified as it is");

        // Such a journal has no head file here.
        let (journal, opened) = Journal::open_despite_loss(&path).unwrap();
        assert_eq!((opened.last, opened.lost, opened.created), (1, None, false));
        assert_eq!(journal.facts().unwrap(), 1);
        assert_eq!(journal.read(0, 9).unwrap()[0].text, "{}");
        drop(journal);
        let connection = Connection::open(&path).unwrap();
        assert_eq!(version(&connection).unwrap(), Some(VERSION));
        assert_eq!(flaw(&connection, VERSION).unwrap(), None);
    }

    #[test]
    fn a_newer_layout_is_refused_by_naming_both() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.db");
        drop(Journal::open(&path).unwrap());
        Connection::open(&path).unwrap().execute("UPDATE meta SET value = 7 WHERE key = 'layout'", []).unwrap();
        let refusal = Journal::open(&path).unwrap_err().to_string();
        assert!(refusal.ends_with("has layout 7, this program knows layouts up to 2: use a newer one"), "{refusal}");
    }

    #[test]
    fn a_database_of_someone_else_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.db");
        Connection::open(&path).unwrap().execute("CREATE TABLE songs (title)", []).unwrap();
        let before = std::fs::read(&path).unwrap();
        let refusal = Journal::open(&path).unwrap_err().to_string();
        assert!(refusal.ends_with("is a database, but not a journal"), "{refusal}");
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }

    #[test]
    fn migrations_lead_to_the_present_version_one_by_one() {
        let versions: Vec<u32> = MIGRATIONS.iter().map(|(to, _)| *to).collect();
        assert_eq!(versions, (1..=VERSION).collect::<Vec<_>>());
    }
}
