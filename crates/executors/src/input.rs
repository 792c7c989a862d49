//! What is sent to the standard input of a job. The service appends it to a spool of bounded size; the supervisor of a run
//! feeds it to the first worker through a named pipe, in a thread of its own, so that neither the service nor the
//! supervisor ever waits for a job that does not read. A spool outlives both: after a restart of the service the rest is
//! appended, and another run of the same job reads it from the beginning.
//!
//! | file | written by | after a power cut |
//! |---|---|---|
//! | `data` | service | whole if `end` is there; otherwise it may be torn, and is not used |
//! | `boot` | service | in which boot of the machine `data` was begun; written before the first byte of it |
//! | `end` | service | how long the input is, once all of it was sent; whole |
//! | `window` | service | may be torn or absent |
//!
//! So input is durable once its end is answered. What was sent of one that has not ended goes with the machine: whoever
//! sends on is told to begin at byte 0, and a run that would wait for the rest fails. A shell ends with the machine, and
//! its input with it: that has no `boot`.
//!
//! What is typed at a terminal goes the same way, but only once: the next run of the job goes on behind it, and what a
//! terminal has taken is overwritten in the spool, since it may be a password.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use disk::As;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::ExecutorError;
use crate::assignment::new_token;
use crate::private::{PRIVATE_DIR, PRIVATE_FILE};
use crate::process::boot_id;
use crate::terminal::{Window, set_window};

/// More than this cannot be sent to one job.
pub const MOST_INPUT: u64 = 64 << 20;

/// How often a spool is looked at if the kernel does not say that it has grown.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// How often it is looked at all the same.
const LOOK_AT_LEAST: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
const CHUNK: usize = 64 << 10;

/// Ctrl-D: by this character a terminal says that nothing follows.
const END_OF_TYPING: &[u8] = &[4];

