//! What wakes a supervisor: signals, messages from workers, and deadlines.

use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGUSR2};

use crate::ExecutorError;

/// Signals as something to wait for. Having handlers, none of these ends the supervisor, and workers start without them.
#[derive(Debug)]
pub(crate) struct Bell {
    rung: UnixStream,
    was_terminated: Arc<AtomicBool>,
}

impl Bell {
    pub(crate) fn hang() -> Result<Bell, ExecutorError> {
        let doing = "listen to signals";
        let (rung, rope) = UnixStream::pair().map_err(ExecutorError::system(doing))?;
        rung.set_nonblocking(true).map_err(ExecutorError::system(doing))?;
        let was_terminated = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT] {
            signal_hook::flag::register(signal, was_terminated.clone()).map_err(ExecutorError::system(doing))?;
        }
        for signal in [SIGCHLD, SIGUSR2, SIGTERM, SIGINT, SIGHUP] {
            let rope = rope.try_clone().map_err(ExecutorError::system(doing))?;
            signal_hook::low_level::pipe::register(signal, rope).map_err(ExecutorError::system(doing))?;
        }
        Ok(Bell { rung, was_terminated })
    }

    /// Whether the supervisor itself was asked to go, as when the machine shuts down.
    pub(crate) fn was_terminated(&self) -> bool {
        self.was_terminated.load(Ordering::Relaxed)
    }

    /// Waits for a signal, for one of `others` to become readable, or for the deadline.
    pub(crate) fn wait(&self, others: &[BorrowedFd<'_>], until: Instant) {
        let mut watched: Vec<PollFd<'_>> = vec![PollFd::from_borrowed_fd(self.rung.as_fd(), PollFlags::IN)];
        watched.extend(others.iter().map(|&other| PollFd::from_borrowed_fd(other, PollFlags::IN)));
        let patience = until.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
        // An interrupted wait is a signal too.
        let _ = poll(&mut watched, Some(&timeout));
        let mut rings = [0; 64];
        while (&self.rung).read(&mut rings).is_ok_and(|count| count == rings.len()) {}
    }
}

/// Reads what is there: true once the other side has closed.
pub(crate) fn drain(source: &mut impl Read, into: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 4096];
    loop {
        match source.read(&mut buffer) {
            Ok(0) => return true,
            Ok(count) => into.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
}
