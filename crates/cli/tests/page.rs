//! The files a comparison leaves behind, by the whole binary.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn moira(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_moira")).args(arguments).output().expect("the binary runs")
}

/// Compares two policies on a small cluster with these further arguments.
#[track_caller]
fn compare(arguments: &[&str]) {
    let small = ["sim", "compare", "--cluster", "2x4 v100", "--policy", "fifo", "--policy", "las", "--seeds", "1..2"];
    let output = moira(&[&small[..], arguments].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).expect("the file was written")
}

#[test]
fn a_page_stands_alone_and_says_how_it_was_made() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("page.html");
    compare(&["--workload", "steady:jobs=40,load=0.9", "--html", path.to_str().unwrap()]);
    let page = text(&path);
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
    let command = "moira sim compare --policy fifo --policy las --cluster &#39;2x4 v100&#39; \
                   --workload steady:jobs=40,load=0.9 --seeds 1..2 --html report.html";
    assert!(page.contains(command));
    assert!(page.contains("default-src &#39;none&#39;") || page.contains("default-src 'none'"));
    // What a browser would load; addresses in comments and names of XML are none of these.
    for loading in ["src=\"http", "href=\"http", "<link", "<img", "<iframe", "@import", "url(http", "fetch(\"http"] {
        assert!(!page.contains(loading), "{loading}");
    }
    assert!(page.len() < 3_000_000, "{} bytes", page.len());
}

#[test]
fn the_same_comparison_gives_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let page = |name: &str, threads: &str| {
        let path = folder.path().join(name);
        compare(&["--workload", "steady:jobs=40", "--threads", threads, "--html", path.to_str().unwrap()]);
        text(&path)
    };
    assert!(page("one.html", "1") == page("two.html", "3"), "the pages differ");
}

#[test]
fn names_in_a_workload_do_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let (jobs, path) = (folder.path().join("jobs.csv"), folder.path().join("page.html"));
    let rows =
        "submit_s,gpus,duration_s,name,user\n0,4,60,<script>alert(1)</script>,\"</script><b>ann\"\n5,8,60,b,bob\n";
    fs::write(&jobs, rows).unwrap();
    compare(&["--workload", &format!("csv:{}", jobs.display()), "--html", path.to_str().unwrap()]);
    let page = text(&path);
    assert!(!page.contains("<script>alert") && !page.contains("<b>ann"));
    assert!(page.contains(r"\u003cscript\u003ealert(1)"));
}

#[test]
fn tables_have_a_line_for_each_run_job_and_stretch_and_a_dictionary() {
    let folder = tempfile::tempdir().unwrap();
    let tables = folder.path().join("new/tables");
    compare(&["--workload", "steady:jobs=40", "--csv", tables.to_str().unwrap()]);
    assert_eq!(text(&tables.join("runs.csv")).lines().count(), 1 + 2 * 2);
    let jobs = text(&tables.join("jobs.csv"));
    assert_eq!(jobs.lines().count(), 1 + 2 * 2 * 40);
    let series = text(&tables.join("series.csv"));
    assert!(series.lines().any(|line| line.starts_with("las,2,v100,")));
    let dictionary = text(&tables.join("README.md"));
    for table in [&jobs, &series] {
        for name in table.lines().next().unwrap().split(',') {
            assert!(dictionary.contains(&format!("| `{name}` |")), "{name}");
        }
    }
}

#[test]
fn a_page_that_cannot_be_written_is_a_failure_of_one_line() {
    let arguments = ["sim", "compare", "--policy", "fifo", "--seeds", "1", "--workload", "steady:jobs=5", "--html"];
    let output = moira(&[&arguments[..], &["/nowhere/page.html"]].concat());
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("error: cannot write the page /nowhere/page.html: "), "{said}");
}

#[test]
fn the_demonstration_has_a_page_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("demo.html");
    let output = moira(&["demo", "--sim", "--seeds", "1", "--html", path.to_str().unwrap()]);
    assert!(output.status.success());
    assert!(text(&path).contains("moira demo --sim --seeds 1 --html report.html"));
}
