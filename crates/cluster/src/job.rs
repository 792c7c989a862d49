//! What a user asks for: a training job, immutable once submitted.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::machine::GpuKind;
use crate::placement::Grain;
use crate::queue::QueueId;
use crate::units::{Bytes, Gpus, Span, Time, Weight};

/// A name people gave; shared, because thousands of jobs carry the same one.
pub type Name = Arc<str>;

/// Whatever wants GPUs, by the order of submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClaimId(pub u32);

/// One launch of a claim. Reports that carry an older attempt are recognised and dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Run {
    pub claim: ClaimId,
    pub attempt: u32,
}

/// How many workers a job may have, and what else may change with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Scaling {
    /// So many workers, no more and no fewer.
    Rigid(u32),
    /// Any number of workers in the range; the batch size stays.
    Elastic(WorkerRange),
    /// Any number of workers in the range, and any batch size in its own.
    Adaptive(WorkerRange, BatchRange),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WorkerRange {
    pub min: u32,
    pub max: u32,
}

/// Examples in one step over all workers: what the user would choose, and how far it may grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BatchRange {
    pub initial: u32,
    pub max: u32,
}

/// One sort of task within a job. The first role of a job is its workers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Role {
    pub name: Name,
    pub count: Count,
    /// What each task takes of accelerators; none for a parameter server or a job on a CPU cluster.
    pub slice: Option<Slice>,
    pub millicores: u32,
    pub memory: Bytes,
}

/// How many tasks of a role there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Count {
    /// As many as the job has workers.
    Scaled,
    Fixed(u32),
    /// One for every so many workers, rounded up.
    OnePer(u32),
}

/// What one task takes of accelerators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Slice {
    pub grain: Grain,
    /// Slices of that grain, each on a device of its own, all on one node.
    pub count: u32,
    /// Device memory each slice needs.
    pub memory: Bytes,
}

/// When a job is done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Ends {
    /// When its program ends; nobody is told beforehand.
    Itself,
    Iterations(u64),
    Epochs {
        epochs: u64,
        iterations_each: u64,
    },
    /// When a metric that falls reaches a value, or after so many iterations.
    Target {
        metric: Name,
        value: f64,
        at_most: u64,
    },
    /// When a metric that falls no longer does: its relative decline over a window of iterations stays below a
    /// threshold; or after so many iterations.
    Converged {
        metric: Name,
        decline: f64,
        window: u64,
        at_most: u64,
    },
}

/// What interruptions cost a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Recovery {
    /// How often it saves its state while it runs; without it, a crash loses everything since the launch.
    pub checkpoint_every: Option<Span>,
    /// How long one save takes; paid at every save and when the job is told to stop.
    pub checkpoint_cost: Span,
    /// How long it takes from launch to the first step after the first launch.
    pub restart_cost: Span,
    /// How often it may crash before it is given up. Preemptions and lost nodes never count.
    pub retries: u32,
}

/// A training job as submitted: a [`JobDraft`] that was examined, so whoever holds one can rely on it. Its fields are the
/// draft's, to be read; only its deadline may move.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "JobDraft", into = "JobDraft")]
pub struct JobSpec(JobDraft);

/// A job as written down; may still be nonsense.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobDraft {
    pub name: Name,
    pub user: Name,
    pub queue: QueueId,
    /// Higher goes first where a policy looks at it.
    pub priority: i32,
    pub weight: Weight,
    pub scaling: Scaling,
    /// The workers a user would ask for of a scheduler that does not choose their number; the fewest, if nothing is said.
    pub asked: Option<u32>,
    /// The workers first.
    pub roles: Vec<Role>,
    /// The kinds of GPU it can use; empty means any.
    pub kinds: Vec<GpuKind>,
    pub ends: Ends,
    pub deadline: Option<Time>,
    /// Jobs that must have finished before this one may start.
    pub after: Vec<ClaimId>,
    /// How long the user thinks it will run with the workers asked for.
    pub expected: Option<Span>,
    /// How long it may hold devices, over all its runs, before it is ended.
    #[serde(default)]
    pub limit: Option<Span>,
    /// Whether it may be stopped to make room; one that does not save its state would lose everything by that.
    #[serde(default = "yes")]
    pub interruptible: bool,
    /// Its user said that it must never be stopped to make room, not even while its queue borrows. One that only says
    /// nothing of how it goes on after a stop may be stopped while it borrows.
    #[serde(default, skip_serializing_if = "is_false")]
    pub pinned: bool,
    /// Largest tensor over all parameters, in thousandths: how much it suffers from being scattered (Tiresias).
    pub skew: Option<u16>,
    pub recovery: Recovery,
}

