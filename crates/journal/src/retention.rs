//! Archives that are let go, the oldest first. The journal notes up to which entry before a file is removed, so that an
//! archive that was let go can be told from one that is missing. Which ones have to go is for the owner to decide.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rusqlite::{Connection, TransactionBehavior};

use crate::JournalError;
use crate::archive::folder;
use crate::layout::{self, sync_directory};
use crate::queries;
use crate::reader;
use crate::store;

/// An archive that is on record and in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredArchive {
    pub first: u64,
    pub last: u64,
    pub path: PathBuf,
    pub bytes: u64,
    pub written: SystemTime,
}

/// The archives that the journal at `path` has on record and that are there, oldest first, those that were let go left
/// out. The journal may be in use by any process.
pub fn stored_archives(path: &Path) -> Result<Vec<StoredArchive>, JournalError> {
    if !has_folder(path)? {
        return Ok(Vec::new());
    }
    let reading = || JournalError::store("read", path, 0);
    let connection = reader::connect(path).map_err(reading())?;
    let released = queries::released(&connection).map_err(reading())?;
    let mut stored = Vec::new();
    for archive in queries::archives(&connection).map_err(reading())? {
        let file = archive.path(path);
        let Ok(about) = fs::symlink_metadata(&file) else { continue };
        if archive.end.seq > released && about.is_file() {
            let written = about.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            let (first, last, bytes) = (archive.first, archive.end.seq, about.len());
            stored.push(StoredArchive { first, last, path: file, bytes, written });
        }
    }
    Ok(stored)
}

/// Lets go of all archives up to the one that ends with entry `upto`, and then removes their files: also those that an
/// earlier call had no time to remove. The journal may be in use by any process.
pub fn release_archives(path: &Path, upto: u64) -> Result<(), JournalError> {
    if !has_folder(path)? {
        return Ok(());
    }
    let noting = || JournalError::store("let go of archives of", path, 0);
    let mut connection = store::connect(path)?;
    let found = layout::version(&connection).map_err(noting())?.unwrap_or(0);
    if found > layout::VERSION {
        return Err(JournalError::Newer { path: path.to_path_buf(), found, known: layout::VERSION });
    }
    let released = note(&mut connection, upto).map_err(noting())?;
    remove_released(&connection, path, released)
}

/// Whether the journal has a folder of archives. One that is a link is not looked into, and nothing is removed there.
fn has_folder(path: &Path) -> Result<bool, JournalError> {
    let folder = folder(path);
    match fs::symlink_metadata(&folder) {
        Ok(about) => Ok(about.is_dir()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(JournalError::io("read", &folder)(error)),
    }
}

/// Notes that archives are let go up to `upto`, and says up to where they are by then: never less than before, and only
/// to where an archive ends.
fn note(connection: &mut Connection, upto: u64) -> rusqlite::Result<u64> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let released = queries::released(&transaction)?;
    let is_end = queries::archives(&transaction)?.iter().any(|archive| archive.end.seq == upto);
    if upto <= released || !is_end {
        return Ok(released);
    }
    queries::set_released(&transaction, upto)?;
    transaction.commit()?;
    Ok(upto)
}

fn remove_released(connection: &Connection, path: &Path, released: u64) -> Result<(), JournalError> {
    let mut removed = None;
    for archive in queries::archives(connection).map_err(JournalError::store("read", path, 0))? {
        let file = archive.path(path);
        if archive.end.seq > released || fs::symlink_metadata(&file).is_err() {
            continue;
        }
        // If it is a link, that goes, and what it leads to stays.
        fs::remove_file(&file).map_err(JournalError::io("remove", &file))?;
        removed = Some(file);
    }
    removed.map_or(Ok(()), |file| sync_directory(&file))
}

/// Up to which entry archives are let go by now, as far as that can be read: 0 if not. For those who began to read
/// before, and miss a file.
pub(crate) fn released_by_now(path: &Path) -> u64 {
    reader::connect(path).and_then(|connection| queries::released(&connection)).unwrap_or(0)
}
