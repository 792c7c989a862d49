//! The method, phase by phase: drop what is dominated, find the prices at which the bound is least, repair what
//! everyone would take at them, and search what the prices leave open.

mod core;
mod dual;
mod exchange;
mod ledger;
mod master;
mod quota;
mod reduce;
mod repair;
mod search;
mod selection;
mod view;

use self::ledger::Ledger;
use self::reduce::{NOTHING, Reduced};
use self::search::Limits;
use self::selection::Selection;
use self::view::View;
use crate::{Certificate, Effort, PRICE_UNIT, Program, Proof, Solution, Warm, Work};

/// See [`crate::solve`].
pub(crate) fn solve(program: &Program, effort: Effort, warm: &Warm) -> Solution {
    if let Err(flaw) = program.check() {
        panic!("cannot solve a program with a flaw: {flaw}");
    }
    let reduced = Reduced::of(program);
    let mut round = Round::new(&reduced, effort);
    let mut view = round.price(warm);
    round.keep_quotas_inside(&mut view);
    round.break_ties();
    round.search();
    round.conclude(program)
}

/// What is known so far about one program.
struct Round<'a> {
    effort: Effort,
    /// At these prices the search works; quotas are priced.
    ledger: Ledger<'a>,
    /// B at the ledger's prices, in the price unit.
    searchable: i128,
    /// At these prices the published bound is least.
    published: Ledger<'a>,
    inside: Vec<bool>,
    price_bound: i64,
    bound: i64,
    best: Selection,
    work: Work,
}

impl<'a> Round<'a> {
    fn new(reduced: &'a Reduced, effort: Effort) -> Self {
        let ledger = Ledger::new(reduced, &vec![0.0; reduced.capacities.len()], &vec![0.0; reduced.quotas.len()]);
        Self {
            effort,
            published: ledger.clone(),
            ledger,
            searchable: 0,
            inside: vec![false; reduced.quotas.len()],
            price_bound: i64::MAX,
            bound: i64::MAX,
            best: Selection::nothing(reduced),
            work: Work { choices: reduced.items.len() as u64, ..Work::default() },
        }
    }

