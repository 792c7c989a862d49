//! A genetic search for two aims at once: NSGA-II (K. Deb, A. Pratap, S. Agarwal, T. Meyarivan, "A fast and elitist
//! multiobjective genetic algorithm: NSGA-II", IEEE Transactions on Evolutionary Computation 2002).
//!
//! It knows genomes as rows of small numbers and nothing of what they mean: the problem says how they are crossed, changed,
//! made lawful and rated. What comes out is a function of the problem, the start, the effort and the seed.
//!
//! | paper                      | here            |
//! |----------------------------|-----------------|
//! | fast non-dominated sort    | `Herd::rank`    |
//! | crowding distance          | `Herd::crowd`   |
//! | crowded tournament         | `Herd::fight`   |

/// What is searched. Methods may use what they keep as scratch space; their answers must depend on nothing but the
/// arguments.
pub trait Problem {
    /// How many cells a genome has.
    fn cells(&self) -> usize;

    /// Two figures, each the better the smaller.
    fn rate(&mut self, genome: &[u16]) -> [f64; 2];

    /// Mixes two genomes with each other.
    fn cross(&mut self, dice: &mut Dice, one: &mut [u16], other: &mut [u16]);

    fn mutate(&mut self, dice: &mut Dice, genome: &mut [u16]);

    /// Makes the genome one that is allowed.
    fn repair(&mut self, dice: &mut Dice, genome: &mut [u16]);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    /// Genomes that survive a generation, and children in each.
    pub population: usize,
    /// The first is the start itself.
    pub generations: usize,
}

/// Genomes of which none is better than another in both figures, the best by the first figure in front.
#[derive(Debug, Clone, PartialEq)]
pub struct Front {
    pub genomes: Vec<Vec<u16>>,
    pub ratings: Vec<[f64; 2]>,
}

/// How often a pair of children may turn out to be known already, for each child wanted.
const RETRIES: usize = 100;

/// The best that the search finds, beginning with these genomes.
pub fn evolve<P: Problem>(problem: &mut P, start: &[Vec<u16>], effort: Effort, dice: &mut Dice) -> Front {
    let mut herd = Herd::new(problem.cells(), effort.population);
    for genome in start {
        herd.newborn().copy_from_slice(genome);
        problem.repair(dice, herd.newborn());
        herd.adopt(problem);
    }
    assert!(herd.len() > 0, "a search begins with at least one genome");
    herd.survive();
    for _ in 1..effort.generations {
        let parents = herd.len();
        let mut retries = RETRIES * effort.population;
        while herd.len() < parents + effort.population && retries > 0 {
            let (mother, father) = (herd.fight(parents, dice), herd.fight(parents, dice));
            let before = herd.len();
            herd.mate(problem, mother, father, dice);
            retries -= usize::from(herd.len() == before);
        }
        herd.survive();
    }
    herd.front()
}

/// A population and its children. Genomes lie one after another; two more rows at the end are where children are made.
#[derive(Debug)]
struct Herd {
    cells: usize,
    population: usize,
    genomes: Vec<u16>,
    spare: Vec<u16>,
    ratings: Vec<[f64; 2]>,
    prints: Vec<u64>,
    /// The front each belongs to; 0 is the best.
    ranks: Vec<u32>,
    crowding: Vec<f64>,
    /// Scratch: indices in order, and the last member of each front.
    order: Vec<u32>,
    lasts: Vec<u32>,
}

impl Herd {
    fn new(cells: usize, population: usize) -> Herd {
        assert!(population > 0, "a population has members");
        Herd {
            cells,
            population,
            genomes: vec![0; 2 * cells],
            spare: Vec::new(),
            ratings: Vec::new(),
            prints: Vec::new(),
            ranks: Vec::new(),
            crowding: Vec::new(),
            order: Vec::new(),
            lasts: Vec::new(),
        }
    }

    fn len(&self) -> usize {
        self.ratings.len()
    }

    fn genome(&self, index: usize) -> &[u16] {
        &self.genomes[index * self.cells..(index + 1) * self.cells]
    }

    /// The row in which the next member is made.
    fn newborn(&mut self) -> &mut [u16] {
        let at = self.len() * self.cells;
        &mut self.genomes[at..at + self.cells]
    }

    /// Takes the newborn in, unless there is one like it.
    fn adopt<P: Problem>(&mut self, problem: &mut P) {
        let index = self.len();
        let print = print_of(self.genome(index));
        let alike = |other: usize| self.prints[other] == print && self.genome(other) == self.genome(index);
        if (0..index).any(alike) {
            return;
        }
        self.ratings.push(problem.rate(&self.genomes[index * self.cells..(index + 1) * self.cells]));
        self.prints.push(print);
        self.genomes.resize((self.len() + 2) * self.cells, 0);
    }

