//! Pollux: GPUs and batch sizes together, so that every job makes progress and none is left far behind its fair share.
//!
//! Paper: A. Qiao, S. K. Choe, S. J. Subramanya, W. Neiswanger, Q. Ho, H. Zhang, G. R. Ganger, E. P. Xing, "Pollux:
//! Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning", OSDI 2021, section 4.2; details as in the
//! simulator its authors published.
//!
//! The idea. A job's goodput, examples per second times what they teach, is learnt while it runs, and for any number of
//! GPUs its best batch is known. Its speed-up is that goodput over the one it would have with an equal share of the
//! cluster. Each round, choose replicas for every job on every node: a matrix. Its worth is a power mean of all
//! speed-ups, with p below 0, so that those left behind count most; jobs whose row changes must restart, and count for
//! less by what restarts have cost them. No two jobs that lie on several nodes share a node, since both would be slowed.
//! A job starts with one GPU and may at most double its experience each time. The matrix is found by genetic search.
//!
//! | paper                        | here                                                        |
//! |------------------------------|-------------------------------------------------------------|
//! | A, allocation matrix         | `matrix::Instance`, a row for each job                      |
//! | FITNESS_p                    | `Instance::objective`, `p`                                  |
//! | SPEEDUP_j                    | `Pollux::speeds`, relative to the fair share                |
//! | REALLOC_FACTOR_j(δ)          | `Pollux::restarted`                                         |
//! | genetic algorithm, 4.2.1     | `search=plain`: `matrix::Genetic`, 100 × 100                |
//! | interference avoidance       | rows in `matrix::Genetic::repair` and `improve::Board`      |
//!
//! Deviations. By default the matrix is not bred but built and bettered (`blocks/improve.rs`): the same objective, higher
//! than the genetic search gets it, at a small part of the time. Either begins with what everyone holds now and not with
//! what the last search found, so that a decision depends on the snapshot and the seed alone. A job that was restarted all
//! its life keeps a hundredth of its worth instead of nothing, so that it is not left without GPUs that nobody else
//! wants; what a job has measured of its restarts, and of changing its workers in place, replaces what it declared; and
//! models of step times are searched for from several places to the end (`perf::Search`). `parity` has none of that, nor
//! costs other than 30 s. GPUs of several kinds are all alike to Pollux: a job is judged by what it learnt on the kind it
//! is on, but its row stays on one kind. Gangs that cannot change count by their size. Jobs of several roles or with parts
//! of GPUs get what they ask for before the others, where they fit. Queues with budgets limit the replicas of their jobs.

use std::collections::BTreeMap;
use std::sync::Arc;

use cluster::{ClaimId, GpuKind, Grain, NodeId, Placement, Scaling, Shape, SliceSet, Slot, Span};
use perf::{Adaptation, Goodput, Situation};
use plan::{Allotment, Claim, Note, Plan, Policy, Reason, Rhythm, Snapshot};
use solver::genetic::{self, Dice};

use crate::blocks::admit::Quotas;
use crate::blocks::arrange::{devices_for, resizable_from};
use crate::blocks::autoscale::Autoscaler;
use crate::blocks::draft::Draft;
use crate::blocks::grant;
use crate::blocks::improve::{self, improve};
use crate::blocks::matrix::{Genetic, Instance, Wish};
use crate::blocks::menu::{Manner, goodput_of, is_plain};
use crate::blocks::place::Style;
use crate::blocks::round;
use crate::config::{ConfigError, PolicyConfig, bad_value};

pub(crate) fn build(config: &PolicyConfig) -> Result<Box<dyn Policy>, ConfigError> {
    Ok(Box::new(Pollux::new(config)?))
}

/// The policy, with the part that a comparison of searches needs.
#[derive(Debug)]
pub struct Pollux {
    power: f64,
    search: Search,
    seed: u64,
    round: Span,
    parity: bool,
    autoscaler: Option<Autoscaler>,
    /// The goodput of each claim by replicas, as long as nothing changes it.
    known: BTreeMap<ClaimId, Known>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Search {
    Fast,
    /// Population and generations as published.
    Plain,
}

/// What a claim's model says of it on the kind of GPU by which it is judged.
#[derive(Debug)]
struct Known {
    version: u64,
    kind: GpuKind,
    together: Vec<f64>,
    apart: Vec<f64>,
}

/// The matrix that was chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Weighed {
    /// In the order of rows.
    pub claims: Vec<ClaimId>,
    /// In the order of columns.
    pub nodes: Vec<NodeId>,
    /// Replicas on each node, row by row.
    pub matrix: Vec<u16>,
    /// The power mean of all speed-ups, restarts discounted; one node's worth of fair share counts 1.
    pub objective: f64,
}

