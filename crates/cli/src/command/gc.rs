//! Removes what is no longer to be kept. The service does the same by itself, checkpoints apart; this is for a look, and
//! for when no service runs.

use std::path::PathBuf;

use api::Duration;
use clap::Args;
use serde::Serialize;
use server::Clearing;

use super::serve::{self, DataDir};
use super::service::{self, Shape};
use crate::failure::Failure;
use crate::render;

#[derive(Debug, Args)]
pub(crate) struct Gc {
    #[command(flatten)]
    data_dir: DataDir,
    /// A TOML file; `moira.toml` in the data directory if there is one
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Only say what would be removed
    #[arg(long)]
    dry_run: bool,
    /// Remove checkpoints too, of jobs that have ended, longer ago than this if it is said
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, default_missing_value = "0s")]
    checkpoints: Option<Duration>,
    #[arg(short, long, value_enum, default_value_t)]
    output: Shape,
}

/// What goes, as it is printed.
#[derive(Debug, Serialize)]
struct Garbage {
    dry_run: bool,
    items: Vec<Item>,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct Item {
    /// `job`, `run`, `archive` or `checkpoints`.
    kind: &'static str,
    name: String,
    /// What it takes on the disk. A job takes memory.
    bytes: u64,
}

impl Gc {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let data_dir = self.data_dir.path()?;
        let (config, _) = serve::configuration(&data_dir, self.config.as_deref())?;
        let checkpoints_after = self.checkpoints.map(Duration::span);
        let clearing = Clearing::look(&data_dir, &config.retention, checkpoints_after).map_err(Failure::new)?;
        if !self.dry_run && !clearing.remove(&config.retention).map_err(Failure::new)? {
            service::tell("the service forgets jobs by itself, as long as it runs");
        }
        let items = items(&clearing);
        let bytes = items.iter().map(|item| item.bytes).sum();
        print(Garbage { dry_run: self.dry_run, items, bytes }, self.output)
    }
}

fn items(clearing: &Clearing) -> Vec<Item> {
    let jobs = clearing.jobs.iter().map(|job| Item { kind: "job", name: job.to_string(), bytes: 0 });
    let runs = clearing.runs.iter().map(|run| {
        let name = format!("done/{}.{}", run.run.claim, run.run.attempt);
        Item { kind: "run", name, bytes: run.bytes }
    });
    let archives = clearing.archives.iter().map(|archive| {
        let name = archive.path.file_name().unwrap_or_default().to_string_lossy();
        Item { kind: "archive", name: format!("archive/{name}"), bytes: archive.bytes }
    });
    let checkpoints = clearing.checkpoints.iter().map(|checkpoints| {
        let name = checkpoints.path.display().to_string();
        Item { kind: "checkpoints", name, bytes: checkpoints.bytes }
    });
    jobs.chain(runs).chain(archives).chain(checkpoints).collect()
}

fn print(garbage: Garbage, output: Shape) -> Result<(), Failure> {
    match output {
        Shape::Json => service::json(&garbage),
        Shape::Name => garbage.items.iter().try_for_each(|item| render::line(&item.name)),
        Shape::Table => {
            let count = |kind: &str| garbage.items.iter().filter(|item| item.kind == kind).count();
            let counts = ["job", "run", "archive", "checkpoints"].map(|kind| count(kind).to_string());
            let [jobs, runs, archives, checkpoints] = counts;
            let (words, all) = (if garbage.dry_run { "would go" } else { "removed" }, size(garbage.bytes));
            if !garbage.items.is_empty() {
                let row = |item: &Item| {
                    let size = if item.kind == "job" { "-".into() } else { size(item.bytes) };
                    vec![item.kind.into(), item.name.clone(), size]
                };
                render::table(&["KIND", "NAME", "SIZE"], garbage.items.iter().map(row))?;
            }
            render::line(&format!(
                "{words}: {jobs} jobs, {runs} runs, {archives} archives, {checkpoints} checkpoints; {all}"
            ))
        }
    }
}

/// A number of bytes in its largest unit.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let power = (bytes.ilog2() / 10).min(4);
    format!("{:.1} {}", bytes as f64 / 1024_f64.powi(power as i32), UNITS[power as usize - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shown_in_their_largest_unit() {
        let sizes = [0, 1023, 1024, 1536 << 10, 10 << 30, 1 << 52].map(size);
        assert_eq!(sizes, ["0 B", "1023 B", "1.0 KiB", "1.5 MiB", "10.0 GiB", "4096.0 TiB"]);
    }
}