fn yes() -> bool {
    true
}

fn is_false(value: &bool) -> bool {
    !value
}

/// Which field is wrong, what was expected there, and what was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invalid {
    pub field: String,
    pub expected: String,
    pub found: String,
}

impl Scaling {
    pub fn min(self) -> u32 {
        match self {
            Scaling::Rigid(workers) => workers,
            Scaling::Elastic(range) | Scaling::Adaptive(range, _) => range.min,
        }
    }

    pub fn max(self) -> u32 {
        match self {
            Scaling::Rigid(workers) => workers,
            Scaling::Elastic(range) | Scaling::Adaptive(range, _) => range.max,
        }
    }

    pub fn allows(self, workers: u32) -> bool {
        (self.min()..=self.max()).contains(&workers)
    }

    pub fn batch(self) -> Option<BatchRange> {
        match self {
            Scaling::Adaptive(_, batch) => Some(batch),
            Scaling::Rigid(_) | Scaling::Elastic(_) => None,
        }
    }
}

impl Role {
    /// Workers that take whole GPUs, one each, and nothing else.
    pub fn worker() -> Role {
        Role {
            name: "worker".into(),
            count: Count::Scaled,
            slice: Some(Slice { grain: Grain::Whole, count: 1, memory: Bytes::ZERO }),
            millicores: 0,
            memory: Bytes::ZERO,
        }
    }

    pub fn tasks(&self, workers: u32) -> u32 {
        match self.count {
            Count::Scaled => workers,
            Count::Fixed(tasks) => tasks,
            Count::OnePer(several) => workers.div_ceil(several),
        }
    }

    pub fn gpus_per_task(&self) -> Gpus {
        self.slice.map_or(Gpus::ZERO, |slice| slice.grain.share() * slice.count)
    }
}

impl JobSpec {
    /// Any moment may be a deadline.
    pub fn set_deadline(&mut self, deadline: Time) {
        self.0.deadline = Some(deadline);
    }

    /// The same job, to be run after these.
    pub fn run_after(self, after: Vec<ClaimId>) -> JobSpec {
        JobSpec(JobDraft { after, ..self.0 })
    }

    /// What the job takes of GPUs with so many workers.
    pub fn gpus(&self, workers: u32) -> Gpus {
        self.roles.iter().map(|role| role.gpus_per_task() * role.tasks(workers)).sum()
    }

    /// The least it can run with.
    pub fn min_gpus(&self) -> Gpus {
        self.gpus(self.scaling.min())
    }

    /// The workers it has where nobody chooses their number.
    pub fn asked_workers(&self) -> u32 {
        self.asked.unwrap_or(self.scaling.min())
    }

    /// What these take.
    pub fn asked_gpus(&self) -> Gpus {
        self.gpus(self.asked_workers())
    }

    pub fn allows_kind(&self, kind: GpuKind) -> bool {
        self.kinds.is_empty() || self.kinds.contains(&kind)
    }

    pub fn uses_gpus(&self) -> bool {
        self.roles.iter().any(|role| role.slice.is_some())
    }

    /// The iterations after which it ends at the latest, where it says so.
    pub fn iterations(&self) -> Option<u64> {
        match self.ends {
            Ends::Itself => None,
            Ends::Iterations(iterations) => Some(iterations),
            Ends::Epochs { epochs, iterations_each } => Some(epochs.saturating_mul(iterations_each)),
            Ends::Target { at_most, .. } | Ends::Converged { at_most, .. } => Some(at_most),
        }
    }
}

