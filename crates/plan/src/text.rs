//! Scenarios and plans as text, for tests and documentation: a cluster and some jobs in, a plan out.

use std::fmt::Write;
use std::sync::Arc;

use cluster::{
    BatchRange, Bytes, ClaimId, Cluster, ClusterDraft, Count, Devices, Ends, GpuKind, GpuTime, Gpus, Grain, JobDraft,
    MigProfile, NodeId, Placement, QueueDraft, Role, Scaling, Slice, SliceSet, Slot, Span, Time, Weight, WorkerRange,
};
use perf::{Interruption, Rates, ScalingLaw, Speed, StepReport, Truth};

use crate::books::Books;
use crate::check::check_everything;
use crate::claim::{Allotment, Phase};
use crate::policy::{Plan, Policy};
use crate::snapshot::{Budgets, Changed, Snapshot};

/// A moment in the life of a small cluster.
///
/// A job is a line: its name, then words in any order.
///
/// | words                                   | meaning                                                   |
/// |-----------------------------------------|-----------------------------------------------------------|
/// | `4 gpus`                                | four workers with a GPU each (default 1)                  |
/// | `elastic 1..8`                          | one to eight workers                                      |
/// | `adaptive 1..8 batch 32..256`           | the same, and a batch size in that range                  |
/// | `on a100\|v100`                         | only these kinds                                          |
/// | `speed a100=8 v100=1`                   | estimated iterations per second of one worker, by kind    |
/// | `share 0.5 4g`, `mig 3g`                | half a GPU with 4 GiB, a MIG instance, per worker         |
/// | `cores 4`, `memory 16g`                 | per worker                                                |
/// | `servers 1 cores 2`                     | so many parameter servers of so many cores                |
/// | `user ann`, `queue lab`, `priority 3`   | whose it is and how it counts                             |
/// | `weight 2`, `skew 0.6`                  |                                                           |
/// | `submitted 30s`, `deadline 2h`          | moments                                                   |
/// | `expected 1h`                           | the user's estimate                                       |
/// | `takes 40m`                             | what it really takes; the rest of it, for a running job   |
/// | `attained 3600`                         | GPU seconds it has had                                    |
/// | `runs n0:0-3` `runs a-0:0,a-1:0-1`      | has these devices now                                     |
/// | `resizes-in 1s`, `restarts-in 1m`       | what it measured of changing its workers in place, which  |
/// |                                         | it can then, and of being restarted                       |
/// | `since 10s`                             | when it was last launched                                 |
/// | `after prep`                            | runs after the job of that name                           |
#[derive(Debug)]
pub struct Scenario {
    books: Books,
    names: Vec<String>,
    truths: Vec<Arc<Truth>>,
    now: Time,
    budgets: Budgets,
}

impl Scenario {
    /// A cluster in short, see [`ClusterDraft::parse_short`].
    pub fn new(cluster: &str) -> Scenario {
        Scenario::with_queues(cluster, &[])
    }

    pub fn with_queues(cluster: &str, queues: &[QueueDraft]) -> Scenario {
        let draft = ClusterDraft::parse_short(cluster).unwrap_or_else(|error| panic!("{error}"));
        Scenario::from_draft(&ClusterDraft { queues: queues.to_vec(), ..draft })
    }

    pub fn from_draft(draft: &ClusterDraft) -> Scenario {
        let (cluster, queues) = draft.build().unwrap_or_else(|error| panic!("{error}"));
        let books = Books::new(cluster, queues);
        Scenario { books, names: Vec::new(), truths: Vec::new(), now: Time::ZERO, budgets: Budgets::none() }
    }

    pub fn at(mut self, now: &str) -> Scenario {
        self.now = Time::ZERO + span(now);
        self
    }

    pub fn budgets(mut self, gpus: &[u32]) -> Scenario {
        self.budgets = Budgets { of: gpus.iter().map(|&gpus| Gpus::whole(gpus)).collect() };
        self
    }

    /// A job that has already finished, for policies that learn from history.
    pub fn finished(mut self, user: &str, name: &str, executed: &str, gpus: u32) -> Scenario {
        let spec = JobDraft { user: user.into(), ..JobDraft::rigid(name, gpus) }.build().expect("a small rigid job");
        let id = self.books.submit(Time::ZERO, Arc::new(spec), Arc::new(Speed::constant(1.0)));
        self.names.push(name.into());
        self.truths.push(Arc::new(Truth::lasting(span(executed))));
        self.books.charge(Time::ZERO, id, Some(Gpus::whole(gpus)));
        self.books.end(Time::ZERO + span(executed), id, crate::claim::Outcome::Finished);
        self
    }

