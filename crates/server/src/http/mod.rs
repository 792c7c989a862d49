//! The door: HTTP and JSON under `/v1`. It never touches the core; it posts to the inbox and reads the replica.

mod admin;
mod errors;
mod events;
mod jobs;
mod logs;
mod peer;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use api::Problem;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::get;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::error::ServerError;
use crate::service::Service;
use errors::Failure;

/// Larger bodies are not read. What a job may say is far less; this is what is read to say so.
const LARGEST_BODY: usize = 16 << 20;

/// What every handler is given.
#[derive(Debug, Clone)]
pub(crate) struct Door {
    pub(crate) service: Arc<Service>,
    /// Becomes true when the service leaves, so that streams end.
    pub(crate) leaving: watch::Receiver<bool>,
}

#[derive(OpenApi)]
#[openapi(info(
    title = "Moira",
    description = "A scheduler for deep-learning clusters: submit jobs, watch them, ask why.",
    license(name = "Apache-2.0")
))]
struct Document;

fn routes() -> OpenApiRouter<Door> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(jobs::list, jobs::submit))
        .routes(routes!(jobs::show, jobs::reprioritise))
        .routes(routes!(jobs::cancel))
        .routes(routes!(jobs::hold))
        .routes(routes!(jobs::release))
        .routes(routes!(jobs::explain))
        .routes(routes!(jobs::wait))
        .routes(routes!(jobs::progress))
        .routes(routes!(jobs::kubeflow))
        .routes(routes!(logs::logs))
        .routes(routes!(events::events))
        .routes(routes!(admin::queues))
        .routes(routes!(admin::nodes))
        .routes(routes!(admin::cordon))
        .routes(routes!(admin::drain))
        .routes(routes!(admin::uncordon))
        .routes(routes!(admin::policy, admin::set_policy))
        .routes(routes!(admin::config))
        .routes(routes!(admin::healthz))
        .routes(routes!(admin::readyz))
        .routes(routes!(admin::metrics))
}

/// The OpenAPI document, as it is served.
pub fn document() -> utoipa::openapi::OpenApi {
    routes().split_for_parts().1
}

fn router(door: Door) -> Router {
    let (router, document) = routes().split_for_parts();
    router
        .route("/v1/openapi.json", get(move || async move { axum::Json(document) }))
        .fallback(|| async { Failure(Problem::not_found("there is nothing here: see /v1/openapi.json")) })
        .method_not_allowed_fallback(|| async {
            Failure(Problem::new(405, "method-not-allowed", "this cannot be done here: see /v1/openapi.json"))
        })
        .layer(DefaultBodyLimit::max(LARGEST_BODY))
        .with_state(door)
}

/// Serves until `leave` becomes true, on the socket in the data directory and on what the configuration names.
pub async fn serve(service: Arc<Service>, leave: watch::Receiver<bool>) -> Result<(), ServerError> {
    let door = Door { service: service.clone(), leaving: leave.clone() };
    let app = router(door);
    let socket = listen_on_socket(&api::socket_in(&service.data_dir))?;
    let mut tasks = tokio::task::JoinSet::new();
    let make = app.clone().into_make_service_with_connect_info::<peer::Peer>();
    let left = leave.clone();
    tasks.spawn(async move { axum::serve(socket, make).with_graceful_shutdown(until(left)).await });
    for &address in &service.config.listen {
        let listener = TcpListener::bind(address)
            .await
            .map_err(|error| ServerError::Listen { address: address.to_string(), message: error.to_string() })?;
        tracing::info!(%address, "listening");
        let make = app.clone().into_make_service_with_connect_info::<peer::Peer>();
        let left = leave.clone();
        tasks.spawn(async move { axum::serve(listener, make).with_graceful_shutdown(until(left)).await });
    }
    while let Some(ended) = tasks.join_next().await {
        let ended = ended.map_err(|error| ServerError::Thread(error.to_string()))?;
        ended.map_err(|error| ServerError::Listen { address: "an address".into(), message: error.to_string() })?;
    }
    Ok(())
}

async fn until(mut leave: watch::Receiver<bool>) {
    // Whoever could say so being gone means the same.
    leave.wait_for(|leave| *leave).await.ok();
}

/// A socket that was left behind by a service that was killed is replaced: the journal's lock says that none is alive.
fn listen_on_socket(path: &Path) -> Result<UnixListener, ServerError> {
    let cannot = |message: String| ServerError::Listen { address: path.display().to_string(), message };
    if path.exists() {
        fs::remove_file(path).map_err(|error| cannot(error.to_string()))?;
    }
    let listener = UnixListener::bind(path).map_err(|error| cannot(error.to_string()))?;
    // The kernel says who connects, so everyone may where jobs can be run as their users.
    let mode = if nix::unistd::geteuid().is_root() { 0o666 } else { 0o600 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(|error| cannot(error.to_string()))?;
    tracing::info!(socket = %path.display(), "listening");
    Ok(listener)
}
