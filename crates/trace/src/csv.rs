//! Moira's own table of jobs: one row per job, three required columns, everything else optional. `docs/workloads.md`
//! describes the columns; this file reads them, `csv_out.rs` writes them.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

use cluster::{
    BatchRange, Bytes, Cluster, Count, Ends, GpuKind, Grain, Invalid, JobDraft, JobSpec, MigProfile, Name, QueueId,
    QueueTree, Recovery, Role, Scaling, Slice, Span, Time, Weight, WorkerRange,
};
use perf::{Curve, Rates, ScalingLaw, Speed, TrueJob, Truth};

use crate::Workload;
use crate::depend::{Pending, in_order};
use crate::error::{Error, shown, suggestion};
use crate::readers::{Head, Options, Request};
use crate::stream::Rows;
use crate::table::{Row, Table};
use column::*;

/// How an elastic job scales if its row does not say so.
pub(crate) const DEFAULT_SCALING: ScalingLaw = ScalingLaw::Power(0.9);
/// Iterations are that long where a row does not speak of them.
pub(crate) const DEFAULT_STEP_S: f64 = 0.001;
const MOST_WORKERS: u32 = 1_000_000;
/// About three hundred years.
pub(crate) const LONGEST_S: f64 = 1e10;
const MOST_ITERATIONS: u64 = 1 << 52;
/// So many different run times and requests are shared between jobs.
const MOST_SHARED: usize = 1 << 16;
/// So many bad rows are listed, the others only counted.
const LISTED: u64 = 20;

pub(crate) const OPTIONS: &[&str] = &["skip_bad_rows", "limit", "names"];

pub(crate) mod column {
    crate::table::columns! {
        pub(crate) ALL:
        SUBMIT = "submit_s", GPUS = "gpus", DURATION = "duration_s",
        ID = "id", NAME = "name", USER = "user", QUEUE = "queue", PRIORITY = "priority", WEIGHT = "weight",
        KINDS = "kinds", WORKERS = "workers", CORES = "cores", MEMORY = "memory_gb", GPU_MEMORY = "gpu_memory_gb",
        SHARE = "share", MIG = "mig",
        SERVERS = "servers", SERVER_CORES = "server_cores", SERVER_MEMORY = "server_memory_gb",
        MIN_GPUS = "min_gpus", MAX_GPUS = "max_gpus", SCALING = "scaling",
        BATCH = "batch", MAX_BATCH = "max_batch", NOISE_SCALE = "noise_scale",
        SPEEDS = "speeds", GRADIENTS = "gradients_mb", STEP = "step_s", SKEW = "skew",
        ITERATIONS = "iterations", EPOCHS = "epochs", TARGET = "target", CONVERGE = "converge", CURVE = "curve",
        TRUE_ITERATIONS = "true_iterations",
        DEADLINE = "deadline_s", EXPECTED = "expected_s", AFTER = "after",
        CHECKPOINT_EVERY = "checkpoint_every_s", CHECKPOINT = "checkpoint_s", RESTART = "restart_s",
        STARTUP = "startup_s", RETRIES = "retries",
    }
}

pub(crate) fn recognise(head: &Head) -> Option<String> {
    head.has_all(&column::ALL[..3]).then(|| "the header has submit_s, gpus and duration_s".into())
}

/// Reads a table of jobs. Kinds of GPU and queues are those of the cluster it will run on.
pub fn read_csv(path: &Path, cluster: &Cluster, queues: &QueueTree) -> Result<Workload, Error> {
    let options = Options::parse("csv", "", OPTIONS)?;
    read(Request { path, options: &options, cluster, queues })
}

pub(crate) fn read(request: Request<'_>) -> Result<Workload, Error> {
    let mut table = JobTable::open(request)?;
    let mut jobs = Vec::new();
    while let Some(job) = table.next_job()? {
        jobs.push(job);
    }
    let assumptions = table.assumptions();
    Ok(Workload { name: request.path.display().to_string(), jobs: in_order(table.table.file(), jobs)?, assumptions })
}

/// The same jobs one by one, in the order of their rows.
pub(crate) fn rows(request: Request<'_>) -> Result<Box<dyn Rows + '_>, Error> {
    Ok(Box::new(JobTable::open(request)?))
}

/// A table of jobs in the middle of being read.
struct JobTable<'a> {
    table: Table,
    reader: Reader<'a>,
    skips: bool,
    limit: u64,
    jobs: u64,
    bad: u64,
    bad_rows: Vec<String>,
}

impl<'a> JobTable<'a> {
    fn open(request: Request<'a>) -> Result<JobTable<'a>, Error> {
        let Request { path, options, cluster, queues } = request;
        let skips = options.flag("skip_bad_rows")?;
        let limit = options.whole("limit")?.unwrap_or(u64::MAX);
        let names_dropped = options.choice("names", &["keep", "drop"])? == "drop";
        let table = Table::open(path, column::ALL, 3)?;
        if table.has(AFTER) && !table.has(ID) {
            let what = "column `after` names jobs by column `id`, which is missing".into();
            return Err(Error::Line { file: table.file().into(), line: 1, what });
        }
        let reader = Reader {
            cluster,
            queues,
            names_dropped,
            names: HashMap::new(),
            users: HashMap::new(),
            speed: None,
            specs: HashMap::new(),
            truths: HashMap::new(),
            short: 0,
            unscaled: 0,
        };
        Ok(JobTable { table, reader, skips, limit, jobs: 0, bad: 0, bad_rows: Vec::new() })
    }
}

impl Rows for JobTable<'_> {
    fn next_job(&mut self) -> Result<Option<Pending>, Error> {
        while self.jobs < self.limit {
            let found = match self.table.next_row() {
                Ok(None) => break,
                Ok(Some(row)) => self.reader.job(&row),
                Err(error) => Err(error),
            };
            match found {
                Ok(job) => {
                    self.jobs += 1;
                    return Ok(Some(job));
                }
                Err(error) if !self.skips || self.table.is_broken() => return Err(error),
                Err(error) => {
                    self.bad += 1;
                    self.bad_rows.extend((self.bad <= LISTED).then(|| format!("left out: {error}")));
                }
            }
        }
        if self.jobs == 0 {
            let what = "expected at least one job below the header, found none".into();
            return Err(Error::File { file: self.table.file().into(), what });
        }
        Ok(None)
    }

