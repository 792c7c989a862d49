//! The shells beside a run: started where its first worker is, hung up on when their users have gone. Whatever becomes of
//! them is nothing to the run, and they end with it.

use std::collections::BTreeSet;
use std::io;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::Signal;

use super::{Gang, LOOK_AROUND, exit_of, unready};
use crate::bell::drain;
use crate::input::Typing;
use crate::kill::Kin;
use crate::logs::Pump;
use crate::process::{Identity, Process};
use crate::shell::{MOST_SHELLS, Shell, ShellEnd};
use crate::terminal::Terminal;
use crate::worker::StartFailure;

/// A shell at which nobody looks any more is hung up on after so long: its client may come back after a restart of the
/// service.
const ALONE_FOR: Duration = Duration::from_secs(30);
/// How long a program has that was hung up on.
const HANGUP_GRACE: Duration = Duration::from_secs(5);
/// How long what remains of a shell can be asked for.
const KEPT_FOR: Duration = Duration::from_secs(60);
/// How long output may still come from what a shell has started.
const LAST_OUTPUT: Duration = Duration::from_millis(100);
/// So many that have ended are kept: each has its last output on the disk.
const MOST_ENDED: usize = 4;

/// All shells of a run.
#[derive(Default)]
pub(super) struct Shells {
    known: Vec<Known>,
    /// The programs of those that are open.
    open: BTreeSet<Identity>,
    /// The leaders of their sessions, also of those that have ended as long as somebody is in them.
    leaders: Vec<Identity>,
    /// The state of their directory when it was last looked at, and when that was.
    looked: Option<(Option<SystemTime>, Instant)>,
}

struct Known {
    name: String,
    shell: Shell,
    stage: Stage,
}

enum Stage {
    Open(Box<Open>),
    Ended {
        at: Instant,
        /// Somebody whom its program has left behind may have its terminal still.
        rest: Option<Rest>,
    },
}

/// What is left of a shell as long as somebody has its terminal: two threads, which nobody can end from here. It keeps its
/// place until then.
struct Rest {
    leader: Identity,
    log: Pump,
    /// When they are killed who have not heard of the hangup; none before that.
    strike_at: Option<Instant>,
}

struct Open {
    identity: Identity,
    /// Open until it has become the user's program.
    status: Option<io::PipeReader>,
    heard: Vec<u8>,
    log: Pump,
    /// The worker whose group it is in, or whose allowance it shares.
    beside: u32,
    greeted: Option<SystemTime>,
    greeted_at: Instant,
    hung_up_at: Option<Instant>,
}

