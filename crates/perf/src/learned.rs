//! What a job has taught about itself: the step times of the shapes it visited, the model fitted to them, its gradient
//! noise. Shapes it never visited are guesses of that model, and the truth about them may be another.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use cluster::{GpuKind, Shape, Span};
use serde::{Deserialize, Serialize};

use crate::adaptation::{Adaptation, BatchRule};
use crate::efficiency::GradientNoise;
use crate::fit::{Observation, Search, fit};
use crate::goodput::{Goodput, Ladder, Tuning, capped, untuned};
use crate::step_time::StepTime;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Learned {
    pub noise: GradientNoise,
    /// In order of the kind.
    kinds: Vec<KindModel>,
    /// What its restarts cost it, and what it cost to change its workers in place, as it measured that itself.
    #[serde(default)]
    restart: Price,
    #[serde(default)]
    resize: Price,
    /// Counts changes, so that what was computed from an older state is recognised.
    version: u64,
}

/// What was learnt on one kind of GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KindModel {
    pub kind: GpuKind,
    /// In order of the first visit.
    pub(crate) observations: Vec<Observation>,
    /// Fitted to the observations; nothing until the first fit.
    step: Option<StepTime>,
}

/// An exponential average of measured spans, in which the newest counts a quarter: what is slow at first, because nothing
/// is cached yet, is soon forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Price(Option<Span>);

/// What an interruption of its steps really cost a job, from the last step before to the first one after.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Interruption {
    /// It was stopped and launched again.
    Restart(Span),
    /// It changed its workers in place.
    Resize(Span),
}

/// What a run says about itself from time to time.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct StepReport {
    /// Whole iterations of the designed batch size that it has come, over all runs.
    pub done: u64,
    /// Whole passes over the data.
    pub epoch: u32,
    /// How long its steps took where it is, if it made any.
    pub steps: Option<Observation>,
    pub noise: Option<GradientNoise>,
    /// This run can change its workers in place.
    #[serde(default)]
    pub resizable: bool,
    /// What the last interruption cost, said once.
    #[serde(default)]
    pub interruption: Option<Interruption>,
}

impl Default for Learned {
    fn default() -> Learned {
        let (restart, resize) = (Price::default(), Price::default());
        Learned { noise: GradientNoise::UNKNOWN, kinds: Vec::new(), restart, resize, version: 0 }
    }
}

/// So many are kept of one kind: a job says itself with which batch it runs, and could say another each time. One that is
/// moved every minute would have to get workers or a batch that it never had for 17 hours on end.
const MOST_SEEN: usize = 1024;

/// A repeated measurement that is off by more than this calls for a new fit.
const NEWS: f64 = 0.05;

impl Learned {
    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn on(&self, kind: GpuKind) -> Option<&KindModel> {
        let found = self.kinds.binary_search_by_key(&kind, |model| model.kind);
        found.ok().map(|index| &self.kinds[index])
    }

    /// The kinds on which a model was fitted, in order.
    pub fn fitted(&self) -> impl Iterator<Item = (GpuKind, &StepTime)> {
        self.kinds.iter().filter_map(|model| Some((model.kind, model.step.as_ref()?)))
    }

    pub fn step_time(&self, kind: GpuKind) -> Option<&StepTime> {
        self.on(kind)?.step.as_ref()
    }

    /// The most replicas it has ever run with on a kind.
    pub fn most_replicas(&self, kind: GpuKind) -> u32 {
        self.on(kind).map_or(0, |model| model.observations.iter().map(|seen| seen.replicas).max().unwrap_or(0))
    }

    /// What a restart costs, as far as that was measured.
    pub fn restart(&self) -> Option<Span> {
        self.restart.0
    }

    /// What it costs to change its workers in place, as far as that was measured.
    pub fn resize(&self) -> Option<Span> {
        self.resize.0
    }

    /// Takes note of what an interruption cost.
    pub fn interrupted(&mut self, interruption: Interruption) {
        match interruption {
            Interruption::Restart(span) => self.restart.add(span),
            Interruption::Resize(span) => self.resize.add(span),
        }
    }

    /// Takes note of a report. True if the model of that kind should be fitted anew.
    pub fn take(&mut self, kind: Option<GpuKind>, report: &StepReport) -> bool {
        if let Some(noise) = report.noise
            && noise != self.noise
        {
            self.noise = noise;
            self.version += 1;
        }
        match (kind, report.steps) {
            (Some(kind), Some(steps)) => self.observe(kind, steps),
            _ => false,
        }
    }

    fn observe(&mut self, kind: GpuKind, steps: Observation) -> bool {
        let index = self.kinds.binary_search_by_key(&kind, |model| model.kind).unwrap_or_else(|index| {
            self.kinds.insert(index, KindModel { kind, observations: Vec::new(), step: None });
            index
        });
        let seen = &mut self.kinds[index].observations;
        let news = match seen.iter_mut().find(|seen| is_like(seen, &steps)) {
            None => {
                if seen.len() >= MOST_SEEN {
                    seen.remove(most_common(seen));
                }
                seen.push(steps);
                true
            }
            Some(known) => {
                let differs = |known: f64, found: f64| (found - known).abs() > NEWS * known;
                let news = differs(known.step_secs, steps.step_secs)
                    || differs(known.accumulation_secs, steps.accumulation_secs);
                if news {
                    *known = steps;
                }
                news
            }
        };
        self.version += u64::from(news);
        news
    }

