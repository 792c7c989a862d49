//! Wakes those who follow a worker's output when there is more of it. The kernel watches the directories of logs; who
//! waits for a run that was not launched yet waits for its directory to be made.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;

use cluster::Run;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

use crate::Shell;
use crate::run_dir::{RunDir, name_of};

/// Rings for everyone who follows a log; one is enough for a service.
#[derive(Debug)]
pub struct LogBell {
    inotify: OwnedFd,
    places: Mutex<Places>,
    /// Closed with the bell, which ends the thread that rings it.
    _open: UnixStream,
}

/// Who waits for what, by the number of the watch on a directory.
#[derive(Debug, Default)]
struct Places {
    waiting: BTreeMap<i32, BTreeMap<u64, Waiting>>,
    next_follower: u64,
}

struct Waiting {
    /// With what the name of a file begins that matters to it.
    prefix: OsString,
    wake: Wake,
}

type Wake = Arc<dyn Fn() + Send + Sync>;

/// Somebody who wants to be woken.
pub struct LogFollower {
    bell: Arc<LogBell>,
    id: u64,
    wake: Wake,
    /// The watch it waits at.
    at: Mutex<Option<i32>>,
}

impl LogBell {
    /// A bell with a thread of its own that rings it.
    pub fn hang() -> io::Result<Arc<LogBell>> {
        let (bell, closed) = LogBell::silent()?;
        let (rung, changes) = (Arc::downgrade(&bell), bell.inotify.try_clone()?);
        thread::Builder::new().name("log bell".into()).spawn(move || keep_ringing(&rung, &changes, &closed))?;
        Ok(bell)
    }

    /// A bell that nobody rings, and what is closed with it.
    fn silent() -> io::Result<(Arc<LogBell>, UnixStream)> {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        let (open, closed) = UnixStream::pair()?;
        Ok((Arc::new(LogBell { inotify, places: Mutex::default(), _open: open }), closed))
    }

    /// `wake` is called by the thread that rings, and must return at once.
    pub fn follower(self: &Arc<LogBell>, wake: impl Fn() + Send + Sync + 'static) -> LogFollower {
        let mut places = self.places();
        let id = places.next_follower;
        places.next_follower += 1;
        LogFollower { bell: self.clone(), id, wake: Arc::new(wake), at: Mutex::new(None) }
    }

