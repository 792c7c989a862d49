//! The whole binary, as scripts use it.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output};

fn moira(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_moira")).args(arguments).output().expect("the binary runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("output is text")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("errors are text")
}

/// The one line of an error, and its exit code.
#[track_caller]
fn failure(arguments: &[&str]) -> (i32, String) {
    let output = moira(arguments);
    let text = stderr(&output);
    assert_eq!(text.lines().count(), 1, "one line: {text}");
    assert!(!text.contains("panicked"), "{text}");
    (output.status.code().expect("it exits"), text.trim_end().trim_start_matches("error: ").to_string())
}

#[track_caller]
fn success(arguments: &[&str]) -> String {
    let output = moira(arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output)
}

fn file(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

const SMALL: [&str; 6] = ["--cluster", "2x4 v100", "--workload", "steady:jobs=60,load=0.9", "-o", "json"];

#[test]
fn both_simulation_commands_run_bare() {
    assert!(success(&["sim", "run"]).contains("tiresias"));
    assert!(success(&["sim", "compare", "--seeds", "1"]).contains("fifo"));
}

#[test]
fn a_report_has_the_fields_scripts_rely_on() {
    let arguments = [&["sim", "run", "--policy", "srtf", "--seed", "3"], &SMALL[..]].concat();
    let report: serde_json::Value = serde_json::from_str(&success(&arguments)).unwrap();
    assert_eq!(report["schema"], "moira.report/1");
    let run = &report["runs"][0];
    assert_eq!(run["policy"], "srtf");
    assert_eq!(run["seed"], 3);
    assert_eq!(run["jobs"], 60);
    assert_eq!(run["finished"], 60);
    assert_eq!(run["refused"], 0);
    assert_eq!(run["knows"][0], "true remaining time");
    for field in ["mean_s", "p50_s", "p90_s", "p99_s"] {
        assert!(run["jct"][field].as_f64().unwrap() > 0.0, "{field}");
    }
    for field in ["makespan_s", "gpu_hours_per_job", "restarts_per_job"] {
        assert!(run[field].is_number(), "{field}");
    }
    for field in ["worst", "mean", "share_above_1"] {
        assert!(run["finish_time_ratio"][field].is_number(), "{field}");
    }
}

#[test]
fn the_same_bytes_for_any_number_of_threads() {
    let base = [&["sim", "compare", "--seeds", "1..3"], &SMALL[..]].concat();
    let with = |threads| success(&[&base[..], &["--threads", threads]].concat());
    assert_eq!(with("1"), with("4"));
}

#[test]
fn seeds_are_a_range_with_both_ends() {
    let arguments = [&["sim", "compare", "--policy", "fifo", "--seeds", "4..6"], &SMALL[..]].concat();
    let report: serde_json::Value = serde_json::from_str(&success(&arguments)).unwrap();
    let seeds: Vec<u64> = report["runs"].as_array().unwrap().iter().map(|run| run["seed"].as_u64().unwrap()).collect();
    assert_eq!(seeds, [4, 5, 6]);
}

#[test]
fn several_workloads_are_compared_side_by_side() {
    let arguments = ["sim", "compare", "--policy", "fifo", "--policy", "las", "--seeds", "1", "--cluster", "2x4 v100"];
    let workloads = ["--workload", "steady:jobs=30", "--workload", "steady:jobs=40"];
    let text = success(&[&arguments[..], &workloads, &["-o", "json"]].concat());
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let runs: Vec<(&str, u64)> = report["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| (run["policy"].as_str().unwrap(), run["jobs"].as_u64().unwrap()))
        .collect();
    assert_eq!(runs, [("fifo", 30), ("las", 30), ("fifo", 40), ("las", 40)]);
    let table = success(&[&arguments[..], &workloads].concat());
    assert_eq!(table.matches("JCT MEAN").count(), 2, "a table for each: {table}");
    assert_eq!(failure(&[&["sim", "run"], &workloads[..]].concat()).0, 2);
    assert_eq!(failure(&[&arguments[..], &workloads, &["--html", "page.html"]].concat()).0, 2);
}

#[test]
fn csv_has_a_header_and_a_line_for_each_run() {
    let arguments = ["sim", "compare", "--policy", "fifo", "--policy", "las", "--seeds", "1..2", "-o", "csv"];
    let text = success(&[&arguments[..], &SMALL[..4]].concat());
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 5);
    assert!(lines[0].starts_with("policy,workload,seed"), "{}", lines[0]);
    assert!(lines[1].starts_with("fifo,"), "{}", lines[1]);
}

#[test]
fn a_journal_is_one_fact_a_line_and_begins_with_the_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal").display().to_string();
    success(&[&["sim", "run", "--policy", "fifo", "--journal", &path], &SMALL[..]].concat());
    let text = fs::read_to_string(&path).unwrap();
    let facts: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(facts[0]["event"]["ClusterDefined"].is_object());
    let finished = facts.iter().filter(|fact| fact["event"]["RunFinished"].is_object()).count();
    assert_eq!(finished, 60);
}

