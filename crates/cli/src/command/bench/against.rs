//! `--against BINARY`: the same measurement with this binary and with another, by turns, so that both meet the same
//! machine; and for every figure the medians and their ratio.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, anyhow};
use clap::{Args, ValueEnum};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Machine, print_as};
use crate::failure::Failure;
use crate::options::Output;

#[derive(Debug, Args)]
pub(super) struct Against {
    /// Measure this binary too, by turns with this one, and print the medians of both and their ratios
    #[arg(long = "against", value_name = "BINARY")]
    binary: Option<PathBuf>,
    /// How often each of the two is measured
    #[arg(long, default_value_t = 5, requires = "binary", value_parser = clap::value_parser!(u32).range(1..=1000))]
    turns: u32,
}

/// One figure of one measurement.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Figure {
    pub(super) what: String,
    pub(super) value: f64,
    pub(super) unit: String,
    pub(super) bound: Bound,
}

/// Which bounds are to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Strict {
    /// All of them
    All,
    /// Counts, and how many times as long something takes: those that hold on any machine, also on one that is not quiet
    Relative,
}

/// Within what a figure is to be; nothing of both if that does not matter.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub(super) struct Bound {
    pub(super) at_least: Option<f64>,
    pub(super) at_most: Option<f64>,
}

/// One figure of both binaries.
#[derive(Debug, PartialEq, Serialize)]
struct Ratio {
    what: String,
    unit: String,
    /// Medians over the turns.
    this: f64,
    other: f64,
    /// This binary's median over the other's; nothing if both are 0.
    ratio: Option<f64>,
    #[serde(flatten)]
    bound: Bound,
    /// Whether this binary's median is within its bound.
    holds: Option<bool>,
}

#[derive(Debug, Serialize)]
struct AgainstReport {
    schema: &'static str,
    #[serde(flatten)]
    machine: Machine,
    this: PathBuf,
    other: PathBuf,
    turns: u32,
    ratios: Vec<Ratio>,
}

impl Bound {
    /// A figure that could not be measured is within no bound.
    pub(super) fn holds(self, value: f64) -> Option<bool> {
        let least = self.at_least.map(|bound| value >= bound);
        least.or(self.at_most.map(|bound| value < bound))
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.at_least, self.at_most) {
            (Some(bound), _) => write!(f, ">= {bound}"),
            (None, Some(bound)) => write!(f, "< {bound}"),
            (None, None) => Ok(()),
        }
    }
}

/// In a table.
pub(super) fn verdict(holds: Option<bool>) -> &'static str {
    holds.map_or("", |holds| if holds { "yes" } else { "NO" })
}

impl Against {
    /// The other binary, if there is to be one.
    pub(super) fn other(&self) -> Option<&Path> {
        self.binary.as_deref()
    }

    /// Measures both by turns and prints what came of it. Bounds hold for this binary; those that are to are given.
    pub(super) fn compare(
        &self,
        other: &Path,
        output: Output,
        strict: Option<Strict>,
        mut measure: impl FnMut(&Path) -> Result<Vec<Figure>, Failure>,
    ) -> Result<(), Failure> {
        let this = this_binary()?;
        let (mut of_this, mut of_other) = (Vec::new(), Vec::new());
        for _ in 0..self.turns {
            of_this.push(measure(&this)?);
            of_other.push(measure(other)?);
        }
        let report = AgainstReport {
            schema: "moira.bench.against/1",
            machine: Machine::measured(),
            this,
            other: other.into(),
            turns: self.turns,
            ratios: ratios(&of_this, &of_other)?,
        };
        print(&report, output)?;
        let broken = report.ratios.iter().filter(|ratio| ratio.holds == Some(false));
        Strict::judge(strict, broken.map(|ratio| (&*ratio.what, &*ratio.unit)))
    }
}

impl Strict {
    /// An error if one of the bounds that do not hold is to, by the names and units of their figures.
    pub(super) fn judge<'a>(
        strict: Option<Strict>,
        broken: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Result<(), Failure> {
        let matters = |unit: &str| match strict {
            None => false,
            Some(Strict::All) => true,
            Some(Strict::Relative) => ["times", "tasks", "kills"].contains(&unit),
        };
        let broken: Vec<&str> = broken.filter(|(_, unit)| matters(unit)).map(|(what, _)| what).collect();
        match broken.as_slice() {
            [] => Ok(()),
            broken => Err(Failure::new(anyhow!("not all bounds hold: {}", broken.join("; ")))),
        }
    }
}