    fn assumptions(&self) -> Vec<String> {
        let mut assumptions = self.reader.assumptions();
        if self.jobs == self.limit {
            assumptions.push(format!("only the first {} jobs of the file were read (limit)", self.limit));
        }
        if self.bad > 0 {
            assumptions.push(format!("{} bad rows are left out (skip_bad_rows=true)", self.bad));
            assumptions.extend_from_slice(&self.bad_rows);
            let more = self.bad.saturating_sub(LISTED);
            assumptions.extend((more > 0).then(|| format!("left out: {more} more bad rows")));
        }
        assumptions
    }
}

struct Reader<'a> {
    cluster: &'a Cluster,
    queues: &'a QueueTree,
    /// All jobs are called alike, so that those that ask for the same can share it.
    names_dropped: bool,
    /// Names of jobs and of users met so far, the first of them, so that jobs share them.
    names: HashMap<String, Name>,
    users: HashMap<String, Name>,
    /// The last job's speed: often the next one's as well.
    speed: Option<Arc<Speed>>,
    /// What nameless jobs ask for, by the cells that say it.
    specs: HashMap<u64, Arc<JobSpec>>,
    /// By iterations and start-up.
    truths: HashMap<(u64, Span), Arc<Truth>>,
    short: u64,
    unscaled: u64,
}

/// How many workers a job asks for and what each of them takes.
struct Gang {
    workers: u32,
    gpus_per_worker: u32,
    scaling: Scaling,
    grain: Grain,
}

impl Gang {
    /// What the job asked for, where that is not the least it may have.
    fn asked(&self) -> Option<u32> {
        (self.workers > self.scaling.min()).then_some(self.workers)
    }
}

/// When a job says it ends, when it really does, and how fast the gang it asks for gets there.
struct Course {
    ends: Ends,
    iterations: u64,
    per_second: f64,
}

