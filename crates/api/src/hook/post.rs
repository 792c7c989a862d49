//! One message to one address. Only what the answer's first line says is of interest, so nothing else of it is read.

use std::time::Duration;

use ureq::Agent;
use ureq::tls::{RootCerts, TlsConfig};

/// From the first look for the host's address to the answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a message was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsent {
    /// Without the address, which may be a secret.
    pub why: String,
    /// Whether it may be taken at another time.
    pub again: bool,
}

/// Sends JSON to an address. Redirects are not followed and no proxy is asked; who answers has to have a certificate that this
/// machine trusts.
pub fn post(url: &str, json: &str) -> Result<(), Unsent> {
    let agent: Agent = Agent::config_builder()
        .timeout_global(Some(PATIENCE))
        .max_redirects(0)
        .max_redirects_will_error(false)
        .http_status_as_error(false)
        .proxy(None)
        .user_agent("moira")
        .tls_config(TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build())
        .build()
        .into();
    let answer =
        agent.post(url).header("Content-Type", "application/json").send(json).map_err(|error| unsent(&error))?;
    let status = answer.status();
    match status.as_u16() {
        200..=299 => Ok(()),
        code @ 300..=399 => {
            Err(Unsent { why: format!("it answered {code}, and redirects are not followed"), again: false })
        }
        code => Err(Unsent { why: format!("it answered {code}"), again: status.is_server_error() || code == 429 }),
    }
}

fn unsent(error: &ureq::Error) -> Unsent {
    let (why, again) = match error {
        ureq::Error::Timeout(_) => (format!("no answer after {} s", PATIENCE.as_secs()), true),
        ureq::Error::HostNotFound => ("its host is not known".into(), true),
        ureq::Error::Io(error) => (error.to_string(), true),
        ureq::Error::ConnectionFailed => ("nobody is there".into(), true),
        ureq::Error::Tls(_) | ureq::Error::Rustls(_) => (format!("no safe connection: {error}"), false),
        ureq::Error::BadUri(_) => ("it is no address".into(), false),
        other => (other.to_string(), false),
    };
    Unsent { why, again }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// What comes of a message to somebody who answers so.
    fn answered(scheme: &str, answer: &'static [u8]) -> Result<(), Unsent> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("{scheme}://{}/hook", listener.local_addr().unwrap());
        let answering = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut read = [0; 4096];
            let count = stream.read(&mut read).unwrap();
            stream.write_all(answer).ok();
            String::from_utf8_lossy(&read[..count]).into_owned()
        });
        let outcome = post(&url, "{}");
        let asked = answering.join().unwrap();
        assert!(scheme == "https" || asked.starts_with("POST /hook HTTP/1.1\r\n"), "{asked}");
        outcome
    }

    #[test]
    fn what_is_taken_is_sent_and_what_is_not_says_whether_to_try_again() {
        let ok = b"HTTP/1.1 204 No Content\r\n\r\n";
        assert_eq!(answered("http", ok), Ok(()));
        let unsent = |answer| answered("http", answer).unwrap_err();
        let gone = unsent(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
        assert_eq!((gone.why.as_str(), gone.again), ("it answered 404", false));
        let busy = unsent(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n");
        assert_eq!((busy.why.as_str(), busy.again), ("it answered 503", true));
        let elsewhere = unsent(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(
            (elsewhere.why.as_str(), elsewhere.again),
            ("it answered 302, and redirects are not followed", false)
        );
    }

    #[test]
    fn nobody_there_and_nobody_to_trust_are_said_without_the_address() {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let nobody = post(&format!("http://127.0.0.1:{port}/secret"), "{}").unwrap_err();
        assert!(nobody.again && !nobody.why.contains("secret"), "{nobody:?}");
        let plain = answered("https", b"HTTP/1.1 200 OK\r\n\r\n").unwrap_err();
        assert!(!plain.why.contains("hook"), "{plain:?}");
    }
}
