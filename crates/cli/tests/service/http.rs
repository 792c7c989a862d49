//! HTTP over a Unix socket or a port in its plainest form, so that no code of the product stands between a test and the service.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

/// An answer that came whole.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Value,
}

pub(crate) fn get(socket: &Path, path: &str) -> io::Result<Answer> {
    ask(socket, "GET", path, &[], "")
}

pub(crate) fn post(socket: &Path, path: &str, headers: &[(&str, &str)], body: &str) -> io::Result<Answer> {
    ask(socket, "POST", path, headers, body)
}

/// An error is a connection that broke: whether anything was done is not known then.
pub(crate) fn ask(socket: &Path, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> io::Result<Answer> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    over(stream, method, path, headers, body)
}

/// The same over a port of this machine, with a token or without.
pub(crate) fn ask_port(port: u16, token: Option<&str>, method: &str, path: &str, body: &str) -> io::Result<Answer> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let bearer = token.map(|token| format!("Bearer {token}"));
    let headers: Vec<(&str, &str)> = bearer.iter().map(|bearer| ("Authorization", bearer.as_str())).collect();
    over(stream, method, path, &headers, body)
}

/// Sends bytes over a port of this machine, as to the input of a job.
pub(crate) fn send_to_port(port: u16, token: &str, path: &str, bytes: &str) -> io::Result<Answer> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let bearer = format!("Bearer {token}");
    over(stream, "POST", path, &[("Authorization", &bearer), ("Content-Type", "application/octet-stream")], bytes)
}

fn over(
    mut stream: impl Read + Write,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> io::Result<Answer> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if !headers.iter().any(|(name, _)| *name == "Content-Type") {
        head.push_str("Content-Type: application/json\r\n");
    }
    head.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
    // A service that refuses a long body may answer before it has read it all.
    let sent = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
    let mut text = Vec::new();
    let read = stream.read_to_end(&mut text);
    parse(&String::from_utf8_lossy(&text))
        .ok_or_else(|| sent.err().or(read.err()).unwrap_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof)))
}

fn parse(text: &str) -> Option<Answer> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let length = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    if length.is_some_and(|length: usize| body.len() < length) {
        return None;
    }
    Some(Answer { status, body: serde_json::from_str(body).unwrap_or(Value::Null) })
}