impl Reader<'_> {
    fn job(&mut self, row: &Row<'_>) -> Result<Pending, Error> {
        let submitted = Time::ZERO + Span::from_secs_f64(required_seconds(row, SUBMIT)?);
        let gang = gang(row)?;
        let course = self.course(row)?;
        let speed = self.speed(row, &gang, &course)?;
        let id = row.text(ID).map(Name::from);
        let name = match row.text(NAME) {
            _ if self.names_dropped => shared(&mut self.names, "job"),
            Some(name) => shared(&mut self.names, name),
            None => id.clone().unwrap_or_else(|| format!("line{}", row.line).into()),
        };
        let draft = JobDraft {
            name,
            user: shared(&mut self.users, row.text(USER).unwrap_or("unknown")),
            queue: self.queue(row)?,
            priority: row.whole(PRIORITY, i32::MIN..=i32::MAX)?.unwrap_or(0),
            weight: weight(row)?,
            scaling: gang.scaling,
            asked: gang.asked(),
            roles: roles(row, &gang)?,
            kinds: self.kinds(row, &gang)?,
            ends: course.ends,
            deadline: seconds(row, DEADLINE)?.map(|after| submitted + after),
            after: Vec::new(),
            expected: seconds(row, EXPECTED)?,
            limit: None,
            interruptible: true,
            pinned: false,
            skew: row.real(SKEW, 0.0..=1.0)?.map(|skew| (skew * 1000.0).round() as u16),
            recovery: recovery(row)?,
        };
        let truth = self.truth(&speed, course.iterations, seconds(row, STARTUP)?.unwrap_or(Span::ZERO));
        let spec = draft.build().map_err(|invalid| row.line_fault(invalid.to_string()))?;
        let spec = self.shared(row, spec);
        let after = row.list(AFTER).map(|id| shared(&mut self.names, id)).collect();
        Ok(Pending { line: row.line, id, job: TrueJob { submitted, spec, speed, truth }, after })
    }

    /// The truth about a job, which many may have in common.
    fn truth(&mut self, speed: &Speed, iterations: u64, start_up: Span) -> Arc<Truth> {
        let key = (iterations, start_up);
        if let Some(truth) = self.truths.get(&key).filter(|truth| truth.speed == *speed) {
            return truth.clone();
        }
        let truth = Arc::new(Truth { speed: speed.clone(), iterations, start_up, course: None, resize: None });
        if self.truths.len() < MOST_SHARED {
            self.truths.insert(key, truth.clone());
        }
        truth
    }

    /// What a job asks for; of those before it if they are called alike and ask for the same.
    fn shared(&mut self, row: &Row<'_>, spec: JobSpec) -> Arc<JobSpec> {
        if !self.names_dropped {
            return Arc::new(spec);
        }
        let mut hasher = DefaultHasher::new();
        (USER..column::ALL.len()).for_each(|column| row.text(column).hash(&mut hasher));
        row.text(GPUS).hash(&mut hasher);
        let key = hasher.finish();
        if let Some(known) = self.specs.get(&key).filter(|known| ***known == spec) {
            return known.clone();
        }
        let spec = Arc::new(spec);
        if self.specs.len() < MOST_SHARED {
            self.specs.insert(key, spec.clone());
        }
        spec
    }

    fn queue(&self, row: &Row<'_>) -> Result<QueueId, Error> {
        let Some(name) = row.text(QUEUE) else { return Ok(QueueId::ROOT) };
        self.queues.named(name).ok_or_else(|| {
            let known: Vec<&str> = self.queues.iter().map(|(_, queue)| &*queue.name).collect();
            row.fault(QUEUE, format!("one of the cluster's queues ({})", known.join(", ")), name)
        })
    }

    fn kinds(&self, row: &Row<'_>, gang: &Gang) -> Result<Vec<GpuKind>, Error> {
        let mut kinds: Vec<GpuKind> =
            row.list(KINDS).map(|name| self.kind(row, KINDS, name)).collect::<Result<_, _>>()?;
        if gang.gpus_per_worker == 0 && !kinds.is_empty() {
            return Err(row.fault(KINDS, "nothing for a job without GPUs", row.text(KINDS).unwrap_or_default()));
        }
        kinds.sort_unstable();
        kinds.dedup();
        Ok(kinds)
    }

    fn kind(&self, row: &Row<'_>, column: usize, name: &str) -> Result<GpuKind, Error> {
        self.cluster.kind_named(name).ok_or_else(|| {
            let expected = self.cluster.unknown_kind("", name).expected;
            let near = suggestion(name, self.cluster.kinds().map(|(_, kind)| &*kind.name));
            row.fault(column, expected, &format!("{name}{near}"))
        })
    }

    fn course(&mut self, row: &Row<'_>) -> Result<Course, Error> {
        let mut duration = required_seconds(row, DURATION)?;
        if duration < 0.001 {
            self.short += 1;
            duration = 0.001;
        }
        let count = |column| row.whole(column, 1..=MOST_ITERATIONS);
        let (iterations, epochs) = (count(ITERATIONS)?, count(EPOCHS)?);
        let step = row.real(STEP, 1e-6..=LONGEST_S)?;
        if let (Some(_), Some(_)) = (step, iterations) {
            let expected = "nothing beside `iterations`, which with `duration_s` already say how long a step is";
            return Err(row.fault(STEP, expected, row.text(STEP).unwrap_or_default()));
        }
        let ends = ends(row, iterations, epochs)?;
        if ends == Ends::Itself {
            let iterations = (duration / step.unwrap_or(DEFAULT_STEP_S)).round().max(1.0);
            let per_second = if step.is_some() { iterations / duration } else { 1.0 / DEFAULT_STEP_S };
            return Ok(Course { ends, iterations: iterations as u64, per_second });
        }
        let iterations = true_iterations(row, &ends)?;
        Ok(Course { ends, iterations, per_second: iterations as f64 / duration })
    }

    fn speed(&mut self, row: &Row<'_>, gang: &Gang, course: &Course) -> Result<Arc<Speed>, Error> {
        let scaling = match row.text(SCALING) {
            Some(text) => scaling_law(text).ok_or_else(|| {
                let expected = "`gang`, `linear`, `power:0.8`, `serial:0.1` or speeds by workers like `1=1|4=3.1`";
                row.fault(SCALING, expected, text)
            })?,
            None if matches!(gang.scaling, Scaling::Rigid(_)) => ScalingLaw::Gang,
            None => {
                self.unscaled += 1;
                DEFAULT_SCALING
            }
        };
        let gradients = memory(row, GRADIENTS, 20)?;
        if gradients != Bytes::ZERO && row.text(ITERATIONS).is_none() && row.text(STEP).is_none() {
            let expected = "`iterations` or `step_s` beside it, which say how often they are exchanged";
            return Err(row.fault(GRADIENTS, expected, "neither"));
        }
        let share = gang.grain.share().as_f64();
        let reference = course.per_second / (scaling.speedup(gang.workers) * share);
        let rates = self.rates(row, gang, reference)?;
        let noise_scale = row.real(NOISE_SCALE, 1e-6..=1e12)?;
        let speed = Speed { rates, scaling, gradients, noise_scale, adaptation: None };
        speed.check().map_err(|invalid| row.line_fault(invalid.to_string()))?;
        if let Some(last) = self.speed.as_ref().filter(|last| ***last == speed) {
            return Ok(last.clone());
        }
        Ok(self.speed.insert(Arc::new(speed)).clone())
    }

    /// Cells like `a100=2|t4=1`.
    fn rates(&self, row: &Row<'_>, gang: &Gang, reference: f64) -> Result<Rates, Error> {
        let Some(text) = row.text(SPEEDS) else { return Ok(Rates::Anywhere(reference)) };
        if gang.gpus_per_worker == 0 {
            return Err(row.fault(SPEEDS, "nothing for a job without GPUs", text));
        }
        let mut table = Vec::new();
        for part in row.list(SPEEDS) {
            let figure =
                part.split_once('=').and_then(|(name, speed)| Some((name.trim(), speed.trim().parse::<f64>().ok()?)));
            let Some((name, factor)) = figure.filter(|(_, factor)| (1e-6..=1e6).contains(factor)) else {
                return Err(row.fault(SPEEDS, "kinds with positive speeds like `a100=2|t4=1`", text));
            };
            table.push((self.kind(row, SPEEDS, name)?, reference * factor));
        }
        table.sort_unstable_by_key(|&(kind, _)| kind);
        if table.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err(row.fault(SPEEDS, "each kind once", text));
        }
        Ok(Rates::ByKind(table))
    }

    fn assumptions(&self) -> Vec<String> {
        let mut assumptions = vec![
            "`duration_s` is work: how long the job runs undisturbed at the size of `gpus`, start-up not included"
                .into(),
            "policies are told the true speeds; only `expected_s` may be wrong".to_string(),
        ];
        if self.unscaled > 0 {
            assumptions
                .push(format!("{} jobs without `scaling` run workers^0.9 times as fast as one worker", self.unscaled));
        }
        if self.short > 0 {
            assumptions.push(format!("{} jobs shorter than 1 ms last 1 ms", self.short));
        }
        if self.names_dropped {
            assumptions.push("all jobs are called `job` (names=drop)".into());
        }
        assumptions
    }
}

/// One name for all who are called alike, while there is room to remember it.
fn shared(names: &mut HashMap<String, Name>, text: &str) -> Name {
    if let Some(name) = names.get(text) {
        return name.clone();
    }
    let name: Name = text.into();
    if names.len() < MOST_SHARED {
        names.insert(text.into(), name.clone());
    }
    name
}

fn gang(row: &Row<'_>) -> Result<Gang, Error> {
    row.required(GPUS, &format!("a whole number from 0 to {MOST_WORKERS}"))?;
    let gpus = row.whole(GPUS, 0..=MOST_WORKERS)?.unwrap_or(0);
    let workers = row.whole(WORKERS, 1..=MOST_WORKERS)?.unwrap_or(gpus.max(1));
    if !gpus.is_multiple_of(workers) {
        return Err(row.fault(WORKERS, format!("a number that divides the {gpus} GPUs"), &workers.to_string()));
    }
    let gpus_per_worker = gpus / workers;
    let range = range(row, gpus, gpus_per_worker)?;
    let batch = batch(row)?;
    let scaling = match (range, batch) {
        (None, None) => Scaling::Rigid(workers),
        (Some(range), None) => Scaling::Elastic(range),
        (range, Some(batch)) => Scaling::Adaptive(range.unwrap_or(WorkerRange { min: workers, max: workers }), batch),
    };
    Ok(Gang { workers, gpus_per_worker, scaling, grain: grain(row, gpus)? })
}

