//! Finish-time fairness (Themis; as measured by Sia, eq. 3) and Jain's index.
//!
//! | here | paper |
//! |---|---|
//! | `contention` | n̄, the mean number of live jobs over the life of a job, itself included |
//! | `share` | v = M / n̄, the job's fair share of the M GPUs the cluster was defined with |
//! | fair time | T_fair, how long the job would take alone with its share |
//! | finish-time ratio | ρ = JCT / T_fair; above 1 the job would have been better off with its share |

use std::collections::BTreeMap;

use cluster::{ClaimId, Cluster, GpuKind, JobSpec, Name, QueueId, Span};

/// How long a job takes from launch to end, alone on GPUs of one kind with so many workers; nothing where it cannot run.
pub type Isolated<'a> = dyn Fn(ClaimId, Option<GpuKind>, u32) -> Option<Span> + 'a;

/// What is there to be shared.
#[derive(Debug, Clone, Default)]
pub(crate) struct FairShare {
    gpus: u32,
    kinds: Vec<(GpuKind, u32)>,
}

impl FairShare {
    pub(crate) fn of(cluster: &Cluster) -> FairShare {
        let kinds = cluster.kinds().map(|(kind, _)| (kind, cluster.gpus_of(kind))).filter(|(_, gpus)| *gpus > 0);
        FairShare { gpus: cluster.gpus(), kinds: kinds.collect() }
    }

    /// T_fair in seconds: the mean over kinds by their number of GPUs, without kinds on which the job cannot run. There
    /// is none for a job that uses no GPUs, since shares are shares of GPUs.
    pub(crate) fn fair_time(
        &self,
        id: ClaimId,
        spec: &JobSpec,
        contention: f64,
        isolated: &Isolated<'_>,
    ) -> Option<f64> {
        if spec.min_gpus().is_zero() {
            return None;
        }
        let share = f64::from(self.gpus) / contention;
        let (mut sum, mut weight) = (0.0, 0.0);
        for &(kind, gpus) in self.kinds.iter().filter(|(kind, _)| spec.allows_kind(*kind)) {
            let gpus = f64::from(gpus);
            let alone = |workers| isolated(id, Some(kind), workers).map(Span::as_secs_f64);
            if let Some(time) = time_with_share(spec, share, gpus, alone) {
                sum += time * gpus;
                weight += gpus;
            }
        }
        (weight > 0.0).then(|| sum / weight).filter(|&time| time > 0.0)
    }
}

/// The time with at most `share` GPUs of a kind of which there are `gpus`.
///
/// Between two numbers of workers it is interpolated. Who needs more than the share gets what he needs for a
/// corresponding part of the time. A rigid job is one whose range of workers is a point.
fn time_with_share(spec: &JobSpec, share: f64, gpus: f64, alone: impl Fn(u32) -> Option<f64>) -> Option<f64> {
    let needs = |workers| spec.gpus(workers).as_f64();
    let (min, max) = (spec.scaling.min(), spec.scaling.max());
    if needs(min) > gpus {
        return None;
    }
    if needs(min) > share {
        return Some(alone(min)? * (needs(min) / share));
    }
    let share = share.min(gpus);
    let below = most_workers(min, max, |workers| needs(workers) <= share);
    let time = alone(below)?;
    let above = (below < max && needs(below + 1) <= gpus).then(|| alone(below + 1)).flatten();
    let Some(time_above) = above else { return Some(time) };
    let part = (share - needs(below)) / (needs(below + 1) - needs(below));
    Some(time + part * (time_above - time))
}

/// The largest number in the range that fits, given that the least one does and that who fits has all below him fit.
fn most_workers(min: u32, max: u32, fits: impl Fn(u32) -> bool) -> u32 {
    let (mut fitting, mut most) = (min, max);
    while fitting < most {
        let middle = most - (most - fitting) / 2;
        if fits(middle) {
            fitting = middle;
        } else {
            most = middle - 1;
        }
    }
    fitting
}

/// What users and queues got of what they would have been due.
///
/// The service of a user is x = Σ T_fair / Σ JCT over those of his finished jobs that have a fair time: 1 if, second for
/// second of waiting for results, he was served as by a cluster cut into equal shares; 2 if twice as well. We measure
/// against the fair time, not against the time alone in the whole cluster, because an elastic job that could use
/// everything would else look neglected beside a rigid job of one GPU, although both got their due. Whoever has nothing
/// finished does not appear.
#[derive(Debug, Default)]
pub(crate) struct Services<'a> {
    users: BTreeMap<&'a Name, Service>,
    queues: BTreeMap<QueueId, Service>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Service {
    due: f64,
    taken: f64,
}

impl<'a> Services<'a> {
    pub(crate) fn record(&mut self, spec: &'a JobSpec, fair_time: f64, completion_time: f64) {
        self.users.entry(&spec.user).or_default().record(fair_time, completion_time);
        self.queues.entry(spec.queue).or_default().record(fair_time, completion_time);
    }

    pub(crate) fn jain_of_users(&self) -> Option<f64> {
        jain(self.users.values().filter_map(|service| service.rate()))
    }

    pub(crate) fn jain_of_queues(&self) -> Option<f64> {
        jain(self.queues.values().filter_map(|service| service.rate()))
    }
}

