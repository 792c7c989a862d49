//! The lock that makes a journal one process's own. It is a file beside the journal, because SQLite's own locks must
//! leave room for readers. The system lets go of it when the process ends, however it ends.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::JournalError;
use crate::layout::{PRIVATE_FILE, beside};

/// How long the lock of an owner that is gone may remain.
const LINGERING: Duration = Duration::from_secs(5);

/// Held as long as it lives.
#[derive(Debug)]
pub(crate) struct Lock(File);

impl Lock {
    pub(crate) fn take(journal: &Path) -> Result<Lock, JournalError> {
        let path = beside(journal, ".lock");
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(PRIVATE_FILE)
            .open(&path)
            .map_err(JournalError::io("open the lock file", &path))?;
        let began = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::Error(error)) => return Err(JournalError::io("lock", &path)(error)),
                Err(TryLockError::WouldBlock) => {}
            }
            let pid = owner(&mut file);
            // Of an owner that was killed, a process that was just being started has the lock for a moment longer.
            let lingers = pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists());
            if !lingers || began.elapsed() > LINGERING {
                return Err(JournalError::InUse { path: journal.to_path_buf(), pid });
            }
            thread::sleep(Duration::from_millis(10));
        }
        sign(&mut file).map_err(JournalError::io("write the lock file", &path))?;
        Ok(Lock(file))
    }
}

/// Whether a process holds the journal at `path` as its own. Nothing is made to find out.
pub fn is_in_use(path: &Path) -> Result<bool, JournalError> {
    let path = beside(path, ".lock");
    let cannot = || JournalError::io("lock", &path);
    match File::open(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(cannot()(error)),
        // Shared: of two that look at once, neither takes the other for the owner.
        Ok(file) => match file.try_lock_shared() {
            Ok(()) => Ok(false),
            Err(TryLockError::WouldBlock) => Ok(true),
            Err(TryLockError::Error(error)) => Err(cannot()(error)),
        },
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing would not do: a process that is just being started has the file open too until it becomes its program.
        // If this fails, the lock goes with that process.
        let _ = self.0.unlock();
    }
}

/// As it signed. A courtesy: not finding it does not change the answer.
fn owner(file: &mut File) -> Option<u32> {
    let mut pid = String::new();
    file.rewind().and_then(|()| file.read_to_string(&mut pid)).ok()?;
    pid.trim().parse().ok()
}

fn sign(file: &mut File) -> std::io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More than any process has.
    const NOBODY: &str = "4194305";

    fn held(dir: &Path, by: &str) -> File {
        let file = File::create(dir.join("journal.db.lock")).unwrap();
        file.lock().unwrap();
        std::fs::write(dir.join("journal.db.lock"), by).unwrap();
        file
    }

    #[test]
    fn the_lock_of_an_owner_that_was_killed_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let lingering = held(dir.path(), NOBODY);
        let freed = thread::spawn(move || {
            thread::sleep(Duration::from_millis(200));
            drop(lingering);
        });
        Lock::take(&dir.path().join("journal.db")).unwrap();
        freed.join().unwrap();
    }

    #[test]
    fn an_owner_that_lives_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let own = std::process::id();
        let _held = held(dir.path(), &own.to_string());
        let refused = Lock::take(&dir.path().join("journal.db"));
        assert!(matches!(refused, Err(JournalError::InUse { pid: Some(pid), .. }) if pid == own));
    }

    #[test]
    fn whether_a_journal_is_in_use_is_found_without_making_or_keeping_anything() {
        let dir = tempfile::tempdir().unwrap();
        let journal = dir.path().join("journal.db");
        assert!(!is_in_use(&journal).unwrap(), "nobody ever used it");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let lock = Lock::take(&journal).unwrap();
        assert!(is_in_use(&journal).unwrap());
        drop(lock);
        let looking = File::open(dir.path().join("journal.db.lock")).unwrap();
        looking.try_lock_shared().unwrap();
        assert!(!is_in_use(&journal).unwrap(), "somebody else only looks too");
        drop(looking);
        Lock::take(&journal).unwrap();
    }
}