/// The workers an elastic job may have; the file speaks of GPUs.
fn range(row: &Row<'_>, gpus: u32, gpus_per_worker: u32) -> Result<Option<WorkerRange>, Error> {
    let limit = |column| -> Result<Option<u32>, Error> {
        let Some(limit) = row.whole(column, 1..=MOST_WORKERS)? else { return Ok(None) };
        match gpus_per_worker {
            0 => Err(row.fault(column, "nothing for a job without GPUs", &limit.to_string())),
            each if limit.is_multiple_of(each) => Ok(Some(limit / each)),
            each => Err(row.fault(column, format!("a multiple of the {each} GPUs per worker"), &limit.to_string())),
        }
    };
    let (min, max) = (limit(MIN_GPUS)?, limit(MAX_GPUS)?);
    if min.is_none() && max.is_none() {
        return Ok(None);
    }
    let reference = gpus / gpus_per_worker;
    let range = WorkerRange { min: min.unwrap_or(reference), max: max.unwrap_or(reference) };
    if range.max < range.min {
        let least = range.min * gpus_per_worker;
        return Err(row.fault(MAX_GPUS, format!("at least {least}"), &(range.max * gpus_per_worker).to_string()));
    }
    if !(range.min..=range.max).contains(&reference) {
        let (least, most) = (range.min * gpus_per_worker, range.max * gpus_per_worker);
        let expected = format!("what the job asked for, from {least} to {most} like `min_gpus` and `max_gpus`");
        return Err(row.fault(GPUS, expected, &gpus.to_string()));
    }
    Ok(Some(range))
}

fn batch(row: &Row<'_>) -> Result<Option<BatchRange>, Error> {
    let Some(initial) = row.whole(BATCH, 1..=u32::MAX)? else {
        let stray = [MAX_BATCH, NOISE_SCALE].into_iter().find_map(|column| Some((column, row.text(column)?)));
        return match stray {
            Some((column, found)) => Err(row.fault(column, "nothing without `batch`", found)),
            None => Ok(None),
        };
    };
    row.required(NOISE_SCALE, "the gradient noise scale of a job with `batch`")?;
    let max = row.whole(MAX_BATCH, initial..=u32::MAX)?.unwrap_or(initial);
    Ok(Some(BatchRange { initial, max }))
}

fn grain(row: &Row<'_>, gpus: u32) -> Result<Grain, Error> {
    let of_none = |column| match row.text(column) {
        Some(found) if gpus == 0 => Err(row.fault(column, "nothing for a job without GPUs", found)),
        _ => Ok(()),
    };
    [SHARE, MIG, GPU_MEMORY].into_iter().try_for_each(of_none)?;
    if let Some(name) = row.text(MIG) {
        if let Some(share) = row.text(SHARE) {
            return Err(row.fault(SHARE, "nothing beside `mig`", share));
        }
        let profile = MigProfile::ALL.into_iter().find(|profile| profile.name() == name);
        let known = || MigProfile::ALL.map(MigProfile::name).join(", ");
        return profile.map(Grain::Mig).ok_or_else(|| row.fault(MIG, format!("one of {}", known()), name));
    }
    let Some(share) = row.real(SHARE, 0.001..=1.0)? else { return Ok(Grain::Whole) };
    let thousandths = (share * 1000.0).round() as u16;
    if thousandths == 1000 {
        return Ok(Grain::Whole);
    }
    row.required(GPU_MEMORY, "the device memory that goes with `share`")?;
    Ok(Grain::Share { thousandths, memory: memory(row, GPU_MEMORY, 30)? })
}

fn roles(row: &Row<'_>, gang: &Gang) -> Result<Vec<Role>, Error> {
    let slice = match gang.gpus_per_worker {
        0 => None,
        count => Some(Slice { grain: gang.grain, count, memory: memory(row, GPU_MEMORY, 30)? }),
    };
    let (millicores, memory_size) = (millicores(row, CORES)?, memory(row, MEMORY, 30)?);
    if slice.is_none() && millicores == 0 && memory_size == Bytes::ZERO {
        return Err(row.fault(GPUS, "at least 1, or `cores` above 0 for a job without GPUs", "0"));
    }
    let mut roles = vec![Role { slice, millicores, memory: memory_size, ..Role::worker() }];
    roles.extend(servers(row)?);
    Ok(roles)
}

/// Parameter servers: `2`, or `1/4` for one to every four workers.
fn servers(row: &Row<'_>) -> Result<Option<Role>, Error> {
    let (millicores, memory) = (millicores(row, SERVER_CORES)?, memory(row, SERVER_MEMORY, 30)?);
    let Some(text) = row.text(SERVERS) else { return Ok(None) };
    let several =
        text.strip_prefix("1/").map_or_else(|| text.parse().map(Count::Fixed), |n| n.parse().map(Count::OnePer));
    let count = match several {
        Ok(Count::Fixed(0)) => return Ok(None),
        Ok(count) if count != Count::OnePer(0) => count,
        _ => return Err(row.fault(SERVERS, "a number like `2`, or `1/4` for one to every four workers", text)),
    };
    if millicores == 0 && memory == Bytes::ZERO {
        let expected = "no servers, or `server_cores` or `server_memory_gb` above 0 for each of them";
        return Err(row.fault(SERVERS, expected, text));
    }
    Ok(Some(Role { name: "server".into(), count, slice: None, millicores, memory }))
}

