//! The file by which a data directory says which one it is, also when its journal is gone. The file knows when and as what
//! it was made, which no copy of it shares: so a directory that was copied is noticed, and one that was moved is not.

use std::fs::{self, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use disk::Stream;
use journal::Identity;

use crate::error::ServerError;

/// What the file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) identity: Identity,
    /// It was made somewhere else and copied to where it lies.
    pub(crate) is_copy: bool,
}

/// By what a file differs from its copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Birth {
    /// Nanoseconds since 1970, where the file system knows it.
    born: Option<u64>,
    inode: u64,
}

impl Birth {
    fn of(about: &Metadata) -> Birth {
        let born = about.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok());
        Birth { born: born.and_then(|born| u64::try_from(born.as_nanos()).ok()), inode: about.ino() }
    }

    /// Numbers of files may be given out anew by another file system, and by some at every mount; so the time decides
    /// where both know it.
    fn is_same(self, other: Birth) -> bool {
        match (self.born, other.born) {
            (Some(one), Some(other)) => one == other,
            _ => self.inode == other.inode,
        }
    }
}

pub(crate) fn path(data_dir: &Path) -> PathBuf {
    data_dir.join("identity")
}

/// What the directory says of itself; nothing if it does not.
pub(crate) fn read(data_dir: &Path) -> Result<Option<Note>, ServerError> {
    let path = path(data_dir);
    let found = fs::read_to_string(&path).and_then(|text| Ok((text, fs::metadata(&path)?)));
    match found {
        Ok((text, about)) => Ok(parse(&text, Birth::of(&about))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(ServerError::file("cannot read", path)(error)),
    }
}

/// One that was torn by a power cut says nothing, and is written anew. The first ones said nothing of their birth.
fn parse(text: &str, birth: Birth) -> Option<Note> {
    let (identity, rest) = text.split_once('\n')?;
    let mut words = rest.split_whitespace().map(str::parse::<u64>);
    let noted = match (words.next(), words.next()) {
        (Some(Ok(born)), Some(Ok(inode))) => Birth { born: (born > 0).then_some(born), inode },
        _ => birth,
    };
    Some(Note { identity: identity.trim().parse().ok()?, is_copy: !noted.is_same(birth) })
}

/// Writes down which directory this is, unless it stands there already. What lies here is no copy from then on.
pub(crate) fn write(data_dir: &Path, identity: Identity) -> Result<(), ServerError> {
    let (path, fresh) = (path(data_dir), data_dir.join("identity.new"));
    let is_noted = |text: &str| text.lines().count() == 2;
    let note = read(data_dir)?;
    if note == Some(Note { identity, is_copy: false }) && fs::read_to_string(&path).is_ok_and(|text| is_noted(&text)) {
        return Ok(());
    }
    let written = (|| {
        disk::remove(&fresh)?;
        let mut file = Stream::create(&fresh, 0o600)?;
        let birth = Birth::of(&fs::metadata(&fresh)?);
        file.write_all(format!("{identity}\n{} {}\n", birth.born.unwrap_or(0), birth.inode).as_bytes())?;
        file.sync()?;
        disk::rename(&fresh, &path)?;
        disk::sync_dir(data_dir)
    })();
    written.map_err(ServerError::file("cannot write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: &str = "00ff00112233445566778899aabbccdd";

    fn note(text: &str, born: Option<u64>, inode: u64) -> Option<bool> {
        parse(text, Birth { born, inode }).map(|note| note.is_copy)
    }

    #[test]
    fn a_copy_is_known_by_the_time_it_was_made_and_else_by_the_number_of_its_file() {
        let known = format!("{IDENTITY}\n500 12\n");
        assert_eq!(note(&known, Some(500), 12), Some(false));
        assert_eq!(note(&known, Some(500), 13), Some(false), "numbers of files change with some mounts");
        assert_eq!(note(&known, Some(501), 12), Some(true), "another file system has given out the same number");
        assert_eq!(note(&known, None, 12), Some(false));
        assert_eq!(note(&known, None, 13), Some(true));
        let unknown = format!("{IDENTITY}\n0 12\n");
        assert_eq!((note(&unknown, Some(7), 12), note(&unknown, Some(7), 13)), (Some(false), Some(true)));
    }

    #[test]
    fn a_note_of_the_first_kind_is_at_home_and_a_torn_one_says_nothing() {
        assert_eq!(note(&format!("{IDENTITY}\n"), Some(7), 1), Some(false));
        assert_eq!(note(&IDENTITY[..20], Some(7), 1), None);
        assert_eq!(note("", Some(7), 1), None);
    }

    #[test]
    fn what_is_written_is_at_home_until_it_is_copied() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let identity: Identity = IDENTITY.parse().unwrap();
        fs::write(path(dir.path()), format!("{IDENTITY}\n")).unwrap();
        write(dir.path(), identity).unwrap();
        assert_eq!(fs::read_to_string(path(dir.path())).unwrap().lines().count(), 2, "it knows its birth now");
        assert_eq!(read(dir.path()).unwrap(), Some(Note { identity, is_copy: false }));
        fs::copy(path(dir.path()), path(other.path())).unwrap();
        assert_eq!(read(other.path()).unwrap(), Some(Note { identity, is_copy: true }));
        write(other.path(), identity).unwrap();
        assert_eq!(read(other.path()).unwrap(), Some(Note { identity, is_copy: false }));
    }
}
