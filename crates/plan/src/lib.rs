//! The question a policy is asked, the answer it gives, and the check of that answer.
//!
//! Everything a stranger needs to write a policy is here: [`Snapshot`] in, [`Plan`] out. This crate holds no policy and
//! does not know who asks.

mod books;
mod check;
mod claim;
mod feasible;
mod history;
mod memory;
mod note;
pub mod place;
mod policy;
mod resizing;
mod room;
mod safeguards;
mod snapshot;
mod table;
pub mod text;

pub use books::{Availability, Books, NodeStatus};
pub use check::{Fault, check, check_everything};
pub use claim::{Allotment, Claim, Claims, ClassId, FailureCause, Outcome, Phase, Progress, UserId};
pub use feasible::{Obstruction, feasible, within_quotas};
pub use history::{History, Sizes};
pub use memory::Memory;
pub use note::{Note, Obstacle, Reason};
pub use policy::{Knowledge, Plan, Policy, Rhythm, Turns};
pub use resizing::{Resizing, beyond, can_resize};
pub use room::Room;
pub use safeguards::Safeguards;
pub use snapshot::{Budgets, Changed, Snapshot};
pub use table::Table;
