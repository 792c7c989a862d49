//! The journal itself: opened by one process, appended to in whole batches, read from any place.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, TransactionBehavior, ffi, params};

use crate::chain::Link;
use crate::compaction::put_aside;
use crate::examine::{Examined, examine};
use crate::head::{self, Head, Said};
use crate::layout::{self, Kind, beside};
use crate::lock::Lock;
use crate::queries::{self, signed};
use crate::reader::{self, Reader};
use crate::{Entry, Identity, JournalError, Lost, Opened, Snapshot};

/// When this much text was appended, the log is moved into the file.
const CHECKPOINT_BYTES: usize = 4 << 20;

/// How long to wait for someone else's lock, e.g. that of a `verify` in another process.
const PATIENCE: Duration = Duration::from_secs(5);

/// An open journal. There is one for a path, in one process.
#[derive(Debug)]
pub struct Journal {
    pub(crate) connection: Connection,
    pub(crate) path: PathBuf,
    identity: Identity,
    /// Where the chain ends: in the file too, unless `broken`.
    pub(crate) end: Link,
    /// What the snapshot stands for, 0 if there is none.
    pub(crate) upto: u64,
    head: Head,
    since_checkpoint: usize,
    trouble: Option<String>,
    broken: bool,
    /// Dropped last, when SQLite has closed the file.
    _lock: Lock,
}

impl Journal {
    /// Opens the journal at `path`, made if absent, and follows the whole chain after the snapshot. If something is
    /// missing that was there once, or nobody can tell, that is [`JournalError::Lost`], and nothing is changed.
    pub fn open(path: &Path) -> Result<(Journal, Opened), JournalError> {
        Journal::open_as(path, OnLoss::Refuse)
    }

    /// Opens the journal and goes on without what is missing, which is recorded.
    pub fn open_despite_loss(path: &Path) -> Result<(Journal, Opened), JournalError> {
        Journal::open_as(path, OnLoss::GoOn)
    }

    /// What [`Journal::open`] would find, or refuse: nothing is changed, and nothing made where there is no journal. Another
    /// process may use it meanwhile, but not this one, as for [`crate::verify()`].
    pub fn inspect(path: &Path) -> Result<Option<Inspected>, JournalError> {
        let head_path = beside(path, ".head");
        let said = head::peek(&head_path).map_err(JournalError::io("read", &head_path))?;
        if is_absent(path, said, OnLoss::Refuse)? {
            return Ok(None);
        }
        let connection = reader::connect(path).map_err(JournalError::store("open for reading", path, 0))?;
        let found = sound(&connection, path)?;
        missing(&connection, path, &found, said, false, OnLoss::Refuse)?;
        let last = found.end.seq;
        let reading = || JournalError::store("read", path, last);
        let identity = layout::identity(&connection).map_err(reading())?;
        Ok(Some(Inspected { last, identity, facts: layout::facts(&connection).map_err(reading())? }))
    }

    fn open_as(path: &Path, on_loss: OnLoss) -> Result<(Journal, Opened), JournalError> {
        let lock = Lock::take(path)?;
        let head_path = beside(path, ".head");
        let said = head::peek(&head_path).map_err(JournalError::io("read", &head_path))?;
        let created = make_if_absent(path, said, on_loss)?;

        let mut connection = connect(path)?;
        let found = sound(&connection, path)?;
        let lost = missing(&connection, path, &found, said, created, on_loss)?;
        layout::migrate(&mut connection, found.layout).map_err(JournalError::store("migrate", path, found.end.seq))?;
        if let Some(lost) = lost {
            let recording = JournalError::store("record a loss in", path, found.end.seq);
            queries::record_loss(&connection, lost).map_err(recording)?;
        }
        let identity = layout::identity(&connection)
            .and_then(|identity| identity.ok_or(rusqlite::Error::QueryReturnedNoRows))
            .map_err(JournalError::store("read the identity of", path, found.end.seq))?;
        let mut head = Head::open(&head_path, identity).map_err(JournalError::io("open", &head_path))?;
        head.restart(found.end).map_err(JournalError::io("write", &head_path))?;

        let mut journal = Journal {
            connection,
            path: path.to_path_buf(),
            identity,
            end: found.end,
            upto: found.start.seq,
            head,
            since_checkpoint: 0,
            trouble: None,
            broken: false,
            _lock: lock,
        };
        journal.checkpoint();
        let mark = said.and_then(|said| said.mark);
        let opened = Opened { last: found.end.seq, lost, mark, created, head_missing: said.is_none() && !created };
        Ok((journal, opened))
    }