    /// Two children, each taken in if it is new and there is room.
    fn mate<P: Problem>(&mut self, problem: &mut P, mother: usize, father: usize, dice: &mut Dice) {
        let (cells, at) = (self.cells, self.len() * self.cells);
        self.genomes.copy_within(mother * cells..(mother + 1) * cells, at);
        self.genomes.copy_within(father * cells..(father + 1) * cells, at + cells);
        let (one, other) = self.genomes[at..at + 2 * cells].split_at_mut(cells);
        problem.cross(dice, one, other);
        for child in [&mut *one, &mut *other] {
            problem.mutate(dice, child);
            problem.repair(dice, child);
        }
        let before = self.len();
        self.adopt(problem);
        if self.len() == before {
            self.genomes.copy_within(at + cells..at + 2 * cells, at);
        }
        self.adopt(problem);
    }

    /// The better of two drawn at random: the one that is better in both figures, else the one with fewer around it.
    fn fight(&self, among: usize, dice: &mut Dice) -> usize {
        let (one, other) = (dice.below(among), dice.below(among));
        if dominates(self.ratings[one], self.ratings[other]) {
            return one;
        }
        if dominates(self.ratings[other], self.ratings[one]) {
            return other;
        }
        match self.crowding[one].total_cmp(&self.crowding[other]) {
            std::cmp::Ordering::Greater => one,
            std::cmp::Ordering::Less => other,
            std::cmp::Ordering::Equal => [one, other][dice.below(2)],
        }
    }

    /// Keeps the best: whole fronts, and of the front that does not fit those with fewest around them.
    fn survive(&mut self) {
        self.rank();
        self.crowd();
        let mut order = std::mem::take(&mut self.order);
        order.sort_by(|&one, &other| {
            let (one, other) = (one as usize, other as usize);
            self.ranks[one].cmp(&self.ranks[other]).then(self.crowding[other].total_cmp(&self.crowding[one]))
        });
        order.truncate(self.population);
        self.spare.clear();
        for &index in &order {
            let at = index as usize * self.cells;
            self.spare.extend_from_slice(&self.genomes[at..at + self.cells]);
        }
        self.spare.resize((order.len() + 2) * self.cells, 0);
        std::mem::swap(&mut self.genomes, &mut self.spare);
        self.ratings = order.iter().map(|&index| self.ratings[index as usize]).collect();
        self.prints = order.iter().map(|&index| self.prints[index as usize]).collect();
        self.ranks = order.iter().map(|&index| self.ranks[index as usize]).collect();
        self.crowding = order.iter().map(|&index| self.crowding[index as usize]).collect();
        self.order = order;
    }

    /// Sorts into fronts. In order of the first figure, whoever is not dominated by the last member of a front belongs to
    /// it, and the last members get worse from front to front.
    fn rank(&mut self) {
        let ratings = &self.ratings;
        self.order.clear();
        self.order.extend(0..ratings.len() as u32);
        self.order.sort_by(|&one, &other| {
            let (one, other) = (ratings[one as usize], ratings[other as usize]);
            one[0].total_cmp(&other[0]).then(one[1].total_cmp(&other[1]))
        });
        self.ranks.clear();
        self.ranks.resize(ratings.len(), 0);
        self.lasts.clear();
        for &index in &self.order {
            let rating = ratings[index as usize];
            let front = self.lasts.partition_point(|&last| dominates(ratings[last as usize], rating));
            match self.lasts.get_mut(front) {
                Some(last) => *last = index,
                None => self.lasts.push(index),
            }
            self.ranks[index as usize] = front as u32;
        }
    }

    /// How far the neighbours of each in its front are from each other, as a share of the front's extent; endless at its
    /// ends. Follows `Herd::rank`, whose order it uses.
    fn crowd(&mut self) {
        let fronts = self.lasts.len();
        self.crowding.clear();
        self.crowding.resize(self.len(), f64::INFINITY);
        // Stable, so each front stays in order of the first figure, which is against the order of the second.
        self.order.sort_by_key(|&index| self.ranks[index as usize]);
        let mut begin = 0;
        for front in 0..fronts as u32 {
            let size = self.order[begin..].iter().take_while(|&&index| self.ranks[index as usize] == front).count();
            let members = &self.order[begin..begin + size];
            let rating = |at: usize| self.ratings[members[at] as usize];
            for aim in 0..2 {
                let extent = (rating(size - 1)[aim] - rating(0)[aim]).abs();
                for (at, &member) in members.iter().enumerate().take(size.saturating_sub(1)).skip(1) {
                    let gap = (rating(at + 1)[aim] - rating(at - 1)[aim]).abs();
                    let share = if extent > 0.0 { gap / extent } else { 0.0 };
                    let crowding = &mut self.crowding[member as usize];
                    *crowding = if aim == 0 { share } else { *crowding + share };
                }
            }
            begin += size;
        }
    }

