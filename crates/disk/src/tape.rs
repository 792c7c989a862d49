//! The steps by which files are changed, as tests see them: recorded one by one, or made to fail. Each thread has a tape
//! of its own, so what other threads write does not disturb a test. In use nothing is recorded and nothing fails.

use std::cell::RefCell;
use std::io;
use std::path::PathBuf;

/// One change of what is on the disk, or that it is made durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    MakeDir(PathBuf),
    /// An empty file, new or emptied.
    Create(PathBuf),
    /// All of a file's bytes.
    Write(PathBuf, Vec<u8>),
    /// Bytes from a place in a file on.
    WriteAt(PathBuf, u64, Vec<u8>),
    Sync(PathBuf),
    SyncDir(PathBuf),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
}

#[derive(Default)]
struct Tape {
    steps: Vec<Step>,
    /// What is done after each step.
    then: Option<Box<dyn FnMut()>>,
    /// How many steps go well before one fails, and how it does.
    failure: Option<(usize, io::ErrorKind)>,
}

thread_local! {
    static TAPE: RefCell<Option<Tape>> = const { RefCell::new(None) };
}

/// What `script` returns, and the steps it took on this thread.
pub fn record<T>(script: impl FnOnce() -> T) -> (T, Vec<Step>) {
    with(Tape::default(), script)
}

/// The same, and something is done after each step: to see what is on the disk beside what goes through here.
pub fn record_and<T>(then: impl FnMut() + 'static, script: impl FnOnce() -> T) -> (T, Vec<Step>) {
    with(Tape { then: Some(Box::new(then)), ..Tape::default() }, script)
}

/// Runs the script with one step failing: the one after so many.
pub fn fail<T>(after: usize, kind: io::ErrorKind, script: impl FnOnce() -> T) -> T {
    with(Tape { failure: Some((after, kind)), ..Tape::default() }, script).0
}

/// The number of steps so far, within a recording.
pub fn position() -> usize {
    TAPE.with_borrow(|tape| tape.as_ref().map_or(0, |tape| tape.steps.len()))
}

fn with<T>(tape: Tape, script: impl FnOnce() -> T) -> (T, Vec<Step>) {
    let before = TAPE.replace(Some(tape));
    let returned = script();
    let tape = TAPE.replace(before).unwrap_or_default();
    (returned, tape.steps)
}

/// Takes a step, unless it is to fail, and records it if it went well.
pub(crate) fn step<T>(what: impl FnOnce() -> Step, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    if let Some(kind) = TAPE.with_borrow_mut(|tape| tape.as_mut().and_then(Tape::next_failure)) {
        return Err(kind.into());
    }
    let done = act()?;
    TAPE.with_borrow_mut(|tape| {
        if let Some(tape) = tape {
            tape.steps.push(what());
            if let Some(then) = &mut tape.then {
                then();
            }
        }
    });
    Ok(done)
}

impl Tape {
    fn next_failure(&mut self) -> Option<io::ErrorKind> {
        let (left, kind) = self.failure.take()?;
        match left {
            0 => Some(kind),
            _ => {
                self.failure = Some((left - 1, kind));
                None
            }
        }
    }
}
