//! What a job's workers wrote, as it is or as it comes.

use std::io::SeekFrom;
use std::time::Duration;

use api::{FieldFault, JobId, Problem};
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use cluster::{ClaimId, Run};
use executors::Local;
use serde::Deserialize;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use utoipa::IntoParams;

use super::Door;
use super::errors::{Failure, Named, Query, Refusal};
use crate::core::no_job;

/// How often a log that is followed is looked at.
const GLANCE: Duration = Duration::from_millis(150);
const CHUNK: usize = 64 << 10;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct LogQuery {
    /// The number of the process in the run: its rank at launch; those that join later go on counting.
    #[param(minimum = 0, maximum = 65535)]
    worker: Option<u32>,
    /// Which launch of the job; the latest if nothing is said.
    #[param(minimum = 1)]
    attempt: Option<u32>,
    /// Begin at this byte.
    offset: Option<u64>,
    /// Only so many bytes from the end.
    tail: Option<u64>,
    /// Go on until the job has ended.
    follow: Option<bool>,
}

/// What a worker wrote to its output and error streams.
#[utoipa::path(get, path = "/v1/jobs/{id}/logs", params(("id" = String, Path), LogQuery),
    responses((status = 200, body = String, content_type = "text/plain"),
        Refusal))]
pub(crate) async fn logs(
    State(door): State<Door>,
    Named(id): Named,
    Query(query): Query<LogQuery>,
) -> Result<Response, Failure> {
    let (claim, latest) = claim_of(&door, id)?;
    if let Some(attempt) = query.attempt.filter(|&attempt| attempt == 0 || attempt > latest) {
        let fault =
            FieldFault::new("attempt", format!("job {id} was launched {latest} times, there is no attempt {attempt}"));
        return Err(Failure(Problem::from(fault)));
    }
    let first = query.attempt.unwrap_or(latest.max(1));
    let (sender, receiver) = mpsc::channel(16);
    let following = Following { door, claim, worker: query.worker.unwrap_or(0), sender };
    tokio::spawn(following.run(first, query));
    let body = Body::from_stream(ReceiverStream::new(receiver));
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], body).into_response())
}

/// The one claim a name stands for, and how often it was launched.
fn claim_of(door: &Door, id: JobId) -> Result<(ClaimId, u32), Problem> {
    let shown = door.service.replica.read();
    let claims = shown.ledger.claims(id).ok_or_else(|| no_job(id))?;
    if claims.len() != 1 {
        return Err(Problem::conflict(format!("job {id} is an array: say which task, like {id}_0")));
    }
    let claim = ClaimId(claims.start);
    Ok((claim, shown.state.books().claim(claim).progress.launches))
}

struct Following {
    door: Door,
    claim: ClaimId,
    worker: u32,
    sender: mpsc::Sender<std::io::Result<Bytes>>,
}

impl Following {
    /// Sends one attempt's log after the other, until the job has ended or nobody listens any more.
    async fn run(self, first: u32, query: LogQuery) {
        let follow = query.follow.unwrap_or(false);
        let mut attempt = first;
        let mut position = query.offset.unwrap_or(0);
        let mut tail = query.tail;
        loop {
            // Asked before the file is read: what was written before the end is then seen.
            let (latest, over) = self.stage();
            if let Some(from) = tail.take() {
                position = self.length(attempt).await.saturating_sub(from);
            }
            let Ok(read) = self.send_from(attempt, position).await else { return };
            position += read;
            if read > 0 {
                continue;
            }
            let passed = latest > attempt;
            if !follow || (passed && query.attempt.is_some()) || (over && !passed) {
                return;
            }
            if passed {
                (attempt, position) = (attempt + 1, 0);
            } else if *self.door.leaving.borrow() {
                return;
            } else {
                tokio::time::sleep(GLANCE).await;
            }
        }
    }

    /// The latest attempt, and whether the job has ended.
    fn stage(&self) -> (u32, bool) {
        let shown = self.door.service.replica.read();
        let claim = shown.state.books().claim(self.claim);
        (claim.progress.launches, !claim.is_live())
    }

    /// The log of a run that goes on, has ended, or is just being put away; nothing if nothing was written yet.
    async fn open(&self, attempt: u32) -> Option<File> {
        let run = Run { claim: self.claim, attempt };
        for path in Local::log_paths(&self.door.service.data_dir, run, self.worker) {
            if let Ok(file) = File::open(path).await {
                return Some(file);
            }
        }
        None
    }

    async fn length(&self, attempt: u32) -> u64 {
        match self.open(attempt).await {
            Some(file) => file.metadata().await.map_or(0, |file| file.len()),
            None => 0,
        }
    }

    /// Sends what there is behind a place; an error if nobody listens any more.
    async fn send_from(&self, attempt: u32, position: u64) -> Result<u64, ()> {
        let Some(mut file) = self.open(attempt).await else { return Ok(0) };
        if file.seek(SeekFrom::Start(position)).await.is_err() {
            return Ok(0);
        }
        let mut buffer = vec![0; CHUNK];
        let Ok(read) = file.read(&mut buffer).await else { return Ok(0) };
        if read == 0 {
            return Ok(0);
        }
        buffer.truncate(read);
        self.sender.send(Ok(Bytes::from(buffer))).await.map_err(drop)?;
        Ok(read as u64)
    }
}
