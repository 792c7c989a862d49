//! The measured course of a training: how long its steps really took in each place, how its gradient noise changed from
//! epoch to epoch, and where each epoch ended. The truth of a simulated world; policies see only what a job visits.

use cluster::{GpuKind, Invalid, Shape};
use serde::{Deserialize, Serialize};

use crate::adaptation::{Adaptation, BatchRule};
use crate::efficiency::GradientNoise;
use crate::fit::Observation;
use crate::goodput::Tuning;
use crate::pipeline::Pipeline;
use crate::step_time::StepTime;

/// One application on the kinds of GPU of one cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Course {
    /// The batch size the training was designed for.
    pub initial: u32,
    pub steps: Vec<(GpuKind, StepTimes)>,
    /// Progress, in iterations of the designed batch size, at the end of each epoch; ascending.
    pub epochs: Vec<f64>,
    /// Gradient noise in each epoch, by the batch size it was measured with; ascending.
    pub noise: Vec<(u32, Vec<GradientNoise>)>,
    /// Iterations made by the end of each epoch, by the batch size they were counted with; ascending. Where nobody
    /// counted, they follow from progress and noise.
    pub iterations: Vec<(u32, Vec<f64>)>,
    /// By how much everything takes longer than the step times say.
    pub slowdown: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum StepTimes {
    Measured(StepTables),
    Fitted(StepTime),
    /// The model is cut into stages, one worker each.
    Piped(Pipeline),
}

/// Step times as they were measured. All rows of one place stand together, by local batch, ascending.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct StepTables {
    /// By the workers on each node, turned so that the list is the least of its rotations; ascending.
    pub places: Vec<(Vec<u32>, Vec<StepRow>)>,
    /// By nodes and workers, however they are spread; ascending. For places that were not measured.
    pub sizes: Vec<((u32, u32), Vec<StepRow>)>,
    /// Single points by nodes, workers and local batch that come before everything else but `places`; ascending.
    pub points: Vec<((u32, u32, u32), StepRow)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StepRow {
    pub local: u32,
    /// A whole synchronous step.
    pub step_secs: f64,
    /// The part of it spent waiting for others.
    pub sync_secs: f64,
}

/// A stretch of training in which nothing changes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Piece {
    pub epoch: u32,
    /// Progress per second, in iterations of the designed batch size.
    pub rate: f64,
    /// Progress at which the epoch ends.
    pub until: f64,
    /// What the job sees of its steps.
    pub steps: Observation,
    pub noise: GradientNoise,
}

impl Course {
    /// Progress at the end of the last epoch.
    pub fn length(&self) -> f64 {
        self.epochs[self.epochs.len() - 1]
    }

    /// Epochs that are over.
    pub fn epoch(&self, progress: f64) -> u32 {
        self.epochs.partition_point(|&end| end <= progress) as u32
    }

    /// What happens from this progress on with these workers on each node; `None` where the job cannot run.
    pub fn piece(&self, kind: GpuKind, workers: &[u32], tuning: Tuning, progress: f64) -> Option<Piece> {
        let epoch = self.epoch(progress).min(self.epochs.len() as u32 - 1);
        let replicas = self.replicas(kind, workers)?;
        let row = self.times(kind, workers, tuning.local)?;
        let total = tuning.total(replicas) as f64;
        let noise = self.noise_at(epoch, total);
        let accumulation_secs = row.step_secs - row.sync_secs;
        let iteration_secs = row.step_secs + f64::from(tuning.accumulations) * accumulation_secs;
        Some(Piece {
            epoch,
            rate: noise.gain(total / f64::from(self.initial)) / iteration_secs / self.slowdown,
            until: self.epochs[epoch as usize],
            steps: Observation {
                nodes: workers.len() as u32,
                replicas,
                local_batch: tuning.local,
                accumulation_secs,
                step_secs: row.step_secs,
            },
            noise,
        })
    }

