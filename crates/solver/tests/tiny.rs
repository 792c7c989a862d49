//! Instances small enough to solve by eye.

use solver::{Choice, Effort, Menu, Program, Proof, Solution, Warm, certificate, solve};

/// Menus as text: `1→6 2→10 b1→7`, the letter being the kind, `a` if there is none. Claims of tenant 1, 2, … begin
/// with `1:`, `2:`, ….
fn program(capacities: &[u32], quotas: &[u32], menus: &[&str]) -> Program {
    let claims = menus.iter().map(|text| menu(text)).collect();
    Program { capacities: capacities.to_vec(), quotas: quotas.to_vec(), claims }
}

fn menu(text: &str) -> Menu {
    let (tenant, choices) = match text.split_once(": ") {
        Some((tenant, choices)) => (Some(tenant.parse::<u32>().unwrap() - 1), choices),
        None => (None, text),
    };
    Menu { tenant, choices: choices.split_whitespace().map(choice).collect() }
}

fn choice(text: &str) -> Choice {
    let (letter, rest) = match text.as_bytes()[0] {
        letter @ b'a'..=b'z' => (letter, &text[1..]),
        _ => (b'a', text),
    };
    let (units, worth) = rest.split_once('→').unwrap();
    Choice { kind: u32::from(letter - b'a'), units: units.parse().unwrap(), worth: worth.parse().unwrap() }
}

/// What each claim is given, as `2 – b1`.
fn given(program: &Program, solution: &Solution) -> String {
    let text = |(menu, chosen): (&Menu, &Option<u32>)| match chosen {
        None => "–".to_owned(),
        Some(index) => {
            let Choice { kind, units, .. } = menu.choices[*index as usize];
            let letter = if kind == 0 { String::new() } else { char::from(b'a' + kind as u8).to_string() };
            format!("{letter}{units}")
        }
    };
    program.claims.iter().zip(&solution.chosen).map(text).collect::<Vec<_>>().join(" ")
}

/// Solves, has the certificate checked, and expects a proof and this worth.
fn proven(program: &Program, worth: i64) -> Solution {
    let solution = solve(program, Effort::default(), &Warm::default());
    certificate::verify(program, &solution).unwrap();
    assert_eq!((solution.worth, solution.certificate.bound), (worth, worth), "{}", given(program, &solution));
    solution
}

/// Prices in units of worth.
fn prices(solution: &Solution) -> Vec<f64> {
    solution.certificate.prices.iter().map(|price| *price as f64 / solver::PRICE_UNIT as f64).collect()
}

#[track_caller]
fn near(found: &[f64], expected: &[f64]) {
    let close = found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-3);
    assert!(close && found.len() == expected.len(), "{found:?}, expected {expected:?}");
}

#[test]
fn concave_menus_are_solved_by_one_price() {
    let program = program(&[4], &[], &["1→6 2→10 3→12", "1→5 2→9 4→12", "1→4 2→5"]);
    let solution = proven(&program, 19);
    assert_eq!(solution.certificate.proof, Proof::Price);
    near(&prices(&solution), &[4.0]);
}

#[test]
fn whole_claims_leave_a_gap_that_the_search_closes() {
    let program = program(&[5], &[], &["2→10", "2→9", "3→12"]);
    let solution = proven(&program, 22);
    assert_eq!(given(&program, &solution), "2 – 3");
    assert_eq!((solution.certificate.price_bound, solution.certificate.proof), (23, Proof::Search));
    near(&prices(&solution), &[4.0]);
}

#[test]
fn two_kinds_have_two_prices() {
    let program = program(&[3, 2], &[], &["1→4 2→6 b1→7", "1→3 b1→6 b2→9", "2→5 b1→4", "1→2"]);
    let solution = proven(&program, 20);
    assert_eq!(given(&program, &solution), "b1 b1 2 1");
    assert_eq!(solution.certificate.proof, Proof::Price);
    // Several prices give the least bound; these are as good.
    let mut other = solution;
    other.certificate.prices = vec![2 * solver::PRICE_UNIT, 9 * solver::PRICE_UNIT / 2];
    certificate::verify(&program, &other).unwrap();
}

