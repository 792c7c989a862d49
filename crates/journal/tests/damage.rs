//! Harm done to the files of a journal, at random places. Whatever is hit: the journal says what was written, or it says
//! that it does not.

mod common;

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use common::{Written, copy, copy_archives, dice, fill, fill_on, judge, quick_dir};
use journal::{Journal, verify};
use rand::RngExt as _;

#[test]
fn of_a_log_cut_anywhere_whole_appends_survive_and_the_tail_is_named() {
    for seed in 0..6 {
        let dir = quick_dir();
        let path = dir.path().join("j.db");
        let mut dice = dice(seed);
        let (mut journal, _) = Journal::open(&path).unwrap();
        let written = fill(&mut journal, &mut dice, 25);
        let length = fs::metadata(dir.path().join("j.db-wal")).unwrap().len();
        assert!(length > 100_000, "everything is in the log");
        for round in 0..25 {
            // Some cuts are just at, before or after the end of a frame.
            let frame = 32 + dice.random_range(0..=(length - 32) / 4120) * 4120;
            let cut = match round {
                0 => 0,
                1 => length,
                2..8 => (frame + dice.random_range(0..3)).saturating_sub(1),
                _ => dice.random_range(0..length),
            };
            let hint = format!("seed {seed}, round {round}: log of {length} cut at {cut}");
            let harmed = quick_dir();
            let copy = copy(&path, harmed.path());
            let log = OpenOptions::new().write(true).open(harmed.path().join("j.db-wal")).unwrap();
            log.set_len(cut).unwrap();
            let outcome = judge(&copy, &written, &hint);
            let last = verify(&copy).unwrap().lost.first().map_or(written.last(), |lost| lost.from - 1);
            assert!(last == 0 || written.ends.contains(&last), "{hint}: entry {last} is not the end of an append");
            assert_eq!(outcome, if last < written.last() { "tail lost" } else { "whole" }, "{hint}");
        }
    }
}

#[test]
fn a_log_with_a_flipped_byte_ends_there() {
    harm_many("flip in the log", 40, false, |path, dice| {
        let log = path.with_file_name("j.db-wal");
        flip(&log, dice.random_range(0..fs::metadata(&log).unwrap().len()), dice.random_range(1..=255))
    });
}

#[test]
fn a_file_with_a_flipped_byte_never_tells_a_wrong_entry() {
    let outcomes = harm_many("flip", 120, true, |path, dice| {
        flip(path, dice.random_range(0..fs::metadata(path).unwrap().len()), dice.random_range(1..=255))
    });
    assert!(outcomes["refused"] > 60, "{outcomes:?}");
}

#[test]
fn a_header_with_a_flipped_byte_never_tells_a_wrong_entry() {
    harm_many("flip in the header", 100, true, |path, dice| {
        flip(path, dice.random_range(0..100), dice.random_range(1..=255))
    });
}

#[test]
fn a_file_with_a_page_of_rubbish_never_tells_a_wrong_entry() {
    harm_many("rubbish", 60, true, |path, dice| {
        let place = dice.random_range(0..fs::metadata(path).unwrap().len());
        let rubbish: Vec<u8> = (0..dice.random_range(1..5000)).map(|_| dice.random()).collect();
        OpenOptions::new().write(true).open(path).unwrap().write_all_at(&rubbish, place).unwrap();
        format!("{} bytes at {place}", rubbish.len())
    });
}

#[test]
fn a_file_cut_anywhere_never_tells_a_wrong_entry() {
    let outcomes = harm_many("cut", 80, true, |path, dice| {
        let length = fs::metadata(path).unwrap().len();
        let cut = dice.random_range(0..length);
        let cut = if dice.random() { cut } else { cut / 4096 * 4096 };
        OpenOptions::new().write(true).open(path).unwrap().set_len(cut).unwrap();
        format!("{length} to {cut}")
    });
    assert_eq!(outcomes.get("whole"), None, "{outcomes:?}");
}

#[test]
fn a_history_exchanged_behind_the_heads_back_is_refused() {
    let dir = quick_dir();
    let path = dir.path().join("j.db");
    for (name, text) in [("j.db", "\"true\""), ("other.db", "\"false\"")] {
        let (mut journal, _) = Journal::open(&dir.path().join(name)).unwrap();
        journal.append(1, &[text.to_string()]).unwrap();
    }
    fs::copy(dir.path().join("other.db"), &path).unwrap();
    let refusal = Journal::open(&path).unwrap_err().to_string();
    assert!(refusal.contains("j.db.head is of another journal"), "{refusal}");
    let verified = verify(&path).unwrap();
    assert!(verified.fault.is_some() && verified.head_of.is_some() && !verified.is_whole(), "{verified:?}");
}

