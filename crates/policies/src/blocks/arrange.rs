//! From shapes to exact places, for shapes that pack without gaps: whole nodes, or a part of one (Sia, section 3.4).
//!
//! Whoever keeps a shape keeps its GPUs. Larger ones go first; where parts of nodes lie in the way of a larger one, the
//! smaller ones move. With powers of two and nodes of one size everything that fits by number finds a place.

use std::collections::BTreeMap;
use std::sync::Arc;

use cluster::{ClaimId, Devices, GpuKind, Grain, NodeId, Placement, Shape, SliceSet, Slot};
use plan::{Allotment, Claim, Note, Reason, Room};

use crate::blocks::draft::Draft;
use crate::blocks::grant;
use crate::blocks::menu::{is_cut_to_shape, is_plain, is_same};
use crate::blocks::place::{self, Style};

/// What became of the arrangement.
#[derive(Debug, Default)]
pub(crate) struct Arranged {
    /// Those that were to keep their shape and had to move.
    pub(crate) moved: Vec<ClaimId>,
    /// Those for which there was no place after all, and why.
    pub(crate) unplaced: BTreeMap<ClaimId, Note>,
}

/// Gives each of these claims a place of its shape. They hold nothing in the draft; others may be moved.
pub(crate) fn arrange<'a>(draft: &mut Draft<'a>, wanted: Vec<(&'a Claim, Shape)>) -> Arranged {
    let mut arranged = Arranged::default();
    let mut queue: Vec<(&Claim, Shape)> = wanted;
    queue.sort_by_key(|(claim, shape)| (std::cmp::Reverse(size(claim, *shape)), claim.id));
    queue.reverse();
    while let Some((claim, shape)) = queue.pop() {
        let gpus = claim.spec.gpus(shape.workers);
        if let Err(quota) = draft.usage().admits(claim, gpus) {
            arranged.unplaced.insert(claim.id, Note::waiting(Reason::WaitingForQuota, quota));
            continue;
        }
        let Some((placement, displaced)) = place_or_displace(draft, claim, shape) else {
            arranged.unplaced.insert(claim.id, draft.too_little(claim, gpus));
            continue;
        };
        for victim in displaced {
            arranged.moved.push(victim.id);
            let shape = draft.release(victim).placement.shape(draft.snapshot.cluster());
            // Smaller than what displaced it, so it comes later than everything of that size.
            let at = queue.partition_point(|(other, at)| size(other, *at) < size(victim, shape));
            queue.insert(at, (victim, shape));
        }
        draft.admit(claim, placement, Reason::Admitted);
    }
    arranged
}

fn size(claim: &Claim, shape: Shape) -> u32 {
    claim.spec.gpus(shape.workers).as_thousandths()
}

/// A place for a shape, and who has to go for it.
fn place_or_displace<'a>(draft: &Draft<'a>, claim: &Claim, shape: Shape) -> Option<(Arc<Allotment>, Vec<&'a Claim>)> {
    if let Some(placement) = even_place(draft, claim, shape) {
        return Some((placement, Vec::new()));
    }
    if let Some((each, kind)) = even_share(claim, shape)
        && let Some((placement, displaced)) = displacing(draft, claim, kind, each, shape.nodes)
    {
        return Some((grant::allotment(claim, shape.workers, placement), displaced));
    }
    anywhere(draft, claim, shape).map(|placement| (placement, Vec::new()))
}

/// A place for a shape where nobody has to go.
pub(crate) fn free_place(draft: &Draft<'_>, claim: &Claim, shape: Shape) -> Option<Arc<Allotment>> {
    even_place(draft, claim, shape).or_else(|| anywhere(draft, claim, shape))
}

