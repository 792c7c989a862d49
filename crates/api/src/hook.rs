//! Addresses that are told of jobs: which of them a service allows, and how one is told.
//!
//! An address is taken apart more strictly than a browser would, so that everybody who reads it sees the same host and the
//! same path in it.

mod post;

use std::fmt;
use std::str::FromStr;

pub use post::{Unsent, post};

/// An address that takes messages, or the beginning of such addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookUrl {
    secure: bool,
    /// In lower case.
    host: String,
    port: u16,
    /// Begins with a slash.
    path: String,
    query: Option<String>,
}

const LONGEST: usize = 2048;

impl HookUrl {
    /// The same, as the beginning of addresses that are allowed: it ends with its path.
    pub fn prefix(text: &str) -> Result<HookUrl, String> {
        let prefix: HookUrl = text.parse()?;
        match prefix.query {
            None => Ok(prefix),
            Some(_) => Err(format!("expected the beginning of addresses, without `?`, found `{}`", short(text))),
        }
    }

    /// Whether an address begins with this one: the same scheme, host and port, and a path below this one's.
    pub fn admits(&self, url: &HookUrl) -> bool {
        let is_same_place = (self.secure, &self.host, self.port) == (url.secure, &url.host, url.port);
        let rest = url.path.strip_prefix(&self.path);
        is_same_place && rest.is_some_and(|rest| rest.is_empty() || self.path.ends_with('/') || rest.starts_with('/'))
    }

    /// Without what may be a secret: the path and the query.
    pub fn host(&self) -> &str {
        &self.host
    }
}

impl FromStr for HookUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<HookUrl, String> {
        let wrong = |why: &str| {
            format!("expected an address like https://hooks.example.org/path, found `{}`: {why}", short(text))
        };
        if text.len() > LONGEST {
            return Err(wrong(&format!("it has more than {LONGEST} bytes")));
        }
        let (secure, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            (None, None) => return Err(wrong("it begins with neither https:// nor http://")),
        };
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !br##""#<>\^`{|}"##.contains(&byte);
        if !rest.bytes().all(is_plain) {
            return Err(wrong("it holds a character that has no place in an address"));
        }
        let (place, local) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let (path, query) = local.split_once('?').map_or((local, None), |(path, query)| (path, Some(query)));
        let (host, port) = host_and_port(place).map_err(|why| wrong(&why))?;
        if climbs(path) {
            return Err(wrong("its path has `.`, `..`, or an encoded dot or slash"));
        }
        Ok(HookUrl {
            secure,
            host,
            port: port.unwrap_or(if secure { 443 } else { 80 }),
            path: if path.is_empty() { "/".into() } else { path.into() },
            query: query.map(Into::into),
        })
    }
}

impl fmt::Display for HookUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.secure { "https" } else { "http" };
        write!(f, "{scheme}://{}:{}{}", self.host, self.port, self.path)?;
        self.query.iter().try_for_each(|query| write!(f, "?{query}"))
    }
}

fn host_and_port(place: &str) -> Result<(String, Option<u16>), String> {
    if place.contains('@') {
        return Err("a name and a password have no place in it".into());
    }
    let (host, port) = match place.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']').ok_or("its address has no `]`")?;
            address.parse::<std::net::Ipv6Addr>().map_err(|_| "what stands in `[]` is no address".to_string())?;
            (format!("[{address}]"), port)
        }
        None => {
            let (host, port) = place.split_at(place.find(':').unwrap_or(place.len()));
            let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
            if !host.split('.').all(|part| !part.is_empty() && part.bytes().all(is_of_name)) {
                return Err("its host is no name and no address".into());
            }
            (host.to_string(), port)
        }
    };
    let port = match port.strip_prefix(':') {
        None if port.is_empty() => None,
        // A sign is not part of a port.
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            Some(port.parse().ok().filter(|&port| port > 0).ok_or("its port is not from 1 to 65535")?)
        }
        _ => return Err("its port is no number".into()),
    };
    Ok((host.to_ascii_lowercase(), port))
}

