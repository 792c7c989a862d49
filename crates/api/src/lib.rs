//! What goes over the wire, as plain data: the job people submit, what they are shown of it, how a job reports its
//! progress, and what is said when something is wrong; and the client that speaks it.
//!
//! The server and the command line meet here and nowhere else. Nothing in this crate decides anything.

mod access;
mod client;
mod duration;
mod error;
mod hook;
mod id;
mod problem;
mod progress;
mod quantity;
mod schema;
mod shell;
mod spec;
mod time;
mod view;

pub use access::{NewToken, Role, TokenPage, TokenRequest, TokenView};
pub use client::{Client, Events, JobQuery, LogQuery, Logs, NodeChange, default_data_dir, socket_in};
pub use duration::Duration;
pub use error::Error;
pub use hook::{HookUrl, Unsent, post};
pub use id::JobId;
pub use problem::{FieldFault, Problem};
pub use progress::{
    CheckpointReport, KubeflowReport, MOST_METRICS, Metric, Noise, Phases, ProgressReply, ProgressReport, RestartKind,
    RestartReport, TrainerStatus,
};
pub use quantity::Quantity;
pub use shell::{ShellRequest, ShellView};
pub use spec::{
    ArrayRange, BatchRequest, Built, CheckpointRequest, CommandLine, Format, GpuCount, JobRequest, LimitsRequest,
    NotifyEvent, NotifyRequest, ResourcesRequest, RetryRequest, Scene, UlimitsRequest, Umask, Window, WorkersRequest,
    changes_direction, read,
};
pub use time::{rfc3339, unix_millis};
pub use view::{
    ArrayView, ConfigView, EventView, Explanation, FailureView, Health, HistoryLine, InputReply, InterruptionView,
    JobPage, JobState, JobView, NodePage, NodeView, OptionView, PolicyRequest, PolicyView, PriorityRequest,
    ProgressView, QueueChangeView, QueueChanges, QueuePage, QueueRequest, QueueView, QueuesRequest, UsageView,
    WorkersView,
};
