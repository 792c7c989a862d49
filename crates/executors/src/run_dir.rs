//! The directory of a run: which files there are and how they are written. Files replace each other whole, so a reader
//! never sees half of one while the machine runs.
//!
//! | file | written by | after a power cut |
//! |---|---|---|
//! | `run.json`, `wish.json` | service | whole; if one is not, the run is over (see `damaged`) |
//! | `gang.json`, `outcome.json` | supervisor | likewise |
//! | `supervisor.json` | supervisor | may be torn or absent: `lock` says that there was one |
//! | `lock` | supervisor | says whether a supervisor has held the run; that is one byte, written in place |
//! | `owner.json` | service | may be torn or absent: `run.json` says it too |
//! | `exit.json` | supervisor, or service for a lost run | whole; if it is not, it counts as absent |
//! | `stop.json` | service | likewise |
//! | `workers.json`, `usage.json`, `started` | supervisor | may be torn or absent, which counts as absent |
//! | `progress.read` | service | may be torn or absent: reports are read again |
//! | `token`, `tuning.json`, `resize.json`, `gang/` | both | may be torn or absent: they mean nothing once the workers are gone |
//! | `stdin` | supervisor | a pipe of a run that is over |
//! | `shells/` | both | nothing of it is needed once the workers are gone: see `shell` |
//! | `logs/`, `progress.jsonl` | supervisor, job | as much as was written |

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use cluster::{ClaimId, Run, Span};
use disk::As;
use perf::Tuning;
use rustix::fs::{CWD, FileType, FlockOperation, Gid, Mode, OFlags, Uid, fchmod, fchown, flock, fstat, mknodat};
use rustix::process::{getegid, geteuid};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::assignment::{Assignment, FORMAT, ReportSecret};
use crate::private::{PRIVATE_DIR, PRIVATE_FILE, passage, tighten};
use crate::process::Identity;
use crate::remove::remove_tree;
use crate::roster::{Outcome, Roster, Wish};
use crate::{Account, Ending, ExecutorError, Origin, Usage};

/// How much room a run sets aside, for the files that must be written on a full disk too. An end has a line for every
/// worker; one that does not fit is written when there is room.
const SPARES: usize = 4;
const SPARE_BYTES: usize = 4096;

/// What `lock` holds once a supervisor has held the run, and before.
const HELD: &[u8] = b"1";
const NOT_HELD: &[u8] = b"0";

#[derive(Debug, Clone)]
pub(crate) struct RunDir {
    path: PathBuf,
}

/// What the supervisor of a run says.
pub(crate) const SUPERVISOR_LOG: &str = "supervisor.log";

/// Who holds the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SupervisorNote {
    pub(crate) identity: Identity,
    pub(crate) boot: String,
    pub(crate) token: String,
}

/// What a run has used so far and how long it has lasted: the latest sign of life of its supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct SignOfLife {
    #[serde(flatten)]
    usage: Usage,
    #[serde(default)]
    ran: Option<Span>,
}

/// The wish that a run should end.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct StopNote {
    pub(crate) grace: Span,
}

/// A tuning in the words of the progress protocol.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct TuningNote {
    local_batch: u32,
    accumulation: u32,
}

/// What workers are told of a resize, in the words of the progress protocol.
#[derive(Debug, Serialize)]
struct ResizeNote {
    gang: u32,
    /// In order of the new rank.
    members: Vec<MemberNote>,
    master_addr: &'static str,
    master_port: u16,
    #[serde(flatten)]
    tuning: Option<TuningNote>,
}

#[derive(Debug, Serialize)]
struct MemberNote {
    member: u32,
    local_rank: usize,
}

impl RunDir {
    pub(crate) fn at(path: &Path) -> RunDir {
        RunDir { path: path.to_path_buf() }
    }

    pub(crate) fn of(data_dir: &Path, run: Run) -> RunDir {
        RunDir { path: data_dir.join("runs").join(name_of(run)) }
    }

