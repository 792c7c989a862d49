//! Search on a core, layer by layer: one claim after the other, all distinct uses of the rows kept, for each the most
//! worth. Knows nothing of how the core was found.
//!
//! A state is how far the rows are from what the best known selection uses, and what was gained on the way. It is a
//! complete selection, since later claims may keep what they have: whenever it fits and gains, the best known rises and
//! the search narrows at once. A state is dropped when even at the kindest of many price vectors the rest cannot make
//! up for it: gain so far + what later claims gain at those prices + price·room left. Everything is in integers, so
//! what is dropped is dropped rightly.
//!
//! Claims that change by many units come first: deviations stay on a coarse lattice, where states meet and merge. With
//! quotas, claims come by tenant, and a tenant's deviation is forgotten after its last claim: one more dimension, however
//! many tenants there are.

use super::core::Layer;
use super::ledger::Ledger;
use super::reduce::{NOBODY, Reduced};
use super::selection::Selection;
use crate::PRICE_UNIT;

/// How far a search may go.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// States kept of one layer.
    pub width: usize,
    /// States kept in all.
    pub states: u64,
}

/// What a search found out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outcome {
    /// No selection that differs from the given one in these layers only is worth more.
    pub bound: i64,
    pub states: u64,
}

/// Improves the selection within the layers. `None` if the numbers are too large to search with.
pub(super) fn search(
    ledger: &Ledger<'_>,
    selection: &mut Selection,
    layers: Vec<Layer>,
    limits: Limits,
) -> Option<Outcome> {
    let frame = Frame::new(ledger, selection, layers)?;
    let mut search = Search::new(&frame, ledger.reduced.divisor);
    for layer in 0..frame.steps.len() {
        search.expand(layer);
        search.narrow(layer, limits);
        if search.states >= limits.states {
            search.give_up();
            break;
        }
    }
    let base = selection.worth;
    let whole = search.dropped >> frame.unit;
    let divisor = ledger.reduced.divisor;
    let dropped = (base + whole).div_euclid(divisor) * divisor;
    for (step, &choice) in frame.steps.iter().zip(&search.best_path) {
        selection.give(ledger.reduced, step.claim, step.moves[choice as usize].item);
    }
    assert_eq!(selection.worth, base + search.best, "a path is worth what its steps gain");
    let bound = if search.dropped == i64::MIN { selection.worth } else { dropped.max(selection.worth) };
    Some(Outcome { bound, states: search.states })
}

/// A row whose deviation is part of a state's key.
#[derive(Debug, Clone, Copy)]
struct Field {
    shift: u32,
    mask: u128,
    low: i64,
}

impl Field {
    fn of(&self, key: u128) -> i64 {
        ((key >> self.shift) & self.mask) as i64 + self.low
    }

    fn pack(&self, deviation: i64) -> u128 {
        (i128::from(deviation) as u128).wrapping_shl(self.shift)
    }
}

/// A layer, ready to be stepped through.
#[derive(Debug)]
struct Step {
    claim: usize,
    moves: Vec<StepMove>,
    /// The tenant's slack, if its quota counts, and whether this is its last claim.
    quota: Option<(i64, bool)>,
    /// σ in the search's unit.
    quota_price: i64,
}

#[derive(Debug, Clone, Copy)]
struct StepMove {
    item: u32,
    gain: i64,
    key: u128,
    /// gain − price·change at the main prices, in the search's unit.
    potential: i64,
    /// Changes by at most two kinds: (row or none, units).
    changes: [(u32, i64); 2],
    quota_change: i64,
}

/// Everything about the search that does not change while it runs.
#[derive(Debug)]
struct Frame {
    steps: Vec<Step>,
    /// Kinds that count, and the slack of each.
    fields: Vec<Field>,
    slacks: Vec<i64>,
    tenant_field: Field,
    origin: u128,
    /// Worth is counted in parts of 2^unit.
    unit: u32,
    /// Price vectors, one after the other, `fields.len()` each; the first is the main one.
    vectors: Vec<i64>,
    /// For each layer and vector: what the layers from here on gain at best, plus what all slack costs.
    tails: Vec<i64>,
}

/// Moves times price vectors that are looked at before the search begins: huge cores get fewer vectors.
const TAIL_WORK: usize = 5_000_000;

/// The kind of a row that is not part of the key.
const NO_ROW: u32 = u32::MAX;

