//! From every claim's favourite at the final prices to a selection that fits: give up what costs least per unit too
//! many, then fill what is left over.
//!
//! Losses are measured at the prices, so a claim moves to another kind as readily as to fewer units. Nothing here
//! proves anything.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::ledger::Ledger;
use super::reduce::{NOBODY, NOTHING};
use super::selection::Selection;

/// Every claim's favourite at these prices, whether or not they fit together.
pub(super) fn favourites(ledger: &Ledger<'_>) -> Selection {
    let mut selection = Selection::nothing(ledger.reduced);
    for (index, claim) in ledger.reduced.claims.iter().enumerate() {
        selection.give(ledger.reduced, index, ledger.best(claim).0);
    }
    selection
}

/// Makes a selection feasible and leaves no room that one claim alone could use.
pub(super) fn repair(ledger: &Ledger<'_>, selection: &mut Selection) {
    let reduced = ledger.reduced;
    for tenant in &reduced.tenants {
        if selection.quota_slack(reduced, tenant.index) < 0 {
            relieve(ledger, selection, Row::Quota(tenant.index));
        }
    }
    while let Some(kind) = most_overused(ledger, selection) {
        relieve(ledger, selection, Row::Kind(kind));
    }
    fill(ledger, selection);
    assert!(selection.is_feasible(reduced), "repair ends with a selection that fits");
}

#[derive(Debug, Clone, Copy)]
enum Row {
    Kind(usize),
    Quota(usize),
}

fn most_overused(ledger: &Ledger<'_>, selection: &Selection) -> Option<usize> {
    let kinds = 0..selection.used.len();
    let over = kinds.map(|kind| (-selection.kind_slack(ledger.reduced, kind), Reverse(kind)));
    over.max().filter(|(over, _)| *over > 0).map(|(_, Reverse(kind))| kind)
}

/// A way to use less of a row, ordered by what a unit of relief costs.
#[derive(Debug, PartialEq)]
struct Relief {
    cost: f64,
    claim: usize,
    item: u32,
}

impl Eq for Relief {}

impl PartialOrd for Relief {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Relief {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.cost.total_cmp(&other.cost).then((self.claim, self.item).cmp(&(other.claim, other.item)))
    }
}

/// Moves claims off a row until it is not overused. Giving a claim nothing always helps, so this ends.
fn relieve(ledger: &Ledger<'_>, selection: &mut Selection, row: Row) {
    let reduced = ledger.reduced;
    let claims = match row {
        Row::Kind(_) => 0..reduced.claims.len(),
        Row::Quota(tenant) => {
            let found = reduced.tenants.iter().find(|entry| entry.index == tenant);
            found.map_or(0..0, |entry| entry.claims.clone())
        }
    };
    let mut heap: BinaryHeap<Reverse<Relief>> =
        claims.filter_map(|claim| cheapest_relief(ledger, selection, row, claim)).map(Reverse).collect();
    while excess(ledger, selection, row) > 0 {
        let Reverse(relief) = heap.pop().expect("whoever uses an overused row can give it up");
        match cheapest_relief(ledger, selection, row, relief.claim) {
            Some(now) if now == relief => {
                selection.give(reduced, relief.claim, relief.item);
                heap.extend(cheapest_relief(ledger, selection, row, relief.claim).map(Reverse));
            }
            changed => heap.extend(changed.map(Reverse)),
        }
    }
}

fn excess(ledger: &Ledger<'_>, selection: &Selection, row: Row) -> i64 {
    match row {
        Row::Kind(kind) => -selection.kind_slack(ledger.reduced, kind),
        Row::Quota(tenant) => -selection.quota_slack(ledger.reduced, tenant),
    }
}

/// The claim's best way to use less of the row without overusing another one.
fn cheapest_relief(ledger: &Ledger<'_>, selection: &Selection, row: Row, claim: usize) -> Option<Relief> {
    let reduced = ledger.reduced;
    let entry = &reduced.claims[claim];
    let held = reduced.item(selection.items[claim])?;
    let uses = |item: u32| {
        let item = reduced.item(item);
        let units = item.filter(|item| {
            matches!(row, Row::Quota(_)) || matches!(row, Row::Kind(kind) if kind == item.kind as usize)
        });
        units.map_or(0, |item| i64::from(item.units))
    };
    let now = uses(selection.items[claim]);
    if now == 0 {
        return None;
    }
    let excess = excess(ledger, selection, row).max(1);
    let surplus = ledger.surplus(held, ledger.quota_price(entry));
    let mut best: Option<Relief> = None;
    for item in (entry.first..entry.end).chain([NOTHING]) {
        let relief = now - uses(item);
        if relief <= 0 || !leaves_room(ledger, selection, row, claim, item) {
            continue;
        }
        let loss = surplus - ledger.surplus_of(entry, item);
        let candidate = Relief { cost: loss as f64 / relief.min(excess) as f64, claim, item };
        if best.as_ref().is_none_or(|best| candidate < *best) {
            best = Some(candidate);
        }
    }
    best
}

