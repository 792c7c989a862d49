//! What a job's workers wrote, as it is or as it comes.

use std::io::SeekFrom;
use std::sync::Arc;
use std::time::Duration;

use api::{FieldFault, JobId, Problem};
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use cluster::{ClaimId, Run};
use executors::{LogBell, LogFollower, LogPiece, log_pieces};
use serde::Deserialize;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio::sync::{Notify, mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use utoipa::IntoParams;

use super::Door;
use super::array_logs::ArrayLogs;
use super::errors::{Failure, Named, Query, Refusal};
use super::jobs::check_details;
use super::peer::By;
use crate::core::no_job;

/// How often a log that is followed is looked at where the machine does not say that it has changed.
pub(super) const GLANCE: Duration = Duration::from_secs(1);
/// How often where it does, in case it does not know of every change, as on a file system of another machine.
pub(super) const RARE_GLANCE: Duration = Duration::from_secs(60);
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
    /// Of an array: the lines of all tasks, each with its task's number, like `[3] `. `attempt`, `offset` and `tail` do not
    /// go with it.
    all: Option<bool>,
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
    if query.all.unwrap_or(false) {
        return all_logs(door, id, &query);
    }
    let (claim, latest) = claim_of(&door, id)?;
    // The first launch may be waited for.
    if let Some(attempt) = query.attempt.filter(|&attempt| attempt == 0 || attempt > latest.max(1)) {
        let fault =
            FieldFault::new("attempt", format!("job {id} was launched {latest} times, there is no attempt {attempt}"));
        return Err(Failure(Problem::from(fault)));
    }
    let first = query.attempt.unwrap_or(latest.max(1));
    let (sender, receiver) = mpsc::channel(16);
    let bell = door.log_bell.clone().filter(|_| query.follow.unwrap_or(false));
    let following = Following::new(door, claim, query.worker.unwrap_or(0), sender, bell.as_ref());
    let (pieces, _) = following.pieces(first).await;
    let beginning = Beginning::of(&pieces, &query);
    tokio::spawn(following.run(first, pieces, beginning.offset, query));
    let headers = [
        (header::CONTENT_TYPE, "text/plain; charset=utf-8".to_string()),
        (HeaderName::from_static(OFFSET), beginning.offset.to_string()),
        (HeaderName::from_static(CUT), beginning.cut.to_string()),
    ];
    Ok((headers, Body::from_stream(ReceiverStream::new(receiver))).into_response())
}

/// What all tasks of an array write.
fn all_logs(door: Door, id: JobId, query: &LogQuery) -> Result<Response, Failure> {
    let stray =
        [("attempt", query.attempt.is_some()), ("offset", query.offset.is_some()), ("tail", query.tail.is_some())];
    if let Some((field, _)) = stray.into_iter().find(|(_, is_said)| *is_said) {
        return Err(Failure(Problem::from(FieldFault::new(field, "expected nothing beside `all`"))));
    }
    let tasks: Vec<(ClaimId, u32)> = {
        let shown = door.service.replica.read();
        let claims = shown.ledger.claims(id).ok_or_else(|| no_job(&shown.ledger, id))?;
        let index = |claim: ClaimId| shown.ledger.id(claim).task.unwrap_or(0);
        claims.map(ClaimId).map(|claim| (claim, index(claim))).collect()
    };
    let (sender, receiver) = mpsc::channel(16);
    let logs = ArrayLogs::new(door, tasks.into_iter(), query.worker.unwrap_or(0), sender);
    tokio::spawn(logs.run(query.follow.unwrap_or(false)));
    let headers = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
    Ok((headers, Body::from_stream(ReceiverStream::new(receiver))).into_response())
}

