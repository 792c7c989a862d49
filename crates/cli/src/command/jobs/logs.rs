//! `moira logs`: what a job's workers wrote; and how a log is followed, which `moira run` does too.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use api::{Client, Error, Events, JobId, JobView, LogQuery};
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

/// How often a job is looked at while nothing is heard of it, in case something was missed.
const RARE_GLANCE: Duration = Duration::from_secs(60);

const LOST: &str = "lost the service: its jobs run on, waiting for it to come back";

impl Logs {
    pub(crate) fn run(self) -> Result<(), Failure> {
        service::ask(async |client| {
            let mut ids = Vec::new();
            for named in &self.jobs {
                let found = self.patiently(async || named.numbers(client, Which::Newest).await).await;
                ids.extend(found.map_err(of_service)?);
            }
            let shown = match (&ids[..], self.all_workers) {
                (ids, _) if self.part.all => self.show_arrays(client, ids).await,
                ([id], false) => self.part.show(client, *id, self.part.worker, LogOutput::new()).await,
                (ids, _) => self.show_all(client, ids).await,
            };
            match &shown {
                Ok(Reader::Listens) if self.part.attempt.is_none() => self.tell_failures(client, &ids).await,
                Ok(_) => {}
                Err(_) => tell_failed_tasks(client, &ids).await,
            }
            shown.map(|_| ())
        })
    }

    /// The logs have been shown, whether or not it can be said how the jobs ended.
    async fn tell_failures(&self, client: &Client, ids: &[JobId]) {
        for &id in ids {
            match client.job(id).await {
                Ok(job) if self.all_workers => failure::tell_briefly(&job),
                Ok(job) => failure::tell_beside(client, &job, self.part.worker).await,
                Err(_) => {}
            }
        }
    }

    async fn show_arrays(&self, client: &Client, ids: &[JobId]) -> Result<Reader, Failure> {
        for &id in ids {
            if show_array(client, id, self.part.worker, self.part.follow).await? == Reader::Gone {
                return Ok(Reader::Gone);
            }
        }
        Ok(Reader::Listens)
    }

    /// Several logs: as they come if they are followed, else one after the other.
    async fn show_all(&self, client: &Client, ids: &[JobId]) -> Result<Reader, Failure> {
        let prefix = |id: JobId| if ids.len() > 1 { format!("{id}: ") } else { String::new() };
        if self.part.follow {
            let mut shown = JoinSet::new();
            for &id in ids {
                let (own, part, prefix) = (Client::at(&client.address()).map_err(of_service)?, self.part, prefix(id));
                if self.all_workers {
                    shown.spawn(Workers::new(own, id, part, prefix).follow());
                } else {
                    shown.spawn(async move { part.show(&own, id, part.worker, LogOutput::with_prefix(prefix)).await });
                }
            }
            return all_of(shown).await;
        }
        for &id in ids {
            for Stream { id, worker, prefix } in self.streams(client, id, prefix(id)).await? {
                if self.part.show(client, id, worker, LogOutput::with_prefix(prefix)).await? == Reader::Gone {
                    return Ok(Reader::Gone);
                }
            }
        }
        Ok(Reader::Listens)
    }

