//! The long hunts, too long for every change.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{data_checks, say};

pub(crate) fn run(root: &Path, data: Option<&Path>, cases: u32) -> Result<()> {
    say(&format!("{cases} random histories for each property"));
    let mut tests = Command::new(env!("CARGO"));
    tests.current_dir(root).args(["test", "--release", "--package", "sim", "--test", "properties"]);
    let status = tests.env("MOIRA_PROPERTY_CASES", cases.to_string()).status().context("cannot run the tests")?;
    ensure!(status.success(), "a property does not hold");
    match data {
        Some(data) => data_checks::run(data),
        None => {
            say("no data checks: no --data DIR");
            Ok(())
        }
    }
}
