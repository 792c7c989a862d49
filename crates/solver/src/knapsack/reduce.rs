//! From the caller's menus to flat arrays of the choices that could ever be of use. Knows nothing of prices.
//!
//! A choice is dropped if it is worth nothing, does not fit by itself, or another of the same kind is worth as much for
//! no more units. Across kinds nothing is dropped: which kind is scarce is for the prices to say. Quotas that all of a
//! tenant's claims together could not exceed are dropped too.

use std::ops::Range;

use crate::{Choice, Program, WORTH_LIMIT};

/// The program as the phases see it: claims of tenants whose quota could bind first, by tenant, then all others.
#[derive(Debug)]
pub(super) struct Reduced {
    pub capacities: Vec<u32>,
    pub quotas: Vec<u32>,
    /// Every worth is a multiple of this.
    pub divisor: i64,
    pub claims: Vec<Claim>,
    pub items: Vec<Item>,
    pub tenants: Vec<Tenant>,
}

/// A claim with at least one useful choice: `items[first..end]`, by kind, then units, then worth, all increasing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    /// Index in the caller's program.
    pub original: u32,
    /// Index into `Reduced::quotas`, or [`NOBODY`].
    pub tenant: u32,
    pub first: u32,
    pub end: u32,
}

/// The tenant of claims that no quota can hold back.
pub(super) const NOBODY: u32 = u32::MAX;

/// A useful choice.
#[derive(Debug, Clone, Copy)]
pub(super) struct Item {
    pub worth: i64,
    pub units: u32,
    pub kind: u32,
    /// Index in the caller's menu.
    pub choice: u32,
}

/// A tenant whose quota could bind, and where its claims are.
#[derive(Debug, Clone)]
pub(super) struct Tenant {
    pub index: usize,
    pub claims: Range<usize>,
}

impl Claim {
    pub(super) fn items(&self) -> Range<usize> {
        self.first as usize..self.end as usize
    }
}

impl Reduced {
    pub(super) fn of(program: &Program) -> Self {
        let order = order(program);
        let mut reduced = Self {
            capacities: program.capacities.clone(),
            quotas: program.quotas.clone(),
            divisor: 0,
            claims: Vec::with_capacity(order.len()),
            items: Vec::with_capacity(program.claims.iter().map(|menu| menu.choices.len()).sum()),
            tenants: Vec::new(),
        };
        let mut unsorted = Vec::new();
        for (original, tenant) in order {
            reduced.add(program, original, tenant, &mut unsorted);
        }
        reduced.divisor = reduced.divisor.max(1);
        reduced
    }

    fn add(&mut self, program: &Program, original: u32, tenant: u32, unsorted: &mut Vec<Item>) {
        let menu = &program.claims[original as usize];
        let quota = menu.tenant.map_or(u32::MAX, |tenant| program.quotas[tenant as usize]);
        let first = self.items.len();
        unsorted.clear();
        let mut last = (0, 0);
        let mut ordered = true;
        for (index, choice) in menu.choices.iter().enumerate() {
            if is_possible(choice, &program.capacities, quota) {
                if self.divisor != 1 {
                    self.divisor = common_divisor(self.divisor, choice.worth);
                }
                ordered &= (choice.kind, choice.units) >= last;
                last = (choice.kind, choice.units);
                let Choice { kind, units, worth } = *choice;
                unsorted.push(Item { worth, units, kind, choice: index as u32 });
            }
        }
        if !ordered {
            unsorted.sort_by_key(|item| (item.kind, item.units));
        }
        keep_undominated(unsorted, &mut self.items);
        let end = self.items.len();
        if first == end {
            return;
        }
        self.claims.push(Claim { original, tenant, first: first as u32, end: end as u32 });
        if tenant != NOBODY {
            let index = tenant as usize;
            let here = self.claims.len();
            match self.tenants.last_mut().filter(|last| last.index == index) {
                Some(last) => last.claims.end = here,
                None => self.tenants.push(Tenant { index, claims: here - 1..here }),
            }
        }
    }

