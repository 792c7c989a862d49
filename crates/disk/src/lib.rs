//! Small files that survive a power cut. A file is replaced whole, so a reader sees the old one or the new one; what must
//! be there after a power cut is on the disk before the call returns. What the files mean is not known here.
//!
//! Every step that changes the disk goes through [`tape`]: a test can record the steps, see what a power cut after each
//! of them leaves, or let one of them fail.

pub mod cut;
pub mod tape;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use tape::{Step, step};

/// How a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct As {
    /// The permission bits of a new file.
    pub mode: u32,
    /// User and group, if they are to be others than the writer's.
    pub owner: Option<(u32, u32)>,
    /// Whether the file is on the disk when the call returns. One that is not may be empty, torn or absent after a power
    /// cut, and its reader has to live with that.
    pub durable: bool,
    /// Whether it may take the place of a spare file if the disk is full: see [`set_aside`].
    pub essential: bool,
}

impl As {
    /// Durable, and for the writer alone.
    pub const PRIVATE: As = As { mode: 0o600, owner: None, durable: true, essential: false };

    /// Like it, but allowed to be lost.
    pub const fn loose(self) -> As {
        As { durable: false, ..self }
    }

    /// Like it, but written on a full disk too.
    pub const fn essential(self) -> As {
        As { essential: true, ..self }
    }

    pub const fn owned_by(self, owner: Option<(u32, u32)>) -> As {
        As { owner, ..self }
    }
}

/// What the name of a file ends with until it is whole.
const UNFINISHED: &str = ".tmp";
/// What the names of spare files begin with.
const SPARE: &str = "spare.";

/// Replaces a file whole: it is written beside its place, synced, moved, and then its directory is synced. An error means
/// that the old file is in place, except if only that last sync failed: then the new one is, and may not survive a power
/// cut.
pub fn replace(path: &Path, bytes: &[u8], how: As) -> io::Result<()> {
    let mut fresh = path.as_os_str().to_os_string();
    fresh.push(format!(".{}{UNFINISHED}", std::process::id()));
    let fresh = PathBuf::from(fresh);
    let mut written = write(&fresh, bytes, how).and_then(|()| rename(&fresh, path));
    if how.essential && written.as_ref().is_err_and(is_full) {
        written = write_over_spare(&fresh, bytes, how).and_then(|()| rename(&fresh, path));
    }
    if written.is_err() {
        // Half a file only takes space, which may be what is missing.
        let _ = remove(&fresh);
    }
    written?;
    if how.durable { sync_dir(parent(path)) } else { Ok(()) }
}

fn write(path: &Path, bytes: &[u8], how: As) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.create(true).write(true).truncate(true).mode(how.mode);
    let mut file = step(|| Step::Create(path.into()), || options.open(path))?;
    step(|| Step::Write(path.into(), bytes.into()), || file.write_all(bytes))?;
    finish(path, &file, how)
}

fn finish(path: &Path, file: &File, how: As) -> io::Result<()> {
    if let Some((uid, gid)) = how.owner {
        chown(path, Some(uid), Some(gid))?;
    }
    if how.durable { step(|| Step::Sync(path.into()), || file.sync_all()) } else { Ok(()) }
}

/// Sets room aside in a directory: so many files of so many bytes each. What is essential is written over them when the disk
/// is full, which takes no new room.
pub fn set_aside(dir: &Path, count: usize, bytes: usize) -> io::Result<()> {
    let zeros = vec![0; bytes];
    for number in 0..count {
        let path = dir.join(format!("{SPARE}{number}"));
        if fs::metadata(&path).is_ok_and(|spare| spare.len() == bytes as u64) {
            continue;
        }
        if let Err(error) = write(&path, &zeros, As::PRIVATE.loose()) {
            // Half a file is no room that was set aside.
            let _ = remove(&path);
            return Err(error);
        }
    }
    Ok(())
}

/// Gives back a part of the room that was set aside; false if none is left.
pub fn give_back(dir: &Path) -> io::Result<bool> {
    match spares(dir)?.first() {
        Some(spare) => remove(spare).map(|()| true),
        None => Ok(false),
    }
}

/// Gives back what is left of the room that was set aside.
pub fn remove_spares(dir: &Path) -> io::Result<()> {
    spares(dir)?.iter().try_for_each(|spare| remove(spare))
}

/// Whether an error means that there is no room.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn write_over_spare(path: &Path, bytes: &[u8], how: As) -> io::Result<()> {
    remove(path)?;
    let large_enough = |spare: &PathBuf| fs::metadata(spare).is_ok_and(|spare| spare.len() >= bytes.len() as u64);
    let fitting = spares(parent(path))?.into_iter().filter(large_enough);
    // Someone else may take the same one at the same moment: one of the two gets it.
    let taken = fitting.into_iter().find(|spare| rename(spare, path).is_ok());
    taken.ok_or(io::ErrorKind::StorageFull)?;
    let mut file = OpenOptions::new().write(true).open(path)?;
    step(
        || Step::Write(path.into(), bytes.into()),
        || {
            file.write_all(bytes)?;
            file.set_len(bytes.len() as u64)
        },
    )?;
    finish(path, &file, how)
}