#[test]
fn a_journal_that_vanished_is_not_taken_for_a_new_one() {
    let dir = quick_dir();
    let path = dir.path().join("j.db");
    let (mut journal, _) = Journal::open(&path).unwrap();
    journal.append(1, &["1".into(), "2".into()]).unwrap();
    drop(journal);
    for vanish in [|path: &Path| fs::remove_file(path).unwrap(), |path: &Path| fs::write(path, "").unwrap()] {
        vanish(&path);
        let refusal = Journal::open(&path).unwrap_err().to_string();
        assert!(refusal.contains("there is nothing in it, but its head file vouches for entry 2"), "{refusal}");
    }
    let (journal, opened) = Journal::open_despite_loss(&path).unwrap();
    assert!(opened.created && journal.last() == 0);
}

#[test]
fn what_was_marked_is_told_though_the_entries_are_lost() {
    let dir = quick_dir();
    let path = dir.path().join("j.db");
    let (mut journal, _) = Journal::open(&path).unwrap();
    journal.append(1, &["1".into()]).unwrap();
    drop(journal);
    let before = fs::read(&path).unwrap();
    let (mut journal, _) = Journal::open(&path).unwrap();
    journal.set_mark(17);
    journal.append(1, &["2".into(), "3".into()]).unwrap();
    drop(journal);
    fs::remove_file(dir.path().join("j.db-wal")).ok();
    fs::write(&path, before).unwrap();
    let refusal = Journal::open(&path).unwrap_err().to_string();
    assert!(refusal.contains("entries 2 to 3 were acknowledged and are not there"), "{refusal}");
    assert!(!verify(&path).unwrap().is_whole());
    let (_, opened) = Journal::open_despite_loss(&path).unwrap();
    assert_eq!((opened.last, opened.lost.map(|lost| lost.to), opened.mark), (1, Some(3), Some(17)));
}

#[test]
fn a_missing_head_is_said() {
    let dir = quick_dir();
    let path = dir.path().join("j.db");
    let (mut journal, opened) = Journal::open(&path).unwrap();
    assert!(opened.created && !opened.head_missing);
    journal.append(1, &["1".into()]).unwrap();
    drop(journal);
    fs::remove_file(dir.path().join("j.db.head")).unwrap();
    let verified = verify(&path).unwrap();
    assert!(verified.head_missing && !verified.is_whole());
    let refusal = Journal::open(&path).unwrap_err().to_string();
    assert!(refusal.contains("nobody can tell whether entries after 1 are lost"), "{refusal}");
    assert!(Journal::open_despite_loss(&path).unwrap().1.head_missing);
    assert!(!Journal::open(&path).unwrap().1.head_missing, "opening makes a new one");
}

/// Harms copies of two journals, one of them compacted, judges each, and counts the outcomes.
fn harm_many(
    name: &str,
    rounds: u64,
    checkpointed: bool,
    harm: impl Fn(&Path, &mut common::Dice) -> String,
) -> BTreeMap<&'static str, u32> {
    let mut outcomes = BTreeMap::new();
    for seed in 0..2 {
        let dir = quick_dir();
        let path = dir.path().join("j.db");
        let mut dice = dice(seed);
        let (mut journal, _) = Journal::open(&path).unwrap();
        let mut written = Written::default();
        if seed % 2 == 1 {
            fill_on(&mut written, &mut journal, &mut dice, 15);
            journal.compact(written.last() - 40, r#"{"sum":1}"#).unwrap();
        }
        fill_on(&mut written, &mut journal, &mut dice, 25);
        if checkpointed {
            drop(journal);
        } else {
            // Left open: its log must not be moved into the file.
            std::mem::forget(journal);
        }
        for round in 0..rounds {
            let harmed = quick_dir();
            let copy = copy(&path, harmed.path());
            if seed % 2 == 1 {
                copy_archives(&path, harmed.path());
            }
            let what = harm(&copy, &mut dice);
            let hint = format!("{name}: seed {seed}, round {round}: {what}");
            *outcomes.entry(judge(&copy, &written, &hint)).or_insert(0) += 1;
        }
    }
    outcomes
}

fn flip(path: &Path, place: u64, bits: u8) -> String {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, place).unwrap();
    file.write_all_at(&[byte[0] ^ bits], place).unwrap();
    format!("byte {place} xor {bits}")
}
