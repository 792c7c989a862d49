//! Which data directory and which submission a run or a checkpoint directory belongs to. What belongs to another is moved
//! aside, and never used: after a loss, a copy or a restore the same number may have meant another job.
//!
//! The note lies where the job cannot write: in the run's own directory, and for checkpoints, whose directory is the
//! job's, beside it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use cluster::{ClaimId, Run, Time};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::ExecutorError;
use crate::checkpoints::Checkpoints;
use crate::lost::end_if_lost;
use crate::process::boot_id;
use crate::run_dir::{RunDir, run_named, write_durably, write_loosely};

/// Where a run comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The identity of the data directory.
    pub data_dir: String,
    pub job: ClaimId,
    /// A number that is given out again, which only a lost history makes possible, is told apart by this.
    pub submitted: Time,
}

/// What the journal knows of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownJob {
    pub origin: Origin,
    pub launches: u32,
}

/// What lies in a data directory, by its names and notes alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen(Vec<Named>);

/// A directory of a run or of checkpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Named {
    job: ClaimId,
    /// None of checkpoints.
    attempt: Option<u32>,
    /// The data directory it says it belongs to.
    data_dir: Option<String>,
    is_aside: bool,
}

/// No service has given out so many numbers. A directory with a higher one was made by somebody else.
const HIGHEST: u32 = 1_000_000_000;

/// How long a supervisor that was killed may take to go.
const PATIENCE: Duration = Duration::from_secs(5);

impl Seen {
    /// Looks at `runs`, `done` and all places of checkpoints, also at what was moved aside there.
    pub fn in_data_dir(data_dir: &Path, checkpoints: &Checkpoints) -> Result<Seen, ExecutorError> {
        let mut seen = Vec::new();
        let mut folders = vec![data_dir.join("runs"), data_dir.join("done")];
        folders.extend(checkpoints.places()?);
        for folder in folders {
            for name in names_in(&folder)? {
                let Some(job) = name.split('.').next().and_then(|number| number.parse().ok()) else { continue };
                let path = folder.join(&name);
                if job > HIGHEST {
                    return Err(ExecutorError::Number { path, highest: HIGHEST });
                }
                let run = run_named(&name);
                let note = if run.is_some() { RunDir::at(&path).owner() } else { owner_of(&path) };
                seen.push(Named {
                    job: ClaimId(job),
                    attempt: run.map(|run| run.attempt),
                    data_dir: note.map(|note| note.data_dir),
                    is_aside: run.is_none() && name.contains('.'),
                });
            }
        }
        Ok(Seen(seen))
    }

    /// The highest number of a job, whoever gave it out.
    pub fn highest(&self) -> Option<ClaimId> {
        self.0.iter().map(|named| named.job).max()
    }

    /// Jobs of this data directory, as far as anyone can tell, and their attempts.
    pub fn own(&self, identity: Option<&str>) -> impl Iterator<Item = (ClaimId, Option<u32>)> {
        let is_own = move |named: &&Named| match (&named.data_dir, identity) {
            (Some(named), Some(identity)) => named == identity,
            _ => true,
        };
        self.0.iter().filter(|named| !named.is_aside).filter(is_own).map(|named| (named.job, named.attempt))
    }
}

