//! Step-time models fitted to the measured tables of Sia (SOSP 2023), compared with what the authors' fitter reaches on
//! the same rows; and how long a fit of the size a job asks for takes.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use perf::Observation;

use crate::data_checks::Checks;
use crate::say;

/// Relative deviation of a loss; both searches stop early, at the same place.
const TOLERANCE: f64 = 0.001;

/// Model, kind of GPU, and the loss of the authors' fit to all rows of the table, as `pollux_sia.md` 1.6 states it.
const STATED: [(&str, &str, f64); 10] = [
    ("cifar10", "aws", 0.264312),
    ("cifar10", "rtx", 0.228583),
    ("cifar10", "dgx-ext", 0.111559),
    ("bert", "aws", 0.137930),
    ("bert", "rtx", 0.132657),
    ("bert", "dgx-ext", 0.058427),
    ("imagenet", "aws", 0.185774),
    ("imagenet", "dgx-ext", 0.163951),
    ("deepspeech2", "aws", 0.219573),
    ("yolov3", "aws", 0.322143),
];

pub(crate) fn run(data: &Path, checks: &mut Checks) -> Result<()> {
    let mut tables = Vec::new();
    for (model, kind, stated) in STATED {
        let observations = read(&data.join(format!("sia/traces/{model}/placements-{kind}.csv")))?;
        let reached = perf::loss(&perf::fit(&observations, perf::Search::AsPublished), &observations);
        checks.near(&format!("fit: {model} on {kind}, loss [millionths]"), 1e6 * reached, 1e6 * stated, TOLERANCE);
        tables.push(observations);
    }
    say(&format!("fit: {:.0} µs for ten observations, on average over the tables", micros_of_ten(&tables)));
    Ok(())
}

/// All rows of a table, which names placements, with a digit of GPUs for each node, or numbers of nodes and replicas.
pub(crate) fn read(path: &Path) -> Result<Vec<Observation>> {
    let mut reader = csv::Reader::from_path(path).with_context(|| format!("cannot read {}", path.display()))?;
    let headers = reader.headers()?.clone();
    let rows = reader.records().enumerate();
    rows.map(|(row, record)| {
        let record = record?;
        observation(&headers, &record).with_context(|| format!("cannot use row {} of {}", row + 2, path.display()))
    })
    .collect()
}

fn observation(headers: &csv::StringRecord, record: &csv::StringRecord) -> Result<Observation> {
    let field = |name: &str| {
        let column = headers.iter().position(|header| header == name);
        column.and_then(|column| record.get(column)).with_context(|| format!("column `{name}` is missing"))
    };
    let (step_secs, sync_secs): (f64, f64) = (field("step_time")?.parse()?, field("sync_time")?.parse()?);
    let (nodes, replicas) = match field("placement") {
        Ok(placement) => {
            let gpus: Option<Vec<u32>> = placement.chars().map(|digit| digit.to_digit(10)).collect();
            let gpus = gpus.with_context(|| format!("placement `{placement}` is not made of digits"))?;
            (gpus.len() as u32, gpus.iter().sum())
        }
        Err(_) => (field("num_nodes")?.parse()?, field("num_replicas")?.parse()?),
    };
    Ok(Observation {
        nodes,
        replicas,
        local_batch: field("local_bsz")?.parse()?,
        accumulation_secs: step_secs - sync_secs,
        step_secs,
    })
}

/// Ten rows spread over each table, fitted many times over.
fn micros_of_ten(tables: &[Vec<Observation>]) -> f64 {
    const TIMES: u32 = 200;
    let samples: Vec<Vec<Observation>> =
        tables.iter().map(|rows| rows.iter().step_by(rows.len() / 10).take(10).copied().collect()).collect();
    let started = Instant::now();
    for _ in 0..TIMES {
        for sample in &samples {
            std::hint::black_box(perf::fit(sample, perf::Search::AsPublished));
        }
    }
    started.elapsed().as_secs_f64() * 1e6 / f64::from(TIMES) / samples.len() as f64
}