    async fn streams(&self, client: &Client, id: JobId, prefix: String) -> Result<Vec<Stream>, Failure> {
        if !self.all_workers {
            return Ok(vec![Stream { id, worker: self.part.worker, prefix }]);
        }
        let view = client.job(id).await.map_err(of_service)?;
        let workers = with_later_ones(client, &view, id, view.processes.max(1)).await;
        Ok((0..workers).map(|worker| Stream { id, worker, prefix: format!("{prefix}[{worker}] ") }).collect())
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

/// An array as a whole has no log of its own, but one of its tasks may be why somebody asks.
async fn tell_failed_tasks(client: &Client, ids: &[JobId]) {
    for &id in ids {
        if let Ok(job) = client.job(id).await
            && job.array.is_some()
        {
            failure::tell_all(client, &job, None).await;
        }
    }
}

/// How many workers a run has had, at least: those that joined later have numbers behind those of the launch.
async fn with_later_ones(client: &Client, job: &JobView, id: JobId, mut workers: u32) -> u32 {
    while job.resizes > 0 && has_log(client, id, workers).await {
        workers += 1;
    }
    workers
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

/// The logs of all workers of a job, each from when there is such a worker.
struct Workers {
    client: Client,
    id: JobId,
    part: Part,
    prefix: String,
    /// As it was when the job was looked at last.
    attempt: u32,
    processes: u32,
    /// How many workers there have been in one run, those included that have left.
    workers: u32,
}

impl Workers {
    fn new(client: Client, id: JobId, part: Part, prefix: String) -> Workers {
        Workers { client, id, part, prefix, attempt: 0, processes: 0, workers: 0 }
    }

    async fn follow(mut self) -> Result<Reader, Failure> {
        let (mut shown, mut events, mut followed) = (JoinSet::new(), None, 0);
        loop {
            // Heard from before the job is looked at: what happens afterwards is not missed.
            if events.is_none() {
                events = self.client.events(None, Some(self.id)).await.ok();
            }
            let job = ended(&self.client, self.id, Some(Duration::ZERO), seen()).await.map_err(of_service)?;
            self.count(&job).await;
            // Of those that join later there is nothing before their beginning.
            let tail = self.part.tail.filter(|_| followed == 0);
            for worker in followed..self.workers {
                let (own, id) = (Client::at(&self.client.address()).map_err(of_service)?, self.id);
                let part = Part { tail, ..self.part };
                let output = LogOutput::with_prefix(format!("{}[{worker}] ", self.prefix));
                shown.spawn(async move { part.show(&own, id, worker, output).await });
            }
            followed = followed.max(self.workers);
            if job.state.is_final() || self.part.attempt.is_some_and(|attempt| job.attempts > attempt) {
                return all_of(shown).await;
            }
            tokio::select! {
                Some(ended) = shown.join_next() => {
                    if ended.map_err(Failure::new)?? == Reader::Gone {
                        return Ok(Reader::Gone);
                    }
                }
                () = next_change(&mut events) => {}
            }
        }
    }

    /// One too many does no harm: nothing is ever shown of it.
    async fn count(&mut self, job: &JobView) {
        if job.attempts == self.attempt {
            self.workers += job.processes.saturating_sub(self.processes);
        } else {
            self.workers = self.workers.max(job.processes);
        }
        (self.attempt, self.processes) = (job.attempts, job.processes);
        // It says why nothing can be shown, and of a job that never ran that there is nothing.
        if job.state.is_final() || job.array.is_some() {
            self.workers = self.workers.max(1);
        }
        self.workers = with_later_ones(&self.client, job, self.id, self.workers).await;
    }
}

/// Waits until the job's workers may be others.
async fn next_change(events: &mut Option<Events>) {
    let Some(heard) = events else { return tokio::time::sleep(BREATH).await };
    loop {
        match tokio::time::timeout(RARE_GLANCE, heard.next()).await {
            Ok(Ok(Some(event))) if matches!(event.what.as_str(), "progressed" | "retuned") => {}
            Ok(Ok(Some(_))) | Err(_) => return,
            Ok(Ok(None) | Err(_)) => {
                *events = None;
                return;
            }
        }
    }
}

/// All of them, or as many as anybody reads.
async fn all_of(mut shown: JoinSet<Result<Reader, Failure>>) -> Result<Reader, Failure> {
    while let Some(ended) = shown.join_next().await {
        let reader = ended.map_err(Failure::new)??;
        if reader == Reader::Gone {
            return Ok(reader);
        }
    }
    Ok(Reader::Listens)
}

/// Shows what all tasks of an array write; with `follow`, until all of them have ended, also if the service is restarted
/// meanwhile.
pub(crate) async fn show_array(client: &Client, id: JobId, worker: u32, follow: bool) -> Result<Reader, Failure> {
    let query = LogQuery { worker: Some(worker), follow, all: true, ..LogQuery::default() };
    let (mut output, mut tasks) = (LogOutput::new(), TaskLines::default());
    loop {
        let mut logs = opened(client, id, &query).await?;
        tasks.begin_again();
        loop {
            match logs.next().await {
                Ok(None) => return Ok(Reader::Listens),
                Ok(Some(piece)) => {
                    if !output.pass_on(&tasks.new_of(&piece))? {
                        return Ok(Reader::Gone);
                    }
                }
                Err(Error::Cut { .. }) if follow => {
                    tell(LOST);
                    tokio::time::sleep(BREATH).await;
                    break;
                }
                Err(error) => return Err(of_service(error)),
            }
        }
    }
}

/// Which lines of an array have been shown. In which order those of different tasks come is not recorded: a service that
/// is asked again gives all of them once more, those of each task in their order.
#[derive(Debug, Default)]
struct TaskLines {
    /// Of each task, by what its lines begin with, how many bytes have been shown or dropped.
    shown: BTreeMap<Vec<u8>, u64>,
    /// The same of the present answer.
    heard: BTreeMap<Vec<u8>, u64>,
    /// A line whose end has not come yet.
    begun: Vec<u8>,
}

impl TaskLines {
    fn begin_again(&mut self) {
        self.heard.clear();
        self.begun.clear();
    }

    /// The whole lines that have not been shown yet.
    fn new_of(&mut self, piece: &[u8]) -> Vec<u8> {
        let mut new = Vec::new();
        for part in piece.split_inclusive(|&byte| byte == b'\n') {
            self.begun.extend_from_slice(part);
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.begun);
                if self.is_new(&line) {
                    new.extend(line);
                }
            }
        }
        new
    }

    fn is_new(&mut self, line: &[u8]) -> bool {
        let end = line.windows(2).position(|pair| pair == b"] ").map_or(0, |place| place + 2);
        let (task, text) = line.split_at(end);
        let heard = self.heard.entry(task.to_vec()).or_default();
        *heard += dropped(text).unwrap_or(text.len() as u64);
        let shown = self.shown.entry(task.to_vec()).or_default();
        let is_new = *heard > *shown;
        *shown = (*shown).max(*heard);
        is_new
    }
}

/// Of how many bytes a line says that they are not kept any more.
fn dropped(line: &[u8]) -> Option<u64> {
    let said = std::str::from_utf8(line).ok()?.strip_prefix("[moira: ")?;
    said.strip_suffix(" bytes of older output were dropped]\n")?.parse().ok()
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
    /// Whether somebody types to what is shown.
    is_terminal: bool,
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
        let output = LogOutput::new();
        Following { client, id, worker, attempt: 1, offset: 0, tail: None, output, is_terminal: false }
    }