    /// Which journal this is.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// The number of the format in which its facts are written: the owner's affair, but for the number.
    pub fn facts(&self) -> Result<u32, JournalError> {
        layout::facts(&self.connection).map_err(JournalError::store("read the format of", &self.path, self.end.seq))
    }

    pub fn set_facts(&mut self, facts: u32) -> Result<(), JournalError> {
        self.usable()?;
        layout::set_facts(&self.connection, facts).map_err(|error| self.failed("set the format of", error))
    }

    /// A number that is kept in the head file with the next append, and told by [`Opened::mark`] when the journal is
    /// opened: also if the entries it is about are lost by then.
    pub fn set_mark(&mut self, mark: u64) {
        self.head.mark = mark;
    }

    /// Takes over the identity of a journal that was here before, as long as nothing is appended.
    pub fn inherit(&mut self, identity: Identity) -> Result<(), JournalError> {
        assert_eq!(self.end.seq, 0, "entries belong to the journal they were appended to");
        let (facts, mark) = (self.facts()?, self.head.mark);
        self.become_heir(Some(identity), facts, Some(mark))
    }

    /// Becomes another journal than the one it is a copy of: from now on it says another identity of itself.
    pub fn take_new_identity(&mut self) -> Result<Identity, JournalError> {
        self.usable()?;
        let drawn = layout::draw_identity(&self.connection).map_err(|error| self.failed("name", error))?;
        let (facts, mark) = (self.facts()?, self.head.mark);
        self.become_heir(Some(drawn), facts, Some(mark))?;
        Ok(drawn)
    }

    /// Takes the place of another journal, before any entry is appended.
    pub(crate) fn become_heir(
        &mut self,
        identity: Option<Identity>,
        facts: u32,
        mark: Option<u64>,
    ) -> Result<(), JournalError> {
        if let Some(identity) = identity {
            layout::set_identity(&self.connection, identity).map_err(|error| self.failed("name", error))?;
            self.identity = identity;
            self.head.identity = identity;
        }
        self.set_facts(facts)?;
        self.head.mark = mark.unwrap_or(0);
        let head = beside(&self.path, ".head");
        self.head.restart(self.end).map_err(JournalError::io("write", &head))
    }

    /// Appends all of `texts` or none, durably, and says the number of the last entry. After an error nothing was
    /// appended, and the next append may succeed; unless the error came from the disk itself: then everything but
    /// reading answers [`JournalError::MustReopen`], and whether the batch is there shows when the journal is opened.
    pub fn append(&mut self, at: u64, texts: &[String]) -> Result<u64, JournalError> {
        if i64::try_from(at).is_err() {
            return Err(JournalError::TimeOutOfRange { at });
        }
        self.append_each(texts.iter().map(|text| (at, text.as_str())))
    }

    /// The number of the last entry, 0 if there is none.
    pub fn last(&self) -> u64 {
        self.end.seq
    }

    /// The last entry that the snapshot stands for, 0 if there is none.
    pub fn compacted(&self) -> u64 {
        self.upto
    }

    /// The entries after `after`, oldest first, at most `limit`. Asking for archived ones is an error, not a gap.
    pub fn read(&self, after: u64, limit: usize) -> Result<Vec<Entry>, JournalError> {
        let mut read = Vec::new();
        reader::show(&self.connection, &self.path, after, limit, |entry| {
            read.push(entry);
            Ok::<_, JournalError>(())
        })?;
        Ok(read)
    }

    /// Shows every entry after `after`, one at a time, until `f` fails.
    pub fn for_each<E: From<JournalError>>(&self, after: u64, f: impl FnMut(Entry) -> Result<(), E>) -> Result<(), E> {
        reader::show(&self.connection, &self.path, after, usize::MAX, f)
    }

    /// The snapshot of the latest compaction.
    pub fn snapshot(&self) -> Result<Option<Snapshot>, JournalError> {
        reader::snapshot(&self.connection, &self.path)
    }

    /// A second, read-only connection for another thread.
    pub fn reader(&self) -> Result<Reader, JournalError> {
        Reader::open(&self.path)
    }

