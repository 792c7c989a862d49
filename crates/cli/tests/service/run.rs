//! `moira run` beside other commands of a shell: what it reads, which signals it hears, and how it ends.

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};

use rustix::process::Signal;

use crate::http;
use crate::processes;
use crate::service::{FOUR_DEVICES, Service, binary, eventually};

/// `moira run` with pipes at all its ends.
struct Run {
    child: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
}

impl Run {
    fn start(service: &Service, arguments: &[&str]) -> Run {
        let mut child = command(service, &[&["run"], arguments].concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take(), child.stdout.take().unwrap());
        Run { child, input, output: BufReader::new(output).lines() }
    }

    fn say(&mut self, text: &str) {
        self.input.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    #[track_caller]
    fn shows(&mut self, line: &str) {
        assert_eq!(self.output.next().unwrap().unwrap(), line);
    }

    fn signal(&self, signal: Signal) {
        processes::kill(self.child.id() as i32, signal);
    }

    /// Its exit code, and what it said on standard error.
    fn end(mut self) -> (Option<i32>, String) {
        drop(self.input.take());
        let code = self.child.wait().unwrap().code();
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (code, said)
    }
}

fn command(service: &Service, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(arguments).env("MOIRA_DATA_DIR", service.data_dir()).env_remove("MOIRA_SERVER");
    command
}

fn with_input(service: &Service, arguments: &[&str], input: &[u8]) -> Output {
    let mut child = command(service, arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        // A command that does not read all of it is none of our business.
        scope.spawn(move || pipe.write_all(input).ok());
        child.wait_with_output().unwrap()
    })
}

#[test]
fn what_is_piped_into_run_reaches_the_first_worker() {
    let service = Service::start(FOUR_DEVICES);
    let output = with_input(&service, &["run", "--", "cat"], b"hi\n");
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b"hi\n"[..]));
    let large: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
    let output = with_input(&service, &["run", "--", "cat"], &large);
    assert!(output.status.success() && output.stdout == large, "{} bytes", output.stdout.len());
    let output = with_input(&service, &["run", "--", "head", "-c", "5"], &large);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &large[..5]), "it need not read all");
    let output = with_input(&service, &["run", "--no-input", "--", "cat"], b"hi\n");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0));
}

#[test]
fn a_job_that_is_only_submitted_has_no_input() {
    let service = Service::start(FOUR_DEVICES);
    let output = with_input(&service, &["submit", "-o", "name", "--", "sh", "-c", "readlink /proc/self/fd/0"], b"hi\n");
    let id = String::from_utf8(output.stdout).unwrap().trim().to_string();
    service.until(&id, "succeeded");
    assert_eq!(service.moira(&["logs", &id]).stdout, b"/dev/null\n");
}

#[test]
fn input_goes_on_where_it_was_after_a_restart_of_the_service() {
    let mut service = Service::start(FOUR_DEVICES);
    let mut run = Run::start(&service, &["--", "cat"]);
    run.say("one\n");
    run.shows("one");
    service.kill();
    run.say("two\n");
    service.rise();
    run.shows("two");
    let (code, said) = run.end();
    assert_eq!(code, Some(0), "{said}");
}

/// Says that it is up, and then nothing until it is told to stop.
fn until_told(on_stop: &str) -> String {
    format!("trap '{on_stop}' TERM; echo up; while :; do sleep 0.05; done")
}

#[test]
fn an_interrupt_asks_the_job_to_stop_and_run_ends_with_130() {
    let service = Service::start(FOUR_DEVICES);
    let mut run = Run::start(&service, &["--", "sh", "-c", &until_told("echo saved; exit 0")]);
    run.shows("up");
    run.signal(Signal::INT);
    // A shell may say first what became of its child.
    assert!(run.output.any(|line| line.unwrap() == "saved"));
    let (code, said) = run.end();
    assert_eq!(code, Some(130), "{said}");
    assert_eq!(service.show("0")["state"], "cancelled");
}

#[test]
fn a_second_interrupt_kills_a_job_that_takes_its_time() {
    let service = Service::start(&FOUR_DEVICES.replace("2s", "1h"));
    let mut run = Run::start(&service, &["--", "sh", "-c", &until_told("")]);
    run.shows("up");
    run.signal(Signal::INT);
    service.until("0", "stopping");
    run.signal(Signal::INT);
    let (code, said) = run.end();
    assert_eq!(code, Some(130), "{said}");
    assert_eq!(service.show("0")["state"], "cancelled");
}

