//! What a workload is made of: arrivals, sizes, run times, what it asks of a cluster over time, users, and what its source
//! does not say.

use std::collections::BTreeMap;

use cluster::{Cluster, Ends, Scaling};
use perf::{Rates, TrueJob};
use serde::Serialize;

use crate::Workload;
use crate::synthetic::mean_rate;

const DAY_S: f64 = 86_400.0;
const HOUR_S: f64 = 3600.0;
/// Users and sizes are listed one by one up to so many, the most active ones.
const LISTED: usize = 10;
/// Offered GPUs are counted in so many equal stretches of time at most, an hour each or more.
const MOST_STRETCHES: usize = 1 << 20;

/// The plain figures of every job, in order of submission.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Observed {
    pub submitted_s: Vec<f64>,
    /// At the least size, as a job runs.
    pub gpus: Vec<f64>,
    /// Undisturbed, at that size, on an average GPU of the cluster.
    pub durations_s: Vec<f64>,
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
    /// Over hours, or longer stretches of very long workloads.
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

impl Observed {
    pub fn of(workload: &Workload, cluster: &Cluster) -> Observed {
        let mut observed = Observed::default();
        for job in &workload.jobs {
            observed.submitted_s.push(job.submitted.as_secs_f64());
            observed.gpus.push(job.spec.min_gpus().as_f64());
            observed.durations_s.push(run_time_s(job, cluster));
        }
        observed
    }

    /// Times between submissions.
    pub fn gaps_s(&self) -> Vec<f64> {
        // Times are whole milliseconds; so are the differences.
        self.submitted_s.windows(2).map(|pair| ((pair[1] - pair[0]) * 1000.0).round() / 1000.0).collect()
    }

    /// Submissions by hour of the day from time zero, relative to the mean.
    pub fn profile(&self) -> [f64; 24] {
        let mut hours = [0.0; 24];
        for time in &self.submitted_s {
            hours[(time % DAY_S / HOUR_S) as usize % 24] += 24.0 / self.submitted_s.len() as f64;
        }
        hours
    }

    /// Submissions by minute of the day from time zero.
    pub fn minutes(&self) -> Vec<f64> {
        let mut minutes = vec![0.0; 1440];
        for time in &self.submitted_s {
            minutes[(time % DAY_S / 60.0) as usize % 1440] += 1.0;
        }
        minutes
    }

    fn gpu_time_s(&self) -> impl Iterator<Item = f64> {
        self.gpus.iter().zip(&self.durations_s).map(|(gpus, duration)| gpus * duration)
    }

    fn span_s(&self) -> f64 {
        self.submitted_s.last().unwrap_or(&0.0) - self.submitted_s.first().unwrap_or(&0.0)
    }
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
    assert!(!workload.jobs.is_empty(), "a workload has jobs");
    let observed = Observed::of(workload, cluster);
    Inspection {
        name: workload.name.clone(),
        jobs: workload.jobs.len(),
        span_s: observed.span_s(),
        gpu_hours: observed.gpu_time_s().sum::<f64>() / HOUR_S,
        arrivals: arrivals(&observed),
        gpus: Percentiles::of(observed.gpus.clone()),
        sizes: sizes(&observed),
        durations_s: Percentiles::of(observed.durations_s.clone()),
        offered: offered(&observed, against),
        users: users(workload, &observed),
        shares: shares(workload),
        assumptions: workload.assumptions.clone(),
    }
}

impl Percentiles {
    /// Of at least one value.
    pub fn of(mut values: Vec<f64>) -> Percentiles {
        values.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| values[((share * values.len() as f64) as usize).min(values.len() - 1)];
        Percentiles {
            mean: values.iter().sum::<f64>() / values.len() as f64,
            p10: at(0.1),
            p25: at(0.25),
            p50: at(0.5),
            p75: at(0.75),
            p90: at(0.9),
            p99: at(0.99),
            max: at(1.0),
        }
    }
}

fn arrivals(observed: &Observed) -> ArrivalFigures {
    let gaps = observed.gaps_s();
    let count = gaps.len() as f64;
    let mean = (!gaps.is_empty()).then(|| gaps.iter().sum::<f64>() / count);
    let deviation = |mean: f64| (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / count).sqrt();
    let same_second = observed.submitted_s.windows(2).filter(|pair| pair[0].floor() == pair[1].floor()).count();
    let mut by_day: Vec<u32> = Vec::new();
    for day in observed.submitted_s.iter().map(|time| (time / DAY_S) as usize).take_while(|&day| day < 3653) {
        by_day.resize(by_day.len().max(day + 1), 0);
        by_day[day] += 1;
    }
    ArrivalFigures {
        jobs_per_day: observed.submitted_s.len() as f64 / (observed.span_s() / DAY_S).max(1.0 / DAY_S),
        by_day,
        hour_of_day: observed.profile(),
        gap_mean_s: mean,
        gap_p50_s: mean.map(|_| Percentiles::of(gaps.clone()).p50),
        gap_cv: mean.filter(|&mean| mean > 0.0).map(|mean| deviation(mean) / mean),
        same_second: same_second as f64 / count.max(1.0),
    }
}

