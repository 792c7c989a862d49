//! `moira trainer`: a small training that is real in all that a scheduler sees. It computes gradients in parallel with
//! any number of workers, follows the batch it is told, measures its steps and the noise of its gradients, saves its
//! state and goes on from it. Outside Moira it runs alone.

mod checkpoint;
mod exchange;
mod model;
mod random;
mod reports;
mod surroundings;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use cluster::Span;
use perf::{LearningRateRule, StepNorms};
use signal_hook::consts::{SIGINT, SIGTERM};

use self::checkpoint::{Checkpoint, Position};
use self::exchange::{Contribution, FINISHED, LEAVE, Leader, Peers, Word};
use self::model::{EXAMPLES, Examples, Model, square};
use self::random::Random;
use self::reports::{Reports, Saved};
use self::surroundings::{Surroundings, Tuning};
use crate::failure::Failure;
use crate::render;

/// Arguments of the hidden trainer.
#[derive(Debug, Clone, Args)]
pub(crate) struct Trainer {
    /// Steps of the designed batch after which it is done; a step with a larger batch is worth more than one
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,
    /// The batch it is designed for, over all workers
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..1 << 20))]
    batch: u32,
    /// Hidden units of the network: what an example costs
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..1 << 20))]
    hidden: u32,
    /// For the designed batch
    #[arg(long, default_value_t = 0.5)]
    learning_rate: f32,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Say nothing to the scheduler, as most programs do
    #[arg(long)]
    no_reports: bool,
}

/// A process that was told to end and did so cleanly.
const TERMINATED: u8 = 128 + 15;
const SAVE_EVERY: Duration = Duration::from_secs(3);
/// How often the scheduler's word about the batch is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How a training came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Finished,
    ToldToStop,
}

impl Trainer {
    /// How often it tells how it goes.
    pub(crate) const REPORTS_EVERY: Span = Span::from_secs(1);

    pub(crate) fn run(self) -> Result<(), Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT] {
            signal_hook::flag::register(signal, stop.clone()).context("cannot listen for signals")?;
        }
        let around = Surroundings::find()?;
        let end = if around.rank == 0 { self.lead(around, &stop)? } else { self.follow(&around, &stop)? };
        match end {
            End::Finished => Ok(()),
            End::ToldToStop => Err(Failure::silent(TERMINATED)),
        }
    }

    /// Examples that a core computes with so many hidden units in a second of its time, whatever else the machine does;
    /// measured for a moment of that time.
    pub(crate) fn examples_per_core_second(hidden: usize, moment: Duration) -> f64 {
        let (examples, model) = (Examples::drawn(1), Model::new(hidden, 1));
        let batch: Vec<usize> = (0..16).collect();
        let (began, mut taken, mut done) = (processor_seconds(), 0.0, 0);
        while taken < moment.as_secs_f64() {
            model.gradient(&examples, &batch);
            done += batch.len();
            taken = processor_seconds() - began;
        }
        done as f64 / taken
    }

    fn lead(&self, mut around: Surroundings, stop: &AtomicBool) -> anyhow::Result<End> {
        let checkpoint = around.checkpoint_dir.as_deref().map(Checkpoint::in_folder);
        let hidden = self.hidden as usize;
        let saved = checkpoint.as_ref().map(|checkpoint| checkpoint.load(hidden)).transpose()?.flatten();
        let (at, model) = saved.unwrap_or_else(|| (Position::default(), Model::new(hidden, self.seed)));
        let weights = model.weights.len();
        let Some(peers) = Peers::gather(&around.master, around.workers, weights, stop)? else {
            return Ok(End::ToldToStop);
        };
        if at.steps > 0 {
            render::line(&format!("goes on from step {:.0} with {} workers", at.progress, around.workers)).ok();
        }
        let tuning = around.first_tuning(self.batch)?;
        let file = around.progress_file.take().filter(|_| !self.no_reports);
        let reports = Reports::new(file, around.attempt.take());
        let examples = Examples::drawn(self.seed);
        Training { options: self, around, checkpoint, examples, at, model, tuning, before: None, reports }
            .run(peers, stop)
    }

    /// Computes what rank 0 asks for until that has said its last word.
    fn follow(&self, around: &Surroundings, stop: &AtomicBool) -> anyhow::Result<End> {
        let mut model = Model { weights: vec![0.0; Model::weights_of(self.hidden as usize)] };
        let Some(mut leader) = Leader::find(&around.master, around.rank, model.weights.len(), stop)? else {
            return Ok(End::ToldToStop);
        };
        let examples = Examples::drawn(self.seed);
        loop {
            match leader.hear(&mut model.weights) {
                Ok(Word::Finished) => return Ok(End::Finished),
                Ok(Word::Leave) => return Ok(End::ToldToStop),
                Ok(Word::Step { number, tuning }) => {
                    let contribution = self.contribute(&model, &examples, number, around.rank, tuning);
                    let answered = leader.answer(&contribution);
                    if stop.load(Ordering::Relaxed) && answered.is_err() {
                        return Ok(End::ToldToStop);
                    }
                    answered?;
                }
                // All are told to stop at once, and rank 0 need not have had the time to say so.
                Err(_) if stop.load(Ordering::Relaxed) => return Ok(End::ToldToStop),
                Err(error) => return Err(error),
            }
        }
    }

    /// One worker's part of a step.
    fn contribute(&self, model: &Model, examples: &Examples, number: u64, rank: u32, tuning: Tuning) -> Contribution {
        let began = Instant::now();
        let mut sum = Contribution { gradient: Vec::new(), loss: 0.0, squares: 0.0, pass_seconds: 0.0 };
        let passes = tuning.passes();
        for pass in 0..passes {
            let mut random = Random::new(&[self.seed, 2, number, u64::from(rank), u64::from(pass)]);
            let batch: Vec<usize> = (0..tuning.local).map(|_| random.below(EXAMPLES)).collect();
            let gradient = model.gradient(examples, &batch);
            sum.loss += gradient.loss / f64::from(passes);
            sum.squares += square(&gradient.values);
            add(&mut sum.gradient, &gradient.values, 1.0 / passes as f32);
        }
        sum.pass_seconds = began.elapsed().as_secs_f64() / f64::from(passes);
        sum
    }
}

