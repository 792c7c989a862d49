//! The live demonstration and the trainer it runs, as whole processes.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Without anything of the environment that a job would have.
fn moira(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_moira"));
    command.args(arguments).env("NO_COLOR", "1").stdout(Stdio::piped()).stderr(Stdio::piped());
    for variable in ["RANK", "WORLD_SIZE", "MOIRA_CHECKPOINT_DIR", "MOIRA_PROGRESS_FILE", "MOIRA_LOCAL_BATCH"] {
        command.env_remove(variable);
    }
    command
}

fn trainer(steps: &str, folder: &Path) -> Command {
    let mut command = moira(&["trainer", "--steps", steps, "--batch", "32", "--hidden", "16", "--seed", "5"]);
    command.env("MOIRA_CHECKPOINT_DIR", folder).env("MOIRA_PROGRESS_FILE", folder.join("progress.jsonl"));
    command
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}{}", output.status, String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The loss in the last line a trainer printed.
fn last_loss(text: &str) -> f64 {
    let last = text.lines().last().unwrap_or_else(|| panic!("it printed nothing"));
    last.rsplit_once("loss ").and_then(|(_, loss)| loss.parse().ok()).unwrap_or_else(|| panic!("no loss in `{last}`"))
}

fn reports(folder: &Path) -> Vec<serde_json::Value> {
    let lines = std::fs::read_to_string(folder.join("progress.jsonl")).unwrap_or_default();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// Processes whose command line or folder mentions the text.
fn processes_of(text: &str) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let line = |entry: std::fs::DirEntry| std::fs::read(entry.path().join("cmdline")).ok();
    let lines = processes.filter_map(line).map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(text)).collect()
}

fn nothing_left_of(folder: &Path) {
    let name = folder.to_str().unwrap();
    let until = Instant::now() + Duration::from_secs(5);
    while !processes_of(name).is_empty() {
        assert!(Instant::now() < until, "left behind: {:?}", processes_of(name));
        std::thread::sleep(Duration::from_millis(50));
    }
    let left: Vec<_> = std::fs::read_dir(folder).unwrap().filter_map(Result::ok).map(|entry| entry.path()).collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

#[test]
fn every_job_of_the_demonstration_finishes_some_change_their_size_and_nothing_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let page = tempfile::tempdir().unwrap();
    let html = page.path().join("demo.html");
    let mut demo = moira(&["demo", "--jobs", "4", "--scale", "0.4", "--html", html.to_str().unwrap()]);
    let text = text(&demo.env("TMPDIR", folder.path()).output().unwrap());
    assert_eq!(text.matches(": finished after ").count(), 4, "{text}");
    assert!(text.lines().any(|line| line.contains('→')), "no job changed its size:\n{text}");
    let mean = text.lines().find(|line| line.trim_start().starts_with("mean ")).unwrap_or_else(|| panic!("{text}"));
    assert!(text.contains("; first come, first served would have taken "), "what was gained is said: {text}");
    assert_eq!(mean.matches(" s").count(), 4, "live and simulated times and GPU times: {mean}");
    assert!(std::fs::read_to_string(&html).unwrap().contains("simulated"));
    nothing_left_of(folder.path());
}

#[test]
fn an_interrupted_demonstration_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let demo = moira(&["demo", "--jobs", "3"]).env("TMPDIR", folder.path()).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while processes_of(folder.path().to_str().unwrap()).is_empty() {
        assert!(Instant::now() < until, "no job came up");
        std::thread::sleep(Duration::from_millis(50));
    }
    kill_process(pid(&demo), Signal::INT).unwrap();
    let output = demo.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    nothing_left_of(folder.path());
}

#[test]
fn options_of_the_simulation_need_the_simulation() {
    let output = moira(&["demo", "--seeds", "1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--sim"));
}

#[test]
fn a_training_lowers_its_loss_and_says_how_it_goes() {
    let folder = tempfile::tempdir().unwrap();
    let short = last_loss(&text(&trainer("5", tempfile::tempdir().unwrap().path()).output().unwrap()));
    let long = last_loss(&text(&trainer("2000", folder.path()).output().unwrap()));
    assert!(long < 0.9 * short, "after 5 steps {short}, after 2000 {long}");
    let last = reports(folder.path()).pop().unwrap();
    assert!(last["steps"].as_u64() >= Some(2000) && last["checkpoint"]["steps"] == last["steps"], "{last}");
    assert!(last["step_seconds"].as_f64() >= last["compute_seconds"].as_f64(), "{last}");
    assert!(last["noise"]["var"].as_f64() > Some(0.0), "{last}");
}

#[test]
fn a_training_that_is_told_to_stop_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let first = trainer("100000000", folder.path()).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    while reports(folder.path()).is_empty() {
        assert!(Instant::now() < until, "no report came");
        std::thread::sleep(Duration::from_millis(50));
    }
    kill_process(pid(&first), Signal::TERM).unwrap();
    assert_eq!(first.wait_with_output().unwrap().status.code(), Some(143));
    let saved = reports(folder.path()).pop().unwrap()["checkpoint"]["steps"].as_u64().unwrap();
    assert!(saved > 0);
    let text = text(&trainer(&(saved + 50).to_string(), folder.path()).output().unwrap());
    assert!(text.starts_with(&format!("goes on from step {saved} ")), "{saved}: {text}");
    let words = format!("done after {} ", saved + 50);
    assert!(text.contains(&words), "expected `{words}`: {text}");
}

#[test]
fn two_workers_come_as_far_as_one() {
    let alone = tempfile::tempdir().unwrap();
    let alone = last_loss(&text(&trainer("800", alone.path()).output().unwrap()));
    let folder = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let worker = |rank: &str| {
        let mut command = trainer("800", folder.path());
        command.envs([("RANK", rank), ("WORLD_SIZE", "2"), ("MASTER_PORT", &port)]).spawn().unwrap()
    };
    let (second, first) = (worker("1"), worker("0"));
    let together = last_loss(&text(&first.wait_with_output().unwrap()));
    let noise = &reports(folder.path())[0]["noise"];
    assert!(noise["sqr"].as_f64() > Some(0.0) && noise["var"].as_f64() > Some(0.0), "{noise}");
    assert!(second.wait_with_output().unwrap().status.success());
    assert!((together / alone - 1.0).abs() < 0.1, "alone {alone}, together {together}");
}

#[test]
fn a_training_does_not_go_on_without_one_of_its_workers() {
    let folder = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let worker = |rank: &str| {
        let mut command = trainer("100000000", folder.path());
        command.envs([("RANK", rank), ("WORLD_SIZE", "2"), ("MASTER_PORT", &port)]).spawn().unwrap()
    };
    let (mut second, first) = (worker("1"), worker("0"));
    let until = Instant::now() + Duration::from_secs(30);
    while reports(folder.path()).is_empty() {
        assert!(Instant::now() < until, "no report came");
        std::thread::sleep(Duration::from_millis(50));
    }
    second.kill().unwrap();
    second.wait().unwrap();
    let output = first.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("a worker is gone"));
}
