//! A catalogue of real trainings: step times as the seven parameters of Pollux's model, fitted to what was measured on
//! each kind of GPU, gradient noise at a few points of the training, batch limits, lengths. With it a workload that
//! names applications runs without any data, not as exactly as with the measurements: `docs/catalogue.md` says how far
//! it is from them. `cargo xtask catalogue` writes the figures.

use std::collections::BTreeMap;

use cluster::{Cluster, GpuKind, Span};
use perf::{Adaptation, BatchRule, Course, GradientNoise, KindLimits, Line, Pipeline, StepTime, StepTimes};
use serde::{Deserialize, Serialize};

use crate::error::{Error, shown};
use crate::profiles::{Application, Figures, Origin, Profiles};

/// What `--profiles` calls it.
pub(crate) const NAME: &str = "catalogue";

/// Where all of it comes from.
pub(crate) const SOURCE: &str = "the catalogue's, fitted to measurements of Sia (docs/catalogue.md)";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalogue {
    pub models: Vec<Model>,
}

/// One training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// What workloads call it.
    pub name: String,
    /// The network and what it learns from.
    pub title: String,
    /// The batch size the training was designed for, and the largest one.
    pub initial: u32,
    pub max: u32,
    pub epochs: u32,
    /// Iterations of the designed batch size in all of them.
    pub progress: f64,
    pub noise: Noise,
    pub kinds: Vec<OnKind>,
}

/// The gradient noise scale (φ of McCandlish et al.), in examples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Noise {
    /// The batch sizes of the runs it was measured in.
    pub batches: [u32; 3],
    /// An epoch, counted from 0, and the scale in each of the runs; ascending from the first to the last epoch.
    pub points: Vec<(u32, [f64; 3])>,
}

/// A training on one kind of GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OnKind {
    pub kind: String,
    /// Fewest and most examples of one replica at a time.
    pub local: (u32, u32),
    /// Examples per second of one replica alone.
    pub alone: f64,
    /// The most workers of a job, where larger ones were not measured and cannot be told from smaller ones.
    pub workers_max: Option<u32>,
    #[serde(flatten)]
    pub steps: Steps,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Steps {
    Fitted {
        /// α_c β_c α_n β_n α_r β_r γ, in seconds but for γ.
        theta: [f64; 7],
        /// What the fit could not explain (`perf::loss`).
        loss: f64,
    },
    Piped {
        /// Seconds of one micro-batch forward through one stage.
        forward_s: f64,
        stages: u32,
        micro_batches: u32,
        /// Exchange of gradients between and within nodes, as in `theta`.
        between_nodes: [f64; 2],
        within_node: [f64; 2],
    },
}

impl Catalogue {
    /// The figures that Moira is built with.
    pub fn embedded() -> Catalogue {
        Catalogue::parse(include_str!("catalogue/figures.toml")).expect("the figures of the catalogue can be read")
    }

    pub fn parse(text: &str) -> Result<Catalogue, toml::de::Error> {
        toml::from_str(text)
    }

    /// The kinds of GPU of which it knows something, in alphabetical order.
    pub fn kinds(&self) -> Vec<&str> {
        let mut kinds: Vec<&str> =
            self.models.iter().flat_map(|model| &model.kinds).map(|here| here.kind.as_str()).collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }

    /// All trainings on the kinds of GPU of a cluster; at least one of these must be known.
    pub fn profiles(&self, cluster: &Cluster) -> Result<Profiles, Error> {
        let mut applications = BTreeMap::new();
        for model in &self.models {
            applications.extend(model.application(cluster).map(|application| (model.name.clone(), application)));
        }
        match applications.is_empty() {
            false => Ok(Profiles::of(applications)),
            true => {
                let found: Vec<&str> = cluster.kinds().map(|(_, kind)| &*kind.name).collect();
                let (known, found) = (self.kinds().join(", "), shown(&found.join(", ")));
                Err(Error::Name(format!("catalogue: expected a cluster with GPUs of {known}, found {found}")))
            }
        }
    }
}

