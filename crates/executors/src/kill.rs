//! Finding every process of a run, wherever it has gone, and leaving none of them.

use std::collections::BTreeSet;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::cgroup::Group;
use crate::process::{Identity, Process, descendants};

/// By what the processes of a run are known.
#[derive(Debug)]
pub(crate) struct Kin<'a> {
    /// The supervisor as long as it lives: whatever its descendants leave behind becomes its child.
    pub(crate) supervisor: Option<i32>,
    /// The job's user. Processes that it started with another's rights count as its own.
    pub(crate) owner: u32,
    /// Lines in the environment of all that did not clean theirs: the run's token, and the worker if it is only about
    /// one. Anyone can put them into the environment of a process, so they count for those of the job's user only.
    pub(crate) marks: &'a [String],
    /// Leaders of the sessions of workers and shells.
    pub(crate) leaders: &'a [Identity],
    /// Processes that were seen below the supervisor while it lived.
    pub(crate) seen: &'a [Identity],
    pub(crate) groups: &'a [Group],
}

impl Kin<'_> {
    pub(crate) fn living(&self) -> Vec<Identity> {
        let all = Process::all();
        let mut known: BTreeSet<i32> = self.groups.iter().flat_map(Group::members).collect();
        let is_kin = |it: &&Process| self.in_session(it, &all, || it.user()) || self.is_marked(it);
        known.extend(all.iter().filter(is_kin).map(|it| it.identity.pid));
        known.extend(all.iter().filter(|it| self.seen.contains(&it.identity)).map(|it| it.identity.pid));
        known.extend(self.supervisor);
        let family = descendants(&all, &known);
        known.extend(family);
        let is_other = |pid: i32| pid > 1 && pid != std::process::id() as i32 && Some(pid) != self.supervisor;
        let living = all.iter().filter(|it| !it.is_dead && known.contains(&it.identity.pid));
        living.map(|it| it.identity).filter(|it| is_other(it.pid)).collect()
    }

    /// Kills until nobody is left, for as long as `patience` lasts; false if someone still lives then. `between` is
    /// called before each look around.
    pub(crate) fn sweep(&self, patience: Duration, mut between: impl FnMut()) -> bool {
        let until = Instant::now() + patience;
        loop {
            between();
            let living = self.living();
            if living.is_empty() {
                return true;
            }
            if Instant::now() > until {
                return false;
            }
            for process in living {
                if let Err(error) = process.signal(Signal::KILL) {
                    tracing::warn!(pid = process.pid, %error, "cannot kill a process that was left behind");
                }
            }
            sleep(Duration::from_millis(5));
        }
    }

    fn is_marked(&self, process: &Process) -> bool {
        !self.marks.is_empty() && self.is_marked_by(process.user(), |mark| process.carries(mark))
    }

    /// What a process of another user has in its environment is not even looked at.
    fn is_marked_by(&self, user: Option<u32>, carries: impl Fn(&str) -> bool) -> bool {
        user == Some(self.owner) && self.marks.iter().all(|mark| carries(mark))
    }

    /// A session may outlive its leader. If another process has the leader's number now, the session is not ours. It need
    /// not be either if nobody has the number: a stranger may have had it meanwhile, and have left a session behind. A
    /// leader that still lives may not have become the job's user yet.
    fn in_session(&self, process: &Process, all: &[Process], user: impl FnOnce() -> Option<u32>) -> bool {
        let Some(leader) = self.leaders.iter().find(|leader| leader.pid == process.session) else { return false };
        let taken = all.iter().any(|it| it.identity.pid == leader.pid && it.identity != *leader);
        !taken && process.identity.start >= leader.start && (process.identity == *leader || user() == Some(self.owner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_of_another_users_process_is_not_looked_at() {
        let marks = ["MOIRA_TOKEN=x".to_string()];
        let kin = Kin { supervisor: None, owner: 7, marks: &marks, leaders: &[], seen: &[], groups: &[] };
        let look = |_: &str| -> bool { panic!("it was looked at") };
        assert!(!kin.is_marked_by(Some(8), look) && !kin.is_marked_by(None, look));
        assert!(kin.is_marked_by(Some(7), |mark| mark == marks[0]));
        assert!(!kin.is_marked_by(Some(7), |_| false));
    }

    #[test]
    fn what_another_user_runs_in_a_session_of_the_same_number_is_not_the_jobs() {
        let leaders = [Identity { pid: 100, start: 5 }];
        let kin = Kin { supervisor: None, owner: 7, marks: &[], leaders: &leaders, seen: &[], groups: &[] };
        let process = |pid, start| Process {
            identity: Identity { pid, start },
            parent: 1,
            session: 100,
            is_dead: false,
            is_stopped: false,
            own_ticks: 0,
            waited_ticks: 0,
            resident_pages: 0,
        };
        let (leader, child, stranger) = (process(100, 5), process(101, 6), process(100, 9));
        assert!(kin.in_session(&child, &[child], || Some(7)), "its leader has ended");
        assert!(!kin.in_session(&child, &[child], || Some(8)) && !kin.in_session(&child, &[child], || None));
        assert!(!kin.in_session(&child, &[child], || Some(0)), "not even root's");
        assert!(kin.in_session(&leader, &[leader], || Some(0)), "it becomes the job's user in a moment");
        assert!(!kin.in_session(&child, &[stranger, child], || Some(7)), "somebody else has the number");
        assert!(!kin.in_session(&process(99, 4), &[], || Some(7)), "it is older than the session");
    }
}