/// The spool of one submission. Its name was drawn, so that no other job ever has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    dir: PathBuf,
    /// Of one that is part of something else, the file in its directory with which that ends.
    ends_with: Option<&'static str>,
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
        Input { dir: folder(data_dir).join(name), ends_with: None }
    }

    /// A spool that is part of something else, which makes the directory and ends when there is this file in it.
    pub(crate) fn in_dir(dir: &Path, ends_with: &'static str) -> Input {
        Input { dir: dir.to_path_buf(), ends_with: Some(ends_with) }
    }

    /// The names of all spools that there are.
    pub fn names_in(data_dir: &Path) -> Result<Vec<String>, ExecutorError> {
        crate::origin::names_in(&folder(data_dir))
    }

    /// Takes bytes that begin at this place of all input, and returns how much there is of it now. What was taken before is
    /// passed over, so that a client which heard no answer may send the same again.
    pub fn take(&self, offset: u64, bytes: &[u8], ends: bool) -> Result<u64, InputError> {
        let file = self.lock()?;
        if self.ends_with.is_none() {
            // Until its sender begins anew, what was lost stays known: a run would wait for it.
            if offset > 0 && self.begun()? == Begun::BeforeRestart {
                return Err(InputError::Gap { offset, length: 0 });
            }
            self.begin(&file)?;
        }
        let length = file.metadata()?.len();
        let new = length.checked_sub(offset).ok_or(InputError::Gap { offset, length })?;
        let new = bytes.get(usize::try_from(new).unwrap_or(usize::MAX)..).unwrap_or_default();
        if let Some(length) = self.end() {
            if !new.is_empty() {
                return Err(InputError::Ended { length });
            }
            // It is asked again perhaps because this failed: only that the end survives a power cut is not sure then.
            disk::sync_dir(&self.dir)?;
            return Ok(length);
        }
        let grown = length + new.len() as u64;
        if grown > MOST_INPUT {
            return Err(InputError::TooMuch);
        }
        disk::write_at(&file, &self.data(), new, length)?;
        if ends {
            // An end must not survive a power cut that part of the input does not.
            disk::sync(&file, &self.data())?;
            disk::replace(&self.end_mark(), grown.to_string().as_bytes(), As::PRIVATE)?;
        }
        Ok(grown)
    }

    /// Notes how large the terminal is from now on at which this is typed.
    pub fn set_window(&self, window: Window) -> Result<(), InputError> {
        let _one = self.lock()?;
        let text = serde_json::to_vec(&window).map_err(io::Error::from)?;
        Ok(disk::replace(&self.window_note(), &text, As::PRIVATE.loose())?)
    }

    /// What a power cut brings back of it is removed like any other whose job has ended.
    pub fn remove(&self) -> Result<(), ExecutorError> {
        fs::remove_dir_all(&self.dir).map_err(ExecutorError::file("remove", &self.dir))
    }

    /// The open spool; nobody else takes input meanwhile.
    fn lock(&self) -> Result<File, InputError> {
        self.make()?;
        let file = disk::open_in_place(&self.data(), PRIVATE_FILE)?;
        flock(&file, FlockOperation::LockExclusive).map_err(io::Error::from)?;
        if self.ends_with.is_some_and(|end| self.dir.join(end).exists()) {
            let length = file.metadata()?.len();
            // What belongs to something that has ended was removed, or is about to be.
            self.forget();
            return Err(InputError::Ended { length });
        }
        Ok(file)
    }

    /// Makes sure that the spool is found after a power cut, and that nothing is taken for sent that one may have torn.
    fn begin(&self, data: &File) -> io::Result<()> {
        match self.begun()? {
            Begun::InThisBoot | Begun::Ended => return Ok(()),
            Begun::BeforeRestart => disk::empty(data, &self.data())?,
            Begun::Unknown => {}
        }
        // The note comes last: with it, all above it is durable.
        self.dir.ancestors().skip(1).take(2).try_for_each(disk::sync_dir)?;
        disk::replace(&self.boot_note(), boot_id().as_bytes(), As::PRIVATE)
    }

    fn begun(&self) -> io::Result<Begun> {
        if self.end().is_some() {
            return Ok(Begun::Ended);
        }
        match fs::read(self.boot_note()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Begun::Unknown),
            boot => Ok(if boot? == boot_id().as_bytes() { Begun::InThisBoot } else { Begun::BeforeRestart }),
        }
    }

    /// Why no run can ever read all of the input.
    fn flaw(&self) -> Option<String> {
        // The end comes last: of what was there before it, all is there when it is.
        let (begun, end) = (self.begun(), self.end());
        let length = fs::metadata(self.data()).map_or(0, |data| data.len());
        match (begun, end) {
            (Ok(Begun::BeforeRestart), _) => Some("it was not sent to its end before the machine was restarted".into()),
            (_, Some(end)) if length < end => Some(format!("of {end} bytes that were sent {length} are left")),
            _ => None,
        }
    }

    /// What has come and can be relied upon.
    fn open_data(&self) -> Option<File> {
        match self.begun() {
            Ok(Begun::InThisBoot | Begun::Ended | Begun::Unknown) => {
                OpenOptions::new().read(true).write(true).open(self.data()).ok()
            }
            Ok(Begun::BeforeRestart) | Err(_) => None,
        }
    }

    /// Removes what was sent and said. Whoever still has it open sees it until the end.
    pub(crate) fn forget(&self) {
        for path in [self.data(), self.window_note()] {
            if let Err(error) = disk::remove(&path) {
                tracing::warn!(%error, "what was typed is removed with the run only");
            }
        }
    }

    /// What it is part of may be gone, and must not come back.
    fn make(&self) -> io::Result<()> {
        match self.ends_with {
            None => disk::make_dir(&self.dir, PRIVATE_DIR, false).map(drop),
            Some(_) => Ok(()),
        }
    }

    fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    fn end_mark(&self) -> PathBuf {
        self.dir.join("end")
    }

    fn boot_note(&self) -> PathBuf {
        self.dir.join("boot")
    }

    fn window_note(&self) -> PathBuf {
        self.dir.join("window")
    }

    /// What was last noted; a note that is not there or torn is none.
    fn window(&self) -> Option<Window> {
        serde_json::from_slice(&fs::read(self.window_note()).ok()?).ok()
    }

    /// How long the input is, once all of it was sent.
    fn end(&self) -> Option<u64> {
        fs::read_to_string(self.end_mark()).ok()?.parse().ok()
    }

    /// Feeds the input to whoever opens this pipe for reading, until it has ended or nobody reads any more. Returns at once.
    /// Input of which a part was lost is refused: its reader would wait for the rest, perhaps for ever.
    pub(crate) fn feed(self, pipe: PathBuf) -> Result<(), ExecutorError> {
        if let Some(reason) = self.flaw() {
            return Err(ExecutorError::Input { reason });
        }
        self.in_a_thread(move |input| {
            // Waits until the worker has opened its end.
            let worker = OpenOptions::new().write(true).open(&pipe)?;
            if let Err(error) = fs::remove_file(&pipe) {
                tracing::warn!(%error, "a pipe is left in the directory of a run");
            }
            input.feed_now(&mut Outlet::Pipe(worker), 0)
        })
    }

    /// Types the input at a terminal of which this is the end for it, from here on or from where it ends now, until no
    /// program has the terminal any more. Returns at once.
    pub(crate) fn type_at(self, terminal: File, from: Typing) -> Result<(), ExecutorError> {
        let begin = match from {
            Typing::FromStart => 0,
            Typing::FromNow => self.open_data().and_then(|data| data.metadata().ok()).map_or(0, |data| data.len()),
        };
        self.in_a_thread(move |input| input.feed_now(&mut Outlet::Terminal { terminal, window: None }, begin))
    }

    fn in_a_thread(self, feed: impl FnOnce(&Input) -> io::Result<()> + Send + 'static) -> Result<(), ExecutorError> {
        self.make().map_err(ExecutorError::file("make", &self.dir))?;
        let feed = move || {
            if let Err(error) = feed(&self)
                && !is_absence(&error)
            {
                tracing::warn!(%error, "the input of a run was not passed on as a whole");
            }
        };
        let spawned = thread::Builder::new().name("input".into()).spawn(feed);
        spawned.map(drop).map_err(ExecutorError::system("start a thread for input"))
    }

    fn feed_now(&self, outlet: &mut Outlet, begin: u64) -> io::Result<()> {
        let growth = Growth::of(&self.dir);
        let (mut fed, mut buffer) = (begin, vec![0; CHUNK]);
        let mut data: Option<File> = None;
        loop {
            outlet.fit(self);
            // Asked before the data is read: all of it is seen then.
            let end = self.end();
            if data.is_none() {
                data = self.open_data();
            }
            let read = data.as_ref().map_or(Ok(0), |data| data.read_at(&mut buffer, fed));
            let Ok(read) = read else {
                // To close the pipe would be to say that there is no more: a disk that fails may work again.
                thread::sleep(LOOK_AGAIN);
                continue;
            };
            if read > 0 {
                outlet.pass_on(&buffer[..read])?;
                if let (Outlet::Terminal { .. }, Some(data)) = (&*outlet, &data) {
                    buffer[..read].fill(0);
                    // What cannot be overwritten is removed with the spool.
                    let _ = data.write_all_at(&buffer[..read], fed);
                }
                fed += read as u64;
            } else if end.is_some_and(|end| fed >= end) {
                return outlet.end();
            } else if growth.wait(outlet) == Wait::HungUp {
                return Ok(());
            }
        }
    }
}