    /// Seconds between two updates of the weights with these workers on each node; `None` where the job cannot run.
    pub fn iteration_secs(&self, kind: GpuKind, workers: &[u32], tuning: Tuning) -> Option<f64> {
        let row = self.times(kind, workers, tuning.local)?;
        let accumulation_secs = row.step_secs - row.sync_secs;
        Some((row.step_secs + f64::from(tuning.accumulations) * accumulation_secs) * self.slowdown)
    }

    /// Iterations of a total batch from the end of one epoch to that of the last.
    pub fn iterations_after(&self, epoch: u32, batch: f64) -> f64 {
        let last = self.epochs.len() - 1;
        let epoch = (epoch as usize).min(last);
        if self.iterations.is_empty() {
            let epochs = epoch + 1..=last;
            let iterations = |index: usize| {
                let gain = self.noise_at(index as u32, batch).gain(batch / f64::from(self.initial));
                (self.epochs[index] - self.epochs[index - 1]) / gain
            };
            return epochs.map(iterations).sum();
        }
        let counted = |index: usize| over_batches(&self.iterations, batch, |rows| rows[index], between);
        counted(last) - counted(epoch)
    }

    /// The best that can be done in a shape, nodes filled evenly, at this progress: what an oracle would know.
    pub fn best_rate(&self, adaptation: &Adaptation, shape: Shape, progress: f64) -> Option<f64> {
        let kind = shape.kind?;
        let limits = adaptation.on(kind)?;
        limits.replicas(shape.workers)?;
        let workers = spread_evenly(shape.workers, shape.nodes);
        let local_max = limits.local_max_of(shape.nodes, shape.workers);
        let rate = |tuning| Some(self.piece(kind, &workers, tuning, progress)?.rate);
        if let Some(tuning) = limits.pipelined() {
            return rate(tuning);
        }
        let batch = |total: u32| {
            let limits = limits.batch_limits(adaptation, local_max);
            rate(crate::goodput::capped(crate::goodput::untuned(total, shape.workers, limits), shape.workers, limits))
        };
        match adaptation.rule {
            BatchRule::Fixed(total) => batch(total),
            BatchRule::Tuned { .. } => {
                let least = adaptation.initial.max(limits.local_min * shape.workers);
                let ladder = std::iter::successors(Some(least), |&total| {
                    let next = (f64::from(total) * 1.1).ceil() as u32;
                    (next <= adaptation.max).then_some(next)
                });
                ladder.filter_map(batch).max_by(f64::total_cmp)
            }
        }
    }

    fn noise_at(&self, epoch: u32, batch: f64) -> GradientNoise {
        let mixed = |a: GradientNoise, b: GradientNoise, part: f64| GradientNoise {
            sqr: between(a.sqr, b.sqr, part),
            var: between(a.var, b.var, part),
        };
        over_batches(&self.noise, batch, |rows| rows[epoch as usize], mixed)
    }

    fn on(&self, kind: GpuKind) -> Option<&StepTimes> {
        self.steps.iter().find(|(known, _)| *known == kind).map(|(_, steps)| steps)
    }

    /// The replicas that these workers make; `None` if the job cannot run on the kind, or a pipeline were incomplete.
    fn replicas(&self, kind: GpuKind, workers: &[u32]) -> Option<u32> {
        let stages = match self.on(kind)? {
            StepTimes::Piped(pipeline) => pipeline.stages,
            StepTimes::Measured(_) | StepTimes::Fitted(_) => 1,
        };
        let workers: u32 = workers.iter().sum();
        workers.is_multiple_of(stages).then(|| workers / stages)
    }

    fn times(&self, kind: GpuKind, workers: &[u32], local: u32) -> Option<StepRow> {
        match self.on(kind)? {
            StepTimes::Measured(tables) => tables.row(workers, local),
            StepTimes::Fitted(model) => {
                let (nodes, replicas) = (workers.len() as u32, workers.iter().sum());
                let step_secs = model.step_secs(nodes, replicas, f64::from(local));
                let sync_secs = step_secs - model.accumulation_secs(f64::from(local));
                Some(StepRow { local, step_secs, sync_secs })
            }
            StepTimes::Piped(pipeline) => {
                let (nodes, replicas) = (workers.len() as u32, self.replicas(kind, workers)?);
                let step_secs = pipeline.iteration_secs(nodes, replicas);
                let sync_secs = step_secs - pipeline.filled_secs();
                Some(StepRow { local, step_secs, sync_secs })
            }
        }
    }

