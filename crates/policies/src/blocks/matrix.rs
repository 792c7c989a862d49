//! Replicas of every job on every node as one matrix, what it is worth as a whole, and the genetic search over such
//! matrices as the authors of Pollux specify it. Knows nothing of claims, models or clusters: who asks says what each row
//! may be and what it is worth.

use solver::genetic::{Dice, Problem};

/// Jobs that compete for the GPUs of some nodes.
#[derive(Debug, Clone)]
pub(crate) struct Instance {
    power: f64,
    /// GPUs of each node.
    pub(crate) capacity: Vec<u16>,
    /// A row uses nodes of one kind only.
    pub(crate) kind: Vec<u16>,
    /// Most replicas of jobs with the same quota.
    pub(crate) quotas: Vec<u32>,
    pub(crate) jobs: Vec<Job>,
    /// Most replicas of each job on each node; 0 where it cannot run.
    pub(crate) bound: Vec<u16>,
    /// What each job holds on each node.
    pub(crate) current: Vec<u16>,
    /// For each job what it would add to the sum, by [`State`] and replicas.
    worth: Vec<f64>,
    /// Scaled speed-ups without a discount, by whether on several nodes and replicas.
    speed: Vec<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Job {
    /// Fewer replicas are as good as none.
    pub(crate) min: u16,
    pub(crate) max: u16,
    pub(crate) quota: Option<u16>,
    /// Where its figures begin, for one state.
    begin: usize,
}

/// A row to be added to an instance.
#[derive(Debug, Clone)]
pub(crate) struct Wish<'a> {
    pub(crate) min: u16,
    pub(crate) quota: Option<u16>,
    /// Scaled speed-up by replicas on one node, from 0 to the most there may be.
    pub(crate) together: &'a [f64],
    /// The same on several nodes.
    pub(crate) apart: &'a [f64],
    /// What a restart leaves of it.
    pub(crate) restarted: f64,
    pub(crate) bound: &'a [u16],
    pub(crate) current: &'a [u16],
}

/// All that the worth of a row depends on besides its replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct State {
    /// On several nodes.
    pub(crate) apart: bool,
    /// Other than what the job holds, so that it would have to be restarted.
    pub(crate) changed: bool,
}

/// No job has replicas on more nodes.
pub(crate) const MOST_NODES: usize = 16;

/// Added to every speed-up, so that a job that gets nothing is very bad and not infinitely so.
const LEAST: f64 = 1e-3;

impl Instance {
    pub(crate) fn new(power: f64, capacity: Vec<u16>, kind: Vec<u16>, quotas: Vec<u32>) -> Instance {
        assert_eq!(capacity.len(), kind.len(), "every node is of a kind");
        let (jobs, bound, current, worth, speed) = Default::default();
        Instance { power, capacity, kind, quotas, jobs, bound, current, worth, speed }
    }

    /// Adds a job. Where rows contradict each other, those added first win.
    pub(crate) fn add(&mut self, wish: &Wish<'_>) {
        let width = wish.together.len();
        assert!(width == wish.apart.len() && width > 0, "a figure for each number of replicas");
        assert!(wish.bound.len() == self.nodes() && wish.current.len() == self.nodes(), "a cell for each node");
        let begin = self.speed.len() / 2;
        self.speed.extend(wish.together.iter().chain(wish.apart));
        for restarted in [1.0, wish.restarted] {
            let figures = wish.together.iter().chain(wish.apart);
            self.worth.extend(figures.map(|speed| worth(self.power, speed * restarted)));
        }
        self.jobs.push(Job { min: wish.min.max(1), max: width as u16 - 1, quota: wish.quota, begin });
        self.bound.extend_from_slice(wish.bound);
        self.current.extend_from_slice(wish.current);
    }

    pub(crate) fn nodes(&self) -> usize {
        self.capacity.len()
    }

    /// What a row adds to the sum.
    pub(crate) fn worth(&self, job: usize, state: State, replicas: u16) -> f64 {
        let Job { begin, max, .. } = self.jobs[job];
        let part = 2 * usize::from(state.changed) + usize::from(state.apart);
        self.worth[4 * begin + part * (usize::from(max) + 1) + usize::from(replicas)]
    }

