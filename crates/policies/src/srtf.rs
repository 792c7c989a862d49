//! SRTF: the job with the least time left runs first.
//!
//! Paper: L. Schrage, "A proof of the optimality of the shortest remaining processing time discipline", Operations
//! Research 16(3), 1968. As a baseline for deep-learning clusters: Gu et al., "Tiresias", NSDI 2019, section 5.
//!
//! The idea. Whoever will be done soonest should not wait behind others: that keeps the number of unfinished jobs, and
//! so the mean completion time, smallest on one machine. At every arrival and end, walk along all jobs by the time they
//! have left and run each whose gang fits; others are stopped. The time left is the truth (an oracle, for
//! comparison) or an estimate.
//!
//! | paper               | here                                                      |
//! |---------------------|-----------------------------------------------------------|
//! | remaining time      | `Source::at_best`: at the smallest size, where fastest    |
//! | preempt-resume      | `preempt::in_order`                                       |
//!
//! Deviations. Gangs are placed greedily, so a large gang may be passed by longer small jobs. The time left counts at the
//! job's smallest size on its fastest kind of GPU, wherever it runs, so that moving a job does not change its rank.
//! Jobs nobody can say anything about go last. With `knowledge = estimate`, ranks that rest on the history of finished
//! jobs are looked up again in every decision, which then costs as much as there are such jobs.

use cluster::Span;
use plan::{Claim, Policy};

use crate::blocks::shortest::Shortest;
use crate::config::{ConfigError, PolicyConfig};

pub(crate) fn build(config: &PolicyConfig) -> Result<Box<dyn Policy>, ConfigError> {
    Ok(Box::new(Shortest::from_config(config, time_left)?))
}

fn time_left(_: &Claim, left: Span) -> u64 {
    left.as_millis()
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::text::Scenario;

    fn srtf(knowledge: &str) -> Box<dyn Policy> {
        build(&PolicyConfig::from_pairs("srtf", &[format!("knowledge={knowledge}")]).unwrap()).unwrap()
    }

    // The examples here are our own, small enough to be worked out by hand.

    #[test]
    fn the_shorter_newcomer_takes_the_place_of_the_longer() {
        let scenario = Scenario::new("1x2")
            .job("long 1 gpu takes 3h runs n0:0")
            .job("middle 1 gpu takes 2h runs n0:1")
            .job("short 1 gpu takes 1h");
        scenario.check(&mut *srtf("oracle"), "middle: n0:1\nshort: n0:0");
    }

    #[test]
    fn the_number_of_gpus_does_not_count() {
        let scenario = Scenario::new("1x4").job("wide 4 gpus takes 1h").job("narrow 1 gpu takes 2h");
        scenario.check(&mut *srtf("oracle"), "wide: n0:0-3");
    }

    #[test]
    fn a_gang_that_does_not_fit_is_passed() {
        let scenario = Scenario::new("1x4")
            .job("runs 2 gpus takes 10m runs n0:0-1")
            .job("wide 4 gpus takes 1h")
            .job("narrow 2 gpus takes 2h");
        scenario.check(&mut *srtf("oracle"), "runs: n0:0-1\nnarrow: n0:2-3");
    }

    #[test]
    fn with_estimates_the_user_is_believed() {
        let scenario = Scenario::new("1x1").job("a expected 2h takes 1h").job("b expected 1h takes 2h");
        scenario.check(&mut *srtf("estimate"), "b: n0:0");
        scenario.check(&mut *srtf("oracle"), "a: n0:0");
    }

    #[test]
    fn finished_jobs_of_the_same_user_tell_about_the_next() {
        let scenario = Scenario::new("1x1")
            .finished("ann", "bert", "5h", 1)
            .finished("bob", "bert", "1h", 1)
            .job("anns user ann")
            .job("bobs user bob");
        scenario.check(&mut *srtf("estimate"), "bobs: n0:0");
    }

    #[test]
    fn a_job_of_which_nothing_is_known_goes_last() {
        let scenario = Scenario::new("1x1").job("unknown").job("known expected 9d");
        scenario.check(&mut *srtf("estimate"), "known: n0:0");
    }

    #[test]
    fn only_the_oracle_claims_to_know_the_truth() {
        assert_eq!(srtf("oracle").knows().len(), 1);
        assert!(srtf("estimate").knows().is_empty());
    }
}
