//! The core: what a better selection could consist of. All else is settled by the prices.
//!
//! With ℓ the loss of a choice against the claim's favourite, every selection is worth B − Σℓ − Σ price·slack. One that
//! beats the best known by at least the common divisor therefore has Σℓ <= B − (best + divisor), and so has each of its
//! choices by itself.

use std::collections::BTreeMap;

use super::ledger::Ledger;
use super::reduce::NOTHING;
use super::selection::Selection;
use crate::PRICE_UNIT;

/// A claim that is not settled, and what it could still get.
#[derive(Debug, Clone)]
pub(super) struct Layer {
    pub claim: usize,
    pub moves: Vec<Move>,
}

/// One thing it could get, against what it has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Move {
    pub item: u32,
    /// Worth more than what it has.
    pub gain: i64,
    /// Surplus lost against what it has, in the price unit.
    pub loss: i64,
}

/// The claims that a better selection could treat differently. `bound` is B at the ledger's prices, quotas priced.
pub(super) fn core(ledger: &Ledger<'_>, selection: &Selection, bound: i128) -> Vec<Layer> {
    let reduced = ledger.reduced;
    let budget = bound - i128::from(selection.worth + reduced.divisor) * i128::from(PRICE_UNIT);
    if budget < 0 {
        return Vec::new();
    }
    let budget = budget.min(i128::from(i64::MAX / 4)) as i64;
    let mut layers = Vec::new();
    for (index, claim) in reduced.claims.iter().enumerate() {
        let held = selection.items[index];
        let held_worth = reduced.item(held).map_or(0, |item| item.worth);
        let held_surplus = ledger.surplus_of(claim, held);
        let favourite = ledger.best(claim).1;
        let affordable = |item: &u32| favourite - ledger.surplus_of(claim, *item) <= budget;
        let mut items = (claim.first..claim.end).chain([NOTHING]).filter(affordable).peekable();
        let Some(first) = items.next() else { continue };
        if first == held && items.peek().is_none() {
            continue;
        }
        let to = |item: u32| Move {
            item,
            gain: reduced.item(item).map_or(0, |item| item.worth) - held_worth,
            loss: held_surplus - ledger.surplus_of(claim, item),
        };
        layers.push(Layer { claim: index, moves: [first].into_iter().chain(items).map(to).collect() });
    }
    layers
}

/// Claims of a part that may share the same cheapest step: more of them would add little but permutations.
const ALIKE: u32 = 4;

/// The `most` claims that are cheapest to change, few of them by the same step.
pub(super) fn cheapest(ledger: &Ledger<'_>, selection: &Selection, layers: &[Layer], most: usize) -> Vec<Layer> {
    let reduced = ledger.reduced;
    let mut order: Vec<(i64, usize, [u32; 4])> = Vec::with_capacity(layers.len());
    for (index, layer) in layers.iter().enumerate() {
        let held = selection.items[layer.claim];
        let changes = layer.moves.iter().filter(|change| change.item != held);
        let Some(change) = changes.min_by_key(|change| change.loss.abs()) else { continue };
        let place = |item: u32| reduced.item(item).map_or((0, 0), |item| (item.kind, item.units));
        let ((from, less), (to, more)) = (place(held), place(change.item));
        order.push((change.loss.abs(), index, [from, less, to, more]));
    }
    order.sort_unstable();
    let mut alike: BTreeMap<[u32; 4], u32> = BTreeMap::new();
    let mut taken = Vec::new();
    for (_, index, step) in order {
        let count = alike.entry(step).or_default();
        if *count < ALIKE {
            *count += 1;
            taken.push(layers[index].clone());
            if taken.len() == most {
                break;
            }
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::super::reduce::Reduced;
    use super::*;
    use crate::{Choice, Menu, Program};

    /// 2 units for claims that want one each, worth these.
    fn program(worths: &[i64]) -> Program {
        let menu = |worth: &i64| Menu { tenant: None, choices: vec![Choice { kind: 0, units: 1, worth: *worth }] };
        Program { capacities: vec![2], quotas: vec![], claims: worths.iter().map(menu).collect() }
    }

    #[test]
    fn claims_whose_change_costs_more_than_the_gap_are_settled() {
        let program = program(&[90, 51, 50, 49, 7]);
        let reduced = Reduced::of(&program);
        let ledger = Ledger::new(&reduced, &[50.0], &[]);
        let mut selection = Selection::nothing(&reduced);
        selection.give(&reduced, 0, 0);
        selection.give(&reduced, 3, 3);
        let layers = core(&ledger, &selection, ledger.bound(&[]));
        assert_eq!(layers.iter().map(|layer| layer.claim).collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn a_part_holds_few_claims_that_change_by_the_same_step() {
        let program = program(&[50; 12]);
        let reduced = Reduced::of(&program);
        let ledger = Ledger::new(&reduced, &[49.0], &[]);
        let selection = Selection::nothing(&reduced);
        let layers = core(&ledger, &selection, ledger.bound(&[]));
        assert_eq!((layers.len(), cheapest(&ledger, &selection, &layers, 10).len()), (12, ALIKE as usize));
    }
}
