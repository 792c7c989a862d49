//! Archives that are let go: the journal stays whole, says where its record begins, and nothing else is removed.

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use common::{Written, dice, fill_on};
use journal::{
    ArchiveState, Journal, StoredArchive, backup, export, release_archives, salvage, stored_archives, verify,
};

/// A journal with three archives and a few entries after its snapshot.
fn compacted(path: &Path) -> (Journal, Written) {
    let (mut journal, _) = Journal::open(path).unwrap();
    let (mut dice, mut written) = (dice(3), Written::default());
    for _ in 0..3 {
        fill_on(&mut written, &mut journal, &mut dice, 5);
        journal.compact(written.last(), "{}").unwrap();
    }
    fill_on(&mut written, &mut journal, &mut dice, 5);
    (journal, written)
}

fn exported(path: &Path) -> (Vec<u64>, u64) {
    let mut text = Vec::new();
    let exported = export(path, &mut text).unwrap();
    let number = |line: &str| line[7..].split(',').next().unwrap().parse().unwrap();
    let numbers: Vec<u64> = String::from_utf8(text).unwrap().lines().map(number).collect();
    assert_eq!(exported.entries, numbers.len() as u64);
    (numbers, exported.released)
}

fn ends(archives: &[StoredArchive]) -> Vec<u64> {
    archives.iter().map(|archive| archive.last).collect()
}

#[test]
fn a_journal_whose_oldest_archives_were_let_go_is_whole_and_says_where_its_record_begins() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("j.db");
    let (mut journal, mut written) = compacted(&path);
    let stored = stored_archives(&path).unwrap();
    assert_eq!(stored.len(), 3);
    assert!(stored.iter().all(|archive| archive.bytes == fs::metadata(&archive.path).unwrap().len()));

    // The owner goes on meanwhile.
    release_archives(&path, stored[1].last).unwrap();
    fill_on(&mut written, &mut journal, &mut dice(4), 1);
    journal.compact(written.last(), "{}").unwrap();
    assert!(!stored[0].path.exists() && !stored[1].path.exists() && stored[2].path.exists());
    assert_eq!(ends(&stored_archives(&path).unwrap()), [stored[2].last, written.last()]);
    drop(journal);

    let verified = verify(&path).unwrap();
    assert!(verified.is_whole(), "{verified:?}");
    assert_eq!((verified.released, verified.archives.len()), (stored[1].last, 2));
    let kept: Vec<u64> = (stored[1].last + 1..=written.last()).collect();
    assert_eq!(exported(&path), (kept, stored[1].last));
    let (journal, opened) = Journal::open(&path).unwrap();
    assert_eq!((opened.last, opened.lost), (written.last(), None));
    drop(journal);

    fs::remove_file(&stored[2].path).unwrap();
    let verified = verify(&path).unwrap();
    assert!(!verified.is_whole(), "one that nobody let go is missing");
    assert_eq!(verified.archives[0].state, ArchiveState::Missing);
}

#[test]
fn copies_of_a_journal_begin_where_it_begins() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("j.db");
    let (journal, written) = compacted(&path);
    let stored = stored_archives(&path).unwrap();
    release_archives(&path, stored[0].last).unwrap();
    drop(journal);
    for (name, copy) in [("backup", backup as fn(&Path, &Path) -> _), ("salvaged", salvage)] {
        let to = dir.path().join(name).join("j.db");
        fs::create_dir(to.parent().unwrap()).unwrap();
        assert_eq!(copy(&path, &to).unwrap().last, written.last());
        let verified = verify(&to).unwrap();
        assert!(verified.is_whole(), "{name}: {verified:?}");
        assert_eq!(verified.released, stored[0].last, "{name}");
    }
}

#[test]
fn what_a_crash_left_of_archives_that_were_let_go_is_removed_by_the_next_call() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("j.db");
    let (_journal, _) = compacted(&path);
    let stored = stored_archives(&path).unwrap();
    let first = fs::read(&stored[0].path).unwrap();
    release_archives(&path, stored[0].last).unwrap();
    fs::write(&stored[0].path, first).unwrap();
    assert_eq!(ends(&stored_archives(&path).unwrap()), [stored[1].last, stored[2].last]);
    release_archives(&path, 0).unwrap();
    assert!(!stored[0].path.exists() && stored[1].path.exists());
}

#[test]
fn archives_are_let_go_whole_and_a_note_that_makes_no_sense_lets_go_of_none() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("j.db");
    let (journal, _) = compacted(&path);
    let stored = stored_archives(&path).unwrap();
    release_archives(&path, stored[1].last - 1).unwrap();
    assert_eq!(stored_archives(&path).unwrap(), stored);
    drop(journal);
    let database = rusqlite::Connection::open(&path).unwrap();
    database.execute("INSERT INTO meta (key, value) VALUES ('released', ?1)", [stored[1].last as i64 + 1]).unwrap();
    drop(database);
    release_archives(&path, 0).unwrap();
    assert_eq!(stored_archives(&path).unwrap(), stored);
    assert!(verify(&path).unwrap().is_whole());
}

#[test]
fn no_link_is_followed_to_an_archive() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("j.db");
    let (_journal, _) = compacted(&path);
    let stored = stored_archives(&path).unwrap();
    let precious = dir.path().join("precious");
    fs::rename(&stored[0].path, &precious).unwrap();
    symlink(&precious, &stored[0].path).unwrap();
    assert_eq!(ends(&stored_archives(&path).unwrap()), [stored[1].last, stored[2].last], "a link is no archive");
    release_archives(&path, stored[0].last).unwrap();
    assert!(precious.exists() && fs::symlink_metadata(&stored[0].path).is_err(), "the link goes, not the file");

    let (folder, elsewhere) = (dir.path().join("archive"), dir.path().join("elsewhere"));
    fs::rename(&folder, &elsewhere).unwrap();
    symlink(&elsewhere, &folder).unwrap();
    assert!(stored_archives(&path).unwrap().is_empty());
    release_archives(&path, stored[2].last).unwrap();
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 2);
}
