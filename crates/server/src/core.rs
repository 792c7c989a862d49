//! One step of the service: everything pending goes in, facts and answers come out. It reads no clock and does no IO, so
//! that a test can drive it by hand; the journal and the executor are the caller's affair.

use std::path::PathBuf;
use std::sync::Arc;

use api::{
    FieldFault, JobId, JobRequest, Problem, ProgressReply, ProgressReport, QueueChangeView, RestartKind, RestartReport,
    Role, Scene,
};
use cluster::{ClaimId, JobSpec, NodeId, QueueDraft, Run, Span, Time};
use engine::{Engine, Event, Input, Refusal, Request, State};
use executors::{Account, Delivery, Ending, Limits, News, Origin, Program, Window};
use perf::{GradientNoise, Interruption, Observation, Speed, StepReport};
use plan::{FailureCause, Phase};
use policies::PolicyConfig;

use crate::access::{Ceiling, MOST_TOKENS, Token};
use crate::clock::ClockFound;
use crate::fact::{Acceptance, Array, Caller, Deed, Fact};
use crate::ledger::{Ledger, Unknown};
use crate::notification;
use crate::queues::Review;
use crate::seldom::{Seldom, cut};
use crate::typical::{Known, Typical};

/// So much is said of a progress line that cannot be read, and of why a notification was not delivered.
const LONGEST_FAULT: usize = 200;

/// The decision core with what the service keeps beside it.
#[allow(missing_debug_implementations, reason = "a policy need not be printable")]
pub struct Core {
    pub engine: Engine,
    pub ledger: Ledger,
    typical: Typical,
    /// Of which runs it was said that what they report cannot be read.
    faults: Seldom<Run>,
    /// Of which users it was said that a notification of theirs was not delivered.
    undelivered: Seldom<u32>,
}

/// What somebody asks of the service.
#[derive(Debug)]
pub enum Ask {
    Submit(Box<Submission>),
    Cancel(JobId),
    /// The same without time to save its state, also for one that was cancelled before.
    Kill(JobId),
    Hold(JobId),
    Release(JobId),
    Reprioritise(JobId, i32),
    Cordon(String),
    Drain(String),
    Uncordon(String),
    UsePolicy(PolicyConfig),
    ChangeQueues(Vec<QueueDraft>),
    Report(JobId, ProgressReport),
    /// On record before it is tried, so that none is opened without. Whether it was opened is not on record.
    OpenShell(JobId),
    /// The core gives it its number.
    MakeToken(Box<Token>),
    RevokeToken {
        id: u32,
        unix_ms: u64,
    },
}

/// A job that was examined and can be numbered.
#[derive(Debug)]
pub struct Submission {
    pub spec: Arc<JobSpec>,
    pub speed: Arc<Speed>,
    pub request: JobRequest,
    pub program: Program,
    pub key: Option<String>,
    pub array: Option<Array>,
    /// How much its owner may have.
    pub ceiling: Ceiling,
    /// The claims that ended and are run again by this: one for each task, or none.
    pub continues: Vec<ClaimId>,
}

impl Submission {
    /// From what was asked for to what the core and the executor understand. It runs as `account`, or as the service.
    pub fn of(
        request: JobRequest,
        scene: &Scene<'_>,
        account: Option<Account>,
        key: Option<String>,
    ) -> Result<Submission, Problem> {
        let built = request.build(scene)?;
        let spec =
            built.draft.build().map_err(|invalid| FieldFault::new(invalid.field.clone(), invalid.to_string()))?;
        let home = account.as_ref().map_or_else(|| PathBuf::from("/"), |account| account.home.clone());
        let program = Program {
            command: request.command.argv(),
            workdir: request.workdir.as_ref().map_or(home, PathBuf::from),
            env: request.env.clone(),
            umask: request.umask.map(api::Umask::bits),
            account,
            limits: Limits {
                address_space: None,
                open_files: request.ulimits.open_files,
                processes: request.ulimits.processes,
                core_file: request.ulimits.core_file.map(|size| size.bytes().get()),
            },
            notice: request.checkpoint.notice.map_or(Span::ZERO, api::Duration::span),
            job_name: request.display_name(),
            queue: scene.queues.queue(spec.queue).name.to_string(),
            input: None,
            terminal: request.pty.map(window_of).transpose()?,
        };
        let array = request.array.map(|array| Array { indices: array.tasks().collect(), at_once: array.at_once });
        let (spec, speed, ceiling) = (Arc::new(spec), Arc::new(built.speed), Ceiling::default());
        Ok(Submission { spec, speed, request, program, key, array, ceiling, continues: Vec::new() })
    }
}

fn window_of(window: api::Window) -> Result<Window, FieldFault> {
    let (rows, columns) = window.check(Some("pty"))?;
    Ok(Window { rows, columns })
}

/// What came of it.
#[derive(Debug, Clone, PartialEq)]
pub enum Done {
    /// The job exists; `false` if it did before.
    Numbered(JobId, bool),
    Nothing,
    Tuned(ProgressReply),
    Token(Arc<Token>),
    /// What changed of the queues.
    Queues(Vec<QueueChangeView>),
}

pub type Reply = Result<Done, Problem>;

/// Everything that is now a fact, in order, and one reply for each ask.
#[derive(Debug, Default)]
pub struct Step {
    pub facts: Vec<Fact>,
    pub replies: Vec<Reply>,
    /// Runs whose end is among the facts, or is of no interest any more.
    pub settled: Vec<Run>,
}

/// Where the reply to an ask comes from, once the core has answered.
enum Awaited {
    Known(Reply),
    /// The numbers of these of the core's replies; the first refusal is the reply.
    Core {
        replies: std::ops::Range<usize>,
        done: Done,
        /// What is on record then, and by whom.
        deed: (Caller, Deed),
    },
    /// The same, for a submission whose claims begin here.
    Submitted {
        replies: std::ops::Range<usize>,
        first: ClaimId,
    },
    /// The batch a job is to use, as known after the step.
    Tuning(ClaimId),
}

impl Core {
    pub fn new(engine: Engine, ledger: Ledger) -> Core {
        Core { engine, ledger, typical: Typical::default(), faults: Seldom::default(), undelivered: Seldom::default() }
    }

    /// From now on the first report counts wherever a job is. Those of a simulated world carry no noise, and a
    /// simulator waits for no second one.
    pub fn trust_all_reports(&mut self) {
        self.typical.trusts_all = true;
    }

    /// Takes everything pending and decides once.
    pub fn step(&mut self, now: Time, asks: Vec<(Caller, Ask)>, news: Vec<News>) -> Step {
        let mut step = Step::default();
        let mut inputs = Vec::new();
        let mut awaited = Vec::new();
        let mut requests = 0;
        for (caller, ask) in asks {
            let mut batch = Batch { core: self, step: &mut step, inputs: &mut inputs, requests: &mut requests };
            awaited.push(batch.take(now, &caller, ask).unwrap_or_else(|problem| Awaited::Known(Err(problem))));
        }
        for news in news {
            self.hear(now, news, &mut step, &mut inputs);
        }
        let answer = self.engine.handle(now, inputs);
        let mut ended = self.record(now, answer.events, &mut step);
        while let Some(release) = self.next_release(&mut ended) {
            let answer = self.engine.handle(now, vec![Input::Request(Request::Release(release))]);
            ended.extend(self.record(now, answer.events, &mut step));
        }
        for awaited in awaited {
            let reply = self.reply(&awaited, &answer.replies);
            if let (Ok(_), Awaited::Core { deed: (by, deed), .. }) = (&reply, awaited) {
                self.put_on_record(now, Fact::Did { by, deed }, &mut step);
            }
            step.replies.push(reply);
        }
        step
    }

    /// From where a run of this claim comes, for what it leaves on the disk.
    pub(crate) fn origin(&self, claim: ClaimId) -> Option<Origin> {
        let submitted = self.engine.state().books().claims().get(claim)?.submitted;
        let data_dir = self.ledger.identity()?.to_string();
        Some(Origin { data_dir, job: claim, submitted })
    }

    /// Another policy decides from now on; it is asked in the next step.
    fn use_policy(&mut self, now: Time, config: &PolicyConfig, step: &mut Step) -> Result<(), Problem> {
        let policy =
            config.build().map_err(|error| Problem::from(api::FieldFault::new("policy", error.to_string())))?;
        if !policy.knows().is_empty() {
            let detail = format!("{} needs to be told what only a simulator knows", config.name);
            return Err(Problem::from(api::FieldFault::new("policy", detail)));
        }
        let chosen = Fact::Core(self.engine.use_policy(now, &config.to_text(), policy));
        self.ledger.apply(now, &chosen, &self.engine.state().books().cluster);
        step.facts.push(chosen);
        Ok(())
    }

    /// Puts on record who is to be told of what the step has decided.
    pub(crate) fn announce(&mut self, now: Time, step: &mut Step) {
        for notification in notification::due(&step.facts, self.engine.state(), &self.ledger) {
            self.put_on_record(now, Fact::NotificationDue(notification), step);
        }
    }

    /// Nothing is known any more of these claims.
    pub(crate) fn forget(&mut self, now: Time, claims: Vec<ClaimId>, step: &mut Step) {
        if !claims.is_empty() {
            let forgotten = Fact::Core(self.engine.forget(now, claims));
            self.put_on_record(now, forgotten, step);
        }
    }

    /// The wall clock is not where it was, or the machine was restarted. Deadlines stay where they are on the wall clock.
    pub(crate) fn hear_clock(&mut self, now: Time, found: ClockFound, step: &mut Step) {
        found.say();
        self.put_on_record(now, Fact::Clock(found), step);
        let claims = self.engine.state().books().claims();
        let moved = claims.live().filter_map(|claim| {
            let deadline = self.ledger.acceptance(claim.id)?.request.limits.deadline.as_deref()?;
            let deadline = self.ledger.timeline().engine_time(api::unix_millis(deadline).ok()?);
            let moved = Event::DeadlineMoved { claim: claim.id, deadline };
            (claim.spec.deadline != Some(deadline)).then_some(Input::Report(moved))
        });
        let moved: Vec<Input> = moved.collect();
        if !moved.is_empty() {
            let answer = self.engine.handle(now, moved);
            self.record(now, answer.events, step);
        }
    }

