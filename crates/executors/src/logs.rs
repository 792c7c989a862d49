//! What a worker prints, kept in files of bounded size. Whatever happens to the files, the worker is not disturbed: what
//! cannot be written is counted, and said once writing works again.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;

use crate::ExecutorError;
use crate::log_pieces::{all_aside, aside, start_of_current};

/// A log that has reached this size is put aside.
const FULL: u64 = 10 << 20;
/// How many logs that were put aside are kept.
const KEPT: usize = 2;

/// Copies from a pipe or a terminal to a log until nobody writes there any more.
#[derive(Debug)]
pub(crate) struct Pump {
    done: Receiver<()>,
}

impl Pump {
    pub(crate) fn start(mut source: impl Read + Send + 'static, path: PathBuf) -> Result<Pump, ExecutorError> {
        let (sender, done) = channel();
        let copy = move || {
            let mut log = Log::new(path, FULL);
            let mut buffer = vec![0; 64 << 10];
            loop {
                match source.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(count) => log.write(&buffer[..count]),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    // So a terminal says that no program has it any more.
                    Err(error) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => break,
                    Err(error) => {
                        tracing::warn!(%error, "cannot read the output of a worker");
                        break;
                    }
                }
            }
            log.say_what_was_lost();
            // Nobody waits any more if the patience of `finish` was shorter.
            let _ = sender.send(());
        };
        let spawned = thread::Builder::new().name("log".into()).spawn(copy);
        spawned.map(|_| Pump { done }).map_err(ExecutorError::system("start a thread for logs"))
    }

    /// Waits until all output is in the log. Someone outside the run may hold the pipe open, hence the patience; false if
    /// more may come.
    pub(crate) fn finish(&self, patience: Duration) -> bool {
        self.done.recv_timeout(patience) != Err(RecvTimeoutError::Timeout)
    }
}

#[derive(Debug)]
struct Log {
    path: PathBuf,
    full: u64,
    file: Option<File>,
    lost: u64,
    reason: String,
}

impl Log {
    fn new(path: PathBuf, full: u64) -> Log {
        Log { path, full, file: None, lost: 0, reason: String::new() }
    }

    fn write(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        if let Err(error) = self.try_write(&mut rest) {
            self.lost += rest.len() as u64;
            self.reason = error.to_string();
            self.file = None;
        }
    }

    /// Once nothing more comes: if writing works again.
    fn say_what_was_lost(&mut self) {
        if self.lost > 0 {
            self.write(&[]);
        }
    }

    /// Leaves in `rest` what was not written.
    fn try_write(&mut self, rest: &mut &[u8]) -> io::Result<()> {
        self.open()?;
        if self.lost > 0 {
            let line = format!("\n[moira: {} bytes of output were lost here: {}]\n", self.lost, self.reason);
            self.append(&mut line.as_bytes())?;
            self.lost = 0;
        }
        self.append(rest)
    }

    fn append(&mut self, rest: &mut &[u8]) -> io::Result<()> {
        while !rest.is_empty() {
            let Some(file) = &mut self.file else { return self.open() };
            match file.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => *rest = &rest[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Makes sure that the open file is the one of that name, and is not full.
    fn open(&mut self) -> io::Result<()> {
        if let Some(file) = &self.file {
            let open = file.metadata()?;
            let named =
                fs::metadata(&self.path).ok().filter(|named| (named.dev(), named.ino()) == (open.dev(), open.ino()));
            match named {
                Some(named) if named.len() < self.full => return Ok(()),
                Some(_) => self.put_aside()?,
                None => {}
            }
        }
        // Of the run's directory only this one is made again: a run that was put away must not come back for its last word.
        match self.path.parent().map(fs::create_dir) {
            Some(Err(error)) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        self.file = Some(OpenOptions::new().create(true).append(true).mode(0o600).open(&self.path)?);
        Ok(())
    }

    /// The name says where in all of the output the log begins: see `log_pieces`.
    fn put_aside(&self) -> io::Result<()> {
        let start = start_of_current(&self.path)?;
        fs::rename(&self.path, aside(&self.path, start))?;
        let all = all_aside(&self.path)?;
        let surplus = all.len().saturating_sub(KEPT);
        all.iter().take(surplus).try_for_each(fs::remove_file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn log(dir: &Path) -> Log {
        Log::new(dir.join("logs/worker-0.log"), 10)
    }

    fn text(dir: &Path, name: &str) -> String {
        fs::read_to_string(dir.join("logs").join(name)).unwrap_or_default()
    }

    #[test]
    fn a_full_log_is_put_aside_and_two_of_those_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = log(dir.path());
        for line in ["first line\n", "second line\n", "third line\n", "fourth line\n"] {
            log.write(line.as_bytes());
        }
        let names = ["worker-0.log.at-0", "worker-0.log.at-11", "worker-0.log.at-23", "worker-0.log"];
        assert_eq!(names.map(|name| text(dir.path(), name)), ["", "second line\n", "third line\n", "fourth line\n"]);
    }

    #[test]
    fn a_directory_that_disappears_is_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = log(dir.path());
        log.write(b"before\n");
        fs::remove_dir_all(dir.path().join("logs")).unwrap();
        log.write(b"after\n");
        assert_eq!(text(dir.path(), "worker-0.log"), "after\n");
    }

    #[test]
    fn lost_output_is_counted_and_said() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = log(dir.path());
        fs::write(dir.path().join("logs"), "in the way").unwrap();
        log.write(b"12345");
        log.write(b"678");
        fs::remove_file(dir.path().join("logs")).unwrap();
        log.write(b"on\n");
        let text = text(dir.path(), "worker-0.log");
        assert!(
            text.starts_with("\n[moira: 8 bytes of output were lost here: ") && text.ends_with("]\non\n"),
            "{text}"
        );
    }

    #[test]
    fn what_was_lost_last_is_said_although_nothing_follows() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = log(dir.path());
        fs::write(dir.path().join("logs"), "in the way").unwrap();
        log.write(b"12345");
        fs::remove_file(dir.path().join("logs")).unwrap();
        log.say_what_was_lost();
        let text = text(dir.path(), "worker-0.log");
        assert!(text.starts_with("\n[moira: 5 bytes of output were lost here: "), "{text}");
    }
}
