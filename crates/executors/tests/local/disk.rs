//! Every single write of a supervisor fails once, in every way a disk can fail: the run goes on and its end is told.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use executors::Executor;

use crate::bench::{Bench, RUN, gang, supervisor};

/// What a supervisor writes in the life of a run.
const FILES: [&str; 4] = ["supervisor.json", "workers.json", "started", "exit.json"];
/// How a file is written.
const CALLS: [&str; 4] = ["openat", "write", "fsync", "rename,renameat,renameat2"];
const ERRORS: [&str; 3] = ["ENOSPC", "EIO", "EROFS"];

#[test]
fn whatever_write_of_a_supervisor_fails_the_run_goes_on_and_its_end_is_told() {
    let traced =
        Command::new("strace").args(["-qq", "-D", "true"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !traced.is_ok_and(|status| status.success()) {
        assert!(std::env::var_os("CI").is_none(), "strace is not installed, or must not trace");
        return;
    }
    let cases =
        FILES.iter().flat_map(|file| CALLS.iter().flat_map(move |call| ERRORS.map(|error| (*file, *call, error))));
    for (file, call, error) in cases {
        let mut bench = Bench::new();
        let script = bench.data.path().join("supervise");
        // The process that is traced keeps its number, by which the unfinished file is named. Workers are left alone.
        let supervise = supervisor()[0].to_str().unwrap().to_string();
        let text = format!(
            "#!/bin/sh\n[ \"$2\" = --worker ] && exec {supervise} \"$@\"\n\
             exec strace -D -f -qq -o /dev/null -P \"$1/{file}.$$.tmp\" -e trace={call} \
             -e inject={call}:error={error}:when=1 {supervise} \"$@\"\n"
        );
        fs::write(&script, text).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        bench.reopen_with(vec![script.into()]);
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
    }
}
