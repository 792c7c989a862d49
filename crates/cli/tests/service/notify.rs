//! Whoever is named is told of a job: by a command of its user, or at an address; once, soon, and whatever happens to the
//! service meanwhile.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::http;
use crate::identity::{ANN, BOB, Shared, is_root};
use crate::processes;
use crate::service::{FOUR_DEVICES, PATIENCE, Service, eventually, eventually_after};

/// A folder to write to, and a command that writes each message into it as a line.
fn place() -> (TempDir, String) {
    let folder = tempfile::Builder::new().prefix("moira-told-").tempdir().unwrap();
    let told = folder.path().join("told").display().to_string();
    // One write: two may tell at the same time.
    (folder, format!(r#"m=$(cat); printf '%s\n' "$m" >> {told}"#))
}

/// What was told so far.
fn told(folder: &TempDir) -> Vec<Value> {
    let text = fs::read_to_string(folder.path().join("told")).unwrap_or_default();
    // The last line may be on its way.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().filter(|line| !line.is_empty()).map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[track_caller]
fn until_told(folder: &TempDir, count: usize) -> Vec<Value> {
    eventually("somebody is told", || told(folder).len() >= count);
    told(folder)
}

fn events(told: &[Value]) -> Vec<&str> {
    let mut events: Vec<&str> = told.iter().filter_map(|message| message["event"].as_str()).collect();
    events.sort_unstable();
    events
}

#[test]
fn a_command_is_told_of_start_and_end_and_of_a_failure_with_its_cause() {
    let service = Service::start(FOUR_DEVICES);
    let (folder, command) = place();
    let good = service.submit(&["--name", "good", "--notify", &command, "--", "sleep", "0.5"]);
    let messages = until_told(&folder, 2);
    assert_eq!(events(&messages), ["end", "start"]);
    let of = |event: &str| messages.iter().find(|message| message["event"] == event).unwrap();
    let (start, end) = (of("start"), of("end"));
    assert_eq!((&start["job"], &start["state"], start.get("exit_code")), (&json!(good), &json!("running"), None));
    assert_eq!((&end["job"], &end["state"], &end["exit_code"]), (&json!(good), &json!("succeeded"), &json!(0)));
    assert_eq!((&end["name"], &end["queue"]), (&json!("good"), &service.show(&good)["queue"]));
    assert_eq!((&end["owner"], &end["at"]), (&service.show(&good)["owner"], &service.show(&good)["finished_at"]));
    assert_eq!(end["text"], format!("job {good} (good) has succeeded"));
    assert_eq!(end["host"].as_str(), fs::read_to_string("/proc/sys/kernel/hostname").ok().as_deref().map(str::trim));

    let (folder, command) = place();
    let bad =
        service.submit(&["--notify", &command, "--notify-on", "end", "--name", "bad", "--", "sh", "-c", "exit 3"]);
    let message = &until_told(&folder, 1)[0];
    assert_eq!((&message["event"], &message["state"]), (&json!("failure"), &json!("failed")));
    assert_eq!((&message["exit_code"], &message["reason"]), (&json!(3), &json!("exit 3")));
    assert_eq!(message["text"], format!("job {bad} (bad) has failed: exit 3"));
    let metrics = || String::from_utf8(raw_metrics(&service)).unwrap();
    eventually("it is counted", || metrics().contains("moira_notifications_total{outcome=\"delivered\"} 3\n"));
    assert_eq!(told(&folder).len(), 1, "a failure is an end, and is told once");
}

fn raw_metrics(service: &Service) -> Vec<u8> {
    let mut stream = std::os::unix::net::UnixStream::connect(service.socket()).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = Vec::new();
    stream.read_to_end(&mut text).unwrap();
    text
}

#[test]
fn a_command_runs_as_the_job_would_with_a_few_variables_more() {
    let service = Service::start(FOUR_DEVICES);
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path().display().to_string();
    let command =
        "umask; pwd; echo $COLOUR $MOIRA_EVENT $MOIRA_JOB_ID $MOIRA_JOB_NAME $MOIRA_JOB_STATE $MOIRA_EXIT_CODE";
    let command = format!("{{ {command}; env; echo $(ls /proc/self/fd); }} > part; mv part told");
    let workdir = ["--workdir", &here, "--env", "COLOUR=red", "--name", "train"];
    let id = service
        .submit(&[&workdir[..], &["--notify", &command, "--notify-on", "end", "--", "sh", "-c", "exit 4"]].concat());
    let path = folder.path().join("told");
    eventually("it is told", || path.exists());
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[1..3], [here.as_str(), &format!("red failure {id} train failed 4")]);
    let umask = fs::read_to_string("/proc/self/status").unwrap();
    assert!(umask.contains(&format!("Umask:\t{}", lines[0])), "{}", lines[0]);
    assert!(!text.contains("TOKEN"), "{text}");
    assert_eq!(lines.last(), Some(&"0 1 2 3"), "it has nothing open but the standard three");
}

#[test]
fn a_job_that_is_sent_away_tells_of_it_and_of_its_end() {
    let service = Service::start(FOUR_DEVICES);
    let (folder, command) = place();
    let script = "[ $MOIRA_ATTEMPT = 1 ] && sleep 60; true";
    let id = service.submit(&["--notify", &command, "--", "sh", "-c", script]);
    let node = service.until(&id, "running")["nodes"][0].as_str().unwrap().to_string();
    service.json(&["node", "drain", "-o", "json", &node]);
    service.until(&id, "pending");
    service.json(&["node", "uncordon", "-o", "json", &node]);
    service.until(&id, "succeeded");
    let messages = until_told(&folder, 3);
    assert_eq!(events(&messages), ["end", "preemption", "start"], "that it starts again is not told");
    let preempted = messages.iter().find(|message| message["event"] == "preemption").unwrap();
    assert_eq!(preempted["state"], "stopping");
    // What its user wants is no preemption.
    let (folder, command) = place();
    let held = service.submit(&["--notify", &command, "--", "sleep", "60"]);
    service.until(&held, "running");
    service.json(&["hold", "-o", "json", &held]);
    service.until(&held, "held");
    service.json(&["cancel", "-o", "json", &held]);
    let messages = until_told(&folder, 2);
    assert_eq!(events(&messages), ["end", "start"]);
    assert_eq!(messages.iter().find(|it| it["event"] == "end").unwrap()["state"], "cancelled");
}

#[test]
fn an_array_is_told_of_as_one() {
    let service = Service::start(FOUR_DEVICES);
    let (folder, command) = place();
    let script = "exit $((MOIRA_ARRAY_TASK_ID % 2))";
    let id = service.submit(&["--array", "1-20", "--notify", &command, "--", "sh", "-c", script]);
    service.until_it(&id, "over", |job| job["state"] == "failed");
    let messages = until_told(&folder, 3);
    // Whatever else there were would have been told before this.
    let (marker, last) = place();
    service.submit(&["--notify", &last, "--notify-on", "end", "--", "true"]);
    until_told(&marker, 1);
    assert_eq!(told(&folder).len(), 3);
    assert_eq!(events(&messages), ["end", "failure", "start"]);
    let of = |event: &str| messages.iter().find(|message| message["event"] == event).unwrap();
    assert_eq!((&of("end")["job"], of("end").get("task")), (&json!(id), None));
    assert_eq!(of("end")["state"], "failed");
    let task = of("failure")["task"].as_str().unwrap();
    assert!(task.starts_with(&format!("{id}_")), "{task}");
    assert_eq!((&of("failure")["job"], &of("failure")["exit_code"]), (&json!(id), &json!(1)));
}

/// Somebody who takes messages: each request, and the status that it is answered with.
fn listener(statuses: &'static [u16]) -> (String, Receiver<(String, Value)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for status in statuses {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream);
            let (mut head, mut line) = (String::new(), String::new());
            while reader.read_line(&mut line).unwrap() > 2 {
                head.push_str(&std::mem::take(&mut line));
            }
            let length =
                head.to_lowercase().lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            let mut body = vec![0; length.unwrap_or(0)];
            reader.read_exact(&mut body).unwrap();
            let answer = format!("HTTP/1.1 {status} So\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n");
            reader.into_inner().write_all(answer.as_bytes()).unwrap();
            let request = head.lines().next().unwrap_or_default().to_string();
            if sender.send((request, serde_json::from_slice(&body).unwrap())).is_err() {
                return;
            }
        }
    });
    (address, receiver)
}