/// The most frequent sizes, by size.
fn sizes(observed: &Observed) -> Vec<SizeFigures> {
    let mut by_size: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
    for (gpus, gpu_time) in observed.gpus.iter().zip(observed.gpu_time_s()) {
        let entry = by_size.entry((gpus * 1000.0).round() as u64).or_default();
        entry.0 += 1.0;
        entry.1 += gpu_time;
    }
    let (jobs, gpu_time) = (observed.gpus.len() as f64, observed.gpu_time_s().sum::<f64>().max(f64::MIN_POSITIVE));
    let mut most: Vec<(u64, (f64, f64))> = by_size.into_iter().collect();
    most.sort_by(|one, other| other.1.0.total_cmp(&one.1.0));
    most.truncate(LISTED);
    most.sort_by_key(|(gpus, _)| *gpus);
    let figures = |(gpus, (count, time)): (u64, (f64, f64))| SizeFigures {
        gpus: gpus as f64 / 1000.0,
        jobs: count / jobs,
        gpu_time: time / gpu_time,
    };
    most.into_iter().map(figures).collect()
}

fn users(workload: &Workload, observed: &Observed) -> UserFigures {
    let mut by_user: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for (job, gpu_time) in workload.jobs.iter().zip(observed.gpu_time_s()) {
        let entry = by_user.entry(&job.spec.user).or_default();
        entry.0 += 1.0;
        entry.1 += gpu_time;
    }
    let count = by_user.len();
    let (jobs, gpu_time) = (workload.jobs.len() as f64, observed.gpu_time_s().sum::<f64>().max(f64::MIN_POSITIVE));
    let mut most: Vec<(&str, (f64, f64))> = by_user.into_iter().collect();
    most.sort_by(|one, other| other.1.0.total_cmp(&one.1.0));
    most.truncate(LISTED);
    let figure = |(user, (count, time)): (&str, (f64, f64))| UserFigure {
        user: user.into(),
        jobs: count / jobs,
        gpu_time: time / gpu_time,
    };
    UserFigures { count, most: most.into_iter().map(figure).collect() }
}

fn shares(workload: &Workload) -> Shares {
    let share = |is: &dyn Fn(&TrueJob) -> bool| {
        workload.jobs.iter().filter(|job| is(job)).count() as f64 / workload.jobs.len() as f64
    };
    Shares {
        elastic: share(&|job| matches!(job.spec.scaling, Scaling::Elastic(_))),
        adaptive: share(&|job| matches!(job.spec.scaling, Scaling::Adaptive(..))),
        with_deadline: share(&|job| job.spec.deadline.is_some()),
        with_estimate: share(&|job| job.spec.expected.is_some()),
        with_known_end: share(&|job| job.spec.ends != Ends::Itself),
        after_others: share(&|job| !job.spec.after.is_empty()),
        on_parts_of_gpus: share(&|job| {
            job.spec.roles[0].slice.is_some_and(|slice| slice.grain.share() < cluster::Gpus::whole(1))
        }),
        failed: share(&|job| job.spec.name.ends_with("-failed")),
        cancelled: share(&|job| job.spec.name.ends_with("-cancelled")),
    }
}

fn offered(observed: &Observed, against: Option<&Cluster>) -> Offered {
    let (first, span) = (observed.submitted_s[0], observed.span_s());
    let width = HOUR_S.max(span / MOST_STRETCHES as f64);
    let stretches = in_use(observed, first, span, width);
    let mut sorted = stretches.clone();
    sorted.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| sorted[((share * sorted.len() as f64) as usize).min(sorted.len() - 1)];
    let mean_gpus = (span > 0.0).then(|| observed.gpu_time_s().sum::<f64>() / span);
    let cluster_gpus = against.map(Cluster::gpus);
    let per_day = (DAY_S / width).max(1.0) as usize;
    Offered {
        mean_gpus,
        p5_gpus: at(0.05),
        p50_gpus: at(0.5),
        p95_gpus: at(0.95),
        by_day_gpus: stretches
            .chunks(per_day)
            .take(3653)
            .map(|day| day.iter().sum::<f64>() / day.len() as f64)
            .collect(),
        cluster_gpus,
        load: mean_gpus.zip(cluster_gpus).filter(|(_, gpus)| *gpus > 0).map(|(mean, gpus)| mean / f64::from(gpus)),
    }
}

/// Mean GPUs in use in every stretch of the span, if jobs start when they are submitted.
fn in_use(observed: &Observed, first: f64, span: f64, width: f64) -> Vec<f64> {
    let count = (span / width).floor() as usize + 1;
    // Jobs that fill a stretch are noted where they begin and end to do so; the rest is added piece by piece.
    let (mut whole, mut pieces) = (vec![0.0; count + 1], vec![0.0; count]);
    for ((time, gpus), duration) in observed.submitted_s.iter().zip(&observed.gpus).zip(&observed.durations_s) {
        let (start, end) = ((time - first) / width, (time - first + duration) / width);
        let (from, to) = (start as usize, (end as usize).min(count));
        if from == to {
            pieces[from.min(count - 1)] += gpus * (end - start);
            continue;
        }
        pieces[from] += gpus * (from as f64 + 1.0 - start);
        whole[from + 1] += gpus;
        whole[to] -= gpus;
        if to < count {
            pieces[to] += gpus * (end - to as f64);
        }
    }
    let mut running = 0.0;
    let mut used = Vec::with_capacity(count);
    for (whole, piece) in whole.iter().zip(&pieces) {
        running += whole;
        used.push(running + piece);
    }
    used
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
    fn a_single_job_has_no_gaps_and_no_load() {
        let inspection = seen(&[(5, 2, 60)]);
        assert_eq!((inspection.arrivals.gap_cv, inspection.offered.load), (None, None));
        assert_eq!(inspection.sizes, [SizeFigures { gpus: 2.0, jobs: 1.0, gpu_time: 1.0 }]);
    }
}
