//! Snapshots and archives: what is compacted is still there, once, and what cannot be found again is said.

mod common;

use std::fs;
use std::path::Path;

use common::{Written, copy, dice, fill, fill_on};
use journal::{ArchiveState, Journal, JournalError, export, salvage, verify};

#[test]
fn after_compactions_the_export_is_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("j.db");
    let (mut journal, _) = Journal::open(&path).unwrap();
    let mut dice = dice(1);
    let mut written = Written::default();
    for round in 0..4 {
        fill_on(&mut written, &mut journal, &mut dice, 10);
        let upto = written.last() - round * 3;
        let compaction = journal.compact(upto, &format!("\"{upto}\"")).unwrap();
        assert!(compaction.archive.unwrap().exists());
        assert_eq!(journal.snapshot().unwrap().unwrap().text, format!("\"{upto}\""));
        written.assert_prefix(&journal, "after a compaction");
    }
    drop(journal);
    let verified = verify(&path).unwrap();
    assert!(verified.is_whole(), "{verified:?}");
    assert_eq!(verified.archives.len(), 4);
    assert_eq!(exported(&path), expected(&written));

    let (mut journal, opened) = Journal::open(&path).unwrap();
    assert_eq!(opened.last, written.last());
    fill_on(&mut written, &mut journal, &mut dice, 3);
    drop(journal);
    assert_eq!(exported(&path), expected(&written));
}

#[test]
fn archived_entries_are_refused_rather_than_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(&dir.path().join("j.db")).unwrap();
    journal.append(1, &["1".into(), "2".into(), "3".into()]).unwrap();
    journal.compact(2, "{}").unwrap();
    assert!(matches!(journal.read(1, 9), Err(JournalError::Archived { after: 1, upto: 2 })));
    assert!(matches!(journal.reader().unwrap().read(0, 9), Err(JournalError::Archived { after: 0, upto: 2 })));
    assert_eq!(journal.read(2, 9).unwrap().len(), 1);
}

#[test]
fn a_snapshot_stands_neither_before_the_last_nor_beyond_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(&dir.path().join("j.db")).unwrap();
    journal.append(1, &["1".into(), "2".into(), "3".into()]).unwrap();
    journal.compact(2, "\"a\"").unwrap();
    for upto in [1, 4] {
        let refused = journal.compact(upto, "{}").unwrap_err().to_string();
        assert_eq!(refused, format!("cannot compact up to entry {upto}: the snapshot is at 2, the last entry is 3"));
    }
    assert_eq!(journal.compact(2, "\"b\"").unwrap().archive, None);
    assert_eq!(journal.snapshot().unwrap().unwrap().text, "\"b\"");
}

/// As if the process had been killed after the archive was written and before the journal knew of it.
#[test]
fn an_archive_that_is_not_on_record_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("j.db");
    let (mut journal, _) = Journal::open(&path).unwrap();
    let written = fill(&mut journal, &mut dice(3), 10);
    let before = tempfile::tempdir().unwrap();
    let before = copy(&path, before.path());
    let upto = written.last() - 5;
    let archive = journal.compact(upto, "{}").unwrap().archive.unwrap();
    drop(journal);
    for suffix in ["", ".head"] {
        fs::copy(format!("{}{suffix}", before.display()), format!("{}{suffix}", path.display())).unwrap();
    }
    fs::copy(format!("{}-wal", before.display()), format!("{}-wal", path.display())).unwrap();

    assert!(verify(&path).unwrap().archives.is_empty());
    assert_eq!(exported(&path), expected(&written));
    let (mut journal, opened) = Journal::open(&path).unwrap();
    assert_eq!((opened.last, opened.lost), (written.last(), None));
    assert_eq!(journal.compact(upto, "{}").unwrap().archive, Some(archive), "the file is found whole and used");
    drop(journal);
    assert_eq!(exported(&path), expected(&written));
}

#[test]
fn a_stray_archive_from_another_history_is_put_aside() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("j.db");
    let (mut journal, _) = Journal::open(&path).unwrap();
    let written = fill(&mut journal, &mut dice(4), 5);
    let name = format!("{:012}-{:012}.jsonl.gz", 1, written.last());
    fs::create_dir(dir.path().join("archive")).unwrap();
    fs::write(dir.path().join("archive").join(&name), "another history").unwrap();
    journal.compact(written.last(), "{}").unwrap();
    drop(journal);
    let aside = dir.path().join("archive").join(format!("{name}.stray1"));
    assert_eq!(fs::read_to_string(aside).unwrap(), "another history");
    assert_eq!(exported(&path), expected(&written));
}