#[test]
fn an_address_that_is_allowed_gets_the_message_also_at_the_second_try() {
    let (address, requests) = listener(&[503, 200]);
    let service = Service::start(&format!("notify_urls = [\"{address}/hooks\"]\n{FOUR_DEVICES}"));
    let url = format!("{address}/hooks/a?key=secret");
    let id = service.submit(&["--notify", &url, "--notify-on", "end", "--", "true"]);
    for _ in 0..2 {
        let (request, message) = requests.recv_timeout(PATIENCE).unwrap();
        assert_eq!(request, "POST /hooks/a?key=secret HTTP/1.1");
        assert_eq!((&message["job"], &message["event"]), (&json!(id), &json!("end")));
    }
    let history = || service.json(&["explain", "-o", "json", &id])["history"].to_string();
    eventually("its history says so", || history().contains("notification of its end delivered"));
    assert!(!service.log().contains("secret"), "{}", service.log());
}

#[test]
fn a_redirect_is_not_followed_and_the_history_of_the_job_says_so() {
    let (address, requests) = listener(&[302, 200]);
    let service = Service::start(&format!("notify_urls = [\"{address}\"]\n{FOUR_DEVICES}"));
    let id = service.submit(&["--notify", &address, "--notify-on", "end", "--", "true"]);
    requests.recv_timeout(PATIENCE).unwrap();
    let history = || service.json(&["explain", "-o", "json", &id])["history"].to_string();
    eventually("its history says so", || history().contains("redirects are not followed"));
    assert!(requests.try_recv().is_err());
    assert_eq!(service.show(&id)["state"], "succeeded");
}

