//! What one run costs beside its own program: counted, not timed, by tracing the service and all it starts.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::faults::{detach, is_there, pass_over, trace};
use crate::service::{FOUR_DEVICES, Service, binary, eventually};

#[test]
fn a_run_is_synced_six_times_and_looks_at_the_environment_of_no_other_process() {
    if !is_there("strace") {
        return pass_over("strace is not installed");
    }
    let service = Service::start(FOUR_DEVICES);
    let folder = tempfile::tempdir().unwrap();
    let told = folder.path().join("told").display().to_string();
    let options = ["-y", "-o", &told, "-e", "trace=fsync,fdatasync,execve,openat"];
    let Some(strace) = trace(service.pid(), &options) else {
        return pass_over("strace may not attach to a process");
    };
    let id = service.submit(&["--", "true"]);
    service.until(&id, "succeeded");
    eventually("it is put away", || service.data_dir().join("done").join(format!("{id}.1")).exists());
    detach(strace);
    let told = fs::read_to_string(told).unwrap();

    let data_dir = format!("<{}/", service.data_dir().canonicalize().unwrap().display());
    let path_of = |line: &str| {
        // Calls that others interrupt are told twice: where they begin, with the path, and where they end.
        let (_, path) = line.split_once("fsync(").or_else(|| line.split_once("fdatasync("))?.1.split_once(&data_dir)?;
        let path = path.split('>').next()?;
        // The writer's number is in the name of a file that is not in its place yet.
        Some(path.split(".json.").next()?.to_string())
    };
    let mut synced: Vec<String> =
        told.lines().filter_map(path_of).filter(|path| !path.starts_with("journal")).collect();
    synced.sort();
    assert_eq!(synced, ["runs", "runs/0.1", "runs/0.1", "runs/0.1/exit", "runs/0.1/lock", "runs/0.1/run"], "{told}");

    let opened = |name: &str| told.lines().filter(|line| line.contains("openat(") && line.contains(name)).count();
    assert!(opened("/proc/") > 0, "it was traced");
    assert_eq!(opened("/environ\""), 0, "{told}");
    let executed = told.lines().filter(|line| line.contains("execve") && line.ends_with("= 0")).count();
    assert_eq!(executed, 3, "its supervisor, its worker, and the program: {told}");
}

/// Supervisor and worker are this program, which is large, for every run anew: they begin without most of it.
#[test]
fn to_become_a_worker_less_of_the_program_is_touched_than_to_read_a_command_line() {
    let faults = |words: &[&str]| -> u64 {
        let mut child = Command::new(binary()).args(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // Of one that has ended and was not waited for yet the figures are still there.
        let figures = || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
            stat.rsplit_once(") ").unwrap().1.split(' ').map(String::from).collect::<Vec<_>>()
        };
        eventually("it ends", || figures()[0] == "Z");
        let faults = figures()[7].parse().unwrap();
        child.wait().unwrap();
        faults
    };
    let (worker, command) = (faults(&["supervise", "/no/such/run/7.1", "--worker", "0"]), faults(&["--version"]));
    assert!((1..command).contains(&(worker + 40)), "{worker} and {command} pages");
}

#[test]
fn a_log_that_is_followed_is_not_looked_at_while_nothing_is_written() {
    if !is_there("strace") {
        return pass_over("strace is not installed");
    }
    let service = Service::start(FOUR_DEVICES);
    let folder = tempfile::tempdir().unwrap();
    let (go, told) = (folder.path().join("go"), folder.path().join("told").display().to_string());
    let script = format!("echo one; until [ -e {} ]; do sleep 0.1; done; echo two", go.display());
    let id = service.submit(&["--", "sh", "-c", &script]);
    let mut following = Command::new(binary());
    following.args(["logs", "-f", &id, "--data-dir"]).arg(service.data_dir()).stdin(Stdio::null());
    let mut following = following.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(following.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "one");
    let Some(strace) = trace(service.pid(), &["-o", &told, "-e", "trace=openat,open"]) else {
        following.kill().unwrap();
        following.wait().unwrap();
        return pass_over("strace may not attach to a process");
    };
    thread::sleep(Duration::from_secs(3));
    detach(strace);
    fs::write(&go, "").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "two");
    assert!(following.wait().unwrap().success());
    let told = fs::read_to_string(told).unwrap();
    // One may be due for what was written before. Whoever looks now and then does so more often in three seconds.
    assert!(told.lines().filter(|line| line.contains("/logs")).count() <= 1, "{told}");
}
