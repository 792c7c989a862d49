//! Workloads drawn from a seed, with the traits that published traces have: a rhythm of days and weeks, bursts, heavy
//! tails, few large jobs that run long, users of very different activity.
//!
//! Every aspect is drawn from a random stream of its own, so that changing one leaves the others as they were.

mod arrivals;
mod durations;
mod models;

use std::collections::HashMap;
use std::sync::Arc;

use cluster::{
    BatchRange, Bytes, ClaimId, Cluster, Ends, JobDraft, JobSpec, Name, QueueId, QueueTree, Recovery, Role, Scaling,
    Slice, Span, Time, WorkerRange,
};
use perf::{Speed, TrueJob, Truth};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal, Zipf};

use crate::Workload;
use crate::error::Error;
use crate::table::MOST_ROWS;
use durations::Law;
use models::{MODELS, Model};

pub use arrivals::Arrivals;
pub use durations::Durations;
pub(crate) use durations::normal_rank;
pub(crate) use models::mean_rate;

/// What a generated workload is like.
#[derive(Debug, Clone, PartialEq)]
pub struct Synthetic {
    pub name: String,
    pub jobs: usize,
    /// GPU time of all jobs over the GPU time the cluster has between the first and the last submission.
    pub load: f64,
    pub users: u32,
    /// Sizes in GPUs with their shares of the jobs, in any unit. Those that fit on no kind of GPU are left out.
    pub sizes: Vec<(u32, f64)>,
    pub durations: Durations,
    pub arrivals: Arrivals,
    /// Whether jobs train one of a few models, with steps, gradients, costs of interruption and speeds by kind of GPU;
    /// otherwise only their run time is known.
    pub detailed: bool,
    /// Share of jobs whose number of workers may change, from a quarter to four times the size.
    pub elastic: f64,
    /// Share of jobs whose batch size may change as well.
    pub adaptive: f64,
    /// Standard deviation of the logarithm of the user's estimate over the truth; `None` if users do not estimate.
    pub estimate_error: Option<f64>,
    /// Share of jobs with a deadline.
    pub deadlines: f64,
    /// Share of jobs with priority 1; a third as many have priority 2.
    pub urgent: f64,
    /// Share of bursts whose jobs wait for one another.
    pub chains: f64,
}

/// Users estimate so much more than the truth, at the median.
pub(crate) const ESTIMATE_MEDIAN: f64 = 1.2;
/// A deadline lies so many run times after the submission, uniformly.
pub(crate) const DEADLINE_SLACK: std::ops::Range<f64> = 1.5..5.0;
/// A user trains the first of two favourite models so often.
const FAVOURITE: f64 = 0.8;
/// Share of jobs by size in the Philly trace, of those that fit on a node, in per cent (`docs/workloads.md`).
const PHILLY_SIZES: [(u32, f64); 4] = [(1, 86.7), (2, 2.3), (4, 4.9), (8, 5.1)];
const RHYTHM: Arrivals = Arrivals { daily: 0.75, weekend: 0.5, burst: 3.0, burst_gap: 0.1 };

/// One random stream each. The numbers are part of what a seed means: do not change them.
#[derive(Debug, Clone, Copy)]
enum Aspect {
    Bursts = 1,
    Users = 2,
    Sizes = 3,
    Models = 4,
    Durations = 5,
    Starts = 6,
    Gaps = 7,
    Scaling = 8,
    Ends = 9,
    Estimates = 10,
    Deadlines = 11,
    Priorities = 12,
    Chains = 13,
    Tastes = 14,
}

fn stream(seed: u64, aspect: Aspect) -> ChaCha8Rng {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(aspect as u64);
    random
}

