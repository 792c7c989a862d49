//! Notifications: messages about jobs to whom their users named. The service has two processes for each that is under way.
//! One becomes the job's user, and then the user's command, or sends the message itself. The other stays what the service
//! is, so that no user can stop it: it ends the first after a while, with all that came of it, and says how it went. It goes
//! on without the service, and never for long.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, getppid, pidfd_open, set_child_subreaper, set_parent_process_death_signal, setsid,
    umask,
};
use serde::{Deserialize, Serialize};

use crate::descriptors::close_inherited;
use crate::kill::Kin;
use crate::worker::{CANNOT_RUN, become_account, failure_to_start, groups_of, is_already, limit};
use crate::{Account, Limits, Program};

/// One notification to one receiver, complete.
#[derive(Debug, Clone, PartialEq)]
pub struct NotifyOrder {
    /// By which it is known in the news.
    pub number: u64,
    /// As whom, where and with which environment: as the job itself runs.
    pub program: Arc<Program>,
    pub receiver: Receiver,
    /// JSON.
    pub message: String,
    /// From the service; wins over the program's.
    pub env: BTreeMap<String, String>,
}

/// Who is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Receiver {
    /// A program and its arguments; it reads the message from its standard input.
    Command(Vec<String>),
    /// An address that gets the message by POST.
    Url(String),
}

/// What came of a notification.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Delivery {
    Delivered,
    Failed(String),
    /// Too many of the user's were waiting.
    Dropped,
}

/// Sends a message to an address; whoever starts the process brings it.
pub type Post = fn(&str, &str) -> Result<(), Unsent>;

/// Why a message was not sent, and whether it may be at another time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsent {
    pub why: String,
    pub again: bool,
}

/// What both processes are told. Everything in it is the user's or the user's to know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Errand {
    pub(crate) account: Option<Account>,
    pub(crate) limits: Limits,
    pub(crate) umask: u32,
    pub(crate) workdir: PathBuf,
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) receiver: Receiver,
    pub(crate) message: String,
}

/// What the process that keeps watch says at its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Nothing if it was delivered.
    pub(crate) trouble: Option<String>,
    /// Whether another try may do better.
    pub(crate) again: bool,
}

/// How long a command may take; a message that is sent takes less by itself.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long its processes are looked for after that.
const SWEEP: Duration = Duration::from_secs(5);
/// So long the process that keeps watch may take altogether.
pub(crate) const LONGEST: Duration = Duration::from_secs(60);
/// So much is read at once.
const BUFFER: usize = 4096;
/// So often it is read at the end, which is twice what a pipe holds. A process that nobody finds may write for ever.
const LAST_READS: usize = 32;
/// So much of what a command complains is kept, and told.
const COMPLAINT: usize = 4096;
const TOLD: usize = 200;
/// The word for a failure that may pass, from the days of sendmail.
const TRY_AGAIN: u8 = 75;
/// An errand is never larger: a job's environment and a command are bounded where they are submitted.
const LARGEST_ERRAND: u64 = 4 << 20;

/// Which of the two processes it is, after the words that start a supervisor.
const WATCH: &str = "--notify";
const AS_USER: &str = "--notify-as-user";

/// The words that start the process that keeps watch, after those that start a supervisor.
pub(crate) fn words() -> [&'static str; 1] {
    [WATCH]
}

