//! What jobs write, as it is shown: every byte that is kept once, whatever happens to the files and to the service.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::processes;
use crate::resize::TWO_DEVICES;
use crate::service::{FOUR_DEVICES, Service, binary};

/// Lines of 64 bytes with their numbers, so many to a part: 3 MiB.
const LINES: usize = 49_152;
/// More than is kept.
const PARTS: usize = 14;

#[test]
fn a_reader_who_pauses_for_longer_than_the_service_waits_misses_nothing() {
    let service = Service::start(&format!("{FOUR_DEVICES}[http]\nwrite_timeout = \"500ms\"\n"));
    let id = service.submit(&[
        "--",
        "sh",
        "-c",
        "i=0; while [ $i -lt 40000 ]; do echo a line with number $i; i=$((i+1)); done",
    ]);
    service.until(&id, "succeeded");
    let whole: String = (0..40_000).map(|number| format!("a line with number {number}\n")).collect();
    for options in [&["logs", &id][..], &["logs", "--follow", &id]] {
        let mut paused = moira(&service, options);
        let mut shown = paused.stdout.take().unwrap();
        let mut read = vec![0; 1000];
        shown.read_exact(&mut read).unwrap();
        std::thread::sleep(Duration::from_secs(2));
        shown.read_to_end(&mut read).unwrap();
        assert!(paused.wait().unwrap().success());
        assert!(read == whole.as_bytes(), "{options:?}: {} of {} bytes", read.len(), whole.len());
    }
}

#[test]
fn a_log_that_is_put_aside_again_and_again_is_followed_without_a_gap() {
    let service = Service::start(FOUR_DEVICES);
    let mut run = moira(&service, &["run", "--", "sh", "-c", &script(&service)]);
    let mut shown = BufReader::new(run.stdout.take().unwrap());
    for number in 0..PARTS * LINES {
        let mut read = String::new();
        shown.read_line(&mut read).unwrap();
        assert_eq!(read, line(number), "line {number}");
        if (number + 1) % LINES == 0 {
            // What has been seen may be dropped: the next part is written.
            fs::write(service.data_dir().join(format!("seen-{}", number / LINES)), "").unwrap();
        }
    }
    let mut rest = String::new();
    assert_eq!(shown.read_line(&mut rest).unwrap(), 0, "nothing is shown twice: {rest}");
    assert!(run.wait().unwrap().success());

    let whole: String = (0..PARTS * LINES).map(line).collect();
    let logs = service.moira(&["logs", "0"]);
    let kept = String::from_utf8(logs.stdout).unwrap();
    assert!(kept.len() >= 20 << 20, "as much as three files hold: {}", kept.len());
    assert!(whole.ends_with(&kept), "the newest is kept");
    let dropped = whole.len() - kept.len();
    let said = format!("[moira: {dropped} bytes of older output were dropped]\n");
    assert_eq!(String::from_utf8_lossy(&logs.stderr), said);
    let followed = service.moira(&["logs", "--follow", "0"]);
    assert_eq!(
        (followed.stdout == kept.as_bytes(), String::from_utf8_lossy(&followed.stderr).into_owned()),
        (true, said)
    );

    let tail = service.moira(&["logs", "--tail", "15000000", "0"]);
    assert!(tail.stdout == whole.as_bytes()[whole.len() - 15_000_000..], "it reaches over more than one file");
    assert_eq!(String::from_utf8_lossy(&tail.stderr), "", "nothing is missing of it");
}

#[test]
fn an_array_is_one_stream_of_lines_with_the_numbers_of_its_tasks() {
    let service = Service::start(FOUR_DEVICES);
    let words = "echo from $MOIRA_ARRAY_TASK_ID; printf 'no end of line'";
    let run = service.moira(&["run", "--array", "3-5%1", "--", "sh", "-c", words]);
    let expected: String = (3..6).map(|task| format!("[{task}] from {task}\n[{task}] no end of line\n")).collect();
    assert_eq!(String::from_utf8_lossy(&run.stdout), expected);
    assert!(run.status.success());
    for options in [&["logs", "--all", "0"][..], &["logs", "--all", "--follow", "0"]] {
        assert_eq!(String::from_utf8_lossy(&service.moira(options).stdout), expected, "{options:?}");
    }
    let (code, said) = service.failure(&["logs", "0"]);
    assert_eq!((code, said.contains("job 0 is an array: say which task, like 0_3, or all")), (1, true), "{said}");

    // Tasks that run at the same time, and one that is tried again.
    let words = "echo $MOIRA_ATTEMPT; test $MOIRA_ARRAY_TASK_ID != 1 -o $MOIRA_ATTEMPT = 2";
    let run = service.moira(&["run", "--array", "0-3", "--retries", "1", "--", "sh", "-c", words]);
    let text = String::from_utf8(run.stdout).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[0] 1", "[1] 1", "[1] 2", "[2] 1", "[3] 1"]);
}

