//! Each fault for real, one at a time: a full disk, a torn journal, processes that die or will not.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::http;
use crate::processes;
use crate::service::{FOUR_DEVICES, PATIENCE, Service, eventually, say};

#[test]
fn a_journal_that_must_not_be_written_is_named_and_taken_up_again_later() {
    let Some(disk) = Disk::mount("8m") else { return };
    let mut service = Service::at(disk.path(), FOUR_DEVICES);
    service.rise();
    assert_eq!(submit_held(&service).status, 201);
    service.kill();
    disk.remount("ro");
    service.spawn();
    assert_eq!(service.end().code(), Some(1));
    let said = service.log();
    assert!(said.contains("ead-only") && said.contains(&disk.path().display().to_string()), "{said}");
    disk.remount("rw");
    service.rise();
    assert_eq!(service.show("0")["state"], "held");
}

#[test]
fn a_log_that_was_cut_off_is_told_and_the_rest_is_there() {
    let mut service = Service::start(FOUR_DEVICES);
    for _ in 0..8 {
        assert_eq!(submit_held(&service).status, 201);
    }
    service.kill();
    let whole = fs::metadata(service.data_dir().join("journal.db-wal")).unwrap().len();
    for thousandths in [0, 130, 400, 555, 800, 990] {
        let mut copy = copied(&service);
        let wal = fs::OpenOptions::new().write(true).open(copy.data_dir().join("journal.db-wal")).unwrap();
        wal.set_len(whole * thousandths / 1000).unwrap();
        let verified = copy.moira(&["journal", "verify"]);
        let told = String::from_utf8_lossy(&verified.stdout).into_owned();
        assert!(told.contains("were lost"), "cut at {thousandths}: {told}");
        assert_eq!(verified.status.code(), Some(1), "cut at {thousandths}: {told}");
        copy.spawn();
        assert_eq!(copy.end().code(), Some(1), "it does not go on without a word");
        assert!(copy.log().contains("were acknowledged and are not there"), "{}", copy.log());
        copy.with("--accept-loss");
        copy.rise();
        let message = copy.get("/readyz").body["message"].as_str().unwrap_or_default().to_string();
        assert!(message.contains("were acknowledged and are not there"), "cut at {thousandths}: {message}");
        assert!(copy.log().contains(&message), "the log says it too");
        let left = copy.get("/v1/jobs").body["jobs"].as_array().unwrap().len();
        assert!(left < 8, "cut at {thousandths}: {left} jobs");
        assert_eq!(submit_held(&copy).body["id"], json!("8"), "no number means two jobs");
    }
}

