//! From a job as people write it to a job as the engine knows it: names become numbers of this cluster.

use std::fmt;
use std::sync::Arc;

use cluster::{
    BatchRange, Bytes, ClaimId, Cluster, Count, Ends, GpuKind, Grain, Invalid, JobDraft, QueueId, QueueTree, Recovery,
    Role, Scaling, Slice, Span, Time, Weight, WorkerRange,
};
use perf::{Adaptation, BatchRule, KindLimits, ScalingLaw, Speed};

use super::{BatchRequest, CheckpointRequest, JobRequest};
use crate::duration::Duration;
use crate::id::JobId;
use crate::problem::FieldFault;
use crate::quantity::Quantity;
use crate::time;

/// Where and when a job is submitted, and by whom.
#[derive(Clone, Copy)]
pub struct Scene<'a> {
    pub cluster: &'a Cluster,
    pub queues: &'a QueueTree,
    pub owner: &'a str,
    pub now: Time,
    /// The moment that is `Time::ZERO`, in milliseconds since 1970: deadlines are said by the wall clock.
    pub zero_unix_ms: i64,
    /// How long jobs of the same owner and name have run, if there were any.
    pub expected: Option<Span>,
    /// The claims that make up a job, or nothing if there is no such job.
    pub claims_of: &'a dyn Fn(JobId) -> Option<Vec<ClaimId>>,
}

/// What the engine is given.
#[derive(Debug, Clone, PartialEq)]
pub struct Built {
    pub draft: JobDraft,
    pub speed: Speed,
}

/// What a restart is taken to cost a job that does not say.
const USUAL_RESTART: Span = Span::from_secs(30);

/// Cores for a worker that asks for neither GPUs nor cores nor memory: something it must hold.
const LEAST_MILLICORES: u32 = 1000;

impl JobRequest {
    /// Relies on [`JobRequest::check`] having found nothing.
    pub fn build(&self, scene: &Scene<'_>) -> Result<Built, FieldFault> {
        let kinds = self.kinds(scene.cluster)?;
        let worker = self.worker(&kinds, scene.cluster)?;
        let recovery = self.recovery();
        let draft = JobDraft {
            name: self.display_name().into(),
            user: scene.owner.into(),
            queue: self.queue(scene.queues)?,
            priority: self.priority,
            weight: self.weight.map_or(Some(Weight::ONE), Weight::from_f64).ok_or_else(|| fault("weight"))?,
            scaling: self.scaling(),
            asked: self.workers.preferred,
            roles: vec![worker],
            kinds: if self.names_kinds() { kinds.clone() } else { Vec::new() },
            ends: self.steps.map_or(Ends::Itself, Ends::Iterations),
            deadline: self.deadline(scene)?,
            after: self.after(scene)?,
            expected: self.expected(scene.expected),
            limit: self.limits.max_runtime.map(Duration::span),
            interruptible: self.interruptible.unwrap_or_else(|| self.is_interruptible()),
            pinned: self.interruptible == Some(false),
            skew: None,
            recovery,
        };
        let speed = self.speed(&kinds, recovery.restart_cost)?;
        draft.clone().build().map_err(of_invalid)?;
        speed.check().map_err(of_invalid)?;
        Ok(Built { draft, speed })
    }

    /// Whether it says in one way or another that it can go on from a saved state: else being stopped would cost it all.
    fn is_interruptible(&self) -> bool {
        if self.pty.is_some() {
            return false;
        }
        let resizes = self.batch.is_some() || self.workers.min != self.workers.max;
        resizes || self.checkpoint != CheckpointRequest::default()
    }

    fn names_kinds(&self) -> bool {
        let with_count = self.resources.gpus.as_ref().is_some_and(|gpus| gpus.kind.is_some());
        with_count || !self.resources.gpu_kinds.is_empty()
    }

    fn gpus(&self) -> f64 {
        self.resources.gpus.as_ref().map_or(1.0, |gpus| gpus.count)
    }

    /// The kinds it may use, in the order of the cluster: those it names, or all.
    fn kinds(&self, cluster: &Cluster) -> Result<Vec<GpuKind>, FieldFault> {
        if !self.names_kinds() {
            return Ok(cluster.kinds().map(|(kind, _)| kind).collect());
        }
        let listed = self.resources.gpu_kinds.iter().enumerate();
        let mut kinds = listed
            .map(|(index, name)| kind_named(&format!("resources.gpu_kinds[{index}]"), name, cluster))
            .collect::<Result<Vec<_>, _>>()?;
        if let Some(name) = self.resources.gpus.as_ref().and_then(|gpus| gpus.kind.as_deref()) {
            let kind = kind_named("resources.gpus", name, cluster)?;
            if !kinds.is_empty() && kinds != [kind] {
                let message = format!("the kind `{name}` is said here, and others in gpu_kinds");
                return Err(FieldFault::new("resources.gpus", message));
            }
            kinds = vec![kind];
        }
        kinds.sort_unstable();
        kinds.dedup();
        Ok(kinds)
    }

