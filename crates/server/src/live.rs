//! The loop that owns the decision core: everything pending is taken as one batch, journaled, and only then answered and
//! carried out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use api::{HookUrl, JobId, Problem};
use cluster::{ClaimId, Devices, NodeId, Run, Span, Time};
use engine::{Command, Engine, Event, Request, Settings};
use executors::{
    Delivery, Ending, Executor, ExecutorError, LaunchOrder, News, ResizeOrder, Sighting, Stage, TimeLimit, workers_of,
};
use journal::JournalError;
use plan::{Availability, Phase};
use policies::PolicyConfig;
use tokio::sync::oneshot;

use crate::clock::{Clock, ClockFound, Reading};
use crate::core::{Ask, Core, Reply, Step};
use crate::error::ServerError;
use crate::fact::{Caller, Deed, Fact};
use crate::notification;
use crate::postponed::Postponed;
use crate::pulse::Pulse;
use crate::replica::Replica;
use crate::retention::{Forgetting, continued_by};

/// Where facts are kept before anything is done about them.
pub trait Store: Send {
    /// All of them or none, durably; returns the number of the last.
    fn append(&mut self, at: Time, texts: &[String]) -> Result<u64, JournalError>;

    /// After an append that could not tell whether its facts are there: the number of the last that is.
    fn reopen(&mut self) -> Result<u64, JournalError>;

    /// Whether it goes on with room that was set aside, so that only what must be recorded should be.
    fn is_short(&self) -> bool {
        false
    }

    /// Sets room aside again, if that is needed; says what is wrong if it cannot.
    fn shortage(&mut self) -> Option<String> {
        None
    }

    /// From the next append on this is the number of the next job: known also if that append is lost later.
    fn mark(&mut self, _next: u32) {}

    /// Makes the facts so far shorter, where the store can and there are many: what is shown stands for them. It does
    /// not wait for that, unless the service is leaving.
    fn compact(&mut self, _replica: &Arc<Replica>, _leaving: bool) -> Result<(), JournalError> {
        Ok(())
    }

    /// Whether that is under way: then it wants to be asked again soon.
    fn is_compacting(&self) -> bool {
        false
    }
}

/// What comes into the loop.
#[derive(Debug)]
pub enum Message {
    Call {
        caller: Caller,
        ask: Ask,
        reply: oneshot::Sender<Reply>,
    },
    News(News),
    /// Leave; whatever runs goes on.
    Leave,
}

/// How others speak to the loop.
#[derive(Debug, Clone)]
pub struct Inbox {
    queue: SyncSender<Message>,
    pulse: Arc<Pulse>,
}

/// What others have said, where the loop takes it.
#[derive(Debug)]
pub struct Messages {
    queue: Receiver<Message>,
    pulse: Arc<Pulse>,
}

/// More than this does not wait: whoever comes is told to come again.
const MOST_WAITING: usize = 20_000;
/// So many are taken as one batch.
const LARGEST_BATCH: usize = 4096;
/// How often it is looked whether the wall clock was set, if nothing else happens.
const LOOK_AT_CLOCK: Duration = Duration::from_secs(10);
/// How long after a failed append the next one is tried.
const TRY_AGAIN: Duration = Duration::from_secs(1);

#[allow(missing_debug_implementations, reason = "a policy need not be printable")]
pub struct Live {
    pub core: Core,
    pub store: Box<dyn Store>,
    pub executor: Box<dyn Executor>,
    pub replica: Arc<Replica>,
    pub settings: Settings,
    /// For every worker of every job, by which it finds the service.
    pub environment: BTreeMap<String, String>,
    /// The beginnings of addresses that may be told of jobs.
    pub notify_urls: Vec<HookUrl>,
    /// What was heard and could not be journaled yet.
    pub unheard: Vec<News>,
    pub forgetting: Forgetting,
    /// What was decided and could not be done yet.
    pub undone: Undone,
    /// What jobs reported and there is no room for yet.
    pub postponed: Postponed,
    /// A batch of which is not known whether it is on record.
    pub doubt: Option<Doubt>,
}

/// A batch that was on its way to the disk when the disk failed.
#[derive(Debug)]
pub struct Doubt {
    at: Time,
    facts: Vec<Fact>,
    news: Vec<News>,
    settled: Vec<Run>,
}

