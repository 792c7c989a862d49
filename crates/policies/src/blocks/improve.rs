//! A fast search over the same matrices that the genetic one goes through: build one up by what each GPU gains, then
//! better it step by step until neither one job nor two together can be moved to advantage, and shake it now and then.
//!
//! It is fast because the worth of a row depends on its replicas, on whether they are on one node, and on whether the job
//! has to be restarted, and on nothing else: three look-ups, and nodes with as much free are alike.

use solver::genetic::Dice;

use crate::blocks::matrix::{Instance, MOST_NODES, State};

/// How much may be tried, as counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Effort {
    /// Pairs of jobs whose rows are chosen anew together, each time that a matrix is settled.
    pub(crate) pairs: usize,
    /// How often what some jobs have is given out anew, for each job; and at most over all.
    pub(crate) shakes_each: usize,
    pub(crate) shakes: usize,
}

/// The best matrix found.
pub(crate) fn improve(instance: &Instance, effort: Effort, dice: &mut Dice) -> Vec<u16> {
    let mut kept = Board::new(instance);
    kept.keep_current();
    kept.build_up();
    kept.settle(effort, dice);
    let mut built = Board::new(instance);
    built.build_up();
    built.settle(effort, dice);
    let mut board = if built.sum() > kept.sum() { built } else { kept };
    let (mut best, mut most) = (board.matrix.clone(), board.sum());
    let shakes = effort.shakes.min(effort.shakes_each * instance.jobs.len());
    let each = shakes.div_ceil(ROUNDS).max(1);
    for shake in 0..shakes {
        if shake > 0 && shake.is_multiple_of(each) {
            board.adopt(&best);
        }
        // Losses are put up with on the way, and less so towards the end of each round.
        let patience = 1.0 - (shake % each) as f64 / each as f64;
        board.shake(PATIENCE * patience * most.abs(), dice);
        if board.sum() > most + NOTHING {
            (best, most) = (board.matrix.clone(), board.sum());
        }
    }
    board.adopt(&best);
    board.settle(effort, dice);
    board.matrix
}

/// A lawful matrix in the making.
#[derive(Debug, Clone)]
struct Board<'a> {
    instance: &'a Instance,
    nodes: usize,
    matrix: Vec<u16>,
    /// What each job adds to the sum.
    worth: Vec<f64>,
    replicas: Vec<u16>,
    free: Vec<u16>,
    /// The job on several nodes that is on each node.
    owner: Vec<u16>,
    left: Vec<u32>,
    /// What those who have nothing hold now on each node, and would like to keep.
    wanted: Vec<u16>,
    /// The most that each job could add.
    most: Vec<f64>,
    /// What each job holds now: its worth if kept, and its replicas.
    held: Vec<(f64, u16)>,
    /// By job and the most replicas there could be: the worth and the number that is best on one node, and on several. 0
    /// if none is.
    best_together: Vec<(f64, u16)>,
    best_apart: Vec<(f64, u16)>,
    begins: Vec<usize>,
    kinds: u16,
    scratch: Scratch,
}

/// Kept from call to call, so that nothing is allocated on the way.
#[derive(Debug, Clone, Default)]
struct Scratch {
    /// Free GPUs and node.
    open: Vec<(u16, u16)>,
    seen: Vec<(u16, u16, bool, u16)>,
    choices: Vec<(f64, Choice)>,
    rows: Vec<u16>,
    jobs: Vec<u16>,
    /// All jobs, in some order.
    order: Vec<u16>,
    changed: Vec<usize>,
    matrix: Vec<u16>,
}

/// What a job could be given, as far as it is worth telling apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    Nothing,
    /// What it holds.
    Keep,
    Together {
        node: u16,
        replicas: u16,
    },
    Apart {
        kind: u16,
        replicas: u16,
        /// The emptiest nodes first, or the fullest.
        emptiest: bool,
    },
}

/// New rows for two jobs, and what they gain.
#[derive(Debug, Clone, Copy)]
struct Exchange {
    first: usize,
    second: usize,
    choices: (Choice, Choice),
    gain: f64,
}

