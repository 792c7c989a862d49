//! `moira trace`, as scripts use it.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn moira(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_moira")).args(arguments).output().expect("the binary runs")
}

#[track_caller]
fn success(arguments: &[&str]) -> String {
    let output = moira(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("output is text")
}

/// The one line of an error, and its exit code.
#[track_caller]
fn failure(arguments: &[&str]) -> (i32, String) {
    let output = moira(arguments);
    let text = String::from_utf8(output.stderr).expect("errors are text");
    assert_eq!(text.lines().count(), 1, "one line: {text}");
    assert!(!text.contains("panicked"), "{text}");
    (output.status.code().expect("it exits"), text.trim_end().trim_start_matches("error: ").to_string())
}

fn path(folder: &Path, name: &str) -> String {
    folder.join(name).display().to_string()
}

#[test]
fn the_same_seed_gives_the_same_bytes_on_standard_output_and_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = path(folder.path(), "jobs.csv");
    for like in ["philly", "helios-venus", "pai", "acme"] {
        let base =
            ["trace", "generate", "--like", like, "--jobs", "300", "--gpus", "100", "--load", "0.7", "--seed", "5"];
        let text = success(&base);
        assert_eq!(text, success(&base));
        assert_eq!(text.lines().count(), 301, "{like}");
        assert!(success(&[&base[..], &["--output", &file]].concat()).starts_with("300 jobs written to"));
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
        let other = [&base[..11], &["6"]].concat();
        assert_ne!(text, success(&other), "{like}");
    }
}

#[test]
fn a_generated_table_can_be_simulated_and_so_can_the_generator_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = path(folder.path(), "jobs.csv.gz");
    success(&["trace", "generate", "--like", "philly", "--jobs", "200", "--gpus", "64", "--output", &file]);
    let cluster = ["sim", "run", "--policy", "fifo", "--cluster", "8x8 v100", "-o", "json", "--workload"];
    for workload in [format!("csv:{file}"), "like-philly:jobs=200,load=0.8".into()] {
        let report: serde_json::Value = serde_json::from_str(&success(&[&cluster[..], &[&workload]].concat())).unwrap();
        assert_eq!(report["runs"][0]["finished"], 200, "{workload}");
    }
}

#[test]
fn two_workloads_side_by_side_have_a_distance_for_each_marginal() {
    let arguments = ["trace", "inspect", "like-philly:jobs=2000", "--cluster", "philly"];
    let alone: serde_json::Value = serde_json::from_str(&success(&[&arguments[..], &["-o", "json"]].concat())).unwrap();
    assert_eq!(alone["schema"], "moira.trace/1");
    assert_eq!(alone["workload"]["jobs"], 2000);
    assert_eq!(alone["workload"]["arrivals"]["hour_of_day"].as_array().unwrap().len(), 24);
    assert!((alone["workload"]["offered"]["load"].as_f64().unwrap() - 0.8).abs() < 0.01);
    assert!(alone["distances"].is_null());
    assert!(!alone["workload"]["assumptions"].as_array().unwrap().is_empty());

    let both = [&arguments[..], &["--against", "like-philly:jobs=2000", "-o", "json"]].concat();
    let both: serde_json::Value = serde_json::from_str(&success(&both)).unwrap();
    for field in ["durations", "gpus", "gaps", "gaps_over_median"] {
        assert_eq!(both["distances"][field], 0.0, "{field}");
    }
    assert!(both["distances"]["daily_profile_correlation"].as_f64().unwrap() > 0.999);

    let table = success(&["trace", "inspect", "steady:jobs=500", "--against", "demo"]);
    for word in ["DISTANCE", "KS 0.", "run time p75/p90/p99", "size 8 GPUs", "assumed (demo)"] {
        assert!(table.contains(word), "{word} in {table}");
    }
}

