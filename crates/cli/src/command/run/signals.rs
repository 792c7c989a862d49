//! The signals by which a shell or a terminal asks a command to end. One that is ignored when the command starts stays so:
//! `nohup`, and a shell that starts something in the background, mean it.

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    /// Ctrl-C.
    Interrupt,
    Terminate,
    /// The terminal is gone.
    Hangup,
}

#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Option<Signal>,
    terminate: Option<Signal>,
    hangup: Option<Signal>,
}

impl Ask {
    /// As a shell says that a command ended by this signal.
    pub(crate) fn exit_code(self) -> u8 {
        128 + self.number()
    }

    fn number(self) -> u8 {
        match self {
            Ask::Hangup => 1,
            Ask::Interrupt => 2,
            Ask::Terminate => 15,
        }
    }
}

impl Signals {
    pub(crate) fn listen() -> Result<Signals, Failure> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let listen = |ask: Ask, kind: SignalKind| {
            let heard = !is_ignored(&status, ask.number());
            heard.then(|| signal(kind)).transpose().context("cannot listen to signals")
        };
        Ok(Signals {
            interrupt: listen(Ask::Interrupt, SignalKind::interrupt())?,
            terminate: listen(Ask::Terminate, SignalKind::terminate())?,
            hangup: listen(Ask::Hangup, SignalKind::hangup())?,
        })
    }

    pub(crate) async fn next(&mut self) -> Ask {
        tokio::select! {
            () = heard(&mut self.interrupt) => Ask::Interrupt,
            () = heard(&mut self.terminate) => Ask::Terminate,
            () = heard(&mut self.hangup) => Ask::Hangup,
        }
    }
}

async fn heard(signal: &mut Option<Signal>) {
    let heard = match signal {
        Some(signal) => signal.recv().await,
        None => None,
    };
    if heard.is_none() {
        std::future::pending::<()>().await;
    }
}

fn is_ignored(status: &str, number: u8) -> bool {
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (number - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_was_ignored_before_is_known() {
        let status = "Name:\tmoira\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000002\n";
        assert_eq!([1, 2, 13, 15].map(|number| is_ignored(status, number)), [true, false, true, false]);
    }
}
