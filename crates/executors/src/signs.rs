//! The files by which workers and their supervisor agree on a resize: whoever is ready says so, one verdict is given by
//! whoever is first, and the new gang says that it trains. Workers write here, so nothing that is found is trusted.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::run_dir::{RunDir, own};
use crate::theirs::open_regular;
use crate::{Account, ExecutorError};

/// What was decided of a resize. It is decided once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The old gang ends after the step it is at, and the new one goes on.
    Go,
    Withdrawn,
}

/// More is not read of a verdict.
const LONGEST_VERDICT: u64 = 64;

/// The verdict as far as there is one. Whoever creates the file has decided, but may not have written it yet.
pub(crate) fn verdict(dir: &RunDir, gang: u32) -> Option<Verdict> {
    match read_short(&path(dir, "verdict", gang))?.trim() {
        "" => None,
        "withdrawn" => Some(Verdict::Withdrawn),
        _ => Some(Verdict::Go),
    }
}

/// Withdraws, unless someone has decided before; returns what holds.
pub(crate) fn withdraw(dir: &RunDir, gang: u32, account: Option<&Account>) -> Result<Verdict, ExecutorError> {
    let path = path(dir, "verdict", gang);
    // A link is made whole or not at all, and never in place of another.
    let fresh = dir.file("verdict.new");
    let written = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&fresh);
    written.and_then(|mut file| file.write_all(b"withdrawn")).map_err(ExecutorError::file("write", &fresh))?;
    own(&fresh, account)?;
    match fs::hard_link(&fresh, &path) {
        Ok(()) => Ok(Verdict::Withdrawn),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(verdict(dir, gang).unwrap_or(Verdict::Go)),
        Err(error) => Err(ExecutorError::file("write", &path)(error)),
    }
}

/// Whether the new gang has made its first step.
pub(crate) fn is_done(dir: &RunDir, gang: u32) -> bool {
    fs::symlink_metadata(path(dir, "done", gang)).is_ok()
}

/// Removes the signs of earlier gangs: nobody looks for them any more.
pub(crate) fn clear_before(dir: &RunDir, gang: u32) {
    let Ok(entries) = fs::read_dir(dir.gang_dir()) else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_str().and_then(gang_of).is_some_and(|earlier| earlier < gang)
            && let Err(error) = fs::remove_file(entry.path())
        {
            tracing::warn!(path = %entry.path().display(), %error, "cannot remove the sign of an earlier gang");
        }
    }
}

/// The gang in a name like `ready.2.5`, `verdict.2` or `done.2`.
fn gang_of(name: &str) -> Option<u32> {
    let mut words = name.split('.');
    let is_sign = matches!(words.next()?, "ready" | "verdict" | "done");
    words.next()?.parse().ok().filter(|_| is_sign)
}

fn path(dir: &RunDir, sign: &str, gang: u32) -> PathBuf {
    dir.gang_dir().join(format!("{sign}.{gang}"))
}

/// Neither a link to elsewhere nor a pipe that nobody writes to must hold up the supervisor.
fn read_short(path: &Path) -> Option<String> {
    let file = open_regular(path).ok()?;
    let mut bytes = Vec::new();
    file.take(LONGEST_VERDICT).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use cluster::{ClaimId, Run};

    use super::*;

    fn run_dir(data: &tempfile::TempDir) -> RunDir {
        let dir = RunDir::of(data.path(), Run { claim: ClaimId(1), attempt: 0 });
        dir.make(None).unwrap();
        dir
    }

    #[test]
    fn whoever_is_first_decides() {
        let data = tempfile::tempdir().unwrap();
        let dir = run_dir(&data);
        fs::write(dir.gang_dir().join("verdict.2"), "go").unwrap();
        assert_eq!(withdraw(&dir, 2, None).unwrap(), Verdict::Go);
        assert_eq!(withdraw(&dir, 3, None).unwrap(), Verdict::Withdrawn);
        assert_eq!([2, 3, 4].map(|gang| verdict(&dir, gang)), [Some(Verdict::Go), Some(Verdict::Withdrawn), None]);
    }

    #[test]
    fn a_verdict_that_is_not_written_yet_is_awaited_but_cannot_be_overruled() {
        let data = tempfile::tempdir().unwrap();
        let dir = run_dir(&data);
        fs::write(dir.gang_dir().join("verdict.2"), "").unwrap();
        assert_eq!(verdict(&dir, 2), None);
        assert_eq!(withdraw(&dir, 2, None).unwrap(), Verdict::Go);
    }

    #[test]
    fn a_link_is_not_followed() {
        let data = tempfile::tempdir().unwrap();
        let dir = run_dir(&data);
        fs::write(data.path().join("elsewhere"), "go").unwrap();
        std::os::unix::fs::symlink(data.path().join("elsewhere"), dir.gang_dir().join("verdict.2")).unwrap();
        assert_eq!(verdict(&dir, 2), None);
    }

    #[test]
    fn signs_of_earlier_gangs_are_removed_and_nothing_else() {
        let data = tempfile::tempdir().unwrap();
        let dir = run_dir(&data);
        for name in ["ready.2.1", "verdict.2", "done.2", "done.3", "done.10", "notes.1"] {
            fs::write(dir.gang_dir().join(name), "").unwrap();
        }
        clear_before(&dir, 3);
        let mut left: Vec<_> = fs::read_dir(dir.gang_dir()).unwrap().flatten().map(|it| it.file_name()).collect();
        left.sort();
        assert_eq!(left, ["done.10", "done.3", "notes.1"]);
    }
}