    /// Wakes everyone for whom something is new; it does not wait for that.
    fn ring(&self) -> io::Result<()> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.inotify, &mut buffer);
        loop {
            let event = match events.next() {
                Ok(event) => event,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let mut places = self.places();
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                places.waiting.values().flat_map(BTreeMap::values).for_each(|waiting| (waiting.wake)());
                continue;
            }
            let name = event.file_name().map(std::ffi::CStr::to_bytes);
            let here = places.waiting.get(&event.wd()).into_iter().flat_map(BTreeMap::values);
            // What has no name happens to the directory itself.
            here.filter(|waiting| name.is_none_or(|name| name.starts_with(waiting.prefix.as_bytes())))
                .for_each(|waiting| (waiting.wake)());
            if event.events().contains(ReadFlags::IGNORED) {
                // The directory is gone, and the kernel has forgotten the watch.
                places.waiting.remove(&event.wd());
            }
        }
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Until the bell is gone.
fn keep_ringing(bell: &Weak<LogBell>, changes: &OwnedFd, closed: &UnixStream) {
    loop {
        let mut watched = [
            PollFd::from_borrowed_fd(changes.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(closed.as_fd(), PollFlags::IN),
        ];
        let waited = match poll(&mut watched, None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        };
        let Some(bell) = bell.upgrade() else { return };
        if let Err(error) = waited.and_then(|()| bell.ring()) {
            tracing::warn!(%error, "changes of logs are not heard any more: followers look for themselves");
            return;
        }
    }
}

impl LogFollower {
    /// From now on it is woken when there may be more of this log than there is now. Each time it was woken, this is to
    /// be called again, before the log is read.
    pub fn listen(&self, data_dir: &Path, run: Run, worker: u32) -> io::Result<()> {
        let (dir, log) = (RunDir::of(data_dir, run), RunDir::of(data_dir, run).log(worker));
        let places: [(PathBuf, OsString); 3] = [
            (data_dir.join("runs"), name_of(run).into()),
            (dir.path().to_path_buf(), "logs".into()),
            (dir.file("logs"), log.file_name().unwrap_or_default().to_os_string()),
        ];
        // As a rule the log is there already.
        let [.., (logs, name)] = &places;
        if self.wait_at(logs, name)? {
            return Ok(());
        }
        // A directory that is made after it was not found is made below one that is watched.
        for (place, below) in &places {
            if !self.wait_at(place, below)? {
                break;
            }
        }
        Ok(())
    }

    /// The same for what is to be seen in a shell, and for its end.
    pub fn listen_to_shell(&self, shell: &Shell) -> io::Result<()> {
        let (dir, prefix) = shell.output_place();
        self.wait_at(dir, &prefix.into()).map(drop)
    }

    /// Waits at this directory and nowhere else; false if it does not exist.
    fn wait_at(&self, place: &Path, prefix: &OsString) -> io::Result<bool> {
        let flags = WatchFlags::MODIFY
            | WatchFlags::CREATE
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE_SELF
            | WatchFlags::ONLYDIR
            | WatchFlags::DONT_FOLLOW;
        let mut places = self.bell.places();
        let watch = match inotify::add_watch(&self.bell.inotify, place, flags) {
            Err(Errno::NOENT) => return Ok(false),
            watch => watch?,
        };
        let waiting = Waiting { prefix: prefix.clone(), wake: self.wake.clone() };
        places.waiting.entry(watch).or_default().insert(self.id, waiting);
        let before = self.at().replace(watch);
        if let Some(before) = before.filter(|&before| before != watch) {
            self.bell.leave(&mut places, before, self.id);
        }
        Ok(true)
    }

    fn at(&self) -> MutexGuard<'_, Option<i32>> {
        self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LogBell {
    fn leave(&self, places: &mut Places, watch: i32, follower: u64) {
        let Some(here) = places.waiting.get_mut(&watch) else { return };
        here.remove(&follower);
        if here.is_empty() {
            places.waiting.remove(&watch);
            // One whose directory is gone is not there any more.
            inotify::remove_watch(&self.inotify, watch).ok();
        }
    }
}

impl Drop for LogFollower {
    fn drop(&mut self) {
        let mut places = self.bell.places();
        let at = self.at().take();
        if let Some(watch) = at {
            self.bell.leave(&mut places, watch, self.id);
        }
    }
}

impl std::fmt::Debug for LogFollower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogFollower").field("id", &self.id).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiting").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::ClaimId;
    use std::fs;
    use std::sync::atomic::{AtomicU32, Ordering};

    const RUN: Run = Run { claim: ClaimId(7), attempt: 1 };

    struct Scene {
        data: tempfile::TempDir,
        bell: Arc<LogBell>,
        follower: LogFollower,
        woken: Arc<AtomicU32>,
    }

    fn scene() -> Scene {
        let data = tempfile::tempdir().unwrap();
        fs::create_dir(data.path().join("runs")).unwrap();
        let (bell, _) = LogBell::silent().unwrap();
        let woken = Arc::new(AtomicU32::new(0));
        let counted = woken.clone();
        let follower = bell.follower(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        Scene { data, bell, follower, woken }
    }

    impl Scene {
        fn path(&self, below: &str) -> PathBuf {
            self.data.path().join("runs").join(below)
        }

        /// Whether the follower is woken by this: events are there as soon as the call that caused them returns.
        fn is_woken_by(&self, change: impl FnOnce()) -> bool {
            self.follower.listen(self.data.path(), RUN, 0).unwrap();
            self.bell.ring().unwrap();
            self.woken.store(0, Ordering::Relaxed);
            change();
            self.bell.ring().unwrap();
            self.woken.load(Ordering::Relaxed) > 0
        }

        fn watch_count(&self) -> usize {
            self.bell.places().waiting.len()
        }
    }

    #[test]
    fn a_follower_is_woken_at_every_step_from_before_the_launch_to_the_next_line() {
        let scene = scene();
        assert!(scene.is_woken_by(|| fs::create_dir(scene.path("7.1")).unwrap()));
        assert!(scene.is_woken_by(|| fs::create_dir(scene.path("7.1/logs")).unwrap()));
        assert!(scene.is_woken_by(|| fs::write(scene.path("7.1/logs/worker-0.log"), "a line\n").unwrap()));
        assert!(scene.is_woken_by(|| fs::write(scene.path("7.1/logs/worker-0.log"), "a line\nand more\n").unwrap()));
        assert_eq!(scene.watch_count(), 1, "only the last place is watched");
    }

    #[test]
    fn a_log_that_is_put_aside_and_a_directory_that_is_removed_wake_too() {
        let scene = scene();
        fs::create_dir_all(scene.path("7.1/logs")).unwrap();
        fs::write(scene.path("7.1/logs/worker-0.log"), "full").unwrap();
        let rename = || fs::rename(scene.path("7.1/logs/worker-0.log"), scene.path("7.1/logs/worker-0.log.at-0"));
        assert!(scene.is_woken_by(|| rename().unwrap()));
        assert!(scene.is_woken_by(|| fs::remove_dir_all(scene.path("7.1/logs")).unwrap()));
        assert!(scene.is_woken_by(|| fs::create_dir(scene.path("7.1/logs")).unwrap()));
    }

    #[test]
    fn the_bell_rings_by_itself() {
        let data = tempfile::tempdir().unwrap();
        fs::create_dir_all(data.path().join("runs/7.1/logs")).unwrap();
        let bell = LogBell::hang().unwrap();
        let (sender, woken) = std::sync::mpsc::channel();
        let follower = bell.follower(move || sender.send(()).unwrap_or_default());
        follower.listen(data.path(), RUN, 0).unwrap();
        fs::write(data.path().join("runs/7.1/logs/worker-0.log"), "a line\n").unwrap();
        woken.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
    }

    #[test]
    fn what_others_write_wakes_nobody() {
        let scene = scene();
        assert!(!scene.is_woken_by(|| fs::create_dir(scene.path("8.1")).unwrap()));
        fs::create_dir_all(scene.path("7.1/logs")).unwrap();
        assert!(!scene.is_woken_by(|| fs::write(scene.path("7.1/logs/worker-1.log"), "another's\n").unwrap()));
    }

    #[test]
    fn a_follower_that_leaves_takes_its_watch_along() {
        let scene = scene();
        fs::create_dir_all(scene.path("7.1/logs")).unwrap();
        let other = scene.bell.follower(|| {});
        for follower in [&scene.follower, &other] {
            follower.listen(scene.data.path(), RUN, 0).unwrap();
        }
        drop(other);
        assert!(scene.is_woken_by(|| fs::write(scene.path("7.1/logs/worker-0.log"), "a line\n").unwrap()));
        let Scene { bell, follower, .. } = scene;
        drop(follower);
        assert!(bell.places().waiting.is_empty());
    }
}