/// A training under way, as rank 0 knows it.
#[derive(Debug)]
struct Training<'a> {
    options: &'a Trainer,
    around: Surroundings,
    checkpoint: Option<Checkpoint>,
    examples: Examples,
    at: Position,
    model: Model,
    tuning: Tuning,
    /// The gradient of the step before, if that was a single micro-batch of the same size.
    before: Option<Vec<f32>>,
    reports: Reports,
}

impl Training<'_> {
    fn run(mut self, mut peers: Peers, stop: &AtomicBool) -> anyhow::Result<End> {
        let (mut saved, mut looked) = (Instant::now(), Instant::now());
        while self.at.progress < self.options.steps as f64 {
            if stop.load(Ordering::Relaxed) {
                self.save()?;
                peers.dismiss(LEAVE);
                return Ok(End::ToldToStop);
            }
            self.step(&mut peers)?;
            if saved.elapsed() >= SAVE_EVERY {
                self.save()?;
                saved = Instant::now();
            }
            if self.reports.due() {
                self.reports.report(&self.at, self.tuning, None)?;
            }
            if looked.elapsed() >= LOOK_EVERY {
                self.look_for_tuning()?;
                looked = Instant::now();
            }
        }
        self.save()?;
        peers.dismiss(FINISHED);
        let loss = self.model.loss(&self.examples);
        let Position { progress, steps, .. } = self.at;
        render::line(&format!("done after {progress:.0} steps' worth of progress in {steps} steps: loss {loss:.4}"))
            .ok();
        Ok(End::Finished)
    }

    fn step(&mut self, peers: &mut Peers) -> anyhow::Result<()> {
        let began = Instant::now();
        let number = self.at.steps;
        peers.ask(number, self.tuning, &self.model.weights)?;
        let own = self.options.contribute(&self.model, &self.examples, number, 0, self.tuning);
        let mut all = vec![own];
        all.extend(peers.hear(self.model.weights.len())?);
        let share = 1.0 / all.len() as f64;
        let mean = |figure: fn(&Contribution) -> f64| share * all.iter().map(figure).sum::<f64>();
        let mut gradient = Vec::new();
        all.iter().for_each(|one| add(&mut gradient, &one.gradient, share as f32));
        let total = self.tuning.total(self.around.workers);
        let scale = total as f64 / f64::from(self.options.batch);
        self.observe(&all, &gradient, scale);
        let noise = self.at.noise.noise();
        let factor = LearningRateRule::AdaScale.factor(noise, scale, self.at.progress);
        self.model.descend(&gradient, self.options.learning_rate * factor as f32);
        self.at.progress += noise.gain(scale);
        self.at.steps += 1;
        self.at.examples += total;
        self.reports.stepped(began.elapsed(), mean(|one| one.pass_seconds), mean(|one| one.loss));
        self.before = Some(gradient);
        Ok(())
    }

    /// Signal and noise by the parts of this step, or if it has only one, by this and the step before.
    fn observe(&mut self, all: &[Contribution], gradient: &[f32], scale: f64) {
        let micro_batches = self.around.workers * self.tuning.passes();
        if micro_batches > 1 {
            let mean_of_squares = all.iter().map(|one| one.squares).sum::<f64>() / f64::from(micro_batches);
            let norms = StepNorms::Many { micro_batches, mean_of_squares, square_of_mean: square(gradient) };
            self.at.noise.observe(norms, scale);
        } else if let Some(before) = &self.before {
            let mut both = Vec::new();
            add(&mut both, before, 0.5);
            add(&mut both, gradient, 0.5);
            let norms =
                StepNorms::Lone { before: square(before), now: square(gradient), square_of_mean: square(&both) };
            self.at.noise.observe(norms, scale);
        }
    }

    fn look_for_tuning(&mut self) -> anyhow::Result<()> {
        let Some(next) = self.around.next_tuning()?.filter(|next| *next != self.tuning) else { return Ok(()) };
        // What was measured so far was measured with the batch of so far.
        self.reports.report(&self.at, self.tuning, None)?;
        self.tuning = next;
        self.before = None;
        Ok(())
    }

    fn save(&mut self) -> anyhow::Result<()> {
        let Some(checkpoint) = &self.checkpoint else { return Ok(()) };
        let began = Instant::now();
        checkpoint.save(&self.at, &self.model)?;
        let saved = Saved { progress: self.at.progress, took: began.elapsed() };
        self.reports.report(&self.at, self.tuning, Some(saved))
    }
}

/// Adds so many times the values; a sum that is empty is nothing yet.
fn add(sum: &mut Vec<f32>, values: &[f32], times: f32) {
    if sum.is_empty() {
        *sum = vec![0.0; values.len()];
    }
    sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += times * value);
}

/// Processor time of this thread so far.
fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
