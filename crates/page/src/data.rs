//! The numbers behind the charts, as the page's script reads them. Rounded to what an eye can tell and thinned where
//! there are too many, so that the page stays small; what was thinned is said.

use std::collections::{BTreeMap, BTreeSet};

use cluster::Name;
use report::Series;
use serde::{Serialize, Serializer};

use crate::plot::{Detail, RunPlot, SIZES, Stack, Tenant};

/// A distribution of more jobs is drawn through so many of them.
const CURVE_POINTS: usize = 400;
/// Completion times of more jobs times policies than this are embedded of every second, third, … job.
const MOST_TIMES: usize = 1_500_000;
/// Tenants beyond these are in the tables of `--csv` only.
const MOST_TENANTS: usize = 24;

/// Everything; the first run of each policy gives the detail.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Data<'a> {
    policies: Vec<&'a str>,
    oracles: Vec<bool>,
    /// The one seed of which details are shown.
    seed: u64,
    seeds: usize,
    sizes: Vec<&'a str>,
    curves: Vec<Curve>,
    views: Vec<View<'a>>,
    kinds: Vec<KindName<'a>>,
    tenants: Tenants<'a>,
    jobs: Jobs<'a>,
}

/// Seconds and the share of jobs that took no longer.
#[derive(Debug, PartialEq, Serialize)]
struct Curve {
    count: usize,
    seconds: Vec<Rounded>,
    share: Vec<Rounded>,
}

/// One policy over time.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct View<'a> {
    /// Job, from, until, GPUs.
    bars: Option<Vec<[Rounded; 4]>>,
    by_size: Areas<'a>,
    by_user: Areas<'a>,
    queue: Line,
    waiting: Line,
    utilisation: Vec<Line>,
    fragmentation: Vec<Line>,
}

#[derive(Debug, Serialize)]
struct Areas<'a> {
    step: u64,
    groups: Vec<Area<'a>>,
}

#[derive(Debug, Serialize)]
struct Area<'a> {
    name: &'a str,
    values: Vec<Rounded>,
}

#[derive(Debug, Serialize)]
struct Line {
    step: u64,
    values: Vec<Option<Rounded>>,
}

#[derive(Debug, Serialize)]
struct KindName<'a> {
    name: &'a str,
    gpus: u32,
}

/// Over all seeds; those first who held the most.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Tenants<'a> {
    names: Vec<&'a str>,
    gpu_hours: Vec<Rounded>,
    left_out: usize,
    /// Policy by policy: how each was served compared with his fair share.
    service: Vec<Vec<Option<Rounded>>>,
    /// Mean waiting in seconds.
    waiting: Vec<Vec<Option<Rounded>>>,
}

/// Of the one seed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Jobs<'a> {
    total: usize,
    /// Every how-manieth job is here.
    stride: usize,
    names: Vec<&'a str>,
    users: Vec<&'a str>,
    user: Vec<u32>,
    gpus: Vec<Rounded>,
    submitted: Vec<Rounded>,
    /// Policy by policy.
    completion: Vec<Vec<Option<Rounded>>>,
}

/// A number of at most five digits that count; whole where that is enough.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rounded(f64);

impl Rounded {
    pub(crate) fn of(value: f64) -> Rounded {
        if value == 0.0 || !value.is_finite() {
            return Rounded(0.0);
        }
        let digits = 4 - value.abs().log10().floor() as i32;
        if digits <= 0 {
            return Rounded(value.round());
        }
        let scale = 10f64.powi(digits.min(9));
        Rounded((value * scale).round() / scale)
    }
}

impl Serialize for Rounded {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.fract() == 0.0 && self.0.abs() < 1e15 {
            serializer.serialize_i64(self.0 as i64)
        } else {
            serializer.serialize_f64(self.0)
        }
    }
}

