//! Orders: what a world is to do. Carrying one out twice does no harm.

use std::sync::Arc;

use cluster::{NodeId, Run, Span, Time};
use perf::Tuning;
use plan::Allotment;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Start every worker of the run before `until`, or none.
    Launch {
        run: Run,
        allotment: Arc<Allotment>,
        /// The batch to begin with, for jobs that are tuned.
        tuning: Option<Tuning>,
        until: Time,
    },
    /// Go on with another batch, without a restart.
    Retune { run: Run, tuning: Tuning },
    /// Go on with these workers, without a restart. If that has not happened by `until`, leave everything as it was and
    /// say so.
    Resize {
        run: Run,
        allotment: Arc<Allotment>,
        /// The batch to go on with, for jobs that are tuned.
        tuning: Option<Tuning>,
        until: Time,
    },
    /// Rent so many nodes more, of the sort that can be rented.
    Provision { count: u32 },
    /// Give this node back; nothing runs on it.
    Release { node: NodeId },
    /// Let the run save its state for so long, then end it. Whatever is left of a run that has failed is ended too.
    Stop { run: Run, grace: Span },
}
