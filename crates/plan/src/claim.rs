//! What is on record about each claim: what it asked for, what it was given, what it holds, how far it has come.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cluster::{
    ClaimId, Cluster, GpuKind, GpuTime, Gpus, JobSpec, Name, Placement, QueueId, Role, Run, Scaling, Span, Time,
};
use perf::{Learned, Rates, Speed, Tuning};
use serde::{Deserialize, Serialize, Serializer};

use crate::note::{Note, Reason};
use crate::resizing::{Resizing, beyond};
use crate::table::Table;

/// A user, by the order of the first submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct UserId(pub u32);

/// Claims of one class ask for the same things of the same queue: what can be placed for one can be placed for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClassId(pub u32);

/// Where a claim runs and with which batch size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allotment {
    pub placement: Placement,
    /// For adaptive jobs; others keep the batch size they have.
    pub batch: Option<u32>,
}

/// What a claim physically holds. What it is *meant* to hold is its target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    Waiting,
    /// Told to start; fails as a whole if not every worker is up in time.
    Starting {
        holds: Arc<Allotment>,
        until: Time,
    },
    Running {
        holds: Arc<Allotment>,
        since: Time,
    },
    /// Told to stop; still holds its devices.
    Stopping {
        holds: Arc<Allotment>,
    },
    Ended {
        at: Time,
        outcome: Outcome,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    Finished,
    Cancelled,
    /// A job it was to run after did not finish.
    DependencyFailed,
    /// Crashed more often than it may.
    GivenUp,
    /// Held devices for as long as it may.
    TimedOut,
    /// Could never have run.
    Refused,
}

/// Why a run ended without having finished or having been told to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureCause {
    Crash,
    /// It ended in a way that its owner said is not worth another try.
    Final,
    /// Nothing the job did: it could not be launched, or whoever watched over it was lost.
    Mishap,
    NodeLost,
    GpuFailed,
    /// Not every worker was up before the deadline.
    StartTimeout,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Whole iterations done, as last reported.
    pub done: u64,
    /// When that was.
    pub reported: Time,
    /// Whole passes over the data, as last reported.
    pub epoch: u32,
    pub launches: u32,
    pub crashes: u32,
    /// Runs in a row that failed.
    pub failed_in_a_row: u32,
    /// How often it was stopped to make room.
    pub preemptions: u32,
    /// How often its workers changed in place.
    #[serde(default)]
    pub resizes: u32,
    pub last_launch: Option<Time>,
    /// Since when it has held nothing.
    pub waiting_since: Time,
    attained: GpuTime,
    executed: Span,
    /// What of that was before its present run.
    #[serde(default)]
    executed_before: Span,
    charged_at: Time,
    /// What it holds since then; `None` when it holds nothing.
    holding: Option<Gpus>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    pub id: ClaimId,
    pub spec: Arc<JobSpec>,
    /// How fast it was thought to run when it was submitted.
    pub speed: Arc<Speed>,
    /// What it has taught about itself since.
    pub learned: Arc<Learned>,
    /// The batch with which it runs, or last ran, where that is tuned.
    pub tuning: Option<Tuning>,
    pub class: ClassId,
    pub user: UserId,
    pub submitted: Time,
    pub phase: Phase,
    /// What the latest plan gives it.
    pub target: Option<Arc<Allotment>>,
    pub progress: Progress,
    pub note: Note,
    /// How many of the jobs it runs after have not finished.
    pub blocked_by: u32,
    /// Nobody wants it any more; so it ends when it has let go of its devices.
    pub leaves_as: Option<Outcome>,
    /// Its user wants it to wait.
    pub held: bool,
    /// After a failure it is left alone until then.
    pub rests_until: Option<Time>,
    /// When it was last released, unblocked or done with its rest; nothing if it was eligible from the beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eligible_since: Option<Time>,
    /// Higher goes first where a policy looks at it; what the spec says, until someone changes it.
    pub priority: i32,
    /// Its present run says that it can change its workers in place, and has not failed to.
    #[serde(default)]
    pub resizable: bool,
    /// Its present run was told to change its workers and did not, or the one before it failed of that.
    #[serde(default)]
    pub resize_failed: bool,
    /// The attempt that is not told to change its workers, since the one before it failed of that.
    #[serde(default)]
    pub stays_whole: Option<u32>,
    /// The change of its workers that is under way.
    #[serde(default)]
    pub resizing: Option<Resizing>,
}

