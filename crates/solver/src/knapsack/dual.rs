//! The prices at which B is least: cutting planes in a trust box.
//!
//! Planes found so far are a model of B from below. The model's lowest point in a box around the best prices so far is
//! the next candidate; evaluated is the point half way there, which takes fewer evaluations than going all the way. Good
//! steps widen the box, bad ones shrink it. Large programs are first solved on a sample, then folded to the
//! neighbourhood of its prices.

use super::master::{self, Plane};
use super::reduce::Reduced;
use super::view::{Evaluation, View};

/// Where the descent ended.
#[derive(Debug, Clone)]
pub(super) struct Descent {
    pub prices: Vec<f64>,
    pub evaluations: u64,
    pub cells: u64,
}

/// Above this many choices a program is sampled and folded.
const LARGE: usize = 20_000;
/// Claims in a sample.
const SAMPLE: usize = 500;
/// Bound and model closer than this part of the bound: done.
const PRECISION: f64 = 1e-9;
/// Steps without progress after which the box is not widened any more.
const PATIENCE: u32 = 40;

/// The least B of the whole program, and the view to go on with, which knows every tenant's σ.
pub(super) fn descend(reduced: &Reduced, warm: Option<&[f64]>, evaluations: u32) -> (Descent, View) {
    if reduced.items.len() <= LARGE {
        let mut view = View::whole(reduced);
        let start = warm.map_or_else(|| Start::cold(&view), Start::warm);
        let descent = descend_view(&mut view, &start, evaluations, u64::MAX);
        return (descent, view);
    }
    let mut sampled = 0;
    let guess = match warm {
        Some(prices) => prices.to_vec(),
        None => {
            let mut view = View::sample(reduced, reduced.claims.len().div_ceil(SAMPLE));
            let start = Start::cold(&view);
            let descent = descend_view(&mut view, &start, evaluations, u64::MAX);
            sampled = descent.evaluations * view.lights.len() as u64 / reduced.items.len() as u64;
            descent.prices
        }
    };
    let (mut descent, view) = descend_folded(reduced, guess, evaluations);
    descent.evaluations += sampled;
    (descent, view)
}

/// Descends within a box of 10 % around the guess; a minimum on its edge widens the box.
fn descend_folded(reduced: &Reduced, mut guess: Vec<f64>, evaluations: u32) -> (Descent, View) {
    let ceiling = ceilings(reduced);
    let mut share = 0.1;
    let mut spent = 0;
    loop {
        let low: Vec<f64> = guess.iter().map(|price| (price * (1.0 - share)).max(0.0)).collect();
        let high: Vec<f64> =
            guess.iter().zip(&ceiling).map(|(price, top)| price * (1.0 + share) + 0.01 * share * top).collect();
        let mut view = View::folded(reduced, &low, &high);
        let radius = low.iter().zip(&high).map(|(low, high)| 0.5 * (high - low)).collect();
        let start = Start { prices: guess.clone(), radius, low: low.clone(), high: high.clone() };
        let mut descent = descend_view(&mut view, &start, evaluations, u64::MAX);
        spent += descent.evaluations;
        let on_edge = (0..low.len()).any(|kind| {
            let (price, near) = (descent.prices[kind], 1e-6 * (high[kind] - low[kind]));
            (price > near && price < low[kind] + near) || price > high[kind] - near
        });
        if !on_edge || share > 50.0 {
            descent.evaluations = spent;
            return (descent, view);
        }
        guess = descent.prices;
        share *= 3.0;
    }
}

/// The price of each kind above which nobody takes it.
fn ceilings(reduced: &Reduced) -> Vec<f64> {
    let mut top = vec![0.0_f64; reduced.capacities.len()];
    for item in reduced.items.iter().filter(|item| item.units > 0) {
        let kind = item.kind as usize;
        top[kind] = top[kind].max(item.worth as f64 / f64::from(item.units));
    }
    top
}