fn ends(row: &Row<'_>, iterations: Option<u64>, epochs: Option<u64>) -> Result<Ends, Error> {
    let limit = |column, found: &str| {
        let expected = "`iterations` beside it, after which the job ends at the latest";
        iterations.ok_or_else(|| row.fault(column, expected, &format!("{found} alone")))
    };
    let stray = |column: usize, beside: usize| match row.text(column) {
        Some(found) => Err(row.fault(column, format!("nothing beside `{}`", column::ALL[beside]), found)),
        None => Ok(()),
    };
    if let Some(text) = row.text(TARGET) {
        stray(CONVERGE, TARGET)?;
        stray(EPOCHS, TARGET)?;
        let target = text.split_once('<').and_then(|(metric, value)| Some((metric.trim(), value.trim().parse().ok()?)));
        let target = target.filter(|(metric, value): &(&str, f64)| !metric.is_empty() && value.is_finite());
        let (metric, value) = target.ok_or_else(|| row.fault(TARGET, "a metric and its goal like `loss<0.5`", text))?;
        return Ok(Ends::Target { metric: metric.into(), value, at_most: limit(TARGET, text)? });
    }
    if let Some(text) = row.text(CONVERGE) {
        stray(EPOCHS, CONVERGE)?;
        let bad = || row.fault(CONVERGE, "a metric, a decline below 1 and a window like `loss:0.01:100`", text);
        let [metric, decline, window] = parts(text).ok_or_else(bad)?;
        let decline = decline.parse().ok().filter(|&decline: &f64| decline > 0.0 && decline < 1.0).ok_or_else(bad)?;
        let window = window.parse().ok().filter(|window| (1..=MOST_ITERATIONS).contains(window)).ok_or_else(bad)?;
        return Ok(Ends::Converged { metric: metric.into(), decline, window, at_most: limit(CONVERGE, text)? });
    }
    stray_without_goal(row, CURVE)?;
    stray_without_goal(row, TRUE_ITERATIONS)?;
    match (epochs, iterations) {
        (None, None) => Ok(Ends::Itself),
        (None, Some(iterations)) => Ok(Ends::Iterations(iterations)),
        (Some(epochs), Some(iterations_each)) => Ok(Ends::Epochs { epochs, iterations_each }),
        (Some(epochs), None) => {
            Err(row.fault(EPOCHS, "`iterations` of each epoch beside it", &format!("{epochs} alone")))
        }
    }
}

fn stray_without_goal(row: &Row<'_>, column: usize) -> Result<(), Error> {
    let fault = |found| Err(row.fault(column, "nothing without `target` or `converge`", found));
    row.text(column).map_or(Ok(()), fault)
}

/// Where a job with these ends really ends: as `true_iterations` says, or as its curve has it.
fn true_iterations(row: &Row<'_>, ends: &Ends) -> Result<u64, Error> {
    let (goal, metric, at_most) = match ends {
        Ends::Target { metric, at_most, .. } => (TARGET, metric, *at_most),
        Ends::Converged { metric, at_most, .. } => (CONVERGE, metric, *at_most),
        Ends::Itself | Ends::Iterations(_) | Ends::Epochs { .. } => {
            return Truth::iterations_of(ends, 1, &[]).map_err(|invalid| row.line_fault(invalid.to_string()));
        }
    };
    if let Some(iterations) = row.whole(TRUE_ITERATIONS, 1..=at_most)? {
        return Ok(iterations);
    }
    let Some(text) = row.text(CURVE) else {
        return Err(row.fault(goal, "`curve` or `true_iterations` beside it", "neither"));
    };
    let bad = || row.fault(CURVE, "a metric, floor, scale and pace like `loss:0.2:2.0:0.01`", text);
    let [name, floor, scale, pace] = parts(text).ok_or_else(bad)?;
    let figure = |text: &str| text.parse::<f64>().map_err(|_| bad());
    let curve = Curve { metric: name.into(), floor: figure(floor)?, scale: figure(scale)?, pace: figure(pace)? };
    curve.check().map_err(|Invalid { expected, found, .. }| row.fault(CURVE, expected, &found))?;
    if curve.metric != *metric {
        return Err(row.fault(CURVE, format!("the curve of `{}`", shown(metric)), text));
    }
    Truth::iterations_of(ends, 1, &[curve]).map_err(|invalid| row.line_fault(invalid.to_string()))
}

/// The parts of `a:b:c`, if there are that many and none is empty.
fn parts<const N: usize>(text: &str) -> Option<[&str; N]> {
    let parts: Vec<&str> = text.split(':').map(str::trim).filter(|part| !part.is_empty()).collect();
    parts.try_into().ok()
}

fn scaling_law(text: &str) -> Option<ScalingLaw> {
    let share = |text: &str| text.trim().parse().ok().filter(|share| (0.0..=1.0).contains(share));
    match text.split_once(':') {
        None if text == "gang" => Some(ScalingLaw::Gang),
        None if text == "linear" => Some(ScalingLaw::Linear),
        None => {
            let row = |part: &str| {
                let (workers, speed) = part.split_once('=')?;
                Some((workers.trim().parse().ok()?, speed.trim().parse().ok()?))
            };
            let law = ScalingLaw::Table(text.split('|').map(row).collect::<Option<Vec<(u32, f64)>>>()?);
            let sound = Speed { scaling: law.clone(), ..Speed::constant(1.0) }.check().is_ok();
            sound.then_some(law)
        }
        Some(("power", exponent)) => share(exponent).map(ScalingLaw::Power),
        Some(("serial", serial)) => share(serial).map(ScalingLaw::Serial),
        Some(_) => None,
    }
}

fn weight(row: &Row<'_>) -> Result<Weight, Error> {
    let weight = row.real(WEIGHT, 0.001..=1e6)?;
    Ok(weight.and_then(Weight::from_f64).unwrap_or(Weight::ONE))
}

fn recovery(row: &Row<'_>) -> Result<Recovery, Error> {
    Ok(Recovery {
        checkpoint_every: seconds(row, CHECKPOINT_EVERY)?.filter(|every| !every.is_zero()),
        checkpoint_cost: seconds(row, CHECKPOINT)?.unwrap_or(Span::ZERO),
        restart_cost: seconds(row, RESTART)?.unwrap_or(Span::ZERO),
        retries: row.whole(RETRIES, 0..=u32::MAX)?.unwrap_or(3),
    })
}

fn required_seconds(row: &Row<'_>, column: usize) -> Result<f64, Error> {
    row.required(column, &format!("a number from 0 to {LONGEST_S}"))?;
    Ok(row.real(column, 0.0..=LONGEST_S)?.unwrap_or(0.0))
}

