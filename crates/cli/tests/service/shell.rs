//! `moira shell`: a shell beside a running job, which the job does not notice.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::http::{self, Answer};
use crate::processes;
use crate::pty::Seat;
use crate::service::{FOUR_DEVICES, Service, eventually, eventually_after};

/// A job that says once that it is up, and then nothing.
fn a_quiet_job(service: &Service) -> String {
    let id = service.submit(&["--env", "COLOUR=blue", "--", "sh", "-c", "echo up; exec sleep 1000"]);
    eventually("the job is up", || service.moira(&["logs", &id]).stdout == b"up\n");
    service.until(&id, "running");
    id
}

fn at_a_shell(service: &Service, id: &str) -> Seat {
    let mut seat = Seat::take(service, &["shell", id, "--", "sh", "-i"]);
    seat.press("PS1=; echo re''ady\r");
    seat.shows("ready");
    seat
}

fn worker(service: &Service, id: &str) -> processes::Process {
    let of_job = |it: &processes::Process| it.command == "sleep 1000" && it.variable("MOIRA_JOB_ID") == Some(id);
    processes::of(service.data_dir()).into_iter().find(of_job).unwrap()
}

#[test]
fn a_shell_has_what_the_job_has_and_its_end_is_not_the_jobs() {
    let service = Service::start(FOUR_DEVICES);
    let id = a_quiet_job(&service);
    let mut seat = at_a_shell(&service, &id);
    seat.press("echo job $MOIRA_JOB_ID on $MOIRA_DEVICES, $COLOUR, gpus=$CUDA_VISIBLE_DEVICES., $TERM\r");
    let devices = worker(&service, &id).variable("MOIRA_DEVICES").unwrap().to_string();
    seat.shows(&format!("job {id} on {devices}, blue, gpus=., vt100"));
    let group = std::fs::read_to_string(format!("/proc/{}/cgroup", worker(&service, &id).pid)).unwrap();
    let group = group.lines().find(|line| line.contains("moira-")).map(str::to_string);
    seat.press("cat /proc/self/cgroup; pwd; stty size\r");
    if let Some(group) = group {
        seat.shows(&group);
    }
    seat.shows(&std::env::current_dir().unwrap().display().to_string());
    seat.shows("30 100");
    seat.press("exit 5\r");
    assert_eq!(seat.end(), Some(5));
    assert_eq!(service.show(&id)["state"], "running");
    assert_eq!(service.moira(&["logs", &id]).stdout, b"up\n", "nothing of it is in the job's log");
}

#[test]
fn the_end_of_the_job_ends_its_shells() {
    let service = Service::start(FOUR_DEVICES);
    let id = a_quiet_job(&service);
    let mut seat = at_a_shell(&service, &id);
    seat.press("echo shell $$\r");
    seat.shows("shell ");
    processes::kill(worker(&service, &id).pid, Signal::KILL);
    seat.shows("has ended");
    assert_eq!(seat.end(), Some(129));
    let job = service.until(&id, "failed");
    assert_eq!(job["signal"], 9, "how it ended is the job's own affair");
    let inside = |it: &processes::Process| it.variable("MOIRA_JOB_ID") == Some(&id);
    eventually("nothing is left", || !processes::of(service.data_dir()).iter().any(inside));
    assert!(!service.data_dir().join(format!("done/{id}.1/shells")).exists());
}

#[test]
fn whoever_leaves_a_shell_hangs_up_on_what_runs_there() {
    let service = Service::start(FOUR_DEVICES);
    let id = a_quiet_job(&service);
    let mut seat = at_a_shell(&service, &id);
    seat.press("sleep 999\r");
    let runs = || processes::of(service.data_dir()).iter().any(|it| it.command == "sleep 999");
    eventually("it runs", runs);
    seat.press("\r~.");
    seat.shows("left the shell beside job");
    assert_eq!(seat.end(), Some(129));
    eventually("it does not run any more", || !runs());
    assert_eq!(service.show(&id)["state"], "running");
}

