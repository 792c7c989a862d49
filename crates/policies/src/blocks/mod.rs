//! What the policies share: plain functions and small structs, called in order by a policy. No block knows a policy.

pub(crate) mod admit;
pub(crate) mod arrange;
pub(crate) mod autoscale;
pub(crate) mod backfill;
pub(crate) mod draft;
pub(crate) mod grant;
pub(crate) mod improve;
pub(crate) mod matrix;
pub(crate) mod menu;
pub(crate) mod order;
pub(crate) mod preempt;
pub(crate) mod remaining;
pub(crate) mod round;
pub(crate) mod shortest;

pub(crate) use plan::place;
