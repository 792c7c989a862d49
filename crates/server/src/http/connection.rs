//! One connection from its first byte to its last: how long its client may take, and how it ends when the service leaves.

use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use api::Problem;
use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::ConnectInfo;
use axum::http::{Request, Response};
use axum::response::IntoResponse;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::connections::{Admission, HttpConfig, InFlight};
use super::errors::Failure;
use super::names::Names;
use super::peer::Peer;
use crate::access::Refusals;

/// Whoever is being answered when the service leaves has so long to hear the end of it.
const FAREWELL: Duration = Duration::from_secs(2);
/// A head with more is refused.
const LONGEST_HEAD: usize = 64 << 10;
const MOST_HEADERS: usize = 100;

/// What every connection is served with.
#[derive(Debug, Clone)]
pub(super) struct Counter {
    pub(super) router: Router,
    pub(super) pace: Pace,
    /// Becomes true when the service leaves.
    pub(super) leaving: watch::Receiver<bool>,
    /// Where it is told what is refused before it comes as far as the router.
    pub(super) refusals: Refusals,
}

/// How long a client may take for what.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    head: Duration,
    idle: Duration,
    write: Duration,
    pub(super) body: Duration,
}

/// What a request's handler may ask about its connection.
#[derive(Debug)]
pub(crate) struct Visit {
    pub(crate) admission: Admission,
    /// A body may pause for so long.
    pub(super) body_timeout: Duration,
    pub(super) leaving: watch::Receiver<bool>,
}

impl Pace {
    pub(super) fn of(config: &HttpConfig) -> Pace {
        let length = |length: api::Duration| Duration::from_secs_f64(length.as_secs_f64());
        Pace {
            head: length(config.head_timeout),
            idle: length(config.idle_timeout),
            write: length(config.write_timeout),
            body: length(config.body_timeout),
        }
    }
}

impl Counter {
    /// Answers requests until the client leaves, is too slow or has to give way, or the service leaves. Over TCP a
    /// request must be for one of the `names`.
    pub(super) async fn serve<S>(self, stream: S, peer: Peer, admission: Admission, names: Option<Arc<Names>>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut leaving = self.leaving.clone();
        let stream = Paced::new(stream, self.pace, admission.clone());
        let visit = Arc::new(Visit {
            admission: admission.clone(),
            body_timeout: self.pace.body,
            leaving: self.leaving.clone(),
        });
        let router = TowerToHyperService::new(self.router);
        let answer = service_fn(move |request: Request<Incoming>| {
            let allowed = names.as_ref().map_or(Ok(()), |names| names.check(request.uri(), request.headers()));
            if let Some(problem) = allowed.as_ref().err().filter(|problem| problem.status == 403) {
                self.refusals.tell(None, request.method().as_str(), request.uri().path(), problem.status);
            }
            answer(router.clone(), request, allowed, peer, visit.clone())
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            // Hyper counts this from the end of an answer; heads that have begun have their own, in `Paced`.
            .header_read_timeout(self.pace.idle.max(self.pace.head))
            .max_headers(MOST_HEADERS)
            .max_buf_size(LONGEST_HEAD)
            .serve_connection(TokioIo::new(stream), answer);
        let mut connection = pin!(connection);
        tokio::select! {
            // A client that broke off or was too slow is not answered any more.
            _ = connection.as_mut() => return,
            () = admission.displaced() => return,
            // That nobody could say so any more means the same.
            _ = leaving.wait_for(|leaving| *leaving) => {}
        }
        if !admission.is_between_requests() {
            connection.as_mut().graceful_shutdown();
            timeout(FAREWELL, connection).await.ok();
        }
    }
}

async fn answer(
    router: TowerToHyperService<Router>,
    request: Request<Incoming>,
    allowed: Result<(), Problem>,
    peer: Peer,
    visit: Arc<Visit>,
) -> Result<Response<Body>, Infallible> {
    let in_flight = match visit.admission.begin().and_then(|in_flight| allowed.map(|()| in_flight)) {
        Ok(in_flight) => in_flight,
        Err(problem) => return Ok(Failure(problem).into_response()),
    };
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(ConnectInfo(peer));
    request.extensions_mut().insert(visit);
    let response = router.call(request).await?;
    Ok(response.map(|body| Body::new(Answering { body, _in_flight: in_flight })))
}

/// The body of an answer. The request is under way until all of it is sent.
#[derive(Debug)]
struct Answering {
    body: Body,
    _in_flight: InFlight,
}

impl HttpBody for Answering {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream that fails if the head of a request does not arrive in time, or if the client does not take its answer.
#[derive(Debug)]
struct Paced<S> {
    stream: S,
    pace: Pace,
    /// When the head that has begun must be complete.
    deadline: Option<Pin<Box<Sleep>>>,
    admission: Admission,
    /// How many requests had begun when the deadline was set.
    begun: u64,
    /// When the client must have taken something of what waits for it. None while nothing waits: a stream that has
    /// nothing to say is never late.
    taken_by: Option<Pin<Box<Sleep>>>,
}

impl<S> Paced<S> {
    /// The first head is awaited from now on.
    fn new(stream: S, pace: Pace, admission: Admission) -> Paced<S> {
        Paced { stream, pace, deadline: Some(Box::pin(sleep(pace.head))), admission, begun: 0, taken_by: None }
    }

    /// What came of an attempt to write, or that the client took nothing for too long.
    fn written(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.taken_by = None;
            return written;
        }
        let write = self.pace.write;
        let deadline = self.taken_by.get_or_insert_with(|| Box::pin(sleep(write)));
        ready!(deadline.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// What has arrived is the beginning of a head, unless a request is under way or a head has begun already.
    fn arrived(&mut self) {
        self.drop_old_deadline();
        if self.deadline.is_none() && self.admission.is_between_requests() {
            self.deadline = Some(Box::pin(tokio::time::sleep_until(Instant::now() + self.pace.head)));
        }
    }

    /// A head that was complete has become a request.
    fn drop_old_deadline(&mut self) {
        let begun = self.admission.begun();
        if begun != self.begun {
            (self.begun, self.deadline) = (begun, None);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        if let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(cx, buffer) {
            if buffer.filled().len() > before {
                self.arrived();
            }
            return Poll::Ready(read);
        }
        self.drop_old_deadline();
        match &mut self.deadline {
            None => Poll::Pending,
            Some(deadline) => {
                ready!(deadline.as_mut().poll(cx));
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.written(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.written(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