    /// The same with every worth raised by up to a thousandth, no two alike: ties are broken, and claims that look alike
    /// no longer all want the same thing at the same price. Worths are counted more finely if there is room for it, so
    /// neither they nor prices can be compared with the original's.
    pub(super) fn without_ties(&self) -> Self {
        let best = |claim: &Claim| self.items[claim.items()].iter().map(|item| item.worth).max().unwrap_or(0);
        let total: i64 = self.claims.iter().map(best).sum();
        let finer = (WORTH_LIMIT.ilog2() - 1).saturating_sub(total.max(1).ilog2()).min(10);
        let mut items = self.items.clone();
        for (index, item) in items.iter_mut().enumerate() {
            let scattered = (index as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 44;
            let fine = i128::from(item.worth) << finer;
            item.worth = (fine + fine * i128::from(scattered) / (1000 << 20)) as i64;
        }
        Self {
            capacities: self.capacities.clone(),
            quotas: self.quotas.clone(),
            divisor: 1,
            claims: self.claims.clone(),
            items,
            tenants: self.tenants.clone(),
        }
    }

    /// The item at an index, none at [`NOTHING`].
    pub(super) fn item(&self, index: u32) -> Option<&Item> {
        self.items.get(index as usize)
    }
}

/// No item: the claim is given nothing.
pub(super) const NOTHING: u32 = u32::MAX;

/// Claims by tenant, those without a quota that could bind last; otherwise in the caller's order.
fn order(program: &Program) -> Vec<(u32, u32)> {
    let mut demand = vec![0_u64; program.quotas.len()];
    if !demand.is_empty() {
        for menu in &program.claims {
            if let Some(tenant) = menu.tenant {
                let quota = program.quotas[tenant as usize];
                let possible = menu.choices.iter().filter(|choice| is_possible(choice, &program.capacities, quota));
                demand[tenant as usize] += u64::from(possible.map(|choice| choice.units).max().unwrap_or(0));
            }
        }
    }
    let binding = |tenant: &u32| demand[*tenant as usize] > u64::from(program.quotas[*tenant as usize]);
    let tenants = program.claims.iter().map(|menu| menu.tenant.filter(binding).unwrap_or(NOBODY));
    let mut order: Vec<(u32, u32)> = (0..).zip(tenants).collect();
    if !demand.is_empty() {
        order.sort_by_key(|(_, tenant)| *tenant);
    }
    order
}

fn is_possible(choice: &Choice, capacities: &[u32], quota: u32) -> bool {
    choice.worth > 0 && choice.units <= quota.min(capacities[choice.kind as usize])
}

/// Of items by kind and units those that are worth more than all smaller ones of their kind.
fn keep_undominated(sorted: &[Item], kept: &mut Vec<Item>) {
    let start = kept.len();
    for item in sorted {
        match kept[start..].last() {
            Some(last) if last.kind == item.kind && last.worth >= item.worth => {}
            Some(last) if last.kind == item.kind && last.units == item.units => {
                *kept.last_mut().expect("there is a last one") = *item;
            }
            _ => kept.push(*item),
        }
    }
}

fn common_divisor(mut a: i64, mut b: i64) -> i64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Menu;

    /// The useful choices of one claim for 8 units of each of two kinds, as `kind:units→worth`.
    fn kept(choices: &[(u32, u32, i64)]) -> String {
        let choices = choices.iter().map(|&(kind, units, worth)| Choice { kind, units, worth }).collect();
        let claims = vec![Menu { tenant: None, choices }];
        let reduced = Reduced::of(&Program { capacities: vec![8, 8], quotas: vec![], claims });
        let texts = reduced.items.iter().map(|item| format!("{}:{}→{}", item.kind, item.units, item.worth));
        texts.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn more_units_of_a_kind_must_be_worth_more() {
        assert_eq!(kept(&[(0, 4, 9), (0, 2, 9), (0, 1, 3), (0, 2, 7), (0, 3, 8)]), "0:1→3 0:2→9");
    }

    #[test]
    fn kinds_do_not_dominate_each_other() {
        assert_eq!(kept(&[(1, 1, 9), (0, 4, 5)]), "0:4→5 1:1→9");
    }

    #[test]
    fn what_does_not_fit_or_is_worth_nothing_is_dropped() {
        assert_eq!(kept(&[(0, 9, 50), (0, 3, 0), (1, 8, 2), (0, 1, -4)]), "1:8→2");
    }

    #[test]
    fn claims_of_tenants_who_could_exceed_their_quota_come_first() {
        let menu = |tenant| Menu { tenant, choices: vec![Choice { kind: 0, units: 2, worth: 6 }] };
        let claims = vec![menu(None), menu(Some(1)), menu(Some(0)), menu(Some(1)), menu(Some(0))];
        let reduced = Reduced::of(&Program { capacities: vec![8], quotas: vec![4, 3], claims });
        let order: Vec<_> = reduced.claims.iter().map(|claim| claim.original).collect();
        assert_eq!(order, [1, 3, 0, 2, 4], "tenant 0 cannot exceed its quota");
        assert_eq!(reduced.divisor, 6);
    }
}
