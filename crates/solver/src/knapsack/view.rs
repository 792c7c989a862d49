//! The dual function B(π) and one of its slopes, in floating point. Only good prices come out of here; bounds that are
//! published are recomputed in integers.
//!
//! B(π) = Σ π·capacity + Σ over claims without a quota of max(0, max over choices of worth − π·units) + Σ over tenants of
//! what the tenant can gain. That gain is either priced, the least over σ >= 0 of σ·quota + Σ surplus at π + σ, or
//! inside: the best selection within the quota, found by a table over it.

use std::ops::Range;

use super::quota;
use super::reduce::{Item, NOBODY, Reduced, Tenant};

/// Choices packed for scanning.
#[derive(Debug, Clone, Copy)]
pub(super) struct Light {
    pub worth: f64,
    pub units: u32,
    pub kind: u32,
}

/// A part of a program, and of the rest what matters within a box of prices: a linear term.
#[derive(Debug)]
pub(super) struct View {
    pub lights: Vec<Light>,
    /// Claim c has `lights[starts[c]..starts[c + 1]]`.
    pub starts: Vec<u32>,
    pub groups: Vec<Group>,
    /// Claims of no group.
    pub free: Range<usize>,
    pub capacities: Vec<f64>,
    /// Worth of what was folded; its use is already taken from `capacities`.
    pub folded: f64,
}

/// Claims under one quota.
#[derive(Debug, Clone)]
pub(super) struct Group {
    pub quota: u32,
    pub claims: Range<usize>,
    pub inside: bool,
    /// The last σ: where the next search for it starts.
    pub price: f64,
}

/// B at a point, a height that no later evaluation can contradict, and the slope that goes with it.
#[derive(Debug, Clone, Default)]
pub(super) struct Evaluation {
    pub value: f64,
    pub height: f64,
    pub slope: Vec<f64>,
    pub cells: u64,
}

impl View {
    /// The whole program. Groups come in the order of `reduced.tenants`.
    pub(super) fn whole(reduced: &Reduced) -> Self {
        let mut view = Self::empty(reduced);
        view.lights.reserve_exact(reduced.items.len());
        for claim in 0..reduced.claims.len() {
            view.push(reduced, claim, |_| true);
        }
        view.close(reduced, reduced.tenants.clone());
        view
    }

    /// Every `stride`th claim against its part of capacities and quotas.
    pub(super) fn sample(reduced: &Reduced, stride: usize) -> Self {
        let mut view = Self::empty(reduced);
        let mut tenants = reduced.tenants.clone();
        tenants.iter_mut().for_each(|tenant| tenant.claims = 0..0);
        for claim in (0..reduced.claims.len()).step_by(stride) {
            view.push(reduced, claim, |_| true);
            let (here, of) = (view.starts.len() - 1, reduced.claims[claim].tenant);
            if let Ok(place) = tenants.binary_search_by_key(&(of as usize), |tenant| tenant.index) {
                let claims = &mut tenants[place].claims;
                *claims = if claims.end == 0 { here - 1..here } else { claims.start..here };
            }
        }
        view.close(reduced, tenants);
        let share = (view.starts.len() - 1) as f64 / reduced.claims.len() as f64;
        view.capacities.iter_mut().for_each(|capacity| *capacity *= share);
        view.groups.iter_mut().for_each(|group| group.quota = (f64::from(group.quota) * share).round() as u32);
        view
    }

    fn empty(reduced: &Reduced) -> Self {
        Self {
            lights: Vec::new(),
            starts: vec![0],
            groups: Vec::new(),
            free: 0..0,
            capacities: reduced.capacities.iter().map(|capacity| f64::from(*capacity)).collect(),
            folded: 0.0,
        }
    }

    fn push(&mut self, reduced: &Reduced, claim: usize, keep: impl Fn(usize) -> bool) {
        for index in reduced.claims[claim].items().filter(|index| keep(*index)) {
            let item = &reduced.items[index];
            self.lights.push(Light { worth: item.worth as f64, units: item.units, kind: item.kind });
        }
        self.starts.push(self.lights.len() as u32);
    }

    fn close(&mut self, reduced: &Reduced, tenants: Vec<Tenant>) {
        let group = |tenant: Tenant| Group {
            quota: reduced.quotas[tenant.index],
            claims: tenant.claims,
            inside: false,
            price: 0.0,
        };
        self.groups = tenants.into_iter().map(group).collect();
        let bound = self.groups.iter().map(|group| group.claims.end).max().unwrap_or(0);
        self.free = bound..self.starts.len() - 1;
    }