/// Where the claim was, else the fullest nodes that have room for an even share of it.
fn even_place(draft: &Draft<'_>, claim: &Claim, shape: Shape) -> Option<Arc<Allotment>> {
    let cluster = draft.snapshot.cluster();
    let same = |had: &&Arc<Allotment>| is_same(claim, had.placement.shape(cluster), shape);
    if let Some(had) = claim.target.as_ref().filter(same).filter(|had| draft.room().fits(cluster, &had.placement)) {
        return Some(had.clone());
    }
    let (each, kind) = even_share(claim, shape)?;
    let held = resizable_from(claim).filter(|held| held.kind(cluster) == Some(kind));
    let nodes = held.and_then(|held| nodes_around(draft.room(), claim, held, kind, each, shape.nodes));
    let nodes = nodes.or_else(|| open_nodes(draft.room(), claim, kind, each, shape.nodes))?;
    Some(grant::allotment(claim, shape.workers, placed(draft.room(), claim, &nodes, each, held)))
}

/// The workers on each node, of like workers that come out even.
fn even_share(claim: &Claim, shape: Shape) -> Option<(u32, GpuKind)> {
    let even = is_plain(&claim.spec) && shape.workers.is_multiple_of(shape.nodes);
    even.then_some((shape.workers / shape.nodes.max(1), shape.kind?))
}

/// Gangs that are not cut to shapes go wherever there is room on their kind.
fn anywhere(draft: &Draft<'_>, claim: &Claim, shape: Shape) -> Option<Arc<Allotment>> {
    let kind = shape.kind.filter(|_| !is_cut_to_shape(claim))?;
    let on_kind = |other| other == kind;
    let placement = place::fit_on(draft.room(), &draft.snapshot, claim, shape.workers, Style::Pack, on_kind)?;
    Some(grant::allotment(claim, shape.workers, placement))
}

/// The fullest nodes with so many GPUs free on each, and cores and memory for the workers.
fn open_nodes(room: &Room, claim: &Claim, kind: GpuKind, each: u32, nodes: u32) -> Option<Vec<NodeId>> {
    let suits = |node: &NodeId| has_cores(room, claim, *node, each);
    let found: Vec<NodeId> = room.nodes_from(kind, each).filter(suits).take(nodes as usize).collect();
    (found.len() == nodes as usize).then_some(found)
}

/// Nodes for a claim that can change its workers in place: first those on which it has most GPUs, so that workers stay,
/// then the fullest others. Nothing if it would have to leave all of its nodes.
fn nodes_around(
    room: &Room,
    claim: &Claim,
    held: &Placement,
    kind: GpuKind,
    each: u32,
    nodes: u32,
) -> Option<Vec<NodeId>> {
    let stays = |node: NodeId| kept_on(room, held, node).count();
    let suits = |node: &NodeId| room.free_devices(*node).count() >= each && has_cores(room, claim, *node, each);
    let mut own: Vec<NodeId> = held.nodes().filter(|&node| stays(node) > 0).filter(suits).collect();
    own.sort_by_key(|&node| (std::cmp::Reverse(stays(node)), node));
    own.truncate(nodes as usize);
    let others = room.nodes_from(kind, each).filter(|node| !own.contains(node)).filter(suits);
    let others: Vec<NodeId> = others.take(nodes as usize - own.len()).collect();
    (!own.is_empty() && own.len() + others.len() == nodes as usize).then(|| [own, others].concat())
}

/// What a claim has that can change its workers in place: as much of it as possible should stay.
pub(crate) fn resizable_from(claim: &Claim) -> Option<&Placement> {
    claim.holds().filter(|_| claim.resizable).map(|holds| &holds.placement)
}

/// So many free GPUs of a node, of those that are held already as many as there are.
pub(crate) fn devices_for(room: &Room, node: NodeId, count: u32, held: Option<&Placement>) -> Devices {
    let kept = held.map_or(Devices::NONE, |held| kept_on(room, held, node));
    let kept = kept.lowest(kept.count().min(count));
    kept.union(room.free_devices(node).without(kept).lowest(count - kept.count()))
}

/// The GPUs of a placement on a node that nobody else is given.
fn kept_on(room: &Room, held: &Placement, node: NodeId) -> Devices {
    let here = held.slots().iter().filter(|slot| slot.node == node);
    let held = here.fold(Devices::NONE, |devices, slot| devices.union(slot.slices.devices));
    held.without(held.without(room.free_devices(node)))
}

