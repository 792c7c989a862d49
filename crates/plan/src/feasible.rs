//! Whether a job could ever run: on an empty cluster, with everything in its favour.

use std::fmt;

use cluster::{Bytes, Cluster, GpuKind, Grain, JobSpec, MigProfile, Node, NodeId, QueueTree, Role};
use perf::Speed;
use serde::{Deserialize, Serialize};

use crate::books::{Availability, Books};

/// Why not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Obstruction {
    /// No kind of GPU in the cluster is allowed by the job and large enough for it.
    NoMatchingKind,
    /// So many tasks of a role are needed, and so many would fit.
    TooLarge { role: String, needed: u32, fit: u32 },
    /// A queue above the job never holds that much.
    ExceedsMaxQuota { queue: String },
}

/// Whether the queues above the job ever let it have what it needs at its smallest.
pub fn within_quotas(queues: &QueueTree, spec: &JobSpec) -> Result<(), Obstruction> {
    for queue in queues.ancestry(spec.queue) {
        let queue = queues.queue(queue);
        let most = if queue.borrows { queue.limit } else { Some(queue.guarantee) };
        let unlimited = queue.parent.is_none() && queue.limit.is_none();
        if !unlimited && most.is_some_and(|most| spec.min_gpus() > most) {
            return Err(Obstruction::ExceedsMaxQuota { queue: queue.name.to_string() });
        }
    }
    Ok(())
}

/// Whether the job at its smallest could run if nothing else did, on all nodes but those that are gone for good. Roles are counted one by one,
/// so a job may pass whose roles fit singly but not together; it then waits.
pub fn feasible(books: &Books, spec: &JobSpec, speed: &Speed) -> Result<(), Obstruction> {
    within_quotas(&books.queues, spec)?;
    if !spec.uses_gpus() {
        return roles_fit(books, spec, spec.scaling.min(), None);
    }
    let kinds = books.cluster.kinds().map(|(kind, _)| kind).filter(|&kind| spec.allows_kind(kind));
    let nearest = |best: Result<(), Obstruction>, kind| match best {
        Ok(()) => Ok(()),
        Err(so_far) => {
            let Some(workers) = least_workers(spec, speed, kind) else { return Err(so_far) };
            roles_fit(books, spec, workers, Some(kind)).map_err(|obstruction| nearer(so_far, obstruction))
        }
    };
    kinds.fold(Err(Obstruction::NoMatchingKind), nearest)
}

/// The fewest workers that the job allows and that make whole replicas on a kind.
fn least_workers(spec: &JobSpec, speed: &Speed, kind: GpuKind) -> Option<u32> {
    let least = spec.scaling.min();
    let least = speed.adaptation.as_ref().map_or(Some(least), |adaptation| adaptation.least_workers(kind, least));
    least.filter(|&workers| spec.scaling.allows(workers))
}

/// Of two obstructions the one that tells more: the larger number that would fit.
fn nearer(one: Obstruction, other: Obstruction) -> Obstruction {
    match (&one, &other) {
        (Obstruction::TooLarge { fit: a, .. }, Obstruction::TooLarge { fit: b, .. }) if a >= b => one,
        (_, Obstruction::TooLarge { .. }) => other,
        _ => one,
    }
}

fn roles_fit(books: &Books, spec: &JobSpec, workers: u32, kind: Option<GpuKind>) -> Result<(), Obstruction> {
    for role in &spec.roles {
        let needed = role.tasks(workers);
        let mut fit = 0_u32;
        for (id, node) in books.cluster.nodes() {
            fit = fit.saturating_add(tasks_on(books, role, id, node, kind));
            if fit >= needed {
                break;
            }
        }
        if fit == 0 && role.slice.is_some() {
            return Err(Obstruction::NoMatchingKind);
        }
        if fit < needed {
            return Err(Obstruction::TooLarge { role: role.name.to_string(), needed, fit });
        }
    }
    Ok(())
}

/// How many tasks of a role fit on an empty node.
fn tasks_on(books: &Books, role: &Role, id: NodeId, node: &Node, kind: Option<GpuKind>) -> u32 {
    let status = books.node_status(id);
    if status.availability == Availability::Removed {
        return 0;
    }
    let by_cores = node.millicores.checked_div(role.millicores).unwrap_or(u32::MAX);
    let by_memory = node.memory.get().checked_div(role.memory.get()).unwrap_or(u64::MAX);
    let by_memory = u32::try_from(by_memory).unwrap_or(u32::MAX);
    let by_gpus = match role.slice {
        None => u32::MAX,
        Some(_) if node.kind != kind => 0,
        Some(slice) => {
            let devices = u32::from(node.gpus) - status.broken.count();
            let kind = kind.expect("roles with slices are counted on a kind");
            devices * slices_on_device(&books.cluster, kind, slice.grain, slice.memory) / slice.count
        }
    };
    by_cores.min(by_memory).min(by_gpus)
}

/// How many slices of a grain one device can be cut into.
fn slices_on_device(cluster: &Cluster, kind: GpuKind, grain: Grain, needs: Bytes) -> u32 {
    let device = cluster.kind(kind);
    match grain {
        Grain::Whole => u32::from(needs <= device.memory),
        Grain::Mig(_) if !device.mig => 0,
        Grain::Mig(profile) => {
            let memory = Bytes::new(device.memory.get() / u64::from(MigProfile::MEMORY)) * profile.memory();
            let fit = (MigProfile::COMPUTE / profile.compute()).min(MigProfile::MEMORY / profile.memory());
            if needs <= memory { fit } else { 0 }
        }
        Grain::Share { thousandths, memory } => {
            let by_memory = device.memory.get().checked_div(memory.get()).unwrap_or(1000);
            (1000 / u32::from(thousandths)).min(u32::try_from(by_memory).unwrap_or(1000))
        }
    }
}

impl fmt::Display for Obstruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstruction::NoMatchingKind => f.write_str("no GPU in the cluster is of a kind and size it can use"),
            Obstruction::TooLarge { role, needed, fit } => {
                write!(f, "needs {needed} tasks of role {role}, and {fit} would fit into the empty cluster")
            }
            Obstruction::ExceedsMaxQuota { queue } => write!(f, "queue {queue} may never hold that many GPUs"),
        }
    }
}
