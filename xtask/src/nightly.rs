//! The long hunts, too long for every change.

use std::hash::{BuildHasher, RandomState};
use std::path::Path;
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
    match data {
        Some(data) => data_checks::run(data),
        None => {
            say("no data checks: no --data DIR");
            Ok(())
        }
    }
}