impl Model {
    /// `None` if the cluster has no kind of GPU on which it was measured.
    fn application(&self, cluster: &Cluster) -> Option<Application> {
        let here = |(kind, described): (GpuKind, &cluster::Kind)| {
            let measured = self.kinds.iter().find(|measured| *measured.kind == *described.name)?;
            Some((kind, measured))
        };
        let measured: Vec<(GpuKind, &OnKind)> = cluster.kinds().filter_map(here).collect();
        if measured.is_empty() {
            return None;
        }
        let figures = Figures::of(Origin::Sia, &self.name);
        let adaptation = Adaptation {
            initial: self.initial,
            max: self.max,
            rule: BatchRule::Tuned { asked: None },
            kinds: measured.iter().map(|(kind, here)| here.limits(*kind)).collect(),
            restart: Span::from_secs(figures.assumed_restart_s),
        };
        let course = Course {
            initial: self.initial,
            steps: measured.iter().map(|(kind, here)| (*kind, here.steps.times())).collect(),
            epochs: (1..=self.epochs).map(|end| self.progress * f64::from(end) / f64::from(self.epochs)).collect(),
            noise: self.noise.by_batch(self.initial, self.max, self.epochs),
            iterations: Vec::new(),
            slowdown: figures.slowdown,
        };
        course.check().expect("the figures of the catalogue are sound");
        adaptation.check().expect("the figures of the catalogue are sound");
        Some(Application::new(course, adaptation, Span::from_secs(figures.restart_s)))
    }
}

impl OnKind {
    fn limits(&self, kind: GpuKind) -> KindLimits {
        let stages = match self.steps {
            Steps::Fitted { .. } => 1,
            Steps::Piped { stages, .. } => stages,
        };
        let ((local_min, local_max), alone) = (self.local, Some(self.alone));
        KindLimits { kind, local_min, local_max, shapes: Vec::new(), alone, stages, workers_max: self.workers_max }
    }
}

impl Steps {
    pub fn times(&self) -> StepTimes {
        let line = |fixed: f64, slope: f64| Line { fixed, slope };
        match *self {
            Steps::Fitted { theta: [alpha, beta, between, between_each, within, within_each, overlap], .. } => {
                StepTimes::Fitted(StepTime {
                    compute: line(alpha, beta),
                    between_nodes: line(between, between_each),
                    within_node: line(within, within_each),
                    overlap,
                })
            }
            Steps::Piped { forward_s, stages, micro_batches, between_nodes, within_node } => {
                StepTimes::Piped(Pipeline {
                    stages,
                    micro_batches,
                    micro_batch: 1,
                    forward_secs: forward_s,
                    between_nodes: line(between_nodes[0], between_nodes[1]),
                    within_node: line(within_node[0], within_node[1]),
                })
            }
        }
    }
}

impl Noise {
    /// The noise in every epoch at the designed batch size and its doublings.
    fn by_batch(&self, initial: u32, max: u32, epochs: u32) -> Vec<(u32, Vec<GradientNoise>)> {
        let doublings = std::iter::successors(Some(initial), |batch| batch.checked_mul(2).filter(|&next| next < max));
        let batches = doublings.chain((max > initial).then_some(max));
        let noise = |epoch, batch| GradientNoise { sqr: 1.0, var: self.at(epoch, batch) / f64::from(initial) };
        batches.map(|batch| (batch, (0..epochs).map(|epoch| noise(epoch, batch)).collect())).collect()
    }

