//! `moira run`: hand a job over, show what it writes, and end as it ends.

use std::time::Instant;

use api::{Client, Error, JobId, JobState, JobView};
use clap::Args;

use super::jobs::Following;
use super::jobs::wait::ended;
use super::service::{self, of_service, tell};
use super::submit::JobOptions;
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    job: JobOptions,
    /// The worker whose output is shown
    #[arg(long, value_name = "N", default_value_t = 0)]
    worker: u32,
}

/// As a shell reports a program that was interrupted.
const INTERRUPTED: u8 = 130;

impl Run {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let job = self.job.request()?;
        let code = service::ask(async |client| {
            let submitted = self.job.submit(client, &job).await?;
            tell(&format!("submitted job {} ({})", submitted.id, submitted.name));
            self.accompany(client, &submitted).await
        })?;
        if code == 0 { Ok(()) } else { Err(Failure::silent(code)) }
    }

    /// Until the job has ended, or the user has left.
    async fn accompany(&self, client: &Client, submitted: &JobView) -> Result<u8, Failure> {
        let id: JobId = submitted.id.parse().map_err(|message: String| Failure::new(anyhow::anyhow!(message)))?;
        let watching = self.watch(client, submitted, id);
        tokio::pin!(watching);
        let mut interrupts = 0;
        loop {
            tokio::select! {
                outcome = &mut watching => return outcome.map(|job| exit_code(&job)),
                interrupt = tokio::signal::ctrl_c() => {
                    interrupt.map_err(Failure::new)?;
                    interrupts += 1;
                }
            }
            if interrupts > 1 {
                tell(&format!("left job {id}: see `moira show {id}`"));
                return Ok(INTERRUPTED);
            }
            tell(&format!("cancelling job {id}; interrupt again to leave at once"));
            // A connection of its own: the other one may be waiting for the end of the job.
            let other = Client::at(&client.address()).map_err(of_service)?;
            match other.cancel(id).await {
                // It has ended meanwhile.
                Err(Error::Refused(problem)) if problem.status == 409 => {}
                outcome => drop(outcome.map_err(of_service)?),
            }
        }
    }

    /// Passes the log on and returns the job as it ended.
    async fn watch(&self, client: &Client, submitted: &JobView, id: JobId) -> Result<JobView, Failure> {
        if submitted.array.is_some() {
            tell(&format!("an array of tasks: see what one of them writes with `moira logs --follow {id}_0`"));
            return ended(client, id, None, seen()).await.map_err(of_service);
        }
        Following::new(client, id, self.worker).until_job_ends().await?;
        ended(client, id, None, seen()).await.map_err(of_service)
    }
}

/// The service has just taken a job, so it was there.
fn seen() -> Option<Instant> {
    Some(Instant::now())
}

/// The job's own code; 128 and the signal's number if one ended it; else what fits the way it ended.
fn exit_code(job: &JobView) -> u8 {
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
