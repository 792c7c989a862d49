//! What goes wrong, as problem details (RFC 9457), also what the framework itself refuses.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use api::Problem;
use axum::Json;
use axum::body::Body as RequestBody;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::connection::Visit;
use super::connections::{Admission, SMALL_BODY, Stage};

/// Larger bodies are not read. What a job may say is far less; this is what is read to say so.
const LARGEST_BODY: usize = 4 << 20;
/// All of a body may take so many times as long as one pause in it.
const WHOLE_BODY: u32 = 10;

/// A problem on its way out.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) Problem);

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let is_too_fast = self.0.is("too-fast");
        let mut response = (status, Json(self.0)).into_response();
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(Problem::CONTENT_TYPE));
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if is_too_fast {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Failure {
        Failure(problem)
    }
}

/// How a question may be answered besides.
#[derive(utoipa::IntoResponses)]
#[expect(dead_code, reason = "it only describes what a `Failure` looks like")]
pub(crate) enum Refusal {
    /// It cannot be answered; the problem names the field.
    #[response(status = "4XX", content_type = "application/problem+json")]
    Faulty(Problem),
}

/// How a change may be answered besides.
#[derive(utoipa::IntoResponses)]
#[expect(dead_code, reason = "it only describes what a `Failure` looks like")]
pub(crate) enum Refusals {
    /// It cannot be done; the problem names the field.
    #[response(status = "4XX", content_type = "application/problem+json")]
    Faulty(Problem),
    /// Nothing is taken on at the moment.
    #[response(status = 503, content_type = "application/problem+json")]
    Unready(Problem),
}

/// A body of JSON that is refused with a problem that names the field.
#[derive(Debug)]
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Body<T>, Failure> {
        let (text, format) = text_of(request, state).await?;
        // A list would be taken for the fields in their order, and an empty one for all their defaults.
        if text.trim_start().starts_with(['[', '-']) {
            return Err(Failure(Problem::malformed("expected an object with named fields, found a list or a number")));
        }
        api::read(&text, format).map(Body).map_err(Failure)
    }
}

/// The body as text, and the format its content type names.
pub(crate) async fn text_of<S: Send + Sync>(request: Request, _: &S) -> Result<(String, api::Format), Failure> {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let format = match kind.as_str() {
        "application/json" => api::Format::Json,
        "application/yaml" | "application/x-yaml" | "text/yaml" => api::Format::Yaml,
        "application/toml" => api::Format::Toml,
        other => {
            let found = if other.is_empty() { "none".into() } else { format!("`{other}`") };
            let detail =
                format!("Content-Type: expected application/json, application/yaml or application/toml, found {found}");
            return Err(Failure(Problem::new(415, "unsupported-media-type", detail)));
        }
    };
    let text = String::from_utf8(body_of(request).await?)
        .map_err(|_| Failure(Problem::malformed("the body is not valid UTF-8")))?;
    Ok((text, format))
}

/// The whole body. A client that sends it too slowly is told so, and one that still sends when the service leaves is not
/// waited for: nothing has been done for it yet.
pub(super) async fn body_of(request: Request) -> Result<Vec<u8>, Failure> {
    let visit = request.extensions().get::<Arc<Visit>>().cloned().expect("every request comes by a connection");
    let mut reading = pin!(read_all(request.into_body(), visit.body_timeout, &visit.admission));
    // Most bodies arrive with their heads: then there is nothing to wait for, and nobody to tell that somebody waits.
    if let Poll::Ready(read) = poll_fn(|cx| Poll::Ready(reading.as_mut().poll(cx))).await {
        return read.map_err(Failure);
    }
    visit.admission.enter(Stage::Body);
    let mut leaving = visit.leaving.clone();
    let read = tokio::select! {
        read = timeout(visit.body_timeout * WHOLE_BODY, reading) => read.unwrap_or_else(|_| Err(too_slow())),
        _ = leaving.wait_for(|leaving| *leaving) => Err(Problem::new(503, "leaving", "the service is shutting down")),
    };
    visit.admission.enter(Stage::Answer);
    read.map_err(Failure)
}

async fn read_all(mut body: RequestBody, pause: Duration, admission: &Admission) -> Result<Vec<u8>, Problem> {
    let mut bytes = Vec::new();
    while let Some(frame) = timeout(pause, body.frame()).await.map_err(|_| too_slow())? {
        let frame = frame.map_err(|error| Problem::malformed(format!("the body broke off: {error}")))?;
        // What is no data is a trailer, and says nothing to us.
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > LARGEST_BODY {
            let detail = format!("expected a body of at most {} MiB", LARGEST_BODY >> 20);
            return Err(Problem::new(413, "too-large", detail));
        }
        let counted = |length: usize| length.saturating_sub(SMALL_BODY) as u64;
        admission.hold(counted(bytes.len() + data.len()) - counted(bytes.len()))?;
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

fn too_slow() -> Problem {
    Problem::new(408, "too-slow", "the rest of the body did not come in time: nothing was done")
}

/// Parameters in the address that are refused with a problem.
#[derive(Debug)]
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Query<T>, Failure> {
        let query = axum::extract::Query::<T>::from_request_parts(parts, state).await;
        query
            .map(|axum::extract::Query(query)| Query(query))
            .map_err(|rejection| Failure(Problem::malformed(rejection.body_text())))
    }
}

/// The job that the path names.
#[derive(Debug)]
pub(crate) struct Named(pub(crate) api::JobId);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Named, Failure> {
        let path = axum::extract::Path::<String>::from_request_parts(parts, state).await;
        let axum::extract::Path(text) = path.map_err(|rejection| Failure(Problem::malformed(rejection.body_text())))?;
        text.parse().map(Named).map_err(|message| Failure(Problem::not_found(message)))
    }
}

/// The number that the path names.
#[derive(Debug)]
pub(crate) struct Numbered(pub(crate) u32);

impl<S: Send + Sync> FromRequestParts<S> for Numbered {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Numbered, Failure> {
        let path = axum::extract::Path::<String>::from_request_parts(parts, state).await;
        let axum::extract::Path(text) = path.map_err(|rejection| Failure(Problem::malformed(rejection.body_text())))?;
        let found: String = text.chars().take(40).collect();
        text.parse()
            .map(Numbered)
            .map_err(|_| Failure(Problem::not_found(format!("expected a number, found `{found}`"))))
    }
}
