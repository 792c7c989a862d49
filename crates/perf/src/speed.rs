//! Iterations per second, from the kind of GPU, the number of workers, the network between them and the batch size.

use std::sync::Arc;

use cluster::{Bandwidth, Bytes, Cluster, GpuKind, Gpus, Invalid, JobSpec, Placement, Shape};
use serde::{Deserialize, Serialize};

use crate::adaptation::Adaptation;

/// What one job does in a second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Speed {
    /// Iterations per second of the job at `scaling`'s reference: one worker, or all of them for [`ScalingLaw::Gang`].
    pub rates: Rates,
    pub scaling: ScalingLaw,
    /// What all workers exchange after every iteration; costs time only between nodes.
    pub gradients: Bytes,
    /// Examples at which a larger batch begins to lose efficiency (the gradient noise scale); only for adaptive jobs.
    pub noise_scale: Option<f64>,
    /// For jobs that are tuned while they run and whose speed is learnt by that.
    pub adaptation: Option<Arc<Adaptation>>,
}

/// A table of measured or declared rates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Rates {
    /// The same everywhere, with or without GPUs.
    Anywhere(f64),
    /// By kind of GPU; a kind that is not listed cannot run the job.
    ByKind(Vec<(GpuKind, f64)>),
}

/// How the rate grows with the number of workers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ScalingLaw {
    /// The table already speaks of the whole gang: more workers than asked for change nothing.
    Gang,
    /// Twice the workers, twice the rate.
    Linear,
    /// Rate proportional to workers to this power, between 0 and 1.
    Power(f64),
    /// This share of every iteration cannot be spread over workers (Amdahl's law).
    Serial(f64),
    /// Measured: rate relative to one worker, by number of workers, ascending; straight lines in between, and the last
    /// value beyond.
    Table(Vec<(u32, f64)>),
}

/// Everything a rate depends on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Situation {
    pub kind: Option<GpuKind>,
    pub workers: u32,
    pub nodes: u32,
    /// Narrowest link between the workers; none within one node.
    pub bottleneck: Option<Bandwidth>,
    /// The part of a GPU that each slice is.
    pub share: Gpus,
    /// Batch size over the size the job was designed for.
    pub batch_growth: f64,
    /// The designed batch size, in examples.
    pub batch: f64,
}

impl Situation {
    /// A job exactly where it runs.
    pub fn placed(spec: &JobSpec, placement: &Placement, batch: Option<u32>, cluster: &Cluster) -> Situation {
        Situation::new(spec, placement.shape(cluster), placement.bottleneck(cluster), batch)
    }

    /// A job in a shape, wherever that may be: across nodes it is taken to talk over the narrowest node's network.
    pub fn shaped(spec: &JobSpec, shape: Shape, batch: Option<u32>, cluster: &Cluster) -> Situation {
        let narrowest = || cluster.nodes().map(|(_, node)| node.network).min();
        Situation::new(spec, shape, if shape.nodes > 1 { narrowest() } else { None }, batch)
    }

    fn new(spec: &JobSpec, shape: Shape, bottleneck: Option<Bandwidth>, batch: Option<u32>) -> Situation {
        let designed = spec.scaling.batch().map_or(1, |batch| batch.initial);
        Situation {
            kind: shape.kind,
            workers: shape.workers,
            nodes: shape.nodes,
            bottleneck,
            share: spec.roles[0].slice.map_or(Gpus::whole(1), |slice| slice.grain.share()),
            batch_growth: f64::from(batch.unwrap_or(designed)) / f64::from(designed),
            batch: f64::from(designed),
        }
    }
}

impl Speed {
    /// So many iterations per second for the gang asked for, wherever it runs.
    pub fn constant(rate: f64) -> Speed {
        Speed {
            rates: Rates::Anywhere(rate),
            scaling: ScalingLaw::Gang,
            gradients: Bytes::ZERO,
            noise_scale: None,
            adaptation: None,
        }
    }

    /// Whether the job can run with so many workers on a kind of GPU, as far as the kind decides it.
    pub fn allows(&self, kind: Option<GpuKind>, workers: u32) -> bool {
        match (&self.adaptation, kind) {
            (Some(adaptation), Some(kind)) => adaptation.replicas(kind, workers).is_some(),
            (Some(_), None) => false,
            (None, _) => true,
        }
    }

