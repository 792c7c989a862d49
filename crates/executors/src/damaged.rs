//! Runs whose own files cannot be understood any more, as after a power cut on a disk that lost what was synced. Such a run
//! is over: what is left of it is killed, and its end is written down, so that nothing of it is used by halves.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use rustix::process::geteuid;

use crate::assignment::mark_of;
use crate::kill::Kin;
use crate::run_dir::RunDir;
use crate::{Ending, ExecutorError};

/// What cannot be killed by then is tried again at the next look.
const PATIENCE: Duration = Duration::from_secs(5);

/// If a file is damaged that the run cannot do without, and no supervisor lives who knows what was in it: writes down the
/// end of the run. True if so.
pub(crate) fn end_if_damaged(dir: &RunDir) -> Result<bool, ExecutorError> {
    let Some(damage) = damage(dir) else { return Ok(false) };
    let Some(_lock) = dir.try_lock()? else { return Ok(false) };
    if dir.has_ended() {
        return Ok(false);
    }
    let tokens = [
        dir.assignment().ok().flatten().map(|assignment| assignment.token),
        dir.supervisor().ok().flatten().map(|supervisor| supervisor.token),
    ];
    let marks: Vec<String> = tokens.into_iter().flatten().take(1).map(|token| mark_of(&token)).collect();
    // The progress file belongs to whoever the job runs as.
    let owner = fs::symlink_metadata(dir.progress_file()).map_or_else(|_| geteuid().as_raw(), |file| file.uid());
    let kin = Kin { supervisor: None, owner, marks: &marks, leaders: &dir.workers()?, seen: &[], groups: &[] };
    if !kin.sweep(PATIENCE, || ()) {
        return Ok(false);
    }
    tracing::error!(damage, "a run has lost its files and is ended");
    dir.write_ending_if_there(&Ending {
        started: dir.has_started(),
        told_to_stop: dir.stop_note()?.is_some(),
        trouble: Some(format!("its files are damaged: {damage}")),
        usage: dir.usage()?.unwrap_or_default(),
        ..Ending::default()
    })
}

fn damage(dir: &RunDir) -> Option<String> {
    let read = [
        dir.assignment().map(drop),
        // Of a run that was held and is not any more, nobody need know who held it.
        dir.supervisor().map(drop).or_else(|error| if dir.was_held() { Ok(()) } else { Err(error) }),
        dir.gang().map(drop),
        dir.wish().map(drop),
        dir.outcome().map(drop),
    ];
    let mut errors = read.into_iter().filter_map(Result::err);
    errors.find(|error| matches!(error, ExecutorError::Malformed { .. })).map(|error| error.to_string())
}
