//! What is sent to the standard input of a job. The service appends it to a spool of bounded size; the supervisor of a run
//! feeds it to the first worker through a named pipe, in a thread of its own, so that neither the service nor the
//! supervisor ever waits for a job that does not read. A spool outlives both: after a restart of the service the rest is
//! appended, and another run of the same job reads it from the beginning.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use disk::As;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
use rustix::fs::{FlockOperation, flock};

use crate::ExecutorError;
use crate::assignment::new_token;
use crate::private::{PRIVATE_DIR, PRIVATE_FILE};

/// More than this cannot be sent to one job.
pub const MOST_INPUT: u64 = 64 << 20;

/// How often a spool is looked at if the kernel does not say that it has grown.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// How often it is looked at all the same.
const LOOK_AT_LEAST: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
const CHUNK: usize = 64 << 10;

/// The spool of one submission. Its name was drawn, so that no other job ever has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    dir: PathBuf,
}

/// Why input was not taken.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    #[error("the input is at byte {length}, and what was sent begins at byte {offset}")]
    Gap { offset: u64, length: u64 },
    #[error("the input has ended at byte {length}")]
    Ended { length: u64 },
    #[error("a job takes at most {} MiB of input: put the rest into a file that it reads", MOST_INPUT >> 20)]
    TooMuch,
    #[error("cannot write the input of a job: {0}")]
    Disk(#[from] io::Error),
}

impl Input {
    /// A name for a new spool.
    pub fn draw_name() -> Result<String, ExecutorError> {
        new_token()
    }

    pub fn of(data_dir: &Path, name: &str) -> Input {
        Input { dir: folder(data_dir).join(name) }
    }

    /// The names of all spools that there are.
    pub fn names_in(data_dir: &Path) -> Result<Vec<String>, ExecutorError> {
        crate::origin::names_in(&folder(data_dir))
    }

    /// Takes bytes that begin at this place of all input, and returns how much there is of it now. What was taken before is
    /// passed over, so that a client which heard no answer may send the same again.
    pub fn take(&self, offset: u64, bytes: &[u8], ends: bool) -> Result<u64, InputError> {
        self.make()?;
        let path = self.data();
        let file = OpenOptions::new().create(true).append(true).mode(PRIVATE_FILE).open(&path)?;
        flock(&file, FlockOperation::LockExclusive).map_err(io::Error::from)?;
        let length = file.metadata()?.len();
        let new = length.checked_sub(offset).ok_or(InputError::Gap { offset, length })?;
        let new = bytes.get(usize::try_from(new).unwrap_or(usize::MAX)..).unwrap_or_default();
        if let Some(length) = self.end() {
            return if new.is_empty() { Ok(length) } else { Err(InputError::Ended { length }) };
        }
        let grown = length + new.len() as u64;
        if grown > MOST_INPUT {
            return Err(InputError::TooMuch);
        }
        (&file).write_all(new)?;
        if ends {
            // An end must not survive a power cut that part of the input does not.
            file.sync_data()?;
            disk::replace(&self.end_mark(), grown.to_string().as_bytes(), As::PRIVATE)?;
        }
        Ok(grown)
    }

    pub fn remove(&self) -> Result<(), ExecutorError> {
        fs::remove_dir_all(&self.dir).map_err(ExecutorError::file("remove", &self.dir))
    }

    fn make(&self) -> io::Result<()> {
        disk::make_dir(&self.dir, PRIVATE_DIR, false).map(drop)
    }

    fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    fn end_mark(&self) -> PathBuf {
        self.dir.join("end")
    }

    /// How long the input is, once all of it was sent.
    fn end(&self) -> Option<u64> {
        fs::read_to_string(self.end_mark()).ok()?.parse().ok()
    }

    /// Feeds the input to whoever opens this pipe for reading, until it has ended or nobody reads any more. Returns at once.
    pub(crate) fn feed(self, pipe: PathBuf) -> Result<(), ExecutorError> {
        self.make().map_err(ExecutorError::file("make", &self.dir))?;
        let feed = move || {
            if let Err(error) = self.feed_now(&pipe)
                && error.kind() != io::ErrorKind::BrokenPipe
            {
                tracing::warn!(%error, "the input of a run was not passed on as a whole");
            }
        };
        let spawned = thread::Builder::new().name("input".into()).spawn(feed);
        spawned.map(drop).map_err(ExecutorError::system("start a thread for input"))
    }

