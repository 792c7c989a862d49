//! `moira trace`: draw, look at, convert and sample workloads.

use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use cluster::Span;
use serde::Serialize;
use trace::{Distances, Inspection, Like, Observed, Part, Percentiles, Rate, Sampling, Workload};

use crate::failure::Failure;
use crate::options::{self, Site};
use crate::render;

#[derive(Debug, Subcommand)]
pub(crate) enum Trace {
    /// Draw a workload like that of a public cluster; docs/generator.md says how like
    Generate(Generate),
    /// What a workload is made of; with --against, how far it is from another one
    Inspect(Inspect),
    /// Write a workload of any readable format as a table in Moira's layout, and say what the layout cannot
    Convert(Convert),
    /// Write a part of a workload, chosen as papers choose theirs
    Sample(Sample),
}

#[derive(Debug, Args)]
pub(crate) struct Generate {
    /// The public cluster: philly, helios-venus, pai or acme
    #[arg(long, value_name = "NAME")]
    like: String,
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    jobs: u32,
    /// GPUs the workload is for [default: those of the public cluster]; sizes beyond are left out
    #[arg(long, value_name = "G", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    gpus: Option<u32>,
    /// GPU time of the jobs over that of the GPUs between the first submission and the last
    #[arg(long, default_value_t = 0.8, allow_negative_numbers = true, value_name = "SHARE")]
    load: f64,
    /// Decides everything that is drawn at random
    #[arg(long, default_value_t = 1, value_name = "S")]
    seed: u64,
    /// Where to write the table, compressed if the name ends in .gz [default: standard output]
    #[arg(long, value_name = "FILE.csv[.gz]")]
    output: Option<PathBuf>,
}

/// A workload to read.
#[derive(Debug, Args)]
pub(crate) struct Source {
    /// A generator or a file as FORMAT:PATH, as with `sim run --workload`
    #[arg(value_name = "WORKLOAD")]
    workload: String,
    /// Decides what a generator draws, and which jobs a sample takes
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
}

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
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum Form {
    /// For eyes
    #[default]
    Table,
    /// For programs; schema `moira.trace/1`
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct Convert {
    #[command(flatten)]
    source: Source,
    /// The cluster whose kinds of GPU and queues the workload names
    #[arg(long, default_value = "demo", value_name = "NAME|FILE")]
    cluster: String,
    /// Where to write the table, compressed if the name ends in .gz
    #[arg(long, value_name = "FILE.csv[.gz]")]
    output: PathBuf,
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("part").args(["window", "busiest", "fold_day"]))]
pub(crate) struct Sample {
    #[command(flatten)]
    source: Source,
    /// The cluster whose kinds of GPU and queues the workload names
    #[arg(long, default_value = "demo", value_name = "NAME|FILE")]
    cluster: String,
    /// Where to write the table, compressed if the name ends in .gz
    #[arg(long, value_name = "FILE.csv[.gz]")]
    output: PathBuf,
    /// Only jobs submitted in this window, in seconds or like 2d..2d8h (Sia takes 8 hours; Helios, Lucid the last month)
    #[arg(long, value_name = "START..END")]
    window: Option<String>,
    /// Only the window of this length with most submissions (Sia: 8h)
    #[arg(long, value_name = "LENGTH")]
    busiest: Option<String>,
    /// Lay all days upon one another and take a window of that one day (Pollux: 2h..10h)
    #[arg(long, value_name = "START..END", num_args = 0..=1, default_missing_value = "2h..10h")]
    fold_day: Option<String>,
    /// Keep every job with this probability
    #[arg(long, allow_negative_numbers = true, value_name = "SHARE")]
    thin: Option<f64>,
    /// So many jobs at random (Pollux, Sia: 160; Tiresias: 480)
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// So many jobs per hour (Sia: 20)
    #[arg(long, allow_negative_numbers = true, value_name = "F")]
    rate: Option<f64>,
    /// How to come to that rate
    #[arg(long, value_enum, default_value_t, requires = "rate")]
    rate_by: RateBy,
    /// Only jobs that run at least so long, in seconds or like 1m (Pollux, Sia: 60)
    #[arg(long, value_name = "TIME")]
    min_duration: Option<String>,
    /// Only jobs of less GPU time (Pollux, Sia: 1000)
    #[arg(long, allow_negative_numbers = true, value_name = "HOURS")]
    max_gpu_hours: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum RateBy {
    /// Leave out jobs at random: the rhythm stays
    #[default]
    Thin,
    /// Stretch or compress the time between submissions: all jobs stay (Gavel, Shockwave)
    Compress,
}

impl Trace {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self {
            Trace::Generate(generate) => generate.run(),
            Trace::Inspect(inspect) => inspect.run(),
            Trace::Convert(convert) => convert.run(),
            Trace::Sample(sample) => sample.run(),
        }
    }
}

impl Generate {
    fn run(self) -> Result<(), Failure> {
        let mut like = Like::named(&self.like).map_err(|error| Failure::usage(format!("--like: {error}")))?;
        (like.jobs, like.load) = (self.jobs as usize, self.load);
        let site = site(&nodes_of(self.gpus.unwrap_or(like.original_gpus())))?;
        let workload = like.generate(&site.cluster, &site.queues, self.seed).map_err(options::of_source)?;
        match &self.output {
            Some(path) => save(&workload, path, &site),
            None => print(&workload, &site),
        }
    }
}

/// So many GPUs on nodes of eight, in the short form of a cluster.
fn nodes_of(gpus: u32) -> String {
    let full = (gpus >= 8).then(|| format!("{}x8 v100", gpus / 8));
    let rest = (!gpus.is_multiple_of(8)).then(|| format!("1x{} v100", gpus % 8));
    full.into_iter().chain(rest).collect::<Vec<_>>().join(", ")
}

