//! What the generator's jobs train, and how fast GPUs of different kinds are at it.
//!
//! Gradient sizes and skews follow from the public parameter counts of the networks. Every other figure is ours, chosen
//! so that jobs differ in what they care for; none is a measurement.

use cluster::{Cluster, GpuKind};
use perf::{Rates, ScalingLaw};

pub(crate) struct Model {
    pub(crate) name: &'static str,
    pub(crate) scaling: ScalingLaw,
    /// Largest tensor over all parameters, in thousandths.
    pub(crate) skew: u16,
    pub(crate) gradients_mib: u64,
    pub(crate) step_s: f64,
    pub(crate) batch_per_gpu: u32,
    pub(crate) noise_scale: f64,
    /// How much of a kind's advantage the model can use: its speed is the kind's to this power.
    pub(crate) kind_exponent: f64,
    pub(crate) checkpoint_every_s: u64,
    pub(crate) checkpoint_s: u64,
    pub(crate) restart_s: u64,
    pub(crate) cores: u32,
    pub(crate) memory_gib: u64,
    pub(crate) gpu_memory_gib: u64,
}

pub(crate) const MODELS: [Model; 6] = [
    Model {
        name: "resnet50",
        scaling: ScalingLaw::Power(0.92),
        skew: 90,
        gradients_mib: 98,
        step_s: 0.25,
        batch_per_gpu: 64,
        noise_scale: 4000.0,
        kind_exponent: 0.9,
        checkpoint_every_s: 900,
        checkpoint_s: 4,
        restart_s: 30,
        cores: 5,
        memory_gib: 24,
        gpu_memory_gib: 9,
    },
    Model {
        name: "vgg16",
        scaling: ScalingLaw::Serial(0.08),
        skew: 743,
        gradients_mib: 528,
        step_s: 0.4,
        batch_per_gpu: 32,
        noise_scale: 1500.0,
        kind_exponent: 1.05,
        checkpoint_every_s: 1200,
        checkpoint_s: 8,
        restart_s: 35,
        cores: 4,
        memory_gib: 20,
        gpu_memory_gib: 10,
    },
    Model {
        name: "bert-base",
        scaling: ScalingLaw::Power(0.85),
        skew: 213,
        gradients_mib: 418,
        step_s: 0.5,
        batch_per_gpu: 16,
        noise_scale: 800.0,
        kind_exponent: 1.15,
        checkpoint_every_s: 1800,
        checkpoint_s: 10,
        restart_s: 60,
        cores: 2,
        memory_gib: 16,
        gpu_memory_gib: 10,
    },
    Model {
        name: "yolov5",
        scaling: ScalingLaw::Power(0.9),
        skew: 50,
        gradients_mib: 80,
        step_s: 0.3,
        batch_per_gpu: 16,
        noise_scale: 1200.0,
        kind_exponent: 0.75,
        checkpoint_every_s: 900,
        checkpoint_s: 5,
        restart_s: 40,
        cores: 6,
        memory_gib: 24,
        gpu_memory_gib: 8,
    },
    Model {
        name: "deepspeech2",
        scaling: ScalingLaw::Serial(0.04),
        skew: 120,
        gradients_mib: 145,
        step_s: 0.35,
        batch_per_gpu: 20,
        noise_scale: 600.0,
        kind_exponent: 0.6,
        checkpoint_every_s: 1200,
        checkpoint_s: 6,
        restart_s: 45,
        cores: 3,
        memory_gib: 16,
        gpu_memory_gib: 8,
    },
    Model {
        name: "ncf",
        scaling: ScalingLaw::Power(0.7),
        skew: 920,
        gradients_mib: 120,
        step_s: 0.1,
        batch_per_gpu: 1024,
        noise_scale: 30_000.0,
        kind_exponent: 0.35,
        checkpoint_every_s: 600,
        checkpoint_s: 3,
        restart_s: 15,
        cores: 3,
        memory_gib: 12,
        gpu_memory_gib: 4,
    },
];

impl Model {
    /// So many iterations per second on the cluster's average GPU, and accordingly on the others.
    pub(crate) fn rates(&self, per_second: f64, cluster: &Cluster) -> Rates {
        let present = || cluster.kinds().filter(|&(kind, _)| cluster.gpus_of(kind) > 0);
        if present().count() < 2 {
            return Rates::Anywhere(per_second);
        }
        let speed = |name: &str| kind_speed(name).powf(self.kind_exponent);
        let mut table: Vec<(GpuKind, f64)> = present().map(|(kind, details)| (kind, speed(&details.name))).collect();
        let mean = mean_rate(&table, cluster);
        table.iter_mut().for_each(|(_, rate)| *rate *= per_second / mean);
        Rates::ByKind(table)
    }
}

/// The rate on an average GPU of the cluster, of those kinds that are in the table.
pub(crate) fn mean_rate(table: &[(GpuKind, f64)], cluster: &Cluster) -> f64 {
    let gpus = |kind| f64::from(cluster.gpus_of(kind));
    let total: f64 = table.iter().map(|&(kind, _)| gpus(kind)).sum();
    let sum: f64 = table.iter().map(|&(kind, rate)| gpus(kind) * rate).sum();
    if total > 0.0 { sum / total } else { table[0].1 }
}

/// Speed relative to a T4, for illustration; a kind we do not know is as fast as a T4.
fn kind_speed(kind: &str) -> f64 {
    match kind.split('-').next().unwrap_or(kind) {
        "k80" => 0.4,
        "p4" | "m60" | "m40" => 0.6,
        "p40" => 0.9,
        "p100" => 1.1,
        "rtx2080ti" | "l4" => 1.4,
        "a10" | "rtx6000" => 1.7,
        "v100" => 2.2,
        "a100" => 4.0,
        "h100" => 7.0,
        "h200" => 8.0,
        _ => 1.0,
    }
}