    pub fn job(mut self, line: &str) -> Scenario {
        let job = JobLine::parse(line, &self.books.cluster, &self.books, &self.names);
        let id = self.books.submit(job.submitted, Arc::new(job.draft.build().unwrap()), Arc::new(job.speed));
        self.names.push(job.name);
        let truth = job.takes.map_or_else(|| Truth::lasting(Span::from_hours(1)), Truth::lasting);
        self.truths.push(Arc::new(truth));
        if let Some(placement) = job.runs {
            let gpus = placement.gpus();
            let allotment = Arc::new(Allotment { placement, batch: None });
            self.books.allot(id, Some(allotment.clone()));
            let since = job.since.unwrap_or(job.submitted);
            self.books.set_phase(id, Phase::Running { holds: allotment, since: self.now });
            let progress = self.books.progress_mut(id);
            progress.launches = 1;
            progress.last_launch = Some(since);
            progress.hold(self.now, Some(gpus));
        }
        for interruption in job.interruptions {
            let resizable = matches!(interruption, Interruption::Resize(_));
            let report = StepReport { resizable, interruption: Some(interruption), ..StepReport::default() };
            self.books.progressed(self.now, id, &report);
        }
        if let Some(attained) = job.attained {
            let gpus = self.books.claim(id).gpus();
            let executed = if gpus.is_zero() { Span::ZERO } else { attained.held_by(gpus) };
            self.books.progress_mut(id).set_attained(attained, executed);
        }
        self
    }

    /// What the policy would change now, and what it would not, one line a job that is or will be running.
    pub fn plan(&self, policy: &mut dyn Policy) -> String {
        let plan = self.ask(policy);
        self.print(&plan)
    }

    /// Compares with the expected text, after checking the plan.
    #[track_caller]
    pub fn check(&self, policy: &mut dyn Policy, expected: &str) {
        let found = self.plan(policy);
        let trimmed: Vec<&str> = expected.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        assert_eq!(found.trim_end(), trimmed.join("\n"));
    }

    /// The reason the plan gives for a job, if it gives a new one.
    pub fn reason(&self, policy: &mut dyn Policy, job: &str) -> Option<String> {
        let plan = self.ask(policy);
        let id = self.id(job);
        plan.notes.iter().find(|(claim, _)| *claim == id).map(|(_, note)| note.to_string())
    }

    /// The raw plan, checked.
    pub fn ask(&self, policy: &mut dyn Policy) -> Plan {
        let truths = (!policy.knows().is_empty()).then_some(self.truths.as_slice());
        let snapshot = self.snapshot(truths);
        let plan = policy.plan(&snapshot);
        let faults = check_everything(&plan, &snapshot);
        assert!(faults.is_empty(), "the plan is faulty: {faults:?}");
        plan
    }

    pub fn snapshot<'a>(&'a self, truths: Option<&'a [Arc<Truth>]>) -> Snapshot<'a> {
        Snapshot { now: self.now, books: &self.books, changed: Changed::Everything, budgets: &self.budgets, truths }
    }

    pub fn id(&self, job: &str) -> ClaimId {
        let index = self.names.iter().rposition(|name| name == job);
        ClaimId(index.unwrap_or_else(|| panic!("there is no job {job}")) as u32)
    }

    /// Jobs that have devices after the plan, in order of submission: `name: n0:0-3`.
    fn print(&self, plan: &Plan) -> String {
        let mut text = String::new();
        for claim in self.books.claims().iter() {
            let change = plan.changes.iter().find(|(id, _)| *id == claim.id);
            let after = change.map_or(claim.target.as_ref(), |(_, allotment)| allotment.as_ref());
            if let Some(allotment) = after {
                let place = placement(&self.books.cluster, &allotment.placement);
                let batch = allotment.batch.map_or(String::new(), |batch| format!(" batch {batch}"));
                writeln!(text, "{}: {place}{batch}", self.names[claim.id.0 as usize]).expect("a string grows");
            }
        }
        text
    }
}