/// Moves aside whatever does not belong to this data directory or to a job as the journal knows it, and returns where it
/// lies now. A run of this very directory that the journal does not know is ended first. Where `adopt` is set, what has no
/// note is taken for this directory's own and gets one: it was made before there were notes.
pub fn set_aside_foreign(
    data_dir: &Path,
    checkpoints: &Checkpoints,
    identity: &str,
    adopt: bool,
    known: impl Fn(ClaimId) -> Option<KnownJob>,
) -> Result<Vec<PathBuf>, ExecutorError> {
    let mut moved = Vec::new();
    // Before a run is launched its job's checkpoints are claimed.
    let mut claimed = BTreeSet::new();
    for (run, dir) in RunDir::all(data_dir)? {
        let is_known = |job: &KnownJob| run.attempt <= job.launches;
        match (dir.owner(), known(run.claim).filter(is_known)) {
            (Some(note), Some(job)) if note == job.origin => drop(claimed.insert(run.claim)),
            (None, Some(job)) if adopt => dir.write_owner(&job.origin)?,
            (Some(note), _) if note.data_dir != identity => moved.push(set_aside(dir.path(), "foreign")?),
            (None, _) if !adopt => moved.push(set_aside(dir.path(), "foreign")?),
            _ => {
                // It concerns this run alone: all others are waiting for the service.
                if let Err(error) = end_unknown(run, &dir) {
                    tracing::error!(%run, %error, "a run that the journal does not know cannot be ended");
                }
                moved.push(set_aside(dir.path(), "lost")?);
            }
        }
    }
    let done = data_dir.join("done");
    for name in names_in(&done)? {
        let Some(run) = run_named(&name) else { continue };
        let dir = RunDir::settled(data_dir, run);
        let note = dir.owner();
        let is_foreign = note.as_ref().is_some_and(|note| note.data_dir != identity);
        let is_other = known(run.claim)
            .is_some_and(|job| run.attempt > job.launches || note.as_ref().is_some_and(|note| *note != job.origin));
        if is_foreign || is_other {
            moved.push(set_aside(dir.path(), if is_foreign { "foreign" } else { "lost" })?);
        } else if note.is_some() {
            claimed.insert(run.claim);
        }
    }
    for name in names_in(checkpoints.dir())? {
        let Some(job) = name.parse().ok().map(ClaimId).and_then(&known) else { continue };
        let dir = checkpoints.of(job.origin.job);
        if (adopt || claimed.contains(&job.origin.job)) && owner_of(&dir).is_none() {
            write_durably(&note_beside(&dir), &job.origin)?;
        }
        moved.extend(set_aside_unless_of(&dir, &job.origin)?);
    }
    Ok(moved)
}

/// Makes sure that a job's checkpoint directory is its own before it is used: one of another job is moved aside. A note
/// that a power cut takes is written again at the next start, for the run that is launched then says it too; only what
/// was moved aside must not come back under a run that looks as if it were its own.
pub(crate) fn claim_checkpoints(dir: &Path, origin: &Origin) -> Result<(), ExecutorError> {
    let aside = set_aside_unless_of(dir, origin)?;
    if let Some(aside) = &aside {
        tracing::warn!(job = %origin.job, to = %aside.display(), "checkpoints of another job were moved aside");
    }
    match owner_of(dir) {
        Some(_) => Ok(()),
        None if aside.is_none() => write_loosely(&note_beside(dir), origin),
        None => write_durably(&note_beside(dir), origin),
    }
}

/// Lets a job go on with the checkpoints of an earlier one that has ended; done twice, it is done once. Where there are
/// none, or they are not that job's, it begins anew.
pub(crate) fn take_over(from: &Path, earlier: ClaimId, to: &Path, origin: &Origin) -> Result<(), ExecutorError> {
    let is_its_own = |note: &Origin| note.data_dir == origin.data_dir && note.job == earlier;
    if exists(to) || !exists(from) || !owner_of(from).as_ref().is_some_and(is_its_own) {
        return Ok(());
    }
    // The new note comes first and the old one goes last: at every moment the directory has one.
    write_durably(&note_beside(to), origin)?;
    rename_durably("hand over", from, to)?;
    let note = note_beside(from);
    disk::remove(&note).map_err(ExecutorError::file("remove", &note))
}

fn set_aside_unless_of(checkpoints: &Path, origin: &Origin) -> Result<Option<PathBuf>, ExecutorError> {
    let note = note_beside(checkpoints);
    let found = owner_of(checkpoints);
    if found.as_ref() == Some(origin) || (found.is_none() && !exists(checkpoints)) {
        return Ok(None);
    }
    // The note goes last, and never without the directory: one without a note could be taken for the job's own.
    let aside = exists(checkpoints).then(|| set_aside(checkpoints, "foreign")).transpose()?;
    if exists(&note) {
        let beside = aside.as_deref().map_or_else(|| note.with_extension("json.foreign"), note_beside);
        rename_durably("move aside", &note, &beside)?;
    }
    Ok(aside)
}

/// The note of a checkpoint directory; one that cannot be understood is as good as none.
pub(crate) fn owner_of(checkpoints: &Path) -> Option<Origin> {
    serde_json::from_slice(&fs::read(note_beside(checkpoints)).ok()?).ok()
}

