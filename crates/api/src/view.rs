//! What is shown of jobs, queues, nodes and the service. Durations are seconds, moments RFC 3339 in UTC; fields are only
//! ever added.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::problem::FieldFault;
use crate::progress::Phases;
use crate::spec::JobRequest;

/// Where a job is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Waits for devices, a dependency, or its turn again after a preemption.
    Pending,
    /// Somebody holds it back until it is released.
    Held,
    /// Its workers are being started.
    Starting,
    Running,
    /// Told to stop; may still be saving its state.
    Stopping,
    Succeeded,
    Failed,
    /// Ended because it reached its time limit.
    TimedOut,
    Cancelled,
    /// Was never taken on.
    Refused,
}

/// A job, or an array of jobs as one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobView {
    /// `7`, or `7_3` for a task of an array.
    pub id: String,
    pub name: String,
    pub owner: String,
    pub queue: String,
    pub priority: i32,
    pub state: JobState,
    /// Why it is in this state: a stable CamelCase word.
    pub reason: Option<String>,
    /// The same for people.
    pub message: Option<String>,
    /// How it failed, if it did; of an array, the first task that did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureView>,
    /// Of the worker that failed first, or 0.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    pub submitted_at: String,
    pub started_at: Option<String>,
    pub finished_at: Option<String>,
    pub workers: WorkersView,
    /// Workers of its latest run, in all roles: each has a log.
    #[serde(default)]
    pub processes: u32,
    /// GPUs held now.
    pub gpus: f64,
    /// GPUs each worker takes: what it wants is this times its workers.
    pub gpus_per_worker: f64,
    pub gpu_kind: Option<String>,
    pub nodes: Vec<String>,
    /// Launches so far.
    pub attempts: u32,
    pub failures: u32,
    pub preemptions: u32,
    /// How often its workers changed without a restart.
    #[serde(default)]
    pub resizes: u32,
    /// What its latest restart cost, as it measured that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<InterruptionView>,
    /// What its latest change of workers cost, as it measured that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resize: Option<InterruptionView>,
    /// GPU time used so far.
    pub gpu_seconds: f64,
    /// Time it has held devices so far.
    pub elapsed_seconds: f64,
    pub progress: Option<ProgressView>,
    pub usage: Option<UsageView>,
    pub array: Option<ArrayView>,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    #[serde(default)]
    pub depends_on: Vec<String>,
    pub deadline: Option<String>,
    /// What its owner should know beforehand: that it may be stopped because its queue borrows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<String>,
    /// As submitted; left out of lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<JobRequest>,
    /// It belongs to someone else, and only a summary is shown of it: what is not said here may be so all the same.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub summary: bool,
}

/// How a job failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FailureView {
    /// A stable word: `exit`, `signal`, `out_of_memory`, `no_such_program`, `dependency`, `time_limit`, …
    pub kind: String,
    /// The same for people.
    pub message: String,
    /// The worker that failed before all others, by the number that its log goes by.
    pub worker: Option<u32>,
    /// How many workers the run had.
    pub workers: u32,
    /// Which launch it was.
    pub attempt: u32,
    /// The task of an array.
    pub task: Option<String>,
    /// What its user can do.
    pub next_steps: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WorkersView {
    pub have: u32,
    pub min: u32,
    pub max: u32,
}

/// What a job has last reported of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProgressView {
    pub steps: Option<u64>,
    pub total_steps: Option<u64>,
    /// From 0 to 1.
    pub fraction: Option<f64>,
    pub epoch: Option<f64>,
    pub loss: Option<f64>,
    pub step_seconds: Option<f64>,
    /// Examples in one step over all workers.
    pub batch_size: Option<u32>,
    pub accumulation: Option<u32>,
    pub reported_at: String,
}

/// What an interruption cost a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InterruptionView {
    /// The time in which nothing was trained.
    pub seconds: f64,
    pub phases: Phases,
    pub reported_at: String,
}

/// What a job's processes use, summed over its workers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UsageView {
    pub cpu_seconds: f64,
    pub memory_bytes: u64,
    pub peak_memory_bytes: u64,
    /// Mean utilisation of its devices from 0 to 1, where they can be asked.
    pub gpu_utilisation: Option<f64>,
    pub gpu_memory_bytes: Option<u64>,
}

