//! Removes a directory whose content a job has made: as deep as it liked, and open to nobody. It takes as many descriptors
//! and as much stack for any depth, follows no link, and stops at a bound: a process that outlived its job may go on making
//! directories while they are removed.

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, RenameFlags, fstat, openat, renameat_with, unlinkat};
use rustix::io::Errno;

use crate::private::PRIVATE_DIR;

/// So many directories below others are removed by one call.
const MOST: u64 = 1_000_000;
/// So many are noted down at once.
const AT_ONCE: usize = 1000;

/// Removes it with all that is in it. A link in its place is removed itself.
///
/// What lies deeper is moved up beside its parent first, so that every directory is emptied at the same depth.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(path)?.is_dir() {
        return fs::remove_file(path);
    }
    let top = open(CWD, path)?;
    let mut hoisted = 0;
    loop {
        let full = remove_what_is_empty(&top)?;
        if full.is_empty() {
            return fs::remove_dir(path);
        }
        for name in full {
            let dir = open(&top, name.as_c_str())?;
            loop {
                let deeper = remove_what_is_empty(&dir)?;
                if deeper.is_empty() {
                    break;
                }
                for name in deeper {
                    // To move it one has to be allowed to write in it.
                    open(&dir, name.as_c_str())?;
                    hoist(&dir, &name, &top, &mut hoisted)?;
                }
            }
            unlinkat(&top, name.as_c_str(), AtFlags::REMOVEDIR)?;
        }
    }
}

/// Removes files, links and empty directories, and returns the names of some directories that are not empty; none if there
/// are none.
fn remove_what_is_empty(dir: &OwnedFd) -> io::Result<Vec<CString>> {
    let mut full = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name: &CStr = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        match unlinkat(dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => continue,
            Err(Errno::ISDIR) => {}
            Err(error) => return Err(error.into()),
        }
        match unlinkat(dir, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::NOTEMPTY | Errno::EXIST) => full.push(name.to_owned()),
            Err(error) => return Err(error.into()),
        }
        if full.len() == AT_ONCE {
            break;
        }
    }
    Ok(full)
}

/// Moves a directory up under a name that is not taken.
fn hoist(from: &OwnedFd, name: &CStr, top: &OwnedFd, hoisted: &mut u64) -> io::Result<()> {
    loop {
        *hoisted += 1;
        if *hoisted > MOST {
            let why = format!("it has more than {MOST} directories, or grows while it is removed");
            return Err(io::Error::other(why));
        }
        match renameat_with(from, name, top, format!(".removed-{hoisted}"), RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => {}
            moved => return Ok(moved?),
        }
    }
}

/// Opens a directory that is to be emptied. One that its owner had closed to everybody is opened to its owner.
fn open<P: rustix::path::Arg>(at: impl std::os::fd::AsFd, name: P) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // Such a descriptor only names it: nothing can be put in its place meanwhile.
    let named = openat(at, name, flags | OFlags::PATH, Mode::empty())?;
    let mode = fstat(&named)?.st_mode;
    if mode & PRIVATE_DIR != PRIVATE_DIR {
        rustix::fs::chmod(
            format!("/proc/self/fd/{}", named.as_raw_fd()),
            Mode::from_raw_mode(mode & 0o7777 | PRIVATE_DIR),
        )?;
    }
    Ok(openat(&named, c".", flags | OFlags::RDONLY, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use rustix::fs::mkdirat;

    use super::*;

    /// So deep that a name for all of it would be far too long, and a descriptor for each too many.
    fn dig(at: &Path, depth: usize) {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut dir = openat(CWD, at, flags, Mode::empty()).unwrap();
        for _ in 0..depth {
            mkdirat(&dir, c"d", Mode::from_raw_mode(0o700)).unwrap();
            dir = openat(&dir, c"d", flags, Mode::empty()).unwrap();
        }
    }

    #[test]
    fn however_deep_it_is_it_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("7.1");
        fs::create_dir_all(run.join("gang")).unwrap();
        dig(&run.join("gang"), 30_000);
        remove_tree(&run).unwrap();
        assert!(!run.exists());
    }

    #[test]
    fn wide_trees_and_names_that_are_taken_are_no_hindrance() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("7.1");
        for wide in 0..AT_ONCE + 10 {
            fs::create_dir_all(run.join(format!("gang/{wide}/below"))).unwrap();
            fs::write(run.join(format!("gang/{wide}/file")), "").unwrap();
        }
        fs::create_dir_all(run.join(".removed-1/full")).unwrap();
        fs::write(run.join(".removed-2"), "").unwrap();
        remove_tree(&run).unwrap();
        assert!(!run.exists());
    }

    #[test]
    fn what_its_owner_closed_to_everybody_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("7.1");
        fs::create_dir_all(run.join("gang/x/y")).unwrap();
        fs::write(run.join("gang/x/y/z"), "").unwrap();
        for closed in ["gang/x/y", "gang/x"] {
            fs::set_permissions(run.join(closed), fs::Permissions::from_mode(0o000)).unwrap();
        }
        remove_tree(&run).unwrap();
        assert!(!run.exists());
    }

    #[test]
    fn links_go_and_what_they_lead_to_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (run, outside) = (folder.path().join("7.1"), folder.path().join("outside"));
        fs::create_dir_all(run.join("gang/deeper")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("precious"), "").unwrap();
        for link in ["link", "gang/link", "gang/deeper/link"] {
            symlink(&outside, run.join(link)).unwrap();
        }
        remove_tree(&run).unwrap();
        symlink(&outside, &run).unwrap();
        remove_tree(&run).unwrap();
        assert!(outside.join("precious").exists() && fs::symlink_metadata(&run).is_err());
        assert_eq!(remove_tree(&run).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