    /// The model that fits what was seen on a kind; nothing if nothing was.
    pub fn refit(&self, kind: GpuKind, search: Search) -> Option<StepTime> {
        self.on(kind).map(|model| fit(&model.observations, search))
    }

    /// From now on this is the model on a kind that was visited.
    pub fn adopt(&mut self, kind: GpuKind, step: StepTime) {
        let found = self.kinds.binary_search_by_key(&kind, |model| model.kind);
        self.kinds[found.expect("a model is fitted to what was seen")].step = Some(step);
        self.version += 1;
    }

    /// The batch of one replica and the accumulation with which the job runs in a shape: the best its model of this kind
    /// of GPU knows, or the designed batch while it has none. Nothing where it cannot run.
    pub fn tuning(&self, adaptation: &Adaptation, shape: Shape) -> Option<Tuning> {
        let limits = adaptation.on(shape.kind?)?;
        let replicas = limits.replicas(shape.workers)?;
        if let Some(tuning) = limits.pipelined() {
            return Some(tuning);
        }
        let local_max = limits.local_max_of(shape.nodes, shape.workers);
        let limits = limits.batch_limits(adaptation, local_max);
        let tuning = match (adaptation.rule, self.step_time(shape.kind?)) {
            (BatchRule::Fixed(total), _) => untuned(total, replicas, limits),
            (BatchRule::Tuned { .. }, None) => {
                untuned(adaptation.initial.max(limits.local_min * replicas), replicas, limits)
            }
            (BatchRule::Tuned { .. }, Some(&step)) => {
                let goodput = Goodput {
                    tunable: true,
                    ladder: Ladder::Double,
                    accumulate: true,
                    step,
                    noise: self.noise,
                    limits,
                };
                goodput.best(shape.nodes, replicas)?.tuning
            }
        };
        Some(capped(tuning, replicas, limits))
    }

    /// What a tuning is worth in a shape, by the model of its kind.
    pub fn goodput(&self, adaptation: &Adaptation, shape: Shape, tuning: Tuning) -> Option<f64> {
        let kind = shape.kind?;
        let limits = adaptation.on(kind)?;
        let replicas = limits.replicas(shape.workers)?;
        let limits = limits.batch_limits(adaptation, limits.local_max);
        let step = *self.step_time(kind)?;
        let goodput =
            Goodput { tunable: true, ladder: Ladder::Double, accumulate: true, step, noise: self.noise, limits };
        Some(goodput.at(shape.nodes, replicas, tuning))
    }
}

impl KindModel {
    /// What was seen with as many workers and the same batch.
    pub fn like(&self, steps: &Observation) -> Option<&Observation> {
        self.observations.iter().find(|seen| is_like(seen, steps))
    }

    /// Whether it was ever seen with as many replicas on as many nodes, whatever the batch.
    pub fn has_had(&self, nodes: u32, replicas: u32) -> bool {
        self.observations.iter().any(|seen| (seen.nodes, seen.replicas) == (nodes, replicas))
    }
}

fn is_like(one: &Observation, other: &Observation) -> bool {
    let key = |seen: &Observation| (seen.nodes, seen.replicas, seen.local_batch);
    key(one) == key(other)
}

/// The oldest of those with as many workers as the most others: with how many it ever ran is to be remembered.
fn most_common(seen: &[Observation]) -> usize {
    let workers = |seen: &Observation| (seen.nodes, seen.replicas);
    let mut counts: BTreeMap<(u32, u32), usize> = BTreeMap::new();
    seen.iter().for_each(|seen| *counts.entry(workers(seen)).or_default() += 1);
    let place = |place: &usize| (counts[&workers(&seen[*place])], Reverse(*place));
    (0..seen.len()).max_by_key(place).unwrap_or(0)
}

