//! The last step before the user's command: a fresh process takes its limits, its account and its environment, and
//! becomes the worker. Until then its standard input is a pipe to the supervisor: that it closes says that the worker is
//! up, and a message in it says why it is not.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use nix::unistd::getgrouplist;
use rustix::fs::Mode;
use rustix::process::{
    Gid, Resource, Rlimit, Signal, Uid, getppid, getrlimit, set_parent_process_death_signal, setrlimit, setsid, umask,
};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use serde::{Deserialize, Serialize};

use crate::assignment::{Assignment, WorkerAssignment};
use crate::descriptors::close_inherited;
use crate::gang::group_of;
use crate::run_dir::{RunDir, SupervisorNote};
use crate::shell::{Shell, login_shell};
use crate::terminal::take_for_session;
use crate::{Account, ExecutorError, Limits};

/// The shell's codes for a command that is not there, and for one that cannot be run.
const NOT_FOUND: u8 = 127;
pub(crate) const CANNOT_RUN: u8 = 126;

/// Why a worker did not get as far as the user's command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct StartFailure {
    pub(crate) code: u8,
    pub(crate) reason: String,
}

/// Turns this process into one worker of the run, or into the shell of that name beside it. Returns only if that fails; the supervisor then knows why.
pub fn become_worker(run_dir: &Path, member: u32, shell: Option<&str>) -> ExitCode {
    let close = || close_inherited().map_err(|error| StartFailure { code: CANNOT_RUN, reason: error.to_string() });
    let closed = close();
    let launched = SystemTime::now();
    let orders = closed.and_then(|()| orders(run_dir, member, shell));
    // Where users are looked up may be left open, and is not the job's to read.
    let orders = orders.and_then(|orders| close().map(|()| orders));
    let status = rustix::io::fcntl_dupfd_cloexec(io::stdin().as_fd(), 3).map(File::from);
    let prepared = orders.and_then(|orders| prepare(run_dir, &orders).map(|input| (orders, input)));
    let failure = prepared.map_or_else(
        |failure| failure,
        |(Orders { assignment, worker, command, .. }, input)| run(&assignment, &worker, &command, input, launched),
    );
    let told = status
        .map_err(io::Error::from)
        .and_then(|mut status| status.write_all(&serde_json::to_vec(&failure).map_err(io::Error::other)?));
    if let Err(error) = told {
        tracing::error!(%error, reason = failure.reason, "cannot tell the supervisor why a worker does not start");
    }
    ExitCode::from(failure.code)
}

impl StartFailure {
    pub(crate) fn new(doing: &str, error: impl Into<io::Error>) -> StartFailure {
        StartFailure { code: CANNOT_RUN, reason: format!("{doing}: {}", plain(&error.into())) }
    }
}

/// What this worker is to become.
struct Orders {
    assignment: Assignment,
    supervisor: SupervisorNote,
    member: u32,
    worker: WorkerAssignment,
    /// All groups of its account.
    groups: Vec<Gid>,
    command: Vec<String>,
    has_terminal: bool,
}

fn orders(run_dir: &Path, member: u32, shell: Option<&str>) -> Result<Orders, StartFailure> {
    let dir = RunDir::at(run_dir);
    let unreadable = |error: ExecutorError| StartFailure { code: CANNOT_RUN, reason: error.to_string() };
    let missing =
        |what: &str| StartFailure { code: CANNOT_RUN, reason: format!("{what} is not in the run's directory") };
    let assignment = dir.assignment().map_err(unreadable)?.ok_or_else(|| missing("run.json"))?;
    let supervisor = dir.supervisor().map_err(unreadable)?.ok_or_else(|| missing("supervisor.json"))?;
    let mut worker =
        find(&dir, &assignment, member).map_err(unreadable)?.ok_or_else(|| missing(&format!("worker {member}")))?;
    let other = assignment.account.as_ref().filter(|account| !is_already(account));
    let groups = other.map_or_else(|| Ok(Vec::new()), groups_of)?;
    let mut command = assignment.command.clone();
    if let Some(name) = shell {
        let order = Shell::of(&dir, name).order().map_err(|error| StartFailure::new("cannot read its order", error))?;
        worker.environment.extend(order.term.map(|term| ("TERM".to_string(), term)));
        command = order.command;
        if command.is_empty() {
            command = vec![login_shell(assignment.owner(), worker.environment.get("SHELL").map(String::as_str))];
        }
    }
    let has_terminal = shell.is_some() || assignment.order.program.terminal_of(member).is_some();
    Ok(Orders { assignment, supervisor, member, worker, groups, command, has_terminal })
}

/// All but the command itself, in an order in which each step may still be taken. What it returns is the job's input.
fn prepare(run_dir: &Path, orders: &Orders) -> Result<Option<File>, StartFailure> {
    let Orders { assignment, supervisor, member, worker, groups, has_terminal, .. } = orders;
    setsid().map_err(|error| StartFailure::new("cannot begin a session", error))?;
    if *has_terminal {
        take_for_session(io::stdout()).map_err(|error| StartFailure::new("cannot take its terminal", error))?;
    }
    let join = group_of(assignment, *member, worker).join();
    join.map_err(|error| StartFailure::new("cannot enter its control group", error))?;
    let has_input = *member == 0 && assignment.order.program.input.is_some();
    let input = match *has_terminal {
        // What it writes to is the terminal already.
        true => io::stdout().as_fd().try_clone_to_owned().map(|terminal| Some(File::from(terminal))),
        // The supervisor opens the other end, and each waits for the other.
        false => has_input.then(|| File::open(RunDir::at(run_dir).stdin())).transpose(),
    };
    let input = input.map_err(|error| StartFailure::new("cannot open its standard input", error))?;
    limit(assignment.limits)?;
    umask(Mode::from_raw_mode(assignment.umask));
    if let Some(account) = &assignment.account {
        become_account(account, groups)?;
    }
    // Only now: a change of account takes the signal back.
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| StartFailure::new("cannot tie it to its supervisor", error))?;
    if getppid().map(|parent| parent.as_raw_nonzero().get()) != Some(supervisor.identity.pid) {
        return Err(StartFailure { code: CANNOT_RUN, reason: "its supervisor is gone".into() });
    }
    let workdir = &assignment.workdir;
    std::env::set_current_dir(workdir)
        .map_err(|error| StartFailure::new(&format!("cannot enter `{}`", workdir.display()), error))?;
    Ok(input)
}

