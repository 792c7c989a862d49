//! Failures from a seed. Every node, device and run has a random stream of its own, so that what one policy does changes
//! no other's luck.

use cluster::{Invalid, NodeId, Run, Span, Time};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Exp};
use serde::{Deserialize, Serialize};

use crate::happenings::{Happening, Happenings};

/// Mean times between failures, in seconds; none where there is no number.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    pub node_mtbf_s: Option<f64>,
    pub node_repair_s: f64,
    pub gpu_mtbf_s: Option<f64>,
    pub gpu_repair_s: f64,
    /// Of a run that is running.
    pub crash_mtbf_s: Option<f64>,
    /// The share of launches in which a worker never comes up.
    pub start_hangs: f64,
}

impl Faults {
    pub fn check(&self) -> Result<(), Invalid> {
        let means = [
            ("faults.node_mtbf_s", self.node_mtbf_s),
            ("faults.gpu_mtbf_s", self.gpu_mtbf_s),
            ("faults.crash_mtbf_s", self.crash_mtbf_s),
        ];
        for (field, mean) in means {
            if let Some(mean) = mean.filter(|mean| !(*mean >= 1.0 && mean.is_finite())) {
                return Err(Invalid::new(field, "at least 1 second", mean));
            }
        }
        for (field, repair) in
            [("faults.node_repair_s", self.node_repair_s), ("faults.gpu_repair_s", self.gpu_repair_s)]
        {
            if !(0.0..1e12).contains(&repair) {
                return Err(Invalid::new(field, "a number of seconds of at least 0", repair));
            }
        }
        match (0.0..1.0).contains(&self.start_hangs) {
            true => Ok(()),
            false => Err(Invalid::new("faults.start_hangs", "a share of at least 0 and below 1", self.start_hangs)),
        }
    }
}

#[derive(Debug)]
pub(crate) struct FaultSource {
    faults: Faults,
    seed: u64,
}

/// Whose stream it is. The numbers keep the streams apart.
#[derive(Debug, Clone, Copy)]
enum Stream {
    Node(NodeId, Time),
    Gpu(NodeId, u8, Time),
    Crash(Run),
    Start(Run),
}

impl FaultSource {
    pub(crate) fn new(faults: Faults, seed: u64) -> FaultSource {
        FaultSource { faults, seed }
    }

    pub(crate) fn schedule_node(&self, node: NodeId, gpus: u8, now: Time, happenings: &mut Happenings) {
        self.schedule_failure(node, now, happenings);
        (0..gpus).for_each(|gpu| self.schedule_gpu_failure(node, gpu, now, happenings));
    }

    pub(crate) fn schedule_failure(&self, node: NodeId, now: Time, happenings: &mut Happenings) {
        if let Some(mean) = self.faults.node_mtbf_s {
            let after = exponential(&mut self.stream(Stream::Node(node, now)), mean);
            happenings.add(now + after, Happening::NodeFailed(node));
        }
    }

    pub(crate) fn schedule_repair(&self, node: NodeId, now: Time, happenings: &mut Happenings) {
        happenings.add(now + Span::from_secs_f64(self.faults.node_repair_s), Happening::NodeRepaired(node));
    }

    pub(crate) fn schedule_gpu_failure(&self, node: NodeId, gpu: u8, now: Time, happenings: &mut Happenings) {
        if let Some(mean) = self.faults.gpu_mtbf_s {
            let after = exponential(&mut self.stream(Stream::Gpu(node, gpu, now)), mean);
            happenings.add(now + after, Happening::GpuFailed(node, gpu));
        }
    }

    pub(crate) fn schedule_gpu_repair(&self, node: NodeId, gpu: u8, now: Time, happenings: &mut Happenings) {
        happenings.add(now + Span::from_secs_f64(self.faults.gpu_repair_s), Happening::GpuRepaired(node, gpu));
    }

    /// How long after its first step the run crashes, if ever.
    pub(crate) fn crash_after(&self, run: Run) -> Option<Span> {
        self.faults.crash_mtbf_s.map(|mean| exponential(&mut self.stream(Stream::Crash(run)), mean))
    }

    pub(crate) fn start_hangs(&self, run: Run) -> bool {
        self.faults.start_hangs > 0.0 && self.stream(Stream::Start(run)).random_bool(self.faults.start_hangs)
    }

    fn stream(&self, stream: Stream) -> ChaCha8Rng {
        let number = match stream {
            Stream::Node(node, since) => mix(&[1, u64::from(node.0), since.as_millis()]),
            Stream::Gpu(node, gpu, since) => mix(&[2, u64::from(node.0), u64::from(gpu), since.as_millis()]),
            Stream::Crash(run) => mix(&[3, u64::from(run.claim.0), u64::from(run.attempt)]),
            Stream::Start(run) => mix(&[4, u64::from(run.claim.0), u64::from(run.attempt)]),
        };
        let mut generator = ChaCha8Rng::seed_from_u64(self.seed);
        generator.set_stream(number);
        generator
    }
}

/// One number for several, so that each combination has a stream of its own (the finaliser of SplitMix64, applied in
/// turn).
fn mix(parts: &[u64]) -> u64 {
    parts.iter().fold(0, |mixed, &part| {
        let mut z = (mixed ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

fn exponential(generator: &mut ChaCha8Rng, mean_secs: f64) -> Span {
    let secs: f64 = Exp::new(1.0 / mean_secs).expect("a mean is positive").sample(generator);
    Span::from_secs_f64(secs.max(0.001))
}
