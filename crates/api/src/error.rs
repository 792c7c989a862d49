//! What can go wrong between a client and the service.

use crate::problem::Problem;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no service at {address}: start one with `moira serve`")]
    NoService { address: String, source: std::io::Error },
    #[error("cannot reach the service at {address}")]
    Unreachable { address: String, source: std::io::Error },
    #[error("`{0}` is no address of a service: expected unix:/path/to/moira.sock or http://HOST:PORT")]
    BadAddress(String),
    #[error(
        "cannot tell where the service's socket is: neither MOIRA_SERVER, MOIRA_DATA_DIR, XDG_STATE_HOME nor HOME is set"
    )]
    NoHome,
    #[error("{}: {message}", path.display())]
    Credentials { path: std::path::PathBuf, message: String },
    #[error("no token is sent to {address}: {reason}")]
    Untrusted { address: String, reason: String },
    #[error("the connection to the service at {address} broke while asking for {what}")]
    Broken { address: String, what: String, source: hyper::Error },
    #[error("the service at {address} did not answer {what} within {seconds} s")]
    Silent { address: String, what: String, seconds: u64 },
    #[error("the connection to the service broke while an answer was coming in")]
    Cut { source: hyper::Error },
    #[error("cannot ask for {what}")]
    BadRequest { what: String, source: hyper::http::Error },
    /// The service said no.
    #[error(transparent)]
    Refused(#[from] Problem),
    #[error("the service answered {what} with {status} and something that is no answer: {found}")]
    BadReply { what: String, status: u16, found: String },
}

impl Error {
    /// What the service said, if it was the service that refused.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Error::Refused(problem) => Some(problem),
            _ => None,
        }
    }

    pub fn is_not_found(&self) -> bool {
        self.problem().is_some_and(|problem| problem.status == 404)
    }
}