const PLAIN: genetic::Effort = genetic::Effort { population: 100, generations: 100 };
const FAST: improve::Effort = improve::Effort { pairs: 1000, shakes_each: 6, shakes: 160 };

/// Most replicas a job may have compared with the most it has run with.
const GROWTH: u32 = 2;
/// What the authors' simulator takes a restart to cost, whatever the job.
const RESTART_SECS: f64 = 30.0;
/// What is left of a job's worth even if it was restarted all its life.
const LEAST_LEFT: f64 = 0.01;

impl Policy for Pollux {
    fn plan(&mut self, snapshot: &Snapshot<'_>) -> Plan {
        let mut draft = Draft::new(snapshot);
        let claims = self.competing(&mut draft);
        let weighed = self.choose(&draft, &claims);
        let obstacles = carry_out(&mut draft, &weighed);
        let manner = Manner::PLAIN;
        let nodes = self.autoscaler.and_then(|autoscaler| autoscaler.wanted(snapshot, manner));
        Plan { nodes, ..round::conclude(draft, self.round, &obstacles) }
    }

    fn rhythm(&self) -> Rhythm {
        Rhythm::EveryRound(self.round)
    }

    fn is_stable(&self) -> bool {
        false
    }
}

impl Pollux {
    pub fn new(config: &PolicyConfig) -> Result<Pollux, ConfigError> {
        let power = config.number("p", f64::MIN)?;
        if power.abs() > 10.0 {
            return Err(bad_value("p", "a number from -10 to 10", config.text("p")?));
        }
        Ok(Pollux {
            power,
            search: config.choice("search", &[("fast", Search::Fast), ("plain", Search::Plain)])?,
            seed: config.count("seed")? as u64,
            round: config.round("round")?,
            parity: config.switch("parity")?,
            autoscaler: Autoscaler::build(config)?,
            known: BTreeMap::new(),
        })
    }

    /// The matrix that the policy would choose at this moment.
    pub fn weigh(&mut self, snapshot: &Snapshot<'_>) -> Weighed {
        let mut draft = Draft::new(snapshot);
        let claims = self.competing(&mut draft);
        self.choose(&draft, &claims)
    }