#[test]
fn a_damaged_journal_is_not_used_and_can_be_salvaged_up_to_the_damage() {
    let mut service = Service::start(FOUR_DEVICES);
    for number in 0..6 {
        service.submit(&["--hold", "--name", &format!("victim-{number}"), "--", "true"]);
    }
    processes::kill(service.pid(), Signal::TERM);
    assert!(service.end().success());
    let journal = service.data_dir().join("journal.db");
    overwrite(&journal, "victim-4", "victim-x");
    service.spawn();
    assert_eq!(service.end().code(), Some(1));
    assert!(service.log().contains(&format!("journal {} is damaged", journal.display())), "{}", service.log());
    let (code, said) = service.failure(&["journal", "verify"]);
    assert!(code == 1 && said.contains("the last good entry is "), "{said}");

    let mut salvaged = Service::prepare(FOUR_DEVICES);
    let target = salvaged.data_dir().join("journal.db").display().to_string();
    let output = service.moira(&["journal", "salvage", &target]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    salvaged.rise();
    let page = salvaged.get("/v1/jobs").body;
    let names: Vec<&str> =
        page["jobs"].as_array().unwrap().iter().rev().map(|job| job["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["victim-0", "victim-1", "victim-2", "victim-3"]);
}

#[test]
fn a_job_whose_supervisor_is_killed_is_started_again_and_has_not_failed() {
    let service = Service::start(FOUR_DEVICES);
    let id = service.submit(&["--", "sh", "-c", "[ $MOIRA_ATTEMPT = 1 ] && sleep 60; true"]);
    service.until(&id, "running");
    let supervisors = processes::supervisors(service.data_dir());
    assert_eq!(supervisors.len(), 1, "{supervisors:?}");
    processes::kill(supervisors[0].pid, Signal::KILL);
    let job = service.until(&id, "succeeded");
    assert_eq!((&job["attempts"], &job["failures"]), (&json!(2), &json!(0)));
    eventually("nothing of it is left", || processes::supervisors(service.data_dir()).is_empty());
}

#[test]
fn a_job_that_cannot_be_forked_is_started_later_by_itself() {
    if !is_there("strace") {
        return pass_over("strace is not installed");
    }
    let service = Service::start(FOUR_DEVICES);
    let Some(strace) = forks_fail(service.pid()) else { return pass_over("strace may not attach to a process") };
    let answer = submit(&service, json!({ "command": ["true"] }));
    let id = answer.body["id"].as_str().unwrap().to_string();
    eventually("the launch fails", || service.log().contains("cannot launch"));
    assert_ne!(service.show(&id)["state"], "failed");
    detach(strace);
    let job = service.until(&id, "succeeded");
    assert_eq!(job["failures"], 0, "it was not its fault");
}

#[test]
fn a_worker_that_ignores_sigterm_is_killed_when_its_grace_is_over() {
    let service = Service::start(FOUR_DEVICES);
    let id = service.submit(&["--", "sh", "-c", "trap '' TERM; while true; do sleep 0.1; done"]);
    service.until(&id, "running");
    // It has to come as far as its trap.
    std::thread::sleep(Duration::from_millis(500));
    let begun = Instant::now();
    service.json(&["cancel", "-o", "json", &id]);
    service.until(&id, "cancelled");
    let took = begun.elapsed();
    assert!((Duration::from_millis(1900)..Duration::from_secs(15)).contains(&took), "it had two seconds: {took:?}");
    eventually("nothing of it is left", || processes::supervisors(service.data_dir()).is_empty());
}

#[test]
fn a_log_directory_that_disappears_takes_only_the_log_with_it() {
    let service = Service::start(FOUR_DEVICES);
    let id = service.submit(&["--", "sh", "-c", "sleep 1; echo late; exit 4"]);
    service.until(&id, "running");
    fs::remove_dir_all(service.data_dir().join("runs").join(format!("{id}.1")).join("logs")).unwrap();
    assert_eq!(service.until(&id, "failed")["exit_code"], 4);
    let output = service.moira(&["logs", &id]);
    assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"));
    assert!(service.is_ready());
}

fn submit(service: &Service, job: Value) -> http::Answer {
    http::post(&service.socket(), "/v1/jobs", &[], &job.to_string()).unwrap()
}

pub(crate) fn submit_held(service: &Service) -> http::Answer {
    submit(service, json!({ "command": ["true"], "hold": true }))
}

/// A service on a copy of another's data.
fn copied(service: &Service) -> Service {
    let copy = Service::prepare(FOUR_DEVICES);
    for name in ["journal.db", "journal.db-wal", "journal.db.head"] {
        fs::copy(service.data_dir().join(name), copy.data_dir().join(name)).unwrap();
    }
    copy
}

/// Puts one word in another's place in a file, wherever it is.
fn overwrite(path: &Path, word: &str, other: &str) {
    let bytes = fs::read(path).unwrap();
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    let places = bytes.windows(word.len()).enumerate().filter(|(_, window)| *window == word.as_bytes());
    let places: Vec<usize> = places.map(|(place, _)| place).collect();
    assert!(!places.is_empty(), "`{word}` is not in the file");
    places.iter().for_each(|&place| file.write_all_at(other.as_bytes(), place as u64).unwrap());
}

/// A tracer under which the process cannot make others; nothing if that is not allowed.
fn forks_fail(pid: i32) -> Option<Child> {
    let calls = "clone,clone3,fork,vfork";
    trace(pid, &["-e", &format!("trace={calls}"), "-e", &format!("inject={calls}:error=EAGAIN")])
}

/// A tracer of a process and all its threads, attached; nothing if that is not allowed.
pub(crate) fn trace(pid: i32, options: &[&str]) -> Option<Child> {
    let mut strace = Command::new("strace")
        .args(["-f", "-qq", "-o", "/dev/null"])
        .args(options)
        .args(["-p", &pid.to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let begun = Instant::now();
    loop {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        if status.lines().any(|line| line == format!("TracerPid:\t{}", strace.id())) {
            // The other threads are attached to one after the other.
            std::thread::sleep(Duration::from_millis(300));
            return Some(strace);
        }
        if strace.try_wait().unwrap().is_some() || begun.elapsed() > PATIENCE {
            strace.kill().ok();
            return None;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Lets go of what is traced. A tracer may wait for ever for a process that ended at this very moment: it is killed then, and
/// the kernel lets go instead.
pub(crate) fn detach(mut strace: Child) {
    processes::kill(strace.id() as i32, Signal::INT);
    let begun = Instant::now();
    while strace.try_wait().unwrap().is_none() {
        if begun.elapsed() > Duration::from_secs(5) {
            strace.kill().ok();
            strace.wait().unwrap();
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn is_there(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    found.is_ok_and(|status| status.success())
}

/// A test that cannot be made here; where all must be made that is a failure.
pub(crate) fn pass_over(why: &str) {
    assert!(std::env::var_os("CI").is_none(), "{why}");
    say(&format!("passed over: {why}"));
}

/// A small file system in memory, which only root can make.
pub(crate) struct Disk(TempDir);

impl Disk {
    pub(crate) fn mount(size: &str) -> Option<Disk> {
        let disk = Disk(tempfile::Builder::new().prefix("moira-disk-").tempdir().unwrap());
        let mounted = disk.run("mount", &["-t", "tmpfs", "-o", &format!("size={size}"), "moira-test"]);
        if !mounted {
            pass_over("a file system cannot be mounted: it takes root");
        }
        mounted.then_some(disk)
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().to_path_buf()
    }

    fn remount(&self, mode: &str) {
        assert!(self.run("mount", &["-o", &format!("remount,{mode}")]), "remount {mode}");
    }

    /// Takes all the room there is.
    pub(crate) fn fill(&self) -> PathBuf {
        let path = self.0.path().join("ballast");
        let mut file = fs::File::create(&path).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
        path
    }

    fn run(&self, tool: &str, arguments: &[&str]) -> bool {
        let mut command = Command::new(tool);
        command.args(arguments).arg(self.0.path()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.run("umount", &["--lazy"]);
    }
}
