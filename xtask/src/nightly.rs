//! The long hunts, too long for every change.

use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{data_checks, say};

pub(crate) fn run(root: &Path, data: Option<&Path>, cases: u32) -> Result<()> {
    let seed = RandomState::new().hash_one(cases);
    say(&format!("{cases} random cases for each property, PROPTEST_RNG_SEED={seed}"));
    let mut tests = Command::new(env!("CARGO"));
    tests.current_dir(root).args(["test", "--release", "--package", "sim", "--test", "properties"]);
    tests.args(["--package", "solver", "--test", "random"]);
    tests.env("MOIRA_PROPERTY_CASES", cases.to_string()).env("PROPTEST_RNG_SEED", seed.to_string());
    ensure!(tests.status().context("cannot run the tests")?.success(), "a property does not hold");
    run_the_service(root)?;
    match data {
        Some(data) => data_checks::run(root, data),
        None => {
            say("no data checks: no --data DIR");
            Ok(())
        }
    }
}

/// The version whose data directories and supervisors must be understood.
const VERSION_BEFORE: &str = "4f0c295";

/// Tests of the service that do more when they are told to.
struct Hunt {
    /// What their names begin with.
    tests: &'static str,
    /// A variable that tells them, and its value.
    told: Option<(&'static str, &'static str)>,
    meaning: &'static str,
}

/// They are run one after the other, since some of them measure and others keep the machine busy.
const HUNTS: [Hunt; 5] = [
    Hunt { tests: "journal::", told: None, meaning: "data directories and supervisors of the version before" },
    Hunt { tests: "crash::", told: Some(("MOIRA_CRASHES", "2000")), meaning: "2000 kills of all there is" },
    Hunt { tests: "disk::", told: Some(("MOIRA_CUTS", "200")), meaning: "200 power cuts of a file system" },
    Hunt { tests: "injected::", told: Some(("MOIRA_ALL_FAULTS", "1")), meaning: "every error at every write" },
    Hunt { tests: "soak::", told: Some(("MOIRA_SOAK_MINUTES", "15")), meaning: "15 minutes of short jobs with kills" },
];

fn run_the_service(root: &Path) -> Result<()> {
    let old = build_version_before(root)?;
    for Hunt { tests, told, meaning } in HUNTS {
        say(&format!("{tests} {meaning}"));
        let listed = tests_of_the_service(root, &["--list", tests]).output().context("cannot list the tests")?;
        ensure!(String::from_utf8_lossy(&listed.stdout).contains(": test"), "there is no test {tests} any more");
        let mut command = tests_of_the_service(root, &["--nocapture", tests]);
        // What cannot be done here is a failure and is not passed over: a night in which nothing was tried tells nothing.
        command.env("CI", "1").env("MOIRA_OLD_BINARY", &old).envs(told);
        ensure!(command.status().context("cannot run the tests")?.success(), "the service does not hold: {meaning}");
    }
    Ok(())
}

fn tests_of_the_service(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(root).args(["test", "--package", "moira", "--test", "service", "--"]).args(arguments);
    command
}

/// Builds the binary from a copy of that commit, below the target directory.
fn build_version_before(root: &Path) -> Result<PathBuf> {
    let place = root.join("target/version-before");
    let source = place.join(VERSION_BEFORE);
    if !source.exists() {
        std::fs::create_dir_all(&place).with_context(|| format!("cannot make {}", place.display()))?;
        let mut checkout = Command::new("git");
        checkout.current_dir(root).args(["worktree", "add", "--detach", "--force"]).arg(&source).arg(VERSION_BEFORE);
        ensure!(checkout.status().context("cannot run git")?.success(), "there is no commit {VERSION_BEFORE} here");
    }
    let mut build = Command::new(env!("CARGO"));
    build.current_dir(&source).args(["build", "--bin", "moira", "--target-dir"]).arg(place.join("build"));
    ensure!(build.status().context("cannot run cargo")?.success(), "{VERSION_BEFORE} cannot be built");
    Ok(place.join("build/debug/moira"))
}
