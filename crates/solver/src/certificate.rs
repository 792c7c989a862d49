//! The check of an answer, from the prices alone and in integers. Shares no code with the solver and knows nothing of
//! how the answer was found.
//!
//! For any prices π of kinds and σ of quotas, none negative, no selection is worth more than
//! B = Σ π·capacity + Σ σ·quota + Σ over claims of max(0, max over choices of worth − (π + σ)·units).
//! A tenant whose quota is inside pays no σ: its term is the best its claims can do together within the quota. All
//! worths are multiples of their greatest common divisor, so B may be rounded down to one.

use std::fmt;

use crate::{Certificate, Choice, Menu, PRICE_UNIT, Program, Proof, Solution};

/// What is certain about a solution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// What the selection is worth.
    pub worth: i64,
    /// What no selection can exceed: recomputed here.
    pub price_bound: i64,
    /// What no selection can exceed according to the search: taken on trust where it is below the price bound.
    pub claimed_bound: i64,
}

impl Gap {
    /// The gap that needs no trust, as a part of the bound.
    pub fn checked(&self) -> f64 {
        part(self.price_bound - self.worth, self.price_bound)
    }

    /// The gap as stated.
    pub fn claimed(&self) -> f64 {
        part(self.claimed_bound - self.worth, self.claimed_bound)
    }
}

fn part(missing: i64, bound: i64) -> f64 {
    if missing == 0 { 0.0 } else { missing as f64 / bound as f64 }
}

/// Why a solution is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Not one entry per claim, kind or tenant.
    WrongLength { what: &'static str, found: usize, expected: usize },
    /// A claim is given a choice it does not have, or one of no worth.
    NoSuchChoice { claim: usize, choice: u32 },
    /// More units of a kind than there are.
    OverCapacity { kind: usize, used: u64, capacity: u32 },
    /// More units for a tenant than its quota.
    OverQuota { tenant: usize, used: u64, quota: u32 },
    /// The choices are not worth what is stated.
    WrongWorth { stated: i64, found: i128 },
    /// The prices do not give the bound that is stated.
    WrongBound { stated: i64, found: i128 },
    /// The stated bounds contradict each other, the worth or the stated proof.
    Contradiction { worth: i64, bound: i64, price_bound: i64, proof: Proof },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WrongLength { what, found, expected } => write!(f, "{found} {what}, expected {expected}"),
            Self::NoSuchChoice { claim, choice } => write!(f, "claim {claim} has no choice {choice} of any worth"),
            Self::OverCapacity { kind, used, capacity } => {
                write!(f, "{used} units of kind {kind}, there are {capacity}")
            }
            Self::OverQuota { tenant, used, quota } => {
                write!(f, "{used} units for tenant {tenant}, its quota is {quota}")
            }
            Self::WrongWorth { stated, found } => write!(f, "the selection is worth {found}, not {stated}"),
            Self::WrongBound { stated, found } => write!(f, "the prices give a bound of {found}, not {stated}"),
            Self::Contradiction { worth, bound, price_bound, proof } => {
                write!(
                    f,
                    "worth {worth}, bound {bound}, price bound {price_bound} and proof {proof:?} contradict each other"
                )
            }
        }
    }
}

impl std::error::Error for Fault {}

/// Whether the selection is feasible, is worth what it says, and the bound follows from the prices.
pub fn verify(program: &Program, solution: &Solution) -> Result<Gap, Fault> {
    lengths(program, solution)?;
    feasible(program, solution)?;
    worth(program, solution)?;
    let price_bound = price_bound(program, solution)?;
    let (worth, bound, proof) = (solution.worth, solution.certificate.bound, solution.certificate.proof);
    let expected = match (worth == bound, bound == price_bound) {
        (true, true) => Proof::Price,
        (true, false) => Proof::Search,
        (false, _) => Proof::None,
    };
    if worth > bound || bound > price_bound || proof != expected {
        return Err(Fault::Contradiction { worth, bound, price_bound, proof });
    }
    Ok(Gap { worth, price_bound, claimed_bound: bound })
}

fn lengths(program: &Program, solution: &Solution) -> Result<(), Fault> {
    let certificate = &solution.certificate;
    let pairs = [
        ("choices", solution.chosen.len(), program.claims.len()),
        ("prices", certificate.prices.len(), program.capacities.len()),
        ("quota prices", certificate.quota_prices.len(), program.quotas.len()),
        ("marks of quotas inside", certificate.quotas_inside.len(), program.quotas.len()),
    ];
    match pairs.into_iter().find(|(_, found, expected)| found != expected) {
        Some((what, found, expected)) => Err(Fault::WrongLength { what, found, expected }),
        None => Ok(()),
    }
}

