//! What a history shows of its jobs: where each of them ran, with which batch and how long, and how long starting and
//! stopping took.

use std::collections::BTreeMap;

use cluster::{ClaimId, Cluster, Shape, Span, Time};
use engine::{Command, Event};
use perf::Tuning;

use super::history::History;

#[derive(Debug, Default)]
pub(super) struct Seen {
    stretches: BTreeMap<ClaimId, Vec<Stretch>>,
    starts: Mean,
    stops: Mean,
    /// When and how a job was launched last.
    launched: BTreeMap<ClaimId, (Time, Shape, Option<Tuning>)>,
    /// What is not over yet.
    running: BTreeMap<ClaimId, (Time, Shape, Option<Tuning>)>,
    stopping: BTreeMap<ClaimId, Time>,
}

/// A job ran so long in one place with one batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Stretch {
    pub(super) shape: Shape,
    pub(super) tuning: Option<Tuning>,
    pub(super) seconds: f64,
}

impl Seen {
    pub(super) fn of(history: &History, cluster: &Cluster) -> Seen {
        let mut seen = Seen::default();
        for (at, event) in history.iter() {
            seen.observe(at, event, cluster);
        }
        seen
    }

    pub(super) fn of_job(&self, claim: ClaimId) -> &[Stretch] {
        self.stretches.get(&claim).map_or(&[], Vec::as_slice)
    }

    /// From the order to launch until all workers were up, on average.
    pub(super) fn start(&self) -> Span {
        self.starts.span()
    }

    /// From the order to stop until all workers were gone, on average.
    pub(super) fn stop(&self) -> Span {
        self.stops.span()
    }

    fn observe(&mut self, at: Time, event: &Event, cluster: &Cluster) {
        match event {
            Event::Issued(Command::Launch { run, allotment, tuning, .. }) => {
                self.launched.insert(run.claim, (at, allotment.placement.shape(cluster), *tuning));
            }
            Event::RunStarted { run } => {
                if let Some(&(launched, shape, tuning)) = self.launched.get(&run.claim) {
                    self.starts.add(at.since(launched));
                    self.running.insert(run.claim, (at, shape, tuning));
                }
            }
            Event::Issued(Command::Retune { run, tuning }) => {
                if let Some(shape) = self.over(run.claim, at) {
                    self.running.insert(run.claim, (at, shape, Some(*tuning)));
                }
            }
            Event::Issued(Command::Stop { run, .. }) => {
                self.stopping.insert(run.claim, at);
                self.over(run.claim, at);
            }
            Event::RunStopped { run, .. } | Event::RunFinished { run } | Event::RunFailed { run, .. } => {
                self.over(run.claim, at);
                if let Some(since) = self.stopping.remove(&run.claim) {
                    self.stops.add(at.since(since));
                }
            }
            _ => {}
        }
    }

    /// A stretch is over, if one was under way; returns where it was.
    fn over(&mut self, claim: ClaimId, at: Time) -> Option<Shape> {
        let (since, shape, tuning) = self.running.remove(&claim)?;
        let seconds = at.since(since).as_secs_f64();
        self.stretches.entry(claim).or_default().push(Stretch { shape, tuning, seconds });
        Some(shape)
    }
}

#[derive(Debug, Default)]
struct Mean {
    sum: f64,
    count: u32,
}

impl Mean {
    fn add(&mut self, span: Span) {
        self.sum += span.as_secs_f64();
        self.count += 1;
    }

    fn span(&self) -> Span {
        Span::from_secs_f64(self.sum / f64::from(self.count.max(1)))
    }
}
