//! Runs that are over and put away, until they are removed for good.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use cluster::Run;

use crate::ExecutorError;
use crate::remove::remove_tree;
use crate::run_dir::{RunDir, run_named};

/// A run in `done`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettledRun {
    pub run: Run,
    pub ended: SystemTime,
    /// The room its files take.
    pub bytes: u64,
}

/// The settled runs, each measured once: nothing changes in them any more.
#[derive(Debug, Default)]
pub struct Settled(BTreeMap<Run, SettledRun>);

impl Settled {
    /// All that are there now. One that goes meanwhile is left out.
    pub fn look(&mut self, data_dir: &Path) -> Result<Vec<SettledRun>, ExecutorError> {
        let done = data_dir.join("done");
        let listing = || ExecutorError::file("list", &done);
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(&done).map_err(listing())? {
            let entry = entry.map_err(listing())?;
            let Some(run) = entry.file_name().to_str().and_then(run_named) else { continue };
            let known = self.0.remove(&run).or_else(|| measured(run, &entry.path()));
            found.extend(known.map(|known| (run, known)));
        }
        self.0 = found;
        Ok(self.0.values().cloned().collect())
    }
}

fn measured(run: Run, path: &Path) -> Option<SettledRun> {
    let about = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_dir)?;
    // Nothing is written into it after its end.
    let ended = about.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    Some(SettledRun { run, ended, bytes: size(path, 0) })
}

impl SettledRun {
    /// Removes the directory. A link in it goes, and what it leads to stays.
    pub fn remove(&self, data_dir: &Path) -> Result<(), ExecutorError> {
        let dir = RunDir::settled(data_dir, self.run);
        match remove_tree(dir.path()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(ExecutorError::file("remove", dir.path())),
        }
    }
}

/// A run's directory is two levels deep; what a job made of its own part below that is not measured.
const DEEPEST: u32 = 3;

/// What the files below take on the disk, links not followed.
fn size(path: &Path, depth: u32) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = fs::read_dir(path) else { return 0 };
    let of = |entry: fs::DirEntry| match entry.metadata() {
        Ok(about) if about.is_dir() && depth < DEEPEST => size(&entry.path(), depth + 1),
        Ok(about) => about.blocks() * 512,
        Err(_) => 0,
    };
    entries.flatten().map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::ClaimId;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_settled_run_is_measured_and_removed_without_following_links() {
        let data = tempfile::tempdir().unwrap();
        let outside = data.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("precious"), vec![1; 1 << 20]).unwrap();
        let dir = data.path().join("done/7.2");
        fs::create_dir_all(dir.join("gang")).unwrap();
        fs::write(dir.join("exit.json"), "{}").unwrap();
        symlink(&outside, dir.join("gang/link")).unwrap();
        symlink(outside.join("precious"), dir.join("progress.jsonl")).unwrap();
        symlink(&outside, data.path().join("done/8.1")).unwrap();
        fs::create_dir(data.path().join("done/9.1.lost-1")).unwrap();

        let mut settled = Settled::default();
        let found = settled.look(data.path()).unwrap();
        assert_eq!(found.iter().map(|run| run.run).collect::<Vec<_>>(), [Run { claim: ClaimId(7), attempt: 2 }]);
        assert!(found[0].bytes < 1 << 20, "what a link leads to is not its own");
        found[0].remove(data.path()).unwrap();
        found[0].remove(data.path()).unwrap();
        assert!(settled.look(data.path()).unwrap().is_empty());
        assert!(!dir.exists() && outside.join("precious").exists());
    }
}
