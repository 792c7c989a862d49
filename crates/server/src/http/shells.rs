//! Shells beside a running job. Only the job's owner may open one, look at it and type there.

use std::sync::Arc;
use std::time::Duration;

use api::{InputReply, JobId, JobState, Problem, ShellRequest, ShellView, Window};
use axum::Json;
use axum::body::{Body as Content, Bytes};
use axum::extract::{FromRequestParts, Path, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use cluster::Run;
use executors::{LogFollower, LogPiece, Shell, ShellEnd, ShellError, ShellOrder};
use serde::Deserialize;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use utoipa::IntoParams;

use super::Door;
use super::errors::{Body, Failure, Named, Query, Refusals, body_of};
use super::input::{check_kind, refusal};
use super::logs::{CUT, GLANCE, OFFSET, Witness, claim_of, send_pieces};
use super::peer::By;
use crate::core::{Ask, not_yours};
use crate::fact::Caller;
use crate::views::state_of;

/// How often a supervisor is told that somebody still looks at a shell.
const GREET_EVERY: Duration = Duration::from_secs(5);

/// Opens a shell where the first worker of a running job is: as its user, with its devices, environment, working directory
/// and limits. It ends when its program does, when nobody has read its output for 30 seconds, and with the job.
#[utoipa::path(post, path = "/v1/jobs/{id}/shells", params(("id" = String, Path)), request_body = ShellRequest,
    responses((status = 201, body = ShellView), Refusals))]
pub(crate) async fn open(
    State(door): State<Door>,
    By(caller): By,
    Named(id): Named,
    Body(request): Body<ShellRequest>,
) -> Result<Response, Failure> {
    request.check().map_err(Problem::from)?;
    let (rows, columns) = request.window.check(Some("window")).map_err(Problem::from)?;
    run_of(&door, &caller, id)?;
    // Each is on record, and as easily asked for as a job is submitted.
    let ceiling = door.directory.access().ceiling_of(&caller.name, caller.role);
    if !door.submissions.admits(caller.uid, 1.0, ceiling.submissions_per_second, std::time::Instant::now()) {
        let detail = format!("{} opens shells faster than allowed: try again in a moment", caller.name);
        return Err(Failure(Problem::new(429, "ceiling", detail)));
    }
    door.service.inbox.ask(caller.clone(), Ask::OpenShell(id)).await?;
    // It may have ended since.
    let run = run_of(&door, &caller, id)?;
    let order =
        ShellOrder { command: request.command, window: executors::Window { rows, columns }, term: request.term };
    let data_dir = door.service.data_dir.clone();
    let opened = blocking(move || Shell::open(&data_dir, run, &order)).await?;
    let name = opened.map_err(|error| match error {
        ShellError::NotRunning | ShellError::Old => Problem::conflict(format!("job {id}: {error}")),
        ShellError::TooMany => Problem::new(429, "too-many", format!("job {id}: {error}")),
        ShellError::Disk(_) | ShellError::Executor(_) => Problem::new(503, "not-durable", error.to_string()),
    })?;
    tracing::info!(job = %id, by = caller.name, "a shell was opened");
    let location = [(header::LOCATION, format!("/v1/jobs/{id}/shells/{name}"))];
    Ok((StatusCode::CREATED, location, Json(view(&name, None))).into_response())
}

/// Whether a shell goes on, and how it ended. Of those that have ended the last four can be asked for, a minute long, and not
/// after the job.
#[utoipa::path(get, path = "/v1/jobs/{id}/shells/{shell}", params(("id" = String, Path), ("shell" = String, Path)),
    responses((status = 200, body = ShellView), Refusals))]
pub(crate) async fn show(
    State(door): State<Door>,
    By(caller): By,
    NamedShell(id, name): NamedShell,
) -> Result<Json<ShellView>, Failure> {
    let shell = find(&door, &caller, id, &name)?;
    Ok(Json(view(&name, blocking(move || shell.end()).await?)))
}

/// Hangs up on a shell: its user has left.
#[utoipa::path(delete, path = "/v1/jobs/{id}/shells/{shell}", params(("id" = String, Path), ("shell" = String, Path)),
    responses((status = 200, body = ShellView), Refusals))]
