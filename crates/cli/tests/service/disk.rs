//! Disks that fail: power cuts, full disks, errors at every place where something is written.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;

use crate::faults::{Disk, detach, is_there, pass_over, submit_held, trace};
use crate::files::metrics;
use crate::http;
use crate::processes;
use crate::service::{FOUR_DEVICES, Service, eventually, say};

#[test]
fn one_bad_run_directory_concerns_one_run_and_never_the_start() {
    let mut service = Service::start(&FOUR_DEVICES.replace("count = 4", "count = 8"));
    // All files that a power cut can leave empty, torn or full of zeros, one in each job.
    let torn = ["run.json", "supervisor.json", "workers.json", "usage.json", "started", "progress.read", "lock"];
    let command = "[ $MOIRA_ATTEMPT = 1 ] && sleep 600; true";
    let jobs = torn.map(|name| (name, service.submit(&["--", "sh", "-c", command])));
    jobs.iter().for_each(|(_, id)| drop(service.until(id, "running")));
    let file = |name: &str, id: &str| service.data_dir().join("runs").join(format!("{id}.1")).join(name);
    eventually("all supervisors have said who they are", || {
        jobs.iter().all(|(_, id)| file("supervisor.json", id).exists() && file("workers.json", id).exists())
    });
    let places: Vec<_> = jobs.iter().map(|(name, id)| file(name, id)).collect();
    everything_dies(&mut service);
    for (place, bytes) in places.iter().zip([&b""[..], b"{\"iden", b"\0\0\0\0\0\0"].iter().cycle()) {
        fs::write(place, bytes).unwrap();
    }
    service.rise();
    for (name, id) in jobs {
        let job = service.until(&id, "succeeded");
        assert_eq!((&job["attempts"], &job["failures"]), (&json!(2), &json!(0)), "the job whose {name} was torn");
    }
    eventually("all are put away", || runs(service.data_dir()) == 0);
}

#[test]
fn on_a_full_disk_jobs_go_on_and_end_and_are_cancelled_and_only_new_ones_are_refused() {
    let Some(disk) = Disk::mount("16m") else { return };
    let mut service = Service::at(disk.path(), FOUR_DEVICES);
    service.rise();
    // They fill the disk with what they write, too.
    let chatty = "i=0; while [ $i -lt 60 ]; do head -c 20000 /dev/zero; sleep 0.1; i=$((i+1)); done; exit 5";
    let ending = service.submit(&["--", "sh", "-c", chatty]);
    let endless = service.submit(&["--", "sleep", "600"]);
    let held = service.submit(&["--hold", "--", "true"]);
    service.until(&ending, "running");
    service.until(&endless, "running");
    let ballast = disk.fill();
    eventually("new jobs are refused", || submit_held(&service).status == 503);
    let refusal = submit_held(&service);
    assert!(refusal.body["type"].as_str().unwrap().ends_with(":disk-full"), "{}", refusal.body);
    let health = service.get("/readyz");
    assert_eq!((health.status, &health.body["status"]), (200, &json!("degraded")), "{}", health.body);
    let listed = service.moira(&["ls"]);
    let said = String::from_utf8_lossy(&listed.stderr).into_owned();
    assert!(said.starts_with("degraded: the disk is full"), "{said}");

    service.json(&["cancel", "-o", "json", &endless]);
    service.until(&endless, "cancelled");
    assert_eq!(service.until(&ending, "failed")["exit_code"], 5);
    service.json(&["cancel", "-o", "json", &held]);
    eventually("nothing of them is left", || processes::supervisors(service.data_dir()).is_empty());
    assert!(!service.log().contains("panicked"), "{}", service.log());

    fs::remove_file(ballast).unwrap();
    eventually("the service recovers by itself", || service.get("/readyz").body["status"] == "ok");
    let job = service.submit(&["--", "true"]);
    assert_eq!(service.until(&job, "succeeded")["failures"], 0);
    service.kill();
    service.rise();
    let states = [&ending, &endless, &held, &job].map(|id| service.show(id)["state"].clone());
    assert_eq!(states, ["failed", "cancelled", "cancelled", "succeeded"]);
    eventually("all are put away", || runs(service.data_dir()) == 0);
}

