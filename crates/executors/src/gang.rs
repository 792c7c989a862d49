//! The workers of one run, from the first to the last: all start or none stays, they fail together, they are stopped
//! with notice and grace, and nothing is left of them.

mod resize;
mod shells;
mod terminate;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cluster::{Bytes, Span};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, kill_process_group, wait};

use crate::assignment::{Assignment, WorkerAssignment};
use crate::bell::{Bell, drain};
use crate::cgroup::Group;
use crate::duty::{self, Allowance};
use crate::input::Typing;
use crate::kill::Kin;
use crate::logs::Pump;
use crate::process::Identity;
use crate::roster::{Member, Roster};
use crate::run_dir::{RunDir, StopNote, name_of};
use crate::stopwatch::Stopwatch;
use crate::terminal::Terminal;
use crate::usage::Sampler;
use crate::worker::{CANNOT_RUN, StartFailure};
use crate::{Ending, Enforcement, ExecutorError, Exit, Input, Window, news};
use resize::{Resize, WishStamp};
use shells::Shells;
use terminate::{Departure, HowToGo};

/// How long workers have that must go because of another: it failed, or the work is done.
const SIBLING_GRACE: Duration = Duration::from_secs(5);
/// How long a run has if the supervisor itself is asked to go.
const SHUTDOWN_GRACE: Span = Span::from_secs(10);
/// How long it has if it is to stop, and cannot read how long it has: a run that does not stop is worse than one that stops
/// early.
const UNREAD_GRACE: Span = Span::from_secs(30);
/// How often notes are looked for, should the signal have been lost.
const LOOK_AROUND: Duration = Duration::from_secs(1);
/// How often it is looked whether those have ended who were told to go.
const LOOK_WHO_LEFT: Duration = Duration::from_millis(50);
const LOG_PATIENCE: Duration = Duration::from_secs(2);
const SWEEP_PATIENCE: Duration = Duration::from_secs(10);
const USAGE_WRITTEN_EVERY: Duration = Duration::from_secs(2);

/// Runs the assignment to its end.
pub(crate) fn hold(dir: &RunDir, assignment: &Assignment, bell: &Bell) -> Ending {
    let mut gang = Gang::new(dir, assignment);
    gang.hear_stop(bell, Instant::now());
    if !gang.ending.told_to_stop {
        gang.start();
    }
    while gang.is_alive() {
        bell.wait(&gang.pipes(), gang.next_deadline(Instant::now()));
        gang.step(bell, Instant::now());
    }
    gang.finish()
}

/// The control group of a worker; empty where other means are used.
pub(crate) fn group_of(assignment: &Assignment, member: u32, worker: &WorkerAssignment) -> Group {
    let unique = assignment.group.as_ref().unwrap_or(&assignment.token);
    let name = format!("moira-{}-{unique}-{member}", name_of(assignment.run));
    // A supervisor of before made groups for limits only, and workers that it starts must not look for others.
    let tracks = assignment.group.is_some();
    Group::below(&assignment.enforcement, &name, worker.cores, worker.memory.get(), tracks)
}

struct Gang<'a> {
    dir: &'a RunDir,
    assignment: &'a Assignment,
    /// Whose ends are the end of the run.
    roster: Roster,
    /// Whoever was started and is not put away: also those who join or leave.
    workers: Vec<Worker>,
    shells: Shells,
    resize: Option<Resize>,
    /// The latest wish that was looked at.
    wish: Option<WishStamp>,
    /// By member.
    exits: BTreeMap<u32, Exit>,
    first_failure: Option<u32>,
    /// What the first that failed was allowed of memory, if it wanted more.
    out_of_memory: Option<Bytes>,
    /// The deadline of the start.
    up_by: Instant,
    /// Whether the start is on record.
    is_start_noted: bool,
    /// Whether the workers there are now are.
    are_workers_noted: bool,
    winding: Option<Winding>,
    ending: Ending,
    since_start: Stopwatch,
    sampler: Sampler,
    looked_around: Instant,
    usage_written: Instant,
}

