//! Numbers for Prometheus: counters and distributions of what happened, and what is the case when somebody asks. Base
//! units, no label that grows with the number of jobs.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use api::RestartReport;
use cluster::Time;
use engine::{Command, Event};
use executors::Delivery;
use plan::{Claim, FailureCause, Outcome, Phase};
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::exemplar::HistogramWithExemplars;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use crate::fact::Fact;
use crate::replica::Shown;

/// A job that ran shorter is taken to have run this long, or one resize in a second would count as thousands an hour.
const SHORTEST_SECONDS: f64 = 60.0;

/// Label names and values.
type Labels = Vec<(&'static str, String)>;
type Count = Family<Labels, Counter>;
type Level = Family<Labels, Gauge<f64, AtomicU64>>;

#[derive(Debug)]
pub struct Measures {
    submitted: Count,
    finished: Count,
    decisions: Count,
    preempted: Count,
    failures: Count,
    resizes: Count,
    interruptions: Family<Labels, Histogram, fn() -> Histogram>,
    resizes_per_hour: Histogram,
    deadline_misses: Count,
    dropped_reports: Count,
    unread_progress: Count,
    notifications: Count,
    cycle: HistogramWithExemplars<Vec<(String, String)>>,
    queue_wait: Histogram,
}

impl Default for Measures {
    fn default() -> Measures {
        Measures {
            submitted: Count::default(),
            finished: Count::default(),
            decisions: Count::default(),
            preempted: Count::default(),
            failures: Count::default(),
            resizes: Count::default(),
            interruptions: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.01, 4.0, 10))),
            resizes_per_hour: Histogram::new(exponential_buckets(0.25, 2.0, 12)),
            deadline_misses: Count::default(),
            dropped_reports: Count::default(),
            unread_progress: Count::default(),
            notifications: Count::default(),
            cycle: HistogramWithExemplars::new(exponential_buckets(1e-5, 4.0, 12)),
            queue_wait: Histogram::new(exponential_buckets(0.1, 4.0, 12)),
        }
    }
}

impl Measures {
    /// How long a step took in which the policy was asked.
    pub(crate) fn decided(&self, facts: &[Fact], decision: u64, took: Duration) {
        let asked = |fact: &&Fact| matches!(fact, Fact::Core(Event::Planned(_) | Event::PlanRefused { .. }));
        if facts.iter().any(|fact| asked(&fact)) {
            let exemplar = vec![("decision".to_string(), decision.to_string())];
            self.cycle.observe(took.as_secs_f64(), Some(exemplar), None);
        }
    }

    /// What jobs reported beyond what they may.
    pub(crate) fn dropped(&self, reports: u64, bytes: u64) {
        self.dropped_reports.get_or_create(&Labels::new()).inc_by(reports);
        self.unread_progress.get_or_create(&Labels::new()).inc_by(bytes);
    }

    /// Counts a fact; `before` is what was the case before it.
    pub(crate) fn observe(&self, now: Time, fact: &Fact, before: &Shown) {
        let event = match fact {
            Fact::Core(event) => event,
            Fact::Reported { report, .. } => return report.restart.iter().for_each(|it| self.interrupted(it)),
            Fact::Notified { delivery, .. } => {
                let outcome = match delivery {
                    Delivery::Delivered => "delivered",
                    Delivery::Failed(_) => "failed",
                    Delivery::Dropped => "dropped",
                };
                return count(&self.notifications, [("outcome", outcome.into())]);
            }
            Fact::Numbered(_)
            | Fact::Identified { .. }
            | Fact::NotResized { .. }
            | Fact::Ended { .. }
            | Fact::Clock(_)
            | Fact::NotificationDue(_)
            | Fact::Did { .. }
            | Fact::TokenMade { .. }
            | Fact::TokenRevoked { .. } => return,
        };
        let claims = || before.state.books().claims();
        match event {
            Event::ClaimSubmitted { .. } => count(&self.submitted, [("result", "accepted".into())]),
            Event::ClaimRefused { .. } => count(&self.submitted, [("result", "refused".into())]),
            Event::Planned(_) => count(&self.decisions, [("action", "plan".into()), ("result", "accepted".into())]),
            Event::PlanRefused { .. } => {
                count(&self.decisions, [("action", "plan".into()), ("result", "refused".into())]);
            }
            Event::Issued(command) => self.ordered(command, before),
            Event::RunStarted { run } => {
                let claim = claims().claim(run.claim);
                let began = claim.progress.last_launch.unwrap_or(now);
                self.queue_wait.observe(began.since(claim.progress.waiting_since).as_secs_f64());
            }
            Event::RunResized { .. } => count(&self.resizes, [("result", "done".into())]),
            Event::RunNotResized { .. } => count(&self.resizes, [("result", "withdrawn".into())]),
            Event::RunFailed { why, .. } => count(&self.failures, [("reason", cause(*why).into())]),
            Event::RunFinished { run } => self.ended(now, claims().claim(run.claim), Outcome::Finished),
            Event::ClaimEnded { claim, outcome } => self.ended(now, claims().claim(*claim), *outcome),
            Event::ClaimCancelled { claim } => self.ended(now, claims().claim(*claim), Outcome::Cancelled),
            Event::LimitReached { claim } => self.ended(now, claims().claim(*claim), Outcome::TimedOut),
            _ => {}
        }
    }

