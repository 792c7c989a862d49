//! A shell beside a running job: an interactive program with a terminal of its own, started by the job's supervisor where
//! the first worker is. Service and supervisor agree on it by files in the run's directory, `shells/ID/`:
//!
//! | file | written by | what it says |
//! |---|---|---|
//! | `shell.json` | service | what is to be started |
//! | `data`, `window` | service | what is typed, and how large the terminal is: see `input` |
//! | `client` | service | touched as long as somebody looks at the shell |
//! | `hangup` | service | the user has left |
//! | `output.log` | supervisor | what is to be seen |
//! | `output.end` | supervisor | how it ended |
//!
//! None of them outlives the run, and nothing of a shell is part of the job's own log or end.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use cluster::Run;
use disk::As;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::assignment::new_token;
use crate::log_pieces::{LogPiece, pieces_of};
use crate::lost::is_supervised;
use crate::private::{PRIVATE_DIR, PRIVATE_FILE};
use crate::run_dir::RunDir;
use crate::{ExecutorError, Exit, Input, Window};

/// So many may be open beside one job.
pub const MOST_SHELLS: usize = 4;

/// What is to be started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShellOrder {
    /// The program and its arguments; the user's own shell if there are none.
    pub command: Vec<String>,
    pub window: Window,
    /// The kind of the terminal.
    pub term: Option<String>,
}

/// How a shell ended.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ShellEnd {
    pub exit: Exit,
    /// Why it could not start, or that the job has ended.
    pub trouble: Option<String>,
}

/// Why a shell was not opened.
#[derive(Debug, thiserror::Error)]
pub enum ShellError {
    #[error("it does not run now")]
    NotRunning,
    #[error("an earlier version of Moira has started it: only jobs that start from now on can have shells")]
    Old,
    #[error("it has {MOST_SHELLS} shells already: leave one of them first")]
    TooMany,
    #[error("cannot open a shell: {0}")]
    Disk(#[from] io::Error),
    #[error(transparent)]
    Executor(#[from] ExecutorError),
}

/// One shell of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shell {
    dir: PathBuf,
}

/// With this file a shell ends.
const END: &str = "output.end";

/// Opening counts those that there are: one after the other.
static OPENING: Mutex<()> = Mutex::new(());

impl Shell {
    /// Asks the supervisor of a run for a shell, and returns its name. Nobody can guess it.
    pub fn open(data_dir: &Path, run: Run, order: &ShellOrder) -> Result<String, ShellError> {
        let dir = RunDir::of(data_dir, run);
        let _one = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
        let assignment = dir.assignment()?.ok_or(ShellError::NotRunning)?;
        if !dir.has_started() || dir.has_ended() || !is_supervised(&dir)? {
            return Err(ShellError::NotRunning);
        }
        if !assignment.has_shells {
            return Err(ShellError::Old);
        }
        let opened = Shell::add(&dir, order);
        // It may have ended meanwhile.
        let name =
            opened.map_err(|error| if dir.has_ended() || !dir.exists() { ShellError::NotRunning } else { error })?;
        wake(&dir)?;
        Ok(name)
    }

    fn add(dir: &RunDir, order: &ShellOrder) -> Result<String, ShellError> {
        make_dir(&dir.shells())?;
        if Shell::all(dir)?.iter().filter(|(_, shell)| shell.end().is_none()).count() >= MOST_SHELLS {
            return Err(ShellError::TooMany);
        }
        let name = new_token()?;
        // Whole before it has its name.
        let draft = Shell { dir: dir.shells().join(format!(".{name}")) };
        let made = draft.make(order).and_then(|()| fs::rename(&draft.dir, dir.shells().join(&name)));
        if made.is_err() {
            fs::remove_dir_all(&draft.dir).ok();
        }
        made?;
        Ok(name)
    }

    /// A shell by its name, unless there is none.
    pub fn find(data_dir: &Path, run: Run, name: &str) -> Option<Shell> {
        let is_name = name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        let shell = Shell::of(&RunDir::of(data_dir, run), name);
        (is_name && shell.dir.is_dir()).then_some(shell)
    }

    pub(crate) fn of(dir: &RunDir, name: &str) -> Shell {
        Shell { dir: dir.shells().join(name) }
    }

