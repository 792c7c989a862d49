//! A process that appends and compacts is killed at random moments, or its disk fails. Whatever it had acknowledged is
//! there, once.

mod common;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{dice, texts};
use journal::{Journal, JournalError, export, verify};
use rand::RngExt as _;

const ROUNDS: u64 = 30;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [_, "append", path, seed] => append(Path::new(path), seed.parse().unwrap()),
        [_, "fail", path] => fail(Path::new(path)),
        _ => {
            kill_many();
            fail_to_sync();
        }
    }
}

/// Appends for ever, and says after each append how far it is.
fn append(path: &Path, seed: u64) {
    let mut dice = dice(seed);
    let (mut journal, _) = Journal::open(path).unwrap();
    let mut out = std::io::stdout();
    writeln!(out, "opened").unwrap();
    loop {
        let count = dice.random_range(1..60);
        let last = journal.append(seed, &texts(&mut dice, count)).unwrap();
        writeln!(out, "{last}").unwrap();
        if dice.random_ratio(1, 8) {
            let upto = last - dice.random_range(0..20).min(last - journal.snapshot().unwrap().map_or(0, |s| s.upto));
            journal.compact(upto, &format!("{{\"upto\":{upto}}}")).unwrap();
        }
    }
}

/// Appends until that fails, then once more, and says how far it came and why it ended.
fn fail(path: &Path) {
    let (mut journal, _) = Journal::open(path).unwrap();
    let mut last = 0;
    let first = loop {
        match journal.append(1, &["{}".into(), "[]".into()]) {
            Ok(appended) => last = appended,
            Err(error) => break error,
        }
        assert!(last < 1000, "no append failed");
    };
    let second = journal.append(1, &["{}".into()]).unwrap_err();
    let (third, read) = (journal.compact(2, "{}").unwrap_err(), journal.read(0, 1000).unwrap().len());
    let mut out = std::io::stdout();
    writeln!(out, "{last} {read}\n{first}\n{second}\n{third}").unwrap();
}

/// A disk that cannot sync, by the hand of strace: nobody knows what is on it, so the journal has to be reopened.
#[expect(clippy::print_stderr, reason = "a test that does not run says so")]
fn fail_to_sync() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("j.db");
    drop(Journal::open(&path).unwrap());
    let ran = Command::new("strace")
        .args(["-f", "-o", "/dev/null", "-e", "trace=fsync,fdatasync"])
        .args(["-e", "inject=fsync,fdatasync:error=EIO:when=40+"])
        .arg(std::env::current_exe().unwrap())
        .args(["fail", path.to_str().unwrap()])
        .output();
    let Ok(ran) = ran else {
        assert!(std::env::var_os("CI").is_none(), "there is no strace to let a disk fail");
        eprintln!("NOT TESTED: there is no strace to let a disk fail");
        return;
    };
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let said = String::from_utf8(ran.stdout).unwrap();
    let said: Vec<&str> = said.lines().collect();
    let (last, read) = said[0].split_once(' ').unwrap();
    assert_eq!(last, read, "the failed append cannot be read");
    assert_eq!(said[1], format!("it is not known whether journal {} holds the last batch", path.display()));
    let reopen =
        format!("journal {} must be reopened: an earlier append failed on the way to the disk", path.display());
    assert_eq!(said[2..], [&reopen, &reopen]);

    let (journal, opened) = Journal::open(&path).unwrap();
    let last: u64 = last.parse().unwrap();
    assert_eq!(opened.lost, None);
    assert!(
        [last, last + 2].contains(&opened.last),
        "{}: the append that failed is there whole or not at all",
        opened.last
    );
    assert_eq!(journal.read(0, usize::MAX).unwrap().len() as u64, opened.last);
}

fn kill_many() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("j.db");
    let mut dice = dice(0);
    let mut compactions = 0;
    for round in 0..ROUNDS {
        let acknowledged = kill_one(&path, round, Duration::from_millis(dice.random_range(0..150)));
        let hint = format!("round {round}, acknowledged {acknowledged}");
        let verified = verify(&path).unwrap();
        assert!(verified.is_whole(), "{hint}: {verified:?}");

        let mut lines = Vec::new();
        export(&path, &mut lines).unwrap_or_else(|error| panic!("{hint}: {error}"));
        let seqs: Vec<u64> = lines.lines().map(|line| seq(&line.unwrap())).collect();
        assert!(seqs.iter().copied().eq(1..=seqs.len() as u64), "{hint}: every entry is there once");
        assert!(seqs.len() as u64 >= acknowledged, "{hint}: only {} are there", seqs.len());

        let (journal, opened) = Journal::open(&path).unwrap();
        assert_eq!((opened.lost, opened.last), (None, seqs.len() as u64), "{hint}");
        compactions = verify_snapshot(&journal);
    }
    assert!(compactions > 0, "no compaction was among what was killed");
}

/// Runs one process until it is killed, and says what it acknowledged last.
fn kill_one(path: &Path, seed: u64, after: Duration) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["append", path.to_str().unwrap(), &seed.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "opened");
    match Journal::open(path).unwrap_err() {
        JournalError::InUse { pid, .. } => assert_eq!(pid, Some(child.id())),
        other => panic!("a journal in use was not refused as such: {other}"),
    }
    std::thread::sleep(after);
    child.kill().unwrap();
    child.wait().unwrap();
    // Nothing that was said before the kill is lost in the pipe; the last line may be half a number, without its end.
    let mut rest = String::new();
    for line in lines {
        rest.push_str(&line.unwrap());
        rest.push('\n');
    }
    rest.lines().filter_map(|line| line.parse().ok()).next_back().unwrap_or(0)
}

fn verify_snapshot(journal: &Journal) -> u64 {
    let snapshot = journal.snapshot().unwrap();
    let upto = snapshot.as_ref().map_or(0, |snapshot| snapshot.upto);
    if let Some(snapshot) = snapshot {
        assert_eq!(snapshot.text, format!("{{\"upto\":{upto}}}"));
    }
    assert_eq!(journal.read(upto, usize::MAX).unwrap().len() as u64, journal.last() - upto);
    upto
}

fn seq(line: &str) -> u64 {
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    line["seq"].as_u64().unwrap()
}