/// How the tasks of an array are doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ArrayView {
    pub first: u32,
    pub count: u32,
    pub at_once: Option<u32>,
    pub pending: u32,
    pub running: u32,
    pub succeeded: u32,
    pub failed: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobPage {
    pub jobs: Vec<JobView>,
    /// What to pass as `after` for the next page; nothing on the last.
    pub next: Option<String>,
}

/// Why a job has what it has, and what would change it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    pub job: String,
    pub state: JobState,
    pub reason: Option<String>,
    pub message: Option<String>,
    /// What the latest decision could have given it.
    pub options: Vec<OptionView>,
    /// What became of it so far, the oldest first.
    pub history: Vec<HistoryLine>,
    pub next_steps: Vec<String>,
    /// The decision that settled this.
    pub decision: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OptionView {
    pub gpu_kind: Option<String>,
    pub workers: u32,
    pub nodes: u32,
    pub goodput: Option<f64>,
    pub chosen: bool,
    /// What stood in the way.
    pub obstacle: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HistoryLine {
    pub at: String,
    pub text: String,
    pub decision: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QueuePage {
    pub queues: Vec<QueueView>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QueueView {
    pub name: String,
    pub parent: Option<String>,
    /// GPUs it gets whenever its jobs ask for them.
    pub guarantee: f64,
    /// GPUs it never exceeds.
    pub limit: Option<f64>,
    pub weight: f64,
    pub lends: bool,
    pub borrows: bool,
    /// GPUs its jobs hold now.
    pub gpus: f64,
    /// GPUs its waiting jobs ask for at least.
    pub pending_gpus: f64,
    pub running: u32,
    pub pending: u32,
    /// It takes no new jobs, since it was left out when queues were last applied.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub closed: bool,
}

/// All queues there are to be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct QueuesRequest {
    /// A parent stands before its children. A queue that is left out is closed.
    #[schema(max_items = 10000)]
    pub queues: Vec<QueueRequest>,
}

/// One queue as people write it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct QueueRequest {
    pub name: String,
    /// The queue it lies below; the root if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// GPUs it gets whenever its jobs ask for them; none if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0.0)]
    pub guarantee: Option<f64>,
    /// GPUs it never exceeds; as many as there are if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0.0)]
    pub limit: Option<f64>,
    /// How it shares what is lent with its siblings; 1 if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0.001)]
    pub weight: Option<f64>,
    /// Whether others may use what it leaves unused of its guarantee; they may if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lends: Option<bool>,
    /// Whether it may use more than its guarantee; it may if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub borrows: Option<bool>,
}

/// What changes of the queues.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueueChanges {
    /// Nothing if the queues are as they are to be.
    pub changes: Vec<QueueChangeView>,
    /// Whether it was done; false for a preview.
    pub applied: bool,
}

/// What becomes of one queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueueChangeView {
    pub queue: String,
    /// `added`, `changed`, `closed` or `reopened`.
    pub change: String,
    /// In words, with the values before and after.
    pub text: String,
    /// Of a queue that is closed: its jobs that have not ended, and go on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<String>,
}

impl From<QueueRequest> for cluster::QueueDraft {
    fn from(request: QueueRequest) -> cluster::QueueDraft {
        let usual = cluster::QueueDraft::named(&request.name);
        cluster::QueueDraft {
            parent: request.parent,
            guarantee: request.guarantee.unwrap_or(usual.guarantee),
            limit: request.limit,
            weight: request.weight.unwrap_or(usual.weight),
            lends: request.lends.unwrap_or(usual.lends),
            borrows: request.borrows.unwrap_or(usual.borrows),
            ..usual
        }
    }
}