#[test]
fn a_shell_goes_on_after_a_restart_of_the_service() {
    let mut service = Service::start(FOUR_DEVICES);
    let id = a_quiet_job(&service);
    let mut seat = at_a_shell(&service, &id);
    service.kill();
    seat.press("echo me''anwhile\r");
    service.rise();
    seat.shows("meanwhile");
    seat.press("exit\r");
    assert_eq!(seat.end(), Some(0));
}

#[test]
fn a_shell_whose_client_was_killed_is_hung_up_on() {
    let service = Service::start(FOUR_DEVICES);
    let id = a_quiet_job(&service);
    let _seat = at_a_shell(&service, &id);
    let is_client = |it: &processes::Process| it.command.contains(" shell ") && !it.command.contains("setsid");
    let client = processes::of(service.data_dir()).into_iter().find(is_client).unwrap();
    processes::kill(client.pid, Signal::KILL);
    let is_shell = |it: &processes::Process| it.command == "sh -i" && it.variable("MOIRA_JOB_ID") == Some(&id);
    let alone_for = Duration::from_secs(30);
    eventually_after(alone_for, "the shell has gone", || !processes::of(service.data_dir()).iter().any(is_shell));
    assert_eq!(service.show(&id)["state"], "running");
}

fn open(service: &Service, id: &str, body: &Value) -> Answer {
    http::post(&service.socket(), &format!("/v1/jobs/{id}/shells"), &[], &body.to_string()).unwrap()
}

#[test]
fn a_shell_is_refused_where_there_is_nothing_to_sit_beside_and_nonsense_is_named() {
    let service = Service::start(FOUR_DEVICES);
    let (code, said) = service.failure(&["shell", "0"]);
    assert!(code == 2 && said.contains("moira shell needs a terminal"), "{code}: {said}");
    let window = json!({ "rows": 24, "columns": 80 });
    let held = service.submit(&["--hold", "--", "true"]);
    let done = service.submit(&["--", "true"]);
    service.until(&done, "succeeded");
    for (id, why) in [(&held, "has not started"), (&done, "has ended")] {
        let answer = open(&service, id, &json!({ "window": window }));
        let detail = answer.body["detail"].as_str().unwrap();
        assert_eq!((answer.status, detail), (409, &*format!("job {id} {why}: a shell needs a job that runs")));
    }
    assert_eq!(open(&service, "77", &json!({ "window": window })).status, 404);
    let id = a_quiet_job(&service);
    let answer = open(&service, &id, &json!({ "window": { "rows": 24, "columns": 0 } }));
    assert_eq!((answer.status, &answer.body["field"]), (422, &json!("window.columns")));
    let answer = open(&service, &id, &json!({ "window": window, "command": [""] }));
    assert_eq!((answer.status, &answer.body["field"]), (422, &json!("command")));
    for name in ["0123456789abcdef0123456789abcdef", "..", "%2e%2e", "x"] {
        assert_eq!(service.get(&format!("/v1/jobs/{id}/shells/{name}")).status, 404, "{name}");
        assert_eq!(service.get(&format!("/v1/jobs/{id}/shells/{name}/output?offset=0")).status, 404, "{name}");
    }
    let wrong = open(&service, &id, &json!({ "window": window, "command": ["/no/such/program"] }));
    let path = format!("/v1/jobs/{id}/shells/{}", wrong.body["id"].as_str().unwrap());
    let shown = || service.get(&path).body;
    eventually("it has not started", || shown()["ended"] == true);
    assert!(shown()["message"].as_str().unwrap().contains("no such program"), "{}", shown());
    for number in 0..5 {
        let answer = open(&service, &id, &json!({ "window": window, "command": ["sleep", "998"] }));
        assert_eq!(answer.status, if number < 4 { 201 } else { 429 }, "{}", answer.body);
    }
    // It is on record before it is tried: of one that was refused it must not say that there was one.
    let audit = service.audit();
    let asked = audit.matches(&format!("asked for a shell in job {id}")).count();
    assert!(asked == 6 && !audit.contains("opened a shell"), "{audit}");
    assert_eq!(service.show(&id)["state"], "running");
}
