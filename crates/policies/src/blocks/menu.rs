//! What could be given to a claim, and what that would be worth to it: shapes with their goodput, as far as the claim's
//! own steps have taught it. Shapes it never visited are guesses.

use cluster::{GpuKind, Grain, JobSpec, Scaling, Shape};
use perf::{
    Adaptation, BatchLimits, BatchRule, Goodput, GradientNoise, KindLimits, Ladder, Learned, Situation, StepTime,
};
use plan::{Claim, Snapshot};

use crate::blocks::place;

/// The GPUs of each kind, as far as they work.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Fleet {
    pub(crate) kinds: Vec<KindFleet>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KindFleet {
    pub(crate) kind: GpuKind,
    /// GPUs of the largest node.
    pub(crate) node_gpus: u32,
    /// Nodes of that size.
    pub(crate) nodes: u32,
    pub(crate) gpus: u32,
}

/// A shape and what it is worth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Offer {
    pub(crate) shape: Shape,
    /// Whole GPUs that it takes.
    pub(crate) gpus: u32,
    /// Goodput, as a multiple of the claim's least offer.
    pub(crate) value: f64,
}

/// How offers are valued.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Manner {
    /// As the authors' program does it: batches up to what the user asked for instead of what the job allows, and their
    /// ladder in single precision.
    pub(crate) as_published: bool,
    /// How fast a job is thought to be on a kind of which nothing is known, compared with the kind it knows. More than 1
    /// makes it try.
    pub(crate) unseen: f64,
}

impl Manner {
    /// As it is best defined, without a taste for the unknown.
    pub(crate) const PLAIN: Manner = Manner { as_published: false, unseen: 1.0 };
}

/// Most workers a job may have compared with the most it has run with: models are not to be trusted further.
const GROWTH: u32 = 2;

impl Fleet {
    pub(crate) fn of(snapshot: &Snapshot<'_>) -> Fleet {
        let cluster = snapshot.cluster();
        let mut kinds: Vec<KindFleet> =
            cluster.kinds().map(|(kind, _)| KindFleet { kind, node_gpus: 0, nodes: 0, gpus: 0 }).collect();
        for (id, node) in cluster.nodes() {
            let status = snapshot.books.node_status(id);
            let Some(fleet) = node.kind.map(|kind| &mut kinds[usize::from(kind.0)]) else { continue };
            if !status.is_open() {
                continue;
            }
            let gpus = u32::from(node.gpus) - status.broken.count();
            fleet.gpus += gpus;
            match gpus.cmp(&fleet.node_gpus) {
                std::cmp::Ordering::Greater => (fleet.node_gpus, fleet.nodes) = (gpus, 1),
                std::cmp::Ordering::Equal => fleet.nodes += 1,
                std::cmp::Ordering::Less => {}
            }
        }
        Fleet { kinds }
    }

    pub(crate) fn of_kind(&self, kind: GpuKind) -> &KindFleet {
        &self.kinds[usize::from(kind.0)]
    }
}

impl KindFleet {
    /// Nodes and workers of the shapes that are offered: powers of two within a node, then whole nodes. They pack
    /// without gaps, and no two jobs of several nodes share one.
    pub(crate) fn shapes(self, most: u32) -> impl Iterator<Item = (u32, u32)> {
        let within = (0..32).map(|power| 1_u32 << power).take_while(move |&workers| workers < self.node_gpus);
        let whole =
            (1..=self.nodes).map(move |nodes| (nodes, nodes * self.node_gpus)).filter(|&(_, workers)| workers > 0);
        within.map(|workers| (1, workers)).chain(whole).take_while(move |&(_, workers)| workers <= most)
    }
}

/// Whether the claim is made of like workers that each take one whole GPU, so that it can be cut to any shape.
pub(crate) fn is_plain(spec: &JobSpec) -> bool {
    let [role] = &spec.roles[..] else { return false };
    role.slice.is_some_and(|slice| slice.grain == Grain::Whole && slice.count == 1)
}

