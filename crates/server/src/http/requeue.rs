//! A job that has ended without success is run once more: a new job with the same description, which takes over the
//! checkpoints of the old one. What has ended stays as it ended.

use api::{JobId, JobRequest, JobState, JobView, Problem};
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use cluster::ClaimId;

use super::Door;
use super::errors::{Failure, Named, Refusals};
use super::jobs::{examine, key_of, show_job};
use super::peer::By;
use crate::core::{Ask, Done, no_job, not_yours, refuse_second_requeue};
use crate::fact::{Array, Caller};
use crate::replica::Shown;
use crate::views::state_of;

/// Runs a job again that has ended without success, from its last checkpoint; of an array, the tasks that did not succeed.
#[utoipa::path(post, path = "/v1/jobs/{id}/requeue", params(("id" = String, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "a second one under the same key is the first one")),
    responses(
        (status = 201, body = JobView),
        (status = 200, body = JobView, description = "it was requeued before, under this key"),
        Refusals,
    ))]
pub(crate) async fn requeue(
    State(door): State<Door>,
    By(caller): By,
    Named(id): Named,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let key = key_of(&headers)?;
    let again = {
        let shown = door.service.replica.read();
        // Whoever asks again under the same key gets the same answer, although the job has been requeued by then.
        let known = key.as_deref().and_then(|key| shown.ledger.keyed(caller.uid, key));
        let claims = shown.ledger.claims(id).unwrap_or_default();
        match known.filter(|it| it.continues.iter().any(|claim| claims.contains(&claim.0))) {
            Some(known) => Err(JobId::job(known.first.0)),
            None => Ok(Again::of(&shown, &caller, id)?),
        }
    };
    let (number, new) = match again {
        Err(known) => (known, false),
        Ok(again) => {
            let mut submission = examine(&door, &caller, again.request, key)?;
            (submission.array, submission.continues) = (again.array, again.continues);
            let done = door.service.inbox.ask(caller.clone(), Ask::Submit(Box::new(submission))).await?;
            let Done::Numbered(number, new) = done else { unreachable!("a submission is answered with a number") };
            (number, new)
        }
    };
    let status = if new { StatusCode::CREATED } else { StatusCode::OK };
    let Json(view) = show_job(&door, &caller, number)?;
    Ok((status, [(header::LOCATION, format!("/v1/jobs/{number}"))], Json(view)).into_response())
}

/// What is submitted to run a job again.
struct Again {
    request: JobRequest,
    array: Option<Array>,
    continues: Vec<ClaimId>,
}

impl Again {
    fn of(shown: &Shown, caller: &Caller, id: JobId) -> Result<Again, Problem> {
        let claims = shown.ledger.claims(id).ok_or_else(|| no_job(&shown.ledger, id))?;
        let acceptance = shown.ledger.acceptance(ClaimId(claims.start)).ok_or_else(|| no_job(&shown.ledger, id))?;
        // The new job runs as its owner, and with the owner's checkpoints.
        if acceptance.owner.uid != caller.uid {
            return Err(not_yours(id));
        }
        let books = shown.state.books();
        let state = |claim: ClaimId| state_of(books.claim(claim)).0;
        if claims.clone().any(|claim| !state(ClaimId(claim)).is_final()) {
            return Err(Problem::conflict(format!("job {id} has not ended")));
        }
        let continues: Vec<ClaimId> =
            claims.map(ClaimId).filter(|&claim| state(claim) != JobState::Succeeded).collect();
        if continues.is_empty() {
            return Err(Problem::conflict(format!("job {id} has succeeded: there is nothing to run again")));
        }
        refuse_second_requeue(&shown.ledger, &continues)?;
        let array = acceptance.array.as_ref().map(|array| Array {
            indices: continues.iter().map(|claim| array.indices[(claim.0 - acceptance.first.0) as usize]).collect(),
            at_once: array.at_once,
        });
        let mut request = acceptance.request.clone();
        // It may go at once, and what has succeeded need not be asked for again.
        request.hold = false;
        request.stdin = false;
        request.pty = None;
        request.depends_on.retain(|id| !has_succeeded(shown, *id));
        Ok(Again { request, array, continues })
    }
}

/// One that is forgotten has ended long ago, and was not in the way.
fn has_succeeded(shown: &Shown, id: JobId) -> bool {
    let state = |claim: u32| state_of(shown.state.books().claim(ClaimId(claim))).0;
    shown.ledger.claims(id).is_none_or(|mut claims| claims.all(|claim| state(claim) == JobState::Succeeded))
}
