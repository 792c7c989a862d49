//! `moira wait`: until jobs have ended. Its exit code says how, by SkyPilot's numbers.

use std::time::{Duration, Instant};

use api::{Client, Error, JobId, JobState, JobView};
use clap::Args;

use super::{Named, Which, failure};
use crate::command::service::{self, Shape, is_absence, of_service};
use crate::failure::Failure;
use crate::render;

const FAILED: u8 = 100;
const NOT_FINISHED: u8 = 101;
const NOT_FOUND: u8 = 102;
const CANCELLED: u8 = 103;

/// Exit codes: 0 succeeded, 100 failed, 101 not finished in time, 102 not found, 103 cancelled; of several jobs, that of
/// the first that did not succeed.
#[derive(Debug, Args)]
pub(crate) struct Wait {
    /// Jobs by number, tasks like 7_3, or your jobs of a name: those that have not ended, else the newest
    #[arg(required = true, value_name = "ID|NAME")]
    jobs: Vec<Named>,
    /// Give up after so long
    #[arg(long, value_name = "DURATION")]
    timeout: Option<api::Duration>,
    #[arg(short, long, value_enum, default_value_t)]
    output: Shape,
}

/// How long one question to the service waits for its answer.
const TURN: Duration = Duration::from_secs(30);

/// How long a service that has gone is waited for.
const ABSENCE: Duration = Duration::from_secs(60);

impl Wait {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let until = self.timeout.map(|timeout| Instant::now() + Duration::from_secs_f64(timeout.as_secs_f64()));
        let (codes, unprinted) = service::ask(async |client| {
            let (mut codes, mut unprinted, mut ids) = (Vec::new(), None, Vec::new());
            for named in &self.jobs {
                match named.numbers(client, Which::LiveOrLast).await {
                    Ok(found) => ids.extend(found),
                    Err(error) if error.is_not_found() => {
                        service::tell(&format!("error: {error}"));
                        codes.push(NOT_FOUND);
                    }
                    Err(error) => return Err(of_service(error)),
                }
            }
            for id in ids {
                let left = until.map(|until| until.saturating_duration_since(Instant::now()));
                match ended(client, id, left, None).await {
                    Ok(job) => {
                        // That nobody reads what is printed changes nothing of what is waited for.
                        unprinted = self.print(&job).err().or(unprinted);
                        if self.output == Shape::Table {
                            failure::tell_details(client, &job).await;
                        }
                        codes.push(code(job.state));
                    }
                    Err(error) if error.is_not_found() => {
                        service::tell(&format!("error: {error}"));
                        codes.push(NOT_FOUND);
                    }
                    Err(error) => return Err(of_service(error)),
                }
            }
            Ok((codes, unprinted))
        })?;
        Failure::in_the_end(codes.into_iter().find(|&code| code != 0).unwrap_or(0), unprinted)
    }

    fn print(&self, job: &JobView) -> Result<(), Failure> {
        match self.output {
            Shape::Table => render::line(&failure::verdict(job)),
            Shape::Json => service::json(job),
            Shape::Name => render::line(&job.id),
        }
    }
}

/// The job once it has ended, or as it is when the time is up. A service that was there is waited for if it is restarted
/// meanwhile; one that was not (`seen` is nothing) is not.
pub(crate) async fn ended(
    client: &Client,
    id: JobId,
    within: Option<Duration>,
    mut seen: Option<Instant>,
) -> Result<JobView, Error> {
    let begun = Instant::now();
    loop {
        let left = within.map_or(TURN, |within| within.saturating_sub(begun.elapsed()).min(TURN));
        match client.wait(id, left).await {
            Ok(job) if job.state.is_final() => return Ok(job),
            Ok(job) => {
                seen = Some(Instant::now());
                if within.is_some_and(|within| begun.elapsed() >= within) {
                    return Ok(job);
                }
            }
            Err(error) if is_absence(&error) && seen.is_some_and(|seen| seen.elapsed() < ABSENCE + TURN) => {
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            Err(error) => return Err(error),
        }
    }
}

fn code(state: JobState) -> u8 {
    match state {
        JobState::Succeeded => 0,
        JobState::Failed | JobState::TimedOut | JobState::Refused => FAILED,
        JobState::Cancelled => CANCELLED,
        JobState::Pending | JobState::Held | JobState::Starting | JobState::Running | JobState::Stopping => {
            NOT_FINISHED
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_has_its_number() {
        let codes = JobState::ALL.map(|state| (state.as_str(), code(state)));
        let expected = [
            ("pending", 101),
            ("held", 101),
            ("starting", 101),
            ("running", 101),
            ("stopping", 101),
            ("succeeded", 0),
            ("failed", 100),
            ("timed_out", 100),
            ("cancelled", 103),
            ("refused", 100),
        ];
        assert_eq!(codes, expected);
    }
}