fn site(cluster: &str) -> Result<Site, Failure> {
    let (cluster, queues, name) = trace::load_cluster(cluster).map_err(options::of_source)?;
    Ok(Site { name, cluster, queues })
}

fn load(workload: &str, site: &Site, seed: u64) -> Result<Workload, Failure> {
    trace::load_workload(workload, &site.cluster, &site.queues, seed).map_err(options::of_source)
}

fn print(workload: &Workload, site: &Site) -> Result<(), Failure> {
    let mut out = BufWriter::new(io::stdout().lock());
    let printed = trace::print_csv(workload, &mut out, &site.cluster, &site.queues);
    match printed.and_then(|()| io::Write::flush(&mut out)) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::new(error)),
        _ => Ok(()),
    }
}

/// Writes the table and says what is in it.
fn save(workload: &Workload, path: &Path, site: &Site) -> Result<(), Failure> {
    trace::write_csv(workload, path, &site.cluster, &site.queues).map_err(options::of_source)?;
    render::line(&format!("{} jobs written to {}", workload.jobs.len(), path.display()))?;
    workload.assumptions.iter().try_for_each(|assumption| render::line(&format!("assumed: {assumption}")))
}

impl Convert {
    fn run(self) -> Result<(), Failure> {
        let site = site(&self.cluster)?;
        let workload = load(&self.source.workload, &site, self.source.seed)?;
        save(&workload, &self.output, &site)?;
        let read_again = trace::read_csv(&self.output, &site.cluster, &site.queues).map_err(options::of_source)?;
        let lost = trace::losses(&workload, &read_again);
        if lost.is_empty() {
            return render::line("lossless: read again, every job is the same");
        }
        lost.iter().try_for_each(|loss| render::line(&format!("lost: {loss}")))
    }
}

impl Sample {
    fn run(self) -> Result<(), Failure> {
        let sampling = self.sampling()?;
        let site = site(&self.cluster)?;
        let workload = load(&self.source.workload, &site, self.source.seed)?;
        let sampled = trace::sample(&workload, &sampling, &site.cluster).map_err(options::of_source)?;
        save(&sampled, &self.output, &site)
    }

    fn sampling(&self) -> Result<Sampling, Failure> {
        let fault = |option: &str, what: String| Failure::usage(format!("{option}: {what}"));
        let window = |option, text: &str| trace::parse_window(text).map_err(|what| fault(option, what));
        let span = |option, text: &str| trace::parse_span(text).map_err(|what| fault(option, what));
        let part = match (&self.window, &self.busiest, &self.fold_day) {
            (Some(text), ..) => window("--window", text).map(|(start, end)| Part::Window(start, end))?,
            (_, Some(text), _) => Part::Busiest(span("--busiest", text)?),
            (.., Some(text)) => window("--fold-day", text).map(|(start, end)| Part::FoldedDay(start, end))?,
            _ => Part::All,
        };
        Ok(Sampling {
            min_duration: self.min_duration.as_deref().map(|text| span("--min-duration", text)).transpose()?,
            max_gpu_hours: self.max_gpu_hours,
            part,
            thin: self.thin,
            jobs: self.jobs,
            rate: self.rate.map(|rate| match self.rate_by {
                RateBy::Thin => Rate::Thinned(rate),
                RateBy::Compress => Rate::Compressed(rate),
            }),
            seed: self.source.seed,
        })
    }
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
    fn run(self) -> Result<(), Failure> {
        let site = site(self.cluster.as_deref().unwrap_or("demo"))?;
        let target = self.cluster.as_ref().map(|_| &site.cluster);
        let one = load(&self.source.workload, &site, self.source.seed)?;
        let other = self.against.as_deref().map(|text| load(text, &site, self.source.seed)).transpose()?;
        let observed = |workload: &Workload| Observed::of(workload, &site.cluster);
        let inspected = Inspected {
            schema: "moira.trace/1",
            distances: other.as_ref().map(|other| Distances::between(&observed(&one), &observed(other))),
            workload: trace::inspect(&one, &site.cluster, target),
            against: other.as_ref().map(|other| trace::inspect(other, &site.cluster, target)),
        };
        match self.output {
            Form::Json => render::line(&serde_json::to_string(&inspected).expect("figures can be written as JSON")),
            Form::Table => show(&inspected),
        }
    }
}

/// One line of the table: what, how it reads off an inspection, and how far two are apart in it.
struct Line {
    what: String,
    cells: Vec<String>,
    distance: String,
}

fn show(inspected: &Inspected) -> Result<(), Failure> {
    let sides: Vec<&Inspection> = std::iter::once(&inspected.workload).chain(&inspected.against).collect();
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
    for side in &sides {
        let whose = if sides.len() > 1 { format!(" ({})", side.name) } else { String::new() };
        side.assumptions.iter().try_for_each(|assumption| render::line(&format!("assumed{whose}: {assumption}")))?;
    }
    if inspected.distances.is_some() {
        render::line(
            "KS: largest difference between two distribution functions, 0 is alike; r: correlation, 1 is alike",
        )?;
    }
    Ok(())
}

fn lines(sides: &[&Inspection], distances: Option<&Distances>) -> Vec<Line> {
    let ks = |of: fn(&Distances) -> Option<f64>| {
        distances.and_then(of).map_or_else(String::new, |distance| format!("KS {distance:.4}"))
    };
    let line = |what: &str, cell: &dyn Fn(&Inspection) -> String, distance: String| Line {
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
fn listed(what: &str, sides: &[&Inspection], rows: impl Fn(&Inspection) -> Vec<(String, (f64, f64))>) -> Vec<Line> {
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
    let line = |name: &&String| Line {
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
