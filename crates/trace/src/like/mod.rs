//! Workloads like those of public job lists: rigid jobs whose arrivals, sizes, run times, tenants, repetitions and
//! outcomes follow figures counted over the list. Knows the figures, not the lists.
//!
//! Every aspect is drawn from a random stream of its own, so that changing one leaves the others as they were.

mod arrivals;
mod figures;

use std::sync::Arc;

use cluster::{Cluster, JobDraft, Name, QueueId, QueueTree, Span, Time};
use perf::{TrueJob, Truth};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

use crate::Workload;
use crate::csv::LONGEST_S;
use crate::error::{Error, shown, suggestion};
use crate::synthetic::normal_rank;
use crate::table::MOST_ROWS;
use arrivals::{remembered, submissions};
use figures::{ALL, Class, Figures, LEVELS, Outcomes, Tenants};

/// Public clusters whose workloads can be imitated, with where the figures are from.
pub const LIKENESSES: [(&str, &str); 4] = [
    (figures::PHILLY.name, figures::PHILLY.summary),
    (figures::VENUS.name, figures::VENUS.summary),
    (figures::PAI.name, figures::PAI.summary),
    (figures::ACME.name, figures::ACME.summary),
];

/// A workload like that of a public cluster. Two things about it are not the cluster's: how many jobs there are, and how
/// closely they follow one another.
#[derive(Debug, Clone, Copy)]
pub struct Like {
    figures: &'static Figures,
    pub jobs: usize,
    /// GPU time of all jobs over the GPU time the cluster has between the first and the last submission.
    pub load: f64,
}

const OPTIONS: [&str; 2] = ["jobs", "load"];
/// A job that failed is submitted again so many times as often as one that did not: 0.88 against 0.31 among the 1,867
/// Helios jobs whose outcome is known.
const AFTER_FAILURE: f64 = 2.8;

/// One random stream each. The numbers are part of what a seed means: do not change them.
#[derive(Debug, Clone, Copy)]
enum Aspect {
    Gaps = 101,
    Days = 102,
    Sessions = 103,
    Tenants = 104,
    Sizes = 105,
    Durations = 106,
    Outcomes = 107,
}

fn stream(seed: u64, aspect: Aspect) -> ChaCha8Rng {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(aspect as u64);
    random
}

impl Like {
    /// `philly`, `helios-venus`, `pai` or `acme`, with 10,000 jobs at a load of 0.8.
    pub fn named(name: &str) -> Result<Like, Error> {
        let Some(figures) = ALL.into_iter().find(|figures| figures.name == name) else {
            let names = LIKENESSES.map(|(name, _)| name);
            let near = suggestion(name, names);
            let known = names.join(", ");
            return Err(Error::Name(format!(
                "no figures for a workload like `{}`{near} (known: {known})",
                shown(name)
            )));
        };
        Ok(Like { figures, jobs: 10_000, load: 0.8 })
    }

    /// GPUs of the cluster that is imitated.
    pub fn original_gpus(&self) -> u32 {
        self.figures.gpus
    }

    /// Jobs a day that the imitated cluster got.
    pub fn original_jobs_per_day(&self) -> f64 {
        self.figures.jobs_per_day
    }

    /// The workload of this seed for a cluster. Tenants are spread over its queues in turn.
    pub fn generate(&self, cluster: &Cluster, queues: &QueueTree, seed: u64) -> Result<Workload, Error> {
        self.check()?;
        let largest = cluster.kinds().map(|(kind, _)| cluster.gpus_of(kind)).max().unwrap_or(0);
        let sizes: Vec<(u32, f64)> = self.figures.sizes.iter().copied().filter(|&(gpus, _)| gpus <= largest).collect();
        if sizes.is_empty() {
            return Err(self.fault(format!("expected a cluster with GPUs for its jobs, found {largest} of one kind")));
        }
        let drawn: Vec<Drawn> = Sessions::new(self.figures, &sizes, seed).take(self.jobs).collect();
        let work: f64 = drawn.iter().map(|job| f64::from(job.gpus) * job.run_time_s).sum();
        let span_s = work / (f64::from(cluster.gpus()) * self.load);
        if span_s > LONGEST_S {
            return Err(
                self.fault(format!("expected a load that fills at most {LONGEST_S} s, found one of {span_s} s"))
            );
        }
        let times = submissions(self.figures, self.jobs, span_s, seed);
        let jobs = build(&drawn, &times, queues);
        let name = format!("like-{}", self.figures.name);
        Ok(Workload { name, jobs, assumptions: self.assumptions(&sizes, cluster, span_s, seed) })
    }

