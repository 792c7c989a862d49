//! What the training says of itself: a line for people, and the same for the scheduler, about once a second.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use api::{CheckpointReport, Noise, ProgressReport};

use super::Trainer;
use super::checkpoint::Position;
use super::model::EXAMPLES;
use super::surroundings::Tuning;
use crate::render;

#[derive(Debug)]
pub(super) struct Reports {
    /// Where the scheduler reads, if it does.
    file: Option<PathBuf>,
    attempt: Option<String>,
    since: Instant,
    steps: u32,
    step_seconds: f64,
    pass_seconds: f64,
    loss: f64,
}

impl Reports {
    pub(super) fn new(file: Option<PathBuf>, attempt: Option<String>) -> Reports {
        let since = Instant::now();
        Reports { file, attempt, since, steps: 0, step_seconds: 0.0, pass_seconds: 0.0, loss: 0.0 }
    }

    pub(super) fn stepped(&mut self, step: Duration, pass_seconds: f64, loss: f64) {
        self.steps += 1;
        self.step_seconds += step.as_secs_f64();
        self.pass_seconds += pass_seconds;
        self.loss += loss;
    }

    pub(super) fn due(&self) -> bool {
        self.steps > 0 && self.since.elapsed().as_millis() >= u128::from(Trainer::REPORTS_EVERY.as_millis())
    }

    /// Says what was seen since the last report; all of it with this tuning.
    pub(super) fn report(&mut self, at: &Position, tuning: Tuning, saved: Option<Saved>) -> anyhow::Result<()> {
        let steps = f64::from(self.steps);
        let mean = |sum: f64| (self.steps > 0).then(|| sum / steps);
        let noise = at.noise.noise();
        let report = ProgressReport {
            run: self.attempt.clone(),
            steps: Some(at.progress as u64),
            epoch: Some(at.examples as f64 / EXAMPLES as f64),
            step_seconds: mean(self.step_seconds),
            compute_seconds: mean(self.pass_seconds),
            local_batch: Some(tuning.local),
            accumulation: Some(tuning.accumulations),
            loss: mean(self.loss),
            noise: Some(Noise { sqr: noise.sqr, var: noise.var }),
            checkpoint: saved.map(|saved| CheckpointReport {
                steps: saved.progress as u64,
                seconds: Some(saved.took.as_secs_f64()),
                age_seconds: None,
            }),
            ..ProgressReport::default()
        };
        self.write(&report)?;
        let loss = report.loss.map_or(String::new(), |loss| format!("loss {loss:.4}, "));
        let line = format!("step {:.0}: {loss}batch {} x {}", at.progress, tuning.local, tuning.passes());
        // Whoever reads it may be gone, and the training goes on.
        render::line(&line).ok();
        *self = Reports::new(self.file.take(), self.attempt.take());
        Ok(())
    }

    fn write(&self, report: &ProgressReport) -> anyhow::Result<()> {
        let Some(path) = &self.file else { return Ok(()) };
        let writing = || format!("cannot write the report {}", path.display());
        let line = serde_json::to_string(report).with_context(writing)?;
        let mut file = OpenOptions::new().create(true).append(true).open(path).with_context(writing)?;
        // In one piece, so that nobody reads half a line.
        file.write_all(format!("{line}\n").as_bytes()).with_context(writing)
    }
}

/// A state that is safe on disk.
#[derive(Debug, Clone, Copy)]
pub(super) struct Saved {
    pub(super) progress: f64,
    pub(super) took: Duration,
}
