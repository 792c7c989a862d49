//! The multiple-choice knapsack with a few capacity rows: every claim has a menu of choices, takes at most one of them,
//! and what is taken together fits the GPUs of each kind and the quota of each tenant. Worth is maximised, with a proof
//! or an honest gap.
//!
//! The crate does not know what a choice means: no jobs, no goodput, no placement. Whoever asks turns those into worths
//! in fixed point, takes what is pinned out of the capacities, and reads the answer back by index.
//!
//! What is promised of an answer:
//! - It is feasible, and [`Certificate::bound`] is never below the optimum; `worth == bound` is a proof of optimality.
//! - [`Certificate::price_bound`] follows from the prices alone and can be checked by anyone; [`certificate::verify`]
//!   does, in integers, with code of its own. A bound found by search can only be found again.
//! - It is a function of the program, the effort and the warm start: no clock, no chance, no order of maps. Effort is
//!   counted, never timed.
//!
//! Ties: of equally good selections the first one found in a fixed order stays, and that order depends on nothing but
//! the arguments. Which one it is says nothing about the claims; compare worths, not selections.

pub mod certificate;
pub mod genetic;
pub mod instances;
mod knapsack;

use std::fmt;

/// Claims that compete for GPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Program {
    /// Units there are of each kind.
    pub capacities: Vec<u32>,
    /// Units each tenant's claims may take together, of whatever kind.
    pub quotas: Vec<u32>,
    /// At most one choice is taken of each menu.
    pub claims: Vec<Menu>,
}

/// What one claim could be given. To be given nothing is always possible and worth 0.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Menu {
    /// Whose quota the claim counts against, if anyone's.
    pub tenant: Option<u32>,
    /// In any order; several may be alike.
    pub choices: Vec<Choice>,
}

/// So many units of one kind, and what they are worth to the claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// Index into [`Program::capacities`].
    pub kind: u32,
    /// May be 0: a choice that costs nothing.
    pub units: u32,
    /// In fixed point. A choice worth 0 or less is never taken.
    pub worth: i64,
}

/// The most that all claims together may be worth, each at its best choice: 70 million in millionths. Leaves room for
/// the price unit.
pub const WORTH_LIMIT: i64 = 1 << 46;

/// Prices are counted in this part of a unit of worth.
pub const PRICE_UNIT: u64 = 1 << 16;

/// How much work may be done, as counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    /// States the search may keep, all stages together; a state costs a fraction of a microsecond. With 0 the answer is
    /// what one repair at the prices gives.
    pub states: u64,
    /// Evaluations of the dual function, per descent.
    pub evaluations: u32,
    /// Cells of the tables that keep tenants' quotas inside the dual, all evaluations together. With 0 quotas are priced.
    pub cells: u64,
    /// Work ends once bound and worth are this close, in millionths of the bound. 0 asks for a proof.
    pub gap_ppm: u32,
}

impl Default for Effort {
    /// A proof, where one is in reach of a search of about a second.
    fn default() -> Self {
        Self { states: 3_000_000, evaluations: 300, cells: 100_000_000, gap_ppm: 0 }
    }
}

impl Effort {
    /// A good answer at once: done at one part in ten thousand, else after a short search.
    pub fn quick() -> Self {
        Self { states: 50_000, evaluations: 120, cells: 20_000_000, gap_ppm: 100 }
    }
}

/// What helps the next round: the prices this one ended with. Empty by default.
///
/// A warm start saves work and may change which of several equally good selections is found; it never changes what is
/// promised of an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Warm {
    prices: Vec<u64>,
}

/// What to give each claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Solution {
    /// For each claim the index of its choice, or nothing.
    pub chosen: Vec<Option<u32>>,
    /// What the selection is worth.
    pub worth: i64,
    /// How far it can be from the best, and how that is known.
    pub certificate: Certificate,
    /// For the next round.
    pub warm: Warm,
}

impl Solution {
    /// How far the optimum can be above the worth, as a part of the bound. 0 if optimality is proven.
    pub fn gap(&self) -> f64 {
        let missing = self.certificate.bound - self.worth;
        if missing == 0 { 0.0 } else { missing as f64 / self.certificate.bound as f64 }
    }
}

/// Why no selection can be worth more than `bound`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// A price per unit of each kind, counted in [`PRICE_UNIT`]ths of a unit of worth.
    pub prices: Vec<u64>,
    /// A price per unit of each tenant's quota, in the same unit. 0 where the quota is inside.
    pub quota_prices: Vec<u64>,
    /// Tenants whose quota is not priced but kept: the bound takes the best selection within the quota at the prices of
    /// the kinds, for each such tenant by itself.
    pub quotas_inside: Vec<bool>,
    /// The bound that follows from the prices: checkable.
    pub price_bound: i64,
    /// The best bound known; at most `price_bound`. Where it is smaller, the search found it: only repeatable.
    pub bound: i64,
    /// How optimality is proven, if it is.
    pub proof: Proof,
    /// What it took.
    pub work: Work,
}