#[test]
fn on_a_full_disk_jobs_are_held_and_nodes_drained_and_what_jobs_report_is_recorded_later() {
    let Some(disk) = Disk::mount("16m") else { return };
    let notes = tempfile::tempdir().unwrap();
    let (go, gone) = (notes.path().join("go"), notes.path().join("gone"));
    let mut service = Service::at(disk.path(), FOUR_DEVICES);
    service.rise();
    let degraded = || {
        let all = metrics(&service);
        let line = all.lines().find(|line| line.starts_with("moira_degraded{what=\"disk\"}")).map(str::to_string);
        line.and_then(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
    };
    assert_eq!(degraded(), Some(0.0));
    // There is room for its second line beside the first.
    let script = "echo '{\"steps\": 1}' >> $MOIRA_PROGRESS_FILE; until [ -e $0 ]; do sleep 0.1; done; \
                  echo '{\"steps\": 9, \"checkpoint\": {\"steps\": 9}}' >> $MOIRA_PROGRESS_FILE; touch $1; sleep 600";
    let [first, last] = [&go, &gone].map(|path| path.display().to_string());
    let reporting = service.submit(&["--", "sh", "-c", script, &first, &last]);
    service.until_it(&reporting, "heard", |job| job["progress"]["steps"] == 1);
    let waiting = service.submit(&["--gpus", "4", "--", "true"]);
    let job = json!({ "command": ["cat"], "stdin": true, "hold": true }).to_string();
    let reading = http::post(&service.socket(), "/v1/jobs", &[], &job).unwrap().body;
    let reading = reading["id"].as_str().unwrap().to_string();
    let ballast = disk.fill();
    eventually("new jobs are refused", || submit_held(&service).status == 503);
    assert_eq!(degraded(), Some(1.0));

    // What one user may do again and again, and what can wait, does not spend the room that is left.
    let refused = |method: &str, path: &str, body: &str, kind: &str| {
        let answer = http::ask(&service.socket(), method, path, &[("Content-Type", kind)], body).unwrap();
        let is_full = answer.body["type"].as_str().is_some_and(|it| it.ends_with(":disk-full"));
        assert!(answer.status == 503 && is_full, "{method} {path}: {} {}", answer.status, answer.body);
    };
    refused("PATCH", &format!("/v1/jobs/{waiting}"), "{\"priority\": 7}", "application/json");
    refused("POST", "/v1/tokens", "{}", "application/json");
    refused("PUT", "/v1/policy", "{\"policy\": \"fifo\"}", "application/json");
    refused("POST", &format!("/v1/jobs/{reading}/input?offset=0"), "more", "application/octet-stream");
    service.json(&["cancel", "-o", "json", &reading]);
    service.until(&reading, "cancelled");
    service.json(&["hold", "-o", "json", &waiting]);
    service.until(&waiting, "held");
    refused("POST", &format!("/v1/jobs/{waiting}/release"), "{}", "application/json");
    fs::write(&go, "").unwrap();
    eventually("it has reported", || gone.exists());
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(service.show(&reporting)["progress"]["steps"], 1, "there is no room for it");
    service.json(&["node", "drain", "-o", "json", "t4"]);
    let job = service.until_it(&reporting, "moved away", |job| job["state"] != "running" && job["state"] != "stopping");
    assert_eq!(job["failures"], 0, "{job}");
    assert_eq!(job["progress"]["steps"], 9, "what it reported is told with the end of its run");
    assert_eq!(submit_held(&service).status, 503, "the disk is still full");

    fs::remove_file(ballast).unwrap();
    eventually("there is room again", || degraded() == Some(0.0));
    service.json(&["node", "uncordon", "-o", "json", "t4"]);
    service.until(&reporting, "running");
    service.kill();
    service.rise();
    assert_eq!(service.show(&waiting)["state"], "held");
    assert_eq!(service.show(&reporting)["progress"]["steps"], 9);
}

#[test]
fn on_a_full_disk_one_user_changes_little_in_a_second() {
    let Some(disk) = Disk::mount("16m") else { return };
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let ceilings = "[access.ceilings]\nchanges_per_second = 100000.0\n";
    let config = format!("listen = [\"127.0.0.1:{port}\"]\n{FOUR_DEVICES}\n{ceilings}");
    let mut service = Service::at(disk.path(), &config);
    service.rise();
    let made = service.json(&["token", "create", "--user", "daemon", "-o", "json"]);
    let token = made["secret"].as_str().unwrap();
    service.json(&["node", "cordon", "-o", "json", "t4"]);
    let job = json!({ "command": ["true"], "workdir": "/", "hold": true, "array": "0-199" }).to_string();
    let submitted = http::ask_port(port, Some(token), "POST", "/v1/jobs", &job).unwrap();
    assert_eq!(submitted.status, 201, "{}", submitted.body);
    let change = |what: &str| http::ask_port(port, Some(token), "POST", &format!("/v1/jobs/0/{what}"), "{}").unwrap();
    for what in ["release", "hold", "release"] {
        assert_eq!(change(what).status, 200, "{what}");
    }
    let ballast = disk.fill();
    eventually("new jobs are refused", || submit_held(&service).status == 503);
    assert_eq!(change("hold").status, 200, "more than may be saved up takes all of that");
    let refused = change("cancel");
    assert_eq!(
        (refused.status, &refused.body["type"]),
        (429, &json!("urn:moira:problem:too-fast")),
        "{}",
        refused.body
    );
    service.json(&["cancel", "-o", "json", "0"]);
    service.until("0", "cancelled");
    fs::remove_file(ballast).unwrap();
}

#[test]
fn what_a_job_reports_on_a_full_disk_is_recorded_when_there_is_room() {
    let Some(disk) = Disk::mount("16m") else { return };
    let notes = tempfile::tempdir().unwrap();
    let (go, gone) = (notes.path().join("go"), notes.path().join("gone"));
    let mut service = Service::at(disk.path(), FOUR_DEVICES);
    service.rise();
    let script = "echo '{\"steps\": 1}' >> $MOIRA_PROGRESS_FILE; until [ -e $0 ]; do sleep 0.1; done; \
                  echo '{\"steps\": 9}' >> $MOIRA_PROGRESS_FILE; touch $1; sleep 600";
    let [first, last] = [&go, &gone].map(|path| path.display().to_string());
    let job = service.submit(&["--", "sh", "-c", script, &first, &last]);
    service.until_it(&job, "heard", |job| job["progress"]["steps"] == 1);
    let ballast = disk.fill();
    eventually("new jobs are refused", || submit_held(&service).status == 503);
    fs::write(&go, "").unwrap();
    eventually("it has reported", || gone.exists());
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(service.show(&job)["progress"]["steps"], 1, "there is no room for it");
    fs::remove_file(ballast).unwrap();
    service.until_it(&job, "heard", |job| job["progress"]["steps"] == 9);
}

#[test]
fn a_job_that_is_released_on_a_full_disk_runs_at_the_latest_when_there_is_room() {
    let Some(disk) = Disk::mount("16m") else { return };
    let mut service = Service::at(disk.path(), FOUR_DEVICES);
    service.rise();
    let held = service.submit(&["--hold", "--", "true"]);
    let ballast = disk.fill();
    service.json(&["release", "-o", "json", &held]);
    fs::remove_file(ballast).unwrap();
    assert_eq!(service.until(&held, "succeeded")["failures"], 0, "it was not its fault");
    eventually("nothing is left of the launches that failed", || runs(service.data_dir()) == 0);
}

#[test]
fn a_log_that_cannot_be_written_ends_neither_service_nor_jobs() {
    let mut service = Service::prepare(FOUR_DEVICES);
    service.log_to(Path::new("/dev/full"));
    service.rise();
    let job = service.submit(&["--", "sh", "-c", "sleep 0.5; exit 3"]);
    service.until(&job, "running");
    // The supervisor's own log.
    let log = service.data_dir().join("runs").join(format!("{job}.1")).join("supervisor.log");
    eventually("it has a log", || log.exists());
    assert_eq!(service.until(&job, "failed")["exit_code"], 3);
    assert!(service.is_ready());
}

#[test]
fn an_answer_that_is_not_known_says_so_and_the_key_resolves_it() {
    if !is_there("strace") {
        return pass_over("strace is not installed");
    }
    let mut service = Service::start(FOUR_DEVICES);
    let log = service.data_dir().join("journal.db-wal").display().to_string();
    for (call, error) in [("fsync,fdatasync", "EIO"), ("pwrite64", "EIO"), ("fsync,fdatasync", "ENOSPC")] {
        let options =
            ["-P", &log, "-e", &format!("trace={call}"), "-e", &format!("inject={call}:error={error}:when=1")];
        let Some(strace) = trace(service.pid(), &options) else {
            return pass_over("strace may not attach to a process");
        };
        let key = format!("{call}-{error}");
        let send = || {
            let body = json!({ "command": ["true"], "name": key }).to_string();
            http::post(&service.socket(), "/v1/jobs", &[("Idempotency-Key", &key)], &body).unwrap()
        };
        let first = send();
        assert_eq!(first.status, 503, "{key}: {}", first.body);
        let kind = first.body["type"].as_str().unwrap().to_string();
        assert!(kind.ends_with(":unknown-outcome"), "{key}: {}", first.body);
        eventually("it is recorded when asked again", || matches!(send().status, 200 | 201));
        detach(strace);
        let id = send().body["id"].as_str().unwrap().to_string();
        service.until(&id, "succeeded");
        let jobs = service.get(&format!("/v1/jobs?name={key}")).body["jobs"].as_array().unwrap().len();
        assert_eq!(jobs, 1, "{key}: once and not twice");
    }
    let before = service.get("/v1/jobs").body["jobs"].as_array().unwrap().len();
    service.kill();
    service.rise();
    assert_eq!(service.get("/v1/jobs").body["jobs"].as_array().unwrap().len(), before);
}

#[test]
fn a_journal_that_cannot_be_written_for_long_is_seen_and_what_ends_meanwhile_is_recorded_later() {
    if !is_there("strace") {
        return pass_over("strace is not installed");
    }
    let notes = tempfile::tempdir().unwrap();
    let (go, gone) = (notes.path().join("go"), notes.path().join("gone"));
    let mut service = Service::start(FOUR_DEVICES);
    let script = "until [ -e $0 ]; do sleep 0.1; done; touch $1; exit 7";
    let [first, last] = [&go, &gone].map(|path| path.display().to_string());
    let ending = service.submit(&["--", "sh", "-c", script, &first, &last]);
    let staying = service.submit(&["--", "sleep", "600"]);
    service.until(&ending, "running");
    service.until(&staying, "running");
    let unwritable = || {
        let all = metrics(&service);
        let line = all.lines().find(|line| line.starts_with("moira_degraded{what=\"journal\"}")).map(str::to_string);
        line.and_then(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
    };
    assert_eq!(unwritable(), Some(0.0));
    // From now on every write to the journal fails, whatever is tried.
    let calls = "pwrite64,fsync,fdatasync,ftruncate";
    let (trace_of, inject) = (format!("trace={calls}"), format!("inject={calls}:error=EROFS"));
    let files = ["journal.db", "journal.db-wal"].map(|name| service.data_dir().join(name).display().to_string());
    let options = ["-P", &files[0], "-P", &files[1], "-e", &trace_of, "-e", &inject];
    let Some(strace) = trace(service.pid(), &options) else {
        return pass_over("strace may not attach to a process");
    };
    fs::write(&go, "").unwrap();
    eventually("the job has ended", || gone.exists());
    eventually("it is seen that nothing can be recorded", || service.get("/readyz").body["status"] == "read_only");
    let health = service.get("/readyz");
    assert_eq!(health.status, 503, "{}", health.body);
    assert!(health.body["message"].as_str().is_some_and(|message| message.contains("journal")), "{}", health.body);
    assert_eq!(unwritable(), Some(1.0));
    let said = String::from_utf8_lossy(&service.moira(&["ls"]).stderr).into_owned();
    assert!(said.starts_with("read_only: "), "{said}");
    let refusal = submit_held(&service);
    let kind = refusal.body["type"].as_str().unwrap_or_default().to_string();
    assert!(
        refusal.status == 503 && [":not-durable", ":unknown-outcome"].iter().any(|it| kind.ends_with(it)),
        "{kind}"
    );
    let shown = service.show(&ending);
    assert_ne!(shown["state"], "failed", "what is shown is on record: {shown}");
    assert_eq!(service.get("/readyz").status, 503, "it lasts");

    detach(strace);
    assert_eq!(service.until(&ending, "failed")["exit_code"], 7);
    eventually("all is well again", || service.get("/readyz").body["status"] == "ok");
    assert_eq!(unwritable(), Some(0.0));
    assert!(service.moira(&["ls"]).stderr.is_empty());
    let staying_on = service.show(&staying);
    assert_eq!((&staying_on["state"], &staying_on["attempts"]), (&json!("running"), &json!(1)), "{staying_on}");
    let job = service.submit(&["--", "true"]);
    service.until(&job, "succeeded");
    service.kill();
    service.rise();
    assert_eq!(service.show(&ending)["exit_code"], 7);
    assert_eq!(service.show(&staying)["attempts"], 1);
}

#[test]
fn who_submits_a_job_is_not_told_of_a_failing_disk_if_asking_again_helps() {
    if !is_there("strace") {
        return pass_over("strace is not installed");
    }
    let service = Service::start(FOUR_DEVICES);
    let log = service.data_dir().join("journal.db-wal").display().to_string();
    let calls = "fsync,fdatasync";
    // Once, and so often that the journal cannot be opened again for a while.
    for times in ["1", "1..3"] {
        let options =
            ["-P", &log, "-e", &format!("trace={calls}"), "-e", &format!("inject={calls}:error=EIO:when={times}")];
        let Some(strace) = trace(service.pid(), &options) else {
            return pass_over("strace may not attach to a process");
        };
        let name = format!("failing {times}");
        let output = service.moira(&["submit", "--name", &name, "-o", "name", "--", "true"]);
        detach(strace);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{name}: {said}");
        assert!(said.contains("asking again"), "{name}: {said}");
        service.until(String::from_utf8_lossy(&output.stdout).trim(), "succeeded");
        let listed = service.get("/v1/jobs").body;
        let jobs = listed["jobs"].as_array().unwrap().iter().filter(|job| job["name"] == name.as_str()).count();
        assert_eq!(jobs, 1, "{name}: once and not twice");
    }
}

/// Jobs that write down, on another disk, that they ran.
const NOTED: &str = "echo $MOIRA_JOB_ID $MOIRA_ATTEMPT >> $NOTES/ran; sleep 0.$((MOIRA_JOB_ID % 7)); exit 0";

#[test]
fn after_power_cuts_the_service_starts_knows_all_jobs_and_runs_none_twice() {
    let cuts = std::env::var("MOIRA_CUTS").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    let seed =
        std::env::var("MOIRA_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(u64::from(std::process::id()));
    say(&format!("MOIRA_CUTS={cuts} MOIRA_SEED={seed}"));
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let Some(image) = Image::mount() else { return };
    let notes = tempfile::tempdir().unwrap();
    let mut service = Service::at(image.path(), FOUR_DEVICES);
    // The configuration is no affair of the service.
    assert!(run(&mut Command::new("sync")));
    let acknowledged: Mutex<Vec<String>> = Mutex::new(Vec::new());
    for cut in 0..cuts {
        service.rise();
        for id in acknowledged.lock().unwrap().iter() {
            service.show(id);
        }
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| submit_until(&is_over, &service, notes.path(), &acknowledged));
            std::thread::sleep(Duration::from_millis(random.random_range(50..1200)));
            // What is answered from here on does not count. A sync that is under way when the file system is cut off may
            // report success although its data are given up: of plain appends with fdatasync, 8 of 20 that were
            // acknowledged during or just after the cut were lost, and none of 25,010 before it (Linux 6.18, 60 cuts). A
            // real power cut gives no answer at all, so all that was answered before the cut must be there.
            is_over.store(true, Ordering::SeqCst);
            image.cut();
        });
        everything_dies(&mut service);
        image.mount_again();
        say(&format!("cut {cut}: {} jobs", acknowledged.lock().unwrap().len()));
    }
    service.rise();
    let acknowledged = acknowledged.into_inner().unwrap();
    assert!(acknowledged.len() > cuts, "{} jobs", acknowledged.len());
    for id in &acknowledged {
        assert_eq!(service.until(id, "succeeded")["failures"], 0, "job {id}: power cuts are not its fault");
    }
    let mut ran: BTreeMap<String, u32> = BTreeMap::new();
    for line in fs::read_to_string(notes.path().join("ran")).unwrap().lines() {
        *ran.entry(line.into()).or_default() += 1;
    }
    let twice: Vec<_> = ran.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "job and attempt that ran more than once: {twice:?}");
}

