//! The thread that looks after all runs on behalf of the service: at once where a supervisor sends word, and at every run
//! once a second in case it did not.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SendError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cluster::Run;
use rustix::process::{Pid, Signal, kill_process};

use crate::lost::{end_if_lost, end_if_never_held, is_lost};
use crate::news::{self, Listener};
use crate::process::{Identity, Process, below};
use crate::progress::{Dropped, Progress};
use crate::roster::Outcome;
use crate::run_dir::RunDir;
use crate::{ExecutorError, News, Usage};

const ROUND: Duration = Duration::from_secs(1);
/// How often the log says the same of one run's progress file: a job must not be able to fill it.
const SAID_EVERY: Duration = Duration::from_secs(60);

/// A supervisor that is found stopped so many times in a row, in spite of being continued, is killed if its run is to end.
const STOPPED_TOO_OFTEN: u32 = 3;

/// What the executor and its watch share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) is_closing: AtomicBool,
    supervisors: Mutex<Vec<(RunDir, Child)>>,
    /// The gangs of which the service wants to hear what became of them. Of others it is not told: what it asked for
    /// before it restarted may be on its record already.
    awaited: Mutex<BTreeMap<Run, u32>>,
    /// Runs that were lost and are just being ended.
    lost: Mutex<BTreeSet<Run>>,
}

impl Shared {
    /// A child that has ended stays in the process table until it is waited for.
    pub(crate) fn adopt(&self, dir: RunDir, supervisor: Child) {
        self.supervisors.lock().unwrap_or_else(PoisonError::into_inner).push((dir, supervisor));
    }

    /// Tells a supervisor to go that may not hold its run yet; false if it was not started by this service.
    pub(crate) fn terminate(&self, dir: &RunDir) -> bool {
        let supervisors = self.supervisors.lock().unwrap_or_else(PoisonError::into_inner);
        let child = supervisors.iter().find(|(held, _)| held.path() == dir.path());
        let pid = child.and_then(|(_, child)| Pid::from_raw(child.id() as i32));
        // It was not waited for, so the number is its own.
        pid.is_some_and(|pid| kill_process(pid, Signal::TERM).is_ok())
    }

    pub(crate) fn wait_for(&self, run: Run, gang: u32) {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner).insert(run, gang);
    }

    fn awaited(&self, run: Run) -> Option<u32> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner).get(&run).copied()
    }

    fn forget(&self, run: Run) {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner).remove(&run);
    }

    /// Ends a run whose supervisor was lost, in a thread of its own: what is left of it may take long to die, and others
    /// must not wait for that.
    fn end_lost(self: &Arc<Shared>, run: Run, dir: &RunDir, seen: Vec<Identity>) -> Result<(), ExecutorError> {
        if !self.lost.lock().unwrap_or_else(PoisonError::into_inner).insert(run) {
            return Ok(());
        }
        let (shared, dir) = (self.clone(), dir.clone());
        let end = move || {
            if let Err(error) = end_if_lost(&dir, &seen) {
                tracing::warn!(%run, %error, "cannot end a run whose supervisor was lost");
            }
            shared.lost.lock().unwrap_or_else(PoisonError::into_inner).remove(&run);
            news::tell(dir.data_dir(), run, "lost");
        };
        let spawned = std::thread::Builder::new().name("lost".into()).spawn(end);
        spawned.map(drop).map_err(|source| {
            self.lost.lock().unwrap_or_else(PoisonError::into_inner).remove(&run);
            ExecutorError::system("start a thread that ends a run")(source)
        })
    }

    /// The runs whose supervisor has ended.
    fn reap(&self) -> Vec<RunDir> {
        let mut supervisors = self.supervisors.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = supervisors.extract_if(.., |(_, supervisor)| !matches!(supervisor.try_wait(), Ok(None)));
        ended.map(|(dir, _)| dir).collect()
    }
}

pub(crate) struct Watch {
    pub(crate) data_dir: PathBuf,
    pub(crate) listener: Listener,
    pub(crate) news: Sender<News>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) known: BTreeMap<Run, Known>,
}

