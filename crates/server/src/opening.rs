//! How a journal is taken up: what it says, whether that is all there was, and which numbers are free.
//!
//! Something is lost if the head file, a run or a checkpoint directory knows more than the journal. Then the service goes
//! on only with an explicit word, and numbers its jobs above all that were seen.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cluster::Time;
use disk::As;
use engine::{Event, State};
use executors::{Checkpoints, Seen};
use journal::{Entry, Identity, Journal, JournalError, Opened, Reader};
use nix::unistd::geteuid;

use crate::data_dir::journal_path;
use crate::error::ServerError;
use crate::fact::{FORMAT, Fact};
use crate::identity;
use crate::image::Image;
use crate::ledger::Ledger;

/// What the administrator has said to go on with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Accepted {
    /// Goes on although something was lost.
    pub loss: bool,
    /// Goes on in a copy of another data directory, under an identity of its own.
    pub copy: bool,
}

pub(crate) struct Opening {
    pub(crate) journal: Journal,
    /// Nothing in a new data directory.
    pub(crate) past: Option<Past>,
    /// No job has had this number or a higher one.
    pub(crate) first_free: u32,
    /// Directories were made before they said to whom they belong.
    pub(crate) adopt: bool,
    /// What was lost, in words.
    pub(crate) lost: Option<String>,
    /// It is a copy of another data directory, and was accepted as one.
    pub(crate) is_copy: bool,
}

/// What the journal says was the case.
pub(crate) struct Past {
    pub(crate) state: State,
    pub(crate) ledger: Ledger,
}

impl Past {
    pub(crate) fn read(journal: &Reader) -> Result<Past, ServerError> {
        let mut past = Past { state: State::default(), ledger: Ledger::default() };
        let mut after = 0;
        if let Some(snapshot) = journal.snapshot()? {
            let Image { state, ledger } = Image::from_text(&snapshot.text)?;
            past = Past { state, ledger };
            after = snapshot.upto;
        }
        journal.for_each(after, |entry: Entry| -> Result<(), ServerError> {
            let fact: Fact = serde_json::from_str(&entry.text)
                .map_err(|error| ServerError::Entry { seq: entry.seq, message: error.to_string() })?;
            let at = Time::from_millis(entry.at);
            if !past.state.has_begun() && !matches!(&fact, Fact::Core(Event::ClusterDefined { .. })) {
                let message = "a history begins with the definition of its cluster".into();
                return Err(ServerError::Entry { seq: entry.seq, message });
            }
            if let Fact::Core(event) = &fact {
                past.state.apply(at, event);
            }
            past.ledger.apply(at, &fact, &past.state.books().cluster);
            Ok(())
        })?;
        Ok(past)
    }
}

impl Opening {
    pub(crate) fn of(data_dir: &Path, checkpoints: &Checkpoints, accepted: Accepted) -> Result<Opening, ServerError> {
        let path = journal_path(data_dir);
        let seen = Seen::in_data_dir(data_dir, checkpoints)?;
        let note = accepted_note(data_dir, accepted)?;
        let is_copy = note.is_some_and(|note| note.is_copy);
        let noted = note.map(|note| note.identity);
        let mut lost = Losses { data_dir, accepted: accepted.loss, found: Vec::new() };
        if !path.exists() {
            lost.of_whole_journal(&seen, noted)?;
        }
        let (mut journal, opened) = lost.open(&path)?;
        // The directory is this process's own from here on. What cannot be removed only takes room.
        disk::remove_unfinished(data_dir).unwrap_or_else(|error| tracing::warn!(%error, "unfinished files are left"));
        // A start that was accepted as a copy's and came to an early end has left the journal with another identity.
        if let Some(noted) = noted.filter(|noted| *noted != journal.identity() && !is_copy) {
            // A journal in which nothing stands yet is this directory's, whoever made it.
            match journal.last() {
                0 => journal.inherit(noted)?,
                _ => lost.of_identity(noted, journal.identity())?,
            }
        }
        let facts = journal.facts()?;
        refuse_newer(&path, facts)?;
        let past = (opened.last > 0).then(|| Past::read(&journal.reader()?)).transpose()?;
        let identity = past.as_ref().and_then(|past| past.ledger.identity());
        if is_copy {
            tracing::warn!("this data directory is a copy: it gets an identity of its own");
            journal.take_new_identity()?;
        } else {
            refuse_foreign_entries(&path, identity, journal.identity())?;
        }
        if let Some(past) = &past {
            lost.compare(past, &seen, &journal.identity().to_string())?;
        }
        let first_free = first_free(&path, past.as_ref(), &seen, &opened, lost.any())?;
        if facts < FORMAT {
            journal.set_facts(FORMAT)?;
        }
        let adopt = past.is_some() && identity.is_none();
        Ok(Opening { journal, past, first_free, adopt, lost: lost.told(), is_copy })
    }
}

