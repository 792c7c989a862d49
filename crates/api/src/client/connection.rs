//! Connections to the service: one is kept open from request to request, and renewed when the service has closed it.

use std::io;
use std::time::Duration as Patience;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Mutex;

use super::address::Address;
use super::credentials::Credentials;
use super::{PATIENCE, problem};
use crate::error::Error;

/// More than this is no answer of ours.
const LARGEST_REPLY: usize = 256 << 20;

type Sender = SendRequest<Full<Bytes>>;

#[derive(Debug)]
pub(super) struct Connection {
    address: Address,
    credentials: Credentials,
    kept: Mutex<Option<Sender>>,
}

/// One request.
#[derive(Debug)]
pub(super) struct Ask {
    method: Method,
    path: String,
    pub(super) body: Option<Bytes>,
    /// What the body is.
    pub(super) content: &'static str,
    pub(super) idempotency_key: Option<String>,
    pub(super) patience: Patience,
}

/// One answer, whole.
#[derive(Debug)]
pub(super) struct Reply {
    what: String,
    status: u16,
    pub(super) body: Bytes,
}

impl Ask {
    pub(super) fn new(method: Method, path: String) -> Ask {
        Ask { method, path, body: None, content: "application/json", idempotency_key: None, patience: PATIENCE }
    }

    fn what(&self) -> String {
        format!("{} {}", self.method, self.path)
    }

    fn request(&self, address: &Address, bearer: Option<&str>) -> Result<Request<Full<Bytes>>, Error> {
        let host = match address {
            Address::Unix(_) => "localhost".into(),
            Address::Tcp { host, port } => format!("{host}:{port}"),
        };
        let mut request = Request::builder().method(self.method.clone()).uri(&self.path).header(HOST, host);
        request = request.header(ACCEPT, "application/json, text/event-stream, text/plain");
        if self.body.is_some() {
            request = request.header(CONTENT_TYPE, self.content);
        }
        if let Some(key) = &self.idempotency_key {
            request = request.header("idempotency-key", key);
        }
        if let Some(token) = bearer {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let body = Full::new(self.body.clone().unwrap_or_default());
        request.body(body).map_err(|source| Error::BadRequest { what: self.what(), source })
    }
}

impl Reply {
    pub(super) fn is_good(&self) -> bool {
        (200..300).contains(&self.status)
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(super) fn no_answer(&self, found: &str) -> Error {
        let found = found.chars().take(200).collect();
        Error::BadReply { what: self.what.clone(), status: self.status, found }
    }
}

impl Connection {
    pub(super) fn new(address: Address, credentials: Credentials) -> Connection {
        Connection { address, credentials, kept: Mutex::new(None) }
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    /// One request over the kept connection, and its whole answer, whatever it says.
    pub(super) async fn ask(&self, ask: Ask) -> Result<Reply, Error> {
        let answer = async {
            let mut kept = self.kept.lock().await;
            let (sender, response) = self.send(kept.take(), &ask).await?;
            let reply = self.whole(&ask, response).await?;
            *kept = Some(sender);
            Ok::<Reply, Error>(reply)
        };
        tokio::time::timeout(ask.patience, answer).await.map_err(|_| self.silent(&ask))?
    }

    /// One request over a connection of its own, whose answer is read as it comes.
    pub(super) async fn stream(&self, ask: Ask) -> Result<(Sender, Response<Incoming>), Error> {
        let opened = tokio::time::timeout(ask.patience, self.send(None, &ask)).await;
        let (sender, response) = opened.map_err(|_| self.silent(&ask))??;
        if response.status().is_success() {
            return Ok((sender, response));
        }
        Err(problem(&self.whole(&ask, response).await?))
    }

    /// A kept connection may have been closed by the service meanwhile; what could not be sent on it is sent on a new one.
    async fn send(&self, kept: Option<Sender>, ask: &Ask) -> Result<(Sender, Response<Incoming>), Error> {
        let broken = |source| Error::Broken { address: self.address.to_string(), what: ask.what(), source };
        let bearer = self.credentials.bearer(&self.address)?;
        let request = ask.request(&self.address, bearer.as_deref())?;
        let request = match kept {
            None => request,
            Some(mut sender) => match sender.try_send_request(request).await {
                Ok(response) => return Ok((sender, response)),
                Err(mut unsent) => match unsent.take_message() {
                    Some(request) => request,
                    // A question may be asked again; what changes something may have been done already.
                    None if ask.method == Method::GET => ask.request(&self.address, bearer.as_deref())?,
                    None => return Err(broken(unsent.into_error())),
                },
            },
        };
        let mut sender = self.open().await?;
        // Who listens may have changed since; now that we are connected it is seen who it was.
        self.credentials.confirm(&self.address)?;
        let response = sender.send_request(request).await.map_err(broken)?;
        Ok((sender, response))
    }

    async fn whole(&self, ask: &Ask, response: Response<Incoming>) -> Result<Reply, Error> {
        let mut reply = Reply { what: ask.what(), status: response.status().as_u16(), body: Bytes::new() };
        let body = Limited::new(response.into_body(), LARGEST_REPLY).collect().await;
        reply.body = body.map_err(|error| reply.no_answer(&error.to_string()))?.to_bytes();
        Ok(reply)
    }

    async fn open(&self) -> Result<Sender, Error> {
        match &self.address {
            Address::Unix(path) => {
                let stream = UnixStream::connect(path).await.map_err(|source| self.unreachable(source))?;
                self.shake_hands(stream).await
            }
            Address::Tcp { host, port } => {
                let host = host.trim_start_matches('[').trim_end_matches(']');
                let stream = TcpStream::connect((host, *port)).await.map_err(|source| self.unreachable(source))?;
                stream.set_nodelay(true).map_err(|source| self.unreachable(source))?;
                self.shake_hands(stream).await
            }
        }
    }

    async fn shake_hands<S>(&self, stream: S) -> Result<Sender, Error>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let what = "a connection".to_string();
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|source| Error::Broken {
            address: self.address.to_string(),
            what,
            source,
        })?;
        // Whoever waits for an answer is told of an error; here it would be told a second time.
        tokio::spawn(async move { connection.await.ok() });
        Ok(sender)
    }

    fn unreachable(&self, source: io::Error) -> Error {
        let address = self.address.to_string();
        match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Error::NoService { address, source },
            _ => Error::Unreachable { address, source },
        }
    }

    fn silent(&self, ask: &Ask) -> Error {
        let seconds = ask.patience.as_secs();
        Error::Silent { address: self.address.to_string(), what: ask.what(), seconds }
    }
}