#[test]
fn an_address_that_is_not_allowed_is_refused_by_the_name_of_the_field() {
    let mut service = Service::start(&format!("notify_urls = [\"https://hooks.example.org/a\"]\n{FOUR_DEVICES}"));
    let submit = |url: &str| {
        let job = json!({ "command": ["true"], "hold": true, "notify": [{ "command": "cat" }, { "url": url }] });
        http::post(&service.socket(), "/v1/jobs", &[], &job.to_string()).unwrap()
    };
    for url in [
        "https://hooks.example.org.evil.com/a",
        "https://hooks.example.org@evil.com/a",
        "https://hooks.example.org/ab",
        "https://hooks.example.org/a/../b",
        "http://hooks.example.org/a",
        "https://hooks.example.org:8443/a",
        "file:///etc/passwd",
    ] {
        let answer = submit(url);
        assert_eq!((answer.status, &answer.body["field"]), (422, &json!("notify[1].url")), "{url}: {}", answer.body);
    }
    let detail = submit("https://evil.com/").body["detail"].to_string();
    assert!(detail.contains("evil.com") && detail.contains("notify_urls"), "{detail}");
    assert_eq!(submit("https://hooks.example.org/a/b").status, 201);
    let (code, said) = service.failure(&["submit", "--notify", "https://evil.com/", "--", "true"]);
    assert!(code == 2 && said.contains("notify_urls") && said.lines().count() == 1, "{said}");
    service.kill();
    let file = service.data_dir().join("moira.toml");
    fs::write(&file, "notify_urls = [\"https://ok.org\", \"hooks\"]\n").unwrap();
    let (code, said) = service.failure(&["config", "check", &file.display().to_string()]);
    assert!(code != 0 && said.contains("notify_urls[1]"), "{code}: {said}");
}

#[test]
fn a_job_file_says_whom_to_tell_and_a_failed_command_is_in_the_history() {
    let service = Service::start(FOUR_DEVICES);
    let (folder, command) = place();
    let file = folder.path().join("job.yaml");
    let text = "command: 'true'\nnotify:\n- command: echo no such host >&2; exit 3\n  events: [end]\n";
    let quoted = command.replace('\'', "''");
    fs::write(&file, format!("{text}- command: [sh, -c, '{quoted}']\n  events: [start]\n")).unwrap();
    let id = service.submit(&["--file", &file.display().to_string()]);
    assert_eq!(events(&until_told(&folder, 1)), ["start"]);
    let history = || service.json(&["explain", "-o", "json", &id])["history"].to_string();
    eventually("its history says so", || history().contains("notification of its end failed: exit 3: no such host"));
    assert!(service.log().contains("somebody could not be told of a job"), "{}", service.log());
    assert_eq!(service.show(&id)["state"], "succeeded");
    fs::write(&file, "command: 'true'\nnotify: [{events: [end]}]\n").unwrap();
    let (code, said) = service.failure(&["submit", "--file", &file.display().to_string()]);
    assert!(code == 2 && said.contains("notify[0]: expected a command or a url, found neither"), "{said}");
}

#[test]
fn a_command_that_hangs_is_killed_with_all_it_started_and_delays_no_job() {
    let service = Service::start(FOUR_DEVICES);
    let folder = tempfile::tempdir().unwrap();
    let pids = folder.path().join("pids");
    let hangs = format!("setsid sleep 600 & echo $! >> {0}; echo $$ >> {0}; sleep 600", pids.display());
    let id = service.submit(&["--notify", &hangs, "--", "true"]);
    let started = || -> Vec<i32> {
        let text = fs::read_to_string(&pids).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    };
    eventually("both hang", || started().len() == 4);
    let (marker, command) = place();
    let other = service.submit(&["--", "true"]);
    service.until(&other, "succeeded");
    let history = || service.json(&["explain", "-o", "json", &id])["history"].to_string();
    for event in ["start", "end"] {
        let said = format!("notification of its {event} failed: it took longer than 30 s");
        // They begin after a while, and then it takes as long.
        eventually_after(Duration::from_secs(30), "it is given up", || history().contains(&said));
    }
    let left: Vec<i32> = started().into_iter().filter(|&pid| processes::Process::read(pid).is_some()).collect();
    assert_eq!(left, [] as [i32; 0]);
    service.submit(&["--notify", &command, "--notify-on", "end", "--", "true"]);
    until_told(&marker, 1);
}

