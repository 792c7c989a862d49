//! Measured profiles of training applications, in the layout of the artifacts of Pollux (OSDI 2021) and Sia (SOSP 2023):
//! step times by placement and batch, and a validation run per batch size. They are the truth about jobs that name an
//! application; what policies see of them is what a job visits.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cluster::{Bytes, Cluster, GpuKind, Shape, Span};
use perf::{
    Adaptation, BatchRule, Course, GradientNoise, KindLimits, Line, Pipeline, Rates, ScalingLaw, ShapeLimit, Speed,
    StepRow, StepTables, StepTimes, Truth, spread_evenly,
};

use crate::catalogue::{self, Catalogue};
use crate::error::{Error, shown, suggestion};
use crate::table::{Header, Layout, Row, Separator, Table};

/// Applications by name, for the kinds of GPU of one cluster.
#[derive(Debug, Clone)]
pub struct Profiles {
    applications: BTreeMap<String, Application>,
}

/// One application: what its jobs really do, and what is known about them beforehand.
#[derive(Debug, Clone)]
pub struct Application {
    pub course: Arc<Course>,
    /// With the batch left open.
    adaptation: Adaptation,
    /// What a restart really takes.
    pub(crate) restart: Span,
}

/// Whose simulator the figures beside the tables are from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Pollux,
    Sia,
}

/// What the authors' simulators say about an application beside its tables: seconds a restart takes and is thought to
/// take, and by how much training is slower than its steps.
pub(crate) struct Figures {
    pub(crate) restart_s: u64,
    pub(crate) assumed_restart_s: u64,
    pub(crate) slowdown: f64,
}

/// How the artifact of Sia names what it measured.
const KIND_NAMES: [(&str, &str); 5] =
    [("t4", "aws"), ("a100", "dgx-ext"), ("rtx2080ti", "rtx"), ("rtx6000", "quad"), ("v100", "azure")];

const MOST_ROWS: usize = 1_000_000;
const MOST_NODES: u32 = 64;

impl Profiles {
    pub(crate) fn of(applications: BTreeMap<String, Application>) -> Profiles {
        Profiles { applications }
    }

    /// Reads `sia:DIR` or `pollux:DIR`: a folder with a folder per application, or one that has these in `traces`; or
    /// takes the figures of the `catalogue`.
    pub fn read(text: &str, cluster: &Cluster) -> Result<Profiles, Error> {
        let (origin, dir) = match text.split_once(':') {
            Some(("sia", dir)) => (Origin::Sia, dir),
            Some(("pollux", dir)) => (Origin::Pollux, dir),
            None if text == catalogue::NAME => return Catalogue::embedded().profiles(cluster),
            _ => {
                let what = format!("profiles: expected `sia:DIR`, `pollux:DIR` or `catalogue`, found {}", shown(text));
                return Err(Error::Name(what));
            }
        };
        let root = PathBuf::from(dir);
        let traces = if root.join("traces").is_dir() { root.join("traces") } else { root.clone() };
        let entries =
            fs::read_dir(&traces).map_err(|source| Error::Read { file: traces.display().to_string(), source })?;
        let mut folders: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        folders.retain(|path| path.is_dir());
        folders.sort();
        let points = Points::read(&root, origin)?;
        let mut applications = BTreeMap::new();
        for folder in folders {
            let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if let Some(application) = Application::read(&folder, &name, origin, cluster, &points)? {
                applications.insert(name, application);
            }
        }
        match applications.is_empty() {
            true => {
                let what = "expected folders of applications with placements and validation tables for the cluster's \
                            kinds of GPU, found none";
                Err(Error::File { file: traces.display().to_string(), what: what.into() })
            }
            false => Ok(Profiles { applications }),
        }
    }

    pub fn get(&self, name: &str) -> Option<&Application> {
        self.applications.get(name)
    }

    /// What to say when there is no such application.
    pub(crate) fn known(&self, name: &str) -> String {
        let names = || self.applications.keys().map(String::as_str);
        format!("one of {}{}", names().collect::<Vec<_>>().join(", "), suggestion(name, names()))
    }
}

impl Application {
    pub(crate) fn new(course: Course, adaptation: Adaptation, restart: Span) -> Application {
        Application { course: Arc::new(course), adaptation, restart }
    }

