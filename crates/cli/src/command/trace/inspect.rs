//! `moira trace inspect`: what a workload is made of, alone or beside another one; as a table, a page, or JSON.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, ValueEnum};
use cluster::Span;
use page::{Share, TableLine, WorkloadPage};
use serde::Serialize;
use trace::{Distances, Inspection, Observed, OverTime, Percentiles};

use super::{Source, open, site};
use crate::failure::Failure;
use crate::options;
use crate::render;

/// What happens over time is drawn in so many stretches at most,
const STRETCHES: usize = 400;
/// distributions through so many points,
const CURVE_POINTS: u64 = 400;
/// and so many sizes.
const SIZES: usize = 12;

#[derive(Debug, Args)]
pub(crate) struct Inspect {
    #[command(flatten)]
    source: Source,
    /// Another workload to compare with, marginal by marginal
    #[arg(long, value_name = "WORKLOAD")]
    against: Option<String>,
    /// The cluster whose load it would be, as with `sim run` [default: none; generators then draw for `demo`]
    #[arg(long, value_name = "NAME|FILE")]
    cluster: Option<String>,
    #[arg(short, long, value_enum, default_value_t)]
    output: Form,
    /// Write it with charts as one self-contained page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum Form {
    /// For eyes
    #[default]
    Table,
    /// For programs; schema `moira.trace/1`
    Json,
}

/// What `inspect -o json` prints.
#[derive(Debug, Serialize)]
struct Inspected {
    schema: &'static str,
    workload: Inspection,
    against: Option<Inspection>,
    distances: Option<Distances>,
}

impl Inspect {
    pub(super) fn run(self) -> Result<(), Failure> {
        let site = site(self.cluster.as_deref().unwrap_or("demo"))?;
        let target = self.cluster.as_ref().map(|_| &site.cluster);
        let look = |text: &str| -> Result<(Observed, Inspection), Failure> {
            let stream = open(text, &site, self.source.seed)?;
            let observed = stream.observe(&site.cluster).map_err(options::of_source)?;
            let inspection = observed.inspection(stream.name(), stream.assumptions(), target);
            Ok((observed, inspection))
        };
        let (observed, workload) = look(&self.source.workload)?;
        let other = self.against.as_deref().map(look).transpose()?;
        let (other, against) = other.unzip();
        let distances = other.as_ref().map(|other| Distances::between(&observed, other));
        let inspected = Inspected { schema: "moira.trace/1", workload, against, distances };
        if let Some(path) = &self.html {
            let observed: Vec<&Observed> = std::iter::once(&observed).chain(&other).collect();
            self.write_page(path, &inspected, &observed)?;
        }
        match self.output {
            Form::Json => render::line(&serde_json::to_string(&inspected).expect("figures can be written as JSON")),
            Form::Table => show(&inspected),
        }
    }

    fn write_page(&self, path: &Path, inspected: &Inspected, observed: &[&Observed]) -> Result<(), Failure> {
        let sides = inspected.sides();
        let plots: Vec<page::Side> = sides.iter().zip(observed).map(|(side, observed)| plots(side, observed)).collect();
        let page = WorkloadPage {
            command: &self.command(),
            version: env!("CARGO_PKG_VERSION"),
            verdict: &verdict(inspected),
            table: &lines(&sides, inspected.distances.as_ref()),
            remarks: &remarks(inspected),
            sides: &plots,
            cluster_gpus: inspected.workload.offered.cluster_gpus,
            distances: &inspected.distances.as_ref().map(told_by_chart).unwrap_or_default(),
        };
        let written = fs::write(path, page.html());
        Ok(written.with_context(|| format!("cannot write the page {}", path.display()))?)
    }

