//! Jobs and services as people name them on a command line, and what becomes of output that nobody reads.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use crate::service::{FOUR_DEVICES, Service, binary, say};

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A command in an environment that says nothing of a service.
fn alone(arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(arguments).stdin(Stdio::null()).env("HOME", "/nowhere");
    for name in ["MOIRA_DATA_DIR", "MOIRA_SERVER", "XDG_STATE_HOME"] {
        command.env_remove(name);
    }
    command
}

#[test]
fn jobs_are_changed_by_number_and_by_name() {
    let service = Service::start(FOUR_DEVICES);
    let submit = |name: &str| service.submit(&["--name", name, "--", "sleep", "600"]);
    let (first, second, other, third) = (submit("train"), submit("train"), submit("3d-unet"), submit("eval"));
    let held = text(&service.moira(&["hold", "3d-unet", &third]));
    assert_eq!(held, format!("held job {other} (3d-unet)\nheld job {third} (eval)\n"));
    assert_eq!(text(&service.moira(&["release", "eval", "3d-unet"])).lines().count(), 2);
    let cancelled = text(&service.moira(&["cancel", "train"]));
    assert_eq!(cancelled, format!("cancelled job {second} (train)\ncancelled job {first} (train)\n"));
    service.until(&first, "cancelled");
    service.until(&second, "cancelled");
    let (code, told) = service.failure(&["cancel", "train", "3d-unet"]);
    assert_eq!(code, 1);
    assert!(told.contains("you have no job that has not ended with the name `train`"), "{told}");
    assert_eq!(
        service.until(&other, "cancelled")["name"],
        "3d-unet",
        "one that is missing is no reason for the others"
    );
    let waited = service.moira(&["wait", "train", &other]);
    assert_eq!(text(&waited), format!("job {second} (train) cancelled\njob {other} (3d-unet) cancelled\n"));
    assert_eq!((waited.status.code(), service.failure(&["wait", "nothing"]).0), (Some(103), 102));
    service.json(&["cancel", "-o", "json", "eval"]);
}

#[test]
fn names_for_programs_are_those_of_live_jobs() {
    let service = Service::start(FOUR_DEVICES);
    let ended = service.submit(&["--", "true"]);
    service.until(&ended, "succeeded");
    let live = service.submit(&["--", "sleep", "600"]);
    assert_eq!(text(&service.moira(&["ls", "-o", "name"])), format!("{live}\n"));
    assert_eq!(text(&service.moira(&["ls", "--all", "-o", "name"])), format!("{live}\n{ended}\n"));
    service.json(&["cancel", "-o", "json", &live]);
}

#[test]
fn logs_of_several_jobs_and_workers_say_whose_each_line_is() {
    let service = Service::start(FOUR_DEVICES);
    let gang = service.submit(&["--name", "gang", "--workers", "2", "--", "sh", "-c", "printf 'one\\nfrom %s' $RANK"]);
    let other = service.submit(&["--", "echo", "other"]);
    service.until(&gang, "succeeded");
    service.until(&other, "succeeded");
    let all = "[0] one\n[0] from 0\n[1] one\n[1] from 1\n";
    assert_eq!(text(&service.moira(&["logs", "--all-workers", "gang"])), all);
    let mut followed: Vec<String> =
        text(&service.moira(&["logs", "--all-workers", "-f", &gang])).lines().map(String::from).collect();
    followed.sort();
    assert_eq!(followed, ["[0] from 0", "[0] one", "[1] from 1", "[1] one"]);
    let both = text(&service.moira(&["logs", &other, "gang"]));
    assert_eq!(both, format!("{other}: other\n{gang}: one\n{gang}: from 0\n"));
    assert_eq!(
        text(&service.moira(&["logs", "--worker", "1", &gang])),
        "one\nfrom 1",
        "one alone is as it was written"
    );
}

