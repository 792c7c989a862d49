//! The trainings: two programs, every sort of job, lengths and arrivals drawn from a seed.

use std::time::Duration;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Training {
    pub(super) name: String,
    pub(super) program: Program,
    pub(super) epochs: u32,
    pub(super) workers: [u32; 2],
    /// What it is designed for and how far that may grow; nothing for a job that leaves its batch alone.
    pub(super) batch: Option<[u32; 2]>,
    pub(super) arrives: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Program {
    ImageClassifier,
    LanguageModel,
}

#[derive(Debug, Clone, Copy)]
enum Sort {
    /// The batch is tuned, on one worker or on one or two.
    Adaptive(u32),
    /// One or two workers and always the same batch.
    Elastic,
    /// One worker and one batch, which it reports.
    Fixed,
    /// One worker; the scheduler is not asked for anything else, nor may it interrupt the job.
    Rigid,
}

const SORTS: [(Program, Sort); 10] = [
    (Program::ImageClassifier, Sort::Adaptive(2)),
    (Program::LanguageModel, Sort::Fixed),
    (Program::ImageClassifier, Sort::Rigid),
    (Program::LanguageModel, Sort::Adaptive(2)),
    (Program::ImageClassifier, Sort::Fixed),
    (Program::ImageClassifier, Sort::Elastic),
    (Program::LanguageModel, Sort::Rigid),
    (Program::ImageClassifier, Sort::Adaptive(1)),
    (Program::LanguageModel, Sort::Elastic),
    (Program::LanguageModel, Sort::Adaptive(1)),
];

/// An epoch takes about three seconds of one core, and the start of a training about five.
const EPOCHS: [u64; 2] = [3, 6];
/// From one arrival to the next: two devices are then busy most of the time, and jobs sometimes wait.
const GAP_MILLIS: [u64; 2] = [6_000, 14_000];

/// So many trainings in order of arrival. The same seed draws the same.
pub(super) fn drawn(jobs: u32, seed: u64) -> Vec<Training> {
    let mut draws = Draws(seed);
    let mut sorts: Vec<(Program, Sort)> = SORTS.into_iter().cycle().take(jobs as usize).collect();
    for index in (1..sorts.len()).rev() {
        sorts.swap(index, draws.between([0, index as u64]) as usize);
    }
    let mut arrives = Duration::ZERO;
    let mut training = |(number, (program, sort)): (usize, (Program, Sort))| {
        let designed = program.designed_batch();
        let (word, workers, batch) = match sort {
            Sort::Adaptive(most) => ("adaptive", [1, most], Some([designed, 4 * designed])),
            Sort::Elastic => ("elastic", [1, 2], Some([designed; 2])),
            Sort::Fixed => ("fixed", [1, 1], Some([designed; 2])),
            Sort::Rigid => ("rigid", [1, 1], None),
        };
        let drawn = Training {
            name: format!("{}-{word}-{number}", program.word()),
            program,
            epochs: draws.between(EPOCHS) as u32,
            workers,
            batch,
            arrives,
        };
        arrives += Duration::from_millis(draws.between(GAP_MILLIS));
        drawn
    };
    sorts.into_iter().enumerate().map(&mut training).collect()
}

impl Program {
    pub(super) fn word(self) -> &'static str {
        match self {
            Program::ImageClassifier => "image",
            Program::LanguageModel => "language",
        }
    }

    pub(super) fn file(self) -> &'static str {
        match self {
            Program::ImageClassifier => "python/examples/image_classifier.py",
            Program::LanguageModel => "python/examples/language_model.py",
        }
    }

    /// The batch its loader is made with.
    fn designed_batch(self) -> u32 {
        match self {
            Program::ImageClassifier => 64,
            Program::LanguageModel => 16,
        }
    }
}

/// Numbers that look random: SplitMix64.
struct Draws(u64);

impl Draws {
    /// One of these and all between them.
    fn between(&mut self, [least, most]: [u64; 2]) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        least + (mixed ^ (mixed >> 31)) % (most - least + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same_mix_and_another_seed_another() {
        assert_eq!(drawn(20, 1), drawn(20, 1));
        assert_ne!(drawn(20, 1), drawn(20, 2));
    }

    #[test]
    fn twenty_trainings_have_every_sort_twice() {
        let mix = drawn(20, 7);
        let count = |words: &str| mix.iter().filter(|training| training.name.starts_with(words)).count();
        assert_eq!([count("image-rigid"), count("language-elastic"), count("image-adaptive")], [2, 2, 4]);
    }

    #[test]
    fn trainings_stand_in_order_of_arrival_and_are_as_long_as_they_may_be() {
        let mix = drawn(40, 3);
        assert!(mix.windows(2).all(|pair| pair[1].arrives - pair[0].arrives >= Duration::from_secs(6)));
        assert!(mix.iter().all(|training| (3..=6).contains(&training.epochs)));
    }
}
