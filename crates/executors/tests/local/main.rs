//! The executor of this machine with real processes: whatever happens to them, to the supervisor or to the service, the
//! end is told once and nothing is left.

mod bench;
mod disk;
mod resize;
mod runs;
mod shells;
