//! `moira logs`: what a job's workers wrote; and how a log is followed, which `moira run` does too.

use std::time::{Duration, Instant};

use api::{Client, Error, JobId, JobView, LogQuery};
use clap::Args;
use tokio::task::JoinSet;

use super::wait::ended;
use super::{Named, Which, failure};
use crate::command::service::{self, LogOutput, is_absence, of_service, tell};
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct Logs {
    /// Jobs by number, tasks like 7_3, or your newest job of a name; of several, each line says whose it is
    #[arg(required = true, value_name = "ID|NAME")]
    jobs: Vec<Named>,
    #[command(flatten)]
    part: Part,
    /// Of every worker; each line has the worker's number before it
    #[arg(long, conflicts_with = "worker")]
    all_workers: bool,
}

/// Which part of a log.
#[derive(Debug, Clone, Copy, Args)]
struct Part {
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
    /// All tasks of an array as one stream, each line with the number of its task, like `[3]`
    #[arg(long, conflicts_with_all = ["attempt", "tail", "all_workers"])]
    all: bool,
}

/// One log of several.
#[derive(Debug)]
struct Stream {
    id: JobId,
    worker: u32,
    prefix: String,
}

/// How long a service that has gone is waited for: it may be restarted, and its jobs run on meanwhile.
const ABSENCE: Duration = Duration::from_secs(60);

/// Between two tries to reach the service.
const BREATH: Duration = Duration::from_millis(500);

impl Logs {
    pub(crate) fn run(self) -> Result<(), Failure> {
        service::ask(async |client| {
            let mut ids = Vec::new();
            for named in &self.jobs {
                let found = self.patiently(async || named.numbers(client, Which::Newest).await).await;
                ids.extend(found.map_err(of_service)?);
            }
            if self.part.all {
                for id in ids {
                    if show_array(client, id, self.part.worker, self.part.follow).await? == Reader::Gone {
                        break;
                    }
                }
                return Ok(());
            }
            let reader = match (&ids[..], self.all_workers) {
                ([id], false) => self.part.show(client, *id, self.part.worker, LogOutput::new()).await?,
                (ids, _) => self.show_all(client, ids).await?,
            };
            if reader == Reader::Listens && self.part.attempt.is_none() {
                for id in ids {
                    // The log has been shown, whether or not it can be said how the job ended.
                    client.job(id).await.iter().for_each(failure::tell_briefly);
                }
            }
            Ok(())
        })
    }

    /// Several logs: as they come if they are followed, else one after the other.
    async fn show_all(&self, client: &Client, ids: &[JobId]) -> Result<Reader, Failure> {
        let mut streams = Vec::new();
        for &id in ids {
            streams.extend(self.streams(client, id, ids.len() > 1).await?);
        }
        let mut shown = JoinSet::new();
        for Stream { id, worker, prefix } in streams {
            let (part, output) = (self.part, LogOutput::with_prefix(prefix));
            if !part.follow {
                if part.show(client, id, worker, output).await? == Reader::Gone {
                    return Ok(Reader::Gone);
                }
                continue;
            }
            let own = Client::at(&client.address()).map_err(of_service)?;
            shown.spawn(async move { part.show(&own, id, worker, output).await });
        }
        while let Some(ended) = shown.join_next().await {
            let reader = ended.map_err(Failure::new)??;
            if reader == Reader::Gone {
                return Ok(reader);
            }
        }
        Ok(Reader::Listens)
    }

    async fn streams(&self, client: &Client, id: JobId, several: bool) -> Result<Vec<Stream>, Failure> {
        let job = if several { format!("{id}: ") } else { String::new() };
        if !self.all_workers {
            return Ok(vec![Stream { id, worker: self.part.worker, prefix: job }]);
        }
        let view = self.patiently(async || client.job(id).await).await.map_err(of_service)?;
        let mut workers = view.processes.max(1);
        // Those that joined later have numbers behind those of the launch.
        while view.resizes > 0 && has_log(client, id, workers).await {
            workers += 1;
        }
        Ok((0..workers).map(|worker| Stream { id, worker, prefix: format!("{job}[{worker}] ") }).collect())
    }

    /// Whoever follows a log waits for a service that is just being restarted.
    async fn patiently<T>(&self, ask: impl AsyncFn() -> Result<T, Error>) -> Result<T, Error> {
        let begun = Instant::now();
        loop {
            match ask().await {
                Err(error) if self.part.follow && is_absence(&error) && begun.elapsed() < ABSENCE => {
                    tokio::time::sleep(BREATH).await;
                }
                answer => return answer,
            }
        }
    }
}

async fn has_log(client: &Client, id: JobId, worker: u32) -> bool {
    let query = LogQuery { worker: Some(worker), tail: Some(1), ..LogQuery::default() };
    match client.logs(id, &query).await {
        Ok(mut logs) => logs.next().await.is_ok_and(|piece| piece.is_some()),
        Err(_) => false,
    }
}

impl Part {
    async fn show(self, client: &Client, id: JobId, worker: u32, output: LogOutput) -> Result<Reader, Failure> {
        let mut following = Following { output, ..Following::new(client, id, worker) };
        following.tail = self.tail;
        let reader = match (self.follow, self.attempt) {
            (false, attempt) => following.show(attempt, false).await?,
            (true, Some(attempt)) => {
                following.attempt = attempt;
                following.until_attempt_ends().await?.1
            }
            (true, None) => {
                let job = ended(client, id, Some(Duration::ZERO), seen()).await.map_err(of_service)?;
                following.attempt = job.attempts.max(1);
                following.until_job_ends().await?
            }
        };
        let is_read = following.output.finish()?;
        Ok(if is_read { reader } else { Reader::Gone })
    }
}

/// Shows what all tasks of an array write; with `follow`, until all of them have ended. A service that goes away cannot be
/// asked for the rest: in which order the lines of tasks come is not recorded.
pub(crate) async fn show_array(client: &Client, id: JobId, worker: u32, follow: bool) -> Result<Reader, Failure> {
    let query = LogQuery { worker: Some(worker), follow, all: true, ..LogQuery::default() };
    let mut logs = client.logs(id, &query).await.map_err(of_service)?;
    let mut output = LogOutput::new();
    while let Some(piece) = logs.next().await.map_err(of_service)? {
        if !output.pass_on(&piece)? {
            return Ok(Reader::Gone);
        }
    }
    Ok(Reader::Listens)
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
            let logs = self.open(&LogQuery { worker, attempt, offset, tail, follow, all: false }).await?;
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
