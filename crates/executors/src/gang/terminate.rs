//! Who of a worker hears a signal that asks for something: programs that have a handler for it. What they have started is
//! theirs to end; a child that dies of the same signal would disturb a program that saves its work.

use rustix::process::Signal;

use super::signal;
use crate::process::{Identity, Process, below};

/// The processes of a worker, parents before their children.
struct Family(Vec<Process>);

/// How a worker is told to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HowToGo {
    Terminate,
    /// It has a terminal: a shell that somebody types at passes over SIGTERM, but goes when its terminal is gone.
    HangUp,
}

/// A worker of which some were told to go; the rest is told when they have.
#[derive(Debug)]
pub(super) struct Departure {
    programs: Vec<Identity>,
    /// Whoever stands above them and is held still until then.
    held: Vec<Identity>,
    how: HowToGo,
}

/// Gives the early notice to whoever has a handler for it; others would die of it.
pub(super) fn give_notice(leader: Identity) {
    let family = Family::of(leader);
    let (programs, shells) = family.listeners(Signal::USR1);
    programs.iter().chain(&shells).for_each(|&process| send(process, Signal::USR1));
}

/// Tells a worker to go: all of it at once, if no program of it has a handler.
pub(super) fn tell_to_go(leader: Identity, how: HowToGo) -> Option<Departure> {
    let family = Family::of(leader);
    let (programs, shells) = family.listeners(Signal::TERM);
    if programs.is_empty() {
        tell_all(leader, how);
        return None;
    }
    // The worker is over when its leader is, and a shell would go on with its next command when this one has ended.
    let held: Vec<Identity> = family.above(&programs).into_iter().filter(|it| !shells.contains(it)).collect();
    held.iter().for_each(|&process| send(process, Signal::STOP));
    for &process in programs.iter().chain(&shells) {
        send(process, Signal::TERM);
        send(process, Signal::CONT);
    }
    Some(Departure { programs, held, how })
}

impl Departure {
    /// Tells the rest of the worker if it is time; true if so.
    pub(super) fn conclude(&self, leader: Identity) -> bool {
        let is_over = !self.programs.iter().any(|program| program.lives());
        if is_over {
            // They may be in a process group of their own. What is pending counts before anything else they do.
            for &process in &self.held {
                send(process, Signal::TERM);
                send(process, Signal::CONT);
            }
            tell_all(leader, self.how);
        }
        is_over
    }
}

/// Whoever is stopped would not hear of it before it goes on.
fn tell_all(leader: Identity, how: HowToGo) {
    signal(leader.pid, Signal::TERM);
    if how == HowToGo::HangUp {
        signal(leader.pid, Signal::HUP);
    }
    signal(leader.pid, Signal::CONT);
}

fn send(process: Identity, what: Signal) {
    if let Err(error) = process.signal(what) {
        tracing::warn!(pid = process.pid, ?what, %error, "cannot signal a process of a worker");
    }
}

impl Family {
    fn of(leader: Identity) -> Family {
        Family(Process::read(leader.pid).into_iter().chain(below(leader.pid)).collect())
    }

    /// The topmost programs that have a handler for the signal, and the shells above or beside them that have one: a shell
    /// passes nothing on to the command it waits for.
    fn listeners(&self, what: Signal) -> (Vec<Identity>, Vec<Identity>) {
        let (mut programs, mut shells, mut informed) = (Vec::new(), Vec::new(), Vec::new());
        for process in &self.0 {
            let pid = process.identity.pid;
            if informed.contains(&process.parent) {
                informed.push(pid);
            } else if process.catches(what) && process.is_shell() {
                shells.push(process.identity);
            } else if process.catches(what) {
                informed.push(pid);
                programs.push(process.identity);
            }
        }
        (programs, shells)
    }

    /// Whoever has one of these among its descendants.
    fn above(&self, programs: &[Identity]) -> Vec<Identity> {
        let (mut parents, mut above) = (Vec::new(), Vec::new());
        for process in self.0.iter().rev() {
            let is_above = parents.contains(&process.identity.pid);
            if is_above || programs.contains(&process.identity) {
                parents.push(process.parent);
            }
            above.extend(is_above.then_some(process.identity));
        }
        above
    }
}
