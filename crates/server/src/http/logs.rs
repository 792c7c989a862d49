//! What a job's workers wrote, as it is or as it comes.

use std::io::SeekFrom;
use std::time::Duration;

use api::{FieldFault, JobId, Problem};
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use cluster::{ClaimId, Run};
use executors::{LogPiece, log_pieces};
use serde::Deserialize;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use utoipa::IntoParams;

use super::Door;
use super::errors::{Failure, Named, Query, Refusal};
use super::jobs::check_details;
use super::peer::By;
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
    /// Begin at this byte of all that was written, or at the first that is kept.
    offset: Option<u64>,
    /// Only so many bytes from the end of all that is kept.
    tail: Option<u64>,
    /// Go on until the job has ended, from attempt to attempt unless one is named. An answer that cannot keep up with
    /// what is written ends early: ask again for what comes next.
    follow: Option<bool>,
}

/// What a worker wrote to its output and error streams. `Moira-Log-Offset` is where the answer begins in all that was
/// written, `Moira-Log-Cut` how many bytes before that were asked for and are not kept any more.
#[utoipa::path(get, path = "/v1/jobs/{id}/logs", params(("id" = String, Path), LogQuery),
    responses((status = 200, body = String, content_type = "text/plain"),
        Refusal))]
pub(crate) async fn logs(
    State(door): State<Door>,
    By(caller): By,
    Named(id): Named,
    Query(query): Query<LogQuery>,
) -> Result<Response, Failure> {
    check_details(&door, &caller, id)?;
    let (claim, latest) = claim_of(&door, id)?;
    // The first launch may be waited for.
    if let Some(attempt) = query.attempt.filter(|&attempt| attempt == 0 || attempt > latest.max(1)) {
        let fault =
            FieldFault::new("attempt", format!("job {id} was launched {latest} times, there is no attempt {attempt}"));
        return Err(Failure(Problem::from(fault)));
    }
    let first = query.attempt.unwrap_or(latest.max(1));
    let (sender, receiver) = mpsc::channel(16);
    let following = Following { door, claim, worker: query.worker.unwrap_or(0), sender };
    let pieces = following.pieces(first).await;
    let beginning = Beginning::of(&pieces, &query);
    tokio::spawn(following.run(first, pieces, beginning.offset, query));
    let headers = [
        (header::CONTENT_TYPE, "text/plain; charset=utf-8".to_string()),
        (HeaderName::from_static(OFFSET), beginning.offset.to_string()),
        (HeaderName::from_static(CUT), beginning.cut.to_string()),
    ];
    Ok((headers, Body::from_stream(ReceiverStream::new(receiver))).into_response())
}

/// Where the first byte of an answer lies in all that was written.
const OFFSET: &str = "moira-log-offset";
/// How many bytes that were asked for are not kept any more.
const CUT: &str = "moira-log-cut";

/// Where an answer begins.
#[derive(Debug, PartialEq, Eq)]
struct Beginning {
    offset: u64,
    cut: u64,
}

impl Beginning {
    fn of(pieces: &[LogPiece], query: &LogQuery) -> Beginning {
        let kept = pieces.first().map_or(0, |piece| piece.start);
        let end = pieces.last().map_or(0, |piece| piece.end);
        let wanted = query.tail.map_or(query.offset.unwrap_or(0), |tail| end.saturating_sub(tail));
        Beginning { offset: wanted.max(kept), cut: kept.saturating_sub(wanted) }
    }
}

