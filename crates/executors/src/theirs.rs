//! Files that a job can write, or put something else in the place of. They are opened so that nothing that is found
//! there can block: no link is followed, no pipe is waited for, and only a regular file of the right owner is read.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a regular file for reading; whatever else is found there is an error that says so.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path);
    let file = opened.map_err(|error| match error.raw_os_error() {
        Some(code) if code == rustix::io::Errno::LOOP.raw_os_error() => unfit("it is a link"),
        // A socket cannot be opened at all.
        Some(code) if code == rustix::io::Errno::NXIO.raw_os_error() => unfit("it is no regular file"),
        _ => error,
    })?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(unfit("it is no regular file")) }
}

/// The same, of this user only: a link of another name could lead to somebody else's file.
pub(crate) fn open_owned(path: &Path, owner: u32) -> io::Result<File> {
    let file = open_regular(path)?;
    match file.metadata()?.uid() {
        uid if uid == owner => Ok(file),
        uid => Err(unfit(&format!("it belongs to user {uid} and not to user {owner}"))),
    }
}

fn unfit(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use rustix::process::geteuid;

    use super::*;

    #[test]
    fn only_a_regular_file_is_opened_and_nothing_blocks() {
        let dir = tempfile::tempdir().unwrap();
        let place = |name: &str| dir.path().join(name);
        fs::write(place("file"), "text").unwrap();
        fs::create_dir(place("folder")).unwrap();
        symlink(place("file"), place("link")).unwrap();
        symlink("/dev/zero", place("device")).unwrap();
        mknodat(CWD, place("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let _listener = UnixListener::bind(place("socket")).unwrap();
        assert!(open_regular(&place("file")).is_ok());
        let why = |name: &str| open_regular(&place(name)).unwrap_err().to_string();
        assert_eq!(["link", "device"].map(why), ["it is a link"; 2]);
        assert_eq!(["folder", "pipe", "socket"].map(why), ["it is no regular file"; 3]);
        assert_eq!(open_regular(&place("absent")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_file_of_another_user_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "text").unwrap();
        let own = geteuid().as_raw();
        assert!(open_owned(&path, own).is_ok());
        let refused = open_owned(&path, own + 1).unwrap_err().to_string();
        assert_eq!(refused, format!("it belongs to user {own} and not to user {}", own + 1));
    }
}
