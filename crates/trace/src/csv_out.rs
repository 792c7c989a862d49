//! Writes a workload as the table that `csv.rs` reads, with those columns that some job has something to say in.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use cluster::{Bytes, Cluster, Count, Ends, Grain, QueueId, QueueTree, Recovery, Scaling, Time, Weight};
use flate2::{Compression, write::GzEncoder};
use perf::{Rates, ScalingLaw, TrueJob};

use crate::csv::{DEFAULT_STEP_S, column, column::*};
use crate::error::Error;
use crate::stream::Stream;

/// Saves a workload; compressed if the name ends in `.gz`. Reading it for the same cluster gives the same jobs, their
/// rates to within rounding. Durations of elastic jobs speak of the size they ask for and, where speeds differ by kind of
/// GPU, of the cluster's average GPU.
///
/// The table is written beside its place and moved there once it is whole: the file may be the one that the jobs come
/// from, and a failure leaves nothing behind.
pub fn write_csv(stream: &Stream<'_>, path: &Path, cluster: &Cluster, queues: &QueueTree) -> Result<(), Error> {
    let failed = |source| Error::Write { file: path.display().to_string(), source };
    // A pipe or a device cannot be replaced.
    let beside = match fs::metadata(path) {
        Ok(found) if !found.is_file() => None,
        _ => {
            let mut name = path.as_os_str().to_owned();
            name.push(".part");
            Some(PathBuf::from(name))
        }
    };
    let place = beside.as_deref().unwrap_or(path);
    let written = write_to(stream, path, place, cluster, queues);
    let Some(beside) = &beside else { return written };
    let moved = written.and_then(|()| fs::rename(beside, path).map_err(failed));
    if moved.is_err() {
        // What is left of it is of no use; if it cannot be removed either, the first trouble is the one to tell.
        let _ = fs::remove_file(beside);
    }
    moved
}

fn write_to(
    stream: &Stream<'_>,
    path: &Path,
    place: &Path,
    cluster: &Cluster,
    queues: &QueueTree,
) -> Result<(), Error> {
    let failed = |source| Error::Write { file: path.display().to_string(), source };
    let mut file = BufWriter::new(File::create(place).map_err(failed)?);
    let print = |out: &mut dyn Write| print_jobs(stream, out, cluster, queues, &failed);
    if path.extension().is_some_and(|extension| extension == "gz") {
        let mut packer = GzEncoder::new(file, Compression::default());
        print(&mut packer)?;
        packer.finish().and_then(|mut file| file.flush()).map_err(failed)
    } else {
        print(&mut file)?;
        file.flush().map_err(failed)
    }
}

/// The same table to standard output, or whatever else takes text.
pub fn print_csv(stream: &Stream<'_>, out: &mut dyn Write, cluster: &Cluster, queues: &QueueTree) -> Result<(), Error> {
    print_jobs(stream, out, cluster, queues, &|source| Error::Write { file: "the table".into(), source })
}

fn print_jobs(
    stream: &Stream<'_>,
    out: &mut dyn Write,
    cluster: &Cluster,
    queues: &QueueTree,
    failed: &dyn Fn(io::Error) -> Error,
) -> Result<(), Error> {
    // Two passes rather than all cells of all jobs in memory.
    let mut used = [false; column::ALL.len()];
    for (position, job) in stream.jobs()?.enumerate() {
        let cells = cells(position, &job?, cluster, queues);
        used.iter_mut().zip(&cells).for_each(|(used, cell)| *used |= !cell.is_empty());
    }
    used[..3].fill(true);
    let mut table = csv::Writer::from_writer(out);
    let refused = |error: csv::Error| failed(cause(error));
    let mut line = |cells: &[String]| {
        let cells = cells.iter().zip(used).filter(|(_, used)| *used);
        table.write_record(cells.map(|(cell, _)| on_one_line(cell).into_owned()))
    };
    line(&column::ALL.iter().copied().map(String::from).collect::<Vec<_>>()).map_err(refused)?;
    for (position, job) in stream.jobs()?.enumerate() {
        line(&cells(position, &job?, cluster, queues)).map_err(refused)?;
    }
    table.flush().map_err(failed)
}