impl Gang<'_> {
    pub(super) fn step_shells(&mut self, now: Instant) {
        self.find_shells(now);
        let owner = self.assignment.owner();
        for known in &mut self.shells.known {
            known.hear();
            known.look_after(now);
            known.clear(owner, now);
        }
        self.shells.put_away(now);
        if self.shells.find_leaders() {
            self.note_workers();
        }
        self.share_allowances();
    }

    /// Where no control group limits them together, shells and the worker they are beside share its allowance.
    fn share_allowances(&mut self) {
        for worker in &mut self.workers {
            let Some(allowance) = &mut worker.allowance else { continue };
            let guests: Vec<Identity> = self.shells.beside(worker.member).collect();
            if guests.is_empty() && worker.has_ended {
                worker.allowance = None;
            } else {
                allowance.share_with(guests);
            }
        }
    }

    /// Starts those that are new.
    fn find_shells(&mut self, now: Instant) {
        let changed = std::fs::metadata(self.dir.shells()).and_then(|dir| dir.modified()).ok();
        let is_same = |(seen, at): &(Option<SystemTime>, Instant)| *seen == changed && now < *at + LOOK_AROUND;
        if self.shells.looked.as_ref().is_some_and(is_same) {
            return;
        }
        self.shells.looked = Some((changed, now));
        let Ok(all) = Shell::all(self.dir) else { return };
        for (name, shell) in all {
            if self.shells.known.iter().any(|known| known.name == name) {
                continue;
            }
            let stage = match self.start_shell(&name, &shell, now) {
                Ok(open) => Stage::Open(Box::new(open)),
                Err(failure) => ended(&shell, ShellEnd { trouble: Some(failure.reason), ..ShellEnd::default() }, now),
            };
            self.shells.known.push(Known { name, shell, stage });
        }
    }

    fn start_shell(&self, name: &str, shell: &Shell, now: Instant) -> Result<Open, StartFailure> {
        let cannot = |error: io::Error| StartFailure::new("cannot start a shell", error);
        let refuse = |why: &str| Err(cannot(io::Error::other(why.to_string())));
        let Some(first) = self.roster.members.first().filter(|_| self.ending.started && self.winding.is_none()) else {
            return refuse("the job is about to end");
        };
        if self.shells.known.iter().filter(|known| known.has_place()).count() >= MOST_SHELLS {
            return refuse("there are too many: each counts until nothing that was started there has its terminal");
        }
        let order = shell.order().map_err(cannot)?;
        let Terminal { master, slave } =
            Terminal::open(order.window, self.assignment.account.as_ref()).map_err(cannot)?;
        let keyboard = master.try_clone().map_err(cannot)?;
        let log = Pump::start(master, shell.log()).map_err(unready)?;
        shell.input().type_at(keyboard, Typing::FromStart).map_err(unready)?;
        let (status, theirs) = io::pipe().map_err(cannot)?;
        rustix::io::ioctl_fionbio(&status, true).map_err(|error| cannot(error.into()))?;
        let (program, arguments) =
            self.assignment.supervisor.split_first().ok_or_else(|| cannot(io::ErrorKind::NotFound.into()))?;
        let child = Command::new(program)
            .args(arguments)
            .arg(self.dir.path())
            .args(["--worker", &first.member.to_string(), "--shell", name])
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::from(slave.try_clone().map_err(cannot)?))
            .stderr(Stdio::from(slave))
            .spawn()
            .map_err(cannot)?;
        let identity = Identity::of(child.id() as i32).ok_or_else(|| cannot(io::ErrorKind::NotFound.into()))?;
        let greeted = shell.greeted();
        let (status, heard) = (Some(status), Vec::new());
        Ok(Open { identity, status, heard, log, beside: first.member, greeted, greeted_at: now, hung_up_at: None })
    }

    /// The run is over, and so are they.
    pub(super) fn end_shells(&mut self) {
        for known in &mut self.shells.known {
            let trouble = Some("the job has ended".to_string());
            known.end(ShellEnd { trouble, ..ShellEnd::default() }, Instant::now());
        }
    }
}

impl Shells {
    /// Takes note that this process has ended; false if it is none of them.
    pub(super) fn reap(&mut self, pid: i32, status: rustix::process::WaitStatus) -> bool {
        let is_it = |known: &&mut Known| matches!(&known.stage, Stage::Open(open) if open.identity.pid == pid);
        let Some(known) = self.known.iter_mut().find(is_it) else { return false };
        // Why it did not start is said before it ends.
        known.hear();
        known.end(ShellEnd { exit: exit_of(status), trouble: None }, Instant::now());
        true
    }

    /// The leaders of all sessions in which somebody may be.
    pub(super) fn leaders(&self) -> &[Identity] {
        &self.leaders
    }

    /// True if they are others than before.
    fn find_leaders(&mut self) -> bool {
        let open: BTreeSet<Identity> = self.open().map(|open| open.identity).collect();
        if open == self.open {
            return false;
        }
        if !self.open.is_subset(&open) {
            let all = Process::all();
            let is_left = |leader: &Identity| all.iter().any(|process| process.session == leader.pid);
            self.leaders.retain(|leader| open.contains(leader) || is_left(leader));
        }
        self.leaders.extend(open.difference(&self.open));
        self.open = open;
        true
    }

    fn open(&self) -> impl Iterator<Item = &Open> {
        self.known.iter().filter_map(|known| match &known.stage {
            Stage::Open(open) => Some(&**open),
            Stage::Ended { .. } => None,
        })
    }

    /// The programs of those that are open beside a worker.
    fn beside(&self, member: u32) -> impl Iterator<Item = Identity> {
        self.open().filter(move |open| open.beside == member).map(|open| open.identity)
    }

    /// Those that have ended a while ago, and the oldest of too many.
    fn put_away(&mut self, now: Instant) {
        self.known.sort_by_key(Known::over_since);
        let over = self.known.iter().filter(|known| known.over_since().is_some()).count();
        let mut surplus = over.saturating_sub(MOST_ENDED);
        self.known.retain(|known| {
            let Some(at) = known.over_since() else { return true };
            let is_surplus = surplus > 0;
            surplus = surplus.saturating_sub(1);
            let goes = is_surplus || now >= at + KEPT_FOR;
            !goes || (known.shell.remove().is_err() && known.shell.exists())
        });
    }
}