#[test]
fn a_submission_that_waits_ends_as_the_job_does() {
    let service = Service::start(FOUR_DEVICES);
    assert_eq!(service.failure(&["submit", "--wait", "--", "sh", "-c", "exit 3"]).0, 3);
    let well = service.moira(&["submit", "--wait", "--", "true"]);
    assert!(well.status.success());
    assert_eq!(String::from_utf8_lossy(&well.stdout), "submitted job 1 (true)\njob 1 (true) succeeded\n");
    assert_eq!(service.json(&["submit", "--wait", "-o", "json", "--", "true"])["state"], "succeeded");
}

#[test]
fn an_array_of_very_many_tasks_is_worth_a_warning() {
    let service = Service::start(FOUR_DEVICES);
    let said = |range| service.failure(&["submit", "--hold", "--array", range, "--", "true"]).1;
    assert_eq!(said("1-999"), "");
    assert!(said("1-1000").starts_with("warning: this array makes 1000 run directories"));
}

#[test]
fn a_log_is_followed_from_attempt_to_attempt_and_across_a_restart_of_the_service() {
    let mut service = Service::start(FOUR_DEVICES);
    let flag = service.data_dir().join("go");
    let script = format!(
        "echo begin $MOIRA_ATTEMPT; if [ $MOIRA_ATTEMPT = 2 ]; then until [ -e {} ]; do sleep 0.05; done; fi; \
         echo end $MOIRA_ATTEMPT; [ $MOIRA_ATTEMPT = 3 ]",
        flag.display()
    );
    let mut run = moira(&service, &["run", "--retries", "2", "--", "sh", "-c", &script]);
    let mut shown = BufReader::new(run.stdout.take().unwrap()).lines().map(Result::unwrap);
    let before: Vec<String> = shown.by_ref().take(3).collect();
    assert_eq!(before, ["begin 1", "end 1", "begin 2"]);
    service.kill();
    fs::write(&flag, "").unwrap();
    service.rise();
    let after: Vec<String> = shown.collect();
    assert_eq!(after, ["end 2", "begin 3", "end 3"]);
    assert!(run.wait().unwrap().success());
}