    fn worker(&self, kinds: &[GpuKind], cluster: &Cluster) -> Result<Role, FieldFault> {
        let resources = &self.resources;
        let slice = self.slice(kinds, cluster)?;
        let memory = resources.memory.map_or(Bytes::ZERO, Quantity::bytes);
        let millicores = resources.cpus.map_or(0, |cpus| (cpus * 1000.0).round() as u32);
        let nothing = slice.is_none() && memory == Bytes::ZERO && millicores == 0;
        let millicores = if nothing { LEAST_MILLICORES } else { millicores };
        Ok(Role { name: "worker".into(), count: Count::Scaled, slice, millicores, memory })
    }

    fn slice(&self, kinds: &[GpuKind], cluster: &Cluster) -> Result<Option<Slice>, FieldFault> {
        let gpus = self.gpus();
        if gpus == 0.0 {
            return match self.names_kinds() || self.resources.gpu_memory.is_some() {
                true => Err(FieldFault::new("resources.gpus", "a kind or memory of GPUs is asked for, but no GPU")),
                false => Ok(None),
            };
        }
        let devices = || kinds.iter().map(|&kind| cluster.kind(kind).memory);
        let asked = self.resources.gpu_memory.map(Quantity::bytes);
        if let (Some(asked), Some(largest)) = (asked, devices().max())
            && asked > largest
        {
            let message = format!("expected at most the {largest} of the largest GPU it may use, found {asked}");
            return Err(FieldFault::new("resources.gpu_memory", message));
        }
        if gpus >= 1.0 {
            let memory = asked.unwrap_or(Bytes::ZERO);
            return Ok(Some(Slice { grain: Grain::Whole, count: gpus as u32, memory }));
        }
        let thousandths = (gpus * 1000.0).round() as u16;
        // A share of compute comes with the same share of memory, on whichever kind it may land.
        let share = |device: Bytes| Bytes::new(device.get() / 1000 * u64::from(thousandths));
        let memory = asked.or_else(|| devices().min().map(share)).unwrap_or(Bytes::ZERO);
        Ok(Some(Slice { grain: Grain::Share { thousandths, memory }, count: 1, memory }))
    }

    fn queue(&self, queues: &QueueTree) -> Result<QueueId, FieldFault> {
        let Some(name) = &self.queue else { return Ok(QueueId::ROOT) };
        let id = queues.named(name).ok_or_else(|| {
            let open = queues.iter().filter(|(_, queue)| !queue.closed);
            let known = open.map(|(_, queue)| &*queue.name);
            FieldFault::new("queue", format!("there is no queue `{name}`")).or_meant(name, known)
        })?;
        match queues.queue(id).closed {
            true => Err(FieldFault::new("queue", format!("queue `{name}` is closed and takes no new jobs"))),
            false => Ok(id),
        }
    }

    fn scaling(&self) -> Scaling {
        let range = WorkerRange { min: self.workers.min, max: self.workers.max };
        match self.batch {
            Some(batch) => Scaling::Adaptive(range, BatchRange { initial: batch.initial, max: batch.max }),
            None if range.min == range.max => Scaling::Rigid(range.min),
            None => Scaling::Elastic(range),
        }
    }

    fn deadline(&self, scene: &Scene<'_>) -> Result<Option<Time>, FieldFault> {
        let Some(text) = &self.limits.deadline else { return Ok(None) };
        let moment = time::unix_millis(text).map_err(|message| FieldFault::new("limits.deadline", message))?;
        let since_zero = u64::try_from(moment.saturating_sub(scene.zero_unix_ms)).map(Time::from_millis);
        let ahead = since_zero.ok().filter(|&deadline| deadline > scene.now);
        ahead.map(Some).ok_or_else(|| FieldFault::new("limits.deadline", format!("{text} has already passed")))
    }

