//! The guard at the door: it finds out who makes a request, and lets in whom the table of endpoints admits. What it lets
//! in by a token ends when the token does.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use api::{JobId, Problem};
use axum::body::{Body, HttpBody};
use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use cluster::{ClaimId, Run};
use executors::Local;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use super::Door;
use super::connection::Visit;
use super::connections::PeerKey;
use super::errors::Failure;
use super::peer::{Peer, Visitor};
use crate::access::{Endpoint, sha256_of, unix_ms};
use crate::fact::Caller;
use crate::replica::Shown;

/// How often it is looked whether a token is still good while a request of its goes on.
const LOOK_EVERY: Duration = Duration::from_secs(1);
// The guide promises that what goes on by a token ends within five seconds of its end.
const _: () = assert!(LOOK_EVERY.as_millis() <= 5000);
/// What the token of a run begins with; the run and the secret follow.
const RUN_TOKEN: &str = "moira-run_";

pub(crate) async fn guard(State(door): State<Door>, request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<ConnectInfo<Peer>>().map(|ConnectInfo(peer)| *peer);
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let visitor = visitor(&door, peer, request.headers());
    let who = visitor.as_ref().ok().and_then(Option::as_ref).map(|visitor| visitor.caller.name.clone());
    let admitted = visitor.and_then(|visitor| {
        count(&request, visitor.as_ref())?;
        admit(&door, &request, visitor.as_ref()).map(|()| visitor)
    });
    let response = match admitted {
        Ok(visitor) => pass(&door, visitor, request, next).await,
        Err(failure) => failure.into_response(),
    };
    let status = response.status();
    if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        door.refusals.tell(who.as_deref(), method.as_str(), uri.path(), status.as_u16());
    }
    response
}

/// From now on the connection counts for the token that came by it, and not among the unknown.
fn count(request: &Request, visitor: Option<&Visitor>) -> Result<(), Failure> {
    let Some(key) = visitor.and_then(peer_key) else { return Ok(()) };
    let visit = request.extensions().get::<Arc<Visit>>();
    visit.map_or(Ok(()), |visit| visit.admission.count_for(key)).map_err(Failure)
}

/// The token that a visitor came by; none over the socket.
fn peer_key(visitor: &Visitor) -> Option<PeerKey> {
    let Visitor { caller, run } = visitor;
    let name = match (run, caller.token) {
        (Some(run), _) => format!("run {run}"),
        (None, token) => token?.to_string(),
    };
    Some(PeerKey::Token { uid: caller.uid, name })
}

/// Lets a request in, for as long as its token is good.
async fn pass(door: &Door, visitor: Option<Visitor>, mut request: Request, next: Next) -> Response {
    let Some(visitor) = visitor else { return next.run(request).await };
    request.extensions_mut().insert(visitor.clone());
    if visitor.run.is_none() && visitor.caller.token.is_none() {
        return next.run(request).await;
    }
    tokio::select! {
        response = next.run(request) => cut_short(response, until_bad(door.clone(), visitor.clone())),
        () = until_bad(door.clone(), visitor.clone()) => ended().into_response(),
    }
}

/// Who it is; nobody, if it comes without a token over the network.
fn visitor(door: &Door, peer: Option<Peer>, headers: &HeaderMap) -> Result<Option<Visitor>, Failure> {
    match peer {
        Some(Peer::Socket { uid: Some(uid) }) => Ok(Some(Visitor { caller: door.directory.caller(uid), run: None })),
        Some(Peer::Socket { uid: None }) | None => Err(unknown()),
        Some(Peer::Network) => match headers.get(header::AUTHORIZATION) {
            None => Ok(None),
            Some(value) => by_token(door, value).map(Some).ok_or_else(|| {
                Failure(Problem::new(401, "bad-token", "the token is not known here, or not good any more"))
            }),
        },
    }
}

fn by_token(door: &Door, value: &HeaderValue) -> Option<Visitor> {
    let (scheme, secret) = value.to_str().ok()?.split_once(' ')?;
    let secret = secret.trim();
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    match secret.strip_prefix(RUN_TOKEN) {
        Some(rest) => by_run_token(door, rest, secret),
        None => {
            let shown = door.service.replica.read();
            let token = shown.ledger.token_by_hash(&sha256_of(secret)).filter(|token| token.is_good(unix_ms()))?;
            let (id, uid, role) = (token.id, token.uid, token.role);
            drop(shown);
            let mut caller = door.directory.caller(uid);
            // A user whose role was lowered since has no more by an old token.
            caller.role = caller.role.min(role);
            caller.token = Some(id);
            Some(Visitor { caller, run: None })
        }
    }
}

