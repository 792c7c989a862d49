//! Who uses a GPU: two services that give out the same devices would each believe to have them alone. A service takes a
//! lock for each NVIDIA GPU in a place that all services of the machine know; virtual devices and cores are not locked.
//!
//! Everyone may write in that place, so nothing there is believed that somebody else could have put there: a service's own
//! lock is a file that only its user can open, and what another user's service says of itself counts only if that user
//! wrote it and the process lives. Root is never kept out by what others say.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use crate::ExecutorError;
use crate::private::PRIVATE_FILE;
use crate::process::{Identity, Process};
use crate::theirs::open_owned;

/// Where the locks are: the first of these that everyone may write to.
pub(crate) const PLACES: [&str; 2] = ["/run/lock", "/tmp"];
/// More is not read of what a service says of itself.
const LONGEST_NOTE: u64 = 8 << 10;

/// The locks of a service's GPUs. The system lets go of them when the process ends, however it ends.
#[derive(Debug, Default)]
pub(crate) struct DeviceLocks {
    held: Vec<Held>,
}

#[derive(Debug)]
struct Held {
    _lock: File,
    note: PathBuf,
}

/// What a service says of itself, for others who want the same device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Note {
    identity: Identity,
    data_dir: PathBuf,
}

impl DeviceLocks {
    /// Takes the locks of all these devices, or none.
    pub(crate) fn take(uuids: &[&str], data_dir: &Path) -> Result<DeviceLocks, ExecutorError> {
        match uuids {
            [] => Ok(DeviceLocks::default()),
            uuids => DeviceLocks::take_in(&place(), uuids, data_dir, geteuid().as_raw()),
        }
    }

    fn take_in(place: &Path, uuids: &[&str], data_dir: &Path, user: u32) -> Result<DeviceLocks, ExecutorError> {
        let mut locks = DeviceLocks::default();
        for uuid in uuids {
            locks.held.push(take_one(place, uuid, data_dir, user)?);
        }
        Ok(locks)
    }
}

impl Drop for DeviceLocks {
    fn drop(&mut self) {
        // A note that stays behind names a process that is gone, which says as much.
        self.held.iter().for_each(|held| drop(fs::remove_file(&held.note)));
    }
}

fn place() -> PathBuf {
    let is_for_everyone = |path: &&&str| fs::metadata(path).is_ok_and(|data| data.is_dir() && data.mode() & 0o002 != 0);
    PLACES.iter().find(is_for_everyone).unwrap_or(&PLACES[1]).into()
}

fn take_one(place: &Path, uuid: &str, data_dir: &Path, user: u32) -> Result<Held, ExecutorError> {
    let in_use = |note: Option<Note>| ExecutorError::DeviceInUse {
        device: uuid.to_string(),
        pid: note.as_ref().map_or(0, |note| note.identity.pid),
        data_dir: note.map_or_else(|| "an unknown directory".into(), |note| note.data_dir),
    };
    let path = place.join(format!("moira-{uuid}.{user}.lock"));
    let note = place.join(format!("moira-{uuid}.{user}.json"));
    let lock = open_own(&path, user).map_err(ExecutorError::file("open", &path))?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Err(in_use(read_note(&note, user))),
        Err(error) => return Err(ExecutorError::file("lock", &path)(error.into())),
    }
    // First said and then asked: of two that come at once, at least one hears of the other.
    write_note(&note, data_dir).map_err(ExecutorError::file("write", &note))?;
    let held = Held { _lock: lock, note };
    for (other, theirs) in notes_of_others(place, uuid, user) {
        if user == 0 {
            tracing::warn!(device = uuid, user = other, pid = theirs.identity.pid, data_dir = %theirs.data_dir.display(),
                "another user's service uses this device too");
            continue;
        }
        drop(fs::remove_file(&held.note));
        return Err(in_use(Some(theirs)));
    }
    Ok(held)
}

/// A file that only this user can open, so that nobody else can hold its lock. One that somebody else has put there is
/// removed, which root can.
fn open_own(path: &Path, user: u32) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    for _ in 0..10 {
        let fresh = OpenOptions::new().write(true).create_new(true).mode(PRIVATE_FILE).custom_flags(flags).open(path);
        match fresh {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made,
        }
        let found = fs::symlink_metadata(path);
        let is_own = |data: &fs::Metadata| data.is_file() && data.uid() == user && data.mode() & 0o077 == 0;
        if found.as_ref().is_ok_and(is_own) {
            return OpenOptions::new().write(true).custom_flags(flags).open(path);
        }
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, "somebody else puts a file in its place again and again"))
}