    fn ordered(&self, command: &Command, before: &Shown) {
        let action = match command {
            Command::Launch { run, .. } => {
                let first = before.state.books().claim(run.claim).progress.launches == 0;
                if first { "start" } else { "restart" }
            }
            Command::Stop { run, .. } => {
                let claim = before.state.books().claim(run.claim);
                if claim.leaves_as.is_none() && !claim.held {
                    let queue = before.state.books().queues.queue(claim.spec.queue).name.to_string();
                    count(&self.preempted, [("queue", queue)]);
                }
                "stop"
            }
            Command::Retune { .. } => "retune",
            Command::Resize { .. } => "resize",
            Command::Provision { .. } => "provision",
            Command::Release { .. } => "release",
        };
        count(&self.decisions, [("action", action.into()), ("result", "issued".into())]);
    }

    fn interrupted(&self, report: &RestartReport) {
        for (phase, seconds) in report.phases.measured() {
            let labels = vec![("kind", report.kind.name().to_string()), ("phase", phase.to_string())];
            self.interruptions.get_or_create(&labels).observe(seconds);
        }
    }

    fn ended(&self, now: Time, claim: &Claim, outcome: Outcome) {
        count(&self.finished, [("outcome", format!("{outcome:?}"))]);
        if let Some(resizes) = resizes_per_hour(now, claim) {
            self.resizes_per_hour.observe(resizes);
        }
        if claim.spec.deadline.is_some_and(|deadline| now > deadline) {
            count(&self.deadline_misses, []);
        }
    }

    /// Everything, in the text format of OpenMetrics.
    pub fn text(&self, shown: &Shown) -> Result<String, fmt::Error> {
        let mut registry = Registry::with_prefix("moira");
        registry.register("submitted_jobs", "jobs submitted", self.submitted.clone());
        registry.register("finished_jobs", "jobs that ended, by how", self.finished.clone());
        registry.register("decisions", "decisions and the orders that followed", self.decisions.clone());
        registry.register("preempted_jobs", "orders to stop a job to make room", self.preempted.clone());
        registry.register("run_failures", "runs that failed, by cause", self.failures.clone());
        registry.register("resizes", "changes of workers without a restart, by how they ended", self.resizes.clone());
        registry.register(
            "interruption_seconds",
            "time between two steps of a job that was restarted or resized, by phase",
            self.interruptions.clone(),
        );
        registry.register(
            "resizes_per_hour",
            "how often a job that ended was resized or preempted, for each hour it ran",
            self.resizes_per_hour.clone(),
        );
        registry.register("deadline_misses", "jobs that ended after their deadline", self.deadline_misses.clone());
        registry.register(
            "dropped_reports",
            "reports of jobs beyond 10 a second, in files or over HTTP",
            self.dropped_reports.clone(),
        );
        registry.register(
            "unread_progress_bytes",
            "bytes of progress beyond 1 MiB a second",
            self.unread_progress.clone(),
        );
        registry.register(
            "notifications",
            "messages about jobs to whom their users named, by what came of them",
            self.notifications.clone(),
        );
        registry.register("schedule_cycle_duration_seconds", "time of a step with a decision", self.cycle.clone());
        registry.register("queue_wait_seconds", "time from waiting to launch", self.queue_wait.clone());
        Levels::of(shown).register(&mut registry);
        let mut text = String::new();
        encode_registry(&mut text, &registry)?;
        encode_eof(&mut text)?;
        Ok(text)
    }
}

/// What is the case at the moment.
#[derive(Default)]
struct Levels {
    pending_jobs: Level,
    pending_gpus: Level,
    running_jobs: Level,
    allocated_gpus: Level,
    capacity_gpus: Level,
    quota_gpus: Level,
    fair_share: Level,
    most_resizes: Level,
    last_decision: Level,
    journal_entries: Level,
    ready: Level,
    degraded: Level,
}