/// Lets another process deliver what standard input says, for as long as that may take, and reports on standard output.
pub fn watch_over_notification() -> ExitCode {
    let closed = close_inherited();
    // Whoever leads a session already has no terminal to lose.
    let _ = setsid();
    let report = closed.and_then(|()| read_errand(io::stdin())).and_then(|(text, errand)| {
        set_child_subreaper(Some(getpid()))?;
        watch_over(start(&text)?, &errand)
    });
    let report =
        report.unwrap_or_else(|error| Report { trouble: Some(format!("it cannot be told: {error}")), again: false });
    // Nobody listens if the service is gone; it will tell again then.
    let text = serde_json::to_string(&report).unwrap_or_default();
    let told = io::stdout().write_all(text.as_bytes());
    if told.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn read_errand(source: impl Read) -> io::Result<(Vec<u8>, Errand)> {
    let mut text = Vec::new();
    source.take(LARGEST_ERRAND).read_to_end(&mut text)?;
    let errand = serde_json::from_slice(&text)?;
    Ok((text, errand))
}

fn start(errand: &[u8]) -> io::Result<Child> {
    // This very program, also if its file has been exchanged meanwhile.
    let mut command = Command::new("/proc/self/exe");
    command.args(["supervise", AS_USER]).arg(getpid().as_raw_nonzero().to_string()).env_clear();
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let mut input = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    // If it does not read all, it says why.
    input.write_all(errand).ok();
    Ok(child)
}

/// Waits for the end of the process and leaves nothing of it.
fn watch_over(mut child: Child, errand: &Errand) -> io::Result<Report> {
    let mut complaint = Complaint::of(child.stderr.take());
    let ended = await_end(&child, &mut complaint, Instant::now() + PATIENCE);
    let own = getpid().as_raw_nonzero().get();
    let owner = errand.account.as_ref().map_or_else(|| rustix::process::geteuid().as_raw(), |account| account.uid);
    let kin = Kin { supervisor: Some(own), owner, marks: &[], leaders: &[], seen: &[], groups: &[] };
    let is_clean = kin.sweep(SWEEP, || {});
    complaint.drain();
    if !is_clean {
        let trouble = Some("some of its processes cannot be killed".into());
        return Ok(Report { trouble, again: false });
    }
    let status = child.wait()?;
    Ok(if ended { judged(status, &complaint.last_line(), &errand.receiver) } else { overdue(&errand.receiver) })
}

fn overdue(receiver: &Receiver) -> Report {
    let trouble = format!("it took longer than {} s and was killed", PATIENCE.as_secs());
    Report { trouble: Some(trouble), again: matches!(receiver, Receiver::Url(_)) }
}

fn judged(status: ExitStatus, complaint: &str, receiver: &Receiver) -> Report {
    let said = if complaint.is_empty() { String::new() } else { format!(": {complaint}") };
    let is_url = matches!(receiver, Receiver::Url(_));
    let trouble = match (status.code(), status.signal()) {
        (Some(0), _) => None,
        // What the process itself says, which has not become the command.
        (Some(_), _) if is_url && !complaint.is_empty() => Some(complaint.to_string()),
        (Some(code), _) => Some(format!("exit {code}{said}")),
        (None, signal) => Some(format!("killed by signal {}{said}", signal.unwrap_or_default())),
    };
    Report { trouble, again: is_url && status.code() == Some(i32::from(TRY_AGAIN)) }
}

/// Until the process has ended: true; or the time is over.
fn await_end(child: &Child, complaint: &mut Complaint, until: Instant) -> bool {
    let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) else { return true };
    let Ok(descriptor) = pidfd_open(pid, PidfdFlags::empty()) else { return true };
    loop {
        let patience = until.saturating_duration_since(Instant::now());
        if patience.is_zero() {
            return false;
        }
        let timeout = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
        let mut watched = vec![PollFd::new(&descriptor, PollFlags::IN)];
        watched.extend(complaint.source.as_ref().map(|source| PollFd::from_borrowed_fd(source.as_fd(), PollFlags::IN)));
        // An interrupted wait is one more look.
        if poll(&mut watched, Some(&timeout)).is_err() {
            continue;
        }
        let (has_ended, has_more) =
            (!watched[0].revents().is_empty(), watched.get(1).is_some_and(|it| !it.revents().is_empty()));
        if has_more {
            complaint.read();
        }
        if has_ended {
            return true;
        }
    }
}

/// The end of what a process writes on standard error.
struct Complaint {
    source: Option<ChildStderr>,
    text: Vec<u8>,
}

impl Complaint {
    fn of(source: Option<ChildStderr>) -> Complaint {
        Complaint { source, text: Vec::new() }
    }

    /// What is there now; only after it was seen that something is.
    fn read(&mut self) {
        let mut buffer = [0; BUFFER];
        match self.source.as_mut().map(|source| source.read(&mut buffer)) {
            Some(Ok(count @ 1..)) => {
                self.text.extend_from_slice(&buffer[..count]);
                let beyond = self.text.len().saturating_sub(COMPLAINT);
                self.text.drain(..beyond);
            }
            _ => self.source = None,
        }
    }

    /// What is still there of processes that have ended.
    fn drain(&mut self) {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        for _ in 0..LAST_READS {
            let Some(source) = &self.source else { return };
            let mut watched = [PollFd::from_borrowed_fd(source.as_fd(), PollFlags::IN)];
            if !poll(&mut watched, Some(&now)).is_ok_and(|ready| ready > 0) {
                return;
            }
            self.read();
        }
    }

    fn last_line(&self) -> String {
        plain(String::from_utf8_lossy(&self.text).lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or(""))
    }
}

/// One short line that does nothing to a terminal.
fn plain(text: &str) -> String {
    text.chars().filter(|character| !character.is_control()).take(TOLD).collect()
}

