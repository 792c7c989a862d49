//! Checkpoints as an administrator sees them who wants to remove some: whose they are and how much room they take. Which
//! jobs have ended is not known here.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cluster::ClaimId;

use crate::ExecutorError;
use crate::origin::{Origin, names_in, note_beside, owner_of};
use crate::remove::remove_tree;

/// The checkpoints of one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OldCheckpoints {
    pub owner: Origin,
    pub path: PathBuf,
    /// The room they take, links not followed.
    pub bytes: u64,
}

impl OldCheckpoints {
    /// All in this folder that belong to jobs of the data directory with this identity and are wanted. Left out is
    /// whatever belongs to another, does not say to whom it belongs, was moved aside, or is a link.
    pub fn in_folder(
        folder: &Path,
        identity: &str,
        is_wanted: impl Fn(&Origin) -> bool,
    ) -> Result<Vec<OldCheckpoints>, ExecutorError> {
        let mut found = Vec::new();
        for name in names_in(folder)? {
            let Some(job) = name.parse().ok().map(ClaimId) else { continue };
            let path = folder.join(&name);
            let is_dir = fs::symlink_metadata(&path).is_ok_and(|about| about.is_dir());
            let Some(owner) = owner_of(&path).filter(|_| is_dir) else { continue };
            if owner.job == job && owner.data_dir == identity && is_wanted(&owner) {
                let bytes = room(&path);
                found.push(OldCheckpoints { owner, path, bytes });
            }
        }
        found.sort_by_key(|checkpoints| checkpoints.owner.job);
        Ok(found)
    }

    /// Removes them, if they are still those of the same job. A link in them goes, and what it leads to stays.
    pub fn remove(&self) -> Result<(), ExecutorError> {
        if owner_of(&self.path).as_ref() != Some(&self.owner) {
            return Ok(());
        }
        remove_tree(&self.path).map_err(ExecutorError::file("remove", &self.path))?;
        let note = note_beside(&self.path);
        fs::remove_file(&note).map_err(ExecutorError::file("remove", &note))
    }
}

/// What the files below take on the disk. Folders are noted down and not entered at once: a job may have made them as deep
/// as it liked.
fn room(path: &Path) -> u64 {
    let mut folders = vec![path.to_path_buf()];
    let mut bytes = 0;
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            match entry.metadata() {
                Ok(about) if about.is_dir() => folders.push(entry.path()),
                Ok(about) => bytes += about.blocks() * 512,
                Err(_) => {}
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_dir::write_durably;
    use cluster::Time;
    use std::os::unix::fs::symlink;

    fn origin(data_dir: &str, job: u32) -> Origin {
        Origin { data_dir: data_dir.into(), job: ClaimId(job), submitted: Time::from_millis(7) }
    }

    fn keep(folder: &Path, name: &str, owner: Option<Origin>) -> PathBuf {
        let dir = folder.join(name);
        fs::create_dir_all(dir.join("deep/deeper/deepest/still")).unwrap();
        fs::write(dir.join("deep/deeper/deepest/still/state"), vec![1; 1 << 20]).unwrap();
        if let Some(owner) = owner {
            write_durably(&note_beside(&dir), &owner).unwrap();
        }
        dir
    }

    #[test]
    fn only_the_wanted_checkpoints_of_own_jobs_are_found_and_no_link_is_followed() {
        let (folder, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folder = folder.path();
        fs::write(outside.path().join("precious"), vec![1; 8 << 20]).unwrap();
        let own = keep(folder, "3", Some(origin("own", 3)));
        symlink(outside.path(), own.join("link")).unwrap();
        symlink(outside.path().join("precious"), own.join("file")).unwrap();
        let others = [
            keep(folder, "4", Some(origin("other", 4))),
            keep(folder, "5", None),
            keep(folder, "6", Some(origin("own", 7))),
            keep(folder, "8.foreign-1", Some(origin("own", 8))),
            keep(folder, "9", Some(origin("own", 9))),
        ];
        symlink(outside.path(), folder.join("10")).unwrap();
        write_durably(&folder.join("10.json"), &origin("own", 10)).unwrap();

        let found = OldCheckpoints::in_folder(folder, "own", |owner| owner.job != ClaimId(9)).unwrap();
        assert_eq!(found.iter().map(|found| found.owner.job.0).collect::<Vec<_>>(), [3]);
        assert!((1 << 20..2 << 20).contains(&found[0].bytes), "{}", found[0].bytes);
        found[0].remove().unwrap();
        found[0].remove().unwrap();
        assert!(!own.exists() && !note_beside(&own).exists());
        assert!(others.iter().all(|dir| dir.exists()) && outside.path().join("precious").exists());
    }

    #[test]
    fn checkpoints_that_went_to_another_job_meanwhile_stay() {
        let folder = tempfile::tempdir().unwrap();
        let dir = keep(folder.path(), "3", Some(origin("own", 3)));
        let found = OldCheckpoints::in_folder(folder.path(), "own", |_| true).unwrap();
        write_durably(&note_beside(&dir), &origin("other", 3)).unwrap();
        found[0].remove().unwrap();
        assert!(dir.exists());
    }
}
