//! The real worlds. For now there is one: this machine.
//!
//! An executor carries out orders and reports what it sees; it decides nothing. Every run is held by a supervisor, a
//! process of its own, so that the service may restart, be upgraded or crash without harm to any job. All that the two
//! know of each other is in files of the run's directory, and everything may be said or done twice.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use cluster::{Bytes, ClaimId, NodeId, Run, Span, Time};
use perf::Tuning;
use serde::{Deserialize, Serialize};

mod assignment;
mod bell;
mod cgroup;
mod checkpoints;
mod damaged;
mod descriptors;
mod device_locks;
mod duty;
mod ending;
mod enforcement;
mod environment;
mod error;
mod gang;
mod input;
mod kill;
mod local;
mod log_bell;
mod log_pieces;
mod logs;
mod lost;
mod machine;
mod news;
mod notifier;
mod notify;
mod nvidia;
mod old_checkpoints;
mod origin;
mod ports;
#[cfg(test)]
mod power_cut;
mod private;
mod process;
mod progress;
mod remove;
mod roster;
mod run_dir;
mod settled;
mod shell;
mod signs;
mod stopwatch;
mod supervisor;
mod terminal;
mod theirs;
mod usage;
mod watch;
mod worker;
mod workers;

pub use checkpoints::{Checkpoints, Keeper};
pub use ending::{Ending, Exit, Usage};
pub use enforcement::{CpuLimit, Enforcement};
pub use error::ExecutorError;
pub use input::{Input, InputError, MOST_INPUT};
pub use local::{Local, probe_devices};
pub use log_bell::{LogBell, LogFollower};
pub use log_pieces::{LogPiece, log_pieces};
pub use machine::{AcceleratorDraft, Machine};
pub use notify::{Delivery, NotifyOrder, Post, Receiver, Unsent, notify_as_user, watch_over_notification};
pub use old_checkpoints::OldCheckpoints;
pub use origin::{KnownJob, Origin, Seen, set_aside_foreign};
pub use private::{PRIVATE_DIR, PRIVATE_FILE, keep_files_private, make_dir, passage, tighten, umask_at_start};
pub use process::boot_id;
pub use settled::{Settled, SettledRun};
pub use shell::{MOST_SHELLS, Shell, ShellEnd, ShellError, ShellOrder};
pub use stopwatch::since_boot;
pub use supervisor::supervise;
pub use terminal::Window;
pub use worker::become_worker;
pub use workers::workers_of;

/// What carries out the engine's commands. All methods return at once; what comes of them arrives as [`News`].
pub trait Executor: Send {
    /// Starts a run. The same run twice is harmless, also after it ended.
    fn launch(&mut self, order: &LaunchOrder) -> Result<(), ExecutorError>;
    /// Asks a run to end, and kills it once `grace` is over. A second, shorter grace shortens. Of an unknown run:
    /// harmless.
    fn stop(&mut self, run: Run, grace: Span) -> Result<(), ExecutorError>;
    /// Tells a run its new batch size, without a restart.
    fn retune(&mut self, run: Run, tuning: Tuning) -> Result<(), ExecutorError>;
    /// Goes on with other workers, without a restart: those whose devices stay are kept. What comes of it is news: it is
    /// returned if it is known already, since the same order was given before the service restarted, else it is told
    /// later. A run that ends meanwhile only tells its end. An error means that the order was certainly not given.
    fn resize(&mut self, order: &ResizeOrder) -> Result<Option<News>, ExecutorError>;
    /// What was told of the run's progress up to here is on record: after a restart telling goes on from there.
    fn bookmark(&mut self, run: Run, upto: u64) -> Result<(), ExecutorError>;
    /// What really runs, and what has ended and was not settled.
    fn survey(&mut self) -> Result<Vec<Sighting>, ExecutorError>;
    /// What a run has reported beyond its bookmark; of very much, the latest. For runs that ended while nobody listened:
    /// their end must not be heard before what they last said.
    fn last_words(&mut self, run: Run) -> Result<Vec<String>, ExecutorError>;
    /// The end of the run is on record: surveys no longer show it. Its logs stay.
    fn settle(&mut self, run: Run) -> Result<(), ExecutorError>;
    /// Tells somebody of a job, as the job's user. What came of it is news, sooner or later: [`News::Notified`].
    fn notify(&mut self, order: NotifyOrder);
}

