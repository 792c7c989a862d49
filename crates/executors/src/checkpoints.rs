//! Where jobs keep their checkpoints: in the data directory, or in a directory of its own that the configuration names,
//! perhaps on another file system. What a job keeps there is not known here.
//!
//! A directory of its own carries a mark with the identity of the data directory it belongs to, and the data directory
//! notes which one it uses. So a file system that is not mounted, a directory of something else and a change of the
//! configuration are noticed before a job starts without its state.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use cluster::ClaimId;
use disk::As;
use rustix::process::geteuid;

use crate::ExecutorError;
use crate::origin::{names_in, note_beside};
use crate::private::{passage, tighten};
use crate::run_dir::{RunDir, make_dir};

/// The directory in which each job has one for its checkpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoints {
    data_dir: PathBuf,
    dir: PathBuf,
}

/// A job that has not ended and has checkpoints, perhaps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keeper {
    pub job: ClaimId,
    /// Those that it runs again. What they have saved stays under their numbers until this one is launched.
    pub earlier: Vec<ClaimId>,
}

/// In a checkpoint directory outside of the data directory: to which data directory it belongs.
const MARK: &str = "moira-identity";
/// In the data directory: which checkpoint directory outside of it is used.
const NOTE: &str = "checkpoint_dir";
/// Lies in every new file system of the usual kind.
const LOST_AND_FOUND: &str = "lost+found";
/// So many jobs are named in an error.
const MOST_NAMED: usize = 5;

impl Checkpoints {
    /// The usual place.
    pub fn in_data_dir(data_dir: &Path) -> Checkpoints {
        let data_dir = fs::canonicalize(data_dir).unwrap_or_else(|_| data_dir.to_path_buf());
        Checkpoints { dir: data_dir.join("checkpoints"), data_dir }
    }