#[test]
fn an_inspection_is_a_page_that_stands_alone_and_says_how_it_was_made() {
    let folder = tempfile::tempdir().unwrap();
    let (jobs, page) = (path(folder.path(), "jobs.csv"), path(folder.path(), "page.html"));
    fs::write(&jobs, "submit_s,gpus,duration_s,user\n0,4,60,<b>ann\n5,8,600,</script>bob\n90,1,5,cho\n").unwrap();
    success(&["trace", "inspect", &format!("csv:{jobs}"), "--cluster", "2x4 v100", "--html", &page]);
    let alone = fs::read_to_string(&page).unwrap();
    assert!(alone.starts_with("<!DOCTYPE html>") && alone.ends_with("</html>\n"));
    let command = format!("moira trace inspect csv:{jobs} --cluster &#39;2x4 v100&#39; --seed 1 --html report.html");
    assert!(alone.contains(&command), "{command}");
    assert!(alone.contains("3 jobs of 3 users over 1m30s; half of them run for less than 1m."));
    assert!(alone.contains("assumed: `duration_s` is work") && alone.contains(r#""clusterGpus":8"#));
    assert!(!alone.contains("<b>ann") && !alone.contains("</script>bob"));
    for loading in ["src=\"http", "href=\"http", "<link", "<img", "<iframe", "@import", "url(http", "fetch(\"http"] {
        assert!(!alone.contains(loading), "{loading}");
    }

    let both = ["trace", "inspect", "like-philly:jobs=500", "--against", "like-pai:jobs=500", "--html", &page];
    success(&both);
    let beside = fs::read_to_string(&page).unwrap();
    assert!(beside.contains("<h1>Workload like-philly:jobs=500 beside like-pai:jobs=500</h1>"));
    assert!(beside.contains("Kolmogorov–Smirnov distances: run times 0.") && beside.contains("<td>KS 0."));
    success(&both);
    assert_eq!(fs::read_to_string(&page).unwrap(), beside, "the same bytes again");

    let (code, error) = failure(&["trace", "inspect", "demo", "--html", "/nowhere/page.html"]);
    assert_eq!(code, 1);
    assert!(error.starts_with("cannot write the page /nowhere/page.html: "), "{error}");
}

#[test]
fn a_page_does_not_grow_with_the_number_of_jobs() {
    let folder = tempfile::tempdir().unwrap();
    let size = |jobs: u32| {
        let page = path(folder.path(), "page.html");
        success(&["trace", "inspect", &format!("like-helios-venus:jobs={jobs}"), "--html", &page]);
        fs::metadata(&page).unwrap().len()
    };
    let (few, many) = (size(2000), size(200_000));
    assert!(many < few + 20_000 && many < 1_000_000, "{few} and {many} bytes");
}

#[test]
fn a_table_may_be_converted_onto_itself_and_a_failure_leaves_it_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let file = path(folder.path(), "jobs.csv");
    let before = "duration_s,gpus,submit_s,id,after\n5,1,0,a,\n7,2,3,b,a\n";
    fs::write(&file, before).unwrap();
    let said = success(&["trace", "convert", &format!("csv:{file}"), "--output", &file]);
    assert!(said.contains("2 jobs written to") && said.contains("lossless"), "{said}");
    let after = fs::read_to_string(&file).unwrap();
    assert_eq!(after, "submit_s,gpus,duration_s,id,name,user,after\n0,1,5,0,a,unknown,\n3,2,7,1,b,unknown,0\n");
    fs::write(&file, format!("{before}x,1,4,c,\n")).unwrap();
    assert_eq!(failure(&["trace", "convert", &format!("csv:{file}"), "--output", &file]).0, 1);
    assert_eq!(fs::read_to_string(&file).unwrap(), format!("{before}x,1,4,c,\n"));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
}

#[test]
fn a_list_of_nodes_is_a_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = path(folder.path(), "nodes.csv");
    fs::write(&nodes, "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,8,G2\nn1,32000,131072,2,T4\n").unwrap();
    let said = success(&["trace", "inspect", "steady:jobs=50", "--cluster", &format!("openb:{nodes}")]);
    assert!(said.contains("of 10 GPUs"), "{said}");
}

#[test]
fn a_converted_workload_is_the_same_when_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let source = path(folder.path(), "philly.csv");
    fs::write(&source, "job_id,submit_time,arrival_s,num_gpus,duration_s,vc\n1,2017-08-18 01:30:43,60,8,3600,6c71a0\n2,2017-08-18 01:29:43,0,1,5,\n")
        .unwrap();
    let target = path(folder.path(), "ours.csv");
    let said = success(&["trace", "convert", &format!("philly:{source}"), "--output", &target]);
    assert!(said.starts_with("2 jobs written to") && said.contains("lossless"), "{said}");
    assert!(fs::read_to_string(&target).unwrap().starts_with("submit_s,gpus,duration_s"));
    let packed = path(folder.path(), "demo.csv.gz");
    let said = success(&["trace", "convert", "demo", "--output", &packed]);
    assert!(said.contains("lossless"), "{said}");
}

