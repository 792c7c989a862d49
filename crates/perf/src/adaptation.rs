//! What is known beforehand about a job whose speed is learnt while it runs: how far its batch may change, what fits
//! into the memory of each kind of GPU, and how fast one worker was found to be there.

use cluster::{GpuKind, Invalid, Span};
use serde::{Deserialize, Serialize};

use crate::goodput::{BatchLimits, Tuning};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Adaptation {
    /// The batch size the training was designed for, over all workers (M0 of Pollux).
    pub initial: u32,
    /// The largest batch size with which the training still converges.
    pub max: u32,
    pub rule: BatchRule,
    /// The kinds of GPU on which the job can run.
    pub kinds: Vec<KindLimits>,
    /// What a restart is thought to cost.
    pub restart: Span,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum BatchRule {
    /// Whatever batch between the initial and the largest gives most goodput.
    Tuned {
        /// What a user who tuned the batch by hand asked for.
        asked: Option<u32>,
    },
    /// Always so many examples.
    Fixed(u32),
}

/// What a kind of GPU allows and promises.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KindLimits {
    pub kind: GpuKind,
    /// Fewest examples one worker takes at a time.
    pub local_min: u32,
    /// Most examples that fit into the memory of one worker.
    pub local_max: u32,
    /// Where fewer (or more) were found to fit: by nodes and workers, in this order.
    pub shapes: Vec<ShapeLimit>,
    /// Examples per second of one replica alone, from a short profile before the job began.
    pub alone: Option<f64>,
    /// The workers of one replica: one, or the stages of the pipeline into which the model is cut here. What is said of
    /// a worker's batch is then said of a pipeline's, which is always `local_max`.
    #[serde(default = "one")]
    pub stages: u32,
    /// The most workers with which it is known how to run here; without it, any number.
    #[serde(default)]
    pub workers_max: Option<u32>,
}