    /// Straight lines between the points, on a logarithmic scale of the noise and of the batch; the ends beyond them.
    pub fn at(&self, epoch: u32, batch: u32) -> f64 {
        let after = self.points.partition_point(|(known, _)| *known < epoch).min(self.points.len() - 1);
        let (high, low) = (&self.points[after], &self.points[after.saturating_sub(1)]);
        let part = part_of(f64::from(low.0), f64::from(high.0), f64::from(epoch));
        let in_run = |run: usize| low.1[run].ln() + part * (high.1[run].ln() - low.1[run].ln());
        let above = self.batches.partition_point(|&known| known < batch).clamp(1, 2);
        let [small, large] = [above - 1, above].map(|run| f64::from(self.batches[run]).ln());
        let part = part_of(small, large, f64::from(batch).ln());
        (in_run(above - 1) + part * (in_run(above) - in_run(above - 1))).exp()
    }
}

fn part_of(from: f64, to: f64, at: f64) -> f64 {
    if to > from { ((at - from) / (to - from)).clamp(0.0, 1.0) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load_cluster;

    #[test]
    fn noise_lies_on_straight_lines_between_its_points() {
        let points = vec![(0, [10.0, 100.0, 100.0]), (4, [1000.0, 100.0, 100.0])];
        let noise = Noise { batches: [8, 32, 128], points };
        let check = |epoch, batch, expected: f64| {
            let found = noise.at(epoch, batch);
            assert!((found / expected - 1.0).abs() < 1e-9, "epoch {epoch}, batch {batch}: {found}, not {expected}");
        };
        check(0, 8, 10.0);
        check(2, 8, 100.0);
        check(4, 8, 1000.0);
        check(9, 8, 1000.0);
        check(0, 16, 1000f64.sqrt());
        check(0, 64, 100.0);
        check(4, 500, 100.0);
    }

    #[test]
    fn every_training_is_known_on_the_kinds_it_was_measured_on() {
        let catalogue = Catalogue::embedded();
        let known = |model: &Model| {
            let kinds: Vec<&str> = model.kinds.iter().map(|here| here.kind.as_str()).collect();
            format!("{}: {}", model.name, kinds.join(" "))
        };
        let found: Vec<String> = catalogue.models.iter().map(known).collect();
        let everywhere = "t4 rtx2080ti a100 rtx6000";
        let mut expected: Vec<String> = ["cifar10", "imagenet", "bert", "deepspeech2", "yolov3", "ncf"]
            .map(|name| format!("{name}: {everywhere}"))
            .into();
        expected.push("gpt_pmp: rtx2080ti a100".into());
        assert_eq!(found, expected);
    }

    #[test]
    fn a_cluster_without_any_known_kind_is_refused_by_naming_the_known_ones() {
        let profiles = |cluster: &str| Catalogue::embedded().profiles(&load_cluster(cluster).unwrap().0);
        let error = profiles("2x8 h100, 1x4 v100").unwrap_err().to_string();
        let expected = "catalogue: expected a cluster with GPUs of a100, rtx2080ti, rtx6000, t4, found h100, v100";
        assert_eq!(error, expected);
        assert!(profiles("2x8 h100, 1x4 t4").unwrap().get("bert").is_some());
        assert!(profiles("1x4 t4").unwrap().get("gpt_pmp").is_none(), "GPT was not measured on T4");
    }

    #[test]
    fn one_gpu_trains_at_the_rate_it_was_found_to_have() {
        let cluster = load_cluster("1x4 t4").unwrap().0;
        let catalogue = Catalogue::embedded();
        for model in catalogue.models.iter().filter(|model| model.kinds[0].kind == "t4") {
            let StepTimes::Fitted(step) = model.kinds[0].steps.times() else { panic!("T4 runs no pipelines") };
            let (_, local) = model.kinds[0].local;
            let found = f64::from(local) / step.step_secs(1, 1, f64::from(local));
            let ratio = found / model.kinds[0].alone;
            assert!((0.5..2.0).contains(&ratio), "{}: {found}, measured {}", model.name, model.kinds[0].alone);
            assert!(model.application(&cluster).is_some());
        }
    }
}