impl JobDraft {
    /// A rigid job of so many one-GPU workers that ends by itself.
    pub fn rigid(name: impl Into<Name>, workers: u32) -> JobDraft {
        JobDraft {
            name: name.into(),
            user: "user".into(),
            queue: QueueId::ROOT,
            priority: 0,
            weight: Weight::ONE,
            scaling: Scaling::Rigid(workers),
            asked: None,
            roles: vec![Role::worker()],
            kinds: Vec::new(),
            ends: Ends::Itself,
            deadline: None,
            after: Vec::new(),
            expected: None,
            limit: None,
            interruptible: true,
            pinned: false,
            skew: None,
            recovery: Recovery { retries: 3, ..Recovery::default() },
        }
    }

    pub fn build(self) -> Result<JobSpec, Invalid> {
        JobSpec::try_from(self)
    }

    fn fault(&self) -> Option<Invalid> {
        self.scaling_fault().or_else(|| self.role_fault()).or_else(|| self.ends_fault()).or_else(|| {
            let skew = self.skew.filter(|&skew| skew > 1000)?;
            Some(Invalid::new("skew", "a share of at most 1000 thousandths", skew))
        })
    }

    fn scaling_fault(&self) -> Option<Invalid> {
        let (min, max) = (self.scaling.min(), self.scaling.max());
        if min == 0 {
            return Some(Invalid::new("workers", "at least 1", min));
        }
        if max < min {
            return Some(Invalid::new("workers", format!("a maximum of at least {min}"), max));
        }
        if let Some(asked) = self.asked.filter(|&asked| !self.scaling.allows(asked)) {
            return Some(Invalid::new("asked", format!("from {min} to {max} workers"), asked));
        }
        let batch = self.scaling.batch()?;
        if batch.initial == 0 {
            return Some(Invalid::new("batch.initial", "at least 1", 0));
        }
        (batch.max < batch.initial)
            .then(|| Invalid::new("batch.max", format!("at least the initial {}", batch.initial), batch.max))
    }

    fn role_fault(&self) -> Option<Invalid> {
        let Some(first) = self.roles.first() else {
            return Some(Invalid::new("roles", "at least the workers", "none"));
        };
        if first.count != Count::Scaled {
            return Some(Invalid::new("roles[0].count", "the workers, whose number scales", "a fixed number"));
        }
        if self.roles.len() > 16 {
            return Some(Invalid::new("roles", "at most 16 roles", self.roles.len()));
        }
        self.roles.iter().enumerate().find_map(|(index, role)| role.fault().map(|fault| fault.within("roles", index)))
    }

    fn ends_fault(&self) -> Option<Invalid> {
        let none = |field, count: u64| (count == 0).then(|| Invalid::new(field, "at least 1", 0));
        match &self.ends {
            Ends::Itself => None,
            Ends::Iterations(iterations) => none("ends.iterations", *iterations),
            Ends::Epochs { epochs, iterations_each } => {
                none("ends.epochs", *epochs).or_else(|| none("ends.iterations_each", *iterations_each))
            }
            Ends::Target { value, at_most, .. } => none("ends.at_most", *at_most)
                .or_else(|| (!value.is_finite()).then(|| Invalid::new("ends.value", "a finite number", value))),
            Ends::Converged { decline, window, at_most, .. } => {
                none("ends.at_most", *at_most).or_else(|| none("ends.window", *window)).or_else(|| {
                    let share = *decline > 0.0 && *decline < 1.0;
                    (!share).then(|| Invalid::new("ends.decline", "a share between 0 and 1", decline))
                })
            }
        }
    }
}

