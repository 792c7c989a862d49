//! Where the lines of a log go: to standard error, as long as that takes them. Whatever writes a log goes on if it cannot be
//! written: the disk it lies on is full, the terminal is closed, the reader of a pipe does not read. What is lost is
//! counted, and said once writing works again. And which lines there are: what `RUST_LOG` says.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing_subscriber::filter::{LevelFilter, Targets};

/// How long a reader of the log may keep others waiting for each line.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

static LOST: AtomicU64 = AtomicU64::new(0);

/// A writer that never fails.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Log {
    pub(crate) json: bool,
}

impl Write for Log {
    /// One line; tracing hands them over whole.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let lost = LOST.swap(0, Ordering::Relaxed);
        let written = write_to(&mut io::stderr().lock(), line, lost, self.json);
        if written.is_err() {
            LOST.fetch_add(lost + 1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_to(log: &mut (impl Write + std::os::fd::AsFd), line: &[u8], lost: u64, json: bool) -> io::Result<()> {
    let mut ready = [PollFd::new(log, PollFlags::OUT)];
    if poll(&mut ready, Some(&PATIENCE))? == 0 {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    match (lost, json) {
        (0, _) => {}
        (_, true) => writeln!(log, r#"{{"level":"WARN","message":"lines of the log were lost here","lines":{lost}}}"#)?,
        (_, false) => writeln!(log, "[moira: {lost} lines of the log were lost here]")?,
    }
    log.write_all(line)
}

/// What is logged if nothing is said.
pub(crate) fn usual() -> Targets {
    Targets::new().with_default(LevelFilter::INFO)
}

/// Which lines `RUST_LOG` asks for: a level, or levels for parts of the program, like `info,server=debug`. Nothing where
/// that is not what it says; a filter by spans and their fields would be taken for the name of a part that logs nothing.
pub(crate) fn filter(said: &str) -> Option<Targets> {
    let parts: Vec<&str> = said.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    if parts.iter().any(|part| part.contains(['[', ']', '{', '}'])) {
        return None;
    }
    parts.join(",").parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, OpenOptions};
    use std::io::Read;

    use super::*;

    #[test]
    fn a_log_on_a_full_disk_is_an_error_that_is_counted() {
        let mut full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let error = write_to(&mut full, b"line\n", 0, false).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        write_to(&mut File::create(&path).unwrap(), b"next\n", 2, false).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "[moira: 2 lines of the log were lost here]\nnext\n");
    }

    #[test]
    fn what_is_logged_is_a_level_or_a_level_for_each_part() {
        use tracing::Level;
        let logs = |said: &str, part: &str, level: Level| filter(said).unwrap().would_enable(part, &level);
        assert!(logs("debug", "server::live", Level::DEBUG) && !logs("debug", "server::live", Level::TRACE));
        assert!(logs("DEBUG", "server", Level::DEBUG), "as it is written elsewhere");
        for said in ["info,server=debug", "server=debug,info", " info, server=debug,"] {
            assert!(logs(said, "server::live", Level::DEBUG), "{said}");
            assert!(!logs(said, "executors", Level::DEBUG) && logs(said, "executors", Level::INFO), "{said}");
        }
        assert!(logs("server", "server::live", Level::TRACE) && !logs("server", "executors", Level::ERROR));
        assert!(logs("", "server", Level::ERROR) && !logs("", "server", Level::WARN), "an empty word is a quiet one");
        assert!(!logs("off", "server", Level::ERROR));
        for said in ["server=loud", "info,server=1=2", "[request]=debug", "[request{id=1}]=debug", "[{job}]=debug"] {
            assert_eq!(filter(said), None, "{said}");
        }
    }

    #[test]
    fn a_pipe_that_nobody_reads_holds_nobody_up() {
        let (mut reader, mut writer) = io::pipe().unwrap();
        let line = [b'x'; 1000];
        let written = (0..1000).take_while(|_| write_to(&mut writer, &line, 0, false).is_ok()).count();
        assert!(written < 1000, "it never became full");
        let mut room = vec![0; 32 << 10];
        reader.read_exact(&mut room).unwrap();
        write_to(&mut writer, &line, 7, true).unwrap();
    }
}