    fn check(&self) -> Result<(), Error> {
        if !(1..=MOST_ROWS as usize).contains(&self.jobs) {
            return Err(self.misuse(format!("expected from 1 to {MOST_ROWS} jobs, found {}", self.jobs)));
        }
        if !(0.001..=1000.0).contains(&self.load) {
            return Err(self.misuse(format!("expected a load from 0.001 to 1000, found {}", self.load)));
        }
        Ok(())
    }

    /// Asked for wrongly.
    fn misuse(&self, what: String) -> Error {
        Error::Name(format!("workload like-{}: {what}", self.figures.name))
    }

    fn fault(&self, what: String) -> Error {
        Error::Workload { name: format!("like-{}", self.figures.name), what }
    }

    /// `jobs=100000` or `load=0.9`.
    fn set(&mut self, option: &str) -> Result<(), Error> {
        let (key, value) = option.split_once('=').map_or((option, None), |(key, value)| (key, Some(value.trim())));
        let key = key.trim();
        let Some(value) = value else {
            return Err(self.misuse(format!("expected options like `jobs=1000`, found {}", shown(option))));
        };
        let not = |what: &str| self.misuse(format!("expected {what} for `{key}`, found {}", shown(value)));
        match key {
            "jobs" => self.jobs = value.parse::<u32>().map_err(|_| not("a whole number"))? as usize,
            "load" => self.load = value.parse().map_err(|_| not("a number"))?,
            _ => {
                let (near, known) = (suggestion(key, OPTIONS), OPTIONS.join(", "));
                return Err(self.misuse(format!("unknown option `{}`{near} (known: {known})", shown(key))));
            }
        }
        Ok(())
    }

    fn assumptions(&self, sizes: &[(u32, f64)], cluster: &Cluster, span_s: f64, seed: u64) -> Vec<String> {
        let mut assumptions = vec![format!(
            "{} jobs drawn from seed {seed} to be like {}: offered load {} of {} GPUs over {}",
            self.jobs,
            self.figures.summary,
            self.load,
            cluster.gpus(),
            Span::from_secs(span_s as u64)
        )];
        if sizes.len() < self.figures.sizes.len() {
            let most = sizes.iter().map(|(gpus, _)| gpus).max().unwrap_or(&0);
            assumptions.push(format!("sizes above {most} GPUs are left out: no kind of GPU has enough"));
        }
        assumptions.extend(self.figures.caveats.iter().map(ToString::to_string));
        assumptions.push("every job runs equally fast wherever it is placed, and interruptions cost nothing".into());
        if self.figures.outcomes.is_some() {
            let what = "jobs named `…-failed` or `…-cancelled` end so after the run time drawn; nobody runs them again";
            assumptions.push(what.into());
        }
        assumptions
    }
}

/// The workload meant by `like-philly` or `like-philly:jobs=100000,load=0.9`.
pub(crate) fn load_like(text: &str, cluster: &Cluster, queues: &QueueTree, seed: u64) -> Result<Workload, Error> {
    let (name, options) = text.split_once(':').unwrap_or((text, ""));
    let mut like = Like::named(name.strip_prefix("like-").unwrap_or(name))?;
    for option in options.split(',').map(str::trim).filter(|option| !option.is_empty()) {
        like.set(option)?;
    }
    Ok(Workload { name: text.into(), ..like.generate(cluster, queues, seed)? })
}

/// One job before it has a time.
#[derive(Debug, Clone, Copy)]
struct Drawn {
    tenant: u32,
    gpus: u32,
    run_time_s: f64,
    outcome: Outcome,
    /// Which thing it runs: the same again when it is submitted again.
    thing: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Completed,
    Cancelled,
    Failed,
}

/// Jobs one after the other: the last one again, or another one of the same tenant, or one of another tenant.
struct Sessions<'a> {
    figures: &'a Figures,
    sizes: &'a [(u32, f64)],
    size_shares: Shares,
    tenant_shares: Shares,
    /// How often a job is submitted again if it failed, and if not; on average as often as the figures say.
    again: [f64; 2],
    last: Option<Drawn>,
    /// The rank of the last job's run time in its class, as a normal score.
    score: f64,
    things: u32,
    random: Streams,
}

struct Streams {
    sessions: ChaCha8Rng,
    tenants: ChaCha8Rng,
    sizes: ChaCha8Rng,
    durations: ChaCha8Rng,
    outcomes: ChaCha8Rng,
}