/// All claims that were submitted and are not forgotten, by id.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(from = "Written")]
pub struct Claims {
    #[serde(serialize_with = "in_order")]
    all: Table<Claim>,
    live: BTreeSet<ClaimId>,
    users: BTreeMap<Name, UserId>,
    #[serde(with = "cluster::pairs")]
    classes: BTreeMap<ClassKey, ClassId>,
    /// The number of the next claim.
    next: u32,
    /// Claims that hold devices: follows from their phases, and is not written.
    #[serde(skip)]
    holders: BTreeSet<ClaimId>,
}

/// Claims as they are written: a list, since each says its own number.
#[derive(Deserialize)]
struct Written {
    all: Vec<Claim>,
    live: BTreeSet<ClaimId>,
    users: BTreeMap<Name, UserId>,
    #[serde(with = "cluster::pairs")]
    classes: BTreeMap<ClassKey, ClassId>,
    /// Before numbers could be passed over it was not written: it followed the last claim.
    next: Option<u32>,
}

impl From<Written> for Claims {
    fn from(Written { all, live, users, classes, next }: Written) -> Claims {
        let next = next.unwrap_or_else(|| all.last().map_or(0, |claim| claim.id.0 + 1));
        let holders = all.iter().filter(|claim| claim.holds().is_some()).map(|claim| claim.id).collect();
        let all = all.into_iter().map(|claim| (claim.id, claim)).collect();
        Claims { all, live, users, classes, next, holders }
    }
}

fn in_order<S: Serializer>(all: &Table<Claim>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(all.iter().map(|(_, claim)| claim))
}

/// Everything that decides whether and where a claim can be placed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct ClassKey {
    queue: QueueId,
    scaling: Scaling,
    roles: Vec<Role>,
    kinds: Vec<GpuKind>,
    /// The kinds on which its speed is known; `None` if it runs anywhere.
    fast_on: Option<Vec<GpuKind>>,
    skew: Option<u16>,
}

impl Progress {
    pub fn new(now: Time) -> Progress {
        Progress {
            done: 0,
            reported: now,
            epoch: 0,
            launches: 0,
            crashes: 0,
            failed_in_a_row: 0,
            preemptions: 0,
            resizes: 0,
            last_launch: None,
            waiting_since: now,
            attained: GpuTime::ZERO,
            executed: Span::ZERO,
            executed_before: Span::ZERO,
            charged_at: now,
            holding: None,
        }
    }

    /// GPU time held so far, over all runs.
    pub fn attained(&self, now: Time) -> GpuTime {
        self.attained + self.holding.map_or(GpuTime::ZERO, |gpus| gpus * now.since(self.charged_at))
    }

    /// What it is charged for at this moment: from launch until the devices are given back, which is not quite the time
    /// in which it has a target.
    pub fn holding(&self) -> Gpus {
        self.holding.unwrap_or(Gpus::ZERO)
    }

    /// Time spent holding devices so far, over all runs.
    pub fn executed(&self, now: Time) -> Span {
        self.executed + self.holding.map_or(Span::ZERO, |_| now.since(self.charged_at))
    }

    /// From now on it holds `gpus`, or nothing. Time up to now is charged.
    pub fn hold(&mut self, now: Time, gpus: Option<Gpus>) {
        self.attained = self.attained(now);
        self.executed = self.executed(now);
        self.charged_at = now;
        if self.holding.is_none() && gpus.is_some() {
            self.executed_before = self.executed;
        }
        if self.holding.is_some() && gpus.is_none() {
            self.waiting_since = now;
        }
        self.holding = gpus;
    }

    /// Its present run lasted this long, as was measured where it ran: that is charged, and not the time until somebody
    /// heard of its end.
    pub fn charge_run(&mut self, now: Time, ran: Span) {
        let uncharged = (self.executed_before + ran).saturating_sub(self.executed);
        self.attained += self.holding() * uncharged;
        self.executed += uncharged;
        self.charged_at = now;
    }

    /// Sets what was attained, for scenarios that begin in the middle of a history.
    pub fn set_attained(&mut self, attained: GpuTime, executed: Span) {
        self.attained = attained;
        self.executed = executed;
    }
}

/// What a change in place is taken to cost until one was measured: nothing starts anew but newcomers, and those while the
/// others go on.
const UNMEASURED_RESIZE: Span = Span::from_secs(5);

impl Claim {
    pub fn run(&self) -> Run {
        Run { claim: self.id, attempt: self.progress.launches }
    }