    /// What leads to the same page again.
    fn command(&self) -> String {
        let seed = self.source.seed.to_string();
        let mut words = vec!["moira", "trace", "inspect", &self.source.workload];
        words.extend(self.against.iter().flat_map(|against| ["--against", against]));
        words.extend(self.cluster.iter().flat_map(|cluster| ["--cluster", cluster]));
        words.extend(["--seed", &seed, "--html", "report.html"]);
        render::command_line(words)
    }
}

impl Inspected {
    fn sides(&self) -> Vec<&Inspection> {
        std::iter::once(&self.workload).chain(&self.against).collect()
    }
}

/// What is drawn of one workload: the same number of points whether it has ten jobs or ten million.
fn plots(inspection: &Inspection, observed: &Observed) -> page::Side {
    let line = |over_time: OverTime| page::Line { step_s: over_time.step_s, values: over_time.values };
    let size = |size: trace::SizeFigures| Share { of: size.gpus, jobs: size.jobs, gpu_time: size.gpu_time };
    let user = |user: &trace::UserFigure| Share { of: user.user.clone(), jobs: user.jobs, gpu_time: user.gpu_time };
    page::Side {
        name: inspection.name.clone(),
        span_s: inspection.span_s,
        arrivals: line(observed.arrivals(STRETCHES)),
        day: observed.profile().to_vec(),
        week: observed.weekly_profile(),
        gaps: observed.gaps_s.curve(CURVE_POINTS),
        durations: observed.durations_s.curve(CURVE_POINTS),
        load: line(observed.load(STRETCHES)),
        sizes: observed.sizes(SIZES).into_iter().map(size).collect(),
        size_count: observed.size_count(),
        users: inspection.users.most.iter().map(user).collect(),
        user_count: inspection.users.count,
    }
}

/// The workload in a sentence, or how far two are apart.
fn verdict(inspected: &Inspected) -> String {
    if let Some(apart) = &inspected.distances {
        let gaps = apart.gaps.map(|gaps| format!(", times between submissions {gaps:.3}")).unwrap_or_default();
        let day = apart.daily_profile_correlation.map(|r| format!("; daily profiles correlate at {r:.3}"));
        let (durations, gpus) = (apart.durations, apart.gpus);
        return format!(
            "Kolmogorov–Smirnov distances: run times {durations:.3}, sizes {gpus:.3}{gaps}{}.",
            day.unwrap_or_default()
        );
    }
    let side = &inspected.workload;
    let span = |seconds: f64| Span::from_secs_f64(seconds.round());
    let load = match (side.offered.mean_gpus, side.offered.load) {
        (Some(gpus), Some(load)) => {
            format!(
                " Without waiting they would hold {gpus:.0} GPUs on average, {:.0} % of the cluster's.",
                load * 100.0
            )
        }
        (Some(gpus), None) => format!(" Without waiting they would hold {gpus:.0} GPUs on average."),
        _ => String::new(),
    };
    let (jobs, users) = (side.jobs, side.users.count);
    let half = span(side.durations_s.p50);
    format!("{jobs} jobs of {users} users over {}; half of them run for less than {half}.{load}", span(side.span_s))
}

/// What one must know to read the figures rightly.
fn remarks(inspected: &Inspected) -> Vec<String> {
    let mut remarks = Vec::new();
    let sides = inspected.sides();
    for side in &sides {
        let whose = if sides.len() > 1 { format!(" ({})", side.name) } else { String::new() };
        remarks.extend(side.approximate.iter().map(|told| format!("approximate{whose}: {told}")));
        remarks.extend(side.assumptions.iter().map(|assumption| format!("assumed{whose}: {assumption}")));
    }
    if inspected.distances.is_some() {
        remarks.push(
            "KS: largest difference between two distribution functions, 0 is alike; r: correlation, 1 is alike".into(),
        );
    }
    remarks
}