/// Where the first byte of an answer lies in all that was written.
pub(super) const OFFSET: &str = "moira-log-offset";
/// How many bytes that were asked for are not kept any more.
pub(super) const CUT: &str = "moira-log-cut";

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
pub(super) fn claim_of(door: &Door, id: JobId) -> Result<(ClaimId, u32), Problem> {
    let shown = door.service.replica.read();
    let claims = shown.ledger.claims(id).ok_or_else(|| no_job(&shown.ledger, id))?;
    if claims.len() != 1 {
        let first = shown.ledger.id(ClaimId(claims.start));
        return Err(Problem::conflict(format!("job {id} is an array: say which task, like {first}, or all")));
    }
    let claim = ClaimId(claims.start);
    Ok((claim, shown.state.books().claim(claim).progress.launches))
}

/// A bell that rings for those who follow logs. Without one they look by themselves.
pub(crate) fn hang_bell() -> Option<Arc<LogBell>> {
    LogBell::hang()
        .inspect_err(|error| tracing::warn!(%error, "changes of logs cannot be watched: followers look once a second"))
        .ok()
}

struct Following {
    door: Door,
    claim: ClaimId,
    worker: u32,
    sender: mpsc::Sender<std::io::Result<Bytes>>,
    /// Told when there may be more to read.
    more: Arc<Notify>,
    follower: Option<Arc<LogFollower>>,
}

/// The answer ends here: nobody listens any more, or what comes next was dropped before it could be sent. Whoever asks
/// again from there is told how much that was.
pub(super) struct Over;

/// The latest attempt, and whether the job has ended.
type Stage = (u32, bool);

impl Following {
    fn new(
        door: Door,
        claim: ClaimId,
        worker: u32,
        sender: mpsc::Sender<std::io::Result<Bytes>>,
        bell: Option<&Arc<LogBell>>,
    ) -> Following {
        let more = Arc::new(Notify::new());
        let told = more.clone();
        let follower = bell.map(|bell| Arc::new(bell.follower(move || told.notify_one())));
        Following { door, claim, worker, sender, more, follower }
    }

    /// Sends what is kept behind a place, and where that is wanted what follows: one attempt's log after the other, until
    /// the job has ended.
    async fn run(self, first: u32, pieces: Vec<LogPiece>, offset: u64, query: LogQuery) {
        let mut attempt = first;
        let Ok(mut position) = self.send(pieces, offset).await else { return };
        if !query.follow.unwrap_or(false) {
            return;
        }
        let mut versions = self.door.service.replica.version();
        loop {
            // Asked before the files are read: what was written before the end is then seen.
            versions.mark_unchanged();
            let (latest, over) = self.stage();
            let (pieces, is_told) = self.pieces(attempt).await;
            let Ok(reached) = self.send(pieces, position).await else { return };
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
                continue;
            }
            let patience = if is_told { RARE_GLANCE } else { GLANCE };
            if self.until_more(&mut versions, (latest, over), patience).await.is_err() {
                return;
            }
        }
    }

    /// Waits until there may be more to read, or the job is at another stage.
    async fn until_more(
        &self,
        versions: &mut watch::Receiver<u64>,
        stage: Stage,
        patience: Duration,
    ) -> Result<(), Over> {
        let mut leaving = self.door.leaving.clone();
        let glance = tokio::time::sleep(patience);
        tokio::pin!(glance);
        loop {
            if *leaving.borrow() {
                return Err(Over);
            }
            tokio::select! {
                () = self.more.notified() => return Ok(()),
                () = &mut glance => return Ok(()),
                () = self.sender.closed() => return Err(Over),
                _ = leaving.changed() => return Err(Over),
                changed = versions.changed() => {
                    changed.map_err(|_| Over)?;
                    if self.stage() != stage {
                        return Ok(());
                    }
                }
            }
        }
    }

    fn stage(&self) -> Stage {
        let shown = self.door.service.replica.read();
        // One that is forgotten has ended, and its logs may go too.
        let claim = shown.state.books().claims().get(self.claim);
        claim.map_or((0, true), |claim| (claim.progress.launches, !claim.is_live()))
    }

    /// What is kept of an attempt's log; nothing if nothing was written yet, or if it cannot be read. And whether it will
    /// be told when there is more.
    async fn pieces(&self, attempt: u32) -> (Vec<LogPiece>, bool) {
        let (data_dir, follower) = (self.door.service.data_dir.clone(), self.follower.clone());
        let (run, worker) = (Run { claim: self.claim, attempt }, self.worker);
        let look = move || {
            let listens = follower.map(|follower| follower.listen(&data_dir, run, worker));
            (log_pieces(&data_dir, run, worker), listens)
        };
        // Only a service that leaves does not run it.
        let Ok((pieces, listens)) = tokio::task::spawn_blocking(look).await else { return (Vec::new(), true) };
        let is_told = match listens {
            Some(Err(error)) => {
                tracing::warn!(job = %run.claim, attempt, %error, "a log cannot be watched: it is looked at every second");
                false
            }
            listens => listens.is_some(),
        };
        let pieces = pieces.unwrap_or_else(|error| {
            tracing::warn!(job = %run.claim, attempt, %error, "a log cannot be read");
            Vec::new()
        });
        (pieces, is_told)
    }

    async fn send(&self, pieces: Vec<LogPiece>, position: u64) -> Result<u64, Over> {
        send_pieces(&self.sender, pieces, position, &mut Nobody).await
    }
}