    /// Those who get a row, none of whom holds anything in the draft any more: whoever has held least comes first. Jobs
    /// that cannot be cut to rows are placed before.
    fn competing<'a>(&self, draft: &mut Draft<'a>) -> Vec<&'a Claim> {
        let snapshot = draft.snapshot;
        let with_gpus = snapshot.eligible().filter(|claim| claim.spec.uses_gpus());
        let (mut plain, others): (Vec<&Claim>, Vec<&Claim>) = with_gpus.partition(|claim| is_plain(&claim.spec));
        place_where_free(draft, &others);
        round::release_all(draft, &plain);
        place_where_free(draft, &others);
        plain.sort_by_key(|claim| (claim.attained(snapshot.now), claim.id));
        plain
    }

    fn choose(&mut self, draft: &Draft<'_>, claims: &[&Claim]) -> Weighed {
        let nodes: Vec<NodeId> = draft.room().open_nodes().filter(|&node| gpus_free(draft, node) > 0).collect();
        let ids = claims.iter().map(|claim| claim.id).collect();
        if claims.is_empty() || nodes.is_empty() {
            return Weighed { claims: ids, nodes: Vec::new(), matrix: Vec::new(), objective: 0.0 };
        }
        let instance = self.instance(draft, claims, &nodes);
        // The same moment, the same dice.
        let mut dice = Dice::new(self.seed ^ draft.snapshot.now.as_millis().wrapping_mul(0x2545_f491_4f6c_dd1d));
        let matrix = match self.search {
            Search::Fast => improve(&instance, FAST, &mut dice),
            Search::Plain => {
                let start = [instance.current.clone(), vec![0; instance.current.len()]];
                let mut front = genetic::evolve(&mut Genetic::new(&instance), &start, PLAIN, &mut dice);
                front.genomes.swap_remove(0)
            }
        };
        assert_eq!(instance.fault(&matrix), None, "the search keeps to the rules");
        let objective = instance.objective(&matrix);
        Weighed { claims: ids, nodes, matrix, objective }
    }

    fn instance(&mut self, draft: &Draft<'_>, claims: &[&Claim], nodes: &[NodeId]) -> Instance {
        let snapshot = draft.snapshot;
        let cluster = snapshot.cluster();
        self.known.retain(|id, _| snapshot.claim(*id).is_live());
        let capacity: Vec<u16> = nodes.iter().map(|&node| gpus_free(draft, node)).collect();
        let kind_of = |node: &NodeId| cluster.node(*node).kind.map_or(0, |kind| kind.0);
        let kinds: Vec<u16> = nodes.iter().map(kind_of).collect();
        let quotas = Quotas::of(&snapshot);
        let mut rows = quotas.rows.clone();
        for claim in snapshot.eligible().filter(|claim| !is_plain(&claim.spec)) {
            if let (Some(row), Some(held)) = (quotas.row_of(claim.spec.queue), draft.holds(claim.id)) {
                let row = &mut rows[row as usize];
                *row = row.saturating_sub(held.placement.gpus().as_thousandths().div_ceil(1000));
            }
        }
        let gpus: u32 = capacity.iter().map(|&gpus| u32::from(gpus)).sum();
        let share = Share {
            // R_fair, and by how much a speed-up is scaled: d_j times the number of nodes.
            replicas: gpus.div_ceil(claims.len().max(1) as u32).max(1),
            scale: nodes.len() as f64 / f64::from(gpus.max(1)),
            node_gpus: u32::from(capacity.iter().copied().max().unwrap_or(0)),
            gpus,
        };
        let mut instance = Instance::new(self.power, capacity, kinds, rows);
        for claim in claims {
            let bound: Vec<u16> = nodes.iter().map(|&node| most_on(draft, claim, node)).collect();
            let current: Vec<u16> = nodes.iter().map(|&node| held_on(claim, node)).collect();
            let (together, apart) = self.speeds(&snapshot, claim, &share);
            instance.add(&Wish {
                min: claim.spec.scaling.min().min(u32::from(u16::MAX)) as u16,
                quota: quotas.row_of(claim.spec.queue).map(|row| row as u16),
                together: &together,
                apart: &apart,
                restarted: self.restarted(&snapshot, claim),
                bound: &bound,
                current: &current,
            });
        }
        instance
    }

    /// Scaled speed-ups by replicas, on one node and on several: goodput over that of the fair share on one node, or
    /// the number of replicas over that of the fair share for whoever has no model.
    fn speeds(&mut self, snapshot: &Snapshot<'_>, claim: &Claim, share: &Share) -> (Vec<f64>, Vec<f64>) {
        let (least, most) = (claim.spec.scaling.min(), claim.spec.scaling.max());
        let by_size = |most: u32| {
            let speed = |replicas: u32| f64::from(replicas) / f64::from(share.replicas) * share.scale;
            let speeds: Vec<f64> = (0..=most.min(share.gpus)).map(speed).collect();
            (speeds.clone(), speeds)
        };
        let judged = match (claim.spec.scaling, &claim.speed.adaptation) {
            (Scaling::Rigid(_), _) => None,
            (_, Some(adaptation)) => {
                let Some((kind, goodput)) = model(snapshot, claim, adaptation) else { return by_size(least.max(1)) };
                let seen = adaptation.kinds.iter().map(|limits| claim.learned.most_replicas(limits.kind)).max();
                let reach = (GROWTH * seen.unwrap_or(0)).min(adaptation.most_replicas(kind)).max(1);
                let stages = adaptation.on(kind).map_or(1, |limits| limits.stages);
                let replicas = |workers: u32| adaptation.replicas(kind, workers);
                let rate = |nodes: u32, workers: u32| {
                    let best = replicas(workers).and_then(|replicas| goodput.best(nodes, replicas));
                    best.map_or(0.0, |best| best.goodput)
                };
                let most = most.min(reach.saturating_mul(stages)).max(least).min(share.gpus);
                let fair = (1..=share.replicas).rev().map(|workers| rate(1, workers)).find(|&rate| rate > 0.0);
                let known = self.known.entry(claim.id).or_insert_with(|| Known::new(kind));
                known.learn(claim, kind, most, share.node_gpus, rate);
                fair.map(|fair| (fair, known.together.clone(), known.apart.clone()))
            }
            (_, None) => {
                let kind = judged_on(snapshot, claim);
                let rate = |nodes: u32, workers: u32| {
                    let shape = Shape { kind, workers, nodes };
                    let batch = grant::batch(claim, workers);
                    claim.speed.rate(&Situation::shaped(&claim.spec, shape, batch, snapshot.cluster())).unwrap_or(0.0)
                };
                let most = most.min(share.gpus);
                let figures = |nodes: u32, from: u32| -> Vec<f64> {
                    (0..=most).map(|workers| if workers < from { 0.0 } else { rate(nodes, workers) }).collect()
                };
                Some((rate(1, share.replicas), figures(1, 1), figures(2, 2)))
            }
        };
        match judged.filter(|(fair, ..)| *fair > 0.0) {
            None => by_size(most),
            Some((fair, together, apart)) => {
                let scaled = |speeds: Vec<f64>| speeds.into_iter().map(|speed| speed / fair * share.scale).collect();
                (scaled(together), scaled(apart))
            }
        }
    }

    /// What a restart now would leave of a job's worth: the part of its life that would be left if it went on being
    /// restarted as often as so far. A job that can change its workers in place is taken to do so: most changes of a row
    /// leave it some of its nodes.
    fn restarted(&self, snapshot: &Snapshot<'_>, claim: &Claim) -> f64 {
        let secs = |span: Span| if self.parity { RESTART_SECS } else { span.as_secs_f64() };
        let (penalty, restart) = (secs(claim.resize_price()), secs(claim.restart_price()));
        let age = snapshot.now.since(claim.submitted).as_secs_f64();
        if age + penalty == 0.0 {
            return 1.0;
        }
        let restarts = f64::from(claim.progress.launches.saturating_sub(1));
        let resizes = f64::from(claim.progress.resizes);
        let resize = claim.learned.resize().map_or(restart, secs);
        let left = (age - restarts * restart - resizes * resize).max(0.0) / (age + penalty);
        if self.parity { left } else { left.max(LEAST_LEFT) }
    }
}

