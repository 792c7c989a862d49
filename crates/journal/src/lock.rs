//! The lock that makes a journal one process's own. It is a file beside the journal, because SQLite's own locks must
//! leave room for readers. The system lets go of it when the process ends, however it ends.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::Path;

use crate::JournalError;
use crate::layout::beside;

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
            .open(&path)
            .map_err(JournalError::io("open the lock file", &path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut pid = String::new();
                // The name of the owner is a courtesy: not finding it does not change the answer.
                let _ = file.read_to_string(&mut pid);
                return Err(JournalError::InUse { path: journal.to_path_buf(), pid: pid.trim().parse().ok() });
            }
            Err(TryLockError::Error(error)) => return Err(JournalError::io("lock", &path)(error)),
        }
        sign(&mut file).map_err(JournalError::io("write the lock file", &path))?;
        Ok(Lock(file))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing would not do: a process that is just being started has the file open too until it becomes its program.
        // If this fails, the lock goes with that process.
        let _ = self.0.unlock();
    }
}

fn sign(file: &mut File) -> std::io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}