    /// Checks that every figure is one that can have been measured.
    pub fn check(&self) -> Result<(), Invalid> {
        let ascending = self.epochs.windows(2).all(|pair| pair[0] < pair[1]);
        if self.epochs.is_empty() || !ascending || !(self.epochs[0] > 0.0 && self.length().is_finite()) {
            return Err(Invalid::new("epochs", "ends that rise from above 0", format!("{:?}", self.epochs)));
        }
        let whole = |rows: &Vec<GradientNoise>| rows.len() >= self.epochs.len();
        if self.noise.is_empty() || !self.noise.iter().all(|(_, rows)| whole(rows)) {
            return Err(Invalid::new("noise", format!("a row for each of {} epochs", self.epochs.len()), "fewer"));
        }
        let sound = |noise: &GradientNoise| noise.sqr >= 0.0 && noise.var >= 0.0 && (noise.sqr + noise.var).is_finite();
        let rising = |rows: &Vec<f64>| rows.len() >= self.epochs.len() && rows.windows(2).all(|pair| pair[0] < pair[1]);
        if !self.iterations.iter().all(|(_, rows)| rising(rows) && rows.iter().all(|count| count.is_finite())) {
            let expected = format!("rising counts for each of {} epochs", self.epochs.len());
            return Err(Invalid::new("iterations", expected, "others"));
        }
        if let Some(noise) = self.noise.iter().flat_map(|(_, rows)| rows).find(|noise| !sound(noise)) {
            return Err(Invalid::new("noise", "finite numbers of at least 0", format!("{noise:?}")));
        }
        match self.slowdown.is_finite() && self.slowdown > 0.0 {
            true => Ok(()),
            false => Err(Invalid::new("slowdown", "a positive number", self.slowdown)),
        }
    }
}

impl StepTables {
    /// The row of a place: straight lines over the local batch between measurements of that very place, else between
    /// those of places with as many nodes and workers, else between places that are smaller and larger.
    pub fn row(&self, workers: &[u32], local: u32) -> Option<StepRow> {
        let place = least_rotation(workers);
        if let Ok(found) = self.places.binary_search_by(|(known, _)| known.as_slice().cmp(&place)) {
            return along(&self.places[found].1, local);
        }
        let (nodes, replicas) = (workers.len() as u32, workers.iter().sum::<u32>());
        if let Ok(found) = self.points.binary_search_by_key(&(nodes, replicas, local), |(key, _)| *key) {
            return Some(self.points[found].1);
        }
        self.by_size(nodes, f64::from(replicas), local)
    }

    /// Straight lines over the number of workers among sizes of as many nodes; where that number of nodes was not
    /// measured, straight lines over the nodes with as many workers on each.
    fn by_size(&self, nodes: u32, workers: f64, local: u32) -> Option<StepRow> {
        let measured = |nodes: u32| self.sizes.iter().filter(move |((known, _), _)| *known == nodes);
        if measured(nodes).next().is_some() {
            let size = |index: &((u32, u32), Vec<StepRow>)| f64::from(index.0.1);
            let below = measured(nodes).rfind(|row| size(row) <= workers);
            let above = measured(nodes).find(|row| size(row) >= workers);
            let (below, above) = (below.or(above)?, above.or(below)?);
            return mixed(along(&below.1, local)?, along(&above.1, local)?, size(below), size(above), workers);
        }
        let below = self.sizes.iter().map(|((known, _), _)| *known).filter(|&known| known < nodes).max();
        let above = self.sizes.iter().map(|((known, _), _)| *known).filter(|&known| known > nodes).min();
        let (below, above) = (below.or(above)?, above.or(below)?);
        let on = |other: u32| self.by_size(other, workers * f64::from(other) / f64::from(nodes), local);
        mixed(on(below)?, on(above)?, f64::from(below), f64::from(above), f64::from(nodes))
    }
}

