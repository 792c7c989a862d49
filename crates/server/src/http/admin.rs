//! Queues, nodes, the policy, and how the service itself is.

use std::collections::BTreeMap;

use api::{ConfigView, Health, NodePage, PolicyRequest, PolicyView, Problem, QueueChanges, QueuePage, QueuesRequest};
use axum::Json;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use cluster::QueueDraft;
use plan::Rhythm;
use policies::PolicyConfig;
use serde::Deserialize;
use utoipa::IntoParams;

use super::Door;
use super::errors::{Body, Failure, Query, Refusal, Refusals};
use super::peer::{By, Perhaps};
use crate::core::{Ask, Done};
use crate::fact::Caller;
use crate::pulse::STUCK_AFTER;
use crate::queues::Review;
use crate::views;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The queues and who uses what of them.
#[utoipa::path(get, path = "/v1/queues", responses((status = 200, body = QueuePage)))]
pub(crate) async fn queues(State(door): State<Door>) -> Json<QueuePage> {
    Json(QueuePage { queues: views::queues(&door.service.replica.read()) })
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct QueuesQuery {
    /// Only say what would change.
    preview: Option<bool>,
}

/// Makes the queues what the body says: all of them at once. Queues that are not there yet are added, others changed; one
/// that is left out is closed, which means that it takes no new jobs and those in it go on. Everything is checked before
/// anything is changed.
#[utoipa::path(put, path = "/v1/queues", request_body = QueuesRequest, params(QueuesQuery),
    responses((status = 200, body = QueueChanges), Refusals))]
pub(crate) async fn set_queues(
    State(door): State<Door>,
    By(caller): By,
    Query(query): Query<QueuesQuery>,
    Body(request): Body<QueuesRequest>,
) -> Result<Json<QueueChanges>, Failure> {
    let drafts: Vec<QueueDraft> = request.queues.into_iter().map(QueueDraft::from).collect();
    if query.preview.unwrap_or(false) {
        let shown = door.service.replica.read();
        let review = Review::of(&shown.state, &shown.ledger, &drafts)?;
        let changes = review.views(shown.state.books(), &shown.ledger);
        return Ok(Json(QueueChanges { changes, applied: false }));
    }
    match door.service.inbox.ask(caller, Ask::ChangeQueues(drafts)).await? {
        Done::Queues(changes) => Ok(Json(QueueChanges { changes, applied: true })),
        other => unreachable!("queues are answered with what changed, not with {other:?}"),
    }
}

/// The nodes and which jobs are on them, of those whose details the caller may see.
#[utoipa::path(get, path = "/v1/nodes", responses((status = 200, body = NodePage), Refusal))]
pub(crate) async fn nodes(State(door): State<Door>, By(caller): By) -> Json<NodePage> {
    Json(nodes_for(&door, &caller))
}

fn nodes_for(door: &Door, caller: &Caller) -> NodePage {
    NodePage { nodes: views::nodes(&door.service.replica.read(), |owner| door.shows_all(caller, owner)) }
}

/// Takes no more jobs on a node; those on it stay.
#[utoipa::path(post, path = "/v1/nodes/{name}/cordon", params(("name" = String, Path)),
    responses((status = 200, body = NodePage), Refusals))]
pub(crate) async fn cordon(
    State(door): State<Door>,
    By(caller): By,
    Path(name): Path<String>,
) -> Result<Json<NodePage>, Failure> {
    change(&door, caller, Ask::Cordon(name)).await
}

/// Takes no more jobs on a node and moves those on it away.
#[utoipa::path(post, path = "/v1/nodes/{name}/drain", params(("name" = String, Path)),
    responses((status = 200, body = NodePage), Refusals))]
pub(crate) async fn drain(
    State(door): State<Door>,
    By(caller): By,
    Path(name): Path<String>,
) -> Result<Json<NodePage>, Failure> {
    change(&door, caller, Ask::Drain(name)).await
}

/// Takes jobs on a node again.
#[utoipa::path(post, path = "/v1/nodes/{name}/uncordon", params(("name" = String, Path)),
    responses((status = 200, body = NodePage), Refusals))]
pub(crate) async fn uncordon(
    State(door): State<Door>,
    By(caller): By,
    Path(name): Path<String>,
) -> Result<Json<NodePage>, Failure> {
    change(&door, caller, Ask::Uncordon(name)).await
}

async fn change(door: &Door, caller: Caller, ask: Ask) -> Result<Json<NodePage>, Failure> {
    door.service.inbox.ask(caller.clone(), ask).await?;
    Ok(Json(nodes_for(door, &caller)))
}

