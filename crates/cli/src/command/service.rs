//! What all commands share that talk to a running service: how it is asked, and how moments and amounts are shown.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow};
use api::{Client, Error};
use clap::{Args, ValueEnum};
use cluster::Span;
use serde::Serialize;

use super::terminal::line_end;
use crate::failure::Failure;
use crate::render;
use crate::visible::{VisibleLog, visible};

/// How an answer is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Shape {
    /// For eyes
    #[default]
    Table,
    /// For programs: the object of the API itself
    Json,
    /// Only how it is called
    Name,
}

/// How a list is printed.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Listing {
    #[arg(long)]
    no_headers: bool,
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Shape,
}

impl Listing {
    /// With a header, if it is a table.
    pub(crate) fn of(output: Shape) -> Listing {
        Listing { no_headers: false, output }
    }

    /// The header, none if it is not wanted.
    pub(crate) fn header<'a>(&self, columns: &'a [&'a str]) -> &'a [&'a str] {
        if self.no_headers { &[] } else { columns }
    }
}

/// Which service is meant, where the command line says so.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) server: Option<String>,
    pub(crate) data_dir: Option<PathBuf>,
}

/// Said once, before anything is asked.
static PLACE: OnceLock<Place> = OnceLock::new();

pub(crate) fn use_place(place: Place) {
    PLACE.get_or_init(|| place);
}

/// The service at this place, else the one that the environment names.
fn client(place: &Place) -> Result<Client, Error> {
    match place {
        Place { server: Some(address), .. } => Client::at(address),
        Place { data_dir: Some(folder), .. } => Ok(Client::in_data_dir(folder)),
        _ => Client::find(),
    }
}

/// Asks the service something.
pub(crate) fn ask<T>(question: impl AsyncFnOnce(&Client) -> Result<T, Failure>) -> Result<T, Failure> {
    ask_at(PLACE.get().unwrap_or(&Place::default()), question)
}

/// Asks for a change until it is not refused for coming too fast: scripts may change thousands of jobs.
pub(crate) async fn at_the_allowed_pace<T>(change: impl AsyncFn() -> Result<T, Error>) -> Result<T, Error> {
    loop {
        match change().await {
            Err(Error::Refused(problem)) if problem.is("too-fast") => tokio::time::sleep(TOO_FAST).await,
            answer => return answer,
        }
    }
}

/// What the service names too.
const TOO_FAST: std::time::Duration = std::time::Duration::from_secs(1);

/// Asks another service than our own command line names.
pub(crate) fn ask_at<T>(
    place: &Place,
    question: impl AsyncFnOnce(&Client) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start the client")?;
    let client = client(place).map_err(of_service)?;
    runtime.block_on(question(&client))
}

/// What was asked for wrongly is wrong usage; all else is a failure.
pub(crate) fn of_service(error: Error) -> Failure {
    match &error {
        Error::Refused(problem) if matches!(problem.status, 400 | 422) => Failure::usage(problem),
        Error::BadAddress(_) | Error::Credentials { .. } | Error::Untrusted { .. } => Failure::usage(&error),
        // That a file is missing says less than that nobody listens.
        Error::NoService { .. } => Failure::new(anyhow!("{error}")),
        _ => Failure::new(error),
    }
}

/// Whether the service is not there now, but may be again.
pub(crate) fn is_absence(error: &Error) -> bool {
    match error {
        Error::NoService { .. } | Error::Broken { .. } | Error::Cut { .. } => true,
        Error::Refused(problem) => problem.is("leaving"),
        _ => false,
    }
}

pub(crate) fn json(answer: &impl Serialize) -> Result<(), Failure> {
    render::json_line(&serde_json::to_string(answer).context("cannot write the answer as JSON")?)
}

/// A word to the user that is no part of the output.
pub(crate) fn tell(text: &str) {
    write!(io::stderr(), "{}{}", visible(text), line_end()).ok();
}

/// Where a log goes: to a terminal with its control characters made visible, anywhere else as it is.
#[derive(Debug)]
pub(crate) struct LogOutput {
    shown: Option<VisibleLog>,
    /// Where several logs come together.
    lines: Option<Lines>,
}

/// Whole lines, each with a word before it that says whose it is.
#[derive(Debug)]
struct Lines {
    prefix: String,
    begun: Vec<u8>,
}

/// A longer line is broken.
const LONGEST_LINE: usize = 64 << 10;

