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
    pub reach: Reach,
}

/// What those who may use an endpoint may use it on: their own, or also what belongs to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// It belongs to nobody.
    Common,
    /// How the service is: the details are not for those without a token.
    Status,
    /// Jobs of others are shown, without their details.
    Summary,
    /// What is private in a job.
    Details,
    /// What changes a job.
    Change,
    /// What acts as the job's user, which nobody else may be.
    Owner,
    /// Nodes are shown, without the jobs of others on them.
    Placement,
    Tokens,
    NewTokens,
}

/// Every endpoint there is.
pub const ENDPOINTS: &[Endpoint] = &[
    open("/healthz", Reach::Common),
    open("/readyz", Reach::Status),
    row("GET", "/metrics", Role::Viewer, Reach::Common),
    row("GET", "/v1/openapi.json", Role::Viewer, Reach::Common),
    row("GET", "/v1/jobs", Role::Viewer, Reach::Summary),
    row("POST", "/v1/jobs", Role::User, Reach::Common),
    row("GET", "/v1/jobs/{id}", Role::Viewer, Reach::Summary),
    row("PATCH", "/v1/jobs/{id}", Role::User, Reach::Change),
    row("POST", "/v1/jobs/{id}/cancel", Role::User, Reach::Change),
    row("POST", "/v1/jobs/{id}/hold", Role::User, Reach::Change),
    row("POST", "/v1/jobs/{id}/release", Role::User, Reach::Change),
    row("POST", "/v1/jobs/{id}/requeue", Role::User, Reach::Owner),
    row("GET", "/v1/jobs/{id}/explain", Role::Viewer, Reach::Details),
    row("GET", "/v1/jobs/{id}/wait", Role::Viewer, Reach::Summary),
    Endpoint { run: true, ..row("POST", "/v1/jobs/{id}/progress", Role::User, Reach::Change) },
    Endpoint { run: true, ..row("POST", "/v1/jobs/{id}/trainer-status", Role::User, Reach::Change) },
    row("GET", "/v1/jobs/{id}/logs", Role::Viewer, Reach::Details),
    row("POST", "/v1/jobs/{id}/input", Role::User, Reach::Owner),
    row("POST", "/v1/jobs/{id}/window", Role::User, Reach::Owner),
    row("POST", "/v1/jobs/{id}/shells", Role::User, Reach::Owner),
    row("GET", "/v1/jobs/{id}/shells/{shell}", Role::User, Reach::Owner),
    row("DELETE", "/v1/jobs/{id}/shells/{shell}", Role::User, Reach::Owner),
    row("POST", "/v1/jobs/{id}/shells/{shell}/input", Role::User, Reach::Owner),
    row("POST", "/v1/jobs/{id}/shells/{shell}/window", Role::User, Reach::Owner),
    row("GET", "/v1/jobs/{id}/shells/{shell}/output", Role::User, Reach::Owner),
    row("GET", "/v1/events", Role::Viewer, Reach::Summary),
    row("GET", "/v1/queues", Role::Viewer, Reach::Common),
    row("PUT", "/v1/queues", Role::Admin, Reach::Common),
    row("GET", "/v1/nodes", Role::Viewer, Reach::Placement),
    row("POST", "/v1/nodes/{name}/cordon", Role::Operator, Reach::Placement),
    row("POST", "/v1/nodes/{name}/drain", Role::Operator, Reach::Placement),
    row("POST", "/v1/nodes/{name}/uncordon", Role::Operator, Reach::Placement),
    row("GET", "/v1/policy", Role::Viewer, Reach::Common),
    row("PUT", "/v1/policy", Role::Admin, Reach::Common),
    row("GET", "/v1/config", Role::Operator, Reach::Common),
    row("GET", "/v1/tokens", Role::Viewer, Reach::Tokens),
    Endpoint { socket_only: true, ..row("POST", "/v1/tokens", Role::Viewer, Reach::NewTokens) },
    row("DELETE", "/v1/tokens/{id}", Role::Viewer, Reach::Tokens),
];

const fn row(method: &'static str, path: &'static str, least: Role, reach: Reach) -> Endpoint {
    Endpoint { method, path, least: Some(least), run: false, socket_only: false, reach }
}

const fn open(path: &'static str, reach: Reach) -> Endpoint {
    Endpoint { method: "GET", path, least: None, run: false, socket_only: false, reach }
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

impl Reach {
    /// The least role that may use it on what belongs to others, or sees all of that; none where nobody does.
    pub fn least_for_others(self) -> Option<Role> {
        match self {
            Reach::Common | Reach::Status => Some(Role::Viewer),
            Reach::Change => Some(Role::Operator),
            Reach::Summary | Reach::Details | Reach::Placement | Reach::Tokens | Reach::NewTokens => Some(Role::Admin),
            Reach::Owner => None,
        }
    }

    /// The same in words.
    fn note(self) -> String {
        let all = match self.least_for_others() {
            None => " only".to_string(),
            Some(Role::Admin) => "; admin: all".to_string(),
            Some(least) => format!("; from {least} on, all"),
        };
        match self {
            Reach::Common => String::new(),
            Reach::Status => "without a token only the status".into(),
            Reach::Summary => format!("in full: own jobs{all}; else a summary"),
            Reach::Placement => format!("which jobs are there: own jobs{all}"),
            Reach::Details | Reach::Change | Reach::Owner => format!("own jobs{all}"),
            Reach::Tokens => format!("own tokens{all}"),
            Reach::NewTokens => format!("over the socket only; own tokens{all}"),
        }
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
        let Endpoint { method, path, reach, .. } = endpoint;
        let note = reach.note();
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