#[test]
fn a_missing_or_damaged_archive_is_told_and_stops_only_the_export() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("j.db");
    let (mut journal, _) = Journal::open(&path).unwrap();
    let written = fill(&mut journal, &mut dice(5), 10);
    let archive = journal.compact(written.last() - 1, "{}").unwrap().archive.unwrap();
    drop(journal);
    let whole = fs::read(&archive).unwrap();
    for place in (0..whole.len()).step_by(whole.len() / 40) {
        let mut harmed = whole.clone();
        harmed[place] ^= 0x10;
        fs::write(&archive, harmed).unwrap();
        // The time in the header of a gzip file means nothing; everything else does.
        let state = verify(&path).unwrap().archives[0].state.clone();
        match state {
            ArchiveState::Whole => assert_eq!(exported(&path), expected(&written), "byte {place}"),
            _ => assert!(export(&path, &mut Vec::new()).is_err(), "byte {place}"),
        }
        assert!(place < 10 || state != ArchiveState::Whole, "byte {place} was not missed");
    }
    fs::remove_file(&archive).unwrap();
    let verified = verify(&path).unwrap();
    assert_eq!((verified.fault, &verified.archives[0].state), (None, &ArchiveState::Missing));
    assert!(export(&path, &mut Vec::new()).unwrap_err().to_string().starts_with("cannot open the archive"));
    assert_eq!(Journal::open(&path).unwrap().1.last, written.last());
}

#[test]
fn a_broken_snapshot_is_salvaged_from_the_archives() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("j.db");
    let (mut journal, _) = Journal::open(&path).unwrap();
    let written = fill(&mut journal, &mut dice(6), 20);
    journal.compact(40, "\"first\"").unwrap();
    journal.compact(90, "\"what to find\"").unwrap();
    drop(journal);
    let mut bytes = fs::read(&path).unwrap();
    let text = b"what to find";
    let place = bytes.windows(text.len()).rposition(|window| window == text).unwrap();
    bytes[place] = b'W';
    fs::write(&path, bytes).unwrap();

    let refused = Journal::open(&path).unwrap_err().to_string();
    assert!(refused.contains("the snapshot does not fit its seal"), "{refused}");
    let to = tempfile::tempdir().unwrap();
    let to = to.path().join("new.db");
    let salvaged = salvage(&path, &to).unwrap();
    assert_eq!((salvaged.last, salvaged.snapshot, salvaged.lost), (written.last(), None, None));
    written.assert_prefix(&Journal::open(&to).unwrap().0, "from the archives");
    assert_eq!(exported(&to), expected(&written));
    assert!(matches!(salvage(&path, &to), Err(JournalError::Exists { .. })));
}

#[test]
fn salvage_takes_archives_along_to_another_directory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("j.db");
    let (mut journal, _) = Journal::open(&path).unwrap();
    let written = fill(&mut journal, &mut dice(7), 20);
    journal.compact(50, "{}").unwrap();
    drop(journal);
    let to = tempfile::tempdir().unwrap();
    let to = to.path().join("new.db");
    assert_eq!(salvage(&path, &to).unwrap().snapshot, Some(50));
    assert!(verify(&to).unwrap().is_whole());
    assert_eq!(exported(&to), expected(&written));
}

#[test]
fn what_is_not_json_is_kept_but_not_exported() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("j.db");
    let (mut journal, _) = Journal::open(&path).unwrap();
    journal.append(1, &["[1,\n2]".into(), "plain\u{0}text".into()]).unwrap();
    journal.compact(2, "any").unwrap();
    drop(journal);
    let mut lines = Vec::new();
    let refused = export(&path, &mut lines).unwrap_err().to_string();
    assert_eq!(refused, "cannot export entry 2: it is not JSON");
    assert_eq!(String::from_utf8(lines).unwrap(), "{\"seq\":1,\"at\":1,\"fact\":[1, 2]}\n");
}

fn exported(path: &Path) -> String {
    let mut lines = Vec::new();
    export(path, &mut lines).unwrap();
    String::from_utf8(lines).unwrap()
}

fn expected(written: &Written) -> String {
    let line =
        |entry: &journal::Entry| format!("{{\"seq\":{},\"at\":{},\"fact\":{}}}\n", entry.seq, entry.at, entry.text);
    written.entries.iter().map(line).collect()
}