/// Whether the claim can be cut to a shape exactly. Others take so many GPUs of a kind wherever these are.
pub(crate) fn is_cut_to_shape(claim: &Claim) -> bool {
    is_plain(&claim.spec) && !matches!(claim.spec.scaling, Scaling::Rigid(_))
}

/// Whether what a claim holds is what is offered to it.
pub(crate) fn is_same(claim: &Claim, held: Shape, offered: Shape) -> bool {
    let nodes = held.nodes == offered.nodes || !is_cut_to_shape(claim);
    nodes && (held.kind, held.workers) == (offered.kind, offered.workers)
}

/// Everything that could be given to the claim, with its worth relative to the least of it.
pub(crate) fn offers(snapshot: &Snapshot<'_>, claim: &Claim, fleet: &Fleet, manner: Manner) -> Vec<Offer> {
    let mut offers = match (&claim.speed.adaptation, claim.spec.scaling, is_plain(&claim.spec)) {
        (Some(adaptation), Scaling::Elastic(_) | Scaling::Adaptive(..), true) => {
            learned(claim, adaptation, fleet, manner)
        }
        (Some(adaptation), Scaling::Rigid(workers), true) => rigid(claim, adaptation, fleet, workers),
        (None, Scaling::Elastic(_) | Scaling::Adaptive(..), true) => declared(snapshot, claim, fleet),
        (_, scaling, _) => as_asked(snapshot, claim, fleet, scaling.min()),
    };
    offers.retain(|offer| {
        let kind = offer.shape.kind.map(|kind| snapshot.cluster().kind(kind));
        kind.is_none_or(|kind| place::suits(&claim.spec, kind))
    });
    let worthy = offers.iter().filter(|offer| offer.value > 0.0);
    let least = worthy.min_by(|one, other| one.value.total_cmp(&other.value));
    let scale = least.map_or(0.0, |least| base(claim, least.shape) / least.value);
    offers.iter_mut().for_each(|offer| offer.value *= scale);
    offers
}

/// What the least offer counts for: one replica's worth of workers for jobs that can be cut to any size, all of a gang's
/// for a gang.
fn base(claim: &Claim, least: Shape) -> f64 {
    let limits = claim.speed.adaptation.as_ref().zip(least.kind).and_then(|(adaptation, kind)| adaptation.on(kind));
    match claim.spec.scaling {
        Scaling::Rigid(workers) => f64::from(workers),
        Scaling::Elastic(_) | Scaling::Adaptive(..) => limits.map_or(1.0, |limits| f64::from(limits.stages)),
    }
}

