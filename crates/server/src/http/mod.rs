//! The door: HTTP and JSON under `/v1`. It never touches the core; it posts to the inbox and reads the replica.

mod admin;
mod array_logs;
mod connection;
mod connections;
mod errors;
mod events;
mod guard;
mod input;
mod jobs;
mod listen;
mod logs;
mod names;
mod peer;
mod reports;
mod requeue;
mod schema;
mod shells;
mod socket;
mod tokens;

use std::sync::Arc;
use std::time::Instant;

use api::{Problem, Role};
use axum::Router;
use axum::routing::get;
use executors::LogBell;
use tokio::sync::watch;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::{Directory, OthersSee, Rate, Refusals};
use crate::error::ServerError;
use crate::fact::Caller;
use crate::service::Service;
pub(crate) use socket::check_path as check_socket_path;

use connection::{Counter, Pace};
use connections::Connections;
use errors::Failure;
use listen::Entrance;
use names::Names;
use reports::Reports;

pub use connections::HttpConfig;
pub use listen::raise_file_limit;
pub(crate) use names::check_configured as check_host_name;
pub use schema::job_schema;
pub use socket::SocketConfig;

/// Whoever has not submitted for so many seconds may submit what was allowed in them at once. Jobs that take much room
/// come in crowds: what is to be prevented is that they come without end.
const SAVED_SUBMISSIONS: f64 = 2.0;
const SAVED_BYTES: f64 = 60.0;
/// Somebody who ends a thousand jobs at once does not do so all day.
const SAVED_CHANGES: f64 = 10.0;

/// What every handler is given. It is cloned for every part of a request that asks for it.
#[derive(Debug, Clone)]
pub(crate) struct Door(Arc<Inside>);

/// What lies behind the door.
#[derive(Debug)]
pub(crate) struct Inside {
    pub(crate) service: Arc<Service>,
    /// Becomes true when the service leaves, so that streams end.
    pub(crate) leaving: watch::Receiver<bool>,
    pub(crate) directory: Directory,
    pub(crate) refusals: Refusals,
    /// How many jobs users submit, and how many bytes of them.
    pub(crate) submissions: Rate<u32>,
    pub(crate) submitted_bytes: Rate<u32>,
    /// How many jobs and tokens users change.
    pub(crate) changes: Rate<u32>,
    /// How fast jobs report.
    pub(crate) reports: Reports,
    /// Wakes those who follow logs; none where the machine has none to give.
    pub(crate) log_bell: Option<Arc<LogBell>>,
}

impl std::ops::Deref for Door {
    type Target = Inside;

    fn deref(&self) -> &Inside {
        &self.0
    }
}

/// So often a second may a user change something while there is only the room that is kept for that.
const CHANGES_ON_A_FULL_DISK: f64 = 10.0;

impl Door {
    /// Whether the caller sees all of a job that belongs to `owner`.
    pub(crate) fn shows_all(&self, caller: &Caller, owner: &Caller) -> bool {
        caller.uid == owner.uid || caller.role == Role::Admin || self.directory.access().others_see == OthersSee::All
    }

    /// Whether a user may change so many jobs or tokens more now. Each change is on record, and pushes out what is
    /// there.
    fn check_changes(&self, caller: &Caller, count: usize) -> Result<(), Problem> {
        let mut rate = self.directory.access().ceiling_of(&caller.name, caller.role).changes_per_second;
        if caller.role < Role::Operator && self.service.replica.read().degraded.is_some() {
            rate = Some(rate.map_or(CHANGES_ON_A_FULL_DISK, |rate| rate.min(CHANGES_ON_A_FULL_DISK)));
        }
        if self.changes.admits(caller.uid, count as f64, rate, Instant::now()) {
            return Ok(());
        }
        let detail = format!("{} changes jobs and tokens faster than allowed: try again in a moment", caller.name);
        Err(Problem::new(429, "too-fast", detail))
    }

    /// Whether there is room for what can wait. On a full disk it would take the room with which the journal goes on.
    fn check_room(&self) -> Result<(), Problem> {
        match &self.service.replica.read().degraded {
            Some(shortage) => Err(Problem::new(503, "disk-full", shortage)),
            None => Ok(()),
        }
    }

