//! The integer programs that the Sia authors' scheduler recorded: our optimum against theirs, with proof.
//!
//! A program's cost is Σ A over the jobs that run + λ for each that does not, A = min(G′^p rounded to hundredths, 3000).
//! Worth is what a choice saves against not running, λ − A, in hundredths. Pinned jobs are a constant and take their GPUs
//! out of the capacity.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Deserialize;
use solver::{Choice, Effort, Menu, Program, Proof, Warm, certificate, solve};

use crate::data_checks::Checks;
use crate::say;

const FILES: [&str; 4] =
    ["golden_saturn1.ilp.jsonl", "scale_sia_4x.ilp.jsonl", "scale_sia_32x_tl20.ilp.jsonl", "hard_32x.json"];

/// The optimum of `hard_32x.json`, which their solver did not reach: HiGHS proves it.
const HARD: f64 = 90.33;

pub(crate) fn run(data: &Path, checks: &mut Checks) -> Result<()> {
    let (mut proven, mut programs) = (0, 0);
    let mut slowest = Duration::ZERO;
    for file in FILES {
        let path = data.join("reference/sia").join(file);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        for recorded in serde_json::Deserializer::from_str(&text).into_iter::<Recorded>() {
            let recorded = recorded.with_context(|| format!("{file} is not as expected"))?;
            let what = format!("{file}, call {}, {} jobs: cost", recorded.round, recorded.jobs.len());
            let (cost, is_proven, took) = recorded.solve().with_context(|| what.clone())?;
            slowest = slowest.max(took);
            checks.near(&what, cost, recorded.objective.unwrap_or(HARD), 1e-6);
            programs += 1;
            proven += usize::from(is_proven);
        }
    }
    checks.near("recorded programs", programs as f64, 32.0, 0.0);
    say(&format!("     slowest of the recorded programs: {:.1} ms", slowest.as_secs_f64() * 1e3));
    checks.near("recorded programs proven optimal", proven as f64, programs as f64, 0.0);
    Ok(())
}

/// One call of their policy.
#[derive(Debug, Deserialize)]
struct Recorded {
    round: u32,
    jobs: Vec<String>,
    /// Kind, nodes, GPUs.
    configs: Vec<(String, u32, u32)>,
    capacity: BTreeMap<String, u32>,
    p: f32,
    lambda_n: f64,
    /// In single precision, as theirs.
    goodput_norm: Vec<Vec<f32>>,
    restart_factor: Vec<f32>,
    prev_config: Vec<Option<usize>>,
    pinned: Vec<String>,
    objective: Option<f64>,
}

impl Recorded {
    /// The least cost we find, whether it is proven the least, and how long that took.
    fn solve(&self) -> Result<(f64, bool, Duration)> {
        let (program, pinned) = self.program()?;
        let before = Instant::now();
        let solution = solve(&program, Effort::default(), &Warm::default());
        let took = before.elapsed();
        certificate::verify(&program, &solution)?;
        let cost = pinned + self.lambda() * program.claims.len() as i64 - solution.worth;
        Ok((cost as f64 / 100.0, solution.certificate.proof != Proof::None, took))
    }

    /// λ in hundredths.
    fn lambda(&self) -> i64 {
        (self.lambda_n * 100.0).round() as i64
    }

    /// The program without the pinned jobs, and what those cost in hundredths.
    fn program(&self) -> Result<(Program, i64)> {
        let kinds: Vec<&String> = self.capacity.keys().collect();
        let mut program = Program { capacities: self.capacity.values().copied().collect(), ..Program::default() };
        let mut pinned = 0;
        for job in 0..self.jobs.len() {
            let choice = |config: usize| -> Result<Choice> {
                let (kind, _, units) = &self.configs[config];
                let kind = kinds.iter().position(|name| *name == kind).context("a configuration of an unknown kind")?;
                Ok(Choice { kind: kind as u32, units: *units, worth: self.lambda() - self.cost(job, config) })
            };
            if self.pinned.contains(&self.jobs[job]) {
                let held = self.prev_config[job].context("a pinned job that holds nothing")?;
                let held_choice = choice(held)?;
                program.capacities[held_choice.kind as usize] -= held_choice.units;
                pinned += self.cost(job, held);
            } else {
                let choices = (0..self.configs.len()).map(choice).collect::<Result<_>>()?;
                program.claims.push(Menu { tenant: None, choices });
            }
        }
        Ok((program, pinned))
    }

    /// A in hundredths.
    fn cost(&self, job: usize, config: usize) -> i64 {
        let goodput = self.goodput_norm[job][config];
        let moves = self.prev_config[job].is_some_and(|held| held != config);
        let value = if moves { goodput * self.restart_factor[job] } else { goodput };
        let hundredths = (value.powf(self.p) * 100.0).round_ties_even();
        (hundredths as i64).min(300_000)
    }
}