impl Synthetic {
    /// A mixed day of some hundred jobs for about 64 GPUs.
    pub fn demo() -> Synthetic {
        Synthetic {
            name: "demo".into(),
            jobs: 400,
            load: 0.9,
            users: 12,
            sizes: vec![(1, 55.0), (2, 15.0), (4, 15.0), (8, 12.0), (16, 3.0)],
            durations: Durations {
                median_s: 900.0,
                p90_s: 9000.0,
                p99_s: 28_800.0,
                longest_s: 43_200.0,
                size_effect: 0.6,
            },
            arrivals: RHYTHM,
            detailed: true,
            elastic: 0.25,
            adaptive: 0.25,
            estimate_error: Some(0.6),
            deadlines: 0.2,
            urgent: 0.15,
            chains: 0.05,
        }
    }

    /// Rigid jobs of moderate length in a steady flow, to see what grows with their number.
    pub fn steady() -> Synthetic {
        Synthetic {
            name: "steady".into(),
            jobs: 10_000,
            load: 0.8,
            users: 100,
            sizes: PHILLY_SIZES.into(),
            durations: Durations {
                median_s: 600.0,
                p90_s: 5400.0,
                p99_s: 14_400.0,
                longest_s: 21_600.0,
                size_effect: 0.6,
            },
            arrivals: Arrivals::STEADY,
            detailed: false,
            elastic: 0.0,
            adaptive: 0.0,
            estimate_error: None,
            deadlines: 0.0,
            urgent: 0.0,
            chains: 0.0,
        }
    }

    /// The workload of this seed for a cluster and its queues.
    pub fn generate(&self, cluster: &Cluster, queues: &QueueTree, seed: u64) -> Result<Workload, Error> {
        self.check()?;
        let largest = cluster.kinds().map(|(kind, _)| cluster.gpus_of(kind)).max().unwrap_or(0);
        let sizes: Vec<(u32, f64)> = self.sizes.iter().copied().filter(|&(gpus, _)| gpus <= largest).collect();
        if sizes.is_empty() {
            return Err(self.fault(format!("expected a cluster with GPUs for its jobs, found {largest} of one kind")));
        }
        let bursts = self.bursts(&sizes, seed);
        let durations = self.durations(&bursts, &sizes, seed);
        let gpus = bursts.iter().flat_map(|burst| std::iter::repeat_n(sizes[burst.size].0, burst.jobs));
        let work: f64 = gpus.zip(&durations).map(|(gpus, duration)| f64::from(gpus) * duration).sum();
        let span = work / (f64::from(cluster.gpus()) * self.load);
        let times = self.times(&bursts, span, seed);
        let drawn = Drawn { sizes, bursts, durations, times };
        let jobs = Builder::new(self, cluster, queues, seed, largest).jobs(&drawn);
        let assumptions = self.assumptions(&drawn, cluster, span, seed);
        Ok(Workload { name: self.name.clone(), jobs, assumptions })
    }

    fn check(&self) -> Result<(), Error> {
        if !(1..=MOST_ROWS as usize).contains(&self.jobs) {
            return Err(self.fault(format!("expected from 1 to {MOST_ROWS} jobs, found {}", self.jobs)));
        }
        if !(0.001..=1000.0).contains(&self.load) {
            return Err(self.fault(format!("expected a load from 0.001 to 1000, found {}", self.load)));
        }
        if !(1..=1_000_000).contains(&self.users) {
            return Err(self.fault(format!("expected from 1 to 1000000 users, found {}", self.users)));
        }
        let shares = [
            ("elastic", self.elastic),
            ("adaptive", self.adaptive),
            ("elastic + adaptive", self.elastic + self.adaptive),
            ("deadlines", self.deadlines),
            ("urgent", self.urgent),
            ("chains", self.chains),
        ];
        if let Some((field, share)) = shares.into_iter().find(|(_, share)| !(0.0..=1.0).contains(share)) {
            return Err(self.fault(format!("expected a share from 0 to 1 for {field}, found {share}")));
        }
        if self.sizes.iter().any(|&(gpus, share)| gpus == 0 || !(share > 0.0 && share.is_finite())) {
            return Err(self.fault("expected sizes of at least 1 GPU with positive shares".into()));
        }
        if !self.durations.is_sound() {
            return Err(self.fault(format!("expected run times that ascend, found {:?}", self.durations)));
        }
        if !self.arrivals.is_sound() {
            return Err(self.fault(format!("expected sensible arrivals, found {:?}", self.arrivals)));
        }
        match self.estimate_error {
            Some(error) if !(0.0..=10.0).contains(&error) => {
                Err(self.fault(format!("expected an error of estimates from 0 to 10, found {error}")))
            }
            _ => Ok(()),
        }
    }