    fn reduced(&self) -> &'a Reduced {
        self.ledger.reduced
    }

    /// Whether the best selection is known to be good enough.
    fn is_done(&self) -> bool {
        let missing = i128::from(self.bound - self.best.worth) * 1_000_000;
        missing <= i128::from(self.bound) * i128::from(self.effort.gap_ppm)
    }

    /// Whether there is a gap to close and effort to spend on it.
    fn may_go_on(&self) -> bool {
        !self.is_done() && self.work.states < self.effort.states
    }

    /// Dual and repair with every quota priced.
    fn price(&mut self, warm: &Warm) -> View {
        let reduced = self.reduced();
        let to_worth = |price: &u64| *price as f64 / PRICE_UNIT as f64;
        let guess: Option<Vec<f64>> = (warm.prices.len() == reduced.capacities.len() && !warm.prices.is_empty())
            .then(|| warm.prices.iter().map(to_worth).collect());
        let (descent, mut view) = dual::descend(reduced, guess.as_deref(), self.effort.evaluations);
        self.work.evaluations += descent.evaluations;
        view.evaluate(&descent.prices);
        let quota_prices = quota_prices(reduced, &view);
        self.ledger = Ledger::new(reduced, &descent.prices, &quota_prices);
        self.searchable = self.ledger.bound(&self.inside);
        self.price_bound = self.ledger.whole(self.searchable);
        self.bound = self.price_bound;
        self.published = self.ledger.clone();
        self.best = repair::favourites(&self.ledger);
        repair::repair(&self.ledger, &mut self.best);
        if self.may_go_on() {
            exchange::exchange(&self.ledger, &mut self.best);
        }
        view
    }

    /// Where a gap stays and the tables are affordable: the dual again with quotas kept instead of priced, and a repair
    /// of what the tables select.
    fn keep_quotas_inside(&mut self, view: &mut View) {
        let cells: u64 = view.groups.iter().map(|group| quota::cells(view, group)).sum();
        let affordable = self.effort.cells / EVALUATIONS_INSIDE;
        if self.is_done() || view.groups.is_empty() || cells > affordable {
            return;
        }
        let reduced = self.reduced();
        if view.lights.len() != reduced.items.len() {
            *view = View::whole(reduced);
        }
        view.groups.iter_mut().for_each(|group| group.inside = true);
        let prices: Vec<f64> = self.ledger.prices.iter().map(|price| *price as f64 / PRICE_UNIT as f64).collect();
        let start = dual::Start::warm(&prices);
        let descent = dual::descend_view(view, &start, self.effort.evaluations, self.effort.cells);
        self.work.evaluations += descent.evaluations;
        self.work.cells += descent.cells;
        let ledger = Ledger::new(reduced, &descent.prices, &vec![0.0; reduced.quotas.len()]);
        let mut inside = self.inside.clone();
        reduced.tenants.iter().for_each(|tenant| inside[tenant.index] = true);
        let bound = ledger.whole(ledger.bound(&inside));
        if bound < self.price_bound {
            (self.price_bound, self.bound) = (bound, bound);
            (self.inside, self.published) = (inside, ledger.clone());
        }
        let mut selection = repair::favourites(&ledger);
        for (index, tenant) in reduced.tenants.iter().enumerate() {
            tenant.claims.clone().for_each(|claim| selection.give(reduced, claim, NOTHING));
            quota::select_inside(view, &view.groups[index], &descent.prices, |claim, light| {
                selection.give(reduced, claim, light as u32);
            });
        }
        repair::repair(&ledger, &mut selection);
        self.propose(selection);
    }

    /// Takes a feasible selection, polished, if it is better than the best.
    fn propose(&mut self, mut selection: Selection) {
        if self.effort.states > 0 {
            exchange::exchange(&self.ledger, &mut selection);
        }
        if selection.worth > self.best.worth {
            self.best = selection;
        }
    }

    /// Where a gap stays: dual and repair once more on worths that are nowhere equal.
    fn break_ties(&mut self) {
        if !self.may_go_on() {
            return;
        }
        let reduced = self.reduced();
        let apart = reduced.without_ties();
        let (descent, mut view) = dual::descend(&apart, None, self.effort.evaluations);
        self.work.evaluations += descent.evaluations;
        view.evaluate(&descent.prices);
        let ledger = Ledger::new(&apart, &descent.prices, &quota_prices(&apart, &view));
        let mut found = repair::favourites(&ledger);
        repair::repair(&ledger, &mut found);
        let mut selection = Selection::nothing(reduced);
        found.items.iter().enumerate().for_each(|(claim, item)| selection.give(reduced, claim, *item));
        repair::fill(&self.ledger, &mut selection);
        self.propose(selection);
    }

    /// Narrow searches on the cheapest part of the core, then the whole of it.
    fn search(&mut self) {
        for (claims, width) in PARTS {
            let layers = self.core();
            if !self.may_go_on() || layers.len() <= SMALL_CORE {
                break;
            }
            let part = core::cheapest(&self.ledger, &self.best, &layers, claims);
            let limits = Limits { width, states: self.effort.states.saturating_sub(self.work.states) };
            if let Some(outcome) = search::search(&self.ledger, &mut self.best, part, limits) {
                self.work.states += outcome.states;
            }
        }
        if !self.may_go_on() {
            return;
        }
        let states = self.effort.states - self.work.states;
        let layers = self.core();
        let limits = Limits { width: (states / 8).clamp(1, 400_000) as usize, states };
        if let Some(outcome) = search::search(&self.ledger, &mut self.best, layers, limits) {
            self.work.states += outcome.states;
            self.bound = self.bound.min(outcome.bound);
        }
    }

    fn core(&self) -> Vec<core::Layer> {
        core::core(&self.ledger, &self.best, self.searchable)
    }

    fn conclude(self, program: &Program) -> Solution {
        let reduced = self.reduced();
        let mut chosen = vec![None; program.claims.len()];
        for (claim, item) in reduced.claims.iter().zip(&self.best.items) {
            chosen[claim.original as usize] = reduced.item(*item).map(|item| item.choice);
        }
        let unsigned = |prices: &[i64]| prices.iter().map(|price| *price as u64).collect::<Vec<_>>();
        let worth = self.best.worth;
        assert!(worth <= self.bound && self.bound <= self.price_bound, "no selection exceeds its bound");
        let proof = match (worth == self.bound, self.bound == self.price_bound) {
            (true, true) => Proof::Price,
            (true, false) => Proof::Search,
            (false, _) => Proof::None,
        };
        Solution {
            chosen,
            worth,
            certificate: Certificate {
                prices: unsigned(&self.published.prices),
                quota_prices: unsigned(&self.published.quota_prices),
                quotas_inside: self.inside,
                price_bound: self.price_bound,
                bound: self.bound,
                proof,
                work: self.work,
            },
            warm: Warm { prices: unsigned(&self.ledger.prices) },
        }
    }
}

/// Parts of the core that are searched first: claims and states per layer.
const PARTS: [(usize, usize); 3] = [(30, 200), (80, 1_000), (200, 10_000)];
/// A core of this many claims is searched as a whole at once.
const SMALL_CORE: usize = 250;
/// About how often the function is evaluated with quotas inside.
const EVALUATIONS_INSIDE: u64 = 25;

/// σ by tenant as the last evaluation left them.
fn quota_prices(reduced: &Reduced, view: &View) -> Vec<f64> {
    let mut prices = vec![0.0; reduced.quotas.len()];
    for (tenant, group) in reduced.tenants.iter().zip(&view.groups) {
        prices[tenant.index] = group.price;
    }
    prices
}