/// What the output itself answered: by that it is known whether a reader has only gone.
fn cause(error: csv::Error) -> io::Error {
    if !error.is_io_error() {
        return io::Error::from(error);
    }
    match error.into_kind() {
        csv::ErrorKind::Io(source) => source,
        other => io::Error::other(format!("{other:?}")),
    }
}

/// Line ends would end the row, and zero bytes the reading; names do not need them.
fn on_one_line(cell: &str) -> Cow<'_, str> {
    match cell.contains(['\n', '\r', '\0']) {
        true => cell.replace(['\n', '\r', '\0'], " ").into(),
        false => cell.into(),
    }
}

fn cells(position: usize, job: &TrueJob, cluster: &Cluster, queues: &QueueTree) -> Vec<String> {
    let mut cells = vec![String::new(); column::ALL.len()];
    let spec = &job.spec;
    cells[SUBMIT] = job.submitted.as_secs_f64().to_string();
    cells[ID] = position.to_string();
    cells[NAME] = spec.name.to_string();
    cells[USER] = spec.user.to_string();
    cells[QUEUE] = if spec.queue == QueueId::ROOT { String::new() } else { queues.queue(spec.queue).name.to_string() };
    cells[PRIORITY] = unless(spec.priority, 0);
    cells[WEIGHT] = if spec.weight == Weight::ONE { String::new() } else { spec.weight.as_f64().to_string() };
    cells[KINDS] = joined(spec.kinds.iter().map(|&kind| cluster.kind(kind).name.to_string()));
    cells[DEADLINE] = spec.deadline.map_or_else(String::new, |deadline| after(deadline, job.submitted));
    cells[AFTER] = joined(spec.after.iter().map(ToString::to_string));
    cells[EXPECTED] = spec.expected.map_or_else(String::new, |span| span.as_secs_f64().to_string());
    cells[SKEW] = spec.skew.map_or_else(String::new, |skew| (f64::from(skew) / 1000.0).to_string());
    cells[STARTUP] = unless(job.truth.start_up.as_secs_f64(), 0.0);
    fill_roles(&mut cells, job);
    fill_recovery(&mut cells, spec.recovery);
    fill_ends(&mut cells, job);
    fill_speed(&mut cells, job, cluster);
    cells
}

fn fill_roles(cells: &mut [String], job: &TrueJob) {
    let spec = &job.spec;
    let worker = &spec.roles[0];
    let (workers, each) = (spec.asked_workers(), worker.slice.map_or(0, |slice| slice.count));
    cells[GPUS] = (workers * each).to_string();
    cells[WORKERS] = if each == 1 || (each == 0 && workers == 1) { String::new() } else { workers.to_string() };
    cells[CORES] = unless(f64::from(worker.millicores) / 1000.0, 0.0);
    cells[MEMORY] = gib(worker.memory);
    if let Some(slice) = worker.slice {
        cells[GPU_MEMORY] = gib(slice.memory);
        match slice.grain {
            Grain::Whole => {}
            Grain::Mig(profile) => cells[MIG] = profile.name().into(),
            Grain::Share { thousandths, .. } => {
                cells[SHARE] = (f64::from(thousandths) / 1000.0).to_string();
                // A part of a GPU says its memory even if it is none.
                cells[GPU_MEMORY] = slice.memory.as_gib().to_string();
            }
        }
    }
    if let Some(server) = spec.roles.get(1) {
        cells[SERVERS] = match server.count {
            Count::Fixed(servers) => servers.to_string(),
            Count::OnePer(workers) => format!("1/{workers}"),
            Count::Scaled => "1/1".into(),
        };
        cells[SERVER_CORES] = unless(f64::from(server.millicores) / 1000.0, 0.0);
        cells[SERVER_MEMORY] = gib(server.memory);
    }
    if let Scaling::Elastic(range) | Scaling::Adaptive(range, _) = spec.scaling {
        cells[MIN_GPUS] = (range.min * each).to_string();
        cells[MAX_GPUS] = (range.max * each).to_string();
    }
    if let Some(batch) = spec.scaling.batch() {
        cells[BATCH] = batch.initial.to_string();
        cells[MAX_BATCH] = batch.max.to_string();
    }
}