/// What was already told of a run.
#[derive(Debug)]
pub(crate) struct Known {
    has_started: bool,
    has_ended: bool,
    /// The user whose file the progress file has to be.
    owner: u32,
    progress: Progress,
    /// What was dropped and not said yet.
    unsaid: Dropped,
    dropped_said: Option<Instant>,
    fault_said: Option<Instant>,
    usage: Option<Usage>,
    /// Whether control groups know the run's processes.
    is_grouped: bool,
    /// Else: the processes that were below its supervisor when it was last looked at.
    seen: Vec<Identity>,
    /// How many times in a row the supervisor was found stopped.
    stopped: u32,
}

impl Known {
    /// Nothing yet, of a run that is on record; none if it is just being launched.
    fn begin(dir: &RunDir) -> Result<Option<Known>, ExecutorError> {
        let Some(assignment) = dir.assignment()? else { return Ok(None) };
        Ok(Some(Known {
            has_started: false,
            has_ended: false,
            owner: assignment.owner(),
            progress: Progress::resume(&dir.bookmark()),
            unsaid: Dropped::default(),
            dropped_said: None,
            fault_said: None,
            usage: None,
            is_grouped: assignment.has_groups(),
            seen: Vec::new(),
            stopped: 0,
        }))
    }
}

/// Why a look at a run was cut short.
enum Trouble {
    /// Nobody wants to know any more.
    Deaf,
    Failed(ExecutorError),
}

impl Watch {
    /// Until the executor is closed, or nobody listens to it.
    pub(crate) fn keep(mut self) {
        let mut next_round = Instant::now();
        while !self.shared.is_closing.load(Ordering::Relaxed) {
            let patience = next_round.saturating_duration_since(Instant::now());
            let looked = match self.listener.next(patience) {
                Ok(Some(run)) => self.look(run, &RunDir::of(&self.data_dir, run)),
                Ok(None) => Ok(()),
                Err(error) => {
                    tracing::warn!(%error, "cannot hear from supervisors");
                    std::thread::sleep(patience);
                    Ok(())
                }
            };
            let rounded = if Instant::now() >= next_round {
                next_round = Instant::now() + ROUND;
                self.look_around()
            } else {
                Ok(())
            };
            for dir in self.shared.reap() {
                if let Err(error) = end_if_never_held(&dir, "its supervisor ended before it held the run") {
                    tracing::warn!(%error, "cannot look after a run");
                }
            }
            for outcome in [looked, rounded] {
                match outcome {
                    Ok(()) => {}
                    Err(Trouble::Deaf) => return,
                    Err(Trouble::Failed(error)) => tracing::warn!(%error, "cannot look after a run"),
                }
            }
        }
    }