    /// Neither ended nor about to, nor kept waiting by other jobs, by its user or by its last failure.
    pub fn is_eligible(&self) -> bool {
        let kept = self.blocked_by > 0 || self.held || self.rests_until.is_some();
        self.is_live() && self.leaves_as.is_none() && !kept
    }

    pub fn is_live(&self) -> bool {
        !matches!(self.phase, Phase::Ended { .. })
    }

    /// It holds devices and must not be stopped to make room.
    pub fn must_go_on(&self) -> bool {
        !self.spec.interruptible && self.holds().is_some()
    }

    /// What it physically holds.
    pub fn holds(&self) -> Option<&Arc<Allotment>> {
        match &self.phase {
            Phase::Starting { holds, .. } | Phase::Running { holds, .. } | Phase::Stopping { holds } => Some(holds),
            Phase::Waiting | Phase::Ended { .. } => None,
        }
    }

    /// What it physically holds, and what it takes beyond that while its workers change: all of it is nobody else's.
    pub fn occupies(&self) -> impl Iterator<Item = Placement> {
        let extra = self.extra();
        self.holds().map(|holds| holds.placement.clone()).into_iter().chain(extra)
    }

    /// What it will hold when the change of its workers that is under way is done.
    pub fn resizes_to(&self) -> Option<&Arc<Allotment>> {
        self.resizing.as_ref().map(|resizing| &resizing.to)
    }

    /// What it takes beyond what it holds while its workers change.
    pub fn extra(&self) -> Option<Placement> {
        Some(beyond(&self.resizing.as_ref()?.to.placement, &self.holds()?.placement))
    }

    /// What a restart costs it: as it measured, else as was declared.
    pub fn restart_price(&self) -> Span {
        let declared = || match &self.speed.adaptation {
            Some(adaptation) => adaptation.restart,
            None => self.spec.recovery.restart_cost + self.spec.recovery.checkpoint_cost,
        };
        self.learned.restart().unwrap_or_else(declared)
    }

    /// What it costs to give it other workers of the kind it has: what a restart costs, or a change in place if it can
    /// change them so, as it measured.
    pub fn resize_price(&self) -> Span {
        let restart = self.restart_price();
        if !self.resizable {
            return restart;
        }
        self.learned.resize().unwrap_or_else(|| restart.min(UNMEASURED_RESIZE))
    }

    /// Eligible and given nothing by the latest plan.
    pub fn is_waiting(&self) -> bool {
        self.target.is_none() && self.is_eligible()
    }

    /// Since when it has held nothing although it could have: the time in which it was kept waiting by other jobs, by its
    /// user or by its last failure does not count.
    pub fn waits_since(&self) -> Time {
        self.eligible_since.map_or(self.progress.waiting_since, |since| since.max(self.progress.waiting_since))
    }

    /// Why it waits, as far as that does not depend on others' claims.
    pub(crate) fn waiting_note(&self) -> Note {
        match self.blocked_by {
            _ if self.held => Note::plain(Reason::Held),
            0 => Note::pending(),
            left => Note::dependency(left),
        }
    }

    pub fn attained(&self, now: Time) -> GpuTime {
        self.progress.attained(now)
    }

    /// The batch with which it would run in a placement, as far as is known today.
    pub fn tuning_in(&self, placement: &Placement, cluster: &Cluster) -> Option<Tuning> {
        let adaptation = self.speed.adaptation.as_ref()?;
        self.learned.tuning(adaptation, placement.shape(cluster))
    }

    /// GPUs it was given; what it asks for, if nothing.
    pub fn gpus(&self) -> Gpus {
        self.target.as_ref().map_or_else(|| self.spec.asked_gpus(), |target| target.placement.gpus())
    }
}

impl Claims {
    pub fn submit(&mut self, now: Time, spec: Arc<JobSpec>, speed: Arc<Speed>) -> ClaimId {
        let id = self.next_id();
        let user = match self.users.get(&spec.user) {
            Some(&user) => user,
            None => {
                let user = UserId(self.users.len() as u32);
                self.users.insert(spec.user.clone(), user);
                user
            }
        };
        let class = self.class_of(&spec, &speed);
        let blocked_by = spec.after.iter().filter(|&&after| !self.has_finished(after)).count() as u32;
        let note = if blocked_by > 0 { Note::dependency(blocked_by) } else { Note::pending() };
        let claim = Claim {
            id,
            class,
            user,
            submitted: now,
            phase: Phase::Waiting,
            target: None,
            progress: Progress::new(now),
            note,
            blocked_by,
            leaves_as: None,
            held: false,
            rests_until: None,
            eligible_since: None,
            priority: spec.priority,
            learned: Arc::default(),
            tuning: None,
            resizable: false,
            resize_failed: false,
            stays_whole: None,
            resizing: None,
            spec,
            speed,
        };
        self.all.insert(id, claim);
        self.live.insert(id);
        self.next += 1;
        id
    }

