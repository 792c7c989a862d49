//! Every single write of a supervisor fails once, in every way a disk can fail: the run goes on and its end is told.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use executors::Executor;

use crate::bench::{Bench, RUN, gang, supervisor};
use crate::resize::Training;

/// What a supervisor writes in the life of a run.
const FILES: [&str; 4] = ["supervisor.json", "workers.json", "started", "exit.json"];
/// What it writes besides when workers are exchanged.
const OF_RESIZE: [&str; 4] = ["resize.json", "tuning.json", "gang.json", "outcome.json"];
/// How a file is written.
const CALLS: [&str; 4] = ["openat", "write", "fsync", "rename,renameat,renameat2"];
const ERRORS: [&str; 3] = ["ENOSPC", "EIO", "EROFS"];

/// Whether the calls of a process can be made to fail here; CI can.
fn can_inject() -> bool {
    let traced =
        Command::new("strace").args(["-qq", "-D", "true"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let can = traced.is_ok_and(|status| status.success());
    assert!(can || std::env::var_os("CI").is_none(), "strace is not installed, or must not trace");
    can
}

/// A supervisor under strace with these options, in which `$1` is the directory of the run. The process that is traced keeps
/// its number, by which an unfinished file is named. Workers are left alone.
fn traced(folder: &Path, options: &str) -> Vec<OsString> {
    let script = folder.join("supervise");
    let supervise = supervisor()[0].to_str().unwrap().to_string();
    let text = format!(
        "#!/bin/sh\n[ \"$2\" = --worker ] && exec {supervise} \"$@\"\nexec strace -D -f -qq {options} {supervise} \"$@\"\n"
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    vec![script.into()]
}

/// The `nth` of these calls on the unfinished file of this name fails; the mark in `lock` is written in place.
fn failing(file: &str, call: &str, nth: u32, error: &str) -> String {
    let path = if file == "lock" { "lock".to_string() } else { format!("{file}.$$.tmp") };
    format!("-o /dev/null -P \"$1/{path}\" -e trace={call} -e inject={call}:error={error}:when={nth}")
}

#[test]
fn whatever_write_of_a_supervisor_fails_the_run_goes_on_and_its_end_is_told() {
    if !can_inject() {
        return;
    }
    let replaced = FILES.iter().flat_map(|file| CALLS.map(|call| (*file, call, 1)));
    // It is opened twice: to be locked, and to be marked.
    let marked = [("lock", "openat", 2), ("lock", "pwrite64", 1), ("lock", "fsync", 1)];
    let sites: Vec<_> = replaced.chain(marked).collect();
    for (file, call, nth, error) in sites.iter().flat_map(|(file, call, nth)| ERRORS.map(|it| (*file, *call, *nth, it)))
    {
        let mut bench = Bench::new();
        let supervise = traced(bench.data.path(), &failing(file, call, nth, error));
        bench.reopen_with(supervise);
        // What could not be noted at once is noted at a look around, once a second.
        let seconds = if matches!(file, "workers.json" | "started") { 1.5 } else { 0.2 };
        let ending = bench.run(&gang(&format!("sleep {seconds}; exit 3"), 1));
        let case = format!("{call} of {file} fails with {error}");
        assert_eq!((ending.started, ending.exit_code(), &ending.trouble), (true, Some(3), &None), "{case}");
        bench.local().settle(RUN).unwrap();
        let done = bench.data.path().join("done/7.0");
        let left: Vec<_> = fs::read_dir(&done).unwrap().flatten().map(|entry| entry.file_name()).collect();
        let is_leftover = |name: &std::ffi::OsString| {
            let name = name.to_string_lossy();
            name.ends_with(".tmp") || name.starts_with("spare.")
        };
        assert!(!left.iter().any(is_leftover), "{case}: {left:?}");
        assert!(FILES.iter().all(|file| done.join(file).exists()), "{case}: {left:?}");
        assert_eq!(fs::read(done.join("lock")).unwrap(), b"1", "{case}");
    }
}

#[test]
fn whatever_write_of_a_supervisor_fails_in_a_resize_it_comes_to_an_end_and_the_run_goes_on() {
    if !can_inject() {
        return;
    }
    for (number, (file, call)) in OF_RESIZE.iter().flat_map(|file| CALLS.map(|call| (*file, call))).enumerate() {
        let error = ERRORS[number % ERRORS.len()];
        let case = format!("{call} of {file} fails with {error}");
        let mut training = Training::start_by(|folder| traced(folder, &failing(file, call, 1, error)), &[2]);
        let came_to = training.tries(&[2, 3]);
        // Nobody can be called together by a file that cannot be written, and which need not be synced; everything else is
        // tried again, or done without.
        let is_called = file != "resize.json" || call == "fsync";
        assert_eq!(came_to.is_ok(), is_called, "{case}: {came_to:?}");
        let now = if came_to.is_ok() { 2 } else { 1 };
        assert_eq!(training.end(), vec![Some(0); now], "{case}");
    }
}

/// The lists above are of what is really written.
#[test]
fn every_file_that_a_supervisor_writes_is_made_to_fail() {
    if !can_inject() {
        return;
    }
    let told = tempfile::tempdir().unwrap();
    let trace = told.path().join("trace");
    // A file for each thread: in one for all a call that another thread interrupts stands in two lines.
    let options = format!("-ff -o {} -e trace=openat,rename,renameat,renameat2", trace.display());
    let mut training = Training::start_by(|folder| traced(folder, &options), &[2]);
    assert_eq!(training.tries(&[2, 3]), Ok(()));
    assert_eq!(training.end(), [Some(0), Some(0)]);
    let traces = fs::read_dir(told.path()).unwrap().map(|thread| fs::read_to_string(thread.unwrap().path()).unwrap());
    let text: String = traces.collect();
    let renamed = text.lines().filter(|line| line.contains("rename") && line.ends_with(" = 0"));
    let names = renamed.filter_map(|line| {
        let (_, from) = line.split_once("/runs/7.0/")?;
        let (name, rest) = from.split_once('"')?.0.split_once(".tmp")?;
        assert!(rest.is_empty() && !name.contains('/'), "{line}");
        Some(name.rsplit_once('.')?.0.to_string())
    });
    let mut found: BTreeSet<String> = names.collect();
    // A sign of life, written now and then: it is allowed to be absent, and the next one takes its place.
    found.remove("usage.json");
    let expected: BTreeSet<String> = FILES.iter().chain(&OF_RESIZE).map(ToString::to_string).collect();
    assert_eq!(found, expected, "{text}");
}
