//! What is seen while the jobs run: on a terminal a table that is drawn anew, elsewhere a line for every change.

use std::collections::BTreeMap;
use std::io::IsTerminal;

use api::{JobId, JobState, JobView};
use cluster::{ClaimId, Cluster, Shape, Time};
use engine::{Command, Event};
use server::{Fact, Line, Shown, views};

use crate::failure::Failure;
use crate::render;
use crate::visible::visible;

#[derive(Debug)]
pub(super) struct Screen {
    began: Time,
    is_terminal: bool,
    /// Lines of the table that stands on the terminal.
    drawn: usize,
    /// Where each job ran last.
    shapes: BTreeMap<ClaimId, Shape>,
}

const BAR: usize = 24;

impl Screen {
    pub(super) fn new(began: Time) -> Screen {
        Screen { began, is_terminal: std::io::stdout().is_terminal(), drawn: 0, shapes: BTreeMap::new() }
    }

    /// Says what has just happened, where that is not drawn.
    pub(super) fn tell(&mut self, shown: &Shown, batch: &[Line]) -> Result<(), Failure> {
        for line in batch {
            let Some((claim, what)) = self.change(shown, &line.fact) else { continue };
            if !self.is_terminal {
                let name = &shown.state.books().claim(claim).spec.name;
                let after = line.at.since(self.began).as_secs_f64();
                render::line(&format!("{after:6.1} s  job {claim} {name}: {what}"))?;
            }
        }
        Ok(())
    }

    /// Draws how things stand, where that can be done.
    pub(super) fn draw(&mut self, shown: &Shown, now: Time) -> Result<(), Failure> {
        if !self.is_terminal {
            return Ok(());
        }
        let ids = shown.ledger.submissions_before(u32::MAX).map(|acceptance| JobId::job(acceptance.first.0));
        let jobs = ids.filter_map(|id| views::job(shown, id, now, false));
        let mut lines = vec![format!("{:.0} s", now.since(self.began).as_secs_f64())];
        lines.extend(jobs.map(|job| row(&job)));
        let up = if self.drawn > 0 { format!("\x1b[{}A", self.drawn) } else { String::new() };
        self.drawn = lines.len();
        let cleared: Vec<String> = lines.iter().map(|line| format!("{}\x1b[K", visible(line))).collect();
        render::drawing(&format!("{up}{}", cleared.join("\n")))
    }

    /// What a fact means to somebody who watches.
    fn change(&mut self, shown: &Shown, fact: &Fact) -> Option<(ClaimId, String)> {
        let Fact::Core(event) = fact else { return None };
        let cluster = &shown.state.books().cluster;
        match event {
            Event::ClaimSubmitted { claim, .. } => Some((*claim, "submitted".into())),
            Event::Issued(Command::Launch { run, allotment, .. }) => {
                let now = allotment.placement.shape(cluster);
                let before = self.shapes.insert(run.claim, now);
                Some((run.claim, moved(before, now, cluster)))
            }
            Event::RunStopped { run, .. } => Some((run.claim, "has saved its state and stopped".into())),
            Event::RunFinished { run } => {
                let lived = shown.state.now().since(shown.state.books().claim(run.claim).submitted);
                Some((run.claim, format!("finished after {:.1} s", lived.as_secs_f64())))
            }
            Event::RunFailed { run, why, .. } => Some((run.claim, format!("failed: {why:?}"))),
            Event::ClaimCancelled { claim } => Some((*claim, "cancelled".into())),
            _ => None,
        }
    }
}

fn moved(before: Option<Shape>, now: Shape, cluster: &Cluster) -> String {
    let workers =
        |shape: Shape| if shape.workers == 1 { "1 worker".into() } else { format!("{} workers", shape.workers) };
    let kind = |shape: Shape| shape.kind.map_or("no accelerator".into(), |kind| cluster.kind(kind).name.to_string());
    match before {
        None => format!("starts with {} on {}", workers(now), kind(now)),
        Some(before) if before == now => format!("goes on with {} on {}", workers(now), kind(now)),
        Some(before) if before.kind == now.kind => {
            format!("{} → {} on {}", before.workers, workers(now), kind(now))
        }
        Some(before) => format!("{} on {} → {} on {}", workers(before), kind(before), workers(now), kind(now)),
    }
}

fn row(job: &JobView) -> String {
    let fraction = job.progress.as_ref().and_then(|progress| progress.fraction);
    let fraction = if job.state == JobState::Succeeded { Some(1.0) } else { fraction };
    let filled = (fraction.unwrap_or(0.0).clamp(0.0, 1.0) * BAR as f64).round() as usize;
    let bar = format!("{}{}", "█".repeat(filled), "·".repeat(BAR - filled));
    let holds = match &job.gpu_kind {
        Some(kind) => format!("{} × {kind}", job.workers.have),
        None => String::new(),
    };
    let loss = job.progress.as_ref().and_then(|progress| progress.loss);
    let loss = loss.map_or(String::new(), |loss| format!("loss {loss:.3}"));
    format!("{:>3} {:<8} {bar} {:<10} {holds:<9} {loss}", job.id, job.name, job.state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::{ClusterDraft, GpuKind};

    #[test]
    fn growing_shrinking_and_moving_are_told_apart() {
        let (cluster, _) = ClusterDraft::parse_short("1x4 fast, 1x4 slow").unwrap().build().unwrap();
        let shape = |kind, workers| Shape { kind: Some(GpuKind(kind)), workers, nodes: 1 };
        let told = |before, now| moved(before, now, &cluster);
        assert_eq!(told(None, shape(0, 1)), "starts with 1 worker on fast");
        assert_eq!(told(Some(shape(0, 1)), shape(0, 2)), "1 → 2 workers on fast");
        assert_eq!(told(Some(shape(1, 4)), shape(0, 1)), "4 workers on slow → 1 worker on fast");
        assert_eq!(told(Some(shape(1, 2)), shape(1, 2)), "goes on with 2 workers on slow");
    }
}
