//! Orders: what a world is to do. Carrying one out twice does no harm.

use std::sync::Arc;

use cluster::{Run, Span, Time};
use plan::Allotment;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Start every worker of the run before `until`, or none.
    Launch { run: Run, allotment: Arc<Allotment>, until: Time },
    /// Let the run save its state for so long, then end it. Whatever is left of a run that has failed is ended too.
    Stop { run: Run, grace: Span },
}