/// Orders that failed for want of room or the like. They are given again, by and by.
#[derive(Debug, Default)]
pub struct Undone {
    stops: BTreeMap<Run, Span>,
    settled: BTreeSet<Run>,
}

type Waiting = oneshot::Sender<Reply>;
type Call = (Caller, Ask, Waiting);

impl Undone {
    fn is_empty(&self) -> bool {
        self.stops.is_empty() && self.settled.is_empty()
    }
}

impl Inbox {
    pub fn new() -> (Inbox, Messages) {
        let (sender, receiver) = sync_channel(MOST_WAITING);
        let pulse = Arc::new(Pulse::default());
        (Inbox { queue: sender, pulse: pulse.clone() }, Messages { queue: receiver, pulse })
    }

    /// Whether something waits for the loop and it has not ended a turn for long.
    pub(crate) fn is_stuck(&self) -> bool {
        self.pulse.is_stuck(Instant::now())
    }

    /// Asks and waits for the answer, which comes when it is durable.
    pub async fn ask(&self, caller: Caller, ask: Ask) -> Reply {
        let (reply, answer) = oneshot::channel();
        self.queue.try_send(Message::Call { caller, ask, reply }).map_err(|error| match error {
            TrySendError::Full(_) => Problem::new(503, "busy", "too much is waiting to be done: try again in a moment"),
            TrySendError::Disconnected(_) => leaving(),
        })?;
        self.pulse.posted(Instant::now());
        answer.await.unwrap_or_else(|_| Err(leaving()))
    }

    /// Passes on what an executor saw; waits while the loop is busy.
    pub fn tell(&self, news: News) -> bool {
        self.pulse.posted(Instant::now());
        self.queue.send(Message::News(news)).is_ok()
    }

    pub fn leave(&self) {
        // A loop that is gone has left.
        self.pulse.posted(Instant::now());
        self.queue.send(Message::Leave).ok();
    }
}

/// Nothing of these calls has happened.
fn refuse(calls: Vec<Call>, kind: &str, why: &str) {
    for (_, _, waiting) in calls {
        waiting.send(Err(Problem::new(503, kind, why))).ok();
    }
}

/// What is still worth hearing later.
fn kept(news: Vec<News>) -> impl Iterator<Item = News> {
    news.into_iter().filter(|news| !matches!(news, News::Usage { .. } | News::Dropped { .. }))
}

/// The one answer that leaves open what happened.
fn unknown() -> Problem {
    let detail = "the disk failed while it was recorded, so it may or may not have been: ask again under the same \
                  Idempotency-Key, or look whether it was done";
    Problem::new(503, "unknown-outcome", detail)
}

fn leaving() -> Problem {
    Problem::new(503, "leaving", "the service is shutting down")
}

