//! What the service knows about jobs beyond what the decision core needs: who submitted them, what they run, how they
//! ended, what they last said. Like the core's state it is the sum of facts, and changes only in [`Ledger::apply`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::{JobId, MOST_METRICS, NotifyEvent, ProgressReport, RestartKind, RestartReport};
use cluster::{ClaimId, Cluster, Run, Shape, Span, Time};
use engine::{Command, Event};
use executors::{Delivery, Ending};
use journal::Identity;
use plan::{FailureCause, Note, Outcome, Table};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::access::Token;
use crate::clock::Timeline;
use crate::fact::{Acceptance, Fact};
use crate::notification::Notification;
use crate::size::size_of;

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Ledger {
    submissions: Submissions,
    /// By owner and key.
    #[serde(with = "cluster::pairs")]
    keys: BTreeMap<(u32, String), ClaimId>,
    /// Keys of jobs that are forgotten, and when those were submitted.
    #[serde(with = "cluster::pairs")]
    spent_keys: BTreeMap<(u32, String), (ClaimId, Time)>,
    /// How often the policy was asked; the number of the latest decision.
    decisions: u64,
    /// Those that are good, and those that ended since the latest was made.
    #[serde(default)]
    tokens: Vec<Arc<Token>>,
    /// How many were made.
    #[serde(default)]
    token_count: u32,
    /// The number of the next job.
    next: u32,
    /// Numbers that were passed over, since they stood for something in a history that was lost: first and end.
    passed_over: Vec<(u32, u32)>,
    /// Which data directory this is.
    identity: Option<Identity>,
    #[serde(default)]
    timeline: Timeline,
    /// What is to be told and was not yet, since when; by number.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    due: BTreeMap<u64, (Time, Notification)>,
    /// How many notifications there were.
    #[serde(default, skip_serializing_if = "is_zero")]
    notification_count: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// What was submitted at once, and the jobs it became.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Submitted {
    acceptance: Arc<Acceptance>,
    /// One for each task.
    jobs: Vec<Job>,
    /// Of what was told, to whoever wanted to hear it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    announced: Vec<NotifyEvent>,
    /// How large the acceptance is where it is written down; 0 in a snapshot of an earlier version.
    #[serde(default, skip_serializing_if = "is_zero")]
    size: u64,
}

impl Submitted {
    fn new(acceptance: Arc<Acceptance>, jobs: Vec<Job>) -> Submitted {
        let size = size_of(&acceptance);
        Submitted { acceptance, jobs, announced: Vec::new(), size }
    }
}

/// All submissions, as fast to find as a claim is: this is asked many times for every job that is shown.
#[derive(Debug, Clone, PartialEq, Default)]
struct Submissions {
    /// By the number of the first claim.
    all: Table<Submitted>,
    /// Those of several tasks.
    arrays: BTreeSet<ClaimId>,
}

impl Submissions {
    /// What a claim was submitted with, and its place among the tasks.
    fn of(&self, claim: ClaimId) -> Option<(&Submitted, usize)> {
        self.all.get(claim).map(|submitted| (submitted, 0)).or_else(|| {
            let (first, place) = self.task(claim)?;
            let submitted = self.all.get(first)?;
            (place < submitted.jobs.len()).then_some((submitted, place))
        })
    }

    /// The latest array that begins before this claim, and how far behind its beginning the claim is.
    fn task(&self, claim: ClaimId) -> Option<(ClaimId, usize)> {
        let first = *self.arrays.range(..claim).next_back()?;
        Some((first, (claim.0 - first.0) as usize))
    }

    fn job_mut(&mut self, claim: ClaimId) -> Option<&mut Job> {
        let (first, place) = match self.all.get(claim) {
            Some(_) => (claim, 0),
            None => self.task(claim)?,
        };
        self.all.get_mut(first)?.jobs.get_mut(place)
    }

    fn insert(&mut self, mut submitted: Submitted) {
        if submitted.size == 0 {
            submitted.size = size_of(&submitted.acceptance);
        }
        let first = submitted.acceptance.first;
        if submitted.jobs.len() > 1 {
            self.arrays.insert(first);
        }
        self.all.insert(first, submitted);
    }

