//! Tokens: made, listed, revoked.

use api::{FieldFault, NewToken, Problem, Role, TokenPage, TokenRequest, TokenView};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::Door;
use super::errors::{Body, Failure, Numbered, Refusal, Refusals};
use super::peer::By;
use crate::access::{Secret, TOKEN_LIFE, Token, unix_ms};
use crate::core::{Ask, Done};
use crate::fact::Caller;

/// Makes a token. Its secret is in the answer, and nowhere else.
#[utoipa::path(post, path = "/v1/tokens", request_body = TokenRequest,
    responses((status = 201, body = NewToken), Refusals))]
pub(crate) async fn create(
    State(door): State<Door>,
    By(caller): By,
    Body(request): Body<TokenRequest>,
) -> Result<Response, Failure> {
    request.check().map_err(Problem::from)?;
    door.check_changes(&caller, 1)?;
    let holder = holder(&door, &caller, &request)?;
    let role = request.role.unwrap_or(holder.role);
    if role > holder.role {
        let fault = format!("expected at most {}, the role of {}, found {role}", holder.role, holder.name);
        return Err(Problem::from(FieldFault::new("role", fault)).into());
    }
    let secret = Secret::draw()
        .map_err(|error| Problem::new(500, "no-randomness", format!("cannot draw the secret of a token: {error}")))?;
    let now = unix_ms();
    let life = request.expires_in.map_or(TOKEN_LIFE, api::Duration::span);
    let token = Token {
        id: 0,
        sha256: secret.sha256(),
        uid: holder.uid,
        user: holder.name,
        role,
        label: request.label,
        made_unix_ms: now,
        expires_unix_ms: now.saturating_add(life.as_millis()),
        revoked_unix_ms: None,
    };
    let done = door.service.inbox.ask(caller, Ask::MakeToken(Box::new(token))).await?;
    let Done::Token(token) = done else { unreachable!("a wish for a token is answered with one") };
    let answer = NewToken { secret: secret.reveal(), token: token.view() };
    Ok((StatusCode::CREATED, Json(answer)).into_response())
}

/// For whom a token is to be: oneself, or whom an admin names.
fn holder(door: &Door, caller: &Caller, request: &TokenRequest) -> Result<Caller, Problem> {
    match &request.user {
        Some(name) if *name != caller.name => {
            if caller.role < Role::Admin {
                return Err(
                    Problem::new(403, "not-allowed", "only an admin makes tokens for others").with_field("user")
                );
            }
            let found: String = name.chars().take(40).collect();
            let unknown = || FieldFault::new("user", format!("there is no user `{found}` on this machine"));
            Ok(door.directory.named(name).ok_or_else(unknown)?)
        }
        _ => Ok(caller.clone()),
    }
}

/// The caller's tokens; all of them for an admin.
#[utoipa::path(get, path = "/v1/tokens", responses((status = 200, body = TokenPage), Refusal))]
pub(crate) async fn list(State(door): State<Door>, By(caller): By) -> Json<TokenPage> {
    let shown = door.service.replica.read();
    let tokens = shown.ledger.tokens().filter(|token| caller.role == Role::Admin || token.uid == caller.uid);
    Json(TokenPage { tokens: tokens.map(Token::view).collect() })
}

/// Ends a token, and within seconds whatever goes on by it.
#[utoipa::path(delete, path = "/v1/tokens/{id}", params(("id" = u32, Path)),
    responses((status = 200, body = TokenView), Refusals))]
pub(crate) async fn revoke(
    State(door): State<Door>,
    By(caller): By,
    Numbered(id): Numbered,
) -> Result<Json<TokenView>, Failure> {
    door.check_changes(&caller, 1)?;
    match door.service.inbox.ask(caller, Ask::RevokeToken { id, unix_ms: unix_ms() }).await? {
        Done::Token(token) => Ok(Json(token.view())),
        other => unreachable!("a revocation is answered with the token, not {other:?}"),
    }
}
