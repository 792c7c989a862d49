//! The nouns of Moira: time, machines, jobs, queues, placements.
//!
//! Plain data that cannot hold nonsense. This crate takes no decisions, does no IO and knows neither speeds nor policies.

mod job;
mod machine;
pub mod pairs;
mod placement;
mod queue;
mod queue_change;
mod suggest;
mod units;

pub use job::{
    BatchRange, ClaimId, Count, Ends, Invalid, JobDraft, JobSpec, Name, Recovery, Role, Run, Scaling, Slice,
    WorkerRange,
};
pub use machine::{
    Cluster, ClusterDraft, GpuKind, Kind, KindDraft, MAX_GPUS_PER_NODE, Node, NodeDraft, NodeId, Rack, RackId,
    SwitchId, Uplinks,
};
pub use placement::{Devices, Grain, MigProfile, Placement, Shape, SliceSet, Slot, Spread};
pub use queue::{Queue, QueueDraft, QueueId, QueueTree};
pub use queue_change::{QueueChange, QueueChangeKind};
pub use suggest::{nearest_first, suggestion};
pub use units::{Bandwidth, Bytes, GpuTime, Gpus, Span, Time, Weight};