fn feasible(program: &Program, solution: &Solution) -> Result<(), Fault> {
    let mut used = vec![0_u64; program.capacities.len()];
    let mut held = vec![0_u64; program.quotas.len()];
    for (claim, (menu, chosen)) in program.claims.iter().zip(&solution.chosen).enumerate() {
        let Some(choice) = *chosen else { continue };
        let taken = menu.choices.get(choice as usize).filter(|taken| taken.worth > 0);
        let taken = taken.ok_or(Fault::NoSuchChoice { claim, choice })?;
        used[taken.kind as usize] += u64::from(taken.units);
        if let Some(tenant) = menu.tenant {
            held[tenant as usize] += u64::from(taken.units);
        }
    }
    for (kind, (&used, &capacity)) in used.iter().zip(&program.capacities).enumerate() {
        if used > u64::from(capacity) {
            return Err(Fault::OverCapacity { kind, used, capacity });
        }
    }
    for (tenant, (&used, &quota)) in held.iter().zip(&program.quotas).enumerate() {
        if used > u64::from(quota) {
            return Err(Fault::OverQuota { tenant, used, quota });
        }
    }
    Ok(())
}

fn worth(program: &Program, solution: &Solution) -> Result<(), Fault> {
    let taken = program.claims.iter().zip(&solution.chosen);
    let worths =
        taken.filter_map(|(menu, chosen)| chosen.map(|choice| i128::from(menu.choices[choice as usize].worth)));
    let found: i128 = worths.sum();
    if found == i128::from(solution.worth) { Ok(()) } else { Err(Fault::WrongWorth { stated: solution.worth, found }) }
}

/// B in units of worth, rounded down to a multiple of the common divisor.
fn price_bound(program: &Program, solution: &Solution) -> Result<i64, Fault> {
    let certificate = &solution.certificate;
    let paid = |rows: &[u32], prices: &[u64]| -> i128 {
        rows.iter().zip(prices).map(|(row, price)| i128::from(*row) * i128::from(*price)).sum()
    };
    let mut total = paid(&program.capacities, &certificate.prices);
    let mut within: Vec<Vec<&Menu>> = vec![Vec::new(); program.quotas.len()];
    let mut divisor = 0;
    for menu in &program.claims {
        divisor = possible(program, menu).fold(divisor, |divisor, choice| common_divisor(divisor, choice.worth));
        match menu.tenant {
            Some(tenant) if certificate.quotas_inside[tenant as usize] => within[tenant as usize].push(menu),
            Some(tenant) => total += surplus(program, certificate, menu, certificate.quota_prices[tenant as usize]),
            None => total += surplus(program, certificate, menu, 0),
        }
    }
    for (tenant, menus) in within.iter().enumerate() {
        total += match certificate.quotas_inside[tenant] {
            true => best_within(program, certificate, menus, program.quotas[tenant]),
            false => i128::from(program.quotas[tenant]) * i128::from(certificate.quota_prices[tenant]),
        };
    }
    let whole = total / i128::from(PRICE_UNIT);
    let found = whole - whole % i128::from(divisor.max(1));
    let stated = certificate.price_bound;
    if found == i128::from(stated) { Ok(stated) } else { Err(Fault::WrongBound { stated, found }) }
}

/// The choices of a menu that could ever be taken.
fn possible<'a>(program: &'a Program, menu: &'a Menu) -> impl Iterator<Item = &'a Choice> {
    let quota = menu.tenant.map_or(u32::MAX, |tenant| program.quotas[tenant as usize]);
    menu.choices
        .iter()
        .filter(move |choice| choice.worth > 0 && choice.units <= quota.min(program.capacities[choice.kind as usize]))
}

/// What a claim gains at best over the prices it pays.
fn surplus(program: &Program, certificate: &Certificate, menu: &Menu, quota_price: u64) -> i128 {
    let gains = possible(program, menu).map(|choice| {
        let price = i128::from(certificate.prices[choice.kind as usize]) + i128::from(quota_price);
        i128::from(choice.worth) * i128::from(PRICE_UNIT) - price * i128::from(choice.units)
    });
    gains.fold(0, i128::max)
}