    fn feed_now(&self, pipe: &Path) -> io::Result<()> {
        // Waits until the worker has opened its end.
        let mut worker = OpenOptions::new().write(true).open(pipe)?;
        if let Err(error) = fs::remove_file(pipe) {
            tracing::warn!(%error, "a pipe is left in the directory of a run");
        }
        let growth = Growth::of(&self.dir);
        let (mut fed, mut buffer) = (0, vec![0; CHUNK]);
        let mut data: Option<File> = None;
        loop {
            // Asked before the data is read: all of it is seen then.
            let end = self.end();
            if data.is_none() {
                data = File::open(self.data()).ok();
            }
            let read = data.as_ref().map_or(Ok(0), |data| data.read_at(&mut buffer, fed));
            let Ok(read) = read else {
                // To close the pipe would be to say that there is no more: a disk that fails may work again.
                thread::sleep(LOOK_AGAIN);
                continue;
            };
            if read > 0 {
                worker.write_all(&buffer[..read])?;
                fed += read as u64;
            } else if end.is_some_and(|end| fed >= end) {
                return Ok(());
            } else {
                growth.wait();
            }
        }
    }
}

fn folder(data_dir: &Path) -> PathBuf {
    data_dir.join("input")
}

/// That something in a directory has changed, as far as the kernel says so: a user may have so many of these only.
struct Growth(Option<OwnedFd>);

impl Growth {
    fn of(dir: &Path) -> Growth {
        let watched = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).and_then(|watch| {
            let changes = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::MOVED_TO;
            add_watch(&watch, dir, changes).map(|_| watch)
        });
        Growth(watched.ok())
    }

    fn wait(&self) {
        let Some(watch) = &self.0 else { return thread::sleep(LOOK_AGAIN) };
        // An interrupted wait is a look too many.
        let _ = poll(&mut [PollFd::new(watch, PollFlags::IN)], Some(&LOOK_AT_LEAST));
        let mut events = [0; 4096];
        while rustix::io::read(watch, &mut events).is_ok_and(|count| count > 0) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(data_dir: &Path) -> Input {
        Input::of(data_dir, "a")
    }

    fn text(input: &Input) -> String {
        fs::read_to_string(input.data()).unwrap()
    }

    #[test]
    fn what_is_sent_twice_is_taken_once() {
        let dir = tempfile::tempdir().unwrap();
        let input = input(dir.path());
        assert_eq!(input.take(0, b"one ", false).unwrap(), 4);
        assert_eq!(input.take(0, b"one two ", false).unwrap(), 8);
        assert_eq!(input.take(0, b"one ", false).unwrap(), 8);
        assert_eq!(input.take(8, b"three", true).unwrap(), 13);
        assert_eq!(input.take(8, b"three", true).unwrap(), 13, "also the end");
        assert_eq!(text(&input), "one two three");
    }

    #[test]
    fn a_gap_and_what_comes_after_the_end_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let input = input(dir.path());
        let refusal = input.take(5, b"late", false).unwrap_err().to_string();
        assert_eq!(refusal, "the input is at byte 0, and what was sent begins at byte 5");
        input.take(0, b"all", true).unwrap();
        let refusal = input.take(3, b"more", false).unwrap_err().to_string();
        assert_eq!(refusal, "the input has ended at byte 3");
    }

    #[test]
    fn a_job_takes_so_much_input_and_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let input = input(dir.path());
        input.take(0, b"", false).unwrap();
        OpenOptions::new().write(true).open(input.data()).unwrap().set_len(MOST_INPUT - 1).unwrap();
        assert!(matches!(input.take(MOST_INPUT - 1, b"ab", false), Err(InputError::TooMuch)));
        assert_eq!(input.take(MOST_INPUT - 1, b"a", true).unwrap(), MOST_INPUT);
    }
}