    /// The program within a box of prices: of claims without a quota only the choices that are best somewhere in it, and
    /// claims with one such choice folded into the linear term.
    pub(super) fn folded(reduced: &Reduced, low: &[f64], high: &[f64]) -> Self {
        let mut view = Self::empty(reduced);
        let mut kept = Vec::new();
        for (index, claim) in reduced.claims.iter().enumerate() {
            if claim.tenant != NOBODY {
                view.push(reduced, index, |_| true);
                continue;
            }
            kept.clear();
            let nothing = contenders(reduced, claim.items(), low, high, &mut kept);
            match kept.as_slice() {
                [] => {}
                [only] if !nothing => {
                    let item = &reduced.items[*only];
                    view.folded += item.worth as f64;
                    view.capacities[item.kind as usize] -= f64::from(item.units);
                }
                several => {
                    view.push(reduced, index, |item| several.contains(&item));
                }
            }
        }
        view.close(reduced, reduced.tenants.clone());
        view
    }

    pub(super) fn claim(&self, claim: usize) -> &[Light] {
        &self.lights[self.starts[claim] as usize..self.starts[claim + 1] as usize]
    }

    /// Evaluates B. Remembers each group's σ for the next time.
    pub(super) fn evaluate(&mut self, prices: &[f64]) -> Evaluation {
        let mut slope = self.capacities.clone();
        let mut value = self.folded + prices.iter().zip(&self.capacities).map(|(p, c)| p * c).sum::<f64>();
        for claim in self.free.clone() {
            value += best(self.claim(claim), prices, 0.0, |kind, units| slope[kind] -= units);
        }
        let mut evaluation = Evaluation { value, height: value, slope, cells: 0 };
        for index in 0..self.groups.len() {
            let group = self.groups[index].clone();
            if group.inside {
                quota::inside(self, &group, prices, &mut evaluation);
            } else {
                self.groups[index].price = quota::priced(self, &group, prices, &mut evaluation);
            }
        }
        evaluation
    }
}

/// The surplus of a claim's best choice when every unit costs `extra` besides the price of its kind, and what it takes.
pub(super) fn best(lights: &[Light], prices: &[f64], extra: f64, mut take: impl FnMut(usize, f64)) -> f64 {
    let (mut top, mut at) = (0.0, usize::MAX);
    for (index, light) in lights.iter().enumerate() {
        let surplus = light.worth - (prices[light.kind as usize] + extra) * f64::from(light.units);
        if surplus > top {
            (top, at) = (surplus, index);
        }
    }
    if let Some(light) = lights.get(at) {
        take(light.kind as usize, f64::from(light.units));
    }
    top
}

/// The choices that can be best somewhere in the box, and whether nothing can.
///
/// Measured against the choice that is best in the middle: another one stays if it beats that one at the corner of the
/// box that suits it most.
fn contenders(reduced: &Reduced, items: Range<usize>, low: &[f64], high: &[f64], kept: &mut Vec<usize>) -> bool {
    let middle = |item: &Item| {
        let kind = item.kind as usize;
        item.worth as f64 - 0.5 * (low[kind] + high[kind]) * f64::from(item.units)
    };
    let (mut top, mut at) = (0.0, None);
    for index in items.clone() {
        let surplus = middle(&reduced.items[index]);
        if surplus > top {
            (top, at) = (surplus, Some(index));
        }
    }
    let best_of = |item: &Item| item.worth as f64 - low[item.kind as usize] * f64::from(item.units);
    let Some(at) = at else {
        kept.extend(items.filter(|index| best_of(&reduced.items[*index]) > 0.0));
        return true;
    };
    let champion = reduced.items[at];
    let kind = champion.kind as usize;
    let worst = champion.worth as f64 - high[kind] * f64::from(champion.units);
    for index in items {
        let item = &reduced.items[index];
        let ahead = if item.kind == champion.kind {
            let more = f64::from(item.units) - f64::from(champion.units);
            let price = if more > 0.0 { low[kind] } else { high[kind] };
            (item.worth - champion.worth) as f64 - price * more
        } else {
            best_of(item) - worst
        };
        if index == at || ahead > 0.0 {
            kept.push(index);
        }
    }
    worst < 0.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instances::elastic;

    #[test]
    fn a_fold_agrees_with_the_whole_inside_its_box() {
        let program = elastic(3, 400, 1200, 3, -0.5);
        let reduced = Reduced::of(&program);
        let mut whole = View::whole(&reduced);
        let prices: Vec<f64> = vec![90_000.0, 60_000.0, 40_000.0];
        let low: Vec<f64> = prices.iter().map(|price| price * 0.9).collect();
        let high: Vec<f64> = prices.iter().map(|price| price * 1.1).collect();
        let mut folded = View::folded(&reduced, &low, &high);
        assert!(folded.lights.len() * 2 < whole.lights.len(), "{} of {}", folded.lights.len(), whole.lights.len());
        for corner in 0..8 {
            let at = |k: usize| if corner >> k & 1 == 0 { low[k] } else { high[k] };
            let point = [at(0), at(1), at(2)];
            let (a, b) = (whole.evaluate(&point), folded.evaluate(&point));
            assert!((a.value - b.value).abs() <= 1e-9 * a.value, "corner {corner}: {} {}", a.value, b.value);
        }
    }
}