    pub(crate) fn settled(data_dir: &Path, run: Run) -> RunDir {
        RunDir { path: data_dir.join("done").join(name_of(run)) }
    }

    /// All runs that are not settled.
    pub(crate) fn all(data_dir: &Path) -> Result<Vec<(Run, RunDir)>, ExecutorError> {
        let runs = data_dir.join("runs");
        let entries = fs::read_dir(&runs).map_err(ExecutorError::file("list", &runs))?;
        let mut found: Vec<(Run, RunDir)> = entries
            .flatten()
            .filter_map(|entry| Some((run_named(entry.file_name().to_str()?)?, RunDir::at(&entry.path()))))
            .filter(|(_, dir)| dir.has_assignment())
            .collect();
        found.sort_by_key(|(run, _)| *run);
        Ok(found)
    }

    /// Whether it is only the beginning of a launch that nobody finished: no supervisor was ever started on it.
    pub(crate) fn is_ghost(&self) -> bool {
        !["run.json", "supervisor.json", "exit.json"].iter().any(|name| self.file(name).exists())
    }

    pub(crate) fn remove(&self) -> Result<(), ExecutorError> {
        remove_tree(&self.path).map_err(ExecutorError::file("remove", &self.path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn exists(&self) -> bool {
        self.path.exists()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The data directory it lies in: two levels up.
    pub(crate) fn data_dir(&self) -> &Path {
        self.path.parent().and_then(Path::parent).unwrap_or(Path::new("."))
    }

    pub(crate) fn log(&self, worker: u32) -> PathBuf {
        self.path.join("logs").join(format!("worker-{worker}.log"))
    }

    /// The pipe that is the standard input of the first worker, as long as one of its ends is not open.
    pub(crate) fn stdin(&self) -> PathBuf {
        self.file("stdin")
    }

    /// Makes that pipe. It belongs to the job: a program may open `/dev/stdin`, which asks who owns it.
    pub(crate) fn make_stdin(&self, account: Option<&Account>) -> Result<(), ExecutorError> {
        let path = self.stdin();
        let mode = Mode::from_raw_mode(PRIVATE_FILE);
        mknodat(CWD, &path, FileType::Fifo, mode, 0)
            .map_err(|error| ExecutorError::file("make", &path)(error.into()))?;
        own(&path, account)
    }

    /// The shells beside the run.
    pub(crate) fn shells(&self) -> PathBuf {
        self.file("shells")
    }

    pub(crate) fn remove_shells(&self) -> io::Result<()> {
        if_there(remove_tree(&self.shells()))
    }

    /// Where workers and their supervisor agree on a resize.
    pub(crate) fn gang_dir(&self) -> PathBuf {
        self.file("gang")
    }

    /// What workers are told of a resize.
    pub(crate) fn resize_file(&self) -> PathBuf {
        self.file("resize.json")
    }

    /// Makes the directory with the files the job itself writes, which belong to its account.
    pub(crate) fn make(&self, account: Option<&Account>) -> Result<(), ExecutorError> {
        make_dir(&self.path, passage())?;
        // These names are durable with that of `run.json`.
        for dir in [self.file("logs"), self.gang_dir()] {
            disk::make_dir(&dir, PRIVATE_DIR, false).map_err(ExecutorError::file("make", &dir))?;
        }
        own(&self.gang_dir(), account)?;
        let progress = self.progress_file();
        disk::create(&progress, 0o600).map_err(ExecutorError::file("make", &progress))?;
        own(&progress, account)?;
        let lock = self.file("lock");
        // The room for the mark is taken now: later the disk may be full.
        disk::open_in_place(&lock, 0o600)
            .and_then(|file| disk::write_at(&file, &lock, NOT_HELD, 0))
            .map_err(ExecutorError::file("make", &lock))?;
        // The supervisor, the start, a stop and the end can be told however full the disk is by then.
        disk::set_aside(&self.path, SPARES, SPARE_BYTES).map_err(ExecutorError::file("set room aside in", &self.path))
    }

    /// Removes what a launch has made that failed: nobody else knows of it, also if only the last sync did not succeed.
    pub(crate) fn unmake(&self) {
        if let Err(error) = remove_tree(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove what is left of a launch that failed");
        }
    }

    /// The run has ended and nothing more is written: only what is worth keeping stays.
    pub(crate) fn tidy(&self) -> Result<(), ExecutorError> {
        // Of a worker that never opened its input.
        if_there(fs::remove_file(self.stdin()))
            .and_then(|()| self.remove_shells())
            .and_then(|()| disk::remove_unfinished(&self.path))
            .and_then(|()| disk::remove_spares(&self.path))
            .map_err(ExecutorError::file("tidy", &self.path))
    }

    /// Whether there is a run at all, readable or not.
    pub(crate) fn has_assignment(&self) -> bool {
        self.file("run.json").exists()
    }

    pub(crate) fn assignment(&self) -> Result<Option<Assignment>, ExecutorError> {
        let path = self.file("run.json");
        let found: Option<Assignment> = read(&path)?;
        match found {
            Some(Assignment { format, .. }) if format > FORMAT => {
                Err(ExecutorError::Newer { path, found: format, known: FORMAT })
            }
            found => Ok(found),
        }
    }

    /// Which data directory and submission it belongs to: by its note or, where that is torn or absent, by its order.
    pub(crate) fn owner(&self) -> Option<Origin> {
        let noted = read(&self.file("owner.json")).ok().flatten();
        noted.or_else(|| self.assignment().ok().flatten()?.order.origin)
    }

    /// For a run whose order does not say it.
    pub(crate) fn write_owner(&self, origin: &Origin) -> Result<(), ExecutorError> {
        write_durably(&self.file("owner.json"), origin)
    }

    /// For a run whose order says it too.
    pub(crate) fn note_owner(&self, origin: &Origin) -> Result<(), ExecutorError> {
        write_loosely(&self.file("owner.json"), origin)
    }

    /// Secrets may be in the environment: nobody else reads this file.
    pub(crate) fn write_assignment(&self, assignment: &Assignment) -> Result<(), ExecutorError> {
        write_durably(&self.file("run.json"), assignment)
    }

    /// The lock every supervisor holds as long as it lives; none if another has it.
    pub(crate) fn try_lock(&self) -> Result<Option<File>, ExecutorError> {
        let path = self.file("lock");
        let open = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
        let file = open.map_err(ExecutorError::file("open", &path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(ExecutorError::file("lock", &path)(error.into())),
        }
    }

    pub(crate) fn supervisor(&self) -> Result<Option<SupervisorNote>, ExecutorError> {
        read(&self.file("supervisor.json"))
    }

    /// After [`RunDir::mark_held`].
    pub(crate) fn write_supervisor(&self, note: &SupervisorNote) -> Result<(), ExecutorError> {
        replace(&self.file("supervisor.json"), note, As::PRIVATE.loose().essential())
    }

    /// Makes sure that nobody else ever begins the run, whatever happens to the machine from now on.
    pub(crate) fn mark_held(&self) -> Result<(), ExecutorError> {
        let path = self.file("lock");
        let marked = disk::open_in_place(&path, 0o600).and_then(|file| {
            disk::write_at(&file, &path, HELD, 0)?;
            disk::sync(&file, &path)
        });
        marked.map_err(ExecutorError::file("write", &path))
    }

    /// Whether a supervisor has ever held the run, as far as its mark tells: earlier versions made none.
    pub(crate) fn was_held(&self) -> bool {
        fs::read(self.file("lock")).is_ok_and(|mark| mark == HELD)
    }

    /// Whether a supervisor holds the run or has ever held it.
    pub(crate) fn is_held_or_was(&self) -> Result<bool, ExecutorError> {
        Ok(self.was_held() || self.supervisor()?.is_some())
    }

    /// The leaders of the sessions of workers and shells.
    pub(crate) fn workers(&self) -> Result<Vec<Identity>, ExecutorError> {
        Ok(read_if_whole(&self.file("workers.json"))?.unwrap_or_default())
    }

    pub(crate) fn write_workers(&self, workers: &[Identity]) -> Result<(), ExecutorError> {
        write_loosely(&self.file("workers.json"), &workers)
    }

    pub(crate) fn has_started(&self) -> bool {
        self.file("started").exists()
    }

    pub(crate) fn mark_started(&self) -> Result<(), ExecutorError> {
        replace(&self.file("started"), &true, As::PRIVATE.loose().essential())
    }

    pub(crate) fn ending(&self) -> Result<Option<Ending>, ExecutorError> {
        read_if_whole(&self.file("exit.json"))
    }

    /// An end that cannot be read at the moment is an end.
    pub(crate) fn has_ended(&self) -> bool {
        self.ending().map_or(true, |ending| ending.is_some())
    }

    /// The end of a run as its own supervisor knows it, also if somebody has removed the directory.
    pub(crate) fn write_ending(&self, ending: &Ending) -> Result<(), ExecutorError> {
        make_dir(&self.path, passage())?;
        self.replace_ending(ending)
    }

    /// The end of a run that nobody holds. False if its directory is not there any more: then it was settled meanwhile,
    /// with its end in it, and must not come back.
    pub(crate) fn write_ending_if_there(&self, ending: &Ending) -> Result<bool, ExecutorError> {
        match self.replace_ending(ending) {
            Err(_) if !self.exists() => Ok(false),
            written => written.map(|()| true),
        }
    }

    fn replace_ending(&self, ending: &Ending) -> Result<(), ExecutorError> {
        replace(&self.file("exit.json"), ending, As::PRIVATE.essential())
    }

    pub(crate) fn usage(&self) -> Result<Option<Usage>, ExecutorError> {
        read_if_whole(&self.file("usage.json"))
    }

    /// How long the run had lasted when its supervisor last said so.
    pub(crate) fn ran(&self) -> Result<Option<Span>, ExecutorError> {
        Ok(read_if_whole::<SignOfLife>(&self.file("usage.json"))?.and_then(|sign| sign.ran))
    }

    pub(crate) fn write_usage(&self, usage: &Usage, ran: Span) -> Result<(), ExecutorError> {
        write_loosely(&self.file("usage.json"), &SignOfLife { usage: *usage, ran: Some(ran) })
    }

    /// What the job reports.
    pub(crate) fn progress_file(&self) -> PathBuf {
        self.file("progress.jsonl")
    }

    /// How far the progress file is on record.
    pub(crate) fn bookmark(&self) -> PathBuf {
        self.file("progress.read")
    }

    pub(crate) fn write_bookmark(&self, upto: u64) -> Result<(), ExecutorError> {
        write_loosely(&self.bookmark(), &upto)
    }

    pub(crate) fn stop_note(&self) -> Result<Option<StopNote>, ExecutorError> {
        read_if_whole(&self.file("stop.json"))
    }

    /// Whether there is a wish to stop, readable or not. To ask that takes no descriptor: a supervisor may have none left.
    pub(crate) fn has_stop_note(&self) -> bool {
        fs::symlink_metadata(self.file("stop.json")).is_ok()
    }

    pub(crate) fn write_stop(&self, note: StopNote) -> Result<(), ExecutorError> {
        replace(&self.file("stop.json"), &note, As::PRIVATE.essential())
    }

    pub(crate) fn write_tuning(&self, tuning: Tuning, account: Option<&Account>) -> Result<(), ExecutorError> {
        hand_over(&self.file("tuning.json"), &TuningNote::of(tuning), account)
    }

    /// Where the job finds the secret by which it reports over the network.
    pub(crate) fn token_file(&self) -> PathBuf {
        self.file("token")
    }

    pub(crate) fn write_token(&self, secret: &ReportSecret, account: Option<&Account>) -> Result<(), ExecutorError> {
        let path = self.token_file();
        let how = As::PRIVATE.loose().owned_by(owner_of(account));
        disk::replace(&path, secret.text().as_bytes(), how).map_err(ExecutorError::file("write", &path))
    }

    /// The present gang.
    pub(crate) fn roster(&self, assignment: &Assignment) -> Result<Roster, ExecutorError> {
        Ok(self.gang()?.unwrap_or_else(|| Roster::at_launch(assignment)))
    }

    /// The gang of the latest resize.
    pub(crate) fn gang(&self) -> Result<Option<Roster>, ExecutorError> {
        read(&self.file("gang.json"))
    }

    pub(crate) fn write_roster(&self, roster: &Roster) -> Result<(), ExecutorError> {
        write_durably(&self.file("gang.json"), roster)
    }

    /// The latest wish to resize the run, whatever has become of it.
    pub(crate) fn wish(&self) -> Result<Option<Wish>, ExecutorError> {
        read(&self.wish_file())
    }

    pub(crate) fn wish_file(&self) -> PathBuf {
        self.file("wish.json")
    }

    /// Secrets may be in the environment of newcomers: nobody else reads this file.
    pub(crate) fn write_wish(&self, wish: &Wish) -> Result<(), ExecutorError> {
        write_durably(&self.wish_file(), wish)
    }

    /// What has become of the latest wish that was dealt with.
    pub(crate) fn outcome(&self) -> Result<Option<Outcome>, ExecutorError> {
        read(&self.file("outcome.json"))
    }

    pub(crate) fn write_outcome(&self, outcome: &Outcome) -> Result<(), ExecutorError> {
        write_durably(&self.file("outcome.json"), outcome)
    }

    /// Calls the members of a new gang together.
    pub(crate) fn write_call(&self, wish: &Wish, account: Option<&Account>) -> Result<(), ExecutorError> {
        let roster = &wish.roster;
        let members = roster.members.iter().enumerate();
        let members =
            members.map(|(rank, it)| MemberNote { member: it.member, local_rank: roster.local_rank(rank) }).collect();
        let tuning = wish.tuning.map(TuningNote::of);
        let call = ResizeNote { gang: roster.gang, members, master_addr: "127.0.0.1", master_port: wish.port, tuning };
        hand_over(&self.resize_file(), &call, account)
    }
}

impl TuningNote {
    fn of(tuning: Tuning) -> TuningNote {
        TuningNote { local_batch: tuning.local, accumulation: tuning.accumulations }
    }
}

/// Replaces a file that the job reads.
fn hand_over<T: Serialize>(path: &Path, value: &T, account: Option<&Account>) -> Result<(), ExecutorError> {
    replace(path, value, As::PRIVATE.loose().owned_by(owner_of(account)))
}

pub(crate) fn name_of(run: Run) -> String {
    format!("{}.{}", run.claim, run.attempt)
}

pub(crate) fn run_named(name: &str) -> Option<Run> {
    let (claim, attempt) = name.split_once('.')?;
    Some(Run { claim: ClaimId(claim.parse().ok()?), attempt: attempt.parse().ok()? })
}

/// Makes a directory that is still there after a power cut.
pub(crate) fn make_dir(path: &Path, mode: u32) -> Result<(), ExecutorError> {
    disk::make_dir(path, mode, true).and_then(|_| tighten(path, mode)).map_err(ExecutorError::file("make", path))
}

/// Hands a file to the account.
pub(crate) fn own(path: &Path, account: Option<&Account>) -> Result<(), ExecutorError> {
    match owner_of(account) {
        Some((uid, gid)) => {
            std::os::unix::fs::chown(path, Some(uid), Some(gid)).map_err(ExecutorError::file("hand over", path))
        }
        None => Ok(()),
    }
}

/// A service that is not root can only run jobs as itself, and owns their files already.
fn owner_of(account: Option<&Account>) -> Option<(u32, u32)> {
    account.filter(|_| rustix::process::geteuid().is_root()).map(|account| (account.uid, account.gid))
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, ExecutorError> {
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|source| ExecutorError::Malformed { path: path.to_path_buf(), source }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(ExecutorError::file("read", path)(error)),
    }
}

/// What cannot be understood counts as absent: it was torn by a power cut, or never written whole.
fn read_if_whole<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, ExecutorError> {
    match read(path) {
        Err(error @ ExecutorError::Malformed { .. }) => {
            tracing::debug!(%error, "a file that is not whole counts as absent");
            Ok(None)
        }
        read => read,
    }
}

pub(crate) fn write_loosely<T: Serialize>(path: &Path, value: &T) -> Result<(), ExecutorError> {
    replace(path, value, As::PRIVATE.loose())
}

pub(crate) fn write_durably<T: Serialize>(path: &Path, value: &T) -> Result<(), ExecutorError> {
    replace(path, value, As::PRIVATE)
}

fn replace<T: Serialize>(path: &Path, value: &T, how: As) -> Result<(), ExecutorError> {
    let bytes =
        serde_json::to_vec(value).map_err(|source| ExecutorError::Malformed { path: path.to_path_buf(), source })?;
    disk::replace(path, &bytes, how).map_err(ExecutorError::file("write", path))
}

/// What an executor keeps in a data directory. What an earlier version left open to others is closed.
pub(crate) fn make_places(data_dir: &Path) -> Result<(), ExecutorError> {
    for place in ["runs", "done"] {
        make_dir(&data_dir.join(place), passage())?;
    }
    for place in ["runs", "done"].map(|place| data_dir.join(place)) {
        // What is wrong with one run concerns that one; what else lies there is not ours.
        for run in fs::read_dir(&place).map_err(ExecutorError::file("list", &place))?.flatten().filter(is_run) {
            let log = run.path().join(SUPERVISOR_LOG);
            if let Err(error) = tighten(&log, PRIVATE_FILE) {
                tracing::warn!(path = %log.display(), %error, "the log of a supervisor cannot be closed to others");
            }
        }
    }
    Ok(())
}

/// Whether it is the directory of a run, by its name.
fn is_run(entry: &fs::DirEntry) -> bool {
    let is_named = entry.file_name().to_str().and_then(run_named).is_some();
    is_named && entry.file_type().is_ok_and(|kind| kind.is_dir())
}

/// Removes what launches left behind that were cut short. Only at the start: later one may just be under way.
pub(crate) fn remove_ghosts(data_dir: &Path) -> Result<(), ExecutorError> {
    remove_ghosts_by(data_dir, RunDir::remove)
}

fn remove_ghosts_by(
    data_dir: &Path,
    remove: impl Fn(&RunDir) -> Result<(), ExecutorError>,
) -> Result<(), ExecutorError> {
    let runs = data_dir.join("runs");
    for entry in fs::read_dir(&runs).map_err(ExecutorError::file("list", &runs))?.flatten().filter(is_run) {
        let dir = RunDir::at(&entry.path());
        if !dir.is_ghost() {
            continue;
        }
        match remove(&dir) {
            Ok(()) => tracing::info!(dir = %dir.path().display(), "a launch that was cut short is removed"),
            Err(error) => tracing::warn!(%error, "a launch that was cut short cannot be removed"),
        }
    }
    Ok(())
}

pub(crate) fn make_checkpoint_dir(path: &Path, account: Option<&Account>) -> Result<(), ExecutorError> {
    let owner = account.map_or_else(geteuid, |account| Uid::from_raw(account.uid));
    let group = account.map_or_else(getegid, |account| Gid::from_raw(account.gid));
    hand_over_dir(path, owner, group).map_err(ExecutorError::file("make", path))
}

/// Makes a directory of the job, or takes up that of an earlier attempt. The job could have put a link in its place: what
/// counts is the directory that was opened, and one of another user is never given away.
fn hand_over_dir(path: &Path, owner: Uid, group: Gid) -> io::Result<()> {
    let is_new = match fs::DirBuilder::new().mode(PRIVATE_DIR).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
        made => made.map(|()| true)?,
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::open(path, flags, Mode::empty())?;
    let found = fstat(&dir)?;
    // A service that was killed here has made it and not given it away.
    let is_ours = found.st_uid == geteuid().as_raw() && (is_new || fs::read_dir(path)?.next().is_none());
    if found.st_uid != owner.as_raw() && !is_ours {
        let why = format!("it belongs to user {} and not to user {}", found.st_uid, owner.as_raw());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    fchmod(&dir, Mode::from_raw_mode(PRIVATE_DIR))?;
    if geteuid().is_root() {
        fchown(&dir, Some(owner), Some(group))?;
    }
    Ok(())
}

/// What is gone already needs no removal.
fn if_there(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    #[test]
    fn a_run_has_the_name_of_its_directory() {
        let run = Run { claim: ClaimId(7), attempt: 2 };
        assert_eq!(name_of(run), "7.2");
        assert_eq!(run_named("7.2"), Some(run));
        assert_eq!(run_named("7.2.old"), None);
    }

    #[test]
    fn what_does_not_belong_among_runs_is_passed_over_when_their_logs_are_closed() {
        let data = tempfile::tempdir().unwrap();
        make_places(data.path()).unwrap();
        for stray in ["runs/README", "done/README", "done/8.1"] {
            fs::write(data.path().join(stray), "").unwrap();
        }
        std::os::unix::fs::symlink("/proc/self", data.path().join("done/9.1")).unwrap();
        let run = data.path().join("done/7.1");
        fs::create_dir(&run).unwrap();
        fs::write(run.join(SUPERVISOR_LOG), "").unwrap();
        fs::set_permissions(run.join(SUPERVISOR_LOG), fs::Permissions::from_mode(0o644)).unwrap();
        make_places(data.path()).unwrap();
        assert_eq!(fs::metadata(run.join(SUPERVISOR_LOG)).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_launch_that_was_cut_short_and_cannot_be_removed_keeps_nobody_from_starting() {
        let data = tempfile::tempdir().unwrap();
        make_places(data.path()).unwrap();
        for ghost in ["7.1", "8.1", "9.1"] {
            fs::create_dir(data.path().join("runs").join(ghost)).unwrap();
        }
        let fails = |dir: &RunDir| match dir.path().ends_with("8.1") {
            true => Err(ExecutorError::file("remove", dir.path())(io::Error::other("broken"))),
            false => dir.remove(),
        };
        remove_ghosts_by(data.path(), fails).unwrap();
        let left: Vec<_> = fs::read_dir(data.path().join("runs")).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert_eq!(left, ["8.1"]);
    }

    #[test]
    fn a_lock_is_held_once() {
        let data = tempfile::tempdir().unwrap();
        let dir = RunDir::of(data.path(), Run { claim: ClaimId(1), attempt: 0 });
        dir.make(None).unwrap();
        let held = dir.try_lock().unwrap();
        assert!(held.is_some() && dir.try_lock().unwrap().is_none());
        drop(held);
        assert!(dir.try_lock().unwrap().is_some());
    }

    #[test]
    fn a_link_in_place_of_a_checkpoint_directory_is_not_followed() {
        let data = tempfile::tempdir().unwrap();
        let (theirs, path) = (data.path().join("theirs"), data.path().join("7"));
        fs::create_dir(&theirs).unwrap();
        fs::set_permissions(&theirs, fs::Permissions::from_mode(0o755)).unwrap();
        std::os::unix::fs::symlink(&theirs, &path).unwrap();
        let nobody = Account { uid: 65534, gid: 65534, name: "nobody".into(), home: "/".into() };
        assert!(make_checkpoint_dir(&path, Some(&nobody)).is_err());
        let kept = fs::metadata(&theirs).unwrap();
        assert_eq!((kept.uid(), kept.mode() & 0o777), (geteuid().as_raw(), 0o755));
    }

    #[test]
    fn the_checkpoints_of_one_user_are_not_given_to_another() {
        let data = tempfile::tempdir().unwrap();
        let path = data.path().join("7");
        let of = |uid| Account { uid, gid: uid, name: "somebody".into(), home: "/".into() };
        if !geteuid().is_root() {
            return;
        }
        make_checkpoint_dir(&path, Some(&of(65534))).unwrap();
        make_checkpoint_dir(&path, Some(&of(65534))).unwrap();
        let refused = make_checkpoint_dir(&path, Some(&of(65533))).unwrap_err();
        let why = std::error::Error::source(&refused).unwrap().to_string();
        assert_eq!(why, "it belongs to user 65534 and not to user 65533");
        assert_eq!(fs::metadata(&path).unwrap().uid(), 65534);
    }

    #[test]
    fn a_run_of_a_newer_format_is_refused_by_naming_both() {
        let data = tempfile::tempdir().unwrap();
        let dir = RunDir::of(data.path(), Run { claim: ClaimId(1), attempt: 1 });
        dir.make(None).unwrap();
        let recorded = include_str!("../tests/fixtures/run-4f0c295.json");
        fs::write(dir.file("run.json"), recorded).unwrap();
        assert_eq!(dir.assignment().unwrap().unwrap().format, 1, "the format of 4f0c295 had no number");
        fs::write(dir.file("run.json"), recorded.replacen('{', "{\"format\": 7,", 1)).unwrap();
        let refusal = dir.assignment().unwrap_err().to_string();
        assert!(
            refusal.ends_with("runs/1.1/run.json has format 7, this program knows formats up to 2: use a newer one")
        );
    }

    #[test]
    fn a_file_that_a_run_cannot_do_without_is_named_if_it_is_no_json() {
        let data = tempfile::tempdir().unwrap();
        let dir = RunDir::of(data.path(), Run { claim: ClaimId(1), attempt: 0 });
        dir.make(None).unwrap();
        fs::write(dir.file("supervisor.json"), "{").unwrap();
        assert!(dir.supervisor().unwrap_err().to_string().ends_with("runs/1.0/supervisor.json"));
    }

    #[test]
    fn a_run_that_was_settled_does_not_come_back_by_its_end() {
        let data = tempfile::tempdir().unwrap();
        let dir = RunDir::of(data.path(), Run { claim: ClaimId(1), attempt: 0 });
        dir.make(None).unwrap();
        assert!(dir.write_ending_if_there(&Ending::default()).unwrap());
        dir.remove().unwrap();
        assert!(!dir.write_ending_if_there(&Ending::default()).unwrap());
        assert!(!dir.exists());
    }

    #[test]
    fn notes_that_are_torn_count_as_absent() {
        let data = tempfile::tempdir().unwrap();
        let dir = RunDir::of(data.path(), Run { claim: ClaimId(1), attempt: 0 });
        dir.make(None).unwrap();
        for torn in ["", "{", "\0\0\0\0"] {
            for name in ["workers.json", "usage.json", "stop.json", "exit.json"] {
                fs::write(dir.file(name), torn).unwrap();
            }
            assert!(dir.workers().unwrap().is_empty(), "{torn:?}");
            assert_eq!((dir.usage().unwrap(), dir.stop_note().unwrap(), dir.ending().unwrap()), (None, None, None));
            assert!(!dir.has_ended());
        }
    }
}