    /// Progress per second, in iterations of the designed batch size; `None` where the job cannot run.
    pub fn rate(&self, situation: &Situation) -> Option<f64> {
        if !self.allows(situation.kind, situation.workers) {
            return None;
        }
        let reference = match &self.rates {
            Rates::Anywhere(rate) => *rate,
            Rates::ByKind(table) => table.iter().find(|(kind, _)| Some(*kind) == situation.kind)?.1,
        };
        let compute = reference * situation.share.as_f64() * self.scaling.speedup(situation.workers);
        if situation.bottleneck.is_none() && situation.batch_growth == 1.0 {
            return Some(compute);
        }
        let step_secs = situation.batch_growth / compute + self.exchange_secs(situation);
        Some(situation.batch_growth * self.efficiency(situation) / step_secs)
    }

    /// Seconds of a ring all-reduce between the nodes: each link carries 2 (n-1)/n of the gradients.
    fn exchange_secs(&self, situation: &Situation) -> f64 {
        let nodes = f64::from(situation.nodes);
        situation
            .bottleneck
            .map_or(0.0, |link| 2.0 * (nodes - 1.0) / nodes * self.gradients.get() as f64 / link.bytes_per_sec())
    }

    /// What an example in the grown batch is worth beside one in the designed batch: (noise + M0) / (noise + M), the
    /// statistical efficiency of Pollux (OSDI 2021, section 3).
    fn efficiency(&self, situation: &Situation) -> f64 {
        self.noise_scale
            .map_or(1.0, |noise| (noise + situation.batch) / (noise + situation.batch * situation.batch_growth))
    }

    /// Checks that every figure is one a speed can have.
    pub fn check(&self) -> Result<(), Invalid> {
        let positive = |field: &str, value: f64| match value.is_finite() && value > 0.0 {
            true => Ok(()),
            false => Err(Invalid::new(field, "a positive number", value)),
        };
        match &self.rates {
            Rates::Anywhere(rate) => positive("speed", *rate)?,
            Rates::ByKind(table) if table.is_empty() => {
                return Err(Invalid::new("speed", "the rate on at least one kind of GPU", "none"));
            }
            Rates::ByKind(table) => table.iter().try_for_each(|(_, rate)| positive("speed", *rate))?,
        }
        if let Some(noise) = self.noise_scale {
            positive("noise_scale", noise)?;
        }
        if let Some(adaptation) = &self.adaptation {
            adaptation.check()?;
        }
        self.scaling.check()
    }
}

impl ScalingLaw {
    pub fn speedup(&self, workers: u32) -> f64 {
        let workers = f64::from(workers);
        match self {
            ScalingLaw::Gang => 1.0,
            ScalingLaw::Linear => workers,
            ScalingLaw::Power(exponent) => workers.powf(*exponent),
            ScalingLaw::Serial(serial) => 1.0 / (serial + (1.0 - serial) / workers),
            ScalingLaw::Table(rows) => interpolate(rows, workers),
        }
    }

    fn check(&self) -> Result<(), Invalid> {
        match self {
            ScalingLaw::Gang | ScalingLaw::Linear => Ok(()),
            ScalingLaw::Power(share) | ScalingLaw::Serial(share) if (0.0..=1.0).contains(share) => Ok(()),
            ScalingLaw::Power(share) | ScalingLaw::Serial(share) => {
                Err(Invalid::new("scaling", "a number between 0 and 1", share))
            }
            ScalingLaw::Table(rows) => {
                let ascending = rows.windows(2).all(|pair| pair[0].0 < pair[1].0);
                let positive = rows.iter().all(|&(workers, rate)| workers > 0 && rate > 0.0 && rate.is_finite());
                match ascending && positive && !rows.is_empty() {
                    true => Ok(()),
                    false => {
                        Err(Invalid::new("scaling", "rows of ascending workers with positive rates", "other rows"))
                    }
                }
            }
        }
    }
}

