//! What jobs write, as it is shown: every byte that is kept once, whatever happens to the files and to the service.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

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
