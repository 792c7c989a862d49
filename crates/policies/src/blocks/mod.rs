//! What the policies share: plain functions and small structs, called in order by a policy. No block knows a policy.

pub(crate) mod admit;
pub(crate) mod backfill;
pub(crate) mod draft;
pub(crate) mod grant;
pub(crate) mod order;
pub(crate) mod place;
pub(crate) mod preempt;
pub(crate) mod remaining;
pub(crate) mod shortest;