fn interpolate(rows: &[(u32, f64)], workers: f64) -> f64 {
    let above = rows.partition_point(|&(row, _)| f64::from(row) < workers);
    let Some(&(high, fast)) = rows.get(above) else { return rows[rows.len() - 1].1 };
    let (low, slow) = if above == 0 { (0, 0.0) } else { rows[above - 1] };
    slow + (fast - slow) * (workers - f64::from(low)) / f64::from(high - low)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::{BatchRange, ClusterDraft, Scaling, WorkerRange};

    fn situation(workers: u32, bottleneck: Option<Bandwidth>) -> Situation {
        Situation {
            kind: None,
            workers,
            nodes: if bottleneck.is_some() { 2 } else { 1 },
            bottleneck,
            share: Gpus::whole(1),
            batch_growth: 1.0,
            batch: 1.0,
        }
    }

    #[test]
    fn a_tenth_serial_never_runs_ten_times_as_fast() {
        let speed = Speed { scaling: ScalingLaw::Serial(0.1), ..Speed::constant(2.0) };
        assert_eq!(speed.rate(&situation(1, None)), Some(2.0));
        assert!(speed.rate(&situation(1000, None)).unwrap() < 20.0);
    }

    #[test]
    fn a_measured_table_is_followed_by_straight_lines() {
        let law = ScalingLaw::Table(vec![(1, 1.0), (4, 3.1), (8, 5.0)]);
        assert_eq!((law.speedup(1), law.speedup(4), law.speedup(16)), (1.0, 3.1, 5.0));
        assert!((law.speedup(6) - 4.05).abs() < 1e-12);
    }

    #[test]
    fn a_narrow_link_slows_the_exchange() {
        let speed = Speed { gradients: Bytes::new(125_000_000), ..Speed::constant(1.0) };
        let wide = speed.rate(&situation(2, Some(Bandwidth::gbps(100)))).unwrap();
        let narrow = speed.rate(&situation(2, Some(Bandwidth::gbps(1)))).unwrap();
        assert!((wide - 1.0 / 1.01).abs() < 1e-12, "0.01 s of exchange: {wide}");
        assert!((narrow - 0.5).abs() < 1e-12, "1 s of exchange: {narrow}");
    }

    #[test]
    fn a_larger_batch_hides_the_exchange_but_teaches_less_per_example() {
        let speed = Speed { gradients: Bytes::new(125_000_000), noise_scale: Some(300.0), ..Speed::constant(1.0) };
        let link = Some(Bandwidth::gbps(1));
        let grown = Situation { batch: 100.0, batch_growth: 3.0, ..situation(2, link) };
        // Three batches of work in 4 s instead of 6 s, at efficiency (300 + 100) / (300 + 300).
        assert!((speed.rate(&grown).unwrap() - 3.0 * (400.0 / 600.0) / 4.0).abs() < 1e-12);
    }

    #[test]
    fn a_kind_that_is_not_in_the_table_cannot_run_the_job() {
        let speed = Speed { rates: Rates::ByKind(vec![(GpuKind(1), 3.0)]), ..Speed::constant(1.0) };
        let on = |kind| speed.rate(&Situation { kind: Some(GpuKind(kind)), ..situation(1, None) });
        assert_eq!((on(0), on(1)), (None, Some(3.0)));
    }

    #[test]
    fn growth_of_the_batch_is_counted_from_the_designed_size() {
        let (cluster, _) = ClusterDraft::parse_short("1x4").unwrap().build().unwrap();
        let range = WorkerRange { min: 1, max: 4 };
        let scaling = Scaling::Adaptive(range, BatchRange { initial: 64, max: 512 });
        let spec = cluster::JobDraft { scaling, ..cluster::JobDraft::rigid("a", 1) }.build().unwrap();
        let shape = Shape { kind: None, workers: 2, nodes: 1 };
        assert_eq!(Situation::shaped(&spec, shape, Some(128), &cluster).batch_growth, 2.0);
        assert_eq!(Situation::shaped(&spec, shape, None, &cluster).batch_growth, 1.0);
    }

    #[test]
    fn figures_no_speed_can_have_are_refused() {
        let error = |speed: Speed| speed.check().unwrap_err().to_string();
        assert_eq!(error(Speed::constant(f64::NAN)), "speed: expected a positive number, found NaN");
        let backwards = ScalingLaw::Table(vec![(4, 1.0), (2, 2.0)]);
        let error = error(Speed { scaling: backwards, ..Speed::constant(1.0) });
        assert_eq!(error, "scaling: expected rows of ascending workers with positive rates, found other rows");
    }
}
