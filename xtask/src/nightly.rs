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
        Some(data) => data_checks::run(data),
        None => {
            say("no data checks: no --data DIR");
            Ok(())
        }
    }
}

/// The version whose data directories and supervisors must be understood.
const VERSION_BEFORE: &str = "4f0c295";
const SOAK_MINUTES: u32 = 15;

/// The tests of the service that take a binary of an earlier version, or long.
fn run_the_service(root: &Path) -> Result<()> {
    let old = build_version_before(root)?;
    say(&format!("the service after {VERSION_BEFORE}, and for {SOAK_MINUTES} minutes under load"));
    let mut tests = Command::new(env!("CARGO"));
    tests.current_dir(root).args(["test", "--package", "moira", "--test", "service", "--"]);
    tests.args(["--nocapture", "journal::", "soak::"]);
    tests.env("MOIRA_OLD_BINARY", old).env("MOIRA_SOAK_MINUTES", SOAK_MINUTES.to_string());
    ensure!(tests.status().context("cannot run the tests")?.success(), "the service does not hold");
    Ok(())
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
