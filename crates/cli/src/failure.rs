//! How a command ends when it cannot do what was asked: one line that says what to do, and an exit code.

use std::io::Write;
use std::process::ExitCode;

use crate::visible::{visible, visible_json};

/// Exit code 1 for a failure, 2 for wrong usage; other codes are those of a job.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    /// Nothing, where all has been said already.
    message: Option<String>,
}

impl Failure {
    /// Something that was asked for rightly could not be done.
    pub(crate) fn new(error: impl Into<anyhow::Error>) -> Failure {
        Failure { code: 1, message: Some(one_line(&format!("{:#}", error.into()))) }
    }

    /// It was asked for wrongly.
    pub(crate) fn usage(message: impl std::fmt::Display) -> Failure {
        Failure { code: 2, message: Some(one_line(&message.to_string())) }
    }

    /// What was asked for was done, and the exit code says what came of it: that of a job, say.
    pub(crate) fn silent(code: u8) -> Failure {
        Failure { code, message: None }
    }

    /// How a command ends that did all it was to do and whose exit code says what came of it, also where its output could
    /// not be printed: that nobody reads does not make a failed job look well.
    pub(crate) fn in_the_end(code: u8, unprinted: Option<Failure>) -> Result<(), Failure> {
        match (code, unprinted) {
            (0, None) => Ok(()),
            (0, Some(failure)) => Err(failure),
            (code, failure) => Err(Failure { code, message: failure.and_then(|failure| failure.message) }),
        }
    }

    /// Clap's own words, in one line.
    pub(crate) fn of_parsing(error: &clap::Error) -> Failure {
        let text = error.render().to_string();
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let telling = lines.filter(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"));
        let message = telling.collect::<Vec<_>>().join("; ");
        Failure::usage(message.strip_prefix("error: ").unwrap_or(&message))
    }

    pub(crate) fn report(self, json: bool) -> ExitCode {
        let Some(message) = self.message else { return ExitCode::from(self.code) };
        if json {
            let object = serde_json::json!({ "error": message }).to_string();
            writeln!(std::io::stdout(), "{}", visible_json(&object)).ok();
        }
        writeln!(std::io::stderr(), "error: {}", visible(&message)).ok();
        ExitCode::from(self.code)
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        Failure::new(error)
    }
}

fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}
