//! Where the service is, and how to write what is asked of it into an address.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::error::Error;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Address {
    Unix(PathBuf),
    Tcp { host: String, port: u16 },
}

/// The socket of the service whose data is in a folder.
pub fn socket_in(data_dir: &Path) -> PathBuf {
    data_dir.join("moira.sock")
}

/// Where this user's service keeps its data if nobody says otherwise: `MOIRA_DATA_DIR`, or `moira` below the folder for
/// state. Nothing if there is no home.
pub fn default_data_dir() -> Option<PathBuf> {
    data_dir(|name| std::env::var_os(name))
}

pub(super) fn data_dir(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = || set("XDG_STATE_HOME").filter(|folder| folder.is_absolute());
    let home = || set("HOME").map(|home| home.join(".local/state"));
    set("MOIRA_DATA_DIR").or_else(|| Some(state().or_else(home)?.join("moira")))
}

impl Address {
    /// What `MOIRA_SERVER` names, or the socket in `MOIRA_DATA_DIR`, or what the user's configuration names, or the socket
    /// of this user's own service.
    pub(super) fn find(
        configured: Option<&str>,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Address, Error> {
        let set = |name| variable(name).filter(|value| !value.is_empty());
        match (set("MOIRA_SERVER"), set("MOIRA_DATA_DIR"), configured) {
            (Some(address), ..) => Address::parse(&address.to_string_lossy()),
            (None, None, Some(address)) => Address::parse(address),
            _ => data_dir(variable).map(|folder| Address::Unix(socket_in(&folder))).ok_or(Error::NoHome),
        }
    }

    pub(super) fn parse(text: &str) -> Result<Address, Error> {
        let bad = || Error::BadAddress(text.into());
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.is_empty() { Err(bad()) } else { Ok(Address::Unix(path.into())) };
        }
        let authority = text.strip_prefix("http://").ok_or_else(bad)?.trim_end_matches('/');
        let (host, port) = authority.rsplit_once(':').ok_or_else(bad)?;
        let sensible = !host.is_empty() && !host.contains(['/', '@', '?', '#', ' ']);
        let port = port.parse().ok().filter(|_| sensible).ok_or_else(bad)?;
        Ok(Address::Tcp { host: host.into(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp { host, port } => write!(f, "http://{host}:{port}"),
        }
    }
}

/// `?a=1&b=2` of those that have a value; nothing if none has.
pub(super) fn query(parameters: &[(&str, Option<String>)]) -> String {
    let given = parameters.iter().filter_map(|(name, value)| Some(format!("{name}={}", escaped(value.as_ref()?))));
    let given: Vec<String> = given.collect();
    if given.is_empty() { String::new() } else { format!("?{}", given.join("&")) }
}

/// Everything that could mean something in an address is escaped.
pub(super) fn escaped(text: &str) -> String {
    text.bytes().fold(String::new(), |mut written, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => written.push(char::from(byte)),
            _ => written.push_str(&format!("%{byte:02X}")),
        }
        written
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &'static [(&'static str, &'static str)]) -> String {
        let variable = move |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value))
        };
        Address::find(None, variable).map_or_else(|error| error.to_string(), |address| address.to_string())
    }

    #[test]
    fn the_service_is_found_by_the_environment() {
        assert_eq!(found(&[("MOIRA_SERVER", "http://127.0.0.1:7070"), ("HOME", "/h")]), "http://127.0.0.1:7070");
        assert_eq!(found(&[("MOIRA_DATA_DIR", "/data"), ("HOME", "/h")]), "unix:/data/moira.sock");
        assert_eq!(found(&[("XDG_STATE_HOME", "/s"), ("HOME", "/h")]), "unix:/s/moira/moira.sock");
        assert_eq!(found(&[("HOME", "/h"), ("MOIRA_SERVER", "")]), "unix:/h/.local/state/moira/moira.sock");
        assert!(found(&[]).starts_with("cannot tell where the service's socket is"));
    }

    #[test]
    fn the_users_configuration_counts_less_than_the_environment() {
        let configured = |set: &'static [&'static str]| {
            let variable = move |name: &str| set.contains(&name).then(|| OsString::from("/data"));
            Address::find(Some("http://localhost:7070"), variable).unwrap().to_string()
        };
        assert_eq!(configured(&["HOME"]), "http://localhost:7070");
        assert_eq!(configured(&["HOME", "MOIRA_DATA_DIR"]), "unix:/data/moira.sock");
    }

    #[test]
    fn an_address_that_is_none_is_refused() {
        for text in ["", "localhost", "https://a:1", "http://a", "http://:1", "http://a:b", "unix:", "http://u@h:1"] {
            let error = Address::parse(text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{text}` is no address of a service")), "{error}");
        }
    }

    #[test]
    fn names_cannot_change_what_is_asked() {
        assert_eq!(escaped("a/../b?x=1&y#é"), "a%2F..%2Fb%3Fx%3D1%26y%23%C3%A9");
        let parameters = [("name", Some("a b".to_string())), ("owner", None), ("limit", Some("3".into()))];
        assert_eq!(query(&parameters), "?name=a%20b&limit=3");
        assert_eq!(query(&[("a", None)]), "");
    }
}