impl Frame {
    fn new(ledger: &Ledger<'_>, selection: &Selection, mut layers: Vec<Layer>) -> Option<Self> {
        let reduced = ledger.reduced;
        let counting = counting_tenants(ledger, selection, &layers);
        order(reduced, selection, &counting, &mut layers);
        let ranges = Ranges::of(reduced, selection, &layers);
        let kinds: Vec<usize> = (0..reduced.capacities.len())
            .filter(|&kind| {
                let vacuous = ranges.high[kind] <= selection.kind_slack(reduced, kind) && ledger.prices[kind] == 0;
                !vacuous && ranges.low[kind] < ranges.high[kind]
            })
            .collect();
        let quota_range =
            counting.iter().flatten().fold((0, 0), |(low, high), range| (low.min(range.0), high.max(range.1)));
        let (fields, tenant_field) = pack(&kinds, &ranges, quota_range)?;
        let unit = unit(ledger, selection, &layers, &kinds, &ranges)?;
        let slacks: Vec<i64> = kinds.iter().map(|kind| selection.kind_slack(reduced, *kind)).collect();
        let mut vectors = vectors(ledger, &kinds, unit);
        let moves: usize = layers.iter().map(|layer| layer.moves.len()).sum();
        vectors.truncate((TAIL_WORK / moves.max(1)).max(1) * kinds.len());
        let mut frame = Self {
            steps: Vec::with_capacity(layers.len()),
            origin: 0,
            fields,
            slacks,
            tenant_field,
            unit,
            vectors,
            tails: Vec::new(),
        };
        let zero = |field: &Field| field.pack(-field.low);
        frame.origin = frame.fields.iter().map(zero).fold(zero(&frame.tenant_field), u128::wrapping_add);
        let row_of = |kind: u32| kinds.iter().position(|k| *k == kind as usize).map_or(NO_ROW, |row| row as u32);
        for (index, layer) in layers.iter().enumerate() {
            let step = frame.step(ledger, selection, &counting, layer, layers.get(index + 1), &row_of);
            frame.steps.push(step);
        }
        frame.tails = frame.tails();
        Some(frame)
    }

    fn step(
        &self,
        ledger: &Ledger<'_>,
        selection: &Selection,
        counting: &[Option<(i64, i64)>],
        layer: &Layer,
        next: Option<&Layer>,
        row_of: &impl Fn(u32) -> u32,
    ) -> Step {
        let reduced = ledger.reduced;
        let tenant = reduced.claims[layer.claim].tenant;
        let counts = tenant != NOBODY && counting[tenant as usize].is_some();
        let last = next.is_none_or(|next| reduced.claims[next.claim].tenant != tenant);
        let quota = counts.then(|| (selection.quota_slack(reduced, tenant as usize), last));
        let quota_price =
            if counts { ledger.quota_prices[tenant as usize] >> (PRICE_UNIT.ilog2() - self.unit) } else { 0 };
        let old = reduced.item(selection.items[layer.claim]);
        let moves = layer.moves.iter().map(|change| {
            let new = reduced.item(change.item);
            let less = old.map_or((NO_ROW, 0), |old| (row_of(old.kind), -i64::from(old.units)));
            let more = new.map_or((NO_ROW, 0), |new| (row_of(new.kind), i64::from(new.units)));
            let quota_change = if counts { less.1 + more.1 } else { 0 };
            let mut key = self.tenant_field.pack(quota_change);
            let mut potential = (change.gain << self.unit) - quota_price * quota_change;
            for (row, units) in [less, more].into_iter().filter(|(row, _)| *row != NO_ROW) {
                key = key.wrapping_add(self.fields[row as usize].pack(units));
                potential -= self.vectors[row as usize] * units;
            }
            StepMove { item: change.item, gain: change.gain, key, potential, changes: [less, more], quota_change }
        });
        Step { claim: layer.claim, moves: moves.collect(), quota, quota_price }
    }

    fn vector_count(&self) -> usize {
        if self.fields.is_empty() { 1 } else { self.vectors.len() / self.fields.len() }
    }