fn write_note(path: &Path, data_dir: &Path) -> io::Result<()> {
    let identity = Identity::of(std::process::id() as i32).ok_or(io::ErrorKind::NotFound)?;
    let text = serde_json::to_vec(&Note { identity, data_dir: data_dir.to_path_buf() })?;
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    // Others are to read it: it says whom to ask.
    file.set_permissions(fs::Permissions::from_mode(0o644))?;
    file.write_all(&text)
}

/// What the service of a user says of itself, if the user wrote it and the process lives and is that user's.
fn read_note(path: &Path, user: u32) -> Option<Note> {
    let mut text = Vec::new();
    open_owned(path, user).ok()?.take(LONGEST_NOTE).read_to_end(&mut text).ok()?;
    let note: Note = serde_json::from_slice(&text).ok()?;
    let process = Process::read(note.identity.pid).filter(|it| it.identity == note.identity && !it.is_dead)?;
    (process.user() == Some(user)).then_some(note)
}

fn notes_of_others(place: &Path, uuid: &str, user: u32) -> Vec<(u32, Note)> {
    let of_entry = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let other = name.strip_prefix(&format!("moira-{uuid}."))?.strip_suffix(".json")?.parse().ok()?;
        (other != user).then_some(())?;
        Some((other, read_note(&entry.path(), other)?))
    };
    fs::read_dir(place).map(|entries| entries.flatten().filter_map(of_entry).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use super::*;

    const GPU: &str = "GPU-0c0ffee0";
    const NOBODY: u32 = 65534;

    /// A place in which everyone may write.
    fn place() -> tempfile::TempDir {
        let place = tempfile::tempdir().unwrap();
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        place
    }

    fn take(place: &tempfile::TempDir, data_dir: &str) -> Result<DeviceLocks, String> {
        let user = geteuid().as_raw();
        DeviceLocks::take_in(place.path(), &[GPU], Path::new(data_dir), user).map_err(|error| error.to_string())
    }

    #[test]
    fn a_second_service_is_refused_and_told_who_has_the_device() {
        let place = place();
        let first = take(&place, "/data/first").unwrap();
        let refused = take(&place, "/data/second").unwrap_err();
        let own = std::process::id();
        assert_eq!(
            refused,
            format!("GPU {GPU} is used by another service, process {own} with the data directory /data/first")
        );
        drop(first);
        take(&place, "/data/second").unwrap();
    }

    #[test]
    fn other_devices_are_free_and_the_lock_of_the_dead_is_too() {
        let place = place();
        let _first = take(&place, "/data/first").unwrap();
        DeviceLocks::take_in(place.path(), &["GPU-other"], Path::new("/data/second"), geteuid().as_raw()).unwrap();
        // A service that was killed leaves its files; the system has let go of its lock.
        let (dead, user) = (self::place(), geteuid().as_raw());
        fs::write(dead.path().join(format!("moira-{GPU}.{user}.lock")), "").unwrap();
        fs::write(dead.path().join(format!("moira-{GPU}.{user}.json")), "{}").unwrap();
        take(&dead, "/data/second").unwrap();
    }

    /// What another user does in the place, as a script of the shell.
    fn by_nobody(place: &tempfile::TempDir, script: &str) -> std::process::Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]).current_dir(place.path()).uid(NOBODY).gid(NOBODY);
        command.stdout(Stdio::piped()).spawn().unwrap()
    }

    #[test]
    fn nobody_else_can_keep_root_out_by_being_there_first() {
        if !geteuid().is_root() {
            return;
        }
        for trick in [
            "echo",
            "mkfifo LOCK; echo",
            "ln -s /etc/passwd LOCK; echo",
            "touch LOCK; exec flock LOCK sh -c 'echo; exec sleep 60'",
        ] {
            let place = place();
            let trick = trick.replace("LOCK", &format!("moira-{GPU}.0.lock"));
            let forged = format!("moira-{GPU}.0.json");
            let mut hostile = by_nobody(&place, &format!("echo forged > {forged}; {trick}"));
            // It says a line when it has done what it came for.
            hostile.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
            let taken = take(&place, "/data/root");
            hostile.kill().unwrap();
            hostile.wait().unwrap();
            assert!(taken.is_ok(), "{trick}: {taken:?}");
            assert!(fs::metadata("/etc/passwd").unwrap().len() > 0);
        }
    }

    #[test]
    fn a_service_of_root_keeps_another_users_out() {
        if !geteuid().is_root() {
            return;
        }
        let place = place();
        let _roots = take(&place, "/data/root").unwrap();
        let refused = DeviceLocks::take_in(place.path(), &[GPU], Path::new("/data/theirs"), NOBODY).unwrap_err();
        assert!(refused.to_string().contains("/data/root"), "{refused}");
    }
}