/// What lies in a data directory, or why [`Opening::of`] would refuse it without a word from the administrator. Nothing is
/// changed, and a service may be running there.
pub(crate) fn inspect(data_dir: &Path, checkpoints: &Checkpoints) -> Result<Option<Past>, ServerError> {
    let path = journal_path(data_dir);
    // Before the journal: what is made meanwhile is in it already.
    let seen = Seen::in_data_dir(data_dir, checkpoints)?;
    let noted = accepted_note(data_dir, Accepted::default())?.map(|note| note.identity);
    let mut lost = Losses { data_dir, accepted: false, found: Vec::new() };
    if !path.exists() {
        lost.of_whole_journal(&seen, noted)?;
    }
    let found = match Journal::inspect(&path) {
        Err(error) => return Err(lost.by(error).expect_err("no loss is accepted")),
        Ok(None) => return Ok(None),
        Ok(Some(found)) => found,
    };
    if found.last > 0
        && let (Some(noted), Some(own)) = (noted, found.identity)
        && noted != own
    {
        lost.of_identity(noted, own)?;
    }
    refuse_newer(&path, found.facts)?;
    if found.last == 0 {
        return Ok(None);
    }
    let past = Past::read(&Reader::open(&path)?)?;
    if let Some(own) = found.identity {
        refuse_foreign_entries(&path, past.ledger.identity(), own)?;
        lost.compare(&past, &seen, &own.to_string())?;
    }
    Ok(Some(past))
}

/// What the directory says of itself; a copy is refused unless it was said to be one.
fn accepted_note(data_dir: &Path, accepted: Accepted) -> Result<Option<identity::Note>, ServerError> {
    let note = identity::read(data_dir)?;
    if note.is_some_and(|note| note.is_copy) && !accepted.copy {
        return Err(ServerError::Copy { data_dir: data_dir.to_path_buf(), note: identity::path(data_dir) });
    }
    Ok(note)
}

fn refuse_newer(path: &Path, facts: u32) -> Result<(), ServerError> {
    match facts > FORMAT {
        true => Err(ServerError::NewerFacts { path: path.into(), found: facts, known: FORMAT }),
        false => Ok(()),
    }
}

fn refuse_foreign_entries(path: &Path, found: Option<Identity>, own: Identity) -> Result<(), ServerError> {
    match found.filter(|found| *found != own) {
        Some(found) => Err(ServerError::ForeignEntries { path: path.into(), found, own }),
        None => Ok(()),
    }
}

/// What is found to be lost. Each is an error, unless it was said that it is accepted.
struct Losses<'a> {
    data_dir: &'a Path,
    accepted: bool,
    found: Vec<String>,
}

impl Losses<'_> {
    fn add(&mut self, what: String) -> Result<(), ServerError> {
        if !self.accepted {
            return Err(ServerError::Loss { data_dir: self.data_dir.to_path_buf(), what });
        }
        self.found.push(what);
        Ok(())
    }

    fn open(&mut self, path: &Path) -> Result<(Journal, Opened), ServerError> {
        match Journal::open(path) {
            Err(error) => self.by(error)?,
            Ok(opened) => return Ok(opened),
        }
        Ok(Journal::open_despite_loss(path)?)
    }

    /// What the journal finds to be lost; any other error stays one.
    fn by(&mut self, error: JournalError) -> Result<(), ServerError> {
        match error {
            JournalError::Lost { what, .. } => self.add(what),
            JournalError::Foreign { .. } => self.add(error.to_string()),
            other => Err(other.into()),
        }
    }

    fn of_identity(&mut self, noted: Identity, own: Identity) -> Result<(), ServerError> {
        self.add(format!("the journal is {own}, but the data directory is {noted}"))
    }

    fn of_whole_journal(&mut self, seen: &Seen, identity: Option<Identity>) -> Result<(), ServerError> {
        let identity = identity.map(|identity| identity.to_string());
        match seen.own(identity.as_deref()).map(|(job, _)| job).max() {
            Some(job) => self.add(format!("there is no journal, but there are directories of jobs up to {job}")),
            None if journal::has_archives(&journal_path(self.data_dir))? => {
                self.add("there is no journal, but there are archives of one".into())
            }
            None => Ok(()),
        }
    }

    /// Directories are made after what they are made for is in the journal.
    fn compare(&mut self, past: &Past, seen: &Seen, identity: &str) -> Result<(), ServerError> {
        let next = past.ledger.next_number();
        let beyond = seen.own(Some(identity)).map(|(job, _)| job).filter(|job| job.0 >= next).max();
        if let Some(highest) = beyond {
            self.add(format!("there are directories of jobs up to {highest}, but the journal ends before job {next}"))?;
        }
        let claims = past.state.books().claims();
        for (job, attempt) in seen.own(Some(identity)) {
            let launches = claims.get(job).map(|claim| claim.progress.launches);
            if let (Some(attempt), Some(launches)) = (attempt, launches)
                && attempt > launches
            {
                self.add(format!("job {job} was started {attempt} times, but the journal knows of {launches}"))?;
            }
        }
        Ok(())
    }

    fn any(&self) -> bool {
        !self.found.is_empty()
    }

    fn told(self) -> Option<String> {
        let told = self.found.join("; ");
        if self.any() {
            tracing::error!("something is lost, and the service goes on without it: {told}");
        }
        self.any().then_some(told)
    }
}