pub(super) fn this_binary() -> Result<PathBuf, Failure> {
    std::env::current_exe().context("cannot find this program's own file").map_err(Failure::from)
}

/// What a binary's own `bench` prints as JSON.
pub(super) fn own_report<T: DeserializeOwned>(binary: &Path, arguments: &[String]) -> Result<T, Failure> {
    let named = || format!("{} bench {}", binary.display(), arguments.join(" "));
    let output = Command::new(binary)
        .arg("bench")
        .args(arguments)
        .args([OsStr::new("--output"), OsStr::new("json")])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(named)?;
    if !output.status.success() {
        return Err(Failure::new(anyhow!("{}: {}", named(), output.status)));
    }
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("{}: what it printed is no report of ours", named()))
        .map_err(Failure::from)
}

/// Of `bench sim`, as much as is compared; other versions may print more.
#[derive(Debug, Deserialize)]
pub(super) struct SimFigures {
    runs: Vec<SimFigure>,
}

#[derive(Debug, Deserialize)]
struct SimFigure {
    policy: String,
    cluster: String,
    workload: String,
    jobs_per_cpu_s: f64,
}

impl SimFigures {
    pub(super) fn figures(self) -> Vec<Figure> {
        let figure = |run: SimFigure| Figure {
            what: format!("{}, {} on {}", run.policy, run.workload, run.cluster),
            value: run.jobs_per_cpu_s,
            unit: "jobs per CPU s".into(),
            bound: Bound::default(),
        };
        self.runs.into_iter().map(figure).collect()
    }
}

/// Of `bench policy`, as much as is compared.
#[derive(Debug, Deserialize)]
pub(super) struct PolicyFigures {
    decisions: Vec<PolicyFigure>,
}

#[derive(Debug, Deserialize)]
struct PolicyFigure {
    what: String,
    gpus: u32,
    jobs: u32,
    kinds: u16,
    median_ms: f64,
}

impl PolicyFigures {
    pub(super) fn figures(self) -> Vec<Figure> {
        let figure = |one: PolicyFigure| Figure {
            what: format!("{}, {}/{}/{}, median", one.what, one.gpus, one.jobs, one.kinds),
            value: one.median_ms,
            unit: "CPU ms".into(),
            bound: Bound::default(),
        };
        self.decisions.into_iter().map(figure).collect()
    }
}

/// In the order of this binary's figures. A figure that only one of them has cannot be compared, which is an error: two
/// tables of which lines are missing would look like a good result.
fn ratios(of_this: &[Vec<Figure>], of_other: &[Vec<Figure>]) -> Result<Vec<Ratio>, Failure> {
    let (these, mut others) = (by_name(of_this), by_name(of_other));
    let mut ratios = Vec::new();
    for figure in of_this.first().into_iter().flatten() {
        let (Some(this), Some(other)) = (these.get(&*figure.what), others.remove(&*figure.what)) else {
            return Err(Failure::new(anyhow!("only this binary has a figure `{}`", figure.what)));
        };
        let (this, other) = (median(this.clone()), median(other));
        let (what, unit) = (figure.what.clone(), figure.unit.clone());
        let ratio = (this != 0.0 || other != 0.0).then_some(this / other);
        let (bound, holds) = (figure.bound, figure.bound.holds(this));
        ratios.push(Ratio { what, unit, this, other, ratio, bound, holds });
    }
    match others.keys().next() {
        None => Ok(ratios),
        Some(what) => Err(Failure::new(anyhow!("only the other binary has a figure `{what}`"))),
    }
}

fn by_name(turns: &[Vec<Figure>]) -> BTreeMap<&str, Vec<f64>> {
    let mut values: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for figure in turns.iter().flatten() {
        values.entry(&figure.what).or_default().push(figure.value);
    }
    values
}

/// Of an even number the mean of the middle two.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