/// Something measured with a few batch sizes at one in between; what was found with the nearest beyond them.
fn over_batches<R, T>(
    measured: &[(u32, Vec<R>)],
    batch: f64,
    at: impl Fn(&[R]) -> T,
    mixed: impl Fn(T, T, f64) -> T,
) -> T {
    let above = measured.partition_point(|(size, _)| f64::from(*size) < batch);
    let Some((high, rows)) = measured.get(above) else { return at(&measured[above - 1].1) };
    if above == 0 || f64::from(*high) == batch {
        return at(rows);
    }
    let (low, below) = &measured[above - 1];
    let low = f64::from(*low);
    mixed(at(below), at(rows), (batch - low) / (f64::from(*high) - low))
}

/// The point of a straight line over local batches; the ends beyond them.
fn along(rows: &[StepRow], local: u32) -> Option<StepRow> {
    let above = rows.partition_point(|row| row.local < local);
    let Some(high) = rows.get(above) else { return rows.last().map(|row| StepRow { local, ..*row }) };
    if high.local == local || above == 0 {
        return Some(StepRow { local, ..*high });
    }
    let low = rows[above - 1];
    let part = f64::from(local - low.local) / f64::from(high.local - low.local);
    Some(StepRow {
        local,
        step_secs: between(low.step_secs, high.step_secs, part),
        sync_secs: between(low.sync_secs, high.sync_secs, part),
    })
}

fn mixed(low: StepRow, high: StepRow, from: f64, to: f64, at: f64) -> Option<StepRow> {
    let part = if to > from { (at - from) / (to - from) } else { 0.0 };
    Some(StepRow {
        local: low.local,
        step_secs: between(low.step_secs, high.step_secs, part),
        sync_secs: between(low.sync_secs, high.sync_secs, part),
    })
}

fn between(low: f64, high: f64, part: f64) -> f64 {
    low + (high - low) * part
}

/// So many workers over so many nodes, the first ones holding one more where it does not come out even.
pub fn spread_evenly(workers: u32, nodes: u32) -> Vec<u32> {
    let (each, more) = (workers / nodes, workers % nodes);
    (0..nodes).map(|node| each + u32::from(node < more)).collect()
}

