//! The data directory: made for the service alone, and never taken from somebody else. What lies in `runs`, `done` and
//! `checkpoints` is the executor's affair.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use executors::{PRIVATE_DIR, PRIVATE_FILE, make_dir, passage, tighten};

use crate::error::ServerError;

/// The journal's place in the data directory.
pub fn journal_path(data_dir: &Path) -> PathBuf {
    data_dir.join("journal.db")
}

/// What may lie in a data directory before its journal exists: what people put there, what a service makes that is killed
/// at its first start, and what stays if somebody removes the journal.
const OURS: [&str; 22] = [
    "moira.toml",
    "log",
    "identity",
    "identity.new",
    "moira.sock",
    "news.sock",
    "journal.db",
    "journal.db.new",
    "journal.db.new-wal",
    "journal.db.new-shm",
    "journal.db.new-journal",
    "journal.db.lock",
    "journal.db.head",
    "journal.db-wal",
    "journal.db-shm",
    "archive",
    "runs",
    "done",
    "checkpoints",
    "checkpoint_dir",
    "reserve",
    ".s",
];
/// Lies in every new file system of the usual kind.
const LOST_AND_FOUND: &str = "lost+found";

/// Makes the directory, or takes up one that a service made before: whatever in that is open to others is closed, and
/// nothing is ever opened. A directory of something else is refused and stays as it is.
pub(crate) fn make_data_dir(path: &Path) -> Result<(), ServerError> {
    let is_new = !journal::is_journal(&journal_path(path))?;
    if is_new {
        refuse_foreign(path)?;
    }
    let cannot = |doing| ServerError::file(doing, path);
    make_dir(path, passage()).map_err(cannot("cannot make the data directory"))?;
    // It may be a link that the administrator has made; then what counts is where it leads.
    let path = fs::canonicalize(path).map_err(cannot("cannot find the data directory"))?;
    if is_new {
        // An empty one may have been made closed: other users' jobs run below it if the service may run them.
        let mode = Permissions::from_mode(passage());
        fs::set_permissions(&path, mode).map_err(ServerError::file("cannot set the mode of", &path))?;
    }
    close(&path, passage())?;
    for file in listed(&path)?.into_iter().filter(|file| is_private(file)) {
        close(&file, PRIVATE_FILE)?;
    }
    close(&path.join("archive"), PRIVATE_DIR)?;
    listed(&path.join("archive"))?.iter().try_for_each(|archive| close(archive, PRIVATE_FILE))
}

pub(crate) fn refuse_foreign(path: &Path) -> Result<(), ServerError> {
    let is_foreign = |file: &PathBuf| {
        let known = |name: &str| OURS.contains(&disk::finished_name(name)) || name == LOST_AND_FOUND;
        // A database that is no journal has the journal's name, and belongs to something else all the same.
        let is_database = *file == journal_path(path) && fs::metadata(file).is_ok_and(|data| data.len() > 0);
        is_database || !file.file_name().and_then(|name| name.to_str()).is_some_and(known)
    };
    match listed(path)?.into_iter().find(is_foreign) {
        None => Ok(()),
        Some(found) => Err(ServerError::Foreign { path: path.into(), found }),
    }
}

/// Journal and configuration; sockets have rules of their own.
fn is_private(file: &Path) -> bool {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    ["moira.toml", "identity", "checkpoint_dir"].contains(&name) || name.starts_with("journal.db")
}

/// What lies in a directory, in order; nothing if there is none.
fn listed(path: &Path) -> Result<Vec<PathBuf>, ServerError> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(ServerError::file("cannot list", path))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        found.push(entry.map_err(ServerError::file("cannot list", path))?.path());
    }
    found.sort();
    Ok(found)
}

fn close(path: &Path, mode: u32) -> Result<(), ServerError> {
    tighten(path, mode).map_err(ServerError::file("cannot close to other users:", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    /// A directory that is open to all, with these files, which are too.
    fn open_to_all(names: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for name in names {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        }
        fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
        dir
    }

    #[test]
    fn what_is_open_to_others_is_closed() {
        let private =
            ["moira.toml", "journal.db", "journal.db-wal", "journal.db-shm", "journal.db.head", "archive/1.gz"];
        let dir = open_to_all(&private);
        make_data_dir(dir.path()).unwrap();
        let modes = private.map(|name| format!("{name} {:o}", mode(&dir.path().join(name))));
        assert_eq!(modes, private.map(|name| format!("{name} 600")));
        assert_eq!((mode(dir.path()), mode(&dir.path().join("archive"))), (passage(), 0o700));
    }

    #[test]
    fn a_directory_with_something_else_in_it_is_refused_by_name_and_not_changed() {
        let dir = open_to_all(&["moira.toml", "thesis.tex"]);
        let refused = make_data_dir(dir.path()).unwrap_err().to_string();
        assert!(refused.contains(&dir.path().display().to_string()) && refused.contains("thesis.tex"), "{refused}");
        let modes = [dir.path().into(), dir.path().join("moira.toml"), dir.path().join("thesis.tex")];
        assert_eq!(modes.map(|path| mode(&path)), [0o777, 0o666, 0o666]);
    }

    #[test]
    fn what_a_service_left_that_was_killed_at_its_first_start_is_its_own() {
        let left = ["identity.4711.tmp", "checkpoint_dir.1.tmp", "journal.db.new-journal", ".s/s"];
        make_data_dir(open_to_all(&left).path()).unwrap();
        assert!(make_data_dir(open_to_all(&["identity.tmp"]).path()).is_err());
    }

    #[test]
    fn a_database_of_something_else_is_refused_and_not_changed() {
        let dir = open_to_all(&["journal.db"]);
        let header = [b"SQLite format 3\0".as_slice(), &[0; 84]].concat();
        fs::write(dir.path().join("journal.db"), header).unwrap();
        let refused = make_data_dir(dir.path()).unwrap_err().to_string();
        assert!(refused.contains("journal.db"), "{refused}");
        assert_eq!((mode(dir.path()), mode(&dir.path().join("journal.db"))), (0o777, 0o666));
    }

    #[test]
    fn a_directory_that_is_empty_new_or_has_a_damaged_journal_is_taken() {
        let dir = open_to_all(&[]);
        make_data_dir(dir.path()).unwrap();
        make_data_dir(&dir.path().join("new/below")).unwrap();
        assert_eq!(mode(&dir.path().join("new/below")), passage());
        let damaged = open_to_all(&["journal.db", "notes"]);
        fs::write(damaged.path().join("journal.db"), "half a header").unwrap();
        make_data_dir(damaged.path()).unwrap();
        assert_eq!(mode(damaged.path()), passage());
    }
}