/// A placement as `n0:0-3 n1:0`; a slot without devices as `n0`.
pub fn placement(cluster: &Cluster, placement: &Placement) -> String {
    let slots = placement.slots().iter().map(|slot| {
        let node = &cluster.node(slot.node).name;
        let role = if slot.role == 0 { String::new() } else { format!("/{}", slot.role) };
        let part = match slot.slices.grain {
            Grain::Whole => String::new(),
            Grain::Mig(profile) => format!("~{}", profile.name()),
            Grain::Share { thousandths, .. } => format!("~{}", f64::from(thousandths) / 1e3),
        };
        match slot.slices.devices.is_empty() {
            true => format!("{node}{role}*{}", slot.tasks),
            false => format!("{node}{role}:{}{part}", slot.slices.devices),
        }
    });
    slots.collect::<Vec<_>>().join(" ")
}

/// `1h30m`, `45s`, `250ms`, or a bare number of seconds.
pub fn span(text: &str) -> Span {
    parse_span(text).unwrap_or_else(|| panic!("`{text}` is no span of time like 1h30m"))
}

/// `1h30m`, `45s`, `250ms`, or a bare number of seconds; `None` if it is none of these.
pub fn parse_span(text: &str) -> Option<Span> {
    if let Ok(secs) = text.parse::<f64>() {
        return (0.0..1e15).contains(&secs).then(|| Span::from_secs_f64(secs));
    }
    let mut total = Span::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).filter(|&digits| digits > 0)?;
        let number: u64 = rest[..digits].parse().ok()?;
        let unit_end = rest[digits..].find(|c: char| c.is_ascii_digit()).map_or(rest.len(), |at| digits + at);
        let millis = match &rest[digits..unit_end] {
            "ms" => 1,
            "s" => 1000,
            "m" | "min" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        total += Span::from_millis(number.checked_mul(millis)?);
        rest = &rest[unit_end..];
    }
    (!text.is_empty()).then_some(total)
}

struct JobLine {
    name: String,
    draft: JobDraft,
    speed: Speed,
    submitted: Time,
    takes: Option<Span>,
    attained: Option<GpuTime>,
    runs: Option<Placement>,
    since: Option<Time>,
    /// That of changing its workers in place last.
    interruptions: Vec<Interruption>,
}