    /// Puts on record once more which policy decides.
    pub(crate) fn choose_again(&mut self, now: Time, step: &mut Step) {
        let config =
            PolicyConfig::from_text(self.engine.state().policy()).expect("the policy in force was built before");
        self.use_policy(now, &config, step).expect("the policy in force was allowed before");
    }

    /// Puts what the core says on record, and returns the claims that ended by it.
    fn record(&mut self, now: Time, events: Vec<Event>, step: &mut Step) -> Vec<ClaimId> {
        let mut ended = Vec::new();
        for event in events {
            ended.extend(claim_that_may_end(&event));
            let fact = Fact::Core(event);
            self.ledger.apply(now, &fact, &self.engine.state().books().cluster);
            step.facts.push(fact);
        }
        let claims = self.engine.state().books().claims();
        ended.retain(|&claim| !claims.claim(claim).is_live());
        for &claim in &ended {
            self.typical.forget(claim);
        }
        ended
    }

    /// The next task of an array that may go now that one of its siblings has ended.
    fn next_release(&self, ended: &mut Vec<ClaimId>) -> Option<ClaimId> {
        while let Some(claim) = ended.pop() {
            if let Some(next) = self.ledger.next_throttled(claim) {
                return Some(next);
            }
        }
        None
    }

    fn reply(&self, awaited: &Awaited, replies: &[Result<Option<ClaimId>, Refusal>]) -> Reply {
        let first_refusal = |range: std::ops::Range<usize>| {
            replies[range].iter().find_map(|reply| reply.as_ref().err()).map_or(Ok(()), |why| Err(self.refused(why)))
        };
        match awaited {
            Awaited::Known(reply) => reply.clone(),
            Awaited::Core { replies, done, .. } => first_refusal(replies.clone()).map(|()| done.clone()),
            Awaited::Submitted { replies, first } => {
                first_refusal(replies.clone()).map(|()| Done::Numbered(JobId::job(first.0), true))
            }
            Awaited::Tuning(claim) => Ok(Done::Tuned(tuning_of(self.engine.state(), *claim))),
        }
    }

    fn refused(&self, why: &Refusal) -> Problem {
        match why {
            Refusal::UnknownClaim(claim) => Problem::not_found(format!("there is no job {claim}")),
            Refusal::Ended(claim) => Problem::conflict(format!("job {} has ended", self.ledger.id(*claim))),
            Refusal::AlreadyHeld(claim) => Problem::conflict(format!("job {} is held already", self.ledger.id(*claim))),
            Refusal::NotHeld(claim) => Problem::conflict(format!("job {} is not held", self.ledger.id(*claim))),
            Refusal::DependencyNeverFinishes(claim) => {
                let detail = format!("job {} has ended without finishing", self.ledger.id(*claim));
                Problem::from(api::FieldFault::new("depends_on", detail))
            }
            Refusal::QueuesOutdated => Problem::conflict(why.to_string()),
            Refusal::QueueClosed(_) => Problem::from(api::FieldFault::new("queue", why.to_string())),
            Refusal::PinnedBeyondGuarantee { .. } => {
                Problem::from(api::FieldFault::new("interruptible", why.to_string()))
            }
            Refusal::Impossible(obstruction) => {
                Problem::from(api::FieldFault::new("resources", format!("it can never run here: {obstruction}")))
            }
            other => Problem::new(422, "refused", other.to_string()),
        }
    }

    /// What an executor saw, as facts and as reports to the core.
    fn hear(&mut self, now: Time, news: News, step: &mut Step, inputs: &mut Vec<Input>) {
        match news {
            News::Started { run } => inputs.push(Input::Report(Event::RunStarted { run })),
            News::Usage { .. } | News::Told { .. } | News::Dropped { .. } => {}
            News::Progress { run, lines } => {
                for line in lines {
                    match ProgressReport::parse_line(&line) {
                        Ok(report) => self.reported(now, run, report, step, inputs),
                        Err(fault) => self.say_fault(now, run, &fault),
                    }
                }
            }
            News::Notified { number, delivery } => {
                // A service that was killed may have had it delivered, and heard of it, before.
                if let Some((_, due)) = self.ledger.notification_due(number) {
                    let (claim, event) = (due.claim, due.event);
                    if let Some((why, unsaid)) = self.undelivered_to_say(now, claim, &delivery) {
                        let job = self.ledger.id(claim);
                        tracing::warn!(%job, %event, why, unsaid, "somebody could not be told of a job");
                    }
                    self.put_on_record(now, Fact::Notified { number, delivery }, step);
                }
            }
            News::Resized { run } => inputs.push(Input::Report(Event::RunResized { run })),
            News::NotResized { run, why } => {
                if is_resizing(self.engine.state(), run) {
                    inputs.push(Input::Report(Event::RunNotResized { run }));
                    self.put_on_record(now, Fact::NotResized { run, why }, step);
                }
            }
            News::Ended { run, ending } => {
                step.settled.push(run);
                if !is_current(self.engine.state(), run) {
                    return;
                }
                inputs.extend(self.verdict(run, &ending).into_iter().map(Input::Report));
                self.typical.run_ended(run.claim);
                self.put_on_record(now, Fact::Ended { run, ending }, step);
            }
        }
    }

    /// A job decides how often it writes such lines, and what stands in them.
    fn say_fault(&mut self, now: Time, run: Run, fault: &FieldFault) {
        if let Some((fault, unsaid)) = self.fault_to_say(now, run, fault) {
            tracing::warn!(job = %self.ledger.id(run.claim), fault, unsaid, "a progress line is passed over");
        }
    }

    /// What is said of a line that cannot be read, if something is said, and of how many before it nothing was.
    fn fault_to_say(&mut self, now: Time, run: Run, fault: &FieldFault) -> Option<(String, u64)> {
        let unsaid = self.faults.next(run, now)?;
        Some((cut(&fault.to_string(), LONGEST_FAULT), unsaid))
    }

    /// What is said of a notification that was not delivered, if something is said, and of how many of the same user's
    /// before it nothing was. Why it failed is in the words of the receiver.
    fn undelivered_to_say(&mut self, now: Time, claim: ClaimId, delivery: &Delivery) -> Option<(String, u64)> {
        let why = match delivery {
            Delivery::Delivered => return None,
            Delivery::Failed(why) => cut(why, LONGEST_FAULT),
            Delivery::Dropped => "dropped: too many of its user's were waiting".into(),
        };
        let owner = self.ledger.acceptance(claim)?.owner.uid;
        Some((why, self.undelivered.next(owner, now)?))
    }

    /// A fact of the service's own.
    fn put_on_record(&mut self, now: Time, fact: Fact, step: &mut Step) {
        self.ledger.apply(now, &fact, &self.engine.state().books().cluster);
        step.facts.push(fact);
    }

    /// What the end of a run's processes means for its claim.
    fn verdict(&self, run: Run, ending: &Ending) -> Vec<Event> {
        let claim = self.engine.state().books().claim(run.claim);
        let saved = self.ledger.job(run.claim).map_or(0, |job| job.saved);
        let acceptance = self.ledger.acceptance(run.claim);
        let codes = acceptance.map_or(&[][..], |acceptance| acceptance.request.retry.exit_codes.as_slice());
        let failed = |why| Event::RunFailed { run, why, done: saved };
        let starting = matches!(claim.phase, Phase::Starting { .. });
        let code = ending.exit_code();
        // Nobody saw how it ended, or it never came as far as its own workers.
        let nobody_seen = ending.exits.iter().all(|exit| exit.as_code().is_none());
        let lost = code.is_none() && (ending.started || nobody_seen);
        // Nobody can go on at a terminal where a session was that is gone.
        let is_session = ending.started && acceptance.is_some_and(|acceptance| acceptance.program.terminal.is_some());
        let is_awaited = matches!(claim.phase, Phase::Stopping { .. });
        let verdict = match code {
            Some(0) => Event::RunFinished { run },
            _ if ending.limit_reached => Event::RunStopped { run, done: claim.progress.done.max(saved) },
            _ if is_session && !is_awaited && (lost || ending.told_to_stop) => failed(FailureCause::Final),
            _ if lost && !ending.hung => failed(FailureCause::Mishap),
            // A job that is told to stop may save its state first, so what it last reported counts.
            _ if ending.told_to_stop && is_awaited => Event::RunStopped { run, done: claim.progress.done.max(saved) },
            _ if ending.told_to_stop => failed(FailureCause::Mishap),
            Some(code) if !codes.is_empty() && !codes.iter().any(|&listed| i32::from(listed) == code) => {
                failed(FailureCause::Final)
            }
            _ => failed(FailureCause::Crash),
        };
        // Short runs are over before anyone has heard that they began.
        let began = (starting && ending.started).then_some(Event::RunStarted { run });
        let timed = ending.ran.map(|ran| Event::RunTimed { run, ran });
        // Its supervisor may keep the limit before we have noticed that it is reached.
        let overdue = ending.limit_reached && claim.leaves_as.is_none();
        let overdue = overdue.then_some(Event::LimitReached { claim: run.claim });
        [began, timed, overdue, Some(verdict)].into_iter().flatten().collect()
    }