    fn fault(&self, what: String) -> Error {
        Error::Workload { name: self.name.clone(), what }
    }

    fn bursts(&self, sizes: &[(u32, f64)], seed: u64) -> Vec<Burst> {
        let of = |aspect| stream(seed, aspect);
        let (mut lengths, mut users, mut size, mut model) =
            (of(Aspect::Bursts), of(Aspect::Users), of(Aspect::Sizes), of(Aspect::Models));
        let (mut form, mut urgency, mut chain) = (of(Aspect::Scaling), of(Aspect::Priorities), of(Aspect::Chains));
        let activity = Zipf::new(f64::from(self.users), 1.0).expect("there is a user");
        let tastes = self.tastes(seed);
        let total: f64 = sizes.iter().map(|(_, share)| share).sum();
        let mut bursts = Vec::new();
        let mut left = self.jobs;
        while left > 0 {
            let jobs = self.arrivals.burst_length(&mut lengths).min(left);
            left -= jobs;
            let user = activity.sample(&mut users) as usize - 1;
            bursts.push(Burst {
                jobs,
                user,
                size: pick(sizes, size.random::<f64>() * total),
                model: tastes[user][usize::from(model.random::<f64>() >= FAVOURITE)],
                form: self.form(form.random()),
                priority: self.priority(urgency.random()),
                chained: chain.random::<f64>() < self.chains,
            });
        }
        bursts
    }

    /// Two favourite models for every user.
    fn tastes(&self, seed: u64) -> Vec<[usize; 2]> {
        let mut random = stream(seed, Aspect::Tastes);
        (0..self.users).map(|_| [random.random_range(0..MODELS.len()), random.random_range(0..MODELS.len())]).collect()
    }

    fn form(&self, draw: f64) -> Form {
        match draw {
            draw if draw < self.elastic => Form::Elastic,
            draw if draw < self.elastic + self.adaptive => Form::Adaptive,
            _ => Form::Rigid,
        }
    }

    fn priority(&self, draw: f64) -> i32 {
        match draw {
            draw if draw < self.urgent => 1,
            draw if draw < self.urgent * 4.0 / 3.0 => 2,
            _ => 0,
        }
    }

    /// The run time of every job, burst by burst.
    fn durations(&self, bursts: &[Burst], sizes: &[(u32, f64)], seed: u64) -> Vec<f64> {
        let law = Law::new(self.durations, sizes);
        let mut random = stream(seed, Aspect::Durations);
        let of_jobs = bursts.iter().flat_map(|burst| std::iter::repeat_n(burst.size, burst.jobs));
        of_jobs.map(|size| law.duration(size, StandardNormal.sample(&mut random))).collect()
    }

    /// The submission of every job, burst by burst; the first of all at zero, the last at the end of the span.
    fn times(&self, bursts: &[Burst], span: f64, seed: u64) -> Vec<f64> {
        let (mut starts, mut gaps) = (stream(seed, Aspect::Starts), stream(seed, Aspect::Gaps));
        let mean = span / self.jobs as f64;
        let mut times = Vec::with_capacity(self.jobs);
        for burst in bursts {
            let mut time = self.arrivals.start(span, &mut starts);
            for _ in 0..burst.jobs {
                times.push(time);
                time += self.arrivals.gap(mean, &mut gaps);
            }
        }
        let first = times.iter().copied().fold(f64::INFINITY, f64::min);
        let last = times.iter().copied().fold(0.0, f64::max);
        let stretch = if last > first { span / (last - first) } else { 0.0 };
        times.iter_mut().for_each(|time| *time = (*time - first) * stretch);
        times
    }

