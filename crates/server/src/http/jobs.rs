//! Jobs: submitted, listed, shown, changed, explained.

use std::sync::Arc;
use std::time::{Duration, Instant};

use api::{
    Explanation, FieldFault, JobId, JobPage, JobRequest, JobState, JobView, KubeflowReport, PriorityRequest, Problem,
    ProgressReply, ProgressReport, Scene,
};
use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use cluster::ClaimId;
use executors::{Account, Input};
use nix::unistd::{Uid, User, geteuid};
use plan::Claim;
use serde::Deserialize;
use utoipa::IntoParams;

use super::Door;
use super::errors::{Body, Failure, Named, Query, Refusal, Refusals, text_of};
use super::peer::By;
use crate::access::Ceiling;
use crate::core::{Ask, Done, Submission, no_job, not_yours};
use crate::fact::{Acceptance, Caller};
use crate::notification::check_url;
use crate::replica::Shown;
use crate::size::size_of;
use crate::{explain as why, views};

/// A page is never longer.
const LONGEST_PAGE: usize = 1000;
const USUAL_PAGE: usize = 100;
const LONGEST_KEY: usize = 256;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListQuery {
    /// Only jobs in these states, separated by commas; `live` is all that have not ended.
    state: Option<String>,
    owner: Option<String>,
    queue: Option<String>,
    name: Option<String>,
    /// Only jobs of whoever asks.
    mine: Option<bool>,
    /// At most so many.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// The `next` of the page before.
    after: Option<String>,
}

/// Jobs, the newest first.
#[utoipa::path(get, path = "/v1/jobs", params(ListQuery), responses(
    (status = 200, body = JobPage), Refusal,
))]
pub(crate) async fn list(
    State(door): State<Door>,
    By(caller): By,
    Query(query): Query<ListQuery>,
) -> Result<Json<JobPage>, Failure> {
    let states = query.state.as_deref().map(states).transpose()?;
    let limit = query.limit.unwrap_or(USUAL_PAGE);
    if !(1..=LONGEST_PAGE).contains(&limit) {
        let fault = FieldFault::new("limit", format!("expected from 1 to {LONGEST_PAGE}, found {limit}"));
        return Err(Failure(Problem::from(fault)));
    }
    let after = query.after.as_deref().map(str::parse::<JobId>).transpose();
    let after = after.map_err(|message| Failure(Problem::from(FieldFault::new("after", message))))?;
    let now = door.service.clock.now();
    let shown = door.service.replica.read();
    let before = after.map_or(u32::MAX, |after| after.number);
    let books = shown.state.books();
    // Looked at before anything is written down of a job: among many thousands few may be wanted.
    let fits = |acceptance: &&Arc<Acceptance>| {
        let spec = || &books.claim(acceptance.first).spec;
        states.as_ref().is_none_or(|states| states.contains(&views::state(&shown, acceptance)))
            && (!query.mine.unwrap_or(false) || acceptance.owner.uid == caller.uid)
            && query.owner.as_ref().is_none_or(|owner| **owner == *spec().user)
            && query.name.as_ref().is_none_or(|name| **name == *spec().name)
            && query.queue.as_ref().is_none_or(|queue| **queue == *books.queues.queue(spec().queue).name)
    };
    let all_are =
        |is: fn(JobState) -> bool| states.as_ref().is_some_and(|states| states.iter().all(|&state| is(state)));
    let claims = books.claims();
    let few_live = claims.live_count() < shown.ledger.submission_count() / 4;
    let is_earlier = |acceptance: &&Arc<Acceptance>| acceptance.first.0 < before;
    let candidates: Box<dyn Iterator<Item = &Arc<Acceptance>> + Send> = if all_are(holds_devices) {
        Box::new(jobs_of(&shown, claims.holders()).into_iter().filter(is_earlier).rev())
    } else if all_are(|state| !state.is_final()) && few_live {
        Box::new(jobs_of(&shown, claims.live()).into_iter().filter(is_earlier).rev())
    } else {
        Box::new(shown.ledger.submissions_before(before).rev())
    };
    let found = candidates.filter(fits).filter_map(|acceptance| {
        let view = views::job(&shown, JobId::job(acceptance.first.0), now, false)?;
        Some(if door.shows_all(&caller, &acceptance.owner) { view } else { views::summary(view) })
    });
    let mut jobs: Vec<JobView> = found.take(limit + 1).collect();
    let next = (jobs.len() > limit).then(|| {
        jobs.pop();
        jobs.last().map(|job| job.id.clone())
    });
    Ok(Json(JobPage { jobs, next: next.flatten() }))
}

