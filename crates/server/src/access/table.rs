//! The table of endpoints and who may use them. What is not in it is open to nobody.

use std::fmt::Write;

use api::Role;

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    pub method: &'static str,
    /// As the router writes it.
    pub path: &'static str,
    /// The least role that may use it; none lets everyone in, also without a token.
    pub least: Option<Role>,
    /// Whether a job may use it for itself, by the token of its run.
    pub run: bool,
    /// Only over the socket: a token cannot be used for it.
    pub socket_only: bool,
    pub note: &'static str,
}

const OWN: &str = "own jobs; from operator on, all";
const OWN_ONLY: &str = "own jobs only";
const DETAILS: &str = "own jobs; admin: all";
const SUMMARY: &str = "in full: own jobs, admin: all; else a summary";

/// Every endpoint there is.
pub const ENDPOINTS: &[Endpoint] = &[
    open("/healthz", ""),
    open("/readyz", "without a token only the status"),
    row("GET", "/metrics", Role::Viewer, ""),
    row("GET", "/v1/openapi.json", Role::Viewer, ""),
    row("GET", "/v1/jobs", Role::Viewer, SUMMARY),
    row("POST", "/v1/jobs", Role::User, ""),
    row("GET", "/v1/jobs/{id}", Role::Viewer, SUMMARY),
    row("PATCH", "/v1/jobs/{id}", Role::User, OWN),
    row("POST", "/v1/jobs/{id}/cancel", Role::User, OWN),
    row("POST", "/v1/jobs/{id}/hold", Role::User, OWN),
    row("POST", "/v1/jobs/{id}/release", Role::User, OWN),
    row("POST", "/v1/jobs/{id}/requeue", Role::User, OWN_ONLY),
    row("GET", "/v1/jobs/{id}/explain", Role::Viewer, DETAILS),
    row("GET", "/v1/jobs/{id}/wait", Role::Viewer, SUMMARY),
    Endpoint { run: true, ..row("POST", "/v1/jobs/{id}/progress", Role::User, OWN) },
    Endpoint { run: true, ..row("POST", "/v1/jobs/{id}/trainer-status", Role::User, OWN) },
    row("GET", "/v1/jobs/{id}/logs", Role::Viewer, DETAILS),
    row("POST", "/v1/jobs/{id}/input", Role::User, OWN_ONLY),
    row("POST", "/v1/jobs/{id}/window", Role::User, OWN_ONLY),
    row("POST", "/v1/jobs/{id}/shells", Role::User, OWN_ONLY),
    row("GET", "/v1/jobs/{id}/shells/{shell}", Role::User, OWN_ONLY),
    row("DELETE", "/v1/jobs/{id}/shells/{shell}", Role::User, OWN_ONLY),
    row("POST", "/v1/jobs/{id}/shells/{shell}/input", Role::User, OWN_ONLY),
    row("POST", "/v1/jobs/{id}/shells/{shell}/window", Role::User, OWN_ONLY),
    row("GET", "/v1/jobs/{id}/shells/{shell}/output", Role::User, OWN_ONLY),
    row("GET", "/v1/events", Role::Viewer, SUMMARY),
    row("GET", "/v1/queues", Role::Viewer, ""),
    row("PUT", "/v1/queues", Role::Admin, ""),
    row("GET", "/v1/nodes", Role::Viewer, ""),
    row("POST", "/v1/nodes/{name}/cordon", Role::Operator, ""),
    row("POST", "/v1/nodes/{name}/drain", Role::Operator, ""),
    row("POST", "/v1/nodes/{name}/uncordon", Role::Operator, ""),
    row("GET", "/v1/policy", Role::Viewer, ""),
    row("PUT", "/v1/policy", Role::Admin, ""),
    row("GET", "/v1/config", Role::Operator, ""),
    row("GET", "/v1/tokens", Role::Viewer, "own tokens; admin: all"),
    Endpoint {
        socket_only: true,
        ..row("POST", "/v1/tokens", Role::Viewer, "over the socket only; own, admin: for all")
    },
    row("DELETE", "/v1/tokens/{id}", Role::Viewer, "own tokens; admin: all"),
];

const fn row(method: &'static str, path: &'static str, least: Role, note: &'static str) -> Endpoint {
    Endpoint { method, path, least: Some(least), run: false, socket_only: false, note }
}

const fn open(path: &'static str, note: &'static str) -> Endpoint {
    Endpoint { method: "GET", path, least: None, run: false, socket_only: false, note }
}

impl Endpoint {
    /// The row for a request; a question for the head only is the same question.
    pub(crate) fn of(method: &str, path: &str) -> Option<&'static Endpoint> {
        let method = if method == "HEAD" { "GET" } else { method };
        ENDPOINTS.iter().find(|endpoint| endpoint.method == method && endpoint.path == path)
    }

    pub fn admits(&self, role: Option<Role>) -> bool {
        self.least.is_none_or(|least| role.is_some_and(|role| role >= least))
    }
}

/// The table as a page of the documentation.
pub fn markdown() -> String {
    let mut text = String::from(
        "# Who may do what\n\n\
         Over the socket the kernel says who connects; over TCP a token does. The configuration gives users and groups \
         their roles (see [Running the service](guides/service.md#who-may-do-what)). `run` is a job that reports by the \
         token of its run, and only on itself.\n\n\
         | endpoint | no token | run | viewer | user | operator | admin | |\n|---|---|---|---|---|---|---|---|\n",
    );
    let mark = |allowed: bool| if allowed { "yes" } else { "" };
    for endpoint in ENDPOINTS {
        let roles: Vec<&str> = Role::ALL.into_iter().map(|role| mark(endpoint.admits(Some(role)))).collect();
        let Endpoint { method, path, note, .. } = endpoint;
        let (open, run) = (mark(endpoint.admits(None)), mark(endpoint.run || endpoint.least.is_none()));
        writeln!(text, "| `{method} {path}` | {open} | {run} | {} | {note} |", roles.join(" | "))
            .expect("a string grows");
    }
    text.push_str("\nGenerated from the table in the code by `cargo xtask docs`.\n");
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_endpoint_of_the_api_has_one_row_and_no_row_is_without_one() {
        let document = serde_json::to_value(crate::http::document()).unwrap();
        let paths = document["paths"].as_object().unwrap().iter();
        let mut served: BTreeSet<(String, String)> = paths
            .flat_map(|(path, methods)| {
                let methods = methods.as_object().unwrap().keys();
                methods.map(|method| (method.to_uppercase(), path.clone())).collect::<Vec<_>>()
            })
            .collect();
        served.insert(("GET".into(), "/v1/openapi.json".into()));
        let listed: BTreeSet<(String, String)> =
            ENDPOINTS.iter().map(|endpoint| (endpoint.method.into(), endpoint.path.into())).collect();
        assert_eq!(served, listed);
        assert_eq!(listed.len(), ENDPOINTS.len());
    }

    #[test]
    fn a_higher_role_may_do_whatever_a_lower_one_may() {
        for endpoint in ENDPOINTS {
            let allowed = Role::ALL.map(|role| endpoint.admits(Some(role)));
            assert!(allowed.is_sorted() && allowed[3], "{endpoint:?}");
        }
    }
}
