//! What a tenant's claims can gain together at given prices of the kinds: by a price on the quota, or exactly.

use super::view::{Evaluation, Group, View, best};

/// Adds min over σ >= 0 of σ·quota + Σ surplus at π + σ, and returns the σ.
///
/// The function of σ is convex and made of straight pieces. Two tangents, one falling and one rising, close in on its
/// least point: where they meet is evaluated next. The mix of the two that is level in σ is a valid plane for the outer
/// problem, so the number of prices there does not grow with the number of tenants.
pub(super) fn priced(view: &View, group: &Group, prices: &[f64], into: &mut Evaluation) -> f64 {
    let (mut falling, mut rising) = match bracket(view, group, prices) {
        Bracket::Unpriced(level) => return level.add(into),
        Bracket::Between(falling, rising) => (falling, rising),
    };
    for _ in 0..PASSES {
        let at = falling.meets(&rising).clamp(falling.at, rising.at);
        let height = rising.value + rising.slope * (at - rising.at);
        let found = tangent(view, group, prices, at);
        let settled = found.value - height <= 1e-12 * found.value.abs() + 1e-9;
        if settled || at == falling.at || at == rising.at {
            let share = rising.slope / (rising.slope - falling.slope);
            into.value += found.value;
            into.height += height.min(found.value);
            for (kind, slope) in into.slope.iter_mut().enumerate() {
                *slope -= share * falling.used[kind] + (1.0 - share) * rising.used[kind];
            }
            return at;
        }
        if found.slope < 0.0 { falling = found } else { rising = found }
    }
    rising.add(into)
}

/// Tangents that are tried; a handful suffices, and any of them is a valid price.
const PASSES: usize = 60;

/// Where the least point lies.
enum Bracket {
    /// At σ = 0: the quota does not bind.
    Unpriced(Tangent),
    /// Between a falling and a rising tangent.
    Between(Tangent, Tangent),
}

/// Looks near the last σ first: from one evaluation to the next it moves little.
fn bracket(view: &View, group: &Group, prices: &[f64]) -> Bracket {
    let mut rising = None;
    if group.price > 0.0 {
        let here = tangent(view, group, prices, group.price);
        let there = tangent(view, group, prices, group.price * if here.slope < 0.0 { 1.02 } else { 0.98 });
        match (here.slope < 0.0, there.slope < 0.0) {
            (true, false) => return Bracket::Between(here, there),
            (false, true) => return Bracket::Between(there, here),
            (true, true) => return Bracket::Between(there, beyond_all_prices(view, group, prices)),
            (false, false) => rising = Some(there),
        }
    }
    let level = tangent(view, group, prices, 0.0);
    if level.slope >= 0.0 {
        return Bracket::Unpriced(level);
    }
    Bracket::Between(level, rising.unwrap_or_else(|| beyond_all_prices(view, group, prices)))
}

/// A tangent of the function of σ.
struct Tangent {
    at: f64,
    value: f64,
    slope: f64,
    used: Vec<f64>,
}

impl Tangent {
    /// The σ at which a falling and a rising tangent are equally high.
    fn meets(&self, rising: &Self) -> f64 {
        let at_zero = |tangent: &Self| tangent.value - tangent.slope * tangent.at;
        (at_zero(self) - at_zero(rising)) / (rising.slope - self.slope)
    }

    /// Adds this tangent as it is, and returns its σ.
    fn add(&self, into: &mut Evaluation) -> f64 {
        into.value += self.value;
        into.height += self.value;
        for (slope, used) in into.slope.iter_mut().zip(&self.used) {
            *slope -= used;
        }
        self.at
    }
}

fn tangent(view: &View, group: &Group, prices: &[f64], at: f64) -> Tangent {
    let quota = f64::from(group.quota);
    let mut used = vec![0.0; prices.len()];
    let mut value = at * quota;
    for claim in group.claims.clone() {
        value += best(view.claim(claim), prices, at, |kind, units| used[kind] += units);
    }
    Tangent { at, value, slope: quota - used.iter().sum::<f64>(), used }
}

/// The tangent where σ is so high that only what costs no units is taken.
fn beyond_all_prices(view: &View, group: &Group, prices: &[f64]) -> Tangent {
    let mut at: f64 = 0.0;
    for claim in group.claims.clone() {
        for light in view.claim(claim).iter().filter(|light| light.units > 0) {
            at = at.max(light.worth / f64::from(light.units) - prices[light.kind as usize]);
        }
    }
    tangent(view, group, prices, 1.0 + at * 2.0)
}

