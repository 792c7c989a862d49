//! Who is at the other end of a connection. On the socket the kernel knows whose process it is; on a network address
//! nobody does, and only a token says more.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use cluster::Run;

use super::errors::Failure;
use super::guard;
use crate::fact::Caller;

/// What a connection says of its other end, taken when it was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    /// The user whose process connected to the socket; none if the kernel could not say.
    Socket {
        uid: Option<u32>,
    },
    Network,
}

/// Somebody who is known, and by what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Visitor {
    pub(crate) caller: Caller,
    /// The run that reports on itself, by a token of its own.
    pub(crate) run: Option<Run>,
}

/// Whoever made the request. The guard has let it in.
#[derive(Debug)]
pub(crate) struct By(pub(crate) Caller);

impl<S: Send + Sync> FromRequestParts<S> for By {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<By, Failure> {
        let visitor = parts.extensions.get::<Visitor>();
        visitor.map(|visitor| By(visitor.caller.clone())).ok_or_else(guard::unknown)
    }
}

/// Whoever made the request, if that is known.
#[derive(Debug)]
pub(crate) struct Perhaps(pub(crate) Option<Caller>);

impl<S: Send + Sync> FromRequestParts<S> for Perhaps {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Perhaps, Self::Rejection> {
        Ok(Perhaps(parts.extensions.get::<Visitor>().map(|visitor| visitor.caller.clone())))
    }
}
