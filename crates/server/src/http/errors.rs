//! What goes wrong, as problem details (RFC 9457), also what the framework itself refuses.

use api::Problem;
use axum::Json;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;

/// A problem on its way out.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) Problem);

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(self.0)).into_response();
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(Problem::CONTENT_TYPE));
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
        let text = text_of(request, state).await?;
        api::read(&text.0, text.1).map(Body).map_err(Failure)
    }
}

/// The body as text, and the format its content type names.
pub(crate) async fn text_of<S: Send + Sync>(request: Request, state: &S) -> Result<(String, api::Format), Failure> {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let format = match kind.as_str() {
        "" | "application/json" => api::Format::Json,
        "application/yaml" | "application/x-yaml" | "text/yaml" => api::Format::Yaml,
        "application/toml" => api::Format::Toml,
        other => {
            let detail = format!("expected application/json, application/yaml or application/toml, found `{other}`");
            return Err(Failure(Problem::new(415, "unsupported-media-type", detail)));
        }
    };
    let bytes = axum::body::Bytes::from_request(request, state).await.map_err(|rejection| {
        let status = rejection.status().as_u16();
        Failure(Problem::new(status, if status == 413 { "too-large" } else { "malformed" }, rejection.body_text()))
    })?;
    let text =
        String::from_utf8(bytes.to_vec()).map_err(|_| Failure(Problem::malformed("the body is not valid UTF-8")))?;
    Ok((text, format))
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
