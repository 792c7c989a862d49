//! Jobs and services as people name them on a command line, and what becomes of output that nobody reads.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};

use crate::faults::{is_there, pass_over};
use crate::service::{FOUR_DEVICES, Service, binary, eventually};

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
    completes(&service, &["cancel", ""], &format!("{id}\n"));
    completes(&service, &["submit", "--queue", ""], "root\n");
    eventually("policies are completed", || known(&service, &["policy", "set", ""]).lines().any(|name| name == "sia"));
    completes(&service, &["submit", "--name", ""], "");
    completes(&service, &["submit", "--interruptible", "--queue", ""], "root\n");
    completes(&service, &["submit", "--queue=r"], "--queue=root\n");
    offers(&service, "logs ''", &[&id]);
    offers(&service, "can", &["cancel"]);
    offers(&service, "submit --queue = r", &["root"]);
    offers(&service, "submit --queue =", &["root"]);
}

fn known(service: &Service, words: &[&str]) -> String {
    text(&service.moira(&[&["complete", "--"], words].concat()))
}

/// A completion that takes too long offers nothing: on a busy machine it is asked again.
fn completes(service: &Service, words: &[&str], expected: &str) {
    eventually(&format!("{words:?} is completed by {expected:?}"), || known(service, words) == expected);
}

/// The same for what Bash makes of it.
fn offers(service: &Service, line: &str, expected: &[&str]) {
    eventually(&format!("`{line}` offers {expected:?}"), || offered(service, line) == expected);
}

/// What Bash offers for the end of a line, said as the words that Bash makes of it.
fn offered(service: &Service, line: &str) -> Vec<String> {
    let call = "_moira_known moira \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD-1]}\"";
    let script = format!(
        "source <(moira completions bash); COMP_WORDS=(moira {line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); {call}; \
         printf '%s\\n' \"${{COMPREPLY[@]}}\""
    );
    words_of(shell(service, "bash", &["--norc", "-c", &script]))
}

fn words_of(output: Output) -> Vec<String> {
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    text(&output).lines().map(String::from).filter(|word| !word.is_empty()).collect()
}

/// A shell that finds our binary by its name, and nothing of the user's own settings.
fn shell(service: &Service, name: &str, arguments: &[&str]) -> Output {
    let path = format!("{}:{}", binary().parent().unwrap().display(), std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new(name);
    shell.args(arguments).current_dir(service.data_dir()).env("PATH", path).env("HOME", service.data_dir());
    shell.env("MOIRA_DATA_DIR", service.data_dir()).env_remove("MOIRA_SERVER").stdin(Stdio::null());
    shell.output().unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Queues with these names beside the root.
fn queues(names: &[&str]) -> String {
    let queue = |name: &&str| format!("[[queues]]\nname = '''{name}'''\n");
    format!("{FOUR_DEVICES}{}", names.iter().map(queue).collect::<String>())
}

const HOSTILE: [&str; 4] = ["$(touch injected)", "`touch injected`", "x; touch injected", "a b"];

#[test]
fn a_name_that_is_a_command_is_neither_offered_nor_run() {
    let service = Service::start(&queues(&[&HOSTILE[..], &["vision"]].concat()));
    completes(&service, &["submit", "--queue", ""], "root\nvision\n");
    offers(&service, "submit --queue ''", &["root", "vision"]);
    offers(&service, "submit --queue v", &["vision"]);
}

/// A folder whose `moira` offers hostile words whatever is asked, and prints the scripts as ours does.
fn offers_anything() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let words: String = HOSTILE.map(|word| format!("echo '{word}'\n")).concat();
    let script =
        format!("#!/bin/sh\nif [ \"$1\" = complete ]; then\n{words}else exec {} \"$@\"\nfi\n", binary().display());
    let program = folder.path().join("moira");
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

#[test]
fn no_shell_runs_what_is_offered() {
    let folder = offers_anything();
    let before = "compdef() { :; }; compadd() { shift; printf '%s\\n' \"$@\"; }";
    let bash = "source <(moira completions bash); COMP_WORDS=(moira cancel ''); COMP_CWORD=2; _moira_known; \
                printf '%s\\n' \"${COMPREPLY[@]}\"";
    let zsh = format!("{before}; source <(moira completions zsh); words=(moira cancel ''); CURRENT=3; _moira_known");
    let fish = "moira completions fish | source; complete -C 'moira cancel '";
    for (shell, options, script) in [("bash", "--norc", bash), ("zsh", "-f", &zsh), ("fish", "--no-config", fish)] {
        if !is_there(shell) {
            pass_over(&format!("{shell} is not installed"));
            continue;
        }
        let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new(shell);
        command.args([options, "-c", script]).env("PATH", path).env("HOME", folder.path()).stdin(Stdio::null());
        let output = command.current_dir(folder.path()).output().unwrap();
        assert!(!folder.path().join("injected").exists(), "{shell}");
        let said = text(&output);
        let offered: Vec<&str> = said.lines().filter(|word| HOSTILE.contains(word)).collect();
        let mut expected = HOSTILE;
        expected.sort();
        let mut sorted = offered.clone();
        sorted.sort();
        assert_eq!(sorted, expected, "{shell}: {said}{}", String::from_utf8_lossy(&output.stderr));
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
        completes(&here, &[&["cancel"], place, &[""]].concat(), &expected);
    }
}