    /// What went wrong since the last append that did not endanger an entry: the head could not be written, or the log
    /// could not be moved into the file. It is tried again by itself.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Like [`Journal::append`], each entry with its own time.
    pub(crate) fn append_each<'a>(
        &mut self,
        entries: impl IntoIterator<Item = (u64, &'a str)>,
    ) -> Result<u64, JournalError> {
        self.usable()?;
        let (end, bytes) = match insert(&mut self.connection, self.end, entries) {
            Ok(inserted) => inserted,
            Err(error) => {
                let error = self.failed("append to", error);
                return Err(match error {
                    JournalError::ReadOnly { .. } => error,
                    error if self.broken => self.in_doubt(error),
                    error => error,
                });
            }
        };
        if end == self.end {
            return Ok(end.seq);
        }
        self.end = end;
        self.since_checkpoint += bytes;
        self.trouble = None;
        if let Err(error) = self.head.advance(end) {
            self.trouble = Some(format!("cannot write the head of journal {}: {error}", self.path.display()));
        }
        if self.since_checkpoint >= CHECKPOINT_BYTES {
            self.checkpoint();
        }
        Ok(end.seq)
    }

    fn in_doubt(&self, source: JournalError) -> JournalError {
        JournalError::InDoubt { path: self.path.clone(), source: Box::new(source) }
    }

    /// Opens the file anew after an append that failed on the way to the disk, and says the number of the last entry: by
    /// it the caller knows whether the batch is there. All that is there is durable then, by being written again: what
    /// the failed sync was about cannot be synced a second time.
    pub fn reopen(&mut self) -> Result<u64, JournalError> {
        let aside = Connection::open_in_memory().map_err(JournalError::store("reopen", &self.path, self.end.seq))?;
        self.broken = true;
        drop(std::mem::replace(&mut self.connection, aside));
        let connection = connect(&self.path)?;
        let found = sound(&connection, &self.path)?;
        if found.end.seq < self.end.seq {
            let what = format!("entry {} was acknowledged and is gone", self.end.seq);
            return Err(JournalError::Damaged { path: self.path.clone(), last_good: found.end.seq, what });
        }
        self.connection = connection;
        (self.end, self.upto) = (found.end, found.start.seq);
        if !self.move_log().map_err(JournalError::store("reopen", &self.path, self.end.seq))? {
            return Err(JournalError::MustReopen { path: self.path.clone() });
        }
        self.head.restart(self.end).map_err(JournalError::io("write", &beside(&self.path, ".head")))?;
        self.broken = false;
        Ok(self.end.seq)
    }

    pub(crate) fn usable(&self) -> Result<(), JournalError> {
        match self.broken {
            true => Err(JournalError::MustReopen { path: self.path.clone() }),
            false => Ok(()),
        }
    }

    /// What a failed transaction means. SQLite has rolled it back; what the disk did is another matter: when it failed to
    /// write or to sync, nobody knows what a later sync would vouch for.
    pub(crate) fn failed(&mut self, doing: &'static str, error: rusqlite::Error) -> JournalError {
        let by_disk = matches!(
            error.sqlite_error().map(|failure| failure.extended_code),
            Some(ffi::SQLITE_IOERR_WRITE | ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC)
        );
        let as_before =
            self.connection.is_autocommit() && queries::end(&self.connection).is_ok_and(|end| end == self.end);
        let error = JournalError::store(doing, &self.path, self.end.seq)(error);
        // A log that could be opened only for reading stays so for as long as it is open.
        let for_reading_only = matches!(error, JournalError::ReadOnly { .. });
        self.broken = by_disk || for_reading_only || !as_before;
        error
    }

    /// Moves the log into the file and empties it. Entries are durable in the log already, so a failure is only trouble;
    /// while a reader is in the way, it waits for the next time.
    pub(crate) fn checkpoint(&mut self) {
        if let Err(error) = self.move_log() {
            self.trouble = Some(format!("cannot move the log of journal {} into it: {error}", self.path.display()));
        }
    }

    /// False if a reader was in the way.
    fn move_log(&mut self) -> rusqlite::Result<bool> {
        self.since_checkpoint = 0;
        self.connection.busy_timeout(Duration::ZERO)?;
        let moved = self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0));
        self.connection.busy_timeout(PATIENCE)?;
        Ok(moved? == 0)
    }
}