struct Worker {
    member: u32,
    identity: Identity,
    group: Group,
    /// Open until the worker has become the user's command.
    status: Option<io::PipeReader>,
    heard: Vec<u8>,
    log: Pump,
    allowance: Option<Allowance>,
    how_to_go: HowToGo,
    /// Some of it were told to go, and the rest is to be.
    departure: Option<Departure>,
    has_ended: bool,
}

/// Where a worker writes to.
struct Ends {
    theirs: OwnedFd,
    log: Pump,
}

/// How the run is brought to its end.
struct Winding {
    terminate_at: Instant,
    kill_at: Instant,
    was_terminated: bool,
    was_killed: bool,
}

impl<'a> Gang<'a> {
    fn new(dir: &'a RunDir, assignment: &'a Assignment) -> Gang<'a> {
        let now = Instant::now();
        Gang {
            dir,
            assignment,
            roster: Roster::at_launch(assignment),
            workers: Vec::new(),
            shells: Shells::default(),
            resize: None,
            wish: None,
            exits: BTreeMap::new(),
            first_failure: None,
            out_of_memory: None,
            up_by: now + duration(assignment.start_within),
            is_start_noted: false,
            are_workers_noted: true,
            winding: None,
            ending: Ending::default(),
            since_start: Stopwatch::start(),
            sampler: Sampler::new(own_pid(), &assignment.gpus, now),
            looked_around: now,
            usage_written: now,
        }
    }

    fn start(&mut self) {
        for member in self.roster.members.clone() {
            match self.start_worker(&member) {
                Ok(worker) => self.workers.push(worker),
                Err(failure) => {
                    self.could_not_start(member.member, &failure);
                    break;
                }
            }
        }
        self.note_workers();
        // Those that were started before the one that could not be.
        self.step_winding(Instant::now());
    }

    /// What cannot be noted now is noted at one of the next looks around.
    fn note_workers(&mut self) {
        let noted = self.dir.write_workers(&self.leaders());
        self.are_workers_noted = noted.is_ok();
        warn_if_failed(noted);
    }

    /// Of the sessions of all workers and shells.
    fn leaders(&self) -> Vec<Identity> {
        self.workers.iter().map(|worker| worker.identity).chain(self.shells.leaders().iter().copied()).collect()
    }

    fn start_worker(&self, member: &Member) -> Result<Worker, StartFailure> {
        let cannot = |doing: &str, error: io::Error| StartFailure::new(doing, error);
        let group = group_of(self.assignment, member.member, &member.assignment);
        group.make().map_err(|error| cannot("cannot make its control group", error))?;
        let (status, theirs) = io::pipe().map_err(|error| cannot("cannot make a pipe", error))?;
        rustix::io::ioctl_fionbio(&status, true).map_err(|error| cannot("cannot make a pipe", error.into()))?;
        let Ends { theirs: their_output, log } = match self.assignment.order.program.terminal_of(member.member) {
            Some(window) => self.terminal(member.member, window)?,
            None => self.pipe(member.member)?,
        };
        let their_errors = their_output.try_clone().map_err(|error| cannot("cannot make a pipe", error))?;
        let (program, arguments) = self
            .assignment
            .supervisor
            .split_first()
            .ok_or_else(|| cannot("cannot fork", io::ErrorKind::NotFound.into()))?;
        let child = Command::new(program)
            .args(arguments)
            .arg(self.dir.path())
            .arg("--worker")
            .arg(member.member.to_string())
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::from(their_output))
            .stderr(Stdio::from(their_errors))
            .spawn()
            .map_err(|error| cannot("cannot fork", error))?;
        let identity = Identity::of(child.id() as i32)
            .ok_or_else(|| cannot("cannot see it in /proc", io::ErrorKind::NotFound.into()))?;
        let cores = member.assignment.cores.filter(|_| self.assignment.enforcement == Enforcement::Duty);
        let allowance = cores.map(|cores| Allowance::new(identity, cores, Instant::now()));
        let member = member.member;
        let has_terminal = self.assignment.order.program.terminal_of(member).is_some();
        let how_to_go = if has_terminal { HowToGo::HangUp } else { HowToGo::Terminate };
        let (status, heard) = (Some(status), Vec::new());
        Ok(Worker {
            member,
            identity,
            group,
            status,
            heard,
            log,
            allowance,
            how_to_go,
            departure: None,
            has_ended: false,
        })
    }

    /// A pipe for what a worker writes.
    fn pipe(&self, member: u32) -> Result<Ends, StartFailure> {
        let (output, theirs) = io::pipe().map_err(|error| StartFailure::new("cannot make a pipe", error))?;
        let log = Pump::start(output, self.dir.log(member)).map_err(unready)?;
        if member == 0 {
            self.feed().map_err(unready)?;
        }
        Ok(Ends { theirs: theirs.into(), log })
    }

    /// A terminal for what it reads and writes: its log is what was to be seen there.
    fn terminal(&self, member: u32, window: Window) -> Result<Ends, StartFailure> {
        let opened = Terminal::open(window, self.assignment.account.as_ref()).and_then(|terminal| {
            let keyboard = terminal.master.try_clone()?;
            Ok((terminal, keyboard))
        });
        let (Terminal { master, slave }, keyboard) =
            opened.map_err(|error| StartFailure::new("cannot make a terminal", error))?;
        let log = Pump::start(master, self.dir.log(member)).map_err(unready)?;
        if let Some(name) = &self.assignment.order.program.input {
            // To type again what was typed to an earlier run would be to do again whatever it did.
            let typing = if self.assignment.run.attempt > 1 { Typing::FromNow } else { Typing::FromStart };
            Input::of(self.dir.data_dir(), name).type_at(keyboard, typing).map_err(unready)?;
        }
        Ok(Ends { theirs: slave, log })
    }

    /// Lets the first worker read what is sent to the job.
    fn feed(&self) -> Result<(), ExecutorError> {
        let Some(name) = &self.assignment.order.program.input else { return Ok(()) };
        self.dir.make_stdin(self.assignment.account.as_ref())?;
        Input::of(self.dir.data_dir(), name).feed(self.dir.stdin())
    }

    /// A worker that has ended may have left word why it did not start.
    fn is_alive(&self) -> bool {
        let was_killed = self.winding.as_ref().is_some_and(|winding| winding.was_killed);
        self.workers.iter().any(|worker| !worker.has_ended || (worker.status.is_some() && !was_killed))
    }

    fn is_starting(&self) -> bool {
        self.workers.iter().any(|worker| worker.status.is_some())
    }

    fn pipes(&self) -> Vec<BorrowedFd<'_>> {
        self.workers.iter().filter_map(|worker| worker.status.as_ref().map(AsFd::as_fd)).collect()
    }

    fn next_deadline(&self, now: Instant) -> Instant {
        let mut next = (self.looked_around + LOOK_AROUND).min(self.sampler.due());
        if self.is_starting() && !self.ending.started {
            next = next.min(self.up_by);
        }
        if self.resize.is_some() {
            next = next.min(now + resize::LOOK_EVERY);
        }
        if self.living().any(|worker| worker.departure.is_some()) {
            next = next.min(now + LOOK_WHO_LEFT);
        }
        if let Some(left) = self.time_left() {
            next = next.min(now + duration(left));
        }
        match &self.winding {
            Some(winding) if !winding.was_terminated => next = next.min(winding.terminate_at),
            Some(winding) if !winding.was_killed => next = next.min(winding.kill_at),
            Some(_) => {}
            None if self.workers.iter().any(|worker| worker.allowance.is_some()) => next = next.min(now + duty::TICK),
            None => {}
        }
        next
    }

    fn step(&mut self, bell: &Bell, now: Instant) {
        self.hear_workers();
        self.judge_start(now);
        let ended = self.reap();
        // Whether someone may leave is decided by what was agreed before it left.
        self.step_resize(now);
        self.take_note(ended);
        self.hear_stop(bell, now);
        self.keep_limit(now);
        self.judge_ends(now);
        self.step_winding(now);
        if self.winding.is_none() {
            self.workers.iter_mut().filter_map(|worker| worker.allowance.as_mut()).for_each(|it| it.tick(now));
        }
        self.step_shells(now);
        if now >= self.sampler.due() {
            self.sample(now);
        }
        if now >= self.looked_around + LOOK_AROUND {
            self.looked_around = now;
            self.note_what_is_not();
        }
    }

    fn hear_workers(&mut self) {
        let mut failures = Vec::new();
        for worker in &mut self.workers {
            let Some(status) = &mut worker.status else { continue };
            if drain(status, &mut worker.heard) {
                worker.status = None;
                if !worker.heard.is_empty() {
                    let garbled = StartFailure { code: CANNOT_RUN, reason: "it did not say why".into() };
                    failures.push((worker.member, serde_json::from_slice(&worker.heard).unwrap_or(garbled)));
                }
            }
        }
        for (member, failure) in failures {
            self.could_not_start(member, &failure);
        }
    }

    /// The worker may be killed before it ends by itself: its code is the one it wanted to end with.
    fn could_not_start(&mut self, member: u32, failure: &StartFailure) {
        self.exits.insert(member, Exit { code: Some(failure.code.into()), signal: None });
        let why = format!("cannot start worker {member}: {}", failure.reason);
        if self.ending.started {
            self.withdraw(why, Instant::now());
        } else if self.ending.trouble.is_none() {
            self.first_failure = Some(member);
            self.give_up(why);
        }
    }

    fn give_up(&mut self, trouble: String) {
        self.ending.trouble = Some(trouble);
        let now = Instant::now();
        self.wind(now, now);
    }

    fn judge_start(&mut self, now: Instant) {
        // Of workers that must go before all were up nobody can tell whether they still would have come up.
        if self.winding.is_some() && !self.ending.started {
            return;
        }
        if self.is_starting() && !self.ending.started {
            if now >= self.up_by {
                self.give_up("not all workers were up in time".into());
            }
            return;
        }
        if !std::mem::replace(&mut self.ending.started, true) {
            self.note_start();
        }
    }

    fn note_start(&mut self) {
        let noted = self.dir.mark_started();
        self.is_start_noted = noted.is_ok();
        warn_if_failed(noted);
        news::tell(self.dir.data_dir(), self.assignment.run, "started");
    }

    /// Tries again what a full disk did not let through.
    fn note_what_is_not(&mut self) {
        if self.ending.started && !self.is_start_noted {
            self.note_start();
        }
        if !self.are_workers_noted {
            self.note_workers();
        }
    }

    /// Whoever has ended. Strangers among them were left behind by a worker.
    fn reap(&mut self) -> Vec<(u32, Exit)> {
        let mut ended = Vec::new();
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let pid = pid.as_raw_nonzero().get();
            let Some(worker) = self.workers.iter_mut().find(|it| it.identity.pid == pid) else {
                self.shells.reap(pid, status);
                continue;
            };
            worker.has_ended = true;
            // Shells beside it may go on.
            worker.allowance.iter_mut().for_each(Allowance::leader_has_ended);
            ended.push((worker.member, exit_of(status)));
        }
        ended
    }

    fn take_note(&mut self, ended: Vec<(u32, Exit)>) {
        for (member, exit) in ended {
            let is_moot = self.ending.trouble.is_some() || self.is_finished() || !self.roster.has(member);
            self.exits.entry(member).or_insert(exit);
            if exit.is_failure() && !is_moot && self.first_failure.is_none() {
                self.first_failure = Some(member);
                self.out_of_memory = self.memory_that_was_too_little(member);
            }
        }
    }

    fn memory_that_was_too_little(&self, member: u32) -> Option<Bytes> {
        let worker = self.workers.iter().find(|worker| worker.member == member)?;
        let allowed = self.roster.find(member)?.assignment.memory;
        worker.group.ran_out_of_memory().then_some(allowed)
    }

    fn exit_of_member(&self, member: u32) -> Exit {
        self.exits.get(&member).copied().unwrap_or_default()
    }

    /// The work is done when all of role 0 have ended well.
    fn is_finished(&self) -> bool {
        let mut workers = self.roster.members.iter().filter(|it| it.assignment.role == 0);
        workers.all(|it| !self.exit_of_member(it.member).is_failure())
    }

    /// Exits count once the gang is whole: it takes no longer than the start itself.
    fn judge_ends(&mut self, now: Instant) {
        if !self.ending.started || self.ending.told_to_stop {
            return;
        }
        if self.first_failure.is_some() || self.is_finished() {
            self.wind(now, now + SIBLING_GRACE);
        }
    }

    fn hear_stop(&mut self, bell: &Bell, now: Instant) {
        let note = self.dir.stop_note().unwrap_or_else(|error| {
            if !self.ending.told_to_stop {
                tracing::warn!(%error, "cannot read the wish to stop");
            }
            self.dir.has_stop_note().then_some(StopNote { grace: UNREAD_GRACE })
        });
        let graces = [note.map(|note| note.grace), bell.was_terminated().then_some(SHUTDOWN_GRACE)];
        if let Some(grace) = graces.into_iter().flatten().min() {
            self.tell_to_stop(grace, now);
        }
    }

    /// How long the run may still last. One that ends anyway is given the time it takes.
    fn time_left(&self) -> Option<Span> {
        let limit = self.assignment.order.limit.filter(|_| self.winding.is_none())?;
        Some(limit.remaining.saturating_sub(self.since_start.elapsed()))
    }

    /// The service keeps limits too, but it may be away.
    fn keep_limit(&mut self, now: Instant) {
        let Some(limit) = self.assignment.order.limit else { return };
        if self.time_left().is_some_and(Span::is_zero) {
            self.ending.limit_reached = true;
            self.tell_to_stop(limit.grace, now);
        }
    }

    fn tell_to_stop(&mut self, grace: Span, now: Instant) {
        if !self.ending.told_to_stop {
            self.ending.told_to_stop = true;
            if !grace.is_zero() {
                self.living().for_each(|worker| terminate::give_notice(worker.identity));
            }
        }
        // No grace at all means now; otherwise grace begins when notice is over.
        let notice = if grace.is_zero() { Duration::ZERO } else { duration(self.assignment.notice) };
        let terminate_at = self.winding.as_ref().map_or(now + notice, |winding| winding.terminate_at.min(now + notice));
        self.wind(terminate_at, terminate_at.max(now) + duration(grace));
    }

    /// Deadlines only ever come nearer.
    fn wind(&mut self, terminate_at: Instant, kill_at: Instant) {
        match &mut self.winding {
            Some(winding) => {
                winding.terminate_at = winding.terminate_at.min(terminate_at);
                winding.kill_at = winding.kill_at.min(kill_at);
            }
            None => {
                self.winding = Some(Winding { terminate_at, kill_at, was_terminated: false, was_killed: false });
            }
        }
    }

    /// Workers that are stopped by their limit could hear nothing, and what time is left is for saving their work: the
    /// limit is lifted.
    fn step_winding(&mut self, now: Instant) {
        let Some(winding) = &mut self.winding else { return };
        let kills = now >= winding.kill_at && !std::mem::replace(&mut winding.was_killed, now >= winding.kill_at);
        let terminates =
            now >= winding.terminate_at && !std::mem::replace(&mut winding.was_terminated, now >= winding.terminate_at);
        self.workers.iter_mut().filter_map(|worker| worker.allowance.as_mut()).for_each(Allowance::lift);
        for worker in self.workers.iter_mut().filter(|worker| !worker.has_ended) {
            if kills {
                signal(worker.identity.pid, Signal::KILL);
            } else if terminates {
                worker.departure = terminate::tell_to_go(worker.identity, worker.how_to_go);
            } else if worker.departure.as_ref().is_some_and(|departure| departure.conclude(worker.identity)) {
                worker.departure = None;
            }
        }
    }

    fn living(&self) -> impl Iterator<Item = &Worker> {
        self.workers.iter().filter(|worker| !worker.has_ended)
    }

    fn sample(&mut self, now: Instant) {
        self.ending.usage = self.sampler.sample(now);
        if now >= self.usage_written + USAGE_WRITTEN_EVERY {
            self.usage_written = now;
            warn_if_failed(self.dir.write_usage(&self.ending.usage, self.since_start.elapsed()));
        }
    }

    /// Nobody is left, all output is written, and then it is over.
    fn finish(mut self) -> Ending {
        // Of a worker that could not be forked there may be a group.
        let of_roster = |it: &Member| group_of(self.assignment, it.member, &it.assignment);
        let mut groups: Vec<Group> = self.roster.members.iter().map(of_roster).collect();
        groups.extend(self.workers.iter().map(|worker| worker.group.clone()));
        let leaders = self.leaders();
        let marks = [self.assignment.mark()];
        let kin = Kin {
            supervisor: Some(own_pid()),
            owner: self.assignment.owner(),
            marks: &marks,
            leaders: &leaders,
            seen: &[],
            groups: &groups,
        };
        let reap = || while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {};
        while is_anyone_left(&groups) && !kin.sweep(SWEEP_PATIENCE, reap) {
            tracing::warn!(run = %self.assignment.run, "some process cannot be killed yet");
        }
        reap();
        self.end_shells();
        self.ending.ran = Some(self.since_start.elapsed());
        for worker in &self.workers {
            // Whoever still holds it is nobody of the run.
            let _ = worker.log.finish(LOG_PATIENCE);
        }
        groups.iter().for_each(Group::remove);
        self.ending.usage = self.sampler.sample(Instant::now());
        self.ending.exits = self.roster.members.iter().map(|it| self.exit_of_member(it.member)).collect();
        self.ending.failed_member = self.first_failure;
        self.ending.out_of_memory = self.out_of_memory;
        self.ending.failed_first = self.first_failure.and_then(|member| self.roster.rank_of(member));
        self.ending
    }
}