/// What to run. Part of the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// Program and arguments; no shell looks at them.
    pub command: Vec<String>,
    pub workdir: PathBuf,
    pub env: BTreeMap<String, String>,
    /// Of its own files; none is the one that the service was started with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub umask: Option<u32>,
    /// Whom to run as; none is whoever the service runs as.
    pub account: Option<Account>,
    pub limits: Limits,
    /// How long before SIGTERM the early notice, SIGUSR1, comes.
    pub notice: Span,
    pub job_name: String,
    pub queue: String,
    /// The spool that the first worker reads as its standard input, by its name; none is no input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// The first worker has a terminal, which is this large at first; what is in the spool is typed there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<Window>,
}

impl Program {
    /// The terminal of a worker, by its number in the run.
    pub(crate) fn terminal_of(&self, member: u32) -> Option<Window> {
        self.terminal.filter(|_| member == 0)
    }
}

/// A user of the operating system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    pub uid: u32,
    pub gid: u32,
    pub name: String,
    pub home: PathBuf,
}

/// Resource limits of each worker; none is as the service has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Limits {
    /// In bytes.
    pub address_space: Option<u64>,
    pub open_files: Option<u64>,
    /// Of the account, over all its runs: the kernel counts by user.
    pub processes: Option<u64>,
    /// In bytes.
    pub core_file: Option<u64>,
}

/// Where one worker runs, and what of the node is its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerPlace {
    pub node: NodeId,
    /// Index into the roles of the job.
    pub role: u16,
    pub devices: Vec<u8>,
    /// Of each device; 1000 is the whole.
    pub share_thousandths: u16,
    pub millicores: u32,
    /// Zero is no limit.
    pub memory: Bytes,
}

/// One launch, complete.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LaunchOrder {
    pub run: Run,
    pub program: Arc<Program>,
    /// In order of rank.
    pub workers: Vec<WorkerPlace>,
    /// From the service, for every worker; wins over the program's.
    pub env: BTreeMap<String, String>,
    /// A gang that is not whole by then is given up.
    pub start_within: Span,
    pub restarts: u32,
    pub tuning: Option<Tuning>,
    /// What the directories of the run and of its checkpoints say they belong to.
    #[serde(default)]
    pub origin: Option<Origin>,
    /// How long it may last, whether or not the service is there to stop it; none is for ever.
    #[serde(default)]
    pub limit: Option<TimeLimit>,
    /// The job that has ended and whose checkpoints it takes over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continues: Option<ClaimId>,
}

/// How long a run may last, and how it is then stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeLimit {
    /// What earlier runs of the job have left of it.
    pub remaining: Span,
    /// How long it has to save its state.
    pub grace: Span,
}

/// One resize in place, complete.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResizeOrder {
    pub run: Run,
    /// All workers from then on, in any order: who stays keeps its place before the others.
    pub workers: Vec<WorkerPlace>,
    pub tuning: Option<Tuning>,
    /// By which an order is known that is given again: no two of a run have the same.
    pub until: Time,
    /// If the workers have not agreed on it by then, the run goes on as it was.
    pub within: Span,
}

/// A run as a survey finds it.
#[derive(Debug, Clone, PartialEq)]
pub struct Sighting {
    pub run: Run,
    pub stage: Stage,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Stage {
    Starting,
    Running,
    Ended(Ending),
}

/// What an executor has seen. After the service restarted, `Started` and `Ended` may come again until the run is settled,
/// and `Progress` from the bookmark on; an end comes after all else.
#[derive(Debug, Clone, PartialEq)]
pub enum News {
    Started {
        run: Run,
    },
    Ended {
        run: Run,
        ending: Ending,
    },
    /// The run goes on with the workers of its latest order, and nothing is left of the others.
    Resized {
        run: Run,
    },
    /// The run goes on as it was.
    NotResized {
        run: Run,
        why: String,
    },
    /// Whole new lines of the run's progress file.
    Progress {
        run: Run,
        lines: Vec<String>,
    },
    /// All lines of the progress file up to this byte have been told: see [`Executor::bookmark`].
    Told {
        run: Run,
        upto: u64,
    },
    Usage {
        run: Run,
        usage: Usage,
    },
    /// The run reported more than a job may: so many reports were passed over, and so many bytes were not read at all.
    Dropped {
        run: Run,
        reports: u64,
        bytes: u64,
    },
    /// A notification was delivered, or will not be. If the service ends before it has heard so, it was perhaps delivered.
    Notified {
        number: u64,
        delivery: Delivery,
    },
}
