//! Who is to be told of a job, when, and in which words. What is due is a fact beside what made it due, and what came of it is
//! another: so nothing is lost when the service ends in between, and at most what was just being delivered is delivered
//! twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::{HookUrl, JobId, JobState, JobView, NotifyEvent, NotifyRequest};
use cluster::{ClaimId, Time};
use engine::{Command, Event, State};
use executors::{NotifyOrder, Receiver};
use plan::{Claim, Phase};
use serde::{Deserialize, Serialize};

use crate::fact::{Acceptance, Fact};
use crate::failure::has_failed;
use crate::ledger::Ledger;
use crate::replica::Shown;
use crate::views::{self, moment};

/// One message that is due to one receiver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notification {
    pub number: u64,
    /// The job, or the task of an array that it is about. Of an array as a whole, the first task.
    pub claim: ClaimId,
    /// Its place in what the job says of whom to tell.
    pub receiver: usize,
    pub event: NotifyEvent,
}

/// What is to be told now because of facts that were just decided, in their order. The state is the one after them, and the
/// ledger has heard of all of them.
pub(crate) fn due(facts: &[Fact], state: &State, ledger: &Ledger) -> Vec<Notification> {
    let mut told: BTreeSet<(ClaimId, NotifyEvent)> = BTreeSet::new();
    let mut arrays = Arrays::default();
    let mut due = Vec::new();
    for (claim, what) in facts.iter().filter_map(what_of) {
        let Some(acceptance) = ledger.acceptance(claim).filter(|it| !it.request.notify.is_empty()) else { continue };
        for (about, event) in events(claim, what, acceptance, state, &mut arrays) {
            let is_of_array = acceptance.array.is_some();
            // A job may be preempted again and again; all else is told once.
            let once = is_of_array || event != NotifyEvent::Preemption;
            let before = (acceptance.first, event);
            if once && (told.contains(&before) || ledger.has_announced(acceptance.first, event)) {
                continue;
            }
            told.insert(before);
            let wanted = acceptance.request.notify.iter().enumerate().filter(|(_, it)| it.wants(event, is_of_array));
            for (receiver, _) in wanted {
                let number = ledger.next_notification() + due.len() as u64;
                due.push(Notification { number, claim: about, receiver, event });
            }
        }
    }
    due
}

/// Which arrays have ended as a whole. All facts are judged by the state after them: each array is looked through once,
/// however many of its tasks end in one step.
#[derive(Debug, Default)]
struct Arrays(BTreeMap<ClaimId, bool>);

impl Arrays {
    fn has_ended(&mut self, first: ClaimId, look: impl FnOnce() -> bool) -> bool {
        *self.0.entry(first).or_insert_with(look)
    }
}

/// What may have become of a claim by a fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Started,
    ToldToStop,
    MayHaveEnded,
}

fn what_of(fact: &Fact) -> Option<(ClaimId, Turn)> {
    let Fact::Core(event) = fact else { return None };
    match event {
        Event::RunStarted { run } => Some((run.claim, Turn::Started)),
        Event::Issued(Command::Stop { run, .. }) => Some((run.claim, Turn::ToldToStop)),
        Event::ClaimCancelled { claim } | Event::LimitReached { claim } | Event::ClaimEnded { claim, .. } => {
            Some((*claim, Turn::MayHaveEnded))
        }
        Event::RunFinished { run } | Event::RunStopped { run, .. } | Event::RunFailed { run, .. } => {
            Some((run.claim, Turn::MayHaveEnded))
        }
        // Of a job that is refused whoever submits it hears at once.
        _ => None,
    }
}

/// Of what is to be told, and about which claim.
fn events(
    claim: ClaimId,
    what: Turn,
    acceptance: &Acceptance,
    state: &State,
    arrays: &mut Arrays,
) -> Vec<(ClaimId, NotifyEvent)> {
    let claims = state.books().claims();
    let Some(found) = claims.get(claim) else { return Vec::new() };
    match what {
        Turn::Started => vec![(claim, NotifyEvent::Start)],
        Turn::ToldToStop if is_preempted(found) => vec![(claim, NotifyEvent::Preemption)],
        Turn::MayHaveEnded if !found.is_live() && acceptance.array.is_none() => {
            vec![(claim, if has_failed(found) { NotifyEvent::Failure } else { NotifyEvent::End })]
        }
        Turn::MayHaveEnded if !found.is_live() => {
            let mut tasks = (acceptance.first.0..acceptance.first.0 + acceptance.task_count()).map(ClaimId);
            let look = || tasks.all(|task| claims.get(task).is_none_or(|task| !task.is_live()));
            let has_ended = arrays.has_ended(acceptance.first, look);
            let failure = has_failed(found).then_some((claim, NotifyEvent::Failure));
            let end = has_ended.then_some((acceptance.first, NotifyEvent::End));
            failure.into_iter().chain(end).collect()
        }
        Turn::ToldToStop | Turn::MayHaveEnded => Vec::new(),
    }
}

/// Whether it has to go although its user wants it to run. One that is to go on elsewhere, or with other workers, does not wait
/// again.
fn is_preempted(claim: &Claim) -> bool {
    matches!(claim.phase, Phase::Stopping { .. }) && claim.leaves_as.is_none() && !claim.held && claim.target.is_none()
}

/// What is said to programs, and in `text` to people.
#[derive(Debug, Serialize)]
struct Message<'a> {
    event: NotifyEvent,
    text: &'a str,
    job: &'a str,
    /// Which task of an array it is about, if about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<&'a str>,
    name: &'a str,
    owner: &'a str,
    queue: &'a str,
    state: JobState,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    at: &'a str,
    host: &'a str,
}