/// What a tenant's claims gain at best together within the quota, at the prices of the kinds.
fn best_within(program: &Program, certificate: &Certificate, menus: &[&Menu], quota: u32) -> i128 {
    let most = |menu: &&Menu| possible(program, menu).map(|choice| u64::from(choice.units)).max().unwrap_or(0);
    let usable = menus.iter().map(most).sum::<u64>().min(u64::from(quota)) as usize;
    let mut best = vec![0_i128; usable + 1];
    for menu in menus {
        for held in (0..=usable).rev() {
            let fitting = possible(program, menu).filter(|choice| choice.units as usize <= held);
            let gains = fitting.map(|choice| {
                let paid = i128::from(certificate.prices[choice.kind as usize]) * i128::from(choice.units);
                best[held - choice.units as usize] + i128::from(choice.worth) * i128::from(PRICE_UNIT) - paid
            });
            best[held] = gains.fold(best[held], i128::max);
        }
    }
    best[usable]
}

fn common_divisor(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Warm, Work};

    /// Three claims for 4 units, of which two are given to the first two claims each; at a price of 4 the bound is 19.
    fn example() -> (Program, Solution) {
        let menu = |choices: &[(u32, i64)]| Menu {
            tenant: None,
            choices: choices.iter().map(|&(units, worth)| Choice { kind: 0, units, worth }).collect(),
        };
        let claims = vec![menu(&[(1, 6), (2, 10), (3, 12)]), menu(&[(1, 5), (2, 9), (4, 12)]), menu(&[(1, 4), (2, 5)])];
        let certificate = Certificate {
            prices: vec![4 * PRICE_UNIT],
            quota_prices: vec![],
            quotas_inside: vec![],
            price_bound: 19,
            bound: 19,
            proof: Proof::Price,
            work: Work::default(),
        };
        let solution = Solution { chosen: vec![Some(1), Some(1), None], worth: 19, certificate, warm: Warm::default() };
        (Program { capacities: vec![4], quotas: vec![], claims }, solution)
    }

    /// What the verifier says about the example after a change.
    fn check(change: impl FnOnce(&mut Program, &mut Solution)) -> String {
        let (mut program, mut solution) = example();
        change(&mut program, &mut solution);
        verify(&program, &solution).map_or_else(|fault| fault.to_string(), |gap| format!("gap {}", gap.checked()))
    }

    #[test]
    fn an_honest_certificate_holds() {
        assert_eq!(check(|_, _| {}), "gap 0");
    }

    #[test]
    fn lower_prices_do_not_give_the_bound() {
        let text = check(|_, solution| solution.certificate.prices[0] = 3 * PRICE_UNIT);
        assert_eq!(text, "the prices give a bound of 20, not 19");
    }

    #[test]
    fn a_worth_that_is_overstated_is_refused() {
        assert_eq!(check(|_, solution| solution.worth = 20), "the selection is worth 19, not 20");
    }

    #[test]
    fn a_selection_that_does_not_fit_is_refused() {
        assert_eq!(check(|_, solution| solution.chosen[2] = Some(0)), "5 units of kind 0, there are 4");
    }

    #[test]
    fn a_tenant_above_its_quota_is_refused() {
        let text = check(|program, solution| {
            program.quotas = vec![3];
            program.claims[..2].iter_mut().for_each(|menu| menu.tenant = Some(0));
            solution.certificate.quota_prices = vec![0];
            solution.certificate.quotas_inside = vec![false];
        });
        assert_eq!(text, "4 units for tenant 0, its quota is 3");
    }

    #[test]
    fn a_choice_that_is_not_on_the_menu_is_refused() {
        assert_eq!(check(|_, solution| solution.chosen[0] = Some(3)), "claim 0 has no choice 3 of any worth");
    }

    #[test]
    fn a_proof_that_is_not_one_is_refused() {
        let text = check(|_, solution| {
            solution.chosen[0] = Some(0);
            solution.worth = 15;
        });
        assert_eq!(text, "worth 15, bound 19, price bound 19 and proof Price contradict each other");
    }

    #[test]
    fn an_answer_to_another_program_is_refused() {
        assert_eq!(check(|program, _| program.claims.truncate(2)), "3 choices, expected 2");
    }

    #[test]
    fn a_quota_inside_takes_at_most_one_choice_of_each_claim() {
        let claims = vec![Menu {
            tenant: Some(0),
            choices: vec![Choice { kind: 0, units: 0, worth: 2 }, Choice { kind: 0, units: 0, worth: 3 }],
        }];
        let program = Program { capacities: vec![1], quotas: vec![1], claims };
        let (_, mut solution) = example();
        solution.chosen = vec![Some(1)];
        solution.worth = 3;
        solution.certificate.prices = vec![0];
        solution.certificate.quota_prices = vec![0];
        solution.certificate.quotas_inside = vec![true];
        solution.certificate.price_bound = 3;
        solution.certificate.bound = 3;
        assert_eq!(verify(&program, &solution).map(|gap| gap.price_bound), Ok(3));
    }
}