/// The policy that decides.
#[utoipa::path(get, path = "/v1/policy", responses((status = 200, body = PolicyView)))]
pub(crate) async fn policy(State(door): State<Door>) -> Json<PolicyView> {
    Json(current(&door))
}

fn current(door: &Door) -> PolicyView {
    let (text, safeguards) = {
        let shown = door.service.replica.read();
        (shown.state.policy().to_string(), shown.state.safeguards().to_string())
    };
    let config = PolicyConfig::from_text(&text).unwrap_or_else(|_| PolicyConfig::named(&text));
    let parameters: BTreeMap<String, String> =
        config.all().unwrap_or_default().into_iter().map(|(key, value)| (key.to_string(), value)).collect();
    let rhythm = config.build().ok().map(|policy| policy.rhythm());
    let rhythm_seconds = match rhythm {
        Some(Rhythm::EveryRound(round)) => Some(round.as_secs_f64()),
        Some(Rhythm::OnChange) | None => None,
    };
    PolicyView { name: config.name, parameters, rhythm_seconds, safeguards: Some(safeguards) }
}

/// Another policy from now on.
#[utoipa::path(put, path = "/v1/policy", request_body = PolicyRequest,
    responses((status = 200, body = PolicyView), Refusals))]
pub(crate) async fn set_policy(
    State(door): State<Door>,
    By(caller): By,
    Body(request): Body<PolicyRequest>,
) -> Result<Json<PolicyView>, Failure> {
    let config = PolicyConfig::from_text(&request.policy)
        .map_err(|error| Failure(Problem::from(api::FieldFault::new("policy", error.to_string()))))?;
    door.service.inbox.ask(caller, Ask::UsePolicy(config)).await?;
    Ok(Json(current(&door)))
}

/// What the service was configured with, defaults included.
#[utoipa::path(get, path = "/v1/config", responses((status = 200, body = ConfigView)))]
pub(crate) async fn config(State(door): State<Door>) -> Json<ConfigView> {
    let service = &door.service;
    let socket = format!("unix:{}", api::socket_in(&service.data_dir).display());
    let listen = service.config.listen.iter().map(|address| format!("http://{address}"));
    Json(ConfigView {
        version: VERSION.into(),
        data_dir: service.data_dir.display().to_string(),
        listen: [socket].into_iter().chain(listen).collect(),
        policy: current(&door),
        settings: serde_json::to_value(&service.config).unwrap_or_default(),
    })
}

/// Whether the service lives.
#[utoipa::path(get, path = "/healthz", responses((status = 200, body = Health), (status = 503, body = Health)))]
pub(crate) async fn healthz(State(door): State<Door>, Perhaps(caller): Perhaps) -> Response {
    let alive = door.service.is_alive();
    answer(&door, caller.is_some(), alive, if alive { "ok" } else { "dead" }, None)
}

/// Whether it can take anything on.
#[utoipa::path(get, path = "/readyz", responses((status = 200, body = Health), (status = 503, body = Health)))]
pub(crate) async fn readyz(State(door): State<Door>, Perhaps(caller): Perhaps) -> Response {
    let known = caller.is_some();
    let shown = door.service.replica.read();
    let (trouble, degraded) = (shown.trouble.clone(), shown.degraded.clone());
    drop(shown);
    match trouble {
        Some(trouble) => answer(&door, known, false, "read_only", Some(trouble)),
        None if door.service.inbox.is_stuck() => {
            let message = format!("requests wait, and none was taken up for {} s", STUCK_AFTER.as_secs());
            answer(&door, known, false, "stuck", Some(message))
        }
        None if degraded.is_some() && door.service.is_alive() => answer(&door, known, true, "degraded", degraded),
        None if door.service.is_alive() => answer(&door, known, true, "ok", door.service.lost.clone()),
        None => answer(&door, known, false, "dead", None),
    }
}

/// Whoever is not known is told the bare status.
fn answer(door: &Door, known: bool, good: bool, status: &str, message: Option<String>) -> Response {
    let (version, uptime_seconds, message) = match known {
        true => (Some(VERSION.into()), Some(door.service.started.elapsed().as_secs_f64()), message),
        false => (None, None, None),
    };
    let health = Health { status: status.into(), version, uptime_seconds, message };
    let code = if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, Json(health)).into_response()
}

/// Numbers for Prometheus.
#[utoipa::path(get, path = "/metrics", responses((status = 200, body = String, content_type = "application/openmetrics-text")))]
pub(crate) async fn metrics(State(door): State<Door>) -> Result<Response, Failure> {
    let replica = &door.service.replica;
    let text = replica.measures.text(&replica.read());
    let text = text.map_err(|error| Failure(Problem::new(500, "metrics", error.to_string())))?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}
