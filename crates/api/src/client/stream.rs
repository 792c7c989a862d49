//! Answers that are read as they come: logs, and events one by one.

use http_body_util::{BodyExt, Full};
use hyper::Response;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::SendRequest;

use crate::error::Error;
use crate::view::EventView;

type Streaming = (SendRequest<Full<Bytes>>, Response<Incoming>);

/// A log, piece by piece.
#[derive(Debug)]
pub struct Logs {
    body: Body,
    /// Where the first piece begins in all that was written.
    pub offset: u64,
    /// How many bytes before that were asked for and are not kept any more.
    pub cut: u64,
}

/// What happens, one event after the other.
#[derive(Debug)]
pub struct Events {
    body: Body,
    lines: EventLines,
}

/// The connection closes when its sender is dropped, so both go together.
#[derive(Debug)]
struct Body {
    incoming: Incoming,
    _sender: SendRequest<Full<Bytes>>,
}

impl Logs {
    /// `wanted` is the place that was asked for.
    pub(super) fn new((sender, response): Streaming, wanted: u64) -> Logs {
        let number = |name: &str| response.headers().get(name)?.to_str().ok()?.parse().ok();
        let (offset, cut) = (number("moira-log-offset").unwrap_or(wanted), number("moira-log-cut").unwrap_or(0));
        Logs { body: Body { incoming: response.into_body(), _sender: sender }, offset, cut }
    }

    /// The next piece; nothing at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        self.body.next().await
    }
}

impl Events {
    pub(super) fn new((sender, response): Streaming) -> Events {
        let body = Body { incoming: response.into_body(), _sender: sender };
        Events { body, lines: EventLines::default() }
    }

    /// The next event; nothing when the service has closed the stream.
    pub async fn next(&mut self) -> Result<Option<EventView>, Error> {
        loop {
            if let Some(data) = self.lines.next()? {
                let event = serde_json::from_str(&data).map_err(|error| no_event(&error.to_string()))?;
                return Ok(Some(event));
            }
            match self.body.next().await? {
                Some(piece) => self.lines.take(&piece),
                None => return Ok(None),
            }
        }
    }
}

impl Body {
    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            let frame = match self.incoming.frame().await {
                None => return Ok(None),
                Some(frame) => frame,
            };
            let broken = |source| Error::Cut { source };
            // What is no data is a trailer, and says nothing to us.
            if let Ok(data) = frame.map_err(broken)?.into_data()
                && !data.is_empty()
            {
                return Ok(Some(data));
            }
        }
    }
}

/// Server-sent events as far as we send them: `data:` lines up to an empty one; the rest is passed over.
#[derive(Debug, Default)]
struct EventLines {
    bytes: Vec<u8>,
    data: String,
}

/// No event is longer.
const LONGEST_EVENT: usize = 4 << 20;

impl EventLines {
    fn take(&mut self, piece: &[u8]) {
        self.bytes.extend_from_slice(piece);
    }

    /// The data of the next event that is there as a whole.
    fn next(&mut self) -> Result<Option<String>, Error> {
        while let Some(end) = self.bytes.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.bytes.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches(['\n', '\r']);
            if line.is_empty() && !self.data.is_empty() {
                return Ok(Some(std::mem::take(&mut self.data)));
            }
            if let Some(data) = line.strip_prefix("data:") {
                let joint = if self.data.is_empty() { "" } else { "\n" };
                self.data = format!("{}{joint}{}", self.data, data.strip_prefix(' ').unwrap_or(data));
            }
        }
        match self.bytes.len() + self.data.len() <= LONGEST_EVENT {
            true => Ok(None),
            false => Err(no_event("more than it can be")),
        }
    }
}

fn no_event(found: &str) -> Error {
    Error::BadReply { what: "GET /v1/events".into(), status: 200, found: found.chars().take(200).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(pieces: &[&str]) -> Vec<String> {
        let mut lines = EventLines::default();
        let mut events = Vec::new();
        for piece in pieces {
            lines.take(piece.as_bytes());
            while let Some(data) = lines.next().unwrap() {
                events.push(data);
            }
        }
        events
    }

    #[test]
    fn an_event_may_arrive_in_pieces() {
        assert_eq!(events(&["id: 1\nda", "ta: {\"a\":", "1}\n", "\ndata: 2\n\n"]), ["{\"a\":1}", "2"]);
    }

    #[test]
    fn comments_and_empty_lines_are_passed_over() {
        assert_eq!(events(&[": hello\n\n\r\ndata: a\r\ndata: b\r\n\r\n"]), ["a\nb"]);
    }

    #[test]
    fn a_line_without_end_is_not_collected_for_ever() {
        let mut lines = EventLines::default();
        lines.take(&vec![b'x'; LONGEST_EVENT + 1]);
        assert!(lines.next().is_err());
    }
}