#[test]
fn a_journal_that_cannot_be_written_is_a_failure() {
    let (code, error) = failure(&["sim", "run", "--journal", "/nowhere/journal"]);
    assert_eq!(code, 1);
    assert_eq!(error, "cannot write the journal /nowhere/journal: No such file or directory (os error 2)");
    let (code, error) = failure(&["sim", "run", "--workload", "csv:/nowhere/jobs.csv"]);
    assert_eq!((code, &*error), (1, "cannot read /nowhere/jobs.csv: No such file or directory (os error 2)"));
}

#[test]
fn policies_are_listed_and_shown() {
    let list = success(&["policy", "ls"]);
    for name in ["fifo", "srtf", "srsf", "las", "tiresias", "gittins", "composed"] {
        assert!(list.contains(name), "{name} in {list}");
        let page = success(&["policy", "show", name]);
        assert!(page.to_lowercase().contains(name), "{page}");
    }
    assert!(success(&["policy", "show", "tiresias", "-o", "json"]).contains("\"parameters\""));
}

#[test]
fn a_policy_can_be_composed_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let config = file(folder.path(), "mine.toml", "policy = \"composed\"\norder = \"attained\"\npreempt = true\n");
    let text = success(&[&["sim", "run", "--policy", &config], &SMALL[..]].concat());
    assert!(text.contains("composed(order=attained,preempt=true)"), "{text}");
}

#[test]
fn what_befalls_the_cluster_comes_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let world =
        file(folder.path(), "world.toml", "[faults]\ncrash_mtbf_s = 600\n[[events]]\nat_s = 60\ndrain = \"n1\"\n");
    let text = success(&[&["sim", "run", "--policy", "fifo", "--world", &world], &SMALL[..]].concat());
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(report["runs"][0]["failures"]["crash"].as_u64().unwrap() > 0);
    let wrong = file(folder.path(), "wrong.toml", "[faults]\ncrash_mtbf = 600\n");
    let (code, error) = failure(&["sim", "run", "--world", &wrong]);
    assert_eq!(code, 1);
    assert!(error.contains("wrong.toml:2:1: unknown field `crash_mtbf`"), "{error}");
    let nowhere = file(folder.path(), "nowhere.toml", "[[events]]\nat_s = 60\ndrain = \"n77\"\n");
    let (_, error) = failure(&["sim", "run", "--cluster", "2x4 v100", "--world", &nowhere]);
    assert!(error.contains("events[0].drain: expected the name of a node of the cluster, found n77"), "{error}");
}

#[test]
fn wrong_usage_exits_with_2_and_says_what_would_be_right() {
    let (code, error) = failure(&["sim", "run", "--policy", "tiresia"]);
    assert_eq!(code, 2);
    assert!(error.contains("tiresias"), "{error}");
    let (code, error) = failure(&["sim", "run", "--policy", "fifo", "--set", "backfil=easy"]);
    assert_eq!(code, 2);
    assert!(error.contains("backfill"), "{error}");
    let (code, error) = failure(&["sim", "run", "--policy", "fifo", "--set", "backfill=eager"]);
    assert_eq!(code, 2);
    assert!(error.contains("easy"), "{error}");
    let (code, error) = failure(&["sim", "run", "--workload", "steadi"]);
    assert_eq!(code, 2);
    assert!(error.contains("steady"), "{error}");
    let (code, error) = failure(&["sim", "compare", "--seeds", "5..1"]);
    assert_eq!(code, 2);
    assert!(error.contains("ascending range"), "{error}");
    assert_eq!(failure(&["simulate"]).0, 2);
    assert_eq!(failure(&["sim", "run", "--cluster", "many gpus please"]).0, 2);
}

#[test]
fn errors_are_json_where_json_was_asked_for() {
    let output = moira(&["sim", "run", "--policy", "nothing", "-o", "json"]);
    assert_eq!(output.status.code(), Some(2));
    let object: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert!(object["error"].as_str().unwrap().contains("nothing"));
}

/// A workload of our own layout on two nodes of four V100.
#[track_caller]
fn workload_failure(text: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "jobs.csv", text);
    let (code, error) = failure(&["sim", "run", "--cluster", "2x4 v100", "--workload", &format!("csv:{path}")]);
    assert_eq!(code, 1, "{error}");
    error.replace(&path, "jobs.csv")
}

