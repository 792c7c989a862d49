//! Who is at the other end. There are no passwords yet: the operating system knows whose process a connection of this
//! machine belongs to, and that is whose job it is.

use std::fs;
use std::net::{IpAddr, SocketAddr};

use api::Problem;
use axum::extract::{ConnectInfo, FromRequestParts};
use axum::http::request::Parts;
use nix::unistd::{Uid, User, geteuid};
use tokio::net::TcpStream;

use super::errors::Failure;
use crate::fact::Caller;

/// The user of the process that connected, if it could be found out. Asked once a connection: names come from a file.
#[derive(Debug, Clone)]
pub(crate) struct Peer(Option<Caller>);

impl Peer {
    pub(crate) fn of_user(uid: u32) -> Peer {
        Peer(Some(caller(uid)))
    }

    pub(crate) fn unknown() -> Peer {
        Peer(None)
    }

    pub(crate) fn over_tcp(stream: &TcpStream, there: SocketAddr) -> Peer {
        let here = stream.local_addr().ok();
        Peer(here.and_then(|here| owner_of(there, here)).map(caller))
    }
}

/// Whoever made the request.
#[derive(Debug)]
pub(crate) struct By(pub(crate) Caller);

impl<S: Send + Sync> FromRequestParts<S> for By {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<By, Failure> {
        let peer = ConnectInfo::<Peer>::from_request_parts(parts, state).await;
        let known = peer.ok().and_then(|ConnectInfo(Peer(caller))| caller);
        known.map(By).ok_or_else(|| {
            Failure(Problem::new(
                403,
                "unknown-caller",
                "the user at the other end could not be found out: use the socket",
            ))
        })
    }
}

fn caller(uid: u32) -> Caller {
    let known = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    let name = known.map_or_else(|| uid.to_string(), |user| user.name);
    Caller { uid, name, is_admin: uid == 0 || uid == geteuid().as_raw() }
}

/// The user whose socket is at the other end of a connection within this machine, by the kernel's own table.
fn owner_of(there: SocketAddr, here: SocketAddr) -> Option<u32> {
    let table = if there.is_ipv4() { "/proc/net/tcp" } else { "/proc/net/tcp6" };
    owner_in(&fs::read_to_string(table).ok()?, there, here)
}

fn owner_in(table: &str, there: SocketAddr, here: SocketAddr) -> Option<u32> {
    let (theirs, ours) = (written(there), written(here));
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let matches = fields.get(1) == Some(&theirs.as_str()) && fields.get(2) == Some(&ours.as_str());
        if matches { fields.get(7)?.parse().ok() } else { None }
    })
}

/// As the kernel writes addresses: words in the machine's own byte order, in hexadecimal.
fn written(address: SocketAddr) -> String {
    let words = |bytes: &[u8]| -> String {
        bytes
            .chunks(4)
            .map(|word| format!("{:08X}", u32::from_ne_bytes([word[0], word[1], word[2], word[3]])))
            .collect()
    };
    let ip = match address.ip() {
        IpAddr::V4(ip) => words(&ip.octets()),
        IpAddr::V6(ip) => words(&ip.octets()),
    };
    format!("{ip}:{:04X}", address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_of_a_connection_is_found_in_the_table_of_the_kernel() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let here = listener.local_addr().unwrap();
        let stream = std::net::TcpStream::connect(here).unwrap();
        let there = stream.local_addr().unwrap();
        assert_eq!(owner_of(there, here), Some(geteuid().as_raw()));
        let nobody = SocketAddr::new(there.ip(), 1);
        assert_eq!(owner_of(nobody, here), None);
    }
}
