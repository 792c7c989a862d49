//! What is wrong with a request, in the form of RFC 9457.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A request that could not be met: `application/problem+json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// What sort of problem it is; stable, for programs.
    #[serde(rename = "type")]
    #[schema(value_type = String)]
    pub kind: Box<str>,
    #[schema(value_type = String)]
    pub title: Box<str>,
    /// The HTTP status it came with.
    pub status: u16,
    /// What is wrong here and now, for people.
    pub detail: String,
    /// The field that is to be changed, as a path: `resources.gpus`, `env.PATH`, `depends_on[3]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub field: Option<Box<str>>,
    /// What may have been meant, or what to do next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub suggestion: Option<Box<str>>,
    /// Everything that is wrong, where there is more than one thing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldFault>,
}

/// One field and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, thiserror::Error)]
#[error("{field}: {message}{}", suggestion.as_deref().map(|word| format!(": {word}")).unwrap_or_default())]
pub struct FieldFault {
    pub field: String,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suggestion: Option<String>,
}

impl Problem {
    pub const CONTENT_TYPE: &'static str = "application/problem+json";

    /// A problem of a kind, e.g. `Problem::new(404, "not-found", "there is no job 7")`.
    pub fn new(status: u16, kind: &str, detail: impl Into<String>) -> Problem {
        Problem {
            kind: format!("urn:moira:problem:{kind}").into(),
            title: title(status).into(),
            status,
            detail: detail.into(),
            field: None,
            suggestion: None,
            errors: Vec::new(),
        }
    }

    /// Whether it is a problem of this kind.
    pub fn is(&self, kind: &str) -> bool {
        self.kind.strip_prefix("urn:moira:problem:") == Some(kind)
    }

    /// The request cannot be read.
    pub fn malformed(detail: impl Into<String>) -> Problem {
        Problem::new(400, "malformed", detail)
    }

    pub fn not_found(detail: impl Into<String>) -> Problem {
        Problem::new(404, "not-found", detail)
    }

    /// What is asked for does not go together with what is the case.
    pub fn conflict(detail: impl Into<String>) -> Problem {
        Problem::new(409, "conflict", detail)
    }

    /// The request can be read, and asks for what cannot be.
    pub fn invalid(faults: Vec<FieldFault>) -> Problem {
        let Some(first) = faults.first().cloned() else {
            return Problem::new(422, "invalid-field", "the request is invalid");
        };
        let detail = match faults.len() {
            1 => first.to_string(),
            several => format!("{first} (and {} more)", several - 1),
        };
        let errors = if faults.len() > 1 { faults } else { Vec::new() };
        Problem {
            field: Some(first.field.into()),
            suggestion: first.suggestion.map(Into::into),
            errors,
            ..Problem::new(422, "invalid-field", detail)
        }
    }

    pub fn with_field(mut self, field: impl Into<Box<str>>) -> Problem {
        self.field = Some(field.into());
        self
    }

    /// With what to do about it, which the detail then ends with.
    pub fn with_suggestion(mut self, suggestion: impl Into<String>) -> Problem {
        let suggestion = suggestion.into();
        self.detail = format!("{}: {suggestion}", self.detail);
        self.suggestion = Some(suggestion.into());
        self
    }
}

impl FieldFault {
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> FieldFault {
        FieldFault { field: field.into(), message: message.into(), suggestion: None }
    }

    /// With the known word that may have been meant, if one is near.
    pub fn or_meant<'a>(mut self, typed: &str, known: impl IntoIterator<Item = &'a str>) -> FieldFault {
        self.suggestion = did_you_mean(typed, known);
        self
    }
}

impl From<FieldFault> for Problem {
    fn from(fault: FieldFault) -> Problem {
        Problem::invalid(vec![fault])
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.errors.is_empty() {
            return f.write_str(&self.detail);
        }
        let faults: Vec<String> = self.errors.iter().map(FieldFault::to_string).collect();
        f.write_str(&faults.join("; "))
    }
}

impl std::error::Error for Problem {}

/// "did you mean `workers`?", if a known word is near.
pub(crate) fn did_you_mean<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let ending = cluster::suggestion(typed, known);
    ending.strip_prefix("; ").map(str::to_string)
}

fn title(status: u16) -> &'static str {
    match status {
        400 => "The request cannot be read",
        403 => "Not allowed",
        404 => "Not found",
        405 => "Method not allowed",
        409 => "Conflict",
        413 => "Too large",
        415 => "Unsupported media type",
        422 => "The request is invalid",
        429 => "Too many requests",
        503 => "Not available",
        500.. => "Internal error",
        _ => "The request failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_fault_is_the_problem_itself() {
        let problem =
            Problem::from(FieldFault::new("queue", "there is no queue `vison`").or_meant("vison", ["vision"]));
        assert_eq!(problem.to_string(), "queue: there is no queue `vison`: did you mean `vision`?");
        assert_eq!((problem.status, problem.field.as_deref()), (422, Some("queue")));
        assert!(problem.errors.is_empty());
    }

    #[test]
    fn several_faults_are_all_named() {
        let problem =
            Problem::invalid(vec![FieldFault::new("name", "is empty"), FieldFault::new("env", "is too large")]);
        assert_eq!(problem.detail, "name: is empty (and 1 more)");
        assert_eq!(problem.to_string(), "name: is empty; env: is too large");
    }

    #[test]
    fn the_wire_form_is_that_of_the_rfc() {
        let json = serde_json::to_value(Problem::not_found("there is no job 7")).unwrap();
        let expected = serde_json::json!({
            "type": "urn:moira:problem:not-found",
            "title": "Not found",
            "status": 404,
            "detail": "there is no job 7",
        });
        assert_eq!(json, expected);
    }
}