impl Price {
    fn add(&mut self, measured: Span) {
        let millis = |known: Span| (3 * known.as_millis() + measured.as_millis()) / 4;
        self.0 = Some(self.0.map_or(measured, |known| Span::from_millis(millis(known))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adaptation::KindLimits;
    use cluster::Span;

    const A: GpuKind = GpuKind(0);

    fn adaptation(rule: BatchRule) -> Adaptation {
        let limits = KindLimits {
            kind: A,
            local_min: 32,
            local_max: 1024,
            shapes: Vec::new(),
            alone: None,
            stages: 1,
            workers_max: None,
        };
        Adaptation { initial: 128, max: 4096, rule, kinds: vec![limits], restart: Span::ZERO }
    }

    fn report(replicas: u32, local_batch: u32, step_secs: f64) -> StepReport {
        let accumulation_secs = step_secs * 0.9;
        let steps = Observation { nodes: 1, replicas, local_batch, accumulation_secs, step_secs };
        StepReport { steps: Some(steps), ..StepReport::default() }
    }

    fn shape(workers: u32) -> Shape {
        Shape { kind: Some(A), workers, nodes: 1 }
    }

    #[test]
    fn a_shape_calls_for_a_fit_when_it_is_first_seen_or_found_changed() {
        let mut learned = Learned::default();
        assert!(learned.take(Some(A), &report(1, 128, 0.1)));
        assert!(!learned.take(Some(A), &report(1, 128, 0.101)), "within the noise");
        assert!(learned.take(Some(A), &report(1, 128, 0.2)), "twice as slow");
        assert!(learned.take(Some(A), &report(2, 64, 0.06)));
        assert_eq!((learned.most_replicas(A), learned.most_replicas(GpuKind(1))), (2, 0));
    }

    #[test]
    fn a_job_that_names_another_batch_each_time_is_remembered_in_part_and_with_how_many_workers_it_ran() {
        let mut learned = Learned::default();
        learned.take(Some(A), &report(16, 32, 0.1));
        learned.take(Some(A), &report(2, 64, 0.1));
        for batch in 1..=3 * MOST_SEEN as u32 {
            assert!(learned.take(Some(A), &report(1, batch, 0.1)), "it is news");
        }
        let seen = &learned.on(A).unwrap().observations;
        assert_eq!(seen.len(), MOST_SEEN);
        assert!(learned.most_replicas(A) == 16 && learned.on(A).unwrap().has_had(1, 2));
        assert_eq!(seen.last().unwrap().local_batch, 3 * MOST_SEEN as u32);
        let kept: Vec<u32> = seen[2..].iter().map(|seen| seen.local_batch).collect();
        assert!(kept.is_sorted() && kept[0] as usize == 2 * MOST_SEEN + 3, "the newest: {}", kept[0]);
    }

    #[test]
    fn the_newest_price_of_an_interruption_counts_a_quarter() {
        let mut learned = Learned::default();
        assert_eq!((learned.restart(), learned.resize()), (None, None));
        learned.interrupted(Interruption::Restart(Span::from_secs(60)));
        assert_eq!((learned.restart(), learned.resize()), (Some(Span::from_secs(60)), None));
        learned.interrupted(Interruption::Restart(Span::from_secs(20)));
        learned.interrupted(Interruption::Resize(Span::from_millis(800)));
        assert_eq!((learned.restart(), learned.resize()), (Some(Span::from_secs(50)), Some(Span::from_millis(800))));
    }

    #[test]
    fn without_a_model_a_job_keeps_its_designed_batch() {
        let learned = Learned::default();
        let tuned = adaptation(BatchRule::Tuned { asked: None });
        assert_eq!(learned.tuning(&tuned, shape(2)), Some(Tuning { local: 64, accumulations: 0 }));
        assert_eq!(learned.tuning(&tuned, shape(8)), Some(Tuning { local: 32, accumulations: 0 }), "at least 32 each");
        assert_eq!(learned.tuning(&tuned, Shape { kind: Some(GpuKind(1)), ..shape(2) }), None);
    }

    #[test]
    fn a_pipeline_keeps_the_batch_that_fills_it() {
        let mut job = adaptation(BatchRule::Tuned { asked: None });
        (job.initial, job.max) = (12, 384);
        job.kinds[0] = KindLimits { local_min: 48, local_max: 48, stages: 8, ..job.kinds[0].clone() };
        let mut learned = Learned::default();
        let full = Tuning { local: 48, accumulations: 0 };
        let filled = Some(full);
        assert_eq!([4, 8, 16].map(|workers| learned.tuning(&job, shape(workers))), [None, filled, filled]);
        learned.take(Some(A), &report(1, 48, 10.0));
        learned.adopt(A, learned.refit(A, Search::Thorough).unwrap());
        assert_eq!(learned.tuning(&job, shape(8)), filled, "with a model as without");
        let goodput = |workers| learned.goodput(&job, shape(workers), full).unwrap();
        assert!((goodput(16) / goodput(8) - 2.0).abs() < 1e-3, "one replica {}, two {}", goodput(8), goodput(16));
    }

    #[test]
    fn with_a_model_and_much_noise_a_job_grows_its_batch() {
        let mut learned = Learned::default();
        learned.take(Some(A), &report(1, 128, 0.1));
        learned.adopt(A, learned.refit(A, Search::Thorough).unwrap());
        learned.noise = GradientNoise { sqr: 1.0, var: 1000.0 };
        let tuned = adaptation(BatchRule::Tuned { asked: None });
        assert!(learned.tuning(&tuned, shape(1)).unwrap().total(1) > 1024);
        let fixed = adaptation(BatchRule::Fixed(2048));
        assert_eq!(learned.tuning(&fixed, shape(4)), Some(Tuning { local: 512, accumulations: 0 }));
        assert_eq!(
            learned.tuning(&fixed, shape(1)),
            Some(Tuning { local: 1024, accumulations: 1 }),
            "what fits, twice"
        );
    }
}
