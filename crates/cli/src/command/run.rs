//! `moira run`: hand a job over, pass on what it reads and writes, and end as it ends.

pub(super) mod input;
pub(super) mod session;
pub(super) mod signals;

use std::time::{Duration, Instant};

use api::{Client, Error, JobId, JobRequest, JobState, JobView, Window};
use clap::Args;
use tokio::sync::mpsc;

use super::jobs::failure;
use super::jobs::wait::ended;
use super::jobs::{Following, Reader, show_array};
use super::service::{self, at_the_allowed_pace, is_absence, of_service, tell};
use super::submit::JobOptions;
use super::terminal;
use crate::failure::Failure;
use input::{Feed, Target};
use signals::{Ask, Signals};

#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    job: JobOptions,
    /// Give its first worker a terminal, which is this one: for a shell or an editor on the devices. Keys go to the job from
    /// its start on; ~. at the beginning of a line cancels it and leaves. It needs a terminal here
    #[arg(long, conflicts_with_all = ["no_input", "detach_on_hangup", "worker"])]
    pty: bool,
    /// The worker whose output is shown
    #[arg(long, value_name = "N", default_value_t = 0)]
    worker: u32,
    /// Leave the job running when the terminal is closed
    #[arg(long)]
    detach_on_hangup: bool,
    /// Do not pass standard input on to the job
    #[arg(long)]
    no_input: bool,
}

/// As a shell reports a program that was interrupted, and one that wrote where nobody reads.
const INTERRUPTED: u8 = 130;
const BROKEN_PIPE: u8 = 141;

/// How long a service that has gone is waited for.
const ABSENCE: Duration = Duration::from_secs(60);
const TRY_AGAIN: Duration = Duration::from_millis(300);
/// How long a service has to hear that a user leaves.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);

