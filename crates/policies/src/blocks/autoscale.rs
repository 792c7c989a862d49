//! How many nodes there should be where nodes are rented: as many as are well used (Pollux, OSDI 2021, section 4.2.2).
//!
//! The utility of a cluster is the speed-up of all jobs together over the number of its GPUs: 1 if every GPU does what the
//! first one did, less the more of them are spent on exchange and on batches that teach little. While it is between two
//! bounds nothing changes; else that number of nodes is wanted whose utility would be nearest the middle.

use plan::Snapshot;
use solver::{Choice, Effort, Menu, Program, Warm};

use crate::blocks::menu::{self, Fleet, Manner};
use crate::config::{ConfigError, PolicyConfig, bad_value};

/// When to grow and when to shrink.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Autoscaler {
    low: f64,
    high: f64,
    most_nodes: u32,
}

/// Worths are counted in this part of one worker's.
const UNIT: f64 = 1e4;
/// Nobody doubles more than once a round: nothing is known of what lies beyond.
const GROWTH: u32 = 2;

impl Autoscaler {
    /// By the parameters `max_nodes` (0 is off), `util_low` and `util_high`.
    pub(crate) fn build(config: &PolicyConfig) -> Result<Option<Autoscaler>, ConfigError> {
        let most_nodes = config.count("max_nodes")?;
        let (low, high) = (config.number("util_low", 0.0)?, config.number("util_high", 0.0)?);
        if high > 1.0 || low >= high {
            return Err(bad_value("util_high", "a number above util_low and at most 1", config.text("util_high")?));
        }
        Ok((most_nodes > 0).then_some(Autoscaler { low, high, most_nodes: most_nodes as u32 }))
    }

    /// How many nodes there should be; nothing if there are several kinds of GPU, of which nobody says which to rent.
    pub(crate) fn wanted(&self, snapshot: &Snapshot<'_>, manner: Manner) -> Option<u32> {
        let fleet = Fleet::of(snapshot);
        let [only] = &fleet.kinds[..] else { return None };
        if snapshot.eligible().next().is_none() {
            return Some(1);
        }
        let now = only.nodes.max(1);
        let utility = |nodes: u32| utility(snapshot, &fleet, nodes, manner);
        if (self.low..=self.high).contains(&utility(now)) {
            return Some(now.min(self.most_nodes));
        }
        let middle = (self.low + self.high) / 2.0;
        // Utility falls as nodes are added: the last number above the middle, or the next one, is nearest to it.
        let (mut above, mut below) = (1, (now * GROWTH).clamp(1, self.most_nodes) + 1);
        while below - above > 1 {
            let between = above + (below - above) / 2;
            match utility(between) >= middle {
                true => above = between,
                false => below = between,
            }
        }
        let off = |nodes: u32| (utility(nodes) - middle).abs();
        let most = (now * GROWTH).min(self.most_nodes);
        Some(if above < most && off(above + 1) < off(above) { above + 1 } else { above })
    }
}

/// The speed-up of all jobs together, best shared out, over the GPUs of so many nodes.
fn utility(snapshot: &Snapshot<'_>, fleet: &Fleet, nodes: u32, manner: Manner) -> f64 {
    let mut fleet = fleet.clone();
    let kind = &mut fleet.kinds[0];
    kind.nodes = nodes;
    kind.gpus = nodes * kind.node_gpus;
    let gpus = kind.gpus;
    let menu = |claim| {
        let choice =
            |offer: menu::Offer| Choice { kind: 0, units: offer.gpus, worth: (offer.value * UNIT).round() as i64 };
        let choices = menu::offers(snapshot, claim, &fleet, manner).into_iter().map(choice).collect();
        Menu { tenant: None, choices }
    };
    let program = Program {
        capacities: vec![gpus],
        quotas: Vec::new(),
        claims: snapshot.eligible().filter(|claim| claim.spec.uses_gpus()).map(menu).collect(),
    };
    let solution = solver::solve(&program, Effort::quick(), &Warm::default());
    solution.worth as f64 / UNIT / f64::from(gpus.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::text::Scenario;

    const MANNER: Manner = Manner::PLAIN;

    fn wanted(scenario: &Scenario) -> Option<u32> {
        let autoscaler = Autoscaler { low: 0.35, high: 0.65, most_nodes: 16 };
        autoscaler.wanted(&scenario.snapshot(None), MANNER)
    }

    #[test]
    fn a_job_that_uses_every_gpu_well_gets_more_of_them() {
        assert_eq!(wanted(&Scenario::new("2x4").job("a elastic 1..64 speed gpu=1")), Some(4), "twice as many at most");
    }

    #[test]
    fn nodes_that_nobody_needs_are_given_back() {
        // One GPU of eight: utility 1/8. With one node it is 1/4, which is nearest a half.
        assert_eq!(wanted(&Scenario::new("2x4").job("a 1 gpu speed gpu=1")), Some(1));
        assert_eq!(wanted(&Scenario::new("2x4")), Some(1), "nobody is there");
    }

    #[test]
    fn between_the_bounds_nothing_changes() {
        assert_eq!(wanted(&Scenario::new("2x4").job("a 4 gpus speed gpu=1")), Some(2), "half of the GPUs");
    }

    #[test]
    fn nobody_says_which_of_several_kinds_to_rent() {
        assert_eq!(wanted(&Scenario::new("1x4 t4, 1x4 a100").job("a 1 gpu speed t4=1 a100=2")), None);
    }
}