    fn read(
        folder: &Path,
        name: &str,
        origin: Origin,
        cluster: &Cluster,
        points: &Points,
    ) -> Result<Option<Application>, Error> {
        let figures = Figures::of(origin, name);
        let mut steps = Vec::new();
        let mut kinds = Vec::new();
        for (kind, described) in cluster.kinds() {
            let Some(measured) = measured_name(&described.name, origin) else { continue };
            let suffix = if origin == Origin::Sia { format!("-{measured}") } else { String::new() };
            let path = |table: &str| folder.join(format!("{table}{suffix}.csv"));
            if !path("placements").exists() {
                continue;
            }
            if let Some(stages) = stages_of(name, measured) {
                let pipeline = read_pipeline(&path("placements"), stages)?;
                kinds.push(pipeline_limits(kind, &pipeline));
                steps.push((kind, StepTimes::Piped(pipeline)));
                continue;
            }
            let (mut tables, wide) = read_steps(&path("placements"), &path("scalability"))?;
            points.add(name, measured, &mut tables);
            kinds.push(limits(kind, name, measured, origin, &tables, &wide));
            steps.push((kind, StepTimes::Measured(tables)));
        }
        if steps.is_empty() {
            return Ok(None);
        }
        let Validation { epochs, noise, iterations } = read_validation(folder)?;
        let (Some((initial, _)), Some((max, _))) = (noise.first(), noise.last()) else {
            let what = "expected validation-BATCH.csv for at least one batch size, found none";
            return Err(Error::File { file: folder.display().to_string(), what: what.into() });
        };
        let restart = Span::from_secs(figures.assumed_restart_s);
        let rule = BatchRule::Tuned { asked: None };
        let adaptation = Adaptation { initial: *initial, max: *max, rule, kinds, restart };
        let course = Course { initial: *initial, steps, epochs, noise, iterations, slowdown: figures.slowdown };
        let fault =
            |invalid: cluster::Invalid| Error::File { file: folder.display().to_string(), what: invalid.to_string() };
        course.check().map_err(fault)?;
        adaptation.check().map_err(fault)?;
        Ok(Some(Application::new(course, adaptation, Span::from_secs(figures.restart_s))))
    }

    /// What is known beforehand about a job of the application that treats its batch so.
    pub fn adaptation(&self, rule: BatchRule) -> Adaptation {
        Adaptation { rule, ..self.adaptation.clone() }
    }
}

impl Application {
    /// What is known about a job of the application before it runs, and what is really the case.
    pub(crate) fn speed_and_truth(&self, rule: BatchRule) -> (Arc<Speed>, Arc<Truth>) {
        let adaptation = self.adaptation(rule);
        let rate = |limits: &KindLimits| {
            let of_replica = limits.alone.unwrap_or(1.0) / f64::from(adaptation.initial);
            (limits.kind, of_replica / f64::from(limits.stages))
        };
        let speed = Speed {
            rates: Rates::ByKind(adaptation.kinds.iter().map(rate).collect()),
            scaling: ScalingLaw::Linear,
            gradients: Bytes::ZERO,
            noise_scale: None,
            adaptation: Some(Arc::new(adaptation)),
        };
        let truth = Truth {
            speed: speed.clone(),
            iterations: (self.course.length() as u64).max(1),
            start_up: self.restart,
            course: Some(self.course.clone()),
            resize: None,
        };
        (Arc::new(speed), Arc::new(truth))
    }

    /// The fewest workers with which it runs on any of the kinds.
    pub(crate) fn least_workers(&self) -> u32 {
        self.adaptation.kinds.iter().map(|limits| limits.stages).min().unwrap_or(1)
    }

    /// Seconds of a whole training in a shape, with its batch treated so: the best one in every epoch, or always the same.
    /// Restarts are not counted. `None` where it cannot run.
    pub fn training_secs(&self, shape: Shape, rule: BatchRule) -> Option<f64> {
        let adaptation = self.adaptation(rule);
        let ends = &self.course.epochs;
        let starts = std::iter::once(&0.0).chain(ends);
        let epoch =
            |(start, end): (&f64, &f64)| Some((end - start) / self.course.best_rate(&adaptation, shape, *start)?);
        starts.zip(ends).map(epoch).sum()
    }
}

