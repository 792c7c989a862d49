//! Two claims change at once where neither could alone. Nothing here proves anything.
//!
//! A pair of changes gains only if together they lose less surplus than the unused room is worth, so pairs are tried
//! by ascending loss and only while that holds. Changes that win back surplus come first: after filling there is
//! usually little room, and gains come from better company.

use super::ledger::Ledger;
use super::reduce::{NOBODY, NOTHING, Reduced};
use super::selection::Selection;

/// Pairs that are looked at.
const PAIRS: usize = 100_000;
/// Passes over all changes; a claim changes at most once in each.
const PASSES: usize = 6;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Change {
    loss: i64,
    claim: u32,
    item: u32,
}

/// Improves a feasible selection by pairs of changes.
pub(super) fn exchange(ledger: &Ledger<'_>, selection: &mut Selection) {
    let mut pairs = PAIRS;
    for _ in 0..PASSES {
        if !pass(ledger, selection, &mut pairs) {
            return;
        }
    }
}

/// One pass; whether it improved anything.
fn pass(ledger: &Ledger<'_>, selection: &mut Selection, pairs: &mut usize) -> bool {
    let changes = changes(ledger, selection);
    let mut touched = vec![false; selection.items.len()];
    let mut improved = false;
    let mut room = unused(ledger, selection);
    for (index, first) in changes.iter().enumerate() {
        for second in &changes[..index] {
            if i128::from(first.loss) + i128::from(second.loss) >= room || touched[first.claim as usize] {
                break;
            }
            if second.claim == first.claim || touched[second.claim as usize] {
                continue;
            }
            if *pairs == 0 {
                return improved;
            }
            *pairs -= 1;
            if try_both(ledger.reduced, selection, [*first, *second]) {
                touched[first.claim as usize] = true;
                touched[second.claim as usize] = true;
                improved = true;
                room = unused(ledger, selection);
            }
        }
    }
    improved
}

/// What the unused room would cost.
fn unused(ledger: &Ledger<'_>, selection: &Selection) -> i128 {
    let reduced = ledger.reduced;
    let kinds = ledger.prices.iter().enumerate().map(|(kind, price)| (*price, selection.kind_slack(reduced, kind)));
    let tenants = &reduced.tenants;
    let quotas =
        tenants.iter().map(|tenant| (ledger.quota_prices[tenant.index], selection.quota_slack(reduced, tenant.index)));
    kinds.chain(quotas).map(|(price, slack)| i128::from(price) * i128::from(slack)).sum()
}

/// Every change that could be half of an improving pair, by loss.
fn changes(ledger: &Ledger<'_>, selection: &Selection) -> Vec<Change> {
    let reduced = ledger.reduced;
    let room = unused(ledger, selection).min(i128::from(i64::MAX / 4)) as i64;
    let mut best_regained = 0;
    for (claim, entry) in reduced.claims.iter().enumerate() {
        let regained = ledger.best(entry).1 - ledger.surplus_of(entry, selection.items[claim]);
        best_regained = best_regained.max(regained);
    }
    let mut changes = Vec::new();
    for (claim, entry) in reduced.claims.iter().enumerate() {
        let held = selection.items[claim];
        let surplus = ledger.surplus_of(entry, held);
        for item in (entry.first..entry.end).chain([NOTHING]).filter(|item| *item != held) {
            let loss = surplus - ledger.surplus_of(entry, item);
            if loss < room + best_regained {
                changes.push(Change { loss, claim: claim as u32, item });
            }
        }
    }
    changes.sort_unstable();
    changes
}

/// Makes both changes if they are worth it and fit together.
fn try_both(reduced: &Reduced, selection: &mut Selection, both: [Change; 2]) -> bool {
    let worth = |item: u32| reduced.item(item).map_or(0, |item| item.worth);
    let gain: i64 = both.iter().map(|change| worth(change.item) - worth(selection.items[change.claim as usize])).sum();
    if gain <= 0 {
        return false;
    }
    let before = both.map(|change| selection.items[change.claim as usize]);
    both.iter().for_each(|change| selection.give(reduced, change.claim as usize, change.item));
    let fits = both.iter().all(|change| {
        let tenant = reduced.claims[change.claim as usize].tenant;
        reduced.item(change.item).is_none_or(|item| selection.kind_slack(reduced, item.kind as usize) >= 0)
            && (tenant == NOBODY || selection.quota_slack(reduced, tenant as usize) >= 0)
    });
    if !fits {
        for (change, item) in both.iter().zip(before) {
            selection.give(reduced, change.claim as usize, item);
        }
    }
    fits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Choice, Menu, Program};

    #[test]
    fn two_claims_change_places_where_neither_could_move_alone() {
        let menu = |on_first, on_second| Menu {
            tenant: None,
            choices: vec![
                Choice { kind: 0, units: 1, worth: on_first },
                Choice { kind: 1, units: 1, worth: on_second },
            ],
        };
        let program = Program { capacities: vec![1, 1], quotas: vec![], claims: vec![menu(9, 8), menu(9, 5)] };
        let reduced = Reduced::of(&program);
        let ledger = Ledger::new(&reduced, &[6.0, 5.5], &[]);
        let mut selection = Selection::nothing(&reduced);
        selection.give(&reduced, 0, 0);
        selection.give(&reduced, 1, 3);
        exchange(&ledger, &mut selection);
        assert_eq!((selection.worth, selection.items), (17, vec![1, 2]));
    }
}
