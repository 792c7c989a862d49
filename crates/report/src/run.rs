//! The report as others read it: its JSON is an interface, so fields are added and never renamed.
//!
//! Nothing in it depends on the machine or the day. A number of which there is none (the mean of no jobs) is null.
//! Numbers are not rounded: they come of exact sums by the same few divisions everywhere, and print the same.

use std::collections::BTreeMap;

use cluster::Span;
use plan::FailureCause;
use serde::{Deserialize, Serialize};

use crate::stats::{mean, percentile};

/// Several runs on one cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub schema: Schema,
    /// What the cluster is called.
    pub cluster: String,
    /// What had to be assumed about the workload because its source does not say it.
    pub assumptions: Vec<String>,
    pub runs: Vec<RunReport>,
}

/// Which fields to expect. A report of another schema cannot be read as one of this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Schema {
    #[default]
    #[serde(rename = "moira.report/1")]
    V1,
}

/// What a run is called. The events do not say it all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identity {
    pub policy: String,
    pub workload: String,
    pub seed: u64,
    /// What the policy was told beyond what a real scheduler could know.
    pub knows: Vec<String>,
}

/// One policy, one workload, one seed. Means per job are over the jobs that finished.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunReport {
    pub policy: String,
    pub workload: String,
    pub seed: u64,
    pub knows: Vec<String>,
    /// All submitted, refused ones included: the sum of the counts by outcome and of `unfinished`.
    pub jobs: u64,
    pub finished: u64,
    pub refused: u64,
    /// From submission to end.
    pub jct: Times,
    /// From the first submission that was not refused to the last end of a job that finished.
    pub makespan_s: Option<f64>,
    /// GPUs held, start-up and saving included.
    pub gpu_hours_per_job: Option<f64>,
    /// Launches after the first, whatever the cause.
    pub restarts_per_job: Option<f64>,
    pub finish_time_ratio: FinishTimeRatio,
    /// Time in which a job lived and held no devices.
    pub waiting: Times,
    /// GPUs held, of the working ones on nodes that take jobs: GPU time over GPU time, from the first submission until
    /// the last job ended, or until the last event if some have not.
    pub utilisation: Gauge,
    /// Of the free GPUs in service, those on nodes of which other GPUs are held; 0 when none are free. Over time,
    /// moments count by the GPUs that are free.
    pub fragmentation: Gauge,
    /// Live jobs that hold nothing, whether they may start or must wait for others.
    pub queue_length: Gauge,
    pub jain: Jain,
    pub deadlines: Deadlines,
    /// Orders to stop that no cancellation had caused.
    pub preemptions_per_job: Option<f64>,
    pub cancelled: u64,
    pub given_up: u64,
    /// Jobs that held devices for as long as they may and had not finished.
    #[serde(default)]
    pub timed_out: u64,
    /// Jobs that ended because one they were to run after did not finish.
    pub dependency_failed: u64,
    pub unfinished: u64,
    pub failures: Failures,
    pub plans_refused: u64,
    /// What was wrong with the first plan that was refused.
    pub first_trouble: Option<String>,
    /// How often the policy decided.
    pub decisions: u64,
    /// How many jobs were refused, by the reason given.
    pub refusals: BTreeMap<String, u64>,
}

/// Percentiles are the values at sorted position ⌊p·n⌋, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Times {
    pub mean_s: Option<f64>,
    pub p50_s: Option<f64>,
    pub p90_s: Option<f64>,
    pub p99_s: Option<f64>,
}

/// ρ = JCT / T_fair over finished jobs that use GPUs and can run alone.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct FinishTimeRatio {
    pub worst: Option<f64>,
    pub mean: Option<f64>,
    pub share_above_1: Option<f64>,
}

/// Something measured all the time.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Gauge {
    pub mean: Option<f64>,
    pub series: Series,
}

/// Means over buckets of equal length from the first submission on; the last one may be cut short by the end.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Series {
    pub bucket_s: u64,
    pub values: Vec<Option<f64>>,
}

/// Jain's index of how users, and queues, were served compared with their fair share: Σ T_fair / Σ JCT of each.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Jain {
    pub users: Option<f64>,
    pub queues: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Deadlines {
    /// Jobs that have one, whatever became of them.
    pub with: u64,
    /// Of these, those that finished by then.
    pub met: u64,
}

/// Runs that ended without having finished or having been told to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Failures {
    pub crash: u64,
    pub node_lost: u64,
    pub gpu_failed: u64,
    pub start_timeout: u64,
    /// Runs that could not be launched, or over whom nobody watched any more.
    #[serde(default)]
    pub mishap: u64,
}

impl Report {
    pub fn new(cluster: impl Into<String>, assumptions: Vec<String>, runs: Vec<RunReport>) -> Report {
        Report { schema: Schema::V1, cluster: cluster.into(), assumptions, runs }
    }