impl Run {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let mut job = self.job.request()?;
        if self.pty || job.pty.is_some() {
            self.prepare_terminal(&mut job)?;
        }
        job.stdin = job.stdin || job.pty.is_some() || self.passes_input_on();
        let code = service::ask(async |client| {
            // What comes while the job is handed over counts for the job.
            let signals = Signals::listen()?;
            let submitted = self.job.submit(client, &job).await?;
            tell(&format!("submitted job {} ({})", submitted.id, submitted.name));
            submitted.notice.iter().for_each(|notice| tell(&format!("note: {notice}")));
            self.accompany(client, &submitted, signals, &job).await
        })?;
        if code == 0 { Ok(()) } else { Err(Failure::silent(code)) }
    }

    /// The job's terminal is as large as the one here, and of its kind.
    fn prepare_terminal(&self, job: &mut JobRequest) -> Result<(), Failure> {
        if !terminal::is_here() {
            return Err(Failure::usage("--pty needs a terminal as standard input and output, and here is none"));
        }
        if self.worker != 0 || self.no_input || self.detach_on_hangup {
            let others = "--worker, --no-input and --detach-on-hangup do not go with a terminal";
            return Err(Failure::usage(others));
        }
        job.pty = Some(terminal::window());
        if let Ok(kind) = std::env::var("TERM") {
            job.env.entry("TERM".into()).or_insert(kind);
        }
        Ok(())
    }

    fn passes_input_on(&self) -> bool {
        !self.no_input && !self.job.is_read_from_input() && input::is_there()
    }

    /// Until the job has ended, or the user has left.
    async fn accompany(
        &self,
        client: &Client,
        submitted: &JobView,
        mut signals: Signals,
        request: &JobRequest,
    ) -> Result<u8, Failure> {
        let takes_input = request.stdin;
        let id: JobId = submitted.id.parse().map_err(|message: String| Failure::new(anyhow::anyhow!(message)))?;
        // A connection each: the first may be waiting for the end of the job.
        let (sender, asker) = (another(client)?, another(client)?);
        let (keys, typed) = mpsc::channel(1);
        let pieces = match takes_input && self.passes_input_on() {
            true if request.pty.is_some() => typed,
            true => input::read()?,
            // The job may ask for input in its file although there is none: it ends at once.
            false => mpsc::channel(1).1,
        };
        let mut feed = Feed::new(&sender, Target::Job(id), pieces);
        let mut sends = takes_input;
        let mut sending = Box::pin(feed.send());
        let mut sitting = Box::pin(self.sit(client, id, keys, request.pty));
        let watching = self.watch(client, submitted, id, request.pty.is_some());
        tokio::pin!(watching);
        let mut asked: Vec<Ask> = Vec::new();
        let mut next = None;
        loop {
            let ask = tokio::select! {
                biased;
                ask = next_of(next.take(), &mut signals) => ask,
                outcome = &mut watching => {
                    drop(sitting);
                    let (job, reader) = match outcome {
                        Ok(outcome) => outcome,
                        Err(failure) if request.pty.is_some() => return give_up(&asker, id, failure).await,
                        Err(failure) => return Err(failure),
                    };
                    return self.conclude(&asker, id, &job, reader, asked.first().copied()).await;
                }
                left = &mut sitting => {
                    // The terminal has its modes again before anything is said.
                    drop(sitting);
                    return match left {
                        Ok(session::Left) => leave(&asker, id).await,
                        Err(failure) => give_up(&asker, id, failure).await,
                    };
                }
                sent = &mut sending, if sends => {
                    sends = false;
                    let Err(failure) = sent else { continue };
                    // A job must not take part of its input for all of it.
                    end(&asker, id, Client::cancel).await?;
                    return Err(failure);
                }
            };
            asked.push(ask);
            match (ask, asked.len()) {
                (Ask::Hangup, _) if self.detach_on_hangup => {
                    drop(sending);
                    if sends {
                        feed.finish().await?;
                    }
                    return Ok(ask.exit_code());
                }
                (Ask::Hangup, _) => {
                    end(&asker, id, Client::cancel).await?;
                    return Ok(ask.exit_code());
                }
                (_, 1) => {
                    tell(&format!("cancelling job {id}; once more kills it"));
                    next = end_unless_asked(&asker, id, Client::cancel, &mut signals).await?;
                }
                (_, 2) => {
                    tell(&format!("killing job {id}; once more leaves at once"));
                    next = end_unless_asked(&asker, id, Client::kill, &mut signals).await?;
                }
                _ => {
                    tell(&format!("left job {id}: see `moira show {id}`"));
                    return Ok(ask.exit_code());
                }
            }
        }
    }

    /// Passes the log on and returns the job as it ended, or as it is when nobody reads any more.
    async fn watch(
        &self,
        client: &Client,
        submitted: &JobView,
        id: JobId,
        at_terminal: bool,
    ) -> Result<(JobView, Reader), Failure> {
        let reader = if submitted.array.is_some() {
            // How the array ends is waited for also if its output cannot be had.
            match show_array(client, id, self.worker, true).await {
                Ok(reader) => reader,
                Err(_) => {
                    tell(&format!("the tasks' output is not shown any further: see `moira logs --all {id}`"));
                    Reader::Listens
                }
            }
        } else if at_terminal {
            Following::of_terminal(client, id).until_job_ends().await?
        } else {
            Following::new(client, id, self.worker).until_job_ends().await?
        };
        let within = (reader == Reader::Gone).then_some(Duration::ZERO);
        Ok((ended(client, id, within, seen()).await.map_err(of_service)?, reader))
    }

    /// Lets the user type once the job has started, until the user leaves; without a terminal nothing happens here.
    async fn sit(
        &self,
        client: &Client,
        id: JobId,
        keys: mpsc::Sender<Vec<u8>>,
        window: Option<Window>,
    ) -> Result<session::Left, Failure> {
        let Some(window) = window else { return std::future::pending().await };
        let client = another(client)?;
        session::until_started(&client, id).await?;
        // A size that cannot be told now is told with the next change.
        session::sit(keys, window, async |window| drop(client.set_window(id, window).await)).await
    }

    /// The exit code; a job whose output nobody reads any more is ended as a program in a pipe would be.
    async fn conclude(
        &self,
        client: &Client,
        id: JobId,
        job: &JobView,
        reader: Reader,
        asked: Option<Ask>,
    ) -> Result<u8, Failure> {
        if !job.state.is_final() && reader == Reader::Gone {
            end(client, id, Client::cancel).await?;
            return Ok(BROKEN_PIPE);
        }
        match asked {
            Some(ask) if job.state == JobState::Cancelled => Ok(ask.exit_code()),
            // The code of a shell is that of its last command, and its user has seen that one fail.
            _ if job.spec.as_ref().is_some_and(|request| request.pty.is_some()) && is_own_exit(job) => {
                Ok(exit_code(job))
            }
            _ => {
                failure::tell_all(client, job, Some(self.worker)).await;
                Ok(exit_code(job))
            }
        }
    }
}