fn fill_recovery(cells: &mut [String], recovery: Recovery) {
    cells[CHECKPOINT_EVERY] = recovery.checkpoint_every.map_or_else(String::new, |span| span.as_secs_f64().to_string());
    cells[CHECKPOINT] = unless(recovery.checkpoint_cost.as_secs_f64(), 0.0);
    cells[RESTART] = unless(recovery.restart_cost.as_secs_f64(), 0.0);
    cells[RETRIES] = unless(recovery.retries, 3);
}

fn fill_ends(cells: &mut [String], job: &TrueJob) {
    match &job.spec.ends {
        Ends::Itself => {}
        Ends::Iterations(iterations) => cells[ITERATIONS] = iterations.to_string(),
        Ends::Epochs { epochs, iterations_each } => {
            cells[EPOCHS] = epochs.to_string();
            cells[ITERATIONS] = iterations_each.to_string();
        }
        Ends::Target { metric, value, at_most } => {
            cells[TARGET] = format!("{metric}<{value}");
            cells[ITERATIONS] = at_most.to_string();
            cells[TRUE_ITERATIONS] = job.truth.iterations.to_string();
        }
        Ends::Converged { metric, decline, window, at_most } => {
            cells[CONVERGE] = format!("{metric}:{decline}:{window}");
            cells[ITERATIONS] = at_most.to_string();
            cells[TRUE_ITERATIONS] = job.truth.iterations.to_string();
        }
    }
}

fn fill_speed(cells: &mut [String], job: &TrueJob, cluster: &Cluster) {
    let (spec, speed) = (&job.spec, &job.truth.speed);
    let reference = match &speed.rates {
        Rates::Anywhere(rate) => *rate,
        Rates::ByKind(table) => {
            let mean = crate::synthetic::mean_rate(table, cluster);
            cells[SPEEDS] =
                joined(table.iter().map(|&(kind, rate)| format!("{}={}", cluster.kind(kind).name, rate / mean)));
            mean
        }
    };
    let share = spec.roles[0].slice.map_or(1.0, |slice| slice.grain.share().as_f64());
    let per_second = reference * speed.scaling.speedup(spec.asked_workers()) * share;
    cells[DURATION] = (job.truth.iterations as f64 / per_second).to_string();
    let step = 1.0 / per_second;
    if spec.ends == Ends::Itself && (step / DEFAULT_STEP_S - 1.0).abs() > 1e-9 {
        cells[STEP] = step.to_string();
    }
    cells[SCALING] = match &speed.scaling {
        ScalingLaw::Gang if matches!(spec.scaling, Scaling::Rigid(_)) => String::new(),
        ScalingLaw::Gang => "gang".into(),
        ScalingLaw::Linear => "linear".into(),
        ScalingLaw::Power(exponent) => format!("power:{exponent}"),
        ScalingLaw::Serial(serial) => format!("serial:{serial}"),
        ScalingLaw::Table(rows) => joined(rows.iter().map(|(workers, rate)| format!("{workers}={rate}"))),
    };
    cells[GRADIENTS] = unless(speed.gradients.get() as f64 / f64::from(1 << 20), 0.0);
    if let (Some(noise), Some(_)) = (speed.noise_scale, spec.scaling.batch()) {
        cells[NOISE_SCALE] = noise.to_string();
    }
}

fn unless<T: PartialEq + ToString>(value: T, default: T) -> String {
    if value == default { String::new() } else { value.to_string() }
}

fn gib(memory: Bytes) -> String {
    unless(memory.as_gib(), 0.0)
}

fn after(deadline: Time, submitted: Time) -> String {
    deadline.since(submitted).as_secs_f64().to_string()
}

fn joined(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join("|")
}