impl Figures {
    /// Sia's simulator gives these by application; that of Pollux has 30 s for all and no slow-down.
    pub(crate) fn of(origin: Origin, name: &str) -> Figures {
        let (restart_s, assumed_restart_s, slowdown) = match (origin, name) {
            (Origin::Pollux, _) => (30, 30, 1.0),
            (Origin::Sia, "cifar10") => (50, 30, 1.8),
            (Origin::Sia, "deepspeech2") => (25, 25, 1.2),
            (Origin::Sia, "bert") => (120, 120, 1.2),
            (Origin::Sia, "yolov3") => (80, 45, 1.2),
            (Origin::Sia, "imagenet") => (250, 250, 1.2),
            (Origin::Sia, "ncf") => (15, 30, 1.5),
            (Origin::Sia, _) => (30, 30, 1.0),
        };
        Figures { restart_s, assumed_restart_s, slowdown }
    }
}

/// How the tables call a kind of GPU. Those of Pollux were all measured on one.
fn measured_name<'n>(kind: &str, origin: Origin) -> Option<&'n str> {
    let known = KIND_NAMES.iter().find(|(name, _)| *name == kind).map(|(_, measured)| *measured);
    known.filter(|measured| origin == Origin::Sia || *measured == "aws")
}

/// Memory limits as the authors' simulators have them: the largest batch in the tables, but for two exceptions.
fn limits(kind: GpuKind, name: &str, measured: &str, origin: Origin, tables: &StepTables, wide: &Sizes) -> KindLimits {
    let rows = || tables.places.iter().flat_map(|(_, rows)| rows);
    let largest = |rows: &[StepRow]| rows.iter().map(|row| row.local).max();
    let local_min = rows().map(|row| row.local).min().unwrap_or(1);
    let most = rows().map(|row| row.local).max().unwrap_or(1);
    let local_max = match (origin, name, measured) {
        (Origin::Sia, "deepspeech2", "rtx") => most.min(57),
        (Origin::Pollux, "yolov3", _) => most.min(8),
        _ => most,
    };
    let alone = tables.places.iter().find(|(place, _)| place == &[1]).and_then(|(_, rows)| {
        let slowest = rows.iter().map(|row| row.step_secs).max_by(f64::total_cmp)?;
        Some(f64::from(largest(rows)?) / slowest)
    });
    let mut shapes = Vec::new();
    for nodes in (1..=MOST_NODES).filter(|_| origin == Origin::Sia) {
        for each in 1..=8 {
            let workers = nodes * each;
            let place = spread_evenly(workers, nodes);
            let exact = tables.places.binary_search_by(|(known, _)| known.as_slice().cmp(&place));
            let wider = || {
                let sizes = wide.iter().filter(|((n, r), _)| *n >= nodes && *r >= workers);
                sizes.filter_map(|(_, rows)| largest(rows)).max()
            };
            let found = match exact {
                Ok(found) => largest(&tables.places[found].1),
                Err(_) => wider(),
            };
            let differs = found.filter(|&found| found != local_max);
            shapes.extend(differs.map(|local_max| ShapeLimit { nodes, workers, local_max }));
        }
    }
    shapes.sort_by_key(|shape| (shape.nodes, shape.workers));
    KindLimits { kind, local_min, local_max, shapes, alone, stages: 1, workers_max: None }
}

/// The stages into which Sia's GPT with 2.8 billion parameters is cut for the memory of a kind of GPU.
fn stages_of(name: &str, measured: &str) -> Option<u32> {
    match (name, measured) {
        ("gpt_pmp", "rtx") => Some(8),
        ("gpt_pmp", "dgx-ext") => Some(2),
        _ => None,
    }
}

/// Micro-batches of one example that Sia's GPT sends through its stages in an iteration.
const MICRO_BATCHES: u32 = 48;

/// Every replica has the batch that fills it.
fn pipeline_limits(kind: GpuKind, pipeline: &Pipeline) -> KindLimits {
    let local = pipeline.total(1) as u32;
    let alone = Some(f64::from(local) / pipeline.iteration_secs(1, 1));
    let stages = pipeline.stages;
    KindLimits { kind, local_min: local, local_max: local, shapes: Vec::new(), alone, stages, workers_max: None }
}