/// The jobs that these claims belong to, in order of submission, as the claims are.
fn jobs_of<'a>(shown: &'a Shown, claims: impl Iterator<Item = &'a Claim>) -> Vec<&'a Arc<Acceptance>> {
    let mut jobs: Vec<_> = claims.filter_map(|claim| shown.ledger.acceptance(claim.id)).collect();
    jobs.dedup_by_key(|acceptance| acceptance.first);
    jobs
}

/// Whether a job in this state has a claim that holds devices: few do, however many there are.
fn holds_devices(state: JobState) -> bool {
    matches!(state, JobState::Starting | JobState::Running | JobState::Stopping)
}

fn states(text: &str) -> Result<Vec<JobState>, Failure> {
    let live = || JobState::ALL.into_iter().filter(|state| !state.is_final());
    let mut states = Vec::new();
    for word in text.split(',').filter(|word| !word.is_empty()) {
        match word {
            "live" => states.extend(live()),
            word => {
                let state = word.parse().map_err(|message: String| FieldFault::new("state", message));
                states.push(state.map_err(|fault| Failure(Problem::from(fault)))?);
            }
        }
    }
    Ok(states)
}

/// Submits a job. The answer comes when it is durable.
#[utoipa::path(post, path = "/v1/jobs", request_body = JobRequest,
    params(("Idempotency-Key" = Option<String>, Header, description = "a second submission under the same key is the first one")),
    responses(
        (status = 201, body = JobView),
        (status = 200, body = JobView, description = "it was submitted before, under this key"),
        Refusals,
    ))]
pub(crate) async fn submit(
    State(door): State<Door>,
    By(caller): By,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, Failure> {
    let key = key_of(&headers)?;
    let (text, format) = text_of(request, &()).await?;
    let request = JobRequest::parse(&text, format)?;
    request.check().map_err(Problem::invalid)?;
    let submission = examine(&door, &caller, request, key)?;
    let done = door.service.inbox.ask(caller.clone(), Ask::Submit(Box::new(submission))).await?;
    let Done::Numbered(id, new) = done else { unreachable!("a submission is answered with a number") };
    let status = if new { StatusCode::CREATED } else { StatusCode::OK };
    let Json(view) = show_job(&door, &caller, id)?;
    Ok((status, [(header::LOCATION, format!("/v1/jobs/{id}"))], Json(view)).into_response())
}

pub(super) fn key_of(headers: &HeaderMap) -> Result<Option<String>, Failure> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    let text = value.to_str().ok().filter(|key| !key.is_empty() && key.len() <= LONGEST_KEY);
    let fault = || FieldFault::new("Idempotency-Key", format!("expected 1 to {LONGEST_KEY} printable characters"));
    text.map(|key| Some(key.to_string())).ok_or_else(|| Failure(Problem::from(fault())))
}

/// What was asked for, by whom and in the cluster as it is.
pub(super) fn examine(
    door: &Door,
    caller: &Caller,
    request: JobRequest,
    key: Option<String>,
) -> Result<Submission, Problem> {
    let shown = door.service.replica.read();
    let books = shown.state.books();
    let (user, name) = (caller.name.as_str().into(), request.display_name().as_str().into());
    // What jobs of other names took is asked for anew whenever it is to be guessed.
    let expected = books.history().expected_of_name(&user, &name);
    let claims_of = |id: JobId| shown.ledger.claims(id).map(|claims| claims.map(ClaimId).collect());
    let scene = Scene {
        cluster: &books.cluster,
        queues: &books.queues,
        owner: &caller.name,
        now: door.service.clock.now(),
        zero_unix_ms: shown.ledger.timeline().zero_unix_ms(),
        expected,
        claims_of: &claims_of,
    };
    let ceiling = door.directory.access().ceiling_of(&caller.name, caller.role);
    check_priority(caller, ceiling.priority, request.priority)?;
    check_rate(door, caller, &ceiling, &request)?;
    for (index, notify) in request.notify.iter().enumerate() {
        if let Some(Err(message)) = notify.url.as_deref().map(|url| check_url(url, &door.service.notify_urls)) {
            return Err(Problem::from(FieldFault::new(format!("notify[{index}].url"), message)));
        }
    }
    let takes_input = request.stdin || request.pty.is_some();
    let mut submission = Submission { ceiling, ..Submission::of(request, &scene, account_of(caller)?, key)? };
    if takes_input {
        let name = Input::draw_name().map_err(|error| Problem::new(503, "busy", error.to_string()))?;
        submission.program.input = Some(name);
    }
    Ok(submission)
}

