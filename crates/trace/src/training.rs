//! Workloads of real trainings: jobs of the catalogue's models in the mix that Pollux (OSDI 2021) and Sia (SOSP 2023)
//! drew from Microsoft's Philly trace, submitted in the rhythm of a day, each with the request a careful user would make.
//!
//! Every aspect is drawn from a random stream of its own, so that changing one leaves the others as they were.

use std::sync::Arc;

use cluster::{
    BatchRange, Cluster, GpuKind, JobDraft, Name, QueueId, QueueTree, Recovery, Scaling, Shape, Span, Time, WorkerRange,
};
use perf::{BatchRule, Speed, TrueJob, Truth};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal, Zipf};

use crate::Workload;
use crate::catalogue::{self, Catalogue};
use crate::error::{Error, shown, suggestion};
use crate::profiles::Application;
use crate::synthetic::{Arrivals, DEADLINE_SLACK, ESTIMATE_MEDIAN};
use crate::table::MOST_ROWS;

pub(crate) const GENERATOR: &str = "training";

/// What the workload is like.
#[derive(Debug, Clone, PartialEq)]
pub struct Training {
    pub jobs: usize,
    /// GPU time of all jobs as they are asked for, on average GPUs, over the GPU time the cluster has between the first
    /// and the last submission.
    pub load: f64,
    pub users: u32,
    /// Share of jobs that run with the workers and the batch they ask for, and no others.
    pub rigid: f64,
    /// Share of jobs with any number of workers up to those asked for, and that batch. All others choose both.
    pub elastic: f64,
    /// Share of jobs that train the pipelined GPT.
    pub gpt: f64,
    /// Share of jobs with a deadline.
    pub deadlines: f64,
}

const OPTIONS: [&str; 7] = ["jobs", "load", "users", "rigid", "elastic", "gpt", "deadlines"];

/// Shares in per cent. Jobs of Philly below 1, 10 and 100 GPU hours and above became these, in Sia's published workloads.
const MIX: [(&str, f64); 5] =
    [("cifar10", 78.0), ("deepspeech2", 8.7), ("bert", 6.7), ("yolov3", 4.6), ("imagenet", 2.0)];
const GPT: &str = "gpt_pmp";

/// A careful user asks for so many GPUs that each of them does this much of what one alone would do, and that the job
/// takes less than that long (the tuned jobs of Pollux's and Sia's workloads).
const WELL_USED: std::ops::Range<f64> = 0.5..0.8;
const LONGEST_S: f64 = 12.0 * 3600.0;
/// And for no more than this.
const MOST_ASKED: u32 = 16;
/// A job that chooses its workers may have so many.
const MOST_WORKERS: u32 = 64;

/// Standard deviation of the logarithm of a user's estimate over what the job takes as asked for.
const ESTIMATE_ERROR: f64 = 0.6;
const RHYTHM: Arrivals = Arrivals { daily: 0.75, weekend: 0.5, burst: 1.0, burst_gap: 0.0 };

/// One random stream each. The numbers are part of what a seed means: do not change them.
#[derive(Debug, Clone, Copy)]
enum Aspect {
    Models = 201,
    Requests = 202,
    Starts = 203,
    Users = 204,
    Categories = 205,
    Estimates = 206,
    Deadlines = 207,
}

impl Default for Training {
    /// A busy day on 64 GPUs.
    fn default() -> Training {
        Training { jobs: 200, load: 1.0, users: 12, rigid: 0.0, elastic: 0.0, gpt: 0.0, deadlines: 0.2 }
    }
}

/// Workers and batch that a user asks for.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Request {
    workers: u32,
    batch: u32,
    /// What it then takes on an average GPU.
    seconds: f64,
}

/// A model that can be drawn.
struct Trained<'a> {
    name: Name,
    share: f64,
    application: &'a Application,
    requests: Vec<Request>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Category {
    Rigid,
    Elastic,
    Adaptive,
}

impl Training {
    /// `training` or `training:jobs=500,rigid=0.5`.
    pub(crate) fn parse(options: Option<&str>) -> Result<Training, Error> {
        let mut training = Training::default();
        let options = options.into_iter().flat_map(|options| options.split(','));
        for option in options.map(str::trim).filter(|option| !option.is_empty()) {
            training.set(option)?;
        }
        Ok(training)
    }