/// What an equal share of the cluster is.
#[derive(Debug, Clone, Copy)]
struct Share {
    replicas: u32,
    scale: f64,
    /// GPUs of the largest node, and of all.
    node_gpus: u32,
    gpus: u32,
}

impl Known {
    fn new(kind: GpuKind) -> Known {
        Known { version: 0, kind, together: Vec::new(), apart: Vec::new() }
    }

    /// Brings the figures up to so many workers, all anew if the model is another.
    fn learn(&mut self, claim: &Claim, kind: GpuKind, most: u32, node_gpus: u32, rate: impl Fn(u32, u32) -> f64) {
        if (self.version, self.kind) != (claim.learned.version(), kind) {
            *self = Known { version: claim.learned.version(), ..Known::new(kind) };
        }
        self.together.truncate(most as usize + 1);
        self.apart.truncate(most as usize + 1);
        for workers in self.together.len() as u32..=most {
            self.together.push(if workers == 0 || workers > node_gpus { 0.0 } else { rate(1, workers) });
        }
        for workers in self.apart.len() as u32..=most {
            self.apart.push(if workers < 2 { 0.0 } else { rate(2, workers) });
        }
    }
}

/// The kind of GPU by which a claim is judged and its goodput there; nothing before its first step.
fn model(snapshot: &Snapshot<'_>, claim: &Claim, adaptation: &Adaptation) -> Option<(GpuKind, Goodput)> {
    let held = claim.target.as_ref().and_then(|target| target.placement.kind(snapshot.cluster()));
    let on_held = held.and_then(|kind| Some((kind, claim.learned.step_time(kind)?)));
    let (kind, step) = on_held.or_else(|| claim.learned.fitted().next())?;
    let limits = adaptation.on(kind)?;
    Some((kind, goodput_of(adaptation, limits, *step, claim.learned.noise, Manner::PLAIN)))
}

/// The kind a claim is on; else, of those it allows, the one where it is thought to be fastest.
fn judged_on(snapshot: &Snapshot<'_>, claim: &Claim) -> Option<GpuKind> {
    let held = claim.target.as_ref().and_then(|target| target.placement.kind(snapshot.cluster()));
    let rate = |kind: &GpuKind| snapshot.rate_on(claim, Some(*kind), 1).unwrap_or(0.0);
    held.or_else(|| snapshot.kinds_of(claim).max_by(|one, other| rate(one).total_cmp(&rate(other))))
}

/// Gives those who hold nothing what they ask for at least, in order of submission, where it is free.
fn place_where_free<'a>(draft: &mut Draft<'a>, claims: &[&'a Claim]) {
    for claim in claims {
        if draft.holds(claim.id).is_none()
            && let Ok(allotment) = draft.find(claim, claim.spec.scaling.min(), Style::Pack)
        {
            draft.admit(claim, allotment, Reason::Admitted);
        }
    }
}