impl Role {
    fn fault(&self) -> Option<Invalid> {
        if matches!(self.count, Count::Fixed(0) | Count::OnePer(0)) {
            return Some(Invalid::new("roles.count", "at least 1", 0));
        }
        let Some(slice) = self.slice else {
            let nothing = self.millicores == 0 && self.memory == Bytes::ZERO;
            return nothing.then(|| Invalid::new("roles", "GPUs, cores or memory for every role", "none"));
        };
        if slice.count == 0 {
            return Some(Invalid::new("roles.slice.count", "at least 1", 0));
        }
        match slice.grain {
            Grain::Share { thousandths, .. } if !(1..1000).contains(&thousandths) => Some(Invalid::new(
                "roles.slice.share",
                "between 0.001 and 0.999 of a GPU",
                f64::from(thousandths) / 1e3,
            )),
            Grain::Share { memory, .. } if memory != slice.memory => {
                Some(Invalid::new("roles.slice.memory", format!("the share's own {memory}"), slice.memory))
            }
            _ => None,
        }
    }
}

impl TryFrom<JobDraft> for JobSpec {
    type Error = Invalid;

    fn try_from(draft: JobDraft) -> Result<JobSpec, Invalid> {
        match draft.fault() {
            None => Ok(JobSpec(draft)),
            Some(fault) => Err(fault),
        }
    }
}

impl From<JobSpec> for JobDraft {
    fn from(spec: JobSpec) -> JobDraft {
        spec.0
    }
}

impl Deref for JobSpec {
    type Target = JobDraft;

    fn deref(&self) -> &JobDraft {
        &self.0
    }
}

impl Invalid {
    pub fn new(field: &str, expected: impl Into<String>, found: impl fmt::Display) -> Invalid {
        Invalid { field: field.into(), expected: expected.into(), found: found.to_string() }
    }

    /// The same fault in element `index` of the list `list`, whose name the field may already start with.
    pub fn within(mut self, list: &str, index: usize) -> Invalid {
        let rest = self.field.strip_prefix(list).map(str::to_string).unwrap_or(format!(".{}", self.field));
        self.field = format!("{list}[{index}]{rest}");
        self
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected {}, found {}", self.field, self.expected, self.found)
    }
}

impl std::error::Error for Invalid {}

impl fmt::Display for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.claim, self.attempt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(draft: JobDraft) -> String {
        draft.build().expect_err("the draft is faulty").to_string()
    }

    #[test]
    fn a_job_of_no_workers_is_nonsense() {
        assert_eq!(fault(JobDraft::rigid("a", 0)), "workers: expected at least 1, found 0");
    }

    #[test]
    fn a_range_that_ends_before_it_starts_is_nonsense() {
        let scaling = Scaling::Elastic(WorkerRange { min: 4, max: 2 });
        let draft = JobDraft { scaling, ..JobDraft::rigid("a", 1) };
        assert_eq!(fault(draft), "workers: expected a maximum of at least 4, found 2");
    }

    #[test]
    fn a_wish_outside_the_range_is_nonsense() {
        let scaling = Scaling::Elastic(WorkerRange { min: 2, max: 4 });
        let draft = |asked| JobDraft { scaling, asked, ..JobDraft::rigid("a", 1) };
        assert_eq!(fault(draft(Some(8))), "asked: expected from 2 to 4 workers, found 8");
        let asked = |asked| draft(asked).build().unwrap().asked_workers();
        assert_eq!((asked(Some(3)), asked(None)), (3, 2));
    }

    #[test]
    fn a_role_that_takes_nothing_is_nonsense() {
        let mut draft = JobDraft::rigid("a", 1);
        draft.roles.push(Role { slice: None, count: Count::Fixed(1), ..Role::worker() });
        assert_eq!(fault(draft), "roles[1]: expected GPUs, cores or memory for every role, found none");
    }

    #[test]
    fn parameter_servers_follow_the_workers() {
        let role = Role { count: Count::OnePer(4), ..Role::worker() };
        assert_eq!((role.tasks(1), role.tasks(4), role.tasks(5)), (1, 1, 2));
    }

    #[test]
    fn a_decline_that_is_no_share_is_nonsense() {
        let ends = Ends::Converged { metric: "loss".into(), decline: f64::NAN, window: 10, at_most: 100 };
        let draft = JobDraft { ends, ..JobDraft::rigid("a", 1) };
        assert_eq!(fault(draft), "ends.decline: expected a share between 0 and 1, found NaN");
    }
}