    fn tails(&self) -> Vec<i64> {
        let count = self.vector_count();
        let mut tails = vec![0; (self.steps.len() + 1) * count];
        for vector in 0..count {
            let prices = &self.vectors[vector * self.fields.len()..(vector + 1) * self.fields.len()];
            let mut tail: i64 = prices.iter().zip(&self.slacks).map(|(price, slack)| price * slack).sum();
            tails[self.steps.len() * count + vector] = tail;
            for (index, step) in self.steps.iter().enumerate().rev() {
                let value = |change: &StepMove| {
                    let mut value = (change.gain << self.unit) - step.quota_price * change.quota_change;
                    for (row, units) in change.changes.iter().filter(|(row, _)| *row != NO_ROW) {
                        value -= prices[*row as usize] * units;
                    }
                    value
                };
                tail += step.moves.iter().map(value).max().unwrap_or(0);
                if let Some((slack, true)) = step.quota {
                    tail += step.quota_price * slack;
                }
                tails[index * count + vector] = tail;
            }
        }
        tails
    }
}

/// For each tenant whose quota the core could exceed, or that has a price: how far its use can deviate.
fn counting_tenants(ledger: &Ledger<'_>, selection: &Selection, layers: &[Layer]) -> Vec<Option<(i64, i64)>> {
    let reduced = ledger.reduced;
    let mut ranges = vec![(0, 0); reduced.quotas.len()];
    for layer in layers {
        let tenant = reduced.claims[layer.claim].tenant;
        if tenant != NOBODY {
            let units = |item: u32| reduced.item(item).map_or(0, |item| i64::from(item.units));
            let changes = layer.moves.iter().map(|change| units(change.item) - units(selection.items[layer.claim]));
            let (low, high) = changes.fold((0, 0), |(low, high), change| (change.min(low), change.max(high)));
            let range = &mut ranges[tenant as usize];
            *range = (range.0 + low, range.1 + high);
        }
    }
    let counts = |(tenant, range): (usize, (i64, i64))| {
        let counts = range.1 > selection.quota_slack(reduced, tenant) || ledger.quota_prices[tenant] > 0;
        (counts && range != (0, 0)).then_some(range)
    };
    ranges.into_iter().enumerate().map(counts).collect()
}

/// Claims of tenants that count first, by tenant; inside, those that change by the largest steps first.
fn order(reduced: &Reduced, selection: &Selection, counting: &[Option<(i64, i64)>], layers: &mut [Layer]) {
    let rank = |layer: &Layer| {
        let tenant = reduced.claims[layer.claim].tenant;
        let group = if tenant != NOBODY && counting[tenant as usize].is_some() { tenant } else { NOBODY };
        let (mut step, mut largest) = (0, 0);
        let held = reduced.item(selection.items[layer.claim]).map(|item| (item.kind, item.units));
        for change in &layer.moves {
            let new = reduced.item(change.item).map(|item| (item.kind, item.units));
            match (held, new) {
                (Some((a, less)), Some((b, more))) if a == b => {
                    step = divisor(step, less.abs_diff(more));
                    largest = largest.max(less.abs_diff(more));
                }
                (old, new) => {
                    for (_, units) in old.into_iter().chain(new) {
                        step = divisor(step, units);
                        largest = largest.max(units);
                    }
                }
            }
        }
        (group, std::cmp::Reverse((step, largest)), layer.claim)
    };
    layers.sort_by_cached_key(rank);
}

fn divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { divisor(b, a % b) }
}

/// How far each kind's use can deviate.
#[derive(Debug)]
struct Ranges {
    low: Vec<i64>,
    high: Vec<i64>,
}

impl Ranges {
    fn of(reduced: &Reduced, selection: &Selection, layers: &[Layer]) -> Self {
        let kinds = reduced.capacities.len();
        let mut ranges = Self { low: vec![0; kinds], high: vec![0; kinds] };
        for layer in layers {
            let held = reduced.item(selection.items[layer.claim]);
            for kind in 0..kinds {
                let on_kind = |item: &&super::reduce::Item| item.kind as usize == kind;
                let now = held.filter(on_kind).map_or(0, |item| i64::from(item.units));
                let changes = layer.moves.iter().map(|change| {
                    reduced.item(change.item).filter(on_kind).map_or(0, |item| i64::from(item.units)) - now
                });
                let (low, high) = changes.fold((0, 0), |(low, high), change| (change.min(low), change.max(high)));
                ranges.low[kind] += low;
                ranges.high[kind] += high;
            }
        }
        ranges
    }
}

