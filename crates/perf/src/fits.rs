//! Models that were fitted before. Jobs of a kind that see the same are fitted the same, and the search costs more than
//! anything else that is done with a report.

use std::collections::BTreeMap;

use cluster::GpuKind;

use crate::fit::{Observation, Search, fit};
use crate::{Learned, StepTime};

/// Real jobs never see the same twice, so what is kept for them is of no use and has to stay small: so many observations, of
/// all models together.
const MOST: usize = 1 << 17;

/// Gives the same models as fitting anew, and remembers some.
#[derive(Debug)]
pub struct Fits {
    search: Search,
    known: BTreeMap<Vec<[u64; 4]>, StepTime>,
    /// How many observations there are in all keys.
    held: usize,
}

impl Fits {
    pub fn new(search: Search) -> Fits {
        Fits { search, known: BTreeMap::new(), held: 0 }
    }

    /// The model that fits what was seen on a kind; nothing if nothing was.
    pub fn refit(&mut self, learned: &Learned, kind: GpuKind) -> Option<StepTime> {
        let observations = &learned.on(kind)?.observations;
        let key: Vec<[u64; 4]> = observations.iter().map(bits).collect();
        if let Some(known) = self.known.get(&key) {
            return Some(*known);
        }
        let step = fit(observations, self.search);
        if self.held + key.len() > MOST {
            self.known.clear();
            self.held = 0;
        }
        self.held += key.len();
        self.known.insert(key, step);
        Some(step)
    }
}

/// All of an observation, exactly.
fn bits(seen: &Observation) -> [u64; 4] {
    let Observation { nodes, replicas, local_batch, accumulation_secs, step_secs } = *seen;
    let shape = u64::from(nodes) << 32 | u64::from(replicas);
    [shape, u64::from(local_batch), accumulation_secs.to_bits(), step_secs.to_bits()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StepReport;

    const A: GpuKind = GpuKind(0);

    fn having_seen(step_secs: f64) -> Learned {
        let mut learned = Learned::default();
        for replicas in [1, 2] {
            let seen = Observation { nodes: 1, replicas, local_batch: 64, accumulation_secs: 0.1, step_secs };
            learned.take(Some(A), &StepReport { steps: Some(seen), ..StepReport::default() });
        }
        learned
    }

    #[test]
    fn what_was_seen_before_is_not_fitted_again_and_gives_the_same_model() {
        let mut fits = Fits::new(Search::Thorough);
        let (one, other) = (having_seen(0.2), having_seen(0.2 + f64::EPSILON));
        for learned in [&one, &other, &one, &one.clone()] {
            assert_eq!(fits.refit(learned, A), learned.refit(A, Search::Thorough));
        }
        assert_eq!(fits.known.len(), 2, "observations that differ in the last bit are two");
        assert_eq!(fits.refit(&Learned::default(), A), None);
    }

    #[test]
    fn what_is_kept_stays_small_also_if_each_model_was_fitted_to_much() {
        let mut fits = Fits::new(Search::AsPublished);
        let model = fits.refit(&having_seen(0.2), A).unwrap();
        assert_eq!((fits.known.len(), fits.held), (1, 2));
        // As if it had been asked for two models more.
        fits.known.insert(vec![[1; 4]; MOST / 2], model);
        fits.known.insert(vec![[2; 4]; MOST / 2 - 3], model);
        fits.held = MOST - 1;
        assert_eq!(fits.refit(&having_seen(0.2), A), Some(model));
        assert_eq!(fits.known.len(), 3, "what is known takes no room");
        fits.refit(&having_seen(0.3), A).unwrap();
        assert_eq!((fits.known.len(), fits.held), (1, 2));
    }
}