/// Asks for the end of a job, also from a service that is just being restarted. That it has ended already is as good.
async fn end(
    client: &Client,
    id: JobId,
    how: impl AsyncFn(&Client, JobId) -> Result<JobView, Error>,
) -> Result<(), Failure> {
    let begun = Instant::now();
    loop {
        match at_the_allowed_pace(async || how(client, id).await).await {
            Ok(_) => return Ok(()),
            Err(Error::Refused(problem)) if problem.status == 409 => return Ok(()),
            Err(error) if is_absence(&error) && begun.elapsed() < ABSENCE => tokio::time::sleep(TRY_AGAIN).await,
            Err(error) => return Err(of_service(error)),
        }
    }
}

/// The same, unless a signal comes before the service has answered.
async fn end_unless_asked(
    client: &Client,
    id: JobId,
    how: impl AsyncFn(&Client, JobId) -> Result<JobView, Error>,
    signals: &mut Signals,
) -> Result<Option<Ask>, Failure> {
    tokio::select! {
        outcome = end(client, id, how) => outcome.map(|()| None),
        ask = signals.next() => Ok(Some(ask)),
    }
}

/// What was asked meanwhile, or will be.
async fn next_of(known: Option<Ask>, signals: &mut Signals) -> Ask {
    match known {
        Some(ask) => ask,
        None => signals.next().await,
    }
}

fn is_own_exit(job: &JobView) -> bool {
    job.failure.as_ref().is_none_or(|failure| failure.kind == "exit")
}

/// Cancels a job at whose terminal nobody can sit: it would keep its devices.
async fn give_up(client: &Client, id: JobId, failure: Failure) -> Result<u8, Failure> {
    end(client, id, Client::cancel).await?;
    Err(failure)
}

/// Cancels the job of a user who leaves its terminal; a service that does not answer cannot keep anybody here.
async fn leave(client: &Client, id: JobId) -> Result<u8, Failure> {
    match tokio::time::timeout(LEAVE_WITHIN, client.cancel(id)).await {
        Ok(Ok(_)) => tell(&format!("left: job {id} is cancelled")),
        Ok(Err(Error::Refused(problem))) if problem.status == 409 => tell(&format!("left: job {id} has ended")),
        Ok(Err(_)) | Err(_) => tell(&format!("left: job {id} may run on, see `moira show {id}`")),
    }
    Ok(Ask::Hangup.exit_code())
}

fn another(client: &Client) -> Result<Client, Failure> {
    Client::at(&client.address()).map_err(of_service)
}

/// The service has just taken a job, so it was there.
fn seen() -> Option<Instant> {
    Some(Instant::now())
}

/// The job's own code; 128 and the signal's number if one ended it; else what fits the way it ended.
pub(crate) fn exit_code(job: &JobView) -> u8 {
    let of_signal = job.signal.and_then(|signal| u8::try_from(signal + 128).ok());
    let of_program = job.exit_code.and_then(|code| u8::try_from(code).ok());
    let by_state = match job.state {
        JobState::Succeeded => 0,
        JobState::TimedOut => 124,
        JobState::Cancelled => INTERRUPTED,
        _ => 1,
    };
    // A job that did not succeed never looks as if it had, even if its program was content.
    match of_signal.or(of_program).unwrap_or(by_state) {
        0 => by_state,
        code => code,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::jobs::sample;

    fn code(state: JobState, exit_code: Option<i32>, signal: Option<i32>) -> u8 {
        super::exit_code(&JobView { state, exit_code, signal, ..sample("7") })
    }

    #[test]
    fn the_code_of_the_job_is_passed_on() {
        assert_eq!(code(JobState::Succeeded, Some(0), None), 0);
        assert_eq!(code(JobState::Failed, Some(3), None), 3);
        assert_eq!(code(JobState::Failed, None, Some(9)), 137);
        assert_eq!(code(JobState::TimedOut, Some(143), Some(15)), 143);
    }

    #[test]
    fn a_job_that_did_not_succeed_never_looks_as_if_it_had() {
        assert_eq!(code(JobState::Cancelled, Some(0), None), 130);
        assert_eq!(code(JobState::TimedOut, Some(0), None), 124);
        assert_eq!(code(JobState::Failed, None, None), 1);
    }
}