pub(crate) async fn leave(
    State(door): State<Door>,
    By(caller): By,
    NamedShell(id, name): NamedShell,
) -> Result<Json<ShellView>, Failure> {
    let shell = find(&door, &caller, id, &name)?;
    let left = blocking(move || shell.hang_up().map(|()| shell.end())).await?;
    let end = left.map_err(|error| Problem::new(503, "not-durable", error.to_string()))?;
    Ok(Json(view(&name, end)))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct PlaceQuery {
    /// Where in all of it the part begins that is meant.
    offset: u64,
}

/// Types bytes at a shell.
#[utoipa::path(post, path = "/v1/jobs/{id}/shells/{shell}/input",
    params(("id" = String, Path), ("shell" = String, Path), PlaceQuery),
    request_body(content = String, content_type = "application/octet-stream"),
    responses((status = 200, body = InputReply), Refusals))]
pub(crate) async fn input(
    State(door): State<Door>,
    By(caller): By,
    NamedShell(id, name): NamedShell,
    Query(query): Query<PlaceQuery>,
    request: Request,
) -> Result<Json<InputReply>, Failure> {
    check_kind(&request)?;
    find(&door, &caller, id, &name)?;
    let bytes = body_of(request).await?;
    if !bytes.is_empty() {
        door.check_room()?;
    }
    let shell = find_open(&door, &caller, id, &name).await?;
    let taken = blocking(move || shell.input().take(query.offset, &bytes, false)).await?;
    Ok(Json(InputReply { length: taken.map_err(refusal)? }))
}

/// Tells the terminal of a shell how large it is from now on.
#[utoipa::path(post, path = "/v1/jobs/{id}/shells/{shell}/window", params(("id" = String, Path), ("shell" = String, Path)),
    request_body = Window, responses((status = 200, body = Window), Refusals))]
pub(crate) async fn window(
    State(door): State<Door>,
    By(caller): By,
    NamedShell(id, name): NamedShell,
    Body(window): Body<Window>,
) -> Result<Json<Window>, Failure> {
    let (rows, columns) = window.check(None).map_err(Problem::from)?;
    let shell = find_open(&door, &caller, id, &name).await?;
    let noted = blocking(move || shell.input().set_window(executors::Window { rows, columns })).await?;
    noted.map_err(refusal)?;
    Ok(Json(window))
}

/// What is to be seen in a shell, as it comes, until it has ended. The headers are those of `/v1/jobs/{id}/logs`.
#[utoipa::path(get, path = "/v1/jobs/{id}/shells/{shell}/output",
    params(("id" = String, Path), ("shell" = String, Path), PlaceQuery),
    responses((status = 200, body = String, content_type = "application/octet-stream"), Refusals))]
pub(crate) async fn output(
    State(door): State<Door>,
    By(caller): By,
    NamedShell(id, name): NamedShell,
    Query(query): Query<PlaceQuery>,
) -> Result<Response, Failure> {
    let shell = find(&door, &caller, id, &name)?;
    let more = Arc::new(Notify::new());
    let told = more.clone();
    let follower = door.log_bell.as_ref().map(|bell| Arc::new(bell.follower(move || told.notify_one())));
    let (sender, receiver) = mpsc::channel(16);
    let showing = Showing { door, shell, sender, more, follower };
    let (pieces, _) = showing.look().await?;
    let kept = pieces.first().map_or(0, |piece| piece.start);
    let begin = query.offset.max(kept);
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_string()),
        (HeaderName::from_static(OFFSET), begin.to_string()),
        (HeaderName::from_static(CUT), (begin - query.offset).to_string()),
    ];
    tokio::spawn(showing.run(begin));
    Ok((headers, Content::from_stream(ReceiverStream::new(receiver))).into_response())
}

/// Somebody who looks at a shell.
struct Showing {
    door: Door,
    shell: Shell,
    sender: mpsc::Sender<std::io::Result<Bytes>>,
    more: Arc<Notify>,
    follower: Option<Arc<LogFollower>>,
}

impl Showing {
    async fn run(self, mut position: u64) {
        let mut leaving = self.door.leaving.clone();
        let mut greeter = Greeter { shell: self.shell.clone(), greeted: None };
        loop {
            greeter.accepted().await;
            let Ok((pieces, is_over)) = self.look().await else { return };
            let Ok(reached) = send_pieces(&self.sender, pieces, position, &mut greeter).await else { return };
            if reached == position && is_over {
                return;
            }
            if std::mem::replace(&mut position, reached) != reached {
                continue;
            }
            let patience = if self.follower.is_some() { GREET_EVERY } else { GLANCE };
            tokio::select! {
                () = self.more.notified() => {}
                () = tokio::time::sleep(patience) => {}
                () = self.sender.closed() => return,
                _ = leaving.changed() => return,
            }
        }
    }