/// Submits one job after the other, also for a moment after it is over; what is answered with a number before that is
/// acknowledged.
fn submit_until(is_over: &AtomicBool, service: &Service, notes: &Path, acknowledged: &Mutex<Vec<String>>) {
    let job = json!({ "command": ["sh", "-c", NOTED], "env": { "NOTES": notes }, "workdir": "/" }).to_string();
    let mut late = 0;
    while late < 10 {
        let answer = http::post(&service.socket(), "/v1/jobs", &[], &job);
        let is_late = is_over.load(Ordering::SeqCst);
        match answer {
            Ok(answer) if answer.status == 201 && !is_late => {
                acknowledged.lock().unwrap().push(answer.body["id"].as_str().unwrap().to_string());
            }
            Ok(_) | Err(_) => {}
        }
        late += u32::from(is_late);
        std::thread::sleep(Duration::from_millis(if is_late { 5 } else { 40 }));
    }
}

/// A file system of its own in a file, which can be cut off from its disk: what was not synced is lost.
struct Image {
    folder: TempDir,
}

impl Image {
    fn mount() -> Option<Image> {
        let image = Image { folder: tempfile::Builder::new().prefix("moira-image-").tempdir().unwrap() };
        fs::create_dir(image.path()).unwrap();
        let file = fs::File::create(image.file()).unwrap();
        file.set_len(64 << 20).unwrap();
        if !run(Command::new("mkfs.ext4").arg("-q").arg(image.file())) || !image.try_mount() {
            pass_over("an ext4 image cannot be made or mounted: it takes root, mkfs.ext4 and loop devices");
            return None;
        }
        Some(image)
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn try_mount(&self) -> bool {
        run(Command::new("mount").args(["-o", "loop"]).arg(self.file()).arg(self.path()))
    }

    /// From this moment on nothing more reaches the disk, also nothing that is under way.
    fn cut(&self) {
        // EXT4_IOC_SHUTDOWN, without writing out the file system's own journal.
        let script = "import fcntl, os, struct, sys\n\
                      fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587d, struct.pack('I', 2))";
        assert!(run(Command::new("python3").args(["-c", script]).arg(self.path())), "the file system can be cut off");
    }

    fn mount_again(&self) {
        eventually("nobody uses the file system", || run(Command::new("umount").arg(self.path())));
        assert!(self.try_mount(), "the file system recovers");
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        run(Command::new("umount").arg("--lazy").arg(self.path()));
    }
}

fn run(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Service, supervisors and workers, all at once, as when the power goes.
fn everything_dies(service: &mut Service) {
    let all = processes::of(service.data_dir());
    all.iter().for_each(|process| processes::kill(process.pid, Signal::STOP));
    all.iter().for_each(|process| processes::kill(process.pid, Signal::KILL));
    service.kill();
    eventually("nothing of it lives", || processes::of(service.data_dir()).is_empty());
}

fn runs(data_dir: &Path) -> usize {
    fs::read_dir(data_dir.join("runs")).unwrap().count()
}