impl From<cluster::QueueDraft> for QueueRequest {
    fn from(draft: cluster::QueueDraft) -> QueueRequest {
        QueueRequest {
            name: draft.name,
            parent: draft.parent,
            guarantee: Some(draft.guarantee),
            limit: draft.limit,
            weight: Some(draft.weight),
            lends: Some(draft.lends),
            borrows: Some(draft.borrows),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodePage {
    pub nodes: Vec<NodeView>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeView {
    pub name: String,
    /// The kind of its GPUs; nothing if it has none.
    pub kind: Option<String>,
    pub gpus: u32,
    /// GPUs nobody holds.
    pub free: f64,
    /// `ready`, `cordoned`, `draining`, `lost`, `removed`.
    pub state: String,
    /// Jobs that hold something of it, of those whose details the caller may see.
    pub jobs: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PolicyView {
    pub name: String,
    pub parameters: BTreeMap<String, String>,
    /// How often it is asked even if nothing happens.
    pub rhythm_seconds: Option<f64>,
    /// The rules that hold around it: names separated by commas, or `none`.
    #[serde(default)]
    pub safeguards: Option<String>,
}

/// Another policy from now on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyRequest {
    /// A name, or a name with parameters: `fifo:backfill=easy,depth=50`.
    #[schema(min_length = 1, max_length = 4096)]
    pub policy: String,
}

/// Another place in the order for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PriorityRequest {
    #[schema(minimum = -1000, maximum = 1000)]
    pub priority: i32,
}

impl PriorityRequest {
    pub fn check(self) -> Result<(), FieldFault> {
        if (-1000..=1000).contains(&self.priority) {
            return Ok(());
        }
        Err(FieldFault::new("priority", format!("expected from -1000 to 1000, found {}", self.priority)))
    }
}

/// How much of a job's input was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InputReply {
    /// Bytes so far: what comes next begins here.
    pub length: u64,
}

/// Whether the service lives, and whether it can take jobs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// `ok`; `degraded` if all but new jobs is taken on; `read_only` if nothing is; …
    pub status: String,
    /// This and the rest only to those who are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uptime_seconds: Option<f64>,
    /// What is wrong, if something is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// One thing that happened, as it is streamed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventView {
    /// Its place in the journal; `after` of a later stream continues behind it.
    pub seq: u64,
    pub at: String,
    pub decision: Option<u64>,
    pub job: Option<String>,
    /// A stable word: `submitted`, `started`, `finished`, …
    pub what: String,
    pub text: String,
}

/// Everything the service was configured with, defaults included.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ConfigView {
    pub version: String,
    pub data_dir: String,
    pub listen: Vec<String>,
    pub policy: PolicyView,
    /// The configuration as it is in effect.
    #[schema(value_type = Object)]
    pub settings: serde_json::Value,
}

impl JobState {
    pub const ALL: [JobState; 10] = [
        JobState::Pending,
        JobState::Held,
        JobState::Starting,
        JobState::Running,
        JobState::Stopping,
        JobState::Succeeded,
        JobState::Failed,
        JobState::TimedOut,
        JobState::Cancelled,
        JobState::Refused,
    ];

    /// Whether nothing more will happen to the job.
    pub fn is_final(self) -> bool {
        use JobState::{Cancelled, Failed, Refused, Succeeded, TimedOut};
        matches!(self, Succeeded | Failed | TimedOut | Cancelled | Refused)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            JobState::Pending => "pending",
            JobState::Held => "held",
            JobState::Starting => "starting",
            JobState::Running => "running",
            JobState::Stopping => "stopping",
            JobState::Succeeded => "succeeded",
            JobState::Failed => "failed",
            JobState::TimedOut => "timed_out",
            JobState::Cancelled => "cancelled",
            JobState::Refused => "refused",
        }
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for JobState {
    type Err = String;

    fn from_str(text: &str) -> Result<JobState, String> {
        let names = || JobState::ALL.map(JobState::as_str);
        let state = JobState::ALL.into_iter().find(|state| state.as_str() == text);
        state.ok_or_else(|| {
            let typed: String = text.chars().take(40).collect();
            format!("there is no state `{typed}`{}", cluster::suggestion(&typed, names()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_called_the_same_everywhere() {
        for state in JobState::ALL {
            assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
            assert_eq!(state.as_str().parse(), Ok(state));
        }
    }

    #[test]
    fn a_mistyped_state_is_recognised() {
        assert_eq!("runing".parse::<JobState>(), Err("there is no state `runing`; did you mean `running`?".into()));
    }

    #[test]
    fn what_is_over_is_final() {
        let over: Vec<&str> =
            JobState::ALL.into_iter().filter(|state| state.is_final()).map(JobState::as_str).collect();
        assert_eq!(over, ["succeeded", "failed", "timed_out", "cancelled", "refused"]);
    }
}