/// Adds the best selection within the quota, exactly.
pub(super) fn inside(view: &View, group: &Group, prices: &[f64], into: &mut Evaluation) {
    let unpriced = tangent(view, group, prices, 0.0);
    if unpriced.slope >= 0.0 {
        unpriced.add(into);
        return;
    }
    let mut used = vec![0.0; prices.len()];
    into.cells += cells(view, group);
    let value = select_inside(view, group, prices, |_, light| {
        let light = &view.lights[light];
        used[light.kind as usize] += f64::from(light.units);
    });
    into.value += value;
    into.height += value;
    for (slope, used) in into.slope.iter_mut().zip(&used) {
        *slope -= used;
    }
}

/// What one table costs.
pub(super) fn cells(view: &View, group: &Group) -> u64 {
    let lights = view.starts[group.claims.end] - view.starts[group.claims.start];
    u64::from(lights) * (u64::from(group.quota) + 1)
}

/// The best selection within the quota at these prices; tells for each claim that is given something which light.
pub(super) fn select_inside(view: &View, group: &Group, prices: &[f64], mut take: impl FnMut(usize, usize)) -> f64 {
    let width = group.quota as usize + 1;
    let claims = group.claims.len();
    let mut gain = vec![0.0_f64; width];
    let mut next = vec![0.0_f64; width];
    let mut choice = vec![u32::MAX; width * claims];
    for (row, claim) in group.claims.clone().enumerate() {
        next.copy_from_slice(&gain);
        let chosen = &mut choice[row * width..(row + 1) * width];
        let first = view.starts[claim];
        for (index, light) in (first..).zip(view.claim(claim)) {
            let surplus = light.worth - prices[light.kind as usize] * f64::from(light.units);
            if surplus <= 0.0 {
                continue;
            }
            let units = light.units as usize;
            for ((new, old), chosen) in next[units..].iter_mut().zip(&gain).zip(&mut chosen[units..]) {
                if old + surplus > *new {
                    *new = old + surplus;
                    *chosen = index;
                }
            }
        }
        std::mem::swap(&mut gain, &mut next);
    }
    let mut held = width - 1;
    for (row, claim) in group.claims.clone().enumerate().rev() {
        let light = choice[row * width + held];
        if light != u32::MAX {
            take(claim, light as usize);
            held -= view.lights[light as usize].units as usize;
        }
    }
    gain[width - 1]
}

#[cfg(test)]
mod tests {
    use super::super::reduce::Reduced;
    use super::*;
    use crate::{Choice, Menu, Program};

    /// Instance F of the method's notes: two tenants, quotas 5 and 4.
    fn view() -> View {
        let menu = |tenant, choices: &[(u32, i64)]| Menu {
            tenant: Some(tenant),
            choices: choices.iter().map(|&(units, worth)| Choice { kind: 0, units, worth }).collect(),
        };
        let claims =
            vec![menu(0, &[(3, 9)]), menu(0, &[(3, 8)]), menu(0, &[(1, 2), (3, 7)]), menu(1, &[(2, 6), (4, 9)])];
        View::whole(&Reduced::of(&Program { capacities: vec![8], quotas: vec![5, 4], claims }))
    }

    #[test]
    fn a_priced_quota_costs_seven_sixths_at_a_price_of_three_halves() {
        let mut view = view();
        let found = view.evaluate(&[1.5]);
        assert!((found.value - 131.0 / 6.0).abs() < 1e-9, "{found:?}");
        assert!((view.groups[0].price - 7.0 / 6.0).abs() < 1e-9, "{:?}", view.groups);
    }

    #[test]
    fn the_plane_of_a_priced_quota_lies_nowhere_above_the_function() {
        let mut view = view();
        let points: Vec<f64> = (0..40).map(|step| 0.1 * f64::from(step)).collect();
        for &at in &points {
            let plane = view.evaluate(&[at]);
            for &other in &points {
                let value = view.evaluate(&[other]).value;
                assert!(plane.height + plane.slope[0] * (other - at) <= value + 1e-9, "from {at} at {other}");
            }
        }
    }

    #[test]
    fn inside_the_quota_the_bound_is_the_optimum_without_any_price() {
        let mut view = view();
        view.groups[0].inside = true;
        assert!((view.evaluate(&[0.0]).value - 20.0).abs() < 1e-9);
    }
}
