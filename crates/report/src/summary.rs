//! The same policy and workload over several seeds: mean and deviation of each headline number, for tables.

use serde::Serialize;

use crate::run::RunReport;
use crate::stats::{mean, sample_deviation};

/// A number by which runs are compared. Everything that lists such numbers lists these, in this order.
#[derive(Debug, Clone, Copy)]
pub struct Headline {
    /// Unit last, as in the report.
    pub name: &'static str,
    pub of: fn(&RunReport) -> Option<f64>,
}

pub const HEADLINES: &[Headline] = &[
    Headline { name: "jobs", of: |run| Some(run.jobs as f64) },
    Headline { name: "finished", of: |run| Some(run.finished as f64) },
    Headline { name: "refused", of: |run| Some(run.refused as f64) },
    Headline { name: "jct_mean_s", of: |run| run.jct.mean_s },
    Headline { name: "jct_p50_s", of: |run| run.jct.p50_s },
    Headline { name: "jct_p90_s", of: |run| run.jct.p90_s },
    Headline { name: "jct_p99_s", of: |run| run.jct.p99_s },
    Headline { name: "makespan_s", of: |run| run.makespan_s },
    Headline { name: "gpu_hours_per_job", of: |run| run.gpu_hours_per_job },
    Headline { name: "restarts_per_job", of: |run| run.restarts_per_job },
    Headline { name: "finish_time_ratio_worst", of: |run| run.finish_time_ratio.worst },
    Headline { name: "finish_time_ratio_mean", of: |run| run.finish_time_ratio.mean },
    Headline { name: "finish_time_ratio_share_above_1", of: |run| run.finish_time_ratio.share_above_1 },
    Headline { name: "waiting_mean_s", of: |run| run.waiting.mean_s },
    Headline { name: "waiting_p99_s", of: |run| run.waiting.p99_s },
    Headline { name: "utilisation", of: |run| run.utilisation.mean },
    Headline { name: "fragmentation", of: |run| run.fragmentation.mean },
    Headline { name: "queue_length", of: |run| run.queue_length.mean },
    Headline { name: "jain_users", of: |run| run.jain.users },
    Headline { name: "jain_queues", of: |run| run.jain.queues },
    Headline { name: "deadlines_met_share", of: |run| run.deadlines.share() },
    Headline { name: "preemptions_per_job", of: |run| run.preemptions_per_job },
    Headline { name: "cancelled", of: |run| Some(run.cancelled as f64) },
    Headline { name: "given_up", of: |run| Some(run.given_up as f64) },
    Headline { name: "timed_out", of: |run| Some(run.timed_out as f64) },
    Headline { name: "dependency_failed", of: |run| Some(run.dependency_failed as f64) },
    Headline { name: "unfinished", of: |run| Some(run.unfinished as f64) },
    Headline { name: "failures", of: |run| Some(run.failures.total() as f64) },
    Headline { name: "plans_refused", of: |run| Some(run.plans_refused as f64) },
    Headline { name: "decisions", of: |run| Some(run.decisions as f64) },
];

/// All runs of one policy on one workload.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    pub policy: String,
    pub workload: String,
    pub knows: Vec<String>,
    pub runs: u64,
    /// One for each of [`HEADLINES`], in their order.
    pub numbers: Vec<Number>,
}

/// A headline number over several runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Number {
    pub name: &'static str,
    /// How many runs have such a number; mean and deviation are over these.
    pub over: u64,
    pub mean: Option<f64>,
    /// Of a sample; none of fewer than two.
    pub deviation: Option<f64>,
}

/// One summary for each policy and workload, in the order in which they first appear.
pub fn summarise(runs: &[RunReport]) -> Vec<Summary> {
    let mut groups: Vec<Vec<&RunReport>> = Vec::new();
    for run in runs {
        let alike = |group: &&mut Vec<&RunReport>| group[0].policy == run.policy && group[0].workload == run.workload;
        match groups.iter_mut().find(alike) {
            Some(group) => group.push(run),
            None => groups.push(vec![run]),
        }
    }
    groups.iter().map(|group| Summary::of(group)).collect()
}

impl Summary {
    fn of(runs: &[&RunReport]) -> Summary {
        Summary {
            policy: runs[0].policy.clone(),
            workload: runs[0].workload.clone(),
            knows: runs[0].knows.clone(),
            runs: runs.len() as u64,
            numbers: HEADLINES.iter().map(|headline| Number::over(headline, runs)).collect(),
        }
    }

    pub fn number(&self, name: &str) -> Option<&Number> {
        self.numbers.iter().find(|number| number.name == name)
    }
}

impl Number {
    fn over(headline: &Headline, runs: &[&RunReport]) -> Number {
        let values: Vec<f64> = runs.iter().filter_map(|run| (headline.of)(run)).collect();
        let (mean, deviation) = (mean(&values), sample_deviation(&values));
        Number { name: headline.name, over: values.len() as u64, mean, deviation }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tale::Tale;

    fn run(policy: &str, seed: u64, makespan_s: Option<f64>) -> RunReport {
        RunReport { policy: policy.into(), seed, makespan_s, ..Tale::on("1x4 t4").report() }
    }

    #[test]
    fn seeds_are_averaged_policy_by_policy() {
        let runs =
            [run("sia", 1, Some(10.0)), run("fifo", 1, Some(40.0)), run("sia", 2, Some(14.0)), run("sia", 3, None)];
        let summaries = summarise(&runs);
        let makespan = |index: usize| *summaries[index].number("makespan_s").unwrap();
        assert_eq!((&*summaries[0].policy, summaries[0].runs), ("sia", 3));
        let expected = Number { name: "makespan_s", over: 2, mean: Some(12.0), deviation: Some(8.0f64.sqrt()) };
        assert_eq!(makespan(0), expected);
        assert_eq!((&*summaries[1].policy, makespan(1).mean, makespan(1).deviation), ("fifo", Some(40.0), None));
    }
}