#[test]
fn an_array_is_followed_across_restarts_of_the_service_and_no_line_is_shown_twice() {
    let mut service = Service::start(FOUR_DEVICES);
    let flag = |name: &str| service.data_dir().join(name);
    let flags = [flag("go"), flag("on")];
    let wait = |flag: &Path| format!("until [ -e {} ]; do sleep 0.05; done", flag.display());
    let script = format!("echo begin; {}; echo middle; {}; echo end", wait(&flags[0]), wait(&flags[1]));
    let mut run = moira(&service, &["run", "--array", "1-2", "--", "sh", "-c", &script]);
    let mut shown = BufReader::new(run.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut next = || {
        let mut lines: Vec<String> = shown.by_ref().take(2).collect();
        lines.sort();
        lines
    };
    assert_eq!(next(), ["[1] begin", "[2] begin"]);
    let mut follow = moira(&service, &["logs", "--follow", "--all", "0"]);
    let mut followed = BufReader::new(follow.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut next_of_logs = || {
        let mut lines: Vec<String> = followed.by_ref().take(2).collect();
        lines.sort();
        lines
    };
    assert_eq!(next_of_logs(), ["[1] begin", "[2] begin"]);
    // As a power cut would, and then as it is stopped.
    service.kill();
    fs::write(&flags[0], "").unwrap();
    service.rise();
    assert_eq!((next(), next_of_logs()), (two("middle"), two("middle")));
    processes::kill(service.pid(), Signal::TERM);
    service.end();
    fs::write(&flags[1], "").unwrap();
    service.rise();
    assert_eq!((next(), next_of_logs()), (two("end"), two("end")));
    assert_eq!((next(), next_of_logs()), (vec![], vec![]));
    assert!(run.wait().unwrap().success() && follow.wait().unwrap().success());
}

#[test]
fn workers_of_a_gang_are_followed_from_its_launch_on() {
    let service = Service::start(FOUR_DEVICES);
    let other = service.submit(&["--", "echo", "other"]);
    let gang = service.submit(&["--hold", "--workers", "2", "--", "sh", "-c", "echo from $RANK; sleep 600"]);
    let mut follow = moira(&service, &["logs", "--follow", "--all-workers", &gang, &other]);
    let mut shown = BufReader::new(follow.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(shown.next(), Some(format!("{other}: [0] other")), "they are followed");
    service.moira(&["release", &gang]);
    let mut lines: Vec<String> = shown.by_ref().take(2).collect();
    lines.sort();
    assert_eq!(lines, [format!("{gang}: [0] from 0"), format!("{gang}: [1] from 1")]);
    service.json(&["cancel", "-o", "json", &gang]);
    assert_eq!(shown.next(), None);
    assert!(follow.wait().unwrap().success());
}

#[test]
fn a_worker_that_joins_a_job_is_followed_too() {
    let service = Service::start(TWO_DEVICES);
    let (shared, go) = (tempfile::tempdir().unwrap(), service.data_dir().join("go"));
    let other = service.submit(&["--", "echo", "other"]);
    service.until(&other, "succeeded");
    let until_go = format!("until [ -e {} ]; do sleep 0.05; done", go.display());
    let in_the_way = service.submit(&["--", "sh", "-c", &until_go]);
    service.until(&in_the_way, "running");
    let worker = Path::new(env!("CARGO_MANIFEST_DIR")).join("../executors/tests/local/worker.py");
    let shared_is = format!("SHARED={}", shared.path().display());
    let elastic = ["--workers", "1..2", "--batch", "64..128", "--env", &shared_is, "--env", "REPORT=1"];
    let id = service.submit(&[&elastic[..], &["--", "python3", worker.to_str().unwrap()]].concat());
    service.until(&id, "running");
    let mut follow = moira(&service, &["logs", "--follow", "--all-workers", &id, &other]);
    let mut shown = BufReader::new(follow.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(shown.next(), Some(format!("{other}: [0] other")), "they are followed");
    fs::write(go, "").unwrap();
    let joined = shown.by_ref().find(|line| line.starts_with(&format!("{id}: [1] member 1 is 1 of 2")));
    assert!(joined.is_some());
    fs::write(shared.path().join("end"), "").unwrap();
    let mut rest: Vec<String> = shown.collect();
    rest.retain(|line| line.ends_with("ends well"));
    rest.sort();
    assert_eq!(rest, [format!("{id}: [0] member 0 ends well"), format!("{id}: [1] member 1 ends well")]);
    assert!(follow.wait().unwrap().success());
}

fn two(word: &str) -> Vec<String> {
    (1..3).map(|task| format!("[{task}] {word}")).collect()
}

/// Writes a part, waits until it was seen, and writes the next.
fn script(service: &Service) -> String {
    let seen = service.data_dir().join("seen");
    format!(
        "for part in $(seq 0 {}); do \
           seq -f 'line %057.0f.' $((part * {LINES})) $((part * {LINES} + {LINES} - 1)); \
           until [ -e {}-$part ]; do sleep 0.05; done; \
         done",
        PARTS - 1,
        seen.display()
    )
}

fn line(number: usize) -> String {
    format!("line {number:057}.\n")
}

fn moira(service: &Service, arguments: &[&str]) -> Child {
    // One that goes silent ends the test all the same.
    let mut command = Command::new("timeout");
    command
        .arg("300")
        .arg(binary())
        .args(arguments)
        .env("MOIRA_DATA_DIR", service.data_dir())
        .env_remove("MOIRA_SERVER");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}