#[test]
fn samples_are_taken_as_the_papers_take_them() {
    let folder = tempfile::tempdir().unwrap();
    let file = path(folder.path(), "part.csv");
    let sample = |arguments: &[&str]| {
        let base = ["trace", "sample", "like-helios-venus:jobs=5000", "--cluster", "133x8 v100", "--output", &file];
        let said = success(&[&base[..], arguments].concat());
        let rows = fs::read_to_string(&file).unwrap().lines().count() - 1;
        (rows, said)
    };
    let pollux = ["--fold-day", "--min-duration", "60", "--max-gpu-hours", "1000", "--jobs", "160"];
    let (rows, said) = sample(&pollux);
    assert_eq!(rows, 160);
    assert!(said.contains("all days folded into one, from 2h to 10h"), "{said}");
    assert_eq!(sample(&["--busiest", "8h", "--rate", "20"]).0, 160);
    let (window, said) = sample(&["--window", "1d..3d"]);
    assert!(window > 0 && said.contains("from 1d to 3d"), "{said}");
    assert_eq!(sample(&["--window", "1d..3d", "--rate", "1000", "--rate-by", "compress"]).0, window);
    assert!(sample(&["--thin", "0.1"]).0 < 700);
    let first = fs::read(&file).unwrap();
    sample(&["--thin", "0.1"]);
    assert_eq!(fs::read(&file).unwrap(), first);
}

#[test]
fn what_is_asked_for_wrongly_exits_with_2_and_one_line() {
    let generate = |arguments: &[&str]| failure(&[&["trace", "generate"], arguments].concat());
    let known = "(known: philly, helios-venus, pai, acme)";
    assert_eq!(
        generate(&["--like", "phily"]),
        (2, format!("--like: no figures for a workload like `phily`; did you mean `philly`? {known}"))
    );
    assert_eq!(
        generate(&["--like", "philly", "--load", "-0.5"]),
        (2, "workload like-philly: expected a load from 0.001 to 1000, found -0.5".into())
    );
    assert_eq!(generate(&["--like", "philly", "--jobs", "0"]).0, 2);
    assert_eq!(generate(&["--like", "philly", "--gpus", "0"]).0, 2);
    assert_eq!(generate(&["--like", "philly", "--load", "nan"]).0, 2);
    assert_eq!(failure(&["trace", "inspect", "like-mars"]).0, 2);

    let sample = |arguments: &[&str]| {
        failure(&[&["trace", "sample", "steady:jobs=100", "--output", "/tmp/never-written.csv"], arguments].concat())
    };
    assert_eq!(sample(&["--window", "8h"]), (2, "--window: expected a window like 0..8h, found 8h".into()));
    assert_eq!(
        sample(&["--window", "2h..1h"]),
        (2, "expected a window that ends after it starts, found 2h..1h".into())
    );
    assert_eq!(sample(&["--busiest", "soon"]).0, 2);
    assert_eq!(sample(&["--thin", "1.5"]).0, 2);
    assert_eq!(sample(&["--thin", "-0.1"]).0, 2);
    assert_eq!(sample(&["--rate", "-3"]).0, 2);
    assert_eq!(sample(&["--jobs", "0"]).0, 2);
    assert_eq!(sample(&["--window", "0..1h", "--busiest", "8h"]).0, 2);
    assert!(!Path::new("/tmp/never-written.csv").exists());
}

#[test]
fn what_cannot_be_done_exits_with_1_and_one_line() {
    let (code, error) =
        failure(&["trace", "generate", "--like", "pai", "--jobs", "5", "--output", "/nowhere/jobs.csv"]);
    assert_eq!(code, 1);
    assert!(error.starts_with("cannot write /nowhere/jobs.csv: No such file"), "{error}");
    let sample = ["trace", "sample", "steady:jobs=100", "--output", "/tmp/never-written.csv"];
    let (code, error) = failure(&[&sample[..], &["--window", "4000d..4001d"]].concat());
    assert_eq!(code, 1);
    assert!(error.contains("expected jobs in the part asked for, found none"), "{error}");
    let (code, error) = failure(&[&sample[..], &["--jobs", "101"]].concat());
    assert_eq!((code, error.contains("expected at least 101 jobs to choose from, found 100")), (1, true), "{error}");
    assert_eq!(failure(&["trace", "convert", "csv:/nowhere.csv", "--output", "/tmp/never-written.csv"]).0, 1);
    assert!(!Path::new("/tmp/never-written.csv").exists());
}