/// Where to begin, how far to look, and what never to leave.
pub(super) struct Start {
    pub prices: Vec<f64>,
    pub radius: Vec<f64>,
    pub low: Vec<f64>,
    pub high: Vec<f64>,
}

impl Start {
    /// The mean worth of a unit of each kind: of the right size, and no dearer than the dearest.
    fn cold(view: &View) -> Self {
        let kinds = view.capacities.len();
        let mut dearest = vec![0.0_f64; kinds];
        let mut offered = vec![(0.0, 0.0); kinds];
        for light in view.lights.iter().filter(|light| light.units > 0) {
            let (kind, units) = (light.kind as usize, f64::from(light.units));
            dearest[kind] = dearest[kind].max(light.worth / units);
            offered[kind] = (offered[kind].0 + light.worth, offered[kind].1 + units);
        }
        let mean = |(worth, units): &(f64, f64)| if *units > 0.0 { worth / units } else { 0.0 };
        let prices: Vec<f64> = offered.iter().map(mean).collect();
        Self { radius: prices.clone(), prices, low: vec![0.0; kinds], high: dearest }
    }

    /// The prices of another round.
    pub(super) fn warm(prices: &[f64]) -> Self {
        let radius = prices.iter().map(|price| 0.05 * price + 1.0).collect();
        let kinds = prices.len();
        Self { prices: prices.to_vec(), radius, low: vec![0.0; kinds], high: vec![f64::MAX; kinds] }
    }
}

/// Descends on a view until the model confirms the bound, or the evaluations or the cells of tenants' tables run out.
pub(super) fn descend_view(view: &mut View, start: &Start, evaluations: u32, cells: u64) -> Descent {
    let mut search = TrustBox::new(view, start);
    while search.evaluations < u64::from(evaluations) && search.cells <= cells {
        if !search.step(view) {
            break;
        }
    }
    Descent { prices: search.centre, evaluations: search.evaluations, cells: search.cells }
}

struct TrustBox<'a> {
    start: &'a Start,
    centre: Vec<f64>,
    value: f64,
    radius: Vec<f64>,
    /// Heights relative to `value`, offsets from `centre`.
    planes: Vec<Plane>,
    evaluations: u64,
    cells: u64,
    /// Steps in a row that did not help.
    idle: u32,
}

impl<'a> TrustBox<'a> {
    fn new(view: &mut View, start: &'a Start) -> Self {
        let centre: Vec<f64> =
            start.prices.iter().zip(&start.low).zip(&start.high).map(|((p, low), high)| p.clamp(*low, *high)).collect();
        let Evaluation { value, height, slope, cells } = view.evaluate(&centre);
        let planes = vec![Plane { height: height - value, slope }];
        Self { start, centre, value, radius: start.radius.clone(), planes, evaluations: 1, cells, idle: 0 }
    }

    /// One evaluation. False when the model cannot be improved.
    fn step(&mut self, view: &mut View) -> bool {
        let kinds = 0..self.centre.len();
        let floor: Vec<f64> = kinds.clone().map(|kind| self.start.low[kind] - self.centre[kind]).collect();
        let ceiling: Vec<f64> = kinds.clone().map(|kind| self.start.high[kind] - self.centre[kind]).collect();
        let low: Vec<f64> = floor.iter().zip(&self.radius).map(|(floor, radius)| floor.max(-radius)).collect();
        let high: Vec<f64> = ceiling.iter().zip(&self.radius).map(|(ceiling, radius)| ceiling.min(*radius)).collect();
        let lowest = master::lowest(&self.planes, &low, &high, 1e-14 * self.value.abs() + 1e-12);
        let promised = -lowest.height;
        let held_back = kinds.into_iter().any(|kind| {
            let (offset, nearly) = (lowest.offset[kind], self.radius[kind] * (1.0 - 1e-9));
            (offset <= -nearly && low[kind] > floor[kind]) || (offset >= nearly && high[kind] < ceiling[kind])
        });
        if promised <= PRECISION * self.value.abs() {
            self.scale(4.0);
            self.idle += 1;
            return held_back && self.idle < PATIENCE;
        }
        let all_the_way = promised < 1e-5 * self.value.abs() || self.idle > 3;
        let share = if all_the_way { 1.0 } else { 0.5 };
        let offset: Vec<f64> = lowest.offset.iter().map(|x| x * share).collect();
        let point: Vec<f64> = self.centre.iter().zip(&offset).map(|(c, x)| (c + x).max(0.0)).collect();
        let found = view.evaluate(&point);
        self.evaluations += 1;
        self.cells += found.cells;
        self.add(found, &offset, promised * share, held_back);
        true
    }