#[test]
fn claims_that_are_alike_need_no_special_case() {
    let program = program(&[7], &[], &["1→3 2→5 4→8"; 4]);
    let solution = proven(&program, 18);
    assert_eq!(solution.certificate.proof, Proof::Price);
    near(&prices(&solution), &[2.0]);
}

#[test]
fn choices_below_the_concave_hull_count() {
    let program = program(&[3], &[], &["1→4 2→5 3→8", "1→4"]);
    let solution = proven(&program, 9);
    assert_eq!(given(&program, &solution), "2 1");
    assert_eq!(solution.certificate.price_bound, 10);
    near(&prices(&solution), &[2.0]);
}

#[test]
fn a_quota_kept_inside_closes_the_gap_that_a_priced_one_leaves() {
    let program = program(&[8], &[5, 4], &["1: 3→9", "1: 3→8", "1: 1→2 3→7", "2: 2→6 4→9"]);
    let priced = solve(&program, Effort { cells: 0, states: 0, ..Effort::default() }, &Warm::default());
    assert_eq!(priced.certificate.price_bound, 21, "131/6, rounded down");
    near(&prices(&priced), &[1.5]);
    let quota_prices: Vec<f64> =
        priced.certificate.quota_prices.iter().map(|price| *price as f64 / solver::PRICE_UNIT as f64).collect();
    near(&quota_prices, &[7.0 / 6.0, 0.0]);
    certificate::verify(&program, &priced).unwrap();

    let solution = proven(&program, 20);
    assert_eq!(given(&program, &solution), "3 – 1 4");
    assert_eq!(solution.certificate.proof, Proof::Price);
    assert!(solution.certificate.quotas_inside[0]);
}

#[test]
fn two_kinds_of_large_claims_leave_two_units() {
    let program = program(&[4, 4], &[], &["3→9 b3→8", "3→8 b3→9", "3→7 b3→7", "1→2 b1→1"]);
    let solution = proven(&program, 20);
    assert_eq!(given(&program, &solution), "3 b3 – 1");
    assert_eq!(solution.certificate.price_bound, 22, "68/3, rounded down");
    near(&prices(&solution), &[7.0 / 3.0, 7.0 / 3.0]);
}

#[test]
fn equal_worths_are_proven_by_their_common_divisor() {
    let program = program(&[7], &[], &["2→100", "2→100", "2→100", "2→100", "3→100"]);
    let solution = proven(&program, 300);
    assert_eq!((solution.certificate.price_bound, solution.certificate.proof), (300, Proof::Price));
    assert_eq!(solution.certificate.work.states, 0);
    near(&prices(&solution), &[50.0]);
}

#[test]
fn nothing_to_give_and_nobody_to_take_are_solved() {
    assert_eq!(given(&program(&[], &[], &[]), &proven(&program(&[], &[], &[]), 0)), "");
    let no_room = program(&[0, 0], &[0], &["1: 1→5 b1→5", "1→3"]);
    assert_eq!(given(&no_room, &proven(&no_room, 0)), "– –");
    let no_menu = program(&[4], &[], &["", "2→3"]);
    assert_eq!(given(&no_menu, &proven(&no_menu, 3)), "– 2");
}

#[test]
fn a_choice_that_costs_no_units_is_taken_where_nothing_is_left() {
    let program = program(&[1], &[], &["0→2 1→9", "0→1 1→4"]);
    assert_eq!(given(&program, &proven(&program, 10)), "1 0");
}

#[test]
fn what_is_worth_nothing_is_never_taken() {
    let program = program(&[4], &[], &["1→0 2→-3", "1→1"]);
    assert_eq!(given(&program, &proven(&program, 1)), "– 1");
}

#[test]
fn without_a_search_the_gap_is_reported() {
    let program = program(&[5], &[], &["2→10", "2→9", "3→12"]);
    let solution = solve(&program, Effort { states: 0, ..Effort::default() }, &Warm::default());
    assert_eq!(solution.certificate.bound, 23);
    assert!(solution.worth < 23 && solution.certificate.proof == Proof::None);
    assert!((solution.gap() - (23 - solution.worth) as f64 / 23.0).abs() < 1e-12);
    certificate::verify(&program, &solution).unwrap();
}