    fn speed(&self, job: usize, apart: bool, replicas: u16) -> f64 {
        let Job { begin, max, .. } = self.jobs[job];
        self.speed[2 * begin + usize::from(apart) * (usize::from(max) + 1) + usize::from(replicas)]
    }

    /// The objective: the power mean of all scaled speed-ups, restarts discounted.
    pub(crate) fn mean(&self, sum: f64) -> f64 {
        let jobs = self.jobs.len().max(1) as f64;
        if self.power == 0.0 { (sum / jobs).exp() } else { (sum.abs() / jobs).powf(1.0 / self.power) }
    }

    /// The objective of a matrix.
    pub(crate) fn objective(&self, matrix: &[u16]) -> f64 {
        let rows = matrix.chunks_exact(self.nodes()).enumerate();
        self.mean(rows.map(|(job, row)| self.worth_of(job, row).0).sum())
    }

    /// The worth of a row, and its speed-up without a discount.
    fn worth_of(&self, job: usize, row: &[u16]) -> (f64, f64) {
        let (mut replicas, mut nodes) = (0, 0);
        for &cell in row {
            replicas += cell;
            nodes += u16::from(cell > 0);
        }
        let changed = row != self.row(&self.current, job);
        let worth = self.worth(job, State { apart: nodes > 1, changed }, replicas);
        (worth, self.speed(job, nodes > 1, replicas))
    }

    pub(crate) fn row<'m>(&self, matrix: &'m [u16], job: usize) -> &'m [u16] {
        &matrix[job * self.nodes()..(job + 1) * self.nodes()]
    }

    /// What breaks a rule in a matrix, if anything does.
    pub(crate) fn fault(&self, matrix: &[u16]) -> Option<String> {
        let nodes = self.nodes();
        let mut apart_on = vec![0; nodes];
        let mut used = vec![0_u32; self.quotas.len()];
        for (job, row) in matrix.chunks_exact(nodes).enumerate() {
            let Job { min, max, quota, .. } = self.jobs[job];
            let here = || row.iter().enumerate().filter(|(_, cell)| **cell > 0).map(|(node, _)| node);
            let replicas: u16 = row.iter().sum();
            if replicas > 0 && !(min..=max).contains(&replicas) {
                return Some(format!("job {job} has {replicas} replicas, not {min} to {max}"));
            }
            if here().count() > MOST_NODES
                || here().any(|node| self.kind[node] != self.kind[here().next().unwrap_or(0)])
            {
                return Some(format!("job {job} is on too many nodes or kinds"));
            }
            if here().any(|node| row[node] > self.bound[job * nodes + node]) {
                return Some(format!("job {job} has more on a node than it may"));
            }
            if here().count() > 1 {
                here().for_each(|node| apart_on[node] += 1);
            }
            if let Some(quota) = quota {
                used[usize::from(quota)] += u32::from(replicas);
            }
        }
        let held = |node: usize| matrix.iter().skip(node).step_by(nodes).sum::<u16>();
        let over = (0..nodes).find(|&node| held(node) > self.capacity[node] || apart_on[node] > 1);
        let over_quota = used.iter().zip(&self.quotas).any(|(used, quota)| used > quota);
        over.map(|node| format!("node {node} is overfull or shared")).or(over_quota.then(|| "a quota is broken".into()))
    }
}

fn worth(power: f64, speed: f64) -> f64 {
    match power {
        0.0 => speed.max(LEAST).ln(),
        power if power < 0.0 => -(speed + LEAST).powf(power),
        power => (speed + LEAST).powf(power),
    }
}

/// The search as the authors specify it: its crossover, its mutation, its repair, and its two aims.
#[derive(Debug)]
pub(crate) struct Genetic<'a> {
    instance: &'a Instance,
    // Scratch, by node; then by quota.
    free: Vec<i32>,
    fitting: Vec<u32>,
    present: Vec<u32>,
    owner: Vec<u16>,
    order: Vec<u16>,
    left: Vec<u32>,
}

const CROSSOVER: f64 = 0.9;
/// Rows that go back to what the job holds, rows that are thinned out, and cells of those that are emptied.
const MUTATION: f64 = 0.1;