fn spares(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(SPARE) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// An empty file that others append to, made if absent. It is not synced.
pub fn create(path: &Path, mode: u32) -> io::Result<File> {
    let open = || OpenOptions::new().create(true).append(true).mode(mode).open(path);
    if path.exists() { open() } else { step(|| Step::Create(path.into()), open) }
}

/// A file that is written in place, made if absent.
pub fn open_in_place(path: &Path, mode: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(mode);
    if path.exists() { options.open(path) } else { step(|| Step::Create(path.into()), || options.open(path)) }
}

/// Writes in place. Until it is synced a power cut may leave the bytes that were there, or a part of these.
pub fn write_at(file: &File, path: &Path, bytes: &[u8], place: u64) -> io::Result<()> {
    step(|| Step::WriteAt(path.into(), place, bytes.into()), || file.write_all_at(bytes, place))
}

/// Takes all bytes from a file that is written in place. Until that is synced they may come back with a power cut.
pub fn empty(file: &File, path: &Path) -> io::Result<()> {
    step(|| Step::Create(path.into()), || file.set_len(0))
}

pub fn sync(file: &File, path: &Path) -> io::Result<()> {
    step(|| Step::Sync(path.into()), || file.sync_all())
}

/// A file that is too large to be written at once. It is to be given its name by [`rename`] when it is whole.
#[derive(Debug)]
pub struct Stream {
    path: PathBuf,
    file: File,
    written: u64,
}

impl Stream {
    /// Empties a file that is there.
    pub fn create(path: &Path, mode: u32) -> io::Result<Stream> {
        let mut options = OpenOptions::new();
        options.create(true).write(true).truncate(true).mode(mode);
        let file = step(|| Step::Create(path.into()), || options.open(path))?;
        Ok(Stream { path: path.into(), file, written: 0 })
    }

    pub fn sync(&self) -> io::Result<()> {
        sync(&self.file, &self.path)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        write_at(&self.file, &self.path, bytes, self.written)?;
        self.written += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Makes a directory and all above it that are missing. True if it is new; then its name is on the disk if `durable`.
pub fn make_dir(path: &Path, mode: u32, durable: bool) -> io::Result<bool> {
    let make = || {
        step(|| Step::MakeDir(path.into()), || DirBuilder::new().mode(mode).create(path))?;
        // Whatever umask the process has.
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
    };
    let made = match make() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make_dir(parent(path), mode, durable)?;
            make()
        }
        made => made,
    };
    match made {
        Ok(()) if durable => sync_dir(parent(path)).map(|()| true),
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Moves a file or directory. The move is atomic, but after a power cut either name may be there until one of the two
/// directories was synced.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    step(|| Step::Rename(from.into(), to.into()), || fs::rename(from, to))
}

/// Removes a file; one that is not there is as good as removed.
pub fn remove(path: &Path) -> io::Result<()> {
    match step(|| Step::Remove(path.into()), || fs::remove_file(path)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Makes the names in a directory durable.
pub fn sync_dir(path: &Path) -> io::Result<()> {
    step(|| Step::SyncDir(path.into()), || File::open(path)?.sync_all())
}

/// Removes what a [`replace`] left in the directory that did not come to its end. Only for directories in which no other
/// process is writing now.
pub fn remove_unfinished(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().ends_with(UNFINISHED) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

/// The name a file is to have; that of an unfinished one tells it.
pub fn finished_name(name: &str) -> &str {
    let unfinished = name.strip_suffix(UNFINISHED).and_then(|name| name.rsplit_once('.'));
    match unfinished {
        Some((finished, process)) if process.parse::<u32>().is_ok() => finished,
        _ => name,
    }
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_nothing_else_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("note");
        for text in ["first", "second, and longer", "third"] {
            replace(&path, text.as_bytes(), As::PRIVATE).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn when_a_step_fails_the_old_file_is_in_place_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("note");
        replace(&path, b"old", As::PRIVATE).unwrap();
        let ((), steps) = tape::record(|| replace(&path, b"new", As::PRIVATE).unwrap());
        assert_eq!(steps.len(), 5, "{steps:?}");
        for failing in 0..steps.len() - 1 {
            tape::fail(failing, io::ErrorKind::StorageFull, || replace(&path, b"newer", As::PRIVATE).unwrap_err());
            assert_eq!(fs::read(&path).unwrap(), b"new", "step {failing}");
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "step {failing}");
        }
    }

    #[test]
    fn what_is_essential_is_written_over_a_spare_when_the_disk_is_full() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("note");
        set_aside(dir.path(), 1, 10).unwrap();
        let full = |bytes: &[u8], how: As| tape::fail(1, io::ErrorKind::StorageFull, || replace(&path, bytes, how));
        assert!(full(b"no matter", As::PRIVATE).is_err(), "spares are for what is essential");
        assert!(full(b"more than 10 bytes", As::PRIVATE.essential()).is_err());
        full(b"matters", As::PRIVATE.essential()).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"matters");
        assert!(full(b"also", As::PRIVATE.essential()).is_err(), "there was one");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_was_not_finished_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["note.77.tmp", "note"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        remove_unfinished(dir.path()).unwrap();
        assert!(dir.path().join("note").exists() && !dir.path().join("note.77.tmp").exists());
        assert_eq!(["note.77.tmp", "note", "a.tmp", "77.tmp"].map(finished_name), ["note", "note", "a.tmp", "77.tmp"]);
    }

    #[test]
    fn directories_are_made_with_all_above_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/c");
        assert!(make_dir(&path, 0o700, true).unwrap());
        assert!(!make_dir(&path, 0o700, true).unwrap());
        fs::write(dir.path().join("file"), "").unwrap();
        assert!(make_dir(&dir.path().join("file"), 0o700, true).is_err(), "a file is in the way");
    }
}