/// Distances by the chart they are told below.
fn told_by_chart(distances: &Distances) -> Vec<(&'static str, String)> {
    let ks = |value: f64| format!("Kolmogorov–Smirnov distance {value:.4}.");
    let mut told = vec![("durations", ks(distances.durations)), ("gpus", ks(distances.gpus))];
    told.extend(distances.gaps.map(|gaps| {
        let median =
            distances.gaps_over_median.map(|value| format!(" Over the median {value:.4}.")).unwrap_or_default();
        ("gaps", ks(gaps) + &median)
    }));
    let profile = correlation(distances);
    told.extend((!profile.is_empty()).then(|| ("day", format!("Correlation: {profile}."))));
    told
}

fn show(inspected: &Inspected) -> Result<(), Failure> {
    let sides = inspected.sides();
    let mut lines = lines(&sides, inspected.distances.as_ref());
    lines.extend(listed("size", &sides, |side| {
        let row = |size: &trace::SizeFigures| (format!("{} GPUs", size.gpus), (size.jobs, size.gpu_time));
        side.sizes.iter().map(row).collect()
    }));
    lines.extend(listed("user", &sides, |side| {
        let row = |user: &trace::UserFigure| (user.user.clone(), (user.jobs, user.gpu_time));
        side.users.most.iter().map(row).collect()
    }));
    let titles = sides.iter().map(|side| side.name.as_str());
    let header: Vec<&str> = match sides.len() {
        1 => std::iter::once("").chain(titles).collect(),
        _ => std::iter::once("").chain(titles).chain(["DISTANCE"]).collect(),
    };
    render::table(
        &header,
        lines.into_iter().map(|line| {
            let distance = (sides.len() > 1).then_some(line.distance);
            std::iter::once(line.what).chain(line.cells).chain(distance).collect()
        }),
    )?;
    remarks(inspected).iter().try_for_each(|remark| render::line(remark))
}

fn lines(sides: &[&Inspection], distances: Option<&Distances>) -> Vec<TableLine> {
    let ks = |of: fn(&Distances) -> Option<f64>| {
        distances.and_then(of).map_or_else(String::new, |distance| format!("KS {distance:.4}"))
    };
    let line = |what: &str, cell: &dyn Fn(&Inspection) -> String, distance: String| TableLine {
        what: what.into(),
        cells: sides.iter().map(|side| cell(side)).collect(),
        distance,
    };
    let plain = |what: &str, cell: &dyn Fn(&Inspection) -> String| line(what, cell, String::new());
    let or_dash = |value: Option<f64>, places: usize| value.map_or("-".into(), |value| format!("{value:.places$}"));
    let r = distances.map_or_else(String::new, correlation);
    vec![
        plain("jobs", &|side| side.jobs.to_string()),
        plain("first to last submission", &|side| Span::from_secs(side.span_s as u64).to_string()),
        plain("GPU hours", &|side| format!("{:.0}", side.gpu_hours)),
        plain("jobs per day", &|side| format!("{:.1}", side.arrivals.jobs_per_day)),
        plain("jobs per day p5/p50/p95", &|side| by_day(side)),
        line("seconds between mean", &|side| or_dash(side.arrivals.gap_mean_s, 1), ks(|of| of.gaps)),
        line(
            "seconds between p50",
            &|side| or_dash(side.arrivals.gap_p50_s, 1),
            ks(|of| of.gaps_over_median) + " (over median)",
        ),
        plain("seconds between CV", &|side| or_dash(side.arrivals.gap_cv, 2)),
        plain("in the same second", &|side| percent(side.arrivals.same_second)),
        line("hours 0-5, to the mean", &|side| hours(side, 0), r),
        plain("hours 6-11", &|side| hours(side, 6)),
        plain("hours 12-17", &|side| hours(side, 12)),
        plain("hours 18-23", &|side| hours(side, 18)),
        line("GPUs mean, max", &|side| format!("{:.2}, {}", side.gpus.mean, side.gpus.max), ks(|of| Some(of.gpus))),
        line("run time mean", &|side| format!("{:.0} s", side.durations_s.mean), ks(|of| Some(of.durations))),
        plain("run time p10/p25/p50", &|side| spread(&side.durations_s, |p| [p.p10, p.p25, p.p50])),
        plain("run time p75/p90/p99", &|side| spread(&side.durations_s, |p| [p.p75, p.p90, p.p99])),
        plain("longest run time", &|side| format!("{:.0} s", side.durations_s.max)),
        plain("offered GPUs mean", &|side| or_dash(side.offered.mean_gpus, 1)),
        plain("offered GPUs p5/p50/p95", &|side| {
            format!("{:.0} / {:.0} / {:.0}", side.offered.p5_gpus, side.offered.p50_gpus, side.offered.p95_gpus)
        }),
        plain("offered load", &|side| match (side.offered.load, side.offered.cluster_gpus) {
            (Some(load), Some(gpus)) => format!("{load:.3} of {gpus} GPUs"),
            _ => "- (see --cluster)".into(),
        }),
        plain("elastic, adaptive", &|side| both(side.shares.elastic, side.shares.adaptive)),
        plain("with deadline, estimate", &|side| both(side.shares.with_deadline, side.shares.with_estimate)),
        plain("failed, cancelled by name", &|side| both(side.shares.failed, side.shares.cancelled)),
        plain("users", &|side| side.users.count.to_string()),
    ]
}