const NOBODY: u16 = u16::MAX;

impl<'a> Genetic<'a> {
    pub(crate) fn new(instance: &'a Instance) -> Genetic<'a> {
        let nodes = instance.nodes();
        Genetic {
            instance,
            free: vec![0; nodes],
            fitting: vec![0; nodes],
            present: vec![0; nodes],
            owner: vec![NOBODY; nodes],
            order: (0..nodes as u16).collect(),
            left: Vec::new(),
        }
    }

    /// Some cells grow into what is free on their nodes: each with a chance of one in those that could, and more so where
    /// the job already is.
    fn grow(&mut self, dice: &mut Dice, genome: &mut [u16]) {
        let Genetic { instance, free, fitting, present, .. } = self;
        let nodes = instance.nodes();
        free.iter_mut().zip(&instance.capacity).for_each(|(free, &capacity)| *free = i32::from(capacity));
        fitting.fill(0);
        present.fill(0);
        for (row, bound) in genome.chunks_exact(nodes).zip(instance.bound.chunks_exact(nodes)) {
            for node in 0..nodes {
                free[node] -= i32::from(row[node]);
                fitting[node] += u32::from(bound[node] > 0);
                present[node] += u32::from(bound[node] > 0 && row[node] > 0);
            }
        }
        for (row, bound) in genome.chunks_exact_mut(nodes).zip(instance.bound.chunks_exact(nodes)) {
            for node in 0..nodes {
                if free[node] <= 0 || row[node] >= bound[node] {
                    continue;
                }
                let one = 1.0 / f64::from(fitting[node]);
                let two = if row[node] > 0 { 1.0 / f64::from(present[node]) } else { 0.0 };
                if dice.chance(one + two - one * two) {
                    row[node] += dice.below(usize::from(bound[node] - row[node]) + 1) as u16;
                }
            }
        }
    }

    /// Truncates a row to what the job may have at most, nodes in random order.
    fn cap(&mut self, dice: &mut Dice, job: usize, row: &mut [u16]) {
        let Instance { jobs, kind, .. } = self.instance;
        let occupied = || row.iter().zip(kind).filter(|(cell, _)| **cell > 0).map(|(_, kind)| *kind);
        let Some(first) = occupied().next() else { return };
        if occupied().any(|other| other != first) {
            let held = |kind: u16| {
                row.iter()
                    .zip(&self.instance.kind)
                    .filter(|(_, other)| **other == kind)
                    .map(|(cell, _)| *cell)
                    .sum::<u16>()
            };
            let majority = occupied().max_by_key(|&kind| (held(kind), std::cmp::Reverse(kind))).unwrap_or(first);
            row.iter_mut().zip(kind).filter(|(_, kind)| **kind != majority).for_each(|(cell, _)| *cell = 0);
        }
        let (replicas, spread) = (row.iter().sum::<u16>(), row.iter().filter(|cell| **cell > 0).count());
        let mut left = jobs[job].max;
        if replicas <= left && spread <= MOST_NODES {
            return;
        }
        dice.shuffle(&mut self.order);
        let mut places = MOST_NODES;
        for &node in &self.order {
            let cell = &mut row[usize::from(node)];
            *cell = if places > 0 { (*cell).min(left) } else { 0 };
            left -= *cell;
            places -= usize::from(*cell > 0);
        }
    }
}

impl Problem for Genetic<'_> {
    fn cells(&self) -> usize {
        self.instance.jobs.len() * self.instance.nodes()
    }

    /// The objective, and the speed-ups for each GPU of the nodes in use; both turned round.
    fn rate(&mut self, genome: &[u16]) -> [f64; 2] {
        let nodes = self.instance.nodes();
        let (mut sum, mut speeds) = (0.0, 0.0);
        self.present.fill(0);
        for (job, row) in genome.chunks_exact(nodes).enumerate() {
            let (worth, speed) = self.instance.worth_of(job, row);
            sum += worth;
            speeds += speed;
            for (present, cell) in self.present.iter_mut().zip(row) {
                *present |= u32::from(*cell);
            }
        }
        let in_use = self.present.iter().zip(&self.instance.capacity).filter(|(present, _)| **present > 0);
        let gpus: u32 = in_use.map(|(_, capacity)| u32::from(*capacity)).sum();
        [-self.instance.mean(sum), -speeds / f64::from(gpus.max(1))]
    }

