//! What a workload is made of: arrivals, sizes, run times, what it asks of a cluster over time, users, and what its source
//! does not say. All of it is a fold over the jobs in order of submission, in memory that does not grow with their number.

use std::collections::BTreeMap;

use cluster::{Cluster, Ends, Name, Scaling};
use perf::{Rates, TrueJob};
use serde::Serialize;

use crate::Workload;
use crate::distribution::{CLASS_WIDTH, Distribution, MOST_EXACT};
use crate::synthetic::mean_rate;

const DAY_S: f64 = 86_400.0;
const HOUR_S: f64 = 3600.0;
const HOURS_OF_WEEK: usize = 7 * 24;
/// Users and sizes are listed one by one up to so many, the most active ones.
const LISTED: usize = 10;
/// So many users, and so many sizes, are told apart: those met first.
const MOST_TOLD_APART: usize = 1 << 16;
/// What happens over time is counted in stretches of ten minutes,
const STRETCH_S: f64 = 600.0;
/// and so many of them, twenty years, from the first submission on.
const MOST_STRETCHES: usize = 1 << 20;
const STRETCHES_PER_HOUR: usize = 6;
/// Lists of days are cut off after ten years.
const MOST_DAYS: usize = 3653;

/// What was seen of the jobs of a workload, added in order of submission.
#[derive(Debug, Clone, PartialEq)]
pub struct Observed {
    /// Submissions, in seconds.
    first_s: f64,
    last_s: f64,
    /// Seconds between submissions.
    pub gaps_s: Distribution,
    same_second: u64,
    by_day: Vec<u32>,
    /// Submissions by minute of the day, and by hour of the week, both from time zero.
    minutes: Vec<f64>,
    week: Vec<u32>,
    /// Submissions in every stretch.
    came: Vec<u32>,
    /// At the least size, as a job runs.
    pub gpus: Distribution,
    /// Undisturbed, at that size, on an average GPU of the cluster.
    pub durations_s: Distribution,
    gpu_time_s: f64,
    /// By thousandths of a GPU.
    sizes: BTreeMap<u64, Sums>,
    users: BTreeMap<Name, Sums>,
    /// Jobs of users beyond those that are told apart.
    of_other_users: u64,
    /// Jobs that fill a stretch are noted where they begin and end to do so; the rest is added piece by piece.
    filled: Vec<f64>,
    pieces: Vec<f64>,
    marks: [u64; MARKS.len()],
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Sums {
    jobs: u64,
    gpu_time_s: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Inspection {
    pub name: String,
    pub jobs: usize,
    /// From the first submission to the last.
    pub span_s: f64,
    pub gpu_hours: f64,
    pub arrivals: ArrivalFigures,
    pub gpus: Percentiles,
    pub sizes: Vec<SizeFigures>,
    pub durations_s: Percentiles,
    pub offered: Offered,
    pub users: UserFigures,
    pub shares: Shares,
    /// How exact the percentiles are, where they are not exact: of more than about a million jobs.
    pub approximate: Option<String>,
    /// What the source does not say, and what was taken for granted instead.
    pub assumptions: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ArrivalFigures {
    pub jobs_per_day: f64,
    /// Jobs of every day from time zero on; longer lists than ten years by the first ten years.
    pub by_day: Vec<u32>,
    /// Submissions by hour of the day from time zero, relative to the mean.
    pub hour_of_day: [f64; 24],
    pub gap_mean_s: Option<f64>,
    pub gap_p50_s: Option<f64>,
    /// Standard deviation over mean of the times between submissions; 1 for a Poisson process.
    pub gap_cv: Option<f64>,
    /// Jobs submitted in the same second as the one before.
    pub same_second: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Percentiles {
    pub mean: f64,
    pub p10: f64,
    pub p25: f64,
    pub p50: f64,
    pub p75: f64,
    pub p90: f64,
    pub p99: f64,
    pub max: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SizeFigures {
    pub gpus: f64,
    pub jobs: f64,
    pub gpu_time: f64,
}

/// GPUs that would be in use if every job started when it was submitted.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Offered {
    /// GPU time of all jobs over the time between the first submission and the last.
    pub mean_gpus: Option<f64>,
    /// Over hours; of workloads longer than twenty years the first twenty years.
    pub p5_gpus: f64,
    pub p50_gpus: f64,
    pub p95_gpus: f64,
    pub by_day_gpus: Vec<f64>,
    /// If a cluster is given: its GPUs, and the mean as a share of them.
    pub cluster_gpus: Option<u32>,
    pub load: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UserFigures {
    pub count: usize,
    /// The most active ones.
    pub most: Vec<UserFigure>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UserFigure {
    pub user: String,
    pub jobs: f64,
    pub gpu_time: f64,
}

/// Shares of the jobs that say more than size and run time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Shares {
    pub elastic: f64,
    pub adaptive: f64,
    pub with_deadline: f64,
    pub with_estimate: f64,
    pub with_known_end: f64,
    pub after_others: f64,
    pub on_parts_of_gpus: f64,
    /// Named by their generator as failed or cancelled.
    pub failed: f64,
    pub cancelled: f64,
}

/// What is counted for [`Shares`], in its order.
const MARKS: [fn(&TrueJob) -> bool; 9] = [
    |job| matches!(job.spec.scaling, Scaling::Elastic(_)),
    |job| matches!(job.spec.scaling, Scaling::Adaptive(..)),
    |job| job.spec.deadline.is_some(),
    |job| job.spec.expected.is_some(),
    |job| job.spec.ends != Ends::Itself,
    |job| !job.spec.after.is_empty(),
    |job| job.spec.roles[0].slice.is_some_and(|slice| slice.grain.share() < cluster::Gpus::whole(1)),
    |job| job.spec.name.ends_with("-failed"),
    |job| job.spec.name.ends_with("-cancelled"),
];

/// Something over time: means or sums over equal stretches from the first submission on.
#[derive(Debug, Clone, PartialEq)]
pub struct OverTime {
    pub step_s: f64,
    pub values: Vec<f64>,
}

impl Default for Observed {
    fn default() -> Observed {
        Observed {
            first_s: 0.0,
            last_s: 0.0,
            gaps_s: Distribution::default(),
            same_second: 0,
            by_day: Vec::new(),
            minutes: vec![0.0; 1440],
            week: vec![0; HOURS_OF_WEEK],
            came: Vec::new(),
            gpus: Distribution::default(),
            durations_s: Distribution::default(),
            gpu_time_s: 0.0,
            sizes: BTreeMap::new(),
            users: BTreeMap::new(),
            of_other_users: 0,
            filled: Vec::new(),
            pieces: Vec::new(),
            marks: [0; MARKS.len()],
        }
    }
}

impl Observed {
    pub fn of(workload: &Workload, cluster: &Cluster) -> Observed {
        let mut observed = Observed::default();
        workload.jobs.iter().for_each(|job| observed.add(job, cluster));
        observed
    }

    /// Adds a job that was submitted no earlier than those before it.
    pub fn add(&mut self, job: &TrueJob, cluster: &Cluster) {
        let (gpus, duration) = (job.spec.min_gpus().as_f64(), run_time_s(job, cluster));
        let sums = Sums { jobs: 1, gpu_time_s: gpus * duration };
        self.add_submission(job.submitted.as_secs_f64());
        self.gpus.add(gpus);
        self.durations_s.add(duration);
        self.gpu_time_s += sums.gpu_time_s;
        add_sums(&mut self.sizes, (gpus * 1000.0).round() as u64, sums);
        self.of_other_users += u64::from(!add_sums(&mut self.users, job.spec.user.clone(), sums));
        self.add_use(gpus, duration);
        self.marks.iter_mut().zip(MARKS).for_each(|(count, is)| *count += u64::from(is(job)));
    }

    fn add_submission(&mut self, time: f64) {
        if self.came.is_empty() {
            (self.first_s, self.last_s) = (time, time);
        } else {
            // Times are whole milliseconds; so are the differences.
            self.gaps_s.add(((time - self.last_s) * 1000.0).round() / 1000.0);
            self.same_second += u64::from(time.floor() == self.last_s.floor());
        }
        self.last_s = time;
        count(&mut self.by_day, (time / DAY_S) as usize, MOST_DAYS);
        count(&mut self.came, ((time - self.first_s) / STRETCH_S) as usize, MOST_STRETCHES);
        self.minutes[(time % DAY_S / 60.0) as usize % 1440] += 1.0;
        self.week[(time / HOUR_S) as usize % HOURS_OF_WEEK] += 1;
    }

    /// GPUs that are held from the last submission on.
    fn add_use(&mut self, gpus: f64, duration: f64) {
        let start = (self.last_s - self.first_s) / STRETCH_S;
        let end = start + duration / STRETCH_S;
        let (from, to) = (start as usize, (end as usize).min(MOST_STRETCHES));
        if from >= MOST_STRETCHES {
            return;
        }
        if self.filled.len() <= to + 1 {
            self.filled.resize(to + 2, 0.0);
            self.pieces.resize(to + 2, 0.0);
        }
        if from == to {
            self.pieces[from] += gpus * (end - start);
            return;
        }
        self.pieces[from] += gpus * (from as f64 + 1.0 - start);
        self.filled[from + 1] += gpus;
        self.filled[to] -= gpus;
        self.pieces[to] += gpus * (end - to as f64).min(1.0);
    }

    pub fn jobs(&self) -> u64 {
        self.gpus.count()
    }

    /// From the first submission to the last.
    pub fn span_s(&self) -> f64 {
        self.last_s - self.first_s
    }

    /// Submissions by hour of the day from time zero, relative to the mean.
    pub fn profile(&self) -> [f64; 24] {
        let all = self.minutes.iter().sum::<f64>().max(1.0);
        std::array::from_fn(|hour| self.minutes[hour * 60..][..60].iter().sum::<f64>() * 24.0 / all)
    }

    /// Submissions by minute of the day from time zero.
    pub fn minutes(&self) -> &[f64] {
        &self.minutes
    }

    /// Submissions by hour of the week from time zero, relative to the mean.
    pub fn weekly_profile(&self) -> Vec<f64> {
        let all = f64::from(self.week.iter().sum::<u32>()).max(1.0);
        self.week.iter().map(|&count| f64::from(count) * HOURS_OF_WEEK as f64 / all).collect()
    }

    /// Submissions per hour, in at most so many stretches.
    pub fn arrivals(&self, most: usize) -> OverTime {
        let per_hour = |&count: &u32| f64::from(count) * STRETCHES_PER_HOUR as f64;
        OverTime::of(self.came.iter().map(per_hour).collect(), most)
    }

    /// Mean GPUs in use if jobs started when they are submitted, from the first submission to the last, in at most so many
    /// stretches.
    pub fn load(&self, most: usize) -> OverTime {
        let stretches = (self.span_s() / STRETCH_S) as usize + 1;
        OverTime::of(self.in_use(stretches), most)
    }

    /// The most frequent sizes, by size.
    pub fn sizes(&self, most: usize) -> Vec<SizeFigures> {
        let mut sizes = self.most_active(&self.sizes, most);
        sizes.sort_by_key(|(gpus, ..)| **gpus);
        let figures =
            |(gpus, jobs, gpu_time): (&u64, f64, f64)| SizeFigures { gpus: *gpus as f64 / 1000.0, jobs, gpu_time };
        sizes.into_iter().map(figures).collect()
    }

    /// How many different sizes there are, as far as they are told apart.
    pub fn size_count(&self) -> usize {
        self.sizes.len()
    }

    /// Whatever has the most jobs, with its shares of jobs and GPU time.
    fn most_active<'a, K: Ord>(&self, sums: &'a BTreeMap<K, Sums>, most: usize) -> Vec<(&'a K, f64, f64)> {
        let mut ranked: Vec<(&K, &Sums)> = sums.iter().collect();
        ranked.sort_by_key(|(_, sums)| std::cmp::Reverse(sums.jobs));
        ranked.truncate(most);
        let (jobs, gpu_time) = (self.jobs() as f64, self.gpu_time_s.max(f64::MIN_POSITIVE));
        ranked.into_iter().map(|(key, sums)| (key, sums.jobs as f64 / jobs, sums.gpu_time_s / gpu_time)).collect()
    }

    /// Mean GPUs in use in so many stretches from the first submission on.
    fn in_use(&self, stretches: usize) -> Vec<f64> {
        let count = stretches.min(MOST_STRETCHES);
        let at = |values: &[f64], index: usize| values.get(index).copied().unwrap_or(0.0);
        let mut running = 0.0;
        let mut used = Vec::with_capacity(count);
        for index in 0..count {
            running += at(&self.filled, index);
            used.push(running + at(&self.pieces, index));
        }
        used
    }

    /// All there is to say about a workload of at least one job. `against` is the cluster whose load it would be.
    pub fn inspection(&self, name: &str, assumptions: &[String], against: Option<&Cluster>) -> Inspection {
        assert!(self.jobs() > 0, "a workload has jobs");
        Inspection {
            name: name.into(),
            jobs: self.jobs() as usize,
            span_s: self.span_s(),
            gpu_hours: self.gpu_time_s / HOUR_S,
            arrivals: self.arrival_figures(),
            gpus: Percentiles::of(&self.gpus),
            sizes: self.sizes(LISTED),
            durations_s: Percentiles::of(&self.durations_s),
            offered: self.offered(against),
            users: self.user_figures(),
            shares: self.shares(),
            approximate: self.approximate(),
            assumptions: assumptions.to_vec(),
        }
    }

    fn arrival_figures(&self) -> ArrivalFigures {
        ArrivalFigures {
            jobs_per_day: self.jobs() as f64 / (self.span_s() / DAY_S).max(1.0 / DAY_S),
            by_day: self.by_day.clone(),
            hour_of_day: self.profile(),
            gap_mean_s: self.gaps_s.mean(),
            gap_p50_s: self.gaps_s.mean().map(|_| self.gaps_s.at(&[0.5])[0]),
            gap_cv: self.gaps_s.variation(),
            same_second: self.same_second as f64 / (self.gaps_s.count() as f64).max(1.0),
        }
    }

    fn offered(&self, against: Option<&Cluster>) -> Offered {
        let mean = |stretches: &[f64]| stretches.iter().sum::<f64>() / stretches.len() as f64;
        let hours = (self.span_s() / HOUR_S) as usize + 1;
        let hours: Vec<f64> = self.in_use(hours * STRETCHES_PER_HOUR).chunks(STRETCHES_PER_HOUR).map(mean).collect();
        let mut sorted = hours.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| sorted[((share * sorted.len() as f64) as usize).min(sorted.len() - 1)];
        let mean_gpus = (self.span_s() > 0.0).then(|| self.gpu_time_s / self.span_s());
        let cluster_gpus = against.map(Cluster::gpus);
        Offered {
            mean_gpus,
            p5_gpus: at(0.05),
            p50_gpus: at(0.5),
            p95_gpus: at(0.95),
            by_day_gpus: hours.chunks(24).take(MOST_DAYS).map(mean).collect(),
            cluster_gpus,
            load: mean_gpus.zip(cluster_gpus).filter(|(_, gpus)| *gpus > 0).map(|(mean, gpus)| mean / f64::from(gpus)),
        }
    }

    fn user_figures(&self) -> UserFigures {
        let most = self.most_active(&self.users, LISTED).into_iter();
        let most = most.map(|(user, jobs, gpu_time)| UserFigure { user: user.to_string(), jobs, gpu_time }).collect();
        UserFigures { count: self.users.len(), most }
    }

    fn shares(&self) -> Shares {
        let [
            elastic,
            adaptive,
            with_deadline,
            with_estimate,
            with_known_end,
            after_others,
            on_parts_of_gpus,
            failed,
            cancelled,
        ] = self.marks.map(|count| count as f64 / self.jobs() as f64);
        Shares {
            elastic,
            adaptive,
            with_deadline,
            with_estimate,
            with_known_end,
            after_others,
            on_parts_of_gpus,
            failed,
            cancelled,
        }
    }

    /// What of the figures is not exact.
    fn approximate(&self) -> Option<String> {
        let mut told = Vec::new();
        if !self.durations_s.is_exact() {
            told.push(format!(
                "percentiles of more than {MOST_EXACT} jobs are exact to {:.1} % of the value",
                CLASS_WIDTH * 100.0
            ));
        }
        if self.of_other_users > 0 {
            let jobs = self.of_other_users;
            told.push(format!("only the first {MOST_TOLD_APART} users are told apart; {jobs} jobs are of others"));
        }
        (!told.is_empty()).then(|| told.join("; "))
    }
}

impl OverTime {
    /// Stretches put together until they are few enough, and as long as people measure time.
    fn of(stretches: Vec<f64>, most: usize) -> OverTime {
        const TOGETHER: [usize; 11] = [1, 3, 6, 12, 18, 36, 72, 144, 288, 1008, 4320];
        let few = |together: &&usize| stretches.len().div_ceil(**together) <= most;
        let together = TOGETHER.iter().find(few).copied().unwrap_or(stretches.len().div_ceil(most.max(1)));
        let mean = |stretches: &[f64]| stretches.iter().sum::<f64>() / stretches.len() as f64;
        OverTime { step_s: STRETCH_S * together as f64, values: stretches.chunks(together).map(mean).collect() }
    }
}

/// Counts one at a place, unless it is too far on.
fn count(counts: &mut Vec<u32>, place: usize, most: usize) {
    if place < most {
        counts.resize(counts.len().max(place + 1), 0);
        counts[place] += 1;
    }
}

/// Whether there was room to tell it apart.
fn add_sums<K: Ord>(all: &mut BTreeMap<K, Sums>, key: K, sums: Sums) -> bool {
    if all.len() >= MOST_TOLD_APART && !all.contains_key(&key) {
        return false;
    }
    let entry = all.entry(key).or_default();
    entry.jobs += sums.jobs;
    entry.gpu_time_s += sums.gpu_time_s;
    true
}

/// How long a job runs undisturbed at its least size, on the cluster's average GPU of those it can use.
pub fn run_time_s(job: &TrueJob, cluster: &Cluster) -> f64 {
    let speed = &job.truth.speed;
    let reference = match &speed.rates {
        Rates::Anywhere(rate) => *rate,
        Rates::ByKind(table) => mean_rate(table, cluster),
    };
    let share = job.spec.roles[0].slice.map_or(1.0, |slice| slice.grain.share().as_f64());
    job.truth.iterations as f64 / (reference * speed.scaling.speedup(job.spec.scaling.min()) * share)
}

/// All there is to say about a workload of at least one job. `against` is the cluster whose load it would be.
pub fn inspect(workload: &Workload, cluster: &Cluster, against: Option<&Cluster>) -> Inspection {
    Observed::of(workload, cluster).inspection(&workload.name, &workload.assumptions, against)
}

impl Percentiles {
    /// Of at least one value.
    pub fn of(values: &Distribution) -> Percentiles {
        let at = values.at(&[0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0]);
        let mean = values.mean().expect("there are values");
        Percentiles { mean, p10: at[0], p25: at[1], p50: at[2], p75: at[3], p90: at[4], p99: at[5], max: at[6] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load_cluster;
    use cluster::{JobDraft, Span, Time};
    use perf::Truth;
    use std::sync::Arc;

    fn workload(jobs: &[(u64, u32, u64)]) -> Workload {
        let job = |&(submitted, gpus, duration): &(u64, u32, u64)| {
            let truth = Truth::lasting(Span::from_secs(duration));
            TrueJob {
                submitted: Time::from_secs(submitted),
                spec: Arc::new(JobDraft::rigid("a", gpus).build().unwrap()),
                speed: Arc::new(truth.speed.clone()),
                truth: Arc::new(truth),
            }
        };
        Workload { name: "w".into(), jobs: jobs.iter().map(job).collect(), assumptions: Vec::new() }
    }

    fn seen(jobs: &[(u64, u32, u64)]) -> Inspection {
        let (cluster, ..) = load_cluster("2x8 v100").unwrap();
        inspect(&workload(jobs), &cluster, Some(&cluster))
    }

    #[test]
    fn offered_gpus_are_those_held_if_nobody_waited() {
        // Two hours of 4 GPUs, a third hour of 2, and half an hour of 8 in the second.
        let offered = seen(&[(0, 4, 7200), (3600, 8, 1800), (7200, 2, 36_000), (10_800, 1, 1)]).offered;
        assert_eq!((offered.p5_gpus, offered.p95_gpus), (2.0, 8.0));
        assert_eq!(offered.by_day_gpus, [(4.0 + 8.0 + 2.0 + 2.0 + 1.0 / 3600.0) / 4.0]);
        assert_eq!(offered.cluster_gpus, Some(16));
    }

    #[test]
    fn arrivals_of_one_second_are_counted() {
        let arrivals = seen(&[(0, 1, 1), (0, 1, 1), (10, 1, 1), (3600, 1, 1)]).arrivals;
        assert_eq!((arrivals.same_second, arrivals.gap_mean_s), (1.0 / 3.0, Some(1200.0)));
        assert_eq!(arrivals.hour_of_day[..3], [18.0, 6.0, 0.0]);
        assert_eq!(arrivals.by_day, [4]);
    }

    #[test]
    fn over_time_stretches_are_put_together_until_they_are_few() {
        let (cluster, ..) = load_cluster("2x8 v100").unwrap();
        let observed = Observed::of(&workload(&[(0, 4, 1200), (600, 2, 600), (86_400, 1, 1)]), &cluster);
        let load = observed.load(1000);
        assert_eq!((load.step_s, load.values.len(), &load.values[..3]), (600.0, 145, &[4.0, 6.0, 0.0][..]));
        let load = observed.load(49);
        assert_eq!((load.step_s, load.values.len(), load.values[0]), (1800.0, 49, 10.0 / 3.0));
        let arrivals = observed.arrivals(49);
        assert_eq!((arrivals.step_s, arrivals.values[0], arrivals.values[48]), (1800.0, 4.0, 6.0));
        let week = observed.weekly_profile();
        assert_eq!((week.len(), week[0], week[24], week[1]), (168, 112.0, 56.0, 0.0));
    }

    #[test]
    fn jobs_of_three_hundred_years_do_not_fill_the_memory() {
        let (cluster, ..) = load_cluster("2x8 v100").unwrap();
        let century = 3_155_760_000;
        let observed = Observed::of(&workload(&[(0, 1, century), (century, 1, century)]), &cluster);
        assert!(observed.filled.len() <= MOST_STRETCHES + 2 && observed.came.len() <= MOST_STRETCHES);
        assert_eq!(observed.inspection("w", &[], None).offered.mean_gpus, Some(2.0));
    }

    #[test]
    fn users_beyond_those_told_apart_are_said() {
        let mut observed = Observed::default();
        let (cluster, ..) = load_cluster("2x8 v100").unwrap();
        let mut job = workload(&[(0, 1, 1)]).jobs.remove(0);
        for user in 0..MOST_TOLD_APART + 3 {
            let draft = JobDraft { user: format!("u{user}").into(), ..JobDraft::rigid("a", 1) };
            job.spec = Arc::new(draft.build().unwrap());
            observed.add(&job, &cluster);
        }
        let inspection = observed.inspection("w", &[], None);
        assert_eq!(inspection.users.count, MOST_TOLD_APART);
        let told = "only the first 65536 users are told apart; 3 jobs are of others";
        assert_eq!(inspection.approximate.as_deref(), Some(told));
    }

    #[test]
    fn a_single_job_has_no_gaps_and_no_load() {
        let inspection = seen(&[(5, 2, 60)]);
        assert_eq!((inspection.arrivals.gap_cv, inspection.offered.load), (None, None));
        assert_eq!(inspection.sizes, [SizeFigures { gpus: 2.0, jobs: 1.0, gpu_time: 1.0 }]);
    }
}
