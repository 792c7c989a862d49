//! The live loop, driven by hand.

mod harness;
mod parity;
mod resize;
