//! What became of one job.

use cluster::{ClaimId, GpuTime, Gpus, Name, Span, Time};
use plan::Outcome;
use serde::{Serialize, Serializer};

/// One job's line in a table. What is not over yet is counted up to the last event. Times are written in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JobRow {
    pub id: ClaimId,
    pub name: Name,
    pub user: Name,
    /// Nothing if the job asked for a queue there is not.
    pub queue: Option<Name>,
    #[serde(rename = "submitted_s", serialize_with = "seconds")]
    pub submitted: Time,
    /// When all its workers were first up.
    #[serde(rename = "started_s", serialize_with = "maybe_seconds")]
    pub started: Option<Time>,
    #[serde(rename = "ended_s", serialize_with = "maybe_seconds")]
    pub ended: Option<Time>,
    /// Nothing while it lives.
    pub outcome: Option<Outcome>,
    /// The least it asks for.
    #[serde(serialize_with = "gpus")]
    pub gpus: Gpus,
    /// From submission to end.
    #[serde(rename = "jct_s", serialize_with = "maybe_span")]
    pub jct: Option<Span>,
    /// Time in which it lived and held no devices, be it in the queue, between two runs or behind other jobs.
    #[serde(rename = "waiting_s", serialize_with = "span")]
    pub waiting: Span,
    /// From each order to launch until the run was gone, start-up and saving included.
    #[serde(rename = "gpu_hours", serialize_with = "gpu_hours")]
    pub held: GpuTime,
    pub launches: u32,
    /// Launches after the first.
    pub restarts: u32,
    /// How often it was told to stop though nobody had cancelled it: for others, or to go on elsewhere.
    pub preemptions: u32,
    /// Nothing if it has no deadline.
    pub deadline_met: Option<bool>,
}

fn seconds<S: Serializer>(time: &Time, serializer: S) -> Result<S::Ok, S::Error> {
    time.as_secs_f64().serialize(serializer)
}

fn maybe_seconds<S: Serializer>(time: &Option<Time>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(Time::as_secs_f64).serialize(serializer)
}

fn span<S: Serializer>(span: &Span, serializer: S) -> Result<S::Ok, S::Error> {
    span.as_secs_f64().serialize(serializer)
}

fn maybe_span<S: Serializer>(span: &Option<Span>, serializer: S) -> Result<S::Ok, S::Error> {
    span.map(Span::as_secs_f64).serialize(serializer)
}

fn gpus<S: Serializer>(gpus: &Gpus, serializer: S) -> Result<S::Ok, S::Error> {
    gpus.as_f64().serialize(serializer)
}

fn gpu_hours<S: Serializer>(held: &GpuTime, serializer: S) -> Result<S::Ok, S::Error> {
    held.as_gpu_hours().serialize(serializer)
}