impl Service {
    fn record(&mut self, due: f64, taken: f64) {
        self.due += due;
        self.taken += taken;
    }

    fn rate(self) -> Option<f64> {
        (self.taken > 0.0).then(|| self.due / self.taken)
    }
}

/// Jain's index J = (Σx)² / (n Σx²): 1 if all are equal, 1/n if one has everything.
pub fn jain(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let (mut count, mut sum, mut squares) = (0u32, 0.0, 0.0);
    for value in values {
        count += 1;
        sum += value;
        squares += value * value;
    }
    (squares > 0.0).then(|| sum * sum / (f64::from(count) * squares))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tale::cluster;
    use cluster::{JobDraft, Role, Scaling, WorkerRange};

    /// A job of 1200 worker-seconds that scales without loss.
    fn perfect(_: ClaimId, _: Option<GpuKind>, workers: u32) -> Option<Span> {
        Some(Span::from_secs(1200 / u64::from(workers)))
    }

    fn fair_time(cluster: &str, draft: JobDraft, contention: f64, isolated: &Isolated<'_>) -> Option<f64> {
        FairShare::of(&self::cluster(cluster)).fair_time(ClaimId(0), &draft.build().unwrap(), contention, isolated)
    }

    fn elastic(min: u32, max: u32) -> JobDraft {
        JobDraft { scaling: Scaling::Elastic(WorkerRange { min, max }), ..JobDraft::rigid("elastic", min) }
    }

    #[test]
    fn a_rigid_job_within_its_share_takes_its_own_time() {
        assert_eq!(fair_time("2x4 t4", JobDraft::rigid("a", 2), 4.0, &perfect), Some(600.0));
    }

    #[test]
    fn a_rigid_job_of_twice_its_share_takes_twice_as_long() {
        assert_eq!(fair_time("2x4 t4", JobDraft::rigid("a", 4), 4.0, &perfect), Some(600.0));
        assert_eq!(fair_time("2x4 t4", JobDraft::rigid("a", 8), 2.0, &perfect), Some(300.0));
    }

    #[test]
    fn an_elastic_job_takes_what_lies_between_two_sizes() {
        // 8 GPUs for 3.2 jobs are 2.5 each: between 600 s with two workers and 400 s with three.
        assert_eq!(fair_time("2x4 t4", elastic(1, 8), 3.2, &perfect), Some(500.0));
    }

    #[test]
    fn an_elastic_job_stays_within_its_range() {
        assert_eq!(fair_time("2x4 t4", elastic(1, 2), 1.0, &perfect), Some(600.0));
        assert_eq!(fair_time("2x4 t4", elastic(4, 8), 4.0, &perfect), Some(600.0));
    }

    #[test]
    fn a_share_of_a_gpu_takes_correspondingly_longer() {
        assert_eq!(fair_time("2x4 t4", elastic(1, 8), 16.0, &perfect), Some(2400.0));
    }

    #[test]
    fn workers_of_several_gpus_are_counted_in_gpus() {
        let mut worker = Role::worker();
        worker.slice.as_mut().unwrap().count = 2;
        let pairs = JobDraft { roles: vec![worker], ..elastic(1, 8) };
        // 3 GPUs: halfway between one worker, 1200 s, and two, 600 s.
        assert_eq!(fair_time("3x4 t4", pairs, 4.0, &perfect), Some(900.0));
    }

    #[test]
    fn kinds_count_by_their_gpus_and_only_where_the_job_can_run() {
        let by_kind = |_: ClaimId, kind: Option<GpuKind>, _: u32| match kind {
            Some(GpuKind(0)) => Some(Span::from_secs(400)),
            Some(GpuKind(1)) => Some(Span::from_secs(100)),
            _ => None,
        };
        let job = || JobDraft::rigid("a", 1);
        assert_eq!(fair_time("1x8 t4, 2x8 a100, 4x8 k80", job(), 1.0, &by_kind), Some(200.0));
        let picky = JobDraft { kinds: vec![GpuKind(1)], ..job() };
        assert_eq!(fair_time("1x8 t4, 2x8 a100, 4x8 k80", picky, 1.0, &by_kind), Some(100.0));
    }

    #[test]
    fn an_elastic_job_alone_takes_no_more_of_a_kind_than_there_is() {
        assert_eq!(fair_time("1x4 t4, 1x12 a100", elastic(1, 16), 1.0, &perfect), Some((300.0 + 3.0 * 100.0) / 4.0));
    }

    #[test]
    fn a_job_without_gpus_has_no_fair_time() {
        let cpu = Role { slice: None, millicores: 1000, ..Role::worker() };
        let job = JobDraft { roles: vec![cpu], ..JobDraft::rigid("a", 1) };
        assert_eq!(fair_time("2x4 t4", job, 1.0, &perfect), None);
    }

    #[test]
    fn equals_have_an_index_of_one_and_one_of_three_who_has_everything_a_third() {
        assert_eq!(jain([0.5, 0.5, 0.5]), Some(1.0));
        assert_eq!(jain([1.0, 3.0]), Some(0.8));
        assert_eq!(jain([2.0, 0.0, 0.0]), Some(1.0 / 3.0));
        assert_eq!(jain([]), None);
    }
}