/// The first number that lies above every one that was ever seen.
fn first_free(path: &Path, past: Option<&Past>, seen: &Seen, opened: &Opened, lost: bool) -> Result<u32, ServerError> {
    let known = past.map_or(0, |past| past.ledger.next_number());
    let in_directories = seen.highest().map_or(0, |highest| highest.0 + 1);
    if !lost {
        return Ok(known.max(in_directories));
    }
    // A head of the first format says nothing of numbers. Each lost entry may have given out one.
    let entries = opened.lost.map_or(0, |lost| lost.to + 1 - lost.from);
    let marked = opened.mark.unwrap_or(u64::from(known) + entries);
    let mut in_archives = 0;
    journal::read_stray_archives(path, |text| {
        if let Ok(Fact::Numbered(acceptance)) = serde_json::from_str(text) {
            in_archives = in_archives.max(acceptance.first.0 + acceptance.task_count());
        }
    })?;
    let marked = u32::try_from(marked).unwrap_or(u32::MAX);
    let let_go = noted_next_number(path)?;
    Ok(known.max(in_directories).max(in_archives).max(marked).max(let_go))
}

/// Where it stands which numbers lie above those in archives that were let go. It is read only after a loss.
fn numbers_file(journal: &Path) -> PathBuf {
    journal.with_file_name("archive").join("next-number")
}

pub(crate) fn note_next_number(data_dir: &Path, next: u32) -> Result<(), ServerError> {
    let path = numbers_file(&journal_path(data_dir));
    // An administrator may do this for the service, which has to read it.
    let owner = fs::metadata(data_dir).ok().filter(|_| geteuid().is_root()).map(|about| (about.uid(), about.gid()));
    let written = disk::replace(&path, format!("{next}\n").as_bytes(), As::PRIVATE.owned_by(owner));
    written.map_err(ServerError::file("cannot write", path))
}

fn noted_next_number(journal: &Path) -> Result<u32, ServerError> {
    let path = numbers_file(journal);
    match fs::read_to_string(&path) {
        Ok(text) => Ok(text.trim().parse().unwrap_or(0)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(ServerError::file("cannot read", path)(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Why a start is refused; an inspection before it says the same.
    fn refused(dir: &Path) -> String {
        let inspected = inspect(dir, &Checkpoints::in_data_dir(dir)).map(drop).unwrap_err().to_string();
        let opened = Opening::of(dir, &Checkpoints::in_data_dir(dir), Accepted::default());
        let refused = opened.map(drop).unwrap_err().to_string();
        assert_eq!(inspected, refused);
        refused
    }

    #[test]
    fn a_journal_whose_head_is_gone_or_of_another_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = journal_path(dir.path());
        let (mut journal, _) = Journal::open(&path).unwrap();
        journal.append(1, &["{}".into()]).unwrap();
        drop(journal);
        let head = fs::read(dir.path().join("journal.db.head")).unwrap();
        fs::remove_file(dir.path().join("journal.db.head")).unwrap();
        assert!(refused(dir.path()).contains("its head file is missing or unreadable"));
        fs::write(dir.path().join("journal.db.head"), head).unwrap();
        let other: Identity = "0123456789abcdef0123456789abcdef".parse().unwrap();
        identity::write(dir.path(), other).unwrap();
        assert!(refused(dir.path()).contains("but the data directory is 0123456789abcdef0123456789abcdef"));
    }

    #[test]
    fn a_history_without_a_beginning_is_refused_by_naming_the_entry() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::open(&journal_path(dir.path())).unwrap();
        let chosen = Fact::Core(Event::PolicyChosen { name: "fifo".into() });
        journal.append(1, &[serde_json::to_string(&chosen).unwrap()]).unwrap();
        drop(journal);
        let refused = refused(dir.path());
        assert!(refused.contains("entry 1 of the journal") && refused.contains("begins with"), "{refused}");
    }

    #[test]
    fn facts_of_a_newer_format_are_refused_by_naming_both() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::open(&journal_path(dir.path())).unwrap();
        journal.set_facts(FORMAT + 7).unwrap();
        drop(journal);
        let refused = refused(dir.path());
        let expected = format!("has facts of format {}, this program knows formats up to {FORMAT}", FORMAT + 7);
        assert!(refused.contains(&expected), "{refused}");
    }

    #[test]
    fn a_snapshot_of_a_newer_format_is_refused_before_anything_is_read_from_it() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::open(&journal_path(dir.path())).unwrap();
        journal.append(1, &["{}".into()]).unwrap();
        let snapshot = serde_json::json!({ "format": FORMAT + 1, "state": "in other words" }).to_string();
        journal.compact(1, &snapshot).unwrap();
        drop(journal);
        let refused = refused(dir.path());
        let expected = format!("it has format {}, this program knows formats up to {FORMAT}", FORMAT + 1);
        assert!(refused.contains(&expected), "{refused}");
    }
}