#[test]
fn a_service_is_named_by_its_folder_or_its_address() {
    let service = Service::start(FOUR_DEVICES);
    let folder = service.data_dir().to_str().unwrap();
    let address = format!("unix:{folder}/moira.sock");
    let run = alone(&["run", "--data-dir", folder, "--", "echo", "here"]).output().unwrap();
    assert_eq!(text(&run), "here\n", "{}", String::from_utf8_lossy(&run.stderr));
    let asked = [
        &["ls", "--all"][..],
        &["show", "0"],
        &["logs", "0"],
        &["explain", "0"],
        &["wait", "0"],
        &["queue", "ls"],
        &["node", "ls"],
        &["token", "ls"],
        &["policy", "current"],
    ];
    for arguments in asked {
        for place in [["--data-dir", folder], ["--server", &address]] {
            let output = alone(&[arguments, &place].concat()).output().unwrap();
            assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
    let wrong = alone(&["ls", "--server", "localhost"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
}

#[test]
fn whoever_follows_a_log_waits_for_a_service_that_is_being_restarted() {
    let mut service = Service::start(FOUR_DEVICES);
    let id = service.submit(&["--name", "steady", "--", "sh", "-c", "echo begun; sleep 600"]);
    service.until(&id, "running");
    service.kill();
    let mut command = Command::new(binary());
    command.args(["logs", "--follow", "steady"]).env("MOIRA_DATA_DIR", service.data_dir()).env_remove("MOIRA_SERVER");
    let mut logs = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut shown = BufReader::new(logs.stdout.take().unwrap()).lines();
    service.rise();
    assert_eq!(shown.next().unwrap().unwrap(), "begun");
    service.json(&["cancel", "-o", "json", &id]);
    assert!(shown.next().is_none());
    assert!(logs.wait().unwrap().success());
}

/// The exit code of a command whose output nobody reads, and what it says on standard error.
fn unread(service: &Service, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(binary());
    command.args(arguments).env("MOIRA_DATA_DIR", service.data_dir()).env_remove("MOIRA_SERVER");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = command.stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    let output = output.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_command_whose_output_nobody_reads_ends_at_once_and_says_nothing() {
    let service = Service::start(FOUR_DEVICES);
    let array = service.submit(&["--array", "0-1", "--", "echo", "unread"]);
    let gang = service.submit(&["--workers", "2", "--", "echo", "unread"]);
    service.until(&array, "succeeded");
    service.until(&gang, "succeeded");
    let commands = [
        &["ls", "--all"][..],
        &["ls", "--watch"],
        &["ls", "--all", "-o", "json"],
        &["ls", "--all", "-o", "name"],
        &["show", &gang],
        &["explain", &gang],
        &["wait", &gang],
        &["logs", &gang],
        &["logs", "--follow", &gang],
        &["logs", "--all-workers", &gang],
        &["logs", "--follow", "--all-workers", &gang],
        &["logs", "--all", &array],
        &["logs", "--follow", "--all", &array],
        &["queue", "ls"],
        &["node", "ls"],
        &["token", "ls"],
        &["policy", "current"],
        &["policy", "ls"],
        &["policy", "show", "sia"],
        &["complete", "--", "policy", "set", ""],
        &["completions", "bash"],
        &["completions", "zsh"],
        &["completions", "fish"],
        &["trace", "generate", "--like", "philly", "--jobs", "20"],
        &["sim", "run", "--cluster", "1x1 t4"],
        &["serve", "--print-unit"],
        &["--help"],
    ];
    for arguments in commands {
        assert_eq!(unread(&service, arguments), (Some(0), String::new()), "{arguments:?}");
    }
}

#[test]
fn that_nobody_reads_makes_no_failed_job_look_well_and_stops_nothing_half_way() {
    let service = Service::start(FOUR_DEVICES);
    let submit = |command: &str| unread(&service, &["submit", "--wait", "--", "sh", "-c", command]).0;
    assert_eq!((submit("exit 3"), submit("exit 0")), (Some(3), Some(0)));
    let go = service.data_dir().join("go");
    let script = format!("until [ -e {} ]; do sleep 0.05; done; exit 3", go.display());
    let later = service.submit(&["--", "sh", "-c", &script]);
    let mut command = Command::new(binary());
    command.args(["wait", "0", "1", &later]).env("MOIRA_DATA_DIR", service.data_dir()).env_remove("MOIRA_SERVER");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    // The first has ended already: what is said of it finds no reader, and the last is waited for all the same.
    let mut waiting = command.stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(waiting.stderr.take().unwrap()).lines();
    assert_eq!(told.next().unwrap().unwrap(), "  read what it wrote: moira logs 0");
    assert!(waiting.try_wait().unwrap().is_none(), "it waits for the others");
    std::fs::write(&go, "").unwrap();
    assert_eq!(waiting.wait().unwrap().code(), Some(100));
    assert_eq!(service.show(&later)["state"], "failed");

    assert_eq!(unread(&service, &["requeue", "0", &later]), (Some(0), String::new()));
    let requeued = text(&service.moira(&["ls", "--all", "-o", "name"]));
    assert_eq!(requeued.lines().count(), 5, "both go on: {requeued}");
}

#[test]
fn numbers_queues_and_policies_are_completed() {
    let service = Service::start(FOUR_DEVICES);
    let id = service.submit(&["--hold", "--", "true"]);
    let known = |words: &[&str]| text(&service.moira(&[&["complete", "--"], words].concat()));
    assert_eq!(known(&["cancel", ""]), format!("{id}\n"));
    assert_eq!(known(&["submit", "--queue", ""]), "root\n");
    assert!(known(&["policy", "set", ""]).lines().any(|name| name == "sia"));
    assert_eq!(known(&["submit", "--name", ""]), "");
    assert_eq!(known(&["submit", "--interruptible", "--queue", ""]), "root\n");
    assert_eq!(known(&["submit", "--queue=r"]), "--queue=root\n");
    let complete = |line: &str| {
        let call = "_moira_known moira \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD-1]}\"";
        format!("COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); {call}; echo \"${{COMPREPLY[@]}}\"; ")
    };
    let lines = ["moira logs ''", "moira can", "moira submit --queue = r", "moira submit --queue ="];
    let script = format!("source <(moira completions bash); {}", lines.map(complete).concat());
    let path = format!("{}:{}", binary().parent().unwrap().display(), std::env::var("PATH").unwrap_or_default());
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", &script]).env("PATH", path).env("MOIRA_DATA_DIR", service.data_dir());
    match bash.env_remove("MOIRA_SERVER").stdin(Stdio::null()).output() {
        Ok(output) => {
            let expected = format!("{id}\ncancel\nroot\nroot\n");
            assert_eq!(text(&output), expected, "{}", String::from_utf8_lossy(&output.stderr));
        }
        Err(_) => say("passed over: bash is not installed"),
    }
}

#[test]
fn completions_are_those_of_the_service_that_the_line_names() {
    let (here, there) = (Service::start(FOUR_DEVICES), Service::start(FOUR_DEVICES));
    here.submit(&["--hold", "--", "true"]);
    let ids: Vec<String> = (0..2).map(|_| there.submit(&["--hold", "--", "true"])).collect();
    let expected = format!("{}\n{}\n", ids[1], ids[0]);
    let folder = there.data_dir().to_str().unwrap();
    let address = format!("unix:{folder}/moira.sock");
    let (of_folder, of_server) = (format!("--data-dir={folder}"), format!("--server={address}"));
    for place in [&["--data-dir", folder][..], &["--server", &address], &[&of_folder], &[&of_server]] {
        let found = text(&here.moira(&[&["complete", "--", "cancel"], place, &[""]].concat()));
        assert_eq!(found, expected, "{place:?}");
    }
}
