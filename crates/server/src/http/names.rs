//! By which names the service may be asked for over TCP. A browser lets any page send requests to this machine, and a
//! page may have its own name resolve to it; but the browser says under which name it asks, and for which page.

use std::net::{IpAddr, Ipv4Addr};

use api::Problem;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Uri, header};

/// The names of this machine's loopback addresses, and those of the configuration.
#[derive(Debug, Clone, Default)]
pub(super) struct Names {
    configured: Vec<String>,
}

impl Names {
    pub(super) fn new(configured: &[String]) -> Names {
        Names { configured: configured.iter().map(|name| name.to_ascii_lowercase()).collect() }
    }

    /// Whether a request that came over TCP may be answered. Ports are not compared: a tunnel changes them.
    pub(super) fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
        let hosts: Vec<&str> = headers.get_all(header::HOST).iter().map(|host| host.to_str().unwrap_or("")).collect();
        let asked_for = match hosts.as_slice() {
            [host] => *host,
            _ => return Err(Problem::new(400, "malformed", "expected one Host header")),
        };
        let named = [Some(asked_for), uri.authority().map(Authority::as_str)];
        if let Some(name) = named.into_iter().flatten().find(|name| !self.has(name)) {
            return Err(refused("Host", "host-not-allowed", name));
        }
        if let Some(origin) = headers.get_all(header::ORIGIN).iter().find(|origin| !self.is_origin(origin.as_bytes())) {
            return Err(refused("Origin", "origin-not-allowed", &String::from_utf8_lossy(origin.as_bytes())));
        }
        if headers.get_all("sec-fetch-site").iter().any(|site| site.as_bytes().eq_ignore_ascii_case(b"cross-site")) {
            let detail = "a page of another site may not ask this service for anything";
            return Err(Problem::new(403, "origin-not-allowed", detail));
        }
        Ok(())
    }

    fn is_origin(&self, origin: &[u8]) -> bool {
        let Ok(origin) = str::from_utf8(origin) else { return false };
        origin.split_once("://").is_some_and(|(scheme, name)| matches!(scheme, "http" | "https") && self.has(name))
    }

    /// Whether a name, with or without a port, is one of ours.
    fn has(&self, authority: &str) -> bool {
        let Some(name) = without_port(authority) else { return false };
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        is_loopback(&name) || self.configured.contains(&name)
    }
}

/// What is wrong with a name of the configuration.
pub(crate) fn check_configured(name: &str) -> Result<(), String> {
    let plain = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
    if !name.is_empty() && name.chars().all(plain) {
        return Ok(());
    }
    Err(format!("hosts: expected names without scheme and port, like gpu-box.example.org, found `{name}`"))
}

fn refused(header: &str, kind: &str, found: &str) -> Problem {
    let found: String = found.chars().take(100).collect();
    let detail = format!(
        "{header}: expected a name of this machine alone, like localhost, or one of `hosts` in the configuration, found \
         `{found}`"
    );
    Problem::new(403, kind, detail)
}

fn is_loopback(name: &str) -> bool {
    let inner = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    match inner {
        Some(inner) => inner.parse::<IpAddr>().is_ok_and(|address| address.is_ipv6() && address.is_loopback()),
        None => name == "localhost" || name.parse::<Ipv4Addr>().is_ok_and(|address| address.is_loopback()),
    }
}

/// Nothing if what follows the colon is no port.
fn without_port(authority: &str) -> Option<&str> {
    let end = if authority.starts_with('[') {
        authority.find(']')? + 1
    } else {
        authority.find(':').unwrap_or(authority.len())
    };
    let (name, port) = authority.split_at(end);
    let is_port = port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
    is_port.then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(headers: &[(&'static str, &str)]) -> Result<(), u16> {
        let names = Names::new(&["GPU-box.example.org".into()]);
        let map = headers.iter().map(|(name, value)| ((*name).try_into().unwrap(), value.parse().unwrap())).collect();
        names.check(&Uri::from_static("/v1/jobs"), &map).map_err(|problem| problem.status)
    }

    #[test]
    fn loopback_names_and_those_of_the_configuration_are_answered_at_any_port() {
        let names = [
            "localhost",
            "LocalHost:1",
            "localhost.:7070",
            "127.0.0.1:80",
            "127.9.8.7",
            "[::1]:9",
            "gpu-box.example.org:22",
        ];
        for name in names {
            assert_eq!(asked(&[("host", name)]), Ok(()), "{name}");
            assert_eq!(asked(&[("host", "localhost"), ("origin", &format!("http://{name}"))]), Ok(()), "{name}");
        }
    }

    #[test]
    fn other_names_are_refused() {
        let names = [
            "evil.example",
            "localhost.evil.example",
            "128.0.0.1",
            "[::2]",
            "::1",
            "localhost:x",
            "user@localhost",
            "",
            "2130706433",
        ];
        for name in names {
            assert_eq!(asked(&[("host", name)]), Err(403), "{name}");
            assert_eq!(asked(&[("host", "localhost"), ("origin", &format!("http://{name}"))]), Err(403), "{name}");
        }
        assert_eq!(asked(&[]), Err(400));
        assert_eq!(asked(&[("host", "localhost"), ("origin", "null")]), Err(403));
        assert_eq!(asked(&[("host", "localhost"), ("origin", "file://localhost")]), Err(403));
    }

    #[test]
    fn a_page_of_another_site_is_refused_even_if_it_hides_its_name() {
        assert_eq!(asked(&[("host", "localhost"), ("sec-fetch-site", "cross-site")]), Err(403));
        for site in ["same-origin", "same-site", "none"] {
            assert_eq!(asked(&[("host", "localhost"), ("sec-fetch-site", site)]), Ok(()));
        }
    }

    #[test]
    fn a_whole_address_in_the_request_line_is_checked_too() {
        let headers = HeaderMap::from_iter([(header::HOST, "localhost".parse().unwrap())]);
        let checked = Names::default().check(&Uri::from_static("http://evil.example/v1/jobs"), &headers);
        assert_eq!(checked.unwrap_err().status, 403);
    }

    #[test]
    fn a_name_with_a_port_is_none() {
        assert!(check_configured("gpu-box").is_ok());
        for name in ["", "gpu-box:80", "http://gpu-box", "a b"] {
            assert!(check_configured(name).unwrap_err().starts_with("hosts: "), "{name}");
        }
    }
}