impl<'a> Data<'a> {
    pub(crate) fn of(plots: &'a [RunPlot]) -> Data<'a> {
        let groups = by_policy(plots);
        let details: Vec<&Detail> = groups.iter().filter_map(|group| group[0].detail.as_ref()).collect();
        assert_eq!(details.len(), groups.len(), "the first run of each policy has the details");
        let kinds = details.first().map_or(&[][..], |detail| &detail.kinds);
        Data {
            policies: groups.iter().map(|group| group[0].policy.as_str()).collect(),
            oracles: groups.iter().map(|group| group[0].oracle).collect(),
            seed: plots.first().map_or(0, |plot| plot.seed),
            seeds: groups.first().map_or(0, Vec::len),
            sizes: SIZES.iter().map(|(name, _)| *name).collect(),
            curves: groups.iter().map(|group| Curve::of(group)).collect(),
            views: details.iter().map(|detail| View::of(detail)).collect(),
            kinds: kinds.iter().map(|kind| KindName { name: &kind.name, gpus: kind.gpus }).collect(),
            tenants: Tenants::of(&groups),
            jobs: Jobs::of(&details),
        }
    }
}

/// Runs of one policy together, in the order in which policies first appear.
fn by_policy(plots: &[RunPlot]) -> Vec<Vec<&RunPlot>> {
    let mut groups: Vec<Vec<&RunPlot>> = Vec::new();
    for plot in plots {
        match groups.iter_mut().find(|group| group[0].policy == plot.policy) {
            Some(group) => group.push(plot),
            None => groups.push(vec![plot]),
        }
    }
    groups
}

impl Curve {
    fn of(group: &[&RunPlot]) -> Curve {
        let mut times: Vec<f64> = group.iter().flat_map(|plot| plot.completion_times.iter().copied()).collect();
        times.sort_unstable_by(f64::total_cmp);
        let count = times.len();
        let points = count.min(CURVE_POINTS);
        // Evenly from the first to the last.
        let position = |point: usize| if points < 2 { 0 } else { point * (count - 1) / (points - 1) };
        let picked: Vec<usize> = (0..points).map(position).collect();
        Curve {
            count,
            seconds: picked.iter().map(|&index| Rounded::of(times[index])).collect(),
            share: picked.iter().map(|&index| Rounded::of((index + 1) as f64 / count as f64)).collect(),
        }
    }
}

impl<'a> View<'a> {
    fn of(detail: &'a Detail) -> View<'a> {
        let bar = |bar: &crate::plot::Bar| [f64::from(bar.job), bar.from_s, bar.until_s, bar.gpus].map(Rounded::of);
        View {
            bars: detail.bars.as_ref().map(|bars| bars.iter().map(bar).collect()),
            by_size: Areas::of(&detail.by_size),
            by_user: Areas::of(&detail.by_user),
            queue: Line::of(&detail.queue_length),
            waiting: Line::of(&detail.waiting),
            utilisation: detail.kinds.iter().map(|kind| Line::of(&kind.utilisation)).collect(),
            fragmentation: detail.kinds.iter().map(|kind| Line::of(&kind.fragmentation)).collect(),
        }
    }
}

impl<'a> Areas<'a> {
    fn of(stack: &'a Stack) -> Areas<'a> {
        let area = |(name, values): &'a (String, Vec<f64>)| Area {
            name,
            values: values.iter().map(|&value| Rounded::of(value)).collect(),
        };
        Areas { step: stack.bucket_s, groups: stack.groups.iter().map(area).collect() }
    }
}

impl Line {
    fn of(series: &Series) -> Line {
        Line { step: series.bucket_s, values: series.values.iter().map(|value| value.map(Rounded::of)).collect() }
    }
}

impl<'a> Tenants<'a> {
    fn of(groups: &[Vec<&'a RunPlot>]) -> Tenants<'a> {
        let sums: Vec<BTreeMap<&'a Name, Tenant>> = groups.iter().map(|group| together(group)).collect();
        let mut held: BTreeMap<&'a Name, f64> = BTreeMap::new();
        for (name, tenant) in sums.iter().flatten() {
            *held.entry(name).or_default() += tenant.gpu_hours / groups.len() as f64;
        }
        let mut ranked: Vec<(&'a Name, f64)> = held.into_iter().collect();
        ranked.sort_by(|(a, a_held), (b, b_held)| b_held.total_cmp(a_held).then(a.cmp(b)));
        let left_out = ranked.len().saturating_sub(MOST_TENANTS);
        ranked.truncate(MOST_TENANTS);
        let each = |of: fn(&Tenant) -> Option<f64>| {
            let row = |sums: &BTreeMap<&'a Name, Tenant>| {
                ranked.iter().map(|(name, _)| sums.get(name).and_then(of).map(Rounded::of)).collect()
            };
            sums.iter().map(row).collect()
        };
        Tenants {
            names: ranked.iter().map(|(name, _)| &***name).collect(),
            gpu_hours: ranked.iter().map(|(_, hours)| Rounded::of(*hours)).collect(),
            left_out,
            service: each(Tenant::service),
            waiting: each(|tenant| (tenant.jobs > 0).then(|| tenant.waiting_s / tenant.jobs as f64)),
        }
    }
}

fn together<'a>(group: &[&'a RunPlot]) -> BTreeMap<&'a Name, Tenant> {
    let mut sums: BTreeMap<&'a Name, Tenant> = BTreeMap::new();
    for (name, tenant) in group.iter().flat_map(|plot| &plot.tenants) {
        sums.entry(name).or_default().add(tenant);
    }
    sums
}

impl<'a> Jobs<'a> {
    /// All policies saw the same jobs, in the same order.
    fn of(details: &[&'a Detail]) -> Jobs<'a> {
        let all = details.first().map_or(&[][..], |detail| &detail.jobs);
        let stride = (all.len() * details.len()).div_ceil(MOST_TIMES).max(1);
        let jobs: Vec<_> = all.iter().step_by(stride).collect();
        let users: Vec<&Name> = jobs.iter().map(|job| &job.user).collect::<BTreeSet<_>>().into_iter().collect();
        let number = |user: &Name| users.binary_search(&user).expect("every user is listed") as u32;
        let completion = |detail: &&'a Detail| {
            detail.jobs.iter().step_by(stride).map(|job| job.completion_s.map(Rounded::of)).collect()
        };
        Jobs {
            total: all.len(),
            stride,
            names: jobs.iter().map(|job| &*job.name).collect(),
            user: jobs.iter().map(|job| number(&job.user)).collect(),
            gpus: jobs.iter().map(|job| Rounded::of(job.gpus)).collect(),
            submitted: jobs.iter().map(|job| Rounded::of(job.submitted_s)).collect(),
            completion: details.iter().map(completion).collect(),
            users: users.iter().map(|user| &***user).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{figure, run};

    #[test]
    fn numbers_keep_five_digits_and_no_idle_ones() {
        let written = [0.0, 1.0, 0.123456, 12345.678, 1234567.8, 59.99999].map(|value| {
            let rounded = Rounded::of(value);
            serde_json::to_string(&rounded).unwrap()
        });
        assert_eq!(written, ["0", "1", "0.12346", "12346", "1234568", "60"]);
    }

    #[test]
    fn a_curve_of_many_jobs_goes_through_the_first_and_the_last() {
        let mut plot = RunPlot::of(&run("fifo", 1, 10.0), &figure(&["a"]), true);
        plot.completion_times = (1..=10_000).map(f64::from).collect();
        let curve = Curve::of(&[&plot]);
        assert_eq!((curve.count, curve.seconds.len()), (10_000, CURVE_POINTS));
        assert_eq!((curve.seconds[0], curve.seconds[CURVE_POINTS - 1]), (Rounded(1.0), Rounded(10_000.0)));
        assert_eq!(curve.share[CURVE_POINTS - 1], Rounded(1.0));
    }

    #[test]
    fn seeds_are_put_together_and_details_are_of_the_first() {
        let one =
            |policy: &str, seed, detailed| RunPlot::of(&run(policy, seed, 10.0), &figure(&["ann", "bob"]), detailed);
        let plots = [one("fifo", 3, true), one("fifo", 4, false), one("las", 3, true), one("las", 4, false)];
        let data = Data::of(&plots);
        assert_eq!((data.seed, data.seeds), (3, 2));
        assert_eq!(data.policies, ["fifo", "las"]);
        assert_eq!(data.curves[0].count, 4);
        assert_eq!(data.tenants.names, ["bob", "ann"]);
        assert_eq!(data.jobs.completion.len(), 2);
    }

    #[test]
    fn of_no_runs_there_is_no_data() {
        let data = Data::of(&[]);
        assert!(data.policies.is_empty() && data.jobs.names.is_empty());
    }
}
