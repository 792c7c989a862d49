//! A disk that is full, or must not be written to: a small file system of its own, which only root can make.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::{Written, dice, texts};
use journal::{Journal, JournalError, export, verify};
use tempfile::TempDir;

#[test]
fn a_full_disk_refuses_whole_appends_and_takes_them_again_when_there_is_room() {
    let Some(disk) = Disk::mount() else { return };
    let path = disk.path().join("j.db");
    let ballast = disk.path().join("ballast");
    fs::write(&ballast, vec![1; 300 << 10]).unwrap();
    let mut dice = dice(1);
    let (mut journal, _) = Journal::open(&path).unwrap();
    let mut written = Written::default();

    let refused = fill_up(&mut journal, &mut written, &mut dice);
    assert_eq!(refused.to_string(), format!("cannot append to {}: the disk is full", path.display()));
    let last = journal.last();
    written.assert_prefix(&journal, "while the disk is full");
    let compacted = journal.compact(last, "{}").unwrap_err();
    assert!(matches!(compacted, JournalError::Full { .. }), "{compacted:?}");
    written.assert_prefix(&journal, "after a compaction that found no room");
    assert_eq!(journal.last(), last);

    fs::remove_file(&ballast).unwrap();
    written.append(&mut journal, 5, &texts(&mut dice, 40));
    drop(journal);
    let (journal, opened) = Journal::open(&path).unwrap();
    assert_eq!((opened.last, opened.lost), (written.last(), None));
    written.assert_prefix(&journal, "after reopening");
}

#[test]
fn a_process_that_ends_on_a_full_disk_loses_nothing() {
    let Some(disk) = Disk::mount() else { return };
    let path = disk.path().join("j.db");
    let ballast = disk.path().join("ballast");
    fs::write(&ballast, vec![1; 100 << 10]).unwrap();
    let (mut journal, _) = Journal::open(&path).unwrap();
    let mut written = Written::default();
    fill_up(&mut journal, &mut written, &mut dice(2));
    drop(journal);
    fs::remove_file(&ballast).unwrap();
    let (journal, opened) = Journal::open(&path).unwrap();
    assert_eq!((opened.last, opened.lost), (written.last(), None));
    written.assert_prefix(&journal, "after reopening");
}

#[test]
fn a_read_only_disk_is_named_as_such_and_can_still_be_verified() {
    let Some(disk) = Disk::mount() else { return };
    let path = disk.path().join("j.db");
    let (mut journal, _) = Journal::open(&path).unwrap();
    journal.append(1, &["1".into(), "2".into()]).unwrap();
    drop(journal);
    disk.run("mount", &["-o", "remount,ro"]);

    let refused = Journal::open(&path).unwrap_err();
    let source = std::error::Error::source(&refused).unwrap().to_string();
    assert!(source.contains("Read-only file system"), "{refused}: {source}");
    let verified = verify(&path).unwrap();
    assert!(verified.is_whole(), "{verified:?}");
    assert_eq!(verified.entries, 2);
    let mut lines = Vec::new();
    assert_eq!(export(&path, &mut lines).unwrap().entries, 2);
}

fn fill_up(journal: &mut Journal, written: &mut Written, dice: &mut common::Dice) -> JournalError {
    for _ in 0..10_000 {
        let batch = texts(dice, 20);
        match journal.append(3, &batch) {
            Err(error) => return error,
            Ok(_) => written.add(3, &batch),
        }
    }
    panic!("the disk did not fill up");
}

/// A file system of 1 MB in memory.
struct Disk(TempDir);

impl Disk {
    /// None if this is not root, who alone may mount; in CI that is a failure.
    #[expect(clippy::print_stderr, reason = "a test that does not run says so")]
    fn mount() -> Option<Disk> {
        let disk = Disk(tempfile::tempdir().unwrap());
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(disk.path()).output().unwrap();
        if mounted.status.success() {
            return Some(disk);
        }
        let why = String::from_utf8_lossy(&mounted.stderr).into_owned();
        assert!(std::env::var_os("CI").is_none(), "cannot mount a small file system: {why}");
        eprintln!("NOT TESTED: cannot mount a small file system: {why}");
        None
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let done = Command::new(program).args(arguments).arg(self.path()).output().unwrap();
        assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily, because a failed test may still have files open; nothing mounted is nothing to unmount.
        let _ = Command::new("umount").arg("-l").arg(self.path()).output();
    }
}