/// How optimality is proven.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// The price bound equals the worth.
    Price,
    /// The search excluded everything better.
    Search,
    /// It is not; the gap says how far the optimum can be.
    None,
}

/// Counts of work done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Choices left after dominance.
    pub choices: u64,
    /// Evaluations of the dual function.
    pub evaluations: u64,
    /// Cells of tenants' tables.
    pub cells: u64,
    /// States kept by the search.
    pub states: u64,
}

impl Program {
    /// Whether every index points at something and worths are not too large to reckon with.
    pub fn check(&self) -> Result<(), Flaw> {
        let mut total: i64 = 0;
        for (claim, menu) in self.claims.iter().enumerate() {
            if let Some(tenant) = menu.tenant.filter(|tenant| *tenant as usize >= self.quotas.len()) {
                return Err(Flaw::UnknownTenant { claim, tenant });
            }
            let mut most = 0;
            for (choice, offer) in menu.choices.iter().enumerate() {
                if offer.kind as usize >= self.capacities.len() {
                    return Err(Flaw::UnknownKind { claim, choice, kind: offer.kind });
                }
                most = most.max(offer.worth);
            }
            total = total.saturating_add(most);
        }
        if total > WORTH_LIMIT { Err(Flaw::WorthTooLarge(total)) } else { Ok(()) }
    }
}

/// What is wrong with a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// A claim of a tenant without a quota row.
    UnknownTenant { claim: usize, tenant: u32 },
    /// A choice of a kind without a capacity row.
    UnknownKind { claim: usize, choice: usize, kind: u32 },
    /// All claims together could be worth this, more than [`WORTH_LIMIT`].
    WorthTooLarge(i64),
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownTenant { claim, tenant } => write!(f, "claim {claim} is of tenant {tenant}, who has no quota"),
            Self::UnknownKind { claim, choice, kind } => {
                write!(f, "choice {choice} of claim {claim} is of kind {kind}, which has no capacity")
            }
            Self::WorthTooLarge(total) => {
                write!(f, "the claims could be worth {total} together, at most {WORTH_LIMIT} is possible")
            }
        }
    }
}

impl std::error::Error for Flaw {}

/// The best selection that `effort` finds, with its certificate.
///
/// # Panics
/// If [`Program::check`] finds a flaw.
pub fn solve(program: &Program, effort: Effort, warm: &Warm) -> Solution {
    knapsack::solve(program, effort, warm)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flaw(kind: u32, tenant: Option<u32>, worth: i64) -> String {
        let menu = Menu { tenant, choices: vec![Choice { kind, units: 1, worth }] };
        let program = Program { capacities: vec![4, 4], quotas: vec![2], claims: vec![Menu::default(), menu] };
        program.check().map_or_else(|flaw| flaw.to_string(), |()| "none".into())
    }

    #[test]
    fn a_program_without_flaws_passes() {
        assert_eq!(flaw(1, Some(0), WORTH_LIMIT), "none");
    }

    #[test]
    fn a_kind_without_capacity_is_a_flaw() {
        assert_eq!(flaw(2, None, 1), "choice 0 of claim 1 is of kind 2, which has no capacity");
    }

    #[test]
    fn a_tenant_without_quota_is_a_flaw() {
        assert_eq!(flaw(0, Some(1), 1), "claim 1 is of tenant 1, who has no quota");
    }

    #[test]
    fn worths_too_large_to_sum_up_are_a_flaw() {
        let expected = "the claims could be worth 70368744177665 together, at most 70368744177664 is possible";
        assert_eq!(flaw(0, None, WORTH_LIMIT + 1), expected);
    }

    #[test]
    fn the_largest_worths_are_reckoned_with_exactly() {
        let choices = |worth| vec![Choice { kind: 0, units: 1, worth }, Choice { kind: 0, units: 3, worth: worth + 1 }];
        let menu = |worth| Menu { tenant: Some(0), choices: choices(worth) };
        let claims = vec![menu(WORTH_LIMIT / 4), menu(WORTH_LIMIT / 8 + 5), menu(WORTH_LIMIT / 2)];
        let program = Program { capacities: vec![5], quotas: vec![5], claims };
        let solution = solve(&program, Effort::default(), &Warm::default());
        assert_eq!(solution.worth, WORTH_LIMIT / 8 * 7 + 6);
        certificate::verify(&program, &solution).unwrap();
    }
}