#[test]
fn to_terminate_run_is_to_cancel_its_job() {
    let service = Service::start(FOUR_DEVICES);
    for (number, signal, expected) in [("0", Signal::TERM, 143), ("1", Signal::HUP, 129)] {
        let mut run = Run::start(&service, &["--", "sh", "-c", &until_told("exit 0")]);
        run.shows("up");
        run.signal(signal);
        let (code, said) = run.end();
        assert_eq!(code, Some(expected), "{said}");
        service.until(number, "cancelled");
    }
}

#[test]
fn a_job_outlives_the_terminal_if_that_is_wanted() {
    let service = Service::start(FOUR_DEVICES);
    let mut run = Run::start(&service, &["--detach-on-hangup", "--", "sh", "-c", "echo up; cat; sleep 600"]);
    run.shows("up");
    run.signal(Signal::HUP);
    let (code, said) = run.end();
    assert_eq!(code, Some(129), "{said}");
    service.until("0", "running");
    service.json(&["cancel", "-o", "json", "0"]);
    service.until("0", "cancelled");
}

#[test]
fn a_hangup_that_is_ignored_is_not_heard() {
    let service = Service::start(FOUR_DEVICES);
    let mut child = Command::new("nohup")
        .arg(binary())
        .args(["run", "--", "sh", "-c", "echo up; read word; echo $word"])
        .env("MOIRA_DATA_DIR", service.data_dir())
        .env_remove("MOIRA_SERVER")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(output.next().unwrap().unwrap(), "up");
    processes::kill(child.id() as i32, Signal::HUP);
    child.stdin.take().unwrap().write_all(b"still there\n").unwrap();
    assert_eq!(output.next().unwrap().unwrap(), "still there");
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_job_whose_output_nobody_reads_any_more_is_ended_quietly() {
    let service = Service::start(FOUR_DEVICES);
    let mut run = Run::start(&service, &["--", "sh", "-c", "while :; do echo y; sleep 0.05; done"]);
    run.shows("y");
    let Run { mut child, input, output } = run;
    drop((input, output));
    assert_eq!(child.wait().unwrap().code(), Some(141));
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "submitted job 0 (sh)\n");
    service.until("0", "cancelled");
}

#[test]
fn if_another_worker_than_the_first_fails_the_last_lines_of_all_are_shown() {
    let service = Service::start(FOUR_DEVICES);
    let script = "echo from $RANK; until [ $(ls WAIT | wc -l) = 3 ]; do touch WAIT/$RANK; sleep 0.05; done; \
                  [ $RANK = 1 ] && { echo no such tensor >&2; exit 3; }; exec sleep 600";
    let wait = service.data_dir().join("wait");
    std::fs::create_dir(&wait).unwrap();
    let script = script.replace("WAIT", wait.to_str().unwrap());
    let output = service.moira(&["run", "--name", "gang", "--workers", "3", "--", "sh", "-c", &script]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "from 0\n");
    let expected = "submitted job 0 (gang)\n\
                    last lines of worker 1, which failed:\n  from 1\n  no such tensor\n\
                    last lines of worker 2:\n  from 2\n\
                    job 0 (gang) failed: worker 1 failed: exit 3\n  \
                    read what it wrote: moira logs 0 --worker 1\n";
    assert!(said.starts_with(expected), "{said}");
}

#[test]
fn input_of_a_job_that_has_ended_is_not_kept() {
    let service = Service::start(FOUR_DEVICES);
    assert!(with_input(&service, &["run", "--", "cat"], b"a secret\n").status.success());
    let spools = || std::fs::read_dir(service.data_dir().join("input")).unwrap().count();
    eventually("the input is removed", || spools() == 0);
}

#[test]
fn nobody_sends_input_to_a_job_that_takes_none() {
    let service = Service::start(FOUR_DEVICES);
    let id = service.submit(&["--", "sleep", "600"]);
    let octets = [("Content-Type", "application/octet-stream")];
    let path = format!("/v1/jobs/{id}/input?offset=0");
    let refused = http::post(&service.socket(), &path, &octets, "x").unwrap();
    assert_eq!(
        (refused.status, refused.body["detail"].as_str()),
        (409, Some(&*format!("job {id} takes no input: it was submitted without `stdin`")))
    );
    service.json(&["cancel", "-o", "json", &id]);
}