/// Whether a user submits neither too often nor too much. All of it is on record, and pushes out what is there.
fn check_rate(door: &Door, caller: &Caller, ceiling: &Ceiling, request: &JobRequest) -> Result<(), Problem> {
    let now = Instant::now();
    let too_much = |what: &str| {
        let detail = format!("{} submits {what} than allowed: try again in a moment", caller.name);
        Problem::new(429, "ceiling", detail)
    };
    if !door.submissions.admits(caller.uid, 1.0, ceiling.submissions_per_second, now) {
        return Err(too_much("faster"));
    }
    match door.admits_bytes(caller, size_of(request)) {
        true => Ok(()),
        false => Err(too_much("larger jobs")),
    }
}

fn check_priority(caller: &Caller, ceiling: Option<i32>, priority: i32) -> Result<(), Problem> {
    match ceiling.filter(|&ceiling| priority > ceiling) {
        Some(ceiling) => {
            let fault = format!("expected at most {ceiling}, the ceiling of {}, found {priority}", caller.name);
            Err(Problem::from(FieldFault::new("priority", fault)))
        }
        None => Ok(()),
    }
}

/// Whom to run as: the caller, if the service may; itself, if that is the caller.
fn account_of(caller: &Caller) -> Result<Option<Account>, Problem> {
    let own = geteuid();
    if caller.uid == own.as_raw() {
        return Ok(None);
    }
    if !own.is_root() {
        let detail = "the service does not run as root, so it can run jobs of its own user only";
        return Err(Problem::new(403, "not-allowed", detail));
    }
    let user = User::from_uid(Uid::from_raw(caller.uid)).ok().flatten();
    let user =
        user.ok_or_else(|| Problem::new(403, "not-allowed", format!("there is no user with number {}", caller.uid)))?;
    Ok(Some(Account { uid: caller.uid, gid: user.gid.as_raw(), name: user.name, home: user.dir }))
}

/// One job, with what was submitted.
#[utoipa::path(get, path = "/v1/jobs/{id}", params(("id" = String, Path, description = "7, or 7_3 for a task of an array")),
    responses((status = 200, body = JobView), Refusal))]
pub(crate) async fn show(State(door): State<Door>, By(caller): By, Named(id): Named) -> Result<Json<JobView>, Failure> {
    Ok(show_job(&door, &caller, id)?)
}

pub(super) fn show_job(door: &Door, caller: &Caller, id: JobId) -> Result<Json<JobView>, Problem> {
    let shown = door.service.replica.read();
    let view = views::job(&shown, id, door.service.clock.now(), true).ok_or_else(|| no_job(&shown.ledger, id))?;
    let is_whole = owner(&shown, id).is_some_and(|owner| door.shows_all(caller, owner));
    Ok(Json(if is_whole { view } else { views::summary(view) }))
}

fn owner(shown: &Shown, id: JobId) -> Option<&Caller> {
    let claims = shown.ledger.claims(id)?;
    shown.ledger.acceptance(ClaimId(claims.start)).map(|acceptance| &acceptance.owner)
}

/// Refuses what is for a job's owner and admins only; a job that does not exist belongs to nobody.
pub(super) fn check_details(door: &Door, caller: &Caller, id: JobId) -> Result<(), Problem> {
    let shown = door.service.replica.read();
    match owner(&shown, id) {
        Some(owner) if door.shows_all(caller, owner) => Ok(()),
        Some(_) => Err(not_yours(id)),
        None => Err(no_job(&shown.ledger, id)),
    }
}