/// In the tables of a pipeline a step is one micro-batch forward through one stage, whatever the placement, and what is
/// waited for is the exchange between replicas, which is a straight line over their number.
fn read_pipeline(placements: &Path, stages: u32) -> Result<Pipeline, Error> {
    let mut table = Table::lay_out(placements, PLACEMENTS)?;
    let mut forward_secs = None;
    // Seconds by replicas, within a node and between several.
    let mut exchanges: [BTreeMap<u32, f64>; 2] = Default::default();
    while let Some(row) = table.next_row()? {
        let place = place(&row)?;
        let (nodes, workers) = (place.len(), place.iter().sum::<u32>());
        if workers % stages != 0 {
            return Err(row.fault(0, format!("whole pipelines of {stages} stages"), &workers.to_string()));
        }
        let seconds = |column: usize| row.real(column, 1e-9..=1e6)?.ok_or_else(|| row.fault(column, "seconds", ""));
        if count(&row, 1)? == 1 {
            forward_secs.get_or_insert(seconds(2)?);
            if workers > stages {
                exchanges[usize::from(nodes > 1)].insert(workers / stages, seconds(3)?);
            }
        }
    }
    let missing = || Error::File {
        file: placements.display().to_string(),
        what: "expected rows for a batch of 1 with several replicas on several nodes, found none".into(),
    };
    let forward_secs = forward_secs.ok_or_else(missing)?;
    let [within, between] = exchanges.map(|seconds| line_through(&seconds));
    let between_nodes = between.ok_or_else(missing)?;
    // Where a replica fills a node, nobody has seen two of them on one.
    let within_node = within.unwrap_or(between_nodes);
    Ok(Pipeline { stages, micro_batches: MICRO_BATCHES, micro_batch: 1, forward_secs, between_nodes, within_node })
}

/// The line from the first point to the last, by replicas beyond two.
fn line_through(seconds: &BTreeMap<u32, f64>) -> Option<Line> {
    let ((first, from), (last, to)) = (seconds.first_key_value()?, seconds.last_key_value()?);
    let slope = if last > first { (to - from) / f64::from(last - first) } else { 0.0 };
    Some(Line { fixed: from - slope * (f64::from(*first) - 2.0), slope })
}

/// Step times that were interpolated once and are to be used as they are, because another interpolation of the same
/// measurements gives others.
struct Points {
    rows: Vec<Point>,
}

struct Point {
    application: String,
    kind: String,
    size: (u32, u32),
    row: StepRow,
    /// Whether rows of one size make a line over the batch, or are to be used one by one.
    line: bool,
}

impl Points {
    const SIA: Layout = Layout {
        columns: &["app", "num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time", "gpu"],
        required: 7,
        separator: Separator::Comma,
        header: Header::Loose,
    };
    const POLLUX: Layout = Layout {
        columns: &["application", "num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time"],
        required: 6,
        separator: Separator::Comma,
        header: Header::Loose,
    };

    fn read(root: &Path, origin: Origin) -> Result<Points, Error> {
        let (file, layout) = match origin {
            Origin::Sia => ("interp_large_shapes.csv", Points::SIA),
            Origin::Pollux => ("interpolated_step_times_w6.csv", Points::POLLUX),
        };
        let path = root.join(file);
        let mut rows = Vec::new();
        if path.exists() {
            let mut table = Table::lay_out(&path, layout)?;
            while let Some(row) = table.next_row()? {
                let kind = if origin == Origin::Sia { row.required(6, "a kind of GPU")? } else { "aws" };
                if !KIND_NAMES.iter().any(|(_, measured)| *measured == kind) {
                    let known: Vec<&str> = KIND_NAMES.iter().map(|(_, measured)| *measured).collect();
                    return Err(row.fault(6, format!("one of {}", known.join(", ")), kind));
                }
                rows.push(Point {
                    application: row.required(0, "an application")?.into(),
                    kind: kind.into(),
                    size: (count(&row, 1)?, count(&row, 2)?),
                    row: step_row(&row, 3, 4, 5)?,
                    line: origin == Origin::Sia,
                });
            }
        }
        Ok(Points { rows })
    }

