//! Where clients come in: the socket and the loopback addresses, and a loop for each that nothing a client does ends.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::Problem;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::geteuid;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::connection::Counter;
use super::connections::{Connections, PeerKey};
use super::names::Names;
use super::peer::Peer;
use crate::error::ServerError;

/// After a connection could not be accepted, most often because no more files may be opened.
const BREATH: Duration = Duration::from_millis(100);
/// What goes wrong again and again is said this seldom.
const SELDOM: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) enum Entrance {
    Socket(UnixListener),
    /// Requests must be for one of these names.
    Tcp(TcpListener, Arc<Names>),
}

/// A client that has just come in.
enum Stream {
    Socket(UnixStream),
    Tcp(TcpStream, Arc<Names>),
}

/// Lets clients in until the service leaves, and then waits for those who are being answered.
pub(super) async fn accept(entrance: Entrance, counter: Counter, all: Connections) {
    let mut leaving = counter.leaving.clone();
    let mut open = JoinSet::new();
    let mut said = Said::default();
    loop {
        let accepted = tokio::select! {
            accepted = entrance.accept() => accepted,
            Some(_) = open.join_next() => continue,
            _ = leaving.wait_for(|leaving| *leaving) => break,
        };
        match accepted {
            Ok(stream) => welcome(stream, &counter, &all, &mut open, &mut said),
            Err(error) => {
                said.seldom(|| tracing::warn!(%error, "a connection could not be accepted"));
                sleep(BREATH).await;
            }
        }
    }
    // Each ends by itself within a moment.
    while open.join_next().await.is_some() {}
}

fn welcome(stream: Stream, counter: &Counter, all: &Connections, open: &mut JoinSet<()>, said: &mut Said) {
    let (peer, key, reserved) = stream.peer();
    let displaced = all.displaced();
    match all.admit(key.clone(), reserved) {
        None => {
            said.seldom(|| tracing::warn!(peer = ?key, "too many connections are open: one was refused"));
            stream.refuse();
        }
        Some(admission) => {
            if all.displaced() > displaced {
                said.seldom(
                    || tracing::warn!(peer = ?key, "too many connections are open: one that was idle gave way"),
                );
            }
            let counter = counter.clone();
            match stream {
                Stream::Socket(stream) => open.spawn(counter.serve(stream, peer, admission, None)),
                Stream::Tcp(stream, names) => open.spawn(counter.serve(stream, peer, admission, Some(names))),
            };
        }
    }
}

impl Entrance {
    async fn accept(&self) -> std::io::Result<Stream> {
        match self {
            Entrance::Socket(listener) => listener.accept().await.map(|(stream, _)| Stream::Socket(stream)),
            Entrance::Tcp(listener, names) => {
                let (stream, _) = listener.accept().await?;
                // An answer is written as a whole: waiting for more of it would only delay it.
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream, names.clone()))
            }
        }
    }
}

impl Stream {
    /// Who it is, whom it counts for, and whether it may use the reserved share.
    fn peer(&self) -> (Peer, PeerKey, bool) {
        match self {
            Stream::Socket(stream) => match stream.peer_cred().map(|credentials| credentials.uid()) {
                Ok(uid) => (Peer::Socket { uid: Some(uid) }, PeerKey::User(uid), uid == 0 || uid == geteuid().as_raw()),
                Err(_) => (Peer::Socket { uid: None }, PeerKey::Unauthenticated, false),
            },
            Stream::Tcp(..) => (Peer::Network, PeerKey::Unauthenticated, false),
        }
    }

    /// Says that there is no room. Whether it is heard does not matter: the connection closes either way.
    fn refuse(&self) {
        let problem = Problem::new(503, "busy", "too many connections are open: try again in a moment");
        let body = serde_json::to_string(&problem).unwrap_or_default();
        let head = format!(
            "HTTP/1.1 503 Service Unavailable\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            Problem::CONTENT_TYPE,
            body.len()
        );
        let answer = format!("{head}{body}");
        match self {
            Stream::Socket(stream) => stream.try_write(answer.as_bytes()).ok(),
            Stream::Tcp(stream, ..) => stream.try_write(answer.as_bytes()).ok(),
        };
    }
}

/// When something was last said that would else be said too often.
#[derive(Debug, Default)]
struct Said(Option<Instant>);

impl Said {
    fn seldom(&mut self, say: impl FnOnce()) {
        if self.0.is_none_or(|last| last.elapsed() >= SELDOM) {
            self.0 = Some(Instant::now());
            say();
        }
    }
}

/// How many files this process may have open.
pub(super) fn file_limit() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft)
}

/// Allows this process as many open files as it may have at most, and returns how many it might have before: what is
/// started from here should be held to that again, since some programs do not expect more.
pub fn raise_file_limit() -> u64 {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return 1024 };
    if let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        tracing::warn!(%error, soft, "the number of open files could not be raised");
    }
    soft
}

pub(super) async fn listen_on_address(address: SocketAddr, names: Arc<Names>) -> Result<Entrance, ServerError> {
    let listener = TcpListener::bind(address)
        .await
        .map_err(|error| ServerError::Listen { address: address.to_string(), message: error.to_string() })?;
    tracing::info!(%address, "listening");
    Ok(Entrance::Tcp(listener, names))
}