    /// Whether a user may have so many bytes more kept of what was submitted.
    fn admits_bytes(&self, caller: &Caller, bytes: u64) -> bool {
        let rate = self.directory.access().ceiling_of(&caller.name, caller.role).submissions_size_per_second;
        let rate = rate.map(|rate| rate.bytes().get() as f64);
        self.submitted_bytes.admits(caller.uid, bytes as f64, rate, Instant::now())
    }
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Moira",
        description = "A scheduler for deep-learning clusters: submit jobs, watch them, ask why.",
        license(name = "Apache-2.0")
    ),
    // Answers name it, but do not bring it along.
    components(schemas(Problem))
)]
struct Document;

fn routes() -> OpenApiRouter<Door> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(jobs::list, jobs::submit))
        .routes(routes!(jobs::show, jobs::reprioritise))
        .routes(routes!(jobs::cancel))
        .routes(routes!(jobs::hold))
        .routes(routes!(jobs::release))
        .routes(routes!(requeue::requeue))
        .routes(routes!(jobs::explain))
        .routes(routes!(jobs::wait))
        .routes(routes!(jobs::progress))
        .routes(routes!(jobs::kubeflow))
        .routes(routes!(logs::logs))
        .routes(routes!(input::input))
        .routes(routes!(input::window))
        .routes(routes!(shells::open))
        .routes(routes!(shells::show, shells::leave))
        .routes(routes!(shells::input))
        .routes(routes!(shells::window))
        .routes(routes!(shells::output))
        .routes(routes!(events::events))
        .routes(routes!(admin::queues, admin::set_queues))
        .routes(routes!(admin::nodes))
        .routes(routes!(admin::cordon))
        .routes(routes!(admin::drain))
        .routes(routes!(admin::uncordon))
        .routes(routes!(admin::policy, admin::set_policy))
        .routes(routes!(admin::config))
        .routes(routes!(admin::healthz))
        .routes(routes!(admin::readyz))
        .routes(routes!(admin::metrics))
        .routes(routes!(tokens::list, tokens::create))
        .routes(routes!(tokens::revoke))
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
        .layer(axum::middleware::from_fn_with_state(door.clone(), guard::guard))
        .with_state(door)
}

/// Serves on the socket in the data directory and on what the configuration names. When `leave` becomes true, nobody is
/// let in any more; whoever is being answered has a moment, and then it returns.
pub async fn serve(service: Arc<Service>, leave: watch::Receiver<bool>) -> Result<(), ServerError> {
    let limits = service.config.http.clone().within(listen::file_limit());
    let socket = service.config.socket.listen(&api::socket_in(&service.data_dir))?;
    let names = Arc::new(Names::new(&service.config.hosts));
    let mut entrances = vec![Entrance::Socket(socket)];
    for &address in &service.config.listen {
        entrances.push(listen::listen_on_address(address, names.clone()).await?);
    }
    let directory = Directory::new(service.config.access.clone());
    let refusals = Refusals::default();
    let inside = Inside {
        service,
        leaving: leave.clone(),
        directory,
        refusals: refusals.clone(),
        submissions: Rate::saving(SAVED_SUBMISSIONS),
        submitted_bytes: Rate::saving(SAVED_BYTES),
        changes: Rate::saving(SAVED_CHANGES),
        reports: Reports::default(),
        log_bell: logs::hang_bell(),
    };
    let router = router(Door(Arc::new(inside)));
    let counter = Counter { router, pace: Pace::of(&limits), leaving: leave, refusals };
    let all = Connections::new(limits);
    let mut accepting = tokio::task::JoinSet::new();
    for entrance in entrances {
        accepting.spawn(listen::accept(entrance, counter.clone(), all.clone()));
    }
    drop(counter);
    while let Some(ended) = accepting.join_next().await {
        ended.map_err(|error| ServerError::Thread(error.to_string()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Value::as_str));
                fields.values().for_each(|value| references(value, found));
            }
            Value::Array(values) => values.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_in_the_openapi_document_leads_somewhere() {
        let document = serde_json::to_value(document()).unwrap();
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.contains(&"#/components/schemas/Problem"), "{found:?}");
        let is_dangling = |name: &&str| name.strip_prefix('#').and_then(|path| document.pointer(path)).is_none();
        found.retain(is_dangling);
        assert_eq!(found, [] as [&str; 0]);
    }
}
