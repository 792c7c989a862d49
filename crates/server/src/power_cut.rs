//! Power cuts at every boundary in the life of a data directory: identity, head and archives go through the seam that is
//! cut. The journal's own files are SQLite's, which syncs them by itself: they are copied as processes see them after each
//! step, so all that was committed is there. That SQLite keeps what it has synced is not tested here: the tests of the
//! binary cut off a whole file system for that. What a run has in its directory, its token too, is cut in `executors`.

use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::rc::Rc;

use cluster::{ClaimId, Time};
use disk::cut::{Remains, remains};
use disk::tape::{self, Step};
use executors::{AcceleratorDraft, Checkpoints, Machine};
use journal::Journal;

use crate::core::Core;
use crate::data_dir::journal_path;
use crate::error::ServerError;
use crate::fact::Fact;
use crate::identity;
use crate::image::Image;
use crate::opening::{Accepted, Opening};
use crate::service::{append, begin, settle_numbers};
use crate::settings::Config;

/// What SQLite has on the disk, by name.
type Database = Vec<(&'static str, Vec<u8>)>;

/// What is certain from a step on.
struct Certain {
    after_step: usize,
    entry: u64,
    next_number: u32,
}

fn database_in(data_dir: &Path) -> Database {
    let read = |name| Some((name, fs::read(data_dir.join(name)).ok()?));
    ["journal.db", "journal.db-wal"].into_iter().filter_map(read).collect()
}

fn open(data_dir: &Path) -> Result<Opening, ServerError> {
    let opening = Opening::of(data_dir, &Checkpoints::in_data_dir(data_dir), Accepted::default())?;
    identity::write(data_dir, opening.journal.identity())?;
    Ok(opening)
}

/// The first start, work, a compaction, work, and a second start.
fn life(data_dir: &Path) -> Vec<Certain> {
    let config = Config { policy: Some("fifo".into()), ..Config::default() };
    let draft = config.draft(&Machine::of(&[AcceleratorDraft::of("t4", 4)]).unwrap());
    let mut certain = Vec::new();
    let mut now_certain = |journal: &Journal, core: &Core| {
        let (entry, next_number) = (journal.last(), core.ledger.next_number());
        certain.push(Certain { after_step: tape::position(), entry, next_number });
    };
    let mut journal = open(data_dir).unwrap().journal;
    let mut core = begin(&mut journal, Time::ZERO, &config, draft).unwrap();
    settle_numbers(&mut journal, Time::ZERO, &mut core, 1).unwrap();
    now_certain(&journal, &core);
    let work = |journal: &mut Journal, core: &mut Core, numbers: std::ops::Range<u32>| {
        for number in numbers {
            let now = Time::from_secs(u64::from(number));
            let fact = Fact::Core(core.engine.begin_numbers(now, ClaimId(number)));
            core.ledger.apply(now, &fact, &core.engine.state().books().cluster);
            journal.set_mark(u64::from(number));
            append(journal, now, &[fact]).unwrap();
        }
    };
    work(&mut journal, &mut core, 10..13);
    now_certain(&journal, &core);
    journal.compact(journal.last(), &Image::text_of(core.engine.state(), &core.ledger)).unwrap();
    now_certain(&journal, &core);
    work(&mut journal, &mut core, 20..22);
    now_certain(&journal, &core);
    drop(journal);
    let mut journal = open(data_dir).unwrap().journal;
    work(&mut journal, &mut core, 30..31);
    now_certain(&journal, &core);
    certain
}

#[test]
fn after_a_cut_at_every_step_the_data_directory_opens_with_all_that_was_certain() {
    let root = tempfile::tempdir().unwrap();
    let data_dir = fs::canonicalize(root.path()).unwrap();
    let databases: Rc<RefCell<Vec<Database>>> = Rc::default();
    let (seen, place) = (databases.clone(), data_dir.clone());
    let look = move || seen.borrow_mut().push(database_in(&place));
    let (certain, steps) = tape::record_and(look, || life(&data_dir));
    let databases = databases.take();
    let written = |name: &str| {
        let is_it = |path: &Path| path.file_name().is_some_and(|it| it.to_string_lossy().contains(name));
        steps.iter().any(|step| matches!(step, Step::WriteAt(path, ..) | Step::Write(path, _) if is_it(path)))
    };
    assert!(["identity", "journal.db.head", ".jsonl.partial"].into_iter().all(written), "{steps:?}");
    for cut in 0..=steps.len() {
        let known = certain.iter().rev().find(|certain| certain.after_step <= cut);
        // What SQLite committed before the next step may be on the disk already.
        let mut possible: Vec<&Database> = databases[cut.saturating_sub(1)..].iter().take(2).collect();
        possible.dedup();
        for left in remains(&data_dir, &steps[..cut]) {
            possible.iter().for_each(|database| check(cut, known, &left, database));
        }
    }
}

/// The machine has started again with this on its disk.
fn check(cut: usize, known: Option<&Certain>, left: &Remains, database: &Database) {
    let case = format!("cut after step {cut}, {}", left.how);
    let root = tempfile::tempdir().unwrap();
    left.lay_out(root.path()).unwrap();
    for (name, bytes) in database {
        fs::write(root.path().join(name), bytes).unwrap();
    }
    // The file is another one than that of the directory whose power went, which would be taken for a copy.
    if let Some(note) = identity::read(root.path()).unwrap() {
        identity::write(root.path(), note.identity).unwrap();
    }
    let opening = open(root.path()).unwrap_or_else(|error| panic!("{case}: {error}"));
    assert_eq!(opening.lost, None, "{case}");
    if let Some(known) = known {
        assert!(opening.journal.last() >= known.entry, "{case}: {} < {}", opening.journal.last(), known.entry);
        assert!(opening.first_free >= known.next_number, "{case}: {} < {}", opening.first_free, known.next_number);
    }
    let identity = opening.journal.identity();
    drop(opening);
    let verified = journal::verify(&journal_path(root.path())).unwrap();
    assert!(verified.is_whole(), "{case}: {verified:?}");
    assert_eq!(open(root.path()).unwrap().journal.identity(), identity, "{case}: it stays the same");
}