/// Whether a process of the run is left. Whatever its processes leave behind becomes a child of this supervisor: as long as
/// it has none, no other process of the machine need be looked at.
fn is_anyone_left(groups: &[Group]) -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            Err(Errno::CHILD) => return groups.iter().any(|group| !group.members().is_empty()),
            Ok(None) | Err(_) => return true,
        }
    }
}

/// To the worker's group; to the process alone as long as it has none. It was not waited for, so the number is its own.
fn signal(pid: i32, what: Signal) {
    let Some(pid) = Pid::from_raw(pid) else { return };
    let sent = kill_process_group(pid, what).or_else(|_| kill_process(pid, what));
    if let Err(error) = sent {
        tracing::warn!(pid = pid.as_raw_nonzero().get(), %error, "cannot signal a worker");
    }
}

fn unready(error: ExecutorError) -> StartFailure {
    StartFailure { code: CANNOT_RUN, reason: error.to_string() }
}

fn exit_of(status: WaitStatus) -> Exit {
    Exit { code: status.exit_status(), signal: status.terminating_signal() }
}

fn own_pid() -> i32 {
    getpid().as_raw_nonzero().get()
}

/// A span as the clock takes it; longer than a year is a year, so that deadlines can be added up.
pub(crate) fn duration(span: Span) -> Duration {
    Duration::from_millis(span.as_millis().min(365 * 24 * 3_600_000))
}

/// What is merely noted for others must not end a run that could go on.
fn warn_if_failed(noted: Result<(), ExecutorError>) {
    if let Err(error) = noted {
        tracing::warn!(%error, "a run goes on without a note");
    }
}