    fn remove(&mut self, first: ClaimId) -> Option<Submitted> {
        self.arrays.remove(&first);
        self.all.remove(first)
    }
}

impl FromIterator<Submitted> for Submissions {
    fn from_iter<I: IntoIterator<Item = Submitted>>(all: I) -> Submissions {
        let mut submissions = Submissions::default();
        all.into_iter().for_each(|submitted| submissions.insert(submitted));
        submissions
    }
}

/// Written as pairs of number and submission.
impl Serialize for Submissions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.all.iter())
    }
}

impl<'de> Deserialize<'de> for Submissions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Submissions, D::Error> {
        let pairs = Vec::<(ClaimId, Submitted)>::deserialize(deserializer)?;
        Ok(pairs.into_iter().map(|(_, submitted)| submitted).collect())
    }
}

/// A key is known for this long, also if its job is forgotten before.
const KEYS_LIVE: Span = Span::from_secs(7 * 24 * 3600);

/// Why a number stands for no job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unknown {
    /// It was not given out yet, or is not the first of its array.
    Never,
    /// Its job has ended and was forgotten.
    Forgotten,
    /// What it stood for was lost with a part of the journal.
    PassedOver,
}

/// One claim: a job, or a task of an array.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Its place among the tasks of its array, from 0.
    pub place: u32,
    /// It waits because enough tasks of its array are under way.
    pub throttled: bool,
    pub first_started: Option<Time>,
    /// How its latest run ended.
    pub ending: Option<(Run, Ending)>,
    /// The latest of every figure it reported, and when.
    pub report: Option<(Time, ProgressReport)>,
    /// The latest interruption of each kind that it measured, and when it said so.
    #[serde(default)]
    pub interruptions: Vec<(Time, RestartReport)>,
    /// Iterations in the newest state it is known to have saved.
    pub saved: u64,
    /// The decision that said the latest about it.
    pub decision: u64,
    /// What became of it, the latest at the end; of a long life only the last part.
    pub history: Vec<Happening>,
}

/// Something that became of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Happening {
    pub at: Time,
    /// The decision that was in force.
    pub decision: u64,
    pub what: What,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum What {
    Submitted,
    Refused,
    Held,
    Released,
    Reprioritised(i32),
    Launched { attempt: u32, shape: Shape },
    Started,
    ToldToResize { shape: Shape },
    Resized,
    NotResized(String),
    ToldToStop,
    Stopped,
    Finished,
    Failed(FailureCause, Option<i32>),
    Rests(Time),
    Cancelled,
    LimitReached,
    Ended(Outcome),
    Noted(Note),
    Notified(NotifyEvent, Delivery),
}

/// So much of a job's life is kept beside the journal.
const LONGEST_HISTORY: usize = 40;

impl Ledger {
    pub fn decisions(&self) -> u64 {
        self.decisions
    }

    /// What the wall clock said at each moment.
    pub fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// The number of the next job.
    pub fn next_number(&self) -> u32 {
        self.next
    }

    /// Which data directory this is, once that is on record.
    pub fn identity(&self) -> Option<Identity> {
        self.identity
    }

    pub fn job(&self, claim: ClaimId) -> Option<&Job> {
        self.submissions.of(claim).and_then(|(submitted, place)| submitted.jobs.get(place))
    }

    pub fn acceptance(&self, claim: ClaimId) -> Option<&Arc<Acceptance>> {
        self.submissions.of(claim).map(|(submitted, _)| &submitted.acceptance)
    }

    /// Every submission that is not forgotten and whose number is lower, in order.
    pub fn submissions_before(&self, number: u32) -> impl DoubleEndedIterator<Item = &Arc<Acceptance>> + Send {
        self.submissions.all.before(ClaimId(number)).map(|(_, submitted)| &submitted.acceptance)
    }

    /// The same with how large each is where it is written down.
    pub(crate) fn submissions_and_sizes(&self) -> impl Iterator<Item = (&Arc<Acceptance>, u64)> {
        self.submissions.all.iter().map(|(_, submitted)| (&submitted.acceptance, submitted.size))
    }

