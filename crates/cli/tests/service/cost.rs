//! What one run costs beside its own program: counted, not timed, by tracing the service and all it starts.

use std::fs;

use rustix::process::Signal;

use crate::faults::{is_there, pass_over, trace};
use crate::processes;
use crate::service::{FOUR_DEVICES, Service, eventually};

#[test]
fn a_run_is_synced_six_times_and_looks_at_the_environment_of_no_other_process() {
    if !is_there("strace") {
        return pass_over("strace is not installed");
    }
    let service = Service::start(FOUR_DEVICES);
    let folder = tempfile::tempdir().unwrap();
    let told = folder.path().join("told").display().to_string();
    let options = ["-y", "-o", &told, "-e", "trace=fsync,fdatasync,execve,openat"];
    let Some(mut strace) = trace(service.pid(), &options) else {
        return pass_over("strace may not attach to a process");
    };
    let id = service.submit(&["--", "true"]);
    service.until(&id, "succeeded");
    eventually("it is put away", || service.data_dir().join("done").join(format!("{id}.1")).exists());
    processes::kill(strace.id() as i32, Signal::INT);
    strace.wait().unwrap();
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
