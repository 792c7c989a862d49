//! What happens, as it happens: server-sent events. Whoever lost the connection goes on behind the last number it saw.

use std::convert::Infallible;
use std::sync::Arc;

use api::{EventView, FieldFault, JobId, Problem};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, KeepAliveStream, Sse};
use cluster::{ClaimId, Time};
use serde::Deserialize;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use utoipa::IntoParams;

use super::Door;
use super::errors::{Failure, Query, Refusal};
use super::peer::By;
use crate::fact::{Caller, Fact};
use crate::replica::Line;
use crate::views;

/// So many entries are read from the journal at a time.
const PAGE: usize = 1000;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventQuery {
    /// Begin behind this number, if it is still in the journal; without it, with what happens from now on.
    after: Option<u64>,
    /// Only what concerns this job.
    job: Option<String>,
}

/// A stream of events. Each has its number as `id`, its kind as `event` and an `EventView` as `data`.
#[utoipa::path(get, path = "/v1/events", params(EventQuery),
    responses((status = 200, body = EventView, content_type = "text/event-stream"),
        Refusal))]
pub(crate) async fn events(
    State(door): State<Door>,
    By(caller): By,
    headers: HeaderMap,
    Query(query): Query<EventQuery>,
) -> Result<Sse<KeepAliveStream<ReceiverStream<Result<Event, Infallible>>>>, Failure> {
    let job = query.job.as_deref().map(str::parse::<JobId>).transpose();
    let job = job.map_err(|message| Failure(Problem::from(FieldFault::new("job", message))))?;
    let resumed = headers.get("last-event-id").and_then(|value| value.to_str().ok()?.parse().ok());
    let after = query.after.or(resumed);
    let (sender, receiver) = mpsc::channel(64);
    // From before the answer on: who has it misses nothing that happens afterwards.
    let lines = door.service.replica.lines();
    let last = after.unwrap_or_else(|| door.service.replica.read().seq);
    tokio::spawn(Stream { door, caller, job, sender }.run(lines, last, after.is_some()));
    Ok(Sse::new(ReceiverStream::new(receiver)).keep_alive(KeepAlive::default()))
}

struct Stream {
    door: Door,
    caller: Caller,
    job: Option<JobId>,
    sender: mpsc::Sender<Result<Event, Infallible>>,
}

impl Stream {
    /// Sends what comes behind the entry `last`. If it is `behind`, entries lie between that one and the first of `lines`.
    async fn run(self, mut lines: Receiver<Arc<Vec<Line>>>, mut last: u64, mut behind: bool) {
        let mut leaving = self.door.leaving.clone();
        loop {
            if behind {
                let Ok(reached) = self.catch_up(last).await else { return };
                last = reached;
                behind = false;
            }
            let batch: Arc<Vec<Line>> = tokio::select! {
                batch = lines.recv() => match batch {
                    Ok(batch) => batch,
                    Err(RecvError::Lagged(_)) => {
                        behind = true;
                        continue;
                    }
                    Err(RecvError::Closed) => return,
                },
                _ = leaving.changed() => return,
            };
            for line in batch.iter().filter(|line| line.seq > last) {
                if self.send(line).await.is_err() {
                    return;
                }
            }
            last = batch.last().map_or(last, |line| line.seq.max(last));
        }
    }

    /// Sends what the journal has behind a number, and returns the last.
    async fn catch_up(&self, mut last: u64) -> Result<u64, ()> {
        loop {
            let entries = self.door.service.entries(last, PAGE);
            let entries = entries.map_err(|error| tracing::warn!(%error, "a stream of events ends"))?;
            let Some(end) = entries.last().map(|entry| entry.seq) else { return Ok(last) };
            for entry in entries {
                let Ok(fact) = serde_json::from_str::<Fact>(&entry.text) else { continue };
                let line = Line { seq: entry.seq, at: Time::from_millis(entry.at), decision: 0, fact };
                self.send(&line).await?;
            }
            last = end;
        }
    }

    async fn send(&self, line: &Line) -> Result<(), ()> {
        let Some(view) = self.view(line).filter(|view| self.wants(view)) else { return Ok(()) };
        let data = serde_json::to_string(&view).map_err(drop)?;
        let event = Event::default().id(view.seq.to_string()).event(&view.what).data(data);
        self.sender.send(Ok(event)).await.map_err(drop)
    }

    /// The event as far as the caller may see it.
    fn view(&self, line: &Line) -> Option<EventView> {
        let shown = self.door.service.replica.read();
        let view = views::event(&shown, line)?;
        let Some(job) = view.job.as_deref().and_then(|job| job.parse::<JobId>().ok()) else { return Some(view) };
        let owner = shown.ledger.claims(job).and_then(|claims| shown.ledger.acceptance(ClaimId(claims.start)));
        let is_whole = owner.is_some_and(|acceptance| self.door.shows_all(&self.caller, &acceptance.owner));
        if is_whole { Some(view) } else { views::event_summary(view) }
    }

    fn wants(&self, view: &EventView) -> bool {
        let Some(wanted) = self.job else { return true };
        let found = view.job.as_deref().and_then(|job| job.parse::<JobId>().ok());
        found.is_some_and(|found| found == wanted || (wanted.task.is_none() && found.number == wanted.number))
    }
}