pub(crate) fn note_beside(checkpoints: &Path) -> PathBuf {
    let mut name = checkpoints.as_os_str().to_os_string();
    name.push(".json");
    name.into()
}

/// Gives a directory a name by which nobody takes it for a run or for checkpoints.
fn set_aside(path: &Path, why: &str) -> Result<PathBuf, ExecutorError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let aside = (1..).map(|count| path.with_file_name(format!("{name}.{why}-{count}"))).find(|aside| !exists(aside));
    let aside = aside.expect("there are more names than directories");
    rename_durably("move aside", path, &aside)?;
    Ok(aside)
}

/// A run that is launched afterwards relies on it: what comes back with a power cut would be used by it, or be missing.
fn rename_durably(doing: &'static str, from: &Path, to: &Path) -> Result<(), ExecutorError> {
    let moved = disk::rename(from, to).and_then(|()| disk::sync_dir(to.parent().unwrap_or(Path::new("/"))));
    moved.map_err(ExecutorError::file(doing, from))
}

/// A run of this data directory of which the journal knows nothing any more: nobody will ask for it again.
fn end_unknown(run: Run, dir: &RunDir) -> Result<(), ExecutorError> {
    // A power cut may have torn the note: what is left of such a run is found by other means.
    if let Some(note) = dir.supervisor().ok().flatten()
        && note.boot == boot_id()
    {
        note.identity.signal(Signal::KILL).map_err(|source| ExecutorError::Wake { run, source })?;
        let begun = Instant::now();
        while note.identity.lives() && begun.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(10));
        }
    }
    end_if_lost(dir, &[]).map(drop)
}

fn exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

