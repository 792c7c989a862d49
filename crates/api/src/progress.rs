//! How a job reports on itself: the same object by HTTP or as a line of a file, in any language. Everything is optional,
//! and a job that reports nothing is scheduled too.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::problem::FieldFault;

/// What a job says of itself, at most every second or so. At least one of the figures must be there.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProgressReport {
    /// The run that reports, as found in its environment; reports of an older run are dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 128)]
    pub run: Option<String>,
    /// Iterations so far, counted from the very beginning and in steps of the designed batch size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<f64>,
    /// Mean time of a whole step since the last report: all its passes, and the exchange of gradients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_seconds: Option<f64>,
    /// Mean time of one forward and backward pass without the exchange.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_seconds: Option<f64>,
    /// The workers that made these steps; times of another number than the run has now teach nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<u32>,
    /// Examples one worker took at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_batch: Option<u32>,
    /// Passes whose gradients were added up before the last one of a step; 0 is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accumulation: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noise: Option<Noise>,
    /// The latest state that is safe on disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointReport>,
    /// Whether this run can go on with other workers without a restart; no until it is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resizable: Option<bool>,
    /// What the latest interruption cost, said once after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<Box<RestartReport>>,
    /// Whatever else is worth showing.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, f64>,
}

/// Gradient noise, as Pollux measures it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Noise {
    /// The squared norm of the gradient, |g|².
    pub sqr: f64,
    /// The trace of its covariance at the designed batch size.
    pub var: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckpointReport {
    /// The steps that are safe.
    pub steps: u64,
    /// How long saving took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// How long ago that was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_seconds: Option<f64>,
}

/// An interruption of the training, from the last step before it to the first one after.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RestartReport {
    pub kind: RestartKind,
    pub phases: Phases,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RestartKind {
    /// It was stopped and launched again.
    Restart,
    /// Its workers changed while it went on.
    Resize,
}

/// How many seconds each part of an interruption took, as far as that was measured.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Phases {
    /// From the notice to the interruption; training went on meanwhile, so this is no part of the price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub import: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_group: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_step: Option<f64>,
}

/// What a job should do from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ProgressReply {
    /// Examples in one step over all workers; nothing if it is the job's own affair, or while its workers change.
    pub batch_size: Option<u32>,
    /// Examples one worker takes at a time.
    pub local_batch: Option<u32>,
    /// Passes to add up before the last one of a step.
    pub accumulation: Option<u32>,
    /// A stop is coming: save now.
    pub stop: bool,
}

/// The body that Kubeflow's trainer protocol posts, as Hugging Face's `Trainer` does without being told. Strangers send
/// it, so what we do not know in it is passed over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubeflowReport {
    pub trainer_status: TrainerStatus,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TrainerStatus {
    pub last_updated_time: Option<String>,
    /// From 0 to 100.
    pub progress_percentage: Option<f64>,
    pub estimated_remaining_seconds: Option<f64>,
    pub metrics: Vec<Metric>,
}

/// Values are text in that protocol.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Metric {
    pub name: String,
    pub value: String,
}

/// So many more numbers a report may have.
pub const MOST_METRICS: usize = 100;
const LONGEST_NAME: usize = 128;
const LONGEST_STEP_SECONDS: f64 = 1e6;
const LARGEST_BATCH: u32 = 1 << 30;
/// Sums and products of larger ones may be too large for any number.
const LARGEST_NOISE: f64 = 1e100;

impl ProgressReport {
    /// One line of a progress file.
    pub fn parse_line(line: &str) -> Result<ProgressReport, FieldFault> {
        let report: ProgressReport = serde_json::from_str(line)
            .map_err(|error| FieldFault::new("progress", format!("cannot be read: {error}")))?;
        report.check().map(|()| report)
    }

    pub fn check(&self) -> Result<(), FieldFault> {
        if *self == (ProgressReport { run: self.run.clone(), ..ProgressReport::default() }) {
            return Err(FieldFault::new("progress", "expected at least one figure, found none"));
        }
        if self.run.as_ref().is_some_and(|run| run.len() > LONGEST_NAME) {
            return Err(FieldFault::new("run", format!("expected at most {LONGEST_NAME} bytes")));
        }
        at_least_zero("epoch", self.epoch, f64::MAX)?;
        positive("step_seconds", self.step_seconds)?;
        positive("compute_seconds", self.compute_seconds)?;
        finite("loss", self.loss)?;
        if let Some(local) = self.local_batch.filter(|local| !(1..=LARGEST_BATCH).contains(local)) {
            return Err(FieldFault::new("local_batch", format!("expected from 1 to {LARGEST_BATCH}, found {local}")));
        }
        if let Some(passes) = self.accumulation.filter(|&passes| passes > 1_000_000) {
            return Err(FieldFault::new("accumulation", format!("expected at most 1000000, found {passes}")));
        }
        at_least_zero("noise.sqr", self.noise.map(|noise| noise.sqr), LARGEST_NOISE)?;
        at_least_zero("noise.var", self.noise.map(|noise| noise.var), LARGEST_NOISE)?;
        let saving = self.checkpoint.and_then(|checkpoint| checkpoint.seconds);
        at_least_zero("checkpoint.seconds", saving, LONGEST_STEP_SECONDS)?;
        let age = self.checkpoint.and_then(|checkpoint| checkpoint.age_seconds);
        at_least_zero("checkpoint.age_seconds", age, f64::MAX)?;
        self.restart.as_ref().map_or(Ok(()), |restart| restart.phases.check())?;
        self.check_metrics()
    }