    fn add(&self, application: &str, kind: &str, tables: &mut StepTables) {
        let mut lines: BTreeMap<(u32, u32), Vec<StepRow>> = BTreeMap::new();
        for point in self.rows.iter().filter(|point| point.application == application && point.kind == kind) {
            match point.line {
                true => lines.entry(point.size).or_default().push(point.row),
                false => tables.points.push(((point.size.0, point.size.1, point.row.local), point.row)),
            }
        }
        tables.points.sort_by_key(|(key, _)| *key);
        tables.points.dedup_by_key(|(key, _)| *key);
        for (size, mut rows) in lines {
            rows.sort_by_key(|row| row.local);
            match tables.sizes.binary_search_by_key(&size, |(known, _)| *known) {
                Ok(found) => tables.sizes[found].1 = rows,
                Err(at) => tables.sizes.insert(at, (size, rows)),
            }
        }
    }
}

const PLACEMENTS: Layout = Layout {
    columns: &["placement", "local_bsz", "step_time", "sync_time"],
    required: 4,
    separator: Separator::Comma,
    header: Header::Loose,
};
const SCALABILITY: Layout = Layout {
    columns: &["num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time"],
    required: 5,
    separator: Separator::Comma,
    header: Header::Loose,
};

/// By local batch: how many rows, and the sums of their step and sync times.
type Sums = BTreeMap<u32, (f64, f64, f64)>;

/// Rows by nodes and workers.
type Sizes = BTreeMap<(u32, u32), Vec<StepRow>>;

/// The tables of one kind, and what of them speaks of sizes and not of places.
fn read_steps(placements: &Path, scalability: &Path) -> Result<(StepTables, Sizes), Error> {
    let mut places: BTreeMap<Vec<u32>, Vec<StepRow>> = BTreeMap::new();
    // Means over all placements of a size.
    let mut sums: BTreeMap<(u32, u32), Sums> = BTreeMap::new();
    let mut table = Table::lay_out(placements, PLACEMENTS)?;
    let mut rows = 0;
    while let Some(row) = table.next_row()? {
        let place = place(&row)?;
        let steps = step_row(&row, 1, 2, 3)?;
        let known = places.entry(place.clone()).or_default();
        if known.iter().any(|known| known.local == steps.local) {
            let text = row.text(0).unwrap_or_default();
            return Err(
                row.line_fault(format!("expected each batch of placement {text} once, found {} twice", steps.local))
            );
        }
        known.push(steps);
        let sum = sums.entry((place.len() as u32, place.iter().sum())).or_default();
        let (count, step, sync) = sum.entry(steps.local).or_default();
        (*count, *step, *sync) = (*count + 1.0, *step + steps.step_secs, *sync + steps.sync_secs);
        rows += 1;
        if rows > MOST_ROWS {
            return Err(row.line_fault(format!("expected at most {MOST_ROWS} rows")));
        }
    }
    if !places.contains_key(&[1][..]) {
        let what = "expected rows of placement 1, a worker alone, from which all else is judged, found none";
        return Err(Error::File { file: placements.display().to_string(), what: what.into() });
    }
    let mean = |(local, (count, step, sync)): (u32, (f64, f64, f64))| StepRow {
        local,
        step_secs: step / count,
        sync_secs: sync / count,
    };
    let mut sizes: Sizes = sums.into_iter().map(|(size, rows)| (size, rows.into_iter().map(mean).collect())).collect();
    let mut wide = Sizes::new();
    if scalability.exists() {
        let mut table = Table::lay_out(scalability, SCALABILITY)?;
        while let Some(row) = table.next_row()? {
            wide.entry((count(&row, 0)?, count(&row, 1)?)).or_default().push(step_row(&row, 2, 3, 4)?);
        }
        // Where both tables have a size, the places themselves say more.
        for (size, rows) in &wide {
            sizes.entry(*size).or_insert_with(|| rows.clone());
        }
    }
    let sorted = |mut rows: Vec<StepRow>| {
        rows.sort_by_key(|row| row.local);
        rows
    };
    let tables = StepTables {
        places: places.into_iter().map(|(place, rows)| (place, sorted(rows))).collect(),
        sizes: sizes.into_iter().map(|(size, rows)| (size, sorted(rows))).collect(),
        points: Vec::new(),
    };
    Ok((tables, wide))
}