pub(crate) fn names_in(folder: &Path) -> Result<Vec<String>, ExecutorError> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(ExecutorError::file("list", folder))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(ExecutorError::file("list", folder))?.file_name();
        // What is not text was not made here.
        names.extend(name.into_string().ok());
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_dir::make_places;

    const OWN: &str = "00000000000000000000000000000001";
    const OTHER: &str = "00000000000000000000000000000002";

    fn origin(data_dir: &str, job: u32, submitted: u64) -> Origin {
        Origin { data_dir: data_dir.into(), job: ClaimId(job), submitted: Time::from_secs(submitted) }
    }

    /// A data directory in which jobs 0 to 7 are known, each submitted at its number of seconds and launched once.
    struct Scene(tempfile::TempDir);

    impl Scene {
        fn new() -> Scene {
            let scene = Scene(tempfile::tempdir().unwrap());
            make_places(scene.0.path()).unwrap();
            scene.place().take(OWN, &[]).unwrap();
            scene
        }

        fn place(&self) -> Checkpoints {
            Checkpoints::in_data_dir(self.0.path())
        }

        fn run(&self, name: &str, owner: Option<&Origin>) {
            let dir = RunDir::of(self.0.path(), run_named(name).unwrap());
            dir.make(None).unwrap();
            fs::write(dir.file("run.json"), "{}").unwrap();
            if let Some(owner) = owner {
                dir.write_owner(owner).unwrap();
            }
        }

        fn checkpoints(&self, job: u32, owner: Option<&Origin>) {
            let dir = self.place().of(ClaimId(job));
            fs::create_dir(&dir).unwrap();
            if let Some(owner) = owner {
                write_durably(&note_beside(&dir), owner).unwrap();
            }
        }

        fn look(&self, adopt: bool) -> Vec<String> {
            let known = |job: ClaimId| {
                let origin = origin(OWN, job.0, u64::from(job.0));
                (job.0 < 8).then_some(KnownJob { origin, launches: 1 })
            };
            let moved = set_aside_foreign(self.0.path(), &self.place(), OWN, adopt, known).unwrap();
            let name = |path: PathBuf| path.strip_prefix(self.0.path()).unwrap().display().to_string();
            moved.into_iter().map(name).collect()
        }
    }

    #[test]
    fn runs_of_other_directories_and_submissions_are_moved_aside() {
        let scene = Scene::new();
        scene.run("1.1", Some(&origin(OWN, 1, 1)));
        scene.run("2.1", Some(&origin(OTHER, 2, 2)));
        scene.run("3.1", Some(&origin(OWN, 3, 99)));
        scene.run("4.2", Some(&origin(OWN, 4, 4)));
        scene.run("5.1", None);
        scene.run("9.1", Some(&origin(OWN, 9, 9)));
        let moved =
            ["runs/2.1.foreign-1", "runs/3.1.lost-1", "runs/4.2.lost-1", "runs/5.1.foreign-1", "runs/9.1.lost-1"];
        assert_eq!(scene.look(false), moved);
        assert!(scene.look(false).is_empty(), "once is enough");
        scene.run("2.1", Some(&origin(OTHER, 2, 2)));
        assert_eq!(scene.look(false), ["runs/2.1.foreign-2"]);
        assert_eq!(
            Seen::in_data_dir(scene.0.path(), &scene.place()).unwrap().highest(),
            Some(ClaimId(9)),
            "their numbers are seen"
        );
    }

    #[test]
    fn a_run_that_nobody_knows_and_whose_files_are_torn_is_ended_and_moved_aside_like_any_other() {
        let scene = Scene::new();
        for (name, held) in [("8.1", true), ("9.1", false)] {
            scene.run(name, Some(&origin(OWN, 9, 9)));
            let dir = RunDir::of(scene.0.path(), run_named(name).unwrap());
            fs::write(dir.file("supervisor.json"), "{\"identity\": {\"pi").unwrap();
            if held {
                dir.mark_held().unwrap();
            }
        }
        assert_eq!(scene.look(false), ["runs/8.1.lost-1", "runs/9.1.lost-1"]);
        for name in ["8.1", "9.1"] {
            let ending = fs::read_to_string(scene.0.path().join(format!("runs/{name}.lost-1/exit.json"))).unwrap();
            assert!(ending.contains("damaged"), "{ending}");
        }
    }

    #[test]
    fn what_was_made_before_there_were_notes_is_adopted_once() {
        let scene = Scene::new();
        scene.run("1.1", None);
        scene.checkpoints(2, None);
        assert!(scene.look(true).is_empty());
        assert!(scene.look(false).is_empty(), "it has a note now");
        scene.run("3.1", None);
        scene.checkpoints(4, None);
        assert_eq!(scene.look(false), ["runs/3.1.foreign-1", "checkpoints/4.foreign-1"]);
    }

    #[test]
    fn checkpoints_of_another_job_are_not_given_to_this_one() {
        let scene = Scene::new();
        let own = origin(OWN, 1, 1);
        let dir = scene.place().of(ClaimId(1));
        scene.checkpoints(1, Some(&origin(OTHER, 1, 1)));
        fs::write(dir.join("state"), "secret").unwrap();
        claim_checkpoints(&dir, &own).unwrap();
        assert!(!dir.exists() && scene.0.path().join("checkpoints/1.foreign-1/state").exists());
        assert_eq!(owner_of(&dir), Some(own.clone()));
        fs::create_dir(&dir).unwrap();
        claim_checkpoints(&dir, &own).unwrap();
        assert!(dir.exists(), "its own stay");
    }

    #[test]
    fn what_belongs_to_another_or_was_moved_aside_is_no_sign_of_a_loss() {
        let scene = Scene::new();
        scene.run("1.1", Some(&origin(OWN, 1, 1)));
        scene.run("2.1", Some(&origin(OTHER, 2, 2)));
        scene.run("3.2", None);
        scene.checkpoints(4, Some(&origin(OTHER, 4, 4)));
        scene.checkpoints(5, Some(&origin(OWN, 5, 5)));
        fs::create_dir(scene.0.path().join("done/9.1.lost-1")).unwrap();
        let seen = Seen::in_data_dir(scene.0.path(), &scene.place()).unwrap();
        let own: Vec<_> = seen.own(Some(OWN)).map(|(job, attempt)| (job.0, attempt)).collect();
        assert_eq!(own, [(1, Some(1)), (3, Some(2)), (5, None)]);
        assert_eq!(seen.highest(), Some(ClaimId(9)));
    }

    #[test]
    fn a_number_that_nobody_gave_out_is_named() {
        let scene = Scene::new();
        scene.checkpoints(4_000_000_000, None);
        let refusal = Seen::in_data_dir(scene.0.path(), &scene.place()).unwrap_err().to_string();
        assert!(refusal.contains("checkpoints/4000000000"), "{refusal}");
    }
}