impl Lines {
    /// The lines that are whole now.
    fn take(&mut self, piece: &[u8]) -> Vec<u8> {
        let mut whole = Vec::new();
        for part in piece.split_inclusive(|&byte| byte == b'\n') {
            self.begun.extend_from_slice(part);
            if part.ends_with(b"\n") || self.begun.len() >= LONGEST_LINE {
                whole.extend(self.rest());
            }
        }
        whole
    }

    /// What is begun, as a line of its own.
    fn rest(&mut self) -> Vec<u8> {
        let mut line = std::mem::take(&mut self.begun);
        if line.is_empty() {
            return line;
        }
        if !line.ends_with(b"\n") {
            line.push(b'\n');
        }
        [self.prefix.as_bytes(), &line].concat()
    }
}

impl LogOutput {
    pub(crate) fn new() -> LogOutput {
        LogOutput { shown: io::stdout().is_terminal().then(VisibleLog::default), lines: None }
    }

    /// As it is, also to a terminal: for a job whose terminal this is.
    pub(crate) fn raw() -> LogOutput {
        LogOutput { shown: None, lines: None }
    }

    /// Each line with this before it.
    pub(crate) fn with_prefix(prefix: String) -> LogOutput {
        LogOutput { lines: Some(Lines { prefix, begun: Vec::new() }), ..LogOutput::new() }
    }

    /// Nothing more comes: a line that is not whole is one.
    pub(crate) fn finish(&mut self) -> Result<bool, Failure> {
        let rest = self.lines.as_mut().map(Lines::rest).unwrap_or_default();
        is_read(write(&rest))
    }

    /// Passes a piece of a log on; whether anybody reads it still.
    pub(crate) fn pass_on(&mut self, piece: &[u8]) -> Result<bool, Failure> {
        let visible = self.shown.as_mut().map(|shown| shown.piece(piece));
        let piece = visible.as_deref().map_or(piece, str::as_bytes);
        is_read(match &mut self.lines {
            Some(lines) => write(&lines.take(piece)),
            None => write(piece),
        })
    }
}

/// Whether anybody reads still.
fn is_read(written: io::Result<()>) -> Result<bool, Failure> {
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::new(anyhow!(error).context("cannot pass the log on"))),
    }
}

fn write(bytes: &[u8]) -> io::Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(bytes).and_then(|()| output.flush())
}

/// How long ago a moment was; nothing if it is none.
pub(crate) fn since(moment: &str) -> Option<Span> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_millis();
    let then = u128::try_from(api::unix_millis(moment).ok()?).ok()?;
    Some(Span::from_millis(u64::try_from(now.saturating_sub(then)).ok()?))
}

/// Whether a moment, in milliseconds since 1970, is past.
pub(crate) fn is_past(unix_ms: i64) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    i128::from(unix_ms) <= i128::try_from(now).unwrap_or(i128::MAX)
}

/// A length of time in its two largest units: `2d3h`, `5m`, `12s`.
pub(crate) fn brief(length: Span) -> String {
    let secs = length.as_millis() / 1000;
    let kept = match secs {
        0..3600 => secs,
        3600..86_400 => secs - secs % 60,
        _ => secs - secs % 3600,
    };
    Span::from_secs(kept).to_string()
}

/// A number without needless digits.
pub(crate) fn number(value: f64) -> String {
    let rounded = (value * 1000.0).round() / 1000.0;
    rounded.to_string()
}

/// The text, or a dash.
pub(crate) fn or_dash(text: Option<impl ToString>) -> String {
    text.map_or_else(|| "-".into(), |text| text.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_shown_in_their_two_largest_units() {
        let text = |secs| brief(Span::from_secs(secs));
        assert_eq!([text(12), text(95), text(3725), text(190_000)], ["12s", "1m35s", "1h2m", "2d4h"]);
        assert_eq!(brief(Span::from_millis(400)), "0s");
    }

    #[test]
    fn where_logs_come_together_each_line_says_whose_it_is() {
        let mut lines = Lines { prefix: "1: ".into(), begun: Vec::new() };
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        assert_eq!(text(lines.take(b"one\ntw")), "1: one\n");
        assert_eq!(text(lines.take(b"o\n\nthree")), "1: two\n1: \n");
        assert_eq!((text(lines.rest()), text(lines.rest())), ("1: three\n".into(), String::new()));
    }

    #[test]
    fn a_moment_to_come_is_no_time_ago() {
        assert_eq!(since("9000-01-01T00:00:00Z"), Some(Span::ZERO));
        assert_eq!(since("soon"), None);
    }

    #[test]
    fn a_share_of_a_gpu_keeps_its_digits_and_no_more() {
        assert_eq!([number(2.0), number(0.5), number(1.0 / 3.0)], ["2", "0.5", "0.333"]);
    }
}
