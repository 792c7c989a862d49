//! Surpluses, losses and the bound at fixed prices, in integers: what the dual found, made exact.

use super::reduce::{Claim, Item, NOBODY, NOTHING, Reduced};
use crate::PRICE_UNIT;

/// Prices in the published unit. Surpluses are in the same unit: a part of a unit of worth.
#[derive(Debug, Clone)]
pub(super) struct Ledger<'a> {
    pub reduced: &'a Reduced,
    pub prices: Vec<i64>,
    /// By tenant; 0 for those whose quota cannot bind.
    pub quota_prices: Vec<i64>,
}

/// Worse than giving nothing to everyone: what lies below need not be told apart.
const FAR: i128 = 1 << 61;

impl<'a> Ledger<'a> {
    /// Rounds prices per unit of worth to the published unit.
    pub(super) fn new(reduced: &'a Reduced, prices: &[f64], quota_prices: &[f64]) -> Self {
        let round = |price: &f64| (price * PRICE_UNIT as f64).round().clamp(0.0, (1_u64 << 61) as f64) as i64;
        Self {
            reduced,
            prices: prices.iter().map(round).collect(),
            quota_prices: quota_prices.iter().map(round).collect(),
        }
    }

    /// σ of the claim's tenant.
    pub(super) fn quota_price(&self, claim: &Claim) -> i64 {
        if claim.tenant == NOBODY { 0 } else { self.quota_prices[claim.tenant as usize] }
    }

    /// Worth less what the units cost.
    pub(super) fn surplus(&self, item: &Item, quota_price: i64) -> i64 {
        let price = self.prices[item.kind as usize] + quota_price;
        let exact = i128::from(item.worth) * i128::from(PRICE_UNIT) - i128::from(price) * i128::from(item.units);
        exact.max(-FAR) as i64
    }

    /// The surplus of what a claim is given, which may be nothing.
    pub(super) fn surplus_of(&self, claim: &Claim, item: u32) -> i64 {
        self.reduced.item(item).map_or(0, |item| self.surplus(item, self.quota_price(claim)))
    }

    /// The item of the largest surplus and that surplus; nothing if none is above 0. The first of equals.
    pub(super) fn best(&self, claim: &Claim) -> (u32, i64) {
        let quota_price = self.quota_price(claim);
        let mut best = (NOTHING, 0);
        for index in claim.items() {
            let surplus = self.surplus(&self.reduced.items[index], quota_price);
            if surplus > best.1 {
                best = (index as u32, surplus);
            }
        }
        best
    }

    /// B at these prices, in the price unit. Tenants marked in `inside` pay no σ and keep their quota.
    pub(super) fn bound(&self, inside: &[bool]) -> i128 {
        let paid = |rows: &[u32], prices: &[i64]| -> i128 {
            rows.iter().zip(prices).map(|(row, price)| i128::from(*row) * i128::from(*price)).sum()
        };
        let mut total = paid(&self.reduced.capacities, &self.prices);
        for (tenant, &price) in self.quota_prices.iter().enumerate() {
            if !inside[tenant] {
                total += i128::from(price) * i128::from(self.reduced.quotas[tenant]);
            }
        }
        for claim in &self.reduced.claims {
            if claim.tenant == NOBODY || !inside[claim.tenant as usize] {
                total += i128::from(self.best(claim).1);
            }
        }
        for tenant in self.reduced.tenants.iter().filter(|tenant| inside[tenant.index]) {
            total += self.best_within(&self.reduced.claims[tenant.claims.clone()], self.reduced.quotas[tenant.index]);
        }
        total
    }

    /// What claims can gain together within a quota at the prices of the kinds.
    fn best_within(&self, claims: &[Claim], quota: u32) -> i128 {
        let mut gain = vec![0_i64; quota as usize + 1];
        let mut next = gain.clone();
        for claim in claims {
            next.copy_from_slice(&gain);
            for item in &self.reduced.items[claim.items()] {
                let surplus = self.surplus(item, 0);
                for (new, old) in next[item.units as usize..].iter_mut().zip(&gain) {
                    *new = (*new).max(old + surplus);
                }
            }
            std::mem::swap(&mut gain, &mut next);
        }
        i128::from(gain[quota as usize])
    }

    /// A bound in units of worth, rounded down to what a sum of worths can be.
    pub(super) fn whole(&self, bound: i128) -> i64 {
        let whole = bound.div_euclid(i128::from(PRICE_UNIT)) as i64;
        whole - whole.rem_euclid(self.reduced.divisor)
    }
}
