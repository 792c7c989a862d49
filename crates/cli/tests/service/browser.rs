//! What web pages and other strangers on this machine can try: over TCP a request must be for a name of this machine, and
//! a body must say what it is; the socket is open to those it should be open to.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;

use crate::service::{FOUR_DEVICES, PATIENCE, Service, eventually};

#[test]
fn over_tcp_a_request_must_be_for_a_name_of_this_machine() {
    let port = free_port();
    let service = Service::start(&format!("listen = [\"127.0.0.1:{port}\"]\nhosts = [\"gpu-box\"]\n{FOUR_DEVICES}"));
    let status = |headers: &str| answer_over_tcp(port, &format!("GET /healthz HTTP/1.1\r\n{headers}\r\n\r\n"));
    assert_eq!(status(&format!("Host: 127.0.0.1:{port}")), 200);
    assert_eq!(status("Host: localhost:9999"), 200, "a tunnel changes the port");
    assert_eq!(status("Host: gpu-box"), 200, "it is configured");
    assert_eq!(status(&format!("Host: 127.0.0.1:{port}\r\nOrigin: http://127.0.0.1:{port}")), 200);
    assert_eq!(status(&format!("Host: evil.example:{port}")), 403, "a page whose name was bound to this machine");
    assert_eq!(status("Host: localhost\r\nOrigin: https://evil.example"), 403);
    assert_eq!(status("Host: localhost\r\nOrigin: null"), 403);
    assert_eq!(status("Host: localhost\r\nSec-Fetch-Site: cross-site"), 403);
    let job = "{\"command\": [\"true\"]}";
    let simple = format!(
        "POST /v1/jobs HTTP/1.1\r\nHost: localhost:{port}\r\nOrigin: http://evil.example\r\nContent-Type: text/plain\r\n\
         Content-Length: {}\r\n\r\n{job}",
        job.len()
    );
    assert_eq!(answer_over_tcp(port, &simple), 403, "what a page may send without asking");
    assert_eq!(service.get("/v1/jobs").body["jobs"].as_array().map(Vec::len), Some(0));
    let told = || service.log().lines().filter(|line| line.contains("\"refused\"") && line.contains("403")).count();
    eventually("an administrator is told who tries", || told() == 5);
}

#[test]
fn a_body_must_say_what_it_is() {
    let service = Service::start(FOUR_DEVICES);
    let status = |kind: &str| {
        let job = "{\"command\": [\"true\"], \"hold\": true}";
        let length = job.len();
        let mut stream = UnixStream::connect(service.socket()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = format!("POST /v1/jobs HTTP/1.1\r\nHost: moira\r\n{kind}Content-Length: {length}\r\n\r\n");
        stream.write_all(format!("{head}{job}").as_bytes()).unwrap();
        status_of(stream)
    };
    assert_eq!(status(""), 415);
    assert_eq!(status("Content-Type: text/plain\r\n"), 415);
    assert_eq!(status("Content-Type: application/json; charset=utf-8\r\n"), 201);
}

#[test]
fn the_socket_has_the_group_and_the_mode_that_are_configured() {
    let mode = |service: &Service| fs::metadata(service.socket()).unwrap().mode() & 0o777;
    let usual = if rustix::process::geteuid().is_root() { 0o666 } else { 0o600 };
    assert_eq!(mode(&Service::start(FOUR_DEVICES)), usual);
    let (keys, devices) = FOUR_DEVICES.split_once("[[").unwrap();
    let socket = |table: &str| format!("{keys}[socket]\n{table}\n[[{devices}");
    assert_eq!(mode(&Service::start(&socket("mode = \"0660\""))), 0o660);
    let mut refused = Service::prepare(&socket("group = \"no-such-group\""));
    refused.spawn();
    assert_eq!(refused.end().code(), Some(1));
    assert!(refused.log().contains("socket.group: there is no group `no-such-group`"), "{}", refused.log());
    if rustix::process::geteuid().is_root() {
        let service = Service::start(&socket("group = \"daemon\""));
        assert_eq!(mode(&service), 0o660);
        assert_ne!(fs::metadata(service.socket()).unwrap().gid(), 0);
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn answer_over_tcp(port: u16, request: &str) -> u16 {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    status_of(stream)
}

/// The status of the answer, as soon as it is there.
fn status_of(mut stream: impl Read) -> u16 {
    let mut head = [0; 12];
    stream.read_exact(&mut head).unwrap();
    String::from_utf8_lossy(&head).rsplit(' ').next().unwrap().parse().unwrap()
}
