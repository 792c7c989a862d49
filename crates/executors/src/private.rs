//! Who may open the service's files: its own user alone. Only what the job of another user has to reach is open
//! further, and each such place says so itself, whatever umask the service was started with.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::sync::OnceLock;

use rustix::fs::{Mode, OFlags, fstat};
use rustix::process::{geteuid, umask};

/// The mode of files that only the service reads and writes.
pub const PRIVATE_FILE: u32 = 0o600;
/// The mode of directories that only the service enters.
pub const PRIVATE_DIR: u32 = 0o700;

/// What the kernel takes away from the mode of a new file if nothing else was said.
const USUAL_UMASK: u32 = 0o022;

/// The umask this process was started with.
static STARTED_WITH: OnceLock<u32> = OnceLock::new();

/// From now on every file this process makes is private. A job that does not name its umask still gets the
/// one the process was started with.
pub fn keep_files_private() {
    umask_at_start();
    umask(Mode::from_raw_mode(0o077));
}

/// The umask this process was started with.
pub fn umask_at_start() -> u32 {
    *STARTED_WITH.get_or_init(|| {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        umask_in(&status).unwrap_or(USUAL_UMASK)
    })
}

pub(crate) fn usual_umask() -> u32 {
    USUAL_UMASK
}

fn umask_in(status: &str) -> Option<u32> {
    let umask = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(umask.trim(), 8).ok()
}

/// The mode of directories on the way to what belongs to a job. Other users pass through them, without seeing what is in
/// them, only where jobs of other users can be: under a service of root.
pub fn passage() -> u32 {
    if geteuid().is_root() { 0o711 } else { PRIVATE_DIR }
}

/// Makes a directory with exactly this mode, and those above it that are missing. One that is there already only loses
/// what is beyond the mode.
pub fn make_dir(path: &Path, mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(PRIVATE_DIR).create(path) {
        Ok(()) if mode == PRIVATE_DIR => Ok(()),
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(mode)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => tighten(path, mode),
        Err(error) if error.kind() == io::ErrorKind::NotFound => match path.parent() {
            Some(above) if !above.as_os_str().is_empty() && !above.exists() => {
                make_dir(above, mode)?;
                make_dir(path, mode)
            }
            _ => Err(error),
        },
        Err(error) => Err(error),
    }
}

/// Takes away all rights beyond `mode`; none are ever added. A file that is not there has none. Links are not followed:
/// what they lead to may be somebody else's.
pub fn tighten(path: &Path, mode: u32) -> io::Result<()> {
    // Such a descriptor only names the file: nothing can block, and nothing can be put in its place meanwhile.
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(rustix::io::Errno::NOENT) => return Ok(()),
        opened => opened?,
    };
    let found = fstat(&file)?;
    let is_link = rustix::fs::FileType::from_raw_mode(found.st_mode).is_symlink();
    let beyond = found.st_mode & 0o777 & !mode;
    if is_link || beyond == 0 {
        return Ok(());
    }
    let left = Mode::from_raw_mode(found.st_mode & 0o7777 & !beyond);
    Ok(rustix::fs::chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), left)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn rights_are_taken_away_and_never_given() {
        let dir = tempfile::tempdir().unwrap();
        for (before, allowed, after) in [(0o644, 0o600, 0o600), (0o400, 0o600, 0o400), (0o777, 0o711, 0o711)] {
            let path = dir.path().join(format!("{before:o}"));
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(before)).unwrap();
            tighten(&path, allowed).unwrap();
            assert_eq!(mode(&path), after, "{before:o}");
        }
        tighten(&dir.path().join("absent"), 0o600).unwrap();
    }

    #[test]
    fn what_a_link_leads_to_keeps_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let (theirs, link) = (dir.path().join("theirs"), dir.path().join("link"));
        fs::write(&theirs, "").unwrap();
        fs::set_permissions(&theirs, Permissions::from_mode(0o644)).unwrap();
        std::os::unix::fs::symlink(&theirs, &link).unwrap();
        tighten(&link, 0o600).unwrap();
        assert_eq!(mode(&theirs), 0o644);
    }

    #[test]
    fn a_directory_has_its_mode_and_so_have_those_made_above_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        make_dir(&path, 0o711).unwrap();
        assert_eq!((mode(&path), mode(&dir.path().join("a"))), (0o711, 0o711));
        make_dir(&path, 0o700).unwrap();
        assert_eq!(mode(&path), 0o700);
        make_dir(&path, 0o711).unwrap();
        assert_eq!(mode(&path), 0o700, "rights are not given back");
    }

    #[test]
    fn a_file_in_place_of_a_directory_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "").unwrap();
        assert!(make_dir(&path, 0o700).is_err() && make_dir(&path.join("below"), 0o700).is_err());
    }

    #[test]
    fn the_umask_is_read_as_the_kernel_writes_it() {
        assert_eq!(umask_in("Name:\tmoira\nUmask:\t0027\nState:\tR\n"), Some(0o027));
        assert_eq!(umask_in("Name:\tmoira\n"), None);
    }
}
