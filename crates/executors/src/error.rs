//! What can go wrong between an order and the operating system. What goes wrong *within* a run is no error of the
//! executor: it is part of the run's ending.

use std::io;
use std::path::{Path, PathBuf};

use cluster::Run;

#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    #[error("cannot {doing} {}", path.display())]
    File { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot understand {}", path.display())]
    Malformed { path: PathBuf, source: serde_json::Error },
    #[error("{} has format {found}, this program knows formats up to {known}: use a newer one", path.display())]
    Newer { path: PathBuf, found: u32, known: u32 },
    #[error(
        "{} was not made by this service, which gives out numbers up to {highest}: move it away",
        path.display()
    )]
    Number { path: PathBuf, highest: u32 },
    #[error(
        "checkpoint_dir: {} holds {}, which is not Moira's; name an empty directory, or a new one",
        dir.display(),
        found.display()
    )]
    CheckpointsForeign { dir: PathBuf, found: PathBuf },
    #[error(
        "checkpoint_dir: {} lies within the data directory {}; name a directory outside of it, or none",
        dir.display(),
        data_dir.display()
    )]
    CheckpointsWithin { dir: PathBuf, data_dir: PathBuf },
    #[error(
        "checkpoint_dir: {} holds checkpoints of the data directory {found}, and this is {own}: name another directory, \
         or remove {} if no service uses it any more",
        dir.display(),
        mark.display()
    )]
    CheckpointsOfOther { dir: PathBuf, found: String, own: String, mark: PathBuf },
    #[error(
        "checkpoint_dir: {} is not the directory that was used before, since there is no {}: is its file system \
         mounted? To begin with an empty one, remove {}",
        dir.display(),
        mark.display(),
        note.display()
    )]
    CheckpointsGone { dir: PathBuf, mark: PathBuf, note: PathBuf },
    #[error(
        "checkpoint_dir: jobs {jobs} have not ended and keep their checkpoints in {}, but now it is {}: name the old \
         directory until they have ended; or, if none of them runs, move what is there (JOB and JOB.json) to the new one",
        before.display(),
        now.display()
    )]
    CheckpointsElsewhere { before: PathBuf, now: PathBuf, jobs: String },
    #[error("cannot start the supervisor of run {run}")]
    Supervisor { run: Run, source: io::Error },
    #[error("cannot wake the supervisor of run {run}")]
    Wake { run: Run, source: io::Error },
    #[error("cannot launch run {run}: {reason}")]
    Order { run: Run, reason: String },
    #[error("its standard input is not complete: {reason}")]
    Input { reason: String },
    #[error("cannot resize run {run}: {reason}")]
    Resize { run: Run, reason: String },
    #[error("cannot settle run {run}: it has not ended")]
    NotEnded { run: Run },
    #[error("cannot {doing}")]
    System { doing: &'static str, source: io::Error },
    #[error(
        "GPU {device} is used by another service, process {pid} with the data directory {}",
        data_dir.display()
    )]
    DeviceInUse { device: String, pid: i32, data_dir: PathBuf },
    #[error("cannot limit cpu time: {reason}")]
    CpuLimit { reason: String },
}

impl ExecutorError {
    /// For `map_err` on an operation on one file.
    pub(crate) fn file(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ExecutorError {
        let path = path.to_path_buf();
        move |source| ExecutorError::File { doing, path, source }
    }

    pub(crate) fn system<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> ExecutorError {
        move |source| ExecutorError::System { doing, source: source.into() }
    }
}