type Sender = mpsc::Sender<std::io::Result<Bytes>>;

/// Sees how what is sent is taken.
pub(super) trait Witness {
    /// One more part was taken.
    async fn accepted(&mut self);
}

/// Nobody who would like to know.
struct Nobody;

impl Witness for Nobody {
    async fn accepted(&mut self) {}
}

/// Sends all there is behind a place in a log, and returns the place behind that.
pub(super) async fn send_pieces(
    sender: &Sender,
    pieces: Vec<LogPiece>,
    mut position: u64,
    witness: &mut impl Witness,
) -> Result<u64, Over> {
    for piece in pieces {
        if piece.start > position {
            return Err(Over);
        }
        position = send_piece(sender, piece, position, witness).await?;
    }
    Ok(position)
}

async fn send_piece(
    sender: &Sender,
    piece: LogPiece,
    mut position: u64,
    witness: &mut impl Witness,
) -> Result<u64, Over> {
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
        sender.send(Ok(Bytes::from(buffer))).await.map_err(|_| Over)?;
        witness.accepted().await;
        position += read as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes 100 to 130 are kept.
    fn beginning(offset: Option<u64>, tail: Option<u64>) -> (u64, u64) {
        let file = || tempfile::tempfile().unwrap();
        let pieces = [LogPiece { start: 100, end: 110, file: file() }, LogPiece { start: 110, end: 130, file: file() }];
        let query = LogQuery { worker: None, attempt: None, offset, tail, follow: None, all: None };
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

    #[derive(Default)]
    struct Counter(usize);

    impl Witness for Counter {
        async fn accepted(&mut self) {
            self.0 += 1;
        }
    }

    #[tokio::test]
    async fn a_witness_sees_every_part_that_is_taken_and_not_only_the_last() {
        let piece = || {
            let mut file = tempfile::tempfile().unwrap();
            std::io::Write::write_all(&mut file, &vec![7; 3 * CHUNK]).unwrap();
            file
        };
        let size = 3 * CHUNK as u64;
        let pieces = vec![
            LogPiece { start: 0, end: size, file: piece() },
            LogPiece { start: size, end: 2 * size, file: piece() },
        ];
        let (sender, mut receiver) = mpsc::channel::<std::io::Result<Bytes>>(1);
        let reader = tokio::spawn(async move {
            let mut bytes = 0;
            while let Some(Ok(part)) = receiver.recv().await {
                bytes += part.len() as u64;
            }
            bytes
        });
        let mut counter = Counter::default();
        let reached = send_pieces(&sender, pieces, 0, &mut counter).await;
        drop(sender);
        assert_eq!((reached.ok(), reader.await.unwrap(), counter.0), (Some(2 * size), 2 * size, 6));
    }
}
