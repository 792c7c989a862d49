//! Every single write of a supervisor fails once, in every way a disk can fail: the run goes on and its end is told.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use executors::Executor;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

use crate::bench::{Bench, PATIENCE, RUN, gang, supervisor};
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
fn traced(options: &str) -> Vec<OsString> {
    let supervise = supervisor()[0].to_str().unwrap().to_string();
    let text =
        format!("[ \"$2\" = --worker ] && exec {supervise} \"$@\"; exec strace -D -f -qq {options} {supervise} \"$@\"");
    by_shell(text)
}

fn by_shell(script: String) -> Vec<OsString> {
    ["/bin/sh", "-c", &script, "supervise"].map(OsString::from).into()
}

/// The `nth` of these calls on the unfinished file of this name fails; the mark in `lock` and logs are written in place.
fn failing(file: &str, call: &str, nth: u32, error: &str) -> String {
    let is_in_place = file == "lock" || file.starts_with("logs/");
    let path = if is_in_place { file.to_string() } else { format!("{file}.$$.tmp") };
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
        let supervise = traced(&failing(file, call, nth, error));
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
fn a_job_whose_log_cannot_be_written_goes_on_and_its_log_says_what_is_missing() {
    if !can_inject() {
        return;
    }
    for (call, error) in ["openat", "write"].iter().flat_map(|call| ERRORS.map(|error| (*call, error))) {
        let mut bench = Bench::new();
        bench.reopen_with(traced(&failing("logs/worker-0.log", call, 1, error)));
        let ending = bench.run(&gang("echo one; sleep 0.1; echo two; exit 3", 1));
        let case = format!("{call} of the log fails with {error}");
        assert_eq!((ending.started, ending.exit_code(), &ending.trouble), (true, Some(3), &None), "{case}");
        // Both lines may be read at once, and are lost together then.
        let log = bench.log(0);
        assert!(log.contains(" bytes of output were lost here: ") && !log.contains("one"), "{case}: {log}");
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
        let mut training = Training::start_by(|_| traced(&failing(file, call, 1, error)), &[2]);
        let came_to = training.tries(&[2, 3]);
        // Nobody can be called together by a file that cannot be written, and which need not be synced; everything else is
        // tried again, or done without.
        let is_called = file != "resize.json" || call == "fsync";
        assert_eq!(came_to.is_ok(), is_called, "{case}: {came_to:?}");
        let now = if came_to.is_ok() { 2 } else { 1 };
        assert_eq!(training.end(), vec![Some(0); now], "{case}");
    }
}

/// The lists above are of what is really written. The kernel tells what gets its name in the directory of the run, which the
/// supervisor does not touch before somebody listens.
#[test]
fn every_file_that_a_supervisor_writes_is_made_to_fail() {
    let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
    let (tell, folder) = channel();
    let mut training = thread::scope(|scope| {
        let training = scope.spawn(move || Training::start_by(|folder| patient(folder, &tell), &[2]));
        let folder: PathBuf = folder.recv().unwrap();
        let run = folder.join("runs/7.0");
        let begun = Instant::now();
        while !run.exists() {
            assert!(begun.elapsed() < PATIENCE, "the run has no directory");
            thread::sleep(Duration::from_millis(1));
        }
        inotify::add_watch(&watch, &run, WatchFlags::MOVED_FROM).unwrap();
        fs::write(folder.join("watched"), "").unwrap();
        training.join().unwrap()
    });
    let unfinished = format!(".{}.tmp", training.supervisor().as_raw_nonzero());
    assert_eq!(training.tries(&[2, 3]), Ok(()));
    assert_eq!(training.end(), [Some(0), Some(0)]);
    let mut room = [MaybeUninit::uninit(); 4096];
    let mut told = inotify::Reader::new(&watch, &mut room);
    let mut found = BTreeSet::new();
    loop {
        let event = match told.next() {
            Err(Errno::AGAIN) => break,
            event => event.unwrap(),
        };
        assert!(!event.events().contains(ReadFlags::QUEUE_OVERFLOW));
        let name = event.file_name().map(|name| name.to_str().unwrap().to_string()).unwrap_or_default();
        found.extend(name.strip_suffix(&unfinished).map(String::from));
    }
    // A sign of life, written now and then: it is allowed to be absent, and the next one takes its place.
    found.remove("usage.json");
    let expected: BTreeSet<String> = FILES.iter().chain(&OF_RESIZE).map(ToString::to_string).collect();
    assert_eq!(found, expected);
}

/// A supervisor that begins when there is a file `watched` in this folder, which is told.
fn patient(folder: &Path, tell: &Sender<PathBuf>) -> Vec<OsString> {
    tell.send(folder.into()).unwrap();
    let supervise = supervisor()[0].to_str().unwrap().to_string();
    let watched = folder.join("watched").display().to_string();
    let text = format!("until [ -e {watched} ]; do sleep 0.01; done; exec {supervise} \"$@\"");
    by_shell(text)
}
