//! SRSF: the job with the least service left runs first, where service is time times GPUs.
//!
//! Paper: Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019, section 3.1 (shortest
//! remaining service first, the two-dimensional counterpart of SRTF).
//!
//! The idea. A job of many GPUs keeps more others waiting than a job of few, so time alone is the wrong measure of what
//! it costs to let it go first. Rank by what is left of the job's area: remaining time multiplied by the GPUs it takes.
//! At every arrival and end, walk along all jobs in that order and run each whose gang fits; others are stopped.
//!
//! | paper               | here                                                      |
//! |---------------------|-----------------------------------------------------------|
//! | remaining time      | `Source::at_best`: at the smallest size, where fastest    |
//! | W_j (GPUs)          | `spec.asked_gpus()`                                         |
//! | preemption          | `preempt::in_order`                                       |
//!
//! Deviations. As for `srtf`: greedy placement of gangs, a time left that does not depend on where the job is, jobs
//! nobody can say anything about last, and history looked up again in every decision with `knowledge = estimate`. A job
//! without GPUs has no service left and goes first.

use cluster::Span;
use plan::{Claim, Policy};

use crate::blocks::shortest::Shortest;
use crate::config::{ConfigError, PolicyConfig};

pub(crate) fn build(config: &PolicyConfig) -> Result<Box<dyn Policy>, ConfigError> {
    Ok(Box::new(Shortest::from_config(config, service_left)?))
}

fn service_left(claim: &Claim, left: Span) -> u64 {
    (claim.spec.asked_gpus() * left).as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::text::Scenario;

    fn srsf() -> Box<dyn Policy> {
        build(&PolicyConfig::named("srsf")).unwrap()
    }

    // The examples here are our own, small enough to be worked out by hand.

    #[test]
    fn a_narrow_job_goes_before_a_shorter_wide_one() {
        // 4 GPUs for 1 h are four GPU hours, 1 GPU for 2 h is two.
        let scenario = Scenario::new("1x4").job("wide 4 gpus takes 1h").job("narrow 1 gpu takes 2h");
        scenario.check(&mut *srsf(), "narrow: n0:0");
    }

    #[test]
    fn what_is_left_counts_and_not_what_there_was() {
        // The running job has 20 minutes on 2 GPUs left, less service than the newcomer's hour on one.
        let scenario = Scenario::new("1x2").job("old 2 gpus takes 20m runs n0:0-1").job("new 1 gpu takes 1h");
        scenario.check(&mut *srsf(), "old: n0:0-1");
    }

    #[test]
    fn the_least_service_takes_the_place_of_the_most() {
        let scenario = Scenario::new("1x4")
            .job("wide 2 gpus takes 3h runs n0:0-1")
            .job("long 1 gpu takes 5h runs n0:2")
            .job("tiny 2 gpus takes 1m");
        scenario.check(&mut *srsf(), "long: n0:2\ntiny: n0:0-1");
    }
}