fn least_rotation(workers: &[u32]) -> Vec<u32> {
    let rotated = |by: usize| [&workers[by..], &workers[..by]].concat();
    (0..workers.len()).map(rotated).min().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step_time::Line;

    fn rows(step_secs: f64) -> Vec<StepRow> {
        let row = |local: u32, factor: f64| StepRow { local, step_secs: step_secs * factor, sync_secs: 0.1 };
        vec![row(10, 1.0), row(20, 2.0)]
    }

    fn course() -> Course {
        let tables = StepTables {
            places: vec![(vec![1], rows(1.0)), (vec![1, 3], rows(3.0)), (vec![2, 2], rows(2.0))],
            sizes: vec![((1, 1), rows(1.0)), ((2, 4), rows(2.5)), ((2, 8), rows(1.5)), ((4, 16), rows(0.5))],
            points: vec![((3, 12, 10), StepRow { local: 10, step_secs: 9.0, sync_secs: 1.0 })],
        };
        let noise = |var: f64| vec![GradientNoise { sqr: 1.0, var }, GradientNoise { sqr: 1.0, var: 2.0 * var }];
        Course {
            initial: 10,
            steps: vec![(GpuKind(0), StepTimes::Measured(tables))],
            epochs: vec![100.0, 250.0],
            noise: vec![(10, noise(0.0)), (30, noise(2.0))],
            iterations: vec![(10, vec![100.0, 250.0]), (30, vec![40.0, 90.0])],
            slowdown: 1.0,
        }
    }

    fn step_secs(workers: &[u32], local: u32) -> Option<f64> {
        Some(course().times(GpuKind(0), workers, local)?.step_secs)
    }

    #[test]
    fn three_and_one_is_not_two_and_two() {
        assert_eq!(
            (step_secs(&[3, 1], 10), step_secs(&[1, 3], 10), step_secs(&[2, 2], 10)),
            (Some(3.0), Some(3.0), Some(2.0))
        );
    }

    #[test]
    fn between_measured_batches_step_times_are_on_a_straight_line() {
        assert_eq!((step_secs(&[1], 15), step_secs(&[1], 99)), (Some(1.5), Some(2.0)));
    }

    #[test]
    fn places_that_were_not_measured_lie_between_those_that_were() {
        assert_eq!(step_secs(&[3, 3], 10), Some(2.0), "half way from 4 to 8 workers on two nodes");
        assert_eq!(step_secs(&[4, 4, 4], 10), Some(9.0), "a single point comes first");
        assert_eq!(step_secs(&[4, 4, 4], 20), Some(2.0), "half way from two nodes to four");
        assert_eq!(course().times(GpuKind(1), &[1], 10), None, "a kind that was not measured");
    }

    #[test]
    fn a_pipeline_runs_in_whole_replicas_only() {
        let exchange = Line { fixed: 0.4, slope: 0.1 };
        let pipeline = Pipeline {
            stages: 8,
            micro_batches: 48,
            micro_batch: 1,
            forward_secs: 0.1,
            between_nodes: exchange,
            within_node: exchange,
        };
        let course = Course { steps: vec![(GpuKind(0), StepTimes::Piped(pipeline))], ..course() };
        let piece = |workers: &[u32]| course.piece(GpuKind(0), workers, Tuning { local: 48, accumulations: 0 }, 0.0);
        assert_eq!((piece(&[4]), piece(&[8, 4])), (None, None), "half a pipeline");
        let two = piece(&[8, 8]).unwrap().steps;
        assert_eq!((two.replicas, two.local_batch, two.nodes), (2, 48, 2));
        assert!((two.accumulation_secs - 16.5).abs() < 1e-9 && (two.step_secs - 16.9).abs() < 1e-6, "{two:?}");
    }

    #[test]
    fn an_epoch_ends_where_it_was_seen_to_and_a_larger_batch_gains_by_its_noise() {
        let tuning = Tuning { local: 10, accumulations: 0 };
        let alone = course().piece(GpuKind(0), &[1], tuning, 100.0).unwrap();
        assert_eq!((alone.epoch, alone.until, alone.rate), (1, 250.0, 1.0));
        // Batch 20 lies half way between those measured: noise 1 in the first epoch, so a gain of 2 / 1.5.
        let twice = course().piece(GpuKind(0), &[1], Tuning { local: 10, accumulations: 1 }, 0.0).unwrap();
        assert!((twice.rate - (2.0 / 1.5) / 1.9).abs() < 1e-12, "{}", twice.rate);
    }

    #[test]
    fn iterations_to_come_are_those_that_were_counted() {
        assert_eq!((course().iterations_after(0, 10.0), course().iterations_after(0, 20.0)), (150.0, 100.0));
        assert_eq!(course().iterations_after(1, 10.0), 0.0, "the last epoch has none after it");
        let uncounted = Course { iterations: Vec::new(), ..course() };
        // Batch 30 in the second epoch: noise 4, so an iteration is worth 5 / (4/3 + 1) of the designed ones.
        let expected = 150.0 / (5.0 / (4.0 / 3.0 + 1.0));
        assert!((uncounted.iterations_after(0, 30.0) - expected).abs() < 1e-9);
    }

    #[test]
    fn figures_nobody_can_have_measured_are_refused() {
        let error = |change: fn(&mut Course)| {
            let mut course = course();
            change(&mut course);
            course.check().unwrap_err().to_string()
        };
        assert_eq!(course().check(), Ok(()));
        assert_eq!(
            error(|course| course.epochs = vec![5.0, 3.0]),
            "epochs: expected ends that rise from above 0, found [5.0, 3.0]"
        );
        assert_eq!(error(|course| course.slowdown = 0.0), "slowdown: expected a positive number, found 0");
        assert_eq!(
            error(|course| course.noise[0].1.truncate(1)),
            "noise: expected a row for each of 2 epochs, found fewer"
        );
        assert!(error(|course| course.noise[0].1[0].var = f64::NAN).starts_with("noise: expected finite numbers"));
    }
}