    fn reported(&mut self, now: Time, run: Run, mut report: ProgressReport, step: &mut Step, inputs: &mut Vec<Input>) {
        let state = self.engine.state();
        if !is_current(state, run) {
            return;
        }
        if matches!(state.books().claim(run.claim).phase, Phase::Starting { .. }) {
            inputs.push(Input::Report(Event::RunStarted { run }));
        }
        report.restart = report.restart.filter(|restart| self.is_news(run, restart));
        // What this batch has said before counts already, and the core has not heard it yet.
        let known = self.ledger.job(run.claim).and_then(|job| job.report.as_ref()).map(|(_, known)| known);
        let interruption = report.restart.as_deref().and_then(|restart| self.interruption(now, run.claim, restart));
        let told = step_report(state, run.claim, known, &report);
        let known = told.steps.map(|steps| (steps, known_of(state, run.claim, &steps)));
        let steps = known.and_then(|(steps, known)| self.typical.of(now, run.claim, steps, known));
        let progress = StepReport { interruption, steps, ..told };
        inputs.push(Input::Report(Event::RunProgressed { run, report: progress }));
        self.put_on_record(now, Fact::Reported { run, report }, step);
    }

    /// Whether a run can have had this interruption and has not told of it before. It begins with one restart, unless it
    /// is the first. Of resizes it may have several, but a line that is read twice tells of the same one.
    fn is_news(&self, run: Run, restart: &RestartReport) -> bool {
        let Some(job) = self.ledger.job(run.claim) else { return false };
        let progress = &self.engine.state().books().claim(run.claim).progress;
        let by_this_run = |at: Time| progress.last_launch.is_some_and(|launch| at > launch);
        let told = job.interruption(restart.kind).filter(|(at, _)| by_this_run(*at));
        match restart.kind {
            RestartKind::Restart => run.attempt > 1 && told.is_none(),
            RestartKind::Resize => {
                let was_resized = progress.resizes > 0 || is_resizing(self.engine.state(), run);
                was_resized && told.is_none_or(|(at, earlier)| earlier != restart || job.was_told_to_resize_since(*at))
            }
        }
    }

    /// What an interruption cost, at most as much as can have gone by: policies take it for the price of the next one.
    fn interruption(&self, now: Time, claim: ClaimId, restart: &RestartReport) -> Option<Interruption> {
        let price = Span::from_secs_f64(restart.phases.price_seconds());
        let settings = self.engine.settings();
        match restart.kind {
            RestartKind::Restart => {
                let launched = self.engine.state().books().claim(claim).progress.last_launch?;
                let asked = self.ledger.acceptance(claim).and_then(|it| it.request.checkpoint.grace);
                let grace = asked.map_or(settings.grace, api::Duration::span);
                Some(Interruption::Restart(price.min(now.since(launched) + grace)))
            }
            RestartKind::Resize => {
                // They have as long to switch as they have to agree on it.
                settings.resize_within.map(|within| Interruption::Resize(price.min(within * 2)))
            }
        }
    }
}

/// The part of a step in which asks become requests to the core.
struct Batch<'a> {
    core: &'a mut Core,
    step: &'a mut Step,
    inputs: &'a mut Vec<Input>,
    requests: &'a mut usize,
}

impl Batch<'_> {
    fn take(&mut self, now: Time, caller: &Caller, ask: Ask) -> Result<Awaited, Problem> {
        match ask {
            Ask::Submit(submission) => self.submit(now, caller, *submission),
            Ask::Cancel(id) => self.change(caller, id, Deed::Cancel(id), Request::Cancel),
            Ask::Kill(id) => self.kill(caller, id),
            Ask::Hold(id) => self.change(caller, id, Deed::Hold(id), Request::Hold),
            Ask::Release(id) => {
                let throttled = |claim: u32| self.core.ledger.job(ClaimId(claim)).is_some_and(|job| job.throttled);
                if self.core.ledger.claims(id).is_some_and(|mut claims| claims.any(throttled)) {
                    return Err(Problem::conflict(format!("job {id} waits because enough of its array are under way")));
                }
                self.change(caller, id, Deed::Release(id), Request::Release)
            }
            Ask::Reprioritise(id, priority) => {
                let deed = Deed::Reprioritise(id, priority);
                self.change(caller, id, deed, |claim| Request::Reprioritise(claim, priority))
            }
            Ask::Cordon(node) => self.node(caller, &node, Deed::Cordon(node.clone()), Request::Cordon),
            Ask::Drain(node) => self.node(caller, &node, Deed::Drain(node.clone()), Request::Drain),
            Ask::Uncordon(node) => self.node(caller, &node, Deed::Uncordon(node.clone()), Request::Reopen),
            Ask::UsePolicy(config) => {
                at_least(Role::Admin, caller)?;
                self.core.use_policy(now, &config, self.step)?;
                let deed = Deed::UsePolicy(config.to_text());
                self.core.put_on_record(now, Fact::Did { by: caller.clone(), deed }, self.step);
                Ok(Awaited::Known(Ok(Done::Nothing)))
            }
            Ask::ChangeQueues(drafts) => self.change_queues(caller, &drafts),
            Ask::MakeToken(token) => self.make_token(now, caller, *token),
            Ask::RevokeToken { id, unix_ms } => self.revoke_token(now, caller, id, unix_ms),
            Ask::OpenShell(id) => self.open_shell(now, caller, id),
            Ask::Report(id, report) => {
                let claim = self.one(id)?;
                let owner = &self.core.ledger.acceptance(claim).expect("it was just found").owner;
                if !caller.may_change_jobs_of(owner) {
                    return Err(not_yours(id));
                }
                let run = self.core.engine.state().books().claim(claim).run();
                let meant = report.run.as_ref().and_then(|attempt| attempt.parse::<u32>().ok());
                if meant.is_none_or(|attempt| attempt == run.attempt) {
                    self.core.reported(now, run, report, self.step, self.inputs);
                }
                Ok(Awaited::Tuning(claim))
            }
        }
    }

    fn submit(&mut self, now: Time, caller: &Caller, submission: Submission) -> Result<Awaited, Problem> {
        if let Some(key) = &submission.key
            && let Some(known) = self.core.ledger.keyed(caller.uid, key)
        {
            return if known.request == submission.request && known.continues == submission.continues {
                Ok(Awaited::Known(Ok(Done::Numbered(JobId::job(known.first.0), false))))
            } else {
                let detail =
                    format!("another job was submitted under the idempotency key `{key}`: job {}", known.first);
                Err(Problem::conflict(detail))
            };
        }
        if let Some(key) = &submission.key
            && let Some(number) = self.core.ledger.spent_key(caller.uid, key)
        {
            let detail =
                format!("job {number} was submitted under the idempotency key `{key}`: it has ended and was forgotten");
            return Err(Problem::conflict(detail));
        }
        refuse_second_requeue(&self.core.ledger, &submission.continues)?;
        self.check_ceiling(caller, &submission)?;
        let first = ClaimId(self.core.ledger.next_number());
        let acceptance = Arc::new(Acceptance {
            first,
            owner: caller.clone(),
            program: Arc::new(submission.program),
            key: submission.key,
            array: submission.array,
            continues: submission.continues,
            request: submission.request,
        });
        let fact = Fact::Numbered(acceptance.clone());
        self.core.ledger.apply(now, &fact, &self.core.engine.state().books().cluster);
        self.step.facts.push(fact);
        let begin = *self.requests;
        for place in 0..acceptance.task_count() {
            let throttled = self.core.ledger.job(ClaimId(first.0 + place)).is_some_and(|job| job.throttled);
            let held = acceptance.request.hold || throttled;
            self.request(Request::Submit { spec: submission.spec.clone(), speed: submission.speed.clone(), held });
        }
        Ok(Awaited::Submitted { replies: begin..*self.requests, first })
    }

    /// Whether the owner may have this too. Counted here and not at the door, where two could come in at once.
    fn check_ceiling(&self, owner: &Caller, submission: &Submission) -> Result<(), Problem> {
        let Ceiling { live_jobs, devices, .. } = submission.ceiling;
        if live_jobs.is_none() && devices.is_none() {
            return Ok(());
        }
        let ledger = &self.core.ledger;
        let is_theirs = |claim: ClaimId| ledger.acceptance(claim).is_some_and(|it| it.owner.uid == owner.uid);
        let live = || self.core.engine.state().books().claims().live().filter(|claim| is_theirs(claim.id));
        let tasks = submission.array.as_ref().map_or(1, |array| array.indices.len());
        let count = live().count() + tasks;
        if let Some(most) = live_jobs.filter(|&most| count > most as usize) {
            let detail =
                format!("{} may have {most} jobs that have not ended, and this would make {count}", owner.name);
            return Err(Problem::new(429, "ceiling", detail));
        }
        let largest = |spec: &JobSpec| spec.gpus(spec.scaling.max()).as_f64();
        let asked = live().map(|claim| largest(&claim.spec)).sum::<f64>() + largest(&submission.spec) * tasks as f64;
        match devices.filter(|&most| asked > f64::from(most)) {
            Some(most) => {
                let name = &owner.name;
                let detail =
                    format!("the jobs of {name} may ask for {most} devices together, and this would make {asked}");
                Err(Problem::new(429, "ceiling", detail))
            }
            None => Ok(()),
        }
    }

    fn make_token(&mut self, now: Time, caller: &Caller, mut token: Token) -> Result<Awaited, Problem> {
        let ledger = &self.core.ledger;
        let theirs = ledger.tokens().filter(|it| it.uid == token.uid && it.is_good(token.made_unix_ms)).count();
        if theirs >= MOST_TOKENS {
            let detail = format!("{} has {theirs} tokens, which is as many as one may have: revoke some", token.user);
            return Err(Problem::new(429, "ceiling", detail));
        }
        token.id = ledger.next_token();
        let token = Arc::new(token);
        self.core.put_on_record(now, Fact::TokenMade { by: caller.clone(), token: token.clone() }, self.step);
        Ok(Awaited::Known(Ok(Done::Token(token))))
    }

    fn revoke_token(&mut self, now: Time, caller: &Caller, id: u32, unix_ms: u64) -> Result<Awaited, Problem> {
        let is_known = |token: &Token| token.uid == caller.uid || caller.role == Role::Admin;
        // Whether others have a token of this number is nobody's business.
        if !self.core.ledger.token(id).is_some_and(is_known) {
            return Err(Problem::not_found(format!("{} has no token {id}", caller.name)));
        }
        // One that is revoked already stays so, and nothing more is to be recorded of it.
        if self.core.ledger.token(id).is_some_and(|token| token.revoked_unix_ms.is_none()) {
            self.core.put_on_record(now, Fact::TokenRevoked { by: caller.clone(), id, unix_ms }, self.step);
        }
        let token = self.core.ledger.token(id).cloned().expect("a token that was revoked is still known");
        Ok(Awaited::Known(Ok(Done::Token(Arc::new(token)))))
    }

    /// A shell is the job's user: nobody else may be that.
    fn open_shell(&mut self, now: Time, caller: &Caller, id: JobId) -> Result<Awaited, Problem> {
        let claim = self.one(id)?;
        let owner = &self.core.ledger.acceptance(claim).expect("it was just found").owner;
        if owner.uid != caller.uid {
            return Err(not_yours(id));
        }
        let fact = Fact::Did { by: caller.clone(), deed: Deed::OpenShell(id) };
        self.core.put_on_record(now, fact, self.step);
        Ok(Awaited::Known(Ok(Done::Nothing)))
    }

    /// The same change to all claims of a job that have not ended; it is refused if none is left.
    fn change(
        &mut self,
        caller: &Caller,
        id: JobId,
        deed: Deed,
        request: impl Fn(ClaimId) -> Request,
    ) -> Result<Awaited, Problem> {
        let claims = self.core.ledger.claims(id).ok_or_else(|| no_job(&self.core.ledger, id))?;
        let owner = &self.core.ledger.acceptance(ClaimId(claims.start)).expect("it was just found").owner;
        if !caller.may_change_jobs_of(owner) {
            return Err(not_yours(id));
        }
        let several = claims.len() > 1;
        let books = self.core.engine.state().books();
        let live: Vec<ClaimId> =
            claims.map(ClaimId).filter(|&claim| !several || books.claim(claim).is_live()).collect();
        if live.is_empty() {
            return Err(Problem::conflict(format!("job {id} has ended")));
        }
        let begin = *self.requests;
        live.into_iter().for_each(|claim| self.request(request(claim)));
        // Of an array some tasks may be beyond the change: that is no reason to refuse it.
        let replies = if several { begin..begin } else { begin..*self.requests };
        Ok(Awaited::Core { replies, done: Done::Nothing, deed: (caller.clone(), deed) })
    }

    /// All claims of a job that have not ended are cancelled, unless they were. That their runs are killed is up to whoever
    /// carries out the deed.
    fn kill(&mut self, caller: &Caller, id: JobId) -> Result<Awaited, Problem> {
        let claims = self.core.ledger.claims(id).ok_or_else(|| no_job(&self.core.ledger, id))?;
        let owner = &self.core.ledger.acceptance(ClaimId(claims.start)).expect("it was just found").owner;
        if !caller.may_change_jobs_of(owner) {
            return Err(not_yours(id));
        }
        let books = self.core.engine.state().books();
        let live: Vec<_> = claims.map(|claim| books.claim(ClaimId(claim))).filter(|claim| claim.is_live()).collect();
        if live.is_empty() {
            return Err(Problem::conflict(format!("job {id} has ended")));
        }
        let stay: Vec<ClaimId> = live.iter().filter(|claim| claim.leaves_as.is_none()).map(|claim| claim.id).collect();
        stay.into_iter().for_each(|claim| self.request(Request::Cancel(claim)));
        let begin = *self.requests;
        Ok(Awaited::Core { replies: begin..begin, done: Done::Nothing, deed: (caller.clone(), Deed::Kill(id)) })
    }

    fn node(
        &mut self,
        caller: &Caller,
        name: &str,
        deed: Deed,
        request: fn(NodeId) -> Request,
    ) -> Result<Awaited, Problem> {
        at_least(Role::Operator, caller)?;
        let cluster = &self.core.engine.state().books().cluster;
        let node = cluster.node_named(name).ok_or_else(|| {
            let names = cluster.nodes().map(|(_, node)| &*node.name);
            let hint = cluster::suggestion(name, names);
            Problem::not_found(format!("there is no node `{name}`{hint}"))
        })?;
        let begin = *self.requests;
        self.request(request(node));
        let replies = begin..*self.requests;
        Ok(Awaited::Core { replies, done: Done::Nothing, deed: (caller.clone(), deed) })
    }

    fn change_queues(&mut self, caller: &Caller, drafts: &[QueueDraft]) -> Result<Awaited, Problem> {
        at_least(Role::Admin, caller)?;
        let (state, ledger) = (self.core.engine.state(), &self.core.ledger);
        let review = Review::of(state, ledger, drafts)?;
        let changes = review.views(state.books(), ledger);
        if changes.is_empty() {
            return Ok(Awaited::Known(Ok(Done::Queues(changes))));
        }
        let deed = Deed::ChangeQueues(review.in_words());
        let begin = *self.requests;
        self.request(Request::ChangeQueues(Box::new(review.queues)));
        let replies = begin..*self.requests;
        Ok(Awaited::Core { replies, done: Done::Queues(changes), deed: (caller.clone(), deed) })
    }

    fn request(&mut self, request: Request) {
        *self.requests += 1;
        self.inputs.push(Input::Request(request));
    }

    /// The one claim a name stands for.
    fn one(&self, id: JobId) -> Result<ClaimId, Problem> {
        let claims = self.core.ledger.claims(id).ok_or_else(|| no_job(&self.core.ledger, id))?;
        match claims.len() {
            1 => Ok(ClaimId(claims.start)),
            _ => {
                let first = self.core.ledger.id(ClaimId(claims.start));
                Err(Problem::conflict(format!("job {id} is an array: say which task, like {first}")))
            }
        }
    }
}