impl<'a> Sessions<'a> {
    fn new(figures: &'a Figures, sizes: &'a [(u32, f64)], seed: u64) -> Sessions<'a> {
        let of = |aspect| stream(seed, aspect);
        let failed = figures.outcomes.as_ref().map_or(0.0, Outcomes::failed_share);
        let otherwise = figures.repeats / (failed * AFTER_FAILURE + 1.0 - failed);
        Sessions {
            figures,
            sizes,
            size_shares: Shares::new(sizes.iter().map(|(_, share)| *share)),
            tenant_shares: figures.tenants.shares(),
            again: [otherwise * AFTER_FAILURE, otherwise],
            last: None,
            score: 0.0,
            things: 0,
            random: Streams {
                sessions: of(Aspect::Sessions),
                tenants: of(Aspect::Tenants),
                sizes: of(Aspect::Sizes),
                durations: of(Aspect::Durations),
                outcomes: of(Aspect::Outcomes),
            },
        }
    }

    /// The last job, if this one has its tenant, and whether it is the same thing again.
    fn before(&mut self) -> (Option<Drawn>, bool) {
        let draw: f64 = self.random.sessions.random();
        let last = self.last.filter(|_| draw < self.figures.tenant_stays);
        let again = last.is_some_and(|last| draw < self.again[usize::from(last.outcome != Outcome::Failed)]);
        (last, again)
    }
}

impl Iterator for Sessions<'_> {
    type Item = Drawn;

    fn next(&mut self) -> Option<Drawn> {
        let (before, again) = self.before();
        // Drawn whether needed or not, so that every job has its place in every stream.
        let size = self.sizes[self.size_shares.place(self.random.sizes.random())].0;
        let tenant = self.tenant_shares.place(self.random.tenants.random()) as u32;
        let draw: f64 = StandardNormal.sample(&mut self.random.durations);
        self.score = if before.is_some() { remembered(self.score, self.figures.alike, draw) } else { draw };
        let rank = normal_rank(self.score);
        let fate: f64 = self.random.outcomes.random();
        self.things += u32::from(!again);
        let gpus = before.filter(|_| again).map_or(size, |before| before.gpus);
        let job = Drawn {
            tenant: before.map_or(tenant, |before| before.tenant),
            gpus,
            run_time_s: quantile(&self.figures.class(gpus).run_times, rank).round().max(1.0),
            outcome: self.figures.outcomes.as_ref().map_or(Outcome::Completed, |outcomes| outcomes.of(rank, fate)),
            thing: self.things,
        };
        self.last = Some(job);
        Some(job)
    }
}

impl Figures {
    fn class(&self, gpus: u32) -> &Class {
        self.classes.iter().find(|class| gpus <= class.up_to).expect("the last class has no end")
    }
}

impl Tenants {
    fn shares(&self) -> Shares {
        match self {
            Tenants::Shares(shares) => Shares::new(shares.iter().copied()),
            Tenants::Zipf(count) => Shares::new((1..=*count).map(|place| 1.0 / f64::from(place))),
        }
    }
}

impl Outcomes {
    fn weights(&self, rank: f64) -> [f64; 2] {
        [self.cancelled, self.failed].map(|(factor, slope)| factor * (slope * rank).exp())
    }

    fn of(&self, rank: f64, draw: f64) -> Outcome {
        let [cancelled, failed] = self.weights(rank);
        match draw * (1.0 + cancelled + failed) {
            draw if draw < failed => Outcome::Failed,
            draw if draw < failed + cancelled => Outcome::Cancelled,
            _ => Outcome::Completed,
        }
    }

    fn failed_share(&self) -> f64 {
        const CELLS: u32 = 1000;
        let share = |cell: u32| {
            let [cancelled, failed] = self.weights((f64::from(cell) + 0.5) / f64::from(CELLS));
            failed / (1.0 + cancelled + failed)
        };
        (0..CELLS).map(share).sum::<f64>() / f64::from(CELLS)
    }
}

/// The value at a rank, by straight lines between the logarithms of a table's values at [`LEVELS`].
fn quantile(table: &[f64; LEVELS.len()], rank: f64) -> f64 {
    let above = LEVELS.partition_point(|&level| level <= rank).clamp(1, LEVELS.len() - 1);
    let (low, high) = (table[above - 1], table[above]);
    let part = ((rank - LEVELS[above - 1]) / (LEVELS[above] - LEVELS[above - 1])).clamp(0.0, 1.0);
    low * (high / low).powf(part)
}