/// Whether a move off one row overuses no other. The row itself may stay overused for now, and so may the kind a claim
/// stays on with fewer units.
fn leaves_room(ledger: &Ledger<'_>, selection: &Selection, row: Row, claim: usize, item: u32) -> bool {
    let reduced = ledger.reduced;
    let (Some(new), Some(old)) = (reduced.item(item), reduced.item(selection.items[claim])) else { return true };
    let tenant = reduced.claims[claim].tenant;
    let more = i64::from(new.units) - i64::from(old.units);
    let quota_holds = matches!(row, Row::Quota(_))
        || tenant == NOBODY
        || more <= 0
        || more <= selection.quota_slack(reduced, tenant as usize);
    let kind = new.kind as usize;
    quota_holds && (new.kind == old.kind || i64::from(new.units) <= selection.kind_slack(reduced, kind))
}

/// Rounds of filling; each looks at everything once.
const FILLINGS: usize = 8;

/// Gives claims better items while there is room, those first that lose least at the prices.
pub(super) fn fill(ledger: &Ledger<'_>, selection: &mut Selection) {
    let reduced = ledger.reduced;
    let mut candidates: Vec<(i64, u32, u32)> = Vec::new();
    for _ in 0..FILLINGS {
        candidates.clear();
        for (claim, entry) in reduced.claims.iter().enumerate() {
            let held = selection.items[claim];
            let worth = reduced.item(held).map_or(0, |item| item.worth);
            for item in entry.first..entry.end {
                if reduced.items[item as usize].worth > worth && selection.fits(reduced, claim, item) {
                    let loss = ledger.surplus_of(entry, held) - ledger.surplus_of(entry, item);
                    candidates.push((loss, claim as u32, item));
                }
            }
        }
        if candidates.is_empty() {
            return;
        }
        candidates.sort_unstable();
        for &(_, claim, item) in &candidates {
            let worth = reduced.item(selection.items[claim as usize]).map_or(0, |item| item.worth);
            let better = reduced.items[item as usize].worth > worth;
            if better && selection.fits(reduced, claim as usize, item) {
                selection.give(reduced, claim as usize, item);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::reduce::Reduced;
    use super::*;
    use crate::{Choice, Menu, Program};

    /// What the claims end up with for 4 units of one kind at a price, as units; `0` for nothing.
    fn check(price: f64, menus: &[&[(u32, i64)]]) -> Vec<u32> {
        let menu = |choices: &&[(u32, i64)]| Menu {
            tenant: None,
            choices: choices.iter().map(|&(units, worth)| Choice { kind: 0, units, worth }).collect(),
        };
        let program = Program { capacities: vec![4], quotas: vec![], claims: menus.iter().map(menu).collect() };
        let reduced = Reduced::of(&program);
        let ledger = Ledger::new(&reduced, &[price], &[]);
        let mut selection = favourites(&ledger);
        repair(&ledger, &mut selection);
        selection.items.iter().map(|item| reduced.item(*item).map_or(0, |item| item.units)).collect()
    }

    #[test]
    fn whoever_loses_least_gives_up_what_is_too_much() {
        assert_eq!(check(1.0, &[&[(2, 9)], &[(1, 5), (3, 8)], &[(1, 4)]]), [2, 1, 1]);
    }

    #[test]
    fn room_that_is_left_is_filled() {
        assert_eq!(check(9.0, &[&[(1, 6), (2, 10)], &[(1, 5)]]), [2, 1]);
    }

    #[test]
    fn a_quota_is_kept_at_the_least_loss() {
        let menu = |worth| Menu { tenant: Some(0), choices: vec![Choice { kind: 0, units: 2, worth }] };
        let program = Program { capacities: vec![9], quotas: vec![5], claims: vec![menu(7), menu(3), menu(5)] };
        let reduced = Reduced::of(&program);
        let ledger = Ledger::new(&reduced, &[0.0], &[0.0]);
        let mut selection = favourites(&ledger);
        repair(&ledger, &mut selection);
        assert_eq!((selection.worth, selection.held[0]), (12, 4));
    }
}
