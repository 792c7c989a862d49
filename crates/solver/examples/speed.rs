//! Times, gaps and counts of work on generated menus: `cargo run --release -p solver --example speed [SEEDS]`.

use rustix::time::{ClockId, clock_gettime};
use solver::instances::{elastic, stepped, with_tenants};
use solver::{Effort, Program, Solution, Warm, certificate, solve};

type Generator = fn(u64, usize, u32, u32, f64) -> Program;

struct Case {
    name: &'static str,
    menus: Generator,
    size: (usize, u32, u32),
    p: f64,
    tenants: u32,
    effort: Effort,
}

fn cases() -> Vec<Case> {
    let (proof, quick) = (Effort::default(), Effort::quick());
    let case = |name, menus: Generator, size, p, tenants, effort| Case { name, menus, size, p, tenants, effort };
    let (few, some, many, more) = ((20, 64, 3), (300, 2048, 3), (1000, 2048, 3), (1000, 2048, 6));
    let large = (30_000, 100_000, 6);
    vec![
        case("small, proof", elastic, few, -0.5, 0, proof),
        case("medium, proof", elastic, some, -0.5, 0, proof),
        case("elastic", elastic, many, -0.5, 0, quick),
        case("elastic, proof", elastic, many, -0.5, 0, proof),
        case("p = 1", elastic, many, 1.0, 0, quick),
        case("p = 1, proof", elastic, many, 1.0, 0, proof),
        case("stepped", stepped, many, -0.5, 0, quick),
        case("stepped, proof", stepped, many, -0.5, 0, proof),
        case("six kinds", elastic, more, -0.5, 0, quick),
        case("six kinds, proof", elastic, more, -0.5, 0, proof),
        case("10 tenants", elastic, many, -0.5, 10, quick),
        case("100 tenants", elastic, many, -0.5, 100, quick),
        case("100 tenants, p = 1", elastic, many, 1.0, 100, quick),
        case("large", elastic, large, -0.5, 0, quick),
        case("large, p = 1", elastic, large, 1.0, 0, quick),
        case("large, stepped", stepped, large, -0.5, 0, quick),
        case("large, 100 tenants", elastic, large, -0.5, 100, quick),
    ]
}

fn main() {
    let seeds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(5);
    let only = std::env::args().nth(2).unwrap_or_default();
    say("case                  seed |  cold ms    gap proof    dual  states |  warm ms    gap    dual");
    for case in cases().iter().filter(|case| case.name.contains(&only)) {
        let mut worst = (0.0_f64, 0.0_f64);
        for seed in 1..=if case.size.0 > 10_000 { seeds.min(3) } else { seeds } {
            let (ms, gap) = measure(case, seed);
            worst = (worst.0.max(ms), worst.1.max(gap));
        }
        say(&format!("{:21} worst | {:8.2} {:.4} %", case.name, worst.0, worst.1 * 100.0));
    }
}

fn measure(case: &Case, seed: u64) -> (f64, f64) {
    let (claims, gpus, kinds) = case.size;
    let mut program = (case.menus)(seed, claims, gpus, kinds, case.p);
    if case.tenants > 0 {
        program = with_tenants(program, seed, case.tenants, 0.8);
    }
    let effort = case.effort;
    let (cold, cold_ms) = timed(&program, effort, &Warm::default());
    certificate::verify(&program, &cold).expect("a certificate that holds");
    change(&mut program, case, seed);
    let (warm, warm_ms) = timed(&program, effort, &cold.warm);
    certificate::verify(&program, &warm).expect("a certificate that holds");
    let work = cold.certificate.work;
    say(&format!(
        "{:21} {seed:5} | {cold_ms:8.2} {:.4} % {:6} {:5} {:8} | {warm_ms:8.2} {:.4} % {:5}",
        case.name,
        cold.gap() * 100.0,
        format!("{:?}", cold.certificate.proof),
        work.evaluations,
        work.states,
        warm.gap() * 100.0,
        warm.certificate.work.evaluations,
    ));
    (cold_ms, cold.gap())
}

/// New menus for one claim in twenty.
fn change(program: &mut Program, case: &Case, seed: u64) {
    let (claims, gpus, kinds) = case.size;
    let fresh = (case.menus)(seed + 1000, claims, gpus, kinds, case.p);
    for (menu, new) in program.claims.iter_mut().zip(fresh.claims).step_by(20) {
        menu.choices = new.choices;
    }
}

fn timed(program: &Program, effort: Effort, warm: &Warm) -> (Solution, f64) {
    let before = cpu_ms();
    let solution = solve(program, effort, warm);
    (solution, cpu_ms() - before)
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