    pub fn submission_count(&self) -> usize {
        self.submissions.all.len()
    }

    /// Why a number stands for no job.
    pub fn unknown(&self, number: u32) -> Unknown {
        match self.passed_over.iter().any(|(first, end)| (*first..*end).contains(&number)) {
            true => Unknown::PassedOver,
            false if number < self.next && self.job(ClaimId(number)).is_none() => Unknown::Forgotten,
            false => Unknown::Never,
        }
    }

    /// How a claim is called.
    pub fn id(&self, claim: ClaimId) -> JobId {
        let Some(acceptance) = self.acceptance(claim) else { return JobId::job(claim.0) };
        let place = (claim.0 - acceptance.first.0) as usize;
        match &acceptance.array {
            None => JobId::job(claim.0),
            Some(array) => JobId::task(acceptance.first.0, array.indices[place]),
        }
    }

    /// The claims a name stands for: one job, one task, or all tasks of an array. Nothing if there is no such job.
    pub fn claims(&self, id: JobId) -> Option<std::ops::Range<u32>> {
        let acceptance = &self.submissions.all.get(ClaimId(id.number))?.acceptance;
        let first = acceptance.first.0;
        match (id.task, &acceptance.array) {
            (None, _) => Some(first..first + acceptance.task_count()),
            (Some(_), None) => None,
            (Some(task), Some(array)) => {
                let place = array.indices.iter().position(|&index| index == task)? as u32;
                Some(first + place..first + place + 1)
            }
        }
    }

    /// The job that was submitted under this key.
    pub fn keyed(&self, uid: u32, key: &str) -> Option<&Arc<Acceptance>> {
        self.keys.get(&(uid, key.to_string())).and_then(|&claim| self.acceptance(claim))
    }

    /// The number of the job that was submitted under this key and is forgotten.
    pub fn spent_key(&self, uid: u32, key: &str) -> Option<ClaimId> {
        self.spent_keys.get(&(uid, key.to_string())).map(|(claim, _)| *claim)
    }

    /// The next task of the claim's array that waits only because enough are under way.
    pub fn next_throttled(&self, claim: ClaimId) -> Option<ClaimId> {
        let acceptance = self.acceptance(claim)?;
        acceptance.array.as_ref().and_then(|array| array.at_once)?;
        let tasks = acceptance.first.0..acceptance.first.0 + acceptance.task_count();
        tasks.map(ClaimId).find(|&task| self.job(task).is_some_and(|job| job.throttled))
    }

    /// The number of the next notification.
    pub(crate) fn next_notification(&self) -> u64 {
        self.notification_count
    }

    /// Whether a job, by its first claim, was told of in this respect.
    pub(crate) fn has_announced(&self, first: ClaimId, event: NotifyEvent) -> bool {
        self.submissions.all.get(first).is_some_and(|submitted| submitted.announced.contains(&event))
    }

    /// What is to be told and was not yet, since when.
    pub fn notifications_due(&self) -> impl Iterator<Item = &(Time, Notification)> {
        self.due.values()
    }

    /// Whether a notification is still to be delivered.
    pub(crate) fn notification_due(&self, number: u64) -> Option<&(Time, Notification)> {
        self.due.get(&number)
    }

    pub fn tokens(&self) -> impl Iterator<Item = &Token> {
        self.tokens.iter().map(|token| &**token)
    }

    pub fn token(&self, id: u32) -> Option<&Token> {
        self.tokens().find(|token| token.id == id)
    }

    pub(crate) fn token_by_hash(&self, sha256: &str) -> Option<&Token> {
        self.tokens().find(|token| token.sha256 == sha256)
    }

    /// The number of the next token.
    pub(crate) fn next_token(&self) -> u32 {
        self.token_count + 1
    }

