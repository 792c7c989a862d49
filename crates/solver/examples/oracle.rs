//! Random programs with our answers, one JSON object per line, for another solver to judge (`.ci/solver_oracle.py`):
//! `cargo run --release -p solver --example oracle -- COUNT`.

use serde_json::json;
use solver::instances::{Dice, Shape, elastic, mixed, stepped, with_tenants};
use solver::{Effort, Program, Warm, certificate, solve};

const SHAPE: Shape = Shape { claims: 200, choices: 60, kinds: 4, tenants: 12, capacity: 400, units: 40 };

fn main() {
    let count = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1000);
    for seed in 0..count {
        let program = program(seed);
        let effort = if seed % 5 == 4 { Effort::quick() } else { Effort { states: 300_000, ..Effort::default() } };
        let solution = solve(&program, effort, &Warm::default());
        certificate::verify(&program, &solution).expect("a certificate that holds");
        let menu = |menu: &solver::Menu| {
            let choices: Vec<_> = menu.choices.iter().map(|choice| (choice.kind, choice.units, choice.worth)).collect();
            json!({ "tenant": menu.tenant, "choices": choices })
        };
        let line = json!({
            "seed": seed,
            "capacities": program.capacities,
            "quotas": program.quotas,
            "claims": program.claims.iter().map(menu).collect::<Vec<_>>(),
            "worth": solution.worth,
            "bound": solution.certificate.bound,
            "proof": format!("{:?}", solution.certificate.proof),
        });
        say(&line.to_string());
    }
}

/// A third of them nasty, the others like what a scheduler asks: of many sizes and of few, half of them with tenants.
fn program(seed: u64) -> Program {
    let mut dice = Dice::seeded(seed);
    let (claims, kinds) = (1 + dice.below(200).min(dice.below(200)), 1 + seed / 3 % 4);
    let generate = match seed % 3 {
        0 => return mixed(seed, SHAPE),
        1 => elastic,
        _ => stepped,
    };
    let p = if seed % 8 < 5 { -0.5 } else { 1.0 };
    let program = generate(seed, claims as usize, (claims * 2 + 8) as u32, kinds as u32, p);
    if seed % 16 < 8 { with_tenants(program, seed, 1 + (seed % 10) as u32, 0.8) } else { program }
}

#[allow(clippy::print_stdout, reason = "it is what the example is for")]
fn say(line: &str) {
    println!("{line}");
}
