//! What a service finds when it starts: a data directory of an earlier version, one that lost something, one that was
//! restored, one that holds what belongs to another.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::http;
use crate::processes::{self, Process};
use crate::service::{FOUR_DEVICES, Service, eventually};

/// A data directory as commit 4f0c295 left it when it was killed, recorded below `/srv/moira` in one boot of one machine.
/// Jobs 0 to 6 are compacted into a snapshot, the others are entries after it.
const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/data-dir-4f0c295.tar.gz");
const RECORDED_AT: &str = "/srv/moira";

/// Every job in it: number, name, state, exit code.
const JOBS: [(&str, &str, &str, Option<i32>); 12] = [
    ("0", "finished", "succeeded", Some(0)),
    ("1", "failed", "failed", Some(5)),
    ("2", "array", "succeeded", Some(0)),
    ("6", "reported", "succeeded", Some(0)),
    ("7", "waits-for-saved", "succeeded", Some(0)),
    ("8", "running", "running", None),
    ("9", "gang", "running", None),
    ("10", "held", "held", None),
    ("11", "wide-array", "pending", None),
    ("13", "after", "pending", None),
    ("14", "big", "cancelled", None),
    ("15", "keyed", "held", None),
];

#[test]
fn a_directory_of_the_version_before_starts_with_every_job_as_it_was_and_its_runs_are_adopted() {
    let mut service = recorded();
    let (running, gang) = (OldSupervisor::of(&service, "8.1"), OldSupervisor::of(&service, "9.1"));
    service.rise();
    for (id, name, state, exit_code) in JOBS {
        let job = service.show(id);
        let found = (job["name"].as_str(), job["state"].as_str(), job["exit_code"].as_i64());
        assert_eq!(found, (Some(name), Some(state), exit_code.map(i64::from)), "job {id}");
    }
    assert_eq!(service.show("6")["progress"]["steps"], json!(120), "{}", service.show("6"));
    assert!(running.lives() && gang.lives(), "what runs is left to its supervisors");
    assert_eq!(service.show("8")["attempts"], 1);

    let keyed = json!({ "name": "keyed", "command": ["true"], "hold": true }).to_string();
    let again = http::post(&service.socket(), "/v1/jobs", &[("Idempotency-Key", "once")], &keyed).unwrap();
    assert_eq!((again.status, &again.body["id"]), (200, &json!("15")), "{}", again.body);
    assert_eq!(service.submit(&["--hold", "--", "true"]), "16", "numbers go on");

    gang.ends(&[0, 0]);
    service.until("9", "succeeded");
    assert!(service.moira(&["cancel", "8"]).status.success());
    eventually("the old supervisor finds the wish to stop", || running.file("stop.json").exists());
    running.ends(&[143]);
    service.until("8", "cancelled");
    service.until("11_5", "running");
    service.kill();
    service.rise();
    assert_eq!(service.show("9")["state"], "succeeded");
    service.until("11_5", "running");
}

#[test]
fn a_run_of_the_version_before_whose_supervisor_was_killed_is_lost_and_waits_to_start_again() {
    let mut service = recorded();
    let gang = OldSupervisor::of(&service, "9.1");
    let running = OldSupervisor::of(&service, "8.1");
    running.kill();
    service.rise();
    let lost = |job: &Value| job["message"].as_str().is_some_and(|it| it.contains("its supervisor was lost"));
    service.until_it("8", "lost and waiting", |job| job["state"] == "pending" && lost(job));
    assert_eq!(service.show("9")["attempts"], 1);
    assert!(gang.lives());
}

/// The recorded directory at a place of its own, with no service yet.
fn recorded() -> Service {
    let service = Service::prepare(FOUR_DEVICES);
    let data_dir = service.data_dir();
    let unpacked = Command::new("tar").arg("-xzf").arg(RECORDED).arg("-C").arg(data_dir).status().unwrap();
    assert!(unpacked.success(), "cannot unpack {RECORDED}");
    for runs in ["runs", "done"] {
        for run in fs::read_dir(data_dir.join(runs)).unwrap() {
            let note = run.unwrap().path().join("run.json");
            let text = fs::read_to_string(&note).unwrap();
            fs::write(&note, text.replace(RECORDED_AT, &data_dir.display().to_string())).unwrap();
        }
    }
    service
}

/// Plays the supervisor of a recorded run: a process that lives, and the files that the old one wrote.
struct OldSupervisor {
    dir: PathBuf,
    process: Process,
    child: Child,
}

impl OldSupervisor {
    fn of(service: &Service, run: &str) -> OldSupervisor {
        let dir = service.data_dir().join("runs").join(run);
        let child = Command::new("sh")
            .args(["-c", "trap : USR2; while :; do sleep 0.1; done", "old supervisor"])
            .arg(&dir)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let process = Process::read(child.id() as i32).expect("it was just started");
        let identity = json!({ "pid": process.pid, "start": process.start });
        let note = dir.join("supervisor.json");
        let mut held: Value = serde_json::from_str(&fs::read_to_string(&note).unwrap()).unwrap();
        held["identity"] = identity.clone();
        held["boot"] = json!(fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim());
        fs::write(&note, held.to_string()).unwrap();
        let workers: Vec<Value> = serde_json::from_str(&fs::read_to_string(dir.join("workers.json")).unwrap()).unwrap();
        let workers = vec![identity; workers.len()];
        fs::write(dir.join("workers.json"), json!(workers).to_string()).unwrap();
        OldSupervisor { dir, process, child }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn lives(&self) -> bool {
        self.process.lives()
    }

    /// Writes down how the workers ended, as the old supervisor did, and goes.
    fn ends(mut self, codes: &[i32]) {
        let recorded = self.dir.join("../../done/0.1/exit.json");
        let mut ending: Value = serde_json::from_str(&fs::read_to_string(recorded).unwrap()).unwrap();
        ending["exits"] = codes.iter().map(|code| json!({ "code": code, "signal": null })).collect();
        ending["told_to_stop"] = json!(self.file("stop.json").exists());
        let fresh = self.file("exit.json.new");
        fs::write(&fresh, ending.to_string()).unwrap();
        fs::rename(fresh, self.file("exit.json")).unwrap();
        self.end();
    }

    fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        processes::kill(self.process.pid, Signal::KILL);
        self.child.wait().unwrap();
    }
}

impl Drop for OldSupervisor {
    fn drop(&mut self) {
        self.end();
    }
}
