//! Sia: one shape per job, so that goodput is high and nobody is left far behind.
//!
//! Paper: S. Jayaram Subramanya, D. Arfeen, S. Lin, A. Qiao, Z. Jia, G. Ganger, "Sia: Heterogeneity-aware,
//! goodput-optimized ML-cluster scheduling", SOSP 2023, section 3.
//!
//! The idea. For every job and every shape (a kind of GPU, a power of two within a node or some whole nodes) estimate the
//! goodput: examples per second times what they teach. Divide by the job's least, so that jobs can be compared; discount
//! shapes that would need a restart by what restarts have cost the job so far. A power p of that is the cost of the shape
//! (p below 0), and a job that gets nothing costs λ. Each round, find the cheapest choice of at most one shape per job
//! that fits the GPUs of each kind: an integer program, solved exactly. A job learns by running: it starts with one GPU,
//! may at most double each time, and is guessed on other kinds from what one GPU does there.
//!
//! | paper                     | here                                                    |
//! |---------------------------|---------------------------------------------------------|
//! | goodput matrix G          | `menu::offers`, by claim                                |
//! | restart factor r_i        | `Sia::restart_factor`                                   |
//! | fairness power p          | `p`                                                     |
//! | penalty λ_n of no shape   | `lambda`                                                |
//! | restart penalty S         | `Claim::restart_price`, `Claim::resize_price`           |
//! | placer                    | `blocks/arrange.rs`                                     |
//!
//! Deviations. A job that can change its workers in place pays only what that costs for shapes of its kind of GPU; a
//! measured restart replaces what was declared. Costs are not rounded to two decimals, batches are valued up to what the
//! job allows and not up to what its user once asked for, models are evaluated in double precision, and searched for from
//! several places to the end (`perf::Search`); `parity` brings back all four, as the authors' program has them. Queues with
//! budgets are rows of the program. Jobs whose speed is declared and not learnt take part with that; gangs that cannot
//! change compete with their size; jobs with several roles or parts of GPUs are placed where they fit. Of equally good
//! choices the solver's is taken, which is not the one the authors' solver would take.
//!
//! To the program, jobs that teach nothing and ask for the same are the same: it says how many of them run, and which
//! ones is chance. With `others=tiresias` those of higher priority go first, then those who have attained least service,
//! in Tiresias' queues (`tiresias.rs`).
//!
//! The authors profile every job on one GPU of each kind before it starts. Where nobody does, a job would never learn that
//! another kind suits it better. With `explore` above 1 it is thought to be so many times as fast there until it has been.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use cluster::{ClaimId, GpuTime, Shape, Span};
use plan::{Claim, ClassId, Phase, Plan, Policy, Reason, Rhythm, Snapshot, Turns};
use solver::{Choice, Effort, Menu, Program, Warm};

use crate::blocks::admit::Quotas;
use crate::blocks::arrange::{arrange, free_place};
use crate::blocks::autoscale::Autoscaler;
use crate::blocks::draft::Draft;
use crate::blocks::menu::{self, Fleet, Manner, Offer, is_same};
use crate::blocks::order::is_settling;
use crate::blocks::place::Style;
use crate::blocks::round;
use crate::config::{ConfigError, PolicyConfig, bad_value};

pub(crate) fn build(config: &PolicyConfig) -> Result<Box<dyn Policy>, ConfigError> {
    Ok(Box::new(Sia::new(config)?))
}

/// The policy, with the parts that a replay of recorded choices needs.
#[derive(Debug)]
pub struct Sia {
    power: f64,
    idle_cost: f64,
    round: Span,
    parity: bool,
    /// How fast a job is thought to be on kinds it knows nothing of, compared with the kind it knows.
    explore: f64,
    /// The queues by whose order jobs that are the same to the program take turns; nothing if they come as they come.
    turns: Option<Vec<GpuTime>>,
    autoscaler: Option<Autoscaler>,
    fleet: Fleet,
    /// The offers of each claim, as long as nothing changes them.
    menus: BTreeMap<ClaimId, Priced>,
}