    /// The log of a terminal, shown as it is.
    pub(crate) fn of_terminal(client: &'a Client, id: JobId) -> Following<'a> {
        Following { output: LogOutput::raw(), is_terminal: true, ..Following::new(client, id, 0) }
    }

    pub(crate) async fn until_job_ends(&mut self) -> Result<Reader, Failure> {
        loop {
            let (job, reader) = self.until_attempt_ends().await?;
            if reader == Reader::Gone || job.attempts.max(1) <= self.attempt {
                return Ok(reader);
            }
            (self.attempt, self.offset) = (self.attempt + 1, 0);
            if self.is_terminal {
                tell("[moira: the job was stopped, and starts again from the beginning]");
            }
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
                // A log ends a moment before its job does. One that rests after a failure is asked about now and then.
                ended(self.client, self.id, Some(BREATH), seen()).await.map_err(of_service)?;
            }
        }
    }

    /// Passes on what comes after the bytes that were shown, until the service has no more. The service may go away, and it
    /// drops whoever takes nothing for long, as a pager does: then it is asked for the rest.
    async fn show(&mut self, attempt: Option<u32>, follow: bool) -> Result<Reader, Failure> {
        loop {
            let (worker, offset, tail) = (Some(self.worker), Some(self.offset), self.tail.take());
            let query = LogQuery { worker, attempt, offset, tail, follow, all: false };
            let logs = opened(self.client, self.id, &query).await?;
            if logs.cut > 0 {
                tell(&format!("[moira: {} bytes of older output were dropped]", logs.cut));
            }
            self.offset = logs.offset;
            match self.pass_on(logs).await? {
                Passed::All => return Ok(Reader::Listens),
                Passed::ToNobody => return Ok(Reader::Gone),
                Passed::Cut(_) if follow => tell(LOST),
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
}

/// A log; who follows one waits for a service that is just being restarted.
async fn opened(client: &Client, id: JobId, query: &LogQuery) -> Result<api::Logs, Failure> {
    let since = Instant::now();
    loop {
        match client.logs(id, query).await {
            Ok(logs) => return Ok(logs),
            Err(error) if query.follow && is_absence(&error) && since.elapsed() < ABSENCE => {
                tokio::time::sleep(BREATH).await;
            }
            Err(error) => return Err(of_service(error)),
        }
    }
}

/// The service has just answered, so it was there.
fn seen() -> Option<Instant> {
    Some(Instant::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_tasks_that_are_said_again_are_shown_once() {
        let mut tasks = TaskLines::default();
        let mut new = |piece: &str| String::from_utf8(tasks.new_of(piece.as_bytes())).unwrap();
        assert_eq!(new("[1] a\n[2] a\n[1] b\n[2] un"), "[1] a\n[2] a\n[1] b\n");
        tasks.begin_again();
        let mut new = |piece: &str| String::from_utf8(tasks.new_of(piece.as_bytes())).unwrap();
        assert_eq!(new("[2] a\n[2] until\n[2] a\n[1] a\n[1] "), "[2] until\n[2] a\n");
        assert_eq!(new("b\n[1] b\n"), "[1] b\n");
    }

    #[test]
    fn of_what_is_not_kept_any_more_only_that_counts_which_was_not_shown() {
        let mut tasks = TaskLines::default();
        tasks.new_of(b"[1] one\n[1] two\n");
        tasks.begin_again();
        let dropped = |bytes| format!("[1] [moira: {bytes} bytes of older output were dropped]\n");
        assert_eq!(tasks.new_of(format!("{}[1] two\n[1] three\n", dropped(4)).as_bytes()), b"[1] three\n");
        tasks.begin_again();
        let again = format!("{}[1] five\n", dropped(20));
        assert_eq!(String::from_utf8(tasks.new_of(again.as_bytes())).unwrap(), again);
    }
}