    fn cross(&mut self, dice: &mut Dice, one: &mut [u16], other: &mut [u16]) {
        if dice.chance(CROSSOVER) {
            let cut = dice.below(self.instance.jobs.len()) * self.instance.nodes();
            one[..cut].swap_with_slice(&mut other[..cut]);
        }
    }

    fn mutate(&mut self, dice: &mut Dice, genome: &mut [u16]) {
        let nodes = self.instance.nodes();
        for (row, current) in genome.chunks_exact_mut(nodes).zip(self.instance.current.chunks_exact(nodes)) {
            if dice.chance(MUTATION) {
                row.copy_from_slice(current);
            }
            if dice.chance(MUTATION) {
                row.iter_mut().filter(|_| dice.chance(MUTATION)).for_each(|cell| *cell = 0);
            }
        }
        self.grow(dice, genome);
    }

    /// In this order: one job on several nodes at each node, what each job may have, what each node has, what each quota
    /// allows, and nothing for whoever then has less than it needs.
    fn repair(&mut self, dice: &mut Dice, genome: &mut [u16]) {
        let instance = self.instance;
        let nodes = instance.nodes();
        self.owner.fill(NOBODY);
        for (job, row) in genome.chunks_exact_mut(nodes).enumerate() {
            if row.iter().filter(|cell| **cell > 0).count() > 1 {
                for (cell, owner) in row.iter_mut().zip(&mut self.owner).filter(|(cell, _)| **cell > 0) {
                    match *owner {
                        NOBODY => *owner = job as u16,
                        _ => *cell = 0,
                    }
                }
            }
            self.cap(dice, job, row);
        }
        for node in 0..nodes {
            self.free[node] = i32::from(instance.capacity[node]);
        }
        self.left.clear();
        self.left.extend_from_slice(&instance.quotas);
        for (job, row) in genome.chunks_exact_mut(nodes).enumerate() {
            let Job { min, quota, .. } = instance.jobs[job];
            let mut replicas = 0;
            for (node, cell) in row.iter_mut().enumerate() {
                *cell = i32::from(*cell).min(self.free[node]) as u16;
                *cell = (*cell).min(instance.bound[job * nodes + node]);
                if let Some(quota) = quota {
                    *cell = u32::from(*cell).min(self.left[usize::from(quota)] - u32::from(replicas)) as u16;
                }
                replicas += *cell;
            }
            if replicas < min {
                row.fill(0);
                continue;
            }
            for (free, cell) in self.free.iter_mut().zip(&*row) {
                *free -= i32::from(*cell);
            }
            if let Some(quota) = quota {
                self.left[usize::from(quota)] -= u32::from(replicas);
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use solver::genetic::{Effort, evolve};

    /// Jobs of all sorts, some of which hold something: gangs, jobs that gain by many GPUs and by few, with quotas or
    /// without.
    pub(crate) fn random(seed: u64, power: f64, jobs: usize, capacity: Vec<u16>, kinds: usize) -> Instance {
        let mut dice = Dice::new(seed);
        let mut share = |most: f64| most * dice.below(1000) as f64 / 1000.0;
        let nodes = capacity.len();
        let gpus: u16 = capacity.iter().sum();
        let quotas = if share(1.0) < 0.3 { vec![u32::from(gpus / 2), 1000] } else { Vec::new() };
        let kind = (0..nodes).map(|node| (node * kinds / nodes) as u16).collect();
        let mut instance = Instance::new(power, capacity.clone(), kind, quotas.clone());
        let mut free = capacity.clone();
        for _ in 0..jobs {
            let max = [1, 2, 4, 8, 16][share(5.0) as usize].min(gpus);
            let (serial, apart) = (share(0.3), share(1.0));
            let together = apart * (0.3 + share(1.0));
            let speed = |exchange: f64| {
                let speed = move |replicas: u16| {
                    let more = f64::from(replicas.saturating_sub(1));
                    0.25 * f64::from(replicas) / (1.0 + serial * more.sqrt() + if more > 0.0 { exchange } else { 0.0 })
                };
                (0..=max).map(speed).collect::<Vec<f64>>()
            };
            let mut current = vec![0; nodes];
            let node = share(nodes as f64) as usize;
            if share(1.0) < 0.6 {
                current[node] = max.min(free[node]);
                free[node] -= current[node];
            }
            instance.add(&Wish {
                min: if share(1.0) < 0.15 { max.min(4) } else { 1 },
                quota: (!quotas.is_empty()).then(|| share(2.0) as u16),
                together: &speed(together),
                apart: &speed(apart),
                restarted: 0.3 + share(0.7),
                bound: &capacity,
                current: &current,
            });
        }
        instance
    }

    /// Two jobs on two nodes of two: speed-ups of half a GPU each, a restart leaves half.
    fn small(power: f64) -> Instance {
        let mut instance = Instance::new(power, vec![2, 2], vec![0, 0], Vec::new());
        let speeds = [0.0, 0.5, 1.0];
        for current in [[2, 0], [0, 0]] {
            let (together, apart, bound) = (&speeds, &speeds, &[2, 2]);
            let restarted = 0.5;
            instance.add(&Wish { min: 1, quota: None, together, apart, restarted, bound, current: &current });
        }
        instance
    }

    #[test]
    fn the_objective_is_a_power_mean_of_discounted_speed_ups() {
        // Kept: 1; started: half of 1.
        let near = |power: f64, matrix: [u16; 4], expected: f64| {
            let found = small(power).objective(&matrix);
            assert!((found - expected).abs() < 2e-3, "{found}, not {expected}, with p = {power}");
        };
        near(1.0, [2, 0, 0, 2], 0.75);
        near(-1.0, [2, 0, 0, 2], 2.0 / (1.0 + 2.0));
        near(0.0, [2, 0, 0, 2], 0.5_f64.sqrt());
        near(1.0, [0, 2, 2, 0], 0.5);
    }

    #[test]
    fn what_breaks_a_rule_is_named() {
        let fault = |matrix: [u16; 4]| small(-1.0).fault(&matrix);
        assert_eq!(fault([2, 0, 0, 2]), None);
        assert_eq!(fault([2, 1, 0, 1]).as_deref(), Some("job 0 has 3 replicas, not 1 to 2"));
        assert_eq!(fault([2, 0, 1, 0]).as_deref(), Some("node 0 is overfull or shared"));
        assert_eq!(fault([1, 1, 1, 1]).as_deref(), Some("node 0 is overfull or shared"));
    }

    #[test]
    fn whatever_is_bred_is_lawful_after_repair() {
        for seed in 0..200 {
            let instance = random(seed, -1.0, 12, vec![4, 4, 8, 2, 1], 2);
            let mut dice = Dice::new(seed);
            let mut genome: Vec<u16> = (0..60).map(|_| dice.below(9) as u16 * dice.below(2) as u16).collect();
            let mut genetic = Genetic::new(&instance);
            genetic.repair(&mut dice, &mut genome);
            assert_eq!(instance.fault(&genome), None, "seed {seed}");
            genetic.mutate(&mut dice, &mut genome);
            genetic.repair(&mut dice, &mut genome);
            assert_eq!(instance.fault(&genome), None, "seed {seed}, after a mutation");
        }
    }

    #[test]
    fn a_second_job_on_several_nodes_gives_way_where_it_meets_the_first() {
        let instance = small(-1.0);
        let mut genome = [1, 1, 1, 1];
        Genetic::new(&instance).repair(&mut Dice::new(1), &mut genome);
        assert_eq!(genome, [1, 1, 0, 0]);
    }

    #[test]
    fn breeding_gains() {
        for seed in 0..5 {
            let instance = random(seed, -1.0, 10, vec![4; 6], 1);
            let search = |generations| {
                let effort = Effort { population: 40, generations };
                let front = evolve(&mut Genetic::new(&instance), &[vec![0; 60]], effort, &mut Dice::new(seed));
                instance.objective(&front.genomes[0])
            };
            assert!(search(30) > search(3), "seed {seed}");
        }
    }
}