impl JobLine {
    fn parse(line: &str, cluster: &Cluster, books: &Books, names: &[String]) -> JobLine {
        let mut words = line.split_whitespace().peekable();
        let name = words.next().expect("a job line starts with a name").trim_end_matches(':').to_string();
        let mut draft = JobDraft { name: name.as_str().into(), ..JobDraft::rigid(name.as_str(), 1) };
        let mut speed = Speed::constant(1.0);
        let (mut submitted, mut takes, mut attained, mut since) = (Time::ZERO, None, None, None);
        let (mut places, mut interruptions) = (Vec::new(), Vec::new());
        let mut in_servers = false;
        let kind = |name: &str| cluster.kind_named(name).unwrap_or_else(|| panic!("no kind {name}"));
        while let Some(word) = words.next() {
            let mut next = || words.next().unwrap_or_else(|| panic!("something after `{word}` in `{line}`"));
            match word {
                "elastic" => draft.scaling = Scaling::Elastic(workers(next())),
                "adaptive" => {
                    let range = workers(next());
                    assert_eq!(next(), "batch", "a batch range in `{line}`");
                    let WorkerRange { min: initial, max } = workers(next());
                    draft.scaling = Scaling::Adaptive(range, BatchRange { initial, max });
                }
                "on" => draft.kinds = next().split('|').map(kind).collect(),
                "speed" => {
                    let mut table: Vec<(GpuKind, f64)> = Vec::new();
                    while let Some((name, rate)) = words.peek().and_then(|word| word.split_once('=')) {
                        table.push((kind(name), rate.parse().expect("a rate")));
                        words.next();
                    }
                    speed = Speed { rates: Rates::ByKind(table), scaling: ScalingLaw::Linear, ..speed };
                }
                "share" => {
                    let share: f64 = next().parse().expect("a share of a GPU");
                    let memory = gib(next());
                    let grain = Grain::Share { thousandths: (share * 1000.0).round() as u16, memory };
                    draft.roles[0].slice = Some(Slice { grain, count: 1, memory });
                }
                "mig" => {
                    let name = next();
                    let profile = MigProfile::ALL.into_iter().find(|profile| profile.name() == name);
                    let grain = Grain::Mig(profile.unwrap_or_else(|| panic!("no MIG profile {name}")));
                    draft.roles[0].slice = Some(Slice { grain, count: 1, memory: Bytes::ZERO });
                }
                "cpu" => draft.roles[0].slice = None,
                "servers" => {
                    in_servers = true;
                    let count = Count::Fixed(next().parse().expect("a number of servers"));
                    let name = "server".into();
                    draft.roles.push(Role { name, count, slice: None, millicores: 1000, memory: Bytes::ZERO });
                }
                "cores" => {
                    let millicores = (next().parse::<f64>().expect("a number of cores") * 1000.0) as u32;
                    draft.roles[usize::from(in_servers)].millicores = millicores;
                }
                "memory" => draft.roles[usize::from(in_servers)].memory = gib(next()),
                "device-memory" => {
                    let slice = draft.roles[0].slice.as_mut().expect("a job with GPUs");
                    slice.memory = gib(next());
                }
                "user" => draft.user = next().into(),
                "queue" => draft.queue = books.queues.named(next()).expect("a queue"),
                "priority" => draft.priority = next().parse().expect("a priority"),
                "weight" => draft.weight = Weight::from_f64(next().parse().expect("a weight")).expect("a weight"),
                "skew" => draft.skew = Some((next().parse::<f64>().expect("a skew") * 1000.0) as u16),
                "submitted" => submitted = Time::ZERO + span(next()),
                "since" => since = Some(Time::ZERO + span(next())),
                "restarts-in" => interruptions.insert(0, Interruption::Restart(span(next()))),
                "resizes-in" => interruptions.push(Interruption::Resize(span(next()))),
                "deadline" => draft.deadline = Some(Time::ZERO + span(next())),
                "expected" => draft.expected = Some(span(next())),
                "iterations" => draft.ends = Ends::Iterations(next().parse().expect("a number of iterations")),
                "takes" => takes = Some(span(next())),
                "attained" => attained = Some(GpuTime::from_gpu_secs(next().parse().expect("GPU seconds"))),
                "after" => {
                    let name = next();
                    let index = names.iter().position(|known| known == name).expect("a job that stands before");
                    draft.after.push(ClaimId(index as u32));
                }
                "runs" => places.push(next().to_string()),
                number => {
                    let count = number.parse().unwrap_or_else(|_| panic!("unknown word `{number}` in `{line}`"));
                    assert!(matches!(next(), "gpus" | "gpu" | "workers"), "a number of gpus in `{line}`");
                    draft.scaling = Scaling::Rigid(count);
                }
            }
        }
        let runs = (!places.is_empty()).then(|| place(cluster, &draft, &places));
        JobLine { name, draft, speed, submitted, takes, attained, runs, since, interruptions }
    }
}

/// `n0:0-3` or `n0:0,2`, one or more.
fn place(cluster: &Cluster, draft: &JobDraft, places: &[String]) -> Placement {
    let role = &draft.roles[0];
    let slot = |text: &String| {
        let (node, devices) = text.split_once(':').expect("a node and its devices");
        let node: NodeId = cluster.node_named(node).unwrap_or_else(|| panic!("no node {node}"));
        let devices = devices.split(',').map(range).fold(Devices::NONE, Devices::union);
        let slice = role.slice.expect("a job with GPUs");
        let tasks = devices.count() / slice.count;
        let slices = SliceSet { devices, grain: slice.grain };
        Slot { node, role: 0, tasks, slices, millicores: role.millicores * tasks, memory: role.memory * tasks }
    };
    Placement::new(places.iter().map(slot).collect())
}

fn range(text: &str) -> Devices {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last): (u32, u32) = (first.parse().expect("a device"), last.parse().expect("a device"));
    Devices::first(last + 1).without(Devices::first(first))
}

fn workers(text: &str) -> WorkerRange {
    let (min, max) = text.split_once("..").unwrap_or_else(|| panic!("`{text}` is no range like 1..8"));
    WorkerRange { min: min.parse().expect("a number"), max: max.parse().expect("a number") }
}

fn gib(text: &str) -> Bytes {
    Bytes::gib(text.trim_end_matches('g').parse().expect("a number of GiB like 16g"))
}
