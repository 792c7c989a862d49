//! What the page keeps of one run: everything it plots, and little enough that many runs of many jobs fit into memory.

use std::collections::BTreeMap;

use cluster::{Name, Span, Time};
use plan::Outcome;
use report::{Figure, JobRow, RunReport, Series};

/// More jobs than this are not drawn one by one over time.
const MOST_ROWS: usize = 500;
/// Nor are more runs of jobs than this.
const MOST_BARS: usize = 6000;
/// Users beyond these are one colour.
const NAMED_USERS: usize = 7;
/// Waiting is averaged over longer stretches than queues are: in short ones too few jobs come.
const WAITING_BUCKETS: usize = 48;

/// The plots of one run.
#[derive(Debug, Clone)]
pub struct RunPlot {
    pub(crate) policy: String,
    pub(crate) oracle: bool,
    pub(crate) seed: u64,
    /// Of the jobs that finished, in seconds, ascending.
    pub(crate) completion_times: Vec<f64>,
    pub(crate) tenants: BTreeMap<Name, Tenant>,
    pub(crate) detail: Option<Detail>,
}

/// Sums over a user's jobs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Tenant {
    pub(crate) jobs: u64,
    pub(crate) gpu_hours: f64,
    pub(crate) waiting_s: f64,
    /// Σ T_fair and Σ JCT of those jobs that have a fair time.
    pub(crate) due_s: f64,
    pub(crate) taken_s: f64,
}

/// What is shown of one seed only.
#[derive(Debug, Clone)]
pub(crate) struct Detail {
    pub(crate) jobs: Vec<JobPlot>,
    /// Nothing if there are too many to be told apart.
    pub(crate) bars: Option<Vec<Bar>>,
    pub(crate) by_size: Stack,
    pub(crate) by_user: Stack,
    pub(crate) queue_length: Series,
    /// Mean waiting of the jobs submitted in each stretch.
    pub(crate) waiting: Series,
    pub(crate) kinds: Vec<KindPlot>,
}

#[derive(Debug, Clone)]
pub(crate) struct JobPlot {
    pub(crate) name: Name,
    pub(crate) user: Name,
    pub(crate) gpus: f64,
    pub(crate) submitted_s: f64,
    /// Of a job that finished.
    pub(crate) completion_s: Option<f64>,
}

/// A job held GPUs; times are counted from the first submission.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bar {
    pub(crate) job: u32,
    pub(crate) from_s: f64,
    pub(crate) until_s: f64,
    pub(crate) gpus: f64,
}

/// GPUs held over time by each of a few groups of jobs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stack {
    pub(crate) bucket_s: u64,
    pub(crate) groups: Vec<(String, Vec<f64>)>,
}

#[derive(Debug, Clone)]
pub(crate) struct KindPlot {
    pub(crate) name: Name,
    pub(crate) gpus: u32,
    pub(crate) utilisation: Series,
    pub(crate) fragmentation: Series,
}

impl RunPlot {
    /// In detail, or only what is put together with other seeds.
    pub fn of(run: &RunReport, figure: &Figure, detailed: bool) -> RunPlot {
        let mut completion_times: Vec<f64> = figure.jobs.iter().filter_map(completion).collect();
        completion_times.sort_unstable_by(f64::total_cmp);
        RunPlot {
            policy: run.policy.clone(),
            oracle: !run.knows.is_empty(),
            seed: run.seed,
            completion_times,
            tenants: tenants(figure),
            detail: detailed.then(|| Detail::of(run, figure)),
        }
    }
}

/// In seconds, of a job that finished.
fn completion(job: &JobRow) -> Option<f64> {
    job.jct.filter(|_| job.outcome == Some(Outcome::Finished)).map(Span::as_secs_f64)
}

fn tenants(figure: &Figure) -> BTreeMap<Name, Tenant> {
    let mut tenants: BTreeMap<Name, Tenant> = BTreeMap::new();
    for (job, fair_time) in figure.jobs.iter().zip(&figure.fair_times) {
        let tenant = tenants.entry(job.user.clone()).or_default();
        tenant.jobs += 1;
        tenant.gpu_hours += job.held.as_gpu_hours();
        tenant.waiting_s += job.waiting.as_secs_f64();
        if let (Some(due), Some(taken)) = (fair_time, completion(job)) {
            tenant.due_s += due;
            tenant.taken_s += taken;
        }
    }
    tenants
}