fn gpus_free(draft: &Draft<'_>, node: NodeId) -> u16 {
    draft.room().free_devices(node).count() as u16
}

/// The most workers of the claim that a node could take, were it the only one.
fn most_on(draft: &Draft<'_>, claim: &Claim, node: NodeId) -> u16 {
    let cluster = draft.snapshot.cluster();
    let Some(kind) = cluster.node(node).kind.filter(|&kind| claim.spec.allows_kind(kind)) else { return 0 };
    let role = &claim.spec.roles[0];
    let fits = role.slice.is_some_and(|slice| slice.memory <= cluster.kind(kind).memory);
    let runs = match &claim.speed.adaptation {
        Some(adaptation) => adaptation.on(kind).is_some(),
        None => draft.snapshot.rate_on(claim, Some(kind), 1).is_some(),
    };
    if !fits || !runs {
        return 0;
    }
    let by_cores = draft.room().millicores(node).checked_div(role.millicores).unwrap_or(u32::MAX);
    let by_memory = draft.room().memory(node).get().checked_div(role.memory.get()).unwrap_or(u64::MAX);
    let most = u64::from(by_cores).min(by_memory).min(u64::from(gpus_free(draft, node)));
    most as u16
}

fn held_on(claim: &Claim, node: NodeId) -> u16 {
    let slots = claim.target.iter().flat_map(|target| target.placement.slots()).filter(|slot| slot.node == node);
    slots.map(|slot| slot.tasks as u16).sum()
}

/// Gives everyone what the matrix says. Rows that are as before keep their very GPUs. Returns those for whom there was
/// no place after all, because cores, memory or a queue above did not allow it.
fn carry_out(draft: &mut Draft<'_>, weighed: &Weighed) -> BTreeMap<ClaimId, Note> {
    let Weighed { claims, nodes, matrix, .. } = weighed;
    if nodes.is_empty() {
        return BTreeMap::new();
    }
    let snapshot = draft.snapshot;
    let rows = claims.iter().map(|&id| snapshot.claim(id)).zip(matrix.chunks_exact(nodes.len()));
    let as_before =
        |claim: &Claim, row: &[u16]| nodes.iter().zip(row).all(|(&node, &cell)| held_on(claim, node) == cell);
    let (kept, changed): (Vec<_>, Vec<_>) =
        rows.filter(|(_, row)| row.iter().any(|cell| *cell > 0)).partition(|(claim, row)| as_before(claim, row));
    let mut elsewhere = Vec::new();
    for (claim, row) in kept.into_iter().chain(changed) {
        let workers = row.iter().map(|&cell| u32::from(cell)).sum();
        if draft.usage().admits(claim, claim.spec.gpus(workers)).is_err() {
            elsewhere.push((claim, workers));
            continue;
        }
        let fits = |had: &&Arc<Allotment>| draft.room().fits(snapshot.cluster(), &had.placement);
        let had = claim.target.as_ref().filter(|_| as_before(claim, row)).filter(fits).cloned();
        let new = || in_row(draft, claim, nodes, row).map(|placement| grant::allotment(claim, workers, placement));
        match had.or_else(new) {
            Some(allotment) => draft.admit(claim, allotment, Reason::Admitted),
            None => elsewhere.push((claim, workers)),
        }
    }
    let mut obstacles = BTreeMap::new();
    for (claim, workers) in elsewhere {
        match draft.find(claim, workers, Style::Pack) {
            Ok(allotment) => draft.admit(claim, allotment, Reason::Admitted),
            Err(note) => drop(obstacles.insert(claim.id, note)),
        }
    }
    obstacles
}