    /// All of a run with their names, also those that have ended.
    pub(crate) fn all(dir: &RunDir) -> io::Result<Vec<(String, Shell)>> {
        let entries = match fs::read_dir(dir.shells()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let names = names.filter(|name| !name.starts_with('.'));
        Ok(names.map(|name| (name.clone(), Shell::of(dir, &name))).collect())
    }

    fn make(&self, order: &ShellOrder) -> io::Result<()> {
        make_dir(&self.dir)?;
        self.greet()?;
        let text = serde_json::to_vec(order).map_err(io::Error::from)?;
        disk::replace(&self.dir.join("shell.json"), &text, As::PRIVATE.loose())
    }

    pub(crate) fn order(&self) -> io::Result<ShellOrder> {
        serde_json::from_slice(&fs::read(self.dir.join("shell.json"))?).map_err(io::Error::from)
    }

    /// What is typed there.
    pub fn input(&self) -> Input {
        Input::in_dir(&self.dir, END)
    }

    /// Removes what was typed there.
    pub(crate) fn forget_input(&self) {
        self.input().forget();
    }

    /// Says that somebody looks at it.
    pub fn greet(&self) -> io::Result<()> {
        let path = self.dir.join("client");
        let file = OpenOptions::new().create(true).append(true).mode(PRIVATE_FILE).open(path)?;
        file.set_modified(SystemTime::now())
    }

    /// When somebody last looked at it, as the file system has it.
    pub(crate) fn greeted(&self) -> Option<SystemTime> {
        fs::metadata(self.dir.join("client")).and_then(|file| file.modified()).ok()
    }

    /// Says that its user has left.
    pub fn hang_up(&self) -> Result<(), ShellError> {
        OpenOptions::new().create(true).append(true).mode(PRIVATE_FILE).open(self.dir.join("hangup"))?;
        let run = self.dir.parent().and_then(Path::parent).unwrap_or(Path::new("."));
        Ok(wake(&RunDir::at(run))?)
    }

    pub(crate) fn is_left(&self) -> bool {
        self.dir.join("hangup").exists()
    }

    /// Where all that belongs to it is, and with what the names of files begin that its readers wait for.
    pub(crate) fn output_place(&self) -> (&Path, &'static str) {
        (&self.dir, "output")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.dir.join("output.log")
    }

    /// What is kept of what was to be seen.
    pub fn output(&self) -> io::Result<Vec<LogPiece>> {
        pieces_of(&self.log())
    }

    /// How it ended; none as long as it has not.
    pub fn end(&self) -> Option<ShellEnd> {
        serde_json::from_slice(&fs::read(self.dir.join(END)).ok()?).ok()
    }

    /// Whether it is still there: those that have ended are put away after a while, and with the job.
    pub fn exists(&self) -> bool {
        self.dir.exists()
    }

    pub(crate) fn write_end(&self, end: &ShellEnd) -> io::Result<()> {
        let text = serde_json::to_vec(end).map_err(io::Error::from)?;
        disk::replace(&self.dir.join(END), &text, As::PRIVATE.loose())
    }

    pub(crate) fn remove(&self) -> io::Result<()> {
        fs::remove_dir_all(&self.dir)
    }
}

/// Makes a directory in one that is there. A run that was put away meanwhile must not come back.
fn make_dir(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(PRIVATE_DIR).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Makes the supervisor look; it also looks by itself now and then.
fn wake(dir: &RunDir) -> Result<(), ExecutorError> {
    if let Some(note) = dir.supervisor()?.filter(|_| is_supervised(dir).unwrap_or(false))
        && let Err(error) = note.identity.signal(Signal::USR2)
    {
        tracing::warn!(%error, "a supervisor will look at its shells a little later");
    }
    Ok(())
}

/// The shell that the system has for this user; any shell if it has none.
pub(crate) fn login_shell(uid: u32, environment_has: Option<&str>) -> String {
    let known = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid)).ok().flatten();
    let of_system = known.map(|user| user.shell).filter(|shell| File::open(shell).is_ok());
    let of_system = of_system.and_then(|shell| shell.into_os_string().into_string().ok());
    of_system.or_else(|| environment_has.map(str::to_string)).unwrap_or_else(|| "/bin/sh".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::InputError;

    fn order() -> ShellOrder {
        ShellOrder { command: Vec::new(), window: Window { rows: 24, columns: 80 }, term: None }
    }

    #[test]
    fn nothing_that_is_asked_of_a_shell_brings_a_run_back_that_was_put_away() {
        let data = tempfile::tempdir().unwrap();
        let dir = RunDir::at(&data.path().join("7.1"));
        let shell = Shell::of(&dir, "a");
        assert!(Shell::add(&dir, &order()).is_err());
        assert!(shell.make(&order()).is_err());
        assert!(shell.input().take(0, b"secret", false).is_err());
        assert!(shell.input().set_window(order().window).is_err());
        assert!(shell.greet().is_err() && shell.hang_up().is_err());
        assert!(!dir.exists());
    }

    #[test]
    fn a_shell_that_has_ended_takes_and_keeps_no_input() {
        let data = tempfile::tempdir().unwrap();
        let dir = RunDir::at(data.path());
        let shell = Shell::of(&dir, &Shell::add(&dir, &order()).unwrap());
        let spool = shell.output_place().0.join("data");
        assert_eq!(shell.input().take(0, b"secret", false).unwrap(), 6);
        shell.write_end(&ShellEnd::default()).unwrap();
        // Whoever looked before the end comes too late all the same.
        let refusal = shell.input().take(6, b"more", false).unwrap_err();
        assert!(matches!(refusal, InputError::Ended { length: 6 }), "{refusal}");
        assert!(!spool.exists());
        assert!(matches!(shell.input().set_window(order().window), Err(InputError::Ended { .. })));
        assert!(!spool.exists());
    }
}