const NOBODY: u16 = u16::MAX;
/// Up to so many replicas are also laid out over what others leave over.
const FRAGMENTS: u16 = 8;
/// How often the shakes begin anew with the best so far.
const ROUNDS: usize = 3;
/// The share of the sum that may be lost by a shake at first.
const PATIENCE: f64 = 0.03;
/// Gains that are less than this are no gains.
const NOTHING: f64 = 1e-12;

const RESTARTED: State = State { apart: false, changed: true };
const RESTARTED_APART: State = State { apart: true, changed: true };

impl<'a> Board<'a> {
    fn new(instance: &'a Instance) -> Board<'a> {
        let (jobs, nodes) = (instance.jobs.len(), instance.nodes());
        let mut board = Board {
            instance,
            nodes,
            matrix: vec![0; jobs * nodes],
            worth: (0..jobs).map(|job| instance.worth(job, RESTARTED, 0)).collect(),
            replicas: vec![0; jobs],
            free: instance.capacity.clone(),
            owner: vec![NOBODY; nodes],
            left: instance.quotas.clone(),
            wanted: vec![0; nodes],
            most: Vec::with_capacity(jobs),
            held: Vec::with_capacity(jobs),
            best_together: Vec::new(),
            best_apart: Vec::new(),
            begins: Vec::with_capacity(jobs),
            kinds: instance.kind.iter().max().map_or(0, |kind| kind + 1),
            scratch: Scratch::default(),
        };
        for job in 0..jobs {
            board.tabulate(job);
            for node in 0..nodes {
                board.wanted[node] += instance.current[job * nodes + node];
            }
        }
        board
    }

    /// Which number of replicas is best, for every number that there could be.
    fn tabulate(&mut self, job: usize) {
        let instance = self.instance;
        let (min, max) = (instance.jobs[job].min, instance.jobs[job].max);
        self.begins.push(self.best_together.len());
        for (state, table) in [(RESTARTED, &mut self.best_together), (RESTARTED_APART, &mut self.best_apart)] {
            let mut best = (instance.worth(job, state, 0) + NOTHING, 0);
            for replicas in 0..=max {
                let enough = replicas >= min && (!state.apart || replicas > 1);
                let worth = instance.worth(job, state, replicas);
                if enough && worth > best.0 {
                    best = (worth, replicas);
                }
                table.push(best);
            }
        }
        let states = [false, true].map(|apart| State { apart, changed: false });
        let all =
            states.into_iter().flat_map(|state| (0..=max).map(move |replicas| instance.worth(job, state, replicas)));
        self.most.push(all.fold(f64::NEG_INFINITY, f64::max));
        let row = &instance.current[job * self.nodes..(job + 1) * self.nodes];
        let (replicas, spread) = (row.iter().sum(), row.iter().filter(|cell| **cell > 0).count());
        let state = State { apart: spread > 1, changed: false };
        self.held.push(if replicas > max {
            (f64::NEG_INFINITY, 0)
        } else {
            (instance.worth(job, state, replicas), replicas)
        });
    }

    fn sum(&self) -> f64 {
        self.worth.iter().sum()
    }

    fn cells(&self, job: usize) -> std::ops::Range<usize> {
        job * self.nodes..(job + 1) * self.nodes
    }

    /// Everyone holds what it holds now, where that is still allowed.
    fn keep_current(&mut self) {
        for job in 0..self.instance.jobs.len() {
            if self.can_keep(job) {
                self.put(job, Choice::Keep);
            }
        }
    }

    /// Everyone has what a lawful matrix says.
    fn adopt(&mut self, matrix: &[u16]) {
        let differs = |board: &Board<'_>, job: usize| board.matrix[board.cells(job)] != matrix[board.cells(job)];
        let mut changed = std::mem::take(&mut self.scratch.changed);
        changed.clear();
        changed.extend((0..self.instance.jobs.len()).filter(|&job| differs(self, job)));
        changed.iter().for_each(|&job| self.take(job));
        for &job in &changed {
            let cells = self.cells(job);
            self.restore(job, &matrix[cells]);
        }
        self.scratch.changed = changed;
    }

    /// The most replicas a job may have more.
    fn allowed(&self, job: usize) -> u16 {
        let wish = self.instance.jobs[job];
        match wish.quota {
            Some(quota) => u32::from(wish.max).min(self.left[usize::from(quota)]) as u16,
            None => wish.max,
        }
    }

    /// Whether a job that has nothing could have what it holds now.
    fn can_keep(&self, job: usize) -> bool {
        let cells = self.cells(job);
        let (row, bound) = (&self.instance.current[cells.clone()], &self.instance.bound[cells]);
        let (mut replicas, mut spread) = (0, 0);
        let mut owned = false;
        for node in 0..self.nodes {
            if row[node] > 0 {
                if row[node] > self.free[node] || row[node] > bound[node] {
                    return false;
                }
                replicas += row[node];
                spread += 1;
                owned |= self.owner[node] != NOBODY;
            }
        }
        let least = self.instance.jobs[job].min;
        replicas >= least && replicas <= self.allowed(job) && spread <= MOST_NODES && !(owned && spread > 1)
    }

    /// Takes everything from a job.
    fn take(&mut self, job: usize) {
        if self.replicas[job] == 0 {
            return;
        }
        let begin = job * self.nodes;
        for node in 0..self.nodes {
            let cell = std::mem::take(&mut self.matrix[begin + node]);
            self.free[node] += cell;
            self.wanted[node] += self.instance.current[begin + node];
            if self.owner[node] == job as u16 {
                self.owner[node] = NOBODY;
            }
        }
        if let Some(quota) = self.instance.jobs[job].quota {
            self.left[usize::from(quota)] += u32::from(self.replicas[job]);
        }
        self.replicas[job] = 0;
        self.worth[job] = self.instance.worth(job, RESTARTED, 0);
    }

    /// Gives a job that has nothing what was chosen for it.
    fn put(&mut self, job: usize, choice: Choice) {
        let begin = job * self.nodes;
        match choice {
            Choice::Nothing => return,
            Choice::Keep => {
                let cells = self.cells(job);
                self.matrix[cells.clone()].copy_from_slice(&self.instance.current[cells]);
            }
            Choice::Together { node, replicas } => self.matrix[begin + usize::from(node)] = replicas,
            Choice::Apart { kind, replicas, emptiest } => self.lay_out(job, kind, replicas, emptiest),
        }
        self.settle_row(job);
    }

    /// Brings everything in line with a row that was written into the matrix.
    fn settle_row(&mut self, job: usize) {
        let cells = self.cells(job);
        if self.matrix[cells.clone()].iter().all(|cell| *cell == 0) {
            return;
        }
        let row = &self.matrix[cells.clone()];
        let (replicas, spread): (u16, usize) = (row.iter().sum(), row.iter().filter(|cell| **cell > 0).count());
        let changed = row != &self.instance.current[cells];
        for node in 0..self.nodes {
            let cell = self.matrix[job * self.nodes + node];
            self.free[node] -= cell;
            self.wanted[node] -= self.instance.current[job * self.nodes + node];
            if cell > 0 && spread > 1 {
                self.owner[node] = job as u16;
            }
        }
        if let Some(quota) = self.instance.jobs[job].quota {
            self.left[usize::from(quota)] -= u32::from(replicas);
        }
        self.replicas[job] = replicas;
        self.worth[job] = self.instance.worth(job, State { apart: spread > 1, changed }, replicas);
    }

    /// The nodes of a kind on which a part of a job on several nodes could be, the fullest first.
    fn open_nodes(&mut self, job: usize, kind: u16) {
        let bound = &self.instance.bound[job * self.nodes..];
        self.scratch.open.clear();
        for (node, (&free, &bound)) in self.free.iter().zip(bound).enumerate() {
            let most = free.min(bound);
            if most > 0 && self.owner[node] == NOBODY && self.instance.kind[node] == kind {
                self.scratch.open.push((most, node as u16));
            }
        }
        self.scratch.open.sort_unstable();
    }

    /// Spreads replicas over at least two nodes of a kind. Those with most room first and the rest where it fits best, or
    /// those with least room first.
    fn lay_out(&mut self, job: usize, kind: u16, replicas: u16, emptiest: bool) {
        self.open_nodes(job, kind);
        let open = &mut self.scratch.open;
        let row = &mut self.matrix[job * self.nodes..(job + 1) * self.nodes];
        let mut left = replicas;
        let mut used = 0;
        if !emptiest {
            // The fullest nodes, but so that the job does not need more of them than it may.
            let mut begin = 0;
            let room = |begin: usize| open[begin..].iter().take(MOST_NODES).map(|(most, _)| *most).sum::<u16>();
            while open.len() - begin > 2 && open.len() - begin > MOST_NODES && room(begin) < replicas {
                begin += 1;
            }
            for (most, node) in &open[begin..] {
                let here = (*most).min(left).min(if used == 0 { replicas - 1 } else { left });
                row[usize::from(*node)] = here;
                left -= here;
                used += 1;
                if left == 0 {
                    return;
                }
            }
            assert_eq!(left, 0, "the room was measured before");
            return;
        }
        while left > 0 {
            let exact = open.partition_point(|(most, _)| *most < left);
            // The tightest node that takes all that is left, if that does not make it the only one.
            let at = if used > 0 && exact < open.len() { exact } else { open.len() - 1 };
            let (most, node) = open.remove(at);
            let here = most.min(left).min(if used == 0 { replicas - 1 } else { left });
            row[usize::from(node)] = here;
            left -= here;
            used += 1;
        }
    }

    /// The most replicas a job could have on several nodes of a kind; 0 if there is only one.
    fn room_apart(&mut self, job: usize, kind: u16) -> u16 {
        let bound = &self.instance.bound[job * self.nodes..(job + 1) * self.nodes];
        let (mut most, mut count) = (0, 0);
        for (node, (&free, &bound)) in self.free.iter().zip(bound).enumerate() {
            let here = free.min(bound);
            if here > 0 && self.owner[node] == NOBODY && self.instance.kind[node] == kind {
                most += u32::from(here);
                count += 1;
            }
        }
        if count > MOST_NODES {
            self.open_nodes(job, kind);
            most = self.scratch.open.iter().rev().take(MOST_NODES).map(|(most, _)| u32::from(*most)).sum();
        }
        if count < 2 { 0 } else { most.min(u32::from(self.allowed(job))) as u16 }
    }

    /// What would be left over on a node; the less the better, but least of all what others would like to keep.
    fn over(&self, node: usize, replicas: u16) -> u16 {
        let left = self.free[node] - replicas;
        if left < self.wanted[node] { 1000 + self.wanted[node] - left } else { left }
    }

    /// The best that a job which has nothing could be given. Of equals the one that fits tightest.
    fn best(&mut self, job: usize) -> (f64, Choice) {
        let mut best = (self.worth[job], Choice::Nothing);
        let (kept, held) = self.held[job];
        if held > 0 && kept > best.0 + NOTHING && self.can_keep(job) {
            best = (kept, Choice::Keep);
        }
        let (allowed, table) = (self.allowed(job), self.begins[job]);
        let mut tightest = u16::MAX;
        for node in 0..self.nodes {
            let most = self.free[node].min(self.instance.bound[job * self.nodes + node]).min(allowed);
            let (worth, replicas) = self.best_together[table + usize::from(most)];
            if replicas == 0 || worth < best.0 - NOTHING {
                continue;
            }
            let over = self.over(node, replicas);
            if worth > best.0 + NOTHING || (over < tightest && worth > best.0 - NOTHING && best.1 != Choice::Keep) {
                tightest = over;
                best = (worth, Choice::Together { node: node as u16, replicas });
            }
        }
        for kind in 0..self.kinds {
            if self.best_apart[table + usize::from(allowed)].0 <= best.0 + NOTHING {
                break;
            }
            let most = self.room_apart(job, kind);
            let (worth, replicas) = self.best_apart[table + usize::from(most)];
            if replicas > 0 && worth > best.0 + NOTHING {
                best = (worth, Choice::Apart { kind, replicas, emptiest: true });
            }
        }
        best
    }

    /// Gives more to those in the list as long as anyone gains, always the step that gains most for each GPU.
    fn grow(&mut self, jobs: &[u16], dice: Option<&mut Dice>) {
        let mut leanings = [1.0; 8];
        if let Some(dice) = dice {
            leanings = leanings.map(|_| 0.6 + 0.8 * dice.below(1000) as f64 / 1000.0);
        }
        loop {
            let mut best: Option<(f64, usize, Choice)> = None;
            for &job in jobs {
                if let Some((gain, choice)) = self.step(usize::from(job)) {
                    let gain = gain * leanings[usize::from(job) % leanings.len()];
                    if best.is_none_or(|(most, ..)| gain > most) {
                        best = Some((gain, usize::from(job), choice));
                    }
                }
            }
            let Some((_, job, choice)) = best else { return };
            self.take(job);
            self.put(job, choice);
        }
    }

    /// The step up that gains the job most for each GPU.
    fn step(&mut self, job: usize) -> Option<(f64, Choice)> {
        let (before, had) = (self.worth[job], self.replicas[job]);
        let cells = self.cells(job);
        let mut row = std::mem::take(&mut self.scratch.rows);
        row.clear();
        row.extend_from_slice(&self.matrix[cells.clone()]);
        self.take(job);
        let mut best: Option<(f64, Choice)> = None;
        let mut consider = |worth: f64, replicas: u16, choice: Choice| {
            let gain = (worth - before) / f64::from(replicas.max(had + 1) - had);
            if worth > before + NOTHING && replicas > had && best.is_none_or(|(most, _)| gain > most) {
                best = Some((gain, choice));
            }
        };
        let (kept, held) = self.held[job];
        if held > had && self.can_keep(job) {
            consider(kept, held, Choice::Keep);
        }
        let (allowed, min) = (self.allowed(job), self.instance.jobs[job].min);
        let roomiest = (0..self.nodes).map(|node| self.free[node].min(self.instance.bound[job * self.nodes + node]));
        let roomiest = roomiest.max().unwrap_or(0).min(allowed);
        for replicas in min.max(had + 1)..=roomiest {
            let tightest = (0..self.nodes)
                .filter(|&node| self.free[node].min(self.instance.bound[job * self.nodes + node]) >= replicas)
                .min_by_key(|&node| (row[node] == 0, self.over(node, replicas)));
            let node = tightest.expect("one node has the room") as u16;
            consider(self.instance.worth(job, RESTARTED, replicas), replicas, Choice::Together { node, replicas });
        }
        for kind in 0..self.kinds {
            let most = self.room_apart(job, kind);
            for replicas in min.max(had + 1).max(2)..=most {
                let worth = self.instance.worth(job, RESTARTED_APART, replicas);
                consider(worth, replicas, Choice::Apart { kind, replicas, emptiest: true });
            }
        }
        self.restore(job, &row);
        self.scratch.rows = row;
        best
    }

    /// Whether a job holds something and would have to be restarted.
    fn is_moved(&self, job: usize) -> bool {
        self.held[job].1 > 0 && self.matrix[self.cells(job)] != self.instance.current[self.cells(job)]
    }

    /// A job, and all that lie where it is now and do not belong there.
    fn intruders(&self, job: usize, jobs: &mut Vec<u16>) {
        jobs.push(job as u16);
        for node in (0..self.nodes).filter(|&node| self.instance.current[job * self.nodes + node] > 0) {
            let strange = |other: usize| {
                let new = self.held[other].1 == 0 || self.is_moved(other);
                new && self.matrix[other * self.nodes + node] > 0
            };
            jobs.extend((0..self.instance.jobs.len()).filter(|&other| strange(other)).map(|other| other as u16));
        }
    }

    /// Writes back a row that the job had before.
    fn restore(&mut self, job: usize, row: &[u16]) {
        let cells = self.cells(job);
        self.matrix[cells].copy_from_slice(row);
        self.settle_row(job);
    }

    fn build_up(&mut self) {
        let jobs: Vec<u16> = (0..self.instance.jobs.len() as u16).collect();
        self.grow(&jobs, None);
    }

    /// Betters rows two at a time, each job with the partner with whom it gains most, until nobody gains or as much was
    /// tried as may be.
    fn settle(&mut self, effort: Effort, dice: &mut Dice) {
        let jobs = self.instance.jobs.len();
        if jobs == 1 {
            self.better_one(0);
            return;
        }
        let mut order = std::mem::take(&mut self.scratch.order);
        order.clear();
        order.extend(0..jobs as u16);
        dice.shuffle(&mut order);
        // Those who have nothing first: nothing else gains as much.
        order.sort_by_key(|&job| self.replicas[usize::from(job)] > 0);
        let (mut tried, mut idle) = (0, 0);
        for &job in order.iter().cycle() {
            if tried >= effort.pairs || idle >= jobs {
                break;
            }
            tried += jobs - 1;
            idle = if self.better_with_one_of(usize::from(job), &order) { 0 } else { idle + 1 };
        }
        self.scratch.order = order;
        self.align();
    }

    /// Nodes of a kind that are as large are alike: swaps them so that as many jobs as possible have what they hold.
    fn align(&mut self) {
        let mut gained = true;
        while gained {
            gained = false;
            for one in 0..self.nodes {
                for other in one + 1..self.nodes {
                    gained |= self.are_alike(one, other) && self.swap_if_better(one, other);
                }
            }
        }
    }

    fn are_alike(&self, one: usize, other: usize) -> bool {
        let Instance { capacity, kind, .. } = self.instance;
        capacity[one] == capacity[other] && kind[one] == kind[other]
    }

    /// Swaps two nodes if the sum grows by it, or if it stays and more of what jobs hold now stays where it is.
    fn swap_if_better(&mut self, one: usize, other: usize) -> bool {
        let (mut gain, mut stays) = (0.0, 0);
        for job in 0..self.instance.jobs.len() {
            let cells = self.cells(job);
            let (row, held) = (&self.matrix[cells.clone()], &self.instance.current[cells.clone()]);
            if row[one] == row[other] {
                continue;
            }
            let bound = &self.instance.bound[cells];
            if row[one] > bound[other] || row[other] > bound[one] {
                return false;
            }
            let same = |from: usize, to: usize| i32::from(row[from].min(held[to]));
            stays += same(one, other) + same(other, one) - same(one, one) - same(other, other);
            let elsewhere =
                || (0..self.nodes).filter(|&node| node != one && node != other).all(|node| row[node] == held[node]);
            let was = row[one] == held[one] && row[other] == held[other] && elsewhere();
            let will = row[one] == held[other] && row[other] == held[one] && elsewhere();
            if was != will {
                let apart = row.iter().filter(|cell| **cell > 0).count() > 1;
                let worth = self.instance.worth(job, State { apart, changed: !will }, self.replicas[job]);
                gain += worth - self.worth[job];
            }
        }
        if gain < NOTHING && (gain < -NOTHING || stays <= 0) {
            return false;
        }
        for job in 0..self.instance.jobs.len() {
            let begin = job * self.nodes;
            self.matrix.swap(begin + one, begin + other);
            let cells = self.cells(job);
            let row = &self.matrix[cells.clone()];
            if row[one] != row[other] {
                let apart = row.iter().filter(|cell| **cell > 0).count() > 1;
                let changed = row != &self.instance.current[cells];
                self.worth[job] = self.instance.worth(job, State { apart, changed }, self.replicas[job]);
            }
        }
        self.free.swap(one, other);
        self.owner.swap(one, other);
        true
    }

    fn better_with_one_of(&mut self, job: usize, partners: &[u16]) -> bool {
        let mut best: Option<Exchange> = None;
        for other in partners.iter().map(|&other| usize::from(other)).filter(|&other| other != job) {
            for (first, second) in [(job, other), (other, job)] {
                let least = best.map_or(NOTHING, |best| best.gain);
                best = self.exchange(first, second, least).or(best);
            }
        }
        let Some(Exchange { first, second, choices, .. }) = best else { return false };
        self.take(first);
        self.take(second);
        self.put(first, choices.0);
        self.put(second, choices.1);
        true
    }

    fn better_one(&mut self, job: usize) -> bool {
        let before = self.worth[job];
        let row = self.matrix[self.cells(job)].to_vec();
        self.take(job);
        let (worth, choice) = self.best(job);
        match worth > before + NOTHING {
            true => self.put(job, choice),
            false => self.restore(job, &row),
        }
        worth > before + NOTHING
    }

    /// The best rows for two jobs together, if they gain more than this: everything for the first is tried, and for the
    /// second the best that is left.
    fn exchange(&mut self, first: usize, second: usize, least: f64) -> Option<Exchange> {
        let before = self.worth[first] + self.worth[second];
        if self.most[first] + self.most[second] <= before + least {
            return None;
        }
        let mut rows = std::mem::take(&mut self.scratch.rows);
        rows.clear();
        rows.extend_from_slice(&self.matrix[self.cells(first)]);
        rows.extend_from_slice(&self.matrix[self.cells(second)]);
        self.take(first);
        self.take(second);
        let mut choices = std::mem::take(&mut self.scratch.choices);
        self.choices(first, second, &mut choices);
        let mut best = before + least;
        let mut chosen = None;
        for &(worth, choice) in &choices {
            if worth + self.most[second] <= best {
                continue;
            }
            let (worth, (rest, other)) = self.best_beside(first, worth, choice, second);
            if worth + rest > best {
                best = worth + rest;
                chosen = Some(Exchange { first, second, choices: (choice, other), gain: best - before });
            }
        }
        self.restore(first, &rows[..self.nodes]);
        self.restore(second, &rows[self.nodes..]);
        self.scratch.rows = rows;
        self.scratch.choices = choices;
        chosen
    }

    /// The worth of a choice for the first job, and the best for the second beside it.
    fn best_beside(&mut self, first: usize, worth: f64, choice: Choice, second: usize) -> (f64, (f64, Choice)) {
        let quota = self.instance.jobs[first].quota.map(usize::from);
        match choice {
            Choice::Nothing => (worth, self.best(second)),
            // By far the most of all choices, and nothing but a node and a quota are touched.
            Choice::Together { node, replicas } => {
                self.free[usize::from(node)] -= replicas;
                quota.iter().for_each(|&quota| self.left[quota] -= u32::from(replicas));
                let best = self.best(second);
                self.free[usize::from(node)] += replicas;
                quota.iter().for_each(|&quota| self.left[quota] += u32::from(replicas));
                (worth, best)
            }
            Choice::Keep | Choice::Apart { .. } => {
                self.put(first, choice);
                let found = (self.worth[first], self.best(second));
                self.take(first);
                found
            }
        }
    }

    /// Everything that a job which has nothing could be given, with its worth. Nodes count as alike if they have as much
    /// free, both or neither host a job on several nodes, and the other job holds as much there.
    fn choices(&mut self, job: usize, other: usize, choices: &mut Vec<(f64, Choice)>) {
        choices.clear();
        choices.push((self.worth[job], Choice::Nothing));
        let (kept, held) = self.held[job];
        if held > 0 && self.can_keep(job) {
            choices.push((kept, Choice::Keep));
        }
        let (allowed, min) = (self.allowed(job), self.instance.jobs[job].min);
        let mut seen = std::mem::take(&mut self.scratch.seen);
        seen.clear();
        for node in 0..self.nodes {
            let most = self.free[node].min(self.instance.bound[job * self.nodes + node]).min(allowed);
            let look = (
                most,
                self.instance.kind[node],
                self.owner[node] == NOBODY,
                self.instance.current[other * self.nodes + node],
            );
            if most < min || seen.contains(&look) {
                continue;
            }
            seen.push(look);
            for replicas in min..=most {
                let worth = self.instance.worth(job, RESTARTED, replicas);
                choices.push((worth, Choice::Together { node: node as u16, replicas }));
            }
        }
        self.scratch.seen = seen;
        for kind in 0..self.kinds {
            let most = self.room_apart(job, kind);
            for replicas in min.max(2)..=most {
                let worth = self.instance.worth(job, RESTARTED_APART, replicas);
                choices.push((worth, Choice::Apart { kind, replicas, emptiest: true }));
                if replicas <= FRAGMENTS {
                    choices.push((worth, Choice::Apart { kind, replicas, emptiest: false }));
                }
            }
        }
    }

    /// Takes what some jobs have, gives it out anew, and goes back if that lost more than may be lost.
    fn shake(&mut self, may_lose: f64, dice: &mut Dice) {
        let mut jobs = std::mem::take(&mut self.scratch.jobs);
        jobs.clear();
        let all = self.instance.jobs.len();
        let from = dice.below(all);
        let moved = (0..all).map(|next| (from + next) % all).find(|&job| self.is_moved(job));
        let back = moved.filter(|_| dice.below(2) == 0);
        match back {
            Some(job) => self.intruders(job, &mut jobs),
            None => {
                for _ in 0..1 + dice.below(3) {
                    let node = dice.below(self.nodes);
                    jobs.extend((0..all as u16).filter(|&job| self.matrix[usize::from(job) * self.nodes + node] > 0));
                }
                jobs.extend((0..dice.below(3)).map(|_| dice.below(all) as u16));
            }
        }
        jobs.sort_unstable();
        jobs.dedup();
        let before = self.sum();
        let mut matrix = std::mem::take(&mut self.scratch.matrix);
        matrix.clone_from(&self.matrix);
        jobs.iter().for_each(|&job| self.take(usize::from(job)));
        if let Some(job) = back.filter(|&job| self.can_keep(job)) {
            self.put(job, Choice::Keep);
        }
        self.grow(&jobs, Some(dice));
        for (position, &job) in jobs.iter().enumerate() {
            self.better_with_one_of(usize::from(job), &jobs[position + 1..]);
        }
        if self.sum() < before - may_lose {
            self.adopt(&matrix);
        } else if self.matrix != matrix {
            // What they now lack, others may have.
            let everyone = std::mem::take(&mut self.scratch.order);
            for &job in &jobs {
                self.better_with_one_of(usize::from(job), &everyone);
            }
            self.scratch.order = everyone;
        }
        self.scratch.matrix = matrix;
        self.scratch.jobs = jobs;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::matrix::tests::random;

    const EFFORT: Effort = Effort { pairs: 1000, shakes_each: 6, shakes: 160 };

    /// The best objective of all lawful matrices.
    fn exhaustive(instance: &Instance) -> f64 {
        let nodes = instance.nodes();
        let mut matrix = vec![0; nodes * instance.jobs.len()];
        let mut best = f64::NEG_INFINITY;
        loop {
            if instance.fault(&matrix).is_none() {
                best = best.max(instance.objective(&matrix));
            }
            // Counts up, a digit for each cell.
            let full = |cell: usize, value: u16| value == instance.capacity[cell % nodes];
            let Some(next) = matrix.iter().enumerate().position(|(cell, &value)| !full(cell, value)) else {
                return best;
            };
            matrix[next] += 1;
            matrix[..next].fill(0);
        }
    }

    #[test]
    fn on_small_instances_it_finds_what_an_exhaustive_search_finds() {
        for seed in 0..120 {
            let mut dice = Dice::new(seed);
            let (jobs, nodes) = (1 + dice.below(3), 1 + dice.below(2));
            let gpus = if jobs * nodes == 6 { 1 + dice.below(3) } else { 1 + dice.below(4) };
            let power = [-1.0, -1.0, -10.0, 1.0, 0.0][dice.below(5)];
            let instance = random(seed, power, jobs, vec![gpus as u16; nodes], 1 + dice.below(nodes));
            let matrix = improve(&instance, EFFORT, &mut dice);
            assert_eq!(instance.fault(&matrix), None, "seed {seed}");
            let (found, best) = (instance.objective(&matrix), exhaustive(&instance));
            assert!(found >= best - 1e-9 * best.abs(), "seed {seed}: {found} is below {best} with {matrix:?}");
        }
    }

    #[test]
    fn it_keeps_to_the_rules_on_nodes_of_several_sizes_and_kinds() {
        for seed in 0..30 {
            let instance = random(seed, -1.0, 25, vec![4, 4, 4, 8, 8, 2, 2, 1], 3);
            let matrix = improve(&instance, EFFORT, &mut Dice::new(seed));
            assert_eq!(instance.fault(&matrix), None, "seed {seed}");
        }
    }

    #[test]
    fn the_same_seed_finds_the_same() {
        let instance = random(5, -1.0, 20, vec![4; 8], 1);
        let found = |seed| improve(&instance, EFFORT, &mut Dice::new(seed));
        assert_eq!(found(3), found(3));
    }
}
