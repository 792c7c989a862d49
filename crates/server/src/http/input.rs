//! What is sent to the standard input of a job, or typed at its terminal. Only its owner may send it.

use api::{InputReply, JobId, Problem, Window};
use axum::Json;
use axum::extract::{Request, State};
use axum::http::header;
use cluster::ClaimId;
use executors::{Input, InputError};
use serde::Deserialize;
use utoipa::IntoParams;

use super::Door;
use super::errors::{Body, Failure, Named, Query, Refusals, body_of};
use super::peer::By;
use crate::core::{no_job, not_yours};
use crate::fact::Caller;

/// So much is taken for a job that does not run: a user may have many of them.
const MOST_BEFORE_START: u64 = 1 << 20;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct InputQuery {
    /// Where in all of the input the body begins. What was taken before is passed over.
    offset: u64,
    /// Nothing follows.
    end: Option<bool>,
}

/// Sends bytes to the standard input of a job that was submitted with `stdin`. Its first worker reads them; another run of
/// it reads them from the beginning.
#[utoipa::path(post, path = "/v1/jobs/{id}/input", params(("id" = String, Path), InputQuery),
    request_body(content = String, content_type = "application/octet-stream"),
    responses((status = 200, body = InputReply), Refusals))]
pub(crate) async fn input(
    State(door): State<Door>,
    By(caller): By,
    Named(id): Named,
    Query(query): Query<InputQuery>,
    request: Request,
) -> Result<Json<InputReply>, Failure> {
    check_kind(&request)?;
    // Who may not send it is told so before anything is read.
    taker(&door, &caller, id)?;
    let bytes = body_of(request).await?;
    if !bytes.is_empty() {
        door.check_room()?;
    }
    let Taker { input, runs, .. } = taker(&door, &caller, id)?;
    if !runs && query.offset.saturating_add(bytes.len() as u64) > MOST_BEFORE_START {
        let detail = format!("job {id} has not started: at most {} KiB of its input are kept", MOST_BEFORE_START >> 10);
        return Err(Failure(Problem::new(429, "not-started", detail)));
    }
    // It is kept like the job itself, and a user may submit and cancel many of them.
    if !runs && !door.admits_bytes(&caller, bytes.len() as u64) {
        let name = &caller.name;
        let detail =
            format!("{name} sends more input to jobs that have not started than allowed: try again in a moment");
        return Err(Failure(Problem::new(429, "too-fast", detail)));
    }
    let taking = move || input.take(query.offset, &bytes, query.end.unwrap_or(false));
    let taken = tokio::task::spawn_blocking(taking).await;
    let taken = taken.map_err(|_| Problem::new(503, "leaving", "the service is shutting down"))?;
    Ok(Json(InputReply { length: taken.map_err(refusal)? }))
}

/// Input is bytes, and says so.
pub(super) fn check_kind(request: &Request) -> Result<(), Problem> {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if kind == "application/octet-stream" {
        return Ok(());
    }
    let detail = "Content-Type: expected application/octet-stream";
    Err(Problem::new(415, "unsupported-media-type", detail))
}

/// Tells the terminal of a job that was submitted with `pty` how large it is from now on. Programs there get SIGWINCH.
#[utoipa::path(post, path = "/v1/jobs/{id}/window", params(("id" = String, Path)), request_body = Window,
    responses((status = 200, body = Window), Refusals))]
pub(crate) async fn window(
    State(door): State<Door>,
    By(caller): By,
    Named(id): Named,
    Body(window): Body<Window>,
) -> Result<Json<Window>, Failure> {
    let (rows, columns) = window.check(None).map_err(Problem::from)?;
    let Taker { input, has_terminal, .. } = taker(&door, &caller, id)?;
    if !has_terminal {
        let detail = format!("job {id} has no terminal: it was submitted without `pty`");
        return Err(Failure(Problem::conflict(detail)));
    }
    let noting = move || input.set_window(executors::Window { rows, columns });
    let noted = tokio::task::spawn_blocking(noting).await;
    noted.map_err(|_| Problem::new(503, "leaving", "the service is shutting down"))?.map_err(refusal)?;
    Ok(Json(window))
}

/// Whoever takes the input.
struct Taker {
    input: Input,
    /// Whether it has devices.
    runs: bool,
    has_terminal: bool,
}

fn taker(door: &Door, caller: &Caller, id: JobId) -> Result<Taker, Problem> {
    let shown = door.service.replica.read();
    let claims = shown.ledger.claims(id).ok_or_else(|| no_job(&shown.ledger, id))?;
    let acceptance = shown.ledger.acceptance(ClaimId(claims.start)).ok_or_else(|| no_job(&shown.ledger, id))?;
    if acceptance.owner.uid != caller.uid {
        return Err(not_yours(id));
    }
    let Some(name) = &acceptance.program.input else {
        return Err(Problem::conflict(format!("job {id} takes no input: it was submitted without `stdin`")));
    };
    let books = shown.state.books();
    let mut live = claims.map(|claim| books.claim(ClaimId(claim))).filter(|claim| claim.is_live()).peekable();
    if live.peek().is_none() {
        return Err(Problem::conflict(format!("job {id} has ended")));
    }
    let runs = live.any(|claim| claim.holds().is_some());
    let has_terminal = acceptance.program.terminal.is_some();
    Ok(Taker { input: Input::of(&door.service.data_dir, name), runs, has_terminal })
}

pub(super) fn refusal(error: InputError) -> Problem {
    match error {
        InputError::Gap { .. } => Problem::new(409, "input-gap", error.to_string()),
        InputError::Ended { .. } => Problem::conflict(error.to_string()),
        InputError::TooMuch => Problem::new(413, "too-large", error.to_string()),
        InputError::Disk(_) => Problem::new(503, "not-durable", error.to_string()),
    }
}
