//! Random programs against oracles that share no code with the solver: exhaustive search and a linear programming
//! library with branch and bound.

use microlp::{ComparisonOp, OptimizationDirection, Problem};
use proptest::prelude::*;
use solver::certificate::{Fault, verify};
use solver::instances::{Shape, mixed};
use solver::{Effort, Program, Proof, Solution, Warm, solve};

/// What an oracle says of the optimum: a plan of worth `found` exists, and none is worth more than `most`.
#[derive(Clone, Copy)]
struct Optimum {
    found: i64,
    most: i64,
}

/// The optimum by trying everything.
fn exhaustive(program: &Program) -> Optimum {
    fn rest(program: &Program, claim: usize, free: &mut [u32], quota: &mut [u32]) -> i64 {
        let Some(menu) = program.claims.get(claim) else { return 0 };
        let mut best = rest(program, claim + 1, free, quota);
        for choice in &menu.choices {
            let kind = choice.kind as usize;
            let allowed = menu.tenant.map_or(u32::MAX, |tenant| quota[tenant as usize]);
            if choice.units <= free[kind].min(allowed) {
                free[kind] -= choice.units;
                menu.tenant.inspect(|tenant| quota[*tenant as usize] -= choice.units);
                best = best.max(choice.worth + rest(program, claim + 1, free, quota));
                free[kind] += choice.units;
                menu.tenant.inspect(|tenant| quota[*tenant as usize] += choice.units);
            }
        }
        best
    }
    let optimum = rest(program, 0, &mut program.capacities.clone(), &mut program.quotas.clone());
    Optimum { found: optimum, most: optimum }
}

/// The optimum by branch and bound on the linear relaxation. The library's variables are whole, and its rows kept, up to
/// 1e-7 each, so what it found is counted again in whole choices, and the most lies a little above its objective.
fn by_linear_programming(program: &Program) -> Optimum {
    let mut problem = Problem::new(OptimizationDirection::Maximize);
    let mut kinds = vec![Vec::new(); program.capacities.len()];
    let mut tenants = vec![Vec::new(); program.quotas.len()];
    let (mut choices, mut menus) = (Vec::new(), Vec::new());
    for menu in &program.claims {
        let mut row = Vec::new();
        for choice in &menu.choices {
            let variable = problem.add_binary_var(choice.worth as f64);
            choices.push((variable, choice));
            row.push((variable, 1.0));
            kinds[choice.kind as usize].push((variable, f64::from(choice.units)));
            if let Some(tenant) = menu.tenant {
                tenants[tenant as usize].push((variable, f64::from(choice.units)));
            }
        }
        menus.push(row);
    }
    let limits = program.capacities.iter().chain(&program.quotas).map(|limit| f64::from(*limit));
    let limits = std::iter::repeat_n(1.0, menus.len()).chain(limits);
    let rows: Vec<_> = menus.into_iter().chain(kinds).chain(tenants).zip(limits).collect();
    for (row, limit) in &rows {
        problem.add_constraint(row, ComparisonOp::Le, *limit);
    }
    let solution = problem.solve().expect("giving nothing is feasible").into_solution().expect("no limit was set");
    let is_taken = |variable| solution[variable] > 0.5;
    for (row, limit) in &rows {
        let taken: f64 = row.iter().filter(|(variable, _)| is_taken(*variable)).map(|(_, units)| units).sum();
        assert!(taken <= *limit, "the library's choices do not fit");
    }
    let found = choices.iter().filter(|(variable, _)| is_taken(*variable)).map(|(_, choice)| choice.worth).sum();
    Optimum { found, most: (solution.objective() * (1.0 + 1e-6)).ceil() as i64 }
}

/// Everything that is promised, against a known optimum.
fn check(program: &Program, solution: &Solution, optimum: Optimum) {
    let Optimum { found, most } = optimum;
    let certificate = &solution.certificate;
    verify(program, solution).unwrap();
    assert!(solution.worth <= most, "{} of at most {most}: {certificate:?}", solution.worth);
    assert!(found <= certificate.bound, "{found} was found: {certificate:?}");
    if certificate.proof != Proof::None {
        assert!(found <= solution.worth, "{} is not the optimum, {found} was found: {certificate:?}", solution.worth);
    }
    let true_gap = if found == 0 { 0.0 } else { (found - solution.worth) as f64 / found as f64 };
    assert!(true_gap <= solution.gap() + 1e-12, "{true_gap} and {}: {certificate:?}", solution.gap());
}

const TINY: Shape = Shape { claims: 6, choices: 4, kinds: 6, tenants: 3, capacity: 9, units: 5 };
const SMALL: Shape = Shape { claims: 25, choices: 8, kinds: 4, tenants: 3, capacity: 40, units: 12 };
const LARGE: Shape = Shape { claims: 120, choices: 20, kinds: 6, tenants: 5, capacity: 200, units: 30 };