impl Tenant {
    pub(crate) fn add(&mut self, other: &Tenant) {
        self.jobs += other.jobs;
        self.gpu_hours += other.gpu_hours;
        self.waiting_s += other.waiting_s;
        self.due_s += other.due_s;
        self.taken_s += other.taken_s;
    }

    /// 1 if served as by a fair share of the cluster, 2 if twice as well.
    pub(crate) fn service(&self) -> Option<f64> {
        (self.taken_s > 0.0).then(|| self.due_s / self.taken_s)
    }
}

impl Detail {
    fn of(run: &RunReport, figure: &Figure) -> Detail {
        let queue_length = run.queue_length.series.clone();
        let few = figure.jobs.len() <= MOST_ROWS && figure.holdings.len() <= MOST_BARS;
        Detail {
            jobs: figure.jobs.iter().map(|job| JobPlot::of(job, figure.origin)).collect(),
            bars: few.then(|| bars(figure)),
            by_size: by_size(figure, &queue_length),
            by_user: by_user(figure, &queue_length),
            waiting: waiting(figure, &queue_length),
            kinds: figure
                .kinds
                .iter()
                .map(|kind| KindPlot {
                    name: kind.name.clone(),
                    gpus: kind.gpus,
                    utilisation: kind.utilisation.series.clone(),
                    fragmentation: kind.fragmentation.series.clone(),
                })
                .collect(),
            queue_length,
        }
    }
}

impl JobPlot {
    fn of(job: &JobRow, origin: Time) -> JobPlot {
        JobPlot {
            name: job.name.clone(),
            user: job.user.clone(),
            gpus: job.gpus.as_f64(),
            submitted_s: since(origin, job.submitted),
            completion_s: completion(job),
        }
    }
}

/// A refused job may have come before the first that was not.
fn since(origin: Time, at: Time) -> f64 {
    at.as_secs_f64() - origin.as_secs_f64()
}

fn bars(figure: &Figure) -> Vec<Bar> {
    let bar = |holding: &report::Holding| Bar {
        job: holding.job.0,
        from_s: since(figure.origin, holding.from),
        until_s: since(figure.origin, holding.until),
        gpus: holding.gpus.as_f64(),
    };
    figure.holdings.iter().map(bar).collect()
}

/// Jobs by the GPUs they ask for: what each class is called, and the most its jobs ask for.
pub(crate) const SIZES: [(&str, f64); 7] = [
    ("under 1 GPU", 0.999),
    ("1 GPU", 1.0),
    ("2–4 GPUs", 4.0),
    ("5–8 GPUs", 8.0),
    ("9–16 GPUs", 16.0),
    ("17–64 GPUs", 64.0),
    ("over 64 GPUs", f64::INFINITY),
];

fn size_class(gpus: f64) -> usize {
    SIZES.iter().position(|(_, most)| gpus <= *most).expect("the last class has no end")
}

fn by_size(figure: &Figure, like: &Series) -> Stack {
    let class = |job: usize| size_class(figure.jobs[job].gpus.as_f64());
    let mut stack = stack(figure, like, SIZES.iter().map(|(name, _)| (*name).to_string()).collect(), class);
    stack.groups.retain(|(_, values)| values.iter().any(|value| *value > 0.0));
    stack
}

/// Those who hold the most, and all others together.
fn by_user(figure: &Figure, like: &Series) -> Stack {
    let mut held: BTreeMap<&Name, f64> = BTreeMap::new();
    for job in &figure.jobs {
        *held.entry(&job.user).or_default() += job.held.as_gpu_hours();
    }
    let mut users: Vec<(&Name, f64)> = held.into_iter().collect();
    users.sort_by(|(a, a_held), (b, b_held)| b_held.total_cmp(a_held).then(a.cmp(b)));
    let others = users.len().saturating_sub(NAMED_USERS);
    users.truncate(NAMED_USERS);
    let ranks: BTreeMap<&Name, usize> = users.iter().enumerate().map(|(rank, (user, _))| (*user, rank)).collect();
    let mut names: Vec<String> = users.iter().map(|(user, _)| user.to_string()).collect();
    if others > 0 {
        names.push(format!("{others} others"));
    }
    stack(figure, like, names, |job| ranks.get(&figure.jobs[job].user).copied().unwrap_or(NAMED_USERS))
}