    /// A directory that the configuration names. One that holds something else than checkpoints is refused, and nothing is
    /// changed yet.
    pub fn at(data_dir: &Path, named: &Path) -> Result<Checkpoints, ExecutorError> {
        let mut checkpoints = Checkpoints::in_data_dir(data_dir);
        // It may be a link that the administrator has made; then what counts is where it leads.
        let dir = match fs::canonicalize(named) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => named.to_path_buf(),
            found => found.map_err(ExecutorError::file("find the checkpoint_dir", named))?,
        };
        if dir == checkpoints.dir {
            return Ok(checkpoints);
        }
        if dir.starts_with(&checkpoints.data_dir) {
            return Err(ExecutorError::CheckpointsWithin { dir, data_dir: checkpoints.data_dir });
        }
        checkpoints.dir = dir;
        checkpoints.refuse_foreign()?;
        Ok(checkpoints)
    }

    /// The directory that was used at the latest start.
    pub fn last_used(data_dir: &Path) -> Result<PathBuf, ExecutorError> {
        Checkpoints::in_data_dir(data_dir).used_before()
    }

    /// Where the job with this claim keeps its checkpoints, whatever the attempt.
    pub fn of(&self, job: ClaimId) -> PathBuf {
        self.dir.join(job.to_string())
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// All places where checkpoints of this data directory are or were.
    pub(crate) fn places(&self) -> Result<Vec<PathBuf>, ExecutorError> {
        let mut places = vec![self.data_dir.join("checkpoints"), self.used_before()?, self.dir.clone()];
        places.sort();
        places.dedup();
        Ok(places)
    }

    /// Makes the directory, or takes it up, for the data directory with this identity. It is refused if these jobs would be
    /// without their checkpoints.
    pub fn take(&self, identity: &str, keepers: &[Keeper]) -> Result<(), ExecutorError> {
        self.inspect(Some(identity), keepers)?;
        if self.is_usual() {
            make_dir(&self.dir, passage())?;
            return disk::remove(&self.note()).map_err(ExecutorError::file("remove", &self.note()));
        }
        self.make(identity)?;
        let mut line = self.dir.as_os_str().as_bytes().to_vec();
        line.push(b'\n');
        replace_unless_same(&self.note(), &line)
    }

    /// Whether it could be taken, as far as that can be found out without changing anything. A data directory that was
    /// never used has no identity.
    pub fn inspect(&self, identity: Option<&str>, keepers: &[Keeper]) -> Result<(), ExecutorError> {
        let before = self.used_before()?;
        if before != self.dir {
            self.refuse_to_leave(before, identity.unwrap_or_default(), keepers)?;
        }
        if self.is_usual() {
            return Ok(());
        }
        let mark = self.dir.join(MARK);
        match self.marked()? {
            Some(found) if Some(found.as_str()) != identity => {
                let (dir, own) = (self.dir.clone(), identity.unwrap_or("a new one").to_string());
                return Err(ExecutorError::CheckpointsOfOther { dir, found, own, mark });
            }
            None if self.noted()?.as_ref() == Some(&self.dir) => {
                return Err(ExecutorError::CheckpointsGone { dir: self.dir.clone(), mark, note: self.note() });
            }
            Some(_) | None => {}
        }
        let making = |error| ExecutorError::file("make the checkpoint_dir", &self.dir)(error);
        match self.dir.parent().map(fs::metadata) {
            Some(Err(error)) => Err(making(error)),
            _ => Ok(()),
        }
    }

    fn make(&self, identity: &str) -> Result<(), ExecutorError> {
        let making = |error| ExecutorError::file("make the checkpoint_dir", &self.dir)(error);
        let mark = self.dir.join(MARK);
        // What is above it is not made: it is missing if a file system is not mounted.
        match fs::create_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made.map_err(making)?,
        }
        let found = fs::metadata(&self.dir).map_err(making)?;
        let own = geteuid().as_raw();
        if found.uid() != own {
            let why = format!("it belongs to user {} and not to user {own}", found.uid());
            return Err(making(io::Error::new(io::ErrorKind::PermissionDenied, why)));
        }
        if mark.exists() {
            tighten(&self.dir, passage()).map_err(making)?;
        } else {
            // An empty one may have been made closed: jobs of other users are below it if the service may run them.
            fs::set_permissions(&self.dir, Permissions::from_mode(passage())).map_err(making)?;
        }
        replace_unless_same(&mark, format!("{identity}\n").as_bytes())
    }

    fn refuse_foreign(&self) -> Result<(), ExecutorError> {
        if self.marked()?.is_some() {
            return Ok(());
        }
        let is_foreign = |name: &String| !self.is_own(name);
        match names_in(&self.dir)?.into_iter().find(is_foreign) {
            Some(name) => Err(ExecutorError::CheckpointsForeign { dir: self.dir.clone(), found: self.dir.join(name) }),
            None => Ok(()),
        }
    }

    /// Whether something has the name of a job's checkpoints, their note or what was moved aside.
    fn is_own(&self, name: &str) -> bool {
        let (number, rest) = name.split_at(name.find('.').unwrap_or(name.len()));
        let is_checkpoints = number.parse::<u32>().is_ok()
            && match rest {
                "" => note_beside(&self.dir.join(name)).exists(),
                rest => rest == ".json" || rest.starts_with(".json.") || rest.starts_with(".foreign-"),
            };
        // A mark that a service was killed over, or that is torn.
        is_checkpoints || name.starts_with(MARK) || name == LOST_AND_FOUND
    }

    /// The jobs would start anew, and those that run would save where nobody looks again.
    fn refuse_to_leave(&self, before: PathBuf, identity: &str, keepers: &[Keeper]) -> Result<(), ExecutorError> {
        let left = Checkpoints { data_dir: self.data_dir.clone(), dir: before };
        if left.marked()?.is_some_and(|found| found != identity) {
            // This data directory is a copy of the one that they belong to.
            return Ok(());
        }
        let running: Vec<ClaimId> = match self.data_dir.join("runs").exists() {
            true => RunDir::all(&self.data_dir)?.into_iter().map(|(run, _)| run.claim).collect(),
            false => Vec::new(),
        };
        // Moved as a whole it has taken its mark along.
        let is_gone = !left.is_usual() && left.marked()?.is_none() && self.marked()?.is_none();
        let mut jobs = Vec::new();
        for keeper in keepers {
            if is_gone || running.contains(&keeper.job) || !names_in(&left.of(keeper.job))?.is_empty() {
                jobs.push(keeper.job.to_string());
                continue;
            }
            for earlier in &keeper.earlier {
                if !names_in(&left.of(*earlier))?.is_empty() {
                    jobs.push(format!("{} (as {earlier})", keeper.job));
                    break;
                }
            }
        }
        if jobs.is_empty() {
            return Ok(());
        }
        let more = jobs.len().saturating_sub(MOST_NAMED);
        jobs.truncate(MOST_NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let jobs = format!("{}{more}", jobs.join(", "));
        Err(ExecutorError::CheckpointsElsewhere { before: left.dir, now: self.dir.clone(), jobs })
    }

    /// The data directory that the directory belongs to.
    fn marked(&self) -> Result<Option<String>, ExecutorError> {
        let text = read(&self.dir.join(MARK))?.and_then(|bytes| String::from_utf8(bytes).ok());
        // A power cut may leave an empty one of a directory that nobody used yet.
        Ok(text.map(|text| text.trim().to_string()).filter(|text| !text.is_empty()))
    }

    fn used_before(&self) -> Result<PathBuf, ExecutorError> {
        Ok(self.noted()?.unwrap_or_else(|| self.data_dir.join("checkpoints")))
    }

    fn noted(&self) -> Result<Option<PathBuf>, ExecutorError> {
        Ok(read(&self.note())?.map(|bytes| PathBuf::from(OsStr::from_bytes(bytes.trim_ascii_end()))))
    }

    fn note(&self) -> PathBuf {
        self.data_dir.join(NOTE)
    }

    fn is_usual(&self) -> bool {
        self.dir == self.data_dir.join("checkpoints")
    }
}

