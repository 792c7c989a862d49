//! The live service: the decision core of the simulator with real jobs around it. One thread owns the core; what comes in
//! is taken in batches, journaled, and only then answered and carried out. Readers have a copy of their own.

pub mod access;
mod clearing;
mod clock;
pub mod core;
mod data_dir;
mod error;
mod explain;
mod fact;
mod failure;
pub mod http;
mod identity;
mod image;
mod ledger;
mod live;
mod measures;
mod notification;
mod opening;
mod postponed;
#[cfg(test)]
mod power_cut;
mod pulse;
mod queues;
mod rehearsal;
mod replica;
mod reserve;
mod retention;
mod seldom;
mod service;
mod settings;
mod size;
mod store;
mod typical;
pub mod views;

pub use clearing::Clearing;
pub use clock::{Clock, ClockFound, Reading, Timeline};
pub use data_dir::journal_path;
pub use error::ServerError;
pub use explain::explain;
pub use fact::{Acceptance, Array, Caller, Deed, Fact};
pub use image::recorded_timeline;
pub use ledger::{Happening, Job, Ledger, What};
pub use live::{Doubt, Inbox, Live, Message, Messages, Store, Undone};
pub use notification::Notification;
pub use opening::Accepted;
pub use postponed::Postponed;
pub use rehearsal::rehearse;
pub use replica::{Line, Replica, Shown};
pub use retention::{Forgetting, Retention};
pub use service::Service;
pub use settings::{Config, DEFAULT_POLICY, Settings};