fn correlation(distances: &Distances) -> String {
    let plain = distances.daily_profile_correlation.map(|r| format!("r {r:.3}"));
    let best = distances.daily_profile_best.filter(|best| best.minutes > 0);
    let later = |best: trace::Aligned| Span::from_minutes(best.minutes as u64);
    let best = best.map(|best| format!("{:.3} with the other clock {} on", best.correlation, later(best)));
    plain.into_iter().chain(best).collect::<Vec<_>>().join(", ")
}

/// Sizes or users of either side, with their shares of jobs and GPU time.
fn listed(
    what: &str,
    sides: &[&Inspection],
    rows: impl Fn(&Inspection) -> Vec<(String, (f64, f64))>,
) -> Vec<TableLine> {
    let of_sides: Vec<Vec<(String, (f64, f64))>> = sides.iter().map(|side| rows(side)).collect();
    let mut names: Vec<&String> = Vec::new();
    for (name, _) in of_sides.iter().flatten() {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let cell = |name: &String, rows: &Vec<(String, (f64, f64))>| {
        let found = rows.iter().find(|(other, _)| other == name);
        found.map_or("-".into(), |(_, (jobs, time))| {
            format!("{} of jobs, {} of GPU time", percent(*jobs), percent(*time))
        })
    };
    let line = |name: &&String| TableLine {
        what: format!("{what} {name}"),
        cells: of_sides.iter().map(|rows| cell(name, rows)).collect(),
        distance: String::new(),
    };
    names.iter().map(line).collect()
}

fn by_day(side: &Inspection) -> String {
    let days = side.arrivals.by_day.iter().map(|&jobs| f64::from(jobs)).collect::<Vec<_>>();
    let at = |share: f64| {
        let mut days = days.clone();
        days.sort_unstable_by(f64::total_cmp);
        days.get(((share * days.len() as f64) as usize).min(days.len().saturating_sub(1))).copied().unwrap_or(0.0)
    };
    format!("{} / {} / {}", at(0.05), at(0.5), at(0.95))
}

fn hours(side: &Inspection, first: usize) -> String {
    let hours = &side.arrivals.hour_of_day[first..first + 6];
    hours.iter().map(|rate| format!("{rate:.2}")).collect::<Vec<_>>().join(" ")
}

fn spread(percentiles: &Percentiles, of: impl Fn(&Percentiles) -> [f64; 3]) -> String {
    let [low, middle, high] = of(percentiles);
    format!("{low:.0} / {middle:.0} / {high:.0} s")
}

fn both(one: f64, other: f64) -> String {
    format!("{}, {}", percent(one), percent(other))
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}
