//! The thread that looks after all runs on behalf of the service: at once where a supervisor sends word, and at every run
//! once a second in case it did not.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SendError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cluster::Run;

use crate::lost::end_if_lost;
use crate::news::Listener;
use crate::progress::Progress;
use crate::run_dir::RunDir;
use crate::{ExecutorError, News, Usage};

const ROUND: Duration = Duration::from_secs(1);
/// Pieces of progress that one look at a run may bring; what is more comes with the next.
const MOST_PIECES: u32 = 16;

/// What the executor and its watch share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) is_closing: AtomicBool,
    supervisors: Mutex<Vec<Child>>,
}

impl Shared {
    /// A child that has ended stays in the process table until it is waited for.
    pub(crate) fn adopt(&self, supervisor: Child) {
        self.supervisors.lock().unwrap_or_else(PoisonError::into_inner).push(supervisor);
    }

    fn reap(&self) {
        let mut supervisors = self.supervisors.lock().unwrap_or_else(PoisonError::into_inner);
        supervisors.retain_mut(|supervisor| matches!(supervisor.try_wait(), Ok(None)));
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
    progress: Progress,
    usage: Option<Usage>,
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
            self.shared.reap();
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
            let looked = end_if_lost(dir).map_err(Trouble::from).and_then(|_| self.look(*run, dir));
            match looked {
                Err(Trouble::Failed(error)) => tracing::warn!(%run, %error, "cannot look after a run"),
                Err(Trouble::Deaf) => return Err(Trouble::Deaf),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Tells what is new of a run. An end comes last: by then its progress and its start have been told.
    fn look(&mut self, run: Run, dir: &RunDir) -> Result<(), Trouble> {
        if !dir.exists() {
            return Ok(());
        }
        let known = self.known.entry(run).or_insert_with(|| Known {
            has_started: false,
            has_ended: false,
            progress: Progress::resume(&dir.file("progress.read")),
            usage: None,
        });
        if known.has_ended {
            return Ok(());
        }
        let ending = dir.ending()?;
        let has_started = ending.as_ref().map_or_else(|| dir.has_started(), |ending| ending.started);
        if has_started && !std::mem::replace(&mut known.has_started, true) {
            self.news.send(News::Started { run })?;
        }
        forward_progress(run, dir, known, &self.news)?;
        let usage = ending.as_ref().map_or_else(|| dir.usage(), |ending| Ok(Some(ending.usage)))?;
        if let Some(usage) = usage.filter(|usage| Some(*usage) != known.usage) {
            known.usage = Some(usage);
            self.news.send(News::Usage { run, usage })?;
        }
        if let Some(ending) = ending {
            known.has_ended = true;
            self.news.send(News::Ended { run, ending })?;
        }
        Ok(())
    }
}

fn forward_progress(run: Run, dir: &RunDir, known: &mut Known, news: &Sender<News>) -> Result<(), Trouble> {
    let path = dir.file("progress.jsonl");
    let note = dir.file("progress.read");
    for _ in 0..MOST_PIECES {
        let lines = known.progress.next(&path).map_err(ExecutorError::file("read", &path))?;
        if lines.is_empty() {
            break;
        }
        news.send(News::Progress { run, lines })?;
        known.progress.remember(&note).map_err(ExecutorError::file("write", &note))?;
    }
    Ok(())
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
