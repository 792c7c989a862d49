//! What can be wrong with a file or a name, always in one line.

use std::io;

pub(crate) use cluster::suggestion;

/// Values found in files are repeated in messages up to this many characters.
const SHOWN: usize = 60;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("cannot read {file}")]
    Read { file: String, source: io::Error },
    #[error("cannot write {file}")]
    Write { file: String, source: io::Error },
    #[error("{file}: {what}")]
    File { file: String, what: String },
    #[error("{file}:{line}: {what}")]
    Line { file: String, line: u64, what: String },
    #[error("{file}:{line}: column `{column}`: expected {expected}, found {found}")]
    Field { file: String, line: u64, column: String, expected: String, found: String },
    #[error("{file}:{line}:{column}: {what}")]
    Toml { file: String, line: usize, column: usize, what: String },
    #[error("{file}:{line}:{column}: {what}")]
    Place { file: String, line: u64, column: u64, what: String },
    /// A name of a cluster, a workload or one of its options that means nothing.
    #[error("{0}")]
    Name(String),
    /// A workload that cannot be drawn up for this cluster.
    #[error("workload {name}: {what}")]
    Workload { name: String, what: String },
}

impl Error {
    /// Whether something was asked for wrongly, rather than wrong in a file.
    pub fn is_usage(&self) -> bool {
        matches!(self, Error::Name(_))
    }
}

/// Text from a file, made fit for one line of a message.
pub(crate) fn shown(text: &str) -> String {
    if text.is_empty() {
        return "nothing".into();
    }
    let mut shown: String = text.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_stays_on_one_line() {
        assert_eq!(shown("a\nb\u{7}"), "a\\nb\\u{7}");
        assert_eq!(shown(&"x".repeat(100)).chars().count(), SHOWN + 1);
    }
}