/// Becomes the job's user, and then the command, or sends the message with `post`. What goes wrong is said on standard error,
/// to the process of this number that watches over it.
pub fn notify_as_user(watcher: i32, post: Post) -> ExitCode {
    let closed = close_inherited().map_err(|error| error.to_string());
    let read = || read_errand(io::stdin()).map_err(|error| format!("it cannot be read: {error}"));
    let prepared = closed.and_then(|()| read());
    let prepared = prepared.and_then(|(_, errand)| prepare(&errand, watcher).map(|()| errand));
    let (code, why) = match prepared {
        Err(why) => (CANNOT_RUN, why),
        Ok(Errand { receiver: Receiver::Url(url), message, .. }) => match post(&url, &message) {
            Ok(()) => return ExitCode::SUCCESS,
            Err(unsent) => (if unsent.again { TRY_AGAIN } else { 1 }, unsent.why),
        },
        Ok(Errand { receiver: Receiver::Command(words), message, environment, .. }) => {
            become_command(&words, &message, &environment)
        }
    };
    // Whoever reads it has it as the last line.
    writeln!(io::stderr(), "{}", plain(&why)).ok();
    ExitCode::from(code)
}

/// In an order in which each step may still be taken.
fn prepare(errand: &Errand, watcher: i32) -> Result<(), String> {
    let other = errand.account.as_ref().filter(|account| !is_already(account));
    let groups = other.map_or_else(|| Ok(Vec::new()), groups_of).map_err(|failure| failure.reason)?;
    // Where users are looked up may be left open, and is not the user's to read.
    close_inherited().map_err(|error| error.to_string())?;
    setsid().map_err(|error| format!("cannot begin a session: {error}"))?;
    limit(errand.limits).map_err(|failure| failure.reason)?;
    umask(Mode::from_raw_mode(errand.umask));
    if let Some(account) = &errand.account {
        become_account(account, &groups).map_err(|failure| failure.reason)?;
    }
    // Only now: a change of account takes the signal back.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| error.to_string())?;
    if getppid().map(|parent| parent.as_raw_nonzero().get()) != Some(watcher) {
        return Err("nobody watches over it".into());
    }
    // The end of a job may be that its folder is gone.
    let home = errand.account.as_ref().map(|account| account.home.as_path());
    let places = [Some(errand.workdir.as_path()), home, Some(Path::new("/"))];
    let entered = places.into_iter().flatten().any(|place| std::env::set_current_dir(place).is_ok());
    if entered { Ok(()) } else { Err("it finds no folder to be in".into()) }
}

/// Returns only if there is no way to.
fn become_command(words: &[String], message: &str, environment: &BTreeMap<String, String>) -> (u8, String) {
    let Some((program, arguments)) = words.split_first() else { return (CANNOT_RUN, "there is no command".into()) };
    let input = match waiting_to_be_read(message) {
        Ok(input) => input,
        Err(error) => return (CANNOT_RUN, format!("it cannot have the message: {error}")),
    };
    let error = Command::new(program).args(arguments).env_clear().envs(environment).stdin(input).exec();
    let failure = failure_to_start(program, &error);
    (failure.code, failure.reason)
}

/// A file in memory, so that the message waits for a command that reads it late or not at all.
fn waiting_to_be_read(message: &str) -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("message", rustix::fs::MemfdFlags::CLOEXEC)?);
    file.write_all(message.as_bytes())?;
    io::Seek::rewind(&mut file)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_it_ended_is_said_with_the_last_line_it_wrote() {
        let (command, url) = (Receiver::Command(vec!["a".into()]), Receiver::Url("https://a/".into()));
        let ended = |code: i32| ExitStatus::from_raw(code << 8);
        let report = |trouble: Option<&str>, again| Report { trouble: trouble.map(Into::into), again };
        assert_eq!(judged(ended(0), "noise", &command), report(None, false));
        assert_eq!(judged(ended(3), "no such host", &command), report(Some("exit 3: no such host"), false));
        assert_eq!(judged(ExitStatus::from_raw(9), "", &command), report(Some("killed by signal 9"), false));
        assert_eq!(judged(ended(75), "", &command), report(Some("exit 75"), false), "a command is run once");
        assert_eq!(judged(ended(75), "it answered 503", &url), report(Some("it answered 503"), true));
        assert_eq!(judged(ended(1), "it answered 404", &url), report(Some("it answered 404"), false));
        assert!(overdue(&url).again && !overdue(&command).again);
    }

    #[test]
    fn a_process_that_nobody_finds_and_that_writes_for_ever_is_not_read_for_ever() {
        let endless = std::os::fd::OwnedFd::from(File::open("/dev/zero").unwrap());
        let mut complaint = Complaint::of(Some(endless.into()));
        complaint.drain();
        assert_eq!((complaint.source.is_some(), complaint.text.len()), (true, COMPLAINT));
    }

    #[test]
    fn what_a_command_complains_is_one_short_line() {
        let complaint = |text: &str| Complaint { source: None, text: text.into() }.last_line();
        assert_eq!(complaint("first\n  the last \n\n"), "the last");
        assert_eq!(complaint("a\x1b[2Jb"), "a[2Jb");
        assert_eq!(complaint(&"x".repeat(1000)).len(), TOLD);
        assert_eq!(complaint(""), "");
    }
}
