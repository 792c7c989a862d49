//! The journal of a service that is not running: verified, written out, salvaged.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::Subcommand;
use serde_json::Value;

use crate::command::serve::DataDir;
use crate::failure::Failure;
use crate::render;

#[derive(Debug, Subcommand)]
pub(crate) enum JournalCommand {
    /// Follow the chain of checksums from end to end and say what is whole
    Verify {
        #[command(flatten)]
        data_dir: DataDir,
    },
    /// Write the history as lines of JSON: a workload for `moira sim rerun`
    Export {
        #[command(flatten)]
        data_dir: DataDir,
        /// Where to; the standard output if nothing is said
        file: Option<PathBuf>,
        /// Everything on record, with its numbers, and not only what the simulator understands
        #[arg(long)]
        all: bool,
    },
    /// Write a new journal with everything that is whole in a damaged one, which stays as it is
    Salvage {
        #[command(flatten)]
        data_dir: DataDir,
        /// The new journal, e.g. NEW-DATA-DIR/journal.db
        to: PathBuf,
    },
}

impl JournalCommand {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self {
            JournalCommand::Verify { data_dir } => verify(&existing(&data_dir)?),
            JournalCommand::Export { data_dir, file, all } => export(&existing(&data_dir)?, file.as_deref(), all),
            JournalCommand::Salvage { data_dir, to } => salvage(&existing(&data_dir)?, &to),
        }
    }
}

fn existing(data_dir: &DataDir) -> Result<PathBuf, Failure> {
    let path = server::journal_path(&data_dir.path()?);
    if path.exists() { Ok(path) } else { Err(Failure::new(anyhow!("there is no journal at {}", path.display()))) }
}

fn verify(path: &Path) -> Result<(), Failure> {
    let verified = journal::verify(path).map_err(Failure::new)?;
    let snapshot = verified.snapshot.map_or(String::new(), |upto| format!(", after a snapshot of entries 1 to {upto}"));
    render::line(&format!(
        "{}: {} entries, the last is {}{snapshot}",
        path.display(),
        verified.entries,
        verified.last
    ))?;
    for lost in &verified.lost {
        render::line(&format!(
            "entries {} to {} were lost: they had been acknowledged and are not there",
            lost.from, lost.to
        ))?;
    }
    if verified.head_missing {
        render::line("the file that says how far the journal had come is missing: a lost tail would not be noticed")?;
    }
    for archive in verified.archives.iter().filter(|archive| archive.state != journal::ArchiveState::Whole) {
        render::line(&format!("archive {}: {:?}", archive.path.display(), archive.state))?;
    }
    match verified.fault {
        None => render::line("it is whole"),
        Some(fault) => {
            let last_good = verified.last_good.unwrap_or(0);
            Err(Failure::new(anyhow!(
                "{fault}; the last good entry is {last_good}: `moira journal salvage` writes a journal up to there"
            )))
        }
    }
}

fn export(path: &Path, file: Option<&Path>, all: bool) -> Result<(), Failure> {
    let mut out: Box<dyn Write> = match file {
        Some(file) => Box::new(BufWriter::new(
            File::create_new(file).with_context(|| format!("cannot write {}", file.display()))?,
        )),
        None => Box::new(BufWriter::new(io::stdout())),
    };
    let exported = if all {
        journal::export(path, &mut out)
    } else {
        let mut simulated = Simulated { out: &mut out, line: Vec::new() };
        journal::export(path, &mut simulated)
    };
    exported.map_err(Failure::new)?;
    out.flush().context("cannot write the history")?;
    Ok(())
}

/// Passes on what the simulator understands of the entries written into it, in its own form.
struct Simulated<W> {
    out: W,
    line: Vec<u8>,
}

impl<W: Write> Write for Simulated<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                let entry: Value = serde_json::from_slice(&self.line)?;
                self.line.clear();
                if let Some(event) = entry["fact"].get("Core") {
                    let record = serde_json::json!({ "at": entry["at"], "event": event });
                    writeln!(self.out, "{record}")?;
                }
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn salvage(path: &Path, to: &Path) -> Result<(), Failure> {
    let salvaged = journal::salvage(path, to).map_err(Failure::new)?;
    let last = salvaged.last;
    render::line(&format!("{}: {} entries, the last is {last}", to.display(), salvaged.entries))?;
    if let Some(lost) = salvaged.lost {
        render::line(&format!("entries {} to {} could not be saved", lost.from, lost.to))?;
    }
    Ok(())
}