    /// Takes a fact in. The cluster is that of the state to which the same fact is applied.
    pub fn apply(&mut self, now: Time, fact: &Fact, cluster: &Cluster) {
        match fact {
            Fact::Numbered(acceptance) => self.number(acceptance),
            Fact::Reported { run, report } => self.report(now, run.claim, report),
            Fact::NotResized { run, why } => self.happened(now, run.claim, What::NotResized(why.clone())),
            Fact::Ended { run, ending } => {
                if let Some(job) = self.submissions.job_mut(run.claim) {
                    job.ending = Some((*run, ending.clone()));
                }
            }
            Fact::Identified { identity, .. } => self.identity = Some(*identity),
            Fact::Clock(found) => self.timeline.apply(now, found),
            Fact::Core(event) => self.observe(now, event, cluster),
            Fact::Did { .. } => {}
            Fact::NotificationDue(notification) => self.announce(now, notification),
            Fact::Notified { number, delivery } => {
                if let Some((_, Notification { claim, event, .. })) = self.due.remove(number) {
                    self.happened(now, claim, What::Notified(event, delivery.clone()));
                }
            }
            Fact::TokenMade { token, .. } => {
                self.tokens.retain(|earlier| earlier.is_good(token.made_unix_ms));
                self.token_count = self.token_count.max(token.id);
                self.tokens.push(token.clone());
            }
            Fact::TokenRevoked { id, unix_ms, .. } => {
                if let Some(token) = self.tokens.iter_mut().find(|token| token.id == *id) {
                    Arc::make_mut(token).revoked_unix_ms.get_or_insert(*unix_ms);
                }
            }
        }
    }

    fn number(&mut self, acceptance: &Arc<Acceptance>) {
        assert_eq!(acceptance.first.0, self.next, "jobs are numbered in order");
        if let Some(key) = &acceptance.key {
            self.keys.insert((acceptance.owner.uid, key.clone()), acceptance.first);
        }
        let at_once = acceptance.array.as_ref().and_then(|array| array.at_once).unwrap_or(u32::MAX);
        let job = |place| Job {
            place,
            throttled: place >= at_once,
            first_started: None,
            ending: None,
            report: None,
            interruptions: Vec::new(),
            saved: 0,
            decision: 0,
            history: Vec::new(),
        };
        let jobs = (0..acceptance.task_count()).map(job).collect();
        self.next += acceptance.task_count();
        self.submissions.insert(Submitted::new(acceptance.clone(), jobs));
    }

    fn announce(&mut self, now: Time, notification: &Notification) {
        self.notification_count = self.notification_count.max(notification.number + 1);
        self.due.insert(notification.number, (now, notification.clone()));
        let first = self.acceptance(notification.claim).map(|acceptance| acceptance.first);
        if let Some(submitted) = first.and_then(|first| self.submissions.all.get_mut(first))
            && !submitted.announced.contains(&notification.event)
        {
            submitted.announced.push(notification.event);
        }
    }

    /// Nothing is known any more of these claims. An array is forgotten as a whole.
    fn forget(&mut self, now: Time, claims: &[ClaimId]) {
        for claim in claims {
            let Some(Submitted { acceptance, jobs, .. }) = self.submissions.remove(*claim) else { continue };
            if let Some(key) = &acceptance.key {
                let key = (acceptance.owner.uid, key.clone());
                let submitted = jobs.first().and_then(|job| job.history.first()).map_or(now, |happening| happening.at);
                self.keys.remove(&key);
                self.spent_keys.insert(key, (*claim, submitted));
            }
        }
        self.spent_keys.retain(|_, (_, submitted)| now.since(*submitted) < KEYS_LIVE);
    }

    fn report(&mut self, now: Time, claim: ClaimId, report: &ProgressReport) {
        let Some(job) = self.submissions.job_mut(claim) else { return };
        if let Some(checkpoint) = report.checkpoint {
            job.saved = job.saved.max(checkpoint.steps);
        }
        if let Some(restart) = report.restart.as_deref() {
            job.interruptions.retain(|(_, earlier)| earlier.kind != restart.kind);
            job.interruptions.push((now, *restart));
        }
        let known = job.report.take().map_or_else(ProgressReport::default, |(_, known)| known);
        job.report = Some((now, newer(known, report.clone())));
    }