#[derive(Debug)]
struct Priced {
    version: u64,
    offers: Vec<Offer>,
}

/// All claims that compete, what each shape would cost, and the cheapest choice.
#[derive(Debug, Clone, PartialEq)]
pub struct Weighed {
    /// In order of submission.
    pub claims: Vec<ClaimId>,
    /// The shapes open to each, with their costs.
    pub costs: Vec<Vec<(Shape, f64)>>,
    /// What each is given.
    pub chosen: Vec<Option<Shape>>,
    /// The cost of the choice, as the paper counts it.
    pub objective: f64,
    /// The objective cannot be lower than this.
    pub bound: f64,
}

/// Up to so many claims the choice is searched to a proof; beyond, to one part in ten thousand.
const PROVEN: usize = 500;
/// Costs are counted in this part of one; in parity with the authors' program, in hundredths.
const UNIT: f64 = 1e6;
const PARITY_UNIT: f64 = 100.0;
/// No shape costs more than this, nor would the authors' program tell it from that.
const MOST: f64 = 3000.0;

impl Policy for Sia {
    fn plan(&mut self, snapshot: &Snapshot<'_>) -> Plan {
        let weighed = self.weigh(snapshot);
        let manner = self.manner();
        let nodes = self.autoscaler.and_then(|autoscaler| autoscaler.wanted(snapshot, manner));
        Plan { nodes, ..self.arrange(snapshot, &weighed) }
    }

    fn turns(&mut self, snapshot: &Snapshot<'_>) -> Turns {
        let mut waiting: Vec<&Claim> = snapshot.eligible().filter(|claim| claim.target.is_none()).collect();
        let queue = |claim: &Claim| {
            let attained = claim.attained(snapshot.now);
            self.turns.as_ref().map(|queues| queues.partition_point(|&threshold| threshold <= attained))
        };
        waiting.sort_by_key(|claim| (Reverse(claim.priority), queue(claim), claim.submitted, claim.id));
        Turns { order: waiting.into_iter().map(|claim| claim.id).collect(), strict: false }
    }

    fn rhythm(&self) -> Rhythm {
        Rhythm::EveryRound(self.round)
    }

    fn is_stable(&self) -> bool {
        false
    }
}

impl Sia {
    pub fn new(config: &PolicyConfig) -> Result<Sia, ConfigError> {
        let power = config.number("p", f64::MIN)?;
        let idle_cost = config.number("lambda", f64::MIN)?;
        if power == 0.0 || power.abs() > 10.0 {
            return Err(bad_value("p", "a number from -10 to 10 that is not 0", config.text("p")?));
        }
        if idle_cost * power >= 0.0 || idle_cost.abs() > MOST {
            let expected = "a number of the sign that p does not have, at most 3000";
            return Err(bad_value("lambda", expected, config.text("lambda")?));
        }
        let (round, parity) = (config.round("round")?, config.switch("parity")?);
        let turns = match config.choice("others", &[("program", None), ("tiresias", Some("tiresias"))])? {
            Some(name) => Some(PolicyConfig::named(name).thresholds("thresholds")?),
            None => None,
        };
        let autoscaler = Autoscaler::build(config)?;
        let explore = config.number("explore", 1.0)?;
        Ok(Sia {
            explore,
            turns,
            power,
            idle_cost,
            round,
            parity,
            autoscaler,
            fleet: Fleet::default(),
            menus: BTreeMap::new(),
        })
    }