    fn after(&self, scene: &Scene<'_>) -> Result<Vec<ClaimId>, FieldFault> {
        let mut after = Vec::new();
        for (index, &job) in self.depends_on.iter().enumerate() {
            let unknown = || FieldFault::new(format!("depends_on[{index}]"), format!("there is no job {job}"));
            after.extend((scene.claims_of)(job).ok_or_else(unknown)?);
        }
        after.sort_unstable();
        after.dedup();
        Ok(after)
    }

    /// What the user says; else what such jobs took; else the most it may take.
    fn expected(&self, history: Option<Span>) -> Option<Span> {
        let limit = || self.limits.max_runtime.map(Duration::span);
        self.limits.expected_runtime.map(Duration::span).or(history).or_else(limit)
    }

    fn recovery(&self) -> Recovery {
        let checkpoint = &self.checkpoint;
        Recovery {
            checkpoint_every: checkpoint.every.map(Duration::span),
            checkpoint_cost: checkpoint.cost.map_or(Span::ZERO, Duration::span),
            restart_cost: checkpoint.restart_cost.map_or(USUAL_RESTART, Duration::span),
            retries: self.retry.max_failures,
        }
    }

    fn speed(&self, kinds: &[GpuKind], restart: Span) -> Result<Speed, FieldFault> {
        let Some(batch) = self.batch else {
            let elastic = self.workers.min != self.workers.max;
            let scaling = if elastic { ScalingLaw::Linear } else { ScalingLaw::Gang };
            return Ok(Speed { scaling, ..Speed::constant(1.0) });
        };
        if self.gpus() == 0.0 || kinds.is_empty() {
            return Err(FieldFault::new("batch", "a batch can only be tuned on GPUs, and there are none for this job"));
        }
        let adaptation = Adaptation {
            initial: batch.initial,
            max: batch.max,
            rule: BatchRule::Tuned { asked: None },
            kinds: kinds.iter().map(|&kind| limits_on(kind, batch)).collect(),
            restart,
        };
        // Until it has reported, more workers are taken to be faster.
        let adaptation = Some(Arc::new(adaptation));
        Ok(Speed { scaling: ScalingLaw::Linear, adaptation, ..Speed::constant(1.0) })
    }
}

fn limits_on(kind: GpuKind, batch: BatchRequest) -> KindLimits {
    let [local_min, local_max] = batch.per_gpu.unwrap_or([1, batch.max]);
    KindLimits { kind, local_min, local_max, shapes: Vec::new(), alone: None, stages: 1, workers_max: None }
}

fn kind_named(field: &str, name: &str, cluster: &Cluster) -> Result<GpuKind, FieldFault> {
    cluster.kind_named(name).ok_or_else(|| {
        let known: Vec<&str> = cluster.kinds().map(|(_, kind)| &*kind.name).collect();
        let list = if known.is_empty() { "none".into() } else { known.join(", ") };
        let message = format!("there is no GPU kind `{name}` here (there are: {list})");
        FieldFault::new(field, message).or_meant(name, known)
    })
}

fn fault(field: &str) -> FieldFault {
    FieldFault::new(field, "cannot be used")
}

/// What the engine's own examination says; the fields of a draft are not those of a request, but near.
fn of_invalid(invalid: Invalid) -> FieldFault {
    FieldFault::new(invalid.field, format!("expected {}, found {}", invalid.expected, invalid.found))
}