fn one() -> u32 {
    1
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShapeLimit {
    pub nodes: u32,
    pub workers: u32,
    pub local_max: u32,
}

impl Adaptation {
    pub fn on(&self, kind: GpuKind) -> Option<&KindLimits> {
        self.kinds.iter().find(|limits| limits.kind == kind)
    }

    /// The most replicas it makes sense to have on a kind: each has to get its least share of the largest batch.
    pub fn most_replicas(&self, kind: GpuKind) -> u32 {
        self.on(kind).map_or(0, |limits| self.max / limits.local_min)
    }

    /// The replicas that so many workers on a kind make; `None` if they make no whole number, or none can run there.
    pub fn replicas(&self, kind: GpuKind, workers: u32) -> Option<u32> {
        self.on(kind)?.replicas(workers)
    }

    /// The fewest workers, but at least so many, with which it can run on a kind.
    pub fn least_workers(&self, kind: GpuKind, at_least: u32) -> Option<u32> {
        let limits = self.on(kind)?;
        let workers = at_least.max(1).next_multiple_of(limits.stages);
        limits.replicas(workers).map(|_| workers)
    }

    pub fn check(&self) -> Result<(), Invalid> {
        let at_least = |field: &str, value: u32, least: u32| match value >= least {
            true => Ok(()),
            false => Err(Invalid::new(field, format!("at least {least}"), value)),
        };
        at_least("batch.initial", self.initial, 1)?;
        at_least("batch.max", self.max, self.initial)?;
        if let BatchRule::Fixed(batch) | BatchRule::Tuned { asked: Some(batch) } = self.rule {
            at_least("batch", batch, 1)?;
        }
        if self.kinds.is_empty() {
            return Err(Invalid::new("kinds", "at least one kind of GPU on which it can run", "none"));
        }
        for limits in &self.kinds {
            at_least("stages", limits.stages, 1)?;
            at_least("local_min", limits.local_min, 1)?;
            at_least("local_max", limits.local_max, limits.local_min)?;
            if limits.alone.is_some_and(|rate| !(rate.is_finite() && rate > 0.0)) {
                return Err(Invalid::new("alone", "a positive number", limits.alone.unwrap_or(f64::NAN)));
            }
        }
        Ok(())
    }
}

impl KindLimits {
    /// The replicas that so many workers make, if they make a whole number and so many are allowed.
    pub fn replicas(&self, workers: u32) -> Option<u32> {
        let known = self.workers_max.is_none_or(|most| workers <= most);
        (known && workers > 0 && workers.is_multiple_of(self.stages)).then(|| workers / self.stages)
    }

    /// The most of so many workers that can be of use: whole replicas, and no more than are allowed.
    pub fn usable(&self, workers: u32) -> u32 {
        let workers = self.workers_max.map_or(workers, |most| workers.min(most));
        workers - workers % self.stages
    }

    /// How a pipeline spreads its batch, which is not tuned: as many micro-batches as keep it busy, in one pass.
    pub fn pipelined(&self) -> Option<Tuning> {
        (self.stages > 1).then_some(Tuning { local: self.local_max, accumulations: 0 })
    }

    /// The most examples one worker of this shape takes at a time.
    pub fn local_max_of(&self, nodes: u32, workers: u32) -> u32 {
        let exact = self.shapes.binary_search_by_key(&(nodes, workers), |shape| (shape.nodes, shape.workers));
        exact.map_or(self.local_max, |found| self.shapes[found].local_max)
    }

    pub(crate) fn batch_limits(&self, adaptation: &Adaptation, local_max: u32) -> BatchLimits {
        BatchLimits { initial: adaptation.initial, max: adaptation.max, local_min: self.local_min, local_max }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adaptation() -> Adaptation {
        let shapes = vec![ShapeLimit { nodes: 2, workers: 16, local_max: 40 }];
        let limits = KindLimits {
            kind: GpuKind(0),
            local_min: 10,
            local_max: 80,
            shapes,
            alone: Some(31.5),
            stages: 1,
            workers_max: None,
        };
        let rule = BatchRule::Tuned { asked: Some(320) };
        Adaptation { initial: 20, max: 640, rule, kinds: vec![limits], restart: Span::from_secs(25) }
    }

    #[test]
    fn a_shape_that_was_measured_has_a_limit_of_its_own() {
        let limits = &adaptation().kinds[0];
        assert_eq!((limits.local_max_of(2, 16), limits.local_max_of(1, 8)), (40, 80));
    }

    #[test]
    fn every_replica_gets_its_least_share() {
        assert_eq!((adaptation().most_replicas(GpuKind(0)), adaptation().most_replicas(GpuKind(1))), (64, 0));
    }

    #[test]
    fn workers_of_a_pipeline_make_whole_replicas() {
        let mut pipeline = adaptation();
        pipeline.kinds[0].stages = 8;
        let replicas = [4, 8, 12, 16].map(|workers| pipeline.replicas(GpuKind(0), workers));
        assert_eq!(replicas, [None, Some(1), None, Some(2)]);
        assert_eq!(pipeline.replicas(GpuKind(1), 8), None, "a kind on which it cannot run");
        assert_eq!([7, 8, 23].map(|workers| pipeline.kinds[0].usable(workers)), [0, 8, 16]);
        pipeline.kinds[0].workers_max = Some(8);
        assert_eq!(pipeline.kinds[0].usable(23), 8);
        assert_eq!(pipeline.replicas(GpuKind(0), 16), None, "more than were ever tried");
        let least = [0, 1, 9].map(|workers| pipeline.least_workers(GpuKind(0), workers));
        assert_eq!(least, [Some(8), Some(8), None]);
    }

    #[test]
    fn contradictory_bounds_are_refused() {
        assert_eq!(adaptation().check(), Ok(()));
        let error = |change: fn(&mut Adaptation)| {
            let mut adaptation = adaptation();
            change(&mut adaptation);
            adaptation.check().unwrap_err().to_string()
        };
        assert_eq!(error(|job| job.max = 10), "batch.max: expected at least 20, found 10");
        assert_eq!(error(|job| job.kinds[0].local_max = 5), "local_max: expected at least 10, found 5");
        assert_eq!(error(|job| job.kinds[0].stages = 0), "stages: expected at least 1, found 0");
        assert_eq!(
            error(|job| job.kinds.clear()),
            "kinds: expected at least one kind of GPU on which it can run, found none"
        );
        assert_eq!(error(|job| job.kinds[0].alone = Some(f64::NAN)), "alone: expected a positive number, found NaN");
    }
}