/// The workers on each node.
fn place(row: &Row<'_>) -> Result<Vec<u32>, Error> {
    let text = row.required(0, "the workers on each node, a digit each")?;
    let digits: Option<Vec<u32>> = text.chars().map(|digit| digit.to_digit(10).filter(|&digit| digit > 0)).collect();
    let place = digits.filter(|place| place.len() <= MOST_NODES as usize);
    place.ok_or_else(|| row.fault(0, "digits from 1 to 9, the workers on each node", text))
}

fn step_row(row: &Row<'_>, local: usize, step: usize, sync: usize) -> Result<StepRow, Error> {
    let seconds = |column: usize, least: f64| {
        let found = row.real(column, least..=1e6)?;
        found.ok_or_else(|| row.fault(column, "a number of seconds", ""))
    };
    let steps = StepRow { local: count(row, local)?, step_secs: seconds(step, 1e-9)?, sync_secs: seconds(sync, 0.0)? };
    match steps.sync_secs < steps.step_secs {
        true => Ok(steps),
        false => Err(row.fault(sync, "less than the step takes", &steps.sync_secs.to_string())),
    }
}

fn count(row: &Row<'_>, column: usize) -> Result<u32, Error> {
    row.count(column, 1..=1_000_000)?.ok_or_else(|| row.fault(column, "a whole number", ""))
}

/// Where each epoch ends, which is where the first of the runs at any batch size ended it; the noise in each, and the
/// iterations by its end.
struct Validation {
    epochs: Vec<f64>,
    noise: Vec<(u32, Vec<GradientNoise>)>,
    iterations: Vec<(u32, Vec<f64>)>,
}