/// Why a name stands for no job.
pub(crate) fn no_job(ledger: &Ledger, id: JobId) -> Problem {
    let number = id.number;
    Problem::not_found(match ledger.unknown(number) {
        Unknown::Never => format!("there is no job {id}"),
        Unknown::Forgotten => format!("job {id} is forgotten: it ended longer ago than the service keeps jobs"),
        Unknown::PassedOver => format!("number {number} was passed over: what it stood for was lost with the journal"),
    })
}

/// What is run again is run again once: its checkpoints go to one job. The door asks the same, but two may come in at once.
pub(crate) fn refuse_second_requeue(ledger: &Ledger, continues: &[ClaimId]) -> Result<(), Problem> {
    let Some(latest) = continues.iter().max() else { return Ok(()) };
    // Whoever runs a job again has a higher number.
    let later = ledger.submissions_before(u32::MAX).rev().take_while(|later| later.first > *latest);
    for later in later {
        if let Some(claim) = continues.iter().find(|claim| later.continues.contains(claim)) {
            let (id, later) = (ledger.id(*claim), JobId::job(later.first.0));
            return Err(Problem::conflict(format!("job {id} was requeued before, as job {later}: requeue that one")));
        }
    }
    Ok(())
}

pub(crate) fn not_yours(id: JobId) -> Problem {
    Problem::new(403, "not-allowed", format!("job {id} belongs to someone else"))
}

/// The door asks the same; a core that is driven without one does not rely on it.
fn at_least(role: Role, caller: &Caller) -> Result<(), Problem> {
    match caller.role >= role {
        true => Ok(()),
        false => Err(Problem::new(403, "not-allowed", format!("this needs the role {role}"))),
    }
}

fn is_current(state: &State, run: Run) -> bool {
    let claim = state.books().claims().get(run.claim);
    claim.is_some_and(|claim| claim.run() == run && claim.holds().is_some())
}

fn is_resizing(state: &State, run: Run) -> bool {
    is_current(state, run) && state.books().claim(run.claim).resizing.is_some()
}

/// What a report means in the terms of the core, but for what an interruption cost; what it does not say is as it was
/// known.
fn step_report(state: &State, claim: ClaimId, known: Option<&ProgressReport>, report: &ProgressReport) -> StepReport {
    let books = state.books();
    let claim = books.claim(claim);
    let shape = claim.holds().map(|holds| holds.placement.shape(&books.cluster));
    let replicas = shape.map_or(1, |shape| {
        let adaptation = claim.speed.adaptation.as_ref();
        let replicas = adaptation.zip(shape.kind).and_then(|(known, kind)| known.replicas(kind, shape.workers));
        replicas.unwrap_or(shape.workers)
    });
    let is_of_these = match report.workers {
        Some(workers) => shape.is_some_and(|shape| shape.workers == workers),
        // Whether the old workers or the new ones made these steps nobody can tell.
        None => claim.resizing.is_none(),
    };
    let steps = observation(report, shape.map_or(1, |shape| shape.nodes), replicas).filter(|_| is_of_these);
    StepReport {
        done: report.steps.or(known.and_then(|known| known.steps)).unwrap_or(claim.progress.done),
        epoch: report
            .epoch
            .or(known.and_then(|known| known.epoch))
            .map_or(claim.progress.epoch, |epoch| epoch.min(f64::from(u32::MAX)) as u32),
        steps,
        noise: report.noise.map(|noise| GradientNoise { sqr: noise.sqr, var: noise.var }),
        resizable: report.resizable.or(known.and_then(|known| known.resizable)).unwrap_or(false),
        interruption: None,
    }
}

/// What the model of a claim already knows of steps such as these.
fn known_of(state: &State, claim: ClaimId, steps: &Observation) -> Known {
    let books = state.books();
    let claim = books.claim(claim);
    let kind = claim.holds().and_then(|holds| holds.placement.shape(&books.cluster).kind);
    match kind.and_then(|kind| claim.learned.on(kind)) {
        None => Known::Nothing,
        Some(model) => match model.like(steps) {
            Some(&known) => Known::Estimate(known),
            None if model.has_had(steps.nodes, steps.replicas) => Known::Nothing,
            None => Known::OtherWorkers,
        },
    }
}