    /// What is kept of it, and whether nothing more comes.
    async fn look(&self) -> Result<(Vec<LogPiece>, bool), Problem> {
        let (shell, follower) = (self.shell.clone(), self.follower.clone());
        let look = move || {
            if let Some(Err(error)) = follower.map(|follower| follower.listen_to_shell(&shell)) {
                tracing::warn!(%error, "a shell cannot be watched: it is looked at now and then");
            }
            // Asked before the output is read: all of it is seen then.
            let is_over = shell.end().is_some() || !shell.exists();
            (shell.output().unwrap_or_default(), is_over)
        };
        blocking(look).await
    }
}

/// Tells a supervisor now and then that somebody reads: all there is to be seen may take a slow reader long.
struct Greeter {
    shell: Shell,
    greeted: Option<Instant>,
}

impl Witness for Greeter {
    async fn accepted(&mut self) {
        if self.greeted.is_none_or(|at| at.elapsed() >= GREET_EVERY) {
            self.greeted = Some(Instant::now());
            let shell = self.shell.clone();
            // One that is gone hears nothing.
            let _ = blocking(move || shell.greet()).await;
        }
    }
}

fn view(name: &str, end: Option<ShellEnd>) -> ShellView {
    let ended = end.is_some();
    let ShellEnd { exit, trouble } = end.unwrap_or_default();
    ShellView { id: name.into(), ended, exit_code: exit.code, signal: exit.signal, message: trouble }
}

/// The run of a job that runs now and belongs to the caller.
fn run_of(door: &Door, caller: &Caller, id: JobId) -> Result<Run, Problem> {
    let (claim, _) = claim_of(door, id)?;
    let shown = door.service.replica.read();
    let acceptance = shown.ledger.acceptance(claim).ok_or_else(|| crate::core::no_job(&shown.ledger, id))?;
    // A shell is the owner: nobody else may be that.
    if acceptance.owner.uid != caller.uid {
        return Err(not_yours(id));
    }
    let claim = shown.state.books().claim(claim);
    let state = state_of(claim).0;
    if !matches!(state, JobState::Running | JobState::Stopping) {
        let word = if state.is_final() { "has ended" } else { "has not started" };
        return Err(Problem::conflict(format!("job {id} {word}: a shell needs a job that runs")));
    }
    Ok(claim.run())
}

fn find(door: &Door, caller: &Caller, id: JobId, name: &str) -> Result<Shell, Problem> {
    let run = run_of(door, caller, id)?;
    let shell = Shell::find(&door.service.data_dir, run, name);
    shell.ok_or_else(|| Problem::not_found(format!("job {id} has no such shell")))
}

async fn find_open(door: &Door, caller: &Caller, id: JobId, name: &str) -> Result<Shell, Problem> {
    let shell = find(door, caller, id, name)?;
    let asked = shell.clone();
    match blocking(move || asked.end()).await? {
        None => Ok(shell),
        Some(_) => Err(Problem::conflict("the shell has ended")),
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Problem> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| Problem::new(503, "leaving", "the service is shutting down"))
}

/// The job and the shell that the path names.
#[derive(Debug)]
pub(crate) struct NamedShell(JobId, String);

impl<S: Send + Sync> FromRequestParts<S> for NamedShell {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<NamedShell, Failure> {
        let path = Path::<(String, String)>::from_request_parts(parts, state).await;
        let Path((id, shell)) = path.map_err(|rejection| Failure(Problem::malformed(rejection.body_text())))?;
        let id = id.parse().map_err(|message: String| Failure(Problem::not_found(message)))?;
        Ok(NamedShell(id, shell))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::time::SystemTime;

    #[tokio::test]
    async fn whoever_takes_long_to_read_all_there_is_greets_now_and_then() {
        let data = tempfile::tempdir().unwrap();
        let (run, name) = (Run { claim: cluster::ClaimId(7), attempt: 1 }, "0123456789abcdef0123456789abcdef");
        let dir = data.path().join("runs/7.1/shells").join(name);
        fs::create_dir_all(&dir).unwrap();
        let note = dir.join("client");
        let shell = Shell::find(data.path(), run, name).unwrap();
        let mut greeter = Greeter { shell, greeted: None };
        for (greeted, greets) in
            [(None, true), (Some(Instant::now() + GREET_EVERY), false), (Instant::now().checked_sub(GREET_EVERY), true)]
        {
            File::create(&note).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
            greeter.greeted = greeted;
            greeter.accepted().await;
            let has_greeted = fs::metadata(&note).unwrap().modified().unwrap() != SystemTime::UNIX_EPOCH;
            assert_eq!(has_greeted, greets, "{greeted:?}");
        }
    }
}
