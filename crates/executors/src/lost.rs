//! Runs whose supervisor died without writing down an end: killed, or gone with a crash of the machine, before or after
//! it held the run.

use std::time::Duration;

use crate::assignment::Assignment;
use crate::cgroup::Group;
use crate::damaged::end_if_damaged;
use crate::gang::group_of;
use crate::kill::Kin;
use crate::process::{Identity, boot_id};
use crate::run_dir::RunDir;
use crate::{Ending, ExecutorError, Exit};

/// What cannot be killed by then is tried again at the next look.
const PATIENCE: Duration = Duration::from_secs(5);

/// Whether a supervisor holds the run now.
pub(crate) fn is_supervised(dir: &RunDir) -> Result<bool, ExecutorError> {
    Ok(dir.supervisor()?.is_some_and(|note| note.boot == boot_id() && note.identity.lives()))
}

/// Whether the run had a supervisor and it died without writing down an end, or nobody can tell any more who it was.
pub(crate) fn is_lost(dir: &RunDir) -> Result<bool, ExecutorError> {
    match dir.supervisor() {
        Err(ExecutorError::Malformed { .. }) => Ok(!dir.has_ended()),
        // Just now somebody may be about to say that it holds the run: whoever ends it asks for the lock first.
        Ok(None) => Ok(dir.was_held() && !dir.has_ended()),
        note => Ok(note?.is_some() && !is_supervised(dir)? && !dir.has_ended()),
    }
}

/// If the run is lost: kills what is left of it and writes down its end. True if so. `seen` are processes that were below
/// the supervisor while it lived.
pub(crate) fn end_if_lost(dir: &RunDir, seen: &[Identity]) -> Result<bool, ExecutorError> {
    if is_supervised(dir).unwrap_or(false) || dir.has_ended() {
        return Ok(false);
    }
    if end_if_damaged(dir)? {
        return Ok(true);
    }
    if !dir.is_held_or_was()? {
        return Ok(false);
    }
    let Some(_lock) = dir.try_lock()? else { return Ok(false) };
    // It may have written down the end between our looking for it and its going.
    let Some(assignment) = dir.assignment()?.filter(|_| !dir.has_ended()) else { return Ok(false) };
    let groups = groups_of(dir, &assignment)?;
    // Where a power cut took the note of who held it, its processes are looked for all the same.
    let of_this_boot = dir.supervisor().ok().flatten().is_none_or(|note| note.boot == boot_id());
    if of_this_boot {
        let (owner, marks, leaders) = (assignment.owner(), [assignment.mark()], dir.workers()?);
        let kin = Kin { supervisor: None, owner, marks: &marks, leaders: &leaders, seen, groups: &groups };
        if !kin.sweep(PATIENCE, || ()) {
            return Ok(false);
        }
        groups.iter().for_each(Group::remove);
    }
    // Workers that outlived their supervisor held their devices until now. With the machine all of them have gone.
    let ran = if of_this_boot { None } else { dir.ran()? };
    let limit = assignment.order.limit;
    dir.write_ending_if_there(&Ending {
        started: dir.has_started(),
        told_to_stop: dir.stop_note()?.is_some(),
        exits: vec![Exit::default(); dir.roster(&assignment)?.members.len()],
        failed_first: None,
        failed_member: None,
        out_of_memory: None,
        hung: false,
        limit_reached: ran.zip(limit).is_some_and(|(ran, limit)| ran >= limit.remaining),
        ran,
        trouble: Some("its supervisor was lost".into()),
        usage: dir.usage()?.unwrap_or_default(),
    })
}

/// The control groups of all that may still be there: of the present gang, and of one that was just called together.
fn groups_of(dir: &RunDir, assignment: &Assignment) -> Result<Vec<Group>, ExecutorError> {
    let mut members = dir.roster(assignment)?.members;
    members.extend(dir.wish()?.into_iter().flat_map(|wish| wish.roster.members));
    Ok(members.iter().map(|member| group_of(assignment, member.member, &member.assignment)).collect())
}

/// If no supervisor has ever held the run: writes down that it is over, so that none that comes late begins it. True if
/// so.
pub(crate) fn end_if_never_held(dir: &RunDir, trouble: &str) -> Result<bool, ExecutorError> {
    if !dir.exists() {
        return Ok(false);
    }
    let Some(_lock) = dir.try_lock()? else { return Ok(false) };
    if dir.is_held_or_was()? || dir.has_ended() {
        return Ok(false);
    }
    dir.write_ending_if_there(&Ending { trouble: Some(trouble.into()), ..Ending::default() })
}