/// The steps a report tells of, if it says enough. A job times whole steps; what is learnt from is the last pass of one,
/// after which gradients are exchanged, and the passes before it without that.
fn observation(report: &ProgressReport, nodes: u32, replicas: u32) -> Option<Observation> {
    let (whole, local_batch) = report.step_seconds.zip(report.local_batch)?;
    let before = f64::from(report.accumulation.unwrap_or(0));
    let accumulation_secs = report.compute_seconds.unwrap_or(whole).min(whole / (before + 1.0));
    let step_secs = whole - before * accumulation_secs;
    Some(Observation { nodes, replicas, local_batch, accumulation_secs, step_secs })
}

/// What a job is to do from now on. While its workers change only they know which gang they are, and with it the batch:
/// its files tell them.
fn tuning_of(state: &State, claim: ClaimId) -> ProgressReply {
    let books = state.books();
    let claim = books.claim(claim);
    let stop = matches!(claim.phase, Phase::Stopping { .. } | Phase::Ended { .. });
    let replicas = claim.holds().map_or(1, |holds| holds.placement.shape(&books.cluster).workers);
    match claim.tuning.filter(|_| claim.resizing.is_none()) {
        None => ProgressReply { stop, ..ProgressReply::default() },
        Some(tuning) => ProgressReply {
            batch_size: u32::try_from(tuning.total(replicas)).ok(),
            local_batch: Some(tuning.local),
            accumulation: Some(tuning.accumulations),
            stop,
        },
    }
}