    fn check_metrics(&self) -> Result<(), FieldFault> {
        if self.metrics.len() > MOST_METRICS {
            let found = self.metrics.len();
            return Err(FieldFault::new("metrics", format!("expected at most {MOST_METRICS}, found {found}")));
        }
        if self.metrics.keys().any(|name| name.is_empty() || name.len() > LONGEST_NAME) {
            return Err(FieldFault::new("metrics", format!("expected names of 1 to {LONGEST_NAME} bytes")));
        }
        self.metrics.iter().try_for_each(|(name, value)| finite(&format!("metrics.{name}"), Some(*value)))
    }
}

impl RestartKind {
    pub const ALL: [RestartKind; 2] = [RestartKind::Restart, RestartKind::Resize];

    pub fn name(self) -> &'static str {
        match self {
            RestartKind::Restart => "restart",
            RestartKind::Resize => "resize",
        }
    }
}

impl Phases {
    /// What was measured, by name and in the order in which it happens.
    pub fn measured(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let all = [
            ("notice", self.notice),
            ("checkpoint", self.checkpoint),
            ("stop", self.stop),
            ("start", self.start),
            ("import", self.import),
            ("process_group", self.process_group),
            ("restore", self.restore),
            ("first_step", self.first_step),
        ];
        all.into_iter().filter_map(|(name, seconds)| Some((name, seconds?)))
    }

    /// The time in which nothing was trained.
    pub fn price_seconds(&self) -> f64 {
        self.measured().filter(|(name, _)| *name != "notice").map(|(_, seconds)| seconds).sum()
    }

    fn check(&self) -> Result<(), FieldFault> {
        if self.measured().next().is_none() {
            return Err(FieldFault::new("restart.phases", "expected at least one phase, found none"));
        }
        let sensible =
            |(name, seconds)| at_least_zero(&format!("restart.phases.{name}"), Some(seconds), LONGEST_STEP_SECONDS);
        self.measured().try_for_each(sensible)
    }
}

impl TrainerStatus {
    /// The same in our own words; steps are the share that is done of so many in all. Metrics whose text is no number
    /// are left out, as are more than we would take from anybody: this protocol swallows errors, so that a refusal would
    /// tell nobody.
    pub fn into_report(self, total_steps: Option<u64>) -> Result<ProgressReport, FieldFault> {
        at_least_zero("trainerStatus.progressPercentage", self.progress_percentage, 100.0)?;
        let number = |text: &str| text.trim().parse::<f64>().ok().filter(|value| value.is_finite());
        let named = |metric: &Metric| (1..=LONGEST_NAME).contains(&metric.name.len());
        let metrics = self.metrics.into_iter().filter(named);
        let metrics = metrics.filter_map(|metric| number(&metric.value).map(|value| (metric.name, value)));
        let mut metrics: BTreeMap<String, f64> = metrics.take(MOST_METRICS - 1).collect();
        let loss = metrics.remove("loss");
        let epoch = metrics.remove("epoch").filter(|&epoch| epoch >= 0.0);
        metrics.extend(self.progress_percentage.map(|percentage| ("progress_percentage".to_string(), percentage)));
        let done = |percentage: f64| total_steps.map(|total| (total as f64 * percentage / 100.0) as u64);
        let steps = self.progress_percentage.and_then(done);
        let report = ProgressReport { steps, loss, epoch, metrics, ..ProgressReport::default() };
        report.check().map(|()| report)
    }
}

fn finite(field: &str, value: Option<f64>) -> Result<(), FieldFault> {
    match value.filter(|value| !value.is_finite()) {
        None => Ok(()),
        Some(value) => Err(FieldFault::new(field, format!("expected a finite number, found {value}"))),
    }
}

fn positive(field: &str, value: Option<f64>) -> Result<(), FieldFault> {
    let sensible = |value: &f64| *value > 0.0 && *value <= LONGEST_STEP_SECONDS;
    match value.filter(|value| !sensible(value)) {
        None => Ok(()),
        Some(value) => Err(FieldFault::new(field, format!("expected a positive number of seconds, found {value}"))),
    }
}