fn print(report: &AgainstReport, output: Output) -> Result<(), Failure> {
    let number = |value: f64| if value < 10.0 { format!("{value:.3}") } else { format!("{value:.1}") };
    let row = |one: &Ratio| {
        let values = [number(one.this), number(one.other)];
        let ratio = one.ratio.map_or(String::new(), |ratio| format!("{ratio:.3}"));
        let rest = vec![one.unit.clone(), ratio, one.bound.to_string(), verdict(one.holds).into()];
        [vec![one.what.clone()], values.to_vec(), rest].concat()
    };
    let columns = ["what", "this", "other", "unit", "ratio", "bound of this", "holds"];
    print_as(output, report, &report.machine, &columns, report.ratios.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(figures: &[(&str, f64)]) -> Vec<Figure> {
        let figure = |&(what, value): &(&str, f64)| Figure {
            what: what.into(),
            value,
            unit: "ms".into(),
            bound: Bound::default(),
        };
        figures.iter().map(figure).collect()
    }

    #[test]
    fn ratios_are_of_medians_and_not_of_the_turns() {
        let this = [turn(&[("page", 10.0), ("start", 3.0)]), turn(&[("page", 500.0), ("start", 1.0)])];
        let this = [this.to_vec(), vec![turn(&[("page", 12.0), ("start", 2.0)])]].concat();
        let other = [turn(&[("page", 6.0), ("start", 4.0)])];
        let found = ratios(&this, &other).expect("both have the same figures");
        let found: Vec<_> = found.iter().map(|one| (&*one.what, one.this, one.other, one.ratio)).collect();
        assert_eq!(found, [("page", 12.0, 6.0, Some(2.0)), ("start", 2.0, 4.0, Some(0.5))]);
    }

    #[test]
    fn the_median_of_this_binary_is_held_against_the_bound_of_its_figure() {
        let lost = |value| Figure {
            what: "lost".into(),
            value,
            unit: "tasks".into(),
            bound: Bound { at_most: Some(1.0), ..Bound::default() },
        };
        let found = |this: f64, other: f64| {
            let found = ratios(&[vec![lost(this)]], &[vec![lost(other)]]).expect("both have the same figures");
            (found[0].ratio, found[0].bound.to_string(), found[0].holds)
        };
        assert_eq!(found(0.0, 0.0), (None, "< 1".into(), Some(true)), "nothing over nothing is no ratio");
        assert_eq!(found(2.0, 4.0), (Some(0.5), "< 1".into(), Some(false)));
        assert_eq!(Bound { at_least: Some(0.8), ..Bound::default() }.holds(f64::NAN), Some(false));
    }

    #[test]
    fn what_is_strict_fails_by_the_bounds_that_are_to_hold() {
        let judged = |strict, broken: &[(&'static str, &'static str)]| Strict::judge(strict, broken.iter().copied());
        let (slow, lost, dear) = (("submissions", "per s"), ("lost", "tasks"), ("run and wait", "times"));
        assert!(judged(None, &[slow, lost, dear]).is_ok());
        assert!(judged(Some(Strict::All), &[]).is_ok());
        assert!(judged(Some(Strict::All), &[slow]).is_err());
        assert!(judged(Some(Strict::Relative), &[slow]).is_ok(), "another machine may be slower");
        assert!(
            judged(Some(Strict::Relative), &[("default over fifo", "ratio")]).is_ok(),
            "or busy with something else"
        );
        assert!(judged(Some(Strict::Relative), &[lost]).is_err());
        assert!(judged(Some(Strict::Relative), &[slow, dear]).is_err());
    }

    #[test]
    fn a_figure_that_one_of_them_lacks_is_an_error() {
        let (more, fewer) = ([turn(&[("page", 1.0), ("start", 1.0)])], [turn(&[("page", 1.0)])]);
        assert!(ratios(&more, &fewer).is_err());
        assert!(ratios(&fewer, &more).is_err());
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        assert_eq!(median(vec![4.0, 1.0, 3.0, 100.0]), 3.5);
        assert_eq!(median(vec![4.0]), 4.0);
        assert!(median(Vec::new()).is_nan());
    }
}
