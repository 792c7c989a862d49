//! Journals to do harm to, and what they must still say afterwards.

#![allow(dead_code, reason = "each test file uses a part of this")]

use std::fs;
use std::path::{Path, PathBuf};

use journal::{Entry, Journal, JournalError, salvage, verify};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tempfile::TempDir;

pub(crate) type Dice = ChaCha8Rng;

pub(crate) fn dice(seed: u64) -> Dice {
    Dice::seed_from_u64(seed)
}

/// A directory in memory if there is one: what is harmed by hand need not be durable, and there are many of them.
pub(crate) fn quick_dir() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Texts of very different lengths, some longer than a page of SQLite's.
pub(crate) fn texts(dice: &mut Dice, count: usize) -> Vec<String> {
    let mut text = || {
        let length = if dice.random_ratio(1, 20) { dice.random_range(0..9000) } else { dice.random_range(0..400) };
        let body: String = (0..length).map(|_| char::from(dice.random_range(b'a'..=b'z'))).collect();
        format!(r#"{{"body":"{body}"}}"#)
    };
    (0..count).map(|_| text()).collect()
}

/// What was appended, and after which entries an append ended.
#[derive(Default)]
pub(crate) struct Written {
    pub(crate) entries: Vec<Entry>,
    pub(crate) ends: Vec<u64>,
}

impl Written {
    pub(crate) fn last(&self) -> u64 {
        self.entries.len() as u64
    }

    pub(crate) fn append(&mut self, journal: &mut Journal, at: u64, texts: &[String]) {
        let last = journal.append(at, texts).unwrap();
        self.add(at, texts);
        assert_eq!(last, self.last());
    }

    /// Takes note of an append that succeeded.
    pub(crate) fn add(&mut self, at: u64, texts: &[String]) {
        for text in texts {
            self.entries.push(Entry { seq: self.last() + 1, at, text: text.clone() });
        }
        self.ends.push(self.last());
    }

    /// Asserts that the journal says what was written, after its snapshot and as far as it goes.
    pub(crate) fn assert_prefix(&self, journal: &Journal, hint: &str) {
        let upto = journal.snapshot().unwrap().map_or(0, |snapshot| snapshot.upto);
        let found = journal.read(upto, usize::MAX).unwrap();
        let expected = &self.entries[upto as usize..journal.last() as usize];
        assert!(found == expected, "{hint}: what is there is not what was written");
    }
}

pub(crate) fn fill(journal: &mut Journal, dice: &mut Dice, batches: usize) -> Written {
    let mut written = Written::default();
    fill_on(&mut written, journal, dice, batches);
    written
}

pub(crate) fn fill_on(written: &mut Written, journal: &mut Journal, dice: &mut Dice, batches: usize) {
    for _ in 0..batches {
        let count = dice.random_range(1..20);
        let texts = texts(dice, count);
        written.append(journal, 1000 + written.last(), &texts);
    }
}

/// Copies the files of a journal as a crash would leave them, without its lock, its index of the log, or archives.
pub(crate) fn copy(from: &Path, to_dir: &Path) -> PathBuf {
    let name = from.file_name().unwrap().to_str().unwrap();
    for suffix in ["", "-wal", ".head"] {
        let from = from.with_file_name(format!("{name}{suffix}"));
        if from.exists() {
            fs::copy(&from, to_dir.join(format!("{name}{suffix}"))).unwrap();
        }
    }
    to_dir.join(name)
}

pub(crate) fn copy_archives(from: &Path, to_dir: &Path) {
    let to = to_dir.join("archive");
    fs::create_dir_all(&to).unwrap();
    for file in fs::read_dir(from.with_file_name("archive")).unwrap() {
        let file = file.unwrap().path();
        fs::copy(&file, to.join(file.file_name().unwrap())).unwrap();
    }
}

/// What became of a harmed journal, in a word. Panics if it says anything wrong, or if `verify` and `salvage` do not
/// agree with it.
pub(crate) fn judge(path: &Path, written: &Written, hint: &str) -> &'static str {
    let before = fs::read(path).unwrap();
    let verified = verify(path).unwrap_or_else(|error| panic!("{hint}: verify fails: {error}"));
    let saved = path.with_file_name("saved.db");
    let salvaged = salvage(path, &saved).unwrap_or_else(|error| panic!("{hint}: salvage fails: {error}"));
    assert!(fs::read(path).unwrap() == before, "{hint}: verify or salvage changed the journal");

    let (rescued, opened) = Journal::open(&saved).unwrap_or_else(|error| panic!("{hint}: salvaged: {error}"));
    assert_eq!(opened.last, salvaged.last, "{hint}");
    assert_eq!(opened.lost, None, "{hint}: the loss is on record already");
    written.assert_prefix(&rescued, hint);
    assert_eq!(verify(&saved).unwrap().fault, None, "{hint}");
    drop(rescued);

    let opened = match Journal::open(path) {
        Err(JournalError::Lost { .. }) => {
            assert!(!verified.lost.is_empty() && !verified.is_whole(), "{hint}: verify knows of no loss");
            Journal::open_despite_loss(path)
        }
        opened => opened,
    };
    match opened {
        Ok((mut journal, opened)) => {
            assert_eq!(verified.fault, None, "{hint}: verify finds a fault, open does not");
            assert_eq!(salvaged.last, opened.last, "{hint}: salvage rescues as much as is there");
            written.assert_prefix(&journal, hint);
            let missing = (opened.last < written.last()).then(|| (opened.last + 1, written.last()));
            let lost = opened.lost.map(|lost| (lost.from, lost.to));
            assert_eq!(lost, missing, "{hint}: exactly what is missing is said to be lost");
            assert_eq!(verified.lost.len(), usize::from(lost.is_some()), "{hint}");
            journal.append(1, &["{}".into()]).unwrap_or_else(|error| panic!("{hint}: cannot go on: {error}"));
            if lost.is_some() { "tail lost" } else { "whole" }
        }
        Err(JournalError::Damaged { last_good, .. }) => {
            assert!(verified.fault.is_some(), "{hint}: open finds a fault, verify does not");
            assert!(last_good <= salvaged.last, "{hint}: what is good is salvaged");
            "refused"
        }
        Err(JournalError::Foreign { .. }) => {
            assert!(verified.head_of.is_some() && !verified.is_whole(), "{hint}: verify takes it for its own");
            "refused"
        }
        Err(error) => panic!("{hint}: refused for another reason: {error}"),
    }
}