#[test]
fn what_a_killed_service_has_not_told_is_told_by_the_next_and_not_again() {
    let mut service = Service::start(FOUR_DEVICES);
    let (folder, command) = place();
    let (began, go) = (folder.path().join("began"), folder.path().join("go"));
    let waits = format!("touch {}; [ -e {} ] || exec sleep 600; {command}", began.display(), go.display());
    let id = service.submit(&["--notify", &waits, "--notify-on", "end", "--", "true"]);
    eventually("it is being told", || began.exists());
    service.kill();
    for process in processes::of(service.data_dir()) {
        processes::kill(process.pid, Signal::KILL);
    }
    fs::write(&go, "").unwrap();
    service.rise();
    assert_eq!(until_told(&folder, 1)[0]["job"], json!(id));
    let history = || service.json(&["explain", "-o", "json", &id])["history"].to_string();
    eventually("it is on record", || history().contains("notification of its end delivered"));
    service.kill();
    service.rise();
    let (marker, last) = place();
    service.submit(&["--notify", &last, "--notify-on", "end", "--", "true"]);
    until_told(&marker, 1);
    assert_eq!(told(&folder).len(), 1);
}

#[test]
fn the_notifications_of_one_user_that_hang_do_not_keep_those_of_another_from_being_delivered() {
    if !is_root() {
        return;
    }
    let shared = Shared::start(FOUR_DEVICES);
    let folder = shared.folder.path().join("theirs");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o1777)).unwrap();
    let (hanging, told) = (folder.join("hanging"), folder.join("told"));
    let job = |command: String| {
        let notify = json!({ "command": command, "events": ["start"] });
        json!({ "command": ["true"], "workdir": "/", "notify": [notify] })
    };
    let (ann, bob) = (shared.token_of(ANN), shared.token_of(BOB));
    // So many that all of them together would take minutes, however many were delivered at once.
    let hangs = job(format!("echo hangs >> {}; sleep 600", hanging.display()));
    let hers: Vec<String> = (0..40).map(|_| shared.submit(&ann, &hangs)).collect();
    hers.iter().for_each(|id| drop(shared.service.until(id, "succeeded")));
    shared.submit(&bob, &job(format!("echo told > {}", told.display())));
    eventually("he is told", || told.exists());
    let begun = fs::read_to_string(&hanging).unwrap_or_default().lines().count();
    assert!(begun < hers.len(), "he had to wait for all of hers");
}

#[test]
fn a_service_of_root_tells_as_the_user_of_the_job_and_never_as_root() {
    if !is_root() {
        return;
    }
    let (address, requests) = listener(&[200]);
    let shared = Shared::start(&format!("notify_urls = [\"{address}\"]\n{FOUR_DEVICES}"));
    let folder = shared.folder.path().join("theirs");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o1777)).unwrap();
    // Whoever looks a program up finds it here first.
    let (ran, told) = (folder.join("ran"), folder.join("told"));
    for name in ["sh", "id", "moira"] {
        let real = Path::new("/bin").join(name).display().to_string();
        let text = format!("#!/bin/sh\necho $(/usr/bin/id -u) >> {}\nexec {real} \"$@\"\n", ran.display());
        fs::write(folder.join(name), text).unwrap();
        fs::set_permissions(folder.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = format!("PATH={}:/usr/bin:/bin", folder.display());
    let command = format!("{{ id -u; id -g; id -G; env; }} > {0}.part; mv {0}.part {0}", told.display());
    let words =
        ["submit", "-o", "json", "--env", &path, "--notify", &command, "--notify", &address, "--notify-on", "end"];
    let job = shared.json_as(ANN, &[&words[..], &["--", "true"]].concat());
    let (_, message) = requests.recv_timeout(PATIENCE).unwrap();
    assert_eq!((&message["job"], &message["owner"]), (&job["id"], &json!("daemon")));
    eventually("it is told", || told.exists());
    let text = fs::read_to_string(&told).unwrap();
    assert_eq!(text.lines().take(2).collect::<Vec<_>>(), ["1", "1"], "{text}");
    assert!(!text.lines().nth(2).unwrap().split(' ').any(|group| group == "0"), "{text}");
    assert!(text.contains("USER=daemon\n") && !text.contains("HOME=/root"), "{text}");
    assert_eq!(fs::metadata(&told).unwrap().uid(), ANN);
    let by = fs::read_to_string(&ran).unwrap();
    assert!(by.lines().all(|uid| uid == "1"), "{by}");
}