/// Gives each row its bits of the key. `None` if there are not enough.
fn pack(kinds: &[usize], ranges: &Ranges, quota_range: (i64, i64)) -> Option<(Vec<Field>, Field)> {
    let mut shift = 0;
    let mut field = |low: i64, high: i64| {
        let bits = 64 - ((high - low) as u64).leading_zeros();
        let field = Field { shift, mask: (1_u128 << bits) - 1, low };
        shift += bits;
        field
    };
    let fields = kinds.iter().map(|kind| field(ranges.low[*kind], ranges.high[*kind])).collect();
    let tenant = field(quota_range.0, quota_range.1);
    (shift < 128).then_some((fields, tenant))
}

/// How finely worth can be counted so that no sum overflows.
fn unit(ledger: &Ledger<'_>, selection: &Selection, layers: &[Layer], kinds: &[usize], ranges: &Ranges) -> Option<u32> {
    let reduced = ledger.reduced;
    let price = |kind: usize| 2.0 * ledger.prices[kind] as f64 / PRICE_UNIT as f64;
    let typical = kinds.iter().map(|kind| price(*kind)).fold(0.0, f64::max);
    let mut size = 0.0;
    for layer in layers {
        let gain = layer.moves.iter().map(|change| change.gain.unsigned_abs()).max().unwrap_or(0);
        let quota_price = ledger.quota_price(&reduced.claims[layer.claim]) as f64 / PRICE_UNIT as f64;
        let items = layer.moves.iter().map(|change| change.item).chain([selection.items[layer.claim]]);
        let units = items.filter_map(|item| reduced.item(item)).map(|item| item.units).max().unwrap_or(0);
        size += gain as f64 + 2.0 * (typical + quota_price) * f64::from(units);
    }
    for kind in kinds {
        let range = ranges.high[*kind] - ranges.low[*kind];
        size += typical * (range + selection.kind_slack(reduced, *kind).abs()) as f64;
    }
    for (tenant, price) in ledger.quota_prices.iter().enumerate() {
        size += *price as f64 / PRICE_UNIT as f64 * selection.quota_slack(reduced, tenant).abs() as f64;
    }
    let room = (1_u64 << 60) as f64;
    (0..=PRICE_UNIT.ilog2()).rev().find(|unit| size * f64::from(1_u32 << unit) < room)
}

/// Parts by which prices are bent, in thousandths.
const BENDS: [i64; 5] = [2, 8, 30, 100, 300];

/// The main prices, and those bent by a little and by much in many directions.
fn vectors(ledger: &Ledger<'_>, kinds: &[usize], unit: u32) -> Vec<i64> {
    let down = PRICE_UNIT.ilog2() - unit;
    let main: Vec<i64> = kinds.iter().map(|kind| ledger.prices[*kind] >> down).collect();
    let typical = main.iter().max().copied().unwrap_or(0);
    let directions = directions(kinds.len());
    let mut vectors = main.clone();
    for bend in BENDS {
        for direction in &directions {
            for (price, sign) in main.iter().zip(direction) {
                let size = if *price == 0 { typical / 4 } else { *price };
                let change = (i128::from(size) * i128::from(bend) / 1000) as i64;
                vectors.push((price + sign * change).max(0));
            }
        }
    }
    vectors
}

/// With few rows all combinations of up, down and unchanged; with many only single rows and pairs.
fn directions(rows: usize) -> Vec<Vec<i64>> {
    let most = if rows <= 4 { rows } else { 2 };
    let mut directions: Vec<Vec<i64>> = vec![vec![]];
    for _ in 0..rows {
        let longer = |direction: Vec<i64>| {
            let signs = if direction.iter().filter(|sign| **sign != 0).count() < most { -1..=1 } else { 0..=0 };
            signs.map(move |sign| direction.iter().copied().chain([sign]).collect())
        };
        directions = directions.into_iter().flat_map(longer).collect();
    }
    directions.retain(|direction| direction.iter().any(|sign| *sign != 0));
    directions
}

#[derive(Debug, Clone, Copy)]
struct State {
    key: u128,
    gain: i64,
    potential: i64,
    /// What it can still become at most, in the search's unit.
    bound: i64,
    parent: u32,
    choice: u32,
}

/// Price vectors that are tried on a state: those that ruled one out lately, and once in a while all of them. Trying all
/// every time takes four times as long and keeps hardly fewer states.
const USUAL: usize = 16;
const ALL_EVERY: u64 = 64;

struct Search<'a> {
    frame: &'a Frame,
    divisor: i64,
    states: u64,
    current: Vec<State>,
    next: Vec<State>,
    table: Vec<u32>,
    /// For each layer done, parent and choice of each state kept.
    history: Vec<Vec<(u32, u32)>>,
    best: i64,
    best_path: Vec<u32>,
    /// Vectors by how recently they ruled a state out.
    recent: Vec<u32>,
    /// The largest bound of a state that was dropped for want of room.
    dropped: i64,
}