#[test]
fn a_bad_workload_names_file_line_and_field() {
    let error = workload_failure("submit_s,gpus\n0,1\n");
    assert!(error.starts_with("jobs.csv:1: missing column `duration_s`"), "{error}");
    let error = workload_failure("submit_s,gpus,duration_s\n0,1,10\n5,-3,10\n");
    assert!(error.starts_with("jobs.csv:3: column `gpus`: expected a whole number"), "{error}");
    let error = workload_failure("submit_s,gpus,duration_s,kinds\n0,1,10,h900\n");
    assert!(error.starts_with("jobs.csv:2: column `kinds`: expected one of the cluster's GPU kinds (v100)"), "{error}");
    let error = workload_failure("id,submit_s,gpus,duration_s,after\na,0,1,10,b\nb,0,1,10,a\n");
    assert!(error.contains("cycle"), "{error}");
    let error = workload_failure("submit_s,gpus,duration_s\n0,1,10\n5,1");
    assert!(error.starts_with("jobs.csv:3: expected 3 fields"), "{error}");
    let error = workload_failure("submit_s,gpus,duration_s\n0,1,NaN\n");
    assert!(error.starts_with("jobs.csv:2: column `duration_s`"), "{error}");
}

#[test]
fn ten_gigabytes_of_zeros_are_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("zeros.csv");
    File::create(&path).unwrap().set_len(10 << 30).unwrap();
    let path = path.display().to_string();
    let (code, error) = failure(&["sim", "run", "--workload", &format!("csv:{path}")]);
    assert_eq!(code, 1);
    assert!(error.contains("zeros.csv:1: "), "{error}");
    let (code, error) = failure(&["sim", "run", "--cluster", &path]);
    assert_eq!(code, 1);
    assert!(error.contains("zeros.csv"), "{error}");
}

#[test]
fn an_impossible_job_is_refused_with_its_reason_while_the_rest_runs() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "jobs.csv", "submit_s,gpus,duration_s\n0,1,10\n0,99,10\n");
    let text = success(&["sim", "run", "--cluster", "2x4 v100", "--workload", &format!("csv:{path}"), "-o", "json"]);
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let run = &report["runs"][0];
    assert_eq!((run["finished"].as_u64(), run["refused"].as_u64()), (Some(1), Some(1)));
    let reasons: Vec<&String> = run["refusals"].as_object().unwrap().keys().collect();
    assert_eq!(reasons, ["needs 99 tasks of role worker, and 8 would fit into the empty cluster"]);
}

/// Two elastic jobs, each an hour on both devices: one after the other, or together on one device each.
#[test]
fn safeguards_are_switched_on_for_a_simulation() {
    let jobs = "name,submit_s,duration_s,gpus,min_gpus,max_gpus\na,0,3600,2,1,2\nb,60,3600,2,1,2\n";
    let folder = tempfile::tempdir().unwrap();
    let workload = format!("csv:{}", file(folder.path(), "jobs.csv", jobs));
    let found = |options: &[&str]| {
        let arguments = ["sim", "run", "--policy", "sia", "--cluster", "1x2 t4", "--workload", &workload, "-o", "json"];
        let report: serde_json::Value = serde_json::from_str(&success(&[&arguments, options].concat())).unwrap();
        let run = &report["runs"][0];
        (run["makespan_s"].as_f64().unwrap(), run["restarts_per_job"].as_f64().unwrap())
    };
    assert_eq!(found(&[]), (7200.0, 0.0), "published policies stay as they are unless told");
    assert_eq!(found(&["--safeguards", "none"]), (7200.0, 0.0));
    let (makespan, restarts) = found(&["--safeguards", "minimum-first"]);
    assert!(makespan < 7200.0 && restarts > 0.0, "they share: {makespan}, {restarts}");
}

#[test]
fn a_bad_cluster_file_names_file_line_and_field() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "site.toml", "[[nodes]]\nname = \"a\"\nkind = \"v100\"\ngpus = 4\ncolour = 3\n");
    let (code, error) = failure(&["sim", "run", "--cluster", &path]);
    assert_eq!(code, 1);
    assert!(error.contains("site.toml:5:") && error.contains("colour"), "{error}");
    let path = file(folder.path(), "kind.toml", "[[nodes]]\nname = \"a\"\nkind = \"v100\"\ngpus = 4\n");
    let (_, error) = failure(&["sim", "run", "--cluster", &path]);
    assert!(error.contains("kind.toml:3: nodes[0].kind: expected a kind of GPU that is listed"), "{error}");
}

#[test]
fn completions_are_printed_for_every_shell() {
    for shell in ["bash", "zsh", "fish"] {
        let script = success(&["completions", shell]);
        assert!(script.contains("moira complete -- "), "{shell}: numbers and names are asked for");
    }
}

#[test]
fn the_demonstration_ends_with_a_comparison() {
    let text = success(&["demo", "--sim", "--seeds", "1"]);
    assert!(text.contains("JCT MEAN") && text.contains("finishes jobs soonest"), "{text}");
}