/// By the models fitted to its own steps; on kinds where it never ran, by the first kind where it did, scaled by what one
/// replica was found to do on each (Sia, section 3.2). Before its first step only the least of each kind is offered. A
/// replica is one worker, or all stages of a pipeline, of which there may be more on one kind than on another.
fn learned(claim: &Claim, adaptation: &Adaptation, fleet: &Fleet, manner: Manner) -> Vec<Offer> {
    let known: &Learned = &claim.learned;
    let allowed = || fleet.kinds.iter().filter(|kind| kind.gpus > 0 && claim.spec.allows_kind(kind.kind));
    let (least, most) = (claim.spec.scaling.min(), claim.spec.scaling.max());
    let reach = |limits: &KindLimits| {
        let least = least.div_ceil(limits.stages);
        (GROWTH * known.most_replicas(limits.kind)).max(least).min(adaptation.most_replicas(limits.kind).max(1))
    };
    let limits = allowed().filter_map(|kind| adaptation.on(kind.kind));
    let most_replicas = limits.map(reach).max().unwrap_or(0);
    let source = known.fitted().next();
    let mut offers = Vec::new();
    for &here in allowed() {
        let Some(limits) = adaptation.on(here.kind) else { continue };
        let offer = |(nodes, workers): (u32, u32), value: f64| Offer {
            shape: Shape { kind: Some(here.kind), workers, nodes },
            gpus: workers,
            value,
        };
        let goodput = |kind: GpuKind, step: &StepTime| {
            let there = adaptation.on(kind).unwrap_or(limits);
            goodput_of(adaptation, there, *step, known.noise, manner)
        };
        let own = known.step_time(here.kind).map(|step| goodput(here.kind, step));
        let borrowed = source.map(|(kind, step)| (kind, goodput(kind, step)));
        let most = most.min(most_replicas.saturating_mul(limits.stages)).max(least);
        let shapes = here.shapes(most).filter(|&(_, workers)| workers >= least);
        let shapes = shapes.filter_map(|shape| Some((shape, limits.replicas(shape.1)?)));
        match (own, borrowed) {
            (Some(own), _) => {
                let value = |nodes: u32, replicas: u32| own.best(nodes, replicas).map_or(0.0, |best| best.goodput);
                offers.extend(shapes.map(|(shape, replicas)| offer(shape, value(shape.0, replicas))));
            }
            (None, Some((kind, goodput))) => {
                let alone = |kind: GpuKind| adaptation.on(kind).and_then(|limits| limits.alone);
                let ratio = alone(here.kind).zip(alone(kind)).map_or(manner.unseen, |(here, there)| here / there);
                let per_node = fleet.of_kind(kind).node_gpus.max(1);
                let stages = adaptation.on(kind).map_or(1, |limits| limits.stages);
                let value = |replicas: u32| {
                    let nodes = (replicas * stages).div_ceil(per_node);
                    goodput.best(nodes, replicas).map_or(0.0, |best| best.goodput * ratio)
                };
                offers.extend(shapes.map(|(shape, replicas)| offer(shape, value(replicas))));
            }
            (None, None) => offers.extend(shapes.take(1).map(|(shape, _)| offer(shape, f64::from(limits.stages)))),
        }
    }
    offers.retain(|offer| offer.value > 1e-4);
    offers
}

fn batch_limits(adaptation: &Adaptation, limits: &KindLimits, manner: Manner) -> BatchLimits {
    let (local_min, local_max) = (limits.local_min, limits.local_max);
    let max = match adaptation.rule {
        _ if limits.pipelined().is_some() => adaptation.max,
        BatchRule::Fixed(batch) => batch,
        BatchRule::Tuned { asked: Some(asked) } if manner.as_published => asked,
        BatchRule::Tuned { .. } => adaptation.max,
    };
    BatchLimits { initial: adaptation.initial, max, local_min, local_max }
}

pub(crate) fn goodput_of(
    adaptation: &Adaptation,
    limits: &KindLimits,
    step: StepTime,
    noise: GradientNoise,
    manner: Manner,
) -> Goodput {
    // A pipeline takes the one batch that fills it.
    let accumulate = limits.pipelined().is_none();
    let tunable = !accumulate || matches!(adaptation.rule, BatchRule::Tuned { .. });
    let limits = batch_limits(adaptation, limits, manner);
    let ladder = if manner.as_published { Ladder::Single } else { Ladder::Double };
    Goodput { step, noise, limits, tunable, ladder, accumulate }
}

/// A gang that cannot change: one offer for each kind, by its own model of that kind or by what one worker does there.
fn rigid(claim: &Claim, adaptation: &Adaptation, fleet: &Fleet, workers: u32) -> Vec<Offer> {
    let offer = |kind: &KindFleet| {
        let limits = adaptation.on(kind.kind)?;
        let shape = Shape { kind: Some(kind.kind), workers, nodes: workers.div_ceil(kind.node_gpus) };
        let modelled = || {
            let tuning = claim.learned.tuning(adaptation, shape)?;
            claim.learned.goodput(adaptation, shape, tuning)
        };
        let replicas = limits.replicas(workers)?;
        let value = modelled().or_else(|| Some(limits.alone? * f64::from(replicas))).unwrap_or(1.0);
        Some(Offer { shape, gpus: workers, value })
    };
    let fits = |kind: &&KindFleet| kind.gpus >= workers && claim.spec.allows_kind(kind.kind);
    fleet.kinds.iter().filter(fits).filter_map(offer).collect()
}