    /// Reports on the same cluster as one, in their order. What several assume is said once.
    pub fn joined(reports: Vec<Report>) -> Report {
        let mut joined = Report::new("", Vec::new(), Vec::new());
        for report in reports {
            joined.cluster = report.cluster;
            let new = report.assumptions.into_iter().filter(|assumption| !joined.assumptions.contains(assumption));
            joined.assumptions.extend(new.collect::<Vec<_>>());
            joined.runs.extend(report.runs);
        }
        joined
    }
}

impl Times {
    pub(crate) fn of(spans: impl Iterator<Item = Span>) -> Times {
        let mut secs: Vec<f64> = spans.map(Span::as_secs_f64).collect();
        secs.sort_unstable_by(f64::total_cmp);
        let at = |percent| percentile(&secs, percent);
        Times { mean_s: mean(&secs), p50_s: at(50), p90_s: at(90), p99_s: at(99) }
    }
}

impl FinishTimeRatio {
    pub(crate) fn of(ratios: &[f64]) -> FinishTimeRatio {
        // A job that got exactly its share must not seem unfairly treated because of the last bit.
        let above = ratios.iter().filter(|&&ratio| ratio > 1.0 + 1e-9).count();
        FinishTimeRatio {
            worst: ratios.iter().copied().max_by(f64::total_cmp),
            mean: mean(ratios),
            share_above_1: (!ratios.is_empty()).then(|| above as f64 / ratios.len() as f64),
        }
    }
}

impl Deadlines {
    /// The share that was met, if there were any.
    pub fn share(self) -> Option<f64> {
        (self.with > 0).then(|| self.met as f64 / self.with as f64)
    }
}

impl Failures {
    pub fn total(self) -> u64 {
        self.crash + self.node_lost + self.gpu_failed + self.start_timeout + self.mishap
    }

    pub(crate) fn record(&mut self, why: FailureCause) {
        *match why {
            FailureCause::Crash | FailureCause::Final => &mut self.crash,
            FailureCause::Mishap => &mut self.mishap,
            FailureCause::NodeLost => &mut self.node_lost,
            FailureCause::GpuFailed => &mut self.gpu_failed,
            FailureCause::StartTimeout => &mut self.start_timeout,
        } += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tale::Tale;
    use cluster::JobDraft;

    #[test]
    fn an_empty_history_has_nulls_where_there_are_no_numbers() {
        let text = serde_json::to_string(&Tale::on("1x4 t4").report()).unwrap();
        let expected = concat!(
            r#"{"policy":"fifo","workload":"tale","seed":7,"knows":[],"jobs":0,"finished":0,"refused":0,"#,
            r#""jct":{"mean_s":null,"p50_s":null,"p90_s":null,"p99_s":null},"#,
            r#""makespan_s":null,"gpu_hours_per_job":null,"restarts_per_job":null,"#,
            r#""finish_time_ratio":{"worst":null,"mean":null,"share_above_1":null},"#,
            r#""waiting":{"mean_s":null,"p50_s":null,"p90_s":null,"p99_s":null},"#,
            r#""utilisation":{"mean":null,"series":{"bucket_s":60,"values":[]}},"#,
            r#""fragmentation":{"mean":null,"series":{"bucket_s":60,"values":[]}},"#,
            r#""queue_length":{"mean":null,"series":{"bucket_s":60,"values":[]}},"#,
            r#""jain":{"users":null,"queues":null},"deadlines":{"with":0,"met":0},"preemptions_per_job":null,"#,
            r#""cancelled":0,"given_up":0,"timed_out":0,"dependency_failed":0,"unfinished":0,"#,
            r#""failures":{"crash":0,"node_lost":0,"gpu_failed":0,"start_timeout":0,"mishap":0},"#,
            r#""plans_refused":0,"first_trouble":null,"decisions":0,"refusals":{}}"#,
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn a_report_says_its_schema_and_reads_back_as_it_was() {
        let mut tale = Tale::on("1x4 t4");
        let job = tale.submit(0, JobDraft::rigid("a", 2));
        tale.launch(10, job, &[(0, 0b11)]);
        tale.finish(70, job);
        let report = Report::new("small", vec!["jobs never crash".into()], vec![tale.report()]);
        let text = serde_json::to_string(&report).unwrap();
        let beginning = r#"{"schema":"moira.report/1","cluster":"small","assumptions":["jobs never crash"],"runs":[{"#;
        assert!(text.starts_with(beginning), "{text}");
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
        assert!(serde_json::from_str::<Report>(&text.replace("report/1", "report/2")).is_err());
    }

    #[test]
    fn a_ratio_that_differs_from_one_in_the_last_bit_is_not_above_it() {
        let ratios = FinishTimeRatio::of(&[0.5, 1.0 + f64::EPSILON, 1.5, 1.0]);
        assert_eq!((ratios.worst, ratios.share_above_1), (Some(1.5), Some(0.25)));
    }
}