impl<'a> Search<'a> {
    fn new(frame: &'a Frame, divisor: i64) -> Self {
        let start = State { key: frame.origin, gain: 0, potential: 0, bound: i64::MAX, parent: 0, choice: 0 };
        Self {
            frame,
            divisor,
            states: 0,
            current: vec![start],
            next: Vec::new(),
            table: Vec::new(),
            history: Vec::new(),
            best: 0,
            best_path: Vec::new(),
            recent: (1..frame.vector_count() as u32).collect(),
            dropped: i64::MIN,
        }
    }

    /// What a state must be able to reach to be of interest.
    fn threshold(&self) -> i64 {
        (self.best + self.divisor) << self.frame.unit
    }

    fn expand(&mut self, layer: usize) {
        let frame = self.frame;
        let step = &frame.steps[layer];
        let tails = &frame.tails[(layer + 1) * frame.vector_count()..(layer + 2) * frame.vector_count()];
        self.next.clear();
        self.reset_table(self.current.len().saturating_mul(2).min(1 << 12));
        for parent in 0..self.current.len() {
            let state = self.current[parent];
            for (choice, change) in step.moves.iter().enumerate() {
                let mut new = State {
                    key: state.key.wrapping_add(change.key),
                    gain: state.gain + change.gain,
                    potential: state.potential + change.potential,
                    bound: 0,
                    parent: parent as u32,
                    choice: choice as u32,
                };
                let mut quota_cost = 0;
                if let Some((slack, last)) = step.quota {
                    let deviation = frame.tenant_field.of(new.key);
                    if last && deviation > slack {
                        continue;
                    }
                    if last {
                        new.key = new.key.wrapping_sub(frame.tenant_field.pack(deviation));
                        new.potential += step.quota_price * deviation;
                    } else {
                        quota_cost = step.quota_price * deviation;
                    }
                }
                new.bound = new.potential + tails[0];
                if new.bound >= self.threshold() {
                    self.keep(layer, new, tails, quota_cost);
                }
            }
        }
    }

    /// Adds a state unless one like it is as good, or some price vector rules it out.
    fn keep(&mut self, layer: usize, mut new: State, tails: &[i64], quota_cost: i64) {
        let mut slot = self.slot(new.key);
        while self.table[slot] != 0 {
            let at = self.table[slot] as usize - 1;
            if self.next[at].key == new.key {
                let old = self.next[at];
                if new.gain > old.gain {
                    new.bound = old.bound + ((new.gain - old.gain) << self.frame.unit);
                    self.next[at] = new;
                    self.consider(layer, &new);
                }
                return;
            }
            slot = (slot + 1) & (self.table.len() - 1);
        }
        if self.ruled_out(&mut new, tails, quota_cost) {
            return;
        }
        self.next.push(new);
        self.states += 1;
        self.table[slot] = self.next.len() as u32;
        if self.next.len() * 2 > self.table.len() {
            self.reset_table(self.next.len() * 2);
            self.refill_table();
        }
        self.consider(layer, &new);
    }

    /// Whether some price vector shows that the state comes to nothing; otherwise lowers its bound.
    fn ruled_out(&mut self, new: &mut State, tails: &[i64], quota_cost: i64) -> bool {
        let frame = self.frame;
        let rows = frame.fields.len();
        let threshold = self.threshold();
        let fixed = (new.gain << frame.unit) - quota_cost;
        let mut deviations = [0_i64; 16];
        if rows > deviations.len() {
            return false;
        }
        for (deviation, field) in deviations.iter_mut().zip(&frame.fields) {
            *deviation = field.of(new.key);
        }
        let tried = if self.states.is_multiple_of(ALL_EVERY) { usize::MAX } else { USUAL }.min(self.recent.len());
        for place in 0..tried {
            let vector = self.recent[place] as usize;
            let prices = &frame.vectors[vector * rows..(vector + 1) * rows];
            let paid: i64 = prices.iter().zip(&deviations).map(|(price, deviation)| price * deviation).sum();
            let bound = fixed + tails[vector] - paid;
            if bound < threshold {
                self.recent[..=place].rotate_right(1);
                return true;
            }
            new.bound = new.bound.min(bound);
        }
        false
    }

