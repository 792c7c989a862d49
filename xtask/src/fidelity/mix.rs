//! The trainings: two programs, every sort of job, lengths and arrivals drawn from a seed.

use std::time::Duration;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Training {
    pub(super) name: String,
    pub(super) program: Program,
    pub(super) epochs: u32,
    pub(super) workers: [u32; 2],
    /// Nothing for a job that leaves its batch alone.
    pub(super) batch: Option<Batch>,
    pub(super) arrives: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Batch {
    pub(super) designed: u32,
    pub(super) max: u32,
    /// Between which one worker's part of it stays; nothing if anything goes.
    pub(super) per_worker: Option<[u32; 2]>,
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
    /// So many workers, each with so many times half the designed batch in one pass, and as many passes as the designed
    /// batch needs. A single worker can have no more than that batch in one pass.
    Fixed(u32, u32),
    /// One worker; the scheduler is not asked for anything else, nor may it interrupt the job.
    Rigid,
}

/// Of each program one. Those whose configuration is fixed see to it that enough of them are visited to leave one out.
const SORTS: [Sort; 10] = [
    Sort::Adaptive(2),
    Sort::Fixed(1, 2),
    Sort::Rigid,
    Sort::Fixed(2, 1),
    Sort::Elastic,
    Sort::Adaptive(1),
    Sort::Fixed(1, 1),
    Sort::Fixed(2, 4),
    Sort::Adaptive(2),
    Sort::Rigid,
];

/// An epoch takes about three seconds of one core, and the start of a training about five.
const EPOCHS: [u64; 2] = [3, 6];
/// From one arrival to the next: two devices are then busy most of the time, and jobs sometimes wait.
const GAP_MILLIS: [u64; 2] = [8_000, 18_000];

/// So many trainings in order of arrival. The same seed draws the same.
pub(super) fn drawn(jobs: u32, seed: u64) -> Vec<Training> {
    let mut draws = Draws(seed);
    let programs = [Program::ImageClassifier, Program::LanguageModel];
    let all = SORTS.into_iter().flat_map(|sort| programs.map(|program| (program, sort)));
    let mut sorts: Vec<(Program, Sort)> = all.cycle().take(jobs as usize).collect();
    for index in (1..sorts.len()).rev() {
        sorts.swap(index, draws.between([0, index as u64]) as usize);
    }
    let mut arrives = Duration::ZERO;
    let mut training = |(number, (program, sort)): (usize, (Program, Sort))| {
        let (word, workers, batch) = sort.asks_for(program.designed_batch());
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

impl Sort {
    /// What it is called, its workers and its batch.
    fn asks_for(self, designed: u32) -> (&'static str, [u32; 2], Option<Batch>) {
        let grows = |max| Some(Batch { designed, max, per_worker: None });
        match self {
            Sort::Adaptive(most) => ("adaptive", [1, most], grows(4 * designed)),
            Sort::Elastic => ("elastic", [1, 2], grows(designed)),
            Sort::Fixed(workers, halves) => {
                let local = halves * designed / 2;
                let max = designed.max(workers * local);
                let batch = Batch { designed, max, per_worker: Some([local, local]) };
                ("fixed", [workers; 2], Some(batch))
            }
            Sort::Rigid => ("rigid", [1, 1], None),
        }
    }
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
    fn twenty_trainings_have_every_sort_of_both_programs() {
        let mix = drawn(20, 7);
        let count = |words: &str| mix.iter().filter(|training| training.name.starts_with(words)).count();
        assert_eq!([count("image-rigid"), count("language-elastic"), count("image-adaptive")], [2, 1, 3]);
        assert_eq!([count("image-fixed"), count("language-fixed")], [4, 4]);
    }

    #[test]
    fn a_fixed_configuration_leaves_no_choice() {
        let batch = Batch { designed: 16, max: 16, per_worker: Some([8, 8]) };
        assert_eq!(Sort::Fixed(2, 1).asks_for(16), ("fixed", [2, 2], Some(batch)));
        assert_eq!(Sort::Fixed(1, 1).asks_for(16), ("fixed", [1; 2], Some(batch)), "in two passes");
        let batch = Batch { designed: 16, max: 64, per_worker: Some([32, 32]) };
        assert_eq!(Sort::Fixed(2, 4).asks_for(16), ("fixed", [2, 2], Some(batch)));
    }

    #[test]
    fn trainings_stand_in_order_of_arrival_and_are_as_long_as_they_may_be() {
        let mix = drawn(40, 3);
        assert!(mix.windows(2).all(|pair| pair[1].arrives - pair[0].arrives >= Duration::from_secs(8)));
        assert!(mix.iter().all(|training| (3..=6).contains(&training.epochs)));
    }
}