/// The placement that a row asks for; nothing where that is not free, or cores or memory do not suffice.
fn in_row(draft: &Draft<'_>, claim: &Claim, nodes: &[NodeId], row: &[u16]) -> Option<Placement> {
    let role = &claim.spec.roles[0];
    let enough = |(node, cell): (&NodeId, &u16)| gpus_free(draft, *node) >= *cell;
    if !nodes.iter().zip(row).all(enough) {
        return None;
    }
    let slot = |(&node, &cell): (&NodeId, &u16)| {
        let tasks = u32::from(cell);
        let devices = devices_for(draft.room(), node, tasks, resizable_from(claim));
        Slot {
            node,
            role: 0,
            tasks,
            slices: SliceSet { devices, grain: Grain::Whole },
            millicores: role.millicores * tasks,
            memory: role.memory * tasks,
        }
    };
    let slots = nodes.iter().zip(row).filter(|(_, cell)| **cell > 0).map(slot);
    let placement = Placement::new(slots.collect());
    draft.room().fits(draft.snapshot.cluster(), &placement).then_some(placement)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::text::Scenario;

    fn policy(pairs: &[&str]) -> Box<dyn Policy> {
        build(&PolicyConfig::from_pairs("pollux", pairs).unwrap()).unwrap()
    }

    // The examples are our own: jobs whose speed is declared and grows in proportion to their workers.

    #[test]
    fn equal_jobs_get_equal_shares_on_one_node_each() {
        let scenario =
            Scenario::new("2x4 t4").at("1h").job("a elastic 1..8 speed t4=1").job("b elastic 1..8 speed t4=1");
        scenario.check(&mut *policy(&[]), "a: n1:0-3\nb: n0:0-3");
    }

    #[test]
    fn measured_prices_replace_the_declared_one_and_those_of_the_past_count_too() {
        let pollux = Pollux::new(&PolicyConfig::named("pollux")).unwrap();
        let restarted = |words: &str| {
            let scenario = Scenario::new("1x1").at("100s").job(&format!("a speed gpu=1 runs n0:0 {words}"));
            pollux.restarted(&scenario.snapshot(None), scenario.snapshot(None).claim(ClaimId(0)))
        };
        assert_eq!(restarted(""), 1.0, "a restart was declared to cost nothing");
        assert_eq!(restarted("restarts-in 60s"), 100.0 / 160.0);
        assert_eq!(restarted("restarts-in 60s resizes-in 1s"), 100.0 / 101.0);
    }

    #[test]
    fn both_searches_weigh_alike() {
        let scenario = Scenario::new("2x4 t4")
            .at("1h")
            .job("a elastic 1..8 speed t4=1 runs n0:0-1")
            .job("b elastic 1..8 speed t4=2")
            .job("c 2 gpus");
        let weigh = |search: &str| {
            let config = PolicyConfig::from_pairs("pollux", &[search]).unwrap();
            Pollux::new(&config).unwrap().weigh(&scenario.snapshot(None)).objective
        };
        let (fast, plain) = (weigh("search=fast"), weigh("search=plain"));
        assert!((fast - plain).abs() < 1e-9, "so small that both find the best: {fast} and {plain}");
    }

    #[test]
    fn nobody_is_moved_for_nothing() {
        let scenario = Scenario::new("2x4 t4")
            .at("1h")
            .job("a elastic 1..4 speed t4=1 runs n1:0-3")
            .job("b elastic 1..4 speed t4=1 runs n0:0-3");
        scenario.check(&mut *policy(&[]), "a: n1:0-3\nb: n0:0-3");
    }

    #[test]
    fn a_newcomer_gets_its_share_of_one_who_has_everything() {
        let scenario = Scenario::new("1x4 t4")
            .at("1h")
            .job("has elastic 1..4 speed t4=1 attained 14400 runs n0:0-3")
            .job("new elastic 1..4 speed t4=1 submitted 3000s");
        scenario.check(&mut *policy(&[]), "has: n0:2-3\nnew: n0:0-1");
    }

    #[test]
    fn the_sum_of_speed_ups_does_not_care_who_is_left_with_nothing() {
        let scenario = Scenario::new("1x4 t4")
            .at("1h")
            .job("has elastic 1..4 speed t4=1 attained 14400 runs n0:0-3")
            .job("new elastic 1..4 speed t4=1 submitted 3000s");
        scenario.check(&mut *policy(&["p=1"]), "has: n0:0-3");
    }

    #[test]
    fn two_jobs_on_several_nodes_do_not_share_one() {
        let scenario = Scenario::new("3x4 t4").at("1h").job("a 6 gpus").job("b 6 gpus");
        let plan = scenario.plan(&mut *policy(&[]));
        assert_eq!(plan.lines().count(), 1, "the third node could only be shared: {plan}");
    }

    #[test]
    fn a_part_of_a_gpu_is_found_before_rows_are_chosen() {
        let scenario =
            Scenario::new("1x2 t4").at("1h").job("whole elastic 1..2 speed t4=1 runs n0:0-1").job("part share 0.5 4g");
        scenario.check(&mut *policy(&[]), "whole: n0:1\npart: n0:0~0.5");
    }
}
