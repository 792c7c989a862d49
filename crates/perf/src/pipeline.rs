//! Iterations of a job whose model is cut into stages, one per GPU, with whole pipelines replicated: GPipe's schedule
//! (Huang et al., NeurIPS 2019) as Sia (SOSP 2023) models its GPT job.

use serde::{Deserialize, Serialize};

use crate::step_time::{Line, StepTime};

/// A backward pass takes twice as long as a forward pass.
const PASSES: f64 = 3.0;

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Pipeline {
    /// u: GPUs of one replica; fixed for a kind of GPU by what fits into its memory.
    pub stages: u32,
    /// Micro-batches that one replica sends through the stages in an iteration.
    pub micro_batches: u32,
    /// Examples in each of them.
    pub micro_batch: u32,
    /// One micro-batch forward through one stage.
    pub forward_secs: f64,
    /// Exchange of gradients between replicas, as in [`StepTime`]; it hides behind nothing.
    pub between_nodes: Line,
    pub within_node: Line,
}

impl Pipeline {
    pub fn gpus(&self, replicas: u32) -> u32 {
        self.stages * replicas
    }

    /// Examples of one iteration.
    pub fn total(&self, replicas: u32) -> u64 {
        u64::from(self.micro_batches) * u64::from(self.micro_batch) * u64::from(replicas)
    }

    /// Replicas whose batch is still within `most` examples: the batch of a replica does not shrink.
    pub fn max_replicas(&self, most: u32) -> u32 {
        most / (self.micro_batches * self.micro_batch)
    }

    /// The pipeline fills up once for all micro-batches, forward and backward; then replicas exchange gradients.
    pub fn iteration_secs(&self, nodes: u32, replicas: u32) -> f64 {
        self.filled_secs() + self.network().network_secs(nodes, replicas)
    }

    /// All micro-batches through all stages, forward and backward.
    pub(crate) fn filled_secs(&self) -> f64 {
        let slots = (self.stages - 1 + self.micro_batches) as f64;
        PASSES * slots * self.forward_secs
    }

    fn network(&self) -> StepTime {
        StepTime {
            compute: Line { fixed: 0.0, slope: 0.0 },
            between_nodes: self.between_nodes,
            within_node: self.within_node,
            overlap: 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// GPT with 2.8 billion parameters on RTX 2080 Ti: eight stages of 99 ms, one node each.
    fn gpt() -> Pipeline {
        Pipeline {
            stages: 8,
            micro_batches: 48,
            micro_batch: 1,
            forward_secs: 0.099,
            between_nodes: Line { fixed: 0.4, slope: 0.05 },
            within_node: Line { fixed: 0.1, slope: 0.0 },
        }
    }

    fn check(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
    }

    #[test]
    fn one_replica_fills_its_pipeline_and_exchanges_nothing() {
        check(gpt().iteration_secs(1, 1), 3.0 * 55.0 * 0.099);
    }

    #[test]
    fn replicas_on_several_nodes_exchange_after_the_last_micro_batch() {
        check(gpt().iteration_secs(4, 4), 3.0 * 55.0 * 0.099 + 0.4 + 2.0 * 0.05);
    }

    #[test]
    fn fewer_stages_leave_less_of_the_pipeline_idle() {
        let two_stages = Pipeline { stages: 2, ..gpt() };
        check(two_stages.iteration_secs(1, 2), 3.0 * 49.0 * 0.099 + 0.1);
    }

    #[test]
    fn the_largest_batch_limits_replicas() {
        assert_eq!(gpt().max_replicas(384), 8);
        assert_eq!((gpt().gpus(8), gpt().total(8)), (64, 384));
    }
}
