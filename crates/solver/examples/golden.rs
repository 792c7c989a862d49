//! Times and counts of work on recorded programs of the Sia authors' scheduler:
//! `cargo run --release -p solver --example golden -- FILE...`, files as `golden_saturn1.ilp.jsonl` or `hard_32x.json`.
//! Whether the objectives are right is checked by `cargo xtask data-checks`.

use std::collections::BTreeMap;

use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;
use solver::{Choice, Effort, Menu, Program, Warm, certificate, solve};

#[derive(Deserialize)]
struct Recorded {
    round: u32,
    jobs: Vec<String>,
    configs: Vec<(String, u32, u32)>,
    capacity: BTreeMap<String, u32>,
    p: f64,
    lambda_n: f64,
    goodput_norm: Vec<Vec<f32>>,
    restart_factor: Vec<f32>,
    prev_config: Vec<Option<usize>>,
    pinned: Vec<String>,
}

fn main() {
    let mut worst: f64 = 0.0;
    for path in std::env::args().skip(1) {
        let text = std::fs::read_to_string(&path).expect("a file that can be read");
        let programs = serde_json::Deserializer::from_str(&text).into_iter::<Recorded>();
        for recorded in programs {
            let recorded = recorded.expect("a recorded program");
            for rounded in [true, false] {
                worst = worst.max(measure(&recorded, rounded));
            }
        }
    }
    say(&format!("worst: {worst:.2} ms"));
}

fn measure(recorded: &Recorded, rounded: bool) -> f64 {
    let program = program(recorded, rounded);
    let before = cpu_ms();
    let solution = solve(&program, Effort::default(), &Warm::default());
    let ms = cpu_ms() - before;
    certificate::verify(&program, &solution).expect("a certificate that holds");
    let (claims, round) = (program.claims.len(), recorded.round);
    let certificate = &solution.certificate;
    say(&format!(
        "round {round:4}: {claims:4} claims, {}: {ms:7.2} ms, {:?}, {} evaluations, {} states",
        if rounded { "two decimals" } else { "millionths  " },
        certificate.proof,
        certificate.work.evaluations,
        certificate.work.states
    ));
    ms
}

/// Worth of a choice: λ less its cost, in hundredths, or in millionths if costs are not rounded. Pins are taken out.
fn program(recorded: &Recorded, rounded: bool) -> Program {
    let kinds: Vec<&String> = recorded.capacity.keys().collect();
    let mut capacities: Vec<u32> = recorded.capacity.values().copied().collect();
    let kind_of = |name: &String| kinds.iter().position(|kind| *kind == name).expect("a kind with a capacity");
    let mut claims = Vec::new();
    for (job, row) in recorded.goodput_norm.iter().enumerate() {
        let held = recorded.prev_config[job];
        if recorded.pinned.contains(&recorded.jobs[job]) {
            let (kind, _, units) = &recorded.configs[held.expect("who is pinned holds something")];
            capacities[kind_of(kind)] -= units;
            continue;
        }
        let choices = row.iter().enumerate().map(|(config, goodput)| {
            let moves = held.is_some_and(|held| held != config);
            let value = if moves { goodput * recorded.restart_factor[job] } else { *goodput };
            let cost = f64::from(value).powf(recorded.p).min(3000.0);
            let unit = if rounded { 100.0 } else { 1e6 };
            let worth = (recorded.lambda_n * unit).round() - (cost * unit).round();
            let (kind, _, units) = &recorded.configs[config];
            Choice { kind: kind_of(kind) as u32, units: *units, worth: worth as i64 }
        });
        claims.push(Menu { tenant: None, choices: choices.collect() });
    }
    Program { capacities, quotas: Vec::new(), claims }
}

/// CPU time of this process.
fn cpu_ms() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 * 1e3 + now.tv_nsec as f64 / 1e6
}

#[allow(clippy::print_stdout, reason = "it is what the example is for")]
fn say(line: &str) {
    println!("{line}");
}