fn claim_that_may_end(event: &Event) -> Option<ClaimId> {
    match event {
        Event::ClaimRefused { claim, .. }
        | Event::ClaimCancelled { claim }
        | Event::LimitReached { claim }
        | Event::ClaimEnded { claim, .. } => Some(*claim),
        Event::RunFinished { run } | Event::RunStopped { run, .. } | Event::RunFailed { run, .. } => Some(run.claim),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::ClusterDraft;
    use executors::Exit;

    use crate::clock::Reading;
    use crate::retention::{Retention, forgettable};

    /// A job of one worker on a cluster of one device, running since its first second.
    fn running() -> (Core, Run) {
        running_job(JobRequest::new(["train"]))
    }

    fn running_job(request: JobRequest) -> (Core, Run) {
        let (cluster, queues) = ClusterDraft::parse_short("1x1").unwrap().build().unwrap();
        let policy = PolicyConfig::named("fifo").build().unwrap();
        let (engine, _) = Engine::new(cluster, queues, "fifo", policy, engine::Settings::default());
        let mut core = Core::new(engine, Ledger::default());
        let caller = Caller::new(1, "ada", Role::User);
        let books = core.engine.state().books();
        let scene = Scene {
            cluster: &books.cluster,
            queues: &books.queues,
            owner: "ada",
            now: Time::ZERO,
            zero_unix_ms: 0,
            expected: None,
            claims_of: &|_| None,
        };
        let submission = Submission::of(request, &scene, None, None).unwrap();
        core.step(Time::from_secs(1), vec![(caller, Ask::Submit(Box::new(submission)))], Vec::new());
        let run = Run { claim: ClaimId(0), attempt: 1 };
        core.step(Time::from_secs(2), Vec::new(), vec![News::Started { run }]);
        (core, run)
    }

    #[test]
    fn of_a_users_notifications_that_were_not_delivered_little_is_said_and_seldom() {
        let (mut core, _) = running();
        submit(&mut core, 3, "root", |_| {}).unwrap();
        let failed = Delivery::Failed("x".repeat(5000));
        let mut said =
            |claim, delivery: &Delivery, secs| core.undelivered_to_say(Time::from_secs(secs), ClaimId(claim), delivery);
        assert_eq!(said(0, &Delivery::Delivered, 4), None);
        assert_eq!(said(0, &failed, 4), Some((format!("{}…", "x".repeat(LONGEST_FAULT)), 0)));
        assert!((0..100).all(|job| said(job % 2, &failed, 5).is_none()), "nor of another job of theirs");
        assert_eq!(said(1, &Delivery::Dropped, 64).map(|(_, unsaid)| unsaid), Some(100));
    }

    /// Four devices, two guaranteed to each of two queues, under all safeguards.
    fn two_queues(policy: &str) -> Core {
        let queue = |name: &str| cluster::QueueDraft { guarantee: 2.0, ..cluster::QueueDraft::named(name) };
        guarded("1x4", vec![queue("a"), queue("b")], policy)
    }

    fn guarded(cluster: &str, queues: Vec<cluster::QueueDraft>, policy: &str) -> Core {
        let draft = ClusterDraft { queues, ..ClusterDraft::parse_short(cluster).unwrap() };
        let (cluster, queues) = draft.build().unwrap();
        let built = PolicyConfig::from_text(policy).unwrap().build().unwrap();
        let settings = engine::Settings { safeguards: plan::Safeguards::ALL, ..engine::Settings::default() };
        let (engine, _) = Engine::new(cluster, queues, policy, built, settings);
        Core::new(engine, Ledger::default())
    }

    fn submit(core: &mut Core, secs: u64, queue: &str, change: impl FnOnce(&mut JobRequest)) -> Reply {
        let mut request = JobRequest { queue: Some(queue.into()), ..JobRequest::new(["train"]) };
        change(&mut request);
        let submission = examined(core, request, None);
        let caller = Caller::new(1, "ada", Role::User);
        let mut step = core.step(Time::from_secs(secs), vec![(caller, Ask::Submit(Box::new(submission)))], Vec::new());
        step.replies.remove(0)
    }

    fn examined(core: &Core, request: JobRequest, key: Option<&str>) -> Submission {
        let books = core.engine.state().books();
        let scene = Scene {
            cluster: &books.cluster,
            queues: &books.queues,
            owner: "ada",
            now: Time::ZERO,
            zero_unix_ms: 0,
            expected: None,
            claims_of: &|_| None,
        };
        Submission::of(request, &scene, None, key.map(Into::into)).unwrap()
    }

    /// Job 0 was submitted under the key `first` and has ended; then, in one step, it is requeued under each of these keys.
    fn requeued_at_once(keys: &[Option<&str>]) -> Vec<Result<(u32, bool), String>> {
        let mut core = guarded("1x1", Vec::new(), "fifo");
        let ada = Caller::new(1, "ada", Role::User);
        let request = || JobRequest::new(["train"]);
        let ask = |submission| (ada.clone(), Ask::Submit(Box::new(submission)));
        let first = ask(examined(&core, request(), Some("first")));
        core.step(Time::from_secs(1), vec![first], Vec::new());
        core.step(Time::from_secs(2), vec![(ada.clone(), Ask::Cancel(JobId::job(0)))], Vec::new());
        let run = Run { claim: ClaimId(0), attempt: 1 };
        let stopped =
            Ending { told_to_stop: true, exits: vec![Exit { code: Some(143), signal: None }], ..Ending::default() };
        core.step(Time::from_secs(3), Vec::new(), vec![News::Ended { run, ending: stopped }]);
        assert!(!core.engine.state().books().claim(ClaimId(0)).is_live());
        let requeue =
            |key: &Option<&str>| Submission { continues: vec![ClaimId(0)], ..examined(&core, request(), *key) };
        let asks = keys.iter().map(|key| ask(requeue(key))).collect();
        let step = core.step(Time::from_secs(4), asks, Vec::new());
        let told = step.replies.into_iter().map(|reply| match reply {
            Ok(Done::Numbered(id, is_new)) => Ok((id.number, is_new)),
            Ok(other) => panic!("{other:?}"),
            Err(problem) => Err(format!("{}: {problem}", problem.status)),
        });
        told.collect()
    }

    #[test]
    fn of_two_that_requeue_a_job_at_once_one_does() {
        let refused = |reply: &Result<(u32, bool), String>| {
            let why = reply.as_ref().unwrap_err();
            why.starts_with("409: ") && why.contains("job 0 was requeued before, as job 1: requeue that one")
        };
        for keys in [[None, None], [Some("a"), Some("b")], [None, Some("a")]] {
            let replies = requeued_at_once(&keys);
            assert!(replies[0] == Ok((1, true)) && refused(&replies[1]), "{keys:?}: {replies:?}");
        }
        assert_eq!(
            requeued_at_once(&[Some("a"), Some("a")]),
            [Ok((1, true)), Ok((1, false))],
            "it is the same requeue"
        );
    }

    #[test]
    fn a_requeue_under_the_key_of_the_job_itself_is_not_taken_for_that_job() {
        let replies = requeued_at_once(&[Some("first"), None]);
        let why = replies[0].as_ref().unwrap_err();
        assert!(why.contains("another job was submitted under the idempotency key `first`: job 0"), "{why}");
        assert_eq!(replies[1], Ok((1, true)));
    }

    fn shown(core: &Core) -> crate::replica::Shown {
        let replica = crate::Replica::new(core.engine.state().clone(), core.ledger.clone(), 1);
        let held = replica.read();
        held.clone()
    }

    #[test]
    fn who_borrows_is_told_so_and_an_explanation_names_lender_borrower_and_rule() {
        for policy in ["fifo", crate::DEFAULT_POLICY] {
            let mut core = two_queues(policy);
            submit(&mut core, 1, "a", |job| job.workers = "4".parse().unwrap()).unwrap();
            let told = crate::views::job(&shown(&core), JobId::job(0), Time::from_secs(1), false).unwrap();
            let notice = told.notice.unwrap();
            assert!(notice.starts_with("queue a is guaranteed 2 GPUs and borrows"), "{notice}");
            core.step(
                Time::from_secs(2),
                Vec::new(),
                vec![News::Started { run: Run { claim: ClaimId(0), attempt: 1 } }],
            );
            submit(&mut core, 3, "b", |_| {}).unwrap();
            core.step(Time::from_secs(4), Vec::new(), Vec::new());
            let message = |job| {
                crate::explain::explain(&shown(&core), JobId::job(job), Time::from_secs(4), None).unwrap().message
            };
            let expected =
                "queue a had borrowed devices that queue b is guaranteed, and queue b needs them (rule guarantees)";
            assert_eq!(message(0).as_deref(), Some(expected), "{policy}");
            assert!(message(1).unwrap().contains("got them back from queue a"), "{policy}: {:?}", message(1));
            let told = crate::views::job(&shown(&core), JobId::job(1), Time::from_secs(4), false).unwrap();
            assert_eq!(told.notice, None, "it has what its queue is guaranteed");
        }
    }

    #[test]
    fn who_would_borrow_with_all_that_go_before_it_is_told_so_at_submission() {
        for policy in ["fifo", crate::DEFAULT_POLICY] {
            let mut core = two_queues(policy);
            let notice = |core: &Core, secs, job| {
                crate::views::job(&shown(core), job, Time::from_secs(secs), false).unwrap().notice
            };
            submit(&mut core, 1, "b", |job| job.workers = "2".parse().unwrap()).unwrap();
            submit(&mut core, 2, "a", |job| job.array = Some("0-4".parse().unwrap())).unwrap();
            core.step(Time::from_secs(3), Vec::new(), Vec::new());
            let borrows = |job: &str| notice(&core, 3, job.parse().unwrap()).is_some();
            let found = ["1", "1_0", "1_1", "1_2", "1_4"].map(borrows);
            assert_eq!(found, [true, false, false, true, true], "{policy}: two of five tasks are within the guarantee");

            let mut core = two_queues(policy);
            let elastic = api::WorkersRequest { min: 2, max: 4, preferred: None };
            submit(&mut core, 1, "a", |job| job.workers = elastic).unwrap();
            assert_eq!(notice(&core, 1, JobId::job(0)), None, "{policy}: of the guarantee it has its minimum");
            submit(&mut core, 1, "a", |_| {}).unwrap();
            let told = notice(&core, 1, JobId::job(1)).unwrap_or_default();
            assert!(told.starts_with("queue a is guaranteed 2 GPUs and borrows"), "{policy}: {told}");
            submit(&mut core, 1, "a", |job| job.priority = 5).unwrap();
            assert_eq!(notice(&core, 1, JobId::job(2)), None, "{policy}: it goes before the others");
            assert!(notice(&core, 1, JobId::job(0)).is_some(), "{policy}: and they come after it");

            let mut core = two_queues(policy);
            submit(&mut core, 1, "root", |_| {}).unwrap();
            let told = notice(&core, 1, JobId::job(0)).unwrap_or_default();
            assert!(
                told.starts_with("queue root has 0 GPUs that are guaranteed to no queue below it"),
                "{policy}: {told}"
            );
        }
    }

    #[test]
    fn a_job_beside_the_queues_below_its_own_is_told_when_it_borrows() {
        let queue = |name: &str, parent: Option<&str>, guarantee| cluster::QueueDraft {
            parent: parent.map(Into::into),
            guarantee,
            ..cluster::QueueDraft::named(name)
        };
        let queues = vec![queue("lab", None, 3.0), queue("team", Some("lab"), 2.0), queue("others", None, 1.0)];
        let mut core = guarded("1x4", queues, "fifo");
        let told = |core: &Core, job| {
            crate::views::job(&shown(core), JobId::job(job), Time::from_secs(1), false)
                .unwrap()
                .notice
                .unwrap_or_default()
        };
        submit(&mut core, 1, "team", |job| job.workers = "2".parse().unwrap()).unwrap();
        submit(&mut core, 1, "lab", |_| {}).unwrap();
        assert_eq!([told(&core, 0), told(&core, 1)], ["", ""], "one GPU of the lab is nobody else's");
        submit(&mut core, 1, "lab", |_| {}).unwrap();
        assert!(told(&core, 2).starts_with("queue lab has 1 GPUs that are guaranteed to no queue below it"));

        let mut core = guarded("1x1", vec![queue("lab", None, 0.0)], "fifo");
        submit(&mut core, 1, "root", |_| {}).unwrap();
        submit(&mut core, 1, "root", |_| {}).unwrap();
        assert_eq!(told(&core, 1), "", "nothing is guaranteed to anybody who could want it back");
    }

    #[test]
    fn a_gang_that_has_waited_long_is_told_when_it_starts_at_the_latest() {
        for policy in ["fifo", crate::DEFAULT_POLICY] {
            let mut core = guarded("1x2", Vec::new(), policy);
            submit(&mut core, 1, "root", |job| job.limits.max_runtime = Some(api::Duration::from_secs(1200))).unwrap();
            core.step(
                Time::from_secs(2),
                Vec::new(),
                vec![News::Started { run: Run { claim: ClaimId(0), attempt: 1 } }],
            );
            submit(&mut core, 3, "root", |job| job.workers = "2".parse().unwrap()).unwrap();
            core.step(Time::from_secs(604), Vec::new(), Vec::new());
            submit(&mut core, 605, "root", |_| {}).unwrap();
            core.step(Time::from_secs(606), Vec::new(), Vec::new());
            let message = |job| {
                crate::explain::explain(&shown(&core), JobId::job(job), Time::from_secs(606), None).unwrap().message
            };
            let gang = message(1).unwrap();
            let expected = "starts at the latest when 0 ends, about 1970-01-01T00:20:01";
            assert!(gang.starts_with(expected) && gang.ends_with("(rule reservations)"), "{policy}: {gang}");
            let holds = core.engine.state().books().claim(ClaimId(2)).target.clone();
            assert_eq!(holds, None, "{policy}: the other device is kept for it");
        }
    }

    #[test]
    fn what_became_of_a_gang_is_told_the_same_later() {
        let mut core = guarded("1x2", Vec::new(), "fifo");
        let run = Run { claim: ClaimId(0), attempt: 1 };
        submit(&mut core, 1, "root", |_| {}).unwrap();
        core.step(Time::from_secs(2), Vec::new(), vec![News::Started { run }]);
        submit(&mut core, 3, "root", |job| job.workers = "2".parse().unwrap()).unwrap();
        core.step(Time::from_secs(604), Vec::new(), Vec::new());
        let told = |core: &Core, secs| {
            let told = crate::explain::explain(&shown(core), JobId::job(1), Time::from_secs(secs), None).unwrap();
            let lines = told.history.into_iter().map(|line| line.text);
            (told.message.unwrap_or_default(), lines.filter(|text| text.starts_with("Reserved")).collect::<Vec<_>>())
        };
        let (now, then) = told(&core, 604);
        assert_eq!(now, "starts at the latest when 0 ends (rule reservations)");
        let kept = "Reserved: it had waited long, and devices were kept for it from then on (rule reservations)";
        assert_eq!(then, [kept]);
        let exits = vec![Exit { code: Some(0), signal: None }];
        let ending = Ending { started: true, exits, ..Ending::default() };
        core.step(Time::from_secs(700), Vec::new(), vec![News::Ended { run, ending }]);
        let (now, then) = told(&core, 701);
        assert!(!now.contains("starts at the latest"), "{now}");
        assert_eq!(then, [kept], "a line of the past stays as it was");
    }

    #[test]
    fn what_is_reserved_is_found_out_once_for_all_jobs_that_are_shown() {
        let mut core = guarded("1x2", Vec::new(), "fifo");
        submit(&mut core, 1, "root", |_| {}).unwrap();
        core.step(Time::from_secs(2), Vec::new(), vec![News::Started { run: Run { claim: ClaimId(0), attempt: 1 } }]);
        submit(&mut core, 3, "root", |job| job.workers = "2".parse().unwrap()).unwrap();
        core.step(Time::from_secs(604), Vec::new(), Vec::new());
        let mut shown = shown(&core);
        assert!(shown.reservations.get().is_none(), "nobody has asked");
        crate::views::job(&shown, JobId::job(1), Time::from_secs(605), false).unwrap();
        let found: Vec<ClaimId> =
            shown.reservations.get().unwrap().iter().map(|reservation| reservation.claim).collect();
        assert_eq!(found, [ClaimId(1)]);
        let cancelled = Fact::Core(Event::ClaimCancelled { claim: ClaimId(1) });
        shown.apply(Time::from_secs(606), &cancelled);
        assert!(shown.reservations.get().is_none(), "with every fact it may be another");
        assert!(crate::views::reservations(&shown).is_empty());
    }

    #[test]
    fn nothing_is_foretold_from_what_jobs_of_other_names_took() {
        for policy in ["fifo", crate::DEFAULT_POLICY] {
            let mut core = guarded("1x2", Vec::new(), policy);
            let run = |claim| Run { claim: ClaimId(claim), attempt: 1 };
            submit(&mut core, 1, "root", |job| job.name = Some("other".into())).unwrap();
            core.step(Time::from_secs(2), Vec::new(), vec![News::Started { run: run(0) }]);
            let exits = vec![Exit { code: Some(0), signal: None }];
            let ending = Ending { started: true, exits, ..Ending::default() };
            core.step(Time::from_secs(302), Vec::new(), vec![News::Ended { run: run(0), ending }]);
            let history = core.engine.state().books().history();
            assert!(history.expected(&"ada".into(), &"train".into()).is_some(), "there is something to guess from");
            submit(&mut core, 303, "root", |_| {}).unwrap();
            core.step(Time::from_secs(304), Vec::new(), vec![News::Started { run: run(1) }]);
            submit(&mut core, 305, "root", |job| job.workers = "2".parse().unwrap()).unwrap();
            core.step(Time::from_secs(906), Vec::new(), Vec::new());
            let told = crate::explain::explain(&shown(&core), JobId::job(2), Time::from_secs(906), None).unwrap();
            let expected = "starts at the latest when 1 ends (rule reservations)";
            assert_eq!(told.message.as_deref(), Some(expected), "{policy}");
        }
    }

    #[test]
    fn who_starts_at_the_latest_when_takes_account_of_those_that_go_before_it() {
        for policy in ["fifo", crate::DEFAULT_POLICY] {
            let mut core = guarded("1x4", Vec::new(), policy);
            for (job, secs) in [1200, 2400].into_iter().enumerate() {
                let at = 2 * job as u64;
                submit(&mut core, at + 1, "root", |job| {
                    job.workers = "2".parse().unwrap();
                    job.limits.max_runtime = Some(api::Duration::from_secs(secs));
                })
                .unwrap();
                let run = Run { claim: ClaimId(job as u32), attempt: 1 };
                core.step(Time::from_secs(at + 2), Vec::new(), vec![News::Started { run }]);
            }
            submit(&mut core, 5, "root", |job| job.workers = "2".parse().unwrap()).unwrap();
            submit(&mut core, 100, "root", |job| {
                job.workers = "2".parse().unwrap();
                job.priority = 5;
            })
            .unwrap();
            core.step(Time::from_secs(606), Vec::new(), Vec::new());
            core.step(Time::from_secs(702), Vec::new(), Vec::new());
            let message = |job| {
                crate::explain::explain(&shown(&core), JobId::job(job), Time::from_secs(702), None).unwrap().message
            };
            for (job, other) in [(3, 0), (2, 1)] {
                let told = message(job).unwrap();
                let expected = format!("starts at the latest when {other} ends, about");
                assert!(told.starts_with(&expected), "{policy}: job {job}: {told}");
            }
        }
    }

    #[test]
    fn the_time_in_which_a_gang_was_held_does_not_count_as_waiting() {
        let mut core = guarded("1x2", Vec::new(), "fifo");
        submit(&mut core, 1, "root", |_| {}).unwrap();
        core.step(Time::from_secs(2), Vec::new(), vec![News::Started { run: Run { claim: ClaimId(0), attempt: 1 } }]);
        submit(&mut core, 3, "root", |job| {
            job.workers = "2".parse().unwrap();
            job.hold = true;
        })
        .unwrap();
        let release = (Caller::new(1, "ada", Role::User), Ask::Release(JobId::job(1)));
        core.step(Time::from_secs(3600), vec![release], Vec::new()).replies.remove(0).unwrap();
        core.step(Time::from_secs(3601), Vec::new(), Vec::new());
        let reason = |core: &Core| core.engine.state().books().claim(ClaimId(1)).note.reason;
        assert_ne!(reason(&core), plan::Reason::Reserved);
        assert_eq!(core.engine.next_wakeup(), Some(Time::from_secs(4200)), "it gets its reservation then");
        core.step(Time::from_secs(4200), Vec::new(), Vec::new());
        assert_eq!(reason(&core), plan::Reason::Reserved);
    }

    #[test]
    fn a_job_that_may_not_be_interrupted_must_fit_into_what_its_queue_is_guaranteed() {
        let mut core = two_queues("fifo");
        let pinned = |workers: &'static str| {
            move |job: &mut JobRequest| {
                job.workers = workers.parse().unwrap();
                job.interruptible = Some(false);
            }
        };
        let problem = submit(&mut core, 1, "a", pinned("3")).unwrap_err().to_string();
        let expected = "interruptible: it may not be interrupted and needs 3 GPUs, and queue a is guaranteed 2";
        assert!(problem.contains(expected), "{problem}");
        submit(&mut core, 2, "a", pinned("2")).unwrap();
        assert!(submit(&mut core, 3, "root", pinned("1")).is_err(), "all of the root is guaranteed to others");
    }

    #[test]
    fn queues_are_not_changed_so_that_a_waiting_job_that_may_not_be_interrupted_never_starts() {
        let admin = Caller::new(1, "root", Role::Admin);
        let queue = |name: &str, guarantee| QueueDraft { guarantee, ..QueueDraft::named(name) };
        let change = |core: &mut Core, secs, queues: Vec<QueueDraft>| {
            let ask = (admin.clone(), Ask::ChangeQueues(queues));
            core.step(Time::from_secs(secs), vec![ask], Vec::new()).replies.remove(0)
        };
        let pinned = |job: &mut JobRequest| {
            job.workers = "2".parse().unwrap();
            job.interruptible = Some(false);
            job.hold = true;
        };
        let mut core = two_queues("fifo");
        submit(&mut core, 1, "a", pinned).unwrap();
        for (secs, queues) in [(2, vec![queue("a", 1.0), queue("b", 2.0)]), (3, vec![queue("b", 2.0)])] {
            let refused = change(&mut core, secs, queues).unwrap_err().to_string();
            let expected = "with these queues job 0 could never run: it may not be interrupted and needs 2 GPUs";
            assert!(refused.contains(expected), "{refused}");
        }
        let mut core = guarded("1x4", Vec::new(), "fifo");
        submit(&mut core, 1, "root", pinned).unwrap();
        let refused = change(&mut core, 2, vec![queue("a", 2.0), queue("b", 1.0)]).unwrap_err().to_string();
        assert!(refused.contains("and queue root is guaranteed 1"), "{refused}");
        change(&mut core, 3, vec![queue("a", 2.0)]).unwrap();

        let mut core = two_queues("fifo");
        submit(&mut core, 1, "a", |job| {
            pinned(job);
            job.hold = false;
        })
        .unwrap();
        core.step(Time::from_secs(2), Vec::new(), vec![News::Started { run: Run { claim: ClaimId(0), attempt: 1 } }]);
        change(&mut core, 3, Vec::new()).unwrap();
        assert!(core.engine.state().books().claim(ClaimId(0)).holds().is_some(), "what runs goes on");
    }

    fn says(core: &mut Core, secs: u64, run: Run, lines: &[&str]) {
        let lines = lines.iter().map(ToString::to_string).collect();
        core.step(Time::from_secs(secs), Vec::new(), vec![News::Progress { run, lines }]);
    }

    fn done(core: &Core) -> u64 {
        core.engine.state().books().claim(ClaimId(0)).progress.done
    }

    #[test]
    fn a_deadline_stays_where_it_is_on_the_wall_clock() {
        let mut request = JobRequest::new(["train"]);
        request.limits.deadline = Some("1970-01-01T10:00:00Z".into());
        let (mut core, _) = running_job(request);
        let deadline = |core: &Core| core.engine.state().books().claim(ClaimId(0)).spec.deadline;
        let hour = |hours: u64| Time::from_secs(hours * 3600);
        assert_eq!(deadline(&core), Some(hour(10)));
        let boot = |wall_ms: i64, boot: &str| Reading { wall_ms, boot: boot.into(), since_boot: Span::ZERO };
        // A clock that is four hours ahead, then a century, and is mended; then two hours in which the machine was off.
        for (wall_hours, boot_id, left) in [(5, "a", 6), (876_000, "a", 0), (5, "a", 6), (7, "b", 4)] {
            let found = core.ledger.timeline().compare(hour(1), boot(wall_hours * 3_600_000, boot_id)).unwrap();
            let mut step = Step::default();
            core.hear_clock(hour(1), found, &mut step);
            let expected = if left == 0 { Time::ZERO } else { hour(left) };
            assert_eq!(deadline(&core), Some(expected), "at {wall_hours} h");
            let moved = |fact: &&Fact| matches!(fact, Fact::Core(Event::DeadlineMoved { .. }));
            assert_eq!(step.facts.iter().filter(moved).count(), 1);
        }
    }

    #[test]
    fn a_line_that_says_nothing_of_steps_takes_none_back() {
        let (mut core, run) = running();
        says(&mut core, 3, run, &[r#"{"steps": 120}"#, r#"{"checkpoint": {"steps": 100}}"#]);
        assert_eq!(done(&core), 120);
        says(&mut core, 4, run, &[r#"{"loss": 0.5}"#]);
        assert_eq!(done(&core), 120);
    }

    #[test]
    fn jobs_that_have_ended_are_forgotten_by_age_and_size_the_oldest_first() {
        let mut core = two_queues("fifo");
        for number in 0..3 {
            let large = |job: &mut JobRequest| {
                job.hold = true;
                job.env.insert("LARGE".into(), "x".repeat(100_000));
            };
            submit(&mut core, number + 1, "a", large).unwrap();
        }
        submit(&mut core, 4, "a", |job| job.hold = true).unwrap();
        let root = Caller::new(0, "root", Role::Admin);
        for number in 0..4 {
            let cancel = vec![(root.clone(), Ask::Cancel(JobId::job(number)))];
            core.step(Time::from_secs(u64::from(10 + number)), cancel, Vec::new());
        }
        // The policy hears of their ends when it is asked next. One that goes on is not counted.
        submit(&mut core, 20, "a", |_| {}).unwrap();
        let forgotten = |core: &Core, size: u64| {
            let limits = Retention { jobs_size: api::Quantity::new(size), ..Retention::default() };
            let claims = forgettable(Time::from_secs(30), core.engine.state(), &core.ledger, &limits, usize::MAX);
            claims.into_iter().map(|claim| claim.0).collect::<Vec<_>>()
        };
        let old = |core: &Core, secs: u64| {
            let limits = Retention { jobs_for: api::Duration::from_secs(secs), ..Retention::default() };
            let claims = forgettable(Time::from_secs(30), core.engine.state(), &core.ledger, &limits, usize::MAX);
            claims.into_iter().map(|claim| claim.0).collect::<Vec<_>>()
        };
        // They ended 20, 19, 18 and 17 seconds ago.
        assert_eq!([21, 20, 18, 1].map(|secs| old(&core, secs)), [vec![], vec![0], vec![0, 1, 2], vec![0, 1, 2, 3]]);
        // What a job is described by and what is run for it: both have its environment.
        let sizes = [1 << 30, 620_000, 420_000, 220_000, 20_000, 0];
        let expected: [&[u32]; 6] = [&[], &[], &[0], &[0, 1], &[0, 1, 2], &[0, 1, 2, 3]];
        assert_eq!(sizes.map(|size| forgotten(&core, size)), expected.map(<[u32]>::to_vec));
        let text = serde_json::to_string(&core.ledger).unwrap();
        let read: Ledger = serde_json::from_str(&text).unwrap();
        assert_eq!(read, core.ledger);
        let old = serde_json::from_str::<serde_json::Value>(&text).map(without_sizes).unwrap();
        assert_eq!(serde_json::from_value::<Ledger>(old).unwrap(), core.ledger, "an earlier version wrote no sizes");
    }

    #[test]
    fn a_key_is_known_as_long_as_its_job_and_for_seven_days_at_least() {
        let at = |hours: u64| Time::from_secs(hours * 3600);
        let (nearly_seven_days, seven_days) = (7 * 24 - 2, 7 * 24);
        let mut core = guarded("1x1", Vec::new(), "fifo");
        let ada = Caller::new(1, "ada", Role::User);
        let submit = |core: &mut Core, key: &str| {
            let submission = examined(core, JobRequest { hold: true, ..JobRequest::new(["train"]) }, Some(key));
            core.step(at(0), vec![(ada.clone(), Ask::Submit(Box::new(submission)))], Vec::new());
        };
        ["short", "long", "other"].into_iter().for_each(|key| submit(&mut core, key));
        let forget = |core: &mut Core, hours: u64, number: u32| {
            core.step(at(hours), vec![(ada.clone(), Ask::Cancel(JobId::job(number)))], Vec::new());
            core.forget(at(hours), vec![ClaimId(number)], &mut Step::default());
        };
        let read_again = |core: &mut Core| {
            let text = crate::image::Image::text_of(core.engine.state(), &core.ledger);
            core.ledger = crate::image::Image::from_text(&text).unwrap().ledger;
        };
        forget(&mut core, 24, 0);
        read_again(&mut core);
        assert_eq!(core.ledger.spent_key(1, "short"), Some(ClaimId(0)));
        forget(&mut core, nearly_seven_days, 2);
        read_again(&mut core);
        let spent = ["short", "other"].map(|key| core.ledger.spent_key(1, key));
        assert_eq!(spent, [Some(ClaimId(0)), Some(ClaimId(2))], "they were submitted less than seven days ago");
        core.forget(at(seven_days), vec![ClaimId(0)], &mut Step::default());
        assert_eq!(["short", "other"].map(|key| core.ledger.spent_key(1, key)), [None, None]);
        read_again(&mut core);
        assert_eq!(core.ledger.keyed(1, "long").map(|it| it.first), Some(ClaimId(1)), "its job goes on");
        forget(&mut core, 100 * 24, 1);
        assert!(core.ledger.keyed(1, "long").is_none() && core.ledger.spent_key(1, "long").is_none());
    }

    fn without_sizes(mut value: serde_json::Value) -> serde_json::Value {
        match &mut value {
            serde_json::Value::Object(fields) => {
                fields.remove("size");
                fields.values_mut().for_each(|field| *field = without_sizes(field.take()));
            }
            serde_json::Value::Array(values) => {
                values.iter_mut().for_each(|value| *value = without_sizes(value.take()));
            }
            _ => {}
        }
        value
    }

    #[test]
    fn lines_that_cannot_be_read_do_not_fill_the_log() {
        let (mut core, run) = running();
        let line = format!(r#"{{"{}": 1}}"#, "x".repeat(60_000));
        let fault = ProgressReport::parse_line(&line).unwrap_err();
        let at = Time::from_secs;
        let (said, unsaid) = core.fault_to_say(at(3), run, &fault).unwrap();
        assert!(said.chars().count() <= LONGEST_FAULT + 1 && said.contains("unknown field"), "{said}");
        assert_eq!(unsaid, 0);
        assert!((0..1000).all(|_| core.fault_to_say(at(4), run, &fault).is_none()));
        assert_eq!(core.fault_to_say(at(63), run, &fault).map(|(_, unsaid)| unsaid), Some(1000));
    }

    #[test]
    fn after_a_crash_progress_goes_on_from_what_was_saved() {
        let (mut core, run) = running();
        says(&mut core, 3, run, &[r#"{"steps": 120, "checkpoint": {"steps": 100}}"#]);
        let ending = Ending {
            started: true,
            // Nobody saw how it ended: a mishap, after which it starts again.
            exits: vec![Exit::default()],
            trouble: Some("lost".into()),
            ..Ending::default()
        };
        core.step(Time::from_secs(4), Vec::new(), vec![News::Ended { run, ending }]);
        let next = Run { attempt: 2, ..run };
        core.step(Time::from_secs(5), Vec::new(), vec![News::Started { run: next }]);
        says(&mut core, 6, next, &[r#"{"loss": 0.5}"#]);
        assert_eq!(done(&core), 100);
    }

    #[test]
    fn a_supervisor_that_is_lost_while_workers_start_is_no_failure_of_the_job() {
        let (core, run) = running();
        let lost = Ending { exits: vec![Exit::default(); 2], trouble: Some("lost".into()), ..Ending::default() };
        let mishap = Event::RunFailed { run, why: FailureCause::Mishap, done: 0 };
        assert_eq!(core.verdict(run, &lost), [mishap]);
        let killed = Exit { code: None, signal: Some(9) };
        let late = Ending { exits: vec![killed, killed], trouble: Some("not up in time".into()), ..Ending::default() };
        assert_eq!(core.verdict(run, &late), [Event::RunFailed { run, why: FailureCause::Crash, done: 0 }]);
    }

    #[test]
    fn a_gang_that_hangs_after_a_resize_is_a_failure_of_the_job() {
        let (core, run) = running();
        let stopped = Exit { code: Some(143), signal: None };
        let trouble = Some("the workers did not go on".into());
        let hung = Ending { started: true, hung: true, exits: vec![stopped, stopped], trouble, ..Ending::default() };
        assert_eq!(core.verdict(run, &hung), [Event::RunFailed { run, why: FailureCause::Crash, done: 0 }]);
        let lost = Ending { hung: false, ..hung };
        assert_eq!(core.verdict(run, &lost), [Event::RunFailed { run, why: FailureCause::Mishap, done: 0 }]);
    }

    #[test]
    fn a_run_that_its_supervisor_stopped_at_the_limit_has_timed_out_however_it_ended() {
        let (core, run) = running();
        let limit = Event::LimitReached { claim: run.claim };
        let timed = Event::RunTimed { run, ran: Span::from_secs(9) };
        let stopped = Exit { code: Some(143), signal: None };
        let ending = Ending {
            started: true,
            told_to_stop: true,
            limit_reached: true,
            exits: vec![stopped],
            failed_first: Some(0),
            ran: Some(Span::from_secs(9)),
            ..Ending::default()
        };
        let told = Event::RunStopped { run, done: 0 };
        assert_eq!(core.verdict(run, &ending), [timed.clone(), limit.clone(), told.clone()]);
        let lost = Ending { exits: vec![Exit::default()], failed_first: None, ..ending.clone() };
        assert_eq!(core.verdict(run, &lost), [timed.clone(), limit.clone(), told], "as is one that was lost then");
        let well = Ending { exits: vec![Exit { code: Some(0), signal: None }], failed_first: None, ..ending };
        assert_eq!(core.verdict(run, &well), [timed, limit, Event::RunFinished { run }]);
    }

    #[test]
    fn an_end_that_was_written_down_before_ends_had_times_means_what_it_meant() {
        let (core, run) = running();
        let text = r#"{"started":true,"told_to_stop":true,"exits":[{"code":143,"signal":null}],
            "failed_first":0,"trouble":null,
            "usage":{"cpu_seconds":1.0,"memory_bytes":1,"gpu_percent":null,"gpu_memory_bytes":null}}"#;
        let ending: Ending = serde_json::from_str(text).unwrap();
        assert_eq!((ending.ran, ending.limit_reached), (None, false));
        assert_eq!(core.verdict(run, &ending), [Event::RunFailed { run, why: FailureCause::Mishap, done: 0 }]);
    }

    /// What a restart costs the job, as was measured.
    fn restart(core: &Core) -> Option<Span> {
        core.engine.state().books().claim(ClaimId(0)).learned.restart()
    }

    fn says_it_took(core: &mut Core, secs: u64, run: Run, seconds: f64) {
        says(
            core,
            secs,
            run,
            &[&format!(r#"{{"restart": {{"kind": "restart", "phases": {{"import": {seconds}}}}}}}"#)],
        );
    }

    #[test]
    fn a_run_tells_once_what_its_restart_cost_and_no_more_than_has_gone_by() {
        let (mut core, run) = running();
        says_it_took(&mut core, 3, run, 1.0);
        assert_eq!(restart(&core), None, "the first run was not restarted");
        let lost = Ending { exits: vec![Exit::default()], trouble: Some("lost".into()), ..Ending::default() };
        core.step(Time::from_secs(10), Vec::new(), vec![News::Ended { run, ending: lost }]);
        let next = Run { attempt: 2, ..run };
        core.step(Time::from_secs(11), Vec::new(), vec![News::Started { run: next }]);
        says_it_took(&mut core, 20, next, 1e6);
        let grace = engine::Settings::default().grace;
        assert_eq!(restart(&core), Some(Span::from_secs(10) + grace), "since the launch, and for the stop before it");
        says_it_took(&mut core, 21, next, 1.0);
        assert_eq!(restart(&core), Some(Span::from_secs(10) + grace), "said twice, counted once");
    }

    #[test]
    fn passes_that_only_accumulate_are_not_part_of_the_step_that_is_learnt_from() {
        let seen = |line: &str| {
            let seen = observation(&ProgressReport::parse_line(line).unwrap(), 1, 2).unwrap();
            (seen.accumulation_secs, seen.step_secs)
        };
        assert_eq!(seen(r#"{"step_seconds": 1, "compute_seconds": 0.75, "local_batch": 8}"#), (0.75, 1.0));
        let passes = r#"{"step_seconds": 2.5, "compute_seconds": 0.75, "local_batch": 8, "accumulation": 2}"#;
        assert_eq!(seen(passes), (0.75, 1.0));
        assert_eq!(seen(r#"{"step_seconds": 3, "local_batch": 8, "accumulation": 2}"#), (1.0, 1.0));
    }
}