    /// What every claim could be given, what that costs, and the cheapest choice.
    pub fn weigh(&mut self, snapshot: &Snapshot<'_>) -> Weighed {
        self.price(snapshot);
        let claims: Vec<&Claim> = snapshot.eligible().filter(|claim| claim.spec.uses_gpus()).collect();
        let pins: Vec<Option<Shape>> = claims.iter().map(|claim| held_by_pin(snapshot, claim)).collect();
        let costs: Vec<Vec<(Shape, f64)>> = claims.iter().map(|claim| self.costs(snapshot, claim)).collect();
        let program = self.program(snapshot, &claims, &pins, &costs);
        let effort = if claims.len() <= PROVEN { Effort::default() } else { Effort::quick() };
        let solution = solver::solve(&program, effort, &Warm::default());
        let chosen = pins.iter().zip(&solution.chosen).zip(&costs);
        let chosen = chosen.map(|((pin, chosen), costs)| pin.or_else(|| chosen.map(|index| costs[index as usize].0)));
        let mut chosen: Vec<Option<Shape>> = chosen.collect();
        if let Some(queues) = &self.turns {
            deal_by_service(snapshot, queues, &claims, &pins, &mut chosen);
        }
        let pinned: f64 =
            claims.iter().zip(&pins).zip(&costs).map(|((claim, pin), costs)| pin_cost(claim, *pin, costs)).sum();
        let free = pins.iter().filter(|pin| pin.is_none()).count() as f64;
        let objective = |worth: i64| {
            let sign = if self.power < 0.0 { -1.0 } else { 1.0 };
            pinned + free * self.idle_cost + sign * worth as f64 / self.unit()
        };
        Weighed {
            chosen,
            objective: objective(solution.worth),
            bound: objective(solution.certificate.bound),
            claims: claims.iter().map(|claim| claim.id).collect(),
            costs,
        }
    }

    /// The integer program: what is pinned is taken out of it.
    fn program(
        &self,
        snapshot: &Snapshot<'_>,
        claims: &[&Claim],
        pins: &[Option<Shape>],
        costs: &[Vec<(Shape, f64)>],
    ) -> Program {
        let quotas = Quotas::of(snapshot);
        let mut capacities: Vec<u32> = self.fleet.kinds.iter().map(|kind| kind.gpus).collect();
        let mut rows = quotas.rows.clone();
        let mut menus = Vec::with_capacity(claims.len());
        for ((claim, pin), costs) in claims.iter().zip(pins).zip(costs) {
            let tenant = quotas.row_of(claim.spec.queue);
            if let Some(held) = pin {
                let gpus = whole_gpus(claim, held.workers);
                let kind = held.kind.map(|kind| &mut capacities[usize::from(kind.0)]);
                let tenant = tenant.map(|row| &mut rows[row as usize]);
                kind.into_iter().chain(tenant).for_each(|row| *row = row.saturating_sub(gpus));
                menus.push(Menu::default());
                continue;
            }
            let choice = |&(shape, cost): &(Shape, f64)| Choice {
                kind: shape.kind.map_or(0, |kind| u32::from(kind.0)),
                units: whole_gpus(claim, shape.workers),
                worth: (self.worth(cost) * self.unit()).round() as i64,
            };
            menus.push(Menu { tenant, choices: costs.iter().map(choice).collect() });
        }
        Program { capacities, quotas: rows, claims: menus }
    }

    /// The plan that gives every claim the shape chosen for it.
    pub fn arrange(&self, snapshot: &Snapshot<'_>, weighed: &Weighed) -> Plan {
        let mut draft = Draft::new(snapshot);
        let mut wanted = Vec::new();
        for (&id, &chosen) in weighed.claims.iter().zip(&weighed.chosen) {
            let claim = snapshot.claim(id);
            let held = claim.target.as_ref().map(|target| target.placement.shape(snapshot.cluster()));
            if held == chosen || held.zip(chosen).is_some_and(|(held, chosen)| is_same(claim, held, chosen)) {
                continue;
            }
            if held.is_some() {
                draft.release(claim);
            }
            wanted.extend(chosen.map(|shape| (claim, shape)));
        }
        let arranged = arrange(&mut draft, wanted);
        let without_offers = weighed.claims.iter().filter(|id| self.menus[id].offers.is_empty());
        for &id in arranged.unplaced.keys().chain(without_offers) {
            if draft.holds(id).is_none() {
                self.place_smaller(&mut draft, snapshot.claim(id));
            }
        }
        for id in arranged.moved {
            let moves = snapshot.books.memory().of(id).map_or(0, |memory| memory[0]);
            let shape = draft.holds(id).map(|target| target.placement.shape(snapshot.cluster()));
            let had = snapshot.claim(id).target.as_ref().map(|target| target.placement.shape(snapshot.cluster()));
            if shape.is_some() && shape == had {
                draft.remember(id, vec![moves + 1]);
            }
        }
        round::conclude(draft, self.round, &arranged.unplaced)
    }