fn seconds(row: &Row<'_>, column: usize) -> Result<Option<Span>, Error> {
    Ok(row.real(column, 0.0..=LONGEST_S)?.map(Span::from_secs_f64))
}

fn millicores(row: &Row<'_>, column: usize) -> Result<u32, Error> {
    Ok(row.real(column, 0.0..=1e6)?.map_or(0, |cores| (cores * 1000.0).round() as u32))
}

/// A quantity of memory in units of two to the power of `unit`.
fn memory(row: &Row<'_>, column: usize, unit: u32) -> Result<Bytes, Error> {
    let quantity = row.real(column, 0.0..=1e6)?.unwrap_or(0.0);
    Ok(Bytes::new((quantity * f64::from(1 << unit)).round() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Stream, load_cluster, write_csv};
    use cluster::ClaimId;

    fn read(text: &str) -> Result<Workload, Error> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jobs.csv");
        std::fs::write(&path, text).unwrap();
        let (cluster, queues, _) = load_cluster("demo").unwrap();
        read_csv(&path, &cluster, &queues)
    }

    /// The one job of a table with these columns beside the required ones, which say 0, 2 GPUs and 100 s.
    fn one(columns: &str, cells: &str) -> perf::TrueJob {
        let text = format!("submit_s,gpus,duration_s,{columns}\n0,2,100,{cells}\n");
        read(&text).unwrap_or_else(|error| panic!("{error}")).jobs.remove(0)
    }

    /// What is wrong with a table, from the line number on.
    fn fault(text: &str) -> String {
        let error = read(text).expect_err("the table is faulty").to_string();
        assert!(!error.contains('\n'), "one line: {error}");
        error.split_once("jobs.csv:").expect("the file is named").1.to_string()
    }

    fn one_fault(columns: &str, cells: &str) -> String {
        fault(&format!("submit_s,gpus,duration_s,{columns}\n0,2,100,{cells}\n"))
    }

    fn seconds_on(job: &perf::TrueJob, kind: Option<&str>, workers: u32) -> Option<f64> {
        let (cluster, ..) = load_cluster("demo").unwrap();
        let kind = kind.map(|kind| cluster.kind_named(kind).unwrap());
        let shape = cluster::Shape { kind, workers, nodes: 1 };
        let situation = perf::Situation::shaped(&job.spec, shape, None, &cluster);
        Some(job.truth.iterations as f64 / job.truth.speed.rate(&situation)?)
    }

    fn check_seconds(found: Option<f64>, expected: f64) {
        assert!(found.is_some_and(|found| (found / expected - 1.0).abs() < 1e-9), "{found:?}, not {expected}");
    }

    #[test]
    fn three_columns_are_enough() {
        let workload = read("gpus,duration_s,submit_s\n4,10.5,3.25\n1,0,0\n").unwrap();
        let job = &workload.jobs[1];
        assert_eq!((job.submitted, job.spec.scaling), (Time::from_millis(3250), Scaling::Rigid(4)));
        assert_eq!((job.truth.iterations, &*job.spec.name), (10_500, "line2"));
        assert_eq!(workload.jobs[0].truth.iterations, 1, "0 s counts as 1 ms");
        assert!(workload.assumptions.contains(&"1 jobs shorter than 1 ms last 1 ms".to_string()));
    }

    #[test]
    fn bad_rows_can_be_skipped_and_names_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jobs.csv");
        std::fs::write(&path, "submit_s,gpus,duration_s\n0,1,5\n1,one,5\n2,1\n3,1,5\n4,1,9\n").unwrap();
        let (cluster, queues, _) = load_cluster("demo").unwrap();
        let load =
            |options: &str| crate::load_workload(&format!("csv:{}?{options}", path.display()), &cluster, &queues, 1);
        let workload = load("skip_bad_rows=true&names=drop&limit=2").unwrap();
        assert!(Arc::ptr_eq(&workload.jobs[0].spec, &workload.jobs[1].spec));
        assert!(Arc::ptr_eq(&workload.jobs[0].truth, &workload.jobs[1].truth));
        let told = [
            "all jobs are called `job` (names=drop)".to_string(),
            "only the first 2 jobs of the file were read (limit)".into(),
            "2 bad rows are left out (skip_bad_rows=true)".into(),
            format!(
                "left out: {}:3: column `gpus`: expected a whole number from 0 to 1000000, found one",
                path.display()
            ),
            format!("left out: {}:4: expected 3 fields as in the header, found 2", path.display()),
        ];
        assert_eq!(workload.assumptions[2..], told);
        let error = load("retries=last").unwrap_err().to_string();
        let expected = "workload csv: unknown option `retries` (known: skip_bad_rows, limit, names)";
        assert_eq!(error, expected);
    }

    #[test]
    fn names_and_claims_are_read() {
        let job = one("name,user,queue,priority,weight,kinds", "train,ann,speech,-2,2.5,a100|t4");
        let spec = &job.spec;
        assert_eq!((&*spec.name, &*spec.user, spec.priority), ("train", "ann", -2));
        assert_eq!((spec.queue, spec.weight.as_f64()), (QueueId(2), 2.5));
        assert_eq!(spec.kinds, [GpuKind(0), GpuKind(2)]);
    }

    #[test]
    fn the_duration_speaks_of_the_size_in_gpus() {
        let job = one("min_gpus,max_gpus,scaling", "1,8,serial:0.5");
        assert_eq!(job.spec.scaling, Scaling::Elastic(WorkerRange { min: 1, max: 8 }));
        check_seconds(seconds_on(&job, None, 2), 100.0);
        check_seconds(seconds_on(&job, None, 1), 100.0 / 0.75);
    }

    #[test]
    fn an_elastic_job_asks_for_the_size_in_gpus() {
        let job = one("min_gpus,max_gpus", "1,8");
        assert_eq!((job.spec.asked_workers(), job.spec.asked), (2, Some(2)));
        let least = one("min_gpus,max_gpus", "2,8");
        assert_eq!((least.spec.asked_workers(), least.spec.asked), (2, None), "what it has at least need not be said");
        let expected =
            "2: column `gpus`: expected what the job asked for, from 4 to 8 like `min_gpus` and `max_gpus`, found 2";
        assert_eq!(one_fault("min_gpus,max_gpus", "4,8"), expected);
    }

    #[test]
    fn an_elastic_job_without_a_law_gets_the_documented_one() {
        let text = "submit_s,gpus,duration_s,max_gpus\n0,1,100,4\n";
        let workload = read(text).unwrap();
        check_seconds(seconds_on(&workload.jobs[0], None, 4), 100.0 / 4_f64.powf(0.9));
        let told = "1 jobs without `scaling` run workers^0.9 times as fast as one worker";
        assert!(workload.assumptions.iter().any(|line| line == told));
    }

    #[test]
    fn an_adaptive_job_has_a_range_of_batches() {
        let job = one("min_gpus,max_gpus,batch,max_batch,noise_scale", "1,4,64,512,1000");
        let range = WorkerRange { min: 1, max: 4 };
        assert_eq!(job.spec.scaling, Scaling::Adaptive(range, BatchRange { initial: 64, max: 512 }));
        assert_eq!(job.speed.noise_scale, Some(1000.0));
        let expected =
            "2: column `noise_scale`: expected the gradient noise scale of a job with `batch`, found nothing";
        assert_eq!(one_fault("batch,noise_scale", "64,"), expected);
    }

    #[test]
    fn speeds_by_kind_are_relative_to_the_duration() {
        let job = one("speeds", "a100=4|t4=0.5");
        check_seconds(seconds_on(&job, Some("a100"), 2), 25.0);
        check_seconds(seconds_on(&job, Some("t4"), 2), 200.0);
        assert_eq!(seconds_on(&job, Some("rtx2080ti"), 2), None);
    }

    #[test]
    fn a_share_of_a_gpu_takes_the_duration_as_well() {
        let job = one("share,gpu_memory_gb", "0.5,6");
        let grain = Grain::Share { thousandths: 500, memory: Bytes::gib(6) };
        assert_eq!(job.spec.roles[0].slice, Some(Slice { grain, count: 1, memory: Bytes::gib(6) }));
        check_seconds(seconds_on(&job, Some("t4"), 2), 100.0);
        let expected = "2: column `gpu_memory_gb`: expected the device memory that goes with `share`, found nothing";
        assert_eq!(one_fault("share,gpu_memory_gb", "0.5,"), expected);
        let job = one("mig", "3g");
        assert_eq!(job.spec.roles[0].slice.map(|slice| slice.grain), Some(Grain::Mig(MigProfile::G3)));
    }

    #[test]
    fn workers_may_have_several_gpus_and_servers_none() {
        let job = one("workers,cores,memory_gb,servers,server_cores,server_memory_gb", "1,3.5,8,1/4,2,1");
        let (worker, server) = (&job.spec.roles[0], &job.spec.roles[1]);
        assert_eq!(job.spec.scaling, Scaling::Rigid(1));
        assert_eq!((worker.slice.map(|slice| slice.count), worker.millicores), (Some(2), 3500));
        assert_eq!((server.count, server.millicores, server.memory), (Count::OnePer(4), 2000, Bytes::gib(1)));
    }

    #[test]
    fn a_job_without_gpus_needs_cores() {
        let text = |cores| format!("submit_s,gpus,duration_s,workers,cores\n0,0,60,7,{cores}\n");
        let job = read(&text("4")).unwrap().jobs.remove(0);
        assert_eq!((job.spec.scaling, job.spec.uses_gpus()), (Scaling::Rigid(7), false));
        let expected = "2: column `gpus`: expected at least 1, or `cores` above 0 for a job without GPUs, found 0";
        assert_eq!(fault(&text("")), expected);
    }

    #[test]
    fn deadlines_estimates_and_costs_are_read() {
        let columns = "deadline_s,expected_s,skew,checkpoint_every_s,checkpoint_s,restart_s,startup_s,retries";
        let job = one(columns, "500,90,0.25,60,2,30,5,1");
        assert_eq!((job.spec.deadline, job.spec.expected), (Some(Time::from_secs(500)), Some(Span::from_secs(90))));
        assert_eq!((job.spec.skew, job.truth.start_up), (Some(250), Span::from_secs(5)));
        let recovery = Recovery {
            checkpoint_every: Some(Span::from_secs(60)),
            checkpoint_cost: Span::from_secs(2),
            restart_cost: Span::from_secs(30),
            retries: 1,
        };
        assert_eq!(job.spec.recovery, recovery);
    }

    #[test]
    fn iterations_and_epochs_end_a_job() {
        let job = one("iterations,gradients_mb", "400,100");
        assert_eq!((&job.spec.ends, job.truth.iterations), (&Ends::Iterations(400), 400));
        assert_eq!(job.speed.gradients, Bytes::mib(100));
        check_seconds(seconds_on(&job, None, 2), 100.0);
        let job = one("epochs,iterations", "3,50");
        assert_eq!((&job.spec.ends, job.truth.iterations), (&Ends::Epochs { epochs: 3, iterations_each: 50 }, 150));
        let job = one("step_s,gradients_mb", "0.25,100");
        assert_eq!((&job.spec.ends, job.truth.iterations), (&Ends::Itself, 400));
    }

    #[test]
    fn a_target_or_convergence_ends_a_job_where_its_curve_says() {
        let job = one("target,curve,iterations", "loss<1.5,loss:0.5:2.0:0.01,500");
        assert_eq!(job.truth.iterations, 100);
        check_seconds(seconds_on(&job, None, 2), 100.0);
        let job = one("converge,curve,iterations", "loss:0.01:50,loss:0.5:2.0:0.01,100000");
        assert!((50..2000).contains(&job.truth.iterations), "{}", job.truth.iterations);
        let job = one("target,true_iterations,iterations", "loss<1.5,70,500");
        assert_eq!(job.truth.iterations, 70);
        let expected = "2: column `target`: expected `curve` or `true_iterations` beside it, found neither";
        assert_eq!(one_fault("target,iterations", "loss<1.5,500"), expected);
    }

    #[test]
    fn gradients_need_to_know_how_often_they_are_exchanged() {
        let expected = "2: column `gradients_mb`: expected `iterations` or `step_s` beside it, \
                        which say how often they are exchanged, found neither";
        assert_eq!(one_fault("gradients_mb", "100"), expected);
    }

    #[test]
    fn figures_that_cannot_be_are_refused_with_their_place() {
        let row = |row: &str| fault(&format!("submit_s,gpus,duration_s\n0,1,1\n{row}\n"));
        assert_eq!(row("0,-3,5"), "3: column `gpus`: expected a whole number from 0 to 1000000, found -3");
        assert_eq!(row("0,1.5,5"), "3: column `gpus`: expected a whole number from 0 to 1000000, found 1.5");
        assert_eq!(row("0,,5"), "3: column `gpus`: expected a whole number from 0 to 1000000, found nothing");
        for bad in ["NaN", "inf", "-1", "1e300", "soon"] {
            let expected = format!("expected a number from 0 to 10000000000, found {bad}");
            assert_eq!(row(&format!("0,1,{bad}")), format!("3: column `duration_s`: {expected}"));
            assert_eq!(row(&format!("{bad},1,1")), format!("3: column `submit_s`: {expected}"));
        }
    }

    #[test]
    fn unknown_kinds_queues_and_columns_list_the_known_ones() {
        let expected = "expected one of the cluster's GPU kinds (t4, rtx2080ti, a100), found a10; did you mean `a100`?";
        assert_eq!(one_fault("kinds", "a10"), format!("2: column `kinds`: {expected}"));
        let expected = "expected one of the cluster's queues (root, vision, speech, language), found sales";
        assert_eq!(one_fault("queue", "sales"), format!("2: column `queue`: {expected}"));
        let error = one_fault("prioritty", "1");
        assert!(error.starts_with("1: unknown column `prioritty`; did you mean `priority`?"), "{error}");
        let error = fault("submit_s,duration_s\n");
        assert_eq!(error, "1: missing column `gpus` (the header has submit_s,duration_s)");
    }

    #[test]
    fn dependencies_become_positions_in_order_of_submission() {
        let text = "id,submit_s,gpus,duration_s,after\nlate,20,1,1,first|middle\nfirst,0,1,1,\nmiddle,10,1,1,first\n";
        let jobs = read(text).unwrap().jobs;
        let after: Vec<_> = jobs.iter().map(|job| (&*job.spec.name, job.spec.after.clone())).collect();
        assert_eq!(after, [("first", vec![]), ("middle", vec![ClaimId(0)]), ("late", vec![ClaimId(0), ClaimId(1)])]);
    }

    #[test]
    fn faulty_dependencies_are_refused() {
        let rows = |rows: &str| fault(&format!("id,submit_s,gpus,duration_s,after\n{rows}"));
        let expected = "expected jobs that do not wait for one another, found the cycle b after c after b";
        assert_eq!(rows("a,0,1,1,b\nb,1,1,1,c\nc,2,1,1,b\n"), format!("3: column `after`: {expected}"));
        let expected = "expected jobs that do not wait for one another, found the cycle a after a";
        assert_eq!(rows("a,0,1,1,a\n"), format!("2: column `after`: {expected}"));
        let expected = "expected jobs submitted before this one, found b, submitted later, on line 3";
        assert_eq!(rows("a,0,1,1,b\nb,1,1,1,\n"), format!("2: column `after`: {expected}"));
        assert_eq!(rows("a,0,1,1,x\n"), "2: column `after`: expected ids of other jobs in this file, found x");
        assert_eq!(
            rows("a,0,1,1,\na,1,1,1,\n"),
            "3: column `id`: expected ids that differ (line 2 has the same), found a"
        );
        let error = one_fault("after", "1");
        assert_eq!(error, "1: column `after` names jobs by column `id`, which is missing");
    }

    #[test]
    fn every_column_is_documented() {
        let page = include_str!("../../../docs/workloads.md");
        let missing: Vec<_> = column::ALL.iter().filter(|name| !page.contains(&format!("\n| `{name}` |"))).collect();
        assert!(missing.is_empty(), "docs/workloads.md does not describe {missing:?}");
    }

    #[test]
    fn a_job_larger_than_the_cluster_is_left_to_the_engine() {
        assert_eq!(read("submit_s,gpus,duration_s\n0,1000,1\n").unwrap().jobs.len(), 1);
    }

    #[test]
    fn a_workload_is_the_same_after_being_written_and_read() {
        let (cluster, queues, _) = load_cluster("demo").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut columns = read(
            "submit_s,gpus,duration_s,workers,cores,servers,server_cores,share,gpu_memory_gb,mig,name\n\
             0,0,60,7,4,,,,,,\n1,4,60,2,1,1/4,2,,,,\"a, b\"\n2,1,60,,,,,0.5,6,,\n3,2,60,,,2,1,,,3g,\n",
        )
        .unwrap();
        columns.jobs.extend(read("submit_s,gpus,duration_s,min_gpus,scaling\n9,4,5,2,1=1|4=3.5\n").unwrap().jobs);
        let demo = crate::load_workload("demo", &cluster, &queues, 7).unwrap();
        for (workload, file) in [(demo, "demo.csv.gz"), (columns, "columns.csv")] {
            let path = dir.path().join(file);
            write_csv(&Stream::of(workload.clone()), &path, &cluster, &queues).unwrap();
            let again = read_csv(&path, &cluster, &queues).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(again.jobs.len(), workload.jobs.len());
            for (again, job) in again.jobs.iter().zip(&workload.jobs) {
                assert_eq!((again.submitted, &again.spec), (job.submitted, &job.spec));
                assert_eq!(again.truth.iterations, job.truth.iterations);
                assert_eq!(again.truth.start_up, job.truth.start_up);
                check_same_speed(&again.truth.speed, &job.truth.speed);
            }
        }
    }

    fn check_same_speed(again: &Speed, speed: &Speed) {
        let rates = |speed: &Speed| match &speed.rates {
            Rates::Anywhere(rate) => vec![(None, *rate)],
            Rates::ByKind(table) => table.iter().map(|&(kind, rate)| (Some(kind), rate)).collect(),
        };
        for ((kind, again), (other, rate)) in rates(again).into_iter().zip(rates(speed)) {
            assert!(kind == other && (again / rate - 1.0).abs() < 1e-9, "{again} {rate}");
        }
        let rest = |speed: &Speed| Speed { rates: Rates::Anywhere(1.0), ..speed.clone() };
        assert_eq!(rest(again), rest(speed));
    }
}