    fn assumptions(&self, drawn: &Drawn, cluster: &Cluster, span: f64, seed: u64) -> Vec<String> {
        let mut assumptions = vec![format!(
            "{} jobs drawn from seed {seed}: offered load {} of {} GPUs over {}",
            self.jobs,
            self.load,
            cluster.gpus(),
            Span::from_secs(span as u64)
        )];
        let left_out = self.sizes.len() - drawn.sizes.len();
        if left_out > 0 {
            let most = drawn.sizes.iter().map(|(gpus, _)| gpus).max().unwrap_or(&0);
            assumptions.push(format!("sizes above {most} GPUs are left out: no kind of GPU has enough"));
        }
        let figures = match self.detailed {
            true => {
                "models and speeds by kind are illustrations, not measurements; run times are those on an average GPU"
            }
            false => "every job runs equally fast wherever it is placed, and interruptions cost nothing",
        };
        assumptions.push(figures.into());
        assumptions.push("policies are told the true speeds; only the users' estimates are wrong".into());
        assumptions
    }
}

/// Jobs that one user submits in one go: the same thing several times.
struct Burst {
    jobs: usize,
    user: usize,
    size: usize,
    model: usize,
    form: Form,
    priority: i32,
    chained: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Form {
    Rigid,
    Elastic,
    Adaptive,
}

/// All that is drawn before jobs are built from it; durations and times burst by burst.
struct Drawn {
    sizes: Vec<(u32, f64)>,
    bursts: Vec<Burst>,
    durations: Vec<f64>,
    times: Vec<f64>,
}

fn pick(sizes: &[(u32, f64)], mut draw: f64) -> usize {
    for (index, (_, share)) in sizes.iter().enumerate() {
        draw -= share;
        if draw < 0.0 {
            return index;
        }
    }
    sizes.len() - 1
}

/// What jobs may ask of one worker's part of a node, so that every node with GPUs could be filled with them.
struct PerGpu {
    millicores: u32,
    memory: Bytes,
    gpu_memory: Bytes,
}

struct Builder<'a> {
    synthetic: &'a Synthetic,
    cluster: &'a Cluster,
    leaves: Vec<QueueId>,
    users: Vec<Name>,
    models: Vec<Name>,
    largest: u32,
    per_gpu: PerGpu,
    speeds: HashMap<(usize, u32, Form), Arc<Speed>>,
    /// Specs of jobs that have nothing of their own.
    specs: HashMap<(usize, usize, u32, Form, i32), Arc<JobSpec>>,
    ends: ChaCha8Rng,
    estimates: ChaCha8Rng,
    deadlines: ChaCha8Rng,
}