fn cases(usual: u32) -> u32 {
    let asked = std::env::var("MOIRA_PROPERTY_CASES").ok();
    asked.map_or(usual, |cases| cases.parse::<u32>().expect("MOIRA_PROPERTY_CASES is a number").max(usual))
}

#[test]
fn what_the_library_rounds_is_not_held_against_the_solver() {
    // The library's objective is 302,972,509.8 here, of a plan that is worth 302,972,500.
    let program = mixed(12_117_375_747_419_815_175, SMALL);
    check(&program, &solve(&program, Effort::default(), &Warm::default()), by_linear_programming(&program));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases(1500)) })]

    #[test]
    fn tiny_programs_are_solved_to_the_optimum_and_proven(seed: u64) {
        let program = mixed(seed, TINY);
        let solution = solve(&program, Effort::default(), &Warm::default());
        check(&program, &solution, exhaustive(&program));
        prop_assert!(solution.certificate.proof != Proof::None);
    }

    #[test]
    fn with_little_effort_the_gap_is_honest(seed: u64) {
        let program = mixed(seed, TINY);
        let optimum = exhaustive(&program);
        for states in [0, 1, 5] {
            let effort = Effort { states, cells: states * 100, evaluations: 1 + states as u32, gap_ppm: 0 };
            check(&program, &solve(&program, effort, &Warm::default()), optimum);
        }
    }

    #[test]
    fn a_warm_start_from_any_other_program_does_no_harm(seed: u64) {
        let other = solve(&mixed(seed ^ 0xFFFF, TINY), Effort::default(), &Warm::default());
        let program = mixed(seed, TINY);
        let solution = solve(&program, Effort::default(), &other.warm);
        check(&program, &solution, exhaustive(&program));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases(150)) })]

    #[test]
    fn small_programs_agree_with_linear_programming(seed: u64) {
        let program = mixed(seed, SMALL);
        let optimum = by_linear_programming(&program);
        check(&program, &solve(&program, Effort::default(), &Warm::default()), optimum);
        check(&program, &solve(&program, Effort::quick(), &Warm::default()), optimum);
    }

    #[test]
    fn the_same_arguments_give_the_same_solution(seed: u64) {
        let program = mixed(seed, LARGE);
        let first = solve(&program, Effort::quick(), &Warm::default());
        prop_assert_eq!(&first, &solve(&program, Effort::quick(), &Warm::default()));
        prop_assert_eq!(solve(&program, Effort::quick(), &first.warm), solve(&program, Effort::quick(), &first.warm));
    }

    #[test]
    fn more_effort_never_gives_less(seed: u64) {
        let program = mixed(seed, LARGE);
        let little = solve(&program, Effort { states: 0, cells: 0, ..Effort::quick() }, &Warm::default());
        let much = solve(&program, Effort { states: 20_000, gap_ppm: 0, ..Effort::quick() }, &Warm::default());
        verify(&program, &little).unwrap();
        verify(&program, &much).unwrap();
        prop_assert!(little.worth <= much.worth && much.certificate.bound <= little.certificate.bound);
        prop_assert!(much.worth <= little.certificate.bound && little.worth <= much.certificate.bound);
    }

    #[test]
    fn a_certificate_that_was_tampered_with_is_refused(seed: u64) {
        let program = mixed(seed, SMALL);
        let solution = solve(&program, Effort::default(), &Warm::default());
        let tampered = |change: &dyn Fn(&mut Solution)| {
            let mut copy = solution.clone();
            change(&mut copy);
            verify(&program, &copy)
        };
        let overstated = tampered(&|copy| copy.worth += 1);
        prop_assert!(matches!(overstated, Err(Fault::WrongWorth { .. })), "{:?}", overstated);
        let lowered = tampered(&|copy| copy.certificate.price_bound -= 1);
        prop_assert!(matches!(lowered, Err(Fault::WrongBound { .. })), "{:?}", lowered);
        let contradicted = tampered(&|copy| copy.certificate.bound = copy.worth - 1);
        prop_assert!(matches!(contradicted, Err(Fault::Contradiction { .. })), "{:?}", contradicted);
        for kind in 0..program.capacities.len() {
            let changed = tampered(&|copy| copy.certificate.prices[kind] /= 2);
            if let Ok(gap) = changed {
                prop_assert_eq!(gap.price_bound, solution.certificate.price_bound, "still what the prices give");
            }
        }
        let taken = program.claims.iter().zip(&solution.chosen);
        let taken = taken.filter_map(|(menu, chosen)| chosen.map(|index| menu.choices[index as usize]));
        if let Some(choice) = taken.max_by_key(|choice| choice.units).filter(|choice| choice.units > 0) {
            let mut smaller = program.clone();
            smaller.capacities[choice.kind as usize] = choice.units - 1;
            let refused = verify(&smaller, &solution);
            prop_assert!(matches!(refused, Err(Fault::OverCapacity { .. })), "{:?}", refused);
        }
    }
}