/// When the first byte of a spool was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begun {
    InThisBoot,
    /// Its bytes were not synced, and may not be what was sent.
    BeforeRestart,
    /// All of it was taken, and is durable.
    Ended,
    /// Not yet, or by a version that did not say it.
    Unknown,
}

/// Which part of the input is typed at a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Typing {
    FromStart,
    /// What comes from now on: what came before was meant for another program.
    FromNow,
}

/// Where input goes.
enum Outlet {
    Pipe(File),
    Terminal {
        terminal: File,
        /// The size it was given last.
        window: Option<Window>,
    },
}

impl Outlet {
    fn pass_on(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Outlet::Pipe(file) | Outlet::Terminal { terminal: file, .. } => file.write_all(bytes),
        }
    }

    /// Gives a terminal the size that was noted.
    fn fit(&mut self, input: &Input) {
        let Outlet::Terminal { terminal, window } = self else { return };
        let Some(noted) = input.window().filter(|noted| Some(*noted) != *window) else { return };
        match set_window(terminal, noted) {
            Ok(()) => *window = Some(noted),
            Err(error) => tracing::warn!(%error, "a terminal does not get its size"),
        }
    }

    /// A pipe says so by being closed.
    fn end(&mut self) -> io::Result<()> {
        match self {
            Outlet::Pipe(_) => Ok(()),
            Outlet::Terminal { terminal, .. } => terminal.write_all(END_OF_TYPING),
        }
    }

    /// What says by itself that nobody is at the other end any more.
    fn watched(&self) -> Option<&File> {
        match self {
            Outlet::Pipe(_) => None,
            Outlet::Terminal { terminal, .. } => Some(terminal),
        }
    }
}

/// Whether it only says that nobody reads any more, as a pipe and a terminal say it.
fn is_absence(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe || error.raw_os_error() == Some(Errno::IO.raw_os_error())
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

    fn wait(&self, outlet: &Outlet) -> Wait {
        if self.0.is_none() {
            thread::sleep(LOOK_AGAIN);
        }
        let (patience, mut watched) = match &self.0 {
            Some(watch) => (LOOK_AT_LEAST, vec![PollFd::new(watch, PollFlags::IN)]),
            None => (Timespec::default(), Vec::new()),
        };
        watched.extend(outlet.watched().map(|terminal| PollFd::from_borrowed_fd(terminal.as_fd(), PollFlags::empty())));
        // An interrupted wait is a look too many.
        let _ = poll(&mut watched, Some(&patience));
        let is_over = watched.last().is_some_and(|last| last.revents().contains(PollFlags::HUP));
        if let Some(watch) = &self.0 {
            let mut events = [0; 4096];
            while rustix::io::read(watch, &mut events).is_ok_and(|count| count > 0) {}
        }
        if is_over { Wait::HungUp } else { Wait::Over }
    }
}

/// How a wait has ended.
#[derive(Debug, PartialEq, Eq)]
enum Wait {
    Over,
    /// No program has the terminal any more.
    HungUp,
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
    fn until_it_is_sent_anew_no_run_waits_for_what_was_lost_with_the_machine() {
        let dir = tempfile::tempdir().unwrap();
        let input = input(dir.path());
        let pipe = || dir.path().join("no reader");
        assert_eq!(input.take(0, b"one ", false).unwrap(), 4);
        fs::write(input.boot_note(), "another boot").unwrap();
        for _ in 0..2 {
            assert!(matches!(input.take(4, b"two", true), Err(InputError::Gap { offset: 4, length: 0 })));
            input.set_window(Window { rows: 24, columns: 80 }).unwrap();
            assert!(input.clone().feed(pipe()).is_err());
        }
        assert_eq!(input.take(0, b"one two", true).unwrap(), 7);
        assert_eq!((text(&input).as_str(), input.flaw()), ("one two", None));
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
