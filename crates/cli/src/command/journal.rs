//! The journal of a service: verified, written out, copied, salvaged.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::Subcommand;
use serde_json::Value;

use crate::command::serve::DataDir;
use crate::command::service;
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
    /// Copy the journal, its archives and the configuration while the service runs
    Backup {
        #[command(flatten)]
        data_dir: DataDir,
        /// A new directory. To restore, see the guide of the service
        to: PathBuf,
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
            JournalCommand::Backup { data_dir, to } => {
                existing(&data_dir)?;
                backup(&data_dir.path()?, &to)
            }
            JournalCommand::Salvage { data_dir, to } => salvage(&existing(&data_dir)?, &to),
        }
    }
}

fn existing(data_dir: &DataDir) -> Result<PathBuf, Failure> {
    let path = server::journal_path(&data_dir.path()?);
    if path.exists() { Ok(path) } else { Err(Failure::new(anyhow!("there is no journal at {}", path.display()))) }
}

/// Where the record begins, if not with the first entry.
pub(super) fn beginning(released: u64) -> Option<String> {
    let first = released + 1;
    let why = "the archives before it were removed by retention";
    (released > 0).then(|| format!("the record begins with entry {first}: {why}"))
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
    if let Some(begins) = beginning(verified.released) {
        render::line(&begins)?;
    }
    let mut wrong = what_is_wrong(&verified);
    if wrong.is_empty() {
        wrong.extend(foreign_entries(path, verified.identity)?);
    }
    for line in &wrong {
        render::line(line)?;
    }
    match verified.fault {
        None if wrong.is_empty() => render::line("it is whole"),
        None => Err(Failure::new(anyhow!("it is not whole: {}", wrong.join("; ")))),
        Some(fault) => {
            let last_good = verified.last_good.unwrap_or(0);
            Err(Failure::new(anyhow!(
                "{fault}; the last good entry is {last_good}: `moira journal salvage` writes a journal up to there"
            )))
        }
    }
}

/// Everything that is missing or damaged but for the journal's own file, each in a sentence.
fn what_is_wrong(verified: &journal::Verified) -> Vec<String> {
    let lost = verified.lost.iter().map(|lost| {
        format!("entries {} to {} were lost: they had been acknowledged and are not there", lost.from, lost.to)
    });
    let head = verified.head_missing.then(|| {
        "the file that says how far the journal had come is missing: a lost tail would not be noticed".to_string()
    });
    let head_of = verified.head_of.map(|other| format!("the head file belongs to another data directory, {other}"));
    let archives = verified.archives.iter().filter_map(|archive| {
        let path = archive.path.display();
        match &archive.state {
            journal::ArchiveState::Whole => None,
            journal::ArchiveState::Missing => Some(format!("archive {path} is missing")),
            journal::ArchiveState::Damaged(what) => Some(format!("archive {path} is damaged: {what}")),
        }
    });
    lost.chain(head).chain(head_of).chain(archives).collect()
}

/// Entries say once to which data directory they belong.
fn foreign_entries(path: &Path, own: Option<journal::Identity>) -> Result<Option<String>, Failure> {
    let mut named = Named::default();
    journal::export(path, &mut named).map_err(Failure::new)?;
    let own = own.map(|own| own.to_string());
    // In a copy the entries before it became one name the directory it was copied from.
    let mut copied_from = own.as_deref();
    let foreign = named.identities.iter().rev().find(|named| {
        let is_foreign = Some(named.identity.as_str()) != copied_from;
        copied_from = named.copy_of.as_deref().or(copied_from);
        is_foreign
    });
    Ok(foreign.map(|named| format!("entry {} belongs to another data directory, {}", named.seq, named.identity)))
}

/// Notes which data directories the entries written into it name.
#[derive(Default)]
struct Named {
    line: Vec<u8>,
    identities: Vec<NamedBy>,
}

/// An entry that names a data directory.
struct NamedBy {
    seq: u64,
    identity: String,
    copy_of: Option<String>,
}

impl Write for Named {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                let is_of_interest = self.line.windows(12).any(|word| word == b"\"Identified\"");
                if is_of_interest {
                    let entry: Value = serde_json::from_slice(&self.line)?;
                    let named = &entry["fact"]["Identified"];
                    if let Some(identity) = named["identity"].as_str().map(String::from) {
                        let seq = entry["seq"].as_u64().unwrap_or(0);
                        let copy_of = named["copy_of"].as_str().map(String::from);
                        self.identities.push(NamedBy { seq, identity, copy_of });
                    }
                }
                self.line.clear();
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The whole journal and the configuration, as they are at one moment.
fn backup(data_dir: &Path, to: &Path) -> Result<(), Failure> {
    let from = server::journal_path(data_dir);
    make_empty(to)?;
    let copied = journal::backup(&from, &server::journal_path(to)).map_err(Failure::new)?;
    let config = data_dir.join("moira.toml");
    if config.exists() {
        std::fs::copy(&config, to.join("moira.toml")).with_context(|| format!("cannot copy {}", config.display()))?;
    }
    render::line(&format!("{}: everything up to entry {}", to.display(), copied.last))?;
    beginning(copied.released).map_or(Ok(()), |begins| render::line(&begins))
}

/// A directory for the copy alone: what was there before could be taken for part of it.
fn make_empty(to: &Path) -> Result<(), Failure> {
    let making = || format!("cannot make {}", to.display());
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(to).with_context(making)?;
    let is_empty = to.read_dir().with_context(making)?.next().is_none();
    if is_empty { Ok(()) } else { Err(Failure::new(anyhow!("{} is not empty: name a new directory", to.display()))) }
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
        let mut simulated = Simulated { out: &mut out, line: Vec::new(), begins: true };
        journal::export(path, &mut simulated)
    };
    let exported = exported.map_err(of_export)?;
    if let Some(begins) = beginning(exported.released) {
        service::tell(&begins);
    }
    out.flush().map_err(render::of_output)
}

/// Whoever reads the history may stop reading.
fn of_export(error: journal::JournalError) -> Failure {
    let error = anyhow::Error::new(error);
    let mut kinds = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>().map(io::Error::kind));
    let is_unread = kinds.any(|kind| kind == io::ErrorKind::BrokenPipe);
    if is_unread { Failure::silent(0) } else { Failure::new(error) }
}

/// Passes on what the simulator understands of the entries written into it, in its own form.
struct Simulated<W> {
    out: W,
    line: Vec<u8>,
    /// Whether nothing was written into it yet.
    begins: bool,
}

impl<W: Write> Write for Simulated<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                let entry: Value = serde_json::from_slice(&self.line)?;
                self.line.clear();
                let seq = entry["seq"].as_u64().unwrap_or(0);
                if std::mem::replace(&mut self.begins, false) && seq > 1 {
                    // A history without its beginning cannot be re-run, and whoever tries is told why.
                    writeln!(self.out, "{}", serde_json::json!({ "begins_with_entry": seq }))?;
                }
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
