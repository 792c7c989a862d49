//! A shell beside a running job, over the wire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::problem::FieldFault;
use crate::spec::Window;

const MOST_WORDS: usize = 1000;
const LARGEST_COMMAND: usize = 128 << 10;
const LONGEST_TERM: usize = 128;

/// A program with a terminal of its own, where the first worker of a job is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShellRequest {
    /// The program and its arguments; the user's login shell if nothing is said.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 1000)]
    pub command: Vec<String>,
    /// How large its terminal is at first.
    pub window: Window,
    /// The kind of its terminal, as `TERM` has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 128)]
    pub term: Option<String>,
}

/// A shell, and how it ended if it has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShellView {
    pub id: String,
    pub ended: bool,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// Why it could not start, or that the job has ended.
    pub message: Option<String>,
}

impl ShellRequest {
    pub fn check(&self) -> Result<(), FieldFault> {
        self.window.check(Some("window"))?;
        let fault = |field: &str, message: String| Err(FieldFault::new(field, message));
        let bytes: usize = self.command.iter().map(|word| word.len() + 1).sum();
        if self.command.len() > MOST_WORDS || bytes > LARGEST_COMMAND {
            return fault("command", format!("expected at most {MOST_WORDS} words of {LARGEST_COMMAND} bytes"));
        }
        if self.command.first().is_some_and(String::is_empty) {
            return fault("command", "expected a command, found nothing".into());
        }
        if self.command.iter().any(|word| word.contains('\0')) {
            return fault("command", "expected text without NUL bytes".into());
        }
        let is_term =
            |term: &String| (1..=LONGEST_TERM).contains(&term.len()) && term.bytes().all(|it| it.is_ascii_graphic());
        if self.term.as_ref().is_some_and(|term| !is_term(term)) {
            return fault("term", format!("expected 1 to {LONGEST_TERM} printable characters"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_started_is_refused_by_its_field() {
        let fault = |change: fn(&mut ShellRequest)| {
            let mut request = ShellRequest { command: Vec::new(), window: Window::USUAL, term: None };
            assert_eq!(request.check(), Ok(()));
            change(&mut request);
            request.check().unwrap_err().to_string()
        };
        assert_eq!(fault(|it| it.window.rows = 0), "window.rows: expected from 1 to 65535, found 0");
        assert_eq!(fault(|it| it.command = vec![String::new()]), "command: expected a command, found nothing");
        assert_eq!(fault(|it| it.command = vec!["a\0".into()]), "command: expected text without NUL bytes");
        assert_eq!(fault(|it| it.term = Some("a b".into())), "term: expected 1 to 128 printable characters");
        assert!(fault(|it| it.command = vec!["a".into(); 1001]).starts_with("command: expected at most 1000 words"));
    }
}