fn replace_unless_same(path: &Path, bytes: &[u8]) -> Result<(), ExecutorError> {
    if read(path)?.as_deref() == Some(bytes) {
        return Ok(());
    }
    disk::replace(path, bytes, As::PRIVATE).map_err(ExecutorError::file("write", path))
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, ExecutorError> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some).map_err(ExecutorError::file("read", path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "00000000000000000000000000000001";
    const OTHER: &str = "00000000000000000000000000000002";

    /// A data directory and, beside it, room for checkpoints.
    struct Scene(tempfile::TempDir);

    impl Scene {
        fn new() -> Scene {
            let scene = Scene(tempfile::tempdir().unwrap());
            fs::create_dir(scene.data_dir()).unwrap();
            scene
        }

        fn data_dir(&self) -> PathBuf {
            self.0.path().join("data")
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        /// Takes the directory for a data directory in which this job has not ended.
        fn take(&self, name: &str, identity: &str, live: u32) -> Result<Checkpoints, String> {
            self.take_for(name, identity, Keeper { job: ClaimId(live), earlier: Vec::new() })
        }

        fn take_for(&self, name: &str, identity: &str, keeper: Keeper) -> Result<Checkpoints, String> {
            let found = match name {
                "" => Ok(Checkpoints::in_data_dir(&self.data_dir())),
                name => Checkpoints::at(&self.data_dir(), &self.path(name)),
            };
            let checkpoints = found.map_err(|error| error.to_string())?;
            checkpoints.take(identity, &[keeper]).map_err(|error| error.to_string())?;
            Ok(checkpoints)
        }

        fn save(&self, place: &str, job: u32) {
            let dir = self.path(place).join(job.to_string());
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("state"), "much").unwrap();
        }
    }

    #[test]
    fn a_directory_of_something_else_is_refused_by_name_and_not_changed() {
        let scene = Scene::new();
        let dir = scene.path("thesis");
        for name in ["chapter.tex", "1", "moira"] {
            fs::create_dir_all(dir.join(name)).unwrap();
            fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
            let refused = scene.take("thesis", OWN, 0).unwrap_err();
            assert!(
                refused.starts_with("checkpoint_dir: ") && refused.contains(&format!("thesis/{name}")),
                "{refused}"
            );
            let mode = fs::metadata(&dir).unwrap().permissions().mode() & 0o777;
            assert_eq!((mode, names_in(&dir).unwrap()), (0o755, vec![name.to_string()]));
            fs::remove_dir(dir.join(name)).unwrap();
        }
    }

    #[test]
    fn one_that_is_new_or_empty_is_taken_and_open_as_far_as_jobs_need_it() {
        let scene = Scene::new();
        fs::create_dir(scene.path("empty")).unwrap();
        fs::create_dir(scene.path("empty/lost+found")).unwrap();
        for name in ["empty", "new", "new"] {
            let taken = scene.take(name, OWN, 0).unwrap();
            assert_eq!(fs::metadata(taken.dir()).unwrap().permissions().mode() & 0o777, passage());
            assert_eq!(taken.of(ClaimId(7)), scene.path(name).canonicalize().unwrap().join("7"));
        }
        assert!(!scene.data_dir().join("checkpoints").exists());
        let refused = scene.take("not/mounted/new", OWN, 0).unwrap_err();
        assert!(refused.starts_with("cannot make the checkpoint_dir "), "{refused}");
        assert!(scene.take("data/runs", OWN, 0).unwrap_err().contains("within the data directory"));
    }

    #[test]
    fn one_of_another_data_directory_is_refused() {
        let scene = Scene::new();
        scene.take("scratch", OTHER, 0).unwrap();
        let refused = scene.take("scratch", OWN, 0).unwrap_err();
        assert!(refused.contains(OTHER) && refused.contains(MARK), "{refused}");
        // The word that it is not used any more.
        fs::remove_file(scene.path("scratch").join(MARK)).unwrap();
        fs::remove_file(scene.data_dir().join(NOTE)).unwrap();
        scene.save("scratch", 3);
        fs::write(scene.path("scratch/3.json"), "{}").unwrap();
        scene.take("scratch", OWN, 0).unwrap();
    }

    #[test]
    fn a_copy_leaves_the_checkpoints_of_its_original_and_takes_a_directory_of_its_own() {
        let scene = Scene::new();
        scene.take("scratch", OTHER, 3).unwrap();
        scene.save("scratch", 3);
        scene.take("scratch", OWN, 3).unwrap_err();
        scene.take("fresh", OWN, 3).unwrap();
    }

    #[test]
    fn one_whose_file_system_is_not_mounted_is_missed() {
        let scene = Scene::new();
        fs::create_dir(scene.path("disk")).unwrap();
        scene.take("disk/jobs", OWN, 0).unwrap();
        fs::rename(scene.path("disk/jobs"), scene.path("elsewhere")).unwrap();
        for _ in 0..2 {
            let refused = scene.take("disk/jobs", OWN, 0).unwrap_err();
            assert!(refused.contains("mounted"), "{refused}");
        }
        fs::rename(scene.path("elsewhere"), scene.path("disk/jobs")).unwrap();
        scene.take("disk/jobs", OWN, 0).unwrap();
    }

    #[test]
    fn jobs_that_have_not_ended_keep_their_checkpoints_when_the_place_changes() {
        let scene = Scene::new();
        scene.take("", OWN, 3).unwrap();
        scene.save("data/checkpoints", 3);
        for (before, now) in [("data/checkpoints", "a"), ("a", "b"), ("b", "")] {
            let refused = scene.take(now, OWN, 3).unwrap_err();
            let names = [before, if now.is_empty() { "data/checkpoints" } else { now }];
            assert!(names.iter().all(|name| refused.contains(&scene.path(name).display().to_string())), "{refused}");
            scene.take(now, OWN, 4).unwrap();
            assert!(scene.take(now, OWN, 3).is_ok(), "the place was changed while job 3 was not there");
            scene.save(if now.is_empty() { "data/checkpoints" } else { now }, 3);
        }
    }

    #[test]
    fn a_job_that_runs_an_earlier_one_again_keeps_what_that_one_saved() {
        let scene = Scene::new();
        scene.take("", OWN, 3).unwrap();
        scene.save("data/checkpoints", 3);
        let requeued =
            |earlier: &[u32]| Keeper { job: ClaimId(9), earlier: earlier.iter().copied().map(ClaimId).collect() };
        let refused = scene.take_for("a", OWN, requeued(&[5, 3])).unwrap_err();
        assert!(refused.contains("jobs 9 (as 3) have not ended"), "{refused}");
        scene.take_for("a", OWN, requeued(&[5])).unwrap();
    }

    #[test]
    fn a_job_that_runs_keeps_its_place_though_it_has_saved_nothing_yet() {
        let scene = Scene::new();
        scene.take("", OWN, 3).unwrap();
        fs::create_dir_all(scene.data_dir().join("runs/3.1")).unwrap();
        fs::write(scene.data_dir().join("runs/3.1/run.json"), "{}").unwrap();
        assert!(scene.take("a", OWN, 3).unwrap_err().contains("jobs 3 "));
        scene.take("a", OWN, 4).unwrap();
    }
}
