//! Programs to measure and to test the solver by.
//!
//! To measure: elastic jobs with seeded goodput curves that rise ever more slowly. Pairwise distinct,
//! never copies of a few. They resemble what a goodput scheduler asks; they are no one's recorded jobs.
//!
//! The recipe: kinds differ in speed by up to eight times, jobs in how much they profit from a faster kind and in how soon
//! more GPUs stop helping. Four in five jobs run already and would lose a part of their goodput by changing. Values are
//! divided by the least of the menu; with fairness p < 0 a choice of goodput G is worth 1.1 − G^p, otherwise G^p, in
//! millionths. [`elastic`] jobs can use many sizes, [`stepped`] ones only powers of two within a node and whole nodes:
//! then a few units often stay unused, and the gap between prices and the optimum is larger.

use crate::{Choice, Menu, Program};

/// So many claims for so many GPUs of several kinds, of many sizes. The same arguments give the same program.
pub fn elastic(seed: u64, claims: usize, gpus: u32, kinds: u32, p: f64) -> Program {
    generate(seed, claims, gpus, kinds, p, &[1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48])
}

/// The same with the sizes of Sia's configurations for nodes of eight.
pub fn stepped(seed: u64, claims: usize, gpus: u32, kinds: u32, p: f64) -> Program {
    generate(seed, claims, gpus, kinds, p, &[1, 2, 4, 8, 16, 24, 32, 40, 48])
}

fn generate(seed: u64, claims: usize, gpus: u32, kinds: u32, p: f64, sizes: &[u32]) -> Program {
    let mut dice = Dice::seeded(seed);
    let capacities: Vec<u32> = (0..kinds).map(|kind| gpus / kinds + u32::from(kind < gpus % kinds)).collect();
    let speeds: Vec<f64> = (0..kinds).map(|kind| 8_f64.powf(f64::from(kind) / f64::from(kinds.max(2) - 1))).collect();
    let largest = capacities.iter().min().map_or(1, |least| (*least).clamp(1, 48));
    let claims = (0..claims).map(|_| menu(&mut dice, &speeds, sizes, largest, p)).collect();
    Program { capacities, quotas: Vec::new(), claims }
}

/// The same claims, shared out among tenants whose quotas are `share` of what everyone could have on average.
pub fn with_tenants(mut program: Program, seed: u64, tenants: u32, share: f64) -> Program {
    let mut dice = Dice::seeded(seed);
    let gpus: u64 = program.capacities.iter().map(|capacity| u64::from(*capacity)).sum();
    let average = gpus as f64 / f64::from(tenants.max(1));
    program.quotas = (0..tenants).map(|_| (average * share * dice.between(0.5, 1.5)).max(1.0) as u32).collect();
    for menu in &mut program.claims {
        menu.tenant = Some(dice.below(u64::from(tenants.max(1))) as u32);
    }
    program
}

/// How large a [`mixed`] program can become.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub claims: u64,
    pub choices: u64,
    pub kinds: u64,
    pub tenants: u64,
    pub capacity: u64,
    pub units: u64,
}

/// A program to be wrong about: any size up to the shape; ties, equal worths, worths in proportion to units, common
/// divisors, kinds without capacity, empty menus, choices that do not fit, cost nothing or are worth nothing, tight quotas.
pub fn mixed(seed: u64, shape: Shape) -> Program {
    let mut dice = Dice::seeded(seed);
    let kinds = 1 + dice.below(shape.kinds);
    let row = |dice: &mut Dice| if dice.below(8) == 0 { 0 } else { dice.below(shape.capacity + 1) as u32 };
    let capacities: Vec<u32> = (0..kinds).map(|_| row(&mut dice)).collect();
    let tenants = if dice.below(5) < 2 { 0 } else { dice.below(shape.tenants + 1) };
    let quotas = (0..tenants).map(|_| row(&mut dice)).collect();
    let (flavour, divisor) = (dice.below(5), [1, 1, 7, 100][dice.below(4) as usize]);
    let menu = |_| {
        let tenant = (tenants > 0 && dice.below(4) > 0).then(|| dice.below(tenants) as u32);
        let choices = (0..dice.below(shape.choices + 1)).map(|_| {
            let kind = dice.below(kinds) as u32;
            let units = dice.below(shape.units + 1) as u32;
            let worth = match flavour {
                0 => 1,
                1 => i64::from(units) * 3 + dice.below(2) as i64,
                2 => dice.below(6) as i64 - 1,
                3 => dice.below(1_000_000) as i64,
                _ => (f64::from(units).sqrt() * dice.between(800.0, 1200.0)) as i64,
            };
            Choice { kind, units, worth: worth * divisor }
        });
        Menu { tenant, choices: choices.collect() }
    };
    let claims = (0..1 + Dice::seeded(!seed).below(shape.claims)).map(menu).collect();
    Program { capacities, quotas, claims }
}

/// A generator of its own, so that a seed means the same menus for ever.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// Neighbouring seeds give unrelated throws.
    pub fn seeded(seed: u64) -> Self {
        let mut dice = Self(seed ^ 0x5851_F42D_4C95_7F2D);
        dice.throw();
        dice
    }

    /// 64 even bits (the SplitMix sequence).
    pub fn throw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `sides`, which is not 0.
    pub fn below(&mut self, sides: u64) -> u64 {
        self.throw() % sides
    }

    /// Evenly between two numbers.
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * (self.throw() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

fn menu(dice: &mut Dice, speeds: &[f64], sizes: &[u32], largest: u32, p: f64) -> Menu {
    let profit = dice.between(0.4, 1.1);
    let overhead = dice.between(0.01, 0.25);
    let across_nodes = dice.between(0.7, 1.0);
    let most = [4, 8, 16, 32, 48][dice.below(5) as usize].min(largest);
    let mut goodputs = Vec::new();
    for (kind, speed) in (0..).zip(speeds) {
        let scale = speed.powf(profit) * dice.between(0.9, 1.1);
        for &units in sizes.iter().filter(|units| **units <= most) {
            let spread = if units > 8 { across_nodes } else { 1.0 };
            let scaled = f64::from(units) / (1.0 + overhead * f64::from(units - 1)) * spread;
            goodputs.push((kind, units, scale * scaled * dice.between(0.985, 1.015)));
        }
    }
    let least = goodputs.iter().map(|(_, _, goodput)| *goodput).fold(f64::MAX, f64::min);
    let (held, kept) = match dice.below(5) {
        0 => (u64::MAX, 1.0),
        _ => (dice.below(goodputs.len() as u64), dice.between(0.7, 1.0)),
    };
    let choices = (0..).zip(goodputs).map(|(index, (kind, units, goodput))| {
        let value = goodput / least * if index == held { 1.0 } else { kept };
        let worth = if p < 0.0 { 1.1 - value.powf(p) } else { value.powf(p) };
        Choice { kind, units, worth: (worth * 1e6).round() as i64 }
    });
    Menu { tenant: None, choices: choices.collect() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_seed_means_one_program() {
        assert_eq!(elastic(5, 40, 64, 3, -0.5), elastic(5, 40, 64, 3, -0.5));
        assert_ne!(elastic(5, 40, 64, 3, -0.5), elastic(6, 40, 64, 3, -0.5));
    }

    #[test]
    fn no_two_menus_are_alike() {
        let program = elastic(1, 2000, 4096, 3, -0.5);
        let worths = |menu: &Menu| menu.choices.iter().map(|choice| choice.worth).collect::<Vec<_>>();
        let distinct: BTreeSet<_> = program.claims.iter().map(worths).collect();
        assert_eq!(distinct.len(), 2000);
    }
}