impl<'a> Builder<'a> {
    fn new(synthetic: &'a Synthetic, cluster: &'a Cluster, queues: &QueueTree, seed: u64, largest: u32) -> Builder<'a> {
        let leaves = queues.iter().filter(|&(id, _)| queues.children(id).next().is_none());
        let with_gpus = || cluster.nodes().map(|(_, node)| node).filter(|node| node.gpus > 0);
        let per_gpu = PerGpu {
            millicores: with_gpus().map(|node| node.millicores / u32::from(node.gpus)).min().unwrap_or(0),
            memory: Bytes::new(with_gpus().map(|node| node.memory.get() / u64::from(node.gpus)).min().unwrap_or(0)),
            gpu_memory: with_gpus()
                .filter_map(|node| node.kind)
                .map(|kind| cluster.kind(kind).memory)
                .min()
                .unwrap_or(Bytes::ZERO),
        };
        Builder {
            synthetic,
            cluster,
            leaves: leaves.map(|(id, _)| id).collect(),
            users: (0..synthetic.users).map(|user| format!("user{user}").into()).collect(),
            models: MODELS.iter().map(|model| model.name.into()).collect(),
            largest,
            per_gpu,
            speeds: HashMap::new(),
            specs: HashMap::new(),
            ends: stream(seed, Aspect::Ends),
            estimates: stream(seed, Aspect::Estimates),
            deadlines: stream(seed, Aspect::Deadlines),
        }
    }

    /// The jobs in order of submission.
    fn jobs(mut self, drawn: &Drawn) -> Vec<TrueJob> {
        let mut order: Vec<usize> = (0..drawn.times.len()).collect();
        order.sort_by(|&one, &other| drawn.times[one].total_cmp(&drawn.times[other]));
        let mut positions = vec![0_u32; order.len()];
        order.iter().enumerate().for_each(|(position, &index)| positions[index] = position as u32);
        let mut jobs = Vec::with_capacity(order.len());
        for burst in &drawn.bursts {
            let first = jobs.len();
            for index in first..first + burst.jobs {
                let before = (burst.chained && index > first).then(|| ClaimId(positions[index - 1]));
                let submitted = Time::ZERO + Span::from_secs_f64(drawn.times[index]);
                jobs.push(self.job(burst, drawn.sizes[burst.size].0, submitted, drawn.durations[index], before));
            }
        }
        order.into_iter().map(|index| jobs[index].clone()).collect()
    }

    fn job(&mut self, burst: &Burst, gpus: u32, submitted: Time, duration: f64, before: Option<ClaimId>) -> TrueJob {
        let model = &MODELS[burst.model];
        let step_s = if self.synthetic.detailed { model.step_s } else { crate::csv::DEFAULT_STEP_S };
        let (ends, iterations) = self.ends((duration / step_s).round().max(1.0) as u64);
        let duration = iterations as f64 * step_s;
        let expected = self.estimate(duration);
        let deadline = self.slack().map(|slack| submitted + Span::from_secs_f64(duration * slack));
        let own = Own { ends, expected, deadline, before };
        let spec = self.spec(burst, gpus, own);
        let speed = self.speed(burst, gpus, model);
        let start_up = if self.synthetic.detailed { Span::from_secs(model.restart_s / 2) } else { Span::ZERO };
        let truth = Arc::new(Truth { speed: (*speed).clone(), iterations, start_up, course: None, resize: None });
        TrueJob { submitted, spec, speed, truth }
    }

    /// When a job says it ends, and when it really does.
    fn ends(&mut self, iterations: u64) -> (Ends, u64) {
        if !self.synthetic.detailed {
            return (Ends::Itself, iterations);
        }
        match self.ends.random::<f64>() {
            draw if draw < 0.5 => (Ends::Itself, iterations),
            draw if draw < 0.75 || iterations < 200 => (Ends::Iterations(iterations), iterations),
            draw if draw < 0.9 => {
                let (epochs, iterations_each) = (10, (iterations + 5) / 10);
                (Ends::Epochs { epochs, iterations_each }, epochs * iterations_each)
            }
            _ => {
                let at_most = iterations + iterations / 2;
                (Ends::Target { metric: "loss".into(), value: 0.5, at_most }, iterations)
            }
        }
    }

    fn estimate(&mut self, duration: f64) -> Option<Span> {
        let error = self.synthetic.estimate_error?;
        let draw: f64 = StandardNormal.sample(&mut self.estimates);
        Some(Span::from_secs_f64(duration * ESTIMATE_MEDIAN * (error * draw).exp()))
    }

    fn slack(&mut self) -> Option<f64> {
        let (chosen, slack): (f64, f64) = (self.deadlines.random(), self.deadlines.random_range(DEADLINE_SLACK));
        (chosen < self.synthetic.deadlines).then_some(slack)
    }

    fn spec(&mut self, burst: &Burst, gpus: u32, own: Own) -> Arc<JobSpec> {
        if own.is_nothing() {
            let key = (burst.user, burst.model, gpus, burst.form, burst.priority);
            if let Some(spec) = self.specs.get(&key) {
                return spec.clone();
            }
            let spec = Arc::new(self.draft(burst, gpus, own));
            self.specs.insert(key, spec.clone());
            return spec;
        }
        Arc::new(self.draft(burst, gpus, own))
    }

    fn draft(&self, burst: &Burst, gpus: u32, own: Own) -> JobSpec {
        let plain = JobDraft::rigid(self.models[burst.model].clone(), gpus);
        let draft = JobDraft {
            user: self.users[burst.user].clone(),
            queue: self.leaves[burst.user % self.leaves.len()],
            priority: burst.priority,
            scaling: self.scaling(burst, gpus),
            ends: own.ends,
            expected: own.expected,
            deadline: own.deadline,
            after: own.before.into_iter().collect(),
            ..plain
        };
        let draft = if self.synthetic.detailed { self.with_details(draft, &MODELS[burst.model]) } else { draft };
        draft.build().expect("a generated job is sound")
    }

    fn with_details(&self, draft: JobDraft, model: &Model) -> JobDraft {
        let mut worker = Role::worker();
        worker.millicores = (model.cores * 1000).min(self.per_gpu.millicores);
        worker.memory = Bytes::gib(model.memory_gib).min(self.per_gpu.memory);
        let memory = Bytes::gib(model.gpu_memory_gib).min(self.per_gpu.gpu_memory);
        worker.slice = worker.slice.map(|slice| Slice { memory, ..slice });
        let recovery = Recovery {
            checkpoint_every: Some(Span::from_secs(model.checkpoint_every_s)),
            checkpoint_cost: Span::from_secs(model.checkpoint_s),
            restart_cost: Span::from_secs(model.restart_s),
            ..draft.recovery
        };
        JobDraft { roles: vec![worker], skew: Some(model.skew), recovery, ..draft }
    }

    fn scaling(&self, burst: &Burst, gpus: u32) -> Scaling {
        let range = WorkerRange { min: (gpus / 4).max(1), max: gpus.saturating_mul(4).min(self.largest) };
        let initial = MODELS[burst.model].batch_per_gpu.saturating_mul(gpus);
        match burst.form {
            Form::Rigid => Scaling::Rigid(gpus),
            Form::Elastic => Scaling::Elastic(range),
            Form::Adaptive => Scaling::Adaptive(range, BatchRange { initial, max: initial.saturating_mul(8) }),
        }
    }

    fn speed(&mut self, burst: &Burst, gpus: u32, model: &Model) -> Arc<Speed> {
        let (detailed, cluster) = (self.synthetic.detailed, self.cluster);
        // Without details all rigid jobs are alike.
        let key = match burst.form {
            Form::Rigid if !detailed => (0, 0, Form::Rigid),
            form => (burst.model, gpus, form),
        };
        let speed = self.speeds.entry(key).or_insert_with(|| {
            let step_s = if detailed { model.step_s } else { crate::csv::DEFAULT_STEP_S };
            let plain = Speed::constant(1.0 / step_s);
            let scaling = if burst.form == Form::Rigid { plain.scaling.clone() } else { model.scaling.clone() };
            let reference = 1.0 / step_s / scaling.speedup(gpus);
            let noise_scale = (burst.form == Form::Adaptive).then_some(model.noise_scale);
            if !detailed {
                return Arc::new(Speed { rates: perf::Rates::Anywhere(reference), scaling, noise_scale, ..plain });
            }
            let rates = model.rates(reference, cluster);
            Arc::new(Speed {
                rates,
                scaling,
                gradients: Bytes::mib(model.gradients_mib),
                noise_scale,
                adaptation: None,
            })
        });
        speed.clone()
    }
}