    fn front(&self) -> Front {
        let mut best: Vec<usize> = (0..self.len()).filter(|&index| self.ranks[index] == 0).collect();
        best.sort_by(|&one, &other| self.ratings[one][0].total_cmp(&self.ratings[other][0]));
        Front {
            genomes: best.iter().map(|&index| self.genome(index).to_vec()).collect(),
            ratings: best.iter().map(|&index| self.ratings[index]).collect(),
        }
    }
}

/// Not worse in either figure and better in one.
fn dominates(one: [f64; 2], other: [f64; 2]) -> bool {
    one[0] <= other[0] && one[1] <= other[1] && one != other
}

/// A number that tells most genomes apart.
fn print_of(genome: &[u16]) -> u64 {
    genome.iter().fold(0, |print, &cell| (print ^ u64::from(cell)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23))
}

/// Numbers that look random and are the same for the same seed, on every machine (SplitMix64: G. Steele, D. Lea, C.
/// Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 up to, not including, `sides`.
    pub fn below(&mut self, sides: usize) -> usize {
        ((u128::from(self.roll()) * sides as u128) >> 64) as usize
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        ((self.roll() >> 11) as f64) < probability * (1_u64 << 53) as f64
    }

    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Schaffer's first problem: x² and (x - 2)² with x in hundredths; everything from 0 to 2 is best.
    struct Schaffer;

    impl Problem for Schaffer {
        fn cells(&self) -> usize {
            1
        }

        fn rate(&mut self, genome: &[u16]) -> [f64; 2] {
            let x = f64::from(genome[0]) / 100.0 - 10.0;
            [x * x, (x - 2.0) * (x - 2.0)]
        }

        fn cross(&mut self, _: &mut Dice, one: &mut [u16], other: &mut [u16]) {
            one[0] = one[0].midpoint(other[0]);
        }

        fn mutate(&mut self, dice: &mut Dice, genome: &mut [u16]) {
            genome[0] = (genome[0] + dice.below(41) as u16).saturating_sub(20);
        }

        fn repair(&mut self, _: &mut Dice, genome: &mut [u16]) {
            genome[0] = genome[0].min(2000);
        }
    }

    const EFFORT: Effort = Effort { population: 20, generations: 100 };

    fn searched(seed: u64) -> Front {
        evolve(&mut Schaffer, &[vec![1900]], EFFORT, &mut Dice::new(seed))
    }

    #[test]
    fn the_front_lies_where_neither_figure_can_be_bettered() {
        for seed in 0..20 {
            let front = searched(seed);
            assert_eq!(front.genomes.len(), EFFORT.population, "seed {seed}: all survivors are best");
            assert!(front.genomes.iter().all(|genome| (995..=1205).contains(&genome[0])), "seed {seed}: {front:?}");
            let (first, last) = (front.genomes[0][0], front.genomes[EFFORT.population - 1][0]);
            assert!(first <= 1005 && last >= 1195, "seed {seed}: the ends are kept, {first} and {last}");
        }
    }

    #[test]
    fn the_same_seed_finds_the_same() {
        assert_eq!(searched(7), searched(7));
    }

    #[test]
    fn fronts_are_those_found_by_comparing_all_with_all() {
        for seed in 0..50 {
            let mut dice = Dice::new(seed);
            let mut herd = Herd::new(1, 1);
            herd.ratings = (0..60).map(|_| [dice.below(12) as f64, dice.below(12) as f64]).collect();
            herd.rank();
            let mut left: Vec<usize> = (0..60).collect();
            for front in 0.. {
                let best =
                    |index: &usize| left.iter().all(|&other| !dominates(herd.ratings[other], herd.ratings[*index]));
                let (now, later): (Vec<usize>, Vec<usize>) = left.iter().partition(|index| best(index));
                assert!(now.iter().all(|&index| herd.ranks[index] == front), "seed {seed}, front {front}");
                left = later;
                if left.is_empty() {
                    break;
                }
            }
        }
    }

    #[test]
    fn dice_are_fair_enough() {
        let mut dice = Dice::new(3);
        let sixes = (0..6000).filter(|_| dice.below(6) == 5).count();
        assert!((900..1100).contains(&sixes), "seed 3: {sixes} of 6000");
        let heads = (0..6000).filter(|_| dice.chance(0.1)).count();
        assert!((520..680).contains(&heads), "seed 3: {heads} of 6000 at a tenth");
    }
}