fn by_run_token(door: &Door, rest: &str, secret: &str) -> Option<Visitor> {
    let (name, _) = rest.split_once('_')?;
    let (claim, attempt) = name.split_once('.')?;
    let run = Run { claim: ClaimId(claim.parse().ok()?), attempt: attempt.parse().ok()? };
    let owner = {
        let shown = door.service.replica.read();
        is_current(&shown, run).then(|| shown.ledger.acceptance(run.claim).map(|it| it.owner.clone()))??
    };
    // Read anew each time: only the few runs there are can be asked for, and a run says little a second.
    let hash = Local::token_hash(&door.service.data_dir, run)?;
    (hash == sha256_of(secret)).then_some(Visitor { caller: Caller { token: None, ..owner }, run: Some(run) })
}

fn is_current(shown: &Shown, run: Run) -> bool {
    let claim = shown.state.books().claims().get(run.claim);
    claim.is_some_and(|claim| claim.run() == run && claim.holds().is_some())
}

/// Whether the table lets it in.
fn admit(door: &Door, request: &Request, visitor: Option<&Visitor>) -> Result<(), Failure> {
    let path = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let endpoint = path.and_then(|path| Endpoint::of(request.method().as_str(), path));
    let Some(visitor) = visitor else {
        return match endpoint {
            Some(endpoint) if endpoint.admits(None) => Ok(()),
            _ => Err(Failure(Problem::new(
                401,
                "no-token",
                "over the network a token is needed: make one with `moira token create` on the machine of the service",
            ))),
        };
    };
    // What is nowhere is answered by whoever says so.
    let Some(endpoint) = endpoint else { return Ok(()) };
    if let Some(run) = visitor.run {
        let id = request.uri().path().split('/').nth(3).and_then(|id| id.parse::<JobId>().ok());
        let own = door.service.replica.read().ledger.id(run.claim);
        return match endpoint.least {
            None => Ok(()),
            Some(_) if endpoint.run && id == Some(own) => Ok(()),
            Some(_) => Err(not_allowed("the token of a run is good for reports on that run only")),
        };
    }
    if !endpoint.admits(Some(visitor.caller.role)) {
        let least = endpoint.least.map_or("", api::Role::as_str);
        let role = visitor.caller.role;
        return Err(not_allowed(&format!(
            "this needs the role {least}, and {} has the role {role}",
            visitor.caller.name
        )));
    }
    if endpoint.socket_only && visitor.caller.token.is_some() {
        return Err(not_allowed("this can be done over the service's socket only, not with a token"));
    }
    Ok(())
}

/// Until the visitor's token is revoked, expires, or its run has ended.
async fn until_bad(door: Door, visitor: Visitor) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let shown = door.service.replica.read();
        let is_good = match (visitor.run, visitor.caller.token) {
            (Some(run), _) => is_current(&shown, run),
            (None, Some(id)) => shown.ledger.token(id).is_some_and(|token| token.is_good(unix_ms())),
            (None, None) => true,
        };
        if !is_good {
            return;
        }
    }
}

/// Passes an answer on that comes piece by piece, and breaks it off when `bad` is over. What is whole is passed on as it
/// is.
fn cut_short(response: Response, bad: impl Future<Output = ()> + Send + 'static) -> Response {
    if response.body().size_hint().exact().is_some() {
        return response;
    }
    let (head, body) = response.into_parts();
    let (sender, receiver) = mpsc::channel(4);
    tokio::spawn(async move {
        let mut pieces = body.into_data_stream();
        let pass_on = async {
            while let Some(piece) = pieces.next().await {
                if sender.send(piece).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = pass_on => {}
            // An error, so that the other side does not take it for the end. If it does not even read, dropping will do.
            () = bad => drop(sender.try_send(Err(axum::Error::new("the token is not good any more")))),
        }
    });
    Response::from_parts(head, Body::from_stream(ReceiverStream::new(receiver)))
}

/// Nobody knows who it is.
pub(crate) fn unknown() -> Failure {
    Failure(Problem::new(401, "unknown-caller", "the user at the other end could not be found out"))
}

fn ended() -> Failure {
    Failure(Problem::new(401, "bad-token", "the token is not good any more"))
}

fn not_allowed(detail: &str) -> Failure {
    Failure(Problem::new(403, "not-allowed", detail))
}