    /// What was chosen for the claim has no place after all, because something of another form is in the way: the next
    /// best that has one.
    fn place_smaller(&self, draft: &mut Draft<'_>, claim: &Claim) {
        let held = claim.target.as_ref().map(|target| target.placement.shape(draft.snapshot.cluster()));
        let mut offers: Vec<&Offer> = self.menus[&claim.id].offers.iter().collect();
        offers.sort_by(|one, other| other.value.total_cmp(&one.value));
        let shapes = held.into_iter().chain(offers.into_iter().map(|offer| offer.shape));
        let mut open = shapes.filter(|shape| draft.usage().admits(claim, claim.spec.gpus(shape.workers)).is_ok());
        let placement = open.find_map(|shape| free_place(draft, claim, shape));
        // Cores or memory may allow none of the shapes; then the fewest workers go wherever they can.
        let placement = placement.or_else(|| draft.find(claim, claim.spec.scaling.min(), Style::Pack).ok());
        if let Some(placement) = placement {
            draft.admit(claim, placement, Reason::Admitted);
        }
    }

    /// Brings the menus up to date. Only those are priced again whose claim has learnt something, or all if the cluster
    /// has changed.
    fn price(&mut self, snapshot: &Snapshot<'_>) {
        let fleet = Fleet::of(snapshot);
        if fleet != self.fleet {
            self.menus.clear();
            self.fleet = fleet;
        }
        let live = |id: &ClaimId| snapshot.claim(*id).is_live();
        self.menus.retain(|id, _| live(id));
        for claim in snapshot.eligible().filter(|claim| claim.spec.uses_gpus()) {
            let version = claim.learned.version();
            if self.menus.get(&claim.id).is_none_or(|priced| priced.version != version) {
                let offers = menu::offers(snapshot, claim, &self.fleet, self.manner());
                self.menus.insert(claim.id, Priced { version, offers });
            }
        }
    }

    /// The cost of every shape open to the claim.
    fn costs(&self, snapshot: &Snapshot<'_>, claim: &Claim) -> Vec<(Shape, f64)> {
        let held = claim.target.as_ref().map(|target| target.placement.shape(snapshot.cluster()));
        let restarted = self.restart_factor(snapshot, claim, claim.restart_price());
        let resized = self.restart_factor(snapshot, claim, claim.resize_price());
        // A job younger than a restart takes is restarted for nothing, and for the price of a resize it may be old enough:
        // what costs no more must not be thought worse.
        let is_cheaper = !self.parity && claim.resize_price() <= claim.restart_price();
        let resized = if is_cheaper { resized.max(restarted) } else { resized };
        let factor = |shape: Shape| match held {
            None => 1.0,
            Some(held) if is_same(claim, held, shape) => 1.0,
            Some(held) if held.kind == shape.kind => resized,
            Some(_) => restarted,
        };
        let priced = self.menus[&claim.id].offers.iter();
        priced.map(|offer| (offer.shape, self.cost(offer.value, factor(offer.shape)))).collect()
    }

    /// A shape that would keep its value over a restart keeps 1; one that is restarted over and over keeps little: the
    /// part of the job's life that would be left if it went on being restarted as often as so far (r_i of the paper).
    /// `penalty` is what getting to the shape costs: a restart, or a change of workers in place. Those of the past count
    /// by what they cost.
    fn restart_factor(&self, snapshot: &Snapshot<'_>, claim: &Claim, penalty: Span) -> f64 {
        let penalty = penalty.as_secs_f64();
        let age = snapshot.now.since(claim.submitted).as_secs_f64();
        if age < penalty || penalty == 0.0 {
            return 1.0;
        }
        let moves = snapshot.books.memory().of(claim.id).map_or(0, |memory| memory[0]);
        let moves = if self.parity { moves as f64 } else { 0.0 };
        let restarts = f64::from(claim.progress.launches.saturating_sub(1)) - moves;
        let resizes = f64::from(claim.progress.resizes);
        let restart = claim.restart_price();
        let resize = claim.learned.resize().unwrap_or(restart);
        let spent = restarts * restart.as_secs_f64() + resizes * resize.as_secs_f64();
        (age - spent).max(0.0) / (age + penalty)
    }