/// Another priority for a job.
#[utoipa::path(patch, path = "/v1/jobs/{id}", params(("id" = String, Path)), request_body = PriorityRequest,
    responses((status = 200, body = JobView), Refusals))]
pub(crate) async fn reprioritise(
    State(door): State<Door>,
    By(caller): By,
    Named(id): Named,
    Body(request): Body<PriorityRequest>,
) -> Result<Json<JobView>, Failure> {
    request.check().map_err(Problem::from)?;
    let ceiling = door.directory.access().ceiling_of(&caller.name, caller.role);
    check_priority(&caller, ceiling.priority, request.priority)?;
    change(&door, caller, id, Ask::Reprioritise(id, request.priority)).await
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct CancelQuery {
    /// Give it no time to save its state, also if it was cancelled before.
    now: Option<bool>,
}

/// Ends a job.
#[utoipa::path(post, path = "/v1/jobs/{id}/cancel", params(("id" = String, Path), CancelQuery),
    responses((status = 200, body = JobView), Refusals))]
pub(crate) async fn cancel(
    State(door): State<Door>,
    By(caller): By,
    Named(id): Named,
    Query(query): Query<CancelQuery>,
) -> Result<Json<JobView>, Failure> {
    let ask = if query.now.unwrap_or(false) { Ask::Kill(id) } else { Ask::Cancel(id) };
    change(&door, caller, id, ask).await
}

/// Lets a job wait; if it runs, it saves its state and stops.
#[utoipa::path(post, path = "/v1/jobs/{id}/hold", params(("id" = String, Path)),
    responses((status = 200, body = JobView), Refusals))]
pub(crate) async fn hold(State(door): State<Door>, By(caller): By, Named(id): Named) -> Result<Json<JobView>, Failure> {
    change(&door, caller, id, Ask::Hold(id)).await
}

/// Lets a held job go on.
#[utoipa::path(post, path = "/v1/jobs/{id}/release", params(("id" = String, Path)),
    responses((status = 200, body = JobView), Refusals))]
pub(crate) async fn release(
    State(door): State<Door>,
    By(caller): By,
    Named(id): Named,
) -> Result<Json<JobView>, Failure> {
    change(&door, caller, id, Ask::Release(id)).await
}

async fn change(door: &Door, caller: Caller, id: JobId, ask: Ask) -> Result<Json<JobView>, Failure> {
    door.check_changes(&caller, live_claims(&door.service.replica.read(), id).max(1))?;
    door.service.inbox.ask(caller.clone(), ask).await?;
    Ok(show_job(door, &caller, id)?)
}

/// How many facts a change to a job makes: one for each task of an array that has not ended.
fn live_claims(shown: &Shown, id: JobId) -> usize {
    let is_live = |claim: &u32| shown.state.books().claims().get(ClaimId(*claim)).is_some_and(Claim::is_live);
    shown.ledger.claims(id).map_or(0, |claims| claims.filter(is_live).count())
}

/// Why a job has what it has, and what would change it.
#[utoipa::path(get, path = "/v1/jobs/{id}/explain", params(("id" = String, Path)),
    responses((status = 200, body = Explanation), Refusal))]
pub(crate) async fn explain(
    State(door): State<Door>,
    By(caller): By,
    Named(id): Named,
) -> Result<Json<Explanation>, Failure> {
    check_details(&door, &caller, id)?;
    let ceiling = door.directory.access().ceiling_of(&caller.name, caller.role).priority;
    let shown = door.service.replica.read();
    Ok(Json(why::explain(&shown, id, door.service.clock.now(), ceiling)?))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WaitQuery {
    /// Answer after so long at the latest.
    #[param(minimum = 0.0, maximum = 3600.0)]
    timeout_seconds: Option<f64>,
}

/// Waits until the job has ended, or until the time is over; shows it as it then is.
#[utoipa::path(get, path = "/v1/jobs/{id}/wait", params(("id" = String, Path), WaitQuery),
    responses((status = 200, body = JobView), Refusal))]
