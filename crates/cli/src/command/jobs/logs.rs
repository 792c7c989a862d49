//! `moira logs`: what a job's workers wrote; and how a log is followed, which `moira run` does too.

use std::time::{Duration, Instant};

use api::{Client, Error, JobId, JobView, LogQuery};
use clap::Args;

use super::failure;
use super::wait::ended;
use crate::command::service::{self, LogOutput, is_absence, of_service, tell};
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct Logs {
    #[arg(value_name = "ID")]
    id: JobId,
    /// Go on until the job has ended
    #[arg(short, long)]
    follow: bool,
    /// Which process of the run: its rank at launch; those that joined later go on counting
    #[arg(long, value_name = "N", default_value_t = 0)]
    worker: u32,
    /// Of which launch, from 1 [default: the latest]
    #[arg(long, value_name = "N")]
    attempt: Option<u32>,
    /// Only so many bytes from the end
    #[arg(long, value_name = "BYTES")]
    tail: Option<u64>,
}

/// How long a service that has gone is waited for: it may be restarted, and its jobs run on meanwhile.
const ABSENCE: Duration = Duration::from_secs(60);

/// Between two tries to reach the service.
const BREATH: Duration = Duration::from_millis(500);

impl Logs {
    pub(crate) fn run(self) -> Result<(), Failure> {
        service::ask(async |client| {
            let mut following = Following::new(client, self.id, self.worker);
            following.tail = self.tail;
            let reader = match (self.follow, self.attempt) {
                (false, attempt) => following.show(attempt, false).await?,
                (true, Some(attempt)) => {
                    following.attempt = attempt;
                    following.until_attempt_ends().await?.1
                }
                (true, None) => {
                    let job = ended(client, self.id, Some(Duration::ZERO), seen()).await.map_err(of_service)?;
                    following.attempt = job.attempts.max(1);
                    following.until_job_ends().await?
                }
            };
            if reader == Reader::Listens && self.attempt.is_none() {
                // The log has been shown, whether or not it can be said how the job ended.
                client.job(self.id).await.iter().for_each(failure::tell_briefly);
            }
            Ok(())
        })
    }
}

/// A log as it is shown: from attempt to attempt, each byte that is kept once, also if the service is restarted meanwhile.
#[derive(Debug)]
pub(crate) struct Following<'a> {
    client: &'a Client,
    id: JobId,
    worker: u32,
    attempt: u32,
    /// How much of the attempt's log has been shown or passed over.
    offset: u64,
    /// At first, only so many bytes from the end.
    tail: Option<u64>,
    output: LogOutput,
}

/// Whether anybody still reads what is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    Listens,
    Gone,
}

/// How much of an answer was passed on.
enum Passed {
    All,
    /// All that anybody reads.
    ToNobody,
    /// What came before the connection broke.
    Cut(Error),
}

impl<'a> Following<'a> {
    /// From the beginning of the first attempt on.
    pub(crate) fn new(client: &'a Client, id: JobId, worker: u32) -> Following<'a> {
        Following { client, id, worker, attempt: 1, offset: 0, tail: None, output: LogOutput::new() }
    }

    pub(crate) async fn until_job_ends(&mut self) -> Result<Reader, Failure> {
        loop {
            let (job, reader) = self.until_attempt_ends().await?;
            if reader == Reader::Gone || job.attempts.max(1) <= self.attempt {
                return Ok(reader);
            }
            (self.attempt, self.offset) = (self.attempt + 1, 0);
        }
    }

    /// Shows all of an attempt, and returns the job as it was when nothing more could be written there.
    async fn until_attempt_ends(&mut self) -> Result<(JobView, Reader), Failure> {
        loop {
            // Asked before the log is read: what was written before the end is then seen.
            let job = ended(self.client, self.id, Some(Duration::ZERO), seen()).await.map_err(of_service)?;
            let is_over = job.state.is_final() || job.attempts > self.attempt;
            let before = self.offset;
            let reader = self.show(Some(self.attempt), true).await?;
            if is_over || reader == Reader::Gone {
                return Ok((job, reader));
            }
            if self.offset == before {
                tokio::time::sleep(BREATH).await;
            }
        }
    }

    /// Passes on what comes after the bytes that were shown, until the service has no more. The service may go away, and it
    /// drops whoever takes nothing for long, as a pager does: then it is asked for the rest.
    async fn show(&mut self, attempt: Option<u32>, follow: bool) -> Result<Reader, Failure> {
        loop {
            let (worker, offset, tail) = (Some(self.worker), Some(self.offset), self.tail.take());
            let logs = self.open(&LogQuery { worker, attempt, offset, tail, follow }).await?;
            if logs.cut > 0 {
                tell(&format!("[moira: {} bytes of older output were dropped]", logs.cut));
            }
            self.offset = logs.offset;
            match self.pass_on(logs).await? {
                Passed::All => return Ok(Reader::Listens),
                Passed::ToNobody => return Ok(Reader::Gone),
                Passed::Cut(_) if follow => tell("lost the service: its jobs run on, waiting for it to come back"),
                Passed::Cut(error) if Some(self.offset) == offset => return Err(of_service(error)),
                Passed::Cut(_) => {}
            }
        }
    }

    async fn pass_on(&mut self, mut logs: api::Logs) -> Result<Passed, Failure> {
        loop {
            match logs.next().await {
                Ok(None) => return Ok(Passed::All),
                Ok(Some(piece)) => {
                    self.offset += piece.len() as u64;
                    if !self.output.pass_on(&piece)? {
                        return Ok(Passed::ToNobody);
                    }
                }
                Err(error @ Error::Cut { .. }) => return Ok(Passed::Cut(error)),
                Err(error) => return Err(of_service(error)),
            }
        }
    }

    async fn open(&self, query: &LogQuery) -> Result<api::Logs, Failure> {
        let since = Instant::now();
        loop {
            match self.client.logs(self.id, query).await {
                Ok(logs) => return Ok(logs),
                Err(error) if query.follow && is_absence(&error) && since.elapsed() < ABSENCE => {
                    tokio::time::sleep(BREATH).await;
                }
                Err(error) => return Err(of_service(error)),
            }
        }
    }
}

/// The service has just answered, so it was there.
fn seen() -> Option<Instant> {
    Some(Instant::now())
}
