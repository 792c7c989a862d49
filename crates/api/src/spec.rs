//! The job as people write it: one object, in YAML, TOML or JSON, in a file or over the wire.
//!
//! It says what is wanted in names and units; `build` turns it into what the engine understands.

mod array;
mod build;
mod check;
mod command;
mod gpus;
mod moment;
mod notify;
mod parse;
mod umask;
mod window;
mod workers;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::duration::Duration;
use crate::id::JobId;
use crate::quantity::Quantity;

pub use array::ArrayRange;
pub use build::{Built, Scene};
pub use check::changes_direction;
pub use command::CommandLine;
pub use gpus::GpuCount;
pub use notify::{NotifyEvent, NotifyRequest};
pub use parse::{Format, read};
pub use umask::Umask;
pub use window::Window;
pub use workers::WorkersRequest;

/// A job to be run. Only the command is required.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 128)]
    pub name: Option<String>,
    pub command: CommandLine,
    /// Where the command runs: an absolute path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 4096)]
    pub workdir: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Which rights its new files do not get; as the service was started if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub umask: Option<Umask>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The queue it waits in; the root if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Higher goes first where the policy looks at it.
    #[serde(default, skip_serializing_if = "is_default")]
    #[schema(minimum = -1000, maximum = 1000)]
    pub priority: i32,
    /// How much it counts beside others; 1 if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0.001, maximum = 1000.0)]
    pub weight: Option<f64>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub resources: ResourcesRequest,
    #[serde(default, skip_serializing_if = "is_default")]
    pub workers: WorkersRequest,
    /// Makes the job adaptive: its batch may change, and its speed is learnt from its reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<BatchRequest>,
    /// Iterations of the designed batch after which it is done, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub steps: Option<u64>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub limits: LimitsRequest,
    #[serde(default, skip_serializing_if = "is_default")]
    pub checkpoint: CheckpointRequest,
    /// Whether it may be stopped to make room; if nothing is said, what it declares of checkpoints and sizes decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interruptible: Option<bool>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub retry: RetryRequest,
    /// Jobs that must have succeeded before this one may start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 1000)]
    pub depends_on: Vec<JobId>,
    /// Run it many times, each task with a number of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array: Option<ArrayRange>,
    /// Wait until somebody releases it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub hold: bool,
    /// Its first worker reads what is sent to `POST /v1/jobs/{id}/input`; otherwise its standard input is empty.
    #[serde(default, skip_serializing_if = "is_default")]
    pub stdin: bool,
    /// Its first worker has a terminal of this size, and reads from it what is sent to `POST /v1/jobs/{id}/input`. Such a job
    /// has a fixed number of workers and is not retried; it is stopped to make room only while its queue borrows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<Window>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub ulimits: UlimitsRequest,
    /// Who is told when it starts, ends, fails or is preempted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 4)]
    pub notify: Vec<NotifyRequest>,
}

/// What each worker needs.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResourcesRequest {
    /// One if nothing is said; a share of one like 0.5; none for a job that needs no GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<GpuCount>,
    /// The kinds it can use; any if none is named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 64)]
    pub gpu_kinds: Vec<String>,
    /// Device memory it needs of each GPU, or of its share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_memory: Option<Quantity>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0.0, maximum = 4096.0)]
    pub cpus: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Quantity>,
}

/// Examples in one step over all workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchRequest {
    /// What the training was designed for.
    #[schema(minimum = 1)]
    pub initial: u32,
    /// The largest with which it still converges.
    #[schema(minimum = 1)]
    pub max: u32,
    /// Fewest and most examples one worker takes at a time; most is what fits into its memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_gpu: Option<[u32; 2]>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitsRequest {
    /// After so long on devices, over all its runs, it is ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_runtime: Option<Duration>,
    /// When it should be done, as RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "moment::deserialize")]
    #[schema(format = DateTime)]
    pub deadline: Option<String>,
    /// How long it will probably run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_runtime: Option<Duration>,
}

/// How a job is interrupted, and what that costs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckpointRequest {
    /// From SIGTERM to SIGKILL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace: Option<Duration>,
    /// From SIGUSR1 to SIGTERM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<Duration>,
    /// How often it saves its state by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<Duration>,
    /// How long one save takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Duration>,
    /// How long it takes from launch to the first step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_cost: Option<Duration>,
}

/// What happens after a failure. Preemptions and lost nodes never count as one.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RetryRequest {
    /// How often it may fail and is started again.
    #[serde(default, skip_serializing_if = "is_default")]
    #[schema(maximum = 1000)]
    pub max_failures: u32,
    /// Only after these; after any if none is named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 255)]
    pub exit_codes: Vec<u8>,
}

/// Limits of the operating system for each worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UlimitsRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<u64>,
    /// In bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core_file: Option<Quantity>,
}

impl JobRequest {
    /// A job that runs these words on one GPU.
    pub fn new<S: Into<String>>(command: impl IntoIterator<Item = S>) -> JobRequest {
        JobRequest {
            name: None,
            command: CommandLine::Words(command.into_iter().map(Into::into).collect()),
            workdir: None,
            env: BTreeMap::new(),
            umask: None,
            labels: BTreeMap::new(),
            queue: None,
            priority: 0,
            weight: None,
            resources: ResourcesRequest::default(),
            workers: WorkersRequest::default(),
            batch: None,
            steps: None,
            limits: LimitsRequest::default(),
            checkpoint: CheckpointRequest::default(),
            interruptible: None,
            retry: RetryRequest::default(),
            depends_on: Vec::new(),
            array: None,
            hold: false,
            stdin: false,
            pty: None,
            ulimits: UlimitsRequest::default(),
            notify: Vec::new(),
        }
    }

    /// The name it goes by: its own, or that of its program.
    pub fn display_name(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.command.program_name())
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