    /// The next claim has this number: those before it that were not given out never will be.
    pub fn begin_at(&mut self, id: ClaimId) {
        assert!(id.0 >= self.next, "numbers only rise: {id} after {}", self.next);
        self.next = id.0;
    }

    /// Nothing is known any more of a claim that has ended. Its number is not given out again.
    pub fn forget(&mut self, id: ClaimId) {
        let forgotten = self.all.remove(id);
        assert!(forgotten.is_none_or(|claim| !claim.is_live()), "job {id} is forgotten before it has ended");
    }

    fn class_of(&mut self, spec: &JobSpec, speed: &Speed) -> ClassId {
        let fast_on = match &speed.rates {
            Rates::Anywhere(_) => None,
            Rates::ByKind(table) => Some(table.iter().map(|(kind, _)| *kind).collect()),
        };
        let key = ClassKey {
            queue: spec.queue,
            scaling: spec.scaling,
            roles: spec.roles.clone(),
            kinds: spec.kinds.clone(),
            fast_on,
            skew: spec.skew,
        };
        let next = ClassId(self.classes.len() as u32);
        *self.classes.entry(key).or_insert(next)
    }

    fn has_finished(&self, id: ClaimId) -> bool {
        let phase = self.all.get(id).map(|claim| &claim.phase);
        matches!(phase, Some(Phase::Ended { outcome: Outcome::Finished, .. }))
    }

    pub fn next_id(&self) -> ClaimId {
        ClaimId(self.next)
    }

    pub fn get(&self, id: ClaimId) -> Option<&Claim> {
        self.all.get(id)
    }

    #[inline]
    pub fn claim(&self, id: ClaimId) -> &Claim {
        &self.all[id]
    }

    #[inline]
    pub fn claim_mut(&mut self, id: ClaimId) -> &mut Claim {
        &mut self.all[id]
    }

    pub fn set_phase(&mut self, id: ClaimId, phase: Phase) {
        let claim = self.claim_mut(id);
        let held_before = claim.holds().is_some();
        claim.phase = phase;
        match (held_before, claim.holds().is_some()) {
            (false, true) => drop(self.holders.insert(id)),
            (true, false) => drop(self.holders.remove(&id)),
            (true, true) | (false, false) => {}
        }
    }

    pub fn end(&mut self, now: Time, id: ClaimId, outcome: Outcome) {
        self.set_phase(id, Phase::Ended { at: now, outcome });
        self.live.remove(&id);
    }

    /// Every claim that is not forgotten, in order of submission.
    pub fn iter(&self) -> impl Iterator<Item = &Claim> {
        self.all.iter().map(|(_, claim)| claim)
    }

    /// Claims that have not ended, in order of submission.
    pub fn live(&self) -> impl Iterator<Item = &Claim> {
        self.live.iter().map(|&id| self.claim(id))
    }

    /// Claims that hold devices, in order of submission.
    pub fn holders(&self) -> impl Iterator<Item = &Claim> {
        self.holders.iter().map(|&id| self.claim(id))
    }

    pub fn live_count(&self) -> usize {
        self.live.len()
    }