    fn add(&mut self, found: Evaluation, offset: &[f64], promised: f64, held_back: bool) {
        let gained = self.value - found.value;
        let height = found.height - self.value - master::dot(&found.slope, offset);
        self.planes.push(Plane { height, slope: found.slope });
        if gained > 0.0 {
            self.move_to(offset, found.value);
        }
        if gained > 0.2 * promised {
            self.idle = 0;
            if held_back {
                self.scale(2.0);
            }
        } else {
            self.idle += 1;
            self.scale(0.6);
        }
        self.forget();
    }

    fn move_to(&mut self, offset: &[f64], value: f64) {
        for plane in &mut self.planes {
            plane.height = plane.at(offset) + self.value - value;
        }
        for (centre, x) in self.centre.iter_mut().zip(offset) {
            *centre = (*centre + x).max(0.0);
        }
        self.value = value;
    }

    fn scale(&mut self, factor: f64) {
        self.radius.iter_mut().for_each(|radius| *radius *= factor);
    }

    /// Drops the plane that lies lowest at the centre once there are many.
    fn forget(&mut self) {
        let most = 40 + 6 * self.centre.len();
        if self.planes.len() > most {
            let newest = self.planes.len() - 1;
            let lowest = (0..newest).min_by(|a, b| self.planes[*a].height.total_cmp(&self.planes[*b].height));
            if let Some(lowest) = lowest {
                self.planes.remove(lowest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instances::elastic;

    #[test]
    fn no_price_nearby_gives_a_lower_bound() {
        let reduced = Reduced::of(&elastic(4, 200, 500, 3, -0.5));
        let (descent, mut view) = descend(&reduced, None, 200);
        let least = view.evaluate(&descent.prices).value;
        for direction in 0..27 {
            for size in [1e-6, 1e-3, 0.1] {
                let bent = |kind: usize| {
                    let sign = f64::from(direction / 3_i32.pow(kind as u32) % 3 - 1);
                    descent.prices[kind] * (1.0 + sign * size)
                };
                let value = view.evaluate(&[bent(0), bent(1), bent(2)]).value;
                assert!(value >= least * (1.0 - 2.0 * PRECISION), "direction {direction}, size {size}");
            }
        }
    }

    #[test]
    fn sampling_and_folding_end_at_the_same_bound() {
        let reduced = Reduced::of(&elastic(4, 1500, 4000, 3, -0.5));
        assert!(reduced.items.len() > LARGE);
        let (folded, _) = descend(&reduced, None, 200);
        let mut view = View::whole(&reduced);
        let start = Start::cold(&view);
        let whole = descend_view(&mut view, &start, 200, u64::MAX);
        let (a, b) = (view.evaluate(&folded.prices).value, view.evaluate(&whole.prices).value);
        assert!((a - b).abs() <= 1e-8 * b, "{a} {b}");
    }

    #[test]
    fn a_warm_start_takes_fewer_evaluations() {
        let reduced = Reduced::of(&elastic(9, 500, 1000, 3, -0.5));
        let (cold, _) = descend(&reduced, None, 200);
        let (warm, _) = descend(&reduced, Some(&cold.prices), 200);
        assert!(warm.evaluations * 2 < cold.evaluations, "{} {}", warm.evaluations, cold.evaluations);
    }
}