impl Levels {
    fn of(shown: &Shown) -> Levels {
        let levels = Levels::default();
        let books = shown.state.books();
        let queue = |claim: &Claim| books.queues.queue(claim.spec.queue).name.to_string();
        let kind = |claim: &Claim| {
            let kind = claim.holds().and_then(|holds| holds.placement.kind(&books.cluster));
            kind.map_or("none".into(), |kind| books.cluster.kind(kind).name.to_string())
        };
        let mut by: BTreeMap<(u8, Labels), f64> = BTreeMap::new();
        let mut add = |which: u8, labels: Labels, value: f64| *by.entry((which, labels)).or_default() += value;
        for claim in books.claims().live() {
            match &claim.phase {
                Phase::Waiting => {
                    add(0, vec![("queue", queue(claim)), ("reason", claim.note.reason.to_string())], 1.0);
                    add(1, vec![("queue", queue(claim))], claim.spec.min_gpus().as_f64());
                }
                Phase::Starting { .. } | Phase::Running { .. } | Phase::Stopping { .. } => {
                    add(2, vec![("queue", queue(claim))], 1.0);
                    let labels = vec![("queue", queue(claim)), ("gpu_type", kind(claim))];
                    add(3, labels, claim.occupies().map(|placement| placement.gpus().as_f64()).sum());
                }
                Phase::Ended { .. } => {}
            }
        }
        let tables = [&levels.pending_jobs, &levels.pending_gpus, &levels.running_jobs, &levels.allocated_gpus];
        for ((which, labels), value) in by {
            tables[usize::from(which)].get_or_create(&labels).set(value);
        }
        let resizes = books.claims().live().filter_map(|claim| resizes_per_hour(shown.state.now(), claim));
        levels.most_resizes.get_or_create(&Vec::new()).set(resizes.fold(0.0, f64::max));
        for (id, kind) in books.cluster.kinds() {
            let labels = vec![("gpu_type", kind.name.to_string())];
            levels.capacity_gpus.get_or_create(&labels).set(f64::from(books.cluster.gpus_of(id)));
        }
        let capacity = books.capacity().as_f64();
        let weights: f64 = books.queues.iter().skip(1).map(|(_, queue)| queue.weight.as_f64()).sum();
        for (id, queue) in books.queues.iter() {
            let labels = vec![("queue", queue.name.to_string())];
            let quota = queue.limit.map_or(capacity, cluster::Gpus::as_f64);
            levels.quota_gpus.get_or_create(&labels).set(quota);
            let fair = if queue.parent.is_some() { capacity * queue.weight.as_f64() / weights } else { capacity };
            if fair > 0.0 {
                levels.fair_share.get_or_create(&labels).set(books.used(id).as_f64() / fair);
            }
        }
        levels.last_decision.get_or_create(&Vec::new()).set(shown.ledger.decisions() as f64);
        levels.journal_entries.get_or_create(&Vec::new()).set(shown.seq as f64);
        levels.ready.get_or_create(&Vec::new()).set(if shown.trouble.is_none() { 1.0 } else { 0.0 });
        let degraded = [("disk", shown.degraded.is_some()), ("journal", shown.trouble.is_some())];
        for (what, is_so) in degraded {
            levels.degraded.get_or_create(&vec![("what", what.to_string())]).set(if is_so { 1.0 } else { 0.0 });
        }
        levels
    }

    fn register(self, registry: &mut Registry) {
        registry.register("pending_jobs", "jobs that hold nothing", self.pending_jobs);
        registry.register("pending_gpus", "GPUs that waiting jobs ask for at least", self.pending_gpus);
        registry.register("running_jobs", "jobs that hold devices", self.running_jobs);
        registry.register("allocated_gpus", "GPUs held", self.allocated_gpus);
        registry.register("capacity_gpus", "GPUs there are", self.capacity_gpus);
        registry.register("quota_gpus", "GPUs a queue may hold", self.quota_gpus);
        registry.register("fair_share_ratio", "GPUs meant for a queue over its fair share", self.fair_share);
        registry.register(
            "most_resizes_per_hour",
            "the most often that one of the jobs that have not ended was resized or preempted, for each hour it ran",
            self.most_resizes,
        );
        registry.register("last_decision", "the number of the latest decision", self.last_decision);
        registry.register("journal_entries", "the number of the latest journal entry", self.journal_entries);
        registry.register("ready", "whether anything can be taken on", self.ready);
        registry.register("degraded", "what keeps the service from doing all it should", self.degraded);
        let version = vec![("version", env!("CARGO_PKG_VERSION"))];
        registry.register("build", "this program", Info::new(version));
    }
}

/// How often a job was resized or preempted for each hour it ran; nothing if it never did.
fn resizes_per_hour(now: Time, claim: &Claim) -> Option<f64> {
    let spent = claim.progress.executed(now);
    let resizes = f64::from(claim.progress.resizes + claim.progress.preemptions);
    (!spent.is_zero()).then(|| resizes * 3600.0 / spent.as_secs_f64().max(SHORTEST_SECONDS))
}

fn count<const N: usize>(family: &Count, labels: [(&'static str, String); N]) {
    family.get_or_create(&labels.to_vec()).inc();
}

fn cause(why: FailureCause) -> &'static str {
    match why {
        FailureCause::Crash => "crash",
        FailureCause::Final => "final",
        FailureCause::Mishap => "mishap",
        FailureCause::NodeLost => "node_lost",
        FailureCause::GpuFailed => "gpu_failed",
        FailureCause::StartTimeout => "start_timeout",
    }
}