fn read_validation(folder: &Path) -> Result<Validation, Error> {
    const RUN: Layout = Layout {
        columns: &["progress", "grad_sqr", "grad_var", "iteration"],
        required: 3,
        separator: Separator::Comma,
        header: Header::Loose,
    };
    let unreadable = |source| Error::Read { file: folder.display().to_string(), source };
    let mut runs: Vec<(u32, PathBuf)> = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        if let Some(batch) = stem.strip_prefix("validation-") {
            let batch = batch.parse().ok().filter(|&batch| batch > 0).ok_or_else(|| Error::File {
                file: path.display().to_string(),
                what: format!("expected a batch size in the name, found {}", shown(batch)),
            })?;
            runs.push((batch, path));
        }
    }
    runs.sort();
    let mut epochs: Vec<f64> = Vec::new();
    let mut noise = Vec::new();
    let mut iterations = Vec::new();
    for (batch, path) in runs {
        let mut table = Table::lay_out(&path, RUN)?;
        let mut rows = Vec::new();
        let mut counts = Vec::new();
        let mut before = 0.0;
        while let Some(row) = table.next_row()? {
            let number = |column: usize, least: f64| {
                row.real(column, least..=1e300)?.ok_or_else(|| row.fault(column, "a number", ""))
            };
            let progress = number(0, 1e-9)?;
            if progress <= before {
                return Err(row.fault(0, format!("more than the {before} of the epoch before"), &progress.to_string()));
            }
            before = progress;
            match epochs.get_mut(rows.len()) {
                Some(end) => *end = end.min(progress),
                None if noise.is_empty() => epochs.push(progress),
                None => return Err(row.line_fault(format!("expected {} epochs as at other batch sizes", epochs.len()))),
            }
            rows.push(GradientNoise { sqr: number(1, 0.0)?, var: number(2, 0.0)? });
            counts.extend(row.real(3, 1.0..=1e300)?);
        }
        if rows.len() < epochs.len() {
            let what = format!("expected {} epochs as at other batch sizes, found {}", epochs.len(), rows.len());
            return Err(Error::File { file: path.display().to_string(), what });
        }
        noise.push((batch, rows));
        if counts.len() == epochs.len() {
            iterations.push((batch, counts));
        }
    }
    Ok(Validation { epochs, noise, iterations })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::ClusterDraft;

    const PLACEMENTS: &str = "placement,local_bsz,step_time,sync_time\n1,32,0.10,0.0\n1,64,0.18,0.0\n2,32,0.13,0.03\n";
    const VALIDATION: &str = "progress,grad_sqr,grad_var\n100,1.0,50\n200,0.5,60\n";

    /// What is said of a folder with one application whose files are these, or as written above.
    fn read(cluster: &str, files: &[(&str, &str)]) -> Result<Profiles, String> {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("app")).unwrap();
        let usual = [("app/placements-aws.csv", PLACEMENTS), ("app/validation-64.csv", VALIDATION)];
        for (name, text) in usual.iter().chain(files) {
            fs::write(root.path().join(name), text).unwrap();
        }
        let (cluster, _) = ClusterDraft::parse_short(cluster).unwrap().build().unwrap();
        let here = root.path().display().to_string();
        Profiles::read(&format!("sia:{here}"), &cluster).map_err(|error| error.to_string().replace(&here, "DIR"))
    }

    fn refusal(file: &str, text: &str) -> String {
        read("1x4 t4", &[(file, text)]).unwrap_err()
    }

    #[test]
    fn a_small_folder_is_enough() {
        let profiles = read("1x4 t4", &[]).unwrap();
        let application = profiles.get("app").unwrap();
        assert_eq!(application.adaptation.on(GpuKind(0)).unwrap().local_max, 64);
    }

    #[test]
    fn what_no_step_can_be_is_refused_with_file_and_line() {
        let steps = |row: &str| refusal("app/placements-aws.csv", &format!("{PLACEMENTS}{row}\n"));
        let place = "DIR/app/placements-aws.csv:5";
        assert!(steps("4,NaN,0.2,0.1").starts_with(place), "{}", steps("4,NaN,0.2,0.1"));
        for (row, names) in [
            ("4,0,0.2,0.1", "local_bsz"),
            ("4,32,NaN,0.1", "step_time"),
            ("4,32,-1,0.1", "step_time"),
            ("4,32,0.2,inf", "sync_time"),
            ("4,32,0.2,0.3", "less than the step takes"),
            ("x,32,0.2,0.1", "placement"),
            ("0,32,0.2,0.1", "placement"),
            ("4,32", "expected 4 fields"),
            ("2,32,0.2,0.1", "once, found 32 twice"),
        ] {
            let message = steps(row);
            assert!(message.starts_with(place) && message.contains(names), "{row}: {message}");
        }
    }

    #[test]
    fn a_worker_alone_must_have_been_measured() {
        let message = refusal("app/placements-aws.csv", "placement,local_bsz,step_time,sync_time\n2,32,0.13,0.03\n");
        assert!(message.contains("app/placements-aws.csv") && message.contains("placement 1"), "{message}");
    }

    #[test]
    fn a_validation_run_that_does_not_fit_the_others_is_refused() {
        let message = refusal("app/validation-128.csv", "progress,grad_sqr,grad_var\n100,1.0,50\n");
        assert!(message.contains("validation-128.csv") && message.contains("expected 2 epochs"), "{message}");
        let message = refusal("app/validation-128.csv", "progress,grad_sqr,grad_var\n100,NaN,50\n200,1,1\n");
        assert!(message.starts_with("DIR/app/validation-128.csv:2") && message.contains("grad_sqr"), "{message}");
        let message = refusal("app/validation-0.csv", VALIDATION);
        assert!(message.contains("validation-0.csv") && message.contains("batch size"), "{message}");
        let message = refusal("app/validation-64.csv", "progress,grad_sqr,grad_var\n200,1,50\n100,1,50\n");
        assert!(message.starts_with("DIR/app/validation-64.csv:3"), "epochs that end before they begin: {message}");
    }

    #[test]
    fn an_unknown_kind_of_gpu_is_refused() {
        let header = "app,num_nodes,num_replicas,local_bsz,step_time,sync_time,gpu\n";
        let message = refusal("interp_large_shapes.csv", &format!("{header}app,1,4,32,0.2,0.1,tpu\n"));
        assert!(message.starts_with("DIR/interp_large_shapes.csv:2") && message.contains("tpu"), "{message}");
        let message = read("1x4 tpu", &[]).unwrap_err();
        assert!(message.contains("cluster's kinds of GPU, found none"), "{message}");
    }
}