/// What a job does not share with others like it.
struct Own {
    ends: Ends,
    expected: Option<Span>,
    deadline: Option<Time>,
    before: Option<ClaimId>,
}

impl Own {
    fn is_nothing(&self) -> bool {
        self.ends == Ends::Itself && self.expected.is_none() && self.deadline.is_none() && self.before.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load_cluster;

    const SEED: u64 = 11;

    fn generate(synthetic: &Synthetic, cluster: &str, seed: u64) -> Workload {
        let (cluster, queues, _) = load_cluster(cluster).unwrap();
        synthetic.generate(&cluster, &queues, seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"))
    }

    /// Jobs of a fixed size with the rhythm and the run times of the demo.
    fn rigid() -> Synthetic {
        Synthetic { elastic: 0.0, adaptive: 0.0, detailed: false, ..Synthetic::demo() }
    }

    fn many() -> Workload {
        generate(&Synthetic { jobs: 100_000, load: 0.01, ..rigid() }, "philly", SEED)
    }

    /// GPUs and seconds of a rigid job.
    fn size(job: &TrueJob) -> (f64, f64) {
        (f64::from(job.spec.scaling.min()), job.truth.iterations as f64 / 1000.0)
    }

    fn share(workload: &Workload, holds: impl Fn(&TrueJob) -> bool) -> f64 {
        workload.jobs.iter().filter(|job| holds(job)).count() as f64 / workload.jobs.len() as f64
    }

    /// Standard deviation over mean of the time between submissions.
    fn variation(workload: &Workload) -> f64 {
        let gaps: Vec<f64> =
            workload.jobs.windows(2).map(|pair| (pair[1].submitted - pair[0].submitted).as_secs_f64()).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        variance.sqrt() / mean
    }

    #[test]
    fn a_seed_means_the_same_jobs_to_the_bit() {
        for preset in [Synthetic::demo(), Synthetic::steady()] {
            let jobs = |seed| generate(&preset, "demo", seed).jobs;
            assert_eq!(jobs(SEED), jobs(SEED));
            assert_ne!(jobs(SEED), jobs(SEED + 1));
        }
    }

    #[test]
    fn changing_one_aspect_leaves_the_others() {
        let without = Synthetic { estimate_error: None, deadlines: 0.0, urgent: 0.0, ..Synthetic::demo() };
        let (with, without) = (generate(&Synthetic::demo(), "demo", SEED), generate(&without, "demo", SEED));
        for (with, without) in with.jobs.iter().zip(&without.jobs) {
            assert_eq!((with.submitted, &with.truth), (without.submitted, &without.truth));
            assert_eq!((&with.spec.user, with.spec.scaling), (&without.spec.user, without.spec.scaling));
        }
    }

    #[test]
    fn the_offered_load_is_the_one_asked_for() {
        for (synthetic, load) in [(rigid(), 0.9), (Synthetic::steady(), 0.8)] {
            let workload = generate(&synthetic, "demo", SEED);
            let work: f64 = workload.jobs.iter().map(size).map(|(gpus, seconds)| gpus * seconds).sum();
            let (first, last) = (&workload.jobs[0], &workload.jobs[workload.jobs.len() - 1]);
            let offered = work / (64.0 * last.submitted.since(first.submitted).as_secs_f64());
            assert!((offered / load - 1.0).abs() < 0.02, "seed {SEED}, {}: {offered}, not {load}", workload.name);
        }
    }

    #[test]
    fn sizes_have_their_shares() {
        let workload = many();
        for (most, expected) in [(1, 0.55), (4, 0.85), (8, 0.97)] {
            let found = share(&workload, |job| job.spec.scaling.min() <= most);
            assert!((found - expected).abs() < 0.01, "seed {SEED}, up to {most} GPUs: {found}, not {expected}");
        }
    }

    #[test]
    fn run_times_have_their_percentiles() {
        let mut seconds: Vec<f64> = many().jobs.iter().map(|job| size(job).1).collect();
        seconds.sort_unstable_by(f64::total_cmp);
        for (rank, expected) in [(0.5, 900.0), (0.9, 9000.0)] {
            let found = seconds[(rank * seconds.len() as f64) as usize];
            assert!((found / expected - 1.0).abs() < 0.1, "seed {SEED}, at {rank}: {found}, not {expected}");
        }
    }

    #[test]
    fn larger_jobs_run_longer() {
        let workload = many();
        let median = |gpus: u32| {
            let of_size = workload.jobs.iter().filter(|job| job.spec.scaling.min() == gpus);
            let mut seconds: Vec<f64> = of_size.map(|job| size(job).1).collect();
            seconds.sort_unstable_by(f64::total_cmp);
            seconds[seconds.len() / 2]
        };
        assert!(median(8) > 2.0 * median(1), "seed {SEED}: {} and {}", median(8), median(1));
    }

    #[test]
    fn submissions_come_in_bursts_and_follow_day_and_week() {
        let workload = many();
        let variation = variation(&workload);
        assert!((1.5..4.0).contains(&variation), "seed {SEED}: {variation}");
        let hours = |range: std::ops::Range<u64>| {
            share(&workload, |job| range.contains(&(job.submitted.as_millis() / 3_600_000 % 24)))
        };
        assert!(hours(13..17) > 2.5 * hours(1..5), "seed {SEED}: {} and {}", hours(13..17), hours(1..5));
        let weekend = share(&workload, |job| job.submitted.as_millis() / 86_400_000 % 7 >= 5);
        assert!((0.12..0.22).contains(&weekend), "seed {SEED}: {weekend}");
    }

    #[test]
    fn a_steady_flow_is_a_poisson_process() {
        let workload = generate(&Synthetic::steady(), "demo", SEED);
        let variation = variation(&workload);
        assert!((variation - 1.0).abs() < 0.1, "seed {SEED}: {variation}");
    }

    #[test]
    fn the_demo_is_mixed_and_lasts_about_a_day() {
        let workload = generate(&Synthetic::demo(), "demo", SEED);
        let hours = workload.jobs[399].submitted.as_secs_f64() / 3600.0;
        assert!((12.0..48.0).contains(&hours), "seed {SEED}: {hours} h");
        let shares = [
            share(&workload, |job| matches!(job.spec.scaling, Scaling::Elastic(_))),
            share(&workload, |job| matches!(job.spec.scaling, Scaling::Adaptive(..))),
            share(&workload, |job| job.spec.deadline.is_some()),
            share(&workload, |job| job.spec.priority > 0),
        ];
        assert!(shares.iter().all(|share| (0.08..0.45).contains(share)), "seed {SEED}: {shares:?}");
        let queues: std::collections::BTreeSet<_> = workload.jobs.iter().map(|job| job.spec.queue).collect();
        assert_eq!(queues.len(), 3, "seed {SEED}: all leaf queues and not the root");
    }

    #[test]
    fn no_kind_of_gpu_is_the_best_for_every_model_by_as_much() {
        let (cluster, _, _) = load_cluster("demo").unwrap();
        let advantage = |model: &Model| match model.rates(1.0, &cluster) {
            perf::Rates::ByKind(table) => table[2].1 / table[0].1,
            perf::Rates::Anywhere(_) => panic!("the demo cluster has several kinds"),
        };
        let (ncf, bert) = (advantage(&MODELS[5]), advantage(&MODELS[2]));
        assert!(ncf < 2.0 && bert > 4.0, "a100 over t4: {ncf} for ncf, {bert} for bert");
    }

    #[test]
    fn a_million_jobs_share_what_they_have_in_common() {
        let workload = generate(&Synthetic { jobs: 1_000_000, ..Synthetic::steady() }, "philly", SEED);
        assert_eq!(workload.jobs.len(), 1_000_000);
        let specs: std::collections::HashSet<_> = workload.jobs.iter().map(|job| Arc::as_ptr(&job.spec)).collect();
        assert!(specs.len() < 10_000, "{} specs", specs.len());
    }

    #[test]
    fn a_cluster_without_gpus_is_refused() {
        let (cluster, queues, _) = load_cluster("7x0").unwrap();
        let error = Synthetic::demo().generate(&cluster, &queues, SEED).unwrap_err().to_string();
        assert_eq!(error, "workload demo: expected a cluster with GPUs for its jobs, found 0 of one kind");
    }
}