    fn observe(&mut self, now: Time, event: &Event, cluster: &Cluster) {
        match event {
            Event::Planned(plan) | Event::StartedAtOnce(plan) => {
                self.decisions += 1;
                let decision = self.decisions;
                for (claim, _) in &plan.changes {
                    self.with(*claim, |job| job.decision = decision);
                }
                for (claim, note) in &plan.notes {
                    self.happened(now, *claim, What::Noted(*note));
                    self.with(*claim, |job| job.decision = decision);
                }
            }
            Event::PlanRefused { .. } => self.decisions += 1,
            Event::ClaimSubmitted { claim, .. } => self.happened(now, *claim, What::Submitted),
            Event::ClaimRefused { claim, .. } => self.happened(now, *claim, What::Refused),
            Event::ClaimHeld { claim } => self.happened(now, *claim, What::Held),
            Event::ClaimReleased { claim } => {
                self.happened(now, *claim, What::Released);
                self.with(*claim, |job| job.throttled = false);
            }
            Event::ClaimReprioritised { claim, priority } => {
                self.happened(now, *claim, What::Reprioritised(*priority));
            }
            Event::ClaimCancelled { claim } => self.happened(now, *claim, What::Cancelled),
            Event::LimitReached { claim } => self.happened(now, *claim, What::LimitReached),
            Event::ClaimRests { claim, until } => self.happened(now, *claim, What::Rests(*until)),
            Event::ClaimEnded { claim, outcome } => self.happened(now, *claim, What::Ended(*outcome)),
            Event::Issued(Command::Launch { run, allotment, .. }) => {
                let shape = allotment.placement.shape(cluster);
                self.happened(now, run.claim, What::Launched { attempt: run.attempt, shape });
                self.with(run.claim, Job::begins_anew);
            }
            Event::Issued(Command::Resize { run, allotment, .. }) => {
                let shape = allotment.placement.shape(cluster);
                self.happened(now, run.claim, What::ToldToResize { shape });
            }
            Event::RunResized { run } => self.happened(now, run.claim, What::Resized),
            Event::Issued(Command::Stop { run, .. }) => self.happened(now, run.claim, What::ToldToStop),
            Event::RunStarted { run } => {
                self.happened(now, run.claim, What::Started);
                self.with(run.claim, |job| {
                    job.first_started.get_or_insert(now);
                });
            }
            Event::RunStopped { run, done } => {
                self.happened(now, run.claim, What::Stopped);
                self.with(run.claim, |job| {
                    job.saved = *done;
                    job.goes_on_from(*done);
                });
            }
            Event::RunFinished { run } => self.happened(now, run.claim, What::Finished),
            Event::RunFailed { run, why, done } => {
                let code = self.job(run.claim).and_then(|job| job.ending.as_ref()?.1.exit_code());
                self.happened(now, run.claim, What::Failed(*why, code));
                self.with(run.claim, |job| job.goes_on_from(*done));
            }
            Event::NumbersBegin { at } => {
                self.passed_over.push((self.next, at.0));
                self.next = at.0;
            }
            Event::Forgotten { claims } => self.forget(now, claims),
            Event::ClusterDefined { .. }
            | Event::PolicyChosen { .. }
            | Event::QueuesChanged { .. }
            | Event::SafeguardsChosen { .. }
            | Event::NodeJoined { .. }
            | Event::NodeChanged { .. }
            | Event::ClaimRested { .. }
            | Event::RunProgressed { .. }
            | Event::RunTimed { .. }
            | Event::DeadlineMoved { .. }
            // Why is a fact of its own.
            | Event::RunNotResized { .. }
            | Event::Refitted { .. }
            | Event::Issued(Command::Retune { .. } | Command::Provision { .. } | Command::Release { .. }) => {}
        }
    }

    fn happened(&mut self, at: Time, claim: ClaimId, what: What) {
        let decision = self.decisions;
        self.with(claim, |job| {
            if job.history.len() == LONGEST_HISTORY {
                // How it began stays.
                job.history.remove(1);
            }
            job.history.push(Happening { at, decision, what });
        });
    }

    fn with(&mut self, claim: ClaimId, change: impl FnOnce(&mut Job)) {
        if let Some(job) = self.submissions.job_mut(claim) {
            change(job);
        }
    }
}

