//! The service as it is installed: the real binary, real processes, real faults. Everything that is drawn prints its
//! seed; what needs root or a tool is passed over with a word on standard error, and fails where `CI` is set.

mod api;
mod browser;
mod checkpoints;
mod config;
mod cost;
mod crash;
mod disk;
mod environment;
mod failures;
mod faults;
mod files;
mod gc;
mod http;
mod identity;
mod injected;
mod journal;
mod judge;
mod logs;
mod names;
mod notify;
mod parity;
mod pressure;
mod processes;
mod pty;
mod queues;
mod resize;
mod run;
mod service;
mod shell;
mod soak;
mod terminal;
mod time;