    /// Whether a state fits as it is, and is the best yet.
    fn consider(&mut self, layer: usize, state: &State) {
        let frame = self.frame;
        if state.gain <= self.best {
            return;
        }
        let within = frame.fields.iter().zip(&frame.slacks).all(|(field, slack)| field.of(state.key) <= *slack);
        let quota =
            frame.steps[layer].quota.is_none_or(|(slack, last)| last || frame.tenant_field.of(state.key) <= slack);
        if !within || !quota {
            return;
        }
        self.best = state.gain;
        self.best_path = vec![0; layer + 1];
        let (mut parent, mut choice) = (state.parent, state.choice);
        for depth in (0..=layer).rev() {
            self.best_path[depth] = choice;
            if depth > 0 {
                (parent, choice) = self.history[depth - 1][parent as usize];
            }
        }
    }

    /// Keeps the most promising states of the layer, as many as allowed.
    fn narrow(&mut self, layer: usize, limits: Limits) {
        let threshold = self.threshold();
        self.next.retain(|state| state.bound >= threshold);
        let left = (self.frame.steps.len() - layer) as u64;
        let fair = limits.states.saturating_sub(self.states).saturating_mul(4) / left;
        let width = limits.width.min(fair as usize).max(1);
        if self.next.len() > width {
            self.next.select_nth_unstable_by_key(width, |state| (std::cmp::Reverse(state.bound), state.key));
            let dropped = self.next[width..].iter().map(|state| state.bound).max();
            self.dropped = self.dropped.max(dropped.unwrap_or(i64::MIN));
            self.next.truncate(width);
            self.next.sort_unstable_by_key(|state| state.key);
        }
        self.history.push(self.next.iter().map(|state| (state.parent, state.choice)).collect());
        std::mem::swap(&mut self.current, &mut self.next);
    }

    /// Drops everything that is left.
    fn give_up(&mut self) {
        let dropped = self.current.iter().map(|state| state.bound).max();
        self.dropped = self.dropped.max(dropped.unwrap_or(i64::MIN));
        self.current.clear();
    }

    fn reset_table(&mut self, entries: usize) {
        self.table.clear();
        self.table.resize((entries * 2).next_power_of_two().max(64), 0);
    }

    fn refill_table(&mut self) {
        for index in 0..self.next.len() {
            let mut slot = self.slot(self.next[index].key);
            while self.table[slot] != 0 {
                slot = (slot + 1) & (self.table.len() - 1);
            }
            self.table[slot] = index as u32 + 1;
        }
    }

    fn slot(&self, key: u128) -> usize {
        let folded = (key as u64) ^ ((key >> 64) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mixed = folded.wrapping_mul(0xD6E8_FEB8_6659_FD93);
        (mixed >> (64 - self.table.len().ilog2())) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::super::core::core;
    use super::super::repair;
    use super::*;
    use crate::instances::stepped;

    /// Bound and worth after a search of this width on a program that prices alone do not solve.
    fn check(width: usize) -> (i64, i64) {
        let program = stepped(2, 20, 64, 3, -0.5);
        let reduced = Reduced::of(&program);
        let (descent, _) = super::super::dual::descend(&reduced, None, 200);
        let ledger = Ledger::new(&reduced, &descent.prices, &[]);
        let mut selection = repair::favourites(&ledger);
        repair::repair(&ledger, &mut selection);
        let layers = core(&ledger, &selection, ledger.bound(&[]));
        let outcome = search(&ledger, &mut selection, layers, Limits { width, states: 1_000_000 }).unwrap();
        assert!(selection.is_feasible(&reduced));
        (outcome.bound, selection.worth)
    }

    #[test]
    fn prices_bend_in_all_directions_where_rows_are_few() {
        assert_eq!([1, 2, 3, 4, 6].map(|rows| directions(rows).len()), [2, 8, 26, 80, 72]);
    }

    #[test]
    fn a_search_that_drops_nothing_proves_its_answer() {
        let (bound, worth) = check(usize::MAX);
        assert_eq!(bound, worth);
    }

    #[test]
    fn a_narrow_search_says_what_it_may_have_missed() {
        let (_, optimum) = check(usize::MAX);
        for width in [1, 3, 10, 30] {
            let (bound, worth) = check(width);
            assert!(worth <= optimum && optimum <= bound, "width {width}: {worth} {optimum} {bound}");
        }
        assert!(check(1).0 > optimum);
    }
}