/// The order to deliver a notification that became due at this moment; or why it is not to be delivered. Nothing if its job
/// is not known any more.
pub(crate) fn order(
    shown: &Shown,
    at: Time,
    due: &Notification,
    allowed: &[HookUrl],
    service: &BTreeMap<String, String>,
) -> Option<Result<NotifyOrder, String>> {
    let acceptance = shown.ledger.acceptance(due.claim)?;
    let receiver = match receiver(acceptance.request.notify.get(due.receiver)?, allowed) {
        Ok(receiver) => receiver,
        Err(why) => return Some(Err(why)),
    };
    let job = JobId::job(acceptance.first.0);
    let is_of_task = acceptance.array.is_some() && due.event != NotifyEvent::End;
    let task = is_of_task.then(|| shown.ledger.id(due.claim));
    let view = views::job(shown, task.unwrap_or(job), at, false)?;
    // A message that comes late tells what was the case.
    let (state, exit_code, reason) = match due.event {
        NotifyEvent::Start => (JobState::Running, None, None),
        NotifyEvent::Preemption => (JobState::Stopping, None, None),
        NotifyEvent::End | NotifyEvent::Failure => {
            (view.state, view.exit_code, view.failure.as_ref().map(|failure| failure.message.as_str()))
        }
    };
    let reason: Option<String> = reason.map(|reason| reason.chars().take(LONGEST_REASON).collect());
    let (job, task) = (job.to_string(), task.map(|task| task.to_string()));
    let text = sentence(due.event, state, reason.as_deref(), &view);
    let (at, host) = (moment(shown, at), host());
    let message = Message {
        event: due.event,
        text: &text,
        job: &job,
        task: task.as_deref(),
        name: &view.name,
        owner: &view.owner,
        queue: &view.queue,
        state,
        exit_code,
        reason: reason.as_deref(),
        at: &at,
        host: &host,
    };
    let mut env = service.clone();
    let mut set = |name: &str, value: Option<&str>| {
        env.extend(value.map(|value| (name.to_string(), value.replace('\0', ""))));
    };
    set("MOIRA_EVENT", Some(due.event.as_str()));
    set("MOIRA_JOB_ID", Some(&job));
    set("MOIRA_TASK_ID", task.as_deref());
    set("MOIRA_JOB_NAME", Some(&view.name));
    set("MOIRA_QUEUE", Some(&view.queue));
    set("MOIRA_JOB_STATE", Some(state.as_str()));
    set("MOIRA_EXIT_CODE", exit_code.map(|code| code.to_string()).as_deref());
    set("MOIRA_TEXT", Some(&text));
    let message = serde_json::to_string(&message).expect("a message is made of words and numbers");
    let (number, program) = (due.number, Arc::clone(&acceptance.program));
    Some(Ok(NotifyOrder { number, program, receiver, message, env }))
}

/// So much of the cause of a failure is told.
const LONGEST_REASON: usize = 1000;

fn receiver(notify: &NotifyRequest, allowed: &[HookUrl]) -> Result<Receiver, String> {
    match (&notify.command, &notify.url) {
        (Some(command), _) => Ok(Receiver::Command(command.argv())),
        (None, Some(url)) => check_url(url, allowed).map(|()| Receiver::Url(url.clone())),
        (None, None) => Err("it names nobody".into()),
    }
}

/// Whether the configuration allows an address.
pub(crate) fn check_url(url: &str, allowed: &[HookUrl]) -> Result<(), String> {
    let parsed: HookUrl = url.parse()?;
    match allowed.iter().any(|prefix| prefix.admits(&parsed)) {
        true => Ok(()),
        false => Err(format!(
            "addresses at {} are not allowed here: an administrator can allow them by `notify_urls` in the service's \
             configuration",
            parsed.host()
        )),
    }
}

/// The beginnings of addresses that are allowed, from the configuration.
pub(crate) fn allowed_urls(texts: &[String]) -> Result<Vec<HookUrl>, String> {
    let parsed = texts
        .iter()
        .enumerate()
        .map(|(index, text)| HookUrl::prefix(text).map_err(|message| format!("notify_urls[{index}]: {message}")));
    parsed.collect()
}

fn sentence(event: NotifyEvent, state: JobState, reason: Option<&str>, view: &JobView) -> String {
    let what = match (event, state) {
        (NotifyEvent::Start, _) => "has started",
        (NotifyEvent::Preemption, _) => "was told to stop to make room, and will start again",
        (_, JobState::Succeeded) => "has succeeded",
        (_, JobState::Cancelled) => "was cancelled",
        (_, JobState::TimedOut) => "has reached its time limit",
        _ => "has failed",
    };
    let reason = reason.filter(|_| state == JobState::Failed).map_or(String::new(), |reason| format!(": {reason}"));
    format!("job {} ({}) {what}{reason}", view.id, view.name)
}

fn host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_is_looked_through_once_in_a_step_however_many_of_its_tasks_end() {
        let (mut arrays, mut looks) = (Arrays::default(), 0);
        for first in [7, 7, 9, 7, 9].map(ClaimId) {
            let has_ended = arrays.has_ended(first, || {
                looks += 1;
                first == ClaimId(7)
            });
            assert_eq!(has_ended, first == ClaimId(7));
        }
        assert_eq!(looks, 2);
    }
}