fn at_least_zero(field: &str, value: Option<f64>, most: f64) -> Result<(), FieldFault> {
    match value.filter(|value| !(0.0..=most).contains(value)) {
        None => Ok(()),
        Some(value) if most == f64::MAX => {
            Err(FieldFault::new(field, format!("expected a finite number of at least 0, found {value}")))
        }
        Some(value) if most == LARGEST_NOISE => {
            Err(FieldFault::new(field, format!("expected a number from 0 to {most:e}, found {value:e}")))
        }
        Some(value) => Err(FieldFault::new(field, format!("expected a number from 0 to {most}, found {value}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(line: &str) -> String {
        ProgressReport::parse_line(line).unwrap_err().to_string()
    }

    #[test]
    fn a_line_of_a_file_is_the_object_of_the_endpoint() {
        let line =
            r#"{"steps": 120, "step_seconds": 0.25, "noise": {"sqr": 1e-3, "var": 0.5}, "checkpoint": {"steps": 100}}"#;
        let report = ProgressReport::parse_line(line).unwrap();
        assert_eq!((report.steps, report.step_seconds), (Some(120), Some(0.25)));
        assert_eq!(report.noise, Some(Noise { sqr: 1e-3, var: 0.5 }));
        let again = serde_json::to_string(&report).unwrap();
        assert_eq!(ProgressReport::parse_line(&again), Ok(report));
    }

    #[test]
    fn a_report_of_nothing_is_refused() {
        assert_eq!(fault(r#"{"run": "7/0"}"#), "progress: expected at least one figure, found none");
    }

    #[test]
    fn figures_no_training_has_are_refused_by_name() {
        assert_eq!(fault(r#"{"step_seconds": 0}"#), "step_seconds: expected a positive number of seconds, found 0");
        assert_eq!(
            fault(r#"{"noise": {"sqr": -1, "var": 1}}"#),
            "noise.sqr: expected a number from 0 to 1e100, found -1e0"
        );
        let noise = r#"{"noise": {"sqr": 1, "var": 1.7e308}}"#;
        assert_eq!(fault(noise), "noise.var: expected a number from 0 to 1e100, found 1.7e308");
        assert!(fault(r#"{"local_batch": 0}"#).starts_with("local_batch: expected from 1"));
        let loss = ProgressReport { loss: Some(f64::NAN), ..ProgressReport::default() };
        assert_eq!(loss.check().unwrap_err().to_string(), "loss: expected a finite number, found NaN");
        assert!(fault(r#"{"setps": 1}"#).contains("unknown field `setps`"));
    }

    #[test]
    fn the_price_of_an_interruption_is_all_but_the_notice() {
        let line = r#"{"restart": {"kind": "restart", "phases": {"notice": 5, "checkpoint": 0.5, "import": 2.25}}}"#;
        let restart = ProgressReport::parse_line(line).unwrap().restart.unwrap();
        assert_eq!((restart.kind, restart.phases.price_seconds()), (RestartKind::Restart, 2.75));
        let names: Vec<&str> = restart.phases.measured().map(|(name, _)| name).collect();
        assert_eq!(names, ["notice", "checkpoint", "import"]);
    }

    #[test]
    fn phases_that_are_none_are_refused_by_name() {
        let of = |phases: &str| fault(&format!(r#"{{"restart": {{"kind": "resize", "phases": {phases}}}}}"#));
        assert!(of(r#"{"inport": 1}"#).contains("unknown field `inport`"));
        assert_eq!(of("{}"), "restart.phases: expected at least one phase, found none");
        assert_eq!(of(r#"{"start": -1}"#), "restart.phases.start: expected a number from 0 to 1000000, found -1");
        assert!(fault(r#"{"restart": {"kind": "reboot", "phases": {}}}"#).contains("unknown variant `reboot`"));
    }

    #[test]
    fn a_saved_state_cannot_be_from_the_future() {
        let line = r#"{"checkpoint": {"steps": 7, "age_seconds": -1}}"#;
        assert_eq!(fault(line), "checkpoint.age_seconds: expected a finite number of at least 0, found -1");
    }

    #[test]
    fn metrics_are_limited() {
        let metrics = (0..101).map(|index| (format!("m{index}"), 0.0)).collect();
        let report = ProgressReport { metrics, ..ProgressReport::default() };
        assert_eq!(report.check().unwrap_err().to_string(), "metrics: expected at most 100, found 101");
    }

    #[test]
    fn what_hugging_face_sends_is_understood() {
        let body = r#"{"trainerStatus": {"lastUpdatedTime": "2026-11-20T09:00:00Z", "progressPercentage": 40,
            "estimatedRemainingSeconds": 12, "metrics": [{"name": "loss", "value": "0.69"},
            {"name": "epoch", "value": "1.5"}, {"name": "grad_norm", "value": "2"}, {"name": "note", "value": "hot"}]}}"#;
        let report: KubeflowReport = serde_json::from_str(body).unwrap();
        let report = report.trainer_status.into_report(Some(200)).unwrap();
        assert_eq!((report.steps, report.loss, report.epoch), (Some(80), Some(0.69), Some(1.5)));
        let metrics = [("grad_norm".to_string(), 2.0), ("progress_percentage".to_string(), 40.0)];
        assert_eq!(report.metrics, BTreeMap::from(metrics));
    }

    #[test]
    fn a_share_that_is_none_is_refused() {
        let status = TrainerStatus { progress_percentage: Some(140.0), ..TrainerStatus::default() };
        let fault = status.into_report(None).unwrap_err().to_string();
        assert_eq!(fault, "trainerStatus.progressPercentage: expected a number from 0 to 100, found 140");
    }
}
