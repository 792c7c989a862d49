//! The live loop, driven by hand.

mod explain;
mod harness;
mod parity;
mod resize;
mod shortage;