pub(crate) async fn wait(
    State(door): State<Door>,
    By(caller): By,
    Named(id): Named,
    Query(query): Query<WaitQuery>,
) -> Result<Json<JobView>, Failure> {
    let seconds = query.timeout_seconds.unwrap_or(30.0);
    if !(0.0..=3600.0).contains(&seconds) {
        return Err(Failure(Problem::from(FieldFault::new(
            "timeout_seconds",
            format!("expected from 0 to 3600, found {seconds}"),
        ))));
    }
    let deadline = tokio::time::Instant::now() + Duration::from_secs_f64(seconds);
    let mut version = door.service.replica.version();
    let mut leaving = door.leaving.clone();
    loop {
        version.mark_unchanged();
        let Json(view) = show_job(&door, &caller, id)?;
        if view.state.is_final() || *leaving.borrow() {
            return Ok(Json(view));
        }
        tokio::select! {
            _ = version.changed() => {}
            _ = leaving.changed() => {}
            () = tokio::time::sleep_until(deadline) => return Ok(show_job(&door, &caller, id)?),
        }
    }
}

/// A job says how it is doing and is told how to go on. See docs/guides/progress.md.
#[utoipa::path(post, path = "/v1/jobs/{id}/progress", params(("id" = String, Path)), request_body = ProgressReport,
    responses((status = 200, body = ProgressReply), Refusals))]
pub(crate) async fn progress(
    State(door): State<Door>,
    By(caller): By,
    Named(id): Named,
    Body(report): Body<ProgressReport>,
) -> Result<Json<ProgressReply>, Failure> {
    report.check().map_err(Problem::from)?;
    tell(&door, caller, id, report).await
}

async fn tell(door: &Door, caller: Caller, id: JobId, report: ProgressReport) -> Result<Json<ProgressReply>, Failure> {
    check_report(door, &caller, id)?;
    match door.service.inbox.ask(caller, Ask::Report(id, report)).await? {
        Done::Tuned(reply) => Ok(Json(reply)),
        other => unreachable!("a report is answered with a tuning, not {other:?}"),
    }
}

/// Whether a job may report once more. Who may not report on it at all is told so elsewhere, and takes nothing from it.
fn check_report(door: &Door, caller: &Caller, id: JobId) -> Result<(), Problem> {
    let claim = {
        let shown = door.service.replica.read();
        let is_allowed = owner(&shown, id).is_some_and(|owner| caller.may_change_jobs_of(owner));
        let Some(claim) = shown.ledger.claims(id).filter(|_| is_allowed).map(|claims| ClaimId(claims.start)) else {
            return Ok(());
        };
        claim
    };
    if door.reports.admits(claim, Instant::now()) {
        return Ok(());
    }
    door.service.replica.measures.dropped(1, 0);
    if let Some(unsaid) = door.reports.next_said(claim, door.service.clock.now()) {
        tracing::warn!(job = %id, unsaid, "a job reports more than it may over HTTP: a report was dropped");
    }
    let detail = format!("job {id} reports more often than 10 times a second: this report was dropped");
    Err(Problem::new(429, "too-many-reports", detail))
}

/// The same by the protocol of Kubeflow's trainer, which Hugging Face's `Trainer` speaks without being told.
#[utoipa::path(post, path = "/v1/jobs/{id}/trainer-status", params(("id" = String, Path)), request_body = KubeflowReport,
    responses((status = 200, body = ProgressReply), Refusals))]
pub(crate) async fn kubeflow(
    State(door): State<Door>,
    By(caller): By,
    Named(id): Named,
    Body(report): Body<KubeflowReport>,
) -> Result<Json<ProgressReply>, Failure> {
    let total = total_steps(&door.service.replica.read(), id)?;
    let report = report.trainer_status.into_report(total).map_err(Problem::from)?;
    tell(&door, caller, id, report).await
}

fn total_steps(shown: &Shown, id: JobId) -> Result<Option<u64>, Problem> {
    let claims = shown.ledger.claims(id).ok_or_else(|| no_job(&shown.ledger, id))?;
    Ok(shown.state.books().claim(ClaimId(claims.start)).spec.iterations())
}