impl fmt::Debug for Scene<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scene").field("owner", &self.owner).field("now", &self.now).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{GpuCount, WorkersRequest};
    use cluster::{ClusterDraft, Gpus, KindDraft, NodeDraft, QueueDraft};

    fn cluster() -> Cluster {
        let kind = |name: &str, memory_gb| KindDraft { name: name.into(), memory_gb, mig: false };
        let node = |name: &str, kind: &str| NodeDraft {
            name: name.into(),
            kind: Some(kind.into()),
            gpus: 4,
            ..NodeDraft::default()
        };
        let draft = ClusterDraft {
            kinds: vec![kind("t4", 16.0), kind("a100", 40.0)],
            nodes: vec![node("n0", "t4"), node("n1", "a100")],
            ..ClusterDraft::default()
        };
        draft.build().unwrap().0
    }

    const DAY: u64 = 86_400;

    /// Builds a job on a cluster of T4s and A100s with a queue `vision`, a day after the service began in 1970.
    fn build(change: impl FnOnce(&mut JobRequest)) -> Result<Built, String> {
        let mut job = JobRequest::new(["python", "train.py"]);
        change(&mut job);
        assert_eq!(job.check(), Ok(()));
        let queues = QueueTree::build(&[QueueDraft::named("vision")], Gpus::whole(8)).unwrap();
        let claims_of = |id: JobId| match id {
            JobId { number: 7, task: None } => Some(vec![ClaimId(10), ClaimId(11)]),
            JobId { number: 7, task: Some(1) } => Some(vec![ClaimId(11)]),
            _ => None,
        };
        let scene = Scene {
            cluster: &cluster(),
            queues: &queues,
            owner: "ada",
            now: Time::from_secs(DAY),
            zero_unix_ms: 0,
            expected: Some(Span::from_secs(99)),
            claims_of: &claims_of,
        };
        job.build(&scene).map_err(|fault| fault.to_string())
    }

    fn draft(change: impl FnOnce(&mut JobRequest)) -> JobDraft {
        build(change).unwrap().draft
    }

    #[test]
    fn a_plain_command_is_a_rigid_job_on_one_gpu() {
        let built = build(|_| {}).unwrap();
        let expected = JobDraft {
            user: "ada".into(),
            expected: Some(Span::from_secs(99)),
            interruptible: false,
            recovery: Recovery { restart_cost: USUAL_RESTART, ..Recovery::default() },
            ..JobDraft::rigid("python", 1)
        };
        assert_eq!(built.draft, expected);
        assert_eq!(built.speed, Speed::constant(1.0));
    }

    #[test]
    fn only_a_job_that_can_go_on_from_a_saved_state_is_interrupted() {
        assert!(!draft(|_| {}).interruptible);
        assert!(draft(|job| job.workers = "1..2".parse().unwrap()).interruptible);
        assert!(draft(|job| job.checkpoint.grace = Some(Duration::from_secs(5))).interruptible);
        let said = draft(|job| job.interruptible = Some(true));
        assert_eq!((said.interruptible, said.pinned), (true, false));
        assert!(!draft(|_| {}).pinned, "what says nothing may be stopped while its queue borrows");
    }

    #[test]
    fn a_job_that_says_so_is_never_stopped_whatever_else_it_says() {
        let elastic = draft(|job| {
            job.workers = "1..2".parse().unwrap();
            job.interruptible = Some(false);
        });
        assert_eq!((elastic.interruptible, elastic.pinned), (false, true));
    }

    #[test]
    fn a_range_of_workers_is_elastic() {
        let built = build(|job| job.workers = WorkersRequest { min: 1, max: 8, preferred: Some(4) }).unwrap();
        assert_eq!(built.draft.scaling, Scaling::Elastic(WorkerRange { min: 1, max: 8 }));
        assert_eq!(built.draft.asked, Some(4));
        assert_eq!(built.speed.scaling, ScalingLaw::Linear);
    }

    #[test]
    fn a_batch_makes_a_job_adaptive_on_every_kind_it_may_use() {
        let batch = BatchRequest { initial: 128, max: 4096, per_gpu: Some([16, 64]) };
        let built = build(|job| {
            job.batch = Some(batch);
            job.checkpoint.restart_cost = Some(Duration::from_secs(5));
        })
        .unwrap();
        let range = BatchRange { initial: 128, max: 4096 };
        assert_eq!(built.draft.scaling, Scaling::Adaptive(WorkerRange { min: 1, max: 1 }, range));
        let adaptation = built.speed.adaptation.unwrap();
        assert_eq!((adaptation.restart, adaptation.kinds.len()), (Span::from_secs(5), 2));
        assert_eq!((adaptation.kinds[1].local_min, adaptation.kinds[1].local_max), (16, 64));

        let on_a100 = build(|job| {
            job.batch = Some(BatchRequest { per_gpu: None, ..batch });
            job.resources.gpu_kinds = vec!["a100".into()];
        });
        let adaptation = on_a100.unwrap().speed.adaptation.unwrap();
        assert_eq!(adaptation.kinds.iter().map(|limits| limits.kind).collect::<Vec<_>>(), [GpuKind(1)]);
        assert_eq!((adaptation.kinds[0].local_min, adaptation.kinds[0].local_max), (1, 4096));
        assert_eq!(adaptation.restart, USUAL_RESTART);
    }

    #[test]
    fn a_batch_without_gpus_is_refused() {
        let error = build(|job| {
            job.batch = Some(BatchRequest { initial: 1, max: 2, per_gpu: None });
            job.resources.gpus = Some(GpuCount::of(0.0));
        });
        assert_eq!(error.unwrap_err(), "batch: a batch can only be tuned on GPUs, and there are none for this job");
    }

    #[test]
    fn a_kind_may_be_said_with_the_count() {
        let draft = draft(|job| job.resources.gpus = Some("a100:4".parse().unwrap()));
        assert_eq!(draft.kinds, [GpuKind(1)]);
        assert_eq!(draft.roles[0].gpus_per_task(), Gpus::whole(4));
        let error = build(|job| {
            job.resources.gpus = Some("a100:4".parse().unwrap());
            job.resources.gpu_kinds = vec!["t4".into()];
        });
        assert_eq!(error.unwrap_err(), "resources.gpus: the kind `a100` is said here, and others in gpu_kinds");
    }

    #[test]
    fn half_a_gpu_comes_with_half_of_the_least_memory() {
        let draft = draft(|job| job.resources.gpus = Some(GpuCount::of(0.5)));
        let slice = draft.roles[0].slice.unwrap();
        let half = Bytes::new((16 << 30) / 1000 * 500);
        assert_eq!(slice.grain, Grain::Share { thousandths: 500, memory: half });
    }

    #[test]
    fn a_job_without_gpus_holds_at_least_a_core() {
        let none = |job: &mut JobRequest| job.resources.gpus = Some(GpuCount::of(0.0));
        let plain = draft(none);
        assert_eq!((plain.roles[0].slice, plain.roles[0].millicores), (None, 1000));
        let sized = draft(|job| {
            none(job);
            job.resources.cpus = Some(0.5);
            job.resources.memory = Some(Quantity::new(1 << 30));
        });
        assert_eq!((sized.roles[0].millicores, sized.roles[0].memory), (500, Bytes::gib(1)));
    }

    #[test]
    fn unknown_names_are_refused_with_what_was_meant() {
        assert_eq!(
            build(|job| job.queue = Some("vison".into())).unwrap_err(),
            "queue: there is no queue `vison`: did you mean `vision`?"
        );
        assert_eq!(
            build(|job| job.resources.gpu_kinds = vec!["t4".into(), "a10".into()]).unwrap_err(),
            "resources.gpu_kinds[1]: there is no GPU kind `a10` here (there are: t4, a100): did you mean `a100`?"
        );
        assert_eq!(
            build(|job| job.depends_on = vec![JobId::job(7), JobId::job(8)]).unwrap_err(),
            "depends_on[1]: there is no job 8"
        );
    }

    #[test]
    fn depending_on_an_array_is_depending_on_all_its_tasks() {
        let draft = draft(|job| job.depends_on = vec![JobId::task(7, 1), JobId::job(7)]);
        assert_eq!(draft.after, [ClaimId(10), ClaimId(11)]);
    }

    #[test]
    fn more_memory_than_any_gpu_has_is_refused() {
        let error = build(|job| job.resources.gpu_memory = Some(Quantity::new(80 << 30))).unwrap_err();
        assert_eq!(
            error,
            "resources.gpu_memory: expected at most the 40 GiB of the largest GPU it may use, found 80 GiB"
        );
    }

    #[test]
    fn a_deadline_is_a_moment_of_the_wall_clock() {
        let by = |text: &'static str| build(move |job| job.limits.deadline = Some(text.into()));
        assert_eq!(by("1970-01-03T00:00:00Z").unwrap().draft.deadline, Some(Time::from_secs(2 * DAY)));
        for passed in ["1970-01-02T00:00:00Z", "1969-01-01T00:00:00Z"] {
            assert_eq!(by(passed).unwrap_err(), format!("limits.deadline: {passed} has already passed"));
        }
    }

    #[test]
    fn what_the_user_expects_counts_more_than_history_and_limits() {
        let said = draft(|job| job.limits.expected_runtime = Some(Duration::from_secs(5)));
        assert_eq!(said.expected, Some(Span::from_secs(5)));
        let limited = draft(|job| job.limits.max_runtime = Some(Duration::from_secs(500)));
        assert_eq!((limited.expected, limited.limit), (Some(Span::from_secs(99)), Some(Span::from_secs(500))));
    }

    #[test]
    fn checkpoints_and_retries_are_passed_on() {
        let draft = draft(|job| {
            job.checkpoint.every = Some(Duration::from_secs(600));
            job.checkpoint.cost = Some(Duration::from_secs(5));
            job.retry.max_failures = 3;
            job.steps = Some(10);
        });
        let expected = Recovery {
            checkpoint_every: Some(Span::from_secs(600)),
            checkpoint_cost: Span::from_secs(5),
            restart_cost: USUAL_RESTART,
            retries: 3,
        };
        assert_eq!((draft.recovery, draft.ends), (expected, Ends::Iterations(10)));
    }
}