/// The one claim a name stands for, and how often it was launched.
fn claim_of(door: &Door, id: JobId) -> Result<(ClaimId, u32), Problem> {
    let shown = door.service.replica.read();
    let claims = shown.ledger.claims(id).ok_or_else(|| no_job(&shown.ledger, id))?;
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

/// The answer ends here: nobody listens any more, or what comes next was dropped before it could be sent. Whoever asks
/// again from there is told how much that was.
struct Over;

impl Following {
    /// Sends what is kept behind a place, and where that is wanted what follows: one attempt's log after the other, until
    /// the job has ended.
    async fn run(self, first: u32, pieces: Vec<LogPiece>, offset: u64, query: LogQuery) {
        let mut attempt = first;
        let Ok(mut position) = self.send(pieces, offset).await else { return };
        if !query.follow.unwrap_or(false) {
            return;
        }
        loop {
            // Asked before the files are read: what was written before the end is then seen.
            let (latest, over) = self.stage();
            let Ok(reached) = self.send(self.pieces(attempt).await, position).await else { return };
            if reached > position {
                position = reached;
                continue;
            }
            let passed = latest > attempt;
            if (passed && query.attempt.is_some()) || (over && !passed) {
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
        // One that is forgotten has ended, and its logs may go too.
        let claim = shown.state.books().claims().get(self.claim);
        claim.map_or((0, true), |claim| (claim.progress.launches, !claim.is_live()))
    }

    /// What is kept of an attempt's log; nothing if nothing was written yet, or if it cannot be read.
    async fn pieces(&self, attempt: u32) -> Vec<LogPiece> {
        let data_dir = self.door.service.data_dir.clone();
        let (run, worker) = (Run { claim: self.claim, attempt }, self.worker);
        let pieces = tokio::task::spawn_blocking(move || log_pieces(&data_dir, run, worker)).await;
        match pieces {
            Ok(Ok(pieces)) => pieces,
            Ok(Err(error)) => {
                tracing::warn!(job = %run.claim, attempt, %error, "a log cannot be read");
                Vec::new()
            }
            // Only a service that leaves does not run it.
            Err(_) => Vec::new(),
        }
    }

    /// Sends all there is behind a place in a log, and returns the place behind that.
    async fn send(&self, pieces: Vec<LogPiece>, mut position: u64) -> Result<u64, Over> {
        for piece in pieces {
            if piece.start > position {
                return Err(Over);
            }
            position = self.send_piece(piece, position).await?;
        }
        Ok(position)
    }

    async fn send_piece(&self, piece: LogPiece, mut position: u64) -> Result<u64, Over> {
        if position >= piece.end {
            return Ok(position);
        }
        let mut file = File::from_std(piece.file);
        if file.seek(SeekFrom::Start(position - piece.start)).await.is_err() {
            return Err(Over);
        }
        loop {
            let mut buffer = vec![0; CHUNK];
            let read = file.read(&mut buffer).await.map_err(|_| Over)?;
            if read == 0 {
                return Ok(position);
            }
            buffer.truncate(read);
            self.sender.send(Ok(Bytes::from(buffer))).await.map_err(|_| Over)?;
            position += read as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes 100 to 130 are kept.
    fn beginning(offset: Option<u64>, tail: Option<u64>) -> (u64, u64) {
        let file = || tempfile::tempfile().unwrap();
        let pieces = [LogPiece { start: 100, end: 110, file: file() }, LogPiece { start: 110, end: 130, file: file() }];
        let query = LogQuery { worker: None, attempt: None, offset, tail, follow: None };
        let Beginning { offset, cut } = Beginning::of(&pieces, &query);
        (offset, cut)
    }

    #[test]
    fn an_answer_begins_with_what_is_kept_and_tells_what_is_missing() {
        assert_eq!(beginning(None, None), (100, 100));
        assert_eq!(beginning(Some(90), None), (100, 10));
        assert_eq!(beginning(Some(105), None), (105, 0));
        assert_eq!(beginning(Some(500), None), (500, 0), "it may come yet");
    }

    #[test]
    fn a_tail_counts_over_all_that_is_kept() {
        assert_eq!(beginning(None, Some(5)), (125, 0));
        assert_eq!(beginning(None, Some(25)), (105, 0));
        assert_eq!(beginning(None, Some(1000)), (100, 100));
    }
}
