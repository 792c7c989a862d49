//! Time limits and charges while clocks are set and while nobody is there to keep them.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::faults::pass_over;
use crate::processes;
use crate::service::{FOUR_DEVICES, PATIENCE, Service, eventually};

const HOUR: i64 = 3_600_000;

/// A service whose wall clock is set by the test. Other clocks go on as they are.
struct Faked {
    service: Service,
    clock: PathBuf,
    _folder: TempDir,
}

impl Faked {
    fn start() -> Option<Faked> {
        let library = Path::new("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1");
        if !library.exists() {
            pass_over("libfaketime is not installed");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let clock = folder.path().join("clock");
        let mut service = Service::prepare(FOUR_DEVICES);
        service.set("LD_PRELOAD", &library.display().to_string());
        service.set("FAKETIME_TIMESTAMP_FILE", &clock.display().to_string());
        service.set("FAKETIME_NO_CACHE", "1");
        service.set("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        let mut faked = Faked { service, clock, _folder: folder };
        faked.set(0);
        faked.service.rise();
        Some(faked)
    }

    /// From now on the wall clock is so many hours ahead of the truth.
    fn set(&self, hours: i64) {
        fs::write(&self.clock, format!("{hours:+}h")).unwrap();
    }

    /// Submits a short job and returns it once it has succeeded.
    fn short_job(&self) -> Value {
        self.service.until(&self.service.submit(&["--max-runtime", "1h", "--", "sleep", "0.3"]), "succeeded")
    }
}

/// What lies between a moment as it is shown and the true time, in milliseconds.
fn off_by(moment: &Value) -> i64 {
    let truth = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64;
    ::api::unix_millis(moment.as_str().expect("a moment is text")).unwrap() - truth
}

/// The first events of a kind since the service was new.
fn events(service: &Service, kind: &str, count: usize) -> Vec<String> {
    let mut stream = UnixStream::connect(service.socket()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET /v1/events?after=0 HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let lines = BufReader::new(stream).lines().map(|line| line.expect("events come in time"));
    let wanted = format!("\"what\":\"{kind}\"");
    lines.filter(|line| line.starts_with("data:") && line.contains(&wanted)).take(count).collect()
}

/// What was charged is what has passed in this test, whose patience is a minute for each step: not hours.
#[track_caller]
fn assert_charged_sanely(job: &Value) {
    let elapsed = job["elapsed_seconds"].as_f64().unwrap();
    assert!((0.2..1800.0).contains(&elapsed), "{elapsed} s: {job}");
}

#[test]
fn a_wall_clock_that_is_set_while_jobs_run_is_shown_said_and_not_charged() {
    let Some(faked) = Faked::start() else { return };
    let service = &faked.service;
    let running = service.submit(&["--max-runtime", "1h", "--", "sleep", "60"]);
    service.until(&running, "running");
    let mut submitted = Vec::new();
    for hours in [5, -5, 0] {
        faked.set(hours);
        let job = faked.short_job();
        submitted.push(job["submitted_at"].as_str().unwrap().to_string());
        for moment in ["submitted_at", "started_at", "finished_at"] {
            let away = (off_by(&job[moment]) - hours * HOUR).abs();
            assert!(away < HOUR, "{hours} h: {moment} is {} and {away} ms away", job[moment]);
        }
        assert_charged_sanely(&job);
        assert_eq!(service.show(&running)["state"], "running", "it has an hour, and not by the wall clock");
        assert_charged_sanely(&service.show(&running));
    }
    let audit = service.moira(&["audit", "-o", "json"]);
    let audit = String::from_utf8(audit.stdout).unwrap();
    let audit: Vec<Value> = audit.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let audited: Vec<&str> = audit.iter().skip(1).filter_map(|line| line["at"].as_str()).collect();
    assert_eq!(audited, submitted, "the audit goes by the wall clock too");
    let said = events(service, "clock_set", 3);
    for (event, words) in said.iter().zip(["went forward by 5h", "went back by 10h", "went forward by 5h"]) {
        let words = format!("the machine's clock {words}");
        assert!(event.contains(&words) && service.log().contains(&words), "{event}\n{}", service.log());
    }
    service.json(&["cancel", "-o", "json", &running]);
    service.until(&running, "cancelled");
}

#[test]
fn a_wall_clock_that_is_set_while_the_service_is_away_is_not_charged() {
    let Some(mut faked) = Faked::start() else { return };
    for hours in [7, -7] {
        let running = faked.service.submit(&["--max-runtime", "1h", "--", "sleep", "6"]);
        faked.service.until(&running, "running");
        faked.service.kill();
        faked.set(hours);
        faked.service.rise();
        let job = faked.service.until(&running, "succeeded");
        assert_eq!(job["attempts"], 1);
        assert_charged_sanely(&job);
        let away = (off_by(&faked.short_job()["submitted_at"]) - hours * HOUR).abs();
        assert!(away < HOUR, "{hours} h: {away} ms");
    }
    assert!(!faked.service.log().contains("panicked"), "{}", faked.service.log());
}

#[test]
fn a_deadline_is_a_moment_of_the_wall_clock_as_it_is() {
    let Some(faked) = Faked::start() else { return };
    faked.set(-30 * 24);
    faked.short_job();
    let deadline = "2050-01-02T03:04:05Z";
    let id = faked.service.submit(&["--hold", "--deadline", deadline, "--", "true"]);
    faked.set(0);
    faked.short_job();
    assert_eq!(faked.service.show(&id)["deadline"], deadline, "it is shown as it was asked for");
}

/// Waits until nothing is left of a run while the service is away.
fn until_all_have_gone(service: &Service) {
    eventually("the run ends by itself", || processes::of(service.data_dir()).is_empty());
}

#[test]
fn a_limit_holds_while_the_service_is_away() {
    let mut service = Service::start(FOUR_DEVICES);
    let id = service.submit(&["--max-runtime", "3s", "--workers", "2", "--", "sleep", "600"]);
    service.until(&id, "running");
    service.kill();
    until_all_have_gone(&service);
    service.rise();
    let job = service.until(&id, "timed_out");
    assert_eq!((&job["attempts"], &job["failures"], &job["preemptions"]), (&1.into(), &0.into(), &0.into()));
    let elapsed = job["elapsed_seconds"].as_f64().unwrap();
    assert!((3.0..60.0).contains(&elapsed), "{elapsed}");
}

#[test]
fn a_limit_counts_all_attempts_also_while_the_service_is_away() {
    let mut service = Service::start(FOUR_DEVICES);
    let id = service.submit(&["--max-runtime", "12s", "--", "sleep", "600"]);
    service.until(&id, "running");
    std::thread::sleep(Duration::from_secs(4));
    processes::kill(processes::supervisors(service.data_dir())[0].pid, Signal::KILL);
    service.until_it(&id, "running again", |job| job["attempts"] == 2 && job["state"] == "running");
    let order = fs::read_to_string(service.data_dir().join("runs").join(format!("{id}.2")).join("run.json")).unwrap();
    let order: Value = serde_json::from_str(&order).unwrap();
    let remaining = order["order"]["limit"]["remaining"].as_u64().expect("the order says how long it may last");
    assert!(remaining < 10_000, "{remaining} ms are left of twelve seconds");
    service.kill();
    until_all_have_gone(&service);
    service.rise();
    assert_eq!(service.until(&id, "timed_out")["attempts"], 2);
}

/// Lets the service find itself in another boot of the machine from its next start on.
fn reboot(service: &mut Service, folder: &Path) -> bool {
    let is_root = rustix::process::getuid().is_root();
    if !is_root {
        pass_over("only root can make a boot look like another");
        return false;
    }
    let boot = folder.join("boot_id");
    fs::write(&boot, "00000000-1111-2222-3333-444444444444\n").unwrap();
    let mount = format!("mount --bind {} /proc/sys/kernel/random/boot_id", boot.display());
    service.start_after(&format!("exec unshare -m sh -c '{mount} && exec \"$0\" \"$@\"' \"$0\" \"$@\""));
    true
}

#[test]
fn while_the_machine_is_off_nothing_is_charged_and_its_restart_is_no_failure() {
    let folder = tempfile::tempdir().unwrap();
    let mut service = Service::start(FOUR_DEVICES);
    let begun = Instant::now();
    let id = service.submit(&["--max-runtime", "1h", "--", "sleep", "600"]);
    service.until(&id, "running");
    let usage = service.data_dir().join("runs").join(format!("{id}.1")).join("usage.json");
    eventually("the supervisor gives a sign of life", || usage.exists());
    if !reboot(&mut service, folder.path()) {
        return;
    }
    service.kill();
    while let [first, ..] = processes::of(service.data_dir()).as_slice() {
        processes::kill(first.pid, Signal::KILL);
    }
    let off = Duration::from_secs(5);
    std::thread::sleep(off);
    service.rise();
    let job = service.until_it(&id, "running again", |job| job["attempts"] == 2 && job["state"] == "running");
    assert_eq!((&job["failures"], &job["preemptions"]), (&0.into(), &0.into()));
    let charged = job["elapsed_seconds"].as_f64().unwrap();
    let on = begun.elapsed().saturating_sub(off).as_secs_f64();
    assert!((2.0..=on).contains(&charged), "{charged} s, and the machine was on for {on} s");
    let said = events(&service, "machine_restarted", 1);
    assert!(said[0].contains("the machine was restarted"), "{said:?}");
    service.json(&["cancel", "-o", "json", &id]);
    service.until(&id, "cancelled");
}