/// A member of the gang that was launched, or one that a resize calls for.
fn find(dir: &RunDir, assignment: &Assignment, member: u32) -> Result<Option<WorkerAssignment>, ExecutorError> {
    if let Some(worker) = assignment.workers.get(member as usize) {
        return Ok(Some(worker.clone()));
    }
    Ok(dir.wish()?.and_then(|wish| wish.roster.find(member).map(|it| it.assignment.clone())))
}

/// Becomes the user's command; this returns only if there is no way to.
fn run(
    assignment: &Assignment,
    worker: &WorkerAssignment,
    command: &[String],
    input: Option<File>,
    launched: SystemTime,
) -> StartFailure {
    let Some((program, arguments)) = command.split_first() else {
        return StartFailure { code: CANNOT_RUN, reason: "there is no command".into() };
    };
    let mut command = Command::new(program);
    let since_1970 = launched.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    command.args(arguments).env_clear().envs(&worker.environment).stdin(input.map_or_else(Stdio::null, Stdio::from));
    command.env("MOIRA_LAUNCHED_AT", format!("{since_1970:.3}"));
    // Last, since this process itself may need more than the job is allowed.
    if let Err(failure) = limit_one(Resource::As, "address space", assignment.limits.address_space) {
        return failure;
    }
    failure_to_start(program, &command.exec())
}

/// Why a program could not be started, in a shell's words.
pub(crate) fn failure_to_start(program: &str, error: &io::Error) -> StartFailure {
    match error.kind() {
        // A script is not found either if the program that its first line names is not.
        io::ErrorKind::NotFound if program.contains('/') && Path::new(program).exists() => {
            StartFailure { code: NOT_FOUND, reason: format!("`{program}` needs an interpreter that is not there") }
        }
        io::ErrorKind::NotFound => StartFailure { code: NOT_FOUND, reason: format!("no such program: `{program}`") },
        _ => StartFailure { code: CANNOT_RUN, reason: format!("`{program}`: {}", plain(error)) },
    }
}

pub(crate) fn limit(limits: Limits) -> Result<(), StartFailure> {
    limit_one(Resource::Nofile, "open files", limits.open_files)?;
    limit_one(Resource::Nproc, "processes", limits.processes)?;
    limit_one(Resource::Core, "core file", limits.core_file)
}

/// A limit that is stricter already stays.
fn limit_one(resource: Resource, name: &str, limit: Option<u64>) -> Result<(), StartFailure> {
    let Some(limit) = limit else { return Ok(()) };
    let limit = getrlimit(resource).maximum.map_or(limit, |maximum| limit.min(maximum));
    setrlimit(resource, Rlimit { current: Some(limit), maximum: Some(limit) })
        .map_err(|error| StartFailure::new(&format!("cannot limit {name} to {limit}"), error))
}

pub(crate) fn is_already(account: &Account) -> bool {
    rustix::process::geteuid().as_raw() == account.uid && rustix::process::getegid().as_raw() == account.gid
}

/// The thread that becomes the user's command is this one, so what is set for it is set for the command.
pub(crate) fn become_account(account: &Account, groups: &[Gid]) -> Result<(), StartFailure> {
    if is_already(account) {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(account.uid), Gid::from_raw(account.gid));
    set_thread_groups(groups)
        .and_then(|()| set_thread_res_gid(gid, gid, gid))
        .and_then(|()| set_thread_res_uid(uid, uid, uid))
        .map_err(|error| StartFailure::new(&format!("cannot become user `{}`", account.name), error))
}

/// All groups of the user as the system knows them, from files or a directory of the network: such as those that may open
/// the GPUs.
pub(crate) fn groups_of(account: &Account) -> Result<Vec<Gid>, StartFailure> {
    let unknown =
        |error: io::Error| StartFailure::new(&format!("cannot find the groups of user `{}`", account.name), error);
    let name = CString::new(account.name.as_str()).map_err(|error| unknown(error.into()))?;
    let groups = getgrouplist(&name, account.gid.into()).map_err(|error| unknown(error.into()))?;
    Ok(groups.into_iter().map(|gid| Gid::from_raw(gid.as_raw())).collect())
}

/// The words of the operating system without the number behind them.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error ").next().unwrap_or_default().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_its_own_group_and_those_that_the_system_names() {
        let daemon = Account { uid: 1, gid: 1, name: "daemon".into(), home: "/".into() };
        assert!(groups_of(&daemon).unwrap().contains(&Gid::from_raw(1)));
        let unnamed = Account { name: "da\0emon".into(), ..daemon };
        assert!(groups_of(&unnamed).unwrap_err().reason.starts_with("cannot find the groups of user"));
    }

    #[test]
    fn errors_are_said_in_words() {
        let failure = StartFailure::new("cannot enter `/x`", io::Error::from_raw_os_error(2));
        assert_eq!(failure.reason, "cannot enter `/x`: No such file or directory");
    }
}