    fn set(&mut self, option: &str) -> Result<(), Error> {
        let expected = |expected: &str, found: &str| misuse(format!("expected {expected}, found {}", shown(found)));
        let (key, value) = option.split_once('=').ok_or_else(|| expected("options like `jobs=1000`", option))?;
        let (key, value) = (key.trim(), value.trim());
        let whole = || value.parse::<u32>().map_err(|_| expected(&format!("a whole number for `{key}`"), value));
        let real = || value.parse::<f64>().map_err(|_| expected(&format!("a number for `{key}`"), value));
        match key {
            "jobs" => self.jobs = whole()? as usize,
            "load" => self.load = real()?,
            "users" => self.users = whole()?,
            "rigid" => self.rigid = real()?,
            "elastic" => self.elastic = real()?,
            "gpt" => self.gpt = real()?,
            "deadlines" => self.deadlines = real()?,
            _ => {
                let (near, known) = (suggestion(key, OPTIONS), OPTIONS.join(", "));
                return Err(misuse(format!("unknown option `{}`{near} (known: {known})", shown(key))));
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Error> {
        if !(1..=MOST_ROWS as usize).contains(&self.jobs) {
            return Err(misuse(format!("expected from 1 to {MOST_ROWS} jobs, found {}", self.jobs)));
        }
        if !(0.001..=1000.0).contains(&self.load) {
            return Err(misuse(format!("expected a load from 0.001 to 1000, found {}", self.load)));
        }
        if !(1..=1_000_000).contains(&self.users) {
            return Err(misuse(format!("expected from 1 to 1000000 users, found {}", self.users)));
        }
        let shares = [
            ("rigid", self.rigid),
            ("elastic", self.elastic),
            ("rigid + elastic", self.rigid + self.elastic),
            ("gpt", self.gpt),
            ("deadlines", self.deadlines),
        ];
        match shares.into_iter().find(|(_, share)| !(0.0..=1.0).contains(share)) {
            Some((field, share)) => Err(misuse(format!("expected a share from 0 to 1 for {field}, found {share}"))),
            None => Ok(()),
        }
    }

    /// The workload of this seed for a cluster and its queues.
    pub fn generate(&self, cluster: &Cluster, queues: &QueueTree, seed: u64) -> Result<Workload, Error> {
        self.check()?;
        let profiles = Catalogue::embedded().profiles(cluster)?;
        let gpt = [(GPT, 100.0 * self.gpt)];
        let rest = MIX.map(|(name, share)| (name, share * (1.0 - self.gpt)));
        let drawn = gpt.into_iter().chain(rest).filter(|(_, share)| *share > 0.0);
        let models: Vec<Trained<'_>> = drawn
            .map(|(name, share)| {
                let application = profiles.get(name);
                let requests = application.map(|application| requests(application, cluster)).unwrap_or_default();
                match application.filter(|_| !requests.is_empty()) {
                    Some(application) => Ok(Trained { name: name.into(), share, application, requests }),
                    None => Err(misuse(format!("expected a cluster on which {name} can run"))),
                }
            })
            .collect::<Result<_, Error>>()?;
        let (mut which, mut request) = (stream(seed, Aspect::Models), stream(seed, Aspect::Requests));
        let chosen: Vec<(&Trained<'_>, Request)> = (0..self.jobs)
            .map(|_| {
                let (model, draw) = (pick(&models, which.random()), request.random::<f64>());
                (model, model.requests[(draw * model.requests.len() as f64) as usize])
            })
            .collect();
        let work: f64 = chosen.iter().map(|(_, request)| f64::from(request.workers) * request.seconds).sum();
        let span = work / (f64::from(cluster.gpus()) * self.load);
        let jobs = self.build(&chosen, &self.times(span, seed), queues, seed);
        let assumptions = vec![
            format!(
                "{} jobs drawn from seed {seed}: offered load {} of {} GPUs over {}",
                self.jobs,
                self.load,
                cluster.gpus(),
                Span::from_secs(span as u64)
            ),
            format!("step times, gradient noise and epochs are {}", catalogue::SOURCE),
            "policies that do not choose the workers of a job give it those its user asks for, with which each GPU does 50 \
             to 80 % of what one alone would do; the batch is tuned by the job itself"
                .into(),
        ];
        Ok(Workload { name: GENERATOR.into(), jobs, assumptions })
    }

    /// Submissions in order, the first at zero and the last at the end of the span.
    fn times(&self, span: f64, seed: u64) -> Vec<f64> {
        let mut random = stream(seed, Aspect::Starts);
        let mut times: Vec<f64> = (0..self.jobs).map(|_| RHYTHM.start(span, &mut random)).collect();
        times.sort_by(f64::total_cmp);
        let (first, last) = (times[0], times[times.len() - 1]);
        let stretch = if last > first { span / (last - first) } else { 0.0 };
        times.iter().map(|time| (time - first) * stretch).collect()
    }

    fn build(&self, chosen: &[(&Trained<'_>, Request)], times: &[f64], queues: &QueueTree, seed: u64) -> Vec<TrueJob> {
        let leaves: Vec<QueueId> =
            queues.iter().map(|(id, _)| id).filter(|&id| queues.children(id).next().is_none()).collect();
        let users: Vec<Name> = (0..self.users).map(|user| format!("user{user}").into()).collect();
        let of = |aspect| stream(seed, aspect);
        let (mut user, mut category) = (of(Aspect::Users), of(Aspect::Categories));
        let (mut estimate, mut deadline) = (of(Aspect::Estimates), of(Aspect::Deadlines));
        let activity = Zipf::new(f64::from(self.users), 1.0).expect("there is a user");
        let mut shared = Shared::default();
        let job = |(&(model, request), &time): (&(&Trained<'_>, Request), &f64)| {
            let user = activity.sample(&mut user) as usize - 1;
            let category = self.category(category.random());
            let error: f64 = StandardNormal.sample(&mut estimate);
            let (due, slack): (f64, f64) = (deadline.random(), deadline.random_range(DEADLINE_SLACK));
            let (speed, truth) = shared.of(model, category, request.batch);
            let submitted = Time::ZERO + Span::from_secs_f64(time);
            let draft = JobDraft {
                user: users[user].clone(),
                queue: leaves[user % leaves.len()],
                scaling: category.scaling(model.application, request.workers, &speed),
                asked: Some(request.workers),
                expected: Some(Span::from_secs_f64(request.seconds * ESTIMATE_MEDIAN * (ESTIMATE_ERROR * error).exp())),
                deadline: (due < self.deadlines).then(|| submitted + Span::from_secs_f64(request.seconds * slack)),
                recovery: Recovery { restart_cost: model.application.restart, retries: 3, ..Recovery::default() },
                ..JobDraft::rigid(model.name.clone(), request.workers)
            };
            TrueJob { submitted, spec: Arc::new(draft.build().expect("a generated job is sound")), speed, truth }
        };
        chosen.iter().zip(times).map(job).collect()
    }

    fn category(&self, draw: f64) -> Category {
        match draw {
            draw if draw < self.rigid => Category::Rigid,
            draw if draw < self.rigid + self.elastic => Category::Elastic,
            _ => Category::Adaptive,
        }
    }
}

impl Category {
    fn scaling(self, application: &Application, asked: u32, speed: &Speed) -> Scaling {
        let adaptation = speed.adaptation.as_ref().expect("trainings of the catalogue are tuned");
        let range = |max| WorkerRange { min: application.least_workers(), max };
        match self {
            Category::Rigid => Scaling::Rigid(asked),
            Category::Elastic => Scaling::Elastic(range(asked)),
            Category::Adaptive => {
                let batch = BatchRange { initial: adaptation.initial, max: adaptation.max };
                Scaling::Adaptive(range(MOST_WORKERS.max(asked)), batch)
            }
        }
    }
}

type KnownAndTrue = (Arc<Speed>, Arc<Truth>);

/// What jobs that are alike have in common.
#[derive(Default)]
struct Shared {
    known: std::collections::BTreeMap<(Name, Category, u32), KnownAndTrue>,
}

impl Shared {
    fn of(&mut self, model: &Trained<'_>, category: Category, batch: u32) -> (Arc<Speed>, Arc<Truth>) {
        let rule = match category {
            Category::Rigid | Category::Elastic => BatchRule::Fixed(batch),
            Category::Adaptive => BatchRule::Tuned { asked: Some(batch) },
        };
        let key = (model.name.clone(), category, batch);
        self.known.entry(key).or_insert_with(|| model.application.speed_and_truth(rule)).clone()
    }
}

/// What careful users ask for, on the kind of which the cluster has most: sizes that use their GPUs well, or the nearest
/// to that, each with the batch that is best if it never changes.
fn requests(application: &Application, cluster: &Cluster) -> Vec<Request> {
    let adaptation = application.adaptation(BatchRule::Tuned { asked: None });
    let kinds = adaptation.kinds.iter().filter(|limits| cluster.gpus_of(limits.kind) >= limits.stages);
    let Some(most) = kinds.max_by_key(|limits| cluster.gpus_of(limits.kind)) else { return Vec::new() };
    let seconds = |kind: GpuKind, workers: u32, rule| {
        let node =
            cluster.nodes().filter(|(_, node)| node.kind == Some(kind)).map(|(_, node)| u32::from(node.gpus)).max()?;
        let shape = Shape { kind: Some(kind), workers, nodes: workers.div_ceil(node) };
        application.training_secs(shape, rule).filter(|_| cluster.gpus_of(kind) >= workers)
    };
    let tuned = BatchRule::Tuned { asked: None };
    let sizes = std::iter::successors(Some(most.stages), |workers| Some(workers * 2));
    let sizes = sizes.take_while(|&workers| workers <= MOST_ASKED.max(most.stages));
    let times: Vec<(u32, f64)> =
        sizes.filter_map(|workers| Some((workers, seconds(most.kind, workers, tuned)?))).collect();
    let Some(&(least, alone)) = times.first() else { return Vec::new() };
    let use_of = |(workers, time): (u32, f64)| f64::from(least) * alone / (f64::from(workers) * time);
    let mut wanted: Vec<(u32, f64)> = times.clone();
    wanted.retain(|&size| WELL_USED.contains(&use_of(size)) && size.1 < LONGEST_S);
    if wanted.is_empty() {
        let middle = (WELL_USED.start + WELL_USED.end) / 2.0;
        let off = |size: &(u32, f64)| (use_of(*size) - middle).abs();
        wanted.extend(times.iter().copied().min_by(|one, other| off(one).total_cmp(&off(other))));
    }
    let request = |(workers, _): (u32, f64)| {
        let batches = std::iter::successors(Some(adaptation.initial), |&batch| {
            Some(batch * 2).filter(|&next| next <= adaptation.max)
        });
        let fixed = batches.filter_map(|batch| Some((seconds(most.kind, workers, BatchRule::Fixed(batch))?, batch)));
        let (_, batch) = fixed.min_by(|one, other| one.0.total_cmp(&other.0))?;
        Some(Request {
            workers,
            batch,
            seconds: mean_secs(application, cluster, |kind| seconds(kind, workers, tuned))?,
        })
    };
    wanted.into_iter().filter_map(request).collect()
}

/// The mean over the GPUs on which it can run.
fn mean_secs(application: &Application, cluster: &Cluster, on: impl Fn(GpuKind) -> Option<f64>) -> Option<f64> {
    let adaptation = application.adaptation(BatchRule::Tuned { asked: None });
    let (mut sum, mut gpus) = (0.0, 0.0);
    for limits in &adaptation.kinds {
        if let Some(seconds) = on(limits.kind) {
            let here = f64::from(cluster.gpus_of(limits.kind));
            (sum, gpus) = (sum + seconds * here, gpus + here);
        }
    }
    (gpus > 0.0).then(|| sum / gpus)
}

fn pick<'m, 'a>(models: &'m [Trained<'a>], draw: f64) -> &'m Trained<'a> {
    let mut left = draw * models.iter().map(|model| model.share).sum::<f64>();
    let found = models.iter().find(|model| {
        left -= model.share;
        left < 0.0
    });
    found.unwrap_or(&models[models.len() - 1])
}

fn stream(seed: u64, aspect: Aspect) -> ChaCha8Rng {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(aspect as u64);
    random
}

fn misuse(what: String) -> Error {
    Error::Name(format!("workload {GENERATOR}: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load_cluster;

    const SEED: u64 = 11;

    fn generate(options: &str, cluster: &str, seed: u64) -> Result<Workload, String> {
        let (cluster, queues, _) = load_cluster(cluster).unwrap();
        let training = Training::parse(Some(options)).map_err(|error| error.to_string())?;
        training.generate(&cluster, &queues, seed).map_err(|error| error.to_string())
    }

    fn jobs(options: &str) -> Vec<TrueJob> {
        generate(options, "demo", SEED).unwrap_or_else(|error| panic!("seed {SEED}: {error}")).jobs
    }

    fn share(jobs: &[TrueJob], holds: impl Fn(&TrueJob) -> bool) -> f64 {
        jobs.iter().filter(|job| holds(job)).count() as f64 / jobs.len() as f64
    }

    #[test]
    fn a_seed_means_the_same_jobs_to_the_bit() {
        assert_eq!(jobs("jobs=100"), jobs("jobs=100"));
        assert_ne!(jobs("jobs=100"), generate("jobs=100", "demo", SEED + 1).unwrap().jobs);
    }

    #[test]
    fn models_have_their_shares() {
        let jobs = jobs("jobs=20000,gpt=0.1");
        for (name, expected) in [("cifar10", 0.702), ("bert", 0.0603), ("imagenet", 0.018), ("gpt_pmp", 0.1)] {
            let found = share(&jobs, |job| &*job.spec.name == name);
            assert!((found - expected).abs() < 0.01, "seed {SEED}, {name}: {found}, not {expected}");
        }
    }

    #[test]
    fn by_default_every_job_adapts_and_says_what_a_user_would_ask_for() {
        for job in jobs("jobs=500") {
            assert!(matches!(job.spec.scaling, Scaling::Adaptive(WorkerRange { min: 1, max: 64 }, _)), "seed {SEED}");
            assert!(job.spec.asked.is_some_and(|asked| (1..=16).contains(&asked)), "seed {SEED}: {:?}", job.spec);
        }
        let sizes: std::collections::BTreeSet<u32> =
            jobs("jobs=500").iter().map(|job| job.spec.asked_workers()).collect();
        assert!(sizes.len() > 1, "seed {SEED}: everybody asks for {sizes:?}");
    }

    #[test]
    fn some_jobs_can_be_held_to_what_they_ask_for() {
        let jobs = jobs("jobs=4000,rigid=0.5,elastic=0.25");
        let rigid = share(&jobs, |job| job.spec.scaling == Scaling::Rigid(job.spec.asked_workers()));
        let elastic = share(&jobs, |job| matches!(job.spec.scaling, Scaling::Elastic(_)));
        assert!((rigid - 0.5).abs() < 0.03 && (elastic - 0.25).abs() < 0.03, "seed {SEED}: {rigid} and {elastic}");
        let fixed = |job: &&TrueJob| matches!(job.speed.adaptation.as_ref().unwrap().rule, BatchRule::Fixed(_));
        assert_eq!(jobs.iter().filter(fixed).count(), (4000.0 * (rigid + elastic)) as usize);
    }

    #[test]
    fn the_offered_load_is_the_one_asked_for() {
        let (cluster, _, _) = load_cluster("demo").unwrap();
        let profiles = Catalogue::embedded().profiles(&cluster).unwrap();
        let jobs = jobs("jobs=1000,load=0.5");
        let work: f64 = jobs
            .iter()
            .map(|job| {
                let requests = requests(profiles.get(&job.spec.name).unwrap(), &cluster);
                let asked = job.spec.asked_workers();
                let request = requests.iter().find(|request| request.workers == asked).unwrap();
                f64::from(asked) * request.seconds
            })
            .sum();
        let span = jobs[999].submitted.since(jobs[0].submitted).as_secs_f64();
        assert!((work / (64.0 * span) - 0.5).abs() < 0.001, "seed {SEED}: {}", work / (64.0 * span));
    }

    #[test]
    fn a_pipeline_is_asked_for_in_whole_replicas() {
        for job in jobs("jobs=50,gpt=1") {
            assert!(job.spec.asked_workers().is_multiple_of(8), "seed {SEED}: {:?}", job.spec.asked);
            assert_eq!(job.spec.scaling.min(), 2);
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let fault = |options: &str, cluster: &str| generate(options, cluster, SEED).unwrap_err();
        assert_eq!(
            fault("rigid=0.6,elastic=0.6", "demo"),
            "workload training: expected a share from 0 to 1 for rigid + elastic, found 1.2"
        );
        assert_eq!(fault("gpt=0.1", "4x4 t4"), "workload training: expected a cluster on which gpt_pmp can run");
        assert!(fault("jbos=1", "demo").starts_with("workload training: unknown option `jbos`; did you mean `jobs`?"));
        assert!(fault("", "4x4 v100").starts_with("catalogue: expected a cluster with GPUs of a100,"));
    }
}