/// The ledger as snapshots of facts of format 1 have it: jobs are numbered without gaps.
#[derive(Debug, Deserialize)]
pub(crate) struct FirstLedger {
    acceptances: Vec<Arc<Acceptance>>,
    /// By claim.
    jobs: Vec<Job>,
    #[serde(with = "cluster::pairs")]
    keys: BTreeMap<(u32, String), ClaimId>,
    decisions: u64,
}

impl From<FirstLedger> for Ledger {
    fn from(FirstLedger { acceptances, jobs, keys, decisions }: FirstLedger) -> Ledger {
        let next = jobs.len() as u32;
        let mut jobs = jobs.into_iter();
        let submitted = |acceptance: Arc<Acceptance>| {
            let jobs = jobs.by_ref().take(acceptance.task_count() as usize).collect();
            Submitted::new(acceptance, jobs)
        };
        let submissions = acceptances.into_iter().map(submitted).collect();
        Ledger { submissions, keys, decisions, next, ..Ledger::default() }
    }
}

impl Job {
    /// The latest interruption of a kind that it measured.
    pub fn interruption(&self, kind: RestartKind) -> Option<&(Time, RestartReport)> {
        self.interruptions.iter().find(|(_, report)| report.kind == kind)
    }

    /// Orders of the same instant follow what was said in it.
    pub fn was_told_to_resize_since(&self, then: Time) -> bool {
        let mut later = self.history.iter().rev().take_while(|happening| happening.at >= then);
        later.any(|happening| matches!(happening.what, What::ToldToResize { .. }))
    }

    /// How the last run ended, and what that one was able to, says nothing of the next.
    fn begins_anew(&mut self) {
        self.ending = None;
        if let Some((_, report)) = &mut self.report {
            report.resizable = None;
        }
    }

    /// What was done since is lost, whatever it reported.
    fn goes_on_from(&mut self, done: u64) {
        if let Some((_, ProgressReport { steps: Some(steps), .. })) = &mut self.report {
            *steps = done;
        }
    }
}

/// Every figure of the later report, and of the earlier one what the later does not say. What an interruption cost is
/// said once and counted then.
pub(crate) fn newer(known: ProgressReport, report: ProgressReport) -> ProgressReport {
    ProgressReport {
        run: report.run.or(known.run),
        steps: report.steps.or(known.steps),
        epoch: report.epoch.or(known.epoch),
        step_seconds: report.step_seconds.or(known.step_seconds),
        compute_seconds: report.compute_seconds.or(known.compute_seconds),
        workers: report.workers.or(known.workers),
        local_batch: report.local_batch.or(known.local_batch),
        accumulation: report.accumulation.or(known.accumulation),
        loss: report.loss.or(known.loss),
        noise: report.noise.or(known.noise),
        checkpoint: report.checkpoint.or(known.checkpoint),
        resizable: report.resizable.or(known.resizable),
        restart: None,
        metrics: newer_metrics(known.metrics, report.metrics),
    }
}

/// Those of the later report, and as many of the earlier ones as one report may have: a job that thinks of new names all
/// the time would else grow without end.
fn newer_metrics(known: BTreeMap<String, f64>, mut metrics: BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    for (name, value) in known {
        if metrics.len() >= MOST_METRICS {
            break;
        }
        metrics.entry(name).or_insert(value);
    }
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_thinks_of_new_names_of_metrics_has_no_more_than_one_report_may_have() {
        let report = |names: std::ops::Range<usize>, value: f64| {
            let metrics = names.map(|name| (format!("m{name:03}"), value)).collect();
            ProgressReport { metrics, ..ProgressReport::default() }
        };
        let known = newer(report(0..60, 1.0), report(50..70, 2.0));
        assert_eq!((known.metrics.len(), known.metrics["m049"], known.metrics["m050"]), (70, 1.0, 2.0));
        let known = newer(known, report(200..290, 3.0));
        assert_eq!(known.metrics.len(), MOST_METRICS);
        assert_eq!(known.metrics.values().filter(|value| **value == 3.0).count(), 90, "the latest are all there");
        let later = newer(known.clone(), ProgressReport { steps: Some(7), ..ProgressReport::default() });
        assert_eq!(later.metrics, known.metrics, "and stay while nothing is said of them");
    }
}
