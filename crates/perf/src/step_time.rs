//! Seconds of one training step of a data-parallel job: Pollux's model (Qiao et al., OSDI 2021, section 3.2) with its
//! seven parameters. How they are found from observed steps is in `fit`; that larger batches learn less per example is
//! not known here.
//!
//! | paper | here |
//! |---|---|
//! | α_grad, β_grad | `compute` |
//! | α_sync, β_sync between nodes | `between_nodes` |
//! | α_sync, β_sync within a node | `within_node` |
//! | γ | `overlap` |

use serde::{Deserialize, Serialize};

use crate::goodput::Tuning;

/// Seconds that must not vanish: a single replica exchanges nothing, but its logarithm is taken.
pub(crate) const TINY: f64 = 1e-8;

/// A time that grows in a straight line.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Line {
    pub fixed: f64,
    pub slope: f64,
}

impl Line {
    pub fn at(self, size: f64) -> f64 {
        self.fixed + self.slope * size
    }
}

/// θ of the paper. All seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StepTime {
    /// Forward and backward pass, by examples per GPU.
    pub compute: Line,
    /// Exchange of gradients when replicas lie on several nodes, by replicas beyond two.
    pub between_nodes: Line,
    /// The same within one node.
    pub within_node: Line,
    /// γ ≥ 1: at 1 computing and exchanging follow each other, towards infinity the shorter hides behind the longer.
    pub overlap: f64,
}

impl StepTime {
    /// One pass that only accumulates gradients.
    pub fn accumulation_secs(&self, local_batch: f64) -> f64 {
        self.compute.at(local_batch)
    }

    /// The exchange of gradients after a pass, as if it hid behind nothing.
    pub fn network_secs(&self, nodes: u32, replicas: u32) -> f64 {
        let line = match link(nodes, replicas) {
            Link::None => Line { fixed: TINY, slope: TINY },
            Link::WithinNode => self.within_node,
            Link::BetweenNodes => self.between_nodes,
        };
        line.at(replicas_beyond_two(replicas))
    }

    /// The pass after which gradients are exchanged.
    pub fn step_secs(&self, nodes: u32, replicas: u32, local_batch: f64) -> f64 {
        self.overlapped(self.accumulation_secs(local_batch), self.network_secs(nodes, replicas))
    }

    /// All passes between two updates of the weights.
    pub fn iteration_secs(&self, nodes: u32, replicas: u32, tuning: Tuning) -> f64 {
        self.iteration_secs_over(self.network_secs(nodes, replicas), tuning)
    }

    /// The same, where the seconds of an exchange are known.
    pub(crate) fn iteration_secs_over(&self, network_secs: f64, tuning: Tuning) -> f64 {
        let pass_secs = self.accumulation_secs(f64::from(tuning.local));
        f64::from(tuning.accumulations) * pass_secs + self.overlapped(pass_secs, network_secs)
    }

    fn overlapped(&self, compute_secs: f64, network_secs: f64) -> f64 {
        let (long, short) = (compute_secs.max(network_secs), compute_secs.min(network_secs));
        long * (1.0 + (short / long).powf(self.overlap)).powf(1.0 / self.overlap)
    }
}

/// What gradients travel over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    None,
    WithinNode,
    BetweenNodes,
}

pub(crate) fn link(nodes: u32, replicas: u32) -> Link {
    match (nodes, replicas) {
        (2.., _) => Link::BetweenNodes,
        (_, 2..) => Link::WithinNode,
        _ => Link::None,
    }
}

/// The number that exchanging slows down with; never quite zero, so that its slope keeps a meaning in a fit.
pub(crate) fn replicas_beyond_two(replicas: u32) -> f64 {
    (f64::from(replicas) - 2.0).max(TINY)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(overlap: f64) -> StepTime {
        StepTime {
            compute: Line { fixed: 0.1, slope: 0.01 },
            between_nodes: Line { fixed: 0.4, slope: 0.05 },
            within_node: Line { fixed: 0.2, slope: 0.02 },
            overlap,
        }
    }

    fn check(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
    }

    #[test]
    fn one_replica_only_computes() {
        check(step(1.0).step_secs(1, 1, 10.0), 0.2);
        check(step(3.0).step_secs(1, 1, 10.0), 0.2);
    }

    #[test]
    fn without_overlap_computing_and_exchanging_add_up() {
        check(step(1.0).step_secs(1, 2, 10.0), 0.2 + 0.2);
        check(step(1.0).step_secs(1, 5, 10.0), 0.2 + 0.2 + 3.0 * 0.02);
        check(step(1.0).step_secs(2, 5, 10.0), 0.2 + 0.4 + 3.0 * 0.05);
    }

    #[test]
    fn with_overlap_the_shorter_part_hides() {
        check(step(2.0).step_secs(2, 2, 20.0), 0.5);
        assert!(step(10.0).step_secs(2, 2, 20.0) < 0.41, "0.3 s of computing hide almost wholly behind 0.4 s");
    }

    #[test]
    fn only_the_last_of_the_accumulated_passes_exchanges() {
        let tuning = Tuning { local: 10, accumulations: 3 };
        check(step(1.0).iteration_secs(1, 2, tuning), 3.0 * 0.2 + 0.4);
    }
}
