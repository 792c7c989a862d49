//! What can keep the service from starting or going on.

use std::io;
use std::path::PathBuf;

use cluster::Invalid;
use executors::ExecutorError;
use journal::{Identity, JournalError};

#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("{what} {}", path.display())]
    File { what: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "{} cannot be the data directory: it holds {}, which is not Moira's; name an empty directory, or a new one",
        path.display(),
        found.display()
    )]
    Foreign { path: PathBuf, found: PathBuf },
    #[error("{}: {message}", path.display())]
    Config { path: PathBuf, message: String },
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(
        "something was lost from {}: {what}. Restore a backup, or go on without it by `moira serve --accept-loss`: jobs \
         that only the lost part knew are gone, what still runs of them is ended, and new jobs get numbers above all \
         that were seen. `moira journal verify` tells more",
        data_dir.display()
    )]
    Loss { data_dir: PathBuf, what: String },
    #[error(
        "{} is a copy of another data directory, and both say that they are the same. If the other one is still used, start \
         this one by `moira serve --accept-copy`: it gets an identity of its own, and the runs and checkpoints of the other \
         are moved aside in it. If it was moved here or restored and the other one is not used any more, remove {} and \
         start it again",
        data_dir.display(),
        note.display()
    )]
    Copy { data_dir: PathBuf, note: PathBuf },
    #[error("journal {} has facts of format {found}, this program knows formats up to {known}: use a newer one", path.display())]
    NewerFacts { path: PathBuf, found: u32, known: u32 },
    #[error("the entries of journal {} are of another data directory: they name {found}, the journal is {own}", path.display())]
    ForeignEntries { path: PathBuf, found: Identity, own: Identity },
    #[error(transparent)]
    Executor(#[from] ExecutorError),
    #[error("{count} directories could not be removed, and everything else was; of the first one")]
    NotRemoved { count: usize, source: ExecutorError },
    #[error("the machine cannot be described: {0}")]
    Machine(#[from] Invalid),
    #[error("entry {seq} of the journal cannot be understood: {message}; it may be of a newer version")]
    Entry { seq: u64, message: String },
    #[error("the snapshot of the journal cannot be understood: {message}; it may be of another version")]
    Snapshot { message: String },
    #[error("node `{node}` had another kind of accelerator before: give the node another name")]
    KindChanged { node: String },
    #[error("the queues of the configuration cannot be applied: {message}")]
    Queues { message: String },
    #[error("the policy of the journal, `{policy}`, cannot be used: {message}")]
    Policy { policy: String, message: String },
    #[error("cannot listen on {address}: {message}")]
    Listen { address: String, message: String },
    #[error("the service's own thread ended: {0}")]
    Thread(String),
}

impl ServerError {
    pub(crate) fn file(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> ServerError {
        let path = path.into();
        move |source| ServerError::File { what, path, source }
    }
}