/// A job that can be cut to any size and whose speed is what was declared.
fn declared(snapshot: &Snapshot<'_>, claim: &Claim, fleet: &Fleet) -> Vec<Offer> {
    let (least, most) = (claim.spec.scaling.min(), claim.spec.scaling.max());
    let mut offers = Vec::new();
    for here in fleet.kinds.iter().filter(|kind| claim.spec.allows_kind(kind.kind)) {
        for (nodes, workers) in here.shapes(most).filter(|&(_, workers)| workers >= least) {
            let shape = Shape { kind: Some(here.kind), workers, nodes };
            let batch = crate::blocks::grant::batch(claim, workers);
            let rate = claim.speed.rate(&Situation::shaped(&claim.spec, shape, batch, snapshot.cluster()));
            offers.extend(rate.map(|value| Offer { shape, gpus: workers, value }));
        }
    }
    match offers.is_empty() {
        true => as_asked(snapshot, claim, fleet, least),
        false => offers,
    }
}

/// Exactly so many workers on each kind of GPU that can run them, wherever they find room.
fn as_asked(snapshot: &Snapshot<'_>, claim: &Claim, fleet: &Fleet, workers: u32) -> Vec<Offer> {
    let gpus = claim.spec.gpus(workers).as_thousandths().div_ceil(1000);
    let offer = |kind: &KindFleet| {
        let value = snapshot.rate_on(claim, Some(kind.kind), workers)?;
        let nodes = gpus.div_ceil(kind.node_gpus);
        Some(Offer { shape: Shape { kind: Some(kind.kind), workers, nodes }, gpus, value })
    };
    let fits = |kind: &&KindFleet| kind.gpus >= gpus && kind.gpus > 0 && claim.spec.allows_kind(kind.kind);
    fleet.kinds.iter().filter(fits).filter_map(offer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::{BatchRange, ClusterDraft, JobDraft, Span, Time, WorkerRange};
    use perf::{Observation, Search, Speed, StepReport};
    use plan::{Books, Budgets, Changed};
    use std::sync::Arc;

    #[test]
    fn shapes_are_powers_of_two_within_a_node_and_then_whole_nodes() {
        let fleet = KindFleet { kind: GpuKind(0), node_gpus: 8, nodes: 3, gpus: 24 };
        let all: Vec<_> = fleet.shapes(64).collect();
        assert_eq!(all, [(1, 1), (1, 2), (1, 4), (1, 8), (2, 16), (3, 24)]);
        assert_eq!(fleet.shapes(5).last(), Some((1, 4)));
        let odd = KindFleet { node_gpus: 6, nodes: 2, ..fleet };
        assert_eq!(odd.shapes(64).collect::<Vec<_>>(), [(1, 1), (1, 2), (1, 4), (1, 6), (2, 12)]);
        assert_eq!(KindFleet { node_gpus: 0, nodes: 0, ..fleet }.shapes(64).count(), 0);
    }

    /// GPT: two stages on a100, where one pipeline does 2.3 examples a second, and eight on rtx2080ti, where it does 2.9.
    fn pipeline() -> Speed {
        pipeline_with([Some(2.3), Some(2.9)])
    }

    fn pipeline_with(alone: [Option<f64>; 2]) -> Speed {
        let limits = |kind: u16, stages: u32, alone: Option<f64>| KindLimits {
            kind: GpuKind(kind),
            local_min: 48,
            local_max: 48,
            shapes: Vec::new(),
            alone,
            stages,
            workers_max: None,
        };
        let kinds = vec![limits(0, 2, alone[0]), limits(1, 8, alone[1])];
        let rule = BatchRule::Tuned { asked: None };
        let adaptation = Adaptation { initial: 12, max: 384, rule, kinds, restart: Span::from_secs(30) };
        Speed { adaptation: Some(Arc::new(adaptation)), ..Speed::constant(1.0) }
    }

    /// Workers and worth on each kind after these steps on rtx2080ti, one replica each.
    fn offered(steps: &[f64]) -> Vec<(u16, u32, f64)> {
        offered_to(pipeline(), steps, Manner::PLAIN)
    }

    fn offered_to(speed: Speed, steps: &[f64], manner: Manner) -> Vec<(u16, u32, f64)> {
        let (cluster, queues) = ClusterDraft::parse_short("2x8 a100, 3x8 rtx2080ti").unwrap().build().unwrap();
        let mut books = Books::new(cluster, queues);
        let range = WorkerRange { min: 2, max: 64 };
        let scaling = Scaling::Adaptive(range, BatchRange { initial: 12, max: 384 });
        let spec = JobDraft { scaling, ..JobDraft::rigid("gpt", 2) }.build().unwrap();
        let id = books.submit(Time::ZERO, Arc::new(spec), Arc::new(speed));
        let budgets = Budgets::none();
        let snapshot =
            Snapshot { now: Time::ZERO, books: &books, changed: Changed::Everything, budgets: &budgets, truths: None };
        let mut claim = snapshot.claim(id).clone();
        let learned = Arc::make_mut(&mut claim.learned);
        for &secs in steps {
            let seen = Observation { nodes: 1, replicas: 1, local_batch: 48, accumulation_secs: secs, step_secs: secs };
            learned.take(Some(GpuKind(1)), &StepReport { steps: Some(seen), ..StepReport::default() });
            learned.adopt(GpuKind(1), learned.refit(GpuKind(1), Search::Thorough).unwrap());
        }
        let offers = offers(&snapshot, &claim, &Fleet::of(&snapshot), manner);
        offers
            .iter()
            .map(|offer| (offer.shape.kind.unwrap().0, offer.gpus, (offer.value * 100.0).round() / 100.0))
            .collect()
    }

    #[test]
    fn before_its_first_step_a_pipeline_is_offered_one_replica_of_each_kind_worth_its_workers() {
        assert_eq!(offered(&[]), [(0, 2, 2.0), (1, 8, 8.0)]);
    }

    #[test]
    fn a_pipeline_is_offered_up_to_twice_the_replicas_it_had_in_whole_ones_on_every_kind() {
        // One replica on rtx2080ti did 48 examples in 16 s: 3 a second. On a100 that makes 3 * 2.3 / 2.9, the least of all,
        // which counts for its two workers.
        let least = 2.3 / 2.9;
        let worth = |rate: f64| (2.0 * rate / least * 100.0).round() / 100.0;
        let expected = [(0, 2, worth(least)), (0, 4, worth(2.0 * least)), (1, 8, worth(1.0)), (1, 16, worth(2.0))];
        assert_eq!(offered(&[16.0]), expected);
    }

    #[test]
    fn a_kind_of_which_nothing_is_known_is_worth_what_one_is_curious_to_think() {
        let curious = |unseen: f64| {
            let offers = offered_to(pipeline_with([None, None]), &[16.0], Manner { unseen, ..Manner::PLAIN });
            offers[0].2 / offers[2].2
        };
        assert!((curious(1.0) - 1.0).abs() < 0.01);
        assert!((curious(1.5) - 1.5).abs() < 0.01);
        let profiled = offered_to(pipeline(), &[16.0], Manner { unseen: 1.5, ..Manner::PLAIN });
        assert_eq!(profiled, offered(&[16.0]), "what was profiled is no guess");
    }
}