fn has_cores(room: &Room, claim: &Claim, node: NodeId, each: u32) -> bool {
    let role = &claim.spec.roles[0];
    role.millicores.saturating_mul(each) <= room.millicores(node) && role.memory * each <= room.memory(node)
}

/// So many workers on each of the nodes, on GPUs that the claim has already as far as there are any.
fn placed(room: &Room, claim: &Claim, nodes: &[NodeId], each: u32, held: Option<&Placement>) -> Placement {
    let role = &claim.spec.roles[0];
    let slot = |&node: &NodeId| Slot {
        node,
        role: 0,
        tasks: each,
        slices: SliceSet { devices: devices_for(room, node, each, held), grain: Grain::Whole },
        millicores: role.millicores * each,
        memory: role.memory * each,
    };
    Placement::new(nodes.iter().map(slot).collect())
}

/// The nodes on which fewest GPUs of smaller claims lie in the way, freed of as many of these as needed.
fn displacing<'a>(
    draft: &Draft<'a>,
    claim: &Claim,
    kind: GpuKind,
    each: u32,
    nodes: u32,
) -> Option<(Placement, Vec<&'a Claim>)> {
    let mut room = draft.room().clone();
    let mut displaced = Vec::new();
    let mut chosen = Vec::new();
    for _ in 0..nodes {
        let (node, victims) = cheapest_node(draft, &room, kind, each, &chosen)?;
        for victim in victims {
            room.give(&draft.holds(victim.id).expect("victims hold something").placement);
            displaced.push(victim);
        }
        if !has_cores(&room, claim, node, each) {
            return None;
        }
        chosen.push(node);
    }
    Some((placed(&room, claim, &chosen, each, None), displaced))
}

fn cheapest_node<'a>(
    draft: &Draft<'a>,
    room: &Room,
    kind: GpuKind,
    each: u32,
    chosen: &[NodeId],
) -> Option<(NodeId, Vec<&'a Claim>)> {
    let open = draft.snapshot.cluster().nodes().filter(|(id, node)| node.kind == Some(kind) && room.is_open(*id));
    let candidates = open.map(|(id, _)| id).filter(|id| !chosen.contains(id)).filter_map(|node| {
        let free = room.free_devices(node).count();
        let mut smaller = smaller_claims(draft, node, each);
        let (mut gained, mut victims) = (free, Vec::new());
        while gained < each {
            let (gpus, victim) = smaller.pop()?;
            gained += gpus;
            victims.push(victim);
        }
        Some((victims.len(), std::cmp::Reverse(free), node, victims))
    });
    candidates.min_by_key(|(count, free, node, _)| (*count, *free, *node)).map(|(_, _, node, victims)| (node, victims))
}

/// Claims that lie wholly on a node and are smaller than so many GPUs; the smallest, and among these those that are not
/// just starting, last.
fn smaller_claims<'a>(draft: &Draft<'a>, node: NodeId, than: u32) -> Vec<(u32, &'a Claim)> {
    let here = draft.on_node(node).into_iter().map(|id| draft.snapshot.claim(id));
    let mut smaller: Vec<(u32, &Claim)> = here
        .filter(|claim| is_plain(&claim.spec))
        .filter_map(|claim| {
            let placement = &draft.holds(claim.id)?.placement;
            let alone = placement.nodes().eq([node]);
            let gpus: Devices =
                placement.slots().iter().fold(Devices::NONE, |all, slot| all.union(slot.slices.devices));
            (alone && gpus.count() < than && !claim.must_go_on()).then_some((gpus.count(), claim))
        })
        .collect();
    let starting = |claim: &Claim| matches!(claim.phase, plan::Phase::Starting { .. });
    smaller.sort_by_key(|(gpus, claim)| (starting(claim), *gpus, claim.id));
    smaller.reverse();
    smaller
}
