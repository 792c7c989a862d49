//! The process that holds one run: it takes the run's lock, becomes the parent of whatever the workers leave behind, and
//! writes down the end. It knows nothing of the service but the run's directory.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{getpid, set_child_subreaper, setsid};

use crate::assignment::Assignment;
use crate::bell::Bell;
use crate::descriptors::close_inherited;
use crate::private::keep_files_private;
use crate::process::{Identity, boot_id};
use crate::run_dir::{RunDir, SupervisorNote};
use crate::{Ending, ExecutorError, gang, news};

const WRITE_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Holds the run in this directory until it has ended. Leaves at once, without an error, if another supervisor has it or
/// had it.
pub fn supervise(run_dir: &Path) -> Result<(), ExecutorError> {
    close_inherited().map_err(ExecutorError::system("begin with nothing inherited"))?;
    keep_files_private();
    let dir = RunDir::at(run_dir);
    if !dir.exists() {
        return Ok(());
    }
    let Some(_lock) = dir.try_lock()? else { return Ok(()) };
    if dir.has_ended() || dir.is_held_or_was()? {
        return Ok(());
    }
    let Some(assignment) = dir.assignment()? else { return Ok(()) };
    // Whoever leads a session already has no terminal to lose.
    let _ = setsid();
    set_child_subreaper(Some(getpid())).map_err(ExecutorError::system("become the parent of orphans"))?;
    // Whoever finds the note may send signals: there must be handlers by then.
    let bell = Bell::hang()?;
    let pid = getpid().as_raw_nonzero().get();
    let identity = Identity::of(pid).ok_or(rustix::io::Errno::SRCH).map_err(ExecutorError::system("read /proc"))?;
    let note = SupervisorNote { identity, boot: boot_id(), token: assignment.token.clone() };
    let ending = match introduce(&dir, &note, &assignment, &bell) {
        None => gang::hold(&dir, &assignment, &bell),
        Some(ending) => ending,
    };
    write_down(&dir, &ending);
    news::tell(dir.data_dir(), assignment.run, "ended");
    Ok(())
}

/// Writes down who holds the run, since workers and service ask for it; as long as that fails the run waits for its start.
/// Returns how the run ended if it has to before.
fn introduce(dir: &RunDir, note: &SupervisorNote, assignment: &Assignment, bell: &Bell) -> Option<Ending> {
    let up_by = Instant::now() + gang::duration(assignment.start_within);
    loop {
        let error = dir.mark_held().and_then(|()| dir.write_supervisor(note)).err()?;
        tracing::error!(%error, "cannot write down who holds a run; trying again");
        let told_to_stop = bell.was_terminated() || dir.stop_note().is_ok_and(|note| note.is_some());
        if told_to_stop || Instant::now() >= up_by {
            let trouble = Some(format!("it could not begin: {error}"));
            return Some(Ending { told_to_stop, trouble, ..Ending::default() });
        }
        bell.wait(&[], Instant::now() + WRITE_AGAIN_AFTER);
    }
}

/// An end that is not written down would be lost with this process; a full disk will not be full for ever.
fn write_down(dir: &RunDir, ending: &Ending) {
    while let Err(error) = dir.write_ending(ending) {
        // The file may be in place, and only its survival of a power cut not be sure; then there is nothing left to wait for.
        if dir.ending().is_ok_and(|there| there.as_ref() == Some(ending)) {
            return tracing::error!(%error, "the end of a run may not survive a power cut");
        }
        tracing::error!(%error, "cannot write down the end of a run; trying again");
        sleep(WRITE_AGAIN_AFTER);
    }
}