impl Known {
    fn hear(&mut self) {
        let Stage::Open(open) = &mut self.stage else { return };
        let Some(status) = &mut open.status else { return };
        if !drain(status, &mut open.heard) {
            return;
        }
        open.status = None;
        if !open.heard.is_empty() {
            let failure: Result<StartFailure, _> = serde_json::from_slice(&open.heard);
            let reason = failure.map_or_else(|_| "it did not say why".into(), |failure| failure.reason);
            let trouble = Some(format!("cannot start it: {reason}"));
            self.end(ShellEnd { trouble, ..ShellEnd::default() }, Instant::now());
        }
    }

    /// Hangs up on one whose user has gone, and ends what does not hear of it.
    fn look_after(&mut self, now: Instant) {
        let Stage::Open(open) = &mut self.stage else { return };
        let greeted = self.shell.greeted();
        if greeted != open.greeted {
            (open.greeted, open.greeted_at) = (greeted, now);
        }
        match open.hung_up_at {
            None if self.shell.is_left() || now >= open.greeted_at + ALONE_FOR => {
                open.hung_up_at = Some(now);
                super::signal(open.identity.pid, Signal::HUP);
                super::signal(open.identity.pid, Signal::CONT);
            }
            Some(at) if now >= at + HANGUP_GRACE => super::signal(open.identity.pid, Signal::KILL),
            _ => {}
        }
    }

    fn end(&mut self, end: ShellEnd, now: Instant) {
        if matches!(self.stage, Stage::Ended { .. }) {
            return;
        }
        let stage = std::mem::replace(&mut self.stage, Stage::Ended { at: now, rest: None });
        let Stage::Open(open) = stage else { return };
        let Open { identity, log, .. } = *open;
        let is_done = log.finish(LAST_OUTPUT);
        self.stage = ended(&self.shell, end, now);
        if let Stage::Ended { rest, .. } = &mut self.stage
            && !is_done
        {
            *rest = Some(Rest { leader: identity, log, strike_at: None });
        }
    }

    /// Ends whoever still has the terminal of one that has ended. Those who began a session of their own are let be until
    /// the run ends.
    fn clear(&mut self, owner: u32, now: Instant) {
        let Stage::Ended { rest, .. } = &mut self.stage else { return };
        let Some(left) = rest else { return };
        if left.log.finish(Duration::ZERO) {
            *rest = None;
            return;
        }
        match left.strike_at {
            None => {
                left.strike(owner, Signal::HUP);
                left.strike_at = Some(now + HANGUP_GRACE);
            }
            Some(at) if now >= at => {
                let found = left.strike(owner, Signal::KILL);
                // To look at all processes of the machine takes a while.
                left.strike_at = Some(now + if found { LOOK_AROUND } else { KEPT_FOR });
            }
            Some(_) => {}
        }
    }

    fn has_place(&self) -> bool {
        matches!(&self.stage, Stage::Open(_) | Stage::Ended { rest: Some(_), .. })
    }

    /// Since when nothing of it is left but what it has shown.
    fn over_since(&self) -> Option<Instant> {
        match self.stage {
            Stage::Ended { at, rest: None } => Some(at),
            Stage::Ended { .. } | Stage::Open(_) => None,
        }
    }
}

impl Rest {
    /// Signals all of its session, if somebody is left of that.
    fn strike(&self, owner: u32, what: Signal) -> bool {
        let leaders = [self.leader];
        let kin = Kin { supervisor: None, owner, marks: &[], leaders: &leaders, seen: &[], groups: &[] };
        let living = kin.living();
        for process in &living {
            // Whoever is stopped would not hear of a hangup.
            for signal in [what, Signal::CONT] {
                if let Err(error) = process.signal(signal) {
                    tracing::warn!(pid = process.pid, %error, "cannot signal what is left of a shell");
                }
            }
        }
        !living.is_empty()
    }
}

/// What was typed there is of no use any more, and may be much.
fn ended(shell: &Shell, end: ShellEnd, now: Instant) -> Stage {
    if let Err(error) = shell.write_end(&end) {
        tracing::warn!(%error, "the end of a shell cannot be told");
    }
    shell.forget_input();
    Stage::Ended { at: now, rest: None }
}