    /// How many are known.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub fn user_count(&self) -> usize {
        self.users.len()
    }

    pub fn class_count(&self) -> usize {
        self.classes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::JobDraft;

    fn submit(claims: &mut Claims, draft: JobDraft) -> ClaimId {
        claims.submit(Time::ZERO, Arc::new(draft.build().unwrap()), Arc::new(Speed::constant(1.0)))
    }

    #[test]
    fn numbers_are_passed_over_and_those_of_forgotten_claims_are_not_given_out_again() {
        let mut claims = Claims::default();
        let a = submit(&mut claims, JobDraft::rigid("a", 1));
        claims.begin_at(ClaimId(100));
        let b = submit(&mut claims, JobDraft::rigid("b", 1));
        claims.end(Time::ZERO, a, Outcome::Finished);
        claims.end(Time::ZERO, b, Outcome::Finished);
        claims.forget(b);
        assert!(claims.get(b).is_none() && claims.get(ClaimId(50)).is_none());
        let written = serde_json::to_string(&claims).unwrap();
        let mut read: Claims = serde_json::from_str(&written).unwrap();
        assert_eq!(read, claims);
        assert_eq!((submit(&mut read, JobDraft::rigid("c", 1)), read.len()), (ClaimId(101), 2));
    }

    #[test]
    fn claims_written_before_numbers_could_be_passed_over_are_read() {
        let mut claims = Claims::default();
        for _ in 0..3 {
            submit(&mut claims, JobDraft::rigid("a", 1));
        }
        let mut written = serde_json::to_value(&claims).unwrap();
        written.as_object_mut().unwrap().remove("next").expect("it is written now");
        assert_eq!(serde_json::from_value::<Claims>(written).unwrap(), claims);
    }

    #[test]
    fn holders_are_those_whose_phase_says_so_also_when_they_are_read_again() {
        let mut claims = Claims::default();
        let [a, b, c] = [(); 3].map(|()| submit(&mut claims, JobDraft::rigid("a", 1)));
        let holders = |claims: &Claims| claims.holders().map(|claim| claim.id).collect::<Vec<_>>();
        let holds = Arc::new(Allotment { placement: Placement::new(Vec::new()), batch: None });
        claims.set_phase(c, Phase::Starting { holds: holds.clone(), until: Time::ZERO });
        claims.set_phase(a, Phase::Running { holds: holds.clone(), since: Time::ZERO });
        claims.set_phase(b, Phase::Stopping { holds: holds.clone() });
        assert_eq!(holders(&claims), [a, b, c]);
        let read: Claims = serde_json::from_str(&serde_json::to_string(&claims).unwrap()).unwrap();
        assert_eq!(holders(&read), [a, b, c]);
        claims.set_phase(b, Phase::Waiting);
        claims.end(Time::ZERO, c, Outcome::Finished);
        assert_eq!(holders(&claims), [a]);
    }

    #[test]
    fn jobs_that_ask_for_the_same_are_of_one_class() {
        let mut claims = Claims::default();
        let a = submit(&mut claims, JobDraft::rigid("a", 2));
        let b = submit(&mut claims, JobDraft { priority: 7, ..JobDraft::rigid("b", 2) });
        let c = submit(&mut claims, JobDraft::rigid("c", 4));
        assert_eq!(claims.claim(a).class, claims.claim(b).class);
        assert_ne!(claims.claim(a).class, claims.claim(c).class);
    }

    #[test]
    fn gpu_time_is_charged_while_devices_are_held() {
        let mut progress = Progress::new(Time::ZERO);
        progress.hold(Time::from_secs(10), Some(Gpus::whole(2)));
        assert_eq!(progress.attained(Time::from_secs(15)), GpuTime::from_gpu_secs(10));
        progress.hold(Time::from_secs(20), None);
        assert_eq!(progress.attained(Time::from_secs(99)), GpuTime::from_gpu_secs(20));
        assert_eq!(progress.executed(Time::from_secs(99)), Span::from_secs(10));
        assert_eq!(progress.waiting_since, Time::from_secs(20));
    }

    #[test]
    fn a_run_that_was_measured_is_charged_for_what_was_measured() {
        let mut progress = Progress::new(Time::ZERO);
        let mut run = |from: u64, resized: u64, ran: u64, heard: u64| {
            progress.hold(Time::from_secs(from), Some(Gpus::whole(1)));
            progress.hold(Time::from_secs(resized), Some(Gpus::whole(3)));
            progress.charge_run(Time::from_secs(heard), Span::from_secs(ran));
            progress.hold(Time::from_secs(heard), None);
            (
                progress.executed(Time::from_secs(999)).as_secs_f64(),
                progress.attained(Time::from_secs(999)).as_gpu_secs(),
            )
        };
        assert_eq!(run(10, 14, 6, 500), (6.0, 4.0 + 2.0 * 3.0), "whoever hears of the end late charges no more");
        assert_eq!(run(600, 604, 20, 610), (26.0, 10.0 + 4.0 + 16.0 * 3.0), "nor less, if its own time stood still");
        assert_eq!(run(700, 709, 5, 710), (35.0, 62.0 + 9.0), "what is charged already stays so");
    }
}