    fn cost(&self, value: f64, factor: f64) -> f64 {
        if self.parity {
            // The authors' program keeps values in single precision and costs in whole hundredths.
            let cost = (value as f32 * factor as f32).powf(self.power as f32);
            return f64::from((cost * 100.0).round_ties_even().min(MOST as f32 * 100.0)) / PARITY_UNIT;
        }
        (value * factor).powf(self.power).min(MOST)
    }

    /// What a shape of this cost is worth beside having none.
    fn worth(&self, cost: f64) -> f64 {
        if self.power < 0.0 { self.idle_cost - cost } else { cost - self.idle_cost }
    }

    fn manner(&self) -> Manner {
        Manner { as_published: self.parity, unseen: self.explore }
    }

    fn unit(&self) -> f64 {
        if self.parity { PARITY_UNIT } else { UNIT }
    }
}

/// Deals what the program gave to claims that are the same to it among them anew: to those of higher priority first, then
/// to those in the first of Tiresias' queues, then to who runs, then to who came first. Who just began is left in peace.
fn deal_by_service(
    snapshot: &Snapshot<'_>,
    queues: &[GpuTime],
    claims: &[&Claim],
    pins: &[Option<Shape>],
    chosen: &mut [Option<Shape>],
) {
    let mut alike: BTreeMap<ClassId, Vec<usize>> = BTreeMap::new();
    for (index, claim) in claims.iter().enumerate() {
        if pins[index].is_none() && claim.speed.adaptation.is_none() {
            alike.entry(claim.class).or_default().push(index);
        }
    }
    let turn = |&index: &usize| {
        let claim = claims[index];
        let attained = claim.attained(snapshot.now);
        let queue = queues.partition_point(|&threshold| threshold <= attained);
        let in_peace = claim.target.is_some() && is_settling(snapshot, claim);
        (!in_peace, Reverse(claim.priority), queue, claim.target.is_none(), claim.submitted, claim.id)
    };
    for mut indices in alike.into_values().filter(|indices| indices.len() > 1) {
        let mut shapes: Vec<Shape> = indices.iter().filter_map(|&index| chosen[index].take()).collect();
        indices.sort_by_key(turn);
        indices.truncate(shapes.len());
        // Who can go on as it is does.
        let held =
            |index: usize| claims[index].target.as_ref().map(|target| target.placement.shape(snapshot.cluster()));
        indices.retain(|&index| {
            let same =
                held(index).and_then(|held| shapes.iter().position(|shape| is_same(claims[index], held, *shape)));
            if let Some(same) = same {
                chosen[index] = Some(shapes.swap_remove(same));
            }
            same.is_none()
        });
        for (index, shape) in indices.into_iter().zip(shapes) {
            chosen[index] = Some(shape);
        }
    }
}

/// What a pinned claim costs; nothing if it is not pinned.
fn pin_cost(claim: &Claim, pin: Option<Shape>, costs: &[(Shape, f64)]) -> f64 {
    let Some(held) = pin else { return 0.0 };
    costs.iter().find(|(shape, _)| is_same(claim, held, *shape)).map_or(0.0, |(_, cost)| *cost)
}

/// The GPUs that a claim takes of the program, parts counted as whole ones.
fn whole_gpus(claim: &Claim, workers: u32) -> u32 {
    claim.spec.gpus(workers).as_thousandths().div_ceil(1000)
}