/// A journal that was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inspected {
    /// The number of the last entry, 0 if there is none.
    pub last: u64,
    /// Nothing in a layout that does not say it.
    pub identity: Option<Identity>,
    /// The number of the format in which its facts are written.
    pub facts: u32,
}

/// What to do when something is missing that was there once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnLoss {
    Refuse,
    GoOn,
}

/// The tail that is missing, if that is accepted.
fn missing(
    connection: &Connection,
    path: &Path,
    found: &Examined,
    said: Option<Said>,
    created: bool,
    on_loss: OnLoss,
) -> Result<Option<Lost>, JournalError> {
    let lost = |what: String| JournalError::Lost { path: path.to_path_buf(), what };
    let opening = || JournalError::store("open", path, found.end.seq);
    let own = layout::identity(connection).map_err(opening())?;
    if let (Some(own), Some(found)) = (own, said.and_then(|said| said.identity))
        && own != found
        && on_loss == OnLoss::Refuse
    {
        return Err(JournalError::Foreign { path: beside(path, ".head"), found, own });
    }
    if said.is_none() && !created && found.end.seq > 0 && on_loss == OnLoss::Refuse {
        return Err(lost(format!(
            "its head file is missing or unreadable, so nobody can tell whether entries after {} are lost",
            found.end.seq
        )));
    }
    match tail(connection, found, said.map(|said| said.link)).map_err(opening())? {
        Tail::Whole => Ok(None),
        Tail::Lost(Lost { from, to }) if on_loss == OnLoss::Refuse => {
            Err(lost(format!("entries {from} to {to} were acknowledged and are not there")))
        }
        Tail::Lost(tail) => Ok(Some(tail)),
        Tail::Other(_) if on_loss == OnLoss::GoOn => Ok(None),
        Tail::Other(what) => Err(JournalError::Damaged { path: path.to_path_buf(), last_good: 0, what }),
    }
}

/// How a journal's end compares with what its head file says.
pub(crate) enum Tail {
    Whole,
    Lost(Lost),
    /// The head was written for another history.
    Other(String),
}

pub(crate) fn tail(connection: &Connection, found: &Examined, said: Option<Link>) -> rusqlite::Result<Tail> {
    let Some(said) = said else {
        return Ok(Tail::Whole);
    };
    if said.seq > found.end.seq {
        return Ok(Tail::Lost(Lost { from: found.end.seq + 1, to: said.seq }));
    }
    let stored =
        if said.seq == found.start.seq { Some(found.start.check) } else { queries::check_of(connection, said.seq)? };
    Ok(match stored {
        Some(check) if check != said.check => {
            Tail::Other(format!("entry {} is not the one that its head file vouches for", said.seq))
        }
        // A head from before the snapshot is behind, which is harmless.
        _ => Tail::Whole,
    })
}

/// Makes a new journal if there is none, and none is known to have been.
fn make_if_absent(path: &Path, said: Option<Said>, on_loss: OnLoss) -> Result<bool, JournalError> {
    if !is_absent(path, said, on_loss)? {
        return Ok(false);
    }
    let log = beside(path, "-wal");
    if fs::metadata(&log).is_ok_and(|found| found.len() > 0) {
        put_aside(&log)?;
    }
    layout::create(path)?;
    Ok(true)
}