/// Whether a path may lead to somewhere else than where it seems to.
fn climbs(path: &str) -> bool {
    let lower = path.to_ascii_lowercase();
    // Some servers take what stands behind a semicolon for no part of the name.
    let is_dots = |part: &str| matches!(part.split(';').next(), Some("." | ".."));
    ["%2e", "%2f", "%5c", "%25"].iter().any(|code| lower.contains(code)) || lower.split('/').any(is_dots)
}

fn short(text: &str) -> String {
    text.chars().filter(char::is_ascii_graphic).take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admits(prefix: &str, url: &str) -> bool {
        let url = url.parse::<HookUrl>();
        url.is_ok_and(|url| HookUrl::prefix(prefix).unwrap().admits(&url))
    }

    #[test]
    fn an_address_is_allowed_where_scheme_host_and_port_are_the_same_and_the_path_is_below() {
        let prefix = "https://hooks.example.org/services";
        for good in [
            "https://hooks.example.org/services",
            "https://hooks.example.org/services/T1/x%20y?a=b",
            "https://hooks.example.org/services?a=../b@c",
            "https://hooks.example.org/services/a..;b/;../c",
            "https://HOOKS.Example.org:443/services/",
        ] {
            assert!(admits(prefix, good), "{good}");
        }
        for bad in [
            "http://hooks.example.org/services",
            "https://hooks.example.org/servicesx",
            "https://hooks.example.org/",
            "https://hooks.example.org:444/services",
            "https://hooks.example.org.evil.com/services",
            "https://hooks.example.org@evil.com/services",
            "https://evil.com/https://hooks.example.org/services",
            "https://evil.com?https://hooks.example.org/services",
            "https://hooks.example.org./services",
            "https://hooks.example.org/services/../other",
            "https://hooks.example.org/services/%2e%2E/other",
            "https://hooks.example.org/services%2f..%2fother",
            "https://hooks.example.org/services/%252e%252e/other",
            "https://hooks.example.org/services/..;/other",
            "https://hooks.example.org/services/..;a=b/other",
            "https://hooks.example.org/services/.;/other",
            "https://hooks.example.org\\@evil.com/services",
            "https://hooks.example.org/services#x",
            "https://hooks.example.org /services",
            "HTTPS://hooks.example.org/services",
        ] {
            assert!(!admits(prefix, bad), "{bad}");
        }
        assert!(admits("http://127.0.0.1:8080", "http://127.0.0.1:8080/any/path"));
        assert!(admits("http://[::1]:8080/", "http://[::1]:8080/a"));
        assert!(!admits("http://127.0.0.1:8080", "http://127.0.0.1:80801/"));
    }

    #[test]
    fn what_is_no_address_is_refused_with_what_is_wrong_in_it() {
        let why = |text: &str| text.parse::<HookUrl>().unwrap_err();
        for (text, part) in [
            ("hooks.example.org", "neither https:// nor http://"),
            ("ftp://a/", "neither https:// nor http://"),
            ("https://", "its host is no name"),
            ("https:///path", "its host is no name"),
            ("https://a..b/", "its host is no name"),
            ("https://ann:secret@a/", "a name and a password"),
            ("https://a:0/", "its port is not from 1 to 65535"),
            ("https://a:+80/", "its port is no number"),
            ("https://[::1/", "no `]`"),
            ("https://a/\n", "no place in an address"),
            ("https://a/é", "no place in an address"),
        ] {
            assert!(why(text).contains(part), "{text}: {}", why(text));
        }
        assert!(why(&format!("https://a/{}", "x".repeat(LONGEST))).contains("more than 2048 bytes"));
        assert!(HookUrl::prefix("https://a/?b").unwrap_err().contains("without `?`"));
    }
}