impl Live {
    /// Until told to leave. What runs then goes on running.
    pub fn run(mut self, inbox: &Messages, clock: Clock) -> Result<(), ServerError> {
        self.reconcile(clock.now())?;
        let mut tried_again = Instant::now();
        loop {
            // What is still to be heard must not wait for something else to happen.
            let patience = self.patience(&clock);
            let mut calls = Vec::new();
            let mut news = std::mem::take(&mut self.unheard);
            let mut leave = false;
            let mut taken = 0;
            let mut take = |message| {
                taken += 1;
                match message {
                    Message::Call { caller, ask, reply } => calls.push((caller, ask, reply)),
                    Message::News(heard) => news.push(heard),
                    Message::Leave => leave = true,
                }
            };
            match inbox.queue.recv_timeout(patience) {
                Ok(message) => {
                    take(message);
                    inbox.queue.try_iter().take(LARGEST_BATCH).for_each(take);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => leave = true,
            }
            if tried_again.elapsed() >= TRY_AGAIN {
                self.try_again();
                self.look_at_room();
                tried_again = Instant::now();
            }
            let found = self.core.ledger.timeline().compare(clock.now(), Reading::take());
            self.take_turn(clock.now(), found, calls, news)?;
            self.compact(leave);
            inbox.pulse.turned(taken, Instant::now());
            if leave {
                return Ok(());
            }
        }
    }

    fn compact(&mut self, leaving: bool) {
        if let Err(error) = self.store.compact(&self.replica, leaving) {
            tracing::warn!(%error, "the journal was not compacted");
        }
    }

    /// How long to wait for something to happen.
    fn patience(&self, clock: &Clock) -> Duration {
        if self.replica.read().trouble.is_some() {
            return TRY_AGAIN;
        }
        if !self.unheard.is_empty() {
            return Duration::ZERO;
        }
        let is_well = self.undone.is_empty()
            && self.postponed.is_empty()
            && !self.store.is_short()
            && !self.store.is_compacting();
        let longest = if is_well { LOOK_AT_CLOCK } else { TRY_AGAIN };
        self.core.engine.next_wakeup().map_or(longest, |due| clock.until(due).min(longest))
    }

    /// One batch: decide, journal, show, answer, act.
    pub fn turn(&mut self, now: Time, calls: Vec<Call>, news: Vec<News>) -> Result<(), ServerError> {
        self.take_turn(now, None, calls, news)
    }

    /// The same, if something is new about the clocks of the machine.
    fn take_turn(
        &mut self,
        now: Time,
        found: Option<ClockFound>,
        calls: Vec<Call>,
        mut news: Vec<News>,
    ) -> Result<(), ServerError> {
        if let Some(doubt) = self.doubt.take() {
            self.resolve(doubt)?;
        }
        if self.doubt.is_some() {
            refuse(calls, "not-durable", "the journal cannot be written at the moment");
            self.unheard.extend(self.postponed.keep(kept(news).collect()));
            return Ok(());
        }
        let calls = self.refuse_what_takes_room(calls);
        news = match self.store.is_short() {
            true => self.postponed.keep(news),
            false => self.postponed.release_before(news),
        };
        for heard in &news {
            if let News::Usage { run, usage } = heard {
                self.replica.used(*run, *usage);
            }
            if let News::Dropped { reports, bytes, .. } = heard {
                self.replica.measures.dropped(*reports, *bytes);
            }
        }
        let now = now.max(self.core.engine.state().now());
        let (asks, waiting): (Vec<_>, Vec<_>) =
            calls.into_iter().map(|(caller, ask, reply)| ((caller, ask), reply)).unzip();
        let began = Instant::now();
        let mut step = self.core.step(now, asks, news.clone());
        if let Some(found) = found {
            self.core.hear_clock(now, found, &mut step);
        }
        if step.facts.is_empty() && waiting.is_empty() && self.replica.read().trouble.is_some() {
            // Whether the journal can be written again shows only when something is written.
            self.core.choose_again(now, &mut step);
        }
        self.core.announce(now, &mut step);
        let forgotten = self.forgetting.due(now, self.core.engine.state(), &self.core.ledger);
        self.core.forget(now, forgotten, &mut step);
        self.replica.measures.decided(&step.facts, self.core.ledger.decisions(), began.elapsed());
        let Step { facts, replies, settled } = step;
        if !facts.is_empty() {
            let texts: Vec<String> = facts.iter().map(text_of).collect();
            self.store.mark(self.core.ledger.next_number());
            match self.store.append(now, &texts) {
                Ok(last) => self.show(now, facts.clone(), last),
                Err(error @ JournalError::InDoubt { .. }) => {
                    tracing::error!(error = with_cause(&error), "the disk failed: what was asked for may be on record");
                    self.replica.set_trouble(Some(error.to_string()));
                    waiting.into_iter().for_each(|waiting| drop(waiting.send(Err(unknown()))));
                    return self.resolve(Doubt { at: now, facts, news, settled });
                }
                Err(error) => {
                    self.undo(&error, news, waiting);
                    return Ok(());
                }
            }
        }
        for (waiting, reply) in waiting.into_iter().zip(replies) {
            // Whoever does not wait any more has lost nothing: what was done is on record.
            waiting.send(reply).ok();
        }
        self.act(&facts, news, settled);
        Ok(())
    }

    /// Tells whom a job's user wants to be told, unless the configuration has changed its mind.
    fn notify(&mut self, number: u64) {
        let Some((at, due)) = self.core.ledger.notification_due(number) else { return };
        let order = notification::order(&self.replica.read(), *at, due, &self.notify_urls, &self.environment);
        match order {
            Some(Ok(order)) => self.executor.notify(order),
            refused => {
                let why = refused.and_then(Result::err).unwrap_or_else(|| "its job is not known any more".into());
                self.unheard.push(News::Notified { number, delivery: Delivery::Failed(why) });
            }
        }
    }

    /// Carries out what is on record.
    fn act(&mut self, facts: &[Fact], news: Vec<News>, settled: Vec<Run>) {
        for fact in facts {
            match fact {
                Fact::Core(Event::Issued(command)) => self.carry_out(command),
                Fact::Did { deed: Deed::Kill(id), .. } => self.kill(*id),
                Fact::NotificationDue(due) => self.notify(due.number),
                _ => {}
            }
        }
        for heard in news {
            if let News::Told { run, upto } = heard
                && let Err(error) = self.executor.bookmark(run, upto)
            {
                tracing::warn!(run = %name(run), %error, "what it reported will be heard again after a restart");
            }
        }
        settled.into_iter().for_each(|run| self.settle(run));
        if self.store.is_short() {
            self.look_at_room();
        }
    }

    /// Finds out whether a batch is on record. As long as that cannot be found out, nothing is taken on.
    fn resolve(&mut self, doubt: Doubt) -> Result<(), ServerError> {
        let before = self.replica.read().seq;
        match self.store.reopen() {
            Ok(last) if last == before => {
                tracing::warn!("it is not on record");
                self.go_back(doubt.news);
            }
            Ok(last) if last == before + doubt.facts.len() as u64 => {
                tracing::warn!(seq = last, "it is on record");
                self.show(doubt.at, doubt.facts.clone(), last);
                self.act(&doubt.facts, doubt.news, doubt.settled);
            }
            Ok(last) => return Err(ServerError::Thread(format!("entry {last} of the journal is another\'s"))),
            Err(error) => {
                tracing::error!(error = with_cause(&error), "the journal cannot be opened again yet");
                self.replica.set_trouble(Some(with_cause(&error)));
                self.doubt = Some(doubt);
            }
        }
        Ok(())
    }

    /// On a full disk only what ends, holds or moves jobs and what ends tokens is taken on: the rest would use up the room set
    /// aside for it.
    fn refuse_what_takes_room(&self, calls: Vec<Call>) -> Vec<Call> {
        let shortage = self.replica.read().degraded.clone();
        let Some(shortage) = shortage.filter(|_| self.store.is_short()) else { return calls };
        let ledger = &self.core.ledger;
        let is_known = |caller: &Caller, key: &str| {
            ledger.keyed(caller.uid, key).is_some() || ledger.spent_key(caller.uid, key).is_some()
        };
        let takes_room = |(caller, ask, _): &Call| match ask {
            // What is known is only answered.
            Ask::Submit(submission) => !submission.key.as_ref().is_some_and(|key| is_known(caller, key)),
            // These may be asked for again and again, and all of them can wait. Without a release nothing is held twice.
            Ask::Report(..)
            | Ask::Release(_)
            | Ask::Reprioritise(..)
            | Ask::UsePolicy(_)
            | Ask::ChangeQueues(_)
            | Ask::OpenShell(_)
            | Ask::MakeToken(_) => true,
            Ask::Cancel(_)
            | Ask::Kill(_)
            | Ask::Hold(_)
            | Ask::Cordon(_)
            | Ask::Drain(_)
            | Ask::Uncordon(_)
            | Ask::RevokeToken { .. } => false,
        };
        let (refused, taken): (Vec<_>, Vec<_>) = calls.into_iter().partition(takes_room);
        refuse(refused, "disk-full", &shortage);
        taken
    }

    /// Tells readers that room has run short, or is there again.
    fn look_at_room(&mut self) {
        let shortage = self.store.shortage();
        let known = self.replica.read().degraded.clone();
        if shortage == known {
            return;
        }
        match &shortage {
            Some(shortage) => tracing::error!("{shortage}"),
            None => tracing::info!("there is room on the disk again"),
        }
        self.replica.set_degraded(shortage);
    }

    fn settle(&mut self, run: Run) {
        match self.executor.settle(run) {
            Ok(()) => {}
            // It was told to end without having begun: there is nothing to put away.
            Err(error @ ExecutorError::NotEnded { .. }) => tracing::warn!(run = %name(run), %error, "it stays"),
            Err(error) => {
                tracing::warn!(run = %name(run), %error, "a run that has ended could not be put away; trying again");
                self.undone.settled.insert(run);
            }
        }
    }

    /// Gives orders again that could not be carried out.
    fn try_again(&mut self) {
        let Undone { stops, settled } = std::mem::take(&mut self.undone);
        stops.into_iter().for_each(|(run, grace)| self.stop(run, grace));
        settled.into_iter().for_each(|run| self.settle(run));
    }

    /// What is left of a job that was told to stop has no more time.
    fn kill(&mut self, id: JobId) {
        let claims = self.core.ledger.claims(id).unwrap_or_default();
        let books = self.core.engine.state().books();
        let held =
            claims.filter_map(|claim| books.claims().get(ClaimId(claim)).filter(|claim| claim.holds().is_some()));
        let runs: Vec<Run> = held.map(plan::Claim::run).collect();
        runs.into_iter().for_each(|run| self.stop(run, Span::ZERO));
    }

    fn stop(&mut self, run: Run, grace: Span) {
        if let Err(error) = self.executor.stop(run, grace) {
            tracing::error!(run = %name(run), %error, "a run cannot be told to stop; trying again");
            self.undone.stops.insert(run, grace);
        }
    }

    fn show(&self, now: Time, facts: Vec<Fact>, last: u64) {
        let before = self.replica.read().ledger.decisions();
        let orders = facts.iter().filter(|fact| matches!(fact, Fact::Core(Event::Issued(_)))).count();
        self.replica.apply(now, facts, last);
        let shown = self.replica.read();
        let decision = shown.ledger.decisions();
        if decision > before {
            let claims = shown.state.books().claims();
            let live = claims.live_count();
            match orders {
                0 => tracing::debug!(decision, seq = last, live, "decided: nothing changes"),
                _ => tracing::info!(decision, seq = last, live, orders, "decided"),
            }
        }
        let recovered = shown.trouble.is_some();
        drop(shown);
        if recovered {
            tracing::info!("the journal can be written again");
            self.replica.set_trouble(None);
        }
    }

    /// Nothing of this batch has happened: it could not be made durable. Requests are refused; what executors saw is
    /// kept until it can be.
    fn undo(&mut self, error: &JournalError, news: Vec<News>, waiting: Vec<Waiting>) {
        tracing::error!(%error, "the journal cannot be written: nothing is taken on until it can be");
        self.go_back(news);
        self.replica.set_trouble(Some(error.to_string()));
        for waiting in waiting {
            let problem = Problem::new(503, "not-durable", format!("it could not be made durable: {error}"));
            waiting.send(Err(problem)).ok();
        }
    }

    /// Back to what is on record. What executors saw is kept until it can be.
    fn go_back(&mut self, news: Vec<News>) {
        let shown = self.replica.read();
        let policy = PolicyConfig::from_text(shown.state.policy())
            .and_then(|config| config.build())
            .expect("the policy in force was built before");
        self.core.engine = Engine::resume(shown.state.clone(), policy, self.settings);
        self.core.ledger = shown.ledger.clone();
        drop(shown);
        self.unheard.extend(self.postponed.keep(kept(news).collect()));
    }

    /// Does what was decided. What cannot be done is news too.
    fn carry_out(&mut self, command: &Command) {
        let done = match command {
            Command::Launch { run, allotment, tuning, until } => {
                let order = self.order(*run, allotment, *tuning, *until);
                let launched = self.executor.launch(&order);
                if let Err(error) = launched {
                    let trouble = with_cause(&error);
                    tracing::error!(run = %name(*run), error = trouble, "cannot launch");
                    let ending = Ending { trouble: Some(trouble), ..Ending::default() };
                    self.unheard.push(News::Ended { run: *run, ending });
                }
                Ok(())
            }
            Command::Stop { run, grace } => {
                self.stop(*run, self.grace_of(*run, *grace));
                Ok(())
            }
            Command::Retune { run, tuning } => self.executor.retune(*run, *tuning),
            Command::Resize { run, allotment, tuning, until } => {
                let order = self.resize_order(*run, allotment, *tuning, *until);
                match self.executor.resize(&order) {
                    // It was ordered before the service restarted, and what came of it counts before it is overdue.
                    Ok(known) => self.unheard.extend(known),
                    Err(error) => {
                        let why = with_cause(&error);
                        tracing::error!(run = %name(*run), error = why, "cannot resize");
                        self.unheard.push(News::NotResized { run: *run, why });
                    }
                }
                Ok(())
            }
            Command::Provision { .. } | Command::Release { .. } => {
                tracing::warn!(?command, "there is nobody here to rent nodes from");
                Ok(())
            }
        };
        if let Err(error) = done {
            tracing::error!(?command, %error, "an order could not be carried out");
        }
    }

    /// What the job asked for, but never longer than what was ordered if that is nothing.
    fn grace_of(&self, run: Run, ordered: Span) -> Span {
        let acceptance = self.core.ledger.acceptance(run.claim);
        let asked = acceptance.and_then(|acceptance| acceptance.request.checkpoint.grace.map(api::Duration::span));
        if ordered.is_zero() { ordered } else { asked.unwrap_or(ordered) }
    }

    fn order(&self, run: Run, allotment: &plan::Allotment, tuning: Option<perf::Tuning>, until: Time) -> LaunchOrder {
        let state = self.core.engine.state();
        let acceptance = self.core.ledger.acceptance(run.claim).expect("what is launched was numbered");
        let mut env = self.environment.clone();
        env.extend(bounds(&acceptance.request));
        let id = self.core.ledger.id(run.claim);
        env.insert("MOIRA_JOB_ID".into(), id.to_string());
        if let Some(task) = id.task {
            env.insert("MOIRA_ARRAY_ID".into(), id.number.to_string());
            env.insert("MOIRA_ARRAY_TASK_ID".into(), task.to_string());
        }
        LaunchOrder {
            run,
            program: acceptance.program.clone(),
            workers: workers_of(&allotment.placement, &state.books().cluster),
            env,
            start_within: until.since(state.now()),
            restarts: run.attempt - 1,
            tuning,
            origin: self.core.origin(run.claim),
            limit: self.limit_of(run),
            continues: self.continued_by(run.claim),
        }
    }

    /// The job whose checkpoints this one takes over. One that ended before it was launched has left those of the job that
    /// it was to run again.
    fn continued_by(&self, claim: ClaimId) -> Option<ClaimId> {
        let claims = self.core.engine.state().books().claims();
        let was_launched = |job: &ClaimId| claims.get(*job).is_none_or(|job| job.progress.launches > 0);
        continued_by(&self.core.ledger, claim).find(was_launched)
    }

    /// What is left of the time the job may hold devices.
    fn limit_of(&self, run: Run) -> Option<TimeLimit> {
        let state = self.core.engine.state();
        let claim = state.books().claim(run.claim);
        let remaining = claim.spec.limit?.saturating_sub(claim.progress.executed(state.now()));
        Some(TimeLimit { remaining, grace: self.grace_of(run, self.settings.grace) })
    }

    fn resize_order(
        &self,
        run: Run,
        allotment: &plan::Allotment,
        tuning: Option<perf::Tuning>,
        until: Time,
    ) -> ResizeOrder {
        let state = self.core.engine.state();
        let workers = workers_of(&allotment.placement, &state.books().cluster);
        ResizeOrder { run, workers, tuning, until, within: until.since(state.now()) }
    }

    /// After a start: what the journal says should run, beside what really does.
    fn reconcile(&mut self, now: Time) -> Result<(), ServerError> {
        let seen: BTreeMap<Run, Stage> =
            self.executor.survey()?.into_iter().map(|Sighting { run, stage }| (run, stage)).collect();
        let (mut news, mut again, mut ended) = (Vec::new(), Vec::new(), Vec::new());
        for claim in self.core.engine.state().books().claims().live() {
            let run = claim.run();
            let grace = self.settings.grace;
            match (&claim.phase, seen.get(&run)) {
                (Phase::Waiting | Phase::Ended { .. }, _) => {}
                (_, Some(Stage::Ended(ending))) => ended.push((run, ending.clone())),
                (Phase::Starting { holds, until }, None | Some(Stage::Starting)) => {
                    let (allotment, tuning, until) =
                        (holds.clone(), claim.tuning, (*until).max(now + Span::from_secs(10)));
                    again.push(Command::Launch { run, allotment, tuning, until });
                }
                (Phase::Starting { .. }, Some(Stage::Running)) => news.push(News::Started { run }),
                (Phase::Running { .. } | Phase::Stopping { .. }, None) => {
                    let trouble =
                        Some("nothing is left of it: the machine was restarted, or its files were removed".into());
                    let told_to_stop = matches!(claim.phase, Phase::Stopping { .. });
                    let ending = Ending { started: true, told_to_stop, trouble, ..Ending::default() };
                    news.push(News::Ended { run, ending });
                }
                (Phase::Running { .. }, Some(_)) => again.extend(claim.resizing.as_ref().map(|resizing| {
                    let (allotment, tuning, until) = (resizing.to.clone(), resizing.tuning, resizing.until);
                    Command::Resize { run, allotment, tuning, until }
                })),
                (Phase::Stopping { .. }, Some(_)) => again.push(Command::Stop { run, grace }),
            }
        }
        for (run, ending) in ended {
            match self.executor.last_words(run) {
                Ok(lines) => news.push(News::Progress { run, lines }),
                Err(error) => tracing::warn!(run = %name(run), %error, "what it reported last is lost"),
            }
            news.push(News::Ended { run, ending });
        }
        let unknown = seen.into_iter().filter(|(run, _)| !self.is_held(*run)).collect::<Vec<_>>();
        for (run, stage) in unknown {
            tracing::warn!(run = %name(run), "nobody knows of this run any more: it is ended");
            match stage {
                Stage::Ended(ending) => news.push(News::Ended { run, ending }),
                Stage::Starting | Stage::Running => again.push(Command::Stop { run, grace: Span::ZERO }),
            }
        }
        again.iter().for_each(|command| self.carry_out(command));
        // What was being told when the service ended is told again: better twice than never.
        let due: Vec<u64> = self.core.ledger.notifications_due().map(|(_, due)| due.number).collect();
        due.into_iter().for_each(|number| self.notify(number));
        news.extend(std::mem::take(&mut self.unheard));
        self.turn(now, Vec::new(), news)
    }

    fn is_held(&self, run: Run) -> bool {
        let claim = self.core.engine.state().books().claims().get(run.claim);
        claim.is_some_and(|claim| claim.run() == run && claim.holds().is_some())
    }
}

pub(crate) fn text_of(fact: &Fact) -> String {
    serde_json::to_string(fact).expect("facts are made of numbers, words and lists")
}

/// Within what a job may be changed, for workers that choose by themselves.
fn bounds(request: &api::JobRequest) -> BTreeMap<String, String> {
    let mut env = BTreeMap::from([("MOIRA_MAX_WORKERS".to_string(), request.workers.max.to_string())]);
    if let Some(batch) = request.batch {
        env.insert("MOIRA_BATCH".into(), batch.initial.to_string());
        env.insert("MOIRA_BATCH_MAX".into(), batch.max.to_string());
    }
    env
}

/// An error and what brought it about, in one line.
fn with_cause(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {}", with_cause(cause)))
}

fn name(run: Run) -> String {
    format!("{}.{}", run.claim, run.attempt)
}

/// The changes that make a cluster on record the one that was found, by name of the node. What cannot be changed is said.
pub(crate) fn changes_to(known: &cluster::Cluster, found: &cluster::ClusterDraft) -> Result<Vec<Change>, ServerError> {
    let (fresh, _) = found.clone().build()?;
    let mut changes = Vec::new();
    for (id, node) in known.nodes() {
        let now = fresh.node_named(&node.name).map(|id| fresh.node(id));
        let same_kind = |now: &cluster::Node| {
            now.kind.map(|kind| &fresh.kind(kind).name) == node.kind.map(|kind| &known.kind(kind).name)
        };
        let status = match now {
            None => (Availability::Lost, Devices::NONE),
            Some(now) if !same_kind(now) => return Err(ServerError::KindChanged { node: node.name.to_string() }),
            Some(now) => {
                let missing = Devices::first(u32::from(node.gpus)).without(Devices::first(u32::from(now.gpus)));
                (Availability::Open, missing)
            }
        };
        changes.push(Change::Status(id, status.0, status.1));
    }
    let is_new = |draft: &&cluster::NodeDraft| known.node_named(&draft.name).is_none();
    for node in found.nodes.iter().filter(is_new) {
        let unknown = |kind: &&cluster::KindDraft| {
            Some(&kind.name) == node.kind.as_ref() && known.kind_named(&kind.name).is_none()
        };
        let kinds = found.kinds.iter().filter(unknown).cloned().collect();
        changes.push(Change::Join(Request::AddNode { node: Box::new(node.clone()), kinds }));
    }
    Ok(changes)
}

/// One difference between the cluster on record and the machine.
#[derive(Debug)]
pub(crate) enum Change {
    Status(NodeId, Availability, Devices),
    Join(Request),
}