    fn look_around(&mut self) -> Result<(), Trouble> {
        let runs = RunDir::all(&self.data_dir)?;
        self.known.retain(|run, _| runs.iter().any(|(other, _)| other == run));
        for (run, dir) in &runs {
            let looked = self.tend(*run, dir).map_err(Trouble::from).and_then(|()| self.look(*run, dir));
            match looked {
                Err(Trouble::Failed(error)) => tracing::warn!(%run, %error, "cannot look after a run"),
                Err(Trouble::Deaf) => return Err(Trouble::Deaf),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Sees to the supervisor of a run: one that died has left the run to be ended, and one that is stopped does not hear
    /// that it should end it.
    fn tend(&mut self, run: Run, dir: &RunDir) -> Result<(), ExecutorError> {
        let Some(known) = self.known.get_mut(&run).filter(|known| !known.has_ended) else { return Ok(()) };
        if is_lost(dir)? {
            return self.shared.end_lost(run, dir, known.seen.clone());
        }
        let Some(supervisor) = dir.supervisor()?.map(|note| note.identity) else { return Ok(()) };
        let Some(process) = Process::read(supervisor.pid).filter(|it| it.identity == supervisor) else { return Ok(()) };
        if !known.is_grouped {
            known.seen = below(supervisor.pid).iter().map(|process| process.identity).collect();
        }
        known.stopped = if process.is_stopped { known.stopped + 1 } else { 0 };
        let signal = match known.stopped {
            0 => return Ok(()),
            STOPPED_TOO_OFTEN.. if dir.stop_note()?.is_some() => {
                tracing::warn!(%run, "a supervisor does not react and is killed: its run was told to end");
                Signal::KILL
            }
            _ => {
                tracing::warn!(%run, "a supervisor was stopped and is continued");
                Signal::CONT
            }
        };
        supervisor.signal(signal).map(drop).map_err(|source| ExecutorError::Wake { run, source })
    }

    /// Tells what is new of a run. An end comes last: by then its progress and its start have been told.
    fn look(&mut self, run: Run, dir: &RunDir) -> Result<(), Trouble> {
        if !dir.exists() {
            return Ok(());
        }
        let known = match self.known.entry(run) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => match Known::begin(dir)? {
                Some(known) => place.insert(known),
                None => return Ok(()),
            },
        };
        if known.has_ended {
            return Ok(());
        }
        let ending = dir.ending()?;
        let has_started = ending.as_ref().map_or_else(|| dir.has_started(), |ending| ending.started);
        if has_started && !std::mem::replace(&mut known.has_started, true) {
            self.news.send(News::Started { run })?;
        }
        let now = Instant::now();
        if ending.is_some() || known.progress.is_due(now) {
            forward_progress(run, dir, known, &self.news, now)?;
        }
        let usage = ending.as_ref().map_or_else(|| dir.usage(), |ending| Ok(Some(ending.usage)))?;
        if let Some(usage) = usage.filter(|usage| Some(*usage) != known.usage) {
            known.usage = Some(usage);
            self.news.send(News::Usage { run, usage })?;
        }
        if let Some(gang) = self.shared.awaited(run)
            && let Some(outcome) = dir.outcome()?.filter(|outcome| outcome.gang == gang)
        {
            self.shared.forget(run);
            self.news.send(outcome.news_of(run))?;
        }
        if let Some(ending) = ending {
            known.has_ended = true;
            self.shared.forget(run);
            self.news.send(News::Ended { run, ending })?;
        }
        Ok(())
    }
}

/// Hands on what a run has newly reported. A file that cannot be read is the job's own affair: it is said, and nothing
/// else waits for it.
fn forward_progress(
    run: Run,
    dir: &RunDir,
    known: &mut Known,
    news: &Sender<News>,
    now: Instant,
) -> Result<(), Trouble> {
    let before = known.progress.offset();
    let read = match known.progress.next(&dir.progress_file(), known.owner, now) {
        Ok(read) => read,
        Err(error) => {
            if is_worth_saying(&mut known.fault_said, now) {
                tracing::warn!(%run, %error, "the progress file of a run cannot be read");
            }
            return Ok(());
        }
    };
    if !read.lines.is_empty() {
        news.send(News::Progress { run, lines: read.lines })?;
    }
    let upto = known.progress.offset();
    if upto != before {
        news.send(News::Told { run, upto })?;
    }
    let Dropped { reports, bytes } = read.dropped;
    if read.dropped != Dropped::default() {
        known.unsaid.reports += reports;
        known.unsaid.bytes += bytes;
        news.send(News::Dropped { run, reports, bytes })?;
    }
    if known.unsaid != Dropped::default() && is_worth_saying(&mut known.dropped_said, now) {
        let Dropped { reports, bytes } = std::mem::take(&mut known.unsaid);
        tracing::warn!(%run, reports, bytes, "a run reports more than it may: reports were dropped");
    }
    Ok(())
}

/// Whether it was not said lately.
fn is_worth_saying(said: &mut Option<Instant>, now: Instant) -> bool {
    let is_worth = said.is_none_or(|at| now >= at + SAID_EVERY);
    if is_worth {
        *said = Some(now);
    }
    is_worth
}

impl Outcome {
    pub(crate) fn news_of(self, run: Run) -> News {
        match self.withdrawn {
            None => News::Resized { run },
            Some(why) => News::NotResized { run, why },
        }
    }
}

impl From<ExecutorError> for Trouble {
    fn from(error: ExecutorError) -> Trouble {
        Trouble::Failed(error)
    }
}

impl From<SendError<News>> for Trouble {
    fn from(_: SendError<News>) -> Trouble {
        Trouble::Deaf
    }
}