/// Whether there is none, and none is known to have been unless that is accepted.
fn is_absent(path: &Path, said: Option<Said>, on_loss: OnLoss) -> Result<bool, JournalError> {
    let damaged = |what: String| JournalError::Damaged { path: path.to_path_buf(), last_good: 0, what };
    match layout::kind(path)? {
        Kind::Journal => return Ok(false),
        Kind::Foreign => return Err(JournalError::NotAJournal { path: path.to_path_buf() }),
        Kind::Broken(what) => return Err(damaged(what.into())),
        Kind::Nothing => {}
    }
    let vouched = said.map(|said| said.link.seq).filter(|&seq| seq > 0);
    if let (Some(seq), OnLoss::Refuse) = (vouched, on_loss) {
        let what = format!("there is nothing in it, but its head file vouches for entry {seq}");
        return Err(JournalError::Lost { path: path.to_path_buf(), what });
    }
    let log = beside(path, "-wal");
    match fs::metadata(&log) {
        Ok(found) if found.len() > 0 && on_loss == OnLoss::Refuse => {
            let what = "there is nothing in it, but a log beside it".into();
            Err(JournalError::Lost { path: path.to_path_buf(), what })
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(JournalError::io("read", &log)(error)),
        _ => Ok(true),
    }
}

pub(crate) fn connect(path: &Path) -> Result<Connection, JournalError> {
    let opening = || JournalError::store("open", path, 0);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(opening())?;
    connection.busy_timeout(PATIENCE).map_err(opening())?;
    // SQLite opens what it may not write for reading only, and says so at the first append.
    if connection.is_readonly("main").map_err(opening())? {
        return Err(JournalError::ReadOnly { doing: "open", path: path.to_path_buf() });
    }
    layout::configure(&connection).map_err(opening())?;
    Ok(connection)
}

/// The journal's state, if it is sound and of a layout that is known.
fn sound(connection: &Connection, path: &Path) -> Result<Examined, JournalError> {
    let found = examine(connection).map_err(JournalError::store("open", path, 0))?;
    if found.layout > layout::VERSION {
        let (found, known) = (found.layout, layout::VERSION);
        return Err(JournalError::Newer { path: path.to_path_buf(), found, known });
    }
    match found.fault {
        Some(what) => Err(JournalError::Damaged { path: path.to_path_buf(), last_good: found.end.seq, what }),
        None => Ok(found),
    }
}

/// Inserts in one transaction, and says where the chain ends then and how much text it was.
fn insert<'a>(
    connection: &mut Connection,
    mut end: Link,
    entries: impl IntoIterator<Item = (u64, &'a str)>,
) -> rusqlite::Result<(Link, usize)> {
    let mut bytes = 0;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    {
        let mut statement =
            transaction.prepare_cached("INSERT INTO entries (seq, at, text, link) VALUES (?1, ?2, ?3, ?4)")?;
        for (at, text) in entries {
            end = end.then(at, text);
            bytes += text.len();
            statement.execute(params![signed(end.seq), signed(at), text, end.check.0])?;
        }
    }
    transaction.commit()?;
    Ok((end, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts<const N: usize>(texts: [&str; N]) -> Vec<String> {
        texts.map(String::from).to_vec()
    }

    fn said(entries: &[Entry]) -> String {
        entries.iter().map(|entry| format!("{}@{} {}", entry.seq, entry.at, entry.text)).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn what_is_appended_is_read_in_order_and_after_reopening() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.db");
        let (mut journal, opened) = Journal::open(&path).unwrap();
        assert_eq!(opened, Opened { last: 0, lost: None, mark: None, created: true, head_missing: false });
        assert_eq!(journal.append(10, &texts(["a", "b"])).unwrap(), 2);
        assert_eq!(journal.append(11, &[]).unwrap(), 2);
        assert_eq!(journal.append(9, &texts(["c"])).unwrap(), 3);
        drop(journal);
        let (journal, opened) = Journal::open(&path).unwrap();
        assert_eq!(opened, Opened { last: 3, lost: None, mark: Some(0), created: false, head_missing: false });
        assert_eq!(said(&journal.read(0, 9).unwrap()), "1@10 a, 2@10 b, 3@9 c");
        assert_eq!(said(&journal.read(1, 1).unwrap()), "2@10 b");
        assert_eq!(said(&journal.read(3, 9).unwrap()), "");
        assert_eq!(said(&journal.read(u64::MAX, usize::MAX).unwrap()), "");
    }

    #[test]
    fn a_walk_over_entries_ends_when_the_caller_has_enough() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::open(&dir.path().join("j.db")).unwrap();
        journal.append(1, &texts(["a", "b", "c"])).unwrap();
        let mut seen = Vec::new();
        let ended = journal.for_each(1, |entry| {
            seen.push(entry.seq);
            if entry.seq == 2 { Err(JournalError::TimeOutOfRange { at: 2 }) } else { Ok(()) }
        });
        assert!(matches!(ended, Err(JournalError::TimeOutOfRange { at: 2 })));
        assert_eq!(seen, [2]);
    }

    #[test]
    fn a_reader_in_another_thread_sees_whole_appends_only() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::open(&dir.path().join("j.db")).unwrap();
        let reader = journal.reader().unwrap();
        let watching = std::thread::spawn(move || {
            let mut last = 0;
            while last < 400 {
                let read = reader.read(last, usize::MAX).unwrap();
                assert_eq!(read.len() % 4, 0, "half an append was seen");
                last += read.len() as u64;
            }
            reader.last().unwrap()
        });
        for _ in 0..100 {
            journal.append(1, &texts(["a", "b", "c", "d"])).unwrap();
        }
        assert_eq!(watching.join().unwrap(), 400);
    }

    #[test]
    fn a_journal_has_one_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.db");
        let (journal, _) = Journal::open(&path).unwrap();
        let refused = Journal::open(&path).unwrap_err().to_string();
        assert_eq!(refused, format!("journal {} is in use by process {}", path.display(), std::process::id()));
        drop(journal);
        Journal::open(&path).unwrap();
    }

    #[test]
    fn an_append_with_an_impossible_time_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::open(&dir.path().join("j.db")).unwrap();
        assert!(matches!(journal.append(u64::MAX, &texts(["a"])), Err(JournalError::TimeOutOfRange { .. })));
        assert_eq!(journal.append(1, &texts(["b"])).unwrap(), 1);
    }

    #[test]
    fn a_failed_append_leaves_the_chain_as_it_is_in_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.db");
        let (mut journal, _) = Journal::open(&path).unwrap();
        journal.append(1, &texts(["a"])).unwrap();
        // The number of the second entry is taken, so that the batch fails after its first one was inserted.
        journal.connection.execute("INSERT INTO entries (seq, at, text, link) VALUES (3, 1, 'x', x'00')", []).unwrap();
        assert!(journal.append(2, &texts(["b", "c"])).is_err());
        assert!(matches!(journal.append(2, &texts(["b"])), Err(JournalError::MustReopen { .. })), "the file says more");
        journal.connection.execute("DELETE FROM entries WHERE seq = 3", []).unwrap();
        drop(journal);
        let (mut journal, opened) = Journal::open(&path).unwrap();
        assert_eq!((opened.last, opened.lost), (1, None));
        assert_eq!(journal.append(3, &texts(["b"])).unwrap(), 2);
    }

    #[test]
    fn a_journal_that_was_reopened_says_how_far_it_came_and_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.db");
        let (mut journal, _) = Journal::open(&path).unwrap();
        let _reader = journal.reader().unwrap();
        journal.append(1, &texts(["a", "b"])).unwrap();
        journal.broken = true;
        assert!(matches!(journal.append(2, &texts(["c"])), Err(JournalError::MustReopen { .. })));
        assert_eq!(journal.reopen().unwrap(), 2);
        assert_eq!(journal.append(2, &texts(["c"])).unwrap(), 3);
        drop(journal);
        let (journal, opened) = Journal::open(&path).unwrap();
        assert_eq!((opened.last, opened.lost), (3, None));
        assert_eq!(said(&journal.read(0, 9).unwrap()), "1@1 a, 2@1 b, 3@2 c");
    }

    #[test]
    fn the_log_is_kept_short_once_no_reader_is_in_the_way() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.db");
        let (mut journal, _) = Journal::open(&path).unwrap();
        journal.append(1, &texts(["a"])).unwrap();
        let log = || fs::metadata(beside(&path, "-wal")).unwrap().len();
        let batch = vec!["x".repeat(64 << 10)];

        let reader = Connection::open(&path).unwrap();
        reader.execute_batch("BEGIN; SELECT count(*) FROM entries").unwrap();
        for _ in 0..200 {
            journal.append(1, &batch).unwrap();
        }
        assert!(log() > 12 << 20, "a reader holds on to what it sees");
        assert_eq!(journal.trouble(), None);
        drop(reader);
        for appended in 0..200 {
            journal.append(1, &batch).unwrap();
            assert!(appended < 64 || log() < 6 << 20);
        }
    }

    #[test]
    fn a_long_journal_is_opened_and_followed_in_no_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.db");
        let (mut journal, _) = Journal::open(&path).unwrap();
        let batch = vec!["x".repeat(1000); 1000];
        for _ in 0..100 {
            journal.append(1, &batch).unwrap();
        }
        drop(journal);
        let began = std::time::Instant::now();
        assert_eq!(Journal::open(&path).unwrap().1.last, 100_000);
        let took = began.elapsed();
        assert!(took < Duration::from_secs(5), "opening 100,000 entries of 1 kB took {took:?}");
    }
}