fn stack(figure: &Figure, like: &Series, names: Vec<String>, group: impl Fn(usize) -> usize) -> Stack {
    let bucket = like.bucket_s.max(1) as f64;
    let mut groups: Vec<Vec<f64>> = vec![vec![0.0; like.values.len()]; names.len()];
    let mut end = 0.0f64;
    for holding in &figure.holdings {
        let values = &mut groups[group(holding.job.0 as usize)];
        let (from, until) = (since(figure.origin, holding.from), since(figure.origin, holding.until));
        end = end.max(until);
        let mut index = (from / bucket) as usize;
        while index < values.len() && (index as f64) * bucket < until {
            let begin = (index as f64) * bucket;
            values[index] += (until.min(begin + bucket) - from.max(begin)) * holding.gpus.as_f64();
            index += 1;
        }
    }
    for values in &mut groups {
        for (index, value) in values.iter_mut().enumerate() {
            // The last stretch may be cut short by the end.
            *value /= bucket.min((end - index as f64 * bucket).max(1.0));
        }
    }
    Stack { bucket_s: like.bucket_s, groups: names.into_iter().zip(groups).collect() }
}

fn waiting(figure: &Figure, like: &Series) -> Series {
    let bucket_s = like.bucket_s.max(1) * (like.values.len().div_ceil(WAITING_BUCKETS)).max(1) as u64;
    let mut sums: Vec<(f64, u64)> = Vec::new();
    for job in figure.jobs.iter().filter(|job| job.outcome != Some(Outcome::Refused)) {
        let index = (since(figure.origin, job.submitted) / bucket_s as f64) as usize;
        if sums.len() <= index {
            sums.resize(index + 1, (0.0, 0));
        }
        sums[index].0 += job.waiting.as_secs_f64();
        sums[index].1 += 1;
    }
    let values = sums.into_iter().map(|(sum, count)| (count > 0).then(|| sum / count as f64)).collect();
    Series { bucket_s, values }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{figure, run};

    #[test]
    fn what_jobs_hold_is_spread_over_time_by_their_size() {
        let plot = RunPlot::of(&run("fifo", 1, 10.0), &figure(&["a", "b"]), true);
        let by_size = plot.detail.unwrap().by_size;
        let (name, values) = &by_size.groups[0];
        assert_eq!((name.as_str(), values.as_slice()), ("1 GPU", &[1.5, 1.0][..]));
    }

    #[test]
    fn users_beyond_the_largest_are_put_together() {
        let names: Vec<String> = (0..9).map(|index| format!("user-{index}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let plot = RunPlot::of(&run("fifo", 1, 10.0), &figure(&names), true);
        let groups = plot.detail.unwrap().by_user.groups;
        assert_eq!(groups.len(), 8);
        assert_eq!(groups[7].0, "2 others");
    }

    #[test]
    fn many_jobs_are_not_drawn_one_by_one() {
        let names = vec!["a"; MOST_ROWS + 1];
        let detail = RunPlot::of(&run("fifo", 1, 10.0), &figure(&names), true).detail.unwrap();
        assert!(detail.bars.is_none());
        let detail = RunPlot::of(&run("fifo", 1, 10.0), &figure(&names[1..]), true).detail.unwrap();
        assert!(detail.bars.is_some());
    }

    #[test]
    fn jobs_are_classed_by_what_they_ask_for() {
        let classes = [0.25, 1.0, 1.5, 8.0, 9.0, 64.0, 65.0].map(|gpus| SIZES[size_class(gpus)].0);
        assert_eq!(
            classes,
            ["under 1 GPU", "1 GPU", "2–4 GPUs", "5–8 GPUs", "9–16 GPUs", "17–64 GPUs", "over 64 GPUs"]
        );
    }
}