/// Shares of a whole, one after the other; where each of them ends.
struct Shares(Vec<f64>);

impl Shares {
    fn new(shares: impl Iterator<Item = f64>) -> Shares {
        let mut sum = 0.0;
        Shares(
            shares
                .map(|share| {
                    sum += share;
                    sum
                })
                .collect(),
        )
    }

    /// Into which of them a draw between 0 and 1 falls.
    fn place(&self, draw: f64) -> usize {
        let last = self.0.len() - 1;
        let draw = draw * self.0[last];
        self.0.partition_point(|&end| end <= draw).min(last)
    }
}

fn build(drawn: &[Drawn], times: &[f64], queues: &QueueTree) -> Vec<TrueJob> {
    let leaves: Vec<QueueId> =
        queues.iter().filter(|&(id, _)| queues.children(id).next().is_none()).map(|(id, _)| id).collect();
    let tenants = drawn.iter().map(|job| job.tenant).max().map_or(0, |most| most + 1);
    let users: Vec<Name> = (0..tenants).map(|tenant| format!("tenant{tenant}").into()).collect();
    let speed = Arc::new(Truth::lasting(Span::from_secs(1)).speed);
    let mut jobs = Vec::with_capacity(drawn.len());
    for (job, &time) in drawn.iter().zip(times) {
        let ending = match job.outcome {
            Outcome::Completed => "",
            Outcome::Cancelled => "-cancelled",
            Outcome::Failed => "-failed",
        };
        let tenant = job.tenant as usize;
        let draft = JobDraft {
            user: users[tenant].clone(),
            queue: leaves.get(tenant % leaves.len().max(1)).copied().unwrap_or(QueueId::ROOT),
            ..JobDraft::rigid(format!("job{}{ending}", job.thing), job.gpus)
        };
        jobs.push(TrueJob {
            submitted: Time::ZERO + Span::from_secs_f64(time),
            spec: Arc::new(draft.build().expect("a rigid job of at least one GPU")),
            speed: speed.clone(),
            truth: Arc::new(Truth::lasting(Span::from_secs_f64(job.run_time_s))),
        });
    }
    jobs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distance::{correlation, ks};
    use crate::distribution::Distribution;
    use crate::inspect::run_time_s;
    use crate::load_cluster;

    const SEEDS: std::ops::RangeInclusive<u64> = 1..=3;

    fn drawn(name: &str, jobs: usize, seed: u64) -> (Workload, Cluster) {
        let mut like = Like::named(name).unwrap();
        like.jobs = jobs;
        let (cluster, queues, _) = load_cluster(&format!("{}x8 v100", like.original_gpus() / 8)).unwrap();
        let workload = like.generate(&cluster, &queues, seed).unwrap();
        (workload, cluster)
    }

    fn figures(name: &str) -> &'static Figures {
        Like::named(name).unwrap().figures
    }

    /// Ten thousand values of a table, at even ranks.
    fn values(table: &[f64; LEVELS.len()]) -> Vec<f64> {
        (0..10_000).map(|rank| quantile(table, (f64::from(rank) + 0.5) / 10_000.0).round().max(1.0)).collect()
    }

    #[test]
    fn the_figures_are_sound() {
        for figures in ALL {
            let ascends = |table: &[f64]| table[0] > 0.0 && table.windows(2).all(|pair| pair[0] <= pair[1]);
            assert!(ascends(&figures.gaps), "{}", figures.name);
            assert!(figures.classes.iter().all(|class| ascends(&class.run_times)), "{}", figures.name);
            assert!(figures.sizes.windows(2).all(|pair| pair[0].0 < pair[1].0), "{}", figures.name);
            assert_eq!(figures.classes.last().map(|class| class.up_to), Some(u32::MAX), "{}", figures.name);
            let sessions = Sessions::new(figures, figures.sizes, 1);
            assert!(sessions.again[0] <= figures.tenant_stays, "{}: repetitions stay with the tenant", figures.name);
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_jobs_and_another_one_others() {
        for (name, _) in LIKENESSES {
            let one = drawn(name, 500, 7).0;
            assert_eq!(one, drawn(name, 500, 7).0, "{name}");
            assert_ne!(one.jobs, drawn(name, 500, 8).0.jobs, "{name}");
        }
    }

    #[test]
    fn run_times_follow_the_table_of_their_size() {
        for (name, _) in LIKENESSES {
            for seed in SEEDS {
                let (workload, cluster) = drawn(name, 60_000, seed);
                let first = &figures(name).classes[0];
                let single = workload.jobs.iter().filter(|job| job.spec.min_gpus().as_f64() == 1.0);
                let durations = single.map(|job| run_time_s(job, &cluster)).collect();
                let distance = ks(durations, values(&first.run_times));
                assert!(distance < 0.03, "{name}, seed {seed}: {distance}");
            }
        }
    }

    #[test]
    fn sizes_have_their_shares() {
        for (name, _) in LIKENESSES {
            let (workload, sizes) = (drawn(name, 60_000, 1).0, figures(name).sizes);
            let gpus: Vec<f64> = workload.jobs.iter().map(|job| job.spec.min_gpus().as_f64()).collect();
            let total: f64 = sizes.iter().map(|(_, share)| share).sum();
            for &(size, share) in sizes.iter().filter(|(_, share)| *share > 1.0) {
                let found = gpus.iter().filter(|found| **found == f64::from(size)).count() as f64 / 60_000.0;
                assert!((found - share / total).abs() < 0.02, "{name}: {found} of jobs on {size} GPUs, not {share} %");
            }
        }
    }

    #[test]
    fn submissions_follow_the_hours_and_come_in_bursts() {
        for (name, _) in LIKENESSES {
            for seed in SEEDS {
                let times = submissions(figures(name), 100_000, 80.0 * 86_400.0, seed);
                assert!(times.windows(2).all(|pair| pair[0] <= pair[1]), "{name}, seed {seed}");
                assert_eq!((times[0], times[99_999]), (0.0, 80.0 * 86_400.0));
                let mut hours = [0.0; 24];
                times.iter().for_each(|time| hours[(time % 86_400.0 / 3600.0) as usize] += 1.0);
                let rhythm = correlation(&hours, &figures(name).hours).unwrap();
                assert!(rhythm > 0.9, "{name}, seed {seed}: {rhythm}");
                let mut gaps = Distribution::default();
                times.windows(2).for_each(|pair| gaps.add(pair[1] - pair[0]));
                let variation = gaps.variation().unwrap();
                assert!(variation > 1.2, "{name}, seed {seed}: {variation}");
            }
        }
    }

    #[test]
    fn the_load_is_what_was_asked_for() {
        let (cluster, queues, _) = load_cluster("16x8 v100").unwrap();
        let workload = load_like("like-philly:jobs=3000, load=0.6", &cluster, &queues, 3).unwrap();
        let offered = crate::inspect::inspect(&workload, &cluster, Some(&cluster)).offered;
        assert!((offered.load.unwrap() - 0.6).abs() < 0.001, "{:?}", offered.load);
        assert!(workload.jobs.iter().all(|job| job.spec.scaling.min() <= 128));
    }

    #[test]
    fn as_many_fail_as_published() {
        for (name, cancelled, failed) in
            [("philly", 0.09, 0.305), ("helios-venus", 0.221, 0.155), ("acme", 0.075, 0.429)]
        {
            let jobs = drawn(name, 60_000, 2).0.jobs;
            let share = |ending: &str| jobs.iter().filter(|job| job.spec.name.ends_with(ending)).count() as f64 / 6e4;
            assert!((share("-cancelled") - cancelled).abs() < 0.015, "{name}: {}", share("-cancelled"));
            assert!((share("-failed") - failed).abs() < 0.015, "{name}: {}", share("-failed"));
        }
    }

    #[test]
    fn one_job_is_a_workload_too() {
        assert_eq!(drawn("pai", 1, 1).0.jobs.len(), 1);
    }

    #[test]
    fn nonsense_is_refused() {
        let (cluster, queues, _) = load_cluster("small").unwrap();
        let fault = |text: &str| load_like(text, &cluster, &queues, 1).unwrap_err().to_string();
        assert_eq!(fault("like-philly:load=-1"), "workload like-philly: expected a load from 0.001 to 1000, found -1");
        assert_eq!(fault("like-pai:jobs=0"), "workload like-pai: expected from 1 to 10000000 jobs, found 0");
        assert_eq!(
            fault("like-acme:jbos=5"),
            "workload like-acme: unknown option `jbos`; did you mean `jobs`? (known: jobs, load)"
        );
        let known = "(known: philly, helios-venus, pai, acme)";
        assert_eq!(
            fault("like-phily"),
            format!("no figures for a workload like `phily`; did you mean `philly`? {known}")
        );
    }
}
