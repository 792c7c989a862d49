//! `moira trace`: draw, look at, convert and sample workloads.

mod inspect;

use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use trace::{Like, Part, Rate, Sampling, Stream};

use crate::failure::Failure;
use crate::options::{self, Site};
use crate::render;

#[derive(Debug, Subcommand)]
pub(crate) enum Trace {
    /// Draw a workload like that of a public cluster; docs/generator.md says how like
    Generate(Generate),
    /// What a workload is made of; with --against, how far it is from another one
    Inspect(inspect::Inspect),
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
        let stream = Stream::of(workload);
        match &self.output {
            Some(path) => save(&stream, path, &site),
            None => print(&stream, &site),
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

fn open<'a>(workload: &str, site: &'a Site, seed: u64) -> Result<Stream<'a>, Failure> {
    Stream::open(workload, &site.cluster, &site.queues, seed).map_err(options::of_source)
}

fn print(stream: &Stream<'_>, site: &Site) -> Result<(), Failure> {
    let mut out = BufWriter::new(io::stdout().lock());
    let printed = trace::print_csv(stream, &mut out, &site.cluster, &site.queues);
    let flushed = printed.and_then(|()| {
        io::Write::flush(&mut out).map_err(|source| trace::Error::Write { file: "the table".into(), source })
    });
    match flushed {
        // Whoever reads our output may stop reading.
        Err(trace::Error::Write { source, .. }) if source.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        flushed => flushed.map_err(options::of_source),
    }
}

/// Writes the table and says what is in it.
fn save(stream: &Stream<'_>, path: &Path, site: &Site) -> Result<(), Failure> {
    trace::write_csv(stream, path, &site.cluster, &site.queues).map_err(options::of_source)?;
    render::line(&format!("{} jobs written to {}", stream.len(), path.display()))?;
    stream.assumptions().iter().try_for_each(|assumption| render::line(&format!("assumed: {assumption}")))
}

impl Convert {
    fn run(self) -> Result<(), Failure> {
        let site = site(&self.cluster)?;
        let mut stream = open(&self.source.workload, &site, self.source.seed)?;
        if stream.reads_from(&self.output) {
            // What was read is compared with what was written; so it has to be known when it is overwritten.
            stream = Stream::of(stream.collect().map_err(options::of_source)?);
        }
        save(&stream, &self.output, &site)?;
        let again = open(&format!("csv:{}", self.output.display()), &site, self.source.seed)?;
        let lost = trace::losses(&stream, &again).map_err(options::of_source)?;
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
        let stream = open(&self.source.workload, &site, self.source.seed)?;
        save(&stream.sample(&sampling, &site.cluster).map_err(options::of_source)?, &self.output, &site)
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