/// The shape of a claim that must not be disturbed: because it is just starting, or because it must go on.
fn held_by_pin(snapshot: &Snapshot<'_>, claim: &Claim) -> Option<Shape> {
    let pinned = matches!(claim.phase, Phase::Starting { .. }) || claim.must_go_on();
    let target = claim.target.as_ref().filter(|_| pinned)?;
    Some(target.placement.shape(snapshot.cluster()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::text::Scenario;

    fn sia(settings: &[&str]) -> Sia {
        Sia::new(&PolicyConfig::from_pairs("sia", settings).unwrap()).unwrap()
    }

    #[test]
    fn costs_are_those_the_authors_program_printed() {
        // A job of 110 s that was never restarted, on one RTX 2080 Ti; a restart is thought to cost 30 s.
        let factor = 110.0 / 140.0;
        let cost = |value, factor| sia(&["parity=true"]).cost(value, factor);
        assert_eq!(cost(2.26694, 1.0), 0.66, "where it is");
        assert_eq!(cost(3.02582, factor), 0.65, "twice the GPUs");
        assert_eq!(cost(9.20885, factor), 0.37, "two A100");
        assert_eq!((cost(1.0, factor), cost(1.33476, factor)), (1.13, 0.98), "one and two T4");
        assert!((sia(&[]).cost(9.20885, factor) - 0.37175).abs() < 1e-4, "not rounded unless asked to");
    }

    #[test]
    fn whoever_gains_most_from_the_fast_kind_gets_it() {
        let scenario = Scenario::new("1x1 t4, 1x1 a100").job("some speed t4=1 a100=2").job("much speed t4=1 a100=10");
        scenario.check(&mut sia(&[]), "some: a-0:0\nmuch: b-0:0");
    }

    #[test]
    fn a_job_alone_grows_and_shares_when_others_come() {
        let alone = Scenario::new("2x4").job("a elastic 1..8 speed gpu=1");
        alone.check(&mut sia(&[]), "a: n0:0-3 n1:0-3");
        let together = Scenario::new("2x4").job("a elastic 1..8 speed gpu=1").job("b elastic 1..8 speed gpu=1");
        together.check(&mut sia(&[]), "a: n0:0-3\nb: n1:0-3");
    }

    #[test]
    fn a_high_lambda_gives_everyone_one_before_anyone_two() {
        let scenario = Scenario::new("1x2").job("a elastic 1..2 speed gpu=1").job("b elastic 1..2 speed gpu=1");
        scenario.check(&mut sia(&["lambda=2"]), "a: n0:0\nb: n0:1");
        // By the paper's 1.1 one job with both costs 0.71 + 1.1, less than two with one each.
        scenario.check(&mut sia(&[]), "a: n0:0-1");
        // Summing up goodput itself, nobody cares who gets it: the second GPU of one is worth the first of the other.
        let weighed = sia(&["p=1", "lambda=-0.1"]).weigh(&scenario.snapshot(None));
        assert_eq!(weighed.objective, 2.0);
    }

    #[test]
    fn a_restart_must_pay() {
        // 20 minutes old and never restarted, a restart costs little; the faster GPU is worth it.
        let faster = |ratio: &str| {
            Scenario::new("1x1 t4, 1x1 a100").at("20m").job(&format!("a speed t4=1 a100={ratio} runs a-0:0"))
        };
        faster("2").check(&mut sia(&[]), "a: b-0:0");
        faster("1").check(&mut sia(&[]), "a: a-0:0");
    }

    #[test]
    fn a_change_in_place_that_costs_a_second_is_taken_where_a_restart_of_a_minute_is_not() {
        let third = |measured: &str| {
            Scenario::new("1x3").at("70s").job(&format!("a elastic 1..3 speed gpu=1 runs n0:0-1 {measured}"))
        };
        third("restarts-in 60s").check(&mut sia(&[]), "a: n0:0-1");
        third("restarts-in 1s").check(&mut sia(&[]), "a: n0:0-2");
        third("restarts-in 60s resizes-in 1s").check(&mut sia(&[]), "a: n0:0-2");
        let other_kind = "a speed t4=1 a100=1.5 runs a-0:0 restarts-in 60s resizes-in 1s";
        Scenario::new("1x1 t4, 1x1 a100").at("70s").job(other_kind).check(&mut sia(&[]), "a: a-0:0");
    }

    #[test]
    fn a_change_in_place_is_never_thought_worse_than_a_restart_that_costs_more() {
        let costs = |age: &str, measured: &str| {
            let job = format!("a elastic 1..2 speed gpu=1 runs n0:0 restarts-in 60s {measured}");
            let scenario = Scenario::new("1x2").at(age).job(&job);
            let (snapshot, mut sia) = (scenario.snapshot(None), sia(&[]));
            sia.price(&snapshot);
            sia.costs(&snapshot, snapshot.claim(ClaimId(0)))
        };
        assert_eq!(costs("55s", "resizes-in 1s"), costs("55s", ""), "so young a job is restarted for nothing");
        assert_ne!(costs("65s", "resizes-in 1s"), costs("65s", ""));
    }

    #[test]
    fn a_kind_of_which_nothing_is_known_is_tried_if_one_is_curious() {
        let offered = |settings: &[&str]| {
            let manner = sia(settings).manner();
            (manner.as_published, manner.unseen)
        };
        assert_eq!(offered(&[]), (false, 1.0));
        assert_eq!(offered(&["explore=1.3"]), (false, 1.3));
        let error = PolicyConfig::from_pairs("sia", &["explore=0.5"]).map(|config| Sia::new(&config).unwrap_err());
        assert!(error.unwrap().to_string().contains("at least 1"), "nobody is thought to be slower for no reason");
    }

    #[test]
    fn who_can_be_resized_grows_and_shrinks_where_it_is() {
        let grows =
            |can: &str| Scenario::new("2x4").at("1h").job(&format!("a elastic 1..2 speed gpu=1 runs n1:3 {can}"));
        grows("").check(&mut sia(&[]), "a: n0:0-1");
        grows("resizes-in 1s").check(&mut sia(&[]), "a: n1:0,3");
        let shrinks =
            Scenario::new("2x4").at("1h").job("a elastic 1..8 speed gpu=1 runs n0:0-3 runs n1:0-3 resizes-in 1s");
        shrinks.job("b 4 gpus").check(&mut sia(&["lambda=5"]), "a: n0:0-3\nb: n1:0-3");
    }

    #[test]
    fn parts_of_nodes_move_out_of_the_way_of_whole_ones() {
        let scenario = Scenario::new("2x4").at("10m").job("one runs n0:0").job("two runs n1:0").job("gang 4 gpus");
        scenario.check(&mut sia(&[]), "one: n1:1\ntwo: n1:0\ngang: n0:0-3");
    }

    #[test]
    fn of_jobs_that_teach_nothing_those_go_who_have_had_least() {
        let scenario = || {
            let old = "old attained 4000 runs n0:0";
            Scenario::new("1x1").at("2h").job(old).job("young").job("younger")
        };
        scenario().check(&mut sia(&["others=program"]), "old: n0:0");
        scenario().check(&mut sia(&["others=tiresias"]), "young: n0:0");
        let urgent = scenario().job("urgent priority 5");
        urgent.check(&mut sia(&["others=tiresias"]), "urgent: n0:0");
    }

    #[test]
    fn a_queue_stays_within_its_limit() {
        let lab = cluster::QueueDraft { limit: Some(1.0), ..cluster::QueueDraft::named("lab") };
        let scenario = Scenario::with_queues("1x4", &[lab]).job("a queue lab").job("b queue lab").job("c");
        scenario.check(&mut sia(&[]), "a: n0:0\nc: n0:1");
    }

    #[test]
    fn it_says_what_it_expects_of_its_parameters() {
        let error = |settings: &[&str]| {
            let config = PolicyConfig::from_pairs("sia", settings).unwrap();
            Sia::new(&config).unwrap_err().to_string()
        };
        assert_eq!(error(&["p=0"]), "p: expected a number from -10 to 10 that is not 0, found `0`");
        let expected = "lambda: expected a number of the sign that p does not have, at most 3000, found `1.1`";
        assert_eq!(error(&["p=1"]), expected);
    }
}
